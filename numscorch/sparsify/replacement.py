"""Changes of a weight between dense and sparse, or of its pattern: modules, hooks, optimizers and their state follow."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from ..convert.construct import from_torch
from ..convert.conversions import to_format
from ..convert.values import matches_in, others_at, with_entries
from ..errors import OperandError, SizeError, UnsupportedError
from ..ir.format import Format
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.ledgers import stack_level
from ..tensors.packing import coordinates, positions_of
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .checks import naming
from .layers import adapted, converted
from .matching import MatchedWeight

Optimizer: TypeAlias = torch.optim.Optimizer
Optimizers: TypeAlias = Optimizer | Iterable[Optimizer] | None
Transfer = Callable[[torch.Tensor], torch.Tensor]
ENTRYWISE = {  # state keys of optimizers whose state tensors all have the parameter's shape
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta"),
    *("sum", "prev", "step_size", "ax"),
}
HOOKS = tuple(name for name in vars(torch.nn.Identity()) if "hook" in name)
HELD = ("_parameters", "_buffers", "_modules")
OTHER = {torch.float64: torch.float32}  # maps a data type to a different one; float64 for types not listed

_replaced = WeakTensorKeyDictionary()  # parameters that a model no longer has, while other objects hold them
_checked: WeakSet[Optimizer] = WeakSet()  # optimizers that took a step since the last replacement


def _tell_stale(optimizer: Optimizer, *_: Any) -> None:
    """Warn before a step if an optimizer holds parameters that were replaced, and so would go on training nothing."""
    if torch.compiler.is_compiling() or not _replaced or optimizer in _checked:
        return
    _checked.add(optimizer)
    if stale := sum(parameter in _replaced for group in optimizer.param_groups for parameter in group["params"]):
        warnings.warn(
            f"{type(optimizer).__name__} holds {stale} parameters that are no longer part of the model, because sparsify_model, "
            "densify_model or load_patterns replaced them: it does not train their replacements; pass optimizer= to that function, or make "
            "a new optimizer of model.parameters()",
            UserWarning,
            stacklevel=stack_level(),
        )


register_optimizer_step_pre_hook(_tell_stale)


def listed(optimizer: Optimizers) -> list[Optimizer]:
    """Return one or several optimizers as a list.

    Raises:
        OperandError: an element is not an optimizer.

    >>> listed(None)
    []
    """
    optimizers: list[Any] = [] if optimizer is None else list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    if wrong := [item for item in optimizers if not isinstance(item, Optimizer)]:
        raise OperandError(f"{type(wrong[0]).__name__} is not a torch.optim.Optimizer: give an optimizer that trains the model, or several")
    return optimizers


def optimizers_of(parameter: torch.Tensor, optimizers: Iterable[Optimizer]) -> list[Optimizer]:
    return [item for item in optimizers if any(parameter is other for group in item.param_groups for other in group["params"])]


def check_holding(model: torch.nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Check that each optimizer trains some of a model's parameters.

    Raises:
        OperandError: an optimizer trains another model, or a copy.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"]):
            raise OperandError(
                f"{type(optimizer).__name__} holds no parameter of this model, as after model = copy.deepcopy(model) or densify_model: "
                "pass an optimizer of model.parameters()"
            )


def check_followers(name: str, parameter: torch.Tensor, optimizer: Optimizers, *, required: bool = True) -> None:
    """Check that optimizers hold a parameter, if it is trained, and that their state can follow it to another layout.

    Args:
        name: the parameter's name, with which errors start.
        parameter: the parameter.
        optimizer: one or several optimizers; None if there is none yet.
        required: whether one of them has to hold a parameter that requires grad.

    Raises:
        OperandError: an argument is not an optimizer, or no optimizer holds the parameter.
        UnsupportedError: an optimizer's state cannot follow.
    """
    optimizers = listed(optimizer)
    holding = optimizers_of(parameter, optimizers)
    with naming(name):
        if required and parameter.requires_grad and optimizers and not holding:
            raise OperandError(
                f"{' or '.join(type(item).__name__ for item in optimizers)} doesn't hold the values of this weight, and would not train "
                "them: pass an optimizer of model.parameters()"
            )
        for item in holding:
            followers(parameter, item)


def followers(parameter: torch.Tensor, optimizer: Optimizer) -> list[str]:
    """Return the keys of an optimizer's state tensors with one number per entry of a parameter.

    Scalars, such as a count of steps, are not listed.

    Raises:
        UnsupportedError: the state has a tensor of another shape, which is unrelated to entries or belongs to
            another layout of the weight; or the optimizer is LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError("LBFGS stores all parameters in one vector, which can't follow a pattern: use SGD or Adam, or a new LBFGS")
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    names = [key for key, value in state.items() if isinstance(value, torch.Tensor) and value.ndim and value.shape == parameter.shape]
    for key, value in state.items():
        if key not in names and (isinstance(value, list | tuple) or (isinstance(value, torch.Tensor) and value.numel() > 1)):
            what = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            what = f"{type(optimizer).__name__} stores {key!r}, {what}, for a parameter {tuple(parameter.shape)}"
            if key in ENTRYWISE:
                raise UnsupportedError(
                    f"{what}: the loaded state belongs to another layout of the weight, dense or sparse: load the optimizer's state "
                    "last, when the weights have the layout of the saved model"
                )
            raise UnsupportedError(
                f"{what}, which can't follow its entries: use an optimizer that works entry by entry, such as SGD or Adam, or leave "
                "optimizer= out, and make a new one"
            )
    return names


