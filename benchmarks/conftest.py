"""Fixtures that measure, and a summary at the end of a run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import pytest
import torch

from .data import Matrix
from .harness import Pair, enter, in_turns
from .report import tables

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
RECORDS = pytest.StashKey[list[dict[str, Any]]]()

Record = Callable[..., None]
Compare = Callable[..., Pair]


def pytest_configure(config: pytest.Config) -> None:
    """Make room for what is measured."""
    config.stash[RECORDS] = []


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Note what else the numbers depend on."""
    machine_info |= {"cores": CORES, "torch": torch.__version__, "numba": numba.__version__}


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
    """Times ours and the peer in turn, and records both."""

    def measure(
        kernel: str,
        ours: Callable[[], object],
        theirs: Callable[[], object],
        *,
        peer: str,
        matrix: Matrix,
        threads: int,
        calls: int = 1,
        **info: Any,
    ) -> Pair:
        pair = in_turns(ours, theirs, calls=calls)
        record(
            pair.ours,
            kernel=kernel,
            peer=peer,
            ratio=pair.ratio,
            ratio_of_minima=pair.ratio_of_minima,
            peer_seconds=statistics.median(pair.theirs),
            matrix=matrix.name,
            shape=list(matrix.tensor.shape),
            nnz=matrix.nnz,
            threads=threads,
            **info,
        )
        return pair

    return measure


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print what was reached, beside what is asked for."""
    records = config.stash[RECORDS]
    if records:
        terminalreporter.section("against torch.sparse")
        terminalreporter.write_line(tables(records))
