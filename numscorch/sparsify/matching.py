"""Matching of name patterns to a model's weights, and the reasons why some weights stay dense."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import escape
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import ParametrizationList

from ..errors import ExpressionError, OperandError, UnsupportedError
from ..frontend.datatypes import STORED
from ..ir.format import Format, as_format
from ..nn.stock import ValuesOfWeight
from ..sparsifiers.base import matched
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.parameter import SparseParameter
from .checks import sparsifier_of
from .flows import is_masking
from .layers import VERSIONS, Site, adapted, converted, sites_of
from .plan import PlanRule, SparsityPlan, named_by

COMPUTED = {
    "mask": "is pruned by torch; torch.nn.utils.prune.remove(module, '{}') leaves a plain weight",
    "orig": "is normalized by torch; torch.nn.utils.remove_spectral_norm(module, '{}') leaves a plain weight",
    "g": "is normalized by torch; torch.nn.utils.remove_weight_norm(module, '{}') leaves a plain weight",
    "v": "is normalized by torch; torch.nn.utils.remove_weight_norm(module, '{}') leaves a plain weight",
}  # reasons by the suffix of the parameter's name
REMOVE = "torch.nn.utils.parametrize.remove_parametrizations(module, '{}')"
PARAMETRIZED = f"is parametrized; {REMOVE} leaves a plain weight"
SPARSE = "is sparse already; ns.nn.dense_weight(module, '{}') makes it dense"
MASKED = f"is pruned by torch; squash_mask() of the sparsifier, or {REMOVE}, leaves a plain weight"
Names = str | Iterable[str]
DENSE = (torch.nn.Linear, torch.nn.Conv2d)  # without subclasses, which may read the weight in other ways


@dataclass(eq=False)
class MatchedWeight:
    """A weight that a plan names, with all its places and the rules that name it.

    ``why`` is the reason why the weight stays dense, if any. ``is_maskable`` is True if it can be masked nevertheless.
    """

    sites: list[Site]
    rules: list[PlanRule]
    sparsifier: Sparsifier
    why: str = ""
    is_maskable: bool = False
    missing: Site | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The weight's name at its first place."""
        return self.sites[0].name

    @property
    def rule(self) -> PlanRule:
        """The rule that applies: the last one."""
        return self.rules[-1]

    @property
    def parameter(self) -> torch.nn.Parameter:
        return getattr(self.sites[0].module, self.sites[0].key)

    @property
    def is_sparse(self) -> bool:
        return isinstance(self.parameter, SparseParameter)

    @property
    def is_vector(self) -> bool:
        """Whether the weight is a dense vector or scalar, which stays dense."""
        parameter = self.parameter
        return not isinstance(parameter, SparseParameter | torch.nn.parameter.UninitializedParameter) and parameter.ndim < 2

    def modules(self) -> list[Site]:
        """Return one site for each module that has the weight, even if the module is at several places."""
        return list({id(site.module): site for site in reversed(self.sites)}.values())[::-1]


def chosen(model: torch.nn.Module, plan: SparsityPlan) -> list[MatchedWeight]:
    """Return the weights that a plan names, with the reasons against sparsifying them; masks are not drawn yet.

    If torch computes a weight from other parameters, as in a pruned layer, the result names these parameters.

    Raises:
        ExpressionError: a rule names nothing.
    """
    sites = list(sites_of(model))
    names = {site: {site.name, computed(site)[0]} - {""} for site in sites}
    known = dict.fromkeys(name for group in names.values() for name in group)
    matches = [(rule, set(named_by(rule, known))) for rule in plan.of("weight")]
    ruled = {name for _, matching in matches for name in matching}
    places: dict[int, list[Site]] = {}
    for site in sites:
        places.setdefault(id(site.parameter), []).append(site)
    choices_ = []
    for group in places.values():
        of_group = {name for site in group for name in names[site]} & ruled
        if named := [rule for rule, matching in matches if not of_group.isdisjoint(matching)]:
            choice = MatchedWeight(group, named, named[-1].sparsifier)
            choice.why = _why_dense(choice, model, ruled)
            if len(group) > 1 and not choice.why:
                choice.notes.append(f"also {', '.join(site.name for site in group[1:])}")
            if len(named) > 1:
                choice.notes.append(f"{choice.rule} overrides {', '.join(map(str, named[:-1]))}")
            choices_.append(choice)
    _limit_to_one_per_module(choices_)
    _share_budgets(choices_)
    return choices_


def _why_dense(choice: MatchedWeight, model: torch.nn.Module, ruled: set[str]) -> str:
    parameter, named = choice.parameter, {id(site.module) for site in choice.sites if site.name in ruled}
    if choice.is_sparse:
        return "is sparse already; densify_model makes it dense"
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        return "has no size yet; run the model once before sparsifying it"
    if why := next(filter(None, (computed(site)[1] for site in choice.modules())), ""):
        return why
    if choice.is_vector:
        return "a vector, which stays dense"
    if parameter.is_meta:
        return "is on the meta device, and has no values: call model.to_empty(device='cpu'), then load or initialize them"
    if unnamed := [site.name for site in choice.sites if id(site.module) not in named]:
        return f"tied to {unnamed[0]}, which no rule names; name both, or neither"
    choice.is_maskable = True
    return why_hooked(parameter) or next(filter(None, (_why_module(choice, site, model) for site in choice.modules())), "")


