"""Two sidecars, each behind an Envoy of its own, on one Milvus and one Redis; and a Redis that goes away."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

from memory_extproc import app
from memory_extproc.app.coordination import MIRROR
from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.mirror import SqliteMirror
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.model import ForgetScope, ForgetState, Owner, Scope
from memory_extproc.store.milvus.store import MilvusStore
from tests.support.envoy import Envoy
from tests.support.faults import ASKED, BUDGET, USER, FaultStand, Link
from tests.support.redis import RedisServer
from tests.support.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.redis]

Replicas = tuple[FaultStand, FaultStand]


@pytest.fixture
async def redis_link(redis_server: RedisServer) -> AsyncIterator[Link]:
    async with Link(redis_server.port) as made:
        yield made


@pytest.fixture
async def replicas(
    faulty: FaultStand, link: Link, redis_link: Link, envoy_binary: Path, int8_model_dir: Path, tmp_path: Path
) -> AsyncIterator[Replicas]:
    """Not started yet."""
    name = f"replicas_{uuid4().hex}"
    scratch = tmp_path / "second"
    scratch.mkdir()
    async with FaultStand(Envoy(envoy_binary, scratch), scratch, int8_model_dir.parent, faulty.logs) as second:
        for one in (faulty, second):
            one.change(
                memory={"milvus": {"address": f"127.0.0.1:{link.port}", "collection": name}},
                coordination={"url": f"redis://127.0.0.1:{redis_link.port}/0", "prefix": name, "timeout": "200ms"},
            )
        yield faulty, second


async def test_what_one_sidecar_learns_the_other_knows(replicas: Replicas) -> None:
    first, second = replicas
    await first.start()
    await second.start()
    # The second holds the caller's memories already, of which there are none.
    assert (await second.say(ASKED)).memory == "empty"
    await first.say(BUDGET)
    await until(lambda: first.kept == 1, "it is stored")
    answer = await second.say(ASKED)
    assert answer.memory.startswith("used")
    assert "$10,000" in second.shown


async def test_one_serves_and_another_learns(replicas: Replicas) -> None:
    """The caller's next request sees the write; facts are the learner's, and a request that strays to it passes."""
    serving, learning = replicas
    serving.change(role="serve")
    learning.change(role="learn")
    await serving.start()
    await learning.start()
    await serving.say(BUDGET, x_memory_session="end")
    await until(lambda: serving.kept == 1, "its messages are stored by the one that serves")
    assert (await serving.say(ASKED)).memory.startswith("used")

    def decided(sidecar: FaultStand) -> float:
        return sidecar.sample("reconcile_total", decision="added")

    await until(lambda: decided(learning) == 1, "the fact is extracted", seconds=15)
    assert decided(serving) == 0
    assert serving.sample("journal_parts") == 0
    strayed = await learning.say(ASKED)
    assert (strayed.status, strayed.memory) == (200, "")


async def test_a_fact_replaced_by_one_sidecar_is_not_recalled_by_the_other(replicas: Replicas) -> None:
    first, second = replicas
    await first.start()
    await second.start()

    def decided(decision: str) -> float:
        """By either: facts are extracted by whoever holds the caller's part of the journal."""
        return sum(sidecar.sample("reconcile_total", decision=decision) for sidecar in replicas)

    await first.say(BUDGET, x_memory_session="end")
    await until(lambda: decided("added") == 1, "the fact is stored", seconds=10)
    assert (await second.say(ASKED)).memory.startswith("used")
    await first.say("My budget for the Hawaii trip is now $15,000.", x_memory_session="end")
    await until(lambda: decided("replaced") == 1, "it is replaced", seconds=10)
    for sidecar in (second, first):
        known = [one for one in await sidecar.memories() if one.startswith("User's budget")]
        assert len(known) == 1
        assert "15,000" in known[0]
    # And the other way round, though the first holds the caller's memories.
    await second.say("My budget for the Hawaii trip is now $20,000.", x_memory_session="end")
    await until(lambda: decided("replaced") == 2, "replaced again", seconds=10)
    known = [one for one in await first.memories() if one.startswith("User's budget")]
    assert len(known) == 1
    assert "20,000" in known[0]


async def test_a_conversation_that_moves_between_sidecars_is_learned_once(replicas: Replicas) -> None:
    first, second = replicas
    await first.start()
    await second.start()
    messages = [{"role": "user", "content": BUDGET}]
    await first.chat({"model": "demo", "messages": messages}, user="carol")
    # The client tries again, and its request comes to the other sidecar.
    await second.chat({"model": "demo", "messages": messages}, user="carol")
    await until(lambda: first.kept + second.kept == 1, "it is learned")
    await until(lambda: first.journalled + second.journalled + second.turns("duplicate") == 2, "both have seen it")
    assert first.kept + second.kept == 1
    assert (await first.memories("carol")).count(BUDGET) == 1


@pytest.mark.parametrize("how", ["stalled", "cut"])
async def test_a_redis_that_goes_away_fails_no_request_and_loses_no_turn(
    replicas: Replicas, redis_link: Link, how: str
) -> None:
    faulty, _ = replicas
    await faulty.start()
    await faulty.say("My sister lives in Hawaii since March.")
    await until(lambda: faulty.kept == 1, "it is stored")
    if how == "cut":
        await redis_link.cut()
    else:
        redis_link.stall()
    assert (await faulty.say("Where does my sister live?")).memory.startswith("used")
    assert (await faulty.say(BUDGET)).status == 200
    assert faulty.shown.startswith(BUDGET)
    assert await faulty.http("/readyz") == (200, "ready\ncalibration: fitted\n")
    await until(lambda: faulty.logs.said("turns.undecided"), "the turn is kept here meanwhile")
    await until(lambda: faulty.sample("coordination_up") == 0, "nobody waits for it any more")
    await redis_link.mend()
    await until(lambda: faulty.kept == 2, "what was said meanwhile is stored", seconds=15)
    await faulty.say(ASKED)
    assert "$10,000" in faulty.shown
    assert faulty.turns("journal_failed") == 0
    assert faulty.sample("coordination_up") == 1


