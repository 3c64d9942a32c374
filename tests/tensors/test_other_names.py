"""Names of SciPy, NumPy, pydata/sparse and torch: each exists, or its error says what to write."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch.tensors.suggestions import ATTRIBUTES, SUGGESTIONS, UNSUPPORTED_FUNCTIONS

sp = pytest.importorskip("scipy.sparse")
pytestmark = pytest.mark.usefixtures("interpreted")
D = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.0, 5.0]])
KINDS = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
OF_REAL_TENSORS = {"imag"}  # an AttributeError of real tensors, as in torch
OF_DENSE_TENSORS = """
    addbmm_ addcdiv_ addmm_ addmv_ addr_ as_strided_ baddbmm_ bitwise_and_ bitwise_not_ bitwise_or_ bitwise_xor_ chalf cholesky_inverse
    cholesky_solve conj_physical_ cross dsplit eig float_power_ frexp gcd gcd_ geqrf heaviside heaviside_ igamma igamma_ igammac igammac_
    index index_reduce index_reduce_ isreal istft lcm lcm_ ldexp ldexp_ lstsq lu_solve masked_scatter_ matrix_exp mvlgamma mvlgamma_
    nextafter nextafter_ nonzero_static orgqr ormqr polygamma polygamma_ prelu renorm renorm_ resize_as_sparse_ scatter_reduce
    scatter_reduce_ smm sspaddmm stft symeig triangular_solve unsafe_chunk unsafe_split unsafe_split_with_sizes volatile
