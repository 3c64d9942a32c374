"""What is known at one place of a loop nest: coordinates, positions, registers, lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..ir.index import Access, IndexVar, TensorVar
from ..ir.level import Level, Mode, Segment
from ..ir.loop import Assign, Choose, Const, Expr, Var, call
from ..ir.workspace_levels import Listed, Marked
from .result_assembly import Assembly


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vector loop around this place: ``count`` registers of ``lanes`` coordinates from the variable's base on.

    ``left`` is how many lanes of the last register are in use, None where all are.
    """

    var: IndexVar
    lanes: int
    count: int
    left: Expr | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The last arguments of what makes a tile: no count means one register."""
        return (self.lanes,) if self.count == 1 else (self.lanes, self.count)


@dataclass(frozen=True, slots=True)
class Env:
    """Sparse operands, coordinates, positions of the operands' levels, registers of workspaces.

    A workspace has one scalar register, or, if its value differs from lane to lane, a tile.  Where several coordinates of a
    variable are in flight, ``copy`` is that variable and the number of the one here: what depends on it gets a name of its own.
    ``tiles`` are the bounds of the variables whose tiles are looped over outside, ``counted`` the
    registers beside which the terms they received are counted, ``inserted`` the workspaces that
    coordinates are inserted into, ``assembly`` the result whose index arrays are written.
    ``kinds`` says of what kind the positions are at which an operand is, where its loops take one kind after the other;
    ``walked`` are the positions of such a kind that the loop over them takes, ``rows`` the coordinates that it chooses, and
    ``first`` says when nothing has been added to the result at these.
    ``conditions`` say when the operands that may be absent here are present, where ``masked`` as masks that
    have all bits set, and of ``assured``, sets of operands, one is present as a whole.
    """

    operands: tuple[Access, ...]
    coords: Mapping[IndexVar, Expr] = field(default_factory=dict)
    segments: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)
    registers: Mapping[str, Var] = field(default_factory=dict)
    varying: frozenset[str] = frozenset()
    lanes: Lanes | None = None
    copy: tuple[IndexVar, int] | None = None
    tiles: Mapping[IndexVar, tuple[Expr, Expr]] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    inserted: frozenset[str] = frozenset()
    assembly: Assembly | None = None
    conditions: Mapping[str, Expr] = field(default_factory=dict)
    assured: tuple[frozenset[str], ...] = ()
    masked: bool = False
    kinds: Mapping[str, int] = field(default_factory=dict)
    walked: Mapping[str, tuple[Expr, Expr]] = field(default_factory=dict)
    rows: tuple[int, ...] | None = None
    first: Expr | None = None

    def position_var(self, name: str, variables: tuple[IndexVar, ...]) -> Var:
        """A name for a value that depends on these variables."""
        return Var(f"{name}_{self.copy[1]}" if self.copy is not None and self.copy[0] in variables else name)

    def bind(self, var: IndexVar, coord: Expr, known: Mapping[str, Segment] | None = None) -> Env:
        """With a coordinate, the positions that were iterated to reach it, and those that it locates."""
        segments = dict(self.segments)
        for name, segment in (known or {}).items():
            segments[name] = (*segments.get(name, ()), segment)
        conditions = {name: condition for name, condition in self.conditions.items() if name not in (known or {})}
        env = replace(self, coords={**self.coords, var: coord}, segments=segments, conditions=conditions)
        for access in self.operands:
            env = env._locate(access)
        return env

    def _locate(self, access: Access) -> Env:
        """With the positions of full levels whose coordinates are known."""
        located = list(self.segments.get(access.tensor.name, ()))
        levels = access.tensor.format.levels
        while len(located) < len(levels) and levels[len(located)].full and access.level_var(len(located)) in self.coords:
            at = len(located)
            coord = self.coords[access.level_var(at)]
            mode = self.mode(access, at, self.parent(located, at))
            located.append(Segment(levels[at].locate(mode, coord)))
            if isinstance(level := levels[at], Marked):
                conditions = {**self.conditions, access.tensor.name: level.here(mode, coord)}
                return replace(self, segments={**self.segments, access.tensor.name: tuple(located)}, conditions=conditions, masked=True)
        return replace(self, segments={**self.segments, access.tensor.name: tuple(located)})

    def parent(self, located: list[Segment] | tuple[Segment, ...], level: int) -> Segment:
        """The parent of a level, among the positions found so far."""
        return located[level - 1] if level else Segment(Const(0))

    def mode(self, access: Access, level: int, parent: Segment) -> Mode:
        """A level of an access, for its level functions."""
        levels = access.tensor.format.levels
        sizes = tuple(size_of(access.level_var(at)) if lv.extent is None else Const(lv.extent) for at, lv in enumerate(levels))
        outer = tuple(self.coords[access.level_var(at)] for at in range(level))
        return Mode(f"{access.tensor.name}{level + 1}", level, sizes, outer, parent)

    def extent(self, var: IndexVar) -> Expr:
        """How many coordinates a variable has: a number where a level fixes it."""
        for access in self.operands:
            for at, level in enumerate(access.tensor.format.levels):
                if level.extent is not None and access.level_var(at) == var:
                    return Const(level.extent)
        return size_of(var)

    def bounds(self, var: IndexVar) -> tuple[Expr, Expr]:
        """The first coordinate of a dimension loop, and one past the last: those of a tile, where there is one."""
        return self.tiles.get(var, (Const(0), self.extent(var)))

    def iterated(self, var: IndexVar) -> list[Iterator]:
        """The levels that a loop over the variable iterates: the next level of each operand that has it."""
        iterators = []
        for access in self.operands:
            located = self.segments.get(access.tensor.name, ())
            at = len(located)
            levels = access.tensor.format.levels
            if at < len(levels) and not levels[at].full and access.level_var(at) == var:
                mode = self.mode(access, at, self.parent(located, at))
                iterators.append(Iterator(access, at, levels[at], mode, self.conditions.get(access.tensor.name)))
        return iterators

    def position(self, access: Access) -> Expr:
        """Where an access's value lies."""
        tensor = access.tensor
        if tensor.shares is not None:
            return self.beside(tensor, self.segments[tensor.shares][-1].begin)
        if self.assembly is not None and tensor == self.assembly.access.tensor:
            return self.assembly.place(len(tensor.format.levels) - 1, self.coords)
        if tensor.name in self.inserted:
            return self.coords[access.indices[0]]
        if not tensor.is_dense:
            return self.segments[tensor.name][-1].begin
        return self.strided_position(access, access.indices)

    def beside(self, tensor: TensorVar, position: Expr) -> Expr:
        """Where the value beside a position of the pattern lies: in a workspace of one row, as far from where the row starts."""
        if not tensor.is_row:
            return position
        owner = next(a for a in self.operands if a.tensor.name == tensor.shares)
        at, located = len(owner.indices) - 1, self.segments.get(owner.tensor.name, ())
        first, _ = owner.tensor.format.levels[at].bounds(self.mode(owner, at, self.parent(located[:at], at)))
        return position - first

    def strided_position(self, access: Access, variables: tuple[IndexVar, ...]) -> Expr:
        """What these variables add to the position of a dense access."""
        place: Expr = Const(0)
        for at, var in enumerate(access.indices):
            if var in variables and access.tensor.strides[at] != "0":
                place = place + self.coords[var] * stride_of(access, at)
        return place


