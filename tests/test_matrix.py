"""Every named format and many compositions of levels, as each operand and as the result, in many expressions, against dense tensors."""

from __future__ import annotations

import random
from itertools import product

import pytest
from scale import scaled

import numscorch as ns
from numscorch.ir.format import Format
from numscorch.ir.format_text import LEVELS
from numscorch.runtime import plans as dispatch
from numscorch.schedule import tuning
from numscorch.selfcheck import EXPRESSIONS, RandomCheck, checks

NAMED = [
    *(ns.CSR, ns.CSC, ns.DCSR, ns.DCSC, ns.ELL, ns.DIA, ns.BCSR(2, 2), ns.BCSR(2, 3), ns.BCSR(4, 1), ns.BCSR(1, 4)),
    *(ns.NM(2, 4), ns.NM(2, 4, 2), ns.NMG(2, 3, 1), ns.NMG(1, 2, 2), ns.COO(2), ns.COO(3), ns.COO(4), ns.CSF(3), ns.CSF(4)),
]
LETTERS = """
    s d o ds ss sd so os od dss sds sss ssd dds dsd sdd sso doo dos ood soo
    dsss ssss dsds ddss sdsd oooo ssoo ddds ssds sdss ssds dssd dood doss sods oood ossd dsoo
"""
MAPS = """
    (i) -> (i: bitmap)
    (i) -> (i // 2: compressed, i % 2: dense)
    (i) -> (i // 4: dense, i % 4: bitmap)
    (i) -> (i: fixed)
    (i, j) -> (j: dense, i: fixed)
    (i, j) -> (i: dense, j: bitmap)
    (i, j) -> (i: dense, j: compressed(bits=8))
    (i, j) -> (i: compressed(unique=False, bits=16), j: singleton(bits=8))
    (i, j) -> (i: dense, j // 4: compressed, j % 4: fixed(bits=8))
    (i, j) -> (i: bitmap, j: bitmap)
    (i, j) -> (i: compressed, j: bitmap)
    (i) -> (i: hash)
    (i, j) -> (i: dense, j: hash)
    (i, j) -> (j: hash, i: hash)
    (i, j) -> (i: hash, j: compressed)
    (i, j) -> (i: dense, j: compressed(ordered=False))
    (i, j) -> (j: compressed, i: compressed(ordered=False))
    (i, j) -> (i: compressed(unique=False), j: singleton(ordered=False))
    (i, j) -> (i: dense, j: band(6, 6))
    (i, j) -> (i: dense, j: band(1, 0))
    (i, j) -> (i: dense, j: causal)
    (i, j) -> (j: dense, i: causal)
    (i, j) -> (i: dense, j: identity)
    (i, j) -> (i: compressed, j: identity)
    (i, j) -> (i // 2: dense, j: compressed, i % 2: dense)
    (i, j) -> (i // 2: compressed, j // 2: compressed, j % 2: dense, i % 2: dense)
    (i, j) -> (i // 4: dense, i % 4 // 2: dense, j: compressed, i % 2: dense)
    (i, j) -> (j // 3: dense, i: compressed, j % 3: fixed)
    (i, j) -> (i: dense, j // 4: compressed, j % 4: bitmap)
    (i, j) -> (i // 2: dense, i % 2: dense, j: dense)
    (i, j) -> (i - j: compressed, j: range, i: offset)
    (i, j, k) -> (i: dense, j // 2: compressed, k // 2: compressed, j % 2: dense, k % 2: dense)
    (i, j) -> (j // 3: dense, i // 2: compressed, i % 2: dense, j % 3: dense)
    (i, j) -> (j: dense, i // 2: compressed, i % 2: dense)
    (i, j, k) -> (i: dense, j // 2: dense, k // 2: compressed, j % 2: dense, k % 2: dense)
    (i, j, k) -> (i // 2: dense, j // 3: compressed, i % 2: dense, j % 3: dense, k: dense)
    (i, j, k) -> (i: dense, k: dense, j: compressed)
    (i, j, k) -> (i: dense, k - j: compressed, j: range, k: offset)
    (i, j, k) -> (i: dense, j: dense, k: compressed(ordered=False))
    (i, j, k) -> (k: dense, i: fixed, j: compressed)
    (i, j, k) -> (i: dense, j // 2: hash, k: compressed, j % 2: dense)
    (i, j, k) -> (k // 4: dense, i: dense, j: compressed, k % 4: fixed)
    (i, j, k) -> (i: dense, j: dense, k: band(2, 2))
    (i, j, k) -> (i: bitmap, j: compressed, k: fixed)
    (i, j, k) -> (i: compressed, j: hash, k: dense)
    (i, j, k) -> (i: compressed, j: dense, k: causal)
    (i, j, k, l) -> (i: dense, j: fixed, k: compressed, l // 2: dense, l % 2: bitmap)
"""
TRANSPOSED = [
    *(ns.Format("dss", (2, 0, 1)), ns.Format("sds", (1, 2, 0)), ns.Format("sss", (2, 1, 0)), ns.Format("ooo", (1, 0, 2))),
    ns.BCSR(2, 2).permuted((1, 0)),
]


def compositions() -> list[Format]:
    """What has a name, every kind of level, and mixes of them up to order 4."""
    return [*NAMED, *map(Format, LETTERS.split()), *map(Format, MAPS.strip().splitlines()), *TRANSPOSED]


def sample(count: int, start: int) -> list[RandomCheck]:
    """So many checks, spread over the whole list."""
    listed = list(checks(compositions(), start))
    random.Random(start).shuffle(listed)
    while len(listed) < count:
        start += 1
        listed += checks(compositions(), start)
    return listed[:count]


def test_the_list_is_long_enough() -> None:
    assert len({str(fmt) for fmt in compositions()}) >= 60 + len(NAMED)
    assert sum(map(len, EXPRESSIONS.values())) >= 40
    assert {level.spelling for fmt in compositions() for level in fmt.levels} == set(LEVELS)
    assert max(fmt.order for fmt in compositions()) == 4


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("part", range(10))
def test_every_format_in_every_expression(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", 0 if part % 2 else 1 << 16)
    with dispatch.uncompiled():
        stored = sum(check.run() for check in sample(scaled(2400), 1000 * part))
    assert stored > scaled(2000)


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("part", range(4))
def test_a_sample_compiled(part: int) -> None:
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
    """In every order and format of a result, beside sparse partners in either order, and beside dense ones."""
    order, partners = text.split("=")[0].count(",") + 1, PARTNERS[1 if "S[k]" in text or "S[i]" in text else 2] if "S" in text else [ns.CSR]
    formats = [None, ns.COO(order), ns.CSF(order), Format("d" * (order - 1) + "s"), Format("d" * (order - 1) + "s", range(order)[::-1])]
    stored = 0
    with dispatch.uncompiled():
        for at, (partner, result) in enumerate(product(partners, formats)):
            left, right = text.split("=")[1].strip().split(" * ")
            swapped = text if at % 2 else f"{text.split('=')[0]}= {right} * {left}"
            stored += RandomCheck(swapped, {"A": DIAGONALS[at // 2 % 2]} | ({"S": partner} if "S" in text else {}), result, at).run()
    assert stored
