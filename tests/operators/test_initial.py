"""torch.nn.init of sparse weights: stored entries are initialised as those of a dense weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import init
from training_cases import stored

import numscorch as ns
from numscorch.nn import SparseConv2d, SparseLinear

pytestmark = pytest.mark.usefixtures("interpreted")
DRAWN: dict[str, Callable[..., Any]] = {
    "uniform_": lambda weight: init.uniform_(weight, -2, 3),
    "normal_": lambda weight: init.normal_(weight, 1, 0.2),
    "trunc_normal_": lambda weight: init.trunc_normal_(weight, std=0.02),
    "trunc_normal_ without 0": lambda weight: init.trunc_normal_(weight, mean=1.0, a=0.5, b=3.0),
    "xavier_uniform_": lambda weight: init.xavier_uniform_(weight, gain=2.0),
    "xavier_normal_": init.xavier_normal_,
    "kaiming_uniform_": lambda weight: init.kaiming_uniform_(weight, a=5**0.5),
    "kaiming_uniform_ of outputs": lambda weight: init.kaiming_uniform_(weight, mode="fan_out", nonlinearity="relu"),
    "kaiming_normal_": lambda weight: init.kaiming_normal_(weight, mode="fan_out"),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("format", ["CSR", "BCSR(4, 4)"])
def test_values_are_drawn_as_those_of_a_dense_weight(name: str, format: str) -> None:
    """The stored values have the distribution of a dense weight, with the fans of the whole weight."""
    torch.manual_seed(0)
    layer = SparseLinear(64, 160, density=0.5, format=format)
    pattern, mask = layer.weight.pattern, stored(layer.weight)
    DRAWN[name](layer.weight)
    dense = torch.empty(160, 64)
    DRAWN[name](dense)
    sparse_values, dense_values = layer.weight.to_dense().detach()[mask], dense[mask]
    assert (layer.weight.pattern, layer.weight.requires_grad) == (pattern, True)
    for statistic in (torch.mean, torch.std, lambda values: values.quantile(0.9)):
        torch.testing.assert_close(statistic(sparse_values), statistic(dense_values), atol=0.05 * float(dense_values.std()), rtol=0.05)


def test_constants() -> None:
    layer = SparseLinear(6, 4, density=0.5)
    mask = stored(layer.weight).float()
    for call, value in ((init.ones_, 1), (init.zeros_, 0), (lambda weight: init.constant_(weight, 3.0), 3)):
        call(layer.weight)
        assert torch.equal(layer.weight.to_dense(), value * mask)


def test_a_seed_draws_the_same_values() -> None:
    layer = SparseLinear(6, 4, density=0.5)
    draws = []
    for _ in range(2):
        init.kaiming_uniform_(layer.weight, generator=torch.Generator().manual_seed(3))
        draws.append(layer.weight.values.detach().clone())
    assert torch.equal(*draws)


def test_a_convolution_is_initialised_by_its_matrix() -> None:
    layer = SparseConv2d(8, 4, 3, density=0.5)
    init.kaiming_uniform_(layer.weight)
    bound = (6 / (8 * 9)) ** 0.5
    assert 0.8 * bound < float(layer.weight.values.detach().abs().max()) <= bound


def test_orthogonal_weights_are_refused() -> None:
    layer = SparseLinear(6, 4, density=0.5)
    before = layer.weight.values.clone()
    with pytest.raises(ns.UnsupportedError, match=r"orthogonal_.* use torch\.nn\.init\.kaiming_uniform_"):
        init.orthogonal_(layer.weight)
    assert torch.equal(layer.weight.values, before)


def test_methods_in_place_return_the_values_and_ask_for_no_grad() -> None:
    weight = SparseLinear(6, 4, density=0.5).weight
    with torch.no_grad():
        assert weight.uniform_(2, 3) is weight.values
        assert float(weight.normal_(5, 0.1).min()) > 4
        weight.copy_(torch.ones(4, 6))
        assert torch.equal(weight.values, torch.ones(12))
        A = weight.tensor.detach() * 2
        assert A.copy_(weight) is A
    assert bool((A.values == 1).all())
    with pytest.raises(RuntimeError, match="leaf Variable"):
        weight.uniform_()
