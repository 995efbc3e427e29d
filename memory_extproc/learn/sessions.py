"""Assign a completed exchange to a session and number its turn.

With a session header, or in a conversation that the provider keeps: that session, with turns counted by a *tail*
record. With a previous_response_id: the session of that response. Otherwise the conversation itself identifies the
session, by records of three kinds:

- *head*: conversation so far → the places (session, seq) for its next turn. A conversation can have several: two
  chats that both began with "hi" and got the same answer.
- *slot*: a place → the hash of its message, set by compare-and-swap, so a slot has a single message.
- *opening*: a first message, or the first of a branch → the session that it began.

A slot that holds our message means the same turn again (a retry, a regeneration): same id, and the journal
replaces the answer. A slot that holds another message means a branch (an earlier turn was edited): a new session.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from memory_extproc.concurrency import HELPER_THREAD, HelperThread
from memory_extproc.errors import MemoryExtprocError, TransientError
from memory_extproc.learn.messages import both_ends
from memory_extproc.model import Exchanged, Message, Origin, Owner, Role, Turn, digest
from memory_extproc.observe.log import logger
from memory_extproc.ports import Chain, Coordination
from memory_extproc.text.words import normal

log = logger(__name__)
R = TypeVar("R", bound=msgspec.Struct)

RESPONSE: Final = "response"  # the only kind of record that holds words; the others hold hashes
_SPOTS = 8  # places kept per conversation, newest first
_RECENT = 16  # turns of a named session kept in its tail
_NAME_CHARACTERS = 512  # of a model, route or application; the store's own field holds as many bytes
_EARLIER = 3  # user's texts kept with a response id
_EARLIER_CHARACTERS = 500
_SWAPS = 16  # tries of a compare-and-swap that others keep winning
# A longer history is hashed off the event loop.
_LONG = 400  # messages
_LARGE = 64_000  # characters


class _Spot(msgspec.Struct, frozen=True, array_like=True):
    """A place for a turn; *seq* is its asked message's."""

    session: str
    seq: int


class _Head(msgspec.Struct, frozen=True, array_like=True):
    spots: tuple[_Spot, ...]


class _Slot(msgspec.Struct, frozen=True, array_like=True):
    asked: str


class _Opening(msgspec.Struct, frozen=True, array_like=True):
    session: str
    at: float


class _Counted(msgspec.Struct, frozen=True, array_like=True):
    """A turn of a named session: the key of its opening, its seq, and when it was first seen."""

    opening: str
    seq: int
    at: float


class _Tail(msgspec.Struct, frozen=True, array_like=True):
    next: int
    recent: tuple[_Counted, ...]  # newest last


class _Response(msgspec.Struct, frozen=True, array_like=True):
    session: str
    next: int
    earlier: tuple[str, ...]


_REGENERATE = timedelta(minutes=2)  # an opening repeated within it, and not continued, is a retry
_KEEP = timedelta(days=30)  # how long a conversation is known again
TURN_CHARACTERS = 65_536  # of each side of a turn, from both its ends; the rest is not learned from


@dataclass(frozen=True, slots=True)
class Placed:
    """A turn with its place, and the records to write once it is accepted."""

    turn: Turn
    exchanged: Exchanged = field(repr=False)
    conversation: ConversationKeys | None  # None: placed without Coordination, nothing to note


