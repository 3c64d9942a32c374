"""The commands of ``python -m numscorch``."""
