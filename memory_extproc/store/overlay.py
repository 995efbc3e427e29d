"""The state that a process keeps per owner: resident rows, its own recent writes, and their version."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from memory_extproc.model import Embedded, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Steady
from memory_extproc.store.resident import ResidentRows, memory_bytes

_BASE_BYTES = 1_500  # of an empty OwnerOverlay
_NEVER = -1


@dataclass(slots=True)
class Write:
    """A write of this process that the store may not show yet. *row* None: a deletion."""

    row: Embedded | None
    mark: int  # of the call
    acknowledged: datetime | None = None  # by the store
    tick: int = 0  # of the acknowledgement, in the order of this owner's events

    @property
    def size(self) -> int:
        return 200 if self.row is None else memory_bytes(self.row.memory) + int(self.row.vector.nbytes)


class Attempt:
    """A running fill: the rows read so far, if all are read, and the owner's state when it began."""

    def __init__(self, version: int, generation: int, tick: int) -> None:
        self.version = version
        self.generation = generation
        self.tick = tick
        self.own: set[int] = set()  # versions that our own writes made since
        self.held = ResidentRows()

    def take(self, page: Sequence[Embedded]) -> None:
        for row in page:
            self.held.put(row)


class OwnerOverlay:
    """Does no I/O and has no clock. Owned by a single event loop."""

    def __init__(self) -> None:
        self.held: ResidentRows | None = None  # every row of the owner as of `seen`, with our own writes
        self.overlay: dict[str, Write] = {}
        self.writes = asyncio.Lock()  # serialises our writes, so that read-change-write is atomic
        self.users = 0  # calls and fills that use this object
        self.too_large = False  # to be resident: the store's own search answers
        self.not_before: datetime | None = None  # no fill before, after a failed fill
        self.unsaid = False  # a write that other replicas could not be told of
        self.counted = 0  # its bytes in the sum over all owners
        self._seen = _NEVER
        self._own: set[int] = set()  # versions above `seen` that our own writes made
        self._writing = 0  # our writes whose version is not known yet
        self._generation = 0  # how often everything was forgotten
        self._attempt: Attempt | None = None
        self._ticks = 0
        self._overlay_bytes = 0
        self._forgetting = False
        self._forgotten: datetime | None = None

    @property
    def seen(self) -> int:
        """The version up to which every write of any replica is in `held`."""
        return self._seen

    def answers_at(self, version: int) -> bool:
        """Whether `held` is complete at *version*."""
        return self.held is not None and 0 <= version - self._seen <= self._writing

    def count_own(self, version: int) -> None:
        """A write of ours made *version*."""
        if self._attempt is not None:
            self._attempt.own.add(version)
        if self.held is not None:
            self._see(self._seen, self._own | {version})

    def _see(self, version: int, own: set[int]) -> None:
        # Advance beyond *version* only over our own versions: a gap is another replica's write.
        while version + 1 in own:
            version += 1
        self._seen, self._own = version, {one for one in own if one > version}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Wraps a write: other readers may see its version before `count_own` is called."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1

    def put(self, rows: Sequence[Embedded]) -> int:
        """Add rows; returns the mark for `acknowledge` and `take_back`."""
        mark = self._tick()
        for row in rows:
            self._lay(row.memory.id, Write(row, mark))
            if self.held is not None:
                self.held.put(row)
        return mark

    def delete(self, ids: Sequence[str]) -> int:
        mark = self._tick()
        for one in ids:
            self._lay(one, Write(None, mark))
            if self.held is not None:
                self.held.remove(one)
        return mark

    def acknowledge(self, mark: int, now: datetime) -> None:
        """The store has stored the writes of *mark*."""
        tick = self._tick()
        for write in self.overlay.values():
            if write.mark == mark:
                write.acknowledged, write.tick = now, tick

    def take_back(self, mark: int) -> None:
        """The store rejected the writes of *mark*: remove them."""
        self.withdraw([one for one, write in self.overlay.items() if write.mark == mark])

    def withdraw(self, ids: Sequence[str]) -> None:
        """Drop our writes to *ids*: the store alone decides what they are."""
        for one in ids:
            self._lift(one)
        self.drop_held()

    def live_writes(self) -> list[Embedded]:
        return [write.row for write in self.overlay.values() if write.row is not None]

    def look_up(self, ids: Sequence[str], *, whole: bool) -> tuple[list[Embedded], list[str]]:
        """The rows of *ids* known here, and the ids to ask the store for (none if *whole*)."""
        known: list[Embedded] = []
        unknown: list[str] = []
        for one in dict.fromkeys(ids):
            write = self.overlay.get(one)
            row = write.row if write is not None else self.held.get(one) if whole and self.held else None
            if row is not None:
                known.append(row)
            elif write is None and not whole:
                unknown.append(one)
        return known, unknown

    def prune(self, now: datetime, settle: timedelta) -> None:
        """Drop writes that every read of the store shows by now."""
        if self._attempt is not None:
            return  # the fill may have read the store before they were in it
        for one, write in list(self.overlay.items()):
            if write.acknowledged is not None and now - write.acknowledged >= settle:
                self._lift(one)

    def is_deleted(self, id: str) -> bool:  # noqa: A002 - the word of the port
        """Whether a deletion of this process hides the store's row."""
        write = self.overlay.get(id)
        return write is not None and write.row is None

    def _lay(self, id: str, write: Write) -> None:  # noqa: A002
        self._lift(id)
        self.overlay[id] = write
        self._overlay_bytes += write.size

    def _lift(self, id: str) -> None:  # noqa: A002
        old = self.overlay.pop(id, None)
        if old is not None:
            self._overlay_bytes -= old.size

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    @property
    def generation(self) -> int:
        """The number of times that everything was forgotten."""
        return self._generation

    def forget(self, version: int) -> None:
        """Drop everything as of *version*; the result of a running fill is discarded."""
        self.overlay.clear()
        self._overlay_bytes = 0
        self.held = ResidentRows()
        self.too_large = False
        self._forgetting = True
        self._generation += 1
        self._see(version, set())

    def forgotten(self, now: datetime) -> None:
        """The store has completed the forget."""
        self._forgetting = False
        self._forgotten = now

    def hides_store(self, now: datetime, settle: timedelta) -> bool:
        """Whether a lagging read of the store may still show forgotten rows."""
        return self._forgetting or (self._forgotten is not None and now - self._forgotten < settle)

    def begin_fill(self, version: int) -> Attempt:
        """Begin a fill. *version* must be read before the store."""
        self._attempt = Attempt(version, self._generation, self._tick())
        return self._attempt

    def end_fill(self, attempt: Attempt, *, complete: bool) -> None:
        """Install the rows read, overlaid by our own writes. *complete*: the read did not lag."""
        self._attempt = None
        if attempt.generation != self._generation:
            return
        for one, write in list(self.overlay.items()):
            if complete and write.acknowledged is not None and write.tick < attempt.tick:
                self._lift(one)  # the read shows it, or a later write of another replica
            elif write.row is None:
                attempt.held.remove(one)
            else:
                attempt.held.put(write.row)
        self.held = attempt.held
        self._see(attempt.version, attempt.own)

    def end_refresh(self, attempt: Attempt, ids: Iterable[str], rows: Sequence[Embedded]) -> None:
        """Bring `held` up to the attempt's version: *rows* are all that the store has of *ids*."""
        self._attempt = None
        if attempt.generation != self._generation or self.held is None:
            return
        read = {row.memory.id: row for row in rows}
        for one in ids:
            write = self.overlay.get(one)
            if write is not None and (write.acknowledged is None or write.tick >= attempt.tick):
                continue  # ours is newer than the read, and held already
            self._lift(one)
            if one in read:
                self.held.put(read[one])
            else:
                self.held.remove(one)
        self._see(attempt.version, attempt.own | self._own)

    def abandon_fill(self) -> None:
        self._attempt = None

    @property
    def size(self) -> int:
        """Bytes."""
        return _BASE_BYTES + self._overlay_bytes + (self.held.size if self.held is not None else 0)

    def drop_held(self) -> None:
        self.held = None
        self._seen, self._own = _NEVER, set()

    def outdate(self) -> None:
        """Discard the resident rows and the result of a running fill."""
        self._generation += 1
        self.drop_held()

    def may_go(self, now: datetime) -> bool:
        """Whether dropping this object loses nothing."""
        waits = self.not_before is not None and now < self.not_before
        idle = not self.too_large and not self.unsaid and not waits
        return self.held is None and not self.overlay and idle


