"""AssemblingBinder: writes the function of a plan whose result has a new pattern, computed by several kernels.

The function refuses a product of two sparse operands if its result exceeds a limit; the operands' index arrays give bounds of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..codegen.assembly import WORKSPACE, Param
from ..codegen.kernel import Kernel
from ..codegen.result_assembly import is_spaced
from ..codegen.workspaces import has_level
from ..frontend.problem import Problem
from ..frontend.requests import NAMES, Operand
from ..ir import index as ix
from ..ir.assembled import Bound, bound_of, is_placed
from ..ir.derived_formats import runs_of
from ..ir.functions import is_intersection
from ..ir.level import INT64_MAX
from ..ir.symbolic import text_of
from ..ir.workspace_levels import Hashed
from ..machine import memory
from ..schedule import tuning
from ..tensors.packing import level_coordinates
from ..tensors.pattern import Pattern
from .binder import Bind, Binder
from .blocks import leaf_starts
from .result_arrays import ResultLayout, bounded_starts, packed_room, workers_for

BLOCK_PER_WORKER = {"cuts": "cuts", "blocks": "n"}  # arguments of a kernel that gives each worker one block
PARTS = "R_pos, R_crd, R_vals"  # arrays of a result whose number of entries is bounded in advance
APPENDED = f"return layout.appended({PARTS}, int(starts[0]))"
CLOSED = {  # arguments of the kernel that closes gaps
    **dict(zip(("pos", "crd", "vals"), PARTS.split(", "), strict=True)),
    **{"new_crd": "T_crd", "new_vals": "T_vals", "starts": "S", "ends": "starts", "cuts": "parents", "workers": "n"},
}


class AssemblingBinder(Binder):
    """Writes the function of a plan whose result has a new pattern: it bounds packed rows, counts entries, allocates and fills arrays."""

    def __init__(
        self,
        problem: Problem,
        stmt: ix.Stmt,
        kernel: Kernel,
        operands: Sequence[Operand],
        parallel: bool,
        before: Mapping[str, Kernel],
    ):
        super().__init__(problem, stmt, kernel, operands, parallel)
        self.before = before
        self.runs = len(runs_of(self.result.format))
        self.placed, self.bound = is_placed(stmt), bound_of(stmt)
        values = getattr(np, self.result.dtype), self.result.index_dtype, self.fill()
        self.each = ResultLayout(problem.format, problem.shape, *values).each
        self.scope |= {function.__name__: function for function in (packed_room, bounded_starts, workers_for, ResultLayout)}
        self.scope |= {"format": problem.format, "values": values}
        self.checks.append(f"layout = ResultLayout(format, {self.numbers_of(problem.shape)}, *values)")

    def function(self) -> Bind:
        if self.bound is not None:
            return self.compile_body([*self.patterns(), *self.copies(), *self.bounded_lines(self.bound)])
        most = f"min(workers(), {self.fixed(f'workers_for({text_of(self.parents)})')})" if self.placed else "workers()"
        return self.compile_body(
            [
                *self.patterns(),
                *self.size_check(),
                *self.copies(),
                f"n = {most}" if self.parallel else "n = 1",
                *self.workspace_lines(),
                *(self.single_pass_lines() if "once" in self.before else []),
                *self.allocation(),
                *self.call_lines("fill", self.kernel),
                "return layout.finished(R)",
            ]
        )

    def size_check(self) -> list[str]:
        """Lines that refuse a product if a lower bound of its number of entries exceeds a limit; they run before entries are counted."""
        product = pair_product_in(self.problem, self.accesses)
        if product is None or prod(self.problem.shape) * self.each <= memory.ASK_FROM:
            return []
        self.scope["product"] = product
        patterns = ", ".join(f"P{NAMES.index(name)}" for name in product.names)
        copies = prod(self.problem.extents[var] for var in self.problem.stmt.lhs.indices if var not in product.kept)
        return [f"product.check(layout, {self.number(copies)}, {patterns})"]

    def single_pass_lines(self) -> list[str]:
        """Lines that append entries in one pass, if there is memory for as many entries as there are insertions into rows."""
        lines = [f"bounds = np.zeros({self.blocks}, np.int64)", *self.call_lines("room", self.before["room"])]
        if not self.parallel:
            return [
                *lines,
                "most = int(bounds[0])",
                "if layout.has_room(most):",
                *([f"    cuts = {self.cuts()}"] if self.kernel.source.program.parallel else []),
                "    starts = np.zeros(1, np.int64)",
                f"    {PARTS} = layout.bounded(most)",
                *(f"    {line}" for line in self.call_lines("once", self.before["once"], BLOCK_PER_WORKER)),
                f"    {APPENDED}",
            ]
        return [
            *lines,
            f"S = np.zeros({self.blocks + 1}, np.int64)",
            "np.cumsum(bounds, out=S[1:])",
            "if layout.has_room(int(S[-1])):",
            "    first = shared_out(S, n)",
            f"    S, cuts = S[first], {self.cuts()}[first]",
            f"    parents = cuts * {self.number(self.inner)}",
            "    starts = S[:-1].copy()",
            f"    {PARTS} = layout.bounded(int(S[-1]))",
            *(f"    {line}" for line in self.call_lines("once", self.before["once"], BLOCK_PER_WORKER)),
            *(f"    {line}" for line in self.closing_lines()),
        ]

    @property
    def inner(self) -> int:
        """For a result with one sparse level: the number of its parents below each coordinate of the outermost loop."""
        return prod(self.problem.format.sizes(self.problem.shape)[1:-1])

    def bounded_lines(self, bound: Bound) -> list[str]:
        """Lines that append entries in one pass, each worker from an upper bound of its start, and close the gaps between workers."""
        patterns, sizes = [f"P{NAMES.index(name)}" for name in bound.operands], self.problem.format.sizes(self.problem.shape)
        counts = [f"{pattern}.derived.get('most kept', {pattern}.counts[-1])" for pattern in patterns] or [self.number(prod(sizes))]
        most = f"min(({', '.join(counts)},))" if bound.each else " + ".join(counts)
        fill = self.call_lines("fill", self.kernel)
        if not self.parallel:
            lines = ["n = 1", *self.workspace_lines(), "starts = np.zeros(1, np.int64)", f"{PARTS} = layout.bounded({most})"]
            return [*lines, *fill, APPENDED]
        starts_source = (
            f"bounded_starts(({', '.join(patterns)},), {bound.each}, parents)" if patterns else f"parents * {self.number(sizes[-1])}"
        )
        return [
            "n = workers()",
            "if n == 1:",
            f"    parents, S, starts = None, (0, {most}), np.zeros(1, np.int64)",
            "else:",
            f"    parents = {self.cuts()} * {self.number(self.inner)}",
            f"    S = {starts_source}",
            "    starts = S[:-1].copy()",
            *self.workspace_lines(),
            f"{PARTS} = layout.bounded(int(S[-1]))",
            *fill,
            *self.closing_lines(),
        ]

    def closing_lines(self) -> list[str]:
        """Lines that close the gaps between workers' entries. The first calls do it in place, and compile no kernel for that."""
        sparse = [at for at, operand in enumerate(self.operands) if not operand.format.is_dense]
        tests = ["layout.is_pooled(total)", *(f"is_repeated(P{at}, 'closed')" for at in sparse[:1])]
        return [
            f"if n == 1: {APPENDED}",
            "total = int((starts - S[:-1]).sum())",
            f"if total == S[-1]: return layout.appended({PARTS}, total)",
            f"if not ({' and '.join(tests)}): return layout.closed(({PARTS}), S, starts, parents)",
            "T_crd, T_vals = layout.entries(total)",
            *self.call_lines("closed", self.before["closed"], CLOSED),
            "return layout.appended(R_pos, T_crd, T_vals, total)",
        ]

    def allocation(self) -> list[str]:
        """Lines that count the result's entries and allocate its arrays.

        Placed entries are counted for each parent and worker, appended entries for each block and each run of levels.
        """
        if is_spaced(self.result.format):
            return ["R = layout.spaced(P0)"]
        counted = self.call_lines("count", self.before["count"]) if self.runs else []
        if self.placed:
            return [f"heads = layout.heads(n, {self.number(self.parents)})", *counted, "R = layout.placed(heads, n)"]
        return [f"starts = np.zeros({self.blocks * self.runs}, np.int64)", *counted, "R = layout.allocated(starts)"]

    @property
    def pieces(self) -> str:
        return "n" if self.parallel and (self.placed or self.bound is not None) else super().pieces  # blocks sum nothing, so n may vary

    @property
    def parents(self) -> int:
        """Number of parents below which a placed result stores entries."""
        ((first, _),) = runs_of(self.result.format)
        return prod(self.problem.format.sizes(self.problem.shape)[:first])

    def capacity_lines(self, space: ix.Access) -> list[str]:
        """Lines that find the largest number of insertions into one row, and the size of a workspace for them."""
        extent = self.number(self.problem.extents[space.indices[0]])
        line = f"{space.tensor.name}_size = packed_room(bounds, {extent}, n, stmt, {has_level(space.tensor, Hashed)})"
        return [f"bounds = np.zeros({self.blocks}, np.int64)", *self.call_lines("bound", self.before["bound"]), line]

    def argument(self, param: Param, stage: str = "kernel") -> str:
        if param.what in ("heads", "parents"):
            return "heads" if param.is_array else self.number(self.parents)
        if param.what in ("starts", "bounds", "capacity", *WORKSPACE):
            return param.name
        if param.of == self.result.name and param.is_array:
            if self.bound is not None or stage == "once":
                return f"R_{param.what}"
            return "R.values" if param.what == "vals" else f"R.index[{param.at}, {param.what!r}]"
        return super().argument(param, stage)


