"""Matplotlib's figures as SVG that stands in a page: in the page's colours and fonts, small, and with names of its own."""

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
WIDE = 500  # points from which a figure gets more room
STEP = 1  # to the number of a colour that stands for a variable of the style sheet
VARIABLES = ("ink", "quiet", "line", "paper", "good", "bad", *(f"s{number}" for number in range(8)))
COLORS = {name: f"#0000{number:02x}" for number, name in enumerate(VARIABLES, STEP)}  # what to draw with
_NUMBERS = {"d", "x", "y", "transform", "width", "height", "points"}
MARKS = frozenset(SVG + tag for tag in ("g", "a", "title", "use"))
_DIGITS = re.compile(r"-?\d+\.\d+(?:e-\d+)?")
_DROPPED = re.compile(r"(?:font-family|font-variant|font-weight|stroke-linejoin|font-stretch|font-style):[^;]*;? ?")

_LINE = re.compile(r"(?<=L)-?[\d.]+ -?[\d.]+(?:L-?[\d.]+ -?[\d.]+)+")

Element = ElementTree.Element


def inline(figure: Any, name: str, told: str, links: Mapping[str, Iterable[tuple[str | None, str]]] | None = None) -> str:
    """A figure as an element of a page.

    Args:
        figure: matplotlib's, drawn with ``COLORS``.
        name: what its ids start with, so that they are its own in the page.
        told: what it shows, for those who can't see it.
        links: by the gid of a line: for each of its markers, where it leads or None, and what it tells.
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
    """Wrap each marker in a link, or where there is none in a group, with what it tells when it is pointed at."""
    parents = {child: parent for parent in group.iter() for child in parent}
    uses = list(group.iter(f"{SVG}use"))
    for use, (target, text) in zip(uses, links, strict=True):
        parent = parents[use]
        wrapped = ElementTree.Element(f"{SVG}a", {"href": target, "tabindex": "-1"}) if target else ElementTree.Element(f"{SVG}g")
        ElementTree.SubElement(wrapped, f"{SVG}title").text = text
        wrapped.append(use)
        parent[list(parent).index(use)] = wrapped


def _slim(element: Element, name: str) -> None:
    """Fewer digits, the page's fonts and colours, ids that start with a name."""
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


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found.group()):.1f}".removesuffix(".0")


def _prune(parent: Element) -> None:
    """Leave out what isn't drawn, and groups that say nothing of what is in them."""
    for child in list(parent):
        _prune(child)
        if (child.tag == f"{SVG}defs" and not len(child)) or (child.tag == f"{SVG}path" and child.get("style") == "fill:none"):
            parent.remove(child)
        elif child.tag == f"{SVG}g" and not child.attrib and not (len(child) and child[0].tag == f"{SVG}title"):
            at = list(parent).index(child)
            parent[at : at + 1] = list(child)


def _relative(found: re.Match[str]) -> str:
    """The same corners of a line, each but the first told from the one before.

    >>> _relative(_LINE.search("M0 0L5 10L7.5 9.8L8 11z"))
    '5 10l2.5-.2 .5 1.2'
    """
    corners = [tuple(map(float, corner.split())) for corner in found.group().split("L")]
    steps = [f"{_short(x - x0)} {_short(y - y0)}" for (x0, y0), (x, y) in pairwise(corners)]
    return f"{found.group().split('L')[0]}l{' '.join(steps)}".replace(" -", "-")


def _short(number: float) -> str:
    """One digit after the point where it isn't 0, and none before it that is.

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
    """Give a group the style that all its markers share, and drop the ids that nothing refers to."""
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
    """What is within a group, but for definitions."""
    defined = {e for definitions in group.iter(f"{SVG}defs") for e in definitions.iter()}
    return [e for e in group.iter() if e not in defined] if group.tag == f"{SVG}g" else []


def _shorten_ids(root: Element, name: str) -> None:
    """Number the ids that are left."""
    short = {f"#{old}": f"#{name}{number}" for number, old in enumerate(e.attrib["id"] for e in root.iter() if "id" in e.attrib)}
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, short[f"#{value}"][1:])
            elif "#" in value and key in ("href", "clip-path"):
                element.set(key, re.sub(r"#[\w-]+", lambda found: short.get(found.group(), found.group()), value))


def _share_styles(root: Element, name: str) -> str:
    """Make classes of the styles that are there several times."""
    counts = Counter(element.attrib["style"] for element in root.iter() if "style" in element.attrib)
    classes = {style: f"{name}-{number}" for number, style in enumerate(style for style, times in counts.items() if times > 2)}
    for element in root.iter():
        if element.get("style") in classes:
            element.set("class", classes[element.attrib.pop("style")])
    return f"<style>{''.join(f'.{short}{{{style}}}' for style, short in classes.items())}</style>" if classes else ""


def figure_of(draw: Callable[[Any], None], *, wide: float = 6.4, tall: float = 3.6, legend: int = 0) -> Any:
    """A figure of one pair of axes, in the page's colours.

    Args:
        draw: is given the axes.
        wide, tall: inches, of which the legend takes some more.
        legend: its rows.
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
    told = {"svg.fonttype": "none", "svg.hashsalt": "numscorch", "font.size": 11, "axes.spines.top": False, "axes.spines.right": False}
    return {**colors, **lines, **told}
