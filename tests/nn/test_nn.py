"""Modules with sparse weights against torch's dense modules; copies, states and compilation of every module."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_tensors import generator
from torch.nn.utils import prune
from training_cases import read_back

import numscorch as ns
from numscorch.nn import SparseConv2d, SparseEmbeddingBag, SparseLinear
from numscorch.sparsify import block_magnitude, magnitude
from numscorch.tensors.parameter import SparseParameter

SPARSIFIERS = [magnitude(0.6), block_magnitude(2, 3, 0.5), lambda t: t > 0]
named = pytest.mark.parametrize("sparsifier", SPARSIFIERS, ids=["magnitude", "block_magnitude", "callable"])


def masked(weight: torch.Tensor, sparsifier: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The dense weight with zeros where the sparsifier keeps nothing; gradients flow to kept entries."""
    return weight * sparsifier(weight.detach().flatten(1)).reshape(weight.shape)


def compare(
    sparse: torch.nn.Module, weight: torch.Tensor, result: torch.Tensor, expected: torch.Tensor, inputs: list[torch.Tensor]
) -> None:
    """Results agree, and so do the gradients of inputs and of the weight at stored entries."""
    torch.testing.assert_close(result, expected)
    upstream = torch.randn(result.shape, generator=generator(9), dtype=result.dtype)
    result.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    gradient = sparse.weight.grad
    stored = gradient.with_values(torch.ones_like(gradient.values)).to_dense() != 0
    torch.testing.assert_close(gradient.to_dense(), torch.where(stored, weight.grad.flatten(1), 0.0))


