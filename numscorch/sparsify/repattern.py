"""repattern: change the pattern of a weight in place during training; optimizer states follow the entries."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch

from ..convert.construct import from_torch
from ..convert.conversions import to_format
from ..convert.entries import matches_in
from ..errors import OperandError, SizeError
from ..tensors.packing import coordinates, positions_of
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .replacement import Optimizer, Optimizers, Transfer, check_followers, followers, listed, optimizers_of

OTHER = {torch.float64: torch.float32}  # a different data type for each data type; float64 for types not listed


def repattern(parameter: SparseParameter, pattern: Pattern | SparseTensor | torch.Tensor, optimizer: Optimizers = None) -> None:
    """Give a parameter another pattern: common entries keep their values, and new entries start at 0.

    Everything that has one number per value follows: the gradient, and optimizer state such as Adam's ``exp_avg`` or
    SGD's momentum. ``parameter.values`` stays the same ``torch.nn.Parameter``, in the same optimizer group, with its
    hooks and ``requires_grad``. If the number of values stays the same, so does its memory. On an error, nothing is
    changed. O(nnz log nnz), and O(size) for a mask.

    Args:
        parameter: the parameter to change, such as ``layer.weight`` of a ``SparseLinear``. Copies made before keep
            their pattern.
        pattern: the new entries: a Pattern, a SparseTensor, whose values are ignored, or a mask, True where an entry is
            stored. They are stored in the parameter's format; blocks are stored whole.
        optimizer: the optimizers that train the parameter, one or several; None if there is none yet.

    Raises:
        SizeError: the pattern has another shape.
        FormatError: the parameter's format cannot store these entries.
        OperandError: an argument is not a parameter or a pattern, or the optimizer does not hold the parameter, which
            requires grad.
        UnsupportedError: the optimizer's state cannot follow, as for LBFGS.

    >>> import numscorch as ns
    >>> weight = ns.nn.Parameter(ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 0.0]])))
    >>> repattern(weight, torch.tensor([[False, True], [True, False]]))
    >>> weight.to_dense().tolist(), weight.nnz, weight.requires_grad
    ([[0.0, 2.0], [0.0, 0.0]], 2, True)
    """
    if not isinstance(parameter, SparseParameter):
        raise OperandError(f"repattern takes a SparseParameter, such as layer.weight of a SparseLinear, not {type(parameter).__name__}")
    new = as_stored(parameter, pattern)
    check_followers("", parameter.values, optimizer)
    follow(parameter, new, listed(optimizer))


def follow(parameter: SparseParameter, new: Pattern, optimizers: Iterable[Optimizer]) -> None:
    """Give a parameter a new pattern, already checked, in any format, and move the state of the optimizers that hold it."""
    holding = optimizers_of(parameter.values, optimizers)
    states = [(optimizer.state.get(parameter.values, {}), followers(parameter.values, optimizer)) for optimizer in holding]
    move = transfer(parameter.pattern, new)
    gradient = None if parameter.values.grad is None else _move_state(parameter.values.grad, move)
    resize(parameter.values, move(parameter.values.detach()))
    parameter.values.grad = gradient
    parameter.hold(new)
    for state, names in states:
        for name in names:
            state[name] = _move_state(state[name], move)
    for optimizer in holding:
        if isinstance(optimizer, torch.optim.Rprop):
            _start_steps(optimizer, parameter.values)


def _start_steps(optimizer: torch.optim.Rprop, values: torch.nn.Parameter) -> None:
    """Set Rprop's step sizes of new entries to the initial step size: from 0 they would never grow."""
    (rate,) = [group["lr"] for group in optimizer.param_groups if any(parameter is values for parameter in group["params"])]
    if "step_size" in (state := optimizer.state.get(values, {})):
        state["step_size"].masked_fill_(state["step_size"] == 0, float(rate))


def transfer(old: Pattern, new: Pattern) -> Transfer:
    """Return the function from the values of one pattern to those of another one, with 0 for new entries."""
    matches, sources = matches_in(old, list(coordinates(new)))
    targets = torch.from_numpy(positions_of(new, matches.numpy()))
    return lambda values: values.new_zeros(new.nnz).index_copy_(0, targets, values.index_select(0, sources))


def as_stored(parameter: SparseParameter, pattern: Pattern | SparseTensor | torch.Tensor) -> Pattern:
    """Return a pattern in the parameter's format.

    Raises:
        SizeError: the pattern has another shape.
        FormatError: the format cannot store the pattern.
        OperandError: the argument is not a pattern.
    """
    if isinstance(pattern, Pattern):
        pattern = SparseTensor(pattern, torch.ones(pattern.nnz))
    if not isinstance(pattern, SparseTensor | torch.Tensor) or (isinstance(pattern, torch.Tensor) and pattern.dtype != torch.bool):
        given = f"a tensor of {pattern.dtype}" if isinstance(pattern, torch.Tensor) else type(pattern).__name__
        raise OperandError(f"a new pattern is a Pattern, a SparseTensor, or a bool mask, as in mask != 0, not {given}")
    if tuple(pattern.shape) != tuple(parameter.shape):
        raise SizeError(f"the new pattern has shape {tuple(pattern.shape)}, but the weight has {tuple(parameter.shape)}")
    if isinstance(pattern, torch.Tensor):
        pattern_ = from_torch(pattern, parameter.format).pattern
    else:
        same = pattern.format == parameter.format
        pattern_ = (pattern if same else to_format(pattern.with_values(torch.ones(pattern.pattern.nnz)), parameter.format)).pattern
        pattern_ = copy.deepcopy(pattern_)  # the arrays become buffers, which may be written to
    # compiled programs identify a format by its object
    return pattern_ if pattern_.format is parameter.format else Pattern(parameter.format, pattern_.shape, pattern_.arrays)


def resize(values: torch.nn.Parameter, new: torch.Tensor) -> None:
    """Write new values, possibly a different number of them, to a parameter.

    Autograd caches the size of a leaf as long as a graph that reached it is alive, such as that of the last step's
    loss, and would reject gradients of the new size. A change of the data type clears the cache.
    """
    with torch.no_grad():
        if new.shape == values.shape:
            values.copy_(new)
            return
        values.grad = None
        values.data = torch.empty(0, dtype=OTHER.get(values.dtype, torch.float64))
        values.data = new
    torch.autograd.graph.increment_version(values)  # makes a backward pass through the old pattern fail


def _move_state(tensor: torch.Tensor, move: Transfer) -> torch.Tensor:
    """Move a tensor along with the values; in place if their number stays the same, since the memory may be shared."""
    moved = move(tensor)
    return tensor.copy_(moved) if moved.shape == tensor.shape else moved
