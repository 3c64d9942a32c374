"""Matplotlib figures as compact inline SVG with the colours and fonts of the page and unique ids."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from html import escape
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
LEGEND_ROW = 0.22  # inches
WIDE = 500  # width in points from which a figure is shown wide
STEP = 1  # offset of the colour numbers that encode style sheet variables
VARIABLES = ("ink", "quiet", "line", "paper", "good", "bad", *(f"s{number}" for number in range(8)))
COLORS = {name: f"#0000{number:02x}" for number, name in enumerate(VARIABLES, STEP)}  # placeholder colours for drawing
_NUMBERS = {"d", "x", "y", "transform", "width", "height", "points"}
MARKS = frozenset(SVG + tag for tag in ("g", "a", "title", "use"))
_DIGITS = re.compile(r"-?\d+\.\d+(?:e-\d+)?")
_DROPPED = re.compile(r"(?:font-family|font-variant|font-weight|stroke-linejoin|font-stretch|font-style):[^;]*;? ?")

_LINE = re.compile(r"(?<=L)-?[\d.]+ -?[\d.]+(?:L-?[\d.]+ -?[\d.]+)+")

Element = ElementTree.Element


def inline(figure: Any, name: str, told: str, links: Mapping[str, Iterable[tuple[str | None, str]]] | None = None) -> str:
    """A figure as an inline SVG element.

    Args:
        figure: a matplotlib figure drawn with ``COLORS``.
        name: prefix of ids, unique within the page.
        told: description for screen readers.
        links: by gid of a line, a link target or None and a tooltip for each marker.
    """
    root = _parsed(figure)
    for group in root.iter(f"{SVG}g"):
        if group.get("id") in (links or {}):
            _link(group, (links or {})[str(group.get("id"))])
    for element in root.iter():
        _slim(element, name)
    _hoist_styles(root)
    _shorten_ids(root, name)
    styles = _share_styles(root, name)
    _prune(root)
    box = str(root.get("viewBox"))
    wide = ' class="wide"' if float(box.split()[2]) > WIDE else ""
    inner = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    inner = re.sub(r"(?<=<)svg:|(?<=</)svg:", "", re.sub(r' xmlns(:\w+)?="[^"]*"', "", inner))
    inner = _LINE.sub(_relative, inner)
    inner = re.sub(r"(?<=>)\s+(?=<)|\s+(?=\")|<defs ?/>", "", inner)
    role = "group" if links else "img"
    return f'<svg{wide} viewBox="{box}" role="{role}" aria-label="{escape(told)}">{styles}{inner.strip()}</svg>'


def _parsed(figure: Any) -> Element:
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(_settings()):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    ElementTree.register_namespace("svg", SVG[1:-1])
    ElementTree.register_namespace("xlink", XLINK[1:-1])
    root = ElementTree.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("metadata") or child.tag.endswith("style"):
                parent.remove(child)
    return root


def _link(group: Element, links: Iterable[tuple[str | None, str]]) -> None:
    """Wrap each marker in a link, or in a group if it has no target, with a tooltip."""
    parents = {child: parent for parent in group.iter() for child in parent}
    uses = list(group.iter(f"{SVG}use"))
    for use, (target, text) in zip(uses, links, strict=True):
        parent = parents[use]
        top = {"target": "_top"} if target and "://" in target else {}  # other sites replace a page that embeds this one
        wrapped = ElementTree.Element(f"{SVG}a", {"href": target, "tabindex": "-1", **top}) if target else ElementTree.Element(f"{SVG}g")
        ElementTree.SubElement(wrapped, f"{SVG}title").text = text
        wrapped.append(use)
        parent[list(parent).index(use)] = wrapped


def _slim(element: Element, name: str) -> None:
    """Round numbers, apply the fonts and colours of the page, and prefix ids."""
    for key, value in list(element.attrib.items()):
        new = _DIGITS.sub(_rounded, value) if key in _NUMBERS else value
        if key == "d":
            new = re.sub(r"\s*([A-Za-z])\s*", r"\1", new)
        if key == "style":
            new = _styled(new)
        if key == "transform" and new.startswith("rotate(-0 "):
            new = ""
        if key == "id":
            new = f"{name}-{new}"
        if key == f"{XLINK}href" or (key == "href" and value.startswith("#")):
            del element.attrib[key]
            key, new = "href", value.replace("#", f"#{name}-")
        if key in ("clip-path", "style"):
            new = new.replace("url(#", f"url(#{name}-")
        element.set(key, new)
        if not new:
            del element.attrib[key]


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number.group()):.1f}".removesuffix(".0")


def _prune(parent: Element) -> None:
    """Remove invisible elements, and unwrap groups without attributes."""
    for child in list(parent):
        _prune(child)
        if (child.tag == f"{SVG}defs" and not len(child)) or (child.tag == f"{SVG}path" and child.get("style") == "fill:none"):
            parent.remove(child)
        elif child.tag == f"{SVG}g" and not child.attrib and not (len(child) and child[0].tag == f"{SVG}title"):
            at = list(parent).index(child)
            parent[at : at + 1] = list(child)


def _relative(line: re.Match[str]) -> str:
    """The corners of a line in relative coordinates, except the first.

    >>> _relative(_LINE.search("M0 0L5 10L7.5 9.8L8 11z"))
    '5 10l2.5-.2 .5 1.2'
    """
    corners = [tuple(map(float, corner.split())) for corner in line.group().split("L")]
    steps = [f"{_short(x - x0)} {_short(y - y0)}" for (x0, y0), (x, y) in pairwise(corners)]
    return f"{line.group().split('L')[0]}l{' '.join(steps)}".replace(" -", "-")


def _short(number: float) -> str:
    """Format a number with at most one decimal, without a leading zero.

    >>> [_short(number) for number in (2.5, 10.0, -0.3, -0.04)]
    ['2.5', '10', '-.3', '0']
    """
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else re.sub(r"^(-?)0\.", r"\1.", text)


def _styled(style: str) -> str:
    for name, color in COLORS.items():
        style = style.replace(color, f"var(--{name})")
    style = _DROPPED.sub("", re.sub(r"font: (\d+(?:\.\d+)?)px[^;]*", r"font-size: \1px", style))
    return re.sub(r"\s*([:;])\s*", r"\1", style).strip("; ")


def _hoist_styles(root: Element) -> None:
    """Move a style shared by all markers to their group, and drop unreferenced ids."""
    used = set(re.findall(r"#([\w-]+)", ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
        markers = (
            [e for e in shown if e.tag == f"{SVG}use"] if (shown := _drawn(element)) and MARKS.issuperset(e.tag for e in shown) else []
        )
        if len(markers) > 1 and len(styles := {marker.get("style") for marker in markers}) == 1 and None not in styles:
            element.set("style", str(styles.pop()))
            for marker in markers:
                del marker.attrib["style"]


def _drawn(group: Element) -> list[Element]:
    """Elements within a group, except definitions."""
    defined = {e for definitions in group.iter(f"{SVG}defs") for e in definitions.iter()}
    return [e for e in group.iter() if e not in defined] if group.tag == f"{SVG}g" else []


def _shorten_ids(root: Element, name: str) -> None:
    """Replace the remaining ids by short numbered ids."""
    short = {f"#{old}": f"#{name}{number}" for number, old in enumerate(e.attrib["id"] for e in root.iter() if "id" in e.attrib)}
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, short[f"#{value}"][1:])
            elif "#" in value and key in ("href", "clip-path"):
                element.set(key, re.sub(r"#[\w-]+", lambda reference: short.get(reference.group(), reference.group()), value))


def _share_styles(root: Element, name: str) -> str:
    """Replace styles with three or more uses by classes, and return the style element."""
    counts = Counter(element.attrib["style"] for element in root.iter() if "style" in element.attrib)
    classes = {style: f"{name}-{number}" for number, style in enumerate(style for style, times in counts.items() if times > 2)}
    for element in root.iter():
        if element.get("style") in classes:
            element.set("class", classes[element.attrib.pop("style")])
    return f"<style>{''.join(f'.{short}{{{style}}}' for style, short in classes.items())}</style>" if classes else ""


def figure_of(draw: Callable[[Any], None], *, wide: float = 6.4, tall: float = 3.6, legend: int = 0) -> Any:
    """A figure with one pair of axes, in the colours of the page.

    Args:
        draw: function that draws on the axes.
        wide, tall: size in inches; the legend adds to the height.
        legend: number of rows of the legend.
    """
    import matplotlib
    from matplotlib.figure import Figure

    tall += LEGEND_ROW * legend
    with matplotlib.rc_context(_settings()):
        figure = Figure(figsize=(wide, tall))
        axes = figure.add_axes((0.85 / wide, 0.58 / tall, 1 - 1.2 / wide, 1 - (0.68 + LEGEND_ROW * legend) / tall))
        axes.grid(which="major", linewidth=0.6)
        axes.set_axisbelow(True)
        draw(axes)
        axes.minorticks_off()
        axes.tick_params(bottom=False, left=False)
        for line in [*axes.get_xgridlines(), *axes.get_ygridlines()]:
            line.set_clip_on(False)
    return figure


def _settings() -> dict[str, Any]:
    colors = {f"{part}.color": COLORS["quiet"] for part in ("xtick", "ytick")} | {"text.color": COLORS["ink"]}
    lines = {"axes.edgecolor": COLORS["line"], "axes.labelcolor": COLORS["quiet"], "grid.color": COLORS["line"]}
    options = {"svg.fonttype": "none", "svg.hashsalt": "numscorch", "font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    return {**colors, **lines, **options}
