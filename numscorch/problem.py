"""From subscripts and operands to an assignment: names, sizes, broadcasting, diagonals, the result's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .errors import FormatError, SizeError, UnsupportedError
from .ir.format import CSF, Format, as_format, can_be_assembled, dense
from .ir.functions import FUNCTIONS
from .ir.index import Access, Assignment, Expr, IndexVar, TensorVar, literals_in, mapped, operators_in, product, variables_in, with_dtype
from .ir.levels import Dense, Identity
from .parser import Subscripts
from .schedule.facts import Facts, Target
from .schedule.format_inference import infer_format, with_format
from .statements import NAMES, Request

PATTERN = "pattern"
INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Operand:
    """What the compiler knows of an operand: never its values.

    ``strides`` (in values) belongs to dense operands, ``counts`` (positions in each level) to
    sparse ones.
    """

    format: Format
    shape: tuple[int, ...]
    dtype: str
    index_dtype: str = "int64"
    strides: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} ({self.format.name})"


@dataclass(frozen=True, slots=True)
class Problem:
    """An assignment whose result has its format, the exact extents, and the facts for scheduling.

    ``inference`` says why the result has its format; ``requested`` is the format that the result
    is converted to afterwards, None where it is stored so at once.
    """

    stmt: Assignment
    extents: Mapping[IndexVar, int]
    facts: Facts
    inference: str
    requested: Format | None = None

    @property
    def result(self) -> TensorVar:
        """The result's variable."""
        return self.stmt.lhs.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape."""
        return tuple(self.extents[v] for v in self.stmt.lhs.indices)


def make_problem(request: Request | Subscripts, operands: Sequence[Operand], target: Target, format: Format | str | None = None) -> Problem:
    """Name the operands A, B, ..., reconcile sizes, and choose the result's format.

    Raises:
        SizeError: an index has two sizes, neither of which is 1.
        UnsupportedError: mixed data types.
    """
    if len(operands) >= len(NAMES):
        raise UnsupportedError(f"{len(operands)} operands are more than the {len(NAMES) - 1} that an expression may have: split it")
    request = Request(request) if isinstance(request, Subscripts) else request
    subscripts = request.subscripts
    extents = _extents(request, operands)
    dtype = _common_dtype([op for at, op in enumerate(operands) if at != request.mask])
    factors = [_factor(at, names, op, extents) for at, (names, op) in enumerate(zip(subscripts.operands, operands, strict=True))]
    _check_operators(request, dtype)
    indices = tuple(map(IndexVar, subscripts.result))
    result = TensorVar(NAMES[len(operands)], dense(len(indices)), dtype)
    stmt = Assignment(Access(result, indices), _value(request, factors, dtype), request.op)
    wide = any(op.index_dtype == "int64" for op in operands if not op.format.is_dense) or max(extents.values(), default=0) > INT32_MAX
    stmt, why, requested = _choose_format(stmt, format, "int64" if wide else "int32")
    stmt = _with_strides(stmt, extents)
    counts = {NAMES[at]: (op.format, op.counts) for at, op in enumerate(operands) if not op.format.is_dense}
    used = {var: extents[var] for var in variables_in(stmt.rhs)}
    facts = Facts.of(used, counts, target.lanes(dtype), target)
    return Problem(stmt, extents, facts, why, requested)


def _value(request: Request, factors: list[list[Expr]], dtype: str) -> Expr:
    """What is computed, of the operands as they are accessed."""
    if request.mask is not None:
        mask = next(f for f in factors[request.mask] if isinstance(f, Access))
        factors[request.mask] = [replace(mask, tensor=replace(mask.tensor, dtype=PATTERN))]
    if request.value is None:
        return product([factor for each in factors for factor in each])
    by_name = {NAMES[at]: product(each) for at, each in enumerate(factors)}
    return with_dtype(mapped(request.value, lambda a: by_name[a.tensor.name]), dtype)


def _extents(request: Request, operands: Sequence[Operand]) -> dict[IndexVar, int]:
    """The extent of every index; size 1 gives way to any other, but not on a diagonal."""
    found: dict[IndexVar, tuple[int, int]] = {}
    for at, (names, operand) in enumerate(zip(request.subscripts.operands, operands, strict=True)):
        for name, size in zip(names, operand.shape, strict=True):
            if (above := operand.shape[names.index(name)]) != size:
                raise _clash(request, operands, name, (at, above), (at, size))
            known, where = found.get(IndexVar(name), (1, at))
            if size != known and 1 not in (size, known):
                raise _clash(request, operands, name, (where, known), (at, size))
            if known == 1:
                found[IndexVar(name)] = (size, at)
    return {var: size for var, (size, _) in found.items()}


def _clash(request: Request, operands: Sequence[Operand], name: str, first: tuple[int, int], second: tuple[int, int]) -> SizeError:
    subs = request.subscripts
    listed = "     ".join(f"{NAMES[at]}: {operand}" for at, operand in enumerate(operands))
    if first[0] == second[0]:
        return SizeError(
            f"index {name} takes the diagonal of {NAMES[first[0]]}, whose sizes differ there: {first[1]} and {second[1]}\n  {listed}"
        )
    terms = [f"{NAMES[at]}[{','.join(names)}]" for at, names in enumerate(subs.operands)]
    value = " * ".join(terms) if request.value is None else str(request.value)
    hint = _reversed_hint(subs, operands, name, second)
    return SizeError(
        f"index {name} has size {first[1]} in {NAMES[first[0]]} but {second[1]} in {NAMES[second[0]]}\n"
        f"  {NAMES[len(operands)]}[{','.join(subs.result)}] = {value}     {listed}{hint}"
    )


def _reversed_hint(subs: Subscripts, operands: Sequence[Operand], name: str, clash: tuple[int, int]) -> str:
    """Suggest the transposed operand where its other dimension would fit."""
    at, _ = clash
    names, shape = subs.operands[at], operands[at].shape
    swapped = names[::-1]
    wanted = [operands[o].shape[t.index(name)] for o, t in enumerate(subs.operands) if name in t and o != at]
    fits = len(names) == 2 and wanted and shape[swapped.index(name)] == wanted[0]
    return f"     did you mean {NAMES[at]}[{','.join(swapped)}]?" if fits else ""


def _common_dtype(operands: Sequence[Operand]) -> str:
    dtypes = sorted({operand.dtype for operand in operands})
    if len(dtypes) > 1:
        raise UnsupportedError(f"operands have data types {' and '.join(dtypes)}: convert one with .to(torch.{dtypes[-1]})")
    return dtypes[0]


def _check_operators(request: Request, dtype: str) -> None:
    """Refuse what a data type lacks: complex numbers have no order, and integers no quotients."""
    inside = set() if request.value is None else operators_in(request.value)
    ordered = {"<", "<=", ">", ">=", *FUNCTIONS} - {"where"}
    numbers = [] if request.value is None else literals_in(request.value)
    if dtype.startswith("int") and (cut := [n for n in numbers if n != int(n)]):
        raise UnsupportedError(f"the number {cut[0]} beside {dtype} values: convert them with .to(torch.float32)\n  {request}")
    lacking = ordered if dtype.startswith("complex") else {"/", *FUNCTIONS} - {"abs", "maximum", "minimum", "relu", "where"}
    if dtype.startswith("complex") and request.op not in ("=", "+=", "*="):
        inside = inside | {"<"}
    other = "float32" if dtype.startswith("int") else "float32), or compute with .real and .imag ("
    other = other.rstrip(" (")
    if not dtype.startswith("float") and (found := sorted(inside & lacking)):
        raise UnsupportedError(f"{', '.join(found)} of {dtype} values: convert the operands with .to(torch.{other})\n  {request}")
    if dtype.startswith("int") and request.op not in ("=", "+=", "*="):
        raise UnsupportedError(f"{request.op} of {dtype} values is not compiled: convert the operands with .to(torch.float64)\n  {request}")


def _factor(at: int, names: tuple[str, ...], operand: Operand, extents: dict[IndexVar, int]) -> list[Expr]:
    """The operand's access; a sparse one gets variables of its own where it broadcasts or repeats."""
    if operand.format.is_dense:
        strides = "".join(_letter(size, stride) for size, stride in zip(operand.shape, operand.strides, strict=True))
        tensor = TensorVar(NAMES[at], operand.format, operand.dtype, strides=strides)
        return [Access(tensor, tuple(map(IndexVar, names)))]
    tensor = TensorVar(NAMES[at], operand.format, operand.dtype, operand.index_dtype)
    return _sparse_factor(tensor, names, operand, extents)


