"""Constructors with ``format=`` return SparseTensors equal to torch's tensors, and allocate only their entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from random_tensors import generator

import numscorch as ns
from numscorch.operators.creation import drawn
from numscorch.tensors.validate import validate

pytestmark = pytest.mark.usefixtures("interpreted")
BSC = ns.Format("(i, j) -> (j // 2: dense, i // 2: compressed, i % 2: dense, j % 2: dense)")
FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.CSF(2), ns.BCSR(2, 3), BSC, ns.DIA, ns.ELL, ns.Format("dd"))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(4, 5), (5, 4), (1, 3), (0, 3), (3, 0)], ids=str)
def test_constants(shape: tuple[int, int], fmt: ns.Format) -> None:
    for dtype in (None, torch.float64, torch.int64, torch.bool):
        for A, expected in (
            (ns.eye(*shape, format=fmt, dtype=dtype), torch.eye(*shape, dtype=dtype)),
            (ns.zeros(*shape, format=fmt, dtype=dtype), torch.zeros(*shape, dtype=dtype)),
            (ns.ones(shape, format=fmt, dtype=dtype), torch.ones(shape, dtype=dtype)),
            (ns.full(shape, 3, format=fmt, dtype=dtype), torch.full(shape, 3, dtype=dtype)),
        ):
            assert A.format.levels[0] == fmt.levels[0]
            validate(A.pattern)
            assert A.dtype == expected.dtype
            assert torch.equal(A.to_dense(), expected)


@pytest.mark.parametrize("fmt", [*FORMATS[:-1], "CSR"], ids=str)
def test_nested_lists(fmt: ns.Format | str) -> None:
    data = [[0, 1.5, 0], [2, 0, 3]]
    A = ns.tensor(data, format=fmt, dtype=torch.float64, requires_grad=True)
    assert torch.equal(A.to_dense().detach(), torch.tensor(data, dtype=torch.float64))
    assert A.requires_grad
    assert torch.equal(ns.tensor(data), torch.tensor(data))
    with pytest.raises(ns.UnsupportedError, match="runs on the CPU"):
        ns.tensor(data, format=fmt, device="meta")


def test_only_nonzero_entries_are_stored() -> None:
    assert ns.eye(4, format=ns.CSR).nnz == 4
    assert ns.zeros(4, 4, format=ns.CSR).nnz == ns.empty(4, 4, format=ns.CSR).nnz == 0
    assert ns.full((2, 3), 0, format=ns.COO(2)).nnz == ns.ones(2, 3, format="CSC").nnz == 6
    assert ns.eye(2**40, 3, format=ns.DCSR).shape == (2**40, 3)
    assert ns.zeros(2**40, 2**40, format=ns.COO(2)).to_sparse().nnz == 0


@pytest.mark.parametrize("shape", [(7,), (7, 9), (4, 5, 6), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("density", [0, 0.1, 0.5, 0.8, 1])
def test_random_places(shape: tuple[int, ...], density: float) -> None:
    for make in (ns.rand, ns.randn):
        A = make(*shape, density=density, format=ns.COO(len(shape)), generator=generator(1))
        validate(A.pattern)
        assert A.nnz == round(density * torch.Size(shape).numel())
        B = make(size=shape, density=density, format=ns.CSF(len(shape)), generator=generator(1))
        assert torch.equal(A.to_dense(), B.to_dense())


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_random_values_in_any_format(fmt: ns.Format) -> None:
    A = ns.rand((8, 9), density=0.25, format=fmt, generator=generator(2), dtype=torch.float64, requires_grad=True)
    assert A.dtype == torch.float64
    assert A.values.is_leaf
    assert int((A.to_dense() != 0).sum()) == 18
    assert bool(((A.values >= 0) & (A.values < 1)).all())
    A.to_dense().sum().backward()
    assert A.values.grad is not None


def test_seeds() -> None:
    def make() -> ns.SparseTensor:
        return ns.randn(20, 30, density=0.1, format=ns.CSR)

    torch.manual_seed(4)
    first, second = make(), make()
    torch.manual_seed(4)
    again = make()
    assert ns.equal(first, again)
    assert not ns.equal(first, second)
    assert not torch.equal(first.pattern.arrays[1][1], second.pattern.arrays[1][1])


@pytest.mark.parametrize(("count", "among"), [(1, 4), (2, 4), (3, 4), (2, 6)])
def test_all_subsets_are_equally_likely(count: int, among: int) -> None:
    seeded, counts = generator(3), dict[tuple[int, ...], int]()
    tries = 3000
    for _ in range(tries):
        subset = tuple(drawn(count, among, seeded).tolist())
        assert sorted(set(subset)) == list(subset)
        counts[subset] = counts.get(subset, 0) + 1
    sets = len(list(torch.combinations(torch.arange(among), count)))
    assert len(counts) == sets
    expected = tries / sets
    assert sum((n - expected) ** 2 / expected for n in counts.values()) < 4 * sets + 12  # chi-squared test with a wide margin


def test_shapes_too_large_for_a_dense_tensor() -> None:
    A = ns.rand(10**9, 10**9, density=1e-15, format=ns.COO(2))
    B = ns.rand(10**6, 10**6, density=1e-9, format=ns.CSR)
    assert A.nnz == B.nnz == 1000


INDICES, VALUES = [[1, 0, 1, 1], [2, 1, 0, 2]], [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("size", [None, (3, 4)])
def test_coordinates(size: tuple[int, int] | None, fmt: ns.Format) -> None:
    """Coordinates in any order are taken, duplicates are summed, and the result is twice differentiable, as in torch."""
    values = torch.tensor(VALUES, dtype=torch.float64, requires_grad=True)
    A = ns.sparse_coo_tensor(INDICES, values, size, format=fmt)
    native = torch.sparse_coo_tensor(torch.tensor(INDICES), values, *([size] if size else []), check_invariants=True)
    assert torch.equal(A.to_dense(), native.to_dense())
    (gradient,) = torch.autograd.grad((A.to_dense() ** 3).sum(), values, create_graph=True)
    (expected,) = torch.autograd.grad((native.to_dense() ** 3).sum(), values)
    torch.testing.assert_close(gradient, expected)
    (second,) = torch.autograd.grad(gradient.sum(), values)
    assert second.abs().sum() > 0


def test_coordinates_of_values_with_dimensions() -> None:
    values = torch.arange(24, dtype=torch.float32).reshape(4, 3, 2)
    for size in (None, (3, 4, 3, 2)):
        native = torch.sparse_coo_tensor(INDICES, values, *([size] if size else []), check_invariants=True)
        A = ns.sparse_coo_tensor(INDICES, values, size, format=ns.Format("oodd"))
        assert torch.equal(A.to_dense(), native.to_dense())
        assert torch.equal(A.to_torch().to_dense(), native.to_dense())
    with pytest.raises(ns.SizeError, match="last dimensions"):
        ns.sparse_coo_tensor(INDICES, values, (3, 4, 3, 3), format=ns.COO(4))


def test_coordinates_with_options() -> None:
    A = ns.sparse_coo_tensor(INDICES, VALUES, format=ns.CSR, dtype=torch.float64, requires_grad=True, device="cpu")
    assert A.dtype == torch.float64
    assert A.values.is_leaf
    A.to_dense().sum().backward()
    assert A.values.grad is not None
    with pytest.raises(ns.FormatError, match=r"comes after .* without is_coalesced=True, they are sorted and summed"):
        ns.sparse_coo_tensor(INDICES, VALUES, format=ns.CSR, is_coalesced=True)
    with pytest.raises(ns.FormatError, match="which has size 2"):
        ns.sparse_coo_tensor(INDICES, VALUES, (2, 2), format=ns.CSR)
    with pytest.raises(ns.SizeError, match=r"pass \(sparse_dim, nnz\)"):
        ns.sparse_coo_tensor(INDICES, VALUES[:2], format=ns.CSR)
    assert ns.sparse_coo_tensor([[], []], [], (2, 3), format=ns.CSR).nnz == 0


ARRAYS: dict[str, tuple[Any, ...]] = {
    "sparse_csr_tensor": ([0, 1, 3], [2, 0, 1], torch.arange(1.0, 4.0), (2, 3)),
    "sparse_csc_tensor": ([0, 1, 3], [1, 0, 1], torch.arange(1.0, 4.0), (2, 2)),
    "sparse_bsr_tensor": ([0, 1, 2], [1, 0], torch.arange(1.0, 9.0).reshape(2, 2, 2), (4, 4)),
    "sparse_bsc_tensor": ([0, 1, 2], [1, 0], torch.arange(1.0, 13.0).reshape(2, 2, 3), (4, 6)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2)], ids=lambda f: f.name)
@pytest.mark.parametrize("name", ARRAYS)
def test_index_arrays(name: str, fmt: ns.Format) -> None:
    first, second, values, size = ARRAYS[name]
    values = values.double().requires_grad_()
    native = getattr(torch, name)(first, second, values, size, check_invariants=True)
    A = getattr(ns, name)(first, second, values, size, format=fmt)
    assert torch.equal(A.to_dense(), native.to_dense())
    assert A.format == fmt
    (gradient,) = torch.autograd.grad((A.to_dense() ** 3).sum(), values, create_graph=True)
    torch.testing.assert_close(gradient, 3 * values**2)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), values)[0], 6 * values)
    by_layout = ns.sparse_compressed_tensor(first, second, values, size, layout=native.layout, format=fmt)
    assert torch.equal(by_layout.to_dense(), native.to_dense())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_index_arrays_by_name_and_of_batches() -> None:
    crow, col, values = torch.tensor([[0, 1, 2], [0, 2, 2]]), torch.tensor([[0, 1], [0, 1]]), torch.arange(1.0, 5.0).reshape(2, 2)
    A = ns.sparse_csr_tensor(crow_indices=crow, col_indices=col, values=values, size=(2, 2, 2), format=ns.COO(3))
    assert torch.equal(A.to_dense(), torch.sparse_csr_tensor(crow, col, values, (2, 2, 2), check_invariants=True).to_dense())
    shared = ns.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), values[0], format=ns.CSR)
    assert shared.values.data_ptr() == values.data_ptr()


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "starts": (lambda: ns.sparse_csr_tensor([0, 1, 5], [0, 1], [1.0, 2.0], (2, 2), format=ns.CSR), ns.FormatError, "pos ends at 5"),
    "coordinates": (
        lambda: ns.sparse_csr_tensor([0, 1, 2], [0, 9], [1.0, 2.0], (2, 2), format=ns.CSR),
        ns.FormatError,
        "outside dimension 1",
    ),
    "size": (lambda: ns.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2,), format=ns.CSR), ns.SizeError, "a size of two"),
    "no density": (lambda: ns.rand(2, 3, format=ns.CSR), ns.UnsupportedError, "give density="),
    "no format": (lambda: ns.rand(2, 3, density=0.5), ns.UnsupportedError, "format=ns.CSR"),
    "density": (lambda: ns.rand(2, 3, density=1.5, format=ns.CSR), ns.SizeError, "between 0 and 1"),
    "too many places": (lambda: ns.rand(2**40, 2**40, density=1e-20, format=ns.COO(2)), ns.SizeError, "int64"),
    "too many entries": (lambda: ns.rand(10**7, 10**7, density=0.5, format=ns.CSR), ns.SizeError, "smaller density"),
    "too many ones": (lambda: ns.ones(10**7, 10**7, format=ns.CSR), ns.SizeError, "ns.zeros stores nothing"),
    "layout": (lambda: ns.zeros(2, 3, format=ns.CSR, layout=torch.sparse_csr), ns.UnsupportedError, "leave one of them out"),
    "out": (lambda: ns.eye(3, format=ns.CSR, out=torch.empty(3, 3)), ns.UnsupportedError, "out="),
    "device": (lambda: ns.eye(3, format=ns.CSR, device="meta"), ns.UnsupportedError, "runs on the CPU"),
    "negative": (lambda: ns.zeros(-1, 2, format=ns.CSR), ns.SizeError, "negative"),
    "another number of levels": (lambda: ns.zeros(2, 3, format=ns.COO(3)), ns.FormatError, "dimensions"),
    "no room": (lambda: ns.ones(4, 4, format=ns.NM(2, 4)), ns.FormatError, "4"),
    "unknown": (lambda: ns.eye(3, format=ns.CSR, wide=True), TypeError, "wide"),
    "unknown of rand": (lambda: ns.rand(3, 3, density=0.5, format=ns.CSR, wide=True), TypeError, r"^rand\(\) got .* 'wide'"),
    "unknown of arrays": (
        lambda: ns.sparse_csr_tensor([0, 1], [0], [1.0], starts=[0, 1], format=ns.CSR),
        ns.OperandError,
        "sparse_csr_tensor with format=: got an unexpected keyword argument 'starts'",
    ),
    "missing arrays": (
        lambda: ns.sparse_csc_tensor([0, 1], values=[1.0], format=ns.CSR),
        ns.OperandError,
        "sparse_csc_tensor with format=: missing a required argument: 'row_indices'",
    ),
    "lengths": (
        lambda: ns.sparse_csr_tensor([0, 1, 2], [0, 1, 1], [1.0, 2.0], (2, 2), format=ns.CSR),
        ns.SizeError,
        "don't fit together: each value or block needs one coordinate",
    ),
}
DTYPES: dict[str, Callable[[torch.dtype], Any]] = {
    "eye": lambda dtype: ns.eye(3, dtype=dtype, format=ns.CSR),
    "diags": lambda dtype: ns.diags([1.0, 2.0], dtype=dtype),
    "zeros": lambda dtype: ns.zeros(3, 3, dtype=dtype, format=ns.CSR),
    "ones": lambda dtype: ns.ones(3, 3, dtype=dtype, format=ns.CSR),
    "full": lambda dtype: ns.full((3, 3), 1, dtype=dtype, format=ns.CSR),
    "rand": lambda dtype: ns.rand(3, 3, density=0.5, dtype=dtype, format=ns.CSR),
    "tensor": lambda dtype: ns.tensor([[1.0]], dtype=dtype, format=ns.CSR),
    "sparse_coo_tensor": lambda dtype: ns.sparse_coo_tensor([[0], [0]], [1.0], (1, 1), dtype=dtype, format=ns.CSR),
}


@pytest.mark.parametrize("dtype", [torch.complex32, torch.quint8, torch.float8_e4m3fn, torch.uint16], ids=str)
@pytest.mark.parametrize("name", DTYPES)
def test_data_types_that_kernels_lack_are_refused(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(ns.UnsupportedError, match=rf"values of dtype {dtype} are not compiled"):
        DTYPES[name](dtype)


@pytest.mark.parametrize("name", BAD)
def test_invalid_arguments_are_refused(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        call()


DIAGONALS: dict[str, tuple[Any, ...]] = {
    "a vector": ([1.0, 2.0, 3.0],),
    "a vector below": ([1.0, 2.0], -1),
    "three numbers": ([1.0, -2.0, 1.0], [-1, 0, 1], (4, 4)),
    "vectors of two lengths": ([[1.0, 2.0, 3.0], [4.0, 5.0]], [0, 1]),
    "not square": ([[1.0, 2.0], 3.0], [1, -1], (3, 3)),
    "an array and a tensor": ([np.array([1.0, 0.0]), torch.tensor([2.0])], np.array([0, 1]), (2, 2)),
    "repeated offsets": ([[1.0, 2.0], [3.0, 4.0]], [0, 0]),
    "one offset outside of most rows": ([2.0], [3], (5, 4)),
}


@pytest.mark.parametrize("fmt", ["CSR", ns.DIA, ns.COO(2), ns.CSC], ids=str)
@pytest.mark.parametrize("name", DIAGONALS)
def test_diagonals_are_summed(name: str, fmt: Any) -> None:
    diagonals, offsets, *shape = (*DIAGONALS[name], 0) if len(DIAGONALS[name]) == 1 else DIAGONALS[name]
    A = ns.diags(diagonals, offsets, *shape, format=fmt)
    validate(A.pattern)
    expected = torch.zeros(A.shape, dtype=A.dtype)
    single = isinstance(offsets, int)
    for row, offset in zip([diagonals] if single else diagonals, [offsets] if single else offsets, strict=True):
        along = expected.diagonal(int(offset))
        along += torch.as_tensor(row)
    assert torch.equal(A.to_dense(), expected)


BAD_DIAGONALS: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "too few offsets": (([1.0, 2.0], [0]), ns.SizeError, "diags of 2 diagonals at 1 offsets"),
    "none": (([], []), ns.SizeError, "at least one"),
    "too short": (([1.0, 2.0], 0, (3, 3)), ns.SizeError, "that diagonal has 3 entries"),
    "outside": (([1.0], 4, (3, 3)), ns.SizeError, "offset 4 of a matrix"),
    "a fraction": (([1.0], 0.5), ns.OperandError, "0.5 instead of an integer"),
    "a text": ((["a"], [0]), ns.UnsupportedError, "a diagonal"),
    "one size": ((1.0, 0, (3,)), ns.SizeError, r"diags of shape \(3,\): the result is a matrix, so give \(rows, columns\)"),
    "three sizes": ((1.0, 0, (3, 3, 3)), ns.SizeError, r"diags of shape \(3, 3, 3\)"),
    "too large": ((1.0, 0, (1 << 60, 1 << 60)), ns.SizeError, "ns.from_coo stores only the given entries"),
}


@pytest.mark.parametrize("name", BAD_DIAGONALS)
def test_errors_of_diagonals(name: str) -> None:
    arguments, kind, text = BAD_DIAGONALS[name]
    with pytest.raises(kind, match=text):
        ns.diags(*arguments)


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_diag_of_vectors_and_matrices(k: int) -> None:
    v, D = torch.tensor([1.0, 0.0, 3.0], requires_grad=True), torch.arange(12.0).reshape(3, 4)
    A = ns.diag(v, k, format=ns.CSC)
    assert (A.format, A.nnz) == (ns.CSC, 3)
    assert torch.equal(A.to_dense(), torch.diag(v, k))
    A.sum().backward()
    assert v.grad is not None
    assert v.grad.tolist() == [1, 1, 1]
    for matrix in (D, D.to_sparse_csr(), ns.from_torch(D)):
        assert torch.equal(ns.diag(matrix, k, format="s").to_dense(), torch.diag(D, k))
    assert torch.equal(ns.diag(ns.from_torch(v.detach()), k, format=ns.CSR).to_dense(), torch.diag(v.detach(), k))
    assert torch.equal(ns.diag(v, k), torch.diag(v, k))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_stored_zeros_are_eliminated(fmt: ns.Format) -> None:
    values = torch.tensor([1.0, 0.0, 0.0, 4.0], requires_grad=True)
    A = ns.from_coo([[0, 0, 1, 2], [0, 3, 1, 2]], values, (4, 6)).to(fmt)
    before, B = A.nnz, A.eliminate_zeros()
    assert (B.format.levels[0], A.nnz) == (fmt.levels[0], before)
    assert B.nnz == 2 or fmt.name in ("BCSR(2, 3)", BSC.name, "DIA", "ELL", "dense")
    assert torch.equal(B.to_dense(), A.to_dense())
    B.sum().backward()
    assert values.grad is not None
    assert values.grad[[0, 3]].tolist() == [1, 1]
    validate(B.pattern)


def test_without_stored_zeros_nothing_is_eliminated() -> None:
    A = ns.eye(3, format=ns.CSR)
    assert A.eliminate_zeros() is A
    native = ns.from_coo([[0, 1], [0, 1]], [0.0, 1.0], (2, 2)).to_torch()
    assert ns.eliminate_zeros(native).layout is torch.sparse_coo
    assert ns.eliminate_zeros(native)._nnz() == 1
    assert torch.equal(ns.eliminate_zeros(torch.eye(2)), torch.eye(2))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)], ids=str)
def test_diagonals_are_filled_in_place(shape: tuple[int, int], fmt: ns.Format) -> None:
    D = torch.eye(*shape)
    D[0, 1] = 2
    A = ns.from_torch(D, fmt)
    pattern = A.pattern
    assert A.fill_diagonal_(np.float64(7)) is A
    assert A.pattern is pattern
    assert torch.equal(A.to_dense(), D.clone().fill_diagonal_(7))
    assert torch.equal(A.fill_diagonal_(0).to_dense(), D.clone().fill_diagonal_(0))


def test_filled_diagonals_store_no_new_entries() -> None:
    A = ns.from_coo([[0, 1], [0, 0]], [1.0, 2.0], (2, 2), ns.CSR)
    with pytest.raises(ns.UnsupportedError, match=r"would store 1 new entries.*add new entries with A \+ ns\.from_coo"):
        A.fill_diagonal_(5)
    assert A.values.tolist() == [1, 2]
    cube = ns.from_torch(torch.ones(2, 2, 2))
    assert torch.equal(cube.fill_diagonal_(3).to_dense(), torch.ones(2, 2, 2).fill_diagonal_(3))
    for tensor, text in ((ns.from_torch(torch.ones(3)), "takes matrices"), (ns.from_torch(torch.ones(2, 2, 3)), "have one size")):
        with pytest.raises(ns.SizeError, match=text):
            tensor.fill_diagonal_(1)
    with pytest.raises(ns.UnsupportedError, match="wrap=True"):
        ns.from_torch(torch.ones(7, 2)).fill_diagonal_(1, wrap=True)
