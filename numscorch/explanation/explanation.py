"""The stages of the compiler for one expression, as text or as a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ..errors import FormatError, UnsupportedError
from ..frontend.datatypes import STORED, promotion_of
from ..frontend.requests import Operand, Request, row_major
from ..ir.format import COO, CSF, Format, dense, named_formats
from ..ir.padded import Fixed
from ..programs.operands import admit
from .page import Paged, contents
from .roofline import timed_run
from .story import Story
from .work import work_of

SIZE = 1024  # assumed extent of each dimension, where a format stands for an operand
ROW = 16  # assumed nonzeros per position of a compressed level


class Explanation(Story, Paged):
    """The compiler's stages and the source of one kernel. ``str`` prints them, ``save`` writes them as an HTML page."""

    def __str__(self) -> str:
        first, *others = (*self.problem.members, self.problem.stmt)
        lines = [
            *(f"{part}\n" for part in self.before),
            self.title,
            "",
            *(f"  {name}{operand}, {operand.dtype}{remark and ', '}{remark}" for name, operand, remark in self.read),
            "",
            f"index notation    {first}",
            *(f"{'':<17} {other}" for other in others),
            *(f"{'':<17}   {variable} = {parts}" for variable, parts in self.variables.items()),
            f"infer_format      {self.problem.result}: {self.problem.format.name}   ({self.problem.inference})",
        ]
        layout, slabs, panels = self.problem.layout, self.problem.slabs, self.problem.panels
        copies = (
            (layout and layout.result, f"{self.problem.result} is written with {layout}, then copied"),
            (slabs, f"in {slabs}, one after the other, so that their copies stay in the cache"),
            (panels, f"dense tensors are copied in {panels}, each of which is contiguous"),
        )
        lines += [f"{'':<17}   {text}" for kind, text in copies if kind is not None]
        for step in self.steps:
            lines += [f"{step.name:<17} {step.stmt}", f"{'':<17}   {step.why}"]
        notes = [f"{name:<17} {text}" for name, text in self.notes]
        timed = [] if self.run is None else [f"{'timed':<17} {self.run}"]
        return "\n".join([*lines, *notes, "", f"source            {self.where}", "", self.source, *self.after, *timed])

    __repr__ = __str__

    def _contents(self) -> dict[str, Any]:
        count = sum(not isinstance(part, str) for part in (*self.before, self))
        return contents(self.title if count == 1 else f"{count} kernels, the last one: {self.title}", self)


def read_formats(expr: str, operands: Sequence[Any]) -> list[Any]:
    """The operands of an einsum, with each text replaced by the format it names.

    Raises:
        FormatError: a format is unknown, or the number of operands differs from the number of terms.

    >>> [fmt.name for fmt in read_formats("ijk,kl->ijl", ["COO", "dense"])]
    ['COO(3)', 'dense']
    """
    terms = expr.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(operands):
        raise FormatError(f"{expr!r} has {len(terms)} operands, but {len(operands)} were given: give a tensor, or a format, for each")
    return [read_format(given, len(re.findall("[A-Za-z]", term))) for given, term in zip(operands, terms, strict=True)]


def read_format(given: Any, order: int) -> Any:
    """The format that a text describes, for an operand of this order. Values other than texts are returned unchanged.

    The text is a format's description, as ``Format`` takes it, or a name such as dense or coo (in any case).

    Raises:
        FormatError: the text is neither.
    """
    if not isinstance(given, str):
        return given
    sized = {"dense": dense(order), "COO": COO(order), "CSF": CSF(order)}
    known = {name.casefold(): value for name, value in (named_formats(order) | sized).items()}
    if given.strip().casefold() in known:
        return known[given.strip().casefold()]
    try:
        return Format(given)
    except FormatError as error:
        raise FormatError(f"{error}\n  or a name, for this operand of order {order}: {', '.join(sorted(known))}") from error


def explained(operand: Any) -> Any:
    """An operand of explain as a kernel takes it: a number becomes a tensor; formats and their texts are returned unchanged."""
    if isinstance(operand, str | Format):
        return operand
    with torch.no_grad():
        return admit(torch.tensor(float(operand)) if isinstance(operand, int | float) else operand)


def as_computed(
    request: Request, operands: Sequence[Operand], dtypes: Sequence[torch.dtype]
) -> tuple[Request, tuple[Operand, ...], torch.dtype]:
    """The request that kernels compute for operands of these data types, the operands as kernels read them, and the result's data type.

    Raises:
        UnsupportedError: no kernel computes with these data types (see ``datatypes.target_of``).
    """
    target = promotion_of(request, tuple([(dtype, len(operand.shape)) for dtype, operand in zip(dtypes, operands, strict=True)]))
    computed = [replace(operand, dtype=STORED[target.computed].computed) for operand in operands]
    promoted = tuple(c if dtype in (torch.bool, torch.uint8) else o for dtype, o, c in zip(dtypes, operands, computed, strict=True))
    return target.of_kernels(request), promoted, target.result


def timed_story(
    story: Explanation, call: Callable[[], Any], expr: str | Request, operands: Sequence[Any] | Mapping[str, Any]
) -> Explanation:
    """Add a timed run to an explanation.

    Args:
        story: the explanation.
        call: runs the explained computation.
        expr: the einsum, request or program, as for :func:`~numscorch.explanation.work.work_of`.
        operands: its operands, as for ``work_of``.

    Raises:
        UnsupportedError: a format stands for an operand.
    """
    if any(isinstance(operand, str | Format) for operand in (operands.values() if isinstance(operands, Mapping) else operands)):
        raise UnsupportedError(f"timed=True: a format stands for an operand, so there is nothing to compute: pass tensors\n  {story.title}")
    return replace(story, run=timed_run(call, lambda result: work_of(expr, operands, result)))


def assumed(format: Format) -> Operand:
    """The operand assumed for a format: float32, size 1024 in every dimension, 16 nonzeros per position of a compressed level."""
    return described(format, (SIZE,) * format.order, "float32")


def described(format: Format, shape: tuple[int, ...], dtype: str) -> Operand:
    """The operand assumed for a format, shape and data type, with 16 nonzeros per position of a compressed level."""
    if format.is_dense:
        strides = dict(zip(format.mode_order, row_major(shape), strict=True))
        return Operand(format, shape, dtype, strides=tuple(strides[d] for d in range(format.order)))
    counts = [1]  # the root has one position
    format = Format([Fixed(ROW) if level == Fixed() else level for level in format.levels], format.parts)
    for at, (level, size) in enumerate(zip(format.levels, format.sizes(shape), strict=True)):
        grows = size if level.full or at == 0 else min(ROW, size) if level.arrays and not level.branchless else int(level.fan(size))
        counts.append(min(counts[-1] * grows, prod(format.sizes(shape)[: at + 1])))
    return Operand(format, shape, dtype, "int32", counts=tuple(counts[1:]))
