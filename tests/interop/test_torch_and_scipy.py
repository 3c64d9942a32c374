"""Every layout of torch and SciPy is converted and converted back: blocks, batches, hybrid tensors, diagonals, unsorted rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from small_numbers import numbers

import numscorch as ns
from numscorch.programs import torch_sparse
from numscorch.tensors.torch_layouts import layout_of

pytestmark = pytest.mark.usefixtures("interpreted")

UNORDERED = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


def batch(*shape: int) -> torch.Tensor:
    """Matrices with equal patterns; torch requires equal counts in a batch."""
    return numbers(*shape) * 0 + (numbers(*shape[-2:]) != 0) * torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape)


NATIVE: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "bsr": (lambda: numbers(4, 6).to_sparse_bsr((2, 3)), "BCSR(2, 3)"),
    "bsr, flat blocks": (lambda: numbers(4, 6).to_sparse_bsr((1, 3)), "BCSR(1, 3)"),
    "bsr, no rows": (lambda: numbers(0, 6).to_sparse_bsr((2, 3)), "BCSR(2, 3)"),
    "bsc": (
        lambda: numbers(4, 6).to_sparse_bsc((2, 3)),
        "(i, j) -> (j // 3: dense, i // 2: compressed, i % 2: dense, j % 3: dense)",
    ),
    "bsc, tall blocks": (lambda: numbers(4, 6).to_sparse_bsc((2, 1)), "(i, j) -> (j: dense, i // 2: compressed, i % 2: dense)"),
    "batched csr": (lambda: batch(3, 4, 5).to_sparse_csr(), "dds"),
    "batched csr, no entries": (lambda: torch.zeros(3, 4, 5).to_sparse_csr(), "dds"),
    "batched csr, no rows": (lambda: torch.zeros(3, 0, 5).to_sparse_csr(), "dds"),
    "batched csc": (lambda: batch(3, 4, 5).to_sparse_csc(), "(i, j, k) -> (i: dense, k: dense, j: compressed)"),
    "two dimensions of batches": (lambda: batch(2, 3, 4, 5).to_sparse_csr(), "ddds"),
    "batched bsr": (
        lambda: batch(3, 4, 6).to_sparse_bsr((2, 3)),
        "(i, j, k) -> (i: dense, j // 2: dense, k // 3: compressed, j % 2: dense, k % 3: dense)",
    ),
    "hybrid coo": (lambda: numbers(4, 5, 3).to_sparse(2), "ood"),
    "hybrid coo, one coordinate": (lambda: numbers(4, 5, 3).to_sparse(1), "sdd"),
    "hybrid coo, no entries": (lambda: torch.zeros(4, 5, 3).to_sparse(2), "ood"),
    "hybrid coo, no values": (lambda: torch.zeros(4, 5, 0).to_sparse(2), "ood"),
    "hybrid csr": (lambda: numbers(4, 5, 3).to_sparse_csr(dense_dim=1), "dsd"),
    "hybrid csc": (lambda: numbers(4, 5, 3, 2).to_sparse_csc(dense_dim=2), "(i, j, k, l) -> (j: dense, i: compressed, k: dense, l: dense)"),
    "hybrid bsr": (
        lambda: numbers(4, 6, 2).to_sparse_bsr((2, 3), dense_dim=1),
        "(i, j, k) -> (i // 2: dense, j // 3: compressed, i % 2: dense, j % 3: dense, k: dense)",
    ),
    "batched hybrid csr": (lambda: batch(2, 4, 5)[..., None].repeat(1, 1, 1, 3).to_sparse_csr(dense_dim=1), "ddsd"),
}


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def check_invariants(tensor: torch.Tensor) -> None:
    """torch's own check, including the order of coordinates."""
    rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    arrays = (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
    torch._validate_sparse_compressed_tensor_args(*arrays, tensor.values(), tensor.shape, tensor.layout)


@pytest.mark.parametrize("name", NATIVE)
def test_native_tensors_are_converted_and_converted_back(name: str) -> None:
    make, text = NATIVE[name]
    given = make()
    A = ns.from_torch(given, copy=False)
    assert A.format == ns.Format(text)
    assert torch.equal(A.to_dense(), given.to_dense())
    assert A.values.data_ptr() == values_of(given).data_ptr()
    back = A.to_torch(copy=False)
    assert (back.layout, back.dense_dim(), back._nnz()) == (given.layout, given.dense_dim(), given._nnz())
    assert values_of(back).data_ptr() == values_of(given).data_ptr()
    assert torch.equal(back.to_dense(), given.to_dense())
    if given.layout is not torch.sparse_coo:
        check_invariants(back)


@pytest.mark.parametrize("name", NATIVE)
def test_results_have_the_layout_of_native_operands(name: str) -> None:
    given = NATIVE[name][0]()
    names = "ijkl"[: given.ndim]
    result = ns.einsum(f"{names},{names}->{names}", given, torch.full(given.shape, 2.0, dtype=given.dtype))
    assert type(result) is torch.Tensor
    assert result.layout == given.layout
    assert torch.equal(result.to_dense(), 2 * given.to_dense())
    x = torch.arange(1.0, given.shape[-1] + 1, dtype=given.dtype)
    product = ns.einsum(f"{names},{names[-1]}->{names[:-1]}", given, x)
    assert torch.equal(product if product.layout is torch.strided else product.to_dense(), given.to_dense() @ x)


@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,kj->ik", "ij,ik->jk"])
@pytest.mark.parametrize("make", [torch.Tensor.to_sparse_bsr, torch.Tensor.to_sparse_bsc], ids=["bsr", "bsc"])
def test_products_of_blocks(make: Callable[..., torch.Tensor], text: str) -> None:
    A, X = make(numbers(6, 6), (2, 3)), numbers(6, 6) + 1
    assert torch.equal(ns.einsum(text, A, X), torch.einsum(text, A.to_dense(), X))


def test_formats_without_a_layout_of_torch() -> None:
    for text in ("ss", "sds", "dsds", "d", "dd", "so", "(i, j) -> (i // 2: dense, j: fixed, i % 2: dense)", str(UNORDERED)):
        assert layout_of(ns.Format(text)) is None
    assert layout_of(ns.BCSR(2, 3).permuted((1, 0))) is None, "its blocks are column-major"


def test_any_target_format() -> None:
    for make, _ in NATIVE.values():
        given = make()
        A = ns.from_torch(given, ns.COO(given.ndim))
        assert A.format == ns.COO(given.ndim)
        assert torch.equal(A.to_dense(), given.to_dense())


def test_a_hybrid_tensor_without_coordinates_is_dense() -> None:
    given = torch.sparse_coo_tensor(torch.zeros(0, 2, dtype=torch.int64), torch.ones(2, 3), (3,), check_invariants=True)
    assert ns.from_torch(given).format == ns.Format("d")
    assert ns.from_torch(given).to_dense().tolist() == [2.0, 2.0, 2.0]


def test_uncoalesced_hybrid_tensors_are_summed() -> None:
    given = torch.sparse_coo_tensor([[1, 1, 0]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], (2, 2), check_invariants=True)
    assert ns.from_torch(given).to_dense().tolist() == [[5.0, 6.0], [4.0, 6.0]]


def test_gradients_flow_through_blocks_and_batches() -> None:
    for name in ("bsr", "batched csr", "hybrid csr", "hybrid coo"):
        given = NATIVE[name][0]()
        leaf = values_of(given).clone().requires_grad_()
        A = ns.from_torch(given).with_values(leaf.reshape(-1))
        (A.to_torch().values() * 3).sum().backward()
        assert torch.equal(leaf.grad, torch.full_like(leaf, 3.0))


# ---- invalid tensors


def bsr(pos: list[int], crd: list[int]) -> torch.Tensor:
    return torch.sparse_bsr_tensor(torch.tensor(pos), torch.tensor(crd), torch.ones(len(crd), 2, 2), (4, 4), check_invariants=False)


@pytest.mark.parametrize(
    ("pos", "crd", "text"),
    [
        ([0, 1, 2], [0, 2], "crd[1] = 2 is outside dimension j // 2 of size 2: coordinates lie in 0 to 1"),
        ([0, 2, 2], [1, 0], "position 1, below parent 0, has coordinate 0 after 1"),
        ([0, 2, 2], [1, 1], "position 1, below parent 0, repeats the coordinate 1"),
        ([0, 3, 2], [0, 1], "pos may not decrease"),
        ([0, 2], [0, 1], "pos has 2 entries, but its 2 parents need 3"),
    ],
)
def test_broken_blocks_are_refused(pos: list[int], crd: list[int], text: str) -> None:
    with pytest.raises(ns.FormatError) as caught:
        ns.from_torch(bsr(pos, crd))
    assert text in str(caught.value)


def test_broken_batches_are_refused() -> None:
    def batches(starts: list[list[int]]) -> torch.Tensor:
        crd = torch.tensor([[0, 1], [0, 1]])
        return torch.sparse_csr_tensor(torch.tensor(starts), crd, torch.ones(2, 2), (2, 2, 2), check_invariants=False)

    assert ns.from_torch(batches([[0, 1, 2], [0, 0, 2]])).to_dense().tolist() == [[[1, 0], [0, 1]], [[0, 0], [1, 1]]]
    with pytest.raises(ns.FormatError, match="the starts of batch 1 run from 1 to 2, but must run from 0 to its number of values, 2"):
        ns.from_torch(batches([[0, 1, 2], [1, 1, 2]]))
    with pytest.raises(ns.FormatError, match="the starts of batch 0 run from 0 to 1"):
        ns.from_torch(batches([[0, 1, 1], [0, 1, 2]]))


@pytest.mark.parametrize("values", [(3,), (2, 1), (1, 2)])
def test_inconsistent_shapes_are_refused(values: tuple[int, ...]) -> None:
    given = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(values), (2, 2), check_invariants=False)
    with pytest.raises(ns.SizeError, match=r"coordinates of shape \(2,\) and values of shape .*, which don't fit together"):
        ns.from_torch(given)


