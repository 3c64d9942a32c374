"""Sparse activations and gradients: hooks that pass on only the entries that a sparsifier keeps, attached by the rules of a plan.

The hooks are immutable values attached to modules, and are copied and pickled with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..errors import OperandError, UnsupportedError
from ..ir.format import COO
from ..sparsifiers.entrywise import MovementScores
from ..sparsifiers.sparsify import Sparsifier, mask_of, sparsify
from ..tensors.parameter import SparseParameter
from .layers import sites_of
from .plan import Flow, PlanRule, SparsityPlan, named_by


class SparseActivation(Flow):
    """A forward hook that sparsifies a module's output; if the output is a tuple, its first tensor.

    A program that torch compiles as a whole has no sparse outputs: it passes a dense tensor with the same values,
    whatever the format.
    """

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        first, remaining = _split_output(self.name, output)
        activation = self._sparse(first)
        return activation if remaining is None else (activation, *remaining)

    def _sparse(self, output: torch.Tensor) -> Any:
        if torch.compiler.is_compiling():
            from .compiled_flows import is_whole, masked, number_of  # deferred: it imports torch's compiler

            if self.format is None or is_whole():
                return masked(number_of(self), output)
        elif self.format is None:
            return Masking(self.sparsifier)(output)
        return sparsify(output, self.sparsifier, self.format)


class SparseOutputGradient(Flow):
    """A forward hook that sparsifies the gradient of a module's output."""

    def __call__(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        first, _ = _split_output(self.name, output)
        if not first.requires_grad:
            return
        if torch.compiler.is_compiling():
            from .compiled_flows import masked, number_of  # deferred: it imports torch's compiler

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
    """A tensor hook that zeros the dropped entries of a gradient, or of another dense tensor."""

    sparsifier: Sparsifier
    owner: SparseWeightGradient | None = None
    __torch_unserializable__ = True  # torch.save leaves it out without a warning: the module's hook attaches it again

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.where(mask_of(tensor.detach(), self.sparsifier), tensor, torch.zeros((), dtype=tensor.dtype))


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


def remove_flows(module: torch.nn.Module, kind: type[Flow] = Flow, name: str | None = None) -> None:
    """Remove a plan's hooks of a kind from a module; with ``name``, only hooks of this parameter."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for number, hook in list(hooks.items()):
            if isinstance(hook, kind) and name in (None, hook.name):
                del hooks[number]
                if isinstance(hook, SparseWeightGradient):
                    _detach(getattr(module, hook.name))


def _detach(weight: Any) -> None:
    """Remove the hooks of plans from a weight."""
    values = weight.values if isinstance(weight, SparseParameter) else weight
    for hooks in (values._backward_hooks or {}, values._post_accumulate_grad_hooks or {}):
        for number in [number for number, hook in hooks.items() if isinstance(hook, Masking | Coordinates)]:
            del hooks[number]


def _split_output(name: str, output: Any) -> tuple[torch.Tensor, tuple[Any, ...] | None]:
    """Split a module's output into its first tensor and the remaining outputs, which are None if the output is not a tuple."""
    remaining = output[1:] if isinstance(output, tuple) else None
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, torch.Tensor):
        raise OperandError(f"{name} returns {type(first).__name__}, not a tensor: name a module within it whose result is one")
    return first, remaining


# The effective rules for activations and gradients, by the name of the module or parameter and the kind of hook.
Flows = dict[tuple[str, type[Flow]], PlanRule]


def flows_of(model: torch.nn.Module, plan: SparsityPlan) -> Flows:
    """Return a plan's effective rules for activations and gradients of a model; the last rule for a name applies.

    Raises:
        ExpressionError: a rule names nothing.
    """
    named = model.named_modules(remove_duplicate=False)
    modules = [(name, module) for name, module in named if name and not isinstance(module, SparseParameter)]
    first = {id(module): name for name, module in reversed(modules)}  # a shared module has the first of its names
    once = {name: first[id(module)] for name, module in modules}
    parameters = [site.name for site in sites_of(model)]
    flows: Flows = {(once[name], SparseActivation): rule for rule in plan.of("activation") for name in named_by(rule, once)}
    return flows | {
        (once[name], SparseOutputGradient) if name in once else (name, SparseWeightGradient): rule
        for rule in plan.of("gradient")
        for name in named_by(rule, [*once, *parameters])
    }


def check_flows(model: torch.nn.Module, flows: Flows, sparse: Collection[str]) -> None:
    """Check that gradients can have the formats of their rules; ``sparse`` has the names of the parameters that become sparse.

    Raises:
        UnsupportedError: a gradient cannot have the format of its rule.
    """
    parameters = {site.name: site.parameter for site in sites_of(model)}
    for (name, kind), rule in flows.items():
        if rule.format is None or kind is SparseActivation:
            continue
        text = f"{rule} in {rule.format.name}"
        if kind is SparseOutputGradient:
            raise UnsupportedError(f"{text}: torch passes dense gradients to modules; leave format= out")
        parameter = parameters[name]
        if name in sparse or isinstance(parameter, SparseParameter) or not parameter.ndim:
            raise UnsupportedError(f"{text}: a sparse weight's gradient has its pattern; leave format= out")
        if rule.format != COO(parameter.ndim):
            raise UnsupportedError(f"{text}: grad of {name} can be dense or COO({parameter.ndim}), as in torch")


def attach(model: torch.nn.Module, flows: Flows) -> None:
    """Attach hooks to modules, in place of the hooks of an earlier plan."""
    for (name, kind), rule in flows.items():
        of_weight = kind is SparseWeightGradient
        home, _, key = name.rpartition(".") if of_weight else (name, "", name)
        module = model.get_submodule(home)
        remove_flows(module, kind, key if of_weight else None)
        register: Any = module.register_forward_pre_hook if of_weight else module.register_forward_hook
        register(kind(key, rule.sparsifier, rule.format))
