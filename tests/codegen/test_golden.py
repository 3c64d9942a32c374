"""Generated source of named kernels is compared with golden files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from named_kernels import KERNELS, MATRIX, stored

from numscorch.codegen.result_assembly import Stage
from numscorch.codegen.source import Source, generate
from numscorch.frontend.copy_statements import copy_problem, copying
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import make_problem
from numscorch.frontend.statements import parse_program
from numscorch.ir.format import CSR, Format
from numscorch.schedule import schedule
from numscorch.schedule.facts import Target

TARGET = Target(32, 16)
STAGES: dict[str, Stage] = {"bounded": "bound", "counted": "count", "room": "room", "once": "once"}


def source(name: str, target: Target = TARGET) -> Source:
    expr, operands = KERNELS[name]
    if expr.startswith("to "):
        fmt = Format(expr.removeprefix("to "))
        problem, options = copy_problem(operands[0], fmt, target, prunes=False), copying(operands[0].format, fmt).options
        return generate(schedule(problem.stmt, problem.facts, target, options)[-1].stmt, target)
    if "=" in expr:
        (part,) = parse_program(expr)
        request: Any = part.request
    else:
        request = parse_einsum(expr, tuple(len(o.shape) for o in operands))
    in_order = name.startswith("spgemm") and not name.endswith("unordered")
    problem = make_problem(request, operands, target, CSR if in_order else None)
    return generate(schedule(problem.stmt, problem.facts, target)[-1].stmt, target, STAGES.get(name.rpartition("_")[2], "fill"))


@pytest.mark.parametrize("name", KERNELS)
def test_source_equals_its_golden_file(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.py", source(name).text)


@pytest.mark.parametrize("name", KERNELS)
def test_source_is_python_with_a_docstring_of_its_statement(name: str) -> None:
    generated = source(name)
    scope: dict[str, object] = {}
    exec(compile(generated.text, name, "exec"), scope)
    assert callable(scope["kernel"])
    head = str(scope["__doc__"])
    assert len(head.splitlines()[0]) < 100
    for number in range(len(KERNELS[name][1])):
        assert f"\n{'ABC'[number]}: " in head


@pytest.mark.parametrize("name", KERNELS)
def test_source_uses_all_parameters_and_imports(name: str) -> None:
    generated = source(name)
    head, _, body = generated.text.partition("\ndef ")
    tables = "".join(line for line in head.splitlines() if "_table = " in line)
    for param in generated.params:
        assert body.count(param.name) >= 2, param.name
    imports = generated.text.partition("import")[2].partition("\ndef ")[0].replace("import", ",").replace("from", ",")
    for imported in (word.strip() for word in imports.split(",")):
        if imported.isidentifier() and imported not in ("numba", "numpy", "math", "inf"):
            assert f"{imported}(" in body + tables, imported


def test_names_of_kernels_are_distinct_and_stable() -> None:
    names = {source(name, target).name for name in KERNELS for target in (TARGET, Target(64, 32))}
    assert len(names) == 2 * len(KERNELS)
    assert source("spmv_csr").name == source("spmv_csr").name
    assert all(name.isidentifier() for name in names)


def test_problems_of_about_the_same_size_share_a_kernel() -> None:
    expr, (A, x) = KERNELS["spmv_csr"]
    names = []
    for rows, nonzeros in ((2000, 60_000), (2040, 61_000)):
        operands = (stored(CSR, (rows, 3000), rows, nonzeros), x)
        problem = make_problem(parse_einsum(expr, (2, 1)), operands, TARGET)
        names.append(generate(schedule(problem.stmt, problem.facts, TARGET)[-1].stmt, TARGET).name)
    assert A.shape == MATRIX
    assert set(names) == {source("spmv_csr").name}
