"""Call forms of einsum, out=, gradients, and values that are NaN or infinite."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")


@pytest.fixture
def A() -> ns.SparseTensor:
    return ns.from_torch(torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 1.0]]))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(3, 2)


EXPECTED = torch.tensor([[4.0, 6.0], [4.0, 8.0]])


def test_call_forms(A: ns.SparseTensor, x: torch.Tensor) -> None:
    assert torch.equal(ns.einsum("ij,jk->ik", A, x), EXPECTED)
    assert torch.equal(ns.einsum("ij,jk->ik", [A, x]), EXPECTED)
    assert torch.equal(ns.einsum("ij,jk->ik", (A, x)), EXPECTED)
    assert torch.equal(ns.einsum(A, [0, 1], x, [1, 2], [0, 2]), EXPECTED)
    assert torch.equal(ns.einsum(A, [0, 1], x, [1, 2]), EXPECTED)
    assert torch.equal(ns.einsum(A, [..., 0], x, [0, 1], [..., 1]), EXPECTED)
    assert torch.equal(torch.einsum("ij,jk->ik", A, x), EXPECTED)
    assert torch.equal(A @ x, EXPECTED)


def test_results_in_formats_without_a_torch_layout_are_sparse_tensors() -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    result = ns.einsum("ij,ij->ij", dense.to_sparse_csr(), dense, format=ns.DCSR)
    assert isinstance(result, ns.SparseTensor)
    assert result.format == ns.DCSR
    assert ns.einsum("ij,ij->ji", dense.to_sparse(), dense).to_dense().equal((dense * dense).T)


def test_the_expression_may_be_a_subclass_of_str(A: ns.SparseTensor, x: torch.Tensor) -> None:
    class Text(str):
        __slots__ = ()

    assert torch.equal(ns.einsum(Text("ij,jk->ik"), A, x), EXPECTED)


@pytest.mark.parametrize(
    "make", [lambda: torch.full((2, 2), 9.0), lambda: torch.full((2, 2), 9.0).T, lambda: torch.full((2, 4), 9.0)[:, ::2]]
)
def test_out_receives_a_dense_result(A: ns.SparseTensor, x: torch.Tensor, make: object) -> None:
    out = make()
    assert ns.einsum("ij,jk->ik", A, x, out=out) is out
    assert torch.equal(out, EXPECTED)


def test_out_may_be_an_operand(A: ns.SparseTensor) -> None:
    square = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 1.0]]))
    x = torch.arange(4.0).reshape(2, 2)
    expected = square.to_dense() @ x
    ns.einsum("ij,jk->ik", square, x, out=x)
    assert torch.equal(x, expected)


def test_out_receives_a_kept_pattern(A: ns.SparseTensor) -> None:
    out = A.with_values(torch.zeros(3))
    assert ns.einsum("ij,ij->ij", A, torch.full((2, 3), 5.0), out=out) is out
    assert torch.equal(out.values, 5 * A.values)
    ns.einsum("ij,ij->ij", A, torch.full((2, 3), 2.0), out=A)
    assert A.values.tolist() == [4.0, 6.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", [None, ns.CSR, ns.CSC], ids=str)
@pytest.mark.parametrize("expr", ["ij,kj->ik", "ij,ij->ij", "ij,ij->ji"])
def test_a_strided_out_receives_a_sparse_result(A: ns.SparseTensor, expr: str, fmt: ns.Format | None, dtype: torch.dtype) -> None:
    """The result may have a new, a kept or a converted pattern."""
    A = A.to(dtype)
    expected = torch.einsum(expr, A.to_dense(), A.to_dense())
    out = torch.full(expected.shape, 9.0, dtype=dtype)
    assert ns.einsum(expr, A, A, format=fmt, out=out) is out
    assert torch.equal(out, expected)


def test_a_sparse_out_keeps_its_format(A: ns.SparseTensor) -> None:
    with pytest.raises(ns.UnsupportedError, match="out and format=CSC together"):
        ns.einsum("ij,ij->ij", A, torch.ones(2, 3), format=ns.CSC, out=A)


@pytest.mark.parametrize("shape", [(2, 3), (4, 2, 2), (2,), (1, 2, 2)])
@pytest.mark.parametrize("dense", [False, True])
def test_out_of_another_shape_is_refused(A: ns.SparseTensor, x: torch.Tensor, shape: tuple[int, ...], dense: bool) -> None:
    """``out`` is not broadcast into, and does not change."""
    out = torch.full(shape, 9.0)
    with pytest.raises(ns.SizeError, match="out has shape"):
        ns.einsum("ij,jk->ik", A.to_dense() if dense else A, x, out=out)
    assert bool((out == 9.0).all())


def test_out_of_another_kind_is_refused(A: ns.SparseTensor, x: torch.Tensor) -> None:
    with pytest.raises(ns.UnsupportedError, match="out must be a dense tensor for this expression, not SparseTensor"):
        ns.einsum("ij,jk->ik", A, x, out=A)
    with pytest.raises(ns.UnsupportedError, match="out must be a SparseTensor or a dense tensor for this expression, not Tensor"):
        ns.einsum("ij,ij->ij", A, torch.ones(2, 3), out=torch.zeros(2, 3).to_sparse())
    with pytest.raises(ns.SizeError, match="out must share the pattern"):
        ns.einsum("ij,ij->ij", A, torch.ones(2, 3), out=ns.from_torch(torch.ones(2, 3)))
    with pytest.raises(ns.NumscorchError, match="out"):
        ns.einsum("ij,jk->ik", A, x, out=torch.zeros(2, 2).to_sparse_csr())


# ---- gradients


def test_gradients_flow_unless_they_are_off(A: ns.SparseTensor, x: torch.Tensor) -> None:
    weights = A.with_values(A.values.clone().requires_grad_())
    for operands in ((A, x.clone().requires_grad_()), (weights, x), (A, torch.nn.Parameter(x)), (A.to_torch().requires_grad_(), x)):
        result = ns.einsum("ij,jk->ik", *operands)
        assert torch.equal(result, EXPECTED)
        assert result.requires_grad
        with pytest.raises(ns.UnsupportedError, match="out= takes no gradients"):
            ns.einsum("ij,jk->ik", *operands, out=torch.empty_like(EXPECTED))
        with torch.no_grad():
            result = ns.einsum("ij,jk->ik", *operands)
        assert torch.equal(result, EXPECTED)
        assert not result.requires_grad


def test_parameters_under_no_grad_and_inference(A: ns.SparseTensor, x: torch.Tensor) -> None:
    weight = ns.nn.Parameter(x)
    with torch.no_grad():
        assert torch.equal(A @ weight, EXPECTED)
        masked = ns.einsum("ij,ij->ij", A.with_values(torch.nn.Parameter(A.values)), torch.ones(2, 3))
        assert not masked.values.requires_grad
    with torch.inference_mode():
        assert torch.equal(A @ weight, EXPECTED)
    assert weight.grad is None


def test_all_dense_expressions_keep_their_gradient(x: torch.Tensor) -> None:
    x = x.requires_grad_()
    ns.einsum("ij,ij->", x, x).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach())


# ---- NaN and infinity


def test_stored_values_meet_nan_and_inf(A: ns.SparseTensor) -> None:
    x = torch.tensor([1.0, float("inf"), float("nan")])
    result = ns.einsum("ij,j->i", A, x)
    assert result[0] == float("inf")
    assert result[1].isnan()


def test_unstored_entries_are_not_multiplied() -> None:
    """0 * nan is computed for a stored 0, and not for an unstored entry."""
    x = torch.tensor([float("nan"), 1.0])
    unstored = ns.from_coo([[0], [1]], [2.0], (1, 2), format=ns.CSR)
    stored = ns.from_coo([[0, 0], [0, 1]], [0.0, 2.0], (1, 2), format=ns.CSR)
    assert ns.einsum("ij,j->i", unstored, x).tolist() == [2.0]
    assert ns.einsum("ij,j->i", stored, x).isnan().all()


@pytest.mark.parametrize("columns", [1, 3, 8, 40])
def test_nan_stays_in_its_column(A: ns.SparseTensor, columns: int) -> None:
    x = torch.ones(3, columns)
    x[1, 0] = float("nan")
    result = ns.einsum("ij,jk->ik", A, x)
    assert result[0, 0].isnan()
    assert not result[0, 1:].isnan().any()
    assert not result[1].isnan().any()


def test_results_are_new_memory(A: ns.SparseTensor) -> None:
    first, second = ns.einsum("ij,j->i", A, torch.ones(3)), ns.einsum("ij,j->i", A, torch.ones(3))
    assert first.data_ptr() != second.data_ptr()
    same = ns.einsum("ij->ij", A)
    same.values.zero_()
    assert A.values.tolist() == [2.0, 3.0, 1.0]


def test_in_place_changes_of_values_are_detected(A: ns.SparseTensor, x: torch.Tensor) -> None:
    ns.einsum("ij,jk->ik", A, x)
    A.values.mul_(2)
    assert torch.equal(ns.einsum("ij,jk->ik", A, x), 2 * EXPECTED)
    A.values = A.values * 2
    assert torch.equal(ns.einsum("ij,jk->ik", A, x), 4 * EXPECTED)
    A.values.resize_(0)
    A.values.resize_(3).fill_(1.0)
    assert torch.equal(ns.einsum("ij,j->i", A, torch.ones(3)), torch.tensor([1.0, 2.0]))


def test_a_sum_over_blocks_below_a_transposed_result() -> None:
    """Coordinates of blocks depend on a variable that the result lacks, so its order does not constrain them."""
    D = (torch.arange(18).reshape(3, 2, 3) % 5).double()
    A = ns.from_torch(D).to(ns.Format("(i, j, k) -> (i: compressed, j: dense, k // 2: compressed, k % 2: dense)"))
    result = ns.einsum("ijk->ji", A)
    assert isinstance(result, ns.SparseTensor)
    assert torch.equal(result.to_dense(), D.sum(2).T)


@pytest.mark.parametrize("format", [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(1, 2)], ids=str)
@pytest.mark.parametrize("expr", ["ij,i->i", "ij,jk,i->i", "ij,jk->ij", "ij,jk,ik->i"])
def test_a_sum_without_terms_is_not_multiplied(expr: str, format: ns.Format) -> None:
    """An empty row times an infinite factor is 0, even if the sum over the row is computed separately."""
    arrays = [torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [1.0, 1.0]])]
    operands = [ns.from_torch(array, format) for array in arrays][: expr.count(",") + 1]
    if expr.endswith(",i->i"):
        operands[-1] = torch.tensor([float("inf"), 1.0])
    else:
        operands[0].values[-1] = float("inf")
    terms = ns.einsum(expr, *operands, format="dense")
    assert not terms.isnan().any()


@pytest.mark.parametrize("name", ["X", "B", "x"])
def test_any_letter_may_be_an_index_of_blocks(name: str) -> None:
    D = (torch.arange(30).reshape(2, 5, 3) % 4).double()
    A = ns.from_torch(D, ns.Format("(i, j, k) -> (i: compressed, j // 2: compressed, k // 4: bitmap, j % 2: bitmap, k % 4: compressed)"))
    assert torch.equal(ns.einsum(f"U{name}M->MU{name}", A, format="dense"), D.permute(2, 0, 1))
