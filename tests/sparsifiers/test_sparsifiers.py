"""Every sparsifier against its definition, entry by entry, and the errors of inputs without an order."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_tensors import drawn
from torch.nn.functional import hardshrink

import numscorch as ns
from numscorch.sparsifiers.base import kind_of
from numscorch.sparsifiers.registration import check_promises
from numscorch.sparsify import (
    Kind,
    MovementScores,
    block_magnitude,
    compose,
    keep_all,
    low_rank_plus_sparse,
    magnitude,
    movement,
    n_m,
    n_m_g,
    random,
    same_pattern,
    sparsify,
    threshold,
    topk,
    wanda,
)

pytestmark = pytest.mark.usefixtures("interpreted")

W = drawn(7, 10)
X = drawn(3, 5, 10, seed=1) * torch.arange(1.0, 11)  # columns with different norms
COMPARING: list[Any] = [
    *(threshold(0.5), topk(2), topk(1, 0), n_m(2, 4), n_m(2, 4, rows=3), n_m_g(2, 4, 2), wanda(0.5, X), movement(0.5, W)),
    *(low_rank_plus_sparse(2, magnitude(0.5)), compose(magnitude(0.5), threshold(0.1))),
]
ALL: list[Any] = [*COMPARING, keep_all(), random(0.5, seed=1), same_pattern(W > 0), magnitude(0.5), block_magnitude(2, 3, 0.5)]

OF_ONE_SHAPE: dict[type, Callable[[torch.Tensor], torch.Tensor]] = {  # their parameters depend on the tensor's shape
    wanda: lambda t: wanda(0.5, torch.arange(t.shape[-1] + 1.0)[1:])(t),
    movement: lambda t: movement(0.5, torch.arange(float(t.numel())).reshape(t.shape))(t),
    same_pattern: lambda t: same_pattern(torch.arange(t.numel()).reshape(t.shape) % 2 == 0)(t),
}


def test_keep_all_keeps_zeros_nan_and_infinity() -> None:
    full = torch.tensor([[0.0, torch.nan], [1.0, torch.inf]])
    assert sparsify(full, keep_all()).nnz == 4
    assert keep_all()(torch.ones(2, 3, dtype=torch.int64)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("t", [0, 0.3, 1.0, float("inf")])
def test_threshold_keeps_the_entries_that_hardshrink_keeps(t: float, dtype: torch.dtype) -> None:
    full = torch.cat([W, torch.tensor([[0.3, -0.3, 1.0, -1.0, 0.0, -0.0, 2.0, 0.31, 0.29, torch.inf]])]).to(dtype)
    assert torch.equal(threshold(t)(full), hardshrink(full, t) != 0)


@pytest.mark.parametrize("t", [-0.1, float("nan"), "much", None])
def test_thresholds_start_at_0(t: Any) -> None:
    with pytest.raises(ns.SizeError, match="t, the bound of absolute values, has to be a number of at least 0"):
        threshold(t)


def test_random_masks_have_the_exact_count_and_are_drawn_once() -> None:
    keep = random(0.3, seed=5)
    first = keep(W)
    assert int(first.sum()) == 49
    first.zero_()  # callers may write to the mask
    mask = keep(-W)
    assert int(mask.sum()) == 49
    assert torch.equal(mask, keep(W))
    assert torch.equal(mask, random(0.3, seed=5)(W))
    assert not torch.equal(mask, random(0.3, seed=6)(W))
    assert keep(torch.ones(4, 5)).sum() == 14


def test_random_masks_without_a_seed_survive_copies_and_pickles() -> None:
    keep = random(0.5)
    for other in (copy.deepcopy(keep), pickle.loads(pickle.dumps(keep))):
        assert other == keep
        assert torch.equal(other(W), keep(W))
    assert not torch.equal(keep(W), random(0.5)(W))


def test_random_follows_torchs_seed_and_keeps_the_state_of_its_generator() -> None:
    torch.manual_seed(3)
    first = random(0.5)
    torch.manual_seed(3)
    assert random(0.5) == first
    state = torch.get_rng_state()
    first(W)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dim", [-1, 0, 1, -2])
@pytest.mark.parametrize("k", [0, 1, 3, 7])
def test_topk_keeps_the_largest_of_each_slice(k: int, dim: int) -> None:
    expected = torch.zeros_like(W, dtype=torch.bool).scatter(dim, W.abs().topk(k, dim).indices, True)
    assert torch.equal(topk(k, dim)(W), expected)


def test_the_last_of_equal_entries_are_kept() -> None:
    ones = torch.ones(2, 5)
    assert topk(2)(ones).tolist() == [[False, False, False, True, True]] * 2
    assert topk(1, 0)(ones).tolist() == [[False] * 5, [True] * 5]
    assert n_m(1, 2)(ones).tolist() == [[False, True, False, True, True]] * 2
    assert wanda(0.4, torch.ones(5))(ones).tolist() == [[False, False, True, True, True]] * 2


def test_topk_of_short_slices_is_refused() -> None:
    with pytest.raises(ns.SizeError, match=r"topk\(11, dim=-1\) of a tensor of shape \(7, 10\): k is at most 10"):
        topk(11)(W)
    with pytest.raises(ns.RangeError, match="it has 2 dimensions"):
        topk(1, 2)(W)
    for k, dim in ((-1, 0), (1.5, 0), (1, "rows")):
        with pytest.raises(ns.SizeError, match="k is an integer of at least 0"):
            topk(k, dim)  # type: ignore[arg-type]
    assert topk(0)(torch.empty(3, 0)).shape == (3, 0)


def best_of_groups(full: torch.Tensor, n: int, m: int, rows: int) -> torch.Tensor:
    """n:m by its definition, group by group."""
    mask = torch.zeros_like(full, dtype=torch.bool)
    for i in range(0, full.shape[0], rows):
        for j in range(0, full.shape[1], m):
            sums = full[i : i + rows, j : j + m].abs().sum(0)
            for column in sums.argsort(descending=True)[:n].tolist():
                mask[i : i + rows, j + column] = True
    return mask


@pytest.mark.parametrize("rows", [1, 2, 3, 16])
@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 4), (3, 4), (1, 8), (3, 6), (4, 4), (2, 16)])
def test_n_m_keeps_the_best_of_each_group_with_tails(n: int, m: int, rows: int) -> None:
    expected = best_of_groups(W, n, m, rows)
    assert torch.equal(n_m(n, m, rows)(W), expected)
    stored = sparsify(W, n_m(n, m, rows))
    assert stored.format == ns.NM(n, m, rows)
    assert torch.equal(stored.to_dense(), torch.where(expected, W, 0))


def test_n_m_of_other_ranks_runs_along_the_last_dimension() -> None:
    cube = drawn(2, 3, 5)
    assert torch.equal(n_m(1, 2)(cube), n_m(1, 2)(cube.reshape(6, 5)).reshape(2, 3, 5))
    assert torch.equal(n_m(1, 2, rows=2)(cube)[1], n_m(1, 2, rows=2)(cube[1]))
    assert sparsify(cube, n_m(1, 2)).format == ns.COO(3)
    with pytest.raises(ns.SizeError, match="blocks run along its last dimension"):
        n_m(1, 2)(torch.tensor(1.0))
    with pytest.raises(ns.SizeError, match="groups of 2 rows need a matrix"):
        n_m(1, 2, rows=2)(torch.ones(4))
    for wrong in ((3, 2), (0, 2), (1, 2.5)):
        with pytest.raises(ns.FormatError, match="NM"):
            n_m(*wrong)  # type: ignore[arg-type]


def test_movement_keeps_weights_that_moved_away_from_zero() -> None:
    weight = torch.nn.Parameter(W.clone())
    target = drawn(7, 10, seed=2)
    expected = torch.zeros_like(W)
    with MovementScores(weight) as scores:
        for part in (0.5, 2.0):  # micro-batches: gradients accumulate in weight.grad, and each counts once
            loss = (weight * target * part).sum()
            loss.backward()
            expected -= W * target * part
    torch.testing.assert_close(scores.scores, expected)
    least = expected.flatten().argsort(stable=True)[:42]
    dropped = ~movement(0.6, scores)(weight)
    assert set(dropped.flatten().nonzero().flatten().tolist()) == set(least.tolist())
    weight.sum().backward()
    torch.testing.assert_close(scores.scores, expected)  # the hook is removed: later gradients do not count


def test_movement_resumes_from_a_checkpoint() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    scores = MovementScores(weight)
    weight.square().sum().backward()
    again = MovementScores(weight, scores.scores)
    scores.reset()
    assert again.scores.tolist() == [-2.0, -8.0]
    assert scores.scores.tolist() == [0.0, 0.0]
    assert again.scores.dtype == torch.float32


def test_movement_of_a_sparse_parameters_values() -> None:
    layer = ns.nn.SparseLinear.from_dense(torch.nn.Linear(6, 4), magnitude(0.5))
    with MovementScores(layer.weight.values) as scores:
        layer(torch.ones(2, 6)).sum().backward()
    assert layer.weight.values.grad is not None
    torch.testing.assert_close(scores.scores, -layer.weight.values.detach() * layer.weight.values.grad)


def test_invalid_scores_of_movement_are_refused() -> None:
    for given in (W, W.clone().requires_grad_() * 2, None):
        with pytest.raises(ns.OperandError, match="takes a leaf tensor that requires grad"):
            MovementScores(given)  # type: ignore[arg-type]
    with pytest.raises(ns.SizeError, match=r"scores have shape \(2,\), but the parameter has \(3,\)"):
        MovementScores(torch.nn.Parameter(torch.ones(3)), torch.ones(2))
    with pytest.raises(ns.SizeError, match=r"the scores have shape \(7, 10\)"):
        movement(0.5, W)(torch.ones(2, 2))
    with pytest.raises(ns.OperandError, match=r"movement\(0.5\): the scores of a tensor with NaN at \(0,\)"):
        movement(0.5, torch.tensor([torch.nan]))(torch.ones(1))
    with pytest.raises(ns.OperandError, match="scores have to be a tensor or a MovementScores, not list"):
        movement(0.5, [1.0])  # type: ignore[arg-type]


def test_wanda_compares_weight_times_norm_within_rows() -> None:
    norms = X.reshape(15, 10).norm(dim=0)
    mask = wanda(0.4, X)(W)
    for row, row_mask in zip(W, mask, strict=True):
        least = (row.abs() * norms).argsort(stable=True)[:4]
        assert set((~row_mask).nonzero().flatten().tolist()) == set(least.tolist())
    assert torch.equal(mask, wanda(0.4, norms)(W))
    assert not torch.equal(mask, wanda(0.4, torch.ones(10))(W))


def test_wanda_refuses_calibrations_of_other_shapes() -> None:
    for shape in ((7, 9), (10,), (2, 7, 10)):
        with pytest.raises(ns.SizeError, match=r"the calibration fits a matrix \(out, 10\)"):
            wanda(0.5, X)(torch.ones(shape))
    with pytest.raises(ns.OperandError, match=r"wanda\(0.5\): the calibration of a tensor with NaN"):
        wanda(0.5, torch.full((3, 2), torch.nan))
    with pytest.raises(ns.OperandError, match="calibration has to be a dense tensor of inputs"):
        wanda(0.5, torch.tensor(1.0))


def test_same_pattern_keeps_the_entries_that_another_stores_including_zeros() -> None:
    ref = sparsify(W, magnitude(0.6)).to(ns.CSC)
    ref = ref.with_values(torch.zeros_like(ref.values))
    result = sparsify(W, same_pattern(ref))
    assert result.pattern is ref.pattern
    assert torch.equal(result.to_dense(), torch.where(magnitude(0.6)(W), W, 0))
    assert torch.equal(same_pattern(ref)(W), magnitude(0.6)(W))
    assert torch.equal(same_pattern(ns.nn.Parameter(ref))(W), magnitude(0.6)(W))
    assert sparsify(W, same_pattern(ref), ns.CSR).format == ns.CSR
    blocks = sparsify(W, block_magnitude(4, 4, 0.5))
    assert torch.equal(sparsify(W, same_pattern(blocks)).to_dense(), torch.where(block_magnitude(4, 4, 0.5)(W), W, 0))


def test_same_pattern_copies_its_mask_and_refuses_other_shapes() -> None:
    mask = W > 0
    keep = same_pattern(mask)
    keep(W).zero_()
    assert torch.equal(keep(W), W > 0)
    for other in (keep, same_pattern(sparsify(W, keep))):
        with pytest.raises(ns.SizeError, match=r"the pattern has shape \(7, 10\)"):
            sparsify(torch.ones(10, 7), other)
    with pytest.raises(ns.OperandError, match=r"takes a SparseTensor or a bool mask, not a tensor of torch\.float32"):
        same_pattern(W)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_low_rank_plus_sparse_splits_into_factors_and_remainder(dtype: torch.dtype) -> None:
    full = W.to(dtype)
    parts = low_rank_plus_sparse(3, magnitude(0.8))
    U, V, S = parts.split(full)
    assert (U.shape, V.shape, S.nnz) == ((7, 3), (3, 10), 14)
    best = torch.linalg.svd(full.float(), full_matrices=False)
    torch.testing.assert_close(
        (U @ V).float(), (best.U[:, :3] * best.S[:3] @ best.Vh[:3]), atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0
    )
    rest = full - U @ V
    assert torch.equal(parts(full), magnitude(0.8)(rest))
    assert torch.equal(S.to_dense(), torch.where(parts(full), rest, 0))
    sum_of_parts = parts.split(full)
    tolerance = {"atol": 0.1, "rtol": 0.02} if dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 0}
    torch.testing.assert_close(sum_of_parts @ full.t(), sum_of_parts.to_dense() @ full.t(), **tolerance)


def test_low_rank_of_a_large_matrix_is_nearly_optimal_and_deterministic() -> None:
    left, right = drawn(300, 4), drawn(4, 200, seed=1)
    full = left @ right + 0.01 * drawn(300, 200, seed=2)
    state = torch.get_rng_state()
    parts = low_rank_plus_sparse(4, keep_all()).split(full)
    assert torch.equal(torch.get_rng_state(), state)
    best = torch.linalg.svdvals(full)[4:].norm()
    assert (full - parts.U @ parts.V).norm() < 1.001 * best
    assert torch.equal(low_rank_plus_sparse(4, keep_all()).split(full).U, parts.U)
    torch.testing.assert_close(parts.to_dense(), full)


def test_low_rank_refuses_small_matrices_and_invalid_arguments() -> None:
    with pytest.raises(ns.SizeError, match="it takes a matrix with 8 rows and columns or more"):
        low_rank_plus_sparse(8, magnitude(0.5)).split(W)
    with pytest.raises(ns.SizeError, match="the rank has to be an integer of at least 0"):
        low_rank_plus_sparse(-1, magnitude(0.5))
    with pytest.raises(ns.OperandError, match="is not a sparsifier"):
        low_rank_plus_sparse(1, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ns.OperandError, match="infinite entries"):
        low_rank_plus_sparse(1, magnitude(0.5))(torch.tensor([[torch.inf]]))
    assert low_rank_plus_sparse(0, magnitude(0.5)).split(W).sparse.nnz == 35


def test_sparsifiers_see_tensors_without_gradients() -> None:
    seen: list[bool] = []
    sparsify(W.clone().requires_grad_(), lambda t: seen.append(t.requires_grad) or t > 0)  # type: ignore[func-returns-value]
    assert seen == [False]


def test_composed_sparsifiers_see_the_result_of_their_predecessors() -> None:
    few = compose(n_m(2, 4), magnitude(0.8))
    left = torch.where(n_m(2, 4)(W), W, 0)
    assert torch.equal(few(W), magnitude(0.8)(left))
    assert (few.kind, few.format) == (Kind.MATERIALIZING, ns.NM(2, 4))
    both = compose(threshold(0.1), threshold(0.5), keep_all())
    assert both.kind == "streaming"
    assert torch.equal(both(W), threshold(0.5)(W))
    assert compose(topk(3), n_m(2, 4)).kind == "materializing"  # blocks of two shapes
    assert compose()(W).all()
    with pytest.raises(ns.OperandError, match="is not a sparsifier"):
        compose(0.5)(W)  # type: ignore[arg-type]


@pytest.mark.parametrize("sparsifier", ALL, ids=repr)
def test_each_has_the_properties_of_its_kind(sparsifier: Any) -> None:
    assert isinstance(sparsifier.kind, Kind)
    block = sparsifier.block if sparsifier.kind is Kind.BLOCKING else None
    check_promises(OF_ONE_SHAPE.get(type(sparsifier), sparsifier), repr(sparsifier), sparsifier.kind, block)


@pytest.mark.parametrize("sparsifier", COMPARING, ids=repr)
def test_nan_and_integers_are_refused(sparsifier: Any) -> None:
    broken = W.clone()
    broken[1, 2] = torch.nan
    with pytest.raises(ns.OperandError, match=r"of a tensor with NaN at \(1, 2\)"):
        sparsify(broken, sparsifier)
    with pytest.raises(ns.OperandError, match=r"of a tensor of torch\.int64: it takes floating-point numbers"):
        sparsifier(torch.ones(7, 10, dtype=torch.int64))


@pytest.mark.parametrize("sparsifier", ALL, ids=repr)
def test_tensors_of_zeros(sparsifier: Any) -> None:
    zeros = torch.zeros(7, 10)
    result = sparsify(zeros, sparsifier)
    assert torch.equal(result.to_dense(), zeros)
    if isinstance(sparsifier, magnitude):
        assert result.nnz == 35


@pytest.mark.parametrize("sparsifier", ALL, ids=repr)
def test_sparsifiers_print_and_pickle_by_value(sparsifier: Any) -> None:
    again = pickle.loads(pickle.dumps(sparsifier))
    assert repr(again) == repr(sparsifier)
    assert torch.equal(again(W), sparsifier(W))
    assert str(kind_of(again)) == str(sparsifier.kind)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half"])
def test_shares_lie_between_0_and_1(fraction: Any) -> None:
    for make in (random, lambda share: movement(share, W), lambda share: wanda(share, X)):
        with pytest.raises(ns.SizeError, match="the share that becomes zero lies between 0 and 1"):
            make(fraction)


def test_a_plain_function_is_materializing() -> None:
    assert kind_of(lambda t: t > 0) is Kind.MATERIALIZING
