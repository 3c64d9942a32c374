"""Expressions of sparse tensors in one graph of torch.compile: values, results' formats and gradients equal those of eager calls."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacrev, jvp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import numscorch as ns
from numscorch.programs import torch_operators

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # raised by torch's compiler

Call = Callable[[Any, torch.Tensor], Any]
D = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)) * (torch.rand(6, 6, generator=torch.Generator().manual_seed(1)) < 0.5)
X = torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
FORMATS = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2), "DCSR": ns.DCSR, "ELL": ns.ELL, "BCSR": ns.BCSR(2, 2)}

EXPRESSIONS: dict[str, Call] = {
    "relu(A)": lambda A, x: torch.relu(A),
    "F.relu(A)": lambda A, x: F.relu(A),
    "-A": lambda A, x: -A,
    "A * 2": lambda A, x: A * 2,
    "2 * A": lambda A, x: 2 * A,
    "A / 3": lambda A, x: A / 3,
    "A ** 2": lambda A, x: A**2,
    "abs(A).sqrt()": lambda A, x: A.abs().sqrt(),
    "gelu(A)": lambda A, x: F.gelu(A),
    "leaky_relu(A, 0.1)": lambda A, x: F.leaky_relu(A, 0.1),
    "A + A": lambda A, x: A + A,
    "A - 2 * A": lambda A, x: A - 2 * A,
    "A * A": lambda A, x: A * A,
    "A.detach() * A": lambda A, x: A.detach() * A,
    "softmax(A, 1)": lambda A, x: torch.softmax(A, 1),
    "F.softmax(A, dim=0)": lambda A, x: F.softmax(A, dim=0),
    "log_softmax(A, 1)": lambda A, x: torch.log_softmax(A, 1),
    "A.sum()": lambda A, x: A.sum(),
    "A.sum(1)": lambda A, x: A.sum(1),
    "A.mean()": lambda A, x: A.mean(),
    "mean(A, 0)": lambda A, x: torch.mean(A, 0),
    "A.amax(1)": lambda A, x: A.amax(1),
    "A.norm()": lambda A, x: A.norm(),
    "A.T @ x": lambda A, x: A.T @ x,
    "A.t()": lambda A, x: A.t(),
    "A.permute(1, 0)": lambda A, x: A.permute(1, 0),
    "transpose(A, 0, 1)": lambda A, x: torch.transpose(A, 0, 1),
    "A.to_dense()": lambda A, x: A.to_dense(),
    "A.to(float64)": lambda A, x: A.to(torch.float64),
    "A.to(CSC)": lambda A, x: A.to(ns.CSC),
    "A * x": lambda A, x: A * x,
    "x * A": lambda A, x: x * A,
    "rows": lambda A, x: A * x[:, :1],
    "columns": lambda A, x: A * x[0],
    "A - x": lambda A, x: A - x,
    "x - A": lambda A, x: x - A,
    "exp(A)": lambda A, x: torch.exp(A),
    "A @ x": lambda A, x: A @ x,
    "x @ A": lambda A, x: x @ A,
    "A @ v": lambda A, x: A @ x[0],
    "A @ A": lambda A, x: A @ A,
    "sparse.mm(A, x)": lambda A, x: torch.sparse.mm(A, x),
    "addmm(x, A, x)": lambda A, x: torch.addmm(x, A, x),
    "linear(x, A)": lambda A, x: F.linear(x, A),
    "a sampled product": lambda A, x: ns.einsum("ij,ik,kj->ij", A, x, x),
    "a masked product": lambda A, x: ns.einsum("ik,kj->ij", x, x, mask=A),
    "reduce=max": lambda A, x: ns.einsum("ij,jk->ik", A, x, reduce="max"),
    "a diagonal": lambda A, x: ns.einsum("ii,ij->j", A, x),
    "evaluate": lambda A, x: ns.evaluate("R[i] = relu(A[i,j]) * x[j,i]", A=A, x=x),
    "two statements": lambda A, x: ns.evaluate("S[i,j] = A[i,j] * x[i,j]; R[i] = S[i,j] * x[j,0]", A=A, x=x),
    "dropout": lambda A, x: F.dropout(A, 0.0),
    "clamp": lambda A, x: torch.clamp(A, -float("inf"), 0.5),
    "relu(A) * 2 @ x": lambda A, x: (torch.relu(A) * 2) @ x,
    "softmax(A * x) @ x": lambda A, x: torch.softmax(A * x, 1) @ x,
    "A[1:4]": lambda A, x: A[1:4],
    "A[2]": lambda A, x: A[2].to_dense(),
    "A[1:4] @ A[2:5].T": lambda A, x: A[1:4] @ A[2:5].T,
    "A @ A.T @ A": lambda A, x: A @ A.T @ A,
    "cat": lambda A, x: torch.cat([A, A]),
    "tril(A)": lambda A, x: torch.tril(A),
    "A * A.numel()": lambda A, x: A * A.numel(),
    "a fused function": lambda A, x: FUSED(A, x),
}
FUSED = ns.fuse(lambda A, x: torch.softmax(A * (x @ x.T), 1) @ x)
REFUSED: dict[str, Call] = {  # the entries of the result depend on values, or a tensor changes
    "topk": lambda A, x: A.topk(2, 1),
    "A[x > 0]": lambda A, x: A[x > 0],
    "nonzero": lambda A, x: A.nonzero(),
    "index_select": lambda A, x: A.index_select(0, torch.tensor([0, 1])),
    "mul_": lambda A, x: A.mul_(2),
}


@pytest.fixture(autouse=True)
def reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def dense(result: Any) -> torch.Tensor:
    return result.to_dense() if isinstance(result, ns.SparseTensor) else result


def gradients(result: Any, leaves: tuple[torch.Tensor, ...]) -> Any:
    full = dense(result)
    if not full.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return torch.autograd.grad(full.double().square().sum(), leaves, materialize_grads=True)


def check(call: Call, format: ns.Format) -> None:
    A = ns.from_torch(D, format)
    leaves = A.values.clone().requires_grad_(), X.clone().requires_grad_()
    expected = call(A.with_values(leaves[0]), leaves[1])
    result = torch.compile(call, fullgraph=True, backend="aot_eager")(A.with_values(leaves[0]), leaves[1])
    assert type(result) is type(expected)
    torch.testing.assert_close(dense(result), dense(expected))
    if isinstance(expected, ns.SparseTensor):
        assert result.pattern.stores_as(expected.pattern)
    torch.testing.assert_close(gradients(result, leaves), gradients(expected, leaves))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_one_graph(name: str) -> None:
    check(EXPRESSIONS[name], ns.CSR)


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "CSR"])
@pytest.mark.parametrize("name", ["relu(A)", "A + A", "softmax(A, 1)", "A.sum(1)", "A @ x", "A * x", "A.T @ x", "A.to(CSC)", "A[1:4]"])
def test_formats(name: str, format: str) -> None:
    check(EXPRESSIONS[name], FORMATS[format])


@pytest.mark.parametrize("name", REFUSED)
def test_entries_that_depend_on_values_break_the_graph(name: str) -> None:
    """Without fullgraph, the call runs outside of the program, and the results are right."""
    A = ns.from_torch(D, ns.CSR)
    expected = REFUSED[name](ns.from_torch(D, ns.CSR), X)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="its result depends on values, or it changes a tensor; call it outside"):
        torch.compile(REFUSED[name], fullgraph=True, backend="aot_eager")(A, X)
    torch.compiler.reset()
    result = torch.compile(REFUSED[name], backend="aot_eager")(A, X)
    for given, wanted in zip(
        result if isinstance(result, tuple) else [result], expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        torch.testing.assert_close(dense(given), dense(wanted))


def test_a_second_operand_with_equal_index_arrays() -> None:
    """Its pattern is another object: the operator checks at run time that the index arrays agree."""
    A, B = ns.from_torch(D, ns.CSR), ns.from_torch(D * 3, ns.CSR)
    program = torch.compile(lambda A, B, x: (A + B) @ x, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(program(A, B, X), 4 * D @ X)
    torch.testing.assert_close(program(B, A, X), 4 * D @ X)


def test_operands_of_other_patterns_afterwards() -> None:
    program = torch.compile(lambda A, B: torch.softmax(A + B, 1), fullgraph=True, backend="aot_eager")
    others = [torch.roll(D, shift, 1) for shift in range(4)]
    for first in others:
        A, B = ns.from_torch(first, ns.CSR), ns.from_torch(D, ns.CSR)
        torch.testing.assert_close(program(A, B).to_dense(), torch.softmax(A + B, 1).to_dense())


def test_a_pattern_that_changes_within_an_exported_program_is_an_error() -> None:
    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.A, self.B = (ns.nn.Parameter(ns.from_torch(torch.roll(D, shift, 1), ns.CSR)) for shift in (0, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.A + self.B) @ x  # type: ignore[no-any-return]

    model = Sum()
    program = torch.export.export(model, (X,)).module()
    torch.testing.assert_close(program(X), model(X))
    for name, buffer in program.named_buffers():
        if name == "A.level1_crd":
            buffer.copy_(buffer.flip(0))
    with pytest.raises(ns.UnsupportedError, match="the operands' patterns must not change"):
        program(X)


def test_gradients_of_a_sparse_result_keep_its_pattern() -> None:
    A = ns.from_torch(D, ns.CSR)
    values = A.values.clone().requires_grad_()
    result = torch.compile(lambda v: torch.relu(A.with_values(v)) * 2, fullgraph=True, backend="aot_eager")(values)
    assert result.pattern is A.pattern
    result.values.sum().backward()
    torch.testing.assert_close(values.grad, 2.0 * (values > 0))


def test_inductor_computes_the_same() -> None:
    A = ns.from_torch(D, ns.CSR)
    torch.testing.assert_close(
        torch.compile(lambda x: torch.softmax(torch.relu(A) * x, 1) @ x + 1, fullgraph=True)(X), torch.softmax(torch.relu(A) * X, 1) @ X + 1
    )


def test_transforms_within_a_program() -> None:
    A = ns.from_torch(D, ns.CSR)
    for call in (lambda y: (A * y).to_dense(), lambda y: torch.softmax(A * y, 1) @ y, lambda y: torch.relu(A) @ y):
        loss = lambda y, call=call: call(y).square().sum()  # noqa: E731
        for function, given in ((torch.func.grad(loss), X), (torch.func.vmap(call), torch.stack([X, 2 * X, -X]))):
            torch.compiler.reset()
            torch.testing.assert_close(torch.compile(function, fullgraph=True, backend="aot_eager")(given), function(given))
        batched, given = torch.func.vmap(torch.func.grad(loss)), torch.stack([X, 2 * X, -X])
        torch.testing.assert_close(torch.compile(batched, fullgraph=True, backend="aot_eager")(given), batched(given))


def _tangent(function: Any) -> Any:
    """A function from a tensor and its tangent to the tangent of a result, by dual numbers."""

    def tangent(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, t))).tangent

    return tangent


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["product", "values", "twice"])
def test_tangents_within_a_program(name: str, backend: str) -> None:
    """Once, programs that Dynamo had compiled lost the tangents of dual numbers."""
    A = ns.from_torch(D, ns.CSR)
    function, x = {
        "product": (lambda x: A @ x, X),
        "values": (lambda values: torch.relu(A.with_values(values)) @ X, A.values),
        "twice": (lambda values: A.with_values(values) @ (A.with_values(values) @ X), A.values),
    }[name]
    for call in (lambda x, t: jvp(function, (x,), (t,)), _tangent(function)):
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(call, fullgraph=True, backend=backend)(x, 2 * x), call(x, 2 * x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["product", "softmax"])
def test_gradients_within_a_program(name: str, backend: str) -> None:
    """Once, index arrays within torch.func.grad had no address, and Jacobians were 0, in programs of the backend "eager"."""
    A = ns.from_torch(D, ns.CSR)

    def product(values: torch.Tensor) -> torch.Tensor:
        B = A.with_values(values)
        return (B if name == "product" else torch.softmax(B, 1)) @ X

    def pullback(values: torch.Tensor) -> torch.Tensor:
        result, function = torch.func.vjp(product, values)
        gradient: torch.Tensor = function(torch.ones_like(result))[0]
        return gradient

    functions = grad(lambda values: product(values).pow(2).sum()), jacrev(product), pullback
    for function, given in (*((function, A.values) for function in functions), (jacrev(lambda x: A @ x), X)):
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(function, fullgraph=True, backend=backend)(given), function(given))


EXPORTED = """
import torch, numscorch as ns
matrix = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
A, B = ns.from_torch(matrix, ns.CSR), ns.from_torch(matrix.T, ns.CSR)
class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.A, self.B = ns.nn.Parameter(A), ns.nn.Parameter(B)
    def forward(self, x):
        return (self.A + self.B) @ x
