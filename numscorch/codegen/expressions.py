"""Lower the values of products: scalar factors first, then factors that vary between lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import takewhile

from ..errors import UnsupportedError
from ..ir.dtype import DTYPES
from ..ir.function_table import routine_of
from ..ir.functions import FUNCTIONS, REDUCTIONS, REGISTER_FUNCTIONS, TESTS, is_annihilated, valued_factors
from ..ir.index import Access, Apply, Binary, Expr, IndexVar, Literal, accesses_in, walk
from ..ir.lattice import least_sets
from ..ir.loop import Assign, BinOp, Block, Choose, Const, Expr as LoopExpr, Var, add, all_of, any_of, as_expr, call, mul
from ..ir.workspace_levels import Scattered
from ..schedule import tuning
from .environment import Env, Iterator, Lanes, order_of, stride_of

WRAPPING = {"+": "wrapping_add", "-": "wrapping_sub", "*": "wrapping_mul"}


@dataclass(frozen=True, slots=True)
class Product:
    """A lowered product: statements to run first, and its factors.

    A scalar product has one factor. A vector product has the product of the scalar factors, followed by the varying factors.
    """

    setup: Block
    factors: tuple[LoopExpr, ...]

    @property
    def scalar(self) -> LoopExpr:
        """The value of a scalar product."""
        return self.factors[0]

    def value(self) -> LoopExpr:
        """Return the product as a tile."""
        return _product(self.factors)

    def added_to(self, total: LoopExpr, in_one: bool = False) -> LoopExpr:
        """Return total + product, for tiles of the same shape; ``in_one``: add the product's registers in order to a single one."""
        *head, last = self.factors
        fused, plain = ("dot", "accumulate") if in_one else ("fma", "add")
        return call(fused, _product(head), last, total) if head else call(plain, total, last)


def _product(factors: Sequence[LoopExpr]) -> LoopExpr:
    return reduce(partial(call, "mul"), factors)


def is_varying(expr: Expr, env: Env) -> bool:
    """Whether a value varies between the lanes of the enclosing vector loop."""
    return any(_moves(access, env) for access in accesses_in(expr))


def _moves(access: Access, env: Env) -> bool:
    """Whether an access moves with the lanes; a broadcast dimension (stride 0) has the same value in every lane."""
    tensor = access.tensor
    if tensor.name in env.registers:
        return tensor.name in env.varying
    if env.lanes is None or not tensor.has_values or env.lanes.var not in access.indices:
        return False
    return not tensor.is_dense or tensor.strides[access.indices.index(env.lanes.var)] != "0"


def lower_product(expr: Expr, env: Env, as_vector: bool, in_order: bool = False) -> Product:
    """Lower a product. A value that several registers read is assigned to a variable first.

    Factors that are the same in all lanes are multiplied first. With ``in_order``, factors are multiplied in the order of the
    expression, so that all kernels round the product alike: the gradient of a maximum compares its terms with the result.
    """
    setup: list[Assign] = []
    condition, env = presence(expr, env)
    uniform: LoopExpr | None = None
    varying: list[LoopExpr] = []
    for factor in sorted(valued_factors(expr), key=_is_scattered):
        if is_varying(factor, env):
            if env.lanes is None:
                raise UnsupportedError(f"{factor} varies between lanes, but there is no vector loop around it")
            leaf = partial(_loaded, env=env, lanes=env.lanes, setup=setup)
            varying.append(_in_lanes(factor, env, lambda part: not is_varying(part, env), leaf))
        elif in_order and as_vector and varying and env.lanes is not None:
            varying.append(_scalar(factor, env))
        else:
            value = _scalar(factor, env)
            if uniform is not None and _is_scattered(factor):
                uniform = call("stored_product", value, uniform)
            else:
                uniform = value if uniform is None else _operated("*", uniform, value, dtype_of(expr))
    if not as_vector or env.lanes is None:
        value = Const(1) if uniform is None else uniform
        return Product(tuple(setup), (_or_zero(condition, value, expr, env),))
    if not varying:
        value = Const(1.0, dtype_of(expr)) if uniform is None else uniform
        return Product(tuple(setup), (call("splat", value, *env.lanes.shape),))
    return Product(tuple(setup), tuple(varying) if uniform is None else (uniform, *varying))


def _is_scattered(factor: Expr) -> bool:
    """Whether a factor is a scattered row of floating-point values. Where it has no entry, the product is 0."""
    return isinstance(factor, Access) and Scattered() in factor.tensor.format.levels and factor.tensor.type.is_rounded


