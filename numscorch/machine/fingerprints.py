"""Fingerprints: what a kernel's machine code depends on, as the names of its files.

Code that was made of another text, by other versions, or for another processor has another name, and is never found.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from ..schedule.facts import Target

OPTIONS: dict[str, Any] = {"error_model": "numpy", "boundscheck": False, "fastmath": {"contract"}}  # of Numba
COMPILED = (
    *("codegen/compress_store", "codegen/intrinsics", "codegen/machine", "codegen/pipeline"),
    *("codegen/register_functions", "codegen/registers", "codegen/routines", "codegen/scattering"),
    "ir/function_table",
)  # files whose functions become parts of kernels


def hashed(text: str, target: Target) -> str:
    """A digest of everything that machine code depends on: the text, the target, the options, the compilers, the intrinsics."""
    intrinsics = "".join(files("numscorch").joinpath(f"{name}.py").read_text() for name in COMPILED)
    parts = (text, repr(target.instructions), repr(OPTIONS), version("numba"), version("llvmlite"), intrinsics)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def code_name(kernel: str, source: bytes) -> str:
    """The name of the file that holds a kernel's machine code for this Python and this processor; imports Numba.

    >>> code_name("k", b"text") == code_name("k", b"text"), code_name("k", b"text") == code_name("k", b"other")
    (True, False)
    """
    text = "|".join([python_version(), version("numba"), *processor()]).encode()
    return f"{kernel}.{hashlib.sha256(text + hashlib.sha256(source).digest()).hexdigest()[:32]}.code"


def processor() -> tuple[str, str, str]:
    """The system, the processor's name and its features, by which Numba tells machines apart."""
    from numba.core.registry import cpu_target

    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return triple, name, features


def python_version() -> str:
    """Python by its minor version: bytecode changes with it."""
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
