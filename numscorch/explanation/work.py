"""What a request has to do at least, however it is computed: the bytes that it moves, and its operations.

Rates against a machine's roofs (``roofs``) are taken of these, so that they mean the same for everyone who computes the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..compute.dispatch import compute
from ..convert.construct import from_torch
from ..frontend.fused_problem import FusedRequest, valued
from ..frontend.parser import Subscripts, parse_einsum
from ..frontend.statements import NAMES, Request, only_patterns, parse_program
from ..ir.functions import is_zero, simplified
from ..ir.index import Access, Apply, Binary, Expr, Literal, accesses_in, variables_in
from ..programs.derived_operands import with_derived
from ..tensors.sparse_tensor import SparseTensor
from .points import is_dense, points, sizes_of


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, and bytes from and to memory."""

    flops: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Summand:
    """A summand: the operands outside of whose entries it is 0, and how many operations it takes at each of its points."""

    needs: tuple[int, ...]
    operations: int


def work_of(expr: str | Request, operands: Sequence[Any] | Mapping[str, Any], result: Any) -> Work:
    """The operations and the compulsory traffic of a request.

    Bytes are those of every array of the operands, read once, and of the result's, written once: index arrays and values, but not the
    values of operands of which just the pattern is read, nor an array that was counted (an operand that stands twice, the pattern that
    a result shares).

    Operations are counted at the stored points of the iteration space: those coordinates of all the index variables at which every
    sparse factor of a term stores an entry. At each, the factors of a product are one multiplication, however many they are (all but two
    can be taken out of the innermost loop), a function is one operation, and another one adds the term up where terms are added: a
    product that is summed takes two, an entry that is summed one. Terms of a sum are counted one by one.

    Args:
        expr: an einsum's text, a request, or the text of statements as for :func:`numscorch.evaluate`, whose operations are added up.
        operands: tensors, ours or torch's; of statements, by their names, numbers too.
        result: what was computed; None leaves its bytes out.

    Raises:
        ExpressionError: the text can't be read, or doesn't fit the operands.

    Source:
        Williams, Waterman, Patterson, "Roofline", CACM 2009, for compulsory traffic.

    >>> import torch, numscorch as ns
    >>> A = ns.from_coo([[0, 1, 1], [2, 0, 2]], [1.0, 2.0, 3.0], (2, 3), format=ns.CSR)
    >>> x = torch.ones(3)
    >>> work_of("ij,j->i", [A, x], ns.einsum("ij,j->i", A, x))
    Work(flops=6, bytes=56)
    """
    if isinstance(operands, Mapping):
        return _of_program(str(expr), operands, result)
    request = Request(parse_einsum(expr, tuple(o.ndim for o in operands))) if isinstance(expr, str) else expr
    return Work(flops_of(request, operands), traffic_of(operands, result, _unread(request)))


def _unread(request: Request) -> frozenset[int]:
    """The operands of which just the pattern is read."""
    if isinstance(request, FusedRequest):
        return frozenset(range(len(request.subscripts.operands))) - frozenset(valued(request))
    return only_patterns(request)


def _of_program(text: str, given: Mapping[str, Any], result: Any) -> Work:
    """Operations of every part, on what the parts before it make; bytes of what comes from outside and of the last result."""
    tensors = {name: value if isinstance(value, Tensor | SparseTensor) else torch.tensor(float(value)) for name, value in given.items()}
    flops, parts = 0, parse_program(text)
    for part in parts:
        with_derived(text, [part], tensors)
        operands = [tensors[name] for name in part.operands]
        flops += flops_of(part.request, operands)
        if part is not parts[-1]:
            tensors[part.name] = compute(part.request, operands)
    return Work(flops, traffic_of([tensors[name] for name in given], result, frozenset()))


def traffic_of(operands: Sequence[Any], result: Any, patterns: frozenset[int] = frozenset()) -> int:
    """Bytes of the arrays of the operands and the result, each once; of the operands in ``patterns``, without their values."""
    arrays: dict[tuple[int, int], int] = {}
    for at, tensor in enumerate([*operands, result]):
        for array in _arrays(tensor, with_values=at not in patterns):
            size = prod(extent for extent, stride in zip(array.shape, array.stride(), strict=True) if stride) * array.itemsize
            arrays[array.data_ptr(), size] = size if array.numel() else 0
    return sum(arrays.values())


