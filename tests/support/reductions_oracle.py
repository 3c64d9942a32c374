"""Reference for random cases: all terms as one dense tensor, reduced and differentiated by torch; and the documented refusals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np
import torch
from dense_values import as_dense
from format_families import FAMILY_OF
from random_reductions import DTYPES, SEMIRINGS, TESTS, Case, GivenOperand, computed
from torch import Tensor

import numscorch as ns


@dataclass(frozen=True)
class Expected:
    """The dense result, a mask of elements that have terms, and the dense leaves for gradients."""

    result: Tensor
    has_term: Tensor
    leaves: tuple[Tensor, ...]


def expected(case: Case, given: Sequence[GivenOperand]) -> Expected:
    """Compute the reference by the definition of the reduction. Booleans are computed as 0 and 1."""
    sizes, dtype = case.sizes(), DTYPES[case.dtype]
    summed = [name for name in dict.fromkeys("".join(case.terms)) if name not in case.indices]
    names = [*case.indices, *summed]
    leaves = tuple(operand.values.clone().requires_grad_(at in case.grads) for at, operand in enumerate(given))
    values = [_spread(v.long() if v.dtype == torch.bool else v, term, names, sizes) for v, term in zip(leaves, case.terms, strict=True)]
    stored = [_spread(operand.stored, term, names, sizes) for operand, term in zip(given, case.terms, strict=True)]
    there = torch.stack(stored).all(0)
    flat = (tuple(sizes[name] for name in case.indices), prod(sizes[name] for name in summed))
    there = there.reshape(*flat[0], flat[1])
    terms = _terms(case, values, stored).reshape(*flat[0], flat[1])
    if case.reduce in SEMIRINGS:
        terms = torch.where(there, terms, _limit(SEMIRINGS[case.reduce], terms.dtype))
    result = _reduced(case, terms, bool(summed))
    if case.reduce in TESTS or (case.dtype == "bool" and not _counts(case)):
        result = (result != 0).to(dtype)
    return Expected(result, there.any(-1), leaves)


def _counts(case: Case) -> bool:
    """Whether booleans are counted, as in torch.sum: an index of a single factor is summed."""
    uses = Counter(name for term in case.terms for name in set(term) if name not in case.indices)
    return case.reduce == "sum" and min(uses.values(), default=0) == 1


def _spread(value: Tensor, term: str, names: Sequence[str], sizes: dict[str, int]) -> Tensor:
    """The value with one dimension per index; repeated indices select the diagonal."""
    for name in dict.fromkeys(term):
        while term.count(name) > 1:
            first, second = term.index(name), term.rindex(name)
            value = value.diagonal(dim1=first, dim2=second).movedim(-1, first)
            term = term[:second] + term[second + 1 :]
    order = [term.index(name) for name in names if name in term]
    shape = [value.shape[term.index(name)] if name in term else 1 for name in names]
    return value.permute(order).reshape(shape).expand([sizes[name] for name in names])


def _terms(case: Case, values: Sequence[Tensor], stored: Sequence[Tensor]) -> Tensor:
    """All terms. An unstored factor makes a product 0, regardless of other factors; semirings add factors."""
    joined = "+" if case.reduce in SEMIRINGS and case.reduce != "stored max=" else case.joined
    if joined == "*":
        product = values[0].clone()
        for value in values[1:]:
            product = product * value
        return torch.where(torch.stack(list(stored)).all(0), product, torch.zeros((), dtype=product.dtype))
    total = values[0].clone()
    for value in values[1:]:
        total = total + value if joined == "+" else total - value
    if case.reduce in SEMIRINGS and not total.dtype.is_floating_point:  # the extreme integer is infinite, and stays so
        limit = _limit(SEMIRINGS[case.reduce], total.dtype)
        return torch.where(torch.stack([(value == limit).expand_as(total) for value in values]).any(0), limit, total)
    return total


def _limit(value: float, dtype: torch.dtype) -> Tensor:
    """An infinity, or the extreme value of an integer type."""
    if dtype.is_floating_point:
        return torch.tensor(value, dtype=dtype)
    return torch.tensor(torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min, dtype=dtype)


def _reduced(case: Case, terms: Tensor, is_reduced: bool) -> Tensor:
    match case.reduce:
        case "sum" | "+=":
            return terms.sum(-1)
        case "mean":
            return terms.mean(-1)
        case "prod" | "*=":
            return terms.prod(-1)
        case "any" | "or_and":
            return (terms != 0).any(-1)
        case "all":
            return (terms != 0).all(-1)
    largest = case.reduce in ("max", "max=", "max_plus", "max plus=", "stored max=")
    if terms.shape[-1] == 0:
        limit = 0 if case.dtype == "bool" and largest else _limit(-inf if largest else inf, terms.dtype)
        return torch.zeros(terms.shape[:-1], dtype=terms.dtype) + limit
    return terms.amax(-1) if largest else terms.amin(-1)


# ---- comparison


class Wrong(AssertionError):
    """A result or a gradient is wrong."""


ALLOWED = (
    r"the mean of torch\.(int64|bool) values would be truncated to integers",
    r"only products of bool operands can be summed: count with",
    r"cannot store the coordinates .*: use a compressed level",
    r"has fewer coordinates than the level above, \d+: transpose it",
    r"statements do not support semirings: use einsum",
    r"no gradient goes through a product of terms at a mask: multiply by the mask afterwards",
)
"""Messages of documented errors."""


def check(case: Case) -> bool:
    """Raise if the result or a gradient is wrong; return False if the case raises a documented error."""
    try:
        result, operands, mask = computed(case)
    except ns.NumscorchError as error:
        if any(re.search(pattern, str(error)) for pattern in ALLOWED):
            return False
        raise
    reference = expected(case, operands)
    compare_result(case, result, reference, mask)
    if case.grads:
        compare_gradients(case, result, reference, operands, mask)
    return True


def compare_result(case: Case, output: Any, wanted: Expected, mask: GivenOperand | None) -> None:
    """Compare the values; for sparse results of semirings or with a mask, also the stored entries."""
    result, kept = wanted.result.detach(), wanted.has_term if case.reduce in SEMIRINGS else None
    mask = None if case.mask and FAMILY_OF[case.mask] == "dense" else mask  # a dense mask has no effect
    is_sparse = isinstance(output, ns.SparseTensor)
    dense = output.to_dense() if is_sparse else output
    dense = dense.detach()
    if dense.dtype != result.dtype or dense.shape != result.shape:
        raise Wrong(f"result is {tuple(dense.shape)} of {dense.dtype}, not {tuple(result.shape)} of {result.dtype}")
    if mask is not None:
        if not is_sparse and "dense" not in (case.result, FAMILY_OF.get(str(case.result))):
            raise Wrong("a mask gives a dense result")
        outside = torch.zeros_like(result)
        if case.reduce in SEMIRINGS:  # dense results have the identity there
            outside = torch.where(dense == _limit(SEMIRINGS[case.reduce], result.dtype), dense, outside)
        _compare("result at the mask", case, dense, torch.where(mask.stored, result, outside))
    if is_sparse:
        stored = output.with_values(torch.ones(output.values.shape, dtype=torch.bool)).to_dense()
        is_exact = FAMILY_OF.get(str(case.result), "plain") == "plain"
        if mask is not None:
            if (is_exact and case.result is None and not torch.equal(stored, mask.stored)) or not bool((stored | ~mask.stored).all()):
                raise Wrong(f"result stores {stored.int().tolist()} at a mask of {mask.stored.int().tolist()}")
        elif kept is not None:
            identity = _limit(SEMIRINGS[case.reduce], result.dtype)
            if is_exact and bool((stored & ~kept & (dense != identity)).any()):
                raise Wrong(f"result stores {dense.tolist()} where there are no terms: {kept.int().tolist()}")
            result = torch.where(kept | stored & (dense == identity), result, torch.zeros_like(result))
    if mask is None:
        _compare("result", case, dense, result)


def compare_gradients(case: Case, result: Any, wanted: Expected, given: Sequence[GivenOperand], mask: GivenOperand | None) -> None:
    """Compare gradients of a weighted sum of the finite results; sparse operands have gradients at stored entries."""
    full = as_dense(result)
    chosen = wanted.result.detach().isfinite() & (wanted.has_term if case.reduce in SEMIRINGS else torch.ones_like(wanted.has_term))
    if mask is not None:
        chosen &= mask.stored
    weights = torch.from_numpy(np.random.default_rng((case.seed, 99)).uniform(0.5, 2.0, tuple(full.shape))).to(full.dtype)
    for output in (full, wanted.result):
        if output.requires_grad:
            torch.where(chosen, output * weights, torch.zeros((), dtype=output.dtype)).sum().backward()
    for at in case.grads:
        operand, theirs = given[at], wanted.leaves[at].grad
        assert operand.leaf is not None
        ours = torch.zeros_like(operand.leaf) if operand.leaf.grad is None else operand.leaf.grad
        dense = operand.argument.with_values(ours).to_dense() if isinstance(operand.argument, ns.SparseTensor) else ours
        theirs = torch.zeros_like(dense) if theirs is None or case.reduce == "stored max=" else theirs
        _compare(f"gradient of operand {at}", case, dense, torch.where(operand.stored, theirs, torch.zeros_like(theirs)))


def _compare(what: str, case: Case, result: Tensor, wanted: Tensor) -> None:
    tolerance = 1e-4 if case.dtype == "float32" else 1e-9
    tolerance = 0.0 if not wanted.dtype.is_floating_point else tolerance
    if not torch.allclose(result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise Wrong(f"{what} is {result.tolist()}, not {wanted.tolist()}")


def failure(case: Case) -> str:
    """Description of the failure in one line; empty if the case passes."""
    try:
        check(case)
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return ""
