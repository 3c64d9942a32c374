"""einsum and evaluate with sparsifier=: results equal those of a later sparsify, and the whole result is never stored."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.codegen.source import generate
from numscorch.frontend.fused_problem import fused_problem
from numscorch.frontend.requests import Operand
from numscorch.ir.format import CSR, dense as dense_format, sorted_format
from numscorch.programs.fusion import OperandKind, fused_request
from numscorch.runtime.plans import PROCESS, uncompiled
from numscorch.schedule import schedule
from numscorch.schedule.facts import Target
from numscorch.sparsifiers.results import pruning, ruled
from numscorch.sparsify import compose, keep_all, magnitude, n_m, random, register_sparsifier, sparsify, threshold, topk

G = torch.Generator().manual_seed(0)


def sparse(rows: int, columns: int, each: int, dtype: torch.dtype = torch.float32) -> ns.SparseTensor:
    dense = torch.randn(rows, columns, generator=G, dtype=dtype)
    return ns.from_torch(dense * (torch.rand(rows, columns, generator=G) < each / columns), ns.CSR)


def dense(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=G, dtype=dtype)


def programs(dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    """Programs with their operands."""
    A, B, S = sparse(50, 40, 4, dtype), dense(40, 37, dtype=dtype), sparse(50, 40, 6, dtype)
    rows, columns = dense(50, 8, dtype=dtype), dense(40, 8, dtype=dtype)
    return {
        "C[i,k] = A[i,j] * B[j,k]": {"A": A, "B": B},
        "C[k,i] = A[i,j] * B[j,k]": {"A": A, "B": B},
        "C[i,k] = relu(A[i,j] * B[j,k] + b[k])": {"A": A, "B": B, "b": dense(37, dtype=dtype)},
        "C[i,j] = A[i,j] * (Q[i,k] * K[j,k])": {"A": A, "Q": rows, "K": columns},
        "C[i,j] = A[i,j] + D[i,j]": {"A": A, "D": dense(50, 40, dtype=dtype)},
        "C[i,j] = A[i,j] + S[i,j]": {"A": A, "S": S},
        "C[i,k] = A[i,j] * S[k,j]": {"A": A, "S": S},
        "C[i,k] = A[i,j] * W[j,f] * V[f,k]": {"A": A, "W": columns, "V": dense(8, 5, dtype=dtype)},
        "C[h,i,k] = A[i,j] * X[h,j,k]": {"A": A, "X": dense(3, 40, 9, dtype=dtype)},
        "C[i,k] = x[i] * y[k]": {"x": dense(50, dtype=dtype), "y": dense(9, dtype=dtype)},
        "C[i] = A[i,j] * x[j]": {"A": A, "x": dense(40, dtype=dtype)},
        "T[i,k] = A[i,j] * B[j,k]; l[i] = T[i,k]; C[i,k] = T[i,k] / (l[i] * l[i] + 1)": {"A": A, "B": B},
    }


@register_sparsifier(kind="streaming", name="tails of results")
def tails(t: torch.Tensor) -> torch.Tensor:
    return (t > 1) | ~(t.abs() * 2 - 3 <= t) | torch.isnan(t)


@register_sparsifier(kind="streaming", name="zeros of results too")
def not_large(t: torch.Tensor) -> torch.Tensor:
    return (t < 2) & (t > -3)


@register_sparsifier(kind="streaming", name="by way of numpy")
def by_numpy(t: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(t.float().numpy() > 1)


FUSED: dict[str, Any] = {
    "threshold": threshold(1.0),
    "registered": tails,
    "by name": "zeros of results too",
    "composed": compose(threshold(1.0), keep_all(), not_large),
    "2:4": n_m(2, 4),
    "1:3": n_m(1, 3),
    "3:16": n_m(3, 16),
}
UNFUSED: dict[str, tuple[Any, str]] = {
    "keep_all": (keep_all(), "it keeps every value"),
    "magnitude": (magnitude(0.5), "it is materializing"),
    "random": (random(0.5, seed=0), "it is materializing"),
    "a callable": (lambda t: t > 0, "it is materializing"),
    "topk": (topk(2), "it is blocking, and kernels keep the largest entries of rows only in products of sparse tensors without blocks"),
    "of 4 rows": (n_m(1, 2, rows=4), "it is blocking, and kernels support only the blocks of n_m"),
    "numpy": (by_numpy, "it does not return a comparison|raises|float of a tensor"),
}


def rounded(operands: dict[str, Any]) -> dict[str, Any]:
    """Rounded operands: sums are exact, and many values are equal."""
    return {name: (operand * 2).round() for name, operand in operands.items()}


def check_same(text: str, operands: dict[str, Any], sparsifier: Any) -> ns.SparseTensor:
    """The result equals that of a later sparsify bit for bit: format, index arrays and values.

    Among zeros that a product stores, ``topk`` of a complete matrix chooses differently, since there unstored ones compete.
    """
    result = ns.evaluate(text, sparsifier=sparsifier, **operands)
    expected = sparsify(ns.evaluate(text, **operands), sparsifier)
    assert sorted_format(result.format) == sorted_format(expected.format) and result.dtype == expected.dtype
    result, expected = (tensor.to(sorted_format(tensor.format)) for tensor in (result, expected))
    if isinstance(sparsifier, topk):
        result, expected = (tensor.eliminate_zeros() for tensor in (result, expected))
    for arrays, expected_arrays in zip(result.pattern.arrays, expected.pattern.arrays, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(arrays, expected_arrays, strict=True))
    assert torch.equal(result.values, expected.values)
    return result


def has_pruning_plan() -> bool:
    """Whether any cached plan prunes its result in the kernel."""
    problems = [getattr(plan, "problem", None) for plan in PROCESS.plans.values()]
    return any(problem is not None and problem.result.prunes for problem in problems)


def check(text: str, operands: dict[str, Any], bound: float) -> ns.SparseTensor:
    result = ns.evaluate(text, sparsifier=threshold(bound), **operands)
    expected = sparsify(ns.evaluate(text, **operands), threshold(bound))
    assert result.format == sorted_format(expected.format)
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result.to_dense(), expected.to_dense())
    assert result.nnz == expected.nnz or abs(result.nnz - expected.nnz) <= 1  # a sum in another order may round differently
    return result


@pytest.mark.parametrize("bound", [0, 0.4, 2.0, 1e9])
@pytest.mark.parametrize(
    ("text", "dtype"), [*((text, torch.float32) for text in programs(torch.float32)), ("C[i,k] = A[i,j] * B[j,k]", torch.float64)]
)
def test_a_threshold_keeps_the_entries_it_keeps_of_the_whole_result(text: str, dtype: torch.dtype, bound: float) -> None:
    check(text, programs(dtype)[text], bound)


@pytest.mark.parametrize("text", programs(torch.float32))
def test_every_access_is_within_bounds(text: str) -> None:
    with uncompiled():
        check(text, programs(torch.float32)[text], 0.5)


@pytest.mark.filterwarnings("ignore::numscorch.DenseFallbackWarning")
@pytest.mark.parametrize("sparsifier", [*FUSED.values(), *(sparsifier for sparsifier, _ in UNFUSED.values())], ids=[*FUSED, *UNFUSED])
@pytest.mark.parametrize("text", [text for text in programs(torch.float32) if "/" not in text])
def test_every_sparsifier_keeps_the_entries_it_keeps_of_the_whole_result(text: str, sparsifier: Any) -> None:
    if getattr(sparsifier, "rows", 1) > 1 and text.startswith("C[i] "):
        pytest.skip("a vector has no neighbouring rows")
    with uncompiled():
        check_same(text, rounded(programs(torch.float32)[text]), sparsifier)


@pytest.mark.parametrize("sparsifier", FUSED.values(), ids=FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_machine_code_keeps_the_same(dtype: torch.dtype, sparsifier: Any) -> None:
    text, operands = "C[i,k] = A[i,j] * B[j,k]", rounded(programs(dtype)["C[i,k] = A[i,j] * B[j,k]"])
    PROCESS.plans.clear()
    check_same(text, operands, sparsifier)
    assert has_pruning_plan()


@pytest.mark.filterwarnings("ignore::numscorch.DenseFallbackWarning")
@pytest.mark.parametrize(("sparsifier", "reason"), UNFUSED.values(), ids=UNFUSED)
def test_explain_says_why_a_sparsifier_is_applied_afterwards(sparsifier: Any, reason: str) -> None:
    A, B = sparse(50, 40, 4), dense(40, 37)
    text = str(ns.explain("ij,jk->ik", A, B, sparsifier=sparsifier))
    assert text.startswith("evaluate A[i,j] * B[j,k]")
    assert re.search(f"sparsifies the complete result, not in its kernel: .*({reason})", text)


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 16, 17, 37, 64, 131])
@pytest.mark.parametrize("sparsifier", [n_m(2, 4), threshold(1.0), not_large], ids=str)
def test_rows_of_any_length_are_appended_in_registers(columns: int, sparsifier: Any) -> None:
    with uncompiled():
        check_same("C[i,k] = A[i,j] * B[j,k]", rounded({"A": sparse(9, 20, 4), "B": dense(20, columns)}), sparsifier)


@pytest.mark.parametrize("columns", [2, 3, 8])
def test_machine_code_of_narrow_rows_keeps_the_same(columns: int) -> None:
    operands = rounded({"A": sparse(9, 20, 4), "B": dense(20, columns)})
    for sparsifier in (threshold(1.0), n_m(2, 4), not_large):
        check_same("C[i,k] = A[i,j] * B[j,k]", operands, sparsifier)


def test_a_block_keeps_the_last_of_equal_values() -> None:
    A, B = ns.eye(3, format=ns.CSR), torch.tensor([[1.0, -1.0, 1.0, 0.0, 0.0], [0.0] * 5, [5.0, 1.0, -7.0, 3.0, 2.0]])
    result = ns.einsum("ij,jk->ik", A, B, sparsifier=n_m(2, 4), format=ns.CSR)
    assert result.pattern.arrays[1][1].tolist() == [1, 2, 4, 2, 3, 4, 0, 2, 4]


def test_constants_of_sparsifiers_share_one_kernel() -> None:
    A, B = sparse(50, 40, 4), dense(40, 37)
    counts = []
    for t in (0.1, 0.2, 0.3):
        above = register_sparsifier(lambda v, t=t: v > t, kind="streaming", name=f"above {t}", check=False)
        assert ns.einsum("ij,jk->ik", A, B, sparsifier=above).nnz == sparsify(ns.einsum("ij,jk->ik", A, B), above).nnz
        counts.append(len(PROCESS.plans))
    assert counts[0] == counts[-1]


def test_a_sparsifier_of_16_bit_results_sees_rounded_values() -> None:
    A, B = sparse(50, 40, 4).to(torch.bfloat16), dense(40, 37).bfloat16()
    check_same("C[i,k] = A[i,j] * B[j,k]", {"A": A, "B": B}, tails)
    assert "values are bfloat16" in str(ns.explain("ij,jk->ik", A, B, sparsifier=tails))


def test_results_computed_by_columns_are_stored_by_rows() -> None:
    operands = rounded({"A": sparse(30, 20, 3).to(ns.CSC), "D": dense(30, 20), "B": dense(20, 7)})
    check("C[i,j] = A[i,j] * D[i,j]", {name: operands[name] for name in "AD"}, 1.0)
    check("C[i,k] = A[i,j] * B[j,k]", {name: operands[name] for name in "AB"}, 1.0)


def test_threads_append_to_disjoint_parts() -> None:
    A, B = sparse(6000, 300, 9), dense(300, 64)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(check("C[i,k] = A[i,j] * B[j,k]", {"A": A, "B": B}, 3.0))
    torch.set_num_threads(2)
    assert torch.equal(results[0].values, results[1].values)


@pytest.mark.parametrize("sparsifier", [threshold(0.4), n_m(2, 4), magnitude(0.9), tails], ids=str)
def test_a_fused_function_may_end_in_sparsify(sparsifier: Any) -> None:
    def layer(A: Any, X: Any, b: Any) -> Any:
        return sparsify(torch.relu(A @ X + b), sparsifier, "csr")

    fused, operands = ns.fuse(layer), rounded({"A": sparse(30, 20, 3), "X": dense(20, 16), "b": dense(16)})
    result, expected = fused(**operands), layer(**operands)
    assert torch.equal(result.pattern.arrays[1][1], expected.pattern.arrays[1][1]) and torch.equal(result.values, expected.values)
    text = str(fused.explain(**operands))
    assert "layer is this program" in text and ("kept" in text or "it is materializing" in text)


def test_fused_functions_that_use_a_sparsified_tensor_run_unfused() -> None:
    operands = {"A": sparse(30, 20, 3), "X": dense(20, 16)}
    afterwards = ns.fuse(lambda A, X: torch.relu(sparsify(A @ X, threshold(0.4))))
    method = ns.fuse(lambda A, X: sparsify(A @ X, threshold(0.4)).to_dense() * 2)
    expected = torch.where((operands["A"] @ operands["X"]).abs() > 0.4, operands["A"] @ operands["X"], 0.0)
    torch.testing.assert_close(afterwards(**operands).to_dense(), expected.relu())
    torch.testing.assert_close(method(**operands), expected * 2)
    for function in (afterwards, method):
        assert "of a sparsified tensor: only the result of a function" in str(function.explain(**operands))


def test_einsum_takes_a_sparsifier_and_a_format() -> None:
    A, B = sparse(30, 20, 3), dense(20, 6)
    expected = sparsify(ns.einsum("ij,jk->ik", A, B), threshold(1.0))
    for format in (None, ns.CSC, ns.COO(2), ns.BCSR(2, 3)):
        result = ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(1.0), format=format)
        assert result.format == (format or ns.CSR)
        assert torch.equal(result.to_dense(), expected.to_dense())
    tenth = ns.einsum("ij,jk->ik", A, B, sparsifier=magnitude(0.9))
    assert tenth.nnz == round(0.1 * 180) and tenth.format == ns.CSR
    with pytest.raises(ns.UnsupportedError, match="sparsifier= together with out=, reduce="):
        ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(1.0), reduce="max")


def test_gradients_flow_to_kept_entries() -> None:
    A, B = sparse(30, 20, 3), dense(20, 6).requires_grad_()
    ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(1.0)).values.sum().backward()
    gradient, B.grad = B.grad, None
    whole = ns.einsum("ij,jk->ik", A, B)
    torch.where(whole.abs() > 1.0, whole, 0.0).sum().backward()
    torch.testing.assert_close(gradient, B.grad)


@pytest.mark.parametrize("sparsifier", [threshold(0.5), n_m(1, 2), compose(tails, threshold(0.5)), magnitude(0.5)], ids=str)
def test_nan_is_refused_as_sparsify_refuses_it(sparsifier: Any) -> None:
    A, B = ns.from_torch(torch.eye(3), ns.CSR), torch.tensor([[1.0, 2.0, 3.0], [torch.nan, 0.1, 0.0], [0.0, 5.0, 1.0]])
    with pytest.raises(ns.OperandError, match="NaN at \\(1, 0\\)"):
        ns.einsum("ij,jk->ik", A, B, sparsifier=sparsifier)


def test_nan_that_a_sparsifier_keeps_or_does_not_compare_is_accepted() -> None:
    A, B = ns.from_torch(torch.eye(3), ns.CSR), torch.tensor([[1.0, 2.0, 3.0], [torch.nan, 0.1, 0.0], [0.0, 5.0, 1.0]])
    for sparsifier, count in ((compose(not_large, threshold(0.5)), 2), (tails, 4), (keep_all(), 9)):
        result, expected = ns.einsum("ij,jk->ik", A, B, sparsifier=sparsifier), sparsify(ns.einsum("ij,jk->ik", A, B), sparsifier)
        assert result.nnz == expected.nnz == count
        torch.testing.assert_close(result.to_dense(), expected.to_dense(), equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0), (1, 1, 1)])
def test_sizes_of_0_and_1(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    check("C[i,k] = A[i,j] * B[j,k]", {"A": ns.from_torch(torch.ones(rows, inner), ns.CSR), "B": torch.ones(inner, columns)}, 0.5)


def test_the_whole_result_is_never_allocated() -> None:
    A, B = sparse(4000, 400, 5), dense(400, 500)
    run = lambda: ns.einsum("ij,jk->ik", A, B, sparsifier=threshold(9.0))  # noqa: E731
    few = run()
    assert few.density < 0.01
    assert any(getattr(getattr(plan, "problem", None), "result", None) and plan.problem.result.prunes for plan in PROCESS.plans.values())
    tracemalloc.start()  # tracemalloc counts numpy's allocations: coordinates and values, no dense result
    run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * 4000 * 500 * 8


def test_only_a_comparison_with_false_is_a_negation() -> None:
    A, B = ns.from_torch((torch.arange(16.0).reshape(4, 4) - 7.5) / 4, ns.CSR), torch.eye(4)
    for number, rule in enumerate((lambda t: (t > 0) == (t < 1), lambda t: ~(t > 0), lambda t: (t > 0) != (t < 1))):
        kept = ns.einsum("ij,jk->ik", A, B, sparsifier=ns.register_sparsifier(rule, kind="streaming", name=f"negation_{number}"))
        assert torch.equal(kept.to_dense(), torch.where(rule(A.to_dense()), A.to_dense(), 0))


def test_explain_shows_where_a_result_is_sparsified() -> None:
    A, B = sparse(50, 40, 4), dense(40, 37)
    text = str(ns.explain("ij,jk->ik", A, B, sparsifier=threshold(0.5)))
    assert "evaluate in one kernel" in text and "where(abs(C_row[k]) <= C, 0, C_row[k])" in text
    apart = str(ns.explain("C[i,k] = A[i,j] * S[k,j]", A=A, S=sparse(30, 40, 4), sparsifier=threshold(0.5)))
    assert "a conversion kernel prunes the complete result" in apart
    assert str(ns.explain("ij,jk->ik", A, B, sparsifier=magnitude(0.5))).startswith("evaluate A[i,j] * B[j,k]")


@pytest.mark.parametrize(("name", "sparsifier"), [("pruned_by_threshold", threshold(0.5)), ("pruned_two_of_four", n_m(2, 4))])
def test_source_is(name: str, sparsifier: Any, golden: Callable[[str, str], None]) -> None:
    target = Target(32, 16)
    rule, numbers = ruled(sparsifier, 2)
    operands = {
        "A": Operand(CSR, (2000, 3000), "float32", "int32", counts=(2000, 60_000)),
        "B": Operand(dense_format(2), (3000, 100), "float32", strides=(100, 1)),
        **dict.fromkeys(numbers, Operand(dense_format(0), (), "float32", strides=())),
    }
    kinds = {name: OperandKind.of(operand) for name, operand in operands.items()}
    request, names = fused_request(pruning("C[i,k] = A[i,j] * B[j,k]", rule), kinds, set())
    problem = fused_problem(request, [operands[name] for name in names], target)
    steps = schedule(problem.stmt, problem.facts, target, members=problem.members, outer=problem.outer)
    golden(f"{name}.py", generate(steps[-1].stmt, target).text)


class Positive(threshold):
    """A subclass with a different rule than its base class."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor > self.t


class Diagonal(n_m):
    """A subclass with a different rule than its base class."""

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.eye(*tensor.shape, dtype=torch.bool)


@pytest.mark.parametrize("sparsifier", [Positive(0.5), Diagonal(1, 2), compose(Positive(0.5), Positive(0.7))])
def test_a_subclass_with_another_call_is_called(sparsifier: Any) -> None:
    A, x = ns.from_torch(torch.eye(6) * 2, ns.CSR), torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    expected = sparsify(torch.matmul(A, x), sparsifier)
    assert torch.equal(ns.einsum("ij,jk->ik", A, x, sparsifier=sparsifier).to_dense(), expected.to_dense())
