"""Build statements that copy a tensor's entries to another format, with different index variables on both sides.

``B[i1_by4, i0, i1_of4] = A[i0, i1] * Q1[i1, i1_by4, i1_of4]`` reads rows and writes blocks of columns. The factor Q1 stores
no values; it relates a column to its block. Loops run in the storage order of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..ir.derived_formats import flattened
from ..ir.format import Format
from ..ir.implicit import Difference, Joined, Quotient
from ..ir.index import RELATION, Access, Apply, Assignment, Binary, IndexVar, Literal, TensorVar, product, variables_in
from ..ir.level import Level
from ..ir.levels import Dense
from ..ir.parts import Part
from ..schedule.facts import AUTOMATIC, Facts, Options, Target
from ..schedule.loop_order import Orders
from .parser import Subscripts
from .problem import Problem, index_dtype_of
from .requests import NAMES, Form, Operand, Request

SOURCE, RESULT = NAMES[0], NAMES[1]


@lru_cache(maxsize=1024)
def copying(source: Format, target: Format | None, prunes: bool = False) -> Request:
    """The request that copies a tensor from one format to another; a target of None is a dense tensor. If ``prunes``, zeros are dropped."""
    names = tuple(f"i{dimension}" for dimension in range(source.order))
    subscripts = Subscripts((names,), names)
    if target is not None:
        return Request(subscripts, options=Options(order=_loops(source, target)), form=Form(copies=True, prunes=prunes))
    return Request(subscripts, options=Options(order=tuple(names[d] for d in source.mode_order)) if source.is_plain else AUTOMATIC)


def copy_problem(source: Operand, target: Format, machine: Target, prunes: bool) -> Problem:
    """The problem of a :func:`copying` request."""
    read = Access(TensorVar(SOURCE, flattened(source.format), source.dtype, source.index_dtype), _indices(source.format))
    written = TensorVar(RESULT, flattened(target), source.dtype, index_dtype_of([source], source.shape), prunes=prunes)
    zero = Literal(0.0, source.dtype)
    entry = Apply("where", (Binary("!=", read, zero), read, zero)) if prunes else read
    value = product([entry, *_renamings(source.format, target, source.shape)])
    parts = [*map(Part, range(len(source.shape))), *source.format.parts, *target.parts]
    extents = {variable(part): part.extent(source.shape) for part in parts}
    used, counts = {var: extents[var] for var in variables_in(value)}, {SOURCE: (read.tensor.format, source.counts)}
    peaks = ((SOURCE, tuple(zip(map(variable, source.format.parts), source.peaks, strict=True))),) if source.peaks else ()
    facts = replace(Facts.of(used, counts, machine.lanes(source.dtype), machine), peaks=peaks)
    stmt = Assignment(Access(written, _indices(target)), value)
    return Problem(stmt, facts, extents, "a copy", source.shape, target, {SOURCE: source.format}, {SOURCE: ()})


def can_be_copied(source: Format, target: Format) -> bool:
    """Whether one kernel can copy entries from one format to the other, in the source's storage order."""
    operand = Operand(source, (1,) * source.order, "float32", "int32", counts=(1,) * len(source.levels))
    problem, order = copy_problem(operand, target, Target(), False), copying(source, target).options.order
    return bool(Orders(problem.stmt, problem.facts, Target()).cheapest(1, order))


def variable(part: Part) -> IndexVar:
    """The index variable of a part of a dimension.

    >>> [str(variable(part)) for part in (Part(1), Part(1, 4), Part(1, 1, 4), Part(1, minus=0))]
    ['i1', 'i1_by4', 'i1_of4', 'i1_i0']
    """
    text = f"i{part.dimension}" + (f"_by{part.divisor}" if part.divisor > 1 else "") + (f"_of{part.modulus}" if part.modulus else "")
    return IndexVar(text if part.minus is None else f"{text}_i{part.minus}")


def _indices(format: Format) -> tuple[IndexVar, ...]:
    """The variables of a tensor's access: one for each dimension, or for each level if dimensions are split."""
    parts = [Part(dimension) for dimension in range(format.order)] if format.is_plain else format.parts
    return tuple(map(variable, parts))


def _loops(source: Format, target: Format) -> tuple[str, ...]:
    """The loop order: the variables of the source's levels, each followed by the variables that can be computed by then."""
    waiting, variables = _renamings(source, target, (1,) * source.order), list[IndexVar]()
    for part in source.parts:
        variables.append(variable(part))
        while determined := [access for access in waiting if _inputs(access) <= set(variables)]:
            waiting = [access for access in waiting if access not in determined]
            variables += [var for access in determined for var in access.indices if var not in variables]
    return tuple(var.name for var in variables)


def _inputs(access: Access) -> set[IndexVar]:
    """The variables from which a renaming factor computes its remaining variables."""
    return {access.level_var(at) for at, level in enumerate(access.tensor.format.levels) if level.full}


def _renamings(source: Format, target: Format, shape: Sequence[int]) -> list[Access]:
    """The factors that compute the parts of the target format from the parts of the source format."""
    new_parts = [part for part in target.parts if part not in source.parts]
    dimensions = {part.dimension for part in new_parts} | {part.minus for part in new_parts if part.minus is not None}
    accesses: list[Access] = []
    for dimension in sorted(dimensions):
        whole = Part(dimension)
        if whole not in source.parts:
            parts = sorted((p for p in source.parts if p.dimension == dimension and p.minus is None), key=lambda p: -p.divisor)
            uneven = shape[dimension] % parts[0].divisor != 0
            sizes = tuple(part.extent(shape) for part in parts[1:])
            accesses.append(_renaming(f"J{dimension}", [*parts, whole], [*(Dense(),) * len(parts), Joined(sizes, uneven)]))
        split = [part for part in new_parts if part.dimension == dimension and part.minus is None and not part.is_whole]
        if blocked := sorted(split, key=lambda part: -part.divisor):
            quotients = [Quotient(part.divisor, part.modulus) for part in blocked]
            accesses.append(_renaming(f"Q{dimension}", [whole, *blocked], [Dense(), *quotients]))
    diagonals = [(part, [Part(part.minus), Part(part.dimension), part]) for part in new_parts if part.minus is not None]
    return accesses + [_renaming(f"D{part.dimension}", parts, [Dense(), Dense(), Difference()]) for part, parts in diagonals]


def _renaming(name: str, parts: Sequence[Part], levels: Sequence[Level]) -> Access:
    return Access(TensorVar(name, Format.flat(levels), RELATION), tuple(map(variable, parts)))
