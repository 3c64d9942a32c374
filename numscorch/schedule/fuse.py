"""fuse: statements that share their outer loops become one nest, which keeps what they pass on in registers or in one row.

What a statement makes for the next one is a scalar in the shared loops, a row of a dense tensor, or a row beside the
entries of a pattern: the scores of one row in attention (Scorch leaves fusion across operators to future work; for
loops that are shared in part see Dias, Sundararajah, Saumya, Kulkarni, "SparseLNR", ICS 2022).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from ..ir.functions import REGISTER_FUNCTIONS
from ..ir.index import (
    Access,
    Assignment,
    Expr,
    Forall,
    IndexVar,
    Positions,
    Stmt,
    TensorVar,
    Vector,
    Where,
    accesses_in,
    assignments,
    is_product,
    map_rhs,
    mapped,
    operators_in,
    variables_in,
)
from ..ir.verify import verify
from . import Step
from .cost import fan_of
from .facts import Facts, Target
from .loop_order import unit_stride
from .parallel import parallelize
from .vector import LANES, vectorize
from .workspace import insert_workspaces, wrap

SPREAD = 8  # coordinates from which a loop is worth being cut into blocks: one that has fewer goes inside


@lru_cache(maxsize=1024)
def schedule_fused(members: tuple[Assignment, ...], outer: tuple[IndexVar, ...], facts: Facts, target: Target) -> tuple[Step, ...]:
    """The passes on statements that share the outer loops; the last step holds the nest."""
    order = _outermost(outer, facts)
    nest = fused([_scheduled(member, order, facts, target) for member in members])
    loops = wrap([Forall(var, nest) for var in order], nest)
    steps = [Step("fuse", verify(loops), _told(members, order, loops))]
    done, why = parallelize(loops, facts)
    return (*steps, Step("parallelize", verify(done), why))


def _told(members: Sequence[Assignment], outer: Sequence[IndexVar], loops: Stmt) -> str:
    """Which loops statements share, and what is kept between them: numbers, rows, and nothing where loops were joined."""
    made = [member.lhs for member in members[:-1] if not member.lhs.tensor.is_returned]
    filled = {a.lhs.tensor for a in assignments(loops)}
    count = len(made) + 1
    loop = f"the loop{'s' if len(outer) > 1 else ''} over {_listed(outer)}"
    return (
        f"{count} statement{'s share' if count > 1 else ' in'} {loop}; passed on: {_kept(made, filled)}"
        if made
        else f"one statement in {loop}"
    )


def _kept(made: Sequence[Access], filled: Collection[TensorVar]) -> str:
    """What of temporaries is in memory: those that are ``filled``, a number or a row of each.

    >>> from ..ir.notation import parse_stmt
    >>> row, number = (parse_stmt(f"{text} = x").lhs for text in ("S_row[j]", "m_value"))
    >>> _kept([row, number], {row.tensor, number.tensor})
    'a row of S_row; the number m_value'
    >>> _kept([row, number], {number.tensor})
    'the number m_value; S_row in registers'
    """
    kinds: dict[str, list[TensorVar]] = {}
    for access in made:
        tensor = access.tensor
        if tensor not in filled:
            kinds.setdefault("{} in registers", []).append(tensor)
        elif not access.indices:
            kinds.setdefault("the number{s} {}", []).append(tensor)
        else:
            kinds.setdefault(f"a row of {{}}{f', beside that of {tensor.shares}' if tensor.shares else ''}", []).append(tensor)
    told = sorted(kinds.items(), key=lambda kind: (not kind[0].startswith("a row"), "registers" in kind[0]))
    return "; ".join(text.format(_listed(tensors), s="s" if len(tensors) > 1 else "") for text, tensors in told)


def _listed(named: Sequence[IndexVar | TensorVar]) -> str:
    *first, last = map(str, named)
    return f"{', '.join(first)} and {last}" if first else last


def _outermost(outer: tuple[IndexVar, ...], facts: Facts) -> tuple[IndexVar, ...]:
    """The shared loops, the first one with enough coordinates for all threads outermost."""
    first = next((var for var in outer if facts.extent(var) >= SPREAD), outer[0])
    return (first, *(var for var in outer if var != first))


def _scheduled(member: Assignment, outer: tuple[IndexVar, ...], facts: Facts, target: Target) -> Stmt:
    """A statement's own loops, below the shared ones."""
    loops = [Forall(var, member) for var in inner_order(member, outer)]
    nest: Stmt = wrap(loops, member)
    if not loops:
        return nest
    if member.lhs.indices:
        nest, _ = insert_workspaces(nest, facts)
    if member.op in ("=", "+=") and is_product(member.rhs):
        if member.lhs.indices:
            return vectorize(nest, facts, target)[0]
        summed, _ = vectorize(Where(member, nest), facts, target)  # the sum is a register already
        return summed.producer if isinstance(summed, Where) else nest
    return _in_registers(loops, member, nest, facts, target)


