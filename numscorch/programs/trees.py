"""SparseTensors in the trees of ``torch.utils._pytree``, which transforms and exported programs take: the values are leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import MissingError, OperandError, UnsupportedError
from ..ir.format import Format
from ..tensors.dynamo import constant
from ..tensors.methods import StoredValues
from ..tensors.pattern import Pattern
from ..tensors.pattern_module import checksum_of
from ..tensors.sparse_tensor import SparseTensor
from ..tensors.validate import checked_pattern
from .program_texts import described, described_as
from .torch_operators import arrays_of

ADVICE = "of a batch of SparseTensors, which vmap returned: call it within vmap, or on one tensor, batch[0]"


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


class SparseTensorBatch(StoredValues):
    """SparseTensors of one pattern, as ``torch.func.vmap`` returns them.

    Transforms take a batch like a tensor, and ``batch[0]`` is the first of its tensors. Other functions refuse it.

    Args:
        pattern: the pattern of all tensors.
        values: their values, shape (tensors, pattern.nnz).

    >>> import numscorch as ns
    >>> A = ns.eye(2, format=ns.CSR)
    >>> batch = torch.func.vmap(lambda x: A * x)(torch.tensor([3.0, 4.0]))
    >>> batch[1].values, batch.to_dense().shape
    (tensor([4., 4.]), torch.Size([2, 2, 2]))
    """

    __slots__ = ("pattern", "values")

    def __init__(self, pattern: Pattern, values: torch.Tensor):
        self.pattern, self.values = pattern, values

    @property
    def format(self) -> Format:
        """Storage format of each tensor."""
        return self.pattern.format

    @property
    def nnz(self) -> int:
        """Number of values of all tensors."""
        return self.values.numel()

    @property
    def shape(self) -> torch.Size:
        """The number of tensors, and their shape."""
        return torch.Size((*self.values.shape[:-1], *self.pattern.shape))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: int | slice) -> Any:
        """Select one tensor, or several.

        Raises:
            OperandError: ``at`` is neither an integer nor a slice.
        """
        if not isinstance(at, int | slice):
            raise OperandError(f"{at!r} as index of a batch of SparseTensors: select a tensor first, as in batch[0][i, j]")
        return _restored([self.values[at]], TreeContext(self.pattern))

    def to_dense(self) -> torch.Tensor:
        """Convert to a strided tensor of this shape; gradients flow to the values."""
        dense: torch.Tensor = torch.func.vmap(lambda A: A.to_dense())(self)
        return dense

    def __getattr__(self, name: str) -> Any:
        raise MissingError(f"{name} {ADVICE}")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        raise UnsupportedError(f"{func.__name__} {ADVICE}")

    def __repr__(self) -> str:
        return f"SparseTensorBatch({self.format.name}, shape={tuple(self.shape)}, nnz={self.nnz}, {self.dtype})"


def _restored(leaves: Iterable[Any], context: TreeContext) -> Any:
    """The tensor of a tree; tree functions may replace the values by any object, and ``vmap`` adds a dimension."""
    (values,) = leaves
    return (SparseTensorBatch if isinstance(values, torch.Tensor) and values.ndim > 1 else SparseTensor.trusted)(context.pattern, values)


def register() -> None:
    """Register SparseTensor and its batches with torch's trees; called once."""
    for kind in (SparseTensor, SparseTensorBatch):
        pytree.register_pytree_node(
            kind,
            lambda A: ([A.values], TreeContext(A.pattern)),
            _restored,
            serialized_type_name=f"numscorch.{kind.__name__}",
            to_dumpable_context=_written,
            from_dumpable_context=_read,
            flatten_with_keys_fn=lambda A: ([(pytree.GetAttrKey("values"), A.values)], TreeContext(A.pattern)),
        )
