"""Sparse weights of modules: their patterns, initialization, and state dicts; and checks of the modules' arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from numpy.typing import ArrayLike

from ..convert.construct import from_coo, from_torch
from ..errors import OperandError, SizeError, UnsupportedError
from ..interop.array_libraries import from_scipy
from ..ir.format import CSR, Format, as_format
from ..sparsifiers.base import described, is_number
from ..sparsifiers.patterned import structured
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.arrays import as_tensor
from ..tensors.parameter import PRUNE, SparseParameter
from ..tensors.pattern_module import take_dense
from ..tensors.sparse_tensor import SparseTensor

CLOSE = 1e-3  # absolute tolerance between a requested density and that of an n:m format


class WeightsFirst(torch.nn.Module):
    """A module that lists its parameters in the order of its dense counterpart, sparse weights first.

    The state of an optimizer numbers parameters in this order. A sparse weight is a submodule, so torch would list its values after
    the module's own parameters.
    """

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """Yield the names and modules of the tree, as ``torch.nn.Module.named_modules`` does.

        When a parent module lists its submodules, sparse weights precede the module that holds them.

        Args:
            memo: modules that were yielded before, and are skipped.
            prefix: prefix of all names.
            remove_duplicate: whether to yield shared modules once.
        """
        first = {id(weight) for weight in self._sparse_weights()} if memo is not None else ()
        yield from sorted(super().named_modules(memo, prefix, remove_duplicate), key=lambda named: id(named[1]) not in first)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Yield the names and parameters, as ``torch.nn.Module.named_parameters`` does, with the values of sparse weights first.

        Args:
            prefix: prefix of all names.
            recurse: whether to include the parameters of submodules, and so the values of sparse weights.
            remove_duplicate: whether to yield shared parameters once.
        """
        first = {id(weight.values) for weight in self._sparse_weights()}
        yield from sorted(super().named_parameters(prefix, recurse, remove_duplicate), key=lambda named: id(named[1]) not in first)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register a dense parameter, as ``torch.nn.Module.register_parameter`` does.

        Args:
            name: name of the parameter.
            param: the parameter; None registers the name only.

        Raises:
            UnsupportedError: ``param`` is sparse. ``torch.nn.utils.prune`` registers such parameters.
        """
        if isinstance(param, SparseParameter):
            raise UnsupportedError(f"{name!r} of {type(self).__name__} is a sparse weight: {PRUNE}")
        super().register_parameter(name, param)

    def _sparse_weights(self) -> list[SparseParameter]:
        return [child for child in self._modules.values() if isinstance(child, SparseParameter)]

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
        """Load as torch does; the state may also be that of the dense module, if the nonzeros of its weights lie in the patterns."""
        for name, child in self._modules.items():
            if isinstance(child, SparseParameter) and f"{prefix}{name}" in state_dict:
                take_dense(state_dict, f"{prefix}{name}", f"{prefix}{name}.values", child.pattern, unexpected_keys)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


class WithSparseWeight(WeightsFirst):
    """A module with a sparse weight matrix, one row per output, and an optional bias."""

    DENSE: ClassVar[type[torch.nn.Module]]  # the dense counterpart
    SHARED: ClassVar[tuple[str, ...]]  # attributes of the sparse and the dense module that are also arguments of their constructors
    weight: SparseParameter
    bias: torch.nn.Parameter | None

    def __setattr__(self, name: str, value: Any) -> None:
        """As in torch.

        Raises:
            OperandError: the new weight is not a sparse parameter.
            SizeError: its shape differs.
        """
        if name == "weight" and "weight" in self._modules:
            kind, shape, is_tensor = type(self).__name__, tuple(self.weight.shape), isinstance(value, SparseTensor)
            if not isinstance(value, SparseParameter):
                description = "a SparseTensor" if is_tensor else f"a {type(value).__name__}"
                suggestion = "" if is_tensor else " of a SparseTensor A, such as ns.from_torch(weight)"
                raise OperandError(
                    f"the weight of {kind} is a sparse parameter of shape {shape}, not {description}: set ns.nn.Parameter(A){suggestion}"
                )
            if tuple(value.shape) != shape:
                raise SizeError(
                    f"the weight of {kind} has shape {shape}, but the parameter has {tuple(value.shape)}: "
                    f"set one of shape {shape}, or make a new {kind}"
                )
        super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Reinitialize weight and bias: uniform between -b and b, where b is 1 / sqrt(average number of entries per row)."""
        bound = 1 / math.sqrt(max(self.weight.nnz / max(self.weight.shape[0], 1), 1))
        for values in (self.weight.values, *([] if self.bias is None else [self.bias])):
            torch.nn.init.uniform_(values, -bound, bound)

    def _make_weight(
        self,
        shape: tuple[int, int],
        rows_and_columns: str,
        density: float | None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None,
        format: Format | str,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        bias: bool,
    ) -> None:
        """Make and initialize the weight, with entries from a density or a pattern, and, if ``bias`` is True, a bias.

        Within ``torch.device("meta")``, the weight has no values.

        Raises:
            SizeError: a size is negative, the pattern has another shape, or the density is not between 0 and 1.
            OperandError: the density is not a number, or the pattern is not a tensor.
            UnsupportedError: both or neither of density and pattern are given, or the device is not the CPU.
        """
        check_device(self, device)
        owner = type(self).__name__
        if min(shape) < 0:
            raise SizeError(
                f"{owner} with a weight of shape {shape}: {rows_and_columns}: sizes can't be inferred from the first input, "
                "because the stored entries are drawn when the module is made; give the input's size, x.shape[-1]"
            )
        if density is None and pattern is None:
            raise UnsupportedError(
                f"{owner} needs to know which entries it stores: give density=0.1, or pattern=, a mask or sparse tensor of shape {shape}"
            )
        if density is not None and pattern is not None:
            given: Any = pattern
            description = f"{type(given).__name__} of shape {tuple(given.shape)}" if hasattr(given, "shape") else repr(given)
            raise UnsupportedError(
                f"{owner} was given density={density!r} and pattern={description}: both determine the stored entries; leave density= out "
                "to store those of the pattern, or pattern= to draw them"
            )
        target, dtype = as_format(format), dtype or torch.get_default_dtype()
        with torch.device("cpu"):  # also where the default device is meta: kernels read index arrays
            drawn = _checked_pattern(pattern, shape, rows_and_columns, dtype) if density is None else _random(shape, density, target, dtype)
            stored = drawn.to(target)
        self.weight = SparseParameter(stored)
        if (default := torch.empty(0).device).type == "meta":
            self.weight.to(default)
        self.bias = torch.nn.Parameter(torch.empty(stored.shape[0], dtype=stored.dtype)) if bias else None
        self.reset_parameters()

    @classmethod
    def _from_dense(cls, dense: Any, sparsifier: Sparsifier | str, format: Format | str | None) -> Self:
        check_dense(cls, dense, cls.DENSE)
        stored = sparsify(dense.weight.detach().flatten(1), sparsifier, format)
        layer = cls(**cls._shared_arguments(dense), pattern=stored, format=stored.format, dtype=stored.dtype)
        return _with_state(layer, stored.values, dense)

    def to_dense(self) -> Any:
        """Return the dense module of ``torch.nn`` with the same weight, training mode and frozen parameters."""
        dense: Any = self.DENSE(**self._shared_arguments(self), dtype=self.weight.dtype)
        return _with_state(dense, self.weight.tensor.detach().to_dense().reshape(dense.weight.shape), self)

    @classmethod
    def _shared_arguments(cls, module: Any) -> dict[str, Any]:
        """Return the arguments that make a module of the same sizes, dense or sparse."""
        arguments = {name: getattr(module, name) for name in cls.SHARED}
        return arguments | {"bias": module.bias is not None} if "bias" in arguments else arguments

    def _weight_summary(self) -> str:
        return f"density={self.weight.density:.3g}, {self.weight.format.name}"


