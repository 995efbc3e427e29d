"""The promises of every memory store, over the fake, a Lite file, a Lite server and a real Milvus."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from memory_extproc.encryption.codecs import EncryptedStore
from memory_extproc.encryption.keys import WrappedKeys, sealable
from memory_extproc.errors import PermanentError
from memory_extproc.model import (
    Conditions,
    Embedded,
    Hit,
    MemoryState,
    MemoryType,
    Owner,
    Provenance,
    Rating,
    Role,
    Scope,
    Source,
    Vector,
)
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import MemoryStore
from memory_extproc.store.milvus.options import CONTENT_BYTES
from memory_extproc.testing.adapters import InMemoryStore
from tests.support.builders import MONDAY, a_memory
from tests.support.in_memory import InMemoryKeyTable, InMemoryMasterKey
from tests.support.milvus_stores import (
    DIMENSION,
    a_row,
    milvus,
    milvus_lite,
    on_monday,
    opened,
    options,
    pointing,
    somebody,
)
from tests.support.waiting import until

__all__ = ["milvus", "milvus_lite"]
pytestmark = pytest.mark.asyncio(loop_scope="module")
EVERYTHING = Scope()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        "transient",
        "sealed",
        "sealed_lite",
        "lite",
        "lite_server",
        pytest.param("milvus", marks=pytest.mark.server),
    ],
)
async def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MemoryStore]:
    if request.param == "transient":
        yield InMemoryStore(DIMENSION, now=on_monday, finds_words=True)
        return
    if request.param == "sealed":
        yield sealed(InMemoryStore(DIMENSION, now=on_monday, finds_words=True))
        return
    path: Path = tmp_path_factory.mktemp("store")
    fixture = {"lite_server": "milvus_lite", "milvus": "milvus"}.get(request.param)
    address = request.getfixturevalue(fixture).address if fixture else ""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(options(path, address)))
        yield sealed(store) if request.param == "sealed_lite" else store


def sealed(store: MemoryStore) -> EncryptedStore:
    keys = WrappedKeys(InMemoryKeyTable(), InMemoryMasterKey())
    return EncryptedStore(store, keys, Metrics(CollectorRegistry(), "test"), content_bytes=CONTENT_BYTES)


async def settled(store: MemoryStore, owner: Owner, row: Embedded) -> None:
    """A search may lag behind put: until *row* is found."""

    async def found() -> bool:
        searched = await store.nearest(owner, row.vector, 50, EVERYTHING)
        return any(one.memory.id == row.memory.id for one in searched.found)

    await until(found, "the row is found")


def contents(found: Sequence[Hit]) -> list[str]:
    return [one.memory.content for one in found]


async def all_of(store: MemoryStore, owner: Owner, size: int = 100) -> list[Embedded]:
    return [row async for page in store.pages(owner, size, fresh=True) for row in page]


async def test_a_memory_comes_back_as_it_was_put(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    memory = replace(
        a_memory('Ann\'s "budget" is 10\u202f000 € \\ year\n🌴', ann),
        project="hawaii",
        session="s-1",
        seq=7,
        role=Role.USER,
        type=MemoryType.EPISODIC,
        source=Source.VERBATIM,
        origin="chat_completions",
        state=MemoryState.SUPERSEDED,
        importance=0.7,
        access_count=3,
        valid_from=MONDAY - timedelta(days=3),
        valid_to=MONDAY,
        expires_at=MONDAY + timedelta(days=3),
        superseded_by="f" * 64,
        embed_model="all-MiniLM-L6-v2/int8",
        provenance=Provenance(
            confirmations=2, extra={"words": 'žluťoučký "kůň"', "nested": {"a": [1, 2.5, None, True]}}
        ),
    )
    await store.put(ann, [Embedded(memory, pointing(0.6, 0.3))])
    assert list(await store.get(ann, [memory.id])) == [memory]
    (fetched,) = await store.fetch(ann, [memory.id])
    assert fetched.memory == memory
    assert np.array_equal(fetched.vector, pointing(0.6, 0.3))
    (paged,) = await all_of(store, ann)
    assert paged.memory == memory
    assert np.array_equal(paged.vector, pointing(0.6, 0.3))


async def test_everybody_of_whom_there_is_a_row_is_listed_once(store: MemoryStore) -> None:
    """Somebody called as another's tenant is somebody else; who has no row any more is not listed."""
    ann, bob, gone = somebody()
    for owner in (ann, bob, gone):
        rows = [Embedded(a_memory(f"row {number}", owner), pointing(0.1)) for number in range(3)]
        await store.put(owner, rows)
    await store.delete_owner(gone)
    inner = store._store if isinstance(store, EncryptedStore) else store
    listed = [owner async for page in inner.owners() for owner in page]  # type: ignore[attr-defined]
    assert {ann, bob} <= set(listed)
    assert gone not in listed
    assert len(listed) == len(set(listed))


