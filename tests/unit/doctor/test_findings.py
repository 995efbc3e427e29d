"""Findings of a check by the answers of a gateway. The gateways here are scripts; tests/envoy has real ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from memory_extproc.doctor import checks
from memory_extproc.doctor.checks import examine, leave_nothing, stayed_in_the_path
from memory_extproc.doctor.gateway import (
    ECHO,
    CheckVerdict,
    Finding,
    Gateway,
    GatewayResponse,
    GatewayVisit,
    Person,
    VisitOptions,
)

Script = Callable[[str, Mapping[str, str], bytes], GatewayResponse]
Check = Callable[[GatewayVisit], Awaitable[Finding]]
ANN, BOB = Person({"authorization": "Bearer anns"}), Person({"authorization": "Bearer bobs"})


class Scripted(Gateway):
    """A gateway that answers what *script* says to a path, headers and a body."""

    def __init__(self, script: Script) -> None:
        self._path, self._script = "/v1/chat/completions", script
        self.model, self.answers = "a-model", []

    async def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> GatewayResponse:
        return self._script(path, headers, body or b"")


def an_answer(memory: str = "", status: int = 200, body: Any = None, **more: Any) -> GatewayResponse:
    headers = {"content-type": "application/json", **({"x-memory-status": memory} if memory else {})}
    return GatewayResponse(
        status, {**headers, **more.pop("headers", {})}, json.dumps(body or {}).encode(), (0.1,), **more
    )


def visiting(script: Script | GatewayResponse, *, knows: bool = True, **options: Any) -> GatewayVisit:
    answers = script if callable(script) else (lambda *_: script)
    given = {"ann": ANN, "bob": BOB, "proven": True, "learned_within": 0.0, **options}
    visit = GatewayVisit(Scripted(answers), VisitOptions(**given), random.Random(1))
    visit.knows, visit.cold = knows, an_answer("empty", body={"id": "cold"})
    return visit


@pytest.mark.parametrize(
    ("check", "answer", "verdict", "said"),
    [
        (checks.reaches_a_model, an_answer(status=401), CheckVerdict.FAIL, "--token"),
        (checks.reaches_a_model, an_answer(status=404), CheckVerdict.FAIL, "--path"),
        (checks.reaches_a_model, an_answer(status=400), CheckVerdict.FAIL, "--model"),
        (checks.reaches_a_model, an_answer(status=503), CheckVerdict.FAIL, "503"),
        (
            checks.reaches_a_model,
            GatewayResponse(0, fault="the connection failed"),
            CheckVerdict.FAIL,
            "listen",
        ),
        (checks.cannot_be_forged, an_answer(status=500), CheckVerdict.UNKNOWN, "500"),
        (checks.cannot_be_forged, an_answer(status=401), CheckVerdict.OK, "401"),
        (checks.body_cannot_name, an_answer(status=500), CheckVerdict.UNKNOWN, "500"),
        (checks.body_cannot_name, an_answer(status=403), CheckVerdict.OK, "403"),
        (checks.roles_cannot_be_forged, an_answer(status=404), CheckVerdict.UNKNOWN, "404"),
        (checks.large_bodies, an_answer("too_large"), CheckVerdict.WARN, "limits.request_body"),
        (checks.large_bodies, an_answer(), CheckVerdict.FAIL, "passed by"),
        (checks.large_bodies, GatewayResponse(0, fault="no whole answer"), CheckVerdict.FAIL, "BUFFERED"),
        (checks.large_bodies, an_answer(status=400), CheckVerdict.UNKNOWN, "refuses"),
        (checks.packed_requests, GatewayResponse(0, fault="no whole answer"), CheckVerdict.FAIL, "hangs"),
        (checks.packed_requests, an_answer("bad_body", 400), CheckVerdict.WARN, "cannot read"),
        (checks.packed_requests, an_answer("empty", 415), CheckVerdict.OK, "415"),
        (checks.packed_requests, an_answer(), CheckVerdict.FAIL, "passed by"),
        (
            checks.packed_answers,
            GatewayResponse(0, fault="no whole answer"),
            CheckVerdict.FAIL,
            "decompressor",
        ),
        (checks.packed_answers, an_answer(status=502), CheckVerdict.UNKNOWN, "502"),
        (
            checks.packed_answers,
            an_answer("empty", headers={"content-encoding": "gzip"}),
            CheckVerdict.FAIL,
            "unpacked",
        ),
        (checks.streams, GatewayResponse(0, fault="no whole answer"), CheckVerdict.FAIL, "STREAMED"),
        (checks.streams, an_answer("empty"), CheckVerdict.UNKNOWN, "does not stream"),
        (checks.tool_loops, an_answer(), CheckVerdict.FAIL, "passed by"),
        (checks.tool_loops, an_answer("empty", 400), CheckVerdict.UNKNOWN, "takes no tools"),
        (checks.opting_out, an_answer("used;n=1"), CheckVerdict.FAIL, "x-disable-router-memory"),
        (checks.opting_out, an_answer("disabled"), CheckVerdict.UNKNOWN, "disabled"),
        (checks.remembers, an_answer("used;n=2"), CheckVerdict.UNKNOWN, "without memories"),
        (checks.remembers, an_answer("unavailable"), CheckVerdict.FAIL, "store_up"),
        (checks.remembers, an_answer("no_consent"), CheckVerdict.FAIL, "opt_in"),
        (checks.two_people, an_answer(status=500), CheckVerdict.UNKNOWN, "500"),
        (checks.two_people, an_answer("empty", headers={"x-cache": "HIT"}), CheckVerdict.WARN, "x-cache"),
        (checks.two_people, an_answer("empty", headers={"age": "12"}), CheckVerdict.WARN, "age"),
        (checks.reaches_the_model, an_answer("out_of_time"), CheckVerdict.UNKNOWN, "out_of_time"),
        (checks.reaches_the_model, an_answer("used;n=1"), CheckVerdict.UNKNOWN, "--serve-echo"),
        (checks.controls_stay, an_answer("empty"), CheckVerdict.UNKNOWN, "--serve-echo"),
    ],
)
async def test_an_answer_has_its_meaning(
    check: Check, answer: GatewayResponse, verdict: CheckVerdict, said: str
) -> None:
    finding = await check(visiting(answer))
    assert finding.verdict is verdict, finding
    assert said in f"{finding.seen} {finding.mend}"


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [
        ("empty", CheckVerdict.OK),
        ("not_chat", CheckVerdict.FAIL),
        ("shadowed", CheckVerdict.WARN),
        ("", CheckVerdict.FAIL),
    ],
)
async def test_the_word_of_the_first_answer_tells_whether_memory_is_there(
    memory: str, verdict: CheckVerdict
) -> None:
    visit = visiting(an_answer())
    visit.cold = an_answer(memory)
    assert (await checks.memory_is_there(visit)).verdict is verdict


@pytest.mark.parametrize(
    "check",
    [checks.two_people, checks.reaches_the_model, checks.credentials_outweigh_headers],
)
async def test_what_stands_on_recall_is_not_judged_without_it(check: Check) -> None:
    assert (await check(visiting(an_answer("empty"), knows=False))).verdict is CheckVerdict.UNKNOWN


async def test_forging_beside_credentials_needs_credentials() -> None:
    finding = await checks.credentials_outweigh_headers(visiting(an_answer("used;n=1"), proven=False))
    assert finding.verdict is CheckVerdict.UNKNOWN


async def test_a_model_that_refuses_tools_with_memory_alone_is_found() -> None:
    def script(_: str, headers: Mapping[str, str], body: bytes) -> GatewayResponse:
        return an_answer("opted_out") if "x-disable-router-memory" in headers else an_answer("used;n=1", 400)

    finding = await checks.tool_loops(visiting(script))
    assert (finding.verdict, finding.mend) == (
        CheckVerdict.FAIL,
        "the model takes no memory where it was put: set inject.as",
    )


def a_stream(at: tuple[float, ...], *, done: bool = True) -> Script:
    event = b'data: {"choices": []}\n\n'
    body = event * 5 + (b"data: [DONE]\n\n" if done else b"")
    headers = {"content-type": "text/event-stream", "x-memory-status": "empty"}

    def script(_: str, __: Mapping[str, str], asked: bytes) -> GatewayResponse:
        return GatewayResponse(200, headers, body, at) if b'"stream": true' in asked else an_answer("empty")

    return script


@pytest.mark.parametrize(
    ("script", "knows", "verdict", "said"),
    [
        (a_stream((0.1, 0.5, 1.0)), False, CheckVerdict.OK, "pass"),
        (a_stream((1.0, 1.0)), False, CheckVerdict.WARN, "all at once"),
        (a_stream((0.1, 0.5), done=False), False, CheckVerdict.FAIL, "timeout"),
        (a_stream((0.1, 0.5, 1.0)), True, CheckVerdict.WARN, "not found"),
    ],
)
async def test_a_stream_is_judged_by_when_its_pieces_came(
    script: Script, knows: bool, verdict: CheckVerdict, said: str
) -> None:
    finding = await checks.streams(visiting(script, knows=knows))
    assert finding.verdict is verdict
    assert said in f"{finding.seen} {finding.mend}"


async def test_one_answer_for_different_questions_is_a_cache_though_nothing_was_found() -> None:
    def script(_: str, headers: Mapping[str, str], body: bytes) -> GatewayResponse:
        return an_answer("empty", body={"id": "always"})

    finding = await checks.remembers(visiting(script))
    assert (finding.verdict, "cache" in finding.seen) == (CheckVerdict.FAIL, True)


@pytest.mark.parametrize("tells", [True, False], ids=["with its headers", "without"])
@pytest.mark.parametrize(
    ("scope", "verdict"),
    [
        ("user", CheckVerdict.OK),
        ("team", CheckVerdict.FAIL),
        ("tenant", CheckVerdict.FAIL),
        ("global", CheckVerdict.FAIL),
    ],
)
async def test_a_routers_cache_whose_scope_is_wider_than_a_user_is_found(
    scope: str, verdict: CheckVerdict, tells: bool
) -> None:
    kept = dict[tuple[str, bytes], GatewayResponse]()

    def script(_: str, headers: Mapping[str, str], body: bytes) -> GatewayResponse:
        user = headers["authorization"]
        key = (user if scope == "user" else scope, body)
        hit = key in kept
        if not hit:
            memory = "used;n=1" if user == "Bearer anns" else "empty"
            kept[key] = an_answer(memory, body={"id": f"answer {len(kept)}"})
        marks = {"x-vsr-cache-hit": "true", "x-vsr-response-path": "cache"} if hit and tells else {}
        return an_answer(kept[key].outcome, body=json.loads(kept[key].body), headers=marks)

    finding = await checks.two_people(visiting(script))
    assert finding.verdict is verdict, finding
    assert ("scope: user" in finding.mend) is (verdict is CheckVerdict.FAIL)


async def test_what_reaches_the_model_is_named_where_the_model_shows_it() -> None:
    shown = {"headers": {"x-memory-project": "p", "x-authz-user-id": "ann"}, "body": {"memory_config": {}}}
    finding = await checks.controls_stay(visiting(an_answer("opted_out", body={ECHO: shown})))
    assert finding.seen == "the model is sent x-memory-project, memory_config"
    clean = {"headers": {"x-authz-user-id": "ann"}, "body": {}}
    finding = await checks.controls_stay(visiting(an_answer("opted_out", body={ECHO: clean})))
    assert finding.verdict is CheckVerdict.WARN


def test_answers_without_memory_now_and_then_are_told() -> None:
    visit = visiting(an_answer())
    assert stayed_in_the_path(visit).verdict is CheckVerdict.UNKNOWN
    visit.gateway.answers += [an_answer("empty")] * 9
    assert stayed_in_the_path(visit).verdict is CheckVerdict.OK
    visit.gateway.answers.append(an_answer("out_of_time"))
    assert "1 were out of time" in stayed_in_the_path(visit).seen
    visit.gateway.answers.append(an_answer())
    assert stayed_in_the_path(visit).seen.startswith("1 of 11")


async def test_what_was_told_is_forgotten_even_if_the_visit_breaks_off() -> None:
    called = list[str]()

    def script(path: str, headers: Mapping[str, str], body: bytes) -> GatewayResponse:
        called.append(path)
        if b"called" in body and b"stream" in body:
            raise RuntimeError("broken off")
        return (
            an_answer("used;n=1") if b"boat" in body and b"What" in body and len(called) > 9 else an_answer("empty")
        )

    with pytest.raises(RuntimeError):
        await examine(visiting(script), None, lambda _: None)
    assert [path for path in called if path.startswith("/v1/memory?session_id=doctor-")]


async def test_what_could_not_be_forgotten_is_named() -> None:
    visit = visiting(an_answer(status=404))
    await visit.tell(ANN, "My boat is called Nirabode.")
    finding = await leave_nothing(visit)
    assert finding.verdict is CheckVerdict.WARN
    assert f"{visit.name}-1 (HTTP 404)" in finding.seen


async def test_no_two_questions_are_the_same_words() -> None:
    visit = visiting(an_answer())
    assert visit.question != visit.question
    assert visiting(an_answer()).canary != GatewayVisit(visit.gateway, visit.options, random.Random(2)).canary


async def test_an_answer_that_is_no_object_has_nothing_in_it() -> None:
    for body in (b"", b"[1]", b"\xff", b'{"usage": 3, "id": 1'):
        answer = GatewayResponse(200, {}, body)
        assert (answer.json, answer.echo, answer.prompt_tokens) == ({}, None, None)
    packed = GatewayResponse(200, {"content-encoding": "gzip"}, gzip.compress(b'{"usage": {"prompt_tokens": 7}}'))
    assert packed.prompt_tokens == 7


async def test_no_credential_stands_in_what_is_shown_of_somebody() -> None:
    assert "anns" not in repr(ANN)
    assert "anns" not in repr(VisitOptions(ann=ANN, bob=BOB, proven=True, everybody={"x-key": "anns"}))


@pytest.mark.parametrize(("listed", "first"), [({"data": [{"id": "m"}]}, "m"), ({"data": []}, ""), ([], "")])
async def test_the_model_is_the_first_that_is_listed(listed: Any, first: str) -> None:
    assert await Scripted(lambda *_: an_answer(body=listed)).first_model(ANN) == first
