"""``python -m numscorch doctor``: check the parts of this installation."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from itertools import starmap, takewhile
from pathlib import Path
from typing import Any

import torch

from ..errors import NumscorchError
from ..machine import kernel_cache, threads
from ..measuring.this_machine import cores
from ..tensors.ledgers import shown_bytes

# The versions that the tests run with: lower bound (inclusive), upper bound (exclusive).
TESTED = {
    "python": ("3.11", "3.15"),
    "torch": ("2.13", "2.14"),
    "numba": ("0.68", "0.69"),
    "llvmlite": ("0.50", "0.51"),
    "numpy": ("2.0", "2.5"),
    "tbb": ("2021.6", "2024"),
}
SIMD = ("sse4.2", "avx", "fma", "f16c", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512bf16", "neon", "sve")  # shown if present
WIDE = {"avx2", "avx512f", "neon"}  # one of them is needed for full speed


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report; ``advice`` explains the result or suggests a fix."""

    name: str
    value: str
    ok: bool
    advice: str = ""


def add_doctor(commands: Any) -> None:
    command = commands.add_parser("doctor", help="check versions, processor, threading layer, threads and kernel cache")
    command.set_defaults(command=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    checks = report()
    print(render(checks))
    return int(not all(check.ok for check in checks))


def report() -> list[Diagnosis]:
    """Examine the installation. Imports Numba and starts its threading layer."""
    of_threads = [_attempt("threading layer", _threading_layer), _attempt("threads", _thread_counts)]
    return [*starmap(_version, TESTED.items()), _processor(), *of_threads, _cache(), *_numbas_cache(), _settings()]


def _settings() -> Diagnosis:
    """The environment variables of numscorch that are set."""
    given = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("NUMSCORCH_")]
    return Diagnosis("settings", ", ".join(given) or "no NUMSCORCH_ variable is set", ok=True)


def render(checks: Iterable[Diagnosis]) -> str:
    """The report as text: one line per check, followed by its advice."""
    lines = []
    for check in checks:
        lines.append(f"{'ok' if check.ok else '!!'}  {check.name:<16} {check.value}")
        if check.advice:
            lines.append(textwrap.indent(textwrap.fill(check.advice, 96), " " * 21))
    return "\n".join(lines)


def _version(name: str, bounds: tuple[str, str]) -> Diagnosis:
    try:
        installed = platform.python_version() if name == "python" else metadata.version(name)
    except metadata.PackageNotFoundError:
        has_wheel = name != "tbb" or (sys.platform != "darwin" and platform.machine().lower() in {"x86_64", "amd64"})
        advice = f"pip install {name}" if has_wheel else "has no wheel for this platform"
        return Diagnosis(name, "not installed", not has_wheel, advice)
    low, high = bounds
    inside = _numbers(low) <= _numbers(installed) < _numbers(high)
    tested = f"tested with {low} and later, before {high}"
    return Diagnosis(name, installed, inside, "" if inside else f"{tested}: results may differ, or kernels may fail to compile")


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> _numbers("2.13.0+cpu"), _numbers("3.12.0rc1")
    ((2, 13, 0), (3, 12))
    """
    return tuple(map(int, takewhile(str.isdecimal, version.partition("+")[0].split("."))))


def _processor() -> Diagnosis:
    import llvmlite.binding as llvm

    present = {name for name, has in llvm.get_host_cpu_features().items() if has}
    extensions = [name for name in SIMD if name in present]
    wide = bool(WIDE & present)
    advice = "" if wide else "no AVX2, AVX-512 or NEON: kernels run correctly, but at a fraction of the speed"
    return Diagnosis("processor", f"{llvm.get_host_cpu_name()}: {', '.join(extensions) or 'no SIMD known'}", wide, advice)


def _attempt(name: str, check: Callable[[], Diagnosis]) -> Diagnosis:
    try:
        return check()
    except NumscorchError as error:
        return Diagnosis(name, "failed", False, str(error))


def _threading_layer() -> Diagnosis:
    name, reason = threads.layer()
    return Diagnosis("threading layer", name, name != "workqueue", reason)


def _thread_counts() -> Diagnosis:
    threads.layer()
    torch_threads, available = torch.get_num_threads(), cores()
    workers = threads.workers()
    is_limited = workers < min(torch_threads, available)
    advice = f"NUMBA_NUM_THREADS allows fewer than torch's {torch_threads}: unset it, or set it to {available}" if is_limited else ""
    if torch_threads > available:
        advice = f"torch has more threads than there are cores: torch.set_num_threads({available})"
    return Diagnosis("threads", f"kernels {workers}, torch {torch_threads}, cores {available}", not advice, advice)


def _cache() -> Diagnosis:
    status = kernel_cache.check_writing()
    stored = kernel_cache.entries()
    value = f"{status.folder or 'nowhere'} ({len(stored)} kernels, {shown_bytes(sum(entry.size for entry in stored))})"
    if status.problem is None:
        return Diagnosis("kernel cache", value, True)
    fallback = "kernels stay in memory" if status.folder is None else "kernels go to a temporary folder"
    advice = f"{status.problem}: {fallback} and are compiled anew in each process. Set NUMSCORCH_CACHE_DIR to a folder that you own"
    return Diagnosis("kernel cache", value, False, advice)


def _numbas_cache() -> list[Diagnosis]:
    """Check Numba's own cache folder, if the user set one. Numba runs the code it finds there unchecked."""
    from numba import config

    if not config.CACHE_DIR:
        return []
    path = Path(config.CACHE_DIR)
    problem = kernel_cache.distrust(path) if path.is_dir() else None
    unused = "numscorch stores no kernels there: it uses its own kernel cache"
    advice = f"{problem}. {unused}; other programs that use Numba run the code in this folder" if problem else unused
    return [Diagnosis("NUMBA_CACHE_DIR", str(path), problem is None, advice)]
