"""Conversions from and to other libraries: SciPy, pydata/sparse, and graph libraries."""
