"""Operands and arguments of other libraries: NumPy's numbers count as Python's, arrays are refused with the way out."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.errors import IndexKindError

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]
D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0], [0.0, 0.0, 4.0]])
DIVIDES = {"/", "%", "//"}  # unstored entries over unstored or zero entries stay 0
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "//": operator.floordiv,
    "**": operator.pow,
    "<": operator.lt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
NUMBERS = {
    "float64": np.float64(2.5),
    "float32": np.float32(2.5),
    "float16": np.float16(2.5),
    "int64": np.int64(2),
    "uint8": np.uint8(2),
    "bool": np.bool_(True),
    "complex64": np.complex64(2 + 1j),
    "an array without dimensions": np.array(2.5),
}
DTYPES = (torch.float32, torch.float16, torch.int32, torch.complex64)


@pytest.fixture
def A() -> Any:
    return ns.from_torch(D)


def outcome(call: Callable[[], Any]) -> Any:
    """The dense result, or the class of the error."""
    try:
        result = call()
    except Exception as error:
        return error
    return as_dense(result)


def check(result: Any, expected: Any) -> None:
    """Check that a result equals that of dense tensors; where torch refuses the operands, that no other error is raised."""
    if isinstance(expected, Exception):
        assert not isinstance(result, Exception) or isinstance(result, ns.NumscorchError | type(expected)), repr(result)
    else:
        assert not isinstance(result, Exception), repr(result)
        torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_of_numpy_are_operands_on_both_sides(name: str, number: str, dtype: torch.dtype) -> None:
    function, value, full = OPERATORS[name], NUMBERS[number], D.to(dtype)
    A = ns.from_torch(full)
    for left, right, dense in ((A, value, (full, value.item())), (value, A, (value.item(), full))):
        expected = outcome(lambda dense=dense: function(*dense))
        if isinstance(expected, torch.Tensor) and dtype is torch.int32 and name in DIVIDES and left is value:
            continue  # a number over unstored integers
        if dtype is torch.complex64 and left is value and name == "/":
            continue  # complex zeros
        if dtype is torch.float16 and number == "complex64":
            continue  # torch.complex32, which is not supported
        check(outcome(lambda left=left, right=right: function(left, right)), expected)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "where": lambda X, number: torch.where(D > 1, X, number),
    "lerp": lambda X, number: X.lerp(2 * X, number),
    "addcmul": lambda X, number: torch.addcmul(X, X, X, value=number),
    "add with alpha": lambda X, number: torch.add(X, X, alpha=number),
    "mul in place": lambda X, number: X.clone().mul_(number),
    "clamp": lambda X, number: X.clamp(max=number),
    "pow": lambda X, number: X.pow(number),
    "masked_fill": lambda X, number: X.masked_fill(X > 1, number),
    "addmm": lambda X, number: torch.addmm(D, X, D, beta=number, alpha=number),
    "leaky_relu": lambda X, number: torch.nn.functional.leaky_relu(X, number),
    "div, rounded": lambda X, number: torch.div(X, number, rounding_mode="floor"),
    "full_like": lambda X, number: torch.full_like(X, number) * X,
    "an assignment": lambda X, number: _assigned(X.clone(), number),
}


def _assigned(X: Any, number: Any) -> Any:
    X[1, 0] = number
    return X


@pytest.mark.parametrize("number", ["float64", "float32", "int64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_numpy_are_arguments_of_functions(name: str, number: str, A: Any) -> None:
    value = NUMBERS[number]
    check(outcome(lambda: FUNCTIONS[name](A, value)), outcome(lambda: FUNCTIONS[name](D, value.item())))


def along(name: str) -> Callable[[Any, Any], Any]:
    return lambda X, dim: getattr(X, name)(dim=dim)


ALONG: dict[str, Callable[[Any, Any], Any]] = {
    **{name: along(name) for name in ("sum", "mean", "amax", "amin", "var", "logsumexp")},
    "argmax": lambda X, dim: X.argmax(dim=dim),
    "all": lambda X, dim: (X != 0).all(dim=dim),
    "vector_norm": lambda X, dim: torch.linalg.vector_norm(X, dim=dim),
    "cumsum": lambda X, dim: X.cumsum(dim),
    "select": lambda X, dim: X.select(dim, np.int64(1)),
    "narrow": lambda X, dim: X.narrow(dim, np.int64(0), np.int64(2)),
    "index_select": lambda X, dim: X.index_select(dim, torch.tensor([0, 0])),
    "cat": lambda X, dim: torch.cat([X, X], dim),
    "stack": lambda X, dim: torch.stack([X, X], dim),
    "transpose": lambda X, dim: X.transpose(dim, np.int64(0)),
    "squeeze": lambda X, dim: X.squeeze(dim),
    "unsqueeze": lambda X, dim: X.unsqueeze(dim),
    "flip": lambda X, dim: X.flip(dim),
    "roll": lambda X, dim: X.roll(np.int64(1), dim),
    "size": lambda X, dim: torch.tensor(X.size(dim)),
    "tril": lambda X, dim: X.tril(dim),
    "triu": lambda X, dim: X.triu(diagonal=dim),
    "diagonal": lambda X, dim: X.diagonal(dim),
    "an index": lambda X, dim: X[dim],
    "two indices": lambda X, dim: X[dim, dim],
    "a slice": lambda X, dim: X[:dim],
    "chunk": lambda X, dim: X.chunk(2, dim)[0],
    "unbind": lambda X, dim: X.unbind(dim)[1],
    "reshape": lambda X, dim: X.reshape(dim, -1),
    "repeat": lambda X, dim: X.repeat(dim, 1),
    "expand": lambda X, dim: X[None].expand(dim, 3, 3),
    "movedim": lambda X, dim: X.movedim(dim, 0),
    "flatten": lambda X, dim: X.flatten(0, dim),
    "permute": lambda X, dim: X.permute(dim, 0),
    "gather": lambda X, dim: torch.gather(X, dim, torch.tensor([[0]])),
    "rot90": lambda X, dim: torch.rot90(X, dim),
    "diff": lambda X, dim: torch.diff(X, dim),
    "tensordot": lambda X, dim: torch.tensordot(X, X, dim),
    "matrix_power": lambda X, dim: torch.matrix_power(X, dim),
    "normalize": lambda X, dim: torch.nn.functional.normalize(X, dim=dim),
}
INTEGERS = {
    "int64": np.int64(1),
    "int32": np.int32(1),
    "a tensor": torch.tensor(1),
    "a float": np.float64(1),
    "a list": [np.int64(0), np.int64(1)],
    "tensors": (torch.tensor(0), torch.tensor(1)),
    "a text": "1",
}


@pytest.mark.parametrize("number", INTEGERS)
@pytest.mark.parametrize("name", ALONG)
def test_integers_of_numpy_and_torch_are_dims_sizes_and_indices(name: str, number: str, A: Any) -> None:
    value = INTEGERS[number]
    expected = outcome(lambda: ALONG[name](D, value if isinstance(value, list | tuple | str | torch.Tensor) else value.item()))
    result = outcome(lambda: ALONG[name](A, value))
    if not isinstance(result, IndexKindError):  # nested lists as indices are refused
        check(result, expected)


def test_integers_of_numpy_are_arguments_of_constructors() -> None:
    three, half = np.int64(3), np.float32(0.5)
    assert ns.eye(three, format=ns.CSR).shape == ns.zeros(three, three, format=ns.CSR).shape == (3, 3)
    assert ns.rand(three, three, density=half, format=ns.CSR).nnz == 4
    assert ns.full((three, three), half, format=ns.CSR).values.tolist() == [0.5] * 9
    assert ns.from_coo([[0], [1]], [1.0], np.array([2, 2])).shape == (2, 2)


MATRICES = ("csr_array", "csr_matrix", "csc_array", "coo_array", "coo_matrix", "dia_array", "lil_array", "dok_array", "bsr_matrix")


def array_of(kind: str) -> tuple[Any, str]:
    """An array of NumPy or SciPy, and the call that converts it."""
    if kind == "ndarray":
        return D.numpy(), "torch.from_numpy(x)"
    return getattr(pytest.importorskip("scipy.sparse"), kind)(D.numpy()), "ns.from_scipy(x)"


@pytest.mark.parametrize("kind", ["ndarray", *MATRICES])
@pytest.mark.parametrize("name", [*OPERATORS, "@", "+=", "*="])
def test_arrays_of_other_libraries_are_refused_with_the_way_out(name: str, kind: str, A: Any) -> None:
    function = {**OPERATORS, "@": operator.matmul, "+=": operator.iadd, "*=": operator.imul}[name]
    array, way_out = array_of(kind)
    with pytest.raises(ns.OperandError, match="takes tensors and numbers, not ") as error:
        function(A, array)
    assert str(error.value).endswith(f"not {type(array).__name__}: wrap it with {way_out}")
    assert torch.equal(A.to_dense(), D)
    if name in ("+=", "*=") or (name == "**" and kind != "ndarray"):
        return  # NumPy's and SciPy's own refusals: they do not ask the other operand
    with pytest.raises(ns.UnsupportedError, match=r"wrap it with|ns\.from_scipy\(S\)"):
        function(array, A)


@pytest.mark.parametrize("name", ["add", "mul", "matmul", "mm", "where", "maximum", "remainder", "linear", "einsum", "lerp", "cat"])
def test_functions_refuse_arrays_of_other_libraries(name: str, A: Any) -> None:
    array = array_of("csr_array")[0]
    calls: dict[str, Callable[[], Any]] = {
        "where": lambda: ns.where(D > 0, A, array),
        "linear": lambda: ns.operators.OPERATORS["linear"](array, A),
        "einsum": lambda: ns.einsum("ij,jk->ik", A, array),
        "lerp": lambda: A.lerp(array, 0.5),
        "cat": lambda: ns.cat([A, array]),
    }
    with pytest.raises(ns.UnsupportedError, match=r"ns\.from_scipy"):
        calls.get(name, lambda: getattr(ns, name)(A, array))()


def test_arrays_of_pydata_are_refused_with_the_way_out(A: Any) -> None:
    sparse = pytest.importorskip("sparse")
    for array in (sparse.COO.from_numpy(D.numpy()), sparse.GCXS.from_numpy(D.numpy()), sparse.DOK.from_numpy(D.numpy())):
        for function in (*OPERATORS.values(), operator.matmul):
            with pytest.raises(ns.OperandError, match=r"wrap it with ns\.from_pydata\(x\)$"):
                function(A, array)
        with pytest.raises(ns.OperandError, match=r"wrap it with ns\.from_pydata\(x\)$"):
            array + A


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.parametrize("name", [*OPERATORS, "@"])
def test_sparse_layouts_of_torch_are_operands_on_both_sides(name: str, layout: str, A: Any) -> None:
    function = {**OPERATORS, "@": operator.matmul}[name]
    native = D.to_sparse(layout=getattr(torch, f"sparse_{layout}"), blocksize=(3, 3) if layout in ("bsr", "bsc") else None)
    expected = function(D, D)
    for left, right in ((A, native), (native, A)):
        result = outcome(lambda left=left, right=right: function(left, right))
        assert isinstance(result, torch.Tensor), repr(result)
        pair = (result.nan_to_num(), expected.nan_to_num()) if name in DIVIDES else (result, expected)
        torch.testing.assert_close(*pair)
