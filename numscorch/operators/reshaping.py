"""Operators that change the shape: reshape, transpose, expand, squeeze and others, and ``rearrange`` with named dimensions.

All operators that move entries to other coordinates call ``rearranged``. The move depends on the pattern only and is cached
with it: repeated calls only gather values. Gradients flow to the values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_torch, packed
from ..convert.conversions import Conversion
from ..errors import RangeError, SizeError
from ..frontend.parser import Names, _place_of, parse_rearrangement, pointed
from ..ir.format import COO, CSR, Format
from ..ir.level import INT64_MAX
from ..ir.levels import Compressed, Dense, Singleton
from ..machine.memory import check_entries
from ..schedule import tuning
from ..tensors.arrays import as_integer, as_integers, as_shape
from ..tensors.modes import as_numpy, made_outside
from ..tensors.packing import entry_columns, entry_count, is_identity, numbered, positions_of, summing_dtype
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .naming import with_name

MOST_MOVES = 32  # moves cached per pattern
Packed = tuple[Pattern, np.ndarray | None, np.ndarray]  # the result of ``pack``; None for slots 0, 1, 2, ...


def rearranged(
    A: SparseTensor,
    key: Hashable,
    shape: Sequence[int],
    move: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda indices: indices,
    keep: Callable[[list[np.ndarray]], np.ndarray] | None = None,
    order: bool = True,
    copies: int = 1,
) -> Any:
    """Move a tensor's entries to the coordinates that ``move`` computes, in a tensor of another shape.

    Args:
        A: the tensor.
        key: identifies this move in the pattern's cache; None disables caching.
        shape: the result's shape; a result without dimensions is a strided tensor.
        move: maps coordinates, one array for each dimension, to new coordinates; it must not write to the arrays. Sums of two
            coordinates, of the tensor or of the result, do not overflow.
        keep: maps coordinates to a mask of those that are moved; all by default.
        order: whether the result has the dimensions of ``A`` in the same order, so that the format of ``A`` can be kept.
        copies: number of result entries for each entry of ``A``; all entries follow one another, and then their copies.

    Raises:
        SizeError: the copies exceed the memory limit, or a size exceeds int64.
    """
    shape = as_shape(shape)
    if copies > 1:
        check_copies(copies * A.nnz, shape, A)

    def build() -> Packed:
        dtype = summing_dtype((*A.shape, *shape))
        indices = [column.astype(dtype, copy=False) for column in entry_columns(A.pattern)]
        kept = None if keep is None else np.flatnonzero(keep(indices))
        places = move(indices if kept is None else [column.take(kept) for column in indices])
        listed = places or np.empty((0, entry_count(A.pattern)), dtype)
        target, slots, source = packed(listed, shape, fitting(A, shape, order), np.dtype(A.pattern.index_dtype))
        source = source if copies == 1 else source % max(entry_count(A.pattern), 1)
        return target, slots, positions_of(A.pattern, source if kept is None else kept.take(source))

    return rebuilt(A, key, shape, build)


def rebuilt(A: SparseTensor, key: Hashable, shape: tuple[int, ...], build: Callable[[], Packed]) -> Any:
    """Move a tensor's values to the pattern that ``build`` makes, with its slots and the positions of the values, as ``pack`` does.

    ``key`` identifies the move in the pattern's cache; None disables caching. A result without dimensions is a strided tensor.
    """

    def convert() -> Conversion:
        target, slots, source = build()
        is_full = slots is None or is_identity(slots, target.nnz)
        return Conversion(target, torch.from_numpy(source), None if is_full else torch.from_numpy(slots))

    moves: dict[Hashable, Conversion] = {} if key is None else A.pattern.remember("moves", dict)
    if key not in moves:
        if len(moves) >= MOST_MOVES:
            moves.clear()
        moves[key] = made_outside(convert)
    conversion = moves[key]
    values = conversion.tensor(A.values)
    return SparseTensor.trusted(conversion.pattern, values) if shape else sum_of(values)


def sum_of(values: torch.Tensor) -> torch.Tensor:
    """The entry of a tensor without dimensions: 0 if nothing is stored."""
    return values.any() if values.dtype == torch.bool else values.sum(dtype=values.dtype)


def check_copies(count: int, shape: Sequence[int], A: SparseTensor) -> None:
    """Refuse a result of ``count`` stored entries that exceeds the memory limit.

    Raises:
        SizeError: the message has the size and the limit.
    """
    suggestion = "copies are stored; an einsum over the original tensor needs none"
    check_entries(count, len(shape), A.dtype.itemsize, f"the result of shape {tuple(shape)}", A.format, suggestion)


def fitting(A: SparseTensor, shape: Sequence[int], order: bool) -> Format:
    """The format of a rearranged tensor: that of ``A`` if ``order`` is True and the format can store any entries, else CSR or COO.

    >>> import numscorch as ns
    >>> fitting(ns.from_torch(torch.eye(4), ns.BCSR(2, 2)), (4, 4), True).name, fitting(ns.from_torch(torch.eye(4)), (2, 2, 4), True).name
    ('CSR', 'COO(3)')
    """
    is_general = all(isinstance(level, Dense | Compressed | Singleton) and level.is_ordered for level in A.format.levels)
    if order and len(shape) == A.ndim and is_general and A.format.is_plain:
        return A.format
    return CSR if len(shape) == 2 and shape[0] <= tuning.COUNTED_COORDINATES * max(A.nnz, 1 << 10) else COO(len(shape))


def normalize_dim(dim: Any, ndim: int) -> int:
    """A dimension as a nonnegative number.

    Raises:
        OperandError: the dimension is not an integer.
        RangeError: the dimension does not exist.

    >>> normalize_dim(-1, 3)
    2
    """
    at = as_integer(dim)
    if not -ndim <= at < ndim:
        valid = f"give one from {-ndim} to {ndim - 1}" if ndim else "use A.reshape(1)"
        raise RangeError(f"dim={dim} of a {ndim}-dimensional tensor: {valid}")
    return at % ndim


def transpose(input: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    """Swap two dimensions; the result shares all arrays.

    Args:
        input: a SparseTensor.
        dim0: a dimension.
        dim1: the dimension to swap with it.

    Returns:
        A SparseTensor in the transposed format, such as CSC for CSR.

    Raises:
        OperandError: a dimension is not an integer.
        RangeError: a dimension does not exist.

    >>> import numscorch as ns
    >>> ns.transpose(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), 0, 1).to_dense()
    tensor([[0., 3.],
            [2., 4.]])
    """
    order, first, second = list(range(input.ndim)), normalize_dim(dim0, input.ndim), normalize_dim(dim1, input.ndim)
    order[first], order[second] = second, first
    return input.permute(*order)


def reshape(input: SparseTensor, *sizes: Any, shape: Sequence[int] | None = None) -> Any:
    """Reshape the tensor in row-major order.

    Args:
        input: a SparseTensor.
        *sizes: the sizes, as separate arguments or as one sequence; one size may be -1.
        shape: the sizes, if they are given by keyword.

    Returns:
        A SparseTensor; ``input`` itself if it has the shape, and a dense tensor for a shape without dimensions.

    Raises:
        SizeError: the number of entries would change, or exceeds int64.

    Complexity:
        O(nnz log nnz) for the first call, and O(nnz) for later ones with the same pattern and shape.

    >>> import numscorch as ns
    >>> ns.reshape(ns.from_torch(torch.eye(2)), 4).to_dense()
    tensor([1., 0., 0., 1.])
    """
    target = complete_sizes(sizes if shape is None else (shape,), input.shape)
    if target == tuple(input.shape):
        return input
    before, after = ([size for size in shape_ if size != 1] for shape_ in (input.shape, target))
    if before != after and prod(before) > INT64_MAX:
        raise SizeError(f"reshape of {tuple(input.shape)} to {target}: it has more elements than int64 can count")

    def move(indices: list[np.ndarray]) -> list[np.ndarray]:
        if before != after:  # else only dimensions of size 1 are added or removed
            return unraveled(as_numpy(numbered(list(map(torch.from_numpy, indices)), input.shape)), target)
        moved = (column for column, size in zip(indices, input.shape, strict=True) if size != 1)
        return [next(moved) if size != 1 else np.zeros(entry_count(input.pattern), np.int32) for size in target]

    return rearranged(input, ("reshape", target), target, move, order=False)


def complete_sizes(sizes: tuple[Any, ...], before: Sequence[int]) -> tuple[int, ...]:
    """The sizes of a reshape, with -1 replaced.

    Raises:
        SizeError: the number of entries would change.

    >>> complete_sizes((2, -1), (4, 3))
    (2, 6)
    """
    target, numel = list(as_integers(*sizes)), prod(before)
    if target.count(-1) == 1:
        known = prod(s for s in target if s != -1)
        target[target.index(-1)] = numel // known if known else 0
    if prod(target) != numel or min(target, default=0) < 0:
        raise SizeError(f"a tensor of shape {tuple(before)} can't have the shape {tuple(target)}: it has {numel} entries")
    return tuple(target)


def unraveled(number: np.ndarray, shape: Sequence[int]) -> list[np.ndarray]:
    """The coordinates of row-major indices, one array for each dimension."""
    columns, dtype = list[np.ndarray](), summing_dtype(shape)
    for size in reversed(shape[1:]):
        above = number // max(size, 1)
        columns.insert(0, (number - above * size).astype(dtype, copy=False))
        number = above
    return [number.astype(dtype, copy=False), *columns][: len(shape)]


def flatten(input: SparseTensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge the dimensions from ``start_dim`` to ``end_dim``, in row-major order.

    Args:
        input: a SparseTensor.
        start_dim: the first merged dimension.
        end_dim: the last merged dimension.

    Returns:
        A SparseTensor; a vector by default.

    Raises:
        RangeError: a dimension does not exist.
        SizeError: ``start_dim`` comes after ``end_dim``.

    >>> import numscorch as ns
    >>> ns.flatten(ns.from_torch(torch.eye(2))).to_dense()
    tensor([1., 0., 0., 1.])
    """
    if not input.ndim:
        input = reshape(input, 1)
    first, last = normalize_dim(start_dim, input.ndim), normalize_dim(end_dim, input.ndim)
    if first > last:
        raise SizeError(f"flatten from dim {start_dim} to {end_dim}: start_dim comes after end_dim")
    return reshape(input, (*input.shape[:first], prod(input.shape[first : last + 1]), *input.shape[last + 1 :]))


