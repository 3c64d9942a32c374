"""Errors of layers, plans, formats and files name what was asked for in the user's own words, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns
from numscorch.nn import SparseEmbedding, SparseLinear
from numscorch.sparsify import SET, RigL, SparsityPlan, magnitude

MASK = torch.eye(4, 8) != 0
A = ns.from_torch(torch.eye(4), ns.CSR)


def told(call: Callable[[], object], kind: type[Exception]) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("shape", [(3, 5), (8, 3), (5,), ()])
def test_an_input_of_another_size_is_told_in_the_words_of_linear(shape: tuple[int, ...]) -> None:
    layer, sizes = SparseLinear(8, 4, density=0.5), "the weight has shape (4, 8), (out_features, in_features)"
    expected = f"input has shape {shape}, but its last dimension has to be in_features=8: {sizes}"
    assert told(lambda: layer(torch.ones(shape)), ns.SizeError) == expected
    assert told(lambda: torch.nn.functional.linear(torch.ones(shape), layer.weight.tensor), RuntimeError) == expected


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "both": (
        {"density": 0.5, "pattern": MASK},
        ns.UnsupportedError,
        "was given density=0.5 and pattern=Tensor of shape (4, 8): both determine",
    ),
    "both, and no tensor": ({"density": 0.5, "pattern": [[1]]}, ns.UnsupportedError, "density=0.5 and pattern=[[1]]: both determine"),
    "neither": ({}, ns.UnsupportedError, "SparseLinear needs to know which entries it stores: give density=0.1, or pattern=, a mask"),
    "per cent": ({"density": 10}, ns.SizeError, "density=10: the share of stored entries lies between 0 and 1, as density=0.1"),
    "negative": ({"density": -0.1}, ns.SizeError, "density=-0.1: the share of stored entries lies between 0 and 1"),
    "not a number": ({"density": float("nan")}, ns.SizeError, "density=nan: the share"),
    "a text": ({"density": "0.5"}, ns.OperandError, "density='0.5': give a number"),
    "a mask as the density": ({"density": MASK}, ns.OperandError, "density=a tensor of shape (4, 8): give a number"),
    "a share as the pattern": ({"pattern": 0.5}, ns.OperandError, "density=0.5 draws random entries"),
    "a format as the pattern": (
        {"pattern": "CSR"},
        ns.OperandError,
        "pattern='CSR': give the entries to store, a mask or sparse tensor of shape (4, 8)",
    ),
    "turned": (
        {"pattern": MASK.t()},
        ns.SizeError,
        "pattern has shape (8, 4), but the weight has (4, 8): (out_features, in_features); tra",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_says_which_entries_are_stored(name: str) -> None:
    options, kind, text = WRONG[name]
    assert text in told(lambda: SparseLinear(8, 4, **options), kind)


def test_each_layer_names_itself() -> None:
    assert told(lambda: SparseEmbedding(8, 4), ns.UnsupportedError).startswith("SparseEmbedding needs")


PAIRS = torch.tensor([[0, 1], [1, 2]])
LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], tuple[Any, ...]]] = {
    "GCNConv": (lambda: ns.nn.GCNConv(4, 2), (3, 4), (PAIRS,)),
    "SAGEConv": (lambda: ns.nn.SAGEConv(4, 2), (3, 4), (PAIRS,)),
    "GATConv": (lambda: ns.nn.GATConv(4, 2), (3, 4), (PAIRS,)),
    "GINConv": (lambda: ns.nn.GINConv(torch.nn.Linear(4, 2)), (3, 4), (PAIRS,)),
    "SparseLinear": (lambda: SparseLinear(4, 2, density=0.5), (3, 4), ()),
    "SparseConv2d": (lambda: ns.nn.SparseConv2d(4, 2, 1, density=0.5), (4, 3, 3), ()),
    "MoE": (lambda: ns.nn.MoE(2, d_in=4, d_out=2), (3, 4), ()),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_inputs_of_another_data_type_than_the_weights(name: str, dtype: torch.dtype) -> None:
    """Each layer refuses them, as torch.nn.Linear does, in the same words."""
    make, shape, more = LAYERS[name]
    layer, x = make(), torch.ones(shape, dtype=dtype)
    text = told(lambda: layer(x, *more), RuntimeError)
    expected = rf"(x|input) has data type {str(dtype)[6:]}, but the weights of {name} have float32: pass (x|input)\.to\(torch\.float32\)"
    assert re.match(expected, text), text
    assert ("layer.to(torch.float64)" in text) == (dtype == torch.float64)
    assert layer.double()(torch.ones(shape, dtype=torch.float64), *more).dtype == torch.float64


def test_sparse_features_of_another_data_type() -> None:
    x = ns.from_torch(torch.eye(3, 4, dtype=torch.float64), ns.CSR)
    text = told(lambda: ns.nn.GCNConv(4, 2)(x, PAIRS), ns.UnsupportedError)
    assert text.startswith("x has data type float64, but the weights of GCNConv")


WEIGHTS: dict[str, tuple[Any, type[Exception], str]] = {
    "dense parameter": (torch.nn.Parameter(torch.ones(4, 8)), ns.OperandError, "of shape (4, 8), not a Parameter: set ns.nn.Parameter(A)"),
    "dense tensor": (torch.ones(4, 8), ns.OperandError, "not a Tensor: set ns.nn.Parameter(A) of a SparseTensor A, such as ns.from_torch"),
    "sparse tensor": (ns.from_torch(torch.ones(4, 8)), ns.OperandError, "not a SparseTensor: set ns.nn.Parameter(A)"),
    "other shape": (ns.nn.Parameter(A), ns.SizeError, "has shape (4, 8), but the parameter has (4, 4)"),
    "none": (None, ns.OperandError, "not a NoneType"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_a_sparse_layer_cannot_have(name: str) -> None:
    layer = SparseLinear(8, 4, density=0.5)
    given, kind, text = WEIGHTS[name]
    before = layer.weight
    assert text in told(lambda: setattr(layer, "weight", given), kind)
    assert layer.weight is before
    layer.weight = ns.nn.Parameter(ns.from_torch(torch.ones(4, 8), ns.CSC))
    assert layer(torch.ones(2, 8)).shape == (2, 4)


NAMES = "valid formats are CSR, CSC, DCSR, DCSC, COO(2), CSF(3), ELL, DIA, BCSR(4, 4), NM(2, 4), NMG(2, 4, 8), letters"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CRS", "did you mean CSR? "),
        ("ellpack", "did you mean ELL? "),
        ("NM(2,4", "did you mean NM(2, 4)? "),
        ("bitmap", "bitmap is a level, as in '(i, j) -> (i: dense, j: bitmap)'; "),
        ("xyz", ""),
    ],
)
def test_formats_that_dont_exist_in_plans_and_conversions(name: str, near: str) -> None:
    for call in (lambda: A.to(name), lambda: SparsityPlan().weight("*", magnitude(0.5), format=name)):
        assert told(call, ns.FormatError).startswith(f"unknown format {name!r}: {near}{NAMES}")


def test_names_are_taken_in_any_case() -> None:
    assert A.to("csc").format == A.to("Csc").format == ns.CSC


READ = ".mtx, .mtx.gz, .tns, .tns.gz, .smtx, .smtx.gz, .npz, .safetensors"


@pytest.mark.parametrize(
    ("call", "name", "text"),
    [
        (ns.load, "a.mtx", f"numscorch.load finds no such file; it reads {READ}"),
        (ns.load, "a.npz", f"numscorch.load finds no such file; it reads {READ}"),
        (ns.load, "a.pt", f"numscorch.load finds no such file; it reads {READ}, and files of torch.save under any other name"),
        (ns.load_graph, "a.npz", "numscorch.load_graph finds no such file; it reads .npz"),
        (ns.load, "there.mtx.gz", f"numscorch.load finds no such file; it reads {READ}; did you mean there.mtx?"),
    ],
)
def test_files_that_are_missing(call: Callable[[Path], object], name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "there.mtx").write_text("")
    with pytest.raises(FileNotFoundError) as error:
        call(tmp_path / name)
    assert (error.value.errno, error.value.strerror, error.value.filename) == (2, text, str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.mtx", "a.npz"])
def test_folders_that_are_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no such folder to write {name} in: make it first"):
        ns.save(A, tmp_path / "none" / name)


@pytest.mark.parametrize("method", [SET, RigL])
def test_dynamic_sparsity_of_a_dense_model_names_what_makes_it_sparse(method: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    text = told(lambda: method(model, torch.optim.SGD(model.parameters()), every=1, fraction=0.5, until=9), ns.ExpressionError)
    assert "the model has none; sparsify_model(model, SparsityPlan().weight('*.weight', magnitude(0.9)), optimizer=optimizer)" in text


@pytest.mark.filterwarnings("ignore:.* stores 10000 values for 100 entries")
@pytest.mark.parametrize(("format", "each"), [("DIA", 4), ("ELL", 8), ("(i, j) -> (i: dense, j: bitmap)", 4)])
def test_padding_that_wouldnt_fit_is_refused_rather_than_warned_of(format: str, each: int, plain: pytest.MonkeyPatch) -> None:
    """Values take 4 bytes and more at each position, and so do coordinates, where each position has one."""
    row = torch.stack([torch.zeros(100, dtype=torch.int64), torch.arange(100)])
    scattered = torch.stack([torch.arange(100), torch.arange(100).flip(0)])
    B = ns.from_coo(row if format == "ELL" else scattered, torch.ones(100), (100, 100), ns.CSR)
    plain.setattr("numscorch.machine.memory.ASK_FROM", 100)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", str(10_000 * each - 1))
    text = told(lambda: B.to(format), ns.SizeError)
    assert "storing 10000 positions takes" in text
    assert "use compressed levels, which store just the entries, as in ns.DCSR" in text
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", str(10_000 * each))
    assert B.to(format).pattern.nnz == 10_000
