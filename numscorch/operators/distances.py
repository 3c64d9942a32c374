"""Norms, losses and distances under torch's names; losses and distances take two sparse tensors, or a sparse and a dense one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch.nn import functional

from ..api import einsum
from ..convert.values import densified, strided
from ..errors import SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import div, is_sparse, mul, sub
from .naming import with_name
from .products import check_inner
from .rearranging import normalize_dim
from .reducing import Dim, amax, mean as average, sum as total
from .statistics import root


def _dense_loss(name: str) -> Callable[..., Any]:
    """A loss of a sparse and a dense tensor, computed densely: its intermediate values are dense in any case."""
    torch_loss = getattr(functional, name)

    def function(input: Any, target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_sparse(input) and is_sparse(target):
            raise UnsupportedError(f"{name} of two sparse tensors: make one dense with .to_dense()")
        return torch_loss(*(densified(t, name) if is_sparse(t) else t for t in (input, target)), *args, **kwargs)

    return with_name(function, name, f"torch.nn.functional.{name} of a sparse and a dense tensor; the sparse one is made dense.")


def _difference_loss(name: str) -> Callable[..., Any]:
    """A loss that depends on the difference and is 0 at 0: computed at the union of both tensors' entries."""
    function, dense_loss = getattr(functional, name), _dense_loss(name)
    signature = inspect.signature(function)

    def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(input, target, *args, **kwargs).arguments
        options = {key: value for key, value in given.items() if key not in ("input", "target") and value is not None}
        reduction = options.pop("reduction", "mean")
        if not options.keys() <= {"delta", "beta"} or reduction not in ("mean", "sum", "none"):
            unsupported = ", ".join([f"{key}=" for key in options] + [f"reduction={reduction!r}"])
            raise UnsupportedError(
                f"{unsupported} of {name}: use reduction='mean', 'sum' or 'none', and weigh the losses of reduction='none'"
            )
        if not (is_sparse(input) and is_sparse(target)):
            return dense_loss(input, target, reduction=reduction, **options)
        if tuple(input.shape) != tuple(target.shape):
            raise SizeError(f"{name} of shapes {tuple(input.shape)} and {tuple(target.shape)}: they must be the same")
        if not is_sparse(gap := sub(input, target)):  # a format stores every entry
            return function(gap, torch.zeros_like(gap), reduction=reduction, **options)
        losses = at_entries(gap.pattern, lambda values: function(values, torch.zeros_like(values), reduction="none", **options), gap.values)
        result = gap.with_values(losses)
        return result if reduction == "none" else average(result) if reduction == "mean" else total(result)

    return with_name(
        loss, name, f"torch.nn.functional.{name}. For two sparse tensors it takes O(nnz), and is sparse with reduction='none'."
    )


def norm(input: SparseTensor, p: Any = 2, dim: Dim = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Any:
    """The vector norm over some dimensions, all by default; ``p`` is a number, inf, or "fro".

    Raises:
        UnsupportedError: ``p`` names a matrix norm ("nuc"), or the values are integers.
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
    powers = sizes.with_values(at_entries(input.pattern, lambda values: _power(values, order), input.values))
    return root(strided(total(powers, dim, keepdim)), order)


def _power(values: torch.Tensor, order: float) -> torch.Tensor:
    """Powers of absolute values; the gradient at 0 is 0, also for orders below 1."""
    is_zero = values == 0
    powers = torch.where(is_zero, torch.ones_like(values), values).abs() ** order
    return torch.where(is_zero, torch.zeros_like(powers), powers)


def linalg_norm(A: SparseTensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """torch.linalg.norm; matrix norms other than "fro", 1 and inf make the matrix dense."""
    dims = [0, 1] if dim is None and A.ndim == 2 else list(dim) if isinstance(dim, list | tuple) else []
    if ord is None or len(dims) != 2:
        return norm(A, 2 if ord is None else ord, dim, keepdim, dtype)
    if ord == "fro":
        return norm(A, 2, tuple(dims), keepdim, dtype)
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


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    """The cosine similarity of vectors along a dimension of the broadcast shape; dense.

    Raises:
        RangeError: the broadcast shape has no such dimension.
        SizeError: the tensors do not broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> cosine_similarity(A, torch.tensor([1.0, 1.0]), dim=0)
    tensor([0.9899, 0.0000])
    """
    shape = broadcast_shape("cosine_similarity", x1.shape, x2.shape)
    at = normalize_dim(dim, len(shape))
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    first, second = (t.to(dtype).reshape((1,) * (len(shape) - t.ndim) + tuple(t.shape)) for t in (x1, x2))
    lengths = [_length(t, at, shape[at]).clamp_min(eps) for t in (first, second)]
    return strided(total(mul(first, second), at)) / (lengths[0] * lengths[1])


def _length(tensor: Any, dim: int, size: int) -> Any:
    """The Euclidean norm along a dimension after broadcasting that dimension to a size."""
    length = norm(tensor, 2, dim) if isinstance(tensor, SparseTensor) else torch.linalg.vector_norm(tensor, 2, dim)
    return length if tensor.shape[dim] == size else length * size**0.5


def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The norm of the difference of two tensors."""
    gap = sub(input, other)
    return norm(gap, p) if isinstance(gap, SparseTensor) else torch.linalg.vector_norm(gap, p)


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> torch.Tensor:
    """The Euclidean distance of each row of one matrix from each row of another; dense.

    It is computed from the matrix product, as torch does for many rows. In float32, distances below about 1e-3 of the rows'
    norms are lost to rounding.

    Raises:
        SizeError: an operand is not a matrix.
        UnsupportedError: ``p`` is not 2.
    """
    if p != 2:
        raise UnsupportedError(f"cdist with p={p} of a SparseTensor: use p=2, or .to_dense()")
    if x1.ndim != 2 or x2.ndim != 2:
        raise SizeError(f"cdist of {x1.ndim}- and {x2.ndim}-dimensional tensors: it takes sparse matrices")
    check_inner("cdist", x1, x2, 1, 1)
    with torch.autocast("cpu", enabled=False):  # as in torch, since differences of large squares cancel
        product = einsum("ik,jk->ij", x1, x2, format="dense")
        first, second = (total(mul(t, t), 1) for t in (x1, x2))
        return root((first[:, None] + second - 2 * product).clamp_min(0))


DISTANCES: dict[str, Callable[..., Any]] = {
    **{name: _difference_loss(name) for name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")},
    **{
        name: _dense_loss(name)
        for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div", "poisson_nll_loss")
    },
    "cdist": cdist,
    "cosine_similarity": cosine_similarity,
    "dist": dist,
    "norm": norm,
    "normalize": normalize,
}
