"""Patterns in saved states; load_patterns gives a model's weights the patterns of a state, so that the state can be loaded.

The states of trainers hold patterns as text, numbers and tensors only, so that ``torch.load`` accepts them with ``weights_only=True``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from glob import escape
from typing import Any

import torch

from ..errors import FormatError, OperandError, SizeError, UnsupportedError
from ..ir.format import Format, as_format
from ..sparsifiers.base import near
from ..sparsifiers.entrywise import same_pattern
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.pattern_module import facts_of
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import checked_pattern
from .checks import check_model, check_placed, naming
from .layers import Site, converted, sites_of
from .matching import MatchedWeight, chosen
from .plan import SparsityPlan
from .replacement import Optimizers, adapt_readers, check_followers, follow, listed, put_sparse

State = Mapping[str, Any]
Weight = torch.nn.Parameter | SparseParameter
LATER = "sparse in the state: load GradualPruning's state first, or call ns.sparsify.load_patterns(model, state, optimizer)"
ARRAY = re.compile(r"(.+)\.level\d+_\w+")
STRIP = "torch.nn.modules.utils.consume_prefix_in_state_dict_if_present"


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
    """Return the patterns in a state; all of them must belong to known weights.

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
        OperandError: a key is missing or unknown.

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
        OperandError: it belongs to other weights.

    >>> check_names(["0.weight"], "SET", ["0.weight", "2.weight"])
    Traceback (most recent call last):
    ...
    numscorch.OperandError: the state of SET is for other weights: it lacks 2.weight; make it with the same weights=
    """
    if difference := _difference(given, known):
        raise OperandError(f"the state of {owner} is for other weights: {difference}; make it with the same weights=")


def load_patterns(model: torch.nn.Module, state: State, optimizer: Optimizers = None) -> torch.nn.Module:
    """Give a model's weights the sparse patterns of a state, so that ``model.load_state_dict(state)`` succeeds.

    A newly built model has dense layers, or sparse layers with other entries. Dense layers become sparse in place, as with
    :func:`sparsify_model`. Names, hooks, biases and frozen parameters are preserved. Sparse layers get the format and the entries of the
    state, in the same parameter. Optimizers then train the new values, and their state follows the entries. On an error, nothing is
    changed. ``load_state_dict`` loads the values afterwards.

    The state contains formats and shapes, so it can be a plain dict of tensors, such as the contents of a safetensors file. A plain dict
    from an earlier version of numscorch has no formats. Sparse layers then keep the formats of the model, and dense layers cannot become
    sparse.

    To resume, pass the optimizer of the newly built model, or make one for the returned model. Sparse layers list their parameters in the
    order of dense layers. Load the optimizer's state last.

    Args:
        model: the model to change. If the model itself is a layer that becomes sparse, use the result.
        state: the ``state_dict()`` of the sparse model.
        optimizer: the optimizers of the model, one or several; None if there is none yet.

    Returns:
        The model.

    Raises:
        OperandError: ``state`` is not a state, belongs to other weights, or has no formats; or the optimizer does not
            hold a weight.
        SizeError: a weight has another shape, or the number of values differs from the number of entries.
        FormatError: index arrays violate an invariant of their format.
        UnsupportedError: a weight cannot become sparse, or is sparse but dense in the state; the optimizer's state
            cannot follow; or the model is in DistributedDataParallel.

    >>> from numscorch.nn import SparseLinear
    >>> state = torch.nn.Sequential(SparseLinear(8, 4, density=0.25)).state_dict()
    >>> model = load_patterns(torch.nn.Sequential(torch.nn.Linear(8, 4)), state)
    >>> type(model[0]).__name__, model[0].weight.nnz, model.load_state_dict(state)
    ('SparseLinear', 8, <All keys matched successfully>)
    """
    optimizers = listed(optimizer)
    _check(model, state)
    sites = {site.name: site for site in sites_of(model)}
    patterns = patterns_in(state, sites)
    parameters = {id(sites[name].parameter): (name, sites[name].parameter) for name in patterns}
    sparse = {name: parameter for name, parameter in parameters.values() if isinstance(parameter, SparseParameter)}
    choices = _convertible(model, {name: patterns[name] for name in patterns if not isinstance(sites[name].parameter, SparseParameter)})
    for name, weight in sparse.items():
        check_placed(name, weight)
    of_sparse = [(name, weight.values) for name, weight in sparse.items()]
    for name, values in [*of_sparse, *((choice.name, choice.parameter) for choice in choices)]:
        check_followers(name, values, optimizers)
    for name, weight in sparse.items():
        if not patterns[name].stores_as(weight.pattern):
            follow(weight, patterns[name], optimizers)
    for choice in choices:
        model, _ = put_sparse(model, choice, choice.sparsifier, choice.rule.format, optimizers)
    return adapt_readers(model) if choices else model


def tell_order(model: torch.nn.Module) -> None:
    """Make a model's ``load_state_dict`` say what to load first if a weight is sparse in the state but dense in the model."""
    if _tell_dense not in model._load_state_dict_post_hooks.values():
        model.register_load_state_dict_post_hook(_tell_dense)


