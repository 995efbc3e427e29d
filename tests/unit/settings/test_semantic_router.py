"""The vLLM semantic router's memory configuration is translated, key by key, and nothing is lost in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from memory_extproc.cli.root import app
from memory_extproc.errors import ConfigurationError
from memory_extproc.model.headers import Headers
from memory_extproc.request.policy import RuleFacts, Rules
from memory_extproc.settings import Settings, load
from memory_extproc.settings.semantic_router import Fate, import_configuration

ROUTER = """
version: v0.3
listeners: [{name: http, address: 0.0.0.0, port: 8899}]
providers: {defaults: {default_model: qwen}}
routing:
  decisions:
    - name: small talk
      plugins: [{type: memory, configuration: {enabled: false}}]
    - name: support
      plugins:
        - {type: header_mutation, configuration: {update: [{name: x-a, value: b}]}}
        - type: memory
          configuration: {enabled: true, retrieval_limit: 3, similarity_threshold: 0.7, auto_store: false}
    - {name: plain, plugins: []}
global:
  stores:
    memory:
      enabled: true
      backend: milvus
      auto_store: false
      disabled_routes: ["/v1/chat/completions/x*"]
      disabled_models: [tiny]
      milvus: {address: "milvus:19530", collection: agentic_memory, dimension: 384, num_partitions: 16}
      redis_cache: {enabled: true, address: "redis:6379", password: hunter2}
      embedding_model: bert
      default_retrieval_limit: 7
      default_similarity_threshold: 0.6
      hybrid_search: true
      reflection: {enabled: true, max_inject_tokens: 900, recency_decay_days: 30}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "router.yaml"
    path.write_text(text)
    return path


def test_the_routers_own_file_starts_us_and_a_notice_says_what_became_of_each_key(tmp_path: Path) -> None:
    settings = load(written(tmp_path, ROUTER), {})
    assert not settings.memory.auto_store
    assert settings.memory.milvus.address == "milvus:19530"
    assert settings.memory.default_retrieval_limit == 7
    assert settings.inject.token_budget == 900
    assert settings.recall.half_life.days == 30
    rules = settings.rules
    assert [(rule.when.path, rule.when.model, dict(rule.when.header)) for rule in rules] == [
        ("/v1/chat/completions/x[*]", "", {}),
        ("", "tiny", {}),
        ("", "", {"x-memory-decision": "small talk"}),
        ("", "", {"x-memory-decision": "support"}),
    ]
    assert (rules[2].then.retrieve, rules[2].then.store) == ("skip", "skip")
    assert (rules[3].then.limit, rules[3].then.threshold, rules[3].then.store) == (3, 0.7, "skip")
    told = "\n".join(settings.notices())
    for key in ("embedding_model", "num_partitions", "redis_cache", "max_inject_tokens", "x-memory-decision"):
        assert key in told
    assert "hunter2" not in told


def test_what_an_operator_would_miss_is_refused_at_a_start_and_ends_the_import_with_1(tmp_path: Path) -> None:
    lossy = ROUTER.replace("backend: milvus", "backend: milvus\n      quality_scoring: {max_memories_per_user: 9}")
    lossy = lossy.replace("backend: milvus", "backend: qdrant")
    with pytest.raises(ConfigurationError) as caught:
        load(written(tmp_path, lossy), {})
    assert {fault.partition(":")[0] for fault in caught.value.faults} == {
        "global.stores.memory.backend", "global.stores.memory.quality_scoring.max_memories_per_user",
    }  # fmt: skip
    ran = CliRunner().invoke(app, ["config", "import", "--from", "semantic-router", str(written(tmp_path, lossy))])
    assert ran.exit_code == 1
    assert "max_memories_per_user" in ran.stderr


def test_what_the_import_writes_is_a_configuration_of_ours(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["config", "import", str(written(tmp_path, ROUTER))])
    assert ran.exit_code == 0, ran.stderr
    assert "hunter2" not in ran.output + ran.stderr
    ours = tmp_path / "ours.yaml"
    ours.write_text(ran.stdout)
    assert load(ours, {}).model_dump() == load(written(tmp_path, ROUTER), {}).model_dump()


