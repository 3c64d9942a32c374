"""Genten's MTTKRP (PyPI's package ``pygenten``), through ``genten.cpp``: the package's Python interface has whole decompositions only."""

from __future__ import annotations

from ctypes import POINTER, c_double, c_int64, c_void_p
from importlib.util import find_spec
from pathlib import Path
from weakref import finalize

import numpy as np

from .library import Functions, Library, Tensor
from .native import MissingError, addresses, compiled, converted, into

HERE = Path(__file__).parent


class Genten(Library):
    """Genten, whose values are float64; ``OMP_NUM_THREADS`` sets its threads when it is loaded."""

    name = "Genten"

    def __init__(self, threads: int):
        super().__init__(threads)
        spec = find_spec("pygenten")
        if spec is None or spec.origin is None:
            raise MissingError("pygenten is not installed")
        folder = Path(spec.origin).parent
        headers = [HERE / "genten_headers", *(folder / "include" / part for part in ("genten", "kokkos", "kokkos-kernels", "nlohmann", ""))]
        libraries = f"-L{folder}/lib64", "-lgentenlib", "-lkokkoscore", f"-Wl,-rpath,{folder}/lib64"
        self.library = compiled(HERE / "genten.cpp", tuple(f"-I{path}" for path in headers), libraries)
        self.library.make.restype = c_void_p
        self.library.result.restype, self.library.stride.restype = POINTER(c_double), c_int64
        self.library.initialize()

    @property
    def note(self) -> str:
        """The type of the values."""
        return "Genten computes in float64"

    def mttkrp(self, operand: Tensor) -> Functions:
        tensor, rank = operand.tensor, next(iter(operand.factors.values())).shape[1]
        unread = np.zeros((operand.rows, rank))
        factors = [operand.factors[mode].numpy().astype(np.float64) if mode != operand.mode else unread for mode in range(tensor.ndim)]
        coordinates, values = np.ascontiguousarray(tensor.indices().numpy(), np.int64), tensor.values.numpy().astype(np.float64)
        given = [tensor.ndim, np.array(tensor.shape, np.int64), tensor.nnz, coordinates, values, rank, addresses(factors), operand.mode]
        problem = c_void_p(self.library.make(*converted(given)))
        rows = np.ctypeslib.as_array(self.library.result(problem), (operand.rows, self.library.stride(problem)))
        call = into(rows[:, :rank], self.library.mttkrp, problem)
        finalize(call, self.library.release, problem)
        return {self.name: call}
