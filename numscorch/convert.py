"""From a SparseTensor to what others understand: dense, torch and SciPy tensors, and other formats."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, TypeVar

import torch

from .datatypes import STORED, listed
from .errors import SizeError, UnsupportedError
from .ir.format import COO, CSC, CSR, Format
from .ir.levels import INT64_MAX
from .packing import Conversion, converted, coordinates, pack, positions_of

if TYPE_CHECKING:
    from scipy.sparse import sparray

    from .sparse_tensor import SparseTensor

__all__ = [
    "Conversion",
    "check_values",
    "converted",
    "coordinates",
    "pack",
    "quietly",
    "to_dense",
    "to_format",
    "to_scipy",
    "to_torch",
]

T = TypeVar("T")
NOTICES = (r"Sparse \w+ tensor support is in beta", "Sparse invariant checks are implicitly disabled")


def check_values(values: torch.Tensor) -> torch.Tensor:
    """Values that kernels can read or that are widened for them: strided, on the CPU.

    Raises:
        UnsupportedError: another dtype, device or layout.

    >>> check_values(torch.ones(2))
    tensor([1., 1.])
    """
    if values.layout != torch.strided:
        layout = str(values.layout).removeprefix("torch.")
        raise UnsupportedError(f"values are a {layout} tensor, but must be a plain 1-D one: pass its .values(), or .to_dense()")
    if values.device.type != "cpu":
        raise UnsupportedError(f"values are on {values.device}, but numscorch runs on the CPU: move them with .cpu()")
    if values.dtype not in STORED:
        raise UnsupportedError(f"values of dtype {values.dtype} are not compiled, only {listed()}: convert them with .to(torch.float32)")
    return values.resolve_conj().resolve_neg()


def quietly(make: Callable[[], T]) -> T:
    """What ``make`` returns, without torch's notices about sparse CSR tensors."""
    with warnings.catch_warnings():
        for notice in NOTICES:
            warnings.filterwarnings("ignore", message=notice)
        return make()


def to_dense(A: SparseTensor) -> torch.Tensor:
    """A dense tensor of the same shape; unstored entries are 0, and gradients flow to the values.

    A dense format is only viewed; anything else costs O(size of the result).

    Raises:
        SizeError: the dense tensor can't be addressed.
    """
    order = A.format.mode_order
    if A.format.is_dense:
        stored = A.values.reshape([A.pattern.shape[d] for d in order])
        return stored.permute([order.index(d) for d in range(A.ndim)])
    if prod(A.pattern.shape) * A.dtype.itemsize > INT64_MAX:
        raise SizeError(f"to_dense() of a tensor of shape {A.pattern.shape} would hold {prod(A.pattern.shape):.3g} values: keep it sparse")
    indices, positions = coordinates(A.pattern), positions_of(A.pattern)
    place, stride = torch.zeros(indices.shape[1], dtype=torch.int64), 1
    for d in reversed(range(A.ndim)):
        place, stride = place.add_(indices[d], alpha=stride), stride * A.pattern.shape[d]
    values = A.values if positions is None else A.values.index_select(0, torch.from_numpy(positions))
    return A.values.new_zeros(stride).index_copy_(0, place, values).reshape(A.pattern.shape)


def to_torch(A: SparseTensor) -> torch.Tensor:
    """A torch CSR, CSC or COO tensor; gradients flow to the values.

    CSR and CSC share all memory.  COO shares the values, and the indices where they came from torch;
    otherwise they are gathered into one int64 tensor, O(nnz), remembered with the pattern.

    Raises:
        UnsupportedError: torch has no layout for the format.
    """
    arrays, shape = A.pattern.arrays, A.pattern.shape
    if A.format == CSR:
        pos, crd = arrays[1]
        return quietly(lambda: torch.sparse_csr_tensor(pos, crd, A.values, shape, check_invariants=False))
    if A.format == CSC:
        pos, crd = arrays[1]
        return quietly(lambda: torch.sparse_csc_tensor(pos, crd, A.values, shape, check_invariants=False))
    if A.ndim and A.format == COO(A.ndim):
        indices = coordinates(A.pattern)
        return quietly(lambda: torch.sparse_coo_tensor(indices, A.values, shape, is_coalesced=True, check_invariants=False))
    raise _no_layout(A, "torch")


def has_torch_layout(format: Format) -> bool:
    """Whether torch has a layout that stores what this format does."""
    return format in (CSR, CSC) or (format.order > 1 and format == COO(format.order))


def to_scipy(A: SparseTensor) -> sparray:
    """A SciPy csr_array, csc_array or coo_array that shares the arrays; gradients are cut.

    Raises:
        UnsupportedError: SciPy has no layout for the format.
    """
    from scipy.sparse import coo_array, csc_array, csr_array

    values = A.values.detach().numpy()
    if A.format in (CSR, CSC):
        # the constructors would narrow int64 index arrays to copies: the arrays are set one by one instead
        compressed = (csr_array if A.format == CSR else csc_array)(A.pattern.shape, dtype=values.dtype)
        compressed.indptr, compressed.indices = A.pattern.level_arrays(1)
        compressed.data = values
        return compressed
    if A.ndim and A.format == COO(A.ndim):
        entries = coo_array(A.pattern.shape, dtype=values.dtype)
        entries.coords = tuple(A.pattern.level_arrays(level)[-1] for level in range(A.ndim))
        entries.data, entries.has_canonical_format = values, True
        return entries
    raise _no_layout(A, "SciPy")


def _no_layout(A: SparseTensor, library: str) -> UnsupportedError:
    way_out = ".to(ns.CSR)" if A.ndim == 2 else f".to(ns.COO({A.ndim}))"
    way_out = ".to_dense()" if A.format.is_dense else f"{way_out} first"
    return UnsupportedError(f"{library} has no layout for the format {A.format.name}, {A.format}: use {way_out}")


def to_format(A: SparseTensor, format: Format) -> SparseTensor:
    """The same entries in another format; ``A`` itself if it has that format already.

    Every stored entry stays stored, explicit zeros too.  The index work is remembered with the
    pattern: converting other values again only gathers them.  Gradients flow.

    Raises:
        FormatError: the format has another number of levels.
    """
    if format == A.format:
        return A
    conversion = converted(A.pattern, format)
    return type(A)(conversion.pattern, conversion.tensor(A.values))
