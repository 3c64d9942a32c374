"""Bounds of the number of entries in a product of two sparse operands, computed from their index arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..frontend.problem import Problem
from ..ir import index as ix
from ..ir.functions import is_intersection
from ..ir.level import INT64_MAX
from ..schedule import tuning
from ..tensors.packing import level_coordinates
from ..tensors.pattern import Pattern
from .result_arrays import ResultLayout


@dataclass(frozen=True, slots=True)
class PairProduct:
    """A product of two sparse operands: each pair of entries with equal shared coordinates makes one term.

    Args:
        names: names of the operands.
        levels: index variable of each level, by operand.
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
        """Refuse a result whose lower bound exceeds a limit. O(nnz), or O(1) if an upper bound fits.

        A row of the result has at least as many entries as the longest row of the right operand that contributes to it. Each
        entry has ``times`` copies.

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
        depth, shared = len(self.shared), self.shared
        if frozenset(levels[:depth]) != shared:
            return pattern.nnz
        return pattern.remember(("longest", depth), lambda: _longest_below(pattern, depth))

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


def _longest_below(pattern: Pattern, depth: int) -> int:
    """An upper bound of the number of entries below one position of the first ``depth`` levels."""
    sizes, levels = pattern.format.sizes(pattern.shape), pattern.format.levels
    if not all(level.is_unique for level in levels[:depth]):
        return pattern.nnz
    longest = 1
    for at, level in enumerate(levels[depth:], depth):
        if "pos" in level.arrays:
            longest *= int(np.diff(pattern.level_arrays(at)[0]).max(initial=0))
        elif not level.branchless:
            longest *= sizes[at]
    return min(longest, pattern.nnz)


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
