"""SparseTensors in the trees of ``torch.utils._pytree``, which transforms and exported programs take: the values are leaves."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..tensors.dynamo import constant
from ..tensors.pattern import Pattern
from ..tensors.pattern_module import checksum_of
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import checked_pattern
from .program_texts import described, described_as
from .torch_operators import arrays_of


class TreeContext:
    """The context of a SparseTensor in a tree: its pattern. Contexts are equal if the patterns store the same entries.

    >>> import numscorch as ns
    >>> TreeContext(ns.eye(2, format=ns.CSR).pattern) == TreeContext(ns.eye(2, format=ns.CSR).pattern)
    True
    """

    __slots__ = ("pattern",)

    def __init__(self, pattern: Pattern):
        self.pattern = pattern

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeContext) and (other.pattern is self.pattern or _are_equal(self.pattern, other.pattern))

    def __hash__(self) -> int:
        return hash((self.pattern.format, self.pattern.shape))

    def __repr__(self) -> str:
        """Part of torch's error if an exported program gets a SparseTensor that stores other entries."""
        return (
            f"the pattern of a {described(self.pattern)} with {self.pattern.nnz} entries, checksum {checksum_of(self.pattern):08x}: "
            "an exported program takes tensors of one pattern, so export it again for another one"
        )


@constant
def _are_equal(pattern: Pattern, other: Pattern) -> bool:
    return pattern.stores_as(other)


def _written(context: TreeContext) -> list[Any]:
    """The pattern as an object of JSON."""
    arrays = [(str(array.dtype).removeprefix("torch."), array.tolist()) for array in arrays_of(context.pattern)]
    return [described(context.pattern), arrays]


def _read(written: list[Any]) -> TreeContext:
    """The inverse of :func:`_written`."""
    format, shape = described_as(written[0])  # type: ignore[misc]
    arrays = iter([torch.tensor(array, dtype=getattr(torch, dtype)) for dtype, array in written[1]])
    return TreeContext(checked_pattern(format, shape, tuple([tuple([next(arrays) for _ in level.arrays]) for level in format.levels])))


def register() -> None:
    """Register SparseTensor with torch's trees; called once."""
    pytree.register_pytree_node(
        SparseTensor,
        lambda A: ([A._values], TreeContext(A.pattern)),
        lambda values, context: SparseTensor.trusted(context.pattern, *values),  # tree functions may replace the values by any object
        serialized_type_name="numscorch.SparseTensor",
        to_dumpable_context=_written,
        from_dumpable_context=_read,
        flatten_with_keys_fn=lambda A: ([(pytree.GetAttrKey("values"), A._values)], TreeContext(A.pattern)),
    )
