"""What a call costs within torch.compile: ``python -m benchmarks.compiled_calls [--threads N]``.

Each row compares a sparse call with its dense twin; both run eagerly and compiled, with and without gradients. Calls alternate, and times
are the least of many, in microseconds.

    eager, compiled       times of the sparse call
    dense eager, compiled times of the dense twin
    over dense            compiled - dense compiled
    bar                   the most that ``compiled`` may take

The bars: a product of 16 x 16 takes at most 25 us more than its compiled dense twin, and 50 us more with gradients. Layers that take 500 us
or more are not slower than eager; below that, they add at most what the dense twin adds, and 15 us for each operator.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import numscorch as ns
from numscorch.programs import torch_operators
from numscorch.programs.program_texts import described
from numscorch.programs.torch_operators import CALL, arrays_of

Call = Callable[[], Any]
ROUNDS, SLICE = 25, 0.02  # seconds of a slice


@dataclass(frozen=True)
class Row:
    """A sparse and a dense module, or functions, with their inputs; ``operators`` is the number of sparse products."""

    name: str
    sparse: Callable[..., torch.Tensor]
    dense: Callable[..., torch.Tensor]
    inputs: tuple[Any, ...]
    operators: int = 1
    twin_inputs: tuple[Any, ...] | None = None


def product(x: torch.Tensor, A: Any) -> torch.Tensor:
    """The product with a matrix, sparse or dense."""
    result: torch.Tensor = torch.matmul(A, x)
    return result


class Convolution(torch.nn.Module):
    """Two graph convolutions with one matrix, sparse or dense."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(channels, 32), torch.nn.Linear(32, classes)

    def forward(self, x: torch.Tensor, A: Any) -> torch.Tensor:
        """Return the scores of the classes."""
        hidden = torch.matmul(A, self.first(x)).relu()
        result: torch.Tensor = torch.matmul(A, self.second(hidden))
        return result


def perceptron(width: int, make: Callable[[int, int], torch.nn.Module]) -> torch.nn.Module:
    """A network of two layers."""
    return torch.nn.Sequential(make(width, width), torch.nn.ReLU(), make(width, width))


def rows() -> list[Row]:
    """The calls."""
    torch.manual_seed(0)
    A = ns.rand(16, 16, density=0.2, format=ns.CSR)
    sparse = partial(ns.nn.SparseLinear, density=0.1)
    graph, large = (ns.rand(n, n, density=5 / n, format=ns.CSR) for n in (500, 20_000))
    return [
        Row("A @ X, 16 x 16", product, product, (torch.rand(16, 16), A), 1, (torch.rand(16, 16), A.to_dense())),
        Row("SparseLinear 64, batch 8", sparse(64, 64), torch.nn.Linear(64, 64), (torch.rand(8, 64),)),
        Row("SparseLinear 1024, batch 128", sparse(1024, 1024), torch.nn.Linear(1024, 1024), (torch.rand(128, 1024),)),
        Row("MLP 64, batch 8", perceptron(64, sparse), perceptron(64, torch.nn.Linear), (torch.rand(8, 64),), 2),
        Row("MLP 1024, batch 128", perceptron(1024, sparse), perceptron(1024, torch.nn.Linear), (torch.rand(128, 1024),), 2),
        Row(
            "GCN, 500 nodes",
            Convolution(32, 8),
            Convolution(32, 8),
            (torch.rand(500, 32), graph),
            2,
            (torch.rand(500, 32), graph.to_dense()),
        ),
        Row(
            "GCN, 20,000 nodes",
            Convolution(32, 8),
            Convolution(32, 8),
            (torch.rand(20_000, 32), large),
            2,
            (torch.rand(500, 32), graph.to_dense()),
        ),
    ]


def with_gradients(call: Callable[..., torch.Tensor], module: Callable[..., torch.Tensor], inputs: Sequence[Any]) -> Call:
    """A call forward and backward."""
    leaves = [inputs[0].detach().clone().requires_grad_()]
    parameters = module.parameters() if isinstance(module, torch.nn.Module) else ()
    wanted = [*(parameter for parameter in parameters if parameter.requires_grad), leaves[0]]
    for matrix in inputs[1:]:
        wanted.append(values := (matrix.values if isinstance(matrix, ns.SparseTensor) else matrix).detach().clone().requires_grad_())
        leaves.append(matrix.with_values(values) if isinstance(matrix, ns.SparseTensor) else values)
    ones = torch.ones_like(call(*leaves))
    return lambda: torch.autograd.grad(call(*leaves), wanted, ones)


def least(calls: Sequence[Call]) -> list[float]:
    """The least time of each call in microseconds; calls alternate."""
    for call in calls:
        for _ in range(5):
            call()
    times = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for at, call in enumerate(calls):
            count, start = 0, time.perf_counter()
            while (taken := time.perf_counter() - start) < SLICE:
                call()
                count += 1
            times[at] = min(times[at], taken / count * 1e6)
    return times


def measure(row: Row) -> None:
    """Print two lines: without and with gradients."""
    twin_inputs = row.twin_inputs or row.inputs
    torch.compiler.reset()
    programs = torch.compile(row.sparse, fullgraph=True), torch.compile(row.dense, fullgraph=True)
    pairs = [*((call, row.inputs) for call in (row.sparse, programs[0])), *((call, twin_inputs) for call in (row.dense, programs[1]))]
    for kind in ("forward", "backward"):
        if kind == "forward":
            with torch.no_grad():
                eager, compiled, dense, dense_compiled = least([partial(call, *inputs) for call, inputs in pairs])
        else:
            modules = (row.sparse, row.sparse, row.dense, row.dense)
            calls = [with_gradients(call, module, inputs) for (call, inputs), module in zip(pairs, modules, strict=True)]
            eager, compiled, dense, dense_compiled = least(calls)
        if row.name.startswith("A @ X"):
            bar = dense_compiled + (25 if kind == "forward" else 50)
        else:
            bar = eager if eager >= 500 else eager + max(dense_compiled - dense, 0) + 15 * row.operators * (1 if kind == "forward" else 2)
        missed = "" if compiled <= bar else "missed"
        times = f"{eager:10.1f}{compiled:10.1f}{dense:12.1f}{dense_compiled:10.1f}{compiled - dense_compiled:12.1f}{bar:10.1f}"
        print(f"{row.name:30}{kind:10}{times}  {missed}")


def measure_operator() -> None:
    """Print what the operator alone takes over the eager call."""
    A, X = ns.rand(16, 16, density=0.2, format=ns.CSR), torch.rand(16, 16)
    text = f"A: {described(A.pattern)}; B: dense; float32 = contract('ij,jk->ik', A, B, format='dense')"
    arrays = [A.values, *arrays_of(A.pattern), X]
    eager, alone, body = least([lambda: A @ X, lambda: CALL(text, arrays), lambda: torch_operators.program_of(text).run(arrays)])
    missed = "" if alone <= eager + 15 else "missed"
    print(f"operator alone, 16 x 16: eager {eager:.1f}, operator {alone:.1f}, of which its body {body:.1f}; bar {eager + 15:.1f}  {missed}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    warnings.simplefilter("ignore")
    measure_operator()
    print(f"{'':40}{'eager':>10}{'compiled':>10}{'dense eager':>12}{'compiled':>10}{'over dense':>12}{'bar':>10}")
    for row in rows():
        measure(row)


if __name__ == "__main__":
    main()
