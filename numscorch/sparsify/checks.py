"""Checks for trainers of sparse weights: of their arguments, and that weights are still part of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import NumscorchError, OperandError, SizeError, UnsupportedError
from ..sparsifiers.base import is_budget, named
from ..sparsifiers.sparsify import Sparsifier, named_in_errors
from ..tensors.parameter import SparseParameter

Schedule = Callable[[int], float]
Factory = Callable[[float], Sparsifier]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix errors raised in this context with a weight's name."""
    try:
        yield
    except NumscorchError as error:
        if str(error).startswith(name):
            raise
        raise type(error)(f"{name}: {error}") from error


def check_model(owner: str, model: object) -> None:
    """Check that an argument is a model, and that no DistributedDataParallel holds its weights.

    Raises:
        OperandError: it is not a model.
        UnsupportedError: a DistributedDataParallel holds weights.
    """
    if not isinstance(model, torch.nn.Module) or isinstance(model, SparseParameter):
        raise OperandError(f"{owner} takes a model, not {type(model).__name__}: give the module that has the weights")
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UnsupportedError(
            "DistributedDataParallel keeps the weights that it wraps: pass the wrapped model, its .module, and wrap the result with"
            " sparsify.data_parallel"
        )


def check_schedule(owner: str, schedule: object) -> None:
    """Check that an argument is a schedule.

    Raises:
        OperandError: the argument is not a schedule.

    >>> check_schedule("GradualPruning", 0.9)
    Traceback (most recent call last):
    ...
    numscorch.OperandError: GradualPruning(schedule=0.9): a schedule, the argument after the sparsifier, is called with the ...
    """
    if not callable(schedule) or hasattr(schedule, "kind") or is_budget(schedule):
        what = named_in_errors(schedule) if callable(schedule) else repr(schedule)
        raise OperandError(
            f"{owner}(schedule={what}): a schedule, the argument after the sparsifier, is called with the number of a step: give "
            "schedules.one_shot(0.9, at=1), schedules.cubic(0.9, begin=0, end=1000), or a function"
        )


def share_at(schedule: Schedule, step: int) -> float:
    """Return the fraction of a schedule at a step.

    Raises:
        SizeError: it is not a number between 0 and 1.

    >>> share_at(lambda step: None, 3)
    Traceback (most recent call last):
    ...
    numscorch.SizeError: <lambda> returned None at step 3: a schedule returns a share, a number between 0 and 1, such as 0.9
    """
    share: Any = schedule(step)
    if not isinstance(share, Real) or not 0 <= float(share) <= 1:
        raise SizeError(
            f"{named_in_errors(schedule)} returned {share!r} at step {step}: a schedule returns a share, a number between 0 and 1, "
            "such as 0.9"
        )
    return float(share)


def check_factory(factory: Any) -> None:
    """Check that an argument can make sparsifiers from fractions, and is not itself a sparsifier.

    Raises:
        OperandError: the argument cannot make sparsifiers, or is a sparsifier.
    """
    is_made = callable(factory) and hasattr(factory, "kind") and not isinstance(factory, type)
    if is_made or not callable(factory) or (is_budget(factory) and not isinstance(factory, type)):
        what = "is a sparsifier already" if is_made else "is a budget for plans" if is_budget(factory) else "makes no sparsifiers"
        raise OperandError(
            f"{factory!r} {what}: pass a function from a fraction to a sparsifier: magnitude, or lambda f: block_magnitude(16, 1, f)"
        )


def sparsifier_of(name: str, factory: Factory, fraction: float) -> Any:
    """Return the sparsifier of a weight, or of a plan's rule, for a fraction.

    Raises:
        OperandError: the factory returns no sparsifier.
    """
    sparsifier = factory(fraction)
    if not callable(sparsifier) and not isinstance(sparsifier, str):
        raise OperandError(
            f"{name}: {named_in_errors(factory)} returned {sparsifier!r} for {fraction:.3g}, not a sparsifier: give magnitude, or "
            "lambda f: block_magnitude(16, 1, f)"
        )
    return named(sparsifier)


def check_placed(name: str, weight: SparseParameter) -> None:
    """Check that a sparse weight has values.

    Raises:
        UnsupportedError: it is on the meta device.
    """
    if weight.values.is_meta:
        raise UnsupportedError(
            f"{name}: is on the meta device, and has no values: call model.to_empty(device='cpu'), then load or initialize them"
        )


def check_values(name: str, weight: SparseParameter) -> None:
    """Check that a sparse weight has no NaN.

    Raises:
        OperandError: a value is NaN.
    """
    if bool((is_nan := weight.values.detach().isnan()).any()):
        raise OperandError(
            f"{name}: {int(is_nan.sum())} of {is_nan.numel()} values are NaN, which cannot be compared: find their source with "
            "torch.autograd.set_detect_anomaly(True), or replace them with weight.values.data.nan_to_num_()"
        )


def check_current(model: torch.nn.Module, weights: Mapping[str, torch.nn.Module], owner: str) -> None:
    """Check that a model still has the trained sparse weights, and the modules of trained dense weights, under their names.

    Raises:
        OperandError: a name refers to something else.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> check_current(model, {"0.weight": model[0]}, "GradualPruning")
    """
    for name, weight in weights.items():
        home, _, key = name.rpartition(".")
        of_sparse = isinstance(weight, SparseParameter)
        try:
            current = model.get_submodule(name if of_sparse else home)
        except AttributeError:
            current = None
        if current is not weight or (not of_sparse and key not in weight._parameters):
            raise OperandError(
                f"{name}: the model no longer has the weight that {owner} trains, as after load_patterns, sparsify_model, densify_model or "
                f"a parametrization: make a new {owner} for the changed model, and load the old one's state into it to continue"
            )


def refuse_gradient(name: str, gradient: torch.Tensor) -> torch.Tensor:
    """Hook of a replaced dense weight: raise if a gradient of an earlier forward pass arrives, since it would be lost."""
    raise OperandError(
        f"{name} became sparse between forward and backward, so its gradient would be lost: call step() after backward() and "
        "optimizer.step(), and run the model again"
    )
