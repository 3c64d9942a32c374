"""Arguments with torch's names, and arguments at the edges of an operator's domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dense_values import as_dense

import numscorch as ns


@pytest.mark.parametrize(
    "call",
    [
        lambda A, other: A & other,
        lambda A, other: A | other,
        lambda A, other: A ^ other,
        lambda A, other: other & A,
        lambda A, other: other | A,
        lambda A, other: other ^ A,
        lambda A, other: ~A,
    ],
)
@pytest.mark.parametrize("kind", ["sparse", "dense", "number"])
def test_bitwise_operators(call: Callable[..., Any], kind: str, A: ns.SparseTensor, D: torch.Tensor) -> None:
    first, full = A > 2, D > 2
    other: Any = {"sparse": A > 4, "dense": D < 5, "number": True}[kind]
    expected = call(full, D > 4 if kind == "sparse" else other)
    result = call(first, other)
    assert result.dtype == torch.bool
    torch.testing.assert_close(result.to_dense(), expected)
    with pytest.raises(ns.UnsupportedError, match="bits"):
        call(A.to(torch.int64), A.to(torch.int64) if kind == "sparse" else D.long() if kind == "dense" else 3)


SUMS: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "addmm": ((4, 2), lambda input, A: torch.addmm(input, A, torch.ones(4, 2))),
    "addmv": ((4,), lambda input, A: torch.addmv(input, A, torch.ones(4))),
    "addr": ((4, 4), lambda input, A: torch.addr(input, A[0], torch.ones(4))),
    "baddbmm": ((1, 4, 2), lambda input, A: torch.baddbmm(input, A.unsqueeze(0), torch.ones(1, 4, 2))),
    "addbmm": ((4, 2), lambda input, A: torch.addbmm(input, A.unsqueeze(0), torch.ones(1, 4, 2))),
}


@pytest.mark.parametrize("name", SUMS)
def test_an_input_larger_than_the_product_is_refused(name: str, A: ns.SparseTensor, D: torch.Tensor) -> None:
    shape, call = SUMS[name]
    for input_shape in (shape, shape[-1:], (1,)):
        input = torch.arange(1.0, 1 + torch.Size(input_shape).numel()).reshape(input_shape)
        torch.testing.assert_close(call(input, A), call(input, D))
    for larger in ((3, *shape), (*shape[:-1], 3)):
        with pytest.raises(RuntimeError):
            call(torch.ones(larger), D)
        with pytest.raises(ns.SizeError, match="broadcast"):
            call(torch.ones(larger), A)


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "addbmm"])
def test_sums_within_autocast_have_its_data_type(name: str, A: ns.SparseTensor, D: torch.Tensor) -> None:
    shape, call = SUMS[name]
    with torch.autocast("cpu"):
        result, expected = call(torch.ones(shape), A), call(torch.ones(shape), D)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    "call",
    [
        lambda A: torch.matmul(input=A, other=torch.ones(4, 2)),
        lambda A: torch.matmul(torch.ones(2, 4), other=A),
        lambda A: torch.ones(2, 4).matmul(A),
        lambda A: ns.matmul(input=A, other=torch.ones(4)),
        lambda A: torch.mm(A, mat2=torch.ones(4, 2)),
        lambda A: ns.mm(A, mat2=torch.ones(4, 2)),
        lambda A: torch.mv(A, vec=torch.ones(4)),
        lambda A: torch.bmm(A.unsqueeze(0), mat2=torch.ones(1, 4, 2)),
        lambda A: A.mm(mat2=torch.ones(4, 2)),
        lambda A: A.permute(dims=(1, 0)),
        lambda A: torch.permute(input=A, dims=(1, 0)),
        lambda A: A.permute((1, 0)),
        lambda A: torch.dropout(A, 0.5, train=False),
        lambda A: torch.dropout(A, 1.0, True),
        lambda A: torch.nn.functional.dropout(A, 0.5, training=False),
        lambda A: ns.dropout(A, 0.5, train=False),
        lambda A: A.to(dtype=torch.float64),
        lambda A: A.to("cpu", torch.float64),
        lambda A: A.to(torch.device("cpu"), dtype=torch.float64),
        lambda A: A.to(device="cpu"),
        lambda A: A.to(torch.float64, copy=True),
        lambda A: A.to(torch.float64, False, True),
        lambda A: A.to(torch.ones(1, dtype=torch.float64)),
        lambda A: A.to(A.to(torch.float64)),
        lambda A: A.to("cpu", torch.float64, False, True),
    ],
)
def test_torchs_names_of_arguments(call: Callable[[Any], Any], A: ns.SparseTensor, D: torch.Tensor) -> None:
    result, expected = call(A), call(D)
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result.to_dense(), expected)


@pytest.mark.parametrize("target", [torch.float32, ns.CSR, "cpu"])
def test_to_copies_if_copy_is_true(target: Any, A: ns.SparseTensor) -> None:
    copied = A.to(target, copy=True)
    copied.values.zero_()
    assert A.values.tolist() == [1, 2, 3, 4, 5, 6]


def test_numbers_of_one_entry(A: ns.SparseTensor) -> None:
    entry = A[:1, 3:]
    assert (float(entry), int(entry), complex(entry)) == (2.0, 2, 2 + 0j)
    with pytest.raises(ns.SizeError):
        float(A)


def test_divmod(A: ns.SparseTensor, D: torch.Tensor) -> None:
    quotient, rest = divmod(A, 2)
    torch.testing.assert_close(quotient.to_dense(), D // 2)
    torch.testing.assert_close(rest.to_dense(), D % 2)
    quotient, rest = divmod(7, A)
    torch.testing.assert_close(as_dense(rest), 7 % D, equal_nan=True)


@pytest.mark.parametrize("element", [3.0, 3, 7.0, 0, float("nan"), torch.tensor(3.0), torch.tensor([9.0, 0, 0, 9]), torch.full((4,), 9.0)])
@pytest.mark.parametrize("format", [ns.CSR, ns.BCSR(3, 3), ns.COO(2)])
def test_contains(element: Any, format: ns.Format, A: ns.SparseTensor, D: torch.Tensor) -> None:
    assert (element in A.to(format)) == (element in D)
    assert 0 not in ns.from_torch(torch.ones(3, 5), ns.BCSR(2, 2))
    with pytest.raises(TypeError):
        "a" in A  # noqa: B015


def test_an_identity_larger_than_memory_is_refused(interpreted: None) -> None:
    with pytest.raises(ns.SizeError, match="1000000000000 entries"):
        ns.eye(10**12, format=ns.CSR)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7])
def test_a_power_shares_no_memory_with_its_base(n: int, A: ns.SparseTensor, D: torch.Tensor) -> None:
    power = torch.matrix_power(A, n)
    torch.testing.assert_close(power.to_dense(), torch.matrix_power(D, n))
    power.zero_()
    torch.testing.assert_close(A.to_dense(), D)
