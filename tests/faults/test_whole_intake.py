"""Every answer that was complete is learned: after a kill -9 at any moment, and after a Redis that was away or
slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from aiohttp import web

from memory_extproc import app
from memory_extproc.model import Consent, ConsentChange, Memory, Owner, Scope
from tests.support.envoy import Answer, Wiring, a_chat
from tests.support.faults import FaultStand, Link
from tests.support.faults_process import Child, a_child
from tests.support.load import fact
from tests.support.redis import RedisServer, start_redis, stop_redis
from tests.support.upstream import a_stream, sse_events
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

ANSWERS = int(os.environ.get("MEMORY_EXTPROC_TEST_KILLED_ANSWERS", "120"))
PEAK = min(200, ANSWERS // 2)  # streams that end at one time


class Peaks:
    """Streams that all wait before their last piece until they are let go together."""

    def __init__(self, faulty: FaultStand) -> None:
        self._faulty, self._said, self._ended = faulty, 0, 0
        self._go, self._waiting = asyncio.Event(), 0
        self.sure: list[str] = []  # answered in full before the kill
        faulty.upstream.answers = self._answers

    async def _answers(self, request: web.Request) -> web.StreamResponse:
        async def pause(number: int) -> None:
            if number == 1:
                self._waiting += 1
                await self._go.wait()

        return await a_stream(sse_events("Noted", "."), pause)(request)

    async def kill_amid(self, child: Child, after: int) -> None:
        """Kills the process when *after* of the streams have ended, at their clients."""
        self._go.clear()
        self._waiting = self._ended = 0
        ended, enough = list[str](), asyncio.Event()

        async def say(words: str) -> None:
            answer = await self._faulty.chat(a_chat(words, stream=True), user=user_of(words))
            assert answer.status == 200
            if answer.memory:  # Envoy did not pass us by, which a crowd on a busy machine makes it do
                ended.append(words)
            self._ended += 1
            if self._ended >= after:
                enough.set()

        async with asyncio.TaskGroup() as group:
            for _ in range(PEAK):
                self._said += 1
                group.create_task(say(fact(self._said)))
            await until(lambda: self._waiting == PEAK, "all streams are about to end", seconds=60)
            self._go.set()
            await enough.wait()
            self.sure += ended
            child.signal(signal.SIGKILL)
            assert await child.ended() == -signal.SIGKILL


def user_of(words: str) -> str:
    return f"user-{int(words.rstrip('.').rpartition(' ')[2]) % 20}"


@pytest.mark.timeout(3600)
async def test_no_answer_that_came_to_its_end_is_lost_by_kills_in_the_middle_of_a_peak(faulty: FaultStand) -> None:
    rng = random.Random(13)
    async with a_child(faulty, learn={"extractor": "off"}) as child:
        await faulty.start_around(child.ext_proc, wiring=Wiring(failure_mode_allow=True))
        peaks = Peaks(faulty)
        kills = 0
        while len(peaks.sure) < ANSWERS:
            await child.serving()
            await peaks.kill_amid(child, after=rng.randint(1, PEAK))
            kills += 1
        await child.serving()
        child.signal(signal.SIGTERM)
        assert await child.ended() == 0
        settings = faulty.configured(faulty.scratch / "heir.yaml", child.data)
        async with app.sidecar(settings) as heir:
            users = {user_of(words) for words in peaks.sure}

            async def learned() -> Counter[str]:
                found = [await faulty.memories(user, heir) for user in users]
                return Counter(one for memories in found for one in memories)

            async def all_learned() -> bool:
                return set(peaks.sure) <= set(await learned())

            with contextlib.suppress(AssertionError):
                await until(all_learned, "all is learned", seconds=60)
            known = await learned()
    lost = [words for words in peaks.sure if words not in known]
    sys.stderr.write(f"{len(lost)} of {len(peaks.sure)} lost in {kills} kills\n")
    assert not lost
    assert {known[words] for words in peaks.sure} == {1}, "a turn is there twice"


# --- Redis ---------------------------------------------------------------------------------------------
@pytest.fixture
async def own_redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    directory = tmp_path / "redis"
    directory.mkdir()
    server = start_redis(directory, lasting=True)
    yield server
    stop_redis(server)


@pytest.fixture
async def shared(faulty: FaultStand, link: Link, own_redis: RedisServer) -> AsyncIterator[Link]:
    """The way to Redis, on which the stand's sidecar is configured."""
    async with Link(own_redis.port) as way:
        name = f"intake_{uuid4().hex}"
        faulty.change(
            memory={"milvus": {"address": f"127.0.0.1:{link.port}", "collection": name}},
            coordination={"url": f"redis://127.0.0.1:{way.port}/0", "prefix": name, "timeout": "200ms"},
            learn={"extractor": "off"},
        )
        yield way


