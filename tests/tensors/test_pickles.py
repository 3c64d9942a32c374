"""Pickles: torch.save and torch.load of sparse tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import numscorch as ns
from numscorch.tensors.pattern import Pattern
from numscorch.tensors.validate import restored


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2), ns.BCSR(2, 3), ns.DIA, ns.ELL, ns.Format("(i, j) -> (i: hash, j: bitmap)")], ids=str)
@pytest.mark.filterwarnings("ignore:.* stores .* values for")
def test_torch_loads_what_it_saved(fmt: ns.Format, tmp_path: Path) -> None:
    A = ns.from_torch(torch.eye(5), fmt)
    ns.save({"A": A, "x": torch.ones(2)}, tmp_path / "a.pt")
    read = ns.load(tmp_path / "a.pt")["A"]
    assert read.format == A.format
    assert torch.equal(read.to_dense(), A.to_dense())


def test_a_damaged_pickle_is_refused() -> None:
    arrays = ((), (torch.tensor([0, 1, 2]), torch.tensor([0, 7])))
    assert Pattern(ns.CSR, (2, 3), arrays).nnz == 2
    with pytest.raises(ns.FormatError, match="7"):
        restored(ns.CSR, (2, 3), arrays)
