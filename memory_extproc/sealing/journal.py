"""A journal that holds what was asked and answered only as it was sealed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from memory_extproc.errors import GiveUpError, TryLaterError
from memory_extproc.model import DataKey, DeadLetter, JournalState, Owner, Stored, Turn
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal, JournalDepth, JournalEntry, Keys
from memory_extproc.sealing.box import context_of, seal_text, unseal_text

log = logger(__name__)
_MARK = "sealed:"  # before each text of a turn; texts from before are without it
_UNREADABLE = "sealed_away"  # why a turn whose key is gone became a dead letter
_TRIES = 4


@dataclass(frozen=True, slots=True)
class OpenedEntry:
    """A JournalEntry with its turn as it was said. *sealed*: as the journal has it."""

    turn: Turn
    sealed: JournalEntry

    @property
    def place(self) -> str:
        return self.sealed.place

    @property
    def state(self) -> JournalState:
        return self.sealed.state

    @property
    def stored(self) -> bool:
        return self.sealed.stored

    @property
    def replaced(self) -> bool:
        return self.sealed.replaced

    @property
    def attempts(self) -> int:
        return self.sealed.attempts


class SealedJournal:
    """A Journal over another, with keys by owner. Turns from before it was sealed are read as they are."""

    def __init__(self, journal: Journal, keys: Keys) -> None:
        self._journal, self._keys = journal, keys

    async def append(self, turn: Turn) -> Stored:
        key = await self._keys.of(turn.owner)
        for _ in range(_TRIES):
            stored = await self._journal.append(_sealed(key, turn))
            # A forget may have destroyed the key meanwhile, and what came after it is to stay readable.
            latest = await self._keys.of(turn.owner)
            if latest == key:
                return stored
            key = latest
        raise TryLaterError("a data key that others keep destroying")

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalEntry]:
        while entries := await self._journal.pending(limit, after=after):
            if opened := await self._opened(entries, given_up=True):
                return opened
            after = entries[-1].place
        return []

    async def get(self, ids: Sequence[str]) -> Sequence[JournalEntry]:
        return await self._opened(await self._journal.get(ids), given_up=True)

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        await self._journal.mark_stored([_inner(entry) for entry in entries])

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        await self._journal.mark_learned([_inner(entry) for entry in entries])

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        await self._journal.mark_failed(_inner(entry), reason, dead=dead)

    async def erase_learned(self, before: datetime) -> int:
        return await self._journal.erase_learned(before)

    async def erase_owner(self, owner: Owner) -> int:
        return await self._journal.erase_owner(owner)

    async def depth(self) -> JournalDepth:
        return await self._journal.depth()

    async def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        async for entry in self._journal.of_owner(owner):
            for opened in await self._opened([entry], given_up=False):
                yield opened

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        return await self._journal.erase(owner, turn_ids)

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        return await self._journal.dead(limit, after=after)

    async def retry(self, turn_ids: Sequence[str]) -> int:
        return await self._journal.retry(turn_ids)

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        while entries := await self._journal.arrivals(limit):
            if opened := await self._opened(entries, given_up=True):
                return opened
        return []

    def holds(self, owner: Owner) -> bool:
        return self._journal.holds(owner)

    async def end(self, owner: Owner, session: str) -> None:
        await self._journal.end(owner, session)

    async def _opened(self, entries: Sequence[JournalEntry], *, given_up: bool) -> list[JournalEntry]:
        """Those that can be read. *given_up*: the others become dead letters, so that nobody waits for them."""
        opened: list[JournalEntry] = []
        for entry in entries:
            key = await self._keys.find(entry.turn.owner)
            try:
                turn = _unsealed(key, entry.turn)
            except GiveUpError as error:
                log.warning("journal.entry_sealed", kind=type(error).__name__)
                if given_up:
                    await self._journal.mark_failed(entry, _UNREADABLE, dead=True)
            else:
                opened.append(OpenedEntry(turn, entry))
        return opened


def _inner(entry: JournalEntry) -> JournalEntry:
    return entry.sealed if isinstance(entry, OpenedEntry) else entry


def _sealed(key: DataKey, turn: Turn) -> Turn:
    def sealed(what: str, text: str) -> str:
        return _MARK + seal_text(key, _context(turn, what), text)

    return replace(
        turn,
        asked=sealed("asked", turn.asked),
        answered=sealed("answered", turn.answered) if turn.answered else "",
        injected=tuple(sealed(f"injected {at}", text) for at, text in enumerate(turn.injected)),
    )


def _unsealed(key: DataKey | None, turn: Turn) -> Turn:
    if not turn.asked.startswith(_MARK):
        return turn  # from before texts were sealed

    def unsealed(what: str, text: str) -> str:
        return unseal_text(key, _context(turn, what), text.removeprefix(_MARK))

    return replace(
        turn,
        asked=unsealed("asked", turn.asked),
        answered=unsealed("answered", turn.answered) if turn.answered else "",
        injected=tuple(unsealed(f"injected {at}", text) for at, text in enumerate(turn.injected)),
    )


def _context(turn: Turn, what: str) -> bytes:
    return context_of("turn", what, turn.owner.key, turn.id)
