"""Sparse tensors for PyTorch, by a compiler that prints Python.

Every name that is not ours is torch's, so that ``import numscorch as torch`` works.
"""

from typing import Any

import torch as _torch

from . import collector as _collector
from . import nn, operators
from . import registration as _registration
from .api import einsum, evaluate, explain, load, save
from .autotuning import autotune
from .construct import from_coo, from_csr, from_scipy, from_torch
from .errors import ExpressionError, FormatError, NumscorchError, ScheduleError, SizeError, UnsupportedError
from .graphs import from_dgl, from_edge_index, from_networkx, from_torch_sparse
from .ir.format import BCSR, COO, CSC, CSF, CSR, DCSC, DCSR, DIA, ELL, NM, Format
from .ordering import coalesce, sort
from .pydata_arrays import from_pydata
from .selfcheck import register_level
from .sparse_tensor import SparseTensor
from .stacking import stack

add, sub, mul, div, matmul = map(operators.public, ("add", "sub", "mul", "div", "matmul"))
amax, amin, mean, sum, softmax = map(operators.public, ("amax", "amin", "mean", "sum", "softmax"))

_registration.register()
_collector.resume()

__version__ = "0.1.0"
__all__ = [
    "BCSR",
    "COO",
    "CSC",
    "CSF",
    "CSR",
    "DCSC",
    "DCSR",
    "DIA",
    "ELL",
    "NM",
    "ExpressionError",
    "Format",
    "FormatError",
    "NumscorchError",
    "ScheduleError",
    "SizeError",
    "SparseTensor",
    "UnsupportedError",
    "add",
    "amax",
    "amin",
    "autotune",
    "coalesce",
    "div",
    "einsum",
    "evaluate",
    "explain",
    "from_coo",
    "from_csr",
    "from_dgl",
    "from_edge_index",
    "from_networkx",
    "from_pydata",
    "from_scipy",
    "from_torch",
    "from_torch_sparse",
    "load",
    "matmul",
    "mean",
    "mul",
    "nn",
    "operators",
    "register_level",
    "save",
    "softmax",
    "sort",
    "stack",
    "sub",
    "sum",
]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in operators.PUBLIC:
        return operators.public(name)
    if not hasattr(_torch, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and neither has torch")
    return getattr(_torch, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_torch)})
