"""Operands that may be absent: kernels read nothing of an operand that has no entries, or whose entries are all visited."""

from __future__ import annotations

import pytest
import torch
from dense_values import as_dense

import numscorch as ns
from numscorch.ir.index import Ahead, loops_of
from numscorch.schedule import tuning

Operands = dict[str, ns.SparseTensor | torch.Tensor]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def stored(dense: torch.Tensor, format: str) -> ns.SparseTensor:
    return ns.from_torch(dense, format)


def drawn(density: float, *shape: int) -> torch.Tensor:
    """Ones at random places."""
    return (torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) < density).double()


SCATTERED = "R[j] += maximum(A[i], B[i]) * (C[i] + 2) * (D[j,i] + E[i,j])"


def scattered() -> Operands:
    """B and D have no entries, and the last entry of A lies before the last one of E."""
    none = stored(torch.zeros(2).double(), "s")
    return {
        "A": stored(torch.tensor([1.0, 0.0]).double(), "s"),
        "B": none,
        "C": ones(2),
        "D": stored(torch.zeros(17, 2).double(), "DCSC"),
        "E": stored(ones(2, 17), "COO(2)"),
    }


def test_scattering_loops_load_shared_values_of_present_operands(plain: pytest.MonkeyPatch) -> None:
    assert torch.equal(as_dense(ns.evaluate(SCATTERED, **scattered())), 3 * ones(17))
    assert "B_vals1 = B_vals[pB1] if iB == i else float64(0.0)" in ns.explain(SCATTERED, **scattered()).source


def test_compiled_kernels_load_no_values_of_operands_without_entries() -> None:
    """Such an operand has no memory, so a load would end the process."""
    assert torch.equal(as_dense(ns.evaluate(SCATTERED, **scattered())), 3 * ones(17))


def test_values_in_another_order_are_prefetched_where_they_are_read(plain: pytest.MonkeyPatch) -> None:
    """B stores values, but none of them is an entry; it is read in a format with entries only."""
    plain.setattr(tuning, "FAR_VALUES", 0)
    text = "R += maximum(A[i,j], B[j,i]) * (C[j,i] + D[i,j])"
    A, B, C = ones(3, 5), torch.zeros(5, 3).double(), drawn(0.4, 5, 3)
    operands = {"A": stored(A, "CSR"), "B": stored(B, "(i, j) -> (i: dense, j: bitmap)"), "C": stored(C, "CSC"), "D": stored(A, "DCSR")}
    assert torch.equal(as_dense(ns.evaluate(text, **operands)), (A * (C.T + A)).sum())
    assert "if jB == j:\n" in ns.explain(text, **operands).source


def test_rows_of_absent_operands_are_not_prefetched(plain: pytest.MonkeyPatch) -> None:
    """The rows of B, which the columns of A choose, end before those of the other operands."""
    plain.setattr(tuning, "NEAREST_CACHE", 0)
    text = "R[i] += A[i,j] * (B[i,j,k] + C[i,k]) * (D[i,k] + E[i])"
    A, B, C, E = drawn(0.2, 40, 40), drawn(0.02, 40, 40, 40), drawn(0.3, 40, 40), ones(40)
    B[5:] = 0
    operands = {"A": stored(A, "CSR"), "B": stored(B, "sds"), "C": stored(C, "DCSR"), "D": stored(C, "DCSR"), "E": stored(E, "s")}
    assert torch.equal(as_dense(ns.evaluate(text, **operands)), torch.einsum("ij,ijk,ik->i", A, B + C[:, None], C + 1))
    assert any(isinstance(loop.tag, Ahead) for loop in loops_of(ns.explain(text, **operands).steps[-1].stmt))
