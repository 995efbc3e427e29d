"""Whether a turn that fails is at fault itself, or meets an outage; and dead letters that an outage left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from memory_extproc.errors import TryLaterError
from memory_extproc.observe.log import logger
from memory_extproc.ports import Journal

log = logger(__name__)
_PAGE = 500
_REVIVALS = 3  # of one dead letter by one process
# Reasons of dead letters with which a store may have failed, older versions' included.
_REASONS = frozenset({"GiveUpError", "UnknownFaultError", "NotReadyError", "TryLaterError"})


class Evidence:
    """Of one step of learning: which turns fail at it, and whether others succeed meanwhile."""

    def __init__(self, store_works: Callable[[], bool]) -> None:
        self._store_works = store_works
        self._successes = 0
        self._failing: dict[str, int] = {}  # turn id → successes at its last failure
        self._doubted = False  # a failure was not the turn's own, and nothing has succeeded since
        self.recovered = False  # something succeeded after that; who acts on it resets it

    def succeed(self, turn_ids: Sequence[str], *, proves: bool) -> None:
        """These fail no longer, or are gone. *proves*: the step was really taken for them."""
        for turn_id in turn_ids:
            self._failing.pop(turn_id, None)
        if proves:
            self._successes += 1
            self.recovered = self.recovered or self._doubted
            self._doubted = False

    def fail(self, turn_id: str, error: Exception) -> bool:
        """Whether this failure counts against the turn: others have succeeded since its last one, or, for an error
        that is known to be permanent, no other turn fails and the store works."""
        before = self._failing.get(turn_id)
        self._failing[turn_id] = self._successes
        if before is not None and self._successes > before:
            return True
        alone = len(self._failing) == 1 and self._store_works()
        if alone and not isinstance(error, TryLaterError):
            return True
        self._doubted = True
        return False


class Revival:
    """Has dead letters tried again when the process has begun with a store that works, and after each outage."""

    def __init__(self, journal: Journal, evidence: Sequence[Evidence], store_works: Callable[[], bool]) -> None:
        self._journal, self._evidence, self._store_works = journal, evidence, store_works
        self._due = True
        self._revived: Counter[str] = Counter()

    async def revive(self) -> None:
        for one in self._evidence:
            self._due = self._due or one.recovered
            one.recovered = False
        if not self._due or not self._store_works():
            return
        after, count = "", 0
        while letters := await self._journal.dead(_PAGE, after=after):
            ids = [one.turn_id for one in letters if one.reason in _REASONS]
            ids = [turn_id for turn_id in ids if self._revived[turn_id] < _REVIVALS]
            count += await self._journal.retry(ids)
            self._revived.update(ids)
            after = letters[-1].place
        self._due = False
        if count:
            log.info("learn.retried", turns=count)
