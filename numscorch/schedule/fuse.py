"""fuse: statements with common outer loops become one loop nest that keeps intermediate results in registers or rows.

Inside the shared loops, an intermediate result is a scalar, a row of a dense tensor, or a row of values for the entries of
a pattern, such as the attention scores of one row. Scorch leaves fusion across operators to future work; for partially
shared loops see Dias, Sundararajah, Saumya, Kulkarni, "SparseLNR", ICS 2022.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from itertools import chain, count as counted

from ..ir.index import (
    Access,
    Assignment,
    Forall,
    IndexVar,
    Stmt,
    TensorVar,
    Vector,
    Where,
    accesses_in,
    assignments,
    is_product,
    loops_of,
    map_expr,
    map_rhs,
    mapped,
    result_of,
    variables_in,
    with_tensor,
    wrap,
)
from . import tuning
from .facts import AUTOMATIC, GENERIC, Facts, Options, Target
from .statements import NAMES, nested, statements_of
from .vector import is_dense_loop


def fuse(members: Sequence[Assignment], outer: tuple[IndexVar, ...], facts: Facts) -> tuple[Stmt, str]:
    """Nest the loops of statements in the outer loops that they share; the returned text names the shared loops."""
    order = outer if members[-1].lhs.tensor.prunes else _outer_order(outer, facts)  # appended entries come in order
    bodies = [wrap([Forall(var, member) for var in inner_order(member, outer, facts)], member) for member in members]
    count = sum(not member.lhs.tensor.is_returned for member in members)
    subject = f"{count} statements share" if count > 1 else "one statement in"
    why = f"{subject} the loop{'s' if len(outer) > 1 else ''} over {_join_names(outer)}"
    return nested([Forall(var, bodies[-1]) for var in order], bodies), why


def join_loops(stmt: Stmt, facts: Facts, target: Target = GENERIC, options: Options = AUTOMATIC) -> tuple[Stmt, str] | None:
    """Join equal loops of fused statements, and keep numbers and joined rows in registers; None for a single statement.

    >>> from ..ir.notation import parse_stmt
    >>> first = "vector_forall<8 x 1, once>(k, where(D_row[k] = t, forall(j, t += A[i,j] * X[j,k])))"
    >>> last = "vector_forall<8 x 1, once>(k, C[i,k] = relu(D_row[k] + b[k]))"
    >>> print(*join_loops(parse_stmt(f"forall(i, where({last}, {first}))"), Facts(())) or (), sep="\\n")
    forall(i, vector_forall<8 x 1, once>(k, where(C[i,k] = relu(t + b[k]), forall(j, t += A[i,j] * X[j,k]))))
    intermediate results: D_row in registers
    """
    loops, statements = statements_of(stmt)
    if not loops:
        return None
    names = {loop.var.name for loop in loops_of(stmt)}
    nest = wrap(loops, fused([_rename_scalar_sums(_without_copy(each), names) for each in statements], names))
    temporaries = [result for each in statements[:-1] if not (result := result_of(each)).tensor.is_returned]
    return nest, f"intermediate results: {_storage_text(temporaries, {a.lhs.tensor for a in assignments(nest)})}"


def _without_copy(stmt: Stmt) -> Stmt:
    """Sum directly into a scalar, instead of into a register that is then copied to it.

    >>> from ..ir.notation import parse_stmt
    >>> print(_without_copy(parse_stmt("where(s_value = t, forall(j, t += A[i,j]))")))
    forall(j, s_value += A[i,j])
    """
    match stmt:
        case Where(Assignment(lhs, Access(register, ()), "="), producer) if lhs.tensor.is_scalar:
            return with_tensor(producer, register, lhs.tensor)
        case _:
            return stmt


def _storage_text(temporaries: Sequence[Access], filled: Collection[TensorVar]) -> str:
    """Tell where temporaries are kept: those in ``filled`` as a number or a row in memory, the others in registers.

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


