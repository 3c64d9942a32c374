"""Gradients: each is a separate request, compiled like any other.

For ``C[i,k] = A[i,j] * B[j,k]`` with gradient G of C, the gradient of B is ``G[i,k] * A[i,j]``, and that of A is
``G[i,k] * B[j,k]`` at the entries of A: a sampled product. It needs O(nnz) memory and is itself differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import chain
from math import prod
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..convert.construct import from_coo, from_torch
from ..convert.values import as_stored, to_dense
from ..errors import UnsupportedError
from ..frontend.gradient_requests import (
    CONSTANT,
    EXTREMES,
    SEMIRINGS,
    SUMS,
    Gradient,
    chooses,
    gradient_of,
    has_reduced,
    of_one_term,
    request_counting_ties,
    tangent_of,
    value_of_request,
    without_diagonals,
)
from ..frontend.parser import Subscripts
from ..frontend.problem import extents_of, wanted_format
from ..frontend.requests import NAMES, Operand, Request, plain_request, reducing
from ..ir.format import COO, Format, dense
from ..ir.functions import is_zero, simplified, terms_of
from ..ir.index import is_product
from ..tensors.modes import in_transform
from ..tensors.packing import at_entries
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .autograd import Differentiable, through
from .batches import batched_call, pattern_of_row
from .dense_requests import value_of, with_order
from .operands import STRIDED, has_tangents, readable
from .results import in_format, semiring_zero
from .torch_sparse import wrap

Compute = Callable[..., Any]  # dispatch.compute, which supports gradients


def wanted(operands: Sequence[Any]) -> bool:
    """Whether an operand requires grad; objects without that attribute do not.

    >>> wanted([torch.ones(2)]), wanted([torch.ones(2), torch.ones(2, requires_grad=True)])
    (False, True)
    """
    try:
        return any((operand._values if type(operand) is SparseTensor else operand).requires_grad for operand in operands)
    except AttributeError:
        return False  # not a tensor: refused later


def attached(operand: Any) -> Any:
    """Convert an operand to a SparseTensor, or to a strided tensor if all its levels are dense; gradients flow to the operand."""
    operand = readable(operand)
    if isinstance(operand, SparseTensor):
        return to_dense(operand) if operand.pattern.is_dense else operand
    if operand.layout is STRIDED:
        return operand
    if not operand.requires_grad:
        return wrap(operand)
    if operand.layout is torch.sparse_coo and (not operand.is_coalesced() or operand.dense_dim()):
        return from_torch(operand, copy=False)
    return SparseTensor(wrap(operand).pattern, operand.values().reshape(-1))


def differentiable(request: Request, operands: Sequence[Any], format: Format | str | None, compute: Compute) -> Any:
    """The differentiable result of a request on SparseTensors and strided tensors; ``compute`` is ``dispatch.compute``.

    Raises:
        SizeError: an index takes a diagonal whose sizes differ, or has two sizes.
        UnsupportedError: the reduction has no gradient.
    """
    if not has_reduced(request) and request.op not in ("=", CONSTANT):
        request = of_one_term(request)
    if request.op == "*=" and (wanted(operands) or (forward_ad._current_level >= 0 and has_tangents(operands))):
        return _in_format(multiplied(request, operands, format, compute), format, request)
    if request.op not in (*SUMS, *EXTREMES, CONSTANT, "*="):
        raise UnsupportedError(f"{request.op} reductions have no gradient: pass x.detach(), or A.with_values(A.values.detach())")
    if (result := _compute_on_values(request, operands)) is not None:
        return _in_format(result, format, request)
    names = request.subscripts.operands
    if any(len(set(letters)) < len(letters) for letters in names):
        extents_of(request, [Operand(o.format if isinstance(o, SparseTensor) else dense(o.ndim), tuple(o.shape), "") for o in operands])
        operands = [_diagonal(o, letters) for o, letters in zip(operands, names, strict=True)]
        request = without_diagonals(request)
    call = DifferentiableCall(request, format, operands, compute)
    values = through(call, map(_values, operands))
    return values if call.result is None else SparseTensor.trusted(call.result, values)


def _values(operand: SparseTensor | Tensor) -> Tensor:
    return operand._values if isinstance(operand, SparseTensor) else operand


def with_patterns(values: Sequence[Tensor], patterns: Sequence[Pattern | None]) -> list[Any]:
    """Build operands from values and patterns; the pattern of a dense operand is None."""
    return [_rebuilt(pattern, v) for v, pattern in zip(values, patterns, strict=True)]


def _in_format(result: SparseTensor | Tensor, format: Format | str | None, request: Request) -> Any:
    return in_format(result, wanted_format(format, result.ndim), semiring_zero(request, result.dtype))


# ---- entry by entry


def _compute_on_values(request: Request, operands: Sequence[Any]) -> SparseTensor | None:
    """Compute an element-wise request of tensors that share a pattern: apply torch to their values. None for other requests."""
    sparse = [o for o in operands if isinstance(o, SparseTensor)]
    pattern, value = sparse[0].pattern, value_of_request(request)
    sparse_names = {NAMES[at] for at, o in enumerate(operands) if isinstance(o, SparseTensor)}
    has_result_indices = all(names in ((), request.subscripts.result) for names in request.subscripts.operands)
    is_elementwise = has_result_indices and all(o.pattern is pattern if isinstance(o, SparseTensor) else not o.ndim for o in operands)
    if not is_elementwise or not is_zero(simplified(value, sparse_names)):
        return None
    value = terms_of(value, request.op, str(sparse[0].dtype).removeprefix("torch."))
    return SparseTensor(pattern, at_entries(pattern, lambda *given: value_of(value, given, sparse[0].dtype), *map(_values, operands)))


# ---- diagonals


def _diagonal(operand: SparseTensor | Tensor, names: Sequence[str]) -> SparseTensor | Tensor:
    """The operand with one dimension for each distinct name; repeated names take the diagonal."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) == len(names):
        return operand
    if isinstance(operand, Tensor):
        return with_order(operand, names, distinct)
    entries = operand.to(COO(operand.ndim))
    indices = entries.indices()
    firsts = [names.index(name) for name in names]
    on_diagonal = (indices == indices[firsts]).all(0).nonzero().reshape(-1)
    places = [names.index(name) for name in distinct]
    shape = [operand.shape[at] for at in places]
    return from_coo(indices[places][:, on_diagonal], entries.values[on_diagonal], shape)


