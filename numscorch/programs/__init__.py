"""Programs of several statements: evaluation, fusion into shared loops, gradients, and tracing of Python functions."""
