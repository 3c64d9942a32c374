"""Report on how well a partition suits a matrix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ShardingReport:
    """Entries, halo rows, cut entries and partial rows of each rank.

    Args:
        entries: entries of each rank.
        halo_rows: rows of a dense operand that each rank receives for a product.
        cut: entries of each rank whose columns other ranks own.
        partial_rows: rows of a result that each rank sends to their owners, which add them; none if each rank has whole rows.
    """

    entries: tuple[int, ...]
    halo_rows: tuple[int, ...]
    cut: tuple[int, ...]
    partial_rows: tuple[int, ...]

    @property
    def imbalance(self) -> float:
        """The largest number of entries of a rank, divided by the mean."""
        total = sum(self.entries)
        return max(self.entries) * len(self.entries) / total if total else 1.0

    @property
    def edge_cut(self) -> float:
        """The fraction of entries whose columns other ranks own."""
        return sum(self.cut) / max(sum(self.entries), 1)

    def __str__(self) -> str:
        lines = [f"{'rank':>4} {'entries':>12} {'halo rows':>12} {'cut entries':>12} {'partial rows':>12}"]
        for rank, row in enumerate(zip(self.entries, self.halo_rows, self.cut, self.partial_rows, strict=True)):
            lines.append(" ".join([f"{rank:>4}", *(f"{count:>12}" for count in row)]))
        return "\n".join([*lines, f"edge cut {self.edge_cut:.1%}, imbalance {self.imbalance:.2f}"])
