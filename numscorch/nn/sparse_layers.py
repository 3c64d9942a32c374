"""SparseLinear, SparseConv2d and SparseMultiheadAttention: torch's layers with sparse weights."""

from __future__ import annotations

from math import sqrt
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch.nn.functional import dropout, pad, scaled_dot_product_attention, unfold

from ..errors import SizeError, UnsupportedError
from ..interface.api import einsum
from ..ir.format import CSR, Format
from ..operators.products import linear
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.ledgers import note
from ..tensors.parameter import SparseParameter, unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .functional import mask_bias
from .weights import WeightsFirst, WithSparseWeight, check_attention, check_dtype

Sizes = tuple[int, int]  # height and width
Sides = tuple[int, int, int, int]  # left, right, top and bottom
Pair = int | Sizes


class SparseLinear(WithSparseWeight):
    """A linear layer with a sparse weight: ``x @ weight.t() + bias``. Only the stored entries are trained.

    Give either ``density`` or ``pattern``; :meth:`from_dense` prunes a dense layer instead. Values are initialized like those of a
    ``torch.nn.Linear`` whose ``in_features`` is the average number of stored entries per row.

    Args:
        in_features: size of the last dimension of the input.
        out_features: size of the last dimension of the output.
        bias: whether to add a bias.
        density: share of entries to store, at random positions. The numbers of entries per row differ by at most one. In block
            formats, it is the share of blocks; in :func:`~numscorch.NM` formats, it must be n / m.
        pattern: entries to store, of shape (out_features, in_features): the entries of a sparse tensor of numscorch, torch or SciPy,
            or the nonzeros of a dense tensor or numpy array. The values are ignored.
        format: storage format of the weight.
        device: only the CPU is supported.
        dtype: data type of the weight and the bias.

    Shape:
        input (\\*, in_features), output (\\*, out_features).

    Raises:
        SizeError: a size is negative, the pattern has another shape, or the density is not between 0 and 1.
        OperandError: the density is not a number, or the pattern is not a tensor.
        FormatError: the format is unknown, or cannot store the pattern.
        UnsupportedError: both or neither of density and pattern are given, or the device is not the CPU.

    Source: Scorch, section 5, sparse autoencoders.

    >>> layer = SparseLinear(8, 4, density=0.25)
    >>> layer(torch.ones(2, 8)).shape, layer.weight.nnz
    (torch.Size([2, 4]), 8)
    """

    DENSE, SHARED = torch.nn.Linear, ("in_features", "out_features", "bias")

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        density: float | None = None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None = None,
        format: Format | str = CSR,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape, axes = (out_features, in_features), "(out_features, in_features)"
        self._make_weight(shape, axes, density, pattern, format, dtype, device, bias)

    @classmethod
    def from_dense(cls, linear: torch.nn.Linear, sparsifier: Sparsifier | str, format: Format | str | None = None) -> Self:
        """Prune a dense layer; the result keeps its bias, data type, training mode, and frozen parameters.

        Args:
            linear: the dense layer; it is not modified.
            sparsifier: a callable from the weight to a boolean mask, True where a weight is kept; or the name of a registered one.
            format: storage format of the weight; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Returns:
            The sparse layer.

        Raises:
            OperandError: ``linear`` is not a torch.nn.Linear, or ``sparsifier`` is not a sparsifier.
            SizeError: the shapes of mask and weight differ.
            FormatError: the format cannot store the kept entries.
            UnsupportedError: the layer is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseLinear.from_dense(torch.nn.Linear(8, 4), magnitude(0.75)).weight.nnz
        8
        """
        return cls._from_dense(linear, sparsifier, format)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the output, (\\*, out_features).

        Args:
            input: a dense or sparse tensor (\\*, in_features) with the data type of the weight.

        Raises:
            SizeError: the last dimension is not ``in_features``.
            UnsupportedError: the data types of input and weight differ.
        """
        weight = self.weight.tensor
        check_dtype(self, weight, input)
        return linear(input, weight, self.bias)

    def extra_repr(self) -> str:
        """Return the sizes, the density and the format that ``repr`` shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, {self._weight_summary()}"


