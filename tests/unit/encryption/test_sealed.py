"""Nothing a person said rests readable in store or journal, and what lost its key is as if it were not there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memory_extproc.encryption.codecs import EncryptedJournal, EncryptedStore
from memory_extproc.encryption.keys import WrappedKeys
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import DataKey, Embedded, JournalState, Owner, Provenance, Scope, Turn
from memory_extproc.store.milvus.options import CONTENT_BYTES
from tests.support.builders import ANN, BOB, a_turn
from tests.support.in_memory import InMemoryMasterKey
from tests.unit.encryption.behind_keys import NORTH, Bench, a_row

CANARY = "canary-4711"
EVERYTHING = Scope()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_row_rests_without_its_words(bench: Bench) -> None:
    row = a_row(f"My word is {CANARY}", metadata={"said": CANARY})
    await bench.store.put(ANN, [row])
    (rests,) = await bench.plain.get(ANN, [row.memory.id])
    assert CANARY not in rests.content
    assert CANARY not in str(rests.provenance.encode())
    assert replace(rests, content="", provenance=Provenance()) == replace(
        row.memory, content="", provenance=Provenance()
    )
    assert list(await bench.store.get(ANN, [row.memory.id])) == [row.memory]


async def test_a_turn_rests_without_its_words(bench: Bench) -> None:
    turn = a_turn(f"{CANARY}?", f"{CANARY}!", injected=(f"the word {CANARY}",))
    await bench.journal.append(turn)
    (rests,) = await bench.plain_journal.pending(10)
    assert CANARY not in rests.turn.asked + rests.turn.answered + "".join(rests.turn.injected)
    (entry,) = await bench.journal.pending(10)
    assert entry.turn == turn


async def test_what_is_moved_to_another_memory_or_owner_is_not_read(bench: Bench) -> None:
    ours, theirs = a_row("ours"), a_row("theirs", BOB)
    await bench.store.put(ANN, [ours])
    await bench.store.put(BOB, [theirs])
    (sealed,) = await bench.plain.get(BOB, [theirs.memory.id])
    stolen = replace(sealed, id=ours.memory.id, owner=ANN)
    await bench.plain.put(ANN, [Embedded(stolen, NORTH)])
    assert await bench.contents() == []


async def test_what_was_kept_before_it_was_sealed_is_read_and_sealed_when_it_is_written_again(bench: Bench) -> None:
    row = a_row(CANARY, metadata={"piece": 1})
    await bench.plain.put(ANN, [row])
    assert list(await bench.store.get(ANN, [row.memory.id])) == [row.memory]
    await bench.store.put(ANN, [row])
    (rests,) = await bench.plain.get(ANN, [row.memory.id])
    assert CANARY not in rests.content
    await bench.plain_journal.append(a_turn(CANARY))
    (entry,) = await bench.journal.pending(10)
    assert entry.turn.asked == CANARY


async def test_after_its_key_is_destroyed_a_row_is_never_read_again_and_hides_no_other(bench: Bench) -> None:
    old = a_row("before")
    await bench.store.put(ANN, [old])
    await bench.store.put(BOB, [a_row("Bob's", BOB)])
    await bench.keys.destroy(ANN)
    assert await bench.contents() == []
    assert bench.metrics.registry.get_sample_value("memory_extproc_rows_unreadable_total", {"why": "key_gone"}) == 1
    await bench.store.put(ANN, [a_row("after")])
    assert await bench.contents() == ["after"]
    found = await bench.store.nearest(ANN, NORTH, 10, EVERYTHING)
    assert [one.memory.content for one in found.found] == ["after"]
    assert list(await bench.store.fetch(ANN, [old.memory.id])) == []
    assert await bench.contents(BOB) == ["Bob's"]


async def test_a_turn_that_lost_its_key_is_a_dead_letter_and_keeps_nobody_waiting(bench: Bench) -> None:
    for words in ("one", "two"):
        await bench.journal.append(replace(a_turn(words), id=words))
    await bench.keys.destroy(ANN)
    await bench.journal.append(replace(a_turn("three"), id="three"))
    assert [entry.turn.asked for entry in await bench.journal.pending(2)] == ["three"]
    assert {letter.reason for letter in await bench.journal.dead(10)} == {"sealed_away"}
    assert [entry.turn.asked async for entry in bench.journal.of_owner(ANN)] == ["three"]


async def test_while_the_master_key_is_not_at_hand_nothing_is_given_up(bench: Bench) -> None:
    await bench.journal.append(a_turn("said"))
    await bench.store.put(ANN, [a_row("kept")])
    elsewhere = WrappedKeys(bench.keys._table, InMemoryMasterKey())
    for call in (
        EncryptedJournal(bench.plain_journal, elsewhere).pending(10),
        EncryptedStore(bench.plain, elsewhere, bench.metrics, content_bytes=CONTENT_BYTES).get(
            ANN, [a_row("kept").memory.id]
        ),
    ):
        with pytest.raises(TransientError, match="master key"):
            await call
    (entry,) = await bench.journal.pending(10)
    assert entry.turn.asked == "said"


class Meddled:
    """Keys of which one is destroyed just after it was given, *times* times."""

    def __init__(self, keys: WrappedKeys, times: int) -> None:
        self._keys, self._times = keys, times

    async def of(self, owner: Owner) -> DataKey:
        key = await self._keys.of(owner)
        if self._times:
            self._times -= 1
            await self._keys.destroy(owner)
        return key

    async def find(self, owner: Owner) -> DataKey | None:
        return await self._keys.find(owner)

    async def destroy(self, owner: Owner) -> bool:
        return await self._keys.destroy(owner)


async def test_what_is_written_while_a_forget_destroys_the_key_stays_readable(bench: Bench) -> None:
    store = EncryptedStore(bench.plain, Meddled(bench.keys, 1), bench.metrics, content_bytes=CONTENT_BYTES)
    await store.put(ANN, [a_row("after the forget")])
    assert await bench.contents() == ["after the forget"]
    journal = EncryptedJournal(bench.plain_journal, Meddled(bench.keys, 1))
    await journal.append(a_turn("after the forget"))
    (entry,) = await bench.journal.pending(10)
    assert entry.turn.asked == "after the forget"


async def test_a_key_that_is_destroyed_over_and_over_is_tried_again_later(bench: Bench) -> None:
    with pytest.raises(TransientError):
        await EncryptedStore(bench.plain, Meddled(bench.keys, 99), bench.metrics, content_bytes=100).put(
            ANN, [a_row("never")]
        )
    with pytest.raises(TransientError):
        await EncryptedJournal(bench.plain_journal, Meddled(bench.keys, 99)).append(a_turn("never"))


async def test_metadata_that_is_no_json_is_refused(bench: Bench) -> None:
    with pytest.raises(PermanentError, match="not JSON"):
        await bench.store.put(ANN, [a_row("x", metadata={"bad": object()})])


async def test_an_opened_entry_says_of_its_place_what_the_journal_says(bench: Bench) -> None:
    turn: Turn = a_turn("said")
    await bench.journal.append(turn)
    (entry,) = await bench.journal.pending(10)
    await bench.journal.mark_failed(entry, "TransientError", dead=True)
    assert await bench.journal.retry([turn.id]) == 1
    (entry,) = await bench.journal.arrivals(10)
    (sealed,) = await bench.plain_journal.pending(10)
    assert (entry.place, entry.state, entry.stored) == (sealed.place, JournalState.WAITING, False)
    assert (entry.replaced, entry.attempts) == (False, 0)
    assert await bench.journal.arrivals(10) == []
    assert bench.journal.holds(ANN)
    await bench.journal.end(ANN, turn.session)
    assert (await bench.journal.depth()).turns == 1
    await bench.journal.mark_stored([entry])
    assert (await bench.journal.get(ANN, [turn.id]))[0].stored
