"""Tables of the reference paper, verbatim, and the bars of this project.

Source: Yan, Root, Gale, Broman, Kjolstad, "Scorch: A Library for Sparse Deep Learning", 2024: tables 1 to 3 of appendix E, figures
5 to 8. The tables are complete, including training parameters such as epochs and learning rates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..bars import Row

TABLE_1: Mapping[str, Any] = {  # "GCN model architecture and hyperparameters for node classification"
    "hidden channels": 128,
    "activation function": "ReLU",
    "dropout rate": 0.5,
    "optimizer": "Adam",
    "learning rate": 0.01,
    "weight decay": 5e-4,
    "batch size": 1,  # full-batch
    "training epochs": 200,
}
TABLE_2: Mapping[str, Any] = {  # "Sparse autoencoder architecture and hyperparameters"
    "encoder": "Sparse Linear (input size -> 256)",
    "encoder activation": "ReLU",
    "decoder": "Dense Linear (256 -> input size)",
    "decoder activation": "Sigmoid",
    "latent size": 256,
    "input sizes": (784, 1024, 4096),  # MNIST; CIFAR-10 and CIFAR-100; CelebA
    "loss function": "Mean Squared Error (MSE)",
    "optimizer": "Adam",
    "learning rate": 0.01,
    "batch size": 64,
    "training epochs": 10,
}
# Autoencoders of bench_sparse_autoencoder.py of the reference, for MNIST: four sparse layers with 90, 95 and 99 % zeros.
DEEP = {"small": (784, 1024, 512, 1024, 784), "medium": (784, 2048, 1024, 2048, 784), "large": (784, 4096, 2048, 4096, 784)}
DEEP["tiny"] = (32, 48, 24, 48, 32)
DEEP_BATCH = 256
TABLE_3: Mapping[str, Any] = {  # "BigBird model architecture and hyperparameters for text classification"
    "embedding size": 128,
    "hidden size": 128,
    "intermediate size": 256,
    "number of hidden layers": 2,
    "number of attention heads": 4,
    "hidden activation": "gelu",
    "attention dropout": 0.1,
    "hidden dropout": 0.1,
    "sparse attention block size": 16,
    "sparse attention global tokens": 2,
    "sparse attention random blocks": 2,
    "sparse attention sliding blocks": 2,
    "optimizer": "AdamW",
    "learning rate": 0.001,
    "batch size": 64,
    "training epochs": 5,
}

# Names of the peers in records.
DENSE_FEATURES, CSR_FEATURES = "torch, dense features", "torch, CSR features"
PYG, PYG_CACHED = "PyG", "PyG, normalised once"
SPARSE, DENSE, REST = "torch.sparse", "dense", "the rest of the model"
SDPA, FLEX, FLEX_16 = "dense SDPA", "flex_attention", "flex_attention, blocks of 16"
LOOP, SLIDES, MASKED = "loop over experts", "einsum of every expert", "masked dense"


@dataclass(frozen=True, slots=True)
class Bar(Row):
    """A required ratio: ``mean`` for the geometric mean of the cases, ``worst`` for every case.

    Args:
        is_share: whether ratios are shares of a limit, printed in percent.
        strictly: whether ratios must exceed ``worst``.
        paper: the measurement of the paper.
    """

    is_share: bool = False
    strictly: bool = False
    paper: str = ""


FIGURE_5, FIGURE_6 = "2.08x on average", "1.42x to 5.78x"
FIGURE_7, FIGURE_8 = "1.24x, 1.14x, 1.05x", "faster from 100 nonzeros"


def _epochs(title: str, dropout: bool) -> Iterator[Bar]:
    for model in ("GCN", "SAGE-max", "GAT"):
        for features in (" of dense features", ""):
            only = {"model": f"{model}{features}", "dropout": dropout}
            yield Bar(f"{title}: {model}{features}, PyG", "training", worst=4.0, only={"peer": PYG, **only})
    for model in ("GCN of dense features", "GCN"):
        yield Bar(f"{title}: {model}, torch.sparse", "training", worst=1.5, only={"peer": SPARSE, "model": model, "dropout": dropout})


BARS = (
    Bar("GCN inference, both CSR features: torch", "gcn", mean=1.8, worst=1.2, only={"peer": CSR_FEATURES, "layout": "CSR"}),
    Bar("- both dense features: torch", "gcn", only={"peer": DENSE_FEATURES, "layout": "dense"}),
    Bar("- both dense features: PyG's GCNConv", "gcn", only={"peer": PYG, "layout": "dense"}),
    Bar("- both dense features: PyG's GCNConv, cached=True", "gcn", only={"peer": PYG_CACHED, "layout": "dense"}),
    Bar(
        "- CSR beside dense features, < 5 % nonzero: torch",
        "gcn",
        worst=8.0,
        only={"peer": DENSE_FEATURES, "layout": "CSR", "few": True},
        paper=FIGURE_5,
    ),
    Bar("- CSR beside dense features, more nonzeros: torch", "gcn", only={"peer": DENSE_FEATURES, "layout": "CSR", "few": False}),
    Bar("- CSR beside dense features: PyG's GCNConv", "gcn", worst=8.0, only={"peer": PYG, "layout": "CSR"}),
    Bar("- CSR beside dense features: PyG's GCNConv, cached=True", "gcn", only={"peer": PYG_CACHED, "layout": "CSR"}),
    *_epochs("training epoch", False),
    *_epochs("- table 1's dropout", True),
    Bar("autoencoder: sparse layer alone", "encoder", worst=2.5, only={"peer": SPARSE, "blocks": False}),
    Bar("- blocks of 16 x 1", "encoder", worst=3.0, only={"peer": SPARSE, "blocks": True}),
    Bar("- layer alone, dense from 80 % zeros", "encoder", worst=1.0, strictly=True, only={"peer": DENSE, "blocks": False}),
    Bar("- layer alone, dense from 50 % zeros in blocks", "encoder", worst=1.0, strictly=True, only={"peer": DENSE, "blocks": True}),
    Bar("- end to end, torch.sparse", "autoencoder", only={"peer": SPARSE}, paper=FIGURE_6),
    Bar("- end to end, of Amdahl's limit", "autoencoder", worst=0.85, is_share=True, only={"peer": REST, "paper": True}),
    Bar("- end to end, dense from 80 % zeros", "autoencoder", worst=1.0, strictly=True, only={"peer": DENSE, "blocks": False}),
    Bar("- end to end, dense from 50 % zeros in blocks", "autoencoder", worst=1.0, strictly=True, only={"peer": DENSE, "blocks": True}),
    Bar("- the reference's own, all layers sparse, torch.sparse", "deep", only={"peer": SPARSE}),
    Bar("- the reference's own, all layers sparse, dense", "deep", worst=1.0, strictly=True, only={"peer": DENSE}),
    Bar("attention: dense masked SDPA, length 512", "attention", worst=1.8, only={"peer": SDPA, "length": 512}),
    Bar("- length 4096", "attention", worst=9.0, only={"peer": SDPA, "length": 4096}),
    Bar("- SDDMM, softmax, SpMM in torch.sparse", "attention", worst=4.0, only={"peer": SPARSE}),
    Bar("- flex_attention, compiled", "attention", worst=3.0, only={"peer": FLEX}),
    Bar("- flex_attention, compiled, BLOCK_SIZE=16", "attention", only={"peer": FLEX_16}),
    Bar("encoder layer of table 3: SDPA, length 512", "layer", worst=1.2, only={"peer": SDPA, "length": 512}, paper=FIGURE_7),
    Bar("- length 4096", "layer", worst=3.0, only={"peer": SDPA, "length": 4096}),
    Bar("MoE: every expert, 1024 tokens", "moe", worst=4.0, only={"peer": SLIDES, "tokens": 1024}),
    Bar("- loop over experts, 128 to 256 wide", "moe", worst=1.2, only={"peer": LOOP, "width": (128, 256)}),
    Bar("- loop over experts, 512 wide", "moe", worst=1.0, only={"peer": LOOP, "width": 512}),
    Bar("training step, 90 % sparse MLP: masked dense", "mlp", worst=1.5, only={"peer": MASKED}),
    Bar("- torch.sparse", "mlp", worst=2.0, only={"peer": SPARSE}),
    Bar("SpMM, torch CSR", "spmm", only={"peer": SPARSE}, paper=FIGURE_8),
)


@dataclass(frozen=True)
class Sizes:
    """Measured sizes: ``FULL`` as in the paper and the bars, ``QUICK`` for a short test run."""

    graphs: tuple[str, ...] = ("cora", "dblp", "coauthor_cs", "amazon_photo", "flickr")
    trained: tuple[str, ...] = ("cora", "dblp")
    hidden: tuple[int, ...] = (TABLE_1["hidden channels"], 16)
    inputs: tuple[int, ...] = TABLE_2["input sizes"]
    latent: int = TABLE_2["latent size"]
    zeros: tuple[int, ...] = (80, 90, 95, 99)
    in_blocks: tuple[int, ...] = (50, 80, 90, 95, 99)
    deep: tuple[str, ...] = ("small", "medium", "large")
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096)
    heads: tuple[tuple[int, int], ...] = ((1, 4), (1, 8), (4, 4))  # batch, heads
    tokens: tuple[int, ...] = (256, 1024)
    experts: tuple[int, ...] = (16, 64)
    widths: tuple[int, ...] = (128, 256, 512)
    matrices: tuple[str, ...] | None = None  # None: all matrices of the data
    has_flex: bool = True


FULL = Sizes()
QUICK = Sizes(
    graphs=("tiny",),
    trained=("tiny",),
    hidden=(16,),
    inputs=(64,),
    latent=32,
    zeros=(90,),
    in_blocks=(50,),
    deep=("tiny",),
    lengths=(512,),
    heads=((1, 2),),
    tokens=(1024,),
    experts=(4,),
    widths=(16,),
    matrices=("uniform-small",),
    has_flex=False,
)
