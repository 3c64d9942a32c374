"""SparseEmbeddingBag: torch.nn.EmbeddingBag as the product of a sparse matrix of bags and the table of embeddings."""

from __future__ import annotations

import torch

from ..api import einsum
from ..errors import OperandError, RangeError, SizeError, UnsupportedError
from ..ir.format import CSR, Format
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import SparseTensor, beside_programs
from .weights import check_device

BAGS = Format("(b, p, n) -> (b: dense, p: compressed, n: singleton)")  # item p of bag b is embedding n; a bag may hold one twice
MODES = ("sum", "mean", "max")
INDICES = (torch.int32, torch.int64)
BagLists = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


class SparseEmbeddingBag(torch.nn.Module):
    """Sums, means or maxima of bags of embeddings; arguments, results and state are those of ``torch.nn.EmbeddingBag``.

    The items of all bags are the coordinates of a sparse matrix (bags, num_embeddings), which multiplies the dense table:
    ``offsets`` and ``input`` are its index arrays as they stand. No item's embedding is stored on the way. The gradient of the
    table is dense; where several items of a bag are the maximum, it is divided among them, as that of ``torch.amax``, while torch's
    goes to the first one.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: its columns.
        max_norm, norm_type, scale_grad_by_freq, sparse: only as by default.
        mode: ``"sum"``, ``"mean"`` or ``"max"``.
        include_last_offset: whether offsets have one more number, that of all items: where the last bag ends.
        padding_idx: items of this index take no part.
        device: the CPU.
        dtype: of the table.

    Shape:
        input (items,) with offsets (B,), or (B + 1,) with ``include_last_offset``; or (B, items of each bag); or a SparseTensor
        (B, num_embeddings). Output (B, embedding_dim), zeros for an empty bag.

    Raises:
        RangeError: an index that is no embedding's, or offsets that aren't places of the input, in order.
        SizeError: shapes that don't go together, or an unknown mode.
        OperandError: indices that are no integers.
        UnsupportedError: arguments that aren't taken.

    Source: ``torch.nn.EmbeddingBag``; Scorch, section 4, of the product.

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
        super().__init__()
        check_device(self, device)
        _check_options(max_norm, scale_grad_by_freq, mode, sparse)
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise RangeError(f"padding_idx={padding_idx}: there are num_embeddings={num_embeddings}")
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        self.padding_idx = padding_idx % num_embeddings if padding_idx is not None else None
        size = (num_embeddings, embedding_dim)
        if _weight is not None and tuple(_weight.shape) != size:
            raise SizeError(f"_weight has shape {tuple(_weight.shape)}, but the table has {size}: (num_embeddings, embedding_dim)")
        self.weight = torch.nn.Parameter(torch.empty(size, device=device, dtype=dtype) if _weight is None else _weight)
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        torch.nn.init.normal_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)

    @beside_programs
    def forward(
        self,
        input: torch.Tensor | SparseTensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The bags' embeddings.

        Args:
            input: the items of all bags, one after the other; or a row of items for each bag; or a SparseTensor
                (B, num_embeddings), whose entries are the items, and the values their weights.
            offsets: where each bag starts in an input of one dimension.
            per_sample_weights: of the shape of the input: by what each item is multiplied, with mode ``"sum"``.
        """
        starts, items, weights = self._bag_lists(input, offsets, per_sample_weights)
        _check_items(items, self.num_embeddings)
        if self.padding_idx is not None:
            starts, items, weights = _drop_padding(self.padding_idx, starts, items, weights)
        counts = starts.diff()
        return self._reduce(_bags(starts, items, weights, self), counts)

    def _reduce(self, bags: SparseTensor, counts: torch.Tensor) -> torch.Tensor:
        """The product, joined by the mode; autocast leaves tables alone, as torch's does."""
        with torch.autocast("cpu", enabled=False):
            if self.mode == "max":
                result: torch.Tensor = einsum("bpn,nd->bd", bags, self.weight, reduce="max_plus")
                return result.masked_fill((counts == 0)[:, None], 0)
            result = einsum("bpn,nd->bd", bags, self.weight)
            return result / counts.clamp(min=1)[:, None].to(result.dtype) if self.mode == "mean" else result

    def _bag_lists(self, input: torch.Tensor | SparseTensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> BagLists:
        """Where bags start, and end; the items of all of them; and these items' weights."""
        if isinstance(input, SparseTensor):
            return self._of_matrix(input, offsets, weights)
        if not isinstance(input, torch.Tensor) or input.dtype not in INDICES:
            raise OperandError(f"input is {_kind(input)}: indices of embeddings are a tensor of torch.int64 or torch.int32")
        self._check_weights(input, weights)
        if input.ndim == 2:
            if offsets is not None:
                raise SizeError("input has 2 dimensions, a row of items for each bag: leave offsets out")
            starts = torch.arange(input.shape[0] + 1, dtype=input.dtype) * input.shape[1]
            return starts, input.reshape(-1), None if weights is None else weights.reshape(-1)
        if input.ndim != 1 or offsets is None:
            missing = " without offsets" if input.ndim == 1 else ""
            raise SizeError(f"input has shape {tuple(input.shape)}{missing}: give items (n,) with offsets (B,), or a row for each bag")
        return _starts(offsets, len(input), self.include_last_offset), input, weights

    def _of_matrix(self, bags: SparseTensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> BagLists:
        """A matrix's rows as bags."""
        if offsets is not None or weights is not None:
            raise SizeError("input is a SparseTensor, a row for each bag, and its values are the weights: leave the other arguments out")
        if bags.ndim != 2 or bags.shape[1] != self.num_embeddings:
            raise SizeError(f"input has shape {tuple(bags.shape)}, but bags are rows of {self.num_embeddings} columns, the embeddings")
        rows = bags.to(CSR)
        starts, items = rows.pattern.arrays[1]
        if self.mode == "sum":
            return starts, items, rows.values
        if not bool((rows.values == 1).all()):
            raise UnsupportedError(f"mode={self.mode!r} of bags with values other than 1: weights go with mode='sum'")
        return starts, items, None

    def _check_weights(self, input: torch.Tensor, weights: torch.Tensor | None) -> None:
        """That weights are the items', and asked for with a sum."""
        if weights is None:
            return
        if self.mode != "sum":
            raise UnsupportedError(f"per_sample_weights with mode={self.mode!r}: weights go with mode='sum'")
        if weights.shape != input.shape:
            raise SizeError(f"per_sample_weights has shape {tuple(weights.shape)}, but input has {tuple(input.shape)}: one for each item")

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}, mode={self.mode!r}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"


def _check_options(max_norm: float | None, scale_grad_by_freq: bool, mode: str, sparse: bool) -> None:
    """That only what there is was asked for."""
    if mode not in MODES:
        raise SizeError(f"mode={mode!r}: the items of a bag are joined by one of {', '.join(MODES)}")
    if max_norm is not None:
        raise UnsupportedError(
            "max_norm changes the weight during a forward pass: call weight.renorm_(2, 0, max_norm) under torch.no_grad()"
        )
    if scale_grad_by_freq:
        raise UnsupportedError("scale_grad_by_freq is not taken: use per_sample_weights, or scale weight.grad")
    if sparse:
        raise UnsupportedError("sparse=True asks for a sparse gradient, and the table's is dense: use torch.nn.EmbeddingBag for that")


def _bags(starts: torch.Tensor, items: torch.Tensor, weights: torch.Tensor | None, owner: SparseEmbeddingBag) -> SparseTensor:
    """The bags as a tensor (bags, items, embeddings)."""
    count = len(items)
    index = torch.int32 if starts.dtype == items.dtype == torch.int32 else torch.int64
    arrays = (), (starts.to(index), torch.arange(count, dtype=index)), (items.to(index),)
    if weights is None:
        weights = torch.full((count,), 0.0 if owner.mode == "max" else 1.0, dtype=owner.weight.dtype)
    return SparseTensor(Pattern(BAGS, (len(starts) - 1, count, owner.num_embeddings), arrays), weights)


def _starts(offsets: torch.Tensor, count: int, has_end: bool) -> torch.Tensor:
    """Where each of the bags starts, and where the last one ends."""
    if not isinstance(offsets, torch.Tensor) or offsets.dtype not in INDICES or offsets.ndim != 1:
        raise OperandError(f"offsets is {_kind(offsets)}: where bags start is a tensor (B,) of torch.int64 or torch.int32")
    if has_end and not len(offsets):
        raise SizeError("offsets is empty, but with include_last_offset=True it has the end of the last bag at least")
    ends = offsets[-1:] if has_end else offsets.new_full((1,), count)
    starts = offsets if has_end else torch.cat([offsets, ends]) if len(offsets) else offsets.new_zeros(1)
    if int(starts[0]) != 0 or bool((starts.diff() < 0).any()) or (has_end and int(ends) != count):
        text = str(offsets.tolist()) if len(offsets) < 9 else f"of {len(offsets)} numbers"
        last = f"end at {count}" if has_end else f"lie below {count + 1}"
        raise RangeError(f"offsets {text}: they start at 0, don't decrease, and {last}, the number of items being {count}")
    return starts


def _drop_padding(padding: int, starts: torch.Tensor, items: torch.Tensor, weights: torch.Tensor | None) -> BagLists:
    """The bags without one of the embeddings."""
    kept = items != padding
    before = torch.cat([starts.new_zeros(1), kept.cumsum(0, dtype=starts.dtype)])
    return before[starts.long()], items[kept], None if weights is None else weights[kept]


def _check_items(items: torch.Tensor, count: int) -> None:
    """That every item is an embedding."""
    if items.numel() and (int(items.min()) < 0 or int(items.max()) >= count):
        at = int(((items < 0) | (items >= count)).nonzero()[0])
        raise RangeError(f"item {at} of the input is {int(items[at])}: there are num_embeddings={count}, 0 to {count - 1}")


def _kind(given: object) -> str:
    """What was given, for an error."""
    return f"a tensor {tuple(given.shape)} of {given.dtype}" if isinstance(given, torch.Tensor) else f"a {type(given).__name__}"
