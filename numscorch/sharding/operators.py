"""Functions of a sharded matrix: products, also with its transpose, sums, norms, softmax of rows, and element-wise functions.

:func:`register` makes einsum, evaluate and torch's functions accept sharded matrices, and also ``DTensor`` operands together with
sparse tensors that every rank holds, in which case sharded features need no exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..errors import RangeError, SizeError, UnsupportedError
from ..frontend.operator_forms import SYNONYMS
from ..frontend.parser import parse_einsum
from ..frontend.requests import Request
from ..interface.api import einsum
from ..operators import entries_of
from ..operators.elementwise import NAMED
from ..operators.products import check_same_type
from ..programs.operands import EinsumCall, call_form
from ..tensors.distributed import HANDLERS, Handler
from ..tensors.graph_breaks import graph_break
from ..tensors.sparse_tensor import OPERATORS
from .halo_products import sharded_einsum, sharded_evaluate
from .layout import SAVED
from .placements import Whole, dtensor_of, gradient_placements, result_placement, sharded_indices, without_sums
from .ranks import Ranks, collective, reduce
from .sharded_parameter import ShardedSparseParameter
from .tensor import SHARDED_FUNCTIONS, TRANSPOSED_FUNCTIONS, ShardedSparseTensor, Transposed

T = TypeVar("T")
LOCAL = "give A.to_local(), this rank's rows with all columns, beside whole dense operands"
PRODUCTS = {1: "ij,j->i", 2: "ij,jk->ik"}  # by the dimensions of the dense operand
PRODUCTS_FROM_LEFT = {1: "j,ji->i", 2: "kj,ji->ki"}


def on_all_ranks(function: Callable[..., T]) -> Callable[..., T]:
    """A function of a sharded matrix that returns on all ranks, or raises on all."""

    @wraps(function)
    def call(*operands: Any, **options: Any) -> T:
        given = next(value for value in (*operands, *options.values()) if isinstance(value, ShardedSparseTensor | Transposed))
        matrix = given.matrix if isinstance(given, Transposed) else given
        with collective(matrix.layout.ranks, function.__name__):
            return function(*operands, **options)

    return call


@on_all_ranks
def matmul(left: Any, right: Any) -> Any:
    """A product with a sharded matrix on the left, or ``x @ A`` with a vector x that is partitioned like the matrix's rows.

    Raises:
        SizeError: the dense operand has more than two dimensions.
        UnsupportedError: the other operand is not a tensor, or has another data type.
    """
    for value in (left, right):
        if not isinstance(value, torch.Tensor | ShardedSparseTensor):
            raise UnsupportedError(f"a sharded matrix @ {type(value).__name__}: give a dense tensor")
    check_same_type(left, right)
    if isinstance(left, ShardedSparseTensor):
        if right.ndim not in PRODUCTS:
            raise SizeError(f"a sharded matrix @ a tensor of {right.ndim} dimensions: give one or two")
        return sharded_einsum(EinsumCall(PRODUCTS[right.ndim], (left, right)))
    if left.ndim != 1:
        raise UnsupportedError("x @ A with a sharded matrix takes a vector: for more rows, einsum('ij,ik->jk', A, y) is A.t() @ y")
    return sharded_einsum(EinsumCall("i,ij->j", (left, right)))


@on_all_ranks
def linear(input: Any, weight: ShardedSparseTensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``input @ weight.t() + bias`` with the rows of the weight, the output features, distributed over the ranks. A collective operation.

    Args:
        input: a plain tensor (\\*, in_features) that every rank holds, or a ``DTensor``: replicated, or sharded in its last dimension.
            If sharded, ranks receive the columns in which their rows of the weight have entries.
        weight: shape (out_features, in_features).
        bias: shape (out_features,), which every rank holds.

    Returns:
        This rank's output features, (\\*, rows of this rank); for a ``DTensor``, a ``DTensor`` with ``Shard(-1)``.

    Raises:
        SizeError: the sizes of the input and of the weight differ, or a ``DTensor`` belongs to an uneven partition.
        UnsupportedError: the rows of the weight are permuted, or the placement of the input does not fit.
    """
    if not isinstance(input, torch.Tensor) or input.shape[-1:] != weight.shape[1:]:
        given = tuple(input.shape) if isinstance(input, torch.Tensor) else type(input).__name__
        raise SizeError(f"input has shape {given}, but its last dimension has to be in_features={weight.shape[1]}, on every rank")
    if weight.layout.permutation is not None:
        raise UnsupportedError("a sharded weight whose rows are permuted: output features keep their order, shard it without permute=")
    is_plain = not isinstance(input, DTensor)
    result: torch.Tensor = sharded_einsum(EinsumCall("...j,ij->...i", (Whole(input) if is_plain else input, weight)))
    if bias is None:
        return result
    if is_plain:
        return result + weight.rows_of(bias, 0)
    if not isinstance(bias, DTensor):
        bias = DTensor.from_local(bias, weight.mesh, [Replicate()] * weight.mesh.ndim, run_check=False)
    dims = weight.layout.grid.dims
    return result + bias.redistribute(weight.mesh, [Shard(0) if dim in dims else Replicate() for dim in range(weight.mesh.ndim)])


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


