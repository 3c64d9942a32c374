"""The net: every public function and method, called with odd but legal arguments, compared with torch on dense tensors.

A case is a sample call (``net_rows``, ``net_functions``) and one kind of oddness: of one argument (``net_arguments``), of all sizes
and data types, of sizes beyond 2^63 elements (``net_huge``), or of the surroundings of the call (``net_surroundings``). The outcome
has to be torch's, or an error of numscorch that names a way out (``net_outcomes``).

To print faults: ``python tests/support/net.py --names "sum|add" --kinds "SciPy.*" --count 40``.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from net_arguments import ARGUMENTS, Oddity
from net_functions import FUNCTIONS
from net_huge import HUGE, run_huge
from net_outcomes import NON_FINITE, attempt, outcome
from net_rows import PYTHON, Row, rows_of_text
from net_samples import FORMATS, Setting, Value, sample
from net_surroundings import SURROUNDINGS, run_within
from op_sweep import GOOD, Outcome, dense_of, leaves
from torch.nn import functional

import numscorch as ns
from numscorch.errors import NumscorchError
from numscorch.runtime.plans import uncompiled

DTYPES = ("uint8", "bool", "int8", "int32", "int64", "float64", "float16", "bfloat16", "complex64")
SETTINGS: dict[str, Setting] = {
    "plain": Setting(),
    "no rows": Setting(0, 6),
    "no columns": Setting(4, 0),
    "no entries": Setting(0, 0),
    "one entry": Setting(1, 1),
    "one row": Setting(1, 6),
    "one column": Setting(4, 1),
    **{f"of {dtype}": Setting(dtype=getattr(torch, dtype)) for dtype in DTYPES},
    **{f"as {name}": Setting(format=at) for at, name in enumerate(FORMATS[2])},
    "no rows, in lists": Setting(0, format=2),
    "no entries, in lists": Setting(0, 0, format=2),
    "int32, all stored": Setting(dtype=torch.int32, format=-1),
}
NUMBERS = {"NumPy integer", "float64 scalar", "float32 scalar", "int64 scalar"}  # taken wherever Python's numbers are
WAYS = ("function", "method", "in place", "numscorch")
OF_FUNCTIONAL = {
    "kl_div",
    "binary_cross_entropy_with_logits",
    "poisson_nll_loss",
    "dropout",
    "celu",
    "selu",
}  # torch has others of the name
NO_METHODS = {"where", "sparse_dim", "dense_dim"}  # the method takes other arguments, or answers for the format


@dataclass(frozen=True)
class NetCase:
    """A sample call, how it is called, and a kind of oddness, of the argument ``at``."""

    row: Row
    way: str
    kind: str
    at: int = 0

    def __str__(self) -> str:
        return f"{self.row} | {self.way} | {self.kind} | {self.at}"


@cache
def rows() -> dict[str, Row]:
    """All sample calls by their text; calls of one text are numbered."""
    by_text: dict[str, Row] = {}
    for row in (*rows_of_text(), *PYTHON, *FUNCTIONS):
        number = 2
        while str(row) in by_text:
            row, number = Row(f"{row.name}", row.tokens, row.call, row.dense, row.is_plain, number), number + 1
        by_text[str(row)] = row
    return by_text


def cases(row: Row) -> Iterator[NetCase]:
    """All cases of a sample call."""
    ways = WAYS if row.call is None else WAYS[:1]
    for way in ways:
        yield from (NetCase(row, way, kind) for kind in SETTINGS)
        yield from (NetCase(row, way, kind, at) for kind in ARGUMENTS for at in range(len(row.tokens)))
    yield from (NetCase(row, "function", kind) for kind in HUGE)
    yield from (NetCase(row, "function", kind, at) for kind in SURROUNDINGS for at in range(len(row.tokens)))


def case_of(text: str) -> NetCase:
    """Parse the ``str`` of a case."""
    row, way, kind, at = text.rsplit(" | ", 3)
    return NetCase(rows()[row], way, kind, int(at))


def call_of(row: Row, way: str) -> Callable[..., Any] | None:
    """The function to call; None if the name cannot be called in this way."""
    name = row.name + "_" * (way == "in place")
    if row.call is not None:
        return row.call if way == "function" else None
    if way == "numscorch":
        return getattr(ns, name) if name in ns.operators.PUBLIC else None
    if way == "function":
        homes = (functional, torch) if name in OF_FUNCTIONAL else (torch, functional)
        return next((getattr(home, name) for home in homes if callable(getattr(home, name, None))), None)
    has_method = callable(getattr(torch.Tensor, name, None)) and name not in NO_METHODS
    return (lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)) if has_method else None


def run(case: NetCase) -> Outcome | None:
    """The outcome of a case; None if it does not apply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _run(case)


