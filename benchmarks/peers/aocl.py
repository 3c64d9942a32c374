"""AOCL-Sparse through ctypes. ``NUMSCORCH_BENCH_AOCL`` names the library, which PyPI's package ``aoclda`` holds in ``aoclda.libs``."""

from __future__ import annotations

import os
from contextlib import suppress
from ctypes import CDLL, POINTER, RTLD_GLOBAL, byref, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from .library import Functions, Library, UnsupportedError
from .native import Handle, MissingError, Owned, address, into, loaded

PATH = "NUMSCORCH_BENCH_AOCL"
AS_STORED, ROW_MAJOR, COLUMN_MAJOR, FROM_ZERO = 111, 0, 1, 0
EXPECTED_CALLS = 1000


class Aocl(Library):
    """Handles in CSR or CSC with hints, optimized before they are timed; 32-bit integers."""

    name = "AOCL-Sparse"

    def __init__(self, threads: int):
        super().__init__(threads)
        if not os.environ.get(PATH):
            raise MissingError(f"{PATH} names no library")
        path = Path(os.environ[PATH])
        os.environ["AOCLSPARSE_NUM_THREADS"] = str(threads)
        waiting = sorted(path.parent.glob("lib*.so*"))
        for _ in waiting[:]:  # libraries beside it, in an order in which each finds those that it needs
            for helper in list(waiting):
                with suppress(OSError):
                    CDLL(str(helper), mode=RTLD_GLOBAL)
                    waiting.remove(helper)
        self.library = loaded(str(path))
        self.description = c_void_p()
        self._call("create_mat_descr", byref(self.description))

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.library, f"aoclsparse_{name}")(*arguments):
            raise RuntimeError(f"aoclsparse_{name} returned {status}")

    def _handle(self, A: Any, hint: str = "mv") -> Handle:
        handle = Handle()
        if A.format == "coo":
            raise UnsupportedError
        arrays = address(A.indptr), address(A.indices), address(A.data)
        self._call(f"create_s{A.format}", byref(handle), FROM_ZERO, *A.shape, c_int(A.nnz), *arrays)
        handle.kept = A
        self._call(f"set_{hint}_hint", handle, AS_STORED, self.description, EXPECTED_CALLS)
        self._call("optimize", handle)
        return handle

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        return self._of_vector(A, x, np.zeros(A.shape[0], np.float32))

    def _of_vector(self, A: Any, x: np.ndarray, y: np.ndarray) -> Functions:
        one, zero = byref(c_float(1)), byref(c_float(0))
        arguments = AS_STORED, one, self._handle(A), self.description, x, zero, y
        return {self.name: into(y, self.library.aoclsparse_smv, *arguments, integer=c_int)}

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        if A.format != "csr":
            raise UnsupportedError
        k = B.shape[1]
        C = np.zeros((A.shape[0], k), np.float32)
        arguments = AS_STORED, 1.0, self._handle(A, "mm"), self.description, ROW_MAJOR, B, k, k, 0.0, C, k
        return {self.name: into(C, self.library.aoclsparse_scsrmm, *arguments, integer=c_int)}

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        """y^T = W x^T: row-major x is x^T in the order of columns, so nothing is transposed."""
        rows, columns = W.shape
        y = np.zeros((len(x), rows), np.float32)
        if len(x) == 1:
            return self._of_vector(W, x, y)
        arguments = AS_STORED, 1.0, self._handle(W, "mm"), self.description, COLUMN_MAJOR, x, len(x), columns, 0.0, y, rows
        return {self.name: into(y, self.library.aoclsparse_scsrmm, *arguments, integer=c_int)}

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        left, right = self._handle(A), self._handle(B)

        def product() -> Owned:
            result = c_void_p()
            self._call("spmm", AS_STORED, left, right, byref(result))
            if is_sorted:
                self._call("order_mat", result)
            return self._owned(result, (A.shape[0], B.shape[1]))

        return {self.name: product}

    def add(self, A: Any, B: Any) -> Functions:
        left, right = self._handle(A), self._handle(B)

        def total() -> Owned:
            result = c_void_p()
            self._call("sadd", AS_STORED, left, c_float(1), right, byref(result))
            return self._owned(result, A.shape)

        return {self.name: total}

    def _owned(self, handle: c_void_p, shape: tuple[int, int]) -> Owned:
        return Owned(handle, lambda matrix: self.library.aoclsparse_destroy(byref(matrix)), self._copied, shape)

    def _copied(self, handle: c_void_p) -> tuple[np.ndarray, ...]:
        base, rows, columns, nnz = c_int(), c_int(), c_int(), c_int()
        pos, crd, vals = POINTER(c_int)(), POINTER(c_int)(), POINTER(c_float)()
        self._call("export_scsr", handle, *map(byref, (base, rows, columns, nnz, pos, crd, vals)))
        sizes = (rows.value + 1,), (nnz.value,), (nnz.value,)
        starts, indices, values = (np.ctypeslib.as_array(p, size).copy() for p, size in zip((pos, crd, vals), sizes, strict=True))
        return starts - base.value, indices - base.value, values
