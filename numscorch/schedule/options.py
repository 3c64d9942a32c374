"""Options: what a user asks of the passes, as the text of ``schedule=``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ScheduleError

LARGEST_TILE = 1 << 31  # coordinates in a tile
DIRECTIVE = re.compile(r"\s*(\w+)\(([^()]*)\)\s*[,;]?")
QUOTED = re.compile(r"""(["'])([^"']*)\1""")
WORKSPACES = ("list", "hash")
KNOWN = {
    "reorder": "reorder(i, k, j): the loops, outermost first",
    "parallelize": "parallelize(i): blocks of the outermost loop; parallelize() for none",
    "vectorize": "vectorize(k): the loop that runs in SIMD registers; vectorize() for none",
    "tile": "tile(k, 64): tiles of a dense dimension, looped over outside of all loops; tile() for none",
    "workspace": "workspace(hash): in what rows are collected that come in no order; list or hash",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The loop order, the variables whose loops run in parallel and in registers ("" asks for none), the kind of workspace,
    the tiled variable and the size of its tiles.

    None leaves it open.
    """

    order: tuple[str, ...] | None = None
    parallel: str | None = None
    vector: str | None = None
    workspace: str | None = None
    tile: tuple[str, int] | None = None


AUTOMATIC = Options()


def parse_options(text: str) -> Options:
    """Read a schedule.

    Raises:
        ScheduleError: an unknown directive, one that is there twice, or one with other arguments than it takes.

    >>> parse_options("reorder(i, k, j) parallelize(i)")
    Options(order=('i', 'k', 'j'), parallel='i', vector=None, workspace=None, tile=None)
    >>> parse_options('reorder("i,k,j") workspace("hash")')
    Options(order=('i', 'k', 'j'), parallel=None, vector=None, workspace='hash', tile=None)
    """
    if not isinstance(text, str):
        raise ScheduleError(f"schedule={text!r}: write it as text, as 'reorder(i, k, j) parallelize(i)'")
    options: dict[str, tuple[str, ...]] = {}
    at = 0
    while text[at:].strip():
        match = DIRECTIVE.match(text, at)
        if match is None or match[1] not in KNOWN or match[1] in options:
            what = "can't be read" if match is None else f"{match[1]} is there twice" if match[1] in options else f"{match[1]} is unknown"
            raise ScheduleError(f"schedule {text!r}: {what}\n  write " + "; ".join(KNOWN.values()))
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


def _tile(text: str, given: tuple[str, ...]) -> tuple[str, int]:
    """A variable and the coordinates in a tile; no variable where none shall be tiled."""
    match given:
        case ():
            return "", 0
        case (var, size) if size.isascii() and size.isdecimal() and 0 < int(size) < LARGEST_TILE:
            return var, int(size)
        case _:
            raise ScheduleError(
                f"schedule {text!r}: tile takes a variable, and how many coordinates are in a tile\n  write {KNOWN['tile']}"
            )


def _arguments(text: str) -> tuple[str, ...]:
    """What stands in a directive's parentheses: names with commas between them, with or without quotes.

    >>> _arguments("i, k"), _arguments("'i,k'"), _arguments('"i", "k"')
    (('i', 'k'), ('i', 'k'), ('i', 'k'))
    """
    bare = QUOTED.sub(r"\2", text)
    return tuple(name.strip() for name in bare.split(",") if name.strip())
