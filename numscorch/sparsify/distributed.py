"""Sparse weights under DistributedDataParallel: values are summed as they are, which needs one pattern in all processes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..errors import OperandError, UnsupportedError
from ..tensors.parameter import SparseParameter, named_arrays
from ..tensors.pattern import Pattern
from .choosing import sparse_weights, unwrapping
from .optimizers import Optimizers
from .repattern import repattern
from .saving import patterns_of, saved


def data_parallel(model: torch.nn.Module, **options: Any) -> DistributedDataParallel:
    """A model with sparse weights in DistributedDataParallel, once its patterns are the same in all processes.

    Gradients of values are summed as those of any parameter, and nothing is made dense. Index arrays, which are buffers, are not sent
    with every step, as those of DistributedDataParallel itself are.

    Args:
        model: the model.
        options: what DistributedDataParallel takes, as ``process_group``.

    Raises:
        UnsupportedError: patterns differ between processes.
        OperandError: there is no process group yet.
    """
    check_patterns(model, options.get("process_group"))
    ignored = [f"{name}.{array}".lstrip(".") for name, weight in sparse_weights(model).items() for array, _ in named_arrays(weight.pattern)]
    known: Any = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    model._ddp_params_and_buffers_to_ignore = list(dict.fromkeys([*known, *ignored]))  # type: ignore[assignment]
    return DistributedDataParallel(model, **options)


def check_patterns(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """That all processes store the same entries of every sparse weight; all of them call it.

    Args:
        model: the model, in DistributedDataParallel or before.
        group: the processes; by default those of the DistributedDataParallel, or all.

    Raises:
        UnsupportedError: they don't, or they have other weights; in all processes.
        OperandError: there is no process group yet.
    """
    _check_initialized()
    digests = {name: digest(weight.pattern) for name, weight in sparse_weights(model).items()}
    group = group_of(model) if group is None else group
    others: list[dict[str, str]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(others, digests, group=group)
    for rank, other in enumerate(others):
        for name in dict.fromkeys([*others[0], *other]):
            if others[0].get(name) != other.get(name):
                raise UnsupportedError(
                    f"the pattern of {name} differs between ranks 0 and {rank}, so that their values can't be summed: make the model with "
                    "the same seed everywhere, or call broadcast_patterns(model), which gives all of them the pattern of rank 0"
                )


def broadcast_patterns(
    model: torch.nn.Module, optimizer: Optimizers = None, source: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Give all processes the patterns of one; all of them call it. Kept entries keep their values, new ones start at 0.

    Args:
        model: the model, not yet in DistributedDataParallel, which makes values equal.
        optimizer: those that train it, whose state follows the entries.
        source: the rank whose patterns are taken.
        group: the processes; all, by default.

    Raises:
        OperandError: there is no process group yet, or the processes have other weights.
    """
    _check_initialized()
    weights = sparse_weights(model)
    sent: list[Any] = [{name: saved(weight.pattern) for name, weight in weights.items()}]
    dist.broadcast_object_list(sent, source, group=group)
    for name, pattern in patterns_of(sent[0], f"rank {source}", {name: weight.pattern.shape for name, weight in weights.items()}).items():
        if not pattern.stores_as(weights[name].pattern):
            repattern(weights[name], pattern, optimizer)


def digest(pattern: Pattern) -> str:
    """A text that is equal for patterns of the same format, shape and entries, in all processes; O(nnz).

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
    """The processes that train a model together; None where it isn't in DistributedDataParallel."""
    return next((module.process_group for module in unwrapping(model) if isinstance(module, DistributedDataParallel)), None)


def summed(
    gradients: Mapping[str, torch.Tensor | None], weights: Mapping[str, SparseParameter], group: dist.ProcessGroup | None
) -> dict[str, torch.Tensor]:
    """The gradients that arrived, summed over the processes, if there are several; those that arrived in any of them."""
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
