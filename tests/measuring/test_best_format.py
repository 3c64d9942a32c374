"""best_format times an einsum with an operand in each format that its pattern suggests, and compares the results."""

from __future__ import annotations

import pytest
import torch
from random_tensors import integers

import numscorch as ns
from numscorch.measuring import best_format as module


def formats_of(best: module.BestFormat) -> set[str]:
    return {candidate.format.name for candidate in best.candidates}


def suggested(dense: torch.Tensor) -> set[str]:
    return {format.name for format in module._suggested(ns.from_torch(dense))}


def blocks(rows: int, columns: int) -> torch.Tensor:
    """A matrix whose only entries are dense blocks along its diagonal."""
    return torch.eye(8).repeat_interleave(rows, 0).repeat_interleave(columns, 1)


def test_the_table_has_a_row_for_each_format_and_the_fastest_first(plain: pytest.MonkeyPatch) -> None:
    A, X = ns.from_torch(blocks(4, 4)), integers(32, 3)
    best = ns.best_format("ij,jk->ik", A, X)
    assert formats_of(best) >= {"CSR", "CSC", "COO(2)", "BCSR(4, 4)"}
    times = [candidate.seconds for candidate in best.candidates]
    assert times == sorted(times)
    assert best.format == best.candidates[0].format
    assert torch.equal(ns.einsum("ij,jk->ik", A.to(best.format), X), A.to_dense() @ X)
    table = str(best).splitlines()
    assert table[0] == "ij,jk->ik, operand 0 stored as CSR"
    assert len(table) == 2 + len(best.candidates)


def test_blocks_are_suggested_where_few_zeros_fill_them() -> None:
    assert {"BCSR(4, 1)", "BCSR(2, 2)"} <= suggested(blocks(4, 2))
    scattered = torch.zeros(32, 32)
    scattered[torch.arange(32), torch.arange(32) * 5 % 32] = 1
    assert not [name for name in suggested(scattered) if name.startswith("BCSR")]


def test_sizes_that_blocks_do_not_divide_are_not_suggested() -> None:
    assert not [name for name in suggested(torch.ones(7, 5)) if name.startswith("BCSR")]


def test_lists_of_rows_rows_of_equal_length_and_diagonals_are_suggested() -> None:
    few_rows = torch.zeros(40, 6)
    few_rows[3] = 1
    assert "DCSR" in suggested(few_rows)
    assert "ELL" not in suggested(few_rows)
    assert {"ELL", "DIA"} <= suggested(torch.eye(20))
    assert "DCSR" not in suggested(torch.eye(20))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 5)])
def test_matrices_without_entries_have_the_usual_formats(plain: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    A = ns.zeros(*shape, format=ns.CSR)
    assert formats_of(ns.best_format("ij->i", A)) == {"CSR", "CSC", "COO(2)"}


def test_padding_that_changes_the_result_is_left_out(plain: pytest.MonkeyPatch) -> None:
    """An infinite factor makes NaN of a stored zero, and is skipped where no entry is stored."""
    A = ns.from_torch(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
    assert "BCSR(2, 2)" in formats_of(ns.best_format("ij,j->i", A, torch.ones(2)))
    assert "BCSR(2, 2)" not in formats_of(ns.best_format("ij,j->i", A, torch.tensor([1.0, float("inf")])))


def test_tensors_of_three_dimensions_are_stored_in_other_orders(plain: pytest.MonkeyPatch) -> None:
    T = ns.from_torch(integers(3, 4, 5), ns.CSF(3))
    best = ns.best_format("ijk,jr,kr->ir", T, integers(4, 2), integers(5, 2))
    assert best.given == ns.CSF(3)
    assert {candidate.format for candidate in best.candidates} >= {ns.Format("sss", (1, 0, 2)), ns.Format("sss", (2, 0, 1)), ns.COO(3)}


def test_the_operand_with_most_entries_changes_unless_another_is_named(plain: pytest.MonkeyPatch) -> None:
    A, B = ns.from_torch(torch.eye(6)), ns.from_torch(torch.ones(6, 6))
    assert ns.best_format("ij,jk->ik", A, B, seconds=0.01).operand == 1
    assert ns.best_format("ij,jk->ik", A, B, operand=0, seconds=0.01).operand == 0


def test_conversions_pay_after_the_calls_that_save_their_time() -> None:
    seconds_of = {ns.CSR: 0.5, ns.CSC: 0.3, ns.DCSR: 0.6}
    given, faster, slower = (module.Candidate(format, seconds, 0, 1.0) for format, seconds in seconds_of.items())
    best = module.BestFormat("ij->i", 0, ns.CSR, (faster, given, slower))
    assert [best.calls_until_it_pays(candidate) for candidate in best.candidates] == [5, 0, float("inf")]


def test_requests_without_sparse_operands_are_refused() -> None:
    with pytest.raises(ns.UnsupportedError, match=r"no operand of 'ij->i' is sparse"):
        ns.best_format("ij->i", torch.ones(2, 2))
    with pytest.raises(ns.UnsupportedError, match=r"operand=1 of 'ij,jk->ik' is not sparse: use operand=0"):
        ns.best_format("ij,jk->ik", ns.from_torch(torch.eye(2)), torch.ones(2, 2), operand=1)
    with pytest.raises(ns.SizeError, match=r"seconds=0: best_format needs a time budget above 0"):
        ns.best_format("ij->i", ns.from_torch(torch.eye(2)), seconds=0)
