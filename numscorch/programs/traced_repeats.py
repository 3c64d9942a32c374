"""Common subexpression elimination in traced functions: equal contractions, reductions and softmaxes become one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

from .tracing import TracedNode

SHARED = ("contract", "reduce", "softmax")  # kinds of nodes to share; the program repeats cheap nodes


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


class Repeats:
    """Merges equal nodes, except for contractions that are computed at the entries of a sparse factor.

    ``leads`` tells whether a node can be such a sparse factor.
    """

    def __init__(self, root: TracedNode, leads: Callable[[TracedNode], bool]):
        self.uses, self.leads = uses_of(root), leads
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
        """Return the shared node for a node; contractions that are only read at a sparse tensor's entries stay separate."""
        is_own = node.kind not in SHARED or (node.kind == "contract" and is_sampled and self.uses[node] < 2)
        key = node if is_own else self.number(node)
        if key not in self.nodes:
            args = tuple(self.shared(arg, self._is_sampled(node, at, is_sampled)) for at, arg in enumerate(node.args))
            self.nodes[key] = replace(node, args=args)
        return self.nodes[key]

    def _is_sampled(self, node: TracedNode, at: int, is_sampled: bool) -> bool:
        """Return whether a node reads its argument only at a sparse tensor's entries."""
        if node.kind == "op" and node.form == "*" and self.leads(node.args[1 - at]):
            return True
        return is_sampled and node.kind in ("op", "call", "view")
