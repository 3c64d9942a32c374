"""Neural network modules; names that this package does not define resolve to ``torch.nn``."""

import torch

from ..operators.naming import fallback, publish
from ..tensors.parameter import Parameter, SparseParameter
from . import functional, graphs, patterns
from .attention import SparseAttention, SparseTransformerEncoderLayer
from .embedding import SparseEmbedding, SparseEmbeddingBag
from .graph_attention import GATConv
from .graph_convolutions import GCNConv, GINConv, SAGEConv
from .moe import MoE
from .sparse_layers import SparseConv2d, SparseLinear, SparseMultiheadAttention
from .stock import dense_weight, sparse_weight

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
    "dense_weight",
    "functional",
    "graphs",
    "patterns",
    "sparse_weight",
]

publish(globals())
__getattr__, __dir__ = fallback(globals(), torch.nn)
