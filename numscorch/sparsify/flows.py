"""Sparse activations and gradients: hooks that let only what a sparsifier keeps pass.

Hooks are modules' own, and values: they are copied and pickled with the module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import OperandError
from ..ir.format import Format
from ..sparsifiers.scored import MovementScores
from ..sparsifiers.sparsify import Sparsifier, mask_of, sparsify
from ..tensors.parameter import SparseParameter


@dataclass(frozen=True)
class SparseActivation:
    """A forward hook: what a module returns, without what isn't kept; of a tuple, its first tensor.

    A program that torch compiles as a whole has no sparse results: there it is dense whatever the format, with the same numbers.
    """

    name: str
    sparsifier: Sparsifier
    format: Format | None = None

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        first, rest = _first(self.name, output)
        activation = self._sparse(first)
        return activation if rest is None else (activation, *rest)

    def _sparse(self, output: torch.Tensor) -> Any:
        if torch.compiler.is_compiling():
            from .compiled_flows import traced  # late: it imports torch's compiler

            return traced(self, output)
        if self.format is not None:
            return sparsify(output, self.sparsifier, self.format)
        return torch.where(mask_of(output.detach(), self.sparsifier), output, torch.zeros((), dtype=output.dtype))


@dataclass(frozen=True)
class SparseOutputGradient:
    """A forward hook that has the gradient of what a module returns go through a sparsifier."""

    name: str
    sparsifier: Sparsifier
    format: None = None  # what is kept stays in a dense tensor

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        first, _ = _first(self.name, output)
        if not first.requires_grad:
            return
        if torch.compiler.is_compiling():
            from .compiled_flows import traced_hook  # late, too

            first.register_hook(traced_hook(self))
        else:
            first.register_hook(Masking(self.sparsifier))


@dataclass(frozen=True)
class SparseWeightGradient:
    """A forward hook, called first, that has a parameter's gradient go through a sparsifier.

    Copies of a parameter lose its hooks, so that they are looked for in each pass.
    """

    name: str
    sparsifier: Sparsifier
    format: Format | None = None

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        weight = getattr(module, self.name)
        values = weight.values if isinstance(weight, SparseParameter) else weight
        if self not in [getattr(hook, "owner", None) for hook in (values._backward_hooks or {}).values()]:
            self.attach(values)

    def attach(self, values: torch.nn.Parameter) -> None:
        """Hook a parameter that requires a gradient."""
        if values.requires_grad:
            values.register_hook(Masking(self.sparsifier, self))
            if self.format is not None:
                values.register_post_accumulate_grad_hook(Coordinates(self))


@dataclass(frozen=True)
class Masking:
    """A tensor's hook: its gradient, without what isn't kept."""

    sparsifier: Sparsifier
    owner: SparseWeightGradient | None = None
    __torch_unserializable__ = True  # torch.save leaves it out without a warning: the module's hook attaches it again

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return torch.where(mask_of(gradient.detach(), self.sparsifier), gradient, torch.zeros((), dtype=gradient.dtype))


@dataclass(frozen=True)
class Coordinates:
    """A parameter's hook: its gradient in torch's COO layout, once it is added up."""

    owner: SparseWeightGradient
    __torch_unserializable__ = True

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            parameter.grad = parameter.grad.to_sparse()


FLOWS = (SparseActivation, SparseOutputGradient, SparseWeightGradient)


def is_masking(hook: object) -> bool:
    """Whether a parameter's hook is one of a plan's, or masks it, or records how it moves: all can do without."""
    return isinstance(hook, Masking | Coordinates) or isinstance(getattr(hook, "__self__", None), MovementScores)


def remove_flows(module: torch.nn.Module, like: object = None) -> None:
    """Take a plan's hooks off a module; or only those that do what another one does."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for number in [number for number, hook in hooks.items() if isinstance(hook, FLOWS) and (like is None or _is_like(hook, like))]:
            hook = hooks.pop(number)
            if isinstance(hook, SparseWeightGradient):
                _detach(getattr(module, hook.name))


def _is_like(hook: Any, other: Any) -> bool:
    return type(hook) is type(other) and (not isinstance(hook, SparseWeightGradient) or hook.name == other.name)


def _detach(tensor: Any) -> None:
    """Take a plan's hooks off a parameter."""
    values = tensor.values if isinstance(tensor, SparseParameter) else tensor
    for hooks in (values._backward_hooks or {}, values._post_accumulate_grad_hooks or {}):
        for number in [number for number, hook in hooks.items() if isinstance(hook, Masking | Coordinates)]:
            del hooks[number]


def _first(name: str, output: Any) -> tuple[torch.Tensor, tuple[Any, ...] | None]:
    """The tensor that a module returns, and what it returns beside it."""
    rest = output[1:] if isinstance(output, tuple) else None
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, torch.Tensor):
        raise OperandError(f"{name} returns {type(first).__name__}, not a tensor: name a module within it whose result is one")
    return first, rest
