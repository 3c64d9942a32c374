"""einsum over numpy's whole grammar: thousands of calls, well formed and spoiled, agree with ``numpy.einsum``.

What numpy takes has numpy's answer, and what it refuses is refused by an error of ours. The differences are on purpose:

* Tabs and line ends are spaces; numpy takes spaces only.
* A diagonal over the sizes 0 and 1 is refused; numpy gives it an entry, which no operand has.
* What an ellipsis hides is summed over where the result lacks it, as by torch; numpy refuses that.
* Without a sparse operand the call is torch's, errors included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from grammar import Call, random_call, spoiled_call
from scale import scaled

import numscorch as ns
from numscorch.compute.operands import call_form
from numscorch.frontend.parser import parse_einsum
from numscorch.tensors.validate import validate


def outcome(call: Call) -> np.ndarray | Exception:
    """numpy's answer or its error."""
    try:
        expected = call.with_torch() if hides_a_sum(call) else call.with_numpy()
    except Exception as error:
        return error
    return expected if _has_its_diagonals(call) else ValueError("a diagonal over two sizes")


def hides_a_sum(call: Call) -> bool:
    """Whether the result lacks the ellipsis, over whose dimensions torch sums; numpy refuses that."""
    if call.text is None:
        return isinstance(call.result, tuple) and ... not in call.result and any(isinstance(t, tuple) and ... in t for t in call.terms)
    left, arrow, right = call.text.partition("->")
    return bool(arrow) and "..." in left and "..." not in right


def _has_its_diagonals(call: Call) -> bool:
    """Whether each index has one size within an operand, in a call that numpy takes."""
    first, *others = call.arguments(call.arrays)
    text, _ = call_form(first, tuple(others))
    names = parse_einsum(text, tuple(a.ndim for a in call.arrays)).operands
    return all(len(set(zip(term, a.shape, strict=True))) == len(set(term)) for term, a in zip(names, call.arrays, strict=True))


def check(call: Call) -> None:
    """It fails unless we do what numpy does."""
    expected = outcome(call)
    if isinstance(expected, Exception):
        if not call.is_dense:
            refuses(call, expected)
        return
    result = call.with_numscorch()
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
    dense: Any = result.to_dense() if isinstance(result, ns.SparseTensor) else result
    np.testing.assert_array_equal(np.asarray(dense), expected, err_msg=str(call), strict=True)


def refuses(call: Call, because: Exception) -> None:
    """It fails unless we refuse the call with an error of ours."""
    try:
        call.with_numscorch()
    except (ns.ExpressionError, ns.SizeError):
        return
    pytest.fail(f"numpy refuses, numscorch doesn't: {because}\n{call}")


@pytest.mark.parametrize("part", range(10))
def test_calls_agree_with_numpy(part: int, plain: None) -> None:
    """Un-jitted: 5,000 in all at full scale."""
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        check(random_call(seed))


@pytest.mark.parametrize("part", range(10))
def test_spoiled_calls_agree_with_numpy(part: int, plain: None) -> None:
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        check(spoiled_call(seed))


# -- what was found, shrunk and kept


DIAGONALS = {
    "of 1 and 3": ("ii->i", (1, 3)),
    "of 3 and 1, summed": ("ii", (3, 1)),
    "of 0 and 1": ("ii->i", (0, 1)),
    "beside an ellipsis": ("...ii->...", (2, 1, 4)),
    "of 1, 3 and 1": ("iii->i", (1, 3, 1)),
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_a_size_of_1_does_not_stretch_along_a_diagonal(name: str, plain: None) -> None:
    """It gave way to the other size there, as between operands."""
    expr, shape = DIAGONALS[name]
    with pytest.raises(ns.SizeError, match="takes the diagonal of A, whose sizes differ there"):
        ns.einsum(expr, ns.from_torch(torch.ones(shape)))


def test_a_diagonal_of_one_entry_stretches(plain: None) -> None:
    one, x = ns.from_torch(torch.full((1, 1), 2.0)), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(ns.einsum("ii,i->i", one, x, format="dense"), 2 * x)


# -- where we differ on purpose


@pytest.mark.parametrize("expr", ["i j,\tj->i", "ij,j\n->i", "ij,j->i\r\n"])
def test_other_white_space_than_numpys(expr: str, plain: None) -> None:
    A, x = torch.ones(2, 3), torch.ones(3)
    with pytest.raises(ValueError, match="invalid subscript"):
        np.einsum(expr, A.numpy(), x.numpy())
    assert torch.equal(ns.einsum(expr, ns.from_torch(A), x), A @ x)


def test_dense_calls_are_torchs() -> None:
    with pytest.raises(ValueError, match=r"no '\.\.\.' ellipsis provided"):
        np.einsum("...i->i", np.ones((2, 3)))
    assert torch.equal(ns.einsum("...i->i", torch.ones(2, 3)), torch.full((3,), 2.0))
    assert torch.equal(ns.einsum("...i->i", ns.from_torch(torch.ones(2, 3))).to_dense(), torch.full((3,), 2.0))
