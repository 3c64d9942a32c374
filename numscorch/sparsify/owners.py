"""A module in the place of another one: parents, hooks, other parameters and the optimizer go on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..errors import UnsupportedError
from ..operators.entries import others_at, with_entries
from ..pattern import Pattern
from ..sparse_tensor import SparseTensor

Module = torch.nn.Module
Moved = Callable[[torch.Tensor], torch.Tensor]
HOOKS = tuple(name for name in vars(torch.nn.Identity()) if "hook" in name)
HELD = ("_parameters", "_buffers", "_modules")


def carry_over(old: Module, made: Module, names: Iterable[str]) -> Module:
    """The new module with all that the old one holds, but what it has of its own and parameters of some names.

    Dictionaries of hooks are handed over as they are, so that a handle's ``remove()`` finds its hook; and so are parameters such
    as a bias, which an optimizer may hold.
    """
    _carry_hooks(old, made)
    for kind in HELD:
        own = vars(made)[kind]
        own |= {name: value for name, value in vars(old)[kind].items() if name not in names and (name in own or not hasattr(made, name))}
    made._non_persistent_buffers_set |= old._non_persistent_buffers_set
    for name, value in vars(old).items():
        vars(made).setdefault(name, value)
    return made.train(old.training) if made.training != old.training else made


def _carry_hooks(old: Module, made: Module) -> None:
    for name in HOOKS:
        theirs, own = getattr(old, name), getattr(made, name)
        if isinstance(theirs, dict) and theirs is not own:
            theirs.update(own)
        setattr(made, name, theirs)


def replace_module(model: Module, old: Module, made: Module) -> Module:
    """The model with a module in another's place, wherever it has it; the new module itself where the old one is the model."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = made
    return made if model is old else model


def gathered(pattern: Pattern, dense: torch.Tensor) -> torch.Tensor:
    """What a dense tensor, of the pattern's shape or with dimensions behind the first taken as columns, has at its entries."""
    stored = SparseTensor(pattern, torch.empty(pattern.nnz, dtype=dense.dtype))
    return with_entries(stored, others_at(stored, dense.reshape(pattern.shape))).values


def scattered(pattern: Pattern, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A dense tensor with values at a pattern's entries, 0 elsewhere."""
    return SparseTensor(pattern, values).to_dense().reshape(shape)


def check_states(name: str, parameter: torch.nn.Parameter, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """That what optimizers remember of a parameter can follow it to another form.

    Raises:
        UnsupportedError: one remembers a tensor of another shape, which says nothing of single entries.
    """
    for optimizer in optimizers:
        for key, own in optimizer.state.get(parameter, {}).items():
            if isinstance(own, list | tuple) or (isinstance(own, torch.Tensor) and own.numel() > 1 and own.shape != parameter.shape):
                told = f"a tensor {tuple(own.shape)}" if isinstance(own, torch.Tensor) else f"a {type(own).__name__}"
                raise UnsupportedError(
                    f"{name}: {type(optimizer).__name__} remembers {key!r}, {told}, of a parameter {tuple(parameter.shape)}, which can't"
                    " follow its entries: leave optimizer= out, and make a new one of model.parameters()"
                )


def hand_over(optimizers: Iterable[torch.optim.Optimizer], old: torch.nn.Parameter, new: torch.nn.Parameter, moved: Moved) -> None:
    """Let optimizers train a parameter in the place of another one: in its group, with its gradient, and what is remembered of it."""
    if old.grad is not None:
        new.grad = moved(old.grad if old.grad.layout == torch.strided else old.grad.to_dense())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"][:] = [new if own is old else own for own in group["params"]]
        if old in optimizer.state:
            state: dict[str, Any] = optimizer.state.pop(old)
            optimizer.state[new] = {
                key: moved(own) if isinstance(own, torch.Tensor) and own.shape == old.shape else own for key, own in state.items()
            }
