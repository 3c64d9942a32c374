"""Stacked tensors, whose patterns may differ, and sorted coordinates."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from compositions import compositions
from dense_values import as_dense
from storable import random, storable

import numscorch as ns
from numscorch.frontend.datatypes import STORED
from numscorch.ir.format import Format, sorted_format
from numscorch.operators import joining
from numscorch.tensors.validate import validate

UNORDERED = Format("(i, j) -> (i: dense, j: compressed(ordered=False))")


@pytest.mark.parametrize("fmt", compositions(), ids=str)
def test_any_format_is_stacked(fmt: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of any format are stacked level by level or through coordinates."""
    dense = storable(fmt)
    tensors = [ns.from_torch(full, fmt) for full in dense]
    for joined in (joining.JOINED, ()):
        monkeypatch.setattr(joining, "JOINED", joined)
        for dim in (0, 1, fmt.order):
            A = ns.stack(tensors, dim)
            validate(A.pattern)
            assert str(A.format.levels[0]) == "dense"
            assert A.format.levels[0] == Format("d").levels[0]
            assert torch.equal(A.to_dense(), torch.stack(dense, dim))


def test_torch_stack_joins_native_tensors_and_sparse_tensors() -> None:
    full = [random(seed, 3, 4) for seed in (1, 2)]
    A = torch.stack([ns.from_torch(full[0]), full[1].to_sparse_csr()], dim=-1)
    assert type(A) is ns.SparseTensor
    assert torch.equal(A.to_dense(), torch.stack(full, -1))
    assert A.format == Format("(i, j, k) -> (k: dense, i: dense, j: compressed)")


def test_matrices_with_different_numbers_of_values_in_a_product(interpreted: None) -> None:
    dense = [random(seed, 5, 5) for seed in range(4)]
    A, x = ns.stack([ns.from_torch(d) for d in dense]), random(9, 4, 5)
    assert torch.equal(ns.einsum("bij,bj->bi", A, x), torch.einsum("bij,bj->bi", torch.stack(dense), x))


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc], ids=str)
def test_layouts_that_torch_cannot_stack(layout: torch.layout) -> None:
    """torch may store different numbers of values per slice, so these layouts are stacked as COO tensors."""
    dense = [torch.eye(4), torch.ones(4, 4)]
    blocks = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    native = [tensor.to_sparse(layout=layout, blocksize=blocks) for tensor in dense]
    for dim in (0, 1, -1):
        stacked = ns.stack(iter(native), dim)
        assert stacked.layout == torch.sparse_coo
        assert torch.equal(stacked.to_dense(), torch.stack(dense, dim))
    with pytest.raises(ns.UnsupportedError, match="tensor 1 of the stack is a dense tensor, but others are sparse"):
        ns.stack([native[0], dense[1]])


def test_data_types_are_promoted_as_by_torch() -> None:
    A, element = ns.from_torch(torch.eye(2)), torch.ones(1)
    for dtype, other_dtype in product(STORED, repeat=2):
        assert ns.stack([A.to(dtype), A.to(other_dtype)]).dtype == torch.stack([element.to(dtype), element.to(other_dtype)]).dtype


def test_gradients_flow_through_a_stack() -> None:
    A = ns.from_torch(torch.eye(3))
    leaf = torch.ones(3, requires_grad=True)
    ns.stack([A.with_values(leaf), A]).to_dense().sum().backward()
    assert leaf.grad.tolist() == [1.0, 1.0, 1.0]


def test_index_and_value_types_are_promoted() -> None:
    wide = ns.from_csr(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64), (2, 2))
    A = ns.stack([ns.from_torch(torch.eye(2)), wide])
    assert (A.pattern.index_dtype, A.dtype) == ("int64", torch.float64)


def test_rows_of_different_widths() -> None:
    dense = [torch.eye(4), torch.ones(4, 4).tril()]
    A = ns.stack([ns.from_torch(d, ns.ELL) for d in dense])
    assert str(A.format) == "(i, j, k) -> (i: dense, j: dense, k: fixed(4))"
    assert torch.equal(A.to_dense(), torch.stack(dense))


