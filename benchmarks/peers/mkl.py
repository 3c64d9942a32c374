"""MKL's inspector-executor routines through ctypes: handles with hints, optimized before they are timed (PyPI's package ``mkl``)."""

from __future__ import annotations

import re
import sys
from ctypes import POINTER, Structure, byref, c_float, c_int, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from .library import Functions, Library
from .native import Handle, Owned, address, into, loaded

FOUND = (f"{sys.prefix}/lib/libmkl_rt.so*", "/opt/intel/oneapi/mkl/latest/lib/libmkl_rt.so*")
SEQUENTIAL, GNU, LP64 = 1, 3, 0
AS_STORED, GENERAL_TYPE, ROW_MAJOR, COLUMN_MAJOR, FROM_ZERO = 10, 20, 101, 102, 0
EXPECTED_CALLS = 1000


class _Description(Structure):
    _fields_ = [("type", c_int), ("mode", c_int), ("diag", c_int)]


GENERAL = _Description(GENERAL_TYPE, 0, 0)


class Mkl(Library):
    """Sparse BLAS with 32-bit integers. Dense results are written into existing arrays."""

    name = "MKL"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.library = loaded("libmkl_rt.so", *FOUND)
        self.library.MKL_Set_Interface_Layer(LP64)
        self.library.MKL_Set_Threading_Layer(GNU if threads > 1 else SEQUENTIAL)
        self.library.MKL_Set_Num_Threads(threads)

    @property
    def note(self) -> str:
        """The library with the code for this processor: ``libmkl_def`` is the generic one, which processors of other vendors get."""
        paths = set(re.findall(r"libmkl_(def|mc3|avx\w*)\.", Path("/proc/self/maps").read_text()))
        return f"MKL runs {', '.join(f'libmkl_{path}' for path in sorted(paths))}" if paths else ""

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.library, f"mkl_sparse_{name}")(*arguments):
            raise RuntimeError(f"mkl_sparse_{name} returned {status}")

    def _handle(self, A: Any, columns: int = 0, layout: int = ROW_MAJOR) -> Handle:
        """A handle for products with ``columns`` columns, or with a vector."""
        handle = Handle()
        vals = address(A.data)
        if A.format == "coo":
            row, column = A.coords
            self._call("s_create_coo", byref(handle), FROM_ZERO, *A.shape, A.nnz, address(row), address(column), vals)
        else:
            pos, ends = address(A.indptr), c_void_p(A.indptr.ctypes.data + A.indptr.itemsize)
            self._call(f"s_create_{A.format}", byref(handle), FROM_ZERO, *A.shape, pos, ends, address(A.indices), vals)
        handle.kept = A
        if columns:
            self.library.mkl_sparse_set_mm_hint(handle, AS_STORED, GENERAL, layout, columns, EXPECTED_CALLS)
        else:
            self.library.mkl_sparse_set_mv_hint(handle, AS_STORED, GENERAL, EXPECTED_CALLS)
        self._call("optimize", handle)
        return handle

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        return self._of_vector(A, x, np.empty(A.shape[0], np.float32))

    def _of_vector(self, A: Any, x: np.ndarray, y: np.ndarray) -> Functions:
        arguments = AS_STORED, 1.0, self._handle(A), GENERAL, x, 0.0, y
        return {self.name: into(y, self.library.mkl_sparse_s_mv, *arguments, integer=c_int)}

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        k = B.shape[1]
        C = np.empty((A.shape[0], k), np.float32)
        arguments = AS_STORED, 1.0, self._handle(A, k), GENERAL, ROW_MAJOR, B, k, k, 0.0, C, k
        return {self.name: into(C, self.library.mkl_sparse_s_mm, *arguments, integer=c_int)}

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        """y^T = W x^T: row-major x is x^T in the order of columns, so nothing is transposed."""
        rows, columns = W.shape
        y = np.empty((len(x), rows), np.float32)
        if len(x) == 1:
            return self._of_vector(W, x, y)
        arguments = AS_STORED, 1.0, self._handle(W, len(x), COLUMN_MAJOR), GENERAL, COLUMN_MAJOR, x, len(x), columns, 0.0, y, rows
        return {self.name: into(y, self.library.mkl_sparse_s_mm, *arguments, integer=c_int)}

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        left, right = self._handle(A), self._handle(B)

        def product() -> Owned:
            result = c_void_p()
            self._call("spmm", AS_STORED, left, right, byref(result))
            if is_sorted:
                self._call("order", result)
            return self._owned(result, (A.shape[0], B.shape[1]))

        return {self.name: product}

    def add(self, A: Any, B: Any) -> Functions:
        left, right = self._handle(A), self._handle(B)

        def total() -> Owned:
            result = c_void_p()
            self._call("s_add", AS_STORED, left, c_float(1), right, byref(result))
            return self._owned(result, A.shape)

        return {self.name: total}

    def _owned(self, handle: c_void_p, shape: tuple[int, int]) -> Owned:
        return Owned(handle, self.library.mkl_sparse_destroy, self._copied, shape)

    def _copied(self, handle: c_void_p) -> tuple[np.ndarray, ...]:
        base, rows, columns = c_int(), c_int(), c_int()
        starts, ends, crd, vals = POINTER(c_int)(), POINTER(c_int)(), POINTER(c_int)(), POINTER(c_float)()
        self._call("s_export_csr", handle, *map(byref, (base, rows, columns, starts, ends, crd, vals)))
        pos = np.append(0, np.ctypeslib.as_array(ends, (rows.value,))).astype(np.int32)
        return pos, np.ctypeslib.as_array(crd, (pos[-1],)).copy(), np.ctypeslib.as_array(vals, (pos[-1],)).copy()
