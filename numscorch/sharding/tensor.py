"""ShardedSparseTensor: a matrix whose rows are distributed over the ranks of a process group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..convert.construct import from_coo
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR, Format
from ..tensors.ledgers import refusing
from ..tensors.methods import StoredValues
from ..tensors.sparse_tensor import SparseTensor
from .exchange import HaloExchange
from .layout import Layout, description_of, state_of, values_of_state
from .partition import ShardingReport
from .ranks import agree, collective, every

SHARDED_FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # implementations of torch's functions; filled by operators
TRANSPOSED_FUNCTIONS: dict[Any, Callable[..., Any]] = {}  # implementations for transposed matrices; filled by operators


def _operator(function: Any, functions: Mapping[Any, Callable[..., Any]] = SHARDED_FUNCTIONS, flipped: bool = False) -> Callable[..., Any]:
    """The method of a Python operator; it calls the implementation of torch's function. ``flipped`` swaps the operands."""
    return lambda *operands: functions[function](*(reversed(operands) if flipped else operands))


def _called(functions: Mapping[Any, Callable[..., Any]], function: Any, args: Any, kwargs: Any, refusal: str) -> Any:
    """Call the implementation of torch's function.

    Raises:
        UnsupportedError: there is no implementation.
    """
    if function not in functions:
        raise UnsupportedError(f"{getattr(function, '__name__', str(function))} of {refusal}")
    return functions[function](*args, **(kwargs or {}))


def _forwarded(path: str, doc: str) -> Any:
    """A property that is an attribute of an attribute."""
    return property(attrgetter(path), doc=doc)