def hand_over(optimizers: Iterable[Optimizer], old: torch.nn.Parameter, new: torch.nn.Parameter, moved: Transfer) -> None:
    """Let optimizers train a new parameter in place of an old one, in the same group, with its gradient and state.

    Another optimizer that holds the old parameter warns at its next step.
    """
    if old.requires_grad:
        _replaced[old] = True
        _checked.clear()
    if old.grad is not None:
        new.grad = moved(old.grad if old.grad.layout == torch.strided else old.grad.to_dense())
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"][:] = [new if value is old else value for value in group["params"]]
        if old in optimizer.state:
            names, state = followers(old, optimizer), optimizer.state.pop(old)
            optimizer.state[new] = {key: moved(value) if key in names else value for key, value in state.items()}


def carry_over(old: torch.nn.Module, new: torch.nn.Module, names: Iterable[str]) -> torch.nn.Module:
    """Copy a module's parameters (except ``names``), buffers, submodules, hooks, mode and missing attributes to its replacement.

    Dictionaries of hooks are shared, so that ``remove()`` of an existing handle still works. Parameters such as a bias
    are shared too, since an optimizer may hold them.
    """
    for name in HOOKS:
        old_hooks, hooks = getattr(old, name), getattr(new, name)
        if isinstance(old_hooks, dict) and old_hooks is not hooks:
            old_hooks.update(hooks)
        setattr(new, name, old_hooks)
    for kind in HELD:
        held = vars(new)[kind]
        held |= {name: value for name, value in vars(old)[kind].items() if name not in names and (name in held or not hasattr(new, name))}
    new._non_persistent_buffers_set |= old._non_persistent_buffers_set
    for name, value in vars(old).items():
        vars(new).setdefault(name, value)
    return new.train(old.training) if new.training != old.training else new


def replace_module(model: torch.nn.Module, old: torch.nn.Module, new: torch.nn.Module) -> torch.nn.Module:
    """Replace a module wherever a model has it; return the model, or the new module if the old one is the model itself."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return new if model is old else model


def gathered(pattern: Pattern, dense: torch.Tensor) -> torch.Tensor:
    """Return the values of a dense tensor at a pattern's entries.

    The tensor has the pattern's shape, or its dimensions after the first are flattened to columns.
    """
    stored = SparseTensor(pattern, torch.empty(pattern.nnz, dtype=dense.dtype))
    return with_entries(stored, others_at(stored, dense.reshape(pattern.shape))).values


def scattered(pattern: Pattern, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a dense tensor with values at a pattern's entries, and 0 elsewhere."""
    return SparseTensor(pattern, values).to_dense().reshape(shape)


