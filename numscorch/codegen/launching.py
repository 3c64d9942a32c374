"""launch: the entry of a kernel is called for each worker

The only parallel loop that Numba compiles, once in an installation: kernels come to it as addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import prange, types
from numba.core.extending import intrinsic


@intrinsic
def call_entry(typingctx: Any, address: Any, worker: Any, words: Any) -> Any:
    """What ``int32 entry(int64 worker, int64 *words)`` at an address returns."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.IntType(64)
        entry = ir.FunctionType(ir.IntType(32), [wide, wide.as_pointer()])
        function, taken = builder.inttoptr(args[0], entry.as_pointer()), builder.inttoptr(args[2], wide.as_pointer())
        return builder.sext(builder.call(function, [args[1], taken]), wide)

    return types.int64(types.int64, types.int64, types.int64), codegen


called = cast("Callable[[int, int, int], int]", call_entry)


def launch(address: int, words: int, workers: int) -> int:
    """Call an entry for each worker, in threads; how many failed."""
    failed = 0
    for worker in prange(workers):
        failed += called(address, worker, words)
    return failed
