"""torch's creation operators: with ``format=`` they create SparseTensors, without it they call torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import Signature, signature
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_coo, from_entries, from_torch, owned
from ..convert.conversions import to_format
from ..errors import OperandError, SizeError, UnsupportedError
from ..frontend.datatypes import result_type
from ..ir.format import CSR, Format, as_format
from ..ir.level import INT64_MAX
from ..machine.memory import check_entries
from ..tensors.arrays import as_indices, as_integers, as_operand, as_shape, as_tensor, check_dtype, check_values
from ..tensors.graph_breaks import graph_break
from ..tensors.modes import as_numpy, on_cpu
from ..tensors.packing import index_dtype_for
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import TorchLayout, quietly
from . import public
from .attributes import LIKE
from .naming import with_name

Constructor = Callable[..., Any]
UNPINNED = ("pin_memory",)  # refused by constructors from index arrays


def in_formats(
    torch_function: Constructor, refused: tuple[str, ...] = ("out", "layout", "names", "pin_memory")
) -> Callable[[Constructor], Constructor]:
    """Decorate a SparseTensor constructor: calls with ``format=`` reach it, all other calls go to torch's constructor.

    Args:
        torch_function: torch's constructor.
        refused: arguments of torch's constructor that are meaningless for a SparseTensor.
    """

    def decorate(sparse: Constructor) -> Constructor:
        make = graph_break(sparse)

        @wraps(sparse)
        def constructor(*args: Any, format: Format | str | None = None, **kwargs: Any) -> Any:
            if format is not None:
                return make(*args, format=as_format(format), **_tensor_options(sparse.__name__, kwargs, refused))
            if "density" in kwargs:
                raise UnsupportedError(f"{sparse.__name__} with density= makes a sparse tensor: give a format, as format=ns.CSR")
            return torch_function(*args, **kwargs)

        return constructor

    return decorate


def _tensor_options(name: str, kwargs: dict[str, Any], refused: tuple[str, ...]) -> dict[str, Any]:
    """Check ``device=`` and ``dtype=``, refuse arguments that only torch's tensors support, and return the remaining arguments."""
    for other in refused:
        given = kwargs.pop(other, None)
        if given is not None and given is not False:
            raise UnsupportedError(f"{name} with format= and {other}=: SparseTensors don't support {other}=, so leave one of them out")
    device = kwargs.pop("device", None)
    if device is not None and torch.device(device).type != "cpu":
        raise UnsupportedError(f"{name} with format= on {device}: numscorch runs on the CPU, so leave device= out")
    check_dtype(kwargs.get("dtype"))
    return kwargs


def trained(A: SparseTensor, requires_grad: bool) -> SparseTensor:
    """Return the tensor; if ``requires_grad``, with its values as a new leaf that requires grad."""
    return A.with_values(A.values.detach().requires_grad_()) if requires_grad else A


def _sizes(sizes: tuple[Any, ...], size: Any) -> tuple[int, ...]:
    """The shape from sizes passed one by one, as a sequence, or as ``size=``."""
    if size is not None:
        return as_shape(size)
    return as_shape(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes)


