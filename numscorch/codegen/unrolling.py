"""Several positions of a sparse level at once: with registers of their own, or as the lanes of one.

The three kinds share their shape: positions from ``start`` to ``split`` are taken so many at a time,
the rest one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir import index as ix
from ..ir.functions import REDUCTIONS, terms_of
from ..ir.lattice import make_lattice
from ..ir.levels import Compressed
from ..ir.loop import Accumulate, Assign, BinOp, Block, Call, Const, Do, Expr, For, If, Stmt, Var, While, call
from ..schedule import tuning
from .coiteration import at_position
from .environment import Env, Iterator, clear, partial_register
from .expressions import gathered_product
from .unroll_and_jam import interleaved

Lower = Callable[[ix.Stmt, Env], Block]
JOINED = {"maximum": ("larger", "hmax"), "minimum": ("smaller", "hmin")}  # of registers, and of the lanes of one


def _walked(stmt: ix.Forall, env: Env) -> Iterator:
    """The one level that the loop iterates: see ``ir.tag_rules``."""
    lattice = make_lattice(stmt.var, ix.value_of(stmt.body))
    (it,) = (it for it in env.iterated(stmt.var) if it.name in lattice.iterated)
    return it


def lower_unrolled(stmt: ix.Forall, times: int, env: Env, lower: Lower) -> Block:
    """Several positions at once, each adding to registers of its own; the rest one by one."""
    it, target = _walked(stmt, env), next(ix.assignments(stmt.body)).lhs.tensor
    first = env.registers[target.name]
    copies = [first, *(Var(f"{first.name}_{u}") for u in range(1, times))]
    zero = clear(target, env)[0].value
    step: list[Stmt] = []
    for u, register in enumerate(copies):
        step += _step(stmt, it, it.position + u, _with_register(env, target, register), lower)
    cleared = tuple(Assign(register, zero) for register in copies[1:])
    rest = _rest_of_row(stmt, it, copies, env, lower)
    return (*_taken_at_once(it, times, tuple(step), cleared), *rest, *joined_copies(copies, target.name in env.varying))


def lower_positions(stmt: ix.Forall, tag: ix.Positions, env: Env, lower: Lower) -> Block:
    """A register of consecutive positions at once; what their coordinates choose is gathered."""
    it, body, lanes = _walked(stmt, env), next(ix.assignments(stmt.body)), tag.lanes
    terms = gathered_product(terms_of(body.rhs, body.op), stmt.var, it, lanes, env)
    walk = _whole if not tag.masked or not isinstance(it.level, Compressed) else _padded if _reads_rows(body.rhs, stmt.var) else _masked
    left_over = () if walk is _padded else (_one_by_one(stmt, it, env, lower),)
    if body.lhs.indices:
        stored = Var(f"{body.lhs.tensor.name}_vals"), env.beside(body.lhs.tensor, it.position), terms.value()
        step: Block = (Do(call("store", *stored)),)
        return (*walk(it, lanes, step, (Do(call("store_first", *stored, _left(it))),), ()), *left_over)
    total, register = partial_register(body.lhs.tensor.name), env.registers[body.lhs.tensor.name]
    if body.op == "+=":
        start, added = Const(0.0, body.lhs.tensor.dtype), terms.added_to(total)
        last: Stmt = Accumulate(register, call("hsum", total))
    else:
        joined, whole = JOINED[REDUCTIONS[body.op].function]
        start, added = Const(REDUCTIONS[body.op].identity, body.lhs.tensor.dtype), call(joined, total, terms.value())
        last = Assign(register, call(REDUCTIONS[body.op].function, register, call(whole, total)))
    seen = [Var(f"{body.lhs.tensor.name}_seen")] if body.lhs.tensor.name in env.counted else []
    step = (Assign(total, added), *(Accumulate(count, Const(lanes)) for count in seen))
    rest: Block = (Assign(total, call("first_lanes", added, total, _left(it))), *(Accumulate(count, _left(it)) for count in seen))
    cleared = (Assign(total, call("splat", start, lanes)),)
    if walk is not _whole:
        return (*walk(it, lanes, step, rest, cleared), last, *left_over)
    *bounds, loop = _whole(it, lanes, step, (), ())
    # a row of fewer than a register is spared what adds up its lanes
    summed = If(BinOp("<", Var(f"{it.position.name}_start"), _split(it)), (*cleared, loop, last))
    return (*bounds, summed, *left_over)


def _reads_rows(expr: ix.Expr, var: ix.IndexVar) -> bool:
    """Whether all that is read at a position is a row in a workspace, where a register may reach past the end."""
    return all(a.tensor.is_row for a in ix.accesses_in(expr) if a.tensor.has_values and var in a.indices)


def _left(it: Iterator) -> Expr:
    """How many positions of a row are left at this one."""
    return it.end - it.position


def _whole(it: Iterator, lanes: int, step: Block, rest: Block, cleared: Block) -> Block:
    """A row's whole registers; nothing of its rest."""
    return _taken_at_once(it, lanes, step, cleared)


def _masked(it: Iterator, lanes: int, step: Block, rest: Block, cleared: Block) -> Block:
    """A row's registers and its rest, for which a whole register is loaded: the lanes of the entries after it are left out.

    There are none after the last rows of a tensor, whose rest is left. However long rows are, most of them take the same branches.
    """
    is_inside = BinOp("<=", it.position, Var(f"{it.access.tensor.name}_entries") - lanes)
    rest = (Assign(_split(it), it.position), If(is_inside, (*rest, Assign(_split(it), it.end))))
    return _padded(it, lanes, step, rest, cleared)


