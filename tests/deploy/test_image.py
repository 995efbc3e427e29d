"""The image, without an engine to build it: its steps one after the other, and what a linter says of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from memory_extproc.cli.serve import usual_shutdown
from memory_extproc.settings import load
from tests.support.chart import ROOT, TOOLS
from tests.support.ports import free_port
from tests.support.waiting import until

DEPLOY = ROOT / "deploy"
# Every wheel of the lock is installed, while other tests run.
pytestmark = pytest.mark.timeout(600)
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def test_a_linter_finds_nothing_to_complain_of() -> None:
    linted = subprocess.run(
        [str(TOOLS / "validate" / "bin" / "hadolint"), str(DEPLOY / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (linted.returncode, linted.stdout) == (0, "")


def test_what_the_image_copies_is_in_the_build_context() -> None:
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert "deploy/models.lock" in copied
    assert copied <= kept


def locked(name: str = "requirements.lock") -> dict[str, str]:
    lines = (DEPLOY / name).read_text()
    return {
        name.lower(): version
        for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", lines, re.MULTILINE)
    }


def test_the_lock_file_holds_every_dependency_in_its_range_and_no_pytorch() -> None:
    """`make lock` after a change in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = locked()
    for line in project["dependencies"]:
        wanted = Requirement(line)
        assert wanted.name.lower() in pins, f"{wanted.name} is not in the lock file"
        assert pins[wanted.name.lower()] in wanted.specifier
    assert not {"torch", "sentence-transformers", "transformers", "onnx", "envoy-data-plane"} & pins.keys()


def test_what_prepares_the_model_is_locked_too_and_agrees_with_what_runs() -> None:
    pins, runs = locked("models.lock"), locked()
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["models"]
    assert extra
    for line in extra:
        wanted = Requirement(line)
        assert pins[wanted.name.lower()] in wanted.specifier
    assert {name: runs[name] for name in pins.keys() & runs.keys()} == {
        name: pins[name] for name in pins.keys() & runs.keys()
    }


def test_every_wheel_of_the_lock_file_has_its_hash() -> None:
    for name in ("requirements.lock", "models.lock", "build.lock"):
        entries = re.split(r"^(?=[A-Za-z0-9])", (DEPLOY / name).read_text(), flags=re.MULTILINE)[1:]
        assert len(entries) > 5
        assert all("--hash=sha256:" in each for each in entries)


def stages() -> dict[str, tuple[str, str]]:
    """Each stage of the Dockerfile by name: its base, and its steps."""
    texts = re.split(r"(?m)^FROM ", DOCKERFILE)[1:]
    heads = [re.fullmatch(r"(\S+) AS (\S+)", text.partition("\n")[0]) for text in texts]
    assert all(heads)
    return {head[2]: (head[1], text) for head, text in zip(heads, texts, strict=True) if head}


@pytest.mark.parametrize("target", ["full", "slim"])
def test_what_is_released_runs_as_nobody_in_particular_and_says_how_it_is(target: str) -> None:
    base, own = stages()[target]
    assert base == "bare"
    text = stages()["bare"][1] + own
    assert "USER 10001:10001" in text
    assert 'ENTRYPOINT ["memory-extproc"]' in text
    assert "HEALTHCHECK" in text
    assert "org.opencontainers.image.version" in text
    assert "sbom.cdx.json" in text
    assert "pip install" not in text


def test_every_stage_begins_with_one_base_that_a_release_pins_by_digest() -> None:
    known = stages()
    assert list(known)[-1] == "full", "what `docker build` makes without a target"
    assert all(base == "${BASE}" or base in known for base, _ in known.values())
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-\w+$", DOCKERFILE, re.MULTILINE), "an exact tag"
    assert re.search(r"^ARG BASE=python:\$\{PYTHON\}$", DOCKERFILE, re.MULTILINE)


def test_bake_builds_the_stages_there_are_for_both_architectures() -> None:
    bake = (DEPLOY / "bake.hcl").read_text()
    assert set(re.findall(r'^\s+target\s+= "(\w+)"$', bake, re.MULTILINE)) == {"full", "slim"} < stages().keys()
    assert '["linux/amd64", "linux/arm64"]' in bake


