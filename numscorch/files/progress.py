"""A bar on stderr, for files that take a while."""

from __future__ import annotations

import sys
import time
from types import TracebackType

LARGE = 64 << 20  # bytes of text that take more than a second
WIDTH, EVERY = 30, 0.1  # characters of the bar, seconds between two lines


class Progress:
    """How much of some work is done, shown as a bar on stderr.

    Args:
        what: what is done, as ``reading a.mtx``.
        total: the whole amount; 0 where it isn't known, and nothing is shown.
        shown: always or never; None shows a bar where ``size`` is large and stderr is a terminal.
        size: bytes of text that the work is about.

    >>> with Progress("reading a.mtx", 4, shown=False) as progress:
    ...     progress.reach(2)
    ...     progress.text()
    'reading a.mtx  [###############...............]  50%'
    """

    def __init__(self, what: str, total: int, *, shown: bool | None = None, size: int = 0):
        self.what, self.total, self.done, self.printed_at = what, total, 0, 0.0
        self.shown = bool(total) and (shown if shown is not None else size > LARGE and sys.stderr is not None and sys.stderr.isatty())

    def reach(self, amount: int) -> None:
        """So much is done in all."""
        self.done = min(amount, self.total)
        if self.shown and time.monotonic() - self.printed_at > EVERY:
            self.printed_at = time.monotonic()
            sys.stderr.write(f"\r{self.text()}")
            sys.stderr.flush()

    def text(self) -> str:
        """The bar as it stands."""
        share = self.done / self.total
        filled = int(share * WIDTH)
        return f"{self.what}  [{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """The last state, on a line that stays."""
        if self.shown:
            self.done = self.total if kind is None else self.done
            sys.stderr.write(f"\r{self.text()}\n")
            sys.stderr.flush()
