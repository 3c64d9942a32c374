"""Fingerprints: file names of kernels that depend on everything that affects their machine code.

Machine code from a different source, different versions or a different processor has a different name and is never loaded.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from ..schedule.facts import Target

OPTIONS: dict[str, Any] = {"error_model": "numpy", "boundscheck": False, "fastmath": {"contract"}}  # options of numba.njit
COMPILED = (
    *("codegen/compress_store", "codegen/intrinsics", "codegen/compiling", "codegen/numba_passes"),
    *("codegen/register_functions", "codegen/registers", "codegen/routines", "codegen/long_sums"),
    "ir/function_table",
)  # modules whose functions are compiled into kernels


def hashed(text: str, target: Target) -> str:
    """A digest of the source text, target, options, compiler versions and intrinsics, which determine the machine code."""
    return hashlib.sha256("\0".join([text, repr(target.instructions), repr(OPTIONS), *_compiler()]).encode()).hexdigest()[:16]


@cache
def _compiler() -> tuple[str, str, str]:
    """The versions of Numba and llvmlite, and the source text of the intrinsics; reading them takes milliseconds."""
    intrinsics = "".join(files("numscorch").joinpath(f"{name}.py").read_text() for name in COMPILED)
    return version("numba"), version("llvmlite"), intrinsics


def code_name(kernel: str, source: bytes) -> str:
    """The name of the file with a kernel's machine code for this Python and this processor. Imports Numba.

    >>> code_name("k", b"text") == code_name("k", b"text"), code_name("k", b"text") == code_name("k", b"other")
    (True, False)
    """
    text = "|".join([python_version(), version("numba"), *processor()]).encode()
    return f"{kernel}.{hashlib.sha256(text + hashlib.sha256(source).digest()).hexdigest()[:32]}.code"


def processor() -> tuple[str, str, str]:
    """The target triple, the name and the features of the processor, which Numba uses to distinguish machines."""
    from numba.core.registry import cpu_target

    return cpu_target.target_context.codegen().magic_tuple()


def python_version() -> str:
    """The implementation and minor version of Python, which determine the bytecode."""
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
