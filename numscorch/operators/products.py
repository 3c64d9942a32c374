"""Matrix products under torch's names; each is an einsum."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from string import ascii_letters
from typing import Any

import torch
from torch.autograd import forward_ad

from ..errors import OperandError, RangeError, SizeError, UnsupportedError
from ..interface.api import einsum, is_compiling
from ..programs.dispatch import compute, dispatched
from ..programs.fitting import MISSED, quick_result
from ..programs.operands import any_autocast
from ..tensors.arrays import as_integer, as_integers, converter
from ..tensors.distributed import HANDLERS
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import OPERATORS, SparseTensor
from .naming import with_name
from .reshaping import normalize_dim


def matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """The matrix product by torch.matmul's rules: vectors, matrices, and batches that broadcast.

    The product of two sparse tensors is sparse; the product with a dense tensor is dense.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor, sparse or dense.
        out: a dense tensor for the result.

    Returns:
        A SparseTensor or a dense tensor; with ``out``, ``out``.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand has no dimensions, the inner sizes differ, or ``out`` has another shape than the result.
        UnsupportedError: the data types differ; einsum promotes them.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3).to_sparse_csr())
    >>> ns.matmul(torch.arange(3.0), A)
    tensor([0., 1., 2.])
    """
    return _matrix_product("matmul", None, input, other, out)


def _matrix_product(name: str, required: tuple[int, int] | None, left: Any, right: Any, out: Any) -> Any:
    """The matrix product, by the shortcut of ``name`` if possible; ``required``: the ranks, or None for any."""
    first, second = _shape_of(name, left), _shape_of(name, right)
    ranks = len(first), len(second)
    key = name, ranks  # one expression
    if not is_compiling() and (result := quick_result(key, (left, right), out)) is not MISSED:
        return result
    if 0 in ranks or ranks != (required or ranks):
        _check_ranks(name, ranks, required)
    inner = ranks[1] - 2 if ranks[1] > 1 else 0
    for at, place in ((ranks[0] - 1, inner), *[(0, 0)] * (required == (3, 3))):
        check_inner(name, left, right, at, place)
    return _contract(PRODUCTS.get(ranks) or _product(*ranks), left, right, out, key)


def check_same_type(left: Any, right: Any) -> None:
    """Check that the operands of a matrix product have one data type, unless autocast converts them.

    Raises:
        UnsupportedError: the data types differ; torch's matrix products refuse this, too.
    """
    if left.dtype is not right.dtype and not any_autocast():
        types = f"{left.dtype} and {right.dtype}".replace("torch.", "")
        raise UnsupportedError(f"operands have data types {types}: convert one with .to(), or use einsum, which promotes data types")


def _contract(expr: str, left: Any, right: Any, out: Any = None, key: Hashable = None) -> Any:
    """The einsum of two tensors; ``key`` is the key of a shortcut that was tried, by default the expression.

    Raises:
        UnsupportedError: the data types differ.
    """
    check_same_type(left, right)
    if is_compiling() or any_autocast() or forward_ad._current_level >= 0:
        return einsum(expr, left, right, out=out)
    return compute(expr, (left, right), None, out) if key is None else dispatched(expr, (left, right), None, out, key)


def _shape_of(name: str, operand: Any) -> tuple[int, ...]:
    """The shape of a tensor.

    Raises:
        OperandError: the operand is not a tensor.
    """
    if type(operand) is SparseTensor:
        return operand.pattern.shape
    if type(operand) is not torch.Tensor and not isinstance(operand, torch.Tensor | SparseParameter):
        raise OperandError(f"{name} takes tensors, not {type(operand).__name__}: wrap it with {converter(operand) or 'torch.as_tensor'}")
    return operand.shape


def check_inner(name: str, left: Any, right: Any, first: int, second: int) -> None:
    """Check that two summed dimensions have one size; einsum would broadcast size 1.

    Raises:
        SizeError: the sizes differ.
    """
    if left.shape[first] != right.shape[second] and 1 in (left.shape[first], right.shape[second]):
        sizes = f"size {left.shape[first]} of dim {first} must equal size {right.shape[second]} of dim {second}"
        raise SizeError(f"{name} of shapes {tuple(left.shape)} and {tuple(right.shape)}: {sizes}")


def _check_ranks(name: str, ranks: tuple[int, int], required: tuple[int, int] | None) -> None:
    """Check that operands have the required ranks, or, if ``required`` is None, at least one dimension each.

    Raises:
        SizeError: the ranks differ.
    """
    message = f"{name} of {ranks[0]}- and {ranks[1]}-dimensional operands"
    if required is not None and ranks != required:
        raise SizeError(f"{message}: it takes {required[0]} and {required[1]}, A @ B any")
    if 0 in ranks:
        raise SizeError(f"{message}: both need at least one dimension")


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """torch.nn.functional.linear: input @ weight.t() + bias; any operand may be sparse.

    >>> import torch, numscorch as ns
    >>> W = ns.from_torch(torch.eye(3)[:2], ns.CSR)
    >>> linear(torch.arange(3.0), W, torch.ones(2))
    tensor([1., 2.])
    """
    if HANDLERS and (handler := HANDLERS.get(type(weight))) is not None and handler.linear is not None:
        return handler.linear(input, weight, bias)
    first, second = _shape_of("linear", input), _shape_of("linear", weight)
    if first[-1:] != second[-1:]:
        axes = "(out_features, in_features)" if len(second) == 2 else "(in_features,)"
        clash = f"but its last dimension has to be in_features={second[-1] if len(second) else ''}"
        raise SizeError(f"input has shape {tuple(first)}, {clash}: the weight has shape {tuple(second)}, {axes}")
    product = _contract(LINEAR.get(len(first), "...i,oi->...o") if len(second) == 2 else "...i,i->...", input, weight)
    if bias is None:
        return product
    if second[:1] == (1,) and bias.numel() > 1:
        raise SizeError(f"linear of a weight of shape {tuple(second)} and a bias of shape {tuple(bias.shape)}: give one bias for each row")
    return add_bias(product, bias.to(product.dtype) if torch.is_autocast_enabled("cpu") else bias)


def add_bias(product: Any, bias: Any) -> Any:
    """Add a bias along the last dimension of a product; if the product is a ``DTensor``, a plain bias is the whole bias on every rank.

    >>> import torch
    >>> add_bias(torch.zeros(2, 2), torch.ones(2))
    tensor([[1., 1.],
            [1., 1.]])
    """
    if HANDLERS and (handler := HANDLERS.get(type(product))) is not None and handler.add_bias is not None:
        return handler.add_bias(product, bias)
    return product + bias


def _product(left: int, right: int) -> str:
    """The einsum of a matrix product of operands with these ranks.

    >>> _product(2, 1), _product(2, 3)
    ('ij,j->i', 'ij,...jk->...ik')
    """
    rows, columns = ("i" if left > 1 else ""), ("k" if right > 1 else "")
    before, after = ("..." if left > 2 else ""), ("..." if right > 2 else "")
    return f"{before}{rows}j,{after}j{columns}->{before or after}{rows}{columns}"


def sparse_mm(mat1: Any, mat2: Any, reduce: str | None = None) -> Any:
    """torch.sparse.mm: the product of two matrices.

    Raises:
        UnsupportedError: ``reduce`` is given.
    """
    if reduce is not None:
        raise UnsupportedError(f'torch.sparse.mm with reduce={reduce!r}: use einsum("ij,jk->ik", A, B, reduce="max"), or "min" or "mean"')
    return mm(mat1, mat2)


def mm(input: Any, mat2: Any, *, out: Any = None) -> Any:
    """The product of two matrices; either one may be sparse. Equivalent to ``A @ B``.

    Args:
        input: a matrix of shape (m, k).
        mat2: a matrix of shape (k, n).
        out: a dense tensor for the result.

    Returns:
        A matrix of shape (m, n): a SparseTensor if both operands are sparse, else a dense tensor.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand is not a matrix, or the inner sizes differ.
        UnsupportedError: the data types differ; einsum promotes them.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.mm(A, torch.tensor([[1.0], [2.0]]))
    tensor([[4.],
            [3.]])
    """
    return _matrix_product("mm", (2, 2), input, mat2, out)


def mv(input: Any, vec: Any, *, out: Any = None) -> Any:
    """The product of a matrix and a vector; either one may be sparse. Equivalent to ``A @ x``.

    Args:
        input: a matrix of shape (m, n).
        vec: a vector of size n.
        out: a dense tensor for the result.

    Returns:
        A dense vector of size m.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: the operands are not a matrix and a vector, or the inner sizes differ.
        UnsupportedError: the data types differ; einsum promotes them.

    >>> import torch, numscorch as ns
    >>> ns.mv(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR), torch.tensor([1.0, 2.0]))
    tensor([4., 3.])
    """
    return _matrix_product("mv", (2, 1), input, vec, out)


def bmm(input: Any, mat2: Any, *, out: Any = None) -> Any:
    """The products of two batches of matrices; either one may be sparse. Equivalent to ``A @ B``.

    Args:
        input: a tensor of shape (b, m, k).
        mat2: a tensor of shape (b, k, n).
        out: a dense tensor for the result.

    Returns:
        A tensor of shape (b, m, n): a SparseTensor if both operands are sparse, else a dense tensor.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand does not have three dimensions, or sizes differ.
        UnsupportedError: the data types differ; einsum promotes them.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[[0.0, 2.0]], [[3.0, 0.0]]]))
    >>> ns.bmm(A, torch.ones(2, 2, 1)).flatten()
    tensor([2., 3.])
    """
    return _matrix_product("bmm", (3, 3), input, mat2, out)


def _scaled_sum(name: str, input: Any, product: Any, beta: float, alpha: float) -> Any:
    """beta * input + alpha * product; with beta = 0 the input's values, even NaN, are ignored.

    Raises:
        SizeError: the input does not broadcast to the product's shape.
    """
    shape, target = tuple(_shape_of(name, input)), tuple(product.shape)
    if len(shape) > len(target) or any(size not in (1, end) for size, end in zip(reversed(shape), reversed(target), strict=False)):
        raise SizeError(f"{name} of an input of shape {shape} and a product of shape {target}: the input must broadcast to the product")
    if any(isinstance(factor, float) for factor in (beta, alpha)) and not (product.dtype.is_floating_point or product.dtype.is_complex):
        beta, alpha = _whole_factors(name, product.dtype, beta, alpha)
    if name in OF_AUTOCAST and torch.is_autocast_enabled("cpu"):
        input = input.to(product.dtype)
    if product.dtype is torch.bool:
        both = OPERATORS["logical_and"]
        return OPERATORS["logical_or"](both(product, bool(alpha)), both(input, bool(beta)))
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


def _whole_factors(name: str, dtype: torch.dtype, beta: float, alpha: float) -> tuple[int, int]:
    """Integer factors by torch's rules: some functions truncate float factors, others refuse them.

    Raises:
        OperandError: torch refuses these factors.
    """
    ones = [torch.ones((1,) * rank, dtype=dtype) for rank in RANKS.get(name, ())]
    try:
        if ones:
            getattr(torch, name)(*ones, beta=beta, alpha=alpha)
    except RuntimeError as error:
        raise OperandError(f"{name} of {dtype} with beta={beta} and alpha={alpha}: give whole numbers, or convert with .float()") from error
    return int(beta), int(alpha)


def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Add the sum of matrix products over a batch: beta * input + alpha * sum of batch1[b] @ batch2[b] over b.

    Args:
        input: a tensor, sparse or dense, that broadcasts to shape (m, n).
        batch1: a tensor of shape (b, m, k), sparse or dense.
        batch2: a tensor of shape (b, k, n), sparse or dense.
        beta: a factor of ``input``; if it is 0, ``input`` is ignored.
        alpha: a factor of the sum.

    Returns:
        A matrix of shape (m, n): a SparseTensor if all operands are sparse, else a dense tensor.

    Raises:
        OperandError: the operands hold integers, and torch refuses a factor that is a float.
        SizeError: an operand has a wrong number of dimensions, or sizes differ.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[[0.0, 2.0]], [[3.0, 0.0]]]))
    >>> ns.addbmm(torch.ones(1, 1), A, torch.ones(2, 2, 1))
    tensor([[6.]])
    """
    _check_ranks("addbmm", (batch1.ndim, batch2.ndim), (3, 3))
    check_inner("addbmm", batch1, batch2, 2, 1)
    check_inner("addbmm", batch1, batch2, 0, 0)
    return _scaled_sum("addbmm", input, einsum("bij,bjk->ik", batch1, batch2), beta, alpha)


