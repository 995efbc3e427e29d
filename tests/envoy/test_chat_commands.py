"""Commands in a chat hold for the very next request, through the real Envoy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from tests.support.rest import RestStand
from tests.support.upstream import ANSWER, Upstream, an_answer
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy


async def test_what_is_to_be_remembered_and_forgotten_is_so_for_the_next_request(whole: WholeStand) -> None:
    await whole.start()
    await whole.say("Remember that my ex is called Sarah Quist.")
    asked = "What is my ex called?"
    assert (await whole.say(asked)).memory.startswith("used")
    assert "Sarah Quist" in whole.shown
    await whole.say("Forget what I told you about my ex.")
    await whole.say(asked)
    assert "Sarah" not in whole.shown
    assert whole.sample("chat_commands_total", act="remember") == 1
    assert whole.sample("chat_commands_total", act="forget") == 1


async def test_who_the_caller_is_goes_along_from_the_next_chat_on(whole: WholeStand) -> None:
    whole.changes["inject"] = {"profile": "always"}
    await whole.start()
    await whole.say("Remember that I'm allergic to peanuts.")
    await whole.say("Suggest a snack.")
    assert "Who the user is" in whole.shown
    assert "peanuts" in whole.shown
    await whole.say("Suggest a snack.", user="bob")
    assert "peanuts" not in whole.shown


async def test_what_was_forgotten_in_a_chat_can_be_brought_back_over_the_memory_api(rest: RestStand) -> None:
    await rest.start()
    await rest.say("Remember that my ex is called Sarah Quist.")
    await rest.say("Forget what I told you about my ex.")
    asked = "What is my ex called?"
    await rest.say(asked)
    assert "Sarah" not in rest.shown
    gone = (await rest.rest("GET", "/v1/memory?state=deleted&verbose=true")).json["memories"]
    assert {one["metadata"]["retired"] for one in gone} == {"chat"}
    for one in gone:
        assert (await rest.rest("POST", f"/v1/memory/{one['id']}:restore")).status == 200
    await rest.say(asked)
    assert "Sarah Quist" in rest.shown


def completion(content: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {**ANSWER, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


async def test_markers_of_the_assistant_are_obeyed_and_taken_out_of_no_answer(whole: WholeStand) -> None:
    markers = {"create": "[[remember: {text}]]", "delete": "[[forget: {text}]]"}
    whole.changes["learn"] = {"markers": markers}
    await whole.start()
    written = "Noted. [[remember: drinks oolong tea at four]]"
    whole.upstream.answers = an_answer(json.dumps(completion(written)).encode())
    answer = await whole.say("Oolong at four it is, as ever.")
    assert json.loads(answer.body)["choices"][0]["message"]["content"] == written
    await whole.say("What tea does one drink at four?")
    assert "drinks oolong tea at four" in whole.shown
    whole.upstream.answers = an_answer(json.dumps(completion("Fine. [[forget: oolong]]")).encode())
    await whole.say("No more of that, please.")
    await whole.say("What tea does one drink at four?")
    assert "oolong" not in whole.shown.lower()


FAREWELL = "I'd rather you did not remember Sarah Quist any more."


async def careful(request: web.Request) -> web.StreamResponse:
    """A model for what is in doubt that finds no facts."""
    system, user = [message["content"] for message in (await request.json())["messages"]]
    found: dict[str, Any] = {"facts": []}
    if '"commands"' in system:
        commands = [{"act": "forget", "what": "Sarah Quist"}] if "Sarah" in user else []
        found = {"commands": commands}
    elif '"same"' in system:
        found = {"same": True}
    return web.json_response(completion(json.dumps(found)))


async def test_a_message_in_doubt_is_decided_by_a_model_behind_the_request(whole: WholeStand) -> None:
    async with Upstream() as endpoint:
        endpoint.answers = careful
        server = {"address": "127.0.0.1", "port": endpoint.port}
        extraction = {"model_role": "memory_extraction", "llm_endpoint": server, "llm_model_name": "careful"}
        whole.changes["external_models"] = [extraction]
        whole.changes["topics"] = {"enabled": False}
        await whole.start()
        await whole.say("My ex is called Sarah Quist, and she has a yacht.")
        asked = "What is my ex called?"
        await whole.say(asked)
        assert "Sarah Quist" in whole.shown
        await whole.say(FAREWELL)
        await until(
            lambda: whole.sample("chat_commands_total", act="forget") == 1, "a model has decided", seconds=20
        )
        await whole.say(asked)
        assert "Sarah" not in whole.shown
        assert whole.sample("chat_command_doubts_total", outcome="command") == 1
