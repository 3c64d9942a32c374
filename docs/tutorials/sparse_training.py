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
# # Train a sparse network from scratch
#
# At the end of this tutorial, you have trained networks with a tenth of the weights of a dense network, and seen how SET
# and RigL move these weights to useful places during training. You need numscorch, torch, matplotlib and scikit-learn,
# and you should have trained a network with PyTorch before.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, linear

import numscorch as ns
from numscorch.nn import SparseLinear
from numscorch.sparsify import SET, RigL

torch.set_num_threads(1)

# %% [markdown]
# (One thread suffices, because the layers of this tutorial are small.)
#
# ## Digits in noise
#
# A random choice of weights hurts most if few inputs matter. Therefore, this data has many useless inputs: each digit of
# scikit-learn, 8 by 8 pixels, lies in the middle of a noise image of 32 by 32 pixels. Only 6 % of the inputs say anything
# about the class. The noise is new in each epoch, so a network cannot memorize it.

# %%
digits = load_digits()
pixels = torch.from_numpy(digits.images / 16).float()
labels = torch.from_numpy(digits.target)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
train, test = order[:1200], order[1200:]


def in_noise(pixels: torch.Tensor) -> torch.Tensor:
    """Each digit in the middle of an image of noise, as a vector of 1024 numbers."""
    images = torch.rand(len(pixels), 32, 32)
    images[:, 12:20, 12:20] = pixels
    return ((images - 0.5) / 0.3).flatten(1)


torch.manual_seed(0)
test_images = in_noise(pixels[test])

# %% [markdown]
# ## A layer with a tenth of the weights
#
# `SparseLinear` takes the place of `nn.Linear`. With `density=0.1`, it draws a random pattern and initializes the values
# for the smaller number of inputs per output. Its result is that of a dense layer whose other weights are 0:

# %%
layer = SparseLinear(1024, 48, density=0.1)
print(layer)
dense_result = linear(test_images, layer.weight.to_dense(), layer.bias)
print("same as dense:", torch.allclose(layer(test_images), dense_result, atol=1e-5))

# %% [markdown]
# The values are one parameter, a vector. Its gradient has the same length: neither the forward nor the backward pass
# makes a matrix of the size of the dense weight. The optimizer state is as small, so Adam's two moments take a tenth of
# the memory, too.

# %%
optimizer = torch.optim.AdamW(layer.parameters())
layer(test_images).square().mean().backward()
optimizer.step()
values = layer.weight.values
moments = optimizer.state[values]["exp_avg"]
print(f"dense weight {tuple(layer.weight.shape)}, values {tuple(values.shape)}")
print(f"gradient {tuple(values.grad.shape)}, first moment {tuple(moments.shape)}")

# %% [markdown]
# ## The networks
#
# One function builds the dense and the sparse network. The output layer is dense in both: with 10 classes, it has few
# weights, and each of them matters.