def inner_order(member: Assignment, outer: Sequence[IndexVar], facts: Facts) -> list[IndexVar]:
    """The order of the loops of one statement: sums come last, except where tiles of a contiguous result stay in registers.

    >>> from ..ir.format import CSR, dense
    >>> from ..ir.notation import parse_stmt
    >>> tensors = {"A": TensorVar("A", CSR), **{name: TensorVar(name, dense(2), strides="n1") for name in "OV"}}
    >>> member = parse_stmt("O[i,e] += A[i,j] * V[j,e]", tensors)
    >>> [str(var) for var in inner_order(member, [IndexVar("i")], Facts.of({IndexVar("e"): 64}, {}, 8, GENERIC))]
    ['j', 'e']
    """
    used = [var for var in dict.fromkeys([*variables_in(member.rhs), *member.lhs.indices]) if var not in outer]
    stored = [var for var in used if any(a.sparse_levels(var) for a in accesses_in(member.rhs))]
    summed = [var for var in used if var not in member.lhs.indices and var not in stored]
    dense_vars = [var for var in used if var not in stored and var not in summed]
    in_tiles = is_product(member.rhs) and member.op in ("=", "+=") and member.lhs.tensor.type.in_registers
    in_tiles = in_tiles and all(is_dense_loop(var, member, facts) for var in dense_vars[-1:])
    return [*stored, *summed, *dense_vars] if in_tiles else [*dense_vars, *stored, *summed]


def fused(bodies: Sequence[Stmt], reserved: Collection[str] = ()) -> Stmt:
    """Combine bodies into one nest, in which each body computes values that later bodies read.

    Equal loops of neighbouring bodies become one loop. No register gets a ``reserved`` name.

    >>> from ..ir.notation import parse_stmt
    >>> first = parse_stmt("vector_forall<8 x 1, once>(k, where(D_row[k] = t, forall(j, t += A[j] * X[j,k])))")
    >>> last = parse_stmt("vector_forall<8 x 1, once>(k, C[i,k] = relu(D_row[k] + b[k]))")
    >>> print(fused([first, last]))
    vector_forall<8 x 1, once>(k, where(C[i,k] = relu(t + b[k]), forall(j, t += A[j] * X[j,k])))
    """
    return reduce(lambda nest, body: _join_loops(nest, body, reserved) or Where(nest, body), reversed(bodies))


def _join_loops(consumer: Stmt, producer: Stmt, reserved: Collection[str]) -> Stmt | None:
    """Join two vector loops and drop the row between them; None if the loops differ or values would be computed more than once."""
    match consumer, producer:
        case (Forall(var, reader, Vector() as tag), Forall(other, Assignment() | Where(Assignment()) as writer, other_tag)) if (
            var == other and tag == other_tag
        ):
            row, read = next(assignments(writer)), [access for a in assignments(reader) for access in accesses_in(a.rhs)]
            if row.op != "=" or (not isinstance(row.rhs, Access) and read.count(row.lhs) > 1):
                return None
            renamed = _rename_scalar_sums(writer, _registers(reader).union(reserved))
            row = next(assignments(renamed))
            inlined = map_rhs(reader, lambda rhs: mapped(rhs, lambda a: row.rhs if a == row.lhs else a))
            return Forall(var, Where(inlined, renamed.producer) if isinstance(renamed, Where) else inlined, tag)
        case _:
            return None


def _registers(stmt: Stmt) -> set[str]:
    return {a.lhs.tensor.name for a in assignments(stmt) if a.lhs.tensor.is_scalar}


def _rename_scalar_sums(stmt: Stmt, names_in_use: Collection[str]) -> Stmt:
    """Rename those registers of a statement that have a name in use.

    >>> from ..ir.notation import parse_stmt
    >>> print(_rename_scalar_sums(parse_stmt("where(T_row[k] = t, forall(j, t += A[j] * X[j,k]))"), {"t", "u"}))
    where(T_row[k] = v, forall(j, v += A[j] * X[j,k]))
    """
    registers = _registers(stmt)
    free = (name for name in chain(NAMES, (f"sum_{number}" for number in counted())) if name not in registers and name not in names_in_use)
    names = {name: next(free) for name in sorted(registers & set(names_in_use))}
    return map_expr(stmt, lambda a: a.with_changes(name=names.get(a.tensor.name, a.tensor.name)))
