"""Options: what a user asks of the passes, as the text of ``schedule=``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ScheduleError

DIRECTIVE = re.compile(r"\s*(\w+)\(([^()]*)\)\s*[,;]?")
KNOWN = {
    "reorder": "reorder(i, k, j): the loops, outermost first",
    "parallelize": "parallelize(i): blocks of the outermost loop; parallelize() for none",
    "vectorize": "vectorize(k): the loop that runs in SIMD registers; vectorize() for none",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The loop order, and the variables whose loops run in parallel and in registers; "" asks for none, None leaves it open."""

    order: tuple[str, ...] | None = None
    parallel: str | None = None
    vector: str | None = None


AUTOMATIC = Options()


def parse_options(text: str) -> Options:
    """Read a schedule.

    Raises:
        ScheduleError: an unknown directive, one that is there twice, or one with too many arguments.

    >>> parse_options("reorder(i, k, j) parallelize(i)")
    Options(order=('i', 'k', 'j'), parallel='i', vector=None)
    """
    found: dict[str, tuple[str, ...]] = {}
    at = 0
    while text[at:].strip():
        match = DIRECTIVE.match(text, at)
        if match is None or match[1] not in KNOWN or match[1] in found:
            what = "can't be read" if match is None else f"{match[1]} is there twice" if match[1] in found else f"{match[1]} is unknown"
            raise ScheduleError(f"schedule {text!r}: {what}\n  write " + "; ".join(KNOWN.values()))
        found[match[1]] = tuple(name.strip() for name in match[2].split(",") if name.strip())
        at = match.end()
    for name in ("parallelize", "vectorize"):
        if len(found.get(name, ())) > 1:
            raise ScheduleError(f"schedule {text!r}: {name} takes one variable\n  write {KNOWN[name]}")
    one = {name: (found[name] or ("",))[0] for name in ("parallelize", "vectorize") if name in found}
    return Options(found.get("reorder"), one.get("parallelize"), one.get("vectorize"))
