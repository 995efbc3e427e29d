"""Summaries are made anew when a message is corrected, replaced or forgotten, and hold until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TransientError
from memory_extproc.learn.messages import message_id
from memory_extproc.learn.wording import about, agree, saying
from memory_extproc.model import Embedded, Memory, MemoryState, Owner, Provenance, Source, Turn, Vector
from memory_extproc.observe.metrics import Metrics
from memory_extproc.retention.passes import RetentionPass, Wording
from memory_extproc.retention.rules import OwnerRows, RetentionReason, retire_memory
from memory_extproc.retention.scheduler import RetentionJob
from memory_extproc.retention.usage import ChangeNotifier
from memory_extproc.settings.memory import Retention
from memory_extproc.topics.summarizer import Summaries
from memory_extproc.topics.writer import Rebuilding
from tests.support.builders import ANN, BOB, a_memory
from tests.support.waiting import until
from tests.unit.topics.following import FLIGHTS, Surroundings, turns_of

LONG = tuple((asked * 4, answered * 4) for asked, answered in FLIGHTS)
BUDGET = (
    "The family budget for the trip to Hawaii is $10,000. " * 8,
    "That suits a family trip to Hawaii in May. " * 8,
)


class Aging(Surroundings):
    """With retention around it."""

    def keeper(self, **rules: object) -> RetentionPass:
        summaries = Summaries(self.metrics, prompts=self.prompts, trusted=lambda _: True)
        return RetentionPass(
            OwnerRows(self.store, self.partitions),
            self.embedder,
            lambda: Retention(**rules),
            Wording(says=saying, about=about, agree=agree),
            now=lambda: self.now,
            rebuilds=Rebuilding(summaries, self.embedder, now=lambda: self.now, least=3, content_bytes=8192),
        )

    async def told(self, turns: list[Turn]) -> None:
        async with self.build() as topics:
            await self.say(topics, turns)
        self.now += timedelta(hours=1)

    async def rewrite(self, memory_id: str, **changes: object) -> None:
        def change(row: Embedded) -> list[Embedded]:
            return [Embedded(replace(row.memory, **changes), row.vector)]  # type: ignore[arg-type]

        assert await self.partitions.change(ANN, memory_id, change)

    async def active(self) -> dict[str, Memory]:
        """Summaries by what they are of."""
        return {str(row.provenance.kind): row for row in await self.rows() if row.state is MemoryState.ACTIVE}


async def test_a_summary_whose_messages_stand_holds_through_every_pass() -> None:
    around = Aging()
    await around.told(turns_of(*LONG, BUDGET, last=True))
    before = await around.rows()
    around.now += timedelta(days=30)
    kept = await around.keeper().keep(ANN)
    assert (kept.retired.total(), kept.rebuilt) == (0, 0)
    assert await around.rows() == before


async def test_messages_that_only_had_to_make_room_leave_what_sums_them_up() -> None:
    around = Aging()
    await around.told(turns_of(*LONG, last=True))
    around.now += timedelta(days=30)
    kept = await around.keeper(max_memories=3).keep(ANN)
    assert kept.retired[RetentionReason.CAP] > 0
    assert RetentionReason.SOURCES not in (await around.keeper(max_memories=3).keep(ANN)).retired


@pytest.mark.parametrize("how", ["corrected", "replaced", "told to be forgotten", "gone"])
async def test_what_was_corrected_or_forgotten_is_told_by_no_summary_and_the_rest_still_is(how: str) -> None:
    around = Aging()
    said = turns_of(*LONG, BUDGET, last=True)
    await around.told(said)
    before = await around.active()
    assert "$10,000" in before["topic"].content
    changed = message_id(said[3], 0)
    for one in (changed, *((message_id(said[2], 0),) if how != "corrected" else ())):
        if how == "corrected":
            words = "The family budget for the trip to Hawaii is $12,000."
            await around.rewrite(one, content=words, valid_from=around.now)
            await around.rewrite(message_id(said[2], 0), content=words, valid_from=around.now)
        elif how == "replaced":
            # Since a moment before the summary was written: a fact replaces another from when it was said on.
            await around.partitions.supersede(ANN, one, "newer", said[3].at)
        elif how == "gone":
            await around.partitions.delete(ANN, [one])
        else:
            gone = Provenance(turn=said[3].id, retired="chat", retired_at=int(around.now.timestamp()))
            await around.rewrite(one, state=MemoryState.DELETED, provenance=gone)
    around.now += timedelta(seconds=1)
    kept = await around.keeper().mend(ANN)
    after = await around.active()
    assert after.keys() == before.keys()
    assert kept.rebuilt == 2
    for kind, summary in after.items():
        assert summary.id == before[kind].id
        assert "10,000" not in summary.content
        assert "Hawaii" in summary.content
        assert not summary.provenance.retired
    if how != "corrected":
        assert changed not in after["topic"].provenance.sources
    again = await around.keeper().keep(ANN)
    assert (again.rebuilt, again.retired.total()) == (0, 0)


async def test_of_a_topic_with_too_little_left_its_messages_speak_for_themselves() -> None:
    around = Aging()
    said = turns_of(*FLIGHTS, last=True)
    await around.told(said)
    await around.partitions.delete(ANN, [message_id(turn, side) for turn in said[1:] for side in (0, 1)])
    await around.keeper().mend(ANN)
    assert await around.active() == {}
    assert (await around.keeper().mend(ANN)).rebuilt == 0


async def test_an_earlier_summary_that_was_carried_along_tells_no_more_what_was_corrected() -> None:
    around = Aging()
    first = turns_of(*LONG, BUDGET, last=True)
    await around.told(first)
    more = (("Hotels on Maui suit a family trip. " * 9, "Family hotels on Maui are by the sea. " * 9),)
    await around.told(turns_of(*more * 3, first=4, last=True))
    session = (await around.active())["session"]
    earlier = next(row for row in await around.rows() if row.state is MemoryState.SUPERSEDED)
    assert earlier.id in session.provenance.sources
    for turn in first[2:]:
        await around.rewrite(message_id(turn, 0), content="The budget is open.", valid_from=around.now)
    await around.keeper().mend(ANN)
    anew = (await around.active())["session"]
    assert anew.id == session.id
    assert "10,000" not in anew.content
    assert earlier.id not in anew.provenance.sources
    assert (await around.keeper().keep(ANN)).retired.total() == 0


async def test_what_could_not_be_made_anew_is_gone_till_it_can() -> None:
    around = Aging()
    said = turns_of(*LONG, BUDGET, last=True)
    await around.told(said)
    for turn in said[2:]:
        await around.rewrite(message_id(turn, 0), content="The budget is open.", valid_from=around.now)
    keeper = around.keeper()

    class Away:
        fingerprint, dimension = around.embedder.fingerprint, around.embedder.dimension

        async def embed(self, texts: object) -> Vector:
            raise TransientError("away")

    summaries = Summaries(around.metrics, prompts=None, trusted=lambda _: True)
    away: Any = Away()
    keeper._rebuilds = Rebuilding(summaries, away, now=lambda: around.now, least=3, content_bytes=8192)
    with pytest.raises(TransientError):
        await keeper.mend(ANN)
    assert await around.active() == {}
    assert (await around.keeper().keep(ANN)).rebuilt == 2
    assert all("10,000" not in one.content for one in (await around.active()).values())


async def test_whoever_corrects_a_memory_has_what_was_made_of_it_made_anew_at_once() -> None:
    around = Aging()
    said = turns_of(*LONG, BUDGET, last=True)
    await around.told(said)
    job = RetentionJob(
        around.store,
        around.keeper(),
        around.coordination,
        lambda: None,
        Metrics(CollectorRegistry(), "test"),
        holder="one",
        now=lambda: around.now,
        rng=lambda: 0.5,
    )
    job.PAUSE = job.SETTLE = timedelta()
    async with job:
        noticing = ChangeNotifier(around.partitions, job.request_pass)
        for turn in said[2:]:
            await noticing.supersede(ANN, message_id(turn, 0), "newer", around.now)

        async def made_anew() -> bool:
            found = await around.active()
            return len(found) == 2 and all("10,000" not in one.content for one in found.values())

        await until(made_anew, "both summaries are made anew", seconds=10)


async def test_only_what_changes_words_or_takes_a_memory_away_is_told() -> None:
    around = Aging()
    said = turns_of(*FLIGHTS)
    told: list[Owner] = []
    await around.remember(said)
    noticing = ChangeNotifier(around.partitions, told.append)
    first, second, third = (message_id(turn, 0) for turn in said)
    await noticing.confirm(ANN, first, around.now)
    await noticing.change(ANN, first, lambda row: [Embedded(replace(row.memory, importance=0.9), row.vector)])
    await noticing.change(BOB, first, lambda row: [row])
    assert [row.id for row in await noticing.get(ANN, [first])] == [first]
    assert told == []
    await noticing.change(ANN, first, lambda row: [Embedded(replace(row.memory, content="else"), row.vector)])
    await noticing.change(
        ANN, second, lambda row: [Embedded(retire_memory(row.memory, RetentionReason.CAP, around.now), row.vector)]
    )
    await noticing.change(
        ANN, second, lambda row: [Embedded(replace(row.memory, content="not seen by anybody"), row.vector)]
    )
    beside = a_memory("written beside it", source=Source.VERBATIM)
    await noticing.change(ANN, first, lambda row: [row, Embedded(beside, row.vector)])
    assert told == [ANN] * 2
    await noticing.supersede(ANN, third, first, around.now)
    await noticing.delete(ANN, [third])
    assert told == [ANN] * 4
    assert {row.source async for page in noticing.rows(ANN) for row in page} <= {Source.VERBATIM, Source.QUESTION}


async def test_what_is_forgotten_in_a_chat_while_a_summary_is_made_anew_is_not_in_it() -> None:
    around = Aging()
    said = turns_of(*LONG, BUDGET, last=True)
    await around.told(said)
    await around.rewrite(message_id(said[2], 0), content="The budget is open.", valid_from=around.now)
    keeper = around.keeper()
    rebuilds = keeper._rebuilds

    class Meanwhile:
        """Its owner has the budget forgotten while a model sums up what is left."""

        async def rebuild(self, memory: Memory, known: Mapping[str, Memory]) -> Embedded | None:
            assert rebuilds is not None
            made = await rebuilds.rebuild(memory, known)
            gone = Provenance(turn=said[3].id, retired="chat", retired_at=int(around.now.timestamp()))
            for side in (0, 1):
                await around.rewrite(message_id(said[3], side), state=MemoryState.DELETED, provenance=gone)
            return made

    keeper._rebuilds = Meanwhile()
    await keeper.mend(ANN)
    assert all("10,000" not in one.content for one in (await around.active()).values())
    assert (await around.keeper().mend(ANN)).rebuilt == 2
    assert all("10,000" not in one.content for one in (await around.active()).values())


@pytest.mark.parametrize(
    ("row", "metadata"),
    [
        ("topic", {"level": "deep"}),
        ("topic", {"sources": 7}),
        ("topic", {"sources": [["nested"], None]}),
        ("topic", {"sources": {"a": 1}}),
        ("message", {"turn": "no hexadecimal"}),
        ("message", {"turn": ["a"]}),
        ("message", {"said": "yesterday"}),
        ("message", {"said": 1e300}),
    ],
)
async def test_a_summary_from_a_file_that_says_nonsense_of_itself_ends_no_pass(
    row: str, metadata: dict[str, object]
) -> None:
    around = Aging()
    said = turns_of(*LONG, BUDGET, last=True)
    await around.told(said)
    changed = message_id(said[0], 0) if row == "message" else (await around.active())["topic"].id
    before = next(iter(await around.partitions.get(ANN, [changed])))
    await around.rewrite(changed, provenance=before.provenance.with_fields(metadata))
    await around.partitions.delete(ANN, [message_id(said[3], side) for side in (0, 1)])
    assert (await around.keeper().keep(ANN)).memories == len(await around.messages()) + len(await around.rows())
