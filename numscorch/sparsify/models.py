"""sparsify_model and densify_model: a model's layers by name, in place, with its optimizer, state and hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import OperandError, UnsupportedError
from ..files.progress import Progress
from ..tensors.parameter import SparseParameter
from .advice import ModuleCall, calls_of
from .flowing import attach, flows_of
from .flows import remove_flows
from .layers import is_adapted, tell_missing
from .matching import MatchedWeight, chosen, why_bound
from .optimizers import Optimizer, Optimizers, check_holding, check_states, hand_over, listed
from .owners import adapt_readers, carry_over, put_sparse, replace_module, scattered
from .plan import SparsityPlan
from .settling import Settling
from .table import ModelReport, ModelRow

Module = torch.nn.Module
NO_OPTIMIZER = (
    "no optimizer was given: one made before holds the dense weights, and its state does not fit the sparse ones; "
    "pass optimizer=, or make a new one"
)


def sparsify_model(
    model: Module,
    plan: SparsityPlan,
    example_inputs: Any = None,
    *,
    optimizer: Optimizers = None,
    advise: bool = True,
    inplace: bool = True,
    report: Callable[[ModelReport], object] | None = print,
    progress: bool | None = None,
) -> Module:
    """Store weights of a model with only the entries that a plan keeps, and have activations and gradients go through its sparsifiers.

    Layers are replaced by sparse ones of the same name: ``Linear``, ``Conv2d``, ``Embedding`` and ``MultiheadAttention``, and
    those of :func:`register_sparse_module`. Their biases, hooks, mode and what is frozen stay. A weight that several modules
    share becomes one sparse weight, if a plan names all of them. Every mask is drawn, and every layer tried, before the first one
    is replaced: if anything is wrong, the model is as before.

    Args:
        model: what is changed; where the model itself is such a layer, use the result.
        plan: rules by name.
        example_inputs: a tensor, or a tuple or dict of arguments, to run the model with once, in evaluation mode; layers are then
            timed with inputs of the sizes that they get, forward.
        optimizer: whose groups then hold the sparse weights' values, where the dense weights were, with what it remembers of these
            entries. It may be a list of several.
        advise: whether layers that are faster dense, by the medians, stay so, unless their rule says ``always=True``. The report calls
            a speed-up "uncertain" if the timings scatter, as on a busy machine. Without example_inputs, nothing is timed, and all
            layers become sparse. A table of ``Embedding``, in which lookups are never faster, becomes sparse if that takes fewer bytes.
        inplace: False for a copy.
        report: what is called with a :class:`ModelReport`, one row for each weight; None for no report.
        progress: whether to show a bar on stderr; by default for large models, where it is a terminal.

    Returns:
        The model.

    Raises:
        ExpressionError: a rule names nothing; the nearest names are listed.
        OperandError: a weight has NaN, a sparsifier makes no mask, the plan is none, the model does not run with example_inputs, or an
            optimizer holds no parameter of the model.
        FormatError: a format can't store what is kept.
        UnsupportedError: the optimizer or DistributedDataParallel can't follow; a rule names only weights that are sparse already; or
            within ``ns.strict()``, a module has no sparse version.

    Complexity:
        Beside the model, memory for one layer's conversion, and a bit for each weight.

    >>> from numscorch.sparsify import magnitude
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    >>> model = sparsify_model(model, SparsityPlan().weight("0.weight", magnitude(0.9)))
    weight    module  density  format  before  after     speed-up
    0.weight  Linear  0.1      CSR     16 KiB  3.46 KiB  not measured
    1 of 1 weights sparse, 16 KiB -> 3.46 KiB
    no optimizer was given: ...
    >>> model[0]
    SparseLinear(
      in_features=64, out_features=64, bias=True, density=0.1, CSR
      (weight): SparseParameter(SparseTensor(CSR, shape=(64, 64), nnz=410, density=0.1, float32, int32 indices, requires_grad=True))
    )
    """
    _check(model, plan, inplace or optimizer is None)
    _check_example(example_inputs)
    optimizers = listed(optimizer)
    check_holding(model, optimizers)
    model = model if inplace else copy.deepcopy(model)
    choices, flows = chosen(model, plan), flows_of(model, plan)
    _check_some_dense(choices)
    tell_missing([choice.missing for choice in choices if choice.missing is not None])
    size = sum(choice.parameter.nbytes for choice in choices if not choice.why)
    with Progress("sparsifying", 2 * size, shown=progress, size=size) as bar:
        rows = _settled(choices, Settling(optimizers, _calls(model, choices, example_inputs), advise), bar)
        choices = [choice for choice in choices if not choice.why]
        flows.check({site.name for choice in choices for site in choice.sites})
        notes = (NO_OPTIMIZER,) if not optimizers and any(choice.parameter.requires_grad for choice in choices) else ()
        while choices:  # none is held longer than it takes, and its dense weight with it
            bar.reach(bar.done + choices[0].parameter.nbytes)
            choice = choices.pop(0)
            model, _ = put_sparse(model, choice, choice.sparsifier, choice.rule.format, optimizers)
            del choice
    model = adapt_readers(model)
    attach(model, flows)
    if report is not None:
        report(ModelReport(tuple(rows), notes))
    return model


def densify_model(model: Module, optimizer: Optimizers = None) -> Module:
    """Undo :func:`sparsify_model`: layers have dense weights, 0 where nothing was stored, and a plan's hooks are gone.

    Args:
        model: what is changed; where the model itself is a sparse layer, use the result.
        optimizer: whose groups then hold the dense weights, with what it remembers of the entries, and 0 of others; or several.

    Returns:
        The model.

    Raises:
        UnsupportedError: a module with a sparse weight has no ``to_dense()``, or the optimizer or DistributedDataParallel can't follow.

    >>> from numscorch.sparsify import magnitude
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> densify_model(sparsify_model(model, SparsityPlan().weight("0.weight", magnitude(0.5)), report=None))
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    optimizers = listed(optimizer)
    check_alone(model)
    check_holding(model, optimizers)
    modules = [(name, module) for name, module in model.named_modules() if _sparse_weights(module) or is_adapted(module)]
    for name, module in modules:
        for key, weight in _sparse_weights(module).items():
            check_states(f"{name}.{key}" if name else key, weight.values, optimizers)
        if not hasattr(type(module), "to_dense"):
            raise UnsupportedError(f"{name}: {type(module).__name__} has no to_dense(), which makes a dense module of it")
        if why := why_bound(module, model):
            raise UnsupportedError(f"{name}: {why}")
    for module in model.modules():
        remove_flows(module)
    known: dict[int, torch.nn.Parameter] = {}
    del module
    while modules:  # inner ones first
        model = _made_dense(model, modules.pop()[1], optimizers, known)
    return model


