"""launch: call the entry of a kernel for each worker

This is the only parallel loop that Numba compiles, once per installation. It receives kernels as addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import prange, types
from numba.core.extending import intrinsic


@intrinsic
def call_entry(typingctx: Any, address: Any, worker: Any, words: Any, failed: Any) -> Any:
    """Call ``int64 entry(int64 worker, int64 *words)`` at an address; store its status at the address ``failed`` unless it is 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        wide = ir.IntType(64)
        entry = ir.FunctionType(wide, [wide, wide.as_pointer()])
        function, words, shared = (builder.inttoptr(args[n], kind.as_pointer()) for n, kind in ((0, entry), (2, wide), (3, wide)))
        status = builder.call(function, [args[1], words])
        with builder.if_then(builder.icmp_signed("!=", status, wide(0)), likely=False):
            builder.store(status, shared)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64, types.int64), codegen


called = cast("Callable[[int, int, int, int], None]", call_entry)


def launch(address: int, words: int, workers: int, failed: int) -> None:
    """Call an entry for each worker, in parallel; store the status of a call that fails at the address ``failed``."""
    for worker in prange(workers):
        called(address, worker, words, failed)
