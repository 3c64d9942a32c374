"""torch's sparse tensors as operands: wrapped once, not modified, and wrapped again after writes."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterator

import pytest
import torch

import numscorch as ns
from numscorch.convert import construct
from numscorch.programs import torch_sparse

pytestmark = pytest.mark.usefixtures("interpreted")
LAYOUTS = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]
DENSE = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]])
x = torch.arange(3.0) + 1


@pytest.fixture(params=LAYOUTS, ids=str)
def A(request: pytest.FixtureRequest) -> torch.Tensor:
    tensor: torch.Tensor = DENSE.to_sparse(layout=request.param)
    return tensor


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """List of tensors that were wrapped, each after a pass over its index arrays."""
    wrapped: list[object] = []

    def from_torch(tensor: torch.Tensor, copy: bool) -> ns.SparseTensor:
        wrapped.append(tensor)
        return construct.from_torch(tensor, copy=copy)

    monkeypatch.setattr(torch_sparse, "from_torch", from_torch)
    yield wrapped
    wrapped.clear()


def values_of(A: torch.Tensor) -> torch.Tensor:
    return A._values() if A.layout == torch.sparse_coo else A.values()


def test_wrapped_once(A: torch.Tensor, validations: list[object]) -> None:
    for _ in range(3):
        assert torch.equal(ns.einsum("ij,j->i", A, x), DENSE @ x)
    assert len(validations) == 1
    assert torch_sparse.wrap(A) is torch_sparse.wrap(A)


def test_no_copy(A: torch.Tensor) -> None:
    assert torch_sparse.wrap(A).values.data_ptr() == values_of(A).data_ptr()


def test_in_place_changes_of_values_are_detected(A: torch.Tensor) -> None:
    ns.einsum("ij,j->i", A, x)
    values_of(A).mul_(10)
    assert torch.equal(ns.einsum("ij,j->i", A, x), 10 * DENSE @ x)


def test_changes_of_values_by_a_method_of_the_tensor_are_detected(A: torch.Tensor) -> None:
    ns.einsum("ij,j->i", A, x)
    A.mul_(10)
    assert torch.equal(ns.einsum("ij,j->i", A, x), 10 * DENSE @ x)
    A.zero_()
    assert torch.equal(ns.einsum("ij,j->i", A, x), torch.zeros(2))


def test_replaced_arrays_are_detected(A: torch.Tensor) -> None:
    """copy_, resize_ and resize_as_sparse_ replace the arrays of a tensor."""
    ns.einsum("ij,j->i", A, x)
    other = (DENSE.flip(0) * 2).to_sparse(layout=A.layout)
    A.copy_(other)
    assert torch.equal(ns.einsum("ij,j->i", A, x), other.to_dense() @ x)


def test_in_place_changes_of_indices_are_detected() -> None:
    A = DENSE.to_sparse_csr()
    ns.einsum("ij,j->i", A, x)
    A.col_indices()[0] = 2
    assert ns.einsum("ij,j->i", A, x).tolist() == [6.0, 6.0]


@pytest.mark.parametrize("wrong", [3, -1, 10**6])
def test_indices_corrupted_in_place_are_refused(wrong: int) -> None:
    """An unchecked load would read memory of other tensors."""
    A = DENSE.to_sparse_csr()
    ns.einsum("ij,j->i", A, x)
    A.col_indices()[0] = wrong
    with pytest.raises(ns.FormatError, match="is outside dimension 1 of size 3"):
        ns.einsum("ij,j->i", A, x)
    A.col_indices()[0] = 1
    A.crow_indices()[1] = 9
    with pytest.raises(ns.FormatError, match=r"may not decrease|ends at"):
        ns.einsum("ij,j->i", A, x)
    A.crow_indices()[1] = 1
    assert torch.equal(ns.einsum("ij,j->i", A, x), DENSE @ x)


@pytest.mark.parametrize("wrong", [3, -1])
def test_coordinates_corrupted_in_place_are_refused(wrong: int) -> None:
    A = DENSE.to_sparse()
    ns.einsum("ij,j->i", A, x)
    A._indices()[1, 0] = wrong
    with pytest.raises(ns.FormatError, match="has coordinate"):
        ns.einsum("ij,j->i", A, x)


def test_a_dead_tensor_is_forgotten(A: torch.Tensor) -> None:
    tensor = A.clone()
    ns.einsum("ij,j->i", tensor, x)
    key, alive = id(tensor), weakref.ref(tensor)
    assert key in torch_sparse._wrappers
    del tensor
    assert alive() is None, "something keeps the user's tensor alive"
    assert key not in torch_sparse._wrappers


def test_wrappers_of_dead_tensors_are_removed(A: torch.Tensor) -> None:
    gc.collect()
    before = len(torch_sparse._wrappers)
    for _ in range(50):
        ns.einsum("ij,j->i", A.clone(), x)
    assert len(torch_sparse._wrappers) <= before + 1


def test_results_keep_no_operand_alive() -> None:
    A = DENSE.to_sparse_csr()
    alive = weakref.ref(A)
    result = ns.einsum("ij,ij->ij", A, torch.ones(2, 3))
    del A
    assert alive() is None
    assert torch.equal(result.to_dense(), DENSE)


def test_a_reused_id_does_not_return_the_wrapper_of_a_dead_tensor(A: torch.Tensor) -> None:
    """The entry of a dead tensor is not used for a tensor with the same id."""
    other = (DENSE * 5).to_sparse(layout=A.layout)
    torch_sparse.wrap(A)
    torch_sparse._wrappers[id(other)] = torch_sparse._wrappers[id(A)]
    try:
        assert torch.equal(ns.einsum("ij,j->i", other, x), 5 * DENSE @ x)
        torch_sparse.forget(torch_sparse._wrappers, id(other), torch_sparse._wrappers[id(A)][0])
        assert id(other) in torch_sparse._wrappers
    finally:
        torch_sparse._wrappers.pop(id(other), None)


def test_nothing_is_set_on_the_users_tensor(A: torch.Tensor) -> None:
    before = dict(A.__dict__), dir(A), A._version
    ns.einsum("ij,j->i", A, x)
    ns.einsum("ij,ij->ij", A, torch.ones(2, 3))
    assert (dict(A.__dict__), dir(A), A._version) == before
    assert not A._backward_hooks


def test_pickles_hold_plain_tensors(A: torch.Tensor) -> None:
    ns.einsum("ij,j->i", A, x)
    buffer = io.BytesIO()
    torch.save(A, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True).to_dense(), DENSE)


def test_a_result_is_a_plain_tensor(A: torch.Tensor) -> None:
    result = ns.einsum("ij,ij->ij", A, torch.full((2, 3), 2.0))
    buffer = io.BytesIO()
    torch.save(result, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=True)
    assert type(result) is torch.Tensor
    assert loaded.layout == A.layout
    assert torch.equal(loaded.to_dense(), 2 * DENSE)


def test_inference_tensors_are_wrapped_at_each_call(validations: list[object]) -> None:
    """Inference tensors have no version, so writes cannot be detected."""
    with torch.inference_mode():
        A = DENSE.to_sparse_csr()
        assert torch.equal(ns.einsum("ij,j->i", A, x), DENSE @ x)
        A.values().mul_(3)
        assert torch.equal(ns.einsum("ij,j->i", A, x), 3 * DENSE @ x)
        A.col_indices()[0] = 7
        with pytest.raises(ns.FormatError, match="is outside dimension 1"):
            ns.einsum("ij,j->i", A, x)
    assert id(A) not in torch_sparse._wrappers
    assert len(validations) == 3


def test_writes_after_a_call_in_inference_mode_are_detected(A: torch.Tensor) -> None:
    with torch.inference_mode():
        assert torch.equal(ns.einsum("ij,j->i", A, x), DENSE @ x)
    values_of(A).mul_(2)
    assert torch.equal(ns.einsum("ij,j->i", A, x), 2 * DENSE @ x)


def test_uncoalesced_coo(validations: list[object]) -> None:
    A = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 3.0], (2, 3), check_invariants=True)
    expected = A.to_dense() @ x
    for _ in range(2):
        assert torch.equal(ns.einsum("ij,j->i", A, x), expected)
    assert not A.is_coalesced()
    assert len(validations) == 2, "its values are summed into a copy, so it is not remembered"
    A._values().data.mul_(2)
    assert torch.equal(ns.einsum("ij,j->i", A, x), 2 * expected)


def test_parameters_are_wrapped_without_their_gradient(A: torch.Tensor) -> None:
    A.requires_grad_()
    with torch.no_grad():
        result = ns.einsum("ij,j->i", A, x)
    assert not result.requires_grad
    assert A.requires_grad
    assert not torch_sparse.wrap(A).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_trained", [False, True])
def test_products_in_pairs_of_torchs_tensors_are_torchs(is_trained: bool, dtype: torch.dtype) -> None:
    """Each call, also one that repeats the steps of an earlier one, returns the class that a single kernel's result has."""
    generator = torch.Generator().manual_seed(0)
    left, middle = (torch.rand(60, 60, generator=generator).relu() * (torch.rand(60, 60, generator=generator) < 0.1) for _ in range(2))
    right = torch.rand(60, 40, generator=generator, requires_grad=is_trained)
    for _ in range(3):
        result = ns.einsum("ij,jk,kl->ij", left.to_sparse_csr(), middle.to(dtype).to_sparse(), right)
        assert type(result) is torch.Tensor and result.layout == torch.sparse_csr
        sums = middle.to(result.dtype) @ right.to(result.dtype).sum(1)
        torch.testing.assert_close(result.to_dense(), left.to(result.dtype) * sums)


def test_out_receives_a_converted_product_of_torchs_tensors() -> None:
    out = torch.zeros(2, 2, dtype=torch.float64)
    A = DENSE.to_sparse_csr()
    assert ns.einsum("ij,kj->ik", A, DENSE.double().to_sparse_csr(), out=out) is out
    torch.testing.assert_close(out, DENSE.double() @ DENSE.t().double())
