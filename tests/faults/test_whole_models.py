"""Models that fail, hang or talk nonsense: requests pass, and what was said is learned by what is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from memory_extproc.settings.memory import Embedding
from tests.support.endpoint import Reply, StandIn, a_completion, an_error, serving
from tests.support.faults import ASKED, BUDGET, FaultStand, a_model, embeddings
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

OUTAGE: Sequence[Reply] = (an_error(503),)
HANGS: Sequence[Reply] = (Reply(hangs=True),)


def embedded_at(endpoint: StandIn) -> dict[str, Any]:
    embedding = {"provider": "openai", "endpoint": endpoint.base_url, "model": "m", "dimension": 8}
    return {"embedding": {**embedding, "timeout": "300ms"}, "milvus": {"dimension": 8}}


async def test_without_a_model_words_decide_and_readyz_the_metric_and_one_log_line_say_so(
    faulty: FaultStand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the default models_dir is relative
    faulty.change(memory={"embedding": {"models_dir": Embedding().models_dir}})
    await faulty.start()
    assert await faulty.http("/readyz") == (200, "ready\ncalibration: words\n")
    states = {state: faulty.sample("calibration", calibration=state) for state in ("fitted", "aligned", "words")}
    assert states == {"fitted": 0, "aligned": 0, "words": 1}
    assert len(faulty.logs.of("embedding.words_alone")) == 1
    assert not faulty.logs.said("recall.weights_not_fitted")
    await faulty.say(BUDGET)
    await until(lambda: faulty.kept == 1, "what was said is stored")
    assert (await faulty.say(ASKED)).memory.startswith("used")


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        (OUTAGE, "failed"),
        (HANGS, "timeout"),
        ((Reply("not JSON"),), "malformed"),
        ((an_error(401),), "rejected"),
        ((an_error(403),), "rejected"),
        ((an_error(404),), "rejected"),
    ],
    ids=["down", "hangs", "malformed", "key expired", "not allowed", "no such model"],
)
async def test_an_embedder_that_fails_costs_no_request_and_is_caught_up_with(
    faulty: FaultStand, replies: Sequence[Reply], outcome: str
) -> None:
    async with serving(replies) as endpoint:
        # The endpoint's faults are none of the turn's: it is not given up on for them.
        faulty.change(memory=embedded_at(endpoint), learn={"extractor": "off", "max_attempts": 1})
        # Time to see that there is nothing, on a busy machine too.
        faulty.change(recall={"deadline": "1800ms", "settle": "1500ms"})
        await faulty.start()
        assert (await faulty.http("/readyz"))[1].startswith("ready\n")
        assert (await faulty.say(BUDGET)).memory == "empty"
        assert faulty.shown == BUDGET
        assert (faulty.sample("recall_path_total", path="lexical"), faulty.journalled) == (1, 1)
        assert faulty.logs.said("recall.embedding_failed") or faulty.logs.said("recall.embedding_late")
        await until(
            lambda: faulty.sample("llm_requests_total", role="embedding", outcome=outcome) >= 2,
            "the recall's and the learner's failures are counted",
        )
        assert faulty.logs.of("llm.failed")[0]["outcome"] == outcome
        endpoint.replies = embeddings(8)
        await until(lambda: faulty.kept == 1, "what was said meanwhile is stored", seconds=10)
        await faulty.say(BUDGET, x_memory_retrieve="force")
        assert faulty.sample("recall_path_total", path="lexical") == 1


async def test_an_embedder_known_to_be_down_is_not_waited_for(faulty: FaultStand) -> None:
    async with serving(OUTAGE) as endpoint:
        faulty.change(memory=embedded_at(endpoint))
        await faulty.start()
        for number in range(8):
            await faulty.say(f"Where is hotel number {number}?")
        assert faulty.sample("llm_requests_total", role="embedding", outcome="open") > 0
        assert faulty.sample("recall_path_total", path="lexical") == 8
        assert len(endpoint.asked) <= 5


async def test_while_the_embedder_is_down_memories_are_found_by_their_words(faulty: FaultStand) -> None:
    async with serving(embeddings(8)) as endpoint:
        faulty.change(memory=embedded_at(endpoint))
        await faulty.start()
        await faulty.say(BUDGET)
        await until(lambda: faulty.kept == 1, "what was said is stored", seconds=10)
        endpoint.replies = OUTAGE
        assert (await faulty.say("What's my budget for the trip to Hawaii?")).memory == "used;n=1;path=lexical"
        assert "$10,000" in faulty.shown


async def test_vectors_of_another_length_than_configured_are_not_stored(faulty: FaultStand) -> None:
    async with serving(embeddings(9)) as endpoint:
        faulty.change(memory=embedded_at(endpoint))
        faulty.change(learn={"max_attempts": 1})
        await faulty.start()
        assert (await faulty.say(BUDGET)).memory == "empty"
        await until(lambda: faulty.logs.said("learn.failed"), "it is logged")
        (told,) = faulty.logs.of("recall.embedding_failed")
        assert "9 dimensions, configured are 8" in told["detail"]
        assert faulty.kept == 0


def proposing(**changes: Any) -> Sequence[Reply]:
    """A model's answer with one fact, sound but for *changes*."""
    fact = {
        "fact": "User's budget for the Wailea is $10,000",
        "type": "semantic",
        "subject": "Wailea",
        "attribute": "budget",
        "value": "$10,000",
        "turn": 1,
    }
    return (a_completion(json.dumps({"facts": [{**fact, **changes}]})),)


