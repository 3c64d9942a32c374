"""The templates of the pages: the HTML files in ``templates/``, for jinja2, which torch installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .places import Place
from .ratios import ratio_of
from .wording import counted, interval, machine_name, number, percent, seconds, size, times

_PAGES = Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
)
_PAGES.filters |= {
    function.__name__: function for function in (counted, interval, machine_name, number, percent, ratio_of, seconds, size, times)
}


def rendered(template: str, place: Place, **values: Any) -> str:
    """The page that a template gives at a place."""
    return _PAGES.get_template(template).render(place=place, **values)