def squeeze(input: SparseTensor, dim: int | Sequence[int] | None = None) -> Any:
    """Remove dimensions of size 1.

    Args:
        input: a SparseTensor.
        dim: a dimension or a tuple of dimensions, of which those with size 1 are removed; all by default.

    Returns:
        A SparseTensor, or a dense tensor if no dimensions remain.

    Raises:
        RangeError: a dimension does not exist.

    >>> import numscorch as ns
    >>> ns.squeeze(ns.from_torch(torch.tensor([[0.0, 2.0]]))).to_dense()
    tensor([0., 2.])
    """
    named = range(input.ndim) if dim is None else as_integers(dim)
    squeezed = {normalize_dim(d, input.ndim) for d in named}
    return reshape(input, [size for at, size in enumerate(input.shape) if at not in squeezed or size != 1])


def unsqueeze(input: SparseTensor, dim: int) -> Any:
    """Insert a dimension of size 1.

    Args:
        input: a SparseTensor.
        dim: the position of the new dimension in the result.

    Returns:
        A SparseTensor with one dimension more.

    Raises:
        RangeError: the position does not exist.

    >>> import numscorch as ns
    >>> ns.unsqueeze(ns.from_torch(torch.tensor([0.0, 2.0])), 0).to_dense()
    tensor([[0., 2.]])
    """
    sizes = list(input.shape)
    sizes.insert(normalize_dim(dim, input.ndim + 1), 1)
    return reshape(input, sizes)