@torch.no_grad()
def _with_state(module: Any, weight: torch.Tensor, source: Any) -> Any:
    """Set the weight of a module, and copy bias, training mode and frozen state from ``source``; return the module."""
    module.weight.copy_(weight)
    module.weight.requires_grad = source.weight.requires_grad
    if getattr(source, "bias", None) is not None:
        module.bias.copy_(source.bias)
        module.bias.requires_grad = source.bias.requires_grad
    return module.train(source.training)


def check_device(owner: object, device: torch.device | str | int | None) -> None:
    """Check that ``device`` is the CPU or None.

    Raises:
        UnsupportedError: it is another device.
    """
    if device is not None and torch.device(device).type != "cpu":
        raise UnsupportedError(f"{type(owner).__name__} on device={device}: numscorch runs on the CPU, so leave device= out")


def check_dense(owner: type, module: object, expected: type[torch.nn.Module]) -> None:
    """Check that the argument of ``from_dense`` is the expected dense module.

    Raises:
        OperandError: the argument is not such a module.
    """
    if not isinstance(module, expected):
        raise OperandError(f"{owner.__name__}.from_dense takes a torch.nn.{expected.__name__}, not {type(module).__name__}")


def check_attention(owner: type, module: torch.nn.MultiheadAttention) -> None:
    """Check that the argument of ``from_dense`` is attention with one projection matrix for queries, keys and values.

    Raises:
        OperandError: it is not a torch.nn.MultiheadAttention.
        UnsupportedError: it uses kdim, vdim, add_bias_kv or add_zero_attn.
    """
    check_dense(owner, module, torch.nn.MultiheadAttention)
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        raise UnsupportedError(f"{owner.__name__} has no kdim, vdim, add_bias_kv and add_zero_attn: project keys and values before it")


