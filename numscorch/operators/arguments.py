"""Argument handling for the operator table: torch's and numpy's argument names, and dense conversion of sparse arguments.

The annotations of an implementation declare its arguments: ``SparseTensor`` must be sparse, ``Any`` may be sparse,
``torch.Tensor`` is dense, ``int`` is an integer. A sparse argument for a dense parameter, such as an index or a weight, is made
dense and listed in the ledger. Other mistakes are left to the implementation: if it fails, torch's function explains why.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import chain, repeat
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from ..convert.values import densified
from ..errors import NumscorchError, OperandError, UnsupportedError
from ..tensors.arrays import as_integer, as_operand
from ..tensors.parameter import SparseParameter, unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .naming import torchs, with_name

NUMPYS = {"axis": "dim", "keepdims": "keepdim"}  # numpy's argument names, which torch accepts
MAY_BE_SPARSE = ("Any", "Sequence[Any]", "SparseTensor", None)  # annotations of parameters that may be sparse; lambdas have none
NATIVE = frozenset(
    (SparseTensor, torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, type(None), bool, int, float, complex, str, tuple, list)
)  # types of arguments that need no conversion


TENSORS = (SparseTensor, SparseParameter, torch.Tensor)


def refusal(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Why torch's functions and method of this name refuse the types of arguments; an empty text if one of them takes them.

    >>> refusal("dot", (torch.ones(2), 3), {})
    "dot(): argument 'tensor' (position 2) must be Tensor, not int: wrap other objects with torch.as_tensor"
    """
    args, kwargs = tree_map_only(
        TENSORS,
        lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"),
        (tuple(args), dict(kwargs)),
        is_leaf=lambda value: isinstance(value, TENSORS),
    )
    reasons, suggestion = [], ": wrap other objects with torch.as_tensor"
    for torch_function in filter(callable, (getattr(home, name, None) for home in (functional, torch, torch.Tensor))):
        try:
            torch_function(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            reasons.append(f"{str(error).strip()}{suggestion * ('Tensor' in str(error) or isinstance(error, AttributeError))}")
        except Exception:  # of sizes, or of tensors without values
            return ""
        else:
            return ""
    return next((reason if name in reason else f"{name}(): {reason}" for reason in reasons), "")


class Signature:
    """The parameters of an implementation: their names, and those that must be dense."""

    def __init__(self, name: str, function: Callable[..., Any], is_mixed: bool = False):
        function = inspect.unwrap(function)
        code, annotations = function.__code__, function.__annotations__  # inspect.signature would take 5 ms for all operators
        count = code.co_argcount
        by_place, named = code.co_varnames[:count], code.co_varnames[: count + code.co_kwonlyargcount]
        is_variadic = bool(code.co_flags & inspect.CO_VARARGS)
        self.name, self.own_name, self.by_place, self.names = name, function.__name__, by_place, frozenset(named)
        self.is_open = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        self.most = 1 << 30 if is_variadic else count
        self.dense_args = is_variadic and code.co_varnames[len(named)] == "args"
        self.dense = frozenset(name for name in named if annotations.get(name) not in MAY_BE_SPARSE)
        self.integers = frozenset(name for name in named if annotations.get(name) == "int")
        self.dense_places = tuple(at for at, own_name in enumerate(by_place) if own_name in self.dense)
        is_declared = bool(code.co_varnames) and annotations.get(code.co_varnames[0]) in ("SparseTensor", None)
        self.needs_sparse = not is_mixed and (is_declared or name.endswith("_"))  # in place, torch writes to a dense first argument

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments can be passed on unchanged."""
        if len(args) > self.most or not args or (self.needs_sparse and type(args[0]) is not SparseTensor):
            return False
        if any(type(args[at]) is SparseTensor for at in self.dense_places if at < len(args)):
            return False
        if self.dense_args and any(type(arg) is SparseTensor for arg in args[len(self.by_place) :]):
            return False
        return not kwargs or (kwargs.keys() <= self.names and not any(type(arg) is SparseTensor for arg in kwargs.values()))

    def fitted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Rename arguments to the function's own parameter names, and densify sparse arguments of dense parameters.

        Raises:
            OperandError: an argument is unknown, or has two values.
            UnsupportedError: ``out=`` is given, but sparse results cannot be written into a tensor.
        """
        for key in kwargs.keys() & NUMPYS.keys():
            if NUMPYS[key] in kwargs and NUMPYS[key] in self.names:
                raise OperandError(f"{self.name} got multiple values of one argument, {key}= and {NUMPYS[key]}=: leave one out")
        named = {NUMPYS[key] if key in NUMPYS and NUMPYS[key] in self.names else key: value for key, value in kwargs.items()}
        # a memory format is ignored, because values are one-dimensional
        named = {key: value for key, value in named.items() if key in self.names or (value is not None and key != "memory_format")}
        if "out" in named and "out" not in self.names:
            raise UnsupportedError(f"out= of {self.name} with a SparseTensor: use the returned tensor")
        values = list(args)
        while len(values) > self.most and values[-1] is None:
            values.pop()
        unknown = [f"{key}=" for key in named if key not in self.names and not self.is_open] + ["more values"] * (len(values) > self.most)
        if unknown:
            takes = ", ".join([*self.by_place, *sorted(self.names - {*self.by_place})])
            raise OperandError(f"{self.name} of a SparseTensor takes {takes}, not {', '.join(unknown)}: pass those, or use .to_dense()")
        for at, value in enumerate(values):
            if at in self.dense_places or (self.dense_args and at >= len(self.by_place)):
                values[at] = self._dense(value)
        return values, {key: self._dense(value) if key in self.dense or key not in self.names else value for key, value in named.items()}

    def explain(self, error: Exception, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Name the operator in an error that does not, or raise a clearer error in its place; return if the error is clear.

        torch is asked about errors of types: about an OperandError for operands, and about errors that numscorch does not raise on
        purpose, such as an AttributeError of a number in the place of a tensor. Errors of several lines show the operands.

        Raises:
            OperandError: torch refuses the types of the arguments, too.
        """
        is_own = isinstance(error, NumscorchError)
        is_clear = is_own and ("\n" in str(error) or re.search(rf"\b({self.name}|{self.own_name})\b", str(error)))
        is_of_types = type(error) is OperandError and error.__cause__ is None  # ``as_integer`` gives a cause
        is_builtin = type(error).__module__ == "builtins" and not isinstance(error, Warning)  # torch ends recomputation by an exception
        if not is_clear and (is_of_types or is_builtin) and (reason := refusal(self.name, args, kwargs)):
            raise OperandError(reason) from error
        if is_own and not is_clear:
            error.args = (f"{self.name}: {error}",)

    def _dense(self, value: Any) -> Any:
        return densified(unwrapped(value), self.name, "its argument must be dense")

    def of_dense(self, first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call torch's method on a dense first argument; sparse arguments are made dense.

        Raises:
            OperandError: the first argument is not a tensor.
        """
        if not isinstance(first, torch.Tensor):
            raise OperandError(f"{self.name} of {type(first).__name__} with a SparseTensor: the first argument must be a tensor")
        torch_function = getattr(torch.Tensor, self.name, None) or torchs(self.name)
        return torch_function(*map(self._dense, args), **{key: self._dense(value) for key, value in kwargs.items()})


def checked(name: str, function: Callable[..., Any], is_mixed: bool = False) -> Callable[..., Any]:
    """Wrap an implementation: accept torch's and numpy's argument names, and densify sparse arguments of dense parameters.

    With ``is_mixed``, the first argument may be dense even if the parameters have no annotations. Parameters of lambdas have none.
    """
    signature = Signature(name, function, is_mixed)
    most = 0 if signature.dense_places or signature.dense_args or signature.needs_sparse else signature.most
    native = frozenset((SparseTensor, int)) if signature.integers else NATIVE  # other types are converted or refused

    def converted(parameter: str, value: Any) -> Any:
        return as_integer(value) if parameter in signature.integers else value if type(value) in NATIVE else as_operand(value, name)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not (native.issuperset(map(type, args)) and native.issuperset(map(type, kwargs.values()))):
                args = tuple(map(converted, chain(signature.by_place, repeat("")), args))
                kwargs = {key: converted(key, value) for key, value in kwargs.items()}
            is_led = not kwargs and bool(args) and type(args[0]) is SparseTensor and len(args) <= signature.most
            if (is_led and SparseTensor not in map(type, args[1:])) or (not kwargs and 0 < len(args) <= most):
                return function(*args)  # no argument needs a check
            if torch.compiler.is_compiling() or signature.fits(args, kwargs):
                return function(*args, **kwargs)
            positional, named = signature.fitted(args, kwargs)
            first = positional[0] if positional else named.get(signature.by_place[0]) if signature.by_place else None
            if signature.needs_sparse and not isinstance(first, SparseTensor):
                return signature.of_dense(first, args, kwargs)
            return function(*positional, **named)
        except Exception as error:
            if not torch.compiler.is_compiling():
                signature.explain(error, args, kwargs)
            raise

    return with_name(call, name, function.__doc__ or f"torch's {name}, with a SparseTensor among its arguments.")
