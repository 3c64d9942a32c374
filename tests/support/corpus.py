"""Corpus of statements for tests of passes: many expressions, formats and mode orders, with small integer operands."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import product

import numpy as np
from cases import as_operand
from interpreter import run

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import Problem, make_problem
from numscorch.ir.format import COO, CSC, CSF, CSR, DCSC, DCSR, Format
from numscorch.ir.index import Stmt
from numscorch.runtime.plans import describe
from numscorch.schedule.facts import Facts, Target, rounded

TARGET = Target(32, 16)
SIZES = {"i": 3, "j": 4, "k": 5, "l": 2}
MATRICES = (CSR, CSC, COO(2), Format("oo", (1, 0)), DCSR, DCSC, Format("sd"), Format("sd", (1, 0)))
CUBES = (CSF(3), COO(3), Format("dss", (2, 0, 1)), Format("sds", (1, 2, 0)), Format("sso"), Format("dds", (2, 1, 0)))
# an expression, and for each operand whether it is sparse (S) or dense (d)
CORPUS: list[tuple[str, str]] = [
    ("ij,j->i", "Sd"), ("ij,i->j", "Sd"), ("ij,jk->ik", "Sd"), ("ij,jk->ik", "dS"), ("ij,jk->ki", "Sd"),
    ("ij,ij->ij", "Sd"), ("ij,i,j->ij", "Sdd"), ("ij->", "S"), ("ij->j", "S"), ("ij,ij->", "Sd"), ("ij,ik,jk->ij", "Sdd"),
    ("ii->", "S"), ("ii->i", "S"), ("ii,ij->j", "Sd"), ("ij,jk->ik", "SS"), ("ij,ij->ij", "SS"), ("ij,ji->", "SS"), ("ij,jk,kl->il", "SSd"),
    ("ij,jk,kl->il", "Sdd"), ("ijk,k->ij", "Sd"), ("ijk,kl->ijl", "Sd"), ("ijk,jl,kl->il", "Sdd"), ("ijk,ijk->", "Sd"), ("ijk->k", "S"),
    ("iji->j", "S"), ("iii->i", "S"), ("ijk,ij->k", "SS"), ("ijk,ijk->kji", "Sd"),
]  # fmt: skip


def formats_for(expr: str, kinds: str) -> list[tuple[Format | None, ...]]:
    """All formats for a single sparse operand, or a sample of combinations for several."""
    terms = expr.split("->")[0].split(",")
    choices = [[None] if kind == "d" else list(MATRICES if len(term) == 2 else CUBES) for term, kind in zip(terms, kinds, strict=True)]
    mixes = list(product(*choices))
    return mixes if len(mixes) <= 8 else random.Random(expr).sample(mixes, 10)


@lru_cache(maxsize=1)
def corpus() -> list[tuple[Problem, dict[str, np.ndarray]]]:
    """Problems with small random integer operands."""
    problems: list[tuple[Problem, dict[str, np.ndarray]]] = []
    for expr, kinds in CORPUS:
        terms = expr.split("->")[0].split(",")
        numbers = np.random.default_rng(len(problems))
        sizes = {**SIZES, **(dict.fromkeys(expr, 3) if any(len(set(t)) < len(t) for t in terms) or expr == "ij,ji->" else {})}
        for formats in formats_for(expr, kinds):
            arrays = [numbers.integers(-3, 4, [sizes[name] for name in term]).astype(np.float64) for term in terms]
            arrays = [a * (numbers.random(a.shape) < 0.6) if f else a for a, f in zip(arrays, formats, strict=True)]
            operands = [describe(as_operand(a, f)) for a, f in zip(arrays, formats, strict=True)]
            subscripts = parse_einsum(expr, tuple(a.ndim for a in arrays))
            try:
                problem = make_problem(subscripts, operands, TARGET)
            except ns.UnsupportedError:
                problem = make_problem(subscripts, operands, TARGET, "dense")
            expected = np.einsum(expr, *arrays)
            problems.append((problem, {**dict(zip("ABCD", arrays, strict=False)), "expected": expected}))
    return problems


def as_if_large(facts: Facts, rng: random.Random) -> Facts:
    """Random facts for the same expression, with other extents and counts."""
    extents = tuple((var, rounded(rng.choice((1, 3, 40, 1000, 50_000)))) for var, _ in facts.extents)
    counts = tuple((name, fmt, tuple(sorted(rounded(rng.choice((1, 50, 3000, 10**6))) for _ in cs))) for name, fmt, cs in facts.counts)
    return Facts(extents, counts, lanes=TARGET.lanes("float64"), exact=dict(extents))


def means(stmt: Stmt, problem: Problem, arrays: dict[str, np.ndarray]) -> None:
    """Check that the interpreted statement gives the result of numpy for the expression."""
    np.testing.assert_array_equal(run(stmt, arrays, problem.extents), arrays["expected"], err_msg=str(stmt))
