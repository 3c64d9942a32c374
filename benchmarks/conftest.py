"""Fixtures that measure, and a summary at the end of a run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import pytest
import torch

from numscorch.measuring.agreement import RELATIVE, check
from numscorch.measuring.turns import Function, Turns, enter, in_turns

from .data import Case
from .report import tables

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
LIBRARIES = ("torch", "numba", "scipy", "python-graphblas", "sparse")
RECORDS = pytest.StashKey[list[dict[str, Any]]]()

Record = Callable[..., None]
Compare = Callable[..., Turns]


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what is measured."""
    config.stash[RECORDS] = []


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Note what else the numbers depend on."""
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    machine_info |= {"cores": CORES, "libraries": {name: installed[name] for name in LIBRARIES if name in installed}}


@pytest.fixture(params=[1, 2], ids=["1t", "2t"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Torch's thread count, which kernels follow."""
    wanted, before = int(request.param), torch.get_num_threads()
    if wanted > CORES:
        pytest.skip(f"this machine has {CORES} core")
    torch.set_num_threads(wanted)
    yield wanted
    torch.set_num_threads(before)


@pytest.fixture
def record(benchmark: Any, request: pytest.FixtureRequest) -> Record:
    """Enters seconds into pytest-benchmark, and what belongs to them into its extra_info."""

    def enter_record(times: Sequence[float], **info: Any) -> None:
        info["seconds"] = statistics.median(times)
        enter(benchmark, times)
        benchmark.extra_info.update(info)
        request.config.stash[RECORDS].append(info)

    return enter_record


@pytest.fixture
def compare(record: Record) -> Compare:
    """Checks that ours and all its peers compute the same, times them in turn, and records the ratio to the best one."""

    def measure(
        kernel: str,
        ours: Function,
        peers: Mapping[str, Function],
        *,
        case: Case,
        threads: int,
        beside: Mapping[str, Function] | None = None,
        calls: int = 1,
        rest: float = 0.0,
        tolerance: float = RELATIVE,
        **info: Any,
    ) -> Turns:
        result = ours()
        for name, peer in {**peers, **(beside or {})}.items():
            check(result, peer(), name, tolerance)
        del result
        turns = in_turns(ours, peers, beside=beside, calls=calls, rest=rest)
        best = turns.against(turns.peers[turns.best])
        record(
            turns.ours,
            kernel=kernel,
            peer=turns.best,
            ratio=best["ratio"],
            ratio_of_minima=best["ratio_of_minima"],
            peer_seconds=best["seconds"],
            peers={name: turns.against(times) for name, times in turns.peers.items()},
            beside={name: turns.against(times) for name, times in turns.beside.items()},
            matrix=case.name,
            shape=list(case.shape),
            nnz=case.nnz,
            threads=threads,
            variant=list(info),
            **info,
        )
        return turns

    return measure


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what was reached, beside what is asked for."""
    records = config.stash[RECORDS]
    if records:
        terminalreporter.section("against other libraries")
        terminalreporter.write_line(tables(records))
