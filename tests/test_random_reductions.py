"""Random einsums and statements under every reduction, with masks and gradients, against dense torch."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import reductions_oracle
from format_families import FAMILIES
from random_reductions import DTYPES, OPS, REDUCE, Case, Given, made, random_case
from reductions_oracle import Wrong, check


def test_every_family_is_drawn() -> None:
    """Each reduction of each family of formats, reduced and not, at masks and with gradients, and each kind of value, in 3,000 cases."""
    drawn = Counter(tag for seed in range(3000) for tag in random_case(seed).tags())
    summed, families = ("reduced", "not reduced"), (*FAMILIES, "strided")
    wanted = {f"{reduce}, {family}, {own}" for reduce, family, own in product((*REDUCE, *OPS), families, summed)}
    wanted |= {f"gradient, {reduce}, {own}" for reduce, own in product((*REDUCE, *OPS), summed)}
    wanted |= {f"gradient of {family}" for family in families} | {f"mask {family}" for family in FAMILIES}
    wanted |= {f"mask, {reduce}" for reduce in REDUCE} | {f"mask, {own}" for own in summed} | {"gradient, mask True"}
    wanted |= {f"result {family}" for family in families} | {f"dtype {dtype}" for dtype in DTYPES}
    wanted |= {f"values {kind}" for kind in ("small", "unit", "inf", "nan", "distinct")} | {f"{count} operands" for count in (1, 2, 3)}
    wanted |= {"size 0", "size 1", "broadcast", "junk", "statement", "einsum"}
    assert {tag: drawn[tag] for tag in wanted if drawn[tag] < 3} == {}


def test_a_case_prints_the_line_that_makes_it_again() -> None:
    for seed in range(200):
        case = random_case(seed)
        assert eval(str(case), {"Case": Case}) == case


def test_a_wrong_result_is_told(plain: pytest.MonkeyPatch) -> None:
    case = Case("ij,jk->ik", ((2, 3), (3, 2)), ("ds", "strided"), "max", "float64", "distinct", 3)
    assert check(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reductions_oracle, "made", lambda case: (made(case)[0] + 1, *made(case)[1:]))
        with pytest.raises(Wrong, match=r"^result is \[\["):
            check(case)


def test_a_wrong_gradient_is_told(plain: pytest.MonkeyPatch) -> None:
    case = Case("ij,jk->ik", ((2, 3), (3, 2)), ("ds", "strided"), "max", "float64", "distinct", 3, grads=(0,))
    assert check(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reductions_oracle, "made", _with_double_gradients)
        with pytest.raises(Wrong, match=r"^gradient of operand 0 is \[\["):
            check(case)


def _with_double_gradients(case: Case) -> tuple[Any, list[Given], Given | None]:
    """The same result, whose gradient is twice as large."""
    found, given, mask = made(case)
    return 2 * found - found.detach(), given, mask
