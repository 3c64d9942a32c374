"""Exchange of the rows of a dense operand that a rank needs and other ranks own, called the halo.

Source: Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural Network Training", SC 2020 (the 1D and 1.5D algorithms, with
only the rows that are needed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ..programs.operands import resolved
from .partition import Partition
from .ranks import Ranks, agree, reporting_lost_ranks


@dataclass(eq=False)
class Transfer:
    """A transfer of rows that may still be in progress.

    Args:
        exchange: the exchange that sends the rows.
        received: the buffer in which rows arrive.
        work: the handle of the pending operation; None if nothing is sent.
        buffer: the buffer with the sent rows, if later exchanges may reuse it.
        back: the transfer of the gradients of received rows, in the backward pass.
        token: connects the received rows with the sent ones in autograd's graph, until they are read.
    """

    exchange: HaloExchange
    received: torch.Tensor
    work: Any = None
    buffer: torch.Tensor | None = None
    back: Transfer | None = None
    token: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        """The received rows.

        Raises:
            RankError: another rank has ended, or did not take part within the timeout of the process group.
        """
        if self.work is not None:
            with reporting_lost_ranks(self.exchange.ranks, "receives rows"):
                self.work.wait()
        if self.buffer is not None:
            self.exchange.buffers.keep(self.buffer)
        return self.received

    def add_to(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy owned rows, and add the received rows, which other ranks sent back."""
        received = self.wait()
        total = rows.index_add(0, self.exchange.sent, received)
        self.exchange.buffers.keep(received)
        return total

    def halo(self) -> torch.Tensor:
        """Wait for the rows of the halo. Differentiable, if the transfer began with :meth:`HaloExchange.begin`."""
        received = self.wait()
        token, self.token = self.token, None  # its graph refers to this transfer: a cycle would keep the rows until garbage collection
        return received if token is None else linear_map(token, lambda _: received.view_as(received), self._start_back)

    def _start_back(self, gradient: torch.Tensor) -> torch.Tensor:
        """Start sending the gradient of the received rows back, and return the gradient of the token."""
        self.back = self.exchange.start_back(gradient)
        return gradient.new_empty(0)

    def release(self, result: torch.Tensor) -> None:
        """Keep the buffer of the halo for the next exchange, unless the gradient of ``result`` needs it."""
        if not result.requires_grad:
            self.exchange.buffers.keep(self.received)


