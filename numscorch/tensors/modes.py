"""torch's modes and transforms: index arrays and cached values are made outside of them, and tracing is refused."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from ..errors import UnsupportedError

T = TypeVar("T")
in_transform = torch._C._are_functorch_transforms_active  # whether a torch.func transform, such as vmap, is active
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # the number of active TorchDispatchModes
function_modes: Callable[[], int] = torch._C._len_torch_function_stack  # of active TorchFunctionModes, such as a default device
is_traced_by_jit = torch._C._is_tracing
includes_key, BEFORE_DISPATCH = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
is_inference = torch.is_inference_mode_enabled
KEY = torch._C._TorchDispatchModeKey
TRACERS = {KEY.PROXY: "make_fx", KEY.FAKE: "FakeTensorMode", KEY.FUNCTIONAL: "FunctionalTensorMode"}
PYTHONS_OWN: dict[tuple[Any, str], Any] = {(builtins, "max"): max, (builtins, "min"): min, (math, "pow"): math.pow}
unpack_dual: Any = torch._VF._unpack_dual  # that of forward_ad reads its _current_level; torch has no other level than 0
FUNCTIONALIZE = torch._C._functorch.TransformType.Functionalize


def without_autocast() -> AbstractContextManager[Any]:
    """A context in which operands keep their data types."""
    return torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()


def outside_dispatch_modes() -> AbstractContextManager[Any]:
    """A context without the modes that see each operator."""
    if not dispatch_modes():
        return nullcontext()
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@contextmanager
def _without_level() -> Iterator[None]:
    level, forward_ad._current_level = forward_ad._current_level, -1
    try:
        yield
    finally:
        forward_ad._current_level = level


def outside_forward_mode() -> AbstractContextManager[Any]:
    """A context without forward-mode AD, for operators that torch's dispatcher calls without tangents."""
    return nullcontext() if forward_ad._current_level < 0 else _without_level()


@contextmanager
def outside_modes() -> Iterator[None]:
    """Leave torch.func's transforms, inference mode, and modes that see each operator; new tensors then belong to none of them."""
    with ExitStack() as stack:
        if in_transform():
            from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack  # lazy: slow to import

            stack.enter_context(temporarily_clear_interpreter_stack())
        stack.enter_context(outside_dispatch_modes())
        if is_inference():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        yield


