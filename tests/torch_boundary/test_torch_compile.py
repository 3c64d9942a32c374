"""torch.compile and torch.export of programs with SparseTensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.programs import torch_operators
from numscorch.tensors import dynamo

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)  # raised by torch's compiler

D = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) * (torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) < 0.5)
x = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))


class SparsePerceptron(torch.nn.Module):
    """A network of two sparse layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ns.nn.SparseLinear(32, 64, density=0.2), ns.nn.SparseLinear(64, 10, density=0.2, format=ns.COO(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(inputs)))


@pytest.fixture(autouse=True)
def reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    program: Callable[..., Any] = torch.compile(function, fullgraph=True, backend="aot_eager")
    return program


def test_a_model_and_its_gradients() -> None:
    net, inputs = SparsePerceptron(), torch.randn(8, 32)
    result = compiled(net)(inputs)
    torch.testing.assert_close(result, net(inputs))
    result.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    net(inputs).square().sum().backward()
    for gradient, parameter in zip(gradients, net.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_three_graphs_at_most_for_six_batch_sizes() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    net = SparsePerceptron()
    program = torch.compile(net, fullgraph=True, backend=backend)
    for batch in (1, 2, 5, 8, 16, 64):
        inputs = torch.randn(batch, 32)
        torch.testing.assert_close(program(inputs), net(inputs))
    assert len(graphs) <= 3


def test_export() -> None:
    net, inputs = SparsePerceptron(), torch.randn(4, 32)
    program = torch.export.export(net, (inputs,))
    torch.testing.assert_close(program.module()(inputs), net(inputs))


def _graph(layer: torch.nn.Module) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    return layer, (torch.rand(6, 8), torch.tensor([[0, 1, 2], [1, 2, 0]]))


def _called(layer: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    layer(*inputs)
    return layer, inputs


def _attention(make: Callable[[ns.SparseTensor], torch.nn.Module], inputs: int) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    return make(ns.nn.patterns.sliding_window(6, 2)), (torch.rand(2, 6, 8),) * inputs


LAYERS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]] = {
    "SparseLinear": lambda: (ns.nn.SparseLinear(8, 4, density=0.5), (torch.rand(3, 8),)),
    "SparseConv2d": lambda: (ns.nn.SparseConv2d(3, 8, 3, padding=1, density=0.3), (torch.rand(2, 3, 6, 6),)),
    "SparseEmbedding": lambda: (ns.nn.SparseEmbedding(10, 4, density=0.5), (torch.tensor([1, 2]),)),
    "SparseMultiheadAttention": lambda: (
        ns.nn.SparseMultiheadAttention.from_dense(torch.nn.MultiheadAttention(8, 2, batch_first=True), lambda weight: weight > 0),
        (torch.rand(2, 6, 8),) * 3,
    ),
    "GCNConv(..., cached=True)": lambda: _called(*_graph(ns.nn.GCNConv(8, 4, cached=True))),
    "GCNConv": lambda: _graph(ns.nn.GCNConv(8, 4)),
    "SAGEConv": lambda: _graph(ns.nn.SAGEConv(8, 4)),
    "GINConv": lambda: _graph(ns.nn.GINConv(torch.nn.Linear(8, 4))),
    "GATConv": lambda: _graph(ns.nn.GATConv(8, 4)),
    "SparseAttention": lambda: _attention(lambda pattern: ns.nn.SparseAttention(pattern, embed_dim=8, num_heads=2), 3),
    "SparseTransformerEncoderLayer": lambda: _attention(
        lambda pattern: ns.nn.SparseTransformerEncoderLayer(pattern, 8, 2, 16, 0.0, batch_first=True), 1
    ),
    "SparseEmbeddingBag": lambda: (ns.nn.SparseEmbeddingBag(10, 4), (torch.tensor([[1, 2], [3, 4]]),)),
    "MoE": lambda: (ns.nn.MoE(4, top_k=2, d_in=8, d_out=4), (torch.rand(6, 8),)),
}
HOW = ("eager", "compile", "fullgraph", "dynamic batch", "export", "strict export")
WITHOUT = {("GCNConv(..., cached=True)", "dynamic batch"): "it keeps the matrix of its first graph, whose nodes are the batch"}


