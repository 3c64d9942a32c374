"""Sparsifiers, sparsified tensors, sparsification of models by parameter name, and sparse training.

A sparsifier is a callable that takes a tensor and returns a bool mask of its shape, True where an entry is kept. It may have two
attributes: ``kind``, the part of the tensor that it needs to see, and ``format``, the format in which the kept entries are stored.
"""

from ..operators.naming import publish
from ..sparsifiers.base import Kind
from ..sparsifiers.composing import LowRankPlusSparse, compose, low_rank_plus_sparse
from ..sparsifiers.entrywise import MovementScores, keep_all, movement, random, same_pattern, threshold, wanda
from ..sparsifiers.magnitude import block_magnitude, magnitude
from ..sparsifiers.patterned import n_m, n_m_g, topk
from ..sparsifiers.registration import register_sparsifier
from ..sparsifiers.reports import LayoutReport, LayoutRow, report
from ..sparsifiers.sparsify import Sparsifier, sparsify
from . import schedules
from .data_parallel_patterns import broadcast_patterns, check_patterns, data_parallel
from .dynamic import SET, RigL
from .layers import register_sparse_module
from .loading import load_patterns
from .models import densify_model, sparsify_model
from .plan import PlanRule, SparsityPlan, erk, global_magnitude, uniform
from .pruning import GradualPruning
from .replacement import repattern
from .settling import ModelReport, ModelRow
from .straight import resparsify, settle, straight_through

__all__ = [
    "SET",
    "GradualPruning",
    "Kind",
    "LayoutReport",
    "LayoutRow",
    "LowRankPlusSparse",
    "ModelReport",
    "ModelRow",
    "MovementScores",
    "PlanRule",
    "RigL",
    "Sparsifier",
    "SparsityPlan",
    "block_magnitude",
    "broadcast_patterns",
    "check_patterns",
    "compose",
    "data_parallel",
    "densify_model",
    "erk",
    "global_magnitude",
    "keep_all",
    "load_patterns",
    "low_rank_plus_sparse",
    "magnitude",
    "movement",
    "n_m",
    "n_m_g",
    "random",
    "register_sparse_module",
    "register_sparsifier",
    "repattern",
    "report",
    "resparsify",
    "same_pattern",
    "schedules",
    "settle",
    "sparsify",
    "sparsify_model",
    "straight_through",
    "threshold",
    "topk",
    "uniform",
    "wanda",
]

publish(globals())
