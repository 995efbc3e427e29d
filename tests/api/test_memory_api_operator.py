"""Operators' calls and kept decisions, over the memory API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from memory_extproc.model import Caller, Consent, Outcome, Owner, RecallTrace, TracedMemory, TurnOutcome
from memory_extproc.ports import OwnerEntry
from memory_extproc.request.body import Enriched
from memory_extproc.settings.traffic import Trace
from tests.support.builders import a_memory
from tests.support.console import ConsoleStand
from tests.support.waiting import until

ANN = Owner("", "ann")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ConsoleStand]:
    async with ConsoleStand(tmp_path) as made:
        yield made


async def test_users_are_listed_by_counts_for_operators_alone(stand: ConsoleStand) -> None:
    names = [Owner("", "ann"), Owner("acme", "ann"), Owner.of_project("acme", "apollo"), Owner.of_everyone()]
    for memories, owner in enumerate(names, start=1):
        await stand.owners.put(OwnerEntry(owner, memories, stand.time))
    assert (await stand.rest("GET", "/v1/memory:users")).status == 403
    assert (await stand.rest("GET", "/v1/memory:users", roles="admin", x_authz_tenant_id="acme")).status == 403
    first = (await stand.rest("GET", "/v1/memory:users?limit=3", roles="admin")).json
    assert first["total"] == "4"
    assert [(one["tenant_id"], one["user_id"], one["kind"]) for one in first["users"]] == [
        ("", "ann", "user"),
        ("", "", "everyone"),
        ("acme", "apollo", "project"),
    ]
    token = first["next_page_token"]
    second = (await stand.rest("GET", f"/v1/memory:users?limit=3&page_token={token}", roles="admin")).json
    assert [(one["tenant_id"], one["user_id"], one["memories"]) for one in second["users"]] == [
        ("acme", "ann", "2")
    ]
    assert second["next_page_token"] == ""
    own = (await stand.rest("GET", "/v1/memory:users?tenant_id=acme", roles="admin")).json
    assert [one["tenant_id"] for one in own["users"]] == ["acme", "acme"]
    for token in ("x", "5b5d", json.dumps(["a"]).encode().hex(), "ff" * 5000):
        answer = await stand.rest("GET", f"/v1/memory:users?page_token={token}", roles="admin")
        assert answer.status == 400, token


async def test_the_servers_status_counts_the_last_hours_requests(stand: ConsoleStand) -> None:
    stand.metrics.exchanges.labels("chat_completions", "used").inc(3)
    await stand.owners.put(OwnerEntry(ANN, 7, stand.time))
    assert (await stand.rest("GET", "/v1/memory:status")).status == 403
    status = (await stand.rest("GET", "/v1/memory:status", roles="admin")).json
    assert (status["outcomes"], status["users"], status["memories"]) == ({"used": "3"}, "1", "7")
    assert status["audit"][0]["method"] == "GetServerStatus", "that it was asked and refused stands there"
    assert "mac" not in status["audit"][0]


async def test_the_servers_status_counts_consents_and_has_the_doctors_findings(stand: ConsoleStand) -> None:
    await stand.consent.set(ANN, Consent.OFF, by="ann")
    found = stand.audit_directory.parent / "doctor.json"
    status = (await stand.rest("GET", "/v1/memory:status", roles="admin")).json
    assert (status["consents"], status["findings"]) == ({"off": "1"}, [])
    for broken in ("{", "[3]", '[{"check": 3}]', "3"):
        found.write_text(broken)
        assert (await stand.rest("GET", "/v1/memory:status", roles="admin")).json["findings"] == []
    one = {"check": "two-people", "verdict": "fail", "seen": "Bob got Ann's.", "mend": "Set the header."}
    found.write_text(json.dumps([one]))
    status = (await stand.rest("GET", "/v1/memory:status", roles="admin")).json
    assert (status["findings"], "examined_at" in status) == ([one], True)
    shown = (await stand.rest("GET", "/console/operator", roles="admin")).text
    assert "two people" in shown
    assert "Set the header." in shown
    planned = (await stand.rest("GET", "/console/operator/user?user=ann&show=retention", roles="admin")).text
    assert "of 9 memories" in planned
    assert "too old" in planned


async def test_retention_is_planned_for_oneself_and_for_others_by_admins(stand: ConsoleStand) -> None:
    plan = (await stand.rest("GET", "/v1/memory:retentionPlan")).json
    assert plan == {"memories": "9", "retired": {"ttl": "2"}, "merged": "1", "erased": "3"}
    assert (await stand.rest("GET", "/v1/memory:retentionPlan?user_id=bob", roles="admin")).status == 200


async def test_retention_is_planned_for_everybody_some_users_at_a_time(stand: ConsoleStand) -> None:
    names = ["\N{LATIN SMALL LETTER Z WITH CARON}" * 128, '"' * 256, *(f"user {at:03}" for at in range(148))]
    for name in names:
        await stand.owners.put(OwnerEntry(Owner("\N{BEAR FACE}" * 64, name), 9, stand.time))
    path = "/v1/memory:retentionRound"
    assert (await stand.rest("GET", path)).status == 403
    assert (await stand.rest("GET", path, roles="admin", x_authz_tenant_id="acme")).status == 403
    first = (await stand.rest("GET", path, roles="admin")).json
    assert (first["owners"], first["failed"]) == ("100", "0")
    assert first["plan"] == {"memories": "900", "retired": {"ttl": "200"}, "merged": "100", "erased": "300"}
    second = (await stand.rest("GET", f"{path}?page_token={first['next_page_token']}", roles="admin")).json
    assert (second["owners"], second["next_page_token"]) == ("50", "")
    assert (await stand.rest("GET", f"{path}?page_token=x", roles="admin")).status == 400
    shown = (await stand.rest("GET", "/console/operator?show=retention", roles="admin")).text
    assert "of 900 memories" in shown
    assert "The next users" in shown
    assert "of 900 memories" not in (await stand.rest("GET", "/console/operator", roles="admin")).text
    listed, token = 0, ""
    while token or not listed:
        page = (await stand.rest("GET", f"/v1/memory:users?limit=1&page_token={token}", roles="admin")).json
        listed, token = listed + len(page["users"]), page["next_page_token"]
    assert listed == len(names), "the longest names have a place in the list too"


async def test_a_decision_is_its_callers_alone_and_kept_for_a_time(stand: ConsoleStand) -> None:
    await stand.remember(a_memory("The budget is $10,000", ANN))
    (memory,) = await stand.partitions.get(ANN, [a_memory("The budget is $10,000", ANN).id])
    trace = RecallTrace(considered=(TracedMemory(memory, 2.0, 0.9, "injected"),), total=1, worth=0.8, threshold=0.5)
    enriched = Enriched(outcome=Outcome.USED, count=1, path="hybrid")
    assert stand.decisions.record(ANN, "r-1", enriched, trace) == "r-1"
    made_up = stand.decisions.record(ANN, "what did she say?", enriched, None)
    assert made_up != "what did she say?", "an id of words is no id"

    async def is_kept() -> bool:
        return await stand.decisions.find(ANN, made_up) is not None

    await until(is_kept, "the decision is kept")
    decision = (await stand.rest("GET", "/v1/memory/decisions/r-1")).json
    assert (decision["outcome"], decision["considered"][0]["since"]) == ("used", "same")
    assert "$10,000" in decision["block"]
    raw = await stand.coordination.get_record("decision", ANN, stand.decisions._place("r-1"))
    assert raw is not None
    assert b"budget" not in raw, "no words are kept"
    other = await stand.rest("GET", "/v1/memory/decisions/r-1", user="bob")
    assert (other.status, other.reason) == (404, "NO_SUCH_DECISION")
    seen = await stand.rest("GET", "/v1/memory/decisions/r-1?user_id=ann", user="eve", roles="auditor")
    assert seen.status == 200
    await stand.partitions.delete(ANN, [memory.id])
    gone = (await stand.rest("GET", "/v1/memory/decisions/r-1")).json
    assert (gone["considered"][0]["since"], gone["block"]) == ("gone", "")
    stand.time += timedelta(hours=2)
    assert (await stand.rest("GET", "/v1/memory/decisions/r-1")).status == 404
    assert (await stand.rest("GET", "/v1/memory/decisions")).json["decisions"] == []


async def test_the_decisions_of_one_caller_are_bounded(tmp_path: Path) -> None:
    stand = ConsoleStand(tmp_path)
    stand.kept = Trace(keep=timedelta(hours=1), most=10)
    async with stand:
        for number in range(100):
            stand.decisions.record(ANN, f"r-{number}", Enriched(outcome=Outcome.EMPTY), None)

        async def newest() -> bool:
            return await stand.decisions.find(ANN, "r-99") is not None

        await until(newest, "the newest is kept")
        assert len(await stand.decisions.latest(ANN, 100)) <= 10


async def test_without_trace_keep_there_are_no_decisions(tmp_path: Path) -> None:
    stand = ConsoleStand(tmp_path)
    stand.kept = Trace()
    async with stand:
        answer = await stand.rest("GET", "/v1/memory/decisions/r-1")
        assert (answer.status, answer.reason) == (501, "NOT_OFFERED")
        assert "trace.keep" in answer.json["message"]
        stand.decisions.note(Caller(ANN), "r-1", TurnOutcome.NOT_ASKED)
        assert (await stand.rest("GET", "/v1/memory/turns/r-1")).status == 404
