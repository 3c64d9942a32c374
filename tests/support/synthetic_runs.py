"""Seeded synthetic runs in the format of ``benchmarks/records.py``, with kernel sources from the golden files."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
PEERS = ("torch CSR int32", "torch CSR int64", "SciPy CSR", "pydata/sparse", "python-graphblas")
DENSE = "torch, dense"
MATRICES = (
    "cora",
    "citeseer",
    "pubmed",
    "uniform 4096",
    "power law 20000",
    "banded 50000",
    "blocks 8192",
    "pruned 90 %",
    "hypersparse",
    "one full row",
)
FAMILIES = (
    "spmm", "spmv", "sddmm", "spgemm", "masked", "triangles", "sums", "tensors", "convert", "training", "rows", "linear",
    "blocks", "n:m, 16 rows", "n:m:g", "formats", "banded", "softmax", "gcn", "attention", "mlp", "moe", "mttkrp", "reduce",
)  # fmt: skip
MACHINE = {
    "processor": "AMD EPYC 9R14", "cores": 2, "vector_bytes": 64, "registers": 32,
    "caches": [32768, 1048576, 33554432], "system": "Linux x86_64", "fingerprint": "5f0c2d91aa",
}  # fmt: skip
LAST = {"spmm": 1.3, "rows": 0.8}  # factors by which the last commit changes kernels
ROOFS = {str(threads): {"bytes_per_second": 1.3e10 * threads**0.7, "flops_per_second": 9e10 * threads} for threads in (1, 2)}


def history(
    commits: int, cases: int, *, seed: int = 0, suite: str = "full", machine: Mapping[str, Any] = MACHINE
) -> Iterator[dict[str, Any]]:
    """Results files, oldest first, with drifting ratios and independent noise per run."""
    rng = random.Random(seed)
    plan = list(_plan(cases))
    speeds = {name: math.exp(rng.gauss(0.7, 0.5)) for name in {family for family, *_ in plan}}
    kernels = _kernels()
    for at in range(commits):
        for name in speeds:
            speeds[name] *= 1.12 if rng.random() < 0.01 else 1.0
        if at and at == commits - 1:
            speeds |= {name: factor * speeds[name] for name, factor in LAST.items() if name in speeds}
        records = [_record(family, number, threads, speeds[family], rng, list(kernels)) for family, number, threads in plan]
        yield results(records, at, suite=suite, machine=machine, kernels=kernels if at == commits - 1 else {})


def results(
    records: list[dict[str, Any]], at: int, *, suite: str = "full", machine: Mapping[str, Any] = MACHINE, **facts: Any
) -> dict[str, Any]:
    """A results file with the records, for the commit with number ``at``."""
    commit = f"{random.Random(at).getrandbits(160):040x}"
    versions = {"python": "3.11.9", "numscorch": "0.1.0", "torch": "2.13.0", "numba": "0.68.1", "scipy": "1.16.0"}
    all_facts = {"suite": suite, "machine": dict(machine), "versions": versions, "roofs": ROOFS, "kernels": {}, "missing": ["PyG"], **facts}
    return {
        "datetime": f"2026-{1 + at // 28 % 12:02d}-{1 + at % 28:02d}T09:00:00+00:00",
        "commit_info": {"id": commit, "dirty": False},
        "benchmarks": [{"name": str(number), "extra_info": record} for number, record in enumerate(records)],
        "numscorch": all_facts,
    }


def write(folder: Path, runs: Iterator[dict[str, Any]]) -> None:
    """Write each run to a separate file."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, run in enumerate(runs):
        (folder / f"{number:03d}.json").write_text(json.dumps(run))


def _plan(cases: int) -> Iterator[tuple[str, int, int]]:
    for number in range(cases):
        yield FAMILIES[number % len(FAMILIES)], number // len(FAMILIES) // 2, 1 + number // len(FAMILIES) % 2


def _kernels() -> dict[str, dict[str, str]]:
    """Five copies of the golden sources, since a suite of a thousand cases generates about two hundred kernels."""
    sources = [path.read_text() for path in sorted(GOLDEN.glob("*.py"))]
    texts = {}
    for turn in range(5):
        for number, source in enumerate(sources):
            request = "evaluate C[i,k] = A[i,j] * B[j,k]"
            stages = "\n".join(f"{stage:<18}{request[9:]}\n{' ' * 20}why it is so" for stage in STAGES)
            texts[f"kernel_{random.Random(number * 9 + turn).getrandbits(64):016x}"] = {
                "request": request,
                "explanation": stages,
                "source": source,
            }
    return texts


STAGES = ("index notation", "infer_format", "order_loops", "insert_workspaces", "tile", "vectorize", "parallelize")


def _record(family: str, number: int, threads: int, speed: float, drawn: random.Random, kernels: list[str]) -> dict[str, Any]:
    fixed = random.Random(f"{family} {number}")
    nnz = int(10 ** fixed.uniform(3, 7))
    k = (2, 16, 64, 256)[number // len(MATRICES) % 4]
    seconds = (5e-6 + nnz * k * 4e-11 / threads**0.8) * fixed.uniform(0.7, 1.4) * drawn.uniform(0.98, 1.02)
    ratio = speed * fixed.lognormvariate(0, 0.3)
    peers = {name: _against(seconds, ratio * (1 + 0.5 * place) * drawn.gauss(1, 0.01)) for place, name in enumerate(_peers(family))}
    best = min(peers, key=lambda name: peers[name]["seconds"])
    return {
        "kernel": family, "matrix": MATRICES[number % len(MATRICES)], "shape": [4096, 4096], "nnz": nnz, "threads": threads,
        "variant": ["k"], "k": k, "seconds": seconds, "peer": best, "peer_seconds": peers[best]["seconds"],
        **{key: peers[best][key] for key in ("ratio", "low", "high")}, "peers": peers,
        "beside": {DENSE: _against(seconds, 4 * ratio)} if family in ("spmm", "sddmm") else {},
        "labels": {DENSE: "it computes what is not stored, too"} if family in ("spmm", "sddmm") else {},
        "bytes": 8 * nnz + 4 * 4096 * k, "flops": 2 * nnz * k, "peak_bytes": 4096 * k * 4 + 4096, "result_bytes": 4096 * k * 4,
        "kernels": [fixed.choice(kernels)], "compile_seconds": fixed.uniform(0.4, 4), "load_seconds": fixed.uniform(0.01, 0.1),
        "overhead_seconds": fixed.uniform(3e-6, 2e-5),
    }  # fmt: skip


def _peers(family: str) -> tuple[str, ...]:
    return PEERS[: 2 + FAMILIES.index(family) % 4]


def _against(seconds: float, ratio: float) -> dict[str, float]:
    return {"seconds": seconds * ratio, "ratio": ratio, "low": 0.97 * ratio, "high": 1.03 * ratio, "ratio_of_minima": ratio, "turns": 40}
