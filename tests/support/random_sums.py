"""Random long sums of 10^5 to 10^6 terms in all families of formats, with errors compared to torch.

A case is a frozen dataclass with an evaluable ``str``. The reference is the sum of the terms in float64. The error may be at most
``TIMES`` the error of ``torch.sum`` over the terms in the data type of the operands. To test the ``numscorch`` package of another
folder:

    cd FOLDER && PYTHONPATH=. python .../tests/support/random_sums.py --cases 40
    cd FOLDER && PYTHONPATH=. python .../tests/support/random_sums.py --case "SumCase('ij->j', ...)"
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

import numscorch as ns

TIMES = 10.0
FLOOR = 2.0  # minimum error of torch.sum, in units in the last place, in case it is exact by chance
MOST = 2_000_000  # elements of the largest operand
EXPRESSIONS = (
    *("ij->j", "ij->j", "ij->i", "ij->i", "ij->", "i->", "ijk->k", "ijk->i", "ijk->jk", "ijk->ij", "ijk->ik", "ijk->j"),
    *("ij,i->j", "ij,j->i", "ij,ij->j", "ij,ij->i", "ijk,ij->k", "ijk,j->ik"),
    *("ij,ik->jk", "ij,ik->jk", "ij,jk->ik", "ij,jk->ik", "ij,kj->ik", "ji,jk->ik"),
)
FORMATS = {
    1: ("s", "(i) -> (i: bitmap)"),
    2: (
        *("CSR", "CSC", "COO(2)", "DCSR", "BCSR(4, 4)", "ELL", "sd", "dd", "(i, j) -> (i: dense, j: bitmap)"),
        *("(i, j) -> (i: dense, j: hash)", "(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)"),
        "(i, j) -> (i: compressed, j: compressed(ordered=False))",
    ),
    3: ("COO(3)", "CSF(3)", "dss", "dds", "sds", "(i, j, k) -> (k: compressed, i: dense, j: compressed)"),
}
STRIDED = "strided"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
VALUES = ("equal", "positive")


@dataclass(frozen=True)
class SumCase:
    """An einsum with long sums.

    Args:
        expr: the einsum.
        sizes: extent of each index, in the order of the expression.
        formats: format of each operand; "strided" is a torch tensor.
        values: "equal" (0.1) or "positive" (random).
        density: share of nonzeros.
        uneven: whether sparse operands have one full line along the longest index and few other entries.
    """

    expr: str
    sizes: tuple[tuple[str, int], ...]
    formats: tuple[str, ...]
    values: str = "equal"
    dtype: str = "float32"
    density: float = 1.0
    uneven: bool = False
    seed: int = 0

    @property
    def terms(self) -> list[str]:
        return self.expr.split("->")[0].split(",")

    def operands(self) -> list[Tensor]:
        generator, sizes, out = torch.Generator().manual_seed(self.seed), dict(self.sizes), list[Tensor]()
        for term, text in zip(self.terms, self.formats, strict=True):
            shape = tuple(sizes[name] for name in term)
            full = torch.rand(shape, generator=generator, dtype=torch.float64) if self.values == "positive" else torch.full(shape, 0.1)
            if text != STRIDED and self.density < 1:
                kept = torch.rand(shape, generator=generator) < self.density
                if self.uneven:
                    kept[tuple(slice(None) if name == max(sizes, key=sizes.__getitem__) else 0 for name in term)] = True
                full = full * kept
            out.append(full.to(DTYPES[self.dtype]))
        return out


def random_case(seed: int) -> SumCase:
    """The case of a seed, with one long summed index, or sometimes two."""
    rng = random.Random(seed)
    expr = rng.choice(EXPRESSIONS)
    terms, result = expr.split("->")[0].split(","), expr.split("->")[1]
    names = list(dict.fromkeys("".join(terms)))
    summed = [name for name in names if name not in result]
    sizes = {name: rng.choice((1, 2, 3, 4, 8)) for name in names}
    count = rng.choice((100_000, 300_000, 1_000_000))
    if len(summed) > 1 and rng.random() < 0.5:
        sizes |= dict.fromkeys(summed[:2], int(count**0.5))
    else:
        sizes[rng.choice(summed)] = count
    while prod(sizes.values()) > MOST and (wide := [name for name in names if name in result and sizes[name] > 1]):
        sizes[wide[0]] = sizes[wide[0]] // 2
    formats = [rng.choice(FORMATS[len(term)]) for term in terms]
    if len(formats) > 1 and rng.random() < 0.7:
        formats[1] = STRIDED
    dtype = "float64" if rng.random() < 0.15 else "float32"
    density = rng.choice((1.0, 1.0, 0.5))
    values, uneven = rng.choice(VALUES), False
    if rng.random() < 0.3 and not any("hash" in text for text in formats) and (kept := [name for name in names if name in result]):
        uneven, density = True, 0.001
        sizes = dict.fromkeys(names, 1) | {rng.choice(kept): (wide := rng.choice((200, 400))), rng.choice(summed): MOST // wide}
    return SumCase(expr, tuple(sizes.items()), tuple(formats), values, dtype, density, uneven, seed)


def failure(case: SumCase) -> str | None:
    """Message if the error is too large, else None."""
    operands = case.operands()
    terms = _terms(case, operands)
    exact = torch.einsum(case.expr, *(operand.double() for operand in operands)) if case.dtype == "float32" else _exact(terms)
    allowed = TIMES * max(_error(terms.sum(-1), exact), FLOOR * torch.finfo(terms.dtype).eps)
    arguments = [value if text == STRIDED else ns.from_torch(value, text) for value, text in zip(operands, case.formats, strict=True)]
    result = ns.einsum(case.expr, *arguments)
    error = _error(result if isinstance(result, Tensor) else result.to_dense(), exact)
    return None if error <= allowed else f"a relative error of {error:.1e}, where {allowed:.1e} is allowed"


def _terms(case: SumCase, operands: list[Tensor]) -> Tensor:
    """All terms, with the terms of each sum in the last dimension."""
    result = case.expr.split("->")[1]
    names = "".join(dict.fromkeys("".join(case.terms)))
    summed = "".join(name for name in names if name not in result)
    spread = torch.einsum(f"{','.join(case.terms)}->{result}{summed}", *operands)
    return spread.reshape(*spread.shape[: len(result)], -1)


def _exact(terms: Tensor) -> Tensor:
    """Compensated pairwise sum of float64 terms."""
    low = torch.zeros_like(terms)
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms, low = (torch.nn.functional.pad(part, (0, 1)) for part in (terms, low))
        a, b = terms[..., ::2], terms[..., 1::2]
        total = a + b
        high = total - a
        low = low[..., ::2] + low[..., 1::2] + ((a - (total - high)) + (b - high))
        terms = total
    return (terms + low)[..., 0]


def _error(result: Tensor, exact: Tensor) -> float:
    """Largest relative error."""
    return float(((result.to(exact.dtype) - exact).abs() / exact.abs().clamp_min(1e-300)).max())


def main() -> None:
    """Run cases and print failures."""
    import argparse
    import time

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--case", help="run this case, as it was printed")
    parser.add_argument("--all", action="store_true", help="print every case, with its time")
    options = parser.parse_args()
    cases = [eval(options.case)] if options.case else [random_case(seed) for seed in range(options.seed, options.seed + options.cases)]
    failed = 0
    for case in cases:
        started, message = time.perf_counter(), failure(case)
        failed += message is not None
        if message or options.all:
            print(f"{time.perf_counter() - started:.1f} s   {message or 'passes'}\n    {case}", flush=True)
    print(f"{failed} of {len(cases)} failed with numscorch of {ns.__file__}")


if __name__ == "__main__":
    main()
