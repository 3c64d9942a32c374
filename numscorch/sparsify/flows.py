"""Sparse activations and gradients: hooks that pass on only the entries that a sparsifier keeps, and a plan's rules for them.

The hooks are immutable values attached to modules, and are copied and pickled with them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Flows:
    """The effective rules by name: for modules' outputs, for gradients of outputs, and for parameters' gradients.

    Each parameter comes with its number of dimensions, 0 if it is sparse already.
    """

    activations: dict[str, PlanRule] = field(default_factory=dict)
    outputs: dict[str, PlanRule] = field(default_factory=dict)
    weights: dict[str, tuple[PlanRule, int]] = field(default_factory=dict)

    def check(self, sparse: Collection[str]) -> None:
        """Check that gradients can have the formats of their rules, given the names of the parameters that become sparse.

        Raises:
            UnsupportedError: a gradient cannot have the format of its rule.
        """
        for rule in self.outputs.values():
            if rule.format is not None:
                raise UnsupportedError(f"{rule} in {rule.format.name}: torch passes dense gradients to modules; leave format= out")
        for name, (rule, ndim) in self.weights.items():
            if rule.format is None:
                continue
            if name in sparse or not ndim:
                raise UnsupportedError(f"{rule} in {rule.format.name}: a sparse weight's gradient has its pattern; leave format= out")
            if rule.format != COO(ndim):
                raise UnsupportedError(f"{rule} in {rule.format.name}: grad of {name} can be dense or COO({ndim}), as in torch")


def flows_of(model: torch.nn.Module, plan: SparsityPlan) -> Flows:
    """Return a plan's effective rules for activations and gradients of a model; the last rule for a name applies.

    Raises:
        ExpressionError: a rule names nothing.
    """
    named = model.named_modules(remove_duplicate=False)
    modules = [(name, module) for name, module in named if name and not isinstance(module, SparseParameter)]
    first = {id(module): name for name, module in reversed(modules)}  # a shared module has the first of its names
    once = {name: first[id(module)] for name, module in modules}
    sites = {site.name: site for site in sites_of(model)}
    flows = Flows()
    for rule in plan.of("activation"):
        flows.activations.update((once[name], rule) for name in named_by(rule, once))
    for rule in plan.of("gradient"):
        for name in named_by(rule, [*once, *sites]):
            if name in once:
                flows.outputs[once[name]] = rule
            else:
                module = sites[name].parameter
                flows.weights[name] = rule, 0 if isinstance(module, SparseParameter) else module.ndim
    return flows


def attach(model: torch.nn.Module, flows: Flows) -> None:
    """Attach hooks to modules, in place of the hooks of an earlier plan."""
    for name, rule in flows.activations.items():
        _hook(model.get_submodule(name), SparseActivation(name, rule.sparsifier, rule.format))
    for name, rule in flows.outputs.items():
        _hook(model.get_submodule(name), SparseOutputGradient(name, rule.sparsifier))
    for name, (rule, _) in flows.weights.items():
        home, _, key = name.rpartition(".")
        _hook(model.get_submodule(home), SparseWeightGradient(key, rule.sparsifier, rule.format))


def _hook(module: torch.nn.Module, hook: Any) -> None:
    remove_flows(module, hook)
    if isinstance(hook, SparseWeightGradient):
        module.register_forward_pre_hook(hook)
    else:
        module.register_forward_hook(hook)
