"""Which weights of a model are trained sparse: named as in a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import ExpressionError, OperandError, UnsupportedError
from ..ir.format import Format, as_format
from ..sparsifiers.names import matched
from ..tensors.parameter import SparseParameter
from .layers import converted
from .matching import MatchedWeight, chosen, computed, sites_of
from .plan import PlanRule, SparsityPlan

Names = str | Iterable[str]
DENSE = (torch.nn.Linear, torch.nn.Conv2d)  # exactly these: what derives from them may read its weight in other ways


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module, within those that torch.compile and DistributedDataParallel put around it.

    Raises:
        OperandError: no module.
    """
    *_, within = unwrapping(model)
    if not isinstance(within, torch.nn.Module):
        raise OperandError(f"{type(model).__name__} is no torch.nn.Module")
    return within


def unwrapping(model: Any) -> Iterator[Any]:
    """A model, and what torch.compile and DistributedDataParallel were put around, one within the other; the user's own comes last."""
    yield model
    while isinstance(model, DistributedDataParallel) or hasattr(model, "_orig_mod"):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
        yield model


def sparse_weights(model: torch.nn.Module) -> dict[str, SparseParameter]:
    """The sparse parameters of a model by name, each once, as ``{"0.weight": ...}``."""
    return {name: module for name, module in bare(model).named_modules() if isinstance(module, SparseParameter)}


def named(model: torch.nn.Module, known: Mapping[str, SparseParameter], names: Names, kind: str) -> dict[str, SparseParameter]:
    """Those of a model's sparse parameters that patterns stand for, at any of their places.

    Raises:
        ExpressionError: a pattern stands for none; near misses are listed.

    >>> from numscorch.nn import SparseLinear
    >>> model = torch.nn.Sequential(SparseLinear(4, 2, density=0.5))
    >>> list(named(model, sparse_weights(model), "*.weight", "sparse weight"))
    ['0.weight']
    """
    if not known:
        way_out = "sparsify_model(model, SparsityPlan().weight('*.weight', magnitude(0.9)), optimizer=optimizer) makes it sparse first"
        raise ExpressionError(f"weights={names!r} names no {kind}: the model has none; {way_out}")
    first = {id(pattern): name for name, pattern in known.items()}
    places = {site.name: first[id(site.parameter)] for site in sites_of(bare(model)) if id(site.parameter) in first}
    chosen = {places[name] for pattern in patterns(names) for name in matched(pattern, places, f"weights={pattern!r} names no {kind}")}
    return {name: pattern for name, pattern in known.items() if name in chosen}


def patterns(names: Names) -> list[str]:
    """One pattern or several, as a list.

    Raises:
        OperandError: no text.
        ExpressionError: none at all, which would silently train nothing.

    >>> patterns("*.weight")
    ['*.weight']
    """
    given: list[Any] = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    if wrong := [pattern for pattern in given if not isinstance(pattern, str)]:
        raise OperandError(f"weights={names!r}: {wrong[0]!r} is no name: give patterns of names, as 'encoder.*.weight'")
    if not given:
        raise ExpressionError(f"weights={given} names no weight: leave it out, or give patterns of names, as 'encoder.*.weight'")
    return given


def usual(model: torch.nn.Module, or_sparse: bool) -> list[str]:
    """The names of the weights that are meant if none is named: of ``Linear`` and ``Conv2d``, and sparse ones, if these are wanted.

    Raises:
        ExpressionError: there are none.
    """
    sites = list(sites_of(bare(model)))
    names = [site.name for site in sites if (site.key == "weight" and type(site.module) in DENSE)]
    names += [site.name for site in sites if or_sparse and isinstance(site.parameter, SparseParameter)]
    names += [name for site in sites if type(site.module) in DENSE and (name := computed(site)[0])]
    if not names:
        raise ExpressionError("the model has no torch.nn.Linear or Conv2d: name other parameters with weights=")
    return list(map(escape, names))


def trained(
    model: torch.nn.Module, factories: Mapping[str, Callable[..., Any]], format: Format | str | None = None, *, masked: bool = False
) -> list[MatchedWeight]:
    """The weights that are named, as by the rules of a plan, vectors left out: those that can become sparse, and sparse ones.

    Args:
        model: whose weights they are.
        factories: what goes with each pattern; the last one that names a weight holds for it.
        format: how they will be stored.
        masked: whether they stay dense, so that their modules need no sparse version.

    Raises:
        ExpressionError: a pattern names nothing; near misses are listed.
        UnsupportedError: what is named can't become sparse.
    """
    _check_computed(model, factories)
    stored = None if format is None else as_format(format)
    choices = chosen(bare(model), SparsityPlan(tuple(PlanRule("weight", names, choice, stored) for names, choice in factories.items())))
    matrices = [choice for choice in choices if not choice.is_vector]
    for choice in matrices or choices:
        if choice.why and not choice.is_sparse and not (masked and choice.is_maskable):
            raise UnsupportedError(f"{', '.join(site.name for site in choice.sites)}: {choice.why}")
        if choice.sites[0].module is bare(model) and not masked and not choice.is_sparse:
            raise UnsupportedError(f"{choice.name}: the model itself would be replaced: put it in a torch.nn.Sequential")
        if not masked and not choice.is_sparse:
            _try(choice)
    return matrices


def _check_computed(model: torch.nn.Module, names: Iterable[str]) -> None:
    """That none of the weights that are meant is computed by torch's older utilities, by which it is no parameter."""
    for site in sites_of(bare(model)):
        name, why = computed(site)
        if name and any(fnmatchcase(name_, pattern) for name_ in (name, site.name) for pattern in names):
            raise UnsupportedError(f"{name} {why}")


def _try(choice: MatchedWeight) -> None:
    """Make the sparse versions of a weight's modules once, with no entries, for what these refuse, as groups of a convolution.

    Raises:
        UnsupportedError: one is refused.
    """
    for site in choice.modules():
        try:
            with torch.random.fork_rng(devices=()), torch.no_grad():
                converted(site.module, site.key, lambda weight: torch.zeros_like(weight, dtype=torch.bool), None)
        except UnsupportedError as error:
            raise type(error)(f"{site.name}: {error}; or name other weights in weights=, so that it stays dense") from error