def why_hooked(weight: torch.Tensor) -> str:
    """Return why a weight's hooks prevent it from becoming sparse; empty if the hooks can be dropped."""
    hooks = [*(weight._backward_hooks or {}).values(), *(getattr(weight, "_post_accumulate_grad_hooks", None) or {}).values()]
    if all(map(is_masking, hooks)):
        return ""
    return "has user-defined hooks, which expect a dense gradient; remove them, and register them on weight.values once it is sparse"


def computed(site: Site) -> tuple[str, str]:
    """If torch computes a weight from a parameter (parametrized, pruned, normalized), return the weight's name and how to undo that.

    Otherwise, both are empty.

    >>> layer = torch.nn.utils.spectral_norm(torch.nn.Linear(2, 2))
    >>> computed(Site("0.weight_orig", layer, "weight_orig"))[0]
    '0.weight'
    """
    weight, _, part = site.key.rpartition("_")
    if isinstance(site.module, ParametrizationList):
        home, _, weight = site.home.rpartition("parametrizations.")
        reason = SPARSE if isinstance(site.module[0], ValuesOfWeight) else MASKED if is_masked(site) else PARAMETRIZED
        return f"{home}{weight}", reason.format(weight)
    if weight in site.module._parameters or not hasattr(site.module, weight) or part not in COMPUTED:
        return "", ""
    return f"{site.home}.{weight}".lstrip("."), COMPUTED["mask" if is_masked(site) else part].format(weight)


def is_masked(site: Site) -> bool:
    """Return whether a mask of torch.nn.utils.prune or torch.ao.pruning prunes a parameter.

    >>> from torch.nn.utils import prune
    >>> layer = prune.l1_unstructured(torch.nn.Linear(2, 2), "weight", 0.5)
    >>> is_masked(Site("0.weight_orig", layer, "weight_orig"))
    True
    """
    if isinstance(site.module, ParametrizationList):
        return any(hasattr(step, "mask") for step in site.module)
    return site.key.endswith("_orig") and hasattr(site.module, f"{site.key.removesuffix('_orig')}_mask")


def _why_module(choice: MatchedWeight, site: Site, model: torch.nn.Module) -> str:
    """Return why one of the modules that have the weight prevents it from becoming sparse."""
    if (type(site.module), site.key) not in VERSIONS:
        choice.missing = site
        return f"{type(site.module).__name__} has no sparse version; register_sparse_module adds one"
    if choice.parameter.device.type != "cpu":
        return f"is on {choice.parameter.device}, but numscorch runs on the CPU; move it with .cpu()"
    if choice.parameter.dtype not in STORED:
        return f"is {choice.parameter.dtype}, which is not supported; convert it with .to(torch.float32)"
    holder = model.get_submodule(site.home.rpartition(".")[0])
    try:
        is_read = adapted(holder) is not holder
    except UnsupportedError as error:
        return str(error)
    return why_bound(site.module, model) or (why_bound(holder, model) if is_read else "")


def why_bound(module: torch.nn.Module, model: torch.nn.Module) -> str:
    """Return why a module cannot be replaced in a model: something would keep using it. Empty if it can be replaced."""
    if module._compiled_call_impl is not None or any(child._modules.get("_orig_mod") is module for child in model.modules()):
        return "its module is compiled on its own, and would keep using this weight; compile it afterwards"
    if "forward" in vars(module):
        return "its module has an instance attribute forward, which may keep using this weight; set it afterwards"
    return ""


def _limit_to_one_per_module(choices: list[MatchedWeight]) -> None:
    """Let only the first of several weights of one module become sparse."""
    owners: dict[int, str] = {}
    for choice in choices:
        for site in choice.modules() if not choice.why else ():
            first = owners.setdefault(id(site.module), choice.name)
            if first != choice.name:
                choice.why = f"{first} of the same module becomes sparse, and a module can have one sparse weight"


def _share_budgets(choices: list[MatchedWeight]) -> None:
    """Make the sparsifiers of rules with budgets; each budget gets all weights to which its rule applies.

    Raises:
        OperandError: a budget omits a weight, or a rule makes no sparsifier from a share.
    """
    for rule in {id(choice.rule): choice.rule for choice in choices if choice.rule.budget is not None}.values():
        sharing = {choice.name: choice for choice in choices if choice.rule is rule and not choice.why}
        shares = rule.budget({name: choice.parameter for name, choice in sharing.items()})  # type: ignore[misc]  # there is one
        if not isinstance(shares, Mapping):
            raise OperandError(f"the budget of {rule} returned {shares!r}: return a dict with the share of each weight that it is given")
        for name, choice in sharing.items():
            if name not in shares:
                raise OperandError(f"the budget of {rule} has no share for {name}: return one for each weight that it is given")
            choice.sparsifier = sparsifier_of(str(rule), rule.sparsifier, shares[name])


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """Return the user's module inside the wrappers of torch.compile and DistributedDataParallel.

    Raises:
        OperandError: the argument is not a module.
    """
    *_, module = unwrapping(model)
    if not isinstance(module, torch.nn.Module):
        raise OperandError(f"{type(model).__name__} is not a torch.nn.Module")
    return module


