"""Rows collected in workspaces: both kinds of workspace give bitwise equal results, in order or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
import torch
from cases import as_operand, random_format
from routine_calls import compiled
from scale import scaled

import numscorch as ns
from numscorch.codegen import checked_intrinsics, routines
from numscorch.codegen.workspaces import workspaces_of
from numscorch.ir.index import loops_of
from numscorch.ir.levels import Compressed, Dense
from numscorch.ir.workspace_levels import Cleared, Hashed, Listed, Sorted
from numscorch.runtime import plans
from numscorch.runtime.result_arrays import packed_room
from numscorch.schedule import tuning
from numscorch.schedule.facts import forget_answers
from numscorch.schedule.workspace import KINDS
from numscorch.tensors.validate import validate

UNORDERED = ns.Format((Dense(), Compressed(ordered=False)))
EXPRESSIONS = ("ij,jk->ik", "ij,jk->ki", "ij,jkl->il", "ijk,jl->il", "ijk,kl->ijl", "ij,jk,kl->il", "ij,kj->ik", "ij,jk,k->ik")


def random_sparse(numbers: np.random.Generator, term: str, sizes: dict[str, int]) -> np.ndarray:
    shape = [sizes[name] for name in term]
    return np.asarray(numbers.standard_normal(shape) * (numbers.random(shape) < numbers.choice((0.05, 0.3, 0.8))))


def random_operands(seed: int) -> tuple[str, list[object]]:
    """A product whose rows may be unordered."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    expr = rng.choice(EXPRESSIONS)
    sizes = {name: rng.choice((1, 2, 5, 9, 40)) for name in "ijkl"}
    terms = expr.split("->")[0].split(",")
    arrays = [random_sparse(numbers, term, sizes) for term in terms]
    return expr, [as_operand(array, random_format(rng, len(term))) for array, term in zip(arrays, terms, strict=True)]


def collected(kind: str, expr: str, operands: list[object], set_to: Callable[[object, str, float], None]) -> ns.SparseTensor | torch.Tensor:
    """The result if rows are collected in one kind of workspace."""
    set_to(tuning, "DENSE_ROW", -1 if kind == "hash" else 1 << 62)
    set_to(tuning, "REUSED_PLACES", float("inf"))
    plans.PROCESS.plans.clear()
    plans.PROCESS.kinds.clear()
    forget_answers()
    return ns.einsum(expr, *operands, format="infer")


def workspace_kinds() -> set[type]:
    """The kinds of workspaces in the last plan."""
    kept = list(plans.PROCESS.plans.values())[-1:]  # there is no plan if all operands are dense
    return {type(space.tensor.format.levels[0]) for plan in kept for space in workspaces_of(plan.steps[-1].stmt)}


def agree(a: ns.SparseTensor | torch.Tensor, b: ns.SparseTensor | torch.Tensor) -> bool:
    """Whether two results have the same format and entries, and values up to rounding: lists of long rows have block sums."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.allclose(a, b)
    return a.format == b.format and a.nnz == b.nnz and torch.allclose(a.to_dense(), b.to_dense())


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("part", range(4))
def test_all_kinds_agree(part: int, plain: pytest.MonkeyPatch) -> None:
    kinds: list[set[type]] = []
    count = scaled(750)
    for seed in range(part * count, (part + 1) * count):
        plain.setattr(tuning, "PARALLEL_STEPS", 0 if seed % 2 else 1 << 15)
        plain.setattr(tuning, "BLOCKS", 1 + seed % 5)
        expr, operands = random_operands(seed)
        listed = collected("list", expr, operands, plain.setattr)
        hashed = collected("hash", expr, operands, plain.setattr)
        kinds.append(workspace_kinds())
        assert agree(listed, hashed), f"seed {seed}: {expr}"
        if isinstance(hashed, ns.SparseTensor):
            validate(hashed.pattern)
        if workspace_kinds() == {Hashed}:
            with suppress(ns.ScheduleError):  # a convolution is scheduled in another form
                wanted = listed.format if isinstance(listed, ns.SparseTensor) else "dense"
                combined = ns.einsum(expr, *operands, format=wanted, schedule="workspace(sort)")
                kinds.append(workspace_kinds())
                assert agree(listed, combined), f"seed {seed}: {expr}"
    assert {Hashed} in kinds
    assert {Sorted} in kinds
    assert {Listed} not in kinds


@pytest.mark.parametrize("seed", range(1, 4))
def test_all_kinds_agree_compiled(seed: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Rows of any length, some too long for insertion sort, in one block and in several."""
    numbers = np.random.default_rng(seed)
    A, B = (as_operand(random_sparse(numbers, "ij", {"i": 90, "j": 90}), ns.CSR) for _ in range(2))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        results = [ns.einsum("ij,jk->ik", A, B, schedule=f"parallelize(i) workspace({kind})") for kind in KINDS]
    finally:
        torch.set_num_threads(before)
    assert all(agree(results[0], other) for other in results[1:])
    validate(results[1].pattern)
    np.testing.assert_allclose(np.asarray(results[1].to_dense()), np.asarray(A.to_dense()) @ np.asarray(B.to_dense()), atol=1e-12)


