"""torch's equality of whole tensors, extremes with their indices, and sorting of coordinates; unstored entries count as 0."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import pairwise
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from ..convert.construct import assemble, from_coo, from_torch
from ..convert.conversions import can_copy, converted_so_far, copied, is_differentiated, to_format
from ..convert.matrices import sorts
from ..convert.values import densified, strided
from ..errors import SizeError, UnsupportedError
from ..frontend.requests import row_major
from ..ir.format import COO, Format, sorted_format
from ..machine.memory import COORDINATE, check_entries
from ..programs.evaluation import evaluate_parts
from ..schedule import tuning
from ..tensors.arrays import as_integer
from ..tensors.coordinate_order import sorted_columns
from ..tensors.modes import as_numpy, made_outside
from ..tensors.packing import check_countable, coordinates, entry_columns, has_gaps, of_entries
from ..tensors.parameter import SparseParameter
from ..tensors.restriction import entries_of, has_fibres
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import disorder, validate
from .attributes import LIKE
from .elementwise import add
from .indexing import narrow
from .naming import with_name
from .reducing import amax, amin
from .reshaping import flatten, movedim, normalize_dim, transpose

Choose = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ROWS = lru_cache(maxsize=64)(lambda order: Format("d" * (order - 1) + "s"))  # stores the last dimension in sorted rows, as CSR does


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors have the same shape and the same nonzero entries; formats and data types may differ.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor, sparse or dense.

    Returns:
        True or False.

    Raises:
        OperandError: an operand is not a tensor.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.equal(A, torch.eye(2)), ns.equal(A, 2 * A)
    (True, False)
    """
    if tuple(input.shape) != tuple(other.shape):
        return False
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor) and input.pattern is other.pattern:
        return torch.equal(input.values, other.values)
    first, second = (_nonzeros(t) for t in (input, other))
    return torch.equal(first.indices(), second.indices()) and torch.equal(first.values, second.values)


def _nonzeros(tensor: Any) -> SparseTensor:
    format = COO(tensor.ndim)
    return eliminate_zeros(tensor.to(format) if isinstance(tensor, SparseTensor) else from_torch(tensor, format, copy=False))


def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether ``|input - other| <= atol + rtol * |other|`` at every entry.

    For two sparse tensors, the stored entries of both are compared; otherwise, the sparse one is made dense.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor that broadcasts with ``input``.
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        equal_nan: whether two NaN are close.

    Returns:
        True or False.

    Raises:
        OperandError: an operand is not a tensor.
        RuntimeError: the shapes do not broadcast; SizeError if both tensors are sparse.
        UnsupportedError: one tensor is dense, within ``ns.strict()``.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.allclose(A, torch.eye(2)), ns.allclose(A, A + A)
    (True, False)
    """
    with torch.no_grad():
        if not (isinstance(input, SparseTensor) and isinstance(other, SparseTensor)):
            return torch.allclose(densified(input, "allclose"), densified(other, "allclose"), rtol, atol, equal_nan)
        zero = LIKE["zeros_like"](input) + LIKE["zeros_like"](other)  # zeros at the union of both patterns
        left, right = (add(zero, t).values for t in (input, other))
    return torch.allclose(left, right, rtol, atol, equal_nan)


def topk(input: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k largest or smallest entries along a dimension, and their indices; unstored entries are 0.

    As in torch, the choice among equal entries is unspecified.

    Args:
        input: a SparseTensor.
        k: the number of entries.
        dim: the dimension.
        largest: True for the largest entries, False for the smallest ones.
        sorted: whether the entries are in descending order, or in ascending order if ``largest`` is False.

    Returns:
        A named tuple of two dense tensors, ``values`` and ``indices``, whose dimension ``dim`` has size k.

    Complexity:
        O(nnz + n k log n) for a result with n k values, and a conversion if the dimension is not the last one that the format stores.

    Raises:
        OperandError: k is not an integer.
        RangeError: the dimension does not exist.
        RuntimeError: the values are complex.
        SizeError: the dimension has fewer than k entries, or the result exceeds the memory limit.

    >>> import numscorch as ns
    >>> ns.topk(ns.from_torch(torch.tensor([[0.0, -1.0, 5.0]])), 2).values
    tensor([[5., 0.]])
    """
    k = as_integer(k)
    return torch.return_types.topk(chosen_of_rows(input, k, dim, largest, lambda values, _: values.topk(k, 1, largest, sorted).indices))


