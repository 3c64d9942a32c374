"""assemble: turn lowered loops into functions with parameters, and state how the result's memory must be initialised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir import index as ix
from ..ir.assembled import around_result, bound_of, is_placed, may_take_room, position_dtype
from ..ir.derived_formats import runs_of
from ..ir.functions import REDUCTIONS, is_zero, simplified
from ..ir.loop import Assign, Block, Const, Do, For, FunctionDef, Store, Var, call, has_threads, names_used, rewrite
from ..ir.verify import can_merge_without_branches
from ..ir.workspace_levels import PackedWorkspace
from ..schedule.facts import Target
from .environment import Env
from .hoisting import hoist_loads
from .long_sums import block_sums, scattered
from .lowering import lower
from .peephole import shorten, simplify
from .places_ahead import load_places_ahead
from .result_assembly import Appending, Assembly, Placement, Spacing, Stage, is_spaced
from .workspaces import arrays_of, has_level, stamps, workspaces_of


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel.

    ``name`` is its name in the source, ``what`` its role, ``of`` the name of its tensor or variable, and ``at`` a level or
    dimension.

    ==========  =====================================================  ==============
    what        meaning                                                at
    ==========  =====================================================  ==============
    split       start of each worker's part below each parent      level, from 0
    pos, crd    index array of an operand; some levels have others     level, from 0
    vals        values of an operand or the result
    order       place of each position's value, if they are stored in another order
    stride      stride of a dense tensor, in values                    dimension
    size        extent of a variable
    cuts        start of each block of the outermost loop
    partial     partial sum of each block
    starts      first position of each block, for each run of the result
    heads       next position below each parent of the result, for each worker
    bounds      upper bound of the insertions into one row, for each block
    list, mark  coordinates in a workspace, and the stamp of each coordinate
    seen        number of terms of each value in a workspace
    flag        1 for each coordinate in a workspace of one row
    table       hash table of a workspace, from coordinates to places in its list
    space       values of a workspace
    parts       block sums of a loop that scatters
    places      number of block sums of one worker
    parents     number of parents of the entries of a placed result
    capacity    number of places in a workspace of packed rows
    longest     number of positions in the longest row of an operand
    entries     number of values that an operand stores
    blocks      number of blocks
    workers     number of workers
    ==========  =====================================================  ==============
    """

    name: str
    what: str
    of: str = ""
    at: int = 0
    dtype: str = "int64"

    @property
    def is_array(self) -> bool:
        """Whether the parameter is an array rather than an integer."""
        return self.what not in SCALARS


SCALARS = ("stride", "size", "capacity", "longest", "parents", "places", "entries", "blocks", "workers")
PARTIAL = Var("partial_vals")
WORKSPACE = ("list", "mark", "seen", "flag", "table", "space")  # arrays of a workspace; each worker has a separate part
PARTS = dict.fromkeys(WORKSPACE, "size") | {"heads": "parents", "parts": "places"}  # arrays with a part per worker; size of a part


@dataclass(frozen=True, slots=True)
class KernelBody:
    """A kernel's functions and parameters, and the initial value of its result.

    ``kernel``, the last function, takes all parameters. A ``parallel`` kernel calls ``body`` for each worker, and then
    ``finish`` if any work remains. Otherwise ``kernel`` is the only function. If ``zeroed``, the caller fills the result with
    ``fill`` first.
    """

    functions: tuple[FunctionDef, ...]
    params: tuple[Param, ...]
    zeroed: bool
    parallel: bool
    fill: float = 0.0


def stages_of(stmt: ix.Stmt) -> tuple[Stage, ...]:
    """Return the stages of a statement in the order of their calls. Each stage is a kernel.

    A result with a new pattern takes two stages: ``count`` counts its entries, and ``fill`` writes them. A hashed or sorted workspace
    adds ``bound``, which finds its size. If the operands bound the number of entries, ``fill`` alone is enough. If the
    insertions bound the number of entries, ``room`` counts the insertions, and ``once`` appends the entries if memory for all
    insertions is available.
    """
    result = ix.result_of(stmt).tensor
    bounding: tuple[Stage, ...] = ("bound",) if any(has_level(space.tensor, PackedWorkspace) for space in workspaces_of(stmt)) else ()
    if not result.is_assembled or not runs_of(result.format) or is_spaced(result.format) or bound_of(stmt):
        return (*bounding, "fill")
    if may_take_room(stmt):
        return (*bounding, "room", "once", "count", "fill")
    return (*bounding, "count", "fill")


