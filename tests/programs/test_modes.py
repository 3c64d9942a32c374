"""Dual numbers, transforms, inference mode, batched gradients, tracing and subclasses of Tensor: torch's result, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dense_values import as_dense
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import functionalize, grad, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import numscorch as ns
from numscorch.schedule import tuning

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch warns when it registers its rules
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # vmap loops over a batch in some of torch's operators
]

Call = Callable[[ns.SparseTensor, torch.Tensor], Any]
D = torch.tensor([[0.0, 2.0, 0.0, -1.0], [3.0, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 4.0, 0.0, -2.0]], dtype=torch.float64)
X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
FORMATS = (ns.CSR, ns.COO(2), ns.BCSR(2, 2), ns.Format("(i, j) -> (i: dense, j: bitmap)"))

PRODUCTS: dict[str, Call] = {
    "matmul": lambda A, x: A @ x,
    "einsum": lambda A, x: ns.einsum("ij,jk->k", A, x),
    "linear": lambda A, x: torch.nn.functional.linear(x.t(), A),
    "evaluate": lambda A, x: ns.evaluate("R[i,k] = relu(A[i,j] * x[j,k])", A=A, x=x),
    "fuse": lambda A, x: ns.fuse(lambda A, x: torch.relu(A @ x))(A, x),
    "plan": lambda A, x: ns.plan("ij,jk->ik", A, torch.ones_like(x))(A, x),
    "times": lambda A, x: A * x[:, :1],
    "mask": lambda A, x: ns.einsum("ik,jk->ij", x, x, mask=A),
}
REDUCTIONS: dict[str, Call] = {
    "sum": lambda A, x: A.sum(1),
    "amax": lambda A, x: A.amax(1),
    "softmax": lambda A, x: torch.softmax(A, 1),
    "sparse": lambda A, x: A @ A,
    "plus": lambda A, x: A + A.t(),
}
MOVES: dict[str, Call] = {
    "rows": lambda A, x: A[[0, 0, 3]],
    "row": lambda A, x: A[1],
    "columns": lambda A, x: A[:, ::2],
    "cat": lambda A, x: torch.cat([A, A]),
    "stack": lambda A, x: torch.stack([A, A]),
    "reshape": lambda A, x: A.reshape(2, 8),
    "tril": lambda A, x: A.tril(),
    "diagonal": lambda A, x: A.diagonal(),
    "kron": lambda A, x: torch.kron(A, A),
    "CSC": lambda A, x: A.to(ns.CSC),
    "ELL": lambda A, x: A.to(ns.ELL),
    "to_dense": lambda A, x: A.to_dense(),
    "zeros_like": lambda A, x: torch.zeros_like(A) + A,
    "from_coo": lambda A, x: ns.from_coo(torch.arange(3).repeat(2, 1), A.values[:3], (4, 4), format=ns.CSR),
    "from_csr": lambda A, x: ns.from_csr([0, 1, 2, 3, 3], [1, 0, 3], A.values[:3], (4, 4)),
    "from_torch": lambda A, x: ns.from_torch(D, ns.CSR) * A.values[0],
    "from_scipy": lambda A, x: ns.from_scipy(ns.from_torch(D, ns.CSR).to_scipy()) * A.values[0],
    "native": lambda A, x: ns.einsum("ij,jk->ik", NATIVE, x) * A.values[0],
}
NATIVE = D.to_sparse_coo()


def loss(call: Call, A: ns.SparseTensor, x: torch.Tensor = X) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: as_dense(call(A.with_values(values), x)).square().sum()


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", [*PRODUCTS, *REDUCTIONS])
def test_tangents_are_those_of_reverse_mode(name: str, is_warm: bool, interpreted: None) -> None:
    call, A = (PRODUCTS | REDUCTIONS)[name], ns.from_torch(D, ns.CSR)
    for _ in range(3 * is_warm):
        call(A, X)
    function, leaves = lambda values, x: as_dense(call(A.with_values(values), x)), (A.values, X)
    tangents = A.values.cos(), X.cos()
    expected = torch.autograd.functional.jvp(function, leaves, tangents)
    torch.testing.assert_close(jvp(function, leaves, tangents), expected)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(*map(forward_ad.make_dual, leaves, tangents)))
    torch.testing.assert_close(tuple(dual), expected)


@pytest.mark.parametrize("call", [lambda A: torch.relu(A), lambda A: A * 2, lambda A: A[[0, 0]], lambda A: A.to(ns.CSC), lambda A: A.t()])
def test_tangents_of_values_that_torch_computes(call: Callable[[ns.SparseTensor], ns.SparseTensor], interpreted: None) -> None:
    A = ns.from_torch(D, ns.CSR)
    with forward_ad.dual_level():
        result = call(A.with_values(forward_ad.make_dual(A.values, 2 * A.values))).to_dense()
        tangent = forward_ad.unpack_dual(result).tangent
    torch.testing.assert_close(tangent, 2 * call(A).to_dense())


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", [*PRODUCTS, *REDUCTIONS, *MOVES])
def test_transforms_make_patterns(name: str, format: ns.Format, interpreted: None) -> None:
    call, values = (PRODUCTS | REDUCTIONS | MOVES)[name], ns.from_torch(D, format).values
    leaf = values.clone().requires_grad_()
    value = loss(call, ns.from_torch(D, format))(leaf)
    expected = torch.autograd.grad(value, leaf, materialize_grads=True)[0] if value.requires_grad else torch.zeros_like(leaf)
    fresh = lambda: loss(call, ns.from_torch(D, format))  # noqa: E731  # a pattern without cached conversions
    torch.testing.assert_close(grad(fresh())(values), expected)
    torch.testing.assert_close(vjp(fresh(), values)[1](torch.ones((), dtype=torch.float64))[0], expected)
    torch.testing.assert_close(jacrev(fresh())(values), expected)
    torch.testing.assert_close(vmap(grad(fresh()))(torch.stack([values, values]))[1], expected)


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("format", [*FORMATS, ns.ELL, ns.Format("dd")], ids=lambda f: f.name)
def test_transforms_of_dense_tensors_that_become_sparse(format: ns.Format, copy: bool, interpreted: None) -> None:
    def value(full: torch.Tensor) -> torch.Tensor:
        return (ns.from_torch(full, format, copy=copy) @ X).square().sum()

    leaf = D.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(leaf), leaf)
    torch.testing.assert_close(grad(value)(D), expected)
    torch.testing.assert_close(vjp(value, D)[1](torch.ones((), dtype=torch.float64))[0], expected)
    torch.testing.assert_close(jacrev(value)(D), expected)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
def test_sparse_layouts_of_torch_beside_dual_numbers(layout: torch.layout, interpreted: None) -> None:
    A = D.to_sparse(layout=layout, blocksize=(2, 2) if layout is torch.sparse_bsr else None)
    calls: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda x: ns.einsum("ij,jk->ik", A, x),
        lambda x: ns.evaluate("R[i,k] = A[i,j] * x[j,k]", A=A, x=x),
        lambda x: ns.plan("ij,jk->ik", A, X)(A, x),
    )
    for call in calls:
        with forward_ad.dual_level():
            torch.testing.assert_close(call(X), D @ X)
            torch.testing.assert_close(tuple(forward_ad.unpack_dual(call(forward_ad.make_dual(X, 2 * X)))), (D @ X, 2 * D @ X))


def test_patterns_within_vmap_are_refused(interpreted: None) -> None:
    with pytest.raises(ns.UnsupportedError, match=r"within vmap.*outside of vmap"):
        vmap(lambda full: ns.from_torch(full, ns.CSR) @ X)(torch.stack([D, D]))
    with pytest.raises(ns.UnsupportedError, match=r"within vmap.*outside of vmap"):
        vmap(lambda at: ns.from_coo(torch.stack([at, at]), torch.ones(2), (4, 4)).sum())(torch.tensor([[0, 1], [1, 2]]))


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", [*PRODUCTS, *REDUCTIONS, *MOVES])
def test_inference_mode_first(name: str, format: ns.Format, interpreted: None) -> None:
    call = (PRODUCTS | REDUCTIONS | MOVES)[name]
    leaf = ns.from_torch(D, format).values.requires_grad_()
    value = loss(call, ns.from_torch(D, format))(leaf)
    expected = torch.autograd.grad(value, leaf, allow_unused=True)[0] if value.requires_grad else None
    A = ns.from_torch(D, format)
    with torch.inference_mode():
        call(A, X)
        B = ns.from_torch(D, format)
    for pattern in (A, B):
        value = loss(call, pattern)(leaf)
        if expected is not None:
            torch.testing.assert_close(torch.autograd.grad(value, leaf, allow_unused=True)[0], expected)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", [*PRODUCTS, *REDUCTIONS])
def test_batched_gradients(name: str, format: ns.Format, interpreted: None) -> None:
    call, A = (PRODUCTS | REDUCTIONS)[name], ns.from_torch(D, format)
    operands = A.values.clone(), X + 2

    def function(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return as_dense(call(A.with_values(values), x))

    torch.testing.assert_close(jacobian(function, operands, vectorize=True), jacobian(function, operands))


class PassThrough(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


RECORDERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "make_fx": lambda f: make_fx(f)(X)(X),
    "make_fx of a gradient": lambda f: make_fx(grad(lambda x: f(x).sum()))(X)(X),
    "make_fx before dispatch": lambda f: make_fx(f, pre_dispatch=True)(X)(X),
    "functionalize": lambda f: functionalize(f)(X),
    "jit.trace": lambda f: torch.jit.trace(f, X, check_trace=False)(X),
}
REFUSED = {  # kernels that such a mode does not see as operators
    **dict.fromkeys(("make_fx before dispatch", "functionalize", "jit.trace"), ("evaluate", "mask", "times")),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("recorder", RECORDERS)
def test_recorded_programs_are_right_or_refused(recorder: str, name: str, is_warm: bool, interpreted: None) -> None:
    call, A = PRODUCTS[name], ns.from_torch(D, ns.CSR)
    if name == "plan":
        call = ns.plan("ij,jk->ik", A, X)
    for _ in range(4 * is_warm):
        call(A, X)
    traced = lambda x: as_dense(call(A, x))  # noqa: E731
    expected = traced(X) if "gradient" not in recorder else grad(lambda x: traced(x).sum())(X)
    if name in REFUSED.get(recorder, ()):
        with pytest.raises(ns.UnsupportedError, match=r"records torch's operators.*torch\.compile"):
            RECORDERS[recorder](traced)
    else:
        torch.testing.assert_close(RECORDERS[recorder](traced), expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_fake_tensors_have_the_shapes_of_results(name: str, interpreted: None) -> None:
    call, A = PRODUCTS[name], ns.from_torch(D, ns.CSR)
    if name == "plan":
        call = ns.plan("ij,jk->ik", A, X)
    with FakeTensorMode() as mode:
        result = as_dense(call(A, mode.from_tensor(X)))
        assert mode.is_our_fake(result)
    assert result.shape == as_dense(call(A, X)).shape
    with pytest.raises(ns.UnsupportedError):
        as_dense(call(A, X.to("meta")))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("call", [lambda A, x: A @ x, lambda A, x: torch.relu(A) @ x], ids=["product", "relu"])
def test_recorded_fake_tensors(call: Callable[..., torch.Tensor], mode: str, interpreted: None) -> None:
    A = ns.from_torch(D, ns.CSR)
    with pytest.raises(ns.UnsupportedError, match="_allow_non_fake_inputs=True"):
        make_fx(lambda x: call(A, x), tracing_mode=mode)(X)
    program = make_fx(lambda x: call(A, x), tracing_mode=mode, _allow_non_fake_inputs=True)(X)
    torch.testing.assert_close(program(X), call(A, X))
    with FakeTensorMode() as fake:
        assert call(A, fake.from_tensor(X)).shape == X.shape


@pytest.mark.parametrize("entries", [0, 1 << 20])
def test_conversions_within_functionalize_equal_those_outside(entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels, and by torch's operators."""
    monkeypatch.setattr(tuning, "COMPILE_ENTRIES", entries)
    A = ns.from_torch(D, ns.CSR)
    assert torch.allclose(functionalize(lambda x: A.to_dense() @ x)(X), D @ X)
    assert torch.allclose(functionalize(lambda x: A.to(ns.CSC).to_dense() @ x)(X), D @ X)


