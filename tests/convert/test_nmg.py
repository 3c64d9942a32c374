"""n:m:g keeps and stores the entries of its definition, multiplies without an index per value, and trains."""

from __future__ import annotations

import io
import pickle
from itertools import combinations
from math import comb, gcd
from typing import Any

import pytest
import torch
from random_tensors import drawn

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import make_problem
from numscorch.frontend.requests import Operand, einsum_request
from numscorch.ir.nmg_combinations import assigned, masks
from numscorch.machine.target import host
from numscorch.runtime.plans import make_plan, uncompiled
from numscorch.schedule import schedule, tuning
from numscorch.schedule.facts import Target, forget_answers
from numscorch.sparsify import magnitude, n_m_g, sparsify
from numscorch.tensors.validate import validate

PARAMETERS = [(2, 4, 2), (1, 4, 3), (3, 6, 1), (1, 8, 2), (1, 10, 1), (2, 2, 1), (5, 12, 2)]


def greedy(weight: torch.Tensor, n: int, m: int, g: int) -> float:
    """The sum that STen's greedy choice keeps: pairs of column and combination by decreasing sum, while both are available."""
    choices, total = list(combinations(range(m), n)), 0.0
    for block in weight.abs().double().split(m):
        padded = torch.nn.functional.pad(block, (0, 0, 0, m - len(block)))
        for chunk in padded.split(len(choices) * g, 1):
            sums = torch.stack([chunk[list(rows)].sum(0) for rows in choices])
            width = chunk.shape[1]
            room = [(kind + 1) * width // len(choices) - kind * width // len(choices) for kind in range(len(choices))]
            free = set(range(width))
            for pair in sums.flatten().argsort(descending=True).tolist():
                kind, column = divmod(pair, width)
                if room[kind] and column in free:
                    room[kind] -= 1
                    free.remove(column)
                    total += float(sums[kind, column])
    return total


@pytest.mark.parametrize("parameters", PARAMETERS[:6])
def test_the_kept_sum_lies_between_greedy_choice_and_n_m(parameters: tuple[int, int, int]) -> None:
    n, m, g = parameters
    weight = drawn(2 * m, 2 * comb(m, n) * g + 3)
    kept_sum = float(weight.abs()[n_m_g(n, m, g)(weight)].double().sum())
    n_m_sum = float(weight.abs().reshape(2, m, -1).topk(n, 1).values.double().sum())
    assert greedy(weight, n, m, g) <= kept_sum * (1 + 1e-9)
    assert kept_sum <= n_m_sum * (1 + 1e-9)
    assert n == m or kept_sum > n / m * float(weight.abs().double().sum())


def test_no_assignment_of_rows_keeps_a_larger_sum() -> None:
    weight = drawn(3, 6, seed=5).abs()
    assignments = {tuple(sorted(rows)) for rows in combinations(list(range(3)) * 2, 6)}
    assert assignments == {(0, 0, 1, 1, 2, 2)}
    best = max(float(sum(weight[row, column] for column, row in enumerate(rows))) for rows in _orders([0, 0, 1, 1, 2, 2]))
    assert float(weight[n_m_g(1, 3, 2)(weight)].sum()) == pytest.approx(best)


def _orders(rows: list[int]) -> set[tuple[int, ...]]:
    """Every order of the rows."""
    if not rows:
        return {()}
    return {(row, *rest) for at, row in enumerate(rows) for rest in _orders(rows[:at] + rows[at + 1 :])}


@pytest.mark.parametrize("shape", [(rows, columns) for rows in (0, 1, 5, 17) for columns in (0, 1, 5, 17)])
@pytest.mark.parametrize("parameters", [(2, 4, 2), (1, 10, 1), (5, 12, 2)])
def test_any_shape_is_stored(shape: tuple[int, int], parameters: tuple[int, int, int]) -> None:
    weight, sparsifier = drawn(*shape), n_m_g(*parameters)
    stored = sparsify(weight, sparsifier)
    validate(stored.pattern)
    assert stored.format == ns.NMG(*parameters)
    assert torch.equal(stored.to_dense(), torch.where(sparsifier(weight), weight, 0))
    assert stored.values.numel() == -(-shape[0] // parameters[1]) * shape[1] * parameters[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_conversion_to_the_format_stores_the_same(dtype: torch.dtype) -> None:
    expected = sparsify(drawn(9, 20, dtype=dtype), n_m_g(2, 4, 2)).to_dense()
    for stored in (
        ns.from_torch(expected, ns.NMG(2, 4, 2)),
        ns.from_torch(expected).to(ns.NMG(2, 4, 2)),
        ns.from_torch(expected.to_sparse(), "NMG(2, 4, 2)"),
    ):
        assert torch.equal(stored.to_dense(), expected)
        assert stored.dtype == dtype
    assert torch.equal(ns.from_torch(expected, ns.NMG(2, 4, 2)).to(ns.CSC).to_dense(), expected)


def test_each_combination_of_rows_has_g_columns_of_a_chunk() -> None:
    mask = n_m_g(2, 4, 3)(drawn(8, 36))
    for block in mask.split(4):
        for chunk in block.split(18, 1):
            assert sorted(chunk.T.nonzero()[:, 1].reshape(18, 2).tolist()) == sorted(3 * [list(rows) for rows in combinations(range(4), 2)])


def test_columns_with_fewer_entries_are_assigned_a_combination() -> None:
    kinds = torch.arange(4)
    one = torch.stack([kinds == place for place in (0, 0, 1, 2)], 1).float()  # a column may keep fewer than n rows
    assert torch.equal(ns.from_torch(one, ns.NMG(2, 4, 1)).to_dense(), one)
    used, limit = torch.tensor([[1, 2, 0], [3, 1, 2]]).numpy(), torch.tensor([1, 1, 1]).numpy()
    chosen, failed = assigned(used, masks(2, 3), limit)
    assert failed.tolist() == []
    assert all(sorted(row) == [0, 1, 2] for row in chosen.tolist())
    assert all(mask & ~int(masks(2, 3)[kind]) == 0 for mask, kind in zip(used.flat, chosen.flat, strict=True))


def test_patterns_that_do_not_fit_are_refused_with_their_block() -> None:
    full = torch.ones(8, 6)
    full[:4] = 0
    with pytest.raises(ns.FormatError, match=r"keeps 2 of every 4 values, but block 1 has 4 at coordinate 0: .*n_m_g\(2, 4, 1\)"):
        ns.from_torch(full, ns.NMG(2, 4, 1))
    alike = torch.zeros(4, 12)
    alike[:2] = 1
    with pytest.raises(ns.FormatError, match=r"block 0, coordinates 0 to 5: 6 of them keep the positions \(0, 1\), but only 1 can"):
        ns.from_torch(alike.to_sparse_csr(), ns.NMG(2, 4, 1))
    for parameters in ((3, 2, 1), (0, 4, 1), (2, 4, 0), (1, 1, 1)):
        with pytest.raises(ns.FormatError):
            ns.NMG(*parameters)
    with pytest.raises(ns.FormatError, match="there are 184756 choices of 10 out of 20"):
        ns.NMG(10, 20, 1)


@pytest.mark.parametrize(
    "text",
    [
        "(i, j) -> (i // 4: dense, j: grouped(2, 4, 8), i % 4: dense)",
        "(i, j) -> (i // 4: dense, j: grouped(2, 4, 8), i % 4: combination(1, 4, 8))",
        "(i, j) -> (i // 4: dense, j: compressed, i % 4: combination(2, 4, 8))",
        "(i, j) -> (i: dense, j: grouped(2, 4, 8))",
    ],
)
def test_the_two_levels_require_each_other(text: str) -> None:
    with pytest.raises(ns.FormatError, match=r"needs .* as the level (above|below) it"):
        ns.Format(text)


def test_duplicate_columns_are_refused_by_validate() -> None:
    stored = sparsify(drawn(4, 12), n_m_g(2, 4, 2))
    crd = stored.pattern.arrays[1][0].clone()
    crd[3] = crd[2]
    damaged = type(stored.pattern)(stored.format, (4, 12), ((), (crd,), ()))
    with pytest.raises(ns.FormatError, match=r"level 2 .* below parent 0, repeats the coordinate"):
        validate(damaged)


def test_formats_parse_their_printed_form() -> None:
    fmt = ns.NMG(2, 4, 8)
    assert fmt.name == "NMG(2, 4, 8)" and ns.Format(fmt.name) == ns.Format(str(fmt)) == fmt
    narrow = ns.Format("(i, j) -> (i // 4: dense, j: grouped(2, 4, 2, bits=8), i % 4: combination(2, 4, 2))")
    weight = torch.where(n_m_g(2, 4, 2)(drawn(8, 30)), drawn(8, 30), 0)
    stored = ns.from_torch(weight, narrow)
    assert stored.pattern.arrays[1][0].dtype == torch.uint8
    assert torch.equal(ns.einsum("ij,jk->ik", stored, torch.eye(30)), weight)


SHAPES = [(24, 36, 40), (10, 7, 33), (37, 100, 150)]


@pytest.mark.parametrize("parameters", PARAMETERS[:5])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_equal_those_of_the_dense_matrix_un_jitted(parameters: tuple[int, int, int], shape: tuple[int, int, int]) -> None:
    rows, columns, batch = shape
    stored = sparsify(drawn(rows, columns, dtype=torch.float64), n_m_g(*parameters))
    x, dense = drawn(batch, columns, dtype=torch.float64, seed=1), stored.to_dense()
    with uncompiled():
        torch.testing.assert_close(ns.einsum("oj,bj->bo", stored, x), x @ dense.T)
        torch.testing.assert_close(ns.einsum("oj,jb->ob", stored, x.T.contiguous()), dense @ x.T)
        torch.testing.assert_close(stored @ x[0], dense @ x[0])
        torch.testing.assert_close(
            ns.einsum("oj,bo->bj", stored, drawn(batch, rows, dtype=torch.float64)), drawn(batch, rows, dtype=torch.float64) @ dense
        )


def nest(parameters: tuple[int, int, int], batch: int, shape: tuple[int, int] = (768, 768)) -> str:
    """The schedule of a linear layer."""
    n, m, _ = parameters
    counts = (-(-shape[0] // m), -(-shape[0] // m) * shape[1], -(-shape[0] // m) * shape[1] * n)
    weight = Operand(ns.NMG(*parameters), shape, "float32", "int32", counts=counts)
    x = Operand(ns.Format("dd"), (batch, shape[1]), "float32", strides=(shape[1], 1))
    target = Target(vector_bytes=32, registers=16)
    problem = make_problem(parse_einsum("oj,bj->bo", (2, 2)), (weight, x), target)
    return str(schedule(problem.stmt, problem.facts, target)[-1].stmt)


SUMMED = "specialize_forall<kinds>(j, specialize_forall<coordinates>(o_in, t[o_in] += A[o_out,j,o_in] * B[b,j]))"
KINDS = f"specialize_forall<tiles>(j, where(specialize_forall<coordinates>(o_in, C[b,o_out,o_in] += t[o_in]), {SUMMED}))"


def test_the_columns_of_a_kind_are_summed_in_enough_registers_to_hide_their_latency() -> None:
    assert f"tile_forall<384>(j, parallel_forall(o_out, vector_forall<8 x 2, once>(b, {KINDS})))" == nest((2, 4, 8), 16)
    assert nest((1, 10, 8), 96) == f"tile_forall<48>(b, tile_forall<80>(j, parallel_forall(o_out, vector_forall<8 x 6>(b, {KINDS}))))"
    assert nest((2, 4, 8), 128) == f"tile_forall<64>(b, tile_forall<96>(j, parallel_forall(o_out, vector_forall<8 x 4>(b, {KINDS}))))"
    assert "vector_forall<8 x 8>(b, " in nest((1, 4, 16), 128)
    assert "vector_forall<8 x 2>(b, " in nest((4, 6, 4), 128)  # more sums would not fit in 16 registers


@pytest.mark.parametrize("columns", [0, 5, 32, 39, 64, 75])
def test_whole_and_partial_chunks_are_summed_by_combination(columns: int) -> None:
    stored = sparsify(drawn(11, columns, dtype=torch.float64), n_m_g(1, 4, 8))
    x = drawn(40, columns, dtype=torch.float64, seed=1)
    with uncompiled():
        plan = make_plan(einsum_request("oj,jb->ob", (2, 2)), (stored, x.T.contiguous()), None)
        assert ("specialize_forall<tiles>" in str(plan.steps[-1].stmt)) == (columns > 0)
        assert plan.kernel.source.program.zeroed == (columns == 0)  # the first chunk initializes the sums
        for _ in range(2):
            result = plan.run(stored, x.T.contiguous())
            torch.testing.assert_close(result, stored.to_dense() @ x.T)
            result.fill_(torch.nan)  # the memory is reused


@pytest.mark.parametrize("expression", ["oj,bj->bo", "oj,jb->ob", "oj,baj->bao", "aj,oj,jb->oab"])
@pytest.mark.parametrize("more", [0, 237])
def test_dense_operands_are_packed_into_panels(expression: str, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "PANEL_GROUP", 128)  # two or more groups, the last of which overlap
    monkeypatch.setattr(tuning, "COST_COPY", 0)
    forget_answers()
    sizes = {"o": 22, "j": 61, "b": 2 * tuning.ACCUMULATORS * host().lanes("float64") + more, "a": 2}  # two panels or more
    stored = sparsify(drawn(22, 61, dtype=torch.float64), n_m_g(2, 4, 2))
    names = expression.partition("->")[0].split(",")
    dense = [drawn(*(sizes[name] for name in indices), dtype=torch.float64, seed=at) for at, indices in enumerate(names)]
    operands = [stored if indices == "oj" else operand for indices, operand in zip(names, dense, strict=True)]
    full = [stored.to_dense() if indices == "oj" else operand for indices, operand in zip(names, dense, strict=True)]
    with uncompiled():
        plan = make_plan(einsum_request(expression, tuple(map(len, names))), operands, None)
        assert plan.problem.panels is not None and "specialize_forall" in str(plan.steps[-1].stmt)
        for _ in range(2):
            result = plan.run(*operands)
            torch.testing.assert_close(result, torch.einsum(expression, *full))
            result.fill_(torch.nan)  # the memory is reused


@pytest.mark.parametrize("parameters", [(2, 4, 2), (1, 4, 8), (3, 6, 1), (1, 2, 300)])
@pytest.mark.parametrize("rows", [0, 8, 11])
@pytest.mark.parametrize("columns", [0, 7, 700])
def test_one_vector_is_summed_by_combination(parameters: tuple[int, int, int], rows: int, columns: int) -> None:
    stored = sparsify(drawn(rows, columns, dtype=torch.float64), n_m_g(*parameters))
    x, dense = drawn(1, columns, dtype=torch.float64, seed=1), stored.to_dense()
    with uncompiled():
        for _ in range(2):
            for result, expected in ((ns.einsum("oj,bj->bo", stored, x), x @ dense.T), (stored @ x[0], dense @ x[0])):
                torch.testing.assert_close(result, expected)
                result.fill_(torch.nan)  # the memory is reused
        schedule_text = str(make_plan(einsum_request("oj,j->o", (2, 1)), (stored, x[0]), None).steps[-1].stmt)
    assert rows * columns == 0 or "specialize_forall<tiles>" in schedule_text


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("expression", ["oj,j->o", "oj,bj->bo", "o,oj,j->o", "oj,j,j->o"])
@pytest.mark.parametrize("parameters", [(2, 4, 4), (2, 4, 16), (1, 4, 8), (3, 4, 12), (1, 10, 16), (1, 4, 6)])
@pytest.mark.parametrize("columns", [11, 300])
def test_columns_of_one_vector_fill_registers(parameters: tuple[int, int, int], expression: str, dtype: torch.dtype, columns: int) -> None:
    W, x, scale = drawn(22, columns).to(dtype), drawn(columns).to(dtype), drawn(22).to(dtype)
    S = sparsify(W, n_m_g(*parameters))
    operands = {"oj,bj->bo": (S, x[None]), "o,oj,j->o": (scale, S, x), "oj,j,j->o": (S, x, x)}.get(expression, (S, x))
    expected = torch.einsum(expression, *(o.to_dense() if isinstance(o, ns.SparseTensor) else o for o in operands))
    torch.testing.assert_close(ns.einsum(expression, *operands), expected, rtol=1e-4, atol=1e-4)
    with uncompiled():
        torch.testing.assert_close(ns.einsum(expression, *operands), expected, rtol=1e-4, atol=1e-4)
    lanes = host().lanes("float32" if dtype is torch.float32 else "float64")
    fits = gcd(parameters[2], lanes) >= 4 and expression != "o,oj,j->o"  # the scale differs between the rows of a kind
    assert ("specialize_forall<kinds, " in str(ns.explain(expression, *operands))) == fits


def test_blocks_run_in_parallel_if_there_are_few_panels() -> None:
    target = host()
    panel = tuning.ACCUMULATORS * target.lanes("float32")
    stored, x = sparsify(drawn(22, 300), n_m_g(2, 4, 2)), drawn(8 * panel, 300)
    with uncompiled():
        batches = x[: 2 * panel], x
        few, many = (str(make_plan(einsum_request("oj,bj->bo", (2, 2)), (stored, batch), None).steps[-1].stmt) for batch in batches)
    assert few.startswith("forall(p, tile_forall<") and "parallel_forall(o_out, " in few
    assert target.vector_bytes != 32 or many.startswith("parallel_forall(p, tile_forall<")


def test_panels_read_any_strides_and_leave_short_batches_alone() -> None:
    stored, x = sparsify(drawn(6, 13), n_m_g(1, 4, 2)), drawn(13, 800)[:, ::2].T
    with uncompiled():
        torch.testing.assert_close(ns.einsum("oj,bj->bo", stored, x), x @ stored.to_dense().T)
        assert make_plan(einsum_request("oj,bj->bo", (2, 2)), (stored, x[:60]), None).problem.panels is None


def test_many_combinations_are_read_from_a_table() -> None:
    assert "specialize_forall<coordinates>" not in nest((5, 12, 2), 96)


@pytest.mark.parametrize("parameters", [(2, 4, 4), (1, 10, 2)])
def test_layers_equal_torchs_with_the_kept_weights_forward_and_backward(parameters: tuple[int, int, int]) -> None:
    dense = torch.nn.Linear(100, 36)
    layer = ns.nn.SparseLinear.from_dense(dense, n_m_g(*parameters))
    assert layer.weight.format == ns.NMG(*parameters)
    weight = layer.weight.tensor.to_dense().detach().requires_grad_()
    x, upstream = drawn(70, 100).requires_grad_(), drawn(70, 36, seed=2)
    y = torch.nn.functional.linear(x, weight, dense.bias)
    expected = torch.autograd.grad(y, (x, weight), upstream)
    result = layer(x)
    torch.testing.assert_close(result, y)
    gradient, values = torch.autograd.grad(result, (x, layer.weight.values), upstream)
    torch.testing.assert_close(gradient, expected[0])
    weight_gradient = layer.weight.tensor.with_values(values).to_dense()
    torch.testing.assert_close(weight_gradient, torch.where(weight != 0, expected[1], 0), rtol=1e-4, atol=1e-4)


def test_a_layer_trains_saves_and_loads() -> None:
    layer = ns.nn.SparseLinear.from_dense(torch.nn.Linear(24, 8), n_m_g(2, 4, 2))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05)
    x, targets = drawn(64, 24), drawn(64, 8, seed=3)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (layer(x) - targets).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = ns.nn.SparseLinear(24, 8, pattern=layer.weight.tensor, format=ns.NMG(2, 4, 2))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), layer(x))
    assert n_m_g(2, 4, 2)(layer.weight.tensor.to_dense().detach()).sum() == 8 * 24 // 2


def test_gradients_reach_the_sparsified_matrix() -> None:
    weight = drawn(8, 12).requires_grad_()
    stored = sparsify(weight, n_m_g(1, 4, 3))
    (stored.values * 2).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert torch.equal(weight.grad, 2 * n_m_g(1, 4, 3)(weight).float())


def test_16_bits() -> None:
    stored = sparsify(drawn(16, 24, dtype=torch.bfloat16), n_m_g(2, 4, 2))
    x = drawn(40, 24, dtype=torch.bfloat16, seed=1)
    torch.testing.assert_close(ns.einsum("oj,bj->bo", stored, x), x @ stored.to_dense().T, rtol=2e-2, atol=2e-2)


def test_the_sparsifier_compares_by_value_and_refuses_invalid_inputs() -> None:
    sparsifier: Any = n_m_g(2, 4, 8)
    assert repr(sparsifier) == "n_m_g(2, 4, 8)"
    assert pickle.loads(pickle.dumps(sparsifier)) == sparsifier != n_m_g(2, 4, 4)
    with pytest.raises(ns.SizeError, match=r"n_m_g\(2, 4, 8\) of a tensor of shape \(3,\): n:m:g is for matrices"):
        sparsifier(torch.ones(3))
    with pytest.raises(ns.OperandError, match="NaN"):
        sparsifier(torch.full((4, 4), torch.nan))
    with pytest.raises(ns.FormatError):
        n_m_g(5, 4, 1)
    infinite = drawn(4, 6)
    infinite[2, 3] = torch.inf
    assert n_m_g(2, 4, 1)(infinite)[2, 3]


def test_unstructured_pruning_keeps_too_many_entries_of_a_block() -> None:
    with pytest.raises(ns.FormatError, match=r"level 2 \(grouped\(2, 4, 1\)\) of .* keeps 2 of every 4 values, but block 0 has 4"):
        sparsify(drawn(8, 24), magnitude(0.5), ns.NMG(2, 4, 1))
