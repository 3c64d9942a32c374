"""SparseTransformerEncoderLayer: torch.nn.TransformerEncoderLayer with pattern attention."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import relu

from ..errors import UnsupportedError
from .attention import SparseAttention, check_heads
from .weights import check_device

Activation = Callable[[torch.Tensor], torch.Tensor]


class SparseTransformerEncoderLayer(torch.nn.TransformerEncoderLayer):
    """A transformer encoder layer: attention at a pattern's entries, then two linear layers, both with residual connections.

    Parameters have the names of ``torch.nn.TransformerEncoderLayer``, so its state dict can be loaded; its call takes the same
    arguments, except that the pattern takes the place of ``src_mask``. ``is_causal`` drops the pattern's entries above the diagonal.
    ``torch.nn.TransformerEncoder`` stacks these layers with ``enable_nested_tensor=False``. The pattern is not part of the state dict.

    Args:
        pattern: a matrix, or a function from a length to a matrix, as in :class:`SparseAttention`.
        d_model: size of the tokens.
        nhead: number of attention heads.
        dim_feedforward: size between the two linear layers.
        dropout: dropout probability of attention probabilities and activations in training.
        activation: ``"relu"``, ``"gelu"``, or a function.
        layer_norm_eps: epsilon of the layer normalisations.
        batch_first: whether the batch dimension precedes the sequence dimension; True, unlike torch's default.
        norm_first: whether to normalise before attention and linear layers, rather than after.
        bias: whether linear layers and normalisations have a bias.
        device: only the CPU is supported.
        dtype: data type of the parameters.

    Shape:
        src (N, L, d_model), or (L, d_model); the result has the shape of src.

    Raises:
        SizeError: nhead does not divide d_model, or the pattern does not match the sequence length.
        UnsupportedError: the name of the activation is unknown, or src_mask is given.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.1; Scorch, appendix E.4.

    >>> from numscorch.nn import patterns
    >>> layer = SparseTransformerEncoderLayer(patterns.bigbird, d_model=8, nhead=2, dim_feedforward=16)
    >>> layer(torch.ones(3, 6, 8)).shape
    torch.Size([3, 6, 8])
    """

    def __init__(
        self,
        pattern: Any,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_device(self, device)
        check_heads(d_model, nhead)
        if not callable(activation) and activation not in ("relu", "gelu"):
            raise UnsupportedError(f"activation={activation!r}: give 'relu', 'gelu', or a function")
        sizes = d_model, nhead, dim_feedforward
        super().__init__(*sizes, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, dtype=dtype)
        self.self_attn = SparseAttention.from_dense(self.self_attn, pattern)  # type: ignore[assignment]

    @classmethod
    def from_dense(cls, layer: torch.nn.TransformerEncoderLayer, pattern: Any) -> SparseTransformerEncoderLayer:
        """Convert a torch.nn.TransformerEncoderLayer: copy its weights, settings, training mode, and frozen parameters.

        >>> from numscorch.nn import patterns
        >>> dense = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> SparseTransformerEncoderLayer.from_dense(dense, patterns.causal(6)).self_attn
        SparseAttention(
          pattern=density=0.583, embed_dim=8, num_heads=2
          (out_proj): NonDynamicallyQuantizableLinear(in_features=8, out_features=8, bias=True)
        )
        """
        encoder = cls.__new__(cls)
        vars(encoder).update(copy.deepcopy(vars(layer)))
        encoder.self_attn = SparseAttention.from_dense(layer.self_attn, pattern)  # type: ignore[assignment]
        return encoder
