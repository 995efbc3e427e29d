"""What reads and writes ask about what was forgotten: read from the ledger once, then known in process."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from memory_extproc.erasure.job import Job
from memory_extproc.erasure.marks import Blind, Cut, Marks
from memory_extproc.errors import TryLaterError
from memory_extproc.model import Embedded, Exchanged, ForgetState, Memory, Owner, Scope, Searched, Turn, Vector
from memory_extproc.ports import Ledger, MemoryStore, Replicas

_KNOWN = 4096  # owners whose marks are held


class Forgotten:
    """Implements ports.KnowsForgotten. What it holds counts only while our lease runs, because another replica may
    have been told to forget more."""

    def __init__(self, ledger: Ledger, replicas: Replicas, *, key: bytes = b"") -> None:
        """*key*: for the hashes, instead of the ledger's own."""
        self._ledger = ledger
        self._replicas = replicas
        self._blind: Blind | None = Blind(key) if key else None
        self._known: OrderedDict[Owner, Marks] = OrderedDict()
        self._subjects: dict[str, Owner] = {}
        self._generation = 0
        self.found: Callable[[Owner], None] = _nothing  # told of an owner of whom more has to go than was known

    async def blind(self) -> Blind:
        if self._blind is None:
            self._blind = Blind(await self._ledger.key())
        return self._blind

    async def of(self, owner: Owner) -> Marks:
        """TryLaterError where it cannot be known."""
        if not self._replicas.holds():
            raise TryLaterError("what was forgotten elsewhere is not known: no lease")
        known = self._known.get(owner)
        if known is not None:
            self._known.move_to_end(owner)
            return known
        blind, generation = await self.blind(), self._generation
        subject = blind.subject(owner)
        marks = await self._read(owner)
        if generation == self._generation:  # else it may be older than what we were told meanwhile
            self._known[owner] = marks
            self._subjects[subject] = owner
            if len(self._known) > _KNOWN:
                gone, _ = self._known.popitem(last=False)
                self._subjects.pop(blind.subject(gone), None)
        return marks

    async def _read(self, owner: Owner) -> Marks:
        blind = await self.blind()
        noted = await self._ledger.marks(blind.subject(owner))
        cuts = tuple(msgspec.json.decode(cut, type=Cut) for cut in noted.cuts)
        return Marks(blind, cuts, noted.items, noted.shut)

    def renew(self, subject: str) -> Owner | None:
        """What is held of *subject* counts no more; whose it is, if that is known here."""
        self._generation += 1
        owner = self._subjects.pop(subject, None)
        if owner is not None:
            self._known.pop(owner, None)
        return owner

    def renew_all(self) -> None:
        self._generation += 1
        self._known.clear()
        self._subjects.clear()

    # --- what the write path and the partitions ask ----------------------------------------------------
    async def check(self, owner: Owner) -> None:
        if (await self.of(owner)).shut:
            raise TryLaterError("a forget is under way")

    async def admitted(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        marks = await self.of(owner)
        if marks.shut:
            raise TryLaterError("a forget is under way")
        if not marks:
            return rows
        if await self._trace(owner, [marks.untraced(row.memory) for row in rows]):
            marks = await self.of(owner)
        return [row for row in rows if not marks.covers(row.memory)]

    async def learnable(self, exchanged: Exchanged, turn: Turn) -> tuple[Exchanged, Turn] | None:
        marks = await self.of(turn.owner)
        if not marks:
            return exchanged, turn
        if marks.covers_turn(turn):
            await self._trace(turn.owner, [marks.untraced_turn(turn)])
            return None
        history = tuple(message for message in exchanged.history if not marks.covers_words(turn.owner, message))
        if len(history) == len(exchanged.history):
            return exchanged, turn
        return replace(exchanged, history=history), replace(turn, answered="")

    async def left(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        if not turns:
            return turns
        marks = await self.of(turns[0].owner)
        if marks.shut:
            raise TryLaterError("a forget is under way")
        gone = {turn.id for turn in await self.select_forgotten(turns)} if marks else ()
        return [turn for turn in turns if turn.id not in gone]

    # --- what was out of reach when it was forgotten ---------------------------------------------------
    async def select_forgotten(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Those of *turns*, all of one owner, that were forgotten; sent again they are known from here on."""
        marks = await self.of(turns[0].owner) if turns else None
        gone = [turn for turn in turns if marks is not None and marks.covers_turn(turn)]
        if marks is not None and gone:
            await self._trace(gone[0].owner, [marks.untraced_turn(turn) for turn in gone])
        return gone

    async def recognise(self, owner: Owner, unstored: Sequence[Memory]) -> Sequence[str]:
        """Ids of those of *unstored*, which only this process has, that were forgotten; what they came from is
        forgotten with them. Asks the ledger: it is called before a lease is renewed."""
        if not unstored:
            return ()
        marks = await self._read(owner)
        if await self._trace(owner, [marks.untraced(memory) for memory in unstored]):
            marks = await self._read(owner)
        return [memory.id for memory in unstored if marks.covers(memory)]

    async def _trace(self, owner: Owner, found: Iterable[Mapping[bytes, float]]) -> bool:
        """Adds items to what is known of *owner*, durable when it returns; says whether there were any."""
        items = {item: at for some in found for item, at in some.items()}
        if not items:
            return False
        subject = (await self.blind()).subject(owner)
        at = max(items.values())
        done = Job(
            id=uuid.uuid4().hex,
            subject=subject,
            name="again",
            at=datetime.fromtimestamp(at, UTC),
            state=ForgetState.COMPLETE,
        )
        await self._ledger.write(done.kept(), items=sorted(items), at=at)
        self.renew(subject)
        self.found(owner)
        return True


class HidingStore:
    """A MemoryStore that shows nothing of what was forgotten, whatever the one behind it still holds: rows that a
    restored backup brought back, or that a replica wrote in the moment of the forget."""

    def __init__(self, store: MemoryStore, forgotten: Forgotten) -> None:
        self._store = store
        self._forgotten = forgotten
        self.found: Callable[[Owner], None] = _nothing  # told of an owner of whom something had to be hidden

    @property
    def lags(self) -> bool:
        return self._store.lags

    @property
    def finds_words(self) -> bool:
        return self._store.finds_words

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        if wanted := await self._forgotten.admitted(owner, rows):
            await self._store.put(owner, wanted)

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        marks = await self._open_to(owner)
        return [memory for memory in await self._store.get(owner, ids) if not marks.covers(memory)]

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        marks = await self._open_to(owner)
        return [row for row in await self._store.fetch(owner, ids) if not marks.covers(row.memory)]

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        marks = await self._open_to(owner)
        searched = await self._store.nearest(owner, to, limit, scope)
        if not marks:
            return searched
        return replace(searched, found=tuple(one for one in searched.found if not marks.covers(one.memory)))

    async def worded(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        marks = await self._open_to(owner)
        found = await self._store.worded(owner, text, limit, scope)
        return [row for row in found if not marks.covers(row.memory)]

    async def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        marks = await self._open_to(owner)
        async for page in self._store.pages(owner, size, fresh=fresh):
            left = [row for row in page if not marks.covers(row.memory)] if marks else page
            if len(left) < len(page) and (fresh or not self.lags):
                self.found(owner)
            yield left

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        await self._store.delete(owner, ids)

    async def delete_owner(self, owner: Owner) -> None:
        await self._store.delete_owner(owner)

    async def count(self, owner: Owner) -> int:
        await self._forgotten.check(owner)
        return await self._store.count(owner)

    async def _open_to(self, owner: Owner) -> Marks:
        marks = await self._forgotten.of(owner)
        if marks.shut:
            raise TryLaterError("a forget is under way")
        return marks


def _nothing(_owner: Owner) -> None:
    """Nobody wants to know."""