def expand(input: SparseTensor, *sizes: Any) -> Any:
    """Repeat the tensor along dimensions of size 1 and along new leading ones; every copy is stored.

    Args:
        input: a SparseTensor.
        *sizes: the sizes of the result, as separate arguments or as one sequence; -1 keeps a size.

    Returns:
        A SparseTensor.

    Raises:
        SizeError: a size other than 1 would change, or the result exceeds the memory limit.

    Complexity:
        O(stored entries of the result).

    >>> import numscorch as ns
    >>> ns.broadcast_to(ns.from_torch(torch.tensor([0.0, 2.0])), (2, 2)).to_dense()
    tensor([[0., 2.],
            [0., 2.]])
    """
    target = as_integers(*sizes)
    extents = (1,) * (len(target) - input.ndim) + tuple(input.shape)
    target = tuple(size if new == -1 else new for size, new in zip(extents, target, strict=False))
    if len(target) < input.ndim or any(size not in (1, new) or new < 0 for size, new in zip(extents, target, strict=True)):
        raise SizeError(f"a tensor of shape {tuple(input.shape)} can't be expanded to {target}: only sizes of 1 grow")
    return copied(input, tuple(new if size != new else 1 for size, new in zip(extents, target, strict=True)))


def copied(input: SparseTensor, times: tuple[int, ...]) -> Any:
    """Tile the entries along each dimension; extra numbers at the front add leading dimensions."""
    added, count = len(times) - input.ndim, prod(times)
    extents = (1,) * added + tuple(input.shape)

    def move(indices: list[np.ndarray]) -> list[np.ndarray]:
        full = [*[np.zeros(entry_count(input.pattern), np.int32)] * added, *indices]
        dtype = summing_dtype([size * n for size, n in zip(extents, times, strict=True)])
        steps = (step.astype(dtype, copy=False) * size for step, size in zip(unraveled(np.arange(count), times), extents, strict=True))
        return [np.add.outer(step, column).reshape(-1) for column, step in zip(full, steps, strict=True)]

    return rearranged(input, ("copied", times), [size * n for size, n in zip(extents, times, strict=True)], move, copies=count)


