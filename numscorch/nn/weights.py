"""Sparse weights of modules: which entries they store, how they start, and what a state dict holds of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import torch

from ..convert.construct import from_coo, from_torch
from ..errors import OperandError, SizeError, UnsupportedError
from ..interop.scipy_arrays import from_scipy
from ..ir.format import CSR, Format, as_format
from ..sparsifiers.magnitude import is_number
from ..sparsifiers.names import described
from ..sparsifiers.structures import structured
from ..tensors.arrays import as_tensor
from ..tensors.parameter import PRUNE, Explained, SparseParameter
from ..tensors.sparse_tensor import SparseTensor

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


CLOSE = 1e-3  # by how much a density may differ from that of a format


class WeightsFirst(torch.nn.Module):
    """A module whose parameters are listed in the order of its dense version, sparse weights first.

    Optimizers number parameters in this order. A sparse weight is a module, and torch lists its values after the parameters of the
    module that has it.
    """

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """As torch's; within a larger module, which lists parameters in this order, the sparse weights come before their module."""
        first = {id(weight) for weight in self._sparse_weights()} if memo is not None else ()
        yield from sorted(super().named_modules(memo, prefix, remove_duplicate), key=lambda named: id(named[1]) not in first)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """As torch's, with the values of the sparse weights first."""
        first = {id(weight.values) for weight in self._sparse_weights()}
        yield from sorted(super().named_parameters(prefix, recurse, remove_duplicate), key=lambda named: id(named[1]) not in first)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As torch's.

        Raises:
            UnsupportedError: a sparse parameter, as torch.nn.utils.prune gives it.
        """
        if isinstance(param, SparseParameter):
            raise UnsupportedError(f"{name!r} of {type(self).__name__} is a sparse weight: {PRUNE}")
        super().register_parameter(name, param)

    def _sparse_weights(self) -> list[SparseParameter]:
        return [child for child in self._modules.values() if isinstance(child, SparseParameter)]


class WithSparseWeight(WeightsFirst):
    """A module with a sparse matrix for a weight, one row for each output, and maybe a bias."""

    weight: SparseParameter
    bias: torch.nn.Parameter | None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and "weight" in self._modules:
            check_weight(self, value)
        super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Draw the values anew."""
        rows = self.weight.shape[0]
        bound = 1 / math.sqrt(max(self.weight.nnz / max(rows, 1), 1))
        for values in (self.weight.values, *([] if self.bias is None else [self.bias])):
            torch.nn.init.uniform_(values, -bound, bound)

    def _set_weight(self, stored: SparseTensor, bias: bool) -> None:
        """Hold a weight with this pattern, and a bias, both drawn anew."""
        self.weight = SparseParameter(stored)
        self.bias = torch.nn.Parameter(torch.empty(stored.shape[0], dtype=stored.dtype)) if bias else None
        self.reset_parameters()

    def _copy_from_dense(self, dense: Any, stored: SparseTensor) -> Self:
        """Take the numbers of a dense module, and what is frozen in it."""
        with torch.no_grad():
            self.weight.values.copy_(stored.values)
            self.weight.requires_grad = dense.weight.requires_grad
            if self.bias is not None:
                self.bias.copy_(dense.bias)
                self.bias.requires_grad_(dense.bias.requires_grad)
        return self.train(dense.training)

    def _copy_to_dense(self, dense: Any) -> None:
        """Hand a dense module the numbers, and what is frozen."""
        with torch.no_grad():
            dense.weight.copy_(self.weight.tensor.to_dense().reshape(dense.weight.shape))
            dense.weight.requires_grad_(self.weight.requires_grad)
            if self.bias is not None:
                dense.bias.copy_(self.bias)
                dense.bias.requires_grad_(self.bias.requires_grad)
        dense.train(self.training)

    def _weight_summary(self) -> str:
        """What ``extra_repr`` shows of the weight."""
        return f"density={self.weight.density:.3g}, {self.weight.format.name}"

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """A dense module's state has a weight that isn't ours; torch's error says so then, and what takes it."""
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        given = state_dict.get(prefix + "weight")
        if given is not None:
            kind = type(self).__name__
            why = f"a dense weight of shape {tuple(given.shape)}, where {kind} has {self.weight.tensor}: load it into the dense module,"
            unexpected_keys[:] = [
                Explained(key, f"{why} of which {kind}.from_dense(module, sparsifier) makes this one") if key == prefix + "weight" else key
                for key in unexpected_keys
            ]