model, x = Sum(), torch.eye(2)
torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), matrix + matrix.T)
"""


def test_the_first_kernel_of_a_process_is_compiled_during_export(tmp_path: Path) -> None:
    """Once, this failed: export replaces functions such as math.pow, which Numba reads when it compiles its first kernel."""
    environment = {**os.environ, "NUMSCORCH_CACHE_DIR": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", EXPORTED], capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr


def test_a_named_kernel_in_the_profiler() -> None:
    A = ns.from_torch(D, ns.CSR)
    A @ X
    with torch.profiler.profile() as profile:
        A @ X
    assert "numscorch: C[i,k] += A[i,j] * B[j,k]" in {event.key for event in profile.key_averages()}


def test_second_derivatives_are_right_or_refused() -> None:
    """Once, programs that are recorded or compiled had second derivatives of 0."""
    A, x = ns.from_torch(D, ns.CSR), X[0]
    loss = lambda x: ((A @ x) ** 3).sum()  # noqa: E731
    for function in (grad(lambda x: grad(loss)(x).sum()), jacrev(grad(loss)), hessian(loss)):
        with pytest.raises(ns.UnsupportedError, match=r"nested derivatives of .*contract"):
            make_fx(function)(x)
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(function, backend="aot_eager")(x), function(x))
    with FlopCounterMode(display=False):
        (first,) = torch.autograd.grad(loss(leaf := x.clone().requires_grad_()), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(second, grad(lambda x: grad(loss)(x).square().sum())(x))


def test_results_have_memory_of_their_own() -> None:
    """Once, Inductor used the memory of a dense tensor again that was a view of another one's values."""
    A, W = ns.from_torch(D, ns.Format("dd")), torch.ones(6, 2)
    call = lambda v: A.with_values(v * 2).to_dense() @ W  # noqa: E731
    torch.testing.assert_close(torch.compile(call)(A.values), 2 * D @ W)
    B = ns.from_torch(D, ns.CSR)
    leaves = [B.values.clone().requires_grad_() for _ in range(2)]
    joined = torch.compile(lambda a, b: torch.cat([B.with_values(a), B.with_values(b)]), fullgraph=True, backend="aot_eager")
    first, second = torch.autograd.grad(joined(*leaves).values.sum(), leaves)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


