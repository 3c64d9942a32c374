"""The source of named kernels, to the letter: what the compiler prints is meant to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from numscorch.codegen.result_assembly import Stage
from numscorch.codegen.source import Source, generate
from numscorch.frontend.accesses import row_major
from numscorch.frontend.copy_statements import copy_problem, copying
from numscorch.frontend.operand import Operand
from numscorch.frontend.parser import parse_einsum
from numscorch.frontend.problem import make_problem
from numscorch.frontend.statements import parse_statement
from numscorch.ir.format import BCSR, COO, CSC, CSF, CSR, DIA, NMG, Format, dense
from numscorch.schedule import schedule
from numscorch.schedule.facts import Target

TARGET = Target(32, 16)
STAGES: dict[str, Stage] = {"bounded": "bound", "counted": "count", "room": "room", "once": "once"}


def stored(fmt: Format, shape: tuple[int, ...], *counts: int) -> Operand:
    """A sparse float32 operand with int32 indices."""
    return Operand(fmt, shape, "float32", "int32", counts=counts)


def plain(*shape: int) -> Operand:
    """A contiguous float32 operand."""
    return Operand(dense(len(shape)), shape, "float32", strides=row_major(shape))


MATRIX = (2000, 3000)
CSR_A = stored(CSR, MATRIX, 2000, 60_000)
SHORT = stored(CSR, MATRIX, 2000, 7_000)
COO_A = stored(COO(2), MATRIX, 60_000, 60_000)
CSC_A = stored(CSC, MATRIX, 3000, 60_000)
SQUARE = stored(CSR, (2000, 2000), 2000, 60_000)
LARGE = stored(CSR, (10_000, 10_000), 10_000, 10**6)
WIDE = stored(CSR, (10**6, 10**6), 10**6, 2 * 10**6)
DCSR_A = stored(Format("ss"), (2000, 2000), 1500, 60_000)
COO_S = stored(COO(2), (2000, 2000), 60_000, 60_000)
BLOCK_LIST = stored(
    Format("(i, j) -> (i // 4: dense, j // 4: compressed(unique=False), i % 4: singleton(unique=False), j % 4: singleton)"),
    MATRIX,
    *(500, 60_000, 60_000, 60_000),
)
CSF_A = stored(CSF(3), (500, 400, 300), 480, 9000, 50_000)

KERNELS: dict[str, tuple[str, tuple[Operand, ...]]] = {
    "spmv_csr": ("ij,j->i", (CSR_A, plain(3000))),
    "spmv_csr_short_rows": ("ij,j->i", (SHORT, plain(3000))),
    "spmm_csr": ("ij,jk->ik", (CSR_A, plain(3000, 100))),
    "spmm_csr_narrow": ("ij,jk->ik", (CSR_A, plain(3000, 16))),
    "spmm_tiled": ("ij,jk->ik", (LARGE, plain(10_000, 1000))),
    "spmm_coo": ("ij,jk->ik", (COO_A, plain(3000, 64))),
    "spmm_csc": ("ij,jk->ik", (CSC_A, plain(3000, 64))),
    "spmm_nmg": ("ij,jk->ik", (stored(NMG(2, 3, 8), (900, 240), 300, 72_000, 144_000), plain(240, 96))),
    "spmm_nmg_one": ("ij,jk->ik", (stored(NMG(1, 2, 8), (900, 240), 450, 108_000, 108_000), plain(240, 32))),
    "sddmm_csr": ("ij,ik,jk->ij", (CSR_A, plain(2000, 64), plain(3000, 64))),
    "mttkrp_csf": ("ijk,jl,kl->il", (CSF_A, plain(400, 32), plain(300, 32))),
    "ttm_csf": ("ijk,kl->ijl", (CSF_A, plain(300, 20))),
    "dense_times_csr": ("ij,jk->ik", (plain(64, 2000), CSR_A)),
    "elementwise_csr_dense": ("ij,ij->ij", (CSR_A, plain(*MATRIX))),
    "intersect_dcsr": ("ij,ij->", (stored(Format("ss"), MATRIX, 1500, 60_000), stored(Format("ss"), MATRIX, 1200, 30_000))),
    "gallop_csr": ("ij,ij->", (stored(CSR, (2000, 50_000), 2000, 6000), stored(CSR, (2000, 50_000), 2000, 2_000_000))),
    "sum_csr": ("ij->", (CSR_A,)),
    "sum_columns": ("ij->j", (CSR_A,)),
    "sum_csf": ("ijk,->", (CSF_A, plain())),
    "trace_csr": ("ii->", (stored(CSR, (2000, 2000), 2000, 60_000),)),
    "spgemm_csr": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_csr_counted": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_csr_room": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_csr_once": ("ij,jk->ik", (SQUARE, SQUARE)),
    "spgemm_hashed": ("ij,jk->ik", (WIDE, WIDE)),
    "spgemm_hashed_bounded": ("ij,jk->ik", (WIDE, WIDE)),
    "spgemm_hashed_counted": ("ij,jk->ik", (WIDE, WIDE)),
    "spgemm_unordered": ("ij,jk->ik", (SQUARE, SQUARE)),
    "add_csr": ("C[i,j] = A[i,j] + B[i,j]", (SQUARE, SQUARE)),
    "add_three_dcsr": ("D[i,j] = A[i,j] + B[i,j] + C[i,j]", (DCSR_A, DCSR_A, DCSR_A)),
    "add_csr_dense": ("C[i,j] = A[i,j] + B[i,j]", (SQUARE, plain(2000, 2000))),
    "add_dcsr_times_dense": ("y[i] = (A[i,j] + B[i,j]) * x[j]", (DCSR_A, DCSR_A, plain(2000))),
    "relu_coo": ("C[i,j] = relu(A[i,j] - B[i,j])", (COO_S, COO_S)),
    "triangles_csr": ("ij,jk,ik->", (SQUARE, SQUARE, SQUARE)),
    "max_csr": ("y[i] max= A[i,j]", (SQUARE,)),
    "copy_csr_to_csc": ("to CSC", (CSR_A,)),
    "copy_csr_to_block_columns": ("to (i, j) -> (j // 4: dense, i: compressed(unique=False), j % 4: singleton)", (CSR_A,)),
    "copy_list_to_bcsr": ("to BCSR(4, 4)", (BLOCK_LIST,)),
    "copy_bcsr_to_csr": ("to CSR", (stored(BCSR(4, 4), (2000, 3002), 500, 9000, 36_000, 144_000),)),
    "copy_nmg_to_csc": ("to CSC", (stored(NMG(2, 3, 8), (900, 240), 300, 72_000, 144_000),)),
    "copy_dia_to_csr": ("to CSR", (stored(DIA, (2000, 2000), 5, 10_000, 10_000),)),
    "copy_csr_to_ell": ("to ELL(40)", (CSR_A,)),
    "copy_csr_to_hash": ("to (i, j) -> (i: dense, j: hash)", (CSR_A,)),
}


def source(name: str, target: Target = TARGET) -> Source:
    expr, operands = KERNELS[name]
    if expr.startswith("to "):
        fmt = Format(expr.removeprefix("to "))
        problem, options = copy_problem(operands[0], fmt, target), copying(operands[0].format, fmt).options
        return generate(schedule(problem.stmt, problem.facts, target, options)[-1].stmt, target)
    if "=" in expr:
        (part,) = parse_statement(expr)
        request: Any = part.request
    else:
        request = parse_einsum(expr, tuple(len(o.shape) for o in operands))
    in_order = name.startswith("spgemm") and not name.endswith("unordered")
    problem = make_problem(request, operands, target, CSR if in_order else None)
    return generate(schedule(problem.stmt, problem.facts, target)[-1].stmt, target, STAGES.get(name.rpartition("_")[2], "fill"))


@pytest.mark.parametrize("name", KERNELS)
def test_source_is(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"{name}.py", source(name).text)


@pytest.mark.parametrize("name", KERNELS)
def test_source_is_python_that_says_what_it_computes(name: str) -> None:
    made = source(name)
    scope: dict[str, object] = {}
    exec(compile(made.text, name, "exec"), scope)
    assert callable(scope["kernel"])
    head = str(scope["__doc__"])
    assert len(head.splitlines()[0]) < 100
    for number in range(len(KERNELS[name][1])):
        assert f"\n{'ABC'[number]}: " in head


@pytest.mark.parametrize("name", KERNELS)
def test_source_uses_all_that_it_names(name: str) -> None:
    made = source(name)
    head, _, body = made.text.partition("\ndef ")
    tables = "".join(line for line in head.splitlines() if "_table = " in line)
    for param in made.params:
        assert body.count(param.name) >= 2, param.name
    imports = made.text.partition("import")[2].partition("\ndef ")[0].replace("import", ",").replace("from", ",")
    for imported in (word.strip() for word in imports.split(",")):
        if imported.isidentifier() and imported not in ("numba", "numpy", "math", "inf"):
            assert f"{imported}(" in body + tables, imported


def test_name_depends_on_all_that_the_machine_code_depends_on() -> None:
    names = {source(name, target).name for name in KERNELS for target in (TARGET, Target(64, 32))}
    assert len(names) == 2 * len(KERNELS)
    assert source("spmv_csr").name == source("spmv_csr").name
    assert all(name.isidentifier() for name in names)


def test_problems_of_about_the_same_size_share_a_kernel() -> None:
    expr, (A, x) = KERNELS["spmv_csr"]
    others = []
    for rows, nonzeros in ((2000, 60_000), (2040, 61_000)):
        operands = (stored(CSR, (rows, 3000), rows, nonzeros), x)
        problem = make_problem(parse_einsum(expr, (2, 1)), operands, TARGET)
        others.append(generate(schedule(problem.stmt, problem.facts, TARGET)[-1].stmt, TARGET).name)
    assert A.shape == MATRIX
    assert set(others) == {source("spmv_csr").name}
