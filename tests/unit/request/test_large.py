"""Large bodies: whatever is made of them, other streams go on meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from memory_extproc.concurrency import LARGE, off_loop
from memory_extproc.dialect.base import ChatRequest, Placing
from memory_extproc.dialect.json_spans import Edit
from memory_extproc.dialect.openai_chat import ChatCompletions
from memory_extproc.model import Outcome
from tests.support.desk import Desk


async def test_small_work_is_done_at_once_and_large_work_beside_the_event_loop() -> None:
    here = threading.get_ident()
    assert await off_loop(LARGE - 1, threading.get_ident) == here
    assert await off_loop(LARGE, threading.get_ident) != here


async def test_what_large_work_raises_reaches_who_waits_for_it() -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await off_loop(LARGE, fails)


class Watched(ChatCompletions):
    """Notes which threads read a body and find places in it."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def read(self, body: bytes) -> ChatRequest:
        self.threads.append(threading.get_ident())
        return super().read(body)

    def place(self, request: ChatRequest, blocks: Sequence[Placing]) -> Sequence[Sequence[Edit]]:
        self.threads.append(threading.get_ident())
        return super().place(request, blocks)


@pytest.mark.parametrize("said", ["my budget? " * 10_000, "my budget?"], ids=["large", "small"])
async def test_a_large_request_is_read_and_changed_beside_the_event_loop(said: str) -> None:
    desk = Desk()
    dialect = Watched()
    body = json.dumps({"messages": [{"role": "user", "content": said}]}).encode()
    enriched = await desk.enricher.enrich(replace(desk.admit(), dialect=dialect), body)
    assert enriched.outcome is Outcome.USED
    assert len(dialect.threads) == 2
    assert (threading.get_ident() in dialect.threads) is (said == "my budget?")
