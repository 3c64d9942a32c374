# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # A recommender by tensor factorization
#
# At the end of this tutorial, you have a recommender that predicts how a user rates an item in a given month. It is
# trained in two ways: by gradient descent and by alternating least squares. You need numscorch, torch and matplotlib, and
# you should have trained a model with PyTorch before.

# %%
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch

import numscorch as ns

generator = torch.manual_seed(2)

# %% [markdown]
# ## Ratings from a known model
#
# Generated ratings have an advantage over real ones: the best possible error is known. A user has three tastes, an item
# has three properties that match them, and each taste is strongest in another season. The rating of user `i` for item `j`
# in month `k` is `3 + sum_r A[i,r] * B[j,r] * C[k,r]` stars, plus noise with a standard deviation of 0.2. No model can
# predict that noise. Ratings are not rounded to whole stars.

# %%
USERS, ITEMS, MONTHS, RANK, NOISE = 800, 300, 12, 3, 0.2
phase = torch.arange(MONTHS)[:, None] / MONTHS
true_A = 0.3 * torch.randn(USERS, RANK)
true_B = torch.randn(ITEMS, RANK)
true_C = 1 + 0.8 * torch.cos(2 * torch.pi * (phase - torch.arange(RANK) / RANK))

# %% [markdown]
# The whole tensor has 2.9 million entries, but only about 30,000 ratings exist. `from_coo` takes their coordinates, one
# row for each dimension. `unique` drops repeated coordinates first, because `from_coo` would add their values.

# %%
places = torch.stack([torch.randint(size, (30_000,)) for size in (USERS, ITEMS, MONTHS)]).unique(dim=1)
i, j, k = places
ratings = 3 + (true_A[i] * true_B[j] * true_C[k]).sum(1) + NOISE * torch.randn(len(i))

# %% [markdown]
# One rating in ten is held out for validation. `CSF(3)` stores a tensor of order 3 as a tree: users, then the items of
# each user, then the months of each item. The tree stores each user once, not once for each rating.

# %%
held_out = torch.rand(len(i)) < 0.1
shape = (USERS, ITEMS, MONTHS)
mean = ratings[~held_out].mean()
train = ns.from_coo(places[:, ~held_out], ratings[~held_out] - mean, shape, format=ns.CSF(3))
test = ns.from_coo(places[:, held_out], ratings[held_out] - mean, shape, format=ns.CSF(3))
print(train)
print(test)

# %% [markdown]
# ## Predict observed ratings only
#
# The prediction of every rating would be a dense tensor, `einsum("ir,jr,kr->ijk", A, B, C)`. Multiplying it by a tensor
# of ones at the observed ratings makes it a *sampled* product: the kernel loops over the stored entries and computes
# nothing else. The result has the pattern of that tensor, so its values line up with the ratings.

# %%
def predict(at: ns.SparseTensor, factors: Sequence[torch.Tensor]) -> ns.SparseTensor:
    """The predictions at the entries of a tensor."""
    ones = at.with_values(torch.ones(at.nnz))
    return ns.einsum("ijk,ir,jr,kr->ijk", ones, *factors)


def rmse(at: ns.SparseTensor, factors: Sequence[torch.Tensor]) -> float:
    """Root mean squared error of the predictions, in stars."""
    with torch.no_grad():
        return (predict(at, factors).values - at.values).square().mean().sqrt().item()


# %% [markdown]
# In PyTorch, the same predictions need three gathered matrices with a row for each rating. Both agree:

# %%
start = [0.3 * torch.randn(USERS, RANK), 0.5 * torch.randn(ITEMS, RANK), 1 + 0.1 * torch.randn(MONTHS, RANK)]
A, B, C = start
i, j, k = train.indices()
gathered = (A[i] * B[j] * C[k]).sum(1)
print(predict(train, start))
print("same predictions:", torch.allclose(predict(train, start).values, gathered, atol=1e-5))

# %% [markdown]
# The expression does not depend on the storage format. For a list of coordinates instead of a tree, numscorch compiles
# another kernel:

# %%
as_list = train.to(ns.COO(3))
print(as_list)
print("same predictions:", torch.allclose(predict(as_list, start).values, gathered, atol=1e-5))

# %% [markdown]
# ## Train by gradient descent
#
# The factors are ordinary parameters, so any optimizer trains them. The loss is the mean squared error of the observed
# ratings, plus a penalty that keeps the factors of users with few ratings small.

# %%
factors = [torch.nn.Parameter(factor.clone()) for factor in start]
optimizer = torch.optim.Adam(factors, lr=0.05)
by_descent = []
for _epoch in range(100):
    optimizer.zero_grad()
    error = (predict(train, factors) - train).values.square().mean()
    penalty = sum(factor.square().mean() for factor in factors[:2])
    (error + 0.03 * penalty).backward()
    optimizer.step()
    by_descent.append(rmse(test, factors))
print(f"validation: {by_descent[0]:.3f} stars after 1 epoch, {by_descent[-1]:.3f} after {len(by_descent)}")

# %% [markdown]
# ## What the gradient computes
#
# The gradient of the loss with respect to `A` multiplies the error tensor by the other two factors. In the literature,
# this product is called MTTKRP (matricized tensor times Khatri-Rao product). As an einsum, it is one line. Its result has
# one row per user, and its kernel visits the ratings only.

