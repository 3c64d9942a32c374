"""Every public function and method takes odd but legal arguments as dense torch does, or refuses them and names a way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import net
import pytest
import torch
from net_functions import EXPLAINED
from net_known import COMPILED, KNOWN
from net_outcomes import outcome
from net_rows import LATER
from op_sweep import GOOD

import numscorch as ns
from numscorch.operators import OPERATORS
from numscorch.runtime.plans import uncompiled

PARTS = 24  # parts of the table, which xdist workers share


def faults(cases: Sequence[net.NetCase], is_compiled: bool = False) -> list[str]:
    with nullcontext() if is_compiled else uncompiled():
        outcomes = [(case, net.run(case)) for case in cases]
    return [f"{result.kind}: {case}: {result.message}" for case, result in outcomes if result is not None and result.kind not in GOOD]


@pytest.mark.parametrize("part", range(PARTS))
def test_odd_arguments(part: int, scale: Callable[[int], int]) -> None:
    rows = list(net.rows().values())[part::PARTS]
    failed = faults([case for row in rows for case in net.draw(row, scale(75))])
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("text", [*KNOWN, *COMPILED])
def test_cases_that_failed_once(text: str) -> None:
    case = net.case_of(text)
    failed = faults([case], is_compiled=text in COMPILED)
    assert not failed, failed[0]


def test_every_public_name_is_called() -> None:
    called = {row.name for row in net.rows().values()}
    methods = [name for kind in ns.SparseTensor.__mro__ for name in vars(kind) if not name.startswith("_")]
    named = {*ns.__all__, *ns.nn.__all__, *ns.nn.functional.__all__, *ns.sparsify.__all__, *methods, *OPERATORS}
    explained = {*LATER, *EXPLAINED}
    in_place = {name for name in OPERATORS if name.endswith("_") and name[:-1] in called}
    assert not named - called - explained - in_place, "enter them in net_rows or net_functions, or say why not"
    assert not explained - named, "names that are gone"
    assert not explained & called


@pytest.mark.parametrize(
    ("result", "expected", "kind"),
    [
        ((torch.ones(2), None), (torch.ones(2), None), "same"),
        ((torch.ones(2), None), (torch.zeros(2), None), "wrong"),
        ((torch.ones(2), None), (torch.ones(2, dtype=torch.float64), None), "wrong"),
        ((None, ns.SizeError("use another")), (torch.ones(2), None), "refused"),
        ((None, ns.SizeError("lost")), (torch.ones(2), None), "no way out"),
        ((None, KeyError("=")), (torch.ones(2), None), "raw"),
        ((None, KeyError("=")), (None, KeyError("=")), "raw"),
        ((None, RuntimeError("of a kernel")), (torch.ones(2), None), "raw"),
        ((None, TypeError("sum(): argument 'dim' must be int")), (torch.ones(2), None), "both raise"),
        ((None, TypeError("empty(): argument 'dtype' must be torch.dtype")), (torch.ones(2), None), "raw"),
        ((torch.ones(2), None), (None, RuntimeError("sizes differ")), "accepted"),
    ],
)
def test_outcomes(result: tuple[object, Exception | None], expected: tuple[object, Exception | None], kind: str) -> None:
    assert outcome("sum", "plain", result, expected).kind == kind
