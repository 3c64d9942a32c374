"""Sparsifiers that score entries by what training or data say of them: movement, and wanda."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from ..errors import OperandError, SizeError
from ..ir.format import CSR, Format
from .kinds import Kind
from .magnitude import check_fraction, least, lowest, magnitudes
from .names import called_as


class MovementScores:
    """Adds up the movement of a parameter's entries while it trains: ``-weight * gradient`` at each backward pass.

    An entry that moves away from zero scores high, one that shrinks scores low. Gradients are counted as autograd delivers
    them, so micro-batches add up to their batch; a gradient scaler's factor scales all scores alike.

    Args:
        parameter: a leaf tensor that requires grad; it may be a sparse parameter's ``values``.
        scores: those of an earlier run, to go on from.

    Raises:
        OperandError: the parameter doesn't require grad, so that it has no movement.
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
            raise OperandError("MovementScores takes a leaf tensor that requires grad, as a module's weight: others have no movement")
        if scores is not None and scores.shape != parameter.shape:
            raise SizeError(f"scores have shape {tuple(scores.shape)}, but the parameter has {tuple(parameter.shape)}")
        wide = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        self.scores = torch.zeros_like(parameter, dtype=wide) if scores is None else scores.detach().to(wide, copy=True)
        self._parameter = parameter
        self._hook = parameter.register_hook(self._add)

    def _add(self, gradient: torch.Tensor) -> None:
        self.scores.addcmul_(self._parameter.detach().to(self.scores.dtype), gradient.detach().to(self.scores.dtype), value=-1)

    def reset(self) -> None:
        """Start anew, from 0."""
        self.scores.zero_()

    def remove(self) -> None:
        """Stop; the scores stay."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


@called_as("movement(0.9, scores), the scores of a MovementScores or a tensor")
@dataclass(frozen=True, eq=False)
class movement:
    """The entries that training moved towards zero the most become zero.

    Args:
        fraction: the share that becomes zero, of all entries; of equal scores, those that come first.
        scores: a score for each entry, the least of which go; or what records them, whose scores are read at each call.

    Shape:
        a tensor of the scores' shape, or that as a matrix with a row for each output, to a bool mask, True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, or the tensor has another shape than the scores.
        OperandError: the scores, or the tensor, hold NaN, or no floating-point numbers.

    Source: Sanh, Wolf, Rush, "Movement pruning: adaptive sparsity by fine-tuning", 2020.

    >>> movement(0.5, torch.tensor([-1.0, 3.0]))(torch.tensor([5.0, 0.1]))
    tensor([False,  True])
    """

    fraction: float
    scores: torch.Tensor | MovementScores
    kind: ClassVar[Kind] = Kind.MATERIALIZING
    format: ClassVar[Format] = CSR

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)
        if not isinstance(self.scores, torch.Tensor | MovementScores):
            raise OperandError(f"{self}: scores are a tensor, or a MovementScores, not {type(self.scores).__name__}")

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        scores = self._scores
        scores = scores.flatten(1) if scores.ndim > tensor.ndim == 2 else scores  # kernels' weights are shown as matrices
        if scores.shape != tensor.shape:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: the scores have the shape {tuple(scores.shape)}")
        magnitudes(self, tensor)
        magnitudes(f"{self}: the scores", scores)
        return ~lowest(scores.detach(), self.fraction)

    def __eq__(self, other: object) -> bool:
        """Whether another one has the same fraction, and equal scores; those that are recorded are as they are now."""
        return isinstance(other, movement) and self.fraction == other.fraction and torch.equal(self._scores, other._scores)

    def __hash__(self) -> int:
        return hash((movement, self.fraction, tuple(self._scores.shape)))

    @property
    def _scores(self) -> torch.Tensor:
        return self.scores.scores if isinstance(self.scores, MovementScores) else self.scores

    def __repr__(self) -> str:
        return f"movement({self.fraction})"


@called_as("wanda(0.5, inputs), inputs of the layer that calibrate it")
@dataclass(frozen=True, eq=False)
class wanda:
    """In each row, the entries with the least absolute value times the norm of their input become zero.

    Args:
        fraction: the share that becomes zero, of each row; of equal scores, those that come first.
        calibration: inputs of the layer, of shape (\\*, in), whose norms over all samples count; or the norms, of shape (in,).

    Shape:
        a matrix (out, in), to a bool mask of its shape, True where an entry is kept.

    Raises:
        SizeError: the fraction is not between 0 and 1, the tensor is no matrix, or has another number of inputs.
        OperandError: the tensor or the calibration hold NaN, or no floating-point numbers.

    Source: Sun, Liu, Bair, Kolter, "A simple and effective pruning approach for large language models", 2023.

    >>> wanda(0.5, torch.tensor([1.0, 10.0]))(torch.tensor([[3.0, 1.0], [30.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """

    fraction: float
    calibration: torch.Tensor
    kind: ClassVar[Kind] = Kind.MATERIALIZING
    format: ClassVar[Format] = CSR

    def __post_init__(self) -> None:
        check_fraction(self, self.fraction)
        if not isinstance(self.calibration, torch.Tensor) or not self.calibration.ndim:
            raise OperandError(f"{self}: calibration is a tensor of inputs, of shape (*, in), or of their norms, of shape (in,)")
        magnitudes_ = magnitudes(f"{self}: the calibration", self.calibration)
        norms = magnitudes_ if magnitudes_.ndim == 1 else torch.linalg.vector_norm(magnitudes_.flatten(0, -2), dim=0)
        object.__setattr__(self, "calibration", norms)  # the samples may be many

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mask of what is kept."""
        inputs = len(self.calibration)
        if tensor.ndim != 2 or tensor.shape[1] != inputs:
            raise SizeError(f"{self} of a tensor of shape {tuple(tensor.shape)}: the calibration is that of a matrix (out, {inputs})")
        return ~least(magnitudes(self, tensor) * self.calibration, round(self.fraction * inputs))

    def __eq__(self, other: object) -> bool:
        """Whether another one has the same fraction, and equal norms."""
        return isinstance(other, wanda) and self.fraction == other.fraction and torch.equal(self.calibration, other.calibration)

    def __hash__(self) -> int:
        return hash((wanda, self.fraction, len(self.calibration)))

    def __repr__(self) -> str:
        return f"wanda({self.fraction})"