class TestLinear:
    @named
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_it_equals_the_layer_with_a_masked_weight(self, sparsifier: Any, dtype: torch.dtype, interpreted: None) -> None:
        dense = torch.nn.Linear(7, 5, dtype=dtype)
        layer = SparseLinear.from_dense(dense, sparsifier)
        assert layer.weight.dtype == layer.bias.dtype == dtype
        inputs = [torch.randn(3, 7, generator=generator(), dtype=dtype).requires_grad_() for _ in range(2)]
        full = dense.weight.detach().clone().requires_grad_()
        mask = sparsifier(full.detach())
        torch.testing.assert_close(layer.to_dense().weight, full * mask, rtol=0, atol=0)
        expected = torch.nn.functional.linear(inputs[1], torch.where(mask, full, 0), dense.bias)
        torch.testing.assert_close(layer(inputs[0]), expected)
        if getattr(sparsifier, "format", ns.CSR) == ns.CSR:
            compare(layer, full, layer(inputs[0]), expected, inputs)
            torch.testing.assert_close(layer.bias.grad, dense.bias.grad)

    def test_the_default_format_is_the_sparsifiers(self) -> None:
        dense = torch.nn.Linear(6, 4)
        assert SparseLinear.from_dense(dense, SPARSIFIERS[2]).weight.format == ns.CSR
        layer = SparseLinear.from_dense(dense, block_magnitude(2, 2, 0.5))
        assert layer.weight.format == ns.BCSR(2, 2)
        assert "bias=True, density=0.5, BCSR(2, 2)" in repr(layer)
        assert SparseLinear.from_dense(dense, block_magnitude(2, 2, 0.5), "CSC").weight.format == ns.CSC

    def test_frozen_parameters_stay_frozen_and_nothing_is_shared(self) -> None:
        dense = torch.nn.Linear(6, 4).eval()
        dense.weight.requires_grad_(False)
        layer = SparseLinear.from_dense(dense, magnitude(0.5))
        assert not layer.weight.requires_grad
        assert layer.bias.requires_grad
        assert not layer.training
        assert torch.equal(layer.bias, dense.bias)
        back = layer.to_dense()
        assert (back.weight.requires_grad, back.bias.requires_grad, back.training) == (False, True, False)
        with torch.no_grad():
            layer.bias.zero_()
            layer.weight.values.zero_()
        assert dense.bias.all()
        assert dense.weight.all()
        assert SparseLinear.from_dense(torch.nn.Linear(6, 4, bias=False), magnitude(0.5)).bias is None

    def test_kept_zeros_are_stored(self) -> None:
        dense = torch.nn.Linear(6, 4)
        torch.nn.init.zeros_(dense.weight)
        assert SparseLinear.from_dense(dense, lambda weight: weight == 0).weight.nnz == 24

    @pytest.mark.parametrize(("format", "nnz"), [("CSR", 25), ("BCSR(2, 2)", 24), ("BCSR(16, 1)", 32), ("BCSR(3, 3)", 27)])
    def test_a_density_counts_stored_entries_of_the_format(self, format: str, nnz: int) -> None:
        """Blocks are drawn as a whole: entries drawn one by one would store nearly every block."""
        weight = SparseLinear(6, 16, density=0.25, format=format).weight
        assert weight.format.name == format
        assert abs(weight.nnz - nnz) <= 9

    @pytest.mark.parametrize("pattern", ["tensor", "numpy", "SparseTensor", "torch CSR", "scipy"])
    def test_patterns_in_every_form(self, pattern: str) -> None:
        mask = torch.rand(4, 6, generator=generator()) < 0.5
        forms: dict[str, Callable[[], Any]] = {
            "tensor": lambda: mask,
            "numpy": mask.numpy,
            "SparseTensor": lambda: ns.from_torch(mask, ns.CSC),
            "torch CSR": lambda: mask.float().to_sparse_csr(),
            "scipy": lambda: pytest.importorskip("scipy.sparse").csr_array(mask.float().numpy()),
        }
        weight = SparseLinear(6, 4, pattern=forms[pattern]()).weight
        assert torch.equal(weight.with_values(torch.ones(weight.nnz)).to_dense() != 0, mask)

    def test_invalid_patterns_and_sparsifiers_are_refused(self) -> None:
        with pytest.raises(ns.SizeError, match=r"pattern has shape \(6, 4\), but the weight has \(4, 6\): \(out_features, in_features\)"):
            SparseLinear(6, 4, pattern=torch.ones(6, 4))
        with pytest.raises(ns.SizeError, match=r"returned a mask of shape \(4,\) for a tensor of shape \(4, 6\)"):
            SparseLinear.from_dense(torch.nn.Linear(6, 4), lambda weight: weight[:, 0] > 0)
        with pytest.raises(ns.OperandError, match=r"SparseLinear\.from_dense takes a torch\.nn\.Linear, not Conv2d"):
            SparseLinear.from_dense(torch.nn.Conv2d(3, 4, 1), magnitude(0.5))
        with pytest.raises(ns.OperandError, match=r"0\.5 is not a sparsifier: give a callable"):
            SparseLinear.from_dense(torch.nn.Linear(6, 4), 0.5)
        with pytest.raises(ns.UnsupportedError, match="meta tensor"):
            SparseLinear.from_dense(torch.nn.Linear(6, 4, device="meta"), lambda weight: torch.ones(4, 6, dtype=torch.bool, device="meta"))


MODULES: dict[str, Callable[..., torch.nn.Module]] = {
    "SparseLinear": lambda **where: SparseLinear(6, 4, density=0.5, **where),
    "SparseConv2d": lambda **where: SparseConv2d(2, 4, 3, density=0.5, **where),
    "SparseEmbedding": lambda **where: ns.nn.SparseEmbedding(6, 4, density=0.5, **where),
    "SparseEmbeddingBag": lambda **where: SparseEmbeddingBag(6, 4, **where),
    "SparseAttention": lambda **where: ns.nn.SparseAttention(ns.nn.patterns.causal, 4, 2, **where),
    "SparseTransformerEncoderLayer": lambda **where: ns.nn.SparseTransformerEncoderLayer(ns.nn.patterns.causal, 4, 2, **where),
    "MoE": lambda **where: ns.nn.MoE(2, 1, 4, 3, **where),
}


