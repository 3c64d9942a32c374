"""SparseTensors have the attributes and methods of torch's sparse tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.ir.format import sorted_format

pytestmark = [pytest.mark.usefixtures("interpreted"), pytest.mark.filterwarnings("ignore:Sparse")]
D = torch.tensor([[0.0, 2, 0, 0, 0, 1], [3, 0, 4, 0, 0, 0], [0] * 6, [0, 0, 5, 6, 0, 7]])
NATIVE = {
    "coo": D.to_sparse(),
    "csr": D.to_sparse_csr(),
    "csc": D.to_sparse_csc(),
    "bsr": D.to_sparse_bsr((2, 3)),
    "bsc": D.to_sparse_bsc((2, 2)),
    "batch": torch.stack([D, 2 * D]).to_sparse_csr(),
    "hybrid": D.to_sparse(1),
    "hybrid csr": torch.stack([D, 2 * D], -1).to_sparse_csr(dense_dim=1),
}
ARRAYS = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
    torch.sparse_coo: (),
}


@pytest.mark.parametrize("fmt", [ns.CSR, ns.COO(2), ns.CSC, ns.BCSR(2, 2), ns.ELL], ids=lambda f: f.name)
@pytest.mark.parametrize("name", ["zeros_like", "ones_like", "empty_like", "rand_like"])
def test_layouts_of_tensors_like_others(name: str, fmt: ns.Format) -> None:
    A, make = ns.from_torch(D, fmt), getattr(torch, name)
    dense = make(A, layout=torch.strided, dtype=torch.float64, requires_grad=True)
    assert (type(dense), dense.shape, dense.dtype, dense.requires_grad) == (torch.Tensor, D.shape, torch.float64, True)
    assert dense.is_contiguous()
    assert name not in ("zeros_like", "ones_like") or torch.equal(dense.detach(), make(D, dtype=torch.float64))
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        tensor = make(A, layout=layout)
        assert (tensor.layout, tensor.shape, tensor.dtype) == (layout, D.shape, D.dtype)


def test_type_names_and_conversions() -> None:
    A = ns.from_torch(D)
    assert A.type() == "torch.FloatTensor"
    assert A.type(torch.int16).dtype == A.type("torch.ShortTensor").dtype == A.short().dtype == torch.int16
    assert (A.char().dtype, A.cfloat().dtype, A.cdouble().dtype) == (torch.int8, torch.complex64, torch.complex128)


@pytest.mark.parametrize("name", NATIVE)
def test_attributes_equal_those_of_native_tensors(name: str) -> None:
    native = NATIVE[name]
    A = ns.from_torch(native)
    assert A.layout is native.layout
    assert (A.is_sparse, A.is_sparse_csr) == (native.is_sparse, native.is_sparse_csr)
    assert (A._nnz(), A.sparse_dim(), A.dense_dim()) == (native._nnz(), native.sparse_dim(), native.dense_dim())
    assert A.is_coalesced()
    for array in ("crow_indices", "col_indices", "ccol_indices", "row_indices"):
        if array in ARRAYS[native.layout]:
            assert torch.equal(getattr(A, array)(), getattr(native, array)())
        else:
            with pytest.raises(ns.UnsupportedError, match=rf"{array} of .* convert it with \.to_sparse_cs"):
                getattr(A, array)()


def test_index_arrays_are_copies() -> None:
    A = ns.from_torch(D)
    A.col_indices().zero_()
    assert torch.equal(A.to_dense(), D)


def test_unordered_rows_keep_the_order_of_their_values() -> None:
    unordered = ns.Format("(i, j) -> (i: dense, j: compressed(ordered=False))")
    A = ns.from_csr([0, 2, 3], [1, 0, 2], [1.0, 2.0, 3.0], (2, 3), assume_sorted=True, check_invariants=False)
    B = ns.SparseTensor(type(A.pattern)(unordered, (2, 3), A.pattern.arrays), A.values)
    assert B.layout is torch.sparse_csr
    assert B.col_indices().tolist() == [1, 0, 2]
    assert not B.is_coalesced()
    assert not A.is_coalesced()
    assert B.coalesce().is_coalesced()


@pytest.mark.parametrize("fmt", [ns.DCSR, ns.DIA, ns.ELL, ns.Format("ss", (1, 0))], ids=lambda f: f.name)
def test_formats_that_torch_lacks(fmt: ns.Format) -> None:
    A = ns.from_torch(D, fmt)
    assert not hasattr(A, "layout")
    with pytest.raises(AttributeError, match=r"no layout for .*\.to_sparse_csr\(\)"):
        A.layout  # noqa: B018
    assert not A.is_sparse
    assert not A.is_sparse_csr
    assert A._nnz() == A.nnz
    with pytest.raises(ns.UnsupportedError, match=r"A\.format says"):
        A.sparse_dim()
    assert A.to_sparse_csr().layout is torch.sparse_csr


def test_dense_formats_are_strided() -> None:
    A = ns.from_torch(D, "dd")
    assert A.layout is torch.strided
    assert not A.is_sparse
    assert A._nnz() == 24


FORMATS = (ns.CSR, ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 3), ns.DIA, ns.ELL, ns.Format("dd"))
CONVERSIONS: dict[str, tuple[Any, ns.Format]] = {
    "to_sparse()": (lambda A: A.to_sparse(), ns.COO(2)),
    "to_sparse(2)": (lambda A: A.to_sparse(2), ns.COO(2)),
    "to_sparse(1)": (lambda A: A.to_sparse(1), ns.Format("od")),
    "to_sparse_coo()": (lambda A: A.to_sparse_coo(), ns.COO(2)),
    "to_sparse_csr()": (lambda A: A.to_sparse_csr(), ns.CSR),
    "to_sparse_csc()": (lambda A: A.to_sparse_csc(), ns.CSC),
    "to_sparse_bsr((2, 2))": (lambda A: A.to_sparse_bsr((2, 2)), ns.BCSR(2, 2)),
    "to_sparse_bsr(blocksize=[4, 3])": (lambda A: A.to_sparse_bsr(blocksize=[4, 3]), ns.BCSR(4, 3)),
    "to_sparse(layout=csc)": (lambda A: A.to_sparse(layout=torch.sparse_csc), ns.CSC),
    "to_sparse(layout=bsr)": (lambda A: A.to_sparse(layout=torch.sparse_bsr, blocksize=(2, 3)), ns.BCSR(2, 3)),
    "to(torch.sparse_coo)": (lambda A: A.to(torch.sparse_coo), ns.COO(2)),
    "to(torch.sparse_csr)": (lambda A: A.to(torch.sparse_csr), ns.CSR),
    "to(torch.sparse_csc)": (lambda A: A.to(torch.sparse_csc), ns.CSC),
}


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions(name: str, fmt: ns.Format) -> None:
    convert, target = CONVERSIONS[name]
    A = ns.from_torch(D, fmt)
    values = A.values.clone().requires_grad_()
    converted = convert(A.with_values(values))
    assert sorted_format(converted.format) == target
    assert torch.equal(converted.to_dense(), D)
    (converted.to_dense() * D).sum().backward()
    inside = A.with_values(torch.ones_like(A.values)).to_dense() != 0
    assert torch.equal(A.with_values(values.grad).to_dense(), D * inside)
    assert convert(converted) is converted or name.startswith("to_sparse_bsr")


def test_batches_and_dense_dimensions() -> None:
    E = torch.stack([D, 0 * D, 2 * D])
    A = ns.from_torch(E)
    assert A.to_sparse_csr().format == ns.Format("dds")
    assert A.to_sparse_csc(dense_dim=1).format == ns.Format("(i, j, k) -> (j: dense, i: compressed, k: dense)")
    assert A.to_sparse(1).format == A.to_sparse(dense_dim=2).format == ns.Format("odd")
    for converted in (A.to_sparse_csr(), A.to_sparse_csc(dense_dim=1), A.to_sparse(1)):
        assert torch.equal(converted.to_dense(), E)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "strided": (lambda A: A.to(torch.strided), ns.UnsupportedError, r"\.to_dense\(\)"),
    "no block": (lambda A: A.to(torch.sparse_bsr), ns.UnsupportedError, r"\.to\(ns\.BCSR\(b0, b1\)\)"),
    "a block too many": (lambda A: A.to_sparse(layout=torch.sparse_csr, blocksize=(2, 2)), ns.UnsupportedError, "leave blocksize out"),
    "one number": (lambda A: A.to_sparse_bsr((2,)), ns.SizeError, "there is no such layout"),
    "an empty block": (lambda A: A.to_sparse_bsr((0, 2)), ns.SizeError, "there is no such layout"),
    "no sparse dimension": (lambda A: A.to_sparse(0), ns.SizeError, "there is no such layout"),
    "too many": (lambda A: A.to_sparse(3), ns.SizeError, "there is no such layout"),
    "dense dimensions of a matrix": (lambda A: A.to_sparse_csr(1), ns.SizeError, "there is no such layout"),
    "sparse_dim and layout": (lambda A: A.to_sparse(2, layout=torch.sparse_csr), ns.UnsupportedError, "give dense_dim="),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_conversions_are_refused(name: str) -> None:
    call, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        call(ns.from_torch(D))


def test_parameters_have_torchs_attributes() -> None:
    weight = ns.nn.Parameter(ns.from_torch(D))
    assert weight.layout is torch.sparse_csr
    assert weight.col_indices().tolist() == D.to_sparse_csr().col_indices().tolist()


SPARSE_FUNCTIONS = {
    "sum": torch.sparse.sum,
    "sum along a dimension": lambda t: torch.sparse.sum(t, 1),
    "sum along both": lambda t: torch.sparse.sum(t, (0, 1)),
    "sum in another type": lambda t: torch.sparse.sum(t, dtype=torch.float64),
    "sum along a dimension in another type": lambda t: torch.sparse.sum(t, 0, torch.float64),
    "softmax": lambda t: torch.sparse.softmax(t, 1),
    "log_softmax": lambda t: torch.sparse.log_softmax(t, 1),
}


@pytest.mark.parametrize("name", SPARSE_FUNCTIONS)
def test_functions_of_torch_sparse(name: str) -> None:
    result, expected = SPARSE_FUNCTIONS[name](ns.from_torch(D, ns.CSR)), SPARSE_FUNCTIONS[name](D.to_sparse())
    assert result.dtype == expected.dtype
    torch.testing.assert_close(*(tensor.to_dense() for tensor in (result, expected)))
