"""Sparsifiers that score entries by training or by data: ``movement`` and ``wanda``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch

from ..errors import OperandError, SizeError
from .base import BuiltIn, WithFraction, called_as
from .magnitude import least, lowest, magnitudes


class MovementScores:
    """Accumulate the movement of a parameter's entries during training: ``-weight * gradient`` at each backward pass.

    An entry that moves away from zero gets a high score, and an entry that shrinks a low one. Gradients are counted as
    autograd delivers them: micro-batches add up to their batch, and a gradient scaler scales all scores alike.

    Args:
        parameter: a leaf tensor that requires grad; it may be a sparse parameter's ``values``.
        scores: the scores of an earlier run, to continue from.

    Raises:
        OperandError: the parameter does not require grad, so that it has no movement.
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
        """Stop recording; the scores stay."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


@called_as("movement(0.9, scores), the scores of a MovementScores or a tensor")
@dataclass(frozen=True, eq=False, repr=False)
class movement(BuiltIn, WithFraction):
    """Zero the entries that training moved towards zero the most.

    Args:
        fraction: the fraction of all entries that becomes zero; of equal scores, the first.
        scores: a score for each entry, or a MovementScores, whose scores are read at each call. The lowest scores are
            dropped.

    Shape:
        the input has the scores' shape, or is that tensor as a matrix with a row for each output; the bool mask has the
        input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the tensor's shape differs from the scores'.
        OperandError: the scores or the tensor hold NaN, or are not floating-point.

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
        """Return the mask of kept entries."""
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
        fraction: the fraction of each row that becomes zero; of equal scores, the first.
        calibration: inputs of the layer, of shape (\\*, in), whose norms over all samples are used; or these norms, of
            shape (in,).

    Shape:
        the input is a matrix (out, in); the bool mask has the input's shape, and is True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the tensor is not a matrix with the calibration's number of
            inputs.
        OperandError: the tensor or the calibration holds NaN, or is not floating-point.

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
        """Return the mask of kept entries."""
        inputs = len(self.calibration)
        if tensor.ndim != 2 or tensor.shape[1] != inputs:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: the calibration fits a matrix (out, {inputs})")
        return ~least(magnitudes(self, tensor) * self.calibration, round(self.fraction * inputs))

    def __eq__(self, other: object) -> bool:
        """Return whether another ``wanda`` has the same fraction and equal norms."""
        return isinstance(other, wanda) and self.fraction == other.fraction and torch.equal(self.calibration, other.calibration)

    def __hash__(self) -> int:
        return hash((wanda, self.fraction, len(self.calibration)))
