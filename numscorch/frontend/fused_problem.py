"""Fused requests: several statements in one kernel, with intermediate results that exist for one row at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..ir.derived_formats import flattened
from ..ir.format import Format, dense
from ..ir.functions import simplified
from ..ir.index import (
    PATTERN,
    RETURNED,
    Access,
    Assignment,
    Binary,
    Expr,
    IndexVar,
    Literal,
    TensorVar,
    accesses_in,
    factors_of,
    mapped,
    variables_in,
    with_dtype,
)
from ..ir.levels import Compressed, Dense
from ..ir.workspace_levels import Beside
from ..schedule.facts import Facts, Target
from .accesses import letters_of
from .problem import Problem, extents_of, index_dtype_of
from .requests import NAMES, Operand, Request, only_patterns, row_major


@dataclass(frozen=True, eq=False, slots=True)
class Member:
    """A statement whose result is an intermediate: its name in the kernel, indices, value and operator.

    The name has more than one letter; single letters are operands. ``owner`` is a sparse operand or None; the value
    is 0 where the owner stores no entry. If ``is_stored``, the unfused result would have the owner's format; otherwise it
    would be dense.
    """

    name: str
    indices: tuple[IndexVar, ...]
    value: Expr
    op: str = "="
    owner: Access | None = None
    is_stored: bool = False

    @property
    def is_beside(self) -> bool:
        """Whether the result has one value for each entry in the owner's row, instead of being a scalar or a dense row."""
        return self.owner is not None and self.owner.level_var(len(self.owner.indices) - 1) in self.indices


@dataclass(frozen=True, eq=False, slots=True)
class FusedRequest(Request):
    """A request whose value reads operands and the results of ``members``; all share the loops over ``outer``.

    ``owner`` is a sparse operand; the value is 0 where it stores no entry. If ``keeps``, the result has the owner's pattern.
    ``returned`` names the members that the kernel returns after the result; each is a scalar in the shared loops.
    """

    members: tuple[Member, ...] = ()
    outer: tuple[IndexVar, ...] = ()
    owner: Access | None = None
    keeps: bool = False
    returned: tuple[str, ...] = ()

    @property
    def read(self) -> list[Expr]:
        """The expressions of all members, and of the result."""
        return [*(member.value for member in self.members), *([] if self.value is None else [self.value])]


def fused_problem(request: FusedRequest, operands: Sequence[Operand], target: Target) -> Problem:
    """The problem of a fused request, with one statement for each member."""
    dtype = operands[valued(request)[0]].dtype  # only operands of one data type are fused
    extents = extents_of(request, operands)
    owners = {a.tensor.name: a.tensor.shares for value in request.read for a in accesses_in(value) if a.tensor.name in NAMES}
    tensors = {NAMES[at]: _tensor(NAMES[at], operand, owners.get(NAMES[at])) for at, operand in enumerate(operands)}
    result, strides = _result(request, extents, operands, tensors, dtype)
    rows = {member.name: _row(member, request.outer, dtype) for member in request.members}
    statements = []
    for member in request.members:
        inner = tuple(var for var in member.indices if var not in request.outer)
        value = with_dtype(_at_owner(request, member.value, member.owner, tensors, rows), dtype)
        statements.append(Assignment(Access(rows[member.name], inner), value, _compound(member.op, member.value, member.indices)))
        if member.name in request.returned:
            name = f"{member.name}{RETURNED}"
            returned, strides[name] = _row_major_output(name, member.indices, extents, dtype, is_returned=True)
            statements.append(Assignment(returned, statements[-1].lhs))
    last = request.value or Access(result.tensor, ())
    value = with_dtype(_at_owner(request, last, request.owner, tensors, rows), dtype)
    stmt = Assignment(result, value, _compound(request.op, last, result.indices))
    counts = {NAMES[at]: (op.format, op.counts) for at, op in enumerate(operands) if not op.format.is_dense}
    facts = Facts.of(extents, counts, target.lanes(dtype), target)
    stored = {NAMES[at]: op.format for at, op in enumerate(operands) if not op.format.is_dense}
    strides |= {NAMES[at]: op.strides for at, op in enumerate(operands) if op.format.is_dense}
    shape = tuple(extents[var] for var in result.indices)
    kept = tuple(range(len(shape))) if request.keeps else ()
    why = f"the pattern of {result.tensor.shares}" if request.keeps else "each entry is written once"
    members = tuple(statements)
    return Problem(stmt, facts, extents, why, shape, result.tensor.format, stored, strides, kept, members=members, outer=request.outer)


