"""Parameter: torch's, and for a SparseTensor a module whose parameter are the values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import FormatError, OperandError, PatternWarning, UnsupportedError
from .ledgers import stack_level
from .pattern import Pattern
from .sparse_tensor import SparseTensor
from .suggestions import type_name
from .validate import checked_pattern

SIZES = "build the model with the sizes that it had"
PRUNE = "torch.nn.utils.prune does not take sparse weights; prune further with ns.sparsify.GradualPruning"
NO_SCRIPT = (
    "of a sparse weight: TorchScript, and ONNX's exporter by way of it, know no sparse layers: use torch.export.export or torch.compile, "
    "or make the model dense first with ns.sparsify.densify_model(model)"
)
ADOPT = "call ns.sparsify.load_patterns(model, state, optimizer) first, or load the state of what changed it, as RigL's"


@dataclass(slots=True)
class _Seen:
    """Index arrays when they were last looked at: how often each had been written to, and a checksum of their numbers."""

    versions: list[int]
    checksum: int

    @classmethod
    def of(cls, pattern: Pattern) -> _Seen:
        """Of the index arrays as they are now. O(nnz), as fast as a copy."""
        checksum = 0
        for array in pattern.views:
            checksum = crc32(np.ascontiguousarray(array).data, checksum)
        return cls(_versions(pattern), checksum)


def _versions(pattern: Pattern) -> list[int]:
    """How often each index array was written to; torch doesn't count it for those of inference mode."""
    return [0 if array.is_inference() else array._version for level in pattern.arrays for array in level]


