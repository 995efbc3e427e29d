"""Part (f): turns learned per second by the rules, and what learning by a model costs in calls and tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from prometheus_client import CollectorRegistry

from benchmarks.figures import Learning
from benchmarks.sidecar import MODELS
from memory_extproc.app import milvus_options, open_embedder, partition_limits
from memory_extproc.app.context import make_context
from memory_extproc.app.write_path import Extraction, make_extraction
from memory_extproc.coordination.sqlite import SqliteCoordination
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.ingest import Intake
from memory_extproc.learn.queue import QueuePolicy
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.sessions import Sessions
from memory_extproc.model import Caller, Exchanged, Owner, Turn
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Journal
from memory_extproc.settings import Settings, load
from memory_extproc.store.milvus.store import MilvusStore
from memory_extproc.store.partition import Partitions
from memory_extproc.text.words import estimate_tokens
from tests.support.learner import LearnSettings, make_intake

CALLERS = 8
BATCH = 10  # turns of a session, as configured by default
# Of ten turns six tell something, three ask and one is polite.
SAID = (
    "My budget for the trip to {place} is ${n}.",
    "What is the weather like in {place}?",
    "I prefer window seats on flights to {place}.",
    "I met my colleague Dana in {place}, we talked about project {n}.",
    "Can you write a short poem about {place}?",
    "My budget for the trip to {place} is now ${m}.",
    "Thanks!",
    "My flight to {place} leaves at gate {n}.",
    "How far is it from {place} to the sea?",
    "I'm allergic to nuts, and my sister lives in {place}.",
)
ANSWERED = "Here is what I can tell you about it, in a sentence or two of the usual length of an answer in a chat."
PLACES = ("Lisbon", "Kyoto", "Oslo", "Lima", "Accra", "Hanoi", "Quito", "Riga")


def exchange(number: int, callers: int = CALLERS) -> Exchanged:
    """The *number*-th of a run; callers take turns, ten turns make a session."""
    who, turn = number % callers, number // callers
    session = turn // BATCH
    words = SAID[turn % BATCH].format(place=PLACES[session % len(PLACES)], n=100 + session, m=9100 + session)
    return Exchanged(
        caller=Caller(Owner("", f"caller-{who}"), session=f"session-{session}"),
        history=(),
        asked=words,
        answered=ANSWERED,
        at=datetime(2026, 3, 2, tzinfo=UTC) + timedelta(seconds=number),
    )


@dataclass
class Rig:
    learner: Intake
    journal: Journal
    metrics: Metrics

    async def learn(self, turns: range) -> float:
        """Seconds from the first until the last of *turns* is learned, its facts included."""
        began = time.perf_counter()
        for number in turns:
            await self.learner.accept(exchange(number))
        while (await self.journal.depth()).turns:  # noqa: ASYNC110 - nobody tells when a journal is empty
            await asyncio.sleep(0.02)
        return time.perf_counter() - began


@asynccontextmanager
async def rig(settings: Settings, data: Path, journal: Journal | None = None) -> AsyncIterator[Rig]:
    """The write path as served: the real embedding model, journal and Milvus Lite."""

    def now() -> datetime:
        return datetime.now(UTC)

    metrics = Metrics(CollectorRegistry(), "bench")
    async with AsyncExitStack() as stack:
        context = make_context(settings, stack, metrics, now=now)
        embedder = await open_embedder(context)
        coordination = await stack.enter_async_context(SqliteCoordination(data / "coordination.db", now=now))
        await coordination.open()
        store = MilvusStore(milvus_options(settings, data, embedder.fingerprint), metrics, now=now)
        await store.open()
        stack.push_async_callback(store.close)
        partitions = await stack.enter_async_context(
            Partitions(store, coordination, partition_limits(settings), metrics, now=now)
        )
        if journal is None:
            journal = await stack.enter_async_context(SqliteJournal(data / "journal.db", now=now))
        extraction: Extraction = make_extraction(context)
        names = iter(range(10**9))
        learner = await stack.enter_async_context(
            make_intake(
                journal,
                Sessions(coordination, new_session=lambda: str(next(names))),
                partitions,
                embedder,
                coordination,
                LearnSettings(batch=BATCH, idle=timedelta(hours=1), grace=timedelta(minutes=5)),
                metrics,
                extractor=extraction.extractor,
                fallback=extraction.fallback,
                reconciler=Reconciler(partitions, embedder, metrics, judges=extraction.judges),
                now=now,
                policy=QueuePolicy(),
            )
        )
        yield Rig(learner, journal, metrics)


# --- a model by script -------------------------------------------------------------------------------
@dataclass
class Scripted:
    """An OpenAI-compatible endpoint that finds what the rules find, and says of every note that it may stay."""

    rules: RulesExtractor = field(default_factory=RulesExtractor)
    calls: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    port: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        system, user = (message["content"] for message in body["messages"])
        lines = [json.loads(line) for line in user.splitlines() if line.startswith("{")]
        judging = "fact" in lines[0]
        answer = self.judge(lines) if judging else await self.extract(lines)
        kind = "reconcile" if judging else "extract"
        self.calls[kind] = self.calls.get(kind, 0) + 1
        self.prompt_tokens += estimate_tokens(system) + estimate_tokens(user)
        self.completion_tokens += estimate_tokens(answer)
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        return web.json_response({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]})

    def judge(self, lines: Sequence[dict[str, Any]]) -> str:
        return json.dumps({"verdicts": [{"note": line["note"], "verdict": "ADD"} for line in lines[1:]]})

    async def extract(self, lines: Sequence[dict[str, Any]]) -> str:
        facts: list[dict[str, Any]] = []
        for line in (line for line in lines if "turn" in line):
            found = await self.rules.extract([_turn(line["user"])])
            facts += [
                {
                    "fact": fact.content,
                    "type": fact.type.value,
                    "subject": fact.subject,
                    "attribute": fact.attribute,
                    "value": fact.value,
                    "turn": line["turn"],
                    "context": "",
                    "exclusive": fact.exclusive,
                    "ended": fact.ends,
                    "importance": round(fact.importance * 10),
                    "event_date": "",
                    "confidence": 0.9,
                }
                for fact in found
            ]
        return json.dumps({"facts": facts})


def _turn(asked: str) -> Turn:
    said = exchange(0)
    return Turn(
        id="0" * 64, owner=said.caller.owner, project="", session="", seq=0, asked=asked, answered="", at=said.at
    )


@asynccontextmanager
async def serve_script() -> AsyncIterator[Scripted]:
    endpoint = Scripted()
    application = web.Application()
    application.router.add_post("/v1/chat/completions", endpoint.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint.port = runner.addresses[0][1]
        yield endpoint
    finally:
        await runner.cleanup()


# --- the part ----------------------------------------------------------------------------------------
def write_settings(scratch: Path, **changes: Any) -> Settings:
    config = scratch / "learn.yaml"
    embedding = {"models_dir": str(MODELS.absolute())}
    config.write_text(yaml.safe_dump({"memory": {"embedding": embedding}, "data_dir": str(scratch), **changes}))
    return load(config, {})


async def learning(scratch: Path, *, quick: bool) -> Learning:
    for name in ("rules", "model"):
        await asyncio.to_thread((scratch / name).mkdir)
    turns = CALLERS * BATCH * (1 if quick else 5)
    rounds = 1 if quick else 3
    rates: list[float] = []
    async with rig(write_settings(scratch, learn={"extractor": "rules"}), scratch / "rules") as rules:
        for at in range(rounds):
            took = await rules.learn(range(at * turns, (at + 1) * turns))
            rates.append(turns / took)
    async with serve_script() as endpoint:
        model = {
            "model_role": "memory_extraction",
            "llm_endpoint": {"address": "127.0.0.1", "port": endpoint.port},
            "llm_model_name": "scripted",
            "max_tokens": 4000,
        }
        async with rig(write_settings(scratch, external_models=[model]), scratch / "model") as by_model:
            took = await by_model.learn(range(turns))
        share = 100 / turns
        return Learning(
            turns=turns,
            by_rules=rates,
            by_model=turns / took,
            calls={kind: share * count for kind, count in sorted(endpoint.calls.items())},
            prompt_tokens=share * endpoint.prompt_tokens,
            completion_tokens=share * endpoint.completion_tokens,
        )