def is_forward(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether forward-mode AD is active; programs of Dynamo enter its level without changing ``forward_ad._current_level``."""
    if forward_ad._current_level >= 0:
        return True
    if torch._C._get_dispatch_mode(KEY.PROXY) is not None:  # make_fx would record _unpack_dual
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing  # lazy: slow to import

        with disable_proxy_modes_tracing():
            return any(map(_has_tangent, tensors))
    return any(map(_has_tangent, tensors))


def _has_tangent(tensor: torch.Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and unpack_dual(tensor, level=0)[1] is not None


def is_nested(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether derivatives are nested: a tensor within a transform of torch.func also requires grad, or has a tangent, outside of it."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    if [level.key() for level in stack].count(torch._C._functorch.TransformType.Jvp) > (len(stack) == 1):
        return len(stack) > 1
    while wrapped := [tensor for tensor in tensors if is_functorch_wrapped_tensor(tensor)]:
        tensors = list(map(get_unwrapped, wrapped))
        if any(tensor.requires_grad for tensor in tensors):
            return True
    return False


def within_transform() -> AbstractContextManager[Any]:
    """A context for autograd functions of one level, which torch's dispatcher calls within transforms of torch.func."""
    if not in_transform():
        return nullcontext()
    from torch._functorch.utils import enable_single_level_autograd_function  # lazy: slow to import

    return enable_single_level_autograd_function()


@contextmanager
def recording() -> Iterator[None]:
    """A context in which autograd records, also where torch's dispatcher has passed it, as in the operators of compiled programs."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.ADInplaceOrView):
        excluded = excluded - torch._C.DispatchKeySet(key)
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.inference_mode(False), torch.enable_grad():
        yield


def made_outside(compute: Callable[[], T]) -> T:
    """Call ``compute`` outside of torch's modes and transforms.

    >>> with torch.inference_mode():
    ...     made_outside(lambda: torch.ones(2)).is_inference()
    False
    """
    if not (in_transform() or is_inference() or dispatch_modes()):
        return compute()
    with outside_modes():
        return compute()


def on_cpu(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function with the CPU as the default device, because kernels read the tensors that it makes.

    >>> with torch.device("meta"):
    ...     torch.ones(2).device.type, on_cpu(torch.ones, 2).device.type
    ('meta', 'cpu')
    """
    if not function_modes() or not any(  # torch.get_default_device would run operators, which other function modes record
        isinstance(mode, DeviceContext) and mode.device.type != "cpu" for mode in _get_current_function_mode_stack()
    ):
        return function(*args, **kwargs)
    with torch.device("cpu"):
        return function(*args, **kwargs)


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with memory inside the wrappers of torch.func's transforms; under ``vmap``, it holds the whole batch."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def unlifted(tensor: torch.Tensor) -> torch.Tensor:
    """An index tensor without the wrappers of torch.func's transforms, which only derivatives need.

    Raises:
        UnsupportedError: ``vmap`` batches the tensor, so that it has no single pattern.
    """
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            raise UnsupportedError(
                "a pattern within vmap, from a tensor that vmap batches: a batch shares one pattern, so make it outside of vmap, and "
                "pass the batch as values, as in vmap(lambda values: A.with_values(values) @ x)"
            )
        tensor = get_unwrapped(tensor)
    return tensor


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A NumPy view of a tensor of indices, also within torch.func's transforms.

    Raises:
        UnsupportedError: ``vmap`` batches the tensor.

    >>> as_numpy(torch.arange(3))
    array([0, 1, 2])
    """
    if not (in_transform() or dispatch_modes()):
        return tensor.numpy()
    with outside_modes():
        return unlifted(tensor).numpy()


def lasting(array: torch.Tensor) -> torch.Tensor:
    """The index array as a tensor without wrappers of torch.func's transforms that is no inference tensor; shares the memory."""
    array = unlifted(array) if in_transform() else array
    return made_outside(lambda: torch.from_numpy(array.numpy())) if array.is_inference() else array


def may_be_traced() -> bool:
    """Whether a mode is active that may record operators, such as ``torch.jit.trace`` or a TorchDispatchMode."""
    return bool(dispatch_modes() or is_traced_by_jit() or includes_key(BEFORE_DISPATCH))


def recorder() -> str | None:
    """The name of the active mode that records torch's operators or computes only shapes; None if there is none."""
    if is_traced_by_jit():
        return "torch.jit.trace"
    if dispatch_modes():
        return next((name for key, name in TRACERS.items() if torch._C._get_dispatch_mode(key) is not None), None)
    if includes_key(BEFORE_DISPATCH):
        return "make_fx(pre_dispatch=True)"
    is_functional = in_transform() and FUNCTIONALIZE in [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    return "torch.func.functionalize" if is_functional else None


def lifted(arrays: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors for a recorded program; real tensors become fake ones if a FakeTensorMode is active.

    Raises:
        UnsupportedError: ``make_fx`` records fake tensors only.
    """
    mode = torch._C._get_dispatch_mode(KEY.FAKE)
    if mode is None:
        return arrays
    if torch._C._get_dispatch_mode(KEY.PROXY) is None:
        return [array if mode.is_our_fake(array) else mode.from_tensor(array) for array in arrays]
    if not mode.allow_non_fake_inputs and any(type(innermost(array)) in (torch.Tensor, Parameter) for array in arrays):
        raise UnsupportedError(
            "a SparseTensor within make_fx with fake tensors: its index arrays are real tensors, so write make_fx(function, "
            "tracing_mode=..., _allow_non_fake_inputs=True)"
        )
    return arrays


@contextmanager
def as_if_running() -> Iterator[None]:
    """Compute with real tensors while torch compiles a program; random numbers stay those of the program.

    ``torch.export`` replaces some of Python's functions, which Numba reads when it compiles its first kernel.
    """
    was_compiling, replaced = torch.compiler._is_compiling_flag, {place: getattr(*place) for place in PYTHONS_OWN}
    torch.compiler._is_compiling_flag = False
    try:
        for place, function in PYTHONS_OWN.items():
            setattr(*place, function)
        with outside_modes(), torch.random.fork_rng(devices=[]):  # no torch.no_grad(), which torch.export would record
            yield
    finally:
        torch.compiler._is_compiling_flag = was_compiling
        for place, function in replaced.items():
            setattr(*place, function)


def check_not_traced() -> None:
    """Refuse modes that record torch's operators: the recorded program would lack the kernel.

    Raises:
        UnsupportedError: ``make_fx``, ``FakeTensorMode``, ``functionalize``, ``torch.jit.trace`` or a similar mode is active.
    """
    if (tracer := recorder()) == "make_fx" and forward_ad._current_level >= 0:
        raise UnsupportedError(
            "a kernel of numscorch within torch.func.linearize or make_fx, which records torch's operators only: use torch.func.jvp for "
            "each tangent, as in torch.func.jvp(function, (x,), (tangent,))"
        )
    if tracer is not None:
        raise UnsupportedError(
            f"a kernel of numscorch within {tracer}, which records torch's operators only: use torch.compile or torch.export, which know "
            "its operators, as in torch.compile(lambda y: torch.matmul(A, y))"
        )


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor of a subclass to a plain one that shares memory and gradient; return other tensors unchanged.

    Raises:
        UnsupportedError: the subclass computes in ``__torch_dispatch__``, so its memory may not hold its values (fake tensors).

    >>> class Named(torch.Tensor): ...
    >>> type(plain_tensor(torch.ones(2).as_subclass(Named)))
    <class 'torch.Tensor'>
    """
    kind = type(tensor)
    if kind is torch.Tensor or kind is Parameter or torch.compiler.is_compiling():
        return tensor
    if kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        raise UnsupportedError(
            f"a {kind.__name__} is a tensor whose operators its class computes, so that kernels cannot read its values: pass a plain "
            "torch.Tensor, or trace the program with torch.compile"
        )
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)