@pytest.mark.parametrize("values", [(2,), (2, 2), (3, 2, 2), (2, 0, 2), (2, 2, 2, 2)])
def test_invalid_shapes_of_blocks_are_refused(values: tuple[int, ...]) -> None:
    pos, crd = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    given = torch.sparse_bsr_tensor(pos, crd, torch.ones(values), (4, 4), check_invariants=False)
    with pytest.raises(ns.SizeError, match="don't fit together"):
        ns.from_torch(given)


def test_partial_blocks_are_converted_back_through_csr() -> None:
    A = ns.from_torch(numbers(5, 5), ns.BCSR(2, 2))
    assert A.to_torch().layout is torch.sparse_csr and A.to_scipy().format == "csr"
    assert torch.equal(A.to_torch().to_dense(), numbers(5, 5))
    assert np.array_equal(A.to_scipy().toarray(), numbers(5, 5).numpy())


@pytest.mark.parametrize("name", ["batched csr", "batched csc", "batched bsr", "two dimensions of batches"])
def test_products_of_batches_that_torch_lacks(name: str) -> None:
    given: Any = NATIVE[name][0]()
    dense = given.to_dense()
    for other in (numbers(dense.shape[-1]), numbers(dense.shape[-1], 2), dense.mT):
        assert torch.equal(ns.matmul(given, other), dense @ other)
    assert torch.equal(ns.matmul(dense.mT, given), dense.mT @ dense)
    right = dense.mT.clone().requires_grad_()
    ns.matmul(given, right).sum().backward()
    assert torch.equal(right.grad, dense.mT @ torch.ones_like(dense @ dense.mT))


