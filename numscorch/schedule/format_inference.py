"""infer_format: chooses the format of the result (Scorch, Algorithm 4, preceded by three other rules)."""

from __future__ import annotations

from dataclasses import replace

from ..ir.derived_formats import can_be_assembled
from ..ir.format import Format, dense
from ..ir.functions import is_intersection, is_zero, simplified
from ..ir.index import Access, Assignment, accesses_in, is_product, is_relation, variables_in
from ..ir.levels import Compressed, Dense


def infer_format(stmt: Assignment, literal: bool = False, inner: int = 0, in_order: bool = True) -> tuple[Assignment, str]:
    """Choose the format of the result, and return the reason.

    1. If exactly one sparse operand has the result's index set, the result keeps the pattern of that operand. Only masks
       count if there are any; a mask is an operand without values.
    2. Otherwise, if a factor is dense, the result is dense.
    3. Otherwise, if all sparse operands with the result's index set have the same format, the result has that format.
    4. Otherwise each level is sparse if the result may lack coordinates (Algorithm 4), with the dense levels first. If that
       makes every level dense although all operands are sparse, the last level is compressed.

    ``literal`` skips rules 2 and 3 and keeps the order of the dimensions (``format="infer"``). The last ``inner`` dimensions
    lie within blocks and stay last. Unless ``in_order``, rows whose entries a sum collects in any order stay
    unsorted, since sorting often takes longer than the product.
    """
    accesses = dict.fromkeys(accesses_in(stmt.rhs))  # a tensor that occurs twice is one operand
    sparse = [a for a in accesses if not a.tensor.is_dense and not is_relation(a)]
    same_indices = [a for a in sparse if set(a.indices) == set(stmt.lhs.indices)]
    masks = [a for a in same_indices if not a.tensor.has_values]
    sources = masks or same_indices
    if len(sources) == 1 and is_zero(simplified(stmt.rhs, {sources[0].tensor.name})):
        why = f"{sources[0]} is the mask" if masks else f"rule 1: same index set as {sources[0]}, whose pattern it keeps"
        return _keep_pattern(stmt, sources[0]), why
    sums = set(variables_in(stmt.rhs)) - set(stmt.lhs.indices)
    if not literal and (is_product(stmt.rhs) or sums) and any(a.tensor.is_dense and a.indices for a in accesses_in(stmt.rhs)):
        return with_format(stmt, dense(len(stmt.lhs.indices))), "rule 2: a factor is dense"
    # whether the value is 0 at coordinates of a variable that the sparse operands do not store
    sparse_dims = [is_zero(simplified(stmt.rhs, {a.tensor.name for a in sparse if a.sparse_levels(var)})) for var in stmt.lhs.indices]
    common = {_format_in_result(stmt.lhs, a) for a in sources}
    if not literal and len(common) == 1 and can_be_assembled(shared := common.pop()) and _fits(shared, sparse_dims):
        return with_format(stmt, shared), f"the format of {', '.join(map(str, sources))}"
    blocks = len(sparse_dims) - inner
    collected = not in_order and not literal and not inner and blocks > 1 and bool(sums) and is_intersection(stmt.rhs)
    unsorted = "; rows are unordered, and sorted on demand" * collected
    if not literal and len(sparse_dims) > 1 and not any(sparse_dims) and is_zero(simplified(stmt.rhs, {a.tensor.name for a in sparse})):
        levels = [*[Dense()] * (blocks - 1), Compressed(ordered=not collected), *[Dense()] * inner]
        return with_format(stmt, Format(levels)), "the result is 0 where no operand stores an entry" + unsorted
    order = [*(range(blocks) if literal else sorted(range(blocks), key=sparse_dims.__getitem__)), *range(blocks, len(sparse_dims))]
    is_loose = collected and sparse_dims[order[-1]]
    levels = [Compressed(ordered=not is_loose or d != order[-1]) if sparse_dims[d] else Dense() for d in order]
    why = "Algorithm 4: a dimension is sparse if its unstored coordinates give 0"
    return with_format(stmt, Format(levels, tuple(order))), why + unsorted * is_loose


def _format_in_result(lhs: Access, operand: Access) -> Format:
    """Format of an operand in terms of the dimensions of the result."""
    return Format.flat(operand.tensor.format.levels, [lhs.indices.index(operand.level_var(n)) for n in range(len(operand.indices))])


def _fits(fmt: Format, sparse_dims: list[bool]) -> bool:
    """Whether the sparse levels of the format are exactly the levels that may lack coordinates."""
    return all(level.full != sparse_dims[dimension] for level, dimension in zip(fmt.levels, fmt.mode_order, strict=True))


def with_format(stmt: Assignment, fmt: Format) -> Assignment:
    """Return the statement with another format for its result."""
    return replace(stmt, lhs=stmt.lhs.with_changes(format=fmt))


def _keep_pattern(stmt: Assignment, operand: Access) -> Assignment:
    """Give the result the pattern of an operand, with its levels in terms of the dimensions of the result."""
    tensor, fmt = operand.tensor, _format_in_result(stmt.lhs, operand)
    return replace(stmt, lhs=stmt.lhs.with_changes(format=fmt, index_dtype=tensor.index_dtype, strides="", shares=tensor.name))
