"""Forgetting over the memory API: two users and two tenants in every test."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from memory_extproc.api.call import Repeats
from memory_extproc.api.forget import ConsentMethods, ForgetCalls
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.concurrency import Backoff
from memory_extproc.coordination.sqlite import SoleReplica
from memory_extproc.curation.editor import MemoryCatalog
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.model import Consent, Embedded, ForgetScope, Memory, Owner
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryLedger
from tests.support.builders import ANN, BOB, OTHER_ANN, a_memory
from tests.support.memory_api import KEY, ApiStand, violations_of
from tests.support.waiting import until

CAROL = Owner(ANN.tenant, "carol")
EVERYBODY = (ANN, BOB, OTHER_ANN)


class AtOnce:
    async def purge(self, owner: Owner) -> bool:
        return owner in EVERYBODY


class ByWord:
    """Finds what has the query's words in it."""

    def __init__(self, stand: ApiStand) -> None:
        self._stand = stand

    async def about(self, owner: Owner, query: str, scope: ForgetScope) -> list[Memory]:
        pages = self._stand.store.pages(owner, 100, fresh=True)
        return [row.memory async for page in pages for row in page if query in row.memory.content]


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ApiStand]:
    made = ApiStand(tmp_path)
    ledger, sole = InMemoryLedger(), SoleReplica()
    forgotten = TombstoneIndex(ledger, sole)
    hiding = TombstoneFilteringStore(made.store, forgotten)
    made.partitions = Partitions(
        hiding, made.coordination, PartitionLimits(), made.metrics, now=made.now, forgotten=forgotten
    )
    holders = Erasable(
        replicas=sole,
        store=made.store,
        partitions=made.partitions,
        journal=made.journal,
        coordination=made.coordination,
        purges=AtOnce(),
    )
    forgetter = Forgetter(
        ledger,
        forgotten,
        holders,
        ForgetLimits(backoff=Backoff(timedelta(milliseconds=1))),
        made.metrics,
        now=made.now,
        seeks=ByWord(made),
    )
    catalogue = MemoryCatalog(made.partitions, made.partitions, made.journal, vector_bytes=1536, now=made.now)
    forgetting = ForgetCalls(forgetter, catalogue, Repeats(made.coordination, KEY))
    made.operations = {**forgetting.operations, **ConsentMethods(made.consent, forgetting.forget).operations}
    async with forgetter, made:
        for owner in EVERYBODY:
            await put(made, a_memory("likes tea", owner), a_memory("likes rum", owner, project="p"))
        yield made


async def told(stand: ApiStand, method: str, request: Any, *, as_: Owner) -> Any:
    return await stand.call(method, request, as_=as_)


async def refused(stand: ApiStand, method: str, request: Any, *, as_: Owner) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stand.call(method, request, as_=as_)
    return caught.value


async def put(stand: ApiStand, *memories: Memory) -> None:
    vectors = await stand.embedder.embed([memory.content for memory in memories])
    for memory, vector in zip(memories, vectors, strict=True):
        await stand.partitions.put(memory.owner, [Embedded(memory, vector)])


async def left(stand: ApiStand, owner: Owner) -> set[str]:
    return {row.memory.content async for page in stand.store.pages(owner, 10, fresh=True) for row in page}


async def test_one_memory_is_forgotten_and_the_call_sent_again_gets_the_same_answer(stand: ApiStand) -> None:
    request = pb.ForgetMemoryRequest(id=a_memory("likes tea").id, request_id="once")
    answer = await told(stand, "ForgetMemory", request, as_=ANN)
    assert answer.success
    assert answer.receipt.memories == 1
    assert await left(stand, ANN) == {"likes rum"}
    assert await left(stand, BOB) == await left(stand, OTHER_ANN) == {"likes tea", "likes rum"}
    again = await told(stand, "ForgetMemory", request, as_=ANN)
    assert again.receipt.id == answer.receipt.id


async def test_an_unknown_memory_and_somebody_elses_are_the_same_not_found(stand: ApiStand) -> None:
    for wanted in ("0" * 64, a_memory("likes tea", BOB).id, a_memory("likes tea", OTHER_ANN).id, "not an id!"):
        error = await refused(stand, "ForgetMemory", pb.ForgetMemoryRequest(id=wanted), as_=ANN)
        assert error.code() is grpc.StatusCode.NOT_FOUND
    for owner in EVERYBODY:
        assert await left(stand, owner) == {"likes tea", "likes rum"}


