"""Nothing in the documentation is of yesterday: commands, settings and metrics are those of the program."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry

from memory_extproc.cli.root import app
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings
from scripts.log_events import events

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], key=str)
_COMMAND = re.compile(r"memory-extproc (?P<rest>[a-z][^`\n#|]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_KEY = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)(?::[^`]*)?`")
_FILE = re.compile(r"`([\w.*-]+(?:/[\w.*-]+)+/?)`")
_TARGET = re.compile(r"(?:`|^)make ([a-z][\w-]*)", re.MULTILINE)
_VARIABLE = re.compile(r"\bMEMORY_EXTPROC_[A-Z_]+")
_PROGRAMS = ("*.py", "*.yaml", "*.tpl", "*.sh", "Makefile", "Dockerfile")  # may read a variable
# Keys of others that begin like ours: the chart's values, attributes of spans, files.
_OTHERS = frozenset({"identity.mode", "tls.enabled", "coordination.db"})


def wrong_with(rest: str, at: Any) -> str:
    """Why this command line cannot be meant for the program; empty if it can. *at*: the command as typer has it,
    whose classes are a private copy of click's."""
    for word in rest.split():
        names = re.split(r"[|/]", word.rstrip(".,;:)"))
        if word.startswith("-") or not hasattr(at, "commands"):
            break
        if unknown := [name for name in names if name not in at.commands]:
            return f"no command {unknown[0]}"
        at = at.commands[names[0]]
    if hasattr(at, "commands"):
        return ""
    known = {name for option in at.params for name in (*option.opts, *option.secondary_opts)}
    return next((f"no option {name}" for name in _OPTION.findall(rest) if name not in known | {"--help"}), "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_is_named_exists(page: Path) -> None:
    root = typer.main.get_command(app)
    named = [match["rest"] for match in _COMMAND.finditer(page.read_text())]
    assert not [f"{wrong}: {rest}" for rest in named if (wrong := wrong_with(rest, root))]


def keys(node: Mapping[str, Any], schema: Mapping[str, Any], before: str = "") -> Iterator[str]:
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for one in (*node.get("anyOf", ()), *node.get("allOf", ())):
        yield from keys(one, schema, before)
    for name, inner in node.get("properties", {}).items():
        yield f"{before}{name}"
        yield from keys(inner, schema, f"{before}{name}.")


def test_every_setting_that_is_named_exists() -> None:
    schema = Settings.model_json_schema()
    known = set(keys(schema, schema)) | _OTHERS | {event.name for event in events()}
    sections = {key for key in known if "." not in key}
    named = {
        (page.name, key)
        for page in PAGES
        for key in _KEY.findall(page.read_text())
        # the history names what was; events of the log and fields of spans are called as sections are
        if page.name not in {"CHANGELOG.md", "log-events.md"}
        and key.partition(".")[0] in sections
        and not key.startswith("memory.")
    }
    assert not {(page, key) for page, key in named if key not in known}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_the_repository_that_is_named_is_there(page: Path) -> None:
    top = {path.name for path in ROOT.iterdir()}
    named = [name for name in _FILE.findall(page.read_text()) if name.partition("/")[0] in top]
    assert not [name for name in named if not [*ROOT.glob(name.rstrip("/"))]]


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(page.name, target) for page in PAGES for target in _TARGET.findall(page.read_text())}
    assert named
    assert not {(page, target) for page, target in named if target not in targets}


def test_every_variable_of_the_environment_that_is_named_is_read() -> None:
    places = [
        ROOT / name for name in ("memory_extproc", "scripts", "tests", "benchmarks", "demo", "deploy", "helm")
    ]
    programs = [path for place in places for kind in _PROGRAMS for path in place.rglob(kind)]
    read = {name for path in [ROOT / "Makefile", *programs] for name in _VARIABLE.findall(path.read_text())}
    assert not {
        (page.name, name) for page in PAGES for name in _VARIABLE.findall(page.read_text()) if name not in read
    }


def test_every_metric_is_explained_under_its_name() -> None:
    registry = CollectorRegistry()
    Metrics(registry, "0")
    page = (ROOT / "docs" / "operations.md").read_text()
    missing = [
        name
        for family in registry.collect()
        if (name := family.name.removeprefix("memory_extproc_")) != "build"
        # a counter is written as Prometheus shows it
        and not re.search(
            rf"\b{name}{'_total' if family.type == 'counter' else ''}\b", page.replace("memory_extproc_", "")
        )
    ]
    assert not missing


PACKAGES = sorted(path.parent for path in ROOT.glob("memory_extproc/*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_package_says_what_it_is_by_modules_that_are_there(package: Path) -> None:
    says = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert says, "one sentence, at least"
    assert not [name for name in re.findall(r"`([a-z_]+\*?)`", says) if not [*package.glob(f"{name}.py")]]


def test_the_architecture_has_a_row_for_every_package() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_]+)(?:/|\.py)`", table))
    modules = {path.stem for path in ROOT.glob("memory_extproc/*.py") if not path.stem.startswith("__")}
    assert not {package.name for package in PACKAGES} - named
    assert not modules - named


def test_the_architecture_draws_the_layers_that_are_held() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    held = [frozenset(re.findall(r"memory_extproc\.(\w+)", layer)) for layer in contract["layers"]]
    [drawn] = re.findall(r"^cli │.*$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert [frozenset(re.findall(r"\w+", layer)) for layer in drawn.split("│")] == held[1:], "below __main__"
