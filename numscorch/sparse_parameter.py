"""Parameter: torch's, and for a SparseTensor a module whose parameter are the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .errors import FormatError
from .pattern import Pattern
from .sparse_tensor import SparseTensor


class SparseParameter(torch.nn.Module):
    """A SparseTensor that a module holds: its values are a parameter, its index arrays buffers.

    It takes part in expressions as the SparseTensor does, and has its attributes. Its ``state_dict`` has the values and the
    pattern; what is loaded must have the same pattern.

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
    __hash__ = torch.nn.Module.__hash__  # as torch's tensors, which compare entry by entry

    def __init__(self, tensor: SparseTensor, requires_grad: bool = True):
        super().__init__()
        self.pattern = tensor.pattern
        self.values = torch.nn.Parameter(tensor.values.detach(), requires_grad)
        for name, array in _named_arrays(self.pattern):
            self.register_buffer(name, array)

    @property
    def tensor(self) -> SparseTensor:
        """The SparseTensor of the pattern and the values as they are now."""
        return SparseTensor(self.pattern, self.values)

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad; False freezes them."""
        return self.values.requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.values.requires_grad = wanted

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

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or name in ("values", "pattern"):
                raise
        return getattr(self.tensor, name)

    def __len__(self) -> int:
        return len(self.tensor)

    def extra_repr(self) -> str:
        return repr(self.tensor)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Values are loaded; index arrays, which are never written to, are only compared.

        Raises:
            FormatError: the pattern is another one.
        """
        for name, array in _named_arrays(self.pattern):
            given = state_dict.get(prefix + name)
            if given is not None and not torch.equal(given, array):
                stored = state_dict.get(prefix + "values")
                count = "" if stored is None else f", which has {stored.numel()} values"
                raise FormatError(
                    f"{prefix}{name} differs from that of {self.tensor}: the state is of another pattern{count}\n"
                    "  make the parameter of a tensor with that pattern, or leave its entries out of the state, with strict=False"
                )
            state_dict[prefix + name] = array
        super()._load_from_state_dict(state_dict, prefix, *args)


def unwrapped(value: Any) -> Any:
    """The SparseTensor of a parameter, in lists too; anything else as it is."""
    if isinstance(value, list | tuple) and any(isinstance(own, SparseParameter) for own in value):
        return type(value)(map(unwrapped, value))
    return value.tensor if isinstance(value, SparseParameter) else value


def _named_arrays(pattern: Pattern) -> list[tuple[str, torch.Tensor]]:
    """A pattern's index arrays, each with its level and what it holds."""
    levels = zip(pattern.format.levels, pattern.arrays, strict=True)
    return [(f"level{at}_{name}", array) for at, (level, own) in enumerate(levels) for name, array in zip(level.arrays, own, strict=True)]


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: SparseParameter, *args: Any) -> Any:
        return getattr(self.tensor, name)(*map(unwrapped, args))

    method.__name__ = name
    return method


OPERATORS = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "matmul", "rmatmul", "pow", "rpow"),
    *("mod", "rmod", "floordiv", "rfloordiv"),
    *("gt", "ge", "lt", "le", "eq", "ne", "neg", "abs", "getitem", "iter"),
)
for operator in OPERATORS:
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
