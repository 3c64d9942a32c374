"""Families of kernels beside the best libraries and plain loops in C++, in one table: ``python -m benchmarks.families``."""
