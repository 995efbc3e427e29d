"""Everything of a store in parts that one answer holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from memory_extproc.model import Owner
from memory_extproc.store.placement import Place
from memory_extproc.store.rows import quote

Row = Mapping[str, Any]

_BEHIND = "~"  # stands behind all that ids are made of (rules.is_id), as a store compares them
_MOST = 2_000  # rows of one answer: some 20 ms for Lite, of which this process has the half to itself
_PARTS = 8  # that rows are taken apart into when an answer does not hold them
_NAMES = ("tenant_id", "user_id")


class Query(Protocol):
    async def __call__(self, place: Place, filter_: str, fields: Sequence[str], limit: int) -> Sequence[Row]:
        """At most *limit* rows with these *fields* that match, in any order."""


async def owners_in(
    collections: Sequence[str], query: Query, *, most: int = _MOST
) -> AsyncIterator[Sequence[Owner]]:
    """Each once."""
    known: set[Owner] = set()
    for collection in collections:
        async for _, rows in shares(Place(collection, None), query, _NAMES, most=most):
            found = {Owner(row["tenant_id"], row["user_id"]) for row in rows} - known
            known |= found
            if found:
                yield sorted(found, key=lambda owner: owner.key)


async def shares(
    place: Place, query: Query, fields: Sequence[str], *, most: int = _MOST
) -> AsyncIterator[tuple[str, Sequence[Row]]]:
    """Filters that share all rows of *place* out among them, and the rows of each, with their ids: *most* at a
    time. Rows are asked for by ranges of ids: a server's pages are cut by offset, which is bounded, or by an
    iterator, for which the client drops the consistency level."""
    asked = ("id", *(field for field in fields if field != "id"))
    waiting = [("", _BEHIND)]
    while waiting:
        least, below = waiting.pop()
        filter_ = f"id >= {quote(least)} and id < {quote(below)}"
        rows = await query(place, filter_, asked, most + 1)
        ids = {row["id"] for row in rows}
        if len(ids) > max(1, most):
            waiting += _parts(least, below, ids)
        else:
            yield filter_, rows


def _parts(least: str, below: str, some: set[str]) -> list[tuple[str, str]]:
    """The ids from *least* up to *below* in parts that begin with some of *some*: two or more that were found
    between them. Each part leaves one of those out, so each step comes nearer to the end, whatever was found."""
    found = sorted(some)
    step = max(1, len(found) // _PARTS)
    starts = [least, *found[step::step]]
    return list(zip(starts, [*starts[1:], below], strict=True))
