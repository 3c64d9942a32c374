"""Requests and descriptions of their operands, from which the compiler makes a problem.

A request is what ``einsum``, reductions and statements ask for: subscripts, an expression, a reduction and a storage form. The
description of an operand excludes its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from math import prod

from ..errors import UnsupportedError
from ..ir.format import Format, dense
from ..ir.functions import REDUCTIONS, TESTS
from ..ir.index import Access, Binary, Expr, IndexVar, Literal, TensorVar, accesses_in, is_product, product
from ..schedule.facts import AUTOMATIC, EVEN, Crossings, Options, rounded
from ..schedule.options import parse_options
from .parser import Subscripts, parse_einsum

NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OPERANDS = frozenset(NAMES)
MOST_OPERANDS = len(NAMES) - 1  # the result takes one letter


@dataclass(frozen=True, slots=True)
class Form:
    """Requirements on the storage of a result.

    Attributes:
        in_order: coordinates in a row are sorted.
        copies: the result has the operand's entries in another format, see ``copy_statements``.
        prunes: entries are stored only where the condition of the value holds, or only the n ``largest``.
        largest: (n, m) keeps the n values of largest magnitude in each block of m.
        row_limit: maximum number of entries in each row of a matrix, or 0 if there is none; the largest by magnitude are kept.
        spaced: rows of a dense result are padded, see ``relayout.row_length``.
        exact: a sparse result stores an entry only where it has a term.
    """

    in_order: bool = False
    copies: bool = False
    prunes: bool = False
    largest: tuple[int, int] | None = None
    row_limit: int = 0
    spaced: bool = False
    exact: bool = False


ANY_FORM = Form()


@dataclass(frozen=True, eq=False, slots=True)
class Request:
    """One computation on operands A, B, ....

    Requests compare by identity; the functions that create them are cached.

    Attributes:
        subscripts: index names of the operands and the result.
        value: the expression to compute; None is the product of the operands.
        op: the reduction over indices that are missing in the result.
        mask: position of the operand whose pattern the result has, and whose values are not read.
        options: the user's schedule.
        form: requirements on the storage of the result.
    """

    subscripts: Subscripts
    value: Expr | None = None
    op: str = "="
    mask: int | None = None
    options: Options = AUTOMATIC
    form: Form = ANY_FORM

    @property
    def is_product(self) -> bool:
        """Whether the request is a plain einsum: a sum of products of all operands, without mask, schedule or form."""
        return self.value is None and self.op == "=" and self.mask is None and self.options == AUTOMATIC and self.form == ANY_FORM

    @property
    def expr(self) -> Expr:
        """The expression to compute, also for the product of the operands."""
        return product_of(self.subscripts) if self.value is None else self.value

    @property
    def read(self) -> list[Expr]:
        """The expressions to compute; empty for a product of all operands."""
        return [] if self.value is None else [self.value]

    def __str__(self) -> str:
        return str(self.subscripts) if self.value is None else f"{self.value} over {self.subscripts}"


@lru_cache(maxsize=4096)
def only_patterns(request: Request) -> frozenset[int]:
    """The operands of which only the pattern is read: the mask, and operands that occur only inside ``stored``.

    >>> from .statements import parse_program
    >>> only_patterns(parse_program("E[i,j] = stored(M[i,j]) * stored(S[i,j]) * exp(S[i,j])")[0].request)
    frozenset({0})
    """
    tensors = [access.tensor for value in request.read for access in accesses_in(value) if access.tensor.name in OPERANDS]
    patterns = {NAMES.index(tensor.name) for tensor in tensors if not tensor.has_values}
    values = {NAMES.index(tensor.name) for tensor in tensors if tensor.has_values}
    return frozenset(patterns - values) | ({request.mask} if request.mask is not None else frozenset())


def access_of(name: str, indices: Sequence[str]) -> Access:
    """The access to a dense tensor."""
    return Access(TensorVar(name, dense(len(indices))), tuple(map(IndexVar, indices)))


def product_of(subscripts: Subscripts) -> Expr:
    """The product of all operands."""
    return product([access_of(name, names) for name, names in zip(NAMES, subscripts.operands, strict=False)])


@lru_cache(maxsize=1024)
def reducing(subscripts: Subscripts, op: str, test: bool = False, mask: int | None = None) -> Request:
    """The request that reduces the product of the operands with ``op``; ``test`` compares the product with 0 first."""
    if op != "=" and op not in REDUCTIONS:
        raise ValueError(f"unknown reduction {op}")
    value = product_of(subscripts)
    return Request(subscripts, Binary("!=", value, Literal(0.0, "float32")) if test else value, op, mask)


@lru_cache(maxsize=1024)
def diagonal_request(names: tuple[str, ...]) -> Request:
    """The request for an operand's diagonal along each repeated index; the result stores only entries that the operand stores."""
    return Request(Subscripts((names,), tuple(dict.fromkeys(names))), form=Form(exact=True))


