"""Embedding tables: SparseEmbedding, whose table is sparse; and SparseEmbeddingBag, a sparse matrix of bags times a dense table."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from numpy.typing import ArrayLike

from ..errors import OperandError, RangeError, SizeError, UnsupportedError
from ..interface.api import einsum
from ..ir.format import CSR, Format, dense
from ..sparsifiers.sparsify import Sparsifier
from ..tensors.graph_breaks import traced
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor
from .functional import PRODUCT, check_items, ones_at
from .weights import WithSparseWeight, check_device

BAGS = Format("(b, p, n) -> (b: dense, p: compressed, n: singleton)")  # item p of bag b is embedding n; bags may repeat items
MODES = ("sum", "mean", "max")
UNSUPPORTED = (  # max_norm, scale_grad_by_freq, sparse
    "max_norm changes the weight during a forward pass: call weight.renorm_(2, 0, max_norm) under torch.no_grad()",
    "scale_grad_by_freq is not supported: use per_sample_weights, or scale weight.grad",
    "sparse=True requests a sparse gradient, but the table's is dense: use torch.nn.EmbeddingBag for that",
)
INDICES = (torch.int32, torch.int64)
BagLists = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


class SparseEmbeddingBag(torch.nn.EmbeddingBag):
    """Sums, means or maxima of bags of embeddings; arguments, results and state dict match ``torch.nn.EmbeddingBag``.

    A sparse matrix of bags (bags, num_embeddings) multiplies the dense table. Its index arrays are ``offsets`` and ``input``, without a
    copy. The embeddings of single items are not stored. The gradient of the table is dense. If several items of a bag attain the
    maximum, they share the gradient evenly, as in ``torch.amax``. ``torch.nn.EmbeddingBag`` gives it to the first one.

    Args:
        num_embeddings: number of rows of the table.
        embedding_dim: number of columns of the table.
        max_norm, norm_type, scale_grad_by_freq, sparse: only the defaults are supported.
        mode: ``"sum"``, ``"mean"`` or ``"max"``.
        include_last_offset: whether the last offset is the end of the last bag, the number of items.
        padding_idx: index of an embedding that bags ignore.
        device: only the CPU is supported.
        dtype: data type of the table.

    Shape:
        input (items,) with offsets (B,), or (B + 1,) with ``include_last_offset``; or (B, items per bag); or a SparseTensor
        (B, num_embeddings). Output (B, embedding_dim), zeros for empty bags.

    Raises:
        RangeError: padding_idx is out of range. Calls raise it if an index is out of range, or offsets decrease or exceed the input.
        SizeError: the mode is unknown. Calls raise it if shapes do not match.
        OperandError: indices or offsets of a call are not of type int32 or int64.
        UnsupportedError: an argument is not supported, or the device is not the CPU.

    Source: ``torch.nn.EmbeddingBag``; Scorch, section 4, for the product.

    >>> bags = SparseEmbeddingBag(10, 3, mode="sum")
    >>> sums = bags(torch.tensor([1, 2, 4, 4]), torch.tensor([0, 2]))
    >>> torch.equal(sums[1], 2 * bags.weight[4])
    True
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        check_device(self, device)
        if mode not in MODES:
            raise SizeError(f"mode={mode!r}: give one of {', '.join(MODES)}")
        for is_requested, reason in zip((max_norm is not None, scale_grad_by_freq, sparse), UNSUPPORTED, strict=True):
            if is_requested:
                raise UnsupportedError(reason)
        padding_idx, size = checked_padding(padding_idx, num_embeddings), (num_embeddings, embedding_dim)
        if _weight is not None and tuple(_weight.shape) != size:
            raise SizeError(f"_weight has shape {tuple(_weight.shape)}, but the table has {size}: (num_embeddings, embedding_dim)")
        super().__init__(
            num_embeddings,
            embedding_dim,
            mode=mode,
            _weight=_weight,
            include_last_offset=include_last_offset,
            padding_idx=padding_idx,
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        input: torch.Tensor | SparseTensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the embeddings of the bags, (B, embedding_dim).

        Args:
            input: int32 or int64 indices: the concatenated items of all bags (items,), or one row per bag (B, items per bag).
                Alternatively, a SparseTensor (B, num_embeddings) whose entries are the items and whose values are their weights.
            offsets: int32 or int64 start of each bag in a one-dimensional input, (B,); (B + 1,) with ``include_last_offset``.
            per_sample_weights: weight of each item, with the shape of the input; only for mode ``"sum"``.

        Raises:
            RangeError: an index is out of range, or offsets decrease or exceed the input.
            SizeError: shapes do not match, or offsets are missing or superfluous.
            OperandError: indices or offsets are not of type int32 or int64.
            UnsupportedError: weights are given with another mode than ``"sum"``.
        """
        options = _Options(self.mode, self.num_embeddings, self.include_last_offset, self.padding_idx)
        result: torch.Tensor = _embedded(input, offsets, per_sample_weights, self.weight, *options)
        return result


class _Options(NamedTuple):
    """The options of SparseEmbeddingBag."""

    mode: str
    num_embeddings: int
    include_last_offset: bool
    padding_idx: int | None


def _embedded_shape(input: Any, offsets: Any, weights: Any, table: Any, *options: Any) -> tuple[Any, ...]:
    has_end = _Options(*options).include_last_offset
    return (offsets[0] - has_end if offsets is not None and len(input) == 1 else input[0]), table[1]


@traced("nn.embedding_bag", _embedded_shape)
def _embedded(
    input: torch.Tensor | SparseTensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, table: torch.Tensor, *options: Any
) -> torch.Tensor:
    """The embeddings of the bags, see :meth:`SparseEmbeddingBag.forward`."""
    layer = _Options(*options)
    starts, items, weights = _bag_lists(input, offsets, weights, layer)
    check_items(items, layer.num_embeddings)
    if layer.padding_idx is not None:
        is_item = items != layer.padding_idx
        before = torch.cat([starts.new_zeros(1), is_item.cumsum(0, dtype=starts.dtype)])
        starts, items, weights = before[starts.long()], items[is_item], None if weights is None else weights[is_item]
    bags, counts = _bags(starts, items, weights, layer, table.dtype), starts.diff()[:, None]
    with torch.autocast("cpu", enabled=False):  # does not convert the table, as in torch
        if layer.mode == "max":
            return einsum("bpn,nd->bd", bags, table, reduce="max_plus").masked_fill(counts == 0, 0)
        result: torch.Tensor = einsum("bpn,nd->bd", bags, table)
        return result / counts.clamp(min=1).to(result.dtype) if layer.mode == "mean" else result


def _bag_lists(input: torch.Tensor | SparseTensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, layer: _Options) -> BagLists:
    """Return the bag boundaries (B + 1,), the items of all bags, and the items' weights."""
    if isinstance(input, SparseTensor):
        return _bags_of_matrix(input, offsets, weights, layer)
    check_indices(input)
    if weights is not None and layer.mode != "sum":
        raise UnsupportedError(f"per_sample_weights with mode={layer.mode!r}: weights require mode='sum'")
    if weights is not None and weights.shape != input.shape:
        raise SizeError(
            f"per_sample_weights has shape {tuple(weights.shape)}, but input has {tuple(input.shape)}: give one weight per item"
        )
    if input.ndim == 2:
        if offsets is not None:
            raise SizeError("input has 2 dimensions, one row of items per bag: leave offsets out")
        starts = torch.arange(input.shape[0] + 1, dtype=input.dtype) * input.shape[1]
        return starts, input.reshape(-1), None if weights is None else weights.reshape(-1)
    if input.ndim != 1 or offsets is None:
        missing = " without offsets" if input.ndim == 1 else ""
        raise SizeError(f"input has shape {tuple(input.shape)}{missing}: give items (n,) with offsets (B,), or one row per bag")
    return _starts(offsets, len(input), layer.include_last_offset), input, weights


def _bags_of_matrix(bags: SparseTensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, layer: _Options) -> BagLists:
    if offsets is not None or weights is not None:
        raise SizeError("input is a SparseTensor, whose rows are the bags and whose values the weights: leave the other arguments out")
    if bags.ndim != 2 or bags.shape[1] != layer.num_embeddings:
        raise SizeError(f"input has shape {tuple(bags.shape)}, but bags are rows with num_embeddings={layer.num_embeddings} columns")
    rows = bags.to(CSR)
    starts, items = rows.pattern.arrays[1]
    if layer.mode == "sum":
        return starts, items, rows.values
    if not bool((rows.values == 1).all()):
        raise UnsupportedError(f"mode={layer.mode!r} of bags with values other than 1: weights require mode='sum'")
    return starts, items, None


class SparseEmbedding(WithSparseWeight):
    """An embedding table with sparse rows; only the stored entries are trained, and lookups return 0 elsewhere.

    A sparse table saves memory, not time: torch's lookup of a dense row is a copy. Give either ``density`` or ``pattern``.

    Args:
        num_embeddings: number of rows of the table.
        embedding_dim: number of columns of the table.
        padding_idx: index of an embedding that receives no gradient.
        density: share of entries to store, at random positions, as in :class:`SparseLinear`.
        pattern: entries to store, of shape (num_embeddings, embedding_dim), as in :class:`SparseLinear`.
        format: storage format of the table.
        device: only the CPU is supported.
        dtype: data type of the table.

    Shape:
        input (\\*) of int32 or int64, output (\\*, embedding_dim).

    Raises:
        SizeError: a size is negative, the pattern has another shape, or the density is not between 0 and 1.
        RangeError: padding_idx is out of range.
        OperandError: the density is not a number, or the pattern is not a tensor.
        FormatError: the format is unknown, or cannot store the pattern.
        UnsupportedError: both or neither of density and pattern are given, or the device is not the CPU.

    >>> table = SparseEmbedding(10, 4, density=0.5)
    >>> table(torch.tensor([[1, 2, 4], [4, 3, 2]])).shape, table.weight.nnz
    (torch.Size([2, 3, 4]), 20)
    """

    DENSE, SHARED = torch.nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        density: float | None = None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None = None,
        format: Format | str = CSR,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = checked_padding(padding_idx, num_embeddings)
        shape, axes = (num_embeddings, embedding_dim), "(num_embeddings, embedding_dim)"
        self._make_weight(shape, axes, density, pattern, format, dtype, device, False)

    def reset_parameters(self) -> None:
        """Reinitialize the stored values from a standard normal distribution."""
        torch.nn.init.normal_(self.weight.values)

    @classmethod
    def from_dense(cls, table: torch.nn.Embedding, sparsifier: Sparsifier, format: Format | str | None = None) -> Self:
        """Prune a dense table; the result has the table's data type and training mode, and is frozen if the table is frozen.

        Args:
            table: the dense table; it is not modified.
            sparsifier: a callable from the table to a boolean mask, True where an entry is kept; or the name of a registered one.
            format: storage format of the table; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Returns:
            The sparse table.

        Raises:
            OperandError: ``table`` is not a torch.nn.Embedding, or ``sparsifier`` is not a sparsifier.
            SizeError: the shapes of mask and table differ.
            FormatError: the format cannot store the kept entries.
            UnsupportedError: the table has max_norm, scale_grad_by_freq or sparse set, or is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseEmbedding.from_dense(torch.nn.Embedding(8, 4), magnitude(0.75)).weight.nnz
        8
        """
        for name, default in (("max_norm", None), ("scale_grad_by_freq", False), ("sparse", False)):
            if (value := getattr(table, name, default)) != default:
                raise UnsupportedError(f"{name}={value} is not supported by SparseEmbedding: make the table with {name}={default}")
        return cls._from_dense(table, sparsifier, format)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the embeddings, (\\*, embedding_dim), as the product of a one-hot matrix and the table.

        Autocast does not convert the table, as in torch.

        Args:
            input: indices of any shape, int32 or int64.

        Raises:
            OperandError: the indices are not of type int32 or int64.
            RangeError: an index is out of range.
        """
        return embedded(input, self.weight.tensor, self.padding_idx)

    def extra_repr(self) -> str:
        """Return the sizes, the density and the format that ``repr`` shows."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, {self._weight_summary()}"


def embedded(input: torch.Tensor, table: SparseTensor, padding_idx: int | None) -> torch.Tensor:
    """Look up rows of a sparse table; the rows of ``padding_idx`` pass on no gradient.

    Raises:
        OperandError: the indices are not of type int32 or int64.
        RangeError: an index is out of range.

    >>> import numscorch as ns
    >>> embedded(torch.tensor([2, 0]), ns.eye(3, format=ns.CSR), None)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    check_indices(input)
    rows = _looked_up(input.reshape(-1), table).reshape(*input.shape, table.shape[1])
    return rows if padding_idx is None else torch.where((input == padding_idx)[..., None], rows.detach(), rows)


@traced("nn.lookup", lambda numbers, table: (numbers[0], table[1]))
def _looked_up(numbers: torch.Tensor, table: SparseTensor) -> torch.Tensor:
    """The rows of a table with these numbers, dense."""
    with torch.autocast("cpu", enabled=False):
        rows: torch.Tensor = einsum(PRODUCT, ones_at(numbers, table), table, format=dense(2))
        return rows


def checked_padding(padding_idx: int | None, num_embeddings: int) -> int | None:
    """Check the index of the padding embedding, and return it as a nonnegative index.

    Raises:
        RangeError: it is out of range.
    """
    if padding_idx is None:
        return None
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise RangeError(f"padding_idx={padding_idx}: there are num_embeddings={num_embeddings}")
    return padding_idx % num_embeddings


def check_indices(input: object) -> None:
    """Check that an input holds indices of embeddings.

    Raises:
        OperandError: it is not a tensor of int32 or int64.
    """
    if not isinstance(input, torch.Tensor) or input.dtype not in INDICES:
        raise OperandError(f"input is {_kind(input)}: indices of embeddings are a tensor of torch.int64 or torch.int32")


def _bags(starts: torch.Tensor, items: torch.Tensor, weights: torch.Tensor | None, layer: _Options, dtype: torch.dtype) -> SparseTensor:
    """Return the bags as a tensor (bags, items, embeddings)."""
    count = len(items)
    index = torch.int32 if starts.dtype == items.dtype == torch.int32 else torch.int64
    arrays = (), (starts.to(index), torch.arange(count, dtype=index)), (items.to(index),)
    if weights is None:
        weights = torch.full((count,), 0.0 if layer.mode == "max" else 1.0, dtype=dtype)
    return SparseTensor(Pattern(BAGS, (len(starts) - 1, count, layer.num_embeddings), arrays), weights)


def _starts(offsets: torch.Tensor, count: int, has_end: bool) -> torch.Tensor:
    """Return the start of each bag and the end of the last one."""
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in INDICES or offsets.ndim != 1:
        raise OperandError(f"offsets is {_kind(offsets)}: give the starts of the bags as a tensor (B,) of torch.int64 or torch.int32")
    if has_end and not len(offsets):
        raise SizeError("offsets is empty, but with include_last_offset=True it contains at least the end of the last bag")
    ends = offsets[-1:] if has_end else offsets.new_full((1,), count)
    starts = offsets if has_end else torch.cat([offsets, ends]) if len(offsets) else offsets.new_zeros(1)
    if int(starts[0]) != 0 or bool((starts.diff() < 0).any()) or (has_end and int(ends) != count):
        text = str(offsets.tolist()) if len(offsets) < 9 else f"of {len(offsets)} numbers"
        last = f"end at {count}" if has_end else f"lie below {count + 1}"
        raise RangeError(f"offsets {text}: for {count} items, offsets start at 0, don't decrease, and {last}")
    return starts


def _kind(value: object) -> str:
    return f"a tensor {tuple(value.shape)} of {value.dtype}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
