"""Replay: records the blocks injected into a conversation and restores them in its later requests.

There is a record per turn, keyed by the conversation up to it: the decision for the turn, and all blocks in view by
then. So a single read restores a conversation, and a lost record costs only a miss in the provider's prompt cache.
Records carry the owner's epoch: on every replica, a forget invalidates earlier records."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from typing import TypeVar

import msgspec
from cachetools import LRUCache

from memory_extproc.concurrency import Background, off_loop
from memory_extproc.dialect.base import ChatRequest, Form, Placing
from memory_extproc.errors import MemoryExtprocError
from memory_extproc.model import Caller, Outcome, Owner, RecallResult, Role, UserProfile, digest
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, Now
from memory_extproc.request.admission import circle_of
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.text.words import estimate_tokens

# Blocks and keys: the blocks of a conversation with their positions, and the keys that recognise the conversation
# when the client resends it. Pure functions.
#
# Clients resend messages without our blocks. Each block is restored at its position, so that the request begins
# with exactly the bytes of the previous request.

_LONG = 16_384  # characters; longer messages are only trimmed at the ends for comparison (hot path)


Given = tuple[str, float | None]  # a memory's id and relevance; None: it stands there for another reason
PROFILE = "profile"  # the path of a request that got only the user profile


class RecallDecision(msgspec.Struct, frozen=True, array_like=True):
    """The result of recall for a turn. Contains memories; its repr shows only the outcome."""

    outcome: Outcome
    block: str = ""
    path: str = ""
    ids: tuple[str, ...] = ()  # of the memories in the block
    contents: tuple[str, ...] = ()  # of the same memories
    profile: tuple[str, ...] = ()  # ids of the memories in the profile
    relevances: tuple[float, ...] = ()  # of the memories in the block, without those of the profile

    @classmethod
    def of(cls, recalled: RecallResult) -> RecallDecision:
        return cls(
            outcome=recalled.outcome,
            block=recalled.block.encode("utf-8", "replace").decode(),
            path=recalled.path,
            ids=tuple(ranked.memory.id for ranked in recalled.memories),
            # Records cannot encode a lone surrogate. Stores never return any; other sources may.
            contents=tuple(
                ranked.memory.content.encode("utf-8", "replace").decode() for ranked in recalled.memories
            ),
            relevances=tuple(round(ranked.relevance, 3) for ranked in recalled.memories),
        )

    def with_profile(self, profile: UserProfile) -> RecallDecision:
        """Return the decision with *profile* in a block of its own in front."""
        text = profile.text.encode("utf-8", "replace").decode()
        contents = tuple(content.encode("utf-8", "replace").decode() for content in profile.contents)
        return RecallDecision(
            outcome=Outcome.USED,
            block=f"{text}\n{self.block}" if self.block else text,
            path=self.path or PROFILE,
            ids=(*profile.ids, *self.ids),
            contents=(*contents, *self.contents),
            profile=profile.ids,
            relevances=self.relevances,
        )

    @property
    def given(self) -> tuple[Given, ...]:
        """The memories in the block: those of the profile, then the others, best first."""
        known = (*(None for _ in self.profile), *self.relevances)
        return tuple(zip_longest(self.ids, known[: len(self.ids)]))

    def __repr__(self) -> str:
        return f"<decision: {self.outcome.value}>"


class InjectedBlock(msgspec.Struct, frozen=True, array_like=True):
    """An injected block and its position. Contains memories; its repr shows only the size."""

    at: int  # index of the user message that holds the block, from 0
    form: Form
    block: str
    ids: tuple[str, ...]
    contents: tuple[str, ...]
    profile: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Estimated size in tokens."""
        return estimate_tokens(self.block)

    def __repr__(self) -> str:
        return f"<given: {len(self.block)} chars>"


Blocks = tuple[InjectedBlock, ...]  # oldest first, at most a single block per user message


def tokens_of(blocks: Iterable[InjectedBlock]) -> int:
    return sum(one.tokens for one in blocks)


def contents_of(blocks: Iterable[InjectedBlock]) -> tuple[str, ...]:
    return tuple(content for one in blocks for content in one.contents)


