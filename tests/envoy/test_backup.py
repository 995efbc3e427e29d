"""A backup taken as docs/operations.md says is one that remembers, and brings nothing back that was forgotten."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
from typer.testing import CliRunner

from memory_extproc.cli.root import app as commands
from memory_extproc.model import ForgetScope, Owner
from tests.support.upstream import ANSWER, an_answer
from tests.support.waiting import until
from tests.support.whole import WholeStand

pytestmark = pytest.mark.envoy

BUDGET = "My budget for the Hawaii trip is $10,000."
ASKED = "What's my budget for the trip?"
LEFT_OUT = ("lock", "erasure.db*", "coordination.db*")


async def test_a_copied_data_directory_remembers_and_the_ledger_beside_it_keeps_what_was_forgotten_away(
    whole: WholeStand,
) -> None:
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    await whole.start()
    data, copy = whole.config.parent / "data", whole.config.parent / "copy"
    for user in ("ann", "bob"):
        await whole.say(BUDGET, user=user)
    await until(lambda: whole.accepted == 2, "both turns are in the journal")
    await whole.stop_sidecar()
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))

    await whole.restart()
    await whole.whole.forgets.forget(Owner("", "bob"), ForgetScope())
    await whole.stop_sidecar()
    ledger = [path for path in data.iterdir() if path.name.startswith("erasure.db")]
    assert ledger
    for path in ledger:
        shutil.copy(path, copy)
    shutil.rmtree(data)
    copy.rename(data)

    await whole.restart()
    assert (await whole.say(ASKED)).memory.startswith("used")
    assert "$10,000" in whole.shown
    assert (await whole.say(ASKED, user="bob")).memory in {"empty", "nothing_relevant"}
    assert "$10,000" not in whole.shown


async def store_command(whole: WholeStand, command: str) -> None:
    folder = whole.config.parent / "backup"
    folder.mkdir(exist_ok=True)
    words = ["store", command, str(folder), "--config", str(whole.config)]
    ended = await asyncio.to_thread(CliRunner().invoke, commands, words)
    assert ended.exit_code == 0, ended.output


async def test_a_restored_backup_answers_as_before_and_forgets_what_was_forgotten_since(whole: WholeStand) -> None:
    whole.upstream.answers = an_answer(json.dumps(ANSWER).encode())
    await whole.start()
    data = whole.config.parent / "data"
    for user in ("ann", "bob"):
        await whole.say(BUDGET, user=user)
    await until(lambda: whole.sample("remembered_total", role="user", decision="kept") == 2, "both are stored")
    await whole.stop_sidecar()
    await store_command(whole, "backup")
    await whole.restart()
    assert (await whole.say(ASKED)).memory.startswith("used")
    before = whole.shown
    await whole.whole.forgets.forget(Owner("", "bob"), ForgetScope())
    await whole.stop_sidecar()
    # The disk is lost, but for the ledger, which lay elsewhere.
    data.rename(whole.config.parent / "lost")
    data.mkdir()
    shutil.copy(whole.config.parent / "lost" / "erasure.db", data)
    await store_command(whole, "restore")
    await whole.restart()
    assert (await whole.say(ASKED)).memory.startswith("used")
    assert whole.shown == before
    assert (await whole.say(ASKED, user="bob")).memory == "empty"
    assert whole.shown == ASKED