def _check(model: object, plan: object, optimizer_fits: bool) -> None:
    """That these are what they should be.

    Raises:
        OperandError: they aren't.
    """
    if not isinstance(model, torch.nn.Module):
        raise OperandError(f"sparsify_model takes a torch.nn.Module, not {type(model).__name__}")
    if not isinstance(plan, SparsityPlan):
        raise OperandError(f"sparsify_model takes a SparsityPlan, not {plan!r}: give SparsityPlan().weight('*.weight', magnitude(0.9))")
    check_alone(model)
    if not plan.rules:
        raise OperandError("the plan has no rules: its methods return a new plan, as in plan = plan.weight('*.weight', magnitude(0.9))")
    if not optimizer_fits:
        raise OperandError("optimizer= with inplace=False: it holds parameters of the model, not of the copy; make one of the copy's")


def _check_some_dense(choices: list[MatchedWeight]) -> None:
    """That each rule for weights has something to do.

    Raises:
        UnsupportedError: all of its weights are sparse already.
    """
    for rule in {id(choice.rule): choice.rule for choice in choices}.values():
        ruled = [choice for choice in choices if choice.rule is rule]
        if all(choice.is_sparse for choice in ruled):
            raise UnsupportedError(
                f"{rule} names only weights that are sparse already, as {ruled[0].name}: call densify_model(model, optimizer) first to "
                "choose entries anew, or prune further with GradualPruning"
            )


def _check_example(given: Any) -> None:
    """That examples are no optimizers, which have the same place in other functions.

    Raises:
        OperandError: they are.
    """
    several = given if isinstance(given, list | tuple) and given else [given]
    if all(isinstance(value, Optimizer) for value in several):
        raise OperandError(
            f"sparsify_model(model, plan, {type(several[0]).__name__}): the third argument is example_inputs; pass optimizer=optimizer"
        )


def check_alone(model: Module) -> None:
    """That nothing shares gradients of the weights that are there.

    Raises:
        UnsupportedError: DistributedDataParallel does.
    """
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UnsupportedError(
            "DistributedDataParallel keeps the weights that it wraps: pass the model within, its .module, and wrap the result anew with"
            " sparsify.data_parallel"
        )


def _calls(model: Module, choices: list[MatchedWeight], example_inputs: Any) -> dict[Module, ModuleCall] | None:
    """What the modules are called with, where there is an example."""
    modules = [site.module for choice in choices for site in choice.modules()]
    return None if example_inputs is None else calls_of(model, modules, example_inputs)


def _settled(choices: list[MatchedWeight], settling: Settling, bar: Progress) -> list[ModelRow]:
    """A row for each choice."""
    rows = []
    for choice in choices:
        rows.append(settling.row(choice))
        bar.reach(bar.done + (0 if choice.why else choice.parameter.nbytes))
    return rows


def _made_dense(model: Module, module: Any, optimizers: list[Optimizer], known: dict[int, torch.nn.Parameter]) -> Module:
    """The model with a dense module in the place of a sparse one; weights that are shared stay so."""
    with torch.random.fork_rng(devices=()):
        layer, sparse = module.to_dense(), _sparse_weights(module)
    for key, weight in sparse.items():
        if id(weight) not in known:
            known[id(weight)] = getattr(layer, key)
            hand_over(optimizers, weight.values, known[id(weight)], partial(scattered, weight.pattern, shape=known[id(weight)].shape))
        layer._parameters[key] = known[id(weight)]
    return replace_module(model, module, carry_over(module, layer, sparse.keys()))


def _sparse_weights(module: Module) -> dict[str, SparseParameter]:
    return {key: child for key, child in module._modules.items() if isinstance(child, SparseParameter)}
