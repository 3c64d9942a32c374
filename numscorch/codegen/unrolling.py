"""Process several positions or coordinates of a loop at once, with separate registers or as the lanes of one register.

The three kinds of loops over a sparse level have the same shape: positions from ``start`` to ``split`` are processed in
groups, the remaining positions one by one. Copies of a loop's body (unroll and jam) are interleaved by statement, and shared
statements run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain

from ..ir import index as ix
from ..ir.functions import REDUCTIONS, REGISTER_REDUCTIONS, terms_of
from ..ir.lattice import make_lattice
from ..ir.loop import (
    Accumulate,
    Assign,
    BinOp,
    Block,
    Call,
    Const,
    Do,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    Var,
    While,
    add,
    call,
    expressions,
    map_stmt,
    walk,
    walk_block,
)
from ..schedule import tuning
from .coiteration import at_position
from .environment import Env, Iterator, Lower, clear, partial_register
from .expressions import gathered_product, joined

LETTERS = "abcdefghijklmnop"
FEWEST = 2  # number of common terms from which a variable for their sum pays off


def _walked(stmt: ix.Forall, env: Env) -> Iterator:
    """Return the only level that the loop iterates (see ``ir.verify``)."""
    lattice = make_lattice(stmt.var, ix.value_of(stmt.body))
    (it,) = (it for it in env.iterated(stmt.var) if it.name in lattice.iterated)
    return it


def lower_unrolled(stmt: ix.Forall, times: int, env: Env, lower: Lower) -> Block:
    """Process several positions at once, each with separate registers; process the remaining positions one by one."""
    it, target = _walked(stmt, env), next(ix.assignments(stmt.body)).lhs.tensor
    first = env.registers[target.name]
    copies = [first, *(Var(f"{first.name}_{u}") for u in range(1, times))]
    zero = clear(target, env)[0].value
    steps = [_step(stmt, it, it.position + u, env.with_register(target.name, register), lower) for u, register in enumerate(copies)]
    clears = tuple(Assign(register, zero) for register in copies[1:])
    remainder = _remainder(stmt, it, [env.with_register(target.name, register) for register in copies[:-1]], lower)
    return (*_in_groups(it, times, tuple(chain(*steps)), clears), *remainder, *joined_copies(copies, target.name in env.varying))


def lower_positions(stmt: ix.Forall, tag: ix.Positions, env: Env, lower: Lower) -> Block:
    """Process a register of consecutive positions at once, and gather the values at their coordinates."""
    it, body, lanes = _walked(stmt, env), next(ix.assignments(stmt.body)), tag.lanes
    terms = gathered_product(terms_of(body.rhs, body.op, body.lhs.tensor.dtype), stmt.var, it, lanes, env)
    values = [a for a in ix.accesses_in(body.rhs) if a.tensor.has_values and stmt.var in a.indices]
    is_padded = all(a.tensor.is_row for a in values)  # a register may extend past the end of a workspace of one row
    left_over = () if is_padded else (_one_by_one(stmt, it, env, lower),)
    if body.lhs.indices:
        stored = Var(f"{body.lhs.tensor.name}_vals"), env.beside(body.lhs.tensor, it.position), terms.value()
        step: Block = (Do(call("store", *stored)),)
        return (*_walk_masked(it, lanes, step, (Do(call("store", *stored, _left(it))),), (), is_padded), *left_over)
    total, register, reduction = partial_register(body.lhs.tensor.name), env.registers[body.lhs.tensor.name], REDUCTIONS[body.op]
    across = call(REGISTER_REDUCTIONS[reduction.function or "+"], total)
    is_sum = body.op == "+="
    added = terms.added_to(total) if is_sum else joined(body.op, total, terms.value(), in_lanes=True)
    last = Accumulate(register, across) if is_sum else Assign(register, joined(body.op, register, across))
    seen = [Var(f"{body.lhs.tensor.name}_seen")] if body.lhs.tensor.name in env.counted else []
    step = (Assign(total, added), *(Accumulate(count, Const(lanes)) for count in seen))
    remainder: Block = (Assign(total, call("first_lanes", added, total, _left(it))), *(Accumulate(count, _left(it)) for count in seen))
    clears = (Assign(total, call("splat", Const(reduction.identity, body.lhs.tensor.dtype), lanes)),)
    return (*_walk_masked(it, lanes, step, remainder, clears, is_padded), last, *left_over)


def _left(it: Iterator) -> Expr:
    return it.end - it.position


def _walk_masked(it: Iterator, lanes: int, step: Block, remainder: Block, clears: Block, is_padded: bool) -> Block:
    """Process a row's full registers, then load a full register for the remainder and ignore the lanes past the row's end.

    In the last rows, such a load could pass the tensor's last entry. Unless rows are padded, the caller handles the remainders of
    these rows. Rows of any length mostly take the same branches.
    """
    at, start = it.position, Var(f"{it.position.name}_start")
    if not is_padded:
        is_inside = BinOp("<=", at, Var(f"{it.access.tensor.name}_entries") - lanes)
        remainder = (Assign(_split(it), at), If(is_inside, (*remainder, Assign(_split(it), it.end))))
    first, end = it.bounds
    loop = While(at < it.end - lanes, (*step, Accumulate(at, Const(lanes))))
    return (Assign(start, first), Assign(it.end, end), *clears, Assign(at, start), loop, *remainder)


def lower_jammed(stmt: ix.Forall, body: ix.Where, times: int, env: Env, lower: Lower) -> Block:
    """Compute several vector sums side by side, reduce them together into the lanes of one register, and store it at once."""
    it, producer, consumer = _walked(stmt, env), body.producer, next(ix.assignments(body.consumer))
    target = next(ix.assignments(producer)).lhs.tensor
    sums = interleaved([_sum_at(stmt, producer, target, u, it, env, lower) for u in range(times)])
    total, tile = Var(target.name), Var(f"{target.name}_sums")
    parts = [partial_register(f"{target.name}{u}") for u in range(times)]
    tile_sums = _in_tile(sums, parts, tile)
    step = [*(sums if tile_sums is None else tile_sums), Assign(total, call("hsums", *(parts if tile_sums is None else [tile])))]
    inner = replace(env, varying=env.varying | {target.name}).with_register(target.name, total)
    product, values = gathered_product(consumer.rhs, stmt.var, it, times, inner), Var(f"{consumer.lhs.tensor.name}_vals")
    place = env.beside(consumer.lhs.tensor, it.position)
    value = product.added_to(call("load", values, place, times)) if consumer.op == "+=" else product.value()
    step.append(Do(call("store", values, place, value)))
    return (*_in_groups(it, times, tuple(step), ()), *_remainder(stmt, it, [env] * (times - 1), lower))


def _sum_at(stmt: ix.Forall, producer: ix.Stmt, target: ix.TensorVar, number: int, it: Iterator, env: Env, lower: Lower) -> Block:
    """Lower one position's vector sum, and leave the sum in the lanes of a separate register. Dependent variables get distinct names."""
    copy = replace(target, name=f"{target.name}{number}")
    copied_producer = ix.with_tensor(producer, target, copy)
    coordinate = Var(f"{stmt.var}_u{number}")  # no index variable has such a name
    inner = env.bind(stmt.var, coordinate, {it.name: it.segment(it.position + number)})
    inner = replace(inner.with_register(copy.name, Var(copy.name)), copy=(stmt.var, number))
    block = (Assign(coordinate, it.coordinate(it.position + number)), *lower(copied_producer, inner))
    return tuple(s for s in block if not (isinstance(s, Accumulate) and s.var.name == copy.name))


