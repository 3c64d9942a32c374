"""Conversions by kernels: entries appended, placed, read from dense tensors, and written to dense tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import numpy as np
import pytest
import torch
from scale import scaled
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.convert import conversions
from numscorch.convert.conversion_plan import can_be_spaced, steps_between
from numscorch.convert.conversions import converted
from numscorch.frontend.copy_statements import copying
from numscorch.ir.assembled import can_be_placed, is_placed
from numscorch.ir.derived_formats import can_be_assembled
from numscorch.ir.format import Format
from numscorch.ir.index import TensorVar
from numscorch.ir.notation import parse_stmt
from numscorch.ir.verify import verify
from numscorch.runtime import plans, result_arrays
from numscorch.schedule import tuning
from numscorch.tensors.packing import pack
from numscorch.tensors.validate import validate

LETTERS = ("s", "d", "o", "ds", "ss", "oo", "sd", "sss", "dss", "ooo", "dsd", "sds", "soo", "doo", "dds", "dsss", "oooo", "ddss", "dood")
UNORDERED = [
    Format("(i, j) -> (i: dense, j: compressed(ordered=False))"),
    Format("(i, j) -> (j: compressed, i: compressed(ordered=False))"),
    Format("(i, j, k) -> (j: dense, i: dense, k: compressed(ordered=False))"),
    Format("(i, j, k) -> (i: dense, k: compressed(unique=False), j: singleton(ordered=False))"),
    Format("(i) -> (i: compressed(ordered=False))"),
]
MATRICES = (
    "i: dense, j: fixed",
    "j: fixed, i: dense",
    "i: compressed, j: fixed",
    "i: dense, j: bitmap",
    "i: bitmap, j: compressed",
    "i: dense, j: hash",
    "j: hash, i: compressed",
    "j: hash, i: dense",
    "j - i: compressed, i: range, j: offset",
    "j - i: dense, i: range, j: offset",
    "i: dense, j: band(6, 8)",
    "i: dense, j: compressed(bits=8)",
    "i // 4: dense, j // 3: compressed, i % 4: dense, j % 3: dense",
    "j // 2: compressed, i // 4: compressed, j % 2: dense, i % 4: bitmap",
    "i // 4: dense, j: compressed, i % 4 // 2: dense, i % 2: compressed",
    "i: dense, j // 4: dense, j % 4: fixed(4)",
    "i // 2: dense, j // 4: dense, j % 4: fixed(4), i % 2: dense",
)
CUBES = (
    "i: dense, j // 2: compressed, k // 3: compressed, j % 2: dense, k % 3: dense",
    "i: compressed, k - j: compressed, j: range, k: offset",
    "k: dense, i: bitmap, j: compressed",
    "i: compressed, j: hash, k: dense",
    "j: compressed, k: bitmap, i: fixed",
)
VECTORS = ("i: bitmap", "i: hash", "i: fixed", "i // 4: compressed, i % 4: dense")
OTHER = [
    Format(f"({', '.join(names)}) -> ({levels})") for names, all_ in (("i", VECTORS), ("ij", MATRICES), ("ijk", CUBES)) for levels in all_
]
PLAIN = [Format(text, order) for text in LETTERS for order in permutations(range(len(text))) if len(text) < 4 or order[0] > 1]
EVERY = [*PLAIN, *UNORDERED, *OTHER]
SHAPES = {1: (9,), 2: (6, 8), 3: (4, 5, 6), 4: (3, 4, 2, 5)}


@pytest.fixture
def small(plain: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Kernels run as Python and convert even small tensors."""
    plain.setattr(tuning, "COMPILE_ENTRIES", 0)
    plain.setattr(tuning, "COMPILE_VALUES", 0)
    plain.setattr(tuning, "COUNTED_COORDINATES", 1 << 10)
    return plain


def entries(shape: tuple[int, ...], seed: int, density: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.integers(1, 5, shape) * (rng.random(shape) < density), np.float64)