def test_shapes_beyond_int64_are_refused_by_to_torch() -> None:
    huge = ns.from_coo([[0, 5], [2**39, 1]], [1.0, 2.0], (2**40, 2**40))
    for A in (huge, ns.from_coo([[0, 5], [2**39, 1]], [1.0, 2.0], (8, 2**62), format=ns.CSR)):
        with pytest.raises(ns.SizeError, match=r"torch counts the entries of a tensor in int64, .*: keep the SparseTensor"):
            A.to_torch()
    column = torch.sparse_coo_tensor(torch.tensor([[2**39]]), torch.ones(1), (2**40,))
    with pytest.raises(ns.SizeError, match=r"can't hold one of shape \(1099511627776, 1099511627776\)"):
        ns.einsum("i,j->ij", column, column)


def test_batches_with_different_counts_are_converted_back_through_coo() -> None:
    dense = torch.tensor([[[1.0, 2.0]], [[0.0, 3.0]]])
    A = ns.from_torch(dense, "dds")
    with pytest.raises(ns.UnsupportedError, match=r"matrix 0 has 2 and matrix 1 has 1: use \.to\(ns\.COO\(3\)\) first"):
        A.to_torch()
    assert torch.equal(A.to(ns.COO(3)).to_torch().to_dense(), dense)
    assert ns.from_torch(dense[:1], "dds").to_torch().layout is torch.sparse_csr


