"""Derive the requests that compute gradients, and the order of their operands.

Requests are cached by the original request and the kinds of its operands; ``programs/gradients.py`` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count

from ..ir.format import dense
from ..ir.functions import TESTS, is_zero, terms_of
from ..ir.gradient import ONE, ZERO, derivative
from ..ir.index import Access, Binary, Expr, IndexVar, accesses_in, factors_of, is_product, mapped, product
from ..schedule.facts import AUTOMATIC
from .parser import Subscripts
from .requests import NAMES, Request, access_of, plain_request

SUMS, SEMIRINGS = ("=", "+="), ("max plus=", "min plus=")
EXTREMES = ("max=", "min=", *SEMIRINGS)
CONSTANT = "stored max="  # the maximum that softmax subtracts; its gradient cancels
UPSTREAM, RESULT, STORED, PRESENT = "upstream", "result", "stored", "present"  # names of additional inputs; operands have letters


@dataclass(frozen=True, slots=True)
class Gradient:
    """The request of one operand's gradient, or of its part of the result's tangent, and how to assemble the inputs.

    The inputs are, in order: the upstream gradient or the operand's tangent, the result (for maxima and minima), the operands
    ``reads``, ones in the patterns of the operands ``present``, and a pattern if ``masked``.

    Attributes:
        request: computes the gradient.
        reads: positions of the operands whose values are read.
        kept: indices of a dense gradient; it is constant along the remaining indices of the operand (of the result, for a tangent).
        repeated: indices that no input has; the gradient is multiplied by their extents.
        folded: positions of operands with the result's pattern, whose values are multiplied into the upstream gradient.
        masked: whether the last input is a pattern: that of the operand or, for a tangent, of the result or of its mask.
        present: positions of operands that contribute only where they store an entry.
    """

    request: Request
    reads: tuple[int, ...]
    kept: tuple[str, ...]
    repeated: tuple[str, ...]
    folded: tuple[int, ...]
    masked: bool
    present: tuple[int, ...] = ()


def chooses(request: Request) -> bool:
    """Whether the result is a maximum or minimum over several terms, so that only the selected terms get a gradient."""
    return request.op in EXTREMES and has_reduced(request)


@lru_cache(maxsize=1024)
def has_reduced(request: Request) -> bool:
    """Whether the request reduces an index."""
    return any(not set(names) <= set(request.subscripts.result) for names in request.subscripts.operands)


@lru_cache(maxsize=1024)
def of_one_term(request: Request) -> Request:
    """Replace the reduction by a plain assignment if no index is reduced; semirings stay, because they redefine the product."""
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
    """The request for an operand's gradient; None if the gradient is 0.

    Args:
        request: the forward request.
        at: the operand's position.
        is_sparse: whether the operand is a SparseTensor; its gradient then has its pattern.
        stretched: for each operand, the indices along which it is broadcast from size 1.
        shared: positions of the operands that have the result's pattern.
        sparse: for semirings whose product is a sum, positions of the operands with unstored entries; an unstored factor
            removes the whole term.

    >>> from .parser import parse_einsum
    >>> matmul = plain_request(parse_einsum("ij,jk->ik", (2, 2)))
    >>> for at, is_sparse in ((0, True), (1, False)):
    ...     print(gradient_of(matmul, at, is_sparse, (frozenset(),) * 2, frozenset()).request)
    A[i,k] * B[j,k] * C[i,j] over ik,jk,ij->ij
    ik,ij->jk
    """
    value, subs = terms_of(value_of_request(request), request.op, "float32"), request.subscripts
    slope = derivative(value, NAMES[at])
    if is_zero(slope) or at == request.mask or request.op == CONSTANT:
        return None
    matching = [k for k in shared if subs.operands[k] == subs.result]
    folded, factors = _folded(slope, matching, subs)
    if chooses(request):
        factors.append(Binary("==", value, access_of(RESULT, subs.result)))
    reads = _read_in(factors)
    names = tuple(f"{name}0" if name in stretched[at] else name for name in subs.operands[at])
    present = tuple(sorted(sparse - {at}))
    factors += [access_of(f"{PRESENT}{k}", subs.operands[k]) for k in present]
    masked = is_sparse and (at not in matching or bool(stretched[at]) or request.op in EXTREMES)  # factors may store fewer entries
    moving = {*subs.result, *(n for k in reads for n in subs.operands[k] if n not in stretched[k]), *(names if masked else ())}
    kept = names if is_sparse else tuple(n for n in subs.operands[at] if n in moving and n not in stretched[at])
    repeated = tuple(n for n in _all(subs) if n not in moving and (n not in subs.operands[at] or n in stretched[at]))
    inputs = [access_of(UPSTREAM, subs.result), *([access_of(RESULT, subs.result)] if chooses(request) else [])]
    inputs += [access_of(NAMES[k], subs.operands[k]) for k in reads]
    inputs += [access_of(f"{PRESENT}{k}", subs.operands[k]) for k in present] + ([access_of(STORED, names)] if masked else [])
    adjoint = _request(inputs, product([inputs[0], *factors, *([inputs[-1]] if masked else [])]), kept, masked)
    return Gradient(adjoint, reads, kept, repeated, folded, masked, present)


@lru_cache(maxsize=4096)
def tangent_of(
    request: Request, at: int, is_sparse: bool, stretched: tuple[frozenset[str], ...], sparse: frozenset[int] = frozenset()
) -> Gradient | None:
    """The request for the part of the result's tangent that an operand's tangent causes; None if it is 0.

    ``is_sparse`` says that the result is sparse; the tangent then has the result's pattern. The other arguments are those of
    :func:`gradient_of`. A sum of products is linear in each operand, so its own request is returned: the tangent replaces the operand.

    >>> from .statements import parse_program
    >>> part = parse_program("y[i] = exp(A[i,j]) * x[j]")[0]
    >>> for at in (0, 1):
    ...     print(tangent_of(part.request, at, False, (frozenset(),) * 2).request)
    A[i,j] * exp(B[i,j]) * C[j] over ij,ij,j->i
    A[j] * exp(B[i,j]) over j,ij->i
    """
    value, subs = terms_of(value_of_request(request), request.op, "float32"), request.subscripts
    slope = derivative(value, NAMES[at])
    if is_zero(slope) or at == request.mask or request.op == CONSTANT:
        return None
    if request.op in SUMS and is_product(value) and len(accesses_in(value)) == len(subs.operands) - (request.mask is not None):
        return Gradient(request, (), subs.result, (), (), False)
    inputs = [access_of(UPSTREAM, subs.operands[at])]
    factors = [inputs[0], *([] if slope == ONE else factors_of(slope))]
    if chooses(request):
        inputs.append(access_of(RESULT, subs.result))
        factors.append(Binary("==", value, inputs[-1]))
    reads = _read_in(factors)
    present = tuple(sorted(sparse - {at}))
    ones = [access_of(f"{PRESENT}{k}", subs.operands[k]) for k in present]
    mask = [access_of(STORED, subs.result)] if is_sparse or request.mask is not None else []
    inputs += [*(access_of(NAMES[k], subs.operands[k]) for k in reads), *ones, *mask]
    moving = {n for k in (at, *reads, *present) for n in subs.operands[k] if n not in stretched[k]}
    moving |= {v.name for access in (*mask, *inputs[1 : 1 + chooses(request)]) for v in access.indices}
    kept = tuple(n for n in subs.result if n in moving)
    repeated = tuple(n for n in _all(subs) if n not in moving and n not in subs.result)
    return Gradient(_request(inputs, product([*factors, *ones, *mask]), kept, bool(mask)), reads, kept, repeated, (), bool(mask), present)


def _read_in(factors: Sequence[Expr]) -> tuple[int, ...]:
    """The positions of the operands whose values these factors read."""
    return tuple(sorted({NAMES.index(a.tensor.name) for factor in factors for a in accesses_in(factor) if a.tensor.name in NAMES}))


def _folded(slope: Expr, matching: Sequence[int], subs: Subscripts) -> tuple[tuple[int, ...], list[Expr]]:
    """Split a slope into the positions of the operands that have the result's pattern, and the remaining factors."""
    positions = {access_of(NAMES[k], subs.result): k for k in matching}
    factors = [] if slope == ONE else factors_of(slope)
    folded = tuple(positions[factor] for factor in factors if isinstance(factor, Access) and factor in positions)
    return folded, [factor for factor in factors if not (isinstance(factor, Access) and factor in positions)]


