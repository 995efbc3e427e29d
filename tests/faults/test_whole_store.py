"""Milvus away, silent or not ours: requests pass, nobody waits for long, and nothing that was said is lost."""

from __future__ import annotations

from typing import Any

import pytest

from memory_extproc.settings.memory import Milvus
from memory_extproc.store.milvus.client import connect
from memory_extproc.store.milvus.options import MilvusOptions
from tests.support.endpoint import serving
from tests.support.faults import ASKED, BUDGET, FaultStand, Link, embeddings
from tests.support.waiting import until

pytestmark = pytest.mark.envoy


def at(link: Link, collection: str) -> dict[str, Any]:
    return {"milvus": {"address": f"127.0.0.1:{link.port}", "collection": collection}}


async def test_a_sidecar_starts_without_milvus_serves_and_stores_its_backlog_when_milvus_comes(
    faulty: FaultStand, link: Link
) -> None:
    await link.cut()
    faulty.change(memory=at(link, "late"))
    await faulty.start()
    assert (await faulty.http("/readyz"))[1].startswith("ready\n")
    assert (await faulty.say(BUDGET)).memory == "unavailable"
    assert faulty.shown == BUDGET
    assert (faulty.exchanges("unavailable"), faulty.journalled) == (1, 1)
    assert faulty.sample("store_up") == 0
    assert faulty.logs.said("store.not_open")
    assert faulty.logs.said("store.down")
    await link.mend()
    await until(lambda: faulty.kept == 1, "the backlog is stored", seconds=15)
    await until(lambda: faulty.sample("store_up") == 1, "writes and reads are known to work")
    assert [faulty.logs.said(event) for event in ("store.open", "store.up")] == [True, True]
    await faulty.restart()  # so that only Milvus can tell
    assert (await faulty.say(ASKED)).memory.startswith("used")
    assert "$10,000" in faulty.shown


@pytest.mark.parametrize("how", ["stalled", "cut"])
async def test_a_milvus_that_goes_away_later_costs_memories_and_no_request(
    faulty: FaultStand, link: Link, how: str
) -> None:
    faulty.change(memory=at(link, f"later_{how}"))
    await faulty.start()
    assert (await faulty.say("My sister lives in Hawaii since March.")).memory == "empty"
    await until(lambda: faulty.kept == 1, "it is stored")
    if how == "cut":
        await link.cut()
    else:
        link.stall()
    # What is held in process still serves; who is not held there has no memory for now.
    assert (await faulty.say("Where does my sister live?")).memory.startswith("used")
    for user in ("bob", "carol"):
        answer = await faulty.say(ASKED, user=user)
        assert answer.memory in {"unavailable", "out_of_time"}
        assert faulty.shown == ASKED
    assert faulty.journalled == 4
    await faulty.say(BUDGET)
    await until(lambda: faulty.logs.said("store.down"), "it is known that Milvus is down")
    assert faulty.sample("store_up") == 0
    assert faulty.logs.said("recall.unavailable")
    # Our own write is known at once though the store could not take it.
    assert (await faulty.say(ASKED)).memory.startswith("used")
    await link.mend()
    await until(lambda: faulty.kept == 2, "what was said meanwhile is stored", seconds=20)
    await until(lambda: faulty.sample("store_up") == 1, "writes and reads are known to work again")
    await faulty.restart()
    await faulty.say(ASKED)
    assert "$10,000" in faulty.shown


async def test_a_request_does_not_wait_for_a_store_known_to_be_down(faulty: FaultStand, link: Link) -> None:
    faulty.change(memory=at(link, "breaker"))
    await faulty.start()
    link.stall()
    await until(lambda: _refused(faulty), "the breaker refuses")
    assert (await faulty.say(ASKED, user="carol")).memory == "unavailable"


