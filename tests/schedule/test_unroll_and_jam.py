"""Unroll-and-jam: several coordinates at once in products of blocks and dense matrices, with remainders and tiles."""

from __future__ import annotations

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.ir.index import Jam, Tile, loops_of
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.schedule.facts import Target

TARGETS = (Target(16, 16), Target(32, 16), Target(64, 32), Target(32, 16, own_cache=1 << 11))
FORMATS = (ns.BCSR(16, 1), ns.BCSR(4, 4), ns.BCSR(2, 3), ns.BCSR(3, 8), "(i, j) -> (i // 4: dense, j: compressed, i % 4: dense)")


def blocks(rows: int, columns: int) -> torch.Tensor:
    return integers(rows, columns) * (torch.rand(rows, columns, generator=torch.Generator().manual_seed(0)) < 0.3)


def tags(kept: list[plans.Plan]) -> set[type]:
    return {type(loop.tag) for plan in kept if isinstance(plan, plans.Plan) for loop in loops_of(plan.steps[-1].stmt)}


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_products_with_blocks(fmt: ns.Format | str, target: Target, plain: pytest.MonkeyPatch) -> None:
    plain.setattr(plans, "host", lambda: target)
    applied: set[type] = set()
    for at, (batch, rows, columns) in enumerate(((1, 32, 20), (2, 16, 9), (3, 33, 17), (8, 48, 24), (13, 20, 24), (40, 16, 16))):
        plain.setattr(tuning, "PARALLEL_STEPS", 0 if at % 2 else 1 << 15)
        dense = blocks(rows, columns)
        W, x, y = ns.from_torch(dense, fmt), integers(batch, columns), integers(columns, batch)
        assert torch.equal(ns.einsum("bi,oi->bo", x, W), x @ dense.T)
        assert torch.equal(ns.einsum("oi,ib->ob", W, y), dense @ y)
        assert torch.equal(ns.einsum("oi,bo->bi", W, integers(batch, rows)), integers(batch, rows) @ dense)
        applied |= tags(list(plans.PROCESS.plans.values()))
    assert Jam in applied or fmt == ns.BCSR(2, 3)
    if target.own_cache < 1 << 12 and fmt == ns.BCSR(16, 1):
        assert Tile in applied


@pytest.mark.parametrize("batch", [5, 16])
def test_compiled(batch: int, fresh_plans: pytest.MonkeyPatch) -> None:
    dense = blocks(64, 48)
    W, x = ns.from_torch(dense, ns.BCSR(16, 1)), integers(batch, 48)
    assert torch.equal(ns.einsum("bi,oi->bo", x, W), x @ dense.T)
    assert Jam in tags(list(plans.PROCESS.plans.values()))


def test_a_requested_order_is_kept(plain: pytest.MonkeyPatch) -> None:
    W, y = ns.from_torch(blocks(32, 32), ns.BCSR(4, 4)), integers(32, 16)
    ns.einsum("ij,jk->ik", W, y, schedule="reorder(i_in, i_out, j_out, j_in, k)")
    assert Jam not in tags(list(plans.PROCESS.plans.values()))


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_sums_that_multiply_a_broadcast_row(target: Target, plain: pytest.MonkeyPatch) -> None:
    """The sums are scalars, one for each coordinate, and have no index."""
    plain.setattr(plans, "host", lambda: target)
    for fmt in (ns.BCSR(2, 2), ns.BCSR(4, 1)):
        dense, x = blocks(8, 6), integers(7, 1)
        expected = dense.sum(1, keepdim=True) @ x.T
        assert torch.equal(ns.evaluate("R[i,k] = X[k,j] * A[i,j]", X=x, A=ns.from_torch(dense, fmt)), expected)
    assert Jam in tags(list(plans.PROCESS.plans.values()))


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("extent", [12, 24, 32])
def test_requested_tiles_are_kept(extent: int, size: int, plain: pytest.MonkeyPatch) -> None:
    a, X, B = ns.from_torch(integers(6), "s"), integers(extent, 10), integers(10, 64)
    result = ns.einsum("i,uj,jk->iuk", a, X, B, schedule=f"tile(u, {size})", format="dense")
    assert torch.equal(result, torch.einsum("i,uj,jk->iuk", integers(6), X, B))
    ns.einsum("i,uj,jk->iuk", a, X, B, schedule="tile()", format="dense")
    assert not any(isinstance(loop.tag, Jam) for plan in plans.PROCESS.plans.values() for loop in loops_of(plan.steps[-1].stmt))