def _request(inputs: Sequence[Access], value: Expr, kept: tuple[str, ...], masked: bool) -> Request:
    """A request with these inputs as operands, in this order; if ``masked``, the last one is the mask."""
    letters = {access.tensor.name: NAMES[at] for at, access in enumerate(inputs)}
    subscripts = Subscripts(tuple(tuple(v.name for v in access.indices) for access in inputs), kept)
    if not masked and factors_of(value) == list(inputs):
        return plain_request(subscripts)
    renamed = mapped(value, lambda a: a.with_changes(name=letters[a.tensor.name]))
    summed = {name for names in subscripts.operands for name in names} - set(kept)
    return Request(subscripts, renamed, "+=" if summed and not is_product(renamed) else "=", len(inputs) - 1 if masked else None)


@lru_cache(maxsize=1024)
def value_of_request(request: Request) -> Expr:
    """The expression of a request, without its mask."""
    return request.expr if request.mask is None else _without(request.expr, NAMES[request.mask])


def _without(value: Expr, mask: str) -> Expr:
    """Remove the mask from a product, or from the product on the left of a comparison."""
    if isinstance(value, Binary) and value.op in TESTS:
        return Binary(value.op, _without(value.left, mask), value.right)
    return product([f for f in factors_of(value) if not (isinstance(f, Access) and f.tensor.name == mask)])


