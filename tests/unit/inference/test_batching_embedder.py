"""The order of calls, their batches, and calls that are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.index.features import LONGEST_READ
from memory_extproc.inference.batching import BatchingEmbedder, Run, WordVectors
from memory_extproc.model import Matrix
from memory_extproc.settings.memory import Embedding


class GatedModel:
    """Records what it was run on; each run waits until the test lets it through."""

    fingerprint, dimension, max_seq_length = "gated", 2, 100

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.tokenised: list[tuple[str, bool]] = []  # before they are run, and whether on the event loop
        self.failing: Exception | None = None
        self._gate = threading.Semaphore(0)
        self._started = threading.Semaphore(0)

    def cut(self, text: str) -> str:
        return text

    def run(self, texts: Sequence[str], batch_tokens: int) -> Matrix:
        self.runs.append(list(texts))
        self._started.release()
        assert self._gate.acquire(timeout=10)
        if self.failing:
            raise self.failing
        return np.array([[1.0, float(len(text))] for text in texts], dtype=np.float32)

    def ready(self, text: str) -> Run:
        self.tokenised.append((text, threading.current_thread() is threading.main_thread()))
        return lambda: self.run([text], 1)

    def let(self, runs: int) -> None:
        self._gate.release(runs)

    async def started(self) -> None:
        assert await asyncio.to_thread(self._started.acquire, timeout=10)


@asynccontextmanager
async def embedding(
    *, threads: int = 1, cache: int = 4096, **bounds: int
) -> AsyncIterator[tuple[GatedModel, BatchingEmbedder]]:
    model = GatedModel()
    embedder = BatchingEmbedder(model, Embedding(threads=threads, cache=cache), None, **bounds)
    try:
        yield model, embedder
    finally:
        model.let(100)
        await embedder.close()


async def test_an_idle_thread_takes_a_query_at_once_and_what_came_meanwhile_goes_together() -> None:
    async with embedding() as (model, embedder):
        first = asyncio.create_task(embedder.embed_query("a"))
        await model.started()
        others = [asyncio.create_task(embedder.embed_query(text)) for text in "bcd"]
        await asyncio.sleep(0)
        model.let(2)
        await asyncio.gather(first, *others)

        assert model.runs == [["a"], ["b", "c", "d"]]


async def test_queries_go_before_background_work_that_came_first() -> None:
    async with embedding(batch_tokens=4) as (model, embedder):
        background = asyncio.create_task(embedder.embed(["m1", "m2", "m3"]))
        await model.started()
        query = asyncio.create_task(embedder.embed_query("q"))
        await asyncio.sleep(0)
        model.let(3)
        await query
        model.let(10)
        await background

        assert [run[0] for run in model.runs][:2] == ["m1", "q"]


async def test_of_several_threads_one_is_kept_for_queries() -> None:
    async with embedding(threads=2, batch_tokens=1) as (model, embedder):
        background = asyncio.create_task(embedder.embed(["m1", "m2", "m3"]))
        await model.started()
        query = asyncio.create_task(embedder.embed_query("q"))
        await model.started()

        assert model.runs == [["m1"], ["q"]]
        model.let(10)
        await asyncio.gather(background, query)


async def test_background_work_goes_in_pieces_so_that_a_query_waits_for_one_only() -> None:
    async with embedding(batch_tokens=100) as (model, embedder):
        model.let(100)
        await embedder.embed(["x" * 30] * 50)

        assert max(len(run) for run in model.runs) <= 100 // (30 // 3 + 2)


async def test_one_text_beyond_the_batch_goes_alone() -> None:
    async with embedding(batch_tokens=1) as (model, embedder):
        model.let(100)
        await embedder.embed(["long " * 50, "long " * 50])

        assert [len(run) for run in model.runs] == [1, 1]


async def test_rows_come_back_in_the_order_of_the_texts_however_they_were_batched() -> None:
    async with embedding(batch_tokens=10) as (model, embedder):
        model.let(100)

        rows = await embedder.embed(["dddd", "a", "ccc", "bb"])

        assert rows[:, 1].tolist() == [4.0, 1.0, 3.0, 2.0]


async def test_a_query_nobody_waits_for_any_more_is_not_run() -> None:
    async with embedding() as (model, embedder):
        first = asyncio.create_task(embedder.embed_query("a"))
        await model.started()
        left = asyncio.create_task(embedder.embed_query("left"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        background = asyncio.create_task(embedder.embed(["m"]))
        await asyncio.sleep(0)
        model.let(10)
        await asyncio.gather(first, background)

        assert model.runs == [["a"], ["m"]]


async def test_a_caller_who_leaves_while_the_model_runs_harms_nobody() -> None:
    async with embedding() as (model, embedder):
        leaving = asyncio.create_task(embedder.embed_query("a"))
        await model.started()
        leaving.cancel()
        await asyncio.wait([leaving])
        model.let(10)

        assert (await embedder.embed_query("bb"))[1] == 2.0


async def test_a_repeated_query_is_not_run_again_and_the_oldest_is_forgotten_first() -> None:
    async with embedding(cache=2) as (model, embedder):
        model.let(100)
        for text in ("a", "b", "a", "c", "a", "b"):
            await embedder.embed_query(text)

        assert model.runs == [["a"], ["b"], ["c"], ["b"]]


async def test_without_a_cache_every_query_is_run() -> None:
    async with embedding(cache=0) as (model, embedder):
        model.let(100)
        await embedder.embed_query("a")
        await embedder.embed_query("a")

        assert model.runs == [["a"], ["a"]]


async def test_beyond_the_bound_a_query_is_refused_at_once() -> None:
    async with embedding(waiting_queries=1) as (model, embedder):
        running = asyncio.create_task(embedder.embed_query("a"))
        await model.started()
        waiting = asyncio.create_task(embedder.embed_query("b"))
        await asyncio.sleep(0)
        with pytest.raises(TransientError, match="too many"):
            await embedder.embed_query("c")
        model.let(10)
        await asyncio.gather(running, waiting)


@pytest.mark.parametrize(
    ("fault", "kind"), [(MemoryError(), TransientError), (RuntimeError("shape of a secret"), PermanentError)]
)
async def test_a_fault_of_the_model_reaches_its_callers_and_nobody_after_them(
    fault: Exception, kind: type[Exception]
) -> None:
    async with embedding() as (model, embedder):
        model.let(100)
        model.failing = fault
        with pytest.raises(kind) as caught:
            await embedder.embed(["x", "y"])
        assert "secret" not in str(caught.value)
        model.failing = None

        assert (await embedder.embed_query("x"))[1] == 1.0


async def test_closing_waits_for_what_runs_and_puts_off_what_waits() -> None:
    async with embedding() as (model, embedder):
        running = asyncio.create_task(embedder.embed_query("a"))
        await model.started()
        waiting = [asyncio.create_task(embedder.embed_query("b")), asyncio.create_task(embedder.embed(["c"]))]
        await asyncio.sleep(0)
        closing = asyncio.create_task(embedder.close())
        for task in waiting:
            with pytest.raises(TransientError, match="closed"):
                await task
        model.let(1)
        await closing

        assert (await running)[0] == 1.0
        with pytest.raises(TransientError, match="closed"):
            await embedder.embed_query("d")
        with pytest.raises(TransientError, match="closed"):
            await embedder.embed(["d"])


async def test_who_waits_for_it_computes_only_once_the_queries_are_taken_up() -> None:
    async with embedding(threads=2) as (model, embedder):
        await embedder.wait_begun()  # nothing waits
        queries = [asyncio.create_task(embedder.embed_query(text)) for text in "ab"]
        await asyncio.sleep(0)
        await asyncio.gather(embedder.wait_begun(), embedder.wait_begun())
        waiting = asyncio.create_task(embedder.embed_query("c"))
        await asyncio.sleep(0)
        await embedder.wait_begun()  # no thread is free: nobody holds it up
        assert not any(query.done() for query in (*queries, waiting))
        model.let(3)
        await asyncio.gather(*queries, waiting)


async def test_a_question_is_tokenised_before_a_thread_has_it_and_a_long_text_by_the_thread() -> None:
    async with embedding() as (model, embedder):
        model.let(100)
        question, long = "which seat do I like on trains?", "seat " * 200
        await embedder.embed_query(question)
        await embedder.embed_query(long)
        await embedder.embed(["I like window seats."])

        assert model.tokenised == [(question, True)]
        assert model.runs == [[question], [long], ["I like window seats."]]


async def test_what_was_asked_a_moment_ago_is_not_embedded_again_as_a_message_and_as_part_of_a_topic() -> None:
    async with embedding(batch_tokens=1000) as (model, embedder):
        model.let(100)
        asked = await embedder.embed_query("a question")
        message = await embedder.embed(["an answer", "a question"])
        topic = await embedder.embed(["a question", "an answer"])
        await embedder.embed(["a question\nan answer", "an answer"])

        assert model.runs == [["a question"], ["an answer"], ["a question\nan answer"]]
        assert message[1].tolist() == asked.tolist()
        assert topic.tolist() == message[::-1].tolist()


async def test_texts_embedded_together_are_not_kept_in_numbers() -> None:
    async with embedding(batch_tokens=10_000) as (model, embedder):
        model.let(100)
        many = [f"{number:04}" for number in range(3000)]
        await embedder.embed(many)
        model.runs.clear()
        await embedder.embed(many)

        assert 1500 < sum(map(len, model.runs)) < 3000


async def test_a_text_whose_words_are_no_longer_known_is_embedded_again_for_them() -> None:
    model = GatedModel()
    model.let(100)
    embedder = BatchingEmbedder(model, Embedding(threads=1), WordVectors(1))  # too small for any
    await embedder.embed_query("a question")
    await embedder.embed(["a question"])
    await embedder.embed(["a question"])
    await embedder.close()

    assert model.runs == [["a question"]] * 3


async def test_a_text_too_long_for_its_words_to_be_kept_is_embedded_once_all_the_same() -> None:
    model = GatedModel()
    model.let(100)
    embedder = BatchingEmbedder(model, Embedding(threads=1), WordVectors(1 << 20))
    long = "w" * (LONGEST_READ + 1)
    for _ in range(3):
        await embedder.embed([long])
    await embedder.close()

    assert model.runs == [[long]]


async def test_without_a_cache_no_text_is_kept() -> None:
    async with embedding(cache=0) as (model, embedder):
        model.let(100)
        await embedder.embed(["m"])
        await embedder.embed(["m"])

        assert model.runs == [["m"], ["m"]]


async def test_background_work_is_not_waited_for() -> None:
    async with embedding() as (model, embedder):
        learning = asyncio.create_task(embedder.embed(["m"]))
        await asyncio.sleep(0)
        await embedder.wait_begun()
        model.let(1)
        await learning
