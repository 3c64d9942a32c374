"""Starts of rows are loaded once, and read from variables while these are valid."""

from __future__ import annotations

import torch

import numscorch as ns
from numscorch.codegen.row_starts import reuse_starts
from numscorch.ir.loop import Accumulate, Assign, Block, Const, For, If, Store, Var, While
from numscorch.nn import SparseAttention
from numscorch.runtime import plans as dispatch

i, j, n, p, q, pos, first, y = (Var(name) for name in ("i", "j", "n", "p", "q", "pos", "first", "y"))
LOAD = Assign(first, pos[i])


def reused(*block: Assign | Accumulate | For | If | Store | While) -> Block:
    return reuse_starts(block, {"pos"})


def test_loops_and_branches_read_the_variable() -> None:
    inner, reuse = Store(y, pos[i], pos[i]), Store(y, first, first)
    assert reused(LOAD, For(p, pos[i], n, (inner,))) == (LOAD, For(p, first, n, (reuse,)))
    assert reused(LOAD, If(p < pos[i], (inner,), (LOAD, inner))) == (LOAD, If(p < first, (reuse,), (reuse,)))
    assert reused(LOAD, While(p < pos[i], (inner, Accumulate(p, Const(1))))) == (LOAD, While(p < first, (reuse, Accumulate(p, Const(1)))))


def test_a_change_of_the_variable_or_of_the_row_ends_reuse() -> None:
    inner = Store(y, p, pos[i])
    for change in (Assign(first, n), Accumulate(first, Const(1)), Assign(i, n), For(i, Const(0), n, (LOAD,))):
        assert reused(LOAD, change, inner)[-1] == inner
        assert reused(LOAD, For(q, Const(0), n, (inner, change)))[-1] == For(q, Const(0), n, (inner, change))


def test_loads_in_a_branch_or_loop_are_not_reused_after_it() -> None:
    inner = Store(y, p, pos[i])
    assert reused(If(p < n, (LOAD,)), inner)[-1] == inner
    assert reused(For(q, Const(0), n, (LOAD,)), inner)[-1] == inner


def test_threads_and_reads_of_written_arrays_load_again() -> None:
    inner = Store(y, p, pos[i])
    workers = For(q, Const(0), n, (inner,), parallel=True)
    assert reused(LOAD, workers) == (LOAD, workers)
    block = (LOAD, Store(pos, i, n), inner)
    assert reused(*block) == block


def test_loops_of_a_fused_kernel_share_the_ends_of_a_row(plain: object) -> None:
    pattern = ns.from_torch((torch.rand(12, 12, generator=torch.Generator().manual_seed(0)) < 0.5).float(), ns.CSR)
    query, key, value = (torch.rand(1, 2, 12, 8) for _ in range(3))
    SparseAttention(pattern)(query, key, value)
    source = max((plan.kernel.source.text for plan in dispatch._plans.values() if isinstance(plan, dispatch.Plan)), key=len)
    assert source.count("_pos[i]") == source.count("_pos[i + 1]") == 1
