"""Values that are stored in another order than the loops read them: read through an array of places, or gathered first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.ir.format import CSF, Format
from numscorch.ir.index import operands_of
from numscorch.schedule import tuning
from numscorch.tensors.pattern import Pattern

PRODUCTS = {  # expressions, and formats of the sparse operands
    "ij,j->i": ("ds10", "so10", "ss10", "oo10", "uCSC"),
    "ij,jk->ik": ("ds10", "so10", "ss10", "oo10", "uCSC"),
    "ij,kj->ki": ("ds10", "oo10", "sd10"),
    "ijk,kl->ijl": ("sss201", "ooo120", "dss210"),
    "ijk,jl,kl->il": ("sss120", "sss201", "ooo210", "dss102"),
}


def format_of(text: str) -> ns.Format:
    """A format from the letters of its levels and its mode order; ``uCSC`` has columns in no order."""
    if text == "uCSC":
        return ns.Format("(i, j) -> (j: dense, i: compressed(ordered=False))")
    letters = text.rstrip("0123456789")
    return Format(letters, tuple(map(int, text[len(letters) :])))


def stored(dense: np.ndarray, fmt: ns.Format, index_dtype: torch.dtype = torch.int32) -> ns.SparseTensor:
    """The nonzeros of an array, with index arrays of this type; unordered columns are reversed."""
    indices = np.argwhere(dense).T.reshape(dense.ndim, -1)
    ordered = fmt if fmt.is_ordered else ns.CSC
    A = ns.from_coo(torch.from_numpy(indices), torch.from_numpy(dense[tuple(indices)]), dense.shape, ordered)
    arrays = [[array.to(index_dtype) for array in level] for level in A.pattern.arrays]
    if not fmt.is_ordered:
        pos, crd = arrays[1]
        columns = np.searchsorted(pos.numpy(), np.arange(A.nnz), side="right") - 1
        places = pos[columns] + pos[columns + 1] - 1 - torch.arange(A.nnz, dtype=index_dtype)
        return ns.SparseTensor(Pattern(fmt, dense.shape, ((), (pos, crd[places]))), A.values[places])
    return ns.SparseTensor(Pattern(fmt, dense.shape, tuple(map(tuple, arrays))), A.values)


def reordered(expr: str, *operands: object) -> list[str]:
    """The operands that the kernel reads through an array of places."""
    stmt = ns.explain(expr, *operands).steps[-1].stmt
    return [access.tensor.name for access in operands_of(stmt) if access.tensor.is_reordered]


def numbers(rng: random.Random, shape: Sequence[int], density: float, dtype: str) -> np.ndarray:
    """Small integers, whose sums are exact in any order."""
    generator = np.random.default_rng(rng.randrange(1 << 30))
    return (generator.integers(-4, 5, shape) * (generator.random(shape) < density)).astype(dtype)


@pytest.mark.parametrize("expr", PRODUCTS)
@pytest.mark.parametrize("far", [0, 4])
def test_products_of_any_format_equal_dense_ones(expr: str, far: int, fresh_plans: pytest.MonkeyPatch, scale: Callable[[int], int]) -> None:
    fresh_plans.setattr(tuning, "COST_TRANSPOSE", 0.01)
    fresh_plans.setattr(tuning, "FAR_VALUES", far)
    rng, used = random.Random(expr), 0
    first, *others = expr.split("->")[0].split(",")
    for text in PRODUCTS[expr] * scale(60):
        sizes = {name: rng.choice((0, 1, 3, 8, 19)) for name in "ijkl"}
        dtype, index_dtype = rng.choice(("float32", "float64", "int64", "complex64")), rng.choice((torch.int32, torch.int64))
        dense = numbers(rng, [sizes[name] for name in first], rng.choice((0.1, 0.6)), dtype)
        factors = [numbers(rng, [sizes[name] for name in term], 1.0, dtype) for term in others]
        operands = [stored(dense, format_of(text), index_dtype), *map(torch.from_numpy, factors)]
        used += bool(reordered(expr, *operands))
        result, expected = ns.einsum(expr, *operands, format="dense"), np.einsum(expr, dense, *factors)
        np.testing.assert_array_equal(result, expected, err_msg=f"{text} {sizes} {dtype}")
    assert used


def csc(rows: int = 30, columns: int = 40) -> tuple[ns.SparseTensor, torch.Tensor]:
    dense = numbers(random.Random(0), (rows, columns), 0.2, "float32")
    return stored(dense, ns.CSC), torch.from_numpy(dense)


@pytest.mark.parametrize("far", [0, 4])
def test_compiled_kernels_read_values_in_registers_through_the_places(far: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COST_TRANSPOSE", 0.01)
    fresh_plans.setattr(tuning, "FAR_VALUES", far)
    A, D = csc(300, 200)
    x, X = torch.arange(200.0), torch.arange(200.0 * 16).reshape(200, 16)
    for expr, B in (("ij,j->i", x), ("ij,jk->ik", X)):
        assert reordered(expr, A, B) == ["A"]
        assert ("prefetch(A_vals, A_order[" in ns.explain(expr, A, B).source) == (far == 0)
        assert torch.equal(ns.einsum(expr, A, B), torch.einsum(expr, D, B))


def test_values_that_change_without_a_trace_are_read_anew(fresh_plans: pytest.MonkeyPatch) -> None:
    A, D = csc()
    X = torch.arange(40.0 * 8).reshape(40, 8)
    assert reordered("ij,jk->ik", A, X) == ["A"]
    assert torch.equal(A @ X, D @ X)
    A.values.data.mul_(2)
    assert torch.equal(A @ X, 2 * D @ X)
    A.values.numpy()[:] *= 3
    assert torch.equal(A @ X, 6 * D @ X)
    with torch.inference_mode():
        B = A.with_values(A.values.clone())
        assert torch.equal(B @ X, 6 * D @ X)
        B.values.mul_(2)
        assert torch.equal(B @ X, 12 * D @ X)
    A.values = A.values / 6
    assert torch.equal(A @ X, D @ X)


def test_stored_zeros_and_nans_keep_their_places(fresh_plans: pytest.MonkeyPatch) -> None:
    A, _ = csc()
    A.values[::3], A.values[1::3] = 0.0, float("nan")
    torch.testing.assert_close(A @ torch.ones(40, 8), A.to_dense() @ torch.ones(40, 8), equal_nan=True)
    assert A.to_dense().isnan().any()


def test_gradients(fresh_plans: pytest.MonkeyPatch) -> None:
    A, _ = csc()
    X = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)
    values = A.values.double().requires_grad_()

    def product(values: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        return ns.einsum("ij,jk->ik", A.with_values(values), X)

    assert torch.autograd.gradcheck(product, (values, X), fast_mode=True)


def test_no_values_are_copied(fresh_plans: pytest.MonkeyPatch) -> None:
    A, _ = csc()
    with ns.ledger() as led:
        A @ torch.ones(40, 8)
    assert [entry.kind for entry in led] == ["transposition"]


def test_values_that_are_read_often_are_gathered(fresh_plans: pytest.MonkeyPatch) -> None:
    D = torch.ones(60, 60)
    A = ns.from_torch(D, ns.CSR)
    why = next(step.why for step in ns.explain("ij,kj->ik", A, A).steps if step.name == "order_values")
    assert "B is stored as CSR, and each value is read about 64 times: gathered first" in why
    assert not reordered("ij,kj->ik", A, A)
    assert torch.equal(ns.einsum("ij,kj->ik", A, A).to_dense(), D @ D.T)


def test_values_that_are_looked_up_in_vain_count_as_read(fresh_plans: pytest.MonkeyPatch) -> None:
    """An intersection of three matrices has few terms, but walks the columns of B once for each entry of C."""
    D = (torch.rand(200, 200, generator=torch.Generator().manual_seed(0)) < 0.05).float()
    A, B, C = (ns.from_torch(D.roll(at, 0), ns.CSR) for at in range(3))
    explained = ns.explain("ij,jk,ik->", A, B, C, schedule="reorder(i, k, j)")
    why = next(step.why for step in explained.steps if step.name == "order_values")
    assert why == "B is stored as CSR, and each value is read about 9.14 times: gathered first"


def test_operands_with_one_pattern_share_the_places(fresh_plans: pytest.MonkeyPatch) -> None:
    """The second operand is read at the positions of the first one."""
    dense = numbers(random.Random(1), (6, 7, 8), 0.4, "float64")
    A = stored(dense, Format("sss", (2, 1, 0)))
    B, x = A.with_values(A.values + 1), torch.arange(6.0, dtype=torch.float64)
    fresh_plans.setattr(tuning, "COST_TRANSPOSE", 0.01)
    squared = torch.from_numpy(dense * (dense + 1))
    assert ns.einsum("ijk,ijk,i->", A, B, x).item() == torch.einsum("ijk,i->", squared, x).item()


def test_mttkrp_of_every_mode(fresh_plans: pytest.MonkeyPatch) -> None:
    dense = numbers(random.Random(2), (6, 7, 8), 0.4, "float64")
    A = stored(dense, CSF(3))
    factors = [torch.from_numpy(numbers(random.Random(at), (size, 5), 1.0, "float64")) for at, size in enumerate(dense.shape)]
    for mode, (name, others) in enumerate(zip("ijk", ("jk", "ik", "ij"), strict=True)):
        rest = [factor for at, factor in enumerate(factors) if at != mode]
        expr = f"ijk,{others[0]}r,{others[1]}r->{name}r"
        np.testing.assert_array_equal(ns.einsum(expr, A, *rest), np.einsum(expr, dense, *map(np.asarray, rest)))
