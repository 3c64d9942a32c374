"""What a traced function repeats, computed once: equal contractions, reductions and softmaxes are one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

from .tracing import Node

SHARED = ("contract", "reduce", "softmax")  # what is cheap, and no more, is written again where it is repeated


def uses_of(root: Node) -> Counter[Node]:
    """How often each node is an argument of others."""
    uses: Counter[Node] = Counter()
    seen, left = {root}, [root]
    while left:
        for arg in left.pop().args:
            uses[arg] += 1
            if arg not in seen:
                seen.add(arg)
                left.append(arg)
    return uses


def without_repeats(root: Node, leads: Callable[[Node], bool]) -> Node:
    """A node whose equal contractions are one, but for those that are computed at the entries of what ``leads`` a product."""
    return _Repeats(root, leads).shared(root, is_sampled=False)


class _Repeats:
    def __init__(self, root: Node, leads: Callable[[Node], bool]):
        self.uses, self.leads = uses_of(root), leads
        self.numbers: dict[Node, int] = {}
        self.known: dict[Hashable, int] = {}
        self.made: dict[Node | int, Node] = {}

    def number(self, node: Node) -> int:
        """The same number for nodes that are equal with all of their arguments."""
        if node not in self.numbers:
            key = (node.kind, node.form, node.shape, node.used, node.axes, node.is_sparse, node.is_test)
            self.numbers[node] = self.known.setdefault((key, *map(self.number, node.args)), len(self.known))
        return self.numbers[node]

    def shared(self, node: Node, is_sampled: bool) -> Node:
        """The node of those that are equal to it; its own where it is read at a sparse tensor's entries only."""
        is_own = node.kind not in SHARED or (node.kind == "contract" and is_sampled and self.uses[node] < 2)
        key = node if is_own else self.number(node)
        if key not in self.made:
            args = tuple(self.shared(arg, self._is_sampled(node, at, is_sampled)) for at, arg in enumerate(node.args))
            self.made[key] = replace(node, args=args)
        return self.made[key]

    def _is_sampled(self, node: Node, at: int, is_sampled: bool) -> bool:
        """Whether an argument is read only at a sparse tensor's entries."""
        if node.kind == "op" and node.form == "*" and self.leads(node.args[1 - at]):
            return True
        return is_sampled and node.kind in ("op", "call", "view")
