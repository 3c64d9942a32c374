"""A tensor's levels and arrays as an HTML list, and its first values as a coordinate tree in SVG."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from .sketches import Array, Leaf, LevelSketch, Picture, Sketch

STEP, ROW, LEFT = 47, 46, 100  # pixels between leaves, between levels, and for the level names
RADIUS = 13  # of a node, in pixels
LONGEST = 15  # characters of a level's name beside the tree


def level_list(levels: Sequence[LevelSketch], values: Array | None = None, name: str = "") -> str:
    """An HTML list of the levels (extent, number of positions, arrays), outermost first, and of the values.

    If ``name`` is given, arrays get the names that they have in the kernel that reads the tensor by this name.

    >>> print(level_list((LevelSketch("i", "dense", 4, 4),)))
    <ol class="levels"><li><b>i: dense</b> <span>4 coordinates, 4 positions</span></li></ol>
    """
    items = []
    for at, level in enumerate(levels):
        counts = f"{_count(level.size, 'coordinate')}" + ("" if level.positions is None else f", {_count(level.positions, 'position')}")
        arrays = "".join(_array(f"{name}{at + 1}_{array.name}" if name else array.name, array) for array in level.arrays)
        items.append(f"<li><b>{escape(f'{level.part}: {level.name}')}</b> <span>{counts}</span>{arrays}</li>")
    if values is not None:
        array_name = f"{name}_{values.name}" if name else values.name
        items.append(f"<li><b>values</b>{_array(array_name, values)}</li>")
    return f'<ol class="levels">{"".join(items)}</ol>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _array(name: str, array: Array) -> str:
    if not array.dtype:
        return f'<div class="array"><code>{escape(name)}</code></div>'
    shown = escape(str(array)) if array.first or not array.length else "[...]"
    return f'<div class="array"><code>{escape(name)} {shown}</code> <span>{escape(array.dtype)}, {array.length:,}</span></div>'


def tree(drawn: Sketch) -> str:
    """The coordinate tree of the first stored values as an SVG picture, with one node per position.

    Source:
        Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers", OOPSLA 2018, figure 4.
    """
    if not drawn.leaves:
        return ""
    depth, count = len(drawn.levels), len(drawn.leaves)
    width, height = LEFT + STEP * count + 10, ROW * (depth + 1) + 8
    places = _places(drawn.leaves, depth)
    edges = dict.fromkeys((at, leaf.path[at][0], leaf.path[at + 1][0]) for leaf in drawn.leaves for at in range(depth - 1))
    nodes = {(at, position): coordinate for leaf in drawn.leaves for at, (position, coordinate) in enumerate(leaf.path)}
    parts = [
        *(_label(at, f"{level.part}: {level.name}") for at, level in enumerate(drawn.levels)),
        _label(depth, "values"),
        *(_line(*places[at, upper], *places[at + 1, lower]) for at, upper, lower in edges),
        *(_line(*places[depth - 1, leaf.path[-1][0]], _x(at), _y(depth)) for at, leaf in enumerate(drawn.leaves)),
        *(_node(*places[key], str(coordinate)) for key, coordinate in nodes.items()),
        *(_value(_x(at), _y(depth), leaf.value) for at, leaf in enumerate(drawn.leaves)),
    ]
    caption = f"The first {count} stored values and their coordinates, level by level"
    return (
        f'<svg class="tree" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{caption}"><title>{caption}</title>{"".join(parts)}</svg>'
    )


def _places(leaves: Sequence[Leaf], depth: int) -> dict[tuple[int, int], tuple[float, float]]:
    """The x and y of each node, centred above the values below it."""
    below: dict[tuple[int, int], list[int]] = {}
    for place, leaf in enumerate(leaves):
        for at, (position, _) in enumerate(leaf.path):
            below.setdefault((at, position), []).append(place)
    return {key: (sum(map(_x, centres)) / len(centres), _y(key[0])) for key, centres in below.items()}


def _x(place: int) -> float:
    return LEFT + STEP * (place + 0.5)


def _y(level: int) -> float:
    return ROW * (level + 0.5) + 4


def _label(at: int, text: str) -> str:
    text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f'<text x="0" y="{_y(at) + 4:g}" class="name">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:g}" y1="{y + RADIUS:g}" x2="{to_x:g}" y2="{to_y - RADIUS:g}"/>'


def _node(x: float, y: float, text: str) -> str:
    width = max(2 * RADIUS, 7.5 * len(text) + 10)
    box = f'<rect x="{x - width / 2:g}" y="{y - RADIUS:g}" width="{width:g}" height="{2 * RADIUS}" rx="{RADIUS}"/>'
    return f'{box}<text x="{x:g}" y="{y + 4:g}" class="node">{escape(text)}</text>'


def _value(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y + 4:g}" class="leaf">{escape(text if len(text) <= 6 else text[:5] + "…")}</text>'


def picture(drawn: Picture, name: str) -> str:
    """The picture of a pattern with its caption. Its sides are at least 24 pixels."""
    scale = max(1, 192 // max(drawn.width, drawn.height))
    width, height = (max(scale * size, 24) for size in (drawn.width, drawn.height))
    png = b64encode(drawn.png).decode()
    return (
        f'<figure><img src="data:image/png;base64,{png}" width="{width}" height="{height}" alt="{escape(f"Where {name} stores entries")}">'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )
