"""Functions of modules; every name that is not ours is torch.nn.functional's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..construct import from_coo, from_csr
from ..errors import SizeError
from ..ir.format import Format, as_format
from ..packing import index_dtype_for
from ..sparse_tensor import SparseTensor, beside_programs

__all__ = ["one_hot"]


def one_hot(*args: Any, sparse: bool = False, format: Format | str | None = None, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    """torch.nn.functional.one_hot; with ``sparse=True`` or ``format=`` a SparseTensor that stores only the ones. O(numel).

    Args:
        args, kwargs: ``tensor``, the classes, int64, and ``num_classes``, by default the largest one and 1.
        sparse: whether to make a SparseTensor of shape (\\*tensor.shape, num_classes).
        format: how it is stored; by default CSR in two dimensions, else COO(n).
        dtype: of the result; int64 by default, as in torch. An einsum takes operands of one data type: name that of the others here.

    Raises:
        SizeError: classes that are negative or too large, or an empty tensor without ``num_classes``; a RuntimeError, as torch's is.

    >>> one_hot(torch.tensor([2, 0]), 3, sparse=True)
    SparseTensor(CSR, shape=(2, 3), nnz=2, density=0.333, int64, int32 indices)
    >>> one_hot(torch.tensor([2, 0]), 3)
    tensor([[0, 0, 1],
            [1, 0, 0]])
    """
    if sparse or format is not None:
        given = {"tensor" if name == "input" else name: value for name, value in kwargs.items()}
        return _sparse_one_hot(*args, format=None if format is None else as_format(format), dtype=dtype, **given)
    made = torch.nn.functional.one_hot(*args, **kwargs)
    return made if dtype is None else made.to(dtype)


@beside_programs
def _sparse_one_hot(tensor: torch.Tensor, num_classes: int = -1, *, format: Format | None, dtype: torch.dtype | None) -> SparseTensor:
    """Each class as the last coordinate of a one at the place where it stands: the index arrays follow without sorting."""
    classes = _checked(tensor, num_classes).detach().reshape(-1).numpy()
    shape = (*tensor.shape, num_classes if num_classes != -1 else int(classes.max()) + 1)
    ones, index = torch.ones(len(classes), dtype=torch.int64 if dtype is None else dtype), index_dtype_for(shape, len(classes))
    if len(shape) == 2:
        made = from_csr(np.arange(len(classes) + 1, dtype=index), classes.astype(index), ones, shape, check_invariants=False)
    else:
        places = np.indices(tensor.shape, dtype=index).reshape(tensor.ndim, len(classes))
        made = from_coo(np.concatenate([places, classes[None].astype(index)]), ones, shape, check_invariants=False)
    return made if format is None else made.to(format)


def _checked(tensor: torch.Tensor, num_classes: int) -> torch.Tensor:
    """The classes, each of them one that there is."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.int64:
        given = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise SizeError(f"one_hot takes a tensor of int64 classes, not {given}: convert it with .to(torch.int64)")
    if num_classes == -1 and not tensor.numel():
        raise SizeError("one_hot of an empty tensor: give num_classes=, which can't be told from it")
    if tensor.numel() and int(tensor.min()) < 0:
        raise SizeError(f"one_hot of class {int(tensor.min())}: classes start at 0")
    most = int(tensor.max()) if tensor.numel() else 0
    if num_classes != -1 and (num_classes <= most or num_classes < 1):
        raise SizeError(f"one_hot of class {most} with num_classes={num_classes}: classes lie below it")
    return tensor


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not hasattr(torch.nn.functional, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and neither has torch.nn.functional")
    return getattr(torch.nn.functional, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(torch.nn.functional)})
