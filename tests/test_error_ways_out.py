"""Errors of layers, plans, formats and files name the arguments as users know them, and suggest a fix."""

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


def error_text(call: Callable[[], object], kind: type[Exception]) -> str:
    with pytest.raises(kind) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("shape", [(3, 5), (8, 3), (5,), ()])
def test_inputs_of_another_size_are_refused_with_the_names_of_linear(shape: tuple[int, ...]) -> None:
    layer, sizes = SparseLinear(8, 4, density=0.5), "the weight has shape (4, 8), (out_features, in_features)"
    expected = f"input has shape {shape}, but its last dimension has to be in_features=8: {sizes}"
    assert error_text(lambda: layer(torch.ones(shape)), ns.SizeError) == expected
    assert error_text(lambda: torch.nn.functional.linear(torch.ones(shape), layer.weight.tensor), RuntimeError) == f"linear: {expected}"


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
def test_errors_of_density_and_pattern(name: str) -> None:
    options, kind, text = WRONG[name]
    assert text in error_text(lambda: SparseLinear(8, 4, **options), kind)


def test_errors_name_the_layer() -> None:
    assert error_text(lambda: SparseEmbedding(8, 4), ns.UnsupportedError).startswith("SparseEmbedding needs")


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
def test_inputs_with_another_data_type_than_the_weights_are_refused(name: str, dtype: torch.dtype) -> None:
    """Each layer refuses them with the same message, as torch.nn.Linear does."""
    make, shape, args = LAYERS[name]
    layer, x = make(), torch.ones(shape, dtype=dtype)
    text = error_text(lambda: layer(x, *args), RuntimeError)
    expected = rf"(x|input) has data type {str(dtype)[6:]}, but the weights of {name} have float32: pass (x|input)\.to\(torch\.float32\)"
    assert re.match(expected, text), text
    assert ("layer.to(torch.float64)" in text) == (dtype == torch.float64)
    assert layer.double()(torch.ones(shape, dtype=torch.float64), *args).dtype == torch.float64


def test_sparse_features_with_another_data_type_are_refused() -> None:
    x = ns.from_torch(torch.eye(3, 4, dtype=torch.float64), ns.CSR)
    text = error_text(lambda: ns.nn.GCNConv(4, 2)(x, PAIRS), ns.UnsupportedError)
    assert text.startswith("x has data type float64, but the weights of GCNConv")


WEIGHTS: dict[str, tuple[Any, type[Exception], str]] = {
    "dense parameter": (torch.nn.Parameter(torch.ones(4, 8)), ns.OperandError, "of shape (4, 8), not a Parameter: set ns.nn.Parameter(A)"),
    "dense tensor": (torch.ones(4, 8), ns.OperandError, "not a Tensor: set ns.nn.Parameter(A) of a SparseTensor A, such as ns.from_torch"),
    "sparse tensor": (ns.from_torch(torch.ones(4, 8)), ns.OperandError, "not a SparseTensor: set ns.nn.Parameter(A)"),
    "other shape": (ns.nn.Parameter(A), ns.SizeError, "has shape (4, 8), but the parameter has (4, 4)"),
    "none": (None, ns.OperandError, "not a NoneType"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_invalid_weights_of_a_sparse_layer_are_refused(name: str) -> None:
    layer = SparseLinear(8, 4, density=0.5)
    weight, kind, text = WEIGHTS[name]
    before = layer.weight
    assert text in error_text(lambda: setattr(layer, "weight", weight), kind)
    assert layer.weight is before
    layer.weight = ns.nn.Parameter(ns.from_torch(torch.ones(4, 8), ns.CSC))
    assert layer(torch.ones(2, 8)).shape == (2, 4)


NAMES = "valid formats are CSR, CSC, DCSR, DCSC, COO(2), CSF(3), ELL, DIA, BCSR(4, 4), NM(2, 4), NMG(2, 4, 8), letters"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("CRS", "did you mean CSR? "),
        ("ellpack", "did you mean ELL? "),
        ("NM(2,4", "did you mean NM(2, 4)? "),
        ("bitmap", "bitmap is a level, as in '(i, j) -> (i: dense, j: bitmap)'; "),
        ("xyz", ""),
    ],
)
def test_unknown_formats_suggest_a_similar_name(name: str, suggestion: str) -> None:
    for call in (lambda: A.to(name), lambda: SparsityPlan().weight("*", magnitude(0.5), format=name)):
        assert error_text(call, ns.FormatError).startswith(f"unknown format {name!r}: {suggestion}{NAMES}")


def test_names_of_formats_ignore_case() -> None:
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
def test_missing_files(call: Callable[[Path], object], name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "there.mtx").write_text("")
    with pytest.raises(FileNotFoundError) as error:
        call(tmp_path / name)
    assert (error.value.errno, error.value.strerror, error.value.filename) == (2, text, str(tmp_path / name))


@pytest.mark.parametrize("name", ["a.mtx", "a.npz"])
def test_missing_folders(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no such folder to write {name} in: create it first"):
        ns.save(A, tmp_path / "none" / name)


@pytest.mark.parametrize("method", [SET, RigL])
def test_dynamic_sparsity_of_a_dense_model_suggests_sparsify_model(method: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    text = error_text(lambda: method(model, torch.optim.SGD(model.parameters()), every=1, fraction=0.5, until=9), ns.ExpressionError)
    assert "the model has none; sparsify_model(model, SparsityPlan().weight('*.weight', magnitude(0.9)), optimizer=optimizer)" in text


@pytest.mark.filterwarnings("ignore:.* stores 10000 values for 100 entries")
@pytest.mark.parametrize(("format", "position_bytes"), [("DIA", 4), ("ELL", 8), ("(i, j) -> (i: dense, j: bitmap)", 4)])
def test_padding_beyond_the_memory_limit_is_refused_without_a_warning(format: str, position_bytes: int, plain: pytest.MonkeyPatch) -> None:
    """Each position stores a value of 4 bytes or more, and a coordinate unless coordinates are implicit."""
    row = torch.stack([torch.zeros(100, dtype=torch.int64), torch.arange(100)])
    scattered = torch.stack([torch.arange(100), torch.arange(100).flip(0)])
    B = ns.from_coo(row if format == "ELL" else scattered, torch.ones(100), (100, 100), ns.CSR)
    plain.setattr("numscorch.machine.memory.ASK_FROM", 100)
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", str(10_000 * position_bytes - 1))
    text = error_text(lambda: B.to(format), ns.SizeError)
    assert "storing 10000 positions takes" in text
    assert "use compressed levels, which store just the entries, as in ns.DCSR" in text
    plain.setenv("NUMSCORCH_MEMORY_LIMIT", str(10_000 * position_bytes))
    assert B.to(format).pattern.nnz == 10_000
