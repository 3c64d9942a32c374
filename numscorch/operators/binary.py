"""Element-wise functions of two tensors: division with remainders or rounding, masked_fill, isclose, isin, losses, and distances."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from ..convert.values import densified, others_at, strided, values_of, with_entries
from ..errors import OperandError, SizeError, UnsupportedError
from ..frontend.broadcasting import broadcast_shape
from ..frontend.datatypes import result_type
from ..interface.api import einsum
from ..programs.dense_requests import divided
from ..tensors.packing import at_entries
from ..tensors.sparse_tensor import SparseTensor
from .elementwise import as_own, div as true_div, is_sparse, mul, sub, where
from .naming import with_name
from .products import check_inner
from .reducing import mean as average, sum as total
from .reshaping import expand, normalize_dim
from .statistics import norm, power


def _quotient(name: str, meaning: str, shown: str, of_zero: str = "; DivisionError if an integer is divided by 0") -> Callable[..., Any]:
    torch_function = getattr(torch, name)

    def function(input: Any, other: Any) -> Any:
        return _by_entries(torch_function, name, input, other)

    return with_name(
        function,
        name,
        f"""{meaning}.

    If ``input`` is sparse, the result has its pattern{of_zero and ", and 0 / 0 is not computed at unstored entries"}.

    Args:
        input: a tensor, sparse or dense, or a number.
        other: a tensor that broadcasts with ``input``, or a number.

    Returns:
        A SparseTensor, or a dense tensor if ``input`` is not sparse.

    Raises:
        OperandError: an operand is neither a tensor nor a number.
        RuntimeError: torch's {name} does not support the data types{of_zero}.
        SizeError: the shapes do not broadcast.
        UnsupportedError: only ``other`` is sparse, within ``ns.strict()``.

    >>> ns.{name}(ns.from_torch(torch.tensor([0, 7, -7])), 2).to_dense()
    tensor({shown})
    """,
    )


def _by_entries(function: Callable[..., torch.Tensor], name: str, input: Any, other: Any) -> Any:
    """Apply a function whose result is 0 where ``input`` is 0: at the stored entries of a sparse input, else densely.

    Raises:
        DivisionError: an integer is divided by 0.
    """
    function, input, other = divided(function), as_own(input), as_own(other)
    if not isinstance(input, SparseTensor):
        return function(densified(input, name), densified(other, name))
    input = _expand_to_common(name, input, getattr(other, "shape", ()))
    divisor = others_at(input, other) if isinstance(other, torch.Tensor | SparseTensor) else other
    return with_entries(input, function(values_of(input), divisor))


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    """Divide two operands element-wise.

    If ``input`` is sparse, the result has its pattern, and 0 / 0 is not computed at unstored entries.

    Args:
        input: the numerator: a tensor, sparse or dense, or a number.
        other: the denominator: a tensor that broadcasts with ``input``, or a number.
        rounding_mode: None, "floor" or "trunc", as in torch.

    Returns:
        A SparseTensor, or a dense tensor if ``input`` is not sparse.

    Raises:
        DivisionError: an integer is divided by 0 and rounded.
        OperandError: an operand is neither a tensor nor a number.
        RuntimeError: the rounding mode is unknown.
        SizeError: the shapes do not broadcast.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), ns.CSR)
    >>> ns.div(A, 2).values, ns.div(A, 2, rounding_mode="floor").values
    (tensor([1.0000, 1.5000]), tensor([1., 1.]))
    """
    if rounding_mode is None:
        return true_div(input, other)
    return _by_entries(_truncated if rounding_mode == "trunc" else partial(torch.div, rounding_mode=rounding_mode), "div", input, other)


def _truncated(input: Any, other: Any) -> torch.Tensor:
    """The quotient rounded towards 0. torch's division ends the process if it divides the smallest integer by -1."""
    dtype = torch.result_type(input, other)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.div(input, other, rounding_mode="trunc")
    return torch.floor_divide(input - torch.fmod(input, other), other)