@lru_cache(maxsize=1024)
def plain_request(subscripts: Subscripts) -> Request:
    """The request of a plain sum of products."""
    return Request(subscripts)


@lru_cache(maxsize=1024)
def einsum_request(text: str, ranks: tuple[int, ...]) -> Request:
    """The request of an einsum expression for operands of these ranks; equal subscripts give the same object.

    Raises:
        ExpressionError: the text cannot be parsed, or does not fit the ranks.

    >>> print(einsum_request("...j,j", (2, 1)))
    e0j,j->e0
    """
    return plain_request(parse_einsum(text, ranks))


@lru_cache(maxsize=1024)
def scheduled(request: Request, text: str) -> Request:
    """The request with a user's schedule.

    Raises:
        ScheduleError: the schedule cannot be parsed.
    """
    return replace(request, options=parse_options(text))


def logical(request: Request) -> Request:
    """Rewrite a request for boolean operands: a sum of products is True if any product is nonzero, as in NumPy.

    Raises:
        UnsupportedError: the request sums terms that are not products.
    """
    if request.op in ("=", "+=") and is_product(request.expr):
        return testing(request, "max=")
    if request.op in ("max=", "min="):
        return testing(request, request.op)
    summed = set().union(*request.subscripts.operands) - set(request.subscripts.result)
    if summed and request.op in ("=", "+=", "*="):
        raise UnsupportedError(
            f"only products of bool operands can be summed: count with .to(torch.int64), or use reduce='any'\n  {request}"
        )
    return request


@lru_cache(maxsize=1024)
def testing(request: Request, op: str) -> Request:
    """Rewrite a request to reduce tests whether its terms are nonzero.

    >>> str(testing(einsum_request("ij,j->i", (2, 1)), "max="))
    'A[i,j] * B[j] != 0 over ij,j->i'
    """
    is_test = isinstance(request.value, Binary) and request.value.op in TESTS
    return replace(request, value=request.value if is_test else Binary("!=", request.expr, Literal(0.0, "float32")), op=op)


@dataclass(frozen=True, slots=True)
class Operand:
    """Format, shape, data types and statistics of an operand.

    Attributes:
        format: storage format.
        shape: size of each dimension.
        dtype: data type of the values.
        index_dtype: data type of the index arrays.
        strides: strides of a dense operand, in values.
        counts: number of positions in each level of a sparse operand.
        spreads: imbalance of a sparse operand's rows, see ``Pattern.spreads``.
        has_long_rows: whether one row holds a large share of all entries.
        peaks: frequency of the most frequent coordinate in each level, see ``Pattern.peaks``.
        crossings: lengths of rows and columns that a matrix itself chooses, see ``Pattern.crossings``.
        beside: position of the first operand with the same pattern object; None if no earlier operand has it.
    """

    format: Format
    shape: tuple[int, ...]
    dtype: str
    index_dtype: str = "int64"
    strides: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    spreads: tuple[int, ...] = ()
    has_long_rows: bool = False
    peaks: tuple[int, ...] = ()
    crossings: Crossings = EVEN
    beside: int | None = None

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} ({self.format.name})"

    @property
    def is_row_major(self) -> bool:
        """Whether it is a dense operand that is contiguous."""
        return self.strides == row_major(self.shape)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in values, of a contiguous tensor.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def sizes_of(operands: Sequence[Operand]) -> tuple[int, ...]:
    """The sizes of operands, one after the other: the shape, then the strides unless the operand is sparse or contiguous."""
    return tuple(chain.from_iterable(op.shape if op.is_row_major else (*op.shape, *op.strides) for op in operands))


def with_sizes(operands: Sequence[Operand], sizes: Iterable[int]) -> list[Operand]:
    """The operands with these sizes, in the order of :func:`sizes_of`, and with rounded counts."""
    remaining, described = iter(sizes), []
    for operand in operands:
        shape = tuple(islice(remaining, len(operand.shape)))
        strides = row_major(shape) if operand.is_row_major else tuple(islice(remaining, len(operand.strides)))
        described.append(replace(operand, shape=shape, strides=strides, counts=tuple(map(rounded, operand.counts))))
    return described
