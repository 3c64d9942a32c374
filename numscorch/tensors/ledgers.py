"""The ledger: what was made dense, copied or converted, how many bytes that took, and which line caused it; and strict mode."""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal

import torch

from ..errors import DenseFallbackWarning, UnsupportedError

Kind = Literal["densification", "copy", "conversion", "transposition"]
GENERATED = ("<binder of ", "<eval_with_key>")  # by numscorch and by torch.fx
HOMES = (f"{Path(__file__).parents[1]}/", f"{Path(str(torch.__file__)).parent}/", *GENERATED)  # whose lines are nobody's own

_open: ContextVar[tuple[Ledger, ...]] = ContextVar("ledgers", default=())
_strict: ContextVar[bool] = ContextVar("strict", default=False)
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that took memory.

    ``line`` is the line of the program that caused it, as ``file:number: text``; ``during`` is "backward" where that was
    a gradient, which is listed under the line that asked for it.
    """

    kind: Kind
    what: str
    bytes: int
    asked: bool
    line: str
    during: Literal["forward", "backward"] = "forward"

    def __str__(self) -> str:
        kind_text = f"{self.kind}{'' if self.asked or self.kind != 'densification' else ' (unasked)'}"
        return f"{kind_text:<23} {shown_bytes(self.bytes):>9}  {self.what}{' in backward' * (self.during == 'backward')}  {self.line}"


class Ledger(list[Entry]):
    """The entries of a ``with numscorch.ledger()`` block, in the order of events; printed, a table."""

    def __enter__(self) -> Ledger:
        _open.set((*_open.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _open.set(tuple(ledger for ledger in _open.get() if ledger is not self))

    @property
    def bytes(self) -> int:
        """What all entries took."""
        return sum(entry.bytes for entry in self)

    def of(self, kind: Kind) -> list[Entry]:
        """The entries of one kind."""
        return [entry for entry in self if entry.kind == kind]

    def __str__(self) -> str:
        return "\n".join([*map(str, self), f"{len(self)} entries, {shown_bytes(self.bytes)}"])

    def __repr__(self) -> str:
        return f"<Ledger: {len(self)} entries, {shown_bytes(self.bytes)}>"


def ledger() -> Ledger:
    """List every densification, copy, conversion and transposition of this thread, gradients' included.

    Conversions that are remembered with a pattern are listed when they are made.

    Returns:
        The ledger, to be entered with ``with``; ledgers may be nested.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3))
    >>> with ns.ledger() as led:
    ...     full, columns = A.to_dense(), A.to(ns.CSC)
    >>> for entry in led:
    ...     print(entry.kind, entry.what, entry.bytes)
    densification CSR (3, 3) 36
    transposition CSR to CSC (3, 3) 28
    copy values in the order of CSC (3, 3) 12
    """
    return Ledger()


@contextmanager
def strict(enabled: bool = True) -> Iterator[None]:
    """Within it, in this thread, an operator that would make a sparse tensor dense raises; ``A.to_dense()`` still asks for it.

    Raises:
        UnsupportedError: at such an operator, with what to write instead.

    >>> import torch, numscorch as ns
    >>> with ns.strict():
    ...     torch.exp(ns.from_torch(torch.eye(3)))
    Traceback (most recent call last):
    ...
    numscorch.UnsupportedError: exp makes a tensor CSR (3, 3) dense (36 bytes): ...
    """
    token = _strict.set(enabled)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """Whether what would be dense unasked is refused."""
    return _strict.get()


def note(kind: Kind, what: str, size: int, *, asked: bool = True) -> None:
    """Enter what takes so many bytes in the ledgers that are open, if any is."""
    ledgers = _open.get()
    if ledgers and size:
        line, during = _cause()
        for ledger in ledgers:
            ledger.append(Entry(kind, what, size, asked, line, during))


def is_listed() -> bool:
    """Whether some ledger is open: what only it would tell need not be found out otherwise."""
    return bool(_open.get())


def densifying(operator: str, what: str, size: int, instead: str) -> None:
    """Tell that an operator makes a sparse tensor dense: listed, warned of at its first time, refused in strict mode.

    Raises:
        UnsupportedError: in strict mode.
    """
    message = f"{operator} makes a tensor {what} dense ({shown_bytes(size)}): {instead}"
    if _strict.get():
        raise UnsupportedError(f"{message}\n  within ns.strict(), only explicit calls such as A.to_dense() may do that")
    if operator not in _warned:
        warnings.warn(f"{message}; told once, ns.ledger() lists every time", DenseFallbackWarning, stacklevel=stack_level())
        _warned.add(operator)  # once it was told, and not made an error
    note("densification", f"{what} by {operator}", size, asked=False)


def shown_bytes(size: int) -> str:
    """A number of bytes to read.

    >>> shown_bytes(36), shown_bytes(5000), shown_bytes(3 << 30)
    ('36 bytes', '4.88 KiB', '3 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.3g} {' KMGT'[power]}iB"


def _cause() -> tuple[str, Literal["forward", "backward"]]:
    """The innermost line that is neither numscorch's nor torch's, and whether a gradient is computed."""
    frame: FrameType | None = sys._getframe(2)
    backward = False
    while frame is not None and frame.f_code.co_filename.startswith(HOMES):
        backward = backward or frame.f_code.co_name == "backward"
        frame = frame.f_back
    if frame is None:
        return "", "backward" if backward else "forward"
    file, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, number, frame.f_globals).strip()
    return f"{Path(file).name}:{number}: {text}", "backward" if backward else "forward"


def stack_level() -> int:
    """How many frames up the program's own line is, as warnings count them."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HOMES):
        depth, frame = depth + 1, frame.f_back
    return depth