def test_with_a_milvus_server_nothing_asks_for_what_slim_leaves_out() -> None:
    """pymilvus cannot be imported without pandas, so that stays."""
    [left_out] = re.findall(r"pip uninstall -y (milvus-lite .+)", DOCKERFILE)
    assert set(left_out.split()) <= locked().keys()
    program = """
import sys
for name in ("milvus_lite", "pyarrow", "faiss", "hf_xet"):
    sys.modules[name] = None
import memory_extproc.app, memory_extproc.cli.root, memory_extproc.store.milvus.store, tokenizers
from pathlib import Path
from memory_extproc.errors import PermanentError
from memory_extproc.store.milvus.lite import EmbeddedLite
try:
    EmbeddedLite(Path("nowhere")).start()
except PermanentError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "set memory.milvus.address to a Milvus server" in run.stdout


def for_anybody() -> str:
    """An interpreter that another user can run too: ours may stand in somebody's home."""
    for each in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        found = Path(each).resolve()
        reached = os.geteuid() != 0 or all(one.stat().st_mode & 0o001 for one in found.parents if one.exists())
        if found.exists() and reached and _is_new_enough(found):
            return str(found)
    pytest.skip("no Python 3.11 or newer that another user could run")


def _is_new_enough(python: Path) -> bool:
    told = subprocess.run(
        [str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"], check=False, capture_output=True
    )
    return told.returncode == 0


@pytest.fixture(scope="module")
def for_everybody() -> Iterator[Path]:
    """A directory that another user reaches. Not one of pytest's: each session that begins takes them back."""
    with tempfile.TemporaryDirectory(prefix="memory-extproc-image-", ignore_cleanup_errors=True) as made:
        place = Path(made)
        place.chmod(0o755)
        yield place


@pytest.fixture(scope="module")
def installed(for_everybody: Path) -> Path:
    """A virtual environment as the image has it: the lock file's wheels with their hashes, and ours."""
    place = for_everybody
    venv = place / "venv"
    subprocess.run([for_anybody(), "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check"]
    pip += ["install", "--quiet", "--no-compile"]
    lock = DEPLOY / "requirements.lock"
    subprocess.run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(lock)], check=True)
    context = place / "context"
    context.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "config.yaml"):
        shutil.copy(ROOT / name, context)
    shutil.copytree(ROOT / "memory_extproc", context / "memory_extproc")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*wheel, "--wheel-dir", str(place), str(context)], check=True)
    [made] = place.glob("*.whl")
    subprocess.run([*pip, "--no-deps", str(made)], check=True)
    [imports] = re.findall(r"-c '(import .*milvus_lite.*)'", DOCKERFILE)
    bytecode = {"PYTHONPYCACHEPREFIX": str(place / "bytecode")}
    subprocess.run([str(venv / "bin" / "python"), "-c", imports], env=bytecode, check=True)
    return venv


def sources(venv: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in venv.rglob("*.py")}


@pytest.mark.timeout(400)
async def test_what_is_installed_from_the_lock_serves_as_an_unprivileged_user_from_a_tree_it_cannot_write(
    installed: Path, for_everybody: Path, int8_model_dir: Path
) -> None:
    data, port = for_everybody / "data", free_port()
    data.mkdir(exist_ok=True)  # left by an earlier attempt
    compiled = set((for_everybody / "bytecode").rglob("*.pyc"))
    assert {"serve", "sidecar", "servicer"} <= {path.name.partition(".")[0] for path in compiled}
    models = shutil.copytree(
        int8_model_dir, for_everybody / "models" / int8_model_dir.name, dirs_exist_ok=True
    ).parent
    config = Path(shutil.copy(ROOT / "config.yaml", for_everybody))
    environment = {
        "PATH": f"{installed / 'bin'}:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPYCACHEPREFIX": str(for_everybody / "bytecode"),
        "MEMORY_EXTPROC__DATA_DIR": str(data),
        "MEMORY_EXTPROC__MEMORY__EMBEDDING__MODELS_DIR": str(models),
        "MEMORY_EXTPROC__LISTEN__EXT_PROC": "127.0.0.1:0",
        "MEMORY_EXTPROC__LISTEN__API": "127.0.0.1:0",
        "MEMORY_EXTPROC__LISTEN__CONSOLE": "127.0.0.1:0",
        "MEMORY_EXTPROC__LISTEN__HTTP": f"127.0.0.1:{port}",
    }
    nobody = 10001 if os.geteuid() == 0 else None  # only root may choose
    if nobody:
        os.chown(data, nobody, nobody)
    before = sources(installed)
    process = subprocess.Popen(  # noqa: ASYNC220 - it is watched, not waited for
        [str(installed / "bin" / "memory-extproc"), "serve", "--config", str(config)],
        cwd=for_everybody,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        user=nobody,
        group=nobody,
        extra_groups=None if nobody is None else [],
    )

    def ready() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1) as got:
                return bool(got.status == 200)
        except OSError:
            return False

    try:
        await until(ready, "it is ready", seconds=120)
        assert (data / "journal.db").exists()
        assert sources(installed) == before
    finally:
        process.terminate()
        _, said = process.communicate(timeout=4 * usual_shutdown(load(config, {})).total_seconds())
    assert process.returncode == 0, said
    assert not (installed / "lib").joinpath("torch").exists()
    assert json.loads(said.strip().splitlines()[-1])["event"]
