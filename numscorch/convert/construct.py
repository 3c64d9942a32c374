"""Construct SparseTensors from torch tensors and from index arrays.

Patterns are immutable, so public constructors copy index arrays; with ``copy=False``, they share them if order and layout allow
it. New index arrays are int32 if that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike

from ..errors import OperandError, SizeError, UnsupportedError
from ..frontend.datatypes import summed_in
from ..ir.format import COO, CSR, Format, as_format, dense
from ..ir.level import INT32_MAX
from ..ir.levels import Compressed
from ..ir.padded import Nonzero
from ..schedule import tuning
from ..tensors.arrays import as_indices, as_shape, as_values, check_coordinates, check_values, converter, disordered_entry, is_increasing
from ..tensors.graph_breaks import graph_break
from ..tensors.ledgers import note
from ..tensors.modes import as_numpy, check_not_traced, innermost, made_outside, on_cpu, plain_tensor, unlifted
from ..tensors.packing import check_order, entry_columns, index_dtype_for, is_identity, pack
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.torch_layouts import BY_ROWS, COMPRESSED, compressed_pattern, hybrid_pattern
from ..tensors.validate import disorder, validate
from .conversions import can_copy, chosen_of, coalesced, list_for, to_format
from .matrices import grouped, listing, nonzeros_of_few, regrouped, sorted_list

F = TypeVar("F", bound=Callable[..., SparseTensor])
COALESCE = "the tensor is only marked as coalesced: from_torch coalesces torch.sparse_coo_tensor(t.indices(), t.values(), t.shape)"
CONSTRUCTORS = "from_coo, from_csr or from_scipy"


@graph_break
def from_torch(
    tensor: torch.Tensor, format: Format | str | None = None, *, copy: bool = True, check_invariants: bool = True
) -> SparseTensor:
    """Create a SparseTensor from a torch tensor; gradients flow to the tensor.

    Of a strided tensor, the nonzero elements are stored. Uncoalesced COO tensors are coalesced.

    Args:
        tensor: a strided, COO, CSR, CSC, BSR or BSC tensor, optionally batched or hybrid, of a supported data type.
        format: the result's format. The default is the tensor's own (BSR is ``BCSR(b0, b1)``, and batch and dense dimensions
            are dense levels); for strided tensors, it is CSR in two dimensions and COO(n) otherwise.
        copy: False shares the values and index arrays of CSR, CSC, BSR, BSC and coalesced COO tensors (but the row starts of
            batches are copied), and the memory of a strided tensor in a dense format. Then write to the values only: kernels read index
            arrays without bounds checks, and other tensors may share them.
        check_invariants: validate index arrays in O(nnz). Kernels access memory through them without bounds checks.

    Returns:
        A SparseTensor of the tensor's shape and data type.

    Raises:
        FormatError: the index arrays violate the layout, or the format is invalid, has another number of dimensions or can't store
            the entries.
        SizeError: the shapes of the arrays disagree, or the result exceeds the memory limit.
        UnsupportedError: the argument isn't a torch tensor, or has an unsupported layout, data type or device.

    Complexity:
        O(number of elements) for strided tensors, O(nnz) for sparse tensors in their own format, and at most O(nnz log nnz) for
        conversions to other formats.

    >>> from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
    SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int32 indices)
    """
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedError(f"from_torch takes a torch tensor, not {type(tensor).__name__}: use {way_in(tensor)}")
    A = on_cpu(_from_torch, tensor, as_format(format) if format is not None else None, check_invariants)
    is_new = tensor.layout is torch.strided and not A.pattern.is_dense
    return A if is_new or not copy else owned(A, *memory_of(tensor))


def _from_torch(tensor: torch.Tensor, target: Format | None, check_invariants: bool) -> SparseTensor:
    """Implement ``from_torch`` without a copy."""
    check_not_traced()
    tensor = plain_tensor(tensor)
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"the tensor is on {tensor.device}, but numscorch runs on the CPU: move it with .cpu()")
    if tensor.layout == torch.strided:
        return _from_strided(tensor, target)
    if tensor.layout == torch.sparse_coo:
        return _from_torch_coo(tensor, target, check_invariants)
    if tensor.layout in COMPRESSED:
        return _from_torch_compressed(tensor, target, check_invariants)
    layout = str(tensor.layout).removeprefix("torch.")
    raise UnsupportedError(f"{layout} tensors are not compiled: convert it with .to_dense()")


def memory_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The plain tensors that hold the memory of a torch tensor."""
    if tensor.layout not in (torch.sparse_coo, *COMPRESSED):
        return (tensor,)
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    by_rows = tensor.layout in BY_ROWS
    return *((tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())), tensor.values()