@pytest.mark.parametrize(
    ("replies", "outcome", "event"),
    [
        (OUTAGE, "unavailable", "llm.failed"),
        (HANGS, "unavailable", "llm.failed"),
        ((a_completion("I think the user likes Wailea."),), "failed", "extract.fallback"),
        (proposing(turn=7), "failed", "extract.fallback"),
        (proposing(owner="bob"), "failed", "extract.fallback"),
        ((a_completion('{"facts": [{"fact": "User loves Wailea", "type": "sem'),), "failed", "extract.fallback"),
        ((Reply("<html>Wailea</html>"),), "unavailable", "llm.failed"),
    ],
    ids=["down", "slow", "prose", "wrong turn", "unknown field", "cut off", "html"],
)
async def test_facts_are_found_by_rules_while_the_model_cannot(
    faulty: FaultStand, replies: Sequence[Reply], outcome: str, event: str
) -> None:
    async with serving(replies) as endpoint:
        faulty.change(external_models=[a_model(endpoint, llm_timeout_seconds=0.2)])
        await faulty.start()
        assert (await faulty.say(BUDGET, x_memory_session="end")).status == 200
        await until(
            lambda: faulty.sample("reconcile_total", decision="added") == 1, "the fact is there", seconds=15
        )
        extractions = {
            extractor: faulty.sample("extractions_total", extractor=extractor, outcome=what)
            for extractor, what in (("llm", outcome), ("rules", "done"))
        }
        assert extractions["llm"] >= 1  # one that is away is asked again
        assert extractions["rules"] == 1
        assert faulty.logs.said("extract.stand_in" if outcome == "unavailable" else "extract.fallback")
        assert faulty.logs.said(event)
        known = await faulty.memories()
        assert any(memory.startswith("User's budget") for memory in known)
        assert "Wailea" not in str(known)


async def test_a_slow_extraction_keeps_nobody_waiting_and_is_taken_up_after_a_restart(faulty: FaultStand) -> None:
    async with serving(HANGS) as endpoint:
        faulty.change(external_models=[a_model(endpoint, llm_timeout_seconds=30)], shutdown={"flush": "100ms"})
        await faulty.start()
        await faulty.say(BUDGET, x_memory_session="end")
        await until(lambda: len(endpoint.asked) == 1, "the extraction waits")
        assert (await faulty.say(ASKED, x_memory_store="skip")).memory.startswith("used")
        assert "$10,000" in faulty.shown
        await faulty.stop_sidecar()
        assert faulty.logs.said("learn.drain_cut_short")
        faulty.change(learn={"extractor": "rules", "session_idle": "10ms"})
        await faulty.start_sidecar()
        await until(
            lambda: faulty.sample("reconcile_total", decision="added") == 1, "the fact is there", seconds=10
        )
        assert sum(BUDGET in one for one in await faulty.memories()) == 1


