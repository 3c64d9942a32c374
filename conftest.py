"""Doctests of public classes and functions run in the file that defines them, whose names their examples use.

``__module__`` names the module in which users find them, and doctest goes by that.
"""

from __future__ import annotations

import doctest
import inspect
from types import FunctionType, ModuleType

PUBLIC = {"numscorch", "numscorch.nn", "numscorch.sparsify"}


def defining_module(value: type | FunctionType) -> str:
    """The module of the file that defines a class or a function; ``__module__`` of a class without methods."""
    if isinstance(value, type):
        methods = (member for member in vars(value).values() if isinstance(member, FunctionType))
        modules = (str(method.__globals__["__name__"]) for method in methods)
        return next((name for name in modules if name.startswith("numscorch")), value.__module__)
    return str(inspect.unwrap(value).__globals__["__name__"])


def is_from_module(finder: doctest.DocTestFinder, module: ModuleType, value: object) -> bool:
    """Whether a module defines an object."""
    if isinstance(value, type | FunctionType) and value.__module__ in PUBLIC:
        return defining_module(value) == module.__name__
    return bool(original(finder, module, value))


original = doctest.DocTestFinder._from_module  # type: ignore[attr-defined]
doctest.DocTestFinder._from_module = is_from_module  # type: ignore[attr-defined]