def ids_of(blocks: Iterable[InjectedBlock]) -> tuple[str, ...]:
    return tuple(one for block in blocks for one in block.ids)


def fitting(blocks: Blocks, most: int) -> Blocks:
    """Select *blocks* that fit into *most* tokens: all, or the newest within half of the limit.

    Dropping the oldest block invalidates the provider's cache from there on, so it must happen rarely."""
    left = tokens_of(blocks)
    if left <= most:
        return blocks
    for number, one in enumerate(blocks):
        if left <= most // 2:
            return blocks[number:]
        left -= one.tokens
    return ()


def placings(blocks: Blocks, request: ChatRequest, allowed: Form) -> list[Placing]:
    """Where *blocks* go in *request*. *allowed*: the form for a new block.

    With USER_SUFFIX the model may reject, drop or hoist late system messages, whatever model saw the blocks before.
    """
    last = len(request.user_at) - 1
    return [
        Placing(one.block, Form.USER_SUFFIX if allowed is Form.USER_SUFFIX else one.form, last - one.at)
        for one in blocks
    ]


def keys_of(caller: Caller, request: ChatRequest, most: int, circle: str) -> list[str]:
    """Keys of the conversation up to each of its last *most* user messages, the current message last.

    Each is a rolling hash of all earlier messages, owner, project and session, so no two conversations share a key,
    and of *circle*, the shared memories allowed (admission.circle_of)."""
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
    """The key of the conversation that a provider stores under *response_id*."""
    return digest("given", "response", response_id)


def _add(running: hashlib._Hash, role: Role, text: str) -> None:
    encoded = _normal(text).encode("utf-8", "surrogatepass")
    running.update(f"{role.value}:{len(encoded)}:".encode())
    running.update(encoded)


def _normal(text: str) -> str:
    """Normalise *text* for comparison: clients trim and re-wrap messages."""
    return " ".join(text.split()) if len(text) <= _LONG else text.strip()


log = logger(__name__)

TURN, RESPONSE = "given", "given_response"  # kinds of records in Coordination
LOOKBACK = 6  # turns searched for a record: memory may have been off in between
REGENERATED = timedelta(minutes=2)  # the same words after the same conversation, within it and with none between
TOGETHER = 0.05  # seconds for which records are collected into a batch
_LAST = 4096  # owners whose last words are known
MOST_UNSHARED = 16 << 20  # bytes of records that are not written yet


class ReplayedTurn(msgspec.Struct, frozen=True, array_like=True):
    """The record of a turn. Contains memories; its repr omits them."""

    epoch: int
    made: float  # seconds since 1970
    at: int  # index of the user message of this turn
    decision: RecallDecision
    form: Form | None  # of the decision's block; None if no block was inserted
    before: Blocks  # given to the conversation before it and still in view

    @property
    def blocks(self) -> Blocks:
        """All blocks in view after this turn."""
        if self.form is None:
            return self.before
        mine = self.decision
        return (*self.before, InjectedBlock(self.at, self.form, mine.block, mine.ids, mine.contents, mine.profile))


class _Behind(msgspec.Struct, frozen=True, array_like=True):
    """The memories in view in a conversation that the provider stores under a response id."""

    epoch: int
    contents: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<behind: {len(self.contents)} memories>"


