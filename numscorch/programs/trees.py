"""SparseTensors in the trees of ``torch.utils._pytree``, which transforms and exported programs take: the values are leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import MissingError, UnsupportedError
from ..tensors.dynamo import constant
from ..tensors.pattern import Pattern
from ..tensors.pattern_module import checksum_of
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import checked_pattern
from .program_texts import described, described_as
from .torch_operators import arrays_of

ADVICE = (
    "of TransformedValues, which vmap or jacrev returned in the place of a SparseTensor: use its values, as in "
    "A.with_values(result.values[0]), or call the function within the transform"
)


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
        """Part of torch's errors if two patterns differ."""
        stored = f"{self.pattern.nnz} entries, checksum {checksum_of(self.pattern):08x}"
        return f"{described(self.pattern)} with {stored}; the patterns must store the same entries"


@constant
def _are_equal(pattern: Pattern, other: Pattern) -> bool:
    return pattern.stores_as(other)


def _to_json(context: TreeContext) -> list[Any]:
    """The pattern as JSON."""
    arrays = [(str(array.dtype).removeprefix("torch."), array.tolist()) for array in arrays_of(context.pattern)]
    return [described(context.pattern), arrays]


def _from_json(saved: list[Any]) -> TreeContext:
    """The inverse of :func:`_to_json`."""
    format, shape = described_as(saved[0])  # type: ignore[misc]
    arrays = iter([torch.tensor(array, dtype=getattr(torch, dtype)) for dtype, array in saved[1]])
    return TreeContext(checked_pattern(format, shape, tuple([tuple([next(arrays) for _ in level.arrays]) for level in format.levels])))


class TransformedValues:
    """A pattern, and values to which a transform of ``torch.func`` has added dimensions.

    ``vmap`` and ``jacrev`` return such objects for functions that return SparseTensors, and take them like tensors.

    Args:
        pattern: the pattern.
        values: the values. ``vmap`` adds the dimension of the batch, by default the first; a Jacobian has one for each output and input.

    >>> import numscorch as ns
    >>> A = ns.eye(2, format=ns.CSR)
    >>> batch = torch.func.vmap(lambda x: A * x)(torch.tensor([3.0, 4.0]))
    >>> batch.values
    tensor([[3., 3.],
            [4., 4.]])
    >>> A.with_values(batch.values[0])
    SparseTensor(CSR, shape=(2, 2), nnz=2, density=0.5, float32, int32 indices)
    """

    __slots__ = ("pattern", "values")
    wrapped_by = "A.with_values, one row of its values after the other, or pass it to the transform"  # see tensors.arrays.converter

    def __init__(self, pattern: Pattern, values: Any):
        self.pattern, self.values = pattern, values

    def __getattr__(self, name: str) -> Any:
        raise MissingError(f"{name} {ADVICE}", name=name, obj=self)

    def __getitem__(self, at: Any) -> Any:
        raise UnsupportedError(f"an index {ADVICE}")

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], *args: Any) -> Any:
        raise UnsupportedError(f"{func.__name__} {ADVICE}")

    def __repr__(self) -> str:
        return f"TransformedValues({described(self.pattern)}, values={self.values!r})"


def _from_leaves(leaves: Iterable[Any], context: TreeContext) -> Any:
    """The tensor of a tree, whose values tree functions may replace by any object."""
    (values,) = leaves
    is_transformed = values.ndim > 1 if isinstance(values, torch.Tensor) else isinstance(values, SparseTensor | TransformedValues)
    return (TransformedValues if is_transformed else SparseTensor.trusted)(context.pattern, values)


def register() -> None:
    """Register both classes with torch's trees; called once."""
    for kind in (SparseTensor, TransformedValues):
        pytree.register_pytree_node(
            kind,
            lambda A: ([A.values], TreeContext(A.pattern)),
            _from_leaves,
            serialized_type_name=f"numscorch.{kind.__name__}",
            to_dumpable_context=_to_json,
            from_dumpable_context=_from_json,
            flatten_with_keys_fn=lambda A: ([(pytree.GetAttrKey("values"), A.values)], TreeContext(A.pattern)),
        )
