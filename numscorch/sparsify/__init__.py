"""Sparsifiers: which entries of a tensor to keep, and what is left of it as a SparseTensor; and of whole models, by name.

A sparsifier is any callable that takes a tensor and returns a mask of its shape, True where an entry is kept. It may say how
much it has to see (``kind``), and how what it keeps is stored (``format``).
"""

from .budgets import erk, global_magnitude, uniform
from .composing import compose
from .entries import keep_all, random, threshold
from .kinds import Kind
from .layers import register_sparse_module
from .low_rank import LowRankPlusSparse, low_rank_plus_sparse
from .masking import Sparsifier, sparsify
from .models import densify_model, sparsify_model
from .patterned import n_m, same_pattern, topk
from .plan import SparsityPlan
from .registration import register_sparsifier
from .reports import LayoutReport, LayoutRow, report
from .scored import MovementScores, movement, wanda
from .sparsifiers import block_magnitude, magnitude
from .table import ModelReport, ModelRow

__all__ = [
    "Kind",
    "LayoutReport",
    "LayoutRow",
    "LowRankPlusSparse",
    "ModelReport",
    "ModelRow",
    "MovementScores",
    "Sparsifier",
    "SparsityPlan",
    "block_magnitude",
    "compose",
    "densify_model",
    "erk",
    "global_magnitude",
    "keep_all",
    "low_rank_plus_sparse",
    "magnitude",
    "movement",
    "n_m",
    "random",
    "register_sparse_module",
    "register_sparsifier",
    "report",
    "same_pattern",
    "sparsify",
    "sparsify_model",
    "threshold",
    "topk",
    "uniform",
    "wanda",
]
