"""The times to compile and to load the kernels that a call runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from timeit import timeit
from unittest.mock import patch

from ..codegen.kernel import Kernel, build
from ..codegen.machine import Addresses
from ..codegen.source import Source
from ..runtime.plans import Tables, apart

FOLDER = "NUMSCORCH_CACHE_DIR"


class TimedKernel(Kernel):
    """A kernel that enters the times to compile and to load it in a dictionary, by its name."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: dict[str, tuple[float, float]], source: Source):
        kernel = build(source)
        super().__init__(kernel.source, kernel.scope)
        self.seconds = seconds

    def _compiled(self) -> Addresses:
        if self.source.name not in self.seconds:
            self.seconds[self.source.name] = timeit(super()._compiled, number=1), timeit(super()._compiled, number=1)
        return super()._compiled()


def compile_and_load_seconds(call: Callable[[], object]) -> tuple[float, float]:
    """The total times from source to machine code, and to load the machine code, of the kernels that a call runs.

    The call makes its plans anew, and stores kernels in an empty folder. Data cached with operands, such as transposes, is reused.

    Args:
        call: the function. Work that it hands to other threads isn't timed.

    Raises:
        OSError: the folder can't be written.

    >>> import torch, numscorch as ns
    >>> A = ns.from_torch(torch.eye(3), ns.CSR)
    >>> compiling, loading = compile_and_load_seconds(lambda: ns.einsum("ij,j->i", A, torch.ones(3)))
    >>> 0 < loading < compiling
    True
    """
    seconds: dict[str, tuple[float, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="numscorch-", ignore_cleanup_errors=True) as folder,
        patch.dict("os.environ", {FOLDER: folder}),
        apart(Tables(partial(TimedKernel, seconds), {}, {})),
    ):
        call()
    return sum(compiling for compiling, _ in seconds.values()), sum(loading for _, loading in seconds.values())
