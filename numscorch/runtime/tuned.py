"""Schedules chosen by autotuning, kept with the kernels on disk by expression, operands, machine and number of threads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from ..codegen.kernel import BUILDING
from ..frontend.requests import Operand
from ..ir.format import Format
from ..machine import kernel_cache
from ..machine.target import host
from ..machine.threads import workers
from ..schedule.facts import rounded

FILE = "schedules.json"

_changes: list[None] = []  # one element for each change in this process
_read: dict[Path | None, dict[str, str]] = {}  # schedules by folder; None if no folder is writable


def key_of(expr: str, operands: Sequence[Operand], format: Format | str | None) -> str:
    """The key of a schedule; sizes and counts are rounded, so that tensors of similar size share it.

    >>> from ..ir.format import CSR
    >>> key_of("ij->i", [Operand(CSR, (1000, 1000), "float32", "int32", (), (1000, 9000), (1, 1))], None).split(" | ")[:2]
    ['ij->i', '(i, j) -> (i: dense, j: compressed) float32 int32 1024x1024 1024,10240 1,1 ']
    """
    parts = [
        f"{op.format} {op.dtype} {op.index_dtype} {'x'.join(str(rounded(size)) for size in op.shape)} "
        f"{','.join(str(rounded(count)) for count in op.counts)} {','.join(map(str, op.spreads))} {_order_of(op.strides)}"
        + ("" if op.beside is None else f"beside {op.beside}")
        for op in operands
    ]
    return " | ".join([expr.replace(" ", ""), *parts, str(format), str(host()), f"{workers()} threads", version("numscorch")])


def _order_of(strides: Sequence[int]) -> str:
    """The dimensions of a dense operand, from the largest stride to the smallest."""
    return "".join(map(str, sorted(range(len(strides)), key=lambda d: (-strides[d], d))))


def chosen(expr: str, operands: Sequence[Operand], format: Format | str | None) -> str | None:
    """The schedule chosen for such operands; None if none was chosen, or the compiler's own was the fastest."""
    folder = kernel_cache.folder()
    schedules = _read[folder] if folder in _read else _read.setdefault(folder, kept())
    return schedules.get(key_of(expr, operands, format)) or None if schedules else None


def is_tuned(key: str) -> bool:
    """Whether ``autotune`` has chosen a schedule for this key, or the compiler's own."""
    return key in _read.get(kernel_cache.folder(), {})


def version_of_choices() -> tuple[int, int]:
    """A value that changes with the chosen schedules, and with the number of threads if any was chosen."""
    return len(_changes), workers() if any(_read.values()) else 0


def remember(key: str, schedule: str) -> None:
    """Keep a schedule, or "" for the compiler's own, for this process and, if the cache is writable, for later ones."""
    adopt({key: schedule}, replaces=True)


def adopt(schedules: dict[str, str], replaces: bool = False) -> None:
    """Add schedules chosen elsewhere; existing schedules take precedence unless the new ones replace them."""
    with BUILDING:  # a fork waits for this lock; a child could inherit another lock in its locked state
        _changes.append(None)
        stored = _read.get(None, {}) | kept()  # other processes may have written since
        stored = stored | schedules if replaces else schedules | stored
        _read[kernel_cache.write(FILE, json.dumps(stored, indent=1, sort_keys=True).encode())] = stored


def kept() -> dict[str, str]:
    """All schedules kept on disk, by key; empty if the file is missing or damaged."""
    with suppress(ValueError, RecursionError):
        contents = json.loads(kernel_cache.read(FILE) or b"{}")
        return {str(key): str(schedule) for key, schedule in contents.items()} if isinstance(contents, dict) else {}
    return {}
