"""The commands as a shell sees them: what they print where, and their exit codes: 0 done, 1 failed, 2 wrong use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

HEAVY = ("pymilvus", "onnxruntime", "grpc", "openai", "pandas")
UNLESS_CONFIGURED = ("redis", "jwt", "opentelemetry", "openai", "sentence_transformers", "pandas")
OF_EXTRAS = ("onnx", "safetensors", "envoy_data_plane", "betterproto2")


def run(*arguments: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEMORY_EXTPROC")}
    return subprocess.run(
        [sys.executable, "-m", "memory_extproc", *arguments],
        cwd=at,
        env={**clean, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_help_lists_the_commands(tmp_path: Path, asked: str) -> None:
    done = run(asked, at=tmp_path)
    assert done.returncode == 0
    for command in ("serve", "config", "models", "envoy-config", "eval", "explain"):
        assert command in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_option_and_every_command_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    options = run("envoy-config", "-h", at=tmp_path, COLUMNS="60").stdout
    assert "--sidecar-client-cert" in options
    assert "--sidecar-client-key" in options
    commands = run("store", "-h", at=tmp_path, COLUMNS="60").stdout
    assert "without the memories that were forgotten since." in " ".join(commands.split())
    assert "…" not in options + commands
    assert "..." not in commands.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("imported", "spared"),
    [("memory_extproc.cli.root", HEAVY), ("memory_extproc.app", (*UNLESS_CONFIGURED, *OF_EXTRAS))],
    ids=["--help", "serve"],
)
def test_nothing_waits_for_a_library_that_it_does_not_use(
    imported: str, spared: tuple[str, ...], tmp_path: Path
) -> None:
    program = f"import sys, {imported}\nassert not (loaded := set({spared}) & set(sys.modules)), loaded\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_the_program_is_still_loading_ends_it_without_a_traceback(tmp_path: Path) -> None:
    # Stands where the first large import is looked for, and does what a terminal would at that moment.
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    # A process inherits that a signal is ignored, as under nohup, and nothing else of what is done about it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = run("--version", at=tmp_path, PYTHONPATH=path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_version_is_one_line(tmp_path: Path) -> None:
    done = run("--version", at=tmp_path)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)


@pytest.mark.parametrize("wrong", [["nonsense"], ["serve", "--nonsense"], ["envoy-config", "--shape", "nonsense"]])
def test_wrong_use_is_exit_code_2_and_says_so_on_stderr(wrong: list[str], tmp_path: Path) -> None:
    done = run(*wrong, at=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nonsense" in done.stderr


def test_a_sound_configuration_is_exit_code_0(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}\n")
    assert run("config", "check", at=tmp_path).returncode == 0


def test_every_fault_of_a_configuration_is_told_at_once_with_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("memory: {default_similarity_threshold: 7}\nnope: 1\n")
    for command in (["config", "check"], ["config", "show"], ["serve"], ["envoy-config"]):
        done = run(*command, at=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "memory.default_similarity_threshold" in done.stderr
        assert "nope" in done.stderr


def test_a_configuration_that_is_not_there_is_exit_code_2(tmp_path: Path) -> None:
    done = run("serve", "--config", "nowhere.yaml", at=tmp_path)
    assert done.returncode == 2
    assert "nowhere.yaml: cannot be read" in done.stderr


def test_the_environment_is_part_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}\n")
    done = run("config", "show", at=tmp_path, MEMORY_EXTPROC__MEMORY__DEFAULT_RETRIEVAL_LIMIT="9")
    assert yaml.safe_load(done.stdout)["memory"]["default_retrieval_limit"] == 9
    done = run("config", "check", at=tmp_path, MEMORY_EXTPROC__MEMORY__DEFAULT_RETRIEVAL_LIMIT="many")
    assert done.returncode == 2


def test_serving_without_its_configured_model_ends_with_exit_code_1_and_says_what_to_do(tmp_path: Path) -> None:
    free = {"ext_proc": "127.0.0.1:0", "api": "127.0.0.1:0", "console": "127.0.0.1:0", "http": "127.0.0.1:0"}
    memory = {"embedding": {"models_dir": "elsewhere"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"listen": free, "memory": memory}))
    done = run("serve", at=tmp_path)
    assert done.returncode == 1
    assert "memory-extproc models prepare" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_source_of_models_that_is_none_is_told_to_programs_as_json(tmp_path: Path) -> None:
    done = run("models", "prepare", "--json", "--source", str(tmp_path / "nowhere"), at=tmp_path)
    assert done.returncode == 2
    told = json.loads(done.stdout)
    assert told["state"] == "failed"
    assert "nowhere" in told["error"]


def test_envoy_configuration_is_yaml_on_stdout_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}\n")
    done = run("envoy-config", "--shape", "bootstrap", at=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "listeners" in yaml.safe_load(done.stdout)["static_resources"]


def test_envoy_meets_the_sidecar_at_a_unix_socket_where_there_is_one(tmp_path: Path) -> None:
    done = run("envoy-config", "--socket", at=tmp_path)
    assert done.returncode == 2
    assert "listen.ext_proc_unix is not set" in done.stderr
    (tmp_path / "config.yaml").write_text("listen: {ext_proc_unix: 'unix:/run/memory/ext_proc.sock'}\n")
    assert run("envoy-config", "--socket", "--sidecar", "memory:50051", at=tmp_path).returncode == 2
    clusters = yaml.safe_load(run("envoy-config", "--socket", at=tmp_path).stdout)["static_resources"]["clusters"]
    assert "'/run/memory/ext_proc.sock'" in str(clusters)
    assert "50051" not in str(clusters)


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        (["models", "prepare"], "onnx", "models"),
        (["models", "prepare"], "safetensors", "models"),
        (["models", "prepare"], "huggingface_hub", "models"),
        (["envoy-config"], "betterproto2", "envoy-config"),
        (["envoy-config"], "envoy_data_plane", "envoy-config"),
    ],
)
def test_a_command_that_needs_optional_packages_names_the_extra_that_brings_them(
    command: list[str], missing: str, extra: str, tmp_path: Path
) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from memory_extproc.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"{missing} is not installed: pip install 'memory-extproc[{extra}]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
