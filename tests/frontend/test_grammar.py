"""einsum and NumPy's grammar: thousands of valid and invalid calls agree with ``numpy.einsum``.

Results equal NumPy's, and calls that NumPy refuses raise an error of numscorch. Intended differences:

* Tabs and line ends are spaces; NumPy takes spaces only.
* A diagonal over the sizes 0 and 1 is refused; NumPy gives it an entry, although the operand has none.
* Dimensions of an ellipsis that the result lacks are summed over, as in torch; NumPy refuses them.
* Calls without sparse operands, and their errors, are torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense
from grammar import Call, random_call, spoiled_call
from scale import scaled

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.programs.operands import call_form
from numscorch.tensors.validate import validate


def outcome(call: Call) -> np.ndarray | Exception:
    """NumPy's result or its error."""
    try:
        expected = call.with_torch() if hides_a_sum(call) else call.with_numpy()
    except Exception as error:
        return error
    return expected if _has_its_diagonals(call) else ValueError("a diagonal over two sizes")


def hides_a_sum(call: Call) -> bool:
    """True if the result lacks the ellipsis, whose dimensions torch sums over and NumPy refuses."""
    if call.text is None:
        return isinstance(call.result, tuple) and ... not in call.result and any(isinstance(t, tuple) and ... in t for t in call.terms)
    left, arrow, right = call.text.partition("->")
    return bool(arrow) and "..." in left and "..." not in right


def _has_its_diagonals(call: Call) -> bool:
    """True if each index has one size within an operand, in a call that NumPy accepts."""
    first, *others = call.arguments(call.arrays)
    text, _ = call_form(first, tuple(others))
    names = parse_einsum(text, tuple(a.ndim for a in call.arrays)).operands
    return all(len(set(zip(term, a.shape, strict=True))) == len(set(term)) for term, a in zip(names, call.arrays, strict=True))


def check(call: Call) -> None:
    """Check that the result or the error agrees with NumPy's."""
    expected = outcome(call)
    if isinstance(expected, Exception):
        if not call.is_dense:
            check_refused(call, expected)
        return
    result = call.with_numscorch()
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
    dense: Any = as_dense(result)
    np.testing.assert_array_equal(np.asarray(dense), expected, err_msg=str(call), strict=True)


def check_refused(call: Call, numpy_error: Exception) -> None:
    """Check that numscorch refuses the call with an error of its types."""
    try:
        call.with_numscorch()
    except (ns.ExpressionError, ns.SizeError):
        return
    pytest.fail(f"numpy refuses, numscorch doesn't: {numpy_error}\n{call}")


@pytest.mark.parametrize("part", range(10))
def test_calls_agree_with_numpy(part: int, interpreted: None) -> None:
    """Kernels run as Python; there are 5,000 calls at full scale."""
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        check(random_call(seed))


@pytest.mark.parametrize("part", range(10))
def test_spoiled_calls_agree_with_numpy(part: int, interpreted: None) -> None:
    count = scaled(500)
    for seed in range(part * count, (part + 1) * count):
        check(spoiled_call(seed))


# ---- regressions


DIAGONALS = {
    "of 1 and 3": ("ii->i", (1, 3)),
    "of 3 and 1, summed": ("ii", (3, 1)),
    "of 0 and 1": ("ii->i", (0, 1)),
    "beside an ellipsis": ("...ii->...", (2, 1, 4)),
    "of 1, 3 and 1": ("iii->i", (1, 3, 1)),
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_a_size_of_1_is_not_broadcast_along_a_diagonal(name: str, interpreted: None) -> None:
    """Once, a size of 1 was broadcast along a diagonal, as between operands."""
    expr, shape = DIAGONALS[name]
    with pytest.raises(ns.SizeError, match="takes the diagonal of A, whose sizes differ there"):
        ns.einsum(expr, ns.from_torch(torch.ones(shape)))


def test_a_diagonal_of_one_entry_is_broadcast(interpreted: None) -> None:
    element, x = ns.from_torch(torch.full((1, 1), 2.0)), torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(ns.einsum("ii,i->i", element, x, format="dense"), 2 * x)


# ---- intended differences


@pytest.mark.parametrize("expr", ["i j,\tj->i", "ij,j\n->i", "ij,j->i\r\n"])
def test_tabs_and_line_ends_are_spaces(expr: str, interpreted: None) -> None:
    A, x = torch.ones(2, 3), torch.ones(3)
    with pytest.raises(ValueError, match="invalid subscript"):
        np.einsum(expr, A.numpy(), x.numpy())
    assert torch.equal(ns.einsum(expr, ns.from_torch(A), x), A @ x)


def test_dense_calls_are_torchs() -> None:
    with pytest.raises(ValueError, match=r"no '\.\.\.' ellipsis provided"):
        np.einsum("...i->i", np.ones((2, 3)))
    assert torch.equal(ns.einsum("...i->i", torch.ones(2, 3)), torch.full((3,), 2.0))
    assert torch.equal(ns.einsum("...i->i", ns.from_torch(torch.ones(2, 3))).to_dense(), torch.full((3,), 2.0))
