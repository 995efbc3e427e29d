"""A budget in bytes for the bodies that open exchanges hold in this process."""

from __future__ import annotations

from memory_extproc.observe.metrics import Metrics

# Of the whole, what captures for learning may take together: the rest is kept free for reads, because a
# request that waits comes before an answer that might teach something.
LEARNING_SHARE = 0.75


class HeldBytes:
    """Counts bytes taken and given back. Never waits: what does not fit is refused, and the exchange goes on
    without it."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        """*limit*: bytes, above 0."""
        self._limit = limit
        self._reading = self._learning = 0
        self._gauge = metrics.process_bytes

    def use(self, limit: int) -> None:
        """A new limit in bytes; what is held beyond it stays until it is given back."""
        self._limit = limit

    @property
    def held(self) -> int:
        return self._reading + self._learning

    def take_to_read(self, count: int) -> bool:
        if self.held + count > self._limit:
            return False
        self._reading += count
        self._gauge.set(self.held)
        return True

    def take_to_learn(self, count: int) -> bool:
        if self._learning + count > self._limit * LEARNING_SHARE or self.held + count > self._limit:
            return False
        self._learning += count
        self._gauge.set(self.held)
        return True

    def give_read(self, count: int) -> None:
        self._reading -= count
        self._gauge.set(self.held)

    def give_learned(self, count: int) -> None:
        self._learning -= count
        self._gauge.set(self.held)
