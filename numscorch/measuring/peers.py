"""Other libraries that compute the same request, or the reasons why they can't.

Each peer gets its operands in its preferred format (CSR for matrices) before anything is timed; transposes are views. A peer is missing
if its library isn't installed, if it doesn't support the expression or the data type, or if a dense tensor would be too large.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from importlib import import_module
from itertools import chain
from math import prod
from typing import Any

import torch

from ..frontend.parser import parse_einsum
from ..frontend.statements import parse_program
from ..ir.format import COO, CSR
from ..machine.memory import available
from ..tensors.sparse_tensor import SparseTensor
from .shapes import Elementwise, MatMul, SampledMatMul, Shape, Sum, shape_of
from .specifications import BoundRequest
from .turns import Function

TORCH, TORCH_64, SCIPY, PYDATA, GRAPHBLAS, DENSE = (
    "torch CSR int32",
    "torch CSR int64",
    "SciPy CSR",
    "pydata/sparse",
    "python-graphblas",
    "torch, dense",
)
MODULES = {SCIPY: "scipy.sparse", PYDATA: "sparse", GRAPHBLAS: "graphblas"}
MOST_DENSE = 1e11  # upper bound of the multiplications of a dense product (some seconds)
SHARE = 4  # dense tensors may take 1 / SHARE of the free memory
REST = 0.01  # seconds after which the idle threads of GraphBLAS's OpenMP pool stop spinning
REFUSALS = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""The exceptions that libraries raise for unsupported requests."""


class CannotError(Exception):
    """The library can't compute the request."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The peers' functions and first results, by name, and the reasons why other peers are missing."""

    functions: dict[str, Function] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def rest(self) -> float:
        """The pause before each turn, in seconds: the threads of GraphBLAS's own OpenMP pool spin for a while."""
        return REST if GRAPHBLAS in self.functions and torch.get_num_threads() > 1 else 0.0


def peers_of(request: BoundRequest) -> Peers:
    """The peers that compute a request. Each is called once, to find out whether it supports the request.

    >>> from .specifications import read_request
    >>> peers = peers_of(read_request("ijk->i", {"A": "uniform:4x3x2:0.5"}))
    >>> list(peers.functions)[-1], peers.missing["torch CSR int32"]
    ('torch, dense', 'supports matrices only, but A has 3 dimensions')
    """
    peers, shape = Peers(), shape_of(request)
    for name, make in MAKERS.items():
        try:
            if (module := MODULES.get(name)) is not None and not is_installed(module):
                raise CannotError("not installed")
            function = make(request, shape)
            peers.results[name] = function()
            peers.functions[name] = function
        except CannotError as why:
            peers.missing[name] = str(why)
        except REFUSALS as error:
            peers.missing[name] = f"failed: {type(error).__name__}: {error}".splitlines()[0][:108]
    return peers


