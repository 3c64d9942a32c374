"""Recorded runs: what the suite writes, and what the history, the gate and the dashboard read.

A results file is pytest-benchmark's JSON. Each benchmark's ``extra_info`` is a record:

    kernel, matrix, shape, nnz, threads     what was measured: the family, its operand, torch's thread count
    variant, and a key for each of it       what else tells records of a kernel apart, as k or format
    bar, share, uniform, ...                facts of a kernel's own that tell no records apart, for the tables (``report.py``)
    seconds                                 median of our calls
    peer, peer_seconds, ratio, low, high,   the best peer, and its time over ours, with a 95 % interval, and of the fastest calls;
    ratio_of_minima                         absent where no peer is installed
    peers, beside                           for each name: seconds, ratio, low, high, ratio_of_minima, turns;
                                            those beside are no peers: a dense product, an unfair baseline
    labels                                  for a name beside: why it is no peer
    bytes, flops                            what the request has to move and compute at least (``numscorch.measuring.work``)
    peak_bytes, result_bytes                what the process grew by during a call, and what of it is the result
    kernels                                 names of the kernels that ran
    compile_seconds, load_seconds           of these kernels: compiled, and loaded from the cache
    overhead_seconds                        what a call takes outside of its kernels (``numscorch.measuring.recorded``)

What couldn't be measured is left out: bytes and flops of calls that come to several requests, memory where the system doesn't tell.
Records of limits, data types and first calls (``report.py``) compare with no peers, and hold a part of these.

Beside pytest-benchmark's own keys the file holds, under ``numscorch``:

    suite                                   "full" or "quick"; "part", of cases that someone chose
    machine, versions                       ``numscorch.measuring.machine``
    roofs                                   by thread count: bytes_per_second, flops_per_second
    kernels                                 by name: request, explanation, source
    missing                                 peers that aren't installed

In the history (``history.py``), ``kernels`` is a list of names: their texts, which many runs share, are in files beside.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
UNKNOWN = "0" * 40
RUNS, KERNELS = "runs", "kernels"  # folders of a history


class RunError(Exception):
    """A file holds no run of this suite."""


class StoredKernels(Mapping[str, Any]):
    """Texts of kernels in a history's folder, each read when it is asked for."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, tuple(name for name in names if _file(folder, name).is_file())

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return json.loads(_file(self._folder, name).read_text(encoding="utf-8"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _file(folder: Path, name: str) -> Path:
    return folder / f"{Path(name).name}.json"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the suite."""

    path: Path
    commit: str
    time: str
    dirty: bool
    own: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def fingerprint(self) -> str:
        """Of the kind of machine: ratios are compared among runs that share it."""
        return str(self.own["machine"]["fingerprint"])

    @property
    def suite(self) -> str:
        """Which cases ran: "full", "quick" or "part"."""
        return str(self.own["suite"])


def case_of(record: Record) -> str:
    """The name of a record within its kernel, the same in every run.

    >>> case_of({"kernel": "spmm", "matrix": "cora", "variant": ["k"], "k": 64, "threads": 2})
    'cora, k=64, 2 threads'
    """
    told = [f"{name}={record[name]}" for name in record.get("variant", ())]
    threads = record["threads"]
    return ", ".join([record["matrix"], *told, f"{threads} thread{'s' if threads > 1 else ''}"])


def read_run(path: Path) -> Run:
    """A run from its file.

    Raises:
        RunError: it is no JSON, or not of this suite; the message says what is amiss.
    """
    try:
        results = json.loads(text_of(path))
        own, commit = dict(results["numscorch"]), results.get("commit_info") or {}
        if isinstance(own.get("kernels"), list):
            own["kernels"] = StoredKernels(path.parent.parent / KERNELS, own["kernels"])
        records = tuple(b["extra_info"] for b in results["benchmarks"] if "kernel" in b["extra_info"])
        run = Run(path, commit.get("id") or UNKNOWN, results["datetime"], bool(commit.get("dirty")), own, records)
        _ = run.fingerprint, run.suite, datetime.fromisoformat(run.time)
    except (OSError, EOFError, ValueError) as error:
        raise RunError(f"{path.name} can't be read as JSON: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path.name} is no run of this suite: {error!r} is amiss in it; make bench writes one") from error
    return run


def text_of(path: Path) -> str:
    """What a results file holds, gzipped where its name says so."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
