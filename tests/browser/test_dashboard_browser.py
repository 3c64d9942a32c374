"""The dashboard in headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dashboard_runs import REPOSITORY, some_runs

from benchmarks.dashboard.places import slug
from benchmarks.dashboard.site import write_site

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}
SPMM = f"kernels/{slug('spmm')}.html"
CASE = f"cases/{slug('spmm', 'cora, k=2, 1 thread')}.html"
KINDS = ("index.html", SPMM, CASE, "compile.html", "memory.html", "machines.html")

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with 80 commits of all kernels, and a second suite."""
    folder = tmp_path_factory.mktemp("dashboard") / "site"
    write_site(some_runs(80, 480) + some_runs(2, 24, suite="quick"), folder, repository=REPOSITORY, skipped={"x.json": "it is no run"})
    return folder


@pytest.fixture
def visit(view: Open, site: Path) -> Open:
    """Function that opens a page of the site; errors and messages of the page fail the test."""
    return lambda name="index.html", **how: view(site / name, **how)


def column(page: Any, number: int) -> list[str]:
    """Texts of the visible cells in a column of the first sortable table."""
    rows = page.locator(".sortable").first.locator("tbody tr:visible")
    return list(rows.locator(f"td:nth-child({number})").all_inner_texts())


def seconds(text: str) -> float:
    value, unit = text.split()
    return float(value) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]


def test_pages_open_without_errors(visit: Open, site: Path) -> None:
    view = visit()
    names = [str(path.relative_to(site)) for path in site.rglob("*.html")]
    pages = [name for name in names if not name.startswith(("cases", "sources"))] + sorted(n for n in names if n.startswith("cases"))[::20]
    assert len(pages) > 50
    for name in pages:
        view.goto((site / name).as_uri())
        assert view.locator("h1").count() == 1, name


def test_the_filter_keeps_rows_with_all_its_words(visit: Open) -> None:
    page = visit(SPMM)
    names = column(page, 1)
    field = page.get_by_label("Filter")
    field.click()
    page.keyboard.type("cora 2 threads")
    filtered = column(page, 1)
    assert 0 < len(filtered) < len(names)
    assert all("cora" in name and "2 threads" in name for name in filtered)
    assert page.locator(".filter output").inner_text() == f"{len(filtered)} of {len(names)}"
    field.fill("")
    assert column(page, 1) == names


def test_columns_sort_when_their_titles_are_clicked(visit: Open) -> None:
    page = visit(SPMM)
    title = page.get_by_role("columnheader", name="time per call")
    title.get_by_role("button").click()
    assert title.get_attribute("aria-sort") == "descending"
    descending = [seconds(text) for text in column(page, 4)]
    assert descending == sorted(descending, reverse=True)
    title.get_by_role("button").click()
    assert title.get_attribute("aria-sort") == "ascending"
    ascending = [seconds(text) for text in column(page, 4)]
    assert ascending == sorted(ascending)
    assert len(set(ascending)) > 3


def test_numbers_within_words_sort_as_numbers(visit: Open) -> None:
    page = visit(SPMM)
    page.get_by_role("columnheader", name="case").get_by_role("button").click()
    names = column(page, 1)
    assert names[0].startswith("banded")
    widths = [int(match[1]) for name in names if (match := re.search(r"cora, k=(\d+)", name))]
    assert widths == sorted(widths)


def test_pages_can_be_used_with_the_keyboard(visit: Open) -> None:
    page = visit(SPMM)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.get_by_label("Filter").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('th button')"):
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("th[aria-sort]").count() == 1


def test_every_plot_has_data(visit: Open, site: Path) -> None:
    page = visit()
    plotted = 0
    for name in [*(f"kernels/{path.name}" for path in sorted((site / "kernels").iterdir())), "compile.html", "memory.html"]:
        page.goto((site / name).as_uri())
        plots = page.locator("figure svg")
        marks = plots.evaluate_all(MARKS)
        assert marks and all(count > 0 for count in marks), (name, marks)
        plotted += len(marks)
    assert plotted > 24 * 3


# for each plot: the number of marks that are within it, large enough to see, and not of the colour of the page
MARKS = """plots => plots.map(plot => {
    const frame = plot.getBoundingClientRect(), unseen = ["none", "rgb(0, 0, 0)", getComputedStyle(document.body).backgroundColor];
    const across = box => box.left >= frame.left - 1 && box.right <= frame.right + 1;
    const within = box => across(box) && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
    const seen = mark => within(mark.getBoundingClientRect()) && mark.getBoundingClientRect().width > 1;
    return [...plot.querySelectorAll("use")].filter(mark => seen(mark) && !unseen.includes(getComputedStyle(mark).fill)).length;
})"""


