"""A browser for the tests in this folder: Debian's Chromium, driven by playwright, which downloads none of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 15_000  # milliseconds until what doesn't appear is missing

Open = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window; tests that need it are skipped where it isn't installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium here (none of {', '.join(NAMES)}): make test-browser installs Debian's where it may")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser installs it where it may")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield started
        started.close()


@pytest.fixture
def view(browser: Browser) -> Iterator[Open]:
    """Opens a page in a context of its own. What goes wrong in any of them fails the test."""
    contexts, wrong = [], []

    def open_page(path: Path, *, width: int = 1280, **how: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **how))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"{request.url} failed"))
        page.on(
            "request", lambda request: None if request.url.startswith(("file:", "data:")) else wrong.append(f"{request.url} was asked for")
        )
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong
