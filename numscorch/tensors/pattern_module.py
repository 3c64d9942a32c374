"""Modules that hold a pattern: its index arrays are their buffers, and copies and states of the modules keep it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary
from zlib import crc32

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import FormatError, NumscorchError, OperandError, PatternWarning
from ..ir.format import as_format
from .ledgers import stack_level
from .modes import as_numpy, innermost
from .packing import entry_count
from .pattern import Pattern, named_arrays
from .sparse_tensor import SparseTensor
from .validate import checked_pattern

SIZES = "build the model with the sizes of the saved one"
ASSIGN = "assign_to_params_buffers"  # torch's key for load_state_dict(assign=True)
SHORT = 1 << 12  # entries of an index array
SHOWN = 3  # coordinates in an error
_adopted: WeakValueDictionary[Any, Pattern] = WeakValueDictionary()  # patterns of loaded states, by their arrays


def checksum_of(pattern: Pattern) -> int:
    """A checksum of the contents of the index arrays. O(nnz), slower than a copy."""
    checksum = 0
    for array in pattern.views:
        checksum = crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def _versions(pattern: Pattern) -> list[int]:
    """The write count of each index array; 0 for inference tensors, which torch does not count."""
    return [0 if array.is_inference() else array._version for level in pattern.arrays for array in level]


class Description(NamedTuple):
    """How states describe a pattern: as ``_extra_state``, as metadata, and by the names of its arrays."""

    state: torch.Tensor
    metadata: dict[str, Any]
    names: tuple[str, ...]


def description_of(pattern: Pattern, shape: tuple[int, ...], nnz: int) -> Description:
    """Describe a pattern; the whole tensor has this shape and number of entries."""
    format = pattern.format
    state = torch.tensor(list(f"{'x'.join(map(str, shape))} {format}".encode()), dtype=torch.uint8, device="cpu")
    metadata = {"format": format.name, "levels": str(format), "shape": shape, "nnz": nnz}
    return Description(state, metadata, tuple([name for name, _ in named_arrays(pattern)]))


class PatternModule(torch.nn.Module):
    """A module whose buffers are the index arrays of its pattern.

    The base class of :class:`SparseParameter`, which also holds the values, and of parametrizations, whose values torch holds.
    """

    NAME: ClassVar[str]  # name that errors about the pattern have
    ADOPT: ClassVar[str]  # how to load a state of another pattern
    pattern: Pattern

    def hold(self, pattern: Pattern) -> None:
        """Replace the pattern; its index arrays become the buffers.

        The values stay the same. :func:`~numscorch.sparsify.repattern` also moves the values, the gradient and the optimizer state.

        Args:
            pattern: the new pattern. It has the same shape; its format may differ.
        """
        for name, _ in named_arrays(self.pattern) if "pattern" in vars(self) else ():
            delattr(self, name)  # the new format may have other arrays
        self.pattern, self._seen, self._is_told = pattern, (_versions(pattern), checksum_of(pattern)), False
        self._buffers.update(named_arrays(pattern))  # register_buffer would ask the tensor for an attribute of this name

    def _follow(self) -> None:
        """Detect index arrays that were written to, and replace the pattern and its derived data.

        ``DistributedDataParallel`` writes to the buffers of each process, for example. A changed pattern causes a warning, except
        in the forward pass of ``DistributedDataParallel``, which also writes the matching values.

        Raises:
            FormatError: the new index arrays violate the format.
            OperandError: ``torch.func.functional_call`` gives index arrays of another pattern.
        """
        for (name, held), array in zip(self._buffers.items(), chain.from_iterable(self.pattern.arrays), strict=False):
            if held is not array and (held is None or held.shape != array.shape or not bool((innermost(held) == array).all())):
                raise OperandError(
                    f"the buffer {name} of a sparse weight ({self.pattern.format.name}, shape={self.pattern.shape}) was replaced by one "
                    "with other contents, as by torch.func.functional_call with the state of another pattern: give states of modules "
                    "that share the pattern"
                )
        versions = _versions(self.pattern)
        if self._seen[0] == versions:
            return
        checksum = checksum_of(self.pattern)
        if checksum != self._seen[1]:
            try:
                self.pattern = checked_pattern(self.pattern.format, self.pattern.shape, self.pattern.arrays)
            except FormatError as error:
                raise FormatError(f"{error}\n  {self._overwritten()}") from error
            if not self._is_told and DistributedDataParallel._get_active_ddp_module() is None:
                warnings.warn(self._overwritten(), PatternWarning, stacklevel=stack_level())
                self._is_told = True
        self._seen = versions, checksum

    def _overwritten(self) -> str:
        """The text of the warning about overwritten index arrays."""
        description = f"a sparse parameter ({self.pattern.format.name}, shape={self.pattern.shape})"
        return (
            f"the index arrays of {description} were overwritten with another pattern: its values belong to other entries, unless they "
            "were overwritten too, as DistributedDataParallel does\n"
            "  AveragedModel does this if the model's pattern changed, or with use_buffers=True: leave use_buffers out, and call "
            "ns.sparsify.load_patterns(averaged.module, model.state_dict()) before averaged.update_parameters(model)"
        )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """Apply a function to the values, for ``to``, ``to_empty`` and others; index arrays only change in place, and stay on the CPU."""
        held = {name: self._buffers[name] for name, _ in named_arrays(self.pattern) if name in self._buffers}
        try:
            return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._buffers.update(held)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles have new arrays of the same contents: they keep the checksum, unless the arrays were overwritten since."""
        state = dict(vars(self))
        versions, state["_seen"] = state.pop("_seen", (None, None))
        if versions != _versions(self.pattern):
            del state["_seen"]
        state.pop("_is_told", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        checksum = state["_seen"] if isinstance(state.get("_seen"), int) else checksum_of(self.pattern)
        vars(self).update(_seen=(_versions(self.pattern), checksum), _is_told=False)

    @property
    def _description(self) -> Description:
        """The description of the tensor in states, which is cached with the pattern."""
        pattern = self.pattern
        known: Description | None = pattern.derived.get("description")
        return known or pattern.remember("description", lambda: description_of(pattern, pattern.shape, entry_count(pattern)))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the arrays and the format; add format and shape to the state's metadata."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            metadata.setdefault(prefix[:-1], {}).update(self._description.metadata)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Compare the index arrays with those of the state, without writing to them, and load everything else.

        If the patterns differ, nothing is loaded, and torch raises an error, even with ``strict=False``, as it does for a dense weight of
        another shape. With ``assign=True``, the pattern of the state replaces this one.
        """
        if clash := self.take_pattern(state_dict, prefix, local_metadata):
            error_msgs.append(f"{prefix}{self.NAME} ({clash})")
            return
        state, _, names = self._description
        for name in names:
            state_dict.pop(prefix + name, None)
        state_dict[f"{prefix}_extra_state"] = state
        held = self._buffers
        vars(self)["_buffers"] = {name: array for name, array in held.items() if name not in names}
        try:
            super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        finally:
            vars(self)["_buffers"] = held | self._buffers

    def take_pattern(self, state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]) -> str:
        """Check that a state has this pattern. With ``assign=True``, hold the pattern of the state instead.

        Args:
            state: the state of a model.
            prefix: the names in the state of this module's buffers begin with it.
            metadata: the state's metadata of this module.

        Returns:
            how the patterns differ; empty if they are equal, or the state has no pattern.

        Raises:
            OperandError: the ``_extra_state`` in the state is not a description of a pattern.
        """
        arrays = {key.removeprefix(prefix): array for key, array in state.items() if key.startswith(f"{prefix}level")}
        saved, facts = state.get(f"{prefix}_extra_state"), metadata
        described = self._description.state
        if saved is not None and not (isinstance(saved, torch.Tensor) and saved.dtype is described.dtype and torch.equal(saved, described)):
            facts = facts_of(saved) | dict(metadata)
        clash = self._clash(arrays, state.get(f"{prefix}values"), facts)
        if not clash or not metadata.get(ASSIGN) or tuple(facts.get("shape", self.pattern.shape)) != self.pattern.shape:
            return clash
        try:
            self._adopt(_pattern_of(arrays, self.pattern, facts))
        except NumscorchError as error:
            return str(error)
        return ""

    def _clash(self, arrays: Mapping[str, torch.Tensor], values: torch.Tensor | None, metadata: Mapping[str, Any]) -> str:
        """Describe how a state's pattern differs from this one; empty if they are equal, or the state has no pattern."""
        pattern = self.pattern
        format, shape = metadata.get("format", pattern.format.name), tuple(metadata.get("shape", pattern.shape))
        if shape != pattern.shape:
            return f"has shape {shape} in the state, {pattern.shape} in the model; {SIZES}"
        if format != pattern.format.name:
            return f"is stored as {format} in the state, as {pattern.format.name} in the model; {self.ADOPT}"
        names = self._description.names
        if arrays and arrays.keys() != set(names):
            return f"has different index arrays in the state than in the model ({format}); {self.ADOPT}"
        if not arrays or all(_equal(array, arrays[name]) for name, (array, _) in zip(names, pattern.watched, strict=True)):
            return ""
        count = metadata.get("nnz", "different") if values is None else values.numel()
        return f"stores {count} entries in the state, other {pattern.nnz} in the model; {self.ADOPT}"

    def _adopt(self, pattern: Pattern) -> None:
        """Hold the pattern of a state, whose values are assigned next."""
        self.hold(pattern)

    def get_extra_state(self) -> torch.Tensor:
        """Return the shape and the format as text in a uint8 tensor, so that every file format for tensors can store them."""
        return self._description.state.clone()

    def set_extra_state(self, state: Any) -> None:
        """Check that a state has this shape and format.

        Args:
            state: the result of :meth:`get_extra_state`.

        Raises:
            FormatError: the shape or the format differs.
            OperandError: the state is not a shape and a format.
        """
        described = self._description.state
        if state is not described and (facts := facts_of(state)) != facts_of(described):
            raise FormatError(f"the state has a weight of shape {facts['shape']} in {facts['format']}, not {self!r}; {self.ADOPT}")


def facts_of(description: Any) -> dict[str, Any]:
    """Parse the ``_extra_state`` of a sparse parameter: its shape and format, under the keys that a state's metadata uses.

    Raises:
        OperandError: it is not such a description.

    >>> import numscorch as ns
    >>> facts_of(ns.nn.Parameter(ns.from_torch(torch.eye(2), ns.CSC)).get_extra_state())
    {'format': 'CSC', 'levels': '(i, j) -> (j: dense, i: compressed)', 'shape': (2, 2)}
    """
    try:
        shape, _, levels = bytes(description.round().to(torch.uint8).tolist()).decode().partition(" ")
        return {"format": as_format(levels).name, "levels": levels, "shape": tuple(map(int, shape.split("x")))}
    except (AttributeError, TypeError, ValueError, RuntimeError, FormatError) as error:
        raise OperandError(
            f"the _extra_state of a sparse weight is not its shape and format as bytes, but {description!r:.60} ({error}): give the result "
            "of state_dict()"
        ) from error


def _equal(array: torch.Tensor, stored: torch.Tensor) -> bool:
    """Whether an index array and one of a state, possibly of another width, have the same contents."""
    if array.data_ptr() == stored.data_ptr() and (array.shape, array.dtype) == (stored.shape, stored.dtype):
        return True
    if len(array) < SHORT and stored.dtype is array.dtype and stored.device.type == "cpu":
        return torch.equal(array, stored)
    ours, other = as_numpy(array), stored.numpy(force=True)  # NumPy compares long arrays faster
    return ours.shape == other.shape and bool((ours == other).all())


def _pattern_of(arrays: Mapping[str, torch.Tensor], pattern: Pattern, facts: Mapping[str, Any]) -> Pattern:
    """The pattern of a state, in its own format if it is known; parameters that share index arrays share the pattern.

    Raises:
        FormatError: the index arrays are not those of the format, or violate it.
    """
    format = as_format(facts.get("levels", pattern.format))
    names = [[f"level{at}_{name}" for name in level.arrays] for at, level in enumerate(format.levels)]
    if sorted(arrays) != sorted(name for level in names for name in level):
        raise FormatError(f"has index arrays {', '.join(sorted(arrays))} in the state, not those of {format.name}: was it truncated?")
    levels = tuple(tuple(arrays[name].detach() for name in level) for level in names)
    key = format, pattern.shape, *((array.data_ptr(), len(array)) for level in levels for array in level)
    if (shared := _adopted.get(key)) is None:
        _adopted[key] = shared = checked_pattern(format, pattern.shape, levels)
    return shared


def unassigned(values: torch.nn.Parameter, pattern: Pattern) -> torch.nn.Parameter:
    """A parameter without memory for the values of a pattern, which ``load_state_dict(assign=True)`` replaces."""
    return torch.nn.Parameter(torch.empty(pattern.nnz, dtype=values.dtype, device="meta"), values.requires_grad)


def take_dense(state: dict[str, Any], name: str, values: str, pattern: Pattern, unexpected_keys: list[str]) -> None:
    """Replace the dense weight in a state by the values of a pattern.

    Args:
        state: the state of a model, which is changed.
        name: name of the weight.
        values: name of the values, which is added.
        pattern: the pattern of the model's weight.
        unexpected_keys: receives a description of the nonzeros outside the pattern; with ``strict=True``, torch raises an error.
    """
    weight = state.get(name)
    if not isinstance(weight, torch.Tensor) or values in state or weight.numel() != np.prod(pattern.shape):
        return
    weight = state.pop(name).detach().reshape(pattern.shape)
    state[values], outside = entries_at(pattern, weight)
    if outside:
        unexpected_keys.append(f"{name} ({outside})")


@torch.no_grad()
def entries_at(pattern: Pattern, weight: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Return the values of a dense tensor at the entries of a pattern, and a description of its other nonzeros; empty without any."""
    entries = SparseTensor(pattern, torch.zeros(pattern.nnz, dtype=weight.dtype)).copy_(weight)
    if not (count := int(weight.count_nonzero() - entries.values.count_nonzero())):
        return entries.values, ""
    is_stored = entries.with_values(torch.ones(pattern.nnz)).to_dense() != 0
    first = ", ".join(str(tuple(place)) for place in ((weight != 0) & ~is_stored).nonzero()[:SHOWN].tolist())
    way_out = "zero them, make the model sparse from this weight, or load with strict=False, which drops them"
    return entries.values, f"{count} nonzeros lie outside the pattern of the sparse weight, the first ones at {first}; {way_out}"
