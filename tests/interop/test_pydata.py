"""Arrays of pydata/sparse are converted and converted back; GCXS matrices and COO arrays are shared on request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_numbers import numbers

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")

sparse = pytest.importorskip("sparse", reason="pydata/sparse is not installed")
SHAPES = [(5,), (4, 6), (2, 3, 4), (0, 3), (2, 1, 3, 2)]
MAKERS = {
    "COO": lambda dense: sparse.COO.from_numpy(dense),
    "GCXS": lambda dense: sparse.GCXS.from_numpy(dense),
    "DOK": lambda dense: sparse.DOK.from_numpy(dense),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_every_array(name: str, shape: tuple[int, ...]) -> None:
    dense = numbers(*shape).numpy()
    if name == "DOK" and 0 in shape:
        pytest.skip("sparse 0.19 supports no DOK array without entries")
    A = ns.from_pydata(MAKERS[name](dense))
    assert np.array_equal(A.to_dense().numpy(), dense)
    assert np.array_equal(A.to_pydata().todense(), dense)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 1])
def test_matrices_share_every_array(axis: int, index: Any) -> None:
    given = sparse.GCXS.from_numpy(numbers(4, 6).numpy(), compressed_axes=(axis,), idx_dtype=index)
    A = ns.from_pydata(given, copy=False)
    assert A.format == (ns.CSR, ns.CSC)[axis]
    assert A.values.data_ptr() == given.data.ctypes.data
    back = A.to_pydata(copy=False)
    assert type(back) is sparse.GCXS
    assert tuple(back.compressed_axes) == (axis,)
    for name in ("data", "indices", "indptr"):
        assert getattr(back, name).ctypes.data == getattr(given, name).ctypes.data


def test_coo_arrays_share_every_array() -> None:
    given = sparse.COO.from_numpy(numbers(2, 3, 4).numpy())
    A = ns.from_pydata(given, copy=False)
    assert A.format == ns.COO(3)
    assert A.values.data_ptr() == given.data.ctypes.data
    assert A.pattern.level_arrays(2)[-1].ctypes.data == given.coords[2].ctypes.data
    back = A.to_pydata(copy=False)
    assert type(back) is sparse.COO
    assert back.data.ctypes.data == given.data.ctypes.data
    assert back.coords.ctypes.data == given.coords.ctypes.data


def test_target_formats_and_unsorted_rows() -> None:
    given = sparse.GCXS((np.array([1.0, 2.0, 3.0]), np.array([2, 0, 1]), np.array([0, 2, 3])), shape=(2, 3), compressed_axes=(0,))
    A = ns.from_pydata(given, ns.DCSR)
    assert A.format == ns.DCSR
    assert A.to_dense().tolist() == [[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]]
    assert ns.from_pydata(sparse.COO.from_numpy(np.eye(3)), "ss").format == ns.DCSR


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int64, np.complex64, np.bool_])
def test_data_types(dtype: Any) -> None:
    A = ns.from_pydata(sparse.COO.from_numpy(np.eye(3, dtype=dtype)))
    assert A.to_pydata().dtype == dtype


@pytest.mark.parametrize("fill", [1.0, float("nan")])
@pytest.mark.parametrize("name", MAKERS)
def test_another_fill_value_is_refused(name: str, fill: float) -> None:
    given = MAKERS[name](np.eye(3))
    given.fill_value = np.float64(fill)
    with pytest.raises(ns.UnsupportedError, match=f"entries that aren't stored are 0 here, but {fill} in this array"):
        ns.from_pydata(given)


def test_invalid_arrays_are_refused() -> None:
    with pytest.raises(ns.UnsupportedError, match="from_pydata takes an array of pydata/sparse, not ndarray"):
        ns.from_pydata(np.eye(2))
    with pytest.raises(ns.UnsupportedError, match=r"not COO: use ns\.from_pydata"):
        ns.from_scipy(sparse.COO.from_numpy(np.eye(2)))
    with pytest.raises(ns.UnsupportedError, match=r"pydata/sparse has no sparse layout for .*: use \.to_dense\(\)"):
        ns.from_torch(torch.tensor(1.0)).to_pydata()
    with pytest.raises(ns.UnsupportedError, match="which have no bfloat16"):
        ns.from_torch(torch.eye(2, dtype=torch.bfloat16)).to_pydata()
    with pytest.raises(ns.UnsupportedError, match="uint16"):
        ns.from_pydata(sparse.COO.from_numpy(np.eye(2, dtype=np.uint16)))
    broken = sparse.COO.from_numpy(np.eye(3))
    broken.coords[0, 1] = 7
    with pytest.raises(ns.FormatError, match="entry 1 has coordinate 7"):
        ns.from_pydata(broken)


def test_to_pydata_detaches() -> None:
    A = ns.from_torch(torch.eye(2).requires_grad_())
    assert A.requires_grad
    assert np.array_equal(A.to_pydata().todense(), np.eye(2))
