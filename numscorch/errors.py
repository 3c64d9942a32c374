"""The exceptions and warnings of numscorch. Each error text shows the request, the clash, and the way out."""


class NumscorchError(Exception):
    """Base class of all errors raised by numscorch."""


class ExpressionError(NumscorchError, ValueError, RuntimeError):
    """The expression can't be parsed, or doesn't fit the operands' ranks. Also a RuntimeError, for compatibility with torch."""


class SizeError(NumscorchError, ValueError, RuntimeError):
    """Sizes disagree, or a result would not fit in memory. Also a RuntimeError, for compatibility with torch."""


class RangeError(SizeError, IndexError):
    """A dimension or an index is out of range."""


class DivisionError(NumscorchError, ZeroDivisionError, RuntimeError):
    """An integer is divided by 0. Also a RuntimeError, for compatibility with torch."""


class FormatError(NumscorchError, ValueError):
    """The text of a format is invalid, or arrays violate their format's invariants."""


class ScheduleError(NumscorchError, RuntimeError):
    """A statement can't be scheduled, or a pass left it malformed."""


class UnsupportedError(NumscorchError, NotImplementedError):
    """The request is valid but not supported (yet); the text names the construct."""


class DenseFallbackWarning(UserWarning):
    """An operator implicitly converted a sparse tensor to dense; issued once per operator."""


class PatternWarning(UserWarning):
    """The index arrays of a sparse parameter were overwritten with another pattern; issued once per parameter."""


class OperandError(UnsupportedError, TypeError):
    """An argument isn't a tensor, or isn't a number where a number is required."""


class IndexKindError(OperandError, IndexError):
    """A tensor is indexed by an invalid object, such as a string."""


class MissingError(AttributeError, UnsupportedError):
    """A SparseTensor lacks an attribute; if torch's tensors have it, the text names an alternative."""


class RankError(NumscorchError, RuntimeError):
    """Another rank of a distributed operation has raised or ended, or takes part with other arguments."""


class MemoryLimitError(NumscorchError, MemoryError):
    """The process's memory limit leaves too little memory to compile a kernel."""


class BundleError(NumscorchError, ValueError):
    """A file isn't a bundle of kernels, is damaged, or was created for another machine or other versions."""
