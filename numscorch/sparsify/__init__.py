"""Sparsifiers: which entries of a tensor to keep, and what is left of it as a SparseTensor; and models that are trained so.

A sparsifier is any callable that takes a tensor and returns a mask of its shape, True where an entry is kept. It may say how
much it has to see (``kind``), and how what it keeps is stored (``format``).
"""

from . import schedules
from .composing import compose
from .distributed import broadcast_patterns, check_patterns, data_parallel
from .dynamic import SET, RigL
from .entries import keep_all, random, threshold
from .kinds import Kind
from .low_rank import LowRankPlusSparse, low_rank_plus_sparse
from .masking import Sparsifier, sparsify
from .patterned import n_m, same_pattern, topk
from .pruning import GradualPruning
from .registration import register_sparsifier
from .repattern import repattern
from .reports import LayoutReport, LayoutRow, report
from .scored import MovementScores, movement, wanda
from .sparsifiers import block_magnitude, magnitude
from .straight import resparsify, settle, straight_through

__all__ = [
    "SET",
    "GradualPruning",
    "Kind",
    "LayoutReport",
    "LayoutRow",
    "LowRankPlusSparse",
    "MovementScores",
    "RigL",
    "Sparsifier",
    "block_magnitude",
    "broadcast_patterns",
    "check_patterns",
    "compose",
    "data_parallel",
    "keep_all",
    "low_rank_plus_sparse",
    "magnitude",
    "movement",
    "n_m",
    "random",
    "register_sparsifier",
    "repattern",
    "report",
    "resparsify",
    "same_pattern",
    "schedules",
    "settle",
    "sparsify",
    "straight_through",
    "threshold",
    "topk",
    "wanda",
]
