"""What optimizers remember of a parameter, and how they go on when that takes another form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

from ..errors import OperandError, UnsupportedError

Optimizer: TypeAlias = torch.optim.Optimizer
Optimizers: TypeAlias = Optimizer | Iterable[Optimizer] | None
Moved = Callable[[torch.Tensor], torch.Tensor]
ENTRYWISE = {  # optimizers that remember tensors of the parameter's shape alone, by what they remember
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta"),
    *("sum", "prev", "step_size", "ax"),
}


def listed(optimizer: Optimizers) -> list[Optimizer]:
    """Optimizers as a list, however many.

    Raises:
        OperandError: something else is given.

    >>> listed(None)
    []
    """
    many = isinstance(optimizer, Iterable)
    given: list[Any] = [] if optimizer is None else list(optimizer) if many else [optimizer]  # type: ignore[arg-type]
    for item in given:
        if not isinstance(item, Optimizer):
            raise OperandError(
                f"{type(item).__name__} is no torch.optim.Optimizer: give an optimizer of torch.optim, which trains the model, or several"
            )
    return given


def held(values: torch.Tensor, optimizer: Optimizers) -> list[Optimizer]:
    """The optimizers that hold a parameter, each of which can follow it.

    Raises:
        OperandError: no optimizer, or none that holds the parameter.
        UnsupportedError: what one remembers can't follow.
    """
    given = listed(optimizer)
    holding = [candidate for candidate in given if holds(candidate, values)]
    if given and not holding:
        raise OperandError(
            f"{' or '.join(type(item).__name__ for item in given)} doesn't hold the values of this weight, which would not be trained: "
            "pass an optimizer of model.parameters()"
        )
    for candidate in holding:
        followers(values, candidate)
    return holding


def holds(optimizer: Optimizer, parameter: torch.Tensor) -> bool:
    """Whether an optimizer trains a parameter."""
    return any(parameter is held_ for group in optimizer.param_groups for held_ in group["params"])


def check_holding(model: torch.nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """That each optimizer trains some of a model's parameters.

    Raises:
        OperandError: one trains those of another model, or of a copy.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
            raise OperandError(
                f"{type(optimizer).__name__} holds no parameter of this model, as after model = copy.deepcopy(model) or densify_model: "
                "pass an optimizer of model.parameters()"
            )


def check_held(name: str, weight: torch.Tensor, optimizer: Optimizers) -> None:
    """That optimizers hold a weight that is trained, and can follow.

    Raises:
        OperandError: they don't hold it.
        UnsupportedError: what one remembers can't follow.
    """
    if not weight.requires_grad:
        return
    try:
        held(weight, optimizer)
    except OperandError as error:
        raise OperandError(f"{name}: {error}") from error


def check_states(name: str, parameter: torch.Tensor, optimizers: Iterable[Optimizer]) -> None:
    """That what optimizers remember of a parameter can follow it to another form.

    Raises:
        UnsupportedError: it can't.
    """
    for optimizer in optimizers:
        if holds(optimizer, parameter):
            try:
                followers(parameter, optimizer)
            except UnsupportedError as error:
                raise UnsupportedError(f"{name}: {error}") from error


def followers(parameter: torch.Tensor, optimizer: Optimizer) -> list[str]:
    """What an optimizer remembers of each of a parameter's entries, by name; single numbers, as a count of steps, belong to all.

    Raises:
        UnsupportedError: it remembers a tensor of another shape, which says nothing of single entries, or belongs to another layout
            of the weight; or it is LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError("LBFGS joins all parameters in one vector, which can't follow a pattern: use SGD or Adam, or make a new one")
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    names = [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.ndim and value.shape == parameter.shape]
    for key, value in state.items():
        if key not in names and (isinstance(value, list | tuple) or (isinstance(value, torch.Tensor) and value.numel() > 1)):
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            what = f"{type(optimizer).__name__} remembers {key!r}, {what}, of a parameter {tuple(parameter.shape)}"
            if key in ENTRYWISE:
                raise UnsupportedError(
                    f"{what}: a state was loaded that belongs to another layout of the weight, dense or sparse: load the optimizer's state "
                    "last, when the weights are stored as they were when it was saved"
                )
            raise UnsupportedError(
                f"{what}, which can't follow its entries: use an optimizer that works entry by entry, as SGD or Adam, or leave it out, and "
                "make a new one"
            )
    return names


def hand_over(optimizers: Iterable[Optimizer], old: torch.nn.Parameter, new: torch.nn.Parameter, moved: Moved) -> None:
    """Let optimizers train a parameter in the place of another one: in its group, with its gradient, and what is remembered of it."""
    if old.grad is not None:
        new.grad = moved(old.grad if old.grad.layout == torch.strided else old.grad.to_dense())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"][:] = [new if value is old else value for value in group["params"]]
        if old in optimizer.state:
            names, state = followers(old, optimizer), optimizer.state.pop(old)
            optimizer.state[new] = {key: moved(value) if key in names else value for key, value in state.items()}
