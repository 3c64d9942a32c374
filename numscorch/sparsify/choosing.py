"""Selection of the weights of a model that are trained sparse, by name patterns as in a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from glob import escape
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import ExpressionError, OperandError, UnsupportedError
from ..ir.format import Format, as_format
from ..sparsifiers.base import matched
from ..tensors.parameter import SparseParameter
from .layers import converted, sites_of
from .matching import MatchedWeight, chosen, computed, is_masked
from .plan import PlanRule, SparsityPlan

Names = str | Iterable[str]
DENSE = (torch.nn.Linear, torch.nn.Conv2d)  # without subclasses, which may read the weight in other ways


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
    """Return the names of the default weights: those of ``Linear`` and ``Conv2d``, and, with ``or_sparse``, sparse ones.

    Raises:
        ExpressionError: the model has none.
    """
    sites = list(sites_of(bare(model)))
    names = [site.name for site in sites if (site.key == "weight" and type(site.module) in DENSE)]
    names += [site.name for site in sites if or_sparse and isinstance(site.parameter, SparseParameter)]
    names += [name for site in sites if (type(site.module) in DENSE or is_masked(site)) and (name := computed(site)[0])]
    if not names:
        raise ExpressionError("the model has no torch.nn.Linear or Conv2d: name other parameters with weights=")
    return list(map(escape, names))


def trained(
    model: torch.nn.Module, factories: Mapping[str, Callable[..., Any]], format: Format | str | None = None, *, masked: bool = False
) -> list[MatchedWeight]:
    """Return the weights that patterns name, as in a plan: sparse ones, and those that can become sparse, but no vectors.

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
