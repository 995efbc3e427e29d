"""`doctor` before real Envoys that are wired wrongly, each in one way, and one that is wired right."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import ClientSession, web

from memory_extproc.cli.doctor import Through, examine_through, options_from
from memory_extproc.doctor.gateway import Finding, echo_app
from memory_extproc.errors import MemoryExtprocError
from tests.support.authority import Authority
from tests.support.envoy import Wiring
from tests.support.ports import free_port
from tests.support.rest import RestStand
from tests.support.whole import WholeStand

Findings = Mapping[str, Finding]
TOKENS = ["anns", "bobs"]
_LUA = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
_MUTATION = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"


def lua(name: str, code: str) -> dict[str, Any]:
    return {"name": name, "typed_config": {"@type": _LUA, "default_source_code": {"inline_string": code}}}


def strip(*headers: str) -> dict[str, Any]:
    mutations = {"request_mutations": [{"remove": header} for header in headers]}
    return {"name": "identity_strip", "typed_config": {"@type": _MUTATION, "mutations": mutations}}


# Stands for a filter that verifies tokens: it says who asks by what they hold.
WHO = lua(
    "who_asks",
    """
    function envoy_on_request(handle)
      local token = handle:headers():get("authorization")
      if token == "Bearer anns" then handle:headers():replace("x-authz-user-id", "ann") end
      if token == "Bearer bobs" then handle:headers():replace("x-authz-user-id", "bob") end
    end
    """,
)
RIGHT = [strip("x-authz-user-id", "x-authz-tenant-id"), WHO]


KEEPS = lua(
    "router_reads",
    """
    function envoy_on_request(handle)
      local body = handle:body(true)
      handle:streamInfo():dynamicMetadata():set("router", "body", body:getBytes(0, body:length()))
    end
    """,
)
PUTS_BACK = lua(
    "router_writes",
    """
    function envoy_on_request(handle)
      local kept = handle:streamInfo():dynamicMetadata():get("router")["body"]
      local length = handle:body(true):setBytes(kept)
      handle:headers():replace("content-length", length)
    end
    """,
)


async def counting_model(request: web.Request) -> web.Response:
    """What most models do: an id of each answer, and tokens by what they read."""
    body = await request.read()
    if request.method == "GET":
        return web.json_response({"data": [{"id": "counting"}]})
    usage = {"prompt_tokens": len(b" ".join(body.split())) // 4}
    message = {"role": "assistant", "content": "Certainly."}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return web.json_response({"id": uuid4().hex, "choices": choices, "usage": usage})


@contextlib.asynccontextmanager
async def caching_front(stand: WholeStand) -> AsyncIterator[str]:
    """A cache of whole answers, headers included, by what was asked last; in front of Envoy."""
    kept = dict[str, tuple[int, bytes, dict[str, str]]]()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = "" if b"messages" not in body or body[:1] != b"{" else json.loads(body)["messages"][-1]["content"]
        if not (asked and asked in kept and "x-memory-retrieve" not in request.headers):
            headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
            async with stand.session.request(
                request.method, stand.url + request.path_qs, data=body, headers=headers
            ) as got:
                status = {
                    name: got.headers[name] for name in ("x-memory-status", "content-type") if name in got.headers
                }
                kept[asked] = (got.status, await got.read(), status)
        status_code, content, headers = kept[asked]
        return web.Response(status=status_code, body=content, headers=headers)

    application = web.Application(client_max_size=64 * 1024 * 1024)
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, auto_decompress=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def examined(
    stand: WholeStand, *, url: str = "", admin: bool = False, patience: float = 5, roles: str = "", **options: Any
) -> Findings:
    """The findings by check, as the command makes them. *options* as `options_from` takes them."""
    given: dict[str, Any] = {
        "urls": {},
        "tokens": [],
        "headers": [],
        "body_limit": "4MiB",
        "names": ("x-authz-user-id", "x-authz-tenant-id", "x-session-id", roles),
        "trusted_edge": False,
        "patience": patience,
    }
    page = f"http://127.0.0.1:{stand.envoy.admin}" if admin else ""
    through = Through(url or stand.url, "/v1/chat/completions", "", patience, page, "")
    found = await examine_through(
        options_from(**{**given, "urls": {"--through": through.url}, **options}), through, None
    )
    return {one.check: one for one in found}


def verdicts(findings: Findings, verdict: str) -> set[str]:
    return {check for check, one in findings.items() if one.verdict == verdict}


@pytest.fixture
async def echo(whole: WholeStand) -> WholeStand:
    """The stand, with the doctor's own model behind it."""

    async def answers(request: web.Request) -> web.StreamResponse:
        matched = await echo_app().router.resolve(request)
        return await matched.handler(request)

    whole.upstream.answers = answers
    return whole


