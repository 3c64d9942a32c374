"""The requests of gradients: what is computed of an upstream gradient and operands, and in which order these are given.

For every request they are made once, for its operands' kinds; ``gradients.py`` computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..ir.format import dense
from ..ir.functions import TESTS, is_zero, terms_of
from ..ir.gradient import ONE, ZERO, derivative
from ..ir.index import Access, Binary, Expr, IndexVar, TensorVar, accesses_in, factors_of, is_product, mapped, product
from .parser import Subscripts
from .statements import NAMES, Request, plain_request

SUMS, SEMIRINGS = ("=", "+="), ("max plus=", "min plus=")
EXTREMES = ("max=", "min=", *SEMIRINGS)
CONSTANT = "stored max="  # what softmax subtracts, which changes nothing
UPSTREAM, RESULT, STORED, PRESENT = "upstream", "result", "stored", "present"  # what is read besides operands, whose names are letters


@dataclass(frozen=True, slots=True)
class Gradient:
    """The request of a gradient, of the upstream one, the result if its op takes that, operands, and perhaps the pattern.

    ``reads`` are those operands' numbers, ``kept`` the indices of a dense gradient; along the operand's others it is constant.
    ``repeated`` are the indices for each of which the same term is added; ``folded`` the operands that have the result's
    pattern, and are multiplied into the upstream gradient; ``masked`` whether the operand's pattern is the last one. ``present``
    are the operands that have to store an entry, whatever it is: of each, ones in its pattern are read after ``reads``.
    """

    request: Request
    reads: tuple[int, ...]
    kept: tuple[str, ...]
    repeated: tuple[str, ...]
    folded: tuple[int, ...]
    masked: bool
    present: tuple[int, ...] = ()


def chooses(request: Request) -> bool:
    """Whether the largest or smallest of several terms is the result, so that the gradient goes to it alone."""
    return request.op in EXTREMES and has_reduced(request)


@lru_cache(maxsize=1024)
def has_reduced(request: Request) -> bool:
    """Whether some index is reduced."""
    return any(not set(names) <= set(request.subscripts.result) for names in request.subscripts.operands)


@lru_cache(maxsize=1024)
def of_one_term(request: Request) -> Request:
    """The request as a sum, which it is where no index is reduced; a semiring's stays, since its product is another one."""
    return request if request.op in SEMIRINGS or has_reduced(request) else replace(request, op="=")


@lru_cache(maxsize=4096)
def gradient_of(
    request: Request,
    at: int,
    is_sparse: bool,
    stretched: tuple[frozenset[str], ...],
    shared: frozenset[int],
    sparse: frozenset[int] = frozenset(),
) -> Gradient | None:
    """The request for an operand's gradient; None where it is 0.

    Args:
        request: what is computed.
        at: the operand's number.
        is_sparse: whether it is a SparseTensor, so that its gradient has its pattern.
        stretched: those indices of each operand along which it has size 1, and others more.
        shared: the operands that have the result's pattern.
        sparse: those that don't store every entry, if an absent factor annihilates a term that is a sum (a semiring).

    >>> from .parser import parse_einsum
    >>> matmul = plain_request(parse_einsum("ij,jk->ik", (2, 2)))
    >>> for at, is_sparse in ((0, True), (1, False)):
    ...     print(gradient_of(matmul, at, is_sparse, (frozenset(),) * 2, frozenset()).request)
    A[i,k] * B[j,k] * C[i,j] over ik,jk,ij->ij
    ik,ij->jk
    """
    value, subs = terms_of(value_of_request(request), request.op), request.subscripts
    slope = derivative(value, NAMES[at])
    if is_zero(slope) or at == request.mask or request.op == CONSTANT:
        return None
    alike = [k for k in shared if subs.operands[k] == subs.result]
    folded, factors = _folded(slope, alike, subs)
    if chooses(request):
        factors.append(Binary("==", value, _access(RESULT, subs.result)))
    reads = sorted({NAMES.index(a.tensor.name) for factor in factors for a in accesses_in(factor) if a.tensor.name in NAMES})
    names = tuple(f"{name}0" if name in stretched[at] else name for name in subs.operands[at])
    present = tuple(sorted(sparse - {at}))
    factors += [_access(f"{PRESENT}{k}", subs.operands[k]) for k in present]
    masked = is_sparse and (at not in alike or bool(stretched[at]) or request.op in EXTREMES)  # other factors may store fewer entries
    moving = {*subs.result, *(n for k in reads for n in subs.operands[k] if n not in stretched[k]), *(names if masked else ())}
    kept = names if is_sparse else tuple(n for n in subs.operands[at] if n in moving and n not in stretched[at])
    repeated = tuple(n for n in _all(subs) if n not in moving and (n not in subs.operands[at] or n in stretched[at]))
    given = [_access(UPSTREAM, subs.result), *([_access(RESULT, subs.result)] if chooses(request) else [])]
    given += [_access(NAMES[k], subs.operands[k]) for k in reads]
    given += [_access(f"{PRESENT}{k}", subs.operands[k]) for k in present] + ([_access(STORED, names)] if masked else [])
    request_ = _request(given, product([given[0], *factors, *([given[-1]] if masked else [])]), kept, masked)
    return Gradient(request_, tuple(reads), kept, repeated, folded, masked, present)


