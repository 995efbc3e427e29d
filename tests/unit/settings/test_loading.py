from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from memory_extproc.errors import ConfigurationError
from memory_extproc.model import MemoryType
from memory_extproc.request.identity import look_up_metadata
from memory_extproc.settings import Settings, load
from memory_extproc.settings.api import ways_of
from memory_extproc.settings.docs import dump_effective, example
from memory_extproc.settings.loading import read
from memory_extproc.settings.memory import ModelRole
from memory_extproc.settings.types import (
    alternatives,
    fields_of,
    is_section,
    on_loopback,
    parse_duration,
    parse_size,
    write_duration,
    write_size,
)

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config.yaml"
QWEN = {
    "model_role": "memory_extraction",
    "llm_endpoint": {"address": "qwen", "port": 8000},
    "llm_model_name": "qwen3",
}


def the_defaults() -> Settings:
    """The place of the data is found when it is loaded."""
    return Settings(data_dir=load(None, {}).data_dir)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def written(file: Path, tree: Mapping[str, Any] | str) -> Path:
    file.write_text(tree if isinstance(tree, str) else yaml.safe_dump(tree))
    return file


def faults(path: Path | None, **environ: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load(path, environ)
    return caught.value.faults


# --- the example -----------------------------------------------------------------------------------
def test_the_shipped_configuration_is_the_defaults() -> None:
    assert load(EXAMPLE, {}) == the_defaults() == load(None, {})


def test_the_shipped_configuration_is_written_from_the_settings_themselves() -> None:
    assert EXAMPLE.read_text() == example(), "run: memory-extproc config example > config.yaml"


def keys(section: type[BaseModel], under: str = "") -> Iterator[str]:
    for key, field in fields_of(section).items():
        yield under + key
        for each in alternatives(field.annotation):
            if is_section(each):
                yield from keys(each, f"{under}{key}.")


def keys_of(tree: Mapping[str, Any], under: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield under + key
        if isinstance(value, dict):
            yield from keys_of(value, f"{under}{key}.")


def test_every_setting_stands_in_the_shipped_configuration_with_a_comment() -> None:
    assert set(keys(Settings)) == set(keys_of(read(EXAMPLE)))
    lines = EXAMPLE.read_text().splitlines()
    for before, line in pairwise(lines):
        if line.strip() and not line.strip().startswith("#"):
            assert before.strip().startswith("#"), f"no comment above: {line}"


def test_the_entries_shown_as_comments_load_when_the_comment_signs_are_taken_away() -> None:
    text = EXAMPLE.read_text()
    for name in ("external_models", "rules"):
        block = text.partition(f"{name}: []\n# one entry:\n")[2].partition("\n\n")[0]
        entry = "\n".join(line.removeprefix("#") for line in block.splitlines())
        tree = yaml.safe_load(f"{name}:\n{entry}\n")
        assert len(getattr(Settings.model_validate(tree), name)) == 1


def test_every_setting_has_a_description_in_the_schema() -> None:
    schema = Settings.model_json_schema(by_alias=True)
    for each in (schema, *schema["$defs"].values()):
        for name, value in each.get("properties", {}).items():
            assert value.get("description"), f"{each['title']}.{name}"


# --- file and environment --------------------------------------------------------------------------
def test_the_environment_overrides_the_file() -> None:
    settings = load(
        EXAMPLE,
        {
            "MEMORY_EXTPROC__RECALL__DEADLINE": "200ms",
            "memory_extproc__memory__default_retrieval_limit": "7",
            "MEMORY_EXTPROC__INJECT__AS": "user_suffix",
            "MEMORY_EXTPROC__LISTEN__INSECURE": "true",
            "MEMORY_EXTPROC__PERCENT": "null",
            "MEMORY_EXTPROC__SIGNALS__TOOL_HEADERS": '["X-Tool", "x-other"]',
            "MEMORY_EXTPROC_SERVICE_PORT": "50051",  # as Kubernetes sets for a Service of our name
            "PATH": "/bin",
        },
    )
    assert settings.deadline == timedelta(milliseconds=200)
    assert settings.memory.default_retrieval_limit == 7
    assert settings.inject.as_ == "user_suffix"
    assert settings.listen.insecure is True
    assert settings.signals.tool_headers == ("x-tool", "x-other")


def test_entries_of_lists_are_reached_by_their_number(file: Path) -> None:
    written(file, {"external_models": [QWEN]})
    settings = load(
        file,
        {
            "MEMORY_EXTPROC__EXTERNAL_MODELS__0__LLM_ENDPOINT__ACCESS_KEY": "hunter2",
            "MEMORY_EXTPROC__EXTERNAL_MODELS__1__MODEL_ROLE": "memory_rewrite",
            "MEMORY_EXTPROC__EXTERNAL_MODELS__1__LLM_MODEL_NAME": "small",
            "MEMORY_EXTPROC__EXTERNAL_MODELS__1__LLM_ENDPOINT": '{"address": "::1", "port": 1, "path": "/x/"}',
        },
    )
    first, second = settings.external_models
    assert first.llm_endpoint.access_key.get_secret_value() == "hunter2"
    assert second.llm_endpoint.url == "http://[::1]:1/x"
    assert settings.model_for(ModelRole.MEMORY_REWRITE) is second
    assert settings.model_for(ModelRole.MEMORY_EXTRACTION) is first


def test_a_whole_list_in_the_environment_comes_before_its_entries() -> None:
    settings = load(
        None,
        {
            "MEMORY_EXTPROC__RULES__0__THEN__LIMIT": "2",
            "MEMORY_EXTPROC__RULES": '[{"when": {"tenant": "a"}, "then": {"limit": 1}}]',
        },
    )
    assert settings.rules[0].then.limit == 2


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("RULES", "[", "MEMORY_EXTPROC__RULES: expected JSON"),
        ("MEMORY", "yes", "MEMORY_EXTPROC__MEMORY: expected JSON"),
        ("EXTERNAL_MODELS__3__LLM_MODEL_NAME", "x", "the list has 0 entries, so 3 cannot be the next"),
        ("MODE__X", "x", "mode: should be 'active', 'shadow' or 'gradual'"),
        ("TYPO", "x", "typo: unknown key (from MEMORY_EXTPROC__TYPO)"),
        ("RECALL__DEADLNE", "1s", "unknown key; did you mean deadline? (from MEMORY_EXTPROC__RECALL__DEADLNE)"),
        ("LIMITS__STREAMS", "0", "found '0' (from MEMORY_EXTPROC__LIMITS__STREAMS)"),
        ("LIMITS__REQUEST_BODY", "4096", "limits.request_body: expected a size"),
    ],
)
def test_a_fault_in_the_environment_names_its_variable(name: str, value: str, fault: str) -> None:
    (found,) = faults(None, **{f"MEMORY_EXTPROC__{name}": value})
    assert fault in found


