"""Operators with torch's names on tensors of other orders, types and sizes than in ``coverage_rows``, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import numscorch as ns

pytestmark = pytest.mark.usefixtures("interpreted")
Operator = Callable[[Any], Any]


def numbers(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Distinct multiples of 1/16, about half of them replaced by 0, with an empty first slice."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    values = (torch.randperm(count, generator=generator) - count // 3).to(dtype) / 16
    values = values.reshape(shape) * (torch.rand(shape, generator=generator) < 0.5) + 0.0  # no -0
    if len(shape) > 1:
        values[0] = 0
    return values


def as_dense(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(as_dense, value))
    return value.to_dense() if isinstance(value, ns.SparseTensor) else value


def same(result: Any, expected: Any) -> None:
    result = as_dense(result)
    assert type(result) is type(expected) or not isinstance(expected, torch.Tensor)
    if isinstance(expected, tuple):
        assert len(result) == len(expected)
        for part, expected_part in zip(result, expected, strict=True):
            same(part, expected_part)
        return
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, equal_nan=True)


OF_THREE: dict[str, Operator] = {
    "vstack": lambda t: torch.vstack([t, 2 * t]),
    "hstack": lambda t: torch.hstack((t, t)),
    "dstack": lambda t: torch.dstack([t, t]),
    "column_stack": lambda t: torch.column_stack([t, t]),
    "concatenate": lambda t: torch.concatenate([t, t], -1),
    "chunk": lambda t: torch.chunk(t, 2, 2),
    "chunk, more than there are": lambda t: t.chunk(9, -1),
    "split": lambda t: t.split(2, dim=1),
    "tensor_split at": lambda t: torch.tensor_split(t, (1, -1), dim=2),
    "tensor_split at none": lambda t: torch.tensor_split(t, [2, 1, 9], dim=2),
    "vsplit": lambda t: torch.vsplit(t, 3),
    "hsplit": lambda t: torch.hsplit(t, [1, 2]),
    "unbind": lambda t: t.unbind(-1),
    "flip": lambda t: t.flip(0, 2),
    "fliplr": torch.fliplr,
    "flipud": torch.flipud,
    "roll": lambda t: t.roll(-7, 2),
    "roll, flat": lambda t: torch.roll(t, 5),
    "repeat": lambda t: t.repeat(2, 1, 0, 3),
    "tile": lambda t: t.tile((2, 1)),
    "pad": lambda t: F.pad(t, (0, 2, -1, 1)),
    "movedim": lambda t: torch.movedim(t, (0, 1), (2, 0)),
    "moveaxis": lambda t: torch.moveaxis(t, -1, 0),
    "swapdims": lambda t: torch.swapdims(t, 0, -1),
    "unflatten": lambda t: t.unflatten(1, (-1, 2)),
    "expand_as": lambda t: t[:1].expand_as(torch.ones(5, 4, 5)),
    "view_as": lambda t: t.view_as(torch.ones(3, 20)),
    "diagonal": lambda t: torch.linalg.diagonal(t),
    "diag_embed": lambda t: torch.diag_embed(t, 1, 0, 2),
    "kron": lambda t: torch.kron(t[0] + t[1], t),
    "inner": lambda t: torch.inner(t, t[1]),
    "var": lambda t: torch.var(t, (0, 2)),
    "var, no dim": lambda t: t.var(False),
    "var of a dim": lambda t: torch.var(t, 1, True, True),
    "std": lambda t: torch.std(t, dim=0, correction=2),
    "std_mean": lambda t: torch.std_mean(t, 2, keepdim=True),
    "logsumexp": lambda t: torch.logsumexp(t, (0, 1)),
    "logsumexp of a dim": lambda t: t.logsumexp(-1, keepdim=True),
    "max": lambda t: tuple(torch.max(t, 1)),
    "min": lambda t: tuple(t.min(2, keepdim=True)),
    "argmax": lambda t: torch.argmax(t),
    "argmax of a dim": lambda t: t.argmax(0, keepdim=True),
    "argmin, kept": lambda t: torch.argmin(t, keepdim=True),
    "topk": lambda t: torch.topk(t, 3, 1).values,
    "cumsum": lambda t: torch.cumsum(t, 1),
    "cummax": lambda t: torch.cummax(t, 1).values,
    "diff": lambda t: torch.diff(t, 2, 1),
    "normalize": lambda t: F.normalize(t, 1, 2),
    "cosine_similarity": lambda t: F.cosine_similarity(t, 2 * t + t.roll(1, 0), dim=2),
    "remainder": lambda t: t % 0.25,
    "remainder of a number": lambda t: torch.remainder(3.0, t + 100),
    "floor_divide": lambda t: t // torch.tensor([[2.0], [-0.5], [1.5], [4.0]]),
    "fmod, wider": lambda t: torch.fmod(t, torch.full((2, 1, 1, 1), 0.5)),
    "masked_fill": lambda t: t.masked_fill(torch.tensor([True, False, True, False, True]), 0),
    "gather": lambda t: t.gather(1, torch.tensor([[[0, 3], [2, -4 + 4]], [[1, 1], [0, 2]]])),
    "take": lambda t: t.take(torch.tensor([0, 25, -1])),
    "take_along_dim": lambda t: torch.take_along_dim(t, torch.tensor([[[2, 0]]])),
    "take_along_dim of a dim": lambda t: torch.take_along_dim(t, torch.tensor([[[2, 0]], [[1, 1]], [[0, 3]]]), 2),
    "all lists": lambda t: t[[0, 1, 2], [3, 2, -1], torch.tensor([0, 4, 1])],
    "lists beside each other": lambda t: t[:, [0, 1], [2, 3]],
    "lists apart": lambda t: t[[0, 1], :, [2, 3]],
    "lists that broadcast": lambda t: t[[[0], [1]], [2, 3]],
    "a list and a number": lambda t: t[1, :, [2, 3]],
    "lists and a new dimension": lambda t: t[[0, 1], None, [2, 3]],
    "an index of two dimensions": lambda t: t[1:, torch.tensor([[0, 1, 3]])],
    "an index of none": lambda t: t[torch.empty(0, 2, dtype=torch.int64)],
    "a mask of two dimensions": lambda t: t[t.sum(2) > 0],
    "a mask behind": lambda t: t[..., as_dense(t)[1] > 0],
    "a mask of three": lambda t: t[t > 0],
    "a mask and a list": lambda t: t[torch.tensor([True, False, True]), [1, 2]],
    "masked_select": lambda t: t.masked_select(torch.tensor([True, False, True, False, True])),
    "mT": lambda t: t.mT,
    "adjoint": lambda t: t.adjoint(),
}


@pytest.mark.parametrize("format", ["COO(3)", "CSF(3)", "dds", "sds"])
@pytest.mark.parametrize("name", OF_THREE)
def test_of_three_dimensions(name: str, format: str) -> None:
    full = numbers(3, 4, 5)
    same(OF_THREE[name](ns.from_torch(full, format)), OF_THREE[name](full))


OF_VECTORS: dict[str, Operator] = {
    "vstack": lambda t: torch.vstack([t, t]),
    "hstack": lambda t: torch.hstack([t, t]),
    "dstack": lambda t: torch.dstack([t]),
    "column_stack": lambda t: torch.column_stack([t, t]),
    "hsplit": lambda t: t.hsplit(2),
    "atleast_2d": torch.atleast_2d,
    "atleast_3d": lambda t: torch.atleast_3d(t, t)[1],
    "diag": lambda t: torch.diag(t, -2),
    "diag_embed": torch.diag_embed,
    "flip": lambda t: t.flip(0),
    "roll": lambda t: t.roll(1),
    "outer": lambda t: torch.outer(t, t),
    "dot": lambda t: t.dot(t),
    "vdot": lambda t: torch.vdot(t, t.flip(0)),
    "kron": lambda t: torch.kron(t, t),
    "var": torch.var,
    "logsumexp": lambda t: torch.logsumexp(t, 0),
    "topk": lambda t: tuple(torch.topk(t.abs(), 1)),
    "max": lambda t: tuple(t.max(0)),
    "a mask": lambda t: t[t != 0],
    "an index": lambda t: t[torch.tensor([[0, 1], [5, 5]])],
    "gather": lambda t: t.gather(0, torch.tensor([3])),
}


@pytest.mark.parametrize("name", OF_VECTORS)
def test_of_vectors(name: str) -> None:
    full = numbers(6)
    same(OF_VECTORS[name](ns.from_torch(full)), OF_VECTORS[name](full))


WITHOUT_ENTRIES = (
    "flip",
    "roll",
    "repeat",
    "pad",
    "split",
    "kron",
    "gather",
    "all lists",
    "topk",
    "max",
    "var",
    "logsumexp",
    "normalize",
    "mT",
)


@pytest.mark.parametrize("name", WITHOUT_ENTRIES)
def test_tensors_without_entries(name: str) -> None:
    """Results without stored entries are differentiable."""
    full = torch.zeros(3, 4, 5)
    A = ns.from_torch(full)
    A.values.requires_grad_()
    result = OF_THREE[name](A)
    same(result, OF_THREE[name](full))
    for part in result if isinstance(result, tuple) else (result,):
        if part.dtype.is_floating_point:
            part.sum().backward()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)], ids=str)
def test_sizes_of_0(shape: tuple[int, ...]) -> None:
    full = torch.zeros(shape)
    A: Any = ns.from_torch(full)
    for operator in (
        lambda t: torch.flip(t, [0, 1]),
        lambda t: torch.roll(t, 1, 0),
        lambda t: t.repeat(2, 2),
        lambda t: torch.chunk(t, 2, 1),
        lambda t: t.split(2),
        lambda t: F.pad(t, (1, 1)),
        lambda t: torch.cat([t, t]),
        lambda t: t[t > 0],
        lambda t: t.sum(0),
    ):
        same(operator(A), operator(full))
    assert bool(A.var().isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64, torch.bool], ids=str)
def test_data_types(dtype: torch.dtype) -> None:
    full = torch.tensor([[0, 2, 0], [3, 0, 4]]).to(dtype)
    A: Any = ns.from_torch(full)
    operators: list[Operator] = [lambda t: torch.flip(t, [0]), lambda t: t[[0, 1], [1, 0]], lambda t: t.diag(), lambda t: t.tile(2)]
    if dtype not in (torch.complex64, torch.bool):
        operators += [lambda t: t % 2, lambda t: tuple(t.max(1)), torch.trace]
    if dtype.is_floating_point or dtype.is_complex:
        operators += [torch.var, lambda t: torch.std(t, 1)]
    else:
        with pytest.raises(ns.UnsupportedError, match="not an integer"):
            A.var()
    if dtype.is_floating_point:
        operators += [lambda t: torch.logsumexp(t, 0), F.normalize, lambda t: F.mse_loss(t, t.abs() + t)]
    for operator in operators:
        result, expected = as_dense(operator(A)), operator(full)
        same(result, expected) if isinstance(expected, tuple) else torch.testing.assert_close(result, expected)


def test_a_variance_far_from_0() -> None:
    """The variance is not computed as a difference of two large sums, which would be inaccurate."""
    full = 1e4 + torch.rand(100, 4, generator=torch.Generator().manual_seed(1))
    full[:, 3] = 0
    torch.testing.assert_close(ns.from_torch(full).var(0), full.var(0), rtol=1e-4, atol=0)


def test_sums_of_exponentials_of_large_and_infinite_entries() -> None:
    full = torch.tensor([[1000.0, 0.0], [-1000.0, -999.0], [-torch.inf, -torch.inf], [torch.inf, 0.0], [-1000.0, 0.0]])
    same(ns.from_torch(full).logsumexp(1), full.logsumexp(1))


def test_topk_with_ties_zeros_and_nan() -> None:
    full = torch.tensor([[0.0, -2.0, 0.0, 5.0], [-1.0, -2.0, -3.0, -4.0], [0.0, 0.0, 0.0, 0.0], [torch.nan, 0.0, -1.0, 7.0]])
    A = ns.from_torch(full)
    for largest in (True, False):
        values, indices = torch.topk(A, 3, largest=largest)
        expected = torch.topk(full, 3, largest=largest).values
        torch.testing.assert_close(values, expected, equal_nan=True)
        torch.testing.assert_close(full.gather(1, indices), expected, equal_nan=True)
        assert all(len(set(row)) == 3 for row in indices.tolist())
    assert torch.topk(A, 0).values.shape == (4, 0)


def test_gradients_of_topk() -> None:
    full = torch.tensor([[0.0, 2.0, 3.0], [4.0, -1.0, 1.0]])
    A, full_leaf = ns.from_torch(full), full.clone().requires_grad_()
    A.values.requires_grad_()
    for t in (A, full_leaf):
        (torch.topk(t, 2).values * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    gradient = A.grad
    assert gradient is not None
    assert full_leaf.grad is not None
    assert torch.equal(gradient.to_dense(), full_leaf.grad)


def test_gradients_at_zero_deviation_and_zero_norm() -> None:
    """Gradients are 0 instead of 0 / 0, for example for a row of stored zeros."""
    A = ns.from_coo([[0, 0, 1], [0, 1, 0]], [0.0, 0.0, 2.0], (2, 2), ns.CSR)
    A.values.requires_grad_()
    for operator in (lambda t: torch.std(t, 1), F.normalize, lambda t: torch.norm(t, 2, 1), lambda t: torch.cdist(t, t)):
        operator(A).sum().backward()
        assert bool(A.values.grad.isfinite().all())


HUGE = (10**5, 10**5)
OF_HUGE: dict[str, Operator] = {
    "flip": lambda t: t.flip(0, 1),
    "roll": lambda t: t.roll((3, 4), (0, 1)),
    "repeat": lambda t: t.repeat(2, 3),
    "pad": lambda t: F.pad(t, (1, 1)),
    "diag": torch.diag,
    "trace": torch.trace,
    "kron": lambda t: torch.kron(t, ns.from_torch(torch.eye(2, dtype=torch.float64))),
    "split": lambda t: t.split(50_000, 1),
    "var": lambda t: torch.var(t),
    "std": lambda t: torch.std(t, 1),
    "logsumexp": lambda t: torch.logsumexp(t, 0),
    "max": lambda t: torch.max(t, 1).values,
    "argmax": torch.argmax,
    "topk": lambda t: torch.topk(t, 2, 0).values,
    "normalize": F.normalize,
    "mse_loss": lambda t: F.mse_loss(t, 3 * t.t()),
    "dist": lambda t: torch.dist(t, t.t()),
    "cosine_similarity": lambda t: torch.cosine_similarity(t, t.t()),
    "A[rows, columns]": lambda t: t[[99_999, 3], [5, 99_999]],
    "A[A > 0]": lambda t: t[t > 0],
    "A[[index]]": lambda t: t[torch.tensor([[5, 99_999]])],
    "gather": lambda t: t.gather(1, torch.zeros(1000, 2, dtype=torch.int64)),
    "take": lambda t: t.take(torch.tensor([5, 10**10 - 1])),
    "remainder": lambda t: t % 2,
    "masked_fill": lambda t: t.masked_fill(torch.arange(10**5) > 10, 0),
    "matrix_power": lambda t: torch.matrix_power(t, 3),
}


@pytest.mark.parametrize("name", OF_HUGE)
def test_nothing_is_made_dense(name: str) -> None:
    """A dense tensor of this shape takes 80 GB."""
    A = ns.from_coo([[0, 3, 99_999], [5, 99_999, 99_999]], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), HUGE)
    A.values.requires_grad_()
    result = OF_HUGE[name](A)
    parts = result if isinstance(result, tuple) else (result,)
    if parts[0].dtype.is_floating_point:
        parts[-1].sum().backward()
        assert A.values.grad is not None


PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "kron": torch.kron,
    "cosine_similarity": lambda a, b: torch.cosine_similarity(a, b, 0),
    "dist": torch.dist,
    "dist, p=1": lambda a, b: torch.dist(a, b, 1),
    "cdist": torch.cdist,
    "mse_loss": F.mse_loss,
    "mse_loss, none": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "l1_loss, sum": lambda a, b: F.l1_loss(a, b, reduction="sum"),
    "smooth_l1_loss": lambda a, b: F.smooth_l1_loss(a, b, beta=0.25),
    "huber_loss": F.huber_loss,
    "MSELoss": lambda a, b: torch.nn.MSELoss()(a, b),
    "isclose": torch.isclose,
    "fmod": torch.fmod,
    "inner": torch.inner,
    "masked_fill": lambda a, b: torch.masked_fill(a, b > 0, 3.0),
    "addr": lambda a, b: torch.addr(a, a[:, 0], b[0], alpha=2),
    "vstack": lambda a, b: torch.vstack([a, b]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_tensors_of_which_some_are_sparse(name: str) -> None:
    a, b = numbers(4, 4), numbers(4, 4, seed=2)
    expected = PAIRS[name](a, b)
    for left, right in ((ns.from_torch(a), ns.from_torch(b, ns.CSC)), (ns.from_torch(a), b), (a, ns.from_torch(b))):
        if name == "vstack" and not (isinstance(left, ns.SparseTensor) and isinstance(right, ns.SparseTensor)):
            continue
        result = as_dense(PAIRS[name](left, right))
        result = torch.where(a == 0, 0, result) if name == "fmod" else result
        torch.testing.assert_close(result, torch.where(a == 0, 0, expected) if name == "fmod" else expected, equal_nan=True)


@pytest.mark.parametrize("ends", ["matrices", "a vector in front", "a vector behind", "vectors"])
def test_chains_of_products(ends: str) -> None:
    chain = [numbers(3, 4), numbers(4, 5, seed=2), numbers(5, 2, seed=3)]
    chain[0] = chain[0][1] if ends in ("a vector in front", "vectors") else chain[0]
    chain[2] = chain[2][:, 1] if ends in ("a vector behind", "vectors") else chain[2]
    expected = torch.linalg.multi_dot(chain)
    for at in range(3):
        operands: list[Any] = [ns.from_torch(t) if d == at else t for d, t in enumerate(chain)]
        same(torch.linalg.multi_dot(operands), expected)
    if ends == "matrices":
        same(torch.chain_matmul(ns.from_torch(chain[0]), *chain[1:]), expected)


def test_pythons_operators_on_parameters_and_dense_tensors() -> None:
    full = numbers(3, 4)
    A, D = ns.from_torch(full), torch.full((3, 4), 7.0, dtype=torch.float64)
    W: Any = ns.nn.Parameter(A)
    same(as_dense(W % 0.5).detach(), full % 0.5)
    same(as_dense(W // 0.5).detach(), full // 0.5)
    same(D % (A + 100), D % (full + 100))
    same(7.0 // (A + 100), 7.0 // (full + 100))
    same(D // A, D // full)
    same(D % A, D % full)


@pytest.mark.filterwarnings("ignore::numscorch.DenseFallbackWarning")
def test_a_parameter_takes_every_operator_of_a_tensor() -> None:
    full = numbers(3, 4)
    W: Any = ns.nn.Parameter(ns.from_torch(full))
    mask: Any = ns.nn.Parameter(ns.from_torch(full > 0), requires_grad=False)
    same(as_dense(mask & mask), full > 0)
    same(as_dense(mask | (W < 0)), full != 0)
    same(as_dense(mask ^ mask), torch.zeros(3, 4, dtype=torch.bool))
    same(as_dense(~mask), full <= 0)
    same(as_dense(divmod(W, 2)[1]).detach(), full % 2)
    same(as_dense(np.float64(2) * W).detach(), 2 * full)
    assert float(full[full != 0][0]) in W and 1e9 not in W
    with pytest.raises(ns.SizeError, match="it has 12 entries"):
        bool(W)
    one: Any = ns.nn.Parameter(ns.from_coo([[0], [0]], [2.0], (1, 1)))
    assert bool(one) and (float(one), int(one), complex(one)) == (2.0, 2, 2.0)
    original, pattern = W, W.pattern
    with torch.no_grad():
        W *= 2
        W += W
    assert W is original and W.pattern is pattern
    same(as_dense(W).detach(), 4 * full)


def test_native_sparse_tensors_return_native_sparse_tensors() -> None:
    native = numbers(4, 6).to_sparse_csr()
    assert ns.flip(native, [0]).layout is torch.sparse_csr
    assert [part.layout for part in ns.chunk(native, 2)] == [torch.sparse_csr] * 2
    assert torch.equal(ns.diag(torch.ones(2)), torch.eye(2))


def test_equal_calls_share_cached_patterns() -> None:
    A = ns.from_torch(numbers(4, 6))
    assert A.flip(0).pattern is A.flip(0).pattern
    assert A.chunk(2)[1].pattern is A.chunk(2)[1].pattern


BAD: dict[str, tuple[Operator, type[Exception], str]] = {
    "flip of a dim twice": (lambda A: A.flip(0, -2), ns.SizeError, "name each once"),
    "roll by too many": (lambda A: torch.roll(A, (1, 2), 0), ns.SizeError, "give one shift for each"),
    "repeat by too few": (lambda A: A.repeat(2), ns.SizeError, "give a number for each dimension"),
    "pad of an odd length": (lambda A: F.pad(A, (1,)), ns.SizeError, "give two sizes"),
    "pad to less than nothing": (lambda A: F.pad(A, (-4, -4)), ns.SizeError, "would leave the shape"),
    "pad by 1": (lambda A: F.pad(A, (1, 1), value=1.0), ns.UnsupportedError, "pad with 0"),
    "pad by reflection": (lambda A: F.pad(A, (1, 1), "reflect"), ns.UnsupportedError, "F.pad(A.to_dense(), ...)"),
    "diag of three": (lambda A: torch.diag(A[None]), ns.SizeError, "it takes vectors and matrices"),
    "diag_embed in one dim": (lambda A: torch.diag_embed(A, 0, 1, 1), ns.SizeError, "give two different dimensions"),
    "trace of three": (lambda A: torch.trace(A[None]), ns.SizeError, "it takes matrices"),
    "movedim of too few": (lambda A: torch.movedim(A, (0, 1), (1,)), ns.SizeError, "give equally many distinct dimensions"),
    "unflatten that doesn't fit": (lambda A: A.unflatten(1, (4, -1)), ns.SizeError, "can't have the shape (4, 1)"),
    "split that doesn't fit": (
        lambda A: A.split([1, 2], 1),
        ns.SizeError,
        "split_sizes to sum exactly to 6",
    ),
    "split into nothing": (lambda A: A.split(0), ns.SizeError, "split_size can only be 0 if dimension size is 0"),
    "chunk into none": (lambda A: A.chunk(0), ns.SizeError, "`chunks` to be greater than 0"),
    "tensor_split into none": (lambda A: A.tensor_split(0), ns.SizeError, "number of sections must be larger than 0"),
    "hsplit that isn't even": (lambda A: torch.hsplit(A, 4), ns.SizeError, "is not divisible by the split_size 4"),
    "vstack of others": (lambda A: torch.vstack([A, A.t()]), ns.SizeError, "other sizes differ"),
    "cat with a dense one": (lambda A: torch.hstack([A, torch.ones(4, 1)]), ns.UnsupportedError, ".to_dense()"),
    "topk of too many": (lambda A: torch.topk(A, 7), ns.SizeError, "at most its size"),
    "outer of matrices": (lambda A: torch.outer(A, A), ns.SizeError, "it takes 1 and 1"),
    "dot of matrices, as in SciPy": (lambda A: A.dot(A.t()), ns.SizeError, "A @ B any"),
    "dot of other sizes": (lambda A: torch.dot(A[0], torch.ones(1)), ns.SizeError, "size 6 of dim 0 must equal size 1"),
    "multi_dot of none that fit": (lambda A: torch.linalg.multi_dot([A, A[None], A]), ns.SizeError, "it takes matrices"),
    "matrix_power of 0": (lambda A: torch.matrix_power(A[:, :4], 0), ns.UnsupportedError, "positive n"),
    "cdist with p": (lambda A: torch.cdist(A, A, 1.0), ns.UnsupportedError, "use p=2"),
    "cdist of batches": (lambda A: torch.cdist(A[None], A[None]), ns.SizeError, "it takes sparse matrices"),
    "a loss of two shapes": (lambda A: F.mse_loss(A, A.t()), ns.SizeError, "must be the same"),
    "a loss of an unknown reduction": (lambda A: F.mse_loss(A, A, reduction="max"), ns.UnsupportedError, "'mean', 'sum' or 'none'"),
    "an old argument": (lambda A: F.mse_loss(A, A, reduce=True), ns.UnsupportedError, "use reduction="),
    "weights of huber_loss": (lambda A: F.huber_loss(A, A, weight=torch.ones(4, 6)), ns.UnsupportedError, "reduction='none'"),
    "a loss of two sparse ones": (lambda A: F.kl_div(A, A), ns.UnsupportedError, "make one dense"),
    "gather that doesn't fit": (lambda A: A.gather(0, torch.zeros(1, 9, dtype=torch.int64)), ns.SizeError, "it must fit"),
    "gather out of range": (
        lambda A: A.gather(0, torch.tensor([[4]])),
        ns.SizeError,
        "index 4 is out of range along dim 0, whose size is 4",
    ),
    "take_along_dim of few": (lambda A: torch.take_along_dim(A, torch.tensor([0]), 1), ns.SizeError, "they must agree"),
    "lists out of range": (lambda A: A[[0, 1], [5, 6]], ns.SizeError, "index 6 is out of range along dim 1, whose size is 6"),
    "a mask of another shape": (lambda A: A[torch.ones(4, 5, dtype=torch.bool)], ns.SizeError, "they must agree"),
    "a sparse tensor of numbers": (lambda A: A[A], ns.UnsupportedError, "as index"),
    "numbers that aren't whole": (lambda A: A[[0.5, 1.0], [0, 1]], ns.errors.IndexKindError, "as index"),
    "lists of other lengths": (lambda A: A[[0, 1], [1, 2, 3]], ns.SizeError, "the shapes don't broadcast"),
    "remainders of other shapes": (lambda A: A % torch.ones(5), ns.SizeError, "the shapes don't broadcast"),
    "comparisons of other shapes": (
        lambda A: ns.from_torch(torch.ones(3, 3)) <= A,
        ns.SizeError,
        "(3, 3) and (4, 6): the shapes don't broadcast",
    ),
    "a step back": (lambda A: A[::-1], ns.SizeError, "it must be positive"),
    "strides": (lambda A: A.stride(), ns.UnsupportedError, "use A.to_dense().stride()"),
    "H of three": (lambda A: A[None].H, ns.SizeError, "it takes matrices"),
    "the GPU": (lambda A: A.cuda(), ns.UnsupportedError, "runs on the CPU"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_calls_are_refused(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind) as error:
        call(ns.from_torch(numbers(4, 6)))
    assert text in str(error.value)


def test_positions_beyond_int64_cannot_be_looked_up() -> None:
    A = ns.from_coo([[1], [2]], [3.0], (2**40, 2**40))
    with pytest.raises(ns.SizeError, match="cannot look up"):
        A[[1], [2]]


@pytest.mark.parametrize("index", [torch.tensor([[1, 2]]), ([0, 3], [5, 1])], ids=["a tensor", "two lists"])
def test_gradients_of_repeated_indexing_add_up(index: Any) -> None:
    """Gradients of entries that are selected more than once are summed."""
    full = numbers(4, 6)
    A, full_leaf = ns.from_torch(full), full.clone().requires_grad_()
    A.values.requires_grad_()
    for t in (A, full_leaf):
        (t[index].sum() + t[index].sum()).backward()
    gradient = A.grad
    assert gradient is not None
    assert full_leaf.grad is not None
    assert torch.equal(gradient.to_dense(), torch.where(full != 0, full_leaf.grad, 0))


ROWS: dict[str, Any] = {
    "one": 7,
    "the last": -1,
    "some": slice(2, 5),
    "every third": slice(1, None, 3),
    "none": slice(4, 4),
    "in another order": [9, 0, 9, 3],
    "a mask": torch.arange(12) % 5 == 1,
    "all": torch.arange(11, -1, -1),
    "and columns": (slice(3, 6), [2, 0, 2]),
    "and one column": (slice(3, 6), 2),
    "one entry": (7, 2),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC], ids=lambda f: f.name)
@pytest.mark.parametrize("key", ROWS.values(), ids=ROWS)
def test_rows_are_selected_without_reading_the_others(key: Any, fmt: ns.Format) -> None:
    D = torch.randint(-2, 3, (12, 4), generator=torch.Generator().manual_seed(0)).float() * (torch.arange(12) % 4 > 0)[:, None]
    A = ns.from_torch(D, ns.CSR) if fmt == ns.CSR else ns.from_torch(D.t().contiguous(), ns.CSC)
    values = A.values.requires_grad_()
    swapped = key[::-1] if isinstance(key, tuple) else (slice(None), key)
    rows, expected = (A[key], D[key]) if fmt == ns.CSR else (A[swapped], D.t()[swapped])
    assert "coordinates" not in A.pattern.derived  # of all entries
    assert torch.equal(as_dense(rows), expected)
    rows.sum().backward()
    assert values.grad is not None and values.grad.sum() == as_dense(rows != 0).sum()