def _scalar(factor: Expr, env: Env) -> LoopExpr:
    condition, env = presence(factor, env)
    return _or_zero(condition, _present(factor, env), factor, env)


def _or_zero(condition: LoopExpr | None, value: LoopExpr, expr: Expr, env: Env) -> LoopExpr:
    """Return the value where the condition holds, and 0 elsewhere."""
    if condition is None:
        return value
    in_mask = env.masked and is_mask(condition)
    return call("masked", value, condition) if in_mask else Choose(condition, value, Const(0.0, dtype_of(expr)))


def is_mask(condition: LoopExpr) -> bool:
    """Whether a condition consists of masks, without comparisons."""
    return isinstance(condition, Var) or (isinstance(condition, BinOp) and condition.op in ("&", "|"))


def _present(factor: Expr, env: Env) -> LoopExpr:
    match factor:
        case Access(tensor) if tensor.name in env.registers:
            return env.registers[tensor.name]
        case Access(tensor) if not tensor.has_values:
            return Const(1)
        case Access(tensor):
            return Var(f"{tensor.name}_vals")[env.position(factor)]
        case Literal(value, dtype):
            return Const(value, dtype)
        case Binary(op, left, right) if op in TESTS:
            return call("truth", BinOp(op, _scalar(left, env), _scalar(right, env)), Const(1.0, dtype_of(factor)))
        case Binary(op, left, right):
            return _operated(op, _scalar(left, env), _scalar(right, env), dtype_of(factor))
        case Apply(function, args):
            computed, values = DTYPES[dtype_of(factor)], [_scalar(arg, env) for arg in args]
            if FUNCTIONS[function].divides and computed.kind == "integer":
                values[-1] = call("nonzero", values[-1])
            result = call(routine_of(function, computed.name), *values)
            return call(computed.name, result) if computed.kind == "integer" and computed.itemsize < 8 else result  # widened by Numba


def _operated(op: str, left: LoopExpr, right: LoopExpr, dtype: str) -> LoopExpr:
    """Return an operation in which integers wrap around and complex numbers may be divided by 0, which Numba refuses."""
    if DTYPES[dtype].kind == "integer" and op in WRAPPING:
        return call(WRAPPING[op], left, right)
    return call("divide", left, right) if op == "/" and DTYPES[dtype].kind == "complex" else BinOp(op, left, right)


def joined(op: str, left: LoopExpr, right: LoopExpr, in_lanes: bool = False) -> LoopExpr:
    """Combine two terms of a reduction, or two registers of terms, by its operator."""
    function = REDUCTIONS[op].function
    if in_lanes:
        return call(REGISTER_FUNCTIONS[function or op[0]], left, right)
    return call(function, left, right) if function else BinOp(op[0], left, right)


def presence(expr: Expr, env: Env) -> tuple[LoopExpr | None, Env]:
    """Return the condition for an access, product, quotient or remainder to be present (None: always), and the environment then.

    A product with an absent factor is 0, whatever its other factors are: an absent entry times infinity adds no term to a sum.
    """
    return guarded(expr, env) if isinstance(expr, Access) or is_annihilated(expr) else (None, env)


def guarded(expr: Expr, env: Env) -> tuple[LoopExpr | None, Env]:
    """Return the condition under which an expression may be nonzero (None: always), and the environment where it holds."""
    least = least_sets(expr, env.conditions)
    if not least or frozenset() in least:
        return None, env
    required = frozenset.intersection(*least)
    conditions = {name: condition for name, condition in env.conditions.items() if name not in required}
    inner = replace(env, conditions=conditions, assured=tuple(least))
    if env.assured and all(any(chosen <= known for chosen in least) for known in env.assured):
        return None, inner
    # conditions of outer loops are comparisons, and the operand may be at its end there
    are_masks = env.masked and all(isinstance(env.conditions[name], Var) for chosen in least for name in chosen)
    both, either = ("&", "|") if are_masks else ("and", "or")
    return any_of([all_of([env.conditions[name] for name in sorted(chosen)], both) for chosen in least], either), inner


def dtype_of(expr: Expr) -> str:
    """Return the data type in which an expression is computed."""
    valued = [a.tensor.dtype for a in accesses_in(expr) if a.tensor.has_values]
    return [*valued, *(inner.dtype for inner in walk(expr) if isinstance(inner, Literal)), "float32"][0]


