"""The text of a kernel's file: what it computes, how it was scheduled, and the function."""

from __future__ import annotations

from cmath import isfinite
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..ir import index as ix
from ..ir.function_table import WHOLE
from ..ir.functions import FUNCTIONS, REGISTER_FUNCTIONS, REGISTER_REDUCTIONS
from ..ir.loop import Call, Const, Expr, FunctionDef, TableLoad, expressions, walk, walk_block
from ..machine.fingerprints import hashed
from ..schedule.facts import Target
from ..schedule.workspace import NAMES as WORKSPACES
from .assembly import KernelBody, Param, assemble, at_stage
from .long_sums import Lengths
from .python import emit_function
from .result_assembly import Stage
from .workspaces import workspaces_of

RANGES = ("min", "max", "abs")
CASTS = frozenset({"int64"})
ROUTINES = frozenset(
    {
        *FUNCTIONS,
        *WHOLE,
        *("carry", "collect", "emptied", "empty_places", "entered", "insert", "ordered", "ordered_pairs"),
        *("outranked", "padded", "seek", "truth"),
    }
    - {"abs"}
)
REGISTERED = frozenset({*REGISTER_FUNCTIONS.values(), *REGISTER_REDUCTIONS.values()} - {"add", "hsum", "mul"})
APPENDING = frozenset({"appended", "appended_first", "largest", "largest_first"})
NOTES = {
    "bound": "This kernel finds how much may be inserted into one row; the next ones count the result's entries, and write them.",
    "room": "This kernel finds how much may be inserted in all; the next one appends the result's entries where there is room for that.",
    "once": "This kernel appends the entries of the result where there is room for all that may be inserted.",
    "count": "This kernel counts the entries of the result; a second one writes them.",
    "fill": "",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's name, its file's text, and its program."""

    name: str
    text: str
    program: KernelBody

    @property
    def params(self) -> tuple[Param, ...]:
        """The kernel's parameters."""
        return self.program.params


def generate(stmt: ix.Stmt, target: Target, stage: Stage = "fill", lengths: Lengths | None = None) -> Source:
    """The source of a scheduled statement: the same text for the same statement, and the same long sums among its loops' ``lengths``.

    A result whose pattern is new takes a kernel for each of its stages.
    """
    stmt = at_stage(stmt, stage)
    program = assemble(stmt, target, stage, lengths)
    body = "\n\n".join(map(emit_function, program.functions))
    note = f"\n{NOTES[stage]}\n" if NOTES[stage] else ""
    head = "\n\n".join(part for part in (_imports(program), _tables(program.functions)) if part)
    text = f'"""{_header(stmt)}{note}"""\n\n{head}\n\n\n{body}'
    return Source(f"kernel_{hashed(text, target)}", text, program)


def _header(stmt: ix.Stmt) -> str:
    result = ix.result_of(stmt)
    operands = ix.operands_of(stmt)
    lines = [str(_headline(stmt)), *(f"    where {passed}" for passed in _passed_on(stmt)), "", f"    {stmt}", ""]
    lines += [describe(a) for a in [*operands, *ix.returned_by(stmt), result]]
    lines += [f"{w.tensor.name}: {w.tensor.format.levels[0]} {w.tensor.dtype}" for w in workspaces_of(stmt)]
    return "\n".join(lines) + "\n"


def _headline(stmt: ix.Stmt) -> ix.Assignment:
    """What is computed: a product in the order of its operands' names, anything else as it stands."""
    assignments = _assigned(stmt)
    factors = ix.factors_of(assignments.rhs)
    if all(isinstance(f, ix.Access) for f in factors) and not _passed_on(stmt):
        return ix.Assignment(assignments.lhs, ix.product(list(ix.operands_of(stmt))), assignments.op)
    return assignments


def _assigned(stmt: ix.Stmt) -> ix.Assignment:
    """What a statement assigns in the end: workspaces are replaced by what fills them, and a product's sum is the assignment's."""
    match stmt:
        case ix.Assignment():
            return stmt
        case ix.Forall(_, body):
            return _assigned(body)
        case ix.Where(consumer, producer):
            assignments, filled = _assigned(consumer), _assigned(producer)
            name = filled.lhs.tensor.name
            if not _is_inlined(filled) or all(a.tensor.name != name for a in ix.accesses_in(assignments.rhs)):
                return assignments
            op = filled.op if assignments.op == "=" and ix.is_product(assignments.rhs) else assignments.op
            return ix.Assignment(assignments.lhs, ix.mapped(assignments.rhs, lambda a: filled.rhs if a.tensor.name == name else a), op)


def _passed_on(stmt: ix.Stmt) -> list[ix.Assignment]:
    """What fused statements make for later ones, or return besides the result, in this order."""
    match stmt:
        case ix.Assignment():
            return []
        case ix.Forall(_, body):
            return _passed_on(body)
        case ix.Where(consumer, producer):
            assignments = _assigned(producer)
            assignments_passed = [] if _is_inlined(assignments) else [assignments]
            return [*_passed_on(producer), *assignments_passed, *_passed_on(consumer)]


def _is_inlined(filled: ix.Assignment) -> bool:
    """Whether it fills a workspace of one statement, or one that holds a row of an operand as it is."""
    is_copy = filled.op == "=" and isinstance(filled.rhs, ix.Access) and not filled.lhs.tensor.is_returned
    return is_copy or filled.lhs.tensor.name in WORKSPACES


def describe(access: ix.Access) -> str:
    """A tensor's format and data types, as ``A: CSR float32, int32 indices``."""
    tensor = access.tensor
    if tensor.is_dense:
        strides = f", strides ({', '.join(tensor.strides)})" if tensor.strides else ""
        return f"{tensor.name}: dense {tensor.dtype}{strides}"
    if tensor.shares and not tensor.is_row and tensor.format.is_dense and tensor.format.order:
        return f"{tensor.name}: {tensor.dtype}, beside the entries of {tensor.shares}"
    shared = f", the pattern of {tensor.shares}" if tensor.shares else ""
    largest = f", of every {tensor.largest[1]} the {tensor.largest[0]} largest" if tensor.largest else ""
    return f"{tensor.name}: {tensor.format.name} {tensor.dtype}, {tensor.index_dtype} indices{shared}{largest}"


def _imports(program: KernelBody) -> str:
    called = _called(program.functions) - {"body", "finish"}
    intrinsics, routines = sorted(called - set(RANGES) - APPENDING - REGISTERED - ROUTINES - CASTS), sorted(called & ROUTINES)
    lines = [f"from math import {', '.join(names)}"] if (names := _unwritable(program.functions)) else []
    lines += ["from numba import prange"] if program.parallel else []
    scalars = sorted(_constant_types(program.functions) | (called & CASTS) | ({"array"} if _tables(program.functions) else set()))
    lines += [f"from numpy import {', '.join(scalars)}"] if scalars else []
    lines += [""] if intrinsics or called & APPENDING else []
    lines += [f"from numscorch.codegen.compress_store import {', '.join(names)}"] if (names := sorted(called & APPENDING)) else []
    lines += [f"from numscorch.codegen.intrinsics import {', '.join(intrinsics)}"] if intrinsics else []
    lines += [f"from numscorch.codegen.register_functions import {', '.join(names)}"] if (names := sorted(called & REGISTERED)) else []
    lines += [f"from numscorch.codegen.routines import {', '.join(routines)}"] if routines else []
    return "\n".join(lines).strip("\n")


def _expressions(functions: Sequence[FunctionDef]) -> Iterator[Expr]:
    return (e for function in functions for s in walk_block(function.body) for top in expressions(s) for e in walk(top))


def _tables(functions: Sequence[FunctionDef]) -> str:
    """Numbers that the functions look up."""
    tables = sorted({(e.name, e.values) for e in _expressions(functions) if isinstance(e, TableLoad)})
    return "\n".join(f"{name} = array({list(values)})" for name, values in tables)


def _called(functions: Sequence[FunctionDef]) -> set[str]:
    return {e.function for e in _expressions(functions) if isinstance(e, Call)}


def _unwritable(functions: Sequence[FunctionDef]) -> list[str]:
    """Numbers whose Python text is a name."""
    return sorted({repr(abs(e.value)) for e in _expressions(functions) if isinstance(e, Const) and not isfinite(e.value)})


def _constant_types(functions: Sequence[FunctionDef]) -> set[str]:
    return {e.dtype for e in _expressions(functions) if isinstance(e, Const) and e.dtype is not None}