def _tell_dense(model: torch.nn.Module, keys: Any) -> None:
    """Hook that refuses a state's sparse weights for dense layers, before torch raises for the shapes.

    Raises:
        UnsupportedError: a weight is sparse in the state.
    """
    unknown, others = set(keys.unexpected_keys), {*keys.unexpected_keys, *keys.missing_keys}
    names = [name for key in unknown if (name := key.removesuffix(".values")) != key and {name, f"{name}._extra_state"} & others]
    if names:
        raise UnsupportedError("; ".join(f"{name} ({LATER})" for name in sorted(names)))


def _check(model: Any, state: Any) -> None:
    """Check that the arguments are a model and a state.

    Raises:
        OperandError: an argument has another type.
        UnsupportedError: the model is in DistributedDataParallel.
    """
    check_model("load_patterns", model)
    if not isinstance(state, Mapping):
        raise OperandError(f"load_patterns takes a model's state, not {type(state).__name__}: give the result of its state_dict()")
    parts = [name for name, part in state.items() if isinstance(part, Mapping)]
    if parts and not state.keys() & model.state_dict().keys():
        raise OperandError(f"the state is a dict of states ({', '.join(map(repr, parts))}), not one of the model: give state[{parts[0]!r}]")


def _convertible(model: torch.nn.Module, patterns: Mapping[str, Pattern]) -> list[MatchedWeight]:
    """Return the dense weights that ``patterns`` names, prepared to become sparse.

    Their sparse versions are tried, and nothing is changed.

    Raises:
        UnsupportedError: a weight cannot become sparse.
    """
    plan = SparsityPlan()
    for name, pattern in patterns.items():
        plan = plan.weight(escape(name), same_pattern(SparseTensor(pattern, torch.ones(pattern.nnz))), pattern.format)
    choices = chosen(model, plan)
    for choice in choices:
        if choice.why:
            raise UnsupportedError(f"{choice.name}: is sparse in the state, but dense in the model, where it {choice.why}")
        for site in choice.modules():
            with naming(choice.name):
                layer = converted(site.module, site.key, choice.sparsifier, choice.rule.format)
            if not getattr(layer, site.key).pattern.stores_as(patterns[choice.name]):
                raise UnsupportedError(
                    f"{choice.name}: the conversion registered for {type(site.module).__name__} stores other entries than the state"
                    " has: make that layer sparse first, then call load_patterns"
                )
    return choices


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
    for name in named:
        home, is_stock, weight = name.rpartition(".")[0].rpartition("parametrizations.")
        if is_stock and f"{home}parametrizations.{weight}.original" not in sites:
            raise UnsupportedError(
                f"{home}{weight} is sparse by ns.nn.sparse_weight in the state, but not in the model: call ns.nn.sparse_weight("
                f"model.get_submodule({home[:-1]!r}), {weight!r}, ns.zeros(shape, format=ns.CSR)), and load the state with assign=True"
            )
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
    """Return a state's metadata of its modules and weights, by name; a plain dict of tensors has only that of sparse weights."""
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

    If the names differ by a prefix, as when the model or the state is wrapped, the text suggests it.
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
    """Return a weight's pattern. The index arrays are copied, and checked because kernels do not check them."""
    arrays = {key.removeprefix(f"{name}."): _tensor(key, extents) for key, extents in state.items() if key.startswith(f"{name}.level")}
    values = _tensor(f"{name}.values", state[f"{name}.values"])
    extents = tuple(weight.shape if isinstance(weight, SparseParameter) or weight.ndim < 2 else weight.flatten(1).shape)
    shape = metadata.get("shape", extents)
    if not isinstance(shape, Sequence) or tuple(shape) != extents:
        raise SizeError(f"has shape {shape} in the state, but {extents} in the model: build the model with its original sizes")
    format = _format(metadata, weight)
    levels = [[f"level{at}_{array}" for array in level.arrays] for at, level in enumerate(format.levels)]
    if (names := sorted(array for level in levels for array in level)) != sorted(arrays):
        message = f"the state has index arrays {', '.join(sorted(arrays)) or 'none'}, but {format.name} has {', '.join(names) or 'none'}"
        suggestion = "was it truncated?" if metadata else "give the result of state_dict(), which has the format, not a plain dict of it"
        raise OperandError(f"{message}: {suggestion}")
    pattern = checked_pattern(format, extents, tuple(tuple(arrays[array].detach().clone() for array in level) for level in levels))
    if values.numel() != pattern.nnz:
        raise SizeError(f"has {values.numel()} values in the state, but index arrays for {pattern.nnz}: was it truncated?")
    return pattern


def _tensor(key: str, stored: object) -> torch.Tensor:
    """Return an array of a sparse weight; the array has to be a strided tensor on the CPU."""
    if not isinstance(stored, torch.Tensor) or stored.layout is not torch.strided or stored.device.type != "cpu":
        description = f"{stored.layout} on {stored.device}" if isinstance(stored, torch.Tensor) else type(stored).__name__
        raise OperandError(f"{key} is not a strided tensor on the CPU in the state, but {description}: give a state_dict() on the CPU")
    return stored


def _format(metadata: Mapping[str, Any], weight: Weight) -> Format:
    """Return the format in a state's metadata, or else the model's format; if both are equal, return the model's object."""
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
