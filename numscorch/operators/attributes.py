"""Attributes and methods of torch.Tensor: data type, memory, autograd state, iteration, and constructors such as ``zeros_like``.

Also attributes and methods of torch's sparse tensors: the layout, its index arrays, and conversions between layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from ..convert.conversions import to_format
from ..convert.values import values_of
from ..errors import MissingError, OperandError, SizeError, UnsupportedError
from ..ir.format import sorted_format
from ..tensors.dynamo import constant
from ..tensors.packing import at_entries
from ..tensors.pattern import Pattern
from ..tensors.sparse_tensor import OPERATORS, PROPERTIES, SparseTensor
from ..tensors.suggestions import type_name
from ..tensors.torch_layouts import BY_ROWS, COMPRESSED, TorchLayout, compressed_arrays, format_of, layout_of
from ..tensors.validate import disorder
from .naming import with_name
from .reshaping import transpose


def _transposition(name: str, is_conjugate: bool, matrices: bool) -> Callable[[SparseTensor], SparseTensor]:
    def attribute(input: SparseTensor) -> SparseTensor:
        if input.ndim < 2 or (matrices and input.ndim != 2):
            raise SizeError(
                f"{name} of a {input.ndim}-dimensional tensor: it takes {'' if matrices else 'batches of '}matrices, permute any shape"
            )
        view = transpose(input, -2, -1)
        return view.with_values(view.values.conj()) if is_conjugate and input.dtype.is_complex else view

    return with_name(
        attribute,
        name,
        f"""Swap the last two dimensions{", and conjugate complex entries" if is_conjugate else ""}; index arrays are shared.

    Args:
        input: a {"matrix" if matrices else "matrix, or a batch of matrices"}.

    Returns:
        A SparseTensor in the transposed format, such as CSC for CSR.

    Raises:
        SizeError: the tensor has {"not" if matrices else "fewer than"} two dimensions.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.tensor([[1 + 2j, 3j]])).{name}.values
    tensor({"[1.-2.j, 0.-3.j]" if is_conjugate else "[1.+2.j, 0.+3.j]"})
    """,
    )


mT, mH, H = _transposition("mT", False, False), _transposition("mH", True, False), _transposition("H", True, True)


def register_hook(input: SparseTensor, hook: Callable[[SparseTensor], SparseTensor | None]) -> Any:
    """Call a function with the tensor's gradient as soon as it is computed; the gradient is a SparseTensor of the same pattern.

    Args:
        input: a tensor whose values require grad.
        hook: called with the gradient; returns a replacement of the same pattern, or None to leave it unchanged.

    Returns:
        A handle; its ``remove()`` unregisters the hook.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> A.values.requires_grad_()
    tensor([1., 1.], requires_grad=True)
    >>> handle = A.register_hook(lambda gradient: 2 * gradient)
    >>> A.sum().backward()
    >>> A.grad.values
    tensor([2., 2.])
    """
    pattern = input.pattern

    def call_hook(gradient: torch.Tensor) -> torch.Tensor | None:
        replacement = hook(SparseTensor(pattern, gradient))
        if replacement is not None and not (isinstance(replacement, SparseTensor) and pattern.stores_as(replacement.pattern)):
            raise UnsupportedError("the hook must return None or a gradient with the tensor's pattern: use gradient.with_values(...)")
        return None if replacement is None else replacement.values

    return input.values.register_hook(call_hook)


def _stride(input: SparseTensor, dim: int | None = None) -> Any:
    raise UnsupportedError(f"a SparseTensor has no strides: its format is {input.format}; use A.to_dense().stride()")


def _type_as(input: Any, other: Any) -> Any:
    return input.to(other.dtype)


def _type(input: SparseTensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Without ``dtype``, torch's name of the values' type; else the tensor converted to ``dtype``, a data type or its name."""
    return input.values.type() if dtype is None else input.with_values(input.values.type(dtype))


