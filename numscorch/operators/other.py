"""torch's other operators: flip, roll, repeat, pad, triangles, diagonals, Kronecker products, differences and low-rank decompositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..convert.construct import assemble, from_torch
from ..convert.values import strided, values_of
from ..errors import RangeError, SizeError, UnsupportedError
from ..ir.format import COO, dense
from ..machine.memory import check_entries
from ..tensors.arrays import as_integer, as_integers, as_shape
from ..tensors.packing import entry_columns, entry_count, summing_dtype
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import sub
from .indexing import index_select, select_coordinates
from .joining import cat
from .naming import with_name
from .reducing import sum as total
from .reshaping import (
    check_copies,
    copied,
    fitting,
    flatten,
    normalize_dim,
    rearranged,
    reshape,
    transpose,
)
from .unary import of_dense


def flip(input: SparseTensor, *dims: Any, **named: Any) -> Any:
    """Reverse dimensions.

    Args:
        input: a SparseTensor.
        *dims: the dimensions, as separate arguments or as one sequence.
        **named: ``dims``, if the dimensions are given by keyword.

    Returns:
        A SparseTensor with the shape of ``input``; a copy of the entries.

    Raises:
        OperandError: no dimensions are given, or one is not an integer.
        RangeError: a dimension does not exist.
        SizeError: a dimension is repeated.

    >>> import numscorch as ns
    >>> ns.flip(ns.from_torch(torch.tensor([[1.0, 0.0], [2.0, 3.0]])), 0).to_dense()
    tensor([[2., 3.],
            [1., 0.]])
    """
    flipped = tuple(normalize_dim(d, input.ndim) for d in as_integers(*(dims or (named["dims"],))))
    if len(set(flipped)) < len(flipped):
        raise SizeError(f"flip of dims {flipped}: name each once")
    return select_coordinates(input, [range(size)[:: -1 if d in flipped else 1] for d, size in enumerate(input.shape)])


def roll(input: SparseTensor, shifts: Any, dims: Any = None) -> Any:
    """Shift entries cyclically along dimensions; without ``dims``, the entries of the flattened tensor.

    Args:
        input: a SparseTensor.
        shifts: the distance, or one for each dimension.
        dims: a dimension, or a sequence of dimensions.

    Returns:
        A SparseTensor with the shape of ``input``.

    Raises:
        OperandError: a shift or a dimension is not an integer.
        RangeError: a dimension does not exist.
        SizeError: the numbers of shifts and dimensions differ.

    >>> import numscorch as ns
    >>> ns.roll(ns.from_torch(torch.tensor([1.0, 0.0, 2.0])), 1, 0).to_dense()
    tensor([2., 1., 0.])
    """
    at = () if dims is None else tuple(normalize_dim(d, input.ndim) for d in as_integers(dims))
    if not at:
        return reshape(roll(flatten(input), shifts, 0), input.shape)
    steps = as_integers(shifts)
    if len(steps) != len(at):
        raise SizeError(f"roll by {len(steps)} shifts along {len(at)} dimensions: give one shift for each")

    def move(indices: list[np.ndarray]) -> list[np.ndarray]:
        moved = indices.copy()
        for d, step in zip(at, steps, strict=True):
            size = max(input.shape[d], 1)
            moved[d] = (moved[d] + step % size) % size
        return moved

    return rearranged(input, ("roll", steps, at), input.shape, move)


def repeat(input: SparseTensor, *repeats: Any, **named: Any) -> Any:
    """torch.Tensor.repeat: tile the tensor along each dimension and along new leading ones. O(result's entries).

    Raises:
        SizeError: a count is missing or negative, or the result exceeds the memory limit.
    """
    times = as_integers(*(repeats or (named["repeats"],)))
    if len(times) < input.ndim or min(times, default=0) < 0:
        raise SizeError(f"repeat {times} of a {input.ndim}-dimensional tensor: give a number for each dimension, none negative")
    return copied(input, times)


def tile(input: SparseTensor, *dims: Any, **named: Any) -> Any:
    """Repeat the tensor along each dimension; missing counts of leading dimensions are 1.

    Args:
        input: a SparseTensor.
        *dims: the number of repeats for each dimension, as separate arguments or as one sequence; more numbers add leading dimensions.
        **named: ``dims``, if the numbers are given by keyword.

    Returns:
        A SparseTensor that stores all copies.

    Raises:
        OperandError: no numbers are given, or one is not an integer.
        SizeError: a number is negative, or the result exceeds the memory limit.

    >>> import numscorch as ns
    >>> ns.tile(ns.from_torch(torch.tensor([0.0, 2.0])), 2).to_dense()
    tensor([0., 2., 0., 2.])
    """
    times = as_integers(*(dims or (named["dims"],)))
    return repeat(input, (1,) * (input.ndim - len(times)) + times)


def pad(input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """torch.nn.functional.pad with zeros: two sizes for each dimension, starting with the last dimension; negative sizes crop.

    Raises:
        SizeError: the number of sizes is odd or too large, or a resulting size is negative.
        UnsupportedError: ``mode`` is not "constant", or ``value`` is not 0: every padded entry would be stored.
    """
    if mode != "constant" or value:
        raise UnsupportedError(
            f"pad with mode={mode!r}, value={value} of a SparseTensor stores new entries: pad with 0, or F.pad(A.to_dense(), ...)"
        )
    pairs = list(zip(pad[::2], pad[1::2], strict=False))[::-1]
    if len(pad) % 2 or len(pairs) > input.ndim:
        raise SizeError(f"pad {tuple(pad)} of a {input.ndim}-dimensional tensor: give two sizes for each of the last dimensions")
    pairs = [(0, 0)] * (input.ndim - len(pairs)) + pairs
    shape = [size + before + after for size, (before, after) in zip(input.shape, pairs, strict=True)]
    if min(shape, default=0) < 0:
        raise SizeError(f"pad {tuple(pad)} of shape {tuple(input.shape)} would leave the shape {tuple(shape)}")
    return select_coordinates(input, [range(-before, size - before) for size, (before, _) in zip(as_shape(shape), pairs, strict=True)])


def rot90(input: SparseTensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """Rotate the tensor k times by 90 degrees, from the first of two dimensions to the second.

    Args:
        input: a SparseTensor.
        k: the number of rotations; negative numbers rotate in the other direction.
        dims: the two dimensions.

    Returns:
        A SparseTensor; a copy of the entries.

    Raises:
        OperandError: k or a dimension is not an integer.
        RangeError: a dimension does not exist.
        SizeError: ``dims`` are not two different dimensions.

    >>> import numscorch as ns
    >>> ns.rot90(ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))).to_dense()
    tensor([[2., 3.],
            [1., 0.]])
    """
    first, second = (normalize_dim(d, input.ndim) for d in dims) if len(dims) == 2 else (0, 0)
    if first == second:
        raise SizeError(f"rot90 of dims {tuple(dims)}: name two different ones")
    if k % 4 == 0:
        return input.clone()
    if k % 4 == 2:
        return flip(input, first, second)
    return transpose(flip(input, second if k % 4 == 1 else first), first, second)


def repeat_interleave(input: SparseTensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None) -> Any:
    """Repeat each slice of a dimension; without ``dim``, repeat the entries of the flattened tensor.

    Args:
        input: a SparseTensor.
        repeats: the number of repeats, or one number for each slice.
        dim: the dimension.
        output_size: the size of the dimension in the result, if known.

    Returns:
        A SparseTensor that stores all copies.

    Raises:
        RangeError: the dimension does not exist.
        SizeError: the numbers of repeats and slices differ, a repeat is negative, ``output_size`` is wrong, or the result exceeds
            the memory limit.

    >>> import numscorch as ns
    >>> ns.repeat_interleave(ns.from_torch(torch.tensor([[0.0, 2.0]])), 2, 1).to_dense()
    tensor([[0., 0., 2., 2.]])
    """
    repeats = strided(repeats)
    if dim is None:
        return repeat_interleave(flatten(input), repeats, 0)
    size, counts = input.shape[normalize_dim(dim, input.ndim)], torch.as_tensor(repeats).reshape(-1)
    if len(counts) not in (1, size) or bool((counts < 0).any()):
        raise SizeError(f"repeat_interleave of {size} slices by {counts.tolist()}: give one number, or one for each slice")
    check_entries(size * int(counts) if len(counts) == 1 else int(counts.sum()), 1, 0, "the index", input.format, "repeat in parts")
    index = torch.repeat_interleave(torch.arange(size), counts.expand(size))
    if output_size not in (None, len(index)):
        raise SizeError(f"repeat_interleave gives {len(index)} slices, but output_size={output_size}: leave it out")
    return index_select(input, dim, index)


def triangle(input: SparseTensor, diagonal: int, lower: bool) -> SparseTensor:
    """The entries on and below (``lower``) or on and above a diagonal of the last two dimensions."""
    if input.ndim < 2:
        raise SizeError(f"tril and triu take matrices, not {input.ndim} dimensions")
    diagonal, is_inside = as_integer(diagonal), np.less_equal if lower else np.greater_equal
    return rearranged(input, ("triangle", diagonal, lower), input.shape, keep=lambda at: is_inside(at[-1] - at[-2], diagonal))


def diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of two dimensions, as the last dimension of the result.

    Args:
        input: a SparseTensor.
        offset: which diagonal: the entries with j - i == offset for the coordinates i of ``dim1`` and j of ``dim2``.
        dim1: the first dimension.
        dim2: the second dimension.

    Returns:
        A SparseTensor with one dimension fewer; a copy of the entries.

    Raises:
        OperandError: an argument is not an integer.
        RangeError: a dimension does not exist.
        SizeError: the dimensions are equal.

    >>> import numscorch as ns
    >>> ns.diagonal(ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]])), 1).to_dense()
    tensor([2.])
    """
    first, second = normalize_dim(dim1, input.ndim), normalize_dim(dim2, input.ndim)
    if first == second:
        raise SizeError(f"diagonal of dim {dim1} and dim {dim2}: give two different dimensions")
    length = max(min(input.shape[first] + min(offset, 0), input.shape[second] - max(offset, 0)), 0)
    other_dims = [d for d in range(input.ndim) if d not in (first, second)]
    return rearranged(
        input,
        ("diagonal", offset, first, second),
        [*(input.shape[d] for d in other_dims), length],
        lambda at: [*(at[d] for d in other_dims), np.minimum(at[first], at[second])],
        keep=lambda at: at[second] - at[first] == offset,
        order=False,
    )


