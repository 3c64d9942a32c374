"""Behaviour expected from a library of sparsifiers and layouts, including known failures of STen.

STen (Ivanov, Dryden, Ben-Nun, Ashkboos, Hoefler, "STen: productive and efficient sparsity in PyTorch", 2023) sparsifies
weights, activations and gradients by name. The tests restate STen's own tests and cover its known failures.
"""

from __future__ import annotations

import copy

import pytest
import torch
from dense_values import as_dense
from sten_cases import HALF, W, X, each_format, generator, linear, steps
from torch import nn
from torch.nn import functional as F
from training_cases import read_back, stored

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsifiers.base import REGISTERED
from numscorch.sparsify import magnitude, n_m, register_sparsifier, sparsify, threshold

pytestmark = pytest.mark.usefixtures("plain_unless_compiled")


class TestModels:
    def test_a_graph_of_sparse_operands_and_its_gradients(self) -> None:
        """A sum, a product with a sparse weight, and a function return sparse results; gradients have the patterns of the operands."""
        parts = [sparsify(t, HALF, format) for t, format in ((X, "COO(2)"), (W, "CSR"))]
        x, weight = (A.with_values(A.values.clone().requires_grad_()) for A in parts)
        result = F.gelu(F.linear(x, weight))
        assert isinstance(result, ns.SparseTensor)
        result.sum().backward()
        dense = [A.to_dense().requires_grad_() for A in parts]
        F.gelu(F.linear(*dense)).sum().backward()
        for tensor, reference in zip((x, weight), dense, strict=True):
            assert tensor.grad.format == tensor.format
            torch.testing.assert_close(tensor.grad.to_dense(), reference.grad * stored(tensor))

    @pytest.mark.parametrize("training", [True, False])
    def test_an_encoder_layer_with_sparse_weights(self, training: bool) -> None:
        """In evaluation, torch's layer reads the weights of its parts to select a fast path, which sparse weights must disable."""
        dense = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
        sparse, x = copy.deepcopy(dense), torch.randn(2, 3, 8, generator=generator())
        for name in ("linear1", "linear2"):
            layer = getattr(dense, name)
            setattr(sparse, name, SparseLinear.from_dense(layer, magnitude(0.7)))
            layer.weight.data *= magnitude(0.7)(layer.weight)
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(sparse(x), dense(x))
        for net in (sparse, dense):
            net(x).square().sum().backward()
        torch.testing.assert_close(sparse.self_attn.in_proj_weight.grad, dense.self_attn.in_proj_weight.grad)
        gradient = sparse.linear1.weight.grad
        torch.testing.assert_close(gradient.to_dense(), dense.linear1.weight.grad * stored(gradient))

    def test_a_network_from_scratch_agrees_with_its_dense_twin(self) -> None:
        sparse = nn.Sequential(SparseLinear(6, 8, density=0.5), nn.ReLU(), SparseLinear(8, 2, density=0.5, format=ns.CSC))
        dense = nn.Sequential(sparse[0].to_dense(), nn.ReLU(), sparse[2].to_dense())
        torch.testing.assert_close(sparse(X), dense(X))
        for net in (sparse, dense):
            net(X).square().sum().backward()
        for at in (0, 2):
            gradient = sparse[at].weight.grad
            torch.testing.assert_close(gradient.to_dense(), dense[at].weight.grad * stored(gradient))
            torch.testing.assert_close(sparse[at].bias.grad, dense[at].bias.grad)
        state = sparse.state_dict()
        assert {name for name in state if "level" not in name} == {
            f"{at}.{name}" for at in (0, 2) for name in ("weight", "weight._extra_state", "weight.values", "bias")
        }
        assert copy.deepcopy(sparse).load_state_dict(read_back(state)) == ([], [])

    def test_an_activation_is_sparsified_between_layers(self) -> None:
        first, second = nn.Linear(6, 6), linear()
        hidden = first(X)
        few = sparsify(hidden, threshold(0.3))
        second(few).to_dense().sum().backward()
        expected = first.weight.grad.clone()
        first.zero_grad()
        hidden = first(X)
        F.linear(hidden * (hidden.abs() > 0.3), second.weight.to_dense().detach(), second.bias.detach()).sum().backward()
        torch.testing.assert_close(expected, first.weight.grad)

    def test_a_user_defined_sparsifier_needs_no_operators(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("numscorch.sparsifiers.registration.REGISTERED", dict(REGISTERED))
        sparsifier = register_sparsifier(lambda t: t > 0, kind="streaming", name="upper", format="DCSC")
        layer = linear(sparsifier)
        assert layer.weight.format == ns.DCSC
        layer(X).sum().backward()
        torch.testing.assert_close(layer(X), layer.to_dense()(X))
        assert layer.weight.grad.format == ns.DCSC


class TestDispatch:
    def test_one_weight_takes_dense_and_sparse_inputs_in_either_order(self) -> None:
        """Kernels are selected by the formats of each call's operands."""
        few = sparsify(X, HALF, "COO(2)")
        for weight in (linear().weight.tensor, sparsify(W, HALF, "CSC")):
            dense = weight.to_dense()
            for order in ((few, X), (X, few), (few, X, few)):
                for x in order:
                    result = F.linear(x, weight)
                    full = as_dense(x)
                    torch.testing.assert_close(as_dense(result), F.linear(full, dense))

    @each_format
    def test_tensors_support_torchs_functions_and_methods(self, format: str) -> None:
        A = sparsify(W, HALF, format)
        full = A.to_dense()
        for result, expected in (
            *((A + A, full + full), (A.clone().add_(A), 2 * full), (torch.ones(4, 6).add_(A), 1 + full), (2 * A, 2 * full)),
            *((A * torch.tensor(2.0), 2 * full), (A.clone(), full), (A.detach(), full), (A == A, full == full)),
            *((torch.stack([A, A]), torch.stack([full, full])), (torch.ones_like(A), stored(A).float())),
            *((torch.mm(A, X.t()), torch.mm(full, X.t())), (torch.mm(X, A.t()), torch.mm(X, full.t()))),
        ):
            torch.testing.assert_close(as_dense(result), expected)
        for tensor, reference in ((A, full), (A.values, A.values)):
            torch.testing.assert_close(torch.std_mean(tensor), torch.std_mean(reference))
        assert (A.shape, A.size(), A.size(1), A.dim()) == ((4, 6), torch.Size([4, 6]), 6, 2)
        assert repr(A).startswith(f"SparseTensor({ns.Format(format).name}, shape=(4, 6), nnz=")
        assert {A: 1, ns.nn.Parameter(A): 2}[A] == 1

    def test_clones_follow_gradients_and_detached_ones_do_not(self) -> None:
        weight = ns.nn.Parameter(sparsify(W, HALF))
        assert weight.clone().requires_grad
        assert not weight.detach().requires_grad
        assert weight.clone().values.data_ptr() != weight.values.data_ptr()
        assert weight.detach().values.data_ptr() == weight.values.data_ptr()

    def test_all_signatures_of_to(self) -> None:
        A = sparsify(W, HALF)
        for wide in (A.to(torch.float64), A.to("cpu", torch.float64), A.to(torch.ones(1, dtype=torch.float64)), A.to(dtype=torch.float64)):
            assert (wide.dtype, wide.format) == (torch.float64, ns.CSR)
            assert torch.equal(wide.to_dense(), A.to_dense().double())
        layer = linear().double()
        assert (layer.weight.dtype, layer(X.double()).dtype, layer.weight.requires_grad) == (torch.float64, torch.float64, True)

    def test_an_operator_that_densifies_recommends_one_that_does_not(self) -> None:
        A = sparsify(W, HALF)
        with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"exp makes .* dense .*A\.with_values\(torch\.exp\(A\.values\)\)"):
            torch.exp(A)
        with ns.ledger() as led:
            torch.testing.assert_close(torch.exp(A), A.to_dense().exp())
        assert [entry.kind for entry in led if entry.kind == "densification"]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
    @pytest.mark.parametrize("format", ["CSR", "COO(2)", "NM(2, 4)"])
    def test_compiled_models_have_the_gradients_of_eager_ones(self, format: str) -> None:
        """Layers with weights in several formats compile without graph breaks."""
        eager = nn.Sequential(linear(n_m(2, 4), format), nn.ReLU())
        other = copy.deepcopy(eager)
        torch.compiler.reset()
        compiled = torch.compile(other, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(X), eager(X))
        compiled(X).sum().backward()
        eager(X).sum().backward()
        torch.testing.assert_close(other[0].weight.values.grad, eager[0].weight.values.grad)
        torch.compiler.reset()


