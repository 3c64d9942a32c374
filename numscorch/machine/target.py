"""Detection of the machine that kernels are compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..schedule.facts import Target
from .guards import check_room, deferred
from .memory import parse_size

LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
MACOS = ("hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize")


@lru_cache(maxsize=1)
def host() -> Target:
    """The target of this machine: SIMD width and registers according to LLVM, cache sizes according to the system.

    Raises:
        MemoryLimitError: the process's limits leave too little memory to load LLVM.
    """
    sizes = sorted({rounded_down(size) for size in cache_sizes()})
    return replace(_processor(), cache=sizes[-1], own_cache=sizes[-2]) if len(sizes) > 1 else _processor()


def _processor() -> Target:
    features = _features()
    if "avx512f" in features:
        return Target(vector_bytes=64, registers=32)
    if "avx2" in features:
        return Target(vector_bytes=32, registers=16)
    return Target(vector_bytes=16, registers=32 if "neon" in features else 16)


def _features() -> set[str]:
    """LLVM's names of the features for which Numba compiles: those of this processor, unless variables of Numba name others."""
    generic = "" if os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic" else None
    if (chosen := os.environ.get("NUMBA_CPU_FEATURES", generic)) is not None:
        return {feature[1:] for feature in chosen.split(",") if feature.startswith("+")}
    check_room()
    with deferred():
        from llvmlite import binding

    return {feature for feature, is_present in binding.get_host_cpu_features().items() if is_present}


def cache_sizes(linux: Path = LINUX) -> list[int]:
    """The sizes of the processor's caches in bytes; empty if unknown."""
    if sys.platform == "darwin":
        return _sizes_of_macos()
    texts = [path.read_text().strip() for path in linux.glob("index*/size")]
    return [parse_size(text, "the size of a cache") for text in texts if text.rstrip("KMG").isdecimal()]


def _sizes_of_macos() -> list[int]:
    """The cache sizes that sysctl reports. For an unknown name, sysctl prints an empty line or an error."""
    try:
        process = subprocess.run(["/usr/sbin/sysctl", "-n", *MACOS], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) for line in process.stdout.split() if line.isdecimal() and int(line)]


def rounded_down(size: int) -> int:
    """Round down to a power of two, so that similar machines get the same tiles.

    >>> rounded_down(36 << 20) >> 20
    32
    """
    return 1 << max(size.bit_length() - 1, 0)
