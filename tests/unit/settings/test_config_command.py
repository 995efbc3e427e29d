"""The commands `config` and `envoy-config`, as people and as programs use them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from memory_extproc.cli.root import app
from memory_extproc.settings import Settings
from memory_extproc.settings.docs import example, keys_of, reference

EXAMPLE = Path(__file__).parents[3] / "config.yaml"


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("mode: gradual\nmemory: {milvus: {adress: x}}\n")
    return path


def test_check_names_every_fault_and_exits_with_two(run: CliRunner, faulty: Path) -> None:
    result = run.invoke(app, ["config", "check", "--config", str(faulty)])
    assert result.exit_code == 2
    assert "memory.milvus.adress: unknown key; did you mean address?" in result.stderr
    assert "percent: mode gradual needs one" in result.stderr


def test_check_speaks_to_programs_too(run: CliRunner, faulty: Path) -> None:
    result = run.invoke(app, ["config", "check", "--json", "-c", str(faulty)])
    assert result.exit_code == 2
    said = json.loads(result.stdout)
    assert said["ok"] is False
    assert len(said["faults"]) == 2
    sound = run.invoke(app, ["config", "check", "--json", "-c", str(EXAMPLE)])
    assert sound.exit_code == 0
    assert json.loads(sound.stdout)["ok"] is True


def test_check_tells_of_a_model_that_is_not_here_and_calls_it_no_fault(run: CliRunner, tmp_path: Path) -> None:
    there_is_none = {"MEMORY_EXTPROC__MEMORY__EMBEDDING__MODELS_DIR": str(tmp_path)}
    result = run.invoke(app, ["config", "check", "-c", str(EXAMPLE)], env=there_is_none)
    assert result.exit_code == 0
    assert f"note: there is no model directory {tmp_path}/all-MiniLM-L6-v2-int8: run" in result.stdout
    elsewhere = {**there_is_none, "MEMORY_EXTPROC__MEMORY__EMBEDDING__PROVIDER": "sentence_transformers"}
    assert "model directory" not in run.invoke(app, ["config", "check", "-c", str(EXAMPLE)], env=elsewhere).stdout


def test_check_of_a_sound_configuration_says_what_to_know(run: CliRunner) -> None:
    result = run.invoke(
        app,
        ["config", "check", "-c", str(EXAMPLE)],
        env={"MEMORY_EXTPROC__LISTEN__EXT_PROC": "0.0.0.0:50051", "MEMORY_EXTPROC__LISTEN__INSECURE": "true"},
    )
    assert result.exit_code == 0
    assert "the configuration is sound" in result.stdout
    assert "listen.insecure: whoever reaches 0.0.0.0:50051" in result.stdout


def test_show_prints_what_is_in_effect_with_secrets_as_stars(run: CliRunner) -> None:
    secret = {
        "MEMORY_EXTPROC__COORDINATION__URL": "redis://redis:6379/0",
        "MEMORY_EXTPROC__COORDINATION__PASSWORD": "hunter2",
    }
    result = run.invoke(app, ["config", "show", "-c", str(EXAMPLE)], env=secret)
    assert result.exit_code == 0
    assert "hunter2" not in result.stdout
    shown = yaml.safe_load(result.stdout)
    assert shown["coordination"] == {
        **yaml.safe_load(EXAMPLE.read_text())["coordination"],
        "url": "redis://redis:6379/0",
        "password": "**********",
    }
    as_json = run.invoke(app, ["config", "show", "--json"], env=secret)
    assert json.loads(as_json.stdout) == shown


def test_the_schema_refuses_unknown_keys_as_we_do(run: CliRunner) -> None:
    schema = json.loads(run.invoke(app, ["config", "schema"]).stdout)
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Settings.model_fields)


def test_the_example_is_the_shipped_file(run: CliRunner) -> None:
    assert run.invoke(app, ["config", "example"]).stdout == example()


def envoy_config(run: CliRunner, *arguments: str, **environ: str) -> tuple[int, str, str]:
    result = run.invoke(app, ["envoy-config", *arguments], env=environ)
    return result.exit_code, result.stdout, result.stderr


def test_the_envoy_configuration_follows_the_sidecars_own(run: CliRunner) -> None:
    code, text, _ = envoy_config(
        run, "--upstream", "http://llm:8000", "--listen", "127.0.0.1:9000",
        MEMORY_EXTPROC__RECALL__DEADLINE="600ms",
        MEMORY_EXTPROC__LISTEN__EXT_PROC="unix:/run/memory.sock",
        MEMORY_EXTPROC__LIMITS__STREAMS="77",
        MEMORY_EXTPROC__LIMITS__REQUEST_BODY="1MiB",
        MEMORY_EXTPROC__SIGNALS__METADATA_NAMESPACE="router",
        MEMORY_EXTPROC__IDENTITY__METADATA="auth:user",
        MEMORY_EXTPROC__IDENTITY__USER_HEADER="x-who",
    )  # fmt: skip
    assert code == 0
    resources = yaml.safe_load(text)["static_resources"]
    (listener,) = resources["listeners"]
    assert listener["per_connection_buffer_limit_bytes"] == 4 << 20
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    filters = {each["name"]: each["typed_config"] for each in manager["http_filters"]}
    strip, memory = filters["identity_strip"], filters["memory"]
    assert strip["mutations"]["request_mutations"] == [{"remove": "x-who"}, {"remove": "x-authz-tenant-id"}]
    assert memory["message_timeout"] == "2.400s"
    assert memory["metadata_options"]["forwarding_namespaces"]["untyped"] == ["auth", "router", "memory"]
    clusters = {each["name"]: each for each in resources["clusters"]}
    ours, llm = clusters["memory_extproc"], clusters["llm"]
    assert ours["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] == {
        "pipe": {"path": "/run/memory.sock"}
    }
    assert ours["circuit_breakers"]["thresholds"][0]["max_requests"] == 77
    assert llm["type"] == "STRICT_DNS"


def test_trusting_clients_is_written_down_loudly(run: CliRunner) -> None:
    code, text, warning = envoy_config(run, "--identity", "trust")
    assert code == 0
    assert "THE CLIENT NAMES ITSELF" in text
    assert "WARNING" in warning
    assert "identity_strip" not in text


@pytest.mark.parametrize("shape", ["envoy-gateway", "istio"])
def test_kubernetes_shapes_name_the_sidecars_service(run: CliRunner, shape: str) -> None:
    arguments = ["--shape", shape, "--sidecar", "memory.ai:50051", "--gateway", "edge", "--namespace", "infra"]
    verified = ["--identity", "jwt", "--jwt-issuer", "i", "--jwt-audience", "a", "--jwks-url", "https://i/keys"]
    code, text, _ = envoy_config(run, *arguments, *verified)
    assert code == 0
    documents = list(yaml.safe_load_all(text))
    assert {each["metadata"]["namespace"] for each in documents} == {"infra"}
    assert "https://i/keys" in text
    assert "edge" in text
    assert "memory.ai.svc.cluster.local" in text or "namespace: ai" in text
    assert envoy_config(run, *arguments, "--identity", "trust")[1].count("x-authz-user-id") == 1


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--upstream", "llm:8000"], "--upstream: expected http://host:port"),
        (["--upstream", "http://llm/v1"], "--upstream: expected http://host:port alone"),
        (["--upstream", "http://llm:99999"], "--upstream: "),
        (["--listen", "8888"], "--listen: expected host:port"),
        (["--sidecar", "memory"], "--sidecar: expected host:port"),
        (["--shape", "istio"], "--sidecar: 127.0.0.1:50051 is no Service"),
        (["--shape", "envoy-gateway", "--sidecar", "unix:/run/m.sock"], "is no Service"),
        (["--identity", "jwt", "--jwks-url", "https://i"], "--jwt-issuer: --identity jwt needs it"),
        (["--identity", "jwt", "--jwt-issuer", "i", "--jwt-audience", "a"], "--jwks-url: --identity jwt needs it"),
        (["--identity", "jwt", "--jwt-issuer", "i", "--jwt-audience", "a", "--jwks-url", "u", "--jwks-file", "f"],
         "--jwks-file is given too"),
        (["--identity", "jwt", "--jwt-issuer", "i", "--jwt-audience", "a", "--jwks-file", "f",
          "--shape", "istio", "--sidecar", "m.n:1"], "--jwks-url: this shape cannot name a file"),
    ],
)  # fmt: skip
def test_wrong_use_is_named_and_exits_with_two(run: CliRunner, arguments: list[str], fault: str) -> None:
    code, _, said = envoy_config(run, *arguments)
    assert code == 2
    assert fault in said


MUTUAL = {
    "MEMORY_EXTPROC__TLS": '{"cert": "c", "key": "k", "client_ca": "a", "allowed_names": ["envoy"]}',
    "MEMORY_EXTPROC__LISTEN__EXT_PROC": "0.0.0.0:50051",
}


def test_a_sidecar_with_mutual_tls_asks_for_envoys_certificate(run: CliRunner) -> None:
    code, _, said = envoy_config(run, **MUTUAL)
    assert code == 2
    assert "--sidecar-client-cert: the sidecar asks for mutual TLS" in said
    given = ["--sidecar-client-cert", "c", "--sidecar-client-key", "k", "--sidecar-ca", "a"]
    code, text, _ = envoy_config(run, "--sidecar", "memory.example.com:50051", *given, **MUTUAL)
    assert code == 0
    assert "sni: memory.example.com" in text


def test_the_reference_in_the_docs_is_what_the_program_says() -> None:
    """`memory-extproc config reference > docs/reference/configuration.md` writes it anew."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
    assert page.read_text(encoding="utf-8") == reference()


def test_the_reference_names_every_key_once_with_its_type_default_effect_and_whether_it_reloads() -> None:
    rows = [line for line in reference().splitlines() if line.startswith("| `")]
    named = [row.split("`")[1] for row in rows]
    assert sorted(named) == sorted(key for key, _ in keys_of(Settings))
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    assert all(len(row) == 4 and all(row) and row[2] in {"yes", "restart"} for row in cells)
    assert all("<br>default `" in row[0] or row[0].endswith(("empty by default", "required")) for row in cells)
    assert "| `recall.deadline`<br>default `auto` | duration or `auto` |" in reference()
