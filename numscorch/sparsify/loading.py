"""load_patterns: give a model's weights the sparse patterns of a saved state, so that the state can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from glob import escape
from typing import Any

import torch

from ..errors import OperandError, UnsupportedError
from ..sparsifiers.patterned import same_pattern
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .checks import check_model, check_placed, naming
from .layers import converted
from .matching import MatchedWeight, chosen, sites_of
from .optimizers import Optimizers, check_followers, listed
from .owners import adapt_readers, put_sparse
from .plan import SparsityPlan
from .repattern import follow
from .states import State, patterns_in

Module = torch.nn.Module
LATER = "sparse in the state: load GradualPruning's state first, or call ns.sparsify.load_patterns(model, state, optimizer)"


def load_patterns(model: Module, state: State, optimizer: Optimizers = None) -> Module:
    """Give a model's weights the sparse patterns of a state, so that ``model.load_state_dict(state)`` succeeds.

    A newly built model has dense layers, or sparse layers with other entries. Dense layers become sparse in place, as
    by :func:`sparsify_model`; names, hooks, biases and frozen parameters are preserved. Sparse layers get the state's
    format and entries, in the same parameter. Optimizers keep training the values, and their state follows the entries.
    On an error, nothing is changed. The values themselves are loaded afterwards, by ``load_state_dict``.

    Formats and shapes come from the state, so that it can be a plain dict of tensors, such as the contents of a
    safetensors file. A plain dict of a state of an earlier version has no formats: sparse layers then keep the model's
    formats, and dense layers cannot become sparse.

    To resume, pass an optimizer of the model as built, or make an optimizer of the returned model: sparse layers list
    their parameters in the order of dense layers. Load the optimizer's state last.

    Args:
        model: the model to change. If the model itself is such a layer, use the result.
        state: the ``state_dict()`` of the sparse model.
        optimizer: the optimizers that train the model, one or several; None if there is none yet.

    Returns:
        The model.

    Raises:
        OperandError: ``state`` is not a state, belongs to other weights, or has no formats; or the optimizer does not
            hold a weight.
        SizeError: a weight has another shape, or the number of values differs from the number of entries.
        FormatError: index arrays violate an invariant of their format.
        UnsupportedError: a weight cannot become sparse, or is sparse but dense in the state; the optimizer's state
            cannot follow; or the model is in DistributedDataParallel.

    >>> from numscorch.nn import SparseLinear
    >>> state = torch.nn.Sequential(SparseLinear(8, 4, density=0.25)).state_dict()
    >>> model = load_patterns(torch.nn.Sequential(torch.nn.Linear(8, 4)), state)
    >>> type(model[0]).__name__, model[0].weight.nnz, model.load_state_dict(state)
    ('SparseLinear', 8, <All keys matched successfully>)
    """
    optimizers = listed(optimizer)
    _check(model, state)
    sites = {site.name: site for site in sites_of(model)}
    patterns = patterns_in(state, sites)
    parameters = {id(sites[name].parameter): (name, sites[name].parameter) for name in patterns}
    sparse = {name: parameter for name, parameter in parameters.values() if isinstance(parameter, SparseParameter)}
    choices = _convertible(model, {name: patterns[name] for name in patterns if not isinstance(sites[name].parameter, SparseParameter)})
    for name, weight in sparse.items():
        check_placed(name, weight)
    of_sparse = [(name, weight.values) for name, weight in sparse.items()]
    for name, values in [*of_sparse, *((choice.name, choice.parameter) for choice in choices)]:
        check_followers(name, values, optimizers)
    for name, weight in sparse.items():
        if not patterns[name].stores_as(weight.pattern):
            follow(weight, patterns[name], optimizers)
    for choice in choices:
        model, _ = put_sparse(model, choice, choice.sparsifier, choice.rule.format, optimizers)
    return adapt_readers(model) if choices else model


def tell_order(model: Module) -> None:
    """Make a model's ``load_state_dict`` say what to load first if a weight is sparse in the state but still dense."""
    if _tell_dense not in model._load_state_dict_post_hooks.values():
        model.register_load_state_dict_post_hook(_tell_dense)


def _tell_dense(model: Module, keys: Any) -> None:
    """Refuse sparse weights of dense layers in a hook, before torch raises for the shapes.

    Raises:
        UnsupportedError: a weight is sparse in the state.
    """
    unknown, others = set(keys.unexpected_keys), {*keys.unexpected_keys, *keys.missing_keys}
    names = [name for key in unknown if (name := key.removesuffix(".values")) != key and {name, f"{name}._extra_state"} & others]
    if names:
        raise UnsupportedError("; ".join(f"{name} ({LATER})" for name in sorted(names)))


def _check(model: Any, state: Any) -> None:
    """Check that the arguments are a model and a state.

    Raises:
        OperandError: they are not.
        UnsupportedError: the model is in DistributedDataParallel.
    """
    check_model("load_patterns", model)
    if not isinstance(state, Mapping):
        raise OperandError(f"load_patterns takes a model's state, not {type(state).__name__}: give the result of its state_dict()")
    parts = [name for name, part in state.items() if isinstance(part, Mapping)]
    if parts and not state.keys() & model.state_dict().keys():
        raise OperandError(f"the state is a dict of states ({', '.join(map(repr, parts))}), not one of the model: give state[{parts[0]!r}]")


def _convertible(model: Module, patterns: Mapping[str, Pattern]) -> list[MatchedWeight]:
    """Return the dense weights of these names, ready to become sparse.

    Their sparse versions are tried, and nothing is changed.

    Raises:
        UnsupportedError: a weight cannot become sparse.
    """
    plan = SparsityPlan()
    for name, pattern in patterns.items():
        plan = plan.weight(escape(name), same_pattern(SparseTensor(pattern, torch.ones(pattern.nnz))), pattern.format)
    choices = chosen(model, plan)
    for choice in choices:
        if choice.why:
            raise UnsupportedError(f"{choice.name}: is sparse in the state, but dense in the model, where it {choice.why}")
        for site in choice.modules():
            with naming(choice.name):
                layer = converted(site.module, site.key, choice.sparsifier, choice.rule.format)
            if not getattr(layer, site.key).pattern.stores_as(patterns[choice.name]):
                raise UnsupportedError(
                    f"{choice.name}: the conversion registered for {type(site.module).__name__} stores other entries than the state"
                    " has: make that layer sparse first, then call load_patterns"
                )
    return choices
