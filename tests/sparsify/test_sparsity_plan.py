"""Plans compare by value, errors suggest names, and budgets add up."""

from __future__ import annotations

import dataclasses
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.sparsifiers import base
from numscorch.sparsify import (
    GradualPruning,
    ModelReport,
    SparsityPlan,
    block_magnitude,
    erk,
    global_magnitude,
    magnitude,
    schedules,
    sparsify,
    sparsify_model,
    uniform,
)

pytestmark = pytest.mark.usefixtures("interpreted")
half = magnitude(0.5)


def net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))


def reported(model: torch.nn.Module, plan: SparsityPlan, **options: Any) -> ModelReport:
    reports: list[ModelReport] = []
    sparsify_model(model, plan, report=reports.append, **options)
    return reports[0]


@pytest.mark.parametrize("budget", [erk(0.9), uniform(0.9), global_magnitude(0.9)])
def test_a_budget_in_place_of_a_sparsifier(budget: Any) -> None:
    name = type(budget).__name__
    message = re.escape(f"{name}(fraction=0.9) is a budget") + ".*" + re.escape(f'SparsityPlan().weights("*", {name}(0.9))')
    model = net()
    calls: list[Callable[[], object]] = [
        *(lambda: SparsityPlan().weight("*", budget), lambda: SparsityPlan().activation("*", budget)),
        *(lambda: ns.nn.SparseLinear.from_dense(torch.nn.Linear(8, 8), budget), lambda: sparsify(torch.ones(2, 2), budget)),
    ]
    for call in calls:
        with pytest.raises(ns.OperandError, match=message):
            call()
    with pytest.raises(ns.OperandError, match="is a budget for plans: pass a function from a fraction to a sparsifier"):
        GradualPruning(model, torch.optim.SGD(model.parameters(), 0.1), budget, schedules.one_shot(0.9, at=1))


def test_plans_compare_by_value_and_methods_return_new_plans() -> None:
    first = SparsityPlan().weight("*.weight", half, "BCSR(2, 2)")
    second = first.activation("0", half).gradient("2", half)
    assert (len(first.rules), len(second.rules)) == (1, 3)
    assert first == SparsityPlan().weight("*.weight", magnitude(0.5), ns.BCSR(2, 2)) != second
    assert pickle.loads(pickle.dumps(second)) == second
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.rules = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("1.weigth", "did you mean '3.weight' or '2.weight' or '0.weight'?"),
        ("linear.*.bias", "did you mean '3.bias' or '2.bias' or '0.bias'?"),
        ("zzz", "there are '0.weight', '0.bias', '2.weight', '2.bias', '3.weight', '3.bias'"),
    ],
)
def test_a_pattern_that_names_nothing_lists_near_misses(pattern: str, near: str) -> None:
    model = net()
    with pytest.raises(ns.ExpressionError, match=re.escape(f'weight("{pattern}") names no parameter: {near}')):
        sparsify_model(model, SparsityPlan().weight("0.weight", half).weight(pattern, half))
    assert type(model[0]) is torch.nn.Linear


def test_patterns_of_modules_do_not_match_parameters() -> None:
    with pytest.raises(ns.ExpressionError, match=r'activation\("0\.weight"\) names no module: there are \'0\', \'1\', \'2\', \'3\''):
        sparsify_model(net(), SparsityPlan().activation("0.weight", half))
    with pytest.raises(ns.ExpressionError, match=r'gradient\("9"\) names no parameter and no module'):
        sparsify_model(net(), SparsityPlan().gradient("9", half))


def test_patterns_are_shell_patterns() -> None:
    report = reported(net(), SparsityPlan().weight("[02].w?ight", half))
    assert [row.name for row in report.rows] == ["0.weight", "2.weight"]


def test_the_last_of_overlapping_rules_holds_and_the_report_says_so() -> None:
    report = reported(net(), SparsityPlan().weight("*.weight", magnitude(0.75)).weight("0.*t", half, "CSC"))
    assert (report["0.weight"].density, report["0.weight"].format) == (0.5, "CSC")
    assert (report["2.weight"].density, report["2.weight"].format) == (0.25, "CSR")
    assert report["0.weight"].note.startswith('weight("0.*t") overrides weight("*.weight")')
    assert report["2.weight"].note == ""
    earlier = reported(net(), SparsityPlan().weight("0.*t", half, "CSC").weight("*.weight", magnitude(0.75)))
    assert earlier["0.weight"].density == 0.25


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda plan: plan.weight("", half), r"weight\(''.*give a pattern of names"),
        (lambda plan: plan.weight("*", 0.9), r"0\.9 is not a sparsifier: give a callable .*, such as magnitude\(0\.9\)"),
        (lambda plan: plan.weights("*", 0.9), r"0\.9 is not a budget: give uniform\(0\.9\)"),
        (lambda plan: plan.activation("*", None), "None is not a sparsifier"),
    ],
)
def test_invalid_rules_are_refused(make: Callable[[SparsityPlan], Any], message: str) -> None:
    with pytest.raises(ns.OperandError, match=message):
        make(SparsityPlan())


