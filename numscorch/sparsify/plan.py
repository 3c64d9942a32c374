"""SparsityPlan: which weights, activations and gradients of a model become sparse, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import OperandError, UnsupportedError
from ..ir.format import Format, as_format
from ..sparsifiers.low_rank import low_rank_plus_sparse
from ..sparsifiers.magnitude import is_number, magnitude
from ..sparsifiers.names import matched, named
from ..sparsifiers.sparsify import Sparsifier

Kind = Literal["weight", "activation", "gradient"]
Budget = Callable[[Mapping[str, Any]], Mapping[str, float]]


@dataclass(frozen=True)
class PlanRule:
    """What one line of a plan asks for.

    ``names`` is a pattern as the shell has them: ``*`` stands for any text, dots too, ``?`` for one character. With a budget,
    ``sparsifier`` makes a sparsifier of the share that the budget gives a weight.
    """

    kind: Kind
    names: str
    sparsifier: Callable[[Any], Any]
    format: Format | None = None
    always: bool = False
    budget: Budget | None = None

    def __str__(self) -> str:
        return f'{self.kind}("{self.names}")'


@dataclass(frozen=True)
class SparsityPlan:
    """Rules by name; each method returns a new plan with one rule more. Where several rules name the same thing, the last one holds.

    >>> plan = SparsityPlan().weight("*.weight", magnitude(0.8)).weight("head.weight", magnitude(0.5))
    >>> [str(rule) for rule in plan.rules]
    ['weight("*.weight")', 'weight("head.weight")']
    """

    rules: tuple[PlanRule, ...] = ()

    def weight(self, names: str, sparsifier: Sparsifier | str, format: Format | str | None = None, *, always: bool = False) -> SparsityPlan:
        """Store parameters with only the entries that a sparsifier keeps.

        Args:
            names: a pattern of the parameters' names, as ``"encoder.*.linear?.weight"``.
            sparsifier: a callable that makes a mask, or the name of a registered one; it is given the weight as a matrix, a row for
                each output.
            format: how the weight is stored; by default as ``sparsify`` does.
            always: whether a layer that is faster dense becomes sparse, too, and a table that is no smaller then.

        Raises:
            OperandError: no name, or no sparsifier.
            UnsupportedError: ``low_rank_plus_sparse``, of which a sparse layer would keep only a part.
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
        """Share one budget among the parameters that a pattern names.

        Args:
            names: a pattern of the parameters' names.
            budget: from the weights by name to the share of each that becomes zero: ``uniform(0.9)``, ``erk(0.9)``,
                ``global_magnitude(0.9)``, or a function.
            sparsifier: from a share to a sparsifier: ``magnitude``, or ``functools.partial(block_magnitude, 16, 1)``.
            format, always: as in :meth:`weight`.

        Raises:
            OperandError: no name, no sparsifier, or no budget.
        """
        if not callable(budget) or isinstance(budget, type) or hasattr(budget, "kind"):
            share = budget if is_number(budget) else 0.9
            raise OperandError(f"{budget!r} is no budget: give uniform({share}), erk({share}) or global_magnitude({share})")
        if not isinstance(sparsifier, type) and (not callable(sparsifier) or hasattr(sparsifier, "kind")):
            raise OperandError(f"{sparsifier!r} is no function from a share to a sparsifier: give magnitude, without a share")
        return self._with("weight", names, sparsifier, format, always, budget)

    def activation(self, names: str, sparsifier: Sparsifier | str, format: Format | str | None = None) -> SparsityPlan:
        """Make what modules return sparse: entries that aren't kept become zero, and no gradient flows to them.

        Args:
            names: a pattern of the modules' names, as ``"encoder.*.linear1"``.
            sparsifier: a callable that makes a mask of the module's result.
            format: None, for a dense tensor with zeros, which every module takes; with a format the next one gets a
                SparseTensor, which :class:`~numscorch.nn.SparseLinear` and torch's functions take. With ``fullgraph=True``,
                torch's compiler hands on a dense one all the same.

        Raises:
            OperandError: no name, or no sparsifier.
        """
        return self._with("activation", names, sparsifier, format, False)

    def gradient(self, names: str, sparsifier: Sparsifier | str, format: Format | str | None = None) -> SparsityPlan:
        """Make gradients sparse: of a parameter, or of what a module returns, whichever has the name.

        Args:
            names: a pattern of names of parameters or modules.
            sparsifier: a callable that makes a mask of the gradient. A sparse weight's gradient has its pattern: the sparsifier
                is given its values, one after the other.
            format: None, for a dense gradient with zeros; of a dense parameter, COO(n) gives ``grad`` torch's layout of that
                name, as ``torch.nn.Embedding(sparse=True)`` has it, which ``clip_grad_norm_`` and most optimizers don't take.

        Raises:
            OperandError: no name, or no sparsifier.
        """
        return self._with("gradient", names, sparsifier, format, False)

    def _with(
        self, kind: Kind, names: str, sparsifier: Any, format: Format | str | None, always: bool, budget: Budget | None = None
    ) -> SparsityPlan:
        if not isinstance(names, str) or not names:
            raise OperandError(f"{kind}({names!r}, ...): give a pattern of names, as 'encoder.*.weight'")
        sparsifier = named(sparsifier) if budget is None else sparsifier
        if isinstance(sparsifier, low_rank_plus_sparse):
            raise UnsupportedError(
                f'{kind}("{names}", {sparsifier!r}): a layer stores the sparse part only;'
                " for both parts, register a layer made of sparsifier.split(weight) with register_sparse_module"
            )
        if not callable(sparsifier):
            raise OperandError(f'{kind}("{names}", {sparsifier!r}): give a sparsifier, as magnitude(0.9)')
        return SparsityPlan((*self.rules, PlanRule(kind, names, sparsifier, None if format is None else as_format(format), always, budget)))

    def of(self, *kinds: Kind) -> list[PlanRule]:
        """The rules of some kinds, in order."""
        return [rule for rule in self.rules if rule.kind in kinds]


def named_by(rule: PlanRule, names: Iterable[str]) -> list[str]:
    """Those names that a rule's pattern stands for.

    Raises:
        ExpressionError: there are none.

    >>> named_by(PlanRule("weight", "layer.*.weight", magnitude(0.9)), ["layers.0.weight", "layers.0.bias"])
    Traceback (most recent call last):
    ...
    numscorch.ExpressionError: weight("layer.*.weight") names no parameter: did you mean 'layers.0.weight' or 'layers.0.bias'?
    """
    what = {"weight": "parameter", "activation": "module", "gradient": "parameter and no module"}[rule.kind]
    return matched(rule.names, names, f"{rule} names no {what}")
