"""The source implements each tag that a schedule shows, and ``verify`` refuses tags that cannot be lowered."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import numscorch as ns
from numscorch.codegen.source import generate
from numscorch.errors import ScheduleError
from numscorch.ir import index as ix
from numscorch.ir.format import COO, CSR, Format, dense
from numscorch.ir.index import TensorVar
from numscorch.ir.notation import parse_stmt
from numscorch.ir.verify import verify
from numscorch.schedule.facts import Target

GOLDEN = Path(__file__).parents[1] / "golden"
MATRICES = {name: TensorVar(name, CSR) for name in "ABC"}
VECTORS = {name: TensorVar(name, dense(1), strides=("1",)) for name in "xyz"}
DENSE = {name: TensorVar(name, dense(2), strides=("n", "1")) for name in "XY"} | {"Z": TensorVar("Z", dense(2), strides=("1", "n"))}
TENSORS = {**MATRICES, **VECTORS, **DENSE, "t": TensorVar("t", Format("() -> ()")), "T": TensorVar("T", COO(3))}

# for each tag: a statement, and a fragment of its source that the source with plain loops lacks
IMPLEMENTED = {
    ix.Serial: ("forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))", "for pA2 in range("),
    ix.Parallel: ("parallel_forall(i, where(y[i] = t, forall(j, t += A[i,j] * x[j])))", "cuts[blocks * worker"),
    ix.Divide: ("divide_forall<j>(i, forall(j, y[j] += A[i,j] * x[i]))", "A2_parts["),
    ix.Vector: ("forall(i, vector_forall<8 x 2, once>(k, where(Y[i,k] = t, forall(j, t += A[i,j] * X[j,k]))))", "load(X_vals, pX, 8, 2)"),
    ix.Unroll: ("forall(i, where(y[i] = t, unroll_forall<4>(j, t += A[i,j] * x[j])))", "t_3"),
    ix.Positions: ("forall(i, where(y[i] = t, position_forall<4>(j, t += A[i,j] * x[j])))", "gather"),
    ix.FlatSum: ("where(s = t, entry_forall<8 x 4>(i, forall(j, t += A[i,j])))", "A_entries // 32"),
    ix.Each: ("forall(i, where(y[i] = t, each_forall(j, forall(k, t += T[i,j,k] * x[j]))))", "while pT2 < pT1_end and T1_crd[pT2] == i"),
    ix.Ahead: ("forall(i, where(y[i] = t, ahead_forall<8>(j, forall(k, t += A[i,j] * B[j,k]))))", "min(pA2 + 8, A_entries - 1)"),
    ix.Gallop: ("forall(i, where(y[i] = t, gallop_forall<A>(j, t += A[i,j] * B[i,j])))", "seek("),
    ix.Blend: ("forall(i, where(y[i] = t, blend_forall(j, t += A[i,j] * B[i,j])))", "A_here & B_here"),
    ix.Tile: ("tile_forall<64>(k, forall(i, forall(j, forall(k, Y[i,k] += A[i,j] * X[j,k]))))", "k_tile"),
    ix.Blocks: ("block_forall<64>(i, forall(j, y[j] += A[i,j] * x[i]))", "carry("),
    ix.Transpose: ("transpose_forall<8>(j, forall(i, Y[i,j] = Z[i,j]))", "transpose("),
    ix.Jam: ("jam_forall<4>(i, vector_forall<8 x 2>(k, where(Y[i,k] = t, forall(j, t += X[j,k] * z[j]))))", "_u3"),
}
TABLES = {
    "kinds": ("specialize_forall<kinds>", "t_1_ = "),
    "tiles": ("specialize_forall<tiles>", "if j_tile == 0:"),
    "coordinates": ("specialize_forall<coordinates>", "i_out * C_stride0 + C_stride2"),
}


def source(text: str) -> str:
    """The code of a statement, without the header that shows the statement."""
    stmt = verify(parse_stmt(text, TENSORS))
    return generate(stmt, Target(32, 16)).text.rpartition('"""')[2]


def test_divided_loops_run_in_blocks() -> None:
    text = "divide_forall<j, 64>(i, forall(j, y[j] += A[i,j] * x[i]))"
    assert str(parse_stmt(text, TENSORS)) == text
    assert all(part in source(text) for part in ("A2_parts[", "carry("))


def test_every_tag_is_listed() -> None:
    assert {*IMPLEMENTED, ix.Specialize} == set(get_args(ix.Tag))


@pytest.mark.parametrize("tag", IMPLEMENTED, ids=lambda tag: tag.__name__)
def test_the_source_implements_each_tag(tag: type) -> None:
    text, fragment = IMPLEMENTED[tag]
    assert any(isinstance(loop.tag, tag) for loop in ix.loops_of(parse_stmt(text, TENSORS)))
    assert fragment in source(text)
    for other, (other_text, _) in IMPLEMENTED.items():
        if other is not tag and tag is not ix.Serial:
            has_tag = any(isinstance(loop.tag, tag) for loop in ix.loops_of(parse_stmt(other_text, TENSORS)))
            assert has_tag or fragment not in source(other_text)


@pytest.mark.parametrize("over", TABLES)
def test_tables_of_rows_are_specialized(over: str) -> None:
    tag_text, fragment = TABLES[over]
    _, header, code = (GOLDEN / "spmm_nmg_one.py").read_text().split('"""')
    assert tag_text in header and fragment in code
    assert fragment not in (GOLDEN / "spmm_csr.py").read_text()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("forall(i, where(y[i] = t, unroll_forall<4>(j, t += A[i,j] * B[i,j])))", "only sums over one level"),
        ("forall(i, where(y[i] = t, unroll_forall<4>(j, t += x[j])))", "only sums over one level"),
        ("forall(i, where(y[i] = t, position_forall<4>(j, t += A[i,j] * B[i,j])))", "the last level of a single sparse operand"),
        ("forall(i, unroll_forall<4>(j, where(Y[i,j] = t, vector_forall<8 x 2, once>(k, t += A[i,j] * X[i,k]))))", "only dot products"),
        ("forall(i, blend_forall(j, Y[i,j] = A[i,j] * B[i,j]))", "need no branches"),
        ("forall(i, forall(j: sums<64>, y[i] += A[i,j]))", "only loops that add to a register"),
        ("forall(i, where(y[i] = t, blend_forall(j, t += A[i,j] + x[j])))", "need no branches"),
        ("forall(i, ahead_forall<8>(j, y[i] += A[i,j] * x[j]))", "choose rows of other operands"),
        ("ahead_forall<8>(i, forall(j, y[i] += A[i,j] * B[i,j]))", "choose rows of other operands"),
        ("divide_forall<j>(i, forall(j, y[i] += A[i,j] * x[j]))", "only loops that scatter"),
        ("divide_forall<j>(i, forall(j, y[j] += X[i,j] * x[i]))", "only loops that scatter"),
    ],
)
def test_tags_that_cannot_be_lowered_are_refused(text: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        verify(parse_stmt(text, TENSORS))


def test_counted_results_are_merged_with_branches() -> None:
    A = ns.from_coo([[0, 1, 1], [0, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.DCSR)
    explanation = ns.explain("R[i,j] = A[i,j] * B[i,j]", A=A, B=A.with_values(A.values + 1))
    assert "blend_forall" not in str(explanation.steps[-1].stmt)