def owned(A: SparseTensor, *sources: object) -> SparseTensor:
    """The tensor with copies of those arrays that share memory with the sources; the copy of values is differentiable.

    >>> values = np.array([1.0, 2.0])
    >>> A = from_csr([0, 1, 2], [0, 1], values, (2, 2), copy=False)
    >>> copied = owned(A, values)
    >>> values[0] = 5.0
    >>> A.values[0].item(), copied.values[0].item(), copied.pattern is A.pattern
    (5.0, 1.0, True)
    """
    spans = [_span(source) for source in sources if not isinstance(source, (list, tuple))]

    def copied(array: torch.Tensor) -> torch.Tensor:
        return array.clone() if any(start <= innermost(array).data_ptr() < end for start, end in spans) else array

    pattern = A.pattern
    arrays = made_outside(lambda: tuple(tuple(map(copied, level)) for level in pattern.arrays))
    if any(mine is not array for pair in zip(arrays, pattern.arrays, strict=True) for mine, array in zip(*pair, strict=True)):
        pattern = Pattern(pattern.format, pattern.shape, arrays, pattern.index_dtype)
        if "from torch" in A.pattern.derived:
            pattern.derived["from torch"] = True
    return SparseTensor.trusted(pattern, copied(A.values))


def _span(source: Any) -> tuple[int, int]:
    """The start address of an array's memory, and the address after its last byte."""
    if isinstance(source, torch.Tensor):
        storage = innermost(source).untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    low, high = np.lib.array_utils.byte_bounds(np.asarray(source))
    return int(low), int(high)


def way_in(given: object) -> str:
    """Suggest the constructor for an object that another constructor rejects.

    >>> way_in(np.ones(2)), way_in([1.0])
    ('ns.from_torch(torch.from_numpy(x))', 'from_coo, from_csr or from_scipy')
    """
    if isinstance(given, np.ndarray):
        return "ns.from_torch(torch.from_numpy(x))"
    if isinstance(given, torch.Tensor):
        return "from_torch"
    return converter(given) or CONSTRUCTORS


def _from_strided(tensor: torch.Tensor, format: Format | None) -> SparseTensor:
    shape, values = tuple(tensor.shape), check_values(tensor)
    format = format if format is not None else CSR if len(shape) == 2 else COO(len(shape))
    check_order(format, shape)
    if format.is_dense:
        return SparseTensor(Pattern(format, shape, ((),) * format.order), values.permute(format.mode_order).reshape(-1))
    if can_copy(values) and (stored := nonzeros_of_few(values.contiguous(), format)) is not None:
        return noted(SparseTensor.trusted(*stored), "a strided tensor")
    if (packed := grouped(values, None, format)) is not None or (packed := chosen_of(values, format, Nonzero())) is not None:
        return noted(packed, "a strided tensor")
    entries = made_outside(lambda: unlifted(values).detach().nonzero().T)
    return noted(assemble(as_numpy(entries), values[tuple(entries)], shape, format), "a strided tensor")


def noted(A: SparseTensor, source: str) -> SparseTensor:
    """Add the creation of a tensor from ``source`` to the ledgers, and return the tensor."""
    size = A.values.nbytes + sum(array.nbytes for level in A.pattern.arrays for array in level)
    note("conversion", f"{source} to {A.format.name} {A.pattern.shape}", size)
    return A