def test_merges_and_repeated_coordinates_are_not_shared(plain: pytest.MonkeyPatch) -> None:
    """Each of several coordinates would walk the entries again."""
    dense = blocks(10, 11 * 12).reshape(10, 11, 12)
    X, B, D = integers(17, 12), integers(11, 64), blocks(3, 7)
    A = ns.from_torch(dense, ns.COO(3))
    assert torch.equal(ns.evaluate("R[i,u,k] = A[i,j,l]*X[u,l]*B[j,k]", A=A, X=X, B=B), torch.einsum("ijl,ul,jk->iuk", dense, X, B))
    Y, Z = integers(17, 7), integers(7, 64)
    for target in TARGETS:
        plain.setattr(plans, "host", lambda target=target: target)
        product = ns.einsum("ij,ij,uj,jk->iuk", ns.from_torch(D, ns.CSR), ns.from_torch(D.abs(), ns.CSR), Y, Z)
        assert torch.equal(product, torch.einsum("ij,ij,uj,jk->iuk", D, D.abs(), Y, Z))


@pytest.mark.parametrize(("block", "rows"), [((4, 1), 4), ((4, 2), 4), ((8, 1), 8), ((2, 2), 2)])
def test_one_row_of_blocks(block: tuple[int, int], rows: int, plain: pytest.MonkeyPatch) -> None:
    dense = blocks(rows, 24)
    W = ns.from_torch(dense, ns.BCSR(*block))
    for k in (8, 9, 16, 32, 64):
        assert torch.equal(ns.einsum("oi,ik->ok", W, integers(24, k)), dense @ integers(24, k))


@pytest.mark.parametrize(("share", "batch", "tiled"), [(0.1, 40, True), (0.1, 45, True), (0.9, 40, False), (0.1, 8, False)])
def test_rows_that_are_read_sparsely_stay_in_the_nearest_cache(share: float, batch: int, tiled: bool, plain: pytest.MonkeyPatch) -> None:
    """A tile has as many rows as are computed at once; blocks, which are read again for each tile, are smaller than the rows."""
    plain.setattr(plans, "host", lambda: Target(64, 32))
    plain.setattr(tuning, "NEAREST_CACHE", 8 * 128 * 4)
    dense = integers(64, 128) * (torch.rand(4, 1, 128, generator=torch.Generator().manual_seed(1)) < share).repeat(1, 16, 1).reshape(
        64, 128
    )
    W, x = ns.from_torch(dense, ns.BCSR(16, 1)), integers(batch, 128)
    assert torch.equal(ns.einsum("bi,oi->bo", x, W), x @ dense.T)
    assert (Tile in tags(list(plans.PROCESS.plans.values()))) == tiled


def test_common_terms_of_positions_are_added_once(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(plans, "host", lambda: Target(64, 32))
    dense = integers(32, 4).repeat_interleave(10, 1) * (torch.arange(40) % 10 == 3)
    W, x = ns.from_torch(dense, ns.NM(1, 10, rows=16)), integers(16, 40)
    assert torch.equal(ns.einsum("bi,oi->bo", x, W), x @ dense.T)
    (plan,) = (plan for plan in plans.PROCESS.plans.values() if isinstance(plan, plans.Plan))
    source = plan.kernel.source.text
    assert source.count("pA_all = i_out * A_stride1 + i_in") == 1
    assert "A_vals[b_u1 * A_stride0 + pA_all]" in source
