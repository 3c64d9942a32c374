"""Agreement of ranks: a collective operation raises on all ranks, or on none.

Before each exchange, and at the end of each operation, the ranks gather the step that each one takes. A rank that has raised takes
part with its error instead, so no rank waits for it. All agreements within an operation use the same process group.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist

from ..compute.operands import in_transform
from ..errors import RankError, UnsupportedError

_groups: ContextVar[frozenset[str]] = ContextVar("groups", default=frozenset())  # with an operation in progress


@contextmanager
def collective(group: dist.ProcessGroup, operation: str) -> Iterator[None]:
    """A block that all ranks leave without an error, or in which all raise. A block within another one is part of it.

    Raises:
        RankError: another rank has raised, has ended, or is in another operation. A rank that has raised raises its own error.
        UnsupportedError: a transform of torch.func is active.
    """
    if in_transform():
        raise UnsupportedError(
            f"{operation} of a sharded matrix within vmap, or another transform of torch.func: use torch.autograd.grad for gradients, and "
            "a dimension of the dense operand in place of vmap, as einsum('ij,bjk->bik', A, x)"
        )
    if group.group_name in _groups.get():
        yield
        return
    token = _groups.set(_groups.get() | {group.group_name})
    try:
        yield
        agree(group, f"ends {operation}")
    except RankError:  # on all ranks
        raise
    except Exception as error:
        with suppress(RankError):
            agree(group, f"raised in {operation}", error=error)
        raise
    finally:
        _groups.reset(token)


def agree(group: dist.ProcessGroup, step: str, number: int = 0, error: Exception | None = None) -> list[int]:
    """Check that all ranks take the same step, and gather a number of each rank.

    Args:
        group: the process group.
        step: the text of the step, a verb and its objects.
        number: this rank's number.
        error: the error that this rank has raised.

    Raises:
        RankError: another rank has raised, takes another step, or does not answer.
    """
    if group.size() == 1:
        return [number]
    mine = torch.tensor([number, crc32(step.encode()), error is not None])
    gathered = [torch.empty_like(mine) for _ in range(group.size())]
    with reporting_lost_ranks(group, step):
        dist.all_gather(gathered, mine, group=group)
        answers = torch.stack(gathered).tolist()
        if all(answer[1:] == [answers[0][1], 0] for answer in answers):
            return [answer[0] for answer in answers]
        descriptions: list[Any] = [None] * group.size()
        dist.all_gather_object(descriptions, (step, None if error is None else f"{type(error).__name__}: {error}"), group)
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
def reporting_lost_ranks(group: dist.ProcessGroup, step: str) -> Iterator[None]:
    """Turn errors of torch's process groups into one that says what happened.

    Raises:
        RankError: another rank has ended, or did not take part within the timeout of the process group.
    """
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {group.rank()} {step}, but another rank has ended, or did not call the operation within the timeout of the process group"
            f" ({error})"
        ) from error


def every(group: dist.ProcessGroup, what: str, value: Any) -> list[Any]:
    """The values of all ranks.

    Raises:
        RankError: another rank has raised, takes another step, or does not answer.
    """
    values: list[Any] = [None] * group.size()
    agree(group, f"gathers {what}")
    with reporting_lost_ranks(group, f"gathers {what}"):
        dist.all_gather_object(values, value, group)
    return values


def check_equal(group: dist.ProcessGroup, what: str, value: Any) -> None:
    """Check that all ranks have the same value.

    Raises:
        RankError: they have not, or another rank has raised, takes another step, or does not answer.
    """
    values = every(group, what, value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise RankError(f"{what} differs between ranks 0 and {rank}: {values[0]} and {other}; use the same on every rank")
