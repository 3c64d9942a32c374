"""What a plan says of a model: which rule holds for which weight, and why some weights stay dense whatever it says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.nn.utils.parametrize import ParametrizationList

from ..errors import OperandError, UnsupportedError
from ..frontend.datatypes import STORED
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.parameter import SparseParameter
from .flows import is_masking
from .layers import Missing, adapted, version_of
from .plan import PlanRule, SparsityPlan, named_by

COMPUTED = {
    "mask": "is pruned by torch; torch.nn.utils.prune.remove(module, '{}') leaves a plain weight",
    "orig": "is normed by torch; torch.nn.utils.remove_spectral_norm(module, '{}') leaves a plain weight",
    "g": "is normed by torch; torch.nn.utils.remove_weight_norm(module, '{}') leaves a plain weight",
    "v": "is normed by torch; torch.nn.utils.remove_weight_norm(module, '{}') leaves a plain weight",
}  # by what stands behind the weight's name


@dataclass(frozen=True, eq=False)
class Site:
    """A parameter at one of its places in a model."""

    name: str
    module: torch.nn.Module
    key: str

    @property
    def home(self) -> str:
        """The module's name."""
        return self.name[: -len(self.key) - 1]

    @property
    def parameter(self) -> torch.nn.Parameter | SparseParameter:
        """What is there."""
        parameter: torch.nn.Parameter | SparseParameter = getattr(self.module, self.key)
        return parameter


