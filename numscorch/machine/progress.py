"""A progress bar on stderr for large files and lists of entries."""

from __future__ import annotations

import sys
import time

LARGE = 64 << 20  # bytes that take about a second to read as text, or to sort as values of entries
WIDTH, EVERY = 30, 0.1  # characters of the bar, seconds between updates


class Progress:
    """A progress bar on stderr.

    Args:
        what: the description of the work, such as ``reading a.mtx``.
        total: the total amount; 0 if unknown (no bar is shown).
        shown: whether to show the bar; None shows it if ``size`` exceeds 64 MiB and stderr is a terminal.
        size: the size of the file or of the values, in bytes.

    >>> with Progress("reading a.mtx", 4, shown=False) as progress:
    ...     progress.reach(2)
    ...     progress.text()
    'reading a.mtx  [###############...............]  50%'
    """

    def __init__(self, what: str, total: int, *, shown: bool | None = None, size: int = 0):
        self.what, self.total, self.done, self.printed_at = what, total, 0, 0.0
        self.shown = bool(total) and (shown if shown is not None else size > LARGE and sys.stderr is not None and sys.stderr.isatty())

    def reach(self, amount: int) -> None:
        """Set the amount done so far, and update the bar."""
        self.done = min(amount, self.total)
        if self.shown and time.monotonic() - self.printed_at > EVERY:
            self.printed_at = time.monotonic()
            print(f"\r{self.text()}", end="", file=sys.stderr, flush=True)

    def text(self) -> str:
        share = self.done / self.total
        filled = int(share * WIDTH)
        return f"{self.what}  [{'#' * filled}{'.' * (WIDTH - filled)}] {share:4.0%}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Print the final state and end the line."""
        if self.shown:
            self.done = self.total if kind is None else self.done
            print(f"\r{self.text()}", file=sys.stderr, flush=True)