def _run(case: NetCase) -> Outcome | None:
    row, call = case.row, call_of(case.row, case.way)
    is_in_place = case.way == "in place" or row.name.endswith("_") or row.name == "setitem"
    if call is None:
        return None
    if case.kind in SURROUNDINGS:
        return None if is_in_place else run_within(row, call, case.kind, case.at, str(case))
    if case.kind in HUGE:
        return run_huge(row, call, case.kind, str(case))
    values, odd = sample(row.tokens, SETTINGS.get(case.kind, Setting()), str(case)), ARGUMENTS.get(case.kind)
    if case.way in ("method", "in place") and values[0].role != "sparse":
        return None
    if odd is not None and not _applies(case, odd, values):
        return None
    try:
        ours, theirs = (_arguments(values, is_ours, odd, case.at) for is_ours in (True, False))
    except Exception as error:  # the value cannot be odd in this way: dense torch or SciPy refuses it
        return Outcome("no way out", str(error)) if isinstance(error, NumscorchError) and " " not in str(error) else None
    if odd is not None and not _is_ours(case, ours[0]):
        return None
    dense = row.dense or (call_of(row, "function") if case.way == "numscorch" else None) or call
    if row.is_plain and row.dense is None and odd is not None:
        theirs = [_ordinary(arg) for arg in theirs[0]], {key: _ordinary(arg) for key, arg in theirs[1].items()}
    expected, result = attempt(dense, *theirs[0], **theirs[1]), attempt(call, *ours[0], **ours[1])
    if case.kind == "on meta" and result[1] is expected[1] is None:
        is_meta = all(getattr(dense_of(part), "is_meta", True) for part in leaves(result[0]))
        return Outcome("same" if is_meta else "wrong", "a meta operand gives numbers")
    compared = outcome(row.name, case.kind, result, expected)
    is_refused = compared.kind == "refused" and case.kind in NUMBERS and run(replace(case, kind="plain")) == Outcome("same")
    return Outcome("wrong", f"a number is refused: {compared.message}") if is_refused else compared


def _applies(case: NetCase, odd: Oddity, values: list[Value]) -> bool:
    """Whether the argument has a role of the kind. NaN times an unstored entry is 0, so products take no NaN."""
    is_product = case.kind == NON_FINITE[0] and sum(value.role in ("sparse", "dense", "list") for value in values) > 1
    return case.at < len(values) and values[case.at].role in odd.roles and not is_product


def _arguments(values: list[Value], ours: bool, odd: Oddity | None, at: int) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = [], {}
    for place, value in enumerate(values):
        given = value.argument(ours)
        if odd is not None and place == at:
            change = odd.ours if ours else odd.theirs
            given = value.argument(False) if change is None else change(value.argument(False))
            if ours and value.role == "sparse" and odd.theirs is odd.ours:
                given = ns.from_torch(given, value.format)
        if value.name:
            kwargs[value.name] = given
        else:
            args.append(given)
    return args, kwargs


def _is_ours(case: NetCase, args: list[Any]) -> bool:
    """Whether numscorch gets to see the call."""
    flat = [part for arg in args for part in (arg if isinstance(arg, list) else [arg])]
    kinds = (ns.SparseTensor, ns.nn.SparseParameter)
    if case.way in ("method", "in place"):
        return isinstance(args[0], kinds)
    return case.row.is_plain or case.way == "numscorch" or any(isinstance(part, kinds) for part in flat)


def _ordinary(value: Any) -> Any:
    """The ordinary form of an odd argument."""
    if isinstance(value, torch.Tensor) and not value.is_meta:
        return value.detach().clone().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous()
    return value.item() if isinstance(value, np.generic) else value


def draw(row: Row, count: int, seed: int = 0) -> list[NetCase]:
    """Reproducible random cases of a sample call; each way and kind of oddness has the same chance."""
    rng, every = random.Random(f"{row} {seed}"), list(cases(row))
    return rng.sample(every, min(count, len(every)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", default=".*", help="a pattern of names")
    parser.add_argument("--kinds", default=".*", help="a pattern of kinds")
    parser.add_argument("--ways", default=".*", help="a pattern of ways to call")
    parser.add_argument("--count", type=int, default=1 << 30, help="cases of each sample call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=1, help="faults printed of each kind and text")
    parser.add_argument("--case", help="one case, as printed")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    shown: Counter[str] = Counter()
    with uncompiled():
        if options.case:
            print(run(case_of(options.case)))
            return
        for row in rows().values():
            wanted = [case for case in draw(row, options.count, options.seed) if re.fullmatch(options.kinds, case.kind)]
            for case in wanted if re.fullmatch(options.names, row.name) else []:
                if not re.fullmatch(options.ways, case.way) or (result := run(case)) is None:
                    continue
                total[result.kind] += 1
                key = f"{result.kind} {case.kind} {re.sub(r'[0-9(].*', '', result.message)[:50]}"
                shown[key] += 1
                if result.kind not in GOOD and shown[key] <= options.show:
                    print(f"{result.kind:<11}{case}\n           {result.message}")
                    sys.stdout.flush()
    print(f"{sum(total.values())} cases: {dict(total)}")


if __name__ == "__main__":
    main()
