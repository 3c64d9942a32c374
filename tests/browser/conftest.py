"""A browser for the tests in this folder: Debian's Chromium, driven by playwright, which downloads none of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import synthetic_runs as synthetic

from benchmarks.dashboard.__main__ import main

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
REPOSITORY = "https://git.example/numscorch"
COMMITS, CASES = 60, 1000
PATIENCE = 15_000  # milliseconds until what doesn't appear is missing

Open = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window; tests that need it are skipped where it isn't installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    driver = pytest.importorskip("playwright.sync_api", reason="playwright isn't installed: pip install -e .[browser]")
    with driver.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program)
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


@pytest.fixture(scope="session")
def site(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dashboard as the command line writes it, of as many cases as a full suite has. Without a browser it isn't written."""
    folder = tmp_path_factory.mktemp("dashboard")
    synthetic.write(folder / "runs", synthetic.history(COMMITS, CASES))
    arguments = [folder / "runs", "--history", folder / "none", "--output", folder / "site", "--repository", REPOSITORY]
    assert main([str(argument) for argument in arguments]) == 0
    return folder / "site"
