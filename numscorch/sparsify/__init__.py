"""Sparsifiers: which entries of a dense tensor to keep, and what is left of it as a SparseTensor; and of whole models, by name.

A sparsifier is any callable that takes a tensor and returns a mask of its shape, True where an entry is kept.
"""

from .budgets import erk, global_magnitude, uniform
from .layers import register_sparse_module
from .masking import Sparsifier, sparsify
from .models import densify_model, sparsify_model
from .plan import SparsityPlan
from .sparsifiers import block_magnitude, magnitude
from .table import ModelReport, ModelRow

__all__ = [
    "ModelReport",
    "ModelRow",
    "Sparsifier",
    "SparsityPlan",
    "block_magnitude",
    "densify_model",
    "erk",
    "global_magnitude",
    "magnitude",
    "register_sparse_module",
    "sparsify",
    "sparsify_model",
    "uniform",
]
