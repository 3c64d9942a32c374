"""Build a matrix with more entries than int32 counts, multiply it, and sum its rows: ``python -m benchmarks.long_positions [--entries E]``.

Values are int8, columns int32 and positions int64, so 2.2 billion entries take 11 GB. Products and sums are int8 as well: torch's
default sum in int64 would copy the values. Sampled rows are compared with sums of their entries.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence

import torch

import numscorch as ns

PER_ROW, COLUMNS, CHUNK, SAMPLED = 100, 1_000_000, 100_000, 9973


def parts(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row starts, columns and values of a matrix with ``PER_ROW`` entries per row, made in chunks of rows."""
    pos = torch.arange(rows + 1) * PER_ROW
    crd = torch.empty(rows * PER_ROW, dtype=torch.int32)
    values = torch.empty(rows * PER_ROW, dtype=torch.int8)
    generator, step = torch.Generator().manual_seed(0), COLUMNS // PER_ROW
    for first in range(0, rows, CHUNK):
        size = min(CHUNK, rows - first), PER_ROW
        place = slice(first * PER_ROW, (first + size[0]) * PER_ROW)
        offsets = torch.randint(step, size, generator=generator, dtype=torch.int32)
        crd[place] = (torch.arange(0, COLUMNS, step, dtype=torch.int32) + offsets).flatten()
        values[place] = torch.randint(-1, 2, (size[0] * PER_ROW,), generator=generator, dtype=torch.int8)
    return pos, crd, values


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the times, the largest resident memory, and whether sampled rows agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=float, default=2.2e9, help="(default: %(default).3g)")
    rows = int(parser.parse_args(arguments).entries) // PER_ROW
    pos, crd, values = parts(rows)
    started = time.perf_counter()
    A = ns.from_csr(pos, crd, values, (rows, COLUMNS), assume_sorted=True)
    print(f"{A}\nbuilt and validated in {time.perf_counter() - started:.1f} s")
    x = torch.randint(-1, 2, (COLUMNS,), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    sampled = torch.arange(0, rows, SAMPLED)
    entries = sampled[:, None] * PER_ROW + torch.arange(PER_ROW)
    work: dict[str, tuple[Callable[[], torch.Tensor], torch.Tensor]] = {
        "product with a vector": (lambda: A @ x, values[entries].long() * x[crd[entries].long()].long()),
        "sum of each row": (lambda: A.sum(1, dtype=torch.int8), values[entries].long()),
    }
    for name, (compute, terms) in work.items():
        compute()  # compiles
        started = time.perf_counter()
        result = compute()
        seconds = time.perf_counter() - started
        print(f"{name}: {seconds:.2f} s, sampled rows {'equal' if torch.equal(result[sampled].long(), terms.sum(1)) else 'DIFFER'}")
    print(f"largest resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


if __name__ == "__main__":
    main()
