"""Ledgers and strict mode: record, or reject, operations that allocate memory for dense tensors, copies and conversions.

A ledger lists each such operation with its size in bytes and the line of the user's program that caused it.
"""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal

import torch

from ..errors import DenseFallbackWarning, UnsupportedError

EntryKind = Literal["densification", "copy", "conversion", "transposition", "schedule"]
HOMES = (  # code that is not the user's; numscorch and torch.fx generate the last two
    f"{Path(__file__).parents[1]}/",
    f"{Path(str(torch.__file__)).parent}/",
    "<binder of ",
    "<eval_with_key>",
)

_open: ContextVar[tuple[Ledger, ...]] = ContextVar("ledgers", default=())
STRICT = "{message}\n  in ns.strict(), only explicit calls such as A.to_dense() may do that"
_refusal: ContextVar[str | None] = ContextVar("refusal", default=None)  # the error text of implicit densification; None allows it
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Entry:
    """One allocation, or one replaced schedule.

    Attributes:
        kind: densification, copy, conversion or transposition; or schedule, if a faster one was found and is used from then on.
        what: description of the tensor or the conversion.
        bytes: size in bytes.
        asked: whether the user requested it by a call such as ``A.to_dense()``.
        line: line of the user's program that caused it, as ``file:number: text``.
        during: "backward" if a gradient caused it; ``line`` is then the call that computed the gradient.
    """

    kind: EntryKind
    what: str
    bytes: int
    asked: bool
    line: str
    during: Literal["forward", "backward"] = "forward"

    def __str__(self) -> str:
        kind_text = f"{self.kind}{'' if self.asked or self.kind != 'densification' else ' (implicit)'}"
        return f"{kind_text:<23} {shown_bytes(self.bytes):>9}  {self.what}{' in backward' * (self.during == 'backward')}  {self.line}"


class Ledger(list[Entry]):
    """The entries of a ``with numscorch.ledger()`` block, in order; prints as a table."""

    def __enter__(self) -> Ledger:
        _open.set((*_open.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _open.set(tuple(ledger for ledger in _open.get() if ledger is not self))

    @property
    def bytes(self) -> int:
        """Total size of all entries, in bytes."""
        return sum(entry.bytes for entry in self)

    def of(self, kind: EntryKind) -> list[Entry]:
        """The entries of one kind."""
        return [entry for entry in self if entry.kind == kind]

    def __str__(self) -> str:
        return "\n".join([*map(str, self), f"{len(self)} entries, {shown_bytes(self.bytes)}"])

    def __repr__(self) -> str:
        return f"<Ledger: {len(self)} entries, {shown_bytes(self.bytes)}>"


def ledger() -> Ledger:
    """Record every densification, copy, conversion and transposition of this thread, including those of gradients.

    A conversion that is cached with a pattern is listed once, when it is computed.

    Returns:
        A list and context manager, which may be nested. Each entry has ``kind``, ``what``, ``bytes``, ``asked`` (whether the user
        requested it by a call such as ``A.to_dense()``), ``line`` (of the user's program) and ``during`` (``"forward"`` or
        ``"backward"``). ``bytes`` of the list is the total size, and ``print`` shows a table.

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


def strict(enabled: bool = True) -> AbstractContextManager[None]:
    """Make operators raise an error instead of converting a sparse tensor to dense, in this thread.

    Explicit calls such as ``A.to_dense()`` are allowed.

    Args:
        enabled: False allows implicit conversions again, within another strict block.

    Returns:
        A context manager.

    Raises:
        UnsupportedError: raised by an operator that would make a sparse tensor dense; the text suggests an alternative.

    >>> import torch, numscorch as ns
    >>> with ns.strict():
    ...     torch.exp(ns.from_torch(torch.eye(3)))
    Traceback (most recent call last):
    ...
    numscorch.UnsupportedError: exp makes a tensor CSR (3, 3) dense (36 bytes): ...
    """
    return refusing(STRICT if enabled else None)


@contextmanager
def refusing(text: str | None) -> Iterator[None]:
    """Strict mode with the error text ``text``; ``{message}`` in it stands for the operation and an alternative. None leaves the mode.

    Raises:
        UnsupportedError: raised by an operator that would make a sparse tensor dense.
    """
    token = _refusal.set(text)
    try:
        yield
    finally:
        _refusal.reset(token)


def is_strict() -> bool:
    """Whether implicit densification is an error in this thread."""
    return _refusal.get() is not None


def note(kind: EntryKind, what: str, size: int, *, asked: bool = True) -> None:
    """Add an entry of ``size`` bytes to all open ledgers."""
    ledgers = _open.get()
    if ledgers and (size or kind == "schedule"):
        line, during = _cause()
        for ledger in ledgers:
            ledger.append(Entry(kind, what, size, asked, line, during))


def is_listed() -> bool:
    """Whether a ledger is open; callers skip expensive bookkeeping otherwise."""
    return bool(_open.get())


def densifying(operator: str, what: str, size: int, instead: str) -> None:
    """Report that an operator makes a sparse tensor dense: add it to the ledgers, and warn once per operator.

    Args:
        operator: name of the operator.
        what: description of the tensor.
        size: size of the dense tensor, in bytes.
        instead: what to write instead.

    Raises:
        UnsupportedError: in strict mode.
    """
    message = f"{operator} makes a tensor {what} dense ({shown_bytes(size)}): {instead}"
    if (refusal := _refusal.get()) is not None:
        raise UnsupportedError(refusal.format(message=message))
    if operator not in _warned:
        warnings.warn(f"{message}; shown once, ns.ledger() lists every occurrence", DenseFallbackWarning, stacklevel=stack_level())
        _warned.add(operator)  # after the warning, which a filter may turn into an error
    note("densification", f"{what} by {operator}", size, asked=False)


def shown_bytes(size: int) -> str:
    """Format a number of bytes with a binary unit.

    >>> shown_bytes(36), shown_bytes(5000), shown_bytes(3 << 30)
    ('36 bytes', '4.88 KiB', '3 GiB')
    """
    if size < 1024:
        return f"{size} bytes"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.3g} {' KMGT'[power]}iB"


def _cause() -> tuple[str, Literal["forward", "backward"]]:
    """The innermost line of the user's program, and whether a backward pass is running."""
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
    """The ``stacklevel`` at which a warning points to the innermost line of the user's program."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(HOMES):
        depth, frame = depth + 1, frame.f_back
    return depth