def test_an_older_memory_block_keeps_what_is_ours_and_gives_up_what_is_harmless(tmp_path: Path) -> None:
    old = {
        "memory": {
            "enabled": True, "embedding_model": "mmbert", "hybrid_mode": "rrf", "disabled_models": ["m"],
            "milvus": {"address": "m:1", "num_partitions": 4}, "reflection": {"max_inject_tokens": 100},
        },
        "inject": {"token_budget": 300},
        "rules": [{"when": {"tenant": "t"}, "then": {"limit": 1}}],
    }  # fmt: skip
    settings = load(written(tmp_path, yaml.safe_dump(old)), {})
    assert settings.inject.token_budget == 300  # what our own key says counts
    assert [rule.when.tenant or rule.when.model for rule in settings.rules] == ["t", "m"]
    with pytest.raises(ConfigurationError, match="unknown key; did you mean auto_store"):
        load(written(tmp_path, "memory: {auto_stor: true}"), {})


@pytest.mark.parametrize(
    ("memory", "fault"),
    [
        ("7", "global.stores.memory: expected a mapping"),
        ("{disabled_routes: 3}", "global.stores.memory.disabled_routes: expected a list"),
        ("{reflection: {recency_decay_days: soon}}", "recency_decay_days: expected a number of days above 0"),
        ("{disabled_models: [3]}", "global.stores.memory.disabled_models[0]: expected a name"),
        ("{brand_new: 1}", "a key that this version does not know"),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused_with_the_place(
    tmp_path: Path, memory: str, fault: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(written(tmp_path, f"global: {{stores: {{memory: {memory}}}}}"), {})
    assert fault in str(caught.value)


def test_a_file_of_the_routers_without_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no memory configuration found"):
        load(written(tmp_path, "providers: {}"), {})


def test_every_key_of_the_router_gets_a_row() -> None:
    found = import_configuration(yaml.safe_load(ROUTER))
    assert all(row.note for row in found.rows)
    assert Fate.LOST not in {row.fate for row in found.rows}


MODEL = {
    "llm_provider": "vllm", "model_role": "memory_extraction", "access_key": "hunter2",
    "llm_endpoint": {"address": "llm", "port": 8000, "protocol": "http", "use_chat_template": True},
    "llm_model_name": "qwen3", "llm_timeout_seconds": 30, "parser_type": "json",
}  # fmt: skip
GUARD = {"llm_provider": "vllm", "model_role": "guardrail", "llm_endpoint": {}, "threshold": 0.7}
MEMORY = {"enabled": True, "auto_store": True, "milvus": {"address": "m:19530", "dimension": 384}}
REFLECTION = {
    "enabled": True, "algorithm": "recency_semantic", "max_inject_tokens": 384, "recency_decay_days": 14,
    "dedup_threshold": 0.9, "block_patterns": ["api key", "password"],
}  # fmt: skip
# The forms of the examples in its source (config/, e2e/config, e2e/profiles), versions v0.1 to v0.3.
FORMS = {
    "v0.3 with models": {"global": {"stores": {"memory": MEMORY}, "model_catalog": {"external": [MODEL, GUARD]}}},
    "models alone": {"global": {"model_catalog": {"external": [MODEL]}}, "routing": {"decisions": []}},
    "older, flat": {"memory": {**MEMORY, "embedding_model": "mmbert"}, "external_models": [MODEL, GUARD]},
    "older decisions": {
        "providers": {}, "memory": MEMORY,
        "decisions": [{"name": "a", "plugins": [{"type": "memory", "configuration": {"enabled": False}}]}],
    },
    # config/testing/config.memory-user.yaml: the command line's own form.
    "v0.1, models under providers": {
        "version": "v0.1",
        "decisions": [],
        "providers": {
            "external_models": [
                {
                    "provider": "vllm", "role": "memory_extraction", "endpoint": "172.17.0.1:8000",
                    "model_name": "qwen3", "timeout_seconds": 30, "access_key": "hunter2",
                },
            ],
        },
        "memory": MEMORY,
    },
    # config/testing/config.memory-hierarchical.yaml: the router's own form before v0.3.
    "native, with a hierarchy of categories": {
        "bert_model": {"model_id": "b"}, "vllm_endpoints": [], "model_config": {}, "categories": [],
        "decisions": [{"name": "a", "plugins": [{"type": "memory", "configuration": {
            "enabled": True, "hierarchical_search": True, "max_depth": 3, "hybrid_search": True,
        }}]}],
        "memory": {**MEMORY, "extraction_batch_size": 1},
        "external_models": [MODEL],
    },
    "v0.4, with every key of its reference": {
        "version": "v0.3",
        "global": {
            "stores": {
                "memory": {
                    **MEMORY, "backend": "milvus", "disabled_routes": [], "disabled_models": [],
                    "valkey": {"host": "v", "password": "hunter2"}, "qdrant": {"api_key": "hunter2"},
                    "hybrid_search": True, "hybrid_mode": "rerank", "adaptive_threshold": True,
                    "reflection": REFLECTION, "persistence": {"timeout_seconds": 30, "queue": 64},
                },
            },
            "model_catalog": {
                "external": [
                    {**MODEL, "max_request_bytes": 1, "max_response_bytes": 1, "reasoning": {"family": "q"}},
                ],
            },
        },
        "recipes": [
            {"name": "default", "routing": {"decisions": [{"name": "a", "plugins": [
                {"type": "memory", "configuration": {"enabled": True, "reflection": REFLECTION}},
            ]}]}},
        ],
    },
    "the values of its chart, with Helm's global": {
        "global": {"namespace": "", "imageRegistry": ""},
        "config": {"global": {"stores": {"memory": MEMORY}, "model_catalog": {"external": [MODEL]}}},
    },
    "an older embedding section": {
        "global": {}, "memory": {**MEMORY, "embedding": {"model": "mmbert", "dimension": 384}},
    },
    "a plugin without settings": {"routing": {"decisions": [{"name": "a", "plugins": [{"type": "memory"}]}]}},
    "null in place of sections": {"global": {"stores": {"memory": MEMORY}}, "routing": None, "listeners": None},
    "redis beside milvus": {
        "global": {"stores": {"memory": {**MEMORY, "redis_cache": {"enabled": True, "password": "hunter2"}}}}
    },
}  # fmt: skip
REFUSED = {
    "valkey": ({"global": {"stores": {"memory": {"backend": "valkey", "valkey": {"host": "v"}}}}}, "only store"),
    "qdrant": ({"global": {"stores": {"memory": {"backend": "qdrant", "qdrant": {"host": "q"}}}}}, "only store"),
    "no memory": ({"providers": {}, "routing": {"decisions": [{"name": "a"}]}}, "no memory configuration found"),
    "a fragment": ({"plugin": {"type": "memory", "configuration": {"enabled": True}}}, "a part of a decision"),
    "several documents": ("a: 1\n---\nb: 2\n", "expected a single document"),
    "a key of a plugin that nobody knows": (
        {"decisions": [{"name": "a", "plugins": [{"type": "memory", "configuration": {"forgetful": 1}}]}]},
        "decisions[0]: memory.forgetful: a key that this version does not know",
    ),
    "no endpoint": (
        {"providers": {"external_models": [{"role": "memory_rewrite", "endpoint": 7}]}, "memory": MEMORY},
        "providers.external_models[0].endpoint: expected host:port",
    ),
    "no YAML": ("memory: [", "router.yaml"),
    "text": ("hunter2", "router.yaml"),
}


@pytest.mark.parametrize("form", list(FORMS))
def test_every_form_of_its_examples_is_imported_and_no_secret_is_printed(tmp_path: Path, form: str) -> None:
    router = written(tmp_path, yaml.safe_dump(FORMS[form]))
    ran = CliRunner().invoke(app, ["config", "import", str(router)])
    assert ran.exit_code == 0, ran.stderr
    assert "hunter2" not in ran.output + ran.stderr
    ours = tmp_path / "ours.yaml"
    ours.write_text(ran.stdout)
    load(ours, {})
    settings = load(router, {})
    assert bool(settings.external_models) is ("memory_extraction" in router.read_text())
    for model in settings.external_models:
        assert (model.model_role, model.llm_endpoint.access_key.get_secret_value()) == (
            "memory_extraction", "hunter2",
        )  # fmt: skip


@pytest.mark.parametrize("form", list(REFUSED))
def test_an_example_that_cannot_be_imported_is_refused_with_the_reason(tmp_path: Path, form: str) -> None:
    text, reason = REFUSED[form]
    router = written(tmp_path, text if isinstance(text, str) else yaml.safe_dump(text))
    with pytest.raises(ConfigurationError) as caught:
        load(router, {})
    assert reason in str(caught.value)
    ran = CliRunner().invoke(app, ["config", "import", str(router)])
    assert ran.exit_code in {1, 2}
    assert "hunter2" not in ran.output + ran.stderr + str(caught.value)


def test_sections_of_ours_in_the_routers_file_are_refused_and_not_ignored(tmp_path: Path) -> None:
    mixed = written(tmp_path, ROUTER + "privacy: {hash_subjects: true}\nrules: []\n")
    with pytest.raises(ConfigurationError) as caught:
        load(mixed, {})
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["privacy", "rules"]
    assert "config import" in str(caught.value)


OFF = {"type": "memory", "configuration": {"enabled": False}}
TWO_RECIPES = {
    "version": "v0.3",
    "routing": {"modelCards": []},
    "recipes": [
        {"name": "open", "routing": {"decisions": [{"name": "plain"}, {"name": "guard", "plugins": []}]}},
        {
            "name": "vault",
            "routing": {"decisions": [{"name": "guard", "plugins": [OFF]}, {"name": "private", "plugins": [OFF]}]},
        },
    ],
    "global": {"stores": {"memory": MEMORY}},
}  # fmt: skip


def test_decisions_of_recipes_become_rules_and_equal_names_are_told_apart(tmp_path: Path) -> None:
    settings = load(written(tmp_path, yaml.safe_dump(TWO_RECIPES)), {})
    rules = settings.rules
    assert [dict(rule.when.header) for rule in rules] == [
        {"x-memory-decision": "vault/guard"}, {"x-memory-decision": "private"},
    ]  # fmt: skip
    assert {(rule.then.retrieve, rule.then.store) for rule in rules} == {("skip", "skip")}


def test_the_values_of_its_chart_are_read_like_the_file_inside_them(tmp_path: Path) -> None:
    values = {"replicaCount": 2, "config": yaml.safe_load(ROUTER)}
    plain = load(written(tmp_path, ROUTER), {})
    assert load(written(tmp_path, yaml.safe_dump(values, sort_keys=False)), {}).model_dump() == plain.model_dump()


@pytest.mark.parametrize("kind", ["ConfigMap", "IntelligentRoute", "SemanticRouter"])
def test_a_kubernetes_object_is_refused_by_its_kind(tmp_path: Path, kind: str) -> None:
    router = written(tmp_path, yaml.safe_dump({"apiVersion": "v1", "kind": kind, "spec": {"decisions": []}}))
    with pytest.raises(ConfigurationError, match=f"{kind}: a Kubernetes object"):
        load(router, {})
    ran = CliRunner().invoke(app, ["config", "import", str(router)])
    assert ran.exit_code == 2
    assert kind in ran.stderr


def test_a_decision_that_has_memory_while_the_rest_has_none_is_the_only_one_with_memory(tmp_path: Path) -> None:
    tree = yaml.safe_load(ROUTER)
    tree["global"]["stores"]["memory"]["enabled"] = False
    settings = load(written(tmp_path, yaml.safe_dump(tree)), {})
    rules = Rules(settings.rules)

    def then_of(decision: str) -> tuple[str, str]:
        then = rules.first(
            RuleFacts(path="/v1/chat/completions", headers=Headers([("x-memory-decision", decision)]))
        )
        return then.retrieve, then.store

    assert settings.memory.enabled
    assert then_of("support") == ("default", "skip")
    assert then_of("small talk") == then_of("plain") == then_of("") == ("skip", "skip")


def test_a_file_that_does_not_switch_memory_on_leaves_it_off_but_for_decisions_that_do(tmp_path: Path) -> None:
    def started(**plugin: Any) -> Settings:
        decision = {"name": "a", "plugins": [{"type": "memory", "configuration": plugin}]}
        tree = {"global": {"stores": {"memory": {"embedding_model": "bert"}}}, "routing": {"decisions": [decision]}}
        return load(written(tmp_path, yaml.safe_dump(tree)), {})

    off = started(enabled=False)
    assert (off.memory.enabled, off.memory.auto_store) == (False, False)
    assert any("global.stores.memory.enabled" in notice for notice in off.notices())
    one = started(enabled=True, auto_store=True)
    assert one.memory.enabled
    rules = one.rules
    assert [(dict(rule.when.header), rule.then.retrieve, rule.then.store) for rule in rules] == [
        ({"x-memory-decision": "a"}, "default", "force"), ({}, "skip", "skip"),
    ]  # fmt: skip


def test_what_a_decision_says_of_reflection_beside_its_budget_is_not_lost_in_silence() -> None:
    reflection = {"max_inject_tokens": 100, "block_patterns": ["x"], "recency_decay_days": 3, "enabled": True}
    plugin = {
        "type": "memory",
        "configuration": {"enabled": True, "reflection": reflection, "adaptive_threshold": True},
    }
    tree: dict[str, Any] = {
        "routing": {"decisions": [{"name": "a", "plugins": [plugin]}]},
        "global": {"stores": {"memory": {"enabled": True}}},
    }
    found = import_configuration(tree)
    fates = {row.key.rpartition(": memory.")[2]: row.fate for row in found.rows}
    assert fates["reflection.block_patterns"] is fates["reflection.recency_decay_days"] is Fate.LOST
    assert fates["reflection.enabled"] is fates["adaptive_threshold"] is Fate.BUILT_IN
    assert found.settings["rules"][0]["then"] == {"token_budget": 100}
    tree["global"] = {"stores": {"memory": {"reflection": {"block_patterns": ["x"], "recency_decay_days": 3}}}}
    assert not import_configuration(tree).lost, "it says the same as for all requests"


def test_a_plugin_that_does_not_say_enabled_switches_memory_off_as_in_the_router(tmp_path: Path) -> None:
    plugin = {"type": "memory", "configuration": {"retrieval_limit": 3}}
    tree = {
        "routing": {"decisions": [{"name": "a", "plugins": [plugin]}]},
        "global": {"stores": {"memory": MEMORY}},
    }
    (rule,) = load(written(tmp_path, yaml.safe_dump(tree)), {}).rules
    assert (rule.then.retrieve, rule.then.store) == ("skip", "skip")


def test_zero_and_null_stand_for_a_default_and_not_for_a_limit_of_nothing(tmp_path: Path) -> None:
    configuration = {"enabled": True, "similarity_threshold": 0, "retrieval_limit": None, "auto_store": None}
    memory = {
        "enabled": True, "default_retrieval_limit": 0, "default_similarity_threshold": 0.0, "valkey": None,
        "milvus": None, "reflection": {"max_inject_tokens": 0, "recency_decay_days": 0, "block_patterns": None},
    }  # fmt: skip
    model = {**MODEL, "max_tokens": 0, "temperature": 0, "llm_timeout_seconds": 0}
    tree = {
        "routing": {"decisions": [{"name": "a", "plugins": [{"type": "memory", "configuration": configuration}]}]},
        "global": {"stores": {"memory": memory}, "model_catalog": {"external": [model]}},
    }
    ours, defaults = load(written(tmp_path, yaml.safe_dump(tree)), {}), load(None, {})
    assert ours.memory.default_similarity_threshold == defaults.memory.default_similarity_threshold
    assert ours.memory.default_retrieval_limit == defaults.memory.default_retrieval_limit
    assert (ours.inject, ours.recall, ours.rules) == (defaults.inject, defaults.recall, ())
    (found,) = ours.external_models
    assert (found.max_tokens, found.temperature, found.llm_timeout_seconds) == (500, 0.1, 30)


def test_an_imported_value_that_is_not_valid_here_ends_the_import_with_1_and_its_place(tmp_path: Path) -> None:
    text = "version: v9.9\nmemory: {default_retrieval_limit: many, milvus: {password: hunter2}}\n"
    ran = CliRunner().invoke(app, ["config", "import", str(written(tmp_path, text))])
    assert ran.exit_code == 1
    assert "memory.default_retrieval_limit: " in ran.stderr
    assert "read as v0.3" in ran.stderr
    assert "hunter2" not in ran.output + ran.stderr
