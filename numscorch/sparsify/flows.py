"""Sparse activations and gradients: hooks that pass on only the entries that a sparsifier keeps.

The hooks are immutable values attached to modules, and are copied and pickled with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..errors import OperandError
from ..sparsifiers.scored import MovementScores
from ..sparsifiers.sparsify import Sparsifier, mask_of, sparsify
from ..tensors.parameter import SparseParameter
from .flow import Flow


class SparseActivation(Flow):
    """A forward hook that sparsifies a module's output; of a tuple, the first tensor.

    A program that torch compiles as a whole has no sparse outputs: it passes a dense tensor with the same values,
    whatever the format.
    """

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        first, remaining = _split_output(self.name, output)
        activation = self._sparse(first)
        return activation if remaining is None else (activation, *remaining)

    def _sparse(self, output: torch.Tensor) -> Any:
        if torch.compiler.is_compiling():
            from .compiled_flows import sparsify_in_compiled_graph  # imported here: it imports torch's compiler

            return sparsify_in_compiled_graph(self, output)
        if self.format is not None:
            return sparsify(output, self.sparsifier, self.format)
        return torch.where(mask_of(output.detach(), self.sparsifier), output, torch.zeros((), dtype=output.dtype))


class SparseOutputGradient(Flow):
    """A forward hook that sparsifies the gradient of a module's output."""

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        first, _ = _split_output(self.name, output)
        if not first.requires_grad:
            return
        if torch.compiler.is_compiling():
            from .compiled_flows import masked, number_of  # as above

            first.register_hook(partial(masked, number_of(self)))
        else:
            first.register_hook(Masking(self.sparsifier))


class SparseWeightGradient(Flow):
    """A forward pre-hook that sparsifies the gradient of a parameter.

    Copies of a parameter lose its hooks, so each forward pass attaches them if they are missing.
    """

    def __call__(self, module: torch.nn.Module, inputs: Any) -> None:
        weight = getattr(module, self.name)
        values = weight.values if isinstance(weight, SparseParameter) else weight
        is_attached = self in [getattr(hook, "owner", None) for hook in (values._backward_hooks or {}).values()]
        if values.requires_grad and not is_attached:
            values.register_hook(Masking(self.sparsifier, self))
            if self.format is not None:
                values.register_post_accumulate_grad_hook(Coordinates(self))


@dataclass(frozen=True)
class Masking:
    """A tensor hook that zeros the dropped entries of a gradient."""

    sparsifier: Sparsifier
    owner: SparseWeightGradient | None = None
    __torch_unserializable__ = True  # torch.save leaves it out without a warning: the module's hook attaches it again

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return torch.where(mask_of(gradient.detach(), self.sparsifier), gradient, torch.zeros((), dtype=gradient.dtype))


@dataclass(frozen=True)
class Coordinates:
    """A parameter hook that converts an accumulated gradient to torch's COO layout."""

    owner: SparseWeightGradient
    __torch_unserializable__ = True

    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            parameter.grad = parameter.grad.to_sparse()


def is_masking(hook: object) -> bool:
    """Return whether a parameter's hook masks its gradient or records its movement: a sparse weight needs no such hook."""
    return isinstance(hook, Masking | Coordinates) or isinstance(getattr(hook, "__self__", None), MovementScores)


def remove_flows(module: torch.nn.Module, like: object = None) -> None:
    """Remove a plan's hooks from a module; with ``like``, only the hooks that ``like`` would replace."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for number in [number for number, hook in hooks.items() if isinstance(hook, Flow) and (like is None or _is_like(hook, like))]:
            hook = hooks.pop(number)
            if isinstance(hook, SparseWeightGradient):
                _detach(getattr(module, hook.name))


def _is_like(hook: Any, other: Any) -> bool:
    return type(hook) is type(other) and (not isinstance(hook, SparseWeightGradient) or hook.name == other.name)


def _detach(tensor: Any) -> None:
    """Remove a plan's hooks from a parameter."""
    values = tensor.values if isinstance(tensor, SparseParameter) else tensor
    for hooks in (values._backward_hooks or {}, values._post_accumulate_grad_hooks or {}):
        for number in [number for number, hook in hooks.items() if isinstance(hook, Masking | Coordinates)]:
            del hooks[number]


def _split_output(name: str, output: Any) -> tuple[torch.Tensor, tuple[Any, ...] | None]:
    """Split a module's output into its first tensor and the remaining outputs; None for the latter if it is not a tuple."""
    remaining = output[1:] if isinstance(output, tuple) else None
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, torch.Tensor):
        raise OperandError(f"{name} returns {type(first).__name__}, not a tensor: name a module within it whose result is one")
    return first, remaining
