"""Explanations and tensors as HTML: a self-contained page, or a notebook cell."""

from __future__ import annotations

import builtins
import io
import keyword
import os
import tokenize
from functools import cache
from html import escape
from importlib.resources import files
from math import prod
from os import PathLike
from pathlib import Path

from ..errors import FormatError
from ..frontend.requests import Operand
from ..machine.atomic_files import replacing
from ..machine.memory import size_in_words
from ..tensors.sparse_tensor import SparseTensor
from .level_tree import level_list, picture, tree
from .loop_nest import cost_table, nest, pass_list
from .roofline import report
from .sketches import Sketch, levels_of, sketch
from .story import Story

SUFFIX = ".html"
KINDS = {tokenize.STRING: "string", tokenize.NUMBER: "number", tokenize.COMMENT: "comment"}
BUILT_IN = frozenset(name for name in dir(builtins) if name.islower() and not name.startswith("_"))


@cache
def style() -> str:
    """The style sheet of all pages; every rule applies only inside ``.numscorch``."""
    return files("numscorch.explanation").joinpath("style.css").read_text()


def page(title: str, body: str) -> str:
    """A complete HTML document.

    >>> import numscorch as ns
    >>> made = page(*titled(ns.explain("ij,j->i", ns.CSR, "dense")))
    >>> made[:15], made.count("<h2"), made.count("<h3")
    ('<!DOCTYPE html>', 1, 6)
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{style()}</style></head>'
        f'<body class="numscorch"><main>{body}</main></body></html>\n'
    )


class Paged:
    """An object with an HTML page: a file, or a notebook cell."""

    __slots__ = ()

    def _titled(self, anchored: bool = True) -> tuple[str, str]:
        """The title and the body of the page; links only if ``anchored``."""
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        """Write the explanation as one self-contained HTML file. If writing fails, an existing file keeps its content.

        Raises:
            FormatError: the file's name doesn't end in .html.
            OSError: the folder doesn't exist, or the file can't be written.

        >>> import tempfile, numscorch as ns
        >>> path = Path(tempfile.mkdtemp()) / "spmv.html"
        >>> ns.explain("ij,j->i", ns.CSR, "dense").save(path)
        >>> path.read_text()[:15]
        '<!DOCTYPE html>'
        """
        path = Path(path)
        if path.suffix.lower() != SUFFIX:
            raise FormatError(
                f"save({os.fspath(path)!r}): an explanation is an HTML page, and its file name ends in {SUFFIX}: "
                f"write {path.stem + SUFFIX!r}"
            )
        if not path.parent.is_dir():
            raise FileNotFoundError(f"save({os.fspath(path)!r}): the folder {os.fspath(path.parent)!r} does not exist: create it first")
        with replacing(path) as file:
            file.write(page(*self._titled()).encode())

    def _repr_html_(self) -> str:
        """HTML for a notebook cell; the body is collapsed below the title."""
        title, body = self._titled(anchored=False)
        details = f"<details><summary>{escape(title)}</summary>{body}</details>"
        return f'<style>{style()}</style><div class="numscorch cell">{details}</div>'


def titled(story: Story, anchored: bool = True) -> tuple[str, str]:
    """The title and the body of a page.

    If ``anchored``, the page starts with links to its sections. Notebook cells have none, because anchors would clash between cells.
    """
    count = sum(not isinstance(part, str) for part in (*story.before, story))
    title = story.title if count == 1 else f"{count} kernels, the last one: {story.title}"
    return title, f"<h1>{escape(title)}</h1>" + _kernels(story, anchored)


def titled_program(name: str, program: str, notes: str, story: Story | None, anchored: bool = True) -> tuple[str, str]:
    """The title and the body of a fused function's page: its program, and its kernels, or the notes if it has no kernels."""
    details = _kernels(story, anchored) if story is not None else _code(notes) if notes else ""
    return name, f"<h1>{escape(name)}</h1>{_code(program)}{details}"


def _kernels(explained: Story, anchored: bool) -> str:
    """One section per kernel and one per part that torch computes, in execution order."""
    stories = [*explained.before, explained, *explained.after]
    count = sum(not isinstance(part, str) for part in stories)
    parts, links, number = [], [], 0
    for story in stories:
        if isinstance(story, str):
            parts.append(f'<section class="note"><h2>Not in these kernels</h2><p>{escape(story.strip())}</p></section>')
            continue
        number += 1
        name = "Kernel" if count == 1 else f"Kernel {number} of {count}"
        anchor = f' id="kernel-{number}"' if anchored else ""
        links.append((f"kernel-{number}", name))
        heading = f"{name}: {story.title}" if count > 1 else name
        body, part = _kernel(story, number if anchored else 0)
        links += part if count == 1 else []
        parts.append(f"<section><h2{anchor}>{escape(heading)}</h2>{body}</section>")
    if explained.run is not None:
        links.append(("run", "Timed run"))
        parts.append(f"<section><h2{' id=run' if anchored else ''}>Timed run</h2>{report(explained.run)}</section>")
    items = "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name in links)
    return (f'<nav aria-label="On this page"><ul>{items}</ul></nav>' if anchored else "") + "".join(parts)


