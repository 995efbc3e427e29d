"""Memories in the order in which they were said, session by session, and sums over what stands around each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Sums = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]

_SEQ_BITS = 32
_LOOKS_BACK = 2  # messages: a question is answered by the next one or the one after it


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """All arrays are by position: messages in the order of their sessions, behind them what nobody said in a
    session. *first* and *end* bound the session of a position, half open; what stands alone is its own."""

    places: Ints  # which memory stands at a position
    first: Ints
    end: Ints
    session: Ints  # a number for each session, from 0
    anchor: Ints  # the position of the message that a fact was taken from, else the position itself
    question: Ints  # the position of the question that a message follows; -1 where it follows none
    alone: Bools  # nothing stands around the position or its anchor

    def __len__(self) -> int:
        return len(self.places)

    @property
    def sessions(self) -> int:
        return int(self.session[-1]) + 1 if len(self.session) else 0

    def around(self, running: Sums, reach: int) -> Sums:
        """Sums over the positions at most *reach* away within the session; *running* as `running_sums` gives."""
        at = np.arange(len(self))
        low, high = np.maximum(at - reach, self.first), np.minimum(at + reach + 1, self.end)
        found: Sums = np.take(running, high, axis=-1) - np.take(running, low, axis=-1)
        return found


def running_sums(values: npt.NDArray[np.floating]) -> Sums:
    """Of the last axis, up to each position; one longer than it."""
    total: Sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=total[..., 1:])
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """By place: where in which conversation a memory belongs. *session* -1: in none."""

    there: Bools
    message: Bools  # said in these words, as against taken from what was said
    session: Ints
    seq: Ints
    piece: Ints  # of a message in several
    role: Ints
    asks: Bools


def timeline_of(said: Said) -> Timeline:
    """The same for the same memories whatever their places, but for the order of sessions and of what stands
    alone, on which no sum depends."""
    told = said.there & said.message & (said.session >= 0)
    messages = np.flatnonzero(told)
    order = messages[np.lexsort((said.piece[messages], said.seq[messages], said.session[messages]))]
    rest = np.flatnonzero(said.there & ~told)
    places = np.concatenate([order, rest])
    of, count, total = said.session[order], len(order), len(places)
    first, end = np.arange(total), np.arange(1, total + 1)
    first[:count], end[:count] = np.searchsorted(of, of, "left"), np.searchsorted(of, of, "right")
    session = np.cumsum(first == np.arange(total)) - 1
    anchor = np.arange(total)
    keys = (of << _SEQ_BITS) + said.seq[order]
    if count and len(rest):
        wanted = (said.session[rest] << _SEQ_BITS) + said.seq[rest]
        at = np.minimum(np.searchsorted(keys, wanted), count - 1)
        anchor[count:] = np.where((said.session[rest] >= 0) & (keys[at] == wanted), at, anchor[count:])
    return Timeline(
        places=places,
        first=first,
        end=end,
        session=session,
        anchor=anchor,
        question=_questions(first, said.asks[places], said.role[places]),
        alone=(end - first)[anchor] <= 1,
    )


def _questions(first: Ints, asks: Bools, role: Ints) -> Ints:
    at = np.arange(len(first))
    found = np.full(len(first), -1)
    for back in range(_LOOKS_BACK, 0, -1):  # the nearest counts
        before = np.maximum(at - back, 0)
        found = np.where((at - back >= first) & asks[before] & (role[before] != role), before, found)
    return found