def _letter(size: int, stride: int) -> str:
    if size == 1 or (stride == 0 and size > 1):
        return "0"
    return "1" if stride == 1 else "n"


def _sparse_factor(tensor: TensorVar, names: tuple[str, ...], operand: Operand, extents: dict[IndexVar, int]) -> list[Expr]:
    """A[i,i] becomes A[i,i_1] times an identity; a dimension of size 1 is summed over instead of broadcast."""
    indices = list(map(IndexVar, names))
    identities: list[Expr] = []
    for level, dimension in enumerate(operand.format.mode_order):
        var = indices[dimension]
        above = [indices[operand.format.mode_order[up]] for up in range(level)]
        if operand.shape[dimension] == 1 and extents[var] != 1:
            indices[dimension] = _fresh(var, 1, extents)
        elif var in above:
            indices[dimension] = _fresh(var, extents[var], extents)
            eye = TensorVar(f"I{len(identities)}{tensor.name}", Format((Dense(), Identity())), PATTERN)
            identities.append(Access(eye, (var, indices[dimension])))
    return [Access(tensor, tuple(indices)), *identities]


def _fresh(var: IndexVar, extent: int, extents: dict[IndexVar, int]) -> IndexVar:
    number = 1
    while IndexVar(f"{var}_{number}") in extents:
        number += 1
    fresh = IndexVar(f"{var}_{number}")
    extents[fresh] = extent
    return fresh


