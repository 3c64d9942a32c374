"""The machine code of kernels on disk: one file per kernel, Python version and processor.

Numba's own cache trusts its files, so that a flipped bit crashes the process. It writes to NUMBA_CACHE_DIR without checking
the folder's owner, and raises if the disk is full. :class:`CodeFile` replaces it: its files are in the folder of
``kernel_cache`` and start with a digest of their contents, and after any failure the kernel is compiled.
"""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from . import kernel_cache
from .fingerprints import code_name

DIGEST = 32  # bytes of a SHA-256 digest
# errors raised by unpickling foreign or damaged data
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
    """The digest of the data, followed by the data."""
    return hashlib.sha256(data).digest() + data


def unsealed(file: bytes | None) -> bytes | None:
    """The data of a sealed file; None if the file is damaged or missing.

    >>> file = sealed(b"code")
    >>> unsealed(file), unsealed(file[:-1]), unsealed(None)
    (b'code', None, None)
    """
    if file is None or hashlib.sha256(file[DIGEST:]).digest() != file[:DIGEST]:
        return None
    return file[DIGEST:]


def stored_code(kernel: str, source: str) -> bytes | None:
    """The stored machine code of a kernel; None if it is missing or damaged."""
    return unsealed(kernel_cache.read(_file_of(kernel, source)))


def store_code(kernel: str, source: str, code: bytes) -> None:
    """Store the machine code of a kernel, if possible."""
    kernel_cache.write(_file_of(kernel, source), sealed(code))


def _file_of(kernel: str, source: str) -> str:
    return f"{kernel_cache.CODE}/{code_name(kernel, source.encode())}"


class CodeFile:
    """The cache of a Numba dispatcher for one kernel. It has the interface of ``numba.core.caching._Cache``."""

    def __init__(self, kernel: str, source: str):
        self.file = _file_of(kernel, source)
        self.was_found = False

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The compiled kernel; None if it is missing, damaged, or has another signature."""
        from numba.core.compiler import CompileResult

        context.refresh()  # registers the functions that the code refers to
        if (data := unsealed(kernel_cache.read(self.file))) is None:
            return None
        try:
            known, reduced = pickle.loads(data)
            overload = CompileResult._rebuild(context, *reduced) if known == signature else None
        except DAMAGED:  # complete, but not written by this class
            return None
        self.was_found = overload is not None
        return overload

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Store a compiled kernel, if possible."""
        from numba.core.serialize import dumps

        kernel_cache.write(self.file, sealed(dumps((signature, compiled._reduce()))))
