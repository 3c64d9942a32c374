"""The parser of schedule options, the directives of ``schedule=``."""

from __future__ import annotations

import re

from ..errors import ScheduleError
from .facts import Options

LARGEST_TILE = 1 << 31  # coordinates per tile, exclusive
DIRECTIVE = re.compile(r"\s*(\w+)\(([^()]*)\)\s*[,;]?")
QUOTED = re.compile(r"""(["'])([^"']*)\1""")
WORKSPACES = ("list", "hash", "sort")
KNOWN = {
    "reorder": "reorder(i, k, j): the loop order, outermost first",
    "parallelize": "parallelize(i): the outermost loop, which runs in parallel blocks; parallelize() for none",
    "vectorize": "vectorize(k): the loop that runs in SIMD registers; vectorize() for none",
    "tile": "tile(k, 64): a dense dimension and its tile size; the loop over tiles is outermost; tile() for none",
    "workspace": "workspace(hash): the workspace that collects unordered rows; list, hash or sort",
}


def parse_options(text: str) -> Options:
    """Parse the text of a schedule.

    Raises:
        ScheduleError: a directive is unknown, occurs twice, or has unsupported arguments.

    >>> parse_options("reorder(i, k, j) parallelize(i)")
    Options(order=('i', 'k', 'j'), parallel='i', vector=None, workspace=None, tile=None)
    >>> parse_options('reorder("i,k,j") workspace("hash")')
    Options(order=('i', 'k', 'j'), parallel=None, vector=None, workspace='hash', tile=None)
    """
    if not isinstance(text, str):
        raise ScheduleError(f"schedule={text!r}: write it as text, such as 'reorder(i, k, j) parallelize(i)'")
    options: dict[str, tuple[str, ...]] = {}
    at = 0
    while text[at:].strip():
        match = DIRECTIVE.match(text, at)
        if match is None or match[1] not in KNOWN or match[1] in options:
            problem = "can't be read" if match is None else f"{match[1]} occurs twice" if match[1] in options else f"{match[1]} is unknown"
            raise ScheduleError(f"schedule {text!r}: {problem}\n  write " + "; ".join(KNOWN.values()))
        options[match[1]] = _arguments(match[2])
        at = match.end()
    for name in ("parallelize", "vectorize"):
        if len(options.get(name, ())) > 1:
            raise ScheduleError(f"schedule {text!r}: {name} takes one variable\n  write {KNOWN[name]}")
    kind = options.get("workspace")
    if kind is not None and (len(kind) != 1 or kind[0] not in WORKSPACES):
        raise ScheduleError(f"schedule {text!r}: workspace takes one of {', '.join(WORKSPACES)}\n  write {KNOWN['workspace']}")
    tile = _tile(text, options["tile"]) if "tile" in options else None
    one = {name: (options[name] or ("",))[0] for name in ("parallelize", "vectorize") if name in options}
    return Options(options.get("reorder"), one.get("parallelize"), one.get("vectorize"), kind[0] if kind else None, tile)


def _tile(text: str, arguments: tuple[str, ...]) -> tuple[str, int]:
    """Variable and tile size of a ``tile`` directive; the variable is empty if tiling is disabled."""
    match arguments:
        case ():
            return "", 0
        case (var, size) if size.isascii() and size.isdecimal() and 0 < int(size) < LARGEST_TILE:
            return var, int(size)
        case _:
            raise ScheduleError(f"schedule {text!r}: tile takes a variable and the number of coordinates per tile\n  write {KNOWN['tile']}")


def _arguments(text: str) -> tuple[str, ...]:
    """The comma-separated names in the parentheses of a directive, with or without quotes.

    >>> _arguments("i, k"), _arguments("'i,k'"), _arguments('"i", "k"')
    (('i', 'k'), ('i', 'k'), ('i', 'k'))
    """
    bare = QUOTED.sub(r"\2", text)
    return tuple(name.strip() for name in bare.split(",") if name.strip())
