"""``ns.warm`` compiles kernels ahead of time, and changes nothing else."""

from __future__ import annotations

import copy
import functools
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import numscorch as ns
from numscorch import __main__ as cli
from numscorch.commands import warming
from numscorch.errors import OperandError, UnsupportedError
from numscorch.interface.warmup import Warmed
from numscorch.machine.compile_log import counts

WIDTH = 11


class Model(torch.nn.Module):
    """A sparse layer with buffers and randomness."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ns.nn.SparseLinear(WIDTH, WIDTH, density=0.3)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.drop = torch.nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        random.random(), np.random.rand()
        result: torch.Tensor = self.drop(self.norm(self.layer(x)))
        return result

    def twice(self, x: torch.Tensor) -> Any:
        return {"once": [self(x)], "twice": 2 * self(x)}


def state_of(model: Model) -> list[Any]:
    """The state that warming must not change."""
    tensors = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    gradients = [None if tensor.grad is None else tensor.grad.clone() for tensor in model.parameters()]
    numbers = str(np.random.get_state()), random.getstate(), torch.get_rng_state()
    training = [module.training for module in model.modules()]
    return [tensors, gradients, [tensor._version for tensor in model.parameters()], model.calls, training, *numbers]


def assert_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for part, expected_part in zip(actual, expected, strict=True):
            assert_same(part, expected_part)
    elif isinstance(expected, torch.Tensor):
        assert actual is not None and torch.equal(actual, expected)
    else:
        assert actual == expected


def rows(count: int = 5) -> torch.Tensor:
    return torch.rand(count, WIDTH, requires_grad=True)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("has_gradients", [True, False])
def test_modules_do_not_change(is_training: bool, has_gradients: bool) -> None:
    model, x = Model(), rows()
    if has_gradients:
        model(x).sum().backward()
    model.train(is_training)
    gradient, version, before = copy.copy(x.grad), x._version, state_of(model)
    ns.warm(model, x)
    assert_same(state_of(model), before)
    assert x._version == version
    assert_same(x.grad, gradient)


def test_a_step_after_warming_compiles_nothing() -> None:
    layer = ns.nn.SparseLinear(37, 29, density=0.2, dtype=torch.float64)
    x = torch.rand(3, 37, dtype=torch.float64, requires_grad=True)
    report = ns.warm(layer, x)
    assert report.compiled + report.loaded > 0 and report.seconds > 0
    ready = counts.ready
    result = layer(x)
    result.backward(torch.ones_like(result))
    assert counts.ready == ready
    assert layer.weight.values.grad is not None and x.grad is not None
    again = ns.warm(layer, x)
    assert (again.compiled, again.loaded) == (0, 0)


class Evaluated(torch.nn.Module):
    """A module whose evaluation runs another kernel, or raises an error."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.layer, self.fails = ns.nn.SparseLinear(41, 23, density=0.2, dtype=torch.float64), fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.layer(x)
        if self.fails:
            raise ValueError("no evaluation")
        assert not torch.is_grad_enabled()
        return ns.einsum("bi,oi->b", x, self.layer.weight.tensor)


def test_evaluation_after_warming_compiles_nothing() -> None:
    model, x = Evaluated(), torch.rand(3, 41, dtype=torch.float64)
    ns.warm(model, x)
    assert model.training and model.layer.training and model.layer.weight.values.grad is None
    ready = counts.ready
    with torch.no_grad():
        model.eval()(x)
    assert counts.ready == ready


def test_errors_of_evaluation_suggest_to_warm_training_only() -> None:
    model, x = Evaluated(fails=True), torch.rand(3, 41, dtype=torch.float64)
    with pytest.raises(ValueError, match="no evaluation") as caught:
        ns.warm(model, x)
    assert "pass lambda x: model(x) for training alone" in caught.value.__notes__[0]
    ns.warm(lambda x: model(x), x)


def check_unchanged(call: Callable[[Model], Callable[..., Any]]) -> None:
    """Warm a function of a model, and check that the model does not change."""
    model, x = Model(), rows()
    model(x).sum().backward()
    function, before = call(model), state_of(model)
    before[3] = None
    ns.warm(function, x)
    after = state_of(model)
    after[3] = None  # plain attributes of objects that a function refers to may change
    before[2] = after[2] = None  # written tensors are written back
    assert_same(after, before)


