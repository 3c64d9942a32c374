"""Compilation ahead of the first step: run a module or function once, on sample inputs."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from ..codegen.kernel import jit_is_disabled
from ..errors import OperandError, UnsupportedError
from ..machine.compile_log import counts


@dataclass(frozen=True, slots=True, repr=False)
class Warmed:
    """The result of :func:`warm`: the numbers of kernels compiled and loaded from the cache folder, and the total time in seconds.

    >>> Warmed(compiled=3, loaded=1, seconds=2.514)
    <warm: 3 kernels compiled, 1 loaded, 2.5 s>
    """

    compiled: int
    loaded: int
    seconds: float

    def __repr__(self) -> str:
        return f"<warm: {self.compiled} kernel{'' if self.compiled == 1 else 's'} compiled, {self.loaded} loaded, {self.seconds:.1f} s>"


def warm(call: Callable[..., Any], /, *inputs: Any, **kwargs: Any) -> Warmed:
    """Compile or load the kernels of a module or function by running forward and backward once.

    A module also runs forward in evaluation mode, after ``eval()`` and within ``torch.no_grad()``. Backward runs for results that require
    grad; within ``torch.no_grad()``, only forward runs. Kernels depend on formats, data types and rough sizes, so pass inputs like those
    of the first step.

    Parameters, buffers, gradients, the training mode, and the random states of torch, numpy and Python don't change: a copy of the module
    runs. For a function, the tensors of modules in its closure, globals and bound arguments are restored afterwards.

    Args:
        call: the module or a function, for example one that computes a loss.
        inputs: the positional arguments.
        kwargs: the keyword arguments.

    Returns:
        An object with ``compiled`` and ``loaded``, the numbers of kernels compiled and loaded from disk (0 if this process already has
        them), and ``seconds``, the total time.

    Raises:
        OperandError: ``call`` is neither a module nor a function.
        UnsupportedError: the module can't be copied, or NUMBA_DISABLE_JIT is set.

    >>> import numscorch as ns
    >>> layer = ns.nn.SparseLinear(8, 4, density=0.5)
    >>> report = ns.warm(layer, torch.rand(2, 8))
    >>> layer.weight.values.grad is None
    True
    >>> ns.warm(layer, torch.rand(2, 8))
    <warm: 0 kernels compiled, 0 loaded, 0.0 s>
    """
    if isinstance(call, type):
        raise OperandError(f"warm takes a module, not the class {call.__name__}: make one, as in ns.warm({call.__name__}(...), x)")
    if not callable(call):
        raise OperandError(
            f"warm takes a module or a function, not {type(call).__name__}: pass the module or function first, then its inputs, as in "
            "ns.warm(model, x)"
        )
    if jit_is_disabled():
        raise UnsupportedError("NUMBA_DISABLE_JIT is set, so nothing is compiled: unset it")
    started, ready, compiled = time.perf_counter(), counts.ready, counts.compiled
    with _random_states(), _restored(_modules_of(call)):
        copied = _copied(call)
        _run(copied, *pytree.tree_map_only(torch.Tensor, _detached, (inputs, kwargs)))
        if isinstance(copied, Module):
            with torch.no_grad():
                _forward(copied.eval(), inputs, kwargs, "while ns.warm ran evaluation: pass lambda x: model(x) for training alone")
    new = counts.compiled - compiled
    return Warmed(new, max(counts.ready - ready - new, 0), time.perf_counter() - started)


def _run(call: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Run forward, and backward for all results that require grad."""
    note = "while ns.warm ran forward: it takes the inputs of the first step, as in ns.warm(model, x, edge_index)"
    result = _forward(call, inputs, kwargs, note)
    results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    leaves = _leaves(results)
    if leaves:  # returns gradients instead of accumulating them; retain_graph keeps graphs of the caller
        torch.autograd.grad(results, leaves, [torch.ones_like(output) for output in results], retain_graph=True, allow_unused=True)


def _forward(call: Callable[..., Any], inputs: Sequence[Any], kwargs: Mapping[str, Any], note: str) -> Any:
    """Call a function, and add a note to its errors."""
    try:
        return call(*inputs, **kwargs)
    except Exception as error:
        error.add_note(note)
        raise


def _copied(call: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a module or of a bound method's module; other functions are returned unchanged."""
    owner = getattr(call, "__self__", None)
    if isinstance(owner, Module) and isinstance(call, MethodType):
        return MethodType(call.__func__, _copied(owner))
    if not isinstance(call, Module):
        return call
    try:
        return copy.deepcopy(call)
    except Exception as error:
        raise UnsupportedError(
            f"warm runs a copy of the module, but {type(call).__name__} can't be copied ({error}): pass a function, as in "
            "ns.warm(lambda x: model(x), x)"
        ) from error


def _modules_of(call: Any) -> list[Module]:
    """The modules in a function's closure, globals, defaults and bound arguments."""
    if isinstance(call, functools.partial):
        bound = [value for value in (*call.args, *call.keywords.values()) if isinstance(value, Module)]
        return [*bound, *_modules_of(call.func)]
    if isinstance(call, Module) or not inspect.isfunction(call):
        return []
    variables = inspect.getclosurevars(call)
    values = (*variables.nonlocals.values(), *variables.globals.values(), *(call.__defaults__ or ()), *(call.__kwdefaults__ or {}).values())
    return [value for value in values if isinstance(value, Module)]


@contextmanager
def _restored(modules: Sequence[Module]) -> Iterator[None]:
    """Restore the parameters, buffers, gradients and training modes of modules afterwards."""
    owned = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    tensors = [tensor for tensor in {id(value): value for value in owned}.values() if not is_lazy(tensor) and not tensor.is_inference()]
    states = [(tensor, tensor._version, tensor.detach().clone(), tensor.grad) for tensor in tensors]
    modes = [(part, part.training) for module in modules for part in module.modules()]
    for tensor in tensors:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, version, values, gradient in states:
            if tensor._version != version or not torch.equal(tensor, values):  # batch statistics change without a new version
                with torch.no_grad():
                    tensor.copy_(values)
            tensor.grad = gradient
        for part, mode in modes:
            part.training = mode


@contextmanager
def _random_states() -> Iterator[None]:
    """Restore the random states of torch, numpy and Python afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _leaves(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaf tensors of the results' autograd graphs."""
    nodes: set[Any] = set()
    waiting: list[Any] = [result.grad_fn for result in results]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [following for following, _ in node.next_functions]
    leaves = [result for result in results if result.is_leaf] + [node.variable for node in nodes if hasattr(node, "variable")]
    return list({id(leaf): leaf for leaf in leaves}.values())
