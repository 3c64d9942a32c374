"""Modules; every name that is not ours is torch.nn's."""

from typing import Any

import torch

from . import functional

__all__ = ["functional"]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(torch.nn, name)
