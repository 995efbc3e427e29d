"""An owner's memories come out whole and in order, and imported ones are checked and become the owner's."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import (
    Consent,
    ConsentChange,
    Embedded,
    ImportReport,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Provenance,
    Scope,
    Source,
    Trust,
    Turn,
    trust_of,
    with_trust,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.portability.importer import Exporter, Importer
from memory_extproc.portability.records import line_of, record_of
from memory_extproc.ports import Exported, JournalEntry
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_memory, a_message, a_turn, later

EMBEDDER = CannedEmbedder(64)


class SaidConsent:
    """ConsentRegistry that says what it is told to."""

    def __init__(self) -> None:
        self.said: Consent | None = Consent.ON

    async def read_consent(self, owner: Owner) -> Consent | None:
        return self.said

    def refuses(self, owner: Owner) -> bool:
        return self.said in {Consent.OFF, Consent.RECALL_ONLY}

    async def get(self, owner: Owner) -> Consent:
        return self.said or Consent.OFF

    async def set(self, owner: Owner, consent: Consent, *, by: str) -> ConsentChange:
        self.said = consent
        return ConsentChange(consent, MONDAY, by)

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        return [ConsentChange(Consent.ON, MONDAY, "user")]

    async def counts(self) -> Mapping[Consent, int]:
        return {}


class ForgottenWords:
    """TombstoneReader that covers what holds a word, and some ids."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.ids: set[str] = set()

    async def check(self, owner: Owner) -> None:
        return

    async def filter_rows(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        return [row for row in rows if self.word not in row.memory.content and row.memory.id not in self.ids]

    async def learnable(self, exchanged: Any, turn: Turn) -> tuple[Any, Turn] | None:
        return exchanged, turn

    async def filter_turns(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        return turns

    async def note_turns(self, turns: Sequence[Turn]) -> None:
        """Nothing is forgotten in these tests."""


class BusyStore(InMemoryStore):
    """Refuses the next *busy* writes."""

    busy = 0

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        if self.busy:
            self.busy -= 1
            raise TransientError("the store is busy")
        await super().put(owner, rows)


class Desk:
    """The parts of an export and an import, without a network or a model."""

    def __init__(self) -> None:
        self.store = BusyStore(EMBEDDER.dimension, now=lambda: MONDAY)
        self.coordination = InMemoryCoordination(lambda: MONDAY)
        self.journal = InMemoryJournal(now=lambda: MONDAY)
        self.consent = SaidConsent()
        self.forgotten = ForgottenWords("CANARY")
        metrics = Metrics(CollectorRegistry(), "test")
        self.partitions = Partitions(
            self.store, self.coordination, PartitionLimits(), metrics, now=lambda: later(days=1)
        )
        self.exporter = Exporter(self.store, self.journal, page=7, consent=self.consent)
        self.importer = Importer(
            self.partitions,
            EMBEDDER,
            self.coordination,
            8192,
            now=lambda: later(days=1),
            consent=self.consent,
            forgotten=self.forgotten,
        )
        self.importer.BATCH, self.importer.WAITS = 3, (0, 0)

    async def has(self, *memories: Memory) -> None:
        vectors = await EMBEDDER.embed([memory.content for memory in memories])
        for memory, vector in zip(memories, vectors, strict=True):
            await self.partitions.put(memory.owner, [Embedded(memory, vector)])

    async def out(self, owner: Owner = ANN, **asked: str) -> list[Exported]:
        return [piece async for piece in self.exporter.export(owner, **asked)]

    async def memories(self, owner: Owner = ANN, **asked: str) -> list[Memory]:
        return [piece.what for piece in await self.out(owner, **asked) if isinstance(piece.what, Memory)]

    async def bring(self, *fields: Mapping[str, Any], owner: Owner = ANN, **how: bool) -> ImportReport:
        importing = self.importer.begin(owner, **how)
        for one in fields:
            await importing.take(one)
        return await importing.finish()


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with made.partitions:
        yield made


def fields_of(memory: Memory, **changes: Any) -> dict[str, Any]:
    record = record_of(memory)
    return {name: getattr(record, name) for name in record.__struct_fields__} | changes


def a_fact(**changes: Any) -> dict[str, Any]:
    return {"type": "semantic", "content": "likes tea", **changes}


# --- out ---------------------------------------------------------------------------------------------
async def test_everything_comes_out_oldest_first_and_nobody_elses(desk: Desk) -> None:
    mine = [a_memory(f"fact {n}", created_at=later(days=n % 5), updated_at=later(days=9)) for n in range(20)]
    old = a_memory("old", state=MemoryState.SUPERSEDED, superseded_by=mine[0].id)
    await desk.has(*mine, old, a_memory("bob's", BOB), a_memory("the other ann's", OTHER_ANN))
    found = await desk.memories()
    assert sorted(found, key=lambda one: (one.created_at, one.id)) == found
    assert {one.id for one in found} == {one.id for one in (*mine, old)}
    assert await desk.exporter.count(ANN) == 21


async def test_what_is_dated_behind_the_present_came_in_at_the_present(desk: Desk) -> None:
    """Forgetting goes by when things were said: a file cannot date anything beyond its reach."""
    ahead = later(days=4000)
    await desk.bring(fields_of(a_memory("likes tea", created_at=ahead, updated_at=ahead, metadata={"said": 1e18})))
    (found,) = await desk.memories()
    now = desk.importer.now()
    assert found.created_at <= now
    assert found.updated_at <= now
    assert found.provenance.said is not None
    assert found.provenance.said <= now.timestamp()


async def test_an_export_that_broke_off_goes_on_where_it_was(desk: Desk) -> None:
    await desk.has(*(a_memory(f"fact {n}", created_at=later(days=n % 3)) for n in range(20)))
    await desk.journal.append(a_turn("where do I live?"))
    whole = await desk.out()
    for broken_at in range(len(whole)):
        after = whole[broken_at - 1].place if broken_at else ""
        assert await desk.out(after=after) == whole[broken_at:] or broken_at > 20


async def test_a_place_that_is_none_is_refused(desk: Desk) -> None:
    for after in ("m.1", "m.x.y", "m.1.a b", "j.1", "rest."):
        with pytest.raises(PermanentError):
            await desk.out(after=after)


async def test_what_is_not_learned_yet_and_the_choices_of_consent_come_along(desk: Desk) -> None:
    waits, is_learned = a_turn("I moved to Oslo"), a_turn("I have a cat")
    await desk.journal.append(waits)
    await desk.journal.append(is_learned)
    await desk.journal.append(a_turn("bob's", owner=BOB))
    await desk.journal.mark_learned(await desk.journal.get(ANN, [is_learned.id]))
    turn, consent = [piece.what for piece in await desk.out()]
    assert not isinstance(turn, Memory | ConsentChange)
    assert turn.turn == waits
    assert isinstance(consent, ConsentChange)


async def test_a_project_comes_out_alone(desk: Desk) -> None:
    await desk.has(a_memory("in"), a_memory("inside", project="p"))
    await desk.journal.append(a_turn("in the project", project="p"))
    await desk.journal.append(a_turn("elsewhere"))
    found = await desk.out(project="p")
    assert [getattr(one.what, "project", "") or _turn(one.what).project for one in found] == ["p", "p"]


def _turn(what: object) -> Turn:
    assert not isinstance(what, Memory | ConsentChange)
    entry: JournalEntry = what  # type: ignore[assignment]
    return entry.turn


async def test_what_is_forgotten_while_it_comes_out_is_left_out(desk: Desk) -> None:
    await desk.has(*(a_memory(f"fact {n}") for n in range(20)))
    found = []
    async for piece in desk.exporter.export(ANN):
        found.append(piece)
        await desk.partitions.delete_owner(ANN)
    assert len(found) <= 8  # a page, and the choice of consent


# --- in ----------------------------------------------------------------------------------------------
async def test_what_went_out_comes_in_to_an_empty_store_and_is_the_same_again(desk: Desk) -> None:
    new = a_memory("budget 2", importance=0.9, session="s", metadata={"subject": "budget"})
    old = replace(a_memory("budget 1"), state=MemoryState.SUPERSEDED, superseded_by=new.id, valid_to=MONDAY)
    said = a_message("I like tea", session="s", seq=3)
    went_out = [fields_of(one) for one in (old, new, said)]
    assert await desk.bring(*went_out) == ImportReport(added=3)
    back = {one.content: one for one in await desk.memories()}
    assert back["budget 1"].superseded_by == back["budget 2"].id
    for memory in (new, said):
        there = back[memory.content]
        assert trust_of(there) is Trust.IMPORT  # a file can say anything of itself
        assert with_trust(replace(there, id=memory.id, embed_model=""), Trust.CALLER) == memory
    assert await desk.bring(*went_out) == ImportReport(same=3)
    assert await desk.bring(*map(fields_of, back.values())) == ImportReport(same=3)


async def test_what_was_used_since_it_went_out_is_still_the_same(desk: Desk) -> None:
    memory = a_memory("likes tea", metadata={"subject": "user"})
    await desk.has(replace(memory, access_count=3, provenance=Provenance(subject="user", accessed=1_800_000_000)))
    assert await desk.bring(fields_of(memory)) == ImportReport(same=1)


async def test_what_is_brought_is_found_by_the_next_recall(desk: Desk) -> None:
    await desk.bring(a_fact())
    found = await desk.partitions.nearest(ANN, await EMBEDDER.embed_query("likes tea"), 5, Scope())
    assert [one.memory.content for one in found.found] == ["likes tea"]


async def test_an_id_of_somebody_else_writes_over_nothing(desk: Desk) -> None:
    bobs = a_memory("bob's secret", BOB)
    await desk.has(bobs)
    assert (await desk.bring(fields_of(bobs, content="mine now"))).added == 1
    assert [one.content for one in await desk.memories(BOB)] == ["bob's secret"]
    (mine,) = await desk.memories()
    assert mine.id != bobs.id


async def test_whoever_brings_it_owns_it_whatever_it_says(desk: Desk) -> None:
    await desk.bring(a_fact(user_id="bob", tenant_id="globex"))
    assert len(await desk.memories()) == 1
    assert not await desk.memories(BOB)


async def test_a_memory_that_is_there_with_other_words_is_a_conflict_and_stays(desk: Desk) -> None:
    memory = a_memory("budget 1")
    await desk.has(memory)
    report = await desk.bring(a_fact(), fields_of(memory, content="budget 2"))
    assert (report.added, report.conflicting) == (1, 1)
    assert [(one.index, one.id, one.reason) for one in report.problems] == [(1, memory.id, "conflict")]
    assert "budget" not in report.problems[0].message


async def test_on_demand_it_takes_the_place_and_the_old_one_is_kept_as_a_version(desk: Desk) -> None:
    memory = a_memory("budget 1")
    await desk.has(memory)
    assert (await desk.bring(fields_of(memory, content="budget 2"), replace=True)).replaced == 1
    by_content = {one.content: one for one in await desk.memories()}
    assert by_content["budget 2"].id == memory.id
    version = by_content["budget 1"]
    assert (version.state, version.superseded_by) == (MemoryState.SUPERSEDED, memory.id)
    assert version.valid_to == later(days=1)


async def test_what_is_held_back_for_review_cannot_be_overwritten(desk: Desk) -> None:
    memory = a_memory("budget 1", state=MemoryState.QUARANTINED)
    await desk.has(memory)
    report = await desk.bring(fields_of(memory, state="active"), replace=True)
    assert report.conflicting == 1


async def test_a_trial_changes_nothing_and_says_the_same(desk: Desk) -> None:
    memory = a_memory("budget 1")
    await desk.has(memory)
    brought = [a_fact(), fields_of(memory, content="budget 2"), a_fact(content="CANARY")]
    tried = await desk.bring(*brought, replace=True, dry_run=True)
    assert [one.content for one in await desk.memories()] == ["budget 1"]
    assert await desk.bring(*brought, replace=True) == tried


async def test_one_that_comes_twice_counts_once(desk: Desk) -> None:
    assert await desk.bring(a_fact(), a_fact(), a_fact(content="has a cat")) == ImportReport(added=2, same=1)


async def test_what_was_forgotten_does_not_come_back(desk: Desk) -> None:
    report = await desk.bring(a_fact(content="the CANARY sings"), a_fact())
    assert (report.added, report.refused) == (1, 1)
    assert report.problems[0].reason == "forgotten"
    assert [one.content for one in await desk.memories()] == ["likes tea"]


async def test_what_was_forgotten_by_its_id_does_not_come_back_under_another(desk: Desk) -> None:
    memory = a_memory("likes tea")
    desk.forgotten.ids = {memory.id}
    report = await desk.bring(fields_of(memory))
    assert (report.added, [one.reason for one in report.problems]) == (0, ["forgotten"])


async def test_a_forget_while_it_comes_in_stops_it(desk: Desk) -> None:
    importing = desk.importer.begin(ANN)
    for n in range(5):
        await importing.take(a_fact(content=f"fact {n}"))
    await desk.coordination.advance_epoch(ANN)
    await desk.partitions.delete_owner(ANN)
    report = await importing.finish()
    assert {one.reason for one in report.problems} == {"forgotten"}
    assert not await desk.memories()


async def test_without_consent_nothing_is_taken_in(desk: Desk) -> None:
    for said in (Consent.OFF, Consent.RECALL_ONLY, None):
        desk.consent.said = said
        report = await desk.bring(a_fact())
        assert [one.reason for one in report.problems] == ["no_consent"]
    assert not await desk.memories()


@pytest.mark.parametrize(
    ("wrong", "reason", "said"),
    [
        ({"type": "opinion"}, "bad_field", "`type`"),
        ({"content": ""}, "bad_field", "`content`"),
        ({"content": " \n"}, "bad_field", "`content`"),
        ({"content": "x" * 8193}, "too_large", "`content`"),
        ({"content": "é" * 4097}, "too_large", "`content`"),
        ({"content": "\ud800"}, "bad_field", ""),
        ({"id": "a b"}, "bad_field", "`id`"),
        ({"id": 7}, "bad_field", "`id`"),
        ({"importance": 1.1}, "bad_field", "`importance`"),
        ({"importance": float("nan")}, "bad_field", "`importance`"),
        ({"project_id": "p" * 257}, "too_large", "`project_id`"),
        ({"session_id": "a\nb"}, "bad_field", "`session_id`"),
        ({"seq": -1}, "bad_field", "`seq`"),
        ({"expires_at": "soon"}, "bad_field", "`expires_at`"),
        ({"metadata": {"a": "x" * 17000}}, "too_large", "`metadata`"),
        ({"metadata": {"a": [[[[[[[[1]]]]]]]]}}, "bad_field", "`metadata`"),
        ({"state": "deleted"}, "deleted", ""),
        ({"favourite": True}, "bad_field", "favourite"),
    ],
)
async def test_a_memory_that_cannot_be_kept_is_refused_by_name(
    desk: Desk, wrong: dict[str, Any], reason: str, said: str
) -> None:
    report = await desk.bring(a_fact(**wrong), a_fact(content="has a cat"))
    assert (report.added, report.refused) == (1, 1)
    assert report.problems[0].reason == reason
    assert said in report.problems[0].message


async def test_what_it_is_marked_with_is_kept(desk: Desk) -> None:
    await desk.bring(a_fact(source="llm", created_at="2026-03-01T00:00:00Z", expires_at="2027-01-01"))
    (memory,) = await desk.memories()
    assert (memory.source, memory.type) == (Source.LLM, MemoryType.SEMANTIC)
    assert memory.created_at == MONDAY.replace(hour=0) - timedelta(days=1)
    assert memory.expires_at is not None
    assert memory.embed_model == EMBEDDER.fingerprint


async def test_a_store_that_is_down_is_told_and_the_import_can_be_made_again(desk: Desk) -> None:
    desk.store.weather.down = True
    with pytest.raises(TransientError):
        await desk.bring(a_fact())
    desk.store.weather.down = False
    report = await desk.bring(a_fact())
    assert report.added + report.same == 1
    assert len(await desk.memories()) == 1


async def test_a_store_that_is_away_for_a_moment_ends_no_import(desk: Desk) -> None:
    desk.store.busy = 2
    assert (await desk.bring(a_fact())).added == 1
    assert desk.store.busy == 0


async def test_no_more_than_a_thousand_problems_are_told(desk: Desk) -> None:
    report = await desk.bring(*(a_fact(content="") for _ in range(1200)))
    assert (report.refused, len(report.problems)) == (1200, 1000)


async def test_ten_thousand_memories_come_out_with_few_of_them_in_memory(desk: Desk) -> None:
    vector = (await EMBEDDER.embed(["x"]))[0]
    words = "w" * 1000
    for start in range(0, 10_000, 500):
        rows = [a_memory(f"{n} {words}", created_at=later(minutes=n % 97)) for n in range(start, start + 500)]
        await desk.store.put(ANN, [Embedded(row, vector) for row in rows])
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        size = count = 0
        async for piece in desk.exporter.export(ANN):
            if isinstance(piece.what, Memory):
                size, count = size + len(line_of(record_of(piece.what))), count + 1
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 10_000
    assert most - before < size / 10


@pytest.mark.parametrize("owner", [ANN, BOB], ids=["to whom has a part of it", "to another"])
async def test_a_summary_that_is_brought_names_its_messages_by_the_ids_that_they_have_here(
    desk: Desk, owner: Owner
) -> None:
    said = [a_message(f"I fly to Hawaii on {day} May") for day in (11, 12)]
    await desk.has(said[0])
    named = [one.id for one in said]
    summary = a_memory("Hawaii: on 11 May.", source=Source.SUMMARY, metadata={"kind": "topic", "sources": named})
    for _ in range(2):
        report = await desk.bring(*map(fields_of, (summary, *said)), owner=owner)
    assert (report.added, report.conflicting) == (0, 0)
    rows = {one.id: one for one in await desk.memories(owner)}
    (brought,) = [one for one in rows.values() if one.source is Source.SUMMARY]
    assert [rows[id_].content for id_ in brought.provenance.sources] == [one.content for one in said]
