from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import Settings
from memory_extproc.settings.docs import keys_of
from memory_extproc.settings.loading import RELOADABLE, Fixed, merge_reload, reloadable, secret_files

FIXED = Fixed(patience=timedelta(seconds=1), message_bytes=64 << 20)
QWEN = {
    "model_role": "memory_extraction",
    "llm_endpoint": {"address": "qwen", "port": 8000, "access_key": "old"},
    "llm_model_name": "qwen3",
}


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


def test_what_may_change_is_taken_up_and_the_rest_waits_for_a_restart_by_name() -> None:
    change = merge_reload(
        settings(),
        settings(
            memory={"default_similarity_threshold": 0.9, "milvus": {"shards": 3}},
            rules=[{"when": {"tenant": "acme"}, "then": {"store": "skip"}}],
            data_dir="/elsewhere",
        ),
        FIXED,
    )
    assert set(change.changed) == {"memory.default_similarity_threshold", "rules"}
    assert set(change.waiting) == {"memory.milvus.shards", "data_dir"}
    assert change.settings.memory.default_similarity_threshold == 0.9
    assert change.settings.rules[0].when.tenant == "acme"
    assert (change.settings.memory.milvus.shards, change.settings.data_dir) == (64, "")


def test_what_a_process_works_with_follows_a_reload_though_it_was_used_before() -> None:
    running = settings()
    assert running.privacy.injection_patterns.match("my salary") is False
    assert (running.privacy.storage_rules.refusal("my salary"), running.deadline.total_seconds()) == ("", 0.15)
    wanted = settings(privacy={"never_inject": ["salary"], "never_store": ["salary"]}, recall={"deadline": "200ms"})
    applied = merge_reload(running, wanted, FIXED).settings
    assert applied.privacy.injection_patterns.match("my salary") is True
    assert applied.privacy.storage_rules.refusal("my salary")
    assert applied.deadline.total_seconds() == 0.2


def test_a_new_access_key_is_taken_up_though_its_model_may_not_change() -> None:
    endpoint = QWEN["llm_endpoint"]
    assert isinstance(endpoint, dict)
    renewed = {**QWEN, "llm_model_name": "qwen4", "llm_endpoint": {**endpoint, "access_key": "new"}}
    change = merge_reload(settings(external_models=[QWEN]), settings(external_models=[renewed]), FIXED)
    model = change.settings.external_models[0]
    assert (model.llm_endpoint.access_key.get_secret_value(), model.llm_model_name) == ("new", "qwen3")
    assert change.changed == ("external_models[0].llm_endpoint.access_key",)
    assert change.waiting == ("external_models[0].llm_model_name",)


@pytest.mark.parametrize("how", ["moved", "changed places"])
def test_a_key_that_came_with_another_server_is_not_told_to_the_one_in_use(how: str) -> None:
    mine = {**QWEN, "llm_endpoint": {"address": "mine", "port": 1, "access_key": "of mine"}}
    other = {
        **QWEN,
        "model_role": "memory_rewrite",
        "llm_endpoint": {"address": "other", "port": 1, "access_key": "of other"},
    }
    wanted = [other, mine] if how == "changed places" else [{**mine, "llm_endpoint": other["llm_endpoint"]}, other]
    change = merge_reload(settings(external_models=[mine, other]), settings(external_models=wanted), FIXED)
    told = {
        model.llm_endpoint.address: model.llm_endpoint.access_key.get_secret_value()
        for model in change.settings.external_models
    }
    assert told == {"mine": "of mine", "other": "of other"}
    assert not change
    assert "external_models[0].llm_endpoint.access_key" in change.waiting


def test_a_password_that_came_with_another_redis_waits_with_it() -> None:
    here = settings(coordination={"url": "redis://here:6379/0", "password": "old"})
    change = merge_reload(here, settings(coordination={"url": "redis://there:6379/0", "password": "new"}), FIXED)
    assert change.settings.coordination.password.get_secret_value() == "old"
    assert set(change.waiting) == {"coordination.url", "coordination.password"}


def test_another_number_of_models_waits_for_a_restart() -> None:
    change = merge_reload(settings(), settings(external_models=[QWEN]), FIXED)
    assert not change
    assert change.waiting == ("external_models",)


