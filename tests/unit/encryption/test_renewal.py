"""A key that a forget destroys takes what was forgotten with it, and nothing that is to stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from memory_extproc.encryption.codecs import EncryptedCoordination
from memory_extproc.encryption.keys import RenewedKeys
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import ANN, BOB, MONDAY, a_turn
from tests.unit.encryption.behind_keys import Bench, a_row

HOUR = timedelta(hours=1)


async def test_what_was_said_after_the_forget_is_sealed_anew_and_stays() -> None:
    bench = Bench()
    await bench.store.put(ANN, [a_row("stays")])
    await bench.store.put(BOB, [a_row("Bob's", BOB)])
    waiting, done = a_turn("waits"), a_turn("is done")
    for turn in (waiting, done):
        await bench.journal.append(turn)
    await bench.journal.mark_learned(await bench.journal.get(ANN, [done.id]))
    before = await bench.keys.of(ANN)
    assert await RenewedKeys(bench.keys, bench.store, bench.journal).destroy(ANN)
    assert await bench.keys.of(ANN) != before
    assert await bench.contents() == ["stays"]
    assert await bench.contents(BOB) == ["Bob's"]
    assert [entry.turn.asked for entry in await bench.journal.pending(10)] == ["waits"]


async def test_who_has_nothing_left_has_no_key_left() -> None:
    bench = Bench()
    keys = RenewedKeys(bench.keys, bench.store, bench.journal)
    await keys.of(ANN)
    assert await keys.destroy(ANN)
    assert await keys.find(ANN) is None
    assert not await keys.destroy(ANN)


async def test_a_record_rests_without_its_words_and_is_gone_with_its_key() -> None:
    bench = Bench()
    plain = InMemoryCoordination(lambda: MONDAY)
    sealed = EncryptedCoordination(plain, bench.keys)
    await sealed.put_record("given", ANN, "k", b'["canary"]', HOUR)
    rests = await plain.get_record("given", ANN, "k")
    assert rests is not None
    assert b"canary" not in rests
    assert await sealed.get_record("given", ANN, "k") == b'["canary"]'
    await plain.put_record("given", ANN, "other", rests, HOUR)
    assert await sealed.get_record("given", ANN, "other") is None
    await bench.keys.destroy(ANN)
    assert await sealed.get_record("given", ANN, "k") is None
    assert await sealed.replace_record("given", ANN, "k", None, b"[]", HOUR)
    assert await sealed.get_record("given", ANN, "k") == b"[]"


async def test_a_record_from_before_is_read_and_sealed_when_it_is_replaced() -> None:
    bench = Bench()
    plain = InMemoryCoordination(lambda: MONDAY)
    sealed = EncryptedCoordination(plain, bench.keys)
    await plain.put_record("given", ANN, "k", b"[1]", HOUR)
    assert await sealed.get_record("given", ANN, "k") == b"[1]"
    assert not await sealed.replace_record("given", ANN, "k", b"[2]", b"[3]", HOUR)
    assert await sealed.replace_record("given", ANN, "k", b"[1]", b"[2]", HOUR)
    assert (await plain.get_record("given", ANN, "k") or b"")[:1] == b"\x01"


async def test_a_turn_that_arrives_while_the_key_goes_is_kept() -> None:
    bench = Bench()
    renewed = RenewedKeys(bench.keys, bench.store, bench.journal)
    turn = a_turn("arrives")
    await bench.journal.append(turn)
    await renewed.destroy(ANN)
    await bench.journal.append(replace(turn, answered="with another answer"))
    (entry,) = await bench.journal.pending(10)
    assert entry.turn.answered == "with another answer"
