"""Pairing: a part that multiplies many operands, as parts of two operands each, where the contraction path says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..compute.dispatch import pairs_for
from ..frontend.contraction import LETTERS, Pair
from ..frontend.datatypes import WIDENED
from ..frontend.parser import Subscripts
from ..frontend.statements import NAMES, Form, ProgramPart, Request, plain_request
from ..ir.format import dense
from ..ir.index import Access, Binary, IndexVar, TensorVar, accesses_in, factors_of
from ..schedule.options import AUTOMATIC

NARROW = {*WIDENED, *(str(dtype).removeprefix("torch.") for dtype in WIDENED)}  # of tensors, and of what is known of one


def in_pairs(parts: tuple[ProgramPart, ...], at: int, values: Mapping[str, Any]) -> tuple[ProgramPart, ...]:
    """The program with the part at this place in pairs; the very same one where a single nest is better, or it is no product.

    Operands of about the same size share a path, and what is made of it.

    >>> import torch, numscorch as ns
    >>> from numscorch.frontend.statements import parse_program
    >>> given = {"A": ns.from_torch(torch.ones(90, 90), ns.CSR), "x": torch.ones(90, 80), "w": torch.ones(80, 2), "b": torch.ones(2)}
    >>> [part.operands for part in in_pairs(parse_program("y[i,k] = A[i,j] * x[j,f] * w[f,k] + b[k]"), 0, given)]
    [('x', 'w'), ('A', '2'), ('1', 'b')]
    """
    part = parts[at]
    if len(part.operands) < 3 or not _is_plain_product(part.request):
        return parts
    operands = [values[name] for name in part.operands]
    if len({operand.dtype for operand in operands}) > 1 or operands[0].dtype in NARROW:
        return parts  # what is rounded once, or refused, is computed as a whole
    if any(len(o.shape) != len(names) for o, names in zip(operands, part.request.subscripts.operands, strict=True)):
        return parts  # which is refused where it is computed
    pairs = pairs_for(plain_request(part.request.subscripts), operands)
    return _with_pairs(parts, at, pairs) if pairs else parts


def _is_plain_product(request: Request) -> bool:
    """Whether a request adds up products of the values of its operands, each once and in order."""
    if request.value is None or request.op not in ("=", "+=") or request.mask is not None or request.options != AUTOMATIC:
        return False
    accesses = accesses_in(request.value)
    return (
        all(isinstance(factor, Access) and factor.tensor.has_values for factor in factors_of(request.value))
        and [access.tensor.name for access in accesses] == list(NAMES[: len(request.subscripts.operands)])
        and all(len(name) == 1 for names in request.subscripts.operands for name in names)
    )


@lru_cache(maxsize=1024)
def _with_pairs(parts: tuple[ProgramPart, ...], at: int, pairs: tuple[Pair, ...]) -> tuple[ProgramPart, ...]:
    """The program with one part for each pair, of which the last has the part's name; the others are numbered on."""
    part, pieces = parts[at], []
    number = max((int(other.name) for other in parts if other.is_temporary), default=0)
    left, names = list(part.operands), dict.fromkeys(n for term in part.request.subscripts.operands for n in term)
    letters = str.maketrans(dict(zip(LETTERS, names, strict=False)))
    for pair in pairs:
        is_last = pair is pairs[-1]
        number += 1
        name = part.name if is_last else str(number)
        operands = left[pair.left], left.pop(pair.right)
        pieces.append(ProgramPart(name, operands, _product(pair.expr.translate(letters), part.request.form.in_order or not is_last)))
        left[pair.left] = name
    return (*parts[:at], *pieces, *parts[at + 1 :])


def _product(expr: str, in_order: bool) -> Request:
    """The request of a pair, whose indices are named as in the part."""
    terms, _, result = expr.partition("->")
    left, right = (Access(TensorVar(NAMES[n], dense(len(t))), tuple(map(IndexVar, t))) for n, t in enumerate(terms.split(",")))
    subscripts = Subscripts(tuple(tuple(term) for term in terms.split(",")), tuple(result))
    return Request(subscripts, Binary("*", left, right), form=Form(in_order=in_order))


def parts_of(subscripts: Subscripts, pairs: tuple[Pair, ...]) -> tuple[ProgramPart, ...]:
    """The pairs in which an einsum is contracted, as parts of a program that reads A, B, ...

    >>> import torch, numscorch as ns
    >>> from numscorch.frontend.parser import parse_einsum
    >>> given = ns.from_torch(torch.ones(90, 90), ns.CSR), torch.ones(90, 80), torch.ones(80, 2)
    >>> request = plain_request(parse_einsum("ij,jf,fk->ik", (2, 2, 2)))
    >>> for part in parts_of(request.subscripts, pairs_for(request, given)):
    ...     print(part.name, part.operands, part.request)
    1 ('B', 'C') A[j,f] * B[f,k] over jf,fk->jk
    D ('A', '1') A[i,j] * B[j,k] over ij,jk->ik
    """
    count = len(subscripts.operands)
    return _with_pairs((ProgramPart(NAMES[count], tuple(NAMES[:count]), plain_request(subscripts)),), 0, pairs)


def spelled_einsum(subscripts: Subscripts) -> str:
    """The statement of an einsum of operands A, B, ...

    >>> from numscorch.frontend.parser import parse_einsum
    >>> spelled_einsum(parse_einsum("ij,j->i", (2, 1)))
    'C[i] = A[i,j] * B[j]'
    """
    *factors, result = (*subscripts.operands, subscripts.result)
    written = [f"{NAMES[at]}[{','.join(names)}]" if names else NAMES[at] for at, names in enumerate((*factors, result))]
    return f"{written[-1]} = {' * '.join(written[:-1])}"