def _expand_to_common(name: str, input: SparseTensor, other: Sequence[int]) -> SparseTensor:
    """Broadcast the tensor's shape with another shape, and expand the tensor to the result."""
    shape = broadcast_shape(name, input.shape, other)
    return input if shape == tuple(input.shape) else expand(input, shape)


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """Replace entries by a number where a mask is True.

    The result is sparse if the number is 0 or the mask is sparse. A dense mask with another number makes the result dense.

    Args:
        input: a tensor, sparse or dense.
        mask: a tensor of bool values that broadcasts with ``input``.
        value: a number, or a tensor without dimensions.

    Returns:
        A SparseTensor, or a dense tensor.

    Raises:
        OperandError: the mask is not a tensor.
        RuntimeError: the mask is not boolean, or the shapes of dense operands do not broadcast.
        SizeError: the shapes of sparse operands do not broadcast.
        UnsupportedError: the result would be dense, within ``ns.strict()``.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.masked_fill(A, torch.tensor([True, False]), 0).values, ns.masked_fill(A, A > 0, 5).values
    (tensor([0., 1.]), tensor([5., 5.]))
    """
    if not isinstance(input, SparseTensor):
        return torch.masked_fill(input, densified(mask, "masked_fill"), value)
    if not (is_sparse(mask) or isinstance(mask, torch.Tensor)):
        raise OperandError(f"masked_fill takes a mask that is a tensor, not {type(mask).__name__}: torch.as_tensor(mask) makes one")
    number = value.item() if isinstance(value, torch.Tensor) and not value.requires_grad else value
    if not isinstance(number, torch.Tensor):
        value = number = torch.full((), number, dtype=input.dtype).item()  # cast or refuse the value as torch does
    if not isinstance(number, torch.Tensor) and number == 0:
        input = _expand_to_common("masked_fill", input, mask.shape)
        return with_entries(input, values_of(input).masked_fill(others_at(input, mask), 0))
    if is_sparse(mask):
        return where(mask, value, input)
    return torch.masked_fill(densified(input, "masked_fill", "a sparse mask keeps the tensor sparse"), mask, value)


