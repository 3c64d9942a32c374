"""Which layers are faster sparse, on this machine and for inputs of the size that a model sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import OperandError
from ..measuring.intervals import ratio_of_medians
from ..measuring.turns import DISTURBED
from ..sparsifiers.names import described

Module = torch.nn.Module
SECONDS, ROUNDS = 0.1, 5  # what one comparison takes about, and how often each side runs at least


@dataclass(frozen=True)
class ModuleCall:
    """What a module was called with; of floating-point tensors only sizes are kept."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Such arguments, with random numbers."""

        def filled(value: Any) -> Any:
            is_kept = isinstance(value, torch.Tensor) and value.device.type == "meta"
            return torch.randn(value.shape, generator=generator).to(value.dtype) if is_kept else value

        args, kwargs = pytree.tree_map(filled, (self.args, self.kwargs))
        return args, kwargs

    @property
    def key(self) -> str:
        """The same for calls that take the same time."""
        return repr(pytree.tree_map(_size, (self.args, self.kwargs)))


def _size(value: Any) -> Any:
    """What a time depends on."""
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value


def _kept(value: Any) -> Any:
    """What is remembered of an argument: indices, which have to be ones there are, and otherwise no numbers."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_like(value, device="meta") if value.is_floating_point() else value.detach()


def calls_of(model: Module, modules: Iterable[Module], example_inputs: Any) -> dict[Module, ModuleCall]:
    """Run a model once, and see what some of its modules are called with first.

    The model runs in evaluation mode and without gradients; its hooks are called, too.

    Raises:
        OperandError: the model does not run with these inputs.
    """
    seen: dict[Module, ModuleCall] = {}

    def look(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module not in seen:
            seen[module] = ModuleCall(*pytree.tree_map(_kept, (args, kwargs)))

    handles = [module.register_forward_pre_hook(look, with_kwargs=True) for module in _called(model, set(modules))]
    try:
        with evaluated(model), torch.no_grad(), torch.random.fork_rng(devices=()), _called_one_by_one():
            _run(model, example_inputs)
    finally:
        for handle in handles:
            handle.remove()
    for module in list(seen):
        if isinstance(module, torch.nn.MultiheadAttention):  # which reads its output projection, of such tensors, and doesn't call it
            seen[module.out_proj] = ModuleCall(seen[module].args[:1] or (seen[module].kwargs["query"],), {})
    return seen


def _called(model: Module, modules: set[Module]) -> list[Module]:
    """The modules to look at: an attention in the place of its output projection."""
    return [
        module
        for module in model.modules()
        if module in modules or (isinstance(module, torch.nn.MultiheadAttention) and module.out_proj in modules)
    ]


def _run(model: Module, example_inputs: Any) -> None:
    """Call a model with a tensor, or a tuple or dict of arguments.

    Raises:
        OperandError: the model raises an error.
    """
    try:
        if isinstance(example_inputs, dict):
            model(**example_inputs)
        elif isinstance(example_inputs, tuple | list):
            model(*example_inputs)
        else:
            model(example_inputs)
    except Exception as error:  # whatever the model raises
        given = ", ".join(map(described, pytree.tree_leaves(example_inputs)))
        raise OperandError(
            f"the model does not run with example_inputs ({given}): {type(error).__name__}: {error}\n"
            "  give what the model takes: a tensor, or a tuple or dict of arguments"
        ) from error


@contextmanager
def _called_one_by_one() -> Iterator[None]:
    """torch's fused encoder layer doesn't call the modules it is made of."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def evaluated(model: Module) -> Iterator[None]:
    """Evaluation mode, and afterwards the mode in which each module was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class SpeedUp:
    """How many times faster something is, and whether its timings tell: on a busy machine they scatter."""

    ratio: float
    is_certain: bool = True


def speed_up(dense: Module, sparse: Module, call: ModuleCall) -> SpeedUp:
    """How many times faster the forward pass of the sparse module is; the two run in turns."""
    args, kwargs = call.again(torch.Generator().manual_seed(0))
    with torch.no_grad(), evaluated(dense), evaluated(sparse), torch.random.fork_rng(devices=()):
        return ratio(lambda: dense.forward(*args, **kwargs), lambda: sparse.forward(*args, **kwargs))  # no hooks are called


def ratio(first: Callable[[], object], second: Callable[[], object]) -> SpeedUp:
    """The time of a function over that of another one, once both have compiled what they need.

    >>> ratio(lambda: 1, lambda: 2).ratio > 0
    True
    """
    for call in (first, second) * 2:
        call()
    times: tuple[list[float], list[float]] = [], []
    started = time.perf_counter()
    while len(times[1]) < ROUNDS or time.perf_counter() - started < SECONDS:
        for seconds, call in zip(times, (first, second), strict=True):
            before = time.perf_counter()
            call()
            seconds.append(max(time.perf_counter() - before, 1e-9))
    return compared(*times)


def compared(first: Sequence[float], second: Sequence[float]) -> SpeedUp:
    """The ratio of the median times of turns.

    It is uncertain where its confidence interval includes 1, or where the median call of a side took more than twice as long as
    its fastest one.

    >>> compared([2.0, 2.1, 2.2], [1.0, 1.0, 1.1])
    SpeedUp(ratio=2.1, is_certain=True)
    >>> compared([2.0, 2.1, 0.2], [1.0, 1.0, 1.1]).is_certain
    False
    """
    between = ratio_of_medians(first, second)
    scatters = any(median(seconds) > DISTURBED * min(seconds) for seconds in (first, second))
    return SpeedUp(between.ratio, not scatters and not between.low <= 1 <= between.high)