def chosen_of_rows(input: SparseTensor, k: int, dim: int, largest: bool, choose: Choose) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose k entries along a dimension; returns their values and indices, both dense.

    Rows with about equally many stored entries form dense matrices, so that torch handles many rows at once. Shorter rows are padded
    with the last value in order. Where a padding is chosen, as a row has many such values, rows of equal length are chosen from again.

    Args:
        input: the tensor.
        k: number of entries to choose.
        dim: the dimension.
        largest: whether the largest entries come first.
        choose: a function of a matrix of values and a matrix of coordinates that returns k columns for each row. The values are
            all stored ones, followed by a 0 for each of the first unstored entries, whose coordinates are given, k at most.

    Raises:
        SizeError: the dimension has fewer than k entries, or the result exceeds the memory limit.
    """
    at = normalize_dim(dim, input.ndim) if input.ndim else 0
    if not input.ndim or not 0 <= k <= input.shape[at]:
        raise SizeError(
            f"{k} largest or smallest entries along dim {dim} of shape {tuple(input.shape)}: k is at least 0, and at most its size"
        )
    moved = transpose(input, at, input.ndim - 1)
    *sizes, size = moved.shape
    where, suggestion = f"k={k} of shape {tuple(input.shape)}", "use a smaller k, or compute it in parts"
    check_entries(prod(sizes) * k, 4, COORDINATE, "the dense result", where, suggestion)
    rows = to_format(moved, ROWS(input.ndim))
    pos, crd = (as_numpy(array) for array in rows.pattern.arrays[-1])
    values = rows.values if rows.nnz else torch.cat([rows.values, rows.values.new_zeros(1)])  # so that there is a value to gather
    read = values.detach().to(torch.int8) if values.dtype == torch.bool else values.detach()  # torch.topk does not support bool
    counts = np.diff(pos)
    lists = _Lists(torch.from_numpy(pos.astype(np.int64)), torch.from_numpy(crd), read, size, _last_in_order(read.dtype, largest))
    if is_functorch_wrapped_tensor(read):  # a padding that is chosen could not be seen
        position, column = lists.chosen(np.arange(len(counts)), counts, k, choose)
    else:
        kept_bits = 4 if len(crd) >= tuning.PADDED_LISTS else 2  # an eighth of a row is padding at most, or a half: fewer groups
        step = np.left_shift(1, np.maximum(np.frexp(counts)[1] - kept_bits, 0))
        widths = -(-counts // step) * step
        position, column = lists.chosen(np.arange(len(counts)), np.where(pos[:-1] + widths <= len(crd), widths, counts), k, choose)
        again = np.flatnonzero((column < 0).any(1).numpy())
        position[again], column[again] = lists.chosen(again, counts[again], k, choose)
    position, column = (chosen.reshape(*sizes, k).transpose(at, -1) for chosen in (position, column))
    return values[position.clamp(min=0)].masked_fill(position < 0, 0), column.to(torch.int64)


def _last_in_order(dtype: torch.dtype, largest: bool) -> float | int:
    """The value that is last if the largest (or smallest) come first, apart from NaN."""
    if dtype.is_floating_point or dtype.is_complex:
        return -inf if largest else inf
    return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max


class _Lists(NamedTuple):
    """Sorted rows: starts, coordinates, values, the number of columns, and the value of a padding."""

    pos: torch.Tensor
    crd: torch.Tensor
    values: torch.Tensor
    size: int
    padding: float | int

    def chosen(self, rows: np.ndarray, widths: np.ndarray, k: int, choose: Choose) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (-1: unstored) and coordinates (-1: a padding) of the entries that are chosen in rows read with these widths."""
        (widths,), order = sorted_columns([widths], [int(widths.max(initial=0)) + 1])
        numbers, places, parts = torch.from_numpy(rows[order]), torch.from_numpy(np.argsort(order)), []
        for start, stop in pairwise([0, *np.flatnonzero(np.diff(widths)) + 1, len(rows)]):
            width = int(widths[start]) if start < stop else 0
            pieces = numbers[start:stop].split(max(tuning.CHOICE_VALUES // max(width + k, 1), 1))
            parts += [self._of_equal_widths(piece, width, k, choose) for piece in pieces]
        position, column = (torch.cat(chosen).index_select(0, places) for chosen in zip(*parts, strict=True))
        return position, column

    def _of_equal_widths(self, rows: torch.Tensor, width: int, k: int, choose: Choose) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`chosen` for rows that are all read with the same width."""
        first, lengths = self.pos[rows], self.pos[rows + 1] - self.pos[rows]
        stored, values = (array.unfold(0, width, 1).index_select(0, first) for array in (self.crd, self.values))
        is_padding = torch.arange(width) >= lengths[:, None] if bool((lengths < width).any()) else None
        shortest = int(lengths.min()) if len(rows) else 0
        free = _unstored(stored, min(k, self.size - shortest), is_padding)
        values = torch.cat([values, values.new_zeros(free.shape)], 1)
        if is_padding is not None:
            is_padding = torch.cat([is_padding, free >= self.size], 1)
            values.masked_fill_(is_padding, self.padding)
        place = choose(values, free)
        column = torch.cat([stored, free], 1).gather(1, place)
        if is_padding is not None:
            column.masked_fill_(is_padding.gather(1, place), -1)
        return torch.where(place < width, first[:, None] + place, -1), column


def _unstored(stored: torch.Tensor, k: int, is_padding: torch.Tensor | None = None) -> torch.Tensor:
    """The first k unstored coordinates of each row, given the sorted stored ones, and a padding behind them.

    The n-th unstored coordinate follows all stored ones that have at most n unstored ones before them.

    >>> _unstored(torch.tensor([[0, 2, 3], [4, 5, 6]]), 2).tolist()
    [[1, 4], [0, 1]]
    """
    nth = torch.arange(k, dtype=stored.dtype).expand(len(stored), k).contiguous()
    before = stored - torch.arange(stored.shape[1], dtype=stored.dtype)
    if is_padding is not None:
        before.masked_fill_(is_padding, torch.iinfo(stored.dtype).max)
    return nth + torch.searchsorted(before, nth, right=True).to(stored.dtype)


def _extreme(input: SparseTensor, dim: int, is_largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first extreme entry along a dimension and its index; the dimension is kept.

    Kernels find the extreme value, and the smallest index of a stored entry with this value; an unstored 0 may come before it.
    Gradients and long, almost empty dimensions need the entries in rows.

    Raises:
        SizeError: the dimension has no entries, or the result exceeds the memory limit.
    """
    at, size = (normalize_dim(dim, input.ndim), input.shape[dim]) if input.ndim else (0, 0)
    if input.ndim and not size:
        raise SizeError(f"the first extreme along dim {dim} of shape {tuple(input.shape)}: the dimension has no entries")
    if not can_copy(input.values) or not 0 < size <= tuning.COUNTED_COORDINATES * max(input.nnz, 1 << 10):
        return chosen_of_rows(input, 1, dim, is_largest, partial(_first_of_rows, torch.max if is_largest else torch.min))
    extreme = strided((amax if is_largest else amin)(input, at))
    exact = torch.int64 if not input.dtype.is_floating_point else torch.float32 if size <= 1 << 24 else torch.float64
    names = [f"i{d}" for d in range(input.ndim)]
    entry, row = f"A[{','.join(names)}]", f"m[{','.join(names[:at] + names[at + 1 :])}]" if input.ndim > 1 else "m"
    text = f"K{row[1:]} max= stored({entry}) * (({entry} == {row}) + ({entry} != {entry})) * n[i{at}]"
    ranked = evaluate_parts(text, {"A": input, "m": extreme, "n": torch.arange(size, 0, -1, dtype=exact)}, "dense")
    index = (size - ranked).to(torch.int64)
    if (is_zero := extreme == 0).numpy().any():
        index = torch.where(is_zero, torch.minimum(index, _first_unstored(movedim(input, at, -1))), index)
    return extreme.unsqueeze(at), index.unsqueeze(at)


def _first_of_rows(extreme: Callable[..., Any], values: torch.Tensor, free: torch.Tensor) -> torch.Tensor:
    """The column of the first extreme value, or of NaN, in each row of :func:`chosen_of_rows`."""
    value, place = extreme(values, 1, keepdim=True)
    is_unstored = (value == 0) & (place >= free)  # all coordinates before the first unstored one are stored
    return torch.where(is_unstored, values.shape[1] - 1, place) if free.shape[1] else place


def _first_unstored(A: SparseTensor, width: int = 64) -> torch.Tensor:
    """The first unstored coordinate of each row, along the last dimension; its size if all are stored.

    If the format does not store rows side by side, their first ``width`` coordinates are converted; more if some row has all of them.
    """
    size = A.shape[-1]
    width = size if A.format.mode_order[-1] == A.ndim - 1 else min(width, size)
    part = A if width == size else narrow(A, A.ndim - 1, 0, width)
    pos, crd = to_format(part, ROWS(A.ndim)).pattern.level_arrays(A.ndim - 1)
    first = np.zeros(len(pos) - 1, np.int64)
    zeros = np.flatnonzero(crd == 0).astype(pos.dtype, copy=False)
    rows = np.searchsorted(pos, zeros, "right") - 1  # the rows that begin with coordinate 0
    starts, lengths = pos[rows], pos[rows + 1] - pos[rows]
    run = np.zeros_like(lengths)  # the coordinates 0, 1, 2, ... that are stored
    for step in [1 << bit for bit in reversed(range(int(lengths.max(initial=0)).bit_length()))]:
        longer = np.minimum(run + step, lengths)
        run = np.where(crd[starts + longer - 1] == longer - 1, longer, run)
    first[rows] = run
    if width < size and (first == width).any():
        return _first_unstored(A, width * width)
    return torch.from_numpy(first.reshape(A.shape[:-1]))


def _first_extreme(A: SparseTensor, is_largest: bool) -> torch.Tensor:
    """The number of the first extreme entry in row-major order. Only entries with the extreme value, or not 0, are put in this order."""
    values, steps = A.values.detach(), row_major(A.shape)
    if 0 in A.shape or not can_copy(values):
        return _extreme(flatten(A), 0, is_largest)[1]
    check_countable(A.shape)
    extreme = (amax if is_largest else amin)(A.with_values(values))
    searched = values if extreme == 0 else (values == extreme) | (values != values)
    entries = _nonzeros(eliminate_zeros(A.with_values(searched)))
    columns = entry_columns(entries.pattern)

    def number_of(entry: int) -> int:
        return sum(int(column[entry]) * step for column, step in zip(columns, steps, strict=True))

    if extreme != 0:
        return torch.tensor(number_of(0))
    return torch.tensor(bisect_left(range(entries.nnz), True, key=lambda entry: number_of(entry) > entry))


def _extreme_of(name: str, is_largest: bool) -> Callable[..., Any]:
    """torch.max or torch.min: of all entries, along a dimension with indices, or element-wise for two tensors."""

    def extreme(input: Any, other: Any = None, keepdim: bool = False, *, dim: Any = None) -> Any:
        if isinstance(other, torch.Tensor | SparseTensor):
            return getattr(torch, f"{name}imum")(input, other)
        dim = other if dim is None else as_integer(dim)
        if dim is None:
            return (amax if is_largest else amin)(input)
        results = _extreme(input, dim, is_largest)
        return getattr(torch.return_types, name)(results if keepdim else (result.squeeze(dim) for result in results))

    return with_name(
        extreme,
        name,
        f"""The {name}imum of all entries, along a dimension, or of two tensors element-wise; unstored entries are 0.

    Args:
        input: a SparseTensor; with a tensor as ``other``, either tensor may be dense.
        other: a dimension, or a second tensor for the element-wise {name}imum; None for the {name}imum of all entries.
        keepdim: whether to keep the dimension with size 1.
        dim: the dimension, if it is given by keyword.

    Returns:
        For all entries, a dense tensor without dimensions. For a dimension, a named tuple of two dense tensors, ``values`` and
        ``indices``; among equal entries, the index is that of the first one. For two tensors, the result of ``{name}imum``.

    Raises:
        OperandError: the dimension is not an integer.
        RangeError: the dimension does not exist.
        SizeError: the dimension has no entries.
        UnsupportedError: the values are complex.

    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.{name}(A), ns.{name}(A, 1).values, ns.{name}(A, 1).indices
    {"(tensor(4.), tensor([2., 4.]), tensor([1, 1]))" if is_largest else "(tensor(0.), tensor([0., 3.]), tensor([0, 0]))"}
    """,
    )


def _index_of(name: str, is_largest: bool) -> Callable[..., Any]:
    def places(input: SparseTensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
        if dim is None:
            return _first_extreme(input, is_largest).reshape([1] * input.ndim if keepdim else [])
        index = _extreme(input, dim, is_largest)[1]
        return index if keepdim else index.squeeze(dim)

    return with_name(
        places,
        name,
        f"""The index of the first {"largest" if is_largest else "smallest"} entry; unstored entries are 0.

    Args:
        input: a SparseTensor.
        dim: the dimension; None for the index in the flattened tensor.
        keepdim: whether to keep the reduced dimensions with size 1.

    Returns:
        A dense int64 tensor.

    Raises:
        RangeError: the dimension does not exist.
        SizeError: the dimension has no entries.
        UnsupportedError: the values are complex.

    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    >>> ns.{name}(A), ns.{name}(A, 1)
    {"(tensor(3), tensor([1, 1]))" if is_largest else "(tensor(0), tensor([0, 0]))"}
    """,
    )


def aminmax(input: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """The smallest and the largest entry of a tensor or along a dimension; unstored entries are 0.

    Args:
        input: a SparseTensor.
        dim: the dimension; None for all entries.
        keepdim: whether to keep the reduced dimensions with size 1.

    Returns:
        A named tuple of two tensors, ``min`` and ``max``; dense if at most one dimension remains.

    Raises:
        RangeError: the dimension does not exist.
        SizeError: the reduced dimensions have no entries.
        UnsupportedError: the values are complex.

    >>> import numscorch as ns
    >>> smallest, largest = ns.aminmax(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 4.0]])), dim=1)
    >>> smallest, largest
    (tensor([0., 3.]), tensor([2., 4.]))
    """
    return torch.return_types.aminmax((amin(input, dim, keepdim), amax(input, dim, keepdim)))


# ---- order of the entries


def ordered(A: SparseTensor) -> SparseTensor:
    """The tensor with sorted, unique coordinates; the tensor itself if they already are.

    Unordered levels are sorted and become ordered. Unchecked arrays are validated, and entries with equal coordinates are
    summed. The pattern caches the check and the sorting. The first call takes O(nnz), or O(nnz log nnz) if it sorts.

    Raises:
        FormatError: index arrays that were not checked are invalid.

    >>> import numscorch as ns
    >>> A = ns.from_csr([0, 3], [2, 0, 2], [1.0, 2.0, 3.0], (1, 3), assume_sorted=True, check_invariants=False)
    >>> ordered(A).to_scipy().indices.tolist(), ordered(A).values.tolist()
    ([0, 2], [2.0, 4.0])
    """
    target, derived = sorted_format(A.format), A.pattern.derived
    is_new = not {"disorder", ("moved", target), ("converted", target)} & derived.keys()
    A.pattern.remember("valid", lambda: validate(A.pattern, order=False))  # kernels don't check coordinates
    if is_new and sorts(A.pattern, target) and can_copy(plain := A.values.detach()):
        result = to_format(SparseTensor.trusted(A.pattern, plain), target)  # kernels sum repeated coordinates
        if result.pattern.nnz == A.pattern.nnz and (("moved", target) in derived or "disorder" in derived):
            derived.setdefault("disorder", None)
            return to_format(A, target) if is_differentiated(A.values) else result
        derived.pop(("moved", target), None)
        derived.pop(("converted", target), None)
    if A.pattern.remember("disorder", lambda: disorder(A.pattern)) is None:
        return to_format(A, target)
    return assemble(as_numpy(coordinates(A.pattern)), of_entries(A.pattern, A.values), A.pattern.shape, target)


def coalesce(input: Any) -> Any:
    """Sort coordinates, and sum entries with equal coordinates, by calling ``input.coalesce()``.

    Args:
        input: a SparseTensor, or a torch COO tensor.

    Returns:
        A tensor of the argument's type and shape with sorted, unique coordinates; the argument itself if its coordinates are sorted
        and unique. Unordered levels of a SparseTensor become ordered.

    Raises:
        FormatError: the index arrays of a SparseTensor that was created with ``check_invariants=False`` are invalid.
        RuntimeError: a torch tensor is not a COO tensor.

    Complexity:
        O(nnz) to check a new pattern, and O(nnz log nnz) to sort it; both are cached with the pattern.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.coalesce(A) is A
    True
    """
    return input.coalesce()


def sort(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Sort the coordinates in each row of a SparseTensor, like :func:`coalesce`; for torch's tensors, call ``torch.sort``.

    Args:
        input: a SparseTensor or a torch tensor.
        args, kwargs: further arguments of ``torch.sort``, for torch's tensors only.

    Returns:
        A SparseTensor with sorted, unique coordinates, or the values and indices that ``torch.sort`` returns.

    Raises:
        FormatError: as for :func:`coalesce`.
        UnsupportedError: further arguments are given with a SparseTensor.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2), "(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> ns.sort(A).format.name, ns.sort(torch.tensor([2, 1])).values
    ('CSR', tensor([1, 2]))
    """
    if not isinstance(input, SparseTensor | SparseParameter):
        return torch.sort(input, *args, **kwargs)
    if args or kwargs:
        raise UnsupportedError("sort of a SparseTensor puts the coordinates of each row in order, and takes nothing else: sort A.values")
    return input.coalesce()


def eliminate_zeros(input: Any) -> Any:
    """Remove stored zeros. Unlike SciPy's method, it returns a new tensor.

    Formats with blocks, diagonals or fixed lengths still store some zeros, next to other entries. Gradients flow to the remaining values.

    Args:
        input: a SparseTensor, a torch sparse tensor of any layout, or a strided tensor.

    Returns:
        A tensor of the argument's type, shape and format; the argument itself if it stores no zeros, or is strided.

    Raises:
        OperandError: more than one argument is given.

    Complexity:
        O(nnz).

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1], [1, 0]], torch.tensor([0.0, 2.0]), (2, 2), ns.CSR)
    >>> A.nnz, A.eliminate_zeros().nnz, ns.eliminate_zeros(A).values
    (2, 1, tensor([2.]))
    """
    if not isinstance(input, SparseTensor):
        return input
    pattern, values = input.pattern, of_entries(input.pattern, input.values) if has_gaps(input.pattern) else input.values
    is_kept = as_numpy(values.detach().to(torch.bool))  # a tenth of the time of a comparison
    if is_kept.all():
        return input
    has_rows = input.ndim > 1 and pattern.format.is_plain and pattern.format.levels == ROWS(input.ndim).levels
    if has_rows and can_copy(values) and converted_so_far(pattern.format, pattern.format, len(values)) >= tuning.COMPILE_ENTRIES:
        return copied(input, input.format, int(np.count_nonzero(is_kept)))
    kept = np.flatnonzero(is_kept)
    remaining = values.index_select(0, torch.from_numpy(kept))
    if pattern.is_dense or not has_fibres(pattern.format):
        return from_coo(coordinates(pattern)[:, torch.from_numpy(kept)], remaining, pattern.shape, pattern.format)
    return SparseTensor.trusted(made_outside(lambda: entries_of(pattern, is_kept, kept)), remaining)


COMPARISON: dict[str, Callable[..., Any]] = {
    "allclose": allclose,
    "aminmax": aminmax,
    "argmax": _index_of("argmax", is_largest=True),
    "argmin": _index_of("argmin", is_largest=False),
    "eliminate_zeros": eliminate_zeros,
    "equal": equal,
    "max": _extreme_of("max", is_largest=True),
    "min": _extreme_of("min", is_largest=False),
    "topk": topk,
}