def _in_tile(block: Block, parts: list[Var], tile: Var) -> Block | None:
    """Turn a block that adds to several registers into one that adds to a tile of them; None if their terms share no factor.

    >>> t, u, s, x, y, z = (Var(name) for name in ("t", "u", "s", "x", "y", "z"))
    >>> _in_tile((Assign(t, call("fma", x, y, t)), Assign(u, call("fma", x, z, u))), [t, u], s) == (Assign(s, call("dots", x, y, z, s)),)
    True
    """
    out, rest = list[Stmt](), list(block)
    while rest:
        stmt = rest.pop(0)
        match stmt:
            case Assign(var, value) if var in parts:
                values = [value, *(s.value for s in rest[: len(parts) - 1] if isinstance(s, Assign) and s.var in parts)]
                if (joined := _value_of_tile(values, parts, tile)) is None:
                    return None
                out.append(Assign(tile, joined))
                rest = rest[len(parts) - 1 :]
            case For(_, _, _, body):
                if (inner := _in_tile(body, parts, tile)) is None:
                    return None
                out.append(replace(stmt, body=inner))
            case While() | If():
                return None
            case _:
                out.append(stmt)
    return tuple(out)


def _value_of_tile(values: list[Expr], parts: list[Var], tile: Var) -> Expr | None:
    """Combine the values of several registers into the value of a tile of them; None if the values share no factor."""
    if values == [values[0]] * len(parts) and isinstance(first := values[0], Call) and first.function == "splat":
        return call("splat", *first.args, len(parts))
    products = [v.args for v in values if isinstance(v, Call) and v.function in ("fma", "dot") and v.args[2] in parts]
    if [args[2] for args in products] != parts:
        return None
    for shared, other in ((0, 1), (1, 0)):
        if all(args[shared] == products[0][shared] for args in products):
            return call("dots", products[0][shared], *(args[other] for args in products), tile)
    return None


