"""The minimum work of a request: its compulsory traffic in bytes, and its operations.

Both depend only on the request, not on the library that computes it, so throughputs and shares of the roofs are comparable. Operations
are counted at stored points: the coordinates of all index variables at which given operands store an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..convert.construct import from_coo, from_torch
from ..frontend.fused_problem import FusedRequest, valued
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.requests import NAMES, Request, only_patterns
from ..frontend.statements import parse_program
from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Apply, Binary, Expr, Literal, accesses_in, variables_in, walk
from ..programs.derived_operands import with_derived
from ..programs.dispatch import compute
from ..tensors.sparse_tensor import SparseTensor

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # index names of the counting einsum
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, and bytes of memory traffic."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Summand:
    """A summand, which is 0 where one of the operands ``needs`` stores no entry, and its operations per point."""

    needs: tuple[int, ...]
    operations: int


def work_of(expr: str | Request, operands: Sequence[Any] | Mapping[str, Any], result: Any) -> Work:
    """The operations and the compulsory traffic of a request.

    Bytes: each array of the operands is read once, and each array of the result is written once. Both index arrays and values count. Not
    counted are the values of operands of which only the pattern is read, and arrays that were counted before (of an operand that occurs
    twice, or of a pattern that the result shares).

    Operations: a term is counted at its stored points, the coordinates of all index variables at which every sparse factor stores an
    entry. At each point, a product is one multiplication for any number of factors (all but two can be hoisted out of the innermost
    loop). A function is one operation. If terms are summed, one addition follows: a summed product takes two operations, a summed entry
    one. The terms of a sum are counted separately.

    Args:
        expr: an einsum's text, a request, or statements as for :func:`numscorch.evaluate`. The operations of statements are added.
        operands: tensors (SparseTensors or torch's); for statements a mapping from names to tensors or numbers.
        result: the computed result; None leaves its bytes out.

    Raises:
        ExpressionError: the text can't be parsed, or doesn't fit the operands.

    Source:
        Williams, Waterman, Patterson, "Roofline", CACM 2009, for compulsory traffic.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> x = torch.ones(3)
    >>> work_of("ij,j->i", [A, x], ns.einsum("ij,j->i", A, x))
    Work(flops=6, bytes=56)
    """
    if isinstance(operands, Mapping):
        return _program_work(str(expr), operands, result)
    request = Request(parse_einsum(expr, tuple(o.ndim for o in operands))) if isinstance(expr, str) else expr
    of_patterns = only_patterns(request) if not isinstance(request, FusedRequest) else {*range(len(operands))} - {*valued(request)}
    return Work(flops_of(request, operands), traffic_of(operands, result, frozenset(of_patterns)))


def _program_work(text: str, operands_by_name: Mapping[str, Any], result: Any) -> Work:
    """The operations of all parts, and the bytes of the operands and the final result. Runs all parts but the last to count them."""
    tensors = {
        name: value if isinstance(value, Tensor | SparseTensor) else torch.tensor(float(value)) for name, value in operands_by_name.items()
    }
    flops, parts = 0, parse_program(text)
    for part in parts:
        with_derived(text, [part], tensors)
        operands = [tensors[name] for name in part.operands]
        flops += flops_of(part.request, operands)
        if part is not parts[-1]:
            tensors[part.name] = compute(part.request, operands)
    return Work(flops, traffic_of([tensors[name] for name in operands_by_name], result, frozenset()))


def traffic_of(operands: Sequence[Any], result: Any, patterns: frozenset[int] = frozenset()) -> int:
    """The bytes of the arrays of the operands and the result, each array once. For operands in ``patterns``, values don't count."""
    arrays: dict[tuple[int, int], int] = {}
    for at, tensor in enumerate([*operands, result]):
        for array in _arrays(tensor, with_values=at not in patterns):
            size = prod(extent for extent, stride in zip(array.shape, array.stride(), strict=True) if stride) * array.itemsize
            arrays[array.data_ptr(), size] = size if array.numel() else 0
    return sum(arrays.values())


def _arrays(tensor: Any, with_values: bool) -> Iterator[Tensor]:
    """The index arrays and the values of a tensor, or of each tensor in a tuple; a dense tensor has only values."""
    if isinstance(tensor, tuple | list):
        for member in tensor:
            yield from _arrays(member, with_values)
    elif isinstance(tensor, Tensor) and tensor.layout is torch.strided:
        yield from (tensor,) if with_values else ()
    elif isinstance(tensor, Tensor | SparseTensor):
        stored = tensor if isinstance(tensor, SparseTensor) else from_torch(tensor, copy=False)
        yield from (array for level in stored.pattern.arrays for array in level)
        yield from (stored._values,) if with_values else ()


def flops_of(request: Request, operands: Sequence[Any]) -> int:
    """The operations of a request, as :func:`work_of` counts them, including the members of a fused request."""
    count = partial(_flops_of_value, request.subscripts, operands)
    mask = () if request.mask is None else (request.mask,)
    if not isinstance(request, FusedRequest):
        return count(request.value, request.subscripts.result, mask)
    owner = () if request.owner is None else (NAMES.index(request.owner.tensor.name),)
    members = sum(count(part.value, [var.name for var in part.indices], owner if part.owner else ()) for part in request.members)
    return members + (count(request.value, request.subscripts.result, owner) if request.value is not None else 0)


def _flops_of_value(
    subscripts: Subscripts, operands: Sequence[Any], value: Expr | None, result: Sequence[str], needed: tuple[int, ...]
) -> int:
    """The operations of a value where the operands ``needed`` store entries, too; a value of None is the product of all operands."""
    extents = subscripts.sizes([operand.shape for operand in operands])
    sparse = {NAMES[at] for at, operand in enumerate(operands) if not is_dense(operand)}
    names = extents.keys() if value is None else {*result, *(var.name for var in variables_in(value))}
    sizes = {name: size for name, size in extents.items() if name in names}
    if value is None:
        terms = [Summand((*map(NAMES.index, sorted(sparse)), *needed), int(len(operands) > 1))]
    else:
        calls = sum(isinstance(node, Apply) for node in walk(value))
        terms = [Summand((*term.needs, *needed), min(term.operations, 1) + calls) for term in _needs(value, sparse)]
    is_added = len(terms) > 1 or bool(names - set(result))
    amounts = [(term.operations + is_added, term.needs) for term in terms]
    return sum(operations * points(needs, subscripts, operands, sizes) for operations, needs in amounts if operations)


def _needs(value: Expr, sparse: set[str]) -> list[Summand]:
    """The terms of a value after its products are multiplied out."""
    match value:
        case Access(tensor):
            return [Summand((NAMES.index(tensor.name),) if tensor.name in sparse else (), 0)]
        case Binary("*", left, right):
            is_product = int(not any(isinstance(side, Literal) and side.value == 1.0 for side in (left, right)))
            pairs = [(a, b) for a in _needs(left, sparse) for b in _needs(right, sparse)]
            return [Summand((*a.needs, *b.needs), a.operations + b.operations + is_product) for a, b in pairs]
        case Binary("/", left, _):
            return [Summand(term.needs, term.operations + 1) for term in _needs(left, sparse)]
        case Binary("+" | "-", left, right):
            return _needs(left, sparse) + _needs(right, sparse)
        case _ if is_zero(simplified(value, sparse)):  # 0 wherever the sparse operands store nothing
            return [Summand((NAMES.index(access.tensor.name),), 0) for access in accesses_in(value) if access.tensor.name in sparse]
        case _:
            return [Summand((), 0)]


def is_dense(operand: Any) -> bool:
    """Whether a tensor (a SparseTensor or torch's) stores every entry."""
    return bool(operand.pattern.is_dense if isinstance(operand, SparseTensor) else operand.layout is torch.strided)


def points(needs: Sequence[int], subscripts: Subscripts, operands: Sequence[Any], sizes: Sizes) -> int:
    """The number of points (coordinates of all variables) at which each of the sparse operands ``needs`` stores an entry.

    An einsum computes it. Its operands count, for each sparse operand, the entries at each coordinate of the shared variables.

    >>> import numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> product = Subscripts((("i", "j"), ("k", "j")), ("i", "k"))
    >>> points((0, 1), product, (A, A), product.sizes([A.shape, A.shape]))
    5
    """
    relations = [_entries(subscripts.operands[at], operands[at], sizes) for at in dict.fromkeys(needs)]
    occurrences = Counter(name for columns, _ in relations for name in columns)
    letters = dict(zip([name for name, count in occurrences.items() if count > 1], LETTERS, strict=False))  # of shared variables
    factor, terms, counts = prod(size for name, size in sizes.items() if name not in occurrences), list[str](), list[SparseTensor]()
    for columns, entries in relations:
        shared = [name for name in columns if name in letters]
        if shared:
            terms.append("".join(letters[name] for name in shared))
            ones, shape = torch.ones(entries, dtype=torch.float64), [sizes[name] for name in shared]
            counts.append(from_coo(np.stack([columns[name] for name in shared]), ones, shape))
        else:
            factor *= entries
    return factor * round(float(compute(f"{','.join(terms)}->", counts))) if terms else factor


def _entries(indices: Sequence[str], operand: Any, sizes: Sizes) -> tuple[dict[str, np.ndarray], int]:
    """For each variable of a sparse operand, the coordinates of all entries; and the number of entries.

    A broadcast dimension binds no variable; a repeated variable selects the diagonal.
    """
    coordinates = (operand if isinstance(operand, SparseTensor) else from_torch(operand, copy=False)).indices().numpy()
    mask = np.ones(coordinates.shape[1], bool)
    columns: dict[str, np.ndarray] = {}
    for name, coords, extent in zip(indices, coordinates, operand.shape, strict=True):
        if extent == sizes.get(name):
            mask &= coords == columns.setdefault(name, coords)
    return {name: coords[mask] for name, coords in columns.items()}, int(mask.sum())
