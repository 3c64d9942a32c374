"""Helpers of the examples: command line options, timing, a table, and a comparison of results."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(f"{error}: the examples need it, pip install 'numscorch[examples]'") from error

__all__ = ["Figure", "agree", "options", "table", "timed", "times_as_fast", "tqdm"]

Result = TypeVar("Result")


def options(description: str, data: str, **numbers: int) -> argparse.Namespace:
    """Parse the command line: --data, --out, --seed, and integer options with defaults, such as ``epochs=5`` for --epochs."""
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, help=data)
    parser.add_argument("--out", type=Path, default=Path(f"{name}.png"), help="where the plot goes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn at random (default: %(default)s)")
    for number, default in numbers.items():
        parser.add_argument(f"--{number}", type=int, default=default, help="(default: %(default)s)")
    chosen = parser.parse_args()
    torch.manual_seed(chosen.seed)
    return chosen


def timed(times: list[float], call: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of a call, and append its duration in seconds to ``times``."""
    start = time.perf_counter()
    result = call(*arguments)
    times.append(time.perf_counter() - start)
    return result


def times_as_fast(ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, str, str]:
    """Table cells for two lists of times: the minimum of each, which is least sensitive to noise, and their ratio."""
    first, second = min(ours), min(theirs)
    return f"{first * 1e3:.2f} ms", f"{second * 1e3:.2f} ms", f"{second / first:.2f} times as fast"


def table(head: Sequence[str], *rows: Sequence[str]) -> None:
    """Print a table with a header; the first column is left-aligned."""
    lines = [(*row, *[""] * (len(head) - len(row))) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *numbers in lines:
        print("   ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))]).rstrip())


def agree(what: str, difference: float, most: float) -> None:
    """Print that two results agree, or exit with an error."""
    if not difference <= most:
        raise SystemExit(f"{what} differ: by {difference:.2g}, where {most:.2g} was expected at most")
    print(f"{what} agree: largest difference {difference:.2g}, at most {most:.2g}")
