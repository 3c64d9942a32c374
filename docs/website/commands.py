"""The page of the command line, from the help texts of its parsers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from unittest.mock import patch

from numscorch.__main__ import _parser


def page() -> str:
    """The Markdown of the page."""
    with patch.dict(os.environ, {"COLUMNS": "110"}):  # the width of help texts
        parts = "\n\n".join(f"## {name}\n\n```text\n{text.strip()}\n```" for name, text in helps("numscorch", _parser()))
    return f"# Command line\n\n`numscorch COMMAND` and `python -m numscorch COMMAND` are the same.\n\n{parts}\n"


def helps(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The help text of a parser and of its commands, by full name."""
    yield name, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from helps(f"{name} {command}", below)
