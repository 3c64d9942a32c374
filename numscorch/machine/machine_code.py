"""The machine code of kernels on disk: a file for each kernel, version of Python and processor.

Numba's own cache trusts its files, though a flipped bit there crashes the process, writes where NUMBA_CACHE_DIR says, whoever
owns that folder, and raises where the disk is full. :class:`CodeFile` takes its place: files lie in the folder of
``kernel_cache``, start with a digest of their contents, and whatever fails means compiling without them.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from . import kernel_cache
from .fingerprints import code_name

DIGEST = 32  # bytes of a SHA-256
DAMAGED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    IndexError,
    OSError,
    RuntimeError,
)


def sealed(data: bytes) -> bytes:
    """The contents of a file, with their digest before them."""
    return hashlib.sha256(data).digest() + data


def unsealed(file: bytes | None) -> bytes | None:
    """The contents of a sealed file; None where they are damaged, or there is none.

    >>> file = sealed(b"code")
    >>> unsealed(file), unsealed(file[:-1]), unsealed(None)
    (b'code', None, None)
    """
    if file is None or hashlib.sha256(file[DIGEST:]).digest() != file[:DIGEST]:
        return None
    return file[DIGEST:]


def stored_code(kernel: str, source: str) -> bytes | None:
    """The machine code that is stored for a kernel; None where there is none, or it is damaged."""
    return unsealed(kernel_cache.read(_file_of(kernel, source)))


def store_code(kernel: str, source: str, code: bytes) -> None:
    """Store the machine code of a kernel where that is possible."""
    kernel_cache.write(_file_of(kernel, source), sealed(code))


def _file_of(kernel: str, source: str) -> str:
    return f"{kernel_cache.CODE}/{code_name(kernel, source.encode())}"


class CodeFile:
    """The cache that a dispatcher of Numba asks for one kernel: its interface is that of ``numba.core.caching._Cache``."""

    def __init__(self, kernel: str, source: str):
        self.file = _file_of(kernel, source)
        self.was_found = False

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled kernel; None where it isn't stored, or is damaged or of another signature."""
        from numba.core.compiler import CompileResult

        context.refresh()  # registers what the code refers to
        if (data := unsealed(kernel_cache.read(self.file))) is None:
            return None
        try:
            known, reduced = pickle.loads(data)
            overload = CompileResult._rebuild(context, *reduced) if known == signature else None
        except DAMAGED:  # it was written whole, but by something else
            return None
        self.was_found = overload is not None
        return overload

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a compiled kernel where that is possible."""
        from numba.core.serialize import dumps

        kernel_cache.write(self.file, sealed(dumps((signature, compiled._reduce()))))
