"""Sparsifiers against brute force and torch, for shapes with remainders, shapes without entries, and strided inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from math import comb
from typing import Any

import pytest
import torch
from random_tensors import drawn
from torch.nn.functional import linear

import numscorch as ns
from numscorch.sparsify import (
    block_magnitude,
    compose,
    keep_all,
    low_rank_plus_sparse,
    magnitude,
    movement,
    n_m,
    n_m_g,
    random,
    report,
    same_pattern,
    sparsify,
    threshold,
    topk,
    wanda,
)
from numscorch.tensors.validate import validate

NEAR = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("sparsifier", [n_m(2, 4), n_m(1, 4, rows=16), n_m_g(2, 4, 2), n_m_g(1, 10, 1)], ids=repr)
def test_products_and_gradients_equal_those_of_the_masked_weight(sparsifier: Any, dtype: torch.dtype) -> None:
    check_products_and_gradients(sparsifier, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sparsifier", [n_m(2, 4), n_m_g(2, 4, 2)], ids=repr)
def test_compiled_products_and_gradients_are_the_same(sparsifier: Any, dtype: torch.dtype) -> None:
    check_products_and_gradients(sparsifier, dtype)


def check_products_and_gradients(sparsifier: Any, dtype: torch.dtype) -> None:
    """Compares with float64; the tolerance of 16-bit results allows a few roundings."""
    for rows, columns in ((1, 1), (3, 5), (7, 64), (130, 70)):
        W, x, bias = (drawn(*shape, dtype=dtype).requires_grad_() for shape in ((rows, columns), (6, columns), (rows,)))
        stored = sparsify(W, sparsifier)
        result = linear(x, stored, bias)
        assert result.dtype == dtype
        weights = drawn(6, rows, dtype=dtype, seed=1)
        (result * weights).sum().backward()
        mask = sparsifier(W.detach())
        exact = [operand.detach().double().requires_grad_() for operand in (W, x, bias)]
        expected = linear(exact[1], exact[0] * mask, exact[2])
        (expected * weights.double()).sum().backward()
        gradients = [(operand.grad, wide.grad) for operand, wide in zip((W, x, bias), exact, strict=True)]
        pairs: list[Any] = [(result, expected.detach()), *gradients]
        for value, reference in pairs:
            bound = NEAR[dtype] * max(1.0, float(reference.abs().max()))
            torch.testing.assert_close(value.double(), reference, rtol=NEAR[dtype], atol=bound)


def arrangements(kinds: list[int]) -> Iterator[tuple[int, ...]]:
    """Every distinct order of a list with equal members."""
    if not kinds:
        yield ()
    for kind in sorted(set(kinds)):
        left = kinds.copy()
        left.remove(kind)
        yield from ((kind, *rest) for rest in arrangements(left))


def largest_sum(weight: torch.Tensor, n: int, m: int, g: int) -> float:
    """The largest sum of magnitudes over all assignments of row choices to the columns of a chunk."""
    choices, total = list(combinations(range(m), n)), 0.0
    for block in weight.abs().double().split(m):
        padded = torch.nn.functional.pad(block, (0, 0, 0, m - len(block)))
        for chunk in padded.split(len(choices) * g, 1):
            sums = torch.stack([chunk[list(rows)].sum(0) for rows in choices]).tolist()
            width = chunk.shape[1]
            starts = [kind * width // len(choices) for kind in range(len(choices) + 1)]
            kinds = [kind for kind in range(len(choices)) for _ in range(starts[kind + 1] - starts[kind])]
            total += max(sum(sums[kind][column] for column, kind in enumerate(order)) for order in arrangements(kinds))
    return total


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        *(((1, 2, 1), (2, 2)), ((1, 2, 2), (4, 7)), ((1, 2, 3), (3, 6)), ((1, 3, 1), (5, 4)), ((2, 3, 2), (3, 8)), ((1, 4, 1), (6, 7))),
        *(((2, 4, 1), (4, 6)), ((2, 4, 1), (5, 8)), ((3, 4, 1), (4, 5)), ((2, 2, 1), (4, 3)), ((1, 5, 1), (5, 5)), ((1, 2, 4), (1, 5))),
    ],
)
def test_n_m_g_keeps_the_largest_possible_sum(parameters: tuple[int, int, int], shape: tuple[int, int]) -> None:
    n, m, g = parameters
    for seed in range(5):
        weight = drawn(*shape, seed=seed)
        weight = weight.round() if seed == 4 else weight  # many equal entries
        kept_sum = float(weight.abs().double()[n_m_g(n, m, g)(weight)].sum())
        assert kept_sum == pytest.approx(largest_sum(weight, n, m, g), rel=1e-6)


@pytest.mark.parametrize("parameters", [(1, 2, 1), (2, 4, 1), (2, 4, 8), (1, 4, 2), (3, 6, 1), (1, 10, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_that_n_m_g_keeps_has_bounds(parameters: tuple[int, int, int], seed: int) -> None:
    n, m, g = parameters
    weight = drawn(3 * m, 2 * comb(m, n) * g, seed=seed)
    total = float(weight.abs().double().sum())
    kept_sum = float(weight.abs().double()[n_m_g(n, m, g)(weight)].sum())
    n_m_sum = float(weight.abs().double()[n_m(n, m)(weight.t()).t()].sum())  # along the same dimension
    assert n / m * total <= kept_sum <= n_m_sum


FACTORIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "magnitude": lambda t: magnitude(0.5),
    "threshold": lambda t: threshold(0.3),
    "keep_all": lambda t: keep_all(),
    "random": lambda t: random(0.5, seed=0),
    "topk": lambda t: topk(1),
    "topk of none": lambda t: topk(0),
    "topk of columns": lambda t: topk(1, 0),
    "n_m": lambda t: n_m(1, 2),
    "n_m of rows": lambda t: n_m(2, 4, rows=2),
    "n_m_g": lambda t: n_m_g(1, 2, 1),
    "block_magnitude": lambda t: block_magnitude(2, 3, 0.5),
    "same_pattern": lambda t: same_pattern(drawn(*t.shape) > 0),
    "movement": lambda t: movement(0.5, drawn(*t.shape)),
    "wanda": lambda t: wanda(0.5, drawn(t.shape[-1] if t.ndim else 1).abs()),
    "compose": lambda t: compose(magnitude(0.5), threshold(0.1)),
    "low rank": lambda t: low_rank_plus_sparse(1, magnitude(0.5)),
}
MATRICES: dict[str, torch.Tensor] = {
    **{f"{rows} x {columns}": drawn(rows, columns) for rows, columns in ((0, 3), (3, 0), (0, 0), (1, 1), (1, 7), (7, 1))},
    "transposed": drawn(6, 4).t(),
    "strided": drawn(8, 12)[::2, 1::3],
    "expanded": drawn(4, 1).expand(4, 6),
    "negated view": torch.complex(drawn(3, 4), drawn(3, 4)).conj().imag,
    "bfloat16": drawn(4, 6, dtype=torch.bfloat16),
}
OTHERS = {str(shape): drawn(*shape) for shape in ((), (0,), (1,), (5,), (2, 3, 4), (2, 0, 4))}
REFUSED = {"topk": "k is at most 0", "topk of columns": "k is at most 0", "low rank": "it takes a matrix with 1 rows"}
OF_MATRICES = ("n_m of rows", "n_m_g", "block_magnitude", "wanda", "low rank")


def check_result_and_gradient(full: torch.Tensor, sparsifier: Any) -> None:
    mask, stored = sparsifier(full), sparsify(full, sparsifier)
    validate(stored.pattern)
    assert mask.shape == full.shape
    assert torch.equal(stored.to_dense(), torch.where(mask, full, torch.zeros((), dtype=full.dtype)))
    assert stored.dtype == full.dtype
    leaf = full.detach().clone().requires_grad_()
    sparsify(leaf * 1, sparsifier).to_dense().sum().backward()
    assert torch.equal(leaf.grad, mask.to(full.dtype))


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("size", MATRICES)
def test_every_sparsifier_takes_every_matrix(size: str, name: str) -> None:
    full = MATRICES[size]
    sparsifier = FACTORIES[name](full)
    if not full.numel() and name in REFUSED and not (name == "topk" and full.shape[1]) and not (name == "topk of columns" and len(full)):
        with pytest.raises(ns.SizeError, match=REFUSED[name]):
            sparsify(full, sparsifier)
        return
    check_result_and_gradient(full, sparsifier)


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("shape", OTHERS)
def test_every_sparsifier_takes_other_shapes_or_requires_a_matrix(shape: str, name: str) -> None:
    full = OTHERS[shape]
    sparsifier = FACTORIES[name](full)
    needs = name in OF_MATRICES and not (name == "n_m of rows" and full.ndim > 2)
    if needs or (full.ndim == 0 and name.startswith(("topk", "n_m"))) or (name == "topk" and shape == "(0,)"):
        with pytest.raises(ns.SizeError, match=r"of a tensor of shape \("):
            sparsify(full, sparsifier)
    elif name == "topk of columns" and shape == "(0,)":
        with pytest.raises(ns.SizeError, match="k is at most 0"):
            sparsify(full, sparsifier)
    else:
        check_result_and_gradient(full, sparsifier)


@pytest.mark.parametrize("shape", [(5, 7), (6, 6), (1, 1), (130, 70)])
@pytest.mark.parametrize("sparsifier", [block_magnitude(4, 4, 0.5), block_magnitude(16, 1, 0.5), n_m(1, 2, rows=16)], ids=repr)
def test_densities_count_entries_inside_the_matrix(sparsifier: Any, shape: tuple[int, int]) -> None:
    weight = drawn(*shape)
    stored, count = sparsify(weight, sparsifier), int(sparsifier(weight).sum())
    assert (stored.nnz, stored.density) == (count, count / weight.numel())
    assert report(weight, sparsifier).rows[0].density == count / weight.numel()
    dense = torch.nn.Linear(shape[1], shape[0])
    reports: list[Any] = []
    model = ns.sparsify.sparsify_model(dense, ns.sparsify.SparsityPlan().weight("weight", sparsifier), report=reports.append)
    count = int(sparsifier(dense.weight.detach()).sum())
    assert (reports[0]["weight"].density, model.weight.nnz) == (count / weight.numel(), count)
