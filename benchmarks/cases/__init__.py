"""Benchmarks of the suite, one file for each family of kernels: ``make bench`` runs them, with the fixtures of ``conftest.py``."""