def _once(access: Access) -> Access:
    """The access with repeated indices removed."""
    return _renamed(access, tuple(dict.fromkeys(var.name for var in access.indices)))


@lru_cache(maxsize=1024)
def without_diagonals(request: Request) -> Request:
    """The request for operands whose diagonals have been taken: each operand has each index once."""
    terms = tuple(tuple(dict.fromkeys(names)) for names in request.subscripts.operands)
    subscripts = Subscripts(terms, request.subscripts.result)
    if request.value is None:
        return plain_request(subscripts)
    return replace(request, subscripts=subscripts, value=mapped(request.value, _once))


@lru_cache(maxsize=256)
def batched_request(request: Request, places: tuple[int | None, ...]) -> Request:
    """Add a batch dimension to operands and the result, which comes last in ``places``: before dimension 0 or after dimension -1.

    >>> from .parser import parse_einsum
    >>> print(batched_request(plain_request(parse_einsum("ij,jk->ik", (2, 2))), (-1, None, -1)))
    ijb0,jk->ikb0
    """
    subs = request.subscripts
    batch = next(name for name in map("b{}".format, count()) if name not in _all(subs))
    names = [_with_batch(term, batch, place) for term, place in zip((*subs.operands, subs.result), places, strict=True)]
    subscripts = Subscripts(tuple(names[:-1]), names[-1])
    if request.value is None:
        return plain_request(subscripts)
    value = mapped(request.value, lambda a: _renamed(a, names[NAMES.index(a.tensor.name)]))
    return replace(request, subscripts=subscripts, value=value, options=AUTOMATIC)


def _with_batch(names: tuple[str, ...], batch: str, place: int | None) -> tuple[str, ...]:
    return names if place is None else (batch, *names) if place == 0 else (*names, batch)


def _renamed(access: Access, names: tuple[str, ...]) -> Access:
    """The access with other indices."""
    return Access(replace(access.tensor, format=dense(len(names))), tuple(map(IndexVar, names)))


@lru_cache(maxsize=256)
def request_counting_ties(request: Request, is_sparse: bool, sparse: tuple[int, ...] = ()) -> Request:
    """The request that counts, for each result entry, the terms equal to the maximum or minimum.

    Its operands are, in order: the result's pattern if the result is sparse, the result, the operands except the mask, and
    ones in the patterns of the operands ``sparse``. If a product has ``sparse`` operands, the request visits stored terms
    only, and where the result is 0, it subtracts 1 for each stored term. There, the caller adds the number of all terms.
    """
    subs, value, offset = request.subscripts, terms_of(value_of_request(request), request.op, "float32"), 1 + is_sparse
    positions = [at for at in range(len(subs.operands)) if at != request.mask]
    letters = {NAMES[at]: NAMES[offset + place] for place, at in enumerate(positions)}
    shifted = mapped(value, lambda a: a.with_changes(name=letters[a.tensor.name]))
    extreme = access_of(NAMES[is_sparse], subs.result)
    equal: Expr = Binary("==", shifted, extreme)
    if sparse and request.op not in SEMIRINGS:
        equal = Binary("-", equal, Binary("==", extreme, ZERO))
    present = [subs.operands[k] for k in sparse]
    patterns = [access_of(name, names) for name, names in zip(NAMES[offset + len(positions) :], present, strict=False)]
    equal = product([equal, *([access_of(NAMES[0], subs.result)] if is_sparse else []), *patterns])
    terms = (*(subs.result,) * offset, *(subs.operands[at] for at in positions), *present)
    return Request(Subscripts(terms, subs.result), equal, "+=", 0 if is_sparse else None)


def _all(subs: Subscripts) -> list[str]:
    return list(dict.fromkeys(name for names in subs.operands for name in names))
