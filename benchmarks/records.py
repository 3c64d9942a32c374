"""Recorded runs: the format that the suite writes, and that the history, the gate and the dashboard read.

A results file is pytest-benchmark's JSON. Each benchmark's ``extra_info`` is a record:

    kernel, matrix, shape, nnz, threads     what was measured: the family, its operand, torch's thread count
    variant, and a key for each of it       names of further keys that identify a record of a kernel, such as k or format
    bar, share, uniform, ...                facts of a kernel that do not identify records, for the tables (``report.py``)
    seconds                                 median time of a call of numscorch
    peer, peer_seconds, ratio, low, high,   the best peer, the ratio of its time to numscorch's, with a 95 % interval, and the
    ratio_of_minima                         ratio of the fastest calls; absent if no peer is installed
    peers, beside                           for each name: seconds, ratio, low, high, ratio_of_minima, turns;
                                            names beside are not peers: a dense product, an unfair baseline
    labels                                  for a name beside: why it is not a peer
    bytes, flops                            minimum traffic and work of the request (``numscorch.explanation.work``)
    peak_bytes, result_bytes                growth of the process during a call, and the part of it that is the result
    kernels                                 names of the kernels that ran
    compile_seconds, load_seconds           time to compile these kernels, and to load them from the cache
    overhead_seconds                        time of a call outside its kernels (``recorded.py``)

What couldn't be measured is absent: bytes and flops of calls with several requests, and memory on systems that do not report it.
Records of limits, data types and first calls (``report.py``) have no peers and only some of these keys.

In addition to the keys of pytest-benchmark, the file has under ``numscorch``:

    suite                                   "full" or "quick"; "part" for a selection of cases
    machine, versions                       ``numscorch.measuring.this_machine``
    roofs                                   by thread count: bytes_per_second, flops_per_second
    kernels                                 by name: request, explanation, source
    missing                                 peers that are not installed

In the history (``history.py``), ``kernels`` is a list of names. Their texts are in separate files, shared by runs.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
UNKNOWN = "0" * 40
RUNS, KERNELS = "runs", "kernels"  # subfolders of a history
SUITES = ("full", "quick", "part")
NUMBERS = ("nnz", "seconds", "bytes", "flops", "peak_bytes", "result_bytes", "compile_seconds", "load_seconds", "overhead_seconds")


class RunError(Exception):
    """A file does not contain a run of this suite."""


class StoredKernels(Mapping[str, Any]):
    """Texts of kernels in a history folder, read on access. Access raises RunError if a file cannot be read."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, tuple(name for name in names if _file(folder, name).is_file())

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return texts_of(_file(self._folder, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def texts_of(file: Path) -> dict[str, Any]:
    """Request, explanation and source of a kernel.

    Raises:
        RunError: the file is not JSON, or does not contain a kernel.
    """
    try:
        texts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file.name} can't be read as JSON: {error}") from error
    if not isinstance(texts, dict) or not isinstance(texts.get("source"), str):
        raise RunError(f"{file.name} holds no kernel: it has no text under 'source'")
    return texts


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
        """Fingerprint of the kind of machine; only ratios with the same fingerprint are compared."""
        return str(self.own["machine"]["fingerprint"])

    @property
    def suite(self) -> str:
        """Which cases ran: "full", "quick" or "part"."""
        return str(self.own["suite"])


def case_of(record: Record) -> str:
    """Name of a record within its kernel, equal in all runs.

    >>> case_of({"kernel": "spmm", "matrix": "cora", "variant": ["k"], "k": 64, "threads": 2})
    'cora, k=64, 2 threads'
    """
    parts = [f"{name}={record[name]}" for name in record.get("variant", ())]
    threads = record["threads"]
    return ", ".join([record["matrix"], *parts, f"{threads} thread{'s' if threads > 1 else ''}"])


def read_run(path: Path) -> Run:
    """Read a run from its file.

    Raises:
        RunError: the file is not JSON, or not a run of this suite; the message names the problem.
    """
    try:
        results = json.loads(text_of(path))
        facts, commit = dict(results["numscorch"]), results.get("commit_info") or {}
        if isinstance(facts.get("kernels"), list):
            facts["kernels"] = StoredKernels(path.parent.parent / KERNELS, facts["kernels"])
        records = tuple(b["extra_info"] for b in results["benchmarks"] if "kernel" in b["extra_info"])
        run = Run(path, commit.get("id") or UNKNOWN, results["datetime"], bool(commit.get("dirty")), facts, records)
        datetime.fromisoformat(run.time)
        why = _amiss(run)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise RunError(f"{path.name} can't be read as JSON: {error}") from error
    except KeyError as error:
        raise RunError(f"{path.name} is no run of this suite: it has no {error}; make bench writes one") from error
    except (TypeError, AttributeError) as error:
        raise RunError(f"{path.name} is no run of this suite: it is laid out otherwise ({error}); make bench writes one") from error
    if why:
        raise RunError(f"{path.name} is no run of this suite: {why}; make bench writes one")
    return run


def _amiss(run: Run) -> str:
    """The requirement that a run violates, or an empty string."""
    if run.suite not in SUITES:
        return f"its suite is {run.suite!r}, none of {', '.join(SUITES)}"
    for name in (run.fingerprint, run.commit):  # parts of a file name
        if not re.fullmatch(r"\w+", name):
            return f"its commit or fingerprint is {name!r}, not letters and digits alone"
    roofs = (run.own.get("roofs") or {}).values()
    if not all(_is_number(roof.get(f"{what}_per_second")) for roof in roofs for what in ("bytes", "flops")):
        return "a roof has no bytes_per_second or flops_per_second that is a number"
    if not isinstance(run.own.get("versions") or {}, Mapping):
        return "its versions are not told by name"
    return next(
        (f"a record lacks a name or a number: {str(record)[:60]!r}" for record in run.records if not _is_record(record)),
        "",
    )


def _is_record(record: Any) -> bool:
    """Whether a record has a kernel, the parts of its name, valid numbers, and a ratio to each peer."""
    if not isinstance(record, Mapping) or not isinstance(record["kernel"], str):
        return False
    named = {"matrix": str, "threads": int}
    if any(not isinstance(record[name], kind) if name in record else record.get("peers") for name, kind in named.items()):
        return False
    if not all(_is_number(record.get(name) or 0) for name in NUMBERS) or not isinstance(record.get("labels") or {}, Mapping):
        return False
    sides = [side for part in ("peers", "beside") for side in (record.get(part) or {}).values()]
    return all(name in record for name in record.get("variant", ())) and all(_is_number(side.get("ratio")) for side in sides)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def text_of(path: Path) -> str:
    """Text of a results file; a file named ``.gz`` is decompressed."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
