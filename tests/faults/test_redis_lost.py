"""A real Redis that is wiped, exchanged for an empty one, or goes back to what it was, under its replicas."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime
from uuid import uuid4

import pytest
import structlog.testing

from memory_extproc.app.context import make_context
from memory_extproc.app.coordination import open_link
from memory_extproc.coordination.mirror import Copied
from memory_extproc.coordination.recovery import FILE
from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.model import Consent, ConsentChange, Owner
from tests.support.in_memory import InMemoryMirror
from tests.support.lost_redis import Place, place, serving
from tests.support.waiting import until

__all__ = ["place"]

pytestmark = pytest.mark.redis

ANN, BOB = Owner("acme", "ann"), Owner("globex", "ann")
NO = ConsentChange(Consent.OFF, datetime(2026, 3, 2, 9, tzinfo=UTC), "ann")
YES = ConsentChange(Consent.ON, datetime(2026, 3, 2, 8, tzinfo=UTC), "ann")
AWAY = TransientError("Milvus does not answer")


@pytest.mark.parametrize("how", ["wiped", "exchanged"])
async def test_what_was_forgotten_and_who_said_no_is_known_after_a_wipe(place: Place, how: str) -> None:
    first, second, third = [await place.replica(name) for name in ("one", "two", "three")]
    await serving(first, second, third)
    await first.forget(ANN)
    await second.consent().add(BOB, YES, after=None)
    await third.consent().add(BOB, NO, after=YES)
    job = await first.erasing.ledger.job(f"{1:032x}")
    with structlog.testing.capture_logs() as logs:
        if how == "wiped":
            await place.wipe(first)
        else:
            place.exchange()
        # From now on nobody says that nothing was forgotten: they know it, or do not answer.
        wrong = 0
        async with asyncio.timeout(60):
            while not all(
                one.serves and not one.sample("coordination_restoring") for one in (first, second, third)
            ) or not any(entry["event"] == "coordination.restored" for entry in logs):
                for one in (first, second, third):
                    one.erasing.forgotten.renew_all()
                    try:
                        wrong += not await one.knows(ANN)
                        wrong += (await one.consent().latest(BOB)) != NO
                    except MemoryExtprocError:
                        await asyncio.sleep(0.01)
    assert wrong == 0
    for one in (first, second, third):
        assert await one.knows(ANN)
        assert not await one.knows(BOB)
        assert list(await one.consent().history(BOB)) == [YES, NO]
        assert await one.erasing.ledger.job(f"{1:032x}") == job
        assert sum(one.sample("coordination_losses_total", kind=kind) for kind in ("wiped", "replaced")) == 1


async def test_a_receipt_is_never_denied_because_redis_was_just_wiped(place: Place) -> None:
    one = await place.replica("one")
    await one.forget(ANN, 1, done=False)
    await place.wipe(one)
    ledger = one.erasing.ledger
    for look in (ledger.job(f"{1:032x}"), ledger.list_unfinished()):
        with pytest.raises(TransientError):
            await look
    await one.try_again()
    await one.try_again()
    found = await ledger.job(f"{1:032x}")
    assert found is not None
    assert [job.id for job in await ledger.list_unfinished()] == [found.id]


async def test_a_redis_that_went_back_to_what_it_was_is_brought_up_to_date(place: Place) -> None:
    first, second = await place.replica("one"), await place.replica("two")
    await serving(first, second)
    await first.forget(ANN, 1, done=False)
    older = place.scratch / "older"
    shutil.copytree(place.files, older)
    await first.forget(ANN, 1)
    await second.forget(BOB, 2)
    for one in (first, second):
        await one.renew()
    place.exchange(keeping=older)
    await until(
        lambda: first.sample("coordination_restoring") or second.sample("coordination_restoring"), "it shows"
    )
    await serving(first, second)
    for one in (first, second):
        assert await one.knows(ANN)
        assert await one.knows(BOB)
        assert not (await one.erasing.forgotten.of(ANN)).shut  # the forget had come further than Redis knew
    assert await first.erasing.ledger.list_unfinished() == []


async def test_marks_of_a_replica_that_is_no_more_come_back_from_milvus_and_to_one_that_is_new(
    place: Place,
) -> None:
    first = await place.replica("one")
    await serving(first)
    await first.forget(ANN)
    await until(lambda: "generation" in place.shared.kept, "it is noted there")  # type: ignore[union-attr]
    await first.stop()
    shutil.rmtree(first.data)
    place.exchange()
    fresh = await place.replica("fresh")
    await serving(fresh)
    assert await fresh.knows(ANN)
    assert fresh.sample("coordination_losses_total", kind="wiped") == 1


async def test_while_milvus_cannot_be_read_nobody_serves_until_an_operator_says_so(place: Place) -> None:
    first, second = await place.replica("one"), await place.replica("two")
    await serving(first, second)
    await first.forget(ANN)
    assert place.shared is not None
    place.shared.fault = AWAY
    with structlog.testing.capture_logs() as logs:
        await place.wipe(first)
        await until(lambda: not first.serves and not second.serves, "both have noticed")
        await until(lambda: any(one["event"] == "coordination.restore_waits" for one in logs), "it says why")
        for one in (first, second):
            await one.try_again()
            assert not one.serves
        await first.link.client.set(f"{place.prefix}:{{ledger}}:accepted", "we know", ex=60)
        await serving(first, second)
    assert await second.knows(ANN)  # from the first one's own copies
    assert any(one["event"] == "coordination.loss_accepted" for one in logs)


async def test_a_forget_that_milvus_missed_is_copied_there_once_it_answers(place: Place) -> None:
    first = await place.replica("one")
    await serving(first)
    assert place.shared is not None
    place.shared.fault = AWAY
    await first.forget(ANN)
    assert not any(name.startswith("cut:") for name in place.shared.kept)
    place.shared.fault = None
    await until(lambda: any(name.startswith("cut:") for name in place.shared.kept), "it is there")  # type: ignore[union-attr]


async def test_a_first_start_and_a_redis_of_an_older_version_are_no_losses(place: Place) -> None:
    first = await place.replica("one")
    await serving(first)
    await first.forget(ANN)
    await first.consent().add(BOB, NO, after=None)
    # As the version before left it: no generation, and nothing in the data directory or in Milvus.
    assert place.shared is not None
    await first.stop()
    async with AsyncExitStack() as stack:
        link = await open_link(make_context(first.settings, stack))
        assert link is not None
        await link.client.delete(f"{place.prefix}:{{ledger}}:generation")
    shutil.rmtree(first.data)
    first.data.mkdir()
    place.shared.kept.clear()
    await first.start()
    await serving(first)
    assert await first.knows(ANN)
    assert (
        sum(first.sample("coordination_losses_total", kind=kind) for kind in ("wiped", "replaced", "rolled_back"))
        == 0
    )
    # And what was there before is copied, so that a wipe takes none of it.
    await until(lambda: "generation" in place.shared.kept, "it is copied")  # type: ignore[union-attr]
    await place.wipe(first)
    await until(lambda: first.sample("coordination_losses_total", kind="wiped"), "it is noticed")
    await serving(first)
    assert await first.knows(ANN)
    assert list(await first.consent().history(BOB)) == [NO]


async def test_a_new_replica_joins_and_one_that_was_away_brings_what_it_alone_knows(place: Place) -> None:
    first, second = await place.replica("one"), await place.replica("two")
    await serving(first, second)
    assert place.shared is not None
    place.shared.fault = AWAY
    await second.forget(ANN)
    await second.stop()
    place.shared.fault = None
    place.exchange()
    await until(lambda: first.sample("coordination_losses_total", kind="wiped"), "it is noticed")
    await serving(first)
    joins = await place.replica("three")
    await serving(joins)
    assert joins.sample("coordination_losses_total", kind="wiped") == 0
    await second.start()
    await serving(second)
    assert second.sample("coordination_losses_total", kind="replaced") == 1
    for one in (first, second, joins):
        one.erasing.forgotten.renew_all()
        assert await one.knows(ANN)


@pytest.mark.parametrize("file", [FILE, "mirror.db"])
@pytest.mark.parametrize("harm", ["cut", "doubled", "garbled", "newer"])
async def test_a_damaged_file_is_kept_aside_and_nothing_is_lost_with_it(place: Place, file: str, harm: str) -> None:
    first = await place.replica("one")
    await serving(first)
    await first.forget(ANN)
    await until(lambda: "generation" in place.shared.kept, "it is noted there")  # type: ignore[union-attr]
    await first.stop()
    body = (first.data / file).read_bytes()
    harmed = {"cut": body[: len(body) // 2], "doubled": body + body, "garbled": b"\xff" * len(body)}
    if harm != "newer":
        (first.data / file).write_bytes(harmed[harm])
    elif file == FILE:
        (first.data / file).write_bytes(body.replace(b'"version":1', b'"version":2'))
    else:
        with closing(sqlite3.connect(first.data / file)) as connection:
            connection.execute("PRAGMA user_version = 2")
    place.exchange()
    await first.start()
    await serving(first)
    assert await first.knows(ANN)
    if file == FILE or harm != "doubled":  # SQLite reads as much as the head of a file says
        assert list(first.data.glob(f"{file}.{'newer' if harm == 'newer' else 'damaged'}-*"))
        counted = first.metrics.registry.get_sample_value("memory_extproc_files_set_aside_total", {"file": file})
        assert counted == 1


async def test_where_there_is_no_copy_left_nobody_serves_until_an_operator_says_so(place: Place) -> None:
    place.shared = None
    first = await place.replica("one")
    await serving(first)
    await first.forget(ANN)
    await first.stop()
    (first.data / FILE).write_text("cut of")
    (first.data / "mirror.db").write_text("cut of")
    place.exchange()
    await first.start()
    assert not first.serves
    await first.try_again()
    assert not first.serves
    await first.link.client.set(f"{place.prefix}:{{ledger}}:accepted", "we know", ex=60)
    await serving(first)


async def test_two_fleets_on_one_collection_do_not_take_turns_in_recovering(place: Place) -> None:
    first = await place.replica("one")
    await serving(first)
    await first.forget(ANN)
    place.prefix = uuid4().hex
    other = await place.replica("other")
    await serving(other)
    assert await other.knows(ANN)  # the same memories, so the same forgets
    for one in (first, other) * 3:
        await one.renew()
        await one.try_again()
    losses = [
        sum(one.sample("coordination_losses_total", kind=kind) for kind in ("wiped", "replaced", "rolled_back"))
        for one in (first, other)
    ]
    assert losses == [0, 1]


async def test_a_forget_that_redis_lost_is_found_though_others_went_on_before_its_replica_was_back(
    place: Place,
) -> None:
    first, second = await place.replica("one"), await place.replica("two")
    await serving(first, second)
    assert place.shared is not None
    place.shared.fault = AWAY  # only the first one's own directory has a copy
    older = place.scratch / "older"
    shutil.copytree(place.files, older)
    await first.forget(ANN)
    await first.stop()  # both lose power, and Redis its last second
    place.exchange(keeping=older)
    latest = None
    for number in range(20):
        change = ConsentChange(Consent.ON, NO.at, f"{number}")
        assert await second.consent().add(BOB, change, after=latest)
        latest = change
    place.shared.fault = None
    await first.start()
    await serving(first, second)
    assert first.sample("coordination_losses_total", kind="rolled_back") == 1
    assert await first.knows(ANN)

    async def known() -> bool:
        second.erasing.forgotten.renew_all()
        try:
            return await second.knows(ANN)
        except TransientError:
            return False

    await until(known, "the other knows it")


class Unwritable(InMemoryMirror):
    """A way to Milvus on which reads pass and writes do not."""

    def __init__(self, of: InMemoryMirror) -> None:
        super().__init__()
        self.kept = of.kept

    async def put(self, records: Mapping[str, bytes]) -> None:
        raise AWAY


async def test_nobody_serves_before_every_replica_has_merged_what_it_alone_knows(place: Place) -> None:
    first = await place.replica("one")
    assert place.shared is not None
    place.shared = Unwritable(place.shared)
    second = await place.replica("two")
    await serving(first, second)
    await second.forget(ANN)
    await first.renew()
    assert second.erasing.fleet is not None
    merging, merge = asyncio.Event(), second.erasing.fleet.ledger.merge

    async def late(copies: Sequence[Copied]) -> None:
        await merging.wait()
        await merge(copies)

    second.erasing.fleet.ledger.merge = late  # type: ignore[method-assign]
    await place.wipe(first)
    await until(lambda: not first.serves and not second.serves, "both have noticed")
    with pytest.raises(AssertionError, match="waited"):
        await until(lambda: first.serves, "the first serves", seconds=1)
    merging.set()
    await serving(first, second)
    first.erasing.forgotten.renew_all()
    assert await first.knows(ANN)