def inner_order(member: Assignment, outer: Sequence[IndexVar]) -> list[IndexVar]:
    """A statement's own variables: what sparse levels store, what is summed, what is left; sums into strided results come last.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> member = parse_stmt("O[i,e] = A[i,j] * V[j,e]", {"A": TensorVar("A", CSR)})
    >>> [str(var) for var in inner_order(member, [IndexVar("i")])]
    ['j', 'e']
    """
    used = [var for var in dict.fromkeys([*variables_in(member.rhs), *member.lhs.indices]) if var not in outer]
    stored = [var for var in used if any(_stores(a, var) for a in accesses_in(member.rhs))]
    summed = [var for var in used if var not in member.lhs.indices and var not in stored]
    rest = [var for var in used if var not in stored and var not in summed]
    side_by_side = is_product(member.rhs) and member.op in ("=", "+=") and member.lhs.tensor.dtype in LANES
    accesses = [member.lhs, *accesses_in(member.rhs)]
    side_by_side = side_by_side and all(unit_stride(a, var) for var in rest[-1:] for a in accesses if var in a.indices)
    return [*stored, *summed, *rest] if side_by_side else [*rest, *stored, *summed]


def _stores(access: Access, var: IndexVar) -> bool:
    levels = access.tensor.format.levels
    return not access.tensor.is_dense and any(not level.full and access.level_var(at) == var for at, level in enumerate(levels))


def _in_registers(loops: list[Forall], member: Assignment, nest: Stmt, facts: Facts, target: Target) -> Stmt:
    """The statement's one loop in registers, whatever operators there are, where these have vector instructions."""
    if len(loops) != 1 or member.lhs.tensor.dtype not in LANES or not can_run_in_registers(member.rhs):
        return nest
    var, lanes = loops[0].var, target.lanes(member.lhs.tensor.dtype)
    walked = [a for a in accesses_in(member.rhs) if _stores(a, var)]
    if walked:
        is_long = fan_of(walked[0], len(walked[0].indices) - 1, facts) >= lanes
        return wrap([replace(loops[0], tag=Positions(lanes))], member) if is_long else nest
    accesses = [member.lhs, *accesses_in(member.rhs)]
    if member.op == "=" and var in member.lhs.indices and all(unit_stride(a, var) for a in accesses if var in a.indices):
        tiles = facts.tiling(var)
        return wrap([replace(loops[0], tag=Vector(lanes, tiles.registers, tiles.tail, tiles.masked))], member)
    return nest


def can_run_in_registers(expr: Expr) -> bool:
    """Whether all of its operators and functions have vector instructions."""
    return operators_in(expr) <= set(REGISTER_FUNCTIONS)


def fused(bodies: Sequence[Stmt]) -> Stmt:
    """The bodies one after the other, each but the last filling what the later ones read; equal loops are joined.

    >>> from ..ir.notation import parse_stmt
    >>> first = parse_stmt("vector_forall<8 x 1, once>(k, where(D_row[k] = t, forall(j, t += A[j] * X[j,k])))")
    >>> last = parse_stmt("vector_forall<8 x 1, once>(k, C[i,k] = relu(D_row[k] + b[k]))")
    >>> print(fused([first, last]))
    vector_forall<8 x 1, once>(k, where(C[i,k] = relu(t + b[k]), forall(j, t += A[j] * X[j,k])))
    """
    nest = bodies[-1]
    for body in reversed(bodies[:-1]):
        nest = _joined(nest, body) or Where(nest, body)
    return nest


def _joined(consumer: Stmt, producer: Stmt) -> Stmt | None:
    """One loop for both, without the row between them; None where their loops differ, or it would be computed more than once."""
    match consumer, producer:
        case Forall(var, read, Vector() as tag), Forall(other, filled, own) if var == other and tag == own:
            row = next(assignments(filled))
            if row.op != "=" or (not isinstance(row.rhs, Access) and _times_read(read, row.lhs) > 1):
                return None
            inlined = map_rhs(read, lambda rhs: mapped(rhs, lambda a: row.rhs if a == row.lhs else a))
            return Forall(var, inlined if isinstance(filled, Assignment) else _around(inlined, filled), tag)
        case _:
            return None


def _times_read(stmt: Stmt, access: Access) -> int:
    return sum(own == access for made in assignments(stmt) for own in accesses_in(made.rhs))


def _around(consumer: Stmt, filled: Stmt) -> Stmt:
    """The consumer in place of what the filled statement writes."""
    if isinstance(filled, Where) and isinstance(filled.consumer, Assignment):
        return Where(consumer, filled.producer)
    raise TypeError(f"{filled} fills no row")