async def test_a_gateway_that_is_wired_right_has_nothing_broken(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT, failure_mode_allow=True))
    findings = await examined(echo, tokens=TOKENS, admin=True)
    assert verdicts(findings, "fail") == set()
    # the model is sent who asks, and this stand has no memory API beside the chats
    assert verdicts(findings, "warn") == {"control-headers", "leaves-nothing-behind"}
    assert verdicts(findings, "unknown") == set()


async def test_who_may_name_anybody_is_a_fault(echo: WholeStand) -> None:
    await echo.start()
    findings = await examined(echo)
    assert verdicts(findings, "fail") == {"forged-identity"}
    assert "header_mutation" in findings["forged-identity"].mend
    assert verdicts(await examined(echo, trusted_edge=True), "fail") == set()


async def test_a_real_model_shows_by_its_tokens_that_memory_reaches_it(whole: WholeStand) -> None:
    whole.upstream.answers = counting_model
    await whole.start(Wiring(before_us=RIGHT))
    findings = await examined(whole, tokens=TOKENS)
    assert verdicts(findings, "fail") == set()
    assert verdicts(findings, "ok") >= {"block-reaches-the-model", "two-people", "remembers"}
    assert verdicts(findings, "unknown") == {"control-headers", "streams"}


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        pytest.param([strip("x-authz-user-id")], [WHO], id="who-asks-is-said-after-memory"),
        pytest.param([WHO, strip("x-authz-user-id")], [], id="what-says-who-asks-is-stripped-again"),
    ],
)
async def test_memory_that_does_not_learn_who_asks_is_found(
    echo: WholeStand, before: list[dict[str, Any]], behind: list[dict[str, Any]]
) -> None:
    await echo.start(Wiring(before_us=before, behind_us=behind))
    findings = await examined(echo, tokens=TOKENS)
    assert verdicts(findings, "fail") == {"knows-who-asks"}
    assert "before memory" in findings["knows-who-asks"].mend


async def test_a_stripped_header_is_no_fault_where_no_credentials_are_given(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT))
    findings = await examined(echo)
    assert verdicts(findings, "fail") == set()
    assert findings["knows-who-asks"].verdict == "unknown"


async def test_a_header_that_is_not_stripped_is_found_beside_credentials(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=[strip("x-authz-tenant-id"), WHO]))
    assert verdicts(await examined(echo, tokens=TOKENS), "fail") == {"forged-identity"}


async def test_a_tenant_that_clients_name_is_found(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=[strip("x-authz-user-id"), WHO]))
    findings = await examined(echo, tokens=TOKENS)
    assert verdicts(findings, "fail") == {"forged-beside-credentials"}
    assert "x-authz-tenant-id" in findings["forged-beside-credentials"].seen


async def test_a_body_that_may_name_its_user_is_found(echo: WholeStand) -> None:
    echo.changes["identity"] = {"trust_body": True}
    await echo.start(Wiring(before_us=RIGHT))
    assert verdicts(await examined(echo, tokens=TOKENS), "fail") == {"forged-identity-in-body"}


async def test_a_buffer_that_is_too_small_is_found_from_outside_and_from_inside(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT, buffer_bytes=32 * 1024))
    findings = await examined(echo, tokens=TOKENS, admin=True)
    assert verdicts(findings, "fail") == {"large-bodies", "envoy-buffer-limit"}
    assert "413" in findings["large-bodies"].seen


async def test_a_sidecar_that_is_away_is_found_though_every_request_succeeds(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT, failure_mode_allow=True))
    await echo.stop_sidecar()
    findings = await examined(echo, tokens=TOKENS, admin=True)
    assert verdicts(findings, "fail") >= {"memory-in-the-path", "envoy-passed-by"}
    assert "cannot reach the sidecar" in findings["envoy-passed-by"].mend