class Sessions:
    """Also implements ports.ChainReader. *new_session* gives ids for sessions that no client named."""

    def __init__(
        self,
        coordination: Coordination,
        *,
        new_session: Callable[[], str],
        helper: HelperThread = HELPER_THREAD,
    ) -> None:
        self._records = coordination
        self._new_session, self._helper = new_session, helper

    async def place(self, exchanged: Exchanged, kept: Exchanged | None = None, *, apart: bool = True) -> Placed:
        """Where *exchanged* belongs, with the words of *kept* where not all of them may be written: of the others
        hashes are noted and nothing else. While Coordination is down it raises, or with *apart* it becomes a
        session of its own, whose ids a retry shares: a turn apart from its session is better than a turn lost."""
        if len(exchanged.history) > _LONG or exchanged.characters > _LARGE:
            conversation = await self._helper.run(exchanged.characters, read, exchanged)
        else:
            conversation = read(exchanged)
        kept = kept or exchanged
        try:
            spot = await self._find_spot(exchanged, conversation)
        except MemoryExtprocError as error:
            if not apart:
                raise
            log.warning("session.unplaced", error=type(error).__name__)
            spot = _Spot(exchanged.caller.session or conversation.opening[:32], 2 * len(exchanged.history))
            return Placed(self._turn(kept, spot, conversation.opening, conversation), kept, None)
        return Placed(self._turn(kept, spot, conversation.asked, conversation), kept, conversation)

    async def note(self, placed: Placed) -> None:
        """Writes down where the conversation stands, so that its next turn finds it."""
        known, exchanged, turn = placed.conversation, placed.exchanged, placed.turn
        if known is None:
            return
        owner, after = turn.owner, _Spot(turn.session, turn.seq + 2)
        notes = []
        if not exchanged.caller.session and not exchanged.continues:
            if not known.starts:
                # The history as the client resends it: the answer in it may differ from the recorded answer.
                notes.append(self._add_spot(owner, known.before, _Spot(turn.session, turn.seq)))
            if exchanged.answered:
                notes += [self._add_spot(owner, key, after) for key in (known.whole, *known.tails_after)]
        if exchanged.response_id or exchanged.conversation:
            notes.append(self._note_response(exchanged, after))
        await asyncio.gather(*notes)

    async def chain(self, owner: Owner, continues: str) -> Chain | None:
        found = await self._get(RESPONSE, owner, digest("response", continues), _Response)
        return None if found is None else Chain(found.session, found.earlier)

    async def _find_spot(self, exchanged: Exchanged, conversation: ConversationKeys) -> _Spot:
        owner = exchanged.caller.owner
        if exchanged.caller.session:
            return await self._count_in(exchanged, conversation)
        async for spot in self._candidates(exchanged, conversation):
            if await self._take(owner, spot, conversation.asked):
                return spot
        return await self._begin(exchanged, conversation)

    async def _candidates(self, exchanged: Exchanged, conversation: ConversationKeys) -> AsyncIterator[_Spot]:
        """Places where the turn may go, the likeliest first; all from the first clue that leads anywhere."""
        owner = exchanged.caller.owner
        if exchanged.previous_response_id:
            key = digest("response", exchanged.previous_response_id)
            if before := await self._get(RESPONSE, owner, key, _Response):
                yield _Spot(before.session, before.next)
            return
        for boundary in conversation.boundaries:
            spots = await self._spots_at(owner, boundary)
            for spot in spots:
                if (ahead := await self._walk(owner, spot, boundary)) is not None:
                    yield ahead
            if spots:
                return
        if conversation.tail and (head := await self._get("head", owner, conversation.tail, _Head)):
            for spot in head.spots:
                yield spot

    async def _spots_at(self, owner: Owner, boundary: Boundary) -> Sequence[_Spot]:
        if boundary.is_start:
            opening = await self._get("opening", owner, boundary.key, _Opening)
            return [] if opening is None else [_Spot(opening.session, 0)]
        head = await self._get("head", owner, boundary.key, _Head)
        return [] if head is None else head.spots

    async def _walk(self, owner: Owner, spot: _Spot, boundary: Boundary) -> _Spot | None:
        """From *spot* along the user's messages since then; None where another message took its place.
        A message whose answer we never saw to its end took none: it is passed over."""
        for said in boundary.then:
            slot = await self._get("slot", owner, _slot_key(spot), _Slot)
            if slot is None and not boundary.is_start:
                continue
            if slot is None or slot.asked != said:
                return None
            spot = _Spot(spot.session, spot.seq + 2)
        return spot

    async def _take(self, owner: Owner, spot: _Spot, asked: str) -> bool:
        """Whether the slot is ours: taken now, or before by the same message."""
        key, mine = _slot_key(spot), msgspec.json.encode(_Slot(asked))
        # Read first: where many conversations begin alike most slots are taken, and a swap costs a commit.
        slot = await self._get("slot", owner, key, _Slot)
        if slot is None:
            if await self._records.replace_record("slot", owner, key, None, mine, _KEEP):
                return True
            slot = await self._get("slot", owner, key, _Slot)
        return slot is not None and slot.asked == asked

    async def _begin(self, exchanged: Exchanged, conversation: ConversationKeys) -> _Spot:
        """A new session, or the session that the same words began."""
        owner, at = exchanged.caller.owner, exchanged.at.timestamp()
        for _ in range(_SWAPS):
            raw = await self._records.get_record("opening", owner, conversation.opening)
            known = _decode_record(raw, _Opening)
            if known and await self._is_same_opening(exchanged, conversation, known):
                session = known.session
            else:
                session = self._new_session()
            # Written for a known session too: the steps of a tool loop keep its opening fresh.
            new = msgspec.json.encode(_Opening(session, at))
            if await self._records.replace_record("opening", owner, conversation.opening, raw, new, _KEEP):
                spot = _Spot(session, 0)
                await self._take(owner, spot, conversation.asked)
                return spot
        raise TransientError("an opening record that others keep changing")

    async def _is_same_opening(self, exchanged: Exchanged, conversation: ConversationKeys, known: _Opening) -> bool:
        if not conversation.starts or exchanged.previous_response_id:
            return True  # the words before it tell which conversation it is
        if known.at == exchanged.at.timestamp():
            return True  # the very exchange, that a crash interrupted
        if not _is_within(known.at, exchanged.at, _REGENERATE):
            return False
        continued = await self._get("slot", exchanged.caller.owner, _slot_key(_Spot(known.session, 2)), _Slot)
        return continued is None

    async def _count_in(self, exchanged: Exchanged, conversation: ConversationKeys) -> _Spot:
        """The place in a session that the client named."""
        owner, session, opening = exchanged.caller.owner, exchanged.caller.session, conversation.opening
        tail_key, turn_key = digest("tail", session), digest("turn", session, opening)
        tells = not conversation.starts or bool(exchanged.previous_response_id)
        for _ in range(_SWAPS):
            raw = await self._records.get_record("tail", owner, tail_key)
            tail = _decode_record(raw, _Tail) or _Tail(0, ())
            if known := self._count_turn(tail, opening, exchanged.at, tells=tells):
                return _Spot(session, known.seq)
            if tells and (older := await self._get("turn", owner, turn_key, _Spot)):
                return older
            mine = _Counted(opening, tail.next, exchanged.at.timestamp())
            new = msgspec.json.encode(_Tail(tail.next + 2, (*tail.recent, mine)[-_RECENT:]))
            if await self._records.replace_record("tail", owner, tail_key, raw, new, _KEEP):
                if tells:
                    await self._put("turn", owner, turn_key, _Spot(session, mine.seq))
                return _Spot(session, mine.seq)
        raise TransientError("a session's tail that others keep changing")

    def _count_turn(self, tail: _Tail, opening: str, at: datetime, *, tells: bool) -> _Counted | None:
        """The same turn among the recent turns. Without history, words do not *tell* a retry from a repeated
        message: only the last turn counts, for a short time."""
        for turn in reversed(tail.recent):
            again = turn is tail.recent[-1] and _is_within(turn.at, at, _REGENERATE)
            # The very exchange, that a crash interrupted, has the same time.
            if turn.opening == opening and (tells or again or turn.at == at.timestamp()):
                return turn
        return None

    def _turn(self, exchanged: Exchanged, spot: _Spot, asked: str, conversation: ConversationKeys) -> Turn:
        owner, most = exchanged.caller.owner, TURN_CHARACTERS
        return Turn(
            id=digest("turn", owner.key, spot.session, str(spot.seq), asked),
            owner=owner,
            project=exchanged.caller.project,
            session=spot.session,
            seq=spot.seq,
            asked=_storable(both_ends(exchanged.asked, most)),
            answered=_storable(both_ends(exchanged.answered, most)),
            at=exchanged.at,
            injected=tuple(_storable(one) for one in exchanged.injected),
            origin=_storable_origin(exchanged.origin),
            heard=conversation.opening,
            resumes=bool(exchanged.history) or bool(exchanged.previous_response_id),
            speaker=exchanged.caller.speaker,
            tools=exchanged.tools,
        )

    async def _note_response(self, exchanged: Exchanged, after: _Spot) -> None:
        owner = exchanged.caller.owner
        earlier = [message.text for message in exchanged.history if message.role is Role.USER]
        if exchanged.continues:
            before = await self.chain(owner, exchanged.continues)
            earlier = [*(before.earlier if before else ()), *earlier]
        texts = [_storable(text[:_EARLIER_CHARACTERS]) for text in [*earlier, exchanged.asked][-_EARLIER:]]
        record = _Response(after.session, after.seq, tuple(texts))
        for kept in filter(None, (exchanged.response_id, exchanged.conversation)):
            await self._put(RESPONSE, owner, digest("response", kept), record)

    async def _add_spot(self, owner: Owner, key: str, spot: _Spot) -> None:
        for _ in range(_SWAPS):
            raw = await self._records.get_record("head", owner, key)
            known = _decode_record(raw, _Head) or _Head(())
            if spot in known.spots:
                return
            new = msgspec.json.encode(_Head((spot, *known.spots)[:_SPOTS]))
            if await self._records.replace_record("head", owner, key, raw, new, _KEEP):
                return

    async def _get(self, kind: str, owner: Owner, key: str, of: type[R]) -> R | None:
        return _decode_record(await self._records.get_record(kind, owner, key), of)

    async def _put(self, kind: str, owner: Owner, key: str, record: msgspec.Struct) -> None:
        await self._records.put_record(kind, owner, key, msgspec.json.encode(record), _KEEP)