def _folded(slope: Expr, alike: Sequence[int], subs: Subscripts) -> tuple[tuple[int, ...], list[Expr]]:
    """The factors of a slope that have the result's pattern, by their numbers, and the others."""
    named = {_access(NAMES[k], subs.result): k for k in alike}
    factors = [] if slope == ONE else factors_of(slope)
    folded = tuple(named[factor] for factor in factors if isinstance(factor, Access) and factor in named)
    return folded, [factor for factor in factors if not (isinstance(factor, Access) and factor in named)]


def _request(given: Sequence[Access], value: Expr, kept: tuple[str, ...], masked: bool) -> Request:
    """A request of what is given, in its order; the last one is the mask, if there is one."""
    letters = {access.tensor.name: NAMES[at] for at, access in enumerate(given)}
    subscripts = Subscripts(tuple(tuple(v.name for v in access.indices) for access in given), kept)
    if not masked and factors_of(value) == list(given):
        return plain_request(subscripts)
    renamed = mapped(value, lambda a: _renamed(a, letters[a.tensor.name]))
    summed = {name for names in subscripts.operands for name in names} - set(kept)
    return Request(subscripts, renamed, "+=" if summed and not is_product(renamed) else "=", len(given) - 1 if masked else None)


@lru_cache(maxsize=1024)
def value_of_request(request: Request) -> Expr:
    """What a request computes, but for its mask."""
    names = request.subscripts.operands
    if request.value is None:
        return product([_access(NAMES[at], indices) for at, indices in enumerate(names)])
    return request.value if request.mask is None else _without(request.value, NAMES[request.mask])


def _without(value: Expr, mask: str) -> Expr:
    """A product, or a test of one, without the factor that is the mask."""
    if isinstance(value, Binary) and value.op in TESTS:
        return Binary(value.op, _without(value.left, mask), value.right)
    return product([f for f in factors_of(value) if not (isinstance(f, Access) and f.tensor.name == mask)])


def _access(name: str, indices: Sequence[str]) -> Access:
    return Access(TensorVar(name, dense(len(indices))), tuple(map(IndexVar, indices)))


def _renamed(access: Access, name: str) -> Access:
    """The access to another tensor; of its pattern, if that is what is read."""
    return replace(access, tensor=replace(access.tensor, name=name))


def _once(access: Access) -> Access:
    """The access with each index once."""
    indices = tuple(dict.fromkeys(access.indices))
    return Access(replace(access.tensor, format=dense(len(indices))), indices)


@lru_cache(maxsize=1024)
def without_diagonals(request: Request) -> Request:
    """The request for operands that are diagonals already."""
    terms = tuple(tuple(dict.fromkeys(names)) for names in request.subscripts.operands)
    subscripts = Subscripts(terms, request.subscripts.result)
    if request.value is None:
        return plain_request(subscripts)
    value = mapped(request.value, _once)
    return Request(subscripts, value, request.op, request.mask, request.options)


@lru_cache(maxsize=256)
def batched_request(request: Request, batched: tuple[bool, ...]) -> Request | None:
    """A product of operands some of which have a dimension more in front, as its result then has."""
    subs = request.subscripts
    terms = tuple(("b0", *names) if b else names for names, b in zip(subs.operands, batched, strict=True))
    return None if "b0" in _all(subs) else plain_request(Subscripts(terms, ("b0", *subs.result)))


@lru_cache(maxsize=256)
def ties_of(request: Request, is_sparse: bool, sparse: tuple[int, ...] = ()) -> Request:
    """How many terms are the largest or smallest one: of the result, if it is sparse, its pattern before it, and the operands but the mask.

    After them come ones in the patterns of those that have to store an entry. Without one, a product is 0, and those that are as
    large as that are not counted: of the result's 0s, this many are missing.
    """
    subs, value, before = request.subscripts, terms_of(value_of_request(request), request.op), 1 + is_sparse
    read = [at for at in range(len(subs.operands)) if at != request.mask]
    letters = {NAMES[at]: NAMES[before + place] for place, at in enumerate(read)}
    shifted = mapped(value, lambda a: _renamed(a, letters[a.tensor.name]))
    extreme = _access(NAMES[is_sparse], subs.result)
    equal: Expr = Binary("==", shifted, extreme)
    if sparse and request.op not in SEMIRINGS:
        equal = Binary("-", equal, Binary("==", extreme, ZERO))
    if is_sparse:
        equal = Binary("*", equal, _access(NAMES[0], subs.result))
    present = [subs.operands[k] for k in sparse]
    for at, names in enumerate(present):
        equal = Binary("*", equal, _access(NAMES[before + len(read) + at], names))
    given = (*(subs.result,) * before, *(subs.operands[at] for at in read), *present)
    return Request(Subscripts(given, subs.result), equal, "+=", 0 if is_sparse else None)


def _all(subs: Subscripts) -> list[str]:
    return list(dict.fromkeys(name for names in subs.operands for name in names))
