"""Measuring functions against each other: in turns, results compared first, with intervals and the machine's own limits.

``python -m numscorch bench`` and the suite in ``benchmarks/`` stand on it.
"""
