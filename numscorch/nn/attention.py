"""SparseAttention: torch.nn.MultiheadAttention at the entries of a pattern."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any, TypeVar

import torch

from ..errors import SizeError, UnsupportedError
from ..tensors.parameter import SparseParameter
from ..tensors.sparse_tensor import SparseTensor
from .dtypes import check_dtype
from .functional import _sparse_attention
from .joined import as_pattern
from .weights import check_attention, check_device

Linear = torch.nn.functional.linear
Module = TypeVar("Module", bound=torch.nn.Module)
MAX_PATTERNS = 8  # lengths whose patterns a module remembers


class SparseAttention(torch.nn.Module):
    """Attention in which each query meets only the keys of its row in a pattern.

    With ``embed_dim`` it is ``torch.nn.MultiheadAttention``: parameters have the same names, start the same way, and its state can
    be loaded. Without, it has no parameters, and query, key and value are attended to as they come, as
    :func:`~numscorch.nn.functional.scaled_dot_product_attention` does.

    A fixed pattern is no part of the state, since no parameter depends on it: a model that was trained with one pattern, or densely, can
    be used with another one. Deep copies share it: its index arrays are no buffers, so that nothing writes to them.

    Args:
        pattern: what each query attends to: a SparseTensor or a tensor of torch, (L, S), or a function from a length to one, for
            sequences of any length, as ``functools.partial(patterns.bigbird, block=16)``.
        embed_dim: size of the tokens; None for no projections.
        num_heads: which share embed_dim evenly.
        dropout: share of the probabilities that is dropped in training.
        bias: whether projections have one.
        batch_first: whether the batch comes before the sequence; True, unlike torch's default.
        device: the CPU, if given.
        dtype: of the parameters.

    Shape:
        With embed_dim: query (N, L, embed_dim), key and value (N, S, embed_dim), or without N; the result is as the query.
        Without: query (\\*, L, E), key (\\*, S, E), value (\\*, S, Ev), result (\\*, L, Ev).

    Raises:
        SizeError: num_heads doesn't divide embed_dim.
        UnsupportedError: heads without embed_dim, or a pattern that is neither a tensor nor a function.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.2; Scorch, appendix E.4.

    >>> from numscorch.nn import patterns
    >>> attend = SparseAttention(patterns.sliding_window(6, 1), embed_dim=8, num_heads=2)
    >>> x = torch.ones(3, 6, 8)
    >>> attend(x, x, x)[0].shape
    torch.Size([3, 6, 8])
    >>> SparseAttention(patterns.bigbird)(x, x, x).shape
    torch.Size([3, 6, 8])
    """

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
                raise UnsupportedError(f"num_heads={num_heads} without embed_dim: give embed_dim=, or tensors with a dimension of heads")
            return
        if num_heads < 1 or embed_dim % num_heads:
            raise SizeError(f"embed_dim={embed_dim} isn't num_heads={num_heads} times the size of a head: choose heads that divide it")
        self.in_proj_weight = torch.nn.Parameter(torch.empty(3 * embed_dim, embed_dim, dtype=dtype))
        self.in_proj_bias = torch.nn.Parameter(torch.empty(3 * embed_dim, dtype=dtype)) if bias else None
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as torch.nn.MultiheadAttention does."""
        if self.embed_dim is None:
            return
        torch.nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    @classmethod
    def from_dense(cls, layer: torch.nn.MultiheadAttention, pattern: Any) -> SparseAttention:
        """The module with the settings of torch's, frozen parameters among them, and its weights, which it copies.

        Raises:
            OperandError, UnsupportedError: it is no attention, keys or values have other sizes than queries, or biases of theirs.
        """
        check_attention(cls, layer)
        bias, dtype = layer.in_proj_bias is not None, layer.in_proj_weight.dtype
        attention = cls(pattern, layer.embed_dim, layer.num_heads, layer.dropout, bias, layer.batch_first, dtype=dtype)
        attention.load_state_dict(layer.state_dict())
        return copy_settings(attention, layer)

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
        """The output, and None in place of weights; without embed_dim, the output alone.

        Args:
            query, key, value: see the class.
            key_padding_mask: (N, S), or (S,) without N: which keys are padding, that no query attends to; or numbers that are added
                to their scores. A query whose keys all are padding gets a mean of them, where torch gives nan.
            need_weights: False, unlike torch's default.
            attn_mask: None; the pattern says what is attended to.
            average_attn_weights: without meaning, as there are no weights.
            is_causal: leaves out the pattern's entries above the diagonal.

        Raises:
            SizeError: the pattern is for another length.
            UnsupportedError: weights or masks are asked for.
        """
        _check_weights(need_weights, attn_mask)
        if self.embed_dim is None:
            return self._attend(query, key, value, key_padding_mask, is_causal)
        self._check_sizes(query, key, value)
        if not self.batch_first and query.ndim == 3:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        padding = None if key_padding_mask is None else key_padding_mask.unsqueeze(-2)  # the same for each head
        q, k, v = (tensor.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2) for tensor in self._projected(query, key, value))
        output = self.out_proj(self._attend(q, k, v, padding, is_causal).transpose(-3, -2).flatten(-2))
        return (output.transpose(0, 1) if not self.batch_first and output.ndim == 3 else output), None

    def _projected(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if query is key and key is value:
            return Linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(map(Linear, (query, key, value), self.in_proj_weight.chunk(3), biases))

    def _attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, padding: torch.Tensor | None, is_causal: bool
    ) -> torch.Tensor:
        pattern = self.pattern_for(query.shape[-2], key.shape[-2])
        dropout, scale = self.dropout if self.training else 0.0, 1 / sqrt(max(query.shape[-1], 1))
        if padding is not None:
            _check_padding(padding, key)
        return _sparse_attention(query, key, value, pattern, dropout, is_causal, scale, False, padding)

    def pattern_for(self, length: int, keys: int | None = None) -> SparseTensor:
        """The pattern for a sequence.

        Args:
            length: of the queries.
            keys: how many there are, by default as many.

        Raises:
            SizeError: it is for another length.
        """
        wanted = (length, length if keys is None else keys)
        if isinstance(self.pattern, SparseTensor):
            pattern, way_out = (
                self.pattern,
                "give a function from a length to a pattern, as functools.partial(ns.nn.patterns.bigbird, block=16)",
            )
        else:
            pattern, way_out = self._pattern_of_length(length), "give a fixed pattern of that shape"
        if tuple(pattern.shape) != wanted:
            raise SizeError(
                f"the pattern has shape {tuple(pattern.shape)}, but there are {wanted[0]} queries and {wanted[1]} keys\n  {way_out}"
            )
        return pattern

    def _pattern_of_length(self, length: int) -> SparseTensor:
        """What the function makes for a length, remembered."""
        if length not in self.known:
            pattern = as_pattern(self.pattern(length))  # type: ignore[operator]
            while len(self.known) >= MAX_PATTERNS:
                self.known.pop(next(iter(self.known)))
            self.known[length] = pattern
        return self.known[length]

    def _check_sizes(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            if tensor.ndim not in (2, 3) or tensor.shape[-1] != self.embed_dim:
                form = "(N, L, embed_dim)" if self.batch_first else "(L, N, embed_dim)"
                raise SizeError(f"{name} has shape {tuple(tensor.shape)}: with embed_dim={self.embed_dim} it is {form}, or (L, embed_dim)")
            check_dtype(self, self.in_proj_weight, tensor, name)

    def extra_repr(self) -> str:
        description = f"density={self.pattern.density:.3g}" if isinstance(self.pattern, SparseTensor) else _name(self.pattern)
        sizes = [] if self.embed_dim is None else [f"embed_dim={self.embed_dim}", f"num_heads={self.num_heads}"]
        return ", ".join([f"pattern={description}", *sizes])


SETTINGS = {torch.nn.Dropout: ("p",), torch.nn.LayerNorm: ("eps",)}  # those that may differ from module to module of one layer


def copy_settings(module: Module, source: torch.nn.Module) -> Module:
    """The module itself, with what isn't in a state: settings, training, and which parameters are frozen, each as in the source's.

    Raises:
        UnsupportedError: the source has another module in the place of one that has a setting.
    """
    for name, member in module.named_modules():
        theirs = source.get_submodule(name)
        member.training = theirs.training
        for setting in SETTINGS.get(type(member), ()):
            if not hasattr(theirs, setting):
                raise UnsupportedError(f"{name} is {theirs}, not {member}: for no dropout, set {name}.p = 0")
            setattr(member, setting, getattr(theirs, setting))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(source.get_parameter(name).requires_grad)
    return module


def _check_padding(padding: torch.Tensor, key: torch.Tensor) -> None:
    """That a mask says something of each key.

    Raises:
        SizeError: it is for other keys.
        UnsupportedError: it holds whole numbers, of which it is unclear what they say.
    """
    if padding.dtype is not torch.bool and not padding.is_floating_point():
        raise UnsupportedError(f"key_padding_mask of {padding.dtype}: pass .to(torch.bool) for which keys are padding, or floats to add")
    if padding.shape[-1] != key.shape[-2]:
        raise SizeError(f"key_padding_mask has {padding.shape[-1]} entries for {key.shape[-2]} keys: give one for each key")


def _check_weights(need_weights: bool, attn_mask: Any) -> None:
    """That nothing is asked for that a pattern hasn't.

    Raises:
        UnsupportedError: something is.
    """
    if need_weights:
        raise UnsupportedError(
            "need_weights=True: weights are computed row by row, and not kept; of single heads,"
            " ns.softmax(ns.einsum('id,jd->ij', q, k, mask=pattern), 1) has them"
        )
    if attn_mask is not None:
        raise UnsupportedError("attn_mask beside a pattern: join them with ns.nn.patterns.intersection, and give the module that")


def _name(function: Any) -> str:
    """The name of a function, of a partial one too."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__name__", type(inner).__name__))
