"""Random expressions with matrices that store one entry in each row or column, as (dense, singleton), beside other operands.

The loop over such an entry takes one step, and other operands may lack its coordinate.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import numscorch as ns
from numscorch.schedule import tuning

BY_ROWS, BY_COLUMNS = "(i, j) -> (i: dense, j: singleton)", "(i, j) -> (j: dense, i: singleton)"
OTHERS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, None)
ONE_MATRIX = ("ij->j", "ij->ji", "ij,j->i", "ij,i->j", "ij,j->ij", "ij,ij->i", "ij,ij->ij")
PRODUCTS = ("ij,jk->ik", "ij,jk->ki", "ij,jk->i", "ij,jk->k", "ij,jk->ij", "ij,jk->", "ij,kj->ik", "ij,ik->jk", "ij,ik->kj", "ij,ik->j")
EINSUMS = (*ONE_MATRIX, *PRODUCTS, "ij,il->jl", "ij,jk,kl->il", "ij,jk,ik->ik", "ij,jk,j->ik")
STATEMENTS: dict[str, Callable[..., torch.Tensor]] = {
    "R[i] max= A[i,j] * B[i,j]": lambda A, B: (A * B).amax(1),
    "R[i] min= A[i,j] * B[i,j]": lambda A, B: (A * B).amin(1),
    "R[i,k] max= A[i,j] * B[k,j]": lambda A, B: (A[:, None] * B[None]).amax(2),
    "R[i] += A[i,j] + B[i,j]": lambda A, B: (A + B).sum(1),
    "R[i,j] = A[i,j] + B[i,j]": lambda A, B: A + B,
    "R[i,j] = abs(A[i,j] - B[i,j])": lambda A, B: (A - B).abs(),
}


def one_per_line(rng: random.Random, rows: int, columns: int) -> ns.SparseTensor:
    format = rng.choice((BY_ROWS, BY_COLUMNS))
    lines, across = (rows, columns) if format == BY_ROWS else (columns, rows)
    indices = torch.tensor([[line, rng.randrange(across)] for line in range(lines)]).t()
    values = torch.tensor([rng.randint(1, 4) for _ in range(lines)]).double()
    return ns.from_coo(indices if format == BY_ROWS else indices.flip(0), values, (rows, columns)).to(format)


def operand(rng: random.Random, *shape: int) -> torch.Tensor | ns.SparseTensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    values = torch.randint(1, 5, shape, generator=generator).double()
    values *= torch.rand(shape, generator=generator) < rng.choice((0.0, 0.02, 0.3))
    format = rng.choice(OTHERS) if len(shape) == 2 else rng.choice((ns.COO(1), None))
    return values if format is None else ns.from_torch(values).to(format)


def strided(tensor: torch.Tensor | ns.SparseTensor) -> torch.Tensor:
    return tensor.to_dense() if isinstance(tensor, ns.SparseTensor) else tensor


def check_einsum(seed: int) -> None:
    rng = random.Random(seed)
    inputs, output = rng.choice(EINSUMS).split("->")
    sizes = {letter: rng.choice((1, 2, 5, 40)) for letter in "ijkl"}
    terms = inputs.split(",")
    operands = [
        one_per_line(rng, *shape) if len(shape) == 2 and (at == 0 or rng.random() < 0.3) else operand(rng, *shape)
        for at, shape in enumerate([sizes[letter] for letter in term] for term in terms)
    ]
    places = rng.sample(range(len(terms)), len(terms))
    text = f"{','.join(terms[at] for at in places)}->{output}"
    shuffled = [operands[at] for at in places]
    formats = [None, "dense", "auto", *([ns.CSR, ns.CSC, ns.COO(2)] if len(output) == 2 else [])]
    result = ns.einsum(text, *shuffled, format=rng.choice(formats))
    assert torch.equal(strided(result), torch.einsum(text, *map(strided, shuffled))), (seed, text)


def test_einsums(scale: Callable[[int], int], plain: pytest.MonkeyPatch) -> None:
    for seed in range(scale(400)):
        check_einsum(seed)


def test_compiled_einsums(scale: Callable[[int], int]) -> None:
    for seed in range(scale(40)):
        check_einsum(seed)


@pytest.mark.parametrize("text", STATEMENTS)
def test_statements(text: str, scale: Callable[[int], int], plain: pytest.MonkeyPatch) -> None:
    for seed in range(scale(40)):
        rng = random.Random(seed)
        shape = rng.choice((1, 2, 5, 20)), rng.choice((1, 2, 5, 20))
        A, B = one_per_line(rng, *shape), operand(rng, *shape)
        for format in (None, "dense"):
            assert torch.equal(strided(ns.evaluate(text, A=A, B=B, format=format)), STATEMENTS[text](strided(A), strided(B)))


def test_results_that_lack_an_entry_of_a_row_have_another_format() -> None:
    A, B = (ns.from_coo([[0, 1], columns], [2.0, 3.0], (2, 3)).to(BY_ROWS) for columns in ([0, 1], [0, 2]))
    assert (A * B).to_dense().tolist() == [[4, 0, 0], [0, 0, 0]]
    with pytest.raises(ns.NumscorchError, match="holds one coordinate for each position above it"):
        ns.einsum("ij,ij->ij", A, B, format=BY_ROWS)


def test_columns_outermost() -> None:
    """Each column of B is searched for the coordinate of A's row, and few hold it."""
    generator = torch.Generator().manual_seed(0)
    A = ns.from_coo([[0], [7]], [2.0], (1, 300)).to(BY_ROWS)
    B = torch.rand(300, 40, generator=generator) * (torch.rand(300, 40, generator=generator) < 0.02)
    result = A @ ns.from_torch(B).to(ns.CSC)
    assert result.nnz == (B[7] != 0).sum()
    assert torch.equal(result.to_dense(), 2 * B[7:8])


def test_large_matrices_are_converted(plain: pytest.MonkeyPatch) -> None:
    """No kernel writes such a format, since a kernel may leave rows empty."""
    plain.setattr(tuning, "COMPILE_ENTRIES", 0)
    A = ns.from_coo([[0, 1, 2], [2, 0, 2]], [1.0, 2.0, 3.0], (3, 3)).to(ns.CSR)
    assert ns.equal(A.to(BY_ROWS), A)
    assert ns.equal(A.to(BY_ROWS).to(ns.CSC), A)
