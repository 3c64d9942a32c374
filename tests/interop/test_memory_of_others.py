"""Tensors own their memory: what happens to arrays of other libraries, before and after a conversion, changes no SparseTensor.

SciPy's tidying sorts, merges and removes entries in place, also within solvers, and patterns are shared by many tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
import sparse
import torch

import numscorch as ns

N = 6
DENSE = torch.where(torch.arange(N * N).reshape(N, N) * 7 % 5 < 2, torch.arange(1.0, N * N + 1).reshape(N, N), torch.tensor(0.0))
DENSE[torch.arange(N), torch.arange(N)] = 50.0
ENTRIES = DENSE.nonzero().T
VALUES = DENSE[tuple(ENTRIES)]
STARTS = torch.cat([torch.zeros(1, dtype=torch.int64), (DENSE != 0).sum(1).cumsum(0)])
HASHED = [ns.Format(f"(i, j) -> ({levels})") for levels in ("i: dense, j: hash", "j: dense, i: hash", "i: dense, j: bitmap")]
MATRIX_FORMATS = [
    *(ns.CSR, ns.CSC, ns.DCSR, ns.DCSC, ns.COO(2), ns.Format("oo", (1, 0)), ns.Format("sd"), ns.Format("dd"), ns.Format("dd", (1, 0))),
    *(ns.ELL, ns.DIA, ns.BCSR(2, 3), ns.BCSR(4, 4), *HASHED),
]
UNORDERED = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


def scipys(name: str) -> Any:
    matrix = sp.csr_array(DENSE.double().numpy()).asformat(name, **({"copy": True} if name != "bsr" else {}))
    matrix.data.reshape(-1)[0] = 0.0  # an explicit zero, which eliminate_zeros removes
    return matrix


def arrays_of(matrix: Any) -> list[np.ndarray]:
    coords = getattr(matrix, "coords", None) if matrix.format == "coo" else None
    return [*(coords if coords is not None else (matrix.indptr, matrix.indices) if hasattr(matrix, "indptr") else ()), matrix.data]


def overwrite(arrays: list[Any]) -> None:
    for array in arrays:
        array[...] = 0


def reversed_rows(matrix: Any) -> None:
    """Reverse the rows' entries in place, as other libraries do, and sort them again."""
    for start, end in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        matrix.indices[start:end] = matrix.indices[start:end][::-1].copy()
        matrix.data[start:end] = matrix.data[start:end][::-1].copy()
    matrix.has_sorted_indices = False


