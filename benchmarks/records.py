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
    bytes, flops                            what the request has to move and compute at least (``numscorch.explanation.work``)
    peak_bytes, result_bytes                what the process grew by during a call, and what of it is the result
    kernels                                 names of the kernels that ran
    compile_seconds, load_seconds           of these kernels: compiled, and loaded from the cache
    overhead_seconds                        what a call takes outside of its kernels (``recorded.py``)

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
RUNS, KERNELS = "runs", "kernels"  # folders of a history
SUITES = ("full", "quick", "part")
NUMBERS = ("nnz", "seconds", "bytes", "flops", "peak_bytes", "result_bytes", "compile_seconds", "load_seconds", "overhead_seconds")


class RunError(Exception):
    """A file holds no run of this suite."""


class StoredKernels(Mapping[str, Any]):
    """Texts of kernels in a history's folder, each read when it is asked for; a RunError where that can't be done."""

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
    """A kernel's request, explanation and source.

    Raises:
        RunError: the file is no JSON, or holds something else.
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
        RunError: it is no JSON, or not of this suite; the message says what is missing or wrong.
    """
    try:
        results = json.loads(text_of(path))
        own, commit = dict(results["numscorch"]), results.get("commit_info") or {}
        if isinstance(own.get("kernels"), list):
            own["kernels"] = StoredKernels(path.parent.parent / KERNELS, own["kernels"])
        records = tuple(b["extra_info"] for b in results["benchmarks"] if "kernel" in b["extra_info"])
        run = Run(path, commit.get("id") or UNKNOWN, results["datetime"], bool(commit.get("dirty")), own, records)
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
    """What those who read runs rely on and this one hasn't; nothing where all is well."""
    if run.suite not in SUITES:
        return f"its suite is {run.suite!r}, none of {', '.join(SUITES)}"
    for name in (run.fingerprint, run.commit):  # of which a file's name is made
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
    """Whether a record has a kernel, whatever its name is made of, numbers for numbers, and a ratio to each peer."""
    if not isinstance(record, Mapping) or not isinstance(record["kernel"], str):
        return False
    named = {"matrix": str, "threads": int}
    if any(not isinstance(record[name], kind) if name in record else record.get("peers") for name, kind in named.items()):
        return False
    if not all(_is_number(record.get(name) or 0) for name in NUMBERS) or not isinstance(record.get("labels") or {}, Mapping):
        return False
    sides = [own for part in ("peers", "beside") for own in (record.get(part) or {}).values()]
    return all(name in record for name in record.get("variant", ())) and all(_is_number(own.get("ratio")) for own in sides)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def text_of(path: Path) -> str:
    """What a results file holds, gzipped where its name says so."""
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
