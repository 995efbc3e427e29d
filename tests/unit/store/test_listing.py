"""Everything of a store is told in parts that one answer holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from milvus_lite.search.filter import parse_expr

from memory_extproc.model import Owner
from memory_extproc.store.milvus.rows import OwnerPlace, Row, owners_in, shares

HERE = OwnerPlace("memories_s00", None)
IDS = st.text("-.09:AZ_az", min_size=1, max_size=3)
Chosen = Callable[[list[Row]], list[Row]]  # the order in which a store comes upon rows


def by_chance(rows: list[Row]) -> list[Row]:
    return random.Random(len(rows)).sample(rows, len(rows))


CHOSEN: list[Chosen] = [lambda rows: rows, lambda rows: rows[::-1], by_chance]


class Rows:
    """Rows as a store has them, *limit* of an answer as *chosen*."""

    def __init__(self, rows: Sequence[Row], chosen: Chosen = by_chance) -> None:
        self._rows = rows
        self._chosen = chosen
        self.answers: list[int] = []  # how many rows each had

    async def __call__(self, place: OwnerPlace, filter_: str, fields: Sequence[str], limit: int) -> Sequence[Row]:
        low, high = parse_expr(filter_).operands
        least, below = low.right.value, high.right.value
        found = sorted((row for row in self._rows if least <= row["id"] < below), key=lambda row: str(row["id"]))
        given_ = [{name: row[name] for name in fields} for row in self._chosen(found)[:limit]]
        self.answers.append(len(given_))
        return given_


@pytest.mark.parametrize("chosen", CHOSEN)
@given(ids=st.sets(IDS, max_size=80), most=st.integers(1, 9))
async def test_every_row_is_in_one_part_whichever_rows_a_store_comes_upon_first(
    chosen: Chosen, ids: set[str], most: int
) -> None:
    store = Rows([{"id": one} for one in ids], chosen)
    parts = [[row["id"] for row in rows] async for _, rows in shares(HERE, store, ["id"], most=most)]
    assert sorted(one for part in parts for one in part) == sorted(ids)
    assert max(map(len, parts)) <= most


@pytest.mark.parametrize("chosen", CHOSEN)
async def test_a_million_rows_would_be_told_in_answers_of_a_bounded_size_as_many_as_there_are_parts(
    chosen: Chosen,
) -> None:
    """Here a thousandth of them, in answers of a hundredth of the size."""
    rows = [
        {"id": f"{number * 7919:08x}", "tenant_id": "acme", "user_id": f"user {number % 40}"}
        for number in range(10_000)
    ]
    store = Rows(rows, chosen)
    owners = [owner async for page in owners_in([HERE.collection], store, most=100) for owner in page]
    assert sorted(owners, key=lambda owner: owner.user) == sorted(
        (Owner("acme", f"user {number}") for number in range(40)), key=lambda owner: owner.user
    )
    assert max(store.answers) <= 101
    assert len(store.answers) <= 12 * len(rows) / 100


async def test_an_id_that_a_store_gives_more_than_once_ends_the_listing_all_the_same() -> None:
    store = Rows([{"id": "same"}] * 9)
    parts = [rows async for _, rows in shares(HERE, store, ["id"], most=2)]
    assert {row["id"] for rows in parts for row in rows} == {"same"}
