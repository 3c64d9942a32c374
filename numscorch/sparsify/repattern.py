"""repattern: another pattern for a weight that is being trained, in place; optimizers' states follow the entries."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch

from ..convert.construct import from_torch
from ..convert.conversions import to_format
from ..convert.entries import numbered
from ..errors import OperandError, SizeError
from ..tensors.packing import coordinates, positions_of
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .optimizers import Optimizer, Optimizers, followers, held, holds, listed

OTHER = {torch.float64: torch.float32}  # another data type than a given one; float64 for all that aren't here


def repattern(parameter: SparseParameter, pattern: Pattern | SparseTensor | torch.Tensor, optimizer: Optimizers = None) -> None:
    """Give a parameter another pattern: kept entries keep their values, new ones start at 0.

    Everything that has a number for each value goes along, whole: the gradient, and what optimizers remember, as Adam's ``exp_avg``
    and SGD's momentum. ``parameter.values`` stays the same ``torch.nn.Parameter``, in the same group of its optimizer, with its hooks
    and its ``requires_grad``; where as many values are stored as before, its memory stays the same, too. Nothing is changed if
    anything is wrong. O(nnz log nnz), and O(size) for a mask.

    Args:
        parameter: whose pattern is changed, as ``layer.weight`` of a ``SparseLinear``. Copies made before keep theirs.
        pattern: the new entries, stored in the parameter's format: a Pattern, a SparseTensor, whose values don't matter, or a mask,
            True where an entry is stored. Blocks are stored whole.
        optimizer: those that train the parameter, one or several; None if none has been made yet.

    Raises:
        SizeError: the pattern has another shape.
        FormatError: the parameter's format can't store these entries.
        OperandError: no parameter, no pattern, or the optimizer doesn't hold the parameter.
        UnsupportedError: the optimizer remembers what can't follow, as LBFGS does.

    >>> import numscorch as ns
    >>> weight = ns.nn.Parameter(ns.from_torch(torch.tensor([[1.0, 2.0], [0.0, 0.0]])))
    >>> repattern(weight, torch.tensor([[False, True], [True, False]]))
    >>> weight.to_dense().tolist(), weight.nnz, weight.requires_grad
    ([[0.0, 2.0], [0.0, 0.0]], 2, True)
    """
    if not isinstance(parameter, SparseParameter):
        raise OperandError(f"repattern takes a SparseParameter, as layer.weight of a SparseLinear, not {type(parameter).__name__}")
    new = as_stored(parameter, pattern)
    held(parameter.values, optimizer)  # which refuses what can't follow
    follow(parameter, new, listed(optimizer))


def follow(parameter: SparseParameter, new: Pattern, optimizers: Iterable[Optimizer]) -> None:
    """Give a parameter a pattern of its shape, in any format, and let those optimizers follow that hold it; all of it is checked."""
    holding = [optimizer for optimizer in optimizers if holds(optimizer, parameter.values)]
    states = [(optimizer.state.get(parameter.values, {}), followers(parameter.values, optimizer)) for optimizer in holding]
    move = Move(parameter.pattern, new)
    place(parameter, new, move(parameter.values.detach()), move)
    for state, names in states:
        for name in names:
            state[name] = _moved(state[name], move)
    for optimizer in holding:
        if isinstance(optimizer, torch.optim.Rprop):
            _start_steps(optimizer, parameter.values)


def _start_steps(optimizer: torch.optim.Rprop, values: torch.nn.Parameter) -> None:
    """Rprop's steps of new entries are what they are at first: from 0 they would never grow."""
    (rate,) = [group["lr"] for group in optimizer.param_groups if any(parameter is values for parameter in group["params"])]
    if "step_size" in (state := optimizer.state.get(values, {})):
        state["step_size"].masked_fill_(state["step_size"] == 0, float(rate))