def check_weight(owner: WithSparseWeight, given: Any) -> None:
    """That a module's sparse weight is replaced by a sparse one of its shape.

    Raises:
        OperandError: it isn't sparse, or no parameter.
        SizeError: it has another shape.
    """
    kind, shape = type(owner).__name__, tuple(owner.weight.shape)
    if not isinstance(given, SparseParameter):
        what = "a SparseTensor" if isinstance(given, SparseTensor) else f"a {type(given).__name__}"
        way_out = "ns.nn.Parameter(A)"
        way_out += "" if isinstance(given, SparseTensor) else " of a SparseTensor A, as of ns.from_torch(weight)"
        raise OperandError(f"the weight of {kind} is a sparse parameter of shape {shape}, not {what}: set {way_out}")
    if tuple(given.shape) != shape:
        raise SizeError(
            f"the weight of {kind} has shape {shape}, but the parameter has {tuple(given.shape)}: "
            f"set one of shape {shape}, or make a new {kind}"
        )


def check_device(owner: object, device: torch.device | str | int | None) -> None:
    """That a module is to be made on the CPU, or on torch's default device.

    Raises:
        UnsupportedError: another device.
    """
    if device is not None and torch.device(device).type != "cpu":
        raise UnsupportedError(f"{type(owner).__name__} on device={device}: numscorch runs on the CPU, so leave device= out")


def check_dense(owner: type, given: object, wanted: type[torch.nn.Module]) -> None:
    """That ``from_dense`` was given its dense module.

    Raises:
        OperandError: it was given something else.
    """
    if not isinstance(given, wanted):
        raise OperandError(f"{owner.__name__}.from_dense takes a torch.nn.{wanted.__name__}, not {type(given).__name__}")


def check_attention(owner: type, given: torch.nn.MultiheadAttention) -> None:
    """That ``from_dense`` was given attention whose queries, keys and values are projected by one matrix, and nothing is added.

    Raises:
        OperandError: it was given something else.
        UnsupportedError: keys or values of other sizes than queries, or biases of theirs.
    """
    check_dense(owner, given, torch.nn.MultiheadAttention)
    if not given._qkv_same_embed_dim or given.bias_k is not None or given.add_zero_attn:
        raise UnsupportedError(f"{owner.__name__} has no kdim, vdim, add_bias_kv and add_zero_attn: project keys and values before it")