@dataclass(frozen=True, slots=True)
class PairProduct:
    """A product of two sparse operands: each pair of entries with equal shared coordinates makes one term.

    Args:
        names: names of the operands.
        levels: for each operand, the index variable of each level.
        kept: index variables of the result that occur in an operand.
    """

    names: tuple[str, str]
    levels: tuple[tuple[ix.IndexVar, ...], tuple[ix.IndexVar, ...]]
    kept: frozenset[ix.IndexVar]

    @property
    def shared(self) -> frozenset[ix.IndexVar]:
        """Index variables that occur in both operands."""
        return frozenset(self.levels[0]) & frozenset(self.levels[1])

    def check(self, layout: ResultLayout, times: int, left: Pattern, right: Pattern) -> None:
        """Refuse a result if a lower bound of its size exceeds a limit. O(nnz), or O(1) if an upper bound is within the limit.

        A row of the result has at least as many entries as the longest row of the right operand that contributes to it. Each
        entry is stored ``times`` times.

        Raises:
            SizeError: the lower bound exceeds the memory limit or the range of the index type.
        """
        pairs = zip((left, right), self.levels, (right, left), strict=True)
        most = min(other.nnz * self._longest(pattern, levels) for pattern, levels, other in pairs)
        if layout.fits(most * times):
            return
        rows, lengths = self._rows(left, right)
        if layout.fits(int(lengths.sum()) * times):
            return
        longest = np.zeros(int(rows.max(initial=0)) + 1, np.int64)
        np.maximum.at(longest, rows, lengths)
        layout.check_least(int(longest.sum()) * times)

    def _longest(self, pattern: Pattern, levels: Sequence[ix.IndexVar]) -> int:
        """An upper bound of the number of entries of an operand that agree in all shared coordinates."""
        depth = len(self.shared)
        is_below = depth > 0 and frozenset(levels[:depth]) == self.shared  # such entries lie below one position
        if not is_below or not all(level.is_unique for level in pattern.format.levels[:depth]):
            return pattern.nnz
        return pattern.remember(("longest", depth), lambda: int(np.diff(leaf_starts(pattern, depth)).max(initial=0)))

    def _rows(self, left: Pattern, right: Pattern) -> tuple[np.ndarray, np.ndarray]:
        """For each entry of the left operand: the number of its row in the result, and how many entries it adds to that row."""
        pairs = zip((left, right), self.levels, strict=True)
        left_columns, right_columns = (dict(zip(levels, level_coordinates(pattern)[0], strict=True)) for pattern, levels in pairs)
        count, other_count = (len(columns[levels[0]]) for columns, levels in zip((left_columns, right_columns), self.levels, strict=True))
        numbers = _number_entries([np.concatenate([left_columns[var], right_columns[var]]) for var in self.shared], count + other_count)
        left_keys, right_keys = numbers[:count], numbers[count:]
        if not self.kept | self.shared >= right_columns.keys():  # entries of the right operand coincide in the result
            entries = _number_entries([right_keys, *(right_columns[var] for var in right_columns.keys() & self.kept)], other_count)
            right_keys = right_keys[np.unique(entries, return_index=True)[1]]
        lengths = np.bincount(right_keys, minlength=int(numbers.max(initial=0)) + 1)
        return _number_entries([column for var, column in left_columns.items() if var in self.kept], count), lengths[left_keys]


