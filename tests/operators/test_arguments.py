"""Arguments of operators: torch's keyword names, sparse tensors in place of dense ones, and unsupported arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dense_values import as_dense

import numscorch as ns
from numscorch.operators.arguments import Signature

pytestmark = pytest.mark.usefixtures("interpreted")
FORMATS = {"CSR": ns.CSR, "COO": ns.COO(2), "CSC": ns.CSC, "BCSR": ns.BCSR(2, 2), "ELL": ns.ELL}
FULL = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
D, v = torch.tensor([[0.5, -1.0, 2.0], [4.0, 0.25, -3.0]]), torch.tensor([1.0, 0.0, 2.0])
s = ns.from_torch(v)
index = torch.tensor([[1, 0, 1], [0, 0, 1]])


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "a weight of cross_entropy": lambda A, v: F.cross_entropy(D, torch.tensor([0, 1]), weight=v),
    "expand_as": lambda A, v: D[:, :1].expand_as(A),
    "expand_as of a vector": lambda A, v: v.expand_as(A),
    "a dense vector's expand_as": lambda A, v: D[0].expand_as(A),
    "view_as": lambda A, v: D.t().reshape(-1).view_as(A),
    "reshape_as": lambda A, v: D.reshape_as(A),
    "type_as": lambda A, v: D.long().type_as(A),
    "an index of gather": lambda A, v: torch.gather(D, 1, index if isinstance(A, torch.Tensor) else ns.from_torch(index)),
    "an index of take": lambda A, v: torch.take(A, index if isinstance(A, torch.Tensor) else ns.from_torch(index)),
    "an index of index_select": lambda A, v: torch.index_select(D, 1, v.long()),
    "div, truncated": lambda A, v: torch.div(D, A + 1, rounding_mode="trunc"),
    "div, rounded down": lambda A, v: torch.div(A[:, 1:2], v + 3, rounding_mode="floor"),
    "div of a dense tensor": lambda A, v: torch.div(D, A, rounding_mode="floor"),
    "a lower bound": lambda A, v: torch.clamp(A, A / 2, None),
    "bounds": lambda A, v: torch.clamp(A, -v, v),
    "a dense tensor between bounds": lambda A, v: torch.clamp(D, -A, A),
    "clamp_min": lambda A, v: torch.clamp_min(A, v),
    "clamp_max": lambda A, v: A.clamp_max(0.5),
    "diff in front of": lambda A, v: torch.diff(A, prepend=A),
    "diff by place": lambda A, v: torch.diff(A, 1, 1, None, None),
    "diff of a dense tensor": lambda A, v: torch.diff(D, prepend=A, append=A),
    "the method where": lambda A, v: A.where(D > 0, v),
    "a dense tensor's where": lambda A, v: D.where(D > 0, A),
    "where, of a sparse condition": lambda A, v: A.where(A > 2, 0),
    "sum_to_size": lambda A, v: A.sum_to_size(2, 1),
    "sum_to_size of fewer dimensions": lambda A, v: A.sum_to_size((3,)),
    "sum_to_size of all": lambda A, v: A.sum_to_size(1, 3),
    "sum_to_size of none": lambda A, v: A.sum_to_size(2, 3),
    "<<": lambda A, v: A.long() << 2,
    ">> by a tensor": lambda A, v: A.int() >> v.int(),
    "<< of a number": lambda A, v: 3 << A.long(),
    "<< of a dense tensor": lambda A, v: D.long() << A.long(),
    "prod of truth values": lambda A, v: (A > 0).prod(0),
    "cat with an empty vector": lambda A, v: torch.cat([A.reshape(-1)[:0].double(), A, A], 1),
    "an empty index": lambda A, v: torch.gather(A, 1, torch.empty(3, 0, 2, dtype=torch.int64)),
    "masked_select by a vector": lambda A, v: torch.masked_select(A, v > 1),
    "masked_select of a dense tensor": lambda A, v: torch.masked_select(D, A > 0),
    "masked_select that repeats": lambda A, v: torch.masked_select(v, A > 0),
    "a norm of no entries": lambda A, v: torch.linalg.norm(A[:0], torch.inf),
    "axis and keepdims": lambda A, v: torch.sum(A, axis=1, keepdims=True),
    "memory_format": lambda A, v: A.double().float(memory_format=torch.preserve_format),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_torchs(name: str, format: str) -> None:
    call = CALLS[name]
    torch.testing.assert_close(as_dense(call(ns.from_torch(FULL, FORMATS[format]), s)), call(FULL, v), equal_nan=True)


def test_densified_arguments_are_in_the_ledger_and_refused_in_strict_mode() -> None:
    with ns.ledger() as led:
        F.cross_entropy(D, torch.tensor([0, 1]), weight=s)
    assert [entry.kind for entry in led] == ["densification"]
    with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"cross_entropy makes a tensor s .* dense"):
        F.cross_entropy(D, torch.tensor([0, 1]), weight=s)


GRADIENTS: dict[str, Callable[[Any], Any]] = {
    "div, rounded down": lambda A: torch.div(A, 2, rounding_mode="floor"),
    "div, truncated": lambda A: torch.div(A, D, rounding_mode="trunc"),
    "where": lambda A: A.where(D > 0, v),
    "a lower bound": lambda A: torch.clamp(A, A.detach(), v),
    "hardtanh": lambda A: F.hardtanh(A, 0.0, 2.0),
    "norm of an order below 1": lambda A: torch.linalg.vector_norm(A, 0.5, dim=0),
    "norm of order 6": lambda A: torch.linalg.vector_norm(A[:, :1], 6, dim=1),
    "normalize": lambda A: F.normalize(A, p=0.5, dim=0),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_torchs(name: str, format: str) -> None:
    A, full = ns.from_torch(FULL, FORMATS[format]), FULL.clone().requires_grad_()
    values = A.values.clone().requires_grad_()
    GRADIENTS[name](full).sum().backward()
    as_dense(GRADIENTS[name](A.with_values(values))).sum().backward()
    inside = A.with_values(torch.ones_like(A.values)).to_dense() != 0
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), torch.where(inside, full.grad, 0))


def test_factors_of_integers_and_truth_values_are_torchs() -> None:
    ints, factors = FULL.long(), {"beta": 0.5, "alpha": 1.5}
    A = ns.from_torch(ints)
    calls = {"addmv": (v[:2].long(), A, v.long()), "addmm": (ints[:, :2], A, ints.t()), "addr": (A, v[:2].long(), v.long())}
    accepted = []
    for name, operands in calls.items():
        try:
            expected = getattr(torch, name)(*(as_dense(operand) for operand in operands), **factors)
        except RuntimeError:
            with pytest.raises(ns.OperandError, match=f"{name} of torch.int64 with beta=0.5 and alpha=1.5: give whole numbers"):
                getattr(torch, name)(*operands, **factors)
            continue
        result = as_dense(getattr(torch, name)(*operands, **factors))
        assert result.dtype == torch.int64
        assert torch.equal(result, expected)
        accepted.append(name)
    assert "addmv" in accepted
    for factors in ({"beta": 0, "alpha": 1}, {"beta": 1, "alpha": 0}, {"beta": 0, "alpha": 0}):
        result = torch.addr(A > 1, v[:2] > 0, s > 0, **factors)
        assert torch.equal(as_dense(result), torch.addr(ints > 1, v[:2] > 0, v > 0, **factors))
    assert F.hardtanh(A).dtype == torch.int64


def test_norms_of_complex_numbers_are_real() -> None:
    numbers = torch.complex(FULL, FULL.flip(0))
    for order in (0, 2, 3):
        norms = torch.linalg.vector_norm(ns.from_torch(numbers), order, dim=-1)
        torch.testing.assert_close(norms, torch.linalg.vector_norm(numbers, order, dim=-1))


A = ns.from_torch(FULL)
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a keyword": (lambda: A.diff(steps=2), r"diff of a SparseTensor takes input, n, dim, prepend, append, not steps="),
    "too many": (lambda: A.tril(0, 1), r"tril of a SparseTensor takes input, diagonal, not more values"),
    "out": (lambda: torch.sin(A, out=torch.empty(2, 3)), r"out= of sin with a SparseTensor: use the returned tensor"),
    "no tensor": (lambda: ns.tril(None, A), r"tril of NoneType with a SparseTensor"),
    "a reduction of products": (lambda: torch.sparse.mm(A, A.t(), "amax"), r"reduce='amax': use einsum"),
    "copy_ of a number": (lambda: A.clone().copy_(2.0), r"copy_ takes a tensor, not float: A\.values\.fill_"),
    "a mask that is none": (lambda: A.masked_fill(True, 0), r"masked_fill takes a mask that is a tensor, not bool: torch\.as_tensor"),
    "torch.masked": (lambda: torch.masked.sum(A, 1, mask=D > 0), r"torch's masked.sum does not take .* yet: mask with torch.where"),
    "torch.masked, a mask": (lambda: torch.masked.amax(D, 1, mask=A > 0), r"torch's masked.amax does not take a SparseTensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_arguments_are_refused(name: str) -> None:
    call, text = REFUSED[name]
    with pytest.raises(ns.UnsupportedError, match=text):
        call()


def test_torch_masked_takes_dense_tensors_as_before() -> None:
    torch.testing.assert_close(torch.masked.sum(D, 1, mask=D > 0), torch.where(D > 0, D, 0).sum(1))


def test_annotations_say_what_may_be_sparse() -> None:
    def function(input: ns.SparseTensor, other: Any, index: torch.Tensor, *, weight: torch.Tensor | None = None) -> None:
        """An operator."""

    function.__annotations__ = {"input": "SparseTensor", "other": "Any", "index": "torch.Tensor", "weight": "torch.Tensor | None"}
    signature = Signature("function", function)
    assert (signature.needs_sparse, signature.dense, signature.most) == (True, {"index", "weight"}, 3)
    assert signature.fits((A, A, D), {"weight": v})
    assert not any([signature.fits((A, A, A), {}), signature.fits((A, D, D), {"weight": s}), signature.fits((D, A, D), {})])


@pytest.mark.parametrize("name", ["acosh_", "nanquantile", "index_fill", "igamma"])
def test_a_missing_method_raises_an_attribute_error_with_the_way_out(name: str) -> None:
    assert callable(getattr(torch.Tensor, name))
    assert hasattr(A, name) == (name == "acosh_")
    if name != "acosh_":
        with pytest.raises(ns.errors.MissingError, match=f"torch's {name} does not take a SparseTensor yet: ") as error:
            getattr(A, name)
        assert isinstance(error.value, AttributeError)
        assert (error.value.name, error.value.obj) == (name, A)
    with pytest.raises(AttributeError, match="a SparseTensor has no attribute 'colour'"):
        A.colour  # noqa: B018