def put_sparse(
    model: torch.nn.Module, choice: MatchedWeight, sparsifier: Sparsifier, format: Format | None, optimizers: Iterable[Optimizer]
) -> tuple[torch.nn.Module, SparseParameter]:
    """Put a sparse weight in all places of a dense weight, also in the optimizers; return the model and the sparse weight."""
    dense, weights = choice.parameter, []
    for site in choice.modules():
        module = model.get_submodule(site.home)
        layer = converted(module, site.key, sparsifier, format)
        weights.append(getattr(layer, site.key))
        layer._modules[site.key] = weights[0]
        model = replace_module(model, module, carry_over(module, layer, {site.key}))
    hand_over(optimizers, dense, weights[0].values, partial(gathered, weights[0].pattern))
    return model, weights[0]


def adapt_readers(model: torch.nn.Module) -> torch.nn.Module:
    """Adapt each module of a model that reads weights of its children, if these weights are sparse."""
    for module in list(model.modules()):
        if any(isinstance(child, SparseParameter) for child in module.modules()):
            adapted_ = adapted(module)
            model = model if adapted_ is module else replace_module(model, module, adapted_)
    return model


def repattern(parameter: SparseParameter, pattern: Pattern | SparseTensor | torch.Tensor, optimizer: Optimizers = None) -> None:
    """Give a parameter another pattern: common entries keep their values, and new entries start at 0.

    The gradient and the optimizer state, such as the moments of Adam, are moved with the values. ``parameter.values`` stays the same
    ``torch.nn.Parameter``, in the same optimizer group, with its hooks and ``requires_grad``. If the number of values does not change,
    their memory is reused. On an error, nothing is changed.

    Args:
        parameter: the parameter to change, such as ``layer.weight`` of a ``SparseLinear``. Earlier copies keep their pattern.
        pattern: the new entries: a Pattern, the entries of a SparseTensor, or a bool mask, True where an entry is stored. They are stored
            in the format of the parameter; blocks are stored whole.
        optimizer: the optimizers that train the parameter, one or several; None if there is none yet.

    Raises:
        SizeError: the pattern has another shape.
        FormatError: the format of the parameter cannot store these entries.
        OperandError: an argument has another type, or the parameter requires grad and the optimizer does not hold it.
        UnsupportedError: the optimizer's state cannot follow, as for LBFGS.

    Complexity:
        O(nnz log nnz), and O(size) for a mask.

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
    """Give a parameter a new pattern of any format, which the caller has checked, and move its optimizers' state with the values."""
    holding = optimizers_of(parameter.values, optimizers)
    states = [(optimizer.state.get(parameter.values, {}), followers(parameter.values, optimizer)) for optimizer in holding]
    move = transfer(parameter.pattern, new)
    gradient = None if parameter.values.grad is None else _move_state(parameter.values.grad, move)
    resize(parameter.values, move(parameter.values.detach()))
    parameter.values.grad = gradient
    parameter.hold(new)
    for optimizer, (state, names) in zip(holding, states, strict=True):
        for name in names:
            state[name] = _move_state(state[name], move)
        if isinstance(optimizer, torch.optim.Rprop) and "step_size" in state:  # from 0, the step sizes of new entries would never grow
            (rate,) = [group["lr"] for group in optimizer.param_groups if any(value is parameter.values for value in group["params"])]
            state["step_size"].masked_fill_(state["step_size"] == 0, float(rate))


def transfer(old: Pattern, new: Pattern) -> Transfer:
    """Return the function that moves values from one pattern to another; new entries get 0."""
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
        stored = to_format(pattern.with_values(torch.ones(pattern.pattern.nnz)), parameter.format)
        pattern_ = copy.deepcopy(stored.pattern)  # the arrays become buffers, which may be written to
    # compiled programs identify a format by its object
    return pattern_ if pattern_.format is parameter.format else Pattern(parameter.format, pattern_.shape, pattern_.arrays)


def resize(values: torch.nn.Parameter, new: torch.Tensor) -> None:
    """Write new values, possibly a different number of them, to a parameter.

    Autograd caches the size of a leaf as long as a graph that reached it is alive, such as the graph of the last
    step's loss, and would reject gradients of the new size. A change of the data type clears the cache.
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
    """Apply the move of the values to a state tensor; in place if the number of values stays the same, since memory may be shared."""
    moved = move(tensor)
    return tensor.copy_(moved) if moved.shape == tensor.shape else moved
