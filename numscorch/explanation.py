"""Explanation: every stage of the compiler for one expression, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from .codegen.source import Source
from .errors import UnsupportedError
from .ir.format import Format
from .problem import Operand, Problem, row_major
from .runtime import kernel_cache
from .runtime.dispatch import compile_source, describe
from .schedule import Step
from .statements import NAMES, Request

SIZE = 1024
ROW = 16


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the compiler made of an expression; ``str`` shows all of it."""

    expr: str | Request
    operands: tuple[Operand, ...]
    problem: Problem
    steps: tuple[Step, ...]
    generated: Source
    path: Path

    @property
    def source(self) -> str:
        """The kernel's Python source."""
        return self.generated.text

    def __str__(self) -> str:
        lines = [f"einsum {self.expr}", ""]
        lines += [f"  {NAMES[at]}: {operand}, {operand.dtype}" for at, operand in enumerate(self.operands)]
        lines += ["", f"index notation    {self.problem.stmt}"]
        lines += [f"infer_format      {self.problem.result}: {self.problem.result.format.name}   ({self.problem.inference})"]
        for step in self.steps:
            lines += [f"{step.name:<17} {step.stmt}", f"{'':<17}   {step.why}"]
        return "\n".join([*lines, "", f"source            {self.path}", "", self.source])

    __repr__ = __str__


def explain_problem(expr: str | Request, operands: Sequence[Any], format: Format | str | None) -> Explanation:
    """Compile up to the source, write its file, and tell the story."""
    if all((o if isinstance(o, Format) else describe(o).format).is_dense for o in operands):
        raise UnsupportedError(f"every operand of {expr!r} is dense: einsum hands it to torch.einsum, and nothing is compiled")
    described = tuple(assumed(o) if isinstance(o, Format) else describe(o) for o in operands)
    problem, steps, source = compile_source(expr, described, format)
    return Explanation(expr, described, problem, steps, source, kernel_cache.store(source.name, source.text))


def assumed(format: Format) -> Operand:
    """A float32 tensor of size 1024 in every dimension, with 16 nonzeros below each position of a compressed level."""
    shape = (SIZE,) * format.order
    if format.is_dense:
        strides = dict(zip(format.mode_order, row_major(shape), strict=True))
        return Operand(format, shape, "float32", strides=tuple(strides[d] for d in range(format.order)))
    counts: list[int] = []
    for at, level in enumerate(format.levels):
        parents = counts[-1] if counts else 1
        grows = 1 if level.branchless else SIZE if level.full or at == 0 else ROW
        counts.append(min(parents * grows, prod(shape[: at + 1])))
    return Operand(format, shape, "float32", "int32", counts=tuple(counts))
