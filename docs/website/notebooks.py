"""Tutorials: Python files in jupytext's percent format, executed as notebooks and rendered as Markdown."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

SECONDS = 600  # most time for a cell
QUIET = ["--log-level=ERROR"]  # otherwise each kernel warns of the port of this machine on which it listens


def executed(source: Path, execute: bool = True) -> tuple[str, dict[str, bytes], float]:
    """Run a tutorial.

    Args:
        source: the Python file
        execute: False shows the code without outputs

    Returns:
        Its Markdown; the files that belong to it by name: pictures, and the notebook; and the seconds that it ran.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell raises.
    """
    notebook: Any = jupytext.read(source)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    os.environ["NUMSCORCH_PROGRESS"] = "0"  # the line that shows progress would stay in the output
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # builds share their cores with other programs
    start = time.perf_counter()
    if execute:
        resources = {"metadata": {"path": str(source.parent)}}
        NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources, extra_arguments=QUIET).execute()
    seconds = time.perf_counter() - start
    name = source.stem
    body, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": name})
    files = {key: bytes(data) for key, data in resources["outputs"].items()}
    files[f"{name}.ipynb"] = nbformat.writes(notebook).encode()
    return with_download(body, name), files, seconds


def with_download(body: str, name: str) -> str:
    """The page with a link to the notebook below its title."""
    title, _, rest = body.lstrip().partition("\n")
    return f"{title}\n\n[Download this page as a notebook]({name}.ipynb){{ .md-button download }}\n{rest}"