class SparseConv2d(WithSparseWeight):
    """A convolution with a sparse weight; only the stored entries are trained.

    The weight is a matrix of shape (out_channels, in_channels * height * width of the kernel). It multiplies the unfolded input
    (im2col). The unfolded input takes the memory of the input times the kernel size. A 1 x 1 kernel with stride 1 and no padding needs
    no unfolding. Give either ``density`` or ``pattern``.

    Args:
        in_channels: number of input channels.
        out_channels: number of output channels.
        kernel_size: height and width of the kernel, or one integer for both.
        stride: step between kernel positions, one or two integers.
        padding: zeros added to each side, one or two integers; ``"valid"`` for none; ``"same"`` to keep the input size, with
            stride 1 only.
        dilation: step between kernel entries, one or two integers.
        groups: must be 1.
        bias: whether to add a bias.
        padding_mode: must be ``"zeros"``.
        density: share of entries to store, at random positions, as in :class:`SparseLinear`.
        pattern: entries to store, as in :class:`SparseLinear`, with the shape of the matrix or
            (out_channels, in_channels, height, width).
        format: storage format of the matrix.
        device: only the CPU is supported.
        dtype: data type of the weight and the bias.

    Shape:
        input (N, in_channels, H, W) or (in_channels, H, W), output (N, out_channels, H', W') or (out_channels, H', W'), with
        the sizes of ``torch.nn.Conv2d``.

    Raises:
        SizeError: the pattern has another shape, the density is not between 0 and 1, a size is out of range, or the stride of
            ``"same"`` padding is not 1.
        OperandError: the density is not a number, or the pattern is not a tensor.
        FormatError: the format is unknown, or cannot store the pattern.
        UnsupportedError: both or neither of density and pattern are given, groups is not 1, padding_mode is not ``"zeros"``, or the
            device is not the CPU.

    Source: Park et al., "Faster CNNs with direct sparse convolutions and guided pruning", 2017. The paper does not store the unfolded
    input; this layer does.

    >>> layer = SparseConv2d(3, 8, 3, padding=1, density=0.1)
    >>> layer(torch.ones(2, 3, 6, 5)).shape, layer.weight.shape
    (torch.Size([2, 8, 6, 5]), torch.Size([8, 27]))
    """

    DENSE = torch.nn.Conv2d
    SHARED = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias", "padding_mode")
    groups, padding_mode = 1, "zeros"  # all that is supported

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        density: float | None = None,
        pattern: SparseTensor | torch.Tensor | ArrayLike | None = None,
        format: Format | str = CSR,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if groups != 1:
            raise UnsupportedError(
                f"groups={groups} is not supported by SparseConv2d: with groups=1, a block-diagonal pattern= stores the same weights"
            )
        if padding_mode != "zeros":
            raise UnsupportedError(
                f"padding_mode={padding_mode!r} is not supported by SparseConv2d: "
                "use torch.nn.functional.pad(x, ..., mode=...), and padding=0 here"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.dilation = (
            _pair(name, value, 1) for name, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))
        )
        self.padding = padding if isinstance(padding, str) else _pair("padding", padding, 0)
        self._sides = sides_of(self.padding, self.kernel_size, self.stride, self.dilation)
        height, width = self.kernel_size
        shape, axes = (out_channels, in_channels * height * width), "(out_channels, in_channels * kernel height * kernel width)"
        self._make_weight(shape, axes, density, pattern, format, dtype, device, bias)

    @classmethod
    def from_dense(cls, conv: torch.nn.Conv2d, sparsifier: Sparsifier | str, format: Format | str | None = None) -> Self:
        """Prune a dense layer; the result keeps its bias, data type, training mode, and frozen parameters.

        Args:
            conv: the dense layer; it is not modified.
            sparsifier: a callable from the weight as a matrix (out_channels, in_channels * height * width) to a boolean mask, True
                where a weight is kept; or the name of a registered one.
            format: storage format of the matrix; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Returns:
            The sparse layer.

        Raises:
            OperandError: ``conv`` is not a torch.nn.Conv2d, or ``sparsifier`` is not a sparsifier.
            SizeError: the shapes of mask and matrix differ.
            FormatError: the format cannot store the kept entries.
            UnsupportedError: the layer has groups, a padding_mode other than ``"zeros"``, or is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseConv2d.from_dense(torch.nn.Conv2d(2, 4, 3), magnitude(0.75)).weight.nnz
        18
        """
        return cls._from_dense(conv, sparsifier, format)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the output, (N, out_channels, H', W') or (out_channels, H', W').

        Args:
            input: a dense tensor (N, in_channels, H, W) or (in_channels, H, W) with the data type of the weight.

        Raises:
            SizeError: the input has another shape, or the kernel exceeds the padded input.
            UnsupportedError: the data types of input and weight differ.
        """
        if input.ndim not in (3, 4) or input.shape[-3] != self.in_channels:
            raise SizeError(f"input has shape {tuple(input.shape)}, but the layer takes (N, {self.in_channels}, H, W), or without N")
        check_dtype(self, self.weight.values, input)
        batch = input if input.ndim == 4 else input[None]
        columns, sizes = unfolded(batch, self.kernel_size, self.stride, self._sides, self.dilation)
        output: torch.Tensor = einsum("ok,nkl->nol", self.weight.tensor, columns)
        if self.bias is not None:
            output = output + self.bias.to(output.dtype)[:, None]
        output = output.unflatten(2, sizes)
        return output if input.ndim == 4 else output[0]

    def extra_repr(self) -> str:
        """Return the sizes, the density and the format that ``repr`` shows."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}" if any(self._sides) else ""
        text += f", dilation={self.dilation}" if self.dilation != (1, 1) else ""
        return f"{text}{', bias=False' if self.bias is None else ''}, {self._weight_summary()}"