def at_stage(stmt: ix.Stmt, stage: Stage) -> ix.Stmt:
    """Return the statement of one stage. Branchless merges that can't write a counted result become plain merges."""
    if not ix.result_of(stmt).tensor.is_assembled or _appends(stmt, stage):
        return stmt

    def plain(loop: ix.Forall) -> ix.Forall:
        is_impossible = isinstance(loop.tag, ix.Blend) and not can_merge_without_branches(loop, appends=False)
        return replace(loop, tag=ix.Serial()) if is_impossible else loop

    return ix.map_loops(stmt, plain)


def _appends(stmt: ix.Stmt, stage: Stage) -> bool:
    """Whether a stage appends entries of the result that no earlier stage has counted."""
    return stage == "once" or bound_of(stmt) is not None


def assemble(stmt: ix.Stmt, target: Target, stage: Stage = "fill") -> KernelBody:
    """Lower a scheduled statement into the functions of one stage, with only the parameters that they use."""
    operands = ix.operands_of(stmt)
    known = _all_params(stmt, operands)
    body = simplify(hoist_loads(_loop_ir(stmt, operands, stage), target.registers // 2))
    body = load_places_ahead(body, [access.tensor.name for access in operands if access.tensor.is_far])
    starts = {p.name for p in known if p.what == "pos"}
    body = block_sums(shorten(body, starts))
    parallel, used = has_threads(body), names_used(body)
    if parallel:
        used |= {f"{p.of}_{PARTS[p.what]}" for p in known if p.what in PARTS and p.name in used}
    params = tuple(p for p in known if p.name in used)
    return KernelBody(functions_of(body, params), params, must_be_zeroed(stmt), parallel, fill_of(stmt))


def functions_of(block: Block, params: Sequence[Param]) -> tuple[FunctionDef, ...]:
    """Return the functions of a kernel: ``body`` for each worker, ``finish`` for the end, and ``kernel``, which calls them."""
    names = tuple(param.name for param in params)
    if not has_threads(block):
        return (FunctionDef("kernel", names, block),)
    work, remainder = _by_workers(block)
    work = (*_parts(work, params), *work)
    body, finish = _function("body", work, names, ("worker",)), _function("finish", remainder, names)
    calls = For(Var("worker"), Const(0), Var("workers"), (_call_of(body),), parallel=True)
    last = (finish,) if remainder else ()
    return (body, *last, FunctionDef("kernel", names, (calls, *map(_call_of, last))))


def _function(name: str, block: Block, names: Sequence[str], first: Sequence[str] = ()) -> FunctionDef:
    """Make a function that takes only the parameters that its body uses."""
    used = names_used(block)
    return FunctionDef(name, (*first, *(name for name in names if name in used)), block)


def _call_of(function: FunctionDef) -> Do:
    return Do(call(function.name, *map(Var, function.params)))


def _by_workers(block: Block) -> tuple[Block, Block]:
    """Split a block into the work of each worker, including the setup, and the work after all workers finish.

    A loop over tiles around the workers moves into each worker, because no worker reads the results of another.
    """
    at = next(n for n, stmt in enumerate(block) if has_threads((stmt,)))
    before, loop, after = block[:at], block[at], block[at + 1 :]
    if not isinstance(loop, For) or not all(isinstance(stmt, Assign) for stmt in before):
        raise TypeError(f"expected a parallel loop after assignments, found {loop} after {before}")
    work, remainder = (loop.body, ()) if loop.parallel else _by_tiles(loop)
    return (*before, *work), ((*before, *remainder, *after) if remainder or after else ())


def _by_tiles(loop: For) -> tuple[Block, Block]:
    """Split a loop over tiles as in :func:`_by_workers`. Tiles add to the blocks' partial sums, which are added after the last tile."""
    work, remainder = _by_workers(loop.body)
    if not remainder:
        return (replace(loop, body=work),), ()
    remainder = tuple(stmt for stmt in remainder if not (isinstance(stmt, Assign) and loop.var.name in names_used((stmt,))))
    if loop.var.name in names_used(remainder):
        raise TypeError(f"the statements after a parallel loop depend on the tile {loop.var.name}: {remainder}")
    block, worker = Var("block"), Var("worker")
    start, stop = (Var("blocks") * at // Var("workers") for at in (worker, worker + 1))
    clear = For(block, start, stop, (Store(PARTIAL, block, Const(0)),))
    return (clear, replace(loop, body=_add_partial_sums(work))), remainder


def _add_partial_sums(block: Block) -> Block:
    """Make a block add to partial sums rather than overwrite them."""
    return rewrite(block, lambda stmt: (replace(stmt, add=True) if isinstance(stmt, Store) and stmt.array == PARTIAL else stmt,))


def _parts(block: Block, params: Sequence[Param]) -> Block:
    """Make the pointers of arrays with a part for each worker point to the worker's part."""
    used = names_used(block)
    used_params = [param for param in params if param.what in PARTS and param.name in used]
    return tuple(Assign(Var(p.name), call("shifted", Var(p.name), Var("worker") * Var(f"{p.of}_{PARTS[p.what]}"))) for p in used_params)


def fill_of(stmt: ix.Stmt) -> float:
    """Return the value of an entry without terms: the reduction's identity if only stored terms are reduced, else 0."""
    _, assignment = around_result(stmt)
    operators = [a.op for a in ix.assignments(stmt) if a == assignment or a.lhs == assignment.rhs]
    of_stored = [REDUCTIONS[op] for op in operators if op in REDUCTIONS and REDUCTIONS[op].of_stored]
    return of_stored[0].start(assignment.lhs.tensor.dtype) if of_stored else 0.0


def _loop_ir(stmt: ix.Stmt, operands: list[ix.Access], stage: Stage) -> Block:
    """Return the statement's loop IR, wrapped in the code that an assembled result needs."""
    env = Env(tuple(a for a in operands if not a.tensor.is_dense), _kind_of(stmt, stage)(ix.result_of(stmt), stage))
    body = lower(stmt, env)
    return body if has_threads(body) else (*stamps(stmt), *env.assembly.in_block(body, Const(0)))


def _kind_of(stmt: ix.Stmt, stage: Stage) -> type[Assembly]:
    if not ix.result_of(stmt).tensor.is_assembled:
        return Assembly
    if is_spaced(ix.result_of(stmt).tensor.format):
        return Spacing
    return Placement if is_placed(stmt) else Appending if _appends(stmt, stage) else Assembly


def _all_params(stmt: ix.Stmt, operands: list[ix.Access]) -> list[Param]:
    """Return every parameter that a kernel may take, in the order of its signature."""
    result = ix.result_of(stmt)
    params: list[Param] = []
    tensors = [*operands, *ix.returned_by(stmt), result]
    for access in tensors:
        tensor = access.tensor
        if not tensor.is_dense and tensor.shares is None:
            for at, level in enumerate(tensor.format.levels):
                dtypes = {a: level.array_dtype(a) or tensor.index_dtype for a in level.arrays}
                params += [Param(f"{tensor.name}{at + 1}_{a}", a, tensor.name, at, dtype) for a, dtype in dtypes.items()]
                params += [Param(f"{tensor.name}{at + 1}_parts", "split", tensor.name, at)] if "pos" in level.arrays else []
        params.append(Param(f"{tensor.name}_vals", "vals", tensor.name, dtype=tensor.dtype))
        params += [Param(f"{tensor.name}_order", "order", tensor.name, dtype=tensor.index_dtype)] if tensor.is_reordered else []
        params += [Param(f"{tensor.name}_entries", "entries", tensor.name)] if not tensor.is_dense else []
    if is_placed(stmt):
        name, dtype = result.tensor.name, position_dtype(result.tensor.format, result.tensor.index_dtype)
        params += [Param(f"{name}_next", "heads", name, dtype=dtype), Param(f"{name}_parents", "parents", name)]
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
    params += [Param(f"{loop.var}_size", "size", loop.var.name) for loop in {loop.var: loop for loop in ix.loops_of(stmt)}.values()]
    for access in tensors:
        params += [Param(f"{access.tensor.name}_stride{at}", "stride", access.tensor.name, at) for at in range(len(access.indices))]
    return params


def _room_of(space: ix.Access) -> tuple[str, str]:
    """Return the role and name of a workspace's size: the capacity for packed rows, the longest row, or a variable's extent."""
    if space.tensor.is_row:
        return "longest", space.tensor.shares or ""
    return ("capacity", space.tensor.name) if has_level(space.tensor, PackedWorkspace) else ("size", space.indices[0].name)


def must_be_zeroed(stmt: ix.Stmt) -> bool:
    """Whether the result needs initial values: an entry may stay unwritten, or terms are added to it.

    Every entry is written if each loop around the result's assignment runs over a variable of the result and skips no coordinate.
    """
    loops, assignment = around_result(stmt)
    chunked = [loop.var for loop in loops if loop.tag == ix.Specialize("tiles")]  # the first chunk writes, later chunks add
    if (assignment.op == "+=" and not chunked) or assignment.lhs.tensor.is_assembled or is_zero(simplified(ix.value_of(stmt))):
        return True
    result = assignment.lhs
    sparse = [a for a in (*ix.operands_of(stmt), *ix.accesses_in(assignment.rhs)) if not a.tensor.is_dense]  # includes workspaces
    for loop in loops:
        if loop.tag == ix.Specialize("coordinates") or loop.var in chunked:
            continue  # the loop covers all coordinates
        if loop.var not in result.indices:
            return True
        iterating = [a for a in sparse if any(a.level_var(at) == loop.var and not lv.full for at, lv in enumerate(a.tensor.format.levels))]
        if any(a.tensor.name != result.tensor.shares for a in iterating):
            return True
    return False
