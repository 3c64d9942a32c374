"""The operator table: implementations for SparseTensors, keyed by torch's names.

It serves the functions `numscorch.*`, torch's functions (through `__torch_function__`), and the methods of SparseTensor.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, update_wrapper, wraps
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from ..errors import UnsupportedError
from ..frontend.operator_forms import SYNONYMS
from ..programs import trees
from ..programs.gradients import attached
from ..programs.results import stored_as
from ..tensors.dynamo import OVERRIDABLE, correct_on_import, corrected
from ..tensors.graph_breaks import Shape, graph_break, traced
from ..tensors.parameter import SparseParameter, unwrapped
from ..tensors.sparse_tensor import OPERATORS, REFLECTED, TORCH_FUNCTIONS, SparseTensor
from .arguments import checked
from .attributes import ATTRIBUTES, contains, iterated
from .binary import BINARY
from .comparison import COMPARISON
from .elementwise import BITWISE, NAMED, is_sparse, mul
from .in_place import IN_PLACE, INITIAL, in_place_of, masked_getitem, masked_setitem, setitem
from .indexing import INDEXING, getitem
from .joining import JOINING, stack
from .naming import torchs, with_name
from .other import OTHER
from .products import PRODUCT_OPERATORS, matmul, multi_dot, sampled_addmm, sparse_mm
from .reducing import REDUCING
from .reshaping import RESHAPING
from .statistics import STATISTICS, linalg_norm, norm

CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "char": torch.int8,
    "byte": torch.uint8,
    "short": torch.int16,
    "int": torch.int32,
    "long": torch.int64,
    "bool": torch.bool,
    "cfloat": torch.complex64,
    "cdouble": torch.complex128,
}


def _in_programs(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as torch.compile sees it."""
    if name in OUTSIDE or name.endswith("_"):
        return graph_break(function)
    if name in OF_DESCRIPTIONS:
        return function
    of_dense = getattr(functional, name, None) or getattr(torch, name, None) or getattr(torch.Tensor, name, None)

    def shape(*args: Any, **kwargs: Any) -> torch.Size:
        tensors, named = pytree.tree_map_only(Shape, lambda sizes: torch.empty(sizes, device="meta"), (args, kwargs))
        return of_dense(*tensors, **named).shape  # type: ignore[misc]

    at_values = of_dense if name in NAMED or name in ("clone", "detach") else None
    at_values = (lambda values, *args: values.to(CASTS[name])) if name in CASTS else at_values
    return traced(name, None if of_dense is None else shape, at_values)(function)


def _flipped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda left, right: function(right, left)


def _cast(dtype: torch.dtype) -> Callable[..., Any]:
    def cast(input: SparseTensor, memory_format: Any = None) -> SparseTensor:
        return input.to(dtype)

    return with_name(cast, "cast", f"Convert the values to {dtype}; returns the input itself if its values are {dtype}.")


TABLES: dict[str, Callable[..., Any]] = {
    **NAMED,
    **BINARY,
    **REDUCING,
    **STATISTICS,
    **COMPARISON,
    **INDEXING,
    **JOINING,
    **RESHAPING,
    **OTHER,
    **IN_PLACE,
    **ATTRIBUTES,
    **{name: _cast(dtype) for name, dtype in CASTS.items()},
}
# Operators that no compiled program contains: the entries of their results depend on values, or they draw numbers, return Python objects
# that depend on values, or change tensors. Names that end with an underscore are such operators, too.
OUTSIDE = frozenset(
    (
        "allclose", "argwhere", "coalesce", "copy", "eliminate_zeros", "equal", "gather", "index_select", "isin", "item",
        "lobpcg", "masked_select", "nonzero", "pca_lowrank", "rand_like", "randn_like", "register_hook", "retain_grad",
        "repeat_interleave", "svd_lowrank", "take", "take_along_dim", "tolist", "topk",
    )
)  # fmt: skip
OF_DESCRIPTIONS = frozenset(
    (
        "dense_dim", "dim", "element_size", "get_device", "is_complex", "is_contiguous", "is_floating_point", "is_signed", "ndimension",
        "nelement", "numel", "sparse_dim",
    )
)  # fmt: skip
PLAIN_TYPES = (SparseTensor, int, float, bool, type(None))
DIRECT = ("einsum", "matmul", "mm", "mv", "bmm")  # hot operators whose arguments are not checked; any operand may be sparse


TABLES.update({other: TABLES[name] for other, name in SYNONYMS.items()})
TABLES.update(in_place_of(TABLES))
OPERATORS.update({name: function if name in DIRECT else checked(name, function, True) for name, function in PRODUCT_OPERATORS.items()})
OPERATORS.update({name: _in_programs(name, checked(name, implementation)) for name, implementation in TABLES.items()})


