"""Records of what conversations were given, so that a later request of the same conversation gets it back.

One record for each turn, under the key of the conversation up to it: what was decided for its words, and every
block in view by then. So one read finds all of a conversation, and a record that is lost costs one miss in the
provider's prompt cache and nothing else. Records carry the owner's epoch: what was put before a forget is not
read after it, on whatever replica.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import msgspec

from memory_extproc.concurrency import Background, off_loop
from memory_extproc.dialect.base import ChatRequest, Form, Placing
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Caller, Outcome, Owner, Profile, RecallResult, Role, digest
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Now
from memory_extproc.request.admission import RequestOptions, circle_of
from memory_extproc.text.words import estimate_tokens

# --- given -------------------------------------------------------------------------------------------
# What a conversation was given: blocks, each in its place, and the keys by which the conversation is known again
# when the client sends it once more. Pure.
#
# Clients resend what was said, without what we put in. The block goes back to where it stood, so that the request
# begins with the very bytes of the one before.

_LONG = 16_384  # characters; of a longer message only the ends are trimmed for comparing: it is a hot path


PROFILE = "profile"  # the path of a request that was told who its caller is, and nothing else


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What recall came to for one caller's words. Holds memories: its print is its outcome."""

    outcome: Outcome
    block: str = ""
    path: str = ""
    ids: tuple[str, ...] = ()  # of the memories in the block
    contents: tuple[str, ...] = ()  # of the same
    profile: tuple[str, ...] = ()  # ids of those that say who the caller is

    @classmethod
    def of(cls, recalled: RecallResult) -> Decision:
        return cls(
            outcome=recalled.outcome,
            block=recalled.block.encode("utf-8", "replace").decode(),
            path=recalled.path,
            ids=tuple(ranked.memory.id for ranked in recalled.memories),
            # Half a surrogate pair, which no record can hold, is not in what a store gave; other sources may err.
            contents=tuple(
                ranked.memory.content.encode("utf-8", "replace").decode() for ranked in recalled.memories
            ),
        )

    def with_profile(self, profile: Profile) -> Decision:
        """With *profile* in front, in a block of its own."""
        text = profile.text.encode("utf-8", "replace").decode()
        contents = tuple(content.encode("utf-8", "replace").decode() for content in profile.contents)
        return Decision(
            outcome=Outcome.USED,
            block=f"{text}\n{self.block}" if self.block else text,
            path=self.path or PROFILE,
            ids=(*profile.ids, *self.ids),
            contents=(*contents, *self.contents),
            profile=profile.ids,
        )

    def __repr__(self) -> str:
        return f"<decision: {self.outcome.value}>"


class InjectedBlock(msgspec.Struct, frozen=True, array_like=True):
    """One block in its place. Holds memories: its print is its size."""

    at: int  # which of the conversation's user messages it stands at, from 0
    form: Form
    block: str
    ids: tuple[str, ...]
    contents: tuple[str, ...]
    profile: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Estimated."""
        return estimate_tokens(self.block)

    def __repr__(self) -> str:
        return f"<given: {len(self.block)} chars>"


Blocks = tuple[InjectedBlock, ...]  # oldest first, at most one for each user message


def tokens_of(blocks: Iterable[InjectedBlock]) -> int:
    return sum(one.tokens for one in blocks)


def contents_of(blocks: Iterable[InjectedBlock]) -> tuple[str, ...]:
    return tuple(content for one in blocks for content in one.contents)


def ids_of(blocks: Iterable[InjectedBlock]) -> tuple[str, ...]:
    return tuple(one for block in blocks for one in block.ids)


def fitting(blocks: Blocks, most: int) -> Blocks:
    """All of *blocks* when they have at most *most* tokens. Else the newest with at most half of that: each time
    the oldest goes the provider's cache is lost from there on, so it is to happen seldom."""
    left = tokens_of(blocks)
    if left <= most:
        return blocks
    for number, one in enumerate(blocks):
        if left <= most // 2:
            return blocks[number:]
        left -= one.tokens
    return ()


