"""Candidates read word by word, as far as their words are known in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TryLaterError
from memory_extproc.index.features import CLOSELY
from memory_extproc.inference.canned import CannedWords
from memory_extproc.model import Candidates, Embedded, Matrix, Scope, Sought
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.close_reading import CloseReader, CloseReading, CloseReadingLimits, closeness
from memory_extproc.store.held import Held
from tests.builders import MONDAY, a_memory

ASKED = "Where does the parrot sleep?"
TEXTS = ("The parrot has a cage by the window", "My brother plays chess", "The cat sleeps on the sofa")
FEW = CloseReadingLimits(fewest=1)  # the stores here are small
PATIENT = replace(FEW, waits=timedelta(seconds=30))


class Bench:
    def __init__(self, embedder: CannedWords | None = None, limits: CloseReadingLimits | None = None) -> None:
        self.embedder = embedder or CannedWords()
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.reader = CloseReader(self.embedder, limits or FEW, self.metrics)

    async def candidates(self, *texts: str, vectors: bool = True) -> Candidates:
        held = Held()
        for text, vector in zip(texts, await self.embedder.embed(texts), strict=True):
            held.put(Embedded(a_memory(text), vector))
        vector = await self.embedder.embed_query(ASKED) if vectors else None
        return held.candidates(Sought(ASKED, vector), 10, Scope(), MONDAY)

    def ended(self, how: CloseReading) -> float:
        labels = {"outcome": how.value}
        return self.metrics.registry.get_sample_value("memory_extproc_close_readings_total", labels) or 0.0


def by_text(found: Candidates) -> dict[str, float]:
    values = found.features[:, found.names.index(CLOSELY)].tolist()
    return {memory.content: value for memory, value in zip(found.memories, values, strict=True)}


async def test_a_memory_that_meets_the_words_of_the_question_reads_closer_than_one_that_meets_none() -> None:
    bench = Bench()
    read = by_text(await bench.reader.read(ASKED, await bench.candidates(*TEXTS)))
    assert read[TEXTS[0]] > read[TEXTS[1]]
    assert read[TEXTS[2]] > read[TEXTS[1]]
    assert bench.ended(CloseReading.READ) == 1


async def test_a_word_that_all_candidates_have_tells_nothing() -> None:
    bench = Bench()
    texts = ("Caroline: a parrot sings", "Caroline: a dog barks", "Caroline: nothing new", "Caroline: it rains")
    await bench.embedder.embed([*texts, "Has Caroline a parrot"])
    words = [known for text in texts if (known := bench.embedder.words(text)) is not None]
    query = bench.embedder.words("Has Caroline a parrot")
    assert query is not None
    found = closeness(query, words)
    assert found[0] > 0.9
    assert (found[1:] < 0.4).all()


async def test_the_order_of_candidates_shows_in_no_value() -> None:
    bench = Bench()
    there = by_text(await bench.reader.read(ASKED, await bench.candidates(*TEXTS)))
    back = by_text(await bench.reader.read(ASKED, await bench.candidates(*reversed(TEXTS))))
    assert there == pytest.approx(back)


async def test_mean_and_spread_are_those_of_the_candidates_that_were_read() -> None:
    bench = Bench()
    found = await bench.reader.read(ASKED, await bench.candidates(*TEXTS))
    values = np.array(list(by_text(found).values()))
    assert (found.centre[-1], found.spread[-1]) == (pytest.approx(values.mean()), pytest.approx(values.std()))


async def test_words_that_are_not_known_are_learned_where_there_is_time() -> None:
    bench = Bench(limits=PATIENT)
    found = await bench.candidates(*TEXTS)
    bench.embedder.forget_words()
    assert CLOSELY in (await bench.reader.read(ASKED, found)).names


class SlowWords(CannedWords):
    """Embeds only once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let, self.through, self.batches = asyncio.Event(), asyncio.Event(), 0
        self.let.set()

    async def embed(self, texts: Sequence[str]) -> Matrix:
        self.batches += 1
        await self.let.wait()
        rows = await super().embed(texts)
        self.through.set()
        return rows


