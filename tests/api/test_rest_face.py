"""The memory API over HTTP in the process: one service with gRPC, and what HTTP adds to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.concurrency import RateLimits
from tests.support.builders import ANN
from tests.support.console import ConsoleStand


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ConsoleStand]:
    async with ConsoleStand(tmp_path) as made:
        yield made


async def stored(stand: ConsoleStand, content: str, user: str = "ann") -> str:
    answer = await stand.rest("POST", "/v1/memory", {"content": content}, user=user)
    assert answer.status == 200, answer.body
    return str(answer.json["memory"]["id"])


async def test_both_faces_are_of_one_service(stand: ConsoleStand) -> None:
    short = await stored(stand, "Likes tea")
    (memory,) = (await stand.call("ListMemories", pb.ListMemoriesRequest(), as_=ANN_ALONE)).memories
    assert memory.id.startswith(short)
    assert len(short) == 16
    lines = (stand.audit_directory / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["StoreMemory", "ListMemories"]


ANN_ALONE = type(ANN)("", "ann")


async def test_an_id_may_be_shortened_while_it_names_one_memory(stand: ConsoleStand) -> None:
    short = await stored(stand, "Likes tea")
    whole = (await stand.rest("GET", f"/v1/memory/{short}?verbose=true")).json["id"]
    assert len(whole) == 64
    for given in (whole, whole[:40], short, short[:8]):
        assert (await stand.rest("GET", f"/v1/memory/{given}")).json["id"] == short
    assert (await stand.rest("GET", f"/v1/memory/{short[:7]}")).status == 404
    assert (await stand.rest("GET", f"/v1/memory/{short}", user="bob")).status == 404
    plan = await stand.rest("PATCH", f"/v1/memory/{short[:9]}", {"content": "Likes green tea"})
    assert plan.json["content"] == "Likes green tea"


async def test_an_edit_of_what_was_changed_meanwhile_gets_both_versions(stand: ConsoleStand) -> None:
    id_ = await stored(stand, "The budget is $10,000")
    etag = (await stand.rest("GET", f"/v1/memory/{id_}")).json["etag"]
    first = await stand.rest("PATCH", f"/v1/memory/{id_}", {"content": "The budget is $11,000", "etag": etag})
    assert first.status == 200
    second = await stand.rest("PATCH", f"/v1/memory/{id_}", {"content": "The budget is $12,000", "etag": etag})
    assert (second.status, second.reason) == (409, "STALE")
    versions = [one["content"] for one in second.json["details"] if "content" in one]
    assert versions == ["The budget is $11,000", "The budget is $12,000"]
    assert (await stand.rest("GET", f"/v1/memory/{id_}")).json["content"] == "The budget is $11,000"
    fresh = first.json["etag"]
    assert fresh != etag
    third = await stand.rest("PATCH", f"/v1/memory/{id_}", {"content": "The budget is $12,000", "etag": fresh})
    assert third.status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/v1/memory/", 400),
        ("GET", "/v1/memory/", 400),
        ("DELETE", "/v1/memory?session_id=", 400),
        ("DELETE", "/v1/memory?type=", 400),
        ("GET", "/v1/memory?limit=many", 400),
        ("GET", "/v1/memory?limit=1&limit=2", 400),
        ("GET", "/v1/memory?created_after=yesterday", 400),
        ("GET", "/v1/memory?verbose=maybe", 400),
        ("GET", "/v1/memory/0123456789?id=other", 400),
        ("GET", "/v1/memory/%2e%2e%2fetc", 404),
        ("GET", "/v1/memory%3Astats", 200),
        ("PUT", "/v1/memory", 405),
        ("GET", "/v1/memories", 404),
        ("GET", "/nothing", 404),
    ],
)
async def test_a_path_that_means_nothing_changes_nothing(
    stand: ConsoleStand, method: str, path: str, status: int
) -> None:
    await stored(stand, "Likes tea")
    from yarl import URL  # noqa: PLC0415 - the path goes as it is written

    async with stand.http.request(
        method, URL(stand.console.url + path, encoded=True), headers={"x-authz-user-id": "ann"}
    ) as answer:
        assert answer.status == status, await answer.text()
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"x"',
        b'{"content": 7}',
        b"[" * 5000,
        b'{"metadata": ' + b'{"a":' * 500,
        b"\xff",
        b'{"content": "x", ',
    ],
)
async def test_a_body_that_is_wrong_is_refused_without_its_words(stand: ConsoleStand, body: bytes) -> None:
    answer = await stand.rest("POST", "/v1/memory", body)
    assert (answer.status, answer.reason) == (400, "BAD_REQUEST")
    large = await stand.rest("POST", "/v1/memory", b'{"content": "' + b"x" * 100_000 + b'"}')
    assert large.status == 413


async def test_header_fields_above_16_kib_are_431(stand: ConsoleStand) -> None:
    for size in (16, 40, 200):
        answer = await stand.rest("GET", "/v1/memory", x_long="a" * size * 1024)
        assert answer.status == 431, size
    many = await stand.rest("GET", "/v1/memory", **{f"x_{at}": "a" * 1000 for at in range(17)})
    assert many.status == 431
    assert (await stand.rest("GET", "/v1/memory", x_long="a" * 8000)).status == 200


async def test_a_caller_who_shows_nothing_is_told_the_way_back(stand: ConsoleStand) -> None:
    answer = await stand.rest("GET", "/v1/memory", user="")
    assert (answer.status, answer.reason) == (401, "NO_CREDENTIALS")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert not [name for name in answer.headers if name.startswith("grpc") or name == "server"]
    assert answer.headers["cache-control"] == "no-store"


async def test_names_beyond_ascii_are_the_callers_own(stand: ConsoleStand) -> None:
    await stored(stand, "Likes tea", user="Zoë")
    assert (await stand.rest("GET", "/v1/memory", user="Zoë")).json["total"] == 1
    assert (await stand.rest("GET", "/v1/memory", user="Zoe")).json["total"] == 0


async def test_calls_beyond_the_rate_wait(tmp_path: Path) -> None:
    made = ConsoleStand(tmp_path)
    made.rate = RateLimits(per_second=0.5, burst=1)
    async with made as stand:
        assert (await stand.rest("GET", "/v1/memory")).status == 200
        answer = await stand.rest("GET", "/v1/memory")
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
        assert (await stand.rest("GET", "/v1/memory", user="bob")).status == 200


# --- browsers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example@localhost",
        "localhost/x",
        "",
        "[::1",
    ],
)
async def test_a_name_that_was_rebound_to_loopback_reaches_nothing(stand: ConsoleStand, host: str) -> None:
    assert (await stand.rest("GET", "/v1/memory", Host=host)).status in {400, 421}
    assert (await stand.rest("POST", "/v1/memory", {"content": "x"}, Host=host)).status in {400, 421}


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_site_changes_nothing(stand: ConsoleStand, origin: str) -> None:
    id_ = await stored(stand, "Likes tea")
    for method, path in (("POST", "/v1/memory:forget"), ("DELETE", "/v1/memory"), ("DELETE", f"/v1/memory/{id_}")):
        assert (await stand.rest(method, path, {}, Origin=origin)).status == 403
    assert (await stand.rest("POST", "/v1/memory:forget", {}, Sec_Fetch_Site="cross-site")).status == 403
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 1


async def test_a_gateways_name_counts_once_it_is_configured(tmp_path: Path) -> None:
    made = ConsoleStand(tmp_path)
    made.hosts = frozenset({"llm.example.com"})
    async with made as stand:
        named = {"Host": "llm.example.com", "Origin": "https://llm.example.com"}
        assert (await stand.rest("POST", "/v1/memory", {"content": "Likes tea"}, **named)).status == 200


# --- answers ---------------------------------------------------------------------------------------
async def test_a_list_is_short_and_has_facts_first_and_is_whole_when_asked(stand: ConsoleStand) -> None:
    await stored(stand, "Likes tea")
    episodic = {"content": "I went out", "type": "episodic", "metadata": {"mood": "good"}}
    assert (await stand.rest("POST", "/v1/memory", episodic)).status == 200
    short = (await stand.rest("GET", "/v1/memory?limit=1")).json
    assert [one["type"] for one in short["memories"]] == ["semantic"]
    more = (await stand.rest("GET", f"/v1/memory?limit=1&page_token={short['next_page_token']}")).json
    assert [one["type"] for one in more["memories"]] == ["episodic"]
    assert more["memories"][0]["metadata"] == {"mood": "good"}
    whole = (await stand.rest("GET", "/v1/memory?verbose=true")).json["memories"]
    assert {len(one["id"]) for one in whole} == {64}
    assert all("said" in one["metadata"] for one in whole)


async def test_an_import_comes_in_pieces_of_any_size(stand: ConsoleStand) -> None:
    texts = [f"Has {at} cats \N{CAT FACE} called «{'x' * 40}»" for at in range(60)]
    memories = [{"memory": {"type": "semantic", "content": text}} for text in texts]
    bodies = (
        json.dumps([{"start": {}}, *memories], ensure_ascii=False).encode(),
        "\n".join(json.dumps(one) for one in [{"start": {}}, *memories]).encode(),
    )
    for user, body in zip(("ann", "bob"), bodies, strict=True):
        answer = await stand.rest("POST", "/v1/memory:import", body, user=user)
        assert (answer.status, answer.json["added"]) == (200, "60")
        listed = (await stand.rest("GET", "/v1/memory?limit=100", user=user)).json["memories"]
        assert {one["content"] for one in listed} == set(texts)
    exported = await stand.rest("GET", "/v1/memory:export")
    assert len(exported.body.splitlines()) == 61
    for broken in (b'[{"start": {}}, {"mem', b'[{"start": {}}, 7]', b"[{", b'[{"start": {}}, {"memory": "\xff"}]'):
        assert (await stand.rest("POST", "/v1/memory:import", broken)).status == 400


async def test_the_documents_are_there_to_read(stand: ConsoleStand) -> None:
    page = await stand.rest("GET", "/docs", user="")
    assert page.status == 200
    assert b"/v1/memory/{id}" in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (await stand.rest("GET", "/openapi.json", user="")).json["openapi"] == "3.1.0"


async def test_a_request_that_is_none_gets_an_answer_without_its_bytes(stand: ConsoleStand) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.console.port)
    writer.write(b"SECRET \x00 words\r\n\r\n")
    answer = await reader.read(1000)
    writer.close()
    assert answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    assert b"words" not in answer


async def test_a_get_is_as_lenient_as_the_semantic_routers(stand: ConsoleStand) -> None:
    await stored(stand, "Likes tea")
    await stored(stand, "Likes coffee", user="bob")
    huge = "9" * 5000
    for query in ("limit=500", f"limit={huge}", "limit=100&colour=red", "user_id=bob", "user_id=bob&user_id=eve"):
        listed = await stand.rest("GET", f"/v1/memory?{query}")
        assert listed.status == 200, query
        assert [one["content"] for one in listed.json["memories"]] == ["Likes tea"], query
        assert listed.json["limit"] in {20, 100}
    admin = await stand.rest("GET", "/v1/memory?user_id=bob", roles="admin")
    assert [one["content"] for one in admin.json["memories"]] == ["Likes coffee"]


@pytest.mark.parametrize("limit", ["0", "00", "-0", "0.0"])
@pytest.mark.parametrize("verb", ["GET", "DELETE"])
async def test_a_limit_of_zero_is_refused(stand: ConsoleStand, verb: str, limit: str) -> None:
    await stored(stand, "Likes tea")
    assert (await stand.rest(verb, f"/v1/memory?limit={limit}")).status == 400
    searched = await stand.rest("POST", "/v1/memory:search", {"query": "tea", "limit": 0})
    assert searched.status == 400
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 1


@pytest.mark.parametrize(
    ("verb", "path", "body", "status"),
    [
        ("DELETE", "/v1/memory?colour=red", None, 400),
        ("DELETE", "/v1/memory?user_id=bob", None, 403),
        ("DELETE", "/v1/memory?limit=500", None, 400),
        ("DELETE", "/v1/memory/{id}?user_id=bob", None, 403),
        ("PATCH", "/v1/memory/{id}?user_id=bob", {"content": "Likes water"}, 403),
        ("PATCH", "/v1/memory/{id}?colour=red", {"content": "Likes water"}, 400),
        ("POST", "/v1/memory?user_id=bob", {"content": "Likes water"}, 400),
        ("POST", "/v1/memory", {"content": "Likes water", "user_id": "bob"}, 403),
        ("POST", "/v1/memory", {"content": "Likes water", "colour": "red"}, 400),
        ("PATCH", "/v1/memory/{id}", {"content": "Likes water", "colour": "red"}, 400),
        ("POST", "/v1/memory:forget", {"sesion_id": "one"}, 400),  # with no filter it would forget all
        ("POST", "/v1/memory:forget", {"dry-run": True}, 400),
    ],
)
async def test_a_change_refuses_what_a_get_passes_over(
    stand: ConsoleStand, verb: str, path: str, body: object, status: int
) -> None:
    path = path.replace("{id}", await stored(stand, "Likes tea"))
    assert (await stand.rest(verb, path, body)).status == status
    kept = (await stand.rest("GET", "/v1/memory")).json["memories"]
    assert [one["content"] for one in kept] == ["Likes tea"]
    assert (await stand.rest("GET", "/v1/memory", user="bob")).json["total"] == 0


async def test_the_path_of_the_semantic_routers_newer_versions_leads_to_the_same_memories(
    stand: ConsoleStand,
) -> None:
    id_, path = await stored(stand, "Likes tea"), "/api/v1/storage/memories"
    assert (await stand.rest("GET", f"{path}?limit=500")).json == (
        await stand.rest("GET", "/v1/memory?limit=500")
    ).json
    assert (await stand.rest("GET", f"{path}/{id_}")).json["content"] == "Likes tea"
    assert (await stand.rest("GET", f"{path}/{id_}", user="bob")).status == 404
    assert (await stand.rest("DELETE", f"{path}/")).status == 400
    assert (await stand.rest("GET", f"{path}x")).status == 404
    assert (await stand.rest("DELETE", f"{path}/{id_}")).status == 200
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 0


async def test_errors_in_the_semantic_routers_form_when_a_setting_asks_for_it(tmp_path: Path) -> None:
    made = ConsoleStand(tmp_path)
    made.error_body = "semantic_router"
    async with made as stand:
        for path, user, status, code in (
            ("/v1/memory", "", 401, "MISSING_USER_ID"),
            ("/v1/memory?limit=0", "ann", 400, "INVALID_LIMIT"),
            ("/v1/memory?type=nonsense", "ann", 400, "INVALID_TYPE"),
            ("/v1/memory/" + "0" * 64, "ann", 404, "NOT_FOUND"),
            ("/v1/memory?created_after=yesterday", "ann", 400, "BAD_REQUEST"),
        ):
            answer = await stand.rest("GET", path, user=user)
            assert (answer.status, answer.json["error"]["code"]) == (status, code)
            assert answer.json["error"].keys() == {"code", "message", "timestamp"}
