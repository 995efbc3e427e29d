"""Everybody of whom a store has rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from memory_extproc.model import Owner
from memory_extproc.store.placement import Place
from memory_extproc.store.rows import quote

Query = Callable[[Place, str, Sequence[str]], Awaitable[Sequence[Mapping[str, Any]]]]

# Of what ids are made (rules.is_id), in the order in which a store compares them, and what stands behind all.
_ALPHABET = "-.0123456789:ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_BEHIND = "~"
_MOST = 10_000  # rows of one answer
_DEEPEST = 8  # characters of an id by which rows are taken apart


async def owners_in(
    collections: Sequence[str], query: Query, *, most: int = _MOST
) -> AsyncIterator[Sequence[Owner]]:
    """Each once. Rows are asked for by ranges of ids that give *most* at a time: a server's pages are cut by
    offset, which is bounded, or by an iterator, for which the client drops the consistency level."""
    known: set[Owner] = set()
    for collection in collections:
        place = Place(collection, None)
        async for filter_ in ranges_in(place, query, most=most):
            found = {Owner(row["tenant_id"], row["user_id"]) for row in await query(place, filter_, _NAMES)} - known
            known |= found
            if found:
                yield sorted(found, key=lambda owner: owner.key)


async def ranges_in(place: Place, query: Query, *, most: int = _MOST) -> AsyncIterator[str]:
    """Filters that share all rows out among them, *most* each."""
    waiting = [("", _BEHIND)]
    while waiting:
        least, below = waiting.pop()
        filter_ = f"id >= {quote(least)} and id < {quote(below)}"
        counted = await query(place, filter_, ["count(*)"])
        if int(counted[0]["count(*)"]) > most and len(least) < _DEEPEST:
            waiting += _parts(least, below)
        else:
            yield filter_


_NAMES = ("tenant_id", "user_id")


def _parts(least: str, below: str) -> list[tuple[str, str]]:
    """The ids from *least* up to *below* in parts, by the next character."""
    starts = [least, *(least + sign for sign in _ALPHABET)]
    return list(zip(starts, [*starts[1:], below], strict=True))
