"""Common mistakes with sparsifiers: each error shows the argument and the correct call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.sparsify import (
    SparsityPlan,
    block_magnitude,
    compose,
    keep_all,
    low_rank_plus_sparse,
    magnitude,
    movement,
    n_m,
    n_m_g,
    random,
    report,
    sparsify,
    sparsify_model,
    threshold,
    topk,
    uniform,
    wanda,
)

pytestmark = pytest.mark.usefixtures("interpreted")

D = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
half: Any = magnitude(0.5)
any_function: Any = sparsify


@pytest.mark.parametrize("factory", [magnitude, n_m, topk, threshold, keep_all, block_magnitude, random, wanda])
def test_a_class_of_sparsifiers_is_refused(factory: Any) -> None:
    message = rf"{factory.__name__} is a class, not a sparsifier: call it with its parameters, as in magnitude\(0\.9\)"
    calls: list[Callable[[], object]] = [
        *(lambda: sparsify(D, factory), lambda: report(D, factory), lambda: compose(half, factory)),
        *(lambda: SparsityPlan().weight("*", factory), lambda: low_rank_plus_sparse(1, factory)),
        lambda: ns.nn.SparseLinear.from_dense(torch.nn.Linear(2, 2), factory),
    ]
    for call in calls:
        with pytest.raises(ns.OperandError, match=message):
            call()


SHARE = "the share that becomes zero lies between 0 and 1, as in 0.9"
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "text": (lambda: magnitude("0.5"), f"magnitude: {SHARE}; '0.5' is not a number"),  # type: ignore[arg-type]
    "truth": (lambda: magnitude(True), f"magnitude: {SHARE}; True is not a number"),
    "tensor": (lambda: magnitude(D), f"magnitude: {SHARE}; a tensor of shape (2, 2) is not a number"),  # type: ignore[arg-type]
    "percent": (lambda: magnitude(50), f"magnitude(50): {SHARE}"),
    "movement": (lambda: movement(D, 0.5), f"movement: {SHARE}; a tensor of shape (2, 2)"),  # type: ignore[arg-type]
    "wanda": (lambda: wanda(D, 0.5), f"wanda: {SHARE}; a tensor of shape (2, 2)"),  # type: ignore[arg-type]
    "threshold": (lambda: threshold(D), "threshold(a tensor of shape (2, 2)): t, the bound of absolute values"),  # type: ignore[arg-type]
    "topk": (lambda: topk(True), "topk(True, dim=-1): k is an integer"),
    "seed": (lambda: random(0.5, 1 << 70), "a seed is an integer of 64 bits"),
    "tensor second": (lambda: any_function(half, D), "not magnitude: the tensor comes first, as in sparsify(tensor, magnitude(0.9))"),
    "model": (lambda: any_function(torch.nn.Linear(2, 2), half), "not Linear: use sparsify_model to make a model's weights sparse"),
    "mask": (lambda: any_function(D, D > 1), "a tensor of shape (2, 2) is not a sparsifier: give same_pattern(mask)"),
    "format second": (lambda: any_function(D, ns.CSR, half), "CSR is a format, not a sparsifier: give it after the sparsifier"),
    "text of a format": (lambda: SparsityPlan().weight("*", "CSC", half), "'CSC' is a format, not a sparsifier"),  # type: ignore[arg-type]
    "compose as one": (lambda: any_function(D, lambda t: compose()), "returned compose(), which is not a mask"),
    "no rules": (lambda: sparsify_model(torch.nn.Linear(2, 2), SparsityPlan()), "no rules: its methods return a new plan"),
    "budget": (lambda: SparsityPlan().weights("*", half), "magnitude(0.5) is not a budget: give uniform(0.9)"),
    "budget's class": (lambda: SparsityPlan().weights("*", uniform), "is not a budget: give uniform(0.9)"),  # type: ignore[arg-type]
    "budget and mask": (lambda: SparsityPlan().weights("*", uniform(0.5), half), "magnitude(0.5) is a sparsifier already: pass a function"),
    "not of a share": (
        lambda: sparsify_model(torch.nn.Linear(2, 2), SparsityPlan().weights("weight", uniform(0.5), lambda share: share)),  # type: ignore[arg-type, return-value]
        'weight("weight"): <lambda> returned 0.5 for 0.5, not a sparsifier',
    ),
}


UNCALLED: dict[str, tuple[Callable[[], object], str]] = {
    "block": (lambda: block_magnitude(16, 0.75), "block_magnitude(16, 0.75): missing a required argument: 'fraction'; call it as block_m"),  # type: ignore[arg-type, call-arg]
    "wanda": (lambda: wanda(0.5), "wanda(0.5): missing a required argument: 'calibration'; call it as wanda(0.5, inputs)"),  # type: ignore[call-arg]
    "movement": (lambda: movement(0.5), "call it as movement(0.9, scores), the scores of a MovementScores"),  # type: ignore[call-arg]
    "nothing": (lambda: magnitude(), "magnitude(): missing a required argument: 'fraction'; call it as magnitude(0.9)"),  # type: ignore[call-arg]
    "n:m": (lambda: n_m(2), "call it as n_m(2, 4)"),  # type: ignore[call-arg]
    "n:m:g": (lambda: n_m_g(2, 4), "call it as n_m_g(2, 4, 8)"),  # type: ignore[call-arg]
    "another name": (lambda: magnitude(amount=0.5), "magnitude(amount=0.5): missing a required argument: 'fraction'"),  # type: ignore[call-arg]
    "a tensor": (lambda: threshold(D, 1), "threshold(a tensor of shape (2, 2), 1): too many positional arguments"),  # type: ignore[arg-type, call-arg]
    "budget": (lambda: uniform(), "call it as uniform(0.9)"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", UNCALLED)
def test_missing_arguments_name_the_signature(name: str) -> None:
    call, text = UNCALLED[name]
    with pytest.raises(TypeError) as error:
        call()
    assert isinstance(error.value, ns.OperandError)
    assert text in str(error.value)


def test_a_report_without_layouts_compares_common_ones() -> None:
    assert [row.layout for row in report(torch.rand(8, 8)).rows] == [
        *("magnitude(0.5)", "magnitude(0.9)", "n_m(2, 4)", "block_magnitude(4, 4, 0.9)")
    ]
    assert [row.layout for row in report(torch.rand(8)).rows] == ["magnitude(0.5)", "magnitude(0.9)"]
    model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ns.OperandError, match=r'for a model, give a weight: model\.get_parameter\("0\.weight"\)'):
        report(model)


@pytest.mark.parametrize("text", ["NM(2, 4)", "NM(1, 4, 2)"])
def test_a_pattern_that_an_n_m_format_cannot_store_names_the_sparsifier(text: str) -> None:
    alternative = f"sparsify.{text.replace('NM', 'n_m')} keeps what {text} stores"
    mask = torch.ones(8, 8) > 0
    for call in (lambda: ns.nn.SparseLinear(8, 8, pattern=mask, format=text), lambda: ns.from_torch(torch.ones(8, 8), text)):
        with pytest.raises(ns.FormatError) as error:
            call()
        assert alternative in str(error.value)


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_explained(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ns.NumscorchError) as error:
        call()
    assert message in str(error.value)


def test_numbers_of_numpy_are_accepted() -> None:
    assert torch.equal(magnitude(np.float32(0.5))(D), half(D))  # type: ignore[arg-type]
    assert torch.equal(threshold(np.float64(1.0))(D), threshold(1)(D))


@pytest.mark.parametrize(
    ("text", "example"),
    [
        *(("NM", "NM(2, 4)"), ("NM(2)", "NM(2, 4)"), ("NMG", "NMG(2, 4, 8)"), ("BSR", "BCSR(4, 4)"), ("BSR(2, 2)", "BCSR(4, 4)")),
        *(("BCSR", "BCSR(4, 4)"), ("bcsr", "BCSR(4, 4)"), ("ELL(2, 3)", "ELL(4)")),
    ],
)
def test_formats_without_parameters_show_an_example(text: str, example: str) -> None:
    for call in (lambda: sparsify(D, half, text), lambda: ns.from_torch(D, text), lambda: SparsityPlan().weight("*", half, text)):
        with pytest.raises(ns.FormatError) as error:
            call()
        assert str(error.value) == f"the format {text!r} needs parameters, as in {example}"


def test_functions_that_return_formats_have_to_be_called() -> None:
    for function, text in ((ns.NM, "NM needs parameters, as in ns.NM(2, 4)"), (ns.BCSR, "as in ns.BCSR(4, 4)"), (ns.COO, "as in COO(2)")):
        with pytest.raises(ns.FormatError) as error:
            any_function(D, half, function)
        assert text in str(error.value)
    with pytest.raises(ns.FormatError):
        sparsify(D, half, "COO(2, 3)")


@pytest.mark.parametrize(
    "sparsifier",
    [half, threshold(0.1), topk(1), n_m(2, 4), block_magnitude(2, 2, 0.5), n_m_g(1, 2, 1), wanda(0.5, torch.ones(2))],
    ids=repr,
)
def test_meta_tensors_are_refused(sparsifier: Any) -> None:
    meta = torch.empty(2, 2, device="meta")
    for call in (lambda: sparsify(meta, sparsifier), lambda: sparsifier(meta), lambda: report(meta, sparsifier)):
        with pytest.raises(ns.UnsupportedError, match="of a meta tensor, which has no values: give it values first"):
            call()


@pytest.mark.parametrize("values", [[1.0, torch.inf], [-torch.inf, torch.inf]])
def test_reports_of_infinite_sums_are_refused(values: list[float]) -> None:
    with pytest.raises(ns.OperandError, match="report of a tensor whose sum is infinite"):
        report(torch.tensor(values), half)
    assert sparsify(torch.tensor(values), half).nnz == 1


@pytest.mark.parametrize("format", ["dense", "infer", "auto"])
def test_names_of_dense_formats_are_refused(format: str) -> None:
    with pytest.raises(
        ns.FormatError, match=r"give a sparse format, such as ns\.CSR; for a dense result, use tensor \* sparsifier\(tensor\)"
    ):
        sparsify(torch.ones(2, 2), threshold(0.5), format)