def _imag(input: SparseTensor) -> SparseTensor:
    if not input.dtype.is_complex:
        raise MissingError(f"imag of {input.dtype} values: only complex tensors have it")  # an AttributeError, so that hasattr works
    return input.with_values(input.values.imag)


def _new_tensor(name: str) -> Callable[..., torch.Tensor]:
    def new(input: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return getattr(input.values, name)(*args, **kwargs)

    return with_name(new, name, f"torch's {name}: a dense tensor with the values' data type.")


def share_memory_(input: SparseTensor) -> SparseTensor:
    """Move the values and index arrays to shared memory; returns the tensor itself.

    >>> import numscorch as ns
    >>> share_memory_(ns.from_torch(torch.eye(2))).is_shared()
    True
    """
    for array in _arrays(input):
        array.share_memory_()
    return input


def _arrays(input: SparseTensor) -> list[torch.Tensor]:
    return [input._values, *(array for level in input.pattern.arrays for array in level)]


def item(input: SparseTensor) -> Any:
    """The single entry as a Python number.

    Raises:
        SizeError: the tensor does not have exactly one entry.
    """
    if prod(input.shape) != 1:
        has = f"it has {prod(input.shape)} entries, not one"
        raise SizeError(f"item() of a tensor of shape {tuple(input.shape)}: {has}; A.any(), A.all() or A.nnz tells whether there are some")
    return input.to_dense().item()


def contains(input: SparseTensor, element: Any) -> bool:
    """Whether an entry, stored or not, equals a number or the corresponding entry of a tensor. O(nnz) for numbers.

    Raises:
        OperandError: ``element`` is neither a number nor a tensor.

    >>> import numscorch as ns
    >>> A = ns.from_torch(torch.eye(2))
    >>> 0 in A, 1 in A, 2 in A
    (True, True, False)
    """
    if not isinstance(element, torch.Tensor | SparseTensor | int | float | complex):
        raise OperandError(f"`in` a SparseTensor takes a number or a tensor, not {type(element).__name__}")
    if getattr(element, "ndim", 0):
        return bool(OPERATORS["eq"](input, element).any())
    number = element if isinstance(element, int | float | complex) else element.item()
    return (number == 0 and input.nnz < prod(input.shape)) or bool((values_of(input) == number).any())


def _like(make: Callable[..., torch.Tensor], values: str, shown: str) -> Callable[..., SparseTensor]:
    def like(
        input: SparseTensor,
        *args: Any,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        requires_grad: bool = False,
        memory_format: Any = None,
        **kwargs: Any,
    ) -> Any:
        if layout is torch.strided:
            example = input._values.new_zeros(()).expand(input.shape)
            return make(example, *args, dtype=dtype, memory_format=torch.contiguous_format, requires_grad=requires_grad, **kwargs)
        input = input if layout is None else to_sparse(input, layout=layout)
        values = at_entries(input.pattern, lambda values: make(values, *args, dtype=dtype, **kwargs), input._values.detach())
        return SparseTensor(input.pattern, values.requires_grad_() if requires_grad else values)

    return with_name(
        like,
        make.__name__,
        f"""A tensor with the pattern of another one, whose stored entries are {values}.

    Args:
        input: a SparseTensor.
        *args: {"``fill_value``, the number" if values == "one number" else "no further arguments"}.
        dtype: the data type; by default, that of ``input``.
        layout: a layout of torch, whose format the result gets; ``torch.strided`` makes a dense tensor with values at all entries.
        requires_grad: whether the values require grad.
        memory_format: has no effect, because values are one-dimensional.
        **kwargs: further keyword arguments of torch's {make.__name__}.

    Returns:
        A SparseTensor, or a dense tensor with ``layout=torch.strided``.

    Raises:
        OperandError: an argument is missing, or unknown to torch's {make.__name__}.
        RuntimeError: torch's {make.__name__} does not support the data type, or values that are not floating-point would require grad.
        UnsupportedError: the layout has blocks, or ``device`` is "meta".

    >>> A = ns.from_coo([[0, 1], [1, 0]], torch.tensor([0.5, 0.25]), (2, 2), format=ns.CSR)
    >>> ns.{make.__name__}{shown}
    """,
    )


LIKE = {
    f"{name}_like": _like(getattr(torch, f"{name}_like"), values, shown)
    for name, values, shown in (
        ("empty", "uninitialized", "(A).values.shape\n    torch.Size([2])"),
        ("full", "one number", "(A, 3).values\n    tensor([3., 3.])"),
        ("ones", "1", "(A).values\n    tensor([1., 1.])"),
        ("rand", "uniform random numbers from [0, 1)", "(A).values.shape\n    torch.Size([2])"),
        ("randn", "standard normal random numbers", "(A).values.shape\n    torch.Size([2])"),
        ("zeros", "0", "(A).values\n    tensor([0., 0.])"),
    )
}


class VectorEntry(torch.Tensor):
    """An entry of a vector of integers or booleans; torch functions treat it as a plain tensor.

    In ``D[v]``, torch unpacks a vector ``v`` into a tuple of indices if it has fewer than 32 entries and they are plain tensors.
    If the entries belong to a subclass of torch.Tensor, torch dispatches on ``v`` instead.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_plain(args), **_plain(kwargs or {}))


def _plain(argument: Any) -> Any:
    """The arguments of a function, with entries converted to plain tensors."""
    match argument:
        case VectorEntry():
            with torch._C.DisableTorchFunctionSubclass():
                return argument.as_subclass(torch.Tensor)
        case tuple() | list() if type(argument) in (tuple, list):
            return type(argument)(map(_plain, argument))
        case dict():
            return {key: _plain(value) for key, value in argument.items()}
        case _:
            return argument


def iterated(input: SparseTensor) -> Iterator[Any]:
    """Iterate over the slices along the first dimension."""
    if not input.ndim:
        raise SizeError("iteration over a tensor without dimensions")
    slices = (input[at] for at in range(input.shape[0]))
    is_index = input.ndim == 1 and not (input.dtype.is_floating_point or input.dtype.is_complex)
    return (entry.as_subclass(VectorEntry) for entry in slices) if is_index else slices


# ---- layouts of torch


def to_sparse(
    input: SparseTensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: Sequence[int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """Convert to the format of one of torch's layouts, COO by default; returns the input if it has that format.

    Args:
        sparse_dim: the number of COO's sparse dimensions; the others are dense.
        layout: ``torch.sparse_coo``, ``sparse_csr``, ``sparse_csc``, ``sparse_bsr`` or ``sparse_bsc``.
        blocksize: (rows, columns) of blocks in ``sparse_bsr`` and ``sparse_bsc``.
        dense_dim: the number of trailing dense dimensions.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(4)).to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)).format.name
    'BCSR(2, 2)'
    """
    layout = torch.sparse_coo if layout is None else layout
    if sparse_dim is not None and (layout is not torch.sparse_coo or dense_dim is not None):
        raise UnsupportedError("to_sparse(sparse_dim) applies to COO only: give dense_dim= for other layouts")
    dense = input.ndim - sparse_dim if sparse_dim is not None else dense_dim or 0
    return to_format(input, format_of(layout, input.ndim, blocksize, dense))


def own_layout(A: SparseTensor) -> TorchLayout | None:
    """The torch layout that stores the same arrays as the tensor's format, or None; rows may be unordered, but have no free slots."""
    return _layout_of(A.pattern)


