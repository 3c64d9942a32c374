"""Functions that are compared take turns: as many calls each, and none always after the same one."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from numscorch.measuring.turns import WARM_UP, in_turns

NAMES = "abc"


def called() -> tuple[list[str], dict[str, Callable[[], object]]]:
    """What is called, in order, and functions that write themselves there."""
    calls: list[str] = []
    return calls, {name: lambda name=name: calls.append(name) for name in NAMES}


def test_each_function_is_called_once_in_each_turn() -> None:
    calls, functions = called()
    turns = in_turns(functions.pop("a"), functions, seconds=0.001, patience=math.inf)
    timed = calls[len(NAMES) * WARM_UP :]
    assert len(timed) == len(NAMES) * len(turns.ours)
    for at in range(0, len(timed), len(NAMES)):
        assert sorted(timed[at : at + len(NAMES)]) == list(NAMES)


def test_each_function_is_called_after_each_other_one() -> None:
    calls, functions = called()
    in_turns(functions.pop("a"), functions, seconds=0.001, patience=math.inf)
    met = {pair for pair in pairwise(calls[len(NAMES) * WARM_UP :]) if pair[0] != pair[1]}
    assert met == {(first, then) for first in NAMES for then in NAMES if first != then}