@pytest.mark.parametrize("name", PRODUCTS)
def test_modes_that_pass_operators_on(name: str, interpreted: None) -> None:
    call, A = PRODUCTS[name], ns.from_torch(D, ns.CSR)
    x, values = X.clone().requires_grad_(), A.values.clone().requires_grad_()

    def run() -> tuple[torch.Tensor, ...]:
        result = as_dense(call(A.with_values(values), x))
        return result, *torch.autograd.grad(result.square().sum(), (values, x), materialize_grads=True)

    expected = run()
    for mode in (PassThrough(), FlopCounterMode(display=False)):
        with mode:
            torch.testing.assert_close(run(), expected)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.relu.default else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
    result = checkpoint(lambda v, x: as_dense(call(A.with_values(v), x)), values, x, use_reentrant=False, context_fn=contexts)
    torch.testing.assert_close(torch.autograd.grad(result.square().sum(), (values, x), materialize_grads=True), expected[1:])


class Named(torch.Tensor):
    """A subclass without operators of its own."""


class Wrapper(torch.Tensor):
    """A subclass whose memory holds no values."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is called")


@pytest.mark.parametrize("name", PRODUCTS)
def test_subclasses_of_tensor(name: str, interpreted: None) -> None:
    call, A = PRODUCTS[name], ns.from_torch(D, ns.CSR)
    torch.testing.assert_close(as_dense(call(A, X.as_subclass(Named))).as_subclass(torch.Tensor), as_dense(call(A, X)))
    if name not in ("linear", "times", "plan"):  # these call the class's own functions first
        with pytest.raises(ns.UnsupportedError, match=r"a Wrapper is a tensor.*plain"):
            call(A, Wrapper(X))
    with pytest.raises(ns.UnsupportedError, match="a Wrapper is a tensor"):
        A.with_values(Wrapper(A.values))
