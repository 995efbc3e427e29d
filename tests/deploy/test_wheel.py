"""The wheels of `make dist`, installed in an empty environment and started with no file at all."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import ROOT

pytestmark = pytest.mark.timeout(300)
MODEL = "all-MiniLM-L6-v2-int8"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, int8_model_dir: Path) -> dict[str, Path]:
    dist = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(dist)]
    built = subprocess.run(
        [*pip, str(ROOT), str(ROOT / "packages" / "minilm")],
        env={**os.environ, "MEMORY_EXTPROC_MODELS": str(int8_model_dir.parent), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return {path.name.partition("-")[0]: path for path in dist.glob("*.whl")}


@contextmanager
def environment(place: Path, *wheels: Path) -> Iterator[Path]:
    """A virtual environment with *wheels* alone; it borrows their dependencies from the tests' own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", *map(str, wheels)], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    # A path that a .pth file names has its own .pth files left alone, so our editable sources are not lent.
    (packages / "lent.pth").write_text("\n".join(site.getsitepackages()))
    yield place / "bin" / "memory-extproc"


def started(program: Path, home: Path, until: str, cwd: Path | None = None) -> list[dict[str, Any]]:
    """The log of `serve` without a file, up to the event *until*; then it is told to end and ends well."""
    ports = {f"MEMORY_EXTPROC__LISTEN__{name}": "127.0.0.1:0" for name in ("EXT_PROC", "API", "HTTP")}
    process = subprocess.Popen(
        [str(program), "serve"],
        cwd=cwd or home,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **ports},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("{") and json.loads(line)["event"] == until:
            break
    process.send_signal(signal.SIGTERM)
    lines += process.communicate()[1].splitlines()
    assert process.returncode == 0, "".join(lines)
    return [json.loads(line) for line in lines]


def test_serve_needs_no_file_and_no_model_and_says_so(wheels: dict[str, Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with environment(tmp_path / "venv", wheels["memory_extproc"]) as program:
        log = started(program, home, "sidecar.without_file")
        said = [each["event"] for each in log]
        assert said.count("embedding.words_alone") == 1
        assert "recall.weights_not_fitted" not in said
        [told] = [each for each in log if each["event"] == "sidecar.without_file"]
        assert told["ext_proc"].startswith("127.0.0.1:")
        assert "config example > config.yaml" in told["hint"]
        assert Path(told["data_dir"]) == home / ".local" / "share" / "memory-extproc"
        assert (home / ".local" / "share" / "memory-extproc" / "journal.db").exists()


def test_the_model_comes_from_its_wheel_and_former_data_is_kept(wheels: dict[str, Path], tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "lock").touch()
    home.mkdir()
    with environment(tmp_path / "venv", *wheels.values()) as program:
        log = started(program, home, "sidecar.without_file", cwd=project)
        assert "embedding.words_alone" not in [each["event"] for each in log]
        assert (project / "data" / "journal.db").exists()
        assert list(home.iterdir()) == [], "no id of the machine for a library's telemetry either"


def test_the_models_wheel_has_its_files_with_checksums_and_its_licence(wheels: dict[str, Path]) -> None:
    names = zipfile.ZipFile(wheels["memory_extproc_minilm"]).namelist()
    inside = {name.rpartition("/")[2] for name in names if name.startswith(f"memory_extproc_minilm/{MODEL}/")}
    assert inside == {"manifest.json", "model-fused.onnx", "tokenizer.json"}
    assert wheels["memory_extproc_minilm"].stat().st_size <= 25_000_000
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_a_damaged_model_gets_into_no_wheel(tmp_path: Path, int8_model_dir: Path) -> None:
    damaged = tmp_path / int8_model_dir.name
    damaged.mkdir()
    for name in ("manifest.json", "model-fused.onnx"):
        (damaged / name).write_bytes((int8_model_dir / name).read_bytes())
    (damaged / "tokenizer.json").write_text("{}")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    built = subprocess.run(
        [*pip, str(ROOT / "packages" / "minilm")],
        env={**os.environ, "MEMORY_EXTPROC_MODELS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode != 0
    assert "is not what its manifest says: make models" in built.stdout + built.stderr
