"""Sparsifiers that choose single entries: by a threshold, at random, or by scores; all entries, and the entries of another tensor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch

from ..errors import OperandError, SizeError
from ..ir.format import CSR, Format
from ..tensors.packing import coordinates, numbered
from ..tensors.parameter import unwrapped
from ..tensors.sparse_tensor import SparseTensor
from .base import BuiltIn, Kind, WithFraction, called_as, described, is_number
from .magnitude import least, lowest, magnitudes


@dataclass(frozen=True, repr=False)
class keep_all(BuiltIn):
    """Keep every entry, zeros included.

    Shape:
        the input has any shape and data type; the bool mask has the input's shape.

    >>> keep_all()(torch.tensor([3.0, 0.0]))
    tensor([True, True])
    """

    kind: ClassVar[Kind] = Kind.STREAMING

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(tensor, dtype=torch.bool)

    def keeps_value(self, value: Any) -> Any:
        """Return True: a kernel keeps every value.

        Args:
            value: ignored.
        """
        return True


@called_as("threshold(0.01)")
@dataclass(frozen=True, repr=False)
class threshold(BuiltIn):
    """Keep the entries whose absolute value is greater than t, as ``torch.nn.functional.hardshrink`` does.

    Args:
        t: the largest absolute value that becomes zero, rounded to the data type of the tensor; 0 keeps all nonzeros.

    Shape:
        the input has any shape; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: t is negative, or not a number.
        OperandError: the tensor holds NaN, or is not floating-point.

    >>> threshold(1.0)(torch.tensor([3.0, -1.0, 0.5, -2.0]))
    tensor([ True, False, False,  True])
    """

    t: float
    kind: ClassVar[Kind] = Kind.STREAMING

    def __post_init__(self) -> None:
        if not is_number(self.t) or not self.t >= 0:
            raise SizeError(f"threshold({described(self.t)}): t, the bound of absolute values, has to be a number of at least 0")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return magnitudes(self, tensor) > self.bound(tensor.dtype)

    def keeps_value(self, value: Any) -> Any:
        """Return whether a kernel keeps a value. NaN is kept, so that a later check of the kept values finds it.

        Args:
            value: a tensor, or a proxy of a traced value.

        Returns:
            The comparison, a bool tensor or a proxy.
        """
        return ~(value.abs() <= self.t)

    def bound(self, dtype: torch.dtype) -> float:
        """Return t rounded to a data type.

        Args:
            dtype: a floating-point type.

        >>> threshold(0.1).bound(torch.float32) == 0.1, threshold(0.1).bound(torch.float64) == 0.1
        (False, True)
        """
        return torch.tensor(self.t, dtype=dtype).item()


@called_as("random(0.9)")
@dataclass(frozen=True, repr=False)
class random(BuiltIn, WithFraction):
    """Zero entries at random positions; tensors of one shape always get the same mask.

    The mask depends only on the seed and the shape, so copies and pickles of a sparsifier make the same masks. Masks are cached.

    Args:
        fraction: the fraction of all entries that becomes zero.
        seed: the seed of the positions; by default, torch's generator draws one when the sparsifier is made.

    Shape:
        the input has any shape and data type; the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1.
        OperandError: the seed is not an integer.

    >>> keep = random(0.5, seed=0)
    >>> int(keep(torch.rand(4, 4)).sum()), bool((keep(torch.rand(4, 4)) == keep(torch.zeros(4, 4))).all())
    (8, True)
    """

    seed: int | None = None
    _drawn: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed is None:
            object.__setattr__(self, "seed", int(torch.randint(1 << 62, ())))
        if not isinstance(self.seed, int) or not -(1 << 63) <= self.seed < 1 << 64:
            raise OperandError(
                f"random({self.fraction}, seed={described(self.seed)}): a seed is an integer of 64 bits, as for torch.manual_seed"
            )

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.mask_for(tensor.shape).clone()

    def mask_for(self, shape: Sequence[int]) -> torch.Tensor:
        """Return the cached mask for a shape; callers must not write to it.

        Args:
            shape: the sizes of the tensor.

        Returns:
            A bool tensor of this shape.
        """
        key = tuple(shape)
        if key not in self._drawn:
            generator = torch.Generator().manual_seed(self.seed or 0)
            self._drawn[key] = ~lowest(torch.rand(key, generator=generator, dtype=torch.float64), self.fraction)
        return self._drawn[key]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached masks, which can be drawn again."""
        return {"fraction": self.fraction, "seed": self.seed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _drawn={})


