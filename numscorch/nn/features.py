"""Inputs of graph convolutions: node features, their checks and shapes, and linear layers that take their size from the first input.

Features are dense or sparse, and either one tensor for all nodes or a pair for sources and targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.parameter import UninitializedParameter, is_lazy

from ..errors import SizeError, UnsupportedError
from ..programs.gradients import attached
from ..tensors.graph_breaks import graph_break
from ..tensors.sparse_tensor import SparseTensor
from .weights import check_dtype

LAZY = -1  # placeholder of a size that the first input sets
Draw = Callable[[torch.nn.Linear], None]
Features = Tensor | SparseTensor
_attached = graph_break(attached)
linear: Callable[..., Tensor] = functional.linear  # also of sparse features


def draw_default(layer: torch.nn.Linear) -> None:
    """Draw the weights as torch.nn.Linear does."""
    layer.reset_parameters()


def draw_glorot(layer: torch.nn.Linear) -> None:
    """Draw the weights with Glorot and Bengio's uniform initialization; the bias is 0."""
    torch.nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        torch.nn.init.zeros_(layer.bias)


class LazyLinear(torch.nn.Linear):
    """A torch.nn.Linear of unknown input size; :meth:`materialize` turns it into a plain torch.nn.Linear.

    State dicts save and load it before and after that.

    >>> layer = LazyLinear(3, bias=False)
    >>> layer.materialize(2)
    >>> layer
    Linear(in_features=2, out_features=3, bias=False)
    """

    def __init__(self, out_features: int, bias: bool = True, draw: Draw = draw_default):
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features, self._draw = LAZY, out_features, draw
        self.weight = UninitializedParameter()
        self.register_parameter("bias", torch.nn.Parameter(torch.zeros(out_features)) if bias else None)

    def materialize(self, in_features: int) -> None:
        """Set the input size, become a plain layer, and draw the weights."""
        self._become(in_features)
        self._draw(self)

    def reset_parameters(self) -> None:
        """Do nothing: the weights do not exist yet."""

    def _become(self, in_features: int) -> None:
        weight: Any = self.weight
        weight.materialize((self.out_features, in_features))
        self.in_features = in_features
        object.__setattr__(self, "__class__", torch.nn.Linear)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias if keep_vars else self.bias.detach()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is not None and not is_lazy(weight) and weight.ndim == 2:
            self._become(int(weight.shape[1]))
        torch.nn.Linear._load_from_state_dict(self, state_dict, prefix, *args)  # _become changed the class


def projection(in_features: int, out_features: int, bias: bool, draw: Draw = draw_default) -> torch.nn.Linear:
    """Make a linear layer, lazy if ``in_features`` is -1; ``draw`` initializes its weights."""
    if in_features == LAZY:
        return LazyLinear(out_features, bias, draw)
    layer = torch.nn.Linear(in_features, out_features, bias)
    draw(layer)
    return layer


def materialize(layer: torch.nn.Module | None, in_features: int) -> None:
    """Materialize a lazy layer with its input size; ignore other layers."""
    if isinstance(layer, LazyLinear):
        layer.materialize(in_features)


def check_channels(layer: str, **channels: int) -> None:
    """Check that sizes are positive; input sizes may be -1.

    Raises:
        SizeError: a size is not positive.
    """
    for name, size in channels.items():
        if size < 1 and not (size == LAZY and name in ("in_channels", "sources", "targets", "edge_dim")):
            raise SizeError(f"{layer} with {name}={size}: sizes are positive, or -1 for a size that the first input sets")


def checked_features(x: Any, channels: int, layer: torch.nn.Module, name: str = "x", node_dim: int | None = None) -> Features:
    """Check and return node features (nodes, channels), dense or sparse; -1 allows any number of channels.

    With a ``node_dim``, dense features may have more than 2 dimensions: ``node_dim`` counts nodes, the last one channels.

    Raises:
        SizeError: the shape does not match.
        UnsupportedError: ``x`` is not a tensor, or its data type differs from the weights'.
    """
    if not isinstance(x, Tensor | SparseTensor):
        raise UnsupportedError(f"{name} is {type(x).__name__}: {layer} takes a tensor of features, of shape (nodes, {channels})")
    is_static = x.ndim > 2 and node_dim is not None and not isinstance(x, SparseTensor) and x.layout is torch.strided
    if (x.ndim != 2 and not is_static) or (channels != LAZY and x.shape[-1] != channels):
        wanted = "channels" if channels == LAZY else channels
        raise SizeError(f"{name} has shape {tuple(x.shape)}, but {layer} takes (nodes, {wanted})")
    if node_dim is not None and (not -x.ndim <= node_dim < x.ndim or node_dim % x.ndim == x.ndim - 1):
        raise SizeError(
            f"{name} has shape {tuple(x.shape)}, so node_dim={node_dim} of {layer} cannot be the dimension of the nodes: "
            "give a dimension before the last one, which holds the channels"
        )
    if (weight := next(layer.parameters(), None)) is not None:
        check_dtype(layer, weight, x, name)
    if isinstance(x, SparseTensor) or x.layout is torch.strided:
        return x
    return _attached(x)


def checked_pair(x: Any, channels: Sequence[int], layer: torch.nn.Module, node_dim: int | None = None) -> tuple[Features, Features | None]:
    """Check and return the features of sources and of targets; without a pair, both are the same object."""
    if not isinstance(x, tuple | list):
        features = checked_features(x, channels[0], layer, node_dim=node_dim)
        return features, features
    if len(x) != 2:
        raise SizeError(f"x has {len(x)} parts, but {layer} takes features, or a pair (source features, target features)")
    sources = checked_features(x[0], channels[0], layer, "x[0]", node_dim)
    return sources, None if x[1] is None else checked_features(x[1], channels[1], layer, "x[1]", node_dim)


def folded(x: Features, node_dim: int) -> Features:
    """Move the node dimension first and flatten the other dimensions.

    >>> folded(torch.zeros(5, 3, 4), -2).shape
    torch.Size([3, 20])
    """
    return x if x.ndim == 2 or isinstance(x, SparseTensor) else x.movedim(node_dim, 0).flatten(1)


def unfolded(x: Features, like: Features, node_dim: int) -> Features:
    """Invert :func:`folded`; ``like`` has the original shape except for the number of nodes."""
    if like.ndim == 2 or isinstance(x, SparseTensor) or isinstance(like, SparseTensor):
        return x
    return x.unflatten(1, like.movedim(node_dim, 0).shape[1:]).movedim(0, node_dim)


def size_of(
    sources: Features, targets: Features | None, size: Sequence[int | None] | None, of_graph: Sequence[int | None] | None = None
) -> tuple[int, int]:
    """Return the numbers of sources and targets.

    The number of targets comes from the target features, else ``size``, else the graph, else it equals the number of sources.

    Raises:
        SizeError: ``size`` disagrees with the features.
    """
    counts = (None, None) if size is None else tuple(size)
    if len(counts) != 2:
        raise SizeError(f"size is {counts}: pass (number of sources, number of targets)")
    rows = sources.shape[0], None if targets is None else targets.shape[0]
    for kind, length, count in zip(("sources", "targets"), rows, counts, strict=True):
        if length is not None and count is not None and length != count:
            raise SizeError(f"size={counts} gives {count} {kind}, but there are features of {length}: leave size out, or correct it")
    candidates = (rows[1], counts[1], None if of_graph is None else of_graph[1], rows[0])
    return rows[0], next(count for count in candidates if count is not None)