class Talk:
    """Conversations whose client sends its history again with each message."""

    def __init__(self, faulty: FaultStand, user: str) -> None:
        self._faulty, self.user = faulty, user
        self.messages: list[dict[str, str]] = []
        self.said: list[str] = []

    async def say(self, words: str, **headers: str) -> Answer:
        self.messages.append({"role": "user", "content": words})
        answer = await self._faulty.chat({"model": "demo", "messages": self.messages}, user=self.user, **headers)
        assert answer.status == 200
        self.messages.append({"role": "assistant", "content": "It is $10,000."})
        self.said.append(words)
        return answer


@pytest.mark.redis
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["cut", "stalled"])
async def test_a_redis_that_is_away_or_slow_loses_no_turn_and_learns_none_that_was_refused(
    faulty: FaultStand, shared: Link, how: str
) -> None:
    await faulty.start()
    old, hushed = Talk(faulty, "old"), Talk(faulty, "hushed")
    refuser = Owner("", "refuser")
    await old.say("My first locker has the number 1.")
    await hushed.say("My secret locker has the number 2.", x_memory_store="false", x_memory_incognito="true")
    consents = faulty.whole.door.consent
    await consents.set(refuser, Consent.OFF, by="refuser")
    for user, said in (("turned", Consent.OFF), ("returned", Consent.RECALL_ONLY)):
        await consents.set(Owner("", user), said, by=user)
        refused = await consents._records.latest(Owner("", user))
        agreed = ConsentChange(Consent.ON, datetime.now(UTC), user)
        await consents._records.add(Owner("", user), agreed, after=refused)  # on another replica
    await until(lambda: _knows(faulty, old), "it is stored")
    del consents._known[refuser]  # as after a restart, or another replica
    live = consents._current
    stale = live.settings.privacy.model_copy(update={"consent_fresh": timedelta()})
    live.settings = live.settings.model_copy(update={"privacy": stale})  # all answers are old by now
    if how == "cut":
        await shared.cut()
    else:
        shared.stall()
    new = [Talk(faulty, f"new-{number}") for number in range(5)]
    new += [Talk(faulty, "turned"), Talk(faulty, "returned")]
    no = Talk(faulty, "refuser")
    for number in range(3):
        await asyncio.gather(*(talk.say(f"My locker has the number {10 + number}.") for talk in (old, *new)))
        await hushed.say(f"My locker has the number {20 + number}.")
        await no.say(f"My locker has the number {30 + number}.")
    await until(lambda: faulty.sample("turns_undecided") >= 24, "they wait")
    assert faulty.turns("no_consent") == 0
    assert faulty.turns("incognito") == 4, "known here"
    assert faulty.logs.said("turns.undecided")
    await shared.mend()
    await until(lambda: faulty.sample("turns_undecided") == 0, "all are decided", seconds=60)
    for talk in (old, *new):
        await until(partial(_knows, faulty, talk), f"{talk.user} is known", seconds=30)
    assert faulty.turns("no_consent") == 3
    assert await faulty.memories("refuser") == await faulty.memories("hushed") == []
    assert faulty.logs.said("turns.decided")
    # What was one conversation is one session.
    assert len({memory.session for memory in await _rows(faulty, old)}) == 1


async def _rows(faulty: FaultStand, talk: Talk) -> list[Memory]:
    anywhere = np.full(384, 384**-0.5, dtype=np.float32)
    searched = await faulty.whole.partitions.nearest(Owner("", talk.user), anywhere, 1000, Scope())
    return [found.memory for found in searched.found]


async def _knows(faulty: FaultStand, talk: Talk) -> bool:
    known = [memory.content for memory in await _rows(faulty, talk)]
    return sorted(one for one in known if one in talk.said) == sorted(talk.said)
