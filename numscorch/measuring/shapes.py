"""Classification of requests by the operations of other libraries: matrix product, sampled product, elementwise operation, sum."""

from __future__ import annotations

from dataclasses import dataclass

from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.requests import Request
from ..frontend.statements import parse_program
from ..ir.index import Access, Binary, Expr, walk
from .specifications import BoundRequest

Indices = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatMul:
    """``left @ right``, given by the numbers of two operands; either matrix may be transposed."""

    left: int
    right: int
    left_transposed: bool
    right_transposed: bool


@dataclass(frozen=True, slots=True)
class SampledMatMul:
    """The entries of a matrix product at the coordinates that the operand ``mask`` stores, times the mask's values."""

    mask: int
    product: MatMul


@dataclass(frozen=True, slots=True)
class Elementwise:
    """All operands combined elementwise by ``op``, which is ``+`` or ``*``."""

    op: str


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of one operand over the dimensions ``over``, in ascending order."""

    over: tuple[int, ...]


Shape = MatMul | SampledMatMul | Elementwise | Sum


def shape_of(request: BoundRequest) -> Shape | None:
    """The operation that computes a request in other libraries; None if there is none.

    >>> from .specifications import read_request
    >>> shape_of(read_request("bi,oi->bo", {"A": "dense:2x3", "B": "uniform:4x3:0.5"}))
    MatMul(left=0, right=1, left_transposed=False, right_transposed=True)
    >>> shape_of(read_request("C[i,j] = A[i,j] + B[i,j]", {"A": "uniform:2x3:0.5", "B": "uniform:2x3:0.5"}))
    Elementwise(op='+')
    """
    subscripts, value = _read(request)
    if subscripts is None or any(len(set(indices)) < len(indices) for indices in subscripts.operands):
        return None
    result, operands = subscripts.result, subscripts.operands
    if value == "+" or (len(operands) > 1 and all(indices == result for indices in operands)):
        return Elementwise(value) if all(indices == result for indices in operands) else None
    match len(operands):
        case 1:
            return _sum(operands[0], result)
        case 2:
            return _matmul((0, operands[0]), (1, operands[1]), result)
        case 3:
            return _sampled(operands, result, request)
        case _:
            return None


def _read(request: BoundRequest) -> tuple[Subscripts | None, str]:
    """The subscripts, in the order of the operands, and the operator that combines all operands; (None, "") if no single one does."""
    if request.is_einsum:
        return parse_einsum(request.expr, tuple(operand.ndim for operand in request.operands.values())), "*"
    part, *others = parse_program(request.expr)
    if others or part.request.mask is not None or set(part.operands) != request.operands.keys():
        return None, ""
    terms = dict(zip(part.operands, part.request.subscripts.operands, strict=True))
    operator = _operator_of(part.request)
    if operator is None or len(terms) < len(part.operands):
        return None, ""
    return Subscripts(tuple(terms[name] for name in request.operands), part.request.subscripts.result), operator


def _operator_of(request: Request) -> str | None:
    """``*`` for a (summed) product, ``+`` for a sum of operands, else None."""
    if request.op not in ("=", "+="):
        return None
    if request.value is None or _joins_operands(request.value, "*"):
        return "*"
    return "+" if request.op == "=" and _joins_operands(request.value, "+") else None


def _joins_operands(value: Expr, by: str) -> bool:
    """Whether a value consists of accesses only (no literals), all combined by one operator."""
    return all(isinstance(node, Access) or (isinstance(node, Binary) and node.op == by) for node in walk(value))


def _sum(indices: Indices, result: Indices) -> Sum | None:
    is_in_order = list(result) == [name for name in indices if name in result]
    over = tuple(at for at, name in enumerate(indices) if name not in result)
    return Sum(over) if over and is_in_order else None


def _matmul(first: tuple[int, Indices], second: tuple[int, Indices], result: Indices) -> MatMul | None:
    """The matrix product of two operands that share one summed index and have at most one free index each; else None."""
    shared = set(first[1]) & set(second[1])
    if len(shared) != 1 or shared & set(result) or {*first[1], *second[1]} - shared != set(result):
        return None
    (summed,) = shared
    free = [[name for name in indices if name != summed] for _, indices in (first, second)]
    if any(len(names) > 1 for names in free) or not result:
        return None
    left, right = (first, second) if result[0] in first[1] else (second, first)
    return MatMul(left[0], right[0], left[1][0] == summed, len(right[1]) > 1 and right[1][-1] == summed)


def _sampled(operands: tuple[Indices, ...], result: Indices, request: BoundRequest) -> SampledMatMul | None:
    for mask, indices in enumerate(operands):
        if indices == result and len(indices) == 2:
            others = [(at, names) for at, names in enumerate(operands) if at != mask]
            product = _matmul(others[0], others[1], result)
            if product is not None:
                return SampledMatMul(mask, product)
    return None
