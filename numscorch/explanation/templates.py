"""The templates of the pages: HTML files beside this one, for jinja2, which torch installs."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here, because it takes long to import

    loader = PackageLoader("numscorch", "explanation")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, loader=loader)


def rendered(template: str, **values: Any) -> str:
    """A template filled with values."""
    return _environment().get_template(template).render(values)
