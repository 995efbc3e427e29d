"""What a client and an LLM see of us through a real Envoy, when all goes well."""

from __future__ import annotations

import pytest

from memory_extproc.model import Outcome
from tests.fixtures.envoy import Stand
from tests.fixtures.sidecar import BLOCK

pytestmark = pytest.mark.envoy


async def test_memories_reach_the_model_and_the_answer_is_learned(stand: Stand) -> None:
    await stand.start()
    answer = await stand.chat()
    assert answer.status == 200
    assert answer.memory == "used;n=1;path=hybrid"
    assert answer.headers["cache-control"] == "private, no-store"
    sent = stand.upstream.got[0]
    assert BLOCK in sent.json["messages"][0]["content"]
    assert sent.headers["content-length"] == str(len(sent.body))
    assert stand.sidecar.exchanges(Outcome.USED) == 1
    (exchanged,) = stand.sidecar.learns.exchanged
    assert exchanged.asked == "What is my budget for Hawaii?"
    assert exchanged.answered == "It is $10,000."