async def test_a_sidecar_starts_without_redis_and_decides_what_it_heard_when_it_comes(
    replicas: Replicas, redis_link: Link
) -> None:
    faulty, _ = replicas
    await redis_link.cut()
    await faulty.start()
    assert faulty.logs.said("coordination.not_open")
    said = await faulty.say(BUDGET)
    assert (said.status, said.memory) == (200, "unavailable")
    assert faulty.shown == BUDGET
    await until(lambda: faulty.turns("undecided") == 1, "it waits: the caller may have said no")
    await redis_link.mend()
    await until(lambda: faulty.kept == 1, "what was said is stored", seconds=30)
    assert (await faulty.say(ASKED)).memory.startswith("used")


async def test_what_one_sidecar_was_told_to_forget_the_other_does_not_recall(replicas: Replicas) -> None:
    first, second = replicas
    await first.start()
    await second.start()
    await first.say(BUDGET)
    await until(lambda: first.kept == 1, "it is stored")
    assert (await second.say(ASKED)).memory.startswith("used")
    receipt = await first.whole.forgets.forget(Owner("", USER), ForgetScope())
    assert receipt.state is not ForgetState.ACCEPTED
    answer = await second.say(ASKED)
    assert not answer.memory.startswith("used"), second.shown
    assert "$10,000" not in second.shown
    # Whichever of the two is left, and whatever becomes of Redis: both have a copy.
    for one in (first, second):

        async def copied(path: Path = one.data / MIRROR) -> bool:
            async with SqliteMirror(path) as mirror:
                kinds = {id_.partition(":")[0] async for page in mirror.all() for id_ in page}
            return {"cut", "items"} <= kinds

        await until(copied, "it has a copy")


async def test_a_wiped_redis_brings_nothing_back_that_was_forgotten_and_recall_resumes_by_itself(
    replicas: Replicas, redis_server: RedisServer
) -> None:
    first, second = replicas
    await first.start()
    await second.start()
    await first.say(BUDGET)
    await first.say(BUDGET, user="carol")
    await until(lambda: first.kept == 2, "it is stored")
    assert (await second.say(ASKED)).memory.startswith("used")
    owner = Owner("", USER)
    options = replace(app.milvus_options(first.settings(), first.data, ""), as_it_is=True)
    store = MilvusStore(options, first.whole.metrics, now=utc_now)
    await store.open()
    rows = [row async for page in store.pages(owner, 100, fresh=True) for row in page]
    assert rows
    receipt = await first.whole.forgets.forget(owner, ForgetScope())
    assert receipt.state is not ForgetState.ACCEPTED
    wiped = time.monotonic()
    async with RedisLink(redis_server.url, timedelta(milliseconds=500)) as link:
        await link.client.flushall()
    # As out of a backup, or a turn that waited elsewhere: what was forgotten is in the store once more.
    await store.put(owner, rows)
    await store.close()

    async def resumed() -> bool:
        for one in (first, second):
            assert not (await one.say(ASKED)).memory.startswith("used"), one.shown
            assert "$10,000" not in one.shown
        answers = [(await one.say(ASKED, user="carol")).memory for one in (first, second)]
        return all(answer.startswith("used") for answer in answers)

    await until(lambda: first.logs.of("coordination.restored"), "it is restored", seconds=60)
    await until(resumed, "others are remembered again", seconds=60)
    assert time.monotonic() - wiped < 60
    assert first.sample("coordination_restoring") == second.sample("coordination_restoring") == 0


async def test_what_only_one_sidecar_had_is_forgotten_by_the_other_and_shown_by_neither(
    replicas: Replicas, link: Link
) -> None:
    first, second = replicas
    owner = Owner("", USER)
    for sidecar in replicas:
        await sidecar.start()
    await first.say("My sister lives in Hawaii since March.")
    await until(lambda: first.kept + second.kept == 1, "it is stored")
    await link.cut()
    await first.say(BUDGET)
    named = ""

    async def known() -> bool:
        nonlocal named
        vector = np.full(384, 384**-0.5, dtype=np.float32)
        found = (await first.whole.partitions.nearest(owner, vector, 100, Scope())).found
        named = next((one.memory.id for one in found if one.memory.content == BUDGET), "")
        return bool(named)

    await until(known, "the first has it in process")
    forgets = second.whole.forgets
    forgets._limits = replace(forgets._limits, patience=timedelta(milliseconds=300))
    accepted = await forgets.forget(owner, ForgetScope(ids=(named,)))
    assert accepted.state is ForgetState.ACCEPTED
    await link.mend()

    async def clean() -> bool:
        found = await second.whole.forgets.receipt(owner, accepted.id)
        return found is not None and found.state is not ForgetState.ACCEPTED

    await until(clean, "it is clean", seconds=30)
    await first.say("My brother lives in Oslo since May.")
    await until(lambda: first.kept + second.kept == 2, "what is said later is stored", seconds=20)
    for sidecar in replicas:
        assert BUDGET not in await sidecar.memories()
        await sidecar.say(ASKED, x_memory_store="skip")
        assert "budget for the Hawaii trip is" not in sidecar.shown  # what answered the others stays
