"""A forget under way, as the ledger keeps it, and the receipt that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Self

import msgspec

from memory_extproc.model import Erased, ForgetReceipt, ForgetScope, ForgetState, LedgerJob, Owner

# What a moment may have lost to rounding where it stands in a memory's metadata.
_ROUNDING = timedelta(milliseconds=1)
WAITING_TURNS = "waiting_turns"  # step: accepted turns of before the forget that could not be looked through yet
NOTHING_FOUND = "nothing was found of what was asked for"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one store has come."""

    removed: int = 0
    done_at: datetime | None = None
    pending_until: datetime | None = None
    note: str = ""


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """*owner* and *scope* are there until it is complete; then only the hash tells whose it was."""

    id: str
    subject: str
    name: str  # of the scope
    at: datetime
    state: ForgetState = ForgetState.ACCEPTED
    owner: Owner | None = None
    scope: ForgetScope | None = None
    clean_at: datetime | None = None
    completed_at: datetime | None = None
    steps: Mapping[str, Step] = {}

    @classmethod
    def read(cls, kept: LedgerJob) -> Self:
        return msgspec.json.decode(kept.body, type=cls)

    @property
    def until(self) -> float:
        """What was said up to then goes; seconds since 1970."""
        return (self.at + _ROUNDING).timestamp()

    @property
    def waits_for_turns(self) -> bool:
        """Whether all that can be reached is erased, and only turns out of reach keep it from being clean."""
        step = self.steps.get(WAITING_TURNS)
        return self.state is ForgetState.ACCEPTED and step is not None and step.done_at is None

    def kept(self) -> LedgerJob:
        complete = self.state is ForgetState.COMPLETE
        body = msgspec.structs.replace(self, owner=None, scope=None) if complete else self
        return LedgerJob(
            self.id,
            self.subject,
            msgspec.json.encode(body),
            shut=self.state is ForgetState.ACCEPTED and not self.waits_for_turns,
            open=not complete,
        )

    def removed(self, store: str, count: int) -> Job:
        """*count* more went from *store*."""
        step = self.steps.get(store, Step())
        return self._with(store, msgspec.structs.replace(step, removed=step.removed + count))

    def done(self, store: str, at: datetime, *, note: str = "") -> Job:
        step = self.steps.get(store, Step())
        if step.done_at is not None:
            return self
        return self._with(store, msgspec.structs.replace(step, done_at=at, pending_until=None, note=note))

    def pends(self, store: str, note: str, until: datetime | None = None) -> Job:
        step = self.steps.get(store, Step())
        return self._with(store, msgspec.structs.replace(step, done_at=None, pending_until=until, note=note))

    def _with(self, store: str, step: Step) -> Job:
        return msgspec.structs.replace(self, steps={**self.steps, store: step})

    def receipt(self) -> ForgetReceipt:
        return ForgetReceipt(
            id=self.id,
            state=self.state,
            scope=self.name,
            subject=self.subject,
            accepted_at=self.at.astimezone(UTC),
            clean_at=self.clean_at,
            completed_at=self.completed_at,
            memories=self.steps.get("memories", Step()).removed,
            stores=tuple(
                Erased(
                    store=store,
                    done=step.done_at is not None,
                    removed=step.removed,
                    done_at=step.done_at,
                    pending_until=step.pending_until,
                    note=step.note,
                )
                for store, step in sorted(self.steps.items())
            ),
        )


def without_words(scope: ForgetScope, ids: tuple[str, ...]) -> ForgetScope:
    """*scope* as it is kept: what a query found stands in for its words."""
    return replace(scope, query="", ids=ids) if scope.query else scope
