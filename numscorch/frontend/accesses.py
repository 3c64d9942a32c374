"""Accesses: how a statement reads its operands, each index or part of one a variable, and writes its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..ir.derived_formats import flattened
from ..ir.format import Format, dense
from ..ir.functions import is_zero, simplified
from ..ir.implicit import Identity
from ..ir.index import (
    PATTERN,
    RELATION,
    Access,
    Assignment,
    Binary,
    Expr,
    IndexVar,
    TensorVar,
    accesses_in,
    mapped,
    product,
    variables_in,
    with_dtype,
)
from ..ir.levels import Dense
from ..ir.parts import Part
from ..schedule.facts import Facts, Target
from .operand import Operand
from .relayout import strides_with_last, with_last
from .splitting import Splitting
from .statements import NAMES, Request


@dataclass(frozen=True, slots=True)
class Accesses:
    """A request's operands, the formats in which they are read, how variables are split, and all extents.

    Fresh variables enter their extents there.
    """

    request: Request
    operands: Sequence[Operand]
    formats: Sequence[Format | None]
    splitting: Splitting
    extents: dict[IndexVar, int]
    last: int | None = None  # the result's dimension that is contiguous, if it isn't its last
    padded: str | None = None  # the index with room for the whole of its last block in the result

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        return tuple(self.extents[IndexVar(name)] for name in self.request.subscripts.result)

    @property
    def parts(self) -> list[Part]:
        """What of the result's dimensions the indices of its access are."""
        return self.splitting.result_parts(self.request.subscripts.result)

    def facts(self, stmt: Assignment, target: Target) -> Facts:
        """What the passes may know."""
        used = {var: self.extents[var] for var in variables_in(stmt.rhs)}
        facts = Facts.of(used, self.counts(stmt.rhs), target.lanes(stmt.lhs.tensor.dtype), target)
        spreads = tuple((name, levels) for name, levels in self._spreads() if max(levels) > 1)
        return replace(facts, spreads=spreads, peaks=tuple(self._peaks(stmt.rhs)))

    def _spreads(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """How uneven the rows are of operands that are read as they are stored."""
        for at, operand in enumerate(self.operands):
            if operand.spreads and self.formats[at] == operand.format:
                yield NAMES[at], operand.spreads

    def _peaks(self, value: Expr) -> Iterator[tuple[str, tuple[tuple[IndexVar, int], ...]]]:
        """How many values of each operand share the most frequent coordinate of a variable, where there are many."""
        for access in dict.fromkeys(accesses_in(value)):
            at = NAMES.find(access.tensor.name) if len(access.tensor.name) == 1 else -1
            if at < 0 or access.tensor.is_dense or self.formats[at] != self.operands[at].format or not any(self.operands[at].peaks):
                continue
            peaks = self.operands[at].peaks
            yield access.tensor.name, tuple((access.level_var(level), peak) for level, peak in enumerate(peaks))

    def statement(self, dtype: str, may_keep: bool) -> Assignment:
        """The request as an assignment, whose result is dense for now."""
        subscripts = self.request.subscripts
        factors = [self.factor(at) for at in range(len(self.operands))]
        value = self._inside(self._value(factors, dtype))
        result = TensorVar(NAMES[len(self.operands)], dense(0), dtype)
        indices, _ = self.splitting.spread(subscripts.result, (0,) * len(subscripts.result))
        indices = tuple(sorted(indices, key=self._is_inner))
        keeper = self._keeper(value) if may_keep else None
        if keeper is not None and not (self.formats[keeper] or dense(0)).is_plain:
            indices = next(f for f in factors[keeper] if isinstance(f, Access)).indices
        return Assignment(Access(replace(result, format=dense(len(indices))), indices), value, self.request.op)

    def with_strides(self, stmt: Assignment, shape: Sequence[int]) -> tuple[Assignment, dict[str, tuple[int, ...]]]:
        """The statement with the strides of a dense result, and those of all dense tensors."""
        named = enumerate(zip(self.request.subscripts.operands, self.operands, strict=True))
        strides = {NAMES[at]: self._strides(names, op, self.formats[at]) for at, (names, op) in named}
        result = stmt.lhs.tensor
        if not result.is_dense:
            return stmt, strides
        names = self.request.subscripts.result
        variables, _ = self.splitting.spread(names, shape)
        last = len(shape) - 1 if self.request.form.spaced else self.last
        by_variable = dict(zip(variables, zip(*self.strided(names, shape, strides_with_last(shape, last)), strict=True), strict=True))
        moved = [by_variable[var] for var in stmt.lhs.indices]
        strides[result.name] = tuple(stride for _, stride in moved)
        letters = letters_of([size for size, _ in moved], strides[result.name])
        return replace(stmt, lhs=Access(replace(result, strides=letters), stmt.lhs.indices)), strides

    def _strides(self, names: Sequence[str], operand: Operand, fmt: Format | None) -> tuple[int, ...]:
        if fmt is None:
            return self.strided(names, operand.shape, operand.strides)[1]
        return _dense_strides(fmt, operand.shape) if fmt.is_full else ()

    def _is_inner(self, var: IndexVar) -> bool:
        return any(var in self.splitting.variables(name)[1:] for name in self.splitting.parts)

    def _value(self, factors: list[list[Expr]], dtype: str) -> Expr:
        """What is computed, of the operands as they are accessed."""
        request = self.request
        if request.mask is not None:
            factors[request.mask] = [_pattern(factors[request.mask][0])]
        if request.value is None:
            return product([factor for each in factors for factor in each])

        def read(access: Access) -> Expr:
            factor = factors[NAMES.index(access.tensor.name)]
            return product(factor if access.tensor.has_values else [_pattern(factor[0]), *factor[1:]])

        return with_dtype(mapped(request.value, read), dtype)

    def _inside(self, value: Expr) -> Expr:
        """The value within the edges of the dimensions: blocks that reach over them have places for values there, too."""
        for edge in self.splitting.edges(self.extents, self.padded):
            value = Binary("*", value, edge)
        return value

    def may_be_padded(self) -> str | None:
        """The index that moves slowest through a product's dense result, where just one operand has it, in blocks of which the last
        one reaches over its end: a result with room for that needs no look at where it ends.
        """
        request, names = self.request, self.request.subscripts.result
        if not names or request.value is not None or request.op != "=" or request.mask is not None:
            return None
        written = with_last(names, self.last) if self.last is not None else names
        first = next((name for name in written if self.extents[IndexVar(name)] != 1), None)  # a size of 1 moves nowhere
        parts = self.splitting.parts.get(first, ()) if first is not None else ()
        users = [indices for indices in request.subscripts.operands if first in indices]
        if first is None or len(parts) != 2 or len(users) != 1 or users[0].count(first) != 1:
            return None
        return first if self.extents[IndexVar(first)] % parts[0].divisor else None

    def _keeper(self, value: Expr) -> int | None:
        """The operand whose pattern the result keeps, if there is just one."""
        subscripts, mask = self.request.subscripts, self.request.mask
        names = enumerate(zip(subscripts.operands, self.operands, strict=True))
        wanted = sorted(subscripts.result)
        alike = [at for at, (indices, op) in names if not op.format.is_dense and sorted(indices) == wanted and at != mask]
        patterns = {access.tensor.name for access in accesses_in(value) if not access.tensor.has_values}
        stored = [at for at in alike if NAMES[at] in patterns]
        alike = [mask] if mask is not None else stored or alike
        alike = [at for at in alike if not (self.formats[at] or dense(0)).is_full]
        if len(alike) != 1 or not is_zero(simplified(value, {NAMES[alike[0]]})):
            return None
        return alike[0]

    def factor(self, at: int) -> list[Expr]:
        """An operand's access; a sparse one gets variables of its own where it broadcasts or repeats."""
        operand, names, fmt = self.operands[at], self.request.subscripts.operands[at], self.formats[at]
        if (owner := self._owner(at)) is not None:
            beside = TensorVar(NAMES[at], dense(len(names)), operand.dtype, operand.index_dtype, shares=NAMES[owner])
            return [Access(beside, tuple(map(IndexVar, names)))]
        if fmt is None:
            variables, _ = self.splitting.spread(names, operand.strides)
            letters = letters_of(*self.strided(names, operand.shape, operand.strides))
            return [Access(TensorVar(NAMES[at], dense(len(variables)), operand.dtype, strides=letters), variables)]
        flat, sizes = flattened(fmt), fmt.sizes(operand.shape)
        extents = operand.shape if fmt.is_plain else sizes
        strides = letters_of(extents, _dense_strides(fmt, operand.shape)) if fmt.is_full else ""
        tensor = TensorVar(NAMES[at], flat, operand.dtype, operand.index_dtype, strides)
        if fmt.is_plain:
            return self._sparse(tensor, names, operand)
        indices = tuple(self.splitting.level_variable(names, part) for part in fmt.parts)
        for var, size in zip(indices, sizes, strict=True):
            self.extents.setdefault(var, size)
        return [Access(tensor, indices)]

    def _owner(self, at: int) -> int | None:
        """The operand that has the same pattern and indices, beside whose entries this one's values are read; None if it is walked.

        What is not stored in either must not count, nor may an inferred format depend on both.
        """
        owner, request = self.operands[at].beside, self.request
        if owner is None or request.subscripts.result or request.op not in ("=", "+=") or request.mask is not None:
            return None
        names, fmt = request.subscripts.operands[at], self.formats[at]
        whole = all(self.extents[IndexVar(name)] == size for name, size in zip(names, self.operands[at].shape, strict=True))
        alike = names == request.subscripts.operands[owner] and fmt == self.formats[owner] and len(set(names)) == len(names)
        if not (whole and alike) or fmt is None or not fmt.is_plain or fmt.is_full:
            return None
        read = [] if request.value is None else [access.tensor for access in accesses_in(request.value) if access.tensor.name == NAMES[at]]
        annihilates = request.value is None or is_zero(simplified(request.value, {NAMES[owner]}))
        return owner if annihilates and all(tensor.has_values for tensor in read) else None

    def strided(self, names: Sequence[str], shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides of a dense tensor whose dimensions are split; a broadcast dimension doesn't move."""
        sizes: list[int] = []
        for name, size in zip(names, shape, strict=True):
            parts = self.splitting.variables(name)
            sizes += [1] * len(parts) if size == 1 else [self.extents[var] for var in parts] if len(parts) > 1 else [size]
        return tuple(sizes), self.splitting.spread(tuple(names), strides)[1]

    def _sparse(self, tensor: TensorVar, names: Sequence[str], operand: Operand) -> list[Expr]:
        """A[i,i] becomes A[i,i_1] times an identity; a dimension of size 1 is summed over instead of broadcast."""
        indices = list(map(IndexVar, names))
        identities: list[Expr] = []
        for level, dimension in enumerate(tensor.format.mode_order):
            var = indices[dimension]
            above = [indices[tensor.format.mode_order[up]] for up in range(level)]
            if operand.shape[dimension] == 1 and self.extents[var] != 1:
                indices[dimension] = self._fresh(var, 1)
            elif var in above:
                indices[dimension] = self._fresh(var, self.extents[var])
                eye = TensorVar(f"I{len(identities)}{tensor.name}", Format((Dense(), Identity())), RELATION)
                identities.append(Access(eye, (var, indices[dimension])))
        return [Access(tensor, tuple(indices)), *identities]

    def _fresh(self, var: IndexVar, extent: int) -> IndexVar:
        number = 1
        while IndexVar(f"{var}_{number}") in self.extents:
            number += 1
        fresh = IndexVar(f"{var}_{number}")
        self.extents[fresh] = extent
        return fresh

    def counts(self, value: Expr) -> dict[str, tuple[Format, tuple[int, ...]]]:
        """How many positions the levels of each sparse operand have; those of another format than it is stored in are estimated."""
        extents = {}
        for access in accesses_in(value):
            at = NAMES.find(access.tensor.name) if len(access.tensor.name) == 1 else -1  # WX is a pattern's name, of blocks of X
            if at < 0 or access.tensor.is_dense:
                continue
            operand, fmt = self.operands[at], access.tensor.format
            counts = operand.counts if self.formats[at] == operand.format else self._estimated(access, operand.counts[-1])
            extents[access.tensor.name] = (fmt, counts)
        return extents

    def _estimated(self, access: Access, stored: int) -> tuple[int, ...]:
        counts, places = [], 1
        for at, level in enumerate(access.tensor.format.levels):
            places *= self.extents[access.level_var(at)]
            counts.append(places if level.full else min(places, stored))
        return tuple(counts)


def _pattern(factor: Expr) -> Expr:
    """An operand's access, of which only the pattern is read."""
    return replace(factor, tensor=replace(factor.tensor, dtype=PATTERN)) if isinstance(factor, Access) else factor


def _dense_strides(fmt: Format, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a format whose levels are all dense: of its dimensions, or, where it stores parts of these, of its levels."""
    strides = row_major(fmt.sizes(shape))
    return tuple(strides[fmt.mode_order.index(d)] for d in range(fmt.order)) if fmt.is_plain else strides


def letters_of(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """A letter for each dimension of a dense tensor: "0" where it doesn't move, "1" where it is contiguous, else "n".

    >>> letters_of((3, 1, 4), (4, 4, 1))
    'n01'
    """
    return "".join(map(_letter, sizes, strides))


def _letter(size: int, stride: int) -> str:
    if size == 1 or (stride == 0 and size > 1):
        return "0"
    return "1" if stride == 1 else "n"


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in values, of a contiguous tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
