"""sparsify_model and densify_model: convert a model's layers in place, with its optimizers, their state, and hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..errors import OperandError, UnsupportedError
from ..machine.progress import Progress
from ..nn.sparse_layers import SparseMultiheadAttention
from ..tensors.parameter import SparseParameter
from .checks import check_model
from .flows import attach, check_flows, flows_of, remove_flows
from .layers import sites_of, tell_missing
from .matching import MatchedWeight, chosen, computed, is_masked, why_bound
from .plan import SparsityPlan
from .replacement import (
    Optimizer,
    Optimizers,
    adapt_readers,
    carry_over,
    check_followers,
    check_holding,
    hand_over,
    listed,
    put_sparse,
    replace_module,
    scattered,
)
from .settling import ModelReport, ModelRow, ModuleCall, Settling, calls_of

NO_OPTIMIZER = (
    "no optimizer was given: an optimizer made before holds the dense weights, and its state does not fit the sparse ones; "
    "pass optimizer=, or make a new optimizer"
)


def sparsify_model(
    model: torch.nn.Module,
    plan: SparsityPlan,
    example_inputs: Any = None,
    *,
    optimizer: Optimizers = None,
    advise: bool = True,
    inplace: bool = True,
    report: Callable[[ModelReport], object] | None = print,
    progress: bool | None = None,
) -> torch.nn.Module:
    """Make a model sparse by the rules of a plan: its weights, activations and gradients.

    Layers are replaced by sparse layers of the same name. ``Linear``, ``Conv2d``, ``Embedding`` and ``MultiheadAttention`` have sparse
    versions; :func:`register_sparse_module` adds sparse versions of other modules. Biases, hooks, training mode and frozen parameters are
    preserved. A weight shared by several modules becomes one sparse weight if the plan names all of them. On an error, the model is
    unchanged.

    Args:
        model: the model to change. If the model itself is a layer that becomes sparse, use the result.
        plan: rules by name.
        example_inputs: a tensor, or a tuple or dict of arguments. The model runs with it once, in evaluation mode. Then the forward pass of
            each layer is timed with inputs of the same sizes. Without it, nothing is timed.
        optimizer: the optimizers of the model, one or several. They then train the values of the sparse weights, with the state of these
            entries.
        advise: whether layers stay dense if they are faster dense, by median time, and embedding tables if they are not smaller sparse.
            Rules with ``always=True`` are exempt. The report marks a speed-up as "uncertain" if the timings scatter. Layers that are not
            timed become sparse.
        inplace: whether to change ``model`` itself; False changes a copy.
        report: a function that is called with a :class:`ModelReport`; None for no report.
        progress: whether to show a progress bar on stderr; by default for large models if stderr is a terminal.

    Returns:
        The model.

    Raises:
        ExpressionError: a rule names nothing; the nearest names are listed.
        OperandError: an argument has another type, a weight has NaN, or a sparsifier makes no mask; the model does not run with
            example_inputs; or an optimizer holds no parameter of the model.
        FormatError: a format cannot store the kept entries.
        UnsupportedError: the optimizer or ``DistributedDataParallel`` does not support the change; all weights that a rule names are sparse
            already; torch prunes a weight with a mask; or, within ``ns.strict()``, a module has no sparse version.

    Complexity:
        In addition to the model, memory for the conversion of one layer, and one bit for each entry of the weights.

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
    _check(model, plan, example_inputs, inplace or optimizer is None)
    optimizers = listed(optimizer)
    check_holding(model, optimizers)
    model = model if inplace else copy.deepcopy(model)
    choices, flows = chosen(model, plan), flows_of(model, plan)
    _check_choices(choices)
    tell_missing([choice.missing for choice in choices if choice.missing is not None])
    size = sum(choice.parameter.nbytes for choice in choices if not choice.why)
    with Progress("sparsifying", 2 * size, shown=progress, size=size) as bar:
        rows = _rows(choices, Settling(optimizers, _calls(model, choices, example_inputs), advise), bar)
        choices = [choice for choice in choices if not choice.why]
        check_flows(model, flows, {site.name for choice in choices for site in choice.sites})
        notes = (NO_OPTIMIZER,) if not optimizers and any(choice.parameter.requires_grad for choice in choices) else ()
        while choices:  # each dense weight is freed once it is replaced
            bar.reach(bar.done + choices[0].parameter.nbytes)
            choice = choices.pop(0)
            model, _ = put_sparse(model, choice, choice.sparsifier, choice.rule.format, optimizers)
            del choice
    model = adapt_readers(model)
    attach(model, flows)
    if report is not None:
        report(ModelReport(tuple(rows), notes))
    return model


