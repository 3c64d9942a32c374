"""All operators in all layouts, forward and backward, compared with torch on dense tensors; docs/coverage.md is generated here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from coverage_rows import ROWS, STORED, WITHOUT_GRADIENT, Given
from dense_values import as_dense

import numscorch as ns

LONG = 20  # formats with longer names are listed as "blocks"
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
BSC = ns.Format("(i, j) -> (j // 2: dense, i // 2: compressed, i % 2: dense, j % 2: dense)")
FORMATS = {"COO": ns.COO(2), "CSR": ns.CSR, "CSC": ns.CSC, "BSR": ns.BCSR(2, 2), "BSC": BSC, "DCSR": ns.DCSR, "ELL": ns.ELL}


def given(dtype: torch.dtype = torch.float64) -> Given:
    g = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=dtype)

    full = numbers(4, 6) * (torch.rand(4, 6, generator=g) < 0.5)
    return Given(full, numbers(4, 6), numbers(6, 3), numbers(6), numbers(4))


def stored_entries(A: ns.SparseTensor) -> torch.Tensor:
    return A.with_values(torch.ones_like(A.values.detach())).to_dense() != 0


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ROWS)
def test_operators_are_torchs(name: str, format: str, interpreted: None) -> None:
    dense = given()
    A = ns.from_torch(dense.S, FORMATS[format])
    values, full = A.values.clone().requires_grad_(), dense.S.clone().requires_grad_()
    result = as_dense(ROWS[name](replace(dense, S=A.with_values(values))))
    expected = ROWS[name](replace(dense, S=full))
    if isinstance(expected, bool):
        assert result == expected
        return
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result.detach(), expected.detach())
    if name in WITHOUT_GRADIENT:
        return
    upstream = torch.rand(expected.shape, generator=torch.Generator().manual_seed(1), dtype=expected.dtype)
    (expected * upstream).sum().backward()
    (result * upstream).sum().backward()
    inside = stored_entries(A)
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), torch.where(inside, full.grad, 0), equal_nan=True)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", STORED)
def test_softmax_of_stored_entries(name: str, format: str, interpreted: None) -> None:
    dense = given()
    A = ns.from_torch(dense.S, FORMATS[format])
    inside = stored_entries(A)
    values, full = A.values.clone().requires_grad_(), dense.S.clone().requires_grad_()
    result = STORED[name](replace(dense, S=A.with_values(values)))
    expected = STORED[name](replace(dense, S=torch.where(inside, full, -torch.inf)))
    expected = torch.where(inside, expected, 0)
    torch.testing.assert_close(result.to_dense().detach(), expected.detach())
    upstream = torch.rand(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (expected * upstream).sum().backward()
    (result.to_dense() * upstream).sum().backward()
    torch.testing.assert_close(A.with_values(values.grad).to_dense(), full.grad.nan_to_num() * inside)


HEAD = """# Operators and layouts

The table lists torch's operators on a `SparseTensor` S. D and x are dense matrices, u and v are vectors. A cell is the format of the
result for one format of S: `same` is the format of S, `dense` is a dense tensor, `blocks` is a blocked format with a long name, and `-`
is a Python value. Other cells name a [format](concepts/formats.md), often by one letter for each level. `unordered` means that the
coordinates of the last level are not sorted.

All operators are differentiable in S, except those marked with *, which return booleans, indices or constants. The gradient has the
pattern of S.

The last column says whether `torch.compile(fullgraph=True)` compiles the operator for CSR. The other operators cause a graph break, so
they need `fullgraph=False`.

`tests/operators/test_coverage.py` generates this page. It compares every result and gradient with torch on dense tensors.

"""


def result_kind(result: Any, format: ns.Format) -> str:
    """Cell of the table for a result: its format, "dense", or "-" for a plain value."""
    if isinstance(result, ns.SparseTensor):
        return "same" if result.format == format else result.format.name if len(result.format.name) < LONG else "blocks"
    return "dense" if isinstance(result, torch.Tensor) else "-"


def compiles(row: Any) -> bool:
    """True if torch compiles the operator without a graph break."""
    g = given(torch.float32)
    A = ns.from_torch(g.S, ns.CSR)

    def program(D: torch.Tensor, X: torch.Tensor, v: torch.Tensor, u: torch.Tensor) -> Any:
        return row(Given(A, D, X, v, u))

    torch.compiler.reset()
    try:
        torch.compile(program, fullgraph=True, backend="eager")(g.D, g.X, g.v, g.u)
    except (torch._dynamo.exc.TorchDynamoException, ns.NumscorchError):
        return False
    return True


COMPILED = """
import json, sys, test_coverage
rows = {**test_coverage.ROWS, **test_coverage.STORED}
json.dump([name for name, row in rows.items() if test_coverage.compiles(row)], sys.stdout)
"""


def compiled_operators() -> list[str]:
    """The operators that torch compiles, found in a process of its own: other tests change what torch knows of its functions."""
    folders = [str(Path(__file__).parents[at] / name) for at, name in ((2, ""), (1, "support"), (0, ""))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILED], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    names: list[str] = json.loads(finished.stdout)
    return names


@pytest.mark.process
def test_the_table_is_up_to_date(request: pytest.FixtureRequest, interpreted: None) -> None:
    rows, compiled = {**ROWS, **STORED}, compiled_operators()
    lines = [["operator", *FORMATS, "compiled"], ["---"] * (len(FORMATS) + 2)]
    for name, row in rows.items():
        cells = [result_kind(row(replace(given(), S=ns.from_torch(given().S, format))), format) for format in FORMATS.values()]
        lines.append([f"`{name}`" + "*" * (name in WITHOUT_GRADIENT), *cells, "yes" if name in compiled else "graph break"])
    text = HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, "run pytest tests/operators/test_coverage.py --update-golden, and read the diff"


def test_sparse_mask_of_a_dense_tensor(interpreted: None) -> None:
    dense = given()
    A = ns.from_torch(dense.S, ns.CSR)
    assert torch.equal(dense.D.sparse_mask(A).to_dense(), dense.D * (dense.S != 0))
