"""Agreement of ranks: a collective operation raises on all ranks, or on none.

Before each exchange, and at the end of each operation, the ranks gather the step that each one takes. A rank that has raised takes
part with its error instead, so no rank waits for it. All agreements within an operation have the same ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from zlib import crc32

import torch

from ..errors import RankError, UnsupportedError
from ..tensors.modes import in_transform
from .ranks import Ranks

_active: ContextVar[frozenset[tuple[str, ...]]] = ContextVar("active", default=frozenset())  # ranks with an operation in progress


@contextmanager
def collective(ranks: Ranks, operation: str) -> Iterator[None]:
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
    """Check that all ranks take the same step, and gather a number of each rank.

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
    """Turn errors of torch's process groups into one that says what happened.

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


def check_equal(ranks: Ranks, what: str, value: Any) -> None:
    """Check that all ranks have the same value.

    Raises:
        RankError: they have not, or another rank has raised, takes another step, or does not answer.
    """
    values = every(ranks, what, value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise RankError(f"{what} differs between ranks 0 and {rank}: {values[0]} and {other}; use the same on every rank")