def sparse(array: np.ndarray, fmt: Format) -> ns.SparseTensor:
    return ns.from_torch(torch.from_numpy(array), fmt)


def expected(array: np.ndarray, target: Format) -> ns.SparseTensor:
    """The conversion through coordinate arrays."""
    pattern, slots, order = pack(np.array(np.nonzero(array)), array.shape, target, np.int32)
    values = np.zeros(pattern.nnz)
    values[slots] = array[np.nonzero(array)][order]
    return ns.SparseTensor(pattern, torch.from_numpy(values))


def same(result: ns.SparseTensor, reference: ns.SparseTensor) -> bool:
    validate(result.pattern)
    arrays = zip(result.pattern.views, reference.pattern.views, strict=True)
    return all(np.array_equal(a, b) for a, b in arrays) and torch.equal(result.values, reference.values)


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("source", EVERY, ids=str)
def test_every_format_to_every_other(source: Format, small: pytest.MonkeyPatch) -> None:
    array = entries(SHAPES[source.order], seed=source.order)
    packed: list[Format] = []
    small.setattr(conversions, "pack", lambda indices, shape, fmt, *dtype: packed.append(fmt) or pack(indices, shape, fmt, *dtype))
    targets = [f for f in EVERY if f.order == source.order and f != source and not f.is_dense]
    step = 1 if scaled(100) == 100 else 15  # other targets for each source
    for at, target in enumerate(targets[EVERY.index(source) % step :: step]):
        small.setattr(tuning, "PARALLEL_STEPS", 0 if at % 2 else 1 << 15)
        small.setattr(tuning, "BLOCKS", 1 + at % 5)
        A = sparse(array, source)
        packed.clear()
        result, again = A.to(target), A.to(target)
        assert result.pattern is again.pattern, target
        assert not packed or source.is_dense or not can_be_spaced(target), (source, target)
        assert torch.equal(result.values, again.values)
        assert torch.equal(result.to_dense(), torch.from_numpy(array)), target
        if target.is_ordered and A.nnz == np.count_nonzero(array):
            assert same(result, expected(array, target)), target


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_placed_entries_do_not_depend_on_threads(workers: int, small: pytest.MonkeyPatch) -> None:
    small.setattr(tuning, "PARALLEL_STEPS", 0)
    small.setattr("numscorch.machine.threads.workers", lambda: workers)
    array = entries(SHAPES[2], seed=5)
    assert same(sparse(array, ns.CSR).to(ns.CSC), expected(array, ns.CSC))


@pytest.mark.parametrize("target", [f for f in PLAIN if can_be_assembled(f)], ids=str)
def test_nonzeros_of_dense_tensors(target: Format, small: pytest.MonkeyPatch) -> None:
    array = entries(SHAPES[target.order], seed=7)
    dense = torch.from_numpy(array)
    A = ns.from_torch(dense, target)
    assert A.format == target
    assert same(A, expected(array, target))
    strided = torch.from_numpy(np.asfortranarray(array))
    assert same(ns.from_torch(strided, target), A)


def test_nan_is_stored_and_negative_zero_is_not(small: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(torch.tensor([[float("nan"), -0.0], [0.0, float("inf")]]), ns.CSR)
    assert A.indices().tolist() == [[0, 1], [0, 1]]
    assert A.pattern.index_dtype == "int32"


def test_gradients_follow_the_order_of_converted_values(small: pytest.MonkeyPatch) -> None:
    values = torch.rand(5, dtype=torch.float64, requires_grad=True)
    A = ns.from_csr([0, 2, 3, 5], [0, 2, 1, 0, 1], values, (3, 3))
    converted_tensor = A.to(ns.CSC)
    (converted_tensor.values * torch.arange(5)).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == converted(A.pattern, ns.CSC).order.argsort().tolist()
    assert A.to_dense().requires_grad


def test_bool_and_16_bits(small: pytest.MonkeyPatch) -> None:
    array = entries(SHAPES[2], seed=3)
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.int8):
        dense = torch.from_numpy(array).to(dtype)
        A = ns.from_torch(dense, ns.CSR)
        assert torch.equal(A.to(ns.CSC).to_dense(), dense)
        assert A.to(ns.DCSC).dtype == dtype