async def test_a_sidecar_that_leaves_while_milvus_is_away_leaves_its_backlog_to_the_next(
    faulty: FaultStand, link: Link
) -> None:
    faulty.change(memory=at(link, "leaving"), shutdown={"flush": "300ms"})
    await faulty.start()
    await link.cut()
    await faulty.say(BUDGET)
    assert faulty.journalled == 1
    await faulty.stop_sidecar()
    await link.mend()
    await faulty.start_sidecar()
    await until(lambda: faulty.kept == 1, "the backlog is stored", seconds=10)
    assert (await faulty.memories()).count(BUDGET) == 1


async def test_a_journal_that_is_full_while_milvus_is_away_says_so_and_takes_in_again_later(
    faulty: FaultStand, link: Link
) -> None:
    # Whether there is room is known before the answer goes on, on a busy machine too.
    faulty.change(memory=at(link, "full"), learn={"journal": {"max_turns": 1, "wait": "900ms"}, "extractor": "off"})
    await faulty.start()
    await link.cut()
    await faulty.say(BUDGET)
    assert (await faulty.say("My sister lives in Hawaii since March.")).status == 200
    assert (faulty.journalled, faulty.turns("journal_full")) == (1, 1)
    assert [entry["outcome"] for entry in faulty.logs.of("journal.refuses")] == ["journal_full"]
    await link.mend()
    await until(lambda: faulty.kept == 1, "the first is stored", seconds=10)
    await faulty.say("My brother lives in Hawaii since May.")
    assert faulty.journalled == 2
    assert faulty.logs.said("journal.accepts")


async def _refused(faulty: FaultStand) -> bool:
    await faulty.say(ASKED)
    return any(
        sample.labels.get("outcome") == "refused_by_breaker"
        for metric in faulty.whole.metrics.registry.collect()
        for sample in metric.samples
    )


@pytest.mark.parametrize(
    ("changes", "sides"),
    [
        ({"embedding": {"model": "another"}}, ("another/openai/384", "embedding model")),
        ({"embedding": {"dimension": 8}, "milvus": {"dimension": 8}}, ("384", "8", "embedding dimension")),
    ],
    ids=["fingerprint", "dimension"],
)
async def test_a_collection_of_another_model_is_left_alone_and_both_sides_are_named(
    faulty: FaultStand, link: Link, changes: dict[str, Any], sides: tuple[str, ...]
) -> None:
    collection = f"other_{len(sides)}"
    faulty.change(memory=at(link, collection))
    async with faulty.another("maker"):
        assert faulty.logs.said("store.open")
    async with serving(embeddings(changes["embedding"].get("dimension", 384))) as endpoint:
        faulty.change(memory={"embedding": {"provider": "openai", "endpoint": endpoint.base_url}})
        faulty.change(memory=changes)
        await faulty.start()
        assert (await faulty.http("/readyz"))[1].startswith("ready\n")
        assert (await faulty.say(ASKED, x_memory_store="skip")).memory == "unavailable"
        assert faulty.shown == ASKED
    (refused,) = faulty.logs.of("store.refused")
    for side in sides:
        assert side in refused["detail"]
    assert faulty.sample("store_up") == 0


async def test_a_collection_that_somebody_takes_away_costs_no_turn(faulty: FaultStand, link: Link) -> None:
    faulty.change(memory=at(link, "taken"), learn={"max_attempts": 1})
    await faulty.start()
    await faulty.say("My sister lives in Hawaii since March.")
    await until(lambda: faulty.kept == 1, "it is stored")
    options = MilvusOptions(
        section=Milvus(address=f"127.0.0.1:{link.port}", collection="taken", dimension=384), fingerprint=""
    )
    client = connect(options, options.uri)
    try:
        await client.drop_alias("taken")
        assert (await faulty.say(BUDGET)).status == 200
        await until(lambda: len(faulty.logs.of("learn.waits")) >= 2, "learning waits")
        assert faulty.sample("store_up") == 0
        assert [entry["why"] for entry in faulty.logs.of("store.down")] == ["missing"]
        await client.create_alias("taken_v1_384", "taken")
    finally:
        await client.close()
    await until(lambda: faulty.kept == 2, "what waited is stored", seconds=15)
    await until(lambda: faulty.sample("store_up") == 1, "writes and reads are known to work again")
    assert faulty.sample("journal_dead_letters") == 0
