"""What a library of sparsifiers and layouts has to do, and what an earlier one got wrong: each as a claim about ours.

STen (Ivanov, Dryden, Ben-Nun, Ashkboos, Hoefler, "STen: productive and efficient sparsity in PyTorch", 2023) sparsifies
weights, activations and gradients by name. The tests below restate what its own tests check, and then what fails in it.
"""

from __future__ import annotations

import copy

import pytest
import torch
from sten_cases import HALF, W, X, each_format, generator, linear, steps
from torch import nn
from torch.nn import functional as F
from training_cases import read_back, stored

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsifiers.names import REGISTERED
from numscorch.sparsify import magnitude, n_m, register_sparsifier, sparsify, threshold

pytestmark = pytest.mark.usefixtures("plain_unless_compiled")


class TestModels:
    def test_a_graph_of_sparse_operands_and_its_gradients(self) -> None:
        """A sum, a product with a sparse weight, and a function: what is sparse stays so, and gradients keep the patterns."""
        parts = [sparsify(t, HALF, format) for t, format in ((X, "COO(2)"), (W, "CSR"))]
        x, weight = (A.with_values(A.values.clone().requires_grad_()) for A in parts)
        made = F.gelu(F.linear(x, weight))
        assert isinstance(made, ns.SparseTensor)
        made.sum().backward()
        dense = [A.to_dense().requires_grad_() for A in parts]
        F.gelu(F.linear(*dense)).sum().backward()
        for ours, theirs in zip((x, weight), dense, strict=True):
            assert ours.grad.format == ours.format
            torch.testing.assert_close(ours.grad.to_dense(), theirs.grad * stored(ours))

    @pytest.mark.parametrize("training", [True, False])
    def test_an_encoder_layer_with_sparse_weights(self, training: bool) -> None:
        """In evaluation, torch's layer looks into the weights of its parts to choose a fast path, which has to be declined."""
        dense = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
        sparse, x = copy.deepcopy(dense), torch.randn(2, 3, 8, generator=generator())
        for name in ("linear1", "linear2"):
            own = getattr(dense, name)
            setattr(sparse, name, SparseLinear.from_dense(own, magnitude(0.7)))
            own.weight.data *= magnitude(0.7)(own.weight)
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(sparse(x), dense(x))
        for net in (sparse, dense):
            net(x).square().sum().backward()
        torch.testing.assert_close(sparse.self_attn.in_proj_weight.grad, dense.self_attn.in_proj_weight.grad)
        found = sparse.linear1.weight.grad
        torch.testing.assert_close(found.to_dense(), dense.linear1.weight.grad * stored(found))

    def test_a_network_from_scratch_agrees_with_its_dense_twin(self) -> None:
        sparse = nn.Sequential(SparseLinear(6, 8, density=0.5), nn.ReLU(), SparseLinear(8, 2, density=0.5, format=ns.CSC))
        dense = nn.Sequential(sparse[0].to_dense(), nn.ReLU(), sparse[2].to_dense())
        torch.testing.assert_close(sparse(X), dense(X))
        for net in (sparse, dense):
            net(X).square().sum().backward()
        for at in (0, 2):
            found = sparse[at].weight.grad
            torch.testing.assert_close(found.to_dense(), dense[at].weight.grad * stored(found))
            torch.testing.assert_close(sparse[at].bias.grad, dense[at].bias.grad)
        state = sparse.state_dict()
        assert {name for name in state if "level" not in name} == {"0.weight.values", "0.bias", "2.weight.values", "2.bias"}
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

    def test_a_sparsifier_of_ones_own_needs_no_operators(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("numscorch.sparsifiers.registration.REGISTERED", dict(REGISTERED))
        own = register_sparsifier(lambda t: t > 0, kind="streaming", name="upper", format="DCSC")
        layer = linear(own)
        assert layer.weight.format == ns.DCSC
        layer(X).sum().backward()
        torch.testing.assert_close(layer(X), layer.to_dense()(X))
        assert layer.weight.grad.format == ns.DCSC


class TestDispatch:
    def test_one_weight_takes_dense_and_sparse_inputs_in_either_order(self) -> None:
        """What was built for the first input's format was used for the second one's."""
        few = sparsify(X, HALF, "COO(2)")
        for weight in (linear().weight.tensor, sparsify(W, HALF, "CSC")):
            dense = weight.to_dense()
            for order in ((few, X), (X, few), (few, X, few)):
                for x in order:
                    made = F.linear(x, weight)
                    full = x.to_dense() if isinstance(x, ns.SparseTensor) else x
                    torch.testing.assert_close(made.to_dense() if isinstance(made, ns.SparseTensor) else made, F.linear(full, dense))

    @each_format
    def test_tensors_answer_as_torchs_do(self, format: str) -> None:
        A = sparsify(W, HALF, format)
        full = A.to_dense()
        for made, expected in (
            *((A + A, full + full), (A.clone().add_(A), 2 * full), (torch.ones(4, 6).add_(A), 1 + full), (2 * A, 2 * full)),
            *((A * torch.tensor(2.0), 2 * full), (A.clone(), full), (A.detach(), full), (A == A, full == full)),
            *((torch.stack([A, A]), torch.stack([full, full])), (torch.ones_like(A), stored(A).float())),
            *((torch.mm(A, X.t()), torch.mm(full, X.t())), (torch.mm(X, A.t()), torch.mm(X, full.t()))),
        ):
            torch.testing.assert_close(made.to_dense() if isinstance(made, ns.SparseTensor) else made, expected)
        for ours, theirs in ((A, full), (A.values, A.values)):
            torch.testing.assert_close(torch.std_mean(ours), torch.std_mean(theirs))
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
        for made in (A.to(torch.float64), A.to("cpu", torch.float64), A.to(torch.ones(1, dtype=torch.float64)), A.to(dtype=torch.float64)):
            assert (made.dtype, made.format) == (torch.float64, ns.CSR)
            assert torch.equal(made.to_dense(), A.to_dense().double())
        layer = linear().double()
        assert (layer.weight.dtype, layer(X.double()).dtype, layer.weight.requires_grad) == (torch.float64, torch.float64, True)

    def test_an_operator_that_makes_a_tensor_dense_says_what_would_not(self) -> None:
        A = sparsify(W, HALF)
        with ns.strict(), pytest.raises(ns.UnsupportedError, match=r"exp makes .* dense .*A\.with_values\(torch\.exp\(A\.values\)\)"):
            torch.exp(A)
        with ns.ledger() as led:
            torch.testing.assert_close(torch.exp(A), A.to_dense().exp())
        assert [entry.kind for entry in led if entry.kind == "densification"]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
    @pytest.mark.parametrize("format", ["CSR", "COO(2)", "NM(2, 4)"])
    def test_compiled_models_have_the_gradients_of_eager_ones(self, format: str) -> None:
        """torch.compile was an internal error."""
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
    def test_torch_loads_tensors_and_weights_by_its_own_defaults(self, format: str) -> None:
        """torch.load takes weights_only=True by default."""
        A, layer = sparsify(W, HALF, format), linear(HALF, format)
        read = read_back({"A": A, "state": layer.state_dict()})
        assert read["A"].format == A.format
        assert torch.equal(read["A"].to_dense(), A.to_dense())
        other = linear(HALF, format)
        other.weight.values.data.zero_()
        assert other.load_state_dict(read["state"]) == ([], [])
        assert torch.equal(other(X), layer(X))

    def test_training_goes_on_from_a_checkpoint_to_the_bit(self) -> None:
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
    """Sizes that m doesn't divide were padded, and had to be multiples of a kernel's own number in products."""
    weight = torch.randn(rows, columns, generator=generator(rows + columns))
    A = sparsify(weight, n_m(n, m))
    kept, total = A.values.abs().sum(), weight.abs().sum()
    assert n / m * total <= kept + 1e-5
    assert kept <= total + 1e-5
    assert (A.to_dense() != 0).sum(1).max() <= n * -(-columns // m)
    torch.testing.assert_close(A.to_dense(), weight * n_m(n, m)(weight))
    torch.testing.assert_close(sparsify(weight.t(), n_m(n, m)).to_dense(), weight.t() * n_m(n, m)(weight.t()))
    x = torch.randn(3, columns, generator=generator())
    torch.testing.assert_close(F.linear(x, A), F.linear(x, A.to_dense()))
