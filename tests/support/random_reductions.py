"""Random einsums with every reduction, with implicit, split, padded and unordered formats, masks and gradients, against dense torch.

A case is a frozen dataclass with an evaluable ``str``. The reference follows the documentation of ``einsum`` and
docs/OPERATORS.md: all terms as one dense tensor, reduced and differentiated by torch. To test the ``numscorch`` package of
another folder:

    cd FOLDER && PYTHONPATH=. python .../tests/support/random_reductions.py --cases 3000 --seed 1
    cd FOLDER && PYTHONPATH=. python .../tests/support/random_reductions.py --case "Case('ij->i', ...)"
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import torch
from format_families import FAMILIES, FAMILY_OF, FAMILY_WEIGHTS, FORMATS, RESULTS, packed, with_junk
from torch import Tensor

import numscorch as ns

# ---- cases

REDUCE = ("sum", "mean", "max", "min", "prod", "any", "all", "min_plus", "max_plus", "or_and")
OPS = ("+=", "*=", "max=", "min=", "stored max=")  # reductions of evaluate
UNREAD = ("min plus=", "max plus=")  # unsupported operators of statements
SEMIRINGS = {"min_plus": inf, "max_plus": -inf, "min plus=": inf, "max plus=": -inf, "stored max=": -inf}  # identity of no terms
TESTS = ("any", "all", "or_and")
EXPRESSIONS = {
    1: ("ij->ij", "ij->ji", "ij->i", "ij->j", "ij->", "i->i", "i->", "ijk->ik", "ijk->kji", "ijk->j", "ijk->", "ii->i", "ii->"),
    2: (
        *("ij,ij->ij", "ij,ij->ij", "ij,ij->ji", "ij,i->ij", "ij,j->ij", "i,j->ij", "i,i->i", "ij,ji->ij", "ij,->ij"),
        *("ij,ij->i", "ij,ij->j", "ij,ij->", "ij,j->i", "ij,i->j", "ij,j->j", "i,i->", "i,j->", "ij,kj->ij", "ij,ik->ij", "ij,k->ij"),
        *("ij,jk->ik", "ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "ij,jk->ki", "ij,ik->jk", "ij,jk->ijk", "ij,ik->ijk", "ij,k->ijk"),
        *("ijk,k->ij", "ijk,ij->ijk", "ijk,jk->i", "ijk,ijk->ijk", "ijk,kl->ijl", "ij,kl->ijkl", "ij,kl->ijkl", "ij,kl->il"),
        *("i,jk->ijk", "i,jk->ijk", "ij,k->ijk", "ij,jk->ijk", "ii,ij->ij", "ij,jj->i"),
    ),
    3: (
        *("i,i,i->i", "ij,ij,ij->ij", "ij,i,j->ij", "i,j,ij->ij", "ij,ij,j->i", "ij,ij,ij->", "i,j,k->ijk", "ij,j,->ij", "ij,jk,ik->ijk"),
        *("ij,jk,ik->ik", "ik,jk,ij->ij", "ij,jk,kl->il", "ij,ik,k->i", "ij,ik,il->i", "ijk,j,k->i", "ij,jk,k->ik", "ij,k,j->ik"),
    ),
}
SIZES, SIZE_WEIGHTS = (0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 4, 2)
LONGER = (0, 1, 2, 5, 17, 33)  # sizes that fill vector registers
DTYPES = {"float64": torch.float64, "float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
KINDS = ("small", "small", "small", "unit", "inf", "nan")


@dataclass(frozen=True)
class Case:
    """An einsum, or a statement of ``evaluate`` if ``reduce`` ends with ``=``.

    Args:
        expr: the einsum; its terms are joined by ``joined``, always ``*`` except in statements.
        shapes, formats: shape and format of each operand; "strided" is a torch tensor.
        mask, result: formats of the mask and of the result, or None.
        grads: operands with compared gradients.
        kind: kind of the values: small integers, units (1 and -1), with some inf or nan, or distinct values without ties.
        junk: value at padding positions.
    """

    expr: str
    shapes: tuple[tuple[int, ...], ...]
    formats: tuple[str, ...]
    reduce: str
    dtype: str
    kind: str
    seed: int
    mask: str | None = None
    result: str | None = None
    grads: tuple[int, ...] = ()
    joined: str = "*"
    junk: float = 0.0

    def __str__(self) -> str:
        fields = [repr(getattr(self, name)) for name in ("expr", "shapes", "formats", "reduce", "dtype", "kind", "seed")]
        rest = {name: getattr(self, name) for name in ("mask", "result", "grads", "joined", "junk")}
        fields += [f"{name}={value!r}" for name, value in rest.items() if value != getattr(Case, name)]
        return f"Case({', '.join(fields)})"

    @property
    def terms(self) -> list[str]:
        return self.expr.split("->")[0].split(",")

    @property
    def indices(self) -> str:
        """Indices of the result."""
        return self.expr.split("->")[1]

    @property
    def is_statement(self) -> bool:
        return self.reduce.endswith("=")

    @property
    def text(self) -> str:
        """Text of the statement."""
        named = [f"{name}[{','.join(term)}]" if term else name for name, term in zip("ABC", self.terms, strict=False)]
        return f"R[{','.join(self.indices)}] {self.reduce} ".replace("[]", "") + f" {self.joined} ".join(named)

    def sizes(self) -> dict[str, int]:
        """Extent of each index; size 1 is broadcast."""
        extents: dict[str, int] = {}
        for term, shape in zip(self.terms, self.shapes, strict=True):
            for name, size in zip(term, shape, strict=True):
                extents[name] = size if extents.get(name, 1) == 1 else extents[name]
        return extents

    def tags(self) -> set[str]:
        """Tags for coverage statistics."""
        families = {FAMILY_OF.get(text, "strided") for text in self.formats}
        summed = "reduced" if set("".join(self.terms)) - set(self.indices) else "not reduced"
        tags = {f"reduce {self.reduce}", summed, f"dtype {self.dtype}", f"values {self.kind}", f"{len(self.formats)} operands"}
        tags |= {f"operand {family}" for family in families} | {f"{self.reduce}, {family}, {summed}" for family in families}
        tags |= {"statement"} if self.is_statement else {"einsum"}
        if self.mask:
            tags |= {"mask", f"mask {FAMILY_OF[self.mask]}", f"mask, {self.reduce}", f"mask, {summed}"}
        if self.result:
            tags |= {f"result {'strided' if self.result == 'dense' else FAMILY_OF[self.result]}"}
        if self.grads:
            tags |= {"gradient", f"gradient, {self.reduce}, {summed}"} | {f"gradient, mask {self.mask is not None}"}
            tags |= {f"gradient of {FAMILY_OF.get(self.formats[at], 'strided')}" for at in self.grads}
        sizes = self.sizes()
        stretched = any(
            sizes[n] != 1 for t, shape in zip(self.terms, self.shapes, strict=True) for n, s in zip(t, shape, strict=True) if s == 1
        )
        tags |= {f"size {size}" for size in sizes.values() if size < 2}
        return tags | {name for name, has in (("broadcast", stretched), ("junk", self.junk)) if has}


# ---- drawing


def random_case(seed: int, extents: Sequence[int] = SIZES) -> Case:
    """The case of a seed, with index extents drawn from ``extents``."""
    rng = random.Random(seed)
    is_statement = rng.random() < 0.28
    reduce = rng.choice(REDUCE) if not is_statement else rng.choice(OPS if rng.random() < 0.95 else UNREAD)
    expr = rng.choice(EXPRESSIONS[rng.choices((1, 2, 3), (3, 6, 2))[0]])
    terms = expr.split("->")[0].split(",")
    sizes = {name: rng.choices(extents, SIZE_WEIGHTS)[0] for name in expr if name.isalpha()}
    if rng.random() < 0.4:  # square shapes fit diagonal formats
        sizes = dict.fromkeys(sizes, rng.choices(extents, SIZE_WEIGHTS)[0])
    if len(sizes) > 3:
        sizes = {name: min(size, 3) for name, size in sizes.items()}
    shapes = tuple(_shape(rng, term, sizes) for term in terms)
    mask = _format(rng, len(expr.split("->")[1])) if not is_statement and rng.random() < 0.28 else None
    formats = _formats(rng, shapes, 0.05 if mask is None else 0.25)
    grads = tuple(at for at in range(len(terms)) if rng.random() < 0.7) if rng.random() < 0.45 else ()
    dtype = rng.choice(("float64", "float64", "float32", "float32", "float32", "int64", "bool"))
    if grads:
        dtype = rng.choice(("float64", "float64", "float32"))
    result = _result(rng, len(expr.split("->")[1])) if rng.random() < 0.35 else None
    case = Case(expr, shapes, formats, reduce, dtype, "small", seed, mask, result, grads, _joined(rng, reduce), rng.choice((0.0, 0.0, 7.0)))
    return _with_kind(case, "distinct" if grads else rng.choice(KINDS))


def _with_kind(case: Case, kind: str) -> Case:
    """The case with a kind of values that fits: no inf or nan in sums and products, and units in products."""
    dtype = case.dtype
    if case.reduce in ("prod", "*=") and kind != "distinct":
        kind = "unit"
    if kind in ("inf", "nan") and (case.reduce in ("sum", "mean", "+=") or not case.dtype.startswith("float") or case.joined == "-"):
        kind = "small"
    is_dense = all(FAMILY_OF.get(text, "dense") == "dense" for text in case.formats)  # such calls go to torch
    is_dense |= any(len(set(term)) < len(term) for term in case.terms)  # diagonals are dense
    if dtype == "bool" and (is_dense or case.reduce in SEMIRINGS or case.joined != "*" or case.is_statement):
        dtype = "int64"
    return replace(case, dtype=dtype, kind=kind)


def _joined(rng: random.Random, reduce: str) -> str:
    return rng.choice(("*", "*", "+", "-")) if reduce in ("+=", "*=", "max=", "min=") else "*"


def _shape(rng: random.Random, term: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """Shape of an operand, sometimes with a broadcast dimension of size 1."""
    return tuple(1 if rng.random() < 0.04 and term.count(name) == 1 else sizes[name] for name in term)


def _formats(rng: random.Random, shapes: Sequence[tuple[int, ...]], dense: float) -> tuple[str, ...]:
    """Formats of the operands. At least one is sparse, if any has dimensions, except in a share ``dense`` of all-dense cases."""
    formats = [_format(rng, len(shape)) or "strided" if rng.random() < 0.7 else "strided" for shape in shapes]
    if all(text == "strided" or FAMILY_OF[text] == "dense" for text in formats) and rng.random() >= dense:
        at = max(range(len(shapes)), key=lambda at: len(shapes[at]))
        while formats[at] == "strided" or FAMILY_OF[formats[at]] == "dense":
            formats[at] = _format(rng, len(shapes[at])) or "strided"
    return tuple(formats)


def _format(rng: random.Random, order: int) -> str | None:
    """A format of a random family, or None for scalars."""
    if order == 0:
        return None
    known = FORMATS[order]
    family = rng.choices(FAMILIES, FAMILY_WEIGHTS)[0]
    return rng.choice(known.get(family, known["plain"]))


def _result(rng: random.Random, order: int) -> str | None:
    if order == 0:
        return None
    known = FORMATS[order]
    return "dense" if rng.random() < 0.15 else rng.choice(known.get(rng.choice(RESULTS), known["plain"]))


# ---- operands


@dataclass(frozen=True)
class GivenOperand:
    """An operand: the argument for numscorch, its dense values, a mask of stored entries, and the leaf for gradients."""

    argument: Any
    values: Tensor
    stored: Tensor
    leaf: Tensor | None


def operand(case: Case, at: int) -> GivenOperand:
    """The operand at a position, or the mask for -1; each has a separate seed."""
    shape = case.shapes[at] if at >= 0 else tuple(case.sizes()[name] for name in case.indices)
    text = case.formats[at] if at >= 0 else str(case.mask)
    numbers = np.random.default_rng((case.seed, at + 1))
    full = _numbers(numbers, shape, case.kind if at >= 0 else "mask").to(DTYPES[case.dtype] if at >= 0 else torch.float32)
    if full.dtype == torch.int64 and case.reduce in SEMIRINGS:  # integers whose extreme is infinite
        limit = torch.iinfo(torch.int64).max if SEMIRINGS[case.reduce] > 0 else torch.iinfo(torch.int64).min
        full = torch.where(torch.from_numpy(np.asarray(numbers.random(shape) < 0.1)), limit, full)
    if at < 0 and numbers.random() < 0.2:
        full = full.to(torch.bool)
    if text == "strided":
        leaf = full.clone().requires_grad_(at in case.grads) if full.dtype.is_floating_point else full
        return GivenOperand(leaf, full, torch.ones(shape, dtype=torch.bool), leaf)
    A = packed(full, ns.Format(text), numbers)
    stored = A.with_values(torch.ones(A.values.shape, dtype=torch.bool)).to_dense()
    values = with_junk(A, case.junk) if case.junk else A.values
    leaf = values.detach().clone()
    leaf = leaf.requires_grad_() if at in case.grads and at >= 0 else leaf
    return GivenOperand(A.with_values(leaf), A.to_dense(), stored, leaf)


def _numbers(numbers: np.random.Generator, shape: tuple[int, ...], kind: str) -> Tensor:
    """Values of a kind, with some zeros; sometimes zeros only, so that an operand has no entries."""
    if kind != "distinct" and numbers.random() < 0.06:
        return torch.zeros(shape, dtype=torch.float64)
    if kind == "distinct":
        values = numbers.uniform(0.25, 2.0, shape) * numbers.choice((-1.0, 1.0), shape)
    elif kind == "unit":
        values = numbers.choice((-1.0, 1.0, 1.0), shape)
    elif kind == "mask":
        values = numbers.choice((5.0, -1.0, 0.0, np.nan), shape)
    else:
        values = numbers.choice((-3.0, -2.0, -1.0, 1.0, 2.0, 3.0), shape)
        if kind in ("inf", "nan"):
            values = np.where(numbers.random(shape) < 0.15, np.inf if kind == "inf" else np.nan, values)
    return torch.from_numpy(np.where(numbers.random(shape) < 0.08, 0.0, values))


def computed(case: Case) -> tuple[Any, list[GivenOperand], GivenOperand | None]:
    """Run a case; return the result of numscorch, the operands and the mask."""
    operands = [operand(case, at) for at in range(len(case.terms))]
    mask = operand(case, -1) if case.mask else None
    arguments = [item.argument for item in operands]
    if case.is_statement:
        return ns.evaluate(case.text, format=case.result, **dict(zip("ABC", arguments, strict=False))), operands, None
    result = ns.einsum(case.expr, *arguments, format=case.result, reduce=case.reduce, mask=None if mask is None else mask.argument)
    return result, operands, mask


# ---- command line


def unjitted() -> None:
    """Run all further kernels as Python with bounds checks."""
    from numscorch.codegen import kernel
    from numscorch.runtime import plans

    plans.PROCESS.build = kernel.build_plain


def main() -> None:
    """Run cases and print failures."""
    import argparse

    from reductions_oracle import failure

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--case", help="run this case, as it was printed")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    if not options.compiled:
        unjitted()
    cases = [eval(options.case)] if options.case else map(random_case, range(options.seed, options.seed + options.cases))
    failed = [case for case in cases if (message := failure(case)) and not print(f"{message[:1000]}\n    {case}", flush=True)]
    print(f"{len(failed)} failed with numscorch of {ns.__file__}")


if __name__ == "__main__":
    main()