def coordinates(extent: int, count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, extent, (count,), generator=torch.Generator().manual_seed(seed))


def hypersparse(rows: int, columns: int, fmt: ns.Format, seed: int) -> ns.SparseTensor:
    """A matrix with few entries, one of them in the last row and column."""
    indices = torch.stack([coordinates(rows, 200, seed), coordinates(columns, 200, seed + 1)])
    indices[:, -1] = torch.tensor([rows - 1, columns - 1])
    values = coordinates(9, 200, seed + 2).double() + 1
    return ns.from_coo(indices, values, (rows, columns)).to(fmt)


FEW, MANY = 60, 10**8


@pytest.mark.parametrize(("rows", "inner", "fmt"), [(50, FEW, ns.CSR), (MANY, FEW, ns.DCSR), (MANY, MANY, ns.DCSR)])
def test_hypersparse_matrices_are_multiplied_within_the_memory_limit(
    rows: int, inner: int, fmt: ns.Format, plain: pytest.MonkeyPatch
) -> None:
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "1G")
    A, B = hypersparse(rows, inner, fmt, 0), hypersparse(inner, MANY, fmt, 3)
    C = ns.einsum("ij,jk->ik", A, B)
    assert workspace_kinds() == {Hashed}
    (i, j), (k, columns) = A.indices().tolist(), B.indices().tolist()
    expected: dict[tuple[int, int], float] = {}
    for at, row in enumerate(i):
        for other, column in enumerate(columns):
            if j[at] == k[other]:
                expected[row, column] = expected.get((row, column), 0.0) + float(A.values[at] * B.values[other])
    assert dict(zip(map(tuple, C.indices().T.tolist()), C.values.tolist(), strict=True)) == expected
    assert len(expected) > 0
    with pytest.raises(ns.SizeError, match=r"the workspace of 100000000 values takes .* GiB(.|\n)*workspace\(hash\)"):
        ns.einsum("ij,jk->ik", A, B, schedule="workspace(list)")


def test_a_row_that_is_too_long_for_a_hash_table_is_refused(plain: pytest.MonkeyPatch) -> None:
    """The memory limit applies to the size that the rows need."""
    A, B = hypersparse(50, FEW, ns.CSR, 0), hypersparse(FEW, MANY, ns.CSR, 3)
    plain.setattr("numscorch.machine.memory.ASK_FROM", 100)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", "2500")
    with pytest.raises(ns.SizeError, match=r"the workspace of 128 values takes(.|\n)*workspace\(list\)"):
        ns.einsum("ij,jk->ik", A, B)