def outer(input: Any, vec2: Any) -> Any:
    """The outer product of two vectors.

    Args:
        input: a vector of size m, sparse or dense.
        vec2: a vector of size n, sparse or dense.

    Returns:
        A matrix of shape (m, n): a SparseTensor if both operands are sparse, else a dense tensor.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand is not a vector.

    >>> import torch, numscorch as ns
    >>> v = ns.from_torch(torch.tensor([0.0, 2.0]))
    >>> ns.outer(v, torch.tensor([1.0, 3.0]))
    tensor([[0., 0.],
            [2., 6.]])
    """
    _check_ranks("outer", (input.ndim, vec2.ndim), (1, 1))
    return einsum("i,j->ij", input, vec2)


def dot(input: Any, tensor: Any) -> Any:
    """The inner product of two vectors; complex entries are not conjugated.

    Args:
        input: a vector, sparse or dense.
        tensor: a vector of the same size, sparse or dense.

    Returns:
        A dense tensor without dimensions.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand is not a vector, or the sizes differ.

    >>> import torch, numscorch as ns
    >>> ns.dot(ns.from_torch(torch.tensor([0.0, 2.0])), torch.tensor([1.0, 3.0]))
    tensor(6.)
    """
    _check_ranks("dot", (input.ndim, tensor.ndim), (1, 1))
    check_inner("dot", input, tensor, 0, 0)
    return einsum("i,i->", input, tensor)


