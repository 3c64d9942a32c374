"""Timings of dense and sparse layers on this machine, for inputs of the sizes that a model's layers get."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import OperandError
from ..measuring.turns import DISTURBED, in_turns, ratio_of_medians
from ..sparsifiers.base import described

Module = torch.nn.Module
SECONDS = 0.1  # minimum duration of a comparison; slow layers take at most ten times as long


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


def calls_of(model: Module, modules: Iterable[Module], example_inputs: Any) -> dict[Module, ModuleCall]:
    """Run a model once, and record the first call of each of the ``modules``.

    The model runs in evaluation mode without gradients; its hooks are called.

    Raises:
        OperandError: the model does not run with these inputs.
    """
    seen: dict[Module, ModuleCall] = {}

    def record(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


def _run(model: Module, example_inputs: Any) -> None:
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
def evaluated(model: Module) -> Iterator[None]:
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


def speed_up(dense: Module, sparse: Module, call: ModuleCall) -> SpeedUp:
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
