"""Sums over all entries: one loop over positions for all levels, and the same sum with any number of threads."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.codegen.assembly import assemble
from numscorch.errors import ScheduleError
from numscorch.ir.format import CSF, CSR
from numscorch.ir.index import TensorVar, loops_of
from numscorch.ir.notation import parse_stmt
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.schedule.facts import Facts, Target
from numscorch.schedule.walks import flatten_sum

MATRICES = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 3), ns.ELL, ns.Format("sd"), ns.Format("ds", (1, 0)))
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.complex64, torch.bfloat16)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, many of them 0, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randint(-3, 4, shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.6)).to(dtype)


def flat_sum(text: str, count: int = 100_000, dtype: str = "float32", **formats: ns.Format) -> str | None:
    tensors = {name: TensorVar(name, fmt, dtype) for name, fmt in formats.items()} | {"s": TensorVar("s", ns.Format(""), dtype)}
    stmt = parse_stmt(text, {**tensors, "t": TensorVar("t", ns.Format(""), dtype)})
    extents = {loop.var: 500 for loop in loops_of(stmt)}
    counts = {name: (fmt, (*[500] * (len(fmt.levels) - 1), count)) for name, fmt in formats.items() if not fmt.is_dense}
    step = flatten_sum(stmt, Facts.of(extents, counts, 8, Target(32, 16)), Target(32, 16))
    return None if step is None else str(step[0])


def kernels_flatten_sum() -> bool:
    return any("entry_forall" in kernel.source.text for kernel in plans.PROCESS.kernels.values())


def test_a_full_sum_walks_entries() -> None:
    text = flat_sum("where(s = t, forall(i, forall(j, t += A[i,j])))", A=CSR)
    assert text == "where(s = t, entry_forall<8 x 8>(i, forall(j, t += A[i,j])))"
    assert "entry_forall" in (flat_sum("where(s = t, forall(i, forall(j, forall(k, t += A[i,j,k]))))", A=CSF(3)) or "")
    assert "entry_forall" in (flat_sum("where(s = t, forall(i, t += A[i]))", A=ns.Format("s")) or "")


def test_a_number_that_multiplies_inner_sums_multiplies_terms() -> None:
    text = flat_sum("where(s = t, forall(i, where(t += b * u, forall(j, u += A[i,j]))))", A=CSR, b=ns.Format(""), u=ns.Format(""))
    assert text == "where(s = t, entry_forall<8 x 8>(i, forall(j, t += b * A[i,j])))"
    assert flat_sum("where(s = t, forall(i, where(t += x[i] * u, forall(j, u += A[i,j]))))", A=CSR, u=ns.Format("")) is None


def test_registers_follow_from_entries_and_data_types() -> None:
    text = "where(s = t, forall(i, forall(j, t += A[i,j])))"
    assert "<8 x 1>" in (flat_sum(text, count=20, A=CSR) or "")
    assert "<8 x 2>" in (flat_sum(text, count=100, A=CSR) or "")
    assert "<4 x 8>" in (flat_sum(text, dtype="float64", A=CSR) or "")
    assert "<1 x 1>" in (flat_sum(text, dtype="int64", A=CSR) or "")
    assert "<1 x 1>" in (flat_sum("where(s = t, forall(i, forall(j, t += tanh(A[i,j]))))", A=CSR) or "")


@pytest.mark.parametrize(
    ("text", "fmt"),
    [
        ("forall(i, where(y[i] = t, forall(j, t += A[i,j])))", CSR),  # a sum for each row
        ("where(s = t, forall(i, forall(j, t += A[i,j] * x[j])))", CSR),  # coordinates are needed
        ("where(s = t, forall(i, forall(j, t += exp(A[i,j]))))", CSR),  # exp(0) is 1, so unstored entries count
        ("where(s = t, forall(i, forall(j, t max= A[i,j])))", CSR),  # another reduction
        ("where(s = t, forall(i, t += A[i,i]))", ns.Format("dd")),  # a diagonal
        ("where(s = t, forall(i, forall(j, t += A[i,j])))", ns.Format("(i, j) -> (i: dense, j: bitmap)")),  # some positions are padding
    ],
)
def test_other_sums_are_not_flattened(text: str, fmt: ns.Format) -> None:
    assert flat_sum(text, A=fmt, x=ns.Format("d")) is None


@pytest.mark.parametrize("fmt", MATRICES, ids=str)
def test_matrices_in_any_format(fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    for at, shape in enumerate(((6, 9), (40, 30), (2, 3), (0, 3), (12, 300))):
        plain.setattr(tuning, "PARALLEL_STEPS", 0 if at % 2 else 1 << 30)
        D = numbers(*shape)
        A = ns.from_torch(D, fmt)
        assert ns.einsum("ij->", A) == D.sum()
        assert ns.evaluate("s += 2 * abs(A[i,j])", A=A) == 2 * D.abs().sum()
    assert kernels_flatten_sum()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_data_types(dtype: torch.dtype, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    D = numbers(31, 47, dtype=dtype)
    assert ns.einsum("ij->", ns.from_torch(D)) == D.sum()
    assert kernels_flatten_sum()


def test_tensors_of_order_3_with_a_number(fresh_plans: pytest.MonkeyPatch) -> None:
    D, c = numbers(9, 20, 30), torch.tensor(3.0)
    for threads in (0, 1 << 30):
        fresh_plans.setattr(tuning, "PARALLEL_STEPS", threads)
        assert ns.einsum("ijk,->", ns.from_torch(D, ns.CSF(3)), c) == 3 * D.sum()
    assert kernels_flatten_sum()


def test_threads_do_not_change_the_sum(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    A = ns.from_torch(torch.randn(300, 200, generator=torch.Generator().manual_seed(0)))
    sums = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            sums.append(ns.einsum("ij->", A))
    finally:
        torch.set_num_threads(threads)
    assert sums[0] == sums[1]
    assert torch.allclose(sums[0], A.values.sum(), rtol=1e-4)


def test_levels_of_a_pattern_are_not_read() -> None:
    source = ns.explain("ij->", ns.from_torch(numbers(50, 60))).source
    assert "A2_pos" not in source
    assert source.count("for pA2 in range") == 2


def test_schedules_override_flattening() -> None:
    A = ns.from_torch(numbers(50, 60))
    assert "entry_forall" not in str(ns.explain("ij->", A, schedule="vectorize()"))
    assert "entry_forall<" in str(ns.explain("ij->", A, schedule="parallelize(i)"))


def test_a_loop_over_entries_needs_one_sum() -> None:
    A = TensorVar("A", CSR)
    with pytest.raises(ScheduleError, match="a producer that fills a workspace with one sum"):
        assemble(parse_stmt("entry_forall<8 x 1>(i, forall(j, y[i] += A[i,j]))", {"A": A}), Target(32, 16))
    with pytest.raises(ScheduleError, match="needs j, which a loop over entries"):
        assemble(parse_stmt("where(s = t, entry_forall<1 x 1>(i, forall(j, t += A[i,j] * x[j])))", {"A": A}), Target(32, 16))


@pytest.mark.parametrize("fmt", [*MATRICES[:4], ns.BCSR(2, 3)], ids=str)
def test_products_of_tensors_with_one_pattern_merge_nothing(fmt: ns.Format, plain: pytest.MonkeyPatch) -> None:
    D, x = numbers(12, 30), numbers(30) + 5
    A = ns.from_torch(D, fmt)
    B, other = 2 * A, ns.from_torch(D.roll(1, 1), fmt)
    for _ in range(2):  # a plan for a shared pattern differs from one for two patterns
        assert ns.einsum("ij,ij->", A, B) == 2 * D.square().sum()
        assert ns.einsum("ij,ij->", A, other) == (D * D.roll(1, 1)).sum()
        assert ns.einsum("ij,ij->", other, A) == (D * D.roll(1, 1)).sum()
    assert ns.evaluate("s += abs(A[i,j] * B[i,j])", A=A, B=B) == 2 * D.square().sum()
    assert ns.evaluate("s += A[i,j] + B[i,j]", A=A, B=B) == 3 * D.sum()
    assert ns.einsum("ij,ij,j->", A, B, x) == (2 * D.square() * x).sum()
    assert ns.einsum("ij,ji->", A, A.t()) == D.square().sum()


def test_values_with_a_shared_pattern_are_read_at_the_same_positions() -> None:
    A = ns.from_torch(numbers(50, 60))
    explanation = ns.explain("ij,ij->", A, 2 * A)
    assert "entry_forall" in str(explanation)
    assert "one value per entry of A" in explanation.source
    assert "crd" not in explanation.source
    source = ns.explain("ij,ij,j->", A, 2 * A, numbers(60)).source
    assert "A2_crd" in source
    assert "B2" not in source


def test_a_square_matrix_and_its_transpose_have_different_patterns(plain: pytest.MonkeyPatch) -> None:
    D = numbers(20, 20)
    A = ns.from_torch(D)
    assert ns.einsum("ij,ji->", A, A) == (D * D.t()).sum()
    assert ns.einsum("ii,ii->", A, A) == D.diagonal().square().sum()


def test_gradients_of_a_product_with_one_pattern(fresh_plans: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(numbers(20, 30))
    expected = 2 * A.values.clone()
    A.values.requires_grad_()
    ns.einsum("ij,ij->", A, A).backward()
    assert torch.equal(A.values.grad, expected)


@pytest.mark.parametrize("fmt", ["sd", "ds", "(i, j) -> (i // 2: dense, j // 4: compressed, i % 2: dense, j % 4: dense)"])
@pytest.mark.parametrize("text", ["s += stored(A[i,j])", "s += stored(A[i,j]) * stored(B[i,j])", "s += 2 * stored(A[i,j]) * x[i]"])
def test_stored_counts_all_stored_positions(text: str, fmt: str, plain: pytest.MonkeyPatch) -> None:
    D, x = numbers(8, 20), numbers(8) + 5
    A = ns.from_torch(D, ns.Format(fmt))
    stored = A.with_values(torch.ones_like(A.values)).to_dense()
    operands = {"A": A, "B": 2 * A, "x": x}
    expected = 2 * (stored * x[:, None]).sum() if "x" in text else stored.sum()
    assert ns.evaluate(text, **{name: operand for name, operand in operands.items() if name in text}) == expected


def test_blocks_follow_the_levels_of_the_walked_operand(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(tuning, "PARALLEL_STEPS", 0)
    D, x = numbers(3, 50, 40), numbers(3, 50, 40) + 5
    A = ns.from_torch(D, ns.Format("dds", (2, 0, 1)))
    explanation = ns.explain("ijk,ijk,ijk->", A, 2 * A, x, schedule="reorder(i, k, j)")
    assert "parallel_forall(i, forall(k," in str(explanation)  # but k is the outermost level
    assert ns.einsum("ijk,ijk,ijk->", A, 2 * A, x, schedule="reorder(i, k, j)") == (2 * D.square() * x).sum()


def test_a_row_that_shares_its_pattern_is_not_scattered(plain: pytest.MonkeyPatch) -> None:
    D, E = numbers(4, 60), numbers(40, 60)
    A, B = ns.from_torch(D, ns.DCSR), ns.from_torch(E)
    assert "A_row" in str(ns.explain("tv,uv->", A, B, schedule="reorder(t, u, v)"))
    assert "A_row" not in str(ns.explain("tv,uv,tv->", A, B, 2 * A, schedule="reorder(t, u, v)"))
    assert ns.einsum("tv,uv,tv->", A, B, 2 * A, schedule="reorder(t, u, v)") == (2 * D.square() @ E.t()).sum()


@pytest.mark.parametrize("fmt", [*MATRICES, ns.CSF(2)], ids=str)
@pytest.mark.parametrize("order", ["i, j", "j, i"])
def test_all_orders_of_a_flat_sum_read_entries_as_they_are_stored(fmt: ns.Format, order: str) -> None:
    D = numbers(300, 200)
    A = ns.from_torch(D, fmt)
    for text, operands, expected in (
        ("ij->", [A], D.sum()),
        ("ij,ij->", [A, A], D.square().sum()),
        ("ij,ij->", [A, 2 * A], 2 * D.square().sum()),
    ):
        if len(fmt.levels) == 2:
            with ns.ledger() as led:
                assert ns.einsum(text, *operands, schedule=f"reorder({order})") == expected
            assert not led, "nothing is converted"
        assert ns.einsum(text, *operands) == expected


@pytest.mark.parametrize(("shape", "fmt"), [((9000, 10), "CSR"), ((10, 9000), "CSC"), ((2000, 30, 20), "dss"), ((2000, 30, 4), "dds")])
def test_flat_sums_of_hypersparse_tensors(shape: tuple[int, ...], fmt: str) -> None:
    """The cheapest order would store them otherwise, but a flat sum visits no rows."""
    places = torch.stack([torch.randint(0, size, (700,), generator=torch.Generator().manual_seed(size)) for size in shape])
    A = ns.from_coo(places, torch.ones(700), shape).to(fmt)
    letters = "ijk"[: len(shape)]
    with ns.ledger() as led:
        assert ns.einsum(f"{letters},{letters}->", A, A) == A.values.square().sum()
        assert ns.einsum(f"{letters},{letters}->", A, 3 * A) == 3 * A.values.square().sum()
        assert A.sum() == 700
    assert not led