def entries_of(named: Mapping[str, Callable[..., Any]]) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Key implementations by torch's functions and Tensor methods instead of by their names; names that torch lacks are skipped.

    >>> list(entries_of({"softmax": len})) == [torch.softmax, torch.Tensor.softmax, functional.softmax]
    True
    """
    homes = (torch, torch.Tensor, functional)
    return {getattr(home, name): function for name, function in named.items() for home in homes if callable(getattr(home, name, None))}


_getitem_at_constants, _getitem_at_tensors = traced("getitem")(getitem), graph_break(getitem)


def _getitem(input: Any, key: Any) -> Any:
    """Select entries; tensors of indices and masks choose entries by their values, so no compiled program contains them."""
    has_tensors = any(isinstance(member, torch.Tensor | SparseTensor | list) for member in (key if isinstance(key, tuple) else (key,)))
    return (_getitem_at_tensors if has_tensors else _getitem_at_constants)(input, key)


def _matmul_method(input: Any, other: Any) -> Any:
    """Compute ``x @ A``.

    Raises:
        UnsupportedError: torch compiles, and this version of torch swaps the operands of ``A @ x``.
    """
    if torch.compiler.is_compiling() and not corrected["@"]:
        raise UnsupportedError("torch.compile swaps the operands of A @ x: write torch.matmul(A, x), or torch.matmul(x, A)")
    return matmul(input, other)


TORCH_FUNCTIONS.update(entries_of(OPERATORS))
TORCH_FUNCTIONS.update(
    {
        **{
            getattr(torch.Tensor, f"__{name}__"): OPERATORS[name]
            for name in ("add", "sub", "mul", "pow", "gt", "ge", "lt", "le", "eq", "ne")
        },
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
        torch.linalg.norm: checked("norm", linalg_norm),
        torch.linalg.vector_norm: checked(
            "norm", lambda x, ord=2, dim=None, keepdim=False, *, dtype=None: norm(x, ord, dim, keepdim, dtype)
        ),
        torch.sparse.mm: checked("sparse.mm", sparse_mm),
        torch.sparse.sampled_addmm: sampled_addmm,
        torch.sparse.softmax: OPERATORS["softmax"],
        torch.sparse.log_softmax: OPERATORS["log_softmax"],
        torch._sparse_sum: lambda input, dim=None, *, dtype=None: OPERATORS["sum"](input, dim, dtype=dtype),  # torch.sparse.sum calls it
        torch.sparse.addmm: OPERATORS["addmm"],
        **INITIAL,
    }
)
OVERRIDABLE.update(TORCH_FUNCTIONS)
IN_EXPORT = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "matmul", "neg": "neg", "abs": "abs"}
TORCH_FUNCTIONS.update({getattr(operator, name): OPERATORS[ours] for name, ours in IN_EXPORT.items()})  # strict export passes these
REFLECTED.update({function.__name__: call for function, call in TORCH_FUNCTIONS.items() if function.__name__.startswith("__r")})
PUBLIC = frozenset(name for name in OPERATORS if callable(getattr(torch, name, None)))
SPECIAL: dict[str, Callable[..., Any]] = {"setitem": setitem, "contains": contains, **BITWISE}
OPERATORS.update(getitem=_getitem, iter=iterated, **{name: graph_break(implementation) for name, implementation in SPECIAL.items()})


def _sparse_in(values: Any) -> Iterator[Any]:
    """Yield the sparse tensors among the arguments, including those in nested lists and tuples."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _sparse_in(value)
        elif is_sparse(value) or isinstance(value, SparseParameter):
            yield value


def _is_plain(values: Sequence[Any]) -> bool:
    """Whether the arguments need no conversion: a SparseTensor first, then SparseTensors, strided tensors, numbers or None."""
    if not values or type(values[0]) is not SparseTensor:
        return False
    for value in values:  # faster than all()
        if type(value) not in PLAIN_TYPES and (type(value) is not torch.Tensor or value.layout is not torch.strided):
            return False
    return True


def _to_numscorch(value: Any) -> Any:
    """Convert torch's sparse tensors to SparseTensors, also in lists and tuples."""
    if isinstance(value, list | tuple) and any(True for _ in _sparse_in(value)):
        return type(value)(map(_to_numscorch, value))
    return attached(value) if is_sparse(value) and not isinstance(value, SparseTensor) else unwrapped(value)


def _to_torch(result: Any) -> Any:
    """Convert SparseTensors in a result, also in a tuple, to torch's sparse layouts."""
    if type(result) is tuple:
        return tuple(map(_to_torch, result))
    return stored_as(result, None, native=True, asked=False) if isinstance(result, SparseTensor) else result


@lru_cache(maxsize=1024)
def public(name: str) -> Callable[..., Any]:
    """The numscorch function of this name.

    If no argument is sparse, it calls torch's function. If all sparse arguments are torch's sparse tensors, sparse results are, too.
    """
    implementation = OPERATORS[name]
    # operators that torch lacks accept dense tensors, too
    dense_operator = torchs(name) if name in PUBLIC else inspect.unwrap(implementation)

    def function(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and _is_plain(args):
            return implementation(*args)
        sparse = list(_sparse_in((*args, *kwargs.values())))
        if not sparse:
            return dense_operator(*args, **kwargs)
        result = implementation(*map(_to_numscorch, args), **{key: _to_numscorch(value) for key, value in kwargs.items()})
        return _to_torch(result) if all(isinstance(t, torch.Tensor) for t in sparse) else result

    return with_name(update_wrapper(function, implementation, assigned=(), updated=()), name, implementation.__doc__ or "")


MASKED = """
    sum prod amax amin mean median norm var std logsumexp argmax argmin cumsum cumprod softmax log_softmax softmin normalize logaddexp
"""


def _overridable(name: str) -> None:
    """Make a function of torch.masked dispatch on ``__torch_function__``; torch's version checks layouts instead."""
    torch_function = getattr(torch.masked, name)

    @wraps(torch_function)
    def function(*args: Any, **kwargs: Any) -> Any:
        arguments = (*args, *kwargs.values())
        if has_torch_function(arguments):
            return handle_torch_function(function, arguments, *args, **kwargs)
        return torch_function(*args, **kwargs)

    setattr(torch.masked, name, function)


def register() -> None:
    """Register SparseTensor with torch; called once."""
    correct_on_import()
    for name in MASKED.split():
        _overridable(name)
    trees.register()
    default_collate_fn_map[SparseTensor] = lambda batch, *, collate_fn_map=None: stack(batch)
