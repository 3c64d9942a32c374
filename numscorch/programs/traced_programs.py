"""Write the nodes of a traced function as a program in index notation, for ``evaluate``; equal contractions are computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

from ..frontend.operator_forms import FORMS, keeps_zero
from ..ir.format import dense
from ..ir.index import Access, Apply, Assignment, Binary, Expr, IndexVar, Literal, TensorVar, factors_of, product, variables_in
from .tracing import TracedNode

LETTERS = "ijklmnpqrstuvw"
SHARED = ("contract", "reduce", "softmax")  # kinds of nodes to share; the program repeats cheap nodes
Names = Sequence[str]


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """The program of a traced function; ``sparsifier`` prunes its result, if given."""

    text: str
    reads: frozenset[str]  # names of the operands
    missing: tuple[int, ...]  # dimensions of size 1 that the text's result lacks
    format: Any  # format of the result, as the operator alone would choose it; None to infer it
    sparsifier: Any = None


def program_of(root: TracedNode, used: Names) -> TracedProgram:
    """Return the program that computes a node; new names avoid the ``used`` ones."""
    root = _Repeats(root).shared(root, is_sampled=False)
    writer = _Writer(root, used)
    writer.emit(root, writer.fresh("R"))
    missing = tuple(d for d in range(len(root.shape)) if d not in root.used)
    base = viewed(root)
    reads = frozenset(node.form for node in (base, *writer.uses) if node.kind == "operand")
    return TracedProgram("\n".join(writer.lines), reads, missing, "dense" if base.kind == "reduce" and len(base.shape) < 2 else None)


def viewed(node: TracedNode) -> TracedNode:
    """Return the node under any number of views."""
    return viewed(node.args[0]) if node.kind == "view" else node


def leads(node: TracedNode) -> bool:
    """Return whether a node is nonzero at a sparse operand's entries only, so that it can sample the other factors of a product."""
    match node.kind:
        case "operand":
            return node.is_sparse
        case "softmax" | "view":
            return leads(node.args[0])
        case "op" if node.form == "*":
            return any(leads(arg) and arg.shape == node.shape for arg in node.args)
        case "op" if node.form == "/":
            return leads(node.args[0]) and node.args[0].shape == node.shape
        case "call" if len(node.args) == 1 and keeps_zero(FORMS[node.form]):
            return leads(node.args[0])
        case _:
            return False


