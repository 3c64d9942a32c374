"""Reductions that need several statements: variances, logsumexp and norms. Unstored entries count as 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import inf, prod
from typing import Any

import torch

from ..convert.values import densified, strided
from ..errors import UnsupportedError
from ..frontend.datatypes import computed_in
from ..programs.evaluation import evaluate_parts
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import div
from .naming import with_name
from .reducing import Dim, amax, normalize_dims, sum as total

EXACT_IN_FLOAT32 = 1 << 24  # float32 holds each integer up to this one, in half the memory of int64


@lru_cache(maxsize=256)
def _summing(term: str, order: int, reduced: tuple[int, ...]) -> str:
    """The statement that sums a term of the stored entries A, and possibly of a dense tensor m, which has the remaining dimensions.

    >>> _summing("exp({A} - {m})", 2, (1,))
    'S[i0] += stored(A[i0,i1]) * exp(A[i0,i1] - m[i0])'
    """
    names = [f"i{d}" for d in range(order)]
    kept = ",".join(name for d, name in enumerate(names) if d not in reduced)
    entry, row = f"A[{','.join(names)}]" if names else "A", f"[{kept}]" if kept else ""
    return f"S{row} += stored({entry}) * {term.format(A=entry, m='m' + row)}"


def _sum_of(A: SparseTensor, term: str, dim: Any, **rows: torch.Tensor) -> torch.Tensor:
    """The dense sum of a term over the stored entries, see :func:`_summing`; reduced dimensions are kept, also those of ``rows``."""
    reduced = normalize_dims(dim, A.ndim)
    operands = {"A": A} | {name: tensor.squeeze(reduced) for name, tensor in rows.items()}
    summed: torch.Tensor = evaluate_parts(_summing(term, A.ndim, reduced), operands, "dense")
    return summed.reshape([1 if d in reduced else size for d, size in enumerate(A.shape)])


def _drop_dims(statistic: torch.Tensor, dim: Any, keepdim: bool) -> torch.Tensor:
    return statistic if keepdim else statistic.squeeze(normalize_dims(dim, statistic.ndim))


def _moments(input: SparseTensor, dim: Dim, correction: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance and mean with reduced dimensions kept: squared deviations of stored entries, plus mean² for each unstored entry.

    Raises:
        UnsupportedError: the values are integers.
    """
    if not (input.dtype.is_floating_point or input.dtype.is_complex):
        raise UnsupportedError(f"the variance of {input.dtype} values is not an integer: convert with .to(torch.float32)")
    if input.dtype.is_complex:
        parts = [input.with_values(part.contiguous()) for part in (input.values.real, input.values.imag)]
        (variance, mean), (other, imaginary) = (_moments(part, dim, correction) for part in parts)
        return variance + other, torch.complex(mean, imaginary)
    wide = input.to(computed_in(input.dtype))
    number = float(prod(input.shape[d] for d in normalize_dims(dim, input.ndim)))  # may exceed int64
    mean = strided(total(wide, dim, keepdim=True)) / (number or torch.nan)
    missing = number - _sum_of(wide, "1", dim)
    squares = _sum_of(wide, "({A} - {m}) * ({A} - {m})", dim, m=mean)
    return (squares + missing * mean.square()) / max(number - correction, 0), mean


