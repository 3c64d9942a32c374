"""The first values of a tensor as a coordinate tree in SVG."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from .sketches import Sketch
from .templates import rendered


def tree(drawn: Sketch) -> str:
    """The coordinate tree of the first stored values as an SVG picture, with one node per position, centred above the values below it.

    Source:
        Chou, Kjolstad, Amarasinghe, "Format Abstraction for Sparse Tensor Algebra Compilers", OOPSLA 2018, figure 4.
    """
    below: dict[tuple[int, int, int], list[int]] = {}
    for place, leaf in enumerate(drawn.leaves):
        for level, (position, coordinate) in enumerate(leaf.path):
            below.setdefault((level, position, coordinate), []).append(place)
    nodes = {(level, position): (fmean(places), coordinate) for (level, position, coordinate), places in below.items()}
    paths = [[(level, position) for level, (position, _) in enumerate(leaf.path)] for leaf in drawn.leaves]
    edges = dict.fromkeys(edge for path in paths for edge in pairwise(path))
    return rendered("tree.html", drawn=drawn, nodes=nodes, edges=edges) if drawn.leaves else ""
