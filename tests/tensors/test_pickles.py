"""Pickles and torch.save of sparse tensors, layers and plans."""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.sparsify import SparsityPlan, magnitude, schedules
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import checked_pattern

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2), ns.BCSR(2, 3), ns.DIA, ns.ELL, ns.Format("(i, j) -> (i: hash, j: bitmap)")], ids=str)
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_saved_tensors_are_loaded(fmt: ns.Format, tmp_path: Path) -> None:
    A = ns.from_torch(torch.eye(5), fmt)
    ns.save({"A": A, "x": torch.ones(2)}, tmp_path / "a.pt")
    read = ns.load(tmp_path / "a.pt")["A"]
    assert read.format == A.format
    assert torch.equal(read.to_dense(), A.to_dense())


def test_a_damaged_pickle_is_refused() -> None:
    arrays = ((), (torch.tensor([0, 1, 2]), torch.tensor([0, 7])))
    assert Pattern(ns.CSR, (2, 3), arrays).nnz == 2
    with pytest.raises(ns.FormatError, match="7"):
        checked_pattern(ns.CSR, (2, 3), arrays)


def pruned_model() -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Embedding(20, 16), torch.nn.Linear(16, 16), torch.nn.TransformerEncoderLayer(16, 2, 8))
    return ns.sparsify.sparsify_model(model, SparsityPlan().weight("*weight", magnitude(0.5)))


@ns.fuse
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@ns.register_sparsifier(kind="streaming", name="positive_in_pickles")
def positive(tensor: torch.Tensor) -> torch.Tensor:
    return tensor > 0


PICKLED: dict[str, Callable[[], Any]] = {
    "tensor": lambda: ns.from_torch(torch.eye(4), ns.BCSR(2, 2)),
    "format": lambda: ns.NMG(1, 4, 4),
    "parameter": lambda: ns.nn.Parameter(ns.from_torch(torch.eye(4), ns.CSR)),
    "model": pruned_model,
    "convolutions": lambda: [ns.nn.GCNConv(4, 4), ns.nn.SAGEConv(4, 4), ns.nn.GATConv(4, 4), ns.nn.GINConv(torch.nn.Linear(4, 4))],
    "attention": lambda: ns.nn.SparseAttention(ns.nn.patterns.causal(8)),
    "sparsifiers": lambda: [ns.sparsify.n_m(2, 4), ns.sparsify.topk(3), ns.sparsify.compose(magnitude(0.5), ns.sparsify.threshold(0.1))],
    "registered": lambda: positive,
    "plan": lambda: SparsityPlan().weight("*weight", ns.sparsify.block_magnitude(2, 2, 0.5)),
    "schedules": lambda: [schedules.cubic(0.9, 0, 10), schedules.linear(0.9, 0, 10), schedules.one_shot(0.5, 3)],
    "plan of an einsum": lambda: ns.plan("ij,j->i", ns.from_torch(torch.eye(4), ns.CSR), torch.ones(4)),
    "fused function": lambda: doubled,
}
PUBLIC = {"numscorch", "numscorch.nn", "numscorch.sparsify", "numscorch.sparsify.schedules"}


def public_names(pickled: bytes) -> set[tuple[str, ...]]:
    """Module and name of each object of the package in a pickle of protocol 2."""
    names = {tuple(argument.split(" ")) for operation, argument, _ in pickletools.genops(pickled) if operation.name == "GLOBAL"}
    return {(module, name) for module, name in names if module.split(".")[0] == "numscorch"}


@pytest.mark.parametrize("kind", PICKLED)
@pytest.mark.filterwarnings("ignore::numscorch.PatternWarning")
def test_pickles_name_public_modules(kind: str) -> None:
    """Pickles contain public modules only, so moving a file breaks none."""
    value = PICKLED[kind]()
    pickled = pickle.dumps(value, protocol=2)
    assert {module for module, _ in public_names(pickled)} <= PUBLIC, public_names(pickled)
    pickle.loads(pickled)


def test_torch_loads_pickles_with_weights_only() -> None:
    """torch.load runs no code of the file."""
    file = io.BytesIO()
    torch.save(ns.from_torch(torch.eye(4), ns.CSR), file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True).to_dense(), torch.eye(4))
