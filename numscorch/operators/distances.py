"""Losses and distances under torch's names, of two sparse tensors, or of a sparse and a dense one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..api import einsum
from ..convert.dense import densified
from ..convert.entries import strided
from ..errors import SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import div, is_sparse, mul, sub
from .elementwise import mean as average
from .elementwise import sum as total
from .products import check_inner
from .rearranging import place
from .reducing import norm
from .statistics import root


def _densely(name: str) -> Callable[..., Any]:
    """A function of two tensors one of which is dense, so that its result, or what it adds up, is that large anyway."""
    theirs = getattr(functional, name)

    def function(input: Any, target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_sparse(input) and is_sparse(target):
            raise UnsupportedError(f"{name} of two sparse tensors: make one dense with .to_dense()")
        loss: torch.Tensor = theirs(*(densified(t, name) if is_sparse(t) else t for t in (input, target)), *args, **kwargs)
        return loss

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch.nn.functional.{name} of a sparse and a dense tensor, as of two dense ones."
    return function


def _of_difference(name: str) -> Callable[..., Any]:
    """A loss that is 0 where two tensors are alike: of what they differ by, where either one stores something."""
    theirs, beside = getattr(functional, name), _densely(name)

    def loss(input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", **kwargs: Any) -> Any:
        if size_average is not None or reduce is not None:
            raise UnsupportedError(f"size_average= and reduce= of {name}: use reduction='mean', 'sum' or 'none'")
        if not (is_sparse(input) and is_sparse(target)):
            return beside(input, target, reduction=reduction, **kwargs)
        if tuple(input.shape) != tuple(target.shape):
            raise SizeError(f"{name} of shapes {tuple(input.shape)} and {tuple(target.shape)}: they must be the same")
        gap = sub(input, target)
        losses = at_entries(gap.pattern, lambda values: theirs(values, torch.zeros_like(values), reduction="none", **kwargs), gap.values)
        return _reduced(gap.with_values(losses), reduction)

    loss.__name__ = loss.__qualname__ = name
    loss.__doc__ = f"torch.nn.functional.{name}; of two sparse tensors, in O(nnz), and sparse with reduction='none'."
    return loss


def _reduced(losses: SparseTensor, reduction: str) -> Any:
    if reduction not in ("mean", "sum", "none"):
        raise UnsupportedError(f"reduction={reduction!r}: use 'mean', 'sum' or 'none'")
    return losses if reduction == "none" else average(losses) if reduction == "mean" else total(losses)


def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: None = None) -> Any:
    """torch.nn.functional.huber_loss; see :func:`mse_loss`."""
    if weight is not None:
        raise UnsupportedError("weight= of huber_loss: multiply the losses of reduction='none' by it")
    return _of_difference("huber_loss")(input, target, reduction=reduction, delta=delta)


def smooth_l1_loss(
    input: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0
) -> Any:
    """torch.nn.functional.smooth_l1_loss; see :func:`mse_loss`."""
    return _of_difference("smooth_l1_loss")(input, target, size_average, reduce, reduction, beta=beta)


def normalize(input: SparseTensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12, out: None = None) -> Any:
    """Each entry over the norm along a dimension, or over ``eps`` where that is larger.

    >>> import numscorch as ns
    >>> normalize(ns.from_torch(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))).values
    tensor([0.6000, 0.8000, 1.0000])
    """
    return div(input, strided(norm(input, p, dim, keepdim=True, out=out)).clamp_min(eps))


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    """The cosine of the angle between vectors along a dimension of the shape to which the tensors broadcast; dense.

    Raises:
        RangeError: that shape has no such dimension.
        SizeError: the tensors don't broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> cosine_similarity(A, torch.tensor([1.0, 1.0]), dim=0)
    tensor([0.9899, 0.0000])
    """
    shape = broadcast_shape("cosine_similarity", x1.shape, x2.shape)
    at = place(dim, len(shape))
    first, second = (t if t.ndim == len(shape) else t.reshape((1,) * (len(shape) - t.ndim) + tuple(t.shape)) for t in (x1, x2))
    lengths = [_length(t, at, shape[at]).clamp_min(eps) for t in (first, second)]
    cosine: torch.Tensor = strided(total(mul(first, second), at)) / (lengths[0] * lengths[1])
    return cosine


def _length(tensor: Any, dim: int, size: int) -> Any:
    """The Euclidean norm along a dimension, which is broadcast to a size."""
    length = norm(tensor, 2, dim) if isinstance(tensor, SparseTensor) else torch.linalg.vector_norm(tensor, 2, dim)
    return length if tensor.shape[dim] == size else length * size**0.5


def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The norm of what two tensors differ by."""
    gap = sub(input, other)
    return norm(gap, p) if isinstance(gap, SparseTensor) else torch.linalg.vector_norm(gap, p)


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> torch.Tensor:
    """The distance of each row of one matrix from each row of another; dense.

    By way of a product, as torch computes it of many rows: in float32, distances of less than about 1e-3 of the rows' lengths are
    rounded away.

    Raises:
        SizeError: they are no matrices.
        UnsupportedError: another ``p`` than 2.
    """
    if p != 2:
        raise UnsupportedError(f"cdist with p={p} of a SparseTensor: use p=2, or .to_dense()")
    if x1.ndim != 2 or x2.ndim != 2:
        raise SizeError(f"cdist of {x1.ndim}- and {x2.ndim}-dimensional tensors: it takes sparse matrices")
    check_inner("cdist", x1, x2, 1, 1)
    product = einsum("ik,jk->ij", x1, x2, format="dense")
    first, second = (total(mul(t, t), 1) for t in (x1, x2))
    return root((first[:, None] + second - 2 * product).clamp_min(0))


DISTANCES: dict[str, Callable[..., Any]] = {
    **{name: _of_difference(name) for name in ("mse_loss", "l1_loss")},
    **{
        name: _densely(name)
        for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div", "poisson_nll_loss")
    },
    "cdist": cdist,
    "cosine_similarity": cosine_similarity,
    "dist": dist,
    "huber_loss": huber_loss,
    "normalize": normalize,
    "smooth_l1_loss": smooth_l1_loss,
}
