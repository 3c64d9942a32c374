"""Models changed by a plan compile to one program: embedding tables, activations and their gradients."""

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
def fresh_compiler() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def whole(model: torch.nn.Module) -> Any:
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def planned(plan: SparsityPlan) -> torch.nn.Sequential:
    dense = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    model: torch.nn.Sequential = sparsify_model(dense, plan.weight("2.weight", magnitude(0.5)), report=None)
    return model


def same_gradients(program: Any, model: torch.nn.Module, x: torch.Tensor) -> None:
    """The gradients of a compiled module equal those of an uncompiled copy."""
    other = copy.deepcopy(model)
    program(x).square().sum().backward()
    other(x).square().sum().backward()
    for parameter, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)


class TestTables:
    @pytest.mark.parametrize("format", ["CSR", "CSC", "COO(2)", "BCSR(2, 2)", "dense"])
    @pytest.mark.parametrize("padding", [None, 2])
    def test_lookups_and_their_gradients(self, format: str, padding: int | None) -> None:
        table = SparseEmbedding(10, 4, padding, density=0.5, format=format if format != "dense" else ns.Format("dd"))
        program = whole(table)
        torch.testing.assert_close(program(WORDS), table(WORDS))
        same_gradients(program, table, WORDS)

    def test_indices_of_any_shape_and_integer_type(self) -> None:
        table = SparseEmbedding(10, 4, density=0.5)
        program = whole(table)
        for words in (WORDS, WORDS[0], WORDS[:0], WORDS[1, 2], WORDS.int(), torch.randint(10, (7, 5))):
            torch.testing.assert_close(program(words), table(words))

    def test_compiled_lookups_refuse_indices_out_of_range(self) -> None:
        with pytest.raises(ns.RangeError, match=r"is 10: with num_embeddings=10, indices go from 0 to 9"):
            whole(SparseEmbedding(10, 4, density=0.5))(WORDS + 1)

    def test_frozen_tables_get_no_gradient_and_exported_tables_work(self) -> None:
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
    def test_rules_keep_the_same_entries_as_without_compilation(self, sparsifier: Any, format: str | None) -> None:
        model = planned(SparsityPlan().activation("1", sparsifier, format))
        program = whole(model)
        for x in (X, X[:1], torch.zeros(5, 8)):
            torch.testing.assert_close(program(x), model(x))
        same_gradients(program, model, X)

    def test_fullgraph_programs_pass_dense_activations_and_record_the_densification(self) -> None:
        program = whole(planned(SparsityPlan().activation("1", magnitude(0.5), "CSR")))
        with ns.ledger() as led:
            program(X)
        assert [(entry.kind, entry.what, entry.asked) for entry in led] == [("densification", 'CSR (3, 8) by activation("1")', False)]
        with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"as a whole .* leave out format= of the rule, or fullgraph=True"):
            program(X)

    def test_programs_with_graph_breaks_pass_sparse_activations(self) -> None:
        program = torch.compile(planned(SparsityPlan().activation("1", magnitude(0.5), "CSR")), backend="eager")
        with ns.ledger() as led, ns.strict():
            program(X)
        assert "a strided tensor to CSR (3, 8)" in [entry.what for entry in led]

    @pytest.mark.parametrize("strict", [True, False])
    def test_exported_models_apply_the_rule_while_it_exists(self, strict: bool) -> None:
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
