"""A prepared model on disk: its graph, tokenizer.json and the manifest with their sizes and checksums."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from memory_extproc.errors import PermanentError

MODEL = "model.onnx"
FUSED = "model-fused.onnx"  # in place of MODEL: a graph of whole layers in 8 bits, for one text at a time
TOKENIZER = "tokenizer.json"
SCORE = "pair_score"  # output of a cross-encoder: (batch,)
MANIFEST = "manifest.json"
# Version of the format of model directories; a directory of another version is prepared again.
RECIPE = 1
PACKAGE = "memory_extproc_minilm"  # of the wheel memory-extproc-minilm, which holds the default model


class Precision(StrEnum):
    INT8 = "int8"
    FP32 = "fp32"


class ModelKind(StrEnum):
    """The purpose of a model, as in `--kind`."""

    EMBEDDER = "embedder"
    CROSS_ENCODER = "cross-encoder"


class ModelDirectoryError(PermanentError):
    """A model directory is missing, incomplete or damaged; the text names the fault and the remedy."""


class FileRecord(msgspec.Struct, frozen=True):
    size: Annotated[int, msgspec.Meta(ge=0)]  # bytes
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files that `models prepare` wrote, with their source. *fingerprint* depends on the source's weights,
    tokenizer and limits, the precision and the recipe, never on the machine, the graph or library versions."""

    recipe: int
    kind: ModelKind = ModelKind.EMBEDDER
    name: str
    precision: Precision
    fingerprint: str
    dimension: Annotated[int, msgspec.Meta(gt=0)]  # of a cross-encoder 1: its score
    max_seq_length: Annotated[int, msgspec.Meta(gt=2)]  # tokens, the special ones included
    source: str
    files: Mapping[str, FileRecord]


def directory_of(models_dir: Path, name: str, precision: Precision) -> Path:
    return models_dir / f"{name}-{precision.value}"


def find_directory(models_dir: Path, name: str, precision: Precision) -> Path:
    """The directory of a model: below *models_dir*, or in the package PACKAGE if only that has it. For a missing
    model, the directory below *models_dir*."""
    directory = directory_of(models_dir, name, precision)
    if directory.is_dir():
        return directory
    package = importlib.util.find_spec(PACKAGE)
    packaged = [
        directory_of(Path(each), name, precision) for each in (package and package.submodule_search_locations) or ()
    ]
    return next((each for each in packaged if each.is_dir()), directory)


def record_of(path: Path) -> FileRecord:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(size=file.tell(), sha256=sha256)


def _remedy(kind: ModelKind | None) -> str:
    asked = f" --kind {kind}" if kind is ModelKind.CROSS_ENCODER else ""
    return f"run `memory-extproc models prepare{asked}`"


def read_manifest(directory: Path, kind: ModelKind | None = None) -> Manifest:
    """The manifest; the files are not checked. ModelDirectoryError if it is missing, unreadable, or of a model of
    another kind than *kind*."""
    remedy = _remedy(kind)
    path = directory / MANIFEST
    if not directory.is_dir():
        raise ModelDirectoryError(
            f"there is no model directory {directory}: {remedy} "
            "(--models-dir and --precision as configured; --source for another model than the default)"
        )
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError as error:
        raise ModelDirectoryError(f"model directory {directory} has no {MANIFEST}: {remedy}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelDirectoryError(f"{path} cannot be read ({error}): {remedy}") from error
    if manifest.recipe != RECIPE:
        found = f"was written by recipe {manifest.recipe}, this version reads {RECIPE}"
        raise ModelDirectoryError(f"model directory {directory} {found}: {remedy}")
    if kind not in {None, manifest.kind}:
        raise ModelDirectoryError(f"model directory {directory} holds a model of kind {manifest.kind}, not {kind}")
    graph = FUSED if FUSED in manifest.files else MODEL
    if missing := {graph, TOKENIZER} - manifest.files.keys():
        raise ModelDirectoryError(f"{path} does not list {', '.join(sorted(missing))}: {remedy}")
    return manifest


def verify(directory: Path, kind: ModelKind | None = None) -> Manifest:
    """The manifest, after a check of every file's size and checksum (20 ms for an int8 MiniLM), and of the model's
    *kind* if given. ModelDirectoryError otherwise."""
    manifest = read_manifest(directory, kind)
    remedy = _remedy(kind)
    for name, wanted in manifest.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
            if size != wanted.size:
                fault = f"{path} has {size} bytes, its manifest says {wanted.size}"
                raise ModelDirectoryError(f"{fault}: {remedy}")
            found = record_of(path)
        except OSError as error:
            raise ModelDirectoryError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
        if found != wanted:
            raise ModelDirectoryError(f"{path} is damaged, its checksum is not its manifest's: {remedy}")
    return manifest


# A model directory as one file, for machines without a registry: an uncompressed tar with the manifest first.

_MOST_MANIFEST = 64 * 1024  # bytes
_MOST_MODEL = 16 << 30  # bytes of all files together


def export_model(directory: Path, archive: Path) -> Manifest:
    """Write *directory*, after verification, to *archive*. ModelDirectoryError if either is unusable."""
    manifest = verify(directory)
    partial = archive.with_name(f"{archive.name}.part")
    try:
        with tarfile.open(partial, "w") as tar:
            for name in (MANIFEST, *sorted(manifest.files)):
                tar.add(directory / name, arcname=name, recursive=False)
        partial.replace(archive)
    except OSError as error:
        raise ModelDirectoryError(f"{archive} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def import_model(archive: Path, models_dir: Path) -> tuple[Path, Manifest]:
    """Unpack *archive* below *models_dir*. Returns the directory, which replaces an older directory of that name
    after every file was verified; ModelDirectoryError otherwise, and nothing is changed."""
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=models_dir) as made:
            unpacked = Path(made) / "model"
            unpacked.mkdir()
            _unpack(archive, unpacked)
            manifest = verify(unpacked)
            if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,199}", manifest.name):
                raise ModelDirectoryError(f"{archive} names a model that no directory can be named for")
            directory = directory_of(models_dir, manifest.name, manifest.precision)
            if directory.exists():
                directory.replace(Path(made) / "older")
            unpacked.replace(directory)
    except (OSError, tarfile.TarError, EOFError) as error:
        why = (
            error.strerror if isinstance(error, OSError) and error.strerror else "is no archive of `models export`"
        )
        raise ModelDirectoryError(f"{archive}: {why}") from error
    return directory, manifest


def _unpack(archive: Path, into: Path) -> None:
    """Unpack only plain files that the manifest lists, each of its size: the archive is untrusted."""
    with tarfile.open(archive, "r:") as tar:
        first = tar.next()
        if first is None or first.name != MANIFEST or not first.isreg() or first.size > _MOST_MANIFEST:
            raise ModelDirectoryError(
                f"{archive} does not begin with a {MANIFEST}: run `memory-extproc models export`"
            )
        _copy(tar, first, into)
        wanted = read_manifest(into).files
        if sum(record.size for record in wanted.values()) > _MOST_MODEL:
            raise ModelDirectoryError(f"{archive} holds more than {_MOST_MODEL >> 30} GiB")
        while (member := tar.next()) is not None:
            record = wanted.get(member.name)
            if record is None or Path(member.name).name != member.name or not member.isreg():
                raise ModelDirectoryError(f"{archive} holds something that its manifest does not list")
            if member.size != record.size:
                raise ModelDirectoryError(f"{archive}: {member.name} is cut off or damaged")
            _copy(tar, member, into)


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    source = tar.extractfile(member)
    if source is not None:
        with source, (into / member.name).open("wb") as file:
            shutil.copyfileobj(source, file)
