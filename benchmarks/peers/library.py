"""The operations that libraries offer for families of kernels: a method each, which a library overrides if it has the operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

import numscorch as ns
from numscorch.measuring.turns import Function

Functions = Mapping[str, Function]


class UnsupportedError(Exception):
    """The library lacks the operation, or the format."""


@dataclass(frozen=True)
class Tensor:
    """The operand of an MTTKRP: a tensor, the result's mode, and a matrix of 16 columns for each other mode."""

    tensor: ns.SparseTensor
    mode: int
    factors: Mapping[int, torch.Tensor]

    @property
    def rows(self) -> int:
        """The number of rows of the result."""
        return int(self.tensor.shape[self.mode])


class Library:
    """A library with a number of threads. Methods take SciPy matrices and NumPy arrays, and return functions by name.

    A name has the library's name first; a library may offer several functions for an operation. Operands are converted
    before the functions are returned; results may be of any type that ``measuring.comparison.check`` takes.

    Raises:
        MissingError, ImportError: the library is not installed.
    """

    name: ClassVar[str]

    def __init__(self, threads: int):
        self.threads = threads

    @property
    def note(self) -> str:
        """What readers should know about the library's functions on this machine; may be empty."""
        return ""

    def spmv(self, A: Any, x: np.ndarray) -> Functions:
        """y = A x, for A in CSR, CSC or COO."""
        raise UnsupportedError

    def spmm(self, A: Any, B: np.ndarray) -> Functions:
        """C = A B, for A in CSR or CSC and B in row-major order."""
        raise UnsupportedError

    def linear(self, W: Any, x: np.ndarray) -> Functions:
        """y = x W^T, for W in CSR; x and y are row-major."""
        raise UnsupportedError

    def sddmm(self, S: Any, X: np.ndarray, Y: np.ndarray) -> Functions:
        """Values of S * (X Y^T) at the entries of S, which are 1."""
        raise UnsupportedError

    def spgemm(self, A: Any, B: Any, is_sorted: bool) -> Functions:
        """C = A B in CSR, with rows in order if ``is_sorted``."""
        raise UnsupportedError

    def add(self, A: Any, B: Any) -> Functions:
        """C = A + B in CSR."""
        raise UnsupportedError

    def multiply(self, A: Any, B: Any) -> Functions:
        """C = A * B, element by element, in CSR."""
        raise UnsupportedError

    def row_sums(self, A: Any) -> Functions:
        """The sum of each row."""
        raise UnsupportedError

    def softmax(self, A: Any) -> Functions:
        """Values of the softmax over the entries of each row."""
        raise UnsupportedError

    def triangles(self, L: Any) -> Functions:
        """The number of triangles of a graph; L holds the edges below the diagonal, with values of 1."""
        raise UnsupportedError

    def mttkrp(self, operand: Tensor) -> Functions:
        """M[i,r] = sum of A[i,j,...] * B[j,r] * ... over all modes but one."""
        raise UnsupportedError

    def topn(self, A: Any, B: Any, n: int) -> Functions:
        """The n largest entries of each row of A B."""
        raise UnsupportedError


def functions_of(libraries: Sequence[Library], operation: str, *operands: Any) -> dict[str, Function]:
    """Functions of all libraries that have an operation, by name."""
    functions: dict[str, Function] = {}
    for library in libraries:
        try:
            functions |= getattr(library, operation)(*operands)
        except UnsupportedError:
            continue
    return functions
