"""assemble: lowered loops become a function with parameters, and the result's memory gets its contract."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir import index as ix
from ..ir.loop import Assign, Block, For, Function, Var, call, names_used
from ..schedule.facts import Target
from .environment import Env
from .hoisting import hoist_loads
from .lowering import lower
from .peephole import simplify


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel: ``name`` in the source, ``what`` it is, of which tensor or variable.

    ==========  =============================================  ==============
    what        meaning                                        at
    ==========  =============================================  ==============
    pos, crd    an index array of an operand                   level, from 0
    vals        the values of an operand or the result
    stride      of a dense tensor, in values                   dimension
    size        the extent of a variable
    cuts        where blocks of the outermost loop start
    partial     one partial sum for each block
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
        return self.what in ("pos", "crd", "vals", "cuts", "partial")


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel's function, its parameters, and whether the result must start as zeros."""

    function: Function
    params: tuple[Param, ...]
    zeroed: bool
    parallel: bool


def assemble(stmt: ix.Stmt, target: Target) -> Program:
    """Lower a scheduled statement into a function of the parameters that it uses."""
    operands = ix.operands_of(stmt)
    sparse = tuple(a for a in operands if not a.tensor.is_dense)
    body = simplify(hoist_loads(lower(stmt, Env(sparse)), target.registers // 2))
    used = names_used(body)
    params = tuple(p for p in _all_params(stmt, operands) if p.name in used)
    arrays = {p.name for p in params if p.is_array}
    names = tuple(f"{p.name}_array" if p.is_array else p.name for p in params)
    parallel = any(isinstance(s, For) and s.parallel for s in body)
    return Program(Function("kernel", names, take_pointers(body, arrays)), params, must_be_zeroed(stmt), parallel)


def take_pointers(block: Block, arrays: set[str]) -> Block:
    """Turn arrays into pointers, inside a parallel loop for what it uses: pointers can't cross into it."""
    at = next((n for n, stmt in enumerate(block) if isinstance(stmt, For) and stmt.parallel), None)
    if at is None:
        return (*_pointers(names_used(block) & arrays), *block)
    loop, rest = block[at], block[at + 1 :]
    inside = _pointers(names_used((loop,)) & arrays)
    opened = replace(loop, body=(*inside, *loop.body)) if isinstance(loop, For) else loop
    return (*block[:at], opened, *_pointers(names_used(rest) & arrays), *rest)


def _pointers(names: set[str]) -> Block:
    return tuple(Assign(Var(name), call("pointer", Var(f"{name}_array"))) for name in sorted(names))


def _all_params(stmt: ix.Stmt, operands: list[ix.Access]) -> list[Param]:
    """Everything a kernel could ask for, in the order of its signature."""
    result = ix.result_of(stmt)
    params: list[Param] = []
    for access in [*operands, result]:
        tensor = access.tensor
        if not tensor.is_dense and tensor.shares is None:
            for at, level in enumerate(tensor.format.levels):
                params += [Param(f"{tensor.name}{at + 1}_{a}", a, tensor.name, at, tensor.index_dtype) for a in level.arrays]
        params.append(Param(f"{tensor.name}_vals", "vals", tensor.name, dtype=tensor.dtype))
    params += [Param("partial_vals", "partial", dtype=result.tensor.dtype), Param("cuts", "cuts")]
    params += [Param("blocks", "blocks"), Param("workers", "workers")]
    params += [Param(f"{loop.var}_size", "size", loop.var.name) for loop in _distinct(ix.loops_of(stmt))]
    for access in [*operands, result]:
        params += [Param(f"{access.tensor.name}_stride{at}", "stride", access.tensor.name, at) for at in range(len(access.indices))]
    return params


def _distinct(loops: list[ix.Forall]) -> list[ix.Forall]:
    return list({loop.var: loop for loop in loops}.values())


def must_be_zeroed(stmt: ix.Stmt) -> bool:
    """Whether some entry of the result may never be written, or is added to.

    An entry is sure to be written where every loop around the result's assignment is over a
    variable of the result and leaves no coordinate out.
    """
    loops, assignment = _around_result(stmt)
    if assignment.op == "+=":
        return True
    result = assignment.lhs
    sparse = [a for a in ix.operands_of(stmt) if not a.tensor.is_dense]
    for loop in loops:
        if loop.var not in result.indices:
            return True
        iterating = [a for a in sparse if any(a.level_var(at) == loop.var and not lv.full for at, lv in enumerate(a.tensor.format.levels))]
        if any(a.tensor.name != result.tensor.shares for a in iterating):
            return True
    return False


def _around_result(stmt: ix.Stmt) -> tuple[list[ix.Forall], ix.Assignment]:
    """The loops around the assignment of the result, and the assignment."""
    loops: list[ix.Forall] = []
    while not isinstance(stmt, ix.Assignment):
        if isinstance(stmt, ix.Forall):
            loops.append(stmt)
            stmt = stmt.body
        else:
            stmt = stmt.consumer
    return loops, stmt
