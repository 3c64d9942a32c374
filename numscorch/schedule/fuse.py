"""fuse: statements with common outer loops become one loop nest that keeps intermediate results in registers or rows.

Inside the shared loops, an intermediate result is a scalar, a row of a dense tensor, or a row of values for the entries of
a pattern, such as the attention scores of one row. Scorch leaves fusion across operators to future work; for partially
shared loops see Dias, Sundararajah, Saumya, Kulkarni, "SparseLNR", ICS 2022.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain, count as counted

from ..errors import ScheduleError
from ..ir.functions import REGISTER_FUNCTIONS
from ..ir.index import (
    Access,
    Assignment,
    Expr,
    Forall,
    IndexVar,
    Stmt,
    TensorVar,
    Vector,
    Where,
    accesses_in,
    assignments,
    is_product,
    map_expr,
    map_rhs,
    mapped,
    operators_in,
    variables_in,
    wrap,
)
from ..ir.verify import verify
from . import Step, tuning
from .facts import Facts, Target, by_answers
from .loop_order import unit_stride
from .parallel import parallelize
from .vector import result_tag, take_positions, vectorize
from .workspace import NAMES, insert_workspaces


@by_answers
def schedule_fused(members: tuple[Assignment, ...], outer: tuple[IndexVar, ...], facts: Facts, target: Target) -> tuple[Step, ...]:
    """Schedule statements that share the outer loops; the last step holds the loop nest."""
    order = outer if members[-1].lhs.tensor.prunes else _outer_order(outer, facts)  # appended entries come in order
    reserved = {var.name for member in members for var in (*variables_in(member.rhs), *outer)}
    bodies = [_schedule_member(member, order, facts, target, member is not members[-1]) for member in members]
    nest = fused([_rename_scalar_sums(body, reserved) for body in bodies], reserved)
    loops = wrap([Forall(var, nest) for var in order], nest)
    steps = [Step("fuse", verify(loops), _why_fused(members, order, loops))]
    parallel, why = parallelize(loops, facts)
    return (*steps, Step("parallelize", verify(parallel), why))


def _why_fused(members: Sequence[Assignment], outer: Sequence[IndexVar], loops: Stmt) -> str:
    """Tell which loops the statements share, and where intermediate results are kept."""
    temporaries = [member.lhs for member in members[:-1] if not member.lhs.tensor.is_returned]
    tensors_in_memory = {a.lhs.tensor for a in assignments(loops)}
    count = len(temporaries) + 1
    loop = f"the loop{'s' if len(outer) > 1 else ''} over {_join_names(outer)}"
    return (
        f"{count} statements share {loop}; intermediate results: {_storage_text(temporaries, tensors_in_memory)}"
        if temporaries
        else f"one statement in {loop}"
    )


def _storage_text(temporaries: Sequence[Access], filled: Collection[TensorVar]) -> str:
    """Tell where temporaries are kept: as a number or a row in memory if they are ``filled``, else in registers.

    >>> from ..ir.notation import parse_stmt
    >>> row, number = (parse_stmt(f"{text} = x").lhs for text in ("S_row[j]", "m_value"))
    >>> _storage_text([row, number], {row.tensor, number.tensor})
    'a row of S_row; the number m_value'
    >>> _storage_text([row, number], {number.tensor})
    'the number m_value; S_row in registers'
    """
    kinds: dict[str, list[TensorVar]] = {}
    for access in temporaries:
        tensor = access.tensor
        if tensor not in filled:
            kinds.setdefault("{} in registers", []).append(tensor)
        elif not access.indices:
            kinds.setdefault("the number{s} {}", []).append(tensor)
        else:
            kinds.setdefault(f"a row of {{}}{f', with the pattern of {tensor.shares}' if tensor.shares else ''}", []).append(tensor)
    groups = sorted(kinds.items(), key=lambda kind: (not kind[0].startswith("a row"), "registers" in kind[0]))
    return "; ".join(text.format(_join_names(tensors), s="s" if len(tensors) > 1 else "") for text, tensors in groups)


def _join_names(objects: Sequence[IndexVar | TensorVar]) -> str:
    *first, last = map(str, objects)
    return f"{', '.join(first)} and {last}" if first else last


def _outer_order(outer: tuple[IndexVar, ...], facts: Facts) -> tuple[IndexVar, ...]:
    """Move the first shared loop with enough coordinates for all threads outermost."""
    first = next((var for var in outer if facts.extent(var) >= tuning.SHARED_COORDINATES), outer[0])
    return (first, *(var for var in outer if var != first))


def _schedule_member(member: Assignment, outer: tuple[IndexVar, ...], facts: Facts, target: Target, is_kept: bool) -> Stmt:
    """Schedule the loops of one statement below the shared loops; a kept row is written once and never added to.

    Raises:
        ScheduleError: every order of the loops adds to a kept row.
    """
    for order in inner_orders(member, outer):
        nest = _nest(member, [Forall(var, member) for var in order], facts, target)
        if not is_kept or not member.lhs.indices or all(a.op == "=" for a in assignments(nest) if a.lhs == member.lhs):
            return nest
    raise ScheduleError(f"{member} adds to a row that is not cleared")


def _nest(member: Assignment, loops: list[Forall], facts: Facts, target: Target) -> Stmt:
    """Wrap a statement in loops, with sums in registers, and in vectors if these pay."""
    nest: Stmt = wrap(loops, member)
    if member.lhs.tensor.prunes:
        return _vectorize_append(nest, facts)
    if not loops:
        return nest
    if member.lhs.indices:
        nest, _ = insert_workspaces(nest, facts)
    if member.op in ("=", "+=") and is_product(member.rhs):
        if member.lhs.indices:
            return vectorize(nest, facts, target)[0]
        summed, _ = vectorize(Where(member, nest), facts, target)  # the sum is a register already
        return summed.producer if isinstance(summed, Where) else nest
    return _vectorize_loop(nest, facts, target)


def _vectorize_append(nest: Stmt, facts: Facts) -> Stmt:
    """Vectorise a loop that appends the kept entries of a row, if the row is dense and blocks with limited entries divide a register.

    >>> from ..ir.format import CSR, dense
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {"C": TensorVar("C", CSR, prunes=True), "C_row": TensorVar("C_row", dense(1), strides="1")}
    >>> loop = parse_stmt("forall(k, C[i,k] = where(C_row[k] <= t, 0, C_row[k]))", tensors)
    >>> print(_vectorize_append(loop, Facts.of({IndexVar("k"): 64}, {}, 8, Target())))
    vector_forall<8 x 8, once>(k, C[i,k] = where(C_row[k] <= t, 0, C_row[k]))
    """
    match nest:
        case Forall(var, Assignment(lhs, rhs)) if lhs.tensor.type.in_registers and lhs.indices[-1:] == (var,) and facts.is_tiled(var):
            tiles, along = facts.tiling(var), [a for a in accesses_in(rhs) if var in a.indices]
            is_dense = all(a.tensor.is_dense and unit_stride(a, var) for a in along) and can_run_in_registers(rhs)
            fits = lhs.tensor.largest is None or tiles.lanes % lhs.tensor.largest[1] == 0
            if is_dense and fits and along and facts.extent(var) > 1:
                return replace(nest, tag=Vector(tiles.lanes, tiles.registers, tiles.tail, tiles.masked))
    return nest


def inner_orders(member: Assignment, outer: Sequence[IndexVar]) -> list[list[IndexVar]]:
    """Candidate orders of the variables of one statement; a contiguous result may also be innermost, since its tiles fit registers.

    >>> from ..ir.format import CSR
    >>> from ..ir.index import TensorVar
    >>> from ..ir.notation import parse_stmt
    >>> member = parse_stmt("O[i,e] = A[i,j] * V[j,e]", {"A": TensorVar("A", CSR)})
    >>> [[str(var) for var in order] for order in inner_orders(member, [IndexVar("i")])]
    [['j', 'e'], ['e', 'j']]
    """
    used = [var for var in dict.fromkeys([*variables_in(member.rhs), *member.lhs.indices]) if var not in outer]
    stored = [var for var in used if any(a.sparse_levels(var) for a in accesses_in(member.rhs))]
    summed = [var for var in used if var not in member.lhs.indices and var not in stored]
    dense_vars = [var for var in used if var not in stored and var not in summed]
    side_by_side = is_product(member.rhs) and member.op in ("=", "+=") and member.lhs.tensor.type.in_registers
    accesses = [member.lhs, *accesses_in(member.rhs)]
    side_by_side = side_by_side and all(unit_stride(a, var) for var in dense_vars[-1:] for a in accesses if var in a.indices)
    sums_last = [*dense_vars, *stored, *summed]
    return [[*stored, *summed, *dense_vars], sums_last] if side_by_side else [sums_last]


def _vectorize_loop(nest: Stmt, facts: Facts, target: Target) -> Stmt:
    """Run the only loop of a statement in registers if all of its operators have vector instructions."""
    match nest:
        case Where(Assignment() as consumer, Forall(_, Assignment()) as loop):
            return Where(consumer, _tag_loop(loop, facts, target))
        case Forall(_, Assignment()):
            return _tag_loop(nest, facts, target)
        case _:
            return nest


def _tag_loop(loop: Forall, facts: Facts, target: Target) -> Forall:
    """Tag a loop to take several positions at once, or several adjacent coordinates; return other loops unchanged."""
    var, term = loop.var, loop.body
    if not isinstance(term, Assignment) or not term.lhs.tensor.type.in_registers or not can_run_in_registers(term.rhs):
        return loop
    if any(a.sparse_levels(var) for a in accesses_in(term.rhs)):
        gathered = take_positions(loop, term, facts, target)
        return loop if gathered is None else gathered[0]
    accesses = [term.lhs, *accesses_in(term.rhs)]
    if term.op == "=" and var in term.lhs.indices and all(unit_stride(a, var) for a in accesses if var in a.indices):
        return replace(loop, tag=result_tag(facts.tiling(var)))
    return loop


def can_run_in_registers(expr: Expr) -> bool:
    """Whether all operators and functions of an expression have vector instructions."""
    return operators_in(expr) <= set(REGISTER_FUNCTIONS)


def fused(bodies: Sequence[Stmt], reserved: Collection[str] = ()) -> Stmt:
    """Combine bodies into one nest, in which each body computes values that later bodies read.

    Equal loops of neighbouring bodies become one loop. No register gets a ``reserved`` name.

    >>> from ..ir.notation import parse_stmt
    >>> first = parse_stmt("vector_forall<8 x 1, once>(k, where(D_row[k] = t, forall(j, t += A[j] * X[j,k])))")
    >>> last = parse_stmt("vector_forall<8 x 1, once>(k, C[i,k] = relu(D_row[k] + b[k]))")
    >>> print(fused([first, last]))
    vector_forall<8 x 1, once>(k, where(C[i,k] = relu(t + b[k]), forall(j, t += A[j] * X[j,k])))
    """
    nest = bodies[-1]
    for body in reversed(bodies[:-1]):
        nest = _join_loops(nest, body, reserved) or Where(nest, body)
    return nest


def _join_loops(consumer: Stmt, producer: Stmt, reserved: Collection[str]) -> Stmt | None:
    """Join two vector loops and drop the row between them; None if the loops differ or values would be computed more than once."""
    match consumer, producer:
        case (Forall(var, reader, Vector() as tag), Forall(other, Assignment() | Where(Assignment()) as writer, other_tag)) if (
            var == other and tag == other_tag
        ):
            row = next(assignments(writer))
            if row.op != "=" or (not isinstance(row.rhs, Access) and _times_read(reader, row.lhs) > 1):
                return None
            renamed = _rename_scalar_sums(writer, _registers(reader).union(reserved))
            row = next(assignments(renamed))
            inlined = map_rhs(reader, lambda rhs: mapped(rhs, lambda a: row.rhs if a == row.lhs else a))
            return Forall(var, Where(inlined, renamed.producer) if isinstance(renamed, Where) else inlined, tag)
        case _:
            return None


def _registers(stmt: Stmt) -> set[str]:
    """Names of the registers in which a statement sums."""
    return {a.lhs.tensor.name for a in assignments(stmt) if a.lhs.tensor.is_scalar}


def _rename_scalar_sums(stmt: Stmt, names_in_use: Collection[str]) -> Stmt:
    """Rename the registers of a statement whose names are in use.

    >>> from ..ir.notation import parse_stmt
    >>> print(_rename_scalar_sums(parse_stmt("where(T_row[k] = t, forall(j, t += A[j] * X[j,k]))"), {"t", "u"}))
    where(T_row[k] = v, forall(j, v += A[j] * X[j,k]))
    """
    registers = _registers(stmt)
    free = (name for name in chain(NAMES, (f"sum_{number}" for number in counted())) if name not in registers and name not in names_in_use)
    names = {name: next(free) for name in sorted(registers & set(names_in_use))}
    return map_expr(stmt, lambda a: replace(a, tensor=replace(a.tensor, name=names.get(a.tensor.name, a.tensor.name))))


def _times_read(stmt: Stmt, access: Access) -> int:
    return sum(read == access for assignment in assignments(stmt) for read in accesses_in(assignment.rhs))
