"""The compose stand, without an engine to start it: what it refers to is there and is what we say elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memory_extproc.settings import load
from tests.support.chart import ROOT

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    stand: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return stand["services"]  # type: ignore[no-any-return]  # as compose has it


def test_every_part_of_the_stand_is_there(services: dict[str, Any]) -> None:
    assert set(services) == {"envoy", "memory", "llm", "milvus", "redis", "prometheus", "grafana"}


def test_every_file_that_is_mounted_exists(services: dict[str, Any]) -> None:
    volumes = [each for service in services.values() for each in service.get("volumes", [])]
    files = [Path(each.split(":")[0]) for each in volumes if each.startswith(".")]
    assert len(files) > 6
    assert [str(each) for each in files if not (DEPLOY / each).exists()] == []


def test_every_image_has_an_exact_tag(services: dict[str, Any]) -> None:
    for name, service in services.items():
        tag = service["image"].rpartition(":")[2]
        assert tag == "local" or tag.count(".") == 2 or "-" in tag, name


def test_the_sidecar_takes_the_stands_configuration() -> None:
    settings = load(DEPLOY / "compose" / "config.yaml", {})
    assert settings.memory.milvus.address == "http://milvus:19530"
    assert settings.coordination.url


def test_redis_keeps_what_is_acknowledged(services: dict[str, Any]) -> None:
    command = services["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_envoys_configuration_is_the_one_that_envoy_config_writes(envoy_binary: Path) -> None:
    script = ROOT / "scripts" / "make_compose_envoy.py"
    checked = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    command = [str(envoy_binary), "--mode", "validate", "-l", "error", "-c", str(DEPLOY / "compose" / "envoy.yaml")]
    valid = subprocess.run(command, capture_output=True, text=True, check=False)
    assert valid.returncode == 0, valid.stdout + valid.stderr
