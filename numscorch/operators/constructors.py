"""torch's constructors of tensors from sizes: with ``format=``, they make SparseTensors; without, they are torch's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import prod
from typing import Any

import numpy as np
import torch

from ..convert.construct import from_coo, from_torch
from ..errors import SizeError, UnsupportedError
from ..ir.format import Format, as_format
from ..ir.level import INT64_MAX
from ..machine.memory import check_entries
from ..tensors.arrays import as_shape
from ..tensors.packing import index_dtype_for
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .objects import LIKE
from .rearranging import unraveled

Constructor = Callable[..., Any]


def in_formats(
    theirs: Constructor, refused: tuple[str, ...] = ("out", "layout", "names", "pin_memory")
) -> Callable[[Constructor], Constructor]:
    """A constructor beside torch's: called where a format is asked for, and given that; torch's takes every other call as it is.

    Args:
        theirs: torch's constructor.
        refused: its arguments that have no meaning for a SparseTensor.
    """

    def beside(ours: Constructor) -> Constructor:
        make = beside_programs(ours)

        @wraps(ours)
        def constructor(*args: Any, format: Format | str | None = None, **kwargs: Any) -> Any:
            if format is not None:
                return make(*args, format=as_format(format), **_tensor_options(ours.__name__, kwargs, refused))
            if "density" in kwargs:
                raise UnsupportedError(f"{ours.__name__} with density= makes a sparse tensor: say how it is stored, as format=ns.CSR")
            return theirs(*args, **kwargs)

        return constructor

    return beside


def _tensor_options(name: str, kwargs: dict[str, Any], refused: tuple[str, ...]) -> dict[str, Any]:
    """The arguments that are left when a device is checked; what only torch's tensors have is refused."""
    for other in refused:
        given = kwargs.pop(other, None)
        if given is not None and given is not False:
            raise UnsupportedError(f"{name} with format= and {other}=: a SparseTensor has none, so leave one of them out")
    device = kwargs.pop("device", None)
    if device is not None and torch.device(device).type != "cpu":
        raise UnsupportedError(f"{name} with format= on {device}: numscorch runs on the CPU, so leave device= out")
    return kwargs


def trained(A: SparseTensor, requires_grad: bool) -> SparseTensor:
    """The tensor, its values a leaf that requires grad where that is asked for."""
    return A.with_values(A.values.detach().requires_grad_()) if requires_grad else A


def _sizes(sizes: tuple[Any, ...], size: Any) -> tuple[int, ...]:
    """The shape of a call with sizes one by one, in a sequence, or by keyword."""
    if size is not None:
        return as_shape(size)
    return as_shape(sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes)


