"""`memory-extproc store backup` and `store restore`, over real stores and the real model."""

from __future__ import annotations

import asyncio
import gzip
import json
import sqlite3
import stat
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from memory_extproc.app.offline import OfflineContext, open_offline
from memory_extproc.cli.root import app
from memory_extproc.concurrency import utc_now
from memory_extproc.coordination.consent import RedisConsent, SqliteConsent
from memory_extproc.coordination.recovery import generation_key
from memory_extproc.coordination.redis import RedisLedger
from memory_extproc.coordination.redis_client import RedisLink
from memory_extproc.coordination.sqlite import SqliteLedger
from memory_extproc.encryption.keys import new_master_key
from memory_extproc.erasure.tombstones import KeyedHasher, TombstoneKind
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.model import Consent, ConsentChange, Embedded, LedgerJob, Memory, Owner, Provenance, Scope
from memory_extproc.settings import load
from tests.support.builders import a_memory, a_turn
from tests.support.disk import no_room
from tests.support.models import int8_model_dir
from tests.support.redis import RedisServer, redis_server

__all__ = ["int8_model_dir", "redis_server"]
ANN, BOB = Owner("acme", "ann"), Owner("acme", "bob")
TEA, DOG = a_memory("Ann likes tea.", ANN), a_memory("Ann has a dog.", ANN)
CAT = a_memory("Bob has a cat.", BOB)


class Place:
    """A configuration with a data directory of its own, and a folder for backups beside it."""

    def __init__(self, scratch: Path, models: Path) -> None:
        self.config, self.data, self.backup = scratch / "config.yaml", scratch / "data", scratch / "backup"
        self._models = models
        self.configure()

    def configure(self, **more: Any) -> None:
        memory = {"embedding": {"models_dir": str(self._models)}, "milvus": {"shards": 2}}
        self.config.write_text(yaml.safe_dump({"data_dir": str(self.data), "memory": memory, **more}))

    def lose(self, *, but: str = "") -> None:
        """The data directory as on a new machine, with the file *but* carried over."""
        kept = self.data / but
        content = kept.read_bytes() if but else b""
        self.data.rename(self.data.with_name(f"lost-{len(list(self.data.parent.iterdir()))}"))
        if but:
            self.data.mkdir()
            kept.write_bytes(content)

    def _tending(self) -> AbstractAsyncContextManager[OfflineContext]:
        """The store as a sidecar would have it, sealing and all."""
        self.data.mkdir(exist_ok=True)
        return open_offline(load(self.config, {}))

    def put(self, *memories: Memory) -> None:
        async def put() -> None:
            async with self._tending() as tended:
                for memory in memories:
                    [vector] = await tended.embedder.embed([memory.content])
                    await tended.unsealed.put(memory.owner, [Embedded(memory, vector)])

        asyncio.run(put())

    def found(self, asked: str, owner: Owner = ANN) -> list[tuple[str, float]]:
        """What answers *asked*, best first, with how near it is."""

        async def find() -> list[tuple[str, float]]:
            async with self._tending() as tended:
                [vector] = await tended.embedder.embed([asked])
                searched = await tended.unsealed.nearest(owner, vector, 10, Scope())
                return [(one.memory.content, one.cosine) for one in searched.found]

        return asyncio.run(find())

    def journal(self, *words: str) -> list[str]:
        """What waits, with *words* said now."""

        async def said() -> list[str]:
            async with SqliteJournal(self.data / "journal.db", now=utc_now) as journal:
                for one in words:
                    await journal.append(a_turn(one, owner=ANN))
                return [entry.turn.asked for entry in await journal.pending(10)]

        return asyncio.run(said())

    def forget(self, memory: Memory, by: tuple[TombstoneKind, str] | None = None) -> None:
        """As the ledger of a forget says it, which is all that matters to a backup."""

        async def forget() -> None:
            async with SqliteLedger(self.data / "erasure.db") as ledger:
                blind = KeyedHasher(await ledger.key())
                kind, name = by or (TombstoneKind.MEMORY, memory.id)
                item = blind.item(kind, memory.owner, name)
                subject = blind.subject(memory.owner)
                job = LedgerJob(id=memory.id[:32], subject=subject, body=b"{}", shut=False, open=False)
                await ledger.write(job, items=[item], at=utc_now().timestamp())

        asyncio.run(forget())

    def run(self, command: str) -> Result:
        return CliRunner().invoke(app, ["store", command, str(self.backup), "--json", "--config", str(self.config)])

    def json(self, command: str) -> Any:
        ended = self.run(command)
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)


@pytest.fixture
def place(tmp_path: Path, int8_model_dir: Path) -> Place:
    return Place(tmp_path, int8_model_dir.parent)


