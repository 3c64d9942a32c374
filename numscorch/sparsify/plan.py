"""SparsityPlan: rules by name that make weights, activations and gradients of a model sparse; budgets of weights.

A budget distributes a given fraction of zeros over the weights of a model. It is a callable that takes the weights by name, as tensors or
shapes, and returns each weight's fraction of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import torch

from ..errors import OperandError, UnsupportedError
from ..ir.format import Format, as_format
from ..sparsifiers.base import WithFraction, called_as, is_number, matched, named
from ..sparsifiers.composing import low_rank_plus_sparse
from ..sparsifiers.magnitude import bound_of, counts_of, has_nan, magnitude
from ..sparsifiers.sparsify import Sparsifier
from .checks import check_factory

Sized = torch.Tensor | Sequence[int]
RuleKind = Literal["weight", "activation", "gradient"]
Budget = Callable[[Mapping[str, Any]], Mapping[str, float]]


@dataclass(frozen=True)
class Flow:
    """A hook of a plan's rule: the name of the module or parameter, the sparsifier, and the format of the kept entries.

    Without a format, the kept entries stay in a dense tensor.
    """

    name: str
    sparsifier: Sparsifier
    format: Format | None = None


@dataclass(frozen=True)
class _Budget(WithFraction):
    is_budget: ClassVar[bool] = True


@called_as("uniform(0.9)")
@dataclass(frozen=True)
class uniform(_Budget):
    """Budget: zero the same fraction of each weight.

    A call takes the weights by name, as tensors or shapes, and returns the fraction of zeros of each weight.

    Attributes:
        fraction: the fraction of all entries that becomes zero, between 0 and 1.

    Raises:
        SizeError: the fraction is not between 0 and 1.

    >>> uniform(0.9)({"first": (4, 8), "second": (2, 4)})
    {'first': 0.9, 'second': 0.9}
    """

    def __call__(self, weights: Mapping[str, Sized]) -> dict[str, float]:
        """Return the fraction of zeros of each weight, by name."""
        return dict.fromkeys(weights, self.fraction)


@called_as("erk(0.9)")
@dataclass(frozen=True)
class erk(_Budget):
    """Budget (Erdős-Rényi-kernel): keep a fraction proportional to the sum of a weight's sizes, divided by their product.

    For a matrix, the kept fraction is proportional to (out + in) / (out * in), so small weights keep a larger fraction. Weights that would
    keep more entries than they have stay dense. The other weights share the remaining entries.

    A call takes the weights by name, as tensors or shapes, and returns the fraction of zeros of each weight.

    Attributes:
        fraction: the fraction of all entries that becomes zero, between 0 and 1.

    Raises:
        SizeError: the fraction is not between 0 and 1.

    Source: Mocanu and others, "Scalable training of artificial neural networks with adaptive sparse connectivity", 2018; with
    kernels: Evci, Gale, Menick, Castro, Elsen, "Rigging the lottery: making all tickets winners", 2020, section 3.

    >>> erk(0.5)({"wide": (32, 32), "narrow": (2, 32)})
    {'wide': 0.53125, 'narrow': 0.0}
    """

    def __call__(self, weights: Mapping[str, Sized]) -> dict[str, float]:
        """Return the fraction of zeros of each weight, by name."""
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
    """Budget: zero the smallest absolute values of all weights, with one bound for all of them.

    Of equal values, the first become zero. A call takes the weights by name, as floating-point tensors, and returns the fraction of zeros
    of each weight.

    Attributes:
        fraction: the fraction of all entries that becomes zero, between 0 and 1.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: calls raise it for weights that are shapes or integers, or hold NaN.

    Complexity:
        O(n) for n entries. They are read in chunks, with little extra memory.

    Source: Han, Pool, Tran, Dally, "Learning both weights and connections for efficient neural networks", 2015; Frankle and
    Carbin, "The lottery ticket hypothesis", 2019, section 4, for one bound.

    >>> global_magnitude(0.5)({"small": torch.tensor([1.0, -2.0]), "large": torch.tensor([3.0, -1.5])})
    {'small': 0.5, 'large': 0.5}
    """

    def __call__(self, weights: Mapping[str, Sized]) -> dict[str, float]:
        """Return the fraction of zeros of each weight, by name."""
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
    """Return the values of a weight; they have to be floating-point and comparable."""
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        raise OperandError(f"{budget} looks at values, and {name} has none: give floating-point tensors, or use uniform or erk")
    if has_nan(weight):
        raise OperandError(f"{budget} of {name}, which holds NaN: it cannot be compared; replace it, as with nan_to_num()")
    return weight.detach()


@dataclass(frozen=True)
class PlanRule:
    """One rule of a :class:`SparsityPlan`; the methods of the plan make it.

    Attributes:
        kind: ``"weight"``, ``"activation"`` or ``"gradient"``.
        names: a shell pattern of names: ``*`` matches any text, dots included, and ``?`` matches one character.
        sparsifier: the sparsifier; in a rule with a budget, a function from a weight's fraction of zeros to a sparsifier.
        format: the format of the kept entries; None for the default.
        always: whether a layer becomes sparse even if it is faster dense.
        budget: a function from the weights by name to the fraction of zeros of each weight; None if there is no budget.

    >>> rule = SparsityPlan().weights("encoder.*", uniform(0.9)).rules[0]
    >>> print(rule, rule.budget)
    weight("encoder.*") uniform(fraction=0.9)
    """

    kind: RuleKind
    names: str
    sparsifier: Callable[[Any], Any]
    format: Format | None = None
    always: bool = False
    budget: Budget | None = None

    def __str__(self) -> str:
        return f'{self.kind}("{self.names}")'


@dataclass(frozen=True)
class SparsityPlan:
    """Rules that name the weights, activations and gradients of a model that become sparse, for :func:`sparsify_model`.

    Plans are immutable: each of the methods :meth:`weight`, :meth:`weights`, :meth:`activation` and :meth:`gradient` returns a new plan
    with one more rule. Names are shell patterns: ``*`` matches any text, dots included, and ``?`` matches one character. The last rule that
    matches a name applies.

    Attributes:
        rules: the rules, in order.

    >>> plan = SparsityPlan().weight("*.weight", magnitude(0.8)).weight("head.weight", magnitude(0.5))
    >>> [str(rule) for rule in plan.rules]
    ['weight("*.weight")', 'weight("head.weight")']
    """

    rules: tuple[PlanRule, ...] = ()

    def weight(self, names: str, sparsifier: Sparsifier | str, format: Format | str | None = None, *, always: bool = False) -> SparsityPlan:
        """Add a rule for weights: layers store only the entries that a sparsifier keeps.

        Args:
            names: a pattern of parameter names, such as ``"encoder.*.linear?.weight"``.
            sparsifier: a callable that makes a mask, or the name of a registered one. It gets the weight as a matrix, with a row for each
                output.
            format: the format of the weight; by default as in :func:`sparsify`.
            always: whether a layer becomes sparse even if it is faster dense, and an embedding table even if it is not smaller.

        Returns:
            The new plan.

        Raises:
            OperandError: ``names`` is not a pattern, or ``sparsifier`` is not a sparsifier.
            FormatError: the format is unknown.
            UnsupportedError: the sparsifier is ``low_rank_plus_sparse``, because a sparse layer would store only its sparse part.
        """
        return self._with("weight", names, sparsifier, format, always)

    def weights(
        self,
        names: str,
        budget: Budget,
        sparsifier: Callable[[float], Sparsifier] = magnitude,
        format: Format | str | None = None,
        *,
        always: bool = False,
    ) -> SparsityPlan:
        """Add a rule for weights that share a budget.

        Args:
            names: a pattern of parameter names.
            budget: ``uniform(0.9)``, ``erk(0.9)``, ``global_magnitude(0.9)``, or another function from the weights by name to the fraction
                of zeros of each weight.
            sparsifier: a function from a fraction to a sparsifier, such as ``magnitude`` or ``functools.partial(block_magnitude, 16, 1)``.
            format: the format of the weights; by default as in :func:`sparsify`.
            always: whether layers become sparse even if they are faster dense, and embedding tables even if they are not smaller.

        Returns:
            The new plan.

        Raises:
            OperandError: ``names`` is not a pattern, ``sparsifier`` makes no sparsifiers, or ``budget`` is not a budget.
            FormatError: the format is unknown.
        """
        if not callable(budget) or isinstance(budget, type) or hasattr(budget, "kind"):
            share = budget if is_number(budget) else 0.9
            raise OperandError(f"{budget!r} is not a budget: give uniform({share}), erk({share}) or global_magnitude({share})")
        check_factory(sparsifier)
        return self._with("weight", names, sparsifier, format, always, budget)

    def activation(self, names: str, sparsifier: Sparsifier | str, format: Format | str | None = None) -> SparsityPlan:
        """Add a rule for the outputs of modules: dropped entries become zero and get no gradient.

        Args:
            names: a pattern of module names, such as ``"encoder.*.linear1"``.
            sparsifier: a callable that makes a mask of the output of the module, or the name of a registered one.
            format: None for a dense tensor with zeros. With a format, the next module gets a SparseTensor;
                :class:`~numscorch.nn.SparseLinear` and torch's functions accept it. Programs of ``torch.compile`` with
                ``fullgraph=True`` pass a dense tensor in both cases.

        Returns:
            The new plan.

        Raises:
            OperandError: ``names`` is not a pattern, or ``sparsifier`` is not a sparsifier.
            FormatError: the format is unknown.
            UnsupportedError: the sparsifier is ``low_rank_plus_sparse``.
        """
        return self._with("activation", names, sparsifier, format, False)

    def gradient(self, names: str, sparsifier: Sparsifier | str, format: Format | str | None = None) -> SparsityPlan:
        """Add a rule for gradients: dropped entries of the gradient become zero.

        A name of a module stands for the gradient of its output.

        Args:
            names: a pattern of parameter or module names.
            sparsifier: a callable that makes a mask of the gradient, or the name of a registered one. The gradient of a sparse weight has
                the pattern of the weight; the sparsifier gets its values as a vector.
            format: None for a dense gradient with zeros. For a dense parameter, ``COO(n)`` stores ``grad`` in torch's COO layout, as
                ``torch.nn.Embedding(sparse=True)`` does. ``clip_grad_norm_`` and most optimizers do not accept this layout.

        Returns:
            The new plan.

        Raises:
            OperandError: ``names`` is not a pattern, or ``sparsifier`` is not a sparsifier.
            FormatError: the format is unknown.
            UnsupportedError: the sparsifier is ``low_rank_plus_sparse``.
        """
        return self._with("gradient", names, sparsifier, format, False)

    def _with(
        self, kind: RuleKind, names: str, sparsifier: Any, format: Format | str | None, always: bool, budget: Budget | None = None
    ) -> SparsityPlan:
        if not isinstance(names, str) or not names:
            raise OperandError(f"{kind}({names!r}, ...): give a pattern of names, such as 'encoder.*.weight'")
        sparsifier = named(sparsifier) if budget is None else sparsifier
        if isinstance(sparsifier, low_rank_plus_sparse):
            raise UnsupportedError(
                f'{kind}("{names}", {sparsifier!r}): a layer stores the sparse part only;'
                " for both parts, register a layer made of sparsifier.split(weight) with register_sparse_module"
            )
        return SparsityPlan((*self.rules, PlanRule(kind, names, sparsifier, None if format is None else as_format(format), always, budget)))

    def of(self, *kinds: RuleKind) -> list[PlanRule]:
        """Return the rules of some kinds, in order.

        Args:
            *kinds: ``"weight"``, ``"activation"`` or ``"gradient"``.
        """
        return [rule for rule in self.rules if rule.kind in kinds]


def named_by(rule: PlanRule, names: Iterable[str]) -> list[str]:
    """Return the names that match a rule's pattern.

    Raises:
        ExpressionError: no name matches.

    >>> named_by(PlanRule("weight", "layer.*.weight", magnitude(0.9)), ["layers.0.weight", "layers.0.bias"])
    Traceback (most recent call last):
    ...
    numscorch.ExpressionError: weight("layer.*.weight") names no parameter: did you mean 'layers.0.weight' or 'layers.0.bias'?
    """
    what = {"weight": "parameter", "activation": "module", "gradient": "parameter and no module"}[rule.kind]
    return matched(rule.names, names, f"{rule} names no {what}")
