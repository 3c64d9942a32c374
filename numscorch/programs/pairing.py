"""Rewrites of a program: take diagonals first, and split products of three or more operands into pairs along a contraction path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..frontend.contraction import Pair, pairs_of
from ..frontend.datatypes import WIDENED
from ..frontend.gradient_requests import without_diagonals
from ..frontend.parser import Subscripts
from ..frontend.requests import NAMES, Form, Operand, Request, access_of, diagonal_request, plain_request, product_of
from ..frontend.statements import ProgramPart
from ..ir.index import Access, Assignment, accesses_in, factors_of, is_product
from ..schedule.facts import AUTOMATIC
from ..tensors.sparse_tensor import SparseTensor

NARROW = {*WIDENED, *(str(dtype).removeprefix("torch.") for dtype in WIDENED)}  # as torch dtypes and as names


def in_pairs(parts: tuple[ProgramPart, ...], at: int, values: Mapping[str, Any]) -> tuple[ProgramPart, ...]:
    """Take the diagonals of the part at index ``at``, or split it into pairs.

    Return the same program if one loop nest is better, or the part is not a product.

    Operands of similar size share a cached path.

    >>> import torch, numscorch as ns
    >>> from numscorch.frontend.statements import parse_program
    >>> given = {"A": ns.from_torch(torch.ones(90, 90), ns.CSR), "x": torch.ones(90, 80), "w": torch.ones(80, 2), "b": torch.ones(2)}
    >>> [part.operands for part in in_pairs(parse_program("y[i,k] = A[i,j] * x[j,f] * w[f,k] + b[k]"), 0, given)]
    [('x', 'w'), ('A', '2'), ('1', 'b')]
    """
    parts = diagonals_first(parts, at)
    part = parts[at]
    if len(part.operands) < 3 or not _is_plain_product(part.request):
        return parts
    operands = [values[name] for name in part.operands]
    if len({operand.dtype for operand in operands}) > 1 or operands[0].dtype in NARROW:
        return parts  # 16-bit products are rounded once, and mixed data types may be rejected
    if any(len(o.shape) != len(names) for o, names in zip(operands, part.request.subscripts.operands, strict=True)):
        return parts  # the part itself raises the error
    return _along_path(parts, at, operands)


def _is_plain_product(request: Request) -> bool:
    """Return whether a request sums the product of the values of all its operands, and reads each operand once, in order."""
    if request.value is None or request.op not in ("=", "+=") or request.mask is not None or request.options != AUTOMATIC:
        return False
    accesses = accesses_in(request.value)
    return (
        all(isinstance(factor, Access) and factor.tensor.has_values for factor in factors_of(request.value))
        and [access.tensor.name for access in accesses] == list(NAMES[: len(request.subscripts.operands)])
        and all(len(name) == 1 for names in request.subscripts.operands for name in names)
    )


def paired(request: Request, operands: Sequence[Any]) -> tuple[ProgramPart, ...]:
    """A request as a program with operands A, B, ...: one part, parts for diagonals and a last part, or the pairs of a contraction path.

    >>> import torch, numscorch as ns
    >>> from numscorch.frontend.requests import einsum_request
    >>> given = ns.from_torch(torch.ones(90, 90), ns.CSR), torch.ones(90, 80), torch.ones(80, 2)
    >>> for part in paired(einsum_request("ij,jf,fk->ik", (2, 2, 2)), given):
    ...     print(part.name, part.operands, part.request)
    1 ('B', 'C') jf,fk->jk
    D ('A', '1') ij,jk->ik
    """
    parts = diagonals_first(_program_of(request), 0)
    return _along_path(parts, 0, operands) if request.is_product and len(operands) > 2 else parts


@lru_cache(maxsize=1024)
def _program_of(request: Request) -> tuple[ProgramPart, ...]:
    count = len(request.subscripts.operands)
    return (ProgramPart(NAMES[count : count + 1], tuple(NAMES[:count]), request),)


def _along_path(parts: tuple[ProgramPart, ...], at: int, operands: Sequence[Any]) -> tuple[ProgramPart, ...]:
    """Split a product of these operands into pairs, unless one loop nest is better."""
    shapes = tuple([tuple(operand.shape) for operand in operands])
    pairs = pairs_of(parts[at].request.subscripts, shapes, tuple(map(_nnz_of, operands)))
    return _with_pairs(parts, at, pairs) if pairs else parts


def _nnz_of(operand: SparseTensor | Tensor | Operand) -> int | None:
    """The number of values that a sparse operand stores; None for a dense operand."""
    if isinstance(operand, SparseTensor):
        return operand.pattern.nnz
    if isinstance(operand, Operand):
        return None if operand.format.is_dense else operand.counts[-1]
    return None if operand.layout is torch.strided else operand._nnz()


@lru_cache(maxsize=1024)
def _with_pairs(parts: tuple[ProgramPart, ...], at: int, pairs: tuple[Pair, ...]) -> tuple[ProgramPart, ...]:
    """Replace a part by one part per pair; the last keeps the part's name, and the others get the next free numbers."""
    part, pieces = parts[at], []
    first = next_number(parts)
    results = [*map(str, range(first, first + len(pairs) - 1)), part.name]
    names = (*part.operands, *results)
    for name, pair in zip(results, pairs, strict=True):
        request = plain_request(pair.subscripts)
        if part.request.value is not None:
            in_order = part.request.form.in_order or name != part.name
            request = Request(pair.subscripts, product_of(pair.subscripts), form=Form(in_order=in_order))
        pieces.append(ProgramPart(name, (names[pair.left], names[pair.right]), request))
    return (*parts[:at], *pieces, *parts[at + 1 :])


