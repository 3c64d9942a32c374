"""How Numba compiles a kernel: only the passes that generated source needs, and LLVM's optimisation once.

Numba's own pipeline also looks for closures, ``with`` blocks, array expressions and inlined functions, which no kernel has, and it
optimises each function before the whole module, to prune counts of references, of which kernels have none in their loops.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import IRLegalization, NativeLowering, NoPythonBackend, NopythonTypeInference, PreLowerStripPhis
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode

PASSES = (
    (TranslateByteCode, "read the bytecode"),
    (FixupArgs, "name the arguments"),
    (IRProcessing, "find the blocks"),
    (ReconstructSSA, "give each assignment a variable of its own"),
    (NopythonTypeInference, "infer the types"),
    (PreLowerStripPhis, "replace what joins variables by assignments"),
    (IRLegalization, "check what is lowered"),
    (NativeLowering, "lower to LLVM"),
    (NoPythonBackend, "keep the result"),
)


class Pipeline(CompilerBase):  # type: ignore[misc]
    """The passes of generated source."""

    def define_pipelines(self) -> list[PassManager]:
        manager = PassManager("kernel")
        for made, description in PASSES:
            manager.add_pass(made, description)
        manager.finalize()
        return [manager]


class Library(JITCodeLibrary):  # type: ignore[misc]
    """The machine code of one kernel, which is optimised when all of it is there."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)
