"""Matrix products under torch's names, and the table of every torch function that takes a SparseTensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .api import einsum
from .elementwise import NAMED, UNARY, add, div, is_sparse, mul, sub
from .errors import SizeError, UnsupportedError
from .sparse_tensor import FUNCTIONS, OPERATORS, SparseTensor
from .stacking import stack


def matmul(left: Any, right: Any, *, out: Any = None) -> Any:
    """Matrix product with torch.matmul's rules: vectors, matrices, and batches that broadcast.

    Raises:
        SizeError: an operand has no dimensions, or the inner sizes differ.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3).to_sparse_csr())
    >>> ns.operators.matmul(torch.arange(3.0), A)
    tensor([0., 1., 2.])
    """
    for operand in (left, right):
        if not isinstance(operand, SparseTensor | torch.Tensor):
            raise UnsupportedError(f"matmul takes tensors, not {type(operand).__name__}: wrap it with torch.as_tensor")
    ranks = left.ndim, right.ndim
    if 0 in ranks:
        raise SizeError(f"matmul of {ranks[0]}- and {ranks[1]}-dimensional operands: both need at least one dimension")
    return einsum(PRODUCTS.get(ranks) or _product(*ranks), left, right, out=out)


def public_matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """torch.matmul, for SparseTensors too, and for batches with torch's own sparse tensors, which torch can't multiply.

    >>> batch = torch.eye(2).expand(3, 2, 2).to_sparse_csr()
    >>> public_matmul(batch, torch.ones(2))
    tensor([[1., 1.],
            [1., 1.],
            [1., 1.]])
    """
    given = input, other
    is_batch = any(isinstance(operand, torch.Tensor) and operand.ndim > 2 for operand in given)
    if any(isinstance(operand, SparseTensor) or (is_batch and is_sparse(operand)) for operand in given):
        return matmul(input, other, out=out)
    return torch.matmul(input, other, out=out)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """torch.nn.functional.linear: input @ weight.t() + bias, any of them sparse.

    >>> import torch, numscorch as ns
    >>> W = ns.from_torch(torch.eye(3)[:2], ns.CSR)
    >>> linear(torch.arange(3.0), W, torch.ones(2))
    tensor([1., 2.])
    """
    made = matmul(input, weight.t())
    return made if bias is None else made + bias


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


def entries_of(named: Mapping[str, Callable[..., Any]]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """For each name, torch's function and, where there is one, its method of tensors.

    >>> list(entries_of({"softmax": len})) == [torch.softmax, torch.Tensor.softmax]
    True
    """
    functions = {getattr(torch, name): function for name, function in named.items()}
    return functions | {getattr(torch.Tensor, name): function for name, function in named.items() if hasattr(torch.Tensor, name)}


PRODUCTS = {(left, right): _product(left, right) for left in (1, 2) for right in (1, 2)}
TAKEN: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.matmul: matmul,
    torch.mm: _ranked("mm", 2, 2),
    torch.mv: _ranked("mv", 2, 1),
    torch.bmm: _ranked("bmm", 3, 3),
    torch.Tensor.matmul: matmul,
    torch.Tensor.mm: _ranked("mm", 2, 2),
    torch.Tensor.mv: _ranked("mv", 2, 1),
    torch.Tensor.__matmul__: matmul,
    torch.Tensor.__rmatmul__: lambda left, right: matmul(right, left),
    torch.einsum: einsum,
    torch.stack: stack,
    **entries_of(NAMED),
    torch.Tensor.__add__: add,
    torch.Tensor.__radd__: lambda left, right: add(right, left),
    torch.Tensor.__sub__: sub,
    torch.Tensor.__rsub__: lambda left, right: sub(right, left),
    torch.Tensor.__mul__: mul,
    torch.Tensor.__rmul__: lambda left, right: mul(right, left),
    torch.Tensor.__truediv__: div,
    torch.Tensor.__rtruediv__: lambda left, right: div(right, left),
    torch.true_divide: div,
    torch.nn.functional.relu: UNARY["relu"],
    torch.nn.functional.linear: linear,
}
FUNCTIONS.update(TAKEN)
OPERATORS["matmul"] = matmul
