"""Forced choices of the schedule and the code generator that small random cases would not trigger."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

import numscorch.schedule as scheduling
from numscorch.codegen import kernel
from numscorch.ir.index import Stmt, loops_of
from numscorch.runtime import plans
from numscorch.schedule import PASSES, Pass, tiles, tuning
from numscorch.schedule.facts import Facts, Options, Target

TARGETS = (Target(16, 16), Target(32, 16), Target(64, 32))


def rows(seed: int, set_to: Callable[[object, str, float], None]) -> None:
    """Set thresholds so that small rows count as long or large, and all kinds of loops and workspaces are generated."""
    set_to(tuning, "DENSE_ROW", -1 if seed // 8 % 2 else 1 << 18)
    set_to(tuning, "REUSED_PLACES", float("inf"))
    set_to(tuning, "CLEARED_PLACES", 0.0 if seed // 128 % 2 else float("inf"))
    for at, name in enumerate(("FOUR_SUMS_ROW", "SEVERAL_SUMS_ROW", "GATHER_ROW")):
        set_to(tuning, name, 0.0 if seed // 2**at % 2 else 8.0)
    set_to(tuning, "SEEK", 0.0 if seed // 16 % 2 else 8.0)
    set_to(tuning, "COST_COPY", 0.0 if seed // 64 % 2 else 1e4)
    set_to(tuning, "COST_MOVE", 0.01 if seed // 64 % 2 else 1.0)
    set_to(tuning, "FAR_VALUES", 0 if seed // 4 % 2 else 4)
    for name, small, usual in (
        ("LONG_COLUMN", 2.0, 4096.0),
        ("BLOCK_OF_LONGEST", 1.0, 256.0),
        ("MEASURED_ENTRIES", 2, 1 << 12),
        ("PEAK_HITS", 1, 16),
    ):
        set_to(tuning, name, small if seed // 2 % 2 else usual)
    set_to(tuning, "PEAK_STEP", 1 if seed // 2 % 2 else 32)
    set_to(tuning, "COMPILE_ENTRIES", 0 if seed // 32 % 2 else 1 << 16)


def replaced(old: Pass, new: Pass) -> tuple[Pass, ...]:
    """The passes, with ``old`` replaced by ``new``."""
    return tuple(new if each is old else each for each in PASSES)


def any_tiles(seed: int) -> Pass:
    """A pass that tiles a random tileable loop, for two of three seeds."""
    rng = random.Random(seed)

    def cut(stmt: Stmt, facts: Facts, target: Target, options: Options) -> tuple[Stmt, str]:
        names = [loop.var.name for loop in loops_of(stmt) if tiles.refusal(loop.var, stmt) is None]
        size = (rng.choice(names), rng.choice((1, 3, 4, 8, 16, 64))) if names and seed % 3 else None
        return tiles.tile(stmt, facts, target, replace(options, tile=size))

    return cut


def any_choices(seed: int, patch: pytest.MonkeyPatch) -> None:
    """Build kernels as Python, serial or parallel, for one of three register widths, with random tiles and thresholds."""
    patch.setattr(plans.PROCESS, "build", kernel.build_plain)
    patch.setattr(plans, "host", lambda: TARGETS[seed % 3])
    patch.setattr(tuning, "PARALLEL_STEPS", 0 if seed % 2 else 1 << 15)
    patch.setattr(tuning, "BLOCKS", 1 + seed % 5)
    patch.setattr(scheduling, "PASSES", replaced(tiles.tile, any_tiles(seed)))
    rows(seed, patch.setattr)
