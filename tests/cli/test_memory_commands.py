"""`memory-extproc memory …` against a real server: what people and programs see, and how commands end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from memory_extproc.api.call import Call
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.transfer import TransferCalls
from memory_extproc.cli.root import app
from memory_extproc.model import Embedded, Memory, MemoryState
from memory_extproc.portability.importer import Exporter, Importer
from tests.support.builders import ANN, BOB, MONDAY, a_memory, a_turn, later
from tests.support.memory_api import ApiStand


class Desk(ApiStand):
    """The memory API, and a shell before it."""

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.scratch = scratch
        exporter = Exporter(self.store, self.journal, page=5, consent=self.consent)
        importer = Importer(
            self.partitions, self.embedder, self.coordination, 8192, now=self.now, consent=self.consent
        )
        self.forgets: list[pb.ForgetMemoriesRequest] = []
        self.operations = {
            **TransferCalls(exporter, importer, now=self.now).operations,
            "ForgetMemories": self._forget,
            "VerifyReceipt": self._verify,
        }
        self.verified = pb.VerifyReceiptResponse(signature="valid", subject_matches=True)

    async def _forget(self, _: Call, request: pb.ForgetMemoriesRequest) -> pb.ForgetMemoriesResponse:
        self.forgets.append(request)
        if request.dry_run:
            return pb.ForgetMemoriesResponse(total=2, confirmation_token="t0k3n")
        receipt = pb.ForgetReceipt(id="ab" * 16, state="clean", memories=2, scope="query")
        return pb.ForgetMemoriesResponse(success=True, message="forgotten", receipt=receipt)

    async def _verify(self, _: Call, request: pb.VerifyReceiptRequest) -> pb.VerifyReceiptResponse:
        assert request.receipt.id == "ab" * 16
        return self.verified

    async def run(self, *arguments: str, asks: str = "", user: str = "ann", columns: int = 200) -> Result:
        """One command of Ann's, beside the server's loop."""
        environment = {
            "MEMORY_EXTPROC_API": self.server.address,
            "MEMORY_EXTPROC_AS": user,
            "MEMORY_EXTPROC_TENANT": "acme",
            "COLUMNS": str(columns),
        }
        runner = CliRunner(env=environment)
        return await asyncio.to_thread(lambda: runner.invoke(app, ["memory", *arguments], input=asks))

    async def json(self, *arguments: str, **how: Any) -> Any:
        done = await self.run(*arguments, "--json", **how)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    async def has(self, owner: Any = ANN) -> list[Memory]:
        return [memory async for page in self.store.pages(owner, 100, fresh=True) for memory in _of(page)]

    def path(self, name: str) -> str:
        return str(self.scratch / name)


def _of(page: Any) -> list[Memory]:
    return [row.memory for row in page]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with Desk(tmp_path) as made:
        yield made


# --- seeing and correcting ---------------------------------------------------------------------------
async def test_what_is_stored_is_listed_found_shown_and_corrected(desk: Desk) -> None:
    stored = await desk.json(
        "store", "My cat is called Whiskers", "--metadata", '{"pet": "cat"}', "--importance", "0.9"
    )
    id_ = stored["memory"]["id"]
    listed = await desk.run("list", "--type", "semantic")
    assert "Whiskers" in listed.stdout
    assert "1 of 1" in listed.stdout
    found = await desk.json("search", "What is my cat called?", "--threshold", "0")
    assert [one["memory"]["id"] for one in found["results"]] == [id_]
    changed = await desk.json("update", id_, "--content", "My cat is called Tom", "--importance", "0.2")
    assert (changed["content"], changed["importance"]) == ("My cat is called Tom", 0.2)
    shown = await desk.run("get", changed["id"], "--history")
    assert shown.exit_code == 0
    assert "Tom" in shown.stdout
    assert "Whiskers" in shown.stdout


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", [["list", "--state", "any"], ["search", "What do I like?", "--threshold", "0"]])
async def test_an_id_can_be_copied_however_narrow_the_terminal_is(
    desk: Desk, command: list[str], columns: int
) -> None:
    likes = a_memory("Likes tea, in the afternoon and in the evening too, with milk and without sugar")
    await desk.remember(likes)
    shown = (await desk.run(*command, columns=columns)).stdout
    assert likes.id in shown
    assert ("┃" in shown) == (columns == 200)
    assert columns == 200 or likes.content in shown.splitlines()


async def test_what_does_not_hold_is_listed_with_its_state(desk: Desk) -> None:
    await desk.remember(a_memory("Likes tea", state=MemoryState.SUPERSEDED))
    for columns in (80, 200):
        assert "superseded" in (await desk.run("list", "--state", "any", columns=columns)).stdout


async def test_more_than_a_page_is_listed(desk: Desk) -> None:
    await desk.remember(*(a_memory(f"fact {n}", created_at=later(minutes=n)) for n in range(120)))
    listed = await desk.json("list", "--limit", "110")
    assert (len(listed["memories"]), listed["total"]) == (110, 120)
    assert listed["memories"][0]["content"] == "fact 119"


async def test_a_program_gets_json_and_nothing_else(desk: Desk) -> None:
    await desk.json("store", "Likes tea")
    await desk.journal.append(a_turn("waits"))
    assert (await desk.json("stats"))["backlog"] == "1"
    assert (await desk.json("explain", "What do I like?"))["considered"]
    assert (await desk.json("consent"))["state"] == "on"
    assert (await desk.json("consent", "recall_only"))["state"] == "recall_only"
    assert await desk.json("end-session", "s") == {}


@pytest.mark.parametrize(
    "command",
    [
        ["stats"], ["explain", "What do I like?"], ["search", "What do I like?"], ["consent"], ["consent", "on"],
        ["end-session", "s"], ["store", "Has a dog"], ["list"],
    ],
)  # fmt: skip
async def test_people_get_words_and_tables(desk: Desk, command: list[str]) -> None:
    await desk.remember(a_memory("Likes tea"))
    done = await desk.run(*command)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip()
    assert "{" not in done.stdout


async def test_what_a_memory_says_gives_a_terminal_no_orders(desk: Desk) -> None:
    await desk.remember(a_memory("\x1b[2J[bold]Likes tea[/bold]"))
    for command in (["list"], ["get", a_memory("\x1b[2J[bold]Likes tea[/bold]").id]):
        done = await desk.run(*command)
        assert "\x1b[2J" not in done.stdout
        assert "[bold]" in done.stdout


# --- how commands end --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["get", "0" * 64], 1, "no such memory"),
        (["store", ""], 2, "content"),
        (["store", "x", "--expires", "soon"], 2, "expected a"),
        (["store", "x", "--metadata", "[]"], 2, "JSON object"),
        (["update", "0" * 64], 2, "nothing to correct"),
        (["list", "--source", "nonsense"], 2, "source"),
        (["forget"], 2, "say what to forget"),
        (["forget", "--all", "--project", "p"], 2, "say what to forget"),
        (["forget", "--all", "--json"], 2, "--yes"),
        (["consent", "on", "--forget"], 2, "off alone"),
        (["export", "-", "--format", "markdown"], 2, "folder"),
        (["export", "x", "--git"], 2, "--format markdown"),
        (["export", "x", "--format", "markdown", "--git-forget", "--project", "p"], 2, "--git-forget"),
        (["import", "/nowhere/at/all"], 2, "cannot be read"),
        (["receipt", "ab" * 16], 1, "GetForgetReceipt"),
    ],
)  # fmt: skip
async def test_a_command_that_fails_says_why(desk: Desk, command: list[str], code: int, said: str) -> None:
    done = await desk.run(*command)
    assert (done.exit_code, said in done.stderr) == (code, True), done.output


async def test_without_a_name_nothing_is_answered(desk: Desk) -> None:
    done = await desk.run("list", user="")
    assert done.exit_code == 1
    assert "--token" in done.stderr


async def test_nobody_listening_is_said_with_the_address() -> None:
    runner = CliRunner(env={"MEMORY_EXTPROC_API": "127.0.0.1:1"})
    done = await asyncio.to_thread(lambda: runner.invoke(app, ["memory", "list"]))
    assert done.exit_code == 1
    assert "127.0.0.1:1" in done.stderr


# --- forgetting --------------------------------------------------------------------------------------
async def test_forgetting_asks_first_and_no_is_no(desk: Desk) -> None:
    done = await desk.run("forget", "--query", "the canary", asks="n\n")
    assert done.exit_code == 1
    assert [one.dry_run for one in desk.forgets] == [True]


@pytest.mark.parametrize("answer", [{"asks": "y\n"}, {"yes": "--yes"}])
async def test_what_was_shown_is_what_is_forgotten(desk: Desk, answer: dict[str, str]) -> None:
    more = [answer["yes"]] if "yes" in answer else []
    done = await desk.run("forget", "--query", "the canary", *more, asks=answer.get("asks", ""))
    assert done.exit_code == 0, done.output
    tried, meant = desk.forgets
    assert (tried.dry_run, meant.dry_run, meant.confirmation_token) == (True, False, "t0k3n")
    assert "receipt abab" in done.stdout


async def test_what_nobody_is_to_be_asked_about_is_not_listed_first(desk: Desk) -> None:
    """To say what would go takes long where it is much."""
    done = await desk.run("forget", "--all", "--yes")
    assert done.exit_code == 0, done.output
    assert [one.dry_run for one in desk.forgets] == [False]


async def test_a_dry_run_forgets_nothing(desk: Desk) -> None:
    assert (await desk.json("forget", "--all", "--dry-run"))["total"] == 2
    assert [one.dry_run for one in desk.forgets] == [True]


# --- out and in --------------------------------------------------------------------------------------
async def test_an_export_is_the_same_bytes_each_time_and_comes_in_again(desk: Desk) -> None:
    old = a_memory("budget 1", state=MemoryState.SUPERSEDED, superseded_by=a_memory("budget 2").id, valid_to=MONDAY)
    await desk.remember(old, a_memory("budget 2", importance=0.9, metadata={"n": 1, "deep": {"a": [1.5]}}))
    await desk.journal.append(a_turn("waits"))
    for name in ("one.jsonl", "two.jsonl"):
        assert (await desk.json("export", desk.path(name))) == {"memories": 2, "waiting_turns": 1}
    first = (desk.scratch / "one.jsonl").read_bytes()
    assert first == (desk.scratch / "two.jsonl").read_bytes()
    assert (await desk.run("export", "-")).stdout_bytes == first
    assert (await desk.json("import", desk.path("one.jsonl")))["same"] == 2
    report = await desk.json("import", desk.path("one.jsonl"), user="bob")
    assert (report["added"], report["problems"]) == (2, [])
    assert sorted(one.content for one in await desk.has(BOB)) == ["budget 1", "budget 2"]


async def test_a_folder_of_pages_comes_in_again_and_what_is_wrong_is_told(desk: Desk) -> None:
    await desk.remember(a_memory("Likes tea"), a_memory("Has a cat"))
    assert (await desk.json("export", desk.path("out"), "--format", "markdown"))["written"] == 2
    assert (await desk.json("import", desk.path("out"), user="bob"))["added"] == 2
    (desk.scratch / "out" / "facts" / "bad.md").write_text("no memory")
    done = await desk.run("import", desk.path("out"), user="bob")
    assert done.exit_code == 1
    assert "same 2" in done.stdout
    assert "facts/bad.md" in done.stdout


async def test_a_git_export_says_that_history_is_beyond_forget_and_can_drop_it(desk: Desk) -> None:
    await desk.remember(a_memory("the CANARY sings"), a_memory("Likes tea"))
    done = await desk.run("export", desk.path("out"), "--format", "markdown", "--git")
    assert done.exit_code == 0, done.output
    assert "beyond the reach of forget" in done.stderr
    await desk.partitions.delete(ANN, [a_memory("the CANARY sings").id])
    dropped = await desk.json("export", desk.path("out"), "--format", "markdown", "--git-forget")
    assert dropped["dropped_from_history"] == 1


async def test_an_export_that_broke_off_is_taken_up(desk: Desk) -> None:
    await desk.remember(*(a_memory(f"fact {n}", created_at=later(minutes=n)) for n in range(30)))
    await desk.run("export", desk.path("whole.jsonl"))
    whole = (desk.scratch / "whole.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    known = b"".join(lines[:11])
    last = json.loads(lines[10])
    seconds = int((MONDAY + timedelta(minutes=9)).timestamp())
    (desk.scratch / "half.jsonl.part").write_bytes(known + b'{"id": "cut o')
    place = {"size": len(known), "place": f"m.{seconds}.{last['id']}"}
    (desk.scratch / "half.jsonl.place").write_text(json.dumps(place))
    assert (await desk.json("export", desk.path("half.jsonl"), "--resume"))["memories"] == 20
    assert (desk.scratch / "half.jsonl").read_bytes() == whole
    assert not (desk.scratch / "half.jsonl.part").exists()


async def test_memories_of_other_layers_come_in(desk: Desk) -> None:
    exported = {
        "results": [{"id": "1", "memory": "Likes tea", "user_id": "alex", "created_at": "2024-07-20T01:30:36Z"}]
    }
    (desk.scratch / "mem0.json").write_text(json.dumps(exported))
    for expected in ("added", "same"):
        assert (await desk.json("import", desk.path("mem0.json"), "--from", "mem0"))[expected] == 1
    assert [one.content for one in await desk.has()] == ["Likes tea"]


async def test_a_conflict_is_told_and_resolved_on_demand(desk: Desk) -> None:
    memory = a_memory("budget 1")
    await desk.remember(memory)
    line = {"id": memory.id, "type": "semantic", "source": "rules", "content": "budget 2"}
    (desk.scratch / "in.jsonl").write_text(json.dumps(line))
    done = await desk.run("import", desk.path("in.jsonl"))
    assert (done.exit_code, "conflicting 1" in done.stdout) == (1, True)
    tried = await desk.json("import", desk.path("in.jsonl"), "--on-conflict", "replace", "--dry-run")
    assert tried["replaced"] == 1
    assert [one.content for one in await desk.has()] == ["budget 1"]
    await desk.json("import", desk.path("in.jsonl"), "--on-conflict", "replace")
    assert sorted(one.content for one in await desk.has()) == ["budget 1", "budget 2"]


async def test_an_edit_in_a_page_reaches_the_store(desk: Desk) -> None:
    memory = a_memory("Likes tea")
    await desk.remember(memory)
    assert (await desk.json("sync", desk.path("pages")))["written"] == 1
    page = desk.scratch / "pages" / "facts" / f"{memory.id}.md"
    page.write_text(page.read_text().replace("Likes tea", "Likes coffee"))
    (desk.scratch / "pages" / "facts" / "new.md").write_text("---\ntype: semantic\n---\nHas a cat\n")
    assert (await desk.json("sync", desk.path("pages")))["applied"] == 2
    active = {one.content for one in await desk.has() if one.state is MemoryState.ACTIVE}
    assert active == {"Likes coffee", "Has a cat"}
    (desk.scratch / "pages" / "facts" / "new.md").write_text("---\ntype: opinion\n---\nx\n")
    assert (await desk.run("sync", desk.path("pages"))).exit_code == 1


async def test_ten_thousand_memories_go_out_and_come_in(desk: Desk) -> None:
    vector = (await desk.embedder.embed(["x"]))[0]
    for start in range(0, 10_000, 500):
        rows = [a_memory(f"fact {n}", created_at=later(minutes=n % 97)) for n in range(start, start + 500)]
        await desk.store.put(ANN, [Embedded(row, vector) for row in rows])
    assert (await desk.json("export", desk.path("all.jsonl")))["memories"] == 10_000
    assert (await desk.json("import", desk.path("all.jsonl")))["same"] == 10_000


@pytest.mark.parametrize(
    ("signature", "verdict", "matches", "code"),
    [
        ("valid", "clean", True, 0),
        ("valid", "found", True, 1),
        ("altered", "clean", True, 1),
        ("unsigned", "clean", True, 2),
        ("valid", "not_looked_at", True, 2),
        ("valid", "", False, 2),
    ],
)
async def test_a_receipt_is_verified_by_the_server(
    desk: Desk, signature: str, verdict: str, code: int, *, matches: bool
) -> None:
    looks = [pb.StoreLook(store="memories", verdict=verdict)] if verdict else []
    desk.verified = pb.VerifyReceiptResponse(signature=signature, subject_matches=matches, stores=looks)
    given = json.dumps({"receipt": {"id": "ab" * 16, "state": "clean"}})
    done = await desk.run("verify-receipt", "-", asks=given)
    assert (done.exit_code, signature in done.stdout) == (code, True), done.output
    assert ("another user" in done.stdout) is not matches


@pytest.mark.parametrize("given", ["", "[]", "{", '{"receipt": {"id": 3}}'])
async def test_a_file_that_is_no_receipt_is_refused(desk: Desk, given: str) -> None:
    done = await desk.run("verify-receipt", "-", asks=given)
    assert (done.exit_code, "expected the JSON of a receipt" in done.stderr) == (2, True), done.output
