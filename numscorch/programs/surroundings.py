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


class Unknown(Exception):
    """A function reads an object that may change undetected."""


def surroundings(function: Any) -> tuple[Hashable, ...] | None:
    """Return the globals, defaults and captured values that a function reads, if they are scalars, strings, functions or libraries.

    Returns None if the function reads other objects, because these may change undetected.
    """
    values: list[Hashable] = []
    try:
        _collect(function, values, set())
    except (Unknown, ValueError):  # ValueError: a captured variable has no value
        return None
    return tuple(values)


def _collect(value: Any, values: list[Hashable], seen: set[int]) -> None:
    """Append a value and what it reads; ``seen`` holds the ids of visited functions."""
    if isinstance(value, SCALARS):
        values += type(value), value  # type: ignore[arg-type]  # all types of the union are hashable
    elif type(value) is tuple:
        values += tuple, len(value)
        for entry in value:
            _collect(entry, values, seen)
    elif _is_library(value):
        values.append(value)
    else:
        function = value.function if isinstance(value, Wrapper) else value
        values.append(function)
        if id(function) not in seen:
            seen.add(id(function))
            for read in _read_by(function):
                _collect(read, values, seen)


def _read_by(function: Any) -> list[Any]:
    """Return the globals, captured values, defaults and attributes that a function reads."""
    if not isinstance(function, FunctionType):
        raise Unknown
    read = [function.__globals__[name] for name in _names_in(function.__code__) if name in function.__globals__]
    read += [cell.cell_contents for cell in function.__closure__ or ()]
    return [*read, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *function.__dict__.values()]


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
def _names_in(code: CodeType) -> list[str]:
    """Return the names of globals and attributes in a function's code, nested functions included.

    Raises:
        Unknown: the code imports a module that is not a library, or names a function whose result changes between calls.
    """
    imported = [step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"]
    if not all(map(_is_home, imported)) or not CHANGING.isdisjoint(code.co_names):
        raise Unknown
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names_in(const)]
    return list(dict.fromkeys([*code.co_names, *inner]))
