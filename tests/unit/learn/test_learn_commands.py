"""Output and effects of `memory-extproc learn`, beside a sidecar that runs or without one."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from memory_extproc.cli.root import app
from memory_extproc.encryption.codecs import EncryptedJournal
from memory_extproc.encryption.keys import MasterKeyFile, SqliteKeyTable, WrappedKeys, new_master_key
from memory_extproc.journal.sqlite import SqliteJournal
from memory_extproc.learn.intake_log import INTAKE, IntakeLog, LogKind
from memory_extproc.model import Turn, TurnOutcome, digest
from tests.support.builders import ANN, MONDAY, a_turn


def turn(words: str) -> Turn:
    return replace(a_turn(words), id=digest(words))


def a_journal(directory: Path) -> SqliteJournal:
    return SqliteJournal(directory / "journal.db", now=lambda: MONDAY)


async def fill(directory: Path, waiting: Sequence[str], dead: Sequence[str] = ()) -> None:
    async with a_journal(directory) as journal:
        for words in (*dead, *waiting):
            assert await journal.append(turn(words)) is TurnOutcome.JOURNALLED
        for entry in await journal.pending(len(dead)):
            await journal.mark_failed(entry, "PermanentError", dead=True)


async def words_in(directory: Path) -> list[str]:
    async with a_journal(directory) as journal:
        return [entry.turn.asked for entry in await journal.pending(100)]


class Command:
    def __init__(self, data: Path) -> None:
        self.data = data
        self._config = data.parent / "config.yaml"
        self._run = CliRunner()
        self.configure("")

    def configure(self, more: str) -> None:
        self._config.write_text(f"data_dir: {self.data}\n{more}\n")

    def __call__(self, *words: str) -> tuple[int, str, str]:
        result = self._run.invoke(app, ["learn", *words, "--config", str(self._config)])
        return result.exit_code, result.stdout, result.stderr

    def told(self, *words: str) -> Any:
        code, out, _ = self(*words, "--json")
        assert code == 0, out
        return json.loads(out)


@pytest.fixture
def learn(tmp_path: Path) -> Command:
    data = tmp_path / "data"
    data.mkdir()
    return Command(data)


def test_the_status_tells_what_waits_and_makes_no_file(learn: Command) -> None:
    nothing = {"waiting": 0, "oldest_seconds": None, "dead_letters": 0, "undecided": 0}
    assert learn.told("status") == {"journal": "file", **nothing}
    assert list(learn.data.iterdir()) == []
    asyncio.run(fill(learn.data, ["a", "b"], dead=["c"]))
    told = learn.told("status")
    assert (told["waiting"], told["dead_letters"]) == (2, 1)
    assert told["oldest_seconds"] > 0
    code, out, _ = learn("status")
    assert code == 0
    assert "dead letters" in out


def test_dead_letters_are_listed_without_anybodys_words(learn: Command) -> None:
    assert learn("dead-letters")[1] == "no dead letters\n"
    assert learn.told("dead-letters") == []
    asyncio.run(fill(learn.data, ["a"], dead=["the secret budget", "another"]))
    letters = learn.told("dead-letters")
    assert letters[0] == {
        "turn": turn("the secret budget").id,
        "owner": ANN.key,
        "reason": "PermanentError",
        "attempts": 1,
        "asked_at": MONDAY.isoformat(),
        "failed_at": MONDAY.isoformat(),
    }
    assert len(letters) == 2
    assert len(learn.told("dead-letters", "--limit", "1")) == 1
    code, out, _ = learn("dead-letters")
    assert code == 0
    assert "PermanentError" in out
    assert "secret" not in out


def test_dead_letters_wait_again_the_named_or_all(learn: Command) -> None:
    assert learn.told("retry", "--all") == {"retried": 0}
    asyncio.run(fill(learn.data, ["a"], dead=["b", "c", "d"]))
    assert learn.told("retry", turn("c").id[:10]) == {"retried": 1}
    assert asyncio.run(words_in(learn.data)) == ["a", "c"]
    code, out, _ = learn("retry", "unknown")
    assert (code, out) == (1, "0 turn(s) wait again\n")
    assert learn("retry", "--all")[1] == "2 turn(s) wait again\n"
    assert asyncio.run(words_in(learn.data)) == ["a", "c", "b", "d"]
    assert learn("retry")[0] == 2
    assert learn("retry", "x", "--all")[0] == 2


def test_what_another_sidecar_left_behind_is_adopted_once(learn: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    asyncio.run(fill(gone, ["a", "b"], dead=["c"]))
    asyncio.run(fill(learn.data, ["b", "mine"]))
    assert learn.told("adopt", str(gone)) == {"adopted": 2, "known": 1, "unreadable": 0, "left": 0, "undecided": 0}
    assert asyncio.run(words_in(learn.data)) == ["b", "mine", "a", "c"]
    assert asyncio.run(words_in(gone)) == []
    assert (
        learn("adopt", str(gone))[1] == "0 turn(s) adopted, 0 known already, 0 unreadable, 0 still to be decided\n"
    )


async def undecided(directory: Path, *words: str) -> None:
    async with IntakeLog(directory / INTAKE) as log:
        for one in words:
            log.append(LogKind.TURN, ANN, MONDAY, one.encode())


def test_what_another_sidecar_could_not_decide_is_counted_and_adopted(learn: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    asyncio.run(undecided(gone, "a", "b"))
    asyncio.run(undecided(learn.data, "c"))
    assert learn.told("status")["undecided"] == 1
    assert learn.told("adopt", str(gone))["undecided"] == 2
    assert learn.told("adopt", str(gone))["undecided"] == 0
    assert learn.told("status")["undecided"] == 3


def test_the_first_journal_of_a_sidecar_may_be_an_adopted_one(learn: Command, tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "gone", ["a"]))
    assert learn.told("adopt", str(tmp_path / "gone"))["adopted"] == 1
    assert asyncio.run(words_in(learn.data)) == ["a"]


async def fill_sealed(directory: Path, waiting: Sequence[str], master: Path) -> None:
    """As a sidecar with sealed texts and keys of its own leaves it behind."""
    async with a_journal(directory) as journal, SqliteKeyTable(directory / "keys.db") as table:
        keys = WrappedKeys(table, MasterKeyFile(master))
        await keys.check()
        for words in waiting:
            assert await EncryptedJournal(journal, keys).append(turn(words)) is TurnOutcome.JOURNALLED


def test_what_was_left_behind_sealed_is_read_with_its_own_keys_and_sealed_with_ours(
    learn: Command, tmp_path: Path
) -> None:
    gone, master = tmp_path / "gone", tmp_path / "master.key"
    master.write_text(new_master_key())
    asyncio.run(fill_sealed(gone, ["a", "b"], master))
    code, _, err = learn("adopt", str(gone))
    assert code != 0
    assert "privacy.encrypt_content: is off" in err
    learn.configure(f"privacy: {{encrypt_content: true, master_key_file: {tmp_path / 'other.key'}}}")
    (tmp_path / "other.key").write_text(new_master_key())
    code, _, err = learn("adopt", str(gone))
    assert code == 1
    assert "other.key does not hold" in err
    learn.configure(f"privacy: {{encrypt_content: true, master_key_file: {master}}}")
    assert learn.told("adopt", str(gone)) == {"adopted": 2, "known": 0, "unreadable": 0, "left": 0, "undecided": 0}
    assert asyncio.run(words_in(gone)) == []
    assert all(words.startswith("sealed:") for words in asyncio.run(words_in(learn.data)))

    async def ours() -> list[str]:
        async with a_journal(learn.data) as journal, SqliteKeyTable(learn.data / "keys.db") as table:
            sealed = EncryptedJournal(journal, WrappedKeys(table, MasterKeyFile(master)))
            return [entry.turn.asked for entry in await sealed.pending(10)]

    assert asyncio.run(ours()) == ["a", "b"]


def test_what_does_not_fit_stays_where_it_is(learn: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    asyncio.run(fill(gone, ["a", "b", "c"]))
    learn.configure("learn: {journal: {max_turns: 2}}")
    code, out, err = learn("adopt", str(gone))
    assert code == 1
    assert out.startswith("2 turn(s) adopted")
    assert "1 turn(s) are left" in err
    assert asyncio.run(words_in(gone)) == ["c"]


def test_a_journal_in_use_its_own_and_none_are_not_adopted(learn: Command, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code, _, err = learn("adopt", str(gone))
    assert code == 1
    assert "holds no journal" in err
    asyncio.run(fill(gone, ["a"]))
    with (gone / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = learn("adopt", str(gone))
    assert code == 1
    assert "stop it first" in err
    asyncio.run(fill(learn.data, ["a"]))
    code, _, err = learn("adopt", str(learn.data))
    assert code == 1
    assert "of this configuration" in err
