"""Reductions under torch's names, and softmax; each is evaluated as a statement. Unstored entries count as 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod as product
from typing import Any

import torch

from ..convert.values import strided
from ..errors import RangeError, SizeError, UnsupportedError
from ..frontend.datatypes import SUMMED_LONG, computed_in
from ..frontend.parser import Subscripts
from ..frontend.requests import Request, reducing
from ..programs.dispatch import compute
from ..programs.evaluation import evaluate_parts
from ..programs.traced_programs import program_of
from ..programs.tracing import TracedNode
from ..tensors.arrays import as_integers
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import div
from .naming import with_name
from .reshaping import normalize_dim

Dim = int | Sequence[int] | None


def normalize_dims(dim: Any, order: int) -> tuple[int, ...]:
    """The dimensions of a reduction as nonnegative integers; all of them if ``dim`` is None or empty.

    Raises:
        OperandError: ``dim`` is neither an integer nor a sequence of integers.
        RangeError: a dimension does not exist, or is repeated.

    >>> normalize_dims(-1, 2), normalize_dims(None, 2)
    ((1,), (0, 1))
    """
    dims = tuple(normalize_dim(d, order) for d in (() if dim is None else as_integers(dim)) or range(order))
    if len(set(dims)) < len(dims):
        raise RangeError(f"dim={dim} of a {order}-dimensional tensor: name each dimension once")
    return dims


@lru_cache(maxsize=256)
def _reducing(op: str, dim: int | tuple[int, ...] | None, order: int, is_test: bool = False) -> tuple[tuple[int, ...], int, Request]:
    """The reduced dimensions, the number of remaining dimensions, and the request; with ``is_test``, entries are compared with 0.

    >>> reduced, order, request = _reducing("+=", -1, 2)
    >>> reduced, order, str(request)
    ((1,), 1, 'A[i0,i1] over i0i1->i0')
    """
    reduced = normalize_dims(dim, order)
    names = tuple(f"i{at}" for at in range(order))
    result = tuple(name for at, name in enumerate(names) if at not in reduced)
    return reduced, len(result), reducing(Subscripts((names,), result), op, is_test)


def _reduce(name: str, op: str, input: Any, dim: Dim, keepdim: bool) -> Any:
    """Reduce some dimensions with an operator of statements.

    Raises:
        SizeError: the largest or smallest entry is requested, but there are no entries.
    """
    is_test = name in ("any", "all")
    is_key = dim is None or type(dim) is int or (type(dim) is tuple and {*map(type, dim)} == {int})
    dim = dim if is_key else normalize_dims(dim, input.ndim)
    reduced, order, request = _reducing(op, dim, input.ndim, is_test)
    is_empty = op != "+=" and 0 in input.shape and any(input.shape[d] == 0 for d in reduced)
    if is_empty and name in ("amax", "amin"):
        raise SizeError(f"{name} of zero entries: dim={dim} of shape {tuple(input.shape)} has size 0")
    result = compute(request, (input,), "dense" if order < 2 or is_empty or name == "prod" else None)
    return result.reshape([1 if at in reduced else size for at, size in enumerate(input.shape)]) if keepdim else result


def _narrow_sum(input: SparseTensor, dims: tuple[int, ...], keepdim: bool) -> Any:
    """The sum in the input's narrow integer type. Plain sums are in int64; for dense results, a product with ones keeps the narrow type."""
    if input.ndim - len(dims) > 1:
        return _reduce("sum", "+=", input, dims, keepdim).to(input.dtype)
    ones = [torch.ones((), dtype=input.dtype).expand(input.shape[d]) for d in dims]
    result = compute(_weighting(dims, input.ndim), (input, *ones), "dense")
    return result.reshape([1 if at in dims else size for at, size in enumerate(input.shape)]) if keepdim else result


@lru_cache(maxsize=256)
def _weighting(dims: tuple[int, ...], order: int) -> Request:
    """The request that sums over dimensions with a weight for each of their coordinates.

    >>> str(_weighting((1,), 2))
    'A[i0,i1] * B[i1] over i0i1,i1->i0'
    """
    names = tuple(f"i{at}" for at in range(order))
    result = tuple(name for at, name in enumerate(names) if at not in dims)
    return reducing(Subscripts((names, *((names[at],) for at in dims)), result), "+=")


