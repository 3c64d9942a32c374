"""A weight as a product of two sparse matrices

Factors of a singular value decomposition of a weight are gradually pruned, then fine-tuned: Boža, Macko, "Two sparse matrices are better
than one", 2024. The example shows how one einsum computes ``x @ B.t() @ A.t()`` in the cheapest order; the twin uses masks. Run it with
``python examples/double_sparse.py``; ``--data mnist`` reads a folder with the MNIST files.
"""

from copy import deepcopy

import torch
from common import agree, tqdm
from torch import nn
from training import compare, dense_first, difference, train

import numscorch as ns
from numscorch.sparsify import magnitude


class Double(nn.Module):
    """x @ (A @ B).t() + bias, with sparse factors or with masked dense factors."""

    def __init__(self, A: torch.Tensor, B: torch.Tensor, bias: torch.Tensor, sparse: bool):
        super().__init__()
        self.A, self.B = (ns.nn.Parameter(ns.from_torch(factor, ns.CSR) if sparse else factor.clone()) for factor in (A, B))
        self.masks, self.bias = None if sparse else (A != 0, B != 0), deepcopy(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.masks is None:
            return ns.einsum("bi,ri,or->bo", x, self.B, self.A) + self.bias
        return x @ (self.masks[1] * self.B).t() @ (self.masks[0] * self.A).t() + self.bias


def factors(W: torch.Tensor, share: float, steps: int) -> list[torch.Tensor]:
    """Factors A and B of W, with a share of their entries set to 0."""
    U, values, V = torch.linalg.svd(W, full_matrices=False)
    pair = [(U * values.sqrt()).requires_grad_(), (values.sqrt().diag() @ V).requires_grad_()]
    optimizer = torch.optim.Adam(pair, lr=0.003)
    for at in tqdm(range(steps), desc="factors", unit=" steps"):
        optimizer.zero_grad()
        (pair[0] @ pair[1] - W).square().sum().backward()
        optimizer.step()
        for factor in pair:
            factor.data *= magnitude(share * min(2 * (at + 1) / steps, 1))(factor)
    return [factor.detach() for factor in pair]


def main() -> None:
    chosen, data, dense, before = dense_first(__doc__, steps=200, percent=90)
    A, B = factors(W := dense[0].weight.detach(), chosen.percent / 100, chosen.steps)
    share = int(A.count_nonzero() + B.count_nonzero()) / W.numel()
    lost, alone = ((W - approximation).norm() / W.norm() for approximation in (A @ B, W * magnitude(max(0, 1 - share))(W)))
    print(f"{share:.1%} of the weights: {lost:.1%} of the first layer is lost, and {alone:.1%} by a single sparse matrix")
    ours, twin = (nn.Sequential(Double(A, B, dense[0].bias, sparse), *deepcopy(dense[1:])) for sparse in (True, False))
    agree("scores of the factors", difference(ours, twin, data), 1e-3)
    compare(train({"A @ B": ours, "with masks": twin}, data, chosen.epochs, "A @ B"), before, chosen.out)


if __name__ == "__main__":
    main()
