"""The families: for each row of the table, its cases with our call and the functions of all libraries, and its bars."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import sparse

import numscorch as ns
from numscorch.measuring.turns import Function
from numscorch.sparsify import n_m_g, sparsify, topk

from .. import generated
from ..bars import LARGE
from ..data import Case, Matrix, dense, matrix, names, tensor, tensor_names
from ..peers.library import Library, Tensor, functions_of
from ..selection import MOST_DENSE_PRODUCTS, MOST_PRODUCTS

WEIGHT = 0.01  # density from which a matrix counts as the weight of a layer
FEWEST_EDGES = 1000
RANK = 16
FORMATS = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2)}
SHAPES = ((768, 768), (3072, 768), (768, 3072))
GROUPS = 16  # columns of each pattern in a chunk of n:m:g
TOP = 10
DENSE_PRODUCT = "torch.mm"


def unchanged(result: Any) -> Any:
    """The result as it is."""
    return result


@dataclass(frozen=True)
class Comparison:
    """A case of a family: our call, those of peers, and how their results are read before they are compared."""

    case: str
    ours: Function
    peers: Mapping[str, Function]
    read: Callable[[Any], Any] = unchanged


@dataclass(frozen=True)
class Choice:
    """The matrices of a row: at most ``count`` with ``LARGE`` entries and more, evenly spaced by entries."""

    libraries: Sequence[Library]
    count: int | None = None

    def matrices(self, takes: Callable[[Matrix], bool] = lambda _: True) -> Iterator[Matrix]:
        """Matrices that a predicate takes, smallest first."""
        yield from spaced([case for case in _large() if takes(case)], self.count)

    def functions(self, operation: str, *operands: Any) -> dict[str, Function]:
        """Functions of all libraries that have the operation."""
        return functions_of(self.libraries, operation, *operands)


def spaced(cases: Sequence[Any], count: int | None) -> list[Any]:
    """At most ``count`` evenly spaced cases.

    >>> spaced("abcde", 3)
    ['a', 'c', 'e']
    """
    if count is None or len(cases) <= count:
        return list(cases)
    return [cases[round(at * (len(cases) - 1) / max(count - 1, 1))] for at in range(count)]


@cache
def _large() -> list[Matrix]:
    return sorted((case for case in map(matrix, names()) if case.nnz >= LARGE), key=lambda case: case.nnz)


# ---- products with dense operands


def spmv(format: str, choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices():
        A, x = case.tensor.to(FORMATS[format]), dense(case.shape[1])
        yield Comparison(case.name, partial(ns.einsum, "ij,j->i", A, x), choice.functions("spmv", A.to_scipy(), x.numpy()))


def spmm(format: str, widths: Sequence[int], choice: Choice) -> Iterator[Comparison]:
    for k in widths:
        for case in choice.matrices(lambda case, k=k: case.nnz * k <= MOST_DENSE_PRODUCTS):  # type: ignore[misc]  # k is bound
            A, B = case.tensor.to(FORMATS[format]), dense(case.shape[1], k)
            peers = choice.functions("spmm", A.to_scipy(), B.numpy())
            yield Comparison(f"{case.name}, k={k}", partial(ns.einsum, "ij,jk->ik", A, B), peers)


def linear(batch: int, choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices(lambda case: case.density >= WEIGHT):
        W, x = case.tensor, dense(batch, case.shape[1])
        yield Comparison(case.name, partial(_layer, x, W), choice.functions("linear", W.to_scipy(), x.numpy()))


def _layer(x: torch.Tensor, W: ns.SparseTensor) -> Any:
    return x @ W.t()


def sddmm(k: int, choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices(lambda case: case.nnz * k <= MOST_DENSE_PRODUCTS):
        S, X, Y = case.as_mask().tensor, dense(case.shape[0], k), dense(case.shape[1], k, seed=2)
        peers = choice.functions("sddmm", S.to_scipy(), X.numpy(), Y.numpy())
        yield Comparison(case.name, partial(ns.einsum, "ij,ik,jk->ij", S, X, Y), peers, stored_values)


def grouped(n: int, m: int, tokens: Sequence[int], choice: Choice) -> Iterator[Comparison]:
    for shape, batch in product(SHAPES, tokens):
        W, full = _grouped_weight(n, m, shape)
        x = dense(batch, shape[1])
        yield Comparison(f"{shape[0]}x{shape[1]}, {batch} tokens", partial(_layer, x, W), {DENSE_PRODUCT: partial(torch.mm, x, full)})


@cache
def _grouped_weight(n: int, m: int, shape: tuple[int, int]) -> tuple[ns.SparseTensor, torch.Tensor]:
    weight = sparsify(dense(*shape), n_m_g(n, m, GROUPS))
    return weight, weight.to_dense().t()


# ---- products, sums and reductions of sparse matrices


def spgemm(is_sorted: bool, choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices(lambda case: case.products(transposed=True) <= MOST_PRODUCTS):
        A, transposed = case.tensor, case.tensor.t().to(ns.CSR)
        ours = partial(ns.einsum, "ij,kj->ik", A, A, format=ns.CSR if is_sorted else None)
        yield Comparison(case.name, ours, choice.functions("spgemm", A.to_scipy(), transposed.to_scipy(), is_sorted))


def elementwise(operation: str, choice: Choice) -> Iterator[Comparison]:
    """B is A with its rows rolled down by one, so that the patterns overlap partly."""
    for case in choice.matrices():
        A, B = case.tensor, case.rolled(1)
        ours = {"add": operator.add, "multiply": operator.mul}[operation]
        yield Comparison(case.name, partial(ours, A, B), choice.functions(operation, A.to_scipy(), B.to_scipy()))


def row_sums(choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices():
        yield Comparison(case.name, partial(ns.sum, case.tensor, 1), choice.functions("row_sums", case.tensor.to_scipy()))


def softmax(choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices():
        peers = choice.functions("softmax", case.tensor.to_scipy())
        yield Comparison(case.name, partial(ns.softmax, case.tensor, 1), peers, stored_values)


def triangles(choice: Choice) -> Iterator[Comparison]:
    for case in choice.matrices(lambda case: case.is_square and case.products() <= MOST_PRODUCTS):
        edges = case.as_mask().tensor.to_scipy()
        lower = sparse.tril(edges + edges.T, -1, format="csr")
        if lower.nnz >= FEWEST_EDGES:
            L = ns.from_scipy(lower).to(torch.float32)
            L = L.with_values(torch.ones(L.nnz))
            yield Comparison(case.name, partial(ns.einsum, "ij,jk,ik->", L, L, L), choice.functions("triangles", L.to_scipy()))


def top(choice: Choice) -> Iterator[Comparison]:
    """The largest entries of each row of A A^T."""
    for case in choice.matrices(lambda case: case.products(transposed=True) <= MOST_PRODUCTS and case.shape[0] >= TOP):
        A = case.tensor.with_values(case.tensor.values.abs())
        peers = choice.functions("topn", A.to_scipy(), A.t().to(ns.CSR).to_scipy(), TOP)
        yield Comparison(case.name, partial(_largest, A), peers, largest_values)


def _largest(A: ns.SparseTensor) -> Any:
    return ns.einsum("ij,kj->ik", A, A, sparsifier=topk(TOP))


# ---- tensors


def mttkrp(order: int, choice: Choice) -> Iterator[Comparison]:
    for case in _tensors():
        A = case.tensor
        for mode in range(order) if A.ndim == order else ():
            letters = "ijkmn"[:order]
            factors = {other: dense(A.shape[other], RANK, seed=other) for other in range(order) if other != mode}
            expression = f"{','.join([letters, *(f'{letters[other]}r' for other in factors)])}->{letters[mode]}r"
            peers = choice.functions("mttkrp", Tensor(A, mode, factors))
            yield Comparison(f"{case.name}, mode {mode}", partial(ns.einsum, expression, A, *factors.values()), peers)


@cache
def _tensors() -> list[Case]:
    """The tensors, and one of order 5 if there is none."""
    cases = [tensor(name) for name in tensor_names()]
    if not any(case.tensor.ndim == 5 for case in cases):
        ratings = generated.ratings((300, 200, 100, 50, 20), 50_000)
        cases.append(Case("ratings-5", ratings.to(ns.CSF(5))))
    return cases


# ---- results


def stored_values(result: Any) -> Any:
    """The stored values of a result, row by row; arrays are values already."""
    if isinstance(result, ns.SparseTensor):
        return result.values
    if isinstance(result, torch.Tensor) and result.layout is torch.sparse_csr:
        return result.values()
    if isinstance(result, torch.Tensor) and result.layout is torch.sparse_coo:
        return result.coalesce().values()
    return result.to_coo()[2] if hasattr(result, "to_coo") else result


def largest_values(result: Any) -> np.ndarray:
    """The largest values of each row in descending order; 0 where a row has fewer."""
    result = result.to(ns.CSR).to_scipy() if isinstance(result, ns.SparseTensor) else result
    values = np.zeros((result.shape[0], TOP), np.float32)
    for row, (start, end) in enumerate(zip(result.indptr[:-1], result.indptr[1:], strict=True)):
        values[row, : end - start] = -np.sort(-result.data[start:end])
    return values


# ---- rows of the table


@dataclass(frozen=True)
class Family:
    """A row of the table, with its bars for the ratio of a peer's time to ours.

    Args:
        name: the first cell.
        cases: its comparisons.
        library: bar of the geometric mean over the best library of each case.
        hand: bar of the geometric mean over plain loops.
        worst: bar of the worst case of either.
    """

    name: str
    cases: Callable[[Choice], Iterator[Comparison]]
    library: float
    hand: float | None = None
    worst: float | None = None


FAMILIES = (
    Family("SpMV CSR", partial(spmv, "CSR"), 1.1, 1.3, 0.8),
    Family("SpMV CSC", partial(spmv, "CSC"), 1.1, 1.3, 0.8),
    Family("SpMV COO", partial(spmv, "COO"), 1.5, 1.3, 0.8),
    Family("SpMM CSR, k = 8", partial(spmm, "CSR", (8,)), 1.3, 1.1, 0.85),
    Family("SpMM CSR, k = 32 to 256", partial(spmm, "CSR", (32, 64, 128, 256)), 1.5, 1.1, 0.85),
    Family("SpMM CSC, k = 8", partial(spmm, "CSC", (8,)), 1.2, 1.1, 0.85),
    Family("x @ W.t(), batch 1", partial(linear, 1), 1.0, 1.1, 0.8),
    Family("x @ W.t(), batch 8", partial(linear, 8), 1.3, 1.1, 0.8),
    Family("x @ W.t(), batch 128", partial(linear, 128), 1.7, 1.1, 0.8),
    Family("SDDMM, k = 16", partial(sddmm, 16), 2.0, 1.1, 0.8),
    Family("SDDMM, k = 64", partial(sddmm, 64), 2.0, 1.1, 0.8),
    Family("SpGEMM A A^T, unordered", partial(spgemm, False), 1.3, 1.1, 0.8),
    Family("SpGEMM A A^T, sorted", partial(spgemm, True), 1.5, 1.1, 0.8),
    Family("A + B", partial(elementwise, "add"), 1.3, 1.1, 0.8),
    Family("A * B", partial(elementwise, "multiply"), 1.3, 1.1, 0.8),
    Family("row sums", row_sums, 2.5, 1.1, 0.8),
    Family("softmax of rows", softmax, 2.5, 1.1, 0.8),
    Family("triangles", triangles, 2.5, 1.0, 0.9),
    Family("MTTKRP, order 3", partial(mttkrp, 3), 3.0, 1.0, 0.9),
    Family("MTTKRP, order 4", partial(mttkrp, 4), 3.0, 1.0, 0.9),
    Family("MTTKRP, order 5", partial(mttkrp, 5), 3.0, 1.0, 0.9),
    Family(f"top {TOP} of rows of A A^T", top, 2.0, None, 0.9),
    *(
        Family(f"n:m:g {n}:{m}, {title}", partial(grouped, n, m, tokens), bar)
        for tokens, title, bars in (((128, 512, 1024), "128 to 1024 tokens", (1.7, 2.8, 4.8)), ((1,), "one token", (1.3, 2.0, 4.0)))
        for (n, m), bar in zip(((2, 4), (1, 4), (1, 10)), bars, strict=True)
    ),
)
