"""A reranker in the whole sidecar: a model in process, or a language model at its endpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.inference.model_files import ModelKind, Precision
from memory_extproc.inference.prepare import parse_source, prepare
from tests.support.endpoint import Reply, StandIn, a_completion, an_error, serving
from tests.support.tiny_bert import write_tiny_bert
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

SAID = ("My budget for the Hawaii trip is $10,000.", "The Hawaii trip budget has to cover the flights.")
ASKED = "What's my budget for the Hawaii trip?"


async def remembers(whole: WholeStand) -> None:
    await whole.start()
    for words in SAID:
        await whole.say(words)


def asking(base_url: str, rerank: str = "llm") -> dict[str, Any]:
    address, _, port = base_url.removeprefix("http://").removesuffix("/v1").partition(":")
    model = {
        "model_role": "memory_rerank",
        "llm_model_name": "m",
        "llm_endpoint": {"address": address, "port": int(port)},
    }
    return {"recall": {"rerank": rerank}, "external_models": [model]}


async def test_a_language_model_may_only_say_in_which_order(whole: WholeStand) -> None:
    words = '{"order": [2, 1, 7], "notes": ["The budget is one million dollars"]}'
    async with serving([a_completion(words)]) as model:
        whole.changes = asking(model.base_url)
        await remembers(whole)
        answer = await whole.say(ASKED, x_memory_retrieve="force")
    assert answer.memory == "used;n=2;path=rerank"
    assert all(words in whole.shown for words in SAID)
    assert "million" not in whole.shown
    assert whole.sample("reranks_total", outcome="used") == 1
    assert whole.sample("llm_requests_total", role="memory_rerank", outcome="ok") == 1


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (an_error(500), "failed"),
        (a_completion("I like the second one best."), "failed"),
        (Reply(hangs=True), "late"),
    ],
    ids=["down", "nonsense", "silent"],
)
async def test_a_language_model_that_does_not_help_does_no_harm(
    whole: WholeStand, reply: Reply, outcome: str
) -> None:
    async with serving([reply]) as model:
        whole.changes = asking(model.base_url)
        await remembers(whole)
        answer = await whole.say(ASKED)
        assert answer.memory == "used;n=2;path=hybrid"
        assert whole.sample("reranks_total", outcome=outcome) == 1
        assert asked_once(model)


def asked_once(model: StandIn) -> bool:
    """In the read path there is no time for a second attempt."""
    return len(model.asked) == 1 and ASKED in json.dumps(model.asked[0]["messages"][1])


async def test_a_cross_encoder_reranks_in_process(whole: WholeStand, tmp_path: Path, int8_model_dir: Path) -> None:
    models = tmp_path / "models"
    source = parse_source(str(write_tiny_bert(tmp_path / "tiny", classes=1)))
    await asyncio.to_thread(
        lambda: prepare(
            source, Precision.INT8, models, kind=ModelKind.CROSS_ENCODER, force=False, say=lambda _: None
        )
    )
    (models / int8_model_dir.name).symlink_to(int8_model_dir)
    whole.changes = {
        "recall": {"rerank": "cross_encoder", "rerank_model": "tiny"},
        "memory": {"embedding": {"models_dir": str(models)}, "milvus": {"shards": 2}},
    }
    await remembers(whole)
    assert (await whole.say(ASKED)).memory == "used;n=2;path=rerank"
    assert whole.sample("recall_seconds_count", stage="rerank") == 1