def test_nothing_can_stand_within_a_value(file: Path) -> None:
    written(file, {"mode": "active"})
    assert faults(file, MEMORY_EXTPROC__MODE__X="1") == (
        "MEMORY_EXTPROC__MODE__X: mode has a value, so nothing can stand within it",
    )


def test_every_fault_is_reported_at_once_with_its_path(file: Path) -> None:
    written(
        file,
        {
            "mode": "gradual",
            "memory": {"enabled": "perhaps", "default_retrieval_limit": 0, "milvus": {"tiemout": "1s"}},
            "listen": {"ext_proc": "0.0.0.0:1"},
            "external_models": [{"model_role": "memory_rewrite"}],
            "shutdown": {"announce": "1s"},
            "nonsense": 1,
        },
    )
    found = faults(file)
    paths = {fault.partition(":")[0] for fault in found}
    assert paths == {
        "memory.enabled",
        "memory.default_retrieval_limit",
        "memory.milvus.tiemout",
        "listen.ext_proc",
        "external_models[0].llm_endpoint",
        "external_models[0].llm_model_name",
        "shutdown.announce",
        "percent",
        "nonsense",
    }


def test_words_that_yaml_would_take_for_truth_stay_words(file: Path) -> None:
    written(file, "recall: {query_rewrite: off}\nlearn: {extractor: off}\nmemory: {enabled: False}\n")
    settings = load(file, {})
    assert settings.recall.query_rewrite == "off"
    assert settings.learn.extractor == "off"
    assert settings.memory.enabled is False


@pytest.mark.parametrize("text", ["", "# nothing\n", "memory:\nrecall:\n", "memory:\n  milvus:\n    tls:\n"])
def test_a_file_or_section_without_keys_is_the_defaults(file: Path, text: str) -> None:
    assert load(written(file, text), {}) == the_defaults()


def test_an_absent_file_is_one_fault_that_names_it(file: Path) -> None:
    assert faults(file) == (f"{file}: cannot be read: No such file or directory",)


@pytest.mark.parametrize(
    "text", ["a: \x00", "[" * 400, "!!python/object:os.system {}", "a: &a [*a]", "? [a]\n: 1\n"]
)
def test_a_strange_file_is_a_fault_and_no_crash(file: Path, text: str) -> None:
    assert faults(written(file, text))


def test_bytes_that_are_no_text_are_a_fault(file: Path) -> None:
    file.write_bytes(b"mode: \xff\xfe")
    assert faults(file) == (f"{file}: is not readable as YAML",)


def test_a_part_may_be_written_once_and_merged_where_it_is_needed(file: Path) -> None:
    entry = "  - {<<: *at, model_role: memory_rewrite, llm_model_name: small}\n"
    written(
        file,
        "external_models:\n"
        "  - &at {model_role: memory_extraction, llm_model_name: big, llm_endpoint: {address: q, port: 1}}\n"
        + entry,
    )
    assert [model.llm_model_name for model in load(file, {}).external_models] == ["big", "small"]