def training_step(model: Model, x: torch.Tensor) -> torch.Tensor:
    """A whole training step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.zero_grad()
    loss: torch.Tensor = model.eval()(x).sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize(
    "call",
    [
        lambda model: lambda x: model(x).square().mean(),
        lambda model: lambda x: training_step(model, x),
        lambda model: functools.partial(training_step, model),
        lambda model: model.twice,
    ],
    ids=["closure", "training step", "partial", "method"],
)
def test_modules_in_a_function_do_not_change(call: Callable[[Model], Callable[..., Any]]) -> None:
    check_unchanged(call)


def test_an_existing_autograd_graph_is_kept() -> None:
    weight = torch.rand(WIDTH, requires_grad=True)
    scaled = weight.exp()
    A = ns.rand(WIDTH, WIDTH, density=0.5, format=ns.CSR)
    ns.warm(lambda: A @ scaled)
    ns.warm(lambda x: A @ x, scaled)
    assert weight.grad is None
    scaled.sum().backward()  # its saved tensors are not freed
    assert weight.grad is not None


def test_sparse_inputs_and_results() -> None:
    A, x = ns.rand(WIDTH, WIDTH, density=0.5, format=ns.CSR), torch.rand(WIDTH, requires_grad=True)
    A.values.requires_grad_()
    ns.warm(lambda A, x: (A * 2, {"y": A @ x}), A, x=x)
    assert A.grad is None and x.grad is None
    with torch.no_grad():
        ns.warm(lambda A: A @ A, A)
    ns.warm(lambda: None)
    ns.warm(lambda x: x, x)


def test_the_text_of_a_report() -> None:
    assert repr(Warmed(1, 2, 0.26)) == "<warm: 1 kernel compiled, 2 loaded, 0.3 s>"
    assert repr(Warmed(0, 0, 0.0)) == "<warm: 0 kernels compiled, 0 loaded, 0.0 s>"


class Uncopied(torch.nn.Module):
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError("a handle of a file")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (3, OperandError, r"not int: pass the module or function first, then its inputs, as in ns.warm\(model, x\)"),
        (torch.rand(2), OperandError, "not Tensor"),
        (Model, OperandError, r"not the class Model: make one, as in ns.warm\(Model\(...\), x\)"),
        (Uncopied(), UnsupportedError, r"Uncopied can't be copied \(a handle of a file\): pass a function"),
    ],
)
def test_errors_of_bad_input_suggest_a_fix(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ns.warm(call, 1)


def test_errors_of_the_module_have_a_note() -> None:
    model, x = Model(), torch.rand(2, WIDTH + 1)
    before = state_of(model)
    with pytest.raises(ns.SizeError) as caught:
        ns.warm(model, x)
    assert "ns.warm(model, x, edge_index)" in caught.value.__notes__[0]
    with pytest.raises(TypeError) as missing:
        ns.warm(model)
    assert missing.value.__notes__
    assert_same(state_of(model), before)


def test_nothing_is_compiled_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(UnsupportedError, match="NUMBA_DISABLE_JIT"):
        ns.warm(Model(), rows())


def test_threads_warm_at_the_same_time() -> None:
    model, x, reports = Model().eval(), rows(), []
    threads = [threading.Thread(target=lambda: reports.append(ns.warm(model, x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports) == 4 and all(parameter.grad is None for parameter in model.parameters())


# ---- python -m numscorch cache warm --common


def test_common_runs_cover_the_documented_layers() -> None:
    names = [name for name, _ in warming.common_runs()]
    assert len(set(names)) == len(names)
    for kind in ("GCNConv", "SAGEConv", "GINConv", "GATConv", "SparseAttention", "SparseLinear", "SpMV, SpMM, SDDMM and SpGEMM"):
        assert any(name.startswith(kind) for name in names), kind


def test_the_command_lists_compiled_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NUMSCORCH_CACHE_DIR", str(tmp_path))
    A = ns.rand(30, 40, density=0.2, format=ns.CSR)
    runs = [("rows", lambda: A.sum(1)), ("rows and columns", lambda: (A.sum(1), A.sum(0))), ("rows again", lambda: A.sum(1))]
    monkeypatch.setattr(warming, "common_runs", lambda: iter(runs))
    assert cli.main(["cache", "warm", "--common"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    counts = [re.fullmatch(rf"{name}: (\d) more kernels?, \d+\.\d s", line)[1] for (name, _), line in zip(runs, lines, strict=True)]
    assert counts == ["1", "1", "0"], "kernels that runs share are counted once"
    assert f"2 kernels of common layers and products are in {tmp_path}; " in last
    assert len(list(tmp_path.glob("kernel_*.py"))) >= 2


GRAPH_STEP = """
import torch, numscorch as ns
from numscorch.machine.compile_log import counts
random = torch.Generator().manual_seed(7)
one = (5000 * torch.rand(2, 11_000, generator=random) ** 1.6).long()
A = ns.adj_t(torch.cat([one, one.flip(0)], 1).unique(dim=1), size=5000)
rows = torch.arange(5000).repeat_interleave(15)
x = ns.from_coo(torch.stack([rows, torch.randint(1400, rows.shape, generator=random)]), torch.ones(len(rows)), (5000, 1400), ns.CSR)
for first, second in (
    (ns.nn.GCNConv(1400, 64), ns.nn.GCNConv(64, 7)),
    (ns.nn.SAGEConv(1400, 32), ns.nn.SAGEConv(32, 3)),
    (ns.nn.GATConv(1400, 8, heads=8), ns.nn.GATConv(64, 7)),
):
    for features in (x, x.to_dense()):
        out = second(torch.relu(first(features, A)), A)
        torch.nn.functional.cross_entropy(out[:100], torch.arange(100) % 3).backward()
        with torch.no_grad():
            second(torch.relu(first(features, A)), A)
print(counts.ready, counts.compiled)
"""


@pytest.mark.full
@pytest.mark.process
def test_networks_on_a_graph_like_cora_find_their_kernels(tmp_path: Path) -> None:
    """After the command, training and evaluation of networks on a graph of other sizes compile at most two kernels."""
    environment = os.environ | {"NUMSCORCH_CACHE_DIR": str(tmp_path), "NUMSCORCH_PROGRESS": "0"}
    subprocess.run([sys.executable, "-m", "numscorch", "cache", "warm", "--common"], env=environment, check=True, capture_output=True)
    finished = subprocess.run([sys.executable, "-c", GRAPH_STEP], env=environment, check=True, capture_output=True, text=True)
    ready, compiled = map(int, finished.stdout.split())
    assert ready > 40
    assert compiled <= 2


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, _ in warming.common_runs()])
def test_common_runs_have_kernels(name: str) -> None:
    assert warming.warm_all(dict(warming.common_runs())[name]) > 0