def first_output(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


def grown(inputs: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Inputs of a larger batch; graphs get more nodes, and the same edges."""
    return tuple([torch.cat([t, t]) if t.ndim != 2 or t.dtype.is_floating_point or "Embedding" in name else t for t in inputs])


def gradients(layer: torch.nn.Module, output: torch.Tensor) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(output.square().sum(), [p for p in layer.parameters() if p.requires_grad], allow_unused=True))


def check_like_eager(layer: torch.nn.Module, program: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    expected, output = first_output(layer(*inputs)), first_output(program(*inputs))
    torch.testing.assert_close(output, expected)
    for given, wanted in zip(gradients(layer, output), gradients(layer, expected), strict=True):
        if wanted is not None:
            torch.testing.assert_close(torch.zeros_like(wanted) if given is None else given, wanted)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, how: str) -> None:
    if (name, how) in WITHOUT:
        pytest.skip(WITHOUT[name, how])
    torch.manual_seed(0)
    layer, inputs = LAYERS[name]()
    match how:
        case "eager":
            check_like_eager(layer, layer, inputs)
        case "compile":
            check_like_eager(layer, torch.compile(layer, backend="aot_eager"), inputs)
        case "fullgraph":
            check_like_eager(layer, compiled(layer), inputs)
        case "dynamic batch":
            graphs: list[Any] = []

            def backend(graph: Any, examples: Any) -> Any:
                graphs.append(graph)
                return graph

            program = torch.compile(layer, fullgraph=True, backend=backend)
            for _ in range(5):
                torch.testing.assert_close(first_output(program(*inputs)), first_output(layer(*inputs)))
                inputs = grown(inputs, name)
            assert len(graphs) <= 3
        case "export" | "strict export":
            exported = torch.export.export(layer, inputs, strict=how == "strict export").module()
            torch.testing.assert_close(first_output(exported(*inputs)), first_output(layer(*inputs)))


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GINConv", "GATConv"])
def test_graph_layers_with_a_matrix(name: str) -> None:
    layer = ns.nn.GINConv(torch.nn.Linear(8, 4)) if name == "GINConv" else getattr(ns.nn, name)(8, 4)
    program = compiled(layer)
    for nodes in (6, 9):
        A = ns.rand(nodes, nodes, density=0.4, format=ns.CSR)
        check_like_eager(layer, program, (torch.rand(nodes, 8), A.with_values(torch.ones_like(A.values))))


PACKAGED = """
import sys, torch
if sys.argv[3] == "with":
    import numscorch
package = torch._inductor.aoti_load_package(sys.argv[1])
inputs, expected = torch.load(sys.argv[2])
torch.testing.assert_close(tuple(package(*inputs)), expected)
"""


@pytest.mark.process
def test_a_package_of_all_layers_in_another_process(tmp_path: Path) -> None:
    """AOTInductor calls the operators by name, so that a process without numscorch has no schema for them."""
    torch.manual_seed(0)
    layers, inputs = zip(*(make() for make in LAYERS.values()), strict=True)

    class All(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)
            self.counts = list(map(len, inputs))

        def forward(self, *flat: Any) -> tuple[torch.Tensor, ...]:
            results, at = [], 0
            for layer, count in zip(self.layers, self.counts, strict=True):
                results.append(first_output(layer(*flat[at : at + count])))
                at += count
            return tuple(results)

    model, flat = All().eval(), tuple(tensor for given in inputs for tensor in given)
    with torch.no_grad():
        program = torch.export.export(model, flat)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "layers.pt2"))
        torch.save((flat, model(*flat)), tmp_path / "expected.pt")
    for numscorch, message in (("with", ""), ("without", "Could not find schema for numscorch::run")):
        command = [sys.executable, "-c", PACKAGED, package, str(tmp_path / "expected.pt"), numscorch]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (finished.returncode == 0) == (not message), finished.stderr
        assert message in finished.stderr


class Holder(torch.nn.Module):
    """A module that holds a SparseTensor as ``held`` says."""

    def __init__(self, held: str) -> None:
        super().__init__()
        A = ns.from_torch(D, ns.CSR)
        self.layer = torch.nn.Linear(6, 6)
        if held == "buffer":
            self.register_buffer("A", A)
        else:
            self.A = ns.nn.Parameter(A) if held == "parameter" else A

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.softmax(self.A, 1) @ self.layer(x)
        return result


@pytest.mark.parametrize("held", ["buffer", "parameter", "attribute"])
def test_modules_that_hold_a_sparse_tensor(held: str) -> None:
    model = Holder(held)
    torch.testing.assert_close(compiled(model)(x), model(x))
    torch.testing.assert_close(torch.export.export(model, (x,), strict=True).module()(x), model(x))
    if held == "buffer":  # torch replaces buffers by fake tensors, so they must be tensors
        with pytest.raises(Exception, match="meta converter"):
            torch.export.export(model, (x,))
    else:
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


CALLS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "matmul(A, x)": (lambda A, x: torch.matmul(A, x), D @ x),
    "matmul(x, A)": (lambda A, x: torch.matmul(x, A), x @ D),
    "A.matmul(x)": (lambda A, x: A.matmul(x), D @ x),
    "einsum": (lambda A, x: ns.einsum("ij,jk->ik", A, x), D @ x),
    "linear": (lambda A, x: torch.nn.functional.linear(x, A, x[0]), x @ D.t() + x[0]),
    "of a transpose": (lambda A, x: ns.einsum("ji,jk->ik", A, x), D.t() @ x),
    "of two": (lambda A, x: ns.einsum("ij,jk,kl->il", A, A, x), D @ D @ x),
}


@pytest.mark.parametrize("name", CALLS)
def test_dense_results(name: str) -> None:
    A, (function, expected) = ns.from_torch(D, ns.CSR), CALLS[name]
    torch.testing.assert_close(compiled(function)(A, x), expected)
    torch.testing.assert_close(compiled(lambda x: function(A, x))(x), expected)


@pytest.mark.parametrize("name", ["A @ x", "x @ A", "A - x", "A @ A"])
def test_operands_are_never_swapped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo swaps the operands of ``A @ x`` if A is no Tensor, unless it is corrected; without the correction, ``@`` is refused."""
    A = ns.from_torch(D, ns.CSR)
    functions = {"A @ x": lambda x: A @ x, "x @ A": lambda x: x @ A, "A - x": lambda x: A - x, "A @ A": lambda x: (A @ A).to_dense()}
    full = {"A @ x": D @ x, "x @ A": x @ D, "A - x": D - x, "A @ A": D @ D}
    torch.testing.assert_close(compiled(functions[name])(x), full[name])
    torch.testing.assert_close(functions[name](x), full[name])
    if name == "x @ A":
        torch.compiler.reset()
        monkeypatch.setitem(dynamo.corrected, "@", False)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="swaps the operands"):
            compiled(functions[name])(x)


ASIDE: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "reduce": lambda A, x: ns.einsum("ij,jk->ik", A, x, reduce="max"),
    "mask": lambda A, x: ns.einsum("ij,jk->ik", A, x, mask=A).to_dense(),
    "out": lambda A, x: ns.einsum("ij,jk->ik", A, x, out=torch.empty(6, 6)),
    "diagonal": lambda A, x: ns.einsum("ii,ij->j", A, x),
    "list": lambda A, x: ns.einsum("ij,jk->ik", [A, x]),
}


