"""Formats of results: two rules, then Algorithm 4; results with a kept pattern share its index arrays."""

from __future__ import annotations

import pytest
import torch

import numscorch as ns
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import Problem, make_problem
from numscorch.frontend.requests import Operand, row_major
from numscorch.ir.format import COO, CSC, CSF, CSR, DCSR, Format, dense, sorted_format
from numscorch.schedule.facts import Target

pytestmark = pytest.mark.usefixtures("interpreted")
D1, D2, D3 = dense(1), dense(2), dense(3)
SIZE = 4


def problem(expr: str, *formats: Format, format: Format | str | None = None) -> Problem:
    """A problem whose operands have size 4 in all dimensions."""
    subscripts = parse_einsum(expr, tuple(f.order for f in formats))
    return make_problem(subscripts, [operand(f) for f in formats], Target(), format)


def operand(fmt: Format) -> Operand:
    shape = (SIZE,) * fmt.order
    if fmt.is_dense:
        return Operand(fmt, shape, "float32", strides=row_major(shape))
    return Operand(fmt, shape, "float32", "int32", counts=tuple(SIZE * (at + 1) for at in range(fmt.order)))


def stored(fmt: Format, seed: int = 0) -> ns.SparseTensor:
    """A tensor of shape 4 x 5 (x 3) with unstored entries."""
    values = torch.rand((4, 5, 3)[: fmt.order], generator=torch.Generator().manual_seed(seed))
    return ns.from_torch(values * (values < 0.5)).to(fmt)


RULE_1 = [
    ("ij,ij->ij", (CSR, D2), "A", CSR),
    ("ij,ij->ij", (D2, CSR), "B", CSR),
    ("ij,i->ij", (CSC, D1), "A", CSC),
    ("ij,->ij", (COO(2), dense(0)), "A", COO(2)),
    ("ij,ik,jk->ij", (DCSR, D2, D2), "A", DCSR),
    ("ij,ij->ji", (CSR, D2), "A", CSC),
    ("ij,ij->ji", (CSC, D2), "A", CSR),
    ("ijk,ijk->kij", (CSF(3), D3), "A", Format("sss", (1, 2, 0))),
    ("ij,ij,ij->ij", (D2, D2, Format("sd")), "C", Format("sd")),
    # another sparse operand with fewer indices only filters entries
    ("ij,j->ij", (CSR, Format("s")), "A", CSR),
    ("ij->ji", (CSR,), "A", CSC),
]


@pytest.mark.parametrize(("expr", "formats", "keeper", "kept"), RULE_1)
def test_rule_1_keeps_the_one_pattern_with_the_results_indices(expr: str, formats: tuple[Format, ...], keeper: str, kept: Format) -> None:
    inferred = problem(expr, *formats)
    assert inferred.result.shares == keeper
    assert inferred.result.format == kept
    assert inferred.result.index_dtype == "int32"
    assert inferred.inference.startswith("rule 1: same index set as " + keeper)


RULE_2 = [
    ("ij,j->i", (CSR, D1)),
    ("ij,jk->ik", (CSR, D2)),
    ("ij,jk->ik", (COO(2), D2)),
    ("ij,jk->ik", (DCSR, D2)),
    ("ij,jk->ik", (D2, CSC)),
    ("ijk,jl,kl->il", (CSF(3), D2, D2)),
    ("ijk,kl->ijl", (CSF(3), D2)),
    ("ijk,k->ij", (COO(3), D1)),
    ("ij,jk,kl->il", (CSR, CSR, D2)),
    # two operands have the indices of the result, so neither pattern is kept
    ("ij,ij,ij->ij", (CSR, CSR, D2)),
    ("ii,i->i", (CSR, D1)),
]


@pytest.mark.parametrize(("expr", "formats"), RULE_2)
def test_rule_2_is_dense_with_a_dense_factor(expr: str, formats: tuple[Format, ...]) -> None:
    inferred = problem(expr, *formats)
    assert inferred.result.is_dense
    assert inferred.result.format.is_row_major
    assert inferred.inference == "rule 2: a factor is dense"


ALGORITHM_4 = [
    ("ij,jk->ik", (CSR, CSR), "ds"),
    ("ij,jk->ik", (DCSR, CSC), CSC),
    ("ij,jk->ik", (DCSR, DCSR), "ss"),
    ("ij,jk->ik", (COO(2), COO(2)), "ss"),
    ("ij,ij->ij", (CSR, CSC), "ss"),
    ("ij,jk->ik", (CSC, CSC), CSC),
    ("i,j->ij", (Format("s"), Format("s")), "ss"),
    ("ij,jk->ki", (CSR, CSR), CSC),
    ("ij->i", (CSR,), "d"),
    ("ij->j", (CSR,), "s"),
    ("ij->", (CSR,), ""),
]


@pytest.mark.parametrize(("expr", "formats", "letters"), ALGORITHM_4)
def test_algorithm_4_level_by_level(expr: str, formats: tuple[Format, ...], letters: str | Format) -> None:
    inferred, expected = problem(expr, *formats), Format(letters) if isinstance(letters, str) else letters
    assert sorted_format(inferred.result.format) == expected
    assert inferred.inference.startswith("Algorithm 4")
    collected = "rows are unordered" in inferred.inference
    assert collected == (inferred.result.format != expected)
    assert collected == (expr.startswith("ij,jk"))
    assert problem(expr, *formats, format="dense").result.is_dense