@pytest.mark.parametrize("replies", [OUTAGE, HANGS, (Reply("nonsense"),)], ids=["down", "slow", "malformed"])
async def test_a_model_in_the_read_path_that_fails_leaves_the_plain_query(
    faulty: FaultStand, replies: Sequence[Reply]
) -> None:
    async with serving(replies) as endpoint:
        rewriting = a_model(endpoint, "memory_rewrite", llm_timeout_seconds=20)
        faulty.change(external_models=[rewriting], recall={"query_rewrite": "always", "hyde": True})
        await faulty.start()
        await faulty.say(BUDGET)
        assert (await faulty.say(ASKED)).memory == "used;n=1;path=hybrid"
        assert "$10,000" in faulty.shown
        assert faulty.logs.said("query.rewrite_failed")
        assert endpoint.asked


async def test_once_a_callers_tokens_are_spent_the_rules_serve_them_and_the_model_others(
    faulty: FaultStand,
) -> None:
    async with serving((a_completion('{"facts": []}'),)) as endpoint:
        faulty.change(
            external_models=[a_model(endpoint)],
            learn={"model_tokens": {"caller_hour": 1}},
            memory={"extraction_batch_size": 1},
        )
        await faulty.start()
        await faulty.say(BUDGET)
        done = {"extractor": "llm", "outcome": "done"}
        await until(lambda: faulty.sample("extractions_total", **done) == 1, "the model was asked", seconds=15)
        await faulty.say("I live in Paris.")
        await until(
            lambda: faulty.sample("reconcile_total", decision="added") == 1, "the fact is there", seconds=15
        )
        assert faulty.sample("extractions_total", extractor="llm", outcome="over_budget") == 1
        await faulty.say("I live in Rome.", user="bob")
        await until(lambda: faulty.sample("extractions_total", **done) == 2, "another's turn", seconds=15)
        assert len(endpoint.asked) == 2


async def test_facts_of_the_rules_are_read_by_the_model_once_it_is_back(faulty: FaultStand) -> None:
    async with serving(OUTAGE) as endpoint:
        faulty.change(external_models=[a_model(endpoint)], memory={"extraction_batch_size": 1})
        await faulty.start()
        await faulty.say(BUDGET)
        await until(
            lambda: faulty.sample("reconcile_total", decision="added") == 1, "the rules' fact is there", seconds=15
        )
        (fact,) = [one for one in await faulty.memories() if one.startswith("User's budget")]
        endpoint.replies = proposing(fact=fact, attribute="money for the journey", subject="user", value="$10,000")
        done = {"extractor": "llm", "outcome": "done"}
        await until(lambda: faulty.sample("extractions_total", **done) == 1, "the model has read it", seconds=30)
        await until(
            lambda: faulty.sample("reconcile_total", decision="known") == 1, "it found what is known", seconds=10
        )
        assert sum(one == fact for one in await faulty.memories()) == 1


@pytest.mark.parametrize(
    ("replies", "usable"),
    [((a_completion('{"answer": 4}'),), 1), (HANGS, 0), (OUTAGE, 0)],
    ids=["answers", "hangs", "down"],
)
async def test_a_probe_says_whether_a_model_can_be_used_and_holds_up_nothing(
    faulty: FaultStand, replies: Sequence[Reply], usable: int
) -> None:
    async with serving(replies) as endpoint:
        endpoint.scripts_probes = True
        faulty.change(external_models=[a_model(endpoint)])
        await faulty.start()
        assert (await faulty.http("/readyz"))[1].startswith("ready\n")
        assert (await faulty.say(BUDGET)).memory == "empty"
        await until(lambda: faulty.logs.of("llm.probed"), "the probe has come to its end", seconds=15)
        assert [line["usable"] for line in faulty.logs.of("llm.probed")] == [bool(usable)]
        assert faulty.sample("llm_usable", role="memory_extraction") == usable