class MovementScores(AbstractContextManager["MovementScores"]):
    """Accumulate the movement of a parameter's entries during training: ``-weight * gradient`` at each backward pass.

    An entry that moves away from zero gets a high score, and an entry that shrinks gets a low one. The scores of micro-batches add up to
    those of their batch. A gradient scaler scales all scores alike. Used as a context manager, the object stops to record at the end of
    the block.

    Args:
        parameter: a leaf tensor that requires grad, such as a weight or the ``values`` of a sparse parameter.
        scores: scores of an earlier run to continue from, with the shape of the parameter; 0 by default.

    Attributes:
        scores: the scores, a float32 tensor with the shape of the parameter; float64 for a float64 parameter.

    Raises:
        OperandError: the parameter is not a leaf tensor, or does not require grad.
        SizeError: the earlier scores have another shape.

    Source: Sanh, Wolf, Rush, "Movement pruning: adaptive sparsity by fine-tuning", 2020.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    >>> with MovementScores(weight) as moved:
    ...     weight.square().sum().backward()
    >>> moved.scores
    tensor([-2., -8.])
    """

    scores: torch.Tensor

    def __init__(self, parameter: torch.Tensor, scores: torch.Tensor | None = None):
        if not isinstance(parameter, torch.Tensor) or not parameter.requires_grad or not parameter.is_leaf:
            raise OperandError("MovementScores takes a leaf tensor that requires grad, such as a module's weight: others have no movement")
        if scores is not None and scores.shape != parameter.shape:
            raise SizeError(f"scores have shape {tuple(scores.shape)}, but the parameter has {tuple(parameter.shape)}")
        wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        self.scores = torch.zeros_like(parameter, dtype=wide) if scores is None else scores.detach().to(wide, copy=True)
        self._parameter = parameter
        self._hook = parameter.register_hook(self._add)

    def _add(self, gradient: torch.Tensor) -> None:
        self.scores.addcmul_(self._parameter.detach().to(self.scores.dtype), gradient.detach().to(self.scores.dtype), value=-1)

    def reset(self) -> None:
        """Reset the scores to 0."""
        self.scores.zero_()

    def remove(self) -> None:
        """Stop to record; the scores are kept."""
        self._hook.remove()

    def __exit__(self, *error: object) -> None:
        self.remove()


@called_as("movement(0.9, scores), the scores of a MovementScores or a tensor")
@dataclass(frozen=True, eq=False, repr=False)
class movement(BuiltIn, WithFraction):
    """Zero the entries that training moved towards zero the most.

    Args:
        fraction: the fraction of all entries that becomes zero; of equal scores, the first are dropped.
        scores: a floating-point tensor with a score for each entry; or a MovementScores, whose scores are read at each call. The entries
            with the lowest scores are dropped.

    Shape:
        the input has the shape of the scores, or is the matrix of a convolution's weight, with a row for each output; the bool mask has
        the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the shapes of tensor and scores differ.
        OperandError: the scores are not a tensor or a MovementScores; or the scores or the tensor hold NaN, or are not floating-point.

    Source: Sanh, Wolf, Rush, "Movement pruning: adaptive sparsity by fine-tuning", 2020.

    >>> movement(0.5, torch.tensor([-1.0, 3.0]))(torch.tensor([5.0, 0.1]))
    tensor([False,  True])
    """

    scores: torch.Tensor | MovementScores = field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.scores, torch.Tensor | MovementScores):
            raise OperandError(f"{self}: scores have to be a tensor or a MovementScores, not {type(self.scores).__name__}")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        scores = self._scores
        scores = scores.flatten(1) if scores.ndim > tensor.ndim == 2 else scores  # a convolution's weight is passed as a matrix
        if scores.shape != tensor.shape:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: the scores have shape {tuple(scores.shape)}")
        magnitudes(self, tensor)
        magnitudes(f"{self}: the scores", scores)
        return ~lowest(scores.detach(), self.fraction)

    def __eq__(self, other: object) -> bool:
        """Return whether another ``movement`` has the same fraction and, at this moment, equal scores."""
        return isinstance(other, movement) and self.fraction == other.fraction and torch.equal(self._scores, other._scores)

    def __hash__(self) -> int:
        return hash((movement, self.fraction, tuple(self._scores.shape)))

    @property
    def _scores(self) -> torch.Tensor:
        return self.scores.scores if isinstance(self.scores, MovementScores) else self.scores