@pytest.mark.parametrize("budget", [uniform, erk, global_magnitude])
@pytest.mark.parametrize("fraction", [-0.1, 1.5, "half"])
def test_budgets_lie_between_0_and_1(budget: Any, fraction: Any) -> None:
    with pytest.raises(ns.SizeError, match="lies between 0 and 1"):
        budget(fraction)


@pytest.mark.parametrize("budget", [uniform, erk, global_magnitude])
@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9, 1.0])
def test_budgets_add_up(budget: Any, fraction: float) -> None:
    weights = {name: parameter for name, parameter in net().named_parameters() if parameter.ndim > 1}
    shares = budget(fraction)(weights)
    total = sum(weight.numel() for weight in weights.values())
    assert sum(shares[name] * weight.numel() for name, weight in weights.items()) == pytest.approx(fraction * total, abs=1)
    assert all(0 <= share <= 1 for share in shares.values())


def test_erk_densities_scale_with_layer_sizes_and_stay_below_1() -> None:
    shapes = {"wide": (64, 128), "square": (32, 32), "kernel": (16, 8, 3, 3), "tiny": (2, 2)}
    shares = erk(0.9)(shapes)
    assert shares["tiny"] == 0
    scales = [(1 - shares[name]) * torch.Size(shape).numel() / sum(shape) for name, shape in shapes.items() if name != "tiny"]
    assert scales == pytest.approx([scales[0]] * 3)


def test_a_global_bound_is_that_of_all_values_together() -> None:
    weights = {"a": torch.randn(30, 40), "b": 3 * torch.randn(50, 20), "c": torch.randn(7, 3).to(torch.bfloat16)}
    shares = global_magnitude(0.7)(weights)
    together = torch.cat([weight.float().abs().flatten() for weight in weights.values()])
    bound = together.kthvalue(round(0.7 * len(together))).values
    for name, weight in weights.items():
        assert round(shares[name] * weight.numel()) == pytest.approx(int((weight.float().abs() <= bound).sum()), abs=1)
        assert torch.equal(magnitude(shares[name])(weight), weight.abs() > bound)


def test_equal_values_are_dropped_in_order() -> None:
    assert global_magnitude(0.5)({"a": torch.ones(2, 3), "b": -torch.ones(2, 3)}) == {"a": 1.0, "b": 0.0}
    assert global_magnitude(0.5)({"a": torch.zeros(2, 2), "b": torch.zeros(0, 2)}) == {"a": 0.5, "b": 0.0}
    with pytest.raises(ns.OperandError, match="looks at values, and a has none"):
        global_magnitude(0.5)({"a": (2, 3)})
    with pytest.raises(ns.OperandError, match=r"global_magnitude\(.*0\.5\) of b, which holds NaN"):
        global_magnitude(0.5)({"a": torch.ones(2), "b": torch.tensor([1.0, torch.nan])})


def test_registered_sparsifiers_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ns.OperandError, match="no sparsifier is registered as 'halv'"):
        SparsityPlan().weight("*", "halv")
    monkeypatch.setitem(base.REGISTERED, "half", half)
    assert SparsityPlan().weight("*", "half") == SparsityPlan().weight("*", half)


def test_low_rank_sparsifiers_are_refused() -> None:
    with pytest.raises(ns.UnsupportedError, match="a layer stores the sparse part only"):
        SparsityPlan().weight("*", ns.sparsify.low_rank_plus_sparse(2, half))


@pytest.mark.parametrize(
    "sparsifier", [ns.sparsify.n_m(2, 4), ns.sparsify.random(0.5, seed=0), ns.sparsify.topk(4), ns.sparsify.threshold(0.2)]
)
def test_every_sparsifier_goes_into_a_plan(sparsifier: Any) -> None:
    model = net()
    mask = sparsifier(model[2].weight.detach())
    report = reported(model, SparsityPlan().weight("2.weight", sparsifier))
    assert report["2.weight"].density == pytest.approx(float(mask.float().mean()))


def test_a_budget_is_shared_by_the_weights_for_which_its_rule_holds() -> None:
    plan = SparsityPlan().weights("*.weight", global_magnitude(0.8)).weight("3.weight", half)
    model = net()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters() if name in ("0.weight", "2.weight")}
    expected = global_magnitude(0.8)(weights)
    report = reported(model, plan)
    assert report["3.weight"].density == 0.5
    for name, share in expected.items():
        assert report[name].density == pytest.approx(1 - share)


def test_budgets_take_factories_of_sparsifiers() -> None:
    report = reported(net(), SparsityPlan().weights("[02].weight", uniform(0.75), partial(block_magnitude, 4, 1)))
    assert [(row.format, row.density) for row in report.rows] == [("BCSR(4, 1)", 0.25)] * 2
    with pytest.raises(ns.OperandError, match=r'the budget of weight\("\*\.weight"\) has no share for 0\.weight'):
        sparsify_model(net(), SparsityPlan().weights("*.weight", lambda weights: {}))