async def test_plaintext_to_a_sidecar_that_wants_tls_is_found_as_under_a_strict_mesh(
    echo: WholeStand, tmp_path: Path
) -> None:
    """As where a proxy of a mesh stands before the sidecar and takes mutual TLS alone."""
    await echo.start(Wiring(before_us=RIGHT, failure_mode_allow=True, health_check=True))
    port = int(echo.whole.ext_proc.rpartition(":")[2])
    await echo.stop_sidecar()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pem = tmp_path / "mesh.pem"
    pem.write_bytes(b"".join(Authority().issue("mesh")))
    context.load_cert_chain(pem)
    strict = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port, ssl=context)
    async with strict:
        findings = await examined(echo, tokens=TOKENS, admin=True)
    assert verdicts(findings, "fail") >= {"memory-in-the-path", "envoy-reaches-memory"}
    assert "STRICT" in findings["envoy-reaches-memory"].mend


async def test_a_route_without_the_filter_is_told_from_a_sidecar_that_is_away(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT))
    url = f"http://127.0.0.1:{echo.upstream.port}"
    findings = await examined(echo, url=url, tokens=TOKENS, admin=True)
    assert verdicts(findings, "fail") == {"memory-in-the-path", "envoy-passed-by"}
    assert "none of our requests" in findings["envoy-passed-by"].seen


async def test_a_filter_that_puts_the_body_back_is_found(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=[*RIGHT, KEEPS], behind_us=[PUTS_BACK]))
    findings = await examined(echo, tokens=TOKENS)
    # what memory takes out of a body comes back with it
    assert verdicts(findings, "fail") == {"block-reaches-the-model", "control-headers"}


async def test_a_body_put_back_is_found_with_a_model_that_counts_its_tokens(whole: WholeStand) -> None:
    whole.upstream.answers = counting_model
    await whole.start(Wiring(before_us=[*RIGHT, KEEPS], behind_us=[PUTS_BACK]))
    assert verdicts(await examined(whole, tokens=TOKENS), "fail") == {"block-reaches-the-model"}


async def test_a_cache_behind_memory_that_does_not_ask_who_asks_is_found(whole: WholeStand) -> None:
    kept = dict[str, web.Response]()

    async def caching(request: web.Request) -> web.StreamResponse:
        asked = (await request.json())["messages"][-1]["content"].partition("\n")[0]
        if asked not in kept:
            kept[asked] = await counting_model(request)
        return web.Response(body=kept[asked].body, content_type="application/json")

    whole.upstream.answers = caching
    await whole.start(Wiring(before_us=RIGHT))
    findings = await examined(whole, tokens=TOKENS)
    assert verdicts(findings, "fail") >= {"two-people"}
    assert "bypass" in findings["two-people"].mend


async def test_a_cache_in_front_of_memory_is_found(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT))
    async with caching_front(echo) as url:
        findings = await examined(echo, url=url, tokens=TOKENS)
    assert verdicts(findings, "fail") >= {"two-people"}
    assert "a cache" in findings["two-people"].seen


async def test_one_user_for_everybody_is_found(echo: WholeStand) -> None:
    everybody = lua(
        "who_asks", WHO["typed_config"]["default_source_code"]["inline_string"].replace('"bob"', '"ann"')
    )
    await echo.start(Wiring(before_us=[strip("x-authz-user-id", "x-authz-tenant-id"), everybody]))
    findings = await examined(echo, tokens=TOKENS)
    assert verdicts(findings, "fail") == {"two-people"}
    assert "same caller" in findings["two-people"].seen


async def test_control_headers_that_reach_the_model_are_found(echo: WholeStand) -> None:
    rules = {"disallow_expression": {"regex": "x-disable-router-memory"}}
    await echo.start(Wiring(before_us=RIGHT, mutation_rules=rules))
    findings = await examined(echo, tokens=TOKENS, admin=True)
    assert verdicts(findings, "fail") == {"control-headers"}
    assert "x-disable-router-memory" in findings["control-headers"].seen
    assert "mutation_rules" in findings["envoy-passed-by"].mend


async def test_answers_that_memory_does_not_see_are_found(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT, response_body="NONE"))
    findings = await examined(echo, tokens=TOKENS, admin=True, patience=2)
    assert verdicts(findings, "fail") == {"remembers", "envoy-processing-mode"}


async def test_an_envoy_that_waits_too_short_is_found(echo: WholeStand) -> None:
    await echo.start(Wiring(before_us=RIGHT, failure_mode_allow=True, message_timeout="0.1s"))
    findings = await examined(echo, tokens=TOKENS, admin=True)
    assert "envoy-timeouts" in verdicts(findings, "fail")