def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> torch.Tensor:
    """Whether ``|input - other| <= atol + rtol * |other|`` at each entry; dense, because entries that neither tensor stores are close.

    Args:
        input: a tensor, sparse or dense.
        other: a tensor of the same data type that broadcasts with ``input``.
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        equal_nan: whether two NaN are close.

    Returns:
        A dense tensor of bool values.

    Raises:
        OperandError: an operand is not a tensor.
        RuntimeError: the data types differ, or the shapes do not broadcast.
        UnsupportedError: within ``ns.strict()``, because the result is dense.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> ns.isclose(A, 1.1 * A, rtol=0.01)
    tensor([[False,  True],
            [ True, False]])
    """
    return torch.isclose(densified(input, "isclose"), densified(other, "isclose"), rtol, atol, equal_nan)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Whether each entry is one of the test elements.

    Args:
        elements: a tensor, sparse or dense, or a number.
        test_elements: a tensor, sparse or dense, a list or a number; the unstored entries of a sparse tensor are 0.
        assume_unique: whether the elements of each tensor are unique; it can speed up torch's computation.
        invert: whether to test that an entry is none of the test elements.

    Returns:
        A SparseTensor of bool values with the pattern of ``elements`` if unstored entries give False; else a dense tensor.

    Raises:
        RuntimeError: the values are complex.
        UnsupportedError: unstored entries give True, within ``ns.strict()``.

    >>> import numscorch as ns
    >>> ns.isin(ns.from_torch(torch.tensor([[0.0, 2.0], [3.0, 0.0]])), torch.tensor([2.0])).values
    tensor([ True, False])
    """
    tested = _elements(test_elements)
    if not isinstance(elements, SparseTensor):
        return torch.isin(elements, tested, assume_unique=assume_unique, invert=invert)
    if torch.isin(torch.zeros((), dtype=elements.dtype), tested, invert=invert):
        return torch.isin(densified(elements, "isin", "it is True at unstored entries"), tested, invert=invert)
    return SparseTensor(elements.pattern, at_entries(elements.pattern, lambda x: torch.isin(x, tested, invert=invert), elements.values))


def _elements(elements: Any) -> torch.Tensor:
    """A vector of the values that occur in a tensor, possibly with repetitions; for a sparse tensor, its stored values and 0."""
    if not isinstance(elements, SparseTensor):
        return torch.as_tensor(elements)
    values = values_of(elements)
    return torch.cat([values, values.new_zeros(1)]) if len(values) < elements.numel() else values


# ---- losses and distances of two sparse tensors, or of a sparse and a dense tensor


def _dense_loss(name: str, options: str = "``reduction``", shown: str = "") -> Callable[..., Any]:
    """A loss of a sparse and a dense tensor, computed densely: its intermediate values are dense in any case."""
    torch_loss = getattr(functional, name)

    def function(input: Any, target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if is_sparse(input) and is_sparse(target):
            raise UnsupportedError(f"{name} of two sparse tensors: make one dense with .to_dense()")
        return torch_loss(densified(input, name), densified(target, name), *args, **kwargs)

    return with_name(
        function,
        name,
        f"""torch.nn.functional.{name} of a sparse and a dense tensor; the sparse one is made dense.

    Args:
        input: a tensor, sparse or dense.
        target: a tensor, sparse if ``input`` is dense.
        *args, **kwargs: {options}, as in torch.nn.functional.

    Returns:
        A dense tensor.

    Raises:
        OperandError: an operand is not a tensor, or an argument is unknown.
        RuntimeError: the shapes do not broadcast, or the data type is not supported.
        UnsupportedError: both tensors are sparse; or within ``ns.strict()``, because a tensor is made dense.

    """
        + (
            f""">>> A, target = ns.from_torch(torch.tensor([0.0, 1.0])), torch.tensor([0.5, 1.0])
    >>> ns.{name}(A, target, reduction="none")
    tensor({shown})
    """
            if shown
            else ""
        ),
    )


def _difference_loss(name: str) -> Callable[..., Any]:
    """A loss that depends only on the difference and is 0 for equal values; computed at the union of the sparse tensors' entries."""
    function, dense_loss = getattr(functional, name), _dense_loss(name)
    signature = inspect.signature(function)

    def loss(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(input, target, *args, **kwargs).arguments
        options = {key: value for key, value in given.items() if key not in ("input", "target") and value is not None}
        reduction = options.pop("reduction", "mean")
        if not options.keys() <= {"delta", "beta"} or reduction not in ("mean", "sum", "none"):
            unsupported = ", ".join([f"{key}=" for key in options] + [f"reduction={reduction!r}"])
            raise UnsupportedError(
                f"{unsupported} of {name}: use reduction='mean', 'sum' or 'none', and weigh the losses of reduction='none'"
            )
        if not (is_sparse(input) and is_sparse(target)):
            return dense_loss(input, target, reduction=reduction, **options)
        if tuple(input.shape) != tuple(target.shape):
            raise SizeError(f"{name} of shapes {tuple(input.shape)} and {tuple(target.shape)}: they must be the same")
        if not is_sparse(gap := sub(input, target)):  # one of the formats stores every entry
            return function(gap, torch.zeros_like(gap), reduction=reduction, **options)
        losses = at_entries(
            gap.pattern, lambda values: function(values, values.new_zeros(()).expand_as(values), reduction="none", **options), gap.values
        )
        result = gap.with_values(losses)
        return result if reduction == "none" else average(result) if reduction == "mean" else total(result)

    return with_name(
        loss, name, f"torch.nn.functional.{name}. For two sparse tensors it takes O(nnz), and is sparse with reduction='none'."
    )


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    """The cosine similarity of vectors along a dimension of the broadcast shape.

    Args:
        x1: a tensor of floating-point values, sparse or dense.
        x2: a tensor that broadcasts with ``x1``.
        dim: the dimension.
        eps: the smallest norm of a vector; smaller norms are replaced by it.

    Returns:
        A dense tensor without the dimension ``dim``.

    Raises:
        OperandError: an operand is not a tensor, or ``dim`` is not an integer.
        RangeError: the broadcast shape has no such dimension.
        SizeError: the tensors do not broadcast.
        UnsupportedError: the values are integers.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> ns.cosine_similarity(A, torch.tensor([1.0, 1.0]), dim=0)
    tensor([0.9899, 0.0000])
    """
    shape = broadcast_shape("cosine_similarity", x1.shape, x2.shape)
    at = normalize_dim(dim, len(shape))
    dtype = result_type((t.dtype, 1) for t in (x1, x2))
    first, second = (t.to(dtype).reshape((1,) * (len(shape) - t.ndim) + tuple(t.shape)) for t in (x1, x2))
    lengths = [_length(t, at, shape[at]).clamp_min(eps) for t in (first, second)]
    return strided(total(mul(first, second), at)) / (lengths[0] * lengths[1])


def _length(tensor: Any, dim: int, size: int) -> Any:
    """The Euclidean norm along a dimension after broadcasting that dimension to a size."""
    length = norm(tensor, 2, dim) if isinstance(tensor, SparseTensor) else torch.linalg.vector_norm(tensor, 2, dim)
    return length if tensor.shape[dim] == size else length * size**0.5


def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The norm of the difference of two tensors.

    Args:
        input: a tensor of floating-point values, sparse or dense.
        other: a tensor that broadcasts with ``input``, or a number.
        p: the order of the norm; not negative if both operands are sparse.

    Returns:
        A dense tensor without dimensions.

    Raises:
        SizeError: the shapes do not broadcast.
        UnsupportedError: both operands are sparse, and ``p`` is negative or the values are integers.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> ns.dist(A, 2 * A)
    tensor(5.)
    """
    gap = sub(input, other)
    return norm(gap, p) if isinstance(gap, SparseTensor) else torch.linalg.vector_norm(gap, p)


def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = None) -> torch.Tensor:
    """The Euclidean distance of each row of one matrix from each row of another.

    It is computed from the matrix product, as torch does for many rows. In float32, distances below about 1e-3 of the rows'
    norms are lost to rounding.

    Args:
        x1: a matrix of shape (m, k), sparse or dense.
        x2: a matrix of shape (n, k), sparse or dense.
        p: the order of the norm; only 2 is supported.
        compute_mode: has no effect.

    Returns:
        A dense tensor of shape (m, n).

    Raises:
        OperandError: an operand is not a tensor.
        SizeError: an operand is not a matrix, or the rows differ in size.
        UnsupportedError: ``p`` is not 2.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    >>> ns.cdist(A, A)
    tensor([[0., 5.],
            [5., 0.]])
    """
    if p != 2:
        raise UnsupportedError(f"cdist with p={p} of a SparseTensor: use p=2, or .to_dense()")
    if x1.ndim != 2 or x2.ndim != 2:
        raise SizeError(f"cdist of {x1.ndim}- and {x2.ndim}-dimensional tensors: it takes sparse matrices")
    check_inner("cdist", x1, x2, 1, 1)
    with torch.autocast("cpu", enabled=False):  # as in torch, since differences of large squares cancel
        product = einsum("ik,jk->ij", x1, x2, format="dense")
        first, second = (total(mul(t, t), 1) for t in (x1, x2))
        return power((first[:, None] + second - 2 * product).clamp_min(0), 0.5)


BINARY: dict[str, Callable[..., Any]] = {
    "remainder": _quotient("remainder", "The remainder of a division, with the sign of the divisor", "[0, 1, 1]"),
    "fmod": _quotient("fmod", "The remainder of a division, with the sign of the dividend", "[ 0,  1, -1]"),
    "floor_divide": _quotient("floor_divide", "The quotient, rounded down", "[ 0,  3, -4]"),
    "bitwise_left_shift": _quotient(
        "bitwise_left_shift", "Shift the bits of integers to the left: input * 2**other", "[  0,  28, -28]", ""
    ),
    "bitwise_right_shift": _quotient("bitwise_right_shift", "Shift the bits of integers to the right", "[ 0,  1, -2]", ""),
    "div": div,
    "isclose": isclose,
    "isin": isin,
    "masked_fill": masked_fill,
    **{name: _difference_loss(name) for name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")},
    "binary_cross_entropy": _dense_loss("binary_cross_entropy", "``weight`` and ``reduction``"),
    "binary_cross_entropy_with_logits": _dense_loss(
        "binary_cross_entropy_with_logits", "``weight``, ``reduction`` and ``pos_weight``", "[0.6931, 0.3133]"
    ),
    "cross_entropy": _dense_loss("cross_entropy", "``weight``, ``ignore_index``, ``reduction`` and ``label_smoothing``"),
    "kl_div": _dense_loss("kl_div", "``reduction`` and ``log_target``", "[-0.3466, -1.0000]"),
    "poisson_nll_loss": _dense_loss("poisson_nll_loss", "``log_input``, ``full``, ``eps`` and ``reduction``", "[1.0000, 1.7183]"),
    "cdist": cdist,
    "cosine_similarity": cosine_similarity,
    "dist": dist,
}