@constant
def _layout_of(pattern: Pattern) -> TorchLayout | None:
    return pattern.remember("torch layout", lambda: None if pattern.format.has_gaps else layout_of(sorted_format(pattern.format)))


def layout(A: SparseTensor) -> torch.layout:
    """torch's layout for this format; ``torch.strided`` for dense formats.

    Raises:
        AttributeError: torch has no such layout; ``hasattr`` is False.

    >>> import numscorch as ns
    >>> ns.from_torch(torch.eye(2)).layout, hasattr(ns.from_torch(torch.eye(2), ns.DCSR), "layout")
    (torch.sparse_csr, False)
    """
    if A.format.is_dense:
        return torch.strided
    if (stored_layout := own_layout(A)) is None:
        suggestion = "A.format says how it is stored, and .to_sparse() and .to_sparse_csr() convert it"
        raise AttributeError(f"torch has no layout for {A.format.name}: {suggestion}")
    return stored_layout.layout


def _has_layout(wanted: torch.layout) -> Callable[[SparseTensor], bool]:
    return lambda A: (stored_layout := own_layout(A)) is not None and stored_layout.layout is wanted and not A.format.is_dense


def _dimensions(A: SparseTensor, what: str) -> TorchLayout:
    """The tensor's torch layout, with the numbers of sparse and dense dimensions; raises UnsupportedError if there is none."""
    if (stored_layout := own_layout(A)) is None:
        raise UnsupportedError(f"{what} of {A.format.name}, for which torch has no layout: A.format says how each dimension is stored")
    return stored_layout


