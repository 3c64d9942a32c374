"""Sparse tensors for PyTorch, by a compiler that generates Python.

Names that numscorch doesn't define are torch's, so ``import numscorch as torch`` works.

The first call of each kind compiles a kernel and stores it on disk for later processes. If compilation takes more than a second, a
terminal shows a progress line; ``NUMSCORCH_PROGRESS=0`` turns it off. To log every kernel, call
``logging.getLogger("numscorch").setLevel(logging.INFO)``.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any

import torch as _torch

from .machine import guards as _compile_guards  # first: it pauses the garbage collector until _compile_guards.resume()

# isort: split
from . import nn, operators
from .convert.construct import from_coo, from_csr, from_torch
from .convert.conversions import converted as _converted, to_format as _to_format
from .convert.values import dense_as_asked as _dense_as_asked, to_torch as _to_torch
from .errors import (
    DenseFallbackWarning,
    DivisionError,
    ExpressionError,
    FormatError,
    MemoryLimitError,
    NumscorchError,
    OperandError,
    PatternWarning,
    RangeError,
    RankError,
    ScheduleError,
    SizeError,
    UnsupportedError,
)
from .explanation.page import card as _card
from .explanation.sketches import spy as _spy
from .files.load import load_graph
from .interface.api import einsum, evaluate, explain, load, save
from .interface.bound import BoundEinsum, OperandSpec, plan
from .interface.fusing import fuse
from .interface.level_checks import register_level
from .interface.warmup import warm
from .interop.array_libraries import from_pydata, from_scipy, to_pydata as _to_pydata, to_scipy as _to_scipy
from .interop.edge_lists import adj_t, to_edge_index as _to_edge_index
from .interop.graph_libraries import (
    from_dgl,
    from_networkx,
    from_torch_sparse,
    to_dgl as _to_dgl,
    to_networkx as _to_networkx,
    to_torch_sparse as _to_torch_sparse,
)
from .ir.format import BCSR, COO, CSC, CSF, CSR, DCSC, DCSR, DIA, ELL, NM, NMG, Format
from .measuring.best_format import best_format
from .operators.comparison import coalesce, ordered as _ordered, sort
from .operators.creation import (
    diag,
    diags,
    empty,
    eye,
    full,
    ones,
    rand,
    randn,
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
    tensor,
    zeros,
)
from .operators.joining import stack
from .operators.naming import fallback as _fallback, publish as _publish
from .programs import torch_operators as _torch_operators  # packages of AOTInductor call its operators  # noqa: F401
from .programs.autotuning import autotune
from .programs.recording import as_operator as _as_operator, einsum_as_operator as _einsum_as_operator, outside as _outside
from .sparsifiers.registration import _find_sparsifier, register_sparsifier
from .tensors.ledgers import ledger, strict
from .tensors.methods import METHODS as _METHODS
from .tensors.sparse_tensor import SparseTensor
from .tensors.suggestions import UNSUPPORTED_FUNCTIONS as _UNSUPPORTED, sentence as _sentence
from .tensors.validate import _rebuild_pattern

if _TYPE_CHECKING:
    from . import sharding, sparsify

add, sub, mul, div, matmul = map(operators.public, ("add", "sub", "mul", "div", "matmul"))
amax, amin, mean, sum, softmax = map(operators.public, ("amax", "amin", "mean", "sum", "softmax"))
eliminate_zeros, rearrange = map(operators.public, ("eliminate_zeros", "rearrange"))

_METHODS.update(
    as_operator=_as_operator,
    card=_card,
    coalesce=_ordered,
    converted=_converted,
    einsum_as_operator=_einsum_as_operator,
    outside=_outside,
    sort=sort,
    spy=_spy,
    to_dense=_dense_as_asked,
    to_dgl=_to_dgl,
    to_edge_index=_to_edge_index,
    to_format=_to_format,
    to_networkx=_to_networkx,
    to_pydata=_to_pydata,
    to_scipy=_to_scipy,
    to_torch=_to_torch,
    to_torch_sparse=_to_torch_sparse,
)
operators.register()
_compile_guards.resume()

__version__ = "0.2.0"
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
    "NMG",
    "BoundEinsum",
    "DenseFallbackWarning",
    "DivisionError",
    "ExpressionError",
    "Format",
    "FormatError",
    "MemoryLimitError",
    "NumscorchError",
    "OperandError",
    "OperandSpec",
    "PatternWarning",
    "RangeError",
    "RankError",
    "ScheduleError",
    "SizeError",
    "SparseTensor",
    "UnsupportedError",
    "add",
    "adj_t",
    "amax",
    "amin",
    "autotune",
    "best_format",
    "coalesce",
    "diag",
    "diags",
    "div",
    "einsum",
    "eliminate_zeros",
    "empty",
    "evaluate",
    "explain",
    "eye",
    "from_coo",
    "from_csr",
    "from_dgl",
    "from_networkx",
    "from_pydata",
    "from_scipy",
    "from_torch",
    "from_torch_sparse",
    "full",
    "fuse",
    "ledger",
    "load",
    "load_graph",
    "matmul",
    "mean",
    "mul",
    "nn",
    "ones",
    "operators",
    "plan",
    "rand",
    "randn",
    "rearrange",
    "register_level",
    "register_sparsifier",
    "save",
    "sharding",
    "softmax",
    "sort",
    "sparse_bsc_tensor",
    "sparse_bsr_tensor",
    "sparse_compressed_tensor",
    "sparse_coo_tensor",
    "sparse_csc_tensor",
    "sparse_csr_tensor",
    "sparsify",
    "stack",
    "strict",
    "sub",
    "sum",
    "tensor",
    "warm",
    "zeros",
]


_publish(globals())
_rebuild_pattern.__module__ = _find_sparsifier.__module__ = __name__  # pickles refer to these too
_find_in_torch = _fallback(globals(), _torch)[0]


def __getattr__(name: str) -> Any:
    if name in ("sharding", "sparsify"):  # loaded by the first use: sparsify takes a tenth of the time of the import, sharding seconds
        return _import_module(f".{name}", __name__)
    if name in _UNSUPPORTED:
        raise AttributeError(_sentence(f"module {__name__!r}", name, _UNSUPPORTED[name]))
    return operators.public(name) if name in operators.PUBLIC else _find_in_torch(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *dir(_torch)})