def test_the_layout_of_a_sum_does_not_depend_on_data() -> None:
    A = torch.eye(3).repeat(2, 1, 1)
    for B in (A, A.flip(2) * torch.tensor([1.0, 0.0])[:, None, None] + A):
        left, right = A.to_sparse_csr(), ns.from_torch(B, "dds").to(ns.COO(3)).to_torch()
        total = ns.evaluate("C[b,i,j] = A[b,i,j] + B[b,i,j]", A=left, B=right)
        assert total.layout is torch.sparse_coo
        assert torch.equal(total.to_dense(), A + B)


def test_strided_values_are_read_in_every_call() -> None:
    """A cached wrapper would hold a contiguous copy and miss later writes to the values."""
    values, x = torch.arange(8.0)[::2], torch.ones(2)
    A = torch.sparse_csr_tensor(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]), values, (2, 2), check_invariants=False)
    assert ns.einsum("ij,j->i", A, x).tolist() == [2.0, 10.0]
    values.mul_(10)
    assert ns.einsum("ij,j->i", A, x).tolist() == [20.0, 100.0]
    assert id(A) not in torch_sparse._wrappers


def test_transposed_blocks_are_read_in_every_call() -> None:
    """torch transposes blocks by their strides, so the values are copied in every call."""
    given = numbers(4, 6).to_sparse_bsr((2, 3)).transpose(0, 1)
    A = ns.from_torch(given)
    assert (given.layout, A.to_torch().layout) == (torch.sparse_bsc, torch.sparse_bsc)
    assert torch.equal(A.to_dense(), numbers(4, 6).T)
    assert ns.einsum("ij->", given) == numbers(4, 6).sum()
    given.values().mul_(2)
    assert ns.einsum("ij->", given) == 2 * numbers(4, 6).sum()


def test_in_place_writes_to_positions_of_batches_are_seen() -> None:
    """The positions are copied; torch's version counter of the original detects writes."""
    given = torch.eye(2).repeat(2, 1, 1).to_sparse_csr()
    assert ns.einsum("bij,j->bi", given, torch.ones(2)).to_dense().tolist() == [[1.0, 1.0], [1.0, 1.0]]
    given.crow_indices()[0, 1] = 2
    assert ns.einsum("bij,j->bi", given, torch.ones(2)).to_dense().tolist() == [[2.0, 0.0], [1.0, 1.0]]
    given.crow_indices()[0, 1] = 3
    with pytest.raises(ns.FormatError, match="pos may not decrease"):
        ns.einsum("bij,j->bi", given, torch.ones(2))


# ---- SciPy


