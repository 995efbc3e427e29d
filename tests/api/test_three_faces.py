"""One server answers the operators' and reviewers' calls alike over gRPC, over HTTP and from the command line."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from google.protobuf.json_format import ParseDict
from typer.main import get_command

from memory_extproc.api.authentication import ApiKey, ApiKeys, key_hash
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.rest import to_json
from memory_extproc.cli.root import app
from memory_extproc.model import MemoryState, Outcome, Owner, RecallTrace, TracedMemory
from memory_extproc.ports import OwnerEntry
from memory_extproc.request.body import Enriched
from tests.support.builders import a_memory, a_turn
from tests.support.console import ConsoleStand
from tests.support.waiting import until

ANN = Owner("", "ann")
FACT = "The budget for the Hawaii trip is $10,000"
KEYS = {"ann": "mxk_of-ann-0123456789", "ops": "mxk_of-ops-0123456789"}
TURN = a_turn("turn 1", owner=ANN)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call over each face. `{}` stands for the face's own value among *uses*: a change uses it up."""

    method: str
    fields: dict[str, Any]
    http: str  # verb and path; the fields of a POST are its body
    command: str
    of: str = "ops"
    uses: Callable[[Faces], list[str]] = lambda _: ["", "", ""]  # by gRPC, HTTP, command


CASES = (
    Case(method="ListUsers", fields={"limit": 100}, http="GET /v1/memory:users?limit=100", command="users"),
    Case(
        method="ListUsers",
        fields={"tenant_id": "acme", "limit": 100},
        http="GET /v1/memory:users?tenant_id=acme&limit=100",
        command="users --of-tenant acme",
    ),
    Case(
        method="ListUsers",
        fields={"quarantined": True, "limit": 100},
        http="GET /v1/memory:users?quarantined=true&limit=100",
        command="users --quarantined",
    ),
    Case(
        method="ListQuarantine",
        fields={"user_id": "ann", "limit": 50},
        http="GET /v1/memory:quarantine?user_id=ann&limit=50",
        command="quarantine --user ann",
    ),
    *(
        Case(
            method="ReviewQuarantine",
            fields={"user_id": "ann", "memory_ids": ["{}"], "verdict": verdict},
            http="POST /v1/memory:reviewQuarantine",
            command=f"quarantine {{}} --user ann --verdict {verdict}",
            uses=lambda faces: faces.held,
        )
        for verdict in ("release", "drop")
    ),
    Case(
        method="ListDeadLetters",
        fields={"limit": 2},
        http="GET /v1/memory:deadLetters?limit=2",
        command="dead-letters --limit 2",
    ),
    Case(
        method="ListDeadLetters",
        fields={"limit": 50, "after": "{}"},
        http="GET /v1/memory:deadLetters?limit=50&after={}",
        command="dead-letters --after {}",
        uses=lambda faces: [faces.place] * 3,
    ),
    Case(
        method="RetryDeadLetters",
        fields={"turn_ids": ["{}"]},
        http="POST /v1/memory:retryDeadLetters",
        command="dead-letters --retry {}",
        uses=lambda _: [a_turn(f"turn {number}", owner=ANN).id for number in (2, 3, 4)],
    ),
    Case(
        method="GetDecision",
        fields={"request_id": "r-1"},
        http="GET /v1/memory/decisions/r-1",
        command="decision r-1",
        of="ann",
    ),
    Case(
        method="GetDecision",
        fields={"request_id": "r-1", "user_id": "ann"},
        http="GET /v1/memory/decisions/r-1?user_id=ann",
        command="decision r-1 --user ann",
    ),
    Case(
        method="GetTurn",
        fields={"id": TURN.id},
        http=f"GET /v1/memory/turns/{TURN.id}",
        command=f"turn {TURN.id}",
        of="ann",
    ),
    Case(
        method="RateMemory",
        fields={"id": a_memory(FACT, ANN).id, "rating": "helpful"},
        http=f"POST /v1/memory/{a_memory(FACT, ANN).id}:rate",
        command=f"rate {a_memory(FACT, ANN).id} helpful",
        of="ann",
    ),
    Case(
        method="ExplainRecall",
        fields={"text": "What is my budget for Hawaii?", "force": True},
        http="POST /v1/memory:explain",
        command="explain 'What is my budget for Hawaii?' --force",
        of="ann",
    ),
)


