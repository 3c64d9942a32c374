"""The text of a kernel's file: what it computes, how it was scheduled, and the function."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from ..ir import index as ix
from ..ir.loop import Call, Function, expressions, walk, walk_block
from ..schedule.facts import Target
from .assembly import Param, Program, assemble
from .python import emit_function

RANGES = ("min",)
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": {"contract"}}


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's name, its file's text, and its program."""

    name: str
    text: str
    program: Program

    @property
    def params(self) -> tuple[Param, ...]:
        """The kernel's parameters."""
        return self.program.params


def generate(stmt: ix.Stmt, target: Target) -> Source:
    """The source of a scheduled statement: the same text for the same statement."""
    program = assemble(stmt, target)
    body = emit_function(program.function)
    text = f'"""{_header(stmt)}"""\n\n{_imports(program)}\n\n\n{body}'
    return Source(f"kernel_{_hash(text, target)}", text, program)


def _header(stmt: ix.Stmt) -> str:
    result = ix.result_of(stmt)
    operands = ix.operands_of(stmt)
    product = ix.product(list(operands))
    summed = "+=" if set(ix.variables_in(product)) - set(result.indices) else "="
    lines = [f"{result} {summed} {product}", "", f"    {stmt}", ""]
    lines += [f"{describe(a)}" for a in [*operands, result]]
    return "\n".join(lines) + "\n"


def describe(access: ix.Access) -> str:
    """A tensor's format and data types, as ``A: CSR float32, int32 indices``."""
    tensor = access.tensor
    if tensor.is_dense:
        strides = f", strides ({', '.join(tensor.strides)})" if tensor.strides else ""
        return f"{tensor.name}: dense {tensor.dtype}{strides}"
    shared = f", the pattern of {tensor.shares}" if tensor.shares else ""
    return f"{tensor.name}: {tensor.format.name} {tensor.dtype}, {tensor.index_dtype} indices{shared}"


def _imports(program: Program) -> str:
    called = _functions(program.function)
    own = sorted(called - set(RANGES))
    lines = ["from numba import prange"] if program.parallel else []
    scalars = sorted({c for c in ("float32", "float64") if _uses_constant(program.function, c)})
    lines += [f"from numpy import {', '.join(scalars)}"] if scalars else []
    lines += ["", f"from numscorch.codegen.intrinsics import {', '.join(own)}"] if own else []
    return "\n".join(lines).strip("\n")


def _functions(function: Function) -> set[str]:
    exprs = (e for s in walk_block(function.body) for top in expressions(s) for e in walk(top))
    return {e.function for e in exprs if isinstance(e, Call)}


def _uses_constant(function: Function, dtype: str) -> bool:
    exprs = (e for s in walk_block(function.body) for top in expressions(s) for e in walk(top))
    return any(getattr(e, "dtype", None) == dtype for e in exprs)


def _hash(text: str, target: Target) -> str:
    """Of everything that the machine code depends on: the text, the target, the options, the compilers, the intrinsics."""
    intrinsics = files("numscorch.codegen").joinpath("intrinsics.py").read_text()
    parts = (text, repr(target), repr(OPTIONS), version("numba"), version("llvmlite"), intrinsics)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