@pytest.mark.parametrize("fmt", [CSR, CSC, COO(2), DCSR, Format("ss", (1, 0))], ids=lambda f: f.name)
def test_operands_of_one_format_lend_it(fmt: Format) -> None:
    assert problem("ij,ij->ij", fmt, fmt).result.format == fmt
    assert problem("ij,ij->ji", fmt, fmt).result.format == fmt.permuted((1, 0))
    assert problem("ij,ij->ij", fmt, fmt).inference == "the format of A[i,j], B[i,j]"


def test_sparse_operands_do_not_give_a_dense_matrix() -> None:
    assert sorted_format(problem("ij,jk->ik", CSR, CSC).result.format) == CSR
    assert problem("ij,jk->ik", CSR, CSC, format="infer").result.is_dense
    A = stored(CSR, 1)
    square = ns.from_torch(torch.eye(4), CSR)
    assert (square + square.t()).format == CSR
    assert sorted_format((A @ A.t()).format) == CSR


def test_infer_skips_rule_2_only() -> None:
    assert problem("ij,jk->ik", COO(2), D2, format="infer").result.format == Format("sd")
    assert problem("ij,jk->ik", CSR, D2, format="infer").result.is_dense
    assert problem("ij,ij->ij", CSR, D2, format="infer").result.shares == "A"


def test_default_never_depends_on_values() -> None:
    A = stored(CSR)
    empty = A.with_values(torch.zeros(A.nnz))
    assert ns.einsum("ij,jk->ik", empty, torch.ones(5, 2)).layout == torch.strided
    assert ns.einsum("ij,ij->ij", empty, torch.ones(4, 5)).pattern is A.pattern


@pytest.mark.parametrize("fmt", [CSR, CSC, COO(2), DCSR, Format("sd"), Format("ds", (1, 0))], ids=lambda f: f.name)
def test_kept_pattern_is_shared(fmt: Format) -> None:
    A = stored(fmt)
    result = ns.einsum("ij,ij->ij", A, torch.full((4, 5), 2.0))
    assert result.pattern is A.pattern
    assert torch.equal(result.values, 2 * A.values)
    assert result.values.data_ptr() != A.values.data_ptr()


@pytest.mark.parametrize(("expr", "order"), [("ijk,ijk->kij", (2, 0, 1)), ("ijk,ijk->ikj", (0, 2, 1)), ("ijk,ijk->kji", (2, 1, 0))])
def test_transposed_pattern_shares_every_array(expr: str, order: tuple[int, ...]) -> None:
    A = stored(CSF(3))
    result = ns.einsum(expr, A, torch.ones(4, 5, 3))
    assert result.format == A.format.permuted(order)
    for levels, original_levels in zip(result.pattern.arrays, A.pattern.arrays, strict=True):
        assert [x.data_ptr() for x in levels] == [x.data_ptr() for x in original_levels]
    assert torch.equal(result.to_dense(), A.to_dense().permute(order))


def test_sddmm_of_torch_csr_shares_its_arrays() -> None:
    mask = stored(CSR).to_torch()
    result = ns.einsum("ij,ik,jk->ij", mask, torch.rand(4, 2), torch.rand(5, 2))
    assert result.layout == torch.sparse_csr
    assert result.crow_indices().data_ptr() == mask.crow_indices().data_ptr()
    assert result.col_indices().data_ptr() == mask.col_indices().data_ptr()


@pytest.mark.parametrize("requested", [CSR, CSC, COO(2), DCSR, Format("sd"), "ss", "(i, j) -> (j: dense, i: compressed)"], ids=str)
def test_a_kept_pattern_is_converted_on_request(requested: Format | str) -> None:
    A = stored(CSR)
    result = ns.einsum("ij,ij->ij", A, torch.full((4, 5), 3.0), format=requested)
    assert result.format == (Format(requested) if isinstance(requested, str) else requested)
    assert torch.equal(result.to_dense(), 3 * A.to_dense())


@pytest.mark.parametrize("expr", ["ij,jk->ik", "ij,jk->ki"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_dense_results_in_any_mode_order(expr: str, order: tuple[int, int]) -> None:
    A, B = stored(CSR), torch.rand(5, 6)
    result = ns.einsum(expr, A, B, format=Format("dd", order))
    torch.testing.assert_close(result, torch.einsum(expr, A.to_dense(), B))
    assert result.permute(order).is_contiguous()


@pytest.mark.parametrize("requested", ["dense", "dd", D2])
def test_a_dense_result_on_request(requested: Format | str) -> None:
    A = stored(CSR)
    result = ns.einsum("ij,ij->ij", A, torch.full((4, 5), 3.0), format=requested)
    assert result.layout == torch.strided
    assert torch.equal(result, 3 * A.to_dense())


@pytest.mark.parametrize("requested", [CSR, CSC, COO(2), DCSR, Format("sd"), Format("sd", (1, 0))], ids=str)
def test_a_new_pattern_on_request(requested: Format) -> None:
    A, X = stored(CSR), torch.rand(5, 3)
    result = ns.einsum("ij,jk->ik", A, X, format=requested)
    assert result.format == requested
    torch.testing.assert_close(result.to_dense(), A.to_dense() @ X)


def test_formats_are_not_dropped_for_dense_operands() -> None:
    """A requested format is either used or refused."""
    left, right = torch.rand(4, 5), torch.rand(5, 3)
    try:
        result = ns.einsum("ij,jk->ik", left, right, format=CSR)
    except ns.NumscorchError:
        return
    assert isinstance(result, ns.SparseTensor)
    assert result.format == CSR
