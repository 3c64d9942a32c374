"""The tables of the pages for users of other libraries: both sides of a row have one value, and our sides run.

A row is checked if both cells are a single code span. Its names are those of the page's first block of examples.
torch_sparse, DGL and TACO need not be installed: of tables with one of these names in the heading, our side runs.
"""

from __future__ import annotations

import doctest
import re
import warnings
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_values import as_dense
from pages import ROOT

pytestmark = pytest.mark.usefixtures("interpreted")
FOLDER = ROOT / "docs" / "start"
COMPARED = {("torch-sparse", "torch"): 45, ("pyg", "PyTorch Geometric"): 25}  # page and heading: the least number of rows
RUN = {("pyg", "torch_sparse"): 25, ("dgl", "DGL"): 40, ("taco", "TACO"): 25}
HEADING = re.compile(r"^\| ([\w. ]+) \| numscorch \|$")
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$")
PARSER = doctest.DocTestParser()


@cache
def rows(page: str, heading: str) -> list[tuple[str, str]]:
    """The rows with two cells of code, of a page's tables with a heading."""
    pairs, current = [], ""
    for line in (FOLDER / f"{page}.md").read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            current = ""
        elif match := HEADING.match(line):
            current = match[1]
        elif (match := ROW.match(line)) and current == heading:
            pairs.append((match[1], match[2]))
    return pairs


def names(page: str) -> dict[str, Any]:
    """What the first block of examples of a page defines."""
    block = re.search(r"```python\n(.*?)```", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's of sparse layouts, and those of the import of torch_geometric
        if page == "pyg":
            pytest.importorskip("torch_geometric")
        for example in PARSER.get_examples(block[1]):
            exec(example.source, namespace)
    return namespace


def as_list(value: Any) -> list[torch.Tensor]:
    """A result as dense float64 tensors: one, or one for each member of a tuple."""
    if isinstance(value, tuple | list) and any(isinstance(part, torch.Tensor) for part in value):
        return [tensor for part in value for tensor in as_list(part)]
    value = as_dense(value)
    if isinstance(value, torch.Tensor) and value.layout != torch.strided:
        value = value.to_dense()
    return [torch.as_tensor(value).detach().to(torch.float64)]


@pytest.mark.parametrize(("table", "least"), [*COMPARED.items(), *RUN.items()])
def test_the_tables_have_rows(table: tuple[str, str], least: int) -> None:
    assert len(rows(*table)) >= least


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "theirs", "ours"), [(table[0], *row) for table in COMPARED for row in rows(*table)])
def test_both_sides_of_a_row_have_one_value(page: str, theirs: str, ours: str) -> None:
    expected, result = as_list(eval(theirs, names(page))), as_list(eval(ours, names(page)))
    assert len(expected) == len(result)
    for theirs_part, ours_part in zip(expected, result, strict=True):
        torch.testing.assert_close(ours_part, theirs_part, equal_nan=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "ours"), [(table[0], ours) for table in RUN for _, ours in rows(*table)])
def test_our_side_of_a_row_runs(page: str, ours: str, tmp_path: Path) -> None:
    with chdir(tmp_path):
        eval(ours, names(page))
