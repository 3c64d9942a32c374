"""Application of a plan's rules for activations and gradients to modules and parameters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UnsupportedError
from ..ir.format import COO
from ..tensors.parameter import SparseParameter
from .flows import SparseActivation, SparseOutputGradient, SparseWeightGradient, remove_flows
from .matching import sites_of
from .plan import PlanRule, SparsityPlan, named_by


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