class SparseMultiheadAttention(WeightsFirst, torch.nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with sparse projection weights; the attention itself is dense.

    :meth:`from_dense` makes the module from a dense one. The constructor makes a module with dense projections. Calls match
    ``torch.nn.MultiheadAttention``. For attention at the entries of a pattern, see :class:`SparseAttention`.

    Args:
        embed_dim: size of the tokens.
        num_heads: number of heads; must divide embed_dim.
        dropout: dropout probability of the attention probabilities in training.
        bias: whether the projections have a bias.
        add_bias_kv, add_zero_attn, kdim, vdim: only the defaults are supported.
        batch_first: whether the batch dimension precedes the sequence dimension.
        device: device of the parameters.
        dtype: data type of the parameters.

    Shape:
        query (L, N, embed_dim), key and value (S, N, embed_dim), or all without N; with batch_first, N comes first. The output has the
        shape of the query. The weights have shape (N, L, S), or (N, num_heads, L, S) if they are not averaged.

    Raises:
        AssertionError: num_heads does not divide embed_dim.
        UnsupportedError: add_bias_kv, add_zero_attn, kdim or vdim is given.

    Source: Vaswani and others, "Attention Is All You Need", 2017, section 3.2.

    >>> from numscorch.sparsify import magnitude
    >>> attend = SparseMultiheadAttention.from_dense(torch.nn.MultiheadAttention(8, 2, batch_first=True), magnitude(0.5))
    >>> x = torch.ones(3, 6, 8)
    >>> attend(x, x, x, need_weights=False)[0].shape, attend.in_proj_weight.nnz
    (torch.Size([3, 6, 8]), 96)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype)
        check_attention(type(self), self)

    @classmethod
    def from_dense(cls, layer: torch.nn.MultiheadAttention, sparsifier: Sparsifier, format: Format | str | None = None) -> Self:
        """Prune the ``in_proj_weight`` of a dense module; the result shares the biases and ``out_proj`` with it.

        Args:
            layer: the dense module; it is not modified.
            sparsifier: a callable from the matrix (3 * embed_dim, embed_dim) to a boolean mask, True where an entry is kept; or the
                name of a registered one.
            format: storage format of the matrix; defaults to the sparsifier's ``format`` if it has one, else CSR.

        Returns:
            The module with a sparse ``in_proj_weight``.

        Raises:
            OperandError: ``layer`` is not a torch.nn.MultiheadAttention, or ``sparsifier`` is not a sparsifier.
            SizeError: the shapes of mask and matrix differ.
            FormatError: the format cannot store the kept entries.
            UnsupportedError: the layer uses kdim, vdim, add_bias_kv or add_zero_attn.
        """
        attention = cls.around(layer)
        weight: Any = attention._parameters.pop("in_proj_weight")
        attention._modules["in_proj_weight"] = SparseParameter(sparsify(weight.detach(), sparsifier, format), weight.requires_grad)
        return attention

    @classmethod
    def around(cls, layer: torch.nn.MultiheadAttention) -> Self:
        """Make a module that shares all parameters and submodules of another one.

        Args:
            layer: a torch.nn.MultiheadAttention; its output projection may be sparse.

        Returns:
            The module.

        Raises:
            OperandError: ``layer`` is not a torch.nn.MultiheadAttention.
            UnsupportedError: the layer uses kdim, vdim, add_bias_kv or add_zero_attn.
        """
        check_attention(cls, layer)
        attention = cls.__new__(cls)
        vars(attention).update(vars(layer) | {held: dict(vars(layer)[held]) for held in ("_parameters", "_buffers", "_modules")})
        return attention

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute attention with the arguments and results of ``torch.nn.MultiheadAttention``.

        Args:
            query, key, value: dense tensors; see the class for their shapes. They have the data type of the weights.
            key_padding_mask: shape (N, S), or (S,) without N: True marks keys to ignore; floats are added to the scores.
            need_weights: whether to return the attention probabilities.
            attn_mask: shape (L, S) or (N * num_heads, L, S): True marks pairs to ignore; floats are added to the scores.
            average_attn_weights: whether to average the probabilities over the heads.
            is_causal: a hint that attn_mask is causal; it needs attn_mask.

        Returns:
            The output, and the attention probabilities or None.

        Raises:
            SizeError: the last dimension of an input is not ``embed_dim``.
            UnsupportedError: is_causal is given without attn_mask, or the data types of inputs and weights differ.
        """
        if is_causal and attn_mask is None:
            raise UnsupportedError(
                "is_causal=True is a hint about attn_mask: give a mask, such as Transformer.generate_square_subsequent_mask(L)"
            )
        is_batched, is_sequence_first = query.ndim == 3, query.ndim == 3 and not self.batch_first
        weight = unwrapped(self.in_proj_weight)
        for tensor in (query, key, value):
            check_dtype(self, weight, tensor)
        projections = projected(query, key, value, weight, self.in_proj_bias)
        q, k, v = (self._heads(projection, is_sequence_first) for projection in projections)
        mask = _combined_mask(attn_mask, key_padding_mask, q)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
            weights = dropout((scores if mask is None else scores + mask).softmax(-1), self.dropout, self.training)
            attended = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if is_batched else weights[0]
        else:
            attended = scaled_dot_product_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        output: torch.Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return output.transpose(0, 1) if is_sequence_first else output if is_batched else output[0], weights

    def _heads(self, projected: torch.Tensor, is_sequence_first: bool) -> torch.Tensor:
        """Split a projection into heads, (N, heads, L, head size)."""
        batch = projected.transpose(0, 1) if is_sequence_first else projected if projected.ndim == 3 else projected[None]
        return batch.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def to_dense(self) -> torch.nn.MultiheadAttention:
        """Return a ``torch.nn.MultiheadAttention`` with dense projections."""
        attention = torch.nn.MultiheadAttention.__new__(torch.nn.MultiheadAttention)
        vars(attention).update(vars(self.around(self)))
        weight: Any = self.in_proj_weight
        if isinstance(weight, SparseParameter):
            del attention._modules["in_proj_weight"]
            full = torch.nn.Parameter(weight.tensor.to_dense().detach(), weight.requires_grad)
            vars(attention)["_parameters"] = {"in_proj_weight": full, **attention._parameters}  # first, as in torch
        projection: Any = self.out_proj
        if hasattr(projection, "to_dense"):
            attention.out_proj = projection.to_dense()
        return attention


def projected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, weight: Any, bias: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """Project queries, keys and values: multiply each distinct input once by the whole weight, and take thirds of the products."""
    projections: list[tuple[torch.Tensor, ...]] = []
    inputs = query, key, value
    for at, tensor in enumerate(inputs):
        first = next(place for place, other in enumerate(inputs) if other is tensor)  # torch.compile would guard id(tensor)
        projections.append(linear(tensor, weight, bias).chunk(3, -1) if first == at else projections[first])
    return tuple([projection[at] for at, projection in enumerate(projections)])


def _combined_mask(attn_mask: torch.Tensor | None, key_padding_mask: torch.Tensor | None, q: torch.Tensor) -> torch.Tensor | None:
    """Combine both masks into a bias that broadcasts to the scores (N, heads, L, S)."""
    if attn_mask is not None:
        attn_mask = mask_bias(attn_mask, q.dtype)
        attn_mask = attn_mask.unflatten(0, q.shape[:2]) if attn_mask.ndim == 3 else attn_mask
    if key_padding_mask is None:
        return attn_mask
    padding = mask_bias(key_padding_mask, q.dtype).reshape(-1, 1, 1, key_padding_mask.shape[-1])
    return padding if attn_mask is None else attn_mask + padding


def unfolded(batch: torch.Tensor, kernel: Sizes, stride: Sizes, sides: Sides, dilation: Sizes) -> tuple[torch.Tensor, Sizes]:
    """Unfold images (im2col).

    Args:
        batch: the images (N, channels, H, W).
        kernel, stride, dilation: of the convolution.
        sides: the padding on the left, right, top and bottom.

    Returns:
        the unfolded images (N, channels * kernel height * kernel width, kernel positions), and the height and width of the output.

    Raises:
        SizeError: the kernel exceeds the padded images.
    """
    height, width = batch.shape[2:]
    left, right, top, bottom = sides
    windows = zip((height + top + bottom, width + left + right), kernel, stride, dilation, strict=True)
    rows, columns = ((size - step * (length - 1) - 1) // stride + 1 for size, length, stride, step in windows)
    if min(rows, columns) < 1:
        raise SizeError(
            f"a kernel of {kernel}, dilation {dilation}, doesn't fit an input of {height} x {width} "
            f"with padding {sides} (left, right, top, bottom): pad more, or use a smaller kernel"
        )
    if kernel == stride == (1, 1) and not any(sides):
        return batch.flatten(2), (rows, columns)
    is_symmetric = (left, top) == (right, bottom)
    padded = batch if is_symmetric else pad(batch, sides)
    result = unfold(padded, kernel, dilation, (top, left) if is_symmetric else 0, stride)
    if not torch.compiler.is_compiling():
        note("copy", f"the unfolded input {tuple(result.shape)} of a sparse convolution", result.nbytes)
    return result, (rows, columns)


def _pair(name: str, value: object, minimum: int) -> tuple[int, int]:
    """Return a pair of sizes; one integer counts for both."""
    sizes = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(sizes) != 2 or not all(isinstance(size, int) and size >= minimum for size in sizes):
        raise SizeError(f"{name}={value!r}: give an integer of at least {minimum}, or two, (height, width)")
    return sizes


def sides_of(padding: Sizes | str, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Sides:
    """Return the padding on the left, right, top and bottom, in the order of torch.nn.functional.pad.

    >>> sides_of("same", (3, 4), (1, 1), (1, 1))
    (1, 2, 1, 1)
    """
    if padding == "same":
        if stride != (1, 1):
            raise SizeError(f"padding='same' with stride={stride}: 'same' needs stride 1; give the padding in numbers")
        vertical, horizontal = (step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
        return horizontal // 2, horizontal - horizontal // 2, vertical // 2, vertical - vertical // 2
    if isinstance(padding, str) and padding != "valid":
        raise SizeError(f"padding={padding!r}: give 'same', 'valid', or numbers")
    top, left = (0, 0) if isinstance(padding, str) else padding
    return left, left, top, top
