"""Sparse layers in the place of dense ones, in a model that is being trained: its optimizer goes on with their values."""

from __future__ import annotations

from typing import Any

import torch

from ..operators.entries import others_at, with_entries
from ..pattern import Pattern
from ..sparse_parameter import SparseParameter
from ..sparse_tensor import SparseTensor
from .choosing import bare
from .repattern import Optimizer, Optimizers, followers, held

HOOKS = tuple(name for name in vars(torch.nn.Identity()) if "hook" in name)


def sparse_twin(layer: Any, stored: SparseTensor) -> Any:
    """A sparse layer with the entries of a tensor, and with the dense layer's own bias, hooks and mode."""
    from ..nn import SparseConv2d, SparseLinear  # late: modules know sparsifiers

    kind: Any = SparseLinear if isinstance(layer, torch.nn.Linear) else SparseConv2d
    mask = stored.with_values(torch.ones(stored.pattern.nnz)).to_dense() != 0
    made = kind.from_dense(layer, lambda _: mask, stored.format)
    made.weight = SparseParameter(stored, layer.weight.requires_grad)
    made.bias = layer.bias
    for name in HOOKS:
        setattr(made, name, getattr(layer, name))
    return made


def swap(model: torch.nn.Module, layer: Any, pattern: Pattern, optimizer: Optimizers = None) -> Any:
    """Put a sparse layer in the place of a dense one, wherever the model has it.

    The optimizer's group holds the values where it held the weight, and what it remembers is gathered at the entries, as is the
    weight's gradient. Nothing is changed if anything is wrong.

    Raises:
        OperandError: the optimizer doesn't hold the weight.
        UnsupportedError: the optimizer remembers what can't follow, or the layer has no sparse twin.
    """
    weight: torch.nn.Parameter = layer.weight
    states = [(own, followers(state, weight.shape, own)) for own, state in held(weight, optimizer)]
    taken = SparseTensor(pattern, torch.ones(pattern.nnz, dtype=weight.dtype))
    made = sparse_twin(layer, gathered(taken, weight.detach()))
    values: torch.nn.Parameter = made.weight.values
    values.grad = None if weight.grad is None else gathered(taken, weight.grad).values
    for own, names in states:
        _hand_over(own, weight, values, taken, names)
    for module in bare(model).modules():
        for name, child in module._modules.items():
            if child is layer:
                module._modules[name] = made
    return made


def gathered(taken: SparseTensor, dense: torch.Tensor) -> SparseTensor:
    """What a dense tensor, whose dimensions behind the first are columns, has at the entries of a matrix."""
    return with_entries(taken, others_at(taken, dense.flatten(1)))


def _hand_over(optimizer: Optimizer, weight: torch.nn.Parameter, values: torch.nn.Parameter, taken: SparseTensor, names: list[str]) -> None:
    """Let an optimizer train the values in place of the weight."""
    for group in optimizer.param_groups:
        group["params"] = [values if own is weight else own for own in group["params"]]
    if weight in optimizer.state:
        state = optimizer.state.pop(weight)
        optimizer.state[values] = {name: gathered(taken, own).values if name in names else own for name, own in state.items()}
