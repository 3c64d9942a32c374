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
# # Prune an MLP and a transformer
#
# At the end of this tutorial, you have a multilayer perceptron with a tenth of its weights, a curve of accuracy over
# density, and a transformer pruned in blocks. You need numscorch, torch, numpy, matplotlib and scikit-learn, and you should
# have trained a network with PyTorch before.

# %%
from copy import deepcopy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from numscorch.sparsify import (
    GradualPruning,
    SparsityPlan,
    block_magnitude,
    densify_model,
    magnitude,
    report,
    schedules,
    sparsify,
    sparsify_model,
)

# %% [markdown]
# ## A dense network
#
# scikit-learn has 1,797 images of digits, 8 by 8 pixels each. A network with two hidden layers has far more weights than
# this problem needs.

# %%
digits = load_digits()
images = torch.from_numpy(digits.data / 16).float()
labels = torch.from_numpy(digits.target)
x, x_test, y, y_test = train_test_split(images, labels, test_size=0.3, random_state=0)


def accuracy(model: nn.Module) -> float:
    """The share of test images that the model labels correctly."""
    model.eval()
    with torch.no_grad():
        return (model(x_test).argmax(1) == y_test).float().mean().item()


# %% [markdown]
# The loop is the usual one of PyTorch. Gradual pruning, below, adds one call after the step of the optimizer.


# %%
def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    pruning: GradualPruning | None = None,
) -> nn.Module:
    """Train on batches of 64 images."""
    torch.manual_seed(0)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            if pruning:
                pruning.step()
    return model


# %%
torch.manual_seed(0)
hidden = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
mlp = nn.Sequential(*hidden, nn.Linear(256, 10))
train(mlp, torch.optim.Adam(mlp.parameters(), lr=1e-3), epochs=20)
print(f"accuracy of the dense network: {accuracy(mlp):.1%}")

# %% [markdown]
# ## Prune one weight
#
# A *sparsifier* chooses the entries to keep. `magnitude(0.9)` drops the 90 % of smallest absolute value, and
# `block_magnitude` drops whole blocks by the sum of their absolute values. `sparsify` applies a sparsifier to a tensor and
# stores the kept entries only.

# %%
weight = mlp.get_parameter("2.weight").detach()
print(sparsify(weight, magnitude(0.9)))
print(sparsify(weight, block_magnitude(16, 1, 0.75)))

# %% [markdown]
# Before you choose, compare the cost of layouts and the share of the total magnitude that they keep (column `kept`). Each entry
# of `CSR` has its own column index, so half of the entries take as many bytes as the dense weight. The entries of a block
# share an index, but blocks keep less magnitude at the same density. The next two columns divide `kept` by the shares that
# single entries and n:m patterns keep at the same density.

# %%
layouts = (magnitude(0.5), magnitude(0.75), block_magnitude(16, 1, 0.75), magnitude(0.9))
print(report(weight, *layouts))

# %% [markdown]
# ## Prune the network
#
# A plan says by name which weights are pruned, and how. `sparsify_model` replaces the layers and prints one row for
# each weight. The last layer is small, so the plan leaves it out. Pass the optimizer as well: it then trains the values
# that are left.

# %%
pruned: nn.Module = deepcopy(mlp)
optimizer = torch.optim.Adam(pruned.parameters(), lr=1e-3)
plan = SparsityPlan().weight("0.weight", magnitude(0.9)).weight("2.weight", magnitude(0.9))
pruned = sparsify_model(pruned, plan, optimizer=optimizer)

# %% [markdown]
# The layers are ordinary modules. Their weights have a gradient for the stored entries only, so the optimizer's state
# shrinks with the weights. A few epochs repair most of the loss.

# %%
before = accuracy(pruned)
train(pruned, optimizer, epochs=5)
print(f"accuracy: {before:.1%} after pruning, {accuracy(pruned):.1%} after fine-tuning")
print(pruned.get_submodule("2"))

# %% [markdown]
# Do the sparse layers compute the right function? `densify_model` makes them dense, with zeros at the pruned entries. The
# outputs must agree.

# %%
with_zeros = densify_model(deepcopy(pruned))
close = torch.allclose(pruned(x_test), with_zeros(x_test), atol=1e-4)
print("equal to the dense network with zeros:", close)

# %% [markdown]
# ## Prune gradually
#
# Fine-tuning repairs a network after one large cut. Gradual pruning makes many small cuts during training, and the network
# adapts after each. The schedule gives the share of zeros at each step. Layers stay dense, with masks,
# until 80 % of their entries are zeros; then sparse layers replace them.


