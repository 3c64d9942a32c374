"""load_patterns: a model's weights become sparse as those of a state are, so that the state can be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from glob import escape
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import OperandError, UnsupportedError
from ..sparsifiers.patterned import same_pattern
from ..tensors.parameter import Explained, SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .checks import check_placed
from .layers import converted
from .matching import MatchedWeight, chosen, sites_of
from .optimizers import Optimizers, check_held, check_states, listed
from .owners import adapt_readers, put_sparse
from .plan import PlanRule, SparsityPlan
from .repattern import follow
from .settling import naming
from .states import State, patterns_in

Module = torch.nn.Module
LATER = "sparse in the state: load that of GradualPruning before it, or call ns.sparsify.load_patterns(model, state, optimizer)"


def load_patterns(model: Module, state: State, optimizer: Optimizers = None) -> Module:
    """Make a model's weights sparse as those of a state are, so that ``model.load_state_dict(state)`` fits.

    A model that was built anew has dense layers, or sparse ones with other entries. Dense ones become sparse in place, as
    :func:`sparsify_model` has it: names, hooks, biases and what is frozen stay. Sparse ones get the state's format and entries, in the
    same parameter. Optimizers go on with the values, and what they remember of entries follows. Nothing is changed if anything is wrong.
    The values themselves are loaded afterwards.

    Formats and shapes are told by the state's metadata, which ``state_dict()`` makes and ``torch.save`` keeps. A plain dict of tensors
    has none: the formats of the model's sparse layers are taken then, and dense layers can't become sparse.

    To resume, make an optimizer of the model before, and give it here, or make one of the model that this returns: sparse layers list
    their parameters in the order of dense ones. Load its state last.

    Args:
        model: what is changed; where the model itself is such a layer, use the result.
        state: what ``state_dict()`` of the sparse model made.
        optimizer: those that train the model, one or several; None if none has been made yet.

    Returns:
        The model.

    Raises:
        OperandError: no state, or one of other weights or without formats; or the optimizer doesn't hold a weight.
        SizeError: a weight has another shape, or the state other numbers of values than entries.
        FormatError: index arrays break a promise of their format.
        UnsupportedError: a weight can't become sparse, or is sparse where the state has a dense one; the optimizer can't follow; or
            the model is in DistributedDataParallel.

    >>> from numscorch.nn import SparseLinear
    >>> state = torch.nn.Sequential(SparseLinear(8, 4, density=0.25)).state_dict()
    >>> model = load_patterns(torch.nn.Sequential(torch.nn.Linear(8, 4)), state)
    >>> type(model[0]).__name__, model[0].weight.nnz, model.load_state_dict(state)
    ('SparseLinear', 8, <All keys matched successfully>)
    """
    optimizers = listed(optimizer)
    _check(model, state)
    sites = {site.name: site for site in sites_of(model)}
    given = patterns_in(state, sites)
    parameters = {id(sites[name].parameter): (name, sites[name].parameter) for name in given}
    sparse = {name: parameter for name, parameter in parameters.values() if isinstance(parameter, SparseParameter)}
    choices = _becoming(model, {name: given[name] for name in given if not isinstance(sites[name].parameter, SparseParameter)})
    for name, weight in sparse.items():
        check_placed(name, weight)
    of_sparse = [(name, weight.values) for name, weight in sparse.items()]
    for name, values in [*of_sparse, *((choice.name, choice.parameter) for choice in choices)]:
        check_states(name, values, optimizers)
        check_held(name, values, optimizers)
    for name, weight in sparse.items():
        if not given[name].stores_as(weight.pattern):
            follow(weight, given[name], optimizers)
    for choice in choices:
        model, _ = put_sparse(model, choice, choice.sparsifier, choice.rule.format, optimizers)
    return adapt_readers(model) if choices else model


def tell_order(model: Module) -> None:
    """Let a model's ``load_state_dict`` say what to load first where a state has a sparse weight, and the model still has a dense one."""
    if _tell_dense not in model._load_state_dict_post_hooks.values():
        model.register_load_state_dict_post_hook(_tell_dense)


def _tell_dense(model: Module, keys: Any) -> None:
    """A hook that explains missing keys; what is told is seen if torch raises, as it does with ``strict=True``."""
    keys.missing_keys[:] = [Explained(key, LATER) if f"{key}.values" in keys.unexpected_keys else key for key in keys.missing_keys]


def _check(model: Any, state: Any) -> None:
    """That these are a model and a state.

    Raises:
        OperandError: they aren't.
        UnsupportedError: the model is in DistributedDataParallel.
    """
    if not isinstance(model, Module) or isinstance(model, SparseParameter):
        raise OperandError(f"load_patterns takes a model, not {type(model).__name__}: give the module that has the weights")
    if not isinstance(state, Mapping):
        raise OperandError(f"load_patterns takes a model's state, not {type(state).__name__}: give what its state_dict() made")
    if any(isinstance(part, DistributedDataParallel) for part in model.modules()):
        raise UnsupportedError(
            "DistributedDataParallel keeps the parameters that it wraps: load into the model within, its .module, and wrap that anew"
            " with sparsify.data_parallel"
        )
    parts = [name for name, part in state.items() if isinstance(part, Mapping)]
    if parts and not state.keys() & model.state_dict().keys():
        raise OperandError(f"the state is a dict of states ({', '.join(map(repr, parts))}), not one of the model: give state[{parts[0]!r}]")


def _becoming(model: Module, given: Mapping[str, Pattern]) -> list[MatchedWeight]:
    """The dense weights of these names, each with what makes it sparse; their sparse versions are tried, and nothing is changed.

    Raises:
        UnsupportedError: one can't become sparse.
    """
    rules = [PlanRule("weight", escape(name), _keeping(pattern), pattern.format, always=True) for name, pattern in given.items()]
    choices = chosen(model, SparsityPlan(tuple(rules)))
    for choice in choices:
        if choice.why:
            raise UnsupportedError(f"{choice.name}: is sparse in the state, and dense in the model, where it {choice.why}")
        for site in choice.modules():
            with naming(choice.name), torch.random.fork_rng(devices=()), torch.no_grad():
                layer = converted(site.module, site.key, choice.sparsifier, choice.rule.format)
            if not getattr(layer, site.key).pattern.stores_as(given[choice.name]):
                raise UnsupportedError(
                    f"{choice.name}: the conversion registered for {type(site.module).__name__} stores other entries than the state"
                    " has: make that layer sparse first, then call load_patterns"
                )
    return choices


def _keeping(pattern: Pattern) -> same_pattern:
    """A sparsifier by which exactly these entries are kept, in their format."""
    return same_pattern(SparseTensor(pattern, torch.ones(pattern.nnz)))