def _spread(name: str, is_root: bool, with_mean: bool, shown: str) -> Callable[..., Any]:
    def function(input: SparseTensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        variance, mean = _moments(input, dim, (1 if unbiased else 0) if correction is None else correction)
        spread = _drop_dims(power(variance, 0.5) if is_root else variance, dim, keepdim).to(input.dtype.to_real())
        return (spread, _drop_dims(mean, dim, keepdim).to(input.dtype)) if with_mean else spread

    return with_name(
        function,
        name,
        f"""The {"standard deviation" if is_root else "variance"}{" and the mean" if with_mean else ""}, including unstored entries.

    Args:
        input: a SparseTensor of floating-point or complex values.
        dim: a dimension or a tuple of dimensions; all by default. A bool is taken for ``unbiased``.
        unbiased: whether the sum of squares is divided by n - 1 instead of n, for n entries.
        keepdim: whether to keep reduced dimensions with size 1.
        correction: replaces ``unbiased``: the sum of squares is divided by n - correction.

    Returns:
        {"A tuple of two dense tensors" if with_mean else "A dense tensor"}.

    Raises:
        RangeError: a dimension does not exist, or is repeated.
        UnsupportedError: the values are integers or bool.

    Complexity:
        O(nnz + entries of the result).

    >>> ns.{name}(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), 1)
    {shown}
    """,
    )


def logsumexp(input: SparseTensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    """The logarithm of the sum of exponentials over all entries; each unstored entry adds exp(0).

    For stored entries only, use ``A.with_values(A.values.exp()).sum(dim).log()``.

    Args:
        input: a SparseTensor of real values; integers are converted to torch's default data type.
        dim: a dimension or a tuple of dimensions.
        keepdim: whether to keep reduced dimensions with size 1.

    Returns:
        A dense tensor.

    Raises:
        RangeError: a dimension does not exist, or is repeated.
        UnsupportedError: the values are complex.

    >>> import numscorch as ns
    >>> ns.logsumexp(ns.from_torch(torch.zeros(2, 4)), 1)
    tensor([1.3863, 1.3863])
    """
    input = input if input.dtype.is_floating_point or input.dtype.is_complex else input.to(torch.get_default_dtype())
    wide = input.to(computed_in(input.dtype))
    number = float(prod(input.shape[d] for d in normalize_dims(dim, input.ndim)))  # may exceed int64
    largest = torch.nan_to_num(strided((amax if number else total)(wide.detach(), dim, keepdim=True)), nan=0, posinf=0, neginf=0)
    missing = number - _sum_of(wide, "1", dim)
    beside = torch.where(missing > 0, missing * torch.exp(-largest), torch.zeros_like(missing))
    powers = _sum_of(wide, "exp({A} - {m})", dim, m=largest) + beside
    return _drop_dims(powers.log() + largest, dim, keepdim).to(input.dtype)


def norm(input: SparseTensor, p: Any = 2, dim: Dim = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Any:
    """The vector norm over one, several or all dimensions.

    Args:
        input: a SparseTensor of floating-point or complex values.
        p: the order of the norm: a number that is not negative, inf, or "fro" for 2.
        dim: a dimension or a tuple of dimensions; all by default.
        keepdim: whether to keep reduced dimensions with size 1.
        dtype: the data type to convert to first.

    Returns:
        A dense tensor; for ``p=0`` and ``p=inf``, a tensor in the format that einsum infers if several dimensions remain.

    Raises:
        RangeError: a dimension does not exist, or is repeated.
        UnsupportedError: ``p`` is "nuc" or negative, or the values are integers.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    >>> ns.norm(A, dim=1), ns.norm(A, 1)
    (tensor([5., 2.]), tensor(9.))
    """
    if isinstance(p, str) and p != "fro":
        raise UnsupportedError(f"norm with p={p!r} of a SparseTensor: use a number, or .to_dense()")
    order, input = (2 if p == "fro" or p is None else p), input if dtype is None else input.to(dtype)
    if not (input.dtype.is_floating_point or input.dtype.is_complex):
        raise UnsupportedError(f"norm of {input.dtype} values: convert with .to(torch.float32), or pass dtype=torch.float32")
    if dim is None and not keepdim and order > 0 and (order != inf or input.nnz):  # max needs an entry
        return torch.linalg.vector_norm(at_entries(input.pattern, torch.clone, input.values), order)
    sizes: Any = abs(input)
    if order == inf:
        return amax(sizes, dim, keepdim)
    if order == 0:
        return total((sizes != 0).to(sizes.dtype), dim, keepdim)
    if order < 0:
        raise UnsupportedError(f"norm with p={p} of a SparseTensor, which has zeros: use .to_dense()")
    powers = sizes.with_values(at_entries(input.pattern, lambda values: power(values, order), input.values))
    return power(strided(total(powers, dim, keepdim)), 1 / order)


def power(values: torch.Tensor, order: float) -> torch.Tensor:
    """Powers of absolute values; the gradient at 0 is 0, also for orders below 1."""
    is_zero = values == 0
    powers = torch.where(is_zero, torch.ones_like(values), values).abs() ** order
    return torch.where(is_zero, torch.zeros_like(powers), powers)


def linalg_norm(A: SparseTensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """torch.linalg.norm; matrix norms other than "fro", 1 and inf make the matrix dense."""
    dims = [0, 1] if dim is None and A.ndim == 2 else list(dim) if isinstance(dim, list | tuple) else []
    if ord in (None, "fro") or len(dims) != 2:
        return norm(A, 2 if ord is None else ord, dim, keepdim, dtype)
    if ord in (1, inf) and not keepdim and A.ndim == 2:
        sums = total(abs(A if dtype is None else A.to(dtype)), dims[0] if ord == 1 else dims[1])
        return sums.amax() if len(sums) else sums.sum()
    return torch.linalg.norm(densified(A, "linalg.norm", 'ord="fro", 1 and inf keep the matrix sparse'), ord, dim, keepdim, dtype=dtype)


def normalize(input: SparseTensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """Divide each entry by the norm along a dimension, or by ``eps`` if that is larger.

    >>> import numscorch as ns
    >>> normalize(ns.from_torch(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))).values
    tensor([0.6000, 0.8000, 1.0000])
    """
    return div(input, strided(norm(input, p, dim, keepdim=True)).clamp_min(eps))


def nansum(input: SparseTensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The sum of the entries that are not NaN, over one, several or all dimensions.

    Args:
        input: a SparseTensor.
        dim: a dimension or a tuple of dimensions; all by default.
        keepdim: whether to keep reduced dimensions with size 1.
        dtype: the result's data type; defaults to the input's, or int64 for sums of integers and bool.

    Returns:
        A dense tensor if at most one dimension remains; otherwise a tensor in the format that einsum infers.

    Raises:
        RangeError: a dimension does not exist, or is repeated.

    >>> import numscorch as ns
    >>> ns.nansum(ns.from_torch(torch.tensor([[0.0, 2.0], [torch.nan, 4.0]])), 0)
    tensor([0., 6.])
    """
    return total(input.with_values(input.values.masked_fill(input.values.isnan(), 0)), dim, keepdim, dtype=dtype)


def count_nonzero(input: SparseTensor, dim: Dim = None) -> Any:
    """The number of entries that are not 0, over one, several or all dimensions; zeros that are stored are not counted.

    Args:
        input: a SparseTensor.
        dim: a dimension or a tuple of dimensions; all by default.

    Returns:
        An int64 tensor: dense if at most one dimension remains; otherwise in the format that einsum infers.

    Raises:
        RangeError: a dimension does not exist, or is repeated.

    >>> import numscorch as ns
    >>> ns.count_nonzero(ns.from_torch(torch.tensor([[3.0, 4.0], [0.0, 2.0]])), 0)
    tensor([1, 2])
    """
    values = at_entries(input.pattern, torch.detach, input.values)
    if dim is None:
        return torch.count_nonzero(values)
    exact = torch.float32 if input.nnz <= EXACT_IN_FLOAT32 else torch.int64
    return total(input.with_values(values.to(torch.bool).to(exact)), dim).to(torch.int64)


STATISTICS: dict[str, Callable[..., Any]] = {
    "count_nonzero": count_nonzero,
    "logsumexp": logsumexp,
    "nansum": nansum,
    "norm": norm,
    "normalize": normalize,
    "std": _spread("std", True, False, "tensor([1.4142, 0.7071])"),
    "std_mean": _spread("std_mean", True, True, "(tensor([1.4142, 0.7071]), tensor([1.0000, 3.5000]))"),
    "var": _spread("var", False, False, "tensor([2.0000, 0.5000])"),
    "var_mean": _spread("var_mean", False, True, "(tensor([2.0000, 0.5000]), tensor([1.0000, 3.5000]))"),
}
