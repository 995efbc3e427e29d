"""`models prepare`: a model's files become a directory that an embedder or a cross-encoder opens. Whole or not
at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import onnx
from google.protobuf.message import DecodeError
from tokenizers import Tokenizer

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.inference.bert_graph import bert_graph
from memory_extproc.inference.cross_encoder import CrossEncoderModel
from memory_extproc.inference.model_directory import (
    MANIFEST,
    MODEL,
    RECIPE,
    TOKENIZER,
    FileRecord,
    Manifest,
    ModelDirectoryError,
    ModelKind,
    Precision,
    directory_of,
    record_of,
    verify,
)
from memory_extproc.inference.model_source import (
    DEFAULT_SOURCE,
    DEFAULT_WEIGHTS_SHA256,
    READY_GRAPHS,
    WEIGHTS,
    ModelSource,
    fetch,
)
from memory_extproc.inference.onnx_embedder import OnnxModel
from memory_extproc.inference.pooling import Pooling, append_pooling
from memory_extproc.inference.quantise import quantise
from memory_extproc.inference.scoring_head import append_score, scoring_graph

Say = Callable[[str], None]  # takes one line on what is being done
_PART = ".preparing-"
_POOLING_KEYS = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_cls_token": Pooling.CLS}


@dataclass(frozen=True, slots=True)
class Prepared:
    directory: Path
    manifest: Manifest
    made: bool  # False: it was there already, whole and from the same source
    repaired: str = ""  # what was wrong with the directory that stood there before


def prepare(
    source: ModelSource,
    precision: Precision,
    models_dir: Path,
    *,
    force: bool,
    say: Say,
    kind: ModelKind = ModelKind.EMBEDDER,
    hub: str | None = None,
) -> Prepared:
    """Makes `models_dir/NAME-PRECISION` from *source* unless it is there, whole, from the same source.

    The directory appears complete, by a rename; one preparation runs at a time per models_dir. *hub*: as for
    `fetch`. GiveUpError for files that are no such model, and where a model of another kind would be replaced
    without *force*; TryLaterError when they could not be fetched or written.
    """
    directory = directory_of(models_dir, source.name, precision)
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with _alone(models_dir):
            fault = ""
            try:
                manifest = verify(directory)
            except ModelDirectoryError as error:
                fault = str(error) if directory.exists() else ""
            else:
                if not force and manifest.kind != kind:
                    raise GiveUpError(f"{directory} holds a model of kind {manifest.kind}: give --name or --force")
                if not force and manifest.source == _reference(source):
                    return Prepared(directory, manifest, made=False)
            made = _make(source, kind, precision, directory, say, hub)
            return Prepared(directory, made, made=True, repaired=fault)
    except OSError as error:
        raise TryLaterError(f"cannot write below {models_dir}: {error.strerror or type(error).__name__}") from error


def _reference(source: ModelSource) -> str:
    """What the manifest compares: a local directory by its contents too, for they may change under one name."""
    if source.kind != "directory":
        return str(source)
    root = Path(source.reference)
    names = (_graph_of(root) or WEIGHTS, TOKENIZER)
    hashed = hashlib.sha256("".join(record_of(root / n).sha256 for n in names if (root / n).is_file()).encode())
    return f"{source}#{hashed.hexdigest()[:16]}"


@contextmanager
def _alone(models_dir: Path) -> Iterator[None]:
    """Holds the lock of *models_dir*, then clears away what a killed preparation left there."""
    with (models_dir / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in models_dir.glob(f"{_PART}*"):
            shutil.rmtree(left)
        yield


def _make(
    source: ModelSource, kind: ModelKind, precision: Precision, directory: Path, say: Say, hub: str | None
) -> Manifest:
    with tempfile.TemporaryDirectory(prefix=_PART, dir=directory.parent) as scratch:
        downloads, part = Path(scratch, "downloads"), Path(scratch, "model")
        downloads.mkdir()
        part.mkdir()
        say(f"fetching {source}")
        files = fetch(source, downloads, hub)
        manifest = _convert(source, files, kind, precision, part, say)
        (part / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        say("trying it")
        try:
            _try(part, manifest)
        except ModelDirectoryError as error:
            raise GiveUpError(f"{source} gives a model that cannot be run: {error.__cause__}") from error
        for path in part.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        say(f"moving it to {directory}")
        if directory.exists():
            directory.rename(Path(scratch, "old"))
        part.rename(directory)
    return manifest


def _try(part: Path, manifest: Manifest) -> None:
    if manifest.kind is ModelKind.CROSS_ENCODER:
        CrossEncoderModel(part, manifest.max_seq_length)
    else:
        OnnxModel(part)


def _convert(
    source: ModelSource, files: Path, kind: ModelKind, precision: Precision, part: Path, say: Say
) -> Manifest:
    if not (files / TOKENIZER).is_file():
        raise GiveUpError(f"{source} has no {TOKENIZER}")
    graph = _graph_of(files)
    if graph is None and not (files / WEIGHTS).is_file():
        raise GiveUpError(f"{source} has neither {' nor '.join(READY_GRAPHS)} nor {WEIGHTS}")
    weights = record_of(files / (graph or WEIGHTS))
    if str(source) == DEFAULT_SOURCE and weights.sha256 != DEFAULT_WEIGHTS_SHA256:
        raise GiveUpError(f"{source} does not hold the weights it should: SHA-256 {weights.sha256}")
    length = _max_seq_length(files)
    say(f"reading {graph}" if graph else f"writing the graph of {WEIGHTS}")
    if kind is ModelKind.CROSS_ENCODER:
        model, dimension, head = append_score(_loaded(files / graph)) if graph else scoring_graph(files), 1, "score"
    else:
        head = pooling = _pooling(files)
        model, dimension = append_pooling(_loaded(files / graph) if graph else bert_graph(files), pooling)
    if precision is Precision.INT8:
        say("quantising to 8 bits")
        model = quantise(model)
    onnx.save_model(model, part / MODEL)
    _write_tokenizer(files / TOKENIZER, part / TOKENIZER)
    recipe = f"{RECIPE}|{weights.sha256}|{record_of(files / TOKENIZER).sha256}|{head}|{length}|{precision}"
    return Manifest(
        recipe=RECIPE,
        kind=kind,
        name=source.name,
        precision=precision,
        fingerprint=f"{source.name}/{precision}/{hashlib.sha256(recipe.encode()).hexdigest()[:12]}",
        dimension=dimension,
        max_seq_length=length,
        source=_reference(source),
        files=_records(part),
    )


def _records(part: Path) -> dict[str, FileRecord]:
    return {path.name: record_of(path) for path in sorted(part.iterdir())}


def _graph_of(files: Path) -> str | None:
    return next((name for name in READY_GRAPHS if (files / name).is_file()), None)


def _loaded(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load_model(path)
    except (DecodeError, OSError, ValueError) as error:
        raise GiveUpError(f"{path} is not a readable ONNX file ({type(error).__name__})") from error


def _write_tokenizer(source: Path, target: Path) -> None:
    """A copy without the padding and cutting that some repositories leave in: the embedder sets its own."""
    try:
        tokenizer = Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises nothing narrower for a file that it cannot read
        raise GiveUpError(f"{source} is not a readable tokenizer") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(target), pretty=False)


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in *path*; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise GiveUpError(f"{path} is not readable JSON") from error
    if not isinstance(read, dict):
        raise GiveUpError(f"{path} is not a JSON object")
    return read


def _pooling(files: Path) -> Pooling:
    """As 1_Pooling/config.json says; the mean where a repository says nothing."""
    config = _read(files / "1_Pooling" / "config.json")
    asked = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if not asked:
        return Pooling.MEAN
    if len(asked) > 1 or asked[0] not in _POOLING_KEYS:
        raise GiveUpError(f"this pooling is not known here: {', '.join(asked)}")
    return _POOLING_KEYS[asked[0]]


def _max_seq_length(files: Path) -> int:
    """Tokens: what sentence-transformers was told, and never more than the encoder has positions for."""
    told = [
        _read(files / "sentence_bert_config.json").get("max_seq_length"),
        _read(files / "config.json").get("max_position_embeddings"),
        _read(files / "tokenizer_config.json").get("model_max_length"),
    ]
    lengths = [value for value in told if isinstance(value, int) and 2 < value < 1_000_000]  # noqa: PLR2004
    return min(lengths, default=512)
