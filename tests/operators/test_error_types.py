"""Calls that torch refuses on dense tensors raise an error of a type that ``except`` clauses for torch's error catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
D = torch.tensor([[0.0, 2.0, 0.0, 5.0], [3.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 4.0]])
X = torch.ones(4, 2)
Call = Callable[[Any], object]
formats = pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(3, 2), ns.ELL], ids=lambda f: f.name)

BAD: dict[str, Call] = {
    # products
    "mm, sizes": lambda A: torch.mm(A, torch.ones(3, 2)),
    "mm, ranks": lambda A: torch.mm(A, torch.ones(4)),
    "mm, types": lambda A: torch.mm(A, X.double()),
    "mv, ranks": lambda A: torch.mv(A, X),
    "bmm, ranks": lambda A: torch.bmm(A, X),
    "matmul, sizes": lambda A: A @ torch.ones(5),
    "matmul, types": lambda A: A @ X.long(),
    "matmul, a number": lambda A: torch.matmul(A, 3.0),
    "matmul, a list": lambda A: A @ [1.0, 2.0],
    "matmul, no dimensions": lambda A: A @ torch.tensor(1.0),
    "addmm, sizes": lambda A: torch.addmm(torch.ones(7, 7), A, X),
    "linear, sizes": lambda A: F.linear(torch.ones(2, 3), A),
    "tensordot, sizes": lambda A: torch.tensordot(A, torch.ones(3, 2), 1),
    "einsum, sizes": lambda A: torch.einsum("ij,jk->ik", A, torch.ones(3, 2)),
    "einsum, an index": lambda A: torch.einsum("ij,jk->iz", A, X),
    "einsum, operands": lambda A: torch.einsum("ij,jk->ik", A),
    "einsum, a character": lambda A: torch.einsum("i?,jk->ik", A, X),
    # element by element
    "+, sizes": lambda A: A + torch.ones(5),
    "*, sizes": lambda A: A * torch.ones(2, 4),
    "+, text": lambda A: A + "x",
    "*, None": lambda A: A * None,
    "**, text": lambda A: A ** "x",
    ">, text": lambda A: A > "x",
    "add, text": lambda A: torch.add(A, "x"),
    "maximum, sizes": lambda A: torch.maximum(A, torch.ones(5)),
    "maximum, a number": lambda A: torch.maximum(A, 1.0),
    "where, sizes": lambda A: torch.where(A > 0, A, torch.ones(9)),
    "dropout, a share": lambda A: F.dropout(A, 2.0),
    # reductions
    "sum, a dim": lambda A: A.sum(2),
    "sum, a negative dim": lambda A: A.sum(-3),
    "sum, a dim twice": lambda A: A.sum((0, 0)),
    "sum, text": lambda A: A.sum("x"),
    "sum, a keyword": lambda A: torch.sum(A, nothing=1),
    "mean, a dim": lambda A: torch.mean(A, 5),
    "mean of integers": lambda A: A.long().mean(),
    "amax, a dim": lambda A: torch.amax(A, 2),
    "max, a dim": lambda A: torch.max(A, 2),
    "argmax, a dim": lambda A: torch.argmax(A, 3),
    "prod, a dim": lambda A: torch.prod(A, 2),
    "softmax, a dim": lambda A: torch.softmax(A, 2),
    "log_softmax, a dim": lambda A: torch.log_softmax(A, -3),
    "norm, a dim": lambda A: torch.norm(A, 2, 5),
    # shapes
    "transpose, a dim": lambda A: torch.transpose(A, 0, 2),
    "permute, a dim twice": lambda A: A.permute(0, 0),
    "permute, a dim missing": lambda A: A.permute(0),
    "permute, a dim": lambda A: A.permute(0, 2),
    "permute, a fraction": lambda A: A.permute(0.5, 1),
    "reshape, sizes": lambda A: A.reshape(5, 2),
    "reshape, two unknown": lambda A: A.reshape(-1, -1),
    "view, sizes": lambda A: A.view(7),
    "flatten, a dim": lambda A: torch.flatten(A, 0, 4),
    "unsqueeze, a dim": lambda A: torch.unsqueeze(A, 4),
    "squeeze, a dim": lambda A: torch.squeeze(A, 4),
    "expand, sizes": lambda A: A.expand(3, 5),
    "expand, dims": lambda A: A.expand(3),
    "t, dims": lambda A: A.unsqueeze(0).t(),
    "cat, sizes": lambda A: torch.cat([A, A[:, :2]]),
    "cat, a dim": lambda A: torch.cat([A, A], 2),
    "stack, sizes": lambda A: torch.stack([A, A[:2]]),
    "stack, a dim": lambda A: torch.stack([A, A], 5),
    # indices
    "an index": lambda A: A[3],
    "a negative index": lambda A: A[-4],
    "indices, too many": lambda A: A[0, 0, 0],
    "indices in a list": lambda A: A[[0, 9]],
    "indices in a tensor": lambda A: A[torch.tensor([0, 9])],
    "a mask's size": lambda A: A[torch.tensor([True, False])],
    "a step": lambda A: A[::-1],
    "index_select, a dim": lambda A: torch.index_select(A, 2, torch.tensor([0])),
    "index_select, an index": lambda A: torch.index_select(A, 0, torch.tensor([9])),
    "select, an index": lambda A: torch.select(A, 0, 5),
    "select, a dim": lambda A: torch.select(A, 3, 0),
    "narrow, a length": lambda A: torch.narrow(A, 0, 2, 5),
    "narrow, a start": lambda A: torch.narrow(A, 0, 7, 1),
    "narrow, a dim": lambda A: torch.narrow(A, 4, 0, 1),
    "diagonal, one dim": lambda A: torch.diagonal(A, 0, 0, 0),
    "diagonal, a dim": lambda A: torch.diagonal(A, 0, 0, 3),
    "tril, dims": lambda A: torch.tril(A[0]),
    # objects
    "item": lambda A: A.item(),
    "bool": lambda A: bool(A),
    "an attribute": lambda A: A.no_such_attribute,
    "copy_, sizes": lambda A: A.clone().copy_(torch.ones(5)),
    "mul_, sizes": lambda A: A.clone().mul_(torch.ones(5)),
    "mul_, text": lambda A: A.clone().mul_("x"),
    "div_, None": lambda A: A.clone().div_(None),
    "mul_, integers by fractions": lambda A: A.long().mul_(0.5),
    "add_, integers and fractions": lambda A: A.long().add_(A),
    "div_, integers": lambda A: A.long().div_(2),
    "grad of integers": lambda A: (A.long().values if isinstance(A, ns.SparseTensor) else A.long()).requires_grad_(),
}


def raised_error(call: Call, tensor: Any) -> Exception:
    with pytest.raises(Exception) as error:  # any type: the test compares it
        call(tensor)
    exception: Exception = error.value
    return exception


@formats
@pytest.mark.parametrize("name", BAD)
def test_the_type_is_torchs(name: str, format: ns.Format) -> None:
    of_torch = raised_error(BAD[name], D)
    of_numscorch = raised_error(BAD[name], ns.from_torch(D, format))
    kind = next(kind for kind in type(of_torch).__mro__ if kind.__module__ == "builtins")
    assert isinstance(of_numscorch, kind), f"torch raises {of_torch!r}, numscorch {of_numscorch!r}"


# Calls for which torch has one error type for many causes, or numscorch raises the type of an error in a format text.
OTHERWISE: dict[str, tuple[Call, type[Exception]]] = {
    "a text as index": (lambda A: A["x"], ns.errors.IndexKindError),
    "an object as index": (lambda A: A[0, object()], ns.errors.IndexKindError),
    "an index that is a fraction": (lambda A: A[torch.tensor([0.5])], ns.errors.IndexKindError),
    "a device that is none": (lambda A: A.to("nowhere"), ns.FormatError),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_types_that_differ(name: str) -> None:
    call, kind = OTHERWISE[name]
    assert isinstance(raised_error(call, D), IndexError | RuntimeError | TypeError)
    assert isinstance(raised_error(call, ns.from_torch(D)), kind)


def test_an_index_out_of_range_ends_no_loop_silently() -> None:
    """Iteration over rows does not use ``__getitem__``, so an IndexError from an index within the loop is not taken for its end."""
    assert len(list(ns.from_torch(D))) == 3
    with pytest.raises(IndexError):
        [row[7] for row in ns.from_torch(D)]
