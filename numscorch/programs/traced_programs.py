"""Write the nodes of a traced function as a program in index notation, for ``evaluate``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ..ir.index import STRENGTH
from .traced_repeats import without_repeats
from .tracing import Node

LETTERS = "ijklmnpqrstuvw"
ATOM, KEEPING_ZERO = 4, ("abs", "erf", "gelu", "relu", "sqrt", "tanh")
Names = Sequence[str]


@dataclass(frozen=True, slots=True)
class Lead:
    """The sparse factor of a product, at whose entries the other factor is computed: its text, and its indices."""

    text: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """The program of a traced function; ``sparsifier`` prunes its result, if given."""

    text: str
    reads: frozenset[str]  # names of the operands
    missing: tuple[int, ...]  # dimensions of size 1 that the text's result lacks
    format: Any  # format of the result, as the operator alone would choose it; None to infer it
    sparsifier: Any = None


def program_of(root: Node, used: Names) -> TracedProgram:
    """Return the program that computes a node; new names avoid the ``used`` ones."""
    root = without_repeats(root, leads)
    writer = _Writer(root, used)
    writer.emit(root, writer.fresh("R"))
    missing = tuple(d for d in range(len(root.shape)) if d not in root.used)
    base = viewed(root)
    reads = frozenset(node.form for node in (base, *writer.uses) if node.kind == "operand")
    return TracedProgram("\n".join(writer.lines), reads, missing, "dense" if base.kind == "reduce" and len(base.shape) < 2 else None)


def viewed(node: Node) -> Node:
    """Return the node under any number of views."""
    return viewed(node.args[0]) if node.kind == "view" else node


def leads(node: Node) -> bool:
    """Return whether a node has a sparse operand's pattern, or part of it, so that it can sample other factors of a product."""
    match node.kind:
        case "operand":
            return node.is_sparse
        case "softmax" | "view":
            return leads(node.args[0])
        case "op" if node.form == "*":
            return any(leads(arg) and arg.shape == node.shape for arg in node.args)
        case "op" if node.form == "/":
            return leads(node.args[0]) and node.args[0].shape == node.shape
        case "call" if node.form in KEEPING_ZERO:
            return leads(node.args[0])
        case _:
            return False


