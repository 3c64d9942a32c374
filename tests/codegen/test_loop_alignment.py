"""LLVM starts innermost loops at cache lines. It ignores options that it does not know, so a new name would be missed."""

from __future__ import annotations

import platform

import pytest
from llvmlite import binding

from numscorch.codegen import compiling

SUM = """
define float @sum(ptr %a, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %s = phi float [0.0, %entry], [%t, %loop]
  %p = getelementptr float, ptr %a, i64 %i
  %v = load float, ptr %p
  %t = fadd float %s, %v
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %end
end:
  ret float %t
}
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 has the option")
def test_innermost_loops_start_at_cache_lines() -> None:
    assert compiling.binding is binding  # the module sets the option
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(opt=3)
    assert ".p2align\t6" in machine.emit_assembly(binding.parse_assembly(SUM))
