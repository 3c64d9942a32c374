"""``out=``: kernels write plain memory directly; other tensors, and memory that operands share, receive a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import numscorch as ns
from numscorch.programs import results
from numscorch.runtime import plans
from numscorch.schedule import tuning
from numscorch.schedule.facts import Target

pytestmark = pytest.mark.usefixtures("interpreted")

FORMATS = {"CSR": ns.CSR, "CSC": ns.CSC, "COO": ns.COO(2), "DCSR": ns.DCSR, "BCSR": ns.BCSR(2, 3), "ELL": ns.ELL}
EXPRS = {"ij,j->i": "j", "ij,i->j": "i", "ij,jk->ik": ["jk"], "ij,kj->ki": ["kj"], "ij->j": "", "ij->": "", "ij,ij->ij": ["ij"]}
DTYPES = (torch.float32, torch.float64, torch.int64, torch.complex64)


def sparse(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A dense tensor with zeros; its last row is empty."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, (rows, columns), generator=generator) * (torch.rand(rows, columns, generator=generator) < 0.4)
    values[-1:] = 0
    return values.to(dtype)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors that receive a result by a copy."""
    copied: list[Any] = []
    write = results.write

    def recorded(out: Any, result: Any) -> Any:
        copied.append(out)
        return write(out, result)

    monkeypatch.setattr(results, "write", recorded)
    return copied


