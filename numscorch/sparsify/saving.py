"""Patterns in a state dict: text, numbers and tensors only, so that ``torch.load`` accepts it with ``weights_only=True``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import FormatError, OperandError, SizeError
from ..ir.format import as_format
from ..tensors.pattern import Pattern
from ..tensors.validate import checked_pattern


def saved(pattern: Pattern) -> dict[str, Any]:
    """Return a pattern as a dict that shares its index arrays, which are never written to.

    >>> import numscorch as ns, torch
    >>> saved(ns.from_torch(torch.eye(2)).pattern)["arrays"]
    [tensor([0, 1, 2], dtype=torch.int32), tensor([0, 1], dtype=torch.int32)]
    """
    return {"format": str(pattern.format), "shape": tuple(pattern.shape), "arrays": [array for level in pattern.arrays for array in level]}


def loaded(state: Mapping[str, Any]) -> Pattern:
    """Return the pattern of a dict; index arrays are checked, since the file may come from an untrusted source.

    Raises:
        FormatError: the arrays violate an invariant of the format.
        OperandError: the dict is not a pattern's state.
    """
    check_keys(state, "a weight's pattern", ("format", "shape", "arrays"))
    format, arrays = as_format(state["format"]), iter(state["arrays"])
    if len(state["arrays"]) != sum(len(level.arrays) for level in format.levels):
        raise FormatError(f"the state has {len(state['arrays'])} index arrays, but {format} has a different number: was it truncated?")
    return checked_pattern(format, tuple(state["shape"]), tuple(tuple(next(arrays) for _ in level.arrays) for level in format.levels))


def patterns_of(state: Mapping[str, Any], owner: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Pattern]:
    """Return the patterns in a state, which must all belong to known weights.

    Raises:
        OperandError: a pattern belongs to an unknown weight.
        SizeError: the shapes of a pattern and its weight differ.
    """
    check_names(state, owner, shapes)
    patterns = {name: loaded(state_) for name, state_ in state.items()}
    for name, pattern in patterns.items():
        if pattern.shape != shapes[name]:
            raise SizeError(f"the state of {owner} has a pattern of shape {pattern.shape} for {name}, which has {shapes[name]}")
    return patterns


def check_keys(state: object, owner: str, keys: Iterable[str]) -> None:
    """Check that a state has exactly the keys of an owner's state.

    Raises:
        OperandError: it does not.

    >>> check_keys({"step": 1, "generator": 2}, "RigL", ["step", "patterns", "is_put_off"])
    Traceback (most recent call last):
    ...
    numscorch.OperandError: this is not a state of RigL: it lacks is_put_off, patterns and it has generator; ...
    """
    if not isinstance(state, Mapping):
        raise OperandError(f"this is not a state of {owner}, but a {type(state).__name__}: give the result of its state_dict()")
    if difference := _difference(map(str, state), keys):
        raise OperandError(f"this is not a state of {owner}: {difference}; give the result of its state_dict()")


def _difference(given: Iterable[str], known: Iterable[str]) -> str:
    """Describe how the names of a state differ from the expected ones; empty if they are the same."""
    given, known = set(given), set(known)
    differences = {"lacks": sorted(known - given), "has": sorted(given - known)}
    return " and ".join(f"it {what} {', '.join(names[:6])}{', ...' * (len(names) > 6)}" for what, names in differences.items() if names)


def check_names(given: Iterable[str], owner: str, known: Iterable[str]) -> None:
    """Check that a state belongs to the same weights.

    Raises:
        OperandError: it does not.

    >>> check_names(["0.weight"], "SET", ["0.weight", "2.weight"])
    Traceback (most recent call last):
    ...
    numscorch.OperandError: the state of SET is for other weights: it lacks 2.weight; make it with the same weights=
    """
    if difference := _difference(given, known):
        raise OperandError(f"the state of {owner} is for other weights: {difference}; make it with the same weights=")
