"""Random einsums and statements with all reductions, masks and gradients, compared with dense torch: as Python, and a sample compiled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import reductions_oracle
from choices import any_choices
from format_families import FAMILIES
from random_reductions import DTYPES, LONGER, OPS, REDUCE, Case, GivenOperand, computed, random_case
from reductions_oracle import Wrong, check, failure
from scale import scaled

PARTS = 15
COMPILED = 4
VARIATIONS = 3  # cases with other values for each compiled case


def run(cases: list[Case]) -> None:
    """Check cases, and list those that fail."""
    failed = [f"{message[:800]}\n    {case}" for case in cases if (message := failure(case))]
    assert not failed, f"{len(failed)} of {len(cases)} cases\n" + "\n".join(failed)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_reductions_unjitted(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """There are 30,000 cases at full scale, run as Python with bounds checks and different choices of the schedule."""
    count = scaled(30_000 // PARTS)
    for seed in range(part * count, (part + 1) * count):
        any_choices(seed, fresh_plans)
        run([random_case(seed)])


@pytest.mark.filterwarnings("ignore:.* stores .* values for .* entries")
@pytest.mark.parametrize("part", range(COMPILED))
def test_random_reductions_compiled(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """There are 600 cases at full scale; each kernel computes several sets of operands."""
    count = scaled(600 // COMPILED // VARIATIONS)
    for seed in range(10**6 + part * count, 10**6 + (part + 1) * count):
        case = random_case(seed, LONGER)
        run([replace(case, seed=seed * VARIATIONS + at) for at in range(VARIATIONS)])


IN_BLOCKS = "(i, j) -> (i // 2: dense, j: compressed, i % 2: bitmap)"
REGRESSIONS = (
    Case("ij,jk,kl->il", ((3, 3), (1, 0), (0, 1)), ("strided", "(i, j) -> (j // 2: compressed, i: dense, j % 2: dense)", "ss"), "or_and",
         "float64", "distinct", 1, result=IN_BLOCKS),
    Case("ij,k->ij", ((4, 4), (4,)), ("ds", "s"), "min=", "float64", "distinct", 101073, grads=(0, 1)),
    Case("ij,k->ij", ((4, 4), (4,)), ("(i, j) -> (j: dense, i: identity)", "(i) -> (i // 2: dense, i % 2: compressed)"), "min=",
         "float64", "distinct", 101073, grads=(0, 1)),
    Case("ij,ik->ij", ((4, 2), (4, 4)), ("strided", "(i, j) -> (i: dense, j: fixed)"), "mean", "float32", "distinct", 1878,
         result="(i, j) -> (j: dense, i: dense)", grads=(0, 1)),
    Case("ij,k,j->ik", ((4, 4), (4,), (4,)), ("ds", "strided", "strided"), "max", "float64", "distinct", 15157, grads=(0, 1, 2)),
    Case("ij,k,j->ik", ((4, 2), (4,), (2,)), ("oo", "strided", "strided"), "min", "float32", "distinct", 22374, grads=(1, 2)),
    Case("ijk->j", ((0, 3, 3),), ("(i, j, k) -> (k: dense, j: identity, i: band(0, 1))",), "min", "float64", "distinct", 1388, result="d",
         grads=(0,), junk=7.0),
    Case("ijk,k->ij", ((3, 3, 3), (3,)),
         ("(i, j, k) -> (i // 2: dense, j: dense, i % 2: dense, k: compressed)", "(i) -> (i: compressed(ordered=False))"), "+=",
         "float32", "distinct", 23107, result="(i, j) -> (i % 2: dense, j: compressed, i // 2: dense)", grads=(1,)),
    Case("i->i", ((1,),), ("(i) -> (i: hash)",), "max", "float32", "small", 101102, result="(i) -> (i: bitmap)"),
)  # fmt: skip


@pytest.mark.parametrize("case", REGRESSIONS, ids=str)
def test_regressions(case: Case, fresh_plans: pytest.MonkeyPatch) -> None:
    any_choices(case.seed, fresh_plans)
    run([case])


def test_cases_cover_all_families() -> None:
    """3,000 cases contain all combinations of reductions and families of formats, with masks and gradients, and all kinds of values."""
    counts = Counter(tag for seed in range(3000) for tag in random_case(seed).tags())
    summed, families = ("reduced", "not reduced"), (*FAMILIES, "strided")
    expected = {f"{reduce}, {family}, {kind}" for reduce, family, kind in product((*REDUCE, *OPS), families, summed)}
    expected |= {f"gradient, {reduce}, {kind}" for reduce, kind in product((*REDUCE, *OPS), summed)}
    expected |= {f"gradient of {family}" for family in families} | {f"mask {family}" for family in FAMILIES}
    expected |= {f"mask, {reduce}" for reduce in REDUCE} | {f"mask, {kind}" for kind in summed} | {"gradient, mask True"}
    expected |= {f"result {family}" for family in families} | {f"dtype {dtype}" for dtype in DTYPES}
    expected |= {f"values {kind}" for kind in ("small", "unit", "inf", "nan", "distinct")} | {f"{count} operands" for count in (1, 2, 3)}
    expected |= {"size 0", "size 1", "broadcast", "junk", "statement", "einsum"}
    assert {tag: counts[tag] for tag in expected if counts[tag] < 3} == {}


def test_the_text_of_a_case_creates_it() -> None:
    for seed in range(200):
        case = random_case(seed)
        assert eval(str(case), {"Case": Case}) == case


def test_wrong_results_are_detected(plain: pytest.MonkeyPatch) -> None:
    case = Case("ij,jk->ik", ((2, 3), (3, 2)), ("ds", "strided"), "max", "float64", "distinct", 3)
    assert check(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reductions_oracle, "computed", lambda case: (computed(case)[0] + 1, *computed(case)[1:]))
        with pytest.raises(Wrong, match=r"^result is \[\["):
            check(case)


def test_wrong_gradients_are_detected(plain: pytest.MonkeyPatch) -> None:
    case = Case("ij,jk->ik", ((2, 3), (3, 2)), ("ds", "strided"), "max", "float64", "distinct", 3, grads=(0,))
    assert check(case)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reductions_oracle, "computed", _with_double_gradients)
        with pytest.raises(Wrong, match=r"^gradient of operand 0 is \[\["):
            check(case)


def _with_double_gradients(case: Case) -> tuple[Any, list[GivenOperand], GivenOperand | None]:
    """The same result, with a doubled gradient."""
    output, given, mask = computed(case)
    return 2 * output - output.detach(), given, mask
