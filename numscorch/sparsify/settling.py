"""The decision for each weight of a plan: draw its mask, try and time its sparse version, and report the outcome; nothing changes yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from ..errors import OperandError, UnsupportedError
from ..measuring.turns import DISTURBED, in_turns, ratio_of_medians
from ..sparsifiers.base import described
from ..sparsifiers.magnitude import has_nan
from ..sparsifiers.sparsify import Sparsifier, mask_of
from ..tensors.ledgers import shown_bytes
from ..tensors.parameter import SparseParameter
from .checks import naming
from .layers import converted
from .matching import MatchedWeight
from .replacement import Optimizer, check_followers, optimizers_of

SECONDS = 0.1  # minimum duration of a comparison; slow layers take at most ten times as long
HEAD = ("weight", "module", "density", "format", "before", "after", "speed-up", "")
TABLE = torch.nn.Embedding  # lookups are never faster sparse, but a sparse table can save memory
LARGER = 1.05  # the report has a note from this ratio of kept to requested entries on


@dataclass(frozen=True)
class ModuleCall:
    """The arguments of a module's call; floating-point tensors are replaced by meta tensors, which have sizes only."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of the same sizes, filled with random numbers."""
        return pytree.tree_map_only(
            torch.Tensor,
            lambda value: torch.randn(value.shape, generator=generator).to(value.dtype) if value.is_meta else value,
            (self.args, self.kwargs),
        )

    @property
    def key(self) -> str:
        """A key that is equal for calls of the same cost: it describes tensors by shape and data type."""
        return repr(pytree.tree_map_only(torch.Tensor, lambda tensor: (tuple(tensor.shape), tensor.dtype), (self.args, self.kwargs)))


def _placeholder(value: torch.Tensor) -> torch.Tensor:
    """Replace a floating-point tensor by a meta tensor; integer tensors are kept, since indices have to be valid."""
    return torch.empty_like(value, device="meta") if value.is_floating_point() else value.detach()


def calls_of(model: torch.nn.Module, modules: Iterable[torch.nn.Module], example_inputs: Any) -> dict[torch.nn.Module, ModuleCall]:
    """Run a model once, and record the first call of each of the ``modules``.

    The model runs in evaluation mode without gradients; its hooks are called.

    Raises:
        OperandError: the model does not run with these inputs.
    """
    seen: dict[torch.nn.Module, ModuleCall] = {}

    def record(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module not in seen:
            seen[module] = ModuleCall(*pytree.tree_map_only(torch.Tensor, _placeholder, (args, kwargs)))

    wanted = set(modules)
    handles = [
        module.register_forward_pre_hook(record, with_kwargs=True)
        for module in model.modules()
        if module in wanted or (isinstance(module, torch.nn.MultiheadAttention) and module.out_proj in wanted)
    ]
    with ExitStack() as restored, evaluated(model), torch.no_grad(), torch.random.fork_rng(devices=()):
        for handle in handles:
            restored.enter_context(handle)
        restored.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)  # torch's fused encoder layer does not call its submodules
        _run(model, example_inputs)
    for module in list(seen):
        if isinstance(module, torch.nn.MultiheadAttention):  # it reads its output projection's weight, and does not call the projection
            seen[module.out_proj] = ModuleCall(seen[module].args[:1] or (seen[module].kwargs["query"],), {})
    return seen


def _run(model: torch.nn.Module, example_inputs: Any) -> None:
    """Call a model with a tensor, or with a tuple or dict of arguments.

    Raises:
        OperandError: the model raises an error.
    """
    args = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
    try:
        if isinstance(example_inputs, dict):
            model(**example_inputs)
        else:
            model(*args)
    except Exception as error:
        arguments = ", ".join(map(described, pytree.tree_leaves(example_inputs)))
        raise OperandError(
            f"the model does not run with example_inputs ({arguments}): {type(error).__name__}: {error}\n"
            "  give the model's inputs: a tensor, or a tuple or dict of arguments"
        ) from error


