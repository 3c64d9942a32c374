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
# # Sparse attention
#
# At the end of this tutorial, you have attention whose time and memory grow linearly with the length of the sequence:
# first as three operators, then as one fused kernel, then as a module. Outputs and gradients are checked against torch's
# masked attention. You need numscorch, torch and matplotlib, and you should know queries, keys and
# values.

# %%
import time
from collections.abc import Callable
from functools import partial
from math import sqrt

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import scaled_dot_product_attention

import numscorch as ns
from numscorch.nn import patterns

# %% [markdown]
# ## A pattern
#
# Dense attention computes a score for each pair of positions. Longformer and BigBird keep two kinds of pairs: each token
# attends to a local window, and a few global tokens attend to all tokens and receive attention from all. The window
# carries local context, and the global tokens connect distant positions in two steps.

# %%
LENGTH, WIDTH, WINDOW, GLOBAL = 512, 64, 16, 4


def window_and_global(length: int) -> ns.SparseTensor:
    """Each token attends to WINDOW tokens on each side; the first GLOBAL tokens are global."""
    window = patterns.sliding_window(length, WINDOW)
    return patterns.union(window, patterns.global_tokens(length, GLOBAL))


pattern = window_and_global(LENGTH)
print(pattern)

# %% [markdown]
# Rows are queries and columns are keys. Stored entries are the pairs whose score is computed. Entries that are not stored
# cost neither time nor memory.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
left.spy(pattern.to_scipy(), markersize=0.2)
left.set(xticks=[], yticks=[], title="all positions")
right.spy(pattern[:48, :48].to_dense().numpy())
right.set(xticks=[], yticks=[], title="the first 48")
plt.show()

# %% [markdown]
# ## The reference
#
# torch takes a pattern as a boolean mask. The result is right, but the mask is an n by n matrix, and torch computes the scores
# of all pairs before it discards most of them.

# %%
torch.manual_seed(0)
Q, K, V = (torch.randn(LENGTH, WIDTH, requires_grad=True) for _ in range(3))
mask = pattern.to_dense().bool()
expected = scaled_dot_product_attention(Q, K, V, attn_mask=mask)

# %% [markdown]
# ## Three operators
#
# Attention at a pattern is three sparse operations:
#
# 1. A sampled product (SDDMM) computes `Q @ K.T` at the entries of the pattern only.
# 2. `torch.softmax` normalises each row over its stored entries. A dense softmax would give weight to the zeros, and
#    would need a mask of `-inf`.
# 3. A product of a sparse and a dense matrix (SpMM) sums the values.

# %%
scores = ns.einsum("ij,ik,jk->ij", pattern, Q, K) / sqrt(WIDTH)
weights = torch.softmax(scores, 1)
out = weights @ V
print(weights)
print("equal to torch:", torch.allclose(out, expected, atol=1e-5))

# %% [markdown]
# ### Several heads
#
# Scores of several heads have one more index than the pattern. Such a result is dense unless `format=` says otherwise, and a
# softmax of a dense result gives weight to all positions. `format="dsd"` stores one score per head at each entry of the
# pattern.