@on_all_ranks
def transposed_matmul(left: Any, right: Any) -> torch.Tensor:
    """``A.t() @ y``, with rows of y partitioned like the matrix's rows, or ``x @ A.t()``, with columns of x like its columns.

    Raises:
        SizeError: the dense operand does not have one or two dimensions.
    """
    x, expressions = (right, PRODUCTS) if isinstance(left, Transposed) else (left, PRODUCTS_FROM_LEFT)
    if x.ndim not in expressions:
        raise SizeError(f"a product of A.t() and a tensor of {x.ndim} dimensions: give one or two")
    return transposed_einsum(EinsumCall(expressions[x.ndim], (left, right)))


def dtensor_einsum(call: EinsumCall) -> Any:
    """:func:`numscorch.einsum` with ``DTensor`` operands. The result is a ``DTensor``; gradients have the placements of their operands.

    The gradient of the values of a sparse tensor is this rank's part of a sum, as in data-parallel training.

    Raises:
        ExpressionError: the text can't be parsed.
        UnsupportedError: operands are sharded in different ways, or a sparse tensor has a sharded index.
    """
    text = call.expr
    if isinstance(text, Request):
        if not text.is_product:
            raise UnsupportedError(f"{text} of a DTensor: use einsum, or to_local()")
        text = str(text.subscripts)
    if any(isinstance(operand, ShardedSparseTensor) for operand in call.operands):
        return sharded_einsum(call._replace(expr=text))
    if not call.takes_only("format"):
        raise UnsupportedError("einsum of a DTensor takes no reduce=, mask=, out=, schedule= or sparsifier=")
    text, values = call_form(text, call.operands)
    subscripts = parse_einsum(text, tuple(value.ndim for value in values))
    mesh = next(value.device_mesh for value in values if isinstance(value, DTensor))
    ranks, what = Ranks.of(mesh), f"an operand of {text!r}"
    values = tuple(without_sums(value, what, ranks) if isinstance(value, DTensor) else value for value in values)
    sharded = sharded_indices(text, list(zip(values, subscripts.operands, strict=True)), mesh)
    gradients = [gradient_placements(value, names, sharded, text) for value, names in zip(values, subscripts.operands, strict=True)]
    local = [
        value.to_local(grad_placements=placements) if isinstance(value, DTensor) else value
        for value, placements in zip(values, gradients, strict=True)
    ]
    result: Any = einsum(text, *local, format=call.format)
    if not isinstance(result, torch.Tensor):
        raise UnsupportedError(f"{text!r} has a sparse result, but DTensors are dense: pass format='dense'")
    sizes = subscripts.sizes(value.shape for value in values)
    placements = [result_placement(name, subscripts.result) for name in sharded]
    return dtensor_of(result, mesh, placements, [sizes[name] for name in subscripts.result])


