"""Parameter for sparse tensors: a module whose parameter is the values, and whose buffers are the index arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..errors import OperandError, UnsupportedError
from ..ir.format import Format
from .arrays import converter
from .distributed import HANDLERS
from .methods import PythonOperators
from .pattern import Pattern
from .pattern_module import PatternModule, unassigned
from .sparse_tensor import DEVICES, SparseTensor
from .suggestions import type_name

PRUNE = "torch.nn.utils.prune does not take sparse weights; prune further with ns.sparsify.GradualPruning"
CONVERT = "load it into the dense module, then convert that with from_dense(module, sparsifier) or ns.sparsify.sparsify_model"
NO_SCRIPT = (
    "of a sparse weight: TorchScript and ONNX's TorchScript exporter do not support sparse layers: use torch.export.export or "
    "torch.compile, or make the model dense first with ns.sparsify.densify_model(model)"
)
ADOPT = (
    "call ns.sparsify.load_patterns(model, state, optimizer) first, load with assign=True, or load the state of the "
    "pruner that changed it, such as RigL"
)
OF_VALUES = ("uniform_", "normal_", "fill_", "device", "is_meta")  # attributes taken from the values; torch.nn.init calls the methods
FACTS = ("shape", "ndim", "dim", "size", "numel", "nnz", "density", "format", "dtype")  # attributes of a tensor that need no values


class SparseParameter(PatternModule):
    """A module that holds a SparseTensor: the values are its parameter, and the index arrays are its buffers.

    It has the attributes of the SparseTensor, and expressions accept it in place of the tensor.

    The ``state_dict`` has the values, the index arrays, and the format as text. All of them are tensors, so every file format for
    tensors can store them. A state can be loaded if it has the same pattern; otherwise, call
    :func:`~numscorch.sparsify.load_patterns` first, or load with ``assign=True``, which also takes over the pattern. The state of a
    model also has an empty tensor under the name of the weight. A model with a dense weight of that name therefore rejects the state,
    even with ``strict=False``.

    Args:
        tensor: a SparseTensor of any format. Its pattern is shared. Its values become a ``torch.nn.Parameter`` that shares their memory.
        requires_grad: whether the values require grad.

    Raises:
        OperandError: ``tensor`` is not a SparseTensor.
        RuntimeError: the values are integers or booleans, and ``requires_grad`` is True.

    >>> import numscorch as ns
    >>> weight = ns.nn.Parameter(ns.from_torch(torch.eye(2), ns.CSR))
    >>> weight @ torch.ones(2)
    tensor([1., 1.], grad_fn=<_ThroughBackward>)
    >>> [name for name, _ in weight.named_parameters()], sorted(weight.state_dict())
    (['values'], ['_extra_state', 'level1_crd', 'level1_pos', 'values'])
    """

    __array_ufunc__ = None  # makes NumPy defer to the operators
    NAME, ADOPT = "values", ADOPT
    TENSOR: ClassVar[Any] = SparseTensor
    values: torch.nn.Parameter

    def __init__(self, tensor: SparseTensor, requires_grad: bool = True):
        if not isinstance(tensor, SparseTensor | SparseParameter):
            raise OperandError(
                f"SparseParameter takes a SparseTensor, not {type(tensor).__name__}: convert it with {converter(tensor) or 'ns.from_torch'}"
            )
        super().__init__()
        self.values = torch.nn.Parameter(tensor.values.detach(), requires_grad)
        self.hold(tensor.pattern)

    @property
    def tensor(self) -> SparseTensor:
        """The SparseTensor of the current pattern and values.

        Raises:
            FormatError: the index arrays were overwritten, and are invalid.
            SizeError: the number of values does not match the pattern.
            UnsupportedError: ``torch.jit.trace`` is running.
        """
        if not torch.compiler.is_compiling():
            if torch._C._get_tracing_state() is not None:
                raise UnsupportedError(f"torch.jit.trace {NO_SCRIPT}")
            self._follow()
        return SparseTensor(self.pattern, self.values)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """Register the values, the only parameter.

        Args:
            name: must be ``"values"``.
            param: the values.

        Raises:
            UnsupportedError: the name is another one, such as a name that ``torch.nn.utils.prune`` registers.
        """
        if name != "values":
            raise UnsupportedError(f"{name!r} of a sparse parameter, whose values are its only parameter: {PRUNE}")
        super().register_parameter(name, param)

    def __prepare_scriptable__(self) -> Any:
        """Reject torch.jit.script, which calls this method first.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(f"torch.jit.script {NO_SCRIPT}")

    @property
    def requires_grad(self) -> bool:
        """Whether the values require grad; False freezes them."""
        return self.values.requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.values.requires_grad = wanted

    @property
    def data(self) -> SparseTensor:
        """The detached tensor; a SparseTensor with the same pattern can be assigned.

        Raises:
            OperandError: the assigned value is not a SparseTensor with this pattern.
        """
        return self.tensor.detach()

    @data.setter
    def data(self, data: SparseTensor) -> None:
        data = unwrapped(data)
        if not isinstance(data, SparseTensor) or not data.pattern.stores_as(self.pattern):
            given = f"a dense tensor of shape {tuple(data.shape)}" if isinstance(data, torch.Tensor) else repr(data)
            raise OperandError(
                f"the data of a sparse parameter must have its pattern\n  parameter   {self.tensor.detach()!r}\n  given       {given}\n"
                "write to weight.values, or replace the parameter: layer.weight = ns.nn.Parameter(ns.from_torch(data))"
            )
        self.values.data = data.values.detach()

    @property
    def grad(self) -> SparseTensor | None:
        """The gradient, with the same pattern; None before the backward pass."""
        return self.tensor.grad

    @grad.setter
    def grad(self, gradient: SparseTensor | None) -> None:
        self.values.grad = None if gradient is None else gradient.values

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {name: unwrapped(value) for name, value in (kwargs or {}).items()}
        return cls.TENSOR.__torch_function__(func, types, tuple(map(unwrapped, args)), named)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move or convert the values, like ``torch.nn.Module.to``.

        Args:
            *args, **kwargs: a device, a data type or a tensor, as for ``torch.nn.Module.to``.

        Returns:
            The parameter itself.

        Raises:
            OperandError: the argument is a format. The format is fixed, because optimizers hold the values in its order.
        """
        target = args[0] if args else None
        if isinstance(target, Format) or (isinstance(target, str) and target.partition(":")[0] not in DEVICES):
            converted = f"weight.tensor.to({str(target)!r})"
            raise OperandError(
                f"the format {target} for a sparse parameter, which keeps its format, as optimizers hold its values: use {converted}, "
                f"or replace the parameter, as in layer.weight = ns.nn.Parameter({converted}), and make the optimizer afterwards"
            )
        return super().to(*args, **kwargs)

    def copy_(self, src: Any, non_blocking: bool = False) -> Any:
        """Copy values in place.

        Args:
            src: a dense tensor with the shape of the values, or a dense or sparse tensor with the shape of the parameter. Only the
                stored entries are copied from a tensor with the parameter's shape.
            non_blocking: as in ``torch.Tensor.copy_``.

        Raises:
            OperandError: ``src`` is not a tensor.
            SizeError: ``src`` has another shape, or stores other entries.
            RuntimeError: the values require grad, and gradients are enabled.
        """
        if isinstance(src, torch.Tensor) and src.shape == self.values.shape:
            return self.values.copy_(src)
        return self.tensor.copy_(unwrapped(src), non_blocking)

    def view_as(self, other: Any) -> SparseTensor:
        """Reject views, because ``torch.nn.init.orthogonal_`` writes to one: a part of an orthogonal matrix is not orthogonal.

        Args:
            other: ignored.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "view_as of a sparse parameter, as torch.nn.init.orthogonal_ calls it: the stored entries of an orthogonal matrix "
            "are not orthogonal; use torch.nn.init.kaiming_uniform_ or xavier_uniform_, and weight.tensor.view_as(other) for a view"
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "__qualname__":
                return type_name(self)
            if name.startswith("_") or name in ("values", "pattern"):
                raise
        return getattr(self.values if name in OF_VALUES else self._described if name in FACTS else self.tensor, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.tensor)})

    def __hash__(self) -> int:
        """Hash by identity, because == is elementwise; written in Python, because Dynamo traces it."""
        return id(self)

    @property
    def _described(self) -> Any:
        """The tensor; on the meta device, a tensor of zeros with the same shape, format and data type."""
        values = self.values
        return SparseTensor(self.pattern, torch.zeros(values.shape, dtype=values.dtype, device="cpu")) if values.is_meta else self.tensor

    def extra_repr(self) -> str:
        """Return the text of the tensor that ``repr`` shows."""
        return f"{self._described!r}{' on meta' * self.values.is_meta}"

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the values, the arrays, the format, and an empty tensor under the weight's name."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if prefix:
            destination[prefix[:-1]] = torch.empty(0, device="cpu")

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
        """Load the values of a state with this pattern. A dense weight is an error, unless the parent module has replaced it."""
        if prefix[:-1] in unexpected_keys:  # the parent module does not know the entry under the weight's name
            unexpected_keys.remove(prefix[:-1])
            if not state_dict:
                error_msgs.append(f"{prefix}values (is dense in the state, but {self._described.detach()} in the model; {CONVERT})")
                return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _adopt(self, pattern: Pattern) -> None:
        super()._adopt(pattern)
        self.values = unassigned(self.values, pattern)


