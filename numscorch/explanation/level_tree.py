"""Level trees: a format as a list of levels with their arrays, and the first values as a tree of coordinates, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .sketches import Array, Leaf, LevelSketch, Picture, Sketch

STEP, ROW, LEFT = 47, 46, 100  # between leaves, between levels, and the room for the levels' names
RADIUS = 13
LONGEST = 15  # letters of a level's name beside the tree


def level_list(levels: Sequence[LevelSketch], values: Array | None = None, name: str = "") -> str:
    """Each level with its extent, its positions and its arrays, outermost first, and the values.

    Arrays are called as in the kernel that reads the tensor by this name, if there is one.

    >>> print(level_list((LevelSketch("i", "dense", 4, 4),)))
    <ol class="levels"><li><b>i: dense</b> <span>4 coordinates, 4 positions</span></li></ol>
    """
    items = []
    for at, level in enumerate(levels):
        counted = f"{_many(level.size, 'coordinate')}" + ("" if level.positions is None else f", {_many(level.positions, 'position')}")
        arrays = "".join(_array(f"{name}{at + 1}_{array.name}" if name else array.name, array) for array in level.arrays)
        items.append(f"<li><b>{escape(f'{level.part}: {level.name}')}</b> <span>{counted}</span>{arrays}</li>")
    if values is not None:
        called = f"{name}_{values.name}" if name else values.name
        items.append(f"<li><b>values</b>{_array(called, values)}</li>")
    return f'<ol class="levels">{"".join(items)}</ol>'


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _array(name: str, array: Array) -> str:
    if not array.dtype:
        return f'<div class="array"><code>{escape(name)}</code></div>'
    shown = escape(str(array)) if array.first or not array.length else "[...]"
    return f'<div class="array"><code>{escape(name)} {shown}</code> <span>{escape(array.dtype)}, {array.length:,}</span></div>'


def tree(drawn: Sketch) -> str:
    """The first stored values with the coordinates of each level above them: a node for each position, as an SVG picture.

    Source:
        Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers", OOPSLA 2018, figure 4, draws trees so.
    """
    if not drawn.leaves:
        return ""
    depth, count = len(drawn.levels), len(drawn.leaves)
    width, height = LEFT + STEP * count + 10, ROW * (depth + 1) + 8
    places = _places(drawn.leaves, depth)
    parts = [_label(at, _shortened(f"{level.part}: {level.name}")) for at, level in enumerate(drawn.levels)] + [_label(depth, "values")]
    parts += [_line(*places[at, path[at][0]], *places[at + 1, path[at + 1][0]]) for path, at in _edges(drawn.leaves, depth)]
    parts += [_line(*places[depth - 1, leaf.path[-1][0]], _across(at), _down(depth)) for at, leaf in enumerate(drawn.leaves)]
    nodes = {(at, position): coordinate for leaf in drawn.leaves for at, (position, coordinate) in enumerate(leaf.path)}
    parts += [_node(*places[key], str(coordinate)) for key, coordinate in nodes.items()]
    parts += [_value(_across(at), _down(depth), leaf.value) for at, leaf in enumerate(drawn.leaves)]
    caption = f"The first {count} stored values and their coordinates, level by level"
    return (
        f'<svg class="tree" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{caption}"><title>{caption}</title>{"".join(parts)}</svg>'
    )


def _places(leaves: Sequence[Leaf], depth: int) -> dict[tuple[int, int], tuple[float, float]]:
    """Where each node is drawn: above the middle of the values below it."""
    below: dict[tuple[int, int], list[int]] = {}
    for place, leaf in enumerate(leaves):
        for at, (position, _) in enumerate(leaf.path):
            below.setdefault((at, position), []).append(place)
    return {key: (sum(map(_across, centres)) / len(centres), _down(key[0])) for key, centres in below.items()}


def _edges(leaves: Sequence[Leaf], depth: int) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """Each pair of a node and one below it, once."""
    edges = {(at, leaf.path[at][0], leaf.path[at + 1][0]): (leaf.path, at) for leaf in leaves for at in range(depth - 1)}
    return list(edges.values())


def _across(place: int) -> float:
    return LEFT + STEP * (place + 0.5)


def _down(level: int) -> float:
    return ROW * (level + 0.5) + 4


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _label(at: int, text: str) -> str:
    return f'<text x="0" y="{_down(at) + 4:g}" class="name">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:g}" y1="{y + RADIUS:g}" x2="{to_x:g}" y2="{to_y - RADIUS:g}"/>'


def _node(x: float, y: float, text: str) -> str:
    width = max(2 * RADIUS, 7.5 * len(text) + 10)
    box = f'<rect x="{x - width / 2:g}" y="{y - RADIUS:g}" width="{width:g}" height="{2 * RADIUS}" rx="{RADIUS}"/>'
    return f'{box}<text x="{x:g}" y="{y + 4:g}" class="node">{escape(text)}</text>'


def _value(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y + 4:g}" class="leaf">{escape(text if len(text) <= 6 else text[:5] + "…")}</text>'


def picture(drawn: Picture, name: str) -> str:
    """The picture of a pattern with its caption; it keeps its shape up to 1 : 4."""
    scale = max(1, 192 // max(drawn.width, drawn.height))
    width, height = (max(scale * size, 24) for size in (drawn.width, drawn.height))
    return (
        f'<figure><img src="{drawn.address}" width="{width}" height="{height}" alt="{escape(f"Where {name} stores entries")}">'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )
