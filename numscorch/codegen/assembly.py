"""assemble: lowered loops become functions with parameters, and the result's memory gets its contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir import index as ix
from ..ir.derived_formats import runs_of
from ..ir.functions import REDUCTIONS, is_zero, simplified
from ..ir.loop import Assign, Block, Const, Do, For, FunctionDef, If, Store, Var, While, call, has_threads, map_blocks, names_used
from ..ir.result_bounds import around_result, bound_of, may_take_room
from ..ir.scatter import is_placed
from ..ir.tag_rules import can_merge_without_branches
from ..schedule.facts import Target
from .bounded_assembly import Appending
from .environment import Env
from .hoisting import hoist_loads
from .long_sums import Lengths, block_sums
from .lowering import by_worker, in_block, lower
from .padded_assembly import Spacing, is_spaced
from .peephole import simplify
from .result_assembly import Assembly, Stage
from .row_starts import reuse_starts
from .scatter_assembly import Placement
from .scattering import scattered
from .short_rows import shorten
from .workspaces import arrays_of, is_collected, is_hashed, is_marked, stamps, workspaces_of


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel: ``name`` in the source, ``what`` it is, of which tensor or variable.

    ==========  =============================================  ==============
    what        meaning                                        at
    ==========  =============================================  ==============
    pos, crd    an index array of an operand; levels have      level, from 0
                others, too
    vals        the values of an operand or the result
    stride      of a dense tensor, in values                   dimension
    size        the extent of a variable
    cuts        where blocks of the outermost loop start
    partial     one partial sum for each block
    starts      where the positions of each block and run of the result start; of a bounded one, of each worker
    heads       where each parent of the result, and worker, has its next entry
    bounds      the most that each block inserts into one row
    list, mark  of a workspace: the coordinates in it, and the stamp of each
    seen        of a workspace: the number of terms of each value
    flag        of a workspace of one row: 1 for each coordinate in it
    table       of a workspace: where in the list a coordinate is, by its hash
    space       the values of a workspace
    parts       sums of blocks of a loop that scatters
    places      how many of these there are
    parents     how many parents the entries of a placed result have
    capacity    how many places there are in a hashed workspace
    longest     how many positions the longest row of an operand has
    entries     how many values an operand stores
    blocks      how many blocks there are
    workers     how many of them may run at once
    ==========  =============================================  ==============
    """

    name: str
    what: str
    of: str = ""
    at: int = 0
    dtype: str = "int64"

    @property
    def is_array(self) -> bool:
        """Whether it is an array rather than an integer."""
        return self.what not in SCALARS


SCALARS = ("stride", "size", "capacity", "longest", "parents", "places", "entries", "blocks", "workers")
PARTIAL = Var("partial_vals")
WORKSPACE = ("list", "mark", "seen", "flag", "table", "space")  # arrays of a workspace, of which each worker has a part
PARTS = dict.fromkeys(WORKSPACE, "size") | {"heads": "parents", "parts": "places"}  # arrays with a part for each worker, and its size


@dataclass(frozen=True, slots=True)
class KernelBody:
    """A kernel's functions, its parameters, and whether the result must start as zeros, or as another value of ``fill``.

    ``kernel``, the last function, has all parameters. Where it is ``parallel``, it calls ``body`` for each worker, and ``finish``
    once all have returned, where something is left to do then; elsewhere it is the only function.
    """

    functions: tuple[FunctionDef, ...]
    params: tuple[Param, ...]
    zeroed: bool
    parallel: bool
    fill: float = 0.0


def stages_of(stmt: ix.Stmt) -> tuple[Stage, ...]:
    """Which functions a statement takes, in the order of their calls.

    A result with a new pattern takes two: one that counts its entries, and one that writes them; a hashed
    workspace, whose size must be known before, a third one. Where operands bound the entries, one writes them at once,
    and so does one where there is room for all that is inserted into rows.
    """
    result = ix.result_of(stmt).tensor
    bounding: tuple[Stage, ...] = ("bound",) if any(is_hashed(space) for space in workspaces_of(stmt)) else ()
    if not result.is_assembled or not runs_of(result.format) or is_spaced(result.format) or bound_of(stmt):
        return (*bounding, "fill")
    if may_take_room(stmt):
        return ("room", "once", "count", "fill")
    return (*bounding, "count", "fill")


def at_stage(stmt: ix.Stmt, stage: Stage) -> ix.Stmt:
    """The statement of one stage: merges without branches append, and are plain ones where entries are counted first."""
    if not ix.result_of(stmt).tensor.is_assembled or _appends(stmt, stage):
        return stmt

    def plain(inner: ix.Stmt) -> ix.Stmt:
        match inner:
            case ix.Forall(_, body, ix.Blend()) if not can_merge_without_branches(inner, appends=False):
                return replace(inner, tag=ix.Serial(), body=plain(body))
            case ix.Forall(_, body):
                return replace(inner, body=plain(body))
            case ix.Where(consumer, producer):
                return ix.Where(plain(consumer), plain(producer))
            case ix.Assignment():
                return inner

    return plain(stmt)


def _appends(stmt: ix.Stmt, stage: Stage) -> bool:
    """Whether a stage appends the entries of the result, which nothing has counted."""
    return stage == "once" or bound_of(stmt) is not None


def assemble(stmt: ix.Stmt, target: Target, stage: Stage = "fill", lengths: Lengths | None = None) -> KernelBody:
    """Lower a scheduled statement into the functions of one stage, of the parameters that they use.

    ``lengths`` says about how many steps loops have, by their variable: long sums are taken in blocks.
    """
    operands = ix.operands_of(stmt)
    known = _all_params(stmt, operands)
    body = simplify(hoist_loads(_lowered(stmt, operands, stage), target.registers // 2))
    starts = {p.name for p in known if p.what == "pos"}
    body = reuse_starts(block_sums(shorten(body, starts), lengths or {}), starts)
    parallel, used = has_threads(body), names_used(body)
    if parallel:
        used |= {f"{p.of}_{PARTS[p.what]}" for p in known if p.what in PARTS and p.name in used}
    params = tuple(p for p in known if p.name in used)
    return KernelBody(functions_of(body, params), params, must_be_zeroed(stmt), parallel, fill_of(stmt))


def functions_of(block: Block, params: Sequence[Param]) -> tuple[FunctionDef, ...]:
    """The functions of a kernel: of each worker, for the end, and the one that calls them."""
    names = tuple(param.name for param in params)
    if not has_threads(block):
        return (FunctionDef("kernel", names, block),)
    functions, rest = _by_workers(block)
    functions = (*_parts(functions, params), *functions)
    body, finish = _function("body", functions, names, ("worker",)), _function("finish", rest, names)
    calls = For(Var("worker"), Const(0), Var("workers"), (_called(body),), parallel=True)
    if not rest:
        return (body, FunctionDef("kernel", names, (calls,)))
    return (body, finish, FunctionDef("kernel", names, (calls, _called(finish))))


def _function(name: str, block: Block, names: Sequence[str], first: Sequence[str] = ()) -> FunctionDef:
    """A function of what it uses."""
    used = names_used(block)
    return FunctionDef(name, (*first, *(name for name in names if name in used)), block)


def _called(function: FunctionDef) -> Do:
    return Do(call(function.name, *map(Var, function.params)))


def _by_workers(block: Block) -> tuple[Block, Block]:
    """What each worker does, with what is computed before, and what is done once all have done it.

    A loop over tiles around the workers becomes part of each worker's: no worker reads what another one writes.
    """
    at = next(n for n, stmt in enumerate(block) if has_threads((stmt,)))
    before, loop, after = block[:at], block[at], block[at + 1 :]
    if not isinstance(loop, For) or not all(isinstance(stmt, Assign) for stmt in before):
        raise TypeError(f"a parallel loop within {loop}, after {before}")
    distributed, rest = (loop.body, ()) if loop.parallel else _by_tiles(loop)
    return (*before, *distributed), ((*before, *rest, *after) if rest or after else ())


def _by_tiles(loop: For) -> tuple[Block, Block]:
    """The same of a loop over tiles. Where each block has a partial sum, each tile adds to it, and they are joined after all tiles."""
    distributed, rest = _by_workers(loop.body)
    if not rest:
        return (replace(loop, body=distributed),), ()
    rest = tuple(stmt for stmt in rest if not (isinstance(stmt, Assign) and loop.var.name in names_used((stmt,))))
    if loop.var.name in names_used(rest):
        raise TypeError(f"{rest} follows a parallel loop in each tile of {loop}")
    block, worker = Var("block"), Var("worker")
    start, stop = (Var("blocks") * at // Var("workers") for at in (worker, worker + 1))
    emptied = For(block, start, stop, (Store(PARTIAL, block, Const(0)),))
    return (emptied, replace(loop, body=_adding(distributed))), rest


def _adding(block: Block) -> Block:
    """The block with partial sums added to what there is."""
    return tuple(
        replace(stmt, add=True)
        if isinstance(stmt, Store) and stmt.array == PARTIAL
        else map_blocks(stmt, _adding)
        if isinstance(stmt, For | While | If)
        else stmt
        for stmt in block
    )


def _parts(block: Block, params: Sequence[Param]) -> Block:
    """Of workspaces, the worker's part."""
    used = names_used(block)
    used_params = [param for param in params if param.what in PARTS and param.name in used]
    return tuple(Assign(Var(p.name), call("shifted", Var(p.name), Var("worker") * Var(f"{p.of}_{PARTS[p.what]}"))) for p in used_params)


def fill_of(stmt: ix.Stmt) -> float:
    """What an entry without terms is: where only stored terms count, what these are joined to, as a semiring's zero."""
    _, written = around_result(stmt)
    joined = [a.op for a in ix.assignments(stmt) if a == written or a.lhs == written.rhs]
    of_stored = [REDUCTIONS[op] for op in joined if op in REDUCTIONS and REDUCTIONS[op].of_stored]
    return of_stored[0].start(written.lhs.tensor.dtype) if of_stored else 0.0


def _lowered(stmt: ix.Stmt, operands: list[ix.Access], stage: Stage) -> Block:
    """The statement's loop IR, with the frame of an assembled result."""
    result, spaces = ix.result_of(stmt), [space.tensor for space in workspaces_of(stmt)]
    inserted = frozenset(space.name for space in spaces if is_collected(space) or is_marked(space))
    kind = _kind_of(stmt, stage)
    assembly = kind(result, stage) if result.tensor.is_assembled else None
    env = Env(tuple(a for a in operands if not a.tensor.is_dense), inserted=inserted, assembly=assembly)
    body = lower(stmt, env)
    if has_threads(body):
        return body
    return (*stamps(env), *by_worker(in_block(body, env, Const(0)), env, Const(0)))


def _kind_of(stmt: ix.Stmt, stage: Stage) -> type[Assembly]:
    """How an assembled result is written."""
    if is_spaced(ix.result_of(stmt).tensor.format):
        return Spacing
    return Placement if is_placed(stmt) else Appending if _appends(stmt, stage) else Assembly


def _all_params(stmt: ix.Stmt, operands: list[ix.Access]) -> list[Param]:
    """Everything a kernel could ask for, in the order of its signature."""
    result = ix.result_of(stmt)
    params: list[Param] = []
    tensors = [*operands, *ix.returned_by(stmt), result]
    for access in tensors:
        tensor = access.tensor
        if not tensor.is_dense and tensor.shares is None:
            for at, level in enumerate(tensor.format.levels):
                dtypes = {a: level.array_dtype(a) or tensor.index_dtype for a in level.arrays}
                params += [Param(f"{tensor.name}{at + 1}_{a}", a, tensor.name, at, dtype) for a, dtype in dtypes.items()]
        params.append(Param(f"{tensor.name}_vals", "vals", tensor.name, dtype=tensor.dtype))
        params += [Param(f"{tensor.name}_entries", "entries", tensor.name)] if not tensor.is_dense else []
    if is_placed(stmt):
        name = result.tensor.name
        params += [Param(f"{name}_heads", "heads", name), Param(f"{name}_parents", "parents", name)]
    for space in workspaces_of(stmt):
        name = space.tensor.name
        level = space.tensor.format.levels[0]
        params += [Param(f"{name}_{array}", array, name, dtype=level.array_dtype(array) or "int64") for array in arrays_of(space)]
        params.append(Param(f"{name}_vals", "space", name, dtype=space.tensor.dtype))
        params.append(Param(f"{name}_size", *_room_of(space)))
    for name, (added, _) in scattered(stmt).items():
        params += [Param(f"{name}_parts", "parts", name, dtype=added.tensor.dtype), Param(f"{name}_places", "places", name)]
    params += [Param("partial_vals", "partial", dtype=result.tensor.dtype), Param("cuts", "cuts")]
    params += [Param("starts", "starts"), Param("bounds", "bounds")]
    params += [Param("blocks", "blocks"), Param("workers", "workers")]
    params += [Param(f"{loop.var}_size", "size", loop.var.name) for loop in _distinct(ix.loops_of(stmt))]
    for access in tensors:
        params += [Param(f"{access.tensor.name}_stride{at}", "stride", access.tensor.name, at) for at in range(len(access.indices))]
    return params


def _room_of(space: ix.Access) -> tuple[str, str]:
    """What says how many places a workspace has: its hash table, the rows that it lies beside, or the dimension."""
    if space.tensor.is_row:
        return "longest", space.tensor.shares or ""
    return ("capacity", space.tensor.name) if is_hashed(space) else ("size", space.indices[0].name)


def _distinct(loops: list[ix.Forall]) -> list[ix.Forall]:
    return list({loop.var: loop for loop in loops}.values())


def must_be_zeroed(stmt: ix.Stmt) -> bool:
    """Whether some entry of the result may never be written, or is added to.

    An entry is sure to be written where every loop around the result's assignment is over a
    variable of the result and leaves no coordinate out.
    """
    loops, assignment = around_result(stmt)
    chunked = [loop.var for loop in loops if loop.tag == ix.Specialize("tiles")]  # the first chunk writes, and the others add to it
    if (assignment.op == "+=" and not chunked) or assignment.lhs.tensor.is_assembled or is_zero(simplified(ix.value_of(stmt))):
        return True
    result = assignment.lhs
    sparse = [a for a in (*ix.operands_of(stmt), *ix.accesses_in(assignment.rhs)) if not a.tensor.is_dense]  # workspaces, too
    for loop in loops:
        if loop.tag == ix.Specialize("coordinates") or loop.var in chunked:
            continue  # all coordinates
        if loop.var not in result.indices:
            return True
        iterating = [a for a in sparse if any(a.level_var(at) == loop.var and not lv.full for at, lv in enumerate(a.tensor.format.levels))]
        if any(a.tensor.name != result.tensor.shares for a in iterating):
            return True
    return False
