"""Common fixtures: golden files, the scale of random tests, a private kernel cache, a small graph."""

from __future__ import annotations

import compileall
import difflib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import browser, view  # noqa: F401  # fixtures of the tests in browser/
from scale import scaled

if TYPE_CHECKING:
    import torch

    import numscorch as ns
    from numscorch.runtime import plans

GOLDEN = Path(__file__).parent / "golden"
CACHE = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """Function that scales the full number of random cases."""
    return scaled


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew; then read the diff")


def pytest_configure(config: pytest.Config) -> None:
    """Use a kernel cache private to this run; xdist workers inherit the variable and share the folder.

    The bytecode of numscorch is written ahead, since many tests start processes, and Python may be told to write none.
    """
    if not hasattr(config, "workerinput"):
        config.stash[CACHE] = os.environ["NUMSCORCH_CACHE_DIR"] = tempfile.mkdtemp(prefix="numscorch-tests-")
        compileall.compile_dir(Path(__file__).parents[1] / "numscorch", quiet=2)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CACHE in config.stash:
        shutil.rmtree(config.stash[CACHE], ignore_errors=True)


def pytest_collection_finish() -> None:
    """Exclude what is in memory now, mainly torch and the tests, from later garbage collections, which take 5 % of the time otherwise."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``full`` below full scale."""
    if scaled(1000) < 1000:
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(pytest.mark.skip(reason="at full scale only: make test-full"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``tests/golden/<name>``, or write it there under ``--update-golden``."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not path.exists():
            pytest.fail(f"golden/{name} does not exist: run pytest --update-golden, read it, and keep it")
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{name}", "generated", lineterm="")
            pytest.fail("\n".join(lines), pytrace=False)

    return check


@pytest.fixture
def fresh_plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Start without plans, schedules and conversions of other tests."""
    from fresh import forget_plans

    forget_plans(monkeypatch)
    with monkeypatch.context() as patch:
        yield patch
    forget_plans(monkeypatch)


@pytest.fixture
def plain(fresh_plans: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Run kernels as uncompiled Python with bounds checks."""
    from numscorch.codegen import kernel
    from numscorch.runtime import plans

    fresh_plans.setattr(plans.PROCESS, "build", kernel.build_plain)
    return fresh_plans


@pytest.fixture(scope="session")
def plans_of_python() -> plans.Tables:
    """Plans whose kernels run as uncompiled Python."""
    from numscorch.codegen import kernel
    from numscorch.runtime import plans

    return plans.Tables(kernel.build_plain)


@pytest.fixture
def interpreted(request: pytest.FixtureRequest, plans_of_python: plans.Tables) -> Iterator[None]:
    """Run kernels as ``plain``, and share their plans with other tests, unless this test patches what plans depend on."""
    from fresh import use_plans

    from numscorch.runtime import plans

    if "monkeypatch" in request.fixturenames:  # also if it requests ``plain`` or ``fresh_plans``
        request.getfixturevalue("plain")
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        use_plans(patch, plans_of_python)
        yield
    plans.SHORTCUTS.clear()


@pytest.fixture
def seeded() -> None:
    """Draw the same numbers from torch's generator, whatever ran before."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def plain_unless_compiled(request: pytest.FixtureRequest) -> None:
    """Run kernels as Python, except in tests of torch.compile, whose names contain ``compiled``; seed torch."""
    import torch

    torch.manual_seed(0)
    if "compiled" not in request.node.name:
        request.getfixturevalue("interpreted")


@pytest.fixture
def known_levels() -> Iterator[None]:
    """Forget the levels that a test registers."""
    from numscorch.ir.format_text import LEVELS

    before = dict(LEVELS)
    yield
    LEVELS.clear()
    LEVELS.update(before)


@pytest.fixture
def A(interpreted: None) -> ns.SparseTensor:
    """A small graph as the default ``A``; files may override it."""
    import torch

    import numscorch as ns

    edges = [[0, 0, 1, 2, 2, 3], [1, 3, 2, 0, 3, 1]]
    return ns.from_coo(edges, torch.arange(1.0, 7), (4, 4), format=ns.CSR)


@pytest.fixture
def D(A: ns.SparseTensor) -> torch.Tensor:
    """``A`` as a dense tensor."""
    return A.to_dense()
