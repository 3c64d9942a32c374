"""The command line, ``numscorch`` or ``python -m numscorch``: demo, explain, bench, cache and doctor."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__
from .commands.bench import add_bench, error_text, positive
from .commands.cache import add_cache
from .commands.explain import add_explain
from .errors import NumscorchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0 for success, 1 if ``doctor`` or ``bench`` found a problem, 2 for bad input."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int] | None = arguments.command
    if command is None:
        parser.print_help()
        return 0
    try:
        status = command(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader closed the pipe, like head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
        return 0
    except (NumscorchError, OSError) as error:
        print(f"numscorch: {error_text(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numscorch", description="A sparse tensor compiler for PyTorch.")
    parser.add_argument("--version", action="version", version=f"numscorch {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(command=None)

    demo = commands.add_parser("demo", help="train a GCN on a real graph, and compare with torch.sparse and PyTorch Geometric")
    data = demo.add_mutually_exclusive_group()
    data.add_argument("file", nargs="?", type=Path, metavar="FILE", help="your own graph (.npz), or a Matrix Market file")
    data.add_argument("--graph", type=Path, metavar="FILE.npz", help="your own graph, instead of the digits' nearest neighbours")
    data.add_argument("--matrix", type=Path, metavar="FILE.mtx", help="multiply this Matrix Market file with a dense matrix instead")
    demo.add_argument("--threads", type=positive, metavar="N", help="the number of threads of torch and of kernels")
    demo.add_argument(
        "--out", type=Path, default=Path("numscorch-demo"), metavar="FOLDER", help="the folder of the picture (default: %(default)s)"
    )
    demo.set_defaults(command=_demo)

    add_explain(commands)
    add_bench(commands)
    add_cache(commands)
    doctor = commands.add_parser("doctor", help="check versions, processor, threading layer, threads and kernel cache")
    doctor.set_defaults(command=_doctor)
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    from .commands import demo

    graph, matrix, file = arguments.graph, arguments.matrix, arguments.file
    if file is not None:
        graph, matrix = (file, None) if file.suffix == ".npz" else (None, file)
    demo.run(graph, matrix, arguments.threads, arguments.out)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from .commands import doctor

    checks = doctor.report()
    print(doctor.render(checks))
    return int(not all(check.ok for check in checks))


if __name__ == "__main__":
    sys.exit(main())