def _choose_format(stmt: Assignment, format: Format | str | None, index_dtype: str) -> tuple[Assignment, str, Format | None]:
    """The inferred format, or the requested one; a kept pattern may be converted afterwards."""
    inferred, why = infer_format(stmt, literal=format == "infer")
    inferred = _with_index_dtype(inferred, index_dtype)
    wanted = wanted_format(format, len(stmt.lhs.indices))
    if wanted is None or wanted == inferred.lhs.tensor.format:
        return inferred, why, None
    if wanted.is_dense:
        return stmt, f"asked for; {why}, would be {inferred.lhs.tensor.format.name}", None if wanted.is_row_major else wanted
    if inferred.lhs.tensor.shares is None and can_be_assembled(wanted):
        return (
            _with_index_dtype(with_format(stmt, wanted), index_dtype),
            f"asked for; {why}, would be {inferred.lhs.tensor.format.name}",
            None,
        )
    if inferred.lhs.tensor.format.is_dense:
        inferred = _with_index_dtype(with_format(stmt, CSF(wanted.order)), index_dtype)
    return inferred, f"{why}, then converted to {wanted.name}", wanted


def _with_index_dtype(stmt: Assignment, index_dtype: str) -> Assignment:
    """An assembled result has index arrays of its own."""
    if not stmt.lhs.tensor.is_assembled:
        return stmt
    return replace(stmt, lhs=Access(replace(stmt.lhs.tensor, index_dtype=index_dtype), stmt.lhs.indices))


def wanted_format(format: Format | str | None, order: int) -> Format | None:
    """The format that the result must have; None where it is inferred.

    Raises:
        FormatError: it is no format, or has another number of dimensions.
    """
    if format is None or format == "infer":
        return None
    wanted = dense(order) if format == "dense" else as_format(format)
    if wanted.order != order:
        raise FormatError(f"format={wanted.name} has {wanted.order} dimensions, but the result has {order}")
    return wanted


def _with_strides(stmt: Assignment, extents: Mapping[IndexVar, int]) -> Assignment:
    """A dense result is row-major; its strides follow from its shape."""
    result = stmt.lhs.tensor
    if not result.is_dense:
        return stmt
    strides = row_major([extents[v] for v in stmt.lhs.indices])
    letters = "".join(_letter(extents[v], s) for v, s in zip(stmt.lhs.indices, strides, strict=True))
    return replace(stmt, lhs=Access(replace(result, strides=letters), stmt.lhs.indices))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in values, of a contiguous tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
