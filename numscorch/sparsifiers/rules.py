"""Pruning rules: sparsifiers in the form that kernels apply to a result.

A rule is a condition on one value, or the choice of the n largest of every m values. The condition of a streaming
sparsifier is traced: the sparsifier runs once on a proxy, as ``fuse`` runs a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..programs import traced_calls as traced_calls  # registers the traceable functions
from ..programs.fusion import NotFused
from ..programs.tracing import Stop, Traced, TracedNode, Tracer, at_work
from .kinds import Kind, kept_by, kind_of
from .patterned import n_m
from .registration import Registered

LONGEST = 2000  # characters of a condition; a subexpression is repeated at each use
LARGEST = 64  # entries of a block; a kernel compares every pair of them


def ruled(sparsifier: Any, order: int) -> tuple[PruningRule, dict[str, float]]:
    """Translate a sparsifier to a rule for tensors with ``order`` dimensions; return the rule, and its numbers by name.

    Raises:
        NotFused: the sparsifier needs more than one value or one block, or its operations cannot be traced.

    >>> from numscorch.sparsify import register_sparsifier, topk
    >>> large = register_sparsifier(lambda t: t * t > 4, kind="streaming", name="large")
    >>> rule, numbers = ruled(large, 2)
    >>> rule.value("C[i,j]"), numbers
    ('where((C[i,j] * C[i,j]) > sparsifier_number, C[i,j], 0)', {'sparsifier_number': 4.0})
    >>> ruled(topk(2), 2)
    Traceback (most recent call last):
    ...
    numscorch.programs.fusion.NotFused: it is blocking, and kernels support only the blocks of n_m
    """
    kind = kind_of(sparsifier)
    if isinstance(sparsifier, n_m) and type(sparsifier).__call__ is n_m.__call__ and sparsifier.rows == 1:
        if sparsifier.m > LARGEST:
            raise NotFused(f"its blocks have more than {LARGEST} entries, and a kernel would compare every pair")
        return PruningRule(largest=(sparsifier.n, sparsifier.m)), {}
    if kind is Kind.MATERIALIZING:
        raise NotFused("it is materializing: it needs all values, or the shape")
    if kind is Kind.BLOCKING:
        raise NotFused("it is blocking, and kernels support only the blocks of n_m")
    while isinstance(sparsifier, Registered):
        sparsifier = sparsifier.function
    return _rule_of(_trace(lambda value: kept_by(sparsifier, value), order))


def _trace(function: Callable[[Any], Any], order: int) -> TracedNode:
    """Trace a sparsifier's answer for a proxy.

    Raises:
        NotFused: the sparsifier cannot be traced, or it drops no value.
    """
    tracer = Tracer()
    try:
        with at_work(tracer):
            answer = function(tracer.operand(VALUE, (2,) * order, is_sparse=False))
        if tracer.stopped is not None:
            raise tracer.stopped
    except Stop as stop:
        raise NotFused(f"{stop}") from stop
    except Exception as error:  # any error: the sparsifier raises its own when it runs on the result
        raise NotFused(f"with a proxy instead of a tensor it raises {type(error).__name__}: {error}") from error
    if tracer.reads_sizes:
        raise NotFused("it reads the tensor's shape")
    if answer is True:
        raise NotFused("it keeps every value, so there is nothing to drop")
    if not isinstance(answer, Traced) or not answer._node.is_test or answer._node.shape != (2,) * order:
        raise NotFused("it does not return a comparison of the tensor's values")
    return answer._node


def _rule_of(answer: TracedNode) -> tuple[PruningRule, dict[str, float]]:
    """Translate a traced answer to a rule, and its numbers by name.

    Raises:
        NotFused: the answer cannot be expressed as a condition.
    """
    is_negation = answer.kind == "op" and answer.form == "-" and answer.args[1].is_test  # traced as 1 minus a comparison
    numbers: dict[float, str] = {}
    top = answer.args[1] if is_negation else answer
    condition = _text(top, numbers)
    condition = condition[1:-1] if top.kind == "op" else condition
    return PruningRule(condition, is_negation), {name: number for number, name in numbers.items()}


def _text(node: TracedNode, numbers: dict[float, str]) -> str:
    """Print a node as an expression of the value, in parentheses; numbers other than 0 and 1 become operands."""
    match node.kind:
        case "operand":
            return node.form
        case "number":
            return _number(float(node.form), numbers)
        case "op" | "call":
            texts = [_text(arg, numbers) for arg in node.args]
            text = f"({texts[0]} {node.form} {texts[1]})" if node.kind == "op" else f"{node.form}({', '.join(texts)})"
            if len(text) > LONGEST:
                raise NotFused("its condition would be too long")
            return text
        case _:
            raise NotFused(f"its decision on an entry reads other entries ({node.kind})")


def _number(value: float, numbers: dict[float, str]) -> str:
    """Return the number itself if it is 0 or 1, else the name of the operand that holds it."""
    if value in (0.0, 1.0):
        return f"{value:g}".replace("-", "")
    return numbers.setdefault(value, NUMBER if not numbers else f"{NUMBER}_{len(numbers) + 1}")


NUMBER = "sparsifier_number"  # name of the operands that hold a rule's numbers, so that a new number needs no new kernel


VALUE = "{}"  # placeholder of the value in a condition's text


@dataclass(frozen=True, slots=True)
class PruningRule:
    """The rule by which a kernel keeps values.

    ``condition`` holds for the values that are kept, or, if ``negated``, for the values that are dropped. It is empty
    if the rule has no condition. If ``largest`` is (n, m), the rule keeps the n largest of every m values along the last
    dimension.
    """

    condition: str = ""
    negated: bool = False
    largest: tuple[int, int] | None = None

    def value(self, access: str) -> str:
        """Return the expression of the result: the value if it is kept, else 0.

        >>> PruningRule("abs({}) <= 2", negated=True).value("C[i,j]"), PruningRule().value("C[i,j]")
        ('where(abs(C[i,j]) <= 2, 0, C[i,j])', 'C[i,j]')
        """
        if not self.condition:
            return access
        kept = (f"0, {access}") if self.negated else f"{access}, 0"
        return f"where({self.condition.replace(VALUE, access)}, {kept})"