def inner(input: Any, other: Any) -> Any:
    """Contract the last dimensions of two tensors; multiply them if one has no dimensions.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor, sparse or dense, with a last dimension of the same size.

    Returns:
        A tensor with the other dimensions of ``input``, followed by those of ``other``; a SparseTensor if both operands are sparse
        and at least two dimensions remain, else a dense tensor.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: the last sizes differ.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.inner(A, torch.tensor([1.0, 3.0]))
    tensor([6., 3.])
    """
    if not input.ndim or not other.ndim:
        return input * other
    return tensordot(input, other, ([input.ndim - 1], [other.ndim - 1]))


def multi_dot(tensors: Sequence[Any], *, out: None = None) -> Any:
    """torch.linalg.multi_dot: the product of matrices in the cheapest order; the first and last may be vectors.

    Raises:
        SizeError: ``tensors`` is empty, or a tensor has a wrong number of dimensions.
    """
    tensors = list(tensors)
    ranks = [t.ndim for t in tensors]
    if not tensors or any(rank != 2 for rank in ranks[1:-1]) or not {ranks[0], ranks[-1]} <= {1, 2}:
        raise SizeError(f"a product of tensors of {ranks} dimensions: it takes matrices; the first and last may be vectors")
    for left, right in pairwise(tensors):
        check_inner("multi_dot", left, right, left.ndim - 1, 0)
    letters = [chr(ord("a") + at) for at in range(len(tensors) + 1)]
    terms = [letters[at] + letters[at + 1] for at in range(len(tensors))]
    terms[0], terms[-1] = terms[0][-ranks[0] :], terms[-1][: ranks[-1]] if len(terms) > 1 else terms[-1]
    ends = (letters[0] if ranks[0] == 2 else "") + (letters[-1] if ranks[-1] == 2 else "")
    return tensors[0] if len(tensors) == 1 else einsum(f"{','.join(terms)}->{ends}", *tensors, out=out)


