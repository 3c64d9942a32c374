"""Env: the coordinates, positions, registers and lanes that are known at one place of a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from ..ir.index import Access, IndexVar, Stmt, TensorVar
from ..ir.level import Level, Mode, Segment
from ..ir.loop import Assign, Block, Choose, Const, Expr, Var, add, as_expr, call
from ..ir.workspace_levels import Cleared, Flagged, Listed
from .result_assembly import Assembly, mode_of


@dataclass(frozen=True, slots=True)
class Lanes:
    """The enclosing vector loop: ``count`` registers of ``lanes`` coordinates each, from the variable's base on.

    ``left`` is the number of lanes in use in the last register; None means all.
    """

    var: IndexVar
    lanes: int
    count: int
    left: Expr | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The last arguments of intrinsics that return a tile: the lanes, and the count if there are several registers."""
        return (self.lanes,) if self.count == 1 else (self.lanes, self.count)


@dataclass(frozen=True, slots=True)
class TableKind:
    """The kind of an n:m:g operand's current position.

    Attributes:
        number: the number of the kind.
        rows: the rows that the kind selects.
        fresh: those rows that no earlier kind selects.
        is_first: the condition under which earlier tiles have not added to the rows; None if there are no earlier tiles.
    """

    number: int
    rows: tuple[int, ...]
    fresh: tuple[int, ...]
    is_first: Expr | None