REDUCTION = """{what} over one, several or all dimensions; unstored entries count as 0.

    Args:
        input: a SparseTensor of any format.
        dim: a dimension or a tuple of dimensions; all by default.
        keepdim: whether to keep reduced dimensions with size 1.
        dtype: the result's data type; defaults to the input's, or int64 for sums of integers and bool.

    Returns:
        A dense tensor if at most one dimension remains; otherwise a tensor in the format that einsum infers.

    Raises:
        OperandError: a dimension is not an integer.
        RangeError: a dimension does not exist, or is repeated.{more}

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> A.{name}(), A.{name}(dim=1)
    {shown}
    """


def _reduction(name: str, op: str, what: str, shown: str) -> Callable[..., Any]:
    def reduction(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        if op == "+=" and dtype in SUMMED_LONG:
            return _narrow_sum(input.to(dtype), normalize_dims(dim, input.ndim), keepdim)
        return _reduce(name, op, input if dtype is None else input.to(dtype), dim, keepdim)

    return with_name(
        reduction,
        name,
        REDUCTION.format(
            name=name,
            what=what,
            shown=shown,
            more=""
            if op == "+="
            else "\n        SizeError: a reduced dimension has size 0.\n        UnsupportedError: the values are complex.",
        ),
    )


sum = _reduction("sum", "+=", "The sum", "(tensor(9.), tensor([2., 7.]))")
amax = _reduction("amax", "max=", "The largest entry", "(tensor(4.), tensor([2., 4.]))")
amin = _reduction("amin", "min=", "The smallest entry", "(tensor(0.), tensor([0., 3.]))")


def prod(input: SparseTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The product over one, several or all dimensions; unstored entries are factors of 0.

    Args:
        input: a SparseTensor.
        dim: a dimension or a tuple of dimensions; all by default.
        keepdim: whether to keep reduced dimensions with size 1.
        dtype: the result's data type; defaults to the input's, or int64 for integers and bool.

    Returns:
        A dense tensor.

    Raises:
        OperandError: a dimension is not an integer.
        RangeError: a dimension does not exist, or is repeated.

    >>> import numscorch as ns
    >>> ns.prod(ns.from_torch(torch.tensor([[2.0, 3.0], [0.0, 4.0]])), 1)
    tensor([6., 0.])
    """
    own_dtype = input.dtype if input.dtype.is_floating_point or input.dtype.is_complex else torch.int64
    return _reduce("prod", "*=", input.to(dtype or own_dtype), dim, keepdim)


def mean(input: Any, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """The mean over one, several or all dimensions, including unstored entries.

    Args:
        input: a SparseTensor of floating-point or complex values.
        dim: a dimension or a tuple of dimensions; all by default.
        keepdim: whether to keep reduced dimensions with size 1.
        dtype: the data type to convert to first.

    Returns:
        A dense tensor if at most one dimension remains; otherwise a tensor in the format that einsum infers.

    Raises:
        OperandError: a dimension is not an integer.
        RangeError: a dimension does not exist, or is repeated.
        UnsupportedError: the values are integers or bool.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.mean(A), ns.mean(A, 1)
    (tensor(2.2500), tensor([1.0000, 3.5000]))
    """
    input = input if dtype is None else input.to(dtype)
    if not (input.dtype.is_floating_point or input.dtype.is_complex):
        raise UnsupportedError(f"the mean of {input.dtype} values would be truncated to integers: convert with .to(torch.float32)")
    terms = product(input.shape[d] for d in normalize_dims(dim, input.ndim))
    total = sum(input.to(computed_in(input.dtype)), dim, keepdim)  # 16-bit types are rounded only at the end
    total = total if terms else strided(total)  # every entry is NaN
    return (total / float(terms) if isinstance(total, torch.Tensor) else div(total, float(terms))).to(input.dtype)


SOFTMAX = """{what} over the stored entries; unstored entries count as -inf and stay unstored.

    Args:
        input: a SparseTensor of any format.
        dim: the dimension along which the exponentials are summed.
        dtype: the data type of the computation; defaults to the input's, or float32 for integers and bool.

    Returns:
        A SparseTensor with the pattern of ``input``.

    Raises:
        RangeError: the dimension does not exist.
        UnsupportedError: ``dtype`` is not floating-point.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[2.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.{name}(A, 1).values
    tensor({shown})
    """


def _softmax(name: str, what: str, shown: str) -> Callable[..., Any]:
    def softmax(input: Any, dim: int, dtype: torch.dtype | None = None, *, _stacklevel: int = 3) -> Any:
        if dtype is not None and not (dtype.is_floating_point or dtype.is_complex):
            raise UnsupportedError(f"{name} in {dtype} would be truncated to integers: pass a floating-point dtype")
        is_real = input.dtype.is_floating_point or input.dtype.is_complex
        input = input if dtype is None and is_real else input.to(dtype or torch.float32)
        place = normalize_dim(dim, input.ndim)
        computed = computed_in(input.dtype)  # 16-bit types are rounded only at the end
        wide = input if computed is input.dtype else input.to(computed)
        result = evaluate_parts(_softmax_program(name, input.ndim, place), {"A": wide}, None)
        return result if wide is input else result.to(input.dtype)

    return with_name(softmax, name, SOFTMAX.format(name=name, what=what, shown=shown))


softmax, log_softmax = (
    _softmax("softmax", "The softmax along a dimension", "[0.5000, 0.5000, 1.0000]"),
    _softmax("log_softmax", "The logarithm of the softmax along a dimension", "[-0.6931, -0.6931,  0.0000]"),
)


@lru_cache(maxsize=64)
def _softmax_program(name: str, order: int, dim: int) -> str:
    """softmax or log_softmax in index notation.

    >>> print(_softmax_program("softmax", 2, 1))
    m[i] stored max= A[i,j]
    E[i,j] = stored(A[i,j]) * exp(A[i,j] - m[i])
    l[i] += E[i,j]
    R[i,j] = E[i,j] / l[i]
    """
    operand = TracedNode("operand", "A", (2,) * order, frozenset(range(order)), is_sparse=True)
    return program_of(TracedNode("softmax", name, operand.shape, operand.used, (operand,), (dim,)), ("A",)).text


def sum_to_size(input: SparseTensor, *size: Any) -> Any:
    """Sum the tensor to a shape that broadcasts to the tensor's shape.

    Raises:
        SizeError: the shape does not broadcast to the tensor's shape.

    >>> import numscorch as ns
    >>> sum_to_size(ns.from_torch(torch.tensor([[2.0, 3.0], [0.0, 4.0]])), 2, 1)
    tensor([[5.],
            [4.]])
    """
    wanted = as_integers(*size)
    before = input.ndim - len(wanted)
    pairs = list(zip(wanted, input.shape[max(before, 0) :], strict=False))
    if before < 0 or any(target not in (1, size) for target, size in pairs):
        raise SizeError(f"sum_to_size {wanted} of shape {tuple(input.shape)}: each size must be 1 or the tensor's")
    reduced = (*range(before), *(before + at for at, (target, size) in enumerate(pairs) if target != size))
    return sum(input, reduced, keepdim=True).reshape(wanted) if reduced else input


def _truth_reduction(name: str, op: str, shown: str) -> Callable[..., Any]:
    def test(input: SparseTensor, dim: Dim = None, keepdim: bool = False) -> Any:
        tested = input != 0
        is_each = isinstance(dim, list | tuple) and not dim  # torch reduces no dimension, unlike in sums
        result = tested if is_each else _reduce(name, op, tested, dim, keepdim)
        return result.to(torch.uint8 if input.dtype == torch.uint8 else torch.bool)

    return with_name(
        test,
        name,
        f"""Whether {name} of the entries over one, several or all dimensions are nonzero; unstored entries are 0.

    Args:
        input: a SparseTensor.
        dim: a dimension or a tuple of dimensions; all by default. An empty tuple reduces no dimension.
        keepdim: whether to keep reduced dimensions with size 1.

    Returns:
        A tensor of bool values, or uint8 values if ``input`` holds uint8: dense if at most one dimension remains; otherwise in the
        format that einsum infers.

    Raises:
        OperandError: a dimension is not an integer.
        RangeError: a dimension does not exist, or is repeated.

    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.{name}(A), ns.{name}(A, 1)
    {shown}
    """,
    )


REDUCING: dict[str, Callable[..., Any]] = {
    "sum": sum,
    "amax": amax,
    "amin": amin,
    "prod": prod,
    "mean": mean,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "sum_to_size": sum_to_size,
    "any": _truth_reduction("any", "max=", "(tensor(True), tensor([True, True]))"),
    "all": _truth_reduction("all", "min=", "(tensor(False), tensor([False,  True]))"),
}
