"""Random einsums under every reduction, with implicit, split, padded and unordered formats, masks and gradients, against dense torch.

A case is one frozen dataclass. It prints as a line that makes it again. The reference is the definition in the documentation of
``einsum`` and in docs/OPERATORS.md: all terms as one dense tensor, reduced by torch, and differentiated by torch. To run cases
against the ``numscorch`` in another folder:

    cd FOLDER && PYTHONPATH=. python .../tests/random_reductions.py --cases 3000 --seed 1
    cd FOLDER && PYTHONPATH=. python .../tests/random_reductions.py --case "Case('ij->i', ...)"
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

import numscorch as ns

# ---- formats, by the families in which faults were found

FORMATS: dict[int, dict[str, tuple[str, ...]]] = {
    1: {
        "plain": ("s",),
        "dense": ("d",),
        "unordered": ("(i) -> (i: compressed(ordered=False))", "(i) -> (i: hash)"),
        "padded": ("(i) -> (i: bitmap)", "(i) -> (i: fixed)"),
        "split": (
            "(i) -> (i // 2: dense, i % 2: compressed)",
            "(i) -> (i // 2: compressed, i % 2: dense)",
            "(i) -> (i // 2: dense, i % 2: bitmap)",
            "(i) -> (i // 2: dense, i % 2: causal)",
        ),
    },
    2: {
        "plain": ("ds", "ds", "ss", "oo", "sd", "(i, j) -> (j: dense, i: compressed)", "(i, j) -> (j: compressed, i: compressed)"),
        "dense": ("dd", "(i, j) -> (j: dense, i: dense)"),
        "implicit": (
            "(i, j) -> (i: dense, j: identity)",
            "(i, j) -> (i: compressed, j: identity)",
            "(i, j) -> (j: dense, i: identity)",
            "(i, j) -> (i: dense, j: band(1, 1))",
            "(i, j) -> (i: dense, j: band(0, 2))",
            "(i, j) -> (j: compressed, i: band(1, 0))",
            "(i, j) -> (i: dense, j: causal)",
            "(i, j) -> (j: dense, i: causal)",
            "(i, j) -> (j - i: compressed, i: range, j: offset)",
            "(i, j) -> (i - j: compressed, j: range, i: offset)",
        ),
        "split": (
            "(i, j) -> (i // 2: dense, j: dense, i % 2: compressed)",
            "(i, j) -> (i // 2: dense, j: dense, i % 2: bitmap)",
            "(i, j) -> (i // 2: dense, j: dense, i % 2: hash)",
            "(i, j) -> (i // 2: dense, j: compressed, i % 2: bitmap)",
            "(i, j) -> (j // 2: compressed, i: dense, j % 2: dense)",
            "(i, j) -> (j // 3: dense, i: compressed, j % 3: compressed)",
            "(i, j) -> (i: dense, j // 2: compressed, j % 2: dense)",
            "(i, j) -> (i: dense, j // 2: dense, j % 2: compressed)",
            "(i, j) -> (i // 2: dense, j // 2: compressed, i % 2: dense, j % 2: dense)",
            "(i, j) -> (i // 2: dense, j // 3: bitmap, i % 2: dense, j % 3: compressed)",
            "(i, j) -> (i % 2: dense, j: compressed, i // 2: dense)",
            "(i, j) -> (i // 2: dense, j // 2: identity, i % 2: dense, j % 2: dense)",
        ),
        "padded": (
            "(i, j) -> (i: dense, j: fixed)",
            "(i, j) -> (j: dense, i: fixed)",
            "(i, j) -> (i: dense, j: bitmap)",
            "(i, j) -> (j: compressed, i: bitmap)",
            "(i, j) -> (i: bitmap, j: dense)",
        ),
        "unordered": (
            "(i, j) -> (i: dense, j: compressed(ordered=False))",
            "(i, j) -> (j: compressed(ordered=False), i: compressed(ordered=False))",
            "(i, j) -> (i: dense, j: hash)",
            "(i, j) -> (j: hash, i: compressed)",
            "(i, j) -> (i: hash, j: hash)",
        ),
    },
    3: {
        "plain": ("sss", "ooo", "dss", "dds", "sds", "(i, j, k) -> (k: compressed, i: dense, j: compressed)"),
        "dense": ("ddd", "(i, j, k) -> (k: dense, i: dense, j: dense)"),
        "implicit": (
            "(i, j, k) -> (i: dense, j: dense, k: causal)",
            "(i, j, k) -> (i: compressed, j: identity, k: dense)",
            "(i, j, k) -> (i: dense, j: band(1, 1), k: compressed)",
            "(i, j, k) -> (k: dense, j: identity, i: band(0, 1))",
            "(i, j, k) -> (i: dense, j: compressed, k: identity)",
        ),
        "split": (
            "(i, j, k) -> (i // 2: dense, j: dense, i % 2: dense, k: compressed)",
            "(i, j, k) -> (k // 2: dense, i: compressed, j: dense, k % 2: bitmap)",
            "(i, j, k) -> (i: dense, j // 2: compressed, k: dense, j % 2: dense)",
        ),
        "padded": ("(i, j, k) -> (i: dense, j: fixed, k: dense)", "(i, j, k) -> (i: dense, j: bitmap, k: compressed)"),
        "unordered": ("(i, j, k) -> (i: dense, j: hash, k: dense)", "(i, j, k) -> (i: hash, j: compressed, k: compressed(ordered=False))"),
    },
    4: {"plain": ("ssss", "oooo"), "dense": ("dddd",)},
}
FAMILIES = ("implicit", "split", "padded", "unordered", "dense", "plain")
FAMILY_WEIGHTS = (5, 5, 3, 3, 2, 4)
FAMILY_OF = {text: family for of_order in FORMATS.values() for family, texts in of_order.items() for text in texts}
RESULTS = ("plain", "plain", "padded", "unordered", "split", "dense", "implicit")

# ---- what is asked

REDUCE = ("sum", "mean", "max", "min", "prod", "any", "all", "min_plus", "max_plus", "or_and")
OPS = ("+=", "*=", "max=", "min=", "stored max=", "min plus=", "max plus=")  # of evaluate
SEMIRINGS = {"min_plus": inf, "max_plus": -inf, "min plus=": inf, "max plus=": -inf, "stored max=": -inf}  # no term: the identity
TESTS = ("any", "all", "or_and")
EXPRESSIONS = {
    1: ("ij->ij", "ij->ji", "ij->i", "ij->j", "ij->", "i->i", "i->", "ijk->ik", "ijk->kji", "ijk->j", "ijk->", "ii->i", "ii->"),
    2: (
        *("ij,ij->ij", "ij,ij->ij", "ij,ij->ji", "ij,i->ij", "ij,j->ij", "i,j->ij", "i,i->i", "ij,ji->ij", "ij,->ij"),
        *("ij,ij->i", "ij,ij->j", "ij,ij->", "ij,j->i", "ij,i->j", "ij,j->j", "i,i->", "i,j->", "ij,kj->ij", "ij,ik->ij", "ij,k->ij"),
        *("ij,jk->ik", "ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "ij,jk->ki", "ij,ik->jk", "ij,jk->ijk", "ij,ik->ijk", "ij,k->ijk", "i,jk->ijk"),
        *("ijk,k->ij", "ijk,ij->ijk", "ijk,jk->i", "ijk,ijk->ijk", "ijk,kl->ijl", "ij,kl->ijkl", "ij,kl->il", "ii,ij->ij", "ij,jj->i"),
    ),
    3: (
        *("ij,ij,ij->ij", "ij,i,j->ij", "i,j,ij->ij", "ij,ij,j->i", "ij,ij,ij->", "i,j,k->ijk", "ij,j,->ij", "ij,jk,ik->ijk"),
        *("ij,jk,ik->ik", "ik,jk,ij->ij", "ij,jk,kl->il", "ij,ik,k->i", "ij,ik,il->i", "ijk,j,k->i", "ij,jk,k->ik", "ij,k,j->ik"),
    ),
}
SIZES, SIZE_WEIGHTS = (0, 1, 2, 3, 4, 5), (2, 3, 4, 5, 4, 2)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
KINDS = ("small", "small", "small", "unit", "inf", "nan")


@dataclass(frozen=True)
class Case:
    """One einsum, or one statement of ``evaluate`` where ``reduce`` ends with ``=``.

    Args:
        expr: the einsum; its terms are joined by ``joined``, which is other than ``*`` in statements only.
        shapes, formats: of each operand; the format "strided" is a torch tensor.
        mask, result: the formats of the mask and of the result, None for none.
        grads: the operands whose gradients are compared.
        kind: of the values: small integers, units (1 and -1), some inf or nan, or distinct ones, so that there are no ties.
        junk: what lies at positions of values that stand for no entry.
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
        """Of the result."""
        return self.expr.split("->")[1]

    @property
    def is_statement(self) -> bool:
        return self.reduce.endswith("=")

    @property
    def text(self) -> str:
        """The statement."""
        named = [f"{name}[{','.join(term)}]" if term else name for name, term in zip("ABC", self.terms, strict=False)]
        return f"R[{','.join(self.indices)}] {self.reduce} ".replace("[]", "") + f" {self.joined} ".join(named)

    def sizes(self) -> dict[str, int]:
        """The extent of each index; size 1 gives way to another one."""
        found: dict[str, int] = {}
        for term, shape in zip(self.terms, self.shapes, strict=True):
            for name, size in zip(term, shape, strict=True):
                found[name] = size if found.get(name, 1) == 1 else found[name]
        return found

    def tags(self) -> set[str]:
        """The families that it belongs to."""
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
        sizes = self.sizes().values()
        stretched = any(s == 1 and self.sizes()[n] != 1 for t, h in zip(self.terms, self.shapes, strict=True) for n, s in zip(t, h, strict=True))
        tags |= {"size 0"} & ({"size 0"} if 0 in sizes else set()) | ({"size 1"} if 1 in sizes else set())
        return tags | ({"broadcast"} if stretched else set()) | ({"junk"} if self.junk else set())


