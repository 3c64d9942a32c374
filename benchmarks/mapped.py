"""Multiply a matrix twice as large as the memory limit: ``python -m benchmarks.mapped [--megabytes M]``.

A matrix is saved to an archive, the system's cache of files is dropped if that is allowed, and a process whose memory is limited by
a control group to half the size of the archive maps it and multiplies a vector. Sampled rows are compared with those of a process
without a limit. The script needs to be able to write to ``/sys/fs/cgroup``.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

import numscorch as ns

COLUMNS, ENTRIES_PER_ROW, SAMPLED = 1_000_000, 64, 997
GROUPS = {  # folders of both versions of control groups, and their files for the limit and the largest use
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    Path("/sys/fs/cgroup"): ("memory.max", "memory.peak"),
}


def vector() -> torch.Tensor:
    """The multiplied vector."""
    return torch.rand(COLUMNS, generator=torch.Generator().manual_seed(0))


def build(folder: Path, megabytes: int) -> None:
    """Save a matrix, and sampled rows of its product."""
    rows = megabytes * 10**6 // (8 * ENTRIES_PER_ROW)
    pos = torch.arange(rows + 1, dtype=torch.int32) * ENTRIES_PER_ROW
    step = COLUMNS // ENTRIES_PER_ROW
    crd = (torch.arange(ENTRIES_PER_ROW) * step + torch.arange(rows)[:, None] % step).flatten().to(torch.int32)
    A = ns.from_csr(pos, crd, torch.rand(len(crd)), (rows, COLUMNS), assume_sorted=True, check_invariants=False)
    ns.save(A, folder / "matrix.npz")
    torch.save((A @ vector())[::SAMPLED].clone(), folder / "expected.pt")


def multiply(folder: Path) -> None:
    """Map the matrix, multiply it, and print seconds, peak resident megabytes and whether sampled rows are equal."""
    A = ns.load(folder / "matrix.npz", mmap=True)
    started = time.perf_counter()
    product = A @ vector()
    seconds = time.perf_counter() - started
    is_equal = torch.equal(product[::SAMPLED], torch.load(folder / "expected.pt"))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:.2f} s, peak resident memory {resident:.0f} MB with mapped pages, sampled rows {'equal' if is_equal else 'DIFFER'}")


def limited(folder: Path, limit: int) -> int:
    """Run :func:`multiply` under a limit; the largest use of memory that the control group reports."""
    parent = next(parent for parent, names in GROUPS.items() if (parent / names[1]).exists() or (parent / "cgroup.controllers").exists())
    names, group = GROUPS[parent], parent / f"numscorch-{os.getpid()}"
    group.mkdir()
    try:
        (group / names[0]).write_text(str(limit))
        command = [sys.executable, "-m", "benchmarks.mapped", "--multiply", str(folder)]
        subprocess.run(command, check=True, preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
        return int((group / names[1]).read_text())
    finally:
        group.rmdir()


def compare(folder: Path, megabytes: int) -> None:
    """Build a matrix, multiply it under a limit, and print what was used."""
    subprocess.run([sys.executable, "-m", "benchmarks.mapped", "--megabytes", str(megabytes), "--build", str(folder)], check=True)
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("3")
    size = (folder / "matrix.npz").stat().st_size
    peak = limited(folder, size // 2)
    print(f"matrix of {size / 1e6:.0f} MB, limit {size / 2e6:.0f} MB, largest use {peak / 1e6:.0f} MB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the matrix in one process, and multiply it in another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="of the matrix (default: %(default)s)")
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--multiply", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.build is not None:
        build(chosen.build, chosen.megabytes)
    elif chosen.multiply is not None:
        multiply(chosen.multiply)
    else:
        with tempfile.TemporaryDirectory() as folder:
            compare(Path(folder), chosen.megabytes)


if __name__ == "__main__":
    main()
