"""Stock modules of torch with sparse weights against the same modules with masked dense weights; their copies, states and programs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from random_tensors import generator
from torch import nn
from training_cases import read_back
from two_processes import together, two_processes

import numscorch as ns
from numscorch.nn import dense_weight, sparse_weight

X = torch.randn(3, 5, 8, generator=generator(1))
IMAGE = torch.randn(2, 3, 6, 5, generator=generator(2))
ITEMS = torch.tensor([[1, 2], [0, 9]])
PADDING = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()
PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
Call = tuple[Callable[[], nn.Module], tuple[str, ...], tuple[torch.Tensor, ...]]
MODULES: dict[str, Call] = {
    "linear": (lambda: nn.Linear(8, 6), ("weight",), (X,)),
    "linear without bias": (lambda: nn.Linear(8, 6, bias=False), ("weight",), (X[0, 0],)),
    "sequence": (lambda: nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), ("0.weight", "2.weight"), (X,)),
    "embedding": (lambda: nn.Embedding(10, 6), ("weight",), (ITEMS,)),
    "embedding with padding": (lambda: nn.Embedding(10, 6, padding_idx=-8), ("weight",), (ITEMS,)),
    "conv1d": (lambda: nn.Conv1d(5, 4, 3, stride=2, padding=1), ("weight",), (X,)),
    "conv1d of one signal": (lambda: nn.Conv1d(5, 4, 3, padding="same", bias=False), ("weight",), (X[0],)),
    "conv2d": (lambda: nn.Conv2d(3, 4, (3, 2), padding=(1, 0), dilation=(1, 2)), ("weight",), (IMAGE,)),
    "reflected conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), ("weight",), (IMAGE[0],)),
    "1x1 conv2d": (lambda: nn.Conv2d(3, 4, 1), ("weight",), (IMAGE,)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), ("in_proj_weight", "out_proj.weight"), (X, X, X)),
    "attention to others": (lambda: nn.MultiheadAttention(8, 2), ("in_proj_weight",), (X, X + 1, X - 1)),
    "attention of one sequence": (lambda: nn.MultiheadAttention(8, 2), ("out_proj.weight",), (X[0], X[1], X[1])),
    "attention of other sizes": (lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4), PROJECTIONS, (X, X[..., :6], X[..., :4])),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight"),
        (X,),
    ),
    "encoder layer, one linear": (lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), ("linear2.weight",), (X,)),
    "decoder layer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
        ("self_attn.out_proj.weight", "multihead_attn.in_proj_weight", "multihead_attn.out_proj.weight", "linear1.weight"),
        (X, X + 1),
    ),
}
each = pytest.mark.parametrize("name", MODULES)
programs = pytest.mark.parametrize(
    "name", ["linear", "embedding", "conv1d", "conv2d", "attention", "attention to others", "encoder layer", "decoder layer"]
)


def owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


def pruned(module: nn.Module, names: tuple[str, ...], format: Any = None) -> nn.Module:
    """Zero about half of the weights of a module in place, and return a copy whose weights are sparse."""
    sparse = copy.deepcopy(module)
    for at, name in enumerate(names):
        (dense, attribute), (target, _) = owner(module, name), owner(sparse, name)
        weight = getattr(dense, attribute).data
        weight *= torch.rand(weight.shape, generator=generator(at)) < 0.5
        sparse_weight(target, attribute, ns.from_torch(weight) if format is None else ns.from_torch(weight, format))
    return sparse


def pair(name: str, format: Any = None) -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    """A dense module with zeros, the same module with sparse weights, and inputs."""
    torch.manual_seed(0)
    make, names, inputs = MODULES[name]
    module = make()
    return module, pruned(module, names, format), inputs


def first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


@each
@pytest.mark.parametrize("training", [True, False])
def test_results_and_gradients_equal_those_of_the_masked_module(name: str, training: bool, interpreted: None) -> None:
    dense, sparse, inputs = pair(name)
    expected, result = first(dense.train(training)(*inputs)), first(sparse.train(training)(*inputs))
    torch.testing.assert_close(result, expected)
    with torch.no_grad():  # torch's fast paths read raw weights
        torch.testing.assert_close(first(sparse(*inputs)), expected)
    expected.square().sum().backward()
    result.square().sum().backward()
    names = MODULES[name][1]
    for key, parameter in dense.named_parameters():
        if key not in names:
            torch.testing.assert_close(sparse.get_parameter(key).grad, parameter.grad, rtol=1e-4, atol=1e-5)
            continue
        stock, attribute = owner(sparse, key)
        weight = getattr(stock, attribute)
        stored = weight.with_values(torch.ones(weight.nnz)).to_dense() != 0
        torch.testing.assert_close(weight.grad.to_dense(), torch.where(stored, parameter.grad, 0), rtol=1e-4, atol=1e-5)


def test_the_padding_row_of_an_embedding_gets_no_gradient(interpreted: None) -> None:
    table: Any = sparse_weight(nn.Embedding(3, 2, padding_idx=1), "weight", ns.ones(3, 2, format=ns.CSR))
    table(torch.tensor([0, 1, 1])).sum().backward()
    assert table.weight.grad.to_dense().tolist() == [[1, 1], [0, 0], [0, 0]]


def test_only_values_are_parameters_and_index_arrays_are_buffers(interpreted: None) -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    A = ns.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]], format=ns.CSR)
    assert sparse_weight(layer, "weight", ns.nn.Parameter(A)) is layer and isinstance(layer, nn.Linear)
    assert {key: tuple(p.shape) for key, p in layer.named_parameters()} == {"bias": (2,), "parametrizations.weight.original": (3,)}
    assert not layer.weight.requires_grad and layer.weight.pattern is A.pattern
    assert layer.weight.values.data_ptr() == A.values.data_ptr()
    assert [key for key, _ in layer.named_buffers()] == ["parametrizations.weight.0.level1_pos", "parametrizations.weight.0.level1_crd"]
    assert "(0): ValuesOfWeight(CSR, shape=(2, 3), nnz=3)" in repr(layer)


@each
def test_deep_copies_and_states(name: str, interpreted: None) -> None:
    _, module, inputs = pair(name)
    module.eval()
    expected = first(module(*inputs))
    fresh = pair(name)[1].eval()
    for parameter in fresh.parameters():
        parameter.data.zero_()
    assert fresh.load_state_dict(read_back(module.state_dict())) == ([], [])
    for other in (copy.deepcopy(module), fresh, copy.deepcopy(fresh)):
        assert torch.equal(first(other(*inputs)), expected)
        assert not {p.data_ptr() for p in other.parameters()} & {p.data_ptr() for p in module.parameters()}
    with torch.no_grad():
        other.double()
    assert all(p.dtype == torch.float64 for p in other.parameters())


def test_deep_copies_share_the_pattern_of_weights_that_share_it(interpreted: None) -> None:
    A = ns.from_torch(torch.eye(4), ns.CSR)
    model = nn.Sequential(sparse_weight(nn.Linear(4, 4), "weight", A), sparse_weight(nn.Linear(4, 4), "weight", A * 2))
    copied: Any = copy.deepcopy(model)
    copied.load_state_dict(model.state_dict())
    assert copied[0].weight.pattern is copied[1].weight.pattern
    assert copied[0].weight.pattern.arrays[1][0].data_ptr() != A.pattern.arrays[1][0].data_ptr()


@programs
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
def test_compiled_and_exported_programs(name: str) -> None:
    _, module, inputs = pair(name)
    expected = first(module(*inputs))
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(first(compiled(*inputs)), expected)
    first(compiled(*inputs)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    torch.compiler.reset()
    program = torch.export.export(module.eval(), inputs)
    torch.testing.assert_close(first(program.module()(*inputs)), expected)


class TestStockStates:
    def layer(self, seed: int = 0, format: str = "CSR") -> nn.Linear:
        mask = torch.rand(4, 5, generator=generator(seed)) < 0.5
        return sparse_weight(nn.Linear(5, 4), "weight", ns.from_torch(torch.where(mask, torch.randn(4, 5), 0), format))

    def test_another_pattern_is_refused_and_the_error_names_it(self) -> None:
        net, other = nn.Sequential(self.layer()), nn.Sequential(self.layer(1))
        for state in (read_back(other.state_dict()), dict(other.state_dict())):
            with pytest.raises(RuntimeError, match=r"0\.parametrizations\.weight\.0\.pattern \(stores .* entries .*load with assign=True"):
                net.load_state_dict(state)
        with pytest.raises(RuntimeError, match=r"weight\.0\.pattern \(is stored as CSC in the state, as CSR in the model; load with"):
            net.load_state_dict(nn.Sequential(self.layer(0, "CSC")).state_dict())

    @pytest.mark.parametrize("format", ["CSR", "CSC", "COO(2)"])
    def test_assigned_states_bring_their_patterns(self, format: str, interpreted: None) -> None:
        net, source, x = nn.Sequential(self.layer(1)), nn.Sequential(self.layer(0, format)), torch.rand(2, 5)
        net[0].parametrizations.weight.original.requires_grad_(False)
        assert net.load_state_dict(read_back(source.state_dict()), assign=True) == ([], [])
        assert torch.equal(net(x), source(x))
        assert net[0].weight.format.name == format and not net[0].weight.requires_grad
        kept = net[0].weight.pattern
        net.load_state_dict(read_back(source.state_dict()), assign=True)
        assert net[0].weight.pattern is kept

    @pytest.mark.parametrize("assign", [True, False])
    def test_states_of_the_stock_module_are_loaded(self, assign: bool, interpreted: None) -> None:
        layer, stock = self.layer(), nn.Linear(5, 4)
        stock.weight.data *= layer.weight.with_values(torch.ones(layer.weight.nnz)).to_dense()
        before, state = layer.weight.pattern, stock.state_dict()
        assert layer.load_state_dict(state, assign=assign) == ([], [])
        assert torch.equal(layer.weight.to_dense(), stock.weight) and layer.weight.pattern is before
        assert list(state) == ["weight", "bias"]

    def test_nonzeros_outside_of_the_pattern_are_an_error(self, interpreted: None) -> None:
        layer = sparse_weight(nn.Linear(2, 2), "weight", ns.eye(2, format=ns.CSR))
        state = {"weight": torch.tensor([[5.0, 6.0], [7.0, 8.0]]), "bias": torch.zeros(2)}
        message = r"weight \(2 nonzeros lie outside the pattern of the sparse weight, the first ones at \(0, 1\), \(1, 0\); zero them"
        with pytest.raises(RuntimeError, match=message):
            layer.load_state_dict(state)
        (reported,) = layer.load_state_dict(state, strict=False).unexpected_keys
        assert reported.startswith("weight (2 nonzeros")
        assert layer.weight.values.tolist() == [5.0, 8.0]


class TestChanges:
    def test_weights_are_assigned_and_initialised(self, interpreted: None) -> None:
        layer: Any = sparse_weight(nn.Linear(2, 2), "weight", ns.eye(2, format=ns.CSR))
        original = layer.parametrizations.weight.original
        layer.weight = ns.eye(2, format=ns.CSR) * 2
        assert original.tolist() == [2.0, 2.0]
        layer.weight = torch.diag(torch.tensor([3.0, 4.0]))
        assert original.tolist() == [3.0, 4.0]
        layer.reset_parameters()
        assert original.tolist() != [3.0, 4.0]
        for other in (torch.ones(2, 2), ns.ones(2, 2, format=ns.CSR)):
            with pytest.raises(ns.OperandError, match=r"assigned to a sparse weight \(CSR, .*nnz=2\): .*(outside|stores other)"):
                layer.weight = other

    def test_overwritten_index_arrays_are_followed(self, interpreted: None) -> None:
        layer: Any = sparse_weight(nn.Linear(2, 2, bias=False), "weight", ns.eye(2, format=ns.CSR))
        layer(torch.ones(2))
        layer.parametrizations.weight[0].level1_crd.copy_(torch.tensor([1, 0]))
        with pytest.warns(ns.PatternWarning, match="overwritten with another pattern"):
            assert torch.equal(layer.weight.to_dense(), torch.eye(2).flip(0))

    def test_dense_weight_is_the_inverse(self, interpreted: None) -> None:
        dense, sparse, inputs = pair("encoder layer")
        for name in MODULES["encoder layer"][1]:
            dense_weight(*owner(sparse, name))
        assert not any("parametrizations" in name for name in sparse.state_dict())
        assert sparse.state_dict().keys() == dense.state_dict().keys()
        torch.testing.assert_close(sparse(*inputs), dense(*inputs), rtol=0, atol=0)
        assert sparse.load_state_dict(dense.state_dict()) == ([], [])
        with pytest.raises(ns.OperandError, match=r"weight of Linear is not sparse: give a weight that ns\.nn\.sparse_weight made sparse"):
            dense_weight(sparse.linear1, "weight")
        sparse.plain = ns.eye(2, format=ns.CSR)
        with pytest.raises(ns.OperandError, match="plain of TransformerEncoderLayer is not sparse"):
            dense_weight(sparse, "plain")

    def test_modules_on_meta_get_memory(self, interpreted: None) -> None:
        A = ns.eye(2, format=ns.CSR)
        layer = sparse_weight(nn.Linear(2, 2), "weight", A).to("meta")
        layer.load_state_dict(sparse_weight(nn.Linear(2, 2), "weight", A).state_dict(), assign=True)
        assert torch.equal(layer.weight.to_dense(), torch.eye(2))


class TestRefusals:
    def test_arguments(self) -> None:
        A = ns.eye(2, format=ns.CSR)
        with pytest.raises(ns.OperandError, match=r"sparse_weight takes a SparseTensor, not Tensor: convert it with ns\.from_torch"):
            sparse_weight(nn.Linear(2, 2), "weight", torch.eye(2))
        with pytest.raises(ns.OperandError, match=r"MultiheadAttention has no parameter 'weight', only .*: give the submodule that has it"):
            sparse_weight(nn.MultiheadAttention(2, 1), "weight", A)
        with pytest.raises(ns.SizeError, match=r"weight of Linear has shape \(3, 2\), but A has \(2, 2\): give a weight of that shape"):
            sparse_weight(nn.Linear(2, 3), "weight", A)

    @pytest.mark.parametrize("make", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell])
    def test_recurrent_modules(self, make: Any) -> None:
        module = make(2, 3)
        name = next(iter(module._parameters))
        with pytest.raises(ns.UnsupportedError, match=rf"{name} of {make.__name__} as a SparseTensor: .*with ns\.nn\.SparseLinear"):
            sparse_weight(module, name, ns.from_torch(getattr(module, name).detach()))

    def test_arguments_of_functions(self) -> None:
        A = ns.from_torch(torch.randn(4, 1, 3))
        with pytest.raises(ns.UnsupportedError, match=r"groups=2 of a convolution with a sparse weight: make it with groups=1"):
            nn.functional.conv1d(torch.ones(1, 2, 5), A, groups=2)
        for input, weight in ((A, torch.ones(4, 1, 3)), (A, A), (torch.ones(1, 1, 5, dtype=torch.int64), A.long())):
            with pytest.raises(ns.UnsupportedError, match="conv1d does not take a SparseTensor yet: write it as an einsum"):
                nn.functional.conv1d(input, weight)
        with pytest.raises(ns.SizeError, match=r"input has shape \(1, 2, 5\), but the weight has \(4, 1, 3\), for 1 channels"):
            nn.functional.conv1d(torch.ones(1, 2, 5), A)
        with pytest.raises(ns.UnsupportedError, match=r"max_norm=1\.0 of an embedding with a sparse weight: leave max_norm= out"):
            nn.functional.embedding(torch.tensor([0]), ns.eye(2, format=ns.CSR), max_norm=1.0)

    @pytest.mark.filterwarnings("ignore::UserWarning")  # of torch's nested tensors
    @pytest.mark.parametrize("name", ["layers.0.self_attn.in_proj_weight", "layers.1.self_attn.in_proj_weight", "layers.1.linear1.weight"])
    def test_padded_batches_of_an_encoder(self, name: str, interpreted: None) -> None:
        """An encoder looks at its first layer only before it passes nested tensors on; other layers need enable_nested_tensor=False."""
        dense = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
        sparse: Any = pruned(dense, (name,))
        with torch.no_grad():
            expected = dense(X, src_key_padding_mask=PADDING)[~PADDING]
            torch.testing.assert_close(sparse(X, src_key_padding_mask=PADDING)[~PADDING], expected)


@pytest.mark.process
@two_processes
def test_data_parallel_and_fully_sharded_modules(tmp_path: Path) -> None:
    """DistributedDataParallel and fully_shard train as one process does."""
    program = """
        import copy
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor
        torch.manual_seed(0)
        twin = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        for at in (0, 2):
            weight = twin[at].weight.detach() * (torch.rand(twin[at].weight.shape) < 0.5)
            ns.nn.sparse_weight(twin[at], "weight", ns.from_torch(weight, ns.CSR))
        ddp, sharded = DistributedDataParallel(copy.deepcopy(twin)), copy.deepcopy(twin)
        for part in (sharded[0], sharded[2], sharded):
            fully_shard(part, mesh=dist.init_device_mesh("cpu", (ranks,)))
        sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        train(twin, sgd(twin), 5, part=slice(None))
        for model in (ddp, sharded):
            train(model, sgd(model), 5)
        close(ddp.module, twin)
        for one, other in zip(sharded.parameters(), twin.parameters(), strict=True):
            assert isinstance(one, DTensor)
            torch.testing.assert_close(one.full_tensor(), other)
        given["nnz"] = twin[0].weight.nnz
        """
    results = together(program, tmp_path, NUMBA_DISABLE_JIT="0")
    assert results[0] == results[1] != {"nnz": 0}


class TestPlainAttributes:
    """torch registers neither SparseTensors nor their values."""

    def test_torchs_parameter_refuses_a_sparse_tensor(self) -> None:
        A = ns.eye(2, format=ns.CSR)
        for tensor in (A, ns.nn.Parameter(A)):
            with pytest.raises(ns.UnsupportedError, match=r"write ns\.nn\.Parameter\(A\) in the place of torch\.nn\.Parameter\(A\)"):
                nn.Parameter(tensor)

    def test_torchs_buffer_refuses_a_sparse_tensor(self) -> None:
        module, A = nn.Module(), ns.eye(2, format=ns.CSR)
        with pytest.raises(ns.UnsupportedError, match=r"register_buffer\(name, A\) in the place of torch\.nn\.Buffer\(A\)"):
            nn.Buffer(A)
        module.register_buffer("A", A)
        assert module.A is A and dict(module.named_buffers()) == {"A": A}

    def test_a_tensor_that_requires_grad_warns_once(self) -> None:
        class StockNet(nn.Module):
            def __init__(self, A: Any):
                super().__init__()
                self.mask = A.detach()
                self.weight = A

        A = ns.eye(2, format=ns.CSR, requires_grad=True)
        with pytest.warns(UserWarning, match=r"StockNet\.weight is a SparseTensor, .*not trained(?s:.*)ns\.nn\.Parameter") as loaded:
            StockNet(A)
        assert len(loaded) == 1 and loaded[0].filename == __file__

    def test_other_tensors_do_not_warn(self) -> None:
        module, A = nn.Module(), ns.eye(2, format=ns.CSR, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            module.weight = ns.nn.Parameter(A)
            module.cached = module.weight.tensor
            module.result = A * 2
            assert not isinstance(A, torch.Tensor) and A.__class__ is ns.SparseTensor


def test_functional_calls_with_the_state_of_another_pattern_are_refused() -> None:
    """Once, the index arrays of the state were ignored, so that its values belonged to other entries."""
    torch.manual_seed(0)
    first, second = (ns.nn.SparseLinear(12, 4, density=0.4) for _ in range(2))
    x, twin = torch.randn(3, 12), copy.deepcopy(first)
    twin.weight.values.data.mul_(2)
    state = {**dict(second.named_parameters()), **dict(second.named_buffers())}
    with pytest.raises(ns.OperandError, match=r"the buffer level1_(pos|crd) .* share the pattern"):
        torch.func.functional_call(first, state, (x,))
    parameters, buffers = torch.func.stack_module_state([first, twin])
    results = torch.func.vmap(lambda p, b: torch.func.functional_call(first, (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(results, torch.stack([first(x), twin(x)]))


def test_models_with_sparse_weights_are_sparsified_and_loaded_or_refused(tmp_path: Path) -> None:
    model, A = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), ns.eye(4, format=ns.CSC)
    sparse_weight(model[1], "weight", A)
    plan, reports = ns.sparsify.SparsityPlan().weight("*.weight", ns.sparsify.magnitude(0.5)), []
    ns.sparsify.sparsify_model(model, plan, report=reports.append)
    assert model[1].weight.pattern is A.pattern and isinstance(model[0], ns.nn.SparseLinear)
    assert "is sparse already; ns.nn.dense_weight(module, 'weight') makes it dense" in str(reports[0])
    fresh = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ns.UnsupportedError, match=r"1\.weight is sparse by ns\.nn\.sparse_weight .*get_submodule\('1'\).*assign=True"):
        ns.sparsify.load_patterns(fresh, model.state_dict())
    sparse_weight(fresh[1], "weight", ns.zeros(4, 4, format=ns.CSR))
    ns.sparsify.load_patterns(fresh, model.state_dict()).load_state_dict(model.state_dict(), assign=True)
    assert fresh[1].weight.pattern.stores_as(A.pattern) and fresh[1].weight.format == ns.CSC
    with pytest.raises(RuntimeError, match="state_dict"):
        torch.save(model, tmp_path / "model.pt")
