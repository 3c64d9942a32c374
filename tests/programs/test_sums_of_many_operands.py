"""Sums of many sparse operands: one loop body, in which absent operands have no positions, and whose size grows linearly."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from cases import as_operand
from fresh import forget_plans

import numscorch as ns
from numscorch.codegen.environment import Env
from numscorch.codegen.lowering import lower
from numscorch.codegen.result_assembly import Assembly
from numscorch.codegen.source import generate
from numscorch.errors import ScheduleError
from numscorch.frontend.problem import Operand, make_problem
from numscorch.frontend.statements import parse_program
from numscorch.ir.format import COO, CSC, CSR, DCSR, Format
from numscorch.ir.index import TensorVar, operands_of, result_of
from numscorch.ir.notation import parse_stmt
from numscorch.ir.workspace_levels import Listed
from numscorch.schedule import schedule, tuning
from numscorch.schedule.facts import Target
from numscorch.tensors.validate import validate

TARGET = Target(32, 16)
NAMES = "ABCDEFGH"
COUNTS = [2, 3, *(pytest.param(count, marks=pytest.mark.full) for count in (4, 6, 7)), 5, 8]  # of operands
FORMATS: dict[str, list[Format]] = {
    "CSR": [CSR],
    "DCSR": [DCSR],
    "COO": [COO(2)],
    "singleton": [Format("so")],
    "sparse rows of dense": [Format("sd")],
    "mixed": [CSR, DCSR, COO(2), Format("sd"), CSR, Format("so"), DCSR, COO(2)],
    "mixed, all sparse": [DCSR, COO(2), Format("so"), DCSR],
}


def matrices(count: int, formats: list[Format], seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Small integer matrices by name, some with empty rows or without entries, as dense arrays and in their formats."""
    numbers = np.random.default_rng(seed)
    dense = {}
    for name in NAMES[:count]:
        array = numbers.integers(-3, 4, (5, 6)) * (numbers.random((5, 6)) < numbers.choice([0.0, 0.15, 0.4, 1.0], p=[0.1, 0.4, 0.4, 0.1]))
        dense[name] = np.asarray(array * (numbers.random((5, 1)) < 0.7), np.float64)
    return dense, {name: as_operand(array, formats[at % len(formats)]) for at, (name, array) in enumerate(dense.items())}


def check(text: str, operands: dict[str, Any], expected: np.ndarray, fmt: Format | None = None) -> None:
    result = ns.evaluate(text, format=fmt, **operands)
    if isinstance(result, ns.SparseTensor):
        validate(result.pattern)
        result = result.to_dense()
    np.testing.assert_array_equal(np.asarray(result), expected, err_msg=f"{text} {[str(f) for f in operands.values()]}")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", COUNTS)
def test_sums(count: int, name: str, plain: pytest.MonkeyPatch) -> None:
    dense, operands = matrices(count, FORMATS[name], count)
    total = " + ".join(f"{n}[i,j]" for n in dense)
    value = np.sum(list(dense.values()), 0)
    check(f"R[i,j] = {total}", operands, value)
    check(f"R[i,j] = {total}", operands, value, CSR)
    check(f"R[i,j] = {total}", operands, value, CSC if name == "CSR" else DCSR)
    check(f"R[i] = {total}", operands, value.sum(1))
    check(f"R = {total}", operands, value.sum())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", COUNTS[1:])
def test_products_of_sums_and_other_operators(count: int, name: str, plain: pytest.MonkeyPatch) -> None:
    dense, operands = matrices(count, FORMATS[name], count)
    accesses, arrays = [f"{n}[i,j]" for n in dense], list(dense.values())
    half = count // 2
    one, two = np.sum(arrays[:half], 0), np.sum(arrays[half:], 0)
    left, right = " + ".join(accesses[:half]), " + ".join(accesses[half:])
    maximum, text = arrays[0], accesses[0]
    for access, array in zip(accesses[1:], arrays[1:], strict=True):
        maximum, text = np.maximum(maximum, array), f"maximum({text}, {access})"
    check(f"R[i,j] = ({left}) * ({right})", operands, one * two)
    check(f"R[i,j] = {text}", operands, maximum)
    check(f"R[i] max= ({left}) * ({right})", operands, (one * two).max(1))
    check(f"R[i] min= {text}", operands, maximum.min(1))
    check(f"R[i,j] = {' - '.join(accesses)}", operands, arrays[0] - np.sum(arrays[1:], 0))
    check(f"R[i,j] = {accesses[0]} * {accesses[1]} + {' + '.join(accesses[2:])}", operands, arrays[0] * arrays[1] + sum(arrays[2:]))
    check(f"R[i,j] = relu({left}) + abs({right})", operands, np.maximum(one, 0) + abs(two))
    check(f"R[i,j] = {' + '.join(accesses)} + 1", operands, np.sum(arrays, 0) + 1)


