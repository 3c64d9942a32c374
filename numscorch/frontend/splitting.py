"""Splitting: replace an index that an operand stores in parts by one variable for each part.

``A[i,j]`` in blocks of 4 x 4 becomes the order-4 tensor ``A[i_out,j_out,i_in,j_in]``, and a dense ``x[j]`` becomes
``x[j_out,j_in]`` with strides (4, 1). Later passes need no special case for blocks. If a block does not divide its
dimension, an implicit pattern restricts the loops to the dimension. A diagonal is a separate variable, which is summed
over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

from ..ir.derived_formats import without_parts
from ..ir.format import Format, sorted_format
from ..ir.implicit import Within
from ..ir.index import RELATION, Access, IndexVar, TensorVar
from ..ir.level import Level
from ..ir.levels import Dense
from ..ir.parts import Part

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SparseTerm:
    """A sparse tensor of an expression: index names, shape and format; ``leads``: the value is 0 at its unstored entries."""

    names: Names
    shape: tuple[int, ...]
    format: Format
    leads: bool = True

    def without_parts(self) -> SparseTerm:
        """The term with its tensor in an unsplit format."""
        return replace(self, format=without_parts(self.format))

    def names_of(self, chosen: Callable[[Level], bool]) -> list[str]:
        """The index names of the levels for which ``chosen`` is true."""
        return [self.names[part.dimension] for part, level in zip(self.format.parts, self.format.levels, strict=True) if chosen(level)]


@dataclass(frozen=True, slots=True)
class Splitting:
    """The parts of each split index, outermost first."""

    parts: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)

    def variables(self, name: str) -> list[IndexVar]:
        """The variables of an index's parts, outermost first; one variable if the index is not split."""
        parts = self.parts.get(name)
        if parts is None:
            return [IndexVar(name)]
        inner = [f"{name}_in{at or ''}" for at in range(len(parts) - 1)]
        return [IndexVar(f"{name}_out"), *map(IndexVar, reversed(inner))]

    def level_variable(self, names: Names, part: Part) -> IndexVar:
        """The variable of one part of a tensor with these index names."""
        name = names[part.dimension]
        if part.minus is not None:
            return IndexVar(f"{name}_{names[part.minus]}")  # a diagonal, the difference of two dimensions
        if name not in self.parts:
            return IndexVar(name)
        place = [(known.divisor, known.modulus) for known in self.parts[name]].index((part.divisor, part.modulus))
        return self.variables(name)[place]

    def access(self, names: Names) -> tuple[IndexVar, ...]:
        """The variables of the access to a dense tensor with these index names."""
        return tuple(var for name in names for var in self.variables(name))

    def strides(self, names: Sequence[str], strides: Sequence[int]) -> tuple[int, ...]:
        """The strides of a dense tensor; a part has the dimension's stride times its divisor."""
        pairs = zip(names, strides, strict=True)
        return tuple(stride * part.divisor for name, stride in pairs for part in self.parts.get(name, (Part(0),)))

    def result_parts(self, names: Names, variables: Sequence[IndexVar]) -> list[Part]:
        """The parts of a result with these names that the variables stand for."""
        parts = {
            var: part.moved({part.dimension: at})
            for at, name in enumerate(names)
            for var, part in zip(self.variables(name), self.parts.get(name, (Part(0),)), strict=True)
        }
        diagonals = [Part(at, minus=other) for at, other in permutations(range(len(names)), 2)]
        parts |= {self.level_variable(names, part): part for part in diagonals}
        return [parts[var] for var in variables]

    def extents(self, sizes: Mapping[str, int]) -> dict[IndexVar, int]:
        """The extents of all parts."""
        splits = [(sizes[name], zip(self.variables(name), parts, strict=True)) for name, parts in self.parts.items()]
        return {var: part.extent((size,)) for size, pairs in splits for var, part in pairs}  # the parts are those of dimension 0

    def edges(self, extents: Mapping[IndexVar, int], padded: str | None = None) -> list[Access]:
        """The implicit pattern of the valid coordinates for each split index whose block does not divide its size.

        The ``padded`` index needs no pattern.
        """
        edges = []
        for name, parts in self.parts.items():
            tail = extents[IndexVar(name)] % parts[0].divisor
            if tail and name != padded:
                inside = TensorVar(f"W{name}", Format.flat((Dense(), Within(int(tail)))), RELATION)
                edges.append(Access(inside, tuple(self.variables(name))))
        return edges


