"""Tensors are converted from and to torch, SciPy, index arrays and every format, without lost entries or unnecessary copies."""

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from conversion_cases import MATRIX_FORMATS, D, torch_csr
from programs import ChildProcess, output_of

from numscorch.convert.construct import from_coo, from_csr, from_torch
from numscorch.convert.conversions import converted
from numscorch.errors import FormatError
from numscorch.interop.array_libraries import from_scipy
from numscorch.ir.format import COO, CSC, CSF, CSR, Format, dense

pytestmark = pytest.mark.usefixtures("interpreted")

CUBE_FORMATS = [COO(3), CSF(3), CSF(3).permuted((2, 0, 1)), Format("dss"), Format("sds", (1, 2, 0)), Format("ood"), dense(3)]


def random_dense(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape) * (rng.random(shape) < 0.4))


def torch_csc(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.to_sparse_csc()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr()


# ---- any format to any other


@pytest.mark.parametrize("target", MATRIX_FORMATS, ids=str)
@pytest.mark.parametrize("source", MATRIX_FORMATS, ids=str)
def test_matrices_to_any_format(source: Format, target: Format) -> None:
    rng = np.random.default_rng(1)
    for shape in [(4, 5), (1, 3), (3, 1), (0, 2), (2, 0), (6, 6)]:
        expected = random_dense(rng, shape)
        A = from_torch(expected, source)
        B = A.to(target)
        assert B.format == target
        assert torch.equal(A.to_dense(), expected)
        assert torch.equal(B.to_dense(), expected)
        assert torch.equal(B.t().to_dense(), expected.T)


@pytest.mark.parametrize("target", CUBE_FORMATS, ids=str)
@pytest.mark.parametrize("source", CUBE_FORMATS, ids=str)
def test_cubes_to_any_format(source: Format, target: Format) -> None:
    expected = random_dense(np.random.default_rng(2), (3, 4, 2))
    assert torch.equal(from_torch(expected, source).to(target).to_dense(), expected)


def test_every_stored_entry_stays_stored() -> None:
    A = from_coo([[0, 1], [1, 0]], [0.0, 2.0], (2, 2))
    assert A.to(CSR).values.tolist() == [0.0, 2.0]
    assert A.to(dense(2)).to(CSR).nnz == 4


def test_conversions_share_their_index_work() -> None:
    A = from_torch(D)
    B, C = A.to(CSC), A.with_values(A.values * 2).to(CSC)
    assert B.pattern is C.pattern
    assert C.values.tolist() == [6.0, 4.0, 10.0, 8.0]
    conversion = converted(A.pattern, dense(2))
    assert conversion.tensor(A.values).tolist() == D.flatten().tolist()
    assert converted(A.pattern, CSC).slots is None


def test_conversion_to_the_same_format_is_the_identity() -> None:
    A = from_torch(D)
    assert A.to(CSR) is A


def test_conversions_refuse_another_number_of_dimensions() -> None:
    with pytest.raises(FormatError, match=r"COO\(3\) has 3 dimensions, but shape \(4, 3\) has 2:"):
        from_torch(D).to(COO(3))


# ---- gradients


@pytest.mark.parametrize("format", [*MATRIX_FORMATS, None], ids=str)
def test_gradients_flow_through_every_construction(format: Format | None) -> None:
    weight = torch.arange(12.0).reshape(4, 3)
    for make in (torch.clone, torch.Tensor.to_sparse, torch_csr, torch_csc):
        leaf = D.clone().requires_grad_()
        (from_torch(make(leaf), format).to_dense() * weight).sum().backward()
        assert leaf.grad is not None
        # a strided tensor in a dense format stores its zeros too
        everywhere = make is torch.clone and format is not None and format.is_dense
        assert torch.equal(leaf.grad.to_dense(), weight if everywhere else torch.where(D != 0, weight, 0.0))


def test_gradients_flow_to_values_and_through_sums() -> None:
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)

    def dense_of(v: torch.Tensor) -> torch.Tensor:
        return from_coo([[1, 0, 1], [0, 1, 0]], v, (2, 2)).to(CSC).to_dense()

    assert dense_of(values).tolist() == [[0.0, 2.0], [4.0, 0.0]]
    assert torch.autograd.gradcheck(dense_of, (values,))
    assert torch.autograd.gradgradcheck(dense_of, (values,))


@pytest.mark.parametrize("format", [CSR, CSC, COO(2)], ids=str)
def test_gradients_flow_to_torch(format: Format) -> None:
    A = from_torch(D, format)
    A = A.with_values(A.values.clone().requires_grad_())
    (A.to_torch().values() * torch.arange(4.0)).sum().backward()
    assert A.values.grad is not None
    assert A.values.grad.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_values_shared_with_torch_can_require_grad() -> None:
    for tensor in (torch_csr(D), D.to_sparse()):
        A = from_torch(tensor)
        A.values.requires_grad_()
        A.to_dense().sum().backward()
        assert A.values.grad is not None