# ---- drawing


def random_case(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    is_statement = rng.random() < 0.25
    reduce = rng.choice(OPS if is_statement else REDUCE)
    expr = rng.choice(EXPRESSIONS[rng.choices((1, 2, 3), (3, 6, 2))[0]])
    terms = expr.split("->")[0].split(",")
    sizes = {name: rng.choices(SIZES, SIZE_WEIGHTS)[0] for name in expr if name.isalpha()}
    if rng.random() < 0.4:  # square, so that formats of diagonals fit
        sizes = dict.fromkeys(sizes, rng.choices(SIZES, SIZE_WEIGHTS)[0])
    if len(sizes) > 3:
        sizes = {name: min(size, 3) for name, size in sizes.items()}
    shapes = tuple(_shape(rng, term, sizes) for term in terms)
    formats = _formats(rng, shapes)
    grads = tuple(at for at in range(len(terms)) if rng.random() < 0.7) if rng.random() < 0.35 else ()
    dtype = rng.choice(("float64", "float64", "float32", "float32", "float32", "int64", "bool"))
    if grads:
        dtype = rng.choice(("float64", "float64", "float32"))
    mask = _format(rng, len(expr.split("->")[1])) if not is_statement and rng.random() < 0.3 else None
    result = _result(rng, len(expr.split("->")[1])) if rng.random() < 0.35 else None
    made = Case(expr, shapes, formats, reduce, dtype, "small", seed, mask, result, grads, _joined(rng, reduce), rng.choice((0.0, 0.0, 7.0)))
    return _with_kind(made, "distinct" if grads else rng.choice(KINDS))


def _with_kind(case: Case, kind: str) -> Case:
    """The case with values of this kind where they have a meaning: sums and products have no inf, and products small values."""
    dtype = case.dtype
    if case.reduce in ("prod", "*=") and kind != "distinct":
        kind = "unit"
    if kind in ("inf", "nan") and (case.reduce in ("sum", "mean", "+=") or not case.dtype.startswith("float") or case.joined == "-"):
        kind = "small"
    is_dense = all(FAMILY_OF.get(text, "dense") == "dense" for text in case.formats)  # and the call is torch's
    if dtype == "bool" and (is_dense or case.reduce in SEMIRINGS or case.joined != "*" or case.is_statement):
        dtype = "int64"
    return replace(case, dtype=dtype, kind=kind)


def _joined(rng: random.Random, reduce: str) -> str:
    return rng.choice(("*", "*", "+", "-")) if reduce in ("+=", "*=", "max=", "min=") else "*"


def _shape(rng: random.Random, term: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """Now and then size 1 where another operand may have more."""
    return tuple(1 if rng.random() < 0.04 and term.count(name) == 1 else sizes[name] for name in term)


def _formats(rng: random.Random, shapes: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """Of each operand; one at least has a sparse format, if one has dimensions."""
    made = [_format(rng, len(shape)) or "strided" if rng.random() < 0.7 else "strided" for shape in shapes]
    if all(text == "strided" or FAMILY_OF[text] == "dense" for text in made) and rng.random() < 0.95:
        at = max(range(len(shapes)), key=lambda at: len(shapes[at]))
        while made[at] == "strided" or FAMILY_OF[made[at]] == "dense":
            made[at] = _format(rng, len(shapes[at])) or "strided"
    return tuple(made)


def _format(rng: random.Random, order: int) -> str | None:
    """A format of a random family; None for a tensor without dimensions."""
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
class Given:
    """An operand: what numscorch takes, its dense values, and where it stores an entry."""

    taken: Any
    values: Tensor
    stored: Tensor
    leaf: Tensor | None


def operand(case: Case, at: int) -> Given:
    """The operand at a place, or the mask at -1; each has a seed of its own."""
    shape = case.shapes[at] if at >= 0 else tuple(case.sizes()[name] for name in case.indices)
    text = case.formats[at] if at >= 0 else str(case.mask)
    numbers = np.random.default_rng((case.seed, at + 1))
    full = _numbers(numbers, shape, case.kind if at >= 0 else "mask").to(DTYPES[case.dtype] if at >= 0 else torch.float32)
    if at < 0 and numbers.random() < 0.2:
        full = full.to(torch.bool)
    if text == "strided":
        leaf = full.clone().requires_grad_(at in case.grads) if full.dtype.is_floating_point else full
        return Given(leaf, full, torch.ones(shape, dtype=torch.bool), leaf)
    A = _packed(full, ns.Format(text), numbers)
    stored = A.with_values(torch.ones(A.values.shape, dtype=torch.bool)).to_dense()
    values = _with_junk(A, case.junk) if case.junk else A.values
    leaf = values.detach().clone()
    leaf = leaf.requires_grad_() if at in case.grads and at >= 0 else leaf
    return Given(A.with_values(leaf), A.to_dense(), stored, leaf)


def _numbers(numbers: np.random.Generator, shape: tuple[int, ...], kind: str) -> Tensor:
    """Values of a kind, which are 0 now and then."""
    if kind == "distinct":
        drawn = numbers.uniform(0.25, 2.0, shape) * numbers.choice((-1.0, 1.0), shape)
    elif kind == "unit":
        drawn = numbers.choice((-1.0, 1.0, 1.0), shape)
    elif kind == "mask":
        drawn = numbers.choice((5.0, -1.0, 0.0, np.nan), shape)
    else:
        drawn = numbers.choice((-3.0, -2.0, -1.0, 1.0, 2.0, 3.0), shape)
        if kind in ("inf", "nan"):
            drawn = np.where(numbers.random(shape) < 0.15, np.inf if kind == "inf" else np.nan, drawn)
    return torch.from_numpy(np.where(numbers.random(shape) < 0.08, 0.0, drawn))


def _packed(full: Tensor, fmt: ns.Format, numbers: np.random.Generator) -> ns.SparseTensor:
    """A tensor that stores some of the entries that the format has a place for, zeros among them."""
    shape = tuple(full.shape)
    places = np.argwhere(np.ones(shape)).T.reshape(len(shape), -1)
    kept = numbers.random(places.shape[1]) < numbers.choice((0.0, 0.3, 0.6, 1.0), p=(0.1, 0.3, 0.3, 0.3))
    kept &= _has_room(fmt, places, shape)
    places = places[:, kept]
    return ns.from_coo(places, full[tuple(torch.from_numpy(places))], shape).to(fmt)


def _has_room(fmt: ns.Format, places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which coordinates a format of implicit levels can store."""
    room = np.ones(places.shape[1], dtype=bool)
    for level, part, above in zip(fmt.levels[1:], fmt.parts[1:], fmt.parts[:-1], strict=True):
        coordinate, outer = part.of(places, shape), above.of(places, shape)
        if level.spelling == "identity":
            room &= coordinate == outer
        elif level.spelling == "causal":
            room &= coordinate <= outer
        elif level.spelling == "band":
            room &= (coordinate >= outer - level.lower) & (coordinate <= outer + level.upper)
    return room


def _with_junk(A: ns.SparseTensor, junk: float) -> Tensor:
    """The values of A, with this number where no entry lies."""
    count = A.values.numel()
    numbered = A.with_values(torch.arange(1.0, count + 1, dtype=torch.float64)).to_dense().flatten().long()
    reached = torch.zeros(count + 1, dtype=torch.bool).index_fill(0, numbered, True)[1:]
    return torch.where(reached.reshape(A.values.shape), A.values, torch.tensor(junk).to(A.dtype))


def made(case: Case) -> tuple[Any, list[Given], Given | None]:
    """The result of numscorch, the operands and the mask."""
    given = [operand(case, at) for at in range(len(case.terms))]
    mask = operand(case, -1) if case.mask else None
    taken = [own.taken for own in given]
    if case.is_statement:
        return ns.evaluate(case.text, format=case.result, **dict(zip("ABC", taken, strict=False))), given, None
    found = ns.einsum(case.expr, *taken, format=case.result, reduce=case.reduce, mask=None if mask is None else mask.taken)
    return found, given, mask


# ---- the reference: all terms as one dense tensor


@dataclass(frozen=True)
class Expected:
    """The dense result, and at which places it has a term; for the gradients, the dense leaves."""

    result: Tensor
    has_term: Tensor
    leaves: tuple[Tensor, ...]


def expected(case: Case, given: Sequence[Given]) -> Expected:
    """By the definition of the reduction. Truth values are computed as the numbers 0 and 1."""
    sizes, dtype = case.sizes(), DTYPES[case.dtype]
    summed = [name for name in dict.fromkeys("".join(case.terms)) if name not in case.indices]
    names = [*case.indices, *summed]
    leaves = tuple(own.values.clone().requires_grad_(at in case.grads) for at, own in enumerate(given))
    values = [_spread(v.long() if v.dtype == torch.bool else v, term, names, sizes) for v, term in zip(leaves, case.terms, strict=True)]
    stored = [_spread(own.stored, term, names, sizes) for own, term in zip(given, case.terms, strict=True)]
    there = torch.stack(stored).all(0)
    flat = (tuple(sizes[name] for name in case.indices), prod(sizes[name] for name in summed))
    there = there.reshape(*flat[0], flat[1])
    terms = _terms(case, values, stored).reshape(*flat[0], flat[1])
    if case.reduce in SEMIRINGS:
        terms = torch.where(there, terms, _limit(SEMIRINGS[case.reduce], terms.dtype))
    found = _reduced(case, terms, bool(summed))
    if case.reduce in TESTS or (case.dtype == "bool" and not _counts(case)):
        found = (found != 0).to(dtype)
    return Expected(found, there.any(-1), leaves)


def _counts(case: Case) -> bool:
    """Whether truth values are counted, as torch.sum does."""
    return case.reduce == "sum" and case.mask is None and len(case.terms) == 1 and "reduced" in case.tags()


def _spread(value: Tensor, term: str, names: Sequence[str], sizes: dict[str, int]) -> Tensor:
    """With a dimension for each index, the diagonal where an index repeats."""
    for name in dict.fromkeys(term):
        while term.count(name) > 1:
            first, second = term.index(name), term.rindex(name)
            value = value.diagonal(dim1=first, dim2=second).movedim(-1, first)
            term = term[:second] + term[second + 1 :]
    order = [term.index(name) for name in names if name in term]
    shape = [value.shape[term.index(name)] if name in term else 1 for name in names]
    return value.permute(order).reshape(shape).expand([sizes[name] for name in names])


def _terms(case: Case, values: Sequence[Tensor], stored: Sequence[Tensor]) -> Tensor:
    """An absent factor makes a product 0, whatever the other factors are; in a semiring factors are added up."""
    joined = "+" if case.reduce in SEMIRINGS and case.reduce != "stored max=" else case.joined
    if joined == "*":
        product = values[0].clone()
        for value in values[1:]:
            product = product * value
        return torch.where(torch.stack(list(stored)).all(0), product, torch.zeros((), dtype=product.dtype))
    found = values[0].clone()
    for value in values[1:]:
        found = found + value if joined == "+" else found - value
    return found


def _limit(value: float, dtype: torch.dtype) -> Tensor:
    """An infinity, or an integer's extreme number."""
    if dtype.is_floating_point:
        return torch.tensor(value, dtype=dtype)
    return torch.tensor(torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min, dtype=dtype)


def _reduced(case: Case, terms: Tensor, is_reduced: bool) -> Tensor:
    match case.reduce:
        case "sum" | "+=":
            return terms.sum(-1)
        case "mean":
            return terms.mean(-1)
        case "prod" | "*=":
            return terms.prod(-1)
        case "any" | "or_and":
            return (terms != 0).any(-1)
        case "all":
            return (terms != 0).all(-1)
    largest = case.reduce in ("max", "max=", "max_plus", "max plus=", "stored max=")
    if terms.shape[-1] == 0:
        limit = 0 if case.dtype == "bool" and largest else _limit(-inf if largest else inf, terms.dtype)
        return torch.zeros(terms.shape[:-1], dtype=terms.dtype) + limit
    return terms.amax(-1) if largest else terms.amin(-1)


# ---- comparing


class Wrong(AssertionError):
    """A result or a gradient is wrong."""


ALLOWED = (
    r"the mean of torch\.(int64|bool) values would be cut off to whole numbers",
    r"plus= of int\d+ values, which have no infinity for a result without terms",
    r"sums of truth values that aren't products: count with",
    r"has no place for the coordinates .*: use a compressed level",
    r"has no coordinate for each of the \d+ above: transpose it",
    r"expected = or \+=, \*=, max=, min=, found (min|max)",
    r"no gradient goes through a product of terms at a mask: multiply by the mask afterwards",
)
"""Refusals that are documented, by their messages."""


def check(case: Case) -> bool:
    """It raises unless the result and the gradients are right; False where the case is refused, as it is allowed to be."""
    try:
        found, given, mask = made(case)
    except ns.NumscorchError as error:
        if any(re.search(pattern, str(error)) for pattern in ALLOWED):
            return False
        raise
    wanted = expected(case, given)
    compare_result(case, found, wanted, mask)
    if case.grads:
        compare_gradients(case, found, wanted, given, mask)
    return True


def compare_result(case: Case, found: Any, wanted: Expected, mask: Given | None) -> None:
    """The values; of a sparse result of a semiring, or at a mask, also which places it stores."""
    result, kept = wanted.result.detach(), wanted.has_term if case.reduce in SEMIRINGS else None
    is_sparse = isinstance(found, ns.SparseTensor)
    dense = found.to_dense() if is_sparse else found
    dense = dense.detach()
    if dense.dtype != result.dtype or dense.shape != result.shape:
        raise Wrong(f"result is {tuple(dense.shape)} of {dense.dtype}, not {tuple(result.shape)} of {result.dtype}")
    if mask is not None:
        if not is_sparse and "dense" not in (case.result, FAMILY_OF.get(str(case.result)), FAMILY_OF[str(case.mask)]):
            raise Wrong("a mask gives a dense result")
        outside = torch.zeros_like(result)
        if case.reduce in SEMIRINGS:  # a dense result says so with the identity
            outside = torch.where(dense == _limit(SEMIRINGS[case.reduce], result.dtype), dense, outside)
        _compare("result at the mask", case, dense, torch.where(mask.stored, result, outside))
    if is_sparse:
        stored = found.with_values(torch.ones(found.values.shape, dtype=torch.bool)).to_dense()
        is_exact = FAMILY_OF.get(str(case.result), "plain") == "plain"
        if mask is not None:
            if (is_exact and case.result is None and not torch.equal(stored, mask.stored)) or not bool((stored | ~mask.stored).all()):
                raise Wrong(f"result stores {stored.int().tolist()} at a mask of {mask.stored.int().tolist()}")
        elif kept is not None:
            identity = _limit(SEMIRINGS[case.reduce], result.dtype)
            if is_exact and bool((stored & ~kept & (dense != identity)).any()):
                raise Wrong(f"result stores {dense.tolist()} where there are no terms: {kept.int().tolist()}")
            result = torch.where(kept | stored & (dense == identity), result, torch.zeros_like(result))
    if mask is None:
        _compare("result", case, dense, result)


def compare_gradients(case: Case, found: Any, wanted: Expected, given: Sequence[Given], mask: Given | None) -> None:
    """Of a weighted sum of what is finite; a sparse operand has a gradient where it stores an entry."""
    full = found.to_dense() if isinstance(found, ns.SparseTensor) else found
    chosen = wanted.result.detach().isfinite() & (wanted.has_term if case.reduce in SEMIRINGS else torch.ones_like(wanted.has_term))
    if mask is not None:
        chosen &= mask.stored
    weights = torch.from_numpy(np.random.default_rng((case.seed, 99)).uniform(0.5, 2.0, tuple(full.shape))).to(full.dtype)
    for result in (full, wanted.result):
        if result.requires_grad:
            torch.where(chosen, result * weights, torch.zeros((), dtype=result.dtype)).sum().backward()
    for at in case.grads:
        own, theirs = given[at], wanted.leaves[at].grad
        assert own.leaf is not None
        ours = torch.zeros_like(own.leaf) if own.leaf.grad is None else own.leaf.grad
        dense = own.taken.with_values(ours).to_dense() if isinstance(own.taken, ns.SparseTensor) else ours
        theirs = torch.zeros_like(dense) if theirs is None or case.reduce == "stored max=" else theirs
        _compare(f"gradient of operand {at}", case, dense, torch.where(own.stored, theirs, torch.zeros_like(theirs)))


def _compare(what: str, case: Case, found: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-4 if case.dtype == "float32" else 1e-9
    tolerance = 0.0 if not wanted.dtype.is_floating_point else tolerance
    if not torch.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise Wrong(f"{what} is {found.tolist()}, not {wanted.tolist()}")


# ---- from the command line


def failure(case: Case) -> str:
    """What is wrong; nothing where it is right, or refused as allowed."""
    try:
        check(case)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""


def fault(case: Case, told: str) -> str:
    """The fault that a failure belongs to: what makes it disappear decides."""
    if "which no loop binds" in told:
        return "S1: an index that no loop binds"
    if case.grads and not failure(replace(case, grads=())):
        return _fault_of_gradient(case, told)
    case = replace(case, grads=())
    if case.mask and FAMILY_OF[case.mask] != "plain" and not failure(replace(case, mask=FORMATS[len(case.indices)]["plain"][0])):
        return {"split": "W3: masks in split formats", "dense": "W4: dense masks", "implicit": "W4: implicit masks"}.get(
            FAMILY_OF[case.mask], f"other: masks, {FAMILY_OF[case.mask]}"
        )
    if "reorder()" in told:
        return "other: no order of loops" + (", split" if not failure(_without(case, "split")) else "")
    if case.reduce in SEMIRINGS and "not reduced" in case.tags():
        return "W1: semirings where nothing is reduced" + (" (stored max=)" if case.reduce == "stored max=" else "")
    if case.reduce in SEMIRINGS and any(len(set(term)) < len(term) for term in case.terms):
        return "other: diagonals under semirings"
    if "size 0" in case.tags():
        return "W8: reductions over size 0"
    if not failure(_without(case, "split")):
        return "W8: unstored places of split formats"
    families = sorted({FAMILY_OF.get(text, "strided") for text in case.formats})
    return f"other: {case.reduce}, {' '.join(families)}"


def _fault_of_gradient(case: Case, told: str) -> str:
    if "operands have data types" in told:
        return "other: gradients, the mask's data type"
    if "implicit" in {FAMILY_OF.get(text) for text in case.formats} and not failure(_without(case, "implicit")):
        return "W2: gradients of implicit levels"
    if case.mask:
        return "gradients at a mask"
    kind = "semirings" if case.reduce in SEMIRINGS else "prod" if case.reduce in ("prod", "*=") else case.reduce.rstrip("=")
    return f"gradients of {kind}, {'reduced' if 'reduced' in case.tags() else 'nothing reduced'}"


def _without(case: Case, family: str) -> Case:
    """The case with plain formats in place of those of a family."""
    plain = [FORMATS[len(shape)]["plain"][0] if FAMILY_OF.get(text) == family else text for text, shape in zip(case.formats, case.shapes)]
    return replace(case, formats=tuple(plain))


def unjitted() -> None:
    """Kernels run as Python from here on, with every access checked."""
    from numscorch.codegen import kernel
    from numscorch.runtime import dispatch

    dispatch.build = kernel.build_plain


def main() -> None:
    import argparse
    import collections
    import time

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first case's seed")
    parser.add_argument("--case", action="append", default=[], help="run this case, as printed, in place of random ones")
    parser.add_argument("--show", type=int, default=3, help="failures to show of each fault")
    parser.add_argument("--only", default="", help="show and count failures of this fault only")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    if not options.compiled:
        unjitted()
    print("numscorch of", ns.__file__, flush=True)
    cases: Sequence[Case] = [eval(text) for text in options.case]
    drawn: Callable[[int], Case] = (lambda at: cases[at]) if cases else (lambda at: random_case(options.seed + at))
    count, start = len(cases) or options.cases, time.perf_counter()
    hits: collections.Counter[str] = collections.Counter()
    for at in range(count):
        case = drawn(at)
        told = failure(case)
        name = fault(case, told) if told else "right or refused"
        hits[name] += 1
        if told and hits[name] <= options.show and options.only in name:
            print(f"--- {name}: {told[:600]}\n    {case}", flush=True)
    for name, number in hits.most_common():
        print(f"{number:6d}  {name}")
    print(f"{count} cases in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