def unwrapped(value: Any) -> Any:
    """Replace a SparseParameter by its SparseTensor, also inside lists and tuples; returns other values unchanged."""
    if isinstance(value, list | tuple) and any(isinstance(member, SparseParameter) for member in value):
        return type(value)(map(unwrapped, value))
    return value.tensor if isinstance(value, SparseParameter) else value


def _delegated(name: str) -> Callable[..., Any]:
    """A special method that calls the tensor's method of this name; in-place operators return the parameter."""

    def method(self: SparseParameter, *args: Any) -> Any:
        tensor = self.tensor
        result = getattr(tensor, name)(*map(unwrapped, args))
        return self if result is tensor else result

    method.__name__ = name
    return method


SPECIAL_METHODS = [name for name, member in vars(PythonOperators).items() if callable(member) and name != "__hash__"]
for special_method in (*SPECIAL_METHODS, "__len__", "_repr_html_"):
    setattr(SparseParameter, special_method, _delegated(special_method))


class _Checked(type(torch.nn.Parameter)):  # type: ignore[misc]  # torch gives its metaclass no type
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.nn.Parameter | SparseParameter)


class Parameter(torch.nn.Parameter, metaclass=_Checked):
    """``torch.nn.Parameter`` that also accepts sparse tensors.

    A SparseTensor becomes a :class:`SparseParameter`. So does a SparseParameter, whose pattern and memory are shared. A sharded
    matrix becomes a :class:`~numscorch.sharding.ShardedSparseParameter`. A tensor of torch becomes a ``torch.nn.Parameter``.
    ``isinstance`` accepts all of them as instances of this class.

    Args:
        data: a SparseTensor, a sharded matrix, a tensor of torch, or a parameter; None for an empty tensor.
        requires_grad: whether the parameter requires grad.

    Raises:
        OperandError: ``data`` is not a tensor.
        RuntimeError: the values are integers or booleans, and ``requires_grad`` is True.

    >>> import numscorch as ns
    >>> weight = Parameter(ns.from_torch(torch.eye(2)))
    >>> weight
    SparseParameter(SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int32 indices, requires_grad=True))
    >>> isinstance(weight, Parameter), isinstance(Parameter(torch.ones(2)), torch.nn.Parameter)
    (True, True)
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        data = torch.empty(0) if data is None else unwrapped(data)
        if isinstance(data, SparseTensor):
            return SparseParameter(data, requires_grad)
        if (handler := HANDLERS.get(type(data))) is not None and handler.parameter is not None:
            return handler.parameter(data, requires_grad)
        if not isinstance(data, torch.Tensor):
            raise OperandError(
                f"Parameter takes SparseTensors and torch tensors, not {type(data).__name__}: "
                f"convert it with {converter(data) or 'torch.tensor'}"
            )
        return torch.nn.Parameter(data, requires_grad)
