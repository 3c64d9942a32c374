"""Public operators, called with an argument of a wrong type, size or range, give torch's result or raise an error that names them.

The calls are those of the net (``net_rows``); one argument of a call is replaced or left out.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import net
import pytest
import torch
from net_outcomes import WAY_OUT, attempt, outcome
from net_rows import Row, rows_of_text
from net_samples import Setting, Value, sample
from op_sweep import GOOD

import numscorch as ns
from numscorch.errors import NumscorchError
from numscorch.frontend.operator_forms import SYNONYMS
from numscorch.operators import OPERATORS, PUBLIC
from numscorch.runtime.plans import uncompiled

TORCHS = (TypeError, RuntimeError, ValueError, IndexError, OverflowError)  # errors of torch's functions
PARTS = 8  # parts of the table, which xdist workers share
OBJECTS: dict[str, Any] = {"None": None, "a text": "x", "an object": object(), "a number": 3}  # in the place of a tensor
RESIZED = {  # tensors in the place of a tensor
    "a row": lambda t: t[:1],
    "three rows": lambda t: t[:3],
    "a column": lambda t: t[..., :1],
    "a further dimension": lambda t: t[None],
    "a dimension fewer": lambda t: t[0],
    "no dimensions": lambda t: t.flatten()[0].clone(),
}
NUMBERS: dict[str, Any] = {  # in the place of a dimension, a count, a size or a number
    **{key: value for key, value in OBJECTS.items() if key != "a number"},
    **{str(value): value for value in (1.5, 1.0, 5, -5, -1, 2**70, [7], [], [5, -7], ([5], [0]))},
    "a tensor": torch.ones(2, 2),
}
LENIENT = {  # kinds of arguments that numscorch takes and torch refuses, and the operators
    "a number": (
        r"add|sub|mul|div|eq|ne|gt|ge|lt|le|logical_(and|or|xor)|maximum|minimum|fmax|fmin|hypot|atan2|copysign|logaddexp2?|xlogy|clamp"
        r"|lerp|addcmul|dist|index_select"
    ),
    "a list|a tuple": r"isin|masked_select|index_select|repeat_interleave",
    r"\[7\]|\[5, -7\]|a further dimension": r"repeat_interleave|pad",  # one number for each slice; more crops than entries before pads
    r"None|\[\]": r"max|min|prod|logsumexp|aminmax",  # all dimensions
    r"-?\d": r"reshape|broadcast_to|tile|flip|unflatten|split_with_sizes",  # one size without parentheses
    r"\d{20,}": r".*",  # Python's integers are not bounded
    "missing": r"dropout|split_with_sizes|sum_to_size|sum|mean|prod",  # keepdim without a dimension
    "a dimension fewer": r"chain_matmul",
    r".*row.*|a column|-\d": r"permute",  # torch.permute takes no dimensions one by one
}
KNOWN = {  # kinds of arguments with another result, and the operators
    "no dimensions": r"argmax|argmin|allclose|remainder|fmod|floor_divide|masked_fill",  # to be fixed
    "a column": r"take_along_dim",  # torch takes indices out of range if the size is 1
}


def is_listed(case: WrongCase, table: dict[str, str]) -> bool:
    return any(re.fullmatch(kind, case.kind) and re.fullmatch(f"({names})_?", case.name) for kind, names in table.items())


@dataclass(frozen=True)
class WrongCase:
    """A sample call with one argument replaced by a value of a kind."""

    row: Row
    name: str
    at: int
    kind: str

    def __str__(self) -> str:
        return f"{self.name} of {self.row} with {self.kind} at {self.at}"


def kinds(value: Value) -> Iterator[str]:
    """The kinds of wrong arguments for one of these roles."""
    if value.role in ("sparse", "dense", "index", "mask"):
        yield from (*OBJECTS, *RESIZED, "a list", "a tuple")
    elif value.role == "list":
        yield from (*OBJECTS, "a list", "a tensor of the list")
    elif value.role != "plain":
        yield from NUMBERS


def replaced(value: Value, kind: str, is_ours: bool) -> Any:
    """The argument of a kind, in the place of a value."""
    if kind == "a tensor of the list":
        return value.parts[0].argument(is_ours)
    if kind in RESIZED:
        resized = RESIZED[kind](value.value) if value.value.ndim else value.value
        return ns.from_torch(resized) if is_ours and value.role == "sparse" else resized
    if kind == "a list":
        return [1, 2] if value.role == "list" else value.value.tolist()
    if kind == "a tuple":
        return (value.argument(is_ours),)
    return (OBJECTS | NUMBERS)[kind]


def cases() -> Iterator[WrongCase]:
    """All cases; calls of one operator with arguments of the same roles are taken once."""
    signatures = set()
    for row in rows_of_text():
        values = sample(row.tokens, Setting(format=0), "")
        key = row.name, *(value.role for value in values)
        if key in signatures or row.name in SYNONYMS:
            continue
        signatures.add(key)
        for name in sorted({row.name, f"{row.name}_"} & OPERATORS.keys()):
            first = 0 if name in PUBLIC else 1
            if first and values[0].role == "num":
                continue  # numbers have no methods
            yield from (WrongCase(row, name, at, kind) for at, value in enumerate(values) if at >= first for kind in kinds(value))
            yield from (WrongCase(row, name, at, "missing") for at in range(1, len(values)))


def arguments(case: WrongCase, is_ours: bool) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = [], {}
    for at, value in enumerate(sample(case.row.tokens, Setting(format=0), "")):
        if at == case.at and case.kind == "missing":
            continue
        given = replaced(value, case.kind, is_ours) if at == case.at else value.argument(is_ours)
        if value.name:
            kwargs[value.name] = given
        else:
            args.append(given)
    return args, kwargs


def has_sparse(values: Any) -> bool:
    return any(isinstance(value, ns.SparseTensor) or (isinstance(value, list | tuple) and has_sparse(value)) for value in values)


def calls(case: WrongCase) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """numscorch's function, and torch's; if there is no public function, the method, or torch's function for both."""
    if case.name in PUBLIC:
        dense = net.call_of(case.row, "function") if case.name == case.row.name else None
        return getattr(ns, case.name), dense or getattr(torch, case.name)
    if hasattr(torch.Tensor, case.name):
        return (lambda self, *args, **kwargs: getattr(self, case.name)(*args, **kwargs),) * 2
    return (getattr(torch.nn.functional, case.name),) * 2