def test_a_restored_store_gives_the_same_answers_and_learns_what_waited(place: Place) -> None:
    place.put(TEA, DOG, CAT)
    place.journal("My flight is at nine.")
    before = place.found("What does Ann drink?")
    assert place.json("backup") == {"files": ["journal.db"], "memories": 3}
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.backup.iterdir()} == {0o600}
    place.lose()
    counts = {"restored": 3, "newer": 0, "forgotten": 0, "unreadable": 0}
    assert place.json("restore") == {"files": ["journal.db"], "kept": [], **counts}
    assert place.found("What does Ann drink?") == before
    assert [words for words, _ in place.found("Which pet?", BOB)] == ["Bob has a cat."]
    assert place.journal() == ["My flight is at nine."]
    again = place.json("restore")
    assert (again["restored"], again["newer"]) == (0, 3)
    assert "journal.db" in again["kept"]


def test_an_old_backup_does_not_bring_back_what_was_forgotten_since(place: Place) -> None:
    place.put(TEA, DOG)
    place.json("backup")
    place.forget(DOG)
    place.lose(but="erasure.db")
    report = place.json("restore")
    assert (report["restored"], report["forgotten"], report["kept"]) == (1, 1, ["erasure.db"])
    assert [words for words, _ in place.found("Which pet?")] == ["Ann likes tea."]


def test_what_was_changed_since_the_backup_stays(place: Place) -> None:
    place.put(TEA, DOG)
    place.json("backup")
    place.put(replace(TEA, state=TEA.state, project="home", updated_at=TEA.updated_at + timedelta(hours=1)))
    assert (place.json("restore")["restored"], place.json("restore")["newer"]) == (0, 2)


def test_sealed_texts_stay_sealed_and_are_forgotten_like_others(place: Place, tmp_path: Path) -> None:
    master = tmp_path / "master.key"
    master.write_text(new_master_key() + "\n")
    place.configure(privacy={"encrypt_content": True, "master_key_file": str(master)})
    place.put(TEA, replace(DOG, provenance=Provenance(turn="t1")))
    assert place.json("backup") == {"files": [], "memories": 2}, "keys are kept apart"
    kept = gzip.decompress((place.backup / "memories.jsonl.gz").read_bytes())
    assert b"tea" not in kept
    assert b"dog" not in kept
    keys = (place.data / "keys.db").read_bytes()
    place.forget(DOG, by=(TombstoneKind.TURN, "t1"))  # which stands where it is sealed
    place.lose(but="erasure.db")
    (place.data / "keys.db").write_bytes(keys)
    report = place.json("restore")
    assert (report["restored"], report["forgotten"]) == (1, 1)
    assert [words for words, _ in place.found("Which pet?")] == ["Ann likes tea."]


def test_a_backup_that_broke_off_or_is_of_another_model_is_refused_before_anything_is_changed(place: Place) -> None:
    place.put(TEA)
    place.json("backup")
    path = place.backup / "memories.jsonl.gz"
    whole = path.read_bytes()
    place.lose()
    path.write_bytes(whole[:-20])
    refused = place.run("restore")
    assert refused.exit_code == 1
    assert "memories.jsonl.gz cannot be read" in refused.output
    path.write_bytes(gzip.compress(gzip.decompress(whole).replace(b'"model":"', b'"model":"other-', 1)))
    refused = place.run("restore")
    assert refused.exit_code == 1
    assert "'other-" in refused.output
    assert "store reembed" in refused.output
    assert place.found("What does Ann drink?") == []


def test_what_broke_off_on_a_full_disk_is_whole_when_it_is_done_again(place: Place) -> None:
    place.put(TEA)
    place.journal("first")
    choose(place, Consent.RECALL_ONLY)
    place.forget(DOG)
    for step, there in (("backup", place.backup), ("restore", place.data)):
        if step == "restore":
            place.lose()
        for room in (1, 10_000):  # before and within the first file
            with no_room(room):
                assert place.run(step).exit_code == 1
            assert not list(there.glob("*.db*")), step
        place.json(step)
    assert place.journal() == ["first"]
    assert asyncio.run(chosen(place)) is Consent.RECALL_ONLY
    place.put(DOG)
    assert place.run("restore").exit_code == 0
    with closing(sqlite3.connect(place.data / "erasure.db")) as ledger:
        assert ledger.execute("SELECT count(*) FROM jobs").fetchone() == (1,)


@pytest.mark.parametrize("left", [0, 5_000])
def test_a_damaged_file_of_a_backup_is_named_and_not_put_in_place(place: Place, left: int) -> None:
    place.put(TEA)
    place.journal("first")
    place.forget(DOG)
    place.json("backup")
    place.lose()
    with (place.backup / "erasure.db").open("r+b") as file:
        file.truncate(left)
    refused = place.run("restore")
    assert refused.exit_code == 1
    assert "erasure.db is damaged" in refused.output
    assert not (place.data / "erasure.db").exists()
    (place.backup / "erasure.db").unlink()
    assert place.json("restore")["restored"] == 1


