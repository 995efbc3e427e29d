"""The documentation holds: it builds, its links lead somewhere, its commands run, its tables are complete."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from memory_extproc.doctor.gateway import CheckVerdict
from memory_extproc.model import Outcome
from scripts import docs_site, filter_pictures

ROOT = Path(__file__).parents[2]
SITE = "https://memory-extproc.github.io/"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "helm" / "memory-extproc" / "README.md"],
    key=str,
)
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_SHELL = frozenset({"sh", "bash", "shell", "console"})


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    why: str  # it is not run; empty: it is
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = list[Block]()
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            if match["language"] in _SHELL:
                line = text.count("\n", 0, match.start("language")) + 1
                found.append(Block(page, line, match["why"] or "", match["text"]))
    return found


@pytest.fixture
def scratch(tmp_path: Path, envoy_binary: Path) -> Path:
    """Where a reader stands: a directory with the configuration that comes with the source."""
    shutil.copy(ROOT / "config.yaml", tmp_path / "config.yaml")
    command = tmp_path / "bin" / "memory-extproc"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m memory_extproc "$@"\n')
    command.chmod(0o755)
    (command.parent / "envoy").symlink_to(envoy_binary)
    return tmp_path


@pytest.mark.parametrize("block", [block for block in blocks() if not block.why], ids=str)
def test_a_command_of_the_documentation_does_what_it_says(block: Block, scratch: Path) -> None:
    path = f"{scratch / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(scratch)}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=scratch, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_commands_that_are_not_run_are_written_correctly() -> None:
    for block in blocks():
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{block}: {checked.stderr}"


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    pages = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "architecture.html", "chart.html", "gateways/istio.html"} <= pages
    for link in runbooks():
        page, _, anchor = link.removeprefix(SITE).partition("#")
        assert f'id="{anchor}"' in (tmp_path / "site" / page).read_text(), link


def runbooks() -> list[str]:
    """The link that each alert shows to whoever is on call."""
    rules = yaml.safe_load((ROOT / "helm" / "memory-extproc" / "rules" / "memory-extproc.yaml").read_text())
    return [
        rule["annotations"]["runbook_url"]
        for group in rules["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]


def test_links_work_in_the_repository_too() -> None:
    broken = [
        f"{page.relative_to(ROOT)} → {link['to']}"
        for page in PAGES
        for link in docs_site.LINK.finditer(page.read_text())
        if ":" not in link["to"] and not (page.parent / (link["to"].partition("#")[0] or page.name)).exists()
    ]
    assert not broken


def test_every_outcome_has_its_row_in_the_failure_table() -> None:
    section = (ROOT / "docs" / "operations.md").read_text().partition("\n## Outcomes\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| `")]
    assert [row[0].strip().strip("`") for row in rows if len(row) < 3] == []
    assert {row[0].strip().strip("`") for row in rows} == set(Outcome)


def test_every_alert_has_its_runbook() -> None:
    rules = yaml.safe_load((ROOT / "helm" / "memory-extproc" / "rules" / "memory-extproc.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    headings = set(re.findall(r"^### (\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE))
    assert alerts <= headings


def test_every_check_of_the_doctor_is_explained() -> None:
    checks = {
        name
        for path in (ROOT / "memory_extproc" / "doctor").glob("*.py")
        for name in re.findall(r'^    check = "([\w-]+)"$', path.read_text(), re.MULTILINE)
    }
    page = (ROOT / "docs" / "doctor.md").read_text()
    # what is left behind is told in the page's words
    assert {name for name in checks if f"`{name}`" not in page} == {"leaves-nothing-behind"}
    assert CheckVerdict.FAIL in page


def test_the_pictures_of_filters_are_those_of_the_script() -> None:
    for name, (title, boxes) in filter_pictures.PICTURES.items():
        assert (filter_pictures.PLACE / f"{name}.svg").read_text() == filter_pictures.drawn(title, boxes)
