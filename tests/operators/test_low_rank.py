"""Decompositions of low rank against torch's on dense matrices and on torch's sparse tensors, with the same random numbers."""

import pytest
import torch

import numscorch as ns

FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.BCSR(2, 3), ns.Format("ss"), ns.DIA]


def _matrix(rows: int, columns: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(rows)
    full = torch.randn(rows, columns, dtype=dtype) * (torch.rand(rows, columns) < 0.4)
    full[1] = 0
    return full


def _product(parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    U, S, V = parts
    return U * S @ V.mH


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(12, 7), (7, 12)])
def test_parts_are_those_of_torch(format: ns.Format, shape: tuple[int, int]) -> None:
    full = _matrix(*shape)
    A = ns.from_torch(full, format)
    for name, options in (("svd_lowrank", {"q": 4}), ("pca_lowrank", {}), ("pca_lowrank", {"q": 3, "center": False, "niter": 0})):
        torch.manual_seed(0)
        ours = getattr(torch, name)(A, **options)
        torch.manual_seed(0)
        expected = getattr(torch, name)(full, **options)
        assert [part.shape for part in ours] == [part.shape for part in expected]
        torch.testing.assert_close(ours[1], expected[1])
        torch.testing.assert_close(_product(ours), _product(expected))


@pytest.mark.parametrize("shape", [(1, 7), (12, 1), (7,), (12, 7)])
def test_a_mean_is_subtracted(shape: tuple[int, ...]) -> None:
    full, M = _matrix(12, 7), torch.randn(shape, dtype=torch.float64)
    ours = torch.svd_lowrank(ns.from_torch(full), q=7, M=M)
    torch.testing.assert_close(_product(ours), full - M)


def test_complex_matrices_and_single_precision() -> None:
    full = _matrix(9, 6, torch.complex128)
    torch.testing.assert_close(_product(torch.svd_lowrank(ns.from_torch(full), q=6)), full)
    U, S, V = ns.svd_lowrank(ns.from_torch(full.to(torch.complex64).mH), q=None, niter=None)
    assert U.dtype == V.dtype == torch.complex64 and S.dtype == torch.float32


def test_gradients_flow_to_the_values() -> None:
    full = _matrix(9, 6)
    A = ns.from_torch(full)
    A.values.requires_grad_()
    dense = full.clone().requires_grad_()
    torch.pca_lowrank(A, q=6)[1].sum().backward()
    torch.pca_lowrank(dense, q=6)[1].sum().backward()
    torch.testing.assert_close(A.values.grad, dense.grad[tuple(A.indices())])


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_eigenvalues_are_those_of_the_dense_matrix(format: ns.Format, largest: bool) -> None:
    full = _matrix(15, 12)
    full = full.T @ full + torch.eye(12)
    B = torch.diag(torch.arange(1.0, 13, dtype=torch.float64))
    torch.manual_seed(0)
    A = ns.from_torch(full, format)
    E, X = torch.lobpcg(A, k=2, largest=largest)
    torch.testing.assert_close(E, torch.linalg.eigvalsh(full).sort(descending=largest).values[:2])
    torch.testing.assert_close(full @ X, X * E, atol=1e-6, rtol=1e-6)
    E, X = torch.lobpcg(A, 2, ns.from_torch(B, format), largest=largest)
    torch.testing.assert_close(full @ X, B @ X * E, atol=1e-5, rtol=1e-5)


def test_errors() -> None:
    A = ns.from_torch(_matrix(12, 7))
    with pytest.raises(ns.RangeError, match="pca_lowrank with q=8 and niter=2: q is at most 7, the smaller size"):
        torch.pca_lowrank(A, q=8)
    for dtype in (torch.int64, torch.float16):
        for function in (torch.svd_lowrank, torch.pca_lowrank, torch.lobpcg):
            with pytest.raises(ns.UnsupportedError, match=r"(lowrank|lobpcg) of torch\.\w+ values: convert with \.to\(torch\.float32\)"):
                function(A.to(dtype))
    with pytest.raises(ns.SizeError, match=r"lobpcg of shape \(12, 7\): it takes symmetric matrices"):
        torch.lobpcg(A)
    A = A.T @ A
    A.values.requires_grad_()
    with pytest.raises(ValueError, match="backward does not support sparse input"):
        torch.lobpcg(A)[0].sum().backward()