class _Writer:
    """Writes statements; nodes that are read more than once, and reductions, get separate statements."""

    def __init__(self, root: TracedNode, used: Names):
        self.lines: list[str] = []
        self.names = set(used)
        self.named: dict[TracedNode, str] = {}
        self.uses = uses_of(viewed(root), viewed)

    def fresh(self, name: str) -> str:
        """Return an unused name: the given one, or with a number appended."""
        free = next(n for n in (name, *(f"{name}{at}" for at in range(1, len(self.names) + 2))) if n not in self.names)
        self.names.add(free)
        return free

    def emit(self, node: TracedNode, name: str) -> None:
        """Write the statements that compute a node."""
        base = viewed(node)
        letters = (letter + (str(turn) if turn else "") for turn in count() for letter in LETTERS)  # i, j, ..., w, i1, j1, ...
        names = list(islice(letters, len(base.args[0].shape if base.kind == "reduce" else base.shape)))
        if base.kind == "softmax":
            self._softmax(node, base, name, names)
        elif base.kind == "reduce":
            result_names = [index for d, index in enumerate(names) if d not in base.axes]
            body = self._inline(base.args[0], names, letters, is_open=False)  # a contraction would mix its sum with the reduction
            self._assign(name, node, _outer_names(node, result_names), body, base.form)
        else:
            self._assign(name, node, _outer_names(node, names), self._inline(base, names, letters, is_open=True, is_root=True))

    def _assign(self, name: str, node: TracedNode, names: Names, body: Expr, op: str = "=") -> None:
        self.lines.append(str(Assignment(_access(name, node, names), body, op)))

    def _softmax(self, node: TracedNode, base: TracedNode, name: str, names: Names) -> None:
        """Write a softmax over stored entries, exp(score - maximum) divided by the sum, or its logarithm.

        The maximum does not change the result, so no gradient flows through it.
        """
        (arg,) = base.args
        scores = self._as_operand(arg, names)
        rows = replace(base, used=base.used - set(base.axes))
        largest, shifted, total = (self.fresh(n) for n in ("m", "E", "l"))
        self._assign(largest, rows, names, scores, "stored max=")
        stored, gap = Apply("stored", (scores,)), Binary("-", scores, _access(largest, rows, names))
        exponential, sums = _access(shifted, base, names), _access(total, rows, names)
        self._assign(shifted, base, names, Binary("*", stored, Apply("exp", (gap,))))
        self._assign(total, rows, names, exponential, "+=")
        logarithm = Binary("*", stored, Binary("-", gap, Apply("log", (sums,))))
        value = logarithm if base.form == "log_softmax" else Binary("/", exponential, sums)
        self._assign(name, node, _outer_names(node, names), value)

    def _as_operand(self, node: TracedNode, names: Names) -> Expr:
        """Return an access to an operand or a named node, or a number; other nodes get a separate statement first."""
        if node.kind == "view":
            return self._as_operand(node.args[0], _inner_names(node, names))
        if node.kind == "number":
            return Literal(float(node.form), "float64", is_float=True)
        if node.kind == "operand":
            return _access(node.form, node, names)
        if node not in self.named:
            name = self.fresh("T" if node.kind != "softmax" else "P")
            self.emit(node, name)
            self.named[node] = name
        return _access(self.named[node], node, names)

    def _inline(
        self, node: TracedNode, names: Names, letters: Iterator[str], is_open: bool, is_root: bool = False, lead: Expr | None = None
    ) -> Expr:
        """Return a node's expression; if ``is_open``, the expression may contain a contraction.

        If ``lead`` is given, a sparse factor of a surrounding product, contractions are computed at its entries only.
        """
        if node.kind == "view":
            return self._inline(node.args[0], _inner_names(node, names), letters, is_open, is_root, lead)
        is_once = is_root or self.uses[node] < 2
        if node in self.named or node.kind in ("operand", "number", "reduce", "softmax") or not is_once:
            return self._as_operand(node, names)
        if node.kind == "contract":
            if lead is not None and set(map(str, variables_in(lead))) == set(names) and len(names) == len(node.used):
                return self._sampled(node, names, letters, lead)
            return product(self._factors(node, names, letters)) if is_open else self._as_operand(node, names)
        if node.form == "*" and (masked := self._masked(node, names, letters, is_open)) is not None:
            return masked
        is_open = is_open and (node.kind == "call" or node.form not in ("*", "/"))
        args = [
            self._inline(arg, _aligned(names, arg), letters, is_open, lead=lead if arg.shape == node.shape else None) for arg in node.args
        ]
        return Apply(node.form, tuple(args)) if node.kind == "call" else Binary(node.form, *args)

    def _masked(self, node: TracedNode, names: Names, letters: Iterator[str], is_open: bool) -> Expr | None:
        """Return a product whose sparse factor samples the contractions in the other factor; None for other nodes."""
        for at, factor in enumerate(node.args):
            other = node.args[1 - at]
            if not leads(factor) or factor.shape != node.shape or len(factor.used) < len(names) or not self._has_contraction(other):
                continue
            is_sampled = viewed(other).kind == "contract" and other.shape == node.shape and len(other.used) == len(names)
            if is_sampled and not is_open:
                return self._as_operand(node, names)
            lead = self._as_operand(factor, names)
            inner = self._inline(other, _aligned(names, other), letters, is_open=is_sampled, lead=None if is_sampled else lead)
            factors = factors_of(inner) if is_sampled else [inner]
            return product([lead, *factors] if at == 0 else [*factors, lead])
        return None

    def _has_contraction(self, node: TracedNode) -> bool:
        """Return whether a node's text would contain a contraction."""
        base = viewed(node)
        if base in self.named or self.uses[base] > 1:
            return False
        return base.kind == "contract" or (base.kind in ("op", "call") and any(map(self._has_contraction, base.args)))

    def _factors(self, node: TracedNode, names: Names, letters: Iterator[str]) -> list[Expr]:
        """Return the factors of a contraction, each an access."""
        *terms, result = node.axes
        index_names = dict(zip(result, names, strict=True))
        for name in (name for term in terms for name in term):
            if name not in index_names:
                index_names[name] = next(letters)
        return [self._as_operand(arg, [index_names[name] for name in term]) for arg, term in zip(node.args, terms, strict=True)]

    def _sampled(self, node: TracedNode, names: Names, letters: Iterator[str], lead: Expr) -> Expr:
        """Write a statement that computes a contraction at the entries of ``lead``, and return an access to its result."""
        factors = self._factors(node, names, letters)
        name = self.fresh("T")
        self._assign(name, node, names, product([Apply("stored", (lead,)), *factors]))
        return _access(name, node, names)