@pytest.mark.parametrize("level", ["compressed(bits=8)", "compressed(ordered=False, bits=16)", "fixed(bits=16)"])
def test_narrow_coordinates_stay_narrow(level: str) -> None:
    dense = [torch.eye(4), torch.ones(4, 4).tril()]
    A = ns.stack([ns.from_torch(d, f"(i, j) -> (i: dense, j: {level})") for d in dense]).coalesce()
    assert A.pattern.arrays[2][-1].dtype == (torch.uint8 if "bits=8" in level else torch.uint16)
    assert torch.equal(A.to_dense(), torch.stack(dense))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("text", ["i: compressed(bits={}), j: compressed(bits=16)", "i: dense, j: compressed(bits={})"])
@pytest.mark.parametrize("dim", [0, 1])
def test_narrow_coordinates_are_joined_or_refused(dim: int, text: str, bits: int) -> None:
    full = torch.zeros(200, 200)
    full[3, 7], full[190, 190] = 1, 2
    A = ns.from_torch(full, f"(i, j) -> ({text.format(bits)})")
    if bits == 8 and dim == ("dense" in text):
        with pytest.raises(ns.FormatError, match="8-bit coordinates"):
            torch.cat([A, A], dim)
    else:
        joined = torch.cat([A, A], dim)
        validate(joined.pattern)
        assert joined.format == A.format
        assert torch.equal(joined.to_dense(), torch.cat([full, full], dim))


@pytest.mark.parametrize(("first", "inner"), [(ns.CSR, "CSR"), (ns.CSC, "CSC"), (ns.ELL, "COO(2)"), (ns.BCSR(2, 2), "BCSR(2, 2)")], ids=str)
def test_tensors_of_several_formats_are_stacked_in_the_format_of_the_first(first: ns.Format, inner: str) -> None:
    dense = [torch.eye(4), torch.ones(4, 4).tril(), torch.zeros(4, 4)]
    values = [ns.from_torch(d, fmt).values.requires_grad_() for d, fmt in zip(dense, (first, ns.CSR, ns.DCSR), strict=True)]
    tensors = [ns.from_torch(d, fmt).with_values(v) for d, fmt, v in zip(dense, (first, ns.CSR, ns.DCSR), values, strict=True)]
    A = torch.stack(tensors, 1)
    assert torch.equal(A.to_dense(), torch.stack(dense, 1))
    assert A[:, 1].to(ns.Format(inner)).format == ns.Format(inner)
    A.to_dense().sum().backward()
    assert all(torch.equal(v.grad, torch.ones_like(v)) for v in values[1:])


@pytest.mark.parametrize("fmt", [ns.CSR, ns.CSC, ns.COO(2), ns.ELL, ns.BCSR(2, 2)], ids=lambda f: f.name)
def test_block_diag_rot90_and_repeat_interleave(fmt: ns.Format) -> None:
    full = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    A = ns.from_torch(full, fmt)
    assert torch.equal(
        torch.block_diag(full, A, A[0], torch.tensor(5.0)).to_dense(), torch.block_diag(full, full, full[0], torch.tensor(5.0))
    )
    assert torch.equal(torch.block_diag(ns.zeros(0, 3, format=fmt), A).to_dense(), torch.block_diag(torch.zeros(0, 3), full))
    for k in range(-4, 5):
        for dims in ((0, 1), (1, 0), (-1, 0)):
            assert torch.equal(torch.rot90(A, k, dims).to_dense(), torch.rot90(full, k, dims))
    for repeats, dim in ((2, None), (0, 0), (3, 1), (torch.tensor([2, 1]), 0), (torch.tensor([0, 1, 3]), -1)):
        assert torch.equal(torch.repeat_interleave(A, repeats, dim).to_dense(), torch.repeat_interleave(full, repeats, dim))
    with pytest.raises(ns.SizeError, match="block_diag of a 3-dimensional tensor"):
        torch.block_diag(A, torch.ones(1, 1, 1))
    with pytest.raises(ns.SizeError, match=r"rot90 of dims \(0, 0\)"):
        torch.rot90(A, 1, (0, 0))
    with pytest.raises(ns.SizeError, match=r"repeat_interleave of 2 slices by \[1, 2, 3\]"):
        torch.repeat_interleave(A, torch.tensor([1, 2, 3]), 0)


