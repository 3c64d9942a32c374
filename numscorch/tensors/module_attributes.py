"""A warning about sparse tensors that are set as attributes of a torch module: the module registers no values, so nothing trains them."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

from .ledgers import stack_level

SETTING = torch.nn.Module.__setattr__.__code__


class Attribute:
    """Base class of sparse tensors that warns if a torch module gets one whose values are a leaf that requires grad.

    ``torch.nn.Module.__setattr__`` calls ``isinstance`` for each new attribute, and Python then reads the attribute ``__class__`` of the
    tensor. No other code of numscorch runs there.
    """

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self: Any) -> Any:
        """The class; warns if ``torch.nn.Module.__setattr__`` asks for it."""
        frame = None if torch.compiler.is_dynamo_compiling() else sys._getframe(1)  # Dynamo traces this function, and cannot trace frames
        if frame is not None and frame.f_code is SETTING and self.requires_grad and self.values.is_leaf:
            owner, name = frame.f_locals["self"], frame.f_locals["name"]
            if not isinstance(self.values, torch.nn.Parameter) and name not in owner._modules:
                warnings.warn(
                    f"{type(owner).__name__}.{name} is a SparseTensor, which a module does not register: its values are not trained, and "
                    f"state_dict does not have them\n  write self.{name} = ns.nn.Parameter(A)",
                    UserWarning,
                    stacklevel=stack_level(),
                )
        return type(self)