def matrix_power(input: SparseTensor, n: int) -> Any:
    """The n-th power of a square matrix, in O(log n) products.

    Args:
        input: a sparse matrix of shape (m, m), or a batch of matrices.
        n: the exponent, a positive integer.

    Returns:
        A SparseTensor with the shape of ``input``.

    Raises:
        OperandError: n is not an integer.
        SizeError: the matrix is not square, or ``input`` is a vector.
        UnsupportedError: n is not positive; identities and inverses are not supported.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.matrix_power(A, 3).to_dense()
    tensor([[ 0., 12.],
            [18.,  0.]])
    """
    if input.ndim < 2 or input.shape[-1] != input.shape[-2]:
        raise SizeError(f"matrix_power of shape {tuple(input.shape)}: it takes square matrices")
    if n < 1:
        raise UnsupportedError(f"matrix_power with n={n} of a SparseTensor: give a positive n, or use .to_dense()")
    if n == 1:
        return input.clone()
    half = input if n < 4 else matrix_power(input, n // 2)
    squared = matmul(half, half)
    return matmul(squared, input) if n % 2 else squared


def sampled_addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """torch.sparse.sampled_addmm: beta * input + alpha * (mat1 @ mat2) at the entries of a sparse input."""
    return _scaled_sum("sampled_addmm", input, einsum("...ik,...kj->...ij", mat1, mat2, mask=input), beta, alpha)


def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """Contract the last dimensions of a with the first ones of b, or the listed dimensions of each.

    Args:
        a: a tensor, sparse or dense.
        b: a tensor, sparse or dense.
        dims: the number of dimensions to contract; or two lists, the dimensions of ``a`` and those of ``b``.
        out: a dense tensor for the result.

    Returns:
        A tensor with the remaining dimensions of ``a``, followed by those of ``b``; a SparseTensor if both operands are sparse and at
        least two dimensions remain, else a dense tensor.

    Raises:
        OperandError: ``dims`` holds other values than integers, or an operand is not a tensor.
        RangeError: a dimension does not exist.
        SizeError: the numbers of dimensions or their sizes differ.

    >>> import torch, numscorch as ns
    >>> ns.tensordot(ns.from_torch(torch.eye(2)), torch.ones(2, 3), 1)
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """
    ranks = len(_shape_of("tensordot", a)), len(_shape_of("tensordot", b))
    if not (isinstance(dims, list | tuple) and len(dims) == 2):
        count = as_integer(dims)
        if not 0 <= count <= min(ranks):
            raise RangeError(f"tensordot over {count} dimensions: give a number from 0 to {min(ranks)}, the smaller rank")
        dims = range(ranks[0] - count, ranks[0]), range(count)
    left, right = ([normalize_dim(d, rank) for d in as_integers(dims_)] for rank, dims_ in zip(ranks, dims, strict=True))
    if len(left) != len(right):
        raise SizeError(f"tensordot over {len(left)} dimensions of a and {len(right)} of b: name the same number of each")
    letters = list(ascii_letters[: sum(ranks)])
    first, second = letters[: ranks[0]], letters[ranks[0] :]
    for at, other in zip(left, right, strict=True):
        check_inner("tensordot", a, b, at, other)
        second[other] = first[at]
    result = [letter for letter in letters if (letter in first) != (letter in second)]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(result)}", a, b, out=out)