# %%
A, B, C = [factor.clone().requires_grad_() for factor in start]
errors = predict(train, [A, B, C]) - train
errors.values.square().sum().backward()
mttkrp = ns.einsum("ijk,jr,kr->ir", 2 * errors.detach(), B.detach(), C.detach())
print("gradient is an MTTKRP:", torch.allclose(A.grad, mttkrp, atol=1e-4))

# %% [markdown]
# ## Alternating least squares
#
# If two factors are fixed, the best third one solves a linear least squares problem. Each user then has a small system of
# equations. The right side is an MTTKRP of the ratings. The matrix of user `i` is the sum of `h @ h.T` over its ratings,
# where `h = B[j] * C[k]`. The matrices of all users are one einsum, too.

# %%
def solve(mode: int, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The best factor of one mode (0: users, 1: items, 2: months) for fixed other factors."""
    ones = train.with_values(torch.ones(train.nnz))
    row = "ijk"[mode]
    (a, one), (b, other) = [("ijk"[m], factors[m]) for m in range(3) if m != mode]
    right = ns.einsum(f"ijk,{a}r,{b}r->{row}r", train, one, other)
    matrices = ns.einsum(f"ijk,{a}r,{b}r,{a}s,{b}s->{row}rs", ones, one, other, one, other)
    return torch.linalg.solve(matrices + torch.eye(RANK), right)


# %% [markdown]
# The identity matrix in `solve` has the role of the penalty. It also keeps the system of a user without ratings solvable.
# A sweep solves for users, items and months in turn:

# %%
als = [factor.clone() for factor in start]
by_als = []
for _sweep in range(12):
    for mode in range(3):
        als[mode] = solve(mode, als)
    by_als.append(rmse(test, als))
print(f"validation: {by_als[0]:.3f} stars after 1 sweep, {by_als[-1]:.3f} after {len(by_als)}")

# %% [markdown]
# One user is enough to check the systems: `torch.linalg.lstsq` solves the same problem for the ratings of user 0. The
# identity becomes three more equations, which ask for a factor of zero.

# %%
mine = train[0]
j, k = mine.indices()
H = torch.cat([als[1][j] * als[2][k], torch.eye(RANK)])
y = torch.cat([mine.values, torch.zeros(RANK)])[:, None]
expected = torch.linalg.lstsq(H, y).solution[:, 0]
print("same factor of user 0:", torch.allclose(solve(0, als)[0], expected, atol=1e-4))

# %% [markdown]
# Both methods approach the standard deviation of the noise. The right plot shows the month factors, each divided by its
# mean. They follow the three seasons from which the ratings were generated.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
left.plot(range(1, 101), by_descent, label="gradient descent")
left.plot(range(1, 13), by_als, ".-", label="alternating least squares")
left.axhline(NOISE, color="gray", linestyle=":", label="noise")
left.set(xlabel="epoch or sweep", ylabel="validation RMSE, stars")
left.legend(loc="upper right")
right.plot(range(1, 13), true_C, "k:")
right.plot(range(1, 13), als[2] / als[2].mean(0))
right.set(xlabel="month", ylabel="factor", title="found (lines) and true (dots)")
plt.show()

# %% [markdown]
# ## Recommend
#
# All scores of one user in one month are a product of a vector and the matrix `B`. `train[user]` has the user's ratings
# as a matrix of items and months. Its items are left out, because the user knows them already.

# %%
def recommend(user: int, month: int, count: int = 5) -> torch.Tensor:
    """The unrated items with the highest predicted ratings."""
    A, B, C = als
    scores = B @ (A[user] * C[month])
    scores[train[user].indices()[0]] = -torch.inf
    return scores.topk(count).indices


for name, month in (("January", 0), ("July", 6)):
    items = recommend(0, month)
    true = 3 + true_B[items] @ (true_A[0] * true_C[month])
    print(f"{name:8} items {items.tolist()}   true ratings {[round(rating, 1) for rating in true.tolist()]}")

# %% [markdown]
# Most items differ between winter and summer, and their true ratings are high: the mean of all ratings is about 3. The
# same holds for other users. In July, the true ratings of the five recommended items are far above those of five random
# items:

# %%
everyone = torch.stack([recommend(user, 6) for user in range(USERS)])
true = 3 + (true_A * true_C[6]) @ true_B.T
chosen, random = true.gather(1, everyone).mean(), true.gather(1, torch.randint(ITEMS, (USERS, 5))).mean()
best = true.topk(5).values.mean()
print(f"mean true rating: {chosen:.2f} recommended, {random:.2f} random, {best:.2f} best possible")

# %% [markdown]
# ## What you learned
#
# A tensor of ratings needs memory for the observed ratings only, as a tree (`CSF`) or as a list of coordinates (`COO`). A
# sampled product computes a low-rank model at those entries, and gradients flow to its factors. The gradient of each
# factor is an MTTKRP, which is an einsum over the same tensor. Alternating least squares needs two einsums and a batch of
# small systems, and no gradients.
#
# Next:
#
# * [Expressions](../concepts/expressions.md): all that `einsum` and `evaluate` compute.
# * [Formats](../concepts/formats.md): trees, lists of coordinates, and your own compositions of levels.
# * [Training](../guide/training.md): sparse weights instead of sparse data.
# * [Text search](text_search.py): the best entries of each row of a product.
