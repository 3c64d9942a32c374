"""Gradients of products: second derivatives with zeros, and batches of values."""

from __future__ import annotations

import torch

import numscorch as ns


def test_second_derivatives_of_products_with_zeros(interpreted: None) -> None:
    values = torch.tensor([0.0, 3.0, 0.0], dtype=torch.float64, requires_grad=True)

    def function(values: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = ns.prod(ns.from_coo([[0, 0, 0], [0, 1, 2]], values, (1, 3), ns.CSR), 1)
        return product

    dense = torch.autograd.functional.hessian(lambda v: v.prod(), values.detach())
    torch.testing.assert_close(torch.autograd.functional.hessian(lambda v: function(v).sum(), values.detach()), dense)


def test_products_of_batches_of_values(interpreted: None) -> None:
    D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -4.0]], dtype=torch.float64)
    A = ns.from_torch(D, ns.CSR)
    batch = torch.stack([A.values, 2 * A.values])
    products = torch.func.vmap(lambda values: ns.prod(A.with_values(values), 0))(batch)
    torch.testing.assert_close(products, torch.stack([D.prod(0), (2 * D).prod(0)]))