@cache
def is_installed(module: str) -> bool:
    """Whether a library can be imported; its warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_module(module)
        except ImportError:
            return False
    return True


# -- each library's operands --------------------------------------------------------------------------


def _rows(name: str, operand: Any) -> SparseTensor:
    if operand.ndim != 2:
        raise CannotError(f"supports matrices only, but {name} has {operand.ndim} dimensions")
    return operand.to(CSR)


def _by(convert: Callable[[SparseTensor], Any], request: BoundRequest, dense: Callable[[torch.Tensor], Any]) -> list[Any]:
    """The operands: sparse ones converted by ``convert`` (from CSR), dense ones by ``dense``."""
    operands = request.operands.items()
    return [convert(_rows(name, operand)) if isinstance(operand, SparseTensor) else dense(operand) for name, operand in operands]


def in_torch(rows: SparseTensor, index_dtype: torch.dtype) -> torch.Tensor:
    """A CSR matrix as torch's CSR, with indices of this data type. MKL takes int32; torch's default is int64."""
    converted = rows.to_torch(copy=False)
    pos, crd = (array.to(index_dtype) for array in (converted.crow_indices(), converted.col_indices()))
    return torch.sparse_csr_tensor(pos, crd, converted.values(), converted.shape, check_invariants=False)


def in_graphblas(library: Any, rows: SparseTensor) -> Any:
    """A CSR matrix as a GraphBLAS matrix; the arrays are copied."""
    pos, crd = (array.numpy() for array in rows.pattern.arrays[1])
    return library.Matrix.from_csr(pos, crd, rows.values.numpy(), nrows=rows.shape[0], ncols=rows.shape[1])


def in_pydata(operand: SparseTensor) -> Any:
    """A tensor as an array of the package sparse: GCXS (its CSR) for matrices, else COO."""
    return operand.to(CSR if operand.ndim == 2 else COO(operand.ndim)).to_pydata(copy=False)


# -- the peers ----------------------------------------------------------------------------------------


def _of_torch(index_dtype: torch.dtype, request: BoundRequest, shape: Shape | None) -> Function:
    operands = _by(partial(in_torch, index_dtype=index_dtype), request, lambda tensor: tensor)
    match shape:
        case SampledMatMul(mask, product):
            return _sampled_addmm(operands[mask], *_sides(operands, product))
        case MatMul() if operands[shape.left].layout is torch.strided and operands[shape.left].ndim == 2:
            left, right = _sides(operands, MatMul(shape.right, shape.left, not shape.right_transposed, not shape.left_transposed))
            return lambda: (left @ right).t()  # torch supports sparse @ dense only
        case Sum(over=over):
            return _summed(operands[0], over)
        case _:
            return _by_operators(operands, shape)


def _summed(matrix: torch.Tensor, over: tuple[int, ...]) -> Function:
    """The sum as a product with ones: torch.sparse.sum doesn't support CSR."""
    if len(over) == 2:
        return lambda: matrix.values().sum(dtype=matrix.dtype)
    ones = torch.ones(matrix.shape[over[0]], dtype=matrix.dtype)
    return (lambda: matrix @ ones) if over == (1,) else (lambda: matrix.t() @ ones)


