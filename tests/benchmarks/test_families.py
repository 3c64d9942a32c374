"""Peers of ``benchmarks.families`` compute what we compute, and the table counts ties and bars as it says."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import numscorch as ns
from benchmarks.families import comparisons, measurement
from benchmarks.families.comparisons import Choice, Family, largest_values, spaced, stored_values
from benchmarks.families.measurement import Measured, measured, row
from benchmarks.peers.hand import HAND, Hand
from benchmarks.peers.installed import LIBRARIES
from benchmarks.peers.library import Library, Tensor, functions_of
from benchmarks.peers.native import MissingError, compiled
from numscorch.measuring.comparison import check

ROOT = Path(comparisons.__file__).parents[2]


@pytest.fixture(params=[*((library, 2) for library in LIBRARIES), (Hand, 1)], ids=lambda pair: f"{pair[0].name}, {pair[1]}", scope="module")
def library(request: pytest.FixtureRequest) -> Library:
    library, threads = request.param
    try:
        return library(threads)
    except (MissingError, ImportError) as why:
        pytest.skip(str(why))


def random_matrix(rows: int, columns: int, seed: int = 0, density: float = 0.2) -> Any:
    """A CSR matrix with int32 indices, empty rows and a stored zero."""
    generator = np.random.default_rng(seed)
    dense = generator.standard_normal((rows, columns)) * (generator.random((rows, columns)) < density)
    dense[::4] = 0
    matrix = sparse.csr_array(dense.astype(np.float32))
    matrix.data[:1] = 0
    return matrix


def dense(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def assert_agree(library: Library, operation: str, expected: Any, *operands: Any) -> None:
    for name, function in functions_of([library], operation, *operands).items():
        function()
        result = stored_values(function()) if operation in ("sddmm", "softmax") else function()
        check(expected, result, name)


@pytest.mark.parametrize("shape", [(30, 17), (2, 40), (25, 25)], ids=str)
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_products_with_dense_operands(library: Library, shape: tuple[int, int], format: str) -> None:
    A = random_matrix(*shape, density=0.5)
    stored = A.asformat(format)
    x = dense(shape[1])
    assert_agree(library, "spmv", A @ x, stored, x)
    for k in (1, 8, 20, 70) if format != "coo" else ():
        B = dense(shape[1], k)
        assert_agree(library, "spmm", A @ B, stored, B)


@pytest.mark.parametrize("batch", [1, 3, 8, 40])
def test_layers(library: Library, batch: int) -> None:
    W, x = random_matrix(30, 17), dense(batch, 17)
    assert_agree(library, "linear", np.ascontiguousarray((W @ x.T).T), W, x)


@pytest.mark.parametrize("k", [16, 64, 5])
def test_sampled_products(library: Library, k: int) -> None:
    S = random_matrix(30, 17)
    S.data[:] = 1
    X, Y = dense(30, k), dense(17, k)
    rows, columns = S.nonzero()
    assert_agree(library, "sddmm", (X @ Y.T)[rows, columns], S, X, Y)


@pytest.mark.parametrize("shape", [(30, 17), (2, 40), (25, 25)], ids=str)
def test_sparse_results(library: Library, shape: tuple[int, int]) -> None:
    A, B = random_matrix(*shape, density=0.4), random_matrix(*shape, seed=2)
    assert_agree(library, "add", A + B, A, B)
    assert_agree(library, "multiply", A.multiply(B), A, B)
    for is_sorted in (False, True):
        assert_agree(library, "spgemm", A @ A.T, A, A.T.tocsr(), is_sorted)


def test_reductions_of_rows(library: Library) -> None:
    A = random_matrix(30, 17)
    assert_agree(library, "row_sums", np.asarray(A.sum(1)), A)
    rows = [torch.from_numpy(A.data[start:end]).softmax(0) for start, end in zip(A.indptr[:-1], A.indptr[1:], strict=True)]
    assert_agree(library, "softmax", torch.cat(rows), A)


def test_triangles(library: Library) -> None:
    lower = sparse.tril(random_matrix(40, 40, density=0.4), -1, format="csr")
    lower.data[:] = 1
    assert_agree(library, "triangles", (lower @ lower).multiply(lower).sum(), lower)


@pytest.mark.parametrize("order", [3, 4, 5])
def test_mttkrp(library: Library, order: int) -> None:
    shape, letters = (7, 6, 5, 4, 3)[:order], "ijklm"[:order]
    full = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * (torch.arange(7).reshape(7, *[1] * (order - 1)) % 3 > 0)
    full[torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.7] = 0
    A = ns.from_torch(full, ns.CSF(order))
    for mode in range(order):
        factors = {other: torch.from_numpy(dense(shape[other], 16)) for other in range(order) if other != mode}
        expression = f"{','.join([letters, *(f'{letters[other]}r' for other in factors)])}->{letters[mode]}r"
        assert_agree(library, "mttkrp", torch.einsum(expression, full, *factors.values()), Tensor(A, mode, factors))


def test_largest_entries_of_rows(library: Library) -> None:
    A = abs(random_matrix(30, 40))
    expected = -np.sort(-(A @ A.T).toarray(), axis=1)[:, : comparisons.TOP]
    for function in functions_of([library], "topn", A, A.T.tocsr(), comparisons.TOP).values():
        check(expected, largest_values(function()))


# The last rows differ in their numbers only.
@pytest.mark.parametrize("family", comparisons.FAMILIES[:-5], ids=lambda family: family.name)
def test_each_family_has_a_case_whose_peers_agree(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [comparisons.Matrix(name, comparisons.matrix(name).tensor) for name in ("uniform-small",)]
    monkeypatch.setattr(comparisons, "_large", lambda: small)
    monkeypatch.setattr(comparisons, "SHAPES", ((64, 48),))
    monkeypatch.setattr(comparisons, "_tensors", lambda: [comparisons.Case("small", small_tensor(order)) for order in (3, 4, 5)])
    libraries = [library(1) for library in LIBRARIES[:2]]
    comparison = next(family.cases(Choice(libraries)), None)
    assert comparison is not None or family.name == "triangles"
    for name, peer in comparison.peers.items() if comparison is not None else ():
        check(comparison.read(comparison.ours()), comparison.read(peer()), name)


def small_tensor(order: int) -> ns.SparseTensor:
    generator = torch.Generator().manual_seed(3)
    shape = (6, 5, 4, 3, 3)[:order]
    return ns.from_torch(torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.2), ns.CSF(order))


CASES = [
    Measured("a", {"SciPy": 2.0, "torch": 4.0, HAND: 0.9}, noise=1.2),
    Measured("b", {"SciPy": 8.0, HAND: 1.6}, noise=0.95),
    Measured("c", {"SciPy": 0.7}, noise=1.01),
]


def test_a_row_takes_the_best_library_and_leaves_out_ties() -> None:
    name, count, library, hand, worst, ties, bars, verdict = row(Family("family", lambda _: iter(()), 2.0, 1.1, 0.8), CASES)
    assert (name, count, library, hand) == ("family", "3", "2.24", "1.20")  # (2 * 8 * 0.7) ** (1 / 3), (0.9 * 1.6) ** (1 / 2)
    assert (worst, ties) == ("0.70 c, SciPy", "1")  # 0.9 of hand is within the noise of a
    assert (bars, verdict) == ("2; 1.1; 0.8", "no: worst")


def test_a_row_without_bars_is_met() -> None:
    assert row(Family("family", lambda _: iter(()), 2.0), CASES[:1])[-2:] == ("2; -; -", "yes")


def test_a_peer_with_another_result_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = comparisons.Comparison("case", lambda: torch.ones(3), {"same": lambda: np.ones(3), "other": lambda: np.zeros(3)})
    assert list(measured("family", comparison, threads=1, seconds=0.001).ratios) == ["same"]
    assert "family, case: other is left out: differs from other by up to 1" in capsys.readouterr().err


def test_slow_peers_take_no_turns() -> None:
    peers = {"fast": lambda: None, "slow": lambda: time.sleep(0.02), HAND: lambda: time.sleep(0.02)}
    assert list(measurement.racing(peers)) == ["fast", HAND] and not measurement.racing({})


def test_matrices_are_spaced_and_large() -> None:
    assert spaced(range(10), 4) == [0, 3, 6, 9] and spaced(range(3), None) == [0, 1, 2] and spaced(range(9), 1) == [0]
    chosen = list(Choice([], 3).matrices())
    assert len(chosen) == 3 and chosen[0].nnz >= 10_000 and chosen == sorted(chosen, key=lambda case: case.nnz)


def test_a_file_that_does_not_compile_is_missing(tmp_path: Path) -> None:
    (tmp_path / "absent.cpp").write_text("#include <a_header_that_is_absent>\n")
    with pytest.raises(MissingError, match=r"a_header_that_is_absent|not installed"):
        compiled(tmp_path / "absent.cpp")


@pytest.mark.process
def test_the_command_prints_the_table() -> None:
    command = [sys.executable, "-m", "benchmarks.families", "row sums", "--cases", "1", "--seconds", "0.01"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout.splitlines()[0].split("|")[1:4] == [" family   ", " cases ", " over the best library "]
    assert "| row sums | 1 " in printed.stdout and "1 thread. Libraries: SciPy" in printed.stdout


def test_notes_of_libraries_follow_the_table() -> None:
    class Noted(Library):
        name = "noted"
        note = "noted computes in float16"

    lines = list(measurement.remarks([Noted(2)], {"other": "not installed"}, threads=2))
    assert lines == ["2 threads. Libraries: noted.", "noted computes in float16.", "Missing: other (not installed)."]