@in_formats(torch.eye)
def eye(n: int, m: int | None = None, *, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """torch.eye; with ``format=`` a SparseTensor of shape (n, m) that stores the ones of the diagonal. O(min(n, m)).

    Raises:
        SizeError: the entries are larger than the memory limit.

    >>> import numscorch as ns
    >>> ns.eye(3, format=ns.CSR)
    SparseTensor(CSR, shape=(3, 3), nnz=3, density=0.333, float32, int32 indices)
    """
    shape = as_shape((n, n if m is None else m))
    dtype = torch.get_default_dtype() if dtype is None else dtype
    _check_room(min(shape), shape, dtype, format, "ns.from_coo stores just the entries that it is given")
    along = np.arange(min(shape))
    return trained(_stored(np.stack([along, along]), torch.ones(len(along), dtype=dtype), shape, format), requires_grad)


@in_formats(torch.tensor)
def tensor(data: Any, *, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """torch.tensor; with ``format=`` a SparseTensor of the entries other than 0. O(size).

    >>> import numscorch as ns
    >>> ns.tensor([[0, 1.5], [2, 0]], format=ns.CSC).values
    tensor([2.0000, 1.5000])
    """
    return trained(from_torch(torch.tensor(data, dtype=dtype), format), requires_grad)


@in_formats(torch.zeros)
def zeros(*sizes: Any, size: Any = None, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """torch.zeros; with ``format=`` a SparseTensor without entries, or of zeros where the format stores every coordinate.

    >>> import numscorch as ns
    >>> ns.zeros(2, 3, format=ns.CSC)
    SparseTensor(CSC, shape=(2, 3), nnz=0, density=0, float32, int32 indices)
    """
    shape = _sizes(sizes, size)
    return trained(_stored(np.empty((len(shape), 0), np.int64), torch.zeros(0, dtype=dtype), shape, format), requires_grad)


@in_formats(torch.empty, ("out", "layout", "names", "pin_memory", "memory_format"))
def empty(*sizes: Any, size: Any = None, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """torch.empty; with ``format=`` what :func:`zeros` makes, as ``torch.empty(layout=torch.sparse_csr)``: there is nothing to fill.

    >>> import numscorch as ns
    >>> ns.empty(2, 3, format=ns.CSR).nnz
    0
    """
    tensor: SparseTensor = zeros(*sizes, size=size, format=format, dtype=dtype, requires_grad=requires_grad)
    return tensor


@in_formats(torch.full)
def full(size: Any, fill_value: Any, *, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """torch.full; with ``format=`` a SparseTensor that stores every entry, explicit zeros too. O(size).

    That is what is asked for, and of use where most entries are dropped later; :func:`zeros` stores none.

    Raises:
        FormatError: the format has no place for some entries.
        SizeError: the entries are larger than the memory limit.

    >>> import numscorch as ns
    >>> ns.full((2, 2), 3.5, format=ns.CSR).values
    tensor([3.5000, 3.5000, 3.5000, 3.5000])
    """
    shape, dtype = _sizes((size,), None), torch.full((), fill_value, dtype=dtype).dtype
    _check_room(prod(shape), shape, dtype, format, "ns.zeros stores nothing, and ns.rand and ns.randn take a density")
    everywhere = from_torch(torch.ones(shape, dtype=torch.bool), format)
    tensor: SparseTensor = LIKE["full_like"](everywhere, fill_value, dtype=dtype, requires_grad=requires_grad)
    return tensor


@in_formats(torch.ones)
def ones(*sizes: Any, size: Any = None, format: Format, dtype: torch.dtype | None = None, requires_grad: bool = False) -> SparseTensor:
    """torch.ones; with ``format=`` a SparseTensor that stores every entry, as :func:`full`.

    >>> import numscorch as ns
    >>> ns.ones(2, 3, format=ns.COO(2)).nnz
    6
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    tensor: SparseTensor = full(_sizes(sizes, size), 1, format=format, dtype=dtype, requires_grad=requires_grad)
    return tensor


@in_formats(torch.rand)
def rand(*sizes: Any, format: Format, **options: Any) -> SparseTensor:
    """torch.rand; with ``format=`` and ``density=`` a SparseTensor of uniform values from 0 to 1 at random places.

    Args:
        sizes: one by one, as a sequence, or as ``size=``.
        format: how it is stored. Formats of blocks or diagonals store zeros beside the entries.
        density: the share of entries that is stored: ``round(density * size)`` of them, each such set as likely as any other.
        generator: which draws the places, then the values; by default torch's own, seeded by ``torch.manual_seed``.
        dtype, requires_grad: of the values.

    Raises:
        FormatError: the format can't store what was drawn.
        SizeError: the density is not between 0 and 1, the entries are larger than the memory limit, or int64 can't count the places.
        UnsupportedError: no density.

    Time is O(nnz log nnz), memory O(nnz), whatever the shape.

    >>> import numscorch as ns
    >>> ns.rand(1000, 2000, density=0.01, format=ns.CSR)
    SparseTensor(CSR, shape=(1000, 2000), nnz=20000, density=0.01, float32, int32 indices)
    """
    return _random(torch.rand, sizes, format, **options)


@in_formats(torch.randn)
def randn(*sizes: Any, format: Format, **options: Any) -> SparseTensor:
    """torch.randn; with ``format=`` and ``density=`` a SparseTensor of normally distributed values at random places, as :func:`rand`.

    >>> import numscorch as ns
    >>> ns.randn(50, 50, 50, density=0.001, format=ns.CSF(3)).nnz
    125
    """
    return _random(torch.randn, sizes, format, **options)


def _random(
    draw: Constructor,
    sizes: tuple[Any, ...],
    format: Format,
    *,
    size: Any = None,
    density: float | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    name, shape = getattr(draw, "__name__", ""), _sizes(sizes, size)
    if density is None:
        raise UnsupportedError(f"{name} with format= needs to know how many entries to store: give density=, the share of them")
    if not 0 <= density <= 1:
        raise SizeError(f"density={density}: the share of entries that are stored lies between 0 and 1")
    if prod(shape) > INT64_MAX:
        raise SizeError(f"{name} of shape {shape}: int64 cannot number that many places; draw coordinates, and pass them to ns.from_coo")
    count = round(density * prod(shape))
    _check_room(count, shape, dtype or torch.get_default_dtype(), format, "ask for a smaller density")
    places = unraveled(drawn(count, prod(shape), generator), shape)
    values = draw(count, generator=generator, dtype=dtype)
    return trained(_stored(places, values, shape, format), requires_grad)


def drawn(count: int, among: int, generator: torch.Generator | None = None) -> np.ndarray:
    """So many different numbers below ``among``, in increasing order, each set as likely as any other. Memory is O(count).

    >>> drawn(3, 3).tolist(), len(set(drawn(5, 10**15).tolist()))
    ([0, 1, 2], 5)
    """
    if 2 * count > among:  # few are left out, and fewer draws repeat one
        kept = np.ones(among, np.bool_)
        kept[drawn(among - count, among, generator)] = False
        return np.flatnonzero(kept)
    places = np.empty(0, np.int64)
    while (missing := count - len(places)) > 0:
        repeats = missing * count // among  # about so many of the draws are known already
        more = torch.randint(among, (missing + repeats + 8,), generator=generator)
        places = np.sort(np.concatenate([places, more.numpy()]))
        places = places[np.diff(places, prepend=-1) > 0]
    if len(places) == count:
        return places
    kept = np.zeros(len(places), np.bool_)
    kept[torch.randperm(len(places), generator=generator)[:count].numpy()] = True
    return places[kept]


def _check_room(count: int, shape: tuple[int, ...], dtype: torch.dtype, format: Format, way_out: str) -> None:
    """Refuse so many entries if they, and their coordinates, are larger than the memory limit."""
    check_entries(count, len(shape), dtype.itemsize, f"a tensor of shape {shape}", format, way_out)


def _stored(indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], format: Format) -> SparseTensor:
    """Entries in row-major order, in a format."""
    narrow = indices.astype(index_dtype_for(shape, indices.shape[1]), copy=False)
    return from_coo(narrow, values, shape, assume_sorted=True, check_invariants=False).to(format)