def _from_torch_coo(tensor: torch.Tensor, format: Format | None, check_invariants: bool) -> SparseTensor:
    if tensor.dense_dim() and not tensor.sparse_dim():
        return _from_strided(tensor.to_dense(), format if format is not None else dense(tensor.ndim))
    check_values(tensor._values())
    if not tensor.is_coalesced() and tensor._nnz() >= tuning.COALESCED_ENTRIES and not tensor.dense_dim() and not tensor.requires_grad:
        return from_entries(tensor._indices(), tensor._values(), tuple(tensor.shape), format, None, check_invariants=check_invariants)
    if not tensor.is_coalesced():
        tensor = tensor.to(summed_in(tensor.dtype)).coalesce().to(tensor.dtype)
        note("copy", f"a coalesced COO tensor {tuple(tensor.shape)}", tensor._values().nbytes + tensor._indices().nbytes)
    values = tensor.values() if tensor.requires_grad else tensor._values()
    indices, shape = tensor._indices(), tuple(tensor.shape)
    if not tensor.dense_dim():
        return from_entries(indices, values, shape, format, COALESCE, check_invariants=check_invariants)
    entries = torch.empty(indices.shape[1], dtype=torch.int8)
    head = from_entries(indices, entries, shape[: tensor.sparse_dim()], None, COALESCE, check_invariants=check_invariants).pattern
    A = SparseTensor(hybrid_pattern(head, shape), values.reshape(-1))
    return A if format is None else to_format(A, format)


def _from_torch_compressed(tensor: torch.Tensor, format: Format | None, check_invariants: bool) -> SparseTensor:
    # a detached view does not keep the tensor alive, and can be made to require grad
    values = check_values(tensor.values() if tensor.requires_grad else tensor.values().detach())
    pattern = compressed_pattern(tensor, values, check_invariants=check_invariants)
    if check_invariants:
        validate(pattern)
    A = SparseTensor(pattern, values.reshape(-1))
    return A if format is None else to_format(A, format)


def _without_coalesce(function: F) -> F:
    """Decorate a constructor to reject the removed argument ``coalesce=`` with an explanation."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> SparseTensor:
        if "coalesce" in kwargs:
            instead = "entries are sorted and summed by default; assume_sorted=True rejects unsorted ones"
            raise OperandError(f"{function.__name__} takes no coalesce=: {instead}")
        return on_cpu(function, *args, **kwargs)

    return cast("F", call)


@graph_break
@_without_coalesce
def from_coo(
    indices: torch.Tensor | ArrayLike,
    values: torch.Tensor | ArrayLike,
    shape: Sequence[int],
    format: Format | str | None = None,
    *,
    assume_sorted: bool = False,
    copy: bool = True,
    check_invariants: bool = True,
) -> SparseTensor:
    """Create a SparseTensor from coordinates and values; gradients flow to the values.

    Entries may be in any order. They are sorted, and values with the same coordinates are summed, as in SciPy and in
    ``torch.Tensor.coalesce``.

    Index arrays and NumPy arrays of values are copied. If entries are sorted, a torch tensor of values is shared, as in
    ``torch.sparse_coo_tensor``: it may be a parameter.

    Args:
        indices: coordinates, integers of shape (ndim, nnz).
        values: the values, shape (nnz,).
        shape: the size of every dimension.
        format: the result's format; by default ``COO(ndim)``, as of torch's ``sparse_coo_tensor`` and SciPy's ``coo_array``.
        assume_sorted: entries must be strictly increasing, by rows or by the format's mode order; other entries raise
            FormatError.
        copy: False shares all arrays if entries are sorted and become a COO tensor. Then don't write to the coordinates.
        check_invariants: False skips the check that coordinates are in range and, with ``assume_sorted``, in order. Kernels
            access memory through them without bounds checks.

    Returns:
        A SparseTensor of the given shape.

    Raises:
        FormatError: coordinates are not integers, or out of range; with ``assume_sorted``, also unsorted or repeated. Or the format is
            invalid, has another number of dimensions, or can't store the entries.
        SizeError: the shapes of indices and values disagree, a size is negative or not an integer, or the result exceeds the memory
            limit.
        UnsupportedError: the values have an unsupported data type, device or layout.

    Complexity:
        O(nnz log nnz), or O(nnz) if entries are sorted.

    >>> from_coo([[1, 0, 1], [0, 2, 0]], [2.0, 1.0, 3.0], (2, 3)).to_dense()
    tensor([[0., 0., 1.],
            [5., 0., 0.]])
    """
    A = from_entries(
        indices,
        values,
        shape,
        format,
        "without assume_sorted=True, from_coo sorts and sums them" if assume_sorted else None,
        check_invariants=check_invariants,
        copy=copy,
    )
    return owned(A, values) if copy and not isinstance(values, torch.Tensor) else A


def from_entries(
    indices: torch.Tensor | ArrayLike,
    values: torch.Tensor | ArrayLike,
    shape: Sequence[int],
    format: Format | str | None,
    suggestion: str | None,
    *,
    check_invariants: bool,
    copy: bool = False,
) -> SparseTensor:
    """Implement ``from_coo``; if ``suggestion`` is given, entries must be sorted, and the error for unsorted entries ends with it.

    ``copy`` copies coordinates that become index arrays; values may be shared.
    """
    size = as_shape(shape)
    target = COO(len(size)) if format is None else as_format(format)
    check_order(target, size)
    table, entries = as_indices(indices, "indices"), as_values(values)
    if table.ndim != 2 or table.shape[0] != len(size):
        hint = "; did you mean indices.T?" if table.ndim == 2 and table.shape[::-1] == (len(size), len(entries)) else ""
        raise SizeError(f"indices has shape {tuple(table.shape)}, but shape {size} needs ({len(size)}, nnz){hint}")
    count = entries.numel()
    if table.shape[1] != count:
        raise SizeError(f"indices has {table.shape[1]} entries, but values has {count}: pass one value for each entry")
    array = as_numpy(table)
    if check_invariants:
        check_coordinates(array, size)
    listed = list_for(target, size, count)
    is_list, is_trusted = target == listed, suggestion is not None and not check_invariants
    dtype = index_dtype_for(size, count, array.dtype if is_list else None)
    if listed is not None and (is_trusted or is_increasing(array, target.mode_order)):
        rows = [table[d].to(torch_dtype_of(dtype), copy=copy) for d in target.mode_order]  # apart, since CSR keeps one of them only
        pattern = listing(rows, size, listed)
        return SparseTensor(pattern, entries) if is_list else noted(SparseTensor(regrouped(pattern, target), entries), "a list of entries")
    by_rows = range(len(size))
    if suggestion is not None and check_invariants and not any(is_increasing(array, order) for order in (by_rows, target.mode_order)):
        raise disordered_entry(array, by_rows, suggestion)
    return noted(assemble(array, entries, size, target, dtype if is_list else None), "a list of entries")


def torch_dtype_of(index_dtype: np.dtype) -> torch.dtype:
    """torch's data type of indices, int32 or int64."""
    return torch.int64 if index_dtype == np.int64 else torch.int32