@pytest.mark.parametrize("name", ASIDE)
def test_options_are_not_dropped(name: str) -> None:
    """Calls that the operator of compiled programs does not support run outside of the graph."""
    A = ns.from_torch(D, ns.CSR)
    expected = ASIDE[name](A, x)
    torch.testing.assert_close(torch.compile(ASIDE[name], backend="aot_eager")(A, x), expected)


def test_gradients_of_a_diagonal_are_right_beside_a_program() -> None:
    values = ns.from_torch(D, ns.CSR).values.clone().requires_grad_()
    A = ns.from_torch(D, ns.CSR)
    torch.compile(lambda v: ns.einsum("ii,ij->j", A.with_values(v), x).sum(), backend="aot_eager")(values).backward()
    expected = D.clone().requires_grad_()
    torch.einsum("ii,ij->j", expected, x).sum().backward()
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), expected.grad * (D != 0))


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_of_three_operands_are_those_of_pairs(dynamic: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    full, *factors = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((40, 40), (40, 16), (4, 16)))
    A = ns.from_torch(full.relu(), ns.CSR)
    leaves = [tensor.requires_grad_() for tensor in (A.values, *factors)]

    def function(values: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = ns.einsum("ij,jf,of->io", A.with_values(values), x, weight)
        return result

    patterns_per_call: list[int] = []

    requested = torch_operators.Program._gradients_by_requests

    def counted(self: torch_operators.Program, wanted: Any, *args: Any) -> list[torch.Tensor] | None:
        patterns_per_call.extend([len(self.formats)] * len(wanted))
        return requested(self, wanted, *args)

    monkeypatch.setattr(torch_operators.Program, "_gradients_by_requests", counted)
    expected = torch.autograd.grad(function(*leaves).sum(), leaves)
    gradients = torch.autograd.grad(torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)(*leaves).sum(), leaves)
    torch.testing.assert_close(gradients, expected)
    assert patterns_per_call == ([2, 2] if dynamic is None else [3, 3, 3])  # with unknown sizes, no pairs are chosen


def test_operands_of_several_data_types() -> None:
    """Operands are promoted outside of the graph. Once, results had the type of the first operand, and integers blocked gradients."""
    A, v = ns.from_torch((D != 0).to(torch.int64), ns.CSR), torch.linspace(0, 1, 6).requires_grad_()
    result = torch.compile(lambda v: 2 * ns.einsum("ij,j->i", A, v), backend="aot_eager")(v)
    torch.testing.assert_close(result, 2 * (A.to_dense().float() @ v))
    result.sum().backward()
    torch.testing.assert_close(v.grad, 2.0 * A.to_dense().sum(0))
