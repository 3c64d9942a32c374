"""AssemblingBinder: writes the function of a plan whose result has a new pattern, computed by several kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from ..codegen.assembly import WORKSPACE, Param
from ..codegen.kernel import Kernel
from ..codegen.result_assembly import Stage, is_spaced
from ..codegen.workspaces import has_level
from ..frontend.problem import Problem
from ..frontend.requests import NAMES, Operand
from ..ir import index as ix
from ..ir.derived_formats import runs_of
from ..ir.result_bounds import Bound, bound_of
from ..ir.scatter import is_placed
from ..ir.symbolic import text_of
from ..ir.workspace_levels import Hashed
from ..machine import memory
from .binder import Bind, Binder
from .product_bounds import pair_product_in
from .result_arrays import ResultLayout, bounded_starts, packed_room, workers_for

BLOCK_PER_WORKER = {"cuts": "cuts", "blocks": "n"}  # arguments of a kernel that gives each worker one block
PARTS = "R_pos, R_crd, R_vals"  # arrays of a result whose number of entries is bounded in advance
APPENDED, CLOSED = f"return layout.appended({PARTS}, int(starts[0]))", f"return layout.closed(({PARTS}), S, starts, parents)"


class AssemblingBinder(Binder):
    """Writes the function of a plan whose result has a new pattern: bound packed rows, count entries, allocate, fill."""

    def __init__(
        self,
        problem: Problem,
        stmt: ix.Stmt,
        kernel: Kernel,
        operands: Sequence[Operand],
        parallel: bool,
        before: Mapping[Stage, Kernel],
    ):
        super().__init__(problem, stmt, kernel, operands, parallel)
        self.before = before
        self.runs = len(runs_of(self.result.format))
        self.placed, self.bound = is_placed(stmt), bound_of(stmt)
        values = getattr(np, self.result.dtype), self.result.index_dtype, self.fill()
        self.each = ResultLayout(problem.format, problem.shape, *values).each
        self.scope |= {function.__name__: function for function in (packed_room, bounded_starts, workers_for, ResultLayout)}
        self.scope |= {"format": problem.format, "values": values}
        self.checks.append(f"layout = ResultLayout(format, {self.numbers_of(problem.shape)}, *values)")

    def function(self) -> Bind:
        if self.bound is not None:
            return self.compile_body([*self.patterns(), *self.bounded_lines(self.bound)])
        most = f"min(workers(), {self.fixed(f'workers_for({text_of(self.parents)})')})" if self.placed else "workers()"
        body = [*self.patterns(), *self.size_check(), f"n = {most}" if self.parallel else "n = 1", *self.workspace_lines()]
        body += self.single_pass_lines() if "once" in self.before else []
        body += self.allocation()
        body += [*self.call_lines("fill", self.kernel), "return layout.finished(R)"]
        return self.compile_body(body)

    def size_check(self) -> list[str]:
        """Lines that refuse a product whose lower bound exceeds a limit, before its entries are counted."""
        product = pair_product_in(self.problem, self.accesses)
        if product is None or prod(self.problem.shape) * self.each <= memory.ASK_FROM:
            return []
        self.scope["product"] = product
        patterns = ", ".join(f"P{NAMES.index(name)}" for name in product.names)
        copies = prod(self.problem.extents[var] for var in self.problem.stmt.lhs.indices if var not in product.kept)
        return [f"product.check(layout, {self.number(copies)}, {patterns})"]

    def single_pass_lines(self) -> list[str]:
        """Lines that append entries in one pass, if the number of insertions into rows is small enough to allocate."""
        lines = [f"bounds = np.zeros({self.blocks}, np.int64)", *self.call_lines("room", self.before["room"])]
        if not self.parallel:
            one_pass = [f"cuts = {self.cuts()}"] if self.kernel.source.program.parallel else []
            one_pass += ["starts = np.zeros(1, np.int64)", f"{PARTS} = layout.bounded(most)"]
            one_pass += [*self.call_lines("once", self.before["once"], BLOCK_PER_WORKER), APPENDED]
            return [*lines, "most = int(bounds[0])", "if layout.has_room(most):", *(f"    {line}" for line in one_pass)]
        lines += [f"S = np.zeros({self.blocks + 1}, np.int64)", "np.cumsum(bounds, out=S[1:])", "if layout.has_room(int(S[-1])):"]
        one_pass = ["first = shared_out(S, n)", f"S, cuts = S[first], {self.cuts()}[first]", f"parents = cuts * {self.number(self.inner)}"]
        one_pass += ["starts = S[:-1].copy()", f"{PARTS} = layout.bounded(int(S[-1]))"]
        return [*lines, *(f"    {line}" for line in [*one_pass, *self.call_lines("once", self.before["once"], BLOCK_PER_WORKER), CLOSED])]

    @property
    def inner(self) -> int:
        """Number of parents below each coordinate of the outermost loop, for a result with one sparse level."""
        return prod(self.problem.format.sizes(self.problem.shape)[1:-1])

    def bounded_lines(self, bound: Bound) -> list[str]:
        """Lines that append entries in one pass, at positions bounded by the operands, and close the gaps between workers."""
        patterns, sizes = [f"P{NAMES.index(name)}" for name in bound.operands], self.problem.format.sizes(self.problem.shape)
        counts = [f"{pattern}.counts[-1]" for pattern in patterns] or [self.number(prod(sizes))]
        most = f"min(({', '.join(counts)},))" if bound.each else " + ".join(counts)
        fill = self.call_lines("fill", self.kernel)
        if not self.parallel:
            lines = ["n = 1", *self.workspace_lines(), "starts = np.zeros(1, np.int64)", f"{PARTS} = layout.bounded({most})"]
            return [*lines, *fill, APPENDED]
        starts_source = (
            f"bounded_starts(({', '.join(patterns)},), {bound.each}, parents)" if patterns else f"parents * {self.number(sizes[-1])}"
        )
        return [
            "n = workers()",
            "if n == 1:",
            f"    parents, S, starts = None, (0, {most}), np.zeros(1, np.int64)",
            "else:",
            f"    parents = {self.cuts()} * {self.number(self.inner)}",
            f"    S = {starts_source}",
            "    starts = S[:-1].copy()",
            *self.workspace_lines(),
            f"{PARTS} = layout.bounded(int(S[-1]))",
            *fill,
            CLOSED,
        ]

    def allocation(self) -> list[str]:
        """Lines that count the result's entries and allocate its arrays.

        Placed entries are counted for each parent and worker, appended entries for each block and run.
        """
        if is_spaced(self.result.format):
            return ["R = layout.spaced(P0)"]
        counted = self.call_lines("count", self.before["count"]) if self.runs else []
        if self.placed:
            return [f"heads = layout.heads(n, {self.number(self.parents)})", *counted, "R = layout.placed(heads, n)"]
        return [f"starts = np.zeros({self.blocks * self.runs}, np.int64)", *counted, "R = layout.allocated(starts)"]

    @property
    def pieces(self) -> str:
        return "n" if self.parallel and (self.placed or self.bound is not None) else super().pieces  # entries are not summed

    @property
    def parents(self) -> int:
        """Number of parents of a placed result's entries."""
        ((first, _),) = runs_of(self.result.format)
        return prod(self.problem.format.sizes(self.problem.shape)[:first])

    def capacity_lines(self, space: ix.Access) -> list[str]:
        """Lines that find the largest number of insertions into one row, and the size of a workspace for them."""
        extent = self.number(self.problem.extents[space.indices[0]])
        line = f"{space.tensor.name}_size = packed_room(bounds, {extent}, n, stmt, {has_level(space.tensor, Hashed)})"
        return [f"bounds = np.zeros({self.blocks}, np.int64)", *self.call_lines("bound", self.before["bound"]), line]

    def argument(self, param: Param, stage: str = "kernel") -> str:
        if param.what in ("heads", "parents"):
            return "heads" if param.is_array else self.number(self.parents)
        if param.what in ("starts", "bounds", "capacity", *WORKSPACE):
            return param.name
        if param.of == self.result.name and param.is_array:
            if self.bound is not None or stage == "once":
                return f"R_{param.what}"
            return "R.values" if param.what == "vals" else f"R.index[{param.at}, {param.what!r}]"
        return super().argument(param, stage)
