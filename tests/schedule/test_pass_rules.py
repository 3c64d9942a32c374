"""Statements before and after each pass, and the division of extents into tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from corpus import TARGET

import numscorch as ns
from numscorch.codegen.workspaces import workspaces_of
from numscorch.errors import ScheduleError
from numscorch.ir.format import CSC, CSR, Format
from numscorch.ir.index import Positions, Serial, Stmt, TensorVar, Unroll, Vector, loops_of
from numscorch.ir.level import Level
from numscorch.ir.notation import parse_stmt
from numscorch.ir.workspace_levels import Hashed, Listed
from numscorch.schedule import tuning
from numscorch.schedule.facts import Facts, Options, Target, Tiling, rounded, tiling, tiling_within
from numscorch.schedule.parallel import parallelize, pays
from numscorch.schedule.tiles import tile
from numscorch.schedule.unroll_and_jam import unroll_and_jam
from numscorch.schedule.vector import vectorize
from numscorch.schedule.workspace import insert_workspaces

SPMM = "forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k])))"

# ---- insert_workspaces


WORKSPACES = [
    ("forall(i, forall(j, y[i] += A[i,j]))", "forall(i, where(y[i] = t, forall(j, t += A[i,j])))"),
    ("forall(i, s += x[i])", "where(s = t, forall(i, t += x[i]))"),
    ("forall(j, forall(i, forall(k, y[i] += A[i,j,k])))", "forall(j, forall(i, where(y[i] += t, forall(k, t += A[i,j,k]))))"),
    (
        "forall(i, forall(j, forall(k, s += A[i,j] * B[j,k])))",
        "where(s = t, forall(i, forall(j, where(t += A[i,j] * u, forall(k, u += B[j,k])))))",
    ),
    ("forall(i, forall(j, y[i] += b[i] * A[i,j]))", "forall(i, where(y[i] = b[i] * t, forall(j, t += A[i,j])))"),
]
UNTOUCHED = [
    "forall(i, y[i] = x[i])",
    "forall(j, forall(i, y[i] += A[i,j]))",
    "forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k])))",
    "forall(i, where(y[i] = t, forall(j, t += A[i,j])))",
]


@pytest.mark.parametrize(("before", "after"), WORKSPACES)
def test_innermost_sums_stay_in_a_register(before: str, after: str) -> None:
    assert str(insert_workspaces(parse_stmt(before), Facts(()))[0]) == after


@pytest.mark.parametrize("text", UNTOUCHED)
def test_statements_without_an_innermost_sum_are_the_same_object(text: str) -> None:
    stmt = parse_stmt(text)
    assert insert_workspaces(stmt, Facts(()))[0] is stmt


def collected(size: int, nonzeros: int) -> tuple[Stmt, str]:
    """A product of two square CSR matrices after the pass."""
    tensors = {name: TensorVar(name, CSR) for name in "ABC"}
    stmt = parse_stmt(SPMM, tensors)
    counts = dict.fromkeys("AB", (CSR, (size, nonzeros)))
    return insert_workspaces(stmt, Facts.of({loop.var: size for loop in loops_of(stmt)}, counts, 8, TARGET))


@pytest.mark.parametrize(
    ("size", "nonzeros", "level"),
    [
        (1000, 5000, Listed()),  # the dense arrays fit in the cache
        (200_000, 200_000, Listed()),
        (2**20, 2**21, Hashed()),  # four sums for each position
        (2**20, 2**22, Listed()),  # sixteen sums
        (10**8, 10**6, Hashed()),
    ],
)
def test_rows_are_hashed_if_dense_arrays_are_large_and_rarely_used(size: int, nonzeros: int, level: Level) -> None:
    stmt, why = collected(size, nonzeros)
    assert str(stmt) == "forall(i, where(forall(k, C[i,k] = w[k]), forall(j, forall(k, w[k] += A[i,j] * B[j,k]))))"
    assert workspaces_of(stmt)[0].tensor.format.levels == (level,)
    assert ("a hash table" in why) == (level == Hashed())


# ---- tile

CACHE = Target(32, 16, cache=32 << 20)


def cut(text: str, nonzeros: int = 10**6, requested: tuple[str, int] | None = None, fmt: Format = CSR, **extents: int) -> tuple[Stmt, str]:
    """The statement after the pass, with sparse operand A; extents default to 10,000."""
    stmt = parse_stmt(text, {name: TensorVar(name, fmt, shares="A" if name == "D" else None) for name in "AD"})
    sizes = {loop.var: extents.get(loop.var.name, 10_000) for loop in loops_of(stmt)}
    return tile(stmt, Facts.of(sizes, {"A": (fmt, (extents.get("i", 10_000), nonzeros))}, 8, CACHE), CACHE, Options(tile=requested))


@pytest.mark.parametrize(
    ("i", "j", "k", "nonzeros", "size"),
    [
        (10_000, 10_000, 1000, 10**6, 128),
        (10_000, 10_000, 512, 10**6, 128),
        (2500, 2500, 4000, 250_000, 512),
        (10_000, 10_000, 256, 10**6, None),  # B fits in the cache
        (10_000, 10_000, 1000, 100_000, None),  # each row of B is used only ten times
        (50_000, 10_000, 1000, 500_000, None),  # each row of C has ten terms
        (10_000, 50_000, 1000, 10**6, None),  # tiles of B would be only 32 columns wide
    ],
)
def test_tiles_where_a_dense_operand_is_too_large_for_the_cache(i: int, j: int, k: int, nonzeros: int, size: int | None) -> None:
    stmt, why = cut(SPMM, nonzeros, i=i, j=j, k=k)
    assert str(stmt) == (f"tile_forall<{size}>(k, {SPMM})" if size else SPMM)
    assert ("B[j,k] is reused and exceeds the cache" in why) == (size is not None)


SDDMM = "forall(i, forall(j, where(D[i,j] = A[i,j] * t, forall(k, t += X[i,k] * Y[j,k]))))"


def test_a_sum_is_tiled_only_on_request() -> None:
    assert str(cut(SDDMM, k=1000)[0]) == SDDMM
    stmt, why = cut(SDDMM, k=1000, requested=("k", 96))
    assert str(stmt) == f"tile_forall<96>(k, {SDDMM})".replace("D[i,j] =", "D[i,j] +=")
    assert why == "requested: tiles of 96"


@pytest.mark.parametrize(
    ("text", "var", "why"),
    [
        (SPMM, "j", "j is sparse in A[i,j]"),
        (SPMM, "i", "the loop over i contains the loop over j, which is sparse in A[i,j]"),
        (
            "forall(k, forall(i, forall(j, C[i,k] += A[i,j] * B[j,k])))",
            "k",
            "the loop over k contains the loop over j, which is sparse in A[i,j]",
        ),
        (SPMM, "l", "no loop runs over l, only over i, j, k"),
        ("forall(i, where(y[i] = t, forall(j, t max= X[i,j])))", "j", "only sums can be tiled"),
    ],
)
def test_errors_name_the_rule_that_tiles_would_break(text: str, var: str, why: str) -> None:
    with pytest.raises(ScheduleError) as error:
        cut(text, requested=(var, 64))
    assert why in str(error.value)


def test_statements_without_tiles_are_the_same_object() -> None:
    stmt = parse_stmt(SPMM)
    assert tile(stmt, Facts(()), CACHE, Options(tile=("", 0)))[0] is stmt


def test_the_loops_within_tiles_are_vectorised_for_them() -> None:
    stmt, why = vectorized(f"tile_forall<64>(k, {SPMM})", (100, 400), i=100, j=100, k=100)
    tag = "vector_forall<8 x 8, overlapped>"
    assert str(stmt) == f"tile_forall<64>(k, forall(i, {tag}(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k])))))"
    stmt, why = vectorized(f"tile_forall<12>(k, {SPMM})", (100, 400), i=100, j=100, k=100)
    assert str(stmt) == f"tile_forall<12>(k, {SPMM})"
    assert "8 lanes don't divide tiles of 12" in why


def test_tiles_that_may_be_partial_do_not_overlap() -> None:
    for extent, overlaps in ((40, False), (64, False), (65, True), (100, True)):
        stmt, _ = vectorized(f"tile_forall<64>(k, {SPMM})", (100, 400), i=100, j=100, k=extent)
        assert ("overlapped" in str(stmt)) == overlaps


def test_placed_entries_need_more_work_for_several_workers() -> None:
    """They take two parallel loops, each of which waits for a busy core."""
    for target, nonzeros, several in ((CSC, 100_000, False), (CSC, 200_000, True), (CSR, 100_000, True), (CSR, 1_000, False)):
        stmt = parse_stmt("forall(i, forall(j, B[i,j] = A[i,j]))", {"A": TensorVar("A", CSR), "B": TensorVar("B", target)})
        facts = Facts.of({loop.var: 1000 for loop in loops_of(stmt)}, {"A": (CSR, (1000, nonzeros))}, 8, TARGET)
        parallel, why = parallelize(stmt, facts)
        assert (pays(parallel, facts), "one worker" in why) == (several, not several)


def test_the_loop_within_tiles_is_cut_into_blocks() -> None:
    stmt = parse_stmt(f"tile_forall<64>(k, {SPMM})", {"A": TensorVar("A", CSR)})
    for nonzeros, threads in ((100, False), (100_000, True)):
        facts = Facts.of({loop.var: 1000 for loop in loops_of(stmt)}, {"A": (CSR, (1000, nonzeros))}, 8, TARGET)
        assert "tile_forall<64>(k, parallel_forall(i," in str(parallelize(stmt, facts)[0])
        assert pays(stmt, facts) or not threads


# ---- vectorize


def vectorized(text: str, counts: tuple[int, ...] = (), fmt: Format = CSR, **extents: int) -> tuple[Stmt, str]:
    """The statement after the pass, with operand A in a format whose levels have the given counts."""
    A = {"A": TensorVar("A", fmt)} if counts else {}
    stmt = parse_stmt(text, A)
    sizes = {loop.var: extents[loop.var.name] for loop in loops_of(stmt)}
    return vectorize(stmt, Facts.of(sizes, {"A": (fmt, counts)} if counts else {}, 8, TARGET), TARGET)


DOT = "forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))"


def test_a_contiguous_loop_of_the_result_moves_outside_the_sums() -> None:
    stmt, why = vectorized(SPMM, (100, 400), i=100, j=100, k=64)
    assert str(stmt) == "forall(i, vector_forall<8 x 8, once>(k, where(C[i,k] = t, forall(j, t += A[i,j] * B[j,k]))))"
    assert "kept in registers while j runs" in why


@pytest.mark.parametrize(
    ("columns", "lanes"), [(2, "2 x 1, once"), (3, "4 x 1, once, masked"), (4, "4 x 1, once"), (7, "8 x 1, once, masked")]
)
def test_few_columns_take_a_part_of_a_register(columns: int, lanes: str) -> None:
    stmt, _ = vectorized(SPMM, (100, 400), i=100, j=100, k=columns)
    assert f"vector_forall<{lanes}>(k" in str(stmt)


@pytest.mark.parametrize(("nonzeros", "tag"), [(300, Serial()), (600, Positions(4)), (1500, Positions(8))])
def test_the_maximum_of_a_long_row_is_computed_in_registers(nonzeros: int, tag: object) -> None:
    stmt, _ = vectorized("forall(i, where(y[i] = t, forall(j, t max= A[i,j])))", (100, nonzeros), i=100, j=100)
    assert [loop.tag for loop in loops_of(stmt)] == [Serial(), tag]


def test_the_ends_of_uneven_short_rows_are_masked() -> None:
    """Lengths of rows differ, so the branch at the end of each row is mispredicted."""
    stmt = parse_stmt(DOT, {"A": TensorVar("A", CSR)})
    facts = Facts.of({loop.var: 100 for loop in loops_of(stmt)}, {"A": (CSR, (100, 350))}, 8, TARGET)
    assert "unroll_forall<4>(j" in str(vectorize(stmt, facts, TARGET)[0])
    uneven, why = vectorize(stmt, replace(facts, spreads=(("A", (1, 4)),)), TARGET)
    assert "position_forall<4>(j" in str(uneven)
    assert "4 are gathered at once, and the rest of a row is masked" in why
    even = Facts.of({loop.var: 100 for loop in loops_of(stmt)}, {"A": (CSR, (100, 4000))}, 8, TARGET)
    assert "position_forall<4>(j" in str(vectorize(stmt, even, TARGET)[0])
    assert "position_forall<8>(j" in str(vectorize(stmt, replace(even, spreads=(("A", (1, 2)),)), TARGET)[0])


def test_a_narrow_tile_sums_several_nonzeros_at_once_in_wide_rows() -> None:
    stmt, _ = vectorized(SPMM, (100, 3000), i=100, j=100, k=16)
    assert str(stmt) == "forall(i, vector_forall<8 x 2, once>(k, where(C[i,k] = t, unroll_forall<4>(j, t += A[i,j] * B[j,k]))))"


def test_a_contiguous_sum_has_partial_sums_in_registers() -> None:
    stmt, why = vectorized("forall(i, where(y[i] = t, forall(j, t += x[j])))", i=10, j=100)
    assert isinstance(loops_of(stmt)[-1].tag, Vector)
    assert "contiguous and summed" in why


@pytest.mark.parametrize(("nonzeros", "tag"), [(200, Serial()), (350, Unroll(4)), (500, Positions(4)), (9000, Positions(8))])
def test_a_sparse_sum_by_the_length_of_its_rows(nonzeros: int, tag: object) -> None:
    stmt, _ = vectorized(DOT, (100, nonzeros), i=100, j=100)
    assert [loop.tag for loop in loops_of(stmt)] == [Serial(), tag]


def test_an_elementwise_loop_is_not_moved_out_of_a_sum() -> None:
    stmt, why = vectorized("forall(i, forall(j, C[i,j] = X[i,j] * Y[i,j]))", i=10, j=40)
    assert str(stmt) == "forall(i, vector_forall<8 x 5, once, masked>(j, C[i,j] = X[i,j] * Y[i,j]))"
    assert why == "j is contiguous: vector_forall<8 x 5, once, masked>"


@pytest.mark.parametrize(
    ("text", "extents"), [("forall(i, forall(j, C[j,i] = X[j,i]))", {"i": 9, "j": 9}), ("forall(i, y[i] = x[i])", {"i": 1})]
)
def test_strided_and_short_loops_are_not_changed(text: str, extents: dict[str, int]) -> None:
    stmt, why = vectorized(text, **extents)
    assert stmt == parse_stmt(text)
    assert "neither contiguous nor a sum" in why


# ---- parallelize


@pytest.mark.parametrize(
    "text", ["forall(j, forall(i, y[i] += A[i,j]))", "forall(j, forall(i, vector_forall<8 x 1>(k, C[i,k] += A[i,j] * B[j,k])))"]
)
def test_scatters_are_not_changed(text: str) -> None:
    stmt = parse_stmt(text)
    facts = Facts.of({loop.var: 10_000 for loop in loops_of(stmt)}, {}, 8, TARGET)
    unchanged, why = parallelize(stmt, facts)
    assert unchanged is stmt
    assert "scatters" in why


# ---- facts and costs


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_tiles_cover_an_extent_exactly(lanes: int) -> None:
    """Full tiles and a tail end at the last coordinate, and only a masked register extends beyond it."""
    for extent in range(301):
        for most in (1, 2, 3, 8):
            tiles = tiling(extent, lanes, most)
            assert tiles.lanes == lanes or max(extent, 2) <= tiles.lanes < 2 * max(extent, 2)
            width = tiles.registers * tiles.lanes
            remainder = extent - (extent // width * width if width else 0)
            assert 0 <= tiles.tail <= most
            assert 0 <= tiles.registers <= most
            if not tiles.tail:
                assert remainder == 0
                continue
            assert (tiles.tail - 1) * tiles.lanes < remainder <= tiles.tail * tiles.lanes
            assert tiles.masked or remainder == tiles.tail * tiles.lanes
    assert tiling(0, lanes, 8) == Tiling(1, 0, False, 2)


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_registers_divide_tiles_and_cover_the_last_one(lanes: int) -> None:
    for extent in range(301):
        for size in range(lanes, 200, lanes):
            for most in (8, tuning.LONGEST_SUM_TILE):
                tiles = tiling_within(extent, size, lanes, most)
                width = tiles.registers * lanes
                assert 0 < tiles.registers <= most
                assert size % width == 0
                assert (tiles.tail - 1) * lanes < extent % width <= tiles.tail * lanes
                assert tiles.masked == (tiles.tail > 0)


@pytest.mark.parametrize("size", [0, 1, 5, 7, 8, 9, 100, 1023, 1025, 10**6 + 1])
def test_rounding_keeps_three_bits(size: int) -> None:
    assert size <= rounded(size) <= size * 1.25
    assert rounded(rounded(size)) == rounded(size)


# ---- jam

BLOCKS = "forall(i, forall(u, vector_forall<{lanes}>(k, where(C[i,u,k] = t, forall(j, t += A[i,u,j] * B[i,j,k])))))"


def jammed(nest: str, u: int = 64, k: int = 64, tensors: dict[str, TensorVar] | None = None) -> str | None:
    stmt = parse_stmt(nest, tensors or {})
    extents = {loop.var: {"u": u, "k": k}.get(loop.var.name, 100) for loop in loops_of(stmt)}
    step = unroll_and_jam(stmt, Facts.of(extents, {}, 8, TARGET), TARGET)
    return None if step is None else str(step[0])


@pytest.mark.parametrize(
    ("u", "lanes", "k", "loop", "tile"),
    [
        (64, "8 x 8, once", 64, "jam_forall<4>(u", "8 x 2, overlapped>"),
        (6, "8 x 2, once", 16, "jam_forall<4, rest>(u", "8 x 2, once>"),
        (2, "8 x 4, once", 32, "jam_forall<2>(u", "8 x 4, once>"),
        (64, "8 x 1, once, masked", 7, "jam_forall<8>(u", "8 x 1, once, masked>"),
        (64, "8 x 8, rest 3, masked", 150, "jam_forall<4>(u", "8 x 2, rest 1, masked>"),
        (64, "8 x 8, overlapped", 150, "jam_forall<4>(u", "8 x 2, overlapped>"),
    ],
)
def test_jammed(u: int, lanes: str, k: int, loop: str, tile: str) -> None:
    text = jammed(BLOCKS.format(lanes=lanes), u, k)
    assert text is not None
    assert loop in text
    assert f"vector_forall<{tile}(k" in text


@pytest.mark.parametrize(
    "nest",
    [
        # the loop runs in parallel
        "forall(u, vector_forall<8 x 8, once>(k, where(C[u,k] = t, forall(j, t += A[u,j] * B[j,k]))))",
        # no operand is shared
        "forall(i, forall(u, vector_forall<8 x 8, once>(k, where(C[i,u,k] = t, forall(j, t += A[i,u,j] * B[i,u,j,k])))))",
        "forall(i, forall(j, forall(k, C[i,k] += A[i,j] * B[j,k])))",
    ],
)
def test_not_jammed(nest: str) -> None:
    assert jammed(nest) is None


def test_a_loop_above_a_sparse_level_is_not_jammed() -> None:
    A = TensorVar("A", Format("dds"))
    assert jammed(BLOCKS.format(lanes="8 x 8, once"), tensors={"A": A}) is None
    assert jammed(BLOCKS.format(lanes="8 x 8, once"), tensors={"A": TensorVar("A", Format("dsd", (0, 2, 1)))}) is not None


def test_data_that_jammed_loops_reuse_stays_in_the_cache_of_a_core() -> None:
    text = jammed(BLOCKS.format(lanes="8 x 2, once"), u=10240, k=16)
    assert text is not None
    assert text.startswith("tile_forall<")


# ---- long rows


@pytest.mark.parametrize("k", [2, 8, 12, 16])
def test_long_rows_do_not_move_dense_columns_outside(k: int) -> None:
    """Sums of a tile of columns stay in registers, so that the order is not priced as one that scatters inexact sums."""
    size = 20_000
    ends = torch.zeros(size, dtype=torch.int64)
    arrow = torch.stack([torch.cat([ends, torch.arange(size)]), torch.cat([torch.arange(size), ends])])
    A = ns.from_coo(arrow, torch.ones(2 * size), (size, size), ns.CSR)
    assert str(ns.explain("ij,jk->ik", A, torch.ones(size, k)).steps[0].stmt).startswith("forall(i, forall(j, forall(k")