def diagonals_first(parts: tuple[ProgramPart, ...], at: int) -> tuple[ProgramPart, ...]:
    """Insert parts that take the diagonals of the operands of the part at index ``at``; none if that part sums products.

    Kernels of sums of products read diagonals in place. Kernels of other expressions would treat entries off the diagonal as zeros.

    >>> from numscorch.frontend.statements import parse_program
    >>> [f"{part.name}: {part.operands} {part.request}" for part in diagonals_first(parse_program("y[i] = A[i,i] + b[i]"), 0)]
    ["1: ('A',) ii->i", "y: ('1', 'b') A[i] + B[i] over i,i->i"]
    """
    return _with_diagonals(parts, at) if _repeating(parts[at].request) else parts


@lru_cache(maxsize=1024)
def _repeating(request: Request) -> tuple[int, ...]:
    """The operands whose diagonals are taken first: the operands that repeat an index, or none if the request sums products."""
    if request.op in ("=", "+=") and is_product(request.expr):
        return ()
    return tuple(k for k, names in enumerate(request.subscripts.operands) if len(set(names)) < len(names))


@lru_cache(maxsize=1024)
def _with_diagonals(parts: tuple[ProgramPart, ...], at: int) -> tuple[ProgramPart, ...]:
    part, terms, repeating = parts[at], parts[at].request.subscripts.operands, _repeating(parts[at].request)
    names = list(part.operands)
    for number, k in enumerate(repeating, next_number(parts)):
        names[k] = str(number)
    pieces = (ProgramPart(names[k], (part.operands[k],), diagonal_request(terms[k])) for k in repeating)
    return (*parts[:at], *pieces, ProgramPart(part.name, tuple(names), without_diagonals(part.request)), *parts[at + 1 :])


def next_number(parts: tuple[ProgramPart, ...]) -> int:
    """The next free number for the name of a temporary."""
    return max((int(part.name) for part in parts if part.is_temporary), default=0) + 1


def spelled_einsum(subscripts: Subscripts) -> str:
    """Write an einsum as a statement of operands A, B, ...

    >>> from numscorch.frontend.parser import parse_einsum
    >>> spelled_einsum(parse_einsum("ij,j->i", (2, 1)))
    'C[i] = A[i,j] * B[j]'
    """
    return str(Assignment(access_of(NAMES[len(subscripts.operands)], subscripts.result), product_of(subscripts)))
