"""Plain loops in C++ (``hand.cpp``): a lower bound of what a kernel should reach. Dense results are written into existing arrays."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

import numscorch as ns

from .library import Functions, Library, Tensor, UnsupportedError
from .native import addresses, compiled, converted, csr_arrays, into, new_matrix

HAND = "hand"
RANK = 16  # columns of an MTTKRP's factors


class Hand(Library):
    """The loops, for operands of any size, but with float32 values and int32 indices only."""

    name = HAND

    def __init__(self, threads: int):
        super().__init__(threads)
        self.loops = compiled(Path(__file__).with_name("hand.cpp"))
        for name in ("spgemm", "add", "multiply"):
            getattr(self.loops, name).restype = c_void_p
        self.loops.count.restype = self.loops.triangles.restype = c_int64

    def _into(self, result: np.ndarray, function: str, *arguments: Any) -> Functions:
        return {HAND: into(result, getattr(self.loops, function), *arguments, self.threads)}

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        rows, columns = A.shape
        y = np.empty(rows, np.float32)
        if A.format == "csr":
            return self._into(y, "spmv_csr", rows, *csr_arrays(A), x, y)
        if A.format == "csc":
            return self._into(y, "spmv_csc", rows, columns, *csr_arrays(A), x, y, np.empty((self.threads, rows), np.float32))
        return self._into(y, "spmv_coo", rows, A.nnz, *A.coords, A.data, x, y)

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        C = np.empty((A.shape[0], B.shape[1]), np.float32)
        sizes = A.shape[:1] if A.format == "csr" else A.shape
        return self._into(C, f"spmm_{A.format}", *sizes, *csr_arrays(A), B, C, B.shape[1])

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        y = np.empty((len(x), W.shape[0]), np.float32)
        return self._into(y, "linear", *W.shape, *csr_arrays(W), x, y, np.empty_like(x), np.empty_like(y), len(x))

    def sddmm(self, S: Any, X: np.ndarray, Y: np.ndarray) -> Functions:
        out = np.empty(S.nnz, np.float32)
        return self._into(out, "sddmm", S.shape[0], *csr_arrays(S), X, Y, out, X.shape[1])

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        shape = A.shape[0], B.shape[1]
        return self._matrix(shape, "spgemm", *shape, *csr_arrays(A), *csr_arrays(B), int(is_sorted))

    def add(self, A: Any, B: Any) -> Functions:
        return self._matrix(A.shape, "add", A.shape[0], *csr_arrays(A), *csr_arrays(B))

    def multiply(self, A: Any, B: Any) -> Functions:
        return self._matrix(A.shape, "multiply", A.shape[0], *csr_arrays(A), *csr_arrays(B))

    def _matrix(self, shape: tuple[int, int], function: str, *arguments: Any) -> Functions:
        return new_matrix(HAND, self.loops, function, shape, converted([*arguments, self.threads]))

    def row_sums(self, A: Any) -> Functions:
        out = np.empty(A.shape[0], np.float32)
        return self._into(out, "row_sums", A.shape[0], A.indptr, A.data, out)

    def softmax(self, A: Any) -> Functions:
        out = np.empty(A.nnz, np.float32)
        return self._into(out, "softmax", A.shape[0], A.indptr, A.data, out)

    def triangles(self, L: Any) -> Functions:
        given = converted([L.shape[0], L.indptr, L.indices, self.threads])
        return {HAND: lambda: self.loops.triangles(*given)}

    def mttkrp(self, operand: Tensor) -> Functions:
        order = operand.tensor.ndim
        if order not in (3, 4, 5):
            raise UnsupportedError
        others = [mode for mode in range(order) if mode != operand.mode]
        tree = ns.permute(operand.tensor, [operand.mode, *others]).to(ns.CSF(order))
        pos, crd = zip(*(tuple(array.numpy() for array in level) for level in tree.pattern.arrays), strict=True)
        factors = [np.ascontiguousarray(operand.factors[mode].numpy()) for mode in others]
        M = np.empty((operand.rows, RANK), np.float32)
        pointers = [addresses(arrays) for arrays in (pos[1:], crd[1:], factors)]
        given = [order, len(crd[0]), crd[0], pointers[0], pointers[1], tree.values.numpy(), pointers[2], M, operand.rows]
        return self._into(M, "mttkrp", *given)