def split(
    terms: Mapping[int, SparseTerm], sizes: Mapping[str, int], result: SparseTerm | None, appended: set[str], sums: bool
) -> tuple[Splitting, dict[int, Format]]:
    """Choose the split of the indices, and the format in which each sparse operand is read.

    An operand with split dimensions is read in its own format if all sparse tensors with the same indices have the same
    parts; otherwise it is converted to an unsplit format first. Formats with diagonals are read directly in sums of products.

    Args:
        terms: the sparse operands, by position.
        sizes: the size of each index.
        result: the sparse result, if a format is requested.
        appended: the indices whose coordinates are appended to the result, and must be in order.
        sums: whether the request is a sum of products.
    """
    written = [result] if result is not None and _can_be_native(result, sizes, sums=False) else []
    read = {at: term if _can_be_native(term, sizes, sums) else term.without_parts() for at, term in terms.items()}
    for at, fmt in _in_order(read, appended).items():
        if fmt is not read[at].format and any(level.alone is not level for level in read[at].format.levels):
            read[at] = read[at].without_parts()  # a sorted format would not have the blocks
    while True:
        signatures: dict[str, set[tuple[Part, ...]]] = {}  # the distinct splits of each index
        for term in (*read.values(), *written):
            for dimension, parts in _signature(term.format).items():
                signatures.setdefault(term.names[dimension], set()).add(parts)
        clashing = {name for name, splits in signatures.items() if len(splits) > 1}
        conflicts = [at for at, term in read.items() if not term.format.is_plain and clashing & set(term.names)]
        if not conflicts:
            agreed = {name: next(iter(splits)) for name, splits in signatures.items() if name not in clashing}
            return Splitting({name: parts for name, parts in agreed.items() if len(parts) > 1}), _in_order(read, appended)
        read |= {at: read[at].without_parts() for at in conflicts}


def _signature(fmt: Format) -> dict[int, tuple[Part, ...]]:
    """The stored parts of each dimension, outermost first, written as parts of dimension 0 so that they can be compared."""
    parts: dict[int, list[Part]] = {}
    for part in sorted(fmt.parts, key=lambda p: -p.divisor):
        if part.minus is None:
            parts.setdefault(part.dimension, []).append(Part(0, part.divisor, part.modulus))
    return {dimension: tuple(pieces) for dimension, pieces in parts.items()}


def _can_be_native(tensor: SparseTerm, sizes: Mapping[str, int], sums: bool) -> bool:
    """Whether a tensor can be read in its split format.

    It must not repeat an index or broadcast, its diagonals need ``sums``, and block indices must precede the indices
    inside blocks.
    """
    fmt = tensor.format
    if fmt.is_plain:
        return True
    if len(set(tensor.names)) < len(tensor.names) or any(sizes[n] != s for n, s in zip(tensor.names, tensor.shape, strict=True)):
        return False
    if any(part.minus is not None for part in fmt.parts) and not sums:
        return False
    for dimension, parts in _signature(fmt).items():
        stored = tuple(Part(0, part.divisor, part.modulus) for part in fmt.parts if part.dimension == dimension and part.minus is None)
        uneven = sizes[tensor.names[dimension]] % parts[0].divisor != 0
        if stored != parts or (len(parts) > 2 and uneven):
            return False
    return True


def _in_order(terms: Mapping[int, SparseTerm], appended: set[str]) -> dict[int, Format]:
    """Replace unordered formats by sorted ones where a loop co-iterates them, or appends their coordinates to a result."""
    iterated = Counter(name for term in terms.values() for name in term.names_of(lambda level: not level.full))
    ordered = {}
    for at, term in terms.items():
        unordered = term.names_of(lambda level: not level.is_ordered)
        has_runs = any(not (level.is_ordered or level.is_unique) for level in term.format.levels)
        sorts = has_runs or not term.leads or any(iterated[name] > 1 or name in appended for name in unordered)
        ordered[at] = sorted_format(term.format) if unordered and sorts else term.format
    return ordered
