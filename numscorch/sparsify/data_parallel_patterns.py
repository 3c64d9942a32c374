"""Sparse weights in DistributedDataParallel: values are summed directly, so all processes need the same patterns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from ..errors import OperandError, UnsupportedError
from ..tensors.graph_breaks import graph_break
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern, named_arrays
from .loading import patterns_of, saved
from .matching import sparse_weights, unwrapping
from .replacement import Optimizers, repattern


def data_parallel(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """Wrap a model with sparse weights in ``DistributedDataParallel``. All processes have to call it.

    All processes must have the same patterns. Gradients of values are averaged over the processes like other gradients. The index arrays
    are excluded from the broadcasts of buffers, because they are equal.

    Args:
        model: the model.
        options: options of ``DistributedDataParallel``, such as ``process_group``.

    Returns:
        The wrapped model.

    Raises:
        UnsupportedError: patterns differ between processes; raised in all processes.
        OperandError: there is no process group yet.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> from numscorch.nn import SparseLinear
    >>> model = data_parallel(torch.nn.Sequential(SparseLinear(8, 4, density=0.5)))
    >>> model(torch.ones(2, 8)).sum().backward()
    >>> model.module[0].weight.grad.nnz
    16
    >>> dist.destroy_process_group()
    """
    check_patterns(model, options.get("process_group"))
    ignored = [f"{name}.{array}".lstrip(".") for name, weight in sparse_weights(model).items() for array, _ in named_arrays(weight.pattern)]
    known: Any = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    model._ddp_params_and_buffers_to_ignore = list(dict.fromkeys([*known, *ignored]))  # type: ignore[assignment]
    return DistributedDataParallel(model, **options)


def _watch(parent: torch.nn.Module, name: str, module: torch.nn.Module | None) -> None:
    """Hook that torch calls for each new submodule: let DistributedDataParallel check patterns before its first step."""
    if isinstance(parent, DistributedDataParallel) and module is not None and sparse_weights(module):
        parent.register_forward_pre_hook(_check_once)


@graph_break
def _check_once(model: torch.nn.Module, inputs: Any) -> None:
    """Check the patterns of all processes before a model's first step: gradients of different entries must not be summed.

    By default, torch's wrapper would copy the index arrays of rank 0 to all processes. Without gradients, nothing is checked, so a single
    rank may evaluate the model.
    """
    if not torch.is_grad_enabled():
        return
    for number, hook in list(model._forward_pre_hooks.items()):
        if hook is _check_once:
            del model._forward_pre_hooks[number]
    check_patterns(model)


register_module_module_registration_hook(_watch)


def check_patterns(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Check that all processes store the same entries of every sparse weight. All processes have to call it.

    Args:
        model: the model, wrapped in ``DistributedDataParallel`` or not.
        group: the process group; by default that of ``DistributedDataParallel``, or else the default group.

    Raises:
        UnsupportedError: the patterns or the names of sparse weights differ; raised in all processes.
        OperandError: there is no process group yet.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> from numscorch.nn import SparseLinear
    >>> check_patterns(torch.nn.Sequential(SparseLinear(8, 4, density=0.5)))
    >>> dist.destroy_process_group()
    """
    _check_initialized()
    digests = {name: digest(weight.pattern) for name, weight in sparse_weights(model).items()}
    group = group_of(model) if group is None else group
    gathered: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(gathered, digests, group=group)
    for rank, other in enumerate(gathered):
        for name in dict.fromkeys([*gathered[0], *other]):
            if gathered[0].get(name) != other.get(name):
                raise UnsupportedError(
                    f"the pattern of {name} differs between ranks 0 and {rank}, so that their values can't be summed: make the model with "
                    "the same seed everywhere, or call broadcast_patterns(model), which gives all ranks the pattern of rank 0"
                )


def broadcast_patterns(
    model: torch.nn.Module, optimizer: Optimizers = None, source: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Give all processes the patterns of one process. All processes have to call it.

    Common entries keep their values, and new entries start at 0. ``DistributedDataParallel`` makes the values equal afterwards.

    Args:
        model: the model, before it is wrapped in ``DistributedDataParallel``.
        optimizer: the optimizers of the model, one or several; their state follows the entries.
        source: the global rank whose patterns are used.
        group: the process group; the default group if None.

    Raises:
        OperandError: there is no process group yet, the processes have different weights, or the optimizer does not hold a weight.
        SizeError: weights have different shapes.
        UnsupportedError: the optimizer's state cannot follow.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> from numscorch.nn import SparseLinear
    >>> model = torch.nn.Sequential(SparseLinear(8, 4, density=0.5))
    >>> broadcast_patterns(model)
    >>> check_patterns(model)
    >>> dist.destroy_process_group()
    """
    _check_initialized()
    weights = sparse_weights(model)
    message: list[Any] = [{name: saved(weight.pattern) for name, weight in weights.items()}]
    dist.broadcast_object_list(message, source, group=group)
    for name, pattern in patterns_of(
        message[0], f"rank {source}", {name: weight.pattern.shape for name, weight in weights.items()}
    ).items():
        if not pattern.stores_as(weights[name].pattern):
            repattern(weights[name], pattern, optimizer)


def digest(pattern: Pattern) -> str:
    """Return a hash that is equal in all processes for patterns of the same format, shape and entries. O(nnz).

    >>> import numscorch as ns
    >>> digest(ns.from_torch(torch.eye(3)).pattern) == digest(ns.from_torch(2 * torch.eye(3)).pattern)
    True
    """
    sha = hashlib.sha256(f"{pattern.format} {pattern.shape}".encode())
    for array in pattern.views:
        sha.update(f"{len(array)}".encode())
        sha.update(array.astype("int64").tobytes())
    return sha.hexdigest()


def group_of(model: torch.nn.Module) -> dist.ProcessGroup | None:
    """Return the processes that train a model together; None if it is not in DistributedDataParallel."""
    return next((module.process_group for module in unwrapping(model) if isinstance(module, DistributedDataParallel)), None)


def summed(
    gradients: Mapping[str, torch.Tensor | None], weights: Mapping[str, SparseParameter], group: dist.ProcessGroup | None
) -> dict[str, torch.Tensor]:
    """Sum gradients over the processes, if there are several; gradients that arrived in no process are left out."""
    if group is None:
        return {name: gradient for name, gradient in gradients.items() if gradient is not None}
    arrived = torch.tensor([float(gradient is not None) for gradient in gradients.values()])
    dist.all_reduce(arrived, group=group)
    totals: dict[str, torch.Tensor] = {}
    for (name, gradient), count in zip(gradients.items(), arrived.tolist(), strict=True):
        if count:
            totals[name] = torch.zeros(weights[name].shape, dtype=weights[name].dtype) if gradient is None else gradient
            dist.all_reduce(totals[name], group=group)
    return totals


def _check_initialized() -> None:
    if not dist.is_initialized():
        raise OperandError("there is no process group: call torch.distributed.init_process_group first")
