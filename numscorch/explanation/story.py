"""The contents of a kernel's explanation: its operands, the compiler's stages, its source, and what the stages did to its loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..codegen.source import Source
from ..frontend.problem import Problem
from ..frontend.requests import NAMES, Operand, Request
from ..ir.format import dense
from ..ir.index import PATTERN, Forall, TensorVar, accesses_in, assignments, loops_of
from ..runtime.pieces import operand_to_cut
from ..schedule import Step
from .roofline import TimedRun
from .sketches import Sketch

COST = re.compile(r"(?P<what>[^:;]+): (?P<cost>\d[\d.]*(?:e[+-]?\d+)?)(?P<moved>(?:, [^;]+)?)")


@dataclass(frozen=True, slots=True)
class Story:
    """The compiler's stages and the source of one kernel, and the parts of its program that run before and after it."""

    title: str
    operands: tuple[Operand, ...]
    problem: Problem
    steps: tuple[Step, ...]
    generated: Source
    path: Path | None
    request: Request
    names: tuple[str, ...] = ()
    before: tuple[Story | str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    after: tuple[str, ...] = ()
    sketches: tuple[Sketch | None, ...] = ()
    run: TimedRun | None = None

    @property
    def where(self) -> str:
        return "not written: no kernel folder is writable" if self.path is None else str(self.path)

    @property
    def read(self) -> list[tuple[str, Operand, str]]:
        """For each operand: its label, its description, and a remark if the kernel reads a conversion or a copy of it."""
        names = self.names or tuple(NAMES[: len(self.operands)])
        labels = [f"{NAMES[at]}: {'' if name == NAMES[at] else name + ', '}" for at, name in enumerate(names)]
        return [(name, operand, self._read_as(at)) for at, (name, operand) in enumerate(zip(labels, self.operands, strict=True))]

    @property
    def variables(self) -> dict[str, str]:
        """For each index that an operand stores in parts, and for each diagonal: the formula that computes it from loop variables.

        >>> import numscorch as ns
        >>> ns.explain("ij->", "BCSR(2, 4)").variables
        {'i': '2 * i_out + i_in', 'j': '4 * j_out + j_in'}
        """
        sums: dict[str, str] = {}
        for access in accesses_in(self.problem.stmt.rhs):
            fmt = self.problem.stored.get(access.tensor.name, dense(0))
            named = [] if fmt.is_plain else sorted(zip(fmt.parts, access.indices, strict=True), key=lambda pair: -pair[0].divisor)
            unsplit = {part.dimension: var for part, var in named if part.is_whole}
            sums |= {
                str(v): f"{unsplit[p.dimension]} - {unsplit[p.minus]} + {self.problem.extents[unsplit[p.minus]] - 1}"
                for p, v in named
                if p.minus is not None
            }
            for dimension in range(fmt.order):
                split = [
                    (part.divisor, var) for part, var in named if part.dimension == dimension and not part.is_whole and part.minus is None
                ]
                if split:
                    name = split[0][1].name.rpartition("_")[0]
                    sums[name] = " + ".join(f"{times} * {var}" if times > 1 else str(var) for times, var in split)
        return sums

    @property
    def source(self) -> str:
        return self.generated.text

    def _read_as(self, at: int) -> str:
        """How the kernel reads an operand, if it doesn't read the stored format directly; else an empty string."""
        stored, layout = self.problem.stored.get(NAMES[at], self.operands[at].format), self.problem.layout
        if layout is not None and at in layout.operands:
            return f"copied with {layout}"
        if operand_to_cut(self.request, self.problem, self.operands) == at:
            return "with long rows cut into parts"
        read = [access.tensor.dtype for access in accesses_in(self.problem.stmt.rhs) if access.tensor.name == NAMES[at]]
        converted = [f"converted to {dtype}" for dtype in read[:1] if dtype not in (PATTERN, self.operands[at].dtype)]
        return ", ".join(converted + ([] if stored == self.operands[at].format else [f"read as {stored.name}"]))


def passes_of(loop: Forall, steps: Sequence[Step]) -> list[str]:
    """The pass that created a loop of the last step, and, if it differs, the pass that set the loop's tag.

    >>> from ..ir.notation import parse_stmt
    >>> texts = "forall(i, y[i] = x[i])", "parallel_forall(i, y[i] = x[i])"
    >>> steps = [Step(name, parse_stmt(text), "") for name, text in zip(("order_loops", "parallelize"), texts)]
    >>> passes_of(loops_of(steps[-1].stmt)[0], steps)
    ['order_loops', 'parallelize']
    """
    *_, tagged = takewhile(lambda step: _count(step, loop, with_tag=True) > 0, reversed(steps))
    before = steps.index(tagged) - 1
    if before < 0 or _count(tagged, loop, with_tag=False) > _count(steps[before], loop, with_tag=False):
        return [tagged.name]  # the same pass created the loop
    first_step = _first(steps, lambda step: _count(step, loop, with_tag=False) > 0)
    return list(dict.fromkeys([first_step, tagged.name]))


def _count(step: Step, loop: Forall, with_tag: bool) -> int:
    return sum(inner.var == loop.var and (inner.tag == loop.tag or not with_tag) for inner in loops_of(step.stmt))


def _first(steps: Sequence[Step], holds: Callable[[Step], bool]) -> str:
    return next(step.name for step in steps if holds(step))


def pass_adding(workspace: TensorVar, steps: Sequence[Step]) -> str:
    """The pass that added a workspace."""
    return _first(steps, lambda step: workspace.name in {assignment.lhs.tensor.name for assignment in assignments(step.stmt)})


def description(loop: Forall) -> str:
    """The first sentences of the documentation of a loop's tag and of its partial sums."""
    texts = [" ".join((part.__doc__ or "").split()) for part in (loop.tag, loop.sums) if part is not None]
    return " ".join(text.partition(". ")[0].rstrip(".") + "." for text in texts)


def costs_in(why: str) -> list[tuple[str, float]]:
    """The alternatives that a pass compared and their costs, in the text's order (cheapest first); empty without a comparison.

    >>> costs_in("ijk: 2.56e+05; jik: 7.94e+05, A stored as CSC")
    [('ijk', 256000.0), ('jik, A stored as CSC', 794000.0)]
    """
    pieces = [COST.fullmatch(piece.strip()) for piece in why.split("; ")]
    return [(match["what"] + match["moved"], float(match["cost"])) for match in pieces if match]
