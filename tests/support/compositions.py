"""Named formats and many compositions of levels."""

from __future__ import annotations

import numscorch as ns
from numscorch.ir.format import Format

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
    (i, j) -> (j: dense, i: hash)
    (i, j) -> (j: hash, i: hash)
    (i, j) -> (i: hash, j: dense)
    (i, j) -> (i // 2: dense, j: hash, i % 2: dense)
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
    (i, j, k) -> (i: dense, j: dense, k: hash)
    (i, j, k) -> (i: dense, k: hash, j: hash)
    (i, j, k) -> (i: compressed, j: dense, k: causal)
    (i, j, k, l) -> (i: dense, j: fixed, k: compressed, l // 2: dense, l % 2: bitmap)
"""


TRANSPOSED = [
    *(ns.Format("dss", (2, 0, 1)), ns.Format("sds", (1, 2, 0)), ns.Format("sss", (2, 1, 0)), ns.Format("ooo", (1, 0, 2))),
    ns.BCSR(2, 2).permuted((1, 0)),
]


def compositions() -> list[Format]:
    """Named formats, every kind of level, and mixes of levels up to order 4."""
    return [*NAMED, *map(Format, LETTERS.split()), *map(Format, MAPS.strip().splitlines()), *TRANSPOSED]
