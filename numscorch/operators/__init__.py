"""The table of operators: what numscorch.*, torch.* and methods do to SparseTensors, by torch's names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, update_wrapper
from typing import Any

import torch
from torch.nn import functional

from ..compute.gradients import attached
from ..convert.dense import has_torch_layout
from ..errors import UnsupportedError
from ..ir.format import COO, sorted_format
from ..tensors.parameter import SparseParameter, unwrapped
from ..tensors.sparse_tensor import FUNCTIONS, OPERATORS, SparseTensor, beside_programs
from .arguments import checked
from .attributes import ATTRIBUTES
from .bits import BITWISE
from .bounds import BOUNDS
from .distances import DISTANCES
from .elementwise import NAMED, is_sparse, mul
from .gathering import GATHERING, getitem, setitem
from .in_place import in_place_of
from .indexing import diagonal, index_select, narrow, select, tril, triu
from .initial import INITIAL
from .moves import MOVES
from .objects import OBJECTS, contains, iterated
from .pairs import PAIRS
from .pieces import PIECES
from .products import PRODUCT_OPERATORS, matmul, multi_dot, sampled_addmm, sparse_mm
from .quotients import QUOTIENTS
from .rearrangement import rearrange
from .rearranging import cat, expand, flatten, reshape, squeeze, transpose, unsqueeze
from .reducing import REDUCING, linalg_norm, vector_norm
from .searches import SEARCHES, masked_getitem, masked_setitem
from .stacking import stack
from .statistics import STATISTICS
from .torch_names import INDEX_ARRAYS, TO_LAYOUTS
from .turns import TURNS
from .unary import dropout, torchs


def _permute(input: SparseTensor, *dims: Any, **named: Any) -> SparseTensor:
    """The tensor with its dimensions in another order; it shares every array."""
    return input.permute(*dims, **named)


def _dropout(input: SparseTensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, train: bool | None = None) -> Any:
    """torch.nn.functional.dropout of the stored entries, and torch.dropout, which calls it ``train``."""
    return dropout(input, p, training if train is None else train, inplace)


ARRANGING: dict[str, Callable[..., Any]] = {
    "cat": cat,
    "concat": cat,
    "diagonal": diagonal,
    "dropout": _dropout,
    "expand": expand,
    "flatten": flatten,
    "index_select": index_select,
    "narrow": narrow,
    "permute": _permute,
    "rearrange": rearrange,
    "reshape": reshape,
    "select": select,
    "squeeze": squeeze,
    "stack": stack,
    "swapaxes": transpose,
    "swapdims": transpose,
    "t": SparseTensor.t,
    "transpose": transpose,
    "tril": tril,
    "triu": triu,
    "unsqueeze": unsqueeze,
    "view": reshape,
}
CASTS = {
    name: getattr(torch, dtype)
    for name, dtype in {
        "float": "float32",
        "double": "float64",
        "half": "float16",
        "bfloat16": "bfloat16",
        "char": "int8",
        "byte": "uint8",
        "short": "int16",
        "int": "int32",
        "long": "int64",
        "bool": "bool",
        "cfloat": "complex64",
        "cdouble": "complex128",
    }.items()
}
BESIDES = {
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "greater": "gt",
    "less": "lt",
    "not_equal": "ne",
}


def _flipped(operator: Callable[..., Any]) -> Callable[..., Any]:
    return lambda left, right: operator(right, left)


def _cast(dtype: torch.dtype) -> Callable[..., Any]:
    def cast(input: SparseTensor, memory_format: Any = None) -> SparseTensor:
        return input.to(dtype)

    cast.__doc__ = f"The tensor with {dtype} values; itself if it has such."
    return cast


TABLES = {
    **NAMED,
    **BOUNDS,
    **QUOTIENTS,
    **PAIRS,
    **SEARCHES,
    **TURNS,
    **REDUCING,
    **STATISTICS,
    **DISTANCES,
    **ARRANGING,
    **MOVES,
    **PIECES,
    **GATHERING,
    **OBJECTS,
    **ATTRIBUTES,
    **TO_LAYOUTS,
    **INDEX_ARRAYS,
}
PLAIN = (SparseTensor, int, float, bool, type(None))
DIRECT = ("einsum", "matmul", "mm", "mv", "bmm")  # called most often; any of their operands may be sparse
PYTHONS = ("add", "sub", "mul", "pow", "gt", "ge", "lt", "le", "eq", "ne")


TABLES.update({name: _cast(dtype) for name, dtype in CASTS.items()})
TABLES.update({other: TABLES[name] for other, name in BESIDES.items()})
TABLES.update(in_place_of(TABLES))
OPERATORS.update({name: function if name in DIRECT else checked(name, function) for name, function in PRODUCT_OPERATORS.items()})
OPERATORS.update({name: beside_programs(checked(name, implementation)) for name, implementation in TABLES.items()})


def entries_of(named: Mapping[str, Callable[..., Any]]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """For each name, torch's functions and its method of tensors, where there are such.

    >>> list(entries_of({"softmax": len})) == [torch.softmax, torch.Tensor.softmax, functional.softmax]
    True
    """
    homes = (torch, torch.Tensor, functional)
    return {getattr(home, name): function for name, function in named.items() for home in homes if callable(getattr(home, name, None))}


def _matmul_method(input: Any, other: Any) -> Any:
    """``x @ A``, but for programs that torch compiles, where ``A @ x`` arrives with its operands exchanged.

    Raises:
        UnsupportedError: while compiling, since the order isn't known.
    """
    if torch.compiler.is_compiling():
        raise UnsupportedError("torch.compile exchanges the operands of A @ x: write torch.matmul(A, x), or torch.matmul(x, A)")
    return matmul(input, other)


FUNCTIONS.update(entries_of(OPERATORS))
FUNCTIONS.update(
    {
        **{getattr(torch.Tensor, f"__{name}__"): OPERATORS[name] for name in PYTHONS},
        torch.Tensor.matmul: _matmul_method,
        torch.Tensor.where: SparseTensor.where,
        torch.Tensor.__matmul__: _matmul_method,
        torch.Tensor.__radd__: _flipped(OPERATORS["add"]),
        torch.Tensor.__rsub__: _flipped(OPERATORS["sub"]),
        torch.Tensor.__rmul__: _flipped(OPERATORS["mul"]),
        torch.Tensor.__truediv__: OPERATORS["div"],
        torch.Tensor.__rtruediv__: _flipped(OPERATORS["div"]),
        torch.Tensor.__rmatmul__: _flipped(matmul),
        torch.Tensor.sparse_mask: lambda input, mask: mul(mask.with_values(torch.ones_like(mask.values)), input),
        torch.Tensor.__rmod__: _flipped(OPERATORS["remainder"]),
        torch.Tensor.__floordiv__: OPERATORS["floor_divide"],
        torch.Tensor.__rfloordiv__: _flipped(OPERATORS["floor_divide"]),
        torch.Tensor.__lshift__: OPERATORS["bitwise_left_shift"],
        torch.Tensor.__rshift__: OPERATORS["bitwise_right_shift"],
        **{getattr(torch.Tensor, f"__{name}__"): function for name, function in BITWISE.items()},
        **{getattr(torch.Tensor, f"__r{name}__"): _flipped(BITWISE[name]) for name in ("and", "or", "xor")},
        torch.Tensor.__getitem__: masked_getitem,
        torch.Tensor.__setitem__: masked_setitem,
        torch.linalg.diagonal: lambda A, *, offset=0, dim1=-2, dim2=-1: OPERATORS["diagonal"](A, offset, dim1, dim2),
        torch.linalg.matmul: matmul,
        torch.linalg.matrix_power: OPERATORS["matrix_power"],
        torch.linalg.multi_dot: multi_dot,
        torch.linalg.norm: linalg_norm,
        torch.linalg.vector_norm: vector_norm,
        torch.sparse.mm: checked("sparse.mm", sparse_mm),
        torch.sparse.sampled_addmm: sampled_addmm,
        torch.sparse.softmax: OPERATORS["softmax"],
        torch.sparse.log_softmax: OPERATORS["log_softmax"],
        torch._sparse_sum: lambda input, dim=None, *, dtype=None: OPERATORS["sum"](input, dim, dtype=dtype),  # of torch.sparse.sum
        torch.sparse.addmm: OPERATORS["addmm"],
        **INITIAL,
    }
)
PUBLIC = frozenset(name for name in OPERATORS if callable(getattr(torch, name, None)))
OPERATORS["getitem"], OPERATORS["setitem"], OPERATORS["iter"] = beside_programs(getitem), beside_programs(setitem), iterated
OPERATORS["contains"] = beside_programs(contains)
OPERATORS.update({name: beside_programs(implementation) for name, implementation in BITWISE.items()})


def _sparse_in(values: Any) -> Iterator[Any]:
    """The sparse tensors among arguments, and in lists of them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _sparse_in(value)
        elif is_sparse(value) or isinstance(value, SparseParameter):
            yield value


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether the first one is a SparseTensor, and all others strided tensors, numbers or such: nothing has to be converted."""
    if not values or type(values[0]) is not SparseTensor:
        return False
    return all(type(v) in PLAIN or (type(v) is torch.Tensor and v.layout is torch.strided) for v in values)


def _ours(value: Any) -> Any:
    """torch's sparse tensors as SparseTensors, in lists too."""
    if isinstance(value, list | tuple) and any(True for _ in _sparse_in(value)):
        return type(value)(map(_ours, value))
    return attached(value) if is_sparse(value) and not isinstance(value, SparseTensor) else unwrapped(value)


def _theirs(result: Any) -> Any:
    """A result as torch's users have it: in a layout of torch; several, each so."""
    if type(result) is tuple:
        return tuple(map(_theirs, result))
    if not isinstance(result, SparseTensor):
        return result
    result = result.to(sorted_format(result.format))
    return (result if has_torch_layout(result.pattern) else result.to(COO(result.ndim))).to_torch()


@lru_cache(maxsize=1024)
def public(name: str) -> Callable[..., Any]:
    """A function of ours under torch's name: torch's own wherever nothing is sparse; torch's sparse tensors give such results."""
    ours = OPERATORS[name]
    theirs = torchs(name) if name in PUBLIC else inspect.unwrap(ours)  # what torch lacks takes dense tensors as well

    def function(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and _is_plain(args):
            return ours(*args)
        sparse = list(_sparse_in((*args, *kwargs.values())))
        if not sparse:
            return theirs(*args, **kwargs)
        result = ours(*map(_ours, args), **{key: _ours(value) for key, value in kwargs.items()})
        return _theirs(result) if all(isinstance(t, torch.Tensor) for t in sparse) else result

    update_wrapper(function, ours, assigned=("__doc__",), updated=())
    function.__name__ = function.__qualname__ = name
    return function
