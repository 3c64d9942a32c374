"""Tensors of other libraries: SciPy, pydata/sparse, and graphs."""
