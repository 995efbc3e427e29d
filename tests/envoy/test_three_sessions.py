"""Alice in three sessions, through the real Envoy: what is kept of her, where her topics begin and end, and what
the model is shown of it at each request; with a language model for what needs one, and without any."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web

from memory_extproc.model import Memory, Owner, Source
from memory_extproc.topics.state import DecidingMeasure
from tests.support.upstream import ANSWER, Upstream, answer_json
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

ALICE = Owner("", "alice")
Script = tuple[tuple[str, str], ...]

FIRST: Script = (
    (
        "Hi, I'm Alice. I'm a data scientist and do machine learning. I work at Google.",
        "Nice to meet you, Alice! Machine learning at Google must bring large data sets and good tools with it.",
    ),
    (
        "I'm working on a TensorFlow project that classifies images of plants.",
        "TensorFlow suits image classification well. Begin with a pretrained network for images of plants.",
    ),
    (
        "How can I optimize it?",
        "Train the TensorFlow model in mixed precision, prefetch images with tf.data, and quantise it at the end.",
    ),
)
SECOND: Script = (
    ("What's my name?", "Your name is Alice."),
    ("Where do I work?", "You work at Google."),
    ("Can you remind me of that TensorFlow project I was working on?", "It classifies images of plants."),
)
THIRD: Script = (
    (
        "Can you explain how neural networks learn during training?",
        "Neural networks learn by gradient descent: backpropagation gives each weight its share of the error.",
    ),
    (
        "Why do deep neural networks suffer from vanishing gradients in training?",
        "In deep networks the gradients are multiplied layer by layer and shrink; residual connections help.",
    ),
    (
        "What should I order for breakfast at Waffle House tonight?",
        "At Waffle House a pecan waffle with hash browns, scattered and smothered, is a classic breakfast.",
    ),
    (
        "Are the Waffle House hash browns any good with cheese?",
        "Yes, hash browns covered with cheese are among the favourites at Waffle House.",
    ),
    (
        "How do recurrent neural networks handle long training sequences?",
        "Recurrent neural networks keep a hidden state; LSTM gates keep the gradients alive in long sequences.",
    ),
    (
        "Do transformers train faster than recurrent neural networks?",
        "Yes, transformers read the whole sequence at once, so the training of the network runs in parallel.",
    ),
)
ANSWERS = dict((*FIRST, *SECOND, *THIRD))


async def answers(request: web.Request) -> web.StreamResponse:
    """The model in the chat: it answers what was asked, whatever block stands behind it."""
    said = str((await request.json())["messages"][-1]["content"])
    answer = copy.deepcopy(ANSWER)
    answer["choices"][0]["message"]["content"] = next(  # type: ignore[index]  # JSON
        text for asked, text in ANSWERS.items() if said.startswith(asked)
    )
    return web.json_response(answer)


def _facts(lines: list[dict[str, Any]]) -> dict[str, Any]:
    told = {
        "I'm Alice": ("The user's name is Alice", "name", "Alice", 9),
        "at Google": ("The user works at Google", "employer", "Google", 8),
        "TensorFlow project": (
            "The user works on a TensorFlow project that classifies images of plants",
            "current project",
            "TensorFlow project that classifies images of plants",
            7,
        ),
    }
    return {
        "facts": [
            {
                "fact": fact,
                "type": "semantic",
                "subject": "user",
                "attribute": attribute,
                "value": value,
                "turn": line["turn"],
                "context": "",
                "exclusive": True,
                "ended": False,
                "importance": importance,
                "event_date": "",
                "confidence": 0.9,
            }
            for line in lines
            for words, (fact, attribute, value, importance) in told.items()
            if "turn" in line and words in line["user"]
        ]
    }


def _named(lines: list[dict[str, Any]]) -> dict[str, Any]:
    said = " ".join(line["user"] for line in lines)
    for words, name in (("TensorFlow", "Plant images"), ("Waffle", "Breakfast plans"), ("neural", "Deep learning")):
        if words in said:
            return {"name": name, "summary": f"The user asked about {name.lower()} ({words})."}
    return {"name": "Small talk", "summary": "The user asked what is known of them."}


class Scripted:
    """An OpenAI-compatible endpoint that answers our prompts as a careful model would. *malformed* answers of each
    prompt come first."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.malformed = {"topic"}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        system, user = [message["content"] for message in (await request.json())["messages"]]
        lines = [json.loads(line) for line in user.split("\n\nYour last answer")[0].splitlines()]
        kind, answer = self._answer(system, lines)
        self.asked.append(kind)
        content = json.dumps(answer)
        if kind in self.malformed:
            self.malformed.discard(kind)
            content = "Here is a name for it: breakfast!"
        reply = copy.deepcopy(ANSWER)
        reply["choices"][0]["message"]["content"] = content  # type: ignore[index]  # JSON
        return web.json_response(reply)

    def _answer(self, system: str, lines: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        if '"same"' in system:
            waffles = ["Waffle" in line["user"] for line in lines]
            return "shift", {"same": waffles[-1] == waffles[-2]}
        if '"name"' in system:
            return "topic", _named(lines)
        if '"summary"' in system:
            return "session", {"summary": "The user spoke about machine learning and their projects."}
        if "verdict" in system:
            notes = [line["note"] for line in lines if "note" in line]
            return "reconcile", {"verdicts": [{"note": note, "verdict": "ADD"} for note in notes]}
        return "facts", _facts(lines)


@pytest.fixture
async def scripted() -> AsyncIterator[tuple[Upstream, Scripted]]:
    model = Scripted()
    async with Upstream() as endpoint:
        endpoint.answers = model
        yield endpoint, model


async def say(whole: WholeStand, session: str, script: Script) -> list[str]:
    """The whole session, its history sent along as clients do; what the model was shown at each turn."""
    history: list[dict[str, str]] = []
    shown = []
    before = checked(whole)
    for number, (asked, answered) in enumerate(script, start=1):
        history.append({"role": "user", "content": asked})
        end = {"x_memory_session": "end"} if number == len(script) else {}
        if end or number % 4 == 0:  # so that neither the end nor a full batch hides that the topic changed
            behind = before + number - 1
            await until(lambda behind=behind: checked(whole) >= behind, "they are in topics")  # type: ignore[misc]
        await whole.chat({"model": "demo", "messages": history}, user="alice", x_session_id=session, **end)
        shown.append(_blocks(json.loads(whole.upstream.got[-1].body)["messages"], history))
        history.append({"role": "assistant", "content": answered})
    return shown


def _blocks(seen: list[dict[str, str]], said: list[dict[str, str]]) -> str:
    """What stands in the request beside what the client sent: the new block and those put back."""
    pairs = zip(seen, said, strict=True)
    return "".join(one["content"].removeprefix(other["content"]) for one, other in pairs)


async def ask_behind(whole: WholeStand, script: Sequence[tuple[str, str]]) -> str:
    """What the model is shown beside the conversation when its last question is asked."""
    history = [
        {"role": role, "content": text}
        for asked, answered in script
        for role, text in (("user", asked), ("assistant", answered))
    ][:-1]
    whole.upstream.answers = answer_json
    await whole.chat({"model": "demo", "messages": history}, user="alice")
    return _blocks(json.loads(whole.upstream.got[-1].body)["messages"], history)


def lines(shown: str) -> list[str]:
    """What was told, without the day."""
    return [line.split("] ", 1)[1] for line in shown.splitlines() if line.startswith("- [")]


def shifts(whole: WholeStand) -> float:
    return sum(whole.sample("topic_checks_total", stage=stage.value, verdict="shift") for stage in DecidingMeasure)


def checked(whole: WholeStand) -> float:
    same = sum(whole.sample("topic_checks_total", stage=stage.value, verdict="same") for stage in DecidingMeasure)
    return shifts(whole) + same


async def learned(whole: WholeStand, source: Source, expected: dict[str, float]) -> None:
    """Waits until these facts, with their importance of 0 to 1, and no others are known."""

    async def there() -> bool:
        known = {memory.content: round(memory.importance, 2) for memory in await memories(whole, source)}
        return known == expected

    await until(there, "all of it is learned and nothing else", seconds=20)


async def memories(whole: WholeStand, source: Source, session: str = "") -> list[Memory]:
    rows = [row async for page in whole.whole.partitions.rows(ALICE) for row in page]
    kept = [row for row in rows if row.source is source and session in {"", row.session}]
    return sorted(kept, key=lambda row: row.seq)


async def topics(whole: WholeStand, session: str) -> list[Memory]:
    return [row for row in await memories(whole, Source.SUMMARY, session) if row.provenance.kind == "topic"]


async def finished(whole: WholeStand, session: str, count: int) -> list[Memory]:
    async def there() -> bool:
        return len(await topics(whole, session)) == count and whole.sample("journal_depth") == 0

    await until(there, f"{session} has come to {count} topics and all is learned", seconds=20)
    return await topics(whole, session)


async def test_three_sessions_without_a_model(whole: WholeStand) -> None:
    await whole.start()
    whole.upstream.answers = answers
    first = await say(whole, "one", FIRST)
    assert first == ["", "", ""]  # nothing is known of her, and what she says is in view
    (project,) = await finished(whole, "one", 1)
    assert project.provenance.span == (0, 6)
    assert "TensorFlow" in project.content
    await learned(
        whole,
        Source.RULES,
        {
            "User's name is Alice": 0.9,
            "User is a data scientist": 0.8,
            "User works for Google": 0.8,
            "User is working on a TensorFlow project that classifies images of plants": 0.6,
        },
    )
    await _second_session(whole, name="User's name is Alice", work="User works for Google")
    await _third_session(whole)


async def test_three_sessions_with_a_model(whole: WholeStand, scripted: tuple[Upstream, Scripted]) -> None:
    endpoint, model = scripted
    whole.changes["external_models"] = [
        {
            "model_role": "memory_extraction",
            "llm_endpoint": {"address": "127.0.0.1", "port": endpoint.port},
            "llm_model_name": "scripted",
        }
    ]
    await whole.start()
    whole.upstream.answers = answers
    assert await say(whole, "one", FIRST) == ["", "", ""]
    (project,) = await finished(whole, "one", 1)
    assert project.provenance.span == (0, 6)
    assert project.content == "Plant images: The user asked about plant images (TensorFlow)."
    assert model.asked.count("topic") == 2  # its first answer was no JSON
    await learned(
        whole,
        Source.LLM,
        {
            "The user's name is Alice": 0.9,
            "The user works at Google": 0.8,
            "The user works on a TensorFlow project that classifies images of plants": 0.7,
        },
    )
    await _second_session(whole, name="The user's name is Alice", work="The user works at Google")
    third = await _third_session(whole)
    assert [topic.provenance.name for topic in third] == ["Deep learning", "Breakfast plans", "Deep learning"]
    assert whole.sample("summaries_total", of="topic", by="sentences") == 0


async def _second_session(whole: WholeStand, *, name: str, work: str) -> None:
    """Each question is answered by what is new in its request, and nothing is said twice."""
    shown = await say(whole, "two", SECOND)
    told = [lines(one) for one in shown]
    assert told[0] == [name]
    assert work in told[1]
    assert any("TensorFlow project that classifies images of plants" in line for line in told[2])
    for before, after in pairwise(told):
        assert after[: len(before)] == before
    assert len(set(told[2])) == len(told[2])
    assert not any("summary of an earlier conversation" in line for line in told[1])


async def _third_session(whole: WholeStand) -> list[Memory]:
    before = shifts(whole)
    shown = await say(whole, "three", THIRD)
    found = await finished(whole, "three", 3)
    assert [topic.provenance.span for topic in found] == [(0, 4), (4, 8), (8, 12)]
    assert shifts(whole) - before == 2
    assert "Waffle House" in found[1].content or "Waffle" in found[1].content
    told = [lines(one) for one in shown]
    # What may have been given for the networks stays where it stood; breakfast adds neither that nor who works
    # where, and what is in view is told in short to nobody.
    assert shown[3] == shown[1], shown
    assert not any("Google" in line for one in told for line in one)
    assert not any("Waffle" in line or "gradient" in line for one in told for line in one)
    return found


async def test_who_comes_back_to_a_conversation_is_not_told_of_it_in_short(whole: WholeStand) -> None:
    await whole.start()
    whole.upstream.answers = answers
    await say(whole, "three", THIRD)
    await finished(whole, "three", 3)
    await whole.restart()
    again = ("Which gates of LSTM networks keep gradients alive in long training sequences?", "The forget gates.")
    assert lines(await ask_behind(whole, [*THIRD, again])) == []
    elsewhere = await ask_behind(whole, [again])
    assert lines(elsewhere), "in another conversation it is told"
    breakfast = ("What did we say about breakfast at Waffle House?", "Waffles.")
    assert any("Waffle House" in line for line in lines(await ask_behind(whole, [breakfast])))
