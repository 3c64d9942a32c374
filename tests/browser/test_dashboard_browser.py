"""The dashboard as a reader meets it: Chromium opens it from a folder, clicks, types, and looks at what is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.browser

Open = Callable[..., "Page"]
PAGES = ("index.html", "compile.html", "memory.html", "machines.html", "kernels/spmm-*.html", "cases/spmm-*.html", "sources/*.html")
PHONE = 390
CONTRAST = 4.5  # of text, as WCAG asks for
LINKS = """[...document.querySelectorAll('a, iframe')]
  .map(element => new URL(element.getAttribute('href') ?? element.getAttribute('src'), document.baseURI).href)"""
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"
DRAWN = """(element, name) => { const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  canvas.fillStyle = getComputedStyle(element)[name]; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; }"""
PLOTS = """[...document.querySelectorAll('figure')].map(figure => {
  const frame = figure.querySelector('svg').getBoundingClientRect();
  const marks = [...figure.querySelectorAll('svg g use')].map(mark => mark.getBoundingClientRect()).filter(mark => mark.width > 0
    && mark.left >= frame.left && mark.right <= frame.right && mark.top >= frame.top && mark.bottom <= frame.bottom);
  return [marks.length, figure.querySelector('svg').ariaLabel, figure.querySelector('figcaption').innerText]; })"""


def found(site: Path, pattern: str) -> Path:
    return min(site.glob(pattern))


def cases_of(page: Page) -> Locator:
    return page.get_by_role("region", name=re.compile("^Cases of")).locator("tbody tr:visible")


@pytest.mark.parametrize("pattern", PAGES)
def test_pages_open_without_errors_and_ask_the_network_for_nothing(site: Path, view: Open, pattern: str) -> None:
    page = view(found(site, pattern))
    assert page.get_by_role("heading", level=1).is_visible()
    assert page.get_by_role("navigation").get_by_role("link").count() >= 2


@pytest.mark.parametrize("pattern", PAGES)
def test_no_page_scrolls_sideways_on_a_phone(site: Path, view: Open, pattern: str) -> None:
    page = view(found(site, pattern), width=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    page.mouse.wheel(500, 0)
    assert page.evaluate("scrollX") == 0


@pytest.mark.parametrize("pattern", PAGES)
def test_pages_open_within_a_second(site: Path, view: Open, pattern: str) -> None:
    page = view(found(site, pattern))
    times = [page.evaluate(LOADED) for _ in range(3) if page.reload()]
    assert 0 < min(times) < 1000


def test_every_page_and_place_that_a_page_links_to_is_there(site: Path, view: Open) -> None:
    page, seen = view(site / "index.html"), set()
    for path in [*(found(site, pattern) for pattern in PAGES), *site.glob("kernels/*.html")]:
        page.goto(path.as_uri())
        for link in page.evaluate(LINKS):
            parts = urlsplit(link)
            assert parts.scheme == "file" or link.startswith("https://git.example/numscorch/commit/"), link
            if parts.scheme == "file":
                seen.add(Path(unquote(parts.path)))
                assert not parts.fragment or page.locator(f"#{parts.fragment}").count() == 1
    assert not {path for path in seen if not path.is_file()}
    assert len(seen) > 1000  # every case has a page that some page leads to


def test_a_filter_leaves_the_rows_that_hold_what_is_typed(site: Path, view: Open) -> None:
    page = view(found(site, "kernels/spmm-*.html"))
    field, all_of_them = page.get_by_label("Filter"), cases_of(page).count()
    field.click()
    page.keyboard.type("Cora k=64")
    left = cases_of(page).all_inner_texts()
    assert 0 < len(left) < all_of_them
    assert all("cora" in row and "k=64" in row for row in left)
    assert page.locator(".filter output").inner_text() == f"{len(left)} of {all_of_them}"
    field.fill("nothing is called so")
    assert cases_of(page).count() == 0
    field.fill("")
    assert cases_of(page).count() == all_of_them


@pytest.mark.parametrize("use", ["click", "keyboard"])
def test_headers_sort_by_what_their_column_tells(site: Path, view: Open, use: str) -> None:
    page = view(found(site, "kernels/spmm-*.html"))
    for title in ("entries", "ratio", "case"):
        head = page.locator("section.sortable").get_by_role("columnheader", name=title, exact=True)
        orders = set()
        for _ in range(2):
            head.get_by_role("button").click() if use == "click" else head.get_by_role("button").press("Enter")
            orders.add(order := head.get_attribute("aria-sort"))
            shown = [told(text) for text in column(page, title)]
            assert len(set(shown)) > 5
            assert shown == sorted(shown, reverse=order == "descending")
        assert orders == {"ascending", "descending"}
        assert page.locator("section.sortable th[aria-sort]").count() == 1


def column(page: Page, title: str) -> list[str]:
    titles = page.locator("section.sortable thead th").all_text_contents()
    return [row.split("\t")[titles.index(title)] for row in cases_of(page).all_inner_texts()]


def told(cell: str) -> float | str:
    """The number that a cell starts with, or the matrix that it names."""
    plain = cell.replace("\u202f", "").strip()
    number = re.match(r"[\d.]+", plain)
    return float(number.group()) if number else plain.partition(",")[0]


def test_every_plot_shows_what_was_measured(site: Path, view: Open) -> None:
    page = view(site / "index.html")
    for path in [site / "compile.html", site / "memory.html", *sorted(site.glob("kernels/*.html"))]:
        page.goto(path.as_uri())
        plots = page.evaluate(PLOTS)
        assert len(plots) == (1 if path.parent == site else 4)  # history, times on one thread and on two, the roofline
        for marks, told_without_seeing, caption in plots:
            assert marks > 10 and len(told_without_seeing) > 20 and caption


def test_a_point_leads_to_its_case_and_a_case_shows_its_kernel(site: Path, view: Open) -> None:
    page = view(found(site, "kernels/spmm-*.html"))
    point = page.locator("figure svg a[href*='cases/']").first
    named = point.locator("title").text_content()
    point.click(force=True)
    page.wait_for_url("**/cases/**")
    assert str(named).startswith(page.get_by_role("heading", level=1).inner_text())
    frame = page.locator("iframe")
    frame.scroll_into_view_if_needed()
    inner = page.frame_locator("iframe")
    inner.get_by_role("heading", name="Source").wait_for()
    assert "def kernel" in inner.locator("pre").last.inner_text()
    assert inner.get_by_role("heading", name="Schedule").count() == inner.get_by_role("heading", name="Explained").count() == 1
    content = inner.locator("body").evaluate("body => body.scrollHeight")
    page.wait_for_function(f"document.querySelector('iframe').offsetHeight >= {content}")  # so that it needs no bar of its own


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("pattern", PAGES[:6])
def test_text_stands_out_in_light_and_in_dark(site: Path, view: Open, pattern: str, scheme: str) -> None:
    page = view(found(site, pattern), color_scheme=scheme)
    paper = luminance(page.locator("body"), "backgroundColor")
    assert (paper > 0.9) if scheme == "light" else (paper < 0.05)
    for selector in ("main h1", "main a", "main p", "main td", "main .quiet", "main svg text"):
        for element in page.locator(selector).all()[:3]:
            ink = luminance(element, "fill" if "svg" in selector else "color")
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= CONTRAST, selector


def luminance(element: Locator, name: str) -> float:
    """Of a colour as it is drawn, by WCAG's formula."""
    parts = [part / 255 for part in element.evaluate(DRAWN, name)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_theme_that_is_chosen_stays(site: Path, view: Open) -> None:
    page = view(site / "index.html", color_scheme="light")
    page.get_by_role("button", name="Use dark colours").click()
    assert luminance(page.locator("body"), "backgroundColor") < 0.05
    page.get_by_role("link", name="Memory").click()
    assert luminance(page.locator("body"), "backgroundColor") < 0.05
    page.get_by_role("button", name="Use light colours").click()
    assert luminance(page.locator("body"), "backgroundColor") > 0.9


def test_the_keyboard_comes_to_the_content_and_to_all_that_scrolls(site: Path, view: Open) -> None:
    page = view(found(site, "kernels/spmm-*.html"))
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.inner_text() == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.get_by_label("Filter").focus()
    assert page.locator(":focus").evaluate("element => getComputedStyle(element).outlineStyle") != "none"


def test_thread_counts_are_chosen_apart(site: Path, view: Open) -> None:
    page = view(site / "index.html")
    shown = page.locator(".heat:visible")
    everything = shown.inner_text()
    page.get_by_role("radio", name="2 threads").check()
    assert shown.count() == 1
    assert shown.inner_text() != everything


def test_without_scripts_everything_is_still_there(site: Path, view: Open) -> None:
    page = view(found(site, "kernels/spmm-*.html"), java_script_enabled=False)
    assert cases_of(page).count() > 30
    assert not page.get_by_label("Filter").is_visible()
    page.goto(found(site, "cases/spmm-*.html").as_uri())
    assert "def kernel" in page.frame_locator("iframe").locator("pre").last.inner_text()