# ---- products along a dimension


@lru_cache(maxsize=256)
def _product_steps(request: Request) -> tuple[Request, Request, Request, int]:
    """Three requests, which compute the terms, sum terms, and sum terms at a pattern; and the number of the result's dimensions."""
    subs = request.subscripts
    read = tuple(letters for at, letters in enumerate(subs.operands) if at != request.mask)
    names = tuple(dict.fromkeys(chain(subs.result, *read)))
    terms = Request(Subscripts(read, names), value_of_request(request))
    sum_at = reducing(Subscripts((names, subs.result), subs.result), "=", mask=1)
    return terms, plain_request(Subscripts((names,), subs.result)), sum_at, len(subs.result)


def multiplied(request: Request, operands: Sequence[Any], format: Format | str | None, compute: Compute) -> SparseTensor | Tensor:
    """The result of a request that multiplies terms (``*=``). A mask overrides ``format``. Takes memory for all terms.

    The gradient of a term is the product of the other terms: product / term unless a term is 0. The terms are computed first, as a
    differentiable request; the product is then an expression that torch can differentiate.

    ``compute`` is ``dispatch.compute``.

    Raises:
        UnsupportedError: the terms are complex.
    """
    term_request, sum_request, masked_sum_request, kept = _product_steps(request)
    result = compute(request, [operand.detach() for operand in operands], format if request.mask is None else None)
    terms = compute(term_request, [operand for at, operand in enumerate(operands) if at != request.mask])
    if isinstance(terms, Tensor):
        product: Tensor = terms.flatten(kept).prod(-1)
        return product if isinstance(result, Tensor) else result.with_values(as_stored(product, result.pattern))

    def total(values: Tensor) -> Tensor:
        summed = terms.with_values(values)
        if isinstance(result, Tensor):
            return compute(sum_request, [summed], "dense")
        return as_stored(compute(masked_sum_request, [summed, result]), result.pattern)

    values = _with_gradient(result if isinstance(result, Tensor) else result.values, terms.values, total, prod(terms.shape[kept:]))
    return values if isinstance(result, Tensor) else result.with_values(values)