def test_blocks_of_scipy() -> None:
    matrix = sp.bsr_array(numbers(4, 6).numpy(), blocksize=(2, 3))
    A = ns.from_scipy(matrix, copy=False)
    assert A.format == ns.BCSR(2, 3)
    assert A.values.data_ptr() == matrix.data.ctypes.data
    back = A.to_scipy(copy=False)
    assert (back.format, back.blocksize, back.data.ctypes.data) == ("bsr", (2, 3), matrix.data.ctypes.data)
    assert np.array_equal(back.toarray(), matrix.toarray())


def test_unsorted_and_repeated_blocks_are_coalesced() -> None:
    stored = np.arange(12.0).reshape(3, 2, 2), np.array([1, 0, 1]), np.array([0, 3, 3])
    matrix = sp.bsr_array(stored, shape=(4, 4))
    A = ns.from_scipy(matrix)
    assert A.nnz == 8
    assert np.array_equal(A.to_dense().numpy(), matrix.toarray())


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (1, 5), (5, 1), (3, 3), (0, 4), (4, 0)])
def test_diagonals_of_scipy(shape: tuple[int, int]) -> None:
    matrix = sp.dia_array(numbers(*shape).numpy())
    A = ns.from_scipy(matrix)
    assert A.format == ns.DIA
    assert np.array_equal(A.to_dense().numpy(), matrix.toarray())
    assert A.to_scipy().format == "dia"
    assert np.array_equal(A.to_scipy().toarray(), matrix.toarray())


@pytest.mark.parametrize("width", [3, 6, 9])
@pytest.mark.parametrize("offsets", [[5, -1, 1], [0, -3, 2], [9, -1, -7]])
def test_diagonals_in_any_order_and_outside(offsets: list[int], width: int) -> None:
    matrix = sp.dia_array((np.arange(1.0, 3 * width + 1).reshape(3, width), offsets), shape=(4, 6))
    A = ns.from_scipy(matrix)
    assert np.array_equal(A.to_dense().numpy(), matrix.toarray())
    assert np.array_equal(A.to_scipy().toarray(), matrix.toarray())


@pytest.mark.parametrize("permutation", [(0, 1), (1, 0)])
def test_unordered_rows(permutation: tuple[int, int]) -> None:
    format = UNORDERED.permuted(permutation)
    A = ns.einsum("ij,jk->ik", ns.from_torch(numbers(9, 8).flip(0)), ns.from_torch(numbers(8, 9).flip(1)), format=format)
    matrix = A.to_scipy(copy=False)
    assert not matrix.has_sorted_indices
    assert matrix.data.ctypes.data == A.values.data_ptr()
    assert np.array_equal(matrix.toarray(), A.to_dense().numpy())
    back = A.to_torch()
    check_invariants(back)
    assert torch.equal(back.to_dense(), A.to_dense())


LAYOUTS = [getattr(sp, f"{name}_{kind}") for name in ("csr", "csc", "coo", "bsr", "dia", "lil", "dok") for kind in ("array", "matrix")]


def arrays_of(matrix: Any) -> list[np.ndarray]:
    """The arrays that a SciPy matrix uses."""
    return [*matrix.coords, matrix.data] if matrix.format == "coo" else [matrix.indptr, matrix.indices, matrix.data]


