"""torch.nn.functional of numscorch: one_hot with sparse results; other functions are torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.nn import functional as F
from numscorch.tensors.validate import validate

pytestmark = pytest.mark.usefixtures("interpreted")
reference = torch.nn.functional.one_hot


def classes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(), (6,), (0,), (2, 3), (2, 0, 3), (2, 3, 2)], ids=str)
def test_values_equal_torchs(shape: tuple[int, ...]) -> None:
    x = classes(*shape)
    for count in (5, 9, *([-1] if x.numel() else [])):
        A = F.one_hot(x, count, sparse=True)
        expected = reference(x, count)
        validate(A.pattern)
        assert A.dtype == torch.int64
        assert A.nnz == x.numel()
        assert torch.equal(A.to_dense(), expected)
        assert A.format == (ns.CSR if expected.ndim == 2 else ns.COO(expected.ndim))
        assert torch.equal(F.one_hot(x, count), expected)
        assert F.one_hot(x, num_classes=count, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("fmt", [ns.CSC, ns.COO(2), ns.DCSR, ns.BCSR(2, 2), ns.ELL, ns.Format("dd")], ids=lambda f: f.name)
def test_any_format(fmt: ns.Format) -> None:
    x = classes(7)
    A = F.one_hot(x, 6, format=fmt, dtype=torch.float64)
    assert A.format.levels[0] == fmt.levels[0]
    assert torch.equal(A.to_dense(), reference(x, 6).double())


def test_by_keyword() -> None:
    x = classes(4)
    for name in ("tensor", "input"):
        assert torch.equal(F.one_hot(**{name: x}, num_classes=5, sparse=True).to_dense(), reference(x, 5))


def test_classes_beyond_dense_memory() -> None:
    A = F.one_hot(torch.tensor([10**12, 3]), sparse=True)
    assert A.shape == (2, 10**12 + 1)


def test_the_result_copies_its_classes() -> None:
    x = classes(4)
    A = F.one_hot(x, 5, sparse=True)
    before = A.to_dense()
    x += 1
    assert torch.equal(A.to_dense(), before)


BAD: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "negative": ([-1, 2], (), "classes start at 0"),
    "too large": ([1, 7], (5,), "class 7 with num_classes=5"),
    "no classes": ([1], (0,), "num_classes=0"),
    "a negative number of them": ([1], (-3,), "num_classes=-3"),
    "floats": ([1.0], (3,), "convert it with .to"),
    "empty": (torch.empty(0, dtype=torch.int64), (), "needs num_classes="),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_equal_torchs(name: str) -> None:
    given, count, text = BAD[name]
    x = torch.as_tensor(given)
    with pytest.raises(RuntimeError) as expected:
        reference(x, *count)
    with pytest.raises(type(expected.value)):
        F.one_hot(x, *count)
    with pytest.raises(type(expected.value), match=text) as error:
        F.one_hot(x, *count, sparse=True)
    assert isinstance(error.value, ns.SizeError)


def test_other_functions_are_torchs() -> None:
    A = ns.from_torch(torch.tensor([[0.0, -2.0], [3.0, 0.0]]))
    assert F.relu is torch.nn.functional.relu
    assert F.relu(A).to_dense().tolist() == [[0.0, 0.0], [3.0, 0.0]]
    assert torch.equal(F.relu(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))


def test_one_hot_compiles() -> None:
    x = classes(4)
    compiled = torch.compile(lambda x: F.one_hot(x, 5) + 1, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), reference(x, 5) + 1)
