"""Fixtures for measurements, and the summary at the end of a run."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import pytest
import torch

from numscorch.measuring.comparison import RELATIVE, check
from numscorch.measuring.this_machine import LIBRARIES, cores
from numscorch.measuring.turns import Function, Turns, in_turns

from . import data
from .data import Case
from .figures import against, record_rounds
from .peers import LABELS, missing, taking_turns
from .recording import Asked, Notes
from .report import tables

NOTES = pytest.StashKey[Notes]()

Record = Callable[..., None]
Compare = Callable[..., None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options."""
    parser.addoption("--data", help="folder of matrices and tensors to measure on; by default they are generated")
    parser.addoption("--threads", default="1,2", help="thread counts, separated by commas (default: %(default)s)")
    parser.addoption("--quick", action="store_true", help="a few cases of every kernel: under three minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment variables before the benchmark modules are imported, and create the notes of the run."""
    is_quick = config.getoption("--quick")
    os.environ[data.QUICK] = "1" if is_quick else "0"
    if config.getoption("--data"):
        os.environ[data.FOLDER] = os.path.abspath(config.getoption("--data"))
    options = any(config.getoption(name, None) for name in ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf"))
    is_chosen = options or any("::" in argument or argument.endswith(".py") for argument in config.args)
    config.stash[NOTES] = Notes("part" if is_chosen else "quick" if is_quick else "full")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove doctests, which are tests and not benchmarks."""
    items[:] = [item for item in items if not isinstance(item, pytest.DoctestItem)]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the kernel cache of this run."""
    if NOTES in config.stash:
        config.stash[NOTES].recorder.close()


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    """Add the number of cores and the versions of libraries."""
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    machine_info |= {"cores": cores(), "libraries": {name: installed[name] for name in LIBRARIES if name in installed}}


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add the notes of the run."""
    output_json["numscorch"] = config.stash[NOTES].as_json()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Measure with each number of threads, unless the test names its own."""
    named = {name for mark in metafunc.definition.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}
    if "threads" in metafunc.fixturenames and "threads" not in named:
        counts = [int(count) for count in metafunc.config.getoption("--threads").split(",")]
        metafunc.parametrize("threads", counts, ids=[f"{count}t" for count in counts], indirect=True)


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Torch's thread count, which numscorch uses too."""
    count, previous = int(request.param), torch.get_num_threads()
    if count > cores():
        pytest.skip(f"this machine has {cores()} core")
    request.config.stash[NOTES].threads.add(count)
    torch.set_num_threads(count)
    with request.config.stash[NOTES].recorder.in_folder():
        yield count
    torch.set_num_threads(previous)


@pytest.fixture
def record(benchmark: Any, request: pytest.FixtureRequest) -> Record:
    """A function that stores seconds in pytest-benchmark and the other keys of a record in its ``extra_info``."""

    def enter_record(times: Sequence[float], **info: Any) -> None:
        info["seconds"] = statistics.median(times)
        record_rounds(benchmark, times)
        benchmark.extra_info.update(info)
        request.config.stash[NOTES].records.append(info)

    return enter_record


@pytest.fixture
def compare(record: Record, request: pytest.FixtureRequest) -> Compare:
    """A function that checks our result against all peers, times them in turns, and stores a record (see ``records.py``).

    ``beside`` are baselines that are not peers (see ``peers.LABELS``). ``asked`` is the request with its operands, for calls that
    make several requests. Further keywords distinguish the records of a kernel; ``facts`` are keys that do not.
    """
    notes = request.config.stash[NOTES]

    def measure(
        kernel: str,
        ours: Function,
        peers: Mapping[str, Function],
        *,
        case: Case,
        threads: int,
        beside: Mapping[str, Function] | None = None,
        asked: Asked | None = None,
        calls: int = 1,
        tolerance: float = RELATIVE,
        facts: Mapping[str, Any] | None = None,
        **variant: Any,
    ) -> None:
        recording, beside = notes.first_call(ours), beside or {}
        for name, peer in {**peers, **beside}.items():
            check(recording.result, peer(), name, tolerance)
        measured_facts = notes.facts(ours, recording, asked)
        groups = [
            in_turns(ours, group, beside={} if rest else beside, calls=calls, rest=rest) for group, rest in taking_turns(peers, threads)
        ]
        record(
            groups[0].ours,
            kernel=kernel,
            **_ratios(groups),
            labels={name: LABELS[name] for name in beside},
            matrix=case.name,
            shape=list(case.shape),
            nnz=case.nnz,
            threads=threads,
            variant=list(variant),
            **variant,
            **(facts or {}),
            **measured_facts,
        )

    return measure


def _ratios(groups: Sequence[Turns]) -> dict[str, Any]:
    """Ratios to all peers and baselines, and the best peer: the lowest ratio, because groups of peers are timed in different turns."""
    peers = {name: against(turns.ours, times) for turns in groups for name, times in turns.peers.items()}
    beside = {name: against(turns.ours, times) for turns in groups for name, times in turns.beside.items()}
    if not peers:
        return {"peers": peers, "beside": beside}
    best = min(peers, key=lambda name: peers[name]["ratio"])
    figures = {name: peers[best][name] for name in ("ratio", "low", "high", "ratio_of_minima")}
    return {"peers": peers, "beside": beside, "peer": best, "peer_seconds": peers[best]["seconds"], **figures}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the results beside their bars, missing libraries and unusable data files."""
    records, unusable = config.stash[NOTES].records, data.unreadable()
    if records:
        terminalreporter.section("against other libraries")
        terminalreporter.write_line(tables(records))
    if records and missing():
        terminalreporter.section("libraries that aren't installed, so that their columns are absent")
        terminalreporter.write_line(", ".join(missing()), yellow=True)
    if unusable:
        terminalreporter.section("files that hold no matrix or tensor to measure on")
        for name, why in unusable.items():
            terminalreporter.write_line(f"{name}: {why}", red=True)
