"""SparseMultiheadAttention: torch.nn.MultiheadAttention with sparse projection weights."""

from __future__ import annotations

from math import sqrt
from typing import Any, Self

import torch
from torch.nn.functional import dropout, scaled_dot_product_attention

from ..errors import UnsupportedError
from ..ir.format import Format
from ..operators.products import linear
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.parameter import SparseParameter, unwrapped
from .attention_kernels import mask_bias
from .weights import WeightsFirst, check_attention, check_dtype


class SparseMultiheadAttention(WeightsFirst, torch.nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with sparse projection weights and dense attention.

    :meth:`from_dense` makes the module; calls match torch's module. For attention at a pattern's entries, see
    :class:`SparseAttention`.

    >>> from numscorch.sparsify import magnitude
    >>> attend = SparseMultiheadAttention.from_dense(torch.nn.MultiheadAttention(8, 2, batch_first=True), magnitude(0.5))
    >>> x = torch.ones(3, 6, 8)
    >>> attend(x, x, x, need_weights=False)[0].shape, attend.in_proj_weight.nnz
    (torch.Size([3, 6, 8]), 96)
    """

    @classmethod
    def from_dense(cls, layer: torch.nn.MultiheadAttention, sparsifier: Sparsifier, format: Format | str | None = None) -> Self:
        """Prune the ``in_proj_weight`` of a dense module; the result shares the biases and ``out_proj`` with it.

        Args:
            layer: the dense module; it is not modified.
            sparsifier: a callable from the matrix (3 * embed_dim, embed_dim) to a boolean mask, True where an entry is kept.
            format: storage format of the matrix; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Raises:
            OperandError: ``layer`` is not a torch.nn.MultiheadAttention, or ``sparsifier`` is not a sparsifier.
            UnsupportedError: the layer uses kdim, vdim, add_bias_kv or add_zero_attn.
        """
        attention = cls.around(layer)
        weight: Any = attention._parameters.pop("in_proj_weight")
        attention._modules["in_proj_weight"] = SparseParameter(sparsify(weight.detach(), sparsifier, format), weight.requires_grad)
        return attention

    @classmethod
    def around(cls, layer: torch.nn.MultiheadAttention) -> Self:
        """Make a module that shares all parameters and submodules of ``layer``; the output projection may be sparse.

        Raises:
            OperandError, UnsupportedError: as :meth:`from_dense`.
        """
        check_attention(cls, layer)
        attention = cls.__new__(cls)
        vars(attention).update(vars(layer))
        for field in ("_parameters", "_buffers", "_modules"):
            vars(attention)[field] = dict(vars(layer)[field])
        return attention

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention with the arguments and results of torch.nn.MultiheadAttention.

        Raises:
            UnsupportedError: is_causal is given without attn_mask.
        """
        if is_causal and attn_mask is None:
            raise UnsupportedError(
                "is_causal=True is a hint about attn_mask: give a mask, such as Transformer.generate_square_subsequent_mask(L)"
            )
        is_batched, is_sequence_first = query.ndim == 3, query.ndim == 3 and not self.batch_first
        q, k, v = (self._heads(projected, is_sequence_first) for projected in self._projected(query, key, value))
        mask = _combined_mask(attn_mask, key_padding_mask, q)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
            weights = dropout((scores if mask is None else scores + mask).softmax(-1), self.dropout, self.training)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if is_batched else weights[0]
        else:
            attended = scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        output: torch.Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return output.transpose(0, 1) if is_sequence_first else output if is_batched else output[0], weights

    def _projected(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Project queries, keys and values: multiply each distinct input once by the whole weight, and take thirds of the products."""
        weight = unwrapped(self.in_proj_weight)
        projections: dict[int, tuple[torch.Tensor, ...]] = {}
        for tensor in (query, key, value):
            if id(tensor) not in projections:
                check_dtype(self, weight, tensor)
                projections[id(tensor)] = linear(tensor, weight, self.in_proj_bias).chunk(3, -1)
        return projections[id(query)][0], projections[id(key)][1], projections[id(value)][2]

    def _heads(self, projected: torch.Tensor, is_sequence_first: bool) -> torch.Tensor:
        """Split a projection into heads, (N, heads, L, head size)."""
        batch = projected.transpose(0, 1) if is_sequence_first else projected if projected.ndim == 3 else projected[None]
        return batch.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def to_dense(self) -> torch.nn.MultiheadAttention:
        """Return a torch.nn.MultiheadAttention with dense projections."""
        attention = torch.nn.MultiheadAttention.__new__(torch.nn.MultiheadAttention)
        vars(attention).update(vars(self.around(self)))
        weight: Any = self.in_proj_weight
        if isinstance(weight, SparseParameter):
            del attention._modules["in_proj_weight"]
            full = torch.nn.Parameter(weight.tensor.to_dense().detach(), weight.requires_grad)
            vars(attention)["_parameters"] = {"in_proj_weight": full, **attention._parameters}  # first, as in torch
        projection: Any = self.out_proj
        if hasattr(projection, "to_dense"):
            attention.out_proj = projection.to_dense()
        return attention


def _combined_mask(attn_mask: torch.Tensor | None, key_padding_mask: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
    """Combine both masks into a bias that broadcasts to the scores (N, heads, L, S)."""
    if attn_mask is not None:
        attn_mask = mask_bias(attn_mask, q.dtype)
        attn_mask = attn_mask.unflatten(0, q.shape[:2]) if attn_mask.ndim == 3 else attn_mask
    if key_padding_mask is None:
        return attn_mask
    padding = mask_bias(key_padding_mask, q.dtype).reshape(-1, 1, 1, key_padding_mask.shape[-1])
    return padding if attn_mask is None else attn_mask + padding
