"""einsum on named products, all kinds of operands, and the documented properties of results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import numscorch as ns


def numbers(*shape: int, density: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, whose sums are exact in any order."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    values = torch.randint(-4, 5, shape, generator=generator).to(dtype)
    return values * (torch.rand(shape, generator=generator) < density)


def check_einsum(expr: str, *operands: object, format: ns.Format | str | None = None) -> object:
    """Result of einsum, after checking that it equals NumPy's on dense operands and that operands did not change."""
    dense = [o.to_dense() if isinstance(o, ns.SparseTensor) or o.layout != torch.strided else o.clone() for o in operands]
    result = ns.einsum(expr, *operands, format=format)
    dense_result = result.to_dense() if isinstance(result, ns.SparseTensor) or result.layout != torch.strided else result
    np.testing.assert_array_equal(dense_result, np.einsum(expr, *(d.numpy() for d in dense)))
    assert dense_result.dtype == dense[0].dtype
    for before, after in zip(dense, operands, strict=True):
        assert torch.equal(before, after.to_dense())
    return result


NAMED = {
    "SpMV": ("ij,j->i", (30, 40), (40,)),
    "SpMV, transposed": ("ij,i->j", (30, 40), (30,)),
    "SpMM": ("ij,jk->ik", (30, 40), (40, 21)),
    "SpMM, result transposed": ("ij,jk->ki", (30, 40), (40, 21)),
    "SpMM, the dense side transposed": ("ij,kj->ik", (30, 40), (21, 40)),
    "batched SpMM": ("ij,bjk->bik", (6, 7), (3, 7, 5)),
    "batched sparse": ("bij,bjk->bik", (3, 6, 7), (3, 7, 5)),
    "element-wise": ("ij,ij->ij", (6, 7), (6, 7)),
    "scaled rows": ("ij,i->ij", (6, 7), (6,)),
    "scaled columns": ("ij,j->ij", (6, 7), (7,)),
    "SDDMM": ("ij,ik,jk->ij", (6, 7), (6, 5), (7, 5)),
    "SDDMM, other side": ("ij,ik,kj->ij", (6, 7), (6, 5), (5, 7)),
    "MTTKRP": ("ijk,jl,kl->il", (5, 6, 7), (6, 4), (7, 4)),
    "TTM": ("ijk,kl->ijl", (5, 6, 7), (7, 9)),
    "TTV": ("ijk,k->ij", (5, 6, 7), (7,)),
    "inner product": ("ij,ij->", (6, 7), (6, 7)),
    "bilinear form": ("ij,i,j->", (6, 7), (6,), (7,)),
    "outer product": ("i,j->ij", (6,), (7,)),
    "total": ("ij->", (6, 7)),
    "row sums": ("ij->i", (6, 7)),
    "column sums": ("ij->j", (6, 7)),
    "trace": ("ii->", (6, 6)),
    "diagonal": ("ii->i", (6, 6)),
    "transpose": ("ij->ji", (6, 7)),
    "implicit": ("ij,jk", (6, 7), (7, 5)),
    "implicit transpose": ("ba", (6, 7)),
    "three operands": ("ij,jk,kl->il", (6, 7), (7, 5), (5, 4)),
    "ellipsis": ("...ij,...jk->...ik", (6, 7), (2, 3, 7, 4)),
    "broadcast by ellipsis": ("ij,...->...ij", (6, 7), (2, 3)),
    "factor of all": ("ij,->ij", (6, 7), ()),
}


def formats(order: int) -> list[ns.Format]:
    match order:
        case 1:
            return [ns.Format("s")]
        case 2:
            return [ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.Format("sd")]
        case _:
            return [ns.CSF(3), ns.COO(3), ns.Format("dss", (2, 0, 1)), ns.Format("sds")]


@pytest.mark.parametrize("sparse", [0, 1])
@pytest.mark.parametrize("name", NAMED)
def test_named_product_in_each_format(name: str, sparse: int, interpreted: None) -> None:
    """Each operand in turn is sparse, in each format."""
    expr, *shapes = NAMED[name]
    if sparse >= len(shapes) or not shapes[sparse]:
        return
    dense = [numbers(*shape, density=0.4 if at == sparse else 1.0) for at, shape in enumerate(shapes)]
    choices = formats(len(shapes[sparse])) if len(shapes[sparse]) < 4 else [ns.COO(4), ns.CSF(4)]
    for fmt in choices:
        operands = [ns.from_torch(d).to(fmt) if at == sparse else d for at, d in enumerate(dense)]
        check_einsum(expr, *operands, format="dense" if expr in ("ij->j", "ij->i", "ii->i") else None)


@pytest.mark.parametrize(
    ("expr", "shapes"),
    [
        ("ij,jk->ik", [(6, 7), (7, 5)]),
        ("ij,ij->ij", [(6, 7), (6, 7)]),
        ("ij,ij->", [(6, 7), (6, 7)]),
        ("ij,ij,ij->", [(6, 7)] * 3),
        ("i,ij->j", [(6,), (6, 7)]),
    ],
)
def test_several_sparse_operands_intersect(expr: str, shapes: list[tuple[int, ...]], interpreted: None) -> None:
    for mix in range(5):
        operands = []
        for at, shape in enumerate(shapes):
            choices = formats(len(shape))
            operands.append(ns.from_torch(numbers(*shape, density=0.3 + 0.2 * at)).to(choices[(mix + 2 * at) % len(choices)]))
        check_einsum(expr, *operands, format="dense")