class SparseParameter(torch.nn.Module):
    """A SparseTensor that a module holds: its values are a parameter, its index arrays buffers.

    It takes part in expressions as the SparseTensor does, and has its attributes. Its ``state_dict`` has the values and the
    pattern; what is loaded must have the same pattern, which :func:`~numscorch.sparsify.load_patterns` sees to, and is left out with
    ``strict=False`` if it has another.

    Args:
        tensor: whose values are taken, as ``torch.nn.Parameter`` takes them, and whose pattern is shared.
        requires_grad: of the values.

    >>> import numscorch as ns
    >>> weight = ns.nn.Parameter(ns.from_torch(torch.eye(2), ns.CSR))
    >>> weight @ torch.ones(2)
    tensor([1., 1.], grad_fn=<_ThroughBackward>)
    >>> [name for name, _ in weight.named_parameters()], sorted(weight.state_dict())
    (['values'], ['level1_crd', 'level1_pos', 'values'])
    """

    values: torch.nn.Parameter
    pattern: Pattern

    def __init__(self, tensor: SparseTensor, requires_grad: bool = True):
        super().__init__()
        self.values = torch.nn.Parameter(tensor.values.detach(), requires_grad)
        self.hold(tensor.pattern)

    def hold(self, pattern: Pattern) -> None:
        """Take a pattern, whose index arrays become the buffers in the place of the old ones."""
        for name, _ in named_arrays(self.pattern) if "pattern" in vars(self) else ():
            delattr(self, name)  # another format has others
        self.pattern, self._seen, self._is_told = pattern, _Seen.of(pattern), False
        for name, array in named_arrays(pattern):
            self.register_buffer(name, array)

    @property
    def tensor(self) -> SparseTensor:
        """The SparseTensor of the pattern and the values as they are now."""
        if not torch.compiler.is_compiling():
            if torch._C._get_tracing_state() is not None:
                raise UnsupportedError(f"torch.jit.trace {NO_SCRIPT}")
            self._follow()
        return SparseTensor(self.pattern, self.values)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """As torch's, for the values alone.

        Raises:
            UnsupportedError: another name, as torch.nn.utils.prune registers one.
        """
        if name != "values":
            raise UnsupportedError(f"{name!r} of a sparse parameter, whose values are its only parameter: {PRUNE}")
        super().register_parameter(name, param)

    def __prepare_scriptable__(self) -> Any:
        """What torch.jit.script calls first.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"torch.jit.script {NO_SCRIPT}")

    def _follow(self) -> None:
        """Forget what was derived of index arrays that something wrote to, as ``DistributedDataParallel`` does to buffers of each process.

        Another pattern is told, except in the forward pass of ``DistributedDataParallel``, which writes the values that go with it.

        Raises:
            FormatError: what was written breaks a promise of the format.
        """
        if self._seen.versions == _versions(self.pattern):
            return
        before, now = self._seen, _Seen.of(self.pattern)
        if before.checksum != now.checksum:
            try:
                self.pattern = checked_pattern(self.pattern.format, self.pattern.shape, self.pattern.arrays)
            except FormatError as error:
                raise FormatError(f"{error}\n  {self._overwritten()}") from error
            if not self._is_told and DistributedDataParallel._get_active_ddp_module() is None:
                warnings.warn(self._overwritten(), PatternWarning, stacklevel=stack_level())
                self._is_told = True
        self._seen = now

    def _overwritten(self) -> str:
        """What is told where index arrays hold another pattern."""
        description = f"a sparse parameter ({self.pattern.format.name}, shape={self.pattern.shape})"
        return (
            f"the index arrays of {description} were overwritten with another pattern: its values belong to other entries, unless they "
            "were overwritten at the same time, as by DistributedDataParallel\n"
            "  AveragedModel does this if the model's pattern changed, or with use_buffers=True: leave use_buffers out, and call "
            "ns.sparsify.load_patterns(averaged.module, model.state_dict()) before averaged.update_parameters(model)"
        )

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad; False freezes them."""
        return self.values.requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.values.requires_grad = wanted

    @property
    def data(self) -> SparseTensor:
        """The tensor, detached. Another one of the same pattern can be assigned, as to torch's parameters.

        Raises:
            OperandError: what is assigned is no SparseTensor of this pattern.
        """
        detached: SparseTensor = self.tensor.detach()
        return detached

    @data.setter
    def data(self, data: SparseTensor) -> None:
        data = unwrapped(data)
        if not isinstance(data, SparseTensor) or not _is_equal(data.pattern, self.pattern):
            given = f"a dense tensor of shape {tuple(data.shape)}" if isinstance(data, torch.Tensor) else repr(data)
            raise OperandError(
                f"the data of a sparse parameter must have its pattern\n  parameter   {self.tensor.detach()!r}\n  given       {given}\n"
                "write to weight.values, or replace the parameter: layer.weight = ns.nn.Parameter(ns.from_torch(data))"
            )
        self.values.data = data.values.detach()

    @property
    def grad(self) -> SparseTensor | None:
        """The gradient, with the same pattern."""
        return self.tensor.grad

    @grad.setter
    def grad(self, gradient: SparseTensor | None) -> None:
        self.values.grad = None if gradient is None else gradient.values

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {name: unwrapped(value) for name, value in (kwargs or {}).items()}
        return SparseTensor.__torch_function__(func, types, tuple(map(unwrapped, args)), named)

    def uniform_(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draw the values, as torch's method does, and return them; so do ``normal_`` and ``fill_``, which torch.nn.init calls."""
        return self.values.uniform_(*args, **kwargs)

    def normal_(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.values.normal_(*args, **kwargs)

    def fill_(self, value: float) -> torch.Tensor:
        return self.values.fill_(value)

    def copy_(self, src: Any, non_blocking: bool = False) -> Any:
        """Write values, as ``normal_`` returns them, or a tensor of the parameter's shape at the stored entries."""
        if isinstance(src, torch.Tensor) and src.shape == self.values.shape:
            return self.values.copy_(src)
        return self.tensor.copy_(unwrapped(src), non_blocking)

    def view_as(self, other: Any) -> SparseTensor:
        """Refused: ``torch.nn.init.orthogonal_`` writes to such a view, and the entries of an orthogonal matrix form none.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "view_as of a sparse parameter, as torch.nn.init.orthogonal_ calls it: the stored entries of an orthogonal matrix form none; "
            "use torch.nn.init.kaiming_uniform_ or xavier_uniform_, and weight.tensor.view_as(other) for a view"
        )

    def _repr_html_(self) -> str:
        return self.tensor._repr_html_()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "__qualname__":
                return type_name(self)
            if name.startswith("_") or name in ("values", "pattern"):
                raise
        return getattr(self.tensor, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.tensor)})

    def __len__(self) -> int:
        return len(self.tensor)

    def __hash__(self) -> int:
        """As that of torch's tensors, which compare entry by entry; in Python, since Dynamo traces it where torch looks for a module."""
        return id(self)

    def extra_repr(self) -> str:
        return repr(self.tensor)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have arrays of their own, which nothing has written to."""
        return {name: value for name, value in vars(self).items() if name not in ("_seen", "_is_told")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._seen, self._is_told = _Seen.of(self.pattern), False

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Beside the arrays, the state's metadata have the format, the shape and nnz, which arrays alone don't tell."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            facts = {"format": self.pattern.format.name, "levels": str(self.pattern.format), "shape": self.pattern.shape}
            metadata.setdefault(prefix[:-1], {}).update(facts, nnz=self.tensor.nnz)

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
        """Values are loaded; index arrays, which are never written to, are only compared.

        The values of another pattern are left where they are and listed as missing: with ``strict=True``, torch raises then,
        and says how they differ; with ``strict=False``, all else is loaded.
        """
        arrays = {prefix + name: array for name, array in named_arrays(self.pattern)}
        given = {name: array for name, array in state_dict.items() if name.startswith(f"{prefix}level")}
        if clash := _clash(self.pattern, arrays, given, state_dict.get(f"{prefix}values"), local_metadata):
            missing_keys.append(Explained(f"{prefix}values", clash))
            return
        state_dict.update(arrays)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


class Explained(str):
    """A key of a state dict; in the text of torch's error, it is followed by what is wrong with it.

    ``load_state_dict`` tells modules nothing of ``strict``, and shows keys as it formats them.

    >>> key = Explained("weight", "a dense one")
    >>> f"missing: {key}", key == "weight", [key]
    ('missing: weight (a dense one)', True, ['weight'])
    """

    why: str

    def __new__(cls, key: str, why: str) -> Explained:
        text = super().__new__(cls, key)
        text.why = why
        return text

    def __format__(self, spec: str) -> str:
        return format(f"{self!s} ({self.why})", spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return Explained, (str(self), self.why)


def _clash(
    pattern: Pattern,
    stored: Mapping[str, torch.Tensor],
    given: Mapping[str, torch.Tensor],
    values: torch.Tensor | None,
    metadata: Mapping[str, Any],
) -> str:
    """How a state's pattern differs from a parameter's, and the way out; empty where they are the same, or the state has none."""
    format, shape = metadata.get("format", pattern.format.name), tuple(metadata.get("shape", pattern.shape))
    if shape != pattern.shape:
        return f"has shape {shape} in the state, {pattern.shape} in the model; {SIZES}"
    if format != pattern.format.name:
        return f"is stored as {format} in the state, as {pattern.format.name} in the model; {ADOPT}"
    if not given or (stored.keys() == given.keys() and all(_equal(array, given[name]) for name, array in stored.items())):
        return ""
    if stored.keys() != given.keys():
        return f"is stored in another format in the state than in the model, {format}; {ADOPT}"
    count = "others" if values is None else values.numel()
    return f"stores {count} entries in the state, other {pattern.nnz} in the model; {ADOPT}"


def _is_equal(one: Pattern, other: Pattern) -> bool:
    """Whether two patterns store the same entries in the same format."""
    if one is other:
        return True
    alike = one.format == other.format and one.shape == other.shape
    pairs = zip(named_arrays(one), named_arrays(other), strict=True) if alike else ()
    return alike and all(_equal(array, given) for (_, array), (_, given) in pairs)


def _equal(array: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether index arrays hold the same numbers, of whatever type."""
    return array.shape == given.shape and bool((array == given.to(array.device)).all())


def unwrapped(value: Any) -> Any:
    """The SparseTensor of a parameter, in lists too; anything else as it is."""
    if isinstance(value, list | tuple) and any(isinstance(member, SparseParameter) for member in value):
        return type(value)(map(unwrapped, value))
    return value.tensor if isinstance(value, SparseParameter) else value


def named_arrays(pattern: Pattern) -> list[tuple[str, torch.Tensor]]:
    """A pattern's index arrays, each with its level and what it holds."""
    levels = zip(pattern.format.levels, pattern.arrays, strict=True)
    return [(f"level{at}_{name}", a) for at, (level, arrays) in enumerate(levels) for name, a in zip(level.arrays, arrays, strict=True)]


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: SparseParameter, *args: Any) -> Any:
        return getattr(self.tensor, name)(*map(unwrapped, args))

    method.__name__ = name
    return method


SPECIAL_METHODS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "pow", "rpow"),
    *("mod", "rmod", "floordiv", "rfloordiv"),
    *("gt", "ge", "lt", "le", "eq", "ne", "neg", "abs", "getitem", "setitem", "iter"),
)
for operator in SPECIAL_METHODS:
    setattr(SparseParameter, f"__{operator}__", _delegated(f"__{operator}__"))


class _Checked(type(torch.nn.Parameter)):  # type: ignore[misc]  # torch gives its metaclass no type
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.nn.Parameter | SparseParameter)


class Parameter(torch.nn.Parameter, metaclass=_Checked):
    """torch.nn.Parameter; of a SparseTensor, a :class:`SparseParameter`, so that ``self.weight = nn.Parameter(A)`` trains."""

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        if isinstance(data, SparseTensor):
            return SparseParameter(data, requires_grad)
        return torch.nn.Parameter(data, requires_grad)