def _access(name: str, node: TracedNode, names: Names) -> Access:
    """Make an access to a tensor; dimensions of size 1 have no index."""
    return Access(TensorVar(name, dense(len(node.used))), tuple(IndexVar(names[d]) for d in sorted(node.used)))


def _aligned(names: Names, node: TracedNode) -> Names:
    """Return the index names of a tensor that broadcasts: those of the last dimensions."""
    return names[len(names) - len(node.shape) :]


def _inner_names(view: TracedNode, names: Names) -> list[str]:
    """Return the index names of a view's argument, given those of the view."""
    inner = dict(zip(view.axes, names, strict=True))
    return [inner[d] for d in range(len(view.args[0].shape))]


def _outer_names(node: TracedNode, names: Names) -> list[str]:
    """Return the index names of a view, given those of the node under it."""
    if node.kind != "view":
        return list(names)
    inner = _outer_names(node.args[0], names)
    return ["" if axis is None else inner[axis] for axis in node.axes]


def uses_of(root: TracedNode, under: Callable[[TracedNode], TracedNode] = lambda node: node) -> Counter[TracedNode]:
    """Count how often each node is an argument of other nodes; ``under`` maps arguments to the nodes to count."""
    uses: Counter[TracedNode] = Counter()
    pending = [root]
    while pending:
        for arg in map(under, pending.pop().args):
            uses[arg] += 1
            if uses[arg] == 1:
                pending.append(arg)
    return uses


class _Repeats:
    """Merges equal nodes, except for contractions that are computed at the entries of a sparse factor."""

    def __init__(self, root: TracedNode):
        self.uses = uses_of(root)
        self.numbers: dict[TracedNode, int] = {}
        self.value_numbers: dict[Hashable, int] = {}
        self.nodes: dict[TracedNode | int, TracedNode] = {}

    def number(self, node: TracedNode) -> int:
        """Return a number that nodes share if they and all their arguments are equal (value numbering)."""
        if node not in self.numbers:
            key = (node.kind, node.form, node.shape, node.used, node.axes, node.is_sparse, node.is_test)
            self.numbers[node] = self.value_numbers.setdefault((key, *map(self.number, node.args)), len(self.value_numbers))
        return self.numbers[node]

    def shared(self, node: TracedNode, is_sampled: bool) -> TracedNode:
        """Return the node that stands for all equal nodes; contractions that are read at a sparse tensor's entries only stay separate."""
        is_own = node.kind not in SHARED or (node.kind == "contract" and is_sampled and self.uses[node] < 2)
        key = node if is_own else self.number(node)
        if key not in self.nodes:
            args = tuple(self.shared(arg, self._is_sampled(node, at, is_sampled)) for at, arg in enumerate(node.args))
            self.nodes[key] = replace(node, args=args)
        return self.nodes[key]

    def _is_sampled(self, node: TracedNode, at: int, is_sampled: bool) -> bool:
        """Return whether a node reads its argument only at a sparse tensor's entries."""
        if node.kind == "op" and node.form == "*" and leads(node.args[1 - at]):
            return True
        return is_sampled and node.kind in ("op", "call", "view")