def dtensor_evaluate(statement: str, **operands: Any) -> Any:
    """:func:`numscorch.evaluate` with ``DTensor`` operands and a sharded matrix.

    Raises:
        UnsupportedError: no operand is a sharded matrix.
    """
    if any(isinstance(operand, ShardedSparseTensor) for operand in operands.values()):
        return sharded_evaluate(statement, **operands)
    raise UnsupportedError(
        f"evaluate of a DTensor needs a sharded matrix, as ns.sharding.shard returns: use einsum, or to_local()\n  {statement}"
    )


def dtensor_add_bias(product: DTensor, bias: Any) -> Any:
    """The product with a bias added to its last dimension. The gradient of a plain bias, which every rank holds, is this rank's part of a
    sum, as for the values of a sparse tensor.

    Raises:
        UnsupportedError: the last dimension of the product is sharded, but the bias is not.
    """
    if isinstance(bias, DTensor):
        return product + bias
    mesh, names = product.device_mesh, tuple(map(str, range(product.ndim)))
    product = without_sums(product, "the product of a layer", Ranks.of(mesh))
    gradient_placements(bias, names[-1:], sharded_indices("product + bias", [(product, names)], mesh), "product + bias")
    return dtensor_of(product.to_local() + bias, mesh, product.placements, product.shape)


def dimension(dim: int) -> int:
    """A dimension as 0 or 1.

    Raises:
        RangeError: a matrix has no such dimension.
    """
    if dim not in (-2, -1, 0, 1):
        raise RangeError(f"dim={dim} of a sharded matrix: give 0 or 1, or -2 or -1")
    return dim % 2


