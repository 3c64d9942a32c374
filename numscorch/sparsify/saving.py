"""Patterns in a state dict: text, numbers and tensors alone, which ``torch.load`` takes with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import OperandError, SizeError
from ..ir.format import as_format
from ..pattern import Pattern, restored


def saved(pattern: Pattern) -> dict[str, Any]:
    """A pattern as a dict; its index arrays, which are never written to, are shared.

    >>> import numscorch as ns, torch
    >>> saved(ns.from_torch(torch.eye(2)).pattern)["arrays"]
    [tensor([0, 1, 2], dtype=torch.int32), tensor([0, 1], dtype=torch.int32)]
    """
    arrays = [array for own in pattern.arrays for array in own]
    return {"format": str(pattern.format), "shape": tuple(pattern.shape), "arrays": arrays}


def loaded(state: Mapping[str, Any]) -> Pattern:
    """The pattern again; index arrays are checked, since whoever wrote the file isn't known.

    Raises:
        FormatError: the arrays break a promise of the format.
    """
    format, arrays = as_format(state["format"]), iter(state["arrays"])
    return restored(format, tuple(state["shape"]), tuple(tuple(next(arrays) for _ in level.arrays) for level in format.levels))


def patterns_of(state: Mapping[str, Any], owner: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Pattern]:
    """The patterns that a state holds, all of weights that are known.

    Raises:
        OperandError: some are of others.
        SizeError: a pattern has another shape than its weight.
    """
    made = {name: loaded(own) for name, own in state.items()}
    check_names(made, owner, shapes)
    for name, pattern in made.items():
        if pattern.shape != shapes[name]:
            raise SizeError(f"the state of {owner} has a pattern of shape {pattern.shape} for {name}, which has {shapes[name]}")
    return made


def check_names(given: Iterable[str], owner: str, known: Iterable[str]) -> None:
    """That a state is of the same weights.

    Raises:
        OperandError: it isn't.

    >>> check_names(["0.weight"], "SET", ["0.weight", "2.weight"])
    Traceback (most recent call last):
    ...
    numscorch.errors.OperandError: the state of SET is of other weights: it lacks 2.weight; make it with the same weights=
    """
    missing, other = sorted(set(known) - set(given)), sorted(set(given) - set(known))
    if missing or other:
        told = " and ".join([f"it lacks {', '.join(missing)}"] * bool(missing) + [f"it has {', '.join(other)}"] * bool(other))
        raise OperandError(f"the state of {owner} is of other weights: {told}; make it with the same weights=")
