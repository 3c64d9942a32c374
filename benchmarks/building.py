"""Build a CSR matrix from random edges in both directions, beside torch: ``python -m benchmarks.building [--edges E] [--repeats R]``.

The default is the size of ogbn-products: 62 million edges, 124 million entries, 2.4 million nodes. Peak memory is that of the
process during the call, without what was resident before the operands were made, over the bytes of operands and result.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

import numscorch as ns

EDGES_PER_NODE = 62 / 2.4
PROCESS = Path("/proc/self")
T = TypeVar("T")


def resident(name: str) -> int:
    """Bytes of resident memory: VmRSS is the current number, VmHWM the largest since it was cleared."""
    lines = (PROCESS / "status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def random_edges(edges: int, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates (2, 2 * edges) and values of random edges in both directions."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.empty(2, 2 * edges, dtype=torch.int64)
    torch.randint(nodes, (2, edges), generator=generator, out=indices[:, :edges])
    indices[:, edges:] = indices[:, :edges].flip(0)
    return indices, torch.rand(2 * edges, generator=generator)


def timed(build: Callable[[], T]) -> tuple[float, int, T]:
    """The time in seconds, the largest resident memory in bytes, and the result."""
    (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # VmHWM starts again
    started = time.perf_counter()
    result = build()
    return time.perf_counter() - started, resident("VmHWM"), result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times, their ratio, and peak memory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--edges", type=float, default=62e6, help="(default: %(default).0f)")
    parser.add_argument("--repeats", type=int, default=3, help="of numscorch; torch runs once (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    edges = int(chosen.edges)
    nodes = int(edges / EDGES_PER_NODE)
    shape = nodes, nodes
    ns.from_coo(*random_edges(edges // 10, nodes), shape, "CSR")  # compiles the kernels
    before = resident("VmRSS")
    indices, values = random_edges(edges, nodes)
    runs = [timed(lambda: ns.from_coo(indices, values, shape, "CSR"))[:2] for _ in range(chosen.repeats)]
    seconds, peak = min(runs)
    A = ns.from_coo(indices, values, shape, "CSR").to_torch()
    result = sum(array.nbytes for array in (A.crow_indices(), A.col_indices(), A.values()))
    size = indices.nbytes + values.nbytes + result
    theirs, their_peak, B = timed(
        lambda: torch.sparse_coo_tensor(indices, values, shape, check_invariants=False).coalesce().to_sparse_csr()
    )
    print(f"{2 * edges:,} entries, {nodes:,} nodes, {torch.get_num_threads()} threads")
    print(f"numscorch  {seconds:6.2f} s  peak {(peak - before) / size:.2f} times operands and result")
    print(f"torch      {theirs:6.2f} s  peak {(their_peak - before - result) / size:.2f} times")
    same_pattern = torch.equal(A.crow_indices().long(), B.crow_indices()) and torch.equal(A.col_indices().long(), B.col_indices())
    is_equal = same_pattern and torch.allclose(A.values(), B.values())
    print(f"{theirs / seconds:.1f} times as fast, {'equal' if is_equal else 'DIFFERENT'} results")


if __name__ == "__main__":
    main()