@contextmanager
def evaluated(model: torch.nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class SpeedUp:
    """A speed-up, or None if it was not measured, and whether it is certain. It is not if timings scatter, as on a busy machine."""

    ratio: float | None = None
    is_certain: bool = True


UNTIMED = SpeedUp()


def speed_up(dense: torch.nn.Module, sparse: torch.nn.Module, call: ModuleCall) -> SpeedUp:
    """Return how many times faster the forward pass of the sparse module is; the two modules run alternately."""
    args, kwargs = call.again(torch.Generator().manual_seed(0))
    with torch.no_grad(), evaluated(dense), evaluated(sparse), torch.random.fork_rng(devices=()):
        return ratio(lambda: dense.forward(*args, **kwargs), lambda: sparse.forward(*args, **kwargs))  # forward() skips hooks


def ratio(first: Callable[[], object], second: Callable[[], object]) -> SpeedUp:
    """Return the median time of the first function over that of the second, measured after warm-up calls.

    >>> ratio(lambda: 1, lambda: 2).ratio > 0
    True
    """
    turns = in_turns(first, {"second": second}, seconds=SECONDS, patience=math.inf)
    return compared(turns.ours, turns.peers["second"])


def compared(first: Sequence[float], second: Sequence[float]) -> SpeedUp:
    """Return the ratio of the median times of alternating calls.

    The ratio is uncertain if its confidence interval includes 1, or if one side's median time is more than twice its minimum.

    >>> compared([2.0, 2.1, 2.2], [1.0, 1.0, 1.1])
    SpeedUp(ratio=2.1, is_certain=True)
    >>> compared([2.0, 2.1, 0.2], [1.0, 1.0, 1.1]).is_certain
    False
    """
    between = ratio_of_medians(first, second)
    scatters = any(median(seconds) > DISTURBED * min(seconds) for seconds in (first, second))
    return SpeedUp(between.ratio, not scatters and not between.low <= 1 <= between.high)


@dataclass(frozen=True)
class ModelRow:
    """The outcome for one weight: a row of :class:`ModelReport`.

    Attributes:
        name: the name of the weight.
        module: the class of its module.
        density: the fraction of entries that is stored; 1 for a dense weight.
        format: the name of the format; ``"dense"`` for a dense weight.
        bytes_before: the size of the weight before the change.
        bytes_after: the size after the change, index arrays included.
        speedup: the median time of the dense layer divided by that of the sparse layer; None if it was not measured.
        is_certain: whether the timings agree; False if they scatter.
        note: the reason why the weight stays dense, and other remarks.

    >>> row = ModelRow("0.weight", "Linear", 0.1, "CSR", 4096, 900, 3.2)
    >>> row.is_sparse, row.cells()
    (True, ('0.weight', 'Linear', '0.1', 'CSR', '4 KiB', '900 bytes', '3.2x', ''))
    """

    name: str
    module: str
    density: float
    format: str
    bytes_before: int
    bytes_after: int
    speedup: float | None = None
    is_certain: bool = True
    note: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether the weight became sparse."""
        return self.format != "dense"

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the row's cells."""
        speed = "not measured" if self.speedup is None else f"{self.speedup:.2g}x{' uncertain' * (not self.is_certain)}"
        sizes = shown_bytes(self.bytes_before), shown_bytes(self.bytes_after)
        kept = f"{self.density:.3g}"
        return self.name, self.module, kept, self.format, *sizes, speed if self.is_sparse or self.speedup else "", self.note


@dataclass(frozen=True)
class ModelReport:
    """The outcome for each weight that a plan names, as :func:`sparsify_model` reports it; prints as a table.

    ``report[name]`` is the row of a weight.

    Attributes:
        rows: one row for each weight.
        notes: remarks about the model, printed below the table.

    >>> sparse = ModelRow("0.weight", "Linear", 0.1, "CSR", 4096, 900, 3.2)
    >>> print(ModelReport((sparse, ModelRow("1.weight", "Linear", 1, "dense", 64, 64, 0.5, note="slower"))))
    weight    module  density  format  before    after      speed-up
    0.weight  Linear  0.1      CSR     4 KiB     900 bytes  3.2x
    1.weight  Linear  1        dense   64 bytes  64 bytes   0.5x      slower
    1 of 2 weights sparse, 4.06 KiB -> 964 bytes
    """

    rows: tuple[ModelRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def bytes_before(self) -> int:
        """The size of all listed weights before the change, in bytes."""
        return sum(row.bytes_before for row in self.rows)

    @property
    def bytes_after(self) -> int:
        """The size of all listed weights after the change, in bytes."""
        return sum(row.bytes_after for row in self.rows)

    def __getitem__(self, name: str) -> ModelRow:
        return {row.name: row for row in self.rows}[name]

    def __str__(self) -> str:
        table = [HEAD, *(row.cells() for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table]
        count = sum(row.is_sparse for row in self.rows)
        sizes = f"{shown_bytes(self.bytes_before)} -> {shown_bytes(self.bytes_after)}"
        return "\n".join([*lines, f"{count} of {len(self.rows)} weights sparse, {sizes}", *self.notes])


class DrawnMask:
    """A sparsifier with a fixed mask, stored as bits: 1/32 of a float32 weight's memory.

    Other attributes are those of the sparsifier.
    """

    def __init__(self, sparsifier: Sparsifier, mask: torch.Tensor):
        self._sparsifier, self._bits, self._count = sparsifier, np.packbits(mask.numpy()), mask.numel()
        self.kept = int(mask.count_nonzero())

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.numel() != self._count:
            return mask_of(tensor, self._sparsifier)  # another tensor than the weight: the sparsifier raises its own error
        return torch.from_numpy(np.unpackbits(self._bits, count=self._count)).view(torch.bool).reshape(tensor.shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sparsifier, name)


class Settling:
    """Draws a mask for each choice of a plan, or records why the weight stays dense.

    Args:
        optimizers: optimizers whose state has to be convertible.
        calls: the recorded calls of the modules, for timings.
        advise: whether layers that are slower sparse, and tables that are no smaller sparse, stay dense.
    """

    def __init__(self, optimizers: list[Optimizer], calls: dict[torch.nn.Module, ModuleCall] | None, advise: bool):
        self.optimizers, self.calls, self.advise = optimizers, calls, advise
        self.known: dict[Any, SpeedUp] = {}

    def row(self, choice: MatchedWeight) -> ModelRow:
        """Decide on a choice, and return its row of the report.

        Raises:
            NumscorchError: the sparsifier or the format raises it; the error starts with the weight's name.
        """
        if choice.why:
            return dense_row(choice)
        with naming(choice.name), torch.no_grad():
            check_followers(choice.name, choice.parameter, self.optimizers, required=False)
            choice.sparsifier = DrawnMask(choice.sparsifier, _mask(choice.parameter, choice.sparsifier))
            return self._try_sparse(choice)

    def _try_sparse(self, choice: MatchedWeight) -> ModelRow:
        sites, layer = choice.modules(), None
        timed = next((site for site in sites if not isinstance(site.module, TABLE)), sites[0])
        for site in sorted(sites, key=lambda site: site is timed):  # the timed layer is made last
            try:
                layer = converted(site.module, site.key, choice.sparsifier, choice.rule.format)
            except OperandError:
                raise
            except UnsupportedError as error:
                choice.why = str(error)
                return dense_row(choice)
        weight: SparseParameter = getattr(layer, timed.key)
        speed, size = self._speed(choice, timed.module, layer, weight), weight.nbytes
        if self.advise and not choice.rule.always and (why := _why_not(choice, speed, size)):
            choice.why = f"{why}; always=True in its rule makes it sparse"
            return dense_row(choice, speed)
        if not choice.parameter.requires_grad:
            choice.notes.append("frozen, and stays so")
        elif self.optimizers and not optimizers_of(choice.parameter, self.optimizers):
            choice.notes.append("the optimizer doesn't hold it")
        choice.notes += _notes(choice, weight, size)
        stored = float(weight.density), weight.format.name, choice.parameter.nbytes, size
        return ModelRow(choice.name, kind_of(choice.sites[0].module), *stored, speed.ratio, speed.is_certain, "; ".join(choice.notes))

    def _speed(self, choice: MatchedWeight, dense: torch.nn.Module, layer: Any, weight: SparseParameter) -> SpeedUp:
        """Return the speed-up of the sparse layer; equal layers are timed once."""
        if self.calls is None:
            return UNTIMED
        if (call := self.calls.get(dense)) is None:
            choice.notes.append("not called by the example")
            return UNTIMED
        key = type(dense), choice.parameter.shape, weight.dtype, weight.format, round(weight.density, 2), call.key
        if key not in self.known:
            self.known[key] = speed_up(dense, layer, call)
        return self.known[key]


def _why_not(choice: MatchedWeight, speed: SpeedUp, size: int) -> str:
    """Return why a weight should stay dense; empty if it should become sparse.

    The reason is that the sparse layer has a higher median time, or that a sparse table takes no fewer bytes.
    """
    if all(isinstance(site.module, TABLE) for site in choice.modules()):
        dense = choice.parameter.nbytes
        return f"takes {shown_bytes(size)} sparse and {shown_bytes(dense)} dense" if size >= dense else ""
    return "" if speed.ratio is None or speed.ratio >= 1 else f"dense is {1 / speed.ratio:.2g}x faster here"


def _notes(choice: MatchedWeight, weight: SparseParameter, size: int) -> Iterator[str]:
    """Yield notes if the stored entries differ from the requested ones, or if the sparse weight takes more bytes than the dense one."""
    sparsifier: Any = choice.sparsifier
    blocks = getattr(sparsifier, "b0", 1), getattr(sparsifier, "b1", 1)
    kept, wanted = sparsifier.kept / max(weight.numel(), 1), 1 - getattr(sparsifier, "fraction", 0.0)
    if any(extent % block for extent, block in zip(weight.shape, blocks, strict=True)) and kept > LARGER * wanted:
        shares = f"{100 * kept:.0f} % of the entries instead of {100 * wanted:.0f} %"
        yield f"keeps {shares}: blocks of {blocks} do not divide {tuple(weight.shape)}"
    if more := padding_note(weight.nnz, sparsifier.kept):
        yield f"{more}; training fills them" if choice.parameter.requires_grad else more
    if size > choice.parameter.nbytes:
        yield "takes more bytes than dense"


def padding_note(stored: int, kept: int) -> str:
    """Say how many entries a format adds to those that a sparsifier keeps; empty below 1 %.

    >>> padding_note(158, 100), padding_note(8, 0), padding_note(100, 100)
    ('stores 58 % more entries than the sparsifier keeps', 'stores 8 more entries than the sparsifier keeps', '')
    """
    if stored <= 1.01 * kept:
        return ""
    share = f"{100 * (stored / kept - 1):.0f} %" if kept else str(stored)
    return f"stores {share} more entries than the sparsifier keeps"


def dense_row(choice: MatchedWeight, speed: SpeedUp = UNTIMED) -> ModelRow:
    """Return the row of a weight that stays unchanged."""
    weight, why = choice.parameter, "; ".join([choice.why, *choice.notes])
    stored = (float(weight.density), weight.format.name) if isinstance(weight, SparseParameter) else (1.0, "dense")
    size = 0 if isinstance(weight, torch.nn.parameter.UninitializedParameter) else weight.nbytes
    return ModelRow(choice.name, kind_of(choice.sites[0].module), *stored, size, size, speed.ratio, speed.is_certain, why)


def kind_of(module: torch.nn.Module) -> str:
    """Return the name of a module's class; for a private class of torch, that of its public base class.

    >>> kind_of(torch.nn.MultiheadAttention(4, 2).out_proj)
    'Linear'
    """
    names = ((kind.__name__, kind.__module__) for kind in type(module).__mro__)
    return next(name for name, home in names if hasattr(torch.nn, name) or not home.startswith("torch."))


def _mask(weight: torch.Tensor, sparsifier: Sparsifier) -> torch.Tensor:
    """Return the mask of a weight as a matrix.

    Raises:
        OperandError: the weight has NaN, even if the sparsifier would accept it.
    """
    matrix = weight.detach().flatten(1)
    if matrix.is_floating_point() and has_nan(matrix):
        at = tuple(weight.isnan().nonzero()[0].tolist())
        raise OperandError(f"the weight has NaN at {at}, which cannot be compared: replace it, as with nan_to_num()")
    return mask_of(matrix, sparsifier)