R = TypeVar("R", ReplayedTurn, _Behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationState:
    """A conversation's state at a request, as far as records exist."""

    owner: Owner
    key: str = ""  # of this turn; empty: nothing is recorded
    epoch: int = 0
    decided: RecallDecision | None = None  # a valid decision made earlier for the same turn
    blocks: Blocks = field(default=(), repr=False)  # earlier blocks to replay
    behind: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories that the provider keeps


@dataclass(frozen=True, slots=True)
class InView:
    """The memories in view, recorded for the request that continues from this response."""

    owner: Owner
    epoch: int
    contents: tuple[str, ...] = field(repr=False)


def replay_wait(settings: Settings) -> timedelta:
    """The time for reading a conversation's records, within recall's deadline."""
    return settings.deadline / 3


class BlockReplay:
    """Stores records in *shared*, and in this process until they are written.

    Without *shared*, records stay in this process."""

    def __init__(
        self,
        current: CurrentSettings,
        shared: Coordination | None = None,
        *,
        background: Background,
        metrics: Metrics,
        now: Now,
        most_unshared: int = MOST_UNSHARED,
    ) -> None:
        self._current, self._shared, self._background = current, shared, background
        self._most_unshared = most_unshared
        self._metrics, self._now = metrics, now
        self._unshared: dict[tuple[str, str, str], bytes] = {}  # by owner, kind, key
        self._unshared_bytes = 0
        self._last: LRUCache[str, str] = LRUCache(_LAST)

    async def find(
        self, caller: Caller, request: ChatRequest, shared: tuple[Owner, ...] = (), origins: tuple[str, ...] = ()
    ) -> ConversationState:
        """Find the earlier blocks of a conversation. Never raises: unreadable or late records count as absent.

        Valid only while the caller may read the memories of *shared* and *origins*, and none of them was forgotten
        since."""
        nothing = ConversationState(owner=caller.owner)
        try:
            async with asyncio.timeout(replay_wait(self._current.settings).total_seconds()):
                circle = circle_of(shared, origins, tuple(await asyncio.gather(*map(self._epoch, shared))))
                keys = await off_loop(len(request.body), keys_of, caller, request, LOOKBACK, circle)
                mine = keys.pop() if request.asked else ""
                same = bool(mine) and self._said_again(caller.owner, mine)
                return await self._find_state(caller.owner, request, mine, keys[::-1], same=same)
        except TimeoutError:
            self._metrics.replays.labels("out_of_time").inc()
            log.warning("replay.out_of_time")
            return nothing
        except MemoryExtprocError as error:
            self._metrics.replays.labels("unavailable").inc()
            log.warning("replay.unread", kind=type(error).__name__)
            return nothing

    def keep(
        self, thread: ConversationState, request: ChatRequest, decision: RecallDecision, form: Form | None
    ) -> None:
        """Record the turn's decision: readable here at once, and elsewhere after the background write."""
        record = ReplayedTurn(
            epoch=thread.epoch,
            made=self._now().timestamp(),
            at=len(request.user_at) - 1,
            decision=decision,
            form=form,
            before=thread.blocks,
        )
        self._put(thread.owner, TURN, thread.key, msgspec.json.encode(record), thread.epoch)

    def record_view(self, view: InView, response_id: str) -> None:
        """Record the memories in view in the conversation that may continue from *response_id*."""
        left = self._current.settings.inject.replay_tokens
        newest: list[str] = []
        for content in reversed(view.contents):
            left -= estimate_tokens(content)
            if left < 0:
                break
            newest.append(content)
        behind = _Behind(view.epoch, tuple(reversed(newest)))
        self._put(view.owner, RESPONSE, response_key(response_id), msgspec.json.encode(behind), view.epoch)

    async def provider_context(self, owner: Owner, response_id: str) -> tuple[str, ...]:
        """Contents of the memories in view in the conversation of *response_id*. Never raises."""
        try:
            async with asyncio.timeout(replay_wait(self._current.settings).total_seconds()):
                key = response_key(response_id) if response_id else ""
                epoch, known = await asyncio.gather(self._epoch(owner), self._get(owner, RESPONSE, key, _Behind))
        except (MemoryExtprocError, TimeoutError) as error:
            log.warning("replay.unread", kind=type(error).__name__)
            return ()
        known = _of_epoch(known, epoch)
        return () if known is None else known.contents

    async def stands(self, thread: ConversationState) -> bool:
        """Whether the owner forgot nothing since *thread* was found.

        True if that is unknown in time: without a lease nothing would have been recalled."""
        try:
            async with asyncio.timeout(replay_wait(self._current.settings).total_seconds()):
                return await self._epoch(thread.owner) == thread.epoch
        except (MemoryExtprocError, TimeoutError):
            return True

    def forget(self, owner: Owner) -> None:
        """Drop this process's records of *owner*; Coordination drops the others."""
        self._last.pop(owner.key, None)
        for place in [place for place in self._unshared if place[0] == owner.key]:
            self._drop(place)

    async def _find_state(
        self, owner: Owner, request: ChatRequest, mine: str, earlier: Sequence[str], *, same: bool
    ) -> ConversationState:
        """*mine*: the key of this turn, empty without user text;

        *earlier*: those of previous turns, latest first."""
        looping, replays = request.ends_in_tool_result, self._current.settings.inject.replay
        # A first message has no history, and its text alone does not distinguish conversations.
        again = bool(mine) and (looping or (replays and bool(earlier)))
        before = earlier if replays else ()
        previous = request.continues if replays else ""
        epoch, own, latest, behind = await asyncio.gather(
            self._epoch(owner),
            self._get(owner, TURN, mine if again else "", ReplayedTurn),
            self._get(owner, TURN, before[0] if before else "", ReplayedTurn),
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

    async def _first(self, owner: Owner, keys: Sequence[str], epoch: int) -> ReplayedTurn | None:
        """Read all keys at once: most conversations that get here have no record."""
        found = {key: raw for key in keys if (raw := self._unshared.get((owner.key, TURN, key))) is not None}
        if self._shared is not None and (others := [key for key in keys if key not in found]):
            found |= await self._shared.find_records(TURN, owner, others)
        records = (_read_record(found[key], ReplayedTurn) for key in keys if key in found)
        return next((record for record in records if _of_epoch(record, epoch) is not None), None)

    def _stands(self, own: ReplayedTurn, *, looping: bool, same: bool) -> bool:
        """Whether a recorded decision is reused.

        In a tool loop always. For a repeated message only with a block, and only for a short time: new memories may
        exist."""
        if looping:
            return True
        fresh = abs(self._now().timestamp() - own.made) < REGENERATED.total_seconds()
        return same and fresh and own.decision.outcome is Outcome.USED

    def _said_again(self, owner: Owner, key: str) -> bool:
        """Whether the owner's previous message had the same key; records the key."""
        same = self._last.get(owner.key) == key
        self._last[owner.key] = key
        return same

    async def _epoch(self, owner: Owner) -> int:
        return 0 if self._shared is None else await self._shared.epoch(owner)

    async def _get(self, owner: Owner, kind: str, key: str, of: type[R]) -> R | None:
        if not key:
            return None
        raw = self._unshared.get((owner.key, kind, key))
        if raw is None and self._shared is not None:
            raw = await self._shared.get_record(kind, owner, key)
        return None if raw is None else _read_record(raw, of)

    def _put(self, owner: Owner, kind: str, key: str, raw: bytes, epoch: int) -> None:
        place = (owner.key, kind, key)
        self._drop(place)
        self._unshared[place] = raw
        self._unshared_bytes += len(raw)
        while self._unshared_bytes > self._most_unshared:
            self._drop(next(iter(self._unshared)))
        if self._shared is not None:
            self._background.start(self._share(self._shared, owner, kind, key, raw, epoch))

    async def _share(self, shared: Coordination, owner: Owner, kind: str, key: str, raw: bytes, epoch: int) -> None:
        place = (owner.key, kind, key)
        # Write after the response is under way, in a batch with the records of the same moment.
        await asyncio.sleep(TOGETHER - asyncio.get_running_loop().time() % TOGETHER)
        try:
            if self._unshared.get(place, raw) is not raw:  # superseded by a newer record, which has its own write
                return
            if await shared.epoch(owner) == epoch:
                await shared.put_record(kind, owner, key, raw, self._current.settings.inject.replay_keep)
                # Forgotten during the write: the record would never be read, but must not stay stored either.
                if await shared.epoch(owner) != epoch:
                    await shared.delete_records(owner, [TURN, RESPONSE])
        except MemoryExtprocError as error:
            log.warning("replay.not_shared", kind=type(error).__name__)
            return
        if self._unshared.get(place) is raw:
            self._drop(place)

    def _drop(self, place: tuple[str, str, str]) -> None:
        self._unshared_bytes -= len(self._unshared.pop(place, b""))


def _read_record(raw: bytes, of: type[R]) -> R | None:
    try:
        return msgspec.json.decode(raw, type=of)
    except msgspec.MsgspecError:  # of another version: as if it had been lost
        log.warning("replay.unreadable")
        return None


def _of_epoch(record: R | None, epoch: int) -> R | None:
    return record if record is not None and record.epoch == epoch else None
