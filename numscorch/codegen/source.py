"""The text of a kernel's file: its expression, its schedule and its functions."""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..ir import index as ix
from ..ir.dtype import DTYPES
from ..ir.function_table import WHOLE
from ..ir.functions import FUNCTIONS, REGISTER_FUNCTIONS, REGISTER_REDUCTIONS
from ..ir.loop import Call, Const, Expr, FunctionDef, TableLoad, expressions_in
from ..machine.fingerprints import hashed
from ..schedule.facts import FORGET, Target
from ..schedule.statements import NAMES as WORKSPACES
from .assembly import KernelBody, Param, assemble, at_stage
from .python import emit_function
from .result_assembly import Stage
from .workspaces import workspaces_of

ROUTINES = (
    *("carry", "collect", "combined", "emptied", "empty_places", "entered", "insert", "keep_largest", "ordered", "ordered_pairs"),
    *("outranked", "padded", "seek", "truth"),
)
MODULES = {  # the module of each function that kernels call; functions that are not listed are intrinsics
    **dict.fromkeys((*FUNCTIONS, *WHOLE, *ROUTINES), "numscorch.codegen.routines"),
    **dict.fromkeys((*REGISTER_FUNCTIONS.values(), *REGISTER_REDUCTIONS.values()), "numscorch.codegen.register_functions"),
    **dict.fromkeys(("add", "hsum", "mul"), "numscorch.codegen.intrinsics"),
    **dict.fromkeys(("appended", "largest"), "numscorch.codegen.compress_store"),
    **dict.fromkeys(("min", "max", "abs", "body", "finish"), None),
    "divide": "numpy",
    **dict.fromkeys(DTYPES, "numpy"),
}
NOTES = {
    "bound": "This kernel counts the most insertions into one row; the next ones count the result's entries and write them.",
    "room": "This kernel counts all insertions; the next one appends the result's entries to arrays with room for that many.",
    "once": "This kernel appends the result's entries to arrays with room for all insertions.",
    "count": "This kernel counts the entries of the result; a second one writes them.",
    "fill": "",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's name, the text of its file, and its program."""

    name: str
    text: str
    program: KernelBody

    @property
    def params(self) -> tuple[Param, ...]:
        """The kernel's parameters."""
        return self.program.params


@lru_cache(maxsize=1024)
def generate(stmt: ix.Stmt, target: Target, stage: Stage = "fill") -> Source:
    """Generate the source of one stage of a scheduled statement. Recent sources are remembered."""
    stmt = at_stage(stmt, stage)
    program = assemble(stmt, target, stage)
    body = "\n\n".join(map(emit_function, program.functions))
    note = f"\n{NOTES[stage]}\n" if NOTES[stage] else ""
    head = "\n\n".join(part for part in (_imports(program), _tables(program.functions)) if part)
    text = f'"""{_header(stmt)}{note}"""\n\n{head}\n\n\n{body}'
    return Source(f"kernel_{hashed(text, target)}", text, program)


FORGET.append(generate.cache_clear)


def _header(stmt: ix.Stmt) -> str:
    result = ix.result_of(stmt)
    operands = ix.operands_of(stmt)
    lines = [str(_headline(stmt)), *(f"    where {assignment}" for assignment in _intermediates(stmt)), "", f"    {stmt}", ""]
    lines += [describe(a) for a in [*operands, *ix.returned_by(stmt), result]]
    lines += [f"{w.tensor.name}: {w.tensor.format.levels[0]} {w.tensor.dtype}" for w in workspaces_of(stmt)]
    return "\n".join(lines) + "\n"


def _headline(stmt: ix.Stmt) -> ix.Assignment:
    """Return the computed assignment. The factors of a product are sorted by the operands' names."""
    assignment = _assignment_of(stmt)
    factors = ix.factors_of(assignment.rhs)
    if all(isinstance(f, ix.Access) for f in factors) and not _intermediates(stmt):
        return ix.Assignment(assignment.lhs, ix.product(list(ix.operands_of(stmt))), assignment.op)
    return assignment


def _assignment_of(stmt: ix.Stmt) -> ix.Assignment:
    """Return a statement as one assignment, without workspaces; a product with a summed workspace is assigned by the sum's operator."""
    match stmt:
        case ix.Assignment():
            return stmt
        case ix.Forall(_, body):
            return _assignment_of(body)
        case ix.Where(consumer, producer):
            assignment, space = _assignment_of(consumer), _assignment_of(producer)
            name = space.lhs.tensor.name
            if not _is_inlined(space) or all(a.tensor.name != name for a in ix.accesses_in(assignment.rhs)):
                return assignment
            op = space.op if assignment.op == "=" and ix.is_product(assignment.rhs) else assignment.op
            return ix.Assignment(assignment.lhs, ix.mapped(assignment.rhs, lambda a: space.rhs if a.tensor.name == name else a), op)


def _intermediates(stmt: ix.Stmt) -> list[ix.Assignment]:
    """Return, in order, the assignments whose values are read by later fused statements, or returned besides the result."""
    match stmt:
        case ix.Assignment():
            return []
        case ix.Forall(_, body):
            return _intermediates(body)
        case ix.Where(consumer, producer):
            assignment = _assignment_of(producer)
            return [*_intermediates(producer), *([] if _is_inlined(assignment) else [assignment]), *_intermediates(consumer)]


def _is_inlined(assignment: ix.Assignment) -> bool:
    """Whether an assignment fills a workspace within one statement, or copies a row of an operand."""
    is_copy = assignment.op == "=" and isinstance(assignment.rhs, ix.Access) and not assignment.lhs.tensor.is_returned
    return is_copy or assignment.lhs.tensor.name in WORKSPACES


def describe(access: ix.Access) -> str:
    """Return a tensor's format and data types, such as ``A: CSR float32, int32 indices``."""
    tensor = access.tensor
    if tensor.is_dense:
        strides = f", strides ({', '.join(tensor.strides)})" if tensor.strides else ""
        return f"{tensor.name}: dense {tensor.dtype}{strides}"
    if tensor.shares and not tensor.is_row and tensor.format.is_dense and tensor.format.order:
        return f"{tensor.name}: {tensor.dtype}, one value per entry of {tensor.shares}"
    moved = f", {'far ' if tensor.is_far else ''}values in another order" if tensor.is_reordered else ""
    shared = f", the pattern of {tensor.shares}" if tensor.shares else ""
    largest = f", the {tensor.largest[0]} largest of every {tensor.largest[1]}" if tensor.largest else ""
    most = f", the {tensor.row_limit} largest of each row" if tensor.row_limit else ""
    return f"{tensor.name}: {tensor.format.name} {tensor.dtype}, {tensor.index_dtype} indices{moved}{shared}{largest}{most}"


def _imports(program: KernelBody) -> str:
    """Return the import statements: of other packages, and then of numscorch."""
    exprs = list(_expressions(program.functions))
    constants = [expr for expr in exprs if isinstance(expr, Const)]
    names: dict[str | None, set[str]] = {
        "math": {repr(abs(constant.value)) for constant in constants if not isfinite(constant.value)},  # inf and nan
        "numba": {"prange"} if program.parallel else set(),
        "numpy": {constant.dtype for constant in constants if constant.dtype is not None},
    }
    names["numpy"] |= {"array"} if any(isinstance(expr, TableLoad) for expr in exprs) else set()
    for function in {expr.function for expr in exprs if isinstance(expr, Call)}:
        names.setdefault(MODULES.get(function, "numscorch.codegen.intrinsics"), set()).add(function)
    lines = [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(filter(None, names)) if names[module]]
    ours = [line for line in lines if line.startswith("from numscorch")]
    return "\n\n".join("\n".join(group) for group in (lines[: len(lines) - len(ours)], ours) if group)


def _expressions(functions: Sequence[FunctionDef]) -> Iterator[Expr]:
    return (expr for function in functions for expr in expressions_in(function.body))


def _tables(functions: Sequence[FunctionDef]) -> str:
    """Return the source of the tables that the functions read."""
    tables = sorted({(e.name, e.values) for e in _expressions(functions) if isinstance(e, TableLoad)})
    return "\n".join(f"{name} = array({list(values)})" for name, values in tables)
