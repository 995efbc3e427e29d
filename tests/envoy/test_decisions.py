"""The decision for a request, asked for afterwards, through a real Envoy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.envoy import Envoy
from tests.support.waiting import until
from tests.support.whole import WholeStand


@pytest.fixture
async def stand(envoy_binary: Path, int8_model_dir: Path, tmp_path: Path) -> AsyncIterator[WholeStand]:
    made = WholeStand(Envoy(envoy_binary, tmp_path), tmp_path, int8_model_dir.parent)
    made.changes = {"trace": {"keep": "1h"}}
    async with made:
        await made.start()
        yield made


async def ask(
    stand: WholeStand, path: str, *, user: str = "ann", method: str = "GET", **body: Any
) -> tuple[int, Any]:
    url = f"http://{stand.whole.console}/v1/memory{path}"
    given: dict[str, Any] = {"json": body} if body else {}
    async with stand.session.request(method, url, headers={"x-authz-user-id": user}, **given) as answer:
        return answer.status, await answer.json()


async def test_a_decision_is_found_by_its_request_and_goes_with_its_memories(stand: WholeStand) -> None:
    await stand.say("My budget for the Hawaii trip is $10,000", x_request_id="first")

    async def accepted() -> bool:
        status, turn = await ask(stand, "/turns/first")
        return status == 200 and turn["state"] in {"waiting", "stored", "learned"}

    await until(accepted, "the turn's receipt")
    answer = await stand.say("What's my budget for Hawaii?", x_request_id="second")
    word = answer.headers["x-memory-status"]
    assert word.startswith("used;n=")
    assert word.endswith(";trace=second")
    status, decision = await ask(stand, "/decisions/second")
    assert (status, decision["outcome"], decision["request_id"]) == (200, "used", "second")
    assert "$10,000" in decision["block"]
    assert any(one["verdict"] == "injected" and one["since"] == "same" for one in decision["considered"])
    assert {"search", "rank", "total"} <= decision["stages_ms"].keys()
    assert (await ask(stand, "/decisions/second", user="bob"))[0] == 404
    assert (await ask(stand, "/decisions/third"))[0] == 404
    _, latest = await ask(stand, "/decisions")
    assert [one["request_id"] for one in latest["decisions"]] == ["second", "first"]

    injected = next(one["memory"]["id"] for one in decision["considered"] if one["verdict"] == "injected")
    await ask(stand, f"/{injected}", method="PATCH", content="The budget for Hawaii is $12,500")
    _, decision = await ask(stand, "/decisions/second")
    assert "$12,500" in decision["block"]
    assert "changed" in {one["since"] for one in decision["considered"]}

    assert (await ask(stand, f"/{injected}", method="DELETE"))[0] == 200
    assert (await ask(stand, "/decisions/second"))[0] == 404, "a trace is forgotten with what it names"


async def test_what_is_called_wrong_is_not_given_to_a_model_until_it_is_said_again(stand: WholeStand) -> None:
    await ask(stand, "", method="POST", content="The budget for the Hawaii trip is $10,000")
    assert (await stand.say("What's my budget for Hawaii?")).headers["x-memory-status"].startswith("used")
    _, listed = await ask(stand, "")
    (one,) = [memory for memory in listed["memories"] if "$10,000" in memory["content"]]
    assert (await ask(stand, f"/{one['id']}:rate", method="POST", rating="good"))[0] == 400
    assert (await ask(stand, f"/{one['id']}:rate", method="POST", user="bob", rating="wrong"))[0] == 404
    status, rated = await ask(stand, f"/{one['id']}:rate?verbose=true", method="POST", rating="wrong")
    assert (status, rated["metadata"]["rating"]) == (200, "wrong")
    answer = await stand.say("What's my budget for Hawaii?", x_request_id="rated")
    assert "$10,000" not in stand.shown
    assert answer.headers["x-memory-status"].endswith("trace=rated")
    _, decision = await ask(stand, "/decisions/rated")
    assert decision["considered"][0]["verdict"] == "not_recallable"
    await ask(stand, "", method="POST", content="The budget for the Hawaii trip is $10,000")
    await stand.say("What's my budget for Hawaii?")
    assert "$10,000" in stand.shown


async def test_a_turn_that_is_not_kept_says_why_and_nothing_is_traced_of_who_wants_nothing_kept(
    stand: WholeStand,
) -> None:
    await stand.say("I like tea", x_request_id="unkept", x_memory_store="skip")

    async def dropped() -> bool:
        status, turn = await ask(stand, "/turns/unkept")
        return status == 200 and (turn["state"], turn["reason"]) == ("dropped", "not_asked")

    await until(dropped, "its receipt")
    answer = await stand.say("I like tea", x_request_id="hidden", x_memory_incognito="true")
    assert "trace" not in answer.headers["x-memory-status"]
    assert (await ask(stand, "/decisions/hidden"))[0] == 404
    await ask(stand, ":consent", method="PUT", state="recall_only")
    answer = await stand.say("I like tea", x_request_id="narrow")
    assert "trace" not in answer.headers["x-memory-status"]