def unwrapping(model: Any) -> Iterator[Any]:
    """Yield a model, and each module that torch.compile or DistributedDataParallel wraps in it, the user's module last."""
    yield model
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
        yield model


def sparse_weights(model: torch.nn.Module) -> dict[str, SparseParameter]:
    """Return the sparse parameters of a model by name, each once, as in ``{"0.weight": ...}``."""
    return {name: module for name, module in bare(model).named_modules() if isinstance(module, SparseParameter)}


def named(model: torch.nn.Module, known: Mapping[str, SparseParameter], names: Names, kind: str) -> dict[str, SparseParameter]:
    """Return the sparse parameters that match name patterns, at any of their places.

    Raises:
        ExpressionError: a pattern matches no name; near misses are listed.

    >>> from numscorch.nn import SparseLinear
    >>> model = torch.nn.Sequential(SparseLinear(4, 2, density=0.5))
    >>> list(named(model, sparse_weights(model), "*.weight", "sparse weight"))
    ['0.weight']
    """
    if not known:
        suggestion = "sparsify_model(model, SparsityPlan().weight('*.weight', magnitude(0.9)), optimizer=optimizer) makes it sparse first"
        raise ExpressionError(f"weights={names!r} names no {kind}: the model has none; {suggestion}")
    first = {id(pattern): name for name, pattern in known.items()}
    places = {site.name: first[id(site.parameter)] for site in sites_of(bare(model)) if id(site.parameter) in first}
    chosen = {places[name] for pattern in patterns(names) for name in matched(pattern, places, f"weights={pattern!r} names no {kind}")}
    return {name: pattern for name, pattern in known.items() if name in chosen}


def patterns(names: Names) -> list[str]:
    """Return one or several patterns as a list.

    Raises:
        OperandError: a pattern is not a text.
        ExpressionError: the list is empty, and nothing would be trained.

    >>> patterns("*.weight")
    ['*.weight']
    """
    listed: list[Any] = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    if wrong := [pattern for pattern in listed if not isinstance(pattern, str)]:
        raise OperandError(f"weights={names!r}: {wrong[0]!r} is not a name: give patterns of names, such as 'encoder.*.weight'")
    if not listed:
        raise ExpressionError(f"weights={listed} names no weight: leave it out, or give patterns of names, such as 'encoder.*.weight'")
    return listed


def usual(model: torch.nn.Module, or_sparse: bool) -> list[str]:
    """Return the names of the default weights: the weights of ``Linear`` and ``Conv2d``, and, with ``or_sparse``, sparse weights.

    Raises:
        ExpressionError: the model has none.
    """
    sites = list(sites_of(bare(model)))
    sparse = (SparseParameter,) if or_sparse else ()
    names = [site.name for site in sites if (site.key == "weight" and type(site.module) in DENSE) or isinstance(site.parameter, sparse)]
    names += [name for site in sites if (type(site.module) in DENSE or is_masked(site)) and (name := computed(site)[0])]
    if not names:
        raise ExpressionError("the model has no torch.nn.Linear or Conv2d: name other parameters with weights=")
    return list(map(escape, names))


def trained(
    model: torch.nn.Module, factories: Mapping[str, Callable[..., Any]], format: Format | str | None = None, *, masked: bool = False
) -> list[MatchedWeight]:
    """Return the weights that patterns name, as in a plan: sparse weights, and dense weights that can become sparse, but no vectors.

    Args:
        model: the model.
        factories: the sparsifier factory of each pattern; the last pattern that names a weight applies.
        format: the format of the sparse weights.
        masked: whether the weights stay dense, so that their modules need no sparse version.

    Raises:
        ExpressionError: a pattern names nothing; near misses are listed.
        UnsupportedError: a named weight cannot become sparse.
    """
    stored = None if format is None else as_format(format)
    choices = chosen(bare(model), SparsityPlan(tuple(PlanRule("weight", names, choice, stored) for names, choice in factories.items())))
    matrices = [choice for choice in choices if not choice.is_vector]
    for choice in matrices or choices:
        if choice.why and not choice.is_sparse and not (masked and choice.is_maskable):
            raise UnsupportedError(f"{', '.join(site.name for site in choice.sites)}: {choice.why}")
        if masked or choice.is_sparse:
            continue
        if choice.sites[0].module is bare(model):
            raise UnsupportedError(f"{choice.name}: the model itself would be replaced: put it in a torch.nn.Sequential")
        for site in choice.modules():
            try:  # finds unsupported options, such as groups of a convolution
                converted(site.module, site.key, lambda weight: torch.zeros_like(weight, dtype=torch.bool), None)
            except UnsupportedError as error:
                raise type(error)(f"{site.name}: {error}; or name other weights in weights=, so that it stays dense") from error
    return matrices
