"""A memory that no store has yet is forgotten for good: Milvus is away, the sidecar ends, another one goes on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from memory_extproc.encryption.keys import new_master_key
from memory_extproc.model import ForgetReceipt, ForgetScope, ForgetState, Owner
from tests.support.faults import ASKED, BUDGET, FaultStand, Link
from tests.support.faults import USER as ANN
from tests.support.waiting import until

pytestmark = pytest.mark.envoy

SISTER, BROTHER = "My sister lives in Hawaii since March.", "My brother lives in Oslo since May."


@pytest.mark.parametrize("how", ["waiting", "dead_letter", "sealed"])
async def test_what_was_forgotten_before_any_store_had_it_is_never_learned(
    faulty: FaultStand, link: Link, how: str
) -> None:
    milvus = {"address": f"127.0.0.1:{link.port}", "collection": f"forgotten_{how}"}
    faulty.change(memory={"milvus": milvus}, shutdown={"flush": "300ms"})
    if how == "sealed":
        master = faulty.scratch / "master.key"
        master.write_text(new_master_key() + "\n")
        faulty.change(privacy={"encrypt_content": True, "master_key_file": str(master)})
    await faulty.start()
    await faulty.say(SISTER)
    await until(lambda: faulty.kept == 1, "it is stored")
    await link.cut()
    await faulty.say(BUDGET)
    await faulty.say(BROTHER)
    assert (await faulty.say(ASKED)).memory.startswith("used")  # known in process
    owner = Owner("", ANN)
    rows = [row async for page in faulty.whole.partitions.rows(owner) for row in page]
    named = next(row.id for row in rows if row.content == BUDGET)
    forgets = faulty.whole.forgets
    if how == "dead_letter":
        journal = forgets._holders.journal
        [entry] = [entry async for entry in journal.of_owner(owner) if entry.turn.asked == BUDGET]
        await journal.mark_failed(entry, "Error", dead=True)
    forgets._limits = replace(forgets._limits, patience=timedelta(milliseconds=300))
    accepted = await forgets.forget(owner, ForgetScope(ids=(named,)))
    assert accepted.state is ForgetState.ACCEPTED
    await faulty.stop_sidecar()
    await link.mend()
    await faulty.start_sidecar()

    async def receipt() -> ForgetReceipt | None:
        found = await faulty.whole.forgets.receipt(owner, accepted.id)
        return found if found is not None and found.state is not ForgetState.ACCEPTED else None

    await until(receipt, "the forget is clean", seconds=20)
    await until(lambda: known(faulty, BROTHER), "what waited beside it is learned", seconds=20)
    assert BUDGET not in await faulty.memories()
    await faulty.say(ASKED)
    assert "budget for the Hawaii trip is" not in faulty.shown  # what answered the other messages stays
    found = await receipt()
    assert found is not None
    assert {one.store: one.removed for one in found.stores}["journal"] == 1


async def known(faulty: FaultStand, text: str) -> bool:
    return text in await faulty.memories()
