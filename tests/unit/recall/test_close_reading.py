"""Candidates read word by word, as far as their words are known in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.errors import TransientError
from memory_extproc.index.entries import unpack
from memory_extproc.index.features import ANOTHER, CLOSELY, CLOSELY_AROUND, CLOSELY_BEFORE, FOREIGN
from memory_extproc.model import Candidates, Embedded, Matrix, Memory, Scope, SearchQuery
from memory_extproc.observe.metrics import Metrics
from memory_extproc.recall.fusion import FEW, PACKAGED, packaged_weights
from memory_extproc.recall.late_interaction import (
    FADES,
    CloseReading,
    LateInteractionScorer,
    QuestionProjection,
    matches,
    packaged_projection,
    surroundings,
    telling,
)
from memory_extproc.store.resident import ResidentRows
from tests.support.builders import MONDAY, a_memory, a_message
from tests.support.canned import CannedWords

ASKED = "Where does the parrot sleep?"
TEXTS = ("The parrot has a cage by the window", "My brother plays chess", "The cat sleeps on the sofa")
PATIENT = timedelta(seconds=30)


class Bench:
    def __init__(
        self,
        embedder: CannedWords | None = None,
        waits: timedelta = timedelta(),
        projection: QuestionProjection | None = None,
    ) -> None:
        self.embedder = embedder or CannedWords()
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.reader = LateInteractionScorer(self.embedder, waits, self.metrics, projection)

    async def candidates(self, *texts: str, vectors: bool = True) -> Candidates:
        return await self.candidates_of(*map(a_memory, texts), vectors=vectors)

    async def candidates_of(self, *memories: Memory, vectors: bool = True) -> Candidates:
        held = ResidentRows()
        rows = await self.embedder.embed([memory.content for memory in memories])
        for memory, vector in zip(memories, rows, strict=True):
            held.put(Embedded(memory, vector))
        vector = await self.embedder.embed_query(ASKED) if vectors else None
        return held.candidates(SearchQuery(ASKED, vector), 10, Scope(), MONDAY)

    def ended(self, how: CloseReading) -> float:
        labels = {"outcome": how.value}
        return self.metrics.registry.get_sample_value("memory_extproc_close_readings_total", labels) or 0.0


def by_text(found: Candidates, name: str = CLOSELY) -> dict[str, float]:
    values = found.features[:, found.names.index(name)].tolist()
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
    words = [known for known in bench.embedder.words(texts) if known is not None]
    query = bench.embedder.words(["Has Caroline a parrot"])[0]
    assert query is not None
    best = matches(unpack(query), words)
    found = best @ telling(best, np.ones(best.shape[1]))
    assert found[0] > 0.9
    assert (found[1:] < 0.4).all()


async def moving(embedder: CannedWords, word: str, towards: str, importance: float = 0.0) -> QuestionProjection:
    """A projection that moves *word* near another word, and lets it count more or less."""
    await embedder.embed([word, towards])
    asked, answer = (unpack(known)[0] for known in embedder.words([word, towards]) if known is not None)
    matrix = np.eye(len(asked), dtype=np.float32) + 5.0 * np.outer(asked, answer)
    return QuestionProjection(matrix.astype(np.float32), (importance * asked).astype(np.float32))


HELD = ("The parrot is green", "A cage stands by the window", "My brother plays chess")


async def test_a_projected_question_meets_the_words_of_its_answer() -> None:
    bench = Bench()
    plain = await bench.reader.read(ASKED, await bench.candidates(*HELD))
    moved = Bench(bench.embedder, projection=await moving(bench.embedder, "sleep", "cage"))
    read = await moved.reader.read(ASKED, await moved.candidates(*HELD))
    assert not plain.projected
    assert read.projected
    assert by_text(read)[HELD[1]] > by_text(plain)[HELD[1]] + 0.2
    assert by_text(read)[HELD[1]] > by_text(read)[HELD[2]]


async def test_words_of_a_projected_question_count_by_their_importance() -> None:
    bench = Bench()
    shares = []
    for importance in (-3.0, 3.0):
        projection = await moving(bench.embedder, "sleep", "cage", importance)
        read = by_text(
            await Bench(bench.embedder, projection=projection).reader.read(ASKED, await bench.candidates(*HELD))
        )
        shares.append(read[HELD[1]] - read[HELD[0]])
    assert shares[0] < 0 < shares[1]


async def test_questions_in_other_languages_large_stores_and_talks_of_several_people_are_read_as_they_are() -> None:
    bench = Bench()
    bench = Bench(bench.embedder, projection=await moving(bench.embedder, "sleep", "cage"))
    assert not (await bench.reader.read("Wo schläft mein Papagei?", await bench.candidates(*HELD))).projected
    found = await bench.candidates(*HELD)
    assert (await bench.reader.read(ASKED, replace(found, searched=FEW - 1))).projected
    assert not (await bench.reader.read(ASKED, replace(found, searched=FEW))).projected
    talk = await bench.candidates("Ann: The parrot is green", "Bob: A cage stands by the window", "It rains")
    assert not (await bench.reader.read(ASKED, talk)).projected


def test_the_packaged_model_has_a_projection_and_another_has_none() -> None:
    fingerprint = packaged_weights().embedding_models[0]
    projection = packaged_projection(fingerprint)
    assert projection is not None
    words = np.eye(384, dtype=np.float32)[:5]
    moved, importance = projection.project(words)
    assert np.linalg.norm(moved, axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    assert (importance > 0).all()
    assert packaged_projection(f"{PACKAGED[0]}/int8/another") is None
    assert packaged_projection("unknown/int8/1") is None


async def test_the_order_of_candidates_shows_in_no_value() -> None:
    bench = Bench()
    there = by_text(await bench.reader.read(ASKED, await bench.candidates(*TEXTS)))
    back = by_text(await bench.reader.read(ASKED, await bench.candidates(*reversed(TEXTS))))
    assert there == pytest.approx(back)


CHAT = (
    a_message("Do you have a parrot?", session="monday", seq=0),
    a_message("Yes, two of them!", session="monday", seq=1),
    a_message("They nap in the kitchen", session="monday", seq=2),
    a_message("I paint on Sundays", session="monday", seq=3),
    a_message("Yes, a blue one!", session="tuesday", seq=1),
)
MET = np.array([[0.9, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1]])  # by the words of each of them
EVENLY = np.array([0.5, 0.5])


def around_and_before(
    memories: Sequence[Memory], met: np.ndarray = MET, known: Sequence[bool] = (True,) * 5
) -> list[tuple[float, float]]:
    found = surroundings(met, EVENLY, memories, np.array(known))
    return [(around, before) for around, before in found.tolist()]


def test_an_answer_meets_the_words_of_the_question_before_it_and_the_less_the_farther_off_it_stands() -> None:
    asks, answers, naps, paints, elsewhere = (before for _, before in around_and_before(CHAT))
    assert asks == pytest.approx(0.5)
    assert asks > answers > naps > paints > elsewhere
    assert elsewhere == pytest.approx(0.1)


def test_what_is_said_behind_a_message_stands_around_it_but_not_before_it() -> None:
    turned = [replace(one, seq=3 - one.seq) if one.session == "monday" else one for one in CHAT]
    asks, answers, naps, paints, elsewhere = around_and_before(turned)
    assert [before for _, before in (answers, naps, paints, elsewhere)] == pytest.approx([0.1] * 4)
    assert asks[0] > answers[0] > naps[0] > paints[0] > elsewhere[0]


def test_a_fact_meets_the_words_of_the_message_it_was_taken_from() -> None:
    fact = a_memory("User owns a bird", session="monday", seq=0)
    for memories in ((*CHAT[:4], fact), (fact, *CHAT[1:4], CHAT[0])):
        met = np.array([[0.9, 0.1] if one is CHAT[0] else [0.1, 0.1] for one in memories])
        found = dict(zip((one.id for one in memories), around_and_before(memories, met), strict=True))
        assert found[fact.id] == pytest.approx(found[CHAT[0].id])


def test_a_message_whose_words_are_not_at_hand_still_has_those_of_the_question_it_answers() -> None:
    known = (True, False, True, True, True)
    found = around_and_before(CHAT, MET[list(known)], known)
    assert found[1] == pytest.approx(tuple(value - FADES for value in found[0]))


def test_places_however_far_apart_give_numbers_of_the_usual_size() -> None:
    far = [a_message(f"message {seq}", session="long", seq=seq) for seq in (0, 1, 2**31, 2**40, 2**62)]
    for each in around_and_before(far):
        assert all(0.1 - 1e-9 <= value <= 0.5 + 1e-9 for value in each)


@given(st.permutations(range(5)))
def test_the_order_of_candidates_shows_in_nothing_that_stands_around_them(order: list[int]) -> None:
    there = around_and_before(CHAT)
    found = around_and_before([CHAT[at] for at in order], MET[order])
    assert found == [pytest.approx(there[at]) for at in order]


async def test_nothing_stands_around_what_was_said_in_no_session() -> None:
    bench = Bench()
    read = await bench.reader.read(ASKED, await bench.candidates_of(*CHAT, a_memory(TEXTS[0])))
    for name in (CLOSELY_AROUND, CLOSELY_BEFORE):
        values = by_text(read, name)
        assert np.isnan(values.pop(TEXTS[0]))
        assert np.isfinite(list(values.values())).all()
        assert read.centre[read.names.index(name)] == pytest.approx(np.mean(list(values.values())))


async def test_mean_and_spread_are_those_of_the_candidates_that_were_read() -> None:
    bench = Bench()
    found = await bench.reader.read(ASKED, await bench.candidates(*TEXTS))
    values = np.array(list(by_text(found).values()))
    at = found.names.index(CLOSELY)
    assert (found.centre[at], found.spread[at]) == (pytest.approx(values.mean()), pytest.approx(values.std()))


async def test_words_that_are_not_known_are_learned_where_there_is_time() -> None:
    bench = Bench(waits=PATIENT)
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
    assert np.isfinite(read.features[:, read.names.index(CLOSELY)]).all()
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
    bench = Bench(embedder, timedelta(milliseconds=1))
    found = await bench.candidates(*TEXTS)
    embedder.forget_words()
    embedder.let.clear()
    before = embedder.batches
    for _ in range(2):
        assert (await bench.reader.read(ASKED, found)) is found
    assert (bench.ended(CloseReading.LATE), embedder.batches - before) == (2, 1)
    embedder.let.set()


async def test_a_model_that_fails_leaves_the_candidates_as_they_are() -> None:
    bench = Bench(waits=PATIENT)
    found = await bench.candidates(*TEXTS)
    bench.embedder.forget_words()
    bench.embedder.failing = TransientError("down")
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


async def test_what_is_about_somebody_else_is_told_from_what_is_about_the_one_who_asks() -> None:
    bench = Bench(waits=PATIENT)
    sister, own = "My sister has just moved to Toronto.", "I live in Cork."
    found = await bench.candidates(sister, own)
    assert by_text(await bench.reader.read("Where do I live?", found), ANOTHER) == {sister: 1.0, own: 0.0}
    assert by_text(await bench.reader.read("Where does my sister live?", found), ANOTHER)[sister] == -1.0


@pytest.mark.parametrize(
    ("question", "is_foreign"),
    [("Where do I live?", 0.0), ("Wo wohne ich?", 1.0), ("\u6211\u4f4f\u5728\u54ea\u91cc\uff1f", 1.0), ("", 0.0)],
)
async def test_a_question_in_another_language_is_known_as_one(question: str, is_foreign: float) -> None:
    bench = Bench(waits=PATIENT)
    read = await bench.reader.read(question, await bench.candidates("The cat sleeps"))
    assert set(by_text(read, FOREIGN).values()) == {is_foreign}


async def test_a_pasted_log_does_not_say_what_is_usual_among_what_people_say() -> None:
    bench = Bench(waits=PATIENT)
    said = [a_memory(text) for text in TEXTS]
    log = [a_memory(f"parrot {at} sleep", metadata={"piece": at}) for at in range(5)]
    alone = await bench.reader.read(ASKED, await bench.candidates_of(*said))
    few = await bench.reader.read(ASKED, await bench.candidates_of(*said, *log))
    at = alone.names.index(CLOSELY)
    own = [value for text, value in by_text(few).items() if text in TEXTS]
    assert few.centre[at] == pytest.approx(np.mean(own))
    assert alone.centre[at] == pytest.approx(np.mean(list(by_text(alone).values())))
