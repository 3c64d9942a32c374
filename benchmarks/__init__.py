"""Benchmarks against torch, SciPy and others: ``make bench`` runs them, ``python -m benchmarks.report`` prints their tables."""