def densify_model(model: torch.nn.Module, optimizer: Optimizers = None) -> torch.nn.Module:
    """Undo :func:`sparsify_model`: make weights dense, and remove the hooks of a plan.

    Entries that are not stored become 0.

    Args:
        model: the model to change. If the model itself is a sparse layer, use the result.
        optimizer: the optimizers of the model, one or several. They then train the dense weights. The state of entries that were not stored
            is 0.

    Returns:
        The model.

    Raises:
        OperandError: an argument has another type, or an optimizer holds no parameter of the model.
        UnsupportedError: a module with a sparse weight has no ``to_dense()``; or the optimizer or ``DistributedDataParallel`` does not
            support the change.

    >>> from numscorch.sparsify import magnitude
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2))
    >>> densify_model(sparsify_model(model, SparsityPlan().weight("0.weight", magnitude(0.5)), report=None))
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    optimizers = listed(optimizer)
    check_model("densify_model", model)
    check_holding(model, optimizers)
    modules = [
        (name, module) for name, module in model.named_modules() if _sparse_weights(module) or type(module) is SparseMultiheadAttention
    ]
    for name, module in modules:
        for key, weight in _sparse_weights(module).items():
            check_followers(f"{name}.{key}".lstrip("."), weight.values, optimizers, required=False)
        if not hasattr(type(module), "to_dense"):
            raise UnsupportedError(f"{name}: {type(module).__name__} has no to_dense(), which makes a dense module of it")
        if why := why_bound(module, model):
            raise UnsupportedError(f"{name}: {why}")
    for module in model.modules():
        remove_flows(module)
    known: dict[int, torch.nn.Parameter] = {}
    del module
    while modules:  # inner modules first
        model = _replace_by_dense(model, modules.pop()[1], optimizers, known)
    return model


def _check(model: object, plan: object, example_inputs: Any, optimizer_fits: bool) -> None:
    """Check the arguments of :func:`sparsify_model`.

    Raises:
        OperandError: an argument has another type, or does not fit the model.
    """
    check_model("sparsify_model", model)
    if not isinstance(plan, SparsityPlan):
        raise OperandError(f"sparsify_model takes a SparsityPlan, not {plan!r}: give SparsityPlan().weight('*.weight', magnitude(0.9))")
    if not plan.rules:
        raise OperandError("the plan has no rules: its methods return a new plan, as in plan = plan.weight('*.weight', magnitude(0.9))")
    if not optimizer_fits:
        raise OperandError("optimizer= with inplace=False: it holds parameters of the model, not of the copy; make one for the copy")
    several = example_inputs if isinstance(example_inputs, list | tuple) and example_inputs else [example_inputs]
    if all(isinstance(value, Optimizer) for value in several):
        raise OperandError(
            f"sparsify_model(model, plan, {type(several[0]).__name__}): the third argument is example_inputs; pass optimizer=optimizer"
        )


def _check_choices(choices: list[MatchedWeight]) -> None:
    """Check that each rule for weights names a dense weight, and that no mask of torch prunes a parameter of the modules.

    Otherwise, a masked weight would stay dense, and a masked bias would be missing in the sparse module.

    Raises:
        UnsupportedError: all weights of a rule are sparse already, or a mask prunes a parameter.
    """
    for rule in {id(choice.rule): choice.rule for choice in choices}.values():
        ruled = [choice for choice in choices if choice.rule is rule]
        if all(choice.is_sparse for choice in ruled):
            raise UnsupportedError(
                f"{rule} names only weights that are sparse already, such as {ruled[0].name}: call densify_model(model, optimizer) first "
                "to choose entries anew, or prune further with GradualPruning"
            )
    for site in (site for choice in choices if not choice.is_vector for site in choice.sites):
        if masked := next(filter(is_masked, (site, *sites_of(site.module))), None):
            name, why = computed(site)[0] or site.name, computed(masked)[1]
            raise UnsupportedError(f"{name} {why}; threshold(0.0) then keeps the nonzeros of a weight")


def _calls(model: torch.nn.Module, choices: list[MatchedWeight], example_inputs: Any) -> dict[torch.nn.Module, ModuleCall] | None:
    """Record the calls of the modules in one run of the model; None without example inputs."""
    modules = [site.module for choice in choices for site in choice.modules()]
    return None if example_inputs is None else calls_of(model, modules, example_inputs)


def _rows(choices: list[MatchedWeight], settling: Settling, bar: Progress) -> list[ModelRow]:
    rows = []
    for choice in choices:
        rows.append(settling.row(choice))
        bar.reach(bar.done + (0 if choice.why else choice.parameter.nbytes))
    return rows


def _replace_by_dense(
    model: torch.nn.Module, module: Any, optimizers: list[Optimizer], known: dict[int, torch.nn.Parameter]
) -> torch.nn.Module:
    """Replace a sparse module of a model by a dense one; shared weights stay shared."""
    with torch.random.fork_rng(devices=()):
        layer, sparse = module.to_dense(), _sparse_weights(module)
    for key, weight in sparse.items():
        if id(weight) not in known:
            known[id(weight)] = getattr(layer, key)
            hand_over(optimizers, weight.values, known[id(weight)], partial(scattered, weight.pattern, shape=known[id(weight)].shape))
        layer._parameters[key] = known[id(weight)]
    return replace_module(model, module, carry_over(module, layer, sparse.keys()))


def _sparse_weights(module: torch.nn.Module) -> dict[str, SparseParameter]:
    return {key: child for key, child in module._modules.items() if isinstance(child, SparseParameter)}
