"""What isn't 0 of small dense tensors: as a list of coordinates that is packed."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.convert.construct import assemble
from numscorch.convert.nonzeros import listed
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bool, torch.int8, torch.complex64])
@pytest.mark.parametrize(
    ("shape", "format"), [((5,), ns.COO(1)), ((6, 4), ns.CSR), ((6, 4), ns.DCSR), ((1, 9), ns.COO(2)), ((3, 2, 4), ns.COO(3))]
)
def test_it_is_what_packing_makes(shape: tuple[int, ...], format: ns.Format, dtype: torch.dtype) -> None:
    full = (torch.arange(float(torch.Size(shape).numel())).reshape(shape) % 3).to(dtype)
    entries = full.nonzero().T
    packed = assemble(entries.numpy(), full[tuple(entries)], shape, format)
    assert listed(full, format) is not None
    found = ns.from_torch(full, format)
    validate(found.pattern)
    assert found.pattern.stores_as(packed.pattern) and found.pattern.index_dtype == packed.pattern.index_dtype
    assert torch.equal(found.values, packed.values)


def test_nan_is_stored_and_negative_zero_is_not() -> None:
    found = ns.from_torch(torch.tensor([[float("nan"), -0.0], [0.0, 2.0]]))
    assert found.indices().tolist() == [[0, 1], [0, 1]]
    assert found.values[0].isnan()


def test_values_are_a_copy_in_rows_whatever_the_strides() -> None:
    full = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0]]).t()
    found = ns.from_torch(full)
    full.mul_(2.0)
    assert found.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert found.indices().tolist() == [[0, 1, 1, 2], [0, 0, 1, 1]]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_is_stored_of_nothing(shape: tuple[int, int]) -> None:
    found = ns.from_torch(torch.zeros(shape))
    validate(found.pattern)
    assert found.nnz == 0


def test_what_is_not_listed() -> None:
    full = torch.eye(3)
    assert listed(full, ns.CSC) is None
    assert listed(full.bfloat16(), ns.CSR) is None
    assert listed(torch.zeros(tuning.LISTED_VALUES + 1, 1), ns.CSR) is None
    assert ns.from_torch(full.bfloat16()).nnz == 3


def test_gradients_flow_to_the_tensor() -> None:
    full = torch.eye(3, requires_grad=True)
    ns.from_torch(full).values.sum().backward()
    assert torch.equal(full.grad, torch.eye(3))  # type: ignore[arg-type]
