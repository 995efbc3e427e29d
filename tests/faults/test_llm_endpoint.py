"""Faults of an OpenAI-compatible endpoint, and how they are handled."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import openai
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from memory_extproc.concurrency import BreakerLimits
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.inference.openai_client import OUTCOMES, EndpointLimits, ModelEndpoint
from memory_extproc.inference.openai_models import (
    BATCH,
    OpenAICompletions,
    OpenAIEmbedder,
    longest_answer,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.memory import Embedding
from tests.support.endpoint import Reply, StandIn, a_completion, a_model, an_error, serving
from tests.support.waiting import until

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"facts": {"type": "array"}}, "required": ["facts"]}
ROLE = "memory_extraction"
SECRET = "ann lives in Portland"


class Bench:
    """An endpoint of ours with time, chance and waiting in the test's hands."""

    def __init__(self, base_url: str, **limits: Any) -> None:
        self.access_key = ""
        self.waited: list[float] = []
        self.time = 0.0
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.endpoint = ModelEndpoint(
            EndpointLimits(base_url=base_url, **{"timeout": timedelta(seconds=5), **limits}),
            role=ROLE,
            marker="token-1",
            metrics=self.metrics,
            rng=lambda: 0.5,
            clock=lambda: self.time,
            access_key=lambda: SecretStr(self.access_key),
            sleep=self._sleep,
        )
        self.completions = OpenAICompletions(self.endpoint, a_model())

    async def _sleep(self, seconds: float) -> None:
        self.waited.append(seconds)

    def counted(self, outcome: str) -> float:
        labels = {"role": ROLE, "outcome": outcome}
        return self.metrics.registry.get_sample_value("memory_extproc_llm_requests_total", labels) or 0.0

    def tokens(self, direction: str) -> float:
        labels = {"role": ROLE, "direction": direction}
        return self.metrics.registry.get_sample_value("memory_extproc_llm_tokens_total", labels) or 0.0


@asynccontextmanager
async def asking(*replies: Reply, **limits: Any) -> AsyncIterator[tuple[StandIn, Bench]]:
    async with serving(replies) as stand_in:
        bench = Bench(stand_in.base_url, **limits)
        try:
            yield stand_in, bench
        finally:
            await bench.completions.close()


async def test_a_plain_answer_is_its_text_and_is_counted() -> None:
    async with asking(a_completion("  Paris ")) as (stand_in, bench):
        assert await bench.completions.complete("be brief", "capital?") == "Paris"

    assert bench.counted("ok") == 1
    asked = stand_in.asked[0]
    assert asked["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "capital?"}]
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("qwen3", 500, 0.1)
    assert "response_format" not in asked


async def test_tokens_are_counted_as_the_endpoint_says_and_an_odd_usage_costs_no_answer() -> None:
    usages: list[Any] = [
        {"prompt_tokens": 30, "completion_tokens": 4},
        {"prompt_tokens": -5, "completion_tokens": "many"},
        {"prompt_tokens": 10**400, "completion_tokens": 10**15},
        "none",
        None,
    ]
    replies = [a_completion("x", usage=usage) for usage in usages]
    async with asking(*replies) as (_, bench):
        for _ in replies:
            assert await bench.completions.complete("", "") == "x"
        assert [bench.tokens("prompt"), bench.tokens("completion")] == [30, 4]


async def test_our_calls_carry_the_marker_and_no_made_up_key() -> None:
    async with asking(a_completion("x")) as (stand_in, bench):
        await bench.completions.complete("", "")

    assert stand_in.headers[0]["x-memory-extproc-internal"] == "token-1"
    assert "authorization" not in stand_in.headers[0]


async def test_the_access_key_in_effect_is_sent_with_each_call() -> None:
    async with asking(a_completion("x"), a_completion("x"), a_completion("x")) as (stand_in, bench):
        for key in ("sk-very-secret", "sk-rotated", ""):
            bench.access_key = key
            await bench.completions.complete("", "")

    sent = [headers.get("authorization") for headers in stand_in.headers]
    assert sent == ["Bearer sk-very-secret", "Bearer sk-rotated", None]


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (an_error(500), "failed"),
        (an_error(502), "failed"),
        (an_error(503), "failed"),
        (an_error(429), "busy"),
        (an_error(408), "timeout"),
        (an_error(409), "failed"),
        (Reply("{not json"), "malformed"),
        (Reply("<html>busy</html>", headers={"content-type": "text/html"}), "malformed"),
        (Reply(b'{"choices": [{"message": {"content": "\xff"}}]}'), "malformed"),
        (Reply('{"error": {"message": "overloaded"}}'), "malformed"),
        (Reply('{"choices": [{"message": {"content": 7}}]}'), "malformed"),
        (Reply('{"choices": null}'), "malformed"),
        (Reply('{"choices": []}'), "empty"),
        (Reply(""), "malformed"),
        (Reply('{"choices": [], "usage": ' + "[" * 100_000 + "]" * 100_000 + "}"), "malformed"),
        (Reply('{"choices": [{"message": {"content": "\\ud800"}}]}'), "malformed"),
        (Reply(breaks=True), "unreachable"),
        (a_completion(None), "empty"),
        (a_completion("<think>only thoughts</think>"), "empty"),
    ],
)
async def test_a_passing_fault_is_tried_again_and_then_put_off(reply: Reply, outcome: str) -> None:
    async with asking(reply) as (stand_in, bench):
        with pytest.raises(TransientError, match=outcome) as caught:
            await bench.completions.complete("", SECRET)

    assert len(stand_in.asked) == 3
    assert bench.waited == [0.375, 0.75]
    assert bench.counted(outcome) == 1
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (an_error(400), "rejected"),
        (an_error(422), "rejected"),
        (a_completion(None, refusal="I cannot"), "refused"),
        (a_completion("", finish_reason="content_filter"), "refused"),
    ],
)
async def test_a_lasting_fault_is_given_up_at_once(reply: Reply, outcome: str) -> None:
    async with asking(reply) as (stand_in, bench):
        with pytest.raises(PermanentError, match=outcome):
            await bench.completions.complete("", SECRET)

    assert len(stand_in.asked) == 1
    assert bench.counted(outcome) == 1