@called_as("wanda(0.5, inputs), inputs of the layer that calibrate it")
@dataclass(frozen=True, eq=False, repr=False)
class wanda(BuiltIn, WithFraction):
    """In each row, zero the entries with the smallest absolute value times the norm of their input.

    Args:
        fraction: the fraction of each row that becomes zero; of equal scores, the first are dropped.
        calibration: inputs of the layer, a floating-point tensor (\\*, in), from which the norm of each feature over all samples is
            computed; or these norms, of shape (in,).

    Shape:
        the input is a matrix (out, in); the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the tensor is not a matrix with the calibration's number of
            inputs.
        OperandError: the calibration is not a dense tensor; or the tensor or the calibration holds NaN, or is not floating-point.

    Source: Sun, Liu, Bair, Kolter, "A simple and effective pruning approach for large language models", 2023.

    >>> wanda(0.5, torch.tensor([1.0, 10.0]))(torch.tensor([[3.0, 1.0], [30.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """

    calibration: torch.Tensor = field(repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(given := self.calibration, torch.Tensor) or not given.ndim or given.layout is not torch.strided:
            raise OperandError(f"{self}: calibration has to be a dense tensor of inputs, shape (*, in), or of their norms, shape (in,)")
        magnitudes_ = magnitudes(f"{self}: the calibration", self.calibration)
        norms = magnitudes_ if magnitudes_.ndim == 1 else torch.linalg.vector_norm(magnitudes_.flatten(0, -2), dim=0)
        object.__setattr__(self, "calibration", norms)  # keep the norms only: the samples may be large

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        inputs = len(self.calibration)
        if tensor.ndim != 2 or tensor.shape[1] != inputs:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: the calibration fits a matrix (out, {inputs})")
        return ~least(magnitudes(self, tensor) * self.calibration, round(self.fraction * inputs))

    def __eq__(self, other: object) -> bool:
        """Return whether another ``wanda`` has the same fraction and equal norms."""
        return isinstance(other, wanda) and self.fraction == other.fraction and torch.equal(self.calibration, other.calibration)

    def __hash__(self) -> int:
        return hash((wanda, self.fraction, len(self.calibration)))


@dataclass(frozen=True, eq=False, repr=False)
class same_pattern(BuiltIn):
    """Keep the entries that another tensor stores, regardless of the values.

    Args:
        ref: a SparseTensor or a sparse parameter, whose explicit zeros count as stored; or a bool mask, True where an
            entry is kept.

    Shape:
        the input has the shape of ``ref``; the bool mask has the same shape, and is True where an entry is kept.

    Raises:
        OperandError: ``ref`` is neither a SparseTensor nor a mask.
        SizeError: the tensor has another shape.

    >>> keep = same_pattern(torch.tensor([[True, False], [False, True]]))
    >>> keep(torch.zeros(2, 2)).tolist()
    [[True, False], [False, True]]
    """

    ref: Any

    def __post_init__(self) -> None:
        ref = unwrapped(self.ref)
        if not isinstance(ref, SparseTensor) and not (isinstance(ref, torch.Tensor) and ref.dtype == torch.bool):
            given = f"a tensor of {ref.dtype}" if isinstance(ref, torch.Tensor) else type(ref).__name__
            raise OperandError(f"same_pattern takes a SparseTensor or a bool mask, not {given}: make a mask, as in tensor != 0")
        object.__setattr__(self, "ref", ref)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.mask_for(tensor.shape).clone()

    def mask_for(self, shape: Sequence[int]) -> torch.Tensor:
        """Return the cached mask; callers must not write to it.

        Args:
            shape: the sizes of the tensor; equal to those of ``ref``.

        Returns:
            A bool tensor of this shape.

        Raises:
            SizeError: the shape differs from that of ``ref``.
        """
        self._check(shape)
        return self._mask

    def holds(self, indices: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        """Return whether the entries at some coordinates are kept.

        Args:
            indices: the coordinates, an integer tensor (ndim, n).
            shape: the sizes of the tensor; equal to those of ``ref``.

        Returns:
            A bool tensor (n,).

        Raises:
            SizeError: the shape differs from that of ``ref``.

        Complexity:
            O((n + nnz) log(n + nnz)) for a sparse ``ref``, without a mask of all entries; O(n) for a mask.
        """
        self._check(shape)
        if isinstance(self.ref, torch.Tensor):
            return self._mask[tuple(indices)]
        return torch.isin(numbered(list(indices), shape), numbered(list(coordinates(self.ref.pattern)), shape))

    def __eq__(self, other: object) -> bool:
        """Return whether another ``same_pattern`` keeps the same entries, and has the same format."""
        if not isinstance(other, same_pattern) or self.format != other.format or tuple(self.ref.shape) != tuple(other.ref.shape):
            return False
        if isinstance(self.ref, SparseTensor) and isinstance(other.ref, SparseTensor):
            return self.ref.pattern.stores_as(other.ref.pattern)
        return torch.equal(self._mask, other._mask)

    def __hash__(self) -> int:
        return hash((same_pattern, tuple(self.ref.shape)))

    def _check(self, shape: Sequence[int]) -> None:
        if tuple(shape) != tuple(self.ref.shape):
            raise SizeError(f"{self} of a tensor of shape {tuple(shape)}: the pattern has shape {tuple(self.ref.shape)}")

    @cached_property
    def _mask(self) -> torch.Tensor:
        if isinstance(self.ref, torch.Tensor):
            return self.ref.detach().clone()
        mask = torch.zeros(self.ref.shape, dtype=torch.bool)
        mask.reshape(-1)[numbered(list(coordinates(self.ref.pattern)), self.ref.shape)] = True
        return mask

    @property
    def format(self) -> Format:
        """The format of ``ref``; CSR for a mask."""
        return self.ref.format if isinstance(self.ref, SparseTensor) else CSR

    def __repr__(self) -> str:
        what = repr(self.ref) if isinstance(self.ref, SparseTensor) else f"a mask of shape {tuple(self.ref.shape)}"
        return f"same_pattern({what})"