def test_dimensions_too_long_to_count_are_sorted(small: pytest.MonkeyPatch) -> None:
    A = ns.from_coo([[0, 1, 2], [5, 2**40, 7]], [1.0, 2.0, 3.0], (3, 2**41))
    assert steps_between(ns.COO(2), ns.DCSC, (True, False)) == ()
    assert A.to(ns.DCSC).values.tolist() == [1.0, 3.0, 2.0]


def test_a_sum_is_placed_where_that_is_cheaper(small: pytest.MonkeyPatch) -> None:
    arrays = [entries(SHAPES[2], seed=seed) for seed in (1, 2)]
    A, B = (sparse(array, ns.CSR) for array in arrays)
    result = ns.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format=ns.CSC)
    assert is_placed(ns.explain("C[i,j] = A[i,j] + B[i,j]", A=A, B=B, format=ns.CSC).steps[-1].stmt)
    assert same(result, expected(arrays[0] + arrays[1], ns.CSC))


def test_can_be_placed() -> None:
    assert can_be_placed(ns.CSC)
    assert not can_be_placed(ns.DCSR)
    assert not can_be_placed(ns.COO(2))


@pytest.mark.parametrize("seed", range(2))
def test_compiled_conversions(seed: int, fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COMPILE_ENTRIES", 0)
    fresh_plans.setattr(tuning, "COMPILE_VALUES", 0)
    fresh_plans.setattr(tuning, "PARALLEL_STEPS", 0)
    array = entries((300, 400), seed, 0.1)
    A = ns.from_torch(torch.from_numpy(array), ns.CSR)
    for source, target in ((ns.CSR, ns.CSC), (ns.CSC, ns.DCSR), (ns.COO(2), ns.CSR)):
        assert same(A.to(source).to(target), expected(array, target))
    plan = plans.find_plan(copying(ns.CSR, ns.CSC), ns.CSC, (A,), ("a test's",))
    assert is_placed(plan.steps[-1].stmt)
    assert torch.equal(A.to_dense(), torch.from_numpy(array))


def test_many_dimensions(small: pytest.MonkeyPatch) -> None:
    """The search skips impossible loop orders; seven loops have 5040 orders."""
    shape = (2, 3, 2, 2, 3, 2, 2)
    A = sparse(entries(shape, seed=4, density=0.2), ns.COO(7))
    permuted = A.permute(6, 5, 4, 3, 2, 1, 0)
    assert torch.equal(permuted.to_dense(), A.to_dense().permute(6, 5, 4, 3, 2, 1, 0))
    target = Format("o" * 7, (6, 0, 1, 2, 3, 4, 5))
    assert torch.equal(A.to(target).to_dense(), A.to_dense())
    squared = ns.einsum("abcdefg,abcdefg->abcdefg", A, A, format="d" + "o" * 6)
    assert torch.equal(squared.to_dense(), A.to_dense() ** 2)


def test_an_index_may_have_the_name_of_a_tensor(small: pytest.MonkeyPatch) -> None:
    A = sparse(entries((4, 4), seed=1), ns.CSR)
    assert torch.equal(ns.einsum("Cj,Cj->Cj", A, A, format=ns.CSC).to_dense(), A.to_dense() ** 2)


def test_more_entries_of_a_parent_than_int32_can_count(small: pytest.MonkeyPatch) -> None:
    """The count of one worker for one parent may exceed the limit of the whole result."""
    small.setattr(result_arrays, "INT32_MAX", 20)
    A, B = sparse(np.ones(6), Format("s")), sparse(np.ones((6, 1)), Format("oo"))
    layout = Format("(i, j, k) -> (k: dense, i: compressed(unique=False), j: singleton)")
    with pytest.raises(ns.SizeError, match="36 entries, more than int32 can count"):
        ns.einsum("i,jk->ijk", A, B, format=layout, schedule="reorder(i, j, k)")


def test_the_memory_limit_guards_placed_results(small: pytest.MonkeyPatch) -> None:
    small.setattr("numscorch.machine.memory.ASK_FROM", 1 << 10)
    small.setenv("NUMSCORCH_MEMORY_LIMIT", "100K")
    A = ns.from_coo([[5], [60_000]], [1.0], (100_000, 100_000), ns.DCSR)
    with pytest.raises(ns.SizeError, match="but the limit is"):
        ns.evaluate("C[i,j] = A[i,j] + B[i,j]", A=A, B=A, format=ns.CSC)


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.* is deprecated:DeprecationWarning", "ignore:There is a performance drop:UserWarning"
)
def test_tangents_and_vmap_bypass_the_kernels(small: pytest.MonkeyPatch) -> None:
    A = sparse(entries((6, 8), seed=2), ns.CSR)
    with forward_ad.dual_level():
        values = forward_ad.make_dual(A.values, torch.ones_like(A.values))
        for result in (A.with_values(values).to(ns.CSC).values, A.with_values(values).to_dense()):
            assert torch.equal(forward_ad.unpack_dual(result).tangent, (result != 0).double())
        dual = forward_ad.make_dual(torch.eye(3), torch.ones(3, 3))
        assert forward_ad.unpack_dual(ns.from_torch(dual, ns.CSR).values).tangent is not None
    twice = torch.stack([A.values, 2 * A.values])
    assert torch.equal(torch.vmap(lambda v: A.with_values(v).to_dense())(twice)[1], 2 * A.to_dense())


