"""End-to-end benchmarks of the reference paper: ``python -m benchmarks.paper``."""
