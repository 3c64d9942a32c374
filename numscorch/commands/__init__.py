"""The commands of ``python -m numscorch`` that are more than a call."""