@dataclass(eq=False)
class MatchedWeight:
    """A weight that a plan names, with all its places, and the rules that name it.

    ``why`` says why it stays dense, and ``is_maskable`` that this is no reason against zeros in it.
    """

    sites: list[Site]
    rules: list[PlanRule]
    sparsifier: Sparsifier
    why: str = ""
    is_maskable: bool = False
    missing: Missing | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How it is called: by its first place."""
        return self.sites[0].name

    @property
    def rule(self) -> PlanRule:
        """The rule that holds: the last one."""
        return self.rules[-1]

    @property
    def parameter(self) -> torch.nn.Parameter:
        """The weight."""
        parameter: torch.nn.Parameter = getattr(self.sites[0].module, self.sites[0].key)
        return parameter

    @property
    def is_sparse(self) -> bool:
        """Whether it is sparse already."""
        return isinstance(self.parameter, SparseParameter)

    @property
    def is_vector(self) -> bool:
        """Whether it stays dense as a vector, or a number."""
        parameter = self.parameter
        return not isinstance(parameter, SparseParameter | torch.nn.parameter.UninitializedParameter) and parameter.ndim < 2

    def modules(self) -> list[Site]:
        """A site for each module that has the weight; a module that is at several places counts once."""
        return list({id(site.module): site for site in reversed(self.sites)}.values())[::-1]


def sites_of(model: torch.nn.Module) -> Iterator[Site]:
    """Every parameter at every place, dense or sparse."""
    for home, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, SparseParameter):
            held = {**module._parameters, **{key: child for key, child in module._modules.items() if isinstance(child, SparseParameter)}}
            yield from (Site(f"{home}.{key}" if home else key, module, key) for key, child in held.items() if child is not None)


def chosen(model: torch.nn.Module, plan: SparsityPlan) -> list[MatchedWeight]:
    """The weights that a plan names, each with what is known of it before any is looked at.

    Raises:
        ExpressionError: a rule names nothing.
    """
    sites = list(sites_of(model))
    naming: dict[str, list[int]] = {}
    rules = plan.of("weight")
    for at, rule in enumerate(rules):
        for name in named_by(rule, [site.name for site in sites]):
            naming.setdefault(name, []).append(at)
    places: dict[int, list[Site]] = {}
    for site in sites:
        places.setdefault(id(site.parameter), []).append(site)
    choices_ = []
    for group in places.values():
        numbers = sorted({at for site in group for at in naming.get(site.name, ())})
        if numbers:
            named = [rules[at] for at in numbers]
            choice = MatchedWeight(group, named, named[-1].sparsifier)
            _look_at(choice, model, naming)
            choices_.append(choice)
    _one_each(choices_)
    _share_budgets(choices_)
    return choices_


def _look_at(choice: MatchedWeight, model: torch.nn.Module, naming: dict[str, list[int]]) -> None:
    """Write down what speaks against a choice, and what is to be said of it."""
    choice.why = _why_dense(choice, model, naming)
    names = [site.name for site in choice.sites]
    if len(names) > 1 and not choice.why:
        choice.notes.append(f"also {', '.join(names[1:])}")
    if len(choice.rules) > 1:
        choice.notes.append(f"{choice.rule} holds over {', '.join(map(str, choice.rules[:-1]))}")


def _why_dense(choice: MatchedWeight, model: torch.nn.Module, naming: dict[str, list[int]]) -> str:
    parameter, named = choice.parameter, {id(site.module) for site in choice.sites if site.name in naming}
    if choice.is_sparse:
        return "is sparse already; densify_model makes it dense"
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        return "has no size yet; run the model once, and sparsify it then"
    if choice.is_vector:
        return "a vector, which stays dense"
    if parameter.is_meta:
        return "is on the meta device, and has no values: model.to_empty(device='cpu') makes room, then load or initialize them"
    for site in choice.modules():
        if why := computed(site)[1]:
            return why
    if apart := [site.name for site in choice.sites if id(site.module) not in named]:
        return f"tied to {apart[0]}, which no rule names; name both, or neither"
    choice.is_maskable = True
    if why := why_hooked(parameter):
        return why
    for site in choice.modules():
        if why := _why_module(choice, site, model):
            return why
    return ""


def why_hooked(weight: torch.Tensor) -> str:
    """What speaks against a sparse weight in the place of one with hooks; empty for hooks that it can do without."""
    hooks = [*(weight._backward_hooks or {}).values(), *(getattr(weight, "_post_accumulate_grad_hooks", None) or {}).values()]
    if all(map(is_masking, hooks)):
        return ""
    return "has hooks of its own, which expect a dense gradient; remove them first, and register them on weight.values once it is sparse"


def computed(site: Site) -> tuple[str, str]:
    """The name of the weight that torch's older utilities compute of a parameter in every call, and what ends that; empty for others.

    >>> layer = torch.nn.utils.spectral_norm(torch.nn.Linear(2, 2))
    >>> computed(Site("0.weight_orig", layer, "weight_orig"))[0]
    '0.weight'
    """
    weight, _, part = site.key.rpartition("_")
    of = f"{weight}_mask" if part == "orig" and hasattr(site.module, f"{weight}_mask") else site.key
    if weight in site.module._parameters or not hasattr(site.module, weight) or (part := of.rpartition("_")[2]) not in COMPUTED:
        return "", ""
    return f"{site.home}.{weight}".lstrip("."), COMPUTED[part].format(weight)


def _why_module(choice: MatchedWeight, site: Site, model: torch.nn.Module) -> str:
    """What speaks against one of the modules that has the weight."""
    if isinstance(site.module, ParametrizationList):
        return "is parametrized; torch.nn.utils.parametrize.remove_parametrizations leaves a plain weight"
    if version_of(site.module, site.key) is None:
        choice.missing = Missing(site.name, type(site.module), site.key, choice.parameter.nbytes)
        return choice.missing.why
    if choice.parameter.device.type != "cpu":
        return f"is on {choice.parameter.device}, but numscorch runs on the CPU; move it with .cpu()"
    if choice.parameter.dtype not in STORED:
        return f"is {choice.parameter.dtype}, which isn't compiled; convert it with .to(torch.float32)"
    holder = model.get_submodule(site.home.rpartition(".")[0])
    try:
        is_read = adapted(holder) is not holder
    except UnsupportedError as error:
        return str(error)
    return why_bound(site.module, model) or (why_bound(holder, model) if is_read else "")


def why_bound(module: torch.nn.Module, model: torch.nn.Module) -> str:
    """What in a model would go on with a module when another is in its place; nothing where none would."""
    if module._compiled_call_impl is not None or any(child._modules.get("_orig_mod") is module for child in model.modules()):
        return "its module is compiled alone, and would go on with this weight; compile it afterwards"
    if "forward" in vars(module):
        return "its module has a forward that was set on it alone, and may go on with this weight; set it afterwards"
    return ""


def _one_each(choices: list[MatchedWeight]) -> None:
    """Of several weights of one module, the first becomes sparse."""
    owners: dict[int, str] = {}
    for choice in choices:
        for site in choice.modules() if not choice.why else ():
            first = owners.setdefault(id(site.module), choice.name)
            if first != choice.name:
                choice.why = f"{first}, of the same module, becomes sparse; of several, one does"


def _share_budgets(choices: list[MatchedWeight]) -> None:
    """Ask each rule's budget for the shares of the weights for which it holds.

    Raises:
        OperandError: it leaves one out, or the rule makes no sparsifier of a share.
    """
    for rule in {id(choice.rule): choice.rule for choice in choices if choice.rule.budget is not None}.values():
        sharing = {choice.name: choice for choice in choices if choice.rule is rule and not choice.why}
        shares = rule.budget({name: choice.parameter for name, choice in sharing.items()})  # type: ignore[misc]  # there is one
        if not isinstance(shares, Mapping):
            raise OperandError(f"the budget of {rule} returned {shares!r}: return a dict with the share of each weight that it is given")
        for name, choice in sharing.items():
            if name not in shares:
                raise OperandError(f"the budget of {rule} has no share for {name}: return one for each weight that it is given")
            choice.sparsifier = rule.sparsifier(shares[name])
            if not callable(choice.sparsifier):
                raise OperandError(
                    f"{rule}: sparsifier= returned {choice.sparsifier!r} for the share {shares[name]:g}, not a sparsifier: pass magnitude"
                )
