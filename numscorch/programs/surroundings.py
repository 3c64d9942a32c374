"""Determine what a function reads besides its arguments, by inspecting it without running it."""

from __future__ import annotations

import dis
from collections.abc import Callable, Hashable
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

SCALARS = (int, float, complex, str, bytes, bool, type(None), torch.dtype)
LIBRARIES = ("builtins", "functools", "math", "numscorch", "operator", "torch", "typing")
# Library functions whose results change between calls and which torch function modes do not intercept.
READING = ("__import__", "eval", "exec", "globals", "input", "locals", "open", "vars")
CHANGING = frozenset((*READING, "get_default_dtype", "get_num_threads", "get_rng_state", "initial_seed", "seed"))


class Wrapper:
    """Base class of callables that wrap a ``function``."""

    function: Callable[..., Any]


def surroundings(function: Any, seen: set[int]) -> tuple[Hashable, ...] | None:
    """Return the globals, defaults and captured values that a function reads, if they are scalars, strings, functions or libraries.

    Returns None if the function reads other objects, because these may change undetected. ``seen`` holds the ids of visited functions.
    """
    if isinstance(function, Wrapper):
        function = function.function
    if id(function) in seen:
        return ()
    seen.add(id(function))
    if not isinstance(function, FunctionType) or (names := _names_in(function.__code__)) is None:
        return None
    read = [function.__globals__[name] for name in names if name in function.__globals__]
    try:
        read += [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # an empty cell
        return None
    read += (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *function.__dict__.values())
    return _all_of(read, seen)


def _all_of(values: list[Any] | tuple[Any, ...], seen: set[int]) -> tuple[Hashable, ...] | None:
    surroundings: list[Hashable] = []
    for value in values:
        inner = _surrounding(value, seen)
        if inner is None:
            return None
        surroundings += inner
    return tuple(surroundings)


def _surrounding(value: Any, seen: set[int]) -> tuple[Hashable, ...] | None:
    if isinstance(value, SCALARS):
        return type(value), value  # type: ignore[return-value]  # all types of the union are hashable
    if type(value) is tuple:
        return (tuple, len(value), *inner) if (inner := _all_of(value, seen)) is not None else None
    if _is_library(value):
        return (value,)
    return (value, *inner) if (inner := surroundings(value, seen)) is not None else None


def _is_library(value: Any) -> bool:
    """Return whether a value is a module, class or function of a library; bound methods of objects do not count."""
    match value:
        case ModuleType():
            return _is_home(value.__name__)
        case BuiltinFunctionType():
            return isinstance(value.__self__, ModuleType | type | None) and _is_home(value.__module__) and value.__name__ not in CHANGING
        case FunctionType():  # also check the globals' module, because functools.wraps overwrites __module__
            return _is_home(value.__module__) and _is_home(value.__globals__.get("__name__")) and value.__name__ not in CHANGING
        case type():
            return _is_home(value.__module__)
    return False


def _is_home(module: str | None) -> bool:
    return str(module).partition(".")[0].lstrip("_") in LIBRARIES


@lru_cache(maxsize=1024)
def _names_in(code: CodeType) -> list[str] | None:
    """Return the names of globals and attributes in a function's code, nested functions included.

    Returns None if the code imports a module that is not a library, or names a function whose result changes between calls.
    """
    imported = [step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"]
    if not all(map(_is_home, imported)) or not CHANGING.isdisjoint(code.co_names):
        return None
    names = dict.fromkeys(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if (inner := _names_in(const)) is None:
                return None
            names |= dict.fromkeys(inner)
    return list(names)
