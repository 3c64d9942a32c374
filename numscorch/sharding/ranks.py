"""Ranks of a mesh, and their agreement: a collective operation raises on all ranks, or on none.

Before each exchange, and at the end of each operation, the ranks gather the step that each one takes. A rank that has raised takes
part with its error instead, so no rank waits for it. All agreements within an operation have the same ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..errors import OperandError, RankError, UnsupportedError
from ..tensors.modes import in_transform

_active: ContextVar[frozenset[tuple[str, ...]]] = ContextVar("active", default=frozenset())  # ranks with an operation in progress


class Ranks:
    """The ranks of some dimensions of a mesh, in row-major order.

    Args:
        groups: the process groups of the dimensions, each with ranks that differ in this dimension only.

    Attributes:
        names: the names of the groups.
        size: the number of ranks.
        rank: the number of this rank.
    """

    def __init__(self, groups: tuple[dist.ProcessGroup, ...]):
        self.groups, self.names = groups, tuple(group.group_name for group in groups)
        sizes = [group.size() for group in groups]
        self.size, self.rank = prod(sizes), int(np.ravel_multi_index([group.rank() for group in groups], sizes))

    @classmethod
    def of(cls, mesh: DeviceMesh, dims: Sequence[int] | None = None) -> Ranks:
        """The ranks of these dimensions of a mesh, of all by default.

        Raises:
            OperandError: it is not a mesh.
            RankError: this rank is not part of it.
        """
        if not isinstance(mesh, DeviceMesh):
            raise OperandError(
                f"the mesh is of type {type(mesh).__name__}: pass torch.distributed.init_device_mesh('cpu', (ranks,)), or "
                "DeviceMesh.from_group(group, 'cpu') for the ranks of a process group"
            )
        if mesh.get_coordinate() is None:
            raise RankError(
                f"rank {dist.get_rank()} is not part of the mesh, which has ranks {mesh.mesh.tolist()}: call it on these ranks only, or "
                "pass a mesh of all ranks"
            )
        return cls(tuple(mesh.get_group(dim) for dim in (range(mesh.ndim) if dims is None else dims)))

    def gathered(self, mine: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks, all of one shape, stacked to (size, \\*).

        The ranks send their tensors directly to each other; the all_gather of gloo passes them along a ring, which takes longer.
        """
        rows = mine[None]
        for group in reversed(self.groups):
            parts = rows.new_empty(group.size(), *rows.shape)
            dist.all_to_all_single(parts, rows.expand_as(parts).contiguous(), group=group)
            rows = parts.flatten(0, 1)
        return rows

    def gathered_objects(self, mine: Any) -> list[Any]:
        values = [mine]
        for group in reversed(self.groups):
            parts: list[Any] = [None] * group.size()
            dist.all_gather_object(parts, values, group)
            values = [value for part in parts for value in part]
        return values

    def broadcast_object(self, mine: Any, source: int) -> Any:
        box = [mine]
        for group in reversed(self.groups):  # ranks that do not have it yet broadcast theirs to each other
            source, at = divmod(source, group.size())
            dist.broadcast_object_list(box, group=group, group_src=at)
        return box[0]


@contextmanager
def collective(ranks: Ranks, operation: str) -> Iterator[None]:
    """A block that all ranks leave without an error, or in which all raise. A nested block is part of the outer block.

    Raises:
        RankError: another rank has raised, has ended, or is in another operation. A rank that has raised raises its own error.
        UnsupportedError: a transform of torch.func is active.
    """
    if in_transform():
        raise UnsupportedError(
            f"{operation} of a sharded matrix within vmap, or another transform of torch.func: use torch.autograd.grad for gradients, and "
            "a dimension of the dense operand in place of vmap, as einsum('ij,bjk->bik', A, x)"
        )
    if ranks.names in _active.get():
        yield
        return
    token = _active.set(_active.get() | {ranks.names})
    try:
        yield
        agree(ranks, f"ends {operation}")
    except RankError:  # on all ranks
        raise
    except Exception as error:
        with suppress(RankError):
            agree(ranks, f"raised in {operation}", error=error)
        raise
    finally:
        _active.reset(token)


def agree(ranks: Ranks, step: str, number: int = 0, error: Exception | None = None) -> list[int]:
    """Check that all ranks take the same step, and gather one number from each rank.

    Args:
        ranks: the ranks.
        step: the text of the step, a verb and its objects.
        number: this rank's number.
        error: the error that this rank has raised.

    Raises:
        RankError: another rank has raised, takes another step, or does not answer.
    """
    if ranks.size == 1:
        return [number]
    mine = torch.tensor([number, crc32(step.encode()), error is not None])
    with reporting_lost_ranks(ranks, step):
        answers = ranks.gathered(mine).tolist()
        if all(answer[1:] == [answers[0][1], 0] for answer in answers):
            return [answer[0] for answer in answers]
        descriptions = ranks.gathered_objects((step, None if error is None else f"{type(error).__name__}: {error}"))
    for rank, (_, message) in enumerate(descriptions):
        if message is not None:
            raise RankError(f"rank {rank} raised {message}")
    steps = [text for text, _ in descriptions]
    other = next(rank for rank, text in enumerate(steps) if text != steps[0])
    raise RankError(
        f"rank 0 {steps[0]}, but rank {other} {steps[other]}: call the same operations in the same order on all ranks, with operands of "
        "the same data type and number of columns"
    )


@contextmanager
def reporting_lost_ranks(ranks: Ranks, step: str) -> Iterator[None]:
    """Turn errors of torch's process groups into an error that says what happened.

    Raises:
        RankError: another rank has ended, or did not take part within the timeout of the process group.
    """
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {ranks.rank} {step}, but another rank has ended, or did not call the operation within the timeout of the process group"
            f" ({error})"
        ) from error


def every(ranks: Ranks, what: str, value: Any) -> list[Any]:
    """The values of all ranks.

    Raises:
        RankError: another rank has raised, takes another step, or does not answer.
    """
    agree(ranks, f"gathers {what}")
    with reporting_lost_ranks(ranks, f"gathers {what}"):
        return ranks.gathered_objects(value)


def reduce(ranks: Ranks, total: torch.Tensor, step: str, op: Any = dist.ReduceOp.SUM, agreeing: Ranks | None = None) -> torch.Tensor:
    """Replace a tensor by its sum over some ranks, or by another reduction, and return it; the ranks ``agreeing`` take the step."""
    together = agreeing or ranks
    agree(together, step)
    with reporting_lost_ranks(together, step):
        for group in ranks.groups:
            dist.all_reduce(total, op, group)
    return total


def check_equal(ranks: Ranks, what: str, value: Any) -> None:
    """Check that all ranks have the same value.

    Raises:
        RankError: the values differ, or another rank has raised, takes another step, or does not answer.
    """
    values = every(ranks, what, value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise RankError(f"{what} differs between ranks 0 and {rank}: {values[0]} and {other}; use the same on every rank")
