"""Parameter of a sharded matrix: its values on this rank are trained, and its state is that of the whole matrix."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import NumscorchError, UnsupportedError
from ..tensors.parameter import SparseParameter
from ..tensors.pattern import Pattern
from ..tensors.pattern_module import Description, description_of
from .layout import CRD, POS, VALUES, Layout, state_of, values_of_state
from .tensor import ShardedSparseTensor


class ShardedSparseParameter(SparseParameter):
    """A module that holds a sharded matrix: its parameter is the values of this rank's rows.

    ``ns.nn.Parameter(A)`` makes it. As the weight of a :class:`~numscorch.nn.SparseLinear`, it distributes the output features over the
    ranks (tensor parallelism).

    Ranks have different values, so gradients must not be summed over the ranks. ``DistributedDataParallel`` and
    ``fully_shard`` over the same ranks corrupt the values. ``fully_shard(model, ignored_params={weight.values})`` leaves the values
    out.

    The ``state_dict`` describes the whole matrix, and each rank holds a part of its arrays. ``torch.distributed.checkpoint`` saves it and
    loads it under any number of ranks, also into an unsharded weight of the same pattern. ``load_state_dict`` also accepts the state of
    an unsharded weight.

    Args:
        A: a sharded matrix, as :func:`shard` returns it. Its pattern is shared, and its values become a ``torch.nn.Parameter``.
        requires_grad: whether the values require grad.

    Raises:
        UnsupportedError: the columns are distributed, too.
        RuntimeError: the values are integers or booleans, and ``requires_grad`` is True.

    >>> import torch, numscorch as ns, torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # under torchrun: init_process_group("gloo")
    >>> mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    >>> layer = ns.nn.SparseLinear(4, 8, density=0.5)
    >>> layer.weight = ns.nn.Parameter(ns.sharding.shard(layer.weight, mesh))
    >>> type(layer.weight).__name__, layer(torch.ones(2, 4)).shape
    ('ShardedSparseParameter', torch.Size([2, 8]))
    >>> dist.destroy_process_group()
    """

    TENSOR = ShardedSparseTensor
    layout: Layout

    def __init__(self, A: ShardedSparseTensor, requires_grad: bool = True):
        A.check_whole_rows("a parameter")
        super().__init__(A.local, requires_grad)
        self.layout = A.layout

    def hold(self, pattern: Pattern) -> None:
        """Set the local pattern; it cannot be replaced later.

        The index arrays are not buffers, because ranks have different patterns.

        Args:
            pattern: the pattern of the local rows.

        Raises:
            UnsupportedError: the parameter has a pattern already.
        """
        if "pattern" in vars(self):
            raise UnsupportedError(
                "the pattern of a sharded parameter cannot be changed: change the whole weight, then set ns.nn.Parameter(shard(A, mesh))"
            )
        self.pattern = pattern

    @property
    def tensor(self) -> Any:
        """The sharded matrix of the current values."""
        return ShardedSparseTensor(self.layout, self.values)

    @property
    def _description(self) -> Description:
        """The description of the whole matrix."""
        return description_of(self.pattern, tuple(self.shape), self.nnz)

    # torch looks up the names of a state as attributes
    level1_pos = property(lambda self: self.pattern.arrays[1][0], doc="The row starts of the local pattern.")
    level1_crd = property(lambda self: self.pattern.arrays[1][1], doc="The local columns.")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars:
            destination.update({prefix + name: array for name, array in state_of(self.layout, self.values).items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this rank's values from a state. A collective operation.

        If the patterns differ, the values are not loaded, and torch raises.
        """
        if prefix[:-1] in unexpected_keys and prefix + VALUES in state_dict:  # the entry under the weight's name
            unexpected_keys.remove(prefix[:-1])
        state = {name: state_dict[prefix + name] for name in (POS, CRD, VALUES) if prefix + name in state_dict}
        other = {name: array for name, array in state_dict.items() if name.removeprefix(prefix) not in (POS, CRD)}
        if VALUES in state:
            try:
                other[prefix + VALUES] = values_of_state(self.layout, state)
            except NumscorchError as error:
                error_msgs.append(f"{prefix}{VALUES} ({error})")
                return
        torch.nn.Module._load_from_state_dict(self, other, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