@pytest.mark.parametrize("kind", ["list", "hash"])
def test_rows_of_an_unordered_level_are_in_insertion_order(kind: str, plain: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(torch.tensor([[0.0, 2, 3], [0, 0, 0], [1, 0, 1]]), ns.CSR)
    B = ns.from_torch(torch.tensor([[0.0, 0, 0, 5], [0, 0, 7, 8], [9, 0, 1, 0]]), ns.CSR)
    C = ns.einsum("ij,jk->ik", A, B, format=UNORDERED, schedule=f"workspace({kind})")
    pos, crd = C.pattern.level_arrays(1)
    assert C.format == UNORDERED
    assert (list(pos), list(crd)) == ([0, 3, 3, 6], [2, 3, 0, 3, 0, 2])
    assert C.values.tolist() == [17, 16, 27, 5, 9, 1]


def test_the_text_of_an_unordered_level() -> None:
    assert str(UNORDERED) == "(i, j) -> (i: dense, j: compressed(ordered=False))"
    assert not UNORDERED.levels[1].is_ordered
    assert Compressed().is_ordered


# ---- routines


ROWS = {
    "consecutive": np.arange(500),
    "far apart": np.arange(500) << 40,
    "shuffled": np.random.default_rng(0).permutation(1 << 20)[:700],
    "repeated": np.repeat(np.random.default_rng(1).permutation(300), 3),
    "large": np.iinfo(np.int64).max - np.arange(64) * 4096,
    "none": np.arange(0),
}


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("name", ROWS)
def test_hashing_finds_inserted_coordinates(name: str, dtype: str) -> None:
    """Compiled and as Python, positions follow the order of insertion, in a table of the computed size."""
    row = ROWS[name].astype(dtype)
    unique, first = np.unique(row, return_index=True)
    order = unique[np.argsort(first)]
    room = packed_room(np.array([row.size]), 1 << 62, 1, "", True)
    uncompiled = (getattr(routine, "py_func", routine) for routine in (routines.emptied, routines.insert))
    for empty, insert, pointer in (
        (compiled(routines.emptied), compiled(routines.insert), np.asarray),
        (*uncompiled, checked_intrinsics.Checked),
    ):
        table, listed = pointer(np.zeros(room, np.int64)), pointer(np.zeros(row.size, np.int64))
        bits = empty(table, row.size)
        assert 1 << bits == room
        count = 0
        for coordinate in row:
            position = insert(table, listed, bits, count, coordinate)
            count = max(count, position + 1)
            assert listed[position] == coordinate
        np.testing.assert_array_equal(np.asarray(listed if pointer is np.asarray else listed.array)[:count], order)


@pytest.mark.parametrize("count", [0, 1, 2, 24, 25, 100, 3000])
@pytest.mark.parametrize("most", [2, 50, 1 << 40])
def test_values_are_sorted_with_their_keys(count: int, most: int) -> None:
    keys = np.random.default_rng(count).integers(0, most, count)
    sorted_keys, values = keys.copy(), keys * 0.5
    compiled(routines.ordered_pairs)(sorted_keys, values, count)
    np.testing.assert_array_equal(sorted_keys, np.sort(keys))
    np.testing.assert_array_equal(values, sorted_keys * 0.5)
    keys_only = keys.copy()
    compiled(routines.sort)(keys_only, None, 0, count)
    np.testing.assert_array_equal(keys_only, sorted_keys)


@pytest.mark.parametrize("most", [1, 2, 50, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 2, routines.TILE, routines.TILE + 1, 100, routines.RANKED, routines.RANKED + 1, 3000])
def test_equal_coordinates_are_combined(count: int, most: int) -> None:
    """Values are summed in the order of insertion, compiled and as Python: the first term is far larger than the rounded ones."""
    keys = np.random.default_rng(count).integers(0, most, count)
    terms = np.where(np.arange(count) % 3 == 0, 1e16, 1.0)
    expected: dict[int, float] = {}
    for key, term in zip(keys.tolist(), terms.tolist(), strict=True):
        expected[key] = expected[key] + term if key in expected else term
    for combine, pointer in ((compiled(routines.combined), np.asarray), (checked_intrinsics.combined, checked_intrinsics.Checked)):
        listed, values = np.zeros(2 * count, np.int64), np.zeros(2 * count)
        listed[:count], values[:count] = keys, terms
        kept = combine(pointer(listed), pointer(values), count)
        assert dict(zip(listed[:kept].tolist(), values[:kept].tolist(), strict=True)) == expected
        assert listed[:kept].tolist() == sorted(expected)


def uses_flags() -> bool:
    return any("flagged" in kernel.source.text for kernel in plans.PROCESS.kernels.values())


@pytest.mark.parametrize("expr", ["ij->j", "ij,i->j", "ijk->j", "ijk->k", "ijk,k->j"])
def test_one_row_of_many_sums_is_flagged(expr: str, plain: pytest.MonkeyPatch) -> None:
    """Inserted coordinates are stored in order, also if their sum is 0, and no others."""
    first = expr.partition("-")[0].partition(",")[0]
    for shape in ((40, 9, 7), (200, 5, 3), (3, 0, 2)):
        generator = torch.Generator().manual_seed(0)
        sizes = shape[: len(first)]
        D = torch.randint(-1, 2, sizes, generator=generator).double()
        D *= torch.rand(sizes, generator=generator) < 0.5
        D[:, 1:2] = 0
        x = torch.arange(1.0, shape[0 if ",i" in expr else 2] + 1, dtype=torch.float64)
        dense = [D, x] if ",i" in expr or ",k" in expr else [D]
        result = ns.einsum(expr, ns.from_torch(D), *dense[1:], format="infer")
        assert torch.equal(result.to_dense(), torch.einsum(expr, *dense))
        term_counts = torch.einsum(expr, *[(array != 0).double() for array in dense])
        assert result.pattern.level_arrays(0)[1].tolist() == term_counts.nonzero().flatten().tolist()
    assert uses_flags()


def test_one_row_of_few_sums_is_listed(plain: pytest.MonkeyPatch) -> None:
    A = ns.from_coo([[0, 1, 1], [400, 7, 400]], [1.0, 2.0, 3.0], (2, 1000))
    assert ns.einsum("ij->j", A).to_dense().nonzero().flatten().tolist() == [7, 400]
    assert not uses_flags()


def test_one_row_compiled(fresh_plans: pytest.MonkeyPatch) -> None:
    D = torch.randint(-3, 4, (60, 31)).float()
    for _ in range(3):  # flags of the previous call are cleared
        D[:, 5:9] = 0
        result = ns.einsum("ij->j", ns.from_torch(D))
        assert torch.equal(result.to_dense(), D.sum(0))
        assert result.nnz == 27
        D = D.flip(1)
        D[:, :] = torch.where(D == 0, 1.0, D)
    assert uses_flags()


# ---- reductions other than sums


REDUCTIONS = ("max", "min", "prod", "any", "all", "or_and", "min_plus", "max_plus")
UNCOUNTED = ("any", "or_and", "min_plus", "max_plus")  # absent terms do not change these
START = {"min_plus": np.inf, "max_plus": -np.inf}
JOINED: dict[str, Callable[..., np.ndarray]] = {
    **{"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "any": np.max, "all": np.min, "or_and": np.max},
    **{"min_plus": np.min, "max_plus": np.max},
}


def reduced(expr: str, arrays: list[np.ndarray], stored: list[np.ndarray], reduce: str) -> tuple[np.ndarray, np.ndarray]:
    """The dense result of a reduction, and the mask of entries that have a term."""
    terms, result = expr.split("->")[0].split(","), expr.split("->")[1]
    names = result + "".join(dict.fromkeys(name for term in terms for name in term if name not in result))

    def aligned(term: str, array: np.ndarray) -> np.ndarray:
        order = [term.index(name) for name in names if name in term]
        return array.transpose(order)[tuple(slice(None) if name in term else None for name in names)]

    is_term = np.ones((1,) * len(names), bool)
    for term, mask in zip(terms, stored, strict=True):
        is_term = is_term & aligned(term, mask)
    value = np.zeros(is_term.shape) if reduce in START else np.ones(is_term.shape)
    for term, array in zip(terms, arrays, strict=True):
        value = value + aligned(term, array) if reduce in START else value * aligned(term, array)
    value = np.where(is_term, value, START.get(reduce, 0.0))
    value = (value != 0) * 1.0 if reduce in ("any", "all", "or_and") else value
    along = tuple(range(len(result), len(names)))
    return JOINED[reduce](value, axis=along), is_term.any(along)


def stored_operand(array: np.ndarray, stored: np.ndarray, fmt: ns.Format) -> ns.SparseTensor:
    """A tensor that stores the given coordinates, also if their value is 0."""
    indices = np.stack(np.nonzero(stored)) if array.ndim else np.zeros((0, 1), np.int64)
    return ns.from_coo(indices, torch.from_numpy(array[stored]), array.shape, format=fmt)


@pytest.mark.filterwarnings("ignore:.* stores .* values for", "ignore:invalid value")
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_of_collected_rows(reduce: str, plain: pytest.MonkeyPatch) -> None:
    """Absent terms are 0, or no terms in a semiring; stored zeros, negative values and NaN are terms, in full rows and others."""
    collected: set[type] = set()
    for seed in range(scaled(750)):
        rng, numbers = random.Random(seed), np.random.default_rng(seed)
        plain.setattr(tuning, "PARALLEL_STEPS", 0 if seed % 2 else 1 << 15)
        plain.setattr(tuning, "DENSE_ROW", -1 if seed % 3 == 0 else 1 << 62)
        plain.setattr(tuning, "REUSED_PLACES", float("inf"))
        plain.setattr(tuning, "CLEARED_PLACES", rng.choice((0.0, 1e9)))
        expr = rng.choice((*EXPRESSIONS, "ij->j", "i,ij->j", "ijk->k"))
        sizes = {name: rng.choice((1, 2, 5, 9)) for name in "ijkl"}
        values = rng.choice(([-2.0, -1.0, 0.0, 0.5, 3.0], [-2.0, -1.0], [1.0, np.nan, np.inf, 0.0]))
        terms = expr.split("->")[0].split(",")
        shapes = [[sizes[name] for name in term] for term in terms]
        stored = [numbers.random(shape) < numbers.choice((0.2, 0.7, 1.0)) for shape in shapes]
        arrays = [np.where(mask, numbers.choice(values, mask.shape), 0.0) for mask in stored]
        formats = [rng.choice(("s" * len(term), "o" * len(term), "d" * (len(term) - 1) + "s")) for term in terms]
        operands = [stored_operand(*operand) for operand in zip(arrays, stored, map(ns.Format, formats), strict=True)]
        result_names = expr.split("->")[1]
        matrices = [ns.CSC, ns.CSR, UNORDERED] if len(result_names) == 2 else []
        fmt = rng.choice((None, "dense", ns.CSF(len(result_names)), ns.COO(len(result_names)), *matrices))
        result = ns.einsum(expr, *operands, reduce=reduce, format=fmt)
        collected |= workspace_kinds()
        expected, has_term = reduced(expr, arrays, stored, reduce)
        if isinstance(result, ns.SparseTensor):
            validate(result.pattern)
            result, expected = result.to_dense(), np.where(has_term, expected, 0.0)
        np.testing.assert_allclose(result.numpy(), expected, err_msg=f"seed {seed}: {expr} of {formats} in {fmt}")
    assert collected >= ({Listed, Hashed} if reduce in UNCOUNTED else {Listed, Hashed, Cleared})


MATRICES = (ns.CSR, ns.CSC, ns.DCSR, ns.COO(2))


@pytest.mark.parametrize(("fmt", "requested"), [*((fmt, None) for fmt in MATRICES), *((ns.CSR, fmt) for fmt in MATRICES)])
def test_reductions_collect_rows_as_sums_do(fmt: ns.Format, requested: ns.Format | None) -> None:
    """Reductions have the loops of sums; none runs over all entries of the dense result."""
    indices = torch.stack([torch.arange(2000).repeat_interleave(5), coordinates(2000, 10000, 0)])
    A = ns.from_coo(indices, torch.ones(10000), (2000, 2000), format=fmt)
    sums = ns.explain("ij,jk->ik", A, A, format=requested)
    for reduce in REDUCTIONS:
        others = ns.explain("ij,jk->ik", A, A, format=requested, reduce=reduce)
        assert [loop.var for loop in loops_of(others.steps[-1].stmt)] == [loop.var for loop in loops_of(sums.steps[-1].stmt)]
        assert others.problem.format == sums.problem.format
        assert len(workspaces_of(others.steps[-1].stmt)) == 1


@pytest.mark.parametrize("per_row", [2, 50])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_reductions_scatter_into_dense_rows_as_sums_do(reduce: str, per_row: int) -> None:
    indices = torch.stack([torch.arange(2000).repeat_interleave(per_row), coordinates(2000, 2000 * per_row, 0)])
    A = ns.from_coo(indices, torch.ones(2000 * per_row), (2000, 2000), format=ns.CSR)
    for expr, operands in (("ij,jk->ik", (A, A)), ("ij->j", (A,)), ("ij,jk->ki", (A, A)), ("ij,kj->ik", (A, A))):
        sums, others = (ns.explain(expr, *operands, format="dense", reduce=op).steps[-1].stmt for op in ("sum", reduce))
        levels = [type(space.tensor.format.levels[0]) for space in workspaces_of(others)]
        assert levels == ([] if reduce in UNCOUNTED else [Listed if per_row == 2 and len(operands) == 2 else Cleared])
        assert list(dict.fromkeys(loop.var for loop in reversed(loops_of(others)))) == [loop.var for loop in reversed(loops_of(sums))]


@pytest.mark.parametrize("reduce", ["max", "all", "min_plus"])
def test_reductions_of_collected_rows_compiled(reduce: str, fresh_plans: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(7)
    stored = [numbers.random((90, 60)) < 0.2, numbers.random((60, 90)) < 0.2]
    stored[0][5] = True
    stored[1][:, 3:8] = True  # all terms are present in these columns
    arrays = [np.where(mask, numbers.integers(-3, 4, mask.shape) + 0.5, 0.0) for mask in stored]
    A, B = (stored_operand(*operand, ns.CSR) for operand in zip(arrays, stored, strict=True))
    expected, has_term = reduced("ij,jk->ik", arrays, stored, reduce)
    for kind in ("list", "hash"):
        result = ns.einsum("ij,jk->ik", A, B, reduce=reduce, schedule=f"parallelize(i) workspace({kind})")
        np.testing.assert_allclose(np.asarray(result.to_dense()), np.where(has_term, expected, 0.0))
        assert result.nnz == has_term.sum()
    expected, has_term = reduced("ij->j", arrays[:1], stored[:1], reduce)
    np.testing.assert_allclose(np.asarray(ns.einsum("ij->j", A, reduce=reduce, format="s").to_dense()), np.where(has_term, expected, 0.0))