# %%
HEADS = 4
queries, keys, values = (x.view(LENGTH, HEADS, WIDTH // HEADS) for x in (Q, K, V))
by_head = ns.einsum("ij,ihd,jhd->ijh", pattern, queries, keys, format="dsd") / sqrt(WIDTH // HEADS)
together = ns.einsum("ijh,jhd->ihd", torch.softmax(by_head, 1), values)
reference = scaled_dot_product_attention(*(x.transpose(0, 1) for x in (queries, keys, values)), attn_mask=mask)
print(by_head)
print("equal to torch:", torch.allclose(together.transpose(0, 1), reference, atol=1e-5))

# %% [markdown]
# ## One kernel
#
# Three operators write the scores and the weights to memory and read them again. `ns.fuse` traces a function of torch
# operators and compiles one kernel that holds one row of scores at a time. In the function, `Q @ K.T` looks dense, but
# its product with the pattern `A` needs it at the stored entries only, and the compiler uses that.


# %%
@ns.fuse
def attend(A: ns.SparseTensor, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor) -> torch.Tensor:
    """Attention at the entries of a pattern."""
    return torch.softmax(A * (Q @ K.T) / sqrt(WIDTH), -1) @ V


print("equal to torch:", torch.allclose(attend(pattern, Q, K, V), expected, atol=1e-5))

# %% [markdown]
# `explain` shows the traced program and says whether its statements became one kernel.

# %%
plan = attend.explain(pattern, Q.detach(), K.detach(), V.detach())
print(plan.text)
print()
print(plan.story.splitlines()[0])

# %% [markdown]
# ## Gradients
#
# Gradients need no extra code. The gradient of the fused function is compiled too. Both forms must give the gradients
# of the reference.


# %%
def gradients(result: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients of a loss with respect to queries, keys and values."""
    return torch.autograd.grad(result.square().sum(), (Q, K, V))


theirs = gradients(expected)
for name, result in {"three operators": out, "one kernel": attend(pattern, Q, K, V)}.items():
    both = zip(gradients(result), theirs, strict=True)
    close = [torch.allclose(ours, reference, atol=1e-4) for ours, reference in both]
    print(f"{name:16} gradients of Q, K and V equal to torch: {close}")

# %% [markdown]
# ## A module
#
# `SparseAttention` adds heads, projections and batches. It has the parameters of `torch.nn.MultiheadAttention`, so it loads
# the weights of a trained model. `MultiheadAttention` hides the pairs where a boolean mask is True, so the mask is inverted
# here.

# %%
dense = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
sparse = ns.nn.SparseAttention(window_and_global, WIDTH, 4)
sparse.load_state_dict(dense.state_dict())

tokens = torch.randn(2, LENGTH, WIDTH)
ours, _ = sparse(tokens, tokens, tokens)
theirs, _ = dense(tokens, tokens, tokens, attn_mask=~mask, need_weights=False)
print("equal to MultiheadAttention:", torch.allclose(ours, theirs, atol=1e-5))

# %% [markdown]
# The pattern here is a function of the length, so the same module takes sequences of any length.

# %%
for length in (100, 300):
    tokens = torch.randn(1, length, WIDTH)
    print(length, tuple(sparse(tokens, tokens, tokens)[0].shape))

# %% [markdown]
# ## Memory
#
# Dense attention computes `n * n` scores. The pattern has about `2 * WINDOW + 1 + 2 * GLOBAL` entries for each token, so their
# number grows linearly. The curves show the size of all scores in float32, wherever they are stored, as by the three
# operators above. They are counts, not measurements.

# %%
lengths = [2**k for k in range(7, 15)]
stored = [window_and_global(n).nnz for n in lengths]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.loglog(lengths, [n * n * 4 / 2**20 for n in lengths], ".-", label="dense")
axes.loglog(lengths, [nnz * 4 / 2**20 for nnz in stored], ".-", label="at the pattern")
axes.set(xlabel="length of the sequence", ylabel="scores of one head, MiB")
axes.legend()
plt.show()
print(f"at length {lengths[-1]}: {lengths[-1] ** 2 / stored[-1]:.0f} times fewer scores")

# %% [markdown]
# ## Time
#
# A count of scores is not a time: dense products run at a higher rate than sparse ones. Measure on your own machine. The first
# call of each function may compile a kernel, so it is not timed. Each figure is the smallest of ten calls.


# %%
def milliseconds(function: Callable[[], object], repeat: int = 10) -> float:
    """The smallest time of several calls."""
    function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


# %%
for n in (256, 512, 1024, 2048):
    q, k, v = torch.randn(3, 1, 1, n, WIDTH)
    part = window_and_global(n)
    allowed = part.to_dense().bool()
    fused = partial(attend, part, q[0, 0], k[0, 0], v[0, 0])
    masked = partial(scaled_dot_product_attention, q, k, v, attn_mask=allowed)
    print(f"{n:5} tokens: {milliseconds(fused):6.2f} ms sparse, {milliseconds(masked):6.2f} ms dense")

# %% [markdown]
# ## What you learned
#
# * A pattern of attention is a sparse matrix, and `ns.nn.patterns` builds the usual ones.
# * Attention at a pattern is a sampled product, a softmax over stored entries, and a sparse product. `ns.fuse` makes one kernel of
#   them that never stores the scores. Its gradient is compiled, too.
# * `SparseAttention` loads the weights of `MultiheadAttention`, so a trained model can change its pattern.
# * The number of scores grows linearly with the length instead of quadratically.
#
# ## Next
#
# * [Fusion](../concepts/fusion.md): programs of several statements, and how `fuse` compiles them.
# * [Modules](../guide/modules.md): transformer layers, BigBird and the other patterns.
# * [Explain](../guide/explain.md): read a kernel and choose its schedule.
# * [Prune an MLP and a transformer](pruning.py): sparse weights instead of sparse attention.
