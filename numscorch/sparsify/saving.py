"""Patterns in a state dict: text, numbers and tensors alone, which ``torch.load`` takes with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import FormatError, OperandError, SizeError
from ..ir.format import as_format
from ..tensors.pattern import Pattern
from ..tensors.validate import checked_pattern


def saved(pattern: Pattern) -> dict[str, Any]:
    """A pattern as a dict; its index arrays, which are never written to, are shared.

    >>> import numscorch as ns, torch
    >>> saved(ns.from_torch(torch.eye(2)).pattern)["arrays"]
    [tensor([0, 1, 2], dtype=torch.int32), tensor([0, 1], dtype=torch.int32)]
    """
    arrays = [array for level in pattern.arrays for array in level]
    return {"format": str(pattern.format), "shape": tuple(pattern.shape), "arrays": arrays}


def loaded(state: Mapping[str, Any]) -> Pattern:
    """The pattern again; index arrays are checked, since whoever wrote the file isn't known.

    Raises:
        FormatError: the arrays break a promise of the format.
        OperandError: it is no pattern's state.
    """
    check_keys(state, "a weight's pattern", ("format", "shape", "arrays"))
    format, arrays = as_format(state["format"]), iter(state["arrays"])
    if len(state["arrays"]) != sum(len(level.arrays) for level in format.levels):
        raise FormatError(f"the state has {len(state['arrays'])} index arrays, but {format} has others: was it cut short?")
    return checked_pattern(format, tuple(state["shape"]), tuple(tuple(next(arrays) for _ in level.arrays) for level in format.levels))


def patterns_of(state: Mapping[str, Any], owner: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Pattern]:
    """The patterns that a state holds, all of weights that are known.

    Raises:
        OperandError: some are of others.
        SizeError: a pattern has another shape than its weight.
    """
    check_names(state, owner, shapes)
    patterns = {name: loaded(state_) for name, state_ in state.items()}
    for name, pattern in patterns.items():
        if pattern.shape != shapes[name]:
            raise SizeError(f"the state of {owner} has a pattern of shape {pattern.shape} for {name}, which has {shapes[name]}")
    return patterns


def check_keys(state: object, owner: str, keys: Iterable[str]) -> None:
    """That a state has what an owner's state has, and nothing else.

    Raises:
        OperandError: it hasn't.

    >>> check_keys({"step": 1, "generator": 2}, "RigL", ["step", "patterns", "is_put_off"])
    Traceback (most recent call last):
    ...
    numscorch.OperandError: this is no state of RigL: it lacks is_put_off, patterns and it has generator; ...
    """
    if not isinstance(state, Mapping):
        raise OperandError(f"this is no state of {owner}, but a {type(state).__name__}: give what its state_dict() made")
    if difference := _difference(map(str, state), keys):
        raise OperandError(f"this is no state of {owner}: {difference}; give what its state_dict() made")


def _difference(given: Iterable[str], known: Iterable[str]) -> str:
    """In which names a state differs from what it should have; empty where they are the same."""
    given, known = set(given), set(known)
    differences = {"lacks": sorted(known - given), "has": sorted(given - known)}
    return " and ".join(f"it {what} {', '.join(names[:6])}{', ...' * (len(names) > 6)}" for what, names in differences.items() if names)


def check_names(given: Iterable[str], owner: str, known: Iterable[str]) -> None:
    """That a state is of the same weights.

    Raises:
        OperandError: it isn't.

    >>> check_names(["0.weight"], "SET", ["0.weight", "2.weight"])
    Traceback (most recent call last):
    ...
    numscorch.OperandError: the state of SET is of other weights: it lacks 2.weight; make it with the same weights=
    """
    if difference := _difference(given, known):
        raise OperandError(f"the state of {owner} is of other weights: {difference}; make it with the same weights=")
