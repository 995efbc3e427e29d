"""A caller who may ask learns from the response which memories were injected, and so does Envoy."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.envoy import Answer, Wiring
from tests.support.upstream import a_stream, an_answer, sse_events
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy
FACT, QUESTION = "The budget for the Hawaii trip is $10,000", "What's my budget for Hawaii?"
RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Noted."}]}],
}
COMPLETED = f"data: {json.dumps({'type': 'response.completed', 'response': RESPONSE})}\n\n".encode()
ANSWERS = {
    "chat": ("/v1/chat/completions", an_answer(b'{"choices": []}')),
    "chat streamed": ("/v1/chat/completions", a_stream(sse_events("Noted."))),
    "responses": ("/v1/responses", an_answer(json.dumps(RESPONSE).encode())),
    "responses streamed": ("/v1/responses", a_stream([COMPLETED])),
}
EXPLAINED = re.compile(r'"([^"]+)";relevance=(0\.\d{3}|1\.000)')


async def started(whole: WholeStand, *, tenants: list[str]) -> str:
    """The id of Ann's memory, as the REST API shortens it."""
    whole.changes = {"inject": {"explain_tenants": tenants}}
    await whole.start(Wiring(metadata_received=True))
    url = f"http://{whole.whole.console}/v1/memory"
    async with whole.session.post(url, json={"content": FACT}, headers={"x-authz-user-id": "ann"}) as got:
        assert got.status == 200
        body = await got.json()
    return str((body.get("memory") or body)["id"])


async def ask(whole: WholeStand, path: str = "/v1/chat/completions", **headers: str) -> Answer:
    field: dict[str, Any] = {"input": QUESTION}
    if path.endswith("completions"):
        field = {"messages": [{"role": "user", "content": QUESTION}]}
    return await whole.chat({"model": "demo", **field}, path=path, **headers)


async def test_the_memories_injected_are_named_to_a_caller_who_may_ask_in_every_kind_of_answer(
    whole: WholeStand,
) -> None:
    known = await started(whole, tenants=["acme", ""])
    for at, (kind, (path, answers)) in enumerate(ANSWERS.items(), start=1):
        whole.upstream.answers = answers
        answer = await ask(whole, path, x_memory_explain="true")
        assert answer.memory.startswith("used;n=1"), kind
        ((id_, relevance),) = EXPLAINED.findall(answer.headers["x-memory-explain"])
        assert id_.startswith(known), kind
        assert float(relevance) >= 0.6, kind
        assert "x-memory-explain" not in whole.upstream.got[-1].headers
        await until(partial(_logged, whole, at), "the access log")
        noted = json.loads(whole.envoy.access_log.splitlines()[-1])
        assert noted["memories"] == answer.headers["x-memory-explain"], kind


async def _logged(whole: WholeStand, lines: int) -> bool:
    return len(whole.envoy.access_log.splitlines()) >= lines


async def test_nobody_is_told_who_does_not_ask_or_whose_tenant_may_not(whole: WholeStand) -> None:
    await started(whole, tenants=["acme"])
    for at, headers in enumerate(({}, {"x_memory_explain": "true"}, {"x_memory_explain": "false"}), start=1):
        answer = await ask(whole, **headers)
        assert answer.memory.startswith("used;n=1")
        assert "x-memory-explain" not in answer.headers
        await until(partial(_logged, whole, at), "the access log")
        assert "memories" not in json.loads(whole.envoy.access_log.splitlines()[-1])


async def test_an_answer_without_memories_names_none_and_a_replayed_one_names_them_without_a_number(
    whole: WholeStand, tmp_path: Path
) -> None:
    known = await started(whole, tenants=["*"])
    assert "x-memory-explain" not in (await ask(whole, user="bob", x_memory_explain="true")).headers
    first = {"role": "user", "content": QUESTION}
    await whole.chat({"model": "demo", "messages": [first]})
    again = [first, {"role": "assistant", "content": "It is $10,000."}, {"role": "user", "content": "Thank you!"}]
    answer = await whole.chat({"model": "demo", "messages": again}, x_memory_explain="true")
    if "path=replay" in answer.memory:
        assert answer.headers["x-memory-explain"].startswith(f'"{known}')
        assert "relevance" not in answer.headers["x-memory-explain"]
