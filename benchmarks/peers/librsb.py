"""librsb (Recursive Sparse Blocks) through ctypes, as Debian's package ``librsb0`` installs it."""

from __future__ import annotations

from ctypes import byref, c_char, c_float, c_int, c_void_p
from functools import cache
from typing import Any

import numpy as np

from .library import Functions, Library, UnsupportedError
from .native import Owned, address, into, loaded

FLOAT, AS_STORED = c_char(b"S"), ord("N")
RSB_STORAGE, COLUMN_MAJOR = 0x2000 | 0x2 | 0x100 | 0x4000, 0x4000000  # the default: quadrants, in blocks with short indices
EXECUTING_THREADS, NNZ = 0x9, 0x10


@cache
def _initialized() -> Any:
    library = loaded("librsb.so.0")
    for name in ("alloc_from_csr_const", "alloc_from_coo_const", "free"):
        getattr(library, f"rsb_mtx_{name}").restype = c_void_p
    library.rsb_spmsp.restype = library.rsb_sppsp.restype = c_void_p
    library.rsb_lib_init(None)
    return library


class Librsb(Library):
    """Matrices in recursive blocks, made from CSR or COO. The number of threads includes all that share a matrix."""

    name = "librsb"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.library = _initialized()
        self.library.rsb_lib_set_opt(EXECUTING_THREADS, byref(c_int(threads)))

    def _handle(self, A: Any) -> c_void_p:
        status = c_int()
        if A.format == "csc":
            raise UnsupportedError
        indices = (A.indptr, A.indices) if A.format == "csr" else A.coords
        make = getattr(self.library, f"rsb_mtx_alloc_from_{A.format}_const")
        handle = c_void_p(make(address(A.data), *map(address, indices), A.nnz, FLOAT, *A.shape, 1, 1, RSB_STORAGE, byref(status)))
        if status.value:
            raise RuntimeError(f"librsb returned {status.value}")
        return handle

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        y, one, zero = np.empty(A.shape[0], np.float32), byref(c_float(1)), byref(c_float(0))
        return {self.name: into(y, self.library.rsb_spmv, AS_STORED, one, self._handle(A), x, 1, zero, y, 1, integer=c_int)}

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        k, one, zero = B.shape[1], byref(c_float(1)), byref(c_float(0))
        C = np.empty((A.shape[0], k), np.float32)
        arguments = AS_STORED, one, self._handle(A), k, 0, B, k, zero, C, k
        return {self.name: into(C, self.library.rsb_spmm, *arguments, integer=c_int)}

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        rows, columns = W.shape
        y, one, zero = np.empty((len(x), rows), np.float32), byref(c_float(1)), byref(c_float(0))
        arguments = AS_STORED, one, self._handle(W), len(x), COLUMN_MAJOR, x, columns, zero, y, rows
        return {self.name: into(y, self.library.rsb_spmm, *arguments, integer=c_int)}

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        return self._matrix("rsb_spmsp", A, B)

    def add(self, A: Any, B: Any) -> Functions:
        return self._matrix("rsb_sppsp", A, B)

    def _matrix(self, function: str, A: Any, B: Any) -> Functions:
        call, one, left, right = getattr(self.library, function), byref(c_float(1)), self._handle(A), self._handle(B)
        shape = A.shape[0], B.shape[1]

        def result() -> Owned:
            handle = c_void_p(call(FLOAT, AS_STORED, one, left, AS_STORED, one, right, None))
            return Owned(handle, self.library.rsb_mtx_free, lambda matrix: self._copied(matrix, shape[0]), shape)

        return {self.name: result}

    def _copied(self, handle: c_void_p, rows: int) -> tuple[np.ndarray, ...]:
        count = c_int()
        self.library.rsb_mtx_get_info(handle, NNZ, byref(count))
        arrays = np.empty(rows + 1, np.int32), np.empty(count.value, np.int32), np.empty(count.value, np.float32)
        pos, crd, vals = map(address, arrays)
        self.library.rsb_mtx_get_csr(FLOAT, handle, vals, pos, crd, 0)
        return arrays
