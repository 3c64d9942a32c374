"""A graph of four nodes and six edges, and formats whose levels have gaps."""

from __future__ import annotations

from typing import Any

import numscorch as ns

EDGES = [[0, 0, 1, 2, 2, 3], [1, 3, 2, 0, 3, 1]]
GAPS = ["(i, j) -> (i: dense, j: bitmap)", "(i, j) -> (i: dense, j: hash)"]


def matrix(values: Any = (1.0, -2.0, 3.0, 4.0, -5.0, 6.0), format: Any = ns.CSR) -> ns.SparseTensor:
    """The graph as a matrix."""
    return ns.from_coo(EDGES, values, (4, 4), format=format)