@in_formats(torch.eye)
def eye(n: int, m: int | None = None, *, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """Create a matrix with ones on the diagonal, and store these ones; without ``format=``, call ``torch.eye``.

    Args:
        n: the number of rows.
        m: the number of columns; by default n.
        format: the result's format.
        dtype: the data type of the values; torch's default data type by default.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor of shape (n, m).

    Raises:
        FormatError: the format is not a format of matrices.
        SizeError: a size is negative or not an integer, or the entries exceed the memory limit.
        UnsupportedError: an unsupported data type, a device other than the CPU, or an argument that only torch's tensors support.

    Complexity:
        O(min(n, m)), and O(n) or O(m) if the outermost level of the format is dense.

    >>> import numscorch as ns
    >>> ns.eye(3, format=ns.CSR)
    SparseTensor(CSR, shape=(3, 3), nnz=3, density=0.333, float32, int32 indices)
    """
    return diags(torch.ones((), dtype=dtype), 0, (n, n if m is None else m), format=format, requires_grad=requires_grad)


@graph_break
def diags(
    diagonals: Any,
    offsets: Any = 0,
    shape: Sequence[int] | None = None,
    *,
    format: Format | str = CSR,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Create a matrix from diagonals, like ``scipy.sparse.diags_array``; gradients flow to the diagonals.

    Every element of a diagonal is stored, zeros included. Diagonals with the same offset are summed.

    Args:
        diagonals: for one offset, a vector or a number; for several, a sequence of vectors and numbers. A vector has the length of
            its diagonal; a number is repeated along it.
        offsets: column minus row of each diagonal: an integer or a sequence of integers.
        shape: (rows, columns); by default that of the square matrix that the first diagonal fits.
        format: the result's format.
        dtype: the data type of the values; by default the common type of the diagonals.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor of the given shape.

    Raises:
        FormatError: the format is not a format of matrices.
        OperandError: an offset is not an integer.
        SizeError: the shape has not two dimensions, a diagonal lies outside of the matrix or has another length, the numbers of
            diagonals and offsets differ, or the entries exceed the memory limit.
        UnsupportedError: a diagonal is not a vector of numbers, or the data type is not supported.

    >>> import numscorch as ns
    >>> ns.diags([1.0, [-2.0, -3.0, -4.0], 1.0], [-1, 0, 1], (3, 3)).to_dense()
    tensor([[-2.,  1.,  0.],
            [ 1., -3.,  1.],
            [ 0.,  1., -4.]])
    """
    at = as_integers(offsets)
    listed = diagonals if isinstance(offsets, Iterable) else [diagonals]
    rows = [torch.atleast_1d(as_tensor(row, "a diagonal") if hasattr(row, "__len__") else torch.as_tensor(row)) for row in listed]
    if len(rows) != len(at) or not rows:
        raise SizeError(f"diags of {len(rows)} diagonals at {len(at)} offsets: give one offset for each diagonal, and at least one")
    size = as_shape((len(rows[0]) + abs(at[0]),) * 2 if shape is None else shape)
    if len(size) != 2:
        raise SizeError(f"diags of shape {size}: the result is a matrix, so give (rows, columns)")
    lengths = [min(size[0] + min(k, 0), size[1] - max(k, 0)) for k in at]
    for row, k, length in zip(rows, at, lengths, strict=True):
        if length < 0 or row.shape not in ((1,), (length,)):
            raise SizeError(f"a diagonal of shape {tuple(row.shape)} at offset {k} of a matrix {size}: that diagonal has {length} entries")
    kind = result_type((row.dtype, 1) for row in rows) if dtype is None else dtype
    check_dtype(kind)
    format = as_format(format)
    _check_room(sum(lengths), size, kind, format, "ns.from_coo stores only the given entries")
    values = torch.cat([row.to(kind).expand(length) for row, length in zip(rows, lengths, strict=True)])
    starts = [np.array([[max(-k, 0)], [max(k, 0)]]) for k in at]
    places = np.concatenate([start + np.arange(length) for start, length in zip(starts, lengths, strict=True)], axis=1)
    make: Constructor = _from_sorted if len(at) == 1 else from_coo  # one diagonal is sorted
    return trained(make(places, values, size, format), requires_grad)


@in_formats(public("diag"))
def diag(input: Any, diagonal: int = 0, *, format: Format, requires_grad: bool = False) -> SparseTensor:
    """Create a matrix with a vector on a diagonal, or extract a diagonal of a matrix, like ``torch.diag``.

    Every element of a strided vector is stored, zeros included. Gradients flow to the argument.

    Args:
        input: a vector of shape (n,) or a matrix: a SparseTensor, or a torch tensor of any layout.
        diagonal: column minus row of the diagonal.
        format: the result's format. Without it, the result of a strided tensor is strided, and that of a sparse tensor is sparse.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor: for a vector, a matrix of shape (n + k, n + k), where k is the absolute value of ``diagonal``; for a matrix,
        a vector with the elements of the diagonal.

    Raises:
        FormatError: the format has another number of dimensions than the result.
        OperandError: ``diagonal`` is not an integer.
        SizeError: the entries exceed the memory limit.
        UnsupportedError: a device other than the CPU, or an argument that only torch's tensors support.

    >>> import numscorch as ns
    >>> ns.diag(torch.tensor([2.0, 0.0, 1.0]), format=ns.CSR)
    SparseTensor(CSR, shape=(3, 3), nnz=3, density=0.333, float32, int32 indices)
    """
    if isinstance(input, torch.Tensor) and input.ndim == 1 and input.layout is torch.strided:
        return diags(input, diagonal, format=format, requires_grad=requires_grad)
    result = public("diag")(input, diagonal)
    return trained(to_format(result, format) if isinstance(result, SparseTensor) else from_torch(result, format), requires_grad)


@in_formats(torch.tensor)
def tensor(data: Any, *, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """Create a SparseTensor that stores the nonzero elements of some data; without ``format=``, call ``torch.tensor``.

    Args:
        data: nested lists of numbers, or a NumPy array.
        format: the result's format.
        dtype: the data type of the values; by default that of the data, as in ``torch.tensor``.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor of the data's shape.

    Raises:
        FormatError: the format has another number of dimensions, or can't store the entries.
        OperandError: the data is an array of SciPy; :func:`from_scipy` converts it.
        UnsupportedError: the data type is not supported, a device other than the CPU, or an argument that only torch's tensors support.

    Complexity:
        O(number of elements).

    >>> import numscorch as ns
    >>> ns.tensor([[0, 1.5], [2, 0]], format=ns.CSC).values
    tensor([2.0000, 1.5000])
    """
    data = as_operand(data, "tensor") if hasattr(type(data), "tocsr") else data  # refuses SciPy's arrays
    return trained(from_torch(torch.tensor(data, dtype=dtype), format), requires_grad)


@in_formats(torch.zeros)
def zeros(*sizes: Any, size: Any = None, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """Create a SparseTensor without entries; without ``format=``, call ``torch.zeros``.

    A format that stores every coordinate, such as ``"dd"``, stores zeros.

    Args:
        sizes: the shape, as separate integers or as a sequence.
        size: the shape by keyword, instead of ``sizes``.
        format: the result's format.
        dtype: the data type of the values; torch's default data type by default.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor.

    Raises:
        FormatError: the format has another number of dimensions.
        SizeError: a size is negative or not an integer, or the dense levels of the format exceed the memory limit.
        UnsupportedError: an unsupported data type, a device other than the CPU, or an argument that only torch's tensors support.

    >>> import numscorch as ns
    >>> ns.zeros(2, 3, format=ns.CSC)
    SparseTensor(CSC, shape=(2, 3), nnz=0, density=0, float32, int32 indices)
    """
    shape = _sizes(sizes, size)
    return trained(_from_sorted(np.empty((len(shape), 0), np.int64), torch.zeros(0, dtype=dtype), shape, format), requires_grad)


@in_formats(torch.empty, ("out", "layout", "names", "pin_memory", "memory_format"))
def empty(*sizes: Any, size: Any = None, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """Create a SparseTensor without entries, like :func:`zeros`; without ``format=``, call ``torch.empty``.

    Args:
        sizes: the shape, as separate integers or as a sequence.
        size: the shape by keyword, instead of ``sizes``.
        format: the result's format.
        dtype: the data type of the values; torch's default data type by default.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor. Values in formats that store every coordinate are 0.

    Raises:
        FormatError, SizeError, UnsupportedError: as for :func:`zeros`.

    >>> import numscorch as ns
    >>> ns.empty(2, 3, format=ns.CSR).nnz
    0
    """
    return zeros(*sizes, size=size, format=format, dtype=dtype, requires_grad=requires_grad)


@in_formats(torch.full)
def full(size: Any, fill_value: Any, *, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """Create a SparseTensor that stores every element, zeros included; without ``format=``, call ``torch.full``.

    Args:
        size: the shape, or the length of a vector.
        fill_value: the value of every element.
        format: the result's format.
        dtype: the data type of the values; by default that of ``fill_value``, as in ``torch.full``.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor.

    Raises:
        FormatError: the format has another number of dimensions, or can't store every element, such as :func:`NM`.
        SizeError: a size is negative or not an integer, or the entries exceed the memory limit.
        UnsupportedError: an unsupported data type, a device other than the CPU, or an argument that only torch's tensors support.

    Complexity:
        O(number of elements).

    >>> import numscorch as ns
    >>> ns.full((2, 2), 3.5, format=ns.CSR).values
    tensor([3.5000, 3.5000, 3.5000, 3.5000])
    """
    shape, dtype = _sizes((size,), None), torch.full((), fill_value, dtype=dtype).dtype
    _check_room(prod(shape), shape, dtype, format, "ns.zeros stores nothing, and ns.rand and ns.randn take a density")
    everywhere = from_torch(torch.ones(shape, dtype=torch.bool), format)
    return LIKE["full_like"](everywhere, fill_value, dtype=dtype, requires_grad=requires_grad)


@in_formats(torch.ones)
def ones(*sizes: Any, size: Any = None, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """Create a SparseTensor that stores a one for every element; without ``format=``, call ``torch.ones``.

    Args:
        sizes: the shape, as separate integers or as a sequence.
        size: the shape by keyword, instead of ``sizes``.
        format: the result's format.
        dtype: the data type of the values; torch's default data type by default.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor.

    Raises:
        FormatError, SizeError, UnsupportedError: as for :func:`full`.

    Complexity:
        O(number of elements).

    >>> import numscorch as ns
    >>> ns.ones(2, 3, format=ns.COO(2)).nnz
    6
    """
    return full(_sizes(sizes, size), 1.0, format=format, dtype=dtype, requires_grad=requires_grad)


@in_formats(torch.rand)
def rand(
    *sizes: Any,
    size: Any = None,
    density: float | None = None,
    format: Format,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Create a SparseTensor of uniform values in [0, 1) at random coordinates; without ``format=``, call ``torch.rand``.

    Args:
        sizes: the shape, as separate integers or as a sequence.
        size: the shape by keyword, instead of ``sizes``.
        density: the fraction of elements to store, required. For n elements, ``round(density * n)`` are drawn uniformly without
            replacement.
        format: the result's format. Block and diagonal formats also store zeros around the entries.
        generator: a ``torch.Generator`` that draws the coordinates, then the values; by default torch's generator.
        dtype: the data type of the values, a floating-point type; torch's default data type by default.
        requires_grad: whether the result's values are a new leaf that requires grad.

    Returns:
        A SparseTensor.

    Raises:
        FormatError: the format has another number of dimensions, or can't store the drawn entries.
        SizeError: the density is not between 0 and 1, the entries exceed the memory limit, or int64 can't count the elements.
        UnsupportedError: ``density`` is missing, or given without ``format``; an unsupported data type; a device other than the CPU; or
            an argument that only torch's tensors support.

    Complexity:
        Time O(nnz log nnz) and memory O(nnz) for formats without dense levels.

    >>> import numscorch as ns
    >>> ns.rand(1000, 2000, density=0.01, format=ns.CSR)
    SparseTensor(CSR, shape=(1000, 2000), nnz=20000, density=0.01, float32, int32 indices)
    """
    return _random(torch.rand, _sizes(sizes, size), density, format, generator, dtype, requires_grad)


@in_formats(torch.randn)
def randn(
    *sizes: Any,
    size: Any = None,
    density: float | None = None,
    format: Format,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Create a SparseTensor of normally distributed values at random coordinates; without ``format=``, call ``torch.randn``.

    Args:
        sizes, size, density, format, generator, dtype, requires_grad: as for :func:`rand`.

    Returns:
        A SparseTensor. The values have mean 0 and variance 1.

    Raises:
        FormatError, SizeError, UnsupportedError: as for :func:`rand`.

    >>> import numscorch as ns
    >>> ns.randn(50, 50, 50, density=0.001, format=ns.CSF(3)).nnz
    125
    """
    return _random(torch.randn, _sizes(sizes, size), density, format, generator, dtype, requires_grad)


def _random(
    draw: Constructor,
    shape: tuple[int, ...],
    density: float | None,
    format: Format,
    generator: torch.Generator | None,
    dtype: torch.dtype | None,
    requires_grad: bool,
) -> SparseTensor:
    name = getattr(draw, "__name__", "")
    if density is None:
        raise UnsupportedError(f"{name} with format= needs to know how many entries to store: give density=, the fraction to store")
    if not 0 <= density <= 1:
        raise SizeError(f"density={density}: the fraction of stored entries lies between 0 and 1")
    if prod(shape) > INT64_MAX:
        raise SizeError(
            f"{name} of shape {shape}: it has more elements than int64 can count; draw coordinates, and pass them to ns.from_coo"
        )
    count = round(density * prod(shape))
    _check_room(count, shape, dtype or torch.get_default_dtype(), format, "give a smaller density")
    leading = (1, *shape)  # unravel_index rejects an empty shape
    places = np.array(np.unravel_index(drawn(count, prod(shape), generator), leading), np.int64)[1:]
    values = draw(count, generator=generator, dtype=dtype)
    return trained(_from_sorted(places, values, shape, format), requires_grad)


def drawn(count: int, among: int, generator: torch.Generator | None = None) -> np.ndarray:
    """Draw ``count`` distinct integers below ``among`` uniformly; returns them in increasing order. Memory O(count).

    >>> drawn(3, 3).tolist(), len(set(drawn(5, 10**15).tolist()))
    ([0, 1, 2], 5)
    """
    if 2 * count > among:  # draw the complement: fewer repeated draws
        is_drawn = np.ones(among, np.bool_)
        is_drawn[drawn(among - count, among, generator)] = False
        return np.flatnonzero(is_drawn)
    places = np.empty(0, np.int64)
    while (missing := count - len(places)) > 0:
        repeats = missing * count // among  # expected number of repeated draws
        more = torch.randint(among, (missing + repeats + 8,), generator=generator)
        places = np.sort(np.concatenate([places, as_numpy(more)]))
        places = places[np.diff(places, prepend=-1) > 0]
    if len(places) == count:
        return places
    is_drawn = np.zeros(len(places), np.bool_)
    is_drawn[as_numpy(torch.randperm(len(places), generator=generator)[:count])] = True
    return places[is_drawn]


def _check_room(count: int, shape: tuple[int, ...], dtype: torch.dtype, format: Format, suggestion: str) -> None:
    """Refuse ``count`` entries that, with their coordinates, exceed the memory limit."""
    itemsize = torch.empty(0, dtype=dtype).element_size()  # torch takes Python's float as a data type
    check_entries(count, len(shape), itemsize, f"a tensor of shape {shape}", format, suggestion)


def _from_sorted(indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], format: Format) -> SparseTensor:
    """Entries in row-major order as a SparseTensor in ``format``."""
    narrow = indices.astype(index_dtype_for(shape, indices.shape[1]), copy=False)
    return from_coo(narrow, values, shape, assume_sorted=True, copy=False, check_invariants=False).to(format)


# ---- from index arrays


@in_formats(torch.sparse_coo_tensor, (*UNPINNED, "layout"))
def sparse_coo_tensor(
    indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    format: Format,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """Create a SparseTensor from coordinates and values; without ``format=``, call ``torch.sparse_coo_tensor``.

    Gradients flow to the values.

    Args:
        indices: coordinates of shape (sparse_dim, nnz) in any order; values at equal coordinates are summed.
        values: shape (nnz, \\*); further dimensions are the tensor's last dimensions.
        size: the shape; by default the smallest shape that contains the coordinates.
        format: the result's format.
        dtype: the data type of the values; by default that of ``values``.
        requires_grad: whether the result's values are a new leaf that requires grad.
        check_invariants: False skips the range check of coordinates. Kernels access memory through them without bounds checks.
        is_coalesced: True if coordinates are sorted and unique; other coordinates then raise FormatError.

    Returns:
        A SparseTensor.

    Raises:
        FormatError: a coordinate is not an integer or out of range, ``is_coalesced`` is given for unsorted coordinates, or the
            format has another number of dimensions or can't store the entries.
        SizeError: shapes disagree.
        UnsupportedError: the values have an unsupported data type, device or layout, or an argument that only torch's tensors support.

    Complexity:
        O(nnz log nnz), or O(nnz) for sorted coordinates.

    >>> import numscorch as ns
    >>> ns.sparse_coo_tensor([[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR).values
    tensor([1., 5.])
    """
    table, entries = as_indices(indices, "indices"), _values(values, dtype)
    if table.ndim != 2 or not entries.ndim or table.shape[1] != len(entries):
        shapes = f"{tuple(table.shape)}, and values {tuple(entries.shape)}"
        raise SizeError(f"indices has shape {shapes}: pass (sparse_dim, nnz) and (nnz, *)")
    dense_shape = tuple(entries.shape[1:])
    # default: the smallest shape that contains the coordinates, O(nnz)
    shape = as_shape(size) if size is not None else (*(int(row.max()) + 1 if len(row) else 0 for row in table), *dense_shape)
    if tuple(shape[table.shape[0] :]) != dense_shape:
        raise SizeError(f"values has shape {tuple(entries.shape)}, but size is {shape}: its last dimensions must be those of each value")
    full = as_numpy(table)
    if dense_shape:  # the coordinates of all scalar entries
        places = np.indices(dense_shape).reshape(len(dense_shape), -1)
        full = np.concatenate([np.repeat(full, places.shape[1], axis=1), np.tile(places, len(entries))]).astype(full.dtype)
    layout_format = TorchLayout(torch.sparse_coo, sparse=table.shape[0], dense=len(dense_shape)).format
    suggestion = "without is_coalesced=True, they are sorted and summed" if is_coalesced else None
    is_checked, flat = check_invariants is not False, entries.reshape(-1)
    tensor = on_cpu(from_entries, full, flat, shape, layout_format, suggestion, check_invariants=is_checked, copy=True)
    return trained(to_format(tensor, format), requires_grad)


def _values(values: Any, dtype: torch.dtype | None) -> torch.Tensor:
    tensor = check_values(as_tensor(values, "values"))
    return tensor.to(tensor.dtype if dtype is None else dtype, copy=not isinstance(values, torch.Tensor))  # copies as torch does


def _compressed(torch_constructor: Constructor, first: str, second: str, texts: tuple[str, str, str], example: str) -> Constructor:
    """A constructor for one of torch's compressed layouts.

    ``first`` and ``second`` name its index arrays. ``texts`` describes these arrays and the values.
    """

    def construct(
        starts: Any,
        coordinates: Any,
        values: Any,
        size: Sequence[int] | None = None,
        *,
        format: Format,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        check_invariants: bool | None = None,
        layout: torch.layout | None = None,
    ) -> SparseTensor:
        entries, is_checked = _values(values, dtype), check_invariants is not False
        arrays = as_indices(starts, first), as_indices(coordinates, second)
        if not (arrays[0].ndim and arrays[1].ndim and entries.ndim) or (size is not None and len(size) < 2):
            raise SizeError(
                f"{torch_constructor.__name__} takes {first}, {second} and values of at least one dimension each, and a size of two"
            )
        shape = () if size is None else (as_shape(size),)
        native = quietly(lambda: torch_constructor(*arrays, entries.detach(), *shape, check_invariants=False, layout=layout))
        tensor = from_torch(native, copy=False, check_invariants=is_checked).with_values(entries.reshape(-1))
        return trained(owned(to_format(tensor, format), *arrays), requires_grad)

    names = {"starts": first, "coordinates": second}
    arguments = Signature([given.replace(name=names.get(name, name)) for name, given in signature(construct).parameters.items()])

    def by_name(*args: Any, **kwargs: Any) -> Any:
        try:
            given = arguments.bind(*args, **kwargs)
        except TypeError as error:
            raise OperandError(f"{torch_constructor.__name__} with format=: {error}") from error
        return construct(*given.args, **given.kwargs)

    doc = f"""Create a SparseTensor from the arrays of a torch layout; without ``format=``, call ``torch.{torch_constructor.__name__}``.

    Gradients flow to the values. A tensor of values is not copied if the format stores the same array.

    Args:
        args: ``{first}``, ``{second}``, ``values`` and ``size``, in this order.
        {first}: {texts[0]}.
        {second}: {texts[1]}.
        values: {texts[2]}. Batch and dense dimensions are optional.
        size: the shape; by default the smallest shape that contains the entries.
        format: the result's format.
        dtype: the data type of the values; by default that of ``values``.
        requires_grad: whether the result's values are a new leaf that requires grad.
        check_invariants: False skips the validation of the index arrays. Kernels access memory through them without bounds checks.
        layout: torch's layout of the arrays, such as ``torch.sparse_csr``; only :func:`sparse_compressed_tensor` needs it.
        kwargs: the arguments above, by name.

    Returns:
        A SparseTensor.

    Raises:
        FormatError: the index arrays violate the layout, or the format has another number of dimensions or can't store the entries.
        OperandError: an argument is missing or unknown.
        SizeError: shapes disagree.
        UnsupportedError: the values have an unsupported data type, device or layout, or an argument that only torch's tensors support.

    >>> import torch, numscorch as ns
    >>> ns.{torch_constructor.__name__}{example}
    """
    return in_formats(torch_constructor, UNPINNED)(with_name(by_name, torch_constructor.__name__, doc))


NNZ, BLOCKS = r"shape (\*batch, nnz, \*dense)", r"shape (\*batch, blocks, block height, block width, \*dense)"

sparse_compressed_tensor = _compressed(
    torch.sparse_compressed_tensor,
    "compressed_indices",
    "plain_indices",
    (
        r"the start of each row, column, row of blocks or column of blocks, and the end of the last; integers of shape (\*batch, n + 1)",
        r"the column or row of each value or block; integers of shape (\*batch, nnz)",
        rf"{NNZ}; for layouts of blocks, {BLOCKS}",
    ),
    """([0, 1, 3], [2, 0, 1], [1.0, 2.0, 3.0], (2, 3), layout=torch.sparse_csr, format=ns.CSR)
    SparseTensor(CSR, shape=(2, 3), nnz=3, density=0.5, float32, int64 indices)""",
)
sparse_csr_tensor = _compressed(
    torch.sparse_csr_tensor,
    "crow_indices",
    "col_indices",
    (
        r"the start of each row, and the end of the last; integers of shape (\*batch, rows + 1)",
        r"the column of each value, increasing within a row; integers of shape (\*batch, nnz)",
        NNZ,
    ),
    """([0, 1, 3], [2, 0, 1], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR).to_dense()
    tensor([[0., 0., 1.],
            [2., 3., 0.]])""",
)
sparse_csc_tensor = _compressed(
    torch.sparse_csc_tensor,
    "ccol_indices",
    "row_indices",
    (
        r"the start of each column, and the end of the last; integers of shape (\*batch, columns + 1)",
        r"the row of each value, increasing within a column; integers of shape (\*batch, nnz)",
        NNZ,
    ),
    """([0, 1, 2, 3], [1, 1, 0], [2.0, 3.0, 1.0], (2, 3), format=ns.CSC).to_dense()
    tensor([[0., 0., 1.],
            [2., 3., 0.]])""",
)
sparse_bsr_tensor = _compressed(
    torch.sparse_bsr_tensor,
    "crow_indices",
    "col_indices",
    (
        r"the start of each row of blocks, and the end of the last; integers of shape (\*batch, rows of blocks + 1)",
        r"the column of each block, counted in blocks; integers of shape (\*batch, blocks)",
        BLOCKS,
    ),
    """([0, 1], [1], torch.ones(1, 2, 2), (2, 4), format=ns.BCSR(2, 2))
    SparseTensor(BCSR(2, 2), shape=(2, 4), nnz=4, density=0.5, float32, int64 indices)""",
)
sparse_bsc_tensor = _compressed(
    torch.sparse_bsc_tensor,
    "ccol_indices",
    "row_indices",
    (
        r"the start of each column of blocks, and the end of the last; integers of shape (\*batch, columns of blocks + 1)",
        r"the row of each block, counted in blocks; integers of shape (\*batch, blocks)",
        BLOCKS,
    ),
    """([0, 1], [1], torch.ones(1, 2, 2), (4, 2), format=ns.CSC)
    SparseTensor(CSC, shape=(4, 2), nnz=4, density=0.5, float32, int64 indices)""",
)