# --- secrets ---------------------------------------------------------------------------------------
def test_a_secret_may_stand_in_a_file_and_is_never_shown(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    written(file, {"coordination": {"url": "redis://redis:6379/0", "password_file": str(secret)}})
    settings = load(file, {})
    assert settings.coordination.password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(dump_effective(settings))
    assert dump_effective(settings)["coordination"]["password"] == "**********"


@pytest.mark.parametrize(("content", "fault"), [(b"\n", "password_file is empty"), (b"\xff", "not UTF-8 text")])
def test_a_secret_file_without_a_secret_is_a_fault(file: Path, tmp_path: Path, content: bytes, fault: str) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(content)
    written(file, {"coordination": {"url": "redis://redis:6379/0", "password_file": str(secret)}})
    (found,) = faults(file)
    assert fault in found


@given(st.text(min_size=6).filter(lambda text: text.strip() == text and text not in "memory.milvus.password"))
def test_no_fault_repeats_a_secret(secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(None, {"MEMORY_EXTPROC__MEMORY__MILVUS__PASSWORD": secret, "MEMORY_EXTPROC__RECALL__CANDIDATES": "0"})
    assert "password" in str(caught.value)
    assert f"'{secret}'" not in str(caught.value)


def test_a_secret_of_the_wrong_kind_is_not_repeated(file: Path) -> None:
    (found,) = faults(written(file, {"coordination": {"url": "redis://r:1", "password": 123456}}))
    assert found == "coordination.password: should be a valid string"


# --- what follows from what ------------------------------------------------------------------------
def test_a_model_in_the_read_path_gets_a_deadline_it_can_meet_and_says_so(file: Path) -> None:
    settings = load(written(file, {"recall": {"hyde": True}, "external_models": [QWEN]}), {})
    assert settings.deadline == timedelta(seconds=1.5)
    assert settings.message_timeout == timedelta(seconds=6)
    assert any("1.5s" in notice for notice in settings.notices())
    found = settings.model_for(ModelRole.MEMORY_REWRITE)
    assert found is not None
    assert found.llm_model_name == "qwen3"


def test_a_model_that_reranks_is_in_the_read_path_and_falls_back_to_the_extraction_model(file: Path) -> None:
    settings = load(written(file, {"recall": {"rerank": "llm"}, "external_models": [QWEN]}), {})
    assert settings.deadline == timedelta(seconds=1.5)
    assert not settings.recall.rewrites
    own = {**QWEN, "model_role": "memory_rerank", "llm_model_name": "small"}
    both = load(written(file, {"recall": {"rerank": "llm"}, "external_models": [QWEN, own]}), {})
    names = [
        model.llm_model_name for each in (settings, both) if (model := each.model_for(ModelRole.MEMORY_RERANK))
    ]
    assert names == ["qwen3", "small"]


def test_a_reranker_in_process_keeps_the_usual_deadline() -> None:
    settings = load(None, {"MEMORY_EXTPROC__RECALL__RERANK": "cross_encoder"})
    assert settings.deadline == timedelta(milliseconds=150)


def test_envoy_is_always_more_patient_than_the_deadline() -> None:
    assert Settings().deadline == timedelta(milliseconds=150)
    assert Settings().message_timeout == timedelta(seconds=1)
    slow = load(None, {"MEMORY_EXTPROC__RECALL__DEADLINE": "2s"})
    assert slow.message_timeout == timedelta(seconds=8)


@pytest.mark.parametrize(
    ("tree", "word"),
    [
        ({"listen": {"ext_proc": "0.0.0.0:50051", "insecure": True}}, "listen.insecure"),
        ({"identity": {"trust_body": True}}, "identity.trust_body"),
        ({"memory": {"enabled": False}}, "memory.enabled"),
        ({"privacy": {"hash_user_ids": True, "hash_key": "0123456789abcdef"}}, "privacy.hash_user_ids"),
        ({}, "coordination.url"),
    ],
)
def test_what_is_allowed_but_risky_is_said(tree: dict[str, Any], word: str) -> None:
    assert any(notice.startswith(word) for notice in Settings.model_validate(tree).notices())


def test_a_redis_url_and_a_shared_secret_leave_nothing_to_say() -> None:
    shared = {"coordination": {"url": "redis://redis:6379/0"}, "api": {"secret": "sixteen bytes ...."}}
    assert Settings.model_validate(shared).notices() == ()


def test_settings_made_in_code_obey_the_same_rules() -> None:
    with pytest.raises(ValidationError, match="percent: mode gradual needs one"):
        Settings.model_validate({"mode": "gradual"})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().mode = "shadow"  # type: ignore[misc]  # that it fails is the point


@pytest.mark.parametrize(
    "tree",
    [
        {"listen": {"ext_proc": "unix:/run/memory.sock"}},
        {"listen": {"ext_proc": "[::1]:50051"}},
        {"listen": {"ext_proc": "localhost:50051"}},
        {"listen": {"ext_proc": "0.0.0.0:50051"},
         "tls": {"cert": "c", "key": "k", "client_ca": "a", "allowed_names": ["envoy"]}},
        {"identity": {"metadata": "envoy.filters.http.jwt_authn:jwt.sub", "metadata_tenant": "ns:tid"}},
        {"identity": {"jwt": {"jwks_url": "http://localhost:8080/keys", "issuer": "i", "audience": "a"}}},
        {"coordination": {"url": "rediss://user@redis:6379/0", "password": "x"}},
        {"coordination": {"url": "unix:///run/redis.sock"}},
        {"memory": {"milvus": {"address": "https://milvus:443", "token": "t", "layout": "single"}}},
        {"memory": {"embedding": {"provider": "openai", "endpoint": "http://e:1/v1", "access_key": "k"}}},
        {"mode": "gradual", "percent": 12.5},
        {"recall": {"about_caller": [r"\bmoi\b"]}, "inject": {"window": 8192}},
    ],
)  # fmt: skip
def test_what_makes_sense_is_taken(tree: dict[str, Any]) -> None:
    Settings.model_validate(tree)


def test_rules_and_identity_reach_the_wire_as_they_were_written() -> None:
    settings = Settings.model_validate(
        {
            "identity": {"jwt": {"jwks_file": "k", "issuer": "i", "audience": "a", "tenant_claim": "tid"}},
            "privacy": {"hash_user_ids": True, "hash_key": "0123456789abcdef"},
            "rules": [
                {"when": {"header": {"X-App": "ide*"}}, "then": {"signals": {"tool": True}, "types": ["semantic"]}}
            ],
        }
    )
    assert settings.identity.jwt.is_set
    assert (settings.identity.jwt.user_claim, settings.identity.jwt.tenant_claim) == ("sub", "tid")
    assert settings.privacy.key == b"0123456789abcdef"
    rule = settings.rules[0]
    assert rule.when.header == {"x-app": "ide*"}
    assert rule.then.signals.tool is True
    assert rule.then.types == frozenset({MemoryType.SEMANTIC})
    metadata = Settings.model_validate({"identity": {"metadata": "ns:a.b", "metadata_tenant": "ns:t"}})
    assert look_up_metadata({"ns": {"a": {"b": "ann"}}}, metadata.identity.metadata) == "ann"
    assert metadata.privacy.key is None


# --- values ----------------------------------------------------------------------------------------
@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_reads_back_as_it_was_written(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(write_duration(duration)) == duration


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_reads_back_as_it_was_written(size: int) -> None:
    assert parse_size(write_size(size)) == size


@pytest.mark.parametrize(
    "text", ["", "5", "5 s", "s", "1.s", "-1s", "1w", "1e3s", "١s", "5S", None, 5, "9" * 400 + "d"]
)
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("address", "only_here"),
    [("127.0.0.2:1", True), ("[::1]:1", True), ("unix:/x", True), ("10.0.0.1:1", False), ("example.com:1", False)],
)
def test_only_this_machine_is_loopback(address: str, *, only_here: bool) -> None:
    assert on_loopback(address) is only_here


def test_an_operator_is_told_loudly_that_words_leave_for_a_collector() -> None:
    telemetry = {"otlp_endpoint": "http://collector:4317", "content": True}
    notices = Settings.model_validate({"telemetry": telemetry}).notices()
    (notice,) = [each for each in notices if "telemetry" in each]
    assert notice.startswith("telemetry.content: WHAT PEOPLE SAY")
    assert "http://collector:4317" in notice
    quiet = Settings.model_validate({"telemetry": {**telemetry, "content": False}})
    assert not [each for each in quiet.notices() if "telemetry" in each]


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ({"api": {"auth": ["none"]}}, "WHOEVER REACHES 127.0.0.1:50052"),
        (
            {"api": {"insecure": True}, "listen": {"api": "0.0.0.0:50052"}},
            "api.insecure: whoever listens on the way",
        ),
        ({"identity": {"user_header": "", "metadata": "auth:user"}}, "api.auth: nobody can call the memory API"),
        ({"coordination": {"url": "redis://redis:6379/0"}}, "api.secret: is empty"),
    ],
)
def test_an_operator_is_told_what_the_memory_api_lets_in(configured: dict[str, Any], expected: str) -> None:
    assert any(expected in notice for notice in Settings.model_validate(configured).notices())
    assert not any(expected in notice for notice in Settings().notices())