async def test_what_was_told_is_forgotten_where_the_memory_api_is_beside_the_chats(rest: RestStand) -> None:
    async def answers(request: web.Request) -> web.StreamResponse:
        return await (await echo_app().router.resolve(request)).handler(request)

    rest.upstream.answers = answers
    await rest.start()
    await rest.say("My budget for the Hawaii trip is $10,000")
    findings = await examined(rest, trusted_edge=True, admin=True)
    assert verdicts(findings, "fail") == set()
    assert findings["leaves-nothing-behind"].verdict == "ok"
    theirs = {got.headers.get("x-authz-user-id", "") for got in rest.upstream.got}
    left = {name for name in theirs if name and (await rest.rest("GET", "/v1/memory", user=name)).json["memories"]}
    assert left == {"ann"}


async def test_two_filters_as_they_are_written_have_nothing_broken(rest: RestStand) -> None:
    rest.upstream.answers = counting_model
    rest.changes["envoy"] = {"two_filters": True, "message_timeout": "12s", "health_interval": "1ms"}
    rest.options = replace(rest.options, two_filters=True)
    await rest.start()
    findings = await examined(rest, trusted_edge=True, admin=True)
    assert verdicts(findings, "fail") | verdicts(findings, "warn") == set()
    assert {"remembers", "envoy-filter-order", "envoy-processing-mode"} <= verdicts(findings, "ok")


async def test_a_role_that_a_client_may_give_itself_is_found(rest: RestStand) -> None:
    rest.upstream.answers = counting_model
    rest.changes["api"] = {"trusted_proxy": {"roles_header": "x-authz-roles"}}
    await rest.start()
    findings = await examined(rest, roles="x-authz-roles")
    assert verdicts(findings, "fail") == {"forged-identity", "forged-role"}
    assert "x-authz-roles" in findings["forged-role"].mend
    assert (await examined(rest, roles="x-of-nobody"))["forged-role"].verdict == "ok"
    assert (await examined(rest, roles="x-authz-roles", trusted_edge=True))["forged-role"].verdict == "ok"


async def test_the_command_says_what_is_wrong_and_ends_with_one(echo: WholeStand) -> None:
    await echo.start()
    command = [sys.executable, "-m", "memory_extproc", "doctor", "--through", echo.url]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 1
    assert "fail    forged-identity: whoever sends x-authz-user-id is believed" in printed
    assert "to do: remove x-authz-user-id" in printed


async def test_the_echo_model_shows_what_reached_it_and_no_token() -> None:
    command = [sys.executable, "-m", "memory_extproc", "doctor", "--serve-echo", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        url = f"http://{line.partition(' listens at ')[2].partition(';')[0]}"
        headers = {"authorization": "Bearer anns", "x-seen": "yes"}
        async with ClientSession(headers=headers) as session:
            async with session.get(f"{url}/v1/models") as got:
                assert (await got.json())["data"][0]["id"] == "echo"
            async with session.post(f"{url}/v1/chat/completions", json={"messages": []}) as got:
                shown = (await got.json())["memory_extproc_echo"]
                assert got.headers["content-encoding"] == "gzip"
            async with session.post(f"{url}/v1/chat/completions", data=b"[]") as got:
                assert got.status == 400
    finally:
        process.terminate()
        await process.wait()
    assert shown["body"] == {"messages": []}
    assert (shown["headers"]["x-seen"], shown["headers"]["authorization"]) == ("yes", "…")


async def test_a_gateway_that_is_not_there_is_said_and_not_raised(echo: WholeStand) -> None:
    await echo.start()
    findings = await examined(echo, url=f"http://127.0.0.1:{free_port()}", tokens=TOKENS)
    assert verdicts(findings, "fail") == {"reaches-a-model"}


async def test_an_admin_page_that_is_none_ends_the_command(echo: WholeStand) -> None:
    await echo.start()
    through = Through(echo.url, "/v1/chat/completions", "m", 5, f"http://127.0.0.1:{free_port()}", "")
    options = options_from(
        urls={"--through": echo.url},
        tokens=[],
        headers=[],
        body_limit="4MiB",
        names=("x-authz-user-id", "", "x-session-id", ""),
        trusted_edge=True,
        patience=5,
    )
    with pytest.raises(MemoryExtprocError, match="--admin"):
        await examine_through(options, through, None)
