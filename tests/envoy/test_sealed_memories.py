"""Texts at rest sealed, through the whole sidecar: recall is as ever, the disk holds no word of anybody's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memory_extproc import app
from memory_extproc.cli.root import app as command_line
from memory_extproc.encryption.keys import new_master_key
from memory_extproc.errors import ConfigurationError
from memory_extproc.model import ForgetScope, ForgetState, Owner
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

CANARY = "quetzalcoatlus"
SAID = f"My dog is called {CANARY}."
ASKED = "What is my dog called?"


@pytest.fixture
def master(whole: WholeStand, tmp_path: Path) -> Path:
    file = tmp_path / "master.key"
    write(file, new_master_key())
    whole.changes["privacy"] = {"encrypt_content": True, "master_key_file": str(file)}
    return file


def write(file: Path, *lines: str) -> None:
    file.write_text("".join(f"{line}\n" for line in lines))


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines()


def found_below(directory: Path, words: str) -> list[str]:
    return [str(file) for file in directory.rglob("*") if file.is_file() and words.encode() in file.read_bytes()]


async def command(*words: str) -> str:
    """What it prints, as from a shell beside the sidecar."""
    done = await asyncio.to_thread(CliRunner().invoke, command_line, list(words))
    assert done.exit_code == 0, done.output
    return done.output


async def test_what_is_sealed_is_recalled_as_ever_and_after_a_restart(whole: WholeStand, master: Path) -> None:
    await whole.start()
    await whole.say(SAID, x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is stored", seconds=10)
    for _ in range(2):
        assert (await whole.say(ASKED)).memory.startswith("used;n=1")
        assert CANARY in whole.shown
        assert not (await whole.say(ASKED, user="bob")).memory.startswith("used")
        await whole.restart()


async def test_no_word_of_anybodys_rests_readable(whole: WholeStand, master: Path, tmp_path: Path) -> None:
    await whole.start()
    await whole.say(SAID, x_memory_session="end")
    await until(lambda: whole.sample("reconcile_total", decision="added") == 1, "the fact is stored", seconds=10)
    assert (await whole.say(ASKED)).memory.startswith("used")
    assert found_below(tmp_path / "data", CANARY) == []
    await whole.stop_sidecar()
    assert found_below(tmp_path / "data", CANARY) == []


async def test_a_master_key_is_rotated_beside_the_running_sidecar(
    whole: WholeStand, master: Path, tmp_path: Path
) -> None:
    await whole.start()
    await whole.say(SAID)
    config = ["--config", str(tmp_path / "config.yaml")]
    old, new = lines_of(master)[0], new_master_key()
    write(master, new, old)
    assert (await command("keys", "rotate", *config)).startswith("2 keys wrapped anew")
    assert "current" in await command("keys", "status", *config)
    status = json.loads(await command("keys", "status", "--json", *config))
    assert status["wrapped_by"] == {status["current"]: 2}
    write(master, new)
    await whole.restart()
    assert (await whole.say(ASKED)).memory.startswith("used;n=1")


async def test_another_master_key_or_none_stops_it_before_it_serves(whole: WholeStand, master: Path) -> None:
    await whole.start()
    await whole.say(SAID)
    await whole.stop_sidecar()
    right = lines_of(master)
    write(master, new_master_key())
    with pytest.raises(ConfigurationError, match="does not hold"):
        await whole.start_sidecar()
    write(master, *right)
    del whole.changes["privacy"]
    with pytest.raises(ConfigurationError, match="is off, but texts were sealed"):
        await whole.start_sidecar()


async def test_whose_key_is_destroyed_is_not_known_any_more(whole: WholeStand, master: Path) -> None:
    await whole.start()
    await whole.say(SAID)
    await whole.say(SAID, user="bob")
    async with app.keys_alone(whole.settings()) as (keys, _):
        assert await keys.destroy(Owner("", "ann"))
    await whole.restart()
    assert not (await whole.say(ASKED)).memory.startswith("used")
    assert CANARY not in whole.shown
    assert (await whole.say(ASKED, user="bob")).memory.startswith("used;n=1")


async def test_forgetting_all_of_a_caller_destroys_their_key_and_they_may_begin_anew(
    whole: WholeStand, master: Path
) -> None:
    await whole.start()
    await whole.say(SAID)
    await whole.say(SAID, user="bob")
    ann = Owner("", "ann")
    async with app.keys_alone(whole.settings()) as (keys, _):
        assert await keys.find(ann) is not None
        receipt = await whole.whole.forgets.forget(ann, ForgetScope())
        assert receipt.state is not ForgetState.ACCEPTED
        assert await keys.find(ann) is None
    assert (await whole.say(ASKED)).memory == "empty"
    await whole.say("My cat is called Anzu.")
    for _ in range(2):
        assert (await whole.say("What is my cat called?")).memory.startswith("used;n=1")
        assert (await whole.say(ASKED, user="bob")).memory.startswith("used;n=1")
        await whole.restart()
