"""sparsify with and without kernels, of dense and sparse tensors, with and without gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_tensors import drawn

import numscorch as ns
from numscorch.convert import conversions
from numscorch.schedule import tuning
from numscorch.sparsify import (
    block_magnitude,
    keep_all,
    magnitude,
    n_m,
    random,
    register_sparsifier,
    report,
    same_pattern,
    sparsify,
    threshold,
    topk,
)
from numscorch.tensors.validate import validate

W = drawn(9, 14)
W[2] = 0.0
FORMATS: list[Any] = ["CSR", "CSC", ns.COO(2), ns.BCSR(2, 4), ns.NM(3, 4), ns.ELL, "dd", "DCSR"]


@pytest.fixture(params=[False, True], ids=["packed", "compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether kernels read small tensors too."""
    if request.param:
        monkeypatch.setattr(tuning, "COMPILE_VALUES", 1)
        monkeypatch.setattr(conversions, "_converted_before", {})
    return bool(request.param)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_kept_zeros_are_stored(format: Any) -> None:
    mask = topk(5)(W)
    result = sparsify(W, lambda t: mask, format)
    validate(result.pattern)
    assert torch.equal(result.to_dense(), torch.where(mask, W, 0))
    if format in ("CSR", "CSC"):
        assert result.nnz == 45
        assert torch.equal(sparsify(W, same_pattern(result)).values, result.values)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_data_types_are_kept(dtype: torch.dtype) -> None:
    full = (W * 3).to(dtype)
    mask = W.abs() > 0.7
    result = sparsify(full, lambda t: mask)
    assert result.dtype == dtype
    assert torch.equal(result.values, full[mask])


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("format", ["CSR", "CSC", ns.BCSR(2, 4)], ids=str)
def test_thresholds_are_exact(dtype: torch.dtype, format: Any) -> None:
    full = W.to(dtype).clone()
    full[0, :6] = torch.tensor([0.3, -0.3, 0.0, -0.0, torch.inf, -torch.inf])
    full[1, 0] = torch.tensor(0.3, dtype=dtype).float().nextafter(torch.tensor(1.0)).to(dtype)
    for t in (0.3, 0.0, 100.0):
        result = sparsify(full, threshold(t), format)
        assert torch.equal(result.to_dense(), torch.where(threshold(t)(full), full, 0))
        if format == "CSR":
            assert result.nnz == int(threshold(t)(full).sum())


def test_a_threshold_computes_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "COMPILE_VALUES", 1)
    monkeypatch.setattr(threshold, "__call__", lambda *given: pytest.fail("a mask was made"))
    assert sparsify(W, threshold(0.5)).nnz == int((W.abs() > 0.5).sum())


@pytest.mark.usefixtures("compiled")
def test_thresholds_refuse_nan() -> None:
    broken = W.clone()
    broken[3, 4] = torch.nan
    with pytest.raises(ns.OperandError, match=r"threshold\(0.5\) of a tensor with NaN at \(3, 4\)"):
        sparsify(broken, threshold(0.5))


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("full", [W.t(), W[::2, 1:9], W[:, :1].expand(9, 5), W[:, 3], W[:0], W[:, :0]], ids=lambda t: str(t.stride()))
def test_views(full: torch.Tensor) -> None:
    check_sparsifiers(full)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3, 4), (2, 0, 4), (2, 1, 3, 2)])
def test_other_numbers_of_dimensions(shape: tuple[int, ...]) -> None:
    check_sparsifiers(drawn(*shape))


def check_sparsifiers(full: torch.Tensor) -> None:
    """Compare results with masks for sparsifiers that take any shape."""
    for sparsifier in (magnitude(0.5), threshold(0.5), keep_all(), random(0.5, seed=0)):
        result = sparsify(full, sparsifier)
        assert torch.equal(result.to_dense(), torch.where(sparsifier(full), full, 0))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("sparsifier", [magnitude(0.5), threshold(0.5), n_m(2, 4), block_magnitude(2, 4, 0.5)], ids=repr)