def test_concurrent_conversions_share_a_pattern(fresh_plans: pytest.MonkeyPatch) -> None:
    fresh_plans.setattr(tuning, "COMPILE_ENTRIES", 0)
    for seed in range(5):
        A = sparse(entries((40, 50), seed), ns.CSR)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _, A=A: A.to(ns.CSC), range(8)))
        assert len({id(B.pattern) for B in results}) == 1
        assert all(torch.equal(B.to_dense(), A.to_dense()) for B in results)


def test_explain_shows_placed_results() -> None:
    A = sparse(entries((600, 800), seed=3), ns.CSR)
    assert "entries of C[i,j] are written out of order" in str(ns.explain("C[i,j] = A[i,j] + B[i,j]", A=A, B=A, format=ns.CSC))


def test_verify_refuses_sums_that_would_be_placed() -> None:
    C = TensorVar("C", ns.CSR)
    with pytest.raises(ns.ScheduleError, match="can't be read in the order"):
        verify(parse_stmt("forall(j, forall(k, forall(i, C[i,j] += A[i,k] * B[k,j])))", {"C": C}))


@pytest.mark.parametrize("levels", ["j % 7: dense, j // 7: dense, i: dense", "j % 2: dense, j % 4 // 2: dense, j // 4: dense, i: dense"])
def test_blocks_of_dense_levels_only(levels: str, small: pytest.MonkeyPatch) -> None:
    array = entries((5, 9), seed=2)
    A = sparse(array, Format(f"(i, j) -> ({levels})"))
    assert torch.equal(A.to_dense(), torch.from_numpy(array))
    x = torch.arange(9, dtype=torch.float64)
    assert torch.equal(ns.einsum("ij,j->i", A, x), torch.from_numpy(array) @ x)