def test_a_value_that_needs_one_which_waits_is_refused_and_says_which() -> None:
    wanted = settings(recall={"settle": "900ms", "deadline": "950ms"}, envoy={"message_timeout": "10s"})
    assert merge_reload(settings(), wanted, FIXED).waiting == ("envoy.message_timeout",)
    wanted = settings(recall={"deadline": "5s"}, envoy={"message_timeout": "10s"})
    with pytest.raises(ConfigurationError) as refused:
        merge_reload(settings(), wanted, FIXED)
    (fault,) = refused.value.faults
    assert "recall.deadline: 5s is not below the message_timeout" in fault
    assert "envoy.message_timeout" in fault


def test_membership_cannot_be_opened_by_reload_without_the_source_that_verifies_it() -> None:
    scopes = {"project": {"recall": True}}
    jwt = {"jwks_file": "/keys", "issuer": "https://issuer", "audience": "memory", "projects_claim": "projects"}
    with pytest.raises(ConfigurationError, match=r"identity\.jwt: names no keys.*until a restart"):
        merge_reload(settings(), settings(scopes=scopes, identity={"jwt": jwt}), FIXED)
    wanted = settings(scopes=scopes, identity={"metadata_projects": "jwt:projects"})
    assert set(merge_reload(settings(), wanted, FIXED).changed) == {
        "scopes.project.recall",
        "identity.metadata_projects",
    }


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (
            {"learn": {"journal": {"wait": "600ms"}}, "recall": {"deadline": "900ms"}},
            "learn.journal.wait: 0.6s",
        ),
        ({"limits": {"request_body": "100MiB"}}, "limits.request_body: is above 67108864 bytes"),
    ],
)
def test_a_value_beyond_what_was_agreed_on_at_the_start_is_refused(wanted: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        merge_reload(settings(), settings(**wanted), FIXED)
    assert refused.value.faults[0].startswith(fault)


def test_what_is_fixed_is_what_the_process_started_with() -> None:
    started = settings(recall={"deadline": "1s"}, limits={"request_body": "20MiB"})
    assert Fixed.from_settings(started) == Fixed(patience=timedelta(seconds=4), message_bytes=80 << 20)


def test_another_source_of_identity_needs_a_restart_for_the_keys_it_needs() -> None:
    jwt = {"jwks_file": "/keys", "issuer": "https://issuer", "audience": "memory"}
    with pytest.raises(ConfigurationError, match=r"identity\.jwt: names no keys.*identity\.jwt\.jwks_file"):
        merge_reload(settings(), settings(identity={"jwt": jwt}), FIXED)
    change = merge_reload(
        settings(identity={"jwt": jwt}), settings(identity={"jwt": {**jwt, "audience": "other"}}), FIXED
    )
    assert change.changed == ("identity.jwt.audience",)


@pytest.mark.parametrize(
    ("key", "may"),
    [
        ("rules", True),
        ("rules[3].when.path", True),
        ("rules[].then.store", True),
        ("inject.as", True),
        ("external_models[2].llm_endpoint.access_key", True),
        ("external_models[2].llm_endpoint.address", False),
        ("identity.user_header", True),
        ("identity.jwt.jwks_file", False),
        ("privacy.hash_user_ids", False),
        ("memory.milvus.token", False),
        ("mode", True),
    ],
)
def test_a_key_says_whether_it_may_change(key: str, *, may: bool) -> None:
    assert reloadable(key) is may


def test_every_name_in_the_table_is_a_key_of_the_configuration() -> None:
    known = {key for key, _ in keys_of(Settings)}

    def stands_for(name: str) -> Iterator[str]:
        above = name.removesuffix("*")
        yield from (key for key in known if key == name or (above != name and f"{key}.".startswith(above)))
        yield from (key for key in known if above != name and key.replace("[]", "").startswith(above))

    assert not [name for name in RELOADABLE if not any(stands_for(name))]


def test_the_files_of_secrets_are_part_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "key").write_text("k3y")
    model = {**QWEN, "llm_endpoint": {"address": "q", "port": 1, "access_key_file": str(tmp_path / "key")}}
    configured = settings(
        memory={"milvus": {"address": "m:1", "token_file": str(tmp_path / "token")}}, external_models=[model]
    )
    assert set(secret_files(configured)) == {tmp_path / "token", tmp_path / "key"}
