"""Attributes and methods that code for dense tensors, or for torch's sparse tensors, expects.

These are the data type, memory and autograd state; and the layout, index arrays, conversions between layouts, and sorted coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from ..convert.construct import assemble, from_coo
from ..convert.conversions import converted, to_format
from ..convert.matrices import sorts
from ..errors import MissingError, SizeError, UnsupportedError
from ..ir.format import sorted_format
from ..tensors.modes import as_numpy
from ..tensors.packing import coordinates, of_entries
from ..tensors.sparse_tensor import PROPERTIES, SparseTensor
from ..tensors.suggestions import type_name
from ..tensors.torch_layouts import BY_ROWS, COMPRESSED, TorchLayout, compressed_arrays, format_of, layout_of
from ..tensors.validate import disorder
from .naming import with_name
from .rearranging import transpose


def _transposition(name: str, is_conjugate: bool, matrices: bool) -> Callable[[SparseTensor], SparseTensor]:
    def attribute(input: SparseTensor) -> SparseTensor:
        if input.ndim < 2 or (matrices and input.ndim != 2):
            raise SizeError(
                f"{name} of a {input.ndim}-dimensional tensor: it takes {'' if matrices else 'batches of '}matrices, permute any shape"
            )
        view = transpose(input, -2, -1)
        return view.with_values(view.values.conj()) if is_conjugate and input.dtype.is_complex else view

    return with_name(attribute, name, f"torch's {name}: swap the last two dimensions. Only conjugation copies values.")


mT, mH, H = _transposition("mT", False, False), _transposition("mH", True, False), _transposition("H", True, True)


def register_hook(input: SparseTensor, hook: Callable[[SparseTensor], SparseTensor | None]) -> Any:
    """Call a function with the tensor's gradient as soon as it is computed; the gradient is a SparseTensor of the same pattern.

    Args:
        input: a tensor whose values require grad.
        hook: called with the gradient; returns a replacement of the same pattern, or None to leave it unchanged.

    Returns:
        A handle; its ``remove()`` unregisters the hook.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> A.values.requires_grad_()
    tensor([1., 1.], requires_grad=True)
    >>> handle = A.register_hook(lambda gradient: 2 * gradient)
    >>> A.sum().backward()
    >>> A.grad.values
    tensor([2., 2.])
    """
    pattern = input.pattern

    def call_hook(gradient: torch.Tensor) -> torch.Tensor | None:
        replacement = hook(SparseTensor(pattern, gradient))
        if replacement is not None and not (isinstance(replacement, SparseTensor) and pattern.stores_as(replacement.pattern)):
            raise UnsupportedError("the hook must return None or a gradient with the tensor's pattern: use gradient.with_values(...)")
        return None if replacement is None else replacement.values

    return input.values.register_hook(call_hook)


def _stride(input: SparseTensor, dim: int | None = None) -> Any:
    raise UnsupportedError(f"a SparseTensor has no strides: its format is {input.format}; use A.to_dense().stride()")


def _type_as(input: Any, other: Any) -> Any:
    return input.to(other.dtype)


def _type(input: SparseTensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """The values' type name in torch, or the tensor converted to ``dtype`` (a data type or such a name)."""
    return input.values.type() if dtype is None else input.with_values(input.values.type(dtype))


def _imag(input: SparseTensor) -> SparseTensor:
    if not input.dtype.is_complex:
        raise MissingError(f"imag of {input.dtype} values: only complex tensors have it")  # an AttributeError, so that hasattr works
    return input.with_values(input.values.imag)