def test_the_memory_api_believes_the_tokens_that_chats_come_with_unless_it_is_told_otherwise() -> None:
    keys = {"jwks_file": "/keys.json", "issuer": "us", "audience": "chats"}
    settings = Settings.model_validate({"identity": {"jwt": {**keys, "tenant_claim": "org"}}})
    assert ways_of(settings.api, settings.identity) == ("jwt",)
    shared = settings.api_jwt
    assert (shared.jwks_file, shared.audience, shared.tenant_claim) == ("/keys.json", "chats", "org")
    own = {"auth": ["jwt"], "jwt": {**keys, "audience": "memory"}}
    settings = Settings.model_validate({"identity": {"jwt": keys}, "api": own})
    assert settings.api_jwt.audience == "memory"
    assert ways_of(Settings().api, Settings().identity) == ("trusted_proxy",)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/home/ann"}, "/home/ann/.local/share/memory-extproc"),
        ({"HOME": "/home/ann", "XDG_DATA_HOME": "/srv/data"}, "/srv/data/memory-extproc"),
        ({"HOME": "/home/ann", "XDG_DATA_HOME": "not/absolute"}, "/home/ann/.local/share/memory-extproc"),
        ({"HOME": "/home/ann", "MEMORY_EXTPROC__DATA_DIR": "/elsewhere"}, "/elsewhere"),
    ],
)
def test_data_goes_below_the_users_data_directory_unless_a_place_is_named(
    environ: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()  # of any project's
    assert load(None, environ).data_dir == expected


def test_a_directory_that_a_sidecar_made_here_stays_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock").touch()
    assert load(None, {"HOME": "/home/ann"}).data_dir == "./data"
