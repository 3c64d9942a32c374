"""Agreement of ranks: errors of one rank are raised on all ranks, and ranks with different arguments are detected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import torch.distributed as dist

from ..errors import NumscorchError, OperandError

T = TypeVar("T")
ANNOUNCED = "numscorch/error"  # the key of the last error in the store of a process group


@contextmanager
def announcing(group: dist.ProcessGroup) -> Iterator[None]:
    """Announce an error of this rank: other ranks wait for it in an exchange, and show it when they give up."""
    try:
        yield
    except Exception as error:
        with suppress(RuntimeError):
            group.get_group_store().set(ANNOUNCED, f"rank {group.rank()} raised {type(error).__name__}: {error}")
        raise


@contextmanager
def reporting_lost_ranks(group: dist.ProcessGroup) -> Iterator[None]:
    """Turn errors of torch's process groups into one that says what happened.

    Raises:
        NumscorchError: another rank has ended, or did not take part within the timeout of the process group.
    """
    try:
        yield
    except RuntimeError as error:
        message = "the exchange of halo rows failed: another rank has raised or ended, or did not call this operation in time"
        with suppress(RuntimeError):
            if group.get_group_store().check([ANNOUNCED]):
                message += f"; the last error was: {group.get_group_store().get(ANNOUNCED).decode()}"
        raise NumscorchError(f"{message} ({error})") from error


def every(group: dist.ProcessGroup, value: Any) -> list[Any]:
    """The values of all ranks."""
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group)
    return values


def on_every_rank(group: dist.ProcessGroup, function: Callable[[], T]) -> T:
    """Call a function on all ranks; if it raises on one of them, all raise.

    Raises:
        NumscorchError: the function raised on this rank or on another one, whose message the error contains.
    """
    error: Exception | None = None
    result: Any = None
    try:
        result = function()
    except Exception as caught:
        error = caught
    messages = every(group, None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message is not None:
            raise NumscorchError(f"rank {rank} raised {message}")
    return cast(T, result)


def check_equal(group: dist.ProcessGroup, what: str, value: Any) -> None:
    """Check that all ranks have the same value.

    Raises:
        OperandError: they have not.
    """
    values = every(group, value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise OperandError(f"{what} differs between ranks 0 and {rank}: {values[0]} and {other}; pass the same on every rank")
