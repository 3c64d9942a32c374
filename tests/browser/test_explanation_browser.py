"""The page that ``explain(...).save`` writes, in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import numscorch as ns

pytestmark = pytest.mark.browser

Open = Callable[..., Any]
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with drawings of operands, the loop nest, a timed run and the source."""
    path = tmp_path_factory.mktemp("explained") / "spmm.html"
    matrix = ns.from_torch((torch.eye(300) + torch.eye(300).roll(7, 0)).to_sparse_csr())
    ns.explain("ij,jk->ik", matrix, torch.ones(300, 32), timed=True).save(path)
    return path


def test_an_explanation_opens_without_errors(saved: Path, view: Open) -> None:
    page = view(saved)
    for title in ("Operands and result", "Loop nest", "Source"):
        assert page.get_by_role("heading", name=title).first.is_visible()
    assert page.locator("svg").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_explanation_never_scrolls_sideways_on_a_phone(saved: Path, view: Open, scheme: str) -> None:
    page = view(saved, viewport=PHONE, is_mobile=True, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
