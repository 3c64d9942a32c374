"""Time of first calls in a fresh process: ``python -m benchmarks.fresh THREADS``.

Prints the seconds of the first call of each of thirty kernels as JSON. Another kernel runs before them, so that Numba's start-up is not
counted. Kernels are loaded if ``NUMSCORCH_CACHE_DIR`` contains them, and compiled otherwise.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import numscorch as ns

from .generated import ratings, uniform

ROOT = Path(__file__).parent.parent
einsum = ns.einsum


def kernels() -> dict[str, Callable[[], Any]]:
    """Thirty calls, each with a different kernel."""
    A, T = uniform(2000, 2000, 20), ratings((300, 200, 100), 40_000).to(ns.CSF(3))
    X, Y, x, batch = torch.rand(2000, 64), torch.rand(2000, 64), torch.rand(2000), torch.rand(3, 2000, 16)
    U, V, u = torch.rand(200, 16), torch.rand(100, 16), torch.rand(100)
    B = A.t().to(ns.CSR)
    C, coo, csc, dcsr, blocks, ell = B.with_values(torch.rand(B.nnz)), *map(A.to, (ns.COO(2), ns.CSC, ns.DCSR, ns.BCSR(4, 4), ns.ELL))
    return {
        "SpMM": lambda: einsum("ij,jk->ik", A, X),
        "SpMM, k = 7": lambda: einsum("ij,jk->ik", A, X[:, :7]),
        "SpMM, COO": lambda: einsum("ij,jk->ik", coo, X),
        "SpMM, CSC": lambda: einsum("ij,jk->ik", csc, X),
        "SpMM, DCSR": lambda: einsum("ij,jk->ik", dcsr, X),
        "SpMM, BCSR(4, 4)": lambda: einsum("ij,jk->ik", blocks, X),
        "SpMM, ELL": lambda: einsum("ij,jk->ik", ell, X),
        "SpMM, float64": lambda: einsum("ij,jk->ik", A.to(torch.float64), X.double()),
        "SpMM, a batch": lambda: einsum("ij,bjk->bik", A, batch),
        "SpMM of the transpose": lambda: einsum("ji,jk->ik", A, X),
        "dense x CSR": lambda: X.t().contiguous() @ A,
        "SpMV": lambda: einsum("ij,j->i", A, x),
        "SpMV, COO": lambda: einsum("ij,j->i", coo, x),
        "SpMV, CSC": lambda: einsum("ij,j->i", csc, x),
        "SpMV, min plus": lambda: einsum("ij,j->i", A, x, reduce="min_plus"),
        "SDDMM": lambda: einsum("ij,ik,jk->ij", A, X, Y),
        "scaled rows": lambda: einsum("ij,i->ij", A, x),
        "SpGEMM": lambda: einsum("ij,jk->ik", A, B),
        "SpGEMM, sorted": lambda: einsum("ij,jk->ik", A, B, format=ns.CSR),
        "SpGEMM, masked": lambda: einsum("ij,jk->ik", A, B, mask=A),
        "triangles": lambda: einsum("ij,jk,ik->", A, A, A),
        "sum of two": lambda: A + B,
        "product of two": lambda: A * B,
        "sum with a product": lambda: ns.evaluate("D[i,j] = A[i,j] + B[i,j] * C[i,j]", A=A, B=B, C=C),
        "row sums": lambda: ns.sum(A, 1),
        "row maxima": lambda: ns.amax(A, 1),
        "trace": lambda: einsum("ii->", A),
        "MTTKRP": lambda: einsum("ijk,jr,kr->ir", T, U, V),
        "TTM": lambda: einsum("ijk,kr->ijr", T, V, format="ssd"),
        "TTV": lambda: einsum("ijk,k->ij", T, u, format="ss"),
    }


def main(threads: int) -> None:
    """Call each kernel once and print the seconds."""
    torch.set_num_threads(threads)
    calls, seconds = kernels(), {}
    M = uniform(2000, 2000, 20)
    einsum("ij,kj->ki", M, torch.rand(20, 2000))  # starts Numba, its threads, and LLVM
    for name, call in calls.items():
        start = time.perf_counter()
        call()
        seconds[name] = time.perf_counter() - start
    print(json.dumps(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]))