def adopted(indices: Sequence[torch.Tensor], values: torch.Tensor, shape: tuple[int, ...], format: Format) -> SparseTensor:
    """Create a COO tensor that shares sorted coordinates as its index arrays."""
    dtype = torch_dtype_of(index_dtype_for(shape, len(values), as_numpy(indices[0]).dtype))
    return SparseTensor(listing([indices[d].to(dtype) for d in format.mode_order], shape, format), values)


def assemble(
    indices: Sequence[np.ndarray] | np.ndarray,
    values: torch.Tensor,
    shape: tuple[int, ...],
    format: Format,
    dtype: np.dtype | None = None,
) -> SparseTensor:
    """Pack unsorted entries, and sum values with the same coordinates; ``indices`` as in ``pack``. O(nnz log nnz)."""
    if (tensor := coalesced(indices, values, shape, format, dtype)) is not None:
        return tensor
    pattern, slots, order = packed(indices, shape, format, dtype)
    ordered = values if is_identity(order, len(values)) else values.index_select(0, torch.from_numpy(order))
    if slots is None or is_identity(slots, pattern.nnz):
        return SparseTensor(pattern, ordered)
    wide = summed_in(values.dtype)
    summed = values.new_zeros(pattern.nnz, dtype=wide).index_add_(0, torch.from_numpy(slots), ordered.to(wide))
    return SparseTensor(pattern, summed.to(values.dtype))


def packed(
    indices: Sequence[np.ndarray] | np.ndarray, shape: tuple[int, ...], format: Format, dtype: np.dtype | None = None
) -> tuple[Pattern, np.ndarray | None, np.ndarray]:
    """Pack coordinates like ``pack``, in about half of its memory if the format shares arrays with a list of entries.

    ``slots`` may be None if no entry is repeated.
    """
    is_listed = bool(shape) and list_for(format, shape, len(indices[0])) is not None
    return (sorted_list if is_listed else pack)(indices, shape, format, dtype)