@pytest.mark.parametrize("name", MODULES)
def test_device_and_dtype_are_accepted_as_by_torchs_modules(name: str) -> None:
    for device in ("cpu", torch.device("cpu"), torch.device("cpu", 0), None):
        assert {parameter.dtype for parameter in MODULES[name](device=device, dtype=torch.float64).parameters()} == {torch.float64}
    for device in ("meta", torch.device("cuda:0"), "mps"):
        with pytest.raises(ns.UnsupportedError, match=f"{name} on device=.*: numscorch runs on the CPU, so leave device= out"):
            MODULES[name](device=device)


def test_lazy_sizes_are_refused() -> None:
    for make in (
        lambda: SparseLinear(-1, 3, density=0.5),
        lambda: SparseLinear(-1, 3, pattern=torch.ones(3, 4)),
        lambda: SparseConv2d(-1, 3, 3, density=0.5),
        lambda: ns.nn.SparseEmbedding(5, -1, density=0.5),
    ):
        with pytest.raises(ns.SizeError, match="sizes can't be inferred from the first input"):
            make()


class TestState:
    def layer(self, seed: int = 0, format: str = "CSR") -> SparseLinear:
        mask = torch.rand(4, 4, generator=generator(seed)) < 0.5
        return SparseLinear(4, 4, pattern=mask, format=format)

    def test_a_state_of_the_same_pattern_is_loaded(self) -> None:
        layer, other = self.layer(), self.layer()
        assert other.load_state_dict(read_back(layer.state_dict())) == ([], [])
        assert torch.equal(layer.weight.values, other.weight.values)
        assert other.double().load_state_dict(layer.state_dict()) == ([], [])
        assert other.weight.dtype == torch.float64

    def test_index_arrays_of_another_width_are_the_same_pattern(self) -> None:
        layer, state = self.layer(), self.layer().state_dict()
        assert layer.load_state_dict({name: t.long() if t.dtype == torch.int32 else t for name, t in state.items()}) == ([], [])

    def test_the_error_of_another_pattern_names_both(self) -> None:
        net, other = torch.nn.Sequential(self.layer()), torch.nn.Sequential(self.layer(1))
        weight, source = net[0].weight, other[0].weight
        assert weight.nnz != source.nnz
        message = f"stores {source.nnz} entries in the state, other {weight.nnz} in the model; call ns.sparsify.load_patterns(model, state"
        for state in (read_back(other.state_dict()), dict(other.state_dict())):
            with pytest.raises(RuntimeError, match=re.escape(message)) as error:
                net.load_state_dict(state)
            assert len(str(error.value)) < 300

    def test_another_pattern_raises_without_strict_too_as_another_shape_does(self) -> None:
        net, other = torch.nn.Sequential(self.layer(), self.layer()), torch.nn.Sequential(self.layer(1), self.layer())
        before = net[0].weight.values.clone()
        with pytest.raises(RuntimeError, match=r"0\.weight\.values \(stores .*load_patterns"):
            net.load_state_dict(other.state_dict(), strict=False)
        assert torch.equal(net[0].weight.values, before)
        assert torch.equal(net[0].bias, other[0].bias)
        assert torch.equal(net[1].weight.values, other[1].weight.values)

    def test_equal_index_arrays_in_another_format_are_another_pattern(self) -> None:
        """Columns read as rows would transpose the weight."""
        pattern = torch.eye(4)
        layer, other = SparseLinear(4, 4, pattern=pattern), SparseLinear(4, 4, pattern=pattern, format=ns.CSC)
        with pytest.raises(RuntimeError, match=r"weight\.values \(is stored as CSC in the state, as CSR in the model"):
            layer.load_state_dict(read_back(other.state_dict()))
        with pytest.raises(RuntimeError, match=r"weight\.values \(is stored as CSC in the state, as CSR in the model"):
            layer.load_state_dict(dict(other.state_dict()))
        with pytest.raises(RuntimeError, match=r"has shape \(4, 5\) in the state, \(4, 4\) in the model; build"):
            layer.load_state_dict(SparseLinear(5, 4, pattern=torch.eye(4, 5)).state_dict())
        state = dict(SparseLinear(4, 4, pattern=pattern, format="COO(2)").state_dict())
        del state["weight._extra_state"]
        with pytest.raises(RuntimeError, match=r"has different index arrays in the state than in the model \(CSR\)"):
            layer.load_state_dict(state)
        with pytest.raises(ns.OperandError, match=r"_extra_state of a sparse weight is not its shape and format .* give the result of"):
            layer.load_state_dict(state | {"weight._extra_state": torch.tensor([4, 4])})

    @pytest.mark.parametrize("format", ["CSR", "CSC", "COO(2)", "BCSR(2, 2)", "ELL"])
    def test_the_state_of_a_dense_layer_is_loaded_if_the_pattern_has_its_nonzeros(self, format: str, interpreted: None) -> None:
        layer, dense = self.layer(format=format), torch.nn.Linear(4, 4)
        dense.weight.data *= layer.weight.with_values(torch.ones(layer.weight.values.shape)).to_dense()
        nets = torch.nn.Sequential(layer), torch.nn.Sequential(dense)
        pattern, state = layer.weight.pattern, nets[1].state_dict()
        for assign in (False, True):
            layer.weight.values.data.zero_()
            assert nets[0].load_state_dict(state, assign=assign) == ([], [])
            assert torch.equal(layer.weight.to_dense(), dense.weight)
            assert layer.weight.pattern is pattern
        assert list(state) == ["0.weight", "0.bias"]

    def test_nonzeros_of_a_dense_layer_outside_of_the_pattern_are_an_error(self, interpreted: None) -> None:
        layer, dense = SparseLinear(4, 4, pattern=torch.eye(4)), torch.nn.Linear(4, 4)
        message = r"weight \(12 nonzeros lie outside the pattern of the sparse weight, the first ones at \(0, 1\), \(0, 2\), \(0, 3\); zero"
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict(dense.state_dict())
        layer.weight.values.data.zero_()
        assert len(layer.load_state_dict(dense.state_dict(), strict=False).unexpected_keys) == 1
        assert torch.equal(layer.weight.to_dense(), dense.weight * torch.eye(4))
        conv, stock = SparseConv2d(2, 3, 2, pattern=torch.ones(3, 8)), torch.nn.Conv2d(2, 3, 2)
        assert conv.load_state_dict(stock.state_dict()) == ([], [])
        assert torch.equal(conv.to_dense().weight, stock.weight)

    def test_a_dense_state_of_a_parameter_alone_is_refused_and_the_error_names_from_dense(self) -> None:
        class WithParameter(torch.nn.Module):
            def __init__(self, weight: Any):
                super().__init__()
                self.scale = weight

        net, dense = WithParameter(ns.nn.Parameter(ns.eye(4, format=ns.CSR))), WithParameter(torch.nn.Parameter(torch.eye(4)))
        for strict in (True, False):
            with pytest.raises(RuntimeError, match=r"is dense in the state, but SparseTensor.*from_dense\(module, sparsifier\)"):
                net.load_state_dict(dense.state_dict(), strict=strict)

    @pytest.mark.parametrize("format", ["CSR", "CSC", "BCSR(2, 2)"])
    def test_assigned_states_bring_their_patterns(self, format: str, interpreted: None) -> None:
        mask = torch.rand(4, 4, generator=generator(1)) < 0.5
        source = torch.nn.Sequential(SparseLinear(4, 4, pattern=mask, format=format), SparseLinear(4, 4, pattern=mask, format=format))
        source[1].weight = ns.nn.Parameter(source[0].weight.tensor * 2)
        net, x = torch.nn.Sequential(self.layer(), self.layer()), torch.rand(2, 4)
        net[0].weight.requires_grad_(False)
        assert net.load_state_dict(read_back(source.state_dict()), assign=True) == ([], [])
        assert torch.equal(net(x), source(x))
        assert net[0].weight.format.name == format
        assert net[0].weight.pattern is net[1].weight.pattern
        assert (net[0].weight.requires_grad, net[1].weight.requires_grad) == (False, True)
        assert all(buffer is array for buffer, array in zip(net[0].weight.buffers(), net[0].weight.pattern.arrays[1], strict=False))

    def test_invalid_assigned_states_are_refused(self) -> None:
        layer, state = self.layer(), self.layer(1).state_dict()
        pattern = layer.weight.pattern
        with pytest.raises(RuntimeError, match=r"has shape \(4, 5\) in the state, \(4, 4\) in the model; build"):
            layer.load_state_dict(SparseLinear(5, 4, density=0.5).state_dict(), assign=True)
        for wrong, message in (
            ({"weight.level1_crd": state["weight.level1_crd"] + 9}, "outside dimension 1 of size 4"),
            (
                {"weight.level2_crd": state["weight.level1_crd"]},
                "level1_crd, level1_pos, level2_crd in the state, not those of CSR",
            ),
        ):
            with pytest.raises(RuntimeError, match=message):
                layer.load_state_dict(state | wrong, assign=True)
            assert layer.weight.pattern is pattern

    def test_copies_and_loads_read_index_arrays_once_and_write_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Copies keep the checksum, and loading compares arrays without writing to them."""
        layer = self.layer()
        versions = [array._version for array in layer.buffers()]
        monkeypatch.setattr("numscorch.tensors.pattern_module.checksum_of", lambda pattern: pytest.fail("a checksum was computed"))
        copied = copy.deepcopy(layer)
        copied.load_state_dict(layer.state_dict())
        layer.load_state_dict(copied.state_dict())
        assert [array._version for array in layer.buffers()] == versions
        assert copied.weight.tensor.pattern is copied.weight.pattern

    def test_a_copy_of_overwritten_index_arrays_has_their_checksum(self, interpreted: None) -> None:
        weight = ns.nn.Parameter(ns.eye(4, format=ns.CSR))
        weight.level1_crd.copy_(torch.tensor([1, 0, 2, 3]))
        copied = copy.deepcopy(weight)
        copied.level1_crd.copy_(torch.tensor([0, 1, 2, 3]))
        with pytest.warns(ns.PatternWarning):
            assert torch.equal(copied.to_dense(), torch.eye(4))


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "strides": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2)},
    "dilation": {"kernel_size": 2, "dilation": (2, 1), "padding": 1, "bias": False},
    "same": {"kernel_size": (4, 3), "padding": "same", "dilation": (1, 2)},
    "valid": {"kernel_size": 2, "padding": "valid", "stride": 2},
    "1 x 1": {"kernel_size": 1},
    "1 x 1 padded": {"kernel_size": 1, "padding": 1},
}


class TestConv2d:
    @pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")  # of torch's own
    @pytest.mark.parametrize("sparsifier", SPARSIFIERS[::2], ids=["magnitude", "callable"])
    @pytest.mark.parametrize("case", CONVOLUTIONS)
    def test_it_equals_the_convolution_with_a_masked_weight(self, case: str, sparsifier: Any, interpreted: None) -> None:
        dense = torch.nn.Conv2d(2, 3, **CONVOLUTIONS[case])
        layer = SparseConv2d.from_dense(dense, sparsifier)
        inputs = [torch.randn(2, 2, 6, 5, generator=generator()).requires_grad_() for _ in range(2)]
        full = dense.weight.detach().clone().requires_grad_()
        torch.testing.assert_close(layer.to_dense().weight, masked(full, sparsifier), rtol=0, atol=0)
        expected = dense._conv_forward(inputs[1], masked(full, sparsifier), dense.bias)
        compare(layer, full, layer(inputs[0]), expected, inputs)
        if dense.bias is not None:
            torch.testing.assert_close(layer.bias.grad, dense.bias.grad)
        torch.testing.assert_close(layer(inputs[0][0]), expected[0])
        torch.testing.assert_close(layer.to_dense()(inputs[0]), expected)

    def test_blocks(self, interpreted: None) -> None:
        layer = SparseConv2d.from_dense(torch.nn.Conv2d(2, 5, 3), block_magnitude(2, 9, 0.5))
        assert layer.weight.format == ns.BCSR(2, 9)
        x = torch.randn(1, 2, 4, 4, generator=generator())
        torch.testing.assert_close(layer(x), layer.to_dense()(x))

    def test_patterns_of_kernels(self) -> None:
        mask = torch.rand(3, 2, 2, 2, generator=generator()) < 0.5
        for pattern in (mask, mask.flatten(1), ns.from_torch(mask), ns.from_torch(mask.flatten(1))):
            layer = SparseConv2d(2, 3, 2, pattern=pattern)
            assert layer.weight.nnz == int(mask.sum())
            assert not layer.to_dense().weight[~mask].any()
        with pytest.raises(ns.SizeError, match=r"but the weight has \(3, 8\): \(out_channels, in_channels \* kernel height"):
            SparseConv2d(2, 3, 2, pattern=torch.ones(2, 3, 2, 2))

    def test_the_unfolded_input_is_in_the_ledger(self, interpreted: None) -> None:
        layer, pointwise = SparseConv2d(2, 3, 2, density=0.5), SparseConv2d(2, 3, 1, density=0.5)
        x = torch.ones(1, 2, 3, 3)
        with torch.no_grad(), ns.ledger() as led:
            pointwise(x)
            assert not [entry for entry in led if "unfolded" in entry.what]
            layer(x)
        (entry,) = [entry for entry in led if "unfolded" in entry.what]
        assert (entry.kind, entry.bytes) == ("copy", 8 * 4 * 4)

    def test_unsupported_arguments_are_refused(self) -> None:
        with pytest.raises(ns.UnsupportedError, match=r"groups=2 is not supported by SparseConv2d: with groups=1"):
            SparseConv2d.from_dense(torch.nn.Conv2d(2, 2, 1, groups=2), magnitude(0.5))
        with pytest.raises(ns.UnsupportedError, match=r"padding_mode='reflect' is not supported .*functional\.pad"):
            SparseConv2d(2, 2, 3, padding=1, padding_mode="reflect", density=0.5)
        with pytest.raises(ns.SizeError, match="padding='same' with stride="):
            SparseConv2d(2, 2, 3, stride=2, padding="same", density=0.5)
        with pytest.raises(ns.SizeError, match="padding='full': give 'same', 'valid', or numbers"):
            SparseConv2d(2, 2, 3, padding="full", density=0.5)
        with pytest.raises(ns.SizeError, match="stride=0: give an integer of at least 1"):
            SparseConv2d(2, 2, 3, stride=0, density=0.5)
        with pytest.raises(ns.UnsupportedError, match="SparseConv2d needs to know which entries"):
            SparseConv2d(2, 2, 3)
        layer = SparseConv2d(2, 2, 3, density=0.5)
        with pytest.raises(ns.SizeError, match=r"input has shape \(1, 3, 4, 4\), but the layer takes \(N, 2, H, W\)"):
            layer(torch.ones(1, 3, 4, 4))
        with pytest.raises(ns.SizeError, match=r"a kernel of \(3, 3\), .*doesn't fit an input of 2 x 5"):
            layer(torch.ones(1, 2, 2, 5))


def modules() -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    return {
        "linear": (SparseLinear(7, 5, density=0.4), (torch.randn(3, 7),)),
        "conv": (SparseConv2d(2, 3, 3, density=0.4), (torch.randn(2, 2, 6, 5),)),
        "embedding": (SparseEmbeddingBag(6, 5, mode="sum"), (torch.tensor([4, 1, 1, 5, 0]), torch.tensor([0, 3]))),
    }


each = pytest.mark.parametrize("name", ["linear", "conv", "embedding"])
EYE = torch.eye(8)
ON_META: dict[str, Callable[[], torch.nn.Module]] = {
    **{
        f"linear {format}": lambda format=format: SparseLinear(8, 8, density=0.5, format=format)  # type: ignore[misc]
        for format in ("CSR", "CSC", "COO(2)", "BCSR(2, 2)", "ELL", "NM(2, 4)", "NMG(2, 4, 2)")
    },
    "pattern": lambda: SparseLinear(8, 8, pattern=EYE),
    "conv": lambda: SparseConv2d(2, 3, 3, density=0.5),
    "embedding": lambda: ns.nn.SparseEmbedding(8, 6, density=0.5, padding_idx=1),
    "bags": lambda: SparseEmbeddingBag(8, 6),
    "gcn": lambda: ns.nn.GCNConv(3, 4),
    "gat": lambda: ns.nn.GATConv(3, 4),
    "sage": lambda: ns.nn.SAGEConv(3, 4),
    "gin": lambda: ns.nn.GINConv(torch.nn.Linear(3, 4)),
    "experts": lambda: ns.nn.MoE(4, 2, 3, 5),
    "projections": lambda: ns.nn.SparseMultiheadAttention(8, 2),
    "attention": lambda: ns.nn.SparseAttention(ns.nn.patterns.bigbird(64), 8, 2),
    "encoder": lambda: ns.nn.SparseTransformerEncoderLayer(ns.nn.patterns.sliding_window(8, 2), 8, 2, 16),
}


class TestMetaDevice:
    @pytest.mark.parametrize("name", ON_META)
    def test_modules_are_made_without_values_and_with_their_patterns(self, name: str) -> None:
        with torch.device("meta"):
            module = ON_META[name]()
        weights = [(weight, weight.pattern, weight.nnz) for weight in module.modules() if isinstance(weight, SparseParameter)]
        assert all(parameter.is_meta for parameter in module.parameters())
        assert "on meta" in repr(module) or not weights
        assert module.to_empty(device="cpu") is module
        assert not any(parameter.is_meta for parameter in module.parameters())
        state = {key: array for key, array in module.state_dict().items() if "level" in key}
        for weight, pattern, nnz in weights:
            assert weight.pattern is pattern
            assert weight.values.numel() == nnz
            assert all(any(torch.equal(array, saved) for saved in state.values()) for level in pattern.arrays for array in level)

    @pytest.mark.parametrize("assign", [True, False])
    def test_states_are_loaded(self, assign: bool, interpreted: None) -> None:
        source, x = SparseLinear(8, 8, pattern=EYE), torch.rand(2, 8)
        with torch.device("meta"):
            target = SparseLinear(8, 8, pattern=EYE)
        with pytest.raises(ns.UnsupportedError, match=r"values are on meta, .*to_empty\(device='cpu'\), and load or initialize them"):
            target(x)
        if not assign:
            target.to_empty(device="cpu")
        assert target.load_state_dict(source.state_dict(), assign=assign) == ([], [])
        assert torch.equal(target(x), source(x))

    def test_values_move_and_index_arrays_stay(self) -> None:
        layer = SparseLinear(8, 8, density=0.5)
        arrays = {name: array.clone() for name, array in layer.named_buffers()}
        layer.to("meta").to_empty(device="cpu")
        assert all(torch.equal(array, arrays[name]) for name, array in layer.named_buffers())
        assert layer.to(torch.float64).weight.dtype == torch.float64
        layer.share_memory()
        assert all(array.is_shared() for array in (*layer.buffers(), *layer.parameters()))
        assert all(torch.equal(array, arrays[name]) for name, array in layer.named_buffers())


@each
def test_copies_pickles_and_states(name: str, interpreted: None) -> None:
    module, inputs = modules()[name]
    expected = module(*inputs)
    other = modules()[name][0]
    for parameter in other.parameters():
        parameter.data.zero_()
    assert other.load_state_dict(read_back(module.state_dict())) == ([], [])
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), other):
        assert torch.equal(copied(*inputs), expected)
    doubled = copy.deepcopy(module).to(torch.float64)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    torch.testing.assert_close(doubled(*wide), expected.double(), rtol=1e-5, atol=1e-5)
    assert all(array.dtype in (torch.int32, torch.int64) for array in module.buffers())
    assert all(parameter.requires_grad for parameter in module.parameters())


@each
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
def test_compiled_modules(name: str) -> None:
    """torch.compile gives the results of eager modules, and every parameter gets a gradient."""
    module, inputs = modules()[name]
    expected = module(*inputs)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=name != "embedding")
    torch.testing.assert_close(compiled(*inputs), expected)
    compiled(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    torch.compiler.reset()


@each
def test_repr(name: str) -> None:
    text = repr(modules()[name][0])
    expected = {
        "linear": "in_features=7, out_features=5, bias=True, density=0.4, CSR",
        "conv": "2, 3, kernel_size=(3, 3), stride=(1, 1), density=0.407, CSR",
        "embedding": "SparseEmbeddingBag(6, 5, mode='sum')",
    }
    assert expected[name] in text


@pytest.mark.parametrize("format", [ns.NM(2, 4), ns.NM(1, 2, 8), ns.NMG(2, 4, 2)], ids=lambda format: format.name)
def test_a_density_of_a_structured_format_matches_its_blocks(format: ns.Format) -> None:
    layer = ns.nn.SparseLinear(24, 32, density=0.5, format=format)
    assert layer.weight.format.name == format.name and abs(layer.weight.density - 0.5) < 0.01
    assert layer(torch.ones(2, 24)).shape == (2, 32)
    with pytest.raises(ns.SizeError, match=r"density=0.3 in .*, which stores . of every .: give density=0.5, or another format"):
        ns.nn.SparseLinear(24, 32, density=0.3, format=format)


class TestTorchUtilities:
    """TorchScript and torch.nn.utils.prune support dense weights only."""

    @pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.jit
    @pytest.mark.parametrize("nested", [False, True])
    def test_torchscript_is_refused_and_the_error_names_export(self, nested: bool, interpreted: None) -> None:
        layer, x = SparseLinear(6, 4, density=0.5), torch.ones(2, 6)
        model: Any = torch.nn.Sequential(layer) if nested else layer
        message = r"of a sparse weight: TorchScript.*torch\.export\.export.*densify_model"
        for call in (
            lambda: torch.jit.trace(model, x),
            lambda: torch.jit.trace(lambda x: model(x), x),
            lambda: torch.jit.script(model),
            lambda: torch.onnx.export(model, (x,), io.BytesIO(), dynamo=False),
        ):
            with pytest.raises(ns.UnsupportedError, match=message):
                call()
        assert model(x).shape == (2, 4)

    def test_pruning_by_torch_is_refused_and_the_error_names_gradual_pruning(self, interpreted: None) -> None:
        layer = SparseLinear(6, 4, density=0.5)
        before, x = repr(layer), torch.ones(2, 6)
        for module, name in ((layer, "weight"), (layer.weight, "values")):
            with pytest.raises(ns.UnsupportedError, match=rf"'{name}_orig' of .* prune further with ns\.sparsify\.GradualPruning"):
                prune.l1_unstructured(module, name, 0.5)
        assert repr(layer) == before
        assert layer(x).shape == (2, 4)

    def test_hasattr_of_missing_attributes_is_false(self) -> None:
        weight = SparseLinear(6, 4, density=0.5).weight
        assert not hasattr(weight, "imag")
        with pytest.raises(RuntimeError, match=r"imag of torch\.float32 values"):
            _ = weight.imag