RANKS = {"addmm": (2, 2, 2), "addmv": (1, 2, 1), "addr": (2, 1, 1), "baddbmm": (3, 3, 3), "addbmm": (2, 3, 3)}
OF_AUTOCAST = ("addmm", "addbmm", "baddbmm")  # operators whose result torch.autocast casts to its data type
LINEAR = {1: "i,oi->o", 2: "bi,oi->bo"}
PRODUCTS = {(left, right): _product(left, right) for left in (1, 2) for right in (1, 2)}
SCALED_SUM = """Add a scaled product: beta * input + alpha * {product}; any operand may be sparse.

    Args:
        input: a tensor that broadcasts to shape {shape}.
        {first}.
        {second}.
        beta: a factor of ``input``; if it is 0, ``input`` is ignored.
        alpha: a factor of the product.

    Returns:
        A tensor of shape {shape}, dense if an operand is dense.

    Raises:
        OperandError: an operand is not a tensor; or the operands hold integers, and torch refuses a factor that is a float.
        SizeError: an operand has a wrong number of dimensions, or sizes differ.
        UnsupportedError: the data types of the product's operands differ.

    >>> A, B = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]])), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> ns.{call}
    tensor({shown})
    """
PRODUCT_OPERATORS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "mm": mm,
    "mv": mv,
    "bmm": bmm,
    "linear": linear,
    "addmm": with_name(
        lambda input, mat1, mat2, *, beta=1, alpha=1: _scaled_sum("addmm", input, mm(mat1, mat2), beta, alpha),
        "addmm",
        SCALED_SUM.format(
            product="mat1 @ mat2",
            shape="(m, n)",
            first="mat1: a matrix of shape (m, k)",
            second="mat2: a matrix of shape (k, n)",
            call="addmm(torch.ones(1, 2), A, B, beta=2)",
            shown="[[4., 2.],\n            [5., 5.]]",
        ),
    ),
    "tensordot": tensordot,
    "einsum": einsum,
    "addbmm": addbmm,
    "addmv": with_name(
        lambda input, mat, vec, *, beta=1, alpha=1: _scaled_sum("addmv", input, mv(mat, vec), beta, alpha),
        "addmv",
        SCALED_SUM.format(
            product="mat @ vec",
            shape="(m,)",
            first="mat: a matrix of shape (m, n)",
            second="vec: a vector of size n",
            call="addmv(torch.ones(2), A, B[0], beta=2)",
            shown="[4., 5.]",
        ),
    ),
    "addr": with_name(
        lambda input, vec1, vec2, *, beta=1, alpha=1: _scaled_sum("addr", input, outer(vec1, vec2), beta, alpha),
        "addr",
        SCALED_SUM.format(
            product="outer(vec1, vec2)",
            shape="(m, n)",
            first="vec1: a vector of size m",
            second="vec2: a vector of size n",
            call="addr(torch.ones(2, 2), A[0], B[0], beta=2)",
            shown="[[2., 2.],\n            [4., 4.]]",
        ),
    ),
    "baddbmm": with_name(
        lambda input, batch1, batch2, *, beta=1, alpha=1: _scaled_sum("baddbmm", input, bmm(batch1, batch2), beta, alpha),
        "baddbmm",
        SCALED_SUM.format(
            product="batch1 @ batch2",
            shape="(b, m, n)",
            first="batch1: a tensor of shape (b, m, k)",
            second="batch2: a tensor of shape (b, k, n)",
            call="baddbmm(torch.ones(1, 1, 2), A[None], B[None], beta=2)",
            shown="[[[4., 2.],\n             [5., 5.]]]",
        ),
    ),
    "chain_matmul": with_name(
        lambda *matrices: multi_dot(matrices),
        "chain_matmul",
        """The product of matrices in the cheapest order.

    Args:
        *matrices: matrices, sparse or dense; the first and the last one may be vectors.

    Returns:
        The product: a SparseTensor if all matrices are sparse, else a dense tensor.

    Raises:
        OperandError: an argument is not a tensor.
        SizeError: sizes differ, or a tensor has a wrong number of dimensions.

    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    >>> ns.chain_matmul(A, A, torch.tensor([1.0, 2.0]))
    tensor([ 6., 12.])
    """,
    ),
    "dot": dot,
    "ger": outer,
    "inner": inner,
    "matrix_power": matrix_power,
    "outer": outer,
    "vdot": with_name(
        lambda input, other: dot(input.conj() if input.dtype.is_complex else input, other),
        "vdot",
        """The inner product of two vectors; complex entries of the first one are conjugated.

    Args:
        input: a vector, sparse or dense.
        other: a vector of the same size, sparse or dense.

    Returns:
        A dense tensor without dimensions.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand is not a vector, or the sizes differ.

    >>> v = ns.from_torch(torch.tensor([0.0, 1 + 2j]))
    >>> ns.vdot(v, v)
    tensor(5.+0.j)
    """,
    ),
}