OPTIONS: dict[str, Call] = {
    "format=": lambda A, x: ns.einsum("ij,jk->ik", A, x, format="CSR"),
    "format= of dense operands": lambda A, x: ns.einsum("ij,jk->ik", x, x, format=ns.CSR),
    "an implicit result": lambda A, x: ns.einsum("ij,j", A, x[0]),
    "a negative infinity": lambda A, x: A + float("-inf"),
    "many operands": lambda A, x: torch.cat([A] * 30),
    "a device": lambda A, x: A.new_zeros((3,), device=torch.device("cpu")),
    "out=": lambda A, x: ns.einsum("ij,j->i", A, x[0], out=torch.zeros(6)) * 1,
    "sparsifier=": lambda A, x: ns.einsum("ij,jk->ik", A, x, sparsifier=ns.sparsify.magnitude(0.5)),
    "a reduction": lambda A, x: ns.einsum("ij,jk->ik", A, x, reduce="max_plus"),
    "autocast": lambda A, x: in_autocast(lambda: ns.einsum("ij,jk->ik", A, x, reduce="max_plus")),
}


def in_autocast(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu"):
        return call()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_not_lost(name: str) -> None:
    A, call = ns.from_torch(D, ns.CSR), OPTIONS[name]
    expected, result = call(A, X), torch.compile(call, backend="aot_eager")(A, X)
    assert type(result) is type(expected) and result.dtype is expected.dtype
    torch.testing.assert_close(dense(result), dense(expected))


def test_numbers_that_change_between_calls() -> None:
    A = ns.from_torch(D, ns.CSR)
    for call, numbers in (
        (lambda A, k: A.diagonal(k), (0, 1, -1, 2)),
        (lambda A, k: A * k, (1.5, 2.5, -3.5)),
        (lambda A, k: A + k, (1, 2, 5)),
    ):
        torch.compiler.reset()
        program = torch.compile(call, fullgraph=True, backend="aot_eager")
        for number in numbers:
            torch.testing.assert_close(dense(program(A, number)), dense(call(A, number)))


def test_second_operands_with_as_many_entries() -> None:
    """Patterns of results are found by all operands: B and C differ only in where their entries are."""
    A, B, C = (ns.from_torch(torch.roll(torch.eye(6), shift, 1), ns.CSR) for shift in range(3))
    program = torch.compile(lambda A, B: A + B, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        for other in (B, C):
            torch.testing.assert_close(program(A, other).to_dense(), (A + other).to_dense())
    both = torch.compile(lambda A, B, C: (A + B, A + C), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close([t.to_dense() for t in both(A, B, C)], [(A + B).to_dense(), (A + C).to_dense()])


def test_symbolic_sizes_that_equal_those_of_a_pattern() -> None:
    program = torch.compile(lambda A, x: ns.einsum("ij,ik,jk->ij", A, x, x).sum(), fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (6, 8, 10):
        A, x = ns.rand(size, size, density=0.5, format=ns.CSR), torch.rand(size, 3)
        torch.testing.assert_close(program(A, x), ns.einsum("ij,ik,jk->ij", A, x, x).sum())


def test_steps_with_backward_between_graph_breaks() -> None:
    """Autograd calls numscorch within the compiled function; Dynamo once compiled numscorch itself there, and failed."""
    layer = torch.nn.Linear(3, 4)

    def step(A: ns.SparseTensor, x: torch.Tensor) -> torch.Tensor:
        h = layer(x)
        loss = (torch.softmax(ns.einsum("ij,ik,jk->ij", A, h, h), 1) @ x).square().mean()
        loss.backward()
        return loss.detach()

    program = torch.compile(step, backend="aot_eager")
    for size in (6, 8, 10, 12):
        A, x = ns.rand(size, size, density=0.5, format=ns.CSR), torch.rand(size, 3)
        torch.testing.assert_close(program(A, x), step(A, x))


def test_a_batch_without_rows() -> None:
    A = ns.from_torch(D, ns.CSR)
    for call in (lambda x: A @ x, lambda x: torch.softmax(A * x[0], 1) @ x):
        assert make_fx(torch.func.vmap(call))(torch.zeros(0, 6, 6))(torch.zeros(0, 6, 6)).shape == (0, 6, 6)


@pytest.mark.parametrize("name", ["sum", "A + A", "A * 2", "to_dense", "sampled"])
def test_exported_programs_load(name: str, tmp_path: Path) -> None:
    calls: dict[str, Call] = {
        "sum": lambda A, x: A.sum(1),
        "A + A": lambda A, x: (A + A) @ x,
        "A * 2": lambda A, x: (A * 2) @ x,
        "to_dense": lambda A, x: A.to_dense() @ x,
        "sampled": lambda A, x: ns.einsum("ij,ik,jk->ij", A, x, x) @ x,
    }

    class Held(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.A = ns.nn.Parameter(ns.from_torch(D, ns.CSR))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return calls[name](self.A.tensor, x)

    model = Held()
    torch.export.save(torch.export.export(model, (X,)), tmp_path / "program.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "program.pt2").module()(X), model(X))


def test_backward_passes_find_patterns_of_views_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch saves a view as another object for the backward pass; the pattern and its derived data are found by its memory."""
    B = ns.from_torch(D, ns.CSR)
    pos, crd = (torch.cat([array, array])[: len(array)] for array in B.pattern.arrays[1])
    A = ns.SparseTensor(type(B.pattern)(ns.CSR, (6, 6), ((), (pos, crd))), B.values.clone().requires_grad_())
    x = X.clone().requires_grad_()
    program = torch.compile(lambda A, x: A @ x, fullgraph=True, backend="aot_eager")
    program(A, x).sum().backward()
    monkeypatch.setattr(torch_operators, "Pattern", lambda *args: pytest.fail("a pattern was built again"))
    program(A, x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * D.T @ torch.ones(6, 6))


def test_exported_programs_take_tensors_of_their_pattern(tmp_path: Path) -> None:
    class ProductAndValues(torch.nn.Module):
        def forward(self, A: ns.SparseTensor, x: torch.Tensor) -> tuple[torch.Tensor, ns.SparseTensor]:
            return A @ x, torch.relu(A)

    A, equal, other = ns.from_torch(D, ns.CSR), ns.from_torch(2 * D, ns.CSR), ns.from_torch(D.T, ns.CSR)
    program = torch.export.export(ProductAndValues(), (A, X))
    torch.export.save(program, tmp_path / "program.pt2")
    for given in (program, torch.export.load(tmp_path / "program.pt2")):
        product, positive = given.module()(equal, X)
        torch.testing.assert_close(product, 2 * D @ X)
        torch.testing.assert_close(positive.to_dense(), torch.relu(2 * D))
        with pytest.raises(ValueError, match=r"CSR of 6x6 with \d+ entries, .*; the patterns must store the same entries"):
            given.module()(other, X)


READ = "dtype device is_sparse is_sparse_csr ndim nnz density is_cpu itemsize nbytes requires_grad shape"
CALLED = "dim is_contiguous is_floating_point numel size _nnz"
PROPERTIES: dict[str, Callable[[Any], Any]] = {
    **{name: lambda A, name=name: getattr(A, name) for name in READ.split()},
    **{name: lambda A, name=name: getattr(A, name)() for name in CALLED.split()},
    "format": lambda A: A.format.name,
    "getattr layout": lambda A: getattr(A, "layout", None),
    "hasattr layout": lambda A: hasattr(A, "layout"),
    "hasattr tocsr": lambda A: hasattr(A, "tocsr"),
    "len": len,
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties_are_constants(name: str) -> None:
    read = PROPERTIES[name]
    for format in (ns.CSR, ns.DCSR, ns.BCSR(4, 4)):
        torch.compiler.reset()
        A = ns.from_torch(D, format)
        assert torch.compile(lambda A, x: (A @ x, read(A)), fullgraph=True, backend="aot_eager")(A, X)[1] == read(A)


CONSTRUCTORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "from_coo": lambda x: ns.from_coo([[0, 1], [1, 0]], x[0, :2], (6, 6)),
    "from_csr": lambda x: ns.from_csr(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), x[0, :2], (2, 6)),
    "from_torch": lambda x: ns.from_torch(x),
    "from_scipy": lambda x: ns.from_scipy(EYE),
    "adj_t": lambda x: ns.adj_t(torch.tensor([[0, 1], [1, 0]]), size=6),
    "eye": lambda x: ns.eye(6, format=ns.CSR),
    "sliding_window": lambda x: ns.nn.patterns.sliding_window(6, 1),
    "to_scipy": lambda x: ns.from_scipy(EYE).to_scipy().sum() + ns.eye(6, format=ns.CSR),
}
EYE = ns.eye(6, format=ns.CSR).to_scipy()


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_break_the_graph(name: str) -> None:
    call = lambda x: (CONSTRUCTORS[name](x) @ x) + 1  # noqa: E731
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"within a whole graph: .*; call it outside, and pass its result"):
        torch.compile(call, fullgraph=True, backend="aot_eager")(X)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(X), call(X))


def test_graph_breaks_do_not_compile_functions_of_numscorch() -> None:
    """Once, Dynamo compiled functions that ran after a graph break, with warnings and further breaks."""
    A = ns.from_torch(D, ns.CSR)
    torch._dynamo.utils.counters.clear()
    torch.compile(lambda A, x: A.max(1).values + x, backend="eager")(A, X)
    assert [reason.split("\n")[0] for reason in torch._dynamo.utils.counters["graph_break"]] == [
        "Skip calling `torch.compiler.disable()`d function"
    ]
