"""The text of a traced function: one program of index notation for evaluate."""

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
    """A tensor that a product's factor is read at the entries of: its text, and its indices."""

    text: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """A text, the operands that it reads, the dimensions of size 1 that its result lacks, and the format that an operator's would have.

    With a ``sparsifier``, only what that keeps of the result is stored, in a format if one is given.
    """

    text: str
    reads: frozenset[str]
    missing: tuple[int, ...]
    format: Any
    sparsifier: Any = None


def program_of(root: Node, used: Names) -> TracedProgram:
    """The program that computes a node, whose operands have the ``taken`` names."""
    root = without_repeats(root, leads)
    writer = _Writer(root, used)
    writer.emit(root, writer.fresh("R"))
    missing = tuple(d for d in range(len(root.shape)) if d not in root.used)
    base = viewed(root)
    reads = frozenset(node.form for node in (base, *writer.uses) if node.kind == "operand")
    return TracedProgram("\n".join(writer.lines), reads, missing, "dense" if base.kind == "reduce" and len(base.shape) < 2 else None)


def viewed(node: Node) -> Node:
    """What a view, or a view of one, is of."""
    return viewed(node.args[0]) if node.kind == "view" else node


def leads(node: Node) -> bool:
    """Whether it stores nothing where a sparse operand doesn't."""
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
    """Writes statements: what is used more than once, or reduced, has one of its own."""

    def __init__(self, root: Node, used: Names):
        self.lines: list[str] = []
        self.taken = set(used)
        self.named: dict[Node, str] = {}
        self.uses: Counter[Node] = Counter()
        self._count(root)

    def _count(self, root: Node) -> None:
        """How often each node is read; views are looked through."""
        seen: set[Node] = set()
        left = [viewed(root)]
        while left:
            node = left.pop()
            if node in seen:
                continue
            seen.add(node)
            for arg in map(viewed, node.args):
                self.uses[arg] += 1
                left.append(arg)

    def fresh(self, name: str) -> str:
        """A name that nothing has yet: this one, or with a number."""
        free = next(n for n in (name, *(f"{name}{at}" for at in range(1, len(self.taken) + 2))) if n not in self.taken)
        self.taken.add(free)
        return free

    def emit(self, node: Node, name: str) -> None:
        """The statement that makes a node."""
        base = viewed(node)
        letters = Letters()
        if base.kind == "softmax":
            self._softmax(node, base, name, [next(letters) for _ in base.shape])
        elif base.kind == "reduce":
            (arg,) = base.args
            letters_ = [next(letters) for _ in arg.shape]
            kept = [letters_[d] for d in range(len(letters_)) if d not in base.axes]
            body = self._inline(arg, letters_, letters, is_open=False)[0]  # all of it is reduced: what it contracts was before
            self._assign(name, node, _outer_names(node, kept), body, base.form)
        else:
            letters_ = [next(letters) for _ in base.shape]
            self._assign(name, node, _outer_names(node, letters_), self._inline(base, letters_, letters, is_open=True, is_root=True)[0])

    def _assign(self, name: str, node: Node, names: Names, body: str, op: str = "=") -> None:
        self.lines.append(f"{_access(name, node, names)} {op} {body}")

    def _softmax(self, node: Node, base: Node, name: str, names: Names) -> None:
        """Exponentials of the stored entries less the largest of them, over their sum."""
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
        """The access to an operand, or to what a statement of its own makes."""
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
        """A node's text, and how strongly it binds; a contraction may stand in it where it ``is_open``."""
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
        """left op right, with the parentheses that keep the order."""
        strength = STRENGTH[node.form]
        inner = is_open and strength < STRENGTH["*"]
        (left, first), (right, second) = (self._argument(arg, node, names, letters, inner, lead) for arg in node.args)
        left, right = left if first >= strength + (strength == 1) else f"({left})", right if second > strength else f"({right})"
        return f"{left} {node.form} {right}", strength

    def _masked(self, node: Node, names: Names, letters: Letters, is_open: bool) -> tuple[str, int] | None:
        """A product with what a sparse tensor leads: contractions in the other factor are computed at its entries only."""
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
        """Whether a contraction would stand in its text."""
        base = viewed(node)
        if base in self.named or self.uses[base] > 1:
            return False
        return base.kind == "contract" or (base.kind in ("op", "call") and any(map(self._has_contraction, base.args)))

    def _contraction(self, node: Node, names: Names, letters: Letters) -> tuple[str, int]:
        """The product of a contraction's factors, each an access."""
        *terms, result = node.axes
        known = dict(zip(result, names, strict=True))
        for name in (name for term in terms for name in term):
            if name not in known:
                known[name] = next(letters)
        factors = [self._atom(arg, [known[name] for name in term]) for arg, term in zip(node.args, terms, strict=True)]
        return " * ".join(factors), STRENGTH["*"] if len(factors) > 1 else ATOM

    def _sampled(self, node: Node, names: Names, letters: Letters, lead: Lead) -> str:
        """A contraction at the entries of a sparse tensor."""
        body = self._contraction(node, names, letters)[0]
        name = self.fresh("T")
        self._assign(name, node, names, f"stored({lead.text}) * {body}")
        return _access(name, node, names)


class Letters:
    """Names of indices, one after the other."""

    def __init__(self) -> None:
        self.numbers = count()

    def __next__(self) -> str:
        turn, at = divmod(next(self.numbers), len(LETTERS))
        return LETTERS[at] + (str(turn) if turn else "")


def _access(name: str, node: Node, names: Names) -> str:
    """A tensor at those of its dimensions that have an index."""
    names_ = [names[d] for d in sorted(node.used)]
    return f"{name}[{','.join(names_)}]" if names_ else name


def _aligned(names: Names, node: Node) -> Names:
    """The names of a tensor that broadcasts: those of the last dimensions."""
    return names[len(names) - len(node.shape) :]


def _inner_names(view: Node, names: Names) -> list[str]:
    """The names of what is viewed."""
    inner = dict(zip(view.axes, names, strict=True))
    return [inner[d] for d in range(len(view.args[0].shape))]


def _outer_names(node: Node, names: Names) -> list[str]:
    """The names of a view of what has these."""
    if node.kind != "view":
        return list(names)
    inner = _outer_names(node.args[0], names)
    return ["" if axis is None else inner[axis] for axis in node.axes]
