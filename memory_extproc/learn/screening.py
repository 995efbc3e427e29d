"""Decide whether an exchange may be kept, and which parts of it, before anything is written."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, Self

import msgspec

from memory_extproc.concurrency import HELPER_THREAD, HelperThread, RateLimits, TokenBuckets, contain_faults
from memory_extproc.errors import MemoryExtprocError, PermanentError
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.intake_log import IntakeLog, LogKind, LogRecord
from memory_extproc.learn.messages import JudgedMessage, both_ends
from memory_extproc.model import (
    SHARED,
    Caller,
    Embedded,
    Exchanged,
    Memory,
    MemoryState,
    Message,
    Owner,
    Role,
    Screened,
    Source,
    Trust,
    Turn,
    TurnOutcome,
    digest,
)
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Coordination, MemoryStore, MemoryWriter, Now
from memory_extproc.safety.policy import MASK_SECRETS, WRITTEN, Found, Policy, sensitivity, without_secrets
from memory_extproc.safety.prompt_injection import Suspicion, foreign_suspicion, suspicion
from memory_extproc.settings.paths import QuotaSection
from memory_extproc.text.words import normal, tokens

log = logger(__name__)
_OF_HISTORY = 4_000  # characters of an earlier message that are kept at most, see sessions.py
_AT_ONCE = 4_000  # characters screened on the event loop (a few milliseconds); longer texts use a thread


class LearningConsent(Protocol):
    """Consent as learning asks for it."""

    def refuses(self, owner: Owner) -> bool:
        """Whether it is known in this process that *owner* allows no learning."""

    async def allows_learning(self, owner: Owner, since: datetime | None = None) -> bool | None:
        """Whether the words of *owner* may be learned; with *since*, whether consent has held at that time and ever
        since. None: unknown. An earlier yes is valid for `privacy.consent_fresh`."""

    async def answers(self) -> bool:
        """Whether choices can be asked for."""


class TurnScreener(Protocol):
    """The learner asks it before any write."""

    async def screen(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | TurnOutcome:
        """The storable part of *exchanged*, or the reason for skipping it; UNDECIDED if that is unknown now.
        *waited*: an earlier attempt was undecided or interrupted."""

    def refuses(self, exchanged: Exchanged) -> bool:
        """Whether it is known already, in this process, that nothing of *exchanged* may be kept."""

    def has_room(self, owner: Owner) -> bool:
        """Count an exchange against *owner*'s quota. False if the quota is spent."""

    async def can_tell(self) -> bool:
        """Whether an undecided exchange could be decided now."""


