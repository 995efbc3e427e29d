"""The sources of the documentation's site beside docs/: pages that stand elsewhere in the repository, and links
between all of them. mkdocs calls the functions by their names (`hooks` in mkdocs.yml)."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# A page of the site, and the file it is.
ELSEWHERE = {
    "index.md": "README.md",
    "architecture.md": "ARCHITECTURE.md",
    "chart.md": "helm/memory-extproc/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "reporting.md": "SECURITY.md",
}
LINK = re.compile(r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<to>[^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, page: str) -> str:
    """*markdown* of *page* with links as the site has them. What is in the repository and not on the site is named
    and not linked."""
    source = ELSEWHERE.get(page, f"docs/{page}")
    return LINK.sub(lambda link: _relinked(link, source, page), markdown)


def _relinked(link: re.Match[str], source: str, page: str) -> str:
    to, _, anchor = link["to"].partition("#")
    if not to or ":" in to:
        return link[0]
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), to))
    place = _page_of(target)
    if place is None:
        # A link to what is not there stays, so that the build fails.
        return link[0] if not (ROOT / target).exists() else link["before"].removeprefix("!")[1:-1]
    relative = posixpath.relpath(place, posixpath.dirname(page) or ".")
    return f"{link['before']}({relative}{'#' + anchor if anchor else ''})"


def _page_of(target: str) -> str | None:
    for page, source in ELSEWHERE.items():
        if target == source:
            return page
    return target.removeprefix("docs/") if target.startswith("docs/") and (ROOT / target).is_file() else None
