"""Sparsifiers: which entries of a tensor to keep, and what is left of it as a SparseTensor.

A sparsifier is any callable that takes a tensor and returns a mask of its shape, True where an entry is kept. It may say how
much it has to see (``kind``), and how what it keeps is stored (``format``).
"""

from .composing import compose
from .entries import keep_all, random, threshold
from .kinds import Kind
from .low_rank import LowRankPlusSparse, low_rank_plus_sparse
from .masking import Sparsifier, sparsify
from .patterned import n_m, same_pattern, topk
from .registration import register_sparsifier
from .reports import LayoutReport, LayoutRow, report
from .scored import MovementScores, movement, wanda
from .sparsifiers import block_magnitude, magnitude

__all__ = [
    "Kind",
    "LayoutReport",
    "LayoutRow",
    "LowRankPlusSparse",
    "MovementScores",
    "Sparsifier",
    "block_magnitude",
    "compose",
    "keep_all",
    "low_rank_plus_sparse",
    "magnitude",
    "movement",
    "n_m",
    "random",
    "register_sparsifier",
    "report",
    "same_pattern",
    "sparsify",
    "threshold",
    "topk",
    "wanda",
]