async def test_the_nearest_come_best_first_and_no_more_than_asked_for(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    rows = [a_row(f"at {part}", ann, pointing(part)) for part in (0.1, 0.9, 0.5, -0.7)]
    await store.put(ann, rows)
    await settled(store, ann, rows[-1])
    searched = await store.nearest(ann, pointing(1.0), 3, EVERYTHING)
    assert contents(searched.found) == ["at 0.9", "at 0.5", "at 0.1"]
    assert [one.cosine for one in searched.found] == pytest.approx([0.9, 0.5, 0.1], abs=1e-4)
    assert searched.path == "store"


async def test_what_is_not_recallable_is_kept_but_never_found(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    kept = [
        a_row("superseded", ann, state=MemoryState.SUPERSEDED),
        a_row("quarantined", ann, state=MemoryState.QUARANTINED),
        a_row("deleted", ann, state=MemoryState.DELETED),
        a_row("expired", ann, expires_at=MONDAY),
        a_row("a question?", ann, source=Source.QUESTION),
    ]
    shown = a_row("good until tomorrow", ann, expires_at=MONDAY + timedelta(days=1))
    await store.put(ann, [*kept, shown])
    await settled(store, ann, shown)
    assert contents((await store.nearest(ann, pointing(1.0), 10, EVERYTHING)).found) == ["good until tomorrow"]
    assert await store.count(ann) == 6
    assert {row.memory.id for row in await all_of(store, ann)} == {row.memory.id for row in [*kept, shown]}


async def test_a_scope_narrows_by_project_and_by_type(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    rows = [
        a_row("fact of hawaii", ann, project="hawaii"),
        a_row("step of hawaii", ann, project="hawaii", type=MemoryType.PROCEDURAL),
        a_row("fact of nothing", ann, source=Source.API),
    ]
    await store.put(ann, rows)
    for row in rows:
        await settled(store, ann, row)

    async def found(scope: Scope) -> set[str]:
        return set(contents((await store.nearest(ann, pointing(1.0), 10, scope)).found))

    assert await found(Scope(project="hawaii")) == {"fact of hawaii", "step of hawaii"}
    assert await found(Scope(types=frozenset({MemoryType.SEMANTIC}))) == {"fact of hawaii", "fact of nothing"}
    assert await found(Scope("hawaii", frozenset({MemoryType.PROCEDURAL}))) == {"step of hawaii"}
    assert await found(Scope(types=frozenset())) == set()
    assert await found(Scope(sources=frozenset({Source.API}))) == {"fact of nothing"}
    assert await found(Scope(sources=frozenset())) == set()
    assert await found(Scope(project='no"such')) == set()


async def words_of(store: MemoryStore, owner: Owner, text: str, scope: Scope = EVERYTHING) -> set[str]:
    found = await store.search_text(owner, text, 10, scope)
    assert all(row.memory.owner == owner for row in found)
    return {row.memory.content for row in found}


async def test_a_store_that_knows_words_finds_by_them_and_another_finds_nothing(store: MemoryStore) -> None:
    ann, bob, other_ann = somebody()
    await store.put(
        ann,
        [
            a_row("Ann likes Oolong tea", ann, origin="route=home"),
            a_row("Ann has a dog", ann),
            a_row("Ann liked oolong once", ann, state=MemoryState.SUPERSEDED),
            a_row("Does Ann like oolong?", ann, source=Source.QUESTION),
            a_row("Oolong till Monday", ann, expires_at=MONDAY),
            a_row("oolong at work", ann, project="work", type=MemoryType.EPISODIC),
        ],
    )
    await store.put(bob, [a_row("Bob likes oolong", bob)])
    await store.put(other_ann, [a_row("The other Ann likes oolong", other_ann)])
    if not store.finds_words:
        assert await words_of(store, ann, "oolong") == set()
        return

    async def shown() -> bool:
        return len(await words_of(store, ann, "Which oolong?")) == 2

    await until(shown, "what was put is found by its words")
    assert await words_of(store, ann, "Which OOLONG, and where?") == {"Ann likes Oolong tea", "oolong at work"}
    assert await words_of(store, ann, "oolong", Scope(project="work")) == {"oolong at work"}
    assert await words_of(store, ann, "oolong", Scope(types=frozenset({MemoryType.EPISODIC}))) == {"oolong at work"}
    assert await words_of(store, ann, "oolong", Scope(origins=("route=*",))) == {"Ann likes Oolong tea"}
    (best, *_) = await store.search_text(ann, "oolong tea", 1, EVERYTHING)
    assert best.memory.content == "Ann likes Oolong tea"
    assert np.array_equal(best.vector, pointing(1.0))


@pytest.mark.parametrize(
    "odd", ["", " ", "???", "\n", "🌴", "'\"\\", "a" * 100_000, "zzz " * 30_000, "\ud800", "你好"]
)
async def test_any_question_may_be_asked_of_words(store: MemoryStore, odd: str) -> None:
    ann, _, _ = somebody()
    await store.put(ann, [a_row("Ann likes tea", ann)])
    assert await words_of(store, ann, odd) == set()


async def test_no_search_and_no_reading_shows_another_owners_row(store: MemoryStore) -> None:
    ann, bob, other_ann = somebody()
    rows = {owner: a_row(f"of {owner.tenant}", owner) for owner in (ann, bob, other_ann)}
    for owner, row in rows.items():
        await store.put(owner, [row])
    ids = [row.memory.id for row in rows.values()]
    for owner, row in rows.items():
        await settled(store, owner, row)
        mine = [row.memory]
        assert [one.memory for one in (await store.nearest(owner, pointing(1.0), 10, EVERYTHING)).found] == mine
        assert list(await store.get(owner, ids)) == mine
        assert [one.memory for one in await store.fetch(owner, ids)] == mine
        assert [one.memory for one in await all_of(store, owner)] == mine
        assert await store.count(owner) == 1


async def test_deleting_leaves_another_owners_rows_alone(store: MemoryStore) -> None:
    ann, bob, other_ann = somebody()
    rows = {owner: a_row(f"of {owner.tenant}", owner) for owner in (ann, bob, other_ann)}
    for owner, row in rows.items():
        await store.put(owner, [row])
    everyones = [row.memory.id for row in rows.values()]
    await store.delete(bob, everyones)
    assert [await store.count(owner) for owner in rows] == [1, 0, 1]
    await store.delete_owner(ann)
    assert [await store.count(owner) for owner in rows] == [0, 0, 1]
    assert list(await store.get(ann, everyones)) == []


async def test_a_row_of_another_owner_is_refused_and_nothing_is_stored(store: MemoryStore) -> None:
    ann, bob, other_ann = somebody()
    for stranger in (bob, other_ann):
        with pytest.raises(PermanentError, match="another owner"):
            await store.put(ann, [a_row("mine", ann), a_row("not mine", stranger)])
    assert await store.count(ann) == 0


async def test_putting_an_id_again_replaces_the_row(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    first = a_row("said", ann, pointing(1.0))
    second = Embedded(replace(first.memory, access_count=1), pointing(0.0, 1.0))
    third = Embedded(replace(first.memory, access_count=2), pointing(0.0, 0.0, 1.0))
    await store.put(ann, [first])
    await store.put(ann, [second, third])
    assert await store.count(ann) == 1
    (kept,) = await all_of(store, ann)
    assert kept.memory.access_count == 2
    assert np.array_equal(kept.vector, third.vector)


async def test_pages_hold_every_row_once(store: MemoryStore) -> None:
    ann, bob, _ = somebody()
    rows = [a_row(f"number {n}", ann, pointing(n / 100)) for n in range(53)]
    await store.put(ann, rows)
    await store.put(bob, [a_row("not Ann's", bob)])
    pages = [page async for page in store.pages(ann, 10, fresh=True)]
    assert all(len(page) <= 10 for page in pages)
    assert sorted(row.memory.id for page in pages for row in page) == sorted(row.memory.id for row in rows)


async def test_heads_are_those_of_the_rows_that_the_conditions_hold(store: MemoryStore) -> None:
    ann, bob, _ = somebody()
    rows = [
        a_row(
            f"number {n}",
            ann,
            type=list(MemoryType)[n % 4],
            state=list(MemoryState)[n % 3],
            source=list(Source)[n % 5],
            project=("", 'p "1"')[n % 2],
            session=f"s{n % 2}",
            created_at=MONDAY + timedelta(hours=n),
            expires_at=MONDAY + timedelta(days=n) if n % 2 else None,
            provenance=Provenance(rating=list(Rating)[n % 3]),
        )
        for n in range(24)
    ]
    await store.put(ann, rows)
    await store.put(bob, [a_row("not Ann's", bob)])
    for chosen in (
        Conditions(),
        Conditions(states=frozenset(MemoryState)),
        Conditions(types=frozenset({MemoryType.SEMANTIC, MemoryType.EPISODIC})),
        Conditions(states=frozenset(MemoryState), sources=frozenset({Source.RULES}), project='p "1"'),
        Conditions(states=frozenset(MemoryState), session="s1", after=MONDAY + timedelta(hours=5, seconds=0.5)),
        Conditions(states=frozenset(MemoryState), before=MONDAY + timedelta(hours=5)),
        Conditions(states=frozenset(MemoryState), rating=Rating.WRONG),
    ):
        expected = {row.memory.head for row in rows if chosen.holds(row.memory)}
        found = await store.heads(ann, chosen)
        assert (set(found), len(found)) == (expected, len(expected)), chosen
        assert expected


async def test_an_unknown_owner_has_nothing_and_deleting_it_is_no_fault(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    assert (await store.nearest(ann, pointing(1.0), 5, EVERYTHING)).found == ()
    assert await all_of(store, ann) == []
    assert await store.count(ann) == 0
    await store.delete(ann, ["f" * 64])
    await store.delete(ann, [])
    await store.delete_owner(ann)
    assert list(await store.get(ann, [])) == []


async def test_a_deleted_row_is_gone_and_can_be_put_again(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    first, second = a_row("one", ann), a_row("two", ann)
    await store.put(ann, [first, second])
    await store.delete(ann, [first.memory.id])
    assert [row.memory.content for row in await all_of(store, ann)] == ["two"]
    await store.put(ann, [first])
    assert await store.count(ann) == 2


@pytest.mark.parametrize(
    "vector",
    [
        pytest.param(np.full(DIMENSION, np.nan, dtype=np.float32), id="not numbers"),
        pytest.param(np.zeros(DIMENSION, dtype=np.float32), id="zero"),
        pytest.param(np.full(DIMENSION, np.inf, dtype=np.float32), id="infinite"),
        pytest.param(np.full(DIMENSION, 3e38, dtype=np.float32), id="too long"),
        pytest.param(np.eye(DIMENSION + 1, dtype=np.float32)[0], id="another dimension"),
    ],
)
async def test_a_vector_that_cannot_be_searched_is_refused(store: MemoryStore, vector: Vector) -> None:
    ann, _, _ = somebody()
    with pytest.raises(PermanentError, match="vector"):
        await store.put(ann, [a_row("said", ann, vector)])
    with pytest.raises(PermanentError, match="vector"):
        await store.nearest(ann, vector, 5, EVERYTHING)
    assert await store.count(ann) == 0


@pytest.mark.parametrize("odd", ['x" or id != "', "", "ž", "a b", "x" * 65, "\n"])
async def test_an_id_that_could_change_a_filter_is_refused_and_never_asked_for(
    store: MemoryStore, odd: str
) -> None:
    ann, _, _ = somebody()
    await store.put(ann, [a_row("said", ann)])
    with pytest.raises(PermanentError, match="alphabet"):
        await store.put(ann, [a_row("said", ann, id=odd)])
    assert list(await store.get(ann, [odd])) == []
    await store.delete(ann, [odd])
    assert await store.count(ann) == 1


async def test_metadata_that_cannot_be_written_is_refused(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    for odd in ({"a": object()}, {"a": float("nan")}, {"a": "x" * 20_000}):
        with pytest.raises(PermanentError, match="metadata"):
            await store.put(ann, [a_row("said", ann, metadata=odd)])
    assert await store.count(ann) == 0


@pytest.mark.parametrize("odd", ["", "x" * 513, "ž" * 257, "nul\0", "\ud800"])
async def test_an_owner_whose_name_cannot_be_stored_is_refused_everywhere(store: MemoryStore, odd: str) -> None:
    owner = Owner("acme", odd)
    with pytest.raises(PermanentError):
        await store.put(owner, [a_row("said", owner, id="some-id")])
    with pytest.raises(PermanentError):
        await store.nearest(owner, pointing(1.0), 5, EVERYTHING)
    with pytest.raises(PermanentError):
        await store.get(owner, ["some-id"])
    with pytest.raises(PermanentError):
        await store.count(owner)
    with pytest.raises(PermanentError):
        await store.delete_owner(owner)


async def test_long_content_is_cut_between_two_characters(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    room = sealable(CONTENT_BYTES) if isinstance(store, EncryptedStore) else CONTENT_BYTES
    exact, longer = "x" + "ž" * ((room - 1) // 2), "🌴" * 3000
    rows = [a_row(exact, ann, id="exact"), a_row(longer, ann, id="longer"), a_row("a\ud800b", ann, id="surrogate")]
    await store.put(ann, rows)
    kept = {memory.id: memory.content for memory in await store.get(ann, ["exact", "longer", "surrogate"])}
    assert kept == {"exact": exact, "longer": "🌴" * (room // 4), "surrogate": "a?b"}


# Whatever a gateway may let through as a name: quotes, escapes, line ends, operators, any script.
FRESH = itertools.count()
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40) | st.sampled_from(
    [
        '"',
        "\\",
        '\\"',
        "' or 1 == 1",
        '" or user_id != "',
        "a\nb\r\tc",
        "\x07\x1b",
        "\u2028",
        "{u}",
        "%",
        "*",
        "né🐤",
        "\x7f",
    ]
)


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(user=NAMES, tenant=NAMES, project=NAMES)
async def test_no_name_escapes_from_its_filter(store: MemoryStore, user: str, tenant: str, project: str) -> None:
    # Two tenants that no other example has, the name of the one beginning with the other's.
    tenant += str(next(FRESH))
    ann, bob = Owner(tenant, user), Owner(tenant + "x", user)
    row = a_row("mine", ann, project=project)
    await asyncio.gather(store.put(ann, [row]), store.put(bob, [a_row("not mine", bob, project=project)]))
    got, kept = await asyncio.gather(store.get(ann, [row.memory.id]), all_of(store, ann))
    assert list(got) == [row.memory]
    assert [one.memory for one in kept] == [row.memory]
    await settled(store, ann, row)
    assert contents((await store.nearest(ann, pointing(1.0), 5, Scope(project=project))).found) == ["mine"]
    await store.delete_owner(ann)
    assert list(await asyncio.gather(store.count(ann), store.count(bob))) == [0, 1]


async def test_writers_at_the_same_time_lose_nothing(store: MemoryStore) -> None:
    people = [owner for _ in range(4) for owner in somebody()]
    await asyncio.gather(
        *(
            store.put(owner, [a_row(f"{turn} {n}", owner) for n in range(5)])
            for turn in range(6)
            for owner in people
        ),
        *(store.nearest(owner, pointing(1.0), 5, EVERYTHING) for owner in people),
    )
    assert [await store.count(owner) for owner in people] == [30] * len(people)


async def test_more_rows_than_one_message_holds_are_put_together(store: MemoryStore) -> None:
    ann, _, _ = somebody()
    long = json.dumps(list(range(200)))
    rows = [a_row(f"{n} {long}", ann) for n in range(1100)]
    await store.put(ann, rows)
    assert await store.count(ann) == 1100
    assert len(await all_of(store, ann, size=1000)) == 1100
    await store.delete(ann, [row.memory.id for row in rows])
    assert await store.count(ann) == 0
