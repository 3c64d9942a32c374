"""Matrix products under torch's names; each is an einsum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .api import einsum
from .errors import SizeError, UnsupportedError
from .sparse_parameter import SparseParameter
from .sparse_tensor import SparseTensor


def matmul(left: Any, right: Any, *, out: Any = None) -> Any:
    """Matrix product with torch.matmul's rules: vectors, matrices, and batches that broadcast.

    Raises:
        SizeError: an operand has no dimensions, or the inner sizes differ.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3).to_sparse_csr())
    >>> ns.matmul(torch.arange(3.0), A)
    tensor([0., 1., 2.])
    """
    first, second = _shape_of(left), _shape_of(right)
    if not first or not second:
        raise SizeError(f"matmul of {len(first)}- and {len(second)}-dimensional operands: both need at least one dimension")
    inner = len(second) - 2 if len(second) > 1 else 0
    if first[-1] != second[inner]:
        check_inner("matmul", left, right, len(first) - 1, inner)
    ranks = len(first), len(second)
    return einsum(PRODUCTS.get(ranks) or _product(*ranks), left, right, out=out)


def _shape_of(operand: Any) -> tuple[int, ...]:
    """A tensor's shape.

    Raises:
        UnsupportedError: it is none.
    """
    if type(operand) is SparseTensor:
        return operand.pattern.shape
    if not isinstance(operand, torch.Tensor | SparseParameter):
        raise UnsupportedError(f"matmul takes tensors, not {type(operand).__name__}: wrap it with torch.as_tensor")
    return operand.shape


def check_inner(name: str, left: Any, right: Any, first: int, second: int) -> None:
    """That the dimensions that are summed over have one size, where an einsum would repeat one of size 1.

    Raises:
        SizeError: they differ.
    """
    if left.shape[first] != right.shape[second] and 1 in (left.shape[first], right.shape[second]):
        raise SizeError(f"{name} of shapes {tuple(left.shape)} and {tuple(right.shape)}: {left.shape[first]} is not {right.shape[second]}")


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """torch.nn.functional.linear: input @ weight.t() + bias, any of them sparse.

    >>> import torch, numscorch as ns
    >>> W = ns.from_torch(torch.eye(3)[:2], ns.CSR)
    >>> linear(torch.arange(3.0), W, torch.ones(2))
    tensor([1., 2.])
    """
    check_inner("linear", input, weight, input.ndim - 1, weight.ndim - 1)
    made = einsum(LINEAR.get(input.ndim, "...i,oi->...o") if weight.ndim == 2 else "...i,i->...", input, weight)
    if bias is None:
        return made
    return made + (bias.to(made.dtype) if torch.is_autocast_enabled("cpu") else bias)


def _product(left: int, right: int) -> str:
    """The einsum of a matrix product of operands with these ranks.

    >>> _product(2, 1), _product(2, 3)
    ('ij,j->i', 'ij,...jk->...ik')
    """
    rows, columns = ("i" if left > 1 else ""), ("k" if right > 1 else "")
    before, after = ("..." if left > 2 else ""), ("..." if right > 2 else "")
    return f"{before}{rows}j,{after}j{columns}->{before or after}{rows}{columns}"


def _ranked(name: str, *wanted: int) -> Callable[..., Any]:
    """matmul for operands of just these ranks."""

    def product(left: Any, right: Any, *, out: Any = None) -> Any:
        if (left.ndim, right.ndim) != wanted:
            raise SizeError(
                f"{name} of {left.ndim}- and {right.ndim}-dimensional operands: it takes {wanted[0]} and {wanted[1]}, matmul any"
            )
        return matmul(left, right, out=out)

    return product


def addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2), any of them sparse."""
    product = PRODUCT_OPERATORS["mm"](mat1, mat2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


def sampled_addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta * input + alpha * (mat1 @ mat2) at the entries of a sparse input: torch.sparse.sampled_addmm."""
    sampled = einsum("...ik,...kj->...ij", mat1, mat2, mask=input)
    sampled = sampled if alpha == 1 else sampled * alpha
    return sampled if beta == 0 else sampled + (input if beta == 1 else input * beta)


def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """Contraction over the last dimensions of a and the first ones of b, or over those that are named.

    >>> import torch, numscorch as ns
    >>> tensordot(ns.from_torch(torch.eye(2)), torch.ones(2, 3), 1)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    pairs = (list(range(a.ndim - dims, a.ndim)), list(range(dims))) if isinstance(dims, int) else tuple(map(_dimensions, dims))
    left, right = ([d % t.ndim for d in own] for t, own in zip((a, b), pairs, strict=True))
    if len(left) != len(right):
        raise SizeError(f"tensordot over {len(left)} dimensions of a and {len(right)} of b: name as many of each")
    for own, other in zip(left, right, strict=True):
        check_inner("tensordot", a, b, own, other)
    first = [f"a{d}" for d in range(a.ndim)]
    second = [first[left[right.index(d)]] if d in right else f"b{d}" for d in range(b.ndim)]
    kept = [n for n in first if n not in second] + [n for n in second if n not in first]
    letter = {name: chr(ord("a") + at) for at, name in enumerate(dict.fromkeys(first + second))}
    spelled = ("".join(letter[name] for name in names) for names in (first, second, kept))
    return einsum("{},{}->{}".format(*spelled), a, b, out=out)


def _dimensions(given: Sequence[int] | int) -> list[int]:
    return [given] if isinstance(given, int) else list(given)


LINEAR = {1: "i,oi->o", 2: "bi,oi->bo"}
PRODUCTS = {(left, right): _product(left, right) for left in (1, 2) for right in (1, 2)}
PRODUCT_OPERATORS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "mm": _ranked("mm", 2, 2),
    "mv": _ranked("mv", 2, 1),
    "bmm": _ranked("bmm", 3, 3),
    "linear": linear,
    "addmm": addmm,
    "tensordot": tensordot,
    "einsum": einsum,
}
