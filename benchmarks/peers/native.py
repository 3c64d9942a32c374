"""Libraries with an interface in C, and C++ files compiled for this processor: loading, and calls with the addresses of arrays."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from ctypes import CDLL, RTLD_GLOBAL, c_float, c_int, c_int64, c_void_p
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from numscorch.measuring.turns import Function

COMPILER = "g++"
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-std=c++17", "-w")
LINKED = ("-shared", "-fopenmp")  # without -ffast-math, which would flush subnormal numbers in the whole process


class MissingError(Exception):
    """A library is not installed, or a program to compile it is not."""


@cache
def loaded(name: str, *patterns: str) -> CDLL:
    """The first library that a pattern finds, or that the linker knows by its name.

    Raises:
        MissingError: there is none.
    """
    for path in [*(path for pattern in patterns for path in sorted(glob(pattern))), name]:
        try:
            return CDLL(path, mode=RTLD_GLOBAL)
        except OSError as error:
            why = str(error)
    raise MissingError(why)


@cache
def compiled(source: Path, flags: Sequence[str] = (), linked: Sequence[str] = ()) -> CDLL:
    """A C++ file as a library. Libraries are kept in the folder for temporary files, by source and flags.

    Raises:
        MissingError: there is no compiler, or the file does not compile, for example as it lacks a header.
    """
    if shutil.which(COMPILER) is None:
        raise MissingError(f"{COMPILER} is not installed")
    flags = (*FLAGS, *flags)
    key = hashlib.sha256("\0".join([source.read_text(), *flags, *LINKED, *linked]).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"numscorch-bench-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{source.stem}-{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unit, shared = f"{scratch}/unit.o", f"{scratch}/unit.so"
            _run(COMPILER, *flags, "-c", str(source), "-o", unit)
            _run(COMPILER, *LINKED, unit, "-o", shared, *linked)
            os.replace(shared, library)
    return CDLL(str(library))


def _run(*command: str) -> None:
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise MissingError(next((line for line in process.stderr.splitlines() if "error" in line), process.stderr[-200:]))


class Handle(c_void_p):
    """An object in a library's memory, and what must live as long."""

    kept: Any = None


def address(array: np.ndarray) -> c_void_p:
    """The address of an array, which keeps the array alive."""
    return array.ctypes.data_as(c_void_p)


def addresses(arrays: Sequence[np.ndarray]) -> Any:
    """A C array of the addresses of arrays, which keeps them alive."""
    pointers: Any = (c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    pointers.kept = arrays
    return pointers


def converted(arguments: Sequence[Any], integer: type = c_int64) -> list[Any]:
    """Arguments of a function in C: arrays as addresses, integers in a type, floats as float32; others are passed on."""
    return [_converted(argument, integer) for argument in arguments]


def _converted(argument: Any, integer: type) -> Any:
    if isinstance(argument, np.ndarray):
        return address(argument)
    if isinstance(argument, float):
        return c_float(argument)
    return integer(argument) if isinstance(argument, int | np.integer) else argument


def into(result: np.ndarray, function: Any, *arguments: Any, integer: type = c_int64) -> Function:
    """A call of a function in C that writes into an array, and returns the array. A status other than 0 is an error.

    Raises:
        RuntimeError: the first call returned a status other than 0.
    """
    given = converted(arguments, integer)
    function.restype = c_int if integer is c_int else None
    if status := function(*given):
        raise RuntimeError(f"{function.__name__} returned {status}")

    def call() -> np.ndarray:
        function(*given)
        return result

    return call


def csr_arrays(matrix: Any) -> tuple[np.ndarray, ...]:
    """Row or column pointers, indices and values of a SciPy matrix in CSR or CSC."""
    return matrix.indptr, matrix.indices, matrix.data


class Owned:
    """A sparse matrix in a library's memory, freed with the object.

    Args:
        handle: the matrix in the library.
        free: frees it.
        copied: its row pointers, column indices and values as NumPy arrays.
        shape: numbers of rows and columns.
    """

    def __init__(self, handle: Any, free: Callable[[Any], object], copied: Callable[[Any], tuple[np.ndarray, ...]], shape: tuple[int, int]):
        self.handle, self.free, self.copied, self.shape = handle, free, copied, shape

    def tocoo(self) -> Any:
        """The matrix as SciPy's COO."""
        pos, crd, vals = self.copied(self.handle)
        return sparse.csr_array((vals, crd, pos), shape=self.shape).tocoo()

    def __del__(self) -> None:
        self.free(self.handle)


def new_matrix(name: str, library: CDLL, function: str, shape: tuple[int, int], arguments: Sequence[Any]) -> dict[str, Function]:
    """A call, by its name, that returns a new matrix, of a library with functions ``count``, ``copy`` and ``release``."""
    call = getattr(library, function)

    def copied(handle: c_void_p) -> tuple[np.ndarray, ...]:
        count = library.count(handle)
        arrays = np.empty(shape[0] + 1, np.int32), np.empty(count, np.int32), np.empty(count, np.float32)
        library.copy(handle, *map(address, arrays))
        return arrays

    return {name: lambda: Owned(c_void_p(call(*arguments)), library.release, copied, shape)}
