"""After any history, a partition finds the same as a freshly filled one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from memory_extproc.model import Memory, Owner, SearchResult
from memory_extproc.store.partition import Partitions
from tests.support.builders import ANN, MONDAY, OTHER_ANN, a_memory
from tests.unit.store.partitions import Setting, a_row, a_setting, search, up_to_date

PEOPLE = (ANN, OTHER_ANN)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "supersede", "confirm", "delete", "forget", "search", "settle"]),
        st.sampled_from(PEOPLE),
        st.integers(0, 5),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=25,
)
Step = tuple[str, Owner, int, int, bool]


async def take(step: Step, setting: Setting, mine: Partitions, other: Partitions) -> None:
    kind, owner, n, m, elsewhere = step
    id_, at = a_memory(f"{n}", owner).id, MONDAY + timedelta(hours=m)
    setting.clock.now += timedelta(seconds=1)
    writer = other if elsewhere else mine
    match kind:
        case "put":
            angle = -m / 3 if elsewhere else m / 3
            await writer.put(owner, [a_row(f"{n}", owner, angle=angle, created_at=at, access_count=m)])
        case "supersede":
            await writer.supersede(owner, id_, f"{m}", at)
        case "confirm":
            await writer.confirm(owner, id_, at)
        case "delete":
            await writer.delete(owner, [id_])
        case "forget":
            await writer.delete_owner(owner)
        case "search":
            await search(writer, owner)
        case "settle":
            setting.store.settle()


def shown(searched: SearchResult) -> Sequence[tuple[Memory, float]]:
    return [(one.memory, round(one.cosine, 6)) for one in searched.found]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, lags=st.booleans())
async def test_after_any_history_a_partition_finds_what_a_freshly_filled_one_finds(
    steps: list[Step], lags: bool
) -> None:
    setting = a_setting(lags=lags)
    setting.store.weather.lagging = lags
    async with setting.process() as mine, setting.process() as other:
        for step in steps:
            await take(step, setting, mine, other)
        found = {owner: await up_to_date(mine, owner) for owner in PEOPLE}
        setting.store.settle()
        async with setting.process() as fresh:
            for owner in PEOPLE:
                expected = await up_to_date(fresh, owner)
                assert shown(found[owner]) == shown(expected)
                assert found[owner].total == expected.total == await setting.store.count(owner)
                assert all(one.memory.owner == owner for one in expected.found)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), max_size=40, unique_by=lambda row: row[0]),
    limit=st.integers(0, 12),
    data=st.data(),
)
async def test_the_order_of_arrival_does_not_show(
    rows: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    made = [a_row(f"{n}", angle=m / 3, created_at=MONDAY + timedelta(hours=n % 3)) for n, m in rows]
    results = []
    for order in (made, data.draw(st.permutations(made))):
        setting = a_setting()
        async with setting.process() as partitions:
            await search(partitions)
            for row in order:
                await partitions.put(ANN, [row])
            results.append(shown(await search(partitions, limit=limit)))
    assert results[0] == results[1]
    assert len(results[0]) == min(limit, len(made))