def valued(request: FusedRequest) -> list[int]:
    """The positions of the operands whose values are read; of the other operands, only the pattern is read."""
    return [at for at in range(len(request.subscripts.operands)) if at not in only_patterns(request)]


def _tensor(name: str, operand: Operand, owner: str | None) -> TensorVar:
    if owner is not None:
        return TensorVar(name, dense(len(operand.shape)), operand.dtype, operand.index_dtype, shares=owner)
    if operand.format.is_dense:
        return TensorVar(name, dense(len(operand.shape)), operand.dtype, strides=letters_of(operand.shape, operand.strides))
    return TensorVar(name, flattened(operand.format), operand.dtype, operand.index_dtype)


def _result(
    request: FusedRequest, extents: dict[IndexVar, int], operands: Sequence[Operand], tensors: dict[str, TensorVar], dtype: str
) -> tuple[Access, dict[str, tuple[int, ...]]]:
    """The access that the last statement writes, and the strides of a dense result, keyed by its name."""
    name, indices = NAMES[len(operands)], tuple(map(IndexVar, request.subscripts.result))
    if request.keeps and request.owner is not None:
        owner = tensors[request.owner.tensor.name]
        return Access(TensorVar(name, owner.format, dtype, owner.index_dtype, shares=owner.name), indices), {}
    if request.form.prunes:
        by_rows, index_dtype = Format([*[Dense()] * (len(indices) - 1), Compressed()]), index_dtype_of(operands, extents.values())
        return Access(TensorVar(name, by_rows, dtype, index_dtype, prunes=True, largest=request.form.largest), indices), {}
    access, strides = _row_major_output(name, indices, extents, dtype)
    return access, {name: strides}


def _row_major_output(
    name: str, indices: tuple[IndexVar, ...], extents: Mapping[IndexVar, int], dtype: str, is_returned: bool = False
) -> tuple[Access, tuple[int, ...]]:
    """The access to a row-major tensor that the kernel writes, and its strides."""
    shape = tuple(extents[var] for var in indices)
    strides = row_major(shape)
    tensor = TensorVar(name, dense(len(shape)), dtype, strides=letters_of(shape, strides), is_returned=is_returned)
    return Access(tensor, indices), strides


def _row(member: Member, outer: tuple[IndexVar, ...], dtype: str) -> TensorVar:
    """The workspace of a member's result: a scalar, a dense row, or one value for each entry in its owner's row."""
    if set(member.indices) <= set(outer):
        return TensorVar(member.name, dense(0), dtype)
    if member.owner is None or not member.is_beside:
        return TensorVar(member.name, dense(1), dtype, strides="1")
    return TensorVar(member.name, Format((Beside(),)), dtype, shares=member.owner.tensor.name)


def _compound(op: str, value: Expr, indices: Sequence[IndexVar]) -> str:
    """The statement's assignment operator: "=" if nothing is reduced, "+=" if no reduction is given, else ``op``."""
    if not set(variables_in(value)) - set(indices):
        return "="
    return "+=" if op == "=" else op


def _at_owner(
    request: FusedRequest, value: Expr, owner: Access | None, tensors: Mapping[str, TensorVar], rows: Mapping[str, TensorVar]
) -> Expr:
    """A value in terms of the kernel's tensors and workspaces, restricted to the owner's entries.

    The value is multiplied by the owner's pattern, unless the owner is a factor. No other pattern is needed, since the owner is the
    only sparse operand.
    """

    def read(access: Access) -> Expr:
        name = access.tensor.name
        if not access.tensor.has_values:
            return Literal(1.0, "float32")
        if name not in rows:
            return Access(tensors[name], access.indices)
        return Access(rows[name], tuple(var for var in access.indices if var not in request.outer))

    simple = simplified(mapped(value, read))
    if owner is None or any(isinstance(f, Access) and f.tensor.name == owner.tensor.name for f in factors_of(simple)):
        return simple
    return Binary("*", Access(replace(tensors[owner.tensor.name], dtype=PATTERN), owner.indices), simple)
