"""Plans for other sizes share kernels: results and errors are those of a plan that is made anew."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import EinsumCase, random_case
from choices import any_choices
from dense_values import as_dense
from scale import scaled

import numscorch as ns
from numscorch.errors import NumscorchError
from numscorch.frontend.requests import einsum_request
from numscorch.ir.symbolic import DECIDING, Decisions
from numscorch.machine import kernel_cache
from numscorch.runtime import plans, tuned


def outcome(case: EinsumCase) -> np.ndarray | str:
    """The dense result, or the text of the error."""
    try:
        result = ns.einsum(case.expr, *case.operands(), format=case.result)
    except (NumscorchError, RuntimeError) as error:  # pairs of dense operands are torch's
        return f"{type(error).__name__}: {error}"
    return np.asarray(as_dense(result))


def resized(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    """The array with another size along an axis; its entries are repeated, or left out."""
    if not array.shape[axis]:
        return np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]))
    repeated = np.take(array, np.arange(size) % array.shape[axis], axis)
    return repeated if array.flags.c_contiguous else np.asfortranarray(repeated)


def variants(case: EinsumCase) -> Iterator[EinsumCase]:
    """The case with other sizes of one index in all operands, and in a single dimension, which fits rarely."""
    terms = case.expr.partition("->")[0].split(",")
    rng = random.Random(case.seed)
    places = [(at, axis, name) for at, term in enumerate(terms) for axis, name in enumerate(term)]
    for name in dict.fromkeys(name for *_, name in places):
        places_of_index = [(at, axis) for at, axis, other in places if other == name]
        at, axis = places_of_index[0]
        size = case.arrays[at].shape[axis]
        for other in sorted({0, 1, max(size - 1, 0), size + 1, 2 * size, size + 8} - {size}):
            for changed in (places_of_index, [rng.choice(places_of_index)]):
                arrays = list(case.arrays)
                for at, axis in changed:
                    arrays[at] = resized(arrays[at], axis, other)
                yield replace(case, arrays=tuple(arrays))


@pytest.mark.parametrize("part", range(4))
def test_other_sizes_have_the_outcomes_of_new_plans(part: int, fresh_plans: pytest.MonkeyPatch) -> None:
    """Each random case is followed by cases of the same kind with sizes that differ a little, are 0 or 1, or do not fit.

    All sizes from 2 round to the same number, so that kinds of plans differ only where exact sizes matter.
    """
    count = scaled(100)
    bound = kept = 0
    for seed in range(3 * 10**6 + part * count, 3 * 10**6 + (part + 1) * count):
        any_choices(seed, fresh_plans)
        case = random_case(seed)
        fresh_plans.setitem(DECIDING, "rounded", lambda size: min(size, 2) * 32)
        with plans.uncompiled():
            outcome(case)
            for variant in variants(case):
                result = outcome(variant)
                with plans.uncompiled():
                    expected = outcome(variant)
                np.testing.assert_array_equal(result, expected, err_msg=str(variant))
            tables = plans._tables()
            bound, kept = bound + len(tables.plans), kept + sum(map(len, tables.kinds.values()))
    assert bound > kept, "kernels are not shared among sizes"


def test_one_kernel_serves_all_sizes_with_the_same_decisions(fresh_plans: pytest.MonkeyPatch) -> None:
    with plans.uncompiled():
        for size in range(33, 40):
            A, x = ns.from_torch(torch.eye(size)), torch.arange(float(size))
            assert ns.einsum("ij,j->i", A, x).equal(x)
        (decisions,) = plans._tables().kinds.values()
        assert len(plans._tables().plans) == 7 and len(decisions) == 1


def test_a_conflict_keeps_the_newer_decisions() -> None:
    """What decides may depend on more than sizes, such as a threshold that a test changes."""
    decisions = Decisions()
    decisions.add({"s[0] == 1": False}, "first")
    decisions.add({"s[0] == 2": False}, "second")
    assert decisions.find((3,)) == "second"
    decisions.add({}, "third")
    assert decisions.find((3,)) == "third"


PROGRAM = """S[i,j] = stored(A[i,j]) * (Q[i,k] * K[j,k])
m[i] stored max= S[i,j]
E[i,j] = stored(A[i,j]) * exp(S[i,j] - m[i])
O[i,e] = E[i,j] * V[j,e]"""


def test_programs_of_other_sizes_repeat_steps_and_raise_errors_in_their_own_words(fresh_plans: pytest.MonkeyPatch) -> None:
    def given(nodes: int, other: int, width: int, depth: int) -> dict[str, object]:
        A = ns.from_torch((torch.rand(nodes, other) < 0.5).float())
        return {"A": A, "Q": torch.rand(nodes, width), "K": torch.rand(other, width), "V": torch.rand(other, depth)}

    sizes = (40, 34, 5, 3), (39, 33, 5, 3), (38, 35, 5, 3), (40, 34, 5, 1), (40, 34, 1, 3)
    with plans.uncompiled():
        for operands in map(given, *zip(*sizes, strict=True)):
            result = ns.evaluate(PROGRAM, **operands)
            with plans.uncompiled():
                torch.testing.assert_close(result, ns.evaluate(PROGRAM, **operands))
        for name, wrong in (("K", torch.rand(34, 6)), ("V", torch.rand(35, 3)), ("Q", torch.rand(0, 5)), ("V", torch.rand(34, 3, 1))):
            operands = given(*sizes[0]) | {name: wrong}
            with pytest.raises(NumscorchError) as error_of_kind:
                ns.evaluate(PROGRAM, **operands)
            with plans.uncompiled(), pytest.raises(NumscorchError) as expected_error:
                ns.evaluate(PROGRAM, **operands)
            assert str(error_of_kind.value) == str(expected_error.value)


def test_operands_of_another_device_have_no_kind(fresh_plans: pytest.MonkeyPatch) -> None:
    A = ns.from_torch(torch.eye(4))
    with plans.uncompiled():
        for size in (33, 34):
            ns.einsum("ij,jk->ik", A, torch.ones(4, size))
        with pytest.raises(ns.UnsupportedError, match="an operand is on meta"):
            plans.launch(einsum_request("ij,jk->ik", (2, 2)), (A, torch.ones(4, 35, device="meta")), None)


BLOCKS = ns.Format("(i, j) -> (i // 8: dense, i % 8 // 4: dense, i % 4: dense, j: compressed)")


@pytest.mark.parametrize("text", ["C[i,j] = A[i,j] + B[i,j]", "C[i,j] = A[i,j] * B[i,j]", "T[i,j] = A[i,j] + B[i,j]; C[i,j] = 2 * T[i,j]"])
@pytest.mark.parametrize("format", [BLOCKS, ns.CSC, None], ids=str)
def test_programs_of_other_sizes_return_the_format_that_new_ones_do(
    text: str, format: ns.Format | None, fresh_plans: pytest.MonkeyPatch
) -> None:
    """The native format of a kernel's result depends on the remainder of the blocks."""

    def given(size: int) -> dict[str, ns.SparseTensor]:
        generator = torch.Generator().manual_seed(size)
        entries = [torch.randperm(size * size, generator=generator)[:500] for _ in "AB"]
        matrices = [torch.zeros(size * size).index_fill(0, at, 1.0).reshape(size, size) for at in entries]
        return {name: ns.from_torch(matrix, BLOCKS) for name, matrix in zip("AB", matrices, strict=True)}

    with plans.uncompiled():
        for size in (64, 61, 61, 60, 64):  # they round to the same number
            result = ns.evaluate(text, format=format, **given(size))
            with plans.uncompiled():
                expected = ns.evaluate(text, format=format, **given(size))
            assert result.format == expected.format
            torch.testing.assert_close(result.to_dense(), expected.to_dense())


