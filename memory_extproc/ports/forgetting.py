"""What forgetting asks, and what is asked of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memory_extproc.model import (
    Embedded,
    Exchanged,
    ForgetPlan,
    ForgetReceipt,
    ForgetScope,
    LedgerJob,
    LedgerMarks,
    Owner,
    Turn,
    WaitingPlace,
)


class Forgets(Protocol):
    """What the memory API asks of a forget."""

    async def plan(self, owner: Owner, scope: ForgetScope) -> ForgetPlan:
        """What forgetting *scope* would take, all that comes from it or carries its words counted in."""

    async def forget(self, owner: Owner, scope: ForgetScope, *, token: str = "") -> ForgetReceipt:
        """Once it returns nothing of *scope* can be recalled, whatever was under way; what is left to be done is
        done in the background, after a crash too. While turns that were accepted before it wait out of reach the
        receipt stays `accepted`, and says where. *token*: of a plan, exactly what it listed goes; a scope with a
        query needs one, or the ids. NotConfirmedError for a token of another owner or scope, or one too old."""

    async def receipt(self, owner: Owner, receipt_id: str) -> ForgetReceipt | None:
        """As of now, signed; None for an id that is not *owner*'s."""


class Ledger(Protocol):
    """What was forgotten, and what of it is still to be done; kept apart from all that is backed up, or a restored
    backup would bring it back. Holds keyed hashes, and of a forget that is under way its owner and scope."""

    async def key(self) -> bytes:
        """The 32 bytes that hashes here are made with; made once, the same for every replica."""

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        """Puts *job* in place of the one with its id, and adds *cut* and *items* (forgotten *at*) to what is known
        of its subject: all of it or nothing, durable when it returns."""

    async def job(self, job_id: str) -> LedgerJob | None: ...

    async def unfinished(self) -> Sequence[LedgerJob]:
        """Every open job, in the order in which they were first written."""

    async def marks(self, subject: str) -> LedgerMarks:
        """*shut* while any of the subject's jobs is."""


class Replicas(Protocol):
    """The other processes that serve the same people, as far as a forget concerns them."""

    def holds(self) -> bool:
        """Whether our lease runs: only then may be served what we hold of anybody."""

    async def tell(self, subject: str) -> None:
        """Returns once every replica has dropped what it held of *subject*, or its lease has run out."""

    async def waiting(self, owner: Owner | None = None) -> Sequence[WaitingPlace]:
        """Data directories, this one included, that hold accepted turns of *owner*, or of anybody, that are not in
        the shared journal yet. A directory is listed too where nobody can tell whose turns it holds, or whether it
        holds any, because its replica ended without saying. A live replica's word is from after it had heard all
        that was told before."""


class KnowsForgotten(Protocol):
    """What the write path and the partitions ask before anything is shown or kept."""

    async def check(self, owner: Owner) -> None:
        """TryLaterError while a forget of *owner*'s is under way, or while it cannot be known whether one is."""

    async def admitted(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        """Those of *rows* that no forget covers. TryLaterError while one of *owner*'s is under way."""

    async def learnable(self, exchanged: Exchanged, turn: Turn) -> tuple[Exchanged, Turn] | None:
        """Both as they may be kept: None where the turn was asked before it was forgotten, or was forgotten and is
        sent again. Where the client's history still holds what was forgotten it is taken out of it, and the answer,
        which may repeat it, is left out."""

    async def left(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Those of *turns*, all of one owner, that no forget covers."""


class Purges(Protocol):
    """A store that keeps what was deleted until it is told to let go of it."""

    async def purge(self, owner: Owner) -> bool:
        """Has the bytes of *owner*'s deleted rows leave the store's files. True: they have; False: the store will
        see to it by itself in its own time."""