def test_a_point_leads_to_its_case_and_a_case_to_its_kernel(visit: Open) -> None:
    page = visit(SPMM)
    point = page.locator("figure svg a[href*='cases/']").first
    name = point.locator("title").text_content().split(":")[0]
    point.dispatch_event("click")
    page.wait_for_url("**/cases/*.html")
    assert page.locator("h1").inner_text() == name
    page.get_by_role("link", name="spmm").click()
    assert page.locator("h1").inner_text() == "spmm"


def test_a_case_shows_the_source_of_its_kernel_in_full(visit: Open) -> None:
    page = visit(CASE)
    frame = page.frame_locator("iframe")
    frame.locator("pre").last.scroll_into_view_if_needed()
    assert "def kernel" in frame.locator("pre").last.inner_text()
    page.wait_for_function("parseInt(document.querySelector('iframe').style.height) > 300")
    inside = frame.locator("html").evaluate("e => [e.scrollHeight, e.clientHeight]")
    assert inside[0] <= inside[1] + 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index.html", SPMM])
def test_texts_have_enough_contrast_in_both_themes(visit: Open, scheme: str, name: str) -> None:
    page = visit(name, color_scheme=scheme)
    lightness = page.evaluate(f"({LUMINANCE})(getComputedStyle(document.body).backgroundColor)")
    assert lightness > 0.9 if scheme == "light" else lightness < 0.1
    worst = page.evaluate(CONTRAST % LUMINANCE)
    assert worst["ratio"] >= 4.5, worst


LUMINANCE = """text => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""
CONTRAST = """() => {
    const luminance = %s;
    const paper = e => getComputedStyle(e).backgroundColor;
    const behind = e => { while (paper(e) === "rgba(0, 0, 0, 0)") e = e.parentElement; return paper(e); };
    const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const shown = [...document.querySelectorAll("main *")].filter(e => own(e) && e.checkVisibility() && !e.closest("svg,style"));
    const told = shown.map(e => {
        const [a, b] = [luminance(getComputedStyle(e).color), luminance(behind(e))].sort((x, y) => y - x);
        return { ratio: (a + 0.05) / (b + 0.05), text: e.textContent, tag: e.tagName };
    });
    return told.reduce((x, y) => x.ratio < y.ratio ? x : y);
}"""


def test_the_chosen_theme_is_kept(visit: Open, site: Path) -> None:
    page = visit(color_scheme="light")

    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = paper()
    page.get_by_role("button", name="Use dark colours").click()
    dark = paper()
    assert dark != light
    page.goto((site / CASE).as_uri())
    assert paper() == dark
    page.locator("iframe").scroll_into_view_if_needed()
    assert page.frame_locator("iframe").locator("body").evaluate("e => getComputedStyle(e).backgroundColor") == dark
    page.get_by_role("button", name="Use light colours").click()
    assert paper() == light


def test_an_embedded_page_has_the_theme_of_the_site_around_it(visit: Open, site: Path) -> None:
    host = site.parent / "host.html"
    host.write_text('<!doctype html><link rel=icon href="data:,"><iframe src="site/index.html" style="color-scheme: dark"></iframe>')
    page = visit("../host.html", color_scheme="null")
    frame = page.frame_locator("iframe")

    def lightness() -> float:
        paper = frame.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
        return float(page.evaluate(f"({LUMINANCE})('{paper}')"))

    assert lightness() < 0.1
    page.evaluate("document.querySelector('iframe').style.colorScheme = 'light'")
    assert lightness() > 0.9
    assert frame.locator("header button, .brand:visible").count() == 0
    frame.get_by_role("link", name="Machines").click()
    assert frame.locator("h1").inner_text() == "Machines and versions"


@pytest.mark.parametrize("name", KINDS)
def test_no_page_is_wider_than_a_phone(visit: Open, name: str) -> None:
    page = visit(name, viewport=PHONE, is_mobile=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    if name == SPMM:
        assert page.evaluate("document.querySelector('.sortable').scrollWidth") > PHONE["width"]


def test_threads_are_chosen_without_a_script(visit: Open) -> None:
    page = visit(java_script_enabled=False)
    assert page.locator(".heat:visible").count() == 1
    page.get_by_role("radio", name="1 thread").check()
    assert page.locator(".heat:visible").count() == 1
    assert page.locator('.heat[data-threads="1"]').is_visible()


def test_pages_can_be_read_without_a_script(visit: Open) -> None:
    page = visit(SPMM, java_script_enabled=False)
    assert page.locator("tbody tr:visible").count() > 10
    assert page.locator("button:visible, input:visible").count() == 0
    page = visit(CASE, java_script_enabled=False)
    assert "def kernel" in page.frame_locator("iframe").locator("pre").last.inner_text()


@pytest.mark.parametrize("name", KINDS)
def test_a_page_opens_within_a_second(visit: Open, name: str) -> None:
    page = visit(name)
    load_times = []
    for _ in range(3):
        page.reload()
        load_times.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert 0 < min(load_times) < 1000, load_times
