"""spy: plot a pattern of any size with matplotlib."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SizeError, UnsupportedError
from ..ir.parts import name_of
from ..tensors.pattern import Pattern
from .rasters import exact_raster

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST, MOST = 64, 1024  # cells along the raster's longer side


def spy(pattern: Pattern, ax: Axes | None = None, **kwargs: Any) -> Axes:
    """Plot where a pattern stores entries; see :meth:`SparseTensor.spy`.

    Raises:
        SizeError: the tensor has no dimensions.
        UnsupportedError: matplotlib isn't installed.
    """
    if not pattern.shape:
        raise SizeError("spy draws where a tensor stores entries, and a tensor without dimensions has only one element: print it")
    try:
        from matplotlib import pyplot
        from matplotlib.colors import LogNorm
    except ImportError as error:
        raise UnsupportedError(
            "spy draws with matplotlib, which isn't installed: pip install matplotlib, or numscorch[examples]"
        ) from error
    ax = pyplot.gca() if ax is None else ax
    raster = exact_raster(pattern, _cells(ax))
    counts = raster.counts[: raster.shape[0], : raster.shape[1]]  # a side of size 0 has no cells
    depth = prod(max(size, 1) for size in pattern.shape[:-2])  # elements projected onto each element of the drawn plane
    shares = np.ma.masked_equal(counts / max(raster.room * depth, 1.0), 0)
    rows, columns = (max(size, 1) for size in raster.shape)
    aspect = "equal" if max(rows, columns) <= 8 * min(rows, columns) else "auto"
    drawn: dict[str, Any] = {"cmap": "Blues", "interpolation": "nearest", "origin": "upper", "aspect": aspect}
    drawn |= {"extent": (-0.5, columns - 0.5, rows - 0.5, -0.5)}
    if not kwargs.keys() & {"norm", "vmin", "vmax"} and shares.count():
        drawn["norm"] = LogNorm(float(shares.min()) / 3, float(shares.max()))  # a third: the emptiest cell stays visible
    ax.imshow(shares, **(drawn | kwargs))
    order = len(pattern.shape)
    ax.xaxis.tick_top()  # the columns are at the top, as with matplotlib's spy
    ax.xaxis.set_label_position("top")
    ax.set_xlabel(name_of(order - 1))
    if order > 1:
        ax.set_ylabel(name_of(order - 2))
    if order < 2 or not raster.shape[0]:
        ax.set_yticks([])
    if not raster.shape[1]:
        ax.set_xticks([])
    return ax


def _cells(ax: Axes) -> int:
    """The number of cells along the longer side: fewer than the axes have pixels, so that none is skipped."""
    box = ax.get_window_extent()
    return int(min(max(0.7 * min(box.width, box.height), FEWEST), MOST))
