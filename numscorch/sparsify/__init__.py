"""Sparsifiers: which entries of a dense tensor to keep, and what is left of it as a SparseTensor.

A sparsifier is any callable that takes a tensor and returns a mask of its shape, True where an entry is kept.
"""

from .grouped import n_m_g
from .masking import Sparsifier, sparsify
from .sparsifiers import block_magnitude, magnitude

__all__ = ["Sparsifier", "block_magnitude", "magnitude", "n_m_g", "sparsify"]