# ---- no copies with copy=False


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_compressed_torch_tensors_are_not_copied(index_dtype: torch.dtype) -> None:
    csr, csc = torch_csr(D), torch_csc(D)
    for tensor, pos, crd in [(csr, csr.crow_indices(), csr.col_indices()), (csc, csc.ccol_indices(), csc.row_indices())]:
        make = torch.sparse_csr_tensor if tensor is csr else torch.sparse_csc_tensor
        given = make(pos.to(index_dtype), crd.to(index_dtype), tensor.values(), D.shape, check_invariants=False)
        A = from_torch(given, copy=False)
        assert A.format == (CSR if tensor is csr else CSC)
        assert A.pattern.index_dtype == str(index_dtype).removeprefix("torch.")
        pos, crd = (given.crow_indices(), given.col_indices()) if tensor is csr else (given.ccol_indices(), given.row_indices())
        assert same(A.pattern.arrays[1][0], pos)
        assert same(A.pattern.arrays[1][1], crd)
        assert same(A.values, given.values())
        back = A.to_torch(copy=False)
        assert back.layout == given.layout
        assert same(back.values(), given.values())
        assert torch.equal(back.to_dense(), D)


def test_coordinate_tensors_are_not_copied() -> None:
    given = D.to_sparse().coalesce()
    A = from_torch(given, copy=False)
    assert A.format == COO(2)
    assert same(A.pattern.arrays[0][1], given.indices()[0])
    assert same(A.pattern.arrays[1][0], given.indices()[1])
    assert same(A.values, given.values())
    assert torch.equal(A.indices(), given.indices())
    assert not same(A.indices(), given.indices()), "a user may write to what indices() returns"
    back = A.to_torch(copy=False)
    assert back.is_coalesced()
    assert same(back.indices(), given.indices())
    assert same(back.values(), given.values())


def test_coordinates_with_other_strides_are_copied() -> None:
    indices = torch.tensor([[0, 2], [1, 0], [0, 1]])
    for given in (indices.int(), indices.flip(0).flip(0)[::2], indices.T.contiguous().T):
        shape = (3,) * len(given)
        A = from_coo(given, torch.ones(2), shape)
        assert all(array.is_contiguous() for level in A.pattern.arrays for array in level)
        assert torch.equal(A.indices(), given.long())
        assert torch.equal(A.to_torch().to_dense(), A.to_dense())


def test_index_arrays_and_values_are_not_copied() -> None:
    pos, crd, values = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1]), torch.ones(3)
    A = from_csr(pos, crd, values, (2, 3), copy=False)
    assert same(A.pattern.arrays[1][0], pos)
    assert same(A.pattern.arrays[1][1], crd)
    assert same(A.values, values)
    B = from_csr(pos.numpy(), crd.numpy(), values.numpy(), (2, 3), copy=False)
    assert same(B.pattern.arrays[1][0], pos)
    assert same(B.values, values)


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_scipy_arrays_are_not_copied(layout: str, index_dtype: Any) -> None:
    matrix = sp.csr_array(D.numpy()).asformat(layout)
    matrix.indptr, matrix.indices = matrix.indptr.astype(index_dtype), matrix.indices.astype(index_dtype)
    A = from_scipy(matrix, copy=False)
    assert A.pattern.arrays[1][0].data_ptr() == matrix.indptr.ctypes.data
    assert A.pattern.arrays[1][1].data_ptr() == matrix.indices.ctypes.data
    assert A.values.data_ptr() == matrix.data.ctypes.data
    back = A.to_scipy(copy=False)
    assert type(back) is type(matrix)
    assert (back.indptr.ctypes.data, back.indices.ctypes.data) == (matrix.indptr.ctypes.data, matrix.indices.ctypes.data)
    assert back.data.ctypes.data == matrix.data.ctypes.data
    assert (back != matrix).nnz == 0


def test_a_dense_format_is_a_view() -> None:
    for tensor, format in ((D, dense(2)), (D.T, Format("dd", (1, 0)))):
        A = from_torch(tensor, format, copy=False)
        assert same(A.values, D)
        assert same(A.to_dense(), D)
        assert torch.equal(A.to_dense(), tensor)


def test_read_only_arrays_are_copied() -> None:
    pos, crd, values = np.array([0, 1]), np.array([0]), np.array([2.0])
    for array in (pos, crd, values):
        array.flags.writeable = False
    A = from_csr(pos, crd, values, (1, 1))
    assert A.pattern.arrays[1][0].data_ptr() != pos.ctypes.data
    assert A.values.data_ptr() != values.ctypes.data


@pytest.mark.parametrize("values", [np.array([1.0, 2.0])[::-1], np.array([2.0, 1.0], dtype=">f8"), [2.0, 1.0], (2.0, 1.0)])
def test_values_in_any_memory_layout(values: Any) -> None:
    assert from_coo([[0, 1]], values, (2,)).values.tolist() == [2.0, 1.0]


def test_to_scipy_detaches() -> None:
    A = from_torch(D)
    assert A.with_values(A.values.clone().requires_grad_()).to_scipy().data.tolist() == [2.0, 3.0, 4.0, 5.0]


# ---- warnings and imports


def test_torchs_warnings_are_suppressed() -> None:
    """Runs in a subprocess, since torch warns once per process."""
    program = (
        "import torch; from numscorch.convert.construct import from_csr, from_coo; from numscorch.ir.format import CSC\n"
        "A = from_csr([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2))\n"
        "A.to_torch(); A.to(CSC).to_torch(); from_coo([[0], [0]], [1.0], (1, 1)).to_torch()"
    )
    output_of(ChildProcess(program))


def test_importing_does_not_import_scipy_or_numba() -> None:
    program = (
        "import sys, numscorch.files.load, numscorch.convert.construct, numscorch.tensors.validate\n"
        "loaded = {'numba', 'scipy'} & set(sys.modules)\n"
        "import torch\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    output_of(ChildProcess(program))
