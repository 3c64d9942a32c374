"""What `mkdocs.yml` calls while the site is built: it adds generated pages and checks the built site."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # for benchmarks, which is not installed, and for this package

from benchmarks.dashboard.__main__ import main as write_dashboard  # noqa: E402
from website import api, commands, gallery, notebooks  # noqa: E402
from website.check import problems  # noqa: E402

log = get_plugin_logger("numscorch")
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
TUTORIAL = re.compile(r"^(tutorials/\w+)\.py$")
TUTORIALS = ("gcn", "pruning", "attention", "semirings", "factorization", "text_search", "sparse_training", "two_ranks")
WIDE = (
    "coverage.md",
    "OPERATORS.md",
    "performance.md",
    "models.md",
    "scale.md",
    "concepts/related-work.md",
)  # their tables need the place of the table of contents
EXECUTE = os.environ.get("NUMSCORCH_DOCS_EXECUTE", "1") != "0"


def on_startup(**_: Any) -> None:
    """Write the public names as source, before mkdocstrings looks for the folder."""
    for path, text in api.sources().items():
        (ROOT / ".cache" / "api" / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / ".cache" / "api" / path).write_text(text, encoding="utf-8")


def on_config(config: Any) -> Any:
    """List the pages of folders in the navigation."""
    folders = {
        "reference/": list(api.pages()),
        "tutorials/": [f"tutorials/{name}.md" for name in TUTORIALS],
        "gallery/": list(gallery.pages()),
        "decisions/": ["decisions/README.md", *decisions()],
    }
    config.nav = [expanded(item, folders) for item in config.nav]
    return config


def decisions() -> list[str]:
    """The pages of decisions in the order of their index."""
    text = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    return [f"decisions/{page}" for page in re.findall(r"^\| \[[\w-]+\]\(([\w-]+\.md)\)", text, re.MULTILINE)]


def expanded(item: Any, folders: dict[str, list[str]]) -> Any:
    """A part of the navigation in which the name of a folder is replaced by its pages."""
    match item:
        case dict():
            return {title: expanded(value, folders) for title, value in item.items()}
        case list():
            return [expanded(value, folders) for value in item]
        case str() if item in folders:
            return folders[item]
    return item


def on_files(files: Files, config: Any) -> Files:
    """Add generated pages: reference, command line, gallery, tutorials, and the documents beside the folder ``docs``."""
    texts: dict[str, str | bytes] = {**api.pages(), **gallery.pages(), "reference/command-line.md": commands.page()}
    texts |= {page: (ROOT / source).read_text(encoding="utf-8") for source, page in OUTSIDE.items()}
    for name in TUTORIALS:
        body, outputs, seconds = notebooks.executed(ROOT / "docs" / "tutorials" / f"{name}.py", EXECUTE)
        log.info(f"tutorial {name}: {seconds:.0f} s")
        texts[f"tutorials/{name}.md"] = body
        texts |= {f"tutorials/{output}": data for output, data in outputs.items()}
    for path in (ROOT / "docs/website/assets").iterdir():
        texts[f"assets/{path.name}"] = path.read_bytes()
    for path_in_site, content in texts.items():
        if old := files.get_file_from_path(path_in_site):
            files.remove(old)
        files.append(File.generated(config, path_in_site, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Make links to files outside of the site links to the repository, and links to documents that are pages links to these."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    source = {page_path: path for path, page_path in OUTSIDE.items()}.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def linked(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith(("mailto:", "#")):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path in OUTSIDE or path.startswith("docs/"):
            within = TUTORIAL.sub(r"\1.md", OUTSIDE.get(path, path.removeprefix("docs/")))
            if files.get_file_from_path(within) is not None:
                return match[1] + posixpath.relpath(within, posixpath.dirname(page.file.src_uri) or ".") + match[3]
        if not (ROOT / path).exists():
            return match[0]  # mkdocs says that it is missing
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{match[1]}{config.repo_url}/{kind}/main/{path}{match[3]}"

    return LINK.sub(linked, markdown)


def on_post_build(config: Any) -> None:
    """Write the dashboard into the site, and check links, pictures and scripts of all pages.

    Raises:
        PluginError: if a page refers to a missing file, a missing anchor, or a resource of another host.
    """
    site = Path(config.site_dir)
    target = site / "dashboard"  # as the folder of results, it is empty: only the history is shown
    shutil.rmtree(target, ignore_errors=True)
    if write_dashboard([str(target), "--output", str(target), "--repository", config.repo_url]):
        raise PluginError("the dashboard cannot be written")
    if found := problems(site):
        raise PluginError(f"{len(found)} problems in the built site:\n" + "\n".join(found[:50]))