def movedim(input: SparseTensor, source: Any, destination: Any) -> SparseTensor:
    """Move dimensions to other positions; the other dimensions keep their order, and the result shares all arrays.

    Args:
        input: a SparseTensor.
        source: a dimension, or a sequence of dimensions.
        destination: the position in the result, or one for each dimension.

    Returns:
        A SparseTensor whose format stores the same levels in another mode order.

    Raises:
        RangeError: a dimension does not exist.
        SizeError: the numbers of dimensions and positions differ, or one is repeated.

    >>> import numscorch as ns
    >>> ns.movedim(ns.from_torch(torch.ones(2, 3, 4)), 0, 2).shape
    torch.Size([3, 4, 2])
    """
    before, after = ([normalize_dim(d, input.ndim) for d in as_integers(dims_)] for dims_ in (source, destination))
    if len(before) != len(after) or len(set(before)) < len(before) or len(set(after)) < len(after):
        raise SizeError(f"movedim from {source} to {destination}: give equally many distinct dimensions")
    remaining = iter([d for d in range(input.ndim) if d not in before])
    return input.permute(*(before[after.index(d)] if d in after else next(remaining) for d in range(input.ndim)))


def unflatten(input: SparseTensor, dim: int, sizes: Sequence[int]) -> Any:
    """Split one dimension into several.

    Args:
        input: a SparseTensor.
        dim: the dimension.
        sizes: the sizes of the new dimensions; one may be -1.

    Returns:
        A SparseTensor.

    Raises:
        RangeError: the dimension does not exist.
        SizeError: the product of the sizes is not the dimension's size.

    >>> import numscorch as ns
    >>> ns.unflatten(ns.from_torch(torch.tensor([0.0, 2.0, 3.0, 0.0])), 0, (2, -1)).to_dense()
    tensor([[0., 2.],
            [3., 0.]])
    """
    at = normalize_dim(dim, input.ndim)
    parts = complete_sizes((sizes,), input.shape[at : at + 1])
    return reshape(input, (*input.shape[:at], *parts, *input.shape[at + 1 :]))