def test_invalid_stacks_are_refused() -> None:
    A = ns.from_torch(torch.eye(3))
    with pytest.raises(ns.SizeError, match=r"tensor 2 of the stack has shape \(4, 4\), but tensor 0 has \(3, 3\)"):
        ns.stack([A, A, ns.from_torch(torch.eye(4))])
    with pytest.raises(ns.SizeError, match="dim=3 of a 3-dimensional tensor: give one from -3 to 2"):
        ns.stack([A, A], 3)
    with pytest.raises(ns.UnsupportedError, match=r"tensor 1 of the stack is a dense tensor, but others are sparse: .*from_torch"):
        ns.stack([A, torch.eye(3)])
    with pytest.raises(ns.UnsupportedError, match="out can't hold stacked sparse tensors"):
        ns.stack([A, A], out=torch.empty(2, 3, 3))


# ---- sorted coordinates


@pytest.mark.parametrize("fmt", compositions(), ids=str)
def test_coalesce_keeps_ordered_tensors(fmt: Format) -> None:
    dense = storable(fmt)[0]
    A = ns.from_torch(dense, fmt)
    B = ns.coalesce(A)
    assert (B is A) == fmt.is_ordered
    assert B.format == sorted_format(A.format)
    assert torch.equal(B.to_dense(), dense)


def test_rows_without_an_order_are_sorted_once(interpreted: None) -> None:
    left, right = random(1, 9, 8), random(2, 8, 9)
    A = ns.einsum("ij,jk->ik", ns.from_torch(left), ns.from_torch(right), format=UNORDERED)
    assert any((row.diff() < 0).any() for row in A.pattern.arrays[1][1].split(A.pattern.arrays[1][0].diff().tolist()))
    B = A.sort()
    assert B.format == ns.CSR
    validate(B.pattern)
    assert torch.equal(B.to_dense(), left @ right)
    assert ns.sort(A.with_values(A.values * 2)).pattern is B.pattern


def test_unchecked_arrays_are_sorted_and_summed() -> None:
    A = ns.from_csr([0, 3, 4], [2, 0, 2, 1], [1.0, 2.0, 3.0, 4.0], (2, 3), assume_sorted=True, check_invariants=False)
    B = A.coalesce()
    assert B.format == ns.CSR
    assert B.to_dense().tolist() == [[2.0, 0.0, 4.0], [0.0, 4.0, 0.0]]
    listed = ns.from_coo([[1, 0, 1]], [1.0, 2.0, 3.0], (2,), assume_sorted=True, check_invariants=False).coalesce()
    assert (listed.nnz, listed.to_dense().tolist()) == (2, [2.0, 4.0])


def test_coalesce_of_native_tensors_is_torchs() -> None:
    A = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,), check_invariants=True)
    assert ns.coalesce(A).values().tolist() == [3.0]


def test_sort_of_a_sparse_tensor_takes_no_dimension() -> None:
    with pytest.raises(ns.UnsupportedError, match=r"puts the coordinates of each row in order, and takes nothing else: sort A\.values"):
        ns.sort(ns.from_torch(torch.eye(2)), dim=1)


def test_parameters_are_sorted() -> None:
    weight = ns.nn.Parameter(ns.from_torch(torch.eye(2), "(i, j) -> (i: dense, j: compressed(ordered=False))"))
    for result in (ns.sort(weight), ns.coalesce(weight)):
        assert isinstance(result, ns.SparseTensor)
        assert result.format == ns.CSR
        assert result.requires_grad


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_stacks_with_a_sparse_tensor_of_torch(name: str, layout: torch.layout) -> None:
    full = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    stacked = getattr(torch, name)([ns.from_torch(full, ns.CSR), full.to_sparse(layout=layout)])
    assert torch.equal(as_dense(stacked), getattr(torch, name)([full, full]))
