"""torch's joining and splitting operators: stack, cat, block_diag, split and others; patterns of the tensors may differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from operator import and_
from typing import Any

import numpy as np
import torch

from ..convert.construct import assemble, from_torch
from ..convert.conversions import are_few, is_wide_enough, shares
from ..convert.matrices import CSR_LEVELS
from ..convert.values import values_of
from ..errors import OperandError, SizeError, UnsupportedError
from ..frontend.datatypes import result_type
from ..ir.format import COO, Format
from ..ir.implicit import Band, Causal, Identity, Offset, Range
from ..ir.levels import Compressed, Dense, Singleton
from ..ir.padded import Bitmap, Fixed
from ..ir.parts import Part
from ..machine.buffer_pool import room
from ..tensors.arrays import as_shape
from ..tensors.modes import as_numpy
from ..tensors.packing import entry_columns, index_dtype_for
from ..tensors.pattern import Pattern
from ..tensors.restriction import Numbers, has_fibres
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import COMPRESSED
from .indexing import narrow, select, select_coordinates
from .naming import with_name
from .reshaping import RESHAPING, check_copies, fitting, normalize_dim, unsqueeze

# levels whose arrays can be concatenated below a dense level; pos arrays are offset
JOINED = (Dense, Compressed, Singleton, Fixed, Bitmap, Band, Causal, Identity, Offset, Range)


def stack(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Stack tensors of one shape along a new dimension.

    The result's format has a dense level for the new dimension in front of the tensors' levels, so patterns and entry counts may
    differ. Tensors in other formats are converted to the format of the first one. Data types are promoted as in ``torch.stack``.
    Gradients flow to the values.

    Args:
        tensors: SparseTensors and sparse torch tensors of one shape; ELL tensors may differ in width.
        dim: the position of the new dimension.
        out: a strided tensor that receives the result of ``torch.stack``, if no tensor is sparse.

    Returns:
        A SparseTensor with one more dimension. If all tensors are torch's, the result is one of torch's: a strided or COO tensor from
        ``torch.stack``, or a COO tensor for CSR, CSC, BSR and BSC tensors, which ``torch.stack`` doesn't support.

    Raises:
        SizeError: the shapes differ.
        RangeError: ``dim`` is out of range.
        OperandError: ``dim`` is not an integer, or a single tensor is given instead of a list.
        UnsupportedError: a tensor is strided although others are sparse, or ``out`` is given for sparse tensors.

    Complexity:
        O(nnz) of all tensors.

    >>> import numscorch as ns
    >>> graphs = [ns.from_torch(torch.eye(3)), ns.from_torch(torch.ones(3, 3))]
    >>> ns.stack(graphs)
    SparseTensor(dds, shape=(2, 3, 3), nnz=12, density=0.667, float32, int32 indices)
    >>> ns.einsum("bij,bj->bi", ns.stack(graphs), torch.ones(2, 3))
    tensor([[1., 1., 1.],
            [3., 3., 3.]])
    """
    tensors = _listed("stack", tensors)
    has_sparse = any(isinstance(tensor, SparseTensor) for tensor in tensors)
    if not has_sparse and not any(isinstance(tensor, torch.Tensor) and tensor.layout in COMPRESSED for tensor in tensors):
        return torch.stack(tensors, dim) if out is None else torch.stack(tensors, dim, out=out)
    if out is not None:
        raise UnsupportedError("out can't hold stacked sparse tensors, whose pattern is new: use the returned tensor")
    parts = [_sparse(tensor, at) for at, tensor in enumerate(tensors)]
    for at, part in enumerate(parts):
        if part.shape != parts[0].shape:
            raise SizeError(
                f"tensor {at} of the stack has shape {tuple(part.shape)}, but tensor 0 has {tuple(parts[0].shape)}: "
                "all must have the same shape"
            )
    order = parts[0].ndim + 1
    stacked = _stack_one_format(_unify_formats(parts), normalize_dim(dim, order))
    return stacked if has_sparse else stacked.to(COO(order)).to_torch(copy=False)