def _at_least(order: int, shape: str) -> Callable[..., Any]:
    def grown(input: Any) -> Any:
        if isinstance(input, torch.Tensor) and input.layout is not torch.strided:
            input = from_torch(input, copy=False)
        shape = (1,) * (min(order, 2) - input.ndim) + tuple(input.shape)  # the first two are added at the front, the third at the end
        return input.reshape(shape + (1,) * (order - len(shape)))

    def at_least(*tensors: Any) -> Any:
        if len(tensors) == 1 and not isinstance(tensors[0], list | tuple):
            return grown(tensors[0])
        return tuple(map(grown, tensors[0] if len(tensors) == 1 else tensors))

    return with_name(
        at_least,
        f"atleast_{order}d",
        f"""Add dimensions of size 1 to tensors that have fewer than {order}.

    The first two dimensions are added at the front, and the third one at the end.

    Args:
        *tensors: tensors, sparse or dense; or one list of tensors.

    Returns:
        A tensor of the same kind, or a tuple of tensors if several are given.

    Raises:
        OperandError: an argument is not a tensor.

    >>> ns.atleast_{order}d(ns.from_torch(torch.tensor([0.0, 2.0]))).shape
    torch.Size({shape})
    """,
    )


def _shaped_as(name: str) -> Callable[..., Any]:
    def as_other(input: Any, other: Any) -> Any:
        return getattr(input, name)(tuple(other.shape))

    return with_name(as_other, f"{name}_as", f"{name} to the shape of another tensor; either tensor may be sparse.")


def rearrange(tensor: Any, pattern: str, /, **sizes: int) -> Any:
    """Permute, join or split a tensor's dimensions, or repeat the tensor along new ones.

    ``"bd->bnd"`` names dimensions by letters, as einsum does; ``"batch (h w) -> batch h w"`` names them by words with spaces
    between, as einops does. Parentheses join names to one dimension, ``1`` is a dimension of size 1, and ``...`` stands for
    unnamed dimensions. The tensor is repeated along names that occur only on the right.

    Args:
        tensor: a strided tensor, a SparseTensor, or a sparse torch tensor.
        pattern: the names of the dimensions before and after.
        sizes: sizes of new names, and of joined names whose sizes the tensor's shape leaves open.

    Returns:
        A strided tensor, a view if the strides allow it, or a sparse tensor in a suitable format; repeated entries are stored
        individually. O(result) for sparse tensors. Gradients flow to the tensor.

    Raises:
        ExpressionError: the pattern is invalid, does not match the tensor's dimensions, or leaves a size open.
        SizeError: sizes disagree.

    >>> rearrange(torch.tensor([[1, 2, 3]]), "bd->bnd", n=2)
    tensor([[[1, 2, 3],
             [1, 2, 3]]])
    >>> import numscorch as ns
    >>> rearrange(ns.from_torch(torch.eye(4)), "(block row) column -> block row column", block=2)
    SparseTensor(COO(3), shape=(2, 2, 4), nnz=4, density=0.25, float32, int32 indices)
    """
    if torch.compiler.is_compiling():
        from ..programs.torch_compile import dimensions_of  # deferred: it imports torch's compiler

        before, after = dimensions_of(pattern, tensor.ndim, tuple(sizes))
    else:
        before, after = parse_rearrangement(pattern, tensor.ndim, tuple(sizes))
    known = _sizes_of_names(pattern, before, tuple(tensor.shape), sizes)
    first, last = tuple(chain(*before)), tuple(chain(*after))
    result = tensor.reshape([known[name] for name in first])
    result = result.permute([first.index(name) for name in last if name in first])
    if len(last) > len(first):
        full = [known[name] for name in last]
        result = result.reshape([size if name in first else 1 for name, size in zip(last, full, strict=True)]).expand(full)
    return result.reshape([prod([known[name] for name in group]) for group in after])