def _arrays(tensor: Any, with_values: bool) -> Iterator[Tensor]:
    """The index arrays and the values of a tensor, or of each in a tuple; a dense one is its values."""
    if isinstance(tensor, tuple | list):
        for member in tensor:
            yield from _arrays(member, with_values)
    elif isinstance(tensor, Tensor) and tensor.layout is torch.strided:
        yield from (tensor,) if with_values else ()
    elif isinstance(tensor, Tensor | SparseTensor):
        stored = tensor if isinstance(tensor, SparseTensor) else from_torch(tensor)
        yield from (array for level in stored.pattern.arrays for array in level)
        yield from (stored._values,) if with_values else ()


def flops_of(request: Request, operands: Sequence[Any]) -> int:
    """The operations of a request, as :func:`work_of` counts them; of a fused one, those of its members too."""
    space = _Space(request.subscripts, operands)
    mask = () if request.mask is None else (request.mask,)
    if not isinstance(request, FusedRequest):
        return space.flops(request.value, request.subscripts.result, mask)
    owner = () if request.owner is None else (NAMES.index(request.owner.tensor.name),)
    members = sum(space.flops(part.value, [var.name for var in part.indices], owner if part.owner else ()) for part in request.members)
    return members + (space.flops(request.value, request.subscripts.result, owner) if request.value is not None else 0)


class _Space:
    """The coordinates of a request's index variables, and the operands that store some of them."""

    def __init__(self, subscripts: Subscripts, operands: Sequence[Any]):
        self.subscripts, self.operands = subscripts, operands
        self.sizes = sizes_of(subscripts, operands)
        self.sparse = {NAMES[at] for at, operand in enumerate(operands) if not is_dense(operand)}

    def flops(self, value: Expr | None, result: Sequence[str], needed: tuple[int, ...]) -> int:
        """Operations of a value, None for the product of the operands, at points that these operands store as well."""
        names = self.sizes.keys() if value is None else {*result, *(var.name for var in variables_in(value))}
        sizes = {name: size for name, size in self.sizes.items() if name in names}
        terms = self._terms_of(value, needed)
        is_added = len(terms) > 1 or bool(names - set(result))
        amounts = [(term.operations + is_added, term.needs) for term in terms]
        return sum(each * points(needs, self.subscripts, self.operands, sizes) for each, needs in amounts if each)

    def _terms_of(self, value: Expr | None, needed: tuple[int, ...]) -> list[Summand]:
        if value is None:
            return [Summand((*map(NAMES.index, sorted(self.sparse)), *needed), int(len(self.operands) > 1))]
        calls = _calls(value)
        return [Summand((*term.needs, *needed), min(term.operations, 1) + calls) for term in _needs(value, self.sparse)]


def _needs(value: Expr, sparse: set[str]) -> list[Summand]:
    """The terms that a value would come to, were its products multiplied out."""
    match value:
        case Access(tensor):
            return [Summand((NAMES.index(tensor.name),) if tensor.name in sparse else (), 0)]
        case Binary("*", left, right):
            is_product = int(Literal not in (type(left), type(right)) or 1.0 not in (_number(left), _number(right)))
            pairs = [(a, b) for a in _needs(left, sparse) for b in _needs(right, sparse)]
            return [Summand((*a.needs, *b.needs), a.operations + b.operations + is_product) for a, b in pairs]
        case Binary("/", left, _):
            return [Summand(term.needs, term.operations + 1) for term in _needs(left, sparse)]
        case Binary("+" | "-", left, right):
            return _needs(left, sparse) + _needs(right, sparse)
        case _ if is_zero(simplified(value, sparse)):  # of no more than what some operand stores
            return [Summand((NAMES.index(access.tensor.name),), 0) for access in accesses_in(value) if access.tensor.name in sparse]
        case _:
            return [Summand((), 0)]


def _number(value: Expr) -> float | complex | None:
    return value.value if isinstance(value, Literal) else None


def _calls(value: Expr) -> int:
    """How many functions are evaluated."""
    match value:
        case Binary(_, left, right):
            return _calls(left) + _calls(right)
        case Apply(_, arguments):
            return 1 + sum(map(_calls, arguments))
        case _:
            return 0