def _in_groups(it: Iterator, times: int, step: Block, clears: Block) -> Block:
    start, split = Var(f"{it.position.name}_start"), _split(it)
    first, end = it.bounds
    return (
        Assign(start, first),
        Assign(it.end, end),
        Assign(split, start + (it.end - start) // times * times),
        *clears,
        For(it.position, start, split, step, step=Const(times)),
    )


def _split(it: Iterator) -> Var:
    return Var(f"{it.position.name}_split")


def _remainder(stmt: ix.Forall, it: Iterator, environments: Sequence[Env], lower: Lower) -> Block:
    """Process the positions after the groups. If they are few, they take no loop, whose end would be mispredicted."""
    steps = [_step(stmt, it, _split(it) + at, inner, lower) for at, inner in enumerate(environments)]
    if len(steps) >= tuning.MOST_IFS or any(isinstance(part, For | While) for step in steps for part in walk_block(step)):
        return (_one_by_one(stmt, it, environments[0], lower),)
    return tuple(If(_split(it) + at < it.end, step) for at, step in enumerate(steps))


def _one_by_one(stmt: ix.Forall, it: Iterator, env: Env, lower: Lower) -> For:
    return For(it.position, _split(it), it.end, _step(stmt, it, it.position, env, lower))


def _step(stmt: ix.Forall, it: Iterator, position: Expr, env: Env, lower: Lower) -> Block:
    return at_position(stmt.var, it, position, env, lambda inner: lower(stmt.body, inner))


def joined_copies(copies: list[Var], is_vector: bool) -> Block:
    """Add the sums of all copies pairwise, so that the first one holds the total."""
    out: list[Stmt] = []
    gap = 1
    while gap < len(copies):
        for at in range(0, len(copies) - gap, 2 * gap):
            left, right = copies[at], copies[at + gap]
            out.append(Assign(left, call("add", left, right) if is_vector else left + right))
        gap *= 2
    return tuple(out)


def lower_jam(stmt: ix.Forall, tag: ix.Jam, env: Env, lower: Lower, serial: Callable[[ix.Forall, Env, tuple[Expr, Expr]], Block]) -> Block:
    """Process ``tag.times`` coordinates at once, and the remaining coordinates one by one."""
    (first, stop), base = env.bounds(stmt.var), Var(stmt.var.name)
    if (first, stop) == (Const(0), Const(tag.times)):
        return interleaved([_copy(stmt, number, Const(number), env, lower) for number in range(tag.times)])
    split = (stop - first) // tag.times * tag.times + first if tag.rest else stop
    jammed = For(base, first, split, interleaved(_copies(stmt, tag.times, env, lower)), step=Const(tag.times))
    return (jammed, *serial(replace(stmt, tag=ix.Serial()), env, (split, stop))) if tag.rest else (jammed,)


def _copies(stmt: ix.Forall, times: int, env: Env, lower: Lower) -> list[Block]:
    """Lower a copy of the body for each coordinate. Each copy first assigns its coordinate to a variable."""
    names = [Var(f"{stmt.var}_u{number}") for number in range(times)]  # no index variable has such a name
    return [(Assign(name, Var(stmt.var.name) + number), *_copy(stmt, number, name, env, lower)) for number, name in enumerate(names)]


def _copy(stmt: ix.Forall, number: int, coordinate: Expr, env: Env, lower: Lower) -> Block:
    """Lower the body for one coordinate, with distinct names for its registers and other values that depend on the coordinate."""
    result = ix.result_of(stmt).tensor
    registers = {a.lhs.tensor for a in ix.assignments(stmt)} - {result}
    body = ix.map_expr(stmt.body, lambda a: a.with_changes(name=f"{a.tensor}{LETTERS[number]}") if a.tensor in registers else a)
    return lower(body, replace(env.bind(stmt.var, coordinate), copy=(stmt.var, number)))


def interleaved(blocks: list[Block]) -> Block:
    """Interleave blocks of the same shape, statement by statement. Statements that all blocks share run once.

    Raises:
        TypeError: a ``while`` differs between blocks; the shared statements before it could initialize only one of the loops.

    >>> from numscorch.ir.loop import Accumulate, Load
    >>> x = Load(Var("X"), Var("p"))
    >>> a, b = (Assign(Var("x"), x), Accumulate(Var("s"), x)), (Assign(Var("x"), x), Accumulate(Var("t"), x))
    >>> interleaved([a, b]) == (a[0], a[1], b[1])
    True
    """
    out: list[Stmt] = []
    for row in zip(*blocks, strict=True):
        first = row[0]
        if all(stmt == first for stmt in row):
            out.append(first)
        elif isinstance(first, For | If) and all(isinstance(stmt, For | If) and replace(stmt, body=first.body) == first for stmt in row):
            out.append(replace(first, body=interleaved([stmt.body for stmt in row if isinstance(stmt, For | If)])))
        elif isinstance(first, While):
            raise TypeError(f"copies of {first} can't be interleaved")
        else:
            out += share_positions(row)
    return tuple(out)


def share_positions(copies: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Return the copies of a statement, preceded by the common terms of their loads' positions.

    The copies of an unrolled statement load from positions that differ in one term. LLVM adds loop-invariant terms first, so each
    of eight rows keeps an address for each term that changes: more addresses than there are registers. With the common terms
    in a variable, each row keeps one invariant address, and each load adds the variable.

    >>> A, t, i, j, n = Var("A_vals"), Var("t"), Var("i"), Var("j"), Var("n")
    >>> shared, *copies = share_positions([Assign(t, A[Var(f"u{c}") * n + i * n + j]) for c in range(2)])
    >>> shared == Assign(Var("pA_all"), i * n + j), copies[1] == Assign(t, A[Var("u1") * n + Var("pA_all")])
    (True, True)
    """
    if not all(isinstance(stmt, Assign | Accumulate | Store) for stmt in copies):
        return tuple(copies)
    shared_addresses: dict[Expr, Expr] = {}
    shared: list[Stmt] = []
    for same in zip(*(_loads(stmt) for stmt in copies), strict=False):
        terms = [_terms(load.index) for load in same]
        common = [term for term in terms[0] if all(term in summands for summands in terms)]
        if len(common) < FEWEST or len(common) == len(terms[0]) or len({load.array for load in same}) > 1:
            continue
        name = Var(f"p{same[0].array.name.removesuffix('_vals')}_all{len(shared) or ''}")
        shared.append(Assign(name, reduce(add, common)))
        for load, summands in zip(same, terms, strict=True):
            shared_addresses[load] = Load(load.array, reduce(add, [*(term for term in summands if term not in common), name]))
    return (*shared, *(map_stmt(stmt, shared_addresses.get) for stmt in copies)) if shared else tuple(copies)


def _loads(stmt: Stmt) -> list[Load]:
    """Return the distinct loads of single values, in order."""
    return list(dict.fromkeys(e for top in expressions(stmt) for e in walk(top) if isinstance(e, Load) and isinstance(e.array, Var)))


def _terms(expr: Expr) -> list[Expr]:
    return [*_terms(expr.left), *_terms(expr.right)] if isinstance(expr, BinOp) and expr.op == "+" else [expr]
