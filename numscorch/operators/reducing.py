"""Reductions under torch's names other than sums: products, norms, extremes and their indices."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod as product
from typing import Any

import torch

from ..api import einsum
from ..convert.dense import densified
from ..convert.entries import strided
from ..errors import SizeError, UnsupportedError
from ..machine.memory import check_bytes
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import Dim, _dims, _whole, amax, amin
from .elementwise import sum as total
from .naming import with_name
from .rearranging import flatten
from .statistics import first_of, root


def prod(input: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The product over some dimensions; unstored entries are factors of 0.

    >>> import numscorch as ns
    >>> prod(ns.from_torch(torch.tensor([[2.0, 3.0], [0.0, 4.0]])), 1)
    tensor([6., 0.])
    """
    input = input if dtype is None else input.to(dtype)
    input = input.to(torch.int64) if dtype is None and not (input.dtype.is_floating_point or input.dtype.is_complex) else input
    dims = _dims(_whole(dim), input.ndim)
    letters = "abcdefghijklmnopqrstuvwxyz"[: input.ndim]
    reduced = f"{letters}->{''.join(letter for at, letter in enumerate(letters) if at not in dims)}"
    result = einsum(reduced, input, format="dense", reduce="prod")
    return result.reshape([1 if at in dims else size for at, size in enumerate(input.shape)]) if keepdim else result


def sum_to_size(input: SparseTensor, *size: Any) -> Any:
    """Sum the tensor to a shape that broadcasts to the tensor's shape.

    Raises:
        SizeError: the shape does not broadcast to the tensor's shape.

    >>> import numscorch as ns
    >>> sum_to_size(ns.from_torch(torch.tensor([[2.0, 3.0], [0.0, 4.0]])), 2, 1)
    tensor([[5.],
            [4.]])
    """
    wanted = tuple(int(target) for target in (size[0] if len(size) == 1 and not isinstance(size[0], int) else size))
    before = input.ndim - len(wanted)
    pairs = list(zip(wanted, input.shape[max(before, 0) :], strict=False))
    if before < 0 or any(target not in (1, size) for target, size in pairs):
        raise SizeError(f"sum_to_size {wanted} of shape {tuple(input.shape)}: each size must be 1 or the tensor's")
    reduced = (*range(before), *(before + at for at, (target, size) in enumerate(pairs) if target != size))
    return total(input, reduced, keepdim=True).reshape(wanted) if reduced else input


def norm(
    input: SparseTensor, p: Any = 2, dim: Dim = None, keepdim: bool = False, dtype: torch.dtype | None = None, out: None = None
) -> Any:
    """The vector norm over some dimensions, all by default; ``p`` is a number, inf, or "fro".

    Raises:
        UnsupportedError: ``p`` names a matrix norm ("nuc"), or ``out`` is given.
    """
    no_out(out, "norm")
    if isinstance(p, str) and p != "fro":
        raise UnsupportedError(f"norm with p={p!r} of a SparseTensor: use a number, or .to_dense()")
    order, input = (2 if p == "fro" or p is None else p), input if dtype is None else input.to(dtype)
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


def linalg_norm(
    A: SparseTensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, out: None = None, dtype: torch.dtype | None = None
) -> Any:
    """torch.linalg.norm; matrix norms other than "fro", 1 and inf make the matrix dense."""
    no_out(out, "norm")
    dims = [0, 1] if dim is None and A.ndim == 2 else list(dim) if isinstance(dim, list | tuple) else []
    if ord is None or len(dims) != 2:
        return norm(A, 2 if ord is None else ord, dim, keepdim, dtype)
    if ord == "fro":
        return norm(A, 2, tuple(dims), keepdim, dtype)
    if ord in (1, inf) and not keepdim and A.ndim == 2:
        sums = total(abs(A if dtype is None else A.to(dtype)), dims[0] if ord == 1 else dims[1])
        return sums.amax() if len(sums) else sums.sum()
    return torch.linalg.norm(densified(A, "linalg.norm", 'ord="fro", 1 and inf keep the matrix sparse'), ord, dim, keepdim, dtype=dtype)


def vector_norm(x: Any, ord: Any = 2, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """torch.linalg.vector_norm; see :func:`norm`."""
    return norm(x, ord, dim, keepdim, dtype)


def no_out(out: Any, name: str) -> None:
    """Refuse an ``out=`` tensor.

    Raises:
        UnsupportedError: ``out`` is given.
    """
    if out is not None:
        raise UnsupportedError(f"out= of {name} with a SparseTensor: use the returned tensor")


def _extreme(name: str, reduction: Callable[..., Any]) -> Callable[..., Any]:
    """torch.max or torch.min: of all entries, along a dimension with indices, or element-wise for two tensors."""
    pairs = getattr(torch, f"{name}imum")
    kinds = getattr(torch.return_types, name)

    def extreme(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, torch.Tensor | SparseTensor):
            return pairs(input, dim)
        if dim is None:
            return reduction(input)
        results = first_of(input, 1, dim, name == "max", nan_first=True)
        return kinds(results if keepdim else (result.squeeze(dim) for result in results))

    return with_name(extreme, name, f"torch.{name} of all entries, stored or not; with ``dim``, values and indices.")


def _arg_extreme(name: str) -> Callable[..., Any]:
    def places(input: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
        if dim is None:
            results: torch.Tensor = places(flatten(input), 0)
            return results.reshape([1] * input.ndim) if keepdim else results
        results = first_of(input, 1, dim, name == "argmax", nan_first=True)[1]
        return results if keepdim else results.squeeze(dim)

    return with_name(places, name, f"torch's {name}: the index of the first extreme entry, stored or not.")


def _truth_reduction(name: str, reduce: Callable[..., Any]) -> Callable[..., Any]:
    def test(input: SparseTensor, dim: Dim = None, keepdim: bool = False) -> Any:
        reduced = _dims(_whole(dim), input.ndim)
        if any(input.shape[d] == 0 for d in reduced):
            sizes = [1 if d in reduced else size for d, size in enumerate(input.shape) if keepdim or d not in reduced]
            check_bytes(product(sizes), f"the dense result of shape {tuple(sizes)}", name, "reduce fewer dimensions at once")
            return torch.full(sizes, name == "all")
        counts = reduce((input != 0).to(torch.float32), dim, keepdim)
        return counts.to(torch.bool) if isinstance(counts, SparseTensor) else counts != 0

    return with_name(test, name, f"Whether {name} entries are nonzero; unstored entries are 0. The reduction of no entries is dense.")


REDUCING: dict[str, Callable[..., Any]] = {
    "sum_to_size": sum_to_size,
    "prod": prod,
    "norm": norm,
    "max": _extreme("max", amax),
    "min": _extreme("min", amin),
    "argmax": _arg_extreme("argmax"),
    "argmin": _arg_extreme("argmin"),
    "any": _truth_reduction("any", amax),
    "all": _truth_reduction("all", amin),
}
