"""Expressions that other sparse compilers test, document as gaps, or fail on, in many mixes of formats."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from dense_values import as_dense

import numscorch as ns

SIZES = {"i": 5, "j": 6, "k": 4, "l": 3, "m": 2, "b": 3}


def array(term: str, seed: int, dense: bool) -> torch.Tensor:
    """Small integers, with some empty rows."""
    generator = torch.Generator().manual_seed(seed)
    shape = [SIZES[name] for name in term]
    values = torch.randint(-3, 4, shape, generator=generator).double()
    mask = torch.rand(shape, generator=generator) < 0.4
    if mask.ndim:
        mask[0] = False
    return values if dense else values * mask


def operand(term: str, fmt: ns.Format | str, seed: int) -> tuple[torch.Tensor, object]:
    """A dense operand, and the same tensor in a format."""
    fmt = ns.Format(fmt) if isinstance(fmt, str) else fmt
    dense = array(term, seed, fmt.is_dense)
    return dense, dense if fmt.is_dense else ns.from_torch(dense).to(fmt)


def check(expr: str, formats: tuple[ns.Format | str, ...], result: ns.Format | str | None = None) -> None:
    terms = expr.split("->")[0].split(",")
    pairs = [operand(term, fmt, at) for at, (term, fmt) in enumerate(zip(terms, formats, strict=True))]
    actual = ns.einsum(expr, *(tensor for _, tensor in pairs), format=result)
    expected = torch.einsum(expr, *(dense for dense, _ in pairs))
    dense = as_dense(actual)
    assert torch.equal(dense, expected)
    if result is not None and not ns.Format(result).is_dense if isinstance(result, str) else result is not None:
        assert isinstance(actual, ns.SparseTensor)


MATRICES = ("ds", "ss", "oo", "sd")
CSC, DCSC = ns.CSC, ns.DCSC
ROWS: list[tuple[str, tuple[ns.Format | str, ...], ns.Format | str | None]] = [
    # vectors and broadcasts
    *(("i,i->i", mix, "s") for mix in product(("s", "d"), repeat=2) if mix != ("d", "d")),
    ("i,j->ij", ("s", "s"), "ss"),
    ("ij,i,j->ij", ("ss", "s", "s"), "ss"),
    # element-wise, two to four dimensions
    *(("ij,ij->ij", mix, result) for mix in product(MATRICES, ("oo", "ss", "ds", "dd")) for result in (None, "ds", "ss")),
    *(("ijk,ijk->ijk", mix, "sss") for mix in product(("sss", "dss", "ooo"), repeat=2)),
    *(("ijkl,ijkl->ijkl", mix, None) for mix in product(("oooo", "ssss", "ssdd", "ddss"), ("dddd", "ssss", "ssdd"))),
    # products with vectors and matrices
    *(("ij,j->i", (fmt, "d"), None) for fmt in MATRICES),
    *(("ik,kj->ij", (fmt, "dd"), None) for fmt in MATRICES),
    *(("ik,kj->ij", ("dd", fmt), None) for fmt in MATRICES),
    *(("ik,kj->ij", mix, result) for mix in product(MATRICES, repeat=2) for result in (None, "dd", "ds", "ss", "oo", "sd")),
    *(("ik,kl,lj->ij", mix, "ds") for mix in (("ds", "ss", "oo"), ("oo", "oo", "oo"), ("ss", "ds", "sd"))),
    # mode orders
    *(("ik,jk->ji", mix, result) for mix in product((ns.CSR, CSC, DCSC), repeat=2) for result in (ns.CSR, CSC)),
    *(("ik,kj->ij", mix, None) for mix in ((CSC, "dd"), (CSC, CSC), (ns.Format("oo", (1, 0)), "dd"), (ns.Format("oo", (1, 0)), "oo"))),
    # batches, sampled products, tensors
    ("bij,bjk->bik", ("dss", "dss"), None),
    ("bij,bjk->bik", ("dss", "ddd"), None),
    *(("ij,ik,kj->ij", (fmt, "dd", "dd"), None) for fmt in MATRICES),
    *(("ij,ik,jk->ij", (fmt, "dd", "dd"), "oo") for fmt in MATRICES),
    ("ijk,km->ijm", ("dds", "dd"), None),
    ("ijk,jm,km->im", ("sss", "dd", "dd"), None),
    ("ijk,jm,km->im", ("sss", "ss", "ds"), "ds"),
    # gaps that the reference declares, and TACO's open failures
    ("ij,j->ij", ("ds", "d"), None),
    ("i,jk->ik", ("d", "ds"), None),
    ("i,jk->ik", ("s", "sd"), "ss"),
    ("ij,jk->ik", ("dd", "oo"), None),
    ("ij->ij", ("ds",), "sd"),
    ("ii->i", ("ds",), None),
    ("ii,ij->j", ("ss", "sd"), None),
    ("ijk,ijk->ijk", ("sss", "sss"), "sss"),
    ("ijk->kji", ("sss",), "sss"),
    ("ijk,k->ij", ("sds", "s"), "ss"),
    ("ij,ji->", ("ds", "ds"), None),
]


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_row(number: int, interpreted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expr, formats, result = ROWS[number]
    monkeypatch.setitem(SIZES, "j", 5 if expr in ("ii->i", "ii,ij->j", "ij,ji->") else 6)
    check(expr, formats, result)


@pytest.mark.parametrize("other", ["dd", *MATRICES, CSC], ids=str)
@pytest.mark.parametrize("fmt", [*MATRICES, CSC], ids=str)
def test_addition(fmt: ns.Format | str, other: ns.Format | str, interpreted: None) -> None:
    (a, A), (b, B) = operand("ij", fmt, 0), operand("ij", other, 1)
    for statement, expected in (
        ("C[i,j] = A[i,j] + B[i,j]", a + b),
        ("C[i,j] = A[i,j] - B[i,j]", a - b),
        ("C[j,i] = A[i,j] + B[i,j]", (a + b).T),
    ):
        result = ns.evaluate(statement, A=A, B=B)
        assert torch.equal(as_dense(result), expected)


@pytest.mark.parametrize("fmt", ["ds", "ss", "oo"])
@pytest.mark.parametrize("kind", ["all zero", "disjoint", "single", "square of a nilpotent one"])
def test_edges(kind: str, fmt: str, interpreted: None) -> None:
    a, b = torch.zeros(4, 4), torch.zeros(4, 4)
    if kind == "disjoint":
        a[:2, :2], b[2:, 2:] = 1.0, 2.0
    if kind == "single":
        a[3, 0] = b[0, 2] = 5.0
    if kind == "square of a nilpotent one":
        a = b = torch.diag(torch.ones(3), 1)
    A, B = ns.from_torch(a).to(ns.Format(fmt)), ns.from_torch(b).to(ns.Format(fmt))
    assert torch.equal(ns.einsum("ij,jk->ik", A, B).to_dense(), a @ b)
    assert torch.equal((A + B).to_dense(), a + b)
    assert torch.equal((A * B).to_dense(), a * b)
