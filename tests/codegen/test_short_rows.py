"""Short rows: each starts where the previous one ended, and the loop that sums it is not unrolled."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.codegen.intrinsics import pointer, rolled
from numscorch.machine.fingerprints import OPTIONS
from numscorch.schedule import tuning


def uneven(rows: int = 300) -> ns.SparseTensor:
    """Most rows are short; the first, the middle and the last row are empty, and one row is long."""
    dense = (torch.rand(rows, rows, generator=torch.Generator().manual_seed(0)) < 0.02).float()
    dense[7], dense[[0, rows // 2, -1]] = 1.0, 0.0
    return ns.from_torch(dense, ns.CSR)


def test_a_row_starts_where_the_previous_one_ended() -> None:
    A, x = uneven(), torch.rand(300)
    source = ns.explain("ij,j->i", A, x).source
    assert source.count("A2_pos[") == 2 and "pA2_start = pA2_end" in source
    assert torch.allclose(ns.einsum("ij,j->i", A, x), A.to_dense() @ x, rtol=1e-5)


def test_ends_of_nested_rows_are_reused_at_each_level() -> None:
    dense = torch.rand(9, 8, 7).masked_fill_(torch.rand(9, 8, 7) < 0.8, 0.0)
    A, x = ns.from_torch(dense, ns.CSF(3)), torch.rand(7)
    source = ns.explain("ijk,k->ij", A, x).source
    assert "pA2_start = pA2_end" in source and "pA3_start = pA3_end" in source
    assert torch.allclose(ns.einsum("ijk,k->ij", A, x), dense @ x, rtol=1e-5)


def test_a_row_without_entries_loads_nothing() -> None:
    A, X, Y = uneven(), torch.rand(300, 16), torch.rand(300, 16)
    source = ns.explain("ij,ik,jk->ij", A, X, Y).source
    assert source.index("if pA2_start < pA2_end:") < source.index("= load(B_vals")
    assert torch.allclose(ns.einsum("ij,ik,jk->ij", A, X, Y).to_dense(), A.to_dense() * (X @ Y.t()), rtol=1e-4)
    assert "if pA2_start < pA2_end:" not in ns.explain("ij,jk->ik", A, Y).source  # zeros are written


def test_merged_rows_load_their_starts() -> None:
    A, B = uneven(), ns.from_torch(torch.eye(300), ns.CSR)
    assert "_start = pA2_end" not in ns.explain("C[i,j] = A[i,j] + B[i,j]", A=A, B=B).source
    assert torch.equal((A + B).to_dense(), A.to_dense() + torch.eye(300))


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")
def test_a_loop_marked_as_rolled_is_not_unrolled() -> None:
    def total(values: np.ndarray, indices: np.ndarray, count: int) -> float:
        data, crd, total_value = pointer(values), pointer(indices), 0.0
        for p in range(count):
            total_value += data[rolled(crd[p])]
        return total_value

    compiled = numba.njit(**OPTIONS)(total)
    indices = np.arange(19, dtype=np.int32)[::-1].copy()
    assert compiled(np.arange(19.0), indices, 19) == 171.0
    (text,) = compiled.inspect_llvm().values()
    assert sum('asm ""' in line for line in text.splitlines()) == sum(" fadd " in line for line in text.splitlines()) == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fan", [4, 9, 40])
def test_the_end_of_a_row_is_masked(fan: int, dtype: torch.dtype, threads: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Entries of other rows and memory beyond the last row do not matter."""
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0 if threads > 1 else 1 << 30)
    lengths = torch.randint(0, 2 * fan, (90,), generator=torch.Generator().manual_seed(fan))
    dense = torch.zeros(90, 100, dtype=dtype)
    for row, length in enumerate(lengths.tolist()):
        dense[row, row % 20 : row % 20 + length] = torch.arange(1.0, length + 1, dtype=dtype)
    x = torch.arange(100, dtype=dtype)
    dense[::7, 0], x[0] = torch.inf, torch.nan
    A = ns.from_torch(dense, ns.CSR)
    assert "first_lanes(" in ns.explain("ij,j->i", A, x).source
    expected = torch.stack([(row[row != 0] * x[row != 0]).sum() for row in dense])
    torch.testing.assert_close(ns.einsum("ij,j->i", A, x), expected, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fan", [4, 9, 40])
def test_ends_of_rows_are_masked_in_chains_and_maxima(fan: int, threads: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0 if threads > 1 else 1 << 30)
    generator = torch.Generator().manual_seed(fan)
    lengths = torch.randint(0, 2 * fan, (90, 1), generator=generator)
    dense = torch.where(torch.arange(100) < lengths, torch.randn(90, 100, generator=generator), 0.0)
    A = ns.from_torch(dense, ns.CSR)
    expected = torch.where(dense != 0, dense, -torch.inf).softmax(1).nan_to_num(0.0)
    torch.testing.assert_close(ns.softmax(A, 1).to_dense(), expected)
    torch.testing.assert_close(ns.softmax(A, 1).values.sum(), expected.sum())
    assert torch.equal(ns.amax(A, 1), dense.amax(1)) and torch.equal(ns.amin(A, 1), dense.amin(1))
    assert torch.allclose(ns.sum(A, 1), dense.sum(1), rtol=1e-4, atol=1e-5)