def _random(shape: tuple[int, int], density: float, format: Format, dtype: torch.dtype) -> SparseTensor:
    """Make a CSR matrix with a random share of its entries, or of the format's blocks, evenly distributed over the rows.

    Raises:
        OperandError: the density is not a number.
        SizeError: it is not between 0 and 1, or differs from the density of an n:m format.
    """
    if not is_number(density):
        raise OperandError(f"density={described(density)}: give a number, such as density=0.1, or a mask or sparse tensor as pattern=")
    if not 0 <= density <= 1:
        suggestion = f", as density={density / 100:.3g}" if 1 < density <= 100 else ""
        raise SizeError(f"density={density}: the share of stored entries lies between 0 and 1{suggestion}")
    if (keep := structured(format)) is not None:
        if abs(density - keep.n / keep.m) > CLOSE:
            raise SizeError(
                f"density={density} in {format.name}, which stores {keep.n} of every {keep.m}: give density={keep.n / keep.m:.3g}, or "
                "another format"
            )
        stored = from_torch(keep(torch.rand(shape)), copy=False)
        return stored.with_values(torch.zeros(stored.nnz, dtype=dtype))
    block = block_of(format)
    indices = block_entries(_random_coordinates(-(-shape[0] // block[0]), -(-shape[1] // block[1]), density), block, shape)
    return from_coo(indices, torch.zeros(indices.shape[1], dtype=dtype), shape, CSR)


def _random_coordinates(rows: int, columns: int, density: float) -> torch.Tensor:
    """Sample a share of all coordinates, (2, n); the numbers of coordinates per row differ by at most one."""
    total = round(density * rows * columns)
    counts = torch.full((rows,), total // max(rows, 1))
    counts[torch.randperm(rows)[: total - int(counts.sum())]] += 1
    samples = [torch.randperm(columns)[: int(count)].sort().values for count in counts]
    return torch.stack([torch.arange(rows).repeat_interleave(counts), torch.cat([torch.empty(0, dtype=torch.int64), *samples])])


def block_of(format: Format) -> tuple[int, int]:
    """Return the block size of a format; (1, 1) for formats without blocks.

    >>> block_of(as_format("BCSR(4, 1)")), block_of(CSR)
    ((4, 1), (1, 1))
    """
    size = [1, 1]
    for level, part in zip(format.levels, format.parts, strict=True):
        if part.modulus and part.divisor == 1 and level.full:
            size[part.dimension] = part.modulus
    return size[0], size[1]


def block_entries(blocks: torch.Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
    """Return the coordinates (2, n) of all entries of blocks (2, number of blocks), block by block, without those outside ``shape``."""
    if block == (1, 1):
        return blocks
    height, width = block
    offsets = torch.cartesian_prod(torch.arange(height), torch.arange(width))
    indices = ((blocks.t() * torch.tensor(block))[:, None] + offsets).reshape(-1, 2).t()
    return indices[:, (indices[0] < shape[0]) & (indices[1] < shape[1])]


def _checked_pattern(pattern: Any, shape: tuple[int, int], rows_and_columns: str, dtype: torch.dtype) -> SparseTensor:
    """Make a tensor of zeros at the entries of a pattern; all dimensions after the first count as columns."""
    if isinstance(pattern, str | Format) or is_number(pattern):
        suggestion = f"density={pattern} draws random entries" if is_number(pattern) else "format= sets the storage format"
        raise OperandError(
            f"pattern={described(pattern)}: give the entries to store, a mask or sparse tensor of shape {shape}; {suggestion}"
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


def check_dtype(layer: torch.nn.Module, weight: Any, input: Any, name: str = "input") -> None:
    """Check that an input has the data type of a layer's weights; under autocast, torch and einsum convert both.

    Raises:
        UnsupportedError: the data types differ.

    >>> layer = torch.nn.Linear(2, 2)
    >>> check_dtype(layer, layer.weight, torch.ones(2, dtype=torch.float64), "x")
    Traceback (most recent call last):
    ...
    numscorch.UnsupportedError: x has data type float64, but the weights of Linear have float32: pass x.to(torch.float32), or ...
    """
    if not isinstance(input, torch.Tensor | SparseTensor) or input.dtype == weight.dtype or torch.is_autocast_enabled("cpu"):
        return
    kind, expected, other = type(layer).__name__, str(weight.dtype), str(input.dtype)
    text = f"{name} has data type {other.removeprefix('torch.')}, but the weights of {kind} have {expected.removeprefix('torch.')}"
    convert = f", or convert the layer with layer.to({other})" if input.dtype.is_floating_point else ""
    raise UnsupportedError(f"{text}: pass {name}.to({expected}){convert}")