def _with_gradient(result: Tensor, values: Tensor, total: Callable[[Tensor], Tensor], count: int) -> Tensor:
    """Make the product ``result`` of ``count`` terms differentiable; ``values`` are the stored terms, and ``total`` sums them.

    Without zero terms, the product is multiplied by exp(sum of logarithms - its detached copy): a factor of 1 that has the gradient.
    A single zero term is multiplied by the product of the other terms. The product of two zero terms is written as (s**2 - t)/2,
    where s is their sum and t the sum of their squares. With more zero terms, the product and its first two derivatives are 0.

    Raises:
        UnsupportedError: the terms are complex.
    """
    if values.is_complex():
        raise UnsupportedError("products of complex terms along a dimension have no gradient: use .to_dense().prod(dim)")
    is_zero = values.detach() == 0
    nonzeros = torch.where(is_zero, 1, values)
    zeros = torch.where(is_zero, values, 0)
    logarithms, zero_sum = total(nonzeros.abs().log()), total(zeros)
    zero_pairs = (zero_sum * zero_sum - total(zeros * zeros)) / 2
    detached, negative = logarithms.detach(), (total((nonzeros.detach() < 0).to(torch.float64)) % 2).to(values.dtype)
    product, missing = detached.exp() * (1 - 2 * negative), float(count) - total((~is_zero).to(torch.float64))
    of_zeros = torch.where(missing == 1, zero_sum, torch.where(missing == 2, zero_pairs, 0))
    return torch.where(missing == 0, result, product * of_zeros) * (logarithms - detached).exp()


# ---- through a kernel


def _rebuilt(pattern: Pattern | None, values: Tensor) -> SparseTensor | Tensor:
    """An operand, or a result, from its values."""
    if pattern is None:
        return values
    if values.is_contiguous() and not (values.is_neg() or values.is_conj() or values._is_zerotensor()):
        return SparseTensor.trusted(pattern, values)
    return SparseTensor(pattern, values)


Shapes = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def _stretched(subscripts: Subscripts, shapes: Shapes) -> tuple[frozenset[str], ...]:
    """For each operand, the indices along which it has size 1 and is broadcast."""
    extents, terms = subscripts.sizes(shapes), zip(subscripts.operands, shapes, strict=True)
    return tuple([frozenset(n for n, size in zip(names, shape, strict=True) if size != extents[n]) for names, shape in terms])


def _annihilating(request: Request, sparse: Sequence[bool]) -> tuple[int, ...]:
    """The operands whose unstored entries remove a term (in a semiring) or make it 0 (in a product)."""
    if request.op not in SEMIRINGS and not is_product(value_of_request(request)):
        return ()
    return tuple([k for k, is_sparse in enumerate(sparse) if is_sparse and k != request.mask])


@lru_cache(maxsize=4096)
def gradient_request(
    request: Request, at: int, fullness: tuple[bool | None, ...], shapes: Shapes, shared: tuple[int, ...], is_result_dense: bool
) -> Gradient | None:
    """The request for the gradient of an operand.

    Args:
        request: the forward request.
        at: the operand's position.
        fullness: for each operand, whether it stores all entries; None if it is dense.
        shapes: the shapes of the operands.
        shared: the operands that have the result's pattern.
        is_result_dense: whether the result is dense.

    Returns:
        the request; None if the gradient is 0.
    """
    present = frozenset(_annihilating(request, [is_full is not None for is_full in fullness]) if request.op in SEMIRINGS else ())
    if request.mask is not None and is_result_dense:  # a dense upstream gradient needs the mask
        present |= {request.mask}
    return gradient_of(request, at, fullness[at] is False, _stretched(request.subscripts, shapes), frozenset(shared), present)


