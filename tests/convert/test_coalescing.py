"""Entries in any order, some with equal coordinates, are sorted and summed by kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.codegen.workspaces import workspaces_of
from numscorch.convert import construct, conversions
from numscorch.ir.format import Format
from numscorch.ir.levels import Dense
from numscorch.ir.workspace_levels import Listed, Sorted
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.tensors.validate import validate

FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 3), Format("(i, j) -> (j: dense, i: hash)"), ns.DIA]
OTHERS = [
    Format("s"),
    ns.COO(1),
    ns.COO(3),
    ns.CSF(3),
    Format("dss", (2, 0, 1)),
    Format("(i, j, k) -> (k: dense, i // 2: compressed, i % 2: dense, j: hash)"),
]
OTHERS += [ns.COO(4), Format("ddss", (3, 1, 0, 2)), Format("(i, j) -> (i: compressed(unique=False), j: singleton(ordered=False))")]
DTYPES = [torch.float64, torch.float32, torch.int8, torch.complex64]
CASES = [*((fmt, dtype) for fmt in FORMATS for dtype in DTYPES), *((fmt, torch.float64) for fmt in OTHERS)]
SHAPES = {1: (40,), 2: (9, 14), 3: (5, 6, 7), 4: (4, 3, 5, 4)}


@pytest.fixture
def small(plain: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Kernels run as Python and convert even small tensors."""
    plain.setattr(tuning, "COMPILE_ENTRIES", 0)
    plain.setattr(tuning, "COUNTED_COORDINATES", 1 << 10)
    return plain


