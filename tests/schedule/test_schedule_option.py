"""schedule=: passes follow the requested schedule, or the error names the rule that it breaks."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
import torch

import numscorch as ns
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.schedule.facts import Options
from numscorch.schedule.options import parse_options

torch.manual_seed(0)
D = torch.randint(-3, 4, (6, 5)).double() * (torch.rand(6, 5) < 0.4)
X = torch.randint(-3, 4, (5, 16)).double()
A, B = ns.from_torch(D, ns.CSR), ns.from_torch(D.T.contiguous(), ns.CSR)


def last_stmt() -> str:
    return str(list(plans.PROCESS.plans.values())[-1].steps[-1].stmt)


@pytest.mark.parametrize("order", list(permutations("ijk")), ids="".join)
def test_any_order_gives_the_same_result(order: tuple[str, ...], plain: pytest.MonkeyPatch) -> None:
    text = f"reorder({', '.join(order)}) vectorize()"
    assert torch.equal(ns.einsum("ij,jk->ik", A, X, schedule=text), D @ X)
    assert tuple(re.findall(r"forall(?:<\w>)?\((\w),", last_stmt())) == order


def test_parallel_and_vector_loops(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, X, schedule="parallelize(i) vectorize(k)"), D @ X)
    assert "parallel_forall(i, vector_forall" in last_stmt()
    assert torch.equal(ns.einsum("ij,jk->ik", A, X, schedule="parallelize(); vectorize()"), D @ X)
    assert last_stmt().count("forall(") == 3


def test_sparse_results_and_reductions(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, B, schedule="reorder(i, j, k) parallelize(i)").to_dense(), D @ D.T)
    assert torch.equal(ns.einsum("ij,jk->ik", A, B, schedule="reorder(i, k, j)").to_dense(), D @ D.T)
    assert torch.equal(ns.einsum("ij->i", A, reduce="max", schedule="parallelize(i)"), D.amax(1))


@pytest.mark.parametrize("order", ["iljk", "ilkj", "ijlk", "ikjl"])
@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_every_order_stores_the_same_entries(order: str, reduce: str, plain: pytest.MonkeyPatch) -> None:
    """A sum of sums has no term if all of the inner sums are empty."""
    P = ns.from_torch(torch.tensor([[0.0, 2.0], [0.0, 3.0]]), ns.CSR)
    expected = ns.einsum("ij,jk,kl->il", P, P, P, format=ns.CSR, reduce=reduce)
    result = ns.einsum("ij,jk,kl->il", P, P, P, format=ns.CSR, reduce=reduce, schedule=f"reorder({', '.join(order)})")
    assert expected.nnz == result.nnz == 2
    assert torch.equal(result.to_dense(), expected.to_dense())


@pytest.mark.parametrize("kind", ["list", "hash"])
def test_the_requested_workspace_is_used(kind: str, plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, B, schedule=f"reorder(i, j, k) workspace({kind})").to_dense(), D @ D.T)
    plan = list(plans.PROCESS.plans.values())[-1]
    assert f"w: {kind}ed " in plan.kernel.source.text
    assert plan.steps[1].why == f"requested: {kind}"


def test_arguments_may_stand_in_quotes(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, B, schedule="""reorder("i,j,k") parallelize("i") workspace('hash')""").to_dense(), D @ D.T)
    assert last_stmt().startswith("parallel_forall(i, where(forall(k,")


ERRORS = {
    "reorder(i, j)": ("ij,jk->ik", "must name each of i, j, k once"),
    "reorder(j, i, k)": ("ij,jk->ik", "append out of order to C[i,k]"),
    "parallelize(j)": ("ij,jk->ik", "the outermost loop is i, not j"),
    "vectorize(i)": ("ij,jk->ik", "the loop must be innermost"),
    "tile(j, 64)": ("ij,jk->i", "j is sparse in A[i,j]"),
    "tile(i, 64)": ("ij,jk->ik", "the entries of C[i,k] are appended in order"),
    "tile(k)": ("ij,jk->ik", "tile takes a variable and the number of coordinates per tile"),
    "tile(k, 0)": ("ij,jk->ik", "tile takes a variable and the number of"),
    "tile(k, l)": ("ij,jk->ik", "tile takes a variable and the number of"),
    "unroll(k, 4)": ("ij,jk->ik", "unroll is unknown"),
    "reorder(i, j, k) reorder(i, j, k)": ("ij,jk->ik", "reorder occurs twice"),
    "faster": ("ij,jk->ik", "can't be read"),
    "parallelize(i, j)": ("ij,jk->ik", "takes one variable"),
    "workspace(dense)": ("ij,jk->ik", "workspace takes one of list, hash"),
    "workspace()": ("ij,jk->ik", "workspace takes one of list, hash"),
    "workspace(list, hash)": ("ij,jk->ik", "workspace takes one of list, hash"),
    "reorder(i, k, j) workspace(hash)": ("ij,jk->ik", "these loops append to C[i,k] in order, so no row is collected"),
    "workspace(list)": ("ij,jk->", "the positions of the entries of C are known in advance"),
    'reorder("i, j)': ("ij,jk->ik", "must name each of i, j, k once"),
}


@pytest.mark.parametrize("text", ERRORS)
def test_schedules_that_break_a_rule_are_refused(text: str, plain: pytest.MonkeyPatch) -> None:
    expr, why = ERRORS[text]
    with pytest.raises(ns.ScheduleError) as error:
        ns.einsum(expr, A, B, schedule=text)
    assert why in str(error.value)
    assert len(str(error.value).splitlines()) > 1


LONG, COLUMNS, ROWS = ns.from_torch(torch.ones(4, 64), ns.CSR), torch.ones(64, 64), torch.ones(4, 64)
OTHER_LOOPS = {  # expressions with dense operands, and why the loop of a directive cannot be followed
    ("ij,jk->ik", "vectorize(j)"): "the innermost loop is k, not j (k is contiguous: vector_forall<",
    ("ij,jk->ik", "reorder(i,j,k) vectorize(j)"): "the innermost loop is k, not j (k is contiguous: vector_forall<",
    ("ij,jk->ik", "vectorize(i)"): "the innermost loop is k, not i (k is contiguous: vector_forall<",
    ("ij,ik,jk->ij", "vectorize(j)"): "the innermost loop is k, not j (k is contiguous and summed: vector_forall<",
    ("ij,jk->ik", "parallelize(k)"): "the outermost loop is i, not k",
    ("ij,jk->ik", "tile(k, 32) parallelize(k)"): "the outermost loop is i, not k",
}


@pytest.mark.parametrize(("expr", "text"), OTHER_LOOPS)
def test_a_directive_for_another_loop_is_refused(expr: str, text: str, plain: pytest.MonkeyPatch) -> None:
    operands = (LONG, COLUMNS) if expr == "ij,jk->ik" else (LONG, ROWS, COLUMNS)
    with pytest.raises(ns.ScheduleError) as error:
        ns.einsum(expr, *operands, schedule=text)
    assert f"{text.rsplit(') ', 1)[-1]}: {OTHER_LOOPS[expr, text]}" in str(error.value)


def test_the_requested_loop_is_the_simd_loop(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", LONG, COLUMNS, schedule="reorder(i,k,j) vectorize(j)"), ROWS @ COLUMNS)
    assert "position_forall" in last_stmt()
    with pytest.raises(ns.ScheduleError, match=r"vectorize\(j\): k is vectorized instead \(k is contiguous"):
        ns.einsum("ij,jk->ik", LONG, COLUMNS, reduce="max", schedule="vectorize(j)")


@pytest.mark.parametrize("reduce", ["max", "min_plus"])
def test_reduced_loops_come_last_unless_terms_are_added(reduce: str, plain: pytest.MonkeyPatch) -> None:
    with pytest.raises(ns.ScheduleError, match=r"reorder\(i, j, k\) must end with the reduced loops \(j\): only sums"):
        ns.einsum("ij,jk->ik", LONG, COLUMNS, reduce=reduce, schedule="reorder(i,j,k)")


def test_loops_of_dense_operands_are_checked() -> None:
    with pytest.raises(ns.ScheduleError, match=r"parallelize\(q\): no loop runs over q, only over i, j, k"):
        ns.einsum("ij,jk->ik", X, X.T, schedule="parallelize(q)")


@pytest.mark.parametrize("size", [1, 4, 5, 8, 12, 16, 32, 1000])
@pytest.mark.parametrize("columns", [3, 16, 37])
def test_tiles_of_any_size(size: int, columns: int, plain: pytest.MonkeyPatch) -> None:
    Y, Z = torch.randint(-3, 4, (5, columns)).double(), torch.randint(-3, 4, (6, columns)).double()
    for threads in ("", "parallelize(i)"):
        assert torch.equal(ns.einsum("ij,jk->ik", A, Y, schedule=f"reorder(i, j, k) tile(k, {size}) {threads}"), D @ Y)
        assert last_stmt().startswith(f"tile_forall<{size}>(k, parallel_forall(i, ")
        assert torch.equal(ns.einsum("ij,ik,jk->ij", A, Z, Y, schedule=f"tile(k, {size}) {threads}").to_dense(), D * (Z @ Y.T))
        assert last_stmt().startswith(f"tile_forall<{size}>(k, parallel_forall(i, ")
    total = ns.einsum("ij,ik,jk->", A, Z, Y, schedule=f"tile(k, {size}) parallelize(i)")
    assert torch.equal(total, (D * (Z @ Y.T)).sum())
    assert f"tile_forall<{size}>(k, where(D += t, parallel_forall(i," in last_stmt()


def test_tiles_that_registers_do_not_divide(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, X, schedule="""tile("k", 3)"""), D @ X)
    assert "vector" not in last_stmt()
    with pytest.raises(ns.ScheduleError, match="lanes don't divide tiles of 3"):
        ns.einsum("ij,jk->ik", A, X, schedule="tile(k, 3) vectorize(k)")


def test_no_tiles(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, X, schedule="tile()"), D @ X)
    assert "tile" not in last_stmt()


def test_a_parallel_loop_that_scatters_is_refused(plain: pytest.MonkeyPatch) -> None:
    with pytest.raises(ns.ScheduleError, match="outermost loop scatters"):
        ns.einsum("ij,jk->ik", A, X, schedule="reorder(j, i, k) parallelize(j)")


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("parallelize(i)", "i is stored in parts: its loops are i_out, i_in"),
        ("vectorize(j)", "j is stored in parts: its loops are j_out, j_in"),
        ("parallelize(z)", "name one of these"),
    ],
)
def test_unknown_loops_are_refused(text: str, suggestion: str, plain: pytest.MonkeyPatch) -> None:
    with pytest.raises(ns.ScheduleError) as error:
        ns.einsum("ij,jk->ik", A.to(ns.BCSR(2, 2)), X, schedule=text)
    first, second = str(error.value).splitlines()
    assert first == f"{text}: no loop runs over {text[-2]}, only over i_out, j_out, i_in, j_in, k"
    assert second.endswith(suggestion)


def test_options() -> None:
    assert parse_options("") == Options()
    assert parse_options("vectorize(), parallelize(i)") == Options(None, "i", "")
    assert parse_options("tile('k', 64)") == parse_options('tile("k, 64")') == Options(tile=("k", 64))
    assert parse_options("tile()") == Options(tile=("", 0))
    assert parse_options("workspace('hash')") == Options(workspace="hash")
    assert parse_options('reorder("i", "k")') == parse_options("reorder('i, k')") == Options(("i", "k"))


def test_a_loop_over_one_tile_has_blocks_of_the_tile(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(tuning, "PARALLEL_STEPS", 0)
    A = ns.from_torch(torch.arange(40.0), ns.Format("(i) -> (i % 4: dense, i // 4: dense)"))
    total = ns.einsum("i,lm->", A, torch.ones(5, 6), schedule="reorder(i, l, m), tile(i, 8)")
    assert total == 30 * torch.arange(40.0).sum()
