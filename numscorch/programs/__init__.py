"""Calls, programs and their steps: dispatch, evaluation, fusion, gradients, tracing of Python functions, torch.compile."""