@dataclass(frozen=True, slots=True)
class Env:
    """What lowering knows at one place of a loop nest. The keys of mappings are names of tensors, or index variables.

    ==========  ========================================================================================
    operands    sparse operands
    assembly    assembly of the result
    coords      coordinate of each variable in scope
    segments    known positions in the levels of each operand, outermost first
    registers   register of each scalar workspace
    varying     workspaces whose register is a tile, because their value varies between lanes
    lanes       the enclosing vector loop
    copy        variable whose coordinates are processed several at a time, and the number of this copy;
                values that depend on the variable get distinct names
    tiles       bounds of the current tile, for variables with an outer loop over tiles
    counted     workspaces whose terms are counted
    conditions  when each operand is present, for operands that may be absent here
    assured     sets of operands; all operands of at least one set are present
    masked      whether conditions are masks with all bits set, rather than truth values
    kind        kind of the current position, in loops that take one kind at a time
    divided     variable of which each worker takes a part of the coordinates below each parent
    each        variables whose loops visit each position, even if positions repeat a coordinate
    ahead       for variables that choose rows: how many positions ahead to prefetch them, and their accesses and levels
    ==========  ========================================================================================
    """

    operands: tuple[Access, ...]
    assembly: Assembly
    coords: Mapping[IndexVar, Expr] = field(default_factory=dict)
    segments: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    registers: Mapping[str, Var] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    lanes: Lanes | None = None
    copy: tuple[IndexVar, int] | None = None
    tiles: Mapping[IndexVar, tuple[Expr, Expr]] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    conditions: Mapping[str, Expr] = field(default_factory=dict)
    assured: tuple[frozenset[str], ...] = ()
    masked: bool = False
    kind: TableKind | None = None
    divided: str | None = None
    each: frozenset[IndexVar] = frozenset()
    ahead: Mapping[IndexVar, tuple[int, list[tuple[Access, int]]]] = field(default_factory=dict)

    def bind(self, var: IndexVar, coord: Expr, known: Mapping[str, Segment] | None = None) -> Env:
        """Add a coordinate, the positions that were iterated to reach it, and the positions that it locates."""
        known = known or {}
        deeper = {name: (*self.segments.get(name, ()), segment) for name, segment in known.items()}
        conditions = {name: condition for name, condition in self.conditions.items() if name not in known}
        env = replace(self, coords={**self.coords, var: coord}, segments={**self.segments, **deeper}, conditions=conditions)
        for access in self.operands:
            env = env._locate(access)
        return env

    def _locate(self, access: Access) -> Env:
        """Add an operand's positions in full levels whose coordinates are known."""
        positions = list(self.segments.get(access.tensor.name, ()))
        levels = access.tensor.format.levels
        while len(positions) < len(levels) and levels[len(positions)].full and access.level_var(len(positions)) in self.coords:
            at = len(positions)
            positions.append(Segment(levels[at].locate(self.mode(access, at, positions), self.coords[access.level_var(at)])))
        return replace(self, segments={**self.segments, access.tensor.name: tuple(positions)})

    def mode(self, access: Access, level: int, positions: Sequence[Segment]) -> Mode:
        """Return the argument of the level functions for a level below these positions in the outer levels."""
        return mode_of(access, level, self.coords, positions[level - 1] if level else Segment(Const(0)))

    def extent(self, var: IndexVar) -> Expr:
        """Return the extent of a variable: a constant if a level fixes it, 1 if the result has size 1 there, else its run-time size."""
        result = self.assembly.access
        if dict(zip(result.indices, result.tensor.strides, strict=False)).get(var) == "0":
            return Const(1)
        for access in self.operands:
            for at, level in enumerate(access.tensor.format.levels):
                if level.extent is not None and access.level_var(at) == var:
                    return Const(level.extent)
        return size_of(var)

    def bounds(self, var: IndexVar) -> tuple[Expr, Expr]:
        """Return the first coordinate of a dimension loop and one past the last, restricted to the current tile."""
        return self.tiles.get(var, (Const(0), self.extent(var)))

    def iterated(self, var: IndexVar) -> list[Iterator]:
        """Return the levels that a loop over the variable iterates: the next level of each operand, if the variable indexes it."""
        iterators = []
        for access in self.operands:
            positions = self.segments.get(access.tensor.name, ())
            at = len(positions)
            levels = access.tensor.format.levels
            if at < len(levels) and not levels[at].full and access.level_var(at) == var:
                mode = self.mode(access, at, positions)
                here = self.conditions.get(access.tensor.name)
                part = self._part(levels[at], mode, var) if var.name == self.divided else None
                iterators.append(Iterator(access, at, levels[at], mode, here, part, var in self.each))
        return iterators

    def _part(self, level: Level, mode: Mode, var: IndexVar) -> tuple[Expr, Expr]:
        """Return the positions that a worker walks, if workers share the coordinates of a variable."""
        if isinstance(level, Cleared):
            return self.bounds(var)
        starts, part = Var(f"{mode.name}_parts"), mode.parent.begin * Var("workers") + Var("workers") + Var("worker")
        return starts[part + 1], starts[part + 2]

    def position(self, access: Access) -> Expr:
        """Return the place of an access's value."""
        place = self._position(access)
        return order_of(access.tensor)[place] if access.tensor.is_reordered else place

    def _position(self, access: Access) -> Expr:
        tensor = access.tensor
        if tensor.shares is not None:
            return self.beside(tensor, self.segments[tensor.shares][-1].begin)
        if tensor.is_assembled and tensor == self.assembly.access.tensor:
            return self.assembly.place(len(tensor.format.levels) - 1, self.coords)
        if tensor.format.order and isinstance(tensor.format.levels[0], Listed | Flagged | Cleared):
            return self.coords[access.indices[0]]
        if not tensor.is_dense:
            return self.segments[tensor.name][-1].begin
        return self.strided_position(access, access.indices)

    def beside(self, tensor: TensorVar, position: Expr) -> Expr:
        """Return where a tensor stores the value for a position of its pattern; a workspace of one row counts from the row's start."""
        if not tensor.is_row:
            return position
        owner = next(a for a in self.operands if a.tensor.name == tensor.shares)
        at = len(owner.indices) - 1
        first, _ = owner.tensor.format.levels[at].bounds(self.mode(owner, at, self.segments.get(owner.tensor.name, ())))
        return position - first

    def strided_position(self, access: Access, variables: tuple[IndexVar, ...]) -> Expr:
        """Return the part of a dense access's position that depends on these variables."""
        moving = [(at, var) for at, var in enumerate(access.indices) if var in variables and access.tensor.strides[at] != "0"]
        return reduce(add, (self.coords[var] * stride_of(access, at) for at, var in moving), as_expr(0))

    def with_register(self, name: str, register: Var) -> Env:
        """Add the register of a workspace."""
        return replace(self, registers={**self.registers, name: register})