def _slot_key(spot: _Spot) -> str:
    return digest("slot", spot.session, str(spot.seq))


def _decode_record(raw: bytes | None, of: type[R]) -> R | None:
    """None also for a record of another version: the conversation is then not known, and goes on anew."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=of)
    except msgspec.MsgspecError:
        return None


def _is_within(then: float, at: datetime, window: timedelta) -> bool:
    return abs(at.timestamp() - then) <= window.total_seconds()


def _storable_origin(origin: Origin) -> Origin:
    """*origin* as the journal can hold it. Its names are a client's, or Envoy's, of any length and any bytes."""
    return Origin(
        dialect=origin.dialect,
        model=_storable(origin.model[:_NAME_CHARACTERS]),
        route=_storable(origin.route[:_NAME_CHARACTERS]),
        app=_storable(origin.app[:_NAME_CHARACTERS]),
    )


def _storable(text: str) -> str:
    """*text* with lone surrogates, which JSON can escape and UTF-8 cannot hold, as question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# Hash a conversation into keys that recognize it when the client resends it. Pure. Text is compared with its
# whitespace collapsed and in one Unicode form, because clients trim and re-wrap it. A key includes owner and
# project, so owners never share a conversation.

_BACK = 8  # how many of the user's messages before the last are looked back over
_SUFFIXES = (4, 2)  # messages at the end by which a conversation is known whose beginning was cut off


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in the history just before a user message, or before the current question."""

    key: str  # of all that stands before it; at the start, of the opening: the user's first message included
    then: tuple[str, ...]  # hashes of the user's messages from here on, without the current question
    is_start: bool = False  # the user said nothing before it


@dataclass(frozen=True, slots=True)
class ConversationKeys:
    """The keys of an exchange."""

    asked: str  # hash of the question
    opening: str  # key of history and question
    whole: str  # key of history, question and answer
    starts: bool  # the user said nothing before
    before: str  # key of the history
    boundaries: tuple[Boundary, ...]  # where a known turn may have stood, latest first
    tail: str  # key of the history's last messages; empty without history
    tails_after: tuple[str, ...]  # keys of the last messages once the answer is counted in


def read(exchanged: Exchanged) -> ConversationKeys:
    """The keys of *exchanged*; some microseconds for each message of its history."""
    history = exchanged.history
    caller = exchanged.caller
    of_whom = (caller.owner.key, caller.project, exchanged.continues)
    running = hashlib.sha256(digest(*of_whom, *([caller.speaker] if caller.speaker else [])).encode())
    users = [at for at, message in enumerate(history) if message.role is Role.USER]
    hashes = {at: _hash_message(history[at]) for at in users[-_BACK:]}
    keys: dict[int, str] = {}
    for at, message in enumerate(history):
        if at in hashes and at != users[0]:
            keys[at] = running.hexdigest()
        _add(running, message.role, message.text)
        if at in hashes and at == users[0]:
            keys[at] = running.hexdigest()
    before = running.hexdigest()
    _add(running, Role.USER, exchanged.asked)
    opening = running.hexdigest()
    _add(running, Role.ASSISTANT, exchanged.answered)
    after = (
        *history,
        Message(Role.USER, exchanged.asked),
        Message(Role.ASSISTANT, exchanged.answered),
    )
    return ConversationKeys(
        asked=digest("said", normal(exchanged.asked)),
        opening=opening,
        whole=running.hexdigest(),
        starts=not users,
        before=before,
        boundaries=_boundaries(before, keys, hashes, first=users[0]) if users else (),
        tail=_suffix(exchanged, history),
        tails_after=tuple(_tail_of(exchanged, after, n) for n in _SUFFIXES if len(history) > 1 and len(after) > n),
    )


def _boundaries(before: str, keys: dict[int, str], hashes: dict[int, str], first: int) -> tuple[Boundary, ...]:
    found = [Boundary(before, ())]
    then: tuple[str, ...] = ()
    for at in reversed(hashes):
        then = (hashes[at], *then)
        found.append(Boundary(keys[at], then, is_start=at == first))
    return tuple(found)


def _suffix(exchanged: Exchanged, history: Sequence[Message]) -> str:
    for length in _SUFFIXES:
        if len(history) >= length:
            return _tail_of(exchanged, history, length)
    return ""


def _tail_of(exchanged: Exchanged, messages: Sequence[Message], length: int) -> str:
    caller = exchanged.caller
    return digest("tail", caller.owner.key, caller.project, *_parts(messages[-length:]))


def _parts(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        yield message.role.value
        yield normal(message.text)


def _hash_message(message: Message) -> str:
    return digest("said", normal(message.text))


def _add(running: Any, role: Role, text: str) -> None:
    encoded = normal(text).encode("utf-8", "surrogatepass")
    running.update(f"{role.value}:{len(encoded)}:".encode())
    running.update(encoded)