COMPILED: list[tuple[str, ns.Format, torch.dtype, tuple[int, ...]]] = [
    ("ij,j->i", ns.CSR, torch.float32, (400,)),
    ("ij,jk->ik", ns.CSR, torch.float64, (400, 19)),
    ("ij,jk->ik", ns.COO(2), torch.float32, (400, 33)),
    ("ij,ik,jk->ij", ns.CSR, torch.float32, (300, 16)),
]


@pytest.mark.parametrize(("expr", "fmt", "dtype", "shape"), COMPILED)
def test_named_product_compiled(expr: str, fmt: ns.Format, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    A = ns.from_torch(numbers(300, 400, density=0.2, dtype=dtype)).to(fmt)
    others = [numbers(*shape, dtype=dtype)] + ([numbers(400, 16, dtype=dtype)] if expr.count(",") == 2 else [])
    check_einsum(expr, A, *others)
    check_einsum(expr, A.to_torch(), *others)


# ---- operands


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.T.contiguous().T,
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "a slice of columns": lambda x: torch.cat([x, x], 1)[:, 5:10].roll(0, 1),
    "a slice of rows": lambda x: torch.cat([x, x])[: x.shape[0]],
    "expanded rows": lambda x: x[:1].expand(x.shape),
    "expanded columns": lambda x: x[:, :1].expand(x.shape),
    "with an offset": lambda x: torch.cat([torch.zeros(3), x.reshape(-1)])[3:].view(x.shape),
    "permuted from three": lambda x: x.reshape(*x.shape, 1).expand(*x.shape, 3)[..., 1],
    "negated lazily": lambda x: torch._neg_view(-x),
    "zeros without memory": lambda x: torch._efficientzerotensor(x.shape),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("expr", ["ij,jk->ik", "ij,jk->ki", "ij,jk->jk", "ij,jk->"])
def test_dense_operands_with_any_strides(expr: str, view: str, interpreted: None) -> None:
    x = VIEWS[view](numbers(7, 5))
    assert x.shape == (7, 5)
    check_einsum(expr, ns.from_torch(numbers(6, 7, density=0.5)), x)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_native_sparse_in_native_sparse_out(layout: torch.layout, index: torch.dtype, dtype: torch.dtype, interpreted: None) -> None:
    A = numbers(6, 7, density=0.4, dtype=dtype).to_sparse(layout=layout)
    if layout == torch.sparse_csr and index == torch.int32:
        A = torch.sparse_csr_tensor(A.crow_indices().int(), A.col_indices().int(), A.values(), A.shape)
    assert check_einsum("ij,jk->ik", A, numbers(7, 3, dtype=dtype)).layout == torch.strided
    kept = check_einsum("ij,ij->ij", A, numbers(6, 7, dtype=dtype))
    assert kept.layout == layout
    if layout == torch.sparse_csr:
        assert kept.col_indices().dtype == A.col_indices().dtype


def test_native_and_sparse_tensors_together_return_a_sparse_tensor(interpreted: None) -> None:
    A = numbers(6, 7, density=0.4)
    filtered = check_einsum("ij,j->ij", A.to_sparse_csr(), ns.from_torch(numbers(7, density=0.5)).to(ns.Format("s")))
    assert isinstance(filtered, ns.SparseTensor)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_index_types(index: torch.dtype, interpreted: None) -> None:
    A = ns.from_csr(torch.tensor([0, 2, 2, 3], dtype=index), torch.tensor([0, 3, 1], dtype=index), [1.0, 2.0, 3.0], (3, 4))
    assert A.pattern.index_dtype == str(index).removeprefix("torch.")
    check_einsum("ij,jk->ik", A, numbers(4, 3))


@pytest.mark.parametrize(
    ("left", "right"), [((1, 7), (6, 7)), ((6, 1), (6, 7)), ((6, 7), (1, 7)), ((6, 7), (6, 1)), ((1, 1), (6, 7)), ((6, 1), (1, 7))]
)
@pytest.mark.parametrize("expr", ["ij,ij->ij", "ij,ij->i", "ij,ij->", "ij,ij->ji"])
def test_size_one_is_broadcast(expr: str, left: tuple[int, ...], right: tuple[int, ...], interpreted: None) -> None:
    for fmt in (ns.CSR, ns.CSC, ns.COO(2)):
        A = ns.from_torch(numbers(*left, density=0.9)).to(fmt)
        result = ns.einsum(expr, A, numbers(*right), format="dense")
        assert torch.equal(result, torch.einsum(expr, A.to_dense(), numbers(*right)))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (4, 5)])
def test_empty_operands(shape: tuple[int, int], interpreted: None) -> None:
    for fmt in (ns.CSR, ns.COO(2), ns.DCSR):
        A = ns.from_torch(torch.zeros(shape)).to(fmt)
        check_einsum("ij,jk->ik", A, numbers(shape[1], 3))
        check_einsum("ij->", A)
        assert check_einsum("ij,ij->ij", A, numbers(*shape)).nnz == 0


def test_repeated_operands(interpreted: None) -> None:
    A = ns.from_torch(numbers(6, 6, density=0.4))
    check_einsum("ij,ij->", A, A)
    check_einsum("ij,ji->", A, A)
    check_einsum("ij,jk->ik", A, A, format="dense")
