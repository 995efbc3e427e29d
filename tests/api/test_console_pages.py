"""The page without a browser: who is let in, what no form and no text can do."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from memory_extproc.api.call import message_of
from memory_extproc.concurrency import RateLimits
from memory_extproc.console.server import COOKIE, LIFE, LINK_LIFE
from memory_extproc.console.views import draw
from memory_extproc.model import Caller, Consent, Owner, TurnOutcome
from memory_extproc.model.turn import message_id_of
from memory_extproc.settings.api import PrincipalRole
from tests.support.builders import a_memory
from tests.support.console import Answered, ConsoleStand
from tests.support.waiting import until

ANN = Owner("", "ann")
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }} {% include '/etc/passwd' %} ${7*7}",
    "javascript:alert(1)",
    "</textarea><svg onload=alert(1)>",
    'hx-get="/console/leave" \u202eevil\u202c',
    "]]><!--",
)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ConsoleStand]:
    async with ConsoleStand(tmp_path) as made:
        yield made


async def signed_in(stand: ConsoleStand, user: str = "ann", *roles: PrincipalRole) -> str:
    """The cookie of a session."""
    parts = urlsplit(stand.link(user, *roles))
    answer = await stand.rest("GET", f"{parts.path}?{parts.query}", user="")
    assert answer.status == 303
    return answer.headers["set-cookie"].partition(";")[0]


async def page(stand: ConsoleStand, path: str, cookie: str) -> Answered:
    return await stand.rest("GET", path, user="", Cookie=cookie)


async def post(stand: ConsoleStand, path: str, cookie: str, fields: dict[str, str], **headers: str) -> Answered:
    async with stand.http.post(
        path, data=fields, headers={"cookie": cookie, **headers}, allow_redirects=False
    ) as answer:
        return Answered(answer.status, dict(answer.headers), await answer.read())


def csrf_of(shown: Answered) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', shown.text)
    assert found
    return found[1]


async def test_a_link_signs_in_once_and_not_when_it_is_old(stand: ConsoleStand) -> None:
    parts = urlsplit(stand.link("ann"))
    link = f"{parts.path}?{parts.query}"
    first = await stand.rest("GET", link, user="")
    assert first.status == 303
    attributes = first.headers["set-cookie"].lower()
    assert all(one in attributes for one in ("httponly", "samesite=strict", "path=/console"))
    again = await stand.rest("GET", link, user="")
    assert again.status == 401
    assert "works once" in again.text
    old = urlsplit(stand.link("ann"))
    stand.time += LINK_LIFE
    assert (await stand.rest("GET", f"{old.path}?{old.query}", user="")).status == 401


async def test_a_session_ends_and_cannot_be_made_up(stand: ConsoleStand) -> None:
    cookie = await signed_in(stand)
    assert (await page(stand, "/console", cookie)).status == 200
    body, _, mac = cookie.partition("=")[2].rpartition(".")
    for wrong in (f"{body}.{mac[:-1]}0", f"{body}x.{mac}", "x", f"{body}.", "." + mac, "é.é"):
        assert (await page(stand, "/console", f"{COOKIE}={wrong}")).status == 401
    assert stand.sample("api_denied_total", reason="CREDENTIALS_REFUSED") >= 1
    link = urlsplit(stand.link("ann")).query.removeprefix("link=")
    assert (await page(stand, "/console", f"{COOKIE}={link}")).status == 401, "a link is no session"
    stand.time += LIFE
    ended = await page(stand, "/console", cookie)
    assert ended.status == 401
    assert "Sign in below" in ended.text


async def test_a_gateways_word_counts_and_nobody_elses_memory_is_shown(stand: ConsoleStand) -> None:
    await stand.rest("POST", "/v1/memory", {"content": "Likes tea"})
    assert "Likes tea" in (await stand.rest("GET", "/console")).text
    assert "Likes tea" not in (await stand.rest("GET", "/console", user="bob")).text
    bobs = await signed_in(stand, "bob")
    id_ = (await stand.rest("GET", "/v1/memory")).json["memories"][0]["id"]
    missing = await page(stand, f"/console/memory/{id_}", bobs)
    assert missing.status == 404
    assert "Likes tea" not in missing.text


async def test_every_answer_is_shut_tight(stand: ConsoleStand) -> None:
    cookie = await signed_in(stand)
    for path in ("/console", "/console/settings", "/console/why?text=tea", "/console/enter", "/console/memory/x"):
        answer = await page(stand, path, cookie)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert not re.search(r"<script>|<[^>]+ on\w+=|style=", answer.text)


async def test_a_form_of_another_site_or_session_changes_nothing(stand: ConsoleStand) -> None:
    anns, bobs = await signed_in(stand), await signed_in(stand, "bob")
    theirs = csrf_of(await page(stand, "/console", bobs))
    ours = csrf_of(await page(stand, "/console", anns))
    for fields in ({}, {"csrf": ""}, {"csrf": theirs}, {"csrf": ours[:-1]}):
        answer = await post(stand, "/console/add", anns, {"content": "planted", **fields})
        assert answer.status == 403
    elsewhere = await post(
        stand, "/console/add", anns, {"content": "planted", "csrf": ours}, origin="https://evil.example"
    )
    assert elsewhere.status == 403
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 0
    assert (await post(stand, "/console/add", anns, {"content": "meant", "csrf": ours})).status == 303
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 1


@pytest.mark.parametrize("text", HOSTILE)
async def test_a_text_is_text_wherever_it_is_shown(stand: ConsoleStand, text: str) -> None:
    body = {"content": text, "session_id": "s", "metadata": {"subject": text, "attribute": "a", "value": text}}
    id_ = (await stand.rest("POST", "/v1/memory", body)).json["memory"]["id"]
    for path in ("/console", f"/console/memory/{id_}", "/console/why?text=tea", f"/console?q={id_}"):
        shown = (await stand.rest("GET", path)).text
        assert text not in shown or escape(text) == text
        assert "49" not in re.sub(r"\d{3,}|[0-9a-f]{8,}|\d\d:\d\d|csrf.{80}", "", shown)


async def test_an_empty_choice_forgets_nothing(stand: ConsoleStand) -> None:
    await stand.rest("POST", "/v1/memory", {"content": "Likes tea"})
    cookie = await signed_in(stand)
    csrf = csrf_of(await page(stand, "/console", cookie))
    for fields in ({"scope": "ids"}, {"scope": "session"}, {"scope": "about", "about": ""}, {}):
        assert (await post(stand, "/console/forget", cookie, {"csrf": csrf, **fields})).status == 400
    for confirmed in ("", "00", "zz", "0a03626f62", "f" * 200):
        answer = await post(stand, "/console/forget/confirm", cookie, {"csrf": csrf, "confirmed": confirmed})
        assert answer.status == 400
    assert (await stand.rest("GET", "/v1/memory")).json["total"] == 1


async def test_an_edit_of_what_was_changed_meanwhile_keeps_the_text(stand: ConsoleStand) -> None:
    id_ = (await stand.rest("POST", "/v1/memory", {"content": "The budget is $10"})).json["memory"]["id"]
    cookie = await signed_in(stand)
    shown = await page(stand, f"/console/memory/{id_}", cookie)
    etag = re.search(r'name="etag" value="(\w+)"', shown.text)
    assert etag
    await stand.rest("PATCH", f"/v1/memory/{id_}", {"content": "The budget is $11"})
    fields = {"csrf": csrf_of(shown), "etag": etag[1], "content": "The budget is $12"}
    stale = await post(stand, f"/console/memory/{id_}/edit", cookie, fields)
    assert stale.status == 409
    assert "The budget is $11" in stale.text
    assert "The budget is $12" in stale.text
    empty = await post(stand, f"/console/memory/{id_}/edit", cookie, {**fields, "content": "  ", "etag": ""})
    assert empty.status == 400
    assert "aria-invalid" in empty.text


async def test_operators_alone_see_the_server(stand: ConsoleStand) -> None:
    assert (await page(stand, "/console/operator", await signed_in(stand))).status == 403
    shown = await page(stand, "/console/operator", await signed_in(stand, "ops", PrincipalRole.ADMIN))
    assert shown.status == 200
    assert "&lt;b&gt;x&lt;/b&gt;" in shown.text


async def test_a_wrong_token_is_told_and_a_reader_who_asks_too_often_waits(tmp_path: Path) -> None:
    made = ConsoleStand(tmp_path)
    made.rate = RateLimits(per_second=0.001, burst=3)
    async with made as stand:
        wrong = await post(stand, "/console/enter", "", {"token": "mxk_wrong"})
        assert wrong.status == 401
        assert "not accepted" in wrong.text
        cookie = await signed_in(stand)
        codes = [(await page(stand, "/console", cookie)).status for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]


async def test_a_session_outlives_a_restart_and_no_change_of_the_secret(stand: ConsoleStand) -> None:
    cookie = await signed_in(stand)
    stand.time += timedelta(hours=1)
    assert (await page(stand, "/console", cookie)).status == 200


async def test_static_files_are_kept_by_browsers_and_pages_are_not(stand: ConsoleStand) -> None:
    shown = (await stand.rest("GET", "/console")).text
    for path in re.findall(r'"(/console/static/[^"]+)"', shown):
        answer = await stand.rest("GET", path, user="")
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
        assert (
            await stand.rest("GET", re.sub(r"/[0-9a-f]{16}/", "/0123456789abcdef/", path), user="")
        ).status == 404


async def test_the_chat_box_speaks_as_its_reader_and_survives_any_gateway(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []
    answers: list[tuple[int, bytes]] = [
        (200, b'{"choices": [{"message": {"content": "<b>Hello</b>"}}]}'),
        (200, b"no JSON"), (200, b"{}"), (200, b'{"choices": []}'), (200, b"\xff"), (503, b""),
    ]  # fmt: skip

    async def chat(request: web.Request) -> web.Response:
        body = await request.json()
        heard.append((request.headers["x-authz-user-id"], body["messages"][0]["content"]))
        status, answer = answers[len(heard) - 1]
        return web.Response(status=status, body=answer, headers={"x-memory-status": "used;n=1"})

    application = web.Application()
    application.router.add_post("/v1/chat/completions", chat)
    made = ConsoleStand(tmp_path)
    async with TestServer(application) as gateway:
        made.chats = str(gateway.make_url("/v1"))
        async with made as stand:
            cookie = await signed_in(stand)
            csrf = csrf_of(await page(stand, "/console/try", cookie))
            fields = {"csrf": csrf, "text": "My dog is Rex", "session": "s"}
            shown = await post(stand, "/console/try", cookie, fields)
            assert "&lt;b&gt;Hello&lt;/b&gt;" in shown.text
            assert "memories were used" in shown.text
            for _ in answers[1:]:
                assert (await post(stand, "/console/try", cookie, fields)).status == 200
            assert (await post(stand, "/console/try", cookie, {**fields, "csrf": ""})).status == 403
            assert "Nothing yet" in (await page(stand, "/console/try/learned?session=s", cookie)).text
            stand.decisions.note(Caller(ANN), "r-1", TurnOutcome.INCOGNITO)

            async def is_told() -> bool:
                told = (await page(stand, "/console/try/learned?session=s&trace=r-1", cookie)).text
                return "Nothing: an incognito conversation" in told and "hx-trigger" not in told

            await until(is_told, "the reason is shown, and the page asks no more")
            await stand.consent.set(ANN, Consent.RECALL_ONLY, by="user")
            told = (await page(stand, "/console/try/learned?session=s", cookie)).text
            assert "Nothing: you have not consented" in told
            refused = await post(stand, "/console/add", cookie, {"csrf": csrf, "content": "Likes tea"})
            assert "You have not consented to memory, see Settings. Your text is kept" in refused.text
    assert heard == [("ann", "My dog is Rex")] * len(answers)


async def test_a_memory_shows_every_message_and_memory_that_it_was_drawn_from(stand: ConsoleStand) -> None:
    turns = {"a" * 64: "We drove to Lisbon", "b" * 64: "It was in May"}
    said = [a_memory(text, ANN, id=message_id_of(ANN, turn, 0)) for turn, text in turns.items()]
    first, second = turns
    odd = {"turn": 3, "drawn_from": {"x": 1}, "sources": [None, 7, "gone"]}
    await stand.remember(
        *said,
        a_memory("Drove to Lisbon in May", ANN, id="drawn", metadata={"turn": second, "drawn_from": [first]}),
        a_memory("Likes road trips", ANN, id="derived", metadata={"sources": ["drawn", "gone"]}),
        a_memory("Imported", ANN, id="imported", metadata=odd),
    )
    cookie = await signed_in(stand)
    drawn = (await page(stand, "/console/memory/drawn", cookie)).text
    assert all(f"<p>{text}</p>" in drawn for text in turns.values())
    assert "<p>Drove to Lisbon in May</p>" in (await page(stand, "/console/memory/derived", cookie)).text
    assert "Source text" not in (await page(stand, "/console/memory/imported", cookie)).text


def test_the_picture_names_a_value_once_in_its_own_capitals() -> None:
    facts = {
        "is_learning_portuguese": "Portuguese",
        "home": "Porto",
        "sister_mia": "Mia",
        "": "<b>",
        "budget": "$10",
    }
    memories = [
        message_of(
            a_memory(f"{value} Budget", ANN, metadata={"subject": "user", "attribute": name, "value": value})
        )
        for name, value in facts.items()
    ]
    drawn = draw(memories)
    assert drawn is not None
    assert [line["words"] for line in drawn["lines"]] == [
        "is learning Portuguese", "home: Porto", "sister Mia", "<b>", "Budget: $10",
    ]  # fmt: skip


async def test_an_unknown_page_leads_back(stand: ConsoleStand) -> None:
    cookie = await signed_in(stand)
    for path in ("/console/nothing", "/console/operator/nothing", "/console/forget", "/console/memory/a/b"):
        answer = await page(stand, path, cookie)
        assert answer.status == 404, path
        assert 'href="/console">Back to your memories' in answer.text
        assert answer.headers["cache-control"] == "no-store"
    for there in ("/console", "/console/timeline", "/console/why", "/console/verify"):
        assert (await page(stand, there, cookie)).status == 200, there
    nobody = await stand.rest("GET", "/console/nothing", user="")
    assert nobody.status == 401
    assert "Sign in" in nobody.text
    assert "memory-extproc console link" in nobody.text, "the way back"


async def forgotten(stand: ConsoleStand, user: str = "ann") -> Any:
    await stand.rest("POST", "/v1/memory", {"content": "Likes tea"}, user=user)
    done = (await stand.rest("POST", "/v1/memory:forget", {}, user=user)).json["receipt"]["id"]
    return (await stand.rest("GET", f"/v1/memory/receipts/{done}?verbose=true", user=user)).json


async def test_a_receipt_is_checked_and_looked_for_again(stand: ConsoleStand) -> None:
    receipt = await forgotten(stand)
    genuine = await stand.rest("POST", "/v1/memory/receipts:verify", {"receipt": receipt})
    assert genuine.status == 200, genuine.body
    assert genuine.json["signature"] == "valid"
    assert genuine.json["subject_matches"] is True
    assert {(one["store"], one["verdict"]) for one in genuine.json["stores"]} == {
        ("memories", "clean"),
        ("journal", "clean"),
    }
    bare = {name: receipt[name] for name in ("signed", "signature")}
    assert (await stand.rest("POST", "/v1/memory/receipts:verify", {"receipt": bare})).json["signature"] == "valid"
    for change, expected in (
        ({"memories": 7}, "altered"),
        ({"signed": base64.b64encode(base64.b64decode(receipt["signed"]) + b" ").decode()}, "altered"),
        ({"signature": ""}, "unsigned"),
    ):
        answer = await stand.rest("POST", "/v1/memory/receipts:verify", {"receipt": {**receipt, **change}})
        assert answer.json["signature"] == expected, change
    others = (await stand.rest("POST", "/v1/memory/receipts:verify", {"receipt": receipt}, user="bob")).json
    assert (others["signature"], others["subject_matches"], others["stores"]) == ("valid", False, [])
    for wrong in ({}, {"signed": "e30="}, {"signed": "MQ=="}, {"id": "x"}):
        refused = await stand.rest("POST", "/v1/memory/receipts:verify", {"receipt": wrong})
        assert refused.status == 400, wrong


async def test_a_receipt_is_checked_on_the_page(stand: ConsoleStand) -> None:
    receipt, cookie = await forgotten(stand), await signed_in(stand)
    csrf = csrf_of(await page(stand, "/console/verify", cookie))
    named = await post(stand, "/console/verify", cookie, {"csrf": csrf, "id": receipt["id"]})
    pasted = await post(stand, "/console/verify", cookie, {"csrf": csrf, "receipt": json.dumps(receipt)})
    for shown in (named, pasted):
        assert shown.status == 200
        assert "The signature is valid" in shown.text
        assert shown.text.count("still gone") == 2
    changed = json.dumps({**receipt, "scope": "user"} | {"memories": 70})
    assert "altered" in (await post(stand, "/console/verify", cookie, {"csrf": csrf, "receipt": changed})).text
    for wrong in ("", "no json <b>", "[]", "1", "[" * 20_000, '{"receipt": 1}', '{"signed": 1}', "{}"):
        refused = await post(stand, "/console/verify", cookie, {"csrf": csrf, "receipt": wrong})
        assert refused.status == 400, wrong[:20]
        assert "This is not a forget receipt" in refused.text
        assert wrong in unescape(refused.text), "the text is kept"
    bob = await signed_in(stand, "bob")
    token = csrf_of(await page(stand, "/console/verify", bob))
    others = await post(stand, "/console/verify", bob, {"csrf": token, "receipt": json.dumps(receipt)})
    assert "another user or another server" in others.text
    missing = await post(stand, "/console/verify", bob, {"csrf": token, "id": receipt["id"]})
    assert missing.status == 404


@pytest.mark.parametrize(
    ("path", "field", "text"),
    [
        ("/console/add", "content", "\N{BEAR FACE}" * 4000),
        ("/console/add", "content", "\u8a18" * 8000),
        ("/console/add", "content", "two\nlines & <b> with \0"),
        ("/console/forget", "about", "the <trip> to\0Hawaii"),
    ],
)
async def test_a_form_with_a_fault_keeps_its_text_and_names_the_field(
    stand: ConsoleStand, path: str, field: str, text: str
) -> None:
    await stand.rest("POST", "/v1/memory", {"content": "Likes tea"})
    cookie = await signed_in(stand)
    csrf = csrf_of(await page(stand, "/console", cookie))
    answer = await post(stand, path, cookie, {"csrf": csrf, "scope": "about", field: text})
    assert answer.status == 400
    assert escape(text) in answer.text
    assert re.search(rf'name="{field}"[^>]*aria-describedby="{field}-fault"', answer.text)
    assert f'id="{field}-fault"' in answer.text
    assert "Likes tea" in answer.text, "the page is there around it"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("after=2026-99-99&q=tea", "a day such as"),
        (f"session={'x' * 300}&q=tea", "Conversation: at most 256"),
        ("type=nonsense&q=tea", "one of semantic"),
    ],
)
async def test_filters_with_a_fault_stay_as_they_were(stand: ConsoleStand, query: str, named: str) -> None:
    answer = await stand.rest("GET", f"/console?{query}")
    assert answer.status == 400
    assert 'value="tea"' in answer.text
    assert named in answer.text
    assert 'role="alert"' in answer.text