async def test_a_dry_run_forgets_nothing_and_its_token_confirms_a_query(stand: ApiStand) -> None:
    request = pb.ForgetMemoriesRequest(query="tea")
    error = await refused(stand, "ForgetMemories", request, as_=ANN)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    plan = await told(stand, "ForgetMemories", pb.ForgetMemoriesRequest(query="tea", dry_run=True), as_=ANN)
    assert [memory.content for memory in plan.would_forget] == ["likes tea"]
    assert (plan.total, plan.message) == (1, "1 memory would be forgotten")
    assert await left(stand, ANN) == {"likes tea", "likes rum"}
    confirmed = pb.ForgetMemoriesRequest(query="tea", confirmation_token=plan.confirmation_token)
    error = await refused(stand, "ForgetMemories", confirmed, as_=BOB)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    await told(stand, "ForgetMemories", confirmed, as_=ANN)
    assert await left(stand, ANN) == {"likes rum"}
    assert await left(stand, BOB) == {"likes tea", "likes rum"}


@pytest.mark.parametrize(
    ("project", "said"),
    [("p", "1 memory cannot be recalled any more; receipt "), ("q", "nothing of it was remembered; receipt ")],
)
async def test_the_answer_says_how_much_it_was(stand: ApiStand, project: str, said: str) -> None:
    request = pb.ForgetMemoriesRequest(project_id=project)
    answer = await told(stand, "ForgetMemories", request, as_=ANN)
    assert answer.message.startswith(said)


async def test_a_receipt_is_shown_to_its_own_user_alone(stand: ApiStand) -> None:
    done = await told(stand, "ForgetMemories", pb.ForgetMemoriesRequest(project_id="p"), as_=ANN)
    assert await left(stand, ANN) == {"likes tea"}
    wanted = pb.GetForgetReceiptRequest(receipt_id=done.receipt.id)
    found = await told(stand, "GetForgetReceipt", wanted, as_=ANN)
    assert found.scope == "project"
    for other in (BOB, OTHER_ANN):
        error = await refused(stand, "GetForgetReceipt", wanted, as_=other)
        assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_withdrawing_consent_can_forget_everything(stand: ApiStand) -> None:
    answer = await told(stand, "SetConsent", pb.SetConsentRequest(state="off", forget=True), as_=ANN)
    assert answer.receipt.scope == "user"
    assert await left(stand, ANN) == set()
    assert await stand.consent.get(ANN) is Consent.OFF
    assert await left(stand, BOB) == await left(stand, OTHER_ANN) == {"likes tea", "likes rum"}


async def test_every_fault_of_a_scope_is_named(stand: ApiStand) -> None:
    request = pb.ForgetMemoriesRequest(
        project_id="a\nb", session_id="x" * 300, type=["nonsense"], memory_ids=['"] or id != "'], query="\0"
    )
    error = await refused(stand, "ForgetMemories", request, as_=ANN)
    assert set(violations_of(error)) == {"project_id", "session_id", "type", "memory_ids", "query"}
    many = pb.ForgetMemoriesRequest(memory_ids=[f"{n}" for n in range(1001)])
    assert violations_of(await refused(stand, "ForgetMemories", many, as_=BOB)) == ["memory_ids"]


async def pages_of(stand: ApiStand, owner: Owner) -> AsyncIterator[Any]:
    token = ""
    while True:
        page = await stand.call(
            "ListMemories", pb.ListMemoriesRequest(limit=100, page_token=token), as_=owner, within=60
        )
        yield page
        token = page.next_page_token
        if not token:
            return


@pytest.mark.no_cover
async def test_ten_thousand_memories_are_paged_and_forgotten_within_a_bound(stand: ApiStand) -> None:
    """What is held in process of a person has its own bound; a call adds to it a page, not the person again."""
    vector = (await stand.embedder.embed(["x"]))[0]
    for start in range(0, 10_000, 500):
        rows = [a_memory(f"fact number {n} of many", CAROL) for n in range(start, start + 500)]
        await stand.store.put(CAROL, [Embedded(row, vector) for row in rows])
    seen = {one.id async for page in pages_of(stand, CAROL) for one in page.memories}
    assert len(seen) == 10_000
    # The first page began to hold the person in process; what that takes is not the pages'.
    await until(lambda: not stand.partitions.filling, "the person is held", seconds=60)
    assert stand.partitions.count_held(CAROL) is not None
    tracemalloc.start()
    try:
        count, tokens = 0, 12
        async for page in pages_of(stand, CAROL):
            count += len(page.memories)
            tokens -= 1
            if not tokens:
                break
        paged = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        done = await stand.call("ForgetMemories", pb.ForgetMemoriesRequest(), as_=CAROL, within=120)
        forgot = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1_200
    assert done.receipt.memories == 10_000
    assert await left(stand, CAROL) == set()
    assert paged < 1024 * 1024
    assert forgot < 8 * 1024 * 1024
