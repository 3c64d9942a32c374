"""A custom level format: windows of consecutive weights

Each hidden unit sees 98 consecutive pixels, and the level stores a window by its first column. The example shows the functions of a level;
registration tests them. Run it with ``python examples/own_level.py``; ``--data mnist`` reads a folder with the MNIST files.
"""

from dataclasses import dataclass

import numpy as np
import torch
from training import beside_masks, compare, dense_first, train

import numscorch as ns
from numscorch.ir.level import Arrays, Children, Entries, Level, Mode, Parents
from numscorch.ir.loop import Const, Expr


@dataclass(frozen=True, slots=True)
class Window(Level):
    """``width`` consecutive coordinates below each parent, stored by the first coordinate and padded with zeros."""

    width: int = 2
    spelling, arrays, padded = "window", ("first",), True  # rows are padded with zeros, so graph layers refuse formats with this level

    def bounds(self, mode: Mode) -> tuple[Expr, Expr]:
        return mode.parent.begin * Const(self.width), mode.parent.begin * Const(self.width) + self.width

    def coordinate(self, mode: Mode, position: Expr) -> Expr:
        return mode.array("first")[mode.parent.begin] + (position - mode.parent.begin * Const(self.width))

    def pack(self, entries: Entries) -> tuple[Level, Arrays, np.ndarray, int]:
        first = np.full(entries.count, max(entries.size - self.width, 0))
        np.minimum.at(first, entries.parents, entries.coordinates)
        places = entries.coordinates - first[entries.parents]
        if places.max(initial=0) >= self.width or (len(first) and entries.size < self.width):
            raise ns.FormatError(f"cannot store {entries.size} coordinates, or some {places.max(initial=0)} apart")
        return self, (first,), entries.parents * self.width + places, self.count((first,), entries.count, entries.size)

    def count(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * self.width

    def length(self, parents: int, count: int) -> int:
        return parents

    def unpack(self, arrays: Arrays, stored: Parents) -> Children:
        starts = arrays[0][stored.parents], stored.parents * self.width
        return Children(self.width, *(np.add.outer(start, np.arange(self.width)).reshape(-1) for start in starts))


def main() -> None:
    ns.register_level(Window(), most=250)
    chosen, data, dense, before = dense_first(__doc__)
    at = torch.arange(dense[0].in_features) - torch.linspace(0, dense[0].in_features - 98, chosen.hidden).long()[:, None]
    nets = beside_masks("windows", dense, data, lambda _: (at >= 0) & (at < 98), "(i, j) -> (i: dense, j: window(98))")
    compare(train(nets, data, chosen.epochs, "windows"), before, chosen.out)


if __name__ == "__main__":
    main()
