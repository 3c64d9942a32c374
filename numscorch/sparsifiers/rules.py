"""Sparsifiers as kernels apply them: the condition on one value under which it is kept, or that it is among the largest of its block.

A streaming sparsifier is run once on a stand-in for one tensor, as ``fuse`` runs a function, and what it compares is written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ir.format import COO, CSR, Format
from ..programs import traced_calls as traced_calls  # which says what is written down
from ..programs.tracing import Node, Stop, Traced, Tracer, at_work
from .kinds import Kind, has_rule, kept_by, kind_of
from .patterned import n_m
from .registration import Registered

LONGEST = 2000  # characters of a condition: what is used more than once stands in it as often
LARGEST = 64  # entries of a block of which each is compared with each


class NotOne(Exception):
    """Why a sparsifier is applied to a result that is there as a whole."""


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rule, its numbers, and whether NaN among what it keeps has to be shown to the sparsifier, which may refuse it."""

    rule: PruningRule
    numbers: tuple[float, ...] = ()
    is_checked: bool = True


def ruled(sparsifier: Any, order: int) -> Ruled:
    """What a sparsifier keeps of a tensor of so many dimensions, as a rule.

    Raises:
        NotOne: it has to see more than one value, or block, or does what can't be written down.

    >>> from numscorch.sparsify import register_sparsifier, topk
    >>> large = register_sparsifier(lambda t: t * t > 4, kind="streaming", name="large")
    >>> ruled(large, 2).rule.value("C[i,j]"), ruled(large, 2).numbers
    ('where((C[i,j] * C[i,j]) > number_of_what_is_kept, C[i,j], 0)', (4.0,))
    >>> ruled(topk(2), 2)
    Traceback (most recent call last):
    ...
    numscorch.sparsifiers.rules.NotOne: it is blocking, and kernels compare values within n_m's blocks of a row only
    """
    kind = kind_of(sparsifier)
    if isinstance(sparsifier, n_m) and type(sparsifier).__call__ is n_m.__call__ and sparsifier.rows == 1:
        if sparsifier.m > LARGEST:
            raise NotOne(f"of blocks of more than {LARGEST} entries, each would be compared with each")
        return Ruled(PruningRule(largest=(sparsifier.n, sparsifier.m)))
    if kind is Kind.MATERIALIZING:
        raise NotOne("it is materializing: it has to see all values, or the shape")
    if kind is Kind.BLOCKING:
        raise NotOne("it is blocking, and kernels compare values within n_m's blocks of a row only")
    while isinstance(sparsifier, Registered):
        sparsifier = sparsifier.function
    return _written(_traced(lambda value: kept_by(sparsifier, value), order), is_checked=has_rule(sparsifier))


def usual_format(sparsifier: Any, order: int) -> Format:
    """In which format ``sparsify`` stores what is kept where none is asked for."""
    wanted = getattr(sparsifier, "format", None)
    return wanted if isinstance(wanted, Format) and wanted.order == order else CSR if order == 2 else COO(order)


def _traced(function: Callable[[Any], Any], order: int) -> Node | bool:
    """What a sparsifier answers for a stand-in.

    Raises:
        NotOne: it can't be run on one.
    """
    tracer = Tracer()
    try:
        with at_work(tracer):
            answer = function(tracer.operand(VALUE, (2,) * order, is_sparse=False))
        if tracer.stopped is not None:
            raise tracer.stopped
    except Stop as stop:
        raise NotOne(f"{stop}") from stop
    except Exception as error:  # whatever it is: run on the result, it raises its own
        raise NotOne(f"on a stand-in for a tensor it raises {type(error).__name__}: {error}") from error
    if tracer.reads_sizes:
        raise NotOne("it looks at the tensor's shape")
    if answer is True:
        return True
    if not isinstance(answer, Traced) or not answer._node.is_test or answer._node.shape != (2,) * order:
        raise NotOne("it returns no comparison of the tensor's values")
    return answer._node


def _written(answer: Node | bool, is_checked: bool) -> Ruled:
    """The rule of an answer.

    Raises:
        NotOne: it can't be written down, or leaves nothing out.
    """
    if isinstance(answer, bool):
        raise NotOne("it keeps every value, so that there is nothing to leave out")
    negated = _negated(answer)
    numbers: dict[float, str] = {}
    top = answer if negated is None else negated
    condition = _text(top, numbers)
    condition = condition[1:-1] if top.kind == "op" else condition
    return Ruled(PruningRule(condition, negated is not None, len(numbers)), tuple(numbers), is_checked)


def _negated(node: Node) -> Node | None:
    """What a node is the negation of: 1 less a comparison."""
    is_negation = node.kind == "op" and node.form == "-" and node.args[1].is_test
    return node.args[1] if is_negation else None


def _text(node: Node, numbers: dict[float, str]) -> str:
    """A node as an expression of the value, in parentheses; its numbers but 0 and 1 are operands."""
    match node.kind:
        case "operand":
            return node.form
        case "number":
            return _number(float(node.form), numbers)
        case "op" | "call":
            texts = [_text(arg, numbers) for arg in node.args]
            text = f"({texts[0]} {node.form} {texts[1]})" if node.kind == "op" else f"{node.form}({', '.join(texts)})"
            if len(text) > LONGEST:
                raise NotOne("its condition would be too long, written out")
            return text
        case _:
            raise NotOne(f"it looks at other entries than the one that it decides on ({node.kind})")


def _number(value: float, numbers: dict[float, str]) -> str:
    """The number itself where it is 0 or 1, else the operand that holds it."""
    if value in (0.0, 1.0):
        return f"{value:g}".replace("-", "")
    return numbers.setdefault(value, NUMBER if not numbers else f"{NUMBER}_{len(numbers) + 1}")


NUMBER = "number_of_what_is_kept"  # the operands that hold a sparsifier's numbers: another one takes no other kernel


VALUE = "{}"  # in a condition's text, the value


@dataclass(frozen=True, slots=True)
class PruningRule:
    """What a kernel keeps.

    ``condition`` is what holds for a value that is kept, or, where it is ``negated``, for one that isn't; it is empty where all are. It
    reads so many ``numbers``, by name. If ``largest`` is (n, m), the n largest of every m along the last dimension are kept.
    """

    condition: str = ""
    negated: bool = False
    numbers: int = 0
    largest: tuple[int, int] | None = None

    def value(self, access: str) -> str:
        """The value of what is kept, which is 0 elsewhere.

        >>> PruningRule("abs({}) <= 2", negated=True).value("C[i,j]"), PruningRule().value("C[i,j]")
        ('where(abs(C[i,j]) <= 2, 0, C[i,j])', 'C[i,j]')
        """
        if not self.condition:
            return access
        kept = (f"0, {access}") if self.negated else f"{access}, 0"
        return f"where({self.condition.replace(VALUE, access)}, {kept})"

    @property
    def names(self) -> list[str]:
        """The names of its numbers.

        >>> PruningRule("{} > x", numbers=2).names
        ['number_of_what_is_kept', 'number_of_what_is_kept_2']
        """
        return [NUMBER if not at else f"{NUMBER}_{at + 1}" for at in range(self.numbers)]
