"""What the README shows is what happens."""

from __future__ import annotations

from pages import check_page


def test_examples_of_the_readme() -> None:
    check_page("README.md", 20)