"""  # the text suggests einsum or .to_dense()
TORCHS_OWN = {"random", "rand", "linalg"}  # names of SciPy that are torch's modules or functions here
SUBMODULES = "base bsr compressed construct coo csc csr data dia dok extract lil sparsetools sputils"  # deprecated by SciPy


@pytest.fixture
def A() -> Any:
    return ns.from_torch(D)


def others() -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        for what in ("array", "matrix"):
            yield f"{kind}_{what}", getattr(sp, f"{kind}_{what}")(D.numpy())
    yield "ndarray", np.ones((2, 2))
    yield "Tensor", torch.ones(2, 2)


@pytest.mark.parametrize(("kind", "other"), list(others()), ids=lambda value: value if isinstance(value, str) else "")
def test_each_attribute_of_others_exists_or_has_a_way_out(kind: str, other: Any, A: Any) -> None:
    names = {name for name in dir(other) if not name.startswith("_") and not hasattr(A, name)}
    assert names - ATTRIBUTES.keys() - SUGGESTIONS.keys() - OF_REAL_TENSORS - set(OF_DENSE_TENSORS.split()) == set()


def test_each_attribute_of_pydata_exists_or_has_a_way_out(A: Any) -> None:
    sparse = pytest.importorskip("sparse")
    for kind in (sparse.COO, sparse.GCXS, sparse.DOK):
        assert {name for name in dir(kind) if not name.startswith("_") and not hasattr(A, name)} <= ATTRIBUTES.keys() | OF_REAL_TENSORS


def test_each_name_of_scipy_sparse_exists_or_has_a_way_out() -> None:
    assert {name for name in sp.__all__ if not hasattr(ns, name)} <= UNSUPPORTED_FUNCTIONS.keys() | set(SUBMODULES.split()) | TORCHS_OWN


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_errors_of_attributes_say_what_to_write(name: str, A: Any) -> None:
    assert not hasattr(A, name), "the table lists names that a SparseTensor lacks"
    with pytest.raises(AttributeError, match=f"^a SparseTensor has no attribute {name!r}: ") as error:
        getattr(A, name)
    assert isinstance(error.value, ns.NumscorchError)
    assert error.value.name == name


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_FUNCTIONS))
def test_errors_of_the_module_say_what_to_write(name: str) -> None:
    with pytest.raises(AttributeError, match=f"^module 'numscorch' has no attribute {name!r}: write ") as error:
        getattr(ns, name)
    assert UNSUPPORTED_FUNCTIONS[name] in str(error.value)


S, T = sp.csr_array(D.numpy()), sp.coo_array(D.numpy())
WAYS: dict[str, tuple[str, Any]] = {  # a way out, and its value in SciPy and NumPy
    "A": ("A.to_dense().numpy()", D.numpy()),
    "astype": ("A.to(torch.float64)", S.astype(np.float64)),
    "asformat": ("A.to(ns.CSC)", S.asformat("csc")),
    "col": ("A.indices()[1]", T.col),
    "row": ("A.indices()[0]", T.row),
    "getcol": ("A[:, [j]]", S[:, [1]]),
    "getrow": ("A[[i]]", S[[2]]),
    "get": ("A[i, j].item()", 0.0),
    "getnnz": ("torch.ones_like(A).sum(dim)", S._getnnz(axis=0)),
    "has_sorted_indices": ("A.is_coalesced()", True),
    "items": ("zip(A.indices().t().tolist(), A.values.tolist())", [([0, 1], 2), ([1, 0], 3), ([1, 2], 4), ([2, 2], 5)]),
    "nanmax": ("A.nan_to_num(float('-inf')).amax(dim)", S.nanmax(axis=0).toarray()),
    "nanmin": ("A.nan_to_num(float('inf')).amin(dim)", S.nanmin(axis=0).toarray()),
    "offsets": ("(A.indices()[1] - A.indices()[0]).unique()", S.todia().offsets),
    "power": ("A ** n", S.power(3)),
    "setdiag": ("A + ns.diags(x - A.diagonal().to_dense(), 0, A.shape, format=A.format)", D.numpy() + np.diag([7, 7, 2.0])),
    "clear": ("ns.zeros(A.shape, format=A.format)", np.zeros((3, 3))),
    "sum_duplicates": ("A.coalesce()", D.numpy()),
    "toarray": ("A.to_dense().numpy()", D.numpy()),
    "tobsr": ("A.to(ns.BCSR(rows, columns))", D.numpy()),
    "todia": ("A.to(ns.DIA)", D.numpy()),
    "update": ("A + ns.from_coo(indices, values, A.shape)", D.numpy() + np.diag([1.0, 0, 0])),
    "sparse_mask": ("A * torch.ones_like(mask)", D.numpy() * np.eye(3)),
    "diagflat": ("ns.diag(A.flatten())", np.diag(D.numpy().ravel())),
    "eye_array": ("ns.diags(1.0, offset, shape)", sp.diags_array([1.0], offsets=1, shape=(3, 3))),
    "kronsum": ("torch.kron(ns.eye(n, format=ns.CSR), A) + torch.kron(B, ns.eye(m, format=ns.CSR))", sp.kronsum(S, S)),
    "random_array": ("ns.rand(m, n, density=0.01, format=ns.CSR)", np.zeros((3, 3))),
    "find": ("A.eliminate_zeros()", S),
    "permute_dims": ("A.permute(dims)", S.T),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways_out_run_and_have_the_value_of_scipy(name: str, A: Any) -> None:
    expression, expected = WAYS[name]
    assert expression in {**ATTRIBUTES, **UNSUPPORTED_FUNCTIONS}[name]
    values = {"n": 3, "m": 3, "i": 2, "j": 1, "dim": 0, "dims": (1, 0), "x": 7.0, "rows": 1, "columns": 1, "offset": 1, "shape": (3, 3)}
    tensors = {"A": A, "B": A, "mask": ns.eye(3, format=ns.CSR), "indices": [[0], [0]], "values": [1.0], "ns": ns, "torch": torch}
    result = eval(expression, {**values, **tensors})
    result = list(map(tuple, result)) if isinstance(result, zip) else result.to_dense() if hasattr(result, "to_dense") else result
    expected = expected.toarray() if sp.issparse(expected) else expected
    assert np.array_equal(result, expected) if isinstance(expected, np.ndarray) else result == expected


@pytest.mark.parametrize("name", ["tocsr", "tocoo", "toarray", "todense", "indptr", "asformat", "getnnz", "keys", "items", "fill_value"])
def test_libraries_that_ask_for_attributes_take_it_for_no_matrix_of_scipy(name: str, A: Any) -> None:
    assert not hasattr(A, name)
    assert not hasattr(ns.nn.Parameter(A), name)
    assert not sp.issparse(A)


PROTOCOLS = ("__array_interface__", "__array_struct__", "__dlpack__", "__cuda_array_interface__", "_repr_png_", "__fspath__")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_are_not_claimed(name: str, A: Any) -> None:
    with pytest.raises(AttributeError, match=f"^a SparseTensor has no attribute {name!r}$"):
        getattr(A, name)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda A: pickle.loads(pickle.dumps(A)),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_ask_for_attributes_without_errors(name: str, A: Any) -> None:
    assert torch.equal(COPIES[name](A).to_dense(), D)