def test_a_journal_is_copied_as_of_one_moment_while_a_sidecar_writes_to_it(place: Place) -> None:
    place.put(TEA)
    place.journal("first")
    with closing(sqlite3.connect(place.data / "journal.db")) as busy:
        busy.execute("BEGIN IMMEDIATE")
        busy.execute("UPDATE turns SET reason = 'half done'")
        place.json("backup")
        busy.rollback()
    with closing(sqlite3.connect(place.backup / "journal.db")) as copy:
        assert copy.execute("SELECT reason FROM turns").fetchall() == [("",)]
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def read_shared(url: str, prefix: str) -> tuple[list[Consent], int]:
    """ANN's choices in Redis, and how many marks its ledger has of her memories."""
    async with RedisLink(url, timedelta(seconds=1)) as link:
        history = await RedisConsent(link, prefix=prefix).history(ANN)
        ledger = RedisLedger(link, prefix=prefix)
        marks = await ledger.marks(KeyedHasher(await ledger.key()).subject(ANN))
        return [change.consent for change in history], len(marks.items)


def choose(place: Place, *consents: Consent) -> None:
    async def choose() -> None:
        async with SqliteConsent(place.data / "consent.db") as kept:
            for consent in consents:
                change = ConsentChange(consent, utc_now(), "ann")
                assert await kept.add(ANN, change, after=await kept.latest(ANN))

    asyncio.run(choose())


async def chosen(place: Place) -> Consent:
    async with SqliteConsent(place.data / "consent.db") as kept:
        return (await kept.history(ANN))[-1].consent


def test_from_files_to_redis_what_was_chosen_and_forgotten_comes_along(
    tmp_path: Path, int8_model_dir: Path, redis_server: RedisServer
) -> None:
    place = Place(tmp_path, int8_model_dir.parent)
    place.put(TEA, DOG, CAT)
    choose(place, Consent.OFF, Consent.RECALL_ONLY)
    assert place.run("backup").exit_code == 0
    place.forget(TEA)
    # the ledger as of now, beside memories of before: what was forgotten since is not to come back
    with closing(sqlite3.connect(place.data / "erasure.db")) as source:
        (place.backup / "erasure.db").unlink(missing_ok=True)
        with closing(sqlite3.connect(place.backup / "erasure.db")) as target:
            source.backup(target)
    place.lose()
    prefix = f"moved-{tmp_path.name}"
    shared = {"url": redis_server.url, "prefix": prefix, "accept_volatile": True}
    place.configure(coordination=shared)
    place.data.mkdir()
    for _ in range(2):  # it can be run again
        restored = place.run("restore")
        assert restored.exit_code == 0, restored.output
        assert sorted(json.loads(restored.stdout)["into_redis"]) == ["consent.db", "erasure.db"]
        assert asyncio.run(read_shared(redis_server.url, prefix)) == ([Consent.OFF, Consent.RECALL_ONLY], 1)
    assert [words for words, _ in place.found("tea or a dog")] == [DOG.content]


def test_a_redis_with_forgets_of_its_own_is_not_mixed_with_others(
    tmp_path: Path, int8_model_dir: Path, redis_server: RedisServer
) -> None:
    place = Place(tmp_path, int8_model_dir.parent)
    place.put(TEA)
    place.forget(DOG)
    assert place.run("backup").exit_code == 0
    prefix = f"taken-{tmp_path.name}"
    place.configure(coordination={"url": redis_server.url, "prefix": prefix, "accept_volatile": True})
    asyncio.run(read_shared(redis_server.url, prefix))  # its ledger has a key now
    refused = place.run("restore")
    assert refused.exit_code != 0
    assert "hashed with another key" in refused.output


def test_what_replicas_serve_from_already_is_not_merged_behind_them(
    tmp_path: Path, int8_model_dir: Path, redis_server: RedisServer
) -> None:
    place = Place(tmp_path, int8_model_dir.parent)
    place.put(TEA)
    choose(place, Consent.OFF)
    assert place.run("backup").exit_code == 0
    prefix = f"serving-{tmp_path.name}"
    place.configure(coordination={"url": redis_server.url, "prefix": prefix, "accept_volatile": True})

    async def serve() -> None:
        async with RedisLink(redis_server.url, timedelta(seconds=1)) as link:
            await link.client.hset(generation_key(prefix), "id", "one")

    asyncio.run(serve())
    refused = place.run("restore")
    assert refused.exit_code != 0
    assert "before their first start" in " ".join(refused.output.split())