def placings(blocks: Blocks, request: ChatRequest, allowed: Form) -> list[Placing]:
    """Where *blocks* go in *request*. *allowed*: the form a new block would have; where that is USER_SUFFIX the
    model may refuse, drop or hoist late system messages, whatever it was that took the blocks before."""
    last = len(request.user_at) - 1
    return [
        Placing(one.block, Form.USER_SUFFIX if allowed is Form.USER_SUFFIX else one.form, last - one.at)
        for one in blocks
    ]


def keys_of(caller: Caller, request: ChatRequest, most: int, circle: str = "") -> list[str]:
    """Keys of the conversation up to each of its user messages, the last *most* of them, what is asked last:
    rolling hashes of all that was said by then. Of owner, project and session too, so none is shared by two, and
    of the *circle* of what may be given (sharing.circle_of)."""
    of_whom = (caller.owner.key, caller.project, caller.session, request.continues)
    running = hashlib.sha256(digest("given", *of_whom, *([circle] if circle else [])).encode())
    keys: list[str] = []
    for message in request.history:
        _add(running, message.role, message.text)
        if message.role is Role.USER:
            keys.append(running.hexdigest())
    if request.asked:
        _add(running, Role.USER, request.asked)
        keys.append(running.hexdigest())
    return keys[-most:]


def response_key(response_id: str) -> str:
    """Key of the conversation that a provider keeps behind *response_id*."""
    return digest("given", "response", response_id)


def _add(running: hashlib._Hash, role: Role, text: str) -> None:
    encoded = _normal(text).encode("utf-8", "surrogatepass")
    running.update(f"{role.value}:{len(encoded)}:".encode())
    running.update(encoded)


def _normal(text: str) -> str:
    """*text* as it is compared: clients trim and re-wrap what they send back."""
    return " ".join(text.split()) if len(text) <= _LONG else text.strip()


# --- replays -----------------------------------------------------------------------------------------

log = logger(__name__)

