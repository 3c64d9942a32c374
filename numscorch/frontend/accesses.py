"""Build the accesses of a statement: one variable for each index, or for each part of a split index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from .relayout import strides_with_last, with_last
from .requests import NAMES, OPERANDS, Operand, Request, row_major
from .splitting import Splitting


@dataclass(frozen=True, slots=True)
class Accesses:
    """A request with its operands, the formats in which sparse ones are read, the split of its indices, and all extents.

    ``formats`` maps the position of each sparse operand to its format. Methods add the extents of fresh variables to ``extents``.
    """

    request: Request
    operands: Sequence[Operand]
    formats: Mapping[int, Format]
    splitting: Splitting
    extents: dict[IndexVar, int]
    last: int | None = None  # contiguous dimension of the result; None stands for the last one
    padded: str | None = None  # index whose last block is allocated whole in the result

    def result_parts(self, result: Access) -> list[Part]:
        """For each index of the access to the result, the part of a dimension that it stands for."""
        return self.splitting.result_parts(self.request.subscripts.result, result.indices)

    def facts(self, stmt: Assignment, target: Target) -> Facts:
        """The facts that scheduling passes read: extents, counts, spreads, peaks and crossings."""
        used = {var: self.extents[var] for var in variables_in(stmt.rhs)}
        facts = Facts.of(used, self.counts(stmt.rhs), target.lanes(stmt.lhs.tensor.dtype), target)
        as_stored = {at: self.operands[at] for at, fmt in self.formats.items() if fmt == self.operands[at].format}
        spreads = tuple((NAMES[at], operand.spreads) for at, operand in as_stored.items() if max(operand.spreads, default=1) > 1)
        read = [(access, as_stored[at].peaks) for at, access in dict.fromkeys(self._read_sparse(stmt.rhs)) if at in as_stored]
        named = [(a.tensor.name, tuple((a.level_var(level), peak) for level, peak in enumerate(peaks))) for a, peaks in read if any(peaks)]
        crossings = tuple((NAMES[at], operand.crossings) for at, operand in as_stored.items() if set(operand.crossings) != {1.0})
        return replace(facts, spreads=spreads, peaks=tuple(named), crossings=crossings)

    def _read_sparse(self, value: Expr) -> list[tuple[int, Access]]:
        """The accesses to sparse operands, each with the operand's position. Implicit patterns have longer names, such as WX."""
        sparse = [access for access in accesses_in(value) if access.tensor.name in OPERANDS and not access.tensor.is_dense]
        return [(NAMES.index(access.tensor.name), access) for access in sparse]

    def statement(self, dtype: str, may_keep: bool) -> Assignment:
        """The request as an assignment with a dense result; the result's format is chosen later."""
        subscripts = self.request.subscripts
        factors = [self.factor(at) for at in range(len(self.operands))]
        value = product([self._value(factors, dtype), *self.splitting.edges(self.extents, self.padded)])
        indices = self.splitting.access(subscripts.result)
        inner = {var for name in self.splitting.parts for var in self.splitting.variables(name)[1:]}
        indices = tuple(sorted(indices, key=lambda var: var in inner))
        keeper = self._keeper(value) if may_keep else None
        if keeper is not None and not self.formats[keeper].is_plain:
            indices = next(f for f in factors[keeper] if isinstance(f, Access)).indices
        return Assignment(Access(TensorVar(NAMES[len(self.operands)], dense(len(indices)), dtype), indices), value, self.request.op)

    def with_strides(self, stmt: Assignment, shape: Sequence[int]) -> tuple[Assignment, dict[str, tuple[int, ...]]]:
        """The statement with the stride letters of its dense result, and the strides of all dense tensors by name."""
        terms = enumerate(zip(self.request.subscripts.operands, self.operands, strict=True))
        strides = {NAMES[at]: self._strides(names, op, self.formats.get(at)) for at, (names, op) in terms}
        result = stmt.lhs.tensor
        if not result.is_dense:
            return stmt, strides
        names = self.request.subscripts.result
        last = len(shape) - 1 if self.request.form.spaced else self.last
        strided = zip(*self.strided(names, shape, strides_with_last(shape, last)), strict=True)
        by_variable = dict(zip(self.splitting.access(names), strided, strict=True))
        size_and_stride = [by_variable[var] for var in stmt.lhs.indices]
        strides[result.name] = tuple(stride for _, stride in size_and_stride)
        letters = letters_of([size for size, _ in size_and_stride], strides[result.name])
        return replace(stmt, lhs=stmt.lhs.with_changes(strides=letters)), strides

    def _strides(self, names: Sequence[str], operand: Operand, fmt: Format | None) -> tuple[int, ...]:
        if fmt is None:
            return self.strided(names, operand.shape, operand.strides)[1]
        return _dense_strides(fmt, operand.shape) if fmt.is_full else ()

    def _value(self, factors: list[list[Expr]], dtype: str) -> Expr:
        """The computed expression, with the given factors in place of the operands."""
        request = self.request
        if request.mask is not None:
            factors[request.mask] = [_as_pattern_access(factors[request.mask][0])]
        if request.value is None:
            return product([factor for each in factors for factor in each])

        def read(access: Access) -> Expr:
            factor = factors[NAMES.index(access.tensor.name)]
            return product(factor if access.tensor.has_values else [_as_pattern_access(factor[0]), *factor[1:]])

        return with_dtype(mapped(request.value, read), dtype)

    def may_be_padded(self) -> str | None:
        """The index of the result's largest stride, if a dense product may be padded along it; else None.

        Exactly one operand must have the index, and must store it in blocks that do not divide its size. A result that is
        padded to whole blocks needs no edge check.
        """
        request, names = self.request, self.request.subscripts.result
        if not names or request.value is not None or request.op != "=" or request.mask is not None:
            return None
        ordered_names = with_last(names, self.last) if self.last is not None else names
        first = next((name for name in ordered_names if self.extents[IndexVar(name)] != 1), None)
        parts = self.splitting.parts.get(first, ()) if first is not None else ()
        users = [indices for indices in request.subscripts.operands if first in indices]
        if first is None or len(parts) != 2 or len(users) != 1 or users[0].count(first) != 1:
            return None
        return first if self.extents[IndexVar(first)] % parts[0].divisor else None

    def _keeper(self, value: Expr) -> int | None:
        """The operand whose pattern the result can keep; None unless there is exactly one."""
        subscripts, mask = self.request.subscripts, self.request.mask
        names = enumerate(zip(subscripts.operands, self.operands, strict=True))
        sorted_result = sorted(subscripts.result)
        candidates = [at for at, (indices, op) in names if not op.format.is_dense and sorted(indices) == sorted_result and at != mask]
        patterns = {access.tensor.name for access in accesses_in(value) if not access.tensor.has_values}
        stored = [at for at in candidates if NAMES[at] in patterns]
        candidates = [mask] if mask is not None else stored or candidates
        candidates = [at for at in candidates if not self.formats[at].is_full]
        if len(candidates) != 1 or not is_zero(simplified(value, {NAMES[candidates[0]]})):
            return None
        return candidates[0]

    def factor(self, at: int) -> list[Expr]:
        """The factors for an operand: its access, and identity patterns for an index that a sparse operand repeats."""
        operand, names, fmt = self.operands[at], self.request.subscripts.operands[at], self.formats.get(at)
        if (owner := self._owner(at)) is not None:
            beside = TensorVar(NAMES[at], dense(len(names)), operand.dtype, operand.index_dtype, shares=NAMES[owner])
            return [Access(beside, tuple(map(IndexVar, names)))]
        if fmt is None:
            variables = self.splitting.access(names)
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
        """An earlier operand with the same pattern and indices; this operand's values are then read at the entries of that operand.

        None if the operand needs its own loop: its unstored entries contribute to the result, or an inferred result format
        could depend on both operands.
        """
        owner, request = self.operands[at].beside, self.request
        if owner is None or request.subscripts.result or request.op not in ("=", "+=") or request.mask is not None:
            return None
        names, fmt = request.subscripts.operands[at], self.formats[at]
        has_full_sizes = all(self.extents[IndexVar(name)] == size for name, size in zip(names, self.operands[at].shape, strict=True))
        has_same_access = names == request.subscripts.operands[owner] and fmt == self.formats[owner] and len(set(names)) == len(names)
        if not (has_full_sizes and has_same_access) or not fmt.is_plain or fmt.is_full:
            return None
        is_read = all(a.tensor.has_values for a in accesses_in(request.expr) if a.tensor.name == NAMES[at])
        return owner if is_read and is_zero(simplified(request.expr, {NAMES[owner]})) else None

    def strided(self, names: Sequence[str], shape: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes and strides of a dense tensor whose dimensions are split; every part of a broadcast dimension has size 1."""
        sizes: list[int] = []
        for name, size in zip(names, shape, strict=True):
            parts = self.splitting.variables(name)
            sizes += [1] * len(parts) if size == 1 else [self.extents[var] for var in parts] if len(parts) > 1 else [size]
        return tuple(sizes), self.splitting.strides(names, strides)

    def _sparse(self, tensor: TensorVar, names: Sequence[str], operand: Operand) -> list[Expr]:
        """Rewrite A[i,i] to A[i,i_1] times an identity, and sum over a broadcast dimension (size 1) with a fresh index."""
        indices = list(map(IndexVar, names))
        identities: list[Expr] = []
        for level, dimension in enumerate(tensor.format.mode_order):
            var = indices[dimension]
            outer = [indices[tensor.format.mode_order[up]] for up in range(level)]
            if operand.shape[dimension] == 1 and self.extents[var] != 1:
                indices[dimension] = self._fresh(var, 1)
            elif var in outer:
                indices[dimension] = self._fresh(var, self.extents[var])
                eye = TensorVar(f"I{len(identities)}{tensor.name}", Format((Dense(), Identity())), RELATION)
                identities.append(Access(eye, (var, indices[dimension])))
        return [Access(tensor, tuple(indices)), *identities]

    def _fresh(self, var: IndexVar, extent: int) -> IndexVar:
        number = 1
        while (fresh := IndexVar(f"{var}_{number}")) in self.extents:
            number += 1
        self.extents[fresh] = extent
        return fresh

    def counts(self, value: Expr) -> dict[str, tuple[Format, tuple[int, ...]]]:
        """Format and number of positions in each level, by sparse operand; estimated if an operand is read in another format."""
        return {NAMES[at]: (access.tensor.format, self._counts_of(at, access)) for at, access in self._read_sparse(value)}

    def _counts_of(self, at: int, access: Access) -> tuple[int, ...]:
        operand, counts, capacity = self.operands[at], list[int](), 1
        if self.formats[at] == operand.format:
            return operand.counts
        for at, level in enumerate(access.tensor.format.levels):
            capacity *= self.extents[access.level_var(at)]
            counts.append(capacity if level.full else min(capacity, operand.counts[-1]))
        return tuple(counts)


def _as_pattern_access(factor: Expr) -> Expr:
    """The access to an operand's pattern alone; any other factor unchanged."""
    return factor.with_changes(dtype=PATTERN) if isinstance(factor, Access) else factor


def _dense_strides(fmt: Format, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a format whose levels are all dense: one for each dimension, or for each level if dimensions are split."""
    strides = row_major(fmt.sizes(shape))
    return tuple(strides[fmt.mode_order.index(d)] for d in range(fmt.order)) if fmt.is_plain else strides


def letters_of(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Stride letters of a dense tensor: "0" for a broadcast dimension or size 1, "1" for a contiguous one, else "n".

    >>> letters_of((3, 1, 4), (4, 4, 1))
    'n01'
    """
    pairs = zip(sizes, strides, strict=True)
    return "".join("0" if size == 1 or (stride == 0 and size > 1) else "1" if stride == 1 else "n" for size, stride in pairs)
