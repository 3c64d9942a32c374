"""The exceptions and warnings of numscorch. Each error text shows the request, the clash, and the way out."""


class NumscorchError(Exception):
    """Base class of the errors that numscorch raises.

    Each error also derives from the Python exception that fits, such as ValueError or IndexError.

    >>> import numscorch as ns
    >>> try:
    ...     ns.Format("ds", mode_order=(0, 0))
    ... except ns.NumscorchError as error:
    ...     print(type(error).__name__)
    FormatError
    """


class ExpressionError(NumscorchError, ValueError, RuntimeError):
    """The expression can't be parsed, or doesn't fit the operands' ranks. Also a RuntimeError, for compatibility with torch.

    >>> import numscorch as ns
    >>> ns.einsum("ij,j->i", ns.eye(2, format=ns.CSR))
    Traceback (most recent call last):
    ...
    numscorch.ExpressionError: 'ij,j->i' has 2 terms for 1 operands: write one term for each, separated by commas
    """


class SizeError(NumscorchError, ValueError, RuntimeError):
    """Sizes disagree, or a result would not fit in memory. Also a RuntimeError, for compatibility with torch.

    >>> import torch, numscorch as ns
    >>> ns.einsum("ij,j->i", ns.eye(2, format=ns.CSR), torch.ones(3))
    Traceback (most recent call last):
    ...
    numscorch.SizeError: index j has size 2 in A but 3 in B
      C[i] = A[i,j] * B[j]     A: 2x2 (CSR)     B: 3 (dense)
    """


class RangeError(SizeError, IndexError):
    """A dimension or an index is out of range.

    >>> import numscorch as ns
    >>> ns.eye(2, format=ns.CSR)[5]
    Traceback (most recent call last):
    ...
    numscorch.RangeError: index 5 is out of range along dim 0, whose size is 2
    """


class DivisionError(NumscorchError, ZeroDivisionError, RuntimeError):
    """An integer is divided by 0. Also a RuntimeError, for compatibility with torch.

    >>> import numscorch as ns
    >>> ns.tensor([[0, 2], [3, 0]], format=ns.CSR) // 0
    Traceback (most recent call last):
    ...
    numscorch.DivisionError: floor_divide: an integer is divided by 0: ...
    """


class FormatError(NumscorchError, ValueError):
    """A format is invalid or can't store the entries, or arrays or files violate their format.

    >>> import numscorch as ns
    >>> ns.from_coo([[0, 9], [0, 1]], [1.0, 2.0], (2, 2))
    Traceback (most recent call last):
    ...
    numscorch.FormatError: entry 1 has coordinate 9 in dimension 0, which has size 2: coordinates lie in 0 to 1
    """


class ScheduleError(NumscorchError, RuntimeError):
    """A statement can't be scheduled, or a pass left it malformed.

    >>> import numscorch as ns
    >>> A = ns.eye(2, format=ns.CSR)
    >>> ns.einsum("ij,jk->ik", A, A, schedule="reorder(j, i, k)")
    Traceback (most recent call last):
    ...
    numscorch.ScheduleError: reorder(j, i, k) would reach a sparse level before its parent levels, ...
      C[i,k] = A[i,j] * B[j,k]     possible orders: ijk, ikj
    """


class UnsupportedError(NumscorchError, NotImplementedError):
    """The request is valid but not supported (yet); the text names the construct.

    >>> import numscorch as ns
    >>> ns.eye(2, format=ns.CSR).to("cuda")
    Traceback (most recent call last):
    ...
    numscorch.UnsupportedError: can't move to cuda: numscorch runs on the CPU
    """


class DenseFallbackWarning(UserWarning):
    """An operator implicitly converted a sparse tensor to dense; issued once per operator.

    :func:`strict` raises an error instead.

    >>> import warnings, torch, numscorch as ns
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", ns.DenseFallbackWarning)
    ...     torch.exp(ns.zeros(1, 2, format=ns.CSR))  # exp(0) is 1
    tensor([[1., 1.]])
    """


class PatternWarning(UserWarning):
    """The index arrays of a sparse parameter were overwritten with another pattern; issued once per parameter.

    >>> import warnings, torch, numscorch as ns
    >>> weight = ns.nn.Parameter(ns.eye(2, format=ns.CSR))
    >>> positions, columns = weight.pattern.arrays[1]
    >>> _ = columns.copy_(torch.tensor([1, 0]))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     y = weight @ torch.ones(2)
    >>> caught[0].category.__name__
    'PatternWarning'
    """


class OperandError(UnsupportedError, TypeError):
    """An argument has the wrong type: it isn't a tensor, or isn't a number where a number is required.

    >>> import numpy, numscorch as ns
    >>> ns.eye(2, format=ns.CSR) + numpy.ones((2, 2))
    Traceback (most recent call last):
    ...
    numscorch.OperandError: add takes tensors and numbers, not ndarray: wrap it with torch.from_numpy(x)
    """


class IndexKindError(OperandError, IndexError):
    """A tensor is indexed by an invalid object, such as a string."""


class MissingError(AttributeError, UnsupportedError):
    """A SparseTensor lacks an attribute; if torch's tensors have it, the text names an alternative."""


class RankError(NumscorchError, RuntimeError):
    """Another rank of a distributed operation has raised or ended, or takes part with other arguments.

    If one rank fails, the other ranks raise this error instead of waiting.

    >>> import numscorch as ns
    >>> issubclass(ns.RankError, RuntimeError)
    True
    """


class MemoryLimitError(NumscorchError, MemoryError):
    """The process's memory limit leaves too little memory to compile a kernel.

    Raise the limit of the address space, such as that of ``ulimit -v``.

    >>> import numscorch as ns
    >>> issubclass(ns.MemoryLimitError, MemoryError)
    True
    """


class BundleError(NumscorchError, ValueError):
    """A file isn't a bundle of kernels, is damaged, or was created for another machine or other versions."""
