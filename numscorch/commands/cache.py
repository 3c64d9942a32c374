"""``python -m numscorch cache``: the kernels on disk, listed, cleared, made ahead, and taken to other machines."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ExpressionError, NumscorchError
from ..machine import kernel_cache
from ..machine.memory import size_in_words
from .asking import request_of, requests_in


def add_cache(commands: Any) -> None:
    """The command and its own commands."""
    cache = commands.add_parser("cache", help="list, clear, make or move the kernels on disk")
    cache.set_defaults(command=_list)
    actions = cache.add_subparsers(metavar="ACTION")
    _action(actions, "list", _list, "list the kernels, the last used first")
    _action(actions, "clear", _clear, "delete them")
    export = _action(actions, "export", _export, "write compiled kernels to a bundle, for machines of this kind")
    export.add_argument("file", type=Path, metavar="FILE")
    export.add_argument(
        "expressions", nargs="*", metavar="TEXT", help='only kernels whose expression has one of these in it, as "A[i,j] * x[j]"'
    )
    bring = _action(actions, "import", _import, "take the kernels of a bundle, which are run: trust it as you would a wheel")
    bring.add_argument("file", type=Path, metavar="FILE")
    warm = _action(actions, "warm", _warm, "compile kernels ahead")
    which = warm.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "file", nargs="?", type=Path, metavar="FILE", help="requests, one a line, as what follows: python -m numscorch bench"
    )
    common = "products and sums in common formats, layers of graphs, attention, and sparse linear layers"
    which.add_argument("--common", action="store_true", help=common)


def _action(actions: Any, name: str, command: Callable[[argparse.Namespace], int], told: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=told, description=told)
    parser.set_defaults(command=command)
    return parser


def _folder() -> str:
    """The cache in use; says on stderr if it isn't the one that was asked for."""
    status = kernel_cache.status()
    used = str(status.folder or "no folder")
    if status.problem is not None:
        print(f"{status.problem}: this process uses {used}", file=sys.stderr)
    return used


def _list(arguments: argparse.Namespace) -> int:
    folder, stored = _folder(), kernel_cache.entries()
    for entry in stored:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        print(f"{used}  {entry.size / 1e3:8.1f} kB  {entry.path.name}  {entry.expression}")
    print(f"{len(stored)} kernels, {size_in_words(sum(entry.size for entry in stored))} in {folder}")
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    folder = _folder()
    print(f"{kernel_cache.clear()} kernels deleted from {folder}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from ..runtime import bundles

    made = bundles.export(arguments.file, arguments.expressions)
    left = f"; {made.left_out} without machine code for this machine are left out" if made.left_out else ""
    print(f"{arguments.file}: {_counted(made.kernels, made.schedules)}, {size_in_words(arguments.file.stat().st_size)}{left}")
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from ..runtime import bundles

    taken = bundles.bring_in(arguments.file)
    print(f"{_counted(taken.kernels, taken.schedules)} from {arguments.file} are in {kernel_cache.folder()}")
    if taken.remark:
        print(taken.remark, file=sys.stderr)
    return 0


def _counted(kernels: int, schedules: int) -> str:
    return f"{kernels} kernels" + (f" and {schedules} schedules" if schedules else "")


def _warm(arguments: argparse.Namespace) -> int:
    from ..machine.compile_log import counts
    from . import warming

    lines = warming.common() if arguments.common else _lines(arguments.file)
    modules = warming.modules() if arguments.common else ()
    where = "--common" if arguments.common else str(arguments.file)
    folder, before, started = _folder(), counts.compiled, time.perf_counter()
    count = _warmed(lines, where, modules)
    new, seconds = counts.compiled - before, time.perf_counter() - started
    named = f"{count} requests and {len(modules)} modules have" if modules else f"{count} requests have"
    print(f"{named} their kernels in {folder}: {new} were compiled, in {seconds:.0f} s")
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ExpressionError(f"{path} is no text: give a file of requests, one a line") from error


def _warmed(lines: Sequence[str], where: str, modules: Sequence[tuple[str, Callable[[], Any]]] = ()) -> int:
    """Compile the kernels of requests and modules, and print a line for each module; the number of requests."""
    from ..machine.compile_log import expecting
    from .warming import warm, warm_all

    requests = list(requests_in(lines, where))
    with expecting(len(requests) + len(modules), "requests and modules" if modules else "requests") as goal:
        for number, request in requests:
            try:
                warm(request_of(request))
            except (NumscorchError, OSError) as error:
                raise NumscorchError(f"{where}, line {number}: {error}") from error
            goal.done += 1
        for name, run in modules:
            started = time.perf_counter()
            count = warm_all(run)
            print(f"{name}: {count} kernels, {time.perf_counter() - started:.1f} s", flush=True)
            goal.done += 1
    return len(requests)
