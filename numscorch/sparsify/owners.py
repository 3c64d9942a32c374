"""Replacement of a module: parents, hooks, other parameters and optimizers carry over to the new module."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from ..convert.values import others_at, with_entries
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
    """Copy a module's parameters (except ``names``), buffers, submodules, hooks, mode and missing attributes to its replacement.

    Dictionaries of hooks are shared, so that ``remove()`` of an existing handle still works. Parameters such as a bias
    are shared too, since an optimizer may hold them.
    """
    _carry_hooks(old, new)
    for kind in HELD:
        held = vars(new)[kind]
        held |= {name: value for name, value in vars(old)[kind].items() if name not in names and (name in held or not hasattr(new, name))}
    new._non_persistent_buffers_set |= old._non_persistent_buffers_set
    for name, value in vars(old).items():
        vars(new).setdefault(name, value)
    return new.train(old.training) if new.training != old.training else new


def _carry_hooks(old: Module, new: Module) -> None:
    for name in HOOKS:
        old_hooks, hooks = getattr(old, name), getattr(new, name)
        if isinstance(old_hooks, dict) and old_hooks is not hooks:
            old_hooks.update(hooks)
        setattr(new, name, old_hooks)


def replace_module(model: Module, old: Module, new: Module) -> Module:
    """Replace a module wherever a model has it; return the model, or the new module if the old one is the model itself."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return new if model is old else model


def gathered(pattern: Pattern, dense: torch.Tensor) -> torch.Tensor:
    """Return the values of a dense tensor at a pattern's entries.

    The tensor has the pattern's shape, or dimensions after the first that are flattened to columns.
    """
    stored = SparseTensor(pattern, torch.empty(pattern.nnz, dtype=dense.dtype))
    return with_entries(stored, others_at(stored, dense.reshape(pattern.shape))).values


def scattered(pattern: Pattern, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a dense tensor with values at a pattern's entries, and 0 elsewhere."""
    return SparseTensor(pattern, values).to_dense().reshape(shape)


def put_sparse(
    model: Module, choice: MatchedWeight, sparsifier: Sparsifier, format: Format | None, optimizers: Iterable[Optimizer]
) -> tuple[Module, SparseParameter]:
    """Put a sparse weight in all places of a dense one; return the model and the weight, which the optimizers then train."""
    dense, weights = choice.parameter, []
    for site in choice.modules():
        module = model.get_submodule(site.home)
        layer = converted(module, site.key, sparsifier, format)
        weights.append(getattr(layer, site.key))
        layer._modules[site.key] = weights[0]
        model = replace_module(model, module, carry_over(module, layer, {site.key}))
    hand_over(optimizers, dense, weights[0].values, partial(gathered, weights[0].pattern))
    return model, weights[0]


def adapt_readers(model: Module) -> Module:
    """Adapt the modules of a model that read weights of their children, where these are sparse."""
    for module in list(model.modules()):
        if any(isinstance(child, SparseParameter) for child in module.modules()):
            adapted_ = adapted(module)
            model = model if adapted_ is module else replace_module(model, module, adapted_)
    return model
