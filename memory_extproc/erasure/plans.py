"""Dry runs that can be confirmed: what was listed is kept for a while, so that exactly that goes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from memory_extproc.errors import NotConfirmedError
from memory_extproc.model import ForgetPlan, ForgetScope, Memory, Owner, digest
from memory_extproc.ports import Coordination, Now

RECORD = "forget_plan"  # kind of a record in Coordination; holds ids and no words
_SHOWN = 1_000


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    scope: str
    ids: tuple[str, ...]
    # Of them, what the scope named itself; None: an older version does not say.
    named: tuple[str, ...] | None = None


class Plans:
    def __init__(self, records: Coordination, keep: timedelta, now: Now) -> None:
        self._records, self._keep, self._now = records, keep, now

    async def made(
        self, owner: Owner, scope: ForgetScope, memories: Sequence[Memory], named: frozenset[str]
    ) -> ForgetPlan:
        """*memories*: the newest first; *named*: the ids of those that *scope* names itself."""
        token = uuid.uuid4().hex
        kept = _Kept(_named(scope), tuple(memory.id for memory in memories), tuple(sorted(named)))
        expires = self._now() + self._keep
        await self._records.put_record(RECORD, owner, token, msgspec.json.encode(kept), self._keep)
        return ForgetPlan(memories=tuple(memories[:_SHOWN]), total=len(memories), token=token, expires_at=expires)

    async def confirmed(self, owner: Owner, scope: ForgetScope, token: str) -> ForgetScope:
        """What takes what was listed: the messages that were listed with a fact are not named themselves, or they
        would bring its turn's other facts. NotConfirmedError for a token of another owner or scope, or an old
        one."""
        raw = await self._records.get_record(RECORD, owner, token)
        kept = None if raw is None else msgspec.json.decode(raw, type=_Kept)
        if kept is None or kept.scope != _named(scope):
            raise NotConfirmedError("this confirmation is not of that scope, or has expired: run it dry once more")
        named = kept.ids if kept.named is None else kept.named
        return ForgetScope(ids=named or ("",), listed=tuple(sorted({*kept.ids} - {*named})))


def _named(scope: ForgetScope) -> str:
    before = "" if scope.before is None else scope.before.isoformat()
    types = ",".join(sorted(kind.value for kind in scope.types))
    return digest("forget", *sorted(scope.ids), "", scope.project, types, scope.session, before, scope.query)