# The owners with state in this process, within a bound of bytes.


class PartitionCache:
    """Evicts the least recently used owner. Writes that the store may not show yet stay, even beyond the bound."""

    def __init__(
        self, most: Callable[[], int], settle: Callable[[], timedelta], metrics: Metrics, *, monotonic_now: Steady
    ) -> None:
        """*most*: bytes in total. *settle*: the time after which the store's reads show acknowledged writes."""
        self._most = most
        self.size = 0  # bytes in use
        self._settle = settle
        self._metrics = metrics
        self._monotonic_now = monotonic_now
        self._owned: OrderedDict[Owner, OwnerOverlay] = OrderedDict()  # least recently used first

    def owners(self) -> list[Owner]:
        """Owners with state in this process."""
        return list(self._owned)

    def of(self, owner: Owner) -> OwnerOverlay | None:
        """The state of *owner*, or None. Does not count as a use."""
        return self._owned.get(owner)

    @contextmanager
    def using(self, owner: Owner) -> Iterator[OwnerOverlay]:
        """The state of *owner*, which is not evicted within the block."""
        owned = self._owned.get(owner)
        if owned is None:
            owned = self._owned[owner] = OwnerOverlay()
        self._owned.move_to_end(owner)
        owned.users += 1
        try:
            yield owned
        finally:
            owned.users -= 1
            if owned.overlay:
                owned.prune(self._monotonic_now(), self._settle())
            if owned.held is not None and owned.size > self._most():
                owned.too_large = True
                owned.drop_held()
            self.account(owned)
            self.release(owner, owned)
            if self.size > self._most():
                self._trim()

    def account(self, owned: OwnerOverlay) -> None:
        size = owned.size
        if size != owned.counted:
            self.size += size - owned.counted
            owned.counted = size
            self._metrics.partition_bytes.set(self.size)
            self._metrics.partitions.set(len(self._owned))

    def release(self, owner: Owner, owned: OwnerOverlay) -> None:
        if not owned.users and owned.may_go(self._monotonic_now()) and owner in self._owned:
            del self._owned[owner]
            self.size -= owned.counted
            self._metrics.partition_bytes.set(self.size)
            self._metrics.partitions.set(len(self._owned))

    def _trim(self) -> None:
        """Lets the least recently used go until all fits; what the store may not show yet stays."""
        now, over = self._monotonic_now(), self.size - self._most()
        victims: list[tuple[Owner, OwnerOverlay]] = []
        for owner, owned in self._owned.items():
            if over <= 0:
                break
            if not owned.users and not owned.hides_store(now, self._settle()):
                victims.append((owner, owned))
                over -= owned.size
        for owner, owned in victims:
            owned.prune(now, self._settle())
            owned.drop_held()
            owned.too_large = False
            self.account(owned)
            self.release(owner, owned)
