"""A recommender that factorizes a sparse matrix of ratings

A rating is modelled as the inner product of a user vector and an item vector, plus a user bias and an item bias. The example shows how
``einsum`` with ``mask=R`` computes the predictions of stored ratings only, also in training. Run it with random ratings or with a file:

    python examples/recommender.py                        # random ratings of rank ten, with noise
    python examples/recommender.py --data ratings.csv     # lines of user, item, rating, as in MovieLens, or a .mtx file

The parameters are learned from the stored ratings with Adam (Koren, Bell, Volinsky, "Matrix Factorization Techniques for Recommender
Systems", Computer 2009). The loss depends on few entries of ``U @ V.T``. With ``mask=R``, only these entries are computed, as an SDDMM
(sampled dense-dense matrix product). The gradients are products of the sparse error matrix with V and U, so the dense matrix of users by
items is never formed.

The dense twin forms that matrix, subtracts the ratings and masks. Both models start from the same parameters and are trained on
the same ratings.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Figure, agree, options, table, timed, times_as_fast, tqdm

import numscorch as ns


def drawn(users: int, items: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and ratings in half stars, from random user and item factors; popular items have more ratings."""
    generator = np.random.default_rng(seed)
    popularity = 1 / (10 + generator.permutation(items))
    rows, columns = generator.integers(0, users, count), generator.choice(items, count, p=popularity / popularity.sum())
    places = np.unique(np.stack([rows, columns]), axis=1)
    taste, kind = generator.normal(0, 0.5, (users, 10)), generator.normal(0, 0.5, (items, 10))
    score = 3.4 + (taste[places[0]] * kind[places[1]]).sum(1) + generator.normal(0, 0.4, users)[places[0]]
    return places, np.clip(np.round(2 * (score + generator.normal(0, 0.3, len(score)))) / 2, 0.5, 5)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read indices and ratings; users and items are renumbered, and the last of repeated ratings is kept."""
    if path.suffix == ".csv":
        lines = np.genfromtxt(path, delimiter=",", usecols=(0, 1, 2))
        lines = lines[np.isfinite(lines).all(1)]  # drops the header line
        if not len(lines):
            raise SystemExit(f"{path} has no lines of user, item, rating")
        places, ratings = lines[:, :2].T, lines[:, 2]
    else:
        matrix = ns.load(path)
        places, ratings = matrix.indices().numpy(), matrix.values.numpy()
    numbered = np.stack([np.unique(row, return_inverse=True)[1] for row in places])
    once, last = np.unique(numbered[:, ::-1], axis=1, return_index=True)
    return once, ratings[::-1][last]


class Factors(torch.nn.Module):
    """The parameters of the model; ``forward`` returns two matrices U and V with predictions ``U @ V.T``."""

    def __init__(self, users: int, items: int, rank: int, mean: float):
        super().__init__()
        self.user, self.item = (torch.nn.Parameter(0.1 * torch.randn(size, rank)) for size in (users, items))
        self.generous, self.popular = (torch.nn.Parameter(torch.full((size, 1), mean / 2)) for size in (users, items))

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        ones = [torch.ones_like(bias) for bias in (self.generous, self.popular)]
        return torch.cat([self.user, self.generous, ones[0]], 1), torch.cat([self.item, ones[1], self.popular], 1)


def sparse_errors(U: torch.Tensor, V: torch.Tensor, R: ns.SparseTensor) -> torch.Tensor:
    """Prediction error of each stored rating."""
    return (ns.einsum("ik,jk->ij", U, V, mask=R) - R).values


def dense_errors(U: torch.Tensor, V: torch.Tensor, R: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Dense matrix of prediction errors, 0 at missing ratings."""
    return (U @ V.T - R) * mask


class Training:
    """Factors with their training ratings and error function, an optimizer, and the time of each step."""

    def __init__(self, factors: Factors, errors: Callable[..., torch.Tensor], *ratings: Any):
        self.factors, self.errors, self.ratings = factors, errors, ratings
        self.optimizer = torch.optim.Adam(factors.parameters(), lr=0.02)
        self.times: list[float] = []

    def step(self, count: int) -> float:
        """Take one step of Adam on all ratings; return the root mean squared error before the step."""
        self.optimizer.zero_grad()
        error = self.errors(*self.factors(), *self.ratings).square().sum() / count
        (error + 2e-5 * (self.factors.user.square().sum() + self.factors.item.square().sum())).backward()
        self.optimizer.step()
        return error.sqrt().item()

    @torch.no_grad()
    def test(self, held_out: ns.SparseTensor) -> float:
        """Root mean squared error on held-out ratings."""
        return sparse_errors(*self.factors(), held_out).square().mean().sqrt().item()


def main() -> None:
    chosen = options(__doc__, data="ratings: .csv with user, item, rating, or .mtx", rank=10, epochs=120, users=1500, ratings=80000)
    places, ratings = drawn(chosen.users, 1000, chosen.ratings, chosen.seed) if chosen.data is None else read(chosen.data)
    shape, held_out = tuple(places.max(1) + 1), np.random.default_rng(chosen.seed).random(len(ratings)) < 0.1
    R, test = (
        ns.from_coo(places[:, part], torch.from_numpy(ratings[part]).float(), shape, format=ns.CSR) for part in (~held_out, held_out)
    )
    print(R)
    ours, twin = (Factors(*shape, chosen.rank, R.values.mean().item()) for _ in range(2))
    twin.load_state_dict(ours.state_dict())
    runs = Training(ours, sparse_errors, R), Training(twin, dense_errors, R.to_dense(), R.with_values(torch.ones(R.nnz)).to_dense())
    curves = []
    for _ in tqdm(range(chosen.epochs), desc="epochs"):
        losses = [timed(run.times, run.step, R.nnz) for run in runs]
        curves.append([*losses, *(run.test(test) for run in runs)])
    report(torch.tensor(curves), runs[0].times, runs[1].times, R, chosen.out)


def report(curves: torch.Tensor, times: list[float], twin_times: list[float], R: ns.SparseTensor, path: Path) -> None:
    """Print the table and save the plot."""
    agree("errors of training", (curves[:, 0] - curves[:, 1]).abs().max().item(), 1e-3)
    agree("errors on held-out ratings", (curves[:, 2] - curves[:, 3]).abs().max().item(), 1e-3)
    table(
        ("", "numscorch", "dense", ""),
        ("error in training, stars", f"{curves[-1, 0]:.3f}", f"{curves[-1, 1]:.3f}"),
        ("error on held-out ratings", f"{curves[-1, 2]:.3f}", f"{curves[-1, 3]:.3f}"),
        ("a step", *times_as_fast(times, twin_times)),
    )
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for at, (name, style) in enumerate([("training", "C0"), ("training, dense", "C0o"), ("held out", "C1"), ("held out, dense", "C1o")]):
        axes.plot(curves[:, at], style, label=name, fillstyle="none", markevery=5)
    axes.set(xlabel="epoch", ylabel="root mean squared error, stars", title=f"{R.nnz:,} ratings, {R.density:.1%} of the matrix")
    axes.legend()
    figure.savefig(path)
    print(f"plot in {path}")


if __name__ == "__main__":
    main()
