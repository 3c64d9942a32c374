"""Tensors are constructed from torch, SciPy and index arrays; errors show the conflict and a fix."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from conversion_cases import MATRIX_FORMATS, D, torch_csr

from numscorch.convert import construct
from numscorch.convert.construct import from_coo, from_csr, from_torch
from numscorch.convert.values import others_at
from numscorch.errors import FormatError, NumscorchError, OperandError, SizeError, UnsupportedError
from numscorch.interop.array_libraries import from_scipy
from numscorch.ir.format import COO, CSC, CSR, DCSR, DIA, Format
from numscorch.machine import memory
from numscorch.tensors import validate
from numscorch.tensors.arrays import check_values, is_increasing
from numscorch.tensors.sparse_tensor import SparseTensor


def marked_as_coalesced() -> torch.Tensor:
    indices = torch.tensor([[1, 0], [0, 1]])
    return torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2), is_coalesced=True, check_invariants=False)


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
    given = torch.sparse_coo_tensor(torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.tensor([1.0, 2.0, 3.0]), (2, 2), check_invariants=True)
    assert from_torch(given).to_dense().tolist() == [[0.0, 2.0], [4.0, 0.0]]
    assert not given.is_coalesced()


@pytest.mark.parametrize("format", [*MATRIX_FORMATS, None], ids=str)
def test_entries_are_sorted_and_summed(format: Format | None) -> None:
    rng = np.random.default_rng(3)
    for n in (0, 1, 2, 30):
        indices, values = np.stack([rng.integers(4, size=n), rng.integers(3, size=n)]), rng.standard_normal(n)
        expected = np.zeros((4, 3))
        np.add.at(expected, tuple(indices), values)
        A = from_coo(indices, values, (4, 3), format)
        np.testing.assert_allclose(A.to_dense(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("way", ["from_coo", "from_csr", "from_torch", "coalesce", "with gradients"])
def test_16_bit_duplicates_are_summed_in_32_bits(way: str, dtype: torch.dtype) -> None:
    n = 5000
    indices, ones = torch.zeros(2, n, dtype=torch.int64), torch.ones(n, dtype=dtype)
    rows = torch.tensor([0, n])
    if way == "with gradients":
        ones.requires_grad_()
    A = {
        "from_coo": lambda: from_coo(indices, ones, (1, 1)),
        "from_csr": lambda: from_csr(rows, indices[0], ones, (1, 1)),
        "from_torch": lambda: from_torch(torch.sparse_coo_tensor(indices[:, :2048], ones[:2048] * 3, (1, 1))),
        "coalesce": lambda: from_csr(rows, indices[0], ones, (1, 1), assume_sorted=True, check_invariants=False).coalesce(),
        "with gradients": lambda: from_torch(torch.sparse_coo_tensor(indices, ones, (1, 1))),
    }[way]()
    expected = torch.tensor(2048 * 3.0 if way == "from_torch" else n, dtype=dtype)
    assert A.values.dtype == dtype
    assert A.values.tolist() == [expected.item()]
    if way == "with gradients":
        A.values.sum().backward()
        assert torch.equal(ones.grad, torch.ones(n, dtype=dtype))


def test_scalars_are_summed() -> None:
    assert from_coo(torch.empty(0, 2, dtype=torch.int64), [1.0, 2.0], ()).to_dense().item() == 3.0


def test_sorted_entries_are_checked_once_and_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[tuple[int, ...]] = []

    def counted(table: np.ndarray, mode_order: tuple[int, ...]) -> bool:
        checks.append(tuple(mode_order))
        return is_increasing(table, mode_order)

    monkeypatch.setattr(construct, "is_increasing", counted)
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([1.0, 2.0, 3.0])
    A = from_coo(indices, values, (2, 3), copy=False)
    assert A.values.data_ptr() == values.data_ptr()
    assert A.pattern.arrays[1][0].data_ptr() == indices[1].data_ptr()
    assert checks == [(0, 1)]
    assert from_coo(indices, values, (2, 3), CSR).values.data_ptr() == values.data_ptr()
    assert checks == [(0, 1), (0, 1)]


def test_constructors_make_tensors_on_the_cpu() -> None:
    ones = torch.ones(2)
    calls: tuple[Callable[[], SparseTensor], ...] = (
        lambda: from_torch(D.to_sparse_coo()),
        lambda: from_torch(torch_csr(D), COO(2)),
        lambda: from_coo([[0, 1], [1, 0]], [1.0, 1.0], (2, 2)),
        lambda: from_coo([[1, 0], [0, 1]], ones, (2, 2), CSR),
        lambda: from_csr([0, 1, 2], [1, 0], [1.0, 1.0], (2, 2)),
    )
    for call in calls:
        with torch.device("meta"):
            A = call()
        assert torch.equal(A.to_dense(), call().to_dense())


def test_operands_are_read_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    other, A = torch_csr(D), from_torch(D)
    monkeypatch.delattr(construct, "owned")
    assert others_at(A, other).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_assume_sorted_accepts_the_order_of_rows_or_of_the_format() -> None:
    by_rows, by_columns = [[0, 0, 1], [0, 1, 0]], [[0, 1, 0], [0, 0, 1]]
    expected = [[1.0, 2.0], [3.0, 0.0]]
    for format in (CSC, Format("oo", (1, 0))):
        assert from_coo(by_rows, [1.0, 2.0, 3.0], (2, 2), format, assume_sorted=True).to_dense().tolist() == expected
        assert from_coo(by_columns, [1.0, 3.0, 2.0], (2, 2), format, assume_sorted=True).to_dense().tolist() == expected
    with pytest.raises(FormatError, match=r"entry 2 at \(0, 1\) comes after \(1, 0\)"):
        from_coo(by_columns, [1.0, 3.0, 2.0], (2, 2), CSR, assume_sorted=True)


def test_coordinates_may_be_one_array_per_dimension() -> None:
    values = torch.tensor([5.0, 6.0])
    for indices in (np.nonzero(np.eye(2)), torch.eye(2).nonzero(as_tuple=True), [range(2)] * 2, np.array([[0, 1]] * 2, dtype=np.uint8)):
        assert from_coo(indices, values, (2, 2)).to_dense().tolist() == [[5.0, 0.0], [0.0, 6.0]]


def test_rows_of_csr_are_sorted_and_summed() -> None:
    pos, crd, values = np.array([0, 3, 4], dtype=np.int32), np.array([2, 0, 2, 1], dtype=np.int32), np.array([1.0, 2.0, 3.0, 4.0])
    A = from_csr(pos, crd, values, (2, 3))
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
    assert A.format == {"csc": CSC, "coo": COO(2), "dia": DIA}.get(layout, CSR)
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


def test_unchecked_arrays_are_not_sorted() -> None:
    A = from_csr([0, 2], [1, 0], [1.0, 2.0], (1, 2), assume_sorted=True, check_invariants=False)
    assert A.indices().tolist() == [[0, 0], [1, 0]]
    assert from_coo([[1, 0]], [1.0, 2.0], (2,), assume_sorted=True, check_invariants=False).indices().tolist() == [[1, 0]]
    assert from_coo([[1, 0]], [1.0, 2.0], (2,), "d", check_invariants=False).values.tolist() == [2.0, 1.0]


# ---- errors


def csr(
    pos: Any = (0, 1, 2), crd: Any = (0, 1), values: Any = (1.0, 2.0), shape: Any = (2, 2), **options: Any
) -> Callable[[], SparseTensor]:
    return lambda: from_csr(pos, crd, values, shape, **options)


def coo(
    indices: Any = ((0, 1), (1, 0)), values: Any = (1.0, 2.0), shape: Any = (2, 2), *rest: Any, **options: Any
) -> Callable[[], SparseTensor]:
    return lambda: from_coo(indices, values, shape, *rest, **options)


ERRORS: dict[str, tuple[Callable[[], object], type[NumscorchError], str]] = {
    "negative": (
        coo([[0, -1], [1, 0]]),
        FormatError,
        "entry 1 has coordinate -1 in dimension 0, which has size 2: coordinates lie in 0 to 1",
    ),
    "too large": (coo([[0, 1], [1, 7]]), FormatError, "entry 1 has coordinate 7 in dimension 1, which has size 2"),
    "size 0": (coo([[0], [0]], [1.0], (2, 0)), FormatError, "dimension 1, which has size 0: it can't store anything"),
    "nan": (coo([[0.0, 1.0], [1.0, float("nan")]]), FormatError, "coordinates and positions are integers: entry 1 of dimension 1 is nan"),
    "fraction": (csr(pos=[0, 0.5, 2]), FormatError, "entry 1 is 0.5"),
    "floats": (coo([[0.0, 1.0], [1.0, 0.0]]), FormatError, "convert it with .to(torch.int64)"),
    "bools": (coo(torch.ones(2, 2, dtype=torch.bool)), FormatError, "indices has dtype torch.bool"),
    "unsorted": (
        coo([[1, 0], [0, 1]], assume_sorted=True),
        FormatError,
        "entry 1 at (0, 1) comes after (1, 0): entries must be in increasing order, without duplicates; without assume_sorted=True,",
    ),
    "unsorted, marked as coalesced": (
        lambda: from_torch(marked_as_coalesced()),
        FormatError,
        "entry 1 at (0, 1) comes after (1, 0): entries must be in increasing order, without duplicates; the tensor is only "
        "marked as coalesced: from_torch coalesces torch.sparse_coo_tensor(t.indices(), t.values(), t.shape)",
    ),
    "coalesce": (coo(coalesce=True), OperandError, "from_coo takes no coalesce=: entries are sorted and summed by default"),
    "csr coalesce": (csr(coalesce=False), OperandError, "from_csr takes no coalesce=: entries are sorted and summed by default"),
    "repeated": (coo([[1, 1], [0, 0]], assume_sorted=True), FormatError, "entry 1 repeats the coordinates (1, 0) of entry 0"),
    "repeated in CSR": (
        coo([[1, 1], [0, 0]], [1.0, 2.0], (2, 2), "ds", assume_sorted=True),
        FormatError,
        "entry 1 repeats the coordinates (1, 0) of entry 0",
    ),
    "scalar twice": (
        coo(torch.empty(0, 2, dtype=torch.int64), [1.0, 2.0], (), assume_sorted=True),
        FormatError,
        "entry 1 repeats the coordinates ()",
    ),
    "transposed": (
        coo([[0, 1]] * 3, [1.0] * 3),
        SizeError,
        "indices has shape (3, 2), but shape (2, 2) needs (2, nnz); did you mean indices.T?",
    ),
    "one row": (coo([0, 1]), SizeError, "indices has shape (2,), but shape (2, 2) needs (2, nnz)"),
    "lengths": (coo(values=[1.0]), SizeError, "indices has 2 entries, but values has 1"),
    "hybrid values": (coo(values=torch.ones(2, 3)), SizeError, "values has shape (2, 3): pass one number for each entry, shape (nnz,)"),
    "levels": (coo([[0], [0]], [1.0], (2, 2), "dds"), FormatError, "has 3 dimensions, but shape (2, 2) has 2:"),
    "shape": (coo(shape=(2, -2)), SizeError, "shape (2, -2) has a negative size"),
    "shape of floats": (coo(shape=(2.0, 2.0)), SizeError, "is not a sequence of integers"),
    "bytes": (
        coo(values=torch.ones(2, dtype=torch.uint16)),
        UnsupportedError,
        "values of dtype torch.uint16 are not compiled, only float32, float64, int8",
    ),
    "text": (coo(values=["a", "b"]), UnsupportedError, "can't make a tensor of values, a list"),
    "objects": (coo(np.array([[object()]])), UnsupportedError, "can't make a tensor of indices, a ndarray of dtype object"),
    "ragged": (coo([[0, 1], [1]]), UnsupportedError, "can't make a tensor of indices"),
    "meta": (
        coo(values=torch.ones(2, device="meta")),
        UnsupportedError,
        "values are on meta, but numscorch runs on the CPU: move them with .cpu()",
    ),
    "sparse values": (
        coo(values=torch.ones(2).to_sparse()),
        UnsupportedError,
        "values are a sparse_coo tensor, but must be a plain 1-D one",
    ),
    "sparse indices": (coo(torch.ones(2, 2).long().to_sparse()), UnsupportedError, "indices is a torch.sparse_coo tensor"),
    "csr order": (
        csr([0, 2, 2], [1, 0], assume_sorted=True),
        FormatError,
        "level 2 (compressed) of CSR: position 1, below parent 0, has coordinate 0 after 1",
    ),
    "csr range": (csr(crd=[0, 2]), FormatError, "crd[1] = 2 is outside dimension 1 of size 2"),
    "csr range, sorted": (csr(crd=[0, 2], assume_sorted=True), FormatError, "crd[1] = 2 is outside dimension 1 of size 2"),
    "csr pos": (csr([0, 2]), SizeError, "pos has 2 entries, but CSR of shape (2, 2) needs 3"),
    "csr lengths": (csr(values=[1.0]), SizeError, "crd has 2 entries, but values has 1"),
    "csr dimensions": (csr(crd=[[0, 1]]), SizeError, "crd has shape (1, 2): pass a 1-D array"),
    "csr shape": (csr(shape=(2, 2, 2)), SizeError, "from_csr takes a shape of 2 dimensions, not (2, 2, 2): use from_coo"),
    "unsigned coo": (lambda: from_torch(torch.eye(2).to(torch.uint16)), UnsupportedError, "values of dtype torch.uint16"),
    "meta tensor": (lambda: from_torch(torch.ones(2, device="meta")), UnsupportedError, "the tensor is on meta"),
    "no tensor": (lambda: from_torch(np.eye(2)), UnsupportedError, "takes a torch tensor, not ndarray"),
    "no scipy": (lambda: from_scipy(np.eye(2)), UnsupportedError, "takes a SciPy sparse array, not ndarray"),
    "scipy bytes": (lambda: from_scipy(sp.eye_array(2, dtype=np.uint16)), UnsupportedError, "values of dtype torch.uint16"),
    "to torch": (lambda: from_torch(torch.tensor(1.0)).to_torch(), UnsupportedError, "torch has no sparse layout for a tensor without"),
    "to scipy": (lambda: from_torch(torch.tensor(1.0)).to_scipy(), UnsupportedError, "without dimensions: use .to_dense()"),
    "too large to be dense": (lambda: from_coo([[1], [1]], [1.0], (2**40, 2**40)).to_dense(), SizeError, "keep it sparse"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_show_the_conflict_and_a_fix(name: str) -> None:
    request, kind, text = ERRORS[name]
    with pytest.raises(NumscorchError) as caught:
        request()
    assert type(caught.value) is kind
    assert text in str(caught.value)


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


def test_many_int32_columns_keep_their_size(monkeypatch: pytest.MonkeyPatch, interpreted: None) -> None:
    monkeypatch.setattr(construct, "INT32_MAX", 4)
    pos, crd, values = torch.tensor([0, 2, 3, 5]), torch.tensor([0, 3, 1, 0, 2], dtype=torch.int32), torch.arange(1.0, 6)
    A, rows = from_csr(pos, crd, values, (3, 4), copy=False), torch.tensor([[1.0, 0, 0, 2], [0, 3, 0, 0], [4, 0, 5, 0]])
    assert str(A.format) == "(i, j) -> (i: dense, j: compressed(bits=32))"
    assert A.pattern.arrays[1][1].data_ptr() == crd.data_ptr()
    assert A.pattern.arrays[1][0].data_ptr() == pos.data_ptr()
    x = torch.arange(4.0)
    assert torch.equal(A.to_dense(), rows)
    assert torch.equal(A @ x, rows @ x)
    assert torch.equal(A.sum(1), rows.sum(1))
    assert torch.equal(pickle.loads(pickle.dumps(A)).to_dense(), rows)
    with pytest.raises(FormatError, match=r"crd\[1\] = 4294967295 is outside dimension 1"):
        from_csr(pos, torch.tensor([0, -1, 1, 0, 2], dtype=torch.int32), values, (3, 4))
    assert from_csr(pos, crd, values, (3, 5)).format == CSR  # coordinates may not fit


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_disorder_is_found_in_every_chunk(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "CHUNK", chunk)
    pos, ones = torch.tensor([0, 3, 3, 5, 8]), torch.ones(8)
    crd = torch.tensor([0, 2, 4, 1, 3, 0, 1, 2])
    from_csr(pos, crd, ones, (4, 5), assume_sorted=True)
    for entry in (1, 2, 4, 6, 7):
        wrong = crd.clone()
        wrong[entry] = wrong[entry - 1]
        with pytest.raises(FormatError, match=f"position {entry}, below parent .* repeats the coordinate"):
            from_csr(pos, wrong, ones, (4, 5), assume_sorted=True)


def test_values_of_zeros_without_memory() -> None:
    A = from_csr([0, 1, 3], [0, 0, 1], torch._efficientzerotensor(3), (2, 2))  # torch returns some gradients so
    assert A.to_dense().tolist() == [[0, 0], [0, 0]]
    A.values += 1
    assert A.to_dense().tolist() == [[1, 0], [1, 1]]


def test_alternatives_are_computed_only_for_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[int] = []

    def alternative(order: int) -> str:
        orders.append(order)
        return "use DCSR"

    monkeypatch.setattr(memory, "compressed_instead", alternative)
    from_coo([[0, 2]], [1.0, 2.0], (3,), format=Format("s"))
    assert orders == []
    monkeypatch.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    with pytest.raises(SizeError, match=r"storing 1000000000 positions takes 3\.73 GiB.*\n.*use DCSR"):
        from_coo([[0], [0]], [1.0], (1_000, 1_000_000), format=Format("dd"))
    assert orders == [2]
