"""SparseTransformerEncoderLayer: torch.nn.TransformerEncoderLayer with pattern attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu, relu

from ..errors import UnsupportedError
from .attention import SparseAttention, copy_settings
from .weights import check_device

Activation = Callable[[torch.Tensor], torch.Tensor]


class SparseTransformerEncoderLayer(torch.nn.Module):
    """A transformer encoder layer: attention at a pattern's entries, then two linear layers, both with residual connections.

    Parameters have the names of ``torch.nn.TransformerEncoderLayer``, so its state dict can be loaded. ``torch.nn.TransformerEncoder``
    stacks these layers with ``enable_nested_tensor=False``. The pattern is not part of the state dict.

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
        super().__init__()
        check_device(self, device)
        self.self_attn = SparseAttention(pattern, d_model, nhead, dropout, bias, batch_first, dtype=dtype)
        self.linear1 = torch.nn.Linear(d_model, dim_feedforward, bias, dtype=dtype)
        self.dropout = torch.nn.Dropout(dropout)
        self.linear2 = torch.nn.Linear(dim_feedforward, d_model, bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1 = torch.nn.LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = torch.nn.LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = torch.nn.Dropout(dropout), torch.nn.Dropout(dropout)
        self.activation = _activation(activation)

    @classmethod
    def from_dense(cls, layer: torch.nn.TransformerEncoderLayer, pattern: Any) -> SparseTransformerEncoderLayer:
        """Convert a torch.nn.TransformerEncoderLayer: copy its weights, settings, training mode, and frozen parameters.

        >>> from numscorch.nn import patterns
        >>> dense = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> SparseTransformerEncoderLayer.from_dense(dense, patterns.causal(6)).self_attn
        SparseAttention(
          pattern=density=0.583, embed_dim=8, num_heads=2
          (out_proj): Linear(in_features=8, out_features=8, bias=True)
        )
        """
        attention, norm = layer.self_attn, layer.norm1
        encoder = cls(
            pattern,
            attention.embed_dim,
            attention.num_heads,
            layer.linear1.out_features,
            layer.dropout.p,
            layer.activation,
            norm.eps,
            attention.batch_first,
            layer.norm_first,
            layer.linear1.bias is not None,
            dtype=layer.linear1.weight.dtype,
        )
        encoder.self_attn.dropout = attention.dropout
        encoder.load_state_dict(layer.state_dict())
        return copy_settings(encoder, layer)

    def forward(
        self,
        src: torch.Tensor,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """Return the output, of the shape of src.

        Args:
            src: tokens (N, L, d_model).
            src_mask: must be None; the pattern takes its place.
            src_key_padding_mask: (N, L), True for padding tokens.
            is_causal: whether to drop the pattern's entries above the diagonal.
        """
        options = {"key_padding_mask": src_key_padding_mask, "attn_mask": src_mask, "is_causal": is_causal}
        if self.norm_first:
            src = src + self._self_attention(self.norm1(src), options)
            return src + self._feed_forward(self.norm2(src))
        src = self.norm1(src + self._self_attention(src, options))
        return self.norm2(src + self._feed_forward(src))

    def _self_attention(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        return self.dropout1(self.self_attn(x, x, x, **options)[0])

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


def _activation(activation: str | Activation) -> Activation:
    """Return an activation function, given itself or by name.

    Raises:
        UnsupportedError: the name is unknown.
    """
    if callable(activation):
        return activation
    if activation not in ("relu", "gelu"):
        raise UnsupportedError(f"activation={activation!r}: give 'relu', 'gelu', or a function")
    return relu if activation == "relu" else gelu
