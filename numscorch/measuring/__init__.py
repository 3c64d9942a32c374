"""Benchmarking: compare results first, time functions in turns, report confidence intervals and the machine's roofs.

``python -m numscorch bench`` and the suite in ``benchmarks/`` use it.
"""
