"""Errors of bad input: their type and text, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
A = ns.from_torch(torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]]))
x = torch.arange(6.0).reshape(3, 2)
Call = Callable[[], object]

BAD: dict[str, tuple[Call, type[Exception], str]] = {
    # the text
    "unknown output index": (
        lambda: ns.einsum("ij,jk->iz", A, x),
        ns.ExpressionError,
        "the result's index z is in no operand: the known ones are i, j, k",
    ),
    "repeated output index": (
        lambda: ns.einsum("ij,jk->iki", A, x),
        ns.ExpressionError,
        "the result's index i is repeated: name each once",
    ),
    "too few operands": (lambda: ns.einsum("ij,jk->ik", A), ns.ExpressionError, "'ij,jk->ik' has 2 terms for 1 operands"),
    "too many operands": (lambda: ns.einsum("ij->i", A, x), ns.ExpressionError, "'ij->i' has 1 terms for 2 operands"),
    "too few indices": (lambda: ns.einsum("i,jk->ik", A, x), ns.ExpressionError, "'i' names 1 dimensions, but its operand has 2"),
    "no index": (lambda: ns.einsum("ij,j?->i", A, x[:, 0]), ns.ExpressionError, "'?' is not an index"),
    "no sublist": (lambda: ns.einsum(A, "ij", x, "jk"), ns.ExpressionError, "'ij' is not a sublist: give integers from 0 to 51"),
    "nothing to do": (lambda: ns.einsum(A), ns.ExpressionError, "einsum needs an expression and operands, as einsum('ij,jk->ik', A, B)"),
    # sizes
    "sizes differ": (
        lambda: ns.einsum("ij,jk->ik", A, torch.ones(4, 2)),
        ns.SizeError,
        "index j has size 3 in A but 4 in B\n  C[i,k] = A[i,j] * B[j,k]     A: 2x3 (CSR)     B: 4x2 (dense)",
    ),
    "sizes differ, transposed": (
        lambda: ns.einsum("ij,jk->ik", A, torch.ones(2, 3)),
        ns.SizeError,
        "index j has size 3 in A but 2 in B\n  C[i,k] = A[i,j] * B[j,k]     A: 2x3 (CSR)     B: 2x3 (dense)     did you mean B[k,j]?",
    ),
    "sizes differ, sparse second": (
        lambda: ns.einsum("ij,jk->ik", torch.ones(4, 2), A.T),
        ns.SizeError,
        "index j has size 2 in A but 3 in B",
    ),
    "sizes differ in one operand": (
        lambda: ns.einsum("ii->i", A),
        ns.SizeError,
        "index i takes the diagonal of A, whose sizes differ there: 2 and 3",
    ),
    "sizes differ by @": (lambda: A @ torch.ones(4), ns.SizeError, "has size 3 in A but 4 in B"),
    "larger than memory": (
        lambda: ns.einsum("i,j->ij", ns.from_coo([[0]], [1.0], (10**7,)), torch.ones(1).expand(10**7)),
        ns.SizeError,
        "the dense result 10000000x10000000 takes 3.73e+05 GiB, but the limit is",
    ),
    # data types and devices
    "no operands": (lambda: ns.explain("ij"), ns.ExpressionError, "einsum needs an expression and operands, as einsum('ij,jk->ik', A, B)"),
    "order of complex numbers": (
        lambda: ns.einsum("i->", ns.from_torch(torch.ones(2) + 0j), reduce="max"),
        ns.UnsupportedError,
        "max= of complex64 values: convert the operands with .to(torch.float32), or use .values.real and .values.imag\n  A[i] over i->",
    ),
    "comparisons of complex numbers": (
        lambda: ns.evaluate("y[i] = (A[i] < A[i])", A=ns.from_torch(torch.ones(2) + 0j)),
        ns.UnsupportedError,
        "< of complex64 values",
    ),
    "not on the CPU": (
        lambda: ns.einsum("ij,jk->ik", A, x.to("meta")),
        ns.UnsupportedError,
        "an operand is on meta: numscorch runs on the CPU, so pass operand.cpu()",
    ),
    "native, not on the CPU": (
        lambda: ns.einsum("ij,jk->ik", x.T.to_sparse().to("meta"), x),
        ns.UnsupportedError,
        "the tensor is on meta, but numscorch runs on the CPU: move it with .cpu()",
    ),
    # what is no operand
    "a number": (
        lambda: ns.einsum("ij,->ij", A, 2.0),
        ns.UnsupportedError,
        "operands are SparseTensors or torch tensors, not float: wrap it with torch.as_tensor",
    ),
    "an array": (lambda: ns.einsum("ij,jk->ik", A, x.numpy()), ns.UnsupportedError, "not ndarray: wrap it with torch.from_numpy"),
    "a word in a statement": (
        lambda: ns.evaluate("y[i] = A[i,j] * x[j]", A=A, x="a"),
        ns.OperandError,
        "operands are SparseTensors or torch tensors, not str: only explain takes formats",
    ),
    "a number with an index": (
        lambda: ns.evaluate("y[i] = A[i,j] * x[j]", A=A, x=3),
        ns.ExpressionError,
        "x[j] has 1 indices, but x has 0 dimensions\n  y[i] = A[i,j] * x[j]",
    ),
    "a number with an index, explained": (
        lambda: ns.explain("y[i] = A[i,j] * x[j]", A=A, x=3),
        ns.ExpressionError,
        "x[j] has 1 indices, but x has 0 dimensions\n  y[i] = A[i,j] * x[j]",
    ),
    "a format of another order, explained": (
        lambda: ns.explain("y[i] = A[i,j] * x[j]", A=A, x=ns.CSR),
        ns.ExpressionError,
        "x[j] has 1 indices, but x has 2 dimensions",
    ),
    "more operands than names": (
        lambda: ns.einsum(",".join("i" * 30) + "->", *[A.T @ torch.ones(2)] * 29, ns.from_torch(torch.ones(3))),
        ns.NumscorchError,
        "operands",
    ),
    # formats
    "no format": (
        lambda: ns.einsum("ij,jk->ik", A, x, format=3),
        ns.FormatError,
        "3 is not a format: use a Format, such as CSR, or its text",
    ),
    "no format, and no key": (lambda: ns.einsum("ij,jk->ik", A, x, format=["ds"]), ns.FormatError, "is not a format: use a Format"),
    "an unknown level": (
        lambda: ns.einsum("ij,jk->ik", A, x, format="dz"),
        ns.FormatError,
        "unknown level 'z' in format 'dz': use d (dense), s (compressed), o (coordinate)",
    ),
    "a format of another order": (
        lambda: ns.einsum("ij,ij->ij", A, x.T, format=ns.CSF(3)),
        ns.FormatError,
        "format=CSF(3) has 3 dimensions, but the result has 2",
    ),
    # what is not compiled
    "another function of torch": (
        lambda: torch.addcdiv(A, A, A),
        ns.UnsupportedError,
        "torch's addcdiv does not take a SparseTensor yet: use einsum, or .to_dense()",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize("name", BAD)
def test_errors_change_nothing(name: str) -> None:
    with pytest.raises(BAD[name][1]):
        BAD[name][0]()
    assert torch.equal(A.to_dense(), torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]]))
    assert torch.equal(x, torch.arange(6.0).reshape(3, 2))
    assert A.format == ns.CSR
    assert torch.equal(ns.einsum("ij,jk->ik", A, x), A.to_dense() @ x)


@pytest.mark.parametrize("name", BAD)
def test_errors_repeat_at_the_second_call(name: str) -> None:
    """Incomplete state of a failed call is not cached."""
    texts = []
    for _ in range(2):
        with pytest.raises(BAD[name][1]) as error:
            BAD[name][0]()
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_errors_derive_from_numscorchs_and_pythons_types() -> None:
    """One base class catches all errors, as do the types that users of torch catch."""
    for kind, python in (
        (ns.ExpressionError, ValueError),
        (ns.SizeError, ValueError),
        (ns.FormatError, ValueError),
        (ns.ScheduleError, RuntimeError),
        (ns.UnsupportedError, NotImplementedError),
    ):
        assert issubclass(kind, ns.NumscorchError)
        assert issubclass(kind, python)


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([[0, 5], [0, 1]], "entry 1 has coordinate 5 in dimension 0, which has size 2"),
        ([[0, -1], [0, 1]], "entry 1 has coordinate -1 in dimension 0"),
        ([[1, 0], [0, 1]], "entry 1 at (0, 1) comes after (1, 0): entries must be in increasing order"),
        ([[0, 0], [1, 1]], "repeats the coordinates (0, 1)"),
        ([[0.0, float("nan")], [0.0, 1.0]], "entry 1 of dimension 0 is nan"),
    ],
)
def test_bad_coordinates_never_reach_a_kernel(indices: list[list[float]], text: str) -> None:
    with pytest.raises(ns.FormatError) as error:
        ns.einsum("ij,jk->ik", ns.from_coo(indices, [1.0, 2.0], (2, 3), assume_sorted=True), x)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("pos", "crd", "text"),
    [
        ([0, 2, 1], [0, 1], "pos[2] = 1 is less than pos[1] = 2: pos may not decrease"),
        ([0, 1, 2], [0, 7], "crd[1] = 7 is outside dimension 1 of size 3"),
        ([0, 2, 2], [1, 0], "coordinates must increase"),
        ([1, 1, 2], [0, 1], "pos[0] = 1, but positions start at 0"),
    ],
)
def test_bad_native_arrays_never_reach_a_kernel(pos: list[int], crd: list[int], text: str) -> None:
    broken = torch.sparse_csr_tensor(torch.tensor(pos), torch.tensor(crd), torch.ones(2), (2, 3), check_invariants=False)
    for _ in range(2):
        with pytest.raises(ns.FormatError) as error:
            ns.einsum("ij,jk->ik", broken, x)
        assert text in str(error.value)


def test_the_memory_limit_is_settable(plain: pytest.MonkeyPatch) -> None:
    column = ns.from_coo([[0]], [1.0], (40_000,))
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "2G")
    with pytest.raises(ns.SizeError, match=r"takes 5.96 GiB, but the limit is 2 GiB"):
        ns.einsum("i,j->ij", column, torch.ones(40_000))
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "lots")
    with pytest.raises(ns.NumscorchError, match="NUMSCORCH_MEMORY_LIMIT is 'lots': give a number of bytes"):
        ns.einsum("i,j->ij", column, torch.ones(40_000))