def _sampled_addmm(mask: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> Function:
    """torch.sparse.sampled_addmm, times the mask's values (which torch ignores) unless all are 1."""
    values = mask.values()
    if bool((values == 1).all()):
        return lambda: torch.sparse.sampled_addmm(mask, left, right, beta=0)
    arrays = mask.crow_indices(), mask.col_indices()

    def call() -> torch.Tensor:
        entries = torch.sparse.sampled_addmm(mask, left, right, beta=0).values()
        return torch.sparse_csr_tensor(*arrays, entries * values, mask.shape, check_invariants=False)

    return call


def _of_scipy(request: BoundRequest, shape: Shape | None) -> Function:
    operands = _by(lambda rows: rows.to_scipy(copy=False), request, lambda tensor: tensor.numpy())
    match shape:
        case SampledMatMul():
            raise CannotError("no sampled product")
        case Elementwise("*"):
            return lambda: reduce(lambda left, right: left.multiply(right) if hasattr(left, "multiply") else right.multiply(left), operands)
        case Sum(over=over):
            return lambda: operands[0].sum(axis=over[0] if len(over) == 1 else None, dtype=operands[0].dtype)
        case _:
            return _by_operators(operands, shape)


def _of_pydata(request: BoundRequest, shape: Shape | None) -> Function:
    operands = [in_pydata(operand) if isinstance(operand, SparseTensor) else operand.numpy() for operand in request.operands.values()]
    match shape:
        case Sum(over=over):
            return lambda: operands[0].sum(axis=over if len(over) < operands[0].ndim else None, dtype=operands[0].dtype)
        case None | SampledMatMul() if request.is_einsum:
            arrays = [operand.tocoo() if hasattr(operand, "tocoo") else operand for operand in operands]
            library = import_module(MODULES[PYDATA])
            return lambda: library.einsum(request.expr, *arrays)
        case _:
            return _by_operators(operands, shape)


def _of_graphblas(request: BoundRequest, shape: Shape | None) -> Function:
    library = import_module("graphblas")
    library.ss.config["nthreads"] = torch.get_num_threads()
    operands = _by(
        partial(in_graphblas, library),
        request,
        lambda tensor: (library.Vector if tensor.ndim == 1 else library.Matrix).from_dense(tensor.numpy()),
    )
    times = library.semiring.plus_times
    match shape:
        case MatMul():
            left, right = _sides(operands, shape)
            return lambda: times(left @ right).new()
        case SampledMatMul(mask, product):
            left, right = _sides(operands, product)
            sampled, multiply = operands[mask], library.binary.times
            return lambda: multiply(times(left @ right).new(mask=sampled.S) & sampled).new()
        case Elementwise("*"):
            return lambda: reduce(lambda left, right: library.binary.times(left & right).new(), operands)
        case Elementwise("+"):
            return lambda: reduce(lambda left, right: library.binary.plus(left | right).new(), operands)
        case Sum(over=(1,)) if operands[0].ndim == 2:
            return lambda: operands[0].reduce_rowwise("plus").new()
        case Sum(over=(0,)) if operands[0].ndim == 2:
            return lambda: operands[0].reduce_columnwise("plus").new()
        case _:
            raise CannotError("no operator for this expression")


def _of_dense(request: BoundRequest, shape: Shape | None) -> Function:
    """The computation on dense tensors: by torch.einsum, or for statements by ``evaluate``, which calls torch's operators."""
    nbytes = sum(prod(operand.shape) * operand.dtype.itemsize for operand in request.operands.values())
    if nbytes * SHARE > available():
        raise CannotError(f"too large: its operands take {nbytes / 2**30:.3g} GiB")
    if (count := multiplications(request)) > MOST_DENSE:
        raise CannotError(f"too large: {count:.2g} multiplications")
    full = {name: operand.to_dense() if isinstance(operand, SparseTensor) else operand for name, operand in request.operands.items()}
    if request.is_einsum:
        return lambda: torch.einsum(request.expr, *full.values())
    return BoundRequest(request.expr, full)


def multiplications(request: BoundRequest) -> float:
    """The number of points in the iteration space; for several statements, in the largest iteration space."""
    if request.is_einsum:
        subscripts = parse_einsum(request.expr, tuple(operand.ndim for operand in request.operands.values()))
        return float(prod(subscripts.sizes([operand.shape for operand in request.operands.values()]).values()))
    spaces, sizes = [], dict[str, int]()
    for part in parse_program(request.expr):
        terms = dict(zip(part.operands, part.request.subscripts.operands, strict=True))
        spaces.append(set(chain.from_iterable(terms.values())))
        for name in terms.keys() & request.operands.keys():
            sizes |= dict(zip(terms[name], request.operands[name].shape, strict=True))
    return max(float(prod(sizes.get(name, 1) for name in space)) for space in spaces)


def _by_operators(operands: list[Any], shape: Shape | None) -> Function:
    match shape:
        case MatMul():
            left, right = _sides(operands, shape)
            return lambda: left @ right
        case Elementwise(op):
            join = operator.add if op == "+" else operator.mul
            return lambda: reduce(join, operands)
        case _:
            raise CannotError("no operator for this expression")


def _sides(operands: list[Any], shape: MatMul) -> tuple[Any, Any]:
    """The factors of a matrix product; transposes are views."""
    left, right = operands[shape.left], operands[shape.right]
    return (_transposed(left) if shape.left_transposed else left), (_transposed(right) if shape.right_transposed else right)


def _transposed(matrix: Any) -> Any:
    return matrix.t() if isinstance(matrix, torch.Tensor) else matrix.T  # torch's .T doesn't support sparse tensors


MAKERS: Mapping[str, Callable[[BoundRequest, Shape | None], Function]] = {
    TORCH: partial(_of_torch, torch.int32),
    TORCH_64: partial(_of_torch, torch.int64),
    SCIPY: _of_scipy,
    PYDATA: _of_pydata,
    GRAPHBLAS: _of_graphblas,
    DENSE: _of_dense,
}
