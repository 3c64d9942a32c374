"""Named formats and compositions of levels, as operands and results of many expressions, compared with dense tensors."""

from __future__ import annotations

import random
from itertools import product

import pytest
from compositions import NAMED, compositions
from scale import scaled

import numscorch as ns
from numscorch.interface.level_checks import EXPRESSIONS, RandomCheck, checks
from numscorch.ir.format import Format
from numscorch.ir.format_text import LEVELS
from numscorch.runtime import plans
from numscorch.schedule import tuning


def sample(count: int, start: int) -> list[RandomCheck]:
    """Random checks from the whole list."""
    candidates = list(checks(compositions(), start))
    random.Random(start).shuffle(candidates)
    while len(candidates) < count:
        start += 1
        candidates += checks(compositions(), start)
    return candidates[:count]


def test_the_list_covers_levels_and_orders() -> None:
    assert len({str(fmt) for fmt in compositions()}) >= 60 + len(NAMED)
    assert sum(map(len, EXPRESSIONS.values())) >= 40
    assert {level.spelling for fmt in compositions() for level in fmt.levels} == set(LEVELS)
    assert max(fmt.order for fmt in compositions()) == 4


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("part", range(10))
def test_formats_in_expressions(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0 if part % 2 else 1 << 16)
    with plans.uncompiled():
        stored = sum(check.run() for check in sample(scaled(2400), 1000 * part))
    assert stored > scaled(2000)


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("part", range(4))
def test_formats_in_compiled_expressions(part: int) -> None:
    count = scaled(130)
    assert sum(check.run() for check in sample(count, 77 + part)) >= 0.5 * count


DIAGONALS = [ns.DIA, Format("(i, j) -> (i - j: compressed, j: range, i: offset)")]
OUTER = [
    "R[i,j,k] = A[i,j] * S[k]",
    "R[i,j,k] = S[i] * A[j,k]",
    "R[i,j,k] = A[i,j] * S[j,k]",
    "R[i,j,k] = A[i,j] * S[i,k]",
    "R[i,k] = A[i,j] * S[j,k]",
]
PARTNERS: dict[int, list[Format]] = {
    1: [Format("s"), Format("(i) -> (i: hash)")],
    2: [ns.CSC, ns.COO(2), ns.ELL, Format("(i, j) -> (i: dense, j: hash)"), Format("(i, j) -> (i: dense, j: bitmap)"), ns.DIA],
}


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("text", [*OUTER, "R[i,j,k,l] = A[i,j] * S[k,l]", *(text.replace("S", "x") for text in OUTER[:2])])
def test_sparse_results_of_diagonals(text: str) -> None:
    """Results in several orders and formats, with sparse operands on either side, and with dense operands."""
    order, partners = text.split("=")[0].count(",") + 1, PARTNERS[1 if "S[k]" in text or "S[i]" in text else 2] if "S" in text else [ns.CSR]
    formats = [None, ns.COO(order), ns.CSF(order), Format("d" * (order - 1) + "s"), Format("d" * (order - 1) + "s", range(order)[::-1])]
    stored = 0
    with plans.uncompiled():
        for at, (partner, result) in enumerate(product(partners, formats)):
            left, right = text.split("=")[1].strip().split(" * ")
            swapped = text if at % 2 else f"{text.split('=')[0]}= {right} * {left}"
            stored += RandomCheck(swapped, {"A": DIAGONALS[at // 2 % 2]} | ({"S": partner} if "S" in text else {}), result, at).run()
    assert stored
