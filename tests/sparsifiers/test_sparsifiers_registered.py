"""register_sparsifier checks that a function has the properties it declares; its error names the violated property."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.sparsifiers import base
from numscorch.sparsify import Kind, n_m, register_sparsifier, sparsify

pytestmark = pytest.mark.usefixtures("interpreted")

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(base, "REGISTERED", {})
    monkeypatch.setattr("numscorch.sparsifiers.registration.REGISTERED", base.REGISTERED)
    yield


def large(t: torch.Tensor) -> torch.Tensor:
    """A streaming sparsifier."""
    return t.abs() > 0.5


def above_mean(t: torch.Tensor) -> torch.Tensor:
    """A materializing sparsifier: it compares entries with the mean of all."""
    return t.abs() > t.abs().mean()


def best_column(t: torch.Tensor) -> torch.Tensor:
    """A blocking sparsifier: it compares entries within a row."""
    return t.abs() == t.abs().amax(-1, keepdim=True)


def by_name(name: str) -> Any:
    return sparsify(torch.tensor([[0.2, 3.0], [-2.0, 0.0]]), name)


def test_registered_sparsifiers_are_called_by_name_and_have_declared_properties() -> None:
    sparsifier = ns.register_sparsifier(large, kind="streaming", name="large ones", format="CSC")
    assert (sparsifier.kind, sparsifier.block, sparsifier.format, repr(sparsifier)) == (Kind.STREAMING, None, ns.CSC, "large ones")
    stored = by_name("large ones")
    assert (stored.format, stored.values.tolist()) == (ns.CSC, [-2.0, 3.0])
    assert torch.equal(sparsifier(torch.tensor([0.1, 1.0])), torch.tensor([False, True]))


def test_decorated_functions_pickle_by_name() -> None:
    @register_sparsifier(kind=Kind.BLOCKING, block=(1, -1), name="best")
    def best(t: torch.Tensor) -> torch.Tensor:
        return best_column(t)

    assert by_name("best").values.tolist() == [3.0, -2.0]
    assert pickle.loads(pickle.dumps(best)) is best
    layer = ns.nn.SparseLinear.from_dense(torch.nn.Linear(5, 3), "best")
    assert layer.weight.nnz == 3


def test_blocks_of_any_size_and_built_in_sparsifiers_pass() -> None:
    register_sparsifier(n_m(2, 4), kind="blocking", block=(1, 4), name="2:4")
    register_sparsifier(n_m(1, 2, rows=3), kind="blocking", block=(3, 2), name="1:2 by 3")
    register_sparsifier(best_column, kind="blocking", block=(1, -1))
    register_sparsifier(above_mean, kind="materializing")
    assert by_name("above_mean").nnz == 2


def test_a_sparsifier_may_refuse_other_shapes_than_whole_blocks() -> None:
    def picky(t: torch.Tensor) -> torch.Tensor:
        if t.ndim != 2 or t.shape[1] % 4 or not t.numel() or t.dtype != torch.float32:
            raise ValueError("matrices of blocks of 4")
        return n_m(2, 4)(t)

    register_sparsifier(picky, kind="blocking", block=(1, 4))
    with pytest.raises(ns.OperandError, match=r"of a float32 tensor of shape \(5, 7\), it raised ValueError: matrices of blocks of 4"):
        register_sparsifier(picky, kind="materializing")


def unrepeatable(t: torch.Tensor) -> torch.Tensor:
    return torch.rand(t.shape) > 0.5


def writes(t: torch.Tensor) -> torch.Tensor:
    return t.abs_() > 0.5


def multiplies(t: torch.Tensor) -> torch.Tensor:
    return t.mul_(1.0) > 0.5


BROKEN: list[tuple[Function, str]] = [
    (lambda t: t.abs(), "returned a torch.strided tensor of torch.float32: a mask is a dense bool tensor"),
    (lambda t: [True], "returned list: a mask is a dense bool tensor"),  # type: ignore[arg-type, return-value]
    (lambda t: (t > 0).to_sparse(), "returned a torch.sparse_coo tensor of torch.bool"),
    (lambda t: (t > 0).t(), r"returned a mask of shape \(12, 8\): a mask has the tensor's shape"),
    (unrepeatable, "returned another mask when called again: draw random numbers from a fixed seed"),
    (writes, r"wrote to its input: work on tensor.clone\(\)"),
    (multiplies, "wrote to its input"),
    (lambda t: t[100] > 0, "raised IndexError"),
    (above_mean, r"entry \(\d+, \d+\) = \S+ is.* within the tensor, but is.* alone: a streaming sparsifier decides by one value"),
    (lambda t: torch.arange(t.numel()).reshape(t.shape) % 2 == 0, r"entry \(0, 1\) = \S+ isn't kept within the tensor, but is alone"),
]


@pytest.mark.parametrize(("function", "promise"), BROKEN, ids=[promise[:24] for _, promise in BROKEN])
def test_a_broken_promise_is_named(function: Function, promise: str) -> None:
    with pytest.raises(ns.OperandError, match=f"sparsifier 'mine', registered as streaming: of a float32 tensor of shape .*{promise}"):
        register_sparsifier(function, kind="streaming", name="mine")
    with pytest.raises(ns.OperandError, match="no sparsifier is registered as 'mine'"):
        by_name("mine")


def test_blocks_that_depend_on_each_other_are_refused() -> None:
    with pytest.raises(ns.OperandError, match=r"the block at rows 0-0, columns 0-3 has another mask alone .* of block=\(1, 4\)"):
        register_sparsifier(best_column, kind="blocking", block=(1, 4))
    with pytest.raises(ns.OperandError, match="has another mask alone than within the tensor"):
        register_sparsifier(n_m(2, 4, rows=2), kind="blocking", block=(1, 4))
    with pytest.raises(ns.OperandError, match="has another mask alone than within the tensor"):
        register_sparsifier(n_m(1, 3), kind="blocking", block=(1, 2))


def test_inconsistent_declarations_are_refused() -> None:
    with pytest.raises(ns.OperandError, match="kind='quick': a sparsifier is 'streaming', 'blocking', 'materializing'"):
        register_sparsifier(large, kind="quick")
    for block in (None, 4, (4,), (0, 1), (1, -2), (1, 2.0)):
        with pytest.raises(ns.OperandError, match=r"a blocking sparsifier decides by blocks of \(rows, columns\)"):
            register_sparsifier(large, kind="blocking", block=block)  # type: ignore[arg-type]
    with pytest.raises(ns.OperandError, match=r"block=\(1, 4\) of a streaming sparsifier"):
        register_sparsifier(large, kind="streaming", block=(1, 4))
    with pytest.raises(ns.OperandError, match=r"takes a callable that makes a mask of a tensor, not 0\.5"):
        register_sparsifier(0.5, kind="streaming")  # type: ignore[call-overload]
    with pytest.raises(ns.OperandError, match="a lambda has no name"):
        register_sparsifier(lambda t: t > 0, kind="streaming")
    with pytest.raises(ns.FormatError):
        register_sparsifier(large, kind="streaming", format="CRS")


def test_a_name_belongs_to_one_function_and_its_new_versions() -> None:
    cell = "def mine(t): return t.abs() > {}"
    for least in (0.5, 2.5):  # as a notebook cell that runs again
        scope: dict[str, Any] = {"__name__": "__main__"}
        exec(cell.format(least), scope)
        register_sparsifier(scope["mine"], kind="streaming")
    assert by_name("mine").nnz == 1
    with pytest.raises(ns.OperandError, match=r"the name 'mine' is taken by another sparsifier, .*: give another name=, or replace=True"):
        register_sparsifier(large, kind="streaming", name="mine")
    register_sparsifier(large, kind="streaming", name="mine", replace=True)
    register_sparsifier(large, kind="streaming", name="mine")
    assert by_name("mine").nnz == 2


def above(least: float) -> Function:
    """A lambda per bound."""
    return lambda t: t.abs() > least


def limited(least: float) -> Function:
    """A function with a name per bound."""

    def mine(t: torch.Tensor) -> torch.Tensor:
        return t.abs() > least

    return mine


@pytest.mark.parametrize("make", [above, limited, lambda least: partial(torch.gt, other=least)], ids=["lambda", "inner", "partial"])
def test_closures_do_not_replace_each_other_silently(make: Callable[[float], Function]) -> None:
    register_sparsifier(make(0.0), kind="streaming", name="mine")
    with pytest.raises(ns.OperandError, match="the name 'mine' is taken by another sparsifier"):
        register_sparsifier(make(2.5), kind="streaming", name="mine")
    assert by_name("mine").nnz > 1
    register_sparsifier(make(2.5), kind="streaming", name="mine", replace=True)
    assert by_name("mine").nnz == 1


def test_unregistered_names_are_refused() -> None:
    register_sparsifier(large, kind="streaming")
    with pytest.raises(ns.OperandError, match=r"no sparsifier is registered as 'larg': .* did you mean 'large'\?"):
        by_name("larg")
    with pytest.raises(ns.OperandError, match="call one with parameters, as in magnitude"):
        by_name("magnitude")
