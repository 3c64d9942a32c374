"""Browser fixtures: the installed Chromium, driven by playwright without downloading a browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP = {"width": 1280, "height": 900}
OFFLINE = ("file:", "data:")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests that need it are skipped if it is unavailable."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium here (none of {', '.join(NAMES)}): make test-browser installs Debian's where it may")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make test-browser installs it where it may")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield started
        started.close()


@pytest.fixture
def view(browser: Any) -> Iterator[Callable[..., Any]]:
    """Function that opens a file; console messages, page errors and network requests fail the test."""
    contexts, amiss = [], []

    def opened(path: Path, **how: Any) -> Any:
        contexts.append(browser.new_context(**{"viewport": DESKTOP, **how}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: amiss.append(message.text))
        page.on("pageerror", lambda error: amiss.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(OFFLINE) else amiss.append(f"asked for {request.url}"))
        page.on("requestfailed", lambda request: amiss.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not amiss
