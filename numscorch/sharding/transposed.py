"""Products with transposed sharded matrices: each is an einsum of the matrix itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import SizeError, UnsupportedError
from ..programs.call import EinsumCall
from ..programs.operands import call_form
from .operators import on_all_ranks
from .products import sharded_einsum
from .tensor import ShardedSparseTensor, Transposed

ON_THE_LEFT = {1: "ij,i->j", 2: "ij,ik->jk"}  # by the dimensions of the dense operand
ON_THE_RIGHT = {1: "ij,j->i", 2: "ij,kj->ki"}


def transposed_einsum(call: EinsumCall) -> Any:
    """:func:`numscorch.einsum` with transposed sharded matrices among the operands. A collective operation.

    Raises:
        UnsupportedError: as for other einsums of a sharded matrix.
    """
    text, values = call_form(call.expr, call.operands)
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    for at, value in enumerate(values[: len(terms)]):
        if isinstance(value, Transposed):
            terms[at] = terms[at].strip()[::-1]
    matrices = [value.matrix if isinstance(value, Transposed) else value for value in values]
    return sharded_einsum(call._replace(expr=",".join(terms) + arrow + result, operands=tuple(matrices)))


def transposed_evaluate(statement: str, **operands: Any) -> Any:
    """Reject statements with a transposed sharded matrix.

    Raises:
        UnsupportedError: always.
    """
    name = next(name for name, value in operands.items() if isinstance(value, Transposed))
    raise UnsupportedError(f"evaluate with {name}, a transposed sharded matrix: pass the matrix, and swap its indices\n  {statement}")


def matmul(left: Any, right: Any) -> torch.Tensor:
    """``A.t() @ y`` or ``x @ A.t()``, with rows of y that belong to the matrix's rows, or columns of x that belong to its columns.

    Raises:
        SizeError: the dense operand does not have one or two dimensions.
    """
    if isinstance(left, Transposed):
        return _product(left.matrix, right, ON_THE_LEFT)
    return _product(right.matrix, left, ON_THE_RIGHT)


@on_all_ranks
def _product(A: ShardedSparseTensor, x: Any, expressions: Mapping[int, str]) -> torch.Tensor:
    if x.ndim not in expressions:
        raise SizeError(f"a product of A.t() and a tensor of {x.ndim} dimensions: give one or two")
    result: torch.Tensor = sharded_einsum(EinsumCall(expressions[x.ndim], (A, x)))
    return result


TRANSPOSED: dict[Any, Callable[..., Any]] = {
    torch.einsum: lambda expr, *operands: transposed_einsum(EinsumCall(expr, operands)),
    **dict.fromkeys((torch.matmul, torch.mm, torch.mv, torch.sparse.mm, torch.Tensor.matmul, torch.Tensor.__matmul__), matmul),
    torch.Tensor.__rmatmul__: lambda right, left: matmul(left, right),
}
