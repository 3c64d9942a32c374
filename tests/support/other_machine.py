"""Run as a program: schedule and generate kernels for another processor, run them as Python, and emit their machine code.

The processor is the one that NUMBA_CPU_NAME and NUMBA_CPU_FEATURES name. The only argument is the target triple of the machine code,
which is not executed. Prints the lanes and registers of the processor, and the assembly of each kernel's functions, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from llvmlite import binding
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

import numscorch as ns
from numscorch.codegen.compiling import _add, entries_of
from numscorch.codegen.kernel import Kernel, build_plain
from numscorch.codegen.numba_passes import Library
from numscorch.machine.target import host
from numscorch.runtime import plans


def requests() -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Expressions whose kernels use registers in different ways, with their operands."""
    torch.manual_seed(0)
    dense = torch.randint(-3, 4, (24, 20)) * (torch.rand(24, 20) < 0.3).float()
    A, B = ns.from_torch(dense, ns.CSR), ns.from_torch(dense.roll(1, 1), ns.CSR)
    X, Y = torch.randint(-3, 4, (20, 40)).float(), torch.randint(-3, 4, (24, 40)).float()
    yield "ij,jk->ik", [A, X], {}
    yield "ij,jk->ik", [A.to(ns.CSC), X], {}
    yield "ij,jk->ik", [A.to(torch.float64), X.double()], {}
    yield "ij,kj->ki", [A, X.t().contiguous()], {}
    yield "ij,j->i", [A, X[:, 0].contiguous()], {}
    yield "ij,ik,jk->ij", [A, Y, X], {}
    yield "ij,ij->ij", [A, B], {}
    yield "ij,kj->ik", [A, B], {}
    yield "ij->i", [A], {"reduce": "max"}
    blocks = torch.randint(1, 4, (24, 48)) * torch.eye(4).repeat(6, 12)
    yield "ij,jk->ik", [ns.from_torch(blocks, ns.NMG(1, 4, 4)), torch.randint(-3, 4, (48, 40)).float()], {}


def assembly(kernel: Kernel, triple: str) -> str:
    """The assembly of a kernel's functions for a target triple."""
    codegen = cpu_target.target_context.codegen()
    library = Library(codegen, kernel.source.name)
    for name in entries_of(kernel.source):
        _add(library, kernel.source, name, kernel.scope[name])
    if triple == codegen.magic_tuple()[0]:
        library.finalize()
        return str(library.get_asm_str())
    lowered = library._final_module
    for routine in library._linking_libraries:
        lowered.link_in(routine._get_module_for_linking(), preserve=True)
    machine = binding.Target.from_triple(triple).create_target_machine(opt=3)
    module = binding.parse_assembly(str(lowered).replace(f'"{lowered.triple}"', f'"{triple}"'))
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module))


def main(triple: str) -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    plans.PROCESS.build = build_plain
    for text, operands, options in requests():
        result = ns.einsum(text, *operands, **options)
        dense = [operand.to_dense() if isinstance(operand, ns.SparseTensor) else operand for operand in operands]
        expected = torch.einsum(text, *dense) if not options else dense[0].masked_fill(dense[0] == 0, -torch.inf).amax(1)
        if not torch.equal(result.to_dense() if isinstance(result, ns.SparseTensor) else result, expected):
            raise SystemExit(f"{text} {options} differs on {host()}")
    with global_compiler_lock:
        codes = {kernel.source.text: assembly(kernel, triple) for kernel in plans.PROCESS.kernels.values()}
    print(json.dumps({"lanes": host().vector_bytes // 4, "registers": host().registers, "codes": codes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
