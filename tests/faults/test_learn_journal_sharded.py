"""The journal in a Redis Cluster: all masters share it, and it comes there from a single one without a loss."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from memory_extproc.cli.root import app
from memory_extproc.coordination import redis_client
from memory_extproc.coordination.redis_client import NewerKeysError, RedisLink
from memory_extproc.coordination.replicas import RedisReplicas
from memory_extproc.journal.redis import JournalSharing, RedisJournal, ShardedJournal
from memory_extproc.model import Owner, Turn, TurnOutcome, digest
from memory_extproc.settings.paths import JournalSection
from tests.support.builders import MONDAY, a_turn
from tests.support.redis import RedisFleet, RedisServer, ask_redis, redis_cluster, redis_server
from tests.support.waiting import until

__all__ = ["redis_cluster", "redis_server"]
pytestmark = pytest.mark.redis

PEOPLE = [Owner("acme", f"person {n}") for n in range(60)]
BRIEF = JournalSharing(lease=timedelta(milliseconds=600), grace=timedelta(milliseconds=50))
Either = RedisJournal | ShardedJournal


def turn(words: str, owner: Owner) -> Turn:
    return replace(a_turn(words, owner=owner), id=digest(owner.key, words))


class Fleet:
    """Replicas on one cluster. The journal under a single tag is that of the versions before shards."""

    def __init__(self, cluster: RedisFleet) -> None:
        self.cluster = cluster
        self.prefix = uuid4().hex

    @asynccontextmanager
    async def link(self) -> AsyncIterator[RedisLink]:
        async with RedisLink(self.cluster.url, timedelta(seconds=10), prefix=self.prefix) as link:
            yield link

    @asynccontextmanager
    async def replica(self, kind: type[Either] = ShardedJournal, *, max_turns: int = 1000) -> AsyncIterator[Either]:
        async with (
            self.link() as link,
            kind(
                link, JournalSection(max_turns=max_turns), now=lambda: MONDAY, prefix=self.prefix, sharing=BRIEF
            ) as journal,
        ):
            yield journal

    def keys(self, server: RedisServer) -> list[str]:
        return ask_redis(server, "KEYS", f"{self.prefix}:{{journal*").split()


@pytest.fixture
def fleet(redis_cluster: RedisFleet) -> Fleet:
    return Fleet(redis_cluster)


async def learn(replicas: Sequence[Either], wanted: set[str]) -> Counter[str]:
    """Learn the turns of parts that they hold, until all of *wanted* are learned."""
    learned = Counter[str]()

    async def all_learned() -> bool:
        for one in replicas:
            # Its own appends do not arrive: it has them.
            found = {entry.turn.id: entry for entry in [*await one.arrivals(50), *await one.pending(50)]}
            held = [entry for entry in found.values() if one.holds(entry.turn.owner)]
            await one.mark_stored(held)
            await one.mark_learned(held)
            # A mark has no effect if its part passed on meanwhile.
            left = {entry.turn.id for entry in await one.pending(500)}
            learned.update({entry.turn.id for entry in held} - left)
        return wanted <= set(learned)

    await until(all_learned, "all are learned")
    return learned


async def test_all_masters_share_the_journal_and_each_owners_turns_lie_together(fleet: Fleet) -> None:
    async with fleet.replica() as first, fleet.replica() as second:
        turns = [turn(f"{n}", PEOPLE[n % len(PEOPLE)]) for n in range(180)]
        for n, one in enumerate(turns):
            assert await (first, second)[n % 2].append(one) is TurnOutcome.JOURNALLED
        assert await first.append(turns[1]) is TurnOutcome.DUPLICATE, "whichever replica took it"
        assert [entry.turn.id for entry in await second.pending(500)] == [one.id for one in turns], "in their order"
        page = await second.pending(70)
        assert [entry.turn.id for entry in await second.pending(500, after=page[-1].place)] == [
            one.id for one in turns[70:]
        ]
        keys = [fleet.keys(server) for server in fleet.cluster.servers]
        assert all(len(some) > 20 for some in keys)
        tags = {key: set(re.findall(r"\{(.*?)\}", key)) for some in keys for key in some}
        assert {tag for found in tags.values() for tag in found} <= {
            "journal",
            *(f"journal:{n}" for n in range(16)),
        }
        assert [key for key in tags if "{journal}" in key] == [f"{fleet.prefix}:{{journal}}:shards"]
        # Nothing twice, and a share of each shard.
        assert await learn([first, second], {one.id for one in turns}) == Counter(one.id for one in turns)

        async def shared() -> bool:
            await asyncio.gather(first.arrivals(1), second.arrivals(1))
            return await first.shares() == [512, 512]

        await until(shared, "each has its half")
        assert (await first.depth()).turns == 0


async def test_the_bound_counts_the_turns_of_all_shards(fleet: Fleet) -> None:
    async with fleet.replica(max_turns=20) as first, fleet.replica(max_turns=20) as second:
        for n in range(20):
            assert await first.append(turn(f"{n}", PEOPLE[n])) is TurnOutcome.JOURNALLED
        assert await first.append(turn("more", PEOPLE[30])) is TurnOutcome.JOURNAL_FULL
        await second.depth()  # as each replica does every few seconds
        assert await second.append(turn("more", PEOPLE[31])) is TurnOutcome.JOURNAL_FULL


async def test_a_rolling_update_and_the_spread_after_it_lose_and_double_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet.replica(RedisJournal) as old, fleet.replica() as new:
        await old.arrivals(1)  # as a version that ran before
        turns = [turn(f"{n}", PEOPLE[n % len(PEOPLE)]) for n in range(120)]
        for n, one in enumerate(turns):
            assert await (old, new)[n % 2].append(one) is TurnOutcome.JOURNALLED
        for n, one in enumerate(turns):
            assert await (new, old)[n % 2].append(one) is TurnOutcome.DUPLICATE, "a retry at the other"
        assert await learn([old, new], {one.id for one in turns}) == Counter(one.id for one in turns)
        assert await new.erase_owner(PEOPLE[0]) == await old.erase_owner(PEOPLE[0]) + 2, "wherever it was accepted"
        waiting = [turn(f"later {n}", PEOPLE[n]) for n in range(40)]
        for n, one in enumerate(waiting):
            await (old, new)[n % 2].append(one)
        [bad, *_] = await new.pending(100)
        await new.mark_failed(bad, "PermanentError", dead=True)
    async with fleet.replica() as command:
        assert isinstance(command, ShardedJournal)
        assert await command.spread() == 39
    async with fleet.replica() as first, fleet.replica() as second:
        alive = {one.id for one in waiting} - {bad.turn.id}
        assert await learn([first, second], alive) == Counter(alive)
        assert [letter.turn_id for letter in await second.dead(10)] == [bad.turn.id]
        assert await first.retry([bad.turn.id]) == 1
        assert await learn([first, second], {bad.turn.id}) == Counter([bad.turn.id])
        assert await first.append(waiting[7]) is TurnOutcome.DUPLICATE
        assert (await first.depth()).turns == 0
        # An older version that comes back would not see these turns.
        monkeypatch.setattr(redis_client, "SCHEMA", 1)
        async with fleet.link() as link:
            with pytest.raises(NewerKeysError, match="schema 2 of a newer"):
                await link.limit_time(link.client.get("a key"))


async def test_turns_that_an_older_version_left_later_are_found_and_forgotten(fleet: Fleet) -> None:
    async with fleet.replica() as first:
        await first.append(turn("hello", PEOPLE[1]))
    async with fleet.replica(RedisJournal) as stray:
        for words in ("one", "two"):
            await stray.append(turn(words, PEOPLE[1]))
        await stray.append(turn("other", PEOPLE[2]))
    async with fleet.replica() as again:
        assert [entry.turn.asked async for entry in again.of_owner(PEOPLE[1])] == ["one", "two", "hello"]
        assert (await again.depth()).turns == 4
        assert await again.erase_owner(PEOPLE[1]) == 3
        assert await learn([again], {turn("other", PEOPLE[2]).id})
        assert [entry async for entry in again.of_owner(PEOPLE[1])] == []


async def test_a_cluster_that_lost_everything_is_gone_on_with(fleet: Fleet) -> None:
    async with fleet.replica() as first:
        await first.append(turn("before", PEOPLE[1]))
        for server in fleet.cluster.servers:
            ask_redis(server, "FLUSHALL")
        await first.append(turn("after", PEOPLE[1]))
        async with fleet.replica() as second:
            assert await learn([first, second], {turn("after", PEOPLE[1]).id})


async def test_the_command_spreads_only_a_cluster_on_which_no_sidecar_runs(
    fleet: Fleet, redis_server: RedisServer, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"

    def spread(url: str) -> str:
        section = {"url": url, "prefix": fleet.prefix, "timeout": "5s", "lease": "15s"}
        config.write_text(json.dumps({"data_dir": str(tmp_path), "coordination": section}))
        done = CliRunner().invoke(app, ["learn", "spread", "--config", str(config)])
        return done.output if done.exit_code else json.dumps("done")

    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(fleet.replica(RedisJournal))
        await old.append(turn("hello", PEOPLE[1]))
        link = await stack.enter_async_context(fleet.link())
        name = uuid4().hex
        running = RedisReplicas(link, name, prefix=fleet.prefix, lease=timedelta(seconds=60))
        await stack.enter_async_context(running)
        assert "1 sidecar(s) run" in await asyncio.to_thread(spread, fleet.cluster.url)
        assert "no cluster" in await asyncio.to_thread(spread, redis_server.url)
    assert await asyncio.to_thread(spread, fleet.cluster.url) == '"done"'
    assert "already" in await asyncio.to_thread(spread, fleet.cluster.url)
