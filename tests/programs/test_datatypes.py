"""All data types of values in products, sums and sparse results; 16-bit values are accumulated in 32 bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.frontend.datatypes import STORED

INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
WIDE = {True: torch.complex128, False: torch.float64}


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Small integers, whose sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    real = torch.randint(0 if dtype is torch.uint8 else -3, 4, shape, generator=generator).double()
    imaginary = torch.randint(-3, 4, shape, generator=generator).double()
    return (torch.complex(real, imaginary) if dtype.is_complex else real).to(dtype)


def sparse(dtype: torch.dtype, *shape: int, seed: int) -> torch.Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4
    return numbers(dtype, *shape, seed=seed) * mask


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2), ns.DCSR], ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("jit", [True, False])
def test_products_and_sums(dtype: torch.dtype, fmt: ns.Format, jit: bool, request: pytest.FixtureRequest) -> None:
    if not jit or fmt != ns.CSR:
        request.getfixturevalue("plain")
    a, b, x = sparse(dtype, 6, 5, seed=1), sparse(dtype, 5, 7, seed=2), numbers(dtype, 5)
    A, B, wide = ns.from_torch(a).to(fmt), ns.from_torch(b).to(fmt), WIDE[dtype.is_complex]
    exact = {"A @ x": a.to(wide) @ x.to(wide), "A @ B": a.to(wide) @ b.to(wide), "A + A": a.to(wide) * 2, "sampled": None}
    results = {"A @ x": A @ x, "A @ B": A @ B, "A + A": A + A, "sampled": ns.einsum("ij,i,j->ij", A, numbers(dtype, 6), x)}
    exact["sampled"] = a.to(wide) * numbers(dtype, 6).to(wide)[:, None] * x.to(wide)
    for name, result in results.items():
        assert result.dtype == dtype, name
        dense = as_dense(result)
        expected = exact[name] != 0 if dtype is torch.bool else exact[name]
        assert torch.equal(dense.to(wide), expected.to(wide)), name


def test_16_bit_values_are_accumulated_in_32_bits(interpreted: None) -> None:
    A = ns.from_torch(torch.ones(1, 4096, dtype=torch.bfloat16))
    assert (A @ torch.ones(4096, dtype=torch.bfloat16)).item() == 4096


@pytest.mark.parametrize("jit", [True, False])
def test_relu_of_large_integers_is_exact(jit: bool, request: pytest.FixtureRequest) -> None:
    """relu is exact for integers that float64 cannot represent."""
    if not jit:
        request.getfixturevalue("plain")
    large = torch.tensor([[2**60 + 1, -(2**60) - 1], [0, 5]])
    result: ns.SparseTensor = torch.relu(ns.from_torch(large, ns.CSR))
    assert torch.equal(result.to_dense(), large.relu())


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR], ids=lambda f: f.name)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("jit", [True, False])
def test_maxima_and_minima_of_integers(dtype: torch.dtype, fmt: ns.Format, jit: bool, request: pytest.FixtureRequest) -> None:
    """Maxima and minima are right for the limits of the data type and for rows without entries."""
    if not jit or fmt != ns.CSR:
        request.getfixturevalue("plain")
    limits = torch.iinfo(dtype)
    a = sparse(dtype, 5, 6, seed=3)
    a[0], a[1], a[2], a[3, 4] = limits.min, limits.max, 0, limits.min
    A, x = ns.from_torch(a).to(fmt), numbers(dtype, 5)
    dims: dict[str, tuple[int, ...]] = {"ij->i": (1,), "ij->j": (0,), "ij->": (0, 1)}
    for name, function in {"max": torch.amax, "min": torch.amin}.items():
        for expr, dim in dims.items():
            result = ns.einsum(expr, A, reduce=name, format="dense")
            assert result.dtype == dtype
            assert torch.equal(result, function(a, dim=dim))
        result = ns.evaluate(f"y[j] {name}= maximum(A[i,j], x[i])", A=A, x=x)
        assert torch.equal(result, function(torch.maximum(a, x[:, None]), dim=0))
    assert torch.equal(ns.einsum("ij->j", A, reduce="any", format="dense"), (a != 0).any(0).to(dtype))
    assert torch.equal(ns.einsum("ij->j", A, reduce="all", format="dense"), (a != 0).all(0).to(dtype))


def test_maxima_and_minima_without_terms_are_the_limits_of_the_type(interpreted: None) -> None:
    A = ns.from_torch(torch.ones(2, 0, dtype=torch.int16), ns.CSR)
    assert ns.einsum("ij->i", A, reduce="max", format="dense").tolist() == [-(2**15)] * 2
    assert ns.einsum("ij->i", A, reduce="min", format="dense").tolist() == [2**15 - 1] * 2


def test_conjugates_are_resolved(interpreted: None) -> None:
    a, x = sparse(torch.complex64, 4, 5, seed=1), numbers(torch.complex64, 5)
    A = ns.from_torch(a, ns.CSR)
    assert torch.equal(A @ x.conj(), a @ x.conj())
    assert torch.equal(ns.from_torch(a.conj(), ns.CSR) @ x, a.conj() @ x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16], ids=str)
def test_out(dtype: torch.dtype, interpreted: None) -> None:
    a, x = sparse(dtype, 4, 5, seed=1), numbers(dtype, 5)
    out = torch.empty(4, dtype=dtype)
    assert ns.einsum("ij,j->i", ns.from_torch(a, ns.CSR), x, out=out) is out
    assert torch.equal(out.double(), a.double() @ x.double())


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 2)], ids=lambda f: f.name)
def test_booleans_are_reduced_with_or(fmt: ns.Format, interpreted: None) -> None:
    rng = np.random.default_rng(0)
    a, b, x = rng.random((5, 7)) < 0.3, rng.random((7, 4)) < 0.3, rng.random(7) < 0.5
    A, B = ns.from_torch(torch.from_numpy(a), fmt), ns.from_torch(torch.from_numpy(b), fmt)
    for expr, operands, arrays in (
        ("ij,j->i", (A, torch.from_numpy(x)), (a, x)),
        ("ij,jk->ik", (A, B), (a, b)),
        ("ij,ij->ij", (A, A), (a, a)),
    ):
        result = ns.einsum(expr, *operands)
        dense = as_dense(result)
        assert dense.dtype is torch.bool
        np.testing.assert_array_equal(dense.numpy(), np.einsum(expr, *arrays))
    many = ns.from_torch(torch.ones(300, 300, dtype=torch.bool).to_sparse_csr())
    assert bool((many @ torch.ones(300, dtype=torch.bool)).all())
    with pytest.raises(ns.UnsupportedError, match=r"only products of bool operands can be summed: count with \.to\(torch.int64\)"):
        ns.evaluate("y[i] = (A[i,j] + A[i,j]) * x[j]", A=A, x=torch.ones(7, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("expr", ["ij->", "ij->j", "ii->", "ii->i", "ij->ji"])
def test_sums_of_one_operand_of_integers_are_torchs(dtype: torch.dtype, expr: str) -> None:
    full = torch.full((40, 40), 100).to(dtype)
    expected, A = torch.einsum(expr, full), ns.from_torch(full, ns.CSR)
    for options in ({}, {"format": "dense"}, {"schedule": "parallelize()"}):
        result = ns.einsum(expr, A, **options)
        dense = as_dense(result)
        assert dense.dtype is expected.dtype
        assert torch.equal(dense, expected)


def test_explain_shows_the_kernel_that_sums_integers_in_int64() -> None:
    A = ns.from_torch(torch.ones(3, 3, dtype=torch.int8), ns.CSR)
    assert "int8" not in ns.explain("ij->i", A).source


def test_a_compiled_program_sums_integers_in_int64() -> None:
    A = ns.from_torch(torch.full((40, 40), 100, dtype=torch.int8), ns.CSR)
    summed = torch.compile(lambda: ns.einsum("ij->i", A, format="dense"), backend="aot_eager")()
    assert summed.dtype is torch.int64
    assert int(summed[0]) == 4000


# ---- operands of several data types


PROMOTED = {torch.complex32: torch.complex64}  # data types of torch that cannot be stored, and their replacements
MIXED = [(a, b) for a in STORED for b in STORED if a != b]


@pytest.mark.parametrize(("left", "right"), MIXED, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_operands_are_promoted_as_by_torch(left: torch.dtype, right: torch.dtype, interpreted: None) -> None:
    a, x, s = sparse(left, 5, 6, seed=1), numbers(right, 6), torch.tensor(2).to(right)
    A, wide = ns.from_torch(a, ns.CSR), torch.result_type(a, x)
    exact = torch.complex128 if wide.is_complex else torch.float64
    products = a.to(exact) * x.to(exact)
    results = {
        "matrix": (ns.einsum("ij,j->i", A, x), products.sum(1), wide),
        "statement": (ns.evaluate("y[i] = A[i,j] * x[j]", A=A, x=x), products.sum(1), wide),
        "entries": (ns.evaluate("R[i,j] = A[i,j] * x[j]", A=A, x=x), products, wide),
        "masked": (ns.einsum("ij,j->ij", A, x, mask=ns.from_torch(torch.ones(5, 6, dtype=torch.bool))), products, wide),
        "two sparse": (ns.einsum("ij,ij->ij", A, ns.from_torch(x.expand(5, 6).contiguous(), ns.CSR)), products, wide),
        "a scalar": (ns.einsum("ij,->ij", A, s), a.to(exact) * s.to(exact), PROMOTED.get(torch.result_type(a, s), torch.result_type(a, s))),
    }
    if not wide.is_complex:
        results["largest"] = (ns.einsum("ij,j->i", A, x, reduce="max"), products.amax(1), wide)
    for name, (result, expected, dtype) in results.items():
        assert result.dtype == dtype, name
        dense = as_dense(result)
        assert torch.equal(dense.to(exact), expected.to(dtype).to(exact)), name


def test_a_product_of_scores_and_one_hot_integers(interpreted: None) -> None:
    """F.one_hot returns int64, which is promoted beside float32."""
    scores, classes = numbers(torch.float32, 4, 3, 2).requires_grad_(), torch.tensor([2, 0, 1, 1])
    one_hot = torch.nn.functional.one_hot(classes, 3)
    with ns.ledger() as led:
        result = ns.einsum("bnd,bn->bd", scores, one_hot.to_sparse())
    assert [(entry.kind, entry.bytes) for entry in led] == [("copy", 4 * 4)]
    assert "torch.int64 values of (4, 3) as torch.float32" in str(led)
    assert torch.equal(result, scores[torch.arange(4), classes])
    result.sum().backward()
    assert torch.equal(scores.grad, one_hot[:, :, None].expand(4, 3, 2).float())


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_gradients_of_promoted_operands_have_their_data_types(reduce: str, interpreted: None) -> None:
    a, x = sparse(torch.float32, 5, 6, seed=1), numbers(torch.float64, 6).requires_grad_()
    values = ns.from_torch(a, ns.CSR).values.requires_grad_()
    A, full = ns.from_torch(a, ns.CSR).with_values(values), a.clone().requires_grad_()
    ns.einsum("ij,j->i", A, x, reduce=reduce).sum().backward()
    gradient = x.grad
    x.grad = None
    terms = full * x
    (terms.sum(1) if reduce == "sum" else terms.amax(1)).sum().backward()
    assert values.grad.dtype == torch.float32
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), full.grad * (a != 0))
    torch.testing.assert_close(gradient, x.grad)


def test_numbers_promote_integers(interpreted: None) -> None:
    integers = torch.tensor([[0, 2], [-3, 0]], dtype=torch.int32)
    A, x = ns.from_torch(integers, ns.CSR), torch.tensor([1, 2], dtype=torch.int32)
    cases = {
        "R[i,j] = 0.5 * A[i,j]": 0.5 * integers,
        "R[i,j] = s * A[i,j]": 0.25 * integers,
        "R[i,j] = 2j * A[i,j]": 2j * integers,
        "R[i,j] = (1 + 2j) * A[i,j] + x[j]": (1 + 2j) * integers + x,
        "R[i,j] = x[i] * x[j] * 0.5": x[:, None] * x * 0.5,
        "R[i,j] = 1e999 * stored(A[i,j])": torch.inf * (integers != 0),
    }
    for text, expected in cases.items():
        operands = {name: value for name, value in {"A": A, "x": x, "s": 0.25}.items() if f"{name}[" in text or f"{name} *" in text}
        result = ns.evaluate(text, **operands)
        result = as_dense(result)
        torch.testing.assert_close(result, expected.nan_to_num(0, torch.inf), msg=text)


def test_programs_promote_statement_by_statement(interpreted: None) -> None:
    """A product of integers is exact before it is multiplied by a float."""
    A, large = ns.from_torch(torch.tensor([[2**20 + 1, 0], [0, 3]]), ns.CSR), torch.tensor([2**20 - 1, 1])
    result = ns.evaluate("T[i,j] = A[i,j] * n[j]; R[i,j] = T[i,j] * x[j]", A=A, n=large, x=torch.ones(2, dtype=torch.float64))
    assert result.values.tolist() == [2.0**40 - 1, 3.0]

    @ns.fuse
    def scaled(A: ns.SparseTensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(A * x).sum(1)

    assert torch.equal(scaled(A, torch.tensor([0.5, 2.0])), torch.tensor([(2**20 + 1) * 0.5, 6.0]))


def test_explanations_name_converted_operands() -> None:
    A = ns.from_torch(torch.eye(3, dtype=torch.int64), ns.CSR)
    assert "A: 3x3 (CSR), int64, converted to float32" in str(ns.explain("ij,j->i", A, torch.ones(3)))


def test_uint8(interpreted: None) -> None:
    """Sums and products wrap around as in torch."""
    a = torch.tensor([[200, 0, 7], [0, 100, 0]], dtype=torch.uint8)
    A, x = ns.from_torch(a, ns.CSR), torch.tensor([2, 200, 3], dtype=torch.uint8)
    assert torch.equal((A + A).to_dense(), a + a)
    assert torch.equal(ns.einsum("ij,j->i", A, x), (a * x).sum(1).to(torch.uint8))
    assert torch.equal(A.sum(1), a.sum(1))
    assert A.sum(1).dtype == ns.einsum("ij->i", A).dtype == torch.int64
    assert torch.equal(torch.amax(A, 1), a.amax(1))
    assert torch.equal(torch.amin(A, 1), a.amin(1))
    empty = ns.from_torch(torch.zeros(2, 0, dtype=torch.uint8), ns.CSR)
    assert ns.einsum("ij->i", empty, reduce="max").tolist() == [0, 0]
    assert ns.einsum("ij->i", empty, reduce="min").tolist() == [255, 255]
    assert ns.evaluate("y[i] min= A[i,j]", A=empty.to_dense()).tolist() == [255, 255]


@pytest.mark.usefixtures("interpreted")
def test_products_of_booleans_are_reduced_with_or() -> None:
    """Products with a mask, with a schedule and in statements are reduced with or, too."""
    A, B, M = (torch.rand(9, 9) < 0.3 for _ in range(3))
    a, b, m = (ns.from_torch(dense, ns.CSR) for dense in (A, B, M))
    expected = (A.float() @ B.float()) > 0
    assert torch.equal(ns.einsum("ij,jk->ik", a, b).to_dense(), expected)
    assert torch.equal(ns.einsum("ij,jk->ik", a, b, mask=m).to_dense(), expected & M)
    assert torch.equal(ns.einsum("ij,jk->ik", a, b, schedule="workspace(hash)").to_dense(), expected)
    assert torch.equal(ns.evaluate("C[i,k] = A[i,j] * B[j,k]", A=a, B=b).to_dense(), expected)
    assert torch.equal(ns.evaluate("C[i,j] = A[i,j] * B[i,j]", A=a, B=b).to_dense(), A & B)
    assert torch.equal(ns.evaluate("y[i] = A[i,j] * x[j]", A=a, x=M[0]), (A & M[0]).any(1))


@pytest.mark.usefixtures("interpreted")
def test_uint8_refuses_functions_of_values_that_may_have_overflowed() -> None:
    """Values are reduced modulo 256 at the end, which is right for sums and products only."""
    a = torch.tensor([[16, 5]], dtype=torch.uint8)
    A = ns.from_torch(a, ns.CSR)
    for text in ("A[i,j] * A[i,j] // 3", "A[i,j] - A[j,i] < 0", "relu(A[i,j] + A[i,j])", "maximum(square(A[i,j]), A[i,j])", "A[i,j] > -1"):
        with pytest.raises(ns.UnsupportedError, match=r"may have overflowed: .*\.to\(torch\.int16\)"):
            ns.evaluate(f"y[i,j] = {text}", A=ns.from_torch(torch.full((1, 1), 16, dtype=torch.uint8), ns.CSR))
    with pytest.raises(ns.UnsupportedError, match=r"^the reduction min plus= reads a sum, difference or product of uint8 or bool values"):
        ns.einsum("ij,j->i", A, a[0], reduce="min_plus")
    for reduce in ("max", "min", "any"):
        with pytest.raises(ns.UnsupportedError, match="may have overflowed"):
            ns.einsum("ij,ij->i", A, A, reduce=reduce)
    assert ns.einsum("ij,ij->i", A.to(torch.int16), A.to(torch.int16), reduce="max").tolist() == [256]
    assert ns.einsum("ij,ij->i", A, A, reduce="prod").tolist() == [0]
    assert ns.evaluate("y[i,j] = A[i,j] // 3", A=A).to_dense().tolist() == [[5, 1]]
    assert ns.evaluate("y[i,j] = maximum(A[i,j], 7) * (A[i,j] > 6)", A=A).to_dense().tolist() == [[16, 0]]
    assert ns.evaluate("y[i,j] = -A[i,j] * A[i,j]", A=A).to_dense().tolist() == (-(a * a)).tolist()
    assert ns.evaluate("S[i,j] = A[i,j] * A[i,j]; y[i,j] = S[i,j] // 3", A=A).to_dense().tolist() == [[0, 8]]


@pytest.mark.parametrize("fmt", [None, ns.CSR], ids=["dense", "CSR"])
@pytest.mark.usefixtures("interpreted")
def test_whole_numbers_promote_truth_values(fmt: ns.Format | None) -> None:
    a = torch.tensor([[True, False], [False, True]])
    A = a if fmt is None else ns.from_torch(a, fmt)

    def evaluated(text: str, **numbers: int) -> torch.Tensor:
        result = ns.evaluate(f"y[i,j] = {text}", A=A, **numbers)
        return as_dense(result)

    for text, expected in {"A[i,j] * 2": a * 2, "A[i,j] + 2": a + 2, "A[i,j] * 2.5": a * 2.5, "A[i,j] != 0": a, "A[i,j]": a}.items():
        assert evaluated(text).dtype == expected.dtype
        assert torch.equal(evaluated(text), expected), text
    assert torch.equal(evaluated("A[i,j] * c", c=2), a * 2)
    assert torch.equal(evaluated("A[i,j] * c", c=True), a)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("fmt", [None, ns.CSR], ids=["dense", "CSR"])
@pytest.mark.usefixtures("interpreted")
def test_whole_numbers_outside_of_the_data_type_are_refused(fmt: ns.Format | None, dtype: torch.dtype) -> None:
    """Numbers in the text and named numbers are checked."""
    a = torch.tensor([[1, 0]], dtype=dtype)
    A = a if fmt is None else ns.from_torch(a, fmt)
    for text, numbers in (("A[i,j] + 300", {}), ("A[i,j] + c", {"c": 300})):
        with pytest.raises(ns.UnsupportedError, match=rf"the number 300 does not fit {dtype}"):
            ns.evaluate(f"y[i,j] = {text}", A=A, **numbers)


EXPRESSIONS = ["j,ij->", "ij,j->", "j,ij->i", "ij->", "ij->i", "ij,ij->", "ij,ik->", "ij,jk->", "ij,jk->ik", "i,j->", "ii->"]
DENSE = ["(i, j) -> (i: dense, j: dense)", "(i, j) -> (j: dense, i: dense)", ns.CSR]


@pytest.mark.parametrize("expr", EXPRESSIONS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, *INTEGERS])
def test_the_format_does_not_change_the_data_type(dtype: torch.dtype, expr: str, interpreted: None) -> None:
    """The result is torch's where torch computes it, and the same for tensors whose levels are all dense."""
    of_term = {"ij": sparse(dtype, 3, 3, seed=1), "i": numbers(dtype, 3), "jk": sparse(dtype, 3, 3, seed=2)}
    operands = [of_term.get(term, of_term["i" if len(term) == 1 else "ij"]) for term in expr.partition("->")[0].split(",")]
    results = []
    for format in DENSE:
        result = ns.einsum(expr, *(ns.from_torch(t, format) if t.ndim == 2 else t for t in operands))
        results.append(as_dense(result))
    exact = torch.einsum(expr, *(t.double() for t in operands))
    for result in results:
        assert result.dtype == results[-1].dtype
        expected = exact != 0 if result.dtype is torch.bool else exact.to(result.dtype)
        assert torch.equal(result, expected)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_quotients_by_0_are_those_of_torch(dtype: torch.dtype) -> None:
    """Compiled kernels: an infinity or NaN in each component."""
    dense = torch.tensor([[1 + 1j, 0, 2], [0, 0, 3j], [0, 1, 0]], dtype=dtype)
    ones = torch.tensor([[1, 1j, -1], [1 - 1j, 0, 2], [-1j, 1, 1]], dtype=dtype)
    for A in (ns.from_torch(dense, ns.CSR), ns.from_torch(dense, ns.BCSR(2, 2))):
        torch.testing.assert_close(as_parts(ones / A), as_parts(ones / dense), equal_nan=True)
        assert torch.equal((1 / A).isnan(), (1 / dense).isnan())
    stored = ns.from_coo(torch.ones(3, 3).nonzero().T, ones.flatten(), (3, 3), ns.CSR)
    torch.testing.assert_close(as_parts((stored / dense).to_dense()), as_parts(ones / dense), equal_nan=True)


def as_parts(values: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(values)


@pytest.mark.parametrize("text", ["y[i,j] = A[i,j] ** -1", "y[i] = A[i,j] ** -2", "y[i,j] = (A[i,j] + 1) ** -1.5 * 0"])
@pytest.mark.parametrize("format", [ns.CSR, "(i, j) -> (i: dense, j: dense)", None])
def test_negative_powers_of_integers_are_refused(format: str | None, text: str, interpreted: None) -> None:
    """As in torch; a number that is no integer makes the computation one of floats."""
    D = torch.tensor([[1, 2], [3, 4]])
    A = D if format is None else ns.from_torch(D, format)
    if "1.5" in text:
        assert ns.evaluate(text, A=A).dtype == torch.float32
    else:
        with pytest.raises(ns.UnsupportedError, match=r"a negative power of .*: convert the operands with"):
            ns.evaluate(text, A=A)
