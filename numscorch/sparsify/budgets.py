"""Budgets: the distribution of a given fraction of zeros over the weights of a model.

A budget is a callable. It takes the weights by name, as tensors or shapes, and returns each weight's fraction of zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch

from ..errors import OperandError
from ..sparsifiers.base import WithFraction, called_as
from ..sparsifiers.magnitude import bound_of, counts_of

Sized = torch.Tensor | Sequence[int]


@dataclass(frozen=True)
class _Budget(WithFraction):
    """The base class of budgets."""

    is_budget: ClassVar[bool] = True


@called_as("uniform(0.9)")
@dataclass(frozen=True)
class uniform(_Budget):
    """Zero the same fraction of each weight.

    Raises:
        SizeError: the fraction is not between 0 and 1.

    >>> uniform(0.9)({"first": (4, 8), "second": (2, 4)})
    {'first': 0.9, 'second': 0.9}
    """

    def __call__(self, weights: Mapping[str, Sized]) -> dict[str, float]:
        """Return each weight's fraction of zeros."""
        return dict.fromkeys(weights, self.fraction)


@called_as("erk(0.9)")
@dataclass(frozen=True)
class erk(_Budget):
    """Erdős-Rényi-kernel: keep a fraction proportional to the sum of a weight's sizes over their product.

    Small weights therefore keep more. For a matrix, the kept fraction is proportional to (out + in) / (out * in).
    Weights that would keep more entries than they have stay dense, and the other weights share the rest.

    Raises:
        SizeError: the fraction is not between 0 and 1.

    Source: Mocanu and others, "Scalable training of artificial neural networks with adaptive sparse connectivity", 2018; with
    kernels: Evci, Gale, Menick, Castro, Elsen, "Rigging the lottery: making all tickets winners", 2020, section 3.

    >>> erk(0.5)({"wide": (32, 32), "narrow": (2, 32)})
    {'wide': 0.53125, 'narrow': 0.0}
    """

    def __call__(self, weights: Mapping[str, Sized]) -> dict[str, float]:
        """Return each weight's fraction of zeros."""
        shapes = {name: _shape(weight) for name, weight in weights.items() if prod(_shape(weight))}
        left, free = (1 - self.fraction) * sum(map(prod, shapes.values())), dict(shapes)
        while free:
            scale = left / sum(map(sum, free.values()))
            full = [name for name, shape in free.items() if scale * sum(shape) > prod(shape)]
            if not full:
                break
            left -= sum(prod(free.pop(name)) for name in full)
        return {name: 1 - scale * sum(free[name]) / prod(free[name]) if name in free else 0.0 for name in weights}


@called_as("global_magnitude(0.9)")
@dataclass(frozen=True)
class global_magnitude(_Budget):
    """Zero the smallest absolute values of the whole model, with one bound for all weights; of equal values, the first.

    O(n), with little extra memory.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: the weights are shapes or integers, which have no values to compare.

    Source: Han, Pool, Tran, Dally, "Learning both weights and connections for efficient neural networks", 2015; Frankle and
    Carbin, "The lottery ticket hypothesis", 2019, section 4, for one bound.

    >>> global_magnitude(0.5)({"small": torch.tensor([1.0, -2.0]), "large": torch.tensor([3.0, -1.5])})
    {'small': 0.5, 'large': 0.5}
    """

    def __call__(self, weights: Mapping[str, Sized]) -> dict[str, float]:
        """Return each weight's fraction of zeros."""
        tensors = {name: _values(self, name, tensor) for name, tensor in weights.items()}
        tensor = list(tensors.values())
        bound, ties = bound_of(tensor, round(self.fraction * sum(map(torch.Tensor.numel, tensor))))
        shares = {}
        for (name, weight), (below, equal) in zip(tensors.items(), counts_of(tensor, bound), strict=True):
            shares[name] = (below + min(equal, ties)) / max(weight.numel(), 1)
            ties -= min(equal, ties)
        return shares


def _shape(weight: Sized) -> tuple[int, ...]:
    return tuple(weight.shape if isinstance(weight, torch.Tensor) else weight) or (1,)


def _values(budget: object, name: str, weight: Sized) -> torch.Tensor:
    """Return the values of a weight, which have to be floating-point."""
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        raise OperandError(f"{budget} looks at values, and {name} has none: give floating-point tensors, or use uniform or erk")
    return weight.detach()
