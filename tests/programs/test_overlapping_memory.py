"""Results that are written over their operands: ``out=`` and methods in place, where memory overlaps in any way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscorch as ns

N = 6
FORMATS = [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.ELL, ns.DIA, ns.Format("(i, j) -> (i: dense, j: hash)"), "torch CSR"]
RANDOM = torch.Generator().manual_seed(0)
D = torch.randn(N, N, generator=RANDOM) * (torch.rand(N, N, generator=RANDOM) < 0.4)
D[torch.arange(N), torch.arange(N)] = 2.0
SYMMETRIC = D * D.T


def stored(fmt: Any, dense: torch.Tensor = D) -> Any:
    return dense.to_sparse_csr() if fmt == "torch CSR" else ns.from_torch(dense, fmt)


def square(x: torch.Tensor) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Operands that are views of x, each with an ``out`` of the same memory."""
    return {"x": (x, x), "x.t()": (x, x.t()), "the operand transposed": (x.t(), x)}


VECTORS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "x": lambda x: (x[:N], x[:N]),
    "x[1:]": lambda x: (x[:N], x[1 : N + 1]),
    "x[:-1]": lambda x: (x[1 : N + 1], x[:N]),
    "every second": lambda x: (x[:N], x[: 2 * N : 2]),
    "numpy": lambda x: (x[:N], torch.from_numpy(x.numpy())[1 : N + 1]),
}
PRODUCTS: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "einsum": (lambda A, y, out: ns.einsum("ij,j->i", A, y, out=out), lambda y: D @ y),
    "einsum, transposed": (lambda A, y, out: ns.einsum("ji,j->i", A, y, out=out), lambda y: D.T @ y),
    "mv": (lambda A, y, out: ns.mv(A, y, out=out), lambda y: D @ y),
    "matmul": (lambda A, y, out: ns.matmul(A, y, out=out), lambda y: D @ y),
    "max": (lambda A, y, out: ns.einsum("ij,j->i", A, y, reduce="max", out=out), lambda y: (D * y).amax(1)),
    "plan": (lambda A, y, out: ns.plan("ij,j->i", A, y)(A, y, out=out), lambda y: D @ y),
    "two dense": (lambda A, y, out: ns.einsum("ij,j,i->i", A, y, y, out=out), lambda y: y * (D @ y)),
}


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("view", VECTORS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_vectors(name: str, view: str, fmt: Any) -> None:
    product, reference = PRODUCTS[name]
    memory = torch.randn(2 * N, generator=RANDOM)
    y, out = VECTORS[view](memory)
    expected, rest = reference(y.clone()), memory.clone()
    assert product(stored(fmt), y, out=out) is out
    torch.testing.assert_close(out, expected)
    mine = torch.zeros(2 * N, dtype=torch.bool)
    mine.as_strided(out.shape, out.stride(), (out.data_ptr() - memory.data_ptr()) // 4)[:] = True
    assert torch.equal(memory[~mine], rest[~mine])


MATRICES: dict[str, tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "einsum": (lambda A, x, out: ns.einsum("ij,jk->ik", A, x, out=out), lambda x: D @ x),
    "matmul": (lambda A, x, out: ns.matmul(A, x, out=out), lambda x: D @ x),
    "matmul from the left": (lambda A, x, out: ns.matmul(x, A, out=out), lambda x: x @ D),
    "plan": (lambda A, x, out: ns.plan("ij,jk->ik", A, x)(A, x, out=out), lambda x: D @ x),
    "elementwise": (lambda A, x, out: ns.einsum("ij,ij->ij", A, x, out=out), lambda x: D * x),
    "sampled": (lambda A, x, out: ns.einsum("ij,ik,kj->ij", A, x, x, out=out), lambda x: D * (x @ x)),
    "chain": (lambda A, x, out: ns.einsum("ij,jk,kl->il", A, x, x, out=out), lambda x: D @ x @ x),
}


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize("view", square(torch.zeros(1, 1)))
@pytest.mark.parametrize("name", MATRICES)
def test_products_with_matrices(name: str, view: str, fmt: Any) -> None:
    product, reference = MATRICES[name]
    x, out = square(torch.randn(N, N, generator=RANDOM))[view]
    expected = reference(x.clone())
    assert product(stored(fmt), x, out=out) is out
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("fmt", FORMATS[:-1], ids=str)
@pytest.mark.parametrize("expr", ["ij->i", "ij->j", "ij,j->i", "ij,i->j"])
def test_results_over_the_values_of_an_operand(expr: str, fmt: Any) -> None:
    for first in (0, 1):
        A = stored(fmt)
        A = A.with_values(A.values.clone())
        memory = torch.from_numpy(A.values.numpy())[first : first + N]
        others = [memory] if "," in expr else []
        expected = torch.einsum(expr, D, *(other.clone() for other in others))
        ns.einsum(expr, A, *others, out=memory)
        torch.testing.assert_close(memory, expected)


IN_PLACE: dict[str, tuple[Callable[[Any, Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "add_ itself": (lambda A, values: A.add_(A), lambda S: S + S),
    "sub_ itself": (lambda A, values: A.sub_(A), lambda S: S - S),
    "mul_ itself": (lambda A, values: A.mul_(A), lambda S: S * S),
    "mul_ its transpose": (lambda A, values: A.mul_(A.t()), lambda S: S * S.T),
    "out= itself": (lambda A, values: ns.einsum("ij,ij->ij", A, A.to_dense(), out=A), lambda S: S * S),
    "mul_ a row of its values": (lambda A, values: A.mul_(values[:N]), lambda S: S * S[S != 0][:N]),
    "mul_ a column of its values": (lambda A, values: A.mul_(values[1 : N + 1, None]), lambda S: S * S[S != 0][1 : N + 1, None]),
    "*= its copy": (lambda A, values: A.__imul__(A.clone()), lambda S: S * S),
    "neg_": (lambda A, values: A.neg_(), lambda S: -S),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2), ns.DCSR], ids=str)
@pytest.mark.parametrize("name", IN_PLACE)
def test_methods_in_place_of_operands_that_share_values(name: str, fmt: ns.Format) -> None:
    update, reference = IN_PLACE[name]
    dense = SYMMETRIC + torch.triu(D.T * D, 1) * 0.5  # a symmetric pattern with other values
    A = ns.from_torch(dense, fmt)
    update(A, A.values)
    torch.testing.assert_close(A.to_dense(), reference(dense))


def test_results_share_no_memory_that_is_written_later() -> None:
    A, x = ns.from_torch(D), torch.randn(N, generator=RANDOM)
    results = {
        "a product": (A @ x, D @ x),
        "twice": ((A * 2).to_dense(), D * 2),
        "evaluate": (ns.evaluate("y[i] = A[i,j] * x[j]", A=A, x=x), D @ x),
        "clone": (A.clone().to_dense(), D.clone()),
    }
    fused = ns.fuse(lambda A, x: A @ (A @ x))
    results["fused"] = fused(A, x), D @ (D @ x)
    A.values.zero_()
    x.zero_()
    for result, expected in results.values():
        torch.testing.assert_close(result, expected)


def test_a_program_reads_what_it_overwrites_later() -> None:
    A, x = ns.from_torch(D), torch.randn(N, generator=RANDOM)
    before = x.clone()

    @ns.fuse
    def step(A: Any, x: torch.Tensor) -> torch.Tensor:
        return A @ x + x

    x.copy_(step(A, x))
    torch.testing.assert_close(x, D @ before + before)
    y = x.clone()
    x[:] = ns.evaluate("z[i] = A[i,j] * x[j] + x[i]", A=A, x=x)
    torch.testing.assert_close(x, D @ y + y)