def _sizes_of_names(text: str, before: Iterable[Names], shape: tuple[int, ...], sizes: Mapping[str, int]) -> dict[str, int]:
    """The size of each name: given, or derived from its dimension."""
    known = dict(zip(sizes, as_shape(tuple(sizes.values())), strict=True))
    for at, (group, size) in enumerate(zip(before, shape, strict=True)):
        unknown, known_product = [name for name in group if name not in known], prod([known[name] for name in group if name in known])
        if len(unknown) == 1 and known_product and size % known_product == 0:
            known[unknown[0]] = size // known_product
        if len(unknown) > 1:
            raise pointed(
                text,
                _place_of(text, unknown[1]),
                f"the parts of dimension {at}, size {size}, are ambiguous: give {unknown[0]}= or {unknown[1]}=",
            )
        if any(name not in known for name in group) or prod([known[name] for name in group]) != size:
            known_sizes = ", ".join(f"{name}={known[name]}" for name in group if name in known) or "1"
            raise SizeError(f"dimension {at} has size {size}, which does not fit {known_sizes}\n  {text}")
    return known


RESHAPING: dict[str, Callable[..., Any]] = {
    "atleast_1d": _at_least(1, "[2]"),
    "atleast_2d": _at_least(2, "[1, 2]"),
    "atleast_3d": _at_least(3, "[1, 2, 1]"),
    "broadcast_to": expand,
    "expand": expand,
    "expand_as": _shaped_as("expand"),
    "flatten": flatten,
    "moveaxis": movedim,
    "movedim": movedim,
    "permute": with_name(
        lambda input, *dims, **named: input.permute(*dims, **named),
        "permute",
        """Permute the dimensions; the result shares all arrays.

    Args:
        input: a SparseTensor.
        *dims: the dimensions in their new order, as separate arguments or as one sequence.
        **named: ``dims``, if the order is given by keyword.

    Returns:
        A SparseTensor whose format stores the same levels in another mode order.

    Raises:
        OperandError: a dimension is not an integer.
        RangeError: the order does not name each dimension once.

    >>> ns.permute(ns.from_torch(torch.ones(2, 3, 4)), (2, 0, 1)).shape
    torch.Size([4, 2, 3])
    """,
    ),
    "ravel": flatten,
    "rearrange": rearrange,
    "reshape": reshape,
    "reshape_as": _shaped_as("reshape"),
    "squeeze": squeeze,
    "swapaxes": transpose,
    "swapdims": transpose,
    "t": with_name(
        lambda input: input.t(),
        "t",
        """Transpose a matrix; the result shares all arrays. Vectors keep their shape.

    Args:
        input: a SparseTensor with at most two dimensions.

    Returns:
        A SparseTensor in the transposed format, such as CSC for CSR.

    Raises:
        SizeError: the tensor has more than two dimensions.

    >>> ns.t(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))).to_dense()
    tensor([[0., 3.],
            [2., 4.]])
    """,
    ),
    "transpose": transpose,
    "unflatten": unflatten,
    "unsqueeze": unsqueeze,
    "view": reshape,
    "view_as": _shaped_as("view"),
}
