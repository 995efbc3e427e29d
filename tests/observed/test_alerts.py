"""The alerts are sound, fire for what they are for, and each has its runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, generate_latest

from memory_extproc.observe.metrics import Metrics
from tests.support.chart import CHART, ROOT
from tests.support.prometheus import binary

RULES = CHART / "rules" / "memory-extproc.yaml"


def test_the_rules_are_sound() -> None:
    checked = subprocess.run(
        [binary("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_alert_fires_for_what_it_is_for_and_for_nothing_else(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    tests = shutil.copy(Path(__file__).parent / "alerts.yaml", tmp_path)
    tested = subprocess.run(
        [binary("promtool"), "test", "rules", tests], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_is_tested_and_leads_to_its_runbook() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    tests = (Path(__file__).parent / "alerts.yaml").read_text()
    runbooks = re.findall(r"^#+ (Memory\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert set(runbooks) == set(alerts)
    for name, rule in alerts.items():
        assert tests.count(name) >= 2, f"{name}: fires, and does not fire"
        assert rule["annotations"]["runbook_url"].endswith(f"#{name.lower()}")
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_metrics_are_named_as_prometheus_would_have_them() -> None:
    """An empty registry: every metric's name, type and help without a value."""
    metrics = Metrics(CollectorRegistry(), "0")
    told = subprocess.run(
        [binary("promtool"), "check", "metrics"],
        input=generate_latest(metrics.registry).decode(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout + told.stderr) == (0, "")
