"""Lazy linear layers of graph convolutions, whose input size may come from the first input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter, is_lazy

from ..errors import SizeError

LAZY = -1  # placeholder of a size that the first input sets
Draw = Callable[[torch.nn.Linear], None]


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
