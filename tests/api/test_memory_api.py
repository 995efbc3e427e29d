"""The promises of the memory API to its clients, over real gRPC; two users of one tenant and a namesake in
another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2

from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.model import Consent, Embedded, MemoryState, MemoryType, Owner, Source
from memory_extproc.settings.api import Api
from tests.support.builders import ANN, BOB, MONDAY, OTHER_ANN, a_memory, a_message, a_turn, later
from tests.support.memory_api import ApiStand, detail_of, reason_of, violations_of
from tests.support.waiting import until

Code = grpc.StatusCode
NOBODY = "f" * 64
EVERYBODY = (ANN, BOB, OTHER_ANN)
TEA = "User likes green tea"


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[ApiStand]:
    async with ApiStand(tmp_path) as made:
        for owner in EVERYBODY:
            await made.remember(a_memory(f"User is called {owner.user} of {owner.tenant}", owner))
        yield made


async def refused(stand: ApiStand, method: str, request: Any, *, as_: Owner = ANN) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stand.call(method, request, as_=as_)
    return caught.value


async def listed(stand: ApiStand, *, as_: Owner = ANN, **filters: Any) -> list[str]:
    answer = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=100, **filters), as_=as_)
    assert all((one.user_id, one.tenant_id) == (as_.user, as_.tenant) for one in answer.memories)
    return [one.content for one in answer.memories]


def timestamp(**delta: float) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(later(**delta))
    return made


def struct(**values: Any) -> Struct:
    made = Struct()
    made.update(values)
    return made


# --- storing ---------------------------------------------------------------------------------------
async def test_what_is_stored_is_there_at_once_and_for_its_user_alone(stand: ApiStand) -> None:
    memory = await stand.told(
        TEA, as_=ANN, project_id="home", session_id="s-1", importance=0.9, metadata=struct(cups=3, kinds=["sencha"])
    )
    assert (memory.content, memory.type, memory.source, memory.state) == (TEA, "semantic", "api", "active")
    assert (memory.user_id, memory.tenant_id, memory.project_id, memory.session_id) == (
        "ann",
        "acme",
        "home",
        "s-1",
    )
    assert memory.importance == 0.9
    assert memory.metadata["cups"] == 3
    assert memory.created_at.ToDatetime(tzinfo=MONDAY.tzinfo) == MONDAY
    found = await stand.call("SearchMemories", pb.SearchMemoriesRequest(query="Which tea do I like?"), as_=ANN)
    assert [one.memory.content for one in found.results] == [TEA]
    assert found.results[0].relevance >= 0.6
    for other in (BOB, OTHER_ANN):
        assert TEA not in await listed(stand, as_=other)
        found = await stand.call("SearchMemories", pb.SearchMemoriesRequest(query="green tea"), as_=other)
        assert TEA not in [one.memory.content for one in found.results]


async def test_the_same_again_is_confirmed_kept_beside_or_rejected_as_the_client_wants(stand: ApiStand) -> None:
    first = await stand.told(TEA, as_=ANN)
    stand.time = later(hours=1)
    again = await stand.call(
        "StoreMemory", pb.StoreMemoryRequest(content="user likes Green Tea.", importance=0.8), as_=ANN
    )
    assert (again.decision, again.memory.id, again.memory.importance) == ("confirmed", first.id, 0.8)
    assert again.memory.updated_at.ToDatetime(tzinfo=MONDAY.tzinfo) == later(hours=1)
    error = await refused(stand, "StoreMemory", pb.StoreMemoryRequest(content=TEA, on_duplicate="reject"))
    assert (error.code(), reason_of(error)) == (Code.ALREADY_EXISTS, "DUPLICATE")
    assert detail_of(error, error_details_pb2.ErrorInfo).metadata["id"] == first.id
    both = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=TEA, on_duplicate="keep_both"), as_=ANN)
    assert both.decision == "added"
    assert both.memory.id != first.id
    bobs = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=TEA, on_duplicate="reject"), as_=BOB)
    assert bobs.decision == "added", "what another remembers is no duplicate"


async def test_a_newer_value_of_the_same_takes_the_place_of_the_older(stand: ApiStand) -> None:
    old = await stand.told("My budget for the Hawaii trip is $10,000", as_=ANN)
    stand.time = later(hours=1)
    new = await stand.call(
        "StoreMemory", pb.StoreMemoryRequest(content="My budget for the Hawaii trip is $12,000"), as_=ANN
    )
    assert new.decision == "replaced"
    shown = await stand.call("GetMemory", pb.GetMemoryRequest(id=old.id), as_=ANN)
    assert (shown.state, shown.superseded_by) == ("superseded", new.memory.id)
    history = await stand.call("GetMemory", pb.GetMemoryRequest(id=new.memory.id, history=True), as_=ANN)
    assert [one.id for one in history.history] == [old.id]


async def test_two_equal_texts_at_once_become_one_memory(stand: ApiStand) -> None:
    answers = await asyncio.gather(
        *(stand.call("StoreMemory", pb.StoreMemoryRequest(content=TEA), as_=ANN) for _ in range(8))
    )
    assert sorted(one.decision for one in answers) == ["added"] + ["confirmed"] * 7
    assert (await listed(stand)).count(TEA) == 1


async def test_a_call_that_is_sent_again_changes_nothing_and_gets_the_same_answer(stand: ApiStand) -> None:
    request = pb.StoreMemoryRequest(content=TEA, on_duplicate="keep_both", request_id="once-1")
    first = await stand.call("StoreMemory", request, as_=ANN)
    again = await stand.call("StoreMemory", request, as_=ANN)
    assert first == again
    assert (await listed(stand)).count(TEA) == 1
    error = await refused(
        stand, "StoreMemory", pb.StoreMemoryRequest(content="Something else", request_id="once-1")
    )
    assert (error.code(), reason_of(error)) == (Code.INVALID_ARGUMENT, "REQUEST_ID_REUSED")
    assert violations_of(error) == ["request_id"]
    for other in (BOB, OTHER_ANN):
        theirs = await stand.call("StoreMemory", request, as_=other)
        assert theirs.memory.id != first.memory.id, "ids of requests are each user's own"


async def test_a_call_that_failed_may_be_sent_again_with_its_request_id(stand: ApiStand) -> None:
    request = pb.StoreMemoryRequest(content=TEA, request_id="once-2")
    stand.store.weather.down = True
    error = await refused(stand, "StoreMemory", request)
    assert (error.code(), reason_of(error)) == (Code.UNAVAILABLE, "UNAVAILABLE")
    assert detail_of(error, error_details_pb2.RetryInfo).retry_delay.seconds == 1
    stand.store.weather.down = False
    assert (await stand.call("StoreMemory", request, as_=ANN)).memory.content == TEA
    assert (await listed(stand)).count(TEA) == 1


async def test_a_second_call_with_the_id_of_one_under_way_is_told_to_wait(stand: ApiStand) -> None:
    gate = stand.store.weather.hold("put")
    stand.store.weather.calls.clear()
    request = pb.StoreMemoryRequest(content=TEA, request_id="once-3")
    first = asyncio.ensure_future(stand.call("StoreMemory", request, as_=ANN))
    await until(lambda: "put" in stand.store.weather.calls, "the store is asked")
    error = await refused(stand, "StoreMemory", request)
    assert (error.code(), reason_of(error)) == (Code.ABORTED, "REQUEST_UNDER_WAY")
    gate.set()
    assert (await first).decision == "added"


async def test_a_change_that_was_begun_is_finished_though_its_caller_has_left(stand: ApiStand) -> None:
    gate = stand.store.weather.hold("put")
    calls = len(stand.store.weather.calls)
    request = pb.StoreMemoryRequest(content=TEA)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stand.call("StoreMemory", request, as_=ANN, within=0.3)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    assert "put" in stand.store.weather.calls[calls:]
    gate.set()
    assert (await listed(stand)).count(TEA) == 1


@pytest.mark.parametrize(
    ("fields", "faulty"),
    [
        ({"content": ""}, ["content"]),
        ({"content": " \n"}, ["content"]),
        ({"content": "x" * 8193}, ["content"]),
        ({"content": "\N{SNOWMAN}" * 2731}, ["content"]),
        ({"content": "a\0b"}, ["content"]),
        ({"type": "episodical"}, ["type"]),
        ({"project_id": "p" * 257}, ["project_id"]),
        ({"project_id": "a\nb"}, ["project_id"]),
        ({"session_id": "\x1fproject\x1fx"}, ["session_id"]),
        ({"importance": 1.1}, ["importance"]),
        ({"importance": float("nan")}, ["importance"]),
        ({"expires_at": timestamp(days=-1)}, ["expires_at"]),
        ({"expires_at": Timestamp(seconds=1 << 60)}, ["expires_at"]),
        ({"expires_at": Timestamp(seconds=1, nanos=-5)}, ["expires_at"]),
        ({"metadata": struct(a="x" * 8192)}, ["metadata"]),
        ({"metadata": struct(**{f"key{number}": 1 for number in range(65)})}, ["metadata"]),
        ({"metadata": struct(turn="x", said=1)}, ["metadata.said", "metadata.turn"]),
        ({"metadata": struct(n=float("inf"))}, ["metadata"]),
        ({"on_duplicate": "maybe"}, ["on_duplicate"]),
        ({"request_id": "x" * 129}, ["request_id"]),
        ({"request_id": "what ann said"}, ["request_id"]),
        ({"content": "", "type": "x", "importance": -1, "project_id": "\t"},
         ["content", "type", "project_id", "importance"]),
    ],
)  # fmt: skip
async def test_every_field_that_is_not_as_it_must_be_is_named(
    stand: ApiStand, fields: dict[str, Any], faulty: list[str]
) -> None:
    error = await refused(stand, "StoreMemory", pb.StoreMemoryRequest(**{"content": TEA, **fields}))
    assert (error.code(), reason_of(error)) == (Code.INVALID_ARGUMENT, "BAD_REQUEST")
    assert sorted(violations_of(error)) == sorted(faulty)
    assert all(f"{field}: " in (error.details() or "") for field in faulty)
    assert TEA not in (error.details() or "")
    assert TEA not in await listed(stand)


async def test_metadata_is_as_deep_as_it_may_be_and_no_deeper(stand: ApiStand) -> None:
    def nested(levels: int) -> Struct:
        value: Any = 1
        for _ in range(levels):
            value = {"in": value}
        return struct(**value)

    assert (await stand.told(TEA, as_=ANN, metadata=nested(8))).id
    error = await refused(stand, "StoreMemory", pb.StoreMemoryRequest(content="x", metadata=nested(9)))
    assert violations_of(error) == ["metadata"]
    error = await refused(stand, "StoreMemory", pb.StoreMemoryRequest(content="x", metadata=nested(25)))
    assert violations_of(error) == ["metadata"]


async def test_nothing_is_stored_of_somebody_who_allows_nothing_to_be_kept(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN)
    await stand.consent.set(ANN, Consent.RECALL_ONLY, by="user")
    change = pb.UpdateMemoryRequest(id=memory.id, memory=pb.Memory(content="x"))
    for method, request in (("StoreMemory", pb.StoreMemoryRequest(content="x")), ("UpdateMemory", change)):
        error = await refused(stand, method, request)
        assert (error.code(), reason_of(error)) == (Code.FAILED_PRECONDITION, "NO_CONSENT")
    search = pb.SearchMemoriesRequest(query="Which tea do I like?")
    assert (await stand.call("SearchMemories", search, as_=ANN)).total == 1
    await stand.consent.set(ANN, Consent.OFF, by="user")
    assert (await stand.call("SearchMemories", search, as_=ANN)).total == 0
    explained = await stand.call("ExplainRecall", pb.ExplainRecallRequest(text="tea?", force=True), as_=ANN)
    assert explained.outcome == "no_consent"
    assert TEA in await listed(stand), "what is there can always be seen by whom it is about"
    assert (await stand.told(TEA, as_=BOB)).id


# --- reading ---------------------------------------------------------------------------------------
async def test_a_memory_of_another_is_as_unknown_as_one_that_is_not_there(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN)
    seen = set()
    for id_ in (memory.id, NOBODY, "", "no id at all", "x" * 5000, 'x" or 1 == 1 or "'):
        for other in (BOB, OTHER_ANN):
            for method, request in (
                ("GetMemory", pb.GetMemoryRequest(id=id_)),
                ("UpdateMemory", pb.UpdateMemoryRequest(id=id_, memory=pb.Memory(content="Mine now"))),
            ):
                error = await refused(stand, method, request, as_=other)
                seen.add((error.code(), error.details(), reason_of(error)))
    assert seen == {(Code.NOT_FOUND, "no such memory", "NO_SUCH_MEMORY")}
    assert (await stand.call("GetMemory", pb.GetMemoryRequest(id=memory.id), as_=ANN)).content == TEA


async def test_another_users_id_takes_the_same_way_through_the_store_as_an_unknown_one(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN)
    ways = []
    for id_ in (memory.id, NOBODY):
        stand.store.weather.calls.clear()
        await refused(stand, "GetMemory", pb.GetMemoryRequest(id=id_), as_=BOB)
        ways.append(list(stand.store.weather.calls))
    assert ways[0] == ways[1]


async def test_pages_hold_everything_once_the_newest_first(stand: ApiStand) -> None:
    for owner in EVERYBODY:
        await stand.remember(
            *(
                a_memory(f"{owner.tenant} {owner.user} {n}", owner, created_at=later(minutes=n // 3))
                for n in range(25)
            )
        )
    seen: list[Any] = []
    token = ""
    while True:
        request = pb.ListMemoriesRequest(limit=7, page_token=token, text="ACME ann")
        page = await stand.call("ListMemories", request, as_=ANN)
        assert (page.total, page.limit) == (26, 7)
        seen.extend(page.memories)
        token = page.next_page_token
        if not token:
            break
    assert len({one.id for one in seen}) == len(seen) == 26
    assert [(-one.created_at.seconds, one.id) for one in seen] == sorted(
        (-one.created_at.seconds, one.id) for one in seen
    )


async def test_what_is_stored_while_pages_are_turned_moves_none_of_the_rest(stand: ApiStand) -> None:
    await stand.remember(*(a_memory(f"memory {n}", created_at=later(minutes=n)) for n in range(6)))
    first = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=3, text="memory"), as_=ANN)
    await stand.remember(a_memory("memory new", created_at=later(hours=1)))
    request = pb.ListMemoriesRequest(limit=10, text="memory", page_token=first.next_page_token)
    second = await stand.call("ListMemories", request, as_=ANN)
    assert [one.content for one in [*first.memories, *second.memories]] == [f"memory {n}" for n in range(5, -1, -1)]


async def test_a_page_token_counts_for_one_user_one_filter_and_one_hour_and_as_it_was_written(
    stand: ApiStand,
) -> None:
    for owner in EVERYBODY:
        await stand.remember(*(a_memory(f"memory {n}", owner) for n in range(4)))
    page = await stand.call("ListMemories", pb.ListMemoriesRequest(limit=2), as_=ANN)
    token = page.next_page_token
    assert token
    changed = token[:-2] + ("AA" if token[-2:] != "AA" else "BB")
    bad: list[tuple[Owner, Any]] = [
        (BOB, pb.ListMemoriesRequest(page_token=token)),
        (OTHER_ANN, pb.ListMemoriesRequest(page_token=token)),
        (ANN, pb.ListMemoriesRequest(page_token=token, type=["semantic"])),
        (ANN, pb.ListMemoriesRequest(page_token=changed)),
        (ANN, pb.ListMemoriesRequest(page_token=token[:-4])),
        (ANN, pb.ListMemoriesRequest(page_token="nonsense")),
        (ANN, pb.ListMemoriesRequest(page_token="!" * 10_000)),
        (ANN, pb.ListMemoriesRequest(page_token="\u00e9\u00e9")),
    ]
    for owner, request in bad:
        error = await refused(stand, "ListMemories", request, as_=owner)
        assert (error.code(), reason_of(error)) == (Code.INVALID_ARGUMENT, "BAD_PAGE_TOKEN")
        assert violations_of(error) == ["page_token"]
    assert (await stand.call("ListMemories", pb.ListMemoriesRequest(page_token=token), as_=ANN)).memories
    stand.time = MONDAY + timedelta(hours=1)
    error = await refused(stand, "ListMemories", pb.ListMemoriesRequest(page_token=token))
    assert reason_of(error) == "BAD_PAGE_TOKEN"


async def test_each_filter_narrows_and_values_of_one_add_up(stand: ApiStand) -> None:
    for owner in (ANN, BOB):
        await stand.remember(
            a_memory("a fact at work", owner, project="work", session="s-1"),
            a_memory("a procedure", owner, type=MemoryType.PROCEDURAL, created_at=later(days=1)),
            a_message("a message", owner, session="s-2", created_at=later(days=2)),
            a_memory("an old fact", owner, state=MemoryState.SUPERSEDED),
            a_memory("told", owner, source=Source.API, created_at=later(days=3)),
        )
    name = "User is called ann of acme"
    assert await listed(stand) == ["told", "a message", "a procedure", *sorted_by_id("a fact at work", name)]
    assert await listed(stand, project_id="work") == ["a fact at work"]
    assert await listed(stand, session_id="s-2") == ["a message"]
    assert await listed(stand, type=["procedural", "episodic"]) == ["a message", "a procedure"]
    assert await listed(stand, type=["procedural, episodic"]) == ["a message", "a procedure"]
    assert await listed(stand, source=["api"]) == ["told"]
    assert await listed(stand, state=["superseded"]) == ["an old fact"]
    assert len(await listed(stand, state=["any"])) == 6
    assert await listed(stand, created_after=timestamp(days=1), created_before=timestamp(days=3)) == [
        "a message", "a procedure",
    ]  # fmt: skip
    assert await listed(stand, text="WORK  fact") == ["a fact at work"]
    assert await listed(stand, text="no such words") == []
    error = await refused(
        stand,
        "ListMemories",
        pb.ListMemoriesRequest(
            type=["x"], source=["y"], state=["z"], limit=101, text="t" * 257, project_id="\n",
            created_after=Timestamp(seconds=-(1 << 50)),
        ),
    )  # fmt: skip
    assert sorted(violations_of(error)) == [
        "created_after", "limit", "project_id", "source", "state", "text", "type",
    ]  # fmt: skip


def sorted_by_id(*contents: str) -> list[str]:
    return [one.content for one in sorted(map(a_memory, contents), key=lambda one: one.id)]


async def test_a_search_is_narrowed_limited_and_held_to_its_threshold(stand: ApiStand) -> None:
    for owner in EVERYBODY:
        await stand.remember(
            *(a_memory(f"User likes green tea number {n}", owner, project=f"p{n % 2}") for n in range(6))
        )

    async def search(**fields: Any) -> Any:
        request = pb.SearchMemoriesRequest(query="Which green tea do I like?", **fields)
        return await stand.call("SearchMemories", request, as_=ANN)

    assert (await search(limit=2)).total == 2
    assert {one.memory.project_id for one in (await search(project_id="p1")).results} == {"p1"}
    assert (await search(type=["procedural"])).total == 0
    assert (await search(threshold=1.0)).total == 0
    relevances = [one.relevance for one in (await search(threshold=0.0, limit=100)).results]
    assert relevances == sorted(relevances, reverse=True)
    error = await refused(stand, "SearchMemories", pb.SearchMemoriesRequest(limit=-1, threshold=2, type=["x"]))
    assert sorted(violations_of(error)) == ["limit", "query", "threshold", "type"]


async def test_a_recall_is_explained_candidate_by_candidate(stand: ApiStand) -> None:
    await stand.remember(a_memory(TEA), a_memory("User dislikes rain"), a_memory("Bob's tea", BOB))
    explained = await stand.call("ExplainRecall", pb.ExplainRecallRequest(text="Which tea do I like?"), as_=ANN)
    assert (explained.outcome, explained.path) == ("used", "hybrid")
    assert explained.total == 3
    verdicts = {one.memory.content: one.verdict for one in explained.considered}
    assert verdicts[TEA] == "injected"
    assert "Bob's tea" not in verdicts
    assert TEA in explained.block
    assert explained.considered[0].features
    greeting = await stand.call("ExplainRecall", pb.ExplainRecallRequest(text="Hello!"), as_=ANN)
    assert greeting.gate == greeting.outcome == "skipped_greeting"
    assert not greeting.considered
    error = await refused(stand, "ExplainRecall", pb.ExplainRecallRequest(text=" ", earlier=["x"] * 33))
    assert sorted(violations_of(error)) == ["earlier", "text"]


# --- correcting ------------------------------------------------------------------------------------
async def test_a_correction_keeps_the_id_and_what_was_said_before(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN, importance=0.9)
    stand.time = later(hours=1)
    request = pb.UpdateMemoryRequest(id=memory.id, memory=pb.Memory(content="User likes black coffee"))
    corrected = await stand.call("UpdateMemory", request, as_=ANN)
    assert (corrected.id, corrected.content, corrected.importance) == (memory.id, "User likes black coffee", 0.9)
    assert corrected.updated_at.ToDatetime(tzinfo=MONDAY.tzinfo) == later(hours=1)
    shown = await stand.call("GetMemory", pb.GetMemoryRequest(id=memory.id, history=True), as_=ANN)
    assert [(one.content, one.state, one.superseded_by) for one in shown.history] == [
        (TEA, "superseded", memory.id)
    ]
    coffee, tea = [
        await stand.call("SearchMemories", pb.SearchMemoriesRequest(query=query), as_=ANN)
        for query in ("Do I like black coffee?", "Which green tea do I like?")
    ]
    assert [one.memory.content for one in coffee.results] == ["User likes black coffee"]
    assert TEA not in [one.memory.content for one in tea.results]


async def test_a_mask_names_what_changes_and_clears_what_is_absent(stand: ApiStand) -> None:
    memory = await stand.told(
        TEA, as_=ANN, project_id="home", importance=0.9, expires_at=timestamp(days=9), metadata=struct(cups=3)
    )
    request = pb.UpdateMemoryRequest(
        id=memory.id,
        memory=pb.Memory(content="passed over", importance=0.1),
        update_mask=FieldMask(paths=["importance", "expires_at", "metadata", "project_id", "type"]),
    )
    changed = await stand.call("UpdateMemory", request, as_=ANN)
    assert (changed.content, changed.importance, changed.project_id) == (TEA, 0.1, "")
    assert not changed.HasField("expires_at")
    assert "cups" not in changed.metadata.fields
    for mask in (["id"], ["user_id"], ["state", "content"], ["metadata.cups"]):
        bad = pb.UpdateMemoryRequest(id=memory.id, memory=pb.Memory(content="x"), update_mask=FieldMask(paths=mask))
        assert violations_of(await refused(stand, "UpdateMemory", bad)) == ["update_mask"]
    assert violations_of(await refused(stand, "UpdateMemory", pb.UpdateMemoryRequest(id=memory.id))) == [
        "update_mask"
    ]
    owned = pb.Memory(content="x", user_id="bob", tenant_id="globex", state="deleted", source="llm")
    kept = await stand.call("UpdateMemory", pb.UpdateMemoryRequest(id=memory.id, memory=owned), as_=ANN)
    assert (kept.user_id, kept.tenant_id, kept.state, kept.source) == ("ann", "acme", "active", "api")


async def test_history_is_not_corrected_and_nothing_is_written_for_no_change(stand: ApiStand) -> None:
    old = a_memory("an old fact", state=MemoryState.SUPERSEDED, superseded_by=NOBODY)
    await stand.remember(old)
    request = pb.UpdateMemoryRequest(id=old.id, memory=pb.Memory(content="x"))
    error = await refused(stand, "UpdateMemory", request)
    assert (error.code(), reason_of(error)) == (Code.FAILED_PRECONDITION, "NOT_ACTIVE")
    memory = await stand.told(TEA, as_=ANN)
    writes = stand.store.weather.calls.count("put")
    same = await stand.call(
        "UpdateMemory", pb.UpdateMemoryRequest(id=memory.id, memory=pb.Memory(content=TEA)), as_=ANN
    )
    assert same == memory
    assert stand.store.weather.calls.count("put") == writes


async def test_corrections_at_once_all_leave_their_version(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN)
    requests = [pb.UpdateMemoryRequest(id=memory.id, memory=pb.Memory(content=f"tea {n}")) for n in range(5)]
    await asyncio.gather(*(stand.call("UpdateMemory", request, as_=ANN) for request in requests))
    shown = await stand.call("GetMemory", pb.GetMemoryRequest(id=memory.id, history=True), as_=ANN)
    said = {shown.content, *(one.content for one in shown.history)}
    assert said == {TEA, *(f"tea {n}" for n in range(5))}


# --- counting, sessions, consent -------------------------------------------------------------------
async def test_stats_count_a_users_memories_and_what_is_still_to_be_learned(stand: ApiStand) -> None:
    stand.time = later(days=40)
    for owner in EVERYBODY:
        await stand.remember(
            a_memory("old", owner, state=MemoryState.SUPERSEDED),
            a_message("said", owner, created_at=later(days=39, hours=12)),
            a_message("asked?", owner, created_at=later(days=35), source=Source.QUESTION),
        )
        await stand.journal.append(a_turn("waiting", owner=owner))
    stats = await stand.call("GetStats", pb.GetStatsRequest(), as_=ANN)
    assert (stats.total, stats.recallable, stats.backlog, stats.dead_letters) == (4, 2, 1, 0)
    assert dict(stats.by_type) == {"semantic": 1, "episodic": 2}
    assert dict(stats.by_state) == {"active": 3, "superseded": 1}
    assert dict(stats.by_source) == {"rules": 1, "verbatim": 1, "question": 1}
    assert dict(stats.by_age) == {"year": 1, "week": 1, "day": 1}
    assert stats.bytes > 4 * 1536
    assert stats.oldest_at.ToDatetime(tzinfo=MONDAY.tzinfo) == MONDAY


async def test_a_session_is_ended_for_its_user(stand: ApiStand) -> None:
    await stand.call("EndSession", pb.EndSessionRequest(session_id="s-1"), as_=ANN)
    (ended,) = stand.learns.ended
    assert (ended.owner, ended.session) == (ANN, "s-1")
    assert violations_of(await refused(stand, "EndSession", pb.EndSessionRequest())) == ["session_id"]


async def test_a_session_is_ended_behind_the_turns_that_are_on_their_way(stand: ApiStand) -> None:
    before: list[int] = []

    async def settling() -> None:
        before.append(len(stand.learns.ended))

    stand.learns.settling = settling
    await stand.call("EndSession", pb.EndSessionRequest(session_id="s-1"), as_=ANN)
    assert before == [0]
    assert len(stand.learns.ended) == 1


async def test_consent_is_given_and_withdrawn_with_its_history(stand: ApiStand) -> None:
    before = await stand.call("GetConsent", pb.GetConsentRequest(), as_=ANN)
    assert (before.state, before.by_default, list(before.history)) == ("on", True, [])
    stand.time = later(hours=1)
    await stand.call("SetConsent", pb.SetConsentRequest(state="off"), as_=ANN)
    stand.time = later(hours=2)
    await stand.call("SetConsent", pb.SetConsentRequest(state="recall_only", user_id="ann"), as_=BOB, roles="admin")
    after = await stand.call("GetConsent", pb.GetConsentRequest(), as_=ANN)
    assert (after.state, after.by_default) == ("recall_only", False)
    assert [(one.state, one.by) for one in after.history] == [("off", "user"), ("recall_only", "admin")]
    for other in (BOB, OTHER_ANN):
        assert (await stand.call("GetConsent", pb.GetConsentRequest(), as_=other)).state == "on"
    for request in (pb.SetConsentRequest(), pb.SetConsentRequest(state="perhaps")):
        assert violations_of(await refused(stand, "SetConsent", request)) == ["state"]
    forget = pb.SetConsentRequest(state="on", forget=True)
    assert violations_of(await refused(stand, "SetConsent", forget)) == ["forget"]


# --- the service as a whole ------------------------------------------------------------------------
async def test_a_read_beyond_the_servers_patience_is_given_up(tmp_path: Path) -> None:
    stand = ApiStand(tmp_path)
    stand.limits = Api(timeout=timedelta(seconds=1))
    async with stand:
        gate = stand.store.weather.hold("heads")
        error = await refused(stand, "GetStats", pb.GetStatsRequest())
        assert (error.code(), reason_of(error)) == (Code.DEADLINE_EXCEEDED, "OUT_OF_TIME")
        gate.set()
        assert (await stand.call("GetStats", pb.GetStatsRequest(), as_=ANN)).total == 0


async def test_a_fault_of_ours_tells_nobody_what_it_was(stand: ApiStand) -> None:
    stand.embedder.failing = RuntimeError("the words of Ann")
    error = await refused(stand, "StoreMemory", pb.StoreMemoryRequest(content=TEA))
    assert (error.code(), reason_of(error)) == (Code.INTERNAL, "INTERNAL")
    assert "Ann" not in str(error.trailing_metadata())
    assert "Ann" not in (error.details() or "")
    assert stand.sample("api_seconds_count", method="StoreMemory", code="INTERNAL") == 1


async def test_a_method_that_is_not_offered_says_so(stand: ApiStand) -> None:
    for owner in EVERYBODY:
        error = await refused(stand, "GetForgetReceipt", pb.GetForgetReceiptRequest(receipt_id="x"), as_=owner)
        assert (error.code(), reason_of(error)) == (Code.UNIMPLEMENTED, "NOT_OFFERED")


# --- bringing back ---------------------------------------------------------------------------------
async def test_what_was_deleted_softly_comes_back_and_can_be_recalled_again(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN)

    def soft(row: Embedded) -> list[Embedded]:
        noted = row.memory.provenance.replace(retired="chat", retired_at=1, retired_from="active")
        return [Embedded(replace(row.memory, state=MemoryState.DELETED, provenance=noted), row.vector)]

    assert await stand.partitions.change(ANN, memory.id, soft)
    assert (
        await refused(stand, "GetMemory", pb.GetMemoryRequest(id=memory.id))
    ).code() is grpc.StatusCode.NOT_FOUND
    request = pb.RestoreMemoryRequest(id=memory.id)
    assert (await refused(stand, "RestoreMemory", request, as_=BOB)).code() is grpc.StatusCode.NOT_FOUND
    restored = await stand.call("RestoreMemory", request, as_=ANN)
    assert (restored.id, restored.content, restored.state) == (memory.id, TEA, "active")
    assert "retired" not in dict(restored.metadata)
    found = await stand.call(
        "SearchMemories", pb.SearchMemoriesRequest(query="Which green tea do I like?"), as_=ANN
    )
    assert TEA in [one.memory.content for one in found.results]
    assert (await stand.call("RestoreMemory", request, as_=ANN)).updated_at == restored.updated_at


async def test_what_is_gone_for_good_does_not_come_back(stand: ApiStand) -> None:
    memory = await stand.told(TEA, as_=ANN)
    await stand.partitions.delete(ANN, [memory.id])
    for id_ in (memory.id, "f" * 64, "nonsense"):
        error = await refused(stand, "RestoreMemory", pb.RestoreMemoryRequest(id=id_))
        assert error.code() is grpc.StatusCode.NOT_FOUND


# --- learning from a text ----------------------------------------------------------------------------
TWO = "My name is Ann Lee and I work for Initech. My sister Beth lives in Oslo."


async def test_with_extract_each_fact_that_a_text_states_is_a_memory_of_its_own(stand: ApiStand) -> None:
    stored = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=TWO, extract=True), as_=ANN)
    facts = [
        "User's name is Ann Lee",
        "User works for Initech",
        "User's sister is Beth",
        "User's sister Beth lives in Oslo",
    ]
    assert stored.memory.content == TWO
    assert [one.content for one in stored.extracted] == facts
    assert {one.source for one in stored.extracted} == {"rules"}
    assert set(facts) <= set(await listed(stand))
    assert not set(facts) & set(await listed(stand, as_=BOB))


async def test_a_fact_of_a_text_takes_the_place_of_what_it_contradicts_and_confirms_what_it_repeats(
    stand: ApiStand,
) -> None:
    first = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=TWO, extract=True), as_=ANN)
    anew = "I work for Globex and my sister Beth lives in Oslo."
    stand.time = later(hours=1)
    second = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=anew, extract=True), as_=ANN)
    assert "User works for Initech" not in await listed(stand)
    assert "User works for Globex" in await listed(stand)
    known = {one.content: one.id for one in first.extracted}
    assert known["User's sister Beth lives in Oslo"] in {one.id for one in second.extracted}


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (
            "User prefers short answers. The user lives in Oslo and works as a nurse.",
            ["User prefers short answers", "User lives in Oslo", "User works as a nurse"],
        ),
        ("The user's sister Beth moved to York.", ["User's sister is Beth", "User's sister Beth lives in York"]),
        (
            "- lives in Bath\n- works for Monzo\n- allergic to cats",
            ["User lives in Bath", "User works for Monzo", "User is allergic to cats"],
        ),
        (
            "Name: Jonas. Born in Kiel. Works as a plumber. Vegan.",
            ["User was born in Kiel", "User works as a plumber", "User is vegan"],
        ),
        ("Is he vegan?", []),
        ("Has anyone seen Beth? A user clicked.", []),
    ],
)
async def test_with_extract_a_text_about_the_user_is_read_as_their_own_words(
    content: str, facts: list[str], stand: ApiStand
) -> None:
    stored = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=content, extract=True), as_=ANN)
    assert stored.memory.content == content
    assert [one.content for one in stored.extracted] == facts


async def test_with_extract_a_change_keeps_the_details_that_it_does_not_contradict(stand: ApiStand) -> None:
    wedding = "Our wedding is on June 6 in Kinsale. My budget is 900 euros."
    await stand.call("StoreMemory", pb.StoreMemoryRequest(content=wedding, extract=True), as_=ANN)
    stand.time += timedelta(minutes=1)
    moved = pb.StoreMemoryRequest(content="The wedding is moved to June 27.", extract=True)
    stored = await stand.call("StoreMemory", moved, as_=ANN)
    assert [one.content for one in stored.extracted] == ["User's wedding is on June 27 in Kinsale"]


async def test_without_extract_a_text_stays_one_memory(stand: ApiStand) -> None:
    before = await listed(stand)
    stored = await stand.call("StoreMemory", pb.StoreMemoryRequest(content=TWO), as_=ANN)
    assert not stored.extracted
    assert sorted(await listed(stand)) == sorted([*before, TWO])


async def test_a_text_that_states_nothing_of_its_writer_is_stored_and_nothing_is_learned(stand: ApiStand) -> None:
    stored = await stand.call(
        "StoreMemory", pb.StoreMemoryRequest(content="The office opens at nine.", extract=True), as_=ANN
    )
    assert (stored.decision, list(stored.extracted)) == ("added", [])


async def test_a_text_too_long_to_learn_from_is_refused_with_the_limit_and_not_stored(stand: ApiStand) -> None:
    long = "I live in Oslo. " * 300
    error = await refused(stand, "StoreMemory", pb.StoreMemoryRequest(content=long, extract=True))
    assert error.code() is Code.INVALID_ARGUMENT
    (violation,) = detail_of(error, error_details_pb2.BadRequest).field_violations
    assert violation.field == "content"
    assert violation.description == f"at most 4000 characters with extract; {len(long)} were sent"
    assert long not in await listed(stand)


async def test_the_same_request_again_gives_the_same_facts_and_learns_nothing_more(stand: ApiStand) -> None:
    request = pb.StoreMemoryRequest(content=TWO, extract=True, request_id="once")
    first = await stand.call("StoreMemory", request, as_=ANN)
    before = await listed(stand)
    again = await stand.call("StoreMemory", request, as_=ANN)
    assert [one.id for one in again.extracted] == [one.id for one in first.extracted]
    assert await listed(stand) == before
