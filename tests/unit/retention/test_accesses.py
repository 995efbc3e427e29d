"""Accesses are counted without a write each."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from memory_extproc.model import Embedded, Outcome, Ranked, RecallRequest, RecallResult
from memory_extproc.retention.usage import Accesses, CountedRecalls
from tests.support.builders import ANN, MONDAY, a_memory, a_wish
from tests.support.waiting import until
from tests.unit.retention.keeping import Desk


def counting(desk: Desk, interval: timedelta = timedelta(minutes=15), **limits: Any) -> Accesses:
    return Accesses(desk.partitions, lambda: interval, now=desk.clock, rng=lambda: 0.5, **limits)


async def test_accesses_are_counted_without_a_write_each_and_written_together(desk: Desk) -> None:
    one, two = a_memory("one"), a_memory("two")
    await desk.put(one, two)
    before = len(desk.store.weather.calls)
    async with counting(desk) as accesses:
        for _ in range(5):
            accesses.note([one, two])
        assert len(desk.store.weather.calls) == before
    rows = await desk.rows()
    assert rows[one.id].access_count == rows[two.id].access_count == 5
    assert rows[one.id].provenance.accessed == int(desk.clock.now.timestamp())
    assert desk.store.weather.calls[before:].count("put") == 1


async def test_counting_undoes_no_correction_and_brings_nothing_forgotten_back(desk: Desk) -> None:
    one, two, three = a_memory("one"), a_memory("two"), a_memory("three")
    await desk.put(one, two, three)
    accesses = counting(desk)
    accesses.note([one, two, three])
    corrected = replace(one, content="corrected")
    await desk.partitions.change(ANN, one.id, lambda row: [Embedded(corrected, row.vector)])
    await desk.partitions.delete(ANN, [two.id])
    await desk.partitions.supersede(ANN, three.id, one.id, MONDAY)
    assert await accesses.write() == 1
    rows = await desk.rows()
    assert (rows[one.id].content, rows[one.id].access_count) == ("corrected", 1)
    assert two.id not in rows
    assert rows[three.id].access_count == 0


async def test_counts_are_bounded_and_a_store_that_is_away_costs_them_alone(desk: Desk) -> None:
    rows = [a_memory(f"fact {number}") for number in range(5)]
    await desk.put(*rows)
    accesses = counting(desk, most=3)
    accesses.note(rows)
    desk.store.weather.down = True
    assert await accesses.write() == 0
    desk.store.weather.down = False
    assert await accesses.write() == 0
    accesses.note(rows[:1])
    assert await accesses.write() == 1


async def test_counts_are_written_every_interval(desk: Desk) -> None:
    one = a_memory("one")
    await desk.put(one)
    async with counting(desk, interval=timedelta(milliseconds=2)) as accesses:
        accesses.note([one])

        async def counted() -> bool:
            return bool((await desk.rows())[one.id].access_count)

        await until(counted, "the access is counted")


async def test_what_recall_gave_is_counted_and_what_it_only_found_is_not(desk: Desk) -> None:
    one = a_memory("one")
    await desk.put(one)

    class Recaller:
        outcome = Outcome.USED

        async def recall(self, wish: RecallRequest) -> RecallResult:
            return RecallResult(outcome=self.outcome, block="one", memories=(Ranked(one, 0.9),))

    recaller, accesses = Recaller(), counting(desk)
    counted = CountedRecalls(recaller, accesses)
    await counted.recall(a_wish("what?"))
    recaller.outcome = Outcome.SHADOWED
    await counted.recall(a_wish("what?"))
    await accesses.write()
    assert (await desk.rows())[one.id].access_count == 1
