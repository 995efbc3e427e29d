"""Findings of a check by the answers of a gateway. The gateways here are scripts; tests/envoy has real ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from memory_extproc.doctor import check_bodies, check_identity, check_recall
from memory_extproc.doctor.gateway import ECHO, Answer, Finding, Gateway, Person, Verdict, Visit, VisitOptions
from memory_extproc.doctor.runner import examine, leave_nothing, stayed_in_the_path

Script = Callable[[str, Mapping[str, str], bytes], Answer]
Check = Callable[[Visit], Awaitable[Finding]]
ANN, BOB = Person({"authorization": "Bearer anns"}), Person({"authorization": "Bearer bobs"})


class Scripted(Gateway):
    """A gateway that answers what *script* says to a path, headers and a body."""

    def __init__(self, script: Script) -> None:
        self._path, self._script = "/v1/chat/completions", script
        self.model, self.answers = "a-model", []

    async def call(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        return self._script(path, headers, body or b"")


def an_answer(memory: str = "", status: int = 200, body: Any = None, **more: Any) -> Answer:
    headers = {"content-type": "application/json", **({"x-memory-status": memory} if memory else {})}
    return Answer(status, {**headers, **more.pop("headers", {})}, json.dumps(body or {}).encode(), (0.1,), **more)


def visiting(script: Script | Answer, *, knows: bool = True, **options: Any) -> Visit:
    answers = script if callable(script) else (lambda *_: script)
    given = {"ann": ANN, "bob": BOB, "proven": True, "learned_within": 0.0, **options}
    visit = Visit(Scripted(answers), VisitOptions(**given), random.Random(1))
    visit.knows, visit.cold = knows, an_answer("empty", body={"id": "cold"})
    return visit


@pytest.mark.parametrize(
    ("check", "answer", "verdict", "said"),
    [
        (check_identity.reaches_a_model, an_answer(status=401), Verdict.FAIL, "--token"),
        (check_identity.reaches_a_model, an_answer(status=404), Verdict.FAIL, "--path"),
        (check_identity.reaches_a_model, an_answer(status=400), Verdict.FAIL, "--model"),
        (check_identity.reaches_a_model, an_answer(status=503), Verdict.FAIL, "503"),
        (check_identity.reaches_a_model, Answer(0, fault="the connection failed"), Verdict.FAIL, "listen"),
        (check_identity.cannot_be_forged, an_answer(status=500), Verdict.UNKNOWN, "500"),
        (check_identity.cannot_be_forged, an_answer(status=401), Verdict.OK, "401"),
        (check_identity.body_cannot_name, an_answer(status=500), Verdict.UNKNOWN, "500"),
        (check_identity.body_cannot_name, an_answer(status=403), Verdict.OK, "403"),
        (check_identity.roles_cannot_be_forged, an_answer(status=404), Verdict.UNKNOWN, "404"),
        (check_bodies.large_bodies, an_answer("too_large"), Verdict.WARN, "limits.request_body"),
        (check_bodies.large_bodies, an_answer(), Verdict.FAIL, "passed by"),
        (check_bodies.large_bodies, Answer(0, fault="no whole answer"), Verdict.FAIL, "BUFFERED"),
        (check_bodies.large_bodies, an_answer(status=400), Verdict.UNKNOWN, "refuses"),
        (check_bodies.packed_requests, Answer(0, fault="no whole answer"), Verdict.FAIL, "hangs"),
        (check_bodies.packed_requests, an_answer("bad_body", 400), Verdict.WARN, "cannot read"),
        (check_bodies.packed_requests, an_answer("empty", 415), Verdict.OK, "415"),
        (check_bodies.packed_requests, an_answer(), Verdict.FAIL, "passed by"),
        (check_bodies.packed_answers, Answer(0, fault="no whole answer"), Verdict.FAIL, "decompressor"),
        (check_bodies.packed_answers, an_answer(status=502), Verdict.UNKNOWN, "502"),
        (
            check_bodies.packed_answers,
            an_answer("empty", headers={"content-encoding": "gzip"}),
            Verdict.FAIL,
            "unpacked",
        ),
        (check_bodies.streams, Answer(0, fault="no whole answer"), Verdict.FAIL, "STREAMED"),
        (check_bodies.streams, an_answer("empty"), Verdict.UNKNOWN, "does not stream"),
        (check_bodies.tool_loops, an_answer(), Verdict.FAIL, "passed by"),
        (check_bodies.tool_loops, an_answer("empty", 400), Verdict.UNKNOWN, "takes no tools"),
        (check_recall.opting_out, an_answer("used;n=1"), Verdict.FAIL, "x-disable-router-memory"),
        (check_recall.opting_out, an_answer("disabled"), Verdict.UNKNOWN, "disabled"),
        (check_recall.remembers, an_answer("used;n=2"), Verdict.UNKNOWN, "without memories"),
        (check_recall.remembers, an_answer("unavailable"), Verdict.FAIL, "store_up"),
        (check_recall.remembers, an_answer("no_consent"), Verdict.FAIL, "opt_in"),
        (check_recall.two_people, an_answer(status=500), Verdict.UNKNOWN, "500"),
        (check_recall.two_people, an_answer("empty", headers={"x-cache": "HIT"}), Verdict.WARN, "x-cache"),
        (check_recall.two_people, an_answer("empty", headers={"age": "12"}), Verdict.WARN, "age"),
        (check_recall.reaches_the_model, an_answer("out_of_time"), Verdict.UNKNOWN, "out_of_time"),
        (check_recall.reaches_the_model, an_answer("used;n=1"), Verdict.UNKNOWN, "--serve-echo"),
        (check_recall.controls_stay, an_answer("empty"), Verdict.UNKNOWN, "--serve-echo"),
    ],
)
async def test_an_answer_has_its_meaning(check: Check, answer: Answer, verdict: Verdict, said: str) -> None:
    finding = await check(visiting(answer))
    assert finding.verdict is verdict, finding
    assert said in f"{finding.seen} {finding.mend}"


@pytest.mark.parametrize(
    ("memory", "verdict"),
    [("empty", Verdict.OK), ("not_chat", Verdict.FAIL), ("shadowed", Verdict.WARN), ("", Verdict.FAIL)],
)
async def test_the_word_of_the_first_answer_tells_whether_memory_is_there(memory: str, verdict: Verdict) -> None:
    visit = visiting(an_answer())
    visit.cold = an_answer(memory)
    assert (await check_identity.memory_is_there(visit)).verdict is verdict


@pytest.mark.parametrize(
    "check",
    [check_recall.two_people, check_recall.reaches_the_model, check_identity.credentials_outweigh_headers],
)
async def test_what_stands_on_recall_is_not_judged_without_it(check: Check) -> None:
    assert (await check(visiting(an_answer("empty"), knows=False))).verdict is Verdict.UNKNOWN


async def test_forging_beside_credentials_needs_credentials() -> None:
    finding = await check_identity.credentials_outweigh_headers(visiting(an_answer("used;n=1"), proven=False))
    assert finding.verdict is Verdict.UNKNOWN


async def test_a_model_that_refuses_tools_with_memory_alone_is_found() -> None:
    def script(_: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return an_answer("opted_out") if "x-disable-router-memory" in headers else an_answer("used;n=1", 400)

    finding = await check_bodies.tool_loops(visiting(script))
    assert (finding.verdict, finding.mend) == (
        Verdict.FAIL,
        "the model takes no memory where it was put: set inject.as",
    )


def a_stream(at: tuple[float, ...], *, done: bool = True) -> Script:
    event = b'data: {"choices": []}\n\n'
    body = event * 5 + (b"data: [DONE]\n\n" if done else b"")
    headers = {"content-type": "text/event-stream", "x-memory-status": "empty"}

    def script(_: str, __: Mapping[str, str], asked: bytes) -> Answer:
        return Answer(200, headers, body, at) if b'"stream": true' in asked else an_answer("empty")

    return script


@pytest.mark.parametrize(
    ("script", "knows", "verdict", "said"),
    [
        (a_stream((0.1, 0.5, 1.0)), False, Verdict.OK, "pass"),
        (a_stream((1.0, 1.0)), False, Verdict.WARN, "all at once"),
        (a_stream((0.1, 0.5), done=False), False, Verdict.FAIL, "timeout"),
        (a_stream((0.1, 0.5, 1.0)), True, Verdict.WARN, "not found"),
    ],
)
async def test_a_stream_is_judged_by_when_its_pieces_came(
    script: Script, knows: bool, verdict: Verdict, said: str
) -> None:
    finding = await check_bodies.streams(visiting(script, knows=knows))
    assert finding.verdict is verdict
    assert said in f"{finding.seen} {finding.mend}"


async def test_one_answer_for_different_questions_is_a_cache_though_nothing_was_found() -> None:
    def script(_: str, headers: Mapping[str, str], body: bytes) -> Answer:
        return an_answer("empty", body={"id": "always"})

    finding = await check_recall.remembers(visiting(script))
    assert (finding.verdict, "cache" in finding.seen) == (Verdict.FAIL, True)


@pytest.mark.parametrize("tells", [True, False], ids=["with its headers", "without"])
@pytest.mark.parametrize(
    ("scope", "verdict"),
    [("user", Verdict.OK), ("team", Verdict.FAIL), ("tenant", Verdict.FAIL), ("global", Verdict.FAIL)],
)
async def test_a_routers_cache_whose_scope_is_wider_than_a_user_is_found(
    scope: str, verdict: Verdict, tells: bool
) -> None:
    kept = dict[tuple[str, bytes], Answer]()

    def script(_: str, headers: Mapping[str, str], body: bytes) -> Answer:
        user = headers["authorization"]
        key = (user if scope == "user" else scope, body)
        hit = key in kept
        if not hit:
            memory = "used;n=1" if user == "Bearer anns" else "empty"
            kept[key] = an_answer(memory, body={"id": f"answer {len(kept)}"})
        marks = {"x-vsr-cache-hit": "true", "x-vsr-response-path": "cache"} if hit and tells else {}
        return an_answer(kept[key].outcome, body=json.loads(kept[key].body), headers=marks)

    finding = await check_recall.two_people(visiting(script))
    assert finding.verdict is verdict, finding
    assert ("scope: user" in finding.mend) is (verdict is Verdict.FAIL)


async def test_what_reaches_the_model_is_named_where_the_model_shows_it() -> None:
    shown = {"headers": {"x-memory-project": "p", "x-authz-user-id": "ann"}, "body": {"memory_config": {}}}
    finding = await check_recall.controls_stay(visiting(an_answer("opted_out", body={ECHO: shown})))
    assert finding.seen == "the model is sent x-memory-project, memory_config"
    clean = {"headers": {"x-authz-user-id": "ann"}, "body": {}}
    finding = await check_recall.controls_stay(visiting(an_answer("opted_out", body={ECHO: clean})))
    assert finding.verdict is Verdict.WARN


def test_answers_without_memory_now_and_then_are_told() -> None:
    visit = visiting(an_answer())
    assert stayed_in_the_path(visit).verdict is Verdict.UNKNOWN
    visit.gateway.answers += [an_answer("empty")] * 9
    assert stayed_in_the_path(visit).verdict is Verdict.OK
    visit.gateway.answers.append(an_answer("out_of_time"))
    assert "1 were out of time" in stayed_in_the_path(visit).seen
    visit.gateway.answers.append(an_answer())
    assert stayed_in_the_path(visit).seen.startswith("1 of 11")


async def test_what_was_told_is_forgotten_even_if_the_visit_breaks_off() -> None:
    called = list[str]()

    def script(path: str, headers: Mapping[str, str], body: bytes) -> Answer:
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
    assert finding.verdict is Verdict.WARN
    assert f"{visit.name}-1 (HTTP 404)" in finding.seen


async def test_no_two_questions_are_the_same_words() -> None:
    visit = visiting(an_answer())
    assert visit.question != visit.question
    assert visiting(an_answer()).canary != Visit(visit.gateway, visit.options, random.Random(2)).canary


async def test_an_answer_that_is_no_object_has_nothing_in_it() -> None:
    for body in (b"", b"[1]", b"\xff", b'{"usage": 3, "id": 1'):
        answer = Answer(200, {}, body)
        assert (answer.json, answer.echo, answer.prompt_tokens) == ({}, None, None)
    packed = Answer(200, {"content-encoding": "gzip"}, gzip.compress(b'{"usage": {"prompt_tokens": 7}}'))
    assert packed.prompt_tokens == 7


async def test_no_credential_stands_in_what_is_shown_of_somebody() -> None:
    assert "anns" not in repr(ANN)
    assert "anns" not in repr(VisitOptions(ann=ANN, bob=BOB, proven=True, everybody={"x-key": "anns"}))


@pytest.mark.parametrize(("listed", "first"), [({"data": [{"id": "m"}]}, "m"), ({"data": []}, ""), ([], "")])
async def test_the_model_is_the_first_that_is_listed(listed: Any, first: str) -> None:
    assert await Scripted(lambda *_: an_answer(body=listed)).first_model(ANN) == first