@pytest.mark.parametrize("status", [401, 402, 403, 404])
async def test_what_an_operator_has_to_mend_is_not_tried_again_in_one_call_and_not_given_up(status: int) -> None:
    async with asking(an_error(status)) as (stand_in, bench):
        with pytest.raises(TransientError, match=f"rejected, status {status}"):
            await bench.completions.complete("", SECRET)

    assert len(stand_in.asked) == 1
    assert bench.counted("rejected") == 1


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_an_answer_that_never_ends_is_left_where_it_is_longer_than_one_may_be(status: int) -> None:
    endless = Reply(b" " * 65_536, status, goes_on=True)
    async with asking(endless, attempts=1, longest_answer=1 << 20) as (stand_in, bench):
        with pytest.raises(TransientError, match="malformed"):
            await bench.completions.complete("", SECRET)
        # what it had sent by then and what stands in the buffers between
        assert stand_in.sent < 16 << 20

    assert bench.counted("malformed") == 1


async def test_what_a_few_compressed_bytes_unfold_to_is_not_looked_at() -> None:
    bomb = gzip.compress(b" " * (32 << 20) + b"{}")
    packed = Reply(bomb, headers={"content-type": "application/json", "content-encoding": "gzip"})
    async with asking(packed, attempts=1) as (stand_in, bench):
        with pytest.raises(TransientError, match="malformed"):
            await bench.completions.complete("", SECRET)

    assert stand_in.headers[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_words_do_not_follow_a_redirect_and_wait_for_who_mends_the_address(status: int) -> None:
    async with serving([a_completion("thanks for the words")]) as elsewhere:
        sent_on = Reply("", status, {"location": f"{elsewhere.base_url}/chat/completions"})
        async with asking(sent_on) as (stand_in, bench):
            with pytest.raises(TransientError, match=f"rejected, status {status}"):
                await bench.completions.complete("", SECRET)

    assert (len(stand_in.asked), elsewhere.asked) == (1, [])


async def test_one_call_s_cookies_are_not_sent_with_the_next_ones() -> None:
    given = Reply(str(a_completion("x").body), headers={"set-cookie": "who=ann; Path=/"})
    async with asking(given) as (stand_in, bench):
        for _ in range(2):
            await bench.completions.complete("", "")

    assert [headers.get("cookie") for headers in stand_in.headers] == [None, None]


async def test_an_endpoint_that_recovers_answers_within_one_call() -> None:
    async with asking(an_error(500), an_error(429), a_completion("there")) as (_, bench):
        assert await bench.completions.complete("", "") == "there"

    assert bench.counted("ok") == 1


async def test_a_wait_the_endpoint_asks_for_is_kept() -> None:
    async with asking(an_error(429, retry_after="3"), a_completion("x")) as (_, bench):
        await bench.completions.complete("", "")

    assert bench.waited == [3.0]


async def test_an_endpoint_that_asks_for_too_long_a_wait_is_not_bothered_again() -> None:
    async with asking(an_error(429, retry_after="3600")) as (stand_in, bench):
        with pytest.raises(TransientError):
            await bench.completions.complete("", "")

    assert len(stand_in.asked) == 1


async def test_an_endpoint_that_never_answers_costs_the_timeout_and_no_more() -> None:
    replies = (a_completion("x"), Reply(hangs=True))
    async with asking(*replies, timeout=timedelta(seconds=60), attempts=2) as (stand_in, bench):
        await bench.completions.complete("", "")  # the client's first call takes long by itself
        bench.endpoint.limits = replace(bench.endpoint.limits, timeout=timedelta(seconds=2))
        with pytest.raises(TransientError, match="timeout"):
            await bench.completions.complete("", "")

    assert len(stand_in.asked[1:]) == 2
    assert bench.counted("timeout") == 1


async def test_no_one_listening_is_put_off() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bench = Bench(f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
        with pytest.raises(TransientError, match="unreachable"):
            await bench.completions.complete("", "")
        await bench.completions.close()

    assert bench.counted("unreachable") == 1


async def test_a_dead_endpoint_is_left_alone_for_a_while_and_then_tried_with_one_call() -> None:
    limits = {"attempts": 1, "breaker": BreakerLimits(failures=2, pause=timedelta(seconds=30))}
    async with asking(an_error(500), an_error(500), a_completion("back"), **limits) as (stand_in, bench):
        for _ in range(2):
            with pytest.raises(TransientError, match="500"):
                await bench.completions.complete("", "")
        with pytest.raises(TransientError, match="left alone"):
            await bench.completions.complete("", "")
        assert len(stand_in.asked) == 2
        assert bench.counted("open") == 1

        bench.time = 30.0
        assert await bench.completions.complete("", "") == "back"


async def test_a_busy_endpoint_is_not_taken_for_a_dead_one() -> None:
    limits = {"attempts": 1, "breaker": BreakerLimits(failures=1)}
    async with asking(an_error(429), a_completion("x"), **limits) as (_, bench):
        with pytest.raises(TransientError):
            await bench.completions.complete("", "")
        assert await bench.completions.complete("", "") == "x"


async def test_a_caller_who_leaves_during_the_trial_does_not_lock_the_breaker() -> None:
    limits = {"attempts": 1, "breaker": BreakerLimits(failures=1, pause=timedelta(seconds=30))}
    async with asking(an_error(500), Reply(hangs=True), a_completion("x"), **limits) as (stand_in, bench):
        with pytest.raises(TransientError):
            await bench.completions.complete("", "")
        bench.time = 30.0
        leaving = asyncio.create_task(bench.completions.complete("", ""))
        await until(lambda: len(stand_in.asked) == 2, "the trial is under way")
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving

        assert await bench.completions.complete("", "") == "x"


async def test_the_schema_is_enforced_where_the_endpoint_can() -> None:
    async with asking(a_completion('{"facts": []}')) as (stand_in, bench):
        assert await bench.completions.complete("s", "u", schema=SCHEMA) == '{"facts": []}'

    form = stand_in.asked[0]["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"] == SCHEMA
    assert stand_in.asked[0]["messages"][0]["content"] == "s"


@pytest.mark.parametrize("status", [400, 422, 501])
async def test_an_endpoint_without_schemas_is_asked_in_words_and_that_is_remembered(status: int) -> None:
    refused = an_error(status, "unsupported response_format")
    async with asking(refused, refused, a_completion("{}")) as (stand_in, bench):
        assert await bench.completions.complete("s", "u", schema=SCHEMA) == "{}"
        await bench.completions.complete("s", "u", schema=SCHEMA)

    forms = [asked.get("response_format", {}).get("type") for asked in stand_in.asked]
    assert forms == ["json_schema", "json_object", None, None]
    assert '"facts"' in stand_in.asked[-1]["messages"][0]["content"]
    assert bench.counted("ok") == 2


async def test_a_request_that_is_bad_in_itself_teaches_nothing_about_the_endpoint() -> None:
    bad = an_error(400, "context too long")
    async with asking(bad, bad, bad, a_completion("{}")) as (stand_in, bench):
        with pytest.raises(PermanentError):
            await bench.completions.complete("", "long", schema=SCHEMA)
        await bench.completions.complete("", "short", schema=SCHEMA)

    assert stand_in.asked[-1]["response_format"]["type"] == "json_schema"


async def test_a_reasoning_model_that_takes_no_max_tokens_or_temperature_is_asked_without() -> None:
    refusals = [an_error(400, param="max_tokens"), an_error(400, param="temperature")]
    async with asking(*refusals, a_completion("x")) as (stand_in, bench):
        assert await bench.completions.complete("", "") == "x"

    assert stand_in.asked[-1]["max_completion_tokens"] == 500
    assert {"max_tokens", "temperature"}.isdisjoint(stand_in.asked[-1])


async def test_an_answer_cut_off_is_given_up_where_a_schema_asks_for_a_whole_one() -> None:
    async with asking(a_completion('{"facts": [', finish_reason="length")) as (_, bench):
        assert await bench.completions.complete("", "") == '{"facts": ['
        with pytest.raises(PermanentError, match="cut_off"):
            await bench.completions.complete("", "", schema=SCHEMA)


async def test_reasoning_fences_and_parts_are_taken_off() -> None:
    fenced = '<think>\nhm\n</think>\n```json\n{"facts": []}\n```'
    async with asking(
        a_completion(fenced), a_completion([{"type": "text", "text": "Pa"}, {"type": "text", "text": "ris"}])
    ) as (
        _,
        bench,
    ):
        assert await bench.completions.complete("", "", schema=SCHEMA) == '{"facts": []}'
        assert await bench.completions.complete("", "") == "Paris"


async def test_words_that_are_no_unicode_are_sent_all_the_same() -> None:
    async with asking(a_completion("x")) as (stand_in, bench):
        await bench.completions.complete("a\ud800", "\udfff")

    assert [message["content"] for message in stand_in.asked[0]["messages"]] == ["a?", "?"]


def test_every_error_class_of_the_client_is_sorted() -> None:
    def below(kind: type[Exception]) -> set[type[Exception]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    # ways of logging in, of streaming and of misusing the client that we do not have; their parents are sorted
    elsewhere = {"OAuthError", "SubjectTokenProviderError", "MutuallyExclusiveAuthError", "StreamAlreadyConsumed",
                 "_AmbiguousModuleClientUsageError", "APIRemovedInV1", "MissingDependencyError"}  # fmt: skip
    unmapped = {
        kind
        for kind in below(openai.OpenAIError)
        if kind.__module__.startswith("openai") and kind not in OUTCOMES and "WebSocket" not in kind.__name__
    }
    assert {kind.__name__ for kind in unmapped} <= elsewhere


# --- embeddings ------------------------------------------------------------------------------------
def rows(*vectors: list[float]) -> Reply:
    data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return Reply(str({"object": "list", "data": data, "model": "m"}).replace("'", '"'))


@asynccontextmanager
async def embedding(
    *replies: Reply, dimension: int, batch: int = BATCH
) -> AsyncIterator[tuple[StandIn, OpenAIEmbedder]]:
    async with serving(replies) as stand_in:
        endpoint = Bench(stand_in.base_url, attempts=1).endpoint
        embedder = OpenAIEmbedder(endpoint, Embedding(dimension=dimension), batch=batch)
        try:
            yield stand_in, embedder
        finally:
            await embedder.close()


async def test_vectors_of_another_dimension_name_both_sides() -> None:
    async with embedding(rows([1.0, 0.0, 0.0]), dimension=2) as (_, embedder):
        with pytest.raises(PermanentError, match=r"3 dimensions, configured are 2"):
            await embedder.embed(["x"])


@pytest.mark.parametrize(
    "reply",
    [
        rows(),
        rows([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]),
        rows([1.0, 0.0], [0.0]),
        Reply('{"data": [{"index": 0, "embedding": "AAAA"}]}'),
        Reply("[]"),
    ],
)
async def test_an_answer_that_is_not_a_vector_for_each_text_is_put_off(reply: Reply) -> None:
    async with embedding(reply, dimension=2) as (_, embedder):
        with pytest.raises(TransientError, match="malformed"):
            await embedder.embed(["x", "y"])


async def test_vectors_come_back_in_the_order_of_the_texts_and_of_length_one() -> None:
    swapped = '{"data": [{"index": 1, "embedding": [0, 3]}, {"index": 0, "embedding": [2, 0]}]}'
    async with embedding(Reply(swapped), dimension=2) as (_, embedder):
        assert (await embedder.embed(["x", "y"])).tolist() == [[1.0, 0.0], [0.0, 1.0]]


async def test_many_texts_go_in_requests_of_bounded_size_and_blank_ones_not_at_all() -> None:
    async with embedding(rows([0.0, 1.0]), dimension=2, batch=1) as (stand_in, embedder):
        found = await embedder.embed(["a", " ", "b", ""])

    assert found.tolist() == [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert [asked["input"] for asked in stand_in.asked] == [["a"], ["b"]]


async def test_numbers_beyond_float32_still_give_a_finite_unit_vector() -> None:
    async with embedding(rows([1e300, 1e300]), dimension=2) as (_, embedder):
        assert (await embedder.embed(["x"])).tolist() == [[1.0, 0.0]]


async def test_an_honest_answer_is_never_too_long_whatever_the_dimension() -> None:
    dimension = 100
    vectors = rows(*([-1.2345678901234567e-300] * dimension for _ in range(BATCH)))
    async with serving([vectors]) as stand_in:
        assert len(vectors.body) < longest_answer(dimension) - (1 << 20)
        bench = Bench(stand_in.base_url, longest_answer=longest_answer(dimension))
        embedder = OpenAIEmbedder(bench.endpoint, Embedding(dimension=dimension))
        assert (await embedder.embed(["x"] * BATCH)).shape == (BATCH, dimension)
        await embedder.close()