class DifferentiableCall(Differentiable):
    """One differentiable call: its request, the operands' patterns, and the result's pattern once known."""

    def __init__(self, request: Request, format: Format | str | None, operands: Sequence[Any], compute: Compute):
        self.request, self.format, self.compute = request, format, compute
        self.operands = () if in_transform() else tuple(operands)  # within transforms, values are wrapped
        self.patterns = [o.pattern if isinstance(o, SparseTensor) else None for o in operands]
        self.shapes = tuple([tuple(o.shape) for o in operands])
        self.result: Pattern | None = None
        self.keeps_result = chooses(request)

    def run(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The result, or its values if it is sparse. The first run takes the operands of the call; later runs take ``values``."""
        operands = self.operands or with_patterns(values, self.patterns)
        self.operands = ()
        result = self.compute(self.request, [o if isinstance(o, SparseTensor) else o.detach() for o in operands], self.format)
        if isinstance(result, SparseTensor):
            self.result = result.pattern
        return (_values(result),)

    def gradients(self, values: Sequence[Tensor], saved: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]) -> list[Tensor | None]:
        """The gradients of the operands' values."""
        result = saved[0] if self.keeps_result else None
        if result is not None:
            upstream = self.shares(result, upstream, values)
        return [self.gradient(at, upstream, values, result) if is_needed else None for at, is_needed in enumerate(needed)]

    def over_batch(self, size: int, values: Sequence[Tensor], batched: Sequence[bool]) -> tuple[Tensor, int]:
        """The results for a batch from one kernel, and their dimension of the batch; it is the first one of the ``batched`` values."""
        call = batched_call(self.request, self.format, values, self.patterns, self.shapes, size, batched)
        result = differentiable(call.request, call.operands, call.format, self.compute)
        if isinstance(result, Tensor):
            return result, call.place
        self.result = pattern_of_row(result.pattern, size, self.patterns)
        return result._values.reshape(self.result.nnz, size), 1

    def tangent(self, values: Sequence[Tensor], result: Tensor, tangents: Sequence[Tensor | None]) -> Tensor | None:
        """The tangent of the result, or of its values if it is sparse: the sum of the parts that the operands' tangents cause."""
        computed = [self.part_of_tangent(at, t, values, result) for at, t in enumerate(tangents) if t is not None]
        parts = [part for part in computed if part is not None]
        if not parts:
            return None
        total = reduce(add, parts)
        return self.shares(result, total, values) if self.keeps_result else total

    def part_of_tangent(self, at: int, tangent: Tensor, values: Sequence[Tensor], result: Tensor) -> Tensor | None:
        """The part of the result's tangent that one operand's tangent causes; None if it is 0."""
        present = frozenset(self.annihilating()) if self.request.op in SEMIRINGS else frozenset()
        is_sparse = self.result is not None and not self.result.format.is_full
        part = tangent_of(self.request, at, is_sparse, self.stretched(), present)
        if part is None:
            return None
        moved = self.tensor(at, tangent)
        if part.request is self.request:
            computed = self.compute(part.request, [moved if k == at else self.tensor(k, v) for k, v in enumerate(values)], self.format)
            return computed if self.result is None else as_stored(computed, self.result)
        inputs = [moved, *[self.of_result(result)] * self.keeps_result, *self.read_by(part, values, tangent.dtype)]
        if is_sparse:
            inputs.append(self.of_result(result.detach()))
        elif self.request.mask is not None:
            inputs.append(self.tensor(self.request.mask, values[self.request.mask].detach()))
        extents, names = self.extents(), self.request.subscripts.result
        return self.values_of(part, inputs, names, [extents[name] for name in names], self.result)

    def tensor(self, at: int, values: Tensor) -> SparseTensor | Tensor:
        """An operand rebuilt from its values."""
        return _rebuilt(self.patterns[at], values)

    def of_result(self, values: Tensor) -> SparseTensor | Tensor:
        """A tensor like the result, rebuilt from its values."""
        return _rebuilt(self.result, values)

    def extents(self) -> dict[str, int]:
        """The size of each index."""
        return self.request.subscripts.sizes(self.shapes)

    def stretched(self) -> tuple[frozenset[str], ...]:
        """For each operand, the indices along which it has size 1 and is broadcast."""
        return _stretched(self.request.subscripts, self.shapes)

    def annihilating(self) -> tuple[int, ...]:
        """The operands whose unstored entries remove a term (in a semiring) or make it 0 (in a product)."""
        return _annihilating(self.request, [pattern is not None for pattern in self.patterns])

    def gradient(self, at: int, upstream: Tensor, values: Sequence[Tensor], result: Tensor | None) -> Tensor | None:
        """The gradient of a dense operand, or of the values of a sparse one; None if it is 0."""
        names, pattern = self.request.subscripts.operands[at], self.patterns[at]
        shared = () if self.result is None else tuple([k for k, p in enumerate(self.patterns) if p is self.result])
        fullness = tuple([None if p is None else p.format.is_full for p in self.patterns])
        adjoint = gradient_request(self.request, at, fullness, self.shapes, shared, self.result is None)
        if adjoint is None:
            return None
        if adjoint.folded:
            upstream = upstream * prod((values[k].conj() for k in adjoint.folded[1:]), start=values[adjoint.folded[0]].conj())
        values = [value.conj() if value.is_complex() else value for value in values]
        inputs = [self.of_result(upstream), *([] if result is None else [self.of_result(result)])]
        inputs += self.read_by(adjoint, values, upstream.dtype)
        inputs += [self.tensor(at, values[at].detach())] if adjoint.masked else []  # only its pattern is read
        return self.values_of(adjoint, inputs, names, self.shapes[at], pattern)

    def read_by(self, part: Gradient, values: Sequence[Tensor], dtype: torch.dtype) -> list[SparseTensor | Tensor]:
        """The operands that a gradient or a part of a tangent reads, and ones where other operands are present."""
        present = [self.tensor(k, torch.ones_like(values[k], dtype=dtype)) for k in part.present]
        return [self.tensor(k, values[k]) for k in part.reads] + present

    def values_of(
        self, part: Gradient, inputs: Sequence[Any], names: Sequence[str], shape: Sequence[int], pattern: Pattern | None
    ) -> Tensor:
        """Compute a gradient, or a part of a tangent, with these indices and this shape; return its values in ``pattern``."""
        is_sparse = pattern is not None and not pattern.format.is_full and len(part.kept) == len(names)
        computed = self.compute(part.request, inputs, None if is_sparse else "dense")
        if isinstance(computed, Tensor) and computed.shape != tuple(shape):
            sizes = [size if name in part.kept else 1 for name, size in zip(names, shape, strict=True)]
            computed = computed.reshape(sizes).expand(tuple(shape))  # constant along the other dimensions
        stored = computed if pattern is None else as_stored(computed, pattern)
        return stored * prod(self.extents()[name] for name in part.repeated) if part.repeated else stored

    def shares(self, result: Tensor, upstream: Tensor, values: Sequence[Tensor]) -> Tensor:
        """Divide the upstream gradient of each maximum or minimum by the number of terms that attain it."""
        of_result = [result] if self.result is None else [SparseTensor(self.result, result)] * 2
        present = self.annihilating()
        ones = (self.tensor(k, torch.ones_like(values[k])) for k in present)
        ties = request_counting_ties(self.request, self.result is not None, present)
        tie_counts = self.compute(ties, [*of_result, *(self.tensor(k, v) for k, v in enumerate(values) if k != self.request.mask), *ones])
        counts = tie_counts if self.result is None else as_stored(tie_counts, self.result)
        if present and self.request.op not in SEMIRINGS:  # unstored terms tie with a result of 0
            sizes = (size for name, size in self.extents().items() if name not in self.request.subscripts.result)
            counts = counts + float(prod(sizes)) * (result == 0)  # the number of all terms may exceed int64
        return upstream / counts.clamp(min=1)  # entries without terms have count 0