@pytest.mark.parametrize("make", LAYOUTS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.complex128, np.bool_])
def test_every_layout_of_scipy(make: Any, dtype: Any) -> None:
    matrix = make(numbers(4, 6).numpy().astype(dtype))
    A = ns.from_scipy(matrix)
    assert np.array_equal(A.to_dense().numpy(), matrix.toarray())
    assert np.array_equal(A.to_scipy().toarray(), matrix.toarray())
    assert ns.from_scipy(matrix, ns.CSC).format == ns.CSC


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("name", ["csr", "csc", "coo", "bsr"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_arrays_of_scipy_are_shared_on_request(name: str, kind: str, index: Any) -> None:
    matrix = getattr(sp, f"{name}_{kind}")(numbers(4, 6).numpy(), **({"blocksize": (2, 3)} if name == "bsr" else {}))
    if name == "coo":
        matrix.coords = tuple(row.astype(index) for row in matrix.coords)
    else:
        matrix.indptr, matrix.indices = matrix.indptr.astype(index), matrix.indices.astype(index)
    A = ns.from_scipy(matrix, copy=False)
    back = A.to_scipy(copy=False)
    assert back.format == name
    assert A.values.data_ptr() == matrix.data.ctypes.data
    for given, returned in zip(arrays_of(matrix), arrays_of(back), strict=True):
        assert given.ctypes.data == returned.ctypes.data
        assert given.dtype == returned.dtype


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (2, 1, 3, 2)])
def test_coo_arrays_of_any_rank(shape: tuple[int, ...]) -> None:
    array = sp.coo_array(numbers(*shape).numpy())
    A = ns.from_scipy(array, copy=False)
    back = A.to_scipy(copy=False)
    assert np.array_equal(A.to_dense().numpy(), array.toarray())
    assert np.array_equal(back.toarray(), array.toarray())
    assert [row.ctypes.data for row in back.coords] == [row.ctypes.data for row in array.coords]
    assert ns.from_scipy(array, ns.CSF(len(shape)) if len(shape) > 1 else "s").ndim == len(shape)


def test_unsorted_and_invalid_coo_arrays() -> None:
    unsorted = sp.coo_array((np.array([1.0, 2.0, 4.0]), (np.array([1, 0, 1]), np.array([0, 2, 0]))), shape=(2, 3))
    assert ns.from_scipy(unsorted).to_dense().tolist() == [[0, 0, 2], [5, 0, 0]]
    unsorted.coords = (np.array([0, 1, 2]), np.array([0, 1, 2]))
    with pytest.raises(ns.FormatError, match="entry 2 has coordinate 2 in dimension 0"):
        ns.from_scipy(unsorted)


def test_one_dimensional_csr_and_dok_arrays() -> None:
    for array in (sp.csr_array(np.array([0.0, 2.0])), sp.dok_array(np.array([0.0, 2.0]))):
        assert ns.from_scipy(array).to_dense().tolist() == [0.0, 2.0]


def test_bfloat16_is_refused_by_to_scipy() -> None:
    A = ns.from_torch(torch.eye(2, dtype=torch.bfloat16))
    with pytest.raises(ns.UnsupportedError, match=r"which have no bfloat16: use \.to\(torch\.float32\) first"):
        A.to_scipy()


# ---- numpy


def test_values_of_numpy_are_shared() -> None:
    A, values = ns.from_torch(torch.eye(3)), np.array([1.0, 2.0, 3.0], dtype=np.float32)
    B = A.with_values(values)
    assert B.values.data_ptr() == values.ctypes.data
    assert B.to_dense().diagonal().tolist() == [1.0, 2.0, 3.0]
    A.values = values
    assert A.values.data_ptr() == values.ctypes.data
    assert A.with_values([1, 2, 3]).dtype == torch.int64
    with pytest.raises(ns.SizeError, match=r"values has shape \(2,\), but the pattern has 3 positions"):
        A.with_values(values[:2])
    with pytest.raises(ns.UnsupportedError, match="can't make a tensor of values, a ndarray of dtype <U1"):
        A.with_values(np.array(["a"] * 3))