Lower = Callable[[Stmt, Env], Block]


@dataclass(frozen=True, slots=True)
class Iterator:
    """A level that a loop iterates below a known parent. If the condition ``here`` is set but false, the parent is absent.

    A ``part`` is the first position that the worker walks, and one past the last.
    If ``is_each``, equal coordinates are not collected in runs.
    """

    access: Access
    at: int
    level: Level
    mode: Mode
    here: Expr | None = None
    part: tuple[Expr, Expr] | None = None
    is_each: bool = False

    @property
    def is_unique(self) -> bool:
        """Whether each position is one step of the loop."""
        return self.is_each or self.level.is_unique

    @property
    def name(self) -> str:
        """The operand's name."""
        return self.access.tensor.name

    @property
    def position(self) -> Var:
        """The position variable, such as pA2."""
        return Var(f"p{self.mode.name}")

    @property
    def end(self) -> Var:
        """One past the last position of the loop, such as pA2_end."""
        return Var(f"p{self.mode.name}_end")

    @property
    def stop(self) -> Var:
        """One past the positions that share a coordinate, such as pA2_stop."""
        return Var(f"p{self.mode.name}_stop")

    @property
    def bounds(self) -> tuple[Expr, Expr]:
        """The first position, and one past the last; an absent parent has no positions."""
        if self.part is not None:
            return self.part
        first, end = self.level.bounds(self.mode)
        if self.here is None:
            return first, end
        return Choose(self.here, first, Const(0)), Choose(self.here, end, Const(0))

    @property
    def is_single(self) -> bool:
        """Whether there is exactly one position, so that no loop is needed."""
        return self.level.branchless and self.mode.parent.end is None and self.here is None

    def coordinate(self, position: Expr) -> Expr:
        """Return the coordinate at a position."""
        return self.level.coordinate(self.mode, position)

    def present(self, position: Expr) -> list[Expr]:
        """Return the conditions under which a position stores an entry."""
        condition = self.level.present(self.mode, position)
        return [] if condition is None else [condition]

    def segment(self, position: Expr) -> Segment:
        """Return the positions that share the coordinate at ``position``."""
        if isinstance(self.level, Listed):
            return Segment(Var(self.access.level_var(self.at).name))
        return Segment(position, None if self.is_unique or self.is_single else self.stop)


def stride_of(access: Access, dimension: int) -> Expr:
    """Return the stride of one dimension of a dense access, in values."""
    letter = access.tensor.strides[dimension]
    return Const(int(letter)) if letter in "01" else Var(f"{access.tensor.name}_stride{dimension}")


def order_of(tensor: TensorVar) -> Var:
    """Return the array with the place of each position's value, for an operand whose values are stored in another order."""
    return Var(f"{tensor}_order")


def size_of(var: IndexVar) -> Var:
    """Return the run-time extent of a variable, such as i_size."""
    return Var(f"{var}_size")


def clear(target: TensorVar, env: Env, identity: float = 0.0) -> tuple[Assign]:
    """Assign the reduction's identity to a workspace's register or tile."""
    zero: Expr = Const(identity, target.dtype)
    if target.name in env.varying and env.lanes is not None:
        zero = call("splat", zero, *env.lanes.shape)
    return (Assign(env.registers[target.name], zero),)


def partial_register(name: str) -> Var:
    """Return the vector register that a loop adds to, for a workspace that is a scalar outside the loop."""
    return Var(f"{name}_lanes")
