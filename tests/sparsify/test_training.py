"""Sparse parameters as torch's tools use them: training, copying, saving, loading, batches. Torch's sparse tensors lack these."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import numscorch as ns

D = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)) * (torch.rand(5, 4, generator=torch.Generator().manual_seed(1)) < 0.6)
x = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
GROWTH = 5.0  # MiB that a step may allocate


class SparseNet(torch.nn.Module):
    """A model with a sparse parameter and a sparse layer."""

    def __init__(self, format: ns.Format = ns.CSR) -> None:
        super().__init__()
        self.weight = ns.nn.Parameter(ns.from_torch(D, format))
        self.layer = ns.nn.SparseLinear(5, 3, density=0.5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.nn.functional.linear(inputs, self.weight))


@pytest.fixture
def net(interpreted: None) -> SparseNet:
    torch.manual_seed(0)
    return SparseNet()


def test_parameters_are_listed(net: SparseNet) -> None:
    assert [name for name, _ in net.named_parameters()] == ["weight.values", "layer.weight.values", "layer.bias"]
    assert isinstance(net.weight, ns.nn.Parameter)
    assert isinstance(ns.nn.Parameter(x), torch.nn.Parameter)
    assert "SparseTensor(CSR" in repr(net)
    torch.testing.assert_close(net.weight @ x.t(), D @ x.t())
    assert torch.equal(ns.einsum("ij,kj->ik", net.weight, x), net.weight @ x.t())
    assert torch.equal((2 * net.weight).to_dense(), 2 * D)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad", "LBFGS", "RMSprop"])
def test_optimizers(optimizer: str, net: SparseNet) -> None:
    """Of these optimizers, only SGD supports torch's sparse parameters."""
    trainer = getattr(torch.optim, optimizer)(net.parameters(), lr=0.01)

    def loss() -> torch.Tensor:
        trainer.zero_grad()
        total: torch.Tensor = net(x).square().sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0)
        return total

    before = loss()
    for _ in range(5):
        trainer.step(loss)
    assert loss() < before
    assert isinstance(net.weight.grad, ns.SparseTensor)


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 2), ns.ELL], ids=lambda f: f.name)
def test_the_gradient_is_that_of_a_masked_layer(format: ns.Format, interpreted: None) -> None:
    net = SparseNet(format)
    dense = D.clone().requires_grad_()
    net(x).square().sum().backward()
    inner = torch.nn.functional.linear(x, dense * (D != 0))
    torch.nn.functional.linear(inner, net.layer.weight.to_dense().detach(), net.layer.bias.detach()).square().sum().backward()
    stored = net.weight.tensor.with_values(torch.ones(net.weight.tensor.pattern.nnz)).to_dense() != 0
    gradient = net.weight.grad.to_dense()
    torch.testing.assert_close(gradient[D != 0], dense.grad[D != 0])
    assert not gradient[~stored].any()


def test_copies(net: SparseNet) -> None:
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(x), net(x))
        with torch.no_grad():
            other.weight.values.zero_()
        assert net.weight.values.any()


def test_state_is_saved_and_loaded(net: SparseNet, tmp_path: Path) -> None:
    torch.save(net.state_dict(), tmp_path / "state.pt")
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.weight.values.zero_()
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(x), net(x))


def test_the_state_of_another_pattern_is_refused(net: SparseNet) -> None:
    other = copy.deepcopy(net)
    other.weight = ns.nn.Parameter(ns.from_torch(torch.eye(5, 4)))
    with pytest.raises(
        RuntimeError, match=r"weight\.values \(stores 12 entries in the state, other 4 in the model; call ns\.sparsify\.load_patterns"
    ):
        other.load_state_dict(net.state_dict())


def test_a_tensor_is_saved_and_loaded() -> None:
    A, buffer = ns.from_torch(D), io.BytesIO()
    torch.save(A, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True).equal(A)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_loader(workers: int) -> None:
    """The items of a batch have different patterns."""
    items = [(ns.from_torch(torch.triu(torch.ones(3, 3), at % 3)), at) for at in range(6)]
    for batch, numbers in DataLoader(items, batch_size=3, num_workers=workers):
        assert batch.shape == (3, 3, 3)
        for at, number in enumerate(numbers.tolist()):
            assert torch.equal(batch[at].to_dense(), items[number][0].to_dense())


def test_autocast(net: SparseNet) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        result = net(x)
    assert result.dtype == torch.bfloat16
    result.float().sum().backward()
    assert net.weight.values.grad.dtype == torch.float32
    torch.testing.assert_close(result.float(), net(x), rtol=0.05, atol=0.05)


def test_shared_memory_and_data_types(net: SparseNet) -> None:
    before = net(x)
    net.share_memory()
    assert torch.equal(net(x), before)
    assert net.double()(x.double()).dtype == torch.float64


def test_trees_and_functional_calls(net: SparseNet) -> None:
    A = ns.from_torch(D)
    doubled = torch.utils._pytree.tree_map(lambda t: t * 2, {"A": A})["A"]
    assert torch.equal(doubled.to_dense(), 2 * D)
    zeros = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    assert not torch.func.functional_call(net, zeros, (x,)).any()


def test_python_protocols() -> None:
    A = ns.from_torch(D)
    assert (len(A), len(list(A))) == (5, 5)
    assert A in {A: 1}
    assert torch.equal(A.values, torch.from_dlpack(A.values))
    with pytest.raises(AttributeError, match=r"A\.values\.requires_grad_\(\)"):
        A.requires_grad_()
    with pytest.raises(ns.SizeError, match="item"):
        bool(A)


def test_writing_in_place_keeps_the_pattern(interpreted: None) -> None:
    A = ns.from_torch(D)
    other = ns.from_torch(torch.eye(5, 4))
    for call in (lambda: A.clone().add_(other), lambda: A.clone().copy_(other)):
        with pytest.raises(ns.SizeError, match="their patterns differ"):
            call()
    with pytest.raises(ns.UnsupportedError, match="would store every entry"):
        A.clone().add_(1.0)
    copied = A.clone()
    copied.copy_(torch.ones(5, 4))
    assert copied.pattern is A.pattern
    assert bool((copied.values == 1).all())
    assert torch.equal(A.to_dense(), D)


def peak() -> float:
    """The peak memory of the process in MiB since its last reset."""
    lines: list[str] = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can reset a process's peak memory")
def test_the_gradient_allocates_memory_for_stored_entries_only() -> None:
    """The matrix is 7000 x 7000 with 7000 entries; torch computes its gradient as a dense matrix."""
    indices = torch.randint(0, 7000, (2, 7000), generator=torch.Generator().manual_seed(0))
    A = ns.from_coo(indices, torch.rand(7000), (7000, 7000), ns.CSR)
    dense, values = torch.rand(7000, 8), A.values.clone().requires_grad_()

    def step() -> Any:
        values.grad = None
        (A.with_values(values) @ dense).sum().backward()

    step()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak()
    step()
    assert peak() - before < GROWTH
