"""Explanations and tensors as HTML: a self-contained page, or a notebook cell."""

from __future__ import annotations

import builtins
import keyword
import os
import re
from itertools import pairwise
from math import prod
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import FormatError
from ..ir.index import result_of
from ..machine.atomic_files import replacing
from ..tensors.ledgers import shown_bytes
from ..tensors.sparse_tensor import SparseTensor
from .roofline import report
from .sketches import Sketch, levels_of, sketch
from .story import Story, costs_in, description, pass_adding, passes_of
from .templates import rendered

SUFFIX = ".html"
BUILT_IN = [name for name in dir(builtins) if name.islower() and not name.startswith("_")]
TOKEN = re.compile(
    r'''(?P<string>"""[\s\S]*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<comment>\#.*)|(?P<number>\b\d(?:[\w.]|(?<=[eE])[+-])*)'''
    rf"|(?P<keyword>\b(?:{'|'.join(keyword.kwlist)})\b)|(?<=\bdef )(?P<function>\w+)|(?P<builtin>\b(?:{'|'.join(BUILT_IN)})\b)|\w+| +|\W"
)


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


def tokens(source: str) -> list[tuple[str | None, str]]:
    """The tokens of Python source, for syntax highlighting: the kind, or None for other text, and the text; each line end is a token.

    >>> tokens("x = 3  # why")
    [(None, 'x'), (None, ' '), (None, '='), (None, ' '), ('number', '3'), (None, '  '), ('comment', '# why')]
    """
    matches = TOKEN.finditer(source.rstrip("\n"))
    return [(token.lastgroup, part) for token in matches for part in re.split("(\n)", token[0]) if part]


class Paged:
    """An object that can be shown as HTML: a page in a file, or a notebook cell."""

    def _contents(self) -> dict[str, Any]:
        """The values for the template ``body.html``, as :func:`contents` returns them."""
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        """Write the explanation as one self-contained HTML file. If writing fails, an existing file keeps its content.

        Raises:
            FormatError: the file's name doesn't end in .html.
            OSError: the folder doesn't exist, or the file can't be written.

        >>> import tempfile, numscorch as ns
        >>> path = Path(tempfile.mkdtemp()) / "spmv.html"
        >>> ns.explain("ij,j->i", ns.CSR, "dense").save(path)
        >>> page = path.read_text()
        >>> page[:15], page.count("<h2"), page.count("<h3")
        ('<!DOCTYPE html>', 1, 6)
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
            file.write(self._filled("page.html", anchored=True).encode())

    def _repr_html_(self) -> str:
        return self._filled("cell.html", anchored=False)

    def _filled(self, template: str, anchored: bool) -> str:
        """The page, or the cell; it links to its sections only if ``anchored``."""
        return rendered(template, anchored=anchored, **self._contents(), **IN_TEMPLATES)


def contents(title: str, explained: Story | None, program: str = "", notes: str = "") -> dict[str, Any]:
    """The contents of a page.

    Args:
        title: the title.
        explained: the explanation of the last kernel, which holds the explanations of earlier kernels.
        program: the text of a program.
        notes: a text below the program.
    """
    stories = [] if explained is None else [*explained.before, explained, *explained.after]
    return {"title": title, "program": program, "notes": notes, "stories": stories, "run": explained and explained.run}


IN_TEMPLATES = {
    function.__name__: function for function in (costs_in, description, levels_of, pass_adding, passes_of, report, result_of, tokens, tree)
}


def card(A: SparseTensor) -> str:
    """The notebook cell of a tensor: shape, data type, format, entries, bytes, and a collapsible view of levels and pattern.

    >>> import numscorch as ns, torch
    >>> "2 x 2, float32, CSR" in card(ns.from_torch(torch.eye(2), ns.CSR))
    True
    """
    drawn = sketch(A)
    shape = " x ".join(map(str, drawn.shape)) or "scalar"
    heading = f"{shape}, {drawn.values.dtype}, {drawn.format.name}{', requires grad' * A.requires_grad}"
    return rendered("card.html", drawn=drawn, heading=heading, stored=_stored(drawn), index_dtype=A.pattern.index_dtype, tree=tree)


def _stored(drawn: Sketch) -> str:
    """The number of entries, their density and their size in memory."""
    if drawn.entries is None:
        stored = f"{drawn.values.length:,} positions, some of them possibly padding"
    else:
        density = drawn.entries / max(prod(drawn.shape), 1)
        stored = f"{drawn.entries:,} entr{'y' if drawn.entries == 1 else 'ies'}, density {density:.3g}"
    return f"{stored}, {shown_bytes(drawn.bytes)}"
