"""What a plan's rules keep of activations and their gradients as an operator of torch, for programs that it compiles or exports.

Sparsifiers look at numbers, which a program has only when it runs. So its operator is a mask, made by the rule, of which the
program holds a number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..compute.torch_compile import constant, is_whole
from ..errors import UnsupportedError
from ..ir.format import Format
from ..sparsifiers.sparsify import Sparsifier, mask_of, sparsify
from ..tensors.ledgers import densifying


class FlowRule(Protocol):
    """A rule of a plan: the hook ``SparseActivation`` or ``SparseOutputGradient`` of ``flows``."""

    @property
    def name(self) -> str: ...
    @property
    def sparsifier(self) -> Sparsifier: ...
    @property
    def format(self) -> Format | None: ...


_rules: WeakValueDictionary[int, FlowRule] = WeakValueDictionary()
_numbers = itertools.count()


def traced(rule: FlowRule, output: Tensor) -> Any:
    """What a rule leaves of a module's result: dense, with zeros, unless it has a format and the program may be in parts."""
    if rule.format is not None and not is_whole():
        return sparsify(output, rule.sparsifier, rule.format)
    return _masked(_number_of(rule), output)


def traced_hook(rule: FlowRule) -> Callable[[Tensor], Tensor]:
    """A tensor's hook that leaves of its gradient what a rule keeps."""
    return partial(_masked, _number_of(rule))


def _masked(number: int, tensor: Tensor) -> Tensor:
    mask = torch.ops.numscorch.kept(number, tensor.detach())
    return torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype))


@constant
def _number_of(rule: FlowRule) -> int:
    """What a program calls a rule, as long as it lives."""
    for number, known_rule in _rules.items():
        if known_rule is rule:
            return number
    number = next(_numbers)
    _rules[number] = rule
    return number


@torch.library.custom_op("numscorch::kept", mutates_args=())
def _kept(number: int, output: Tensor) -> Tensor:
    rule = _rules.get(number)
    if rule is None:
        raise UnsupportedError("the plan's rule that this program was made with is gone: compile or export the model again")
    if rule.format is not None:
        what, way_out = f"{rule.format.name} {tuple(output.shape)}", "leave out format= of the rule, or fullgraph=True"
        message = f"programs that torch compiles as a whole hand it on dense; {way_out}"
        densifying(f'activation("{rule.name}")', what, output.nbytes, message)
    return mask_of(output, rule.sparsifier).contiguous()


@_kept.register_fake
def _(number: int, output: Tensor) -> Tensor:
    return output.new_empty(output.shape, dtype=torch.bool)
