"""Rewrite the generated blocks of README.md and the pages in docs: ``python docs/refresh.py``.

A block stands between ``<!-- begin NAME -->`` and ``<!-- end -->``. What it holds depends on the
compiler, and on the lanes of the processor it runs on; tables of measurements on the newest recorded run (``benchmarks/tables.py``).
``python docs/refresh.py NAME ...`` rewrites only the blocks of these names.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from unstored import operators_of, reductions

import numscorch as ns
from numscorch.compute.operands import identify
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.statements import einsum_request
from numscorch.ir.loop import Block, For, walk_block
from numscorch.machine.target import host
from numscorch.runtime.binder import Binder
from numscorch.runtime.plans import describe, find_plan

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for benchmarks, which is no installed package

from benchmarks.highlights import compiling, highlights  # noqa: E402
from benchmarks.tables import measurements  # noqa: E402

FILES = (
    *("README.md", "docs/ARCHITECTURE.md", "docs/OPERATORS.md", "docs/performance.md"),
    *("docs/decisions/blocks-and-diagonals.md", "docs/guide/explain.md"),
)
EXPRESSION = "ij,jk->ik"

rows = torch.arange(10_000).repeat_interleave(4)
columns = (rows + torch.tensor([0, 1, 100, 101]).repeat(10_000)) % 10_000
mesh = ns.from_coo(torch.stack([rows, columns]), torch.rand(40_000), (10_000, 10_000), format=ns.CSR)
X = torch.rand(10_000, 32)

plan = find_plan(einsum_request(EXPRESSION, (2, 2)), None, *identify((mesh, X)))
explanation = ns.explain(EXPRESSION, mesh, X)


def passes() -> str:
    """Index notation and every pass, with the file."""
    text = str(explanation).replace(str(Path(explanation.where).parent), "~/.cache/numscorch")
    return text[text.index("index notation") : text.index('"""')]


def kernel() -> str:
    """The kernel's functions, without what they import."""
    return "...\n" + explanation.source[explanation.source.index("def body(") :]


def subscripts() -> str:
    """What the parser makes of the text."""
    return repr(parse_einsum(EXPRESSION, (2, 2)))


def operands() -> str:
    """What the compiler knows of the sparse operand, and of the machine."""
    return f"{describe(mesh)!r}\n{host()}"


def facts() -> str:
    """What the passes may know."""
    known = plan.problem.facts
    return "\n".join(f"{var}: about {size}, {known.tiling(var)}" for var, size in known.extents) + "".join(
        f"\n{name}: {fmt.name}, about {counts} positions in its levels" for name, fmt, counts in known.counts
    )


def loop_ir() -> str:
    """The first statements of the loop over a row's nonzeros."""
    inner = next(s for s in walk_block(body()) if isinstance(s, For) and s.var.name == "pA2")
    return "\n".join(map(repr, inner.body[:2]))


def body() -> Block:
    """The kernel as loop IR."""
    return plan.kernel.source.program.functions[0].body


def source() -> str:
    """The kernel's file."""
    return explanation.source


class Printed(Binder):
    """A binder that keeps the lines of its function."""

    lines: list[str]

    def compile_body(self, body: list[str]) -> Callable[..., Any]:
        self.lines = body
        return super().compile_body(body)


def binder() -> str:
    """The function of the plan."""
    printed = Printed(plan.problem, plan.steps[-1].stmt, plan.kernel, [describe(o) for o in (mesh, X)], parallel=True)
    printed.function()
    return "\n".join([f"def run{inspect.signature(plan.run)}:", *(f"    {line}" for line in printed.lines)])


def unary() -> str:
    """What is left of functions of one operand."""
    return operators_of(1)


def binary() -> str:
    """What is left of operators and functions of two operands."""
    return operators_of(2)


def ternary() -> str:
    """What is left of functions of three operands."""
    return operators_of(3)


TABLES: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (unary, binary, ternary, reductions, compiling, highlights, measurements)
}


def parts() -> str:
    """The statement of a product with a matrix in blocks."""
    rows = str(ns.explain(EXPRESSION, ns.BCSR(4, 2), "dd")).splitlines()
    first = next(at for at, row in enumerate(rows) if row.startswith("index notation"))
    return "\n".join(rows[first : first + 3])


BLOCKS: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (passes, kernel, subscripts, operands, facts, loop_ir, source, binder, parts)
}


def refreshed(text: str, only: Sequence[str] = ()) -> str:
    """The text with every block, or those of these names, as it is now."""

    def block(found: re.Match[str]) -> str:
        if only and found[1] not in only:
            return found[0]
        if found[1] in TABLES:
            return f"<!-- begin {found[1]} -->\n{TABLES[found[1]]()}\n<!-- end -->"
        content = "\n\n".join(BLOCKS[name]().strip("\n") for name in found[1].split())
        return f"<!-- begin {found[1]} -->\n```{'python' if found[1] in ('source', 'kernel') else 'text'}\n{content}\n```\n<!-- end -->"

    return re.sub(r"<!-- begin ([\w ]+) -->\n.*?<!-- end -->", block, text, flags=re.DOTALL)


if __name__ == "__main__":
    for name in FILES:
        file = ROOT / name
        file.write_text(refreshed(file.read_text(), sys.argv[1:]))
