"""COO, CSR and DCSR as one another: arrays are shared, values are not, and hypersparse matrices go another way."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.convert import conversions as reformat
from numscorch.convert.matrices import can_regroup
from numscorch.tensors.validate import validate

FORMATS = (ns.COO(2), ns.CSR, ns.DCSR)
COLUMNS = (ns.Format("oo", (1, 0)), ns.CSC, ns.DCSC)


def dense(rows: int, columns: int) -> torch.Tensor:
    """With rows that are empty, the first and the last among them."""
    generator = torch.Generator().manual_seed(rows)
    values = torch.randint(1, 9, (rows, columns), generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.3)
    values[::3] = 0
    values[-1:] = 0
    return values.float()


@pytest.mark.parametrize("formats", [FORMATS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", [(10, 7), (1, 4), (7, 1), (3, 0), (0, 3)])
def test_every_pair(shape: tuple[int, int], formats: tuple[ns.Format, ...], plain: pytest.MonkeyPatch) -> None:
    values = dense(*shape)
    for source in formats:
        A = ns.from_torch(values, source)
        for target in formats:
            B = A.to(target)
            validate(B.pattern)
            assert B.format == target
            assert torch.equal(B.to_dense(), values)
            if source != target:
                assert can_regroup(source, target)
                assert B.pattern.arrays[1][-1].data_ptr() == A.pattern.arrays[1][-1].data_ptr()


def test_values_are_shared_as_torch_shares_them(plain: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(dense(6, 6), ns.COO(2))
    native = A.to_torch()
    assert native.to_sparse_csr().values().data_ptr() == native.values().data_ptr()
    for _ in range(2):
        assert A.to(ns.CSR).values is A.values
    values = A.values.clone().requires_grad_()
    A.with_values(values).to(ns.CSR).values.sum().backward()
    assert torch.equal(values.grad, torch.ones_like(values))


def test_other_formats_are_converted_otherwise() -> None:
    for source, target in ((ns.CSR, ns.CSC), (ns.CSR, ns.BCSR(2, 2)), (ns.COO(3), ns.CSF(3)), (ns.CSR, ns.Format("ds", (1, 0)))):
        assert not can_regroup(source, target)


def test_rows_too_many_to_count(plain: pytest.MonkeyPatch) -> None:
    """A row's number is a place in an array only where rows are about as many as entries."""
    H = ns.from_coo([[0, 10**9], [5, 7]], [1.0, 2.0], (10**9 + 1, 8), format=ns.COO(2))
    assert not reformat._is_regrouped(H.pattern, ns.DCSR)
    assert H.to(ns.DCSR).values.tolist() == [1.0, 2.0]
