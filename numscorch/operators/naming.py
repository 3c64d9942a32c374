"""Look up torch's functions by name, name and document generated functions, and set the modules that public names claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn import functional


def torchs(name: str) -> Callable[..., Any]:
    """torch's function of this name, or torch.nn.functional's."""
    return getattr(torch, name, None) or getattr(functional, name)


def with_name(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    """The function itself, renamed and documented."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def publish(module: Mapping[str, Any]) -> None:
    """Make classes and functions in a module's ``__all__`` claim to be defined there.

    Pickles refer to a class by its module. The public module stays valid when files are reorganized.
    """
    for name in module["__all__"]:
        if isinstance(value := module.get(name), type | FunctionType):
            value.__module__ = module["__name__"]


def fallback(module: Mapping[str, Any], torch_module: ModuleType) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a module; names that the module does not define resolve to ``torch_module``."""

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        if not hasattr(torch_module, name):
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}, and neither has {torch_module.__name__}")
        return getattr(torch_module, name)

    return find, lambda: sorted({*module, *dir(torch_module)})
