"""Eigen's sparse matrices (``eigen.cpp``), compiled against the headers of Debian's package ``libeigen3-dev``."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from .library import Functions, Library, UnsupportedError
from .native import compiled, converted, csr_arrays, into, new_matrix

HEADERS = "/usr/include/eigen3"


class Eigen(Library):
    """Eigen's operators; products with dense operands write into existing arrays, and use threads if the matrix is row-major."""

    name = "Eigen"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.library = compiled(Path(__file__).with_name("eigen.cpp"), (f"-I{HEADERS}",))
        for name in ("spgemm", "add", "multiply"):
            getattr(self.library, name).restype = c_void_p
        self.library.count.restype = c_int64
        self.library.set_threads(c_int64(threads))

    def _into(self, result: np.ndarray, function: str, A: Any, *arguments: Any) -> Functions:
        if A.format == "coo":
            raise UnsupportedError
        return {self.name: into(result, getattr(self.library, function), *A.shape, *csr_arrays(A), *arguments)}

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        y = np.empty(A.shape[0], np.float32)
        return self._into(y, f"spmv_{A.format}", A, x, y)

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        C = np.empty((A.shape[0], B.shape[1]), np.float32)
        return self._into(C, f"spmm_{A.format}", A, B, C, B.shape[1])

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        y = np.empty((len(x), W.shape[0]), np.float32)
        return self._into(y, "linear", W, x, y, len(x))

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        return self._matrix("spgemm", (A.shape[0], B.shape[1]), *A.shape, *csr_arrays(A), B.shape[1], *csr_arrays(B))

    def add(self, A: Any, B: Any) -> Functions:
        return self._matrix("add", A.shape, *A.shape, *csr_arrays(A), *csr_arrays(B))

    def multiply(self, A: Any, B: Any) -> Functions:
        return self._matrix("multiply", A.shape, *A.shape, *csr_arrays(A), *csr_arrays(B))

    def _matrix(self, function: str, shape: tuple[int, int], *arguments: Any) -> Functions:
        return new_matrix(self.name, self.library, function, shape, converted(arguments))