class Faces(ConsoleStand):
    held: list[str]
    place: str

    async def over_grpc(self, case: Case, used: str) -> Any:
        kind = pb.DESCRIPTOR.services_by_name["MemoryService"].methods_by_name[case.method].input_type.name
        asked = ParseDict(filled(case.fields, used), getattr(pb, kind)())
        answer = await getattr(self.stub, case.method)(asked, metadata=[("x-api-key", KEYS[case.of])], timeout=10)
        return to_json(answer, verbose=True)

    async def over_http(self, case: Case, used: str) -> Any:
        verb, path = case.http.replace("{}", quote(used)).split(" ")
        body = {name: value for name, value in filled(case.fields, used).items() if str(value) not in path}
        verbose = f"{path}{'&' if '?' in path else '?'}verbose=true"
        answer = await self.rest(verb, verbose, body if verb == "POST" else None, user="", x_api_key=KEYS[case.of])
        assert answer.status == 200, answer.text
        return answer.json

    async def from_the_command_line(self, case: Case, used: str) -> Any:
        environment = {"MEMORY_EXTPROC_API": self.server.address, "MEMORY_EXTPROC_API_KEY": KEYS[case.of]}
        command = shlex.split(f"memory {case.command.replace('{}', used)} --json")
        # A process of its own: this one's stdout has the server's log too.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "memory_extproc", *command, env={**os.environ, **environment}, stdout=PIPE
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(printed)


def filled(fields: dict[str, Any], used: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(fields).replace("{}", used))
    return found


@pytest.fixture
async def faces(tmp_path: Path) -> AsyncIterator[Faces]:
    """A server with something to see over each of its faces."""
    roles = {"ann": "user", "ops": "admin"}
    keys = [
        f"  - {{id: {name}, sha256: {key_hash(key)}, user: {name}, roles: [{roles[name]}]}}"
        for name, key in KEYS.items()
    ]
    file = tmp_path / "keys.yaml"
    file.write_text("\n".join(["keys:", *keys]))
    made = Faces(tmp_path)
    async with AsyncExitStack() as stack:
        made.ways = (ApiKey(await stack.enter_async_context(ApiKeys(file))), *made.ways)
        await stack.enter_async_context(made)
        held = [a_memory(f"Ignore the instruction {at}", ANN, state=MemoryState.QUARANTINED) for at in range(4)]
        made.held = [memory.id for memory in held[:3]]
        await made.remember(a_memory(FACT, ANN), *held)
        await made.owners.put(OwnerEntry(ANN, 5, made.time, 4))
        await made.owners.put(OwnerEntry(Owner("acme", "bob"), 1, made.time))
        for number in range(1, 6):
            turn = a_turn(f"turn {number}", owner=ANN)
            await made.journal.append(turn)
            if number > 1:
                (entry,) = await made.journal.get(ANN, [turn.id])
                await made.journal.mark_failed(entry, "PermanentError", dead=True)
        first = next(case for case in CASES if case.method == "ListDeadLetters")
        made.place = (await made.over_http(first, ""))["letters"][0]["place"]
        (memory,) = await made.partitions.get(ANN, [a_memory(FACT, ANN).id])
        traced = (TracedMemory(memory, 2.0, 0.9, "injected"),)
        trace = RecallTrace(considered=traced, total=1, worth=0.8, threshold=0.5)
        made.decisions.record(ANN, "r-1", Enriched(outcome=Outcome.USED, count=1, path="hybrid"), trace)

        async def is_kept() -> bool:
            return await made.decisions.find(ANN, "r-1") is not None

        await until(is_kept, "the decision is kept")
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method}: {case.command.split(' ')[0]}")
async def test_each_face_gives_the_same_answer(faces: Faces, case: Case) -> None:
    used = case.uses(faces)
    over_grpc = await faces.over_grpc(case, used[0])
    assert any(over_grpc.values()), "there is something in it"
    assert await faces.over_http(case, used[1]) == over_grpc
    from_the_command_line = await faces.from_the_command_line(case, used[2])
    # The command reads all pages, so it has no token for a next one.
    assert {"next_page_token": "", **from_the_command_line} == {"next_page_token": "", **over_grpc}


async def test_a_dry_run_of_retention_over_everybody_is_summed_by_the_command(faces: Faces) -> None:
    for number in range(150):
        await faces.owners.put(OwnerEntry(Owner("acme", f"user {number}"), 1, faces.time))
    path, sums = "/v1/memory:retentionRound", {"owners": 0, "memories": 0, "ttl": 0}
    token = None
    while token != "":
        page = (await faces.rest("GET", f"{path}?page_token={token or ''}", user="", x_api_key=KEYS["ops"])).json
        token = page["next_page_token"]
        sums["owners"] += int(page["owners"])
        sums["memories"] += int(page["plan"]["memories"])
        sums["ttl"] += int(page["plan"]["retired"]["ttl"])
    case = Case(method="PlanRetentionRound", fields={}, http="", command="retention-plan --everybody")
    found = await faces.from_the_command_line(case, "")
    assert found["owners"] == str(sums["owners"]) == "152"
    assert found["memories"] == str(sums["memories"])
    assert found["retired"] == {"ttl": str(sums["ttl"])}


def test_no_command_has_two_options_of_one_name() -> None:
    commands = list(walk_commands(get_command(app)))
    assert len(commands) > 50
    for path, command in commands:
        names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
        assert len(names) == len(set(names)), path


def walk_commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield f"{path} {name}", each
        yield from walk_commands(each, f"{path} {name}")
