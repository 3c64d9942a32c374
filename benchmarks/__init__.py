"""Benchmarks against torch.sparse: ``make bench`` runs them, ``python -m benchmarks.report`` prints their table."""
