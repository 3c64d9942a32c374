"""Corrections of torch's Dynamo, which reads the operators of Python in the programs that torch compiles.

This is the only file that changes objects of torch. Dynamo is imported when torch first compiles, because the import takes a second;
the corrections are made then.

* Dynamo calls the reversed method if the first operand is no tensor: ``A - x`` becomes ``x.__rsub__(A)``. It lacks the entry for ``@``
  (torch 2.13), so that ``A @ x`` would become ``x @ A``.
* It does not call ``__matmul__`` of two objects that are no tensors, as in ``A @ A``.
* It refuses modules with a buffer that is no tensor, as ``register_buffer("A", A)`` makes them.
* ``torch.sparse.mm``, and in some processes others, are missing in its set of functions that objects can override.
* At each call of a program it checks each global variable of numscorch that the program has read, about a hundred for ``A @ x`` (torch
  2.13), but no variable of Python's standard library. The variables of numscorch are constants, too, except for registered sparsifiers.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
OVERRIDABLE: set[Any] = set()  # torch's functions that take SparseTensors; filled by the package operators
PACKAGE = "torch._dynamo"
corrected = {"@": False}  # whether the operands of @ keep their order; a dictionary, because other files read it


def skipped(function: F) -> F:
    """Mark a function that Dynamo must not compile, and all that it calls, where it runs within or after a compiled function."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy") and hasattr(frames, "_FrameExecStrategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def constant(function: F) -> F:
    """Mark a function whose result compiled programs contain as a constant: torch.compiler.assume_constant_result imports Dynamo.

    Dynamo does not compile it where it runs after a graph break.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return skipped(function)


def correct() -> None:
    """Make the corrections that this version of torch needs; where it has other names, ``@`` stays refused while torch compiles."""
    from torch._dynamo import decorators, symbolic_convert
    from torch._dynamo.variables import builtin, torch as functions

    if (is_fixed := getattr(symbolic_convert, "is_stdlib", None)) is not None:
        symbolic_convert.is_stdlib = lambda mod: bool(is_fixed(mod) or _has_constants(mod))
    reversed_methods = getattr(builtin, "BUILTIN_TO_TENSOR_RFN_MAP", None)
    if reversed_methods is None or not hasattr(builtin, "populate_builtin_to_tensor_fn_map"):
        return
    builtin.populate_builtin_to_tensor_fn_map()
    reversed_methods.setdefault(operator.matmul, torch.Tensor.__rmatmul__)
    corrected["@"] = True
    if (operators := getattr(builtin.BuiltinVariable, "_binops", None)) is not None:
        operators().setdefault(operator.matmul, (["__matmul__", "__rmatmul__", "__imatmul__"], operator.imatmul))
    decorators.mark_static_address = _marking(decorators.mark_static_address)
    if (overridable := getattr(functions, "get_overridable_functions", None)) is not None:
        overridable().update(OVERRIDABLE)


def _has_constants(module: Any) -> bool:
    """Whether programs may read the global variables of a module as constants.

    They read no variable of numscorch that changes, except registered sparsifiers. ``HANDLERS`` grows when ``sharding`` is imported, but a
    program is compiled for the classes of its operands, and a later entry is for another class.

    >>> import math, numscorch.operators.products, numscorch.sparsifiers.base
    >>> [_has_constants(module) for module in (math, numscorch.operators.products, numscorch.sparsifiers.base)]
    [False, True, False]
    """
    package, *names = getattr(module, "__name__", "").split(".")
    return package == __name__.partition(".")[0] and names[:1] != ["sparsifiers"]


def _marking(mark: Callable[..., None]) -> Callable[..., None]:
    """The function that Dynamo calls for each buffer of a module, also for buffers that are SparseTensors."""

    def mark_static_address(t: Any, guard: bool = False) -> None:
        for tensor in [t] if isinstance(t, torch.Tensor) or not hasattr(t, "pattern") else [t._values]:
            mark(tensor, guard)

    return mark_static_address


class _Finder(MetaPathFinder):
    """Finds Dynamo as Python does, and makes the corrections after its import."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of the package, whose loader makes the corrections; None for other modules."""
        if fullname != PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                correct()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def correct_on_import() -> None:
    """Make the corrections now, or after Dynamo is imported."""
    if PACKAGE in sys.modules:
        correct()
    else:
        sys.meta_path.insert(0, _Finder())
