"""Random programs: results and gradients of fused statements equal those of the separate statements."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dense_values import as_dense
from random_programs import Program, draw_program
from scale import scaled
from torch import Tensor

import numscorch as ns
from numscorch.programs import evaluation, steps
from numscorch.runtime.plans import uncompiled

PARTS = 2
Results = dict[str, Tensor | None]  # the result, and the gradient of each operand


class FusionCounts:
    """Counts of groups that were fused, and of groups computed with gradients."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.groups = self.gradients = 0
        group_from, with_gradients = steps.group_from, evaluation.fused_with_gradients

        def group(*args: Any) -> Any:
            outcome = group_from(*args)
            self.groups += outcome is not None
            return outcome

        def gradients(*args: Any) -> Any:
            outcome = with_gradients(*args)
            self.gradients += outcome is not None
            return outcome

        patch.setattr(steps, "group_from", group)
        patch.setattr(evaluation, "fused_with_gradients", gradients)


def values_of(tensor: Any) -> Tensor:
    return tensor.values if isinstance(tensor, ns.SparseTensor) else tensor


def result(program: Program) -> Any:
    return ns.evaluate(program.text, **program.operands())


def gradients(program: Program) -> Results:
    """Values of the result, and gradients of a random subset of operands, of which each may be computed from the one before."""
    draw = random.Random(program.given[0].seed)
    operands = program.operands()
    leaves: dict[int, Tensor] = {}
    values: dict[int, Tensor] = {}
    is_chain, create_graph = draw.random() < 0.5, draw.random() < 0.5
    for name in sorted(operands):
        operand = operands[name]
        if id(operand) not in leaves and draw.random() < 0.6:
            leaf = leaves[id(operand)] = values_of(operand).detach().clone().requires_grad_()
            values[id(operand)] = leaf * (1.0 + list(values.values())[-1].sum().tanh()) if is_chain and values else leaf * 1.0
    inputs = {name: _with(operand, values[id(operand)]) if id(operand) in values else operand for name, operand in operands.items()}
    output = values_of(ns.evaluate(program.text, **inputs))
    by_leaf: dict[int, Tensor | None] = {}
    if output.requires_grad:
        upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(output.dtype)
        of_leaves = torch.autograd.grad(output, list(leaves.values()), upstream, create_graph=create_graph, allow_unused=True)
        by_leaf = {at: None if gradient is None else gradient.detach() for at, gradient in zip(leaves, of_leaves, strict=True)}
    return {"the result": output.detach()} | {name: by_leaf.get(id(o)) for name, o in operands.items() if id(o) in leaves}


def _with(operand: Any, leaf: Tensor) -> Any:
    return operand.with_values(leaf) if isinstance(operand, ns.SparseTensor) else leaf


def unfused(compute: Callable[[Program], Any], program: Program) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "group_from", lambda *_: None)
        return compute(program)


def result_difference(program: Program) -> str | None:
    """A description of how fused and unfused results differ, or None. Programs that cannot run unfused raise."""
    expected = unfused(result, program)
    try:
        fused = result(program)
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    kinds = [f"{output.format}" if isinstance(output, ns.SparseTensor) else "a torch tensor" for output in (fused, expected)]
    if kinds[0] != kinds[1]:
        return f"is {kinds[0]}, not {kinds[1]}"
    dense = [as_dense(output) for output in (fused, expected)]
    return difference_of(*dense)


def gradient_difference(program: Program) -> str | None:
    """A description of how fused and unfused gradients differ, or None."""
    expected = unfused(gradients, program)
    try:
        fused = gradients(program)
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    for name, gradient in expected.items():
        both = fused[name], gradient
        like = next((tensor for tensor in both if tensor is not None), None)
        if like is None:
            continue
        if why := difference_of(*(torch.zeros_like(like) if tensor is None else tensor for tensor in both)):  # a missing gradient is zero
            return f"{name}: {why}"
    return None


def difference_of(actual: Tensor, expected: Tensor) -> str | None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"is {tuple(actual.shape)} of {actual.dtype}, not {tuple(expected.shape)} of {expected.dtype}"
    tolerance = 1e-3 if expected.dtype == torch.float32 else 1e-9
    finite = expected[expected.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    if torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * max(min(scale, 1e3), 0.1), equal_nan=True):
        return None
    is_same = (actual == expected) | (actual.isnan() & expected.isnan())
    worst = torch.where(is_same, -1, (actual - expected).abs().nan_to_num(torch.inf))
    at = tuple(int(x) for x in torch.unravel_index(worst.argmax(), worst.shape))
    return f"at {at} {float(actual[at])}, not {float(expected[at])}"


Compare = Callable[[Program], str | None]


def shrunk(program: Program, compare: Compare) -> tuple[Program, str]:
    """The smallest program that still differs, and the difference."""
    why = compare(program) or ""
    for _ in range(300):
        for smaller in program.smaller():
            if difference := difference_or_none(smaller, compare):
                program, why = smaller, difference
                break
        else:
            break
    return program, why


def difference_or_none(program: Program, compare: Compare) -> str | None:
    try:
        return compare(program)
    except Exception:  # the program cannot run unfused
        return None


def check(compare: Compare, seeds: range, share: int, count_of: Callable[[FusionCounts], int]) -> None:
    """Compare seeded programs, every ``share``-th like attention; many must be fused, and programs that cannot run are skipped."""
    print(f"programs of seeds {seeds.start} to {seeds.stop - 1}")
    computed = fused = 0
    failed: list[str] = []
    with uncompiled(), pytest.MonkeyPatch.context() as patch:
        counts = FusionCounts(patch)
        for seed in seeds:
            program, before = draw_program(seed, seed % share == 0), count_of(counts)
            try:
                why = compare(program)
            except Exception:  # the program cannot run unfused
                continue
            computed, fused = computed + 1, fused + (count_of(counts) > before)
            if why is not None:
                small, why_small = shrunk(program, compare)
                failed.append(f"seed {seed} {why}\n{program}\nshrunk: {why_small}\n{small}")
    print(f"{computed} of {len(seeds)} programs computed, {fused} of them fused")
    assert not failed, f"{len(failed)} programs differ\n\n" + "\n\n".join(failed)
    assert computed > len(seeds) // 2 and fused >= max(computed // 25, 1)


@pytest.mark.parametrize("part", range(PARTS))
def test_results_equal_those_of_the_parts(part: int) -> None:
    count = scaled(1000) // PARTS
    check(result_difference, range(10_000 * part, 10_000 * part + count), 2, lambda counts: counts.groups)


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients_equal_those_of_the_parts(part: int) -> None:
    count = scaled(1000) // PARTS
    check(gradient_difference, range(10_000 * part + 15_000, 10_000 * part + 15_000 + count), 1, lambda counts: counts.gradients)