def _array(name: str, by_rows: bool, at: int) -> Callable[[SparseTensor], torch.Tensor]:
    """An accessor for an index array of compressed layouts."""

    def array(input: SparseTensor) -> torch.Tensor:
        stored_layout = own_layout(input)
        if stored_layout is None or stored_layout.layout not in COMPRESSED or (stored_layout.layout in BY_ROWS) != by_rows:
            kind, suggestion = ("CSR or BSR", ".to_sparse_csr()") if by_rows else ("CSC or BSC", ".to_sparse_csc()")
            raise UnsupportedError(f"{name} of {input.format.name}, which is not {kind}: convert it with {suggestion}, or use .indices()")
        return compressed_arrays(input.pattern, stored_layout)[at].clone()

    return with_name(array, name, f"A copy of torch's {name} in the order of the values. O(nnz).")


def stored(A: SparseTensor) -> int:
    """torch's ``_nnz``: the number of stored coordinates; in a batch, those of one matrix. A block or a dense slice counts once."""
    stored_layout = own_layout(A)
    if stored_layout is None or A.format.is_dense:
        return A.nnz
    if stored_layout.layout is torch.sparse_coo:
        return A.pattern.counts[stored_layout.sparse - 1]
    return compressed_arrays(A.pattern, stored_layout)[1].shape[-1]


PROPERTIES.update(
    {
        "__qualname__": type_name,
        "H": H,
        "data": lambda input: SparseTensor(input.pattern, input.values.data),
        "grad_fn": lambda input: input.values.grad_fn,
        "imag": _imag,
        "is_cpu": lambda input: True,
        "is_cuda": lambda input: False,
        "is_leaf": lambda input: input.values.is_leaf,
        "is_meta": lambda input: False,
        "is_quantized": lambda input: False,
        "itemsize": lambda input: input.values.itemsize,
        "mH": mH,
        "mT": mT,
        "nbytes": lambda input: input.values.nbytes + sum(array.nbytes for level in input.pattern.arrays for array in level),
        "real": lambda input: input.with_values(input.values.real),
        "retains_grad": lambda input: input.values.retains_grad,
        "layout": layout,
        "is_sparse": _has_layout(torch.sparse_coo),
        "is_sparse_csr": _has_layout(torch.sparse_csr),
        "_nnz": lambda A: partial(stored, A),
    }
)


def _attribute(name: str, function: Callable[..., Any], texts: Sequence[str], more: str = "") -> Callable[..., Any]:
    """A function of one tensor; ``texts``: summary, description of the result, call and result of an example for the tensor A."""
    return with_name(
        function,
        name,
        f"""{texts[0]}.

    Args:
        input: a SparseTensor.{more}

    Returns:
        {texts[1]}.

    Raises:
        OperandError: there are further arguments.

    >>> A = ns.from_torch(torch.eye(2))
    >>> {texts[2]}
    {texts[3]}
    """,
    )