class Unscreened:
    """Keep every exchange: for data sets that are played through the write path."""

    async def screen(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | TurnOutcome:  # noqa: ARG002
        return Screened(exchanged, exchanged)

    def refuses(self, exchanged: Exchanged) -> bool:  # noqa: ARG002
        return False

    def has_room(self, owner: Owner) -> bool:  # noqa: ARG002
        return True

    async def can_tell(self) -> bool:
        return True


class Screening:
    """Consent, incognito, the caller's quota, then the words themselves."""

    def __init__(
        self,
        consent: LearningConsent,
        incognito: Incognito,
        quota: Quota | None,  # None: without bound
        policy: Callable[[], Policy],
        metrics: Metrics,
        *,
        most: int,
        helper: HelperThread = HELPER_THREAD,
    ) -> None:
        """*most*: characters of a message that are stored, taken from both its ends."""
        self._consent, self._incognito, self._quota = consent, incognito, quota
        self._policy, self._metrics, self._most, self._helper = policy, metrics, most, helper

    def refuses(self, exchanged: Exchanged) -> bool:
        person = _person(exchanged)
        return (person is not None and self._consent.refuses(person)) or self._incognito.is_marked(exchanged)

    def has_room(self, owner: Owner) -> bool:
        return self._quota is None or self._quota.take(owner)

    async def can_tell(self) -> bool:
        return await self._incognito.is_shared() and await self._consent.answers()

    async def screen(self, exchanged: Exchanged, *, waited: bool = False) -> Screened | TurnOutcome:
        refused = await self._find_refusal(exchanged, waited=waited)
        if refused is not None:
            return refused
        if (size := exchanged.characters) > _AT_ONCE:
            kinds, screened = await self._helper.run(size, _screen_words, exchanged, self._policy(), self._most)
        else:
            kinds, screened = _screen_words(exchanged, self._policy(), self._most)
        for kind in kinds:
            self._metrics.withheld.labels(kind).inc()
        return screened

    async def _find_refusal(self, exchanged: Exchanged, *, waited: bool) -> TurnOutcome | None:
        # The wire has asked already, but an answer can take minutes and consent can change meanwhile. An undecided
        # exchange is kept only if consent held at the time of the request.
        undecided = False
        try:
            if await self._incognito.holds(exchanged, waited=waited):
                return TurnOutcome.INCOGNITO
        except MemoryExtprocError as error:
            # A message that may be incognito is not kept before that is known.
            log.warning("incognito.unknown", error=type(error).__name__)
            undecided = True
        person = _person(exchanged)
        if person is not None:
            allowed = await self._consent.allows_learning(person, exchanged.at if waited else None)
            if allowed is False:
                return TurnOutcome.NO_CONSENT
            undecided = undecided or allowed is None
        return TurnOutcome.UNDECIDED if undecided else None


def _screen_words(exchanged: Exchanged, policy: Policy, most: int) -> tuple[tuple[str, ...], Screened]:
    """The kinds of text left out, and what may be stored."""
    masked = without_secrets(exchanged, policy.rules)
    kept = policy.filter_exchange(_truncate(masked, most))
    return (*masked.kinds, *kept.kinds), Screened(masked.exchanged, kept.exchanged)


def _truncate(masked: Found, most: int) -> Exchanged:
    """Shorten overlong messages: screening a pasted book takes seconds."""
    exchanged, mask = masked.exchanged, None if masked.behind is None else masked.behind.mask
    users = [message for message in exchanged.history if message.role is Role.USER][-WRITTEN:]
    history = tuple(replace(one, text=both_ends(one.text, _OF_HISTORY, mask)) for one in users)
    asked, answered = (both_ends(text, most, mask) for text in (exchanged.asked, exchanged.answered))
    return replace(exchanged, history=history, asked=asked, answered=answered)


def _person(exchanged: Exchanged) -> Owner | None:
    """The person whose consent counts: the member, where the owner is a project. None if unknown."""
    caller = exchanged.caller
    if not caller.speaker:
        return caller.owner
    return None if caller.spoken_by is None else caller.spoken_by.owner


# Incognito conversations: after one incognito request, nothing of the conversation is kept. A conversation is
# recognized by the client's session id, by the response that it continues, and by hashes of the user's messages up
# to a turn, so a resent history is recognized although clients change the answers. It stays the same conversation
# when a later request names another project. Marks are shared with all replicas, and stay in the intake log until
# then. Like other choices of a person, they outlive the forgetting of everything.

_KIND = "incognito"
_LOOKBACK = 10  # turns looked back over for a mark: each that was recognised is marked itself, if maybe later
_ASKED_AT_ONCE = 20  # records
_MARK = b"1"
_Mark = dict[str, timedelta]  # for how long each key of a conversation stays marked
_NOBODY = Owner("", f"{SHARED}nobody")  # whose record is asked for to see whether records can be
_EPOCH = datetime.fromtimestamp(0, UTC)  # a mark has no time of its own


class Incognito:
    """Implements ports.IncognitoMarker. One event loop owns it."""

    KEEP = timedelta(days=30)  # as long as a conversation is known again at all
    OPENING = timedelta(minutes=30)  # of a mark by a first message alone: other chats begin like it
    PATIENCE = timedelta(milliseconds=50)  # of a request; a slower attempt to share continues in the background
    GIVE_UP = timedelta(seconds=30)  # timeout of one attempt to share a mark
    RETRY = timedelta(seconds=1)  # between two attempts
    IN_PROCESS = 10_000  # marks held here; the oldest go first

    def __init__(self, records: Coordination, intake_log: IntakeLog | None = None) -> None:
        """*intake_log* keeps marks until they are shared; None: a mark that cannot be shared is dropped."""
        self._records, self._log = records, intake_log
        self._here: OrderedDict[tuple[Owner, str], timedelta] = OrderedDict()
        self._marked = Counter[Owner]()  # how many of them each has
        self._writing: set[asyncio.Task[bool]] = set()
        self._unshared: dict[LogRecord, _Mark] = {}
        self._sharing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._log is not None:
            self._take_left(self._log)
            self._sharing = asyncio.create_task(self._share(self._log), name="incognito marks")
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Wait for pending writes."""
        await asyncio.gather(*self._writing)
        if self._sharing is not None:
            self._sharing.cancel()
            await asyncio.gather(self._sharing, return_exceptions=True)

    async def mark(self, caller: Caller, history: Sequence[Message], asked: str, continues: str) -> None:
        """Never raises. *continues*: as Exchanged.continues."""
        caller = caller.person
        said = [message.text for message in history if message.role is Role.USER]
        keys = {_spoken([*said, asked]): self.KEEP if said else self.OPENING}
        if caller.session:
            keys[_session_key(caller)] = self.KEEP
        if continues:
            keys[_response_key(continues)] = self.KEEP
        await self._mark(caller.owner, keys)

    async def mark_response(self, owner: Owner, response_id: str) -> None:
        """Make the continuations of that response incognito too. Never raises."""
        await self._mark(owner, {_response_key(response_id): self.KEEP})

    async def holds(self, exchanged: Exchanged, *, waited: bool = False) -> bool:
        """Whether *exchanged* belongs to such a conversation; its own turn is then marked too. Raises where that
        cannot be found out. *waited*: other replicas may not have decided, and marked, the turns before it yet."""
        caller = exchanged.caller.person
        lookback = sys.maxsize if waited else _LOOKBACK
        if exchanged.characters > _AT_ONCE:
            keys = await asyncio.to_thread(_keys_of, exchanged, lookback)
        else:
            keys = _keys_of(exchanged, lookback)
        if not await self._any(caller.owner, keys):
            return False
        await self.mark(caller, exchanged.history, exchanged.asked, exchanged.continues)
        if exchanged.response_id:
            await self.mark_response(caller.owner, exchanged.response_id)
        return True

    def is_marked(self, exchanged: Exchanged) -> bool:
        """Whether that is known in this process."""
        owner = exchanged.caller.person.owner
        return owner in self._marked and any((owner, key) in self._here for key in _keys_of(exchanged))

    async def is_shared(self) -> bool:
        """Whether all local marks are shared and the marks of other replicas can be read."""
        try:
            await self._records.get_record(_KIND, _NOBODY, _KIND)
        except MemoryExtprocError:
            return False
        return not self._unshared

    async def _any(self, owner: Owner, keys: Iterable[str]) -> bool:
        wanted = list(keys)
        if any((owner, key) in self._here for key in wanted):
            return True
        for start in range(0, len(wanted), _ASKED_AT_ONCE):
            some = wanted[start : start + _ASKED_AT_ONCE]
            if await self._records.find_records(_KIND, _apart(owner), some):
                return True
        return False

    async def _mark(self, owner: Owner, keys: _Mark) -> None:
        self._hold(owner, keys)
        body = msgspec.json.encode(keys)
        record = None if self._log is None else self._log.append(LogKind.MARK, owner, _EPOCH, body)
        # A task of our own: a request that leaves, or has waited long enough, takes no mark with it.
        writing = asyncio.create_task(self._write(owner, keys, record))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        done, _ = await asyncio.wait({writing}, timeout=self.PATIENCE.total_seconds())
        for task in done:
            task.result()  # a bug is raised, as if it had been awaited

    async def write_again(self) -> None:
        """Every mark that this process knows, where the records were lost."""
        for (owner, key), ttl in list(self._here.items()):
            await self._write(owner, {key: ttl}, None)

    def _hold(self, owner: Owner, keys: _Mark) -> None:
        for key, ttl in keys.items():
            self._marked[owner] += (owner, key) not in self._here
            self._here[owner, key] = ttl
            self._here.move_to_end((owner, key))
        while len(self._here) > self.IN_PROCESS:
            (whose, _), _ = self._here.popitem(last=False)
            self._marked[whose] -= 1
            if not self._marked[whose]:
                del self._marked[whose]

    async def _write(self, owner: Owner, keys: _Mark, record: LogRecord | None) -> bool:
        writes: list[Awaitable[None]] = [
            self._records.put_record(_KIND, _apart(owner), key, _MARK, ttl) for key, ttl in keys.items()
        ]
        try:
            async with asyncio.timeout(self.GIVE_UP.total_seconds()):
                await asyncio.gather(*writes)
        except (MemoryExtprocError, TimeoutError) as error:
            if record not in self._unshared:
                log.warning("incognito.not_noted", error=type(error).__name__)
            if record is not None:
                self._unshared[record] = keys
            return False
        if record is not None and self._log is not None:
            self._unshared.pop(record, None)
            self._log.discard(record)
        return True

    async def _share(self, intake_log: IntakeLog) -> None:
        """Marks that could not be shared, until they are."""
        while True:
            await asyncio.sleep(self.RETRY.total_seconds())
            await contain_faults(partial(self._share_once, intake_log))

    async def _share_once(self, intake_log: IntakeLog) -> None:
        self._take_left(intake_log)
        for record, keys in list(self._unshared.items()):
            if not await self._write(record.owner, keys, record):
                break

    def _take_left(self, intake_log: IntakeLog) -> None:
        for record in intake_log.take_left(LogKind.MARK):
            try:
                keys = msgspec.json.decode(intake_log.read(record), type=_Mark)
            except (PermanentError, msgspec.MsgspecError) as error:
                log.warning("incognito.not_noted", error=type(error).__name__)
                intake_log.discard(record)
                continue
            self._hold(record.owner, keys)
            self._unshared[record] = keys


def _apart(owner: Owner) -> Owner:
    """A pseudonymous owner per person: no forget erases its records or its key."""
    return Owner(owner.tenant, f"{SHARED}incognito{SHARED}{owner.key}")


def _spoken(said: Sequence[str]) -> str:
    return _spoken_up_to(said)[-1]


def _spoken_up_to(said: Sequence[str]) -> list[str]:
    """The key of each beginning of *said*."""
    running = hashlib.sha256(digest("spoken").encode())
    keys = []
    for text in said:
        encoded = normal(text).encode("utf-8", "surrogatepass")
        running.update(f"{len(encoded)}:".encode())
        running.update(encoded)
        keys.append(running.hexdigest())
    return keys


def _session_key(caller: Caller) -> str:
    return digest("named", caller.session)


def _response_key(response_id: str) -> str:
    return digest("continued", response_id)


def _keys_of(exchanged: Exchanged, lookback: int = _LOOKBACK) -> list[str]:
    """By any of which its conversation is known."""
    caller = exchanged.caller.person
    said = [message.text for message in exchanged.history if message.role is Role.USER]
    keys = _spoken_up_to([*said, exchanged.asked])[-lookback - 1 :] if said else []
    if caller.session:
        keys.append(_session_key(caller))
    if exchanged.continues:
        keys.append(_response_key(exchanged.continues))
    return keys


# How much each caller may have learned: a token bucket for each of them.


class Quota:
    """In this process alone: with several replicas each grants as much, and a caller may get that much more."""

    def __init__(self, section: Callable[[], QuotaSection], *, now: Now, owners: int = 100_000) -> None:
        """*owners*: most buckets in memory; a dropped owner starts again with a full bucket."""
        self._section = section
        self._buckets = TokenBuckets(self._rate, lambda: now().timestamp(), owners)

    def take(self, owner: Owner) -> bool:
        """Count a turn of *owner*. False if the quota is spent."""
        return not self._section().turns_per_hour or self._buckets.take(owner) is None

    def _rate(self) -> RateLimits:
        section = self._section()
        return RateLimits(section.turns_per_hour / 3600, section.burst)


# Suspicious turns are stored inert, for review. A turn that instructs the assistant, or puts words into the
# caller's mouth, becomes memories in the state quarantined, with its answer; no fact is extracted from it and no
# request recalls it. An operator lists such turns, and releases or drops them.

FOREIGN = "foreign"  # a fact in words that the caller did not say
_PAGE = 200  # rows read at once
_CONFIRMS = 6  # words; a shorter reply may confirm a statement of the assistant
_TELLING = 4  # characters a word has at least that tells whose words they were; or a digit

Judging = Callable[[Turn, datetime], Sequence[JudgedMessage]]


class QuarantiningJudge:
    """Message filter that quarantines suspicious messages and marks special categories."""

    def __init__(self, judges: Judging, *, aside: Callable[[], bool] = lambda: True) -> None:
        """*aside*: asked for each turn; False keeps the suspicious like everything else."""
        self._judges, self._aside = judges, aside

    def __call__(self, turn: Turn, now: datetime) -> Sequence[JudgedMessage]:
        if not self._aside():
            return tuple(_mark_suspicion(one, None) for one in self._judges(turn, now))
        asked = suspicion(turn.asked)
        answered = asked or _of_answer(turn)
        why = {Role.USER: asked, Role.ASSISTANT: answered}
        return tuple(_mark_suspicion(one, why[one.role]) for one in self._judges(turn, now))

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled filter keeps today's setting."""
        return QuarantiningJudge, (self._judges,), {"_aside": partial(bool, self._aside())}


def _of_answer(turn: Turn) -> Suspicion | None:
    return foreign_suspicion(turn.answered) if turn.tools else suspicion(turn.answered)


def _mark_suspicion(judged: JudgedMessage, why: Suspicion | None) -> JudgedMessage:
    memory = judged.memory
    if memory is None:
        return judged
    category = sensitivity(memory.content)
    noted = memory.provenance.replace(
        sensitivity=category.value if category else "", suspicion=why.value if why else ""
    )
    state = MemoryState.QUARANTINED if why else memory.state
    return replace(judged, memory=replace(memory, state=state, provenance=noted))


class QuarantiningExtractor:
    """Extractor that hides suspicious turns from another. Facts found are checked again: a fact that instructs, or
    that is not in the caller's words, is quarantined, and a forbidden fact is dropped."""

    def __init__(
        self,
        extractor: FactExtractor,
        *,
        aside: Callable[[], bool] = lambda: True,
        refusal: Callable[[str], str] = MASK_SECRETS.refusal,
        helper: HelperThread = HELPER_THREAD,
    ) -> None:
        """*aside*: asked for each batch; False trusts everything. *refusal*: why a text may not be stored; "": it
        may."""
        self._extractor, self._aside, self._refusal, self._helper = extractor, aside, refusal, helper

    @property
    def name(self) -> str:
        return self._extractor.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        found = await self._extract_trusted(turns, earlier)
        return [fact for fact in found if not self._refusal(fact.content)]

    async def _extract_trusted(self, turns: Sequence[Turn], earlier: Sequence[Turn]) -> list[Fact]:
        if not self._aside():
            return list(await self._extractor.extract(turns, earlier=earlier))
        everything = [*earlier, *turns]
        size = sum(len(turn.asked) + len(turn.answered) for turn in everything)
        if size > _AT_ONCE:
            read = await self._helper.run(size, _trusted_turns, everything)
        else:
            read = _trusted_turns(everything)
        said = {turn.id: turn for turn in turns if turn.id in read}
        if not said:
            return []
        before = [read[turn.id] for turn in earlier if turn.id in read]
        facts = await self._extractor.extract([read[turn_id] for turn_id in said], earlier=before)
        return [_looked_at(fact, said.get(fact.turn_id), before) for fact in facts]


def _trusted_turns(turns: Iterable[Turn]) -> dict[str, Turn]:
    """Turns by id whose question does not instruct, without answers that do."""
    trusted = (turn for turn in turns if suspicion(turn.asked) is None)
    return {turn.id: replace(turn, answered="") if _of_answer(turn) else turn for turn in trusted}


def _looked_at(fact: Fact, turn: Turn | None, earlier: Iterable[Turn]) -> Fact:
    category = sensitivity(fact.content)
    found = suspicion(fact.content)
    why = found.value if found else ""
    trust = Trust.CALLER
    if fact.source is Source.LLM and turn is not None and _foreign(fact, turn, earlier):
        if len(tokens(turn.asked)) <= _CONFIRMS:
            trust = Trust.CONFIRMED
        else:
            trust, why = Trust.TOOL if turn.tools else Trust.ASSISTANT, why or FOREIGN
    if not (category or why or trust is not fact.trust):
        return fact
    return replace(fact, sensitivity=category.value if category else "", suspicion=why, trust=trust)


def _foreign(fact: Fact, turn: Turn, earlier: Iterable[Turn]) -> bool:
    """Whether *fact* is in the assistant's words alone, without a short reply that may confirm it. A fact in other
    words is the model's own wording."""
    words = _telling(fact.value)
    own = _telling(turn.asked).union(*(_telling(before.asked) for before in earlier))
    return bool(words & _telling(turn.answered)) and not words & own


def _telling(text: str) -> frozenset[str]:
    return frozenset(
        word.casefold() for word in tokens(text) if len(word) >= _TELLING or any(sign.isdigit() for sign in word)
    )


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The quarantined memories of one owner."""

    store: MemoryStore
    keeps: MemoryWriter

    async def list_quarantined(self, owner: Owner) -> AsyncIterator[Memory]:
        """Every memory of *owner* in quarantine, each once; its suspicion stands in its provenance."""
        async for page in self.store.pages(owner, _PAGE, fresh=True):
            for row in page:
                if row.memory.state is MemoryState.QUARANTINED:
                    yield row.memory

    async def release(self, owner: Owner, ids: Sequence[str], now: datetime) -> int:
        """Make *ids* ordinary memories, if they are in quarantine. Returns their number."""
        rows = await self._of(owner, ids)
        released = [
            Embedded(
                replace(
                    row.memory,
                    state=MemoryState.ACTIVE,
                    updated_at=max(row.memory.updated_at, now.replace(microsecond=0)),
                    provenance=row.memory.provenance.replace(released=True),
                ),
                row.vector,
            )
            for row in rows
        ]
        if released:
            await self.keeps.put(owner, released)
        return len(released)

    async def drop(self, owner: Owner, ids: Sequence[str]) -> int:
        """Delete *ids*, if they are in quarantine. Returns their number."""
        rows = await self._of(owner, ids)
        if rows:
            await self.keeps.delete(owner, [row.memory.id for row in rows])
        return len(rows)

    async def _of(self, owner: Owner, ids: Sequence[str]) -> list[Embedded]:
        rows = await self.store.fetch(owner, ids)
        return [row for row in rows if row.memory.state is MemoryState.QUARANTINED]
