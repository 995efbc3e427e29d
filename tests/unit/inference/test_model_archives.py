"""A model directory as one archive, and back."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from memory_extproc.inference.model_files import (
    MANIFEST,
    MODEL,
    RECIPE,
    TOKENIZER,
    Manifest,
    ModelDirectoryError,
    Precision,
    export_model,
    import_model,
    record_of,
    verify,
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny-int8"
    directory.mkdir()
    for name in (MODEL, TOKENIZER):
        (directory / name).write_bytes(name.encode() * 1000)
    manifest = Manifest(
        recipe=RECIPE,
        name="tiny",
        precision=Precision.INT8,
        fingerprint="tiny/int8/0",
        dimension=4,
        max_seq_length=16,
        source="a test",
        files={name: record_of(directory / name) for name in (MODEL, TOKENIZER)},
    )
    (directory / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    return directory


def test_a_model_comes_out_of_its_archive_as_it_went_in(model: Path, tmp_path: Path) -> None:
    archive, models = tmp_path / "tiny.tar", tmp_path / "models"
    export_model(model, archive)
    for _ in range(2):  # the second takes the place of the first
        directory, manifest = import_model(archive, models)
        assert directory == models / "tiny-int8"
        assert verify(directory) == manifest
        assert [path.name for path in models.iterdir()] == ["tiny-int8"]


def _damaged(raw: bytes) -> bytes:
    return raw.replace(b"model.onnxmodel.onnx", b"model.onnxmodel.onny", 1)


def _with_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> Callable[[bytes], bytes]:
    def changed(raw: bytes) -> bytes:
        held = io.BytesIO(raw)
        with tarfile.open(fileobj=held, mode="a") as tar:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            tar.addfile(member)
        return held.getvalue()

    return changed


@pytest.mark.parametrize(
    "change",
    [
        _damaged,
        lambda raw: raw[:6000],
        lambda _: b"",
        lambda _: b"<html>not found</html>" * 100,
        _with_member("../evil"),
        _with_member("/etc/evil"),
        _with_member("more.txt"),
        _with_member(MODEL, tarfile.SYMTYPE, "/etc/passwd"),
    ],
)
def test_an_archive_that_is_none_changes_nothing(
    model: Path, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    archive, models = tmp_path / "tiny.tar", tmp_path / "models"
    export_model(model, archive)
    before, _ = import_model(archive, models)
    archive.write_bytes(change(archive.read_bytes()))
    with pytest.raises(ModelDirectoryError, match=r"tiny\.tar|model directory|model\.onnx"):
        import_model(archive, models)
    verify(before)
    assert [path.name for path in models.iterdir()] == ["tiny-int8"]
    assert not (tmp_path / "evil").exists()


def test_a_damaged_directory_is_not_exported(model: Path, tmp_path: Path) -> None:
    (model / MODEL).write_bytes(b"x")
    with pytest.raises(ModelDirectoryError):
        export_model(model, tmp_path / "tiny.tar")
    assert not (tmp_path / "tiny.tar").exists()