@pytest.mark.parametrize("seed", range(40))
def test_one_body_and_separate_cases_agree(seed: int, plain: pytest.MonkeyPatch) -> None:
    """Operands of different orders and formats give the same result in one body and with a case for each lattice point."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    dense, texts, operands = {}, [], {}
    for name in NAMES[: rng.randint(2, 5)]:
        term = rng.choice(["ij", "ij", "ji", "i", "j", "ijk"])
        array = np.asarray(numbers.integers(1, 4, [{"i": 3, "j": 4, "k": 2}[v] for v in term]), np.float64)
        dense[name] = array * (numbers.random(array.shape) < rng.choice((0.2, 0.5, 1.0)))
        operands[name] = as_operand(dense[name], Format("".join(rng.choice("ssdo") for _ in term)))
        texts.append(f"{name}[{','.join(term)}]")
    text = texts[0]
    for other in texts[1:]:
        text = rng.choice([f"{text} + {other}", f"{text} + {other}", f"({text}) * {other}", f"maximum({text}, {other})"])
    used = [v for v in "ijk" if any(v in t[1:] for t in texts)]
    lhs = "R[" + ",".join(used) + "]"
    plain.setattr(tuning, "MOST_CASES", 10**6)
    expected = ns.evaluate(f"{lhs} = {text}", **operands, format="dense")
    expected_maxima = ns.evaluate(f"R[{used[0]}] max= {text}", **operands, format="dense")
    for fmt in ("dense", Format("s" * len(used)), None):
        for most in (0, 3):
            forget_plans(plain)
            plain.setattr(tuning, "MOST_CASES", most)
            check(f"{lhs} = {text}", operands, expected, fmt)
            check(f"R[{used[0]}] max= {text}", operands, expected_maxima)


@pytest.mark.parametrize("name", ["DCSR", "mixed"])
def test_compiled(name: str) -> None:
    dense, operands = matrices(4, FORMATS[name], 7)
    check("R[i,j] = " + " + ".join(f"{n}[i,j]" for n in dense), operands, np.sum(list(dense.values()), 0))


def test_an_unstored_entry_times_infinity_is_no_term(plain: pytest.MonkeyPatch) -> None:
    x = torch.tensor([float("inf"), 1.0, float("nan")])
    A, B, C = (ns.from_torch(torch.tensor(row)).to(Format("ss")) for row in ([[0.0, 2, 0]], [[3.0, 0, 0]], [[0.0, 0, 4]]))
    result = ns.evaluate("R[i,j] = A[i,j] * x[j] + B[i,j] + C[i,j]", A=A, B=B, C=C, x=x)
    assert result.to_dense().tolist() == [[3.0, 2.0, 4.0]]
    twice = ns.evaluate("R[i,j] = (A[i,j] + B[i,j]) * C[i,j] * x[j] + B[i,j] + A[i,j] / x[j]", A=A, B=B, C=C, x=x)
    assert twice.to_dense().tolist() == [[3.0, 2.0, 0.0]]


def test_a_union_appends_only_where_there_is_a_term(plain: pytest.MonkeyPatch) -> None:
    """Rows that only one factor has are empty, as with a case for each lattice point."""
    A, B, C, D = (ns.from_torch(torch.eye(4)[[at]].T.expand(4, 3).contiguous()).to(DCSR) for at in (0, 1, 1, 2))
    result = ns.evaluate("R[i,j] = A[i,j] * B[i,j] + C[i,j] * D[i,j] + A[i,j] * C[i,j] * D[i,j]", A=A, B=B, C=C, D=D)
    assert result.nnz == 0


def source_of(count: int, fmt: Format, counts: tuple[int, ...]) -> str:
    (part,) = parse_program("R[i,j] = " + " + ".join(f"{name}[i,j]" for name in NAMES[:count]))
    operands = [Operand(fmt, (2000, 2000), "float32", "int32", counts=counts)] * count
    problem = make_problem(part.request, operands, TARGET)
    return generate(schedule(problem.stmt, problem.facts, TARGET)[-1].stmt, TARGET).text


@pytest.mark.parametrize(("fmt", "counts"), [(CSR, (2000, 60_000)), (DCSR, (1500, 60_000)), (COO(2), (60_000, 60_000))])
def test_source_grows_by_the_same_for_each_term(fmt: Format, counts: tuple[int, ...]) -> None:
    sizes = [len(source_of(count, fmt, counts)) for count in range(4, 9)]
    steps = {after - before for before, after in pairwise(sizes)}
    assert len(steps) == 1
    assert max(steps) < 1100


# ---- blocks of an outermost loop that co-iterates


BLOCKED = {
    "R[i,j] = A[i,j] + B[i,j]": lambda a, b, c: a + b,
    "R[i,j] = A[i,j] + B[i,j] + C[i,j]": lambda a, b, c: a + b + c,
    "R[i,j] = A[i,j] * B[i,j]": lambda a, b, c: a * b,
    "R[i] = (A[i,j] + B[i,j]) * C[i,j]": lambda a, b, c: ((a + b) * c).sum(1),
    "R = A[i,j] + B[i,j] * C[i,j]": lambda a, b, c: (a + b * c).sum(),
    "R[i] max= A[i,j] + B[i,j] + C[i,j]": lambda a, b, c: (a + b + c).max(1),
    "R[i,j] = A[i,j] + B[i,j] + 1": lambda a, b, c: a + b + 1,
    "R[i,j] = relu(A[i,j])": lambda a, b, c: np.maximum(a, 0),
}


@pytest.mark.parametrize("text", BLOCKED)
def test_blocks_of_a_merge(text: str, plain: pytest.MonkeyPatch) -> None:
    """The result does not depend on the number of blocks, or on the operand that is cut into blocks."""
    plain.setattr(tuning, "PARALLEL_STEPS", 0)
    for formats in ([DCSR], [COO(2)], [DCSR, CSR, COO(2)], [CSR, DCSR], [Format("so"), Format("sd")]):
        dense, operands = matrices(3, formats, len(formats))
        named = {name: operand for name, operand in operands.items() if f"{name}[" in text}
        for count in (1, 3, 7):
            forget_plans(plain)
            plain.setattr(tuning, "BLOCKS", count)
            check(text, named, BLOCKED[text](*dense.values()))


def test_a_large_merge_runs_in_parallel() -> None:
    rows, columns = torch.arange(3000), torch.arange(3000) % 700
    A = ns.from_coo(torch.stack([rows * 3, columns]), torch.ones(3000), (10_000, 700)).to(DCSR)
    B = ns.from_coo(torch.stack([rows * 2, columns]), torch.ones(3000), (10_000, 700)).to(DCSR)
    C = ns.from_coo(torch.stack([rows, columns]), torch.ones(3000), (10_000, 700)).to(DCSR)
    explanation = ns.explain("R[i,j] = A[i,j] + B[i,j] + C[i,j]", A=A, B=B, C=C)
    assert str(explanation.steps[-1].stmt).startswith("parallel_forall(i, ")
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            total = ns.evaluate("R[i,j] = A[i,j] + B[i,j] + C[i,j]", A=A, B=B, C=C)
            assert torch.equal(total.to_dense(), A.to_dense() + B.to_dense() + C.to_dense())
    finally:
        torch.set_num_threads(before)


def test_a_level_without_coordinates_cannot_be_entered() -> None:
    tensors = {"A": TensorVar("A", Format("s")), "w": TensorVar("w", Format((Listed(),)))}
    stmt = parse_stmt("parallel_forall(i, y[i] = A[i] * w[i])", tensors)
    with pytest.raises(ScheduleError, match="a listed level can't be entered there"):
        lower(stmt, Env(tuple(a for a in operands_of(stmt) if not a.tensor.is_dense), Assembly(result_of(stmt), "fill")))
