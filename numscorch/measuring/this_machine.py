"""The kind of machine and the library versions behind a measurement."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ..machine.target import cache_sizes, host

LIBRARIES = ("numscorch", "torch", "numba", "llvmlite", "numpy", "scipy", "sparse", "python-graphblas", "torch_geometric")
CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties in which machines with comparable measurements agree."""

    processor: str
    cores: int
    vector_bytes: int
    registers: int
    caches: tuple[int, ...]
    system: str

    @property
    def fingerprint(self) -> str:
        """A hash of ten hexadecimal digits, equal on machines of the same kind.

        >>> len(this_machine().fingerprint)
        10
        """
        return hashlib.sha256(repr(self).encode()).hexdigest()[:10]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "caches": list(self.caches), "fingerprint": self.fingerprint}


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """The machine that this process runs on, with the cores available to the process."""
    target = host()
    return Machine(
        processor=_processor(),
        cores=cores(),
        vector_bytes=target.vector_bytes,
        registers=target.registers,
        caches=tuple(sorted(set(cache_sizes()))),
        system=f"{platform.system()} {platform.machine()}",
    )


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """The versions of Python and of the installed libraries, by name."""
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    return {"python": platform.python_version()} | {name: installed[name] for name in LIBRARIES if name in installed}


def _processor() -> str:
    """The processor's model name, if the system reports it; else the architecture."""
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine()