def entries(shape: tuple[int, ...], count: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[np.ndarray, torch.Tensor]:
    rng = np.random.default_rng(seed)
    indices = np.stack([rng.integers(0, size, count) for size in shape])
    return indices, torch.from_numpy(rng.integers(-3, 4, count)).to(dtype)


def by_arrays(indices: np.ndarray, values: torch.Tensor, shape: tuple[int, ...], fmt: Format) -> ns.SparseTensor:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(construct, "coalesced", lambda *given: None)
        return construct.assemble(indices, values, shape, fmt)


def in_two_passes(patched: pytest.MonkeyPatch) -> list[Format]:
    """Write even small lists in two passes; returns the list of the formats of buckets that are written."""
    patched.setattr(tuning, "SCATTERED_LINES", 0)
    patched.setattr(tuning, "SCATTERED_COLUMNS", 0)
    patched.setattr(tuning, "SAMPLED_ENTRIES", 8)
    written: list[Format] = []
    find = conversions.buckets

    def recorded(*given: Any) -> Format | None:
        fmt = find(*given)
        written.extend([fmt] if fmt is not None else [])
        return fmt

    patched.setattr(conversions, "buckets", recorded)
    return written


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize(("fmt", "dtype"), CASES, ids=str)
@pytest.mark.parametrize(("workers", "passes"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_entries_are_sorted_and_summed(fmt: Format, workers: int, passes: int, dtype: torch.dtype, small: pytest.MonkeyPatch) -> None:
    buckets = in_two_passes(small) if passes == 2 else []
    small.setattr(tuning, "PARALLEL_STEPS", 0)
    small.setattr(tuning, "BLOCKS", 7)
    small.setattr("numscorch.machine.threads.workers", lambda: workers)
    shape = SHAPES[fmt.order]
    indices, values = entries(shape, 150, 1, dtype)
    assert conversions.coalesced(indices, values, shape, fmt, None) is not None
    assert bool(buckets) == (passes == 2 and fmt.order > 1)
    result, expected = construct.assemble(indices, values, shape, fmt), by_arrays(indices, values, shape, fmt)
    validate(result.pattern)
    assert result.format == expected.format
    assert result.nnz == expected.nnz
    assert torch.equal(result.to_dense(), expected.to_dense())
    if fmt.is_ordered:
        assert all(map(np.array_equal, result.pattern.views, expected.pattern.views))
        assert result.pattern.index_dtype == expected.pattern.index_dtype


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("fmt", [ns.COO(2), ns.CSR], ids=str)
def test_coordinates_need_not_be_contiguous(fmt: Format, dtype: torch.dtype, fresh_plans: pytest.MonkeyPatch) -> None:
    """Compiled kernels read arrays without strides."""
    fresh_plans.setattr(tuning, "COMPILE_ENTRIES", 0)
    fresh_plans.setattr(tuning, "COUNTED_COORDINATES", 1 << 10)
    fresh_plans.setattr(tuning, "COALESCED_ENTRIES", 0)
    indices, values = entries((9, 14), 150, 5)
    edges = torch.from_numpy(indices.T.copy()).to(dtype)
    expected = by_arrays(indices, values, (9, 14), fmt).to_dense()
    assert torch.equal(ns.from_coo(edges.T, values, (9, 14), fmt).to_dense(), expected)
    assert torch.equal(ns.from_torch(torch.sparse_coo_tensor(edges.T, values, (9, 14)), fmt).to_dense(), expected)


@pytest.mark.parametrize("long", [0, 1, 2])
def test_long_rows_need_no_more_memory_than_columns(long: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Rows are sorted in a list if they are short on average, but not if one of them is far longer than there are columns."""
    fresh_plans.setattr(tuning, "LONGEST_SORTED_ROW", 1 << 12)
    count, shape = 1 << 18, (1 << 16, 300)
    indices, values = entries(shape, count, 6)
    indices[0, : count * long // 4] = 7
    result = ns.from_coo(torch.from_numpy(indices), values, shape, ns.CSR)
    kinds = [type(space.tensor.format.levels[0]) for plan in plans.PROCESS.plans.values() for space in workspaces_of(plan.steps[-1].stmt)]
    assert kinds == [Sorted if long == 0 else Listed]
    assert torch.equal(result.to_dense(), by_arrays(indices, values, shape, ns.CSR).to_dense())


def test_kernels_are_used_where_entries_are_out_of_order(small: pytest.MonkeyPatch) -> None:
    indices, values = entries((9, 14), 150, 2)
    assert conversions.coalesced(indices, values, (9, 14), ns.CSR, None) is not None
    in_order = indices[:, np.lexsort(indices[::-1])]
    assert conversions.coalesced(in_order, values, (9, 14), ns.CSR, None) is None
    assert conversions.coalesced(indices, values.requires_grad_(), (9, 14), ns.CSR, None) is None


def test_sums_that_cancel_stay_stored(small: pytest.MonkeyPatch) -> None:
    A = ns.from_coo([[2, 0, 2, 0], [1, 1, 1, 0]], [1.0, 2.0, -1.0, 0.0], (3, 3))
    assert A.indices().tolist() == [[0, 0, 2], [0, 1, 1]]
    assert A.values.tolist() == [0.0, 2.0, 0.0]


MATRIX_LISTS, CUBE_LISTS = [ns.CSC, ns.COO(2), Format("ds", (1, 0))], [Format("dss", (2, 0, 1)), Format("dso", (1, 2, 0)), ns.CSF(3)]
PAIRS = [(source, target) for source in (ns.CSR, ns.DCSR, ns.COO(2)) for target in MATRIX_LISTS]
PAIRS += [(source, target) for source in (Format("dss"), ns.COO(3)) for target in CUBE_LISTS]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_conversions_in_two_passes(source: Format, target: Format, small: pytest.MonkeyPatch) -> None:
    shape = SHAPES[source.order]
    A = by_arrays(*entries(shape, 100, 4), shape, source)
    expected = ns.from_coo(*entries(shape, 100, 4), shape, target)
    buckets = in_two_passes(small)
    converted = A.to(target)
    assert bool(buckets) == (target.levels[0] == Dense() and source.mode_order[0] != target.mode_order[0])
    validate(converted.pattern)
    assert all(map(np.array_equal, converted.pattern.views, expected.pattern.views))
    assert torch.equal(converted.values, expected.values)


def test_a_list_is_written_in_two_passes_if_its_places_are_far_apart(fresh_plans: pytest.MonkeyPatch) -> None:
    """Random columns are written through buckets, and the columns of a band are not."""
    rows, size = torch.arange(1 << 19), 1 << 19
    random, band = torch.randint(0, size, (4, size), generator=torch.Generator().manual_seed(0)), (rows + torch.arange(4)[:, None]) % size
    for columns, passes in ((random, 2), (band, 1)):
        A = ns.from_coo(torch.stack([rows.repeat(4), columns.reshape(-1)]), torch.ones(4 * size), (size, size), ns.CSR)
        assert len(conversions.copy_steps(A.pattern, ns.CSC)) == passes


@pytest.mark.parametrize("threads", [1, 2])
def test_compiled(threads: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COMPILE_ENTRIES", 0)
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    torch.set_num_threads(threads)
    indices, values = entries((300, 200), 20_000, 3)
    result = ns.from_coo(torch.from_numpy(indices), values, (300, 200), ns.CSR)
    expected = by_arrays(indices, values, (300, 200), ns.CSR)
    assert all(map(np.array_equal, result.pattern.views, expected.pattern.views))
    assert torch.equal(result.values, expected.values)


@pytest.mark.parametrize("bits", [(3, 4), (13, 13), (13, 14), (14, 14), (9, 9, 9), (20, 30), (29, 30), (30, 31), (20, 21, 22)])
@pytest.mark.parametrize("count", [0, 1, 2, 30, 40])
def test_keys_with_positions_take_32_or_64_bits(bits: tuple[int, ...], count: int) -> None:
    shape = tuple(1 << each for each in bits)
    generator = np.random.default_rng(count)
    columns = [generator.choice(generator.integers(0, size, 4), count) if count else np.zeros(0, np.int64) for size in shape]
    columns[-1] = np.where(generator.random(count) < 0.5, columns[-1], shape[-1] - 1)
    summed: dict[tuple[int, ...], float] = {}
    for at, place in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        summed[place] = summed.get(place, 0.0) + at
    A = ns.from_coo(np.stack(columns), torch.arange(count, dtype=torch.float64), shape, "COO" if len(shape) == 2 else f"COO({len(shape)})")
    validate(A.pattern)
    assert A.indices().t().tolist() == [list(place) for place in sorted(summed)]
    assert A.values.tolist() == [summed[place] for place in sorted(summed)]