# %%
def prune_gradually(fraction: float, epochs: int = 15) -> nn.Module:
    """A copy of the MLP, pruned in the first third of its training."""
    model = deepcopy(mlp)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = epochs * len(x.split(64))
    schedule = schedules.cubic(fraction, begin=0, end=steps // 3, every=5)
    names = ("0.weight", "2.weight")
    pruning = GradualPruning(model, optimizer, magnitude, schedule, weights=names)
    return train(model, optimizer, epochs, pruning)


print(f"accuracy at 10 % of the weights: {accuracy(prune_gradually(0.9)):.1%}")

# %% [markdown]
# One density says little. A curve over densities shows how far this network can be pruned. For a fair comparison, both
# methods get the same number of epochs.


# %%
def prune_at_once(fraction: float, epochs: int) -> nn.Module:
    """A copy of the MLP, pruned and then trained."""
    model = deepcopy(mlp)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plan = SparsityPlan().weight("[02].weight", magnitude(fraction))
    sparsify_model(model, plan, optimizer=optimizer, report=None)
    return train(model, optimizer, epochs)


# %%
densities = (0.2, 0.1, 0.05, 0.02)
curves = {
    "pruned": [accuracy(prune_at_once(1 - d, 0)) for d in densities],
    "pruned, then 15 epochs": [accuracy(prune_at_once(1 - d, 15)) for d in densities],
    "gradually, 15 epochs": [accuracy(prune_gradually(1 - d)) for d in densities],
}

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, values in curves.items():
    axes.plot(densities, values, ".-", label=name)
axes.axhline(accuracy(mlp), color="0.6", linestyle="--", label="dense")
axes.set(xscale="log", xlabel="density of the hidden weights", ylabel="test accuracy")
axes.set_xticks(densities, [f"{d:.0%}" for d in densities])
axes.minorticks_off()
axes.legend()
plt.show()

# %% [markdown]
# Without training, accuracy falls early. With training, both methods lose less than two percentage points down to a twentieth
# of the hidden weights. The test set has 540 images, so smaller differences between the methods are noise.
#
# ## A transformer, in blocks
#
# A transformer can read an image as a sequence: each of the 8 rows of pixels is a token. Most of its weights are in the
# feed-forward layers `linear1` and `linear2` of the encoder.


# %%
class RowTransformer(nn.Module):
    """A transformer that reads an image as 8 rows of 8 pixels."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.1 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(images.unflatten(1, (8, 8))) + self.position
        return self.head(self.encoder(tokens).mean(1))


# %%
torch.manual_seed(0)
transformer = RowTransformer()
optimizer = torch.optim.Adam(transformer.parameters(), lr=2e-3)
train(transformer, optimizer, epochs=10)
print(f"accuracy of the dense transformer: {accuracy(transformer):.1%}")

# %% [markdown]
# A block of 16 rows and 1 column has one column index, and kernels compute its 16 values with SIMD instructions. Blocks can
# therefore pay off at fewer zeros, here 75 %. `sparse_from` lowers the share of zeros at which layers become sparse.

# %%
train_steps = 8 * len(x.split(64))
pruning = GradualPruning(
    transformer,
    optimizer,
    lambda fraction: block_magnitude(16, 1, fraction),
    schedules.cubic(0.75, begin=0, end=train_steps // 2, every=10),
    weights="encoder.*.linear?.weight",
    sparse_from=0.75,
)
first = transformer.encoder.layers[0].linear1.weight.detach().clone()
train(transformer, optimizer, 8, pruning)
print(f"accuracy of the pruned transformer: {accuracy(transformer):.1%}")
print(transformer.encoder.layers[0].linear1)

# %% [markdown]
# The picture shows the first feed-forward weight before and after, transposed, so that blocks are horizontal bars.

# %%
weight = transformer.encoder.layers[0].linear1.weight
figure, axes = plt.subplots(2, 1, figsize=(6, 3), layout="constrained")
for ax, values in zip(axes, (first, weight.to_dense().detach()), strict=True):
    ax.imshow(values.abs().T.numpy(), cmap="gray_r", aspect="auto", interpolation="none")
    ax.set(xticks=[], yticks=[])
axes[0].set(title="the first feed-forward weight, dense and pruned")
plt.show()

# %% [markdown]
# ## Memory
#
# A block stores its values and one index. The pruned weights take little more than a quarter of their dense size.

# %%
layers = [m for layer in transformer.encoder.layers for m in (layer.linear1, layer.linear2)]
dense_size = sum(4 * m.in_features * m.out_features for m in layers) / 1024
sparse_size = sum(m.weight.nbytes for m in layers) / 1024
print(f"feed-forward weights: {dense_size:.0f} KiB dense, {sparse_size:.0f} KiB sparse")

# %% [markdown]
# Fewer bytes do not imply less time. Whether a sparse layer is faster depends on its size, its density and the batch. Pass
# `example_inputs=` to `sparsify_model` to time each layer and keep the faster form.
#
# ## What you learned
#
# * A sparsifier chooses entries, and a plan applies sparsifiers to weights by name.
# * Pruned layers are modules with sparse weights and sparse gradients, and any optimizer trains them.
# * Train after or during pruning. This network then loses less than two percentage points at 5 % of its hidden weights.
# * Single entries keep the most magnitude at a given density. Blocks take less memory for each stored value, because they
#   share indices.
#
# ## Next
#
# * [Pruning](../guide/pruning.md): all sparsifiers, formats and their padding.
# * [Training](../guide/training.md): checkpoints, RigL, n:m patterns and averages of models.
# * [Make an existing model sparse](../guide/convert.md): plans and budgets for larger models.
# * [Sparse attention](attention.py): a sparse pattern of attention instead of sparse weights.
