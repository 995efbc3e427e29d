"""A backup taken as docs/operations.md says is one that remembers, and brings nothing back that was forgotten."""

from __future__ import annotations

import json
import shutil

import pytest

from memory_extproc.model import ForgetScope, Owner
from tests.fixtures.envoy import until
from tests.fixtures.upstream import ANSWER, an_answer
from tests.fixtures.whole import WholeStand

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
    await until(lambda: whole.sample("turns_total", outcome="journalled") == 2, "both turns are in the journal")
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
