"""Sparse versions of torch's modules."""

from __future__ import annotations

import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..nn.embedding import SparseEmbedding
from ..nn.projections import SparseMultiheadAttention
from ..nn.sparse_layers import SparseConv2d, SparseLinear
from .layers import register_reader, register_sparse_module


def without_nesting(encoder: torch.nn.TransformerEncoder) -> torch.nn.TransformerEncoder:
    """Switch off nested tensors, which torch passes to an encoder's layers and sparse layers do not support."""
    encoder.use_nested_tensor = False
    return encoder


def register() -> None:
    """Register the sparse versions with ``sparsify_model``."""
    register_sparse_module(torch.nn.Linear, SparseLinear.from_dense)
    register_sparse_module(NonDynamicallyQuantizableLinear, SparseLinear.from_dense)
    register_sparse_module(torch.nn.Conv2d, SparseConv2d.from_dense)
    register_sparse_module(torch.nn.Embedding, SparseEmbedding.from_dense)
    register_sparse_module(torch.nn.MultiheadAttention, SparseMultiheadAttention.from_dense, "in_proj_weight")
    # torch's attention reads the weight of its output projection; SparseMultiheadAttention calls the projection
    register_reader(torch.nn.MultiheadAttention, SparseMultiheadAttention.around, SparseMultiheadAttention)
    register_reader(torch.nn.TransformerEncoder, without_nesting)
