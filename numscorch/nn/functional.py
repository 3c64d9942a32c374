"""Functions of modules; every name that is not ours is torch.nn.functional's."""

from typing import Any

import torch

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not hasattr(torch.nn.functional, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and neither has torch.nn.functional")
    return getattr(torch.nn.functional, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn.functional)})