# %%
def network(density: float) -> nn.Sequential:
    """Two hidden layers of 48 units, dense or with a random pattern."""
    torch.manual_seed(0)
    if density == 1:
        hidden = [nn.Linear(1024, 48), nn.Linear(48, 48)]
    else:
        hidden = [SparseLinear(1024, 48, density=density), SparseLinear(48, 48, density=density)]
    return nn.Sequential(hidden[0], nn.ReLU(), hidden[1], nn.ReLU(), nn.Linear(48, 10))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The share of test images with the right label."""
    return (model(test_images).argmax(1) == labels[test]).float().mean().item()


# %% [markdown]
# The training loop is the usual one, plus one line. SET and RigL count steps, and change patterns at each 25th of them.
# They also move the optimizer state, so they need the optimizer.

# %%
EPOCHS, BATCH = 30, 64
STEPS = EPOCHS * -(-len(train) // BATCH)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, evolve: SET | RigL | None = None) -> list[float]:
    """The test accuracy after each epoch."""
    torch.manual_seed(0)
    curve = []
    for _epoch in range(EPOCHS):
        images = in_noise(pixels[train])
        for batch in torch.randperm(len(train)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[train[batch]]).backward()
            optimizer.step()
            if evolve is not None:
                evolve.step()
        curve.append(accuracy(model))
    return curve


# %% [markdown]
# ## Dense, static and evolving
#
# All sparse networks start from the same random pattern, which the static network keeps. SET and RigL drop the entries
# with the smallest magnitude, at first 30 %, and grow as many: SET at random places, RigL where the gradient of the dense
# weight is largest. RigL computes that gradient only in the steps before a change, and lowers the share of 30 % over
# time. In the last quarter of the training, patterns are fixed, and the new weights settle.

# %%
def adam(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, whose weight decay shrinks weights that only see noise."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.3)


evolutions = {"SET": SET, "RigL": RigL}
models = {"dense": network(1), "static": network(0.1), "SET": network(0.1), "RigL": network(0.1)}
before = {name: model[0].weight.tensor.detach().clone() for name, model in models.items() if name in evolutions}
curves = {}
for name, model in models.items():
    optimizer = adam(model)
    evolve = evolutions[name](model, optimizer, until=STEPS * 3 // 4, every=25, fraction=0.3) if name in evolutions else None
    curves[name] = fit(model, optimizer, evolve)

# %% [markdown]
# SET and RigL are almost as accurate as the dense network, with a tenth of its hidden weights. The static network starts
# slowly, because most of its weights see noise only, and stays behind. The accuracies are means of the last five epochs.

# %%
for name, model in models.items():
    hidden = [model[0].weight, model[2].weight]
    stored = sum(weight.numel() if name == "dense" else weight.nnz for weight in hidden)
    print(f"{name:6}  {stored:6,} hidden weights   test accuracy {sum(curves[name][-5:]) / 5:.1%}")

# %%
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, curve in curves.items():
    axes.plot(range(1, EPOCHS + 1), curve, "k:" if name == "dense" else "-", label=name)
axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0.5, 1))
axes.legend()
plt.show()

# %% [markdown]
# One run with one seed does not rank SET and RigL: their final accuracies differ by a few of 597 images.
# [examples/sparse_training.py](../../examples/sparse_training.py) compares methods over several seeds.
#
# ## Where the weights went
#
# The first layer has a weight for some pairs of a unit and a pixel. The plots show the pattern of the network that RigL
# trains, before and after training. At first, entries are everywhere. Afterwards, many of them gather in eight bands: the
# eight rows of the digit.

# %%
figure, panels = plt.subplots(2, 1, figsize=(8, 3), layout="constrained", sharex=True)
after = models["RigL"][0].weight.tensor.detach()
for axes, weight, name in zip(panels, (before["RigL"], after), ("before", "after"), strict=True):
    axes.spy(weight.to_scipy(), markersize=0.6, aspect="auto", color="black")
    axes.set(ylabel=f"unit, {name}", xticks=range(0, 1025, 128))
    axes.xaxis.tick_bottom()
panels[1].set_xlabel("pixel")
plt.show()

# %% [markdown]
# The sums of the columns of a pattern are the numbers of weights of each pixel. Arranged as an image, they show that both
# methods found the place of the digit.

# %%
def per_pixel(weight: ns.SparseTensor) -> torch.Tensor:
    """The number of stored weights of each pixel."""
    return weight.with_values(torch.ones(weight.nnz)).sum(0).reshape(32, 32)


images = {"before": per_pixel(before["SET"])}
images |= {f"after {name}": per_pixel(models[name][0].weight.tensor.detach()) for name in evolutions}
figure, panels = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
for axes, (name, image) in zip(panels, images.items(), strict=True):
    inside = image[12:20, 12:20].sum() / image.sum()
    axes.imshow(image, vmin=0, vmax=40)
    axes.set(title=f"{name}: {inside:.0%} in the digit", xticks=[], yticks=[])
plt.show()

# %% [markdown]
# ## What happens to the optimizer state
#
# Adam keeps two moments for each value. If patterns change, the moments of entries that stay have to move with them. This
# cell takes one more step of RigL by hand, and compares the moments before and after at entries that both patterns have.

# %%
model, weight = models["RigL"], models["RigL"][0].weight
optimizer = adam(model)
rigl = RigL(model, optimizer, until=100, every=1)
cross_entropy(model(test_images), labels[test]).backward()
optimizer.step()

old = weight.tensor.detach().with_values(optimizer.state[weight.values]["exp_avg"].clone())
print("pattern changed:", rigl.step())
new = weight.tensor.detach().with_values(optimizer.state[weight.values]["exp_avg"])

stays = (old.with_values(torch.ones(old.nnz)) * new.with_values(torch.ones(new.nnz))).to_dense() > 0
print(f"{stays.sum():,} of {new.nnz:,} entries stayed")
print("their moments moved along:", torch.equal(old.to_dense()[stays], new.to_dense()[stays]))
print("moments of grown entries are 0:", not new.to_dense()[~stays].any())

# %% [markdown]
# ## What you learned
#
# `SparseLinear` trains the stored weights only: values, gradients and optimizer state are vectors with one number per
# stored weight. A random pattern that never changes wastes weights on useless inputs. SET and RigL drop small weights and
# grow others, in one call after each step of the optimizer. The number of weights stays the same, and the optimizer state
# follows.
#
# Next:
#
# * [Training](../guide/training.md): gradual pruning, averages of models, checkpoints and several processes.
# * [Pruning](../guide/pruning.md): start from a dense model instead.
# * [Build a sparse model](../guide/build.md): choose patterns and formats by hand.
# * [Modules](../guide/modules.md): all layers with sparse weights.