class Buffers:
    """Buffers of earlier exchanges, reused by later exchanges: allocating a large buffer takes as long as sending it."""

    LIMIT = 8  # buffers of different shapes

    def __init__(self) -> None:
        self._spare: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def take(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """A buffer with this number of rows; shape and data type of a row are those of ``like``."""
        shape = torch.Size((rows, *like.shape[1:]))
        spare = self._spare.pop((shape, like.dtype), None)
        return like.new_empty(shape) if spare is None else spare

    def keep(self, buffer: torch.Tensor) -> None:
        """Keep a buffer that nothing reads any more, unless it is from ``torch.inference_mode()``: later calls could not write to it."""
        if not buffer.is_inference():
            self._spare[buffer.shape, buffer.dtype] = buffer
        if len(self._spare) > self.LIMIT:
            del self._spare[next(iter(self._spare))]


class HaloExchange:
    """The plan of an exchange: the rows that this rank sends to each rank and receives from each rank.

    A sharded matrix has an exchange for its columns, :attr:`ShardedSparseTensor.exchange`. It is planned once for each pattern. Planning
    and the methods that start an exchange are collective operations of the ranks of the group.

    Args:
        ranks: the ranks that hold the matrix.
        group: the process group of the ranks that exchange rows of operands; None if nothing is exchanged.
        partition: the partition of the matrix's columns (or rows); the rows of dense operands have the same partition.
        parts: the part of the partition that each rank of the group owns, in ascending order.
        needed: the columns that this rank needs, in any order; ranks of the group own all of them.

    Attributes:
        number: the number of the exchange, the same on all ranks; it reveals ranks that compute with different matrices.
        part: the part that this rank owns.
        range: the first column that this rank owns, and the first one after its columns.
        owned: the number of columns that this rank owns.
        halo: the columns that this rank needs and others own, in ascending order.
        extent: the number of owned columns and halo columns.
        sent: the rows that this rank sends, as positions among its own rows, in the order of their receivers.
        bytes_sent: number of bytes that this rank has sent to other ranks so far.

    Raises:
        RankError: another rank raised an error, takes another step, or has ended.

    Source: Tripathy, Yelick and Buluc, "Reducing Communication in Graph Neural Network Training", SC 2020, sections 4.1 and 4.2.

    >>> import torch, numscorch as ns, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    >>> exchange = ns.sharding.shard(ns.from_torch(torch.eye(3)), mesh).exchange
    >>> exchange.range, exchange.known, len(exchange.halo)
    ((0, 3), tensor([0, 1, 2]), 0)
    >>> exchange.extended(torch.ones(3, 1)).shape
    torch.Size([3, 1])
    >>> dist.destroy_process_group()
    """

    latest: ClassVar[int] = 0  # the largest number

    def __init__(self, ranks: Ranks, group: dist.ProcessGroup | None, partition: Partition, parts: Sequence[int], needed: torch.Tensor):
        self.ranks, self.group, self.partition = ranks, group, partition
        self.number, self.part = 0, parts[0 if group is None else group.rank()]
        self.range, self.owned = partition.range_of(self.part), partition.sizes[self.part]
        self.bytes_sent, self.buffers = 0, Buffers()
        self.halo = torch.unique(needed[~self.is_own(needed)])
        self.extent = self.owned + len(self.halo)
        received = torch.bincount(partition.owners(self.halo), minlength=partition.ranks)[list(parts)]
        counts, wanted = received.clone(), self.halo
        if group is not None:
            self.number = HaloExchange.latest = 1 + max(agree(ranks, "plans the exchange of a matrix", HaloExchange.latest))
            dist.all_to_all_single(counts, received, group=group)
            wanted = torch.empty(int(counts.sum()), dtype=torch.int64)
            dist.all_to_all_single(wanted, self.halo, counts.tolist(), received.tolist(), group=group)
        self.receive_counts, self.send_counts = received.tolist(), counts.tolist()
        self.sent = wanted - self.range[0]

    @property
    def known(self) -> torch.Tensor:
        """The owned columns, followed by the halo columns, shape (extent,)."""
        return torch.cat([torch.arange(*self.range), self.halo])

    def is_own(self, columns: torch.Tensor) -> torch.Tensor:
        """Return whether this rank owns each of some columns.

        Args:
            columns: numbers of columns in the whole matrix, an integer tensor of any shape.

        Returns:
            A bool tensor of the same shape.
        """
        start, stop = self.range
        return (columns >= start) & (columns < stop)

    def numbered(self, columns: torch.Tensor) -> torch.Tensor:
        """Return the positions of columns in :attr:`known`.

        Args:
            columns: numbers of owned columns or halo columns, an integer tensor of any shape.

        Returns:
            An integer tensor of the same shape.
        """
        return torch.where(self.is_own(columns), columns - self.range[0], self.owned + torch.searchsorted(self.halo, columns))

    def start(self, x: torch.Tensor, verb: str = "sends", purpose: str = "") -> Transfer:
        """Start to send owned rows.

        Args:
            x: the owned rows of a dense operand, (owned, \\*).
            verb: the verb of the step in error texts; the same on all ranks.
            purpose: the purpose of the step in error texts; the same on all ranks.

        Returns:
            The transfer; its ``wait()`` returns the rows of the halo, (halo columns, \\*).

        Raises:
            RankError: another rank raised an error, takes another step, or has ended.
        """
        rows = self.buffers.take(len(self.sent), x)
        torch.index_select(x, 0, self.sent, out=rows)
        return replace(self._transfer(verb, rows, self.send_counts, self.receive_counts, purpose), buffer=rows)

    def start_back(self, halo_rows: torch.Tensor) -> Transfer:
        """Start to send rows of the halo to their owners.

        Args:
            halo_rows: one row for each halo column, (halo columns, \\*). They must not change until the transfer ends.

        Returns:
            The transfer; its ``wait()`` returns the rows that belong to the positions :attr:`sent`.

        Raises:
            RankError: another rank raised an error, takes another step, or has ended.
        """
        return self._transfer("sends back", resolved(halo_rows).resolve_conj().contiguous(), self.receive_counts, self.send_counts)

    def _transfer(self, verb: str, rows: torch.Tensor, send_counts: list[int], receive_counts: list[int], purpose: str = "") -> Transfer:
        received = self.buffers.take(sum(receive_counts), rows)
        if self.group is None or self.group.size() == 1:
            return Transfer(self, received)
        step = f"{verb} rows of {prod(rows.shape[1:])} numbers of {rows.dtype} for matrix {self.number}{purpose}"
        agree(self.ranks, step)  # rows of different sizes would abort a process
        self.bytes_sent += rows.nbytes
        to, sent = _bytes(received), _bytes(rows)
        with reporting_lost_ranks(self.ranks, step):
            work = dist.all_to_all_single(to, sent, receive_counts, send_counts, group=self.group, async_op=True)
        return Transfer(self, received, work)

    def begin(self, x: torch.Tensor, purpose: str = "") -> tuple[torch.Tensor, Transfer]:
        """Start an exchange that autograd differentiates.

        In the backward pass, the gradient of the halo is sent while other gradients are computed. It is then added to the gradient of
        ``x``.

        Args:
            x: the owned rows of a dense operand, (owned, \\*).
            purpose: the purpose of the step in error texts; the same on all ranks.

        Returns:
            ``x`` for the products that need no halo, and the transfer, whose ``halo()`` returns the rows of the halo.

        Raises:
            RankError: another rank raised an error, takes another step, or has ended.
        """
        is_differentiated = torch.is_grad_enabled() and x.requires_grad  # on all ranks, or on none: the backward pass sends back
        transfer = self.start(x.detach(), "sends, and differentiates," if is_differentiated else "sends", purpose)
        if is_differentiated:
            x, transfer.token = _Begin.apply(x, transfer)  # type: ignore[no-untyped-call]
        return x, transfer

    def extended(self, x: torch.Tensor) -> torch.Tensor:
        """Return the owned rows, followed by the rows of the halo. Differentiable.

        Args:
            x: the owned rows of a dense operand, (owned, \\*).

        Returns:
            A tensor (extent, \\*).

        Raises:
            RankError: another rank raised an error, takes another step, or has ended.
        """
        if self.group is None:
            return x
        same, transfer = self.begin(x)
        return torch.cat([same, transfer.halo()])

    def returned(self, rows: torch.Tensor) -> torch.Tensor:
        """Send the rows of the halo back, and add them to the owned rows: the transpose of :meth:`extended`. Differentiable.

        Args:
            rows: one row for each owned and each halo column, (extent, \\*).

        Returns:
            The sums of the owned rows, (owned, \\*).

        Raises:
            RankError: another rank raised an error, takes another step, or has ended.
        """
        if self.group is None:
            return rows
        return linear_map(
            rows,
            lambda rows: self.start_back(rows[self.owned :]).add_to(rows[: self.owned]),
            lambda gradient: torch.cat([gradient, self.start(gradient.contiguous()).wait()]),
        )


def _bytes(rows: torch.Tensor) -> torch.Tensor:
    """Contiguous rows as bytes, shape (rows, bytes per row): process groups do not send all data types."""
    length = prod(rows.shape[1:])
    return rows.as_strided((len(rows), length), (length, 1)).view(torch.uint8)  # the stride of a dimension of size 1 is arbitrary


class _Begin(torch.autograd.Function):
    """The identity; its backward pass adds the gradients that other ranks send back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, transfer: Transfer) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.transfer = transfer
        return x.view_as(x), x.new_empty(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, None]:
        back, ctx.transfer.back = ctx.transfer.back, None
        return gradient if back is None else back.add_to(gradient), None  # back is None if the halo was not used


class _LinearMap(torch.autograd.Function):
    """A linear function of a tensor; its transpose computes the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Any, transpose: Any) -> Any:
        ctx.transpose = transpose
        return function(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.transpose(gradient), None, None


linear_map: Callable[..., torch.Tensor] = _LinearMap.apply