def _padded(it: Iterator, lanes: int, step: Block, rest: Block, cleared: Block) -> Block:
    """The same where there is something to load past the end of every row."""
    at, start = it.position, Var(f"{it.position.name}_start")
    first, end = it.bounds
    loop = While(at < it.end - lanes, (*step, Accumulate(at, Const(lanes))))
    return (Assign(start, first), Assign(it.end, end), *cleared, Assign(at, start), loop, *rest)


def lower_jammed(stmt: ix.Forall, env: Env, lower: Lower) -> Block:
    """Several vector sums side by side, added up together into the lanes of one register, which are written at once."""
    it = _walked(stmt, env)
    consumer, producer, jammed = _jam_parts(stmt)
    target = next(ix.assignments(producer)).lhs.tensor
    sums = interleaved([_sum_at(stmt, producer, target, u, it, env, lower) for u in range(jammed)])
    total, tile = Var(target.name), Var(f"{target.name}_sums")
    parts = [partial_register(f"{target.name}{u}") for u in range(jammed)]
    held = _in_tile(sums, parts, tile)
    step = [*(sums if held is None else held), Assign(total, call("hsums", *(parts if held is None else [tile])))]
    inner = _with_register(replace(env, varying=env.varying | {target.name}), target, total)
    product, written = gathered_product(consumer.rhs, stmt.var, it, jammed, inner), Var(f"{consumer.lhs.tensor.name}_vals")
    place = env.beside(consumer.lhs.tensor, it.position)
    value = product.added_to(call("load", written, place, jammed)) if consumer.op == "+=" else product.value()
    step.append(Do(call("store", written, place, value)))
    return (*_taken_at_once(it, jammed, tuple(step), ()), _one_by_one(stmt, it, env, lower))


def _jam_parts(stmt: ix.Forall) -> tuple[ix.Assignment, ix.Stmt, int]:
    match stmt:
        case ix.Forall(tag=ix.Unroll(times), body=ix.Where(consumer=ix.Assignment() as consumer, producer=producer)):
            return consumer, producer, times
    raise ValueError(f"{stmt} can't be jammed")


def _sum_at(stmt: ix.Forall, producer: ix.Stmt, target: ix.TensorVar, number: int, it: Iterator, env: Env, lower: Lower) -> Block:
    """One position's vector sum, left in the lanes of a register of its own; so are the variables that depend on the position."""
    named = replace(target, name=f"{target.name}{number}")
    renamed = ix.map_expr(producer, lambda a: replace(a, tensor=named) if a.tensor == target else a)
    partial_sum = Var(f"{stmt.var}_u{number}")  # no index has such a name
    inner = env.bind(stmt.var, partial_sum, {it.name: it.segment(it.position + number)})
    inner = replace(_with_register(inner, named, Var(named.name)), copy=(stmt.var, number))
    lowered = (Assign(partial_sum, it.coordinate(it.position + number)), *lower(renamed, inner))
    return tuple(s for s in lowered if not (isinstance(s, Accumulate) and s.var.name == named.name))


def _in_tile(block: Block, parts: list[Var], tile: Var) -> Block | None:
    """A block that adds to several registers side by side, with a tile of them; None where they have no factor in common.

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
    """What several registers get, as the value of a tile of them."""
    if values == [values[0]] * len(parts) and isinstance(first := values[0], Call) and first.function == "splat":
        return call("splat", *first.args, len(parts))
    products = [v.args for v in values if isinstance(v, Call) and v.function in ("fma", "dot") and v.args[2] in parts]
    if [args[2] for args in products] != parts:
        return None
    for shared, other in ((0, 1), (1, 0)):
        if all(args[shared] == products[0][shared] for args in products):
            return call("dots", products[0][shared], *(args[other] for args in products), tile)
    return None


def _with_register(env: Env, target: ix.TensorVar, register: Var) -> Env:
    return replace(env, registers={**env.registers, target.name: register})


def _taken_at_once(it: Iterator, times: int, step: Block, cleared: Block) -> Block:
    start, split = Var(f"{it.position.name}_start"), _split(it)
    first, end = it.bounds
    return (
        Assign(start, first),
        Assign(it.end, end),
        Assign(split, start + (it.end - start) // times * times),
        *cleared,
        For(it.position, start, split, step, step=Const(times)),
    )


def _split(it: Iterator) -> Var:
    return Var(f"{it.position.name}_split")


def _one_by_one(stmt: ix.Forall, it: Iterator, env: Env, lower: Lower) -> For:
    return For(it.position, _split(it), it.end, _step(stmt, it, it.position, env, lower))


def _rest_of_row(stmt: ix.Forall, it: Iterator, copies: list[Var], env: Env, lower: Lower) -> Block:
    """Up to three positions without a loop, whose end would be mispredicted; more of them in one."""
    if len(copies) > tuning.MOST_IFS:
        return (_one_by_one(stmt, it, env, lower),)
    target = next(ix.assignments(stmt.body)).lhs.tensor
    return tuple(
        If(_split(it) + u < it.end, _step(stmt, it, _split(it) + u, _with_register(env, target, register), lower))
        for u, register in enumerate(copies[:-1])
    )


def _step(stmt: ix.Forall, it: Iterator, position: Expr, env: Env, lower: Lower) -> Block:
    return at_position(stmt.var, it, position, env, lambda inner: lower(stmt.body, inner))


def joined_copies(copies: list[Var], is_vector: bool) -> Block:
    """Add the copies in pairs into the first one."""
    out: list[Stmt] = []
    gap = 1
    while gap < len(copies):
        for at in range(0, len(copies) - gap, 2 * gap):
            left, right = copies[at], copies[at + gap]
            out.append(Assign(left, call("add", left, right) if is_vector else left + right))
        gap *= 2
    return tuple(out)
