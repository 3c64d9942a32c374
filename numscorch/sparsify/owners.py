"""A module in the place of another one: parents, hooks, other parameters and optimizers go on with it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from ..convert.entries import others_at, with_entries
from ..ir.format import Format
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .layers import adapted, converted
from .matching import MatchedWeight
from .optimizers import Optimizer, hand_over

Module = torch.nn.Module
HOOKS = tuple(name for name in vars(torch.nn.Identity()) if "hook" in name)
HELD = ("_parameters", "_buffers", "_modules")


def carry_over(old: Module, new: Module, names: Iterable[str]) -> Module:
    """The new module with all that the old one holds, but what it has of its own and parameters of some names.

    Dictionaries of hooks are handed over as they are, so that a handle's ``remove()`` finds its hook; and so are parameters such
    as a bias, which an optimizer may hold.
    """
    _carry_hooks(old, new)
    for kind in HELD:
        kept = vars(new)[kind]
        kept |= {name: value for name, value in vars(old)[kind].items() if name not in names and (name in kept or not hasattr(new, name))}
    new._non_persistent_buffers_set |= old._non_persistent_buffers_set
    for name, value in vars(old).items():
        vars(new).setdefault(name, value)
    return new.train(old.training) if new.training != old.training else new


def _carry_hooks(old: Module, new: Module) -> None:
    for name in HOOKS:
        theirs, hooks = getattr(old, name), getattr(new, name)
        if isinstance(theirs, dict) and theirs is not hooks:
            theirs.update(hooks)
        setattr(new, name, theirs)


def replace_module(model: Module, old: Module, new: Module) -> Module:
    """The model with a module in another's place, wherever it has it; the new module itself where the old one is the model."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return new if model is old else model


def gathered(pattern: Pattern, dense: torch.Tensor) -> torch.Tensor:
    """What a dense tensor, of the pattern's shape or with dimensions behind the first taken as columns, has at its entries."""
    stored = SparseTensor(pattern, torch.empty(pattern.nnz, dtype=dense.dtype))
    return with_entries(stored, others_at(stored, dense.reshape(pattern.shape))).values


def scattered(pattern: Pattern, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A dense tensor with values at a pattern's entries, 0 elsewhere."""
    return SparseTensor(pattern, values).to_dense().reshape(shape)


def put_sparse(
    model: Module, choice: MatchedWeight, sparsifier: Sparsifier, format: Format | None, optimizers: Iterable[Optimizer]
) -> tuple[Module, SparseParameter]:
    """The model with a sparse weight in all its places, and the weight, which optimizers train from then on."""
    dense, weights = choice.parameter, []
    for site in choice.modules():
        module = model.get_submodule(site.home)
        with torch.random.fork_rng(devices=()):  # modules draw values before they take them
            layer = converted(module, site.key, sparsifier, format)
        weights.append(getattr(layer, site.key))
        layer._modules[site.key] = weights[0]
        model = replace_module(model, module, carry_over(module, layer, {site.key}))
    hand_over(optimizers, dense, weights[0].values, partial(gathered, weights[0].pattern))
    return model, weights[0]


def adapt_readers(model: Module) -> Module:
    """The model in which modules that read their children's weights know that these are sparse."""
    for module in list(model.modules()):
        if any(isinstance(child, SparseParameter) for child in module.modules()):
            adapted_ = adapted(module)
            model = model if adapted_ is module else replace_module(model, module, adapted_)
    return model
