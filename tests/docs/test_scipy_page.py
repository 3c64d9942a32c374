"""The table of names of the page for users of SciPy: both sides of each row have the same value."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from dense_values import as_dense
from pages import ROOT

import numscorch as ns

sp = pytest.importorskip("scipy.sparse")
linalg = pytest.importorskip("scipy.sparse.linalg")
pytestmark = pytest.mark.usefixtures("interpreted")
PAGE = (ROOT / "docs" / "start" / "scipy.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(.+)` \| `(.+)` \|$", PAGE.partition("Some functions have no counterpart")[0], re.MULTILINE)
S = sp.csr_array(np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.0, 5.0]]))
ENTRIES: dict[str, Any] = {"rows": np.array([2, 0, 2]), "columns": np.array([1, 1, 1]), "values": np.array([1.0, 2.0, 3.0])}
x, v = np.array([1.0, -1.0, 2.0]), np.array([1.0, 0.0, 3.0])


def as_array(value: Any) -> np.ndarray:
    """A result as a NumPy array; several arrays of one shape are stacked."""
    if isinstance(value, tuple):
        return np.stack(list(map(as_array, value)))
    value = as_dense(value)
    return value.toarray() if sp.issparse(value) else np.asarray(value)


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 35


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=[theirs for theirs, _ in ROWS])
def test_both_sides_of_the_table_have_one_value(theirs: str, ours: str) -> None:
    expected = as_array(eval(theirs, {"S": S, "sp": sp, "np": np, "x": x, "v": v, **ENTRIES}))
    tensors = {"x": torch.from_numpy(x), "v": torch.from_numpy(v)}
    result = as_array(eval(ours, {"A": ns.from_scipy(S), "ns": ns, "torch": torch, **tensors, **ENTRIES}))
    assert expected.dtype.kind == result.dtype.kind
    np.testing.assert_allclose(result, expected)
