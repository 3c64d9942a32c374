"""Functions are timed in turns: equally often, and each after each other one."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from numscorch.measuring.turns import WARM_UP, in_turns

NAMES = "abc"


def recording_functions() -> tuple[list[str], dict[str, Callable[[], object]]]:
    """The list of calls, in order, and functions that append their name to it."""
    calls: list[str] = []
    return calls, {name: lambda name=name: calls.append(name) for name in NAMES}


def test_each_function_is_called_once_in_each_turn() -> None:
    calls, functions = recording_functions()
    turns = in_turns(functions.pop("a"), functions, seconds=0.001, patience=math.inf)
    timed = calls[len(NAMES) * WARM_UP :]
    assert len(timed) == len(NAMES) * len(turns.ours)
    for at in range(0, len(timed), len(NAMES)):
        assert sorted(timed[at : at + len(NAMES)]) == list(NAMES)


def test_each_function_is_called_after_each_other_one() -> None:
    calls, functions = recording_functions()
    in_turns(functions.pop("a"), functions, seconds=0.001, patience=math.inf)
    neighbours = {pair for pair in pairwise(calls[len(NAMES) * WARM_UP :]) if pair[0] != pair[1]}
    assert neighbours == {(first, second) for first in NAMES for second in NAMES if first != second}
