"""Operators with torch's names, compared with torch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense
from programs import ChildProcess, output_of

import numscorch as ns
from numscorch.operators import elementwise
from numscorch.programs import dispatch as computing, evaluation
from numscorch.runtime.plans import uncompiled

D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


@pytest.fixture
def A(interpreted: None) -> ns.SparseTensor:
    return ns.from_torch(D)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (5, 3, 4), (2, 5, 3, 4)])
def test_products_from_the_left(A: Any, shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    assert torch.equal(A @ x, D @ x)
    assert torch.equal(torch.matmul(A, x), D @ x)


@pytest.mark.parametrize("shape", [(2,), (4, 2), (5, 4, 2)])
def test_products_from_the_right(A: ns.SparseTensor, shape: tuple[int, ...]) -> None:
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    assert torch.equal(x @ A, x @ D)


def test_operands_are_not_swapped(A: ns.SparseTensor) -> None:
    square = ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    x = torch.tensor([[1.0, 5.0], [7.0, 2.0]])
    assert torch.equal(square @ x, square.to_dense() @ x)
    assert torch.equal(x @ square, x @ square.to_dense())


def test_a_product_needs_a_tensor(A: ns.SparseTensor) -> None:
    with pytest.raises(ns.UnsupportedError, match="matmul takes tensors"):
        A @ 3.0
    with pytest.raises(TypeError, match="unsupported operand"):
        A @ [1.0, 2.0, 3.0]


def test_a_product_has_dimensions(A: ns.SparseTensor) -> None:
    with pytest.raises(ns.SizeError, match="both need at least one dimension"):
        A @ torch.tensor(2.0)


@pytest.mark.parametrize(
    ("function", "shape"), [(torch.mm, (3,)), (torch.mv, (3, 2)), (torch.bmm, (3, 2))], ids=lambda value: getattr(value, "__name__", None)
)
def test_torch_functions_keep_their_ranks(A: ns.SparseTensor, function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    with pytest.raises(ns.SizeError, match="-dimensional operands"):
        function(A, torch.ones(shape))


def test_a_tensor_of_another_process_shares_no_plan(A: ns.SparseTensor) -> None:
    """Derived data of a pattern, and its number in the plan cache, are not pickled."""
    make = "import pickle, torch, numscorch as ns; print(pickle.dumps(ns.from_torch(torch.eye(7))).hex())"
    data = bytes.fromhex(output_of(ChildProcess(make, strict=False)))
    before = A @ torch.ones(3)
    copy = pickle.loads(data)
    assert torch.equal(copy @ torch.ones(7), torch.ones(7))
    assert torch.equal(A @ torch.ones(3), before)
    assert copy.pattern.signature != A.pattern.signature


def test_values_can_be_replaced_by_values_of_the_same_shape(A: ns.SparseTensor) -> None:
    A @ torch.ones(3)
    A.values = A.values[:1].expand(3)
    assert torch.equal(A @ torch.ones(3), torch.tensor([2.0, 4.0]))
    with pytest.raises(ns.SizeError, match="values has shape"):
        A.values = A.values[:2]
    with pytest.raises(ns.UnsupportedError, match="uint16"):
        A.values = torch.ones(3, dtype=torch.uint16)


def test_infinite_factors_along_broadcast_dimensions(A: ns.SparseTensor) -> None:
    """Lanes beyond the extent do not contribute, even if factors are infinite."""
    result = ns.einsum("ij,ik,jk->ij", A, torch.full((2, 1), torch.inf), torch.ones(3, 3))
    assert bool(result.values.isinf().all())


def test_singletons_with_repeated_coordinates_below_single_parents(interpreted: None) -> None:
    fmt = "(i, j, k) -> (i: dense, j: singleton(unique=False), k: singleton)"
    T = ns.from_coo([[0, 1], [1, 0], [1, 1]], [1.0, 2.0], (2, 2, 2), format=fmt)
    assert torch.equal(ns.einsum("ijk,k->i", T, torch.ones(2)), torch.tensor([1.0, 2.0]))


def test_index_memory_may_move(A: ns.SparseTensor) -> None:
    """torch moves the memory of tensors that are shared between processes."""
    x = torch.ones(3)
    before = A @ x
    for level in A.pattern.arrays:
        for array in level:
            array.share_memory_()
    A.values.share_memory_()
    assert torch.equal(A @ x, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # torch warns when it creates its first dual tensor
def test_forward_mode_tangents(A: ns.SparseTensor) -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(3), torch.ones(3))
        tangent = forward_ad.unpack_dual(A @ dual).tangent
        assert tangent is not None
        assert torch.equal(tangent, D @ torch.ones(3))
        assert torch.equal(A @ torch.ones(3), D @ torch.ones(3))


LEFT = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
RIGHT = torch.tensor([[1.0, -2.0, 0.0], [0.0, 0.0, 5.0]])
ROW, COLUMN = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[1.0], [-2.0]])
SCALARS = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex128)
Binary = Callable[[Any, Any], Any]
PAIRS: dict[str, Binary] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "torch.add": torch.add,
    "alpha": lambda a, b: torch.add(a, b, alpha=3),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR], ids=lambda f: f.name)
@pytest.mark.parametrize("name", PAIRS)
def test_element_wise(name: str, fmt: ns.Format, interpreted: None) -> None:
    A, B, f = ns.from_torch(LEFT).to(fmt), ns.from_torch(RIGHT).to(fmt), PAIRS[name]
    assert isinstance(f(A, B), ns.SparseTensor)
    assert torch.equal(as_dense(f(A, B)), f(LEFT, RIGHT))
    for other in (RIGHT, ROW, COLUMN):
        assert torch.equal(as_dense(f(A, other)), f(LEFT, other))
        assert torch.equal(as_dense(f(other, A)), f(other, LEFT))
    if name in "+-*":
        assert torch.equal(as_dense(f(A, 2)), f(LEFT, 2))
        assert torch.equal(as_dense(f(2, A)), f(2, LEFT))


@pytest.mark.parametrize("scalar", SCALARS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.complex64], ids=str)
def test_tensors_without_dimensions_are_promoted_as_by_torch(dtype: torch.dtype, scalar: torch.dtype, interpreted: None) -> None:
    """A tensor without dimensions takes the data type of the other operand, or promotes it."""
    A, s = ns.from_torch(LEFT.to(dtype)).to(ns.CSR), torch.tensor(2).to(scalar)
    expected = LEFT.to(dtype) * s
    for result in (A * s, s * A, ns.evaluate("R[i,j] = s * A[i,j]", A=A, s=s), ns.einsum("ij,->ij", A, s)):
        assert result.dtype == expected.dtype
        assert torch.equal(as_dense(result), expected)


def test_a_scalar_that_does_not_fit_is_refused(A: ns.SparseTensor) -> None:
    whole = A.to(torch.int8)
    for number in (300, torch.tensor(300)):
        with pytest.raises(ns.UnsupportedError, match=r"the number 300 does not fit torch\.int8"):
            whole * number
    assert (A * 2j).dtype == (A + 2j).dtype == torch.complex64


def test_numbers_beside_complex_values(interpreted: None) -> None:
    a = LEFT + 1j * RIGHT
    assert torch.equal(as_dense(ns.from_torch(a, ns.CSR) * 2j), a * 2j)


def test_division_is_at_the_numerators_entries(A: ns.SparseTensor) -> None:
    assert torch.equal(as_dense(A / 2), D / 2)
    assert torch.equal(as_dense(A / ROW), D / ROW)
    assert torch.equal(as_dense(A / RIGHT), torch.tensor([[0.0, -1.0, 0.0], [torch.inf, 0.0, 0.8]]))
    assert torch.equal(as_dense(A / A), (D != 0).float())


@pytest.mark.parametrize("name", ["abs", "neg", "relu", "sqrt", "exp", "log", "tanh", "sigmoid", "erf"])
def test_functions(name: str, A: ns.SparseTensor) -> None:
    function = getattr(torch, name)
    torch.testing.assert_close(as_dense(function(A)), function(D))
    assert isinstance(function(A), ns.SparseTensor) == (name not in ("exp", "log", "sigmoid"))


@pytest.mark.parametrize("dim", [None, 0, 1, -1, (0, 1)])
@pytest.mark.parametrize("name", ["sum", "amax", "amin", "mean"])
def test_reductions(name: str, dim: Any, A: ns.SparseTensor) -> None:
    function = getattr(ns, name)
    expected = (
        getattr(torch, name)(D) if dim is None and name in ("sum", "mean") else getattr(torch, name)(D, dim=(0, 1) if dim is None else dim)
    )
    torch.testing.assert_close(function(A, dim), expected)
    if dim is not None:
        torch.testing.assert_close(function(A, dim, keepdim=True), getattr(torch, name)(D, dim=dim, keepdim=True))
    with pytest.raises(ns.SizeError, match="give one from -2 to 1"):
        function(A, 2)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int64])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_integers_is_in_float32(name: str, dtype: torch.dtype) -> None:
    values = torch.tensor([[0, 3, 0, 1], [2, 0, 0, 0]]).to(dtype)
    result = getattr(ns, name)(ns.from_torch(values), 1)
    expected = getattr(torch, name)(torch.where(values != 0, values.float(), -torch.inf), 1)
    torch.testing.assert_close(result.values, expected[values != 0])
    with pytest.raises(ns.UnsupportedError, match="would be truncated to integers"):
        getattr(ns, name)(ns.from_torch(values), 1, dtype=torch.int64)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2)], ids=lambda f: f.name)
def test_softmax_is_over_stored_entries(fmt: ns.Format, dim: int, interpreted: None) -> None:
    values = torch.tensor([[0.0, -200.0, 0.0], [300.0, 0.0, 301.0]])
    result = ns.softmax(ns.from_torch(values).to(fmt), dim)
    expected = torch.where(values != 0, values, -torch.inf).softmax(dim).nan_to_num()
    torch.testing.assert_close(result.to_dense(), expected)


BLOCKS = [ns.BCSR(2, 2), ns.ELL, ns.DIA, ns.Format("(i, j) -> (i: dense, j: hash)")]
CUBES = [ns.CSF(3), ns.COO(3), ns.Format("dsd"), ns.Format("dds", (1, 0, 2))]


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, *BLOCKS, ns.Format("dd"), *CUBES], ids=lambda f: f.name)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_and_its_gradient_equal_torchs_on_stored_entries(name: str, fmt: ns.Format) -> None:
    generator = torch.Generator().manual_seed(0)
    full = torch.randn(*(3, 4, 2)[: fmt.order], dtype=torch.float64, generator=generator)
    full[torch.rand(*full.shape, generator=generator) < 0.6] = 0  # includes a row and a column without entries
    A = ns.from_torch(full, fmt)
    stored = A.with_values(torch.ones_like(A.values)).to_dense() != 0
    for dim in range(fmt.order):
        leaves = [A.values.clone().requires_grad_() for _ in range(2)]
        with uncompiled():
            result = getattr(torch, name)(A.with_values(leaves[0]), dim)
            result = as_dense(result)
            expected = torch.where(stored, A.with_values(leaves[1]).to_dense(), -torch.inf)
            expected = torch.where(stored, getattr(torch, name)(expected, dim), 0)
            torch.testing.assert_close(result, expected)
            upstream = torch.randn(*full.shape, dtype=torch.float64, generator=generator) * stored
            gradients = [torch.autograd.grad(output, leaf, upstream)[0] for output, leaf in zip((result, expected), leaves, strict=True)]
        torch.testing.assert_close(gradients[0], gradients[1].nan_to_num())


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_rows_is_one_kernel(name: str, A: ns.SparseTensor, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def compute(request: Any, *args: Any) -> Any:
        calls.append(request)
        return computing.compute(request, *args)

    for file in (evaluation, elementwise):
        monkeypatch.setattr(file, "compute", compute)
    assert getattr(torch, name)(A, 1).pattern is A.pattern
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_16_bits_is_rounded_once(name: str) -> None:
    full = torch.linspace(-3, 3, 500).reshape(1, 500).to(torch.bfloat16)
    A = ns.from_torch(full, ns.CSR)
    result = getattr(torch, name)(A, 1)
    assert torch.equal(result.values, getattr(torch, name)(A.values.float(), 0).to(torch.bfloat16))


def test_dense_operands_are_torchs() -> None:
    assert torch.equal(ns.add(LEFT, RIGHT), LEFT + RIGHT)
    assert ns.sum(LEFT, dtype=torch.float64).dtype == torch.float64
    with pytest.raises(TypeError):
        ns.from_torch(LEFT) + "x"


@pytest.mark.parametrize("dim", [None, (), [], 1, -1, [0], (0, 1), np.int64(1), torch.tensor(0)], ids=repr)
@pytest.mark.parametrize("name", ["sum", "mean", "amax"])
def test_dimensions_are_named_as_in_torch(name: str, dim: Any) -> None:
    D = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    dims = tuple(map(int, dim)) if isinstance(dim, list) else int(dim) if hasattr(dim, "__index__") else dim
    expected = getattr(torch, name)(D, () if dims is None else dims)
    assert torch.equal(getattr(ns, name)(ns.from_torch(D, ns.CSR), dim), expected)


@pytest.mark.parametrize("dim", ["1", 1.0, [[0]], (1.0,)], ids=repr)
def test_other_dimensions_are_refused(dim: Any) -> None:
    with pytest.raises(TypeError, match=r"sum: .* instead of an integer: dimensions, sizes and counts are integers"):
        ns.sum(ns.from_torch(torch.eye(2), ns.CSR), dim)


@pytest.mark.parametrize("number", [complex(-1, 0.0), complex(-1, -0.0), complex(2, 1)], ids=repr)
def test_numbers_keep_their_signs(number: complex) -> None:
    D = torch.tensor([[1 + 0j, 0], [0, 2]])
    values = (ns.from_torch(D, ns.CSR) * number).values
    assert torch.equal(values.angle(), (D[D != 0] * number).angle())
