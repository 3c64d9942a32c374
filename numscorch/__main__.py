"""The command line, ``numscorch`` or ``python -m numscorch``: demo, explain, bench, cache and doctor."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from . import __version__
from .commands.bench import add_bench, error_text
from .commands.cache import add_cache
from .commands.demo import add_demo
from .commands.doctor import add_doctor
from .commands.explain import add_explain
from .errors import NumscorchError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0 for success, 1 if ``doctor`` or ``bench`` found a problem, 2 for bad input."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    command: Callable[[argparse.Namespace], int | None] | None = arguments.command
    if command is None:
        parser.print_help()
        return 0
    try:
        status = command(arguments) or 0  # most commands return nothing
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
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in (add_demo, add_explain, add_bench, add_cache, add_doctor):
        add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