def diag(input: SparseTensor, diagonal: int = 0) -> Any:
    """The diagonal of a matrix, or the sparse matrix with a vector on that diagonal.

    ``torch.diag`` of a dense vector is dense; convert the vector to a SparseTensor first.

    >>> import numscorch as ns
    >>> diag(ns.from_torch(torch.tensor([1.0, 2.0])))
    SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int32 indices)
    """
    if input.ndim not in (1, 2):
        raise SizeError(f"diag of a {input.ndim}-dimensional tensor: it takes vectors and matrices, diagonal() any")
    return input.diagonal(diagonal) if input.ndim == 2 else diag_embed(input, diagonal)


def diag_embed(input: SparseTensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Put the last dimension on a diagonal of matrices, which span the dimensions ``dim1`` and ``dim2`` of the result.

    Args:
        input: a SparseTensor.
        offset: which diagonal: the entries with j - i == offset for the coordinates i of ``dim1`` and j of ``dim2``.
        dim1: the first of the two dimensions in the result.
        dim2: the second of the two dimensions in the result.

    Returns:
        A SparseTensor with one dimension more; a copy of the entries.

    Raises:
        OperandError: an argument is not an integer.
        RangeError: a dimension does not exist.
        SizeError: the dimensions are equal.

    >>> import numscorch as ns
    >>> ns.diag_embed(ns.from_torch(torch.tensor([1.0, 2.0]))).to_dense()
    tensor([[1., 0.],
            [0., 2.]])
    """
    order = input.ndim + 1
    rows, columns = normalize_dim(dim1, order), normalize_dim(dim2, order)
    if rows == columns:
        raise SizeError(f"diag_embed in dim {dim1} and dim {dim2}: give two different dimensions")
    sizes = [*input.shape[:-1], *[input.shape[-1] + abs(offset)] * 2]
    places = np.argsort([*(d for d in range(order) if d not in (rows, columns)), rows, columns])  # result dimension -> index in sizes

    def move(at: list[np.ndarray]) -> list[np.ndarray]:
        moved = [*at[:-1], at[-1] + max(-offset, 0), at[-1] + max(offset, 0)]
        return [moved[place] for place in places]

    return rearranged(input, ("diag_embed", offset, rows, columns), [sizes[place] for place in places], move, order=False)


def trace(input: SparseTensor) -> Any:
    """The sum of the main diagonal of a matrix.

    Args:
        input: a sparse matrix; it may be rectangular.

    Returns:
        A dense tensor without dimensions.

    Raises:
        SizeError: the tensor is not a matrix.

    >>> import numscorch as ns
    >>> ns.trace(ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]])))
    tensor(4.)
    """
    if input.ndim != 2:
        raise SizeError(f"trace of a {input.ndim}-dimensional tensor: it takes matrices")
    return total(diagonal(input))


def kron(input: Any, other: Any) -> SparseTensor:
    """The Kronecker product of two tensors; all entries of a dense operand are stored, also zeros.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor, sparse or dense; its number of dimensions may differ.

    Returns:
        A SparseTensor whose sizes are the products of the sizes of both operands.

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: the result exceeds the memory limit.

    Complexity:
        O(stored entries of the result).

    >>> import numscorch as ns
    >>> ns.kron(ns.from_torch(torch.eye(2)), ns.from_torch(torch.ones(1, 2))).to_dense()
    tensor([[1., 1., 0., 0.],
            [0., 0., 1., 1.]])
    """
    left, right = (t if isinstance(t, SparseTensor) else from_torch(t, dense(t.ndim), copy=False) for t in (input, other))
    order = max(left.ndim, right.ndim)
    before, after = ((1,) * (order - t.ndim) + tuple(t.shape) for t in (left, right))
    shape = as_shape([a * b for a, b in zip(before, after, strict=True)])
    check_copies(left.nnz * right.nnz, shape, left)
    dtype = summing_dtype((*shape, *after))
    columns = ([column.astype(dtype, copy=False) for column in entry_columns(t.pattern)] for t in (left, right))
    first, second = (
        [*[np.zeros(entry_count(t.pattern), dtype)] * (order - t.ndim), *part] for t, part in zip((left, right), columns, strict=True)
    )
    indices = [np.add.outer(a * size, b).reshape(-1) for a, b, size in zip(first, second, after, strict=True)]
    values = values_of(left)[:, None] * values_of(right)[None, :]
    template = left if isinstance(input, SparseTensor) else right
    return assemble(indices, values.reshape(-1), shape, fitting(template, shape, True))


def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th difference along a dimension: each entry minus the previous one, n times.

    Args:
        input: a SparseTensor.
        n: how many times differences are computed.
        dim: the dimension.
        prepend: a tensor, sparse or dense, to concatenate in front of ``input`` first.
        append: a tensor, sparse or dense, to concatenate behind ``input`` first.

    Returns:
        A SparseTensor whose dimension ``dim`` is smaller by n.

    Raises:
        OperandError: n is not an integer.
        RangeError: the dimension does not exist, or n is negative.
        SizeError: sizes of other dimensions differ from those of ``prepend`` or ``append``.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0, 5.0]]))
    >>> ns.diff(A, prepend=A[:, :1]).to_dense()
    tensor([[0., 2., 3.]])
    """
    at = normalize_dim(dim, input.ndim)
    if n < 0:
        raise RangeError(f"diff with n={n}: give the number of differences, at least 0")
    if not n:
        return input
    parts = [part for part in (prepend, input, append) if part is not None]
    if len(parts) > 1:
        input = cat([part if isinstance(part, SparseTensor) else from_torch(part, copy=False) for part in parts], at)
    for length in reversed(range(max(input.shape[at] - n, 0), input.shape[at])):
        input = sub(input.narrow(at, input.shape[at] - length, length), input.narrow(at, 0, length))  # dense from a dense format
    return input


