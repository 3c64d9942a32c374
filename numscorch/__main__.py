"""``numscorch``, or ``python -m numscorch``: the demo, what a kernel looks like, timing beside peers, the cache, the installation."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__
from .commands.asking import error_text
from .commands.bench import add_bench, positive
from .commands.cache import add_cache
from .commands.explain import add_explain
from .errors import NumscorchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status: 0, 1 where ``doctor`` or ``bench`` found something amiss, 2 for bad input."""
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
    except BrokenPipeError:  # the reader has enough, as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # which Python flushes at the end
        return 0
    except (NumscorchError, OSError) as error:
        print(f"numscorch: {error_text(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numscorch", description="A sparse tensor compiler for PyTorch.")
    parser.add_argument("--version", action="version", version=f"numscorch {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(command=None)

    demo = commands.add_parser("demo", help="train a GCN on a real graph, beside torch.sparse and PyTorch Geometric")
    data = demo.add_mutually_exclusive_group()
    data.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a graph (.npz) of your own, or a Matrix Market file")
    data.add_argument("--graph", type=Path, metavar="FILE.npz", help="a graph of your own, in place of the digits' nearest neighbours")
    data.add_argument("--matrix", type=Path, metavar="FILE.mtx", help="multiply this Matrix Market file with a dense matrix instead")
    demo.add_argument("--threads", type=positive, metavar="N", help="torch's thread count, which kernels follow")
    demo.add_argument(
        "--out", type=Path, default=Path("numscorch-demo"), metavar="FOLDER", help="where the picture goes (default: %(default)s)"
    )
    demo.set_defaults(command=_demo)

    add_explain(commands)
    add_bench(commands)
    add_cache(commands)
    doctor = commands.add_parser("doctor", help="print versions, threading layer, processor, cache folder, and what is amiss")
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

    return 0 if doctor.print_report() else 1


if __name__ == "__main__":
    sys.exit(main())