def test_gradients_reach_kept_entries_only(sparsifier: Any) -> None:
    full = W.clone().requires_grad_()
    result = sparsify(full, sparsifier)
    (result @ torch.ones(14)).sum().backward()
    assert torch.equal(full.grad, sparsifier(W).float())
    dual = torch.autograd.forward_ad
    with dual.dual_level():
        tangent = dual.unpack_dual(sparsify(dual.make_dual(W, W * 2), sparsifier).values).tangent
    torch.testing.assert_close(tangent, 2 * result.values.detach())


def test_the_result_copies_its_values_and_is_in_the_ledger() -> None:
    full = W.clone()
    with ns.ledger() as led:
        result = sparsify(full, keep_all())
    assert [(entry.kind, entry.what) for entry in led] == [("conversion", "a strided tensor to CSR (9, 14)")]
    full.zero_()
    assert torch.equal(result.to_dense(), W)
    for other in ("ijk", ns.COO(3)):
        with pytest.raises(ns.FormatError):
            sparsify(W, keep_all(), other)
    with pytest.raises(ns.FormatError, match=r"holds 2 coordinates for each position above it"):
        sparsify(W, keep_all(), ns.NM(2, 4))


SOURCES: list[Any] = ["CSR", "CSC", ns.COO(2), ns.BCSR(2, 4), ns.NM(3, 4), "(i, j) -> (i: dense, j: bitmap)", "dd"]


@pytest.mark.parametrize("format", SOURCES, ids=str)
@pytest.mark.parametrize("sparsifier", [magnitude(0.8), threshold(0.8), topk(2), n_m(1, 4), random(0.5, seed=0)], ids=repr)
def test_sparsifying_a_sparse_tensor_selects_among_stored_entries(sparsifier: Any, format: Any) -> None:
    A = ns.from_torch(torch.where(n_m(3, 4)(W), W, 0), format)
    with ns.ledger() as led:
        result = sparsify(A, sparsifier)
    validate(result.pattern)
    assert torch.equal(result.to_dense(), torch.where(sparsifier(A.to_dense()), A.to_dense(), 0))
    expected = ns.NM(1, 4) if sparsifier == n_m(1, 4) else A.format
    assert result.format.parts == expected.parts
    assert bool(led.of("densification")) == (sparsifier in (topk(2), n_m(1, 4)) and format != "dd")


EQUAL = torch.tensor([[1.0, -2, 1, 2], [2, 1, -2, 1], [0, 1, 1, 2]])
HASHED = "(i, j) -> (i: dense, j: hash)"
UNORDERED = "(i, j) -> (i: dense, j: compressed(ordered=False))"


@pytest.mark.parametrize("format", ["CSR", "CSC", "DCSR", "DCSC", ns.COO(2), "BCSR(2, 3)", "DIA", "ELL", "dd", HASHED, UNORDERED], ids=str)
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0])
def test_the_first_of_equal_entries_are_dropped_in_any_storage_order(share: float, format: Any) -> None:
    result = sparsify(ns.from_torch(EQUAL, format), magnitude(share))
    assert torch.equal(result.to_dense(), torch.where(magnitude(share)(EQUAL), EQUAL, 0))


def test_the_first_of_equal_entries_are_dropped_in_any_rank() -> None:
    cube = EQUAL.reshape(2, 3, 2)
    for format in (ns.COO(3), ns.CSF(3), ns.Format("sss", (2, 0, 1)), ns.Format("dss", (1, 2, 0))):
        result = sparsify(ns.from_torch(cube, format), magnitude(0.6))
        assert torch.equal(result.to_dense(), torch.where(magnitude(0.6)(cube), cube, 0))
    one = ns.from_torch(torch.tensor(3.0), ns.Format(""))
    assert sparsify(one, magnitude(1.0)).to_dense() == 0


def test_shares_of_a_sparse_tensor_count_all_entries() -> None:
    A = sparsify(W, magnitude(0.5))
    assert sparsify(A, magnitude(0.5)).nnz == A.nnz
    assert sparsify(A, magnitude(0.3)).nnz == A.nnz
    assert torch.equal(sparsify(A, magnitude(0.9)).to_dense(), sparsify(W, magnitude(0.9)).to_dense())
    assert sparsify(A, magnitude(1.0)).nnz == 0
    with ns.strict(), pytest.raises(ns.UnsupportedError, match="sparsify with topk"):
        sparsify(A, topk(2))


