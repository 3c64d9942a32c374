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
    """A sparse matrix that is distributed over ranks: each rank holds consecutive rows.

    :func:`shard`, :func:`from_local_rows` and :func:`load` make it. Dense operands and results of products have the same partition. They
    are ``DTensor`` with ``Shard(0)``, or plain tensors with the rows of the rank.

    Products, sums, norms, :meth:`full_tensor`, :meth:`gathered`, :meth:`report` and graph layers are collective operations: all ranks call
    them in the same order. They raise ``RankError`` if another rank raised an error, takes another step, or has ended.

    Args:
        layout: the partitions, the local pattern and the exchanges.
        values: the values of this rank's entries in the order of ``local``, shape (local.nnz,).

    Attributes:
        layout: the partitions, the local pattern and the exchanges.
        local: the entries of this rank, a SparseTensor in CSR. Its columns are the owned columns, followed by the halo columns in
            ascending order; ``exchange.known`` has their numbers in the whole matrix. Its rows are the owned rows. If the columns are
            distributed, too, rows of other ranks follow; ``row_exchange.known`` has their numbers.
        ndim: the number of dimensions, 2.

    Raises:
        SizeError: the number of values does not match the local pattern.

    >>> import torch, numscorch as ns, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    >>> A = ns.sharding.shard(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]])), mesh)
    >>> A @ torch.ones(2), A.sum(1), A.local.values
    (tensor([2., 3.]), tensor([2., 3.]), tensor([2., 3.]))
    >>> torch.softmax(A, 1).full_tensor().values
    tensor([1., 1.])
    >>> dist.destroy_process_group()
    """

    __slots__ = ("_derived", "_parts", "layout", "local")
    ndim = 2
    mesh: torch.distributed.device_mesh.DeviceMesh = _forwarded("layout.grid.mesh", "The device mesh.")
    exchange: HaloExchange = _forwarded("layout.exchange", "The exchange of rows of dense operands for the halo columns.")
    row_exchange: HaloExchange = _forwarded(
        "layout.row_exchange", "The exchange of rows of results among ranks that hold different columns of the same rows."
    )
    shape: torch.Size = _forwarded("layout.shape", "The shape of the whole matrix.")
    nnz: int = _forwarded("layout.nnz", "The number of entries on all ranks.")
    format: Format = _forwarded("local.format", "The storage format of the local rows, CSR.")
    values: torch.Tensor = _forwarded(
        "local.values",
        "The values of this rank in the order of ``local``: by rows; within a row, owned columns first. ``to_local()`` has another order.",
    )

    def __init__(self, layout: Layout, values: torch.Tensor):
        self.layout, self.local = layout, layout.matrix.with_values(values)
        self._parts: tuple[tuple[int, int], SparseTensor, SparseTensor] | None = None
        self._derived: dict[Hashable, tuple[tuple[int, int], ShardedSparseTensor]] = {}

    @property
    def grad(self) -> ShardedSparseTensor | None:
        """The gradient of the values, with the same pattern; None before the backward pass. Non-leaf values need ``retain_grad()``."""
        return None if self.values.grad is None else self.with_values(self.values.grad)

    def detach(self) -> ShardedSparseTensor:
        """Return a matrix whose values share the memory of these values and do not require grad."""
        return self.with_values(self.values.detach())

    def to(self, dtype: torch.dtype) -> ShardedSparseTensor:
        """Return the matrix with values of another data type.

        Args:
            dtype: the data type.
        """
        return self.with_values(self.values.to(dtype))

    def with_values(self, values: torch.Tensor) -> ShardedSparseTensor:
        """Return a matrix with the same pattern and other values.

        Args:
            values: the values of this rank in the order of ``local``, shape (local.nnz,).

        Raises:
            SizeError: the number of values does not match.
        """
        return ShardedSparseTensor(self.layout, values)

    def with_local(self, local: SparseTensor) -> ShardedSparseTensor:
        """Return a matrix with other entries in the same local rows and columns, such as added self loops.

        A collective operation. The layout is cached with the new pattern.

        Args:
            local: the entries of this rank, a SparseTensor with the shape of ``self.local``.

        Raises:
            SizeError: ``local`` has another shape.
            RankError: another rank has raised.
        """
        with collective(self.layout.ranks, "with_local"):
            if local.shape != self.local.shape:
                raise SizeError(f"with_local of shape {tuple(local.shape)}: the entries of this rank have shape {tuple(self.local.shape)}")
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
        """Return a matrix derived from this one, cached until the values of a rank change. A collective operation.

        Nothing is cached if the values require grad.

        Args:
            key: the key of the cache; the same on all ranks.
            make: a function that makes the derived matrix. All ranks call it together.
        """
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
        """Exchange node features for a graph layer. A collective operation.

        Args:
            x: the features of this rank's nodes, a plain tensor (nodes of this rank, channels).

        Returns:
            The features of sources (owned nodes, followed by the halo) and of targets, and this rank's part of the graph.

        Raises:
            SizeError: the features do not have a row for each node of this rank, or rows and columns have different partitions.
            UnsupportedError: the columns are distributed, too.
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
        """Check that a graph layer can use the matrix: each rank has whole rows, and rows and columns have the same partition.

        Raises:
            SizeError: rows and columns have different partitions.
            UnsupportedError: the columns are distributed, too.
        """
        self.check_whole_rows("a graph layer")
        if self.layout.rows != self.layout.columns:
            raise SizeError(f"a graph layer needs the same partition of rows and columns, not {self.layout.rows} and {self.layout.columns}")

    def check_whole_rows(self, what: str) -> None:
        """Check that each rank has whole rows.

        Args:
            what: the operation that needs whole rows, for the error text.

        Raises:
            UnsupportedError: the columns are distributed, too.
        """
        if self.layout.grid.column_dim is not None:
            raise UnsupportedError(
                f"{what} needs whole rows on each rank, but the columns are distributed, too: shard with Replicate() instead of Shard(1)"
            )

    def parts(self) -> tuple[SparseTensor, SparseTensor]:
        """Return the local entries in owned columns, and the local entries in halo columns.

        The second matrix has only the rows ``layout.halo.rows``. Both are cached if the values do not require grad.
        """
        values, layout = self.values, self.layout
        if values.requires_grad or values.is_inference():
            return tuple(part.matrix.with_values(values[part.positions]) for part in (layout.owned, layout.halo))  # type: ignore[return-value]
        if self._parts is None or self._parts[0] != self._state:
            owned, halo = (part.matrix.with_values(values[part.positions]) for part in (layout.owned, layout.halo))
            self._parts = self._state, owned, halo
        return self._parts[1:]

    def to_local(self) -> SparseTensor:
        """Return the entries of this rank in CSR, (rows of its block, columns of the whole matrix). Differentiable."""
        rows, columns = self._indices()
        parts = self.layout.grid.row_parts
        start, stop = self.layout.rows.starts[parts.start], self.layout.rows.starts[parts.stop]
        return from_coo([rows - start, columns], self.values, (stop - start, self.shape[1]), format=CSR)

    def _indices(self) -> torch.Tensor:
        """The rows and columns of this rank's entries in the whole matrix, shape (2, local.nnz)."""
        rows, columns = self.local.indices()
        return torch.stack([self.row_exchange.known[rows], self.exchange.known[columns]])

    def full_tensor(self) -> SparseTensor:
        """Return the whole matrix in CSR on every rank, with rows in their original order. A collective operation. Not differentiable."""
        with collective(self.layout.ranks, "full_tensor"):
            pieces = every(self.layout.ranks, f"entries of matrix {self.exchange.number}", (self._indices(), self.values.detach()))
            places = torch.cat([piece[0] for piece in pieces], 1)
            if (permutation := self.layout.permutation) is not None:
                places = permutation[places]
            return from_coo(places, torch.cat([piece[1] for piece in pieces]), self.shape, format=CSR)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return this rank's part of the CSR arrays of the matrix, for ``torch.distributed.checkpoint``.

        ``torch.distributed.checkpoint.save({"A": A}, checkpoint_id=path)`` calls this method. :func:`load` reads such a checkpoint under
        any number of ranks. ``torch.distributed.checkpoint.load({"A": A}, ...)`` reads it into a matrix of the same pattern.

        Raises:
            UnsupportedError: the columns are distributed, too.
        """
        self.check_whole_rows("a state")
        return {**state_of(self.layout, self.values), **description_of(self.layout)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Write the values of a state to the values of this matrix. A collective operation.

        Args:
            state_dict: the result of :meth:`state_dict` for the same partition, or the state of an unsharded weight.

        Raises:
            OperandError: the state has no values, or another pattern.
            RankError: another rank raised an error.
        """
        with torch.no_grad():
            self.values.copy_(values_of_state(self.layout, state_dict))

    def rows_of(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """Return the rows of a dense tensor that this rank owns.

        Args:
            x: all rows, in the original order of the matrix, (rows, \\*).
            dim: the dimension of the matrix to which the rows of ``x`` belong: 1 for ``A @ x``, 0 for ``A.t() @ x``.

        Returns:
            The rows of this rank, in the order of the matrix.

        Raises:
            SizeError: the tensor has another number of rows.
        """
        exchange = self.exchange if dim else self.row_exchange
        if len(x) != exchange.partition.size:
            raise SizeError(f"x has {len(x)} rows, but dimension {dim} of the matrix has {exchange.partition.size}")
        start, stop = exchange.range
        return x[start:stop] if self.layout.permutation is None else x[self.layout.permutation[start:stop]]

    def gathered(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather all rows of a result on every rank. A collective operation. Not differentiable.

        Args:
            rows: the rows of this rank, a plain tensor (rows of this rank, \\*); or a ``DTensor`` of all rows.

        Returns:
            All rows in the original order, a plain tensor.

        Raises:
            SizeError: ``rows`` is neither the rows of this rank nor a ``DTensor`` of all rows.
            RankError: another rank raised an error, or passes rows of another shape or data type.
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
        """Apply a function to the local rows; the function must keep the pattern.

        Args:
            function: a function from a SparseTensor to a SparseTensor with the same pattern.
            what: the name of the function, for the error text.

        Returns:
            The matrix with the new values.

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
        """Return the values of a local result with the pattern of ``local``; None for other results.

        Args:
            result: a SparseTensor, or another result.
        """
        if not isinstance(result, SparseTensor) or result.shape != self.local.shape:
            return None
        result = result.to(self.local.format)
        arrays = zip(result.pattern.arrays, self.local.pattern.arrays, strict=True)
        is_same = result.pattern is self.local.pattern or all(
            torch.equal(one.long(), two.long()) for level, others in arrays for one, two in zip(level, others, strict=True)
        )
        return result.values if is_same else None

    def report(self) -> ShardingReport:
        """Return the numbers of entries, halo rows, cut entries and partial rows of each rank. A collective operation."""
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
        """Return the transposed matrix. Only products accept it, such as ``A.t() @ y`` with this rank's rows of ``y``."""
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
