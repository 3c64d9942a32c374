"""What a plan makes of a model stays one program for torch's compiler: tables, activations and their gradients."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.nn import SparseEmbedding
from numscorch.sparsify import SparsityPlan, magnitude, n_m, sparsify_model, threshold

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler

WORDS = torch.tensor([[1, 2, 2], [9, 0, 1]])
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def whole(model: torch.nn.Module) -> Any:
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def planned(plan: SparsityPlan) -> torch.nn.Sequential:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    made: torch.nn.Sequential = sparsify_model(model, plan.weight("2.weight", magnitude(0.5)), report=None)
    return made


def same_gradients(program: Any, model: torch.nn.Module, given: torch.Tensor) -> None:
    """Of a program and of a copy of the module that it was made of."""
    other = copy.deepcopy(model)
    program(given).square().sum().backward()
    other(given).square().sum().backward()
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


class TestTables:
    @pytest.mark.parametrize("format", ["CSR", "CSC", "COO(2)", "BCSR(2, 2)", "dense"])
    @pytest.mark.parametrize("padding", [None, 2])
    def test_lookups_and_their_gradients(self, format: str, padding: int | None) -> None:
        table = SparseEmbedding(10, 4, padding, density=0.5, format=format if format != "dense" else ns.Format("dd"))
        program = whole(table)
        torch.testing.assert_close(program(WORDS), table(WORDS))
        same_gradients(program, table, WORDS)

    def test_lists_of_any_length_and_type_are_looked_up(self) -> None:
        table = SparseEmbedding(10, 4, density=0.5)
        program = whole(table)
        for words in (WORDS, WORDS[0], WORDS[:0], WORDS[1, 2], WORDS.int(), torch.randint(10, (7, 5))):
            torch.testing.assert_close(program(words), table(words))

    def test_a_number_that_is_no_rows_is_refused_by_the_program_too(self) -> None:
        with pytest.raises(ns.SizeError, match="one_hot of class 10 with num_classes=10"):
            whole(SparseEmbedding(10, 4, density=0.5))(WORDS + 1)

    def test_frozen_tables_get_no_gradient_and_exported_ones_are_looked_up(self) -> None:
        table = SparseEmbedding(10, 4, density=0.5)
        program = torch.export.export(table, (WORDS,)).module()
        torch.testing.assert_close(program(WORDS), table(WORDS))
        table.weight.requires_grad = False
        assert not whole(table)(WORDS).requires_grad


class TestActivations:
    @pytest.mark.parametrize("format", [None, "CSR", "COO(2)"])
    @pytest.mark.parametrize(
        "sparsifier", [magnitude(0.5), n_m(2, 4), threshold(0.2), lambda t: t > 0.2], ids=["magnitude", "n:m", "threshold", "function"]
    )
    def test_a_rule_keeps_what_it_keeps_without_the_compiler(self, sparsifier: Any, format: str | None) -> None:
        model = planned(SparsityPlan().activation("1", sparsifier, format))
        program = whole(model)
        for x in (X, X[:1], torch.zeros(5, 8)):
            torch.testing.assert_close(program(x), model(x))
        same_gradients(program, model, X)

    def test_a_whole_program_hands_on_dense_tensors_which_is_listed_and_refused_in_strict_mode(self) -> None:
        program = whole(planned(SparsityPlan().activation("1", magnitude(0.5), "CSR")))
        with ns.ledger() as led:
            program(X)
        assert [(entry.kind, entry.what, entry.asked) for entry in led] == [("densification", 'CSR (3, 8) by activation("1")', False)]
        with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"as a whole .* leave out format= of the rule, or fullgraph=True"):
            program(X)

    def test_a_program_that_may_be_in_parts_hands_on_sparse_ones(self) -> None:
        program = torch.compile(planned(SparsityPlan().activation("1", magnitude(0.5), "CSR")), backend="eager")
        with ns.ledger() as led, ns.strict():
            program(X)
        assert "a strided tensor to CSR (3, 8)" in [entry.what for entry in led]

    @pytest.mark.parametrize("strict", [True, False])
    def test_exported_models_have_the_rule_while_it_lives(self, strict: bool) -> None:
        model = planned(SparsityPlan().activation("1", magnitude(0.5), "CSR"))
        program = torch.export.export(model, (X,), strict=strict).module()
        expected = model(X)
        torch.testing.assert_close(program(X), expected)
        model[1]._forward_hooks.clear()
        torch.compiler.reset()
        gc.collect()
        with pytest.raises(ns.UnsupportedError, match="the plan's rule that this program was compiled with is gone"):
            program(X)

    @pytest.mark.parametrize("names", ["1", "0.weight"])
    def test_rules_of_gradients_hold_in_programs(self, names: str) -> None:
        model = planned(SparsityPlan().gradient(names, magnitude(0.5)))
        same_gradients(whole(model), model, X)