@graph_break
@_without_coalesce
def from_csr(
    pos: torch.Tensor | ArrayLike,
    crd: torch.Tensor | ArrayLike,
    values: torch.Tensor | ArrayLike,
    shape: Sequence[int],
    *,
    assume_sorted: bool = False,
    copy: bool = True,
    check_invariants: bool = True,
) -> SparseTensor:
    """Create a CSR matrix from its arrays; gradients flow to the values.

    The columns of a row may be in any order. If a row is unsorted or repeats a column, entries are sorted, and values at the same
    coordinates are summed. Otherwise, a torch tensor of values is shared, as in ``torch.sparse_csr_tensor``: it may be a
    parameter. Index arrays and NumPy arrays of values are copied.

    Args:
        pos: the start of each row, and the end of the last; integers of shape (rows + 1,).
        crd: the column of each value, integers of shape (nnz,). For more than 2^31 - 1 values, int32 columns keep their size: the
            format is CSR with ``compressed(bits=32)``.
        values: the values, shape (nnz,).
        shape: the numbers of rows and columns.
        assume_sorted: the columns of each row must increase strictly; other columns raise FormatError.
        copy: False shares all arrays if rows are sorted. Then don't write to ``pos`` and ``crd``.
        check_invariants: False skips the validation of the index arrays and, with ``assume_sorted``, of their order. Kernels
            access memory through them without bounds checks.

    Returns:
        A SparseTensor in the format CSR.

    Raises:
        FormatError: the index arrays are not a CSR matrix; with ``assume_sorted``, also unsorted or repeated columns.
        SizeError: the lengths of the arrays disagree, or the shape has not two dimensions.
        UnsupportedError: the values have an unsupported data type, device or layout.

    Complexity:
        O(nnz + rows), or O(nnz log nnz) if a row is unsorted.

    >>> from_csr([0, 1, 3], [2, 0, 1], [1.0, 2.0, 3.0], (2, 3)).to_dense()
    tensor([[0., 0., 1.],
            [2., 3., 0.]])
    """
    size = as_shape(shape)
    if len(size) != 2:
        raise SizeError(f"from_csr takes a shape of 2 dimensions, not {size}: use from_coo")
    A = from_parts(CSR, as_indices(pos, "pos"), as_indices(crd, "crd"), as_values(values), size, assume_sorted, check_invariants)
    return owned(A, pos, crd, *([] if isinstance(values, torch.Tensor) else [values])) if copy else A


def from_parts(
    format: Format,
    pos: torch.Tensor,
    crd: torch.Tensor,
    values: torch.Tensor,
    shape: tuple[int, ...],
    assume_sorted: bool = False,
    check_invariants: bool = True,
) -> SparseTensor:
    """Create a CSR or CSC matrix from its arrays; see :func:`from_csr`."""
    values = check_values(values)
    for name, array in (("pos", pos), ("crd", crd)):
        if array.ndim != 1:
            raise SizeError(f"{name} has shape {tuple(array.shape)}: pass a 1-D array")
    parents = shape[format.mode_order[0]]
    if len(pos) != parents + 1:
        raise SizeError(
            f"pos has {len(pos)} entries, but {format.name} of shape {shape} needs {parents + 1}: "
            "the start of each row or column, and the end"
        )
    if len(crd) != len(values):
        raise SizeError(f"crd has {len(crd)} entries, but values has {len(values)}: pass one value for each coordinate")
    needs_int64 = torch.int64 in (pos.dtype, crd.dtype) or index_dtype_for(shape, len(crd)) == np.int64
    dtype = torch.int64 if needs_int64 else torch.int32
    if len(crd) > INT32_MAX >= shape[format.mode_order[1]] and crd.dtype == torch.int32:  # half the memory, and no copy
        format = Format((format.levels[0], Compressed(bits=32)), format.parts)
        crd = crd.view(torch.uint32)
    else:
        crd = crd.to(dtype)
    pattern = Pattern(format, shape, ((), (pos.to(dtype).contiguous(), crd.contiguous())))
    return checked(pattern, values, assume_sorted, check_invariants)


def checked(pattern: Pattern, values: torch.Tensor, assume_sorted: bool = False, check_invariants: bool = True) -> SparseTensor:
    """Create a tensor from a pattern, after validation; unsorted coordinates are sorted unless ``assume_sorted``."""
    if check_invariants:
        validate(pattern, order=assume_sorted)
    if not assume_sorted and disorder(pattern) is not None:
        return assemble(entry_columns(pattern), values, pattern.shape, pattern.format, np.dtype(pattern.index_dtype))
    return SparseTensor(pattern, values)
