"""Run doctests of public classes and functions in their defining module, whose names the examples use.

By default, doctest uses ``__module__``, which names the public module.
"""

from __future__ import annotations

import doctest
import inspect
from types import FunctionType, ModuleType

PUBLIC = {"numscorch", "numscorch.nn", "numscorch.sharding", "numscorch.sparsify"}


def defining_module(value: type | FunctionType) -> str:
    """Name of the module that defines a class or a function; ``__module__`` for classes without methods."""
    if isinstance(value, type):
        methods = (member for member in vars(value).values() if isinstance(member, FunctionType))
        modules = (str(method.__globals__["__name__"]) for method in methods)
        return next((name for name in modules if name.startswith("numscorch")), value.__module__)
    return str(inspect.unwrap(value).__globals__["__name__"])


def is_from_module(finder: doctest.DocTestFinder, module: ModuleType, value: object) -> bool:
    """Whether a module defines an object; replaces the method of doctest."""
    if isinstance(value, type | FunctionType) and value.__module__ in PUBLIC:
        return defining_module(value) == module.__name__
    return bool(original(finder, module, value))


original = doctest.DocTestFinder._from_module  # type: ignore[attr-defined]
doctest.DocTestFinder._from_module = is_from_module  # type: ignore[attr-defined]