def _listed(name: str, tensors: Any) -> list[Any]:
    """The tensors of a list.

    Raises:
        OperandError: a single tensor is given, whose rows would be taken.
    """
    if isinstance(tensors, torch.Tensor | SparseTensor):
        raise OperandError(f"{name} takes a list of tensors: write {name}([A, B]), not {name}(A, B)")
    return list(tensors)


def _sparse(tensor: Any, at: int) -> SparseTensor:
    if isinstance(tensor, SparseTensor):
        return tensor
    if not isinstance(tensor, torch.Tensor) or tensor.layout is torch.strided:
        kind = "a dense tensor" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise UnsupportedError(
            f"tensor {at} of the stack is {kind}, but others are sparse: make it sparse with ns.from_torch(tensor, format)"
        )
    return from_torch(tensor, copy=False)


def _unify_formats(tensors: Sequence[SparseTensor]) -> Sequence[SparseTensor]:
    """Convert the tensors to one format: the first one's if it can store any entries, else COO; fixed levels get the largest width."""
    first, *others = formats = list(dict.fromkeys(tensor.format for tensor in tensors))
    if not others:
        return tensors
    if len(set(map(_of_any_width, formats))) > 1:
        return [tensor.to(common_format(first)) for tensor in tensors]
    levels = zip(*(format.levels for format in formats), strict=True)
    widest = Format([max(alike, key=lambda level: getattr(level, "width", 0) or 0) for alike in levels], first.parts)
    return [tensor.to(widest) for tensor in tensors]


def common_format(format: Format) -> Format:
    """The format, or COO if its levels cannot store any entries."""
    return format if all(isinstance(level, Dense | Compressed | Singleton) for level in format.levels) else COO(format.order)


def _of_any_width(format: Format) -> Format:
    return Format([replace(level, width=None) if isinstance(level, Fixed) else level for level in format.levels], format.parts)


def _stack_one_format(tensors: Sequence[SparseTensor], dim: int) -> SparseTensor:
    inner = tensors[0].format
    places = [d + (d >= dim) for d in range(inner.order)]
    format = Format([Dense(), *inner.levels], [Part(dim), *(part.moved(places) for part in inner.parts)])
    shape = (*tensors[0].shape[:dim], len(tensors), *tensors[0].shape[dim:])
    count = sum(tensor.nnz for tensor in tensors)
    check_copies(count, shape, tensors[0])
    if not all(isinstance(level, JOINED) for level in inner.levels):
        return join_entries([unsqueeze(tensor, dim) for tensor in tensors], (dim,), format)
    patterns = [tensor.pattern for tensor in tensors]
    dtype = index_dtype_for(format.sizes(shape), count, max(pattern.index_dtype for pattern in patterns)).name
    arrays = (_concatenate_level(patterns, at, dtype, np.zeros(len(patterns), np.int64)) for at in range(len(inner.levels)))
    return SparseTensor(Pattern(format, shape, ((), *arrays)), torch.cat([tensor.values for tensor in tensors]))


