"""SparseAttention and SparseTransformerEncoderLayer: torch's attention modules, computed at the stored entries of a pattern only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch.nn.functional import linear, relu

from ..errors import SizeError, UnsupportedError
from ..runtime.plans import keep
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .csr_patterns import as_pattern
from .functional import _sparse_attention
from .weights import check_attention, check_dense, check_device, check_dtype

MAX_PATTERNS = 8  # capacity of a module's cache of patterns, in sequence lengths


class SparseAttention(torch.nn.Module):
    """Attention that restricts each query to the keys stored in its row of a pattern.

    With ``embed_dim``, the module matches ``torch.nn.MultiheadAttention``: it has the same parameter names and initialization, and
    loads its state dict. Without ``embed_dim``, it has no parameters and applies
    :func:`~numscorch.nn.functional.scaled_dot_product_attention` to query, key and value.

    The pattern is not part of the state dict, because no parameter depends on it. A model trained with one pattern, or with dense
    attention, can run with another pattern. Deep copies share the pattern.

    Args:
        pattern: the keys of each query: the stored entries of a SparseTensor, or the nonzeros of a torch tensor, of shape (L, S). For
            sequences of any length, a function from a length to a pattern, such as ``functools.partial(patterns.bigbird, block=16)``.
        embed_dim: size of the tokens; None for no projections.
        num_heads: number of heads; must divide embed_dim.
        dropout: dropout probability of the attention probabilities in training.
        bias: whether the projections have a bias.
        batch_first: whether the batch dimension precedes the sequence dimension; True, unlike torch's default.
        device: only the CPU is supported.
        dtype: data type of the parameters.

    Shape:
        With embed_dim: query (N, L, embed_dim), key and value (N, S, embed_dim), or all without N; the result has the query's shape.
        Without embed_dim: query (\\*, L, E), key (\\*, S, E), value (\\*, S, Ev), result (\\*, L, Ev).

    Raises:
        SizeError: num_heads does not divide embed_dim.
        UnsupportedError: num_heads is given without embed_dim, the pattern is neither a tensor nor a function, or the device is not the
            CPU.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.2; Scorch, appendix E.4.

    >>> from numscorch.nn import patterns
    >>> attend = SparseAttention(patterns.sliding_window(6, 1), embed_dim=8, num_heads=2)
    >>> x = torch.ones(3, 6, 8)
    >>> attend(x, x, x)[0].shape
    torch.Size([3, 6, 8])
    >>> SparseAttention(patterns.bigbird)(x, x, x).shape
    torch.Size([3, 6, 8])
    """

    _qkv_same_embed_dim = False  # keeps torch.nn.TransformerEncoderLayer from its fused kernel for dense attention

    def __init__(
        self,
        pattern: SparseTensor | SparseParameter | torch.Tensor | Callable[[int], SparseTensor],
        embed_dim: int | None = None,
        num_heads: int = 1,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_device(self, device)
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        is_fixed = isinstance(pattern, SparseTensor | SparseParameter | torch.Tensor)
        self.pattern = as_pattern(pattern) if is_fixed or not callable(pattern) else pattern
        self.known: dict[int, SparseTensor] = {}
        if embed_dim is None:
            if num_heads != 1:
                raise UnsupportedError(f"num_heads={num_heads} without embed_dim: give embed_dim=, or pass tensors with a head dimension")
            return
        check_heads(embed_dim, num_heads)
        self._take(torch.nn.MultiheadAttention(embed_dim, num_heads, bias=bias, dtype=dtype))

    def reset_parameters(self) -> None:
        """Reinitialize the parameters as ``torch.nn.MultiheadAttention`` does."""
        if self.embed_dim is None:
            return
        torch.nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    @classmethod
    def from_dense(cls, layer: torch.nn.MultiheadAttention, pattern: Any) -> SparseAttention:
        """Convert a ``torch.nn.MultiheadAttention``: copy its weights, settings, training mode, and frozen parameters.

        Args:
            layer: the dense module; it is not modified.
            pattern: the keys of each query, as for the class.

        Returns:
            The module with sparse attention.

        Raises:
            OperandError: ``layer`` is not a torch.nn.MultiheadAttention.
            UnsupportedError: the layer uses kdim, vdim, add_bias_kv or add_zero_attn, or the pattern is neither a tensor nor a function.
        """
        check_attention(cls, layer)
        attention = cls(pattern, dropout=layer.dropout, batch_first=layer.batch_first)
        attention._take(copy.deepcopy(layer))
        return attention

    def _take(self, layer: torch.nn.MultiheadAttention) -> None:
        """Take the sizes, training mode and parameters of a dense module."""
        self.embed_dim, self.num_heads, self.training = layer.embed_dim, layer.num_heads, layer.training
        self.in_proj_weight, self.in_proj_bias, self.out_proj = layer.in_proj_weight, layer.in_proj_bias, layer.out_proj

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """Compute attention.

        Args:
            query, key, value: dense tensors of the shapes of the class, with the data type of the parameters.
            key_padding_mask: (N, S), or (S,) without N. No query attends to keys marked with True. Floats are added to the scores of the
                keys. A query whose keys are all padding gets the mean of the keys' values; torch returns nan.
            need_weights: must be False, unlike torch's default.
            attn_mask: must be None; the pattern takes its place.
            average_attn_weights: ignored, because no weights are returned.
            is_causal: whether to drop the pattern's entries above the diagonal.

        Returns:
            The output and None in place of the weights; without embed_dim, only the output.

        Raises:
            SizeError: the pattern does not match the sequence lengths, a tensor has another shape, or key_padding_mask another length.
            UnsupportedError: need_weights or attn_mask is given, key_padding_mask holds integers, or data types differ.
        """
        if need_weights:
            raise UnsupportedError(
                "need_weights=True: weights are computed row by row and not stored; compute those of one head with"
                " ns.softmax(ns.einsum('id,jd->ij', q, k, mask=pattern), 1)"
            )
        if attn_mask is not None:
            raise UnsupportedError(
                "attn_mask with a pattern: join them with ns.nn.patterns.intersection, and make the module with the result"
            )
        if self.embed_dim is None:
            return self._attend(query, key, value, key_padding_mask, is_causal)
        self._check_sizes(query, key, value)
        if not self.batch_first and query.ndim == 3:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        padding = None if key_padding_mask is None else key_padding_mask.unsqueeze(-2)  # shared by all heads
        q, k, v = (tensor.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2) for tensor in self._projected(query, key, value))
        output = self.out_proj(self._attend(q, k, v, padding, is_causal).transpose(-3, -2).flatten(-2))
        return (output.transpose(0, 1) if not self.batch_first and output.ndim == 3 else output), None

    def _projected(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if query is key and key is value:
            return linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(map(linear, (query, key, value), self.in_proj_weight.chunk(3), biases))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, padding: torch.Tensor | None, is_causal: bool
    ) -> torch.Tensor:
        pattern = self.pattern_for(query.shape[-2], key.shape[-2])
        dropout, scale = self.dropout if self.training else 0.0, 1 / sqrt(max(query.shape[-1], 1))
        if padding is not None and padding.dtype is not torch.bool and not padding.is_floating_point():
            raise UnsupportedError(
                f"key_padding_mask of {padding.dtype}: pass .to(torch.bool) to mark padding keys, or floats to add to the scores"
            )
        if padding is not None and padding.shape[-1] != key.shape[-2]:
            raise SizeError(f"key_padding_mask has {padding.shape[-1]} entries for {key.shape[-2]} keys: give one for each key")
        return _sparse_attention(query, key, value, pattern, dropout, is_causal, scale, False, padding)

    def pattern_for(self, length: int, keys: int | None = None) -> SparseTensor:
        """Return the pattern for a sequence.

        Args:
            length: number of queries.
            keys: number of keys; equal to the number of queries by default.

        Returns:
            The pattern, a SparseTensor (length, keys).

        Raises:
            SizeError: the pattern has another shape.
            UnsupportedError: the function of the module returned no pattern.
        """
        wanted = (length, length if keys is None else keys)
        if isinstance(self.pattern, SparseTensor):
            pattern, suggestion = (
                self.pattern,
                "give a function from a length to a pattern, such as functools.partial(ns.nn.patterns.bigbird, block=16)",
            )
        else:
            if length not in self.known:
                keep(self.known, length, as_pattern(self.pattern(length)), MAX_PATTERNS)
            pattern, suggestion = self.known[length], "give a fixed pattern of that shape"
        if tuple(pattern.shape) != wanted:
            raise SizeError(
                f"the pattern has shape {tuple(pattern.shape)}, but there are {wanted[0]} queries and {wanted[1]} keys\n  {suggestion}"
            )
        return pattern

    def _check_sizes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.ndim not in (2, 3) or tensor.shape[-1] != self.embed_dim:
                form = "(N, L, embed_dim)" if self.batch_first else "(L, N, embed_dim)"
                raise SizeError(f"{name} has shape {tuple(tensor.shape)}: with embed_dim={self.embed_dim} it is {form}, or (L, embed_dim)")
            check_dtype(self, self.in_proj_weight, tensor, name)

    def extra_repr(self) -> str:
        """Return the pattern and the sizes that ``repr`` shows."""
        function: Any = getattr(self.pattern, "func", self.pattern)  # a partial's inner function
        name = getattr(function, "__name__", type(function).__name__)
        description = f"density={self.pattern.density:.3g}" if isinstance(self.pattern, SparseTensor) else name
        sizes = [] if self.embed_dim is None else [f"embed_dim={self.embed_dim}", f"num_heads={self.num_heads}"]
        return ", ".join([f"pattern={description}", *sizes])


def check_heads(embed_dim: int, num_heads: int) -> None:
    """Check that the number of heads divides the size of the tokens.

    Raises:
        SizeError: the number of heads does not divide the size.
    """
    if num_heads < 1 or embed_dim % num_heads:
        raise SizeError(f"embed_dim={embed_dim} is not divisible by num_heads={num_heads}: choose num_heads= that divides it")


class SparseTransformerEncoderLayer(torch.nn.TransformerEncoderLayer):
    """A transformer encoder layer: attention at a pattern's entries, then two linear layers, both with residual connections.

    Parameters have the names of ``torch.nn.TransformerEncoderLayer``, so its state dict can be loaded. Calls take the same arguments,
    but ``src_mask`` must be None, because the pattern replaces it. ``is_causal`` drops the pattern's entries above the diagonal.
    ``torch.nn.TransformerEncoder`` stacks these layers with ``enable_nested_tensor=False``. The pattern is not part of the state dict.

    Args:
        pattern: a matrix, or a function from a length to a matrix, as in :class:`SparseAttention`.
        d_model: size of the tokens.
        nhead: number of attention heads.
        dim_feedforward: size between the two linear layers.
        dropout: dropout probability of attention probabilities and activations in training.
        activation: ``"relu"``, ``"gelu"``, or a function.
        layer_norm_eps: epsilon of the layer normalizations.
        batch_first: whether the batch dimension precedes the sequence dimension; True, unlike torch's default.
        norm_first: whether to normalize before attention and linear layers, rather than after.
        bias: whether linear layers and normalizations have a bias.
        device: only the CPU is supported.
        dtype: data type of the parameters.

    Shape:
        src (N, L, d_model), or (L, d_model); the result has the shape of src.

    Raises:
        SizeError: nhead does not divide d_model. Calls raise it if the pattern does not match the sequence length.
        UnsupportedError: the name of the activation is unknown, the pattern is neither a tensor nor a function, or the device is not
            the CPU. Calls raise it if src_mask is given.

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
        activation: str | Callable[[torch.Tensor], torch.Tensor] = relu,
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
        super().__init__(d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, dtype=dtype)
        self.self_attn = SparseAttention.from_dense(self.self_attn, pattern)  # type: ignore[assignment]

    @classmethod
    def from_dense(cls, layer: torch.nn.TransformerEncoderLayer, pattern: Any) -> SparseTransformerEncoderLayer:
        """Convert a ``torch.nn.TransformerEncoderLayer``: copy its weights, settings, training mode, and frozen parameters.

        Args:
            layer: the dense layer; it is not modified.
            pattern: the keys of each query, as in :class:`SparseAttention`.

        Returns:
            The layer with sparse attention.

        Raises:
            OperandError: ``layer`` is not a torch.nn.TransformerEncoderLayer.
            UnsupportedError: the pattern is neither a tensor nor a function.

        >>> from numscorch.nn import patterns
        >>> dense = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> SparseTransformerEncoderLayer.from_dense(dense, patterns.causal(6)).self_attn
        SparseAttention(
          pattern=density=0.583, embed_dim=8, num_heads=2
          (out_proj): NonDynamicallyQuantizableLinear(in_features=8, out_features=8, bias=True)
        )
        """
        check_dense(cls, layer, torch.nn.TransformerEncoderLayer)
        encoder = cls.__new__(cls)
        vars(encoder).update(copy.deepcopy(vars(layer)))
        encoder.self_attn = SparseAttention.from_dense(layer.self_attn, pattern)  # type: ignore[assignment]
        return encoder
