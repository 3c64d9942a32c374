"""AveragedModel of models with sparse weights: independent copies, and patterns that change between updates."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from random_tensors import drawn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training_cases import stored

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import GradualPruning, RigL, load_patterns, magnitude, schedules

pytestmark = pytest.mark.usefixtures("interpreted")


def network(density: float = 0.3) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(SparseLinear(8, 12, density=density), torch.nn.ReLU(), SparseLinear(12, 4, density=density))


def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(drawn(16, 8)).square().sum().backward()
    optimizer.step()


def test_an_average_leaves_other_copies_of_its_model_alone() -> None:
    model = network()
    average, third = AveragedModel(model), copy.deepcopy(model)
    before = [weight.to_dense().detach() for weight in (third[0].weight, third[2].weight)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rigl = RigL(model, optimizer, until=10, every=1)
    for _ in range(3):
        step(model, optimizer)
        rigl.step()
        average.update_parameters(model)
    for weight, dense in zip((third[0].weight, third[2].weight), before, strict=True):
        assert torch.equal(weight.to_dense(), dense)


each = pytest.mark.parametrize("decay", [None, 0.75], ids=["equal", "exponential"])


def averaged(model: torch.nn.Module, decay: float | None) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=None if decay is None else get_ema_multi_avg_fn(decay))


@each
def test_load_patterns_before_each_update_averages_by_coordinate(decay: float | None) -> None:
    """Averages equal those of dense weights by coordinate. A coordinate that is dropped and grown again restarts at 0."""
    model = network()
    average = averaged(model, decay)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    rigl = RigL(model, optimizer, until=100, every=2, fraction=0.5)
    expected, dropped = torch.zeros(12, 8), torch.zeros(12, 8, dtype=torch.bool)
    for count in range(8):
        step(model, optimizer)
        before = stored(model[0].weight)
        if rigl.step():
            load_patterns(average.module, model.state_dict())
        dropped |= before & ~stored(model[0].weight)
        average.update_parameters(model)
        part = 1 if not count else 1 / (count + 1) if decay is None else 1 - decay
        expected = torch.lerp(expected, model[0].weight.to_dense().detach(), part)
    weight = average.module[0].weight
    same = stored(weight) & ~dropped
    assert weight.pattern.stores_as(model[0].weight.pattern)
    assert int(dropped.sum()) > 5 < int(same.sum())
    torch.testing.assert_close(weight.to_dense()[same], expected[same])


@each
def test_an_average_of_a_model_that_becomes_sparse(decay: float | None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4))
    average = averaged(model, decay)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = schedules.linear(0.8, begin=0, end=6, every=2)
    pruning = GradualPruning(model, optimizer, magnitude, schedule, sparse_from=0.5, weights="0.weight")
    expected = torch.zeros(12, 8)
    for count in range(8):
        step(model, optimizer)
        if pruning.step():
            load_patterns(average.module, model.state_dict())
        average.update_parameters(model)
        part = 1 if not count else 1 / (count + 1) if decay is None else 1 - decay
        weight: Any = model[0].weight
        expected = torch.lerp(expected, (weight if weight.layout is torch.strided else weight.to_dense()).detach(), part)
    average_weight = average.module[0].weight
    assert average_weight.nnz == model[0].weight.nnz == round(0.2 * 96)
    torch.testing.assert_close(average_weight.to_dense()[stored(average_weight)], expected[stored(average_weight)])


def careless(copied: bool = False) -> tuple[AveragedModel, torch.nn.Sequential, Any]:
    """An average of a model whose pattern changed between two updates."""
    model = network()
    average = AveragedModel(model)
    average = pickle.loads(pickle.dumps(average)) if copied else average
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rigl = RigL(model, optimizer, until=10, every=1)
    average.update_parameters(model)
    step(model, optimizer)
    rigl.step()
    average.update_parameters(model)
    return average, model, (optimizer, rigl)


@pytest.mark.parametrize("copied", [False, True])
def test_an_update_with_another_pattern_warns_once_for_each_parameter(copied: bool) -> None:
    average, model, (optimizer, rigl) = careless(copied)
    with pytest.warns(ns.PatternWarning, match=r"load_patterns\(averaged\.module, model\.state_dict\(\)\)") as records:
        average(drawn(2, 8))
    assert len(records) == 2
    assert all(record.filename == __file__ for record in records)
    step(model, optimizer)
    rigl.step()
    average.update_parameters(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        average(drawn(2, 8))


def test_an_average_of_one_pattern_does_not_warn() -> None:
    model = network()
    average = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            step(model, optimizer)
            average.update_parameters(model)
            average(drawn(2, 8))
        copy.deepcopy(average)(drawn(2, 8))


def test_averages_of_index_arrays_are_refused() -> None:
    """`use_buffers=True` would average index arrays and round them down; the error names the fix."""
    model = network()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(2):
        average.update_parameters(model)
    with pytest.raises(ns.FormatError, match="leave use_buffers out"):
        average(drawn(2, 8))
