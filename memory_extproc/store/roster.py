"""The owners of whom something is held in process, within a bound of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from memory_extproc.model import Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Steady
from memory_extproc.store.owned import Owned


class Roster:
    """The least recently used goes first; what the store may not show yet stays, and may exceed the bound."""

    def __init__(self, most: int, settle: Callable[[], timedelta], metrics: Metrics, *, steady: Steady) -> None:
        """*most*: bytes of all together. *settle*: after it, a store's read shows what was acknowledged before."""
        self.most = most
        self.size = 0  # bytes of all that is held
        self._settle = settle
        self._metrics = metrics
        self._steady = steady
        self._owned: OrderedDict[Owner, Owned] = OrderedDict()  # least recently used first

    def owners(self) -> list[Owner]:
        """Those of whom anything is held."""
        return list(self._owned)

    def of(self, owner: Owner) -> Owned | None:
        """None where nothing is held. Asking is no use of it."""
        return self._owned.get(owner)

    @contextmanager
    def using(self, owner: Owner) -> Iterator[Owned]:
        """What we know of *owner*, which stays ours until the end of the block."""
        owned = self._owned.get(owner)
        if owned is None:
            owned = self._owned[owner] = Owned()
        self._owned.move_to_end(owner)
        owned.users += 1
        try:
            yield owned
        finally:
            owned.users -= 1
            if owned.overlay:
                owned.prune(self._steady(), self._settle())
            if owned.held is not None and owned.size > self.most:
                owned.too_large = True
                owned.drop_held()
            self.account(owned)
            self.release(owner, owned)
            if self.size > self.most:
                self._trim()

    def account(self, owned: Owned) -> None:
        size = owned.size
        if size != owned.counted:
            self.size += size - owned.counted
            owned.counted = size
            self._metrics.partition_bytes.set(self.size)
            self._metrics.partitions.set(len(self._owned))

    def release(self, owner: Owner, owned: Owned) -> None:
        if not owned.users and owned.may_go(self._steady()) and owner in self._owned:
            del self._owned[owner]
            self.size -= owned.counted
            self._metrics.partition_bytes.set(self.size)
            self._metrics.partitions.set(len(self._owned))

    def _trim(self) -> None:
        """Lets the least recently used go until all fits; what the store may not show yet stays."""
        now, over = self._steady(), self.size - self.most
        victims: list[tuple[Owner, Owned]] = []
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
