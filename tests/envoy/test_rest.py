"""The memory API over HTTP, on the listener of the chats: seen, corrected and taken along as a client would."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from memory_extproc.envoyconfig.options import IdentityMode
from tests.support.rest import TENANT, USER, RestStand
from tests.support.waiting import until

SAID = "My budget for the Hawaii trip is $10,000"


async def test_what_was_said_in_a_chat_is_seen_corrected_used_and_forgotten(rest: RestStand) -> None:
    rest.changes = {"memory": {"extraction_batch_size": 1}, "learn": {"session_idle": "100ms"}}
    await rest.start()
    await rest.say(SAID)

    async def learned() -> bool:
        listed = (await rest.rest("GET", "/v1/memory?type=semantic")).json
        return bool(listed["memories"])

    await until(learned, "the fact is extracted", seconds=20)
    listed = (await rest.rest("GET", "/v1/memory?type=semantic&limit=5")).json
    assert (listed["total"], listed["limit"]) == (1, 5)
    (memory,) = listed["memories"]
    assert "10,000" in memory["content"]
    one = await rest.rest("GET", f"/v1/memory/{memory['id']}")
    assert one.json == memory

    changed = await rest.rest("PATCH", f"/v1/memory/{memory['id']}", {"content": "The Hawaii budget is $12,500"})
    assert changed.status == 200, changed.json
    assert changed.json["content"] == "The Hawaii budget is $12,500"
    found = (await rest.rest("POST", "/v1/memory:search", {"query": "What's my budget for the Hawaii trip?"})).json
    assert "12,500" in " ".join(one["memory"]["content"] for one in found["results"])
    await rest.say("What's my budget for the Hawaii trip?")
    assert "12,500" in rest.shown

    about = {"query": "the budget for the Hawaii trip", "dry_run": True}
    plan = (await rest.rest("POST", "/v1/memory:forget", about)).json
    assert plan["total"] >= 1
    assert not plan["success"]
    forgotten = await rest.rest("DELETE", "/v1/memory")
    assert forgotten.status == 200, forgotten.json
    assert forgotten.json["success"]
    receipt = await rest.rest("GET", f"/v1/memory/receipts/{forgotten.json['receipt']['id']}")
    assert receipt.json["state"] in {"clean", "complete"}
    assert (await rest.rest("GET", "/v1/memory?state=any")).json["total"] == 0
    await rest.say("What's my budget for the Hawaii trip?")
    assert "12,500" not in rest.shown
    assert "10,000" not in rest.shown


async def test_one_memory_is_forgotten_by_its_id(rest: RestStand) -> None:
    await rest.start()
    tea, cat = [
        (await rest.rest("POST", "/v1/memory?verbose=true", {"content": content})).json["memory"]["id"]
        for content in ("Likes tea", "Has a cat called Whiskers")
    ]
    assert (await rest.rest("DELETE", f"/v1/memory/{tea}", user="bob")).status == 404
    assert (await rest.rest("DELETE", f"/v1/memory/{tea}")).json["success"]
    assert (await rest.rest("GET", f"/v1/memory/{tea}")).status == 404
    assert (await rest.rest("GET", f"/v1/memory/{cat}")).status == 200
    brought = [{"start": {}}, {"memory": {"id": tea, "type": "semantic", "content": "Likes tea"}}]
    report = (await rest.rest("POST", "/v1/memory:import", brought)).json
    assert (report["added"], [one["reason"] for one in report["problems"]]) == ("0", ["forgotten"])


async def test_answers_are_as_clients_of_the_semantic_router_read_them(rest: RestStand) -> None:
    await rest.start()
    stored = await rest.rest("POST", "/v1/memory", {"content": "Likes tea", "type": "semantic"})
    assert stored.status == 200
    memory = stored.json["memory"]
    assert memory["access_count"] == 0
    assert memory["created_at"].endswith("Z")
    assert {"id", "type", "content", "user_id", "source", "importance", "updated_at"} <= memory.keys()
    assert (await rest.rest("GET", "/v1/memory")).json["memories"] == [memory]


async def test_a_memory_of_somebody_else_is_not_there(rest: RestStand) -> None:
    await rest.start()
    id_ = (await rest.rest("POST", "/v1/memory", {"content": "Likes tea"})).json["memory"]["id"]
    for other in ({"user": "bob"}, {"user": "ann", TENANT.replace("-", "_"): "globex"}):
        answer = await rest.rest("GET", f"/v1/memory/{id_}", **other)
        assert answer.status == 404
        assert (await rest.rest("GET", "/v1/memory", **other)).json["total"] == 0
    unknown = await rest.rest("GET", f"/v1/memory/{'0' * 64}")
    assert unknown.json == (await rest.rest("GET", f"/v1/memory/{id_}", user="bob")).json


async def test_a_client_cannot_name_itself_where_identity_is_stripped(rest: RestStand) -> None:
    rest.options = replace(rest.options, identity=IdentityMode.STRIP)
    await rest.start()
    for path in ("/v1/memory", "/v1/memory?user_id=ann", "/v1/memory:stats"):
        assert (await rest.rest("GET", path)).status == 401


async def test_what_is_wrong_with_a_request_is_named(rest: RestStand) -> None:
    await rest.start()
    wrong = await rest.rest("POST", "/v1/memory", {"content": "x", "importance": 7})
    assert wrong.status == 400
    fields = [one for detail in wrong.json["details"] for one in detail.get("field_violations", [])]
    assert [one["field"] for one in fields] == ["importance"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/v1/memory", 405),
        ("GET", "/v1/memory/a/b", 404),
        ("GET", "/v1/memory:nonsense", 404),
        ("DELETE", "/v1/memory/", 400),
        ("DELETE", "/v1/memory?session_id=", 400),
        ("GET", "/v1/memory?nonsense=1", 200),
        ("DELETE", "/v1/memory?nonsense=1", 400),
        ("POST", "/memory.v1.MemoryService/ListMemories", 200),  # the upstream's, as every other path
        ("GET", "/v1/memories", 200),
    ],
)
async def test_what_is_no_method_of_ours_reaches_no_server_of_ours(
    rest: RestStand, method: str, path: str, status: int
) -> None:
    await rest.start()
    assert (await rest.rest(method, path)).status == status


async def test_memory_does_not_listen_to_its_own_api(rest: RestStand) -> None:
    await rest.start()
    await rest.rest("POST", "/v1/memory", {"content": "Likes tea"})
    assert not rest.upstream.got
    assert "x-memory-status" not in (await rest.rest("GET", "/v1/memory")).headers
    assert rest.sample("exchanges_total", dialect="none", outcome="not_chat") == 0


async def test_everything_is_taken_along_and_brought_to_somebody_else(rest: RestStand) -> None:
    await rest.start()
    for content in ("Likes tea", "Has a cat", "Lives in Oslo"):
        await rest.rest("POST", "/v1/memory", {"content": content, "metadata": {"n": 1}})
    first, *pieces = (await rest.rest("GET", "/v1/memory:export")).lines
    assert first["header"]["memories"] == "3"
    memories = [piece["memory"] for piece in pieces if "memory" in piece]
    assert {one["content"] for one in memories} == {"Likes tea", "Has a cat", "Lives in Oslo"}
    resumed = (await rest.rest("GET", f"/v1/memory:export?resume_token={pieces[0]['resume_token']}")).lines
    assert [one["memory"] for one in resumed[1:] if "memory" in one] == memories[1:]

    brought = [{"start": {}}, *({"memory": one} for one in memories)]
    for expected in ({"added": "3"}, {"same": "3"}):
        report = await rest.rest("POST", "/v1/memory:import", brought, user="bob")
        assert report.status == 200, report.json
        assert {name: report.json[name] for name in expected} == expected
    listed = (await rest.rest("GET", "/v1/memory", user="bob")).json["memories"]
    assert {one["id"] for one in listed}.isdisjoint(one["id"] for one in memories)
    assert {one["user_id"] for one in listed} == {"bob"}
    assert listed[0]["metadata"]["n"] == 1


async def test_how_to_speak_to_it_is_shown_on_the_operators_port(rest: RestStand) -> None:
    await rest.start()
    status, text = await rest.http("/openapi.json")
    assert status == 200
    assert json.loads(text)["paths"].keys() >= {"/v1/memory", "/v1/memory/{id}", "/v1/memory:search"}


def test_the_identity_headers_are_those_of_the_chats() -> None:
    assert (USER, TENANT) == ("x-authz-user-id", "x-authz-tenant-id")
