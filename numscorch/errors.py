"""The errors numscorch raises: each shows the request, the clash, and the way out."""


class NumscorchError(Exception):
    """Base class of every error raised by numscorch."""


class ExpressionError(NumscorchError, ValueError, RuntimeError):
    """The expression's text can't be read, or doesn't fit the operands' ranks: a RuntimeError too, as torch raises."""


class SizeError(NumscorchError, ValueError, RuntimeError):
    """Sizes disagree, or a result would not fit in memory: a RuntimeError too, as torch raises."""


class RangeError(SizeError, IndexError):
    """A dimension or an index is out of range."""


class FormatError(NumscorchError, ValueError):
    """A format's text is wrong, or arrays break what their format promises."""


class ScheduleError(NumscorchError, RuntimeError):
    """A statement can't be scheduled, or a pass left it malformed."""


class UnsupportedError(NumscorchError, NotImplementedError):
    """The request is meaningful, but not (yet) compiled; the text names the construct."""


class DenseFallbackWarning(UserWarning):
    """An operator made a sparse tensor dense, unasked; told once for each operator."""


class PatternWarning(UserWarning):
    """Index arrays of a sparse parameter were overwritten with another pattern; told once for each parameter."""


class OperandError(UnsupportedError, TypeError):
    """Something was passed that is no tensor, or no number where one is needed."""


class IndexKindError(OperandError, IndexError):
    """A tensor is indexed by something that is no index, as a text."""


class MissingError(AttributeError, UnsupportedError):
    """A SparseTensor has no such attribute; the text says what to write instead where torch's tensors have it."""


class MemoryLimitError(NumscorchError, MemoryError):
    """A limit on the process's memory leaves too little to compile a kernel."""


class BundleError(NumscorchError, ValueError):
    """A file is no bundle of kernels, is damaged, or was made for another machine or other versions."""
