"""Schedules that timing chose: kept with the kernels on disk, by expression, operands as the compiler knows them, machine and threads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from ..codegen.kernel import BUILDING
from ..frontend.operand import Operand
from ..ir.format import Format
from ..machine import kernel_cache
from ..machine.target import host
from ..machine.threads import workers
from ..schedule.facts import rounded

FILE = "schedules.json"

_read: dict[Path | None, dict[str, str]] = {}  # by folder; None: no folder takes files


def key_of(expr: str, operands: Sequence[Operand], format: Format | str | None) -> str:
    """What a schedule is kept by: sizes and counts are rounded, so that tensors of about the same size share it.

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
    """Which dimensions of a dense operand lie closer together in memory."""
    return "".join(map(str, sorted(range(len(strides)), key=lambda d: (-strides[d], d))))


def chosen(expr: str, operands: Sequence[Operand], format: Format | str | None) -> str | None:
    """The schedule that was chosen for such operands; None where none was, or the compiler's own was the fastest."""
    known = _known()
    return known.get(key_of(expr, operands, format)) or None if known else None


def remember(key: str, schedule: str) -> None:
    """Keep a schedule, or "" for the compiler's own, for this process and, where the cache takes files, later ones."""
    _keep(lambda stored: stored | {key: schedule})


def kept() -> dict[str, str]:
    """Every schedule that is kept on disk, by its key."""
    return _stored()


def adopt(schedules: Mapping[str, str]) -> None:
    """Keep schedules that were chosen elsewhere; those that were chosen here stay."""
    _keep(lambda stored: dict(schedules) | stored)


def _keep(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    with BUILDING:  # which a fork waits for: a child would find a lock of its own taken for ever
        known = change(_read.get(None, {}) | _stored())  # other processes may have written since
        _read[kernel_cache.write(FILE, json.dumps(known, indent=1, sort_keys=True).encode())] = known


def _known() -> dict[str, str]:
    folder = kernel_cache.folder()
    known = _read.get(folder)
    return _read.setdefault(folder, _stored()) if known is None else known


def _stored() -> dict[str, str]:
    """What the file holds; nothing where there is none yet, or it is damaged."""
    with suppress(ValueError, RecursionError):
        stored = json.loads(kernel_cache.read(FILE) or b"{}")
        return {str(key): str(schedule) for key, schedule in stored.items()} if isinstance(stored, dict) else {}
    return {}
