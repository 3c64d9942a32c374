"""Random programs: what one kernel computes of several statements, and its gradients, are what the parts alone give."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_programs import Program, draw_program
from scale import scaled
from torch import Tensor

import numscorch as ns
from numscorch.programs import evaluation
from numscorch.runtime.plans import uncompiled

PARTS = 2
Found = dict[str, Tensor | None]  # the result, and the gradient of each operand


class Watched:
    """Which groups were found, and how many were computed with gradients."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.groups = self.gradients = 0
        group_from, with_gradients = evaluation.group_from, evaluation.fused_with_gradients

        def group(*args: Any) -> Any:
            made = group_from(*args)
            self.groups += made is not None
            return made

        def gradients(*args: Any) -> Any:
            made = with_gradients(*args)
            self.gradients += made is not None
            return made

        patch.setattr(evaluation, "group_from", group)
        patch.setattr(evaluation, "fused_with_gradients", gradients)


def values_of(tensor: Any) -> Tensor:
    return tensor.values if isinstance(tensor, ns.SparseTensor) else tensor


def result(program: Program) -> Any:
    return ns.evaluate(program.text, **program.operands())


def gradients(program: Program) -> Found:
    """The result's values, and gradients of a random subset of the operands, which the text decides."""
    draw = random.Random(program.given[0].seed)
    operands = program.operands()
    wanted: dict[int, Tensor] = {}
    for name in sorted(operands):
        own = operands[name]
        if id(own) not in wanted and draw.random() < 0.6:
            wanted[id(own)] = values_of(own).detach().clone().requires_grad_()
    taken = {name: _with(own, wanted[id(own)]) if id(own) in wanted else own for name, own in operands.items()}
    made = values_of(ns.evaluate(program.text, **taken))
    found: Found = {"the result": made.detach()}
    if made.requires_grad:
        upstream = torch.randn(made.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(made.dtype)
        made.backward(upstream)
    return found | {name: wanted[id(own)].grad for name, own in operands.items() if id(own) in wanted}


def _with(operand: Any, leaf: Tensor) -> Any:
    return operand.with_values(leaf) if isinstance(operand, ns.SparseTensor) else leaf


def alone(compute: Callable[[Program], Any], program: Program) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "group_from", lambda *_: None)
        return compute(program)


def same_result(program: Program) -> str | None:
    """None if fused and alone agree; a text that says how they differ. A program that the parts refuse raises."""
    expected = alone(result, program)
    try:
        found = result(program)
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    kinds = [f"{made.format}" if isinstance(made, ns.SparseTensor) else "a torch tensor" for made in (found, expected)]
    if kinds[0] != kinds[1]:
        return f"is {kinds[0]}, not {kinds[1]}"
    dense = [made.to_dense() if isinstance(made, ns.SparseTensor) else made for made in (found, expected)]
    return how_they_differ(*dense)


def same_gradients(program: Program) -> str | None:
    """The same for gradients."""
    expected = alone(gradients, program)
    try:
        found = gradients(program)
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    for name, own in expected.items():
        both = found[name], own
        like = next((made for made in both if made is not None), None)
        if like is None:
            continue
        if why := how_they_differ(*(torch.zeros_like(like) if made is None else made for made in both)):  # none is zero
            return f"{name}: {why}"
    return None


def how_they_differ(found: Tensor, expected: Tensor) -> str | None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"is {tuple(found.shape)} of {found.dtype}, not {tuple(expected.shape)} of {expected.dtype}"
    tolerance = 1e-3 if expected.dtype == torch.float32 else 1e-9
    finite = expected[expected.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    if torch.allclose(found, expected, rtol=tolerance, atol=tolerance * max(min(scale, 1e3), 0.1), equal_nan=True):
        return None
    is_same = (found == expected) | (found.isnan() & expected.isnan())
    worst = torch.where(is_same, -1, (found - expected).abs().nan_to_num(torch.inf))
    at = tuple(int(x) for x in torch.unravel_index(worst.argmax(), worst.shape))
    return f"at {at} {float(found[at])}, not {float(expected[at])}"


Compare = Callable[[Program], str | None]


def shrunk(program: Program, compare: Compare) -> tuple[Program, str]:
    """The smallest program found that still differs, and how."""
    why = compare(program) or ""
    for _ in range(300):
        for smaller in program.smaller():
            if told := _told(smaller, compare):
                program, why = smaller, told
                break
        else:
            break
    return program, why


def _told(program: Program, compare: Compare) -> str | None:
    try:
        return compare(program)
    except Exception:  # the parts refuse it
        return None


def check(compare: Compare, seeds: range, share: int, counted: Callable[[Watched], int]) -> None:
    """Compare the programs of these seeds: every ``share``-th like attention; what the parts refuse is left out, and many must be fused."""
    print(f"programs of seeds {seeds.start} to {seeds.stop - 1}")
    drawn = fused = 0
    failed: list[str] = []
    with uncompiled(), pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        for seed in seeds:
            program, before = draw_program(seed, seed % share == 0), counted(watched)
            try:
                why = compare(program)
            except Exception:  # the parts refuse it
                continue
            drawn, fused = drawn + 1, fused + (counted(watched) > before)
            if why is not None:
                small, why_small = shrunk(program, compare)
                failed.append(f"seed {seed} {why}\n{program}\nshrunk: {why_small}\n{small}")
    print(f"{drawn} of {len(seeds)} programs computed, {fused} of them fused")
    assert not failed, f"{len(failed)} programs differ\n\n" + "\n\n".join(failed)
    assert drawn > len(seeds) // 2 and fused >= max(drawn // 25, 1)


@pytest.mark.parametrize("part", range(PARTS))
def test_results_are_those_of_the_parts(part: int) -> None:
    count = scaled(1000) // PARTS
    check(same_result, range(10_000 * part, 10_000 * part + count), 2, lambda watched: watched.groups)


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients_are_those_of_the_parts(part: int) -> None:
    count = scaled(1000) // PARTS
    check(same_gradients, range(10_000 * part + 15_000, 10_000 * part + 15_000 + count), 1, lambda watched: watched.gradients)