def _concatenate_level(patterns: Sequence[Pattern], at: int, dtype: str, shifts: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Concatenate the arrays of one level; coordinates are shifted by one number for each pattern."""
    level = patterns[0].format.levels[at]
    results = []
    for number, name in enumerate(level.arrays):
        arrays, added = [as_numpy(pattern.arrays[at][number]) for pattern in patterns], shifts
        if name == "pos":  # each array starts at the end of the previous one
            added = np.cumsum([0, *(pattern.counts[at] for pattern in patterns)])
            arrays = [*(pos[:-1] for pos in arrays), np.zeros(1, np.int64)]
        ends = np.cumsum([len(array) for array in arrays])
        joined = room(int(ends[-1]), level.array_dtype(name) or dtype)
        for array, shift, end in zip(arrays, added, ends, strict=True):
            np.add(array, shift, out=joined[end - len(array) : end], dtype=joined.dtype, casting="unsafe")
        results.append(torch.from_numpy(joined))
    return tuple(results)


# ---- concatenation and splitting


def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate sparse tensors along a dimension.

    The result has the format of the first tensor if this format can store any entries, and CSR or COO otherwise.
    Data types are promoted. As in torch, tensors of shape (0,) are skipped.

    Args:
        tensors: a list of SparseTensors and sparse torch tensors of any formats.
        dim: the dimension.

    Returns:
        A SparseTensor.

    Raises:
        OperandError: a single tensor is given instead of a list.
        RangeError: the dimension does not exist.
        SizeError: sizes of other dimensions differ, or the result exceeds the memory limit.
        UnsupportedError: a tensor is dense.

    Complexity:
        O(arrays of the operands) if all levels above the first one that grows are dense; else entries are sorted.

    >>> import numscorch as ns
    >>> ns.cat([ns.from_torch(torch.eye(2)), ns.from_torch(torch.ones(1, 2))]).to_dense()
    tensor([[1., 0.],
            [0., 1.],
            [1., 1.]])
    """
    tensors = _listed("cat", tensors)
    if any(isinstance(t, torch.Tensor) and t.layout is torch.strided for t in tensors):
        raise UnsupportedError("cat of sparse and dense tensors: convert one with .to_dense(), or with ns.from_torch")
    every = [t if isinstance(t, SparseTensor) else from_torch(t, copy=False) for t in tensors]
    parts = [t for t in every if tuple(t.shape) != (0,)] or every[:1]
    first = parts[0]
    at = normalize_dim(dim, first.ndim)
    if len({(*t.shape[:at], None, *t.shape[at + 1 :]) for t in parts}) > 1:
        raise SizeError(f"cat along dim {dim} of shapes {', '.join(str(tuple(t.shape)) for t in parts)}: other sizes differ")
    dtype = result_type((t.dtype, 1) for t in every)
    return join_entries([t.to(dtype) for t in parts], (at,))


def join_entries(tensors: Sequence[SparseTensor], dims: Sequence[int], format: Format | None = None) -> SparseTensor:
    """Place each tensor behind the previous one along all dimensions in ``dims``; by default in a format that fits the first tensor.

    Raises:
        SizeError: the result exceeds the memory limit, or a size exceeds int64.
    """
    first = tensors[0]
    shape = as_shape([sum(t.shape[d] for t in tensors) if d in dims else size for d, size in enumerate(first.shape)])
    count = sum(t.nnz for t in tensors)
    check_copies(count, shape, first)
    target = fitting(first, shape, True) if format is None else format
    above = [d in dims for d in target.mode_order].index(True)  # the levels above the first one that grows
    is_interleaved = prod(target.sizes(shape)[:above]) > 1
    if not (is_interleaved and are_few(count)):
        if joins_levels(target, dims) and is_wide_enough(target, shape):
            return _join_levels([t.to(target) for t in tensors], dims, shape)
        by_rows = Format(CSR_LEVELS, target.parts) if target.is_plain and len(shape) == 2 else target
        if by_rows != target and shares(target, by_rows, shape, count):  # COO and DCSR along the inner dimension
            return join_entries(tensors, dims, by_rows).to(target)
    dtype, listed = index_dtype_for(shape, 0), zip(*(entry_columns(t.pattern) for t in tensors), strict=True)
    starts = ([*accumulate((t.shape[d] * (d in dims) for t in tensors[:-1]), initial=0)] for d in range(first.ndim))
    places = [
        np.concatenate([part.astype(dtype, copy=False) + start for part, start in zip(*along, strict=True)])
        for along in zip(listed, starts, strict=True)
    ]
    return assemble(places, torch.cat([values_of(t) for t in tensors]), shape, target)


def joins_levels(format: Format, dims: Sequence[int]) -> bool:
    """Whether tensors can be joined level by level: of the levels that grow, only the first may be, and all above it are, dense.

    >>> import numscorch as ns
    >>> joins_levels(ns.CSR, (0,)), joins_levels(ns.CSR, (1,)), joins_levels(ns.COO(2), (0, 1)), joins_levels(ns.COO(2), (1,))
    (True, True, True, False)
    """
    grows = [d in dims for d in format.mode_order]
    at = grows.index(True)
    is_dense = [isinstance(level, Dense) for level in format.levels]
    return has_fibres(format) and all(is_dense[:at]) and not any(map(and_, grows[at + 1 :], is_dense[at + 1 :]))


def _join_levels(tensors: Sequence[SparseTensor], dims: Sequence[int], shape: tuple[int, ...]) -> SparseTensor:
    """Join tensors of one format: concatenate each level, then interleave the parents of the first level that grows."""
    format, patterns = tensors[0].format, [t.pattern for t in tensors]
    extents, values = [format.sizes(t.shape) for t in tensors], torch.cat([t.values for t in tensors])
    at = next(at for at, d in enumerate(format.mode_order) if d in dims)
    above, first = prod(extents[0][:at]), at + isinstance(format.levels[at], Dense)
    dtype = index_dtype_for(format.sizes(shape), len(values)).name
    arrays: list[tuple[torch.Tensor, ...]] = [()]
    for below in range(first, len(format.levels)):
        grown = np.array([sizes[below] * (format.mode_order[below] in dims) for sizes in extents], np.int64)
        arrays.append(_concatenate_level(patterns, below, dtype, np.cumsum(grown) - grown))
    widths = [sizes[at] if first > at else 1 for sizes in extents]
    parents: Numbers = range(above * sum(widths))
    if above > 1:
        blocks = np.split(np.arange(len(parents)), above * np.cumsum(widths)[:-1])
        parents = np.concatenate([block.reshape(above, width) for block, width in zip(blocks, widths, strict=True)], axis=1).reshape(-1)
    sizes = (len(parents), *format.sizes(shape)[first:])
    joined = SparseTensor.trusted(Pattern(Format.flat((Dense(), *format.levels[first:])), sizes, tuple(arrays), dtype), values)
    if above > 1:
        joined = select_coordinates(joined, [parents, *map(range, sizes[1:])])
    _, *arrays = joined.pattern.arrays
    if first == at:
        arrays[0] = (arrays[0][0][:: len(tensors)].clone(), *arrays[0][1:])
    return SparseTensor.trusted(Pattern(format, shape, (*((),) * first, *arrays), dtype), joined.values)


def _concatenation(name: str, form: Callable[[Any], Any], dim: int, what: str, shape: str) -> Callable[..., Any]:
    """An operator that concatenates ``form(tensor)`` of each tensor along ``dim``, or along the last dimension if there are fewer."""

    def concatenation(tensors: Sequence[Any]) -> Any:
        parts = [form(t) for t in _listed(name, tensors)]
        return cat(parts, min(dim, parts[0].ndim - 1))

    return with_name(
        concatenation,
        name,
        f"""Concatenate sparse tensors {what}.

    Args:
        tensors: a list of SparseTensors and sparse torch tensors of any formats.

    Returns:
        A SparseTensor.

    Raises:
        OperandError: a single tensor is given instead of a list.
        SizeError: sizes of other dimensions differ, or the result exceeds the memory limit.
        UnsupportedError: a tensor is dense.

    >>> v = ns.from_torch(torch.tensor([0.0, 2.0]))
    >>> ns.{name}([v, v]).shape
    torch.Size({shape})
    """,
    )


def block_diag(*tensors: Any) -> SparseTensor:
    """A matrix with the given matrices along its diagonal.

    The result has the format of the first sparse matrix if this format can store any entries, and COO otherwise.

    Args:
        *tensors: tensors with at most two dimensions, at least one of them sparse; vectors and single numbers count as rows.

    Returns:
        A SparseTensor.

    Raises:
        OperandError: an argument is not a tensor.
        SizeError: a tensor has more than two dimensions.

    >>> import numscorch as ns
    >>> ns.block_diag(ns.from_torch(torch.ones(1, 2)), torch.full((1, 1), 5.0)).to_dense()
    tensor([[1., 1., 0.],
            [0., 0., 5.]])
    """
    if not all(isinstance(tensor, torch.Tensor | SparseTensor) for tensor in tensors):
        raise OperandError("block_diag takes each tensor as an argument: write block_diag(*tensors) for a list of tensors")
    first = next(tensor for tensor in tensors if isinstance(tensor, SparseTensor))
    return join_entries([_matrix(tensor) for tensor in tensors], (0, 1), common_format(first.format) if first.ndim == 2 else COO(2))


def _matrix(tensor: Any) -> SparseTensor:
    """Convert a tensor of at most two dimensions to a sparse matrix."""
    if tensor.ndim > 2:
        raise SizeError(f"block_diag of a {tensor.ndim}-dimensional tensor: it takes matrices, vectors and numbers")
    if tensor.ndim < 2:
        tensor = tensor.reshape(1, -1)
    return tensor if isinstance(tensor, SparseTensor) else from_torch(tensor, copy=False)


def _split(name: str, input: SparseTensor, sections: Any, dim: int) -> tuple[Any, ...]:
    """Split a dimension into the parts that torch makes of a tensor of this size on the meta device.

    Raises:
        SizeError: torch refuses the sizes or the number of parts.
    """
    at = normalize_dim(dim, input.ndim)
    example = torch.empty([size if d == at else 1 for d, size in enumerate(input.shape)], device="meta")
    try:
        parts = getattr(torch, name)(example, sections, *(() if name in ("hsplit", "vsplit") else (at,)))
    except RuntimeError as error:
        raise SizeError(f"{name} along dim {dim}, of size {input.shape[at]}: {error}") from error
    return tuple(narrow(input, at, part.storage_offset(), part.shape[at]) for part in parts)


def split(tensor: SparseTensor, split_size_or_sections: Any = None, dim: int = 0, *, split_size: Any = None) -> tuple[Any, ...]:
    """Split a dimension into parts of one size, with a smaller last part if necessary, or into parts of the listed sizes.

    Args:
        tensor: a SparseTensor.
        split_size_or_sections: the size of the parts, or a list of sizes.
        dim: the dimension.
        split_size: another name of ``split_size_or_sections``, as in torch.Tensor.split.

    Returns:
        A tuple of SparseTensors, which are copies.

    Raises:
        OperandError: a size is not an integer.
        RangeError: the dimension does not exist.
        SizeError: the listed sizes do not sum to the dimension's size, or the size of the parts is not positive.

    >>> import numscorch as ns
    >>> [part.shape[0] for part in ns.split(ns.from_torch(torch.eye(5)), [1, 4])]
    [1, 4]
    """
    return _split("split", tensor, split_size if split_size_or_sections is None else split_size_or_sections, dim)


def tensor_split(input: SparseTensor, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None) -> Any:
    """Split a dimension into parts whose sizes differ by at most 1, or at the given indices.

    Args:
        input: a SparseTensor.
        indices_or_sections: the number of parts; or a list or a vector of the indices at which parts start, except the first.
        dim: the dimension.
        indices: another name of ``indices_or_sections``.
        sections: another name of ``indices_or_sections``.

    Returns:
        A tuple of SparseTensors, which are copies.

    Raises:
        OperandError: neither a number nor indices are given.
        RangeError: the dimension does not exist.
        SizeError: the number of parts is not positive.

    >>> import numscorch as ns
    >>> [part.shape[0] for part in ns.tensor_split(ns.from_torch(torch.eye(5)), 2)]
    [3, 2]
    """
    given = next(bound for bound in (indices_or_sections, indices, sections) if bound is not None)
    return _split("tensor_split", input, given.tolist() if isinstance(given, torch.Tensor) else given, dim)


def unbind(input: SparseTensor, dim: int = 0) -> tuple[Any, ...]:
    """The slices along a dimension; the dimension is removed.

    Args:
        input: a SparseTensor.
        dim: the dimension.

    Returns:
        A tuple of SparseTensors, which are copies; for a vector, of dense tensors without dimensions.

    Raises:
        RangeError: the dimension does not exist.

    >>> import numscorch as ns
    >>> [row.to_dense() for row in ns.unbind(ns.from_torch(torch.eye(2)))]
    [tensor([1., 0.]), tensor([0., 1.])]
    """
    at = normalize_dim(dim, input.ndim)
    return tuple(select(input, at, number) for number in range(input.shape[at]))


SPLIT = """Split {what} into parts of one size, or at the given indices.

    Args:
        input: a SparseTensor.
        indices_or_sections: the number of parts; or a list of the indices at which parts start, except the first.

    Returns:
        A tuple of SparseTensors, which are copies.

    Raises:
        SizeError: the number of parts does not divide the size.

    >>> [part.shape for part in ns.{name}(ns.from_torch(torch.eye(4)), 2)]
    [torch.Size({shape}), torch.Size({shape})]
    """
JOINING: dict[str, Callable[..., Any]] = {
    "block_diag": block_diag,
    "cat": cat,
    "chunk": with_name(
        lambda input, chunks, dim=0: _split("chunk", input, chunks, dim),
        "chunk",
        """Split a dimension into a number of parts of one size, with a smaller last part if necessary.

    There may be fewer parts than requested, as in torch.

    Args:
        input: a SparseTensor.
        chunks: the number of parts.
        dim: the dimension.

    Returns:
        A tuple of SparseTensors, which are copies.

    Raises:
        RangeError: the dimension does not exist.
        SizeError: the number of parts is not positive.

    >>> [part.shape[0] for part in ns.chunk(ns.from_torch(torch.eye(5)), 2)]
    [3, 2]
    """,
    ),
    "column_stack": _concatenation(
        "column_stack",
        lambda t: t.reshape(t.numel(), 1) if t.ndim < 2 else t,
        1,
        "along the second dimension; vectors become columns",
        "[2, 2]",
    ),
    "concat": cat,
    "concatenate": cat,
    "dstack": _concatenation("dstack", RESHAPING["atleast_3d"], 2, "along the third dimension", "[1, 2, 2]"),
    "hsplit": with_name(
        lambda input, indices_or_sections: _split("hsplit", input, indices_or_sections, 1 if input.ndim > 1 else 0),
        "hsplit",
        SPLIT.format(name="hsplit", what="the columns of a matrix, or the entries of a vector,", shape="[4, 2]"),
    ),
    "hstack": _concatenation("hstack", RESHAPING["atleast_1d"], 1, "along the second dimension, or vectors along their only one", "[4]"),
    "row_stack": _concatenation("vstack", RESHAPING["atleast_2d"], 0, "along the first dimension; vectors become rows", "[2, 2]"),
    "split": split,
    "split_with_sizes": split,
    "stack": stack,
    "tensor_split": tensor_split,
    "unbind": unbind,
    "vsplit": with_name(
        lambda input, indices_or_sections: _split("vsplit", input, indices_or_sections, 0),
        "vsplit",
        SPLIT.format(name="vsplit", what="the first dimension", shape="[2, 4]"),
    ),
    "vstack": _concatenation("vstack", RESHAPING["atleast_2d"], 0, "along the first dimension; vectors become rows", "[2, 2]"),
}