def _in_lanes(expr: Expr, env: Env, is_uniform: Callable[[Expr], bool], leaf: Callable[[Access], LoopExpr]) -> LoopExpr:
    """Return an expression's value: a tile, or a scalar if it is the same in every lane. ``leaf`` loads the values of an operand."""
    expr = valued(expr)
    if is_uniform(expr):
        return _scalar(expr, env)
    if not isinstance(expr, Access):
        function, args = in_registers(expr)
        return call(function, *(_in_lanes(arg, env, is_uniform, leaf) for arg in args))
    return env.registers[expr.tensor.name] if expr.tensor.name in env.registers else leaf(expr)


def _loaded(access: Access, env: Env, lanes: Lanes, setup: list[Assign]) -> LoopExpr:
    """Load an operand's tile; if several copies of a statement share the tile, load it into a variable."""
    tile = load(lanes, access.tensor.name, named_position(access, env, setup))
    if env.copy is None or env.copy[0] in access.indices or lanes.count > tuning.SHARED_REGISTERS:
        return tile
    shared = Var(f"{access.tensor}_shared")
    setup.append(Assign(shared, tile))
    return shared


def valued(expr: Expr) -> Expr:
    """Return a product without its pattern factors, which are 1 at every stored entry."""
    match expr:
        case Binary("*", Access(tensor), other) if not tensor.has_values:
            return valued(other)
        case Binary("*", other, Access(tensor)) if not tensor.has_values:
            return valued(other)
        case _:
            return expr


def in_registers(expr: Expr) -> tuple[str, tuple[Expr, ...]]:
    """Return the register function of an operator or function, and its arguments.

    Raises:
        UnsupportedError: there is no such register function.
    """
    match expr:
        case Binary(name, left, right):
            args: tuple[Expr, ...] = (left, right)
        case Apply(name, args):
            pass
        case _:
            raise UnsupportedError(f"{expr} is neither an operator nor a function")
    if name not in REGISTER_FUNCTIONS:
        raise UnsupportedError(f"{name} in {expr} has no vector instructions here")
    return REGISTER_FUNCTIONS[name], args


def gathered_product(expr: Expr, var: IndexVar, it: Iterator, lanes: int, env: Env) -> Product:
    """Lower a product at consecutive positions that fill a register; the iterated operand's values are contiguous there."""

    def is_uniform(part: Expr) -> bool:
        return not any(var in access.indices or access.tensor.name in env.varying for access in accesses_in(part))

    gathered = partial(_gathered, var=var, it=it, lanes=lanes, env=env)
    factors = sorted(map(valued, valued_factors(expr)), key=_is_scattered)
    uniform = list(takewhile(is_uniform, factors))
    varying = [_in_lanes(factor, env, is_uniform, gathered) for factor in factors[len(uniform) :]]
    parts = [*([reduce(mul, (_scalar(factor, env) for factor in uniform))] if uniform else []), *varying]
    if len(parts) > 1 and _is_scattered(factors[-1]):
        return Product((), (call("stored_product", parts[-1], _product(parts[:-1])),))
    return Product((), tuple(parts) if varying else (call("splat", *parts, lanes),))


def _gathered(access: Access, var: IndexVar, it: Iterator, lanes: int, env: Env) -> LoopExpr:
    values = Var(f"{access.tensor.name}_vals")
    if it.name in (access.tensor.name, access.tensor.shares):
        if env.kind is not None and env.copy is not None:  # the values of a column lie side by side
            each = len(env.kind.rows)
            return call("every", values, it.position * each, Const(env.copy[1]), Const(each), lanes)
        first = env.beside(access.tensor, it.position)
        if access.tensor.is_reordered:
            return call("gather", values, Const(0), Const(1), order_of(access.tensor), first, lanes)
        return call("load", values, first, lanes)
    base = env.strided_position(access, tuple(v for v in access.indices if v != var))
    step = reduce(add, (stride_of(access, at) for at, index in enumerate(access.indices) if index == var), as_expr(0))
    return call("gather", values, base, step, it.mode.crd, it.position, lanes)


def named_position(access: Access, env: Env, setup: list[Assign]) -> LoopExpr:
    """Return the access's position as a variable or constant. The copies of an unrolled statement have distinct variables."""
    place = env.position(access)
    suffix = "" if env.copy is None or env.copy[0] not in access.indices else f"_{env.copy[1]}"
    if isinstance(place, Var | Const) and not suffix:
        return place
    position = Var(f"p{access.tensor.name}{suffix}")
    setup.append(Assign(position, place))
    return position


def load(lanes: Lanes, tensor: str, place: LoopExpr) -> LoopExpr:
    """Load a tile. Lanes of the last register that lie past the extent are 0."""
    shape = lanes.shape if lanes.left is None else (lanes.lanes, lanes.count, lanes.left)
    return call("load", Var(f"{tensor}_vals"), place, *shape)
