"""SparseConv2d: torch.nn.Conv2d with a sparse weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch.nn.functional import pad, unfold

from ..api import einsum
from ..errors import SizeError, UnsupportedError
from ..ir.format import CSR, Format
from ..sparsifiers.sparsify import Sparsifier, sparsify
from ..tensors.ledgers import note
from ..tensors.sparse_tensor import SparseTensor
from .dtypes import check_dtype
from .weights import WithSparseWeight, check_dense, new_weight

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Pair = int | tuple[int, int]


class SparseConv2d(WithSparseWeight):
    """A convolution whose weight stores only some of its entries, which are what is trained.

    The weight is a matrix of shape (out_channels, in_channels * height * width of the kernel), and multiplies the unfolded
    input, which takes as much memory as the input times the size of the kernel; a 1 x 1 kernel with stride 1 needs none.
    Give either ``density`` or ``pattern``.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width of the kernel, or one number for both; so are ``stride``, ``padding`` and ``dilation``.
        stride: steps between the kernel's places.
        padding: zeros added to each side; or ``"valid"``, none; or ``"same"``, as many as keep the size, with stride 1.
        dilation: steps between the kernel's entries.
        groups: 1.
        bias: whether there is one.
        padding_mode: ``"zeros"``.
        density: the share of entries that is stored, at random places, as in :class:`SparseLinear`.
        pattern: the entries that are stored: what :class:`SparseLinear` takes, of the shape of the matrix, or of
            (out_channels, in_channels, height, width).
        format: how the matrix is stored.
        device: the CPU, if given.
        dtype: of the weight and the bias.

    Shape:
        input (N, in_channels, H, W) or (in_channels, H, W), output (N, out_channels, H', W') or (out_channels, H', W'), with
        the sizes of ``torch.nn.Conv2d``.

    Raises:
        SizeError: the pattern or the input has another shape, the density is not between 0 and 1, or there is no place for the kernel.
        UnsupportedError: both a density and a pattern are given, or neither; groups; padding with other than zeros.

    Source: Park et al., "Faster CNNs with direct sparse convolutions and guided pruning", 2017, where the unfolded input isn't stored.

    >>> layer = SparseConv2d(3, 8, 3, padding=1, density=0.1)
    >>> layer(torch.ones(2, 3, 6, 5)).shape, layer.weight.shape
    (torch.Size([2, 8, 6, 5]), torch.Size([8, 27]))
    """

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
        _check_modes(groups, padding_mode)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.dilation = (
            _pair(name, given, 1) for name, given in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation))
        )
        self.padding = padding if isinstance(padding, str) else _pair("padding", padding, 0)
        self._sides = _sides(self.padding, self.kernel_size, self.stride, self.dilation)
        height, width = self.kernel_size
        shape, axes = (out_channels, in_channels * height * width), "(out_channels, in_channels * kernel height * kernel width)"
        self._set_weight(new_weight(self, shape, axes, density, pattern, format, dtype, device), bias)

    @classmethod
    def from_dense(cls, conv: torch.nn.Conv2d, sparsifier: Sparsifier | str, format: Format | str | None = None) -> Self:
        """A dense layer with the weights that a sparsifier keeps, its bias, its data type, and what is frozen in it.

        Args:
            conv: the dense layer, which stays as it is.
            sparsifier: a callable that is given the weight as a matrix (out_channels, in_channels * height * width), and makes a
                mask of it, True where a weight is kept.
            format: how the matrix is stored; by default in the sparsifier's ``format`` if it has one, else CSR.

        Raises:
            OperandError: not a torch.nn.Conv2d, or no sparsifier.
            SizeError: the mask has another shape than the matrix.
            UnsupportedError: the layer has groups, pads with other than zeros, or is not on the CPU.

        >>> from numscorch.sparsify import magnitude
        >>> SparseConv2d.from_dense(torch.nn.Conv2d(2, 4, 3), magnitude(0.75)).weight.nnz
        18
        """
        check_dense(cls, conv, torch.nn.Conv2d)
        _check_modes(conv.groups, conv.padding_mode)
        stored = sparsify(conv.weight.detach().flatten(1), sparsifier, format)
        sizes = conv.kernel_size, conv.stride, conv.padding, conv.dilation
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            *sizes,  # type: ignore[arg-type]  # torch has tuples of any length
            bias=conv.bias is not None,
            pattern=stored,
            format=stored.format,
            dtype=stored.dtype,
        )
        return layer._copy_from_dense(conv, stored)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The layer's output, (N, out_channels, H', W'), or without N."""
        if input.ndim not in (3, 4) or input.shape[-3] != self.in_channels:
            raise SizeError(f"input has shape {tuple(input.shape)}, but the layer takes (N, {self.in_channels}, H, W), or without N")
        check_dtype(self, self.weight.values, input)
        batch = input if input.ndim == 4 else input[None]
        sizes = self._sizes(batch.shape[2], batch.shape[3])
        output: torch.Tensor = einsum("ok,nkl->nol", self.weight.tensor, self._unfolded(batch))
        if self.bias is not None:
            output = output + self.bias.to(output.dtype)[:, None]
        output = output.unflatten(2, sizes)
        return output if input.ndim == 4 else output[0]

    def _unfolded(self, batch: torch.Tensor) -> torch.Tensor:
        """What the kernel sees at each of its places: (N, in_channels * height * width, places)."""
        if self.kernel_size == self.stride == (1, 1) and not any(self._sides):
            return batch.flatten(2)
        left, right, top, bottom = self._sides
        even = (left, top) == (right, bottom)
        padded = batch if even else pad(batch, self._sides)
        columns = unfold(padded, self.kernel_size, self.dilation, (top, left) if even else 0, self.stride)
        if not torch.compiler.is_compiling():
            note("copy", f"the unfolded input {tuple(columns.shape)} of SparseConv2d", columns.nbytes)
        return columns

    def _sizes(self, height: int, width: int) -> tuple[int, int]:
        """The sizes of the output."""
        left, right, top, bottom = self._sides
        around = (height + top + bottom, width + left + right)
        windows = list(zip(around, self.kernel_size, self.stride, self.dilation, strict=True))
        sizes = [(size - dilation * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, dilation in windows]
        if min(sizes) < 1:
            raise SizeError(
                f"a kernel of {self.kernel_size}, dilation {self.dilation}, doesn't fit an input of {height} x {width} "
                f"with padding {self.padding}: pad more, or take a smaller kernel"
            )
        return sizes[0], sizes[1]

    def to_dense(self) -> torch.nn.Conv2d:
        """The layer with a dense weight."""
        sizes = self.kernel_size, self.stride, self.padding, self.dilation
        layer = torch.nn.Conv2d(self.in_channels, self.out_channels, *sizes, bias=self.bias is not None, dtype=self.weight.dtype)
        self._copy_to_dense(layer)
        return layer

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}" if any(self._sides) else ""
        text += f", dilation={self.dilation}" if self.dilation != (1, 1) else ""
        return f"{text}{', bias=False' if self.bias is None else ''}, {self._weight_summary()}"