@pytest.mark.parametrize("step", ["T[i,k] = x[i,j] * w[j,k]", "T[i,k] = x[i,k] + w[i,k]", "T[i,k] = x[i,i] * w[i,k]"])
def test_dense_steps_of_known_programs_raise_errors_in_their_own_words(step: str, fresh_plans: pytest.MonkeyPatch) -> None:
    text = f"{step}\ny[i,k] = A[i,j] * T[j,k]"

    def error_for(x: torch.Tensor) -> str:
        with pytest.raises(ns.SizeError) as error:
            ns.evaluate(text, A=ns.from_torch(torch.eye(60)), x=x, w=torch.ones(60, 60))
        return str(error.value)

    with plans.uncompiled():
        ns.evaluate(text, A=ns.from_torch(torch.eye(60)), x=torch.ones(60, 60), w=torch.ones(60, 60))
        message = error_for(torch.ones(60, 57))
        with plans.uncompiled():
            assert message == error_for(torch.ones(60, 57))


def test_new_sizes_take_a_schedule_that_is_adopted_later(fresh_plans: pytest.MonkeyPatch) -> None:
    request = einsum_request("ij,jk->ik", (2, 2))

    def operands(size: int) -> tuple[ns.SparseTensor, torch.Tensor]:
        return ns.from_torch(torch.eye(size)), torch.ones(size, 8)

    with plans.uncompiled():
        ns.einsum("ij,jk->ik", *operands(60))
        key = tuned.key_of(str(request), plans.describe_all(operands(61)), None)
        fresh_plans.setattr(tuned, "_read", {})
        fresh_plans.setattr(kernel_cache, "write", lambda *_: kernel_cache.folder())
        tuned.adopt({key: "reorder(i, k, j)"})
        known = plans.make_plan(request, operands(61), None)
        with plans.uncompiled():
            assert str(known.steps[-1].stmt) == str(plans.make_plan(request, operands(61), None).steps[-1].stmt)
        assert "k" in str(known.steps[-1].stmt)