class Move:
    """Where the values of one pattern lie in another one."""

    def __init__(self, old: Pattern, new: Pattern):
        self.nnz = new.nnz
        numbers, places = sorted_places(old)
        wanted = numbered(list(coordinates(new)), new.shape)
        at = torch.searchsorted(numbers, wanted)
        at[at == len(numbers)] = 0  # beyond the last one, which isn't the one that is looked for
        matches = (numbers[at] == wanted).nonzero()[:, 0] if len(numbers) else at[:0]
        self.sources = places[at[matches]]
        self.targets = torch.from_numpy(positions_of(new, matches.numpy()))

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """The values in the new pattern's order, 0 where the old one had none."""
        return values.new_zeros(self.nnz).index_copy_(0, self.targets, values.index_select(0, self.sources))


def sorted_places(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers of all entries' places, counted row by row, in order, and the positions of their values."""
    numbers, order = torch.sort(numbered(list(coordinates(pattern)), pattern.shape))
    return numbers, torch.from_numpy(positions_of(pattern, order.numpy()))


def as_stored(parameter: SparseParameter, pattern: Pattern | SparseTensor | torch.Tensor) -> Pattern:
    """A pattern in the parameter's format.

    Raises:
        SizeError: it has another shape.
        FormatError: the format can't store it.
        OperandError: it is no pattern.
    """
    if isinstance(pattern, Pattern):
        pattern = SparseTensor(pattern, torch.ones(pattern.nnz))
    if not isinstance(pattern, SparseTensor | torch.Tensor) or (isinstance(pattern, torch.Tensor) and pattern.dtype != torch.bool):
        given = f"a tensor of {pattern.dtype}" if isinstance(pattern, torch.Tensor) else type(pattern).__name__
        raise OperandError(f"a new pattern is a Pattern, a SparseTensor, or a bool mask as made by mask != 0, not {given}")
    if tuple(pattern.shape) != tuple(parameter.shape):
        raise SizeError(f"the new pattern has shape {tuple(pattern.shape)}, but the weight has {tuple(parameter.shape)}")
    if isinstance(pattern, torch.Tensor):
        pattern_ = from_torch(pattern, parameter.format).pattern
    else:
        same = pattern.format == parameter.format
        pattern_ = (pattern if same else to_format(pattern.with_values(torch.ones(pattern.pattern.nnz)), parameter.format)).pattern
        pattern_ = copy.deepcopy(pattern_)  # the arrays become buffers, and something may write to these
    # programs that torch compiled know a format by its identity
    return pattern_ if pattern_.format is parameter.format else Pattern(parameter.format, pattern_.shape, pattern_.arrays)


def place(parameter: SparseParameter, pattern: Pattern, values: torch.Tensor, move: Move | None = None) -> None:
    """Write a pattern and values into a parameter; its gradient moves, or is dropped."""
    gradient = parameter.values.grad
    moved = None if gradient is None or move is None else _moved(gradient, move)
    resize(parameter.values, values)
    parameter.values.grad = moved
    parameter.hold(pattern)


def resize(values: torch.nn.Parameter, new: torch.Tensor) -> None:
    """Write other values, maybe of another number, to a parameter.

    Autograd remembers the size of a leaf as long as a graph lives that reached it, as that of the last step's loss, and would refuse
    gradients of the new size; it forgets that when the data type changes.
    """
    with torch.no_grad():
        if new.shape == values.shape:
            values.copy_(new)
            return
        values.grad = None
        values.data = torch.empty(0, dtype=OTHER.get(values.dtype, torch.float64))
        values.data = new
    torch.autograd.graph.increment_version(values)  # so that a backward pass of the old pattern is refused


def _moved(tensor: torch.Tensor, move: Move) -> torch.Tensor:
    """A tensor that goes along with the values; in its own memory, which others may share, where there are as many as before."""
    moved = move(tensor)
    return tensor.copy_(moved) if moved.shape == tensor.shape else moved