ATTRIBUTES: dict[str, Callable[..., Any]] = {
    **{name: _new_tensor(name) for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")},
    **LIKE,
    "adjoint": mH,
    "clone": _attribute(
        "clone",
        lambda input, *, memory_format=None: SparseTensor(input.pattern, input._values.clone()),
        (
            "Copy the values; the index arrays are shared, because they never change",
            "A SparseTensor; gradients flow to ``input``",
            "ns.clone(A).values.data_ptr() == A.values.data_ptr()",
            "False",
        ),
        "\n        memory_format: has no effect, because values are one-dimensional.",
    ),
    "contiguous": lambda input, *, memory_format=None: input,
    "cpu": lambda input: input,
    "cuda": lambda input, *args, **kwargs: input.to("cuda"),
    "detach": _attribute(
        "detach",
        lambda input: SparseTensor(input.pattern, input._values.detach()),
        (
            "The tensor without its autograd history; it shares the values and the index arrays",
            "A SparseTensor whose values do not require grad",
            "ns.detach(ns.ones_like(A, requires_grad=True)).requires_grad",
            "False",
        ),
    ),
    "element_size": lambda input: input.values.element_size(),
    "get_device": _attribute(
        "get_device", lambda input: -1, ("The number of the device: -1, which is the CPU in torch", "-1", "ns.get_device(A)", "-1")
    ),
    "is_complex": _attribute(
        "is_complex",
        lambda input: input.dtype.is_complex,
        ("Whether the values are complex", "True or False", "ns.is_complex(A), ns.is_complex(1j * A)", "(False, True)"),
    ),
    "is_contiguous": lambda input, memory_format=None: True,
    "is_floating_point": _attribute(
        "is_floating_point",
        lambda input: input.dtype.is_floating_point,
        (
            "Whether the values are real floating-point numbers",
            "True or False",
            "ns.is_floating_point(A), ns.is_floating_point(A.long())",
            "(True, False)",
        ),
    ),
    "is_shared": lambda input: all(array.is_shared() for array in _arrays(input)),
    "is_signed": _attribute(
        "is_signed",
        lambda input: input.dtype.is_signed,
        ("Whether the data type of the values has a sign", "True or False", "ns.is_signed(A), ns.is_signed(A.bool())", "(True, False)"),
    ),
    "item": item,
    "ndimension": lambda input: input.ndim,
    "nelement": lambda input: prod(input.shape),
    "numel": _attribute(
        "numel",
        lambda input: prod(input.shape),
        ("The number of entries, stored or not", "An integer; ``A.nnz`` is the number of stored entries", "ns.numel(A), A.nnz", "(4, 2)"),
    ),
    "register_hook": register_hook,
    "retain_grad": lambda input: input.values.retain_grad(),
    "share_memory_": share_memory_,
    "stride": _stride,
    "tolist": lambda input: input.to_dense().tolist(),
    "type": _type,
    "type_as": _type_as,
    "to_sparse": to_sparse,
    "to_sparse_coo": lambda input: to_sparse(input),
    "to_sparse_csr": lambda input, dense_dim=None: to_sparse(input, layout=torch.sparse_csr, dense_dim=dense_dim),
    "to_sparse_csc": lambda input, dense_dim=None: to_sparse(input, layout=torch.sparse_csc, dense_dim=dense_dim),
    "to_sparse_bsr": lambda input, blocksize, dense_dim=None: to_sparse(
        input, layout=torch.sparse_bsr, blocksize=blocksize, dense_dim=dense_dim
    ),
    "to_sparse_bsc": lambda input, blocksize, dense_dim=None: to_sparse(
        input, layout=torch.sparse_bsc, blocksize=blocksize, dense_dim=dense_dim
    ),
    "crow_indices": _array("crow_indices", True, 0),
    "col_indices": _array("col_indices", True, 1),
    "ccol_indices": _array("ccol_indices", False, 0),
    "row_indices": _array("row_indices", False, 1),
    "sparse_dim": lambda input: _dimensions(input, "sparse_dim").sparse,
    "dense_dim": lambda input: _dimensions(input, "dense_dim").dense,
    "is_coalesced": lambda input: input.format.is_ordered and input.pattern.remember("disorder", lambda: disorder(input.pattern)) is None,
}