def fault(case: WrongCase) -> str | None:
    """What is wrong about a case; None if nothing is, or no argument is sparse."""
    args, kwargs = arguments(case, True)
    if is_listed(case, KNOWN) or not has_sparse((*args, *kwargs.values())):
        return None
    call, dense = calls(case)
    expected, result = attempt(dense, *arguments(case, False)[0], **arguments(case, False)[1]), attempt(call, *args, **kwargs)
    error = result[1]
    if error is None and expected[1] is not None:
        return None if is_listed(case, LENIENT) else f"accepted; torch: {expected[1]}"
    if error is None:
        compared = outcome(case.row.name, "plain", result, expected)
        return None if compared.kind in GOOD else f"{compared.kind}: {compared.message}"
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, NumscorchError):
        return None if isinstance(error, TORCHS) and expected[1] is not None else f"raw {text}"
    own_name = inspect.unwrap(OPERATORS[case.name]).__name__
    is_named = "\n" in text or any(part in text for part in (case.name, own_name)) or case.name == "stack"
    return None if is_named and (expected[1] is not None or WAY_OUT.search(text)) else f"unclear {text}"


@pytest.mark.parametrize("part", range(PARTS))
def test_wrong_arguments_give_clear_errors(part: int) -> None:
    with uncompiled(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        faults = [f"{case}: {text}" for case in list(cases())[part::PARTS] if (text := fault(case)) is not None]
    assert not faults, "\n".join(faults)


A, v, M = ns.from_torch(torch.eye(3), ns.CSR), ns.from_torch(torch.ones(3)), torch.ones(3, 3)
batch = ns.from_torch(torch.ones(2, 3, 3))
TEXTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "an exponent": (lambda: ns.matrix_power(A, 2.5), ns.OperandError, r"matrix_power: 2\.5 instead of an integer: dimensions, sizes and"),
    "a power of a vector": (lambda: ns.matrix_power(v, 2), ns.SizeError, r"matrix_power of shape \(3,\): it takes square matrices"),
    "a power of rows": (lambda: ns.matrix_power(A[:2], 1), ns.SizeError, r"matrix_power of shape \(2, 3\): it takes square"),
    "contracted dimensions": (lambda: ns.tensordot(A, M, 5), ns.RangeError, r"tensordot over 5 dimensions: give a number from 0 to 2"),
    "a contracted dimension": (
        lambda: ns.tensordot(A, M, ([5], [0])),
        ns.RangeError,
        r"tensordot: dim=5 of a 2-dim.*: give one from -2 to 1",
    ),
    "no pair of dimensions": (lambda: ns.tensordot(A, M, ([1],)), ns.OperandError, r"tensordot"),
    "an index": (lambda: ns.select(A, 0, 1.5), ns.OperandError, r"select: 1\.5 instead of an integer"),
    "an index, a tensor": (lambda: A.select(0, torch.tensor(1.5)), ns.OperandError, r"select: 1\.5 instead of an integer"),
    "a quarter turn": (lambda: ns.rot90(A, 1.5), ns.OperandError, r"rot90: 1\.5 instead of an integer"),
    "a number of differences": (lambda: ns.diff(A, -1), ns.RangeError, r"diff with n=-1: give the number of differences, at least 0"),
    "batches": (lambda: ns.bmm(batch, torch.ones(1, 3, 3)), ns.SizeError, r"bmm .*: size 2 of dim 0 must equal size 1 of dim 0"),
    "a bias": (lambda: torch.nn.functional.linear(M, A[:1], M[0]), ns.SizeError, r"linear of .* bias of shape \(3,\): give one bias"),
    "no truth value": (lambda: ns.logical_and(A, None), ns.OperandError, r"logical_and\(\): argument 'other' .* must be Tensor, not None"),
    "one tensor": (lambda: ns.hstack(A), ns.OperandError, r"hstack takes a list of tensors: write hstack\(\[A, B\]\), not hstack\(A, B\)"),
    "one tensor, stacked": (lambda: ns.stack(A), ns.OperandError, r"stack takes a list of tensors"),
    "no dimensions": (lambda: ns.flip(A), ns.OperandError, r'flip\(\) missing 1 required positional arguments: "dims"'),
    "no copies": (lambda: A.repeat(), ns.OperandError, r'repeat\(\) missing 1 required positional arguments: "repeats"'),
    "a text, compared": (lambda: ns.gt(A, "x"), ns.OperandError, r"gt\(\) received an invalid combination .* got \(Tensor, str\)"),
    "a text": (lambda: ns.add(A, "x"), ns.OperandError, r"add\(\): argument 'other' .* must be Tensor, not str"),
    "a product": (lambda: ns.mm(A, 3), ns.OperandError, r"mm takes tensors, not int: wrap it with torch\.as_tensor"),
    "a loss": (
        lambda: torch.nn.functional.mse_loss(A, 3),
        ns.OperandError,
        r"mse_loss\(\): 'int' object has no attribute 'size': wrap other objects",
    ),
    "a first argument": (lambda: ns.norm((A,)), ns.OperandError, r"norm of tuple .*: the first argument must be a tensor"),
    "rows split": (lambda: ns.vsplit(A, 2), ns.SizeError, r"vsplit along dim 0, of size 3: torch\.vsplit attempted to split along dim"),
    "columns split": (lambda: ns.hsplit(A, 2), ns.SizeError, r"hsplit along dim 1, of size 3: torch\.hsplit .* along dimension 1"),
    "a vector split": (lambda: ns.vsplit(v, 3), ns.SizeError, r"torch\.vsplit requires a tensor with at least 2 dim"),
    "eigenvalues": (lambda: ns.lobpcg(batch), ns.UnsupportedError, r"lobpcg of a 3-dimensional tensor: give a matrix, such as A\[0\]"),
    "components": (lambda: ns.pca_lowrank(v), ns.UnsupportedError, r"pca_lowrank of a 1-dimensional tensor: give a matrix"),
    "singular values": (lambda: ns.svd_lowrank(v), ns.UnsupportedError, r"svd_lowrank of a 1-dimensional tensor: give a matrix"),
    "a number's dimension": (lambda: ns.softmax(ns.from_torch(torch.tensor(1.0)), 0), ns.RangeError, r"softmax: dim=0 .*: use A\.reshape"),
    "a number's sum": (lambda: ns.sum(ns.from_torch(torch.tensor(1.0)), 0), ns.RangeError, r"sum: dim=0 of a 0-dim.*: use A\.reshape"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_of_wrong_arguments(name: str) -> None:
    call, kind, text = TEXTS[name]
    with pytest.raises(kind, match=text):
        call()


def test_errors_that_are_no_fault_of_arguments_are_raised_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr("numscorch.operators.other.select_coordinates", fail)
    with pytest.raises(KeyError, match="inside"):
        ns.flip(A, 0)


def test_in_place_functions_with_a_dense_result_raise_first() -> None:
    """They neither convert the tensor nor warn; a result that turns out to be dense is computed once."""
    B = A.clone()
    with ns.ledger() as led, warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("cos_", "exp_", "sigmoid_", "reciprocal_", "cumsum_"):
            with pytest.raises(ns.SizeError, match=f"{name} of .*: the result is dense"):
                getattr(B, name)(*[0] * (name == "cumsum_"))
    assert not led
    with ns.ledger() as led, pytest.raises(ns.SizeError, match=r"pow_ of .*: the result is dense"):
        B.pow_(-1)
    assert len(led) == 1
    assert torch.equal(B.to_dense(), torch.eye(3))
