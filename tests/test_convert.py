"""Tensors come from torch, SciPy and index arrays, go back, and change format, without losing an entry or a copy too many."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numscorch.construct import from_coo, from_csr, from_scipy, from_torch
from numscorch.convert import check_values, converted
from numscorch.errors import FormatError, NumscorchError, SizeError, UnsupportedError
from numscorch.ir.format import COO, CSC, CSF, CSR, DCSC, DCSR, Format, dense
from numscorch.sparse_tensor import SparseTensor

MATRIX_FORMATS = [CSR, CSC, DCSR, DCSC, COO(2), Format("oo", (1, 0)), Format("sd"), Format("so"), dense(2), Format("dd", (1, 0))]
CUBE_FORMATS = [COO(3), CSF(3), CSF(3).permuted((2, 0, 1)), Format("dss"), Format("sds", (1, 2, 0)), Format("ood"), dense(3)]
D = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 5.0, 0.0]])


def random_dense(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape) * (rng.random(shape) < 0.4))


def torch_csr(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.to_sparse_csr()


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
    assert conversion.values(A.view).tolist() == D.flatten().tolist()
    assert converted(A.pattern, CSC).slots is None


def test_a_tensor_in_its_own_format_is_itself() -> None:
    A = from_torch(D)
    assert A.to(CSR) is A


def test_conversions_refuse_another_number_of_levels() -> None:
    with pytest.raises(FormatError, match=r"COO\(3\) has 3 levels, but shape \(4, 3\) has 2 dimensions"):
        from_torch(D).to(COO(3))


# ---- gradients


@pytest.mark.parametrize("format", [*MATRIX_FORMATS, None], ids=str)
def test_gradients_flow_through_every_construction(format: Format | None) -> None:
    weight = torch.arange(12.0).reshape(4, 3)
    for make in (torch.clone, torch.Tensor.to_sparse, torch_csr, torch_csc):
        leaf = D.clone().requires_grad_()
        (from_torch(make(leaf), format).to_dense() * weight).sum().backward()
        assert leaf.grad is not None
        assert torch.equal(leaf.grad.to_dense(), torch.where(D != 0, weight, 0.0)) or format in (dense(2), Format("dd", (1, 0)))


def test_gradients_flow_to_values_and_through_sums() -> None:
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)

    def dense_of(v: torch.Tensor) -> torch.Tensor:
        return from_coo([[1, 0, 1], [0, 1, 0]], v, (2, 2), coalesce=True).to(CSC).to_dense()

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


def test_values_taken_from_torch_can_be_made_to_require_grad() -> None:
    for tensor in (torch_csr(D), D.to_sparse()):
        A = from_torch(tensor)
        A.values.requires_grad_()
        A.to_dense().sum().backward()
        assert A.values.grad is not None


# ---- nothing is copied that need not be


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_compressed_torch_tensors_are_not_copied(index_dtype: torch.dtype) -> None:
    csr, csc = torch_csr(D), torch_csc(D)
    for tensor, pos, crd in [(csr, csr.crow_indices(), csr.col_indices()), (csc, csc.ccol_indices(), csc.row_indices())]:
        make = torch.sparse_csr_tensor if tensor is csr else torch.sparse_csc_tensor
        given = make(pos.to(index_dtype), crd.to(index_dtype), tensor.values(), D.shape, check_invariants=False)
        A = from_torch(given)
        assert A.format == (CSR if tensor is csr else CSC)
        assert A.pattern.index_dtype == str(index_dtype).removeprefix("torch.")
        pos, crd = (given.crow_indices(), given.col_indices()) if tensor is csr else (given.ccol_indices(), given.row_indices())
        assert same(A.pattern.arrays[1][0], pos)
        assert same(A.pattern.arrays[1][1], crd)
        assert same(A.values, given.values())
        back = A.to_torch()
        assert back.layout == given.layout
        assert same(back.values(), given.values())
        assert torch.equal(back.to_dense(), D)


def test_coordinate_tensors_are_not_copied() -> None:
    given = D.to_sparse().coalesce()
    A = from_torch(given)
    assert A.format == COO(2)
    assert same(A.pattern.arrays[0][1], given.indices()[0])
    assert same(A.pattern.arrays[1][0], given.indices()[1])
    assert same(A.values, given.values())
    assert same(A.indices(), given.indices())
    back = A.to_torch()
    assert back.is_coalesced()
    assert same(back.indices(), given.indices())
    assert same(back.values(), given.values())


def test_coordinates_in_other_memory_are_gathered() -> None:
    indices = torch.tensor([[0, 2], [1, 0], [0, 1]])
    for given in (indices.int(), indices.flip(0).flip(0)[::2], indices.T.contiguous().T):
        shape = (3,) * len(given)
        A = from_coo(given, torch.ones(2), shape)
        assert all(array.is_contiguous() for level in A.pattern.arrays for array in level)
        assert torch.equal(A.indices(), given.long())
        assert torch.equal(A.to_torch().to_dense(), A.to_dense())


def test_index_arrays_and_values_are_not_copied() -> None:
    pos, crd, values = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1]), torch.ones(3)
    A = from_csr(pos, crd, values, (2, 3))
    assert same(A.pattern.arrays[1][0], pos)
    assert same(A.pattern.arrays[1][1], crd)
    assert same(A.values, values)
    B = from_csr(pos.numpy(), crd.numpy(), values.numpy(), (2, 3), coalesce=True)
    assert same(B.pattern.arrays[1][0], pos)
    assert same(B.values, values)


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_scipy_arrays_are_not_copied(layout: str, index_dtype: Any) -> None:
    matrix = sp.csr_array(D.numpy()).asformat(layout)
    matrix.indptr, matrix.indices = matrix.indptr.astype(index_dtype), matrix.indices.astype(index_dtype)
    A = from_scipy(matrix)
    assert A.pattern.arrays[1][0].data_ptr() == matrix.indptr.ctypes.data
    assert A.pattern.arrays[1][1].data_ptr() == matrix.indices.ctypes.data
    assert A.values.data_ptr() == matrix.data.ctypes.data
    back = A.to_scipy()
    assert type(back) is type(matrix)
    assert (back.indptr.ctypes.data, back.indices.ctypes.data) == (matrix.indptr.ctypes.data, matrix.indices.ctypes.data)
    assert back.data.ctypes.data == matrix.data.ctypes.data
    assert (back != matrix).nnz == 0


def test_a_dense_format_is_a_view() -> None:
    for tensor, format in ((D, dense(2)), (D.T, Format("dd", (1, 0)))):
        A = from_torch(tensor, format)
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


# ---- construction


def test_default_formats() -> None:
    assert from_torch(D).format == CSR
    assert from_torch(D.reshape(2, 2, 3)).format == COO(3)
    assert from_torch(D[0]).format == Format("s")
    assert from_torch(D[0]).to_torch().to_dense().tolist() == D[0].tolist()
    assert from_torch(torch.tensor(3.0)).to_dense().item() == 3.0
    assert from_torch(D, "ss").format == DCSR
    assert from_torch(D.to_sparse(), "(i, j) -> (j: dense, i: compressed)").format == CSC
    assert from_torch(D).pattern.index_dtype == "int32"


def test_uncoalesced_tensors_are_coalesced() -> None:
    given = torch.sparse_coo_tensor([[1, 0, 1], [0, 1, 0]], [1.0, 2.0, 3.0], (2, 2), check_invariants=True)
    assert from_torch(given).to_dense().tolist() == [[0.0, 2.0], [4.0, 0.0]]
    assert not given.is_coalesced()


@pytest.mark.parametrize("format", [*MATRIX_FORMATS, None], ids=str)
def test_coalesce_sorts_and_sums(format: Format | None) -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 2, 30):
        indices, values = np.stack([rng.integers(4, size=n), rng.integers(3, size=n)]), rng.standard_normal(n)
        expected = np.zeros((4, 3))
        np.add.at(expected, tuple(indices), values)
        A = from_coo(indices, values, (4, 3), format, coalesce=True)
        np.testing.assert_allclose(A.to_dense(), expected)


def test_entries_may_be_sorted_by_rows_or_by_the_mode_order() -> None:
    by_rows, by_columns = [[0, 0, 1], [0, 1, 0]], [[0, 1, 0], [0, 0, 1]]
    expected = [[1.0, 2.0], [3.0, 0.0]]
    for format in (CSC, Format("oo", (1, 0))):
        assert from_coo(by_rows, [1.0, 2.0, 3.0], (2, 2), format).to_dense().tolist() == expected
        assert from_coo(by_columns, [1.0, 3.0, 2.0], (2, 2), format).to_dense().tolist() == expected
    with pytest.raises(FormatError, match=r"entry 2 at \(0, 1\) comes after \(1, 0\)"):
        from_coo(by_columns, [1.0, 3.0, 2.0], (2, 2), CSR)


def test_coordinates_may_be_one_array_a_dimension() -> None:
    values = torch.tensor([5.0, 6.0])
    for indices in (np.nonzero(np.eye(2)), torch.eye(2).nonzero(as_tuple=True), [range(2), range(2)], np.array([[0, 1]] * 2, dtype=np.uint8)):
        assert from_coo(indices, values, (2, 2)).to_dense().tolist() == [[5.0, 0.0], [0.0, 6.0]]


def test_unsorted_csr_can_be_coalesced() -> None:
    pos, crd, values = np.array([0, 3, 4], dtype=np.int32), np.array([2, 0, 2, 1], dtype=np.int32), np.array([1.0, 2.0, 3.0, 4.0])
    A = from_csr(pos, crd, values, (2, 3), coalesce=True)
    assert A.to_dense().tolist() == [[2.0, 0.0, 4.0], [0.0, 4.0, 0.0]]
    assert A.pattern.index_dtype == "int32"
    assert crd.tolist() == [2, 0, 2, 1]


def test_mixed_index_dtypes_are_promoted() -> None:
    A = from_csr(torch.tensor([0, 1]), torch.tensor([0], dtype=torch.int32), torch.ones(1), (1, 1))
    assert A.pattern.index_dtype == "int64"
    wide = from_csr(torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), torch.ones(1), (1, 2**31))
    assert wide.pattern.index_dtype == "int64"
    assert from_coo(torch.zeros(2, 1, dtype=torch.int32), [1.0], (1, 2**31)).pattern.index_dtype == "int64"


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_scipy_layouts(layout: str, kind: Callable[[np.ndarray], Any]) -> None:
    matrix = kind(D.numpy()).asformat(layout)
    A = from_scipy(matrix)
    assert A.format == {"csc": CSC, "coo": COO(2)}.get(layout, CSR)
    assert torch.equal(A.to_dense(), D)
    assert torch.equal(from_scipy(matrix, "ss").to_dense(), D)
    assert (A.to_scipy() != sp.csr_array(D.numpy())).nnz == 0


def test_scipy_cubes_and_vectors() -> None:
    cube = D.reshape(2, 2, 3)
    A = from_scipy(sp.coo_array(cube.numpy()))
    assert torch.equal(A.to_dense(), cube)
    assert np.array_equal(A.to_scipy().toarray(), cube.numpy())
    assert torch.equal(from_scipy(sp.coo_array(D[2].numpy())).to_dense(), D[2])
    assert torch.equal(from_scipy(sp.csr_array(D[2].numpy())).to_dense(), D[2])


def test_scipy_matrices_are_never_changed() -> None:
    for kind in (sp.csr_array, sp.csc_array):
        matrix = kind((np.array([1.0, 2.0, 3.0]), np.array([1, 0, 1]), np.array([0, 3, 3])), shape=(2, 2))
        A = from_scipy(matrix)
        assert A.nnz == 2
        assert np.array_equal(A.to_dense().numpy(), matrix.toarray())
        assert matrix.indices.tolist() == [1, 0, 1]
        assert matrix.data.tolist() == [1.0, 2.0, 3.0]
    listed = sp.coo_array((np.array([1.0, 2.0]), (np.array([1, 1]), np.array([0, 0]))), shape=(2, 2))
    assert from_scipy(listed).values.tolist() == [3.0]
    assert listed.nnz == 2


def test_to_scipy_cuts_gradients() -> None:
    A = from_torch(D)
    assert A.with_values(A.values.clone().requires_grad_()).to_scipy().data.tolist() == [2.0, 3.0, 4.0, 5.0]


def test_unchecked_arrays_are_taken_as_they_are() -> None:
    A = from_csr([0, 2], [1, 0], [1.0, 2.0], (1, 2), check_invariants=False)
    assert A.indices().tolist() == [[0, 0], [1, 0]]
    assert from_coo([[1, 0]], [1.0, 2.0], (2,), check_invariants=False).indices().tolist() == [[1, 0]]
    assert from_coo([[1, 0]], [1.0, 2.0], (2,), "d", check_invariants=False).values.tolist() == [2.0, 1.0]


def test_torch_notices_stay_silent() -> None:
    """Run apart, since torch gives them once a process."""
    program = (
        "import torch; from numscorch.construct import from_csr, from_coo; from numscorch.ir.format import CSC\n"
        "A = from_csr([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2)); A.to_torch(); A.to(CSC).to_torch(); from_coo([[0], [0]], [1.0], (1, 1)).to_torch()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_importing_does_not_import_scipy_or_numba() -> None:
    program = (
        "import sys, numscorch.io, numscorch.construct, numscorch.validate\n"
        "loaded = {'numba', 'scipy'} & set(sys.modules)\n"
        "import torch\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---- errors


def csr(pos: Any = (0, 1, 2), crd: Any = (0, 1), values: Any = (1.0, 2.0), shape: Any = (2, 2), **options: Any) -> Callable[[], SparseTensor]:
    return lambda: from_csr(pos, crd, values, shape, **options)


def coo(indices: Any = ((0, 1), (1, 0)), values: Any = (1.0, 2.0), shape: Any = (2, 2), *rest: Any, **options: Any) -> Callable[[], SparseTensor]:
    return lambda: from_coo(indices, values, shape, *rest, **options)


def bsr() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(4).to_sparse_bsr((2, 2))


def batched() -> torch.Tensor:
    return torch_csr(torch.ones(2, 3, 3))


ERRORS: dict[str, tuple[Callable[[], object], type[NumscorchError], str]] = {
    "negative": (coo([[0, -1], [1, 0]]), FormatError, "entry 1 has coordinate -1 in dimension 0, which has size 2: coordinates lie in 0 to 1"),
    "too large": (coo([[0, 1], [1, 7]]), FormatError, "entry 1 has coordinate 7 in dimension 1, which has size 2"),
    "size 0": (coo([[0], [0]], [1.0], (2, 0)), FormatError, "dimension 1, which has size 0: it can't store anything"),
    "nan": (coo([[0.0, 1.0], [1.0, float("nan")]]), FormatError, "indices has dtype torch.float32, but coordinates and positions are integers: entry 1 of dimension 1 is nan"),
    "fraction": (csr(pos=[0, 0.5, 2]), FormatError, "entry 1 is 0.5"),
    "floats": (coo([[0.0, 1.0], [1.0, 0.0]]), FormatError, "convert it with .to(torch.int64)"),
    "bools": (coo(torch.ones(2, 2, dtype=torch.bool)), FormatError, "indices has dtype torch.bool"),
    "unsorted": (coo([[1, 0], [0, 1]]), FormatError, "entry 1 at (0, 1) comes after (1, 0): entries must be in increasing order, each place once; coalesce=True sorts"),
    "repeated": (coo([[1, 1], [0, 0]]), FormatError, "entry 1 repeats the coordinates (1, 0) of entry 0"),
    "repeated in CSR": (coo([[1, 1], [0, 0]], [1.0, 2.0], (2, 2), "ds"), FormatError, "entry 1 repeats the coordinates (1, 0) of entry 0"),
    "scalar twice": (coo(torch.empty(0, 2, dtype=torch.int64), [1.0, 2.0], ()), FormatError, "entry 1 repeats the coordinates ()"),
    "transposed": (coo([[0, 1]] * 3, [1.0] * 3), SizeError, "indices has shape (3, 2), but shape (2, 2) needs (2, nnz); did you mean indices.T?"),
    "one row": (coo([0, 1]), SizeError, "indices has shape (2,), but shape (2, 2) needs (2, nnz)"),
    "lengths": (coo(values=[1.0]), SizeError, "indices has 2 entries, but values has 1"),
    "hybrid values": (coo(values=torch.ones(2, 3)), SizeError, "values has shape (2, 3): pass one number for each entry, shape (nnz,)"),
    "levels": (coo([[0], [0]], [1.0], (2, 2), "dds"), FormatError, "has 3 levels, but shape (2, 2) has 2 dimensions"),
    "shape": (coo(shape=(2, -2)), SizeError, "shape (2, -2) has a negative size"),
    "shape of floats": (coo(shape=(2.0, 2.0)), SizeError, "is not a sequence of integers"),
    "integers": (coo(values=[1, 2]), UnsupportedError, "values of dtype torch.int64 are not compiled, only torch.float32 and torch.float64: convert them with .to(torch.float32)"),
    "half": (coo(values=np.ones(2, dtype=np.float16)), UnsupportedError, "values of dtype torch.float16"),
    "complex": (coo(values=torch.ones(2, dtype=torch.complex64)), UnsupportedError, "split them into .real and .imag"),
    "text": (coo(values=["a", "b"]), UnsupportedError, "can't make a tensor of values, a list"),
    "objects": (coo(np.array([[object()]])), UnsupportedError, "can't make a tensor of indices, a ndarray of dtype object"),
    "ragged": (coo([[0, 1], [1]]), UnsupportedError, "can't make a tensor of indices"),
    "meta": (coo(values=torch.ones(2, device="meta")), UnsupportedError, "values are on meta, but numscorch runs on the CPU: move them with .cpu()"),
    "sparse values": (coo(values=torch.ones(2).to_sparse()), UnsupportedError, "values are a sparse_coo tensor, but must be a plain 1-D one"),
    "sparse indices": (coo(torch.ones(2, 2).long().to_sparse()), UnsupportedError, "indices is a torch.sparse_coo tensor"),
    "csr order": (csr([0, 2, 2], [1, 0]), FormatError, "level 2 (compressed) of CSR: position 1, below parent 0, has coordinate 0 after 1"),
    "csr range": (csr(crd=[0, 2]), FormatError, "crd[1] = 2 is outside dimension 1 of size 2"),
    "csr range, coalescing": (csr(crd=[0, 2], coalesce=True), FormatError, "crd[1] = 2 is outside dimension 1 of size 2"),
    "csr pos": (csr([0, 2]), SizeError, "pos has 2 entries, but CSR of shape (2, 2) needs 3"),
    "csr lengths": (csr(values=[1.0]), SizeError, "crd has 2 entries, but values has 1"),
    "csr dimensions": (csr(crd=[[0, 1]]), SizeError, "crd has shape (1, 2): pass a 1-D array"),
    "csr shape": (csr(shape=(2, 2, 2)), SizeError, "from_csr takes a shape of 2 dimensions, not (2, 2, 2): use from_coo"),
    "bsr": (lambda: from_torch(bsr()), UnsupportedError, "sparse_bsr tensors are not compiled yet: convert it with .to_sparse().to_sparse_csr()"),
    "batched": (lambda: from_torch(batched()), UnsupportedError, "a CSR tensor of shape (2, 3, 3) is batched or has dense dimensions"),
    "hybrid": (lambda: from_torch(torch.ones(2, 3).to_sparse(1)), UnsupportedError, "with 1 dense dimensions is not compiled: use .to_dense().to_sparse()"),
    "integer tensor": (lambda: from_torch(torch.eye(2, dtype=torch.int32)), UnsupportedError, "values of dtype torch.int32"),
    "integer coo": (lambda: from_torch(torch.eye(2, dtype=torch.int32).to_sparse()), UnsupportedError, "values of dtype torch.int32"),
    "meta tensor": (lambda: from_torch(torch.ones(2, device="meta")), UnsupportedError, "the tensor is on meta"),
    "no tensor": (lambda: from_torch(np.eye(2)), UnsupportedError, "takes a torch tensor, not ndarray"),  # type: ignore[arg-type]
    "no scipy": (lambda: from_scipy(np.eye(2)), UnsupportedError, "takes a SciPy sparse array, not ndarray"),
    "scipy integers": (lambda: from_scipy(sp.eye_array(2, dtype=np.int64)), UnsupportedError, "values of dtype torch.int64"),
    "to torch": (lambda: from_torch(D, "ss").to_torch(), UnsupportedError, "torch has no layout for the format DCSR, (i, j) -> (i: compressed, j: compressed): use .to(ns.CSR) first"),
    "to torch, cube": (lambda: from_torch(D.reshape(2, 2, 3), "sss").to_torch(), UnsupportedError, "use .to(ns.COO(3)) first"),
    "to scipy": (lambda: from_torch(D, "ss").to_scipy(), UnsupportedError, "SciPy has no layout for the format DCSR"),
    "dense to torch": (lambda: from_torch(D, "dd").to_torch(), UnsupportedError, "use .to_dense()"),
    "too large": (lambda: from_coo([[1], [1]], [1.0], (2**40, 2**40)).to_dense(), SizeError, "keep it sparse"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_show_the_clash_and_the_way_out(name: str) -> None:
    request, kind, text = ERRORS[name]
    with pytest.raises(NumscorchError) as caught:
        request()
    assert type(caught.value) is kind
    assert text in str(caught.value)


def test_the_way_out_for_blocks_works() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = bsr().to_sparse().to_sparse_csr()
    assert torch.equal(from_torch(tensor).to_dense(), torch.eye(4))


def test_a_broken_torch_tensor_is_refused() -> None:
    pos, crd = torch.tensor([0, 1, 2]), torch.tensor([0, 9])
    broken = torch.sparse_csr_tensor(pos, crd, torch.ones(2), (2, 2), check_invariants=False)
    with pytest.raises(FormatError, match=r"crd\[1\] = 9 is outside"):
        from_torch(broken)
    entries = torch.sparse_coo_tensor(torch.tensor([[1, 0], [0, 0]]), torch.ones(2), (2, 2), is_coalesced=True, check_invariants=False)
    with pytest.raises(FormatError, match="entry 1 at"):
        from_torch(entries)


def test_checked_values_pass_unchanged() -> None:
    values = torch.ones(2)
    assert check_values(values) is values
    negated = torch.ones(2, dtype=torch.complex64).conj().imag
    assert not check_values(negated).is_neg()
