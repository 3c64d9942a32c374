"""Libraries with an interface in Python: SciPy, torch, PyTorch Geometric, GraphBLAS and sparse_dot_topn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

import numscorch as ns
from numscorch.measuring.peers import GRAPHBLAS, MODULES, SCIPY, TORCH, TORCH_64, is_installed

from .library import Functions, Library, Tensor, UnsupportedError

TOPN, PYG_SOFTMAX = "sparse_dot_topn", "PyG softmax"


class Scipy(Library):
    """SciPy, on one thread."""

    name = SCIPY

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        return {f"SciPy {A.format.upper()}": lambda: A @ x}

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        return self.spmv(A, B)

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        return {"SciPy (CSR @ x.T).T": lambda: (W @ x.T).T}

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        def in_order() -> Any:
            product = A @ B
            product.sort_indices()
            return product

        return {SCIPY: in_order if is_sorted else lambda: A @ B}

    def add(self, A: Any, B: Any) -> Functions:
        return {SCIPY: lambda: A + B}

    def multiply(self, A: Any, B: Any) -> Functions:
        return {SCIPY: lambda: A.multiply(B)}

    def row_sums(self, A: Any) -> Functions:
        return {SCIPY: lambda: A.sum(1)}


class Torch(Library):
    """torch: CSR with indices of both types, and its functions for segments."""

    name = "torch"

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        dense = torch.from_numpy(x)
        if A.format == "csr":
            return _each_type(lambda matrix: matrix @ dense, A)
        stored = ns.from_scipy(A).to_torch()
        return {f"torch {A.format.upper()}": lambda: stored @ dense}

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        return self.spmv(A, B)

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        dense = torch.from_numpy(x)
        return _each_type(lambda matrix: (matrix @ dense.t()).t().contiguous(), W)

    def sddmm(self, S: Any, X: np.ndarray, Y: np.ndarray) -> Functions:
        left, right = torch.from_numpy(X), torch.from_numpy(Y).t()
        return _each_type(lambda pattern: torch.sparse.sampled_addmm(pattern, left, right, beta=0), S)

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        if is_sorted:
            raise UnsupportedError  # torch sorts COO only
        return _each_type(torch.matmul, A, B)

    def add(self, A: Any, B: Any) -> Functions:
        return _each_type(torch.add, A, B)

    def multiply(self, A: Any, B: Any) -> Functions:
        return _each_type(torch.mul, A, B)

    def row_sums(self, A: Any) -> Functions:
        offsets, values = torch.from_numpy(A.indptr), torch.from_numpy(A.data)
        rows = torch.from_numpy(np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)))
        return {
            "torch.segment_reduce": lambda: torch.segment_reduce(values, "sum", offsets=offsets, initial=0.0),
            "torch.index_add": lambda: torch.zeros(A.shape[0]).index_add_(0, rows, values),
        }

    def softmax(self, A: Any) -> Functions:
        coo = _in_torch(torch.int64, A).to_sparse_coo().coalesce()
        return {"torch.sparse.softmax, COO": lambda: torch.sparse.softmax(coo, 1)}

    def mttkrp(self, operand: Tensor) -> Functions:
        indices, values = operand.tensor.indices(), operand.tensor.values

        def gathered() -> torch.Tensor:
            rows = values[:, None]
            for mode, factor in operand.factors.items():
                rows = rows * factor[indices[mode]]
            return torch.zeros(operand.rows, rows.shape[1]).index_add_(0, indices[operand.mode], rows)

        return {"torch, gather and scatter": gathered}


class Pyg(Library):
    """PyTorch Geometric's softmax of segments; its other products are torch's."""

    name = PYG_SOFTMAX

    def __init__(self, threads: int):
        super().__init__(threads)
        if not is_installed("torch_geometric.utils"):
            raise ImportError("torch_geometric is not installed")
        self.utils = import_module("torch_geometric.utils")

    def softmax(self, A: Any) -> Functions:
        values, pos = torch.from_numpy(A.data), torch.from_numpy(A.indptr.astype(np.int64))
        rows = torch.from_numpy(np.repeat(np.arange(A.shape[0]), np.diff(A.indptr)))
        return {
            PYG_SOFTMAX: lambda: self.utils.softmax(values, ptr=pos),
            f"{PYG_SOFTMAX}, by index": lambda: self.utils.softmax(values, rows, num_nodes=A.shape[0]),
        }


class GraphBlas(Library):
    """SuiteSparse:GraphBLAS through python-graphblas. Results are complete: pending work is done."""

    name = GRAPHBLAS

    def __init__(self, threads: int):
        super().__init__(threads)
        self.library = import_module(MODULES[GRAPHBLAS])
        self.library.ss.config["nthreads"] = threads
        self.times = self.library.semiring.plus_times

    def _matrix(self, A: Any) -> Any:
        """The matrix; one in CSC as the view of a transpose, with the arrays in the order of columns."""
        if A.format == "coo":
            raise UnsupportedError
        matrix = self.library.Matrix
        make = matrix.from_csr if A.format == "csr" else matrix.from_csc
        return make(A.indptr, A.indices, A.data, nrows=A.shape[0], ncols=A.shape[1])

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        matrix, vector = self._matrix(A), self.library.Vector.from_dense(x)
        return {GRAPHBLAS: lambda: self.times(matrix @ vector).new()}

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        matrix, dense = self._matrix(A), self.library.Matrix.from_dense(B)
        return {GRAPHBLAS: lambda: self.times(matrix @ dense).new()}

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        matrix, dense = self._matrix(W), self.library.Matrix.from_dense(x)
        return {GRAPHBLAS: lambda: self.times(dense @ matrix.T).new()}

    def sddmm(self, S: Any, X: np.ndarray, Y: np.ndarray) -> Functions:
        sampled, left, right = self._matrix(S), self.library.Matrix.from_dense(X), self.library.Matrix.from_dense(Y)
        return {GRAPHBLAS: lambda: self.times(left @ right.T).new(mask=sampled.S)}

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        left, right = self._matrix(A), self._matrix(B)

        def product() -> Any:
            result = self.times(left @ right).new()
            if is_sorted:
                result.wait("materialize")
            return result

        return {GRAPHBLAS: product}

    def add(self, A: Any, B: Any) -> Functions:
        left, right = self._matrix(A), self._matrix(B)
        return {GRAPHBLAS: lambda: self.library.binary.plus(left | right).new()}

    def multiply(self, A: Any, B: Any) -> Functions:
        left, right = self._matrix(A), self._matrix(B)
        return {GRAPHBLAS: lambda: self.library.binary.times(left & right).new()}

    def row_sums(self, A: Any) -> Functions:
        matrix = self._matrix(A)
        return {GRAPHBLAS: lambda: matrix.reduce_rowwise("plus").new()}

    def triangles(self, L: Any) -> Functions:
        lower, pairs = self._matrix(L), self.library.semiring.plus_pair
        upper = lower.T.new()
        return {
            f"{GRAPHBLAS}, rows": lambda: pairs(lower @ lower).new(mask=lower.S).reduce_scalar().new(),
            f"{GRAPHBLAS}, pairs of rows": lambda: pairs(lower @ upper.T).new(mask=lower.S).reduce_scalar().new(),
        }


class TopN(Library):
    """sparse_dot_topn, which keeps a heap for each row of a product."""

    name = TOPN

    def __init__(self, threads: int):
        super().__init__(threads)
        self.library = import_module(TOPN)

    def topn(self, A: Any, B: Any, n: int) -> Functions:
        product = partial(self.library.sp_matmul_topn, csr_matrix(A), csr_matrix(B), n, sort=True, n_threads=self.threads)
        return {TOPN: product}


def _each_type(make: Callable[..., object], *matrices: Any) -> Functions:
    """Functions for torch CSR with int32 and int64 indices; MKL takes int32, and torch's own loops int64."""
    functions = {}
    for name, dtype in ((TORCH, torch.int32), (TORCH_64, torch.int64)):
        functions[name] = partial(make, *(_in_torch(dtype, matrix) for matrix in matrices))
    return functions


def _in_torch(dtype: torch.dtype, A: Any) -> torch.Tensor:
    if A.format != "csr":
        raise UnsupportedError
    pos, crd = (torch.from_numpy(array).to(dtype) for array in (A.indptr, A.indices))
    return torch.sparse_csr_tensor(pos, crd, torch.from_numpy(A.data), A.shape, check_invariants=False)
