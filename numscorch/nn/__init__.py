"""Neural network modules; names that this package does not define resolve to ``torch.nn``."""

from typing import Any

import torch

from ..operators.naming import publish
from ..tensors.parameter import Parameter, SparseParameter
from . import functional, graphs, patterns
from .attention import SparseAttention, SparseTransformerEncoderLayer
from .embedding import SparseEmbeddingBag
from .embedding_table import SparseEmbedding
from .graph_attention import GATConv
from .graph_convolutions import GCNConv, GINConv, SAGEConv
from .moe import MoE
from .projections import SparseMultiheadAttention
from .sparse_layers import SparseConv2d, SparseLinear

__all__ = [
    "GATConv",
    "GCNConv",
    "GINConv",
    "MoE",
    "Parameter",
    "SAGEConv",
    "SparseAttention",
    "SparseConv2d",
    "SparseEmbedding",
    "SparseEmbeddingBag",
    "SparseLinear",
    "SparseMultiheadAttention",
    "SparseParameter",
    "SparseTransformerEncoderLayer",
    "functional",
    "graphs",
    "patterns",
]

publish(globals())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not hasattr(torch.nn, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and neither has torch.nn")
    return getattr(torch.nn, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn)})
