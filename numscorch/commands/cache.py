"""``python -m numscorch cache``: list, clear, compile ahead, export and import the kernels on disk."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ExpressionError, NumscorchError
from ..machine import kernel_cache
from ..machine.compile_log import counts, expecting
from ..runtime import bundles, tuned
from ..tensors.ledgers import shown_bytes
from . import warming
from .bench import error_text, request_of, requests_in


def add_cache(commands: Any) -> None:
    cache = commands.add_parser("cache", help="list, clear, compile ahead, export or import the kernels on disk")
    cache.set_defaults(command=_list)
    actions = cache.add_subparsers(metavar="ACTION")
    _action(actions, "list", _list, "list the kernels, most recently used first")
    _action(actions, "clear", _clear, "delete all kernels, and the schedules that autotune chose")
    export = _action(actions, "export", _export, "write compiled kernels to a bundle, for machines of the same kind")
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument(
        "expressions", nargs="*", metavar="TEXT", help='only kernels whose expression contains one of these, such as "A[i,j] * x[j]"'
    )
    import_action = _action(actions, "import", _import, "add the kernels of a bundle: they are code, so import only bundles that you trust")
    import_action.add_argument("file", type=Path, metavar="FILE")
    source = _action(actions, "warm", _warm, "compile kernels ahead of time").add_mutually_exclusive_group(required=True)
    source.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="requests, one per line: the arguments of python -m numscorch bench"
    )
    common = "graph layers, attention, sparse linear layers and products of common widths"
    source.add_argument("--common", action="store_true", help=common)


def _action(actions: Any, name: str, command: Callable[[argparse.Namespace], None], description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=description, description=description)
    parser.set_defaults(command=command)
    return parser


def _folder() -> str:
    """The cache folder in use; prints a warning if it isn't the requested one."""
    status = kernel_cache.status()
    folder = str(status.folder or "no folder")
    if status.problem is not None:
        print(f"{status.problem}: this process uses {folder}", file=sys.stderr)
    return folder


def _list(arguments: argparse.Namespace) -> None:
    folder, stored = _folder(), kernel_cache.entries()
    for entry in stored:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        print(f"{used}  {entry.size / 1e3:8.1f} kB  {entry.path.name}  {entry.expression}")
    print(f"{_counted(len(stored), 'kernel')}, {shown_bytes(sum(entry.size for entry in stored))} in {folder}")


def _clear(arguments: argparse.Namespace) -> None:
    folder, schedules = _folder(), len(tuned.kept())
    kernels = kernel_cache.clear()
    if (place := kernel_cache.folder()) is not None:
        (place / tuned.FILE).unlink(missing_ok=True)
    print(f"{_counts_text(kernels, schedules)} deleted from {folder}")


def _export(arguments: argparse.Namespace) -> None:
    bundle = bundles.export(arguments.file, arguments.expressions)
    skipped = f"; {bundle.left_out} without machine code for this machine are left out" if bundle.left_out else ""
    print(f"{arguments.file}: {_counts_text(bundle.kernels, bundle.schedules)}, {shown_bytes(arguments.file.stat().st_size)}{skipped}")


def _import(arguments: argparse.Namespace) -> None:
    _check_exists(arguments.file, "bundle", "python -m numscorch cache export FILE writes one, on the machine that has the kernels")
    imported = bundles.bring_in(arguments.file)
    print(f"{kernel_cache.folder()} has {_counts_text(imported.kernels, imported.schedules)} from {arguments.file}")
    if imported.remark:
        print(imported.remark, file=sys.stderr)


def _counts_text(kernels: int, schedules: int) -> str:
    return _counted(kernels, "kernel") + (f" and {_counted(schedules, 'schedule')}" if schedules else "")


def _counted(number: int, noun: str) -> str:
    """
    >>> _counted(1, "kernel"), _counted(0, "kernel")
    ('1 kernel', '0 kernels')
    """
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _check_exists(path: Path, noun: str, suggestion: str) -> None:
    if not path.exists():
        raise NumscorchError(f"there is no {noun} {path}: {suggestion}")


def _warm(arguments: argparse.Namespace) -> None:
    folder, before, started = _folder(), counts.compiled, time.perf_counter()
    summary = _common() if arguments.common else _requests(arguments.file)
    new, seconds = counts.compiled - before, time.perf_counter() - started
    print(f"{summary} in {folder}; {_counted(new, 'kernel')} compiled, in {seconds:.0f} s")


def _requests(path: Path) -> str:
    _check_exists(path, "file of requests", "write one, a line for each request, or pass --common")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ExpressionError(f"{path} is not a text file: give a file of requests, one per line") from error
    requests = list(requests_in(lines, str(path)))
    with expecting(len(requests), "requests") as goal:
        for number, request in requests:
            try:
                warming.warm(request_of(request))
            except (NumscorchError, OSError) as error:
                raise NumscorchError(f"{path}, line {number}: {error_text(error)}") from error
            goal.finished += 1
    return f"{_counted(len(requests), 'request')} {'has its' if len(requests) == 1 else 'have their'} kernels"


def _common() -> str:
    """Compile the kernels of common layers and products, and print a line for each layer or product."""
    runs, tables = list(warming.common_runs()), warming.tables_of_kernels()
    with expecting(len(runs), "layers and products") as goal:
        for name, run in runs:
            started = time.perf_counter()
            count = warming.warm_all(run, tables)
            print(f"{name}: {_counted(count, 'more kernel')}, {time.perf_counter() - started:.1f} s", flush=True)
            goal.finished += 1
    return f"{len(tables.kernels)} kernels of common layers and products are"
