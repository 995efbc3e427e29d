"""A client with one conversation, before a desk whose recall knows a few memories."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model import Memory, Outcome, Owner, Ranked, RecallRequest, RecallResult
from memory_extproc.recall.prompt_block import OPENING, OPENING_AGAIN, render
from memory_extproc.request.body import Enriched
from memory_extproc.testing.adapters import InMemoryCoordination
from tests.support.builders import a_memory
from tests.support.canned import CannedRecalls
from tests.support.desk import Desk
from tests.support.sidecar import NOON

ANN, BOB = Owner("", "ann"), Owner("", "bob")
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BUDGET, HOTEL, SEAT = "The budget is $10,000", "The hotel is the Grand Wailea", "Window seats on long flights"
KNOWN = {"budget": BUDGET, "hotel": HOTEL, "seat": SEAT}


class Remembers(CannedRecalls):
    """Recall over a few memories: those whose word is asked for, unless the model sees them already."""

    def __init__(self, **known: str) -> None:
        super().__init__()
        self.known = known or dict(KNOWN)

    async def recall(self, wish: RecallRequest) -> RecallResult:
        await super().recall(wish)
        found = [text for word, text in self.known.items() if word in wish.asked and text not in wish.in_view]
        memories: list[Memory] = [a_memory(text, wish.caller.owner) for text in found]
        opening = OPENING_AGAIN if wish.continues else OPENING
        block = render([Ranked(memory, 0.9) for memory in memories], wish.room or 0, opening)
        if not block.kept:
            return RecallResult(outcome=Outcome.NO_ROOM if found else Outcome.NOTHING_RELEVANT, path="hybrid")
        return RecallResult(outcome=Outcome.USED, block=block.text, memories=block.kept, path="hybrid")


class Talk:
    """A client with one conversation: it sends all of it each time, without what we put in."""

    def __init__(self, desk: Desk, path: str = CHAT, *, parts: bool = False, **changes: Any) -> None:
        self.desk, self.path, self.parts, self.changes = desk, path, parts, changes
        self.items: list[dict[str, Any]] = []
        self.sent: list[bytes] = []  # as the upstream got them
        self.watching = False
        self.last = Enriched(outcome=Outcome.ABANDONED)

    def user(self, words: str) -> None:
        kind = "input_text" if self.path == RESPONSES else "text"
        content = [{"type": kind, "text": words}] if self.parts else words
        self.items.append({"role": "user", "content": content})

    def assistant(self, words: str) -> None:
        self.items.append({"role": "assistant", "content": words})

    async def ask(self, words: str, **headers: str) -> str:
        """The body that the upstream gets, as text; the answer is heard."""
        self.user(words)
        body = await self.send(**headers)
        self.assistant(f"About {words}: yes.")
        return body

    async def send(self, **headers: str) -> str:
        field = "input" if self.path == RESPONSES else "messages"
        body = json.dumps({"model": "demo", "max_tokens": 64, **self.changes, field: self.items}).encode()
        self.last = await self.desk.enrich(body, watching=self.watching, path=self.path, **headers)
        self.sent.append(self.last.body or body)
        return self.sent[-1].decode()

    @property
    def keeps_its_beginning(self) -> bool:
        """Whether each request began with all that the one before had said to the model."""
        return all(
            after.startswith(before.removesuffix(b"]}"))
            for before, after in zip(self.sent, self.sent[1:], strict=False)
        )


def a_desk(**options: Any) -> Desk:
    recalls = options.pop("recalls", None) or Remembers()
    shared = options.pop("shared", InMemoryCoordination(now=lambda: NOON))
    return Desk(recalls=recalls, shared=shared, **options)


def now_known(desk: Desk, **known: str) -> None:
    assert isinstance(desk.recalls, Remembers)
    desk.recalls.known = known


WORDS = ("my budget?", "and what else?", "which hotel?", "my budget again?", "hi", "my seat and hotel?")


async def never() -> None:
    await asyncio.Event().wait()


class Faulty(InMemoryCoordination):
    """Fails what its *down* names."""

    def __init__(self) -> None:
        super().__init__(now=lambda: NOON)
        self.down: set[str] = set()
        self.slow = False

    async def _fail(self, what: str) -> None:
        if what in self.down:
            raise TransientError("out of reach")
        if self.slow:
            await never()

    async def epoch(self, owner: Owner) -> int:
        await self._fail("epoch")
        return await super().epoch(owner)

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        await self._fail("get")
        return await super().get_record(kind, owner, key)

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None:
        if "put" in self.down:
            raise PermanentError("disk full")
        await super().put_record(kind, owner, key, value, ttl)
