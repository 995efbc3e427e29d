"""Draw the files that one recalled request, one learned turn and one forget pass through.

A sidecar with a Milvus Lite file and the packaged model runs in this process; ext_proc messages reach it over gRPC.
Every call of a function of the package is recorded while a flow runs. `make layers` prints the flow of the request
and the counts; a test holds them below a ceiling.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import structlog

import memory_extproc
from memory_extproc import app
from memory_extproc.concurrency import utc_now
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import ForgetScope, Memory, Owner, Source
from memory_extproc.settings import load
from memory_extproc.text.lazy_re import compile_all

PACKAGE = Path(memory_extproc.__file__).parent
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
OWNER = Owner("", "ann")
_LIMIT = 60  # seconds that a flow may take
_NEWS = ("My sister Anna works at Google.", "My dog is called Rex.", "I live in Lisbon.")


@dataclass
class Flow:
    """Files of the package in the order in which a flow enters them; a file stands again each time."""

    visits: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(self.visits))


@contextmanager
def recording(flow: Flow) -> Iterator[None]:
    """Record calls on this thread, and on threads that begin meanwhile."""
    root = f"{PACKAGE}/"

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(root):
            name = path.removeprefix(root)
            if not flow.visits or flow.visits[-1] != name:
                flow.visits.append(name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # takes None, as sys.setprofile does


def exchange(asked: str, answered: str) -> list[Any]:
    """The messages of one chat, request and response."""

    def headers(values: dict[str, str]) -> Any:
        pairs = [pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in values.items()]
        return pb.HttpHeaders(headers=pb.HeaderMap(headers=pairs))

    body = {"model": "demo", "messages": [{"role": "user", "content": asked}]}
    message = {"role": "assistant", "content": answered}
    answer = {"id": "c1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    request = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
    return [
        pb.ProcessingRequest(request_headers=headers({**request, "x-authz-user-id": OWNER.user})),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=json.dumps(body).encode(), end_of_stream=True)),
        pb.ProcessingRequest(response_headers=headers({":status": "200", "content-type": "application/json"})),
        pb.ProcessingRequest(response_body=pb.HttpBody(body=json.dumps(answer).encode(), end_of_stream=True)),
    ]


async def wait_for(holds: Callable[[], Awaitable[Any]], what: str) -> None:
    try:
        async with asyncio.timeout(_LIMIT):
            while not await holds():  # noqa: ASYNC110 - it happens in the sidecar
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise RuntimeError(f"waited {_LIMIT} s in vain until {what}") from None


class Chats:
    """Chats of one user with a running sidecar, and the facts learned from them."""

    def __init__(self, running: app.Sidecar, channel: grpc.aio.Channel) -> None:
        self._running = running
        self._process = channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )

    async def send(self, messages: Sequence[Any]) -> str:
        """Memory's status for the exchange."""
        call = self._process()
        status = ""
        for message in messages:
            await call.write(message)
            reply = await call.read()
            status = status or _status(reply)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
        return status

    async def facts(self) -> list[Memory]:
        pages = [page async for page in self._running.partitions.rows(OWNER)]
        return [memory for page in pages for memory in page if memory.source is Source.RULES]

    async def is_more_known(self, known: AbstractSet[str]) -> bool:
        return any(fact.id not in known for fact in await self.facts())

    async def is_used(self, question: Sequence[Any]) -> bool:
        return (await self.send(question)).startswith("used")

    async def is_store_up(self) -> bool:
        return self._running.metrics.registry.get_sample_value("memory_extproc_store_up") == 1


async def trace(models: Path, scratch: Path) -> dict[str, Flow]:
    """The flows of a recall, of learning a turn, and of a forget.

    Of each the files that all of three rounds enter: work in the background can fall into any of them."""
    config = _write_configuration(models, scratch)
    rounds: list[dict[str, Flow]] = []
    async with (
        app.sidecar(load(config, {})) as running,
        grpc.aio.insecure_channel(running.ext_proc) as channel,
        SqliteJournal(scratch / "data" / "journal.db", now=utc_now) as journal,
    ):
        compile_all()  # as a sidecar does behind its start: patterns that a request compiles would count for it
        chats = Chats(running, channel)

        async def is_idle() -> bool:
            return (await journal.depth()).turns == 0

        await wait_for(chats.is_store_up, "the store is open")
        await chats.send(exchange("My budget for the Hawaii trip is $10,000.", "Noted."))
        await wait_for(partial(chats.is_more_known, set()), "a fact is known")
        question = exchange("What's my budget for the trip to Hawaii?", "It is $10,000.")[:3]
        await wait_for(partial(chats.is_used, question), "the fact is recalled")
        for news in _NEWS:
            flows = {name: Flow() for name in ("recall", "learn", "forget")}
            with recording(flows["recall"]):
                await chats.send(question)
            known = {fact.id for fact in await chats.facts()}
            with recording(flows["learn"]):
                await chats.send(exchange(news, "Good to know."))
                await wait_for(partial(chats.is_more_known, known), "the fact is known")
            # A turn that is still being learned would show in the forget's flow.
            await wait_for(is_idle, "every turn is learned")
            [first, *_] = [fact for fact in await chats.facts() if fact.id not in known]
            with recording(flows["forget"]):
                await running.forgets.forget(OWNER, ForgetScope(ids=(first.id,)))
            rounds.append(flows)
    return {name: _in_common([flows[name] for flows in rounds]) for name in rounds[0]}


def _in_common(flows: Sequence[Flow]) -> Flow:
    common = set.intersection(*(set(flow.files) for flow in flows))
    shortest = min(flows, key=lambda flow: len(flow.visits))
    return Flow([file for file in shortest.visits if file in common])


def _write_configuration(models: Path, scratch: Path) -> Path:
    config = scratch / "config.yaml"
    configured = {
        "data_dir": str(scratch / "data"),
        "memory": {"embedding": {"models_dir": str(models)}, "milvus": {"shards": 2}},
        "listen": {
            "ext_proc": "127.0.0.1:0",
            "api": "127.0.0.1:0",
            "console": "127.0.0.1:0",
            "http": "127.0.0.1:0",
        },
        "recall": {"deadline": "5s"},
        "learn": {"session_idle": "1s"},
    }
    config.write_text(json.dumps(configured))
    return config


def _status(reply: Any) -> str:
    """The value of x-memory-status that a reply sets."""
    kind = reply.WhichOneof("response") if reply is not grpc.aio.EOF else None
    if kind != "response_headers":
        return ""
    for option in reply.response_headers.response.header_mutation.set_headers:
        if option.header.key == "x-memory-status":
            return str(option.header.raw_value.decode() or option.header.value)
    return ""


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as scratch:
        flows = asyncio.run(trace(PACKAGE.parent / "models", Path(scratch)))
    print("One recalled request passes through these files, in this order:")
    print("\n".join(f"  {name}" for name in flows["recall"].files))
    for name, flow in flows.items():
        print(f"{name}: {len(flow.files)} files, {len(flow.visits)} changes of file")


if __name__ == "__main__":
    main()
