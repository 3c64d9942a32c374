"""Graphs of the benchmarks of sharding: meshes, power-law graphs and R-MAT graphs of any size.

Source: Chakrabarti, Zhan and Faloutsos, "R-MAT: A Recursive Model for Graph Mining", SDM 2004.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import numscorch as ns

DEGREE = 20  # entries per node
RMAT = (0.57, 0.19, 0.19, 0.05)  # the probabilities of the quadrants in Graph500


def mesh_graph(nodes: int, degree: int = DEGREE) -> ns.SparseTensor:
    """A mesh of a cube, with ``degree`` neighbours per node in its line, in other lines, and in other planes; at most 20.

    >>> mesh_graph(27, 4).nnz  # neighbours beyond the ends are clamped
    104
    """
    line = side_of(nodes)
    plane = line * line
    offsets = (1, line, plane, 2, 3, line + 1, line + 2, 2 * line, plane - 1, plane + 1)[: degree // 2]
    rows = torch.arange(nodes).repeat_interleave(degree)
    columns = (rows.view(nodes, degree) + torch.tensor([sign * offset for offset in offsets for sign in (-1, 1)])).clamp(0, nodes - 1)
    return ns.from_coo([rows, columns.flatten()], torch.rand(len(rows)), (nodes, nodes), format=ns.CSR)


def power_law_graph(nodes: int, degree: int = DEGREE) -> ns.SparseTensor:
    """``degree`` random edges per node; their ends have a power-law distribution and no order."""
    rows = torch.randint(nodes, (nodes * degree,))
    columns = torch.randperm(nodes)[(nodes * torch.rand(nodes * degree).pow(3)).long().clamp(max=nodes - 1)]
    return ns.from_coo([rows, columns], torch.rand(len(rows)), (nodes, nodes), format=ns.CSR)


def rmat_graph(scale: int, degree: int) -> ns.SparseTensor:
    """An R-MAT graph of 2**scale nodes; repeated edges count once."""
    generator = torch.Generator().manual_seed(0)
    count = degree << scale
    ends = torch.zeros(2, count, dtype=torch.int64)
    limits = torch.tensor(RMAT).cumsum(0)
    for _ in range(scale):
        quadrant = torch.searchsorted(limits, torch.rand(count, generator=generator)).clamp(max=3)
        ends = 2 * ends + torch.stack([quadrant // 2, quadrant % 2])
    return ns.from_coo(ends, torch.ones(count), (1 << scale, 1 << scale), format=ns.CSR)


def side_of(nodes: int) -> int:
    """The number of nodes in a line of the cube."""
    return max(round(nodes ** (1 / 3)), 1)


def in_blocks(nodes: int) -> torch.Tensor:
    """The node at each place if the nodes of a mesh are ordered by blocks, along a Z-order curve.

    >>> in_blocks(64)[:8]  # a block of 2 x 2 x 2 nodes
    tensor([ 0,  1,  4,  5, 16, 17, 20, 21])
    """
    line, node = side_of(nodes), torch.arange(nodes)
    axes = node % line, node // line % line, node // line**2
    curve = torch.zeros_like(node)
    for bit in range(10):
        for axis, coordinate in enumerate(axes):
            curve |= (coordinate >> bit & 1) << 3 * bit + axis
    return torch.argsort(curve)


GRAPHS: dict[str, Callable[[int, int], ns.SparseTensor]] = {"mesh": mesh_graph, "power law": power_law_graph}