def svd_lowrank(A: Any, q: int | None = 6, niter: int | None = 2, M: Any = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The q largest singular values of a matrix, approximately, and their vectors; gradients flow to the values.

    The random numbers are those that torch.svd_lowrank draws.

    Args:
        A: a matrix of shape (m, n) with real or complex values.
        q: the number of singular values, somewhat larger than the rank of the matrix.
        niter: the number of subspace iterations.
        M: a matrix that is subtracted from ``A``, such as the means of its columns; it may have one row or one column.

    Returns:
        U of shape (m, q), S of shape (q,) and V of shape (n, q), so that ``U @ S.diag() @ V.mH`` approximates ``A - M``.

    Raises:
        UnsupportedError: ``A`` is not a matrix, or its values are integers or 16-bit floats.

    Complexity:
        O((stored entries + (m + n) * q) * q * niter).

    Source: Halko et al., "Finding structure with randomness", 2009, algorithm 5.1.

    >>> import numscorch as ns
    >>> U, S, V = ns.svd_lowrank(ns.from_torch(torch.diag(torch.tensor([3.0, 0.0, 2.0]))), q=2)
    >>> S.round()
    tensor([3., 2.])
    """
    _check_decomposable("svd_lowrank", A)
    adjoint = A.mH, None if M is None else torch.atleast_2d(M).mH
    if A.shape[-2] < A.shape[-1]:
        V, S, U = svd_lowrank(adjoint[0], q, niter, adjoint[1])
        return U, S, V
    X = torch.randn(A.shape[-1], 6 if q is None else q, dtype=A.dtype, device=A.device)
    Q = torch.linalg.qr(_difference_times(A, M, X)).Q
    for _ in range(2 if niter is None else niter):
        Q = torch.linalg.qr(_difference_times(*adjoint, Q)).Q
        Q = torch.linalg.qr(_difference_times(A, M, Q)).Q
    U, S, Vh = torch.linalg.svd(_difference_times(*adjoint, Q).mH, full_matrices=False)
    return Q @ U, S, Vh.mH


def _check_decomposable(name: str, A: Any) -> None:
    """Check that a tensor is a matrix, and that LAPACK's functions take its values.

    Raises:
        UnsupportedError: the tensor is not a matrix, or the values are integers or 16-bit floats.
    """
    if A.ndim != 2:
        raise UnsupportedError(f"{name} of a {A.ndim}-dimensional tensor: give a matrix, such as A[0] of a batch")
    if A.dtype not in LAPACK:
        raise UnsupportedError(f"{name} of {A.dtype} values: convert with .to(torch.float32)")


def _difference_times(A: Any, M: Any, X: torch.Tensor) -> torch.Tensor:
    """``(A - M) @ X``, without the difference."""
    if M is None:
        return A @ X
    return A @ X - M @ (X if M.shape[-1] == A.shape[-1] else X.sum(-2, keepdim=True))


def pca_lowrank(
    A: SparseTensor, q: int | None = None, center: bool = True, niter: int = 2
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The principal components of the rows of a matrix: ``svd_lowrank`` of the matrix minus the means of its columns.

    The difference is never stored.

    Args:
        A: a sparse matrix of shape (m, n) with real or complex values.
        q: the number of components; by default 6, or the smaller size of the matrix.
        center: False subtracts no means.
        niter: the number of subspace iterations.

    Returns:
        U of shape (m, q), S of shape (q,) and V of shape (n, q); the columns of V are the principal directions.

    Raises:
        RangeError: q exceeds the smaller size, or q or niter is negative.
        UnsupportedError: ``A`` is not a matrix, or its values are integers or 16-bit floats.

    >>> import numscorch as ns
    >>> U, S, V = ns.pca_lowrank(ns.from_torch(torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 5.0]])), q=1)
    >>> V.abs().round()
    tensor([[0.],
            [1.]])
    """
    _check_decomposable("pca_lowrank", A)
    smaller = min(A.shape)
    q = min(6, smaller) if q is None else q
    if not 0 <= q <= smaller or niter < 0:
        raise RangeError(f"pca_lowrank with q={q} and niter={niter}: q is at most {smaller}, the smaller size, and neither is negative")
    return svd_lowrank(A, q, niter, A.sum(-2, keepdim=True).to_dense() / A.shape[-2] if center else None)


def lobpcg(A: Any, k: int | None = None, B: Any = None, X: Any = None, n: int | None = None, iK: Any = None, **options: Any) -> Any:
    """Some of the largest or smallest eigenvalues of a symmetric matrix, and their vectors; calls torch.lobpcg with COO tensors.

    As for torch's sparse tensors, gradients are not supported: the backward pass raises ValueError.

    Args:
        A: a sparse symmetric matrix of shape (m, m).
        k: the number of eigenvalues; 1 by default.
        B: the matrix of a generalized eigenvalue problem, sparse or dense.
        X: a dense matrix of shape (m, n) with initial vectors.
        n: the number of random initial vectors, if ``X`` is not given.
        iK: a preconditioner of shape (m, m), sparse or dense.
        **options: ``largest``, ``niter``, ``tol``, ``method`` and the other options of torch.lobpcg.

    Returns:
        A tuple of dense tensors: eigenvalues of shape (k,) and vectors of shape (m, k).

    Raises:
        SizeError: the matrix is not square.
        UnsupportedError: ``A`` is not a matrix, or its values are integers or 16-bit floats.
        ValueError: m is smaller than 3 * k.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.diag(torch.tensor([1.0, 2.0, 4.0])))
    >>> values, vectors = ns.lobpcg(A, 1)
    >>> values.round()
    tensor([4.])
    """
    _check_decomposable("lobpcg", A)
    if A.shape[0] != A.shape[1]:
        raise SizeError(f"lobpcg of shape {tuple(A.shape)}: it takes symmetric matrices, torch.svd_lowrank takes any")
    matrices = [matrix.to(COO(2)).to_torch(copy=False) if isinstance(matrix, SparseTensor) else matrix for matrix in (A, B, iK)]
    return torch.lobpcg(matrices[0], k, matrices[1], X, n, matrices[2], **options)


CUMULATIVE = """The cumulative {what} along a dimension; dense, because unstored entries get values, too.

    Args:
        input: a SparseTensor or a sparse torch tensor; dense tensors go to torch's {name}.
        *args, **kwargs: ``dim``: the dimension.{more}

    Returns:
        {returned}

    Raises:
        IndexError: the dimension does not exist.
        OperandError: ``dim`` is missing, or an argument is unknown to torch's {name}.
        UnsupportedError: ``out`` is given, or within ``ns.strict()``.

    >>> A = ns.from_torch(torch.tensor([1.0, 0.0, 2.0]))
    >>> ns.{name}(A, 0)
    {shown}
    """
FLIP = """Reverse the order of the {what} of a matrix.

    Args:
        input: a SparseTensor.

    Returns:
        A SparseTensor with the shape of ``input``; a copy of the entries.

    Raises:
        RangeError: the tensor has too few dimensions.

    >>> ns.{name}(ns.from_torch(torch.tensor([[0.0, 1.0, 2.0]]))).to_dense()
    tensor([{shown}])
    """
TRIANGLE = """The entries on and {side} a diagonal of matrices; others are dropped.

    Args:
        input: a sparse matrix, or a batch of matrices.
        diagonal: the entries with j - i {relation} diagonal are kept, for row i and column j.

    Returns:
        A SparseTensor with the shape of ``input``; a copy of the entries.

    Raises:
        OperandError: the diagonal is not an integer.
        SizeError: the tensor has fewer than two dimensions.

    >>> ns.{name}(ns.from_torch(torch.ones(2, 2))).to_dense()
    tensor([{first},
            {second}])
    """
LAPACK = (torch.float32, torch.float64, torch.complex64, torch.complex128)  # data types that LAPACK computes with
OTHER: dict[str, Callable[..., Any]] = {
    **{
        name: of_dense(name, CUMULATIVE.format(name=name, what=what, returned=returned, more=more, shown=shown))
        for name, what, returned, more, shown in (
            ("cumsum", "sum", "A dense tensor.", " ``dtype``: the data type of the result.", "tensor([1., 1., 3.])"),
            ("cumprod", "product", "A dense tensor.", " ``dtype``: the data type of the result.", "tensor([1., 0., 0.])"),
            (
                "cummax",
                "maximum",
                "A named tuple of two dense tensors, ``values`` and ``indices``.",
                "",
                "torch.return_types.cummax(\n    values=tensor([1., 1., 2.]),\n    indices=tensor([0, 0, 2]))",
            ),
            (
                "cummin",
                "minimum",
                "A named tuple of two dense tensors, ``values`` and ``indices``.",
                "",
                "torch.return_types.cummin(\n    values=tensor([1., 0., 0.]),\n    indices=tensor([0, 1, 1]))",
            ),
            ("logcumsumexp", "logarithm of the sum of exponentials", "A dense tensor.", "", "tensor([1.0000, 1.3133, 2.4076])"),
        )
    },
    "diag": diag,
    "diag_embed": diag_embed,
    "diagonal": diagonal,
    "diff": diff,
    "flip": flip,
    "fliplr": with_name(lambda input: flip(input, 1), "fliplr", FLIP.format(name="fliplr", what="columns", shown="[2., 1., 0.]")),
    "flipud": with_name(lambda input: flip(input, 0), "flipud", FLIP.format(name="flipud", what="rows", shown="[0., 1., 2.]")),
    "kron": kron,
    "lobpcg": lobpcg,
    "pad": pad,
    "pca_lowrank": pca_lowrank,
    "repeat": repeat,
    "repeat_interleave": repeat_interleave,
    "roll": roll,
    "rot90": rot90,
    "svd_lowrank": svd_lowrank,
    "tile": tile,
    "trace": trace,
    "tril": with_name(
        lambda input, diagonal=0: triangle(input, diagonal, lower=True),
        "tril",
        TRIANGLE.format(name="tril", side="below", relation="<=", first="[1., 0.]", second="[1., 1.]"),
    ),
    "triu": with_name(
        lambda input, diagonal=0: triangle(input, diagonal, lower=False),
        "triu",
        TRIANGLE.format(name="triu", side="above", relation=">=", first="[1., 1.]", second="[0., 1.]"),
    ),
}