def new_weight(
    owner: object,
    shape: tuple[int, int],
    rows_and_columns: str,
    density: float | None,
    pattern: SparseTensor | torch.Tensor | ArrayLike | None,
    format: Format | str,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> SparseTensor:
    """A matrix of zeros with the entries that a density or a pattern asks for.

    Raises:
        SizeError: a size is negative, the pattern has another shape, or the density is not between 0 and 1.
        OperandError: the density is no number, or the pattern no tensor.
        UnsupportedError: both are given, or neither; or another device than the CPU.
    """
    check_device(owner, device)
    if min(shape) < 0:
        raise SizeError(
            f"{type(owner).__name__} with a weight of shape {shape}: {rows_and_columns}: sizes can't be left to the first input, "
            "since the stored entries are drawn when the module is made; give that of x, x.shape[-1]"
        )
    if (density is None) == (pattern is None):
        raise UnsupportedError(_both_or_none(type(owner).__name__, shape, density, pattern))
    wanted, dtype = as_format(format), dtype or torch.get_default_dtype()
    stored = _random(shape, density, wanted, dtype) if density is not None else _checked_pattern(pattern, shape, rows_and_columns, dtype)
    return stored.to(wanted)


def _both_or_none(owner: str, shape: tuple[int, int], density: Any, pattern: Any) -> str:
    """What is wrong where not exactly one of the two says which entries are stored."""
    if density is None:
        return f"{owner} needs to know which entries it stores: give density=0.1, or pattern=, a mask or sparse tensor of shape {shape}"
    given = f"{type(pattern).__name__} of shape {tuple(pattern.shape)}" if hasattr(pattern, "shape") else repr(pattern)
    message = f"{owner} was given density={density!r} and pattern={given}: both say which entries it stores"
    return f"{message}; leave density= out to store those of the pattern, or pattern= to draw them"


def _check_density(density: Any) -> None:
    """That it is a share.

    Raises:
        OperandError: it is no number.
        SizeError: it isn't between 0 and 1.
    """
    if not is_number(density):
        raise OperandError(
            f"density={described(density)}: give a share as a number, as density=0.1, or a mask or sparse tensor as pattern="
        )
    if not 0 <= density <= 1:
        suggestion = f", as density={density / 100:.3g}" if 1 < density <= 100 else ""
        raise SizeError(f"density={density}: the share of entries that is stored lies between 0 and 1{suggestion}")


def _random(shape: tuple[int, int], density: float, format: Format, dtype: torch.dtype) -> SparseTensor:
    """A CSR matrix with this share of its entries, or of a format's blocks, spread evenly over the rows."""
    _check_density(density)
    if (keep := structured(format)) is not None:
        if abs(density - keep.n / keep.m) > CLOSE:
            message = f"density={density} in {format.name}, which stores {keep.n} of every {keep.m}"
            raise SizeError(f"{message}: give density={keep.n / keep.m:.3g}, or another format")
        kept = from_torch(keep(torch.rand(shape)))
        return kept.with_values(torch.zeros(kept.nnz, dtype=dtype))
    height, width = _block(format)
    indices = _places(-(-shape[0] // height), -(-shape[1] // width), density)
    if (height, width) != (1, 1):
        indices = _spread(indices, height, width)
        indices = indices[:, (indices[0] < shape[0]) & (indices[1] < shape[1])]
    return from_coo(indices, torch.zeros(indices.shape[1], dtype=dtype), shape, CSR)


def _places(rows: int, columns: int, density: float) -> torch.Tensor:
    """The coordinates of this share of all places, (2, n), equally many in each row up to one."""
    total = round(density * rows * columns)
    counts = torch.full((rows,), total // max(rows, 1))
    counts[torch.randperm(rows)[: total - int(counts.sum())]] += 1
    places = [torch.randperm(columns)[: int(count)].sort().values for count in counts]
    return torch.stack([torch.arange(rows).repeat_interleave(counts), torch.cat([torch.empty(0, dtype=torch.int64), *places])])


def _block(format: Format) -> tuple[int, int]:
    """The size of the blocks that a format stores whole.

    >>> _block(as_format("BCSR(4, 1)")), _block(CSR)
    ((4, 1), (1, 1))
    """
    size = [1, 1]
    for level, part in zip(format.levels, format.parts, strict=True):
        if part.modulus and part.divisor == 1 and level.full:
            size[part.dimension] = part.modulus
    return size[0], size[1]


def _spread(blocks: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """The coordinates of all entries of blocks."""
    inside = torch.cartesian_prod(torch.arange(height), torch.arange(width)).reshape(1, -1, 2)
    corners = (blocks.t() * torch.tensor([height, width]))[:, None]
    return (corners + inside).reshape(-1, 2).t()


def _checked_pattern(pattern: Any, shape: tuple[int, int], rows_and_columns: str, dtype: torch.dtype) -> SparseTensor:
    """The entries of a pattern, in the data type that is wanted; dimensions behind the second are columns, too."""
    if isinstance(pattern, str | Format) or is_number(pattern):
        way_out = f"density={pattern} draws so many" if is_number(pattern) else "format= says how they are stored"
        raise OperandError(
            f"pattern={described(pattern)}: give a mask or sparse tensor of shape {shape}, which entries to store; {way_out}"
        )
    if not isinstance(pattern, SparseTensor | torch.Tensor):
        pattern = from_scipy(pattern) if hasattr(pattern, "tocsr") else as_tensor(pattern, "pattern")
    if pattern.ndim > 2 and tuple(pattern.shape[:1]) == shape[:1] and math.prod(pattern.shape[1:]) == shape[1]:
        pattern = pattern.reshape(shape)
    if tuple(pattern.shape) != shape:
        suggestion = "; transpose it" if tuple(pattern.shape) == shape[::-1] else ""
        raise SizeError(f"pattern has shape {tuple(pattern.shape)}, but the weight has {shape}: {rows_and_columns}{suggestion}")
    stored = pattern if isinstance(pattern, SparseTensor) else from_torch(pattern != 0 if pattern.layout is torch.strided else pattern)
    return stored.with_values(torch.zeros(stored.pattern.nnz, dtype=dtype))
