"""infer_format: how the result is stored (Scorch, Algorithm 4, under two rules that stand above it)."""

from __future__ import annotations

from dataclasses import replace

from ..ir.format import Format, dense
from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Assignment, Expr, IndexVar, TensorVar, accesses_in, is_identity, is_product, variables_in
from ..ir.levels import Compressed, Dense


def infer_format(stmt: Assignment, literal: bool = False) -> tuple[Assignment, str]:
    """Give the result its format, and say why.

    1. A result with exactly one sparse operand's index set keeps that operand's pattern.
    2. Otherwise, if any factor is dense, the result is dense.
    3. Otherwise level by level: a product is sparse where any factor is (Algorithm 4).

    ``literal`` skips rule 2 (``format="infer"``).
    """
    sparse = [a for a in accesses_in(stmt.rhs) if not a.tensor.is_dense and not is_identity(a)]
    masks = [a for a in sparse if not a.tensor.has_values]
    keepers = masks or [a for a in sparse if set(a.indices) == set(stmt.lhs.indices)]
    if len(keepers) == 1 and is_zero(simplified(stmt.rhs, {keepers[0].tensor.name})):
        why = f"{keepers[0]} is the mask" if masks else f"rule 1: same index set as {keepers[0]}, whose pattern it keeps"
        return _keep(stmt, keepers[0]), why
    sums = set(variables_in(stmt.rhs)) - set(stmt.lhs.indices)
    if not literal and (is_product(stmt.rhs) or sums) and any(a.tensor.is_dense and a.indices for a in accesses_in(stmt.rhs)):
        return with_format(stmt, dense(len(stmt.lhs.indices))), "rule 2: a factor is dense"
    levels = [Compressed() if _leaves_out(stmt.rhs, sparse, var) else Dense() for var in stmt.lhs.indices]
    return with_format(stmt, Format(levels)), "Algorithm 4: each level is sparse where a factor's is"


def _leaves_out(expr: Expr, sparse: list[Access], var: IndexVar) -> bool:
    """Whether the expression is 0 at coordinates that no operand stores."""
    return is_zero(simplified(expr, {a.tensor.name for a in sparse if _is_sparse(a, var)}))


def _is_sparse(access: Access, var: IndexVar) -> bool:
    return any(v == var and not access.tensor.format.level_of(d).full for d, v in enumerate(access.indices))


def with_format(stmt: Assignment, fmt: Format) -> Assignment:
    """The statement with another format for its result."""
    return replace(stmt, lhs=Access(replace(stmt.lhs.tensor, format=fmt), stmt.lhs.indices))


def _keep(stmt: Assignment, operand: Access) -> Assignment:
    """The operand's levels, each storing the result's dimension of the same variable."""
    order = tuple(stmt.lhs.indices.index(operand.level_var(level)) for level in range(operand.tensor.format.order))
    result: TensorVar = replace(
        stmt.lhs.tensor,
        format=Format(operand.tensor.format.levels, order),
        index_dtype=operand.tensor.index_dtype,
        strides="",
        shares=operand.tensor.name,
    )
    return replace(stmt, lhs=Access(result, stmt.lhs.indices))