def garbage(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Contiguous memory that a kernel must overwrite."""
    return torch.full(tuple(shape), float("nan") if dtype.is_floating_point or dtype.is_complex else 77, dtype=dtype)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("expr", EXPRS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_of_any_layout(expr: str, fmt: str, dtype: torch.dtype, copies: list[Any]) -> None:
    for rows, columns in ((7, 6), (1, 5), (0, 4), (5, 0)):
        D = sparse(rows, columns, dtype)
        if fmt == "BCSR" and 0 in D.shape:
            continue
        A, sizes = ns.from_torch(D, FORMATS[fmt]), {"i": rows, "j": columns, "k": 3}
        others = [torch.arange(prod(shape)).reshape(shape).to(dtype) for shape in ([sizes[i] for i in names] for names in EXPRS[expr])]
        expected = torch.einsum(expr, D, *others)
        for _ in range(3):
            out = garbage(expected.shape, dtype)
            assert ns.einsum(expr, A, *others, out=out) is out
            torch.testing.assert_close(out, expected)
            strided = garbage((*expected.shape, 2), dtype)[..., 0]
            assert ns.einsum(expr, A, *others, out=strided) is strided
            torch.testing.assert_close(strided, expected)
    has_dense_result = expr not in ("ij->j", "ij,ij->ij")
    is_direct = has_dense_result and fmt != "BCSR"  # the last block extends past the seventh row
    assert not is_direct or all(not out.is_contiguous() or out.numel() < 2 for out in copies)


def test_the_layout_of_a_result_is_copied_into_out(copies: list[Any]) -> None:
    D, x = sparse(40, 50), sparse(60, 50, seed=1)
    out = garbage((60, 40), torch.float32)
    for _ in range(3):
        assert ns.einsum("bi,oi->bo", x, ns.from_torch(D, ns.CSR), out=out) is out
        assert out.equal(x @ D.T)
        out.fill_(float("nan"))
    assert not copies


def test_slabs_and_panels_write_to_out(plain: pytest.MonkeyPatch, copies: list[Any]) -> None:
    for name, value in (("SLAB", 16), ("COST_COPY", 0.0), ("COST_MOVE", 0.01)):
        plain.setattr(tuning, name, value)
    plain.setattr(plans, "host", lambda: Target(16, 16, own_cache=1 << 9))
    D, x = sparse(30, 20), sparse(64, 20, seed=1)
    for fmt in (ns.CSR, ns.NMG(30, 30, 1)):
        for _ in range(2):
            out = garbage((64, 30), torch.float32)
            assert ns.einsum("bi,oi->bo", x, ns.from_torch(D, fmt), out=out) is out
            assert out.equal(x @ D.T)
    assert not copies


def test_parts_of_one_buffer_are_written_directly_unless_they_overlap(copies: list[Any]) -> None:
    D = sparse(6, 6)
    A, buffer = ns.from_torch(D, ns.CSR), torch.zeros(20)
    for start in range(13):
        buffer.copy_(torch.arange(20.0))
        x, out = buffer[6:12], buffer[start : start + 6]
        expected = D @ x
        assert ns.einsum("ij,j->i", A, x, out=out) is out
        assert out.equal(expected)
        assert bool(copies) == (0 < start < 12)
        copies.clear()


SHARED: dict[str, Callable[[ns.SparseTensor, torch.Tensor], torch.Tensor]] = {
    "operand": lambda A, x: x,
    "NumPy's view of an operand": lambda A, x: torch.from_numpy(x.numpy()),
    "values": lambda A, x: A.values[:6],
    "index array": lambda A, x: A.pattern.arrays[1][1].view(x.dtype)[:6],
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_memory_of_operands_receives_a_copy(name: str, dtype: torch.dtype, copies: list[Any]) -> None:
    D = sparse(6, 6, dtype, seed=4)
    for _ in range(3):
        A, x = ns.from_torch(D.to_sparse_csr(), ns.CSR), torch.arange(1, 7).to(dtype)
        out, expected = SHARED[name](A, x), D @ x
        copies.clear()
        assert ns.einsum("ij,j->i", A, x, out=out) is out
        assert out.equal(expected)
        assert copies[0] is out


def test_memory_of_strided_operands_receives_a_copy(copies: list[Any]) -> None:
    D, buffer = sparse(6, 6), torch.arange(36.0).reshape(6, 6)
    x, out = buffer[:, 1], buffer[2]
    expected = D @ x
    assert ns.einsum("ij,j->i", ns.from_torch(D, ns.CSR), x, out=out) is out
    assert out.equal(expected)
    assert copies[0] is out


def test_saved_tensors_that_are_overwritten_are_noticed() -> None:
    D = sparse(6, 6)
    A, x, weight = ns.from_torch(D, ns.CSR), torch.ones(6), torch.ones(6, requires_grad=True)
    for _ in range(3):
        out = torch.ones(6)
        loss = (out * weight).sum()
        ns.einsum("ij,j->i", A, x, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_tensors_that_torch_guards_are_left_to_torch(copies: list[Any]) -> None:
    D = sparse(6, 6)
    A, x = ns.from_torch(D, ns.CSR), torch.ones(6)
    expected = D @ x
    with torch.inference_mode():
        inferred = torch.ones(6)
    guarded = (torch.ones(6, requires_grad=True), inferred, torch.ones(1).expand(6))
    for out in guarded:
        for _ in range(3):
            with pytest.raises(RuntimeError):
                ns.einsum("ij,j->i", A, x, out=out)
    for out in (
        torch._neg_view(torch.zeros(6)),
        torch.nn.Parameter(torch.zeros(6), requires_grad=False),
        torch.zeros(6, dtype=torch.float64),
    ):
        copies.clear()
        ns.einsum("ij,j->i", A, x, out=out)
        assert out.to(torch.float32).equal(expected) and copies[0] is out
    with torch.inference_mode():
        ns.einsum("ij,j->i", A, x, out=inferred)
    assert inferred.equal(expected)


def test_functions_and_plans_write_to_out(copies: list[Any]) -> None:
    D = sparse(6, 6)
    A, x, X = ns.from_torch(D, ns.CSR), torch.arange(6.0), torch.arange(12.0).reshape(6, 2)
    plan = ns.plan("ij,j->i", A, x)
    for _ in range(3):
        for call, shape, expected in (
            (lambda out: torch.mv(A, x, out=out), (6,), D @ x),
            (lambda out: torch.matmul(A, X, out=out), (6, 2), D @ X),
            (lambda out: torch.mm(A, X, out=out), (6, 2), D @ X),
            (lambda out: plan(A, x, out=out), (6,), D @ x),
        ):
            out = garbage(shape, torch.float32)
            assert call(out) is out
            assert out.equal(expected)
    assert not copies
    with pytest.raises(ns.SizeError, match="out has shape"):
        torch.mv(A, x, out=torch.empty(5))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_dual_tensor_gets_no_tangent() -> None:
    A, x = ns.from_torch(torch.eye(4), "CSR"), torch.rand(4)
    with forward_ad.dual_level():
        out = forward_ad.make_dual(torch.zeros(4), torch.ones(4))
        ns.einsum("ij,j->i", A, x, out=out)
        value, tangent = forward_ad.unpack_dual(out)
        assert torch.equal(value, x)
        assert tangent is None or not tangent.any()


def test_a_zero_tensor_without_memory_is_refused() -> None:
    A, x = ns.from_torch(torch.eye(4), "CSR"), torch.rand(4)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
            ns.einsum("ij,j->i", A, x, out=torch._efficientzerotensor(4))  # type: ignore[attr-defined]