TURN, RESPONSE = "given", "given_response"  # kinds of records in Coordination
LOOKBACK = 6  # turns looked back over for a record: those between may have had memory switched off
REGENERATED = timedelta(minutes=2)  # the same words after the same conversation, within it and with none between
TOGETHER = 0.05  # seconds that records wait for one another before they are written
_LAST = 4096  # owners whose last words are known


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One turn of a conversation. Holds memories, and prints none."""

    epoch: int
    made: float  # seconds since 1970
    at: int  # which of the conversation's user messages asked
    decision: Decision
    form: Form | None  # of the decision's block; None where none was placed
    before: Blocks  # given to the conversation before it and still in view

    @property
    def blocks(self) -> Blocks:
        """All that is in view behind it."""
        if self.form is None:
            return self.before
        mine = self.decision
        return (*self.before, InjectedBlock(self.at, self.form, mine.block, mine.ids, mine.contents, mine.profile))


class _Behind(msgspec.Struct, frozen=True, array_like=True):
    """What a provider keeps for us in the conversation behind a response id."""

    epoch: int
    contents: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<behind: {len(self.contents)} memories>"


R = TypeVar("R", Record, _Behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationState:
    """A conversation at one request, as far as the records know it."""

    owner: Owner
    key: str = ""  # of this turn; empty: nothing is to be kept of it
    epoch: int = 0
    decided: Decision | None = None  # what was decided for these very words, and stands
    blocks: Blocks = field(default=(), repr=False)  # given before, to be put back
    behind: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories that the provider keeps


@dataclass(frozen=True, slots=True)
class InView:
    """What the model has been given by now, for the request that will continue from its response."""

    owner: Owner
    epoch: int
    contents: tuple[str, ...] = field(repr=False)


class BlockReplay:
    """In *shared*, and in this process for as long as it is not there yet. Without *shared*, in process alone."""

    def __init__(
        self,
        options: RequestOptions,
        shared: Coordination | None = None,
        *,
        background: Background,
        metrics: Metrics,
        now: Now,
    ) -> None:
        self._options, self._shared, self._background = options, shared, background
        self._metrics, self._now = metrics, now
        self._unshared: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()  # by owner, kind, key
        self._unshared_bytes = 0
        self._last: OrderedDict[str, str] = OrderedDict()

    def reconfigure(self, options: RequestOptions) -> None:
        self._options = options

    async def find(
        self,
        caller: Caller,
        request: ChatRequest,
        shared: tuple[Owner, ...] = (),
        origins: tuple[str, ...] = (),
    ) -> ConversationState:
        """What the conversation was given while the caller could reach the memories of *shared* and those of
        *origins*, nothing of which was forgotten since. Never raises: what cannot be read in time was never
        there."""
        nothing = ConversationState(owner=caller.owner)
        try:
            async with asyncio.timeout(self._options.replay_wait.total_seconds()):
                circle = circle_of(shared, origins, tuple(await asyncio.gather(*map(self._epoch, shared))))
                keys = await off_loop(len(request.body), keys_of, caller, request, LOOKBACK, circle)
                mine = keys.pop() if request.asked else ""
                same = bool(mine) and self._said_again(caller.owner, mine)
                return await self._found(caller.owner, request, mine, keys[::-1], same=same)
        except TimeoutError:
            self._metrics.replays.labels("out_of_time").inc()
            log.warning("replay.out_of_time")
            return nothing
        except MemoryExtprocError as error:
            self._metrics.replays.labels("unavailable").inc()
            log.warning("replay.unread", kind=type(error).__name__)
            return nothing

    def keep(self, thread: ConversationState, request: ChatRequest, decision: Decision, form: Form | None) -> None:
        """Notes what the turn was given. It can be found at once, here; elsewhere once it is written, behind."""
        record = Record(
            epoch=thread.epoch,
            made=self._now().timestamp(),
            at=len(request.user_at) - 1,
            decision=decision,
            form=form,
            before=thread.blocks,
        )
        self._put(thread.owner, TURN, thread.key, msgspec.json.encode(record), thread.epoch)

    def record_view(self, view: InView, response_id: str) -> None:
        """Notes what the model has seen in the conversation that may be continued from *response_id*."""
        left = self._options.replay_tokens
        newest: list[str] = []
        for content in reversed(view.contents):
            left -= estimate_tokens(content)
            if left < 0:
                break
            newest.append(content)
        behind = _Behind(view.epoch, tuple(reversed(newest)))
        self._put(view.owner, RESPONSE, response_key(response_id), msgspec.json.encode(behind), view.epoch)

    async def provider_context(self, owner: Owner, response_id: str) -> tuple[str, ...]:
        """Contents of the memories that the model has seen in what *response_id* continues. Never raises."""
        try:
            async with asyncio.timeout(self._options.replay_wait.total_seconds()):
                key = response_key(response_id) if response_id else ""
                epoch, known = await asyncio.gather(self._epoch(owner), self._get(owner, RESPONSE, key, _Behind))
        except (MemoryExtprocError, TimeoutError) as error:
            log.warning("replay.unread", kind=type(error).__name__)
            return ()
        known = _of_epoch(known, epoch)
        return () if known is None else known.contents

    async def stands(self, thread: ConversationState) -> bool:
        """Whether nothing of the owner was forgotten since *thread* was found. True where that cannot be told in
        time: without a lease nothing would have been recalled."""
        try:
            async with asyncio.timeout(self._options.replay_wait.total_seconds()):
                return await self._epoch(thread.owner) == thread.epoch
        except (MemoryExtprocError, TimeoutError):
            return True

    def forget(self, owner: Owner) -> None:
        """Drops what this process holds for *owner*; Coordination drops the rest."""
        self._last.pop(owner.key, None)
        for place in [place for place in self._unshared if place[0] == owner.key]:
            self._drop(place)

    # --- finding -------------------------------------------------------------------------------------
    async def _found(
        self, owner: Owner, request: ChatRequest, mine: str, earlier: Sequence[str], *, same: bool
    ) -> ConversationState:
        """*mine*: the key of this turn, empty where nobody's words ask; *earlier*: of the turns before it, the
        latest first."""
        looping, replays = request.ends_in_tool_result, self._options.replay
        # An opening has nothing before it, and its words alone do not tell it from another conversation's.
        again = bool(mine) and (looping or (replays and bool(earlier)))
        before = earlier if replays else ()
        previous = request.continues if replays else ""
        epoch, own, latest, behind = await asyncio.gather(
            self._epoch(owner),
            self._get(owner, TURN, mine if again else "", Record),
            self._get(owner, TURN, before[0] if before else "", Record),
            self._get(owner, RESPONSE, response_key(previous) if previous else "", _Behind),
        )
        own, latest, behind = _of_epoch(own, epoch), _of_epoch(latest, epoch), _of_epoch(behind, epoch)
        if own is None and latest is None:
            latest = await self._first(owner, before[1:], epoch)
        blocks: Blocks = ()
        if replays:
            blocks = own.before if own is not None else latest.blocks if latest is not None else ()
        return ConversationState(
            owner=owner,
            key=mine,
            epoch=epoch,
            decided=own.decision if own is not None and self._stands(own, looping=looping, same=same) else None,
            blocks=blocks,
            behind=behind.contents if behind is not None else (),
        )

    async def _first(self, owner: Owner, keys: Sequence[str], epoch: int) -> Record | None:
        """All at once: most conversations that get here were never given anything, and none is to be found."""
        records = await asyncio.gather(*(self._get(owner, TURN, key, Record) for key in keys))
        return next((record for record in records if _of_epoch(record, epoch) is not None), None)

    def _stands(self, own: Record, *, looping: bool, same: bool) -> bool:
        """In a tool loop whatever was decided; for words said again only a block, and only shortly after: what
        was not known then may be by now."""
        if looping:
            return True
        fresh = abs(self._now().timestamp() - own.made) < REGENERATED.total_seconds()
        return same and fresh and own.decision.outcome is Outcome.USED

    def _said_again(self, owner: Owner, key: str) -> bool:
        """Whether these were the owner's last words before; they are now."""
        same = self._last.get(owner.key) == key
        self._last[owner.key] = key
        self._last.move_to_end(owner.key)
        if len(self._last) > _LAST:
            self._last.popitem(last=False)
        return same

    async def _epoch(self, owner: Owner) -> int:
        return 0 if self._shared is None else await self._shared.epoch(owner)

    async def _get(self, owner: Owner, kind: str, key: str, of: type[R]) -> R | None:
        if not key:
            return None
        raw = self._unshared.get((owner.key, kind, key))
        if raw is None and self._shared is not None:
            raw = await self._shared.get_record(kind, owner, key)
        if raw is None:
            return None
        try:
            return msgspec.json.decode(raw, type=of)
        except msgspec.MsgspecError:  # of another version: as if it had been lost
            log.warning("replay.unreadable")
            return None

    # --- keeping -------------------------------------------------------------------------------------
    def _put(self, owner: Owner, kind: str, key: str, raw: bytes, epoch: int) -> None:
        place = (owner.key, kind, key)
        self._drop(place)
        self._unshared[place] = raw
        self._unshared_bytes += len(raw)
        while self._unshared_bytes > self._options.replay_bytes:
            self._drop(next(iter(self._unshared)))
        if self._shared is not None:
            self._background.start(self._share(self._shared, owner, kind, key, raw, epoch))

    async def _share(self, shared: Coordination, owner: Owner, kind: str, key: str, raw: bytes, epoch: int) -> None:
        place = (owner.key, kind, key)
        # Behind the answer to the request that it is of, and in one commit with what came about the same time.
        await asyncio.sleep(TOGETHER - asyncio.get_running_loop().time() % TOGETHER)
        try:
            if self._unshared.get(place, raw) is not raw:  # there is a newer one, which writes itself
                return
            if await shared.epoch(owner) == epoch:
                await shared.put_record(kind, owner, key, raw, self._options.replay_keep)
                # Forgotten while we wrote: it would not be read again, but it is not to be kept either.
                if await shared.epoch(owner) != epoch:
                    await shared.delete_records(owner, [TURN, RESPONSE])
        except MemoryExtprocError as error:
            log.warning("replay.not_shared", kind=type(error).__name__)
            return
        if self._unshared.get(place) is raw:
            self._drop(place)

    def _drop(self, place: tuple[str, str, str]) -> None:
        self._unshared_bytes -= len(self._unshared.pop(place, b""))


def _of_epoch(record: R | None, epoch: int) -> R | None:
    return record if record is not None and record.epoch == epoch else None