def test_same_pattern_allocates_no_memory_of_the_whole_shape() -> None:
    at = torch.tensor([[0, 5, 999_999], [7, 1, 999_999]])
    A = ns.from_coo(at, [1.0, 2.0, 3.0], (1_000_000, 1_000_000), ns.COO(2))
    ref = ns.from_coo(at[:, [0, 2]], [0.0, 0.0], A.shape, ns.COO(2))
    assert sparsify(A, same_pattern(ref)).values.tolist() == [1.0, 3.0]
    assert sparsify(A, magnitude(1 - 2e-12)).values.tolist() == [2.0, 3.0]
    assert torch.equal(sparsify(sparsify(W, magnitude(0.5)), same_pattern(W > 0)).to_dense(), torch.where(magnitude(0.5)(W), W, 0).relu())


def test_gradients_flow_through_a_sparse_tensor_and_a_parameter() -> None:
    weight = ns.nn.Parameter(sparsify(W, magnitude(0.5)))
    result = sparsify(weight, threshold(1.0))
    result.values.square().sum().backward()
    mask = weight.values.detach().abs() > 1.0
    torch.testing.assert_close(weight.values.grad, torch.where(mask, 2 * weight.values.detach(), 0))


def test_a_streaming_sparsifier_of_matrices_gets_stored_values_as_a_matrix() -> None:
    @register_sparsifier(kind="streaming", name="of matrices")
    def of_matrices(t: torch.Tensor) -> torch.Tensor:
        if t.ndim != 2:
            raise ValueError("matrices")
        return t > 0

    cube = sparsify(drawn(2, 3, 4), keep_all())
    assert torch.equal(sparsify(cube, "of matrices").to_dense(), cube.to_dense().relu())


def test_reports_compare_with_unstructured_and_n_m_sparsity() -> None:
    full = drawn(64, 64)
    table = report(full, magnitude(0.75), n_m(1, 4), n_m(1, 4, rows=16), block_magnitude(16, 1, 0.75), (magnitude(0.99), "CSC"))
    total, n_m_sum = full.abs().sum(), full.abs()[n_m(1, 4)(full)].sum()
    for row, sparsifier in zip(table.rows, (magnitude(0.75), n_m(1, 4), n_m(1, 4, rows=16), block_magnitude(16, 1, 0.75)), strict=False):
        kept_sum = full.abs()[sparsifier(full)].sum()
        assert row.density == 0.25
        assert row.kept == pytest.approx(float(kept_sum / total))
        assert row.of_unstructured == pytest.approx(float(kept_sum / full.abs()[magnitude(0.75)(full)].sum()))
        assert row.of_n_m == pytest.approx(float(kept_sum / n_m_sum))
        stored = sparsify(full, sparsifier)
        assert row.bytes == stored.values.nbytes + sum(array.nbytes for level in stored.pattern.arrays for array in level)
    assert [row.format for row in table.rows] == ["CSR", "NM(1, 4)", "NM(1, 4, 16)", "BCSR(16, 1)", "CSC"]
    assert table.rows[-1].of_n_m is None
    assert report(full, ns.NM(1, 4, 16)).rows == table.rows[2:3]
    assert report(full.relu(), ns.CSR).rows[0].kept == 1.0
    lines = str(table).splitlines()
    assert lines[0] == "(64, 64), 16 KiB dense"
    assert lines[1].split() == ["layout", "format", "density", "kept", "of", "unstructured", "of", "n:m", "bytes"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_reports_of_zeros_and_of_invalid_layouts() -> None:
    (row,) = report(torch.zeros(4, 4), magnitude(0.5)).rows
    assert (row.kept, row.of_unstructured, row.of_n_m) == (1.0, 1.0, 1.0)
    assert report(torch.empty(0, 4), n_m(2, 4)).rows[0].density == 0
    assert report(torch.tensor(2.0), keep_all()).rows[0].of_n_m is None
    with pytest.raises(ns.OperandError, match=r"0\.5 is not a sparsifier: give a callable"):
        report(W, 0.5)
    with pytest.raises(ns.OperandError, match="report takes a dense tensor, not SparseTensor"):
        report(sparsify(W, keep_all()), keep_all())  # type: ignore[arg-type]
    with pytest.raises(ns.OperandError, match="with NaN"):
        report(torch.tensor([torch.nan]), keep_all())