class ShardedSparseTensor(StoredValues):
    """A sparse matrix of which each rank holds consecutive rows; created by :func:`shard` and :func:`from_local_rows`.

    Dense operands of products and results have the same partition: a ``DTensor`` with ``Shard(0)``, or each rank's rows as a plain
    tensor. Products, sums, norms, ``full_tensor``, ``gathered``, ``report`` and graph layers are collective: all ranks call them in the
    same order.

    Args:
        layout: the partitions, the local pattern and the exchange.
        values: the values of this rank's rows, in the order of ``local``.

    Attributes:
        local: this rank's entries as a SparseTensor. Columns: the owned columns, followed by the halo in ascending order;
            ``exchange.known`` has their numbers in the whole matrix. Rows: the owned rows; if the columns are distributed over a second
            dimension of the mesh, followed by rows of other ranks; ``row_exchange.known`` has their numbers.
        ndim: the number of dimensions, 2.
    """

    __slots__ = ("_derived", "_parts", "layout", "local")
    ndim = 2
    mesh: torch.distributed.device_mesh.DeviceMesh = _forwarded("layout.grid.mesh", "The device mesh.")
    exchange: HaloExchange = _forwarded("layout.exchange", "The exchange of the halo.")
    row_exchange: HaloExchange = _forwarded(
        "layout.row_exchange", "The exchange of rows among ranks that hold several columns of one block of rows."
    )
    shape: torch.Size = _forwarded("layout.shape", "The shape of the whole matrix.")
    nnz: int = _forwarded("layout.nnz", "The number of entries on all ranks.")
    format: Format = _forwarded("local.format", "The storage format of the local rows, CSR.")
    values: torch.Tensor = _forwarded(
        "local.values",
        "The values of this rank, in the order of ``local``: within a row, owned columns come first. ``to_local()`` has another order.",
    )

    def __init__(self, layout: Layout, values: torch.Tensor):
        self.layout, self.local = layout, layout.matrix.with_values(values)
        self._parts: tuple[tuple[int, int], SparseTensor, SparseTensor] | None = None
        self._derived: dict[Hashable, tuple[tuple[int, int], ShardedSparseTensor]] = {}

    @property
    def grad(self) -> ShardedSparseTensor | None:
        """The gradient of the values, with the same pattern. Values that are not a leaf need ``A.values.retain_grad()``."""
        return None if self.values.grad is None else self.with_values(self.values.grad)

    def detach(self) -> ShardedSparseTensor:
        """A matrix whose values do not require grad, and share the memory of these values."""
        return self.with_values(self.values.detach())

    def to(self, dtype: torch.dtype) -> ShardedSparseTensor:
        """A matrix with values of this data type."""
        return self.with_values(self.values.to(dtype))

    def with_values(self, values: torch.Tensor) -> ShardedSparseTensor:
        """A matrix of the same pattern with other values on this rank, shape (local.nnz,)."""
        return ShardedSparseTensor(self.layout, values)

    def with_local(self, local: SparseTensor) -> ShardedSparseTensor:
        """A matrix with other entries in the same local columns, such as added self loops, (rows, owned columns and halo).

        A collective operation. What the ranks compute for a pattern is cached with it.
        """
        layout, matrix = self.layout, local.to(CSR)
        known: Layout | None = matrix.pattern.derived.get(("layout", layout))
        if any(agree(layout.ranks, "looks up a pattern", known is None)) or known is None:
            known = Layout(layout.grid, layout.row_exchange, layout.exchange, matrix, layout.permutation)
            matrix.pattern.derived["layout", layout] = known
        return ShardedSparseTensor(known, matrix.values)

    @property
    def _state(self) -> tuple[int, int]:
        """The version and the address of the values. Caches detect changes by both; they miss writes through ``.data``."""
        return self.values._version, self.values.data_ptr()

    def remember(self, key: Hashable, make: Callable[[], ShardedSparseTensor]) -> ShardedSparseTensor:
        """``make()``, cached until the values of a rank change, unless they require grad. A collective operation."""
        is_cacheable = not (self.requires_grad or self.values.is_inference())
        state, derived = self._derived.get(key, (None, None))
        is_missing = not is_cacheable or derived is None or state != self._state
        if any(agree(self.layout.ranks, f"looks up {key}", is_missing)) or derived is None:  # the ranks call make() together
            with collective(self.layout.ranks, f"making {key}"):
                derived = make()
            if is_cacheable:
                self._derived[key] = self._state, derived
        return derived

    def with_halo(self, x: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], SparseTensor]:
        """The features of sources (owned nodes and halo) and of targets, and this rank's part of the graph, for a graph layer.

        Raises:
            SizeError: the features are not those of this rank's nodes, or rows and columns have different partitions.
        """
        with collective(self.layout.ranks, "an exchange of features"):
            self.check_square()
            if x.ndim != 2 or len(x) != self.exchange.owned or type(x) is not torch.Tensor:
                raise SizeError(
                    f"features of shape {tuple(x.shape)} ({type(x).__name__}) with a sharded graph: pass those of this rank's "
                    f"{self.exchange.owned} nodes, a plain tensor (nodes, channels), as A.rows_of(x) returns"
                )
            return (self.exchange.extended(x), x), self.local

    def check_square(self) -> None:
        """Check that nodes are the same as sources and as targets, and that this rank has all edges of its targets.

        Raises:
            SizeError: rows and columns have different partitions.
            UnsupportedError: the columns are distributed, too.
        """
        self.check_whole_rows("a graph layer")
        if self.layout.rows != self.layout.columns:
            raise SizeError(f"a graph layer needs the same partition of rows and columns, not {self.layout.rows} and {self.layout.columns}")

    def check_whole_rows(self, what: str) -> None:
        """Check that each rank has whole rows.

        Raises:
            UnsupportedError: the columns are distributed, too.
        """
        if self.layout.grid.column_dim is not None:
            raise UnsupportedError(
                f"{what} needs whole rows on each rank, but the columns are distributed, too: shard with Replicate() instead of Shard(1)"
            )

    def parts(self) -> tuple[SparseTensor, SparseTensor]:
        """The local entries in owned columns, and in halo columns (only the rows ``layout.halo.rows``). Cached for constant values."""
        values, layout = self.values, self.layout
        if values.requires_grad or values.is_inference():
            return tuple(part.matrix.with_values(values[part.positions]) for part in (layout.owned, layout.halo))  # type: ignore[return-value]
        if self._parts is None or self._parts[0] != self._state:
            owned, halo = (part.matrix.with_values(values[part.positions]) for part in (layout.owned, layout.halo))
            self._parts = self._state, owned, halo
        return self._parts[1:]

    def to_local(self) -> SparseTensor:
        """This rank's entries, (rows of its block, columns of the whole matrix). Differentiable."""
        rows, columns = self._indices()
        parts = self.layout.grid.row_parts
        start, stop = self.layout.rows.starts[parts.start], self.layout.rows.starts[parts.stop]
        return from_coo([rows - start, columns], self.values, (stop - start, self.shape[1]), format=CSR)

    def _indices(self) -> torch.Tensor:
        """The rows and columns of this rank's entries in the whole matrix, shape (2, local.nnz)."""
        rows, columns = self.local.indices()
        return torch.stack([self.row_exchange.known[rows], self.exchange.known[columns]])

    def full_tensor(self) -> SparseTensor:
        """The whole matrix on every rank, in its original order. Not differentiable."""
        with collective(self.layout.ranks, "full_tensor"):
            pieces = every(self.layout.ranks, f"entries of matrix {self.exchange.number}", (self._indices(), self.values.detach()))
            places = torch.cat([piece[0] for piece in pieces], 1)
            if (permutation := self.layout.permutation) is not None:
                places = permutation[places]
            return from_coo(places, torch.cat([piece[1] for piece in pieces]), self.shape, format=CSR)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """This rank's part of the matrix in CSR, for ``torch.distributed.checkpoint``: ``dcp.save({"A": A}, checkpoint_id=path)``.

        :func:`load` reads such a checkpoint under any number of ranks; so does ``dcp.load({"A": A}, ...)`` into a matrix of the same
        pattern.

        Raises:
            UnsupportedError: the columns are distributed, too.
        """
        self.check_whole_rows("a state")
        return {**state_of(self.layout, self.values), **description_of(self.layout)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Write the values of a state to the values of this matrix. A collective operation.

        Raises:
            OperandError: the state has another pattern.
            RankError: the state of another rank has another pattern.
        """
        with torch.no_grad():
            self.values.copy_(values_of_state(self.layout, state_dict))

    def rows_of(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """This rank's rows of a dense tensor whose rows are in the matrix's original order.

        Args:
            x: the tensor.
            dim: the dimension of the matrix to which the rows of ``x`` belong: 1 for ``A @ x``, 0 for ``A.t() @ x``.

        Raises:
            SizeError: the tensor has another number of rows.
        """
        exchange = self.exchange if dim else self.row_exchange
        if len(x) != exchange.partition.size:
            raise SizeError(f"x has {len(x)} rows, but dimension {dim} of the matrix has {exchange.partition.size}")
        start, stop = exchange.range
        return x[start:stop] if self.layout.permutation is None else x[self.layout.permutation[start:stop]]

    def gathered(self, rows: torch.Tensor) -> torch.Tensor:
        """All rows of a result, a plain tensor or a ``DTensor``, on every rank, in the original order. Not differentiable.

        Raises:
            SizeError: ``rows`` are neither this rank's rows nor a ``DTensor`` of all rows.
        """
        with collective(self.layout.ranks, "gathered"):
            owned = self.shape if isinstance(rows, DTensor) else (self.row_exchange.owned, self.exchange.owned)
            if not rows.ndim or len(rows) not in owned:
                raise SizeError(f"gathered takes this rank's {owned[0]} rows of a result, or a DTensor, not shape {tuple(rows.shape)}")
            agree(self.layout.ranks, f"gathers rows of shape {tuple(rows.shape[1:])} and {rows.dtype}")
            if isinstance(rows, DTensor):
                result: torch.Tensor = rows.full_tensor().detach()
            else:
                result = torch.cat(every(self.layout.ranks, "rows of all ranks", rows.detach().clone()))
        if self.layout.permutation is None:
            return result
        return torch.empty_like(result).index_copy_(0, self.layout.permutation, result)

    def apply(self, function: Callable[[SparseTensor], Any], what: str) -> ShardedSparseTensor:
        """The matrix with a function applied to the local rows; the function must keep the pattern.

        Raises:
            UnsupportedError: the result has another pattern, or is dense.
        """
        refusal = (
            f"{what} of a sharded matrix of shape {tuple(self.shape)} changes its pattern: A.with_values(function(A.values)) computes with "
            "the stored values only, and A.full_tensor() is the whole matrix on every rank"
        )
        with refusing(refusal):  # a dense result has no pattern
            result = function(self.local)
        if (values := self.values_of(result)) is None:
            raise UnsupportedError(refusal)
        return self.with_values(values)

    def values_of(self, result: Any) -> torch.Tensor | None:
        """The values of a local result with the pattern of ``local``; None for other results."""
        if not isinstance(result, SparseTensor) or result.shape != self.local.shape:
            return None
        result = result.to(self.local.format)
        arrays = zip(result.pattern.arrays, self.local.pattern.arrays, strict=True)
        is_same = result.pattern is self.local.pattern or all(
            torch.equal(one.long(), two.long()) for level, others in arrays for one, two in zip(level, others, strict=True)
        )
        return result.values if is_same else None

    def report(self) -> ShardingReport:
        """Report the numbers of entries and halo rows of each rank. A collective operation."""
        counts = self.local.nnz, len(self.exchange.halo), len(self.layout.halo.positions), len(self.row_exchange.halo)
        return ShardingReport(*zip(*every(self.layout.ranks, "a report", counts), strict=True))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _called(SHARDED_FUNCTIONS, function, args, kwargs, "a ShardedSparseTensor: use to_local(), or full_tensor()")

    def __getattr__(self, name: str) -> Any:
        """torch's methods, such as ``A.sum(1)`` and ``A.relu()``."""
        homes = () if name.startswith("_") else (torch.Tensor, torch)  # attributes such as __dict__ are not hashable
        for home in homes:
            if (function := SHARDED_FUNCTIONS.get(getattr(home, name, None))) is not None:
                return partial(function, self)
        raise AttributeError(f"ShardedSparseTensor has no {name}: use to_local(), or full_tensor()")

    __matmul__, __rmatmul__ = _operator(torch.matmul), _operator(torch.matmul, flipped=True)
    __mul__ = __rmul__ = _operator(torch.mul)
    __truediv__, __add__, __sub__, __pow__ = map(_operator, (torch.div, torch.add, torch.sub, torch.pow))
    __abs__, __neg__ = map(_operator, (torch.abs, torch.neg))

    def t(self) -> Transposed:
        """The transposed matrix, for products: ``A.t() @ y`` with this rank's rows of ``y``."""
        return Transposed(self)

    T = property(t)

    def __repr__(self) -> str:
        rank, ranks = self.layout.ranks.rank, self.layout.ranks.size
        start, stop = self.row_exchange.range
        return (
            f"ShardedSparseTensor(shape={tuple(self.shape)}, rank {rank} of {ranks}: rows {start} to {stop}, nnz={self.local.nnz}, "
            f"{len(self.exchange.halo)} halo rows, {str(self.dtype).removeprefix('torch.')})"
        )


@dataclass(frozen=True)
class Transposed:
    """The transposed sharded matrix, for products: ``A.t() @ y`` sends each rank's part of the result to the owners of its rows.

    Args:
        matrix: the matrix.

    Attributes:
        ndim: the number of dimensions, 2.
    """

    matrix: ShardedSparseTensor
    ndim = 2
    dtype = _forwarded("matrix.dtype", "The data type of the values.")

    @property
    def shape(self) -> torch.Size:
        """The shape of the whole transposed matrix."""
        return torch.Size(reversed(self.matrix.shape))

    def t(self) -> ShardedSparseTensor:
        """The matrix itself."""
        return self.matrix

    T = property(t)

    __matmul__ = _operator(torch.matmul, TRANSPOSED_FUNCTIONS)
    __rmatmul__ = _operator(torch.matmul, TRANSPOSED_FUNCTIONS, flipped=True)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        refusal = "a transposed ShardedSparseTensor: only products take it; use A, to_local(), or full_tensor()"
        return _called(TRANSPOSED_FUNCTIONS, function, args, kwargs, refusal)