def _new_tensor(name: str) -> Callable[..., torch.Tensor]:
    def new(input: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return getattr(input.values, name)(*args, **kwargs)

    return with_name(new, name, f"torch's {name}: a dense tensor with the values' data type.")


# ---- layouts of torch


def to_sparse(
    input: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """Convert to the format of one of torch's layouts, COO by default; returns the input if it has that format.

    Args:
        sparse_dim: the number of COO's sparse dimensions; the others are dense.
        layout: ``torch.sparse_coo``, ``sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc``.
        blocksize: (rows, columns) of blocks in ``sparse_bsr`` and ``sparse_bsc``.
        dense_dim: the number of trailing dense dimensions.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(4)).to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)).format.name
    'BCSR(2, 2)'
    """
    layout = torch.sparse_coo if layout is None else layout
    if sparse_dim is not None and (layout is not torch.sparse_coo or dense_dim is not None):
        raise UnsupportedError("to_sparse(sparse_dim) applies to COO only: give dense_dim= for other layouts")
    dense = input.ndim - sparse_dim if sparse_dim is not None else dense_dim or 0
    return to_format(input, format_of(layout, input.ndim, blocksize, dense))


def own_layout(A: SparseTensor) -> TorchLayout | None:
    """The torch layout that stores the same arrays as the tensor's format, or None; rows may be unordered, without free slots."""
    return A.pattern.remember("torch layout", lambda: None if A.format.has_gaps else layout_of(sorted_format(A.format)))


def layout(A: SparseTensor) -> torch.layout:
    """torch's layout for this format; ``torch.strided`` for dense formats.

    Raises:
        AttributeError: torch has no such layout; ``hasattr`` is False.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(2)).layout, hasattr(ns.from_torch(torch.eye(2), ns.DCSR), "layout")
    (torch.sparse_csr, False)
    """
    if A.format.is_dense:
        return torch.strided
    if (stored_layout := own_layout(A)) is None:
        suggestion = "A.format says how it is stored, and .to_sparse() and .to_sparse_csr() convert it"
        raise AttributeError(f"torch has no layout for {A.format.name}: {suggestion}", name="layout", obj=A)
    return stored_layout.layout


def _has_layout(wanted: torch.layout) -> Callable[[SparseTensor], bool]:
    return lambda A: (stored_layout := own_layout(A)) is not None and stored_layout.layout is wanted and not A.format.is_dense


def _dimensions(A: SparseTensor, what: str) -> TorchLayout:
    """The layout, which has the numbers of sparse and dense dimensions."""
    if (stored_layout := own_layout(A)) is None:
        raise UnsupportedError(f"{what} of {A.format.name}, for which torch has no layout: A.format says how each dimension is stored")
    return stored_layout


def _array(name: str, by_rows: bool, at: int) -> Callable[[SparseTensor], torch.Tensor]:
    """An accessor for an index array of compressed layouts."""

    def array(input: SparseTensor) -> torch.Tensor:
        stored_layout = own_layout(input)
        if stored_layout is None or stored_layout.layout not in COMPRESSED or (stored_layout.layout in BY_ROWS) != by_rows:
            kind = "CSR or BSR" if by_rows else "CSC or BSC"
            suggestion = ".to_sparse_csr()" if by_rows else ".to_sparse_csc()"
            raise UnsupportedError(f"{name} of {input.format.name}, which is not {kind}: convert it with {suggestion}, or use .indices()")
        return compressed_arrays(input.pattern, stored_layout)[at].clone()

    return with_name(array, name, f"A copy of torch's {name} in the order of the values. O(nnz).")


def stored(A: SparseTensor) -> int:
    """torch's ``_nnz``: the number of stored coordinates; a block or a dense slice counts once, a batch per matrix."""
    stored_layout = own_layout(A)
    if stored_layout is None or A.format.is_dense:
        return A.nnz
    if stored_layout.layout is torch.sparse_coo:
        return A.pattern.counts[stored_layout.sparse - 1]
    return compressed_arrays(A.pattern, stored_layout)[1].shape[-1]


# ---- order of the entries


def ordered(A: SparseTensor) -> SparseTensor:
    """The tensor with sorted, unique coordinates; the tensor itself if they already are.

    Unordered levels are sorted and become ordered. Unchecked arrays are validated, and entries with equal coordinates are
    summed. The pattern caches the check and the sorting. The first call takes O(nnz), or O(nnz log nnz) if it sorts.

    >>> import numscorch as ns
    >>> A = ns.from_csr([0, 3], [2, 0, 2], [1.0, 2.0, 3.0], (1, 3), assume_sorted=True, check_invariants=False)
    >>> ordered(A).to_scipy().indices.tolist(), ordered(A).values.tolist()
    ([0, 2], [2.0, 4.0])
    """
    target = sorted_format(A.format)
    if sorts(A.pattern, target) and "disorder" not in A.pattern.derived:
        converted(A.pattern, target)  # the conversion also detects repeated coordinates
    if A.pattern.remember("disorder", lambda: disorder(A.pattern)) is None:
        return to_format(A, target)
    return assemble(as_numpy(coordinates(A.pattern)), of_entries(A.pattern, A.values), A.pattern.shape, target)


def coalesce(input: Any) -> Any:
    """Sort coordinates and sum entries with equal ones; calls ``input.coalesce()``, also for torch's sparse tensors.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.coalesce(A) is A
    True
    """
    return input.coalesce()


def sort(input: Any, *args: Any, **kwargs: Any) -> Any:
    """Sort the coordinates in each row of a SparseTensor; other tensors go to torch.sort.

    Raises:
        UnsupportedError: a SparseTensor with further arguments: torch.sort sorts values, this function coordinates.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2), "(i, j) -> (i: dense, j: compressed(ordered=False))")
    >>> ns.sort(A).format.name, ns.sort(torch.tensor([2, 1])).values
    ('CSR', tensor([1, 2]))
    """
    if not isinstance(input, SparseTensor):
        return torch.sort(input, *args, **kwargs)
    if args or kwargs:
        raise UnsupportedError("sort of a SparseTensor puts the coordinates of each row in order, and takes nothing else: sort A.values")
    return ordered(input)


def eliminate_zeros(input: Any) -> Any:
    """The tensor without stored zeros, in the same format; unlike SciPy's method, it changes nothing in place. O(nnz).

    Returns the tensor itself if it stores no zero, and dense tensors unchanged. Formats of blocks, diagonals and fixed lengths store
    zeros beside other entries. Gradients flow to the remaining values.

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1], [1, 0]], torch.tensor([0.0, 2.0]), (2, 2), ns.CSR)
    >>> A.nnz, A.eliminate_zeros().nnz, ns.eliminate_zeros(A).values
    (2, 1, tensor([2.]))
    """
    if not isinstance(input, SparseTensor):
        return input
    values = of_entries(input.pattern, input.values)
    is_kept = values.detach() != 0
    if is_kept.all():
        return input
    return from_coo(coordinates(input.pattern)[:, is_kept], values[is_kept], input.pattern.shape, input.format)


PROPERTIES.update(
    {
        "__qualname__": type_name,
        "H": H,
        "data": lambda input: SparseTensor(input.pattern, input.values.data),
        "grad_fn": lambda input: input.values.grad_fn,
        "imag": _imag,
        "is_cpu": lambda input: True,
        "is_cuda": lambda input: False,
        "is_leaf": lambda input: input.values.is_leaf,
        "is_meta": lambda input: False,
        "is_quantized": lambda input: False,
        "itemsize": lambda input: input.values.itemsize,
        "mH": mH,
        "mT": mT,
        "nbytes": lambda input: input.values.nbytes + sum(array.nbytes for level in input.pattern.arrays for array in level),
        "real": lambda input: input.with_values(input.values.real),
        "retains_grad": lambda input: input.values.retains_grad,
        "layout": layout,
        "is_sparse": _has_layout(torch.sparse_coo),
        "is_sparse_csr": _has_layout(torch.sparse_csr),
        "_nnz": lambda A: partial(stored, A),
    }
)
ATTRIBUTES: dict[str, Callable[..., Any]] = {
    **{name: _new_tensor(name) for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")},
    "adjoint": mH,
    "cpu": lambda input: input,
    "cuda": lambda input, *args, **kwargs: input.to("cuda"),
    "element_size": lambda input: input.values.element_size(),
    "get_device": lambda input: -1,
    "is_complex": lambda input: input.dtype.is_complex,
    "is_contiguous": lambda input, memory_format=None: True,
    "is_floating_point": lambda input: input.dtype.is_floating_point,
    "is_signed": lambda input: input.dtype.is_signed,
    "ndimension": lambda input: input.ndim,
    "nelement": lambda input: prod(input.shape),
    "register_hook": register_hook,
    "retain_grad": lambda input: input.values.retain_grad(),
    "stride": _stride,
    "type": _type,
    "type_as": _type_as,
    "to_sparse": to_sparse,
    "to_sparse_coo": lambda input: to_sparse(input),
    "to_sparse_csr": lambda input, dense_dim=None: to_sparse(input, layout=torch.sparse_csr, dense_dim=dense_dim),
    "to_sparse_csc": lambda input, dense_dim=None: to_sparse(input, layout=torch.sparse_csc, dense_dim=dense_dim),
    "to_sparse_bsr": lambda input, blocksize, dense_dim=None: to_sparse(
        input, layout=torch.sparse_bsr, blocksize=blocksize, dense_dim=dense_dim
    ),
    "to_sparse_bsc": lambda input, blocksize, dense_dim=None: to_sparse(
        input, layout=torch.sparse_bsc, blocksize=blocksize, dense_dim=dense_dim
    ),
    "crow_indices": _array("crow_indices", True, 0),
    "col_indices": _array("col_indices", True, 1),
    "ccol_indices": _array("ccol_indices", False, 0),
    "row_indices": _array("row_indices", False, 1),
    "sparse_dim": lambda input: _dimensions(input, "sparse_dim").sparse,
    "dense_dim": lambda input: _dimensions(input, "dense_dim").dense,
    "is_coalesced": lambda input: input.format.is_ordered and input.pattern.remember("disorder", lambda: disorder(input.pattern)) is None,
}