HARD = (
    "i: dense, j // 4: dense, j % 4: hash",
    "i // 3: dense, j: compressed, i % 3: hash",
    "i % 3: dense, j: compressed, i // 3: hash",
    "j // 6: compressed, j % 2: dense, i: dense, j % 6 // 2: hash",
    "i % 5: compressed(unique=False), j: singleton, i // 5: hash",
    "j // 2: bitmap, j % 2: compressed(bits=8), i % 2: dense, i // 2: hash",
    "i // 5: fixed, i % 5: dense, j % 3: dense, j // 3: hash",
    "i % 4: compressed, i // 4: compressed, j: dense",
)
HARDER = (
    "j - i: compressed, i: range, j: offset, k: dense",
    "j - i: compressed, i: range, j: offset, k: hash",
    "j % 2: dense, j // 2: compressed(unique=False), k - i: singleton, i: compressed, k: offset",
    "k // 3: hash, k % 3: compressed, j - i: compressed, i: compressed, j: offset",
    "i % 4: dense, i % 8 // 4: hash, i // 8: compressed, k - j: compressed, j: range, k: offset",
    "k // 12: compressed, k % 12 // 4: compressed(bits=16), j - i: compressed, i: range, j: offset, k % 4: hash",
)
CHAINS = [("ij", levels) for levels in HARD] + [("ijk", levels) for levels in HARDER] + [("i", "i % 3: compressed, i // 3: compressed")]


@pytest.mark.filterwarnings("ignore:.* stores .* values for")
@pytest.mark.parametrize("names, levels", CHAINS)
def test_levels_that_mix_orders_and_parts(names: str, levels: str, small: pytest.MonkeyPatch) -> None:
    order = len(names)
    array, fmt = entries(SHAPES[order], seed=3, density=0.6), Format(f"({', '.join(names)}) -> ({levels})")
    for start in (Format("o" * order if order > 1 else "s"), Format("s" * order, tuple(range(order))[::-1])):
        A = sparse(array, start).to(fmt)
        assert torch.equal(A.to_dense(), torch.from_numpy(array))
        for back in ("s" * order, "d" * (order - 1) + "s"):
            result = A.to(Format(back))
            validate(result.pattern)
            assert torch.equal(result.to_dense(), torch.from_numpy(array))
            assert A.nnz > np.count_nonzero(array) or same(result, expected(array, Format(back)))


def test_the_error_names_the_level_that_an_entry_does_not_fit(small: pytest.MonkeyPatch) -> None:
    A = sparse(np.ones((8, 8)), ns.CSR)
    for levels, level in (("j: band(1, 1)", "band"), ("j: causal", "causal"), ("j: identity", "identity"), ("j: fixed(1)", "fixed")):
        with pytest.raises(ns.FormatError, match=f"level 2 .{level}"):
            A.to(Format(f"(i, j) -> (i: dense, {levels})"))
    with pytest.raises(ns.FormatError, match=r"level 2 .*j % 2: fixed"):
        A.to(Format("(i, j) -> (i: dense, j // 2: band(0, 1), j % 2: fixed)"))


def test_padding_is_checked_against_the_memory_limit_first(small: pytest.MonkeyPatch) -> None:
    n = 200_000
    A = ns.from_csr([0, n, *range(n + 1, 2 * n)], torch.cat([torch.arange(n), torch.arange(1, n)]), torch.ones(2 * n - 1), (n, n))
    with pytest.raises(ns.SizeError, match="but the limit is"):
        A.to(ns.ELL)


def test_rows_that_a_diagonal_does_not_cross_are_refused() -> None:
    with pytest.raises(ns.FormatError, match="use range"):
        Format("(i, j) -> (j - i: compressed, i: dense, j: offset)")


def test_few_entries_plan_no_kernels(plain: pytest.MonkeyPatch) -> None:
    plain.setattr(conversions, "steps_between", lambda *_: pytest.fail("the steps are planned"))
    D = torch.arange(60.0).reshape(3, 4, 5) % 3
    assert torch.equal(ns.from_torch(D, ns.CSF(3)).to(ns.Format("sss", (2, 0, 1))).to_dense(), D)
