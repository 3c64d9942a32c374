"""Which weights of a model are meant: by the names of its parameters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import OperandError, UnsupportedError
from ..sparse_parameter import SparseParameter

T = TypeVar("T")
Names = str | Iterable[str]
DENSE = (torch.nn.Linear, torch.nn.Conv2d)  # exactly these: what derives from them may read its weight in other ways


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """The user's own module, within those that torch.compile and DistributedDataParallel put around it.

    Raises:
        OperandError: no module.
    """
    within: Any = model
    while isinstance(within, DistributedDataParallel) or hasattr(within, "_orig_mod"):
        within = within.module if isinstance(within, DistributedDataParallel) else within._orig_mod
    if not isinstance(within, torch.nn.Module):
        raise OperandError(f"{type(model).__name__} is no torch.nn.Module")
    return within


def sparse_weights(model: torch.nn.Module) -> dict[str, SparseParameter]:
    """The sparse parameters of a model by name, each once, as ``{"0.weight": ...}``."""
    return {name: own for name, own in bare(model).named_modules() if isinstance(own, SparseParameter)}


def dense_layers(model: torch.nn.Module) -> dict[str, Any]:
    """The layers whose weights can become sparse, by their weights' names, each once."""
    return {f"{name}.weight".lstrip("."): own for name, own in bare(model).named_modules() if type(own) in DENSE}


def named(known: Mapping[str, T], names: Names, kind: str) -> dict[str, T]:
    """Those whose names match one of the patterns, as ``encoder.*.weight``.

    Raises:
        OperandError: a pattern matches nothing; near misses are listed.

    >>> named({"0.weight": 1, "2.weight": 2}, "0.*", "sparse weight")
    {'0.weight': 1}
    >>> named({"fc1.weight": 1}, "fc.weight", "sparse weight")
    Traceback (most recent call last):
    ...
    numscorch.errors.OperandError: 'fc.weight' matches no sparse weight of the model: did you mean fc1.weight?
    """
    patterns = [names] if isinstance(names, str) else list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise OperandError(f"{pattern!r} matches no {kind} of the model: {_near(pattern, list(known))}")
    return {name: own for name, own in known.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _near(pattern: str, names: list[str]) -> str:
    if not names:
        return "it has none"
    close = difflib.get_close_matches(pattern, names, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"it has {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def check_untied(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """That no weight belongs to two layers, of which one would go on with a weight of its own.

    Raises:
        UnsupportedError: some does.
    """
    owners: dict[int, list[str]] = {}
    for prefix, module in bare(model).named_modules():
        for name, own in module.named_parameters(prefix, recurse=False):
            owners.setdefault(id(own), []).append(name)
    for name, layer in weights.items():
        others = [other for other in owners[id(layer.weight)] if other != name]
        if others:
            raise UnsupportedError(
                f"{name} is tied to {others[0]}, which would not become sparse with it: untie them with a copy, or leave it out of weights="
            )