async def test_a_request_waits_for_no_memory_to_be_embedded_and_a_later_one_knows_its_words() -> None:
    embedder = SlowWords()
    bench = Bench(embedder)
    found = await bench.candidates(*TEXTS)
    embedder.forget_words()
    embedder.let.clear()
    embedder.through.clear()
    before = embedder.batches
    for _ in range(3):
        assert (await bench.reader.read(ASKED, found)) is found
        await asyncio.sleep(0)  # what goes on behind it may begin
    embedder.let.set()
    await asyncio.wait_for(embedder.through.wait(), 5)
    assert CLOSELY in (await bench.reader.read(ASKED, found)).names
    assert [bench.ended(how) for how in (CloseReading.UNKNOWN, CloseReading.READ)] == [3, 1]
    assert embedder.batches - before == 1


async def test_the_few_memories_whose_words_are_not_at_hand_have_a_guess_by_their_own_vectors() -> None:
    bench = Bench()
    texts = [*TEXTS, "My sister has moved to Leeds", "Parrots live long"]
    whole = await bench.candidates(*texts)
    known = by_text(await bench.reader.read(ASKED, whole))
    bench.embedder.forget_words()
    await bench.embedder.embed([ASKED, *texts[:-1]])
    read = await bench.reader.read(ASKED, whole)
    partly = by_text(read)
    assert bench.ended(CloseReading.PARTLY) == 1
    assert np.isfinite(read.features[:, -1]).all()
    assert partly[texts[0]] > partly[texts[1]]
    assert min(known.values()) - 0.2 < partly[texts[-1]] < max(known.values()) + 0.2


async def test_with_too_few_words_at_hand_the_candidates_go_on_as_they_are() -> None:
    bench = Bench()
    found = await bench.candidates(*TEXTS)
    bench.embedder.forget_words()
    await bench.embedder.embed([ASKED, TEXTS[0]])
    assert (await bench.reader.read(ASKED, found)) is found
    assert bench.ended(CloseReading.UNKNOWN) == 1


async def test_a_question_whose_words_are_forgotten_reads_nothing_closely() -> None:
    bench = Bench()
    found = await bench.candidates(*TEXTS)
    bench.embedder.forget_words()
    await bench.embedder.embed(TEXTS)
    assert (await bench.reader.read(ASKED, found)) is found


async def test_a_model_that_takes_too_long_is_not_waited_for_and_not_asked_twice() -> None:
    embedder = SlowWords()
    bench = Bench(embedder, replace(FEW, waits=timedelta(milliseconds=1)))
    found = await bench.candidates(*TEXTS)
    embedder.forget_words()
    embedder.let.clear()
    before = embedder.batches
    for _ in range(2):
        assert (await bench.reader.read(ASKED, found)) is found
    assert (bench.ended(CloseReading.LATE), embedder.batches - before) == (2, 1)
    embedder.let.set()


async def test_a_model_that_fails_leaves_the_candidates_as_they_are() -> None:
    bench = Bench(limits=PATIENT)
    found = await bench.candidates(*TEXTS)
    bench.embedder.forget_words()
    bench.embedder.failing = TryLaterError("down")
    assert (await bench.reader.read(ASKED, found)) is found
    assert bench.ended(CloseReading.FAILED) == 1


async def test_what_was_found_by_words_alone_is_not_read() -> None:
    bench = Bench()
    found = await bench.candidates(*TEXTS, vectors=False)
    assert (await bench.reader.read(ASKED, found)) is found


async def test_nothing_found_is_nothing_read() -> None:
    bench = Bench()
    found = await bench.candidates()
    assert (await bench.reader.read(ASKED, found)) is found


async def test_in_a_store_of_a_few_memories_nothing_is_read_closely() -> None:
    bench = Bench(limits=CloseReadingLimits())
    found = await bench.candidates(*TEXTS)
    assert (await bench.reader.read(ASKED, found)) is found