@on_all_ranks
def total(A: ShardedSparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The sum over all entries, over each row (``dim=1``), or over each column (``dim=0``)."""
    dims = {0, 1} if dim is None else {dimension(one) for one in (dim if isinstance(dim, list | tuple) else [dim])} or {0, 1}
    A = A if dtype is None else A.with_values(A.values.to(dtype))
    result: torch.Tensor = sharded_einsum(EinsumCall("ij->" + "".join("ij"[at] for at in (0, 1) if at not in dims), (A,)))
    for at in sorted(dims) if keepdim else ():
        result = result.unsqueeze(at)
    return result


@on_all_ranks
def norm(A: ShardedSparseTensor, p: float | str = 2, dim: Any = None, keepdim: bool = False, **options: Any) -> torch.Tensor:
    """The norm of the stored values of all ranks.

    Raises:
        UnsupportedError: the norm is over single dimensions, or is not 1, 2, inf or "fro"; or another option is given.
    """
    powers = {"fro": 2, 2: 2, 1: 1, float("inf"): float("inf")}
    if dim is not None or p not in powers:
        raise UnsupportedError(f"norm(p={p!r}, dim={dim}) of a sharded matrix: p is 1, 2, inf or 'fro', over all entries")
    if given := [name for name, option in (("keepdim", keepdim or None), *options.items()) if option is not None]:
        raise UnsupportedError(f"norm({given[0]}=) of a sharded matrix: only p is supported")
    power = powers[p]
    if power == float("inf"):
        largest = A.values.detach().abs().amax() if A.local.nnz else A.values.new_zeros(())
        step = f"finds the largest of numbers of {largest.dtype}"
        return reduce(A.layout.ranks, largest, step, dist.ReduceOp.MAX)  # a constant in differentiation
    sums = total(A.with_values(A.values.abs().pow(power)))
    return sums.sqrt() if power == 2 else sums


@on_all_ranks
def linalg_norm(A: ShardedSparseTensor, ord: Any = None) -> torch.Tensor:
    """The Frobenius norm.

    Raises:
        UnsupportedError: another matrix norm is requested.
    """
    if ord not in (None, "fro"):
        raise UnsupportedError(f"linalg.norm(ord={ord!r}) of a sharded matrix: only the Frobenius norm is computed; use full_tensor()")
    return norm(A)


def of_rows(function: Callable[..., Any]) -> Callable[..., ShardedSparseTensor]:
    """A function of each row's stored entries, such as softmax."""

    def call(A: ShardedSparseTensor, dim: int, **options: Any) -> ShardedSparseTensor:
        if dimension(dim) != 1:
            raise UnsupportedError("a sharded matrix has whole rows on each rank: give dim=1, or use full_tensor()")
        A.check_whole_rows(f"{function.__name__} of a sharded matrix")
        return A.apply(lambda local: function(local, 1, **options), "a function of rows")

    return call


def elementwise(function: Callable[..., Any], name: str) -> Callable[..., ShardedSparseTensor]:
    """An element-wise function of matrices of one pattern, and numbers."""

    def call(*operands: Any, **options: Any) -> ShardedSparseTensor:
        matrix = next(value for value in operands if isinstance(value, ShardedSparseTensor))
        for value in operands:
            is_alike = value.layout is matrix.layout if isinstance(value, ShardedSparseTensor) else getattr(value, "ndim", 0) == 0
            if not is_alike:
                other = f"a {type(value).__name__} of shape {tuple(value.shape)}"
                raise UnsupportedError(
                    f"{name} of a sharded matrix of shape {tuple(matrix.shape)} and {other}: it takes numbers, and matrices of the same "
                    "pattern, as A.with_values(v); for others, compute with A.full_tensor()"
                )
        local = [value.local if isinstance(value, ShardedSparseTensor) else value for value in operands]
        return matrix.apply(lambda _: function(*local, **options), name)

    return call


MATMULS = (torch.matmul, torch.mm, torch.mv, torch.sparse.mm, torch.Tensor.matmul, torch.Tensor.__matmul__)
IMPLEMENTED: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(MATMULS, matmul),
    torch.sum: total,
    torch.sparse.sum: total,
    torch.norm: norm,
    torch.linalg.norm: linalg_norm,
    torch.softmax: of_rows(torch.softmax),
    torch.log_softmax: of_rows(torch.log_softmax),
    torch.sparse.softmax: of_rows(torch.softmax),
    torch.nn.functional.softmax: of_rows(torch.nn.functional.softmax),
    torch.nn.functional.linear: linear,
    torch.einsum: lambda expr, *operands: sharded_einsum(EinsumCall(expr, operands)),
    torch.Tensor.__rmatmul__: lambda right, left: matmul(left, right),
    **entries_of({name: elementwise(OPERATORS[name], name) for name in (*NAMED, *SYNONYMS)}),
}
TRANSPOSED: dict[Any, Callable[..., Any]] = {
    torch.einsum: lambda expr, *operands: transposed_einsum(EinsumCall(expr, operands)),
    **dict.fromkeys(MATMULS, transposed_matmul),
    torch.Tensor.__rmatmul__: lambda right, left: transposed_matmul(left, right),
}


def register() -> None:
    SHARDED_FUNCTIONS.update({function: graph_break(call) for function, call in IMPLEMENTED.items()})
    HANDLERS[ShardedSparseTensor] = Handler(
        sharded_einsum, sharded_evaluate, linear, parameter=ShardedSparseParameter, local=LOCAL, saved=SAVED
    )
    TRANSPOSED_FUNCTIONS.update({function: graph_break(call) for function, call in TRANSPOSED.items()})
    HANDLERS[Transposed] = Handler(transposed_einsum, transposed_evaluate, local=LOCAL, saved=SAVED)
    HANDLERS[DTensor] = Handler(dtensor_einsum, dtensor_evaluate, add_bias=dtensor_add_bias)