class _Writer:
    """Writes statements; nodes that are read more than once, and reductions, get separate statements."""

    def __init__(self, root: Node, used: Names):
        self.lines: list[str] = []
        self.names = set(used)
        self.named: dict[Node, str] = {}
        self.uses: Counter[Node] = Counter()
        self._count(root)

    def _count(self, root: Node) -> None:
        """Count how often each node is read; views count as reads of the node under them."""
        seen: set[Node] = set()
        pending = [viewed(root)]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            for arg in map(viewed, node.args):
                self.uses[arg] += 1
                pending.append(arg)

    def fresh(self, name: str) -> str:
        """Return an unused name: the given one, or with a number appended."""
        free = next(n for n in (name, *(f"{name}{at}" for at in range(1, len(self.names) + 2))) if n not in self.names)
        self.names.add(free)
        return free

    def emit(self, node: Node, name: str) -> None:
        """Write the statements that compute a node."""
        base = viewed(node)
        letters = Letters()
        if base.kind == "softmax":
            self._softmax(node, base, name, [next(letters) for _ in base.shape])
        elif base.kind == "reduce":
            (arg,) = base.args
            letters_ = [next(letters) for _ in arg.shape]
            result_names = [letters_[d] for d in range(len(letters_)) if d not in base.axes]
            body = self._inline(arg, letters_, letters, is_open=False)[0]  # a contraction would mix its sum with the reduction
            self._assign(name, node, _outer_names(node, result_names), body, base.form)
        else:
            letters_ = [next(letters) for _ in base.shape]
            self._assign(name, node, _outer_names(node, letters_), self._inline(base, letters_, letters, is_open=True, is_root=True)[0])

    def _assign(self, name: str, node: Node, names: Names, body: str, op: str = "=") -> None:
        self.lines.append(f"{_access(name, node, names)} {op} {body}")

    def _softmax(self, node: Node, base: Node, name: str, names: Names) -> None:
        """Write a softmax over stored entries: exp(score - maximum), divided by the sum."""
        (arg,) = base.args
        scores = self._atom(arg, names)
        rows = [names[d] for d in sorted(base.used) if d not in base.axes]
        largest, shifted, total = (self.fresh(n) for n in ("m", "E", "l"))
        per_row = [f"{n}[{','.join(rows)}]" if rows else n for n in (largest, total)]
        self.lines.append(f"{per_row[0]} stored max= {scores}")
        self.lines.append(f"{_access(shifted, base, names)} = stored({scores}) * exp({scores} - {per_row[0]})")
        self.lines.append(f"{per_row[1]} += {_access(shifted, base, names)}")
        self._assign(name, node, _outer_names(node, names), f"{_access(shifted, base, names)} / {per_row[1]}")

    def _atom(self, node: Node, names: Names) -> str:
        """Return an access to an operand or a named node; other nodes get a separate statement first."""
        if node.kind == "view":
            return self._atom(node.args[0], _inner_names(node, names))
        if node.kind in ("operand", "number"):
            return _access(node.form, node, names)
        if node not in self.named:
            name = self.fresh("T" if node.kind != "softmax" else "P")
            self.emit(node, name)
            self.named[node] = name
        return _access(self.named[node], node, names)

    def _inline(
        self, node: Node, names: Names, letters: Letters, is_open: bool, is_root: bool = False, lead: Lead | None = None
    ) -> tuple[str, int]:
        """Return a node's text and its operator precedence; ``is_open`` allows a contraction in the text.

        ``lead`` is the sparse factor of a surrounding product, at whose entries contractions are computed.
        """
        if node.kind == "view":
            return self._inline(node.args[0], _inner_names(node, names), letters, is_open, is_root, lead)
        is_once = is_root or self.uses[node] < 2
        if node in self.named or node.kind in ("operand", "number", "reduce", "softmax") or not is_once:
            return self._atom(node, names), ATOM
        if node.kind == "contract":
            if lead is not None and set(lead.names) == set(names) and len(names) == len(node.used):
                return self._sampled(node, names, letters, lead), ATOM
            return self._contraction(node, names, letters) if is_open else (self._atom(node, names), ATOM)
        if node.kind == "call":
            texts = [self._argument(arg, node, names, letters, is_open, lead)[0] for arg in node.args]
            return f"{node.form}({', '.join(texts)})", ATOM
        if node.form == "*" and (text := self._masked(node, names, letters, is_open)) is not None:
            return text
        return self._operator(node, names, letters, is_open, lead)

    def _argument(self, arg: Node, node: Node, names: Names, letters: Letters, is_open: bool, lead: Lead | None) -> tuple[str, int]:
        return self._inline(arg, _aligned(names, arg), letters, is_open, lead=lead if arg.shape == node.shape else None)

    def _operator(self, node: Node, names: Names, letters: Letters, is_open: bool, lead: Lead | None) -> tuple[str, int]:
        """Return ``left op right`` with the necessary parentheses, and its precedence."""
        strength = STRENGTH[node.form]
        inner = is_open and strength < STRENGTH["*"]
        (left, first), (right, second) = (self._argument(arg, node, names, letters, inner, lead) for arg in node.args)
        left, right = left if first >= strength + (strength == 1) else f"({left})", right if second > strength else f"({right})"
        return f"{left} {node.form} {right}", strength

    def _masked(self, node: Node, names: Names, letters: Letters, is_open: bool) -> tuple[str, int] | None:
        """Return a product with a sparse factor, at whose entries contractions in the other factor are computed; None if not one."""
        for at, factor in enumerate(node.args):
            other = node.args[1 - at]
            if not leads(factor) or factor.shape != node.shape or len(factor.used) < len(names) or not self._has_contraction(other):
                continue
            if viewed(other).kind == "contract" and other.shape == node.shape and len(other.used) == len(names):
                if not is_open:
                    return self._atom(node, names), ATOM
                texts = [self._atom(factor, names), self._inline(other, names, letters, is_open=True)[0]]
                return " * ".join(texts if at == 0 else reversed(texts)), STRENGTH["*"]
            lead = Lead(self._atom(factor, names), tuple(names))
            inner, strength = self._inline(other, _aligned(names, other), letters, is_open=False, lead=lead)
            inner = inner if strength > STRENGTH["*"] or (at == 1 and strength == STRENGTH["*"]) else f"({inner})"
            return " * ".join([lead.text, inner] if at == 0 else [inner, lead.text]), STRENGTH["*"]
        return None

    def _has_contraction(self, node: Node) -> bool:
        """Return whether a node's text would contain a contraction."""
        base = viewed(node)
        if base in self.named or self.uses[base] > 1:
            return False
        return base.kind == "contract" or (base.kind in ("op", "call") and any(map(self._has_contraction, base.args)))

    def _contraction(self, node: Node, names: Names, letters: Letters) -> tuple[str, int]:
        """Return the product of a contraction's factors, each an access, and its precedence."""
        *terms, result = node.axes
        index_names = dict(zip(result, names, strict=True))
        for name in (name for term in terms for name in term):
            if name not in index_names:
                index_names[name] = next(letters)
        factors = [self._atom(arg, [index_names[name] for name in term]) for arg, term in zip(node.args, terms, strict=True)]
        return " * ".join(factors), STRENGTH["*"] if len(factors) > 1 else ATOM

    def _sampled(self, node: Node, names: Names, letters: Letters, lead: Lead) -> str:
        """Write a statement for a contraction at a sparse tensor's entries, and return the access to it."""
        body = self._contraction(node, names, letters)[0]
        name = self.fresh("T")
        self._assign(name, node, names, f"stored({lead.text}) * {body}")
        return _access(name, node, names)


class Letters:
    """An endless iterator over index names: ``i``, ``j``, ..., ``w``, ``i1``, ``j1``, ..."""

    def __init__(self) -> None:
        self.numbers = count()

    def __next__(self) -> str:
        turn, at = divmod(next(self.numbers), len(LETTERS))
        return LETTERS[at] + (str(turn) if turn else "")


def _access(name: str, node: Node, names: Names) -> str:
    """Write an access to a tensor; dimensions of size 1 have no index."""
    names_ = [names[d] for d in sorted(node.used)]
    return f"{name}[{','.join(names_)}]" if names_ else name


def _aligned(names: Names, node: Node) -> Names:
    """Return the index names of a tensor that broadcasts: those of the last dimensions."""
    return names[len(names) - len(node.shape) :]


def _inner_names(view: Node, names: Names) -> list[str]:
    """Return the index names of a view's argument, given those of the view."""
    inner = dict(zip(view.axes, names, strict=True))
    return [inner[d] for d in range(len(view.args[0].shape))]


def _outer_names(node: Node, names: Names) -> list[str]:
    """Return the index names of a view, given those of the node under it."""
    if node.kind != "view":
        return list(names)
    inner = _outer_names(node.args[0], names)
    return ["" if axis is None else inner[axis] for axis in node.axes]