TIDYING: dict[str, Callable[[Any], Any]] = {
    "sort_indices": lambda matrix: matrix.sort_indices(),
    "sum_duplicates": lambda matrix: matrix.sum_duplicates(),
    "eliminate_zeros": lambda matrix: matrix.eliminate_zeros(),
    "spsolve": lambda matrix: scipy.sparse.linalg.spsolve(matrix, np.ones(N)),
    "writes": lambda matrix: overwrite(arrays_of(matrix)),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("tidying", TIDYING)
@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr"])
def test_tidying_of_a_matrix_that_was_given_changes_nothing(name: str, tidying: str, copy: bool) -> None:
    matrix = scipys(name)
    A = ns.from_scipy(matrix, copy=copy)
    twice, expected, nnz = 2 * A, A.to_dense().clone(), A.nnz
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            TIDYING[tidying](matrix)
        except (ValueError, AttributeError) as error:
            assert "read-only" in str(error) or "has no attribute" in str(error)
    assert A.nnz == nnz
    assert torch.equal(A.to_dense(), expected) and torch.equal(twice.to_dense(), 2 * expected)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("tidying", TIDYING)
@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 3), ns.DIA, UNORDERED, UNORDERED.permuted((1, 0))], ids=str)
def test_tidying_of_a_matrix_that_was_handed_out_changes_nothing(format: ns.Format, tidying: str, copy: bool) -> None:
    stored = ns.from_torch(DENSE.double())
    P = ns.einsum("ij,jk->ik", stored, stored.t(), format=format) if not format.is_ordered else stored.to(format)
    Q, expected = 2 * P, P.to_dense().clone()
    matrix = P.to_scipy(copy=copy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            TIDYING[tidying](matrix)
        except (ValueError, AttributeError) as error:
            assert "read-only" in str(error) or "has no attribute" in str(error)
    assert torch.equal(P.to_dense(), expected) and torch.equal(Q.to_dense(), 2 * expected)


def test_products_of_shared_matrices_work() -> None:
    P = ns.einsum("ij,jk->ik", ns.from_torch(DENSE), ns.from_torch(DENSE).t(), format=UNORDERED)
    matrix = P.to_scipy(copy=False)
    with pytest.raises(ValueError, match="read-only"):
        matrix.sort_indices()
    assert np.allclose(matrix @ np.ones(N, np.float32), (DENSE @ DENSE.T).sum(1).numpy())
    matrix.data *= 2
    torch.testing.assert_close(P.to_dense(), 2 * DENSE @ DENSE.T)


def test_a_shared_matrix_of_scipy_becomes_read_only() -> None:
    matrix = scipys("csr")
    A = ns.from_scipy(matrix, copy=False)
    assert A.values.data_ptr() == matrix.data.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        matrix.eliminate_zeros()
    assert np.array_equal(matrix.toarray(), A.to_dense().numpy())
    assert torch.equal(ns.from_scipy(matrix).to_dense(), A.to_dense())


# ---- every other door


def torch_tensor(layout: torch.layout) -> torch.Tensor:
    return DENSE.to_sparse(layout=layout, **({"blocksize": (2, 3)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}))


def memory(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc, torch.sparse_coo]


def torch_sparse_rows() -> tuple[Any, list[torch.Tensor]]:
    arrays = [STARTS.clone(), ENTRIES[1].clone(), VALUES.clone()]
    return SimpleNamespace(csr=lambda: tuple(arrays), sparse_sizes=lambda: (N, N)), arrays


def door(make: Callable[..., ns.SparseTensor], *arrays: Any) -> Callable[[], tuple[ns.SparseTensor, list[Any]]]:
    def opened() -> tuple[ns.SparseTensor, list[Any]]:
        mine = [array.copy() if isinstance(array, np.ndarray) else array.clone() for array in arrays]
        return make(*mine), mine

    return opened


def gcxs() -> tuple[ns.SparseTensor, list[Any]]:
    array = sparse.GCXS.from_numpy(DENSE.numpy(), compressed_axes=(0,), idx_dtype=np.int64)
    return ns.from_pydata(array), [array.indptr, array.indices, array.data]


def coo() -> tuple[ns.SparseTensor, list[Any]]:
    array = sparse.COO.from_numpy(DENSE.numpy())
    return ns.from_pydata(array), [array.coords, array.data]


def rows() -> tuple[ns.SparseTensor, list[Any]]:
    given, arrays = torch_sparse_rows()
    return ns.from_torch_sparse(given), arrays


def native(layout: torch.layout) -> Callable[[], tuple[ns.SparseTensor, list[Any]]]:
    def opened() -> tuple[ns.SparseTensor, list[Any]]:
        tensor = torch_tensor(layout)
        return ns.from_torch(tensor), memory(tensor)

    return opened


CSR_TENSORS, CSR_ARRAYS = (STARTS, ENTRIES[1].contiguous()), (STARTS.numpy(), ENTRIES[1].numpy(), VALUES.numpy())
WAYS_IN: dict[str, Callable[[], tuple[ns.SparseTensor, list[Any]]]] = {
    "from_csr, numpy": door(lambda pos, crd, values: ns.from_csr(pos, crd, values, (N, N)), *CSR_ARRAYS),
    "from_csr, indices": door(lambda pos, crd: ns.from_csr(pos, crd, VALUES, (N, N)), *CSR_TENSORS),
    "from_csr, sorted": door(lambda pos, crd: ns.from_csr(pos, crd, VALUES, (N, N), assume_sorted=True), *CSR_TENSORS),
    "from_csr, unchecked": door(
        lambda pos, crd: ns.from_csr(pos, crd, VALUES, (N, N), assume_sorted=True, check_invariants=False), *CSR_TENSORS
    ),
    "from_coo, numpy": door(lambda places, values: ns.from_coo(places, values, (N, N)), ENTRIES.numpy(), VALUES.numpy()),
    "from_coo, indices": door(lambda places: ns.from_coo(places, VALUES, (N, N)), ENTRIES),
    "from_coo, int32": door(lambda places: ns.from_coo(places, VALUES, (N, N)), ENTRIES.int()),
    "from_coo to CSR": door(lambda places, values: ns.from_coo(places, values, (N, N), ns.CSR), ENTRIES.numpy(), VALUES.numpy()),
    "from_coo to DCSR": door(lambda places, values: ns.from_coo(places, values, (N, N), ns.DCSR), ENTRIES.numpy(), VALUES.numpy()),
    "from_coo, large": door(
        lambda places, values: ns.from_coo(places, values, (2**40, 2**40), ns.DCSR)[:N, :N].to(ns.CSR), ENTRIES.numpy(), VALUES.numpy()
    ),
    "adj_t": door(lambda places, values: ns.adj_t(places, values, size=N).t(), ENTRIES.numpy(), VALUES.numpy()),
    "sparse_csr_tensor": door(lambda pos, crd, values: ns.sparse_csr_tensor(pos, crd, values, (N, N), format=ns.CSR), *CSR_ARRAYS),
    "sparse_csr_tensor, indices": door(lambda pos, crd: ns.sparse_csr_tensor(pos, crd, VALUES, (N, N), format=ns.CSR), *CSR_TENSORS),
    "sparse_coo_tensor": door(
        lambda places, values: ns.sparse_coo_tensor(places, values, (N, N), format=ns.COO(2), is_coalesced=True),
        ENTRIES.numpy(),
        VALUES.numpy(),
    ),
    "strided, dense": door(lambda x: ns.from_torch(x, "dd"), DENSE),
    "strided": door(lambda x: ns.from_torch(x), DENSE),
    "gcxs": gcxs,
    "pydata coo": coo,
    "torch_sparse": rows,
    **{str(layout): native(layout) for layout in LAYOUTS},
}


@pytest.mark.parametrize("name", WAYS_IN)
def test_writes_to_what_was_given_change_nothing(name: str) -> None:
    A, given = WAYS_IN[name]()
    twice = 2 * A
    overwrite(given)
    assert torch.equal(A.to_dense(), DENSE) and torch.equal(twice.to_dense(), 2 * DENSE)


def torch_sparses(A: ns.SparseTensor) -> list[torch.Tensor]:
    back = A.to_torch_sparse()
    return [back["rowptr"], back["col"], back["value"]]


def pydatas(A: ns.SparseTensor) -> list[np.ndarray]:
    array = A.to_pydata()
    return [array.coords, array.data] if isinstance(array, sparse.COO) else [array.indptr, array.indices, array.data]


WAYS_OUT: dict[str, Callable[[ns.SparseTensor], list[Any]]] = {
    "to_scipy": lambda A: arrays_of(A.to_scipy()),
    "to_torch": lambda A: memory(A.to_torch()),
    "to_pydata": pydatas,
    "to_torch_sparse": torch_sparses,
    "to_edge_index": lambda A: [A.to_edge_index()[0]],
    "indices": lambda A: [A.indices()],
    "crow_indices": lambda A: [A.to_sparse_csr().crow_indices(), A.to_sparse_csr().col_indices()],
    "ccol_indices": lambda A: [A.to_sparse_csc().ccol_indices(), A.to_sparse_csc().row_indices()],
}


@pytest.mark.parametrize("format", MATRIX_FORMATS, ids=str)
@pytest.mark.parametrize("name", WAYS_OUT)
def test_writes_to_what_was_handed_out_change_nothing(name: str, format: ns.Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch_sparse", SimpleNamespace(SparseTensor=lambda **given: given))
    if name in ("to_torch_sparse", "to_edge_index") and ns.from_torch(DENSE, format).format.is_padded:
        pytest.skip("graphs have no padding")
    A = ns.from_torch(DENSE, format)
    twice = 2 * A
    for _ in range(2):  # what is remembered with the pattern is not handed out
        overwrite(WAYS_OUT[name](A))
    assert torch.equal(A.to_dense(), DENSE) and torch.equal(twice.to_dense(), 2 * DENSE)
    assert torch.equal(A.to(ns.COO(2)).to_dense(), DENSE)


@pytest.mark.parametrize("format", MATRIX_FORMATS, ids=str)
def test_every_format_of_a_matrix_goes_back(format: ns.Format) -> None:
    A = ns.from_torch(DENSE, format)
    for copy in (True, False):
        assert np.array_equal(A.to_scipy(copy=copy).toarray(), DENSE.numpy())
        assert np.array_equal(A.to_pydata(copy=copy).todense(), DENSE.numpy())
        assert torch.equal(A.to_torch(copy=copy).to_dense(), DENSE)


def test_values_that_are_tensors_are_shared_and_differentiable() -> None:
    weights = VALUES.clone().requires_grad_()
    for A in (ns.from_csr(STARTS, ENTRIES[1], weights, (N, N)), ns.from_coo(ENTRIES, weights, (N, N))):
        assert A.values is weights
    (A.to_torch().to_dense() * DENSE).sum().backward()
    assert torch.equal(weights.grad, VALUES)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])  # torch accumulates no gradients of other layouts
def test_gradients_reach_the_tensor_that_was_given(layout: torch.layout) -> None:
    given = torch_tensor(layout).requires_grad_()
    ns.from_torch(given).to_dense().sum().backward()
    assert float(given.grad.to_dense().sum()) >= len(VALUES)


def test_products_of_torchs_tensors_copy_nothing() -> None:
    given = torch_tensor(torch.sparse_csr)
    result = ns.einsum("ij,ij->ij", given, torch.ones(N, N))
    assert result.col_indices().data_ptr() == given.col_indices().data_ptr()