def _kernel(story: Story, number: int) -> tuple[str, list[tuple[str, str]]]:
    """The sections of one kernel, and each section's anchor and name."""
    notation = map(str, (*story.problem.members, story.problem.stmt))
    variables = (f"  {variable} = {parts}" for variable, parts in story.variables.items())
    source = f'<pre class="source" tabindex="0" aria-label="Python source"><code>{highlighted(story.source)}</code></pre>'
    sections = [
        ("Operands and result", _operands(story)),
        ("Index notation", _code("\n".join([*notation, *variables]))),
        ("Loop nest", nest(story.steps, story.problem.extents)),
        ("Costs considered", cost_table(story.steps) or "<p>No pass compared costs.</p>"),
        ("Passes", pass_list(story.steps) + "".join(f"<p><b>{escape(name)}</b> {escape(text)}</p>" for name, text in story.notes)),
        ("Source", f'<p class="soft">{escape(story.where)}</p>{source}'),
    ]
    blocks = [f"<h3{f' id=kernel-{number}-{at}' if number else ''}>{name}</h3>{body}" for at, (name, body) in enumerate(sections)]
    return "".join(blocks), [(f"kernel-{number}-{at}", name) for at, (name, _) in enumerate(sections)]


def _operands(story: Story) -> str:
    sketches = story.sketches or (None,) * len(story.operands)
    cards = [_card(name, operand, remark, drawn) for (name, operand, remark), drawn in zip(story.read, sketches, strict=True)]
    problem = story.problem
    result = f"{problem.result}: {'x'.join(map(str, problem.shape)) or 'scalar'} ({problem.format.name}), {problem.result.dtype}"
    why = f"<h4>Result {escape(result)}</h4><p>{escape(problem.inference)}</p>"
    if problem.layout is not None and problem.layout.result is not None:
        why += f"<p>{escape(f'written with {problem.layout}, then copied')}</p>"
    return f'<div class="cards">{"".join(cards)}<div class="card">{why}</div></div>'


def _card(name: str, operand: Operand, remark: str, drawn: Sketch | None) -> str:
    """The card of an operand: its levels and arrays, and, given a sketch, its coordinate tree and its pattern."""
    head = f"<h4>{escape(f'{name}{operand}, {operand.dtype}')}</h4>" + (f"<p>{escape(remark)}</p>" if remark else "")
    if drawn is None:
        strides = f'<p class="soft">strides {escape(str(operand.strides))}</p>' if operand.strides else ""
        known = "" if operand.format.is_dense else '<p class="soft">estimated positions: a format has no arrays</p>'
        return f'<div class="card">{head}{level_list(levels_of(operand), None, name[:1])}{strides}{known}</div>'
    stored = "" if drawn.format == operand.format else f"<p>stored as {escape(drawn.format.name)}</p>"
    return f'<div class="card">{head}{stored}{drawing(drawn, name[:1] if drawn.format == operand.format else "")}</div>'


def drawing(drawn: Sketch, name: str) -> str:
    """The levels and arrays, the coordinate tree and the picture of the pattern."""
    shown = tree(drawn)
    return (
        level_list(drawn.levels, drawn.values, name)
        + (f'<div class="scroll" tabindex="0">{shown}</div>' if shown else "")
        + (picture(drawn.picture, name or "the tensor") if drawn.picture is not None else "")
    )


def _code(text: str) -> str:
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'


def highlighted(source: str) -> str:
    """The source as HTML: one span per line; keywords, function names, numbers, strings and comments are spans with CSS classes.

    Raises:
        tokenize.TokenError, SyntaxError: the source isn't Python.

    >>> print(highlighted("for i in range(3):"))
    <span class="line"><span class="keyword">for</span> i <span class="keyword">in</span> <span class="builtin">range</span>(<span class="number">3</span>):</span>
    """  # noqa: E501
    rows = source.rstrip("\n").split("\n")
    pieces = [list[str]() for _ in rows]
    row, column = 1, 0
    before = ""
    for token in tokenize.generate_tokens(io.StringIO("\n".join(rows) + "\n").readline):
        if token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            continue
        if token.start[0] > row:
            row, column = token.start[0], 0
        pieces[row - 1].append(escape(rows[row - 1][column : token.start[1]], quote=False))
        css_class = _css_class(token, before)
        for at, text in enumerate(token.string.split("\n")):  # a multi-line string gets one span per line
            escaped = escape(text, quote=False)
            pieces[token.start[0] - 1 + at].append(f'<span class="{css_class}">{escaped}</span>' if css_class and text else escaped)
        (row, column), before = token.end, token.string
    return "\n".join(f'<span class="line">{"".join(parts)}</span>' for parts in pieces)


def _css_class(token: tokenize.TokenInfo, before: str) -> str:
    if token.type in KINDS:
        return KINDS[token.type]
    if token.type != tokenize.NAME:
        return ""
    if keyword.iskeyword(token.string):
        return "keyword"
    return "function" if before == "def" else "builtin" if token.string in BUILT_IN else ""


def card(A: SparseTensor) -> str:
    """The notebook cell of a tensor: shape, data type, format, entries, bytes, and a collapsible view of levels and pattern.

    >>> import numscorch as ns, torch
    >>> "2 x 2, float32, CSR" in card(ns.from_torch(torch.eye(2), ns.CSR))
    True
    """
    drawn = sketch(A)
    shape = " x ".join(map(str, drawn.shape)) or "scalar"
    grad = ", requires grad" if A.requires_grad else ""
    head = f"{shape}, {drawn.values.dtype}, {drawn.format.name}{grad}"
    return (
        f'<style>{style()}</style><div class="numscorch small"><b>SparseTensor</b> {escape(head)}<br>'
        f"<span>{escape(_stored(drawn))}; {A.pattern.index_dtype} indices</span>"
        f"<details open><summary>levels and pattern</summary>{drawing(drawn, '')}</details></div>"
    )


def _stored(drawn: Sketch) -> str:
    """The number of entries, their density and their size in memory."""
    if drawn.entries is None:
        stored = f"{drawn.values.length:,} positions, some of them possibly padding"
    else:
        density = drawn.entries / max(prod(drawn.shape), 1)
        stored = f"{drawn.entries:,} entr{'y' if drawn.entries == 1 else 'ies'}, density {density:.3g}"
    return f"{stored}, {size_in_words(drawn.bytes)}"
