"""Rules for activations and gradients as a torch operator, for programs that torch compiles or exports.

Sparsifiers depend on values, which exist only at run time. So the operator calls the rule at run time and returns its
mask; the program holds the number of the rule.
"""

from __future__ import annotations

import itertools
from weakref import WeakValueDictionary

import torch

from ..errors import UnsupportedError
from ..programs.torch_compile import is_whole as is_whole
from ..sparsifiers.sparsify import mask_of
from ..tensors.dynamo import constant
from ..tensors.ledgers import densifying
from .plan import Flow

_rules: WeakValueDictionary[int, Flow] = WeakValueDictionary()
_numbers = itertools.count()


def masked(number: int, tensor: torch.Tensor) -> torch.Tensor:
    """Zero the entries that the rule with this number drops."""
    return torch.where(torch.ops.numscorch.kept(number, tensor.detach()), tensor, torch.zeros((), dtype=tensor.dtype))


@constant
def number_of(rule: Flow) -> int:
    """Return the number by which programs refer to a rule, valid while the rule is alive."""
    for number, known_rule in _rules.items():
        if known_rule is rule:
            return number
    number = next(_numbers)
    _rules[number] = rule
    return number


@torch.library.custom_op("numscorch::kept", mutates_args=())
def _kept(number: int, output: torch.Tensor) -> torch.Tensor:
    rule = _rules.get(number)
    if rule is None:
        raise UnsupportedError("the plan's rule that this program was compiled with is gone: compile or export the model again")
    if rule.format is not None:
        what, suggestion = f"{rule.format.name} {tuple(output.shape)}", "leave out format= of the rule, or fullgraph=True"
        message = f"programs that torch compiles as a whole pass it on dense; {suggestion}"
        densifying(f'activation("{rule.name}")', what, output.nbytes, message)
    return mask_of(output, rule.sparsifier).contiguous()


@_kept.register_fake
def _(number: int, output: torch.Tensor) -> torch.Tensor:
    return output.new_empty(output.shape, dtype=torch.bool)
