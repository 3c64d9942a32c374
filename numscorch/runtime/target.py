"""The machine that kernels are made for."""

from __future__ import annotations

from functools import lru_cache

from ..schedule.facts import Target


@lru_cache(maxsize=1)
def host() -> Target:
    """SIMD width and registers of this processor, as LLVM sees it."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return Target(vector_bytes=64, registers=32)
    if features.get("avx2"):
        return Target(vector_bytes=32, registers=16)
    return Target(vector_bytes=16, registers=32 if features.get("neon") else 16)
