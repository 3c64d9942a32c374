"""Patterns of sparse weights in a model's state dict, checked against the model that loads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from ..errors import OperandError, SizeError, UnsupportedError
from ..ir.format import Format, as_format
from ..sparsifiers.names import near
from ..tensors.parameter import SparseParameter, facts_of
from ..tensors.pattern import Pattern
from ..tensors.validate import checked_pattern
from .checks import naming
from .layers import Site

State = Mapping[str, Any]
Weight = torch.nn.Parameter | SparseParameter
ARRAY = re.compile(r"(.+)\.level\d+_\w+")
STRIP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present"


def patterns_in(state: State, sites: Mapping[str, Site]) -> dict[str, Pattern]:
    """Return the patterns in a model's state, by the names of their weights.

    Raises:
        OperandError: the patterns belong to other weights than the model's, lack arrays, hold other things than
            tensors, or have no format.
        SizeError: a weight has another shape, or the number of values differs from the number of entries.
        FormatError: index arrays violate an invariant of their format.
        UnsupportedError: the state has a dense weight where the model has a sparse one; weights that are tied in the
            model differ in the state; or a weight of the model has no size yet.
    """
    metadata = _metadata(state)
    named = [match[1] for key in state if (match := ARRAY.fullmatch(key))] + [name for name, entry in metadata.items() if "format" in entry]
    names = [name for name in dict.fromkeys(named) if f"{name}.values" in state]
    if unknown := [name for name in names if name not in sites]:
        raise OperandError(_unknown(unknown[0], list(state), list(sites)))
    for name, site in sites.items():
        _check_held(name, site.parameter, state)
    patterns = {}
    for name in names:
        with naming(name):
            if isinstance(sites[name].parameter, torch.nn.parameter.UninitializedParameter):
                raise UnsupportedError("has no size yet; run the model once, and load then")
            patterns[name] = _pattern(name, state, metadata.get(name, {}), sites[name].parameter)
    _check_tied(sites, patterns)
    return patterns


def _metadata(state: State) -> dict[str, Mapping[str, Any]]:
    """Return a state's metadata of its modules and weights, by name; in a plain dict of tensors, that of sparse weights."""
    metadata = getattr(state, "_metadata", None) or {}
    if not isinstance(metadata, Mapping):
        raise OperandError(f"the state's metadata is not a dict of modules, but {metadata!r:.60}: give the result of state_dict()")
    if wrong := [name for name, entry in metadata.items() if not isinstance(entry, Mapping)]:
        raise OperandError(
            f"the state's metadata of {wrong[0]!r} is not a dict, but {metadata[wrong[0]]!r:.60}: give the result of state_dict()"
        )
    names = [name for key in state if (name := key.removesuffix("._extra_state")) != key and f"{name}.values" in state]
    return dict(metadata) | {name: facts_of(state[f"{name}._extra_state"]) | metadata.get(name, {}) for name in names}


def _unknown(name: str, keys: list[str], known: list[str]) -> str:
    """Return the error text for a weight that the model lacks.

    The text suggests a prefix if the names differ by one, as when the model or the state is wrapped.
    """
    message = f"the state has a sparse weight {name}, which the model lacks"
    for known_name in known:
        prefix = name.removesuffix(known_name)
        if name.endswith(f".{known_name}") and all(key.startswith(prefix) for key in keys):
            return f"{message}: the state's names begin with {prefix!r} (a wrapped model's): call {STRIP}(state, {prefix!r}) first"
        prefix = known_name.removesuffix(name)
        if known_name.endswith(f".{name}") and all(key.startswith(prefix) for key in known):
            return f"{message}: the model's names begin with {prefix!r}, because it is wrapped: give model.{prefix[:-1]}"
    return f"{message}: {near(name, known)}"


def _check_held(name: str, weight: Weight, state: State) -> None:
    """Check that a state has the values of a weight that is sparse in the model."""
    if not isinstance(weight, SparseParameter) or f"{name}.values" in state:
        return
    if name in state:
        raise UnsupportedError(
            f"{name} is dense in the state, but sparse in the model: build a new model, or make it dense first, with densify_model"
        )
    message = f"the state has no {name}.values, but the model has {weight.tensor}"
    raise OperandError(f"{message}: give the state of the whole model, whose layers have the same names")


def _pattern(name: str, state: State, metadata: Mapping[str, Any], weight: Weight) -> Pattern:
    """Return a weight's pattern, checked, and with copied index arrays, since kernels do not check them."""
    arrays = {key.removeprefix(f"{name}."): _tensor(key, extents) for key, extents in state.items() if key.startswith(f"{name}.level")}
    values = _tensor(f"{name}.values", state[f"{name}.values"])
    extents = tuple(weight.shape if isinstance(weight, SparseParameter) or weight.ndim < 2 else weight.flatten(1).shape)
    shape = metadata.get("shape", extents)
    if not isinstance(shape, Sequence) or tuple(shape) != extents:
        raise SizeError(f"has shape {shape} in the state, but {extents} in the model: build the model with its original sizes")
    format = _format(metadata, weight)
    levels = [[f"level{at}_{array}" for array in level.arrays] for at, level in enumerate(format.levels)]
    if (names := sorted(chain(*levels))) != sorted(arrays):
        message = f"the state has index arrays {', '.join(sorted(arrays)) or 'none'}, but {format.name} has {', '.join(names) or 'none'}"
        suggestion = "was it truncated?" if metadata else "give the result of state_dict(), which has the format, not a plain dict of it"
        raise OperandError(f"{message}: {suggestion}")
    pattern = checked_pattern(format, extents, tuple(tuple(arrays[array].detach().clone() for array in level) for level in levels))
    if values.numel() != pattern.nnz:
        raise SizeError(f"has {values.numel()} values in the state, but index arrays for {pattern.nnz}: was it truncated?")
    return pattern


def _tensor(key: str, stored: object) -> torch.Tensor:
    """Return an array of a sparse weight, which has to be a strided tensor on the CPU."""
    if not isinstance(stored, torch.Tensor) or stored.layout is not torch.strided or stored.device.type != "cpu":
        description = f"{stored.layout} on {stored.device}" if isinstance(stored, torch.Tensor) else type(stored).__name__
        raise OperandError(f"{key} is not a strided tensor on the CPU in the state, but {description}: give a state_dict() on the CPU")
    return stored


def _format(metadata: Mapping[str, Any], weight: Weight) -> Format:
    """Return the format in a state's metadata, or else the model's; if both are equal, the model's own object."""
    stored_format: Format | None = weight.format if isinstance(weight, SparseParameter) else None
    if (text := metadata.get("levels", metadata.get("format"))) is not None:
        saved_format: Format = as_format(text)
        return stored_format if stored_format is not None and stored_format == saved_format else saved_format
    if stored_format is None:
        raise OperandError(
            "is dense in the model, and a plain dict of tensors does not have its sparse format: give the result of state_dict(), which"
            " torch.save preserves; or make the layer sparse in that format first, as with sparsify_model"
        )
    return stored_format


def _check_tied(sites: Mapping[str, Site], patterns: Mapping[str, Pattern]) -> None:
    """Check that weights tied in the model are equal in the state."""
    first: dict[int, str] = {}
    for name, site in sites.items():
        other = first.setdefault(id(site.parameter), name)
        if (name in patterns) != (other in patterns) or (name in patterns and not patterns[name].stores_as(patterns[other])):
            raise UnsupportedError(
                f"{other} and {name} are one weight in the model, but differ in the state: tie or untie them as in the saved model"
            )