def pair_product_in(problem: Problem, accesses: Mapping[str, ix.Access]) -> PairProduct | None:
    """The product of two sparse operands whose result may have more entries than each operand; None for other problems."""
    stmt, result = problem.stmt, problem.result
    sparse = [access for access in ix.accesses_in(stmt.rhs) if not access.tensor.is_dense]
    names = tuple(dict.fromkeys(access.tensor.name for access in sparse))
    if len(sparse) != 2 or len(names) != 2 or any(map(ix.is_relation, sparse)) or problem.members or not all(problem.extents.values()):
        return None
    if result.prunes or result.largest or not is_intersection(stmt.rhs):
        return None
    left, right = (tuple(map(accesses[name].level_var, range(len(accesses[name].indices)))) for name in names)
    of_result = frozenset(stmt.lhs.indices)
    if not (of_result & set(left)) - set(right) or not (of_result & set(right)) - set(left):
        return None
    return PairProduct((names[0], names[1]), (left, right), of_result & {*left, *right})


def _number_entries(columns: Sequence[np.ndarray], count: int) -> np.ndarray:
    """A number for each entry; entries with equal columns have equal numbers. Numbers stay below ``tuning.WIDE_NUMBERS`` times the count.

    >>> _number_entries([np.array([5, 5, 7]), np.array([10**12, 10**12, 0])], 3).tolist()
    [0, 0, 1]
    """
    numbers = np.zeros(count, np.int64)
    for column in columns:
        if (int(numbers.max(initial=0)) + 1) * (int(column.max(initial=0)) + 1) > INT64_MAX:
            numbers, column = (np.unique(column_, return_inverse=True)[1] for column_ in (numbers, column))
        numbers = numbers * (int(column.max(initial=0)) + 1) + column
    return numbers if int(numbers.max(initial=0)) < tuning.WIDE_NUMBERS * count else np.unique(numbers, return_inverse=True)[1]