def _check_modes(groups: int, padding_mode: str) -> None:
    """That there is one group, and padding is of zeros."""
    if groups != 1:
        raise UnsupportedError(
            f"groups={groups} is not taken by SparseConv2d: with groups=1, a pattern= that is block-diagonal stores the same weights"
        )
    if padding_mode != "zeros":
        raise UnsupportedError(
            f"padding_mode={padding_mode!r} is not taken by SparseConv2d: use torch.nn.functional.pad(x, ..., mode=...), and padding=0 here"
        )


def _pair(name: str, given: object, least: int) -> tuple[int, int]:
    """Two sizes, or one for both."""
    sizes = tuple(given) if isinstance(given, tuple | list) else (given, given)
    if len(sizes) != 2 or not all(isinstance(size, int) and size >= least for size in sizes):
        raise SizeError(f"{name}={given!r}: give a whole number of at least {least}, or two of them, (height, width)")
    return sizes


def _sides(
    padding: tuple[int, int] | str, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    """The zeros to the left, to the right, above and below, as torch.nn.functional.pad takes them.

    >>> _sides("same", (3, 4), (1, 1), (1, 1))
    (1, 2, 1, 1)
    """
    if padding == "same":
        if stride != (1, 1):
            raise SizeError(f"padding='same' with stride={stride}: it keeps the size with stride 1 only; give the padding in numbers")
        (up, side) = (step * (size - 1) for step, size in zip(dilation, kernel, strict=True))
        return side // 2, side - side // 2, up // 2, up - up // 2
    if isinstance(padding, str) and padding != "valid":
        raise SizeError(f"padding={padding!r}: give 'same', 'valid', or numbers")
    top, left = (0, 0) if isinstance(padding, str) else padding
    return left, left, top, top