class TestFiles:
    @each_format
    def test_torch_loads_tensors_and_weights_with_its_defaults(self, format: str) -> None:
        """torch.load takes weights_only=True by default."""
        A, layer = sparsify(W, HALF, format), linear(HALF, format)
        read = read_back({"A": A, "state": layer.state_dict()})
        assert read["A"].format == A.format
        assert torch.equal(read["A"].to_dense(), A.to_dense())
        other = linear(HALF, format)
        other.weight.values.data.zero_()
        assert other.load_state_dict(read["state"]) == ([], [])
        assert torch.equal(other(X), layer(X))

    def test_training_resumes_bit_for_bit_from_a_checkpoint(self) -> None:
        nets = [linear(), linear()]
        whole, parted = ((net, torch.optim.Adam(net.parameters(), lr=0.01)) for net in nets)
        nets[1].load_state_dict(nets[0].state_dict())
        steps(*whole, X, 6)
        steps(*parted, X, 3)
        net = linear()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        net.load_state_dict(read_back(nets[1].state_dict()))
        optimizer.load_state_dict(read_back(parted[1].state_dict()))
        steps(net, optimizer, X, 3)
        assert torch.equal(net.weight.values, nets[0].weight.values)
        assert torch.equal(net.bias, nets[0].bias)


@pytest.mark.parametrize("columns", [1, 5, 17])
@pytest.mark.parametrize("rows", [1, 5, 17])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 6), (5, 12)])
def test_n_m_takes_any_shape_and_keeps_its_share(n: int, m: int, rows: int, columns: int) -> None:
    """m need not divide the shape."""
    weight = torch.randn(rows, columns, generator=generator(rows + columns))
    A = sparsify(weight, n_m(n, m))
    kept_sum, total = A.values.abs().sum(), weight.abs().sum()
    assert n / m * total <= kept_sum + 1e-5
    assert kept_sum <= total + 1e-5
    assert (A.to_dense() != 0).sum(1).max() <= n * -(-columns // m)
    torch.testing.assert_close(A.to_dense(), weight * n_m(n, m)(weight))
    torch.testing.assert_close(sparsify(weight.t(), n_m(n, m)).to_dense(), weight.t() * n_m(n, m)(weight.t()))
    x = torch.randn(3, columns, generator=generator())
    torch.testing.assert_close(F.linear(x, A), F.linear(x, A.to_dense()))
