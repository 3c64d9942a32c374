"""The public names of numscorch, and the parts that their docstrings lack."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import EnumType
from types import GenericAlias, ModuleType
from typing import Any

import numscorch as ns
from numscorch import nn, operators, sharding, sparsify
from numscorch.nn import functional, patterns
from numscorch.sparsify import schedules

MODULES: tuple[ModuleType, ...] = (ns, nn, functional, patterns, sparsify, schedules, sharding)
UNDOCUMENTED = ("self", "cls")
SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises|Complexity|Source):", re.MULTILINE)


def public_names() -> dict[str, Any]:
    """Public objects by dotted name: what ``__all__`` lists, then operators that have torch's names; modules are left out.

    Names that are passed on from torch (``numscorch.nn.Linear``) are not among them.
    """
    named = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    named |= {f"numscorch.{name}": getattr(ns, name) for name in sorted(operators.PUBLIC)}
    return {name: value for name, value in named.items() if not inspect.ismodule(value)}


def methods(cls: type) -> dict[str, Any]:
    """The public methods and properties that a class of numscorch defines or inherits from a class of numscorch, by name."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "numscorch":
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_") and is_member(value)}
    return found


def is_member(value: Any) -> bool:
    """Whether a value of a class's namespace is a method or a property."""
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def signature(value: Any) -> inspect.Signature | None:
    """The signature of a function or of a constructor; None for constants and enumerations, whose members are constants."""
    if isinstance(value, EnumType):
        return None
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        return None


def is_record(value: Any) -> bool:
    """Whether a class is a record that functions return: a dataclass or a named tuple without a constructor that is written out."""
    return inspect.isclass(value) and (hasattr(value, "__dataclass_fields__") or hasattr(value, "_fields"))


def sections(doc: str) -> dict[str, str]:
    """The texts of the sections of a docstring, by title; "" is the text before the first one.

    >>> sections("Add.\\n\\nArgs:\\n    a: a number\\nRaises:\\n    TypeError: if not")
    {'': 'Add.\\n\\n', 'Args': '\\n    a: a number\\n', 'Raises': '\\n    TypeError: if not'}
    """
    first, *rest = SECTION.split(doc)
    return {"": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def described(section: str) -> set[str]:
    """The names that a section of arguments describes; several may share a line.

    >>> sorted(described("\\n    a, b: numbers\\n        of any type\\n    *sizes: ints\\n"))
    ['a', 'b', 'sizes']
    """
    lines = re.findall(r"^    ([\w*`, ]+?)(?: \([^)]*\))?:", section, re.MULTILINE)
    return {name.strip(" `*") for line in lines for name in line.split(",")}


def lacks(value: Any) -> Iterator[str]:
    """The parts that the docstring of a public object lacks."""
    if isinstance(value, GenericAlias):
        return  # a type alias, which cannot have a docstring
    doc = inspect.getdoc(value) or ""
    if not doc:
        yield "a docstring"
        return
    parts = sections(doc)
    if not callable(value):
        return  # a constant
    if inspect.isclass(value) and issubclass(value, BaseException):
        if ">>>" not in doc:
            yield "an example"
        return
    record = is_record(value)
    names = [] if (shape := signature(value)) is None else [name for name in shape.parameters if not name.startswith("_")]
    titles = ("Args", "Attributes") if record else ("Args",)
    known = set().union(*(described(parts.get(title, "")) for title in titles))
    yield from (f"{titles[-1]}: {name}" for name in names if name not in known and name not in UNDOCUMENTED)
    if ">>>" not in doc:
        yield "an example"
    if not inspect.isclass(value) and "Returns" not in parts and "Yields" not in parts and returns(shape):
        yield "Returns"
    if names and not record and "Raises" not in parts:
        yield "Raises"


def lacks_of_member(value: Any) -> Iterator[str]:
    """The parts that the docstring of a method or a property lacks: the description of an argument."""
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    doc = inspect.getdoc(value if isinstance(value, property) else function) or ""
    if not doc:
        yield "a docstring"
        return
    shape = signature(function)
    if isinstance(value, property) or shape is None:
        return
    parts = sections(doc)
    names = [name for name in shape.parameters if not name.startswith("_") and name not in UNDOCUMENTED]
    yield from (f"Args: {name}" for name in names if name not in described(parts.get("Args", "")))


def returns(shape: inspect.Signature | None) -> bool:
    """Whether a function returns something."""
    return shape is not None and shape.return_annotation not in (None, "None")
