"""A dense weight as a product of two sparse ones, W = A @ B, both of which are trained on.

Boža, Macko, "Two sparse matrices are better than one", 2024; here factors of a singular value decomposition are pruned bit by bit.
``x @ B.t() @ A.t()`` is one einsum, done in the order that takes least; its twin has masks. ``--data mnist`` takes MNIST's files.
"""

from copy import deepcopy

import torch
from common import agree, tqdm
from torch import nn
from training import compare, dense_first, difference, train

import numscorch as ns
from numscorch.sparsify import magnitude


class Double(nn.Module):
    """x @ (A @ B).t() + bias, for factors that are sparse, or dense with masks."""

    def __init__(self, A: torch.Tensor, B: torch.Tensor, bias: torch.Tensor, sparse: bool):
        super().__init__()
        self.A, self.B = (ns.nn.Parameter(ns.from_torch(own, ns.CSR) if sparse else own.clone()) for own in (A, B))
        self.masks, self.bias = None if sparse else (A != 0, B != 0), deepcopy(bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.masks is None:
            return ns.einsum("bi,ri,or->bo", x, self.B, self.A) + self.bias
        return x @ (self.masks[1] * self.B).t() @ (self.masks[0] * self.A).t() + self.bias


def factors(W: torch.Tensor, share: float, steps: int) -> list[torch.Tensor]:
    """A and B, in which this share of the entries is 0."""
    U, values, V = torch.linalg.svd(W, full_matrices=False)
    found = [(U * values.sqrt()).requires_grad_(), (values.sqrt().diag() @ V).requires_grad_()]
    optimizer = torch.optim.Adam(found, lr=0.003)
    for at in tqdm(range(steps), desc="factors", unit=" steps"):
        optimizer.zero_grad()
        (found[0] @ found[1] - W).square().sum().backward()
        optimizer.step()
        for own in found:
            own.data *= magnitude(share * min(2 * (at + 1) / steps, 1))(own)
    return found


def main() -> None:
    chosen, data, dense, before = dense_first(__doc__, steps=200, percent=90)
    W = dense[0].weight.detach()
    A, B = (own.detach() for own in factors(W, chosen.percent / 100, chosen.steps))
    share = int(A.count_nonzero() + B.count_nonzero()) / W.numel()
    lost, alone = ((W - made).norm() / W.norm() for made in (A @ B, W * magnitude(max(0, 1 - share))(W)))
    print(f"{share:.1%} of the weights: {lost:.1%} of the first layer is lost, and {alone:.1%} by a single sparse matrix")
    ours, twin = (nn.Sequential(Double(A, B, dense[0].bias, sparse), *deepcopy(dense[1:])) for sparse in (True, False))
    agree("scores of the factors", difference(ours, twin, data), 1e-3)
    compare(train({"A @ B": ours, "with masks": twin}, data, chosen.epochs, "A @ B"), before, chosen.out)


if __name__ == "__main__":
    main()