@pytest.mark.parametrize("pattern", [np.eye(3), sp.csr_array(np.eye(3)), np.eye(3, dtype=bool), np.eye(3).tolist()])
def test_patterns_of_layers(pattern: Any) -> None:
    layer = ns.nn.SparseLinear(3, 3, pattern=pattern)
    assert layer.weight.nnz == 3
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda A, x: ns.from_torch(x), r"use ns\.from_torch\(torch\.from_numpy\(x\)\)"),
        (lambda A, x: ns.from_scipy(x), r"use ns\.from_torch\(torch\.from_numpy\(x\)\)"),
        (lambda A, x: ns.from_torch(sp.csr_array(x)), r"not csr_array: use ns\.from_scipy"),
        (lambda A, x: A @ x, r"matmul takes tensors and numbers, not ndarray: wrap it with torch\.from_numpy"),
        (lambda A, x: x @ A, r"matmul takes tensors and numbers, not ndarray"),
        (lambda A, x: x + A, r"add takes tensors and numbers, not ndarray"),
        (lambda A, x: A * x, r"mul takes tensors and numbers, not ndarray"),
        (lambda A, x: ns.einsum("ij,jk->ik", A, x), r"not ndarray: wrap it with torch\.from_numpy"),
        (lambda A, x: np.asarray(A), r"is not a NumPy array: use \.to_dense\(\)\.numpy\(\) or \.to_scipy\(\), or ns\.from_scipy"),
    ],
)
def test_numpy_arrays_in_place_of_tensors_are_refused(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(ns.UnsupportedError, match=message):
        call(ns.from_torch(torch.eye(2)), np.eye(2, dtype=np.float32))


# ---- invalid arguments of adj_t


class Data:
    """A graph object with the attributes of PyTorch Geometric's."""

    edge_index, num_nodes = torch.tensor([[0, 1], [1, 2]]), 3


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Data(), r"adj_t takes an edge_index, not a Data: pass its edges, as in adj_t\(data\.edge_index, size=data\.num_nodes\)"),
        (
            ns.from_torch(torch.eye(3)),
            r"not a SparseTensor: pass the matrix itself to graph layers if it is A\[target, source\], else A\.t\(\)",
        ),
        (torch.eye(3).to_sparse(), r"not a matrix \(torch\.sparse_coo\): make it a SparseTensor with ns\.from_torch\(adj\)"),
        (torch.eye(3), r"not a matrix of shape \(3, 3\): make a dense adjacency matrix sparse with ns\.from_torch\(adj\)"),
    ],
)
def test_other_objects_than_edge_lists_are_refused(given: Any, text: str) -> None:
    with pytest.raises(ns.OperandError, match=text):
        ns.adj_t(given)


def test_layers_refuse_graph_objects() -> None:
    with pytest.raises(ns.OperandError, match=r"not a Data: pass data\.edge_index"):
        ns.nn.GCNConv(3, 2)(torch.eye(3), Data())


# ---- formats that cannot hold a tensor, or waste memory


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("NM(2, 4)", r"level 3 \(fixed\(2\)\) .* holds 2 coordinates for each position above it, but position 0 has 4: widen it"),
        ("ELL(3)", "holds 3 coordinates for each position above it, but position 0 has 8: widen it"),
        ("(i, j) -> (i: dense, j: band(1, 1))", r"cannot store the coordinates \(0, 2\): use a compressed level"),
        ("(i, j) -> (i: dense, j: causal)", r"cannot store the coordinates \(0, 1\): use a compressed level"),
        ("COO(3)", r"format COO\(3\) has 3 dimensions, but shape \(8, 8\) has 2: use a format of 2 dimensions"),
    ],
)
def test_formats_that_cannot_hold_the_tensor_are_refused(text: str, message: str) -> None:
    with pytest.raises(ns.FormatError, match=message):
        ns.from_torch(torch.ones(8, 8)).to(text)


def test_ell_warns_about_large_padding() -> None:
    dense = torch.eye(600)
    assert ns.from_torch(dense, ns.ELL).nnz == 600
    dense[:300, 0] = 1
    assert ns.from_torch(dense, ns.ELL).nnz == 1200
    dense[5, :5] = 1
    with pytest.warns(
        UserWarning, match=r"fixed stores 3600 values for 903 entries, .*: a compressed level stores just the entries"
    ) as caught:
        ns.from_torch(dense).to(ns.ELL)
    assert caught[0].filename == __file__, "the warning points to the caller"
    assert ns.from_torch(dense).to("ELL(6)").nnz == 3600, "an explicit width does not warn"
