"""Sharded products on several ranks, measured and simulated: ``python -m benchmarks.scaling`` prints the tables."""