@dataclass(frozen=True, slots=True)
class Iterator:
    """A level that a loop iterates, below a known parent, or, where ``here`` doesn't hold, below none."""

    access: Access
    at: int
    level: Level
    mode: Mode
    here: Expr | None = None

    @property
    def parent(self) -> Segment:
        """Its parent's positions."""
        return self.mode.parent

    @property
    def name(self) -> str:
        """The operand's name."""
        return self.access.tensor.name

    @property
    def position(self) -> Var:
        """The position variable, as pA2."""
        return Var(f"p{self.mode.name}")

    @property
    def end(self) -> Var:
        """One past the last position of the loop, as pA2_end."""
        return Var(f"p{self.mode.name}_end")

    @property
    def stop(self) -> Var:
        """One past the positions that share a coordinate, as pA2_stop."""
        return Var(f"p{self.mode.name}_stop")

    @property
    def bounds(self) -> tuple[Expr, Expr]:
        """First position, and one past the last."""
        first, end = self.level.bounds(self.mode)
        if self.here is None:
            return first, end
        return Choose(self.here, first, Const(0)), Choose(self.here, end, Const(0))

    @property
    def is_single(self) -> bool:
        """Whether there is just one position, so that no loop is needed."""
        return self.level.branchless and self.parent.end is None and self.here is None

    def coordinate(self, position: Expr) -> Expr:
        """The coordinate at a position."""
        return self.level.coordinate(self.mode, position)

    def present(self, position: Expr) -> list[Expr]:
        """What must hold for a position to hold anything."""
        condition = self.level.present(self.mode, position)
        return [] if condition is None else [condition]

    def segment(self, position: Expr) -> Segment:
        """The positions that share the coordinate at ``position``."""
        if isinstance(self.level, Listed):
            return Segment(Var(self.access.level_var(self.at).name))
        return Segment(position, None if self.level.is_unique or self.is_single else self.stop)


def stride_of(access: Access, dimension: int) -> Expr:
    """By how much a coordinate moves the position of a dense access."""
    letter = access.tensor.strides[dimension]
    return Const(int(letter)) if letter in "01" else Var(f"{access.tensor.name}_stride{dimension}")


def size_of(var: IndexVar) -> Var:
    """The run-time extent of a variable, as i_size."""
    return Var(f"{var}_size")


def clear(target: TensorVar, env: Env, identity: float = 0.0) -> tuple[Assign]:
    """A workspace's register or tile = the identity of the sum, or of what else joins its terms."""
    zero: Expr = Const(identity, target.dtype)
    if target.name in env.varying and env.lanes is not None:
        zero = call("splat", zero, *env.lanes.shape)
    return (Assign(env.registers[target.name], zero),)


def partial_register(name: str) -> Var:
    """The vector register that a loop adds into, for a workspace that is one scalar outside of it."""
    return Var(f"{name}_lanes")
