"""Extractors, which turn turns into facts."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from difflib import SequenceMatcher
from typing import Protocol

from cachetools import LRUCache

from memory_extproc.errors import MemoryExtprocError, ModelStoppedError, PermanentError, TransientError
from memory_extproc.learn.extract.clauses import LISTS
from memory_extproc.learn.extract.llm_client import OverBudgetError
from memory_extproc.model import MemoryType, Owner, Source, Trust, Turn
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Now
from memory_extproc.safety.policy import OUR_MASK, has_placeholder
from memory_extproc.settings import CurrentSettings
from memory_extproc.text import lazy_re as re
from memory_extproc.text.dates import Span, days_named

LONGEST_FACT = 400  # characters; a longer text is no fact
SHORTEST_FACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact about the caller, in the third person: "User's budget is $10,000".

    *subject* and *attribute* name its topic, *value* the content: of two facts with equal subject and attribute,
    the newer holds. All four are a person's words and never printed."""

    content: str = field(repr=False)
    type: MemoryType  # semantic, procedural, or episodic: something that happened or will
    subject: str = field(repr=False)
    attribute: str = field(repr=False)
    value: str = field(repr=False)
    turn_id: str
    source: Source  # rules or llm
    version: str  # of the rules or the prompt that made it, kept with the memory
    exclusive: bool = False  # only one value holds at a time: a home, an employer, one trip's budget
    ends: bool = False  # *value* has stopped being true: "User no longer lives in Paris"
    moved: bool = False  # an appointment changed its date or place: "the meeting moved to Friday"
    formerly: str = field(default="", repr=False)  # the former value of a moved appointment, if said
    lost: str = field(default="", repr=False)  # a thing or person that *subject* no longer has
    swaps: bool = False  # *value* takes the place of the *lost* thing in what is known of that
    known_only: bool = False  # means something beside a known fact alone
    corrects: str = field(default="", repr=False)  # the content of the fact that was misunderstood
    context: str = field(default="", repr=False)  # context that *content* alone lacks
    happens: str = ""  # the day, month or year it is about: YYYY-MM-DD, YYYY-MM or YYYY; empty: none, or not known
    importance: float = 0.5  # 0 to 1
    confidence: float = 1.0  # 0 to 1
    sensitivity: str = ""  # the special category it belongs to; empty: none
    suspicion: str = ""  # why it is put aside for review and never recalled; empty: it is not
    trust: Trust = Trust.CALLER  # whose words it is made of
    drawn_from: tuple[str, ...] = ()  # ids of the turns that it was drawn from together; empty: *turn_id* alone
    began: datetime | None = None  # time of the oldest waiting turn


_TAG = re.compile(r"<[A-Z]{2,20}(?:_[A-Z]{1,20}){0,4}>")  # a placeholder without a number
_TWO_VERBS = re.compile(
    r"\b(?:(?:is|are|was|were|am|be)\s+(?:is|are|was|were|am|has|have|had|does|do|did|got)"
    r"|(?:has|have|had)\s+(?:is|are|was|were|am|has|have|does|do|did)|(?:got|gets)\s+(?:is|are|was|were|has)"
    r"|will\s+(?:is|are|was|were|has|had)|(?:likes|dislikes|prefers|lives|works)\s+(?:is|are|was|were|has|likes|works|lives))\b",
    re.IGNORECASE,
)


# "hates it" says nothing without the sentence before it
_ONLY_POINTS = re.compile(
    r"(?:\w{1,20}+ )?(?:it|them|him|that|this|these|those|both|one)|i|we|you|he|she|they|who|which|there|here",
    re.IGNORECASE,
)


# "User's daughters Ines likes swimming", "User's daughters Ines and Pilar"
_ONE_OF_SEVERAL = re.compile(
    rf"User's (?:{LISTS['plural']}|boys|girls) [A-Z][\w'-]*(?: (?!and\b)\w.*|(?:(?:,| and) [A-Z][\w'-]*)+)"
)
_WITHOUT_OBJECT = (" is allergic", " are allergic", " is intolerant", " are intolerant")


def is_well_formed(fact: Fact) -> bool:
    """Whether *fact* says something that can be recalled: it has a value that is not masked, no placeholder of a
    router, no two verbs in a row, no adjective without its object ("Oscar is allergic"), and no single
    name as several people ("User's daughters Ines")."""
    if fact.content.endswith(_WITHOUT_OBJECT) or _ONE_OF_SEVERAL.fullmatch(fact.content):
        return False
    if has_placeholder(fact.content) or _TAG.search(fact.content) or _TWO_VERBS.search(fact.content):
        return False
    if not fact.value:
        return fact.ends  # "User left the job they had"
    return _ONLY_POINTS.fullmatch(fact.value) is None and any(
        sign.isalnum() for sign in OUR_MASK.sub("", fact.value)
    )


NAME = re.compile(r"\b(?!User\b)[A-Z][a-z\u00df-\u00ff]+")
_ALIKE = 0.6  # of two spellings of a name


def put_name_right(turn_id: str, name: str, former: str, known: Sequence[Fact]) -> list[Fact]:
    """Put *name* for the *former* name in the *known* facts. An empty *former* stands for the name spelled alike in
    the turn before, or for its only name."""
    if not former:
        last = [fact.content for fact in known if fact.turn_id == known[-1].turn_id]
        named = list(dict.fromkeys(one for content in last for one in NAME.findall(content)))
        alike = [one for one in named if SequenceMatcher(None, one.lower(), name.lower()).ratio() >= _ALIKE]
        former = (alike or named or [""])[0] if len(alike) == 1 or len(named) == 1 else ""
    if former in {"", name}:
        return []
    pattern, lower = (re.compile(rf"\b{re.escape(one)}\b") for one in (former, former.lower()))
    return [
        replace(
            fact,
            content=pattern.sub(name, fact.content),
            subject=lower.sub(name.lower(), fact.subject),
            attribute=lower.sub(name.lower(), fact.attribute),
            value=pattern.sub(name, fact.value),
            turn_id=turn_id,
            corrects=fact.content,
        )
        for fact in known
        if pattern.search(fact.content)
    ]


class FactExtractor(Protocol):
    """Turns a batch of an owner's turns into facts."""

    @property
    def name(self) -> str:
        """The metric label: "rules" or "llm"."""

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        """Facts the caller stated, in the order of *turns* (oldest first). *earlier* turns of the session were
        learned from before: they help to understand these and give no facts. Raises TransientError or
        PermanentError and then has learned nothing."""


# --- extractors --------------------------------------------------------------------------------------
# Extractors that wrap others: metrics and fallback.

log = logger(__name__)


class Measured:
    """Times an extractor's batches and counts them as "done", "unavailable", "over_budget" or "failed"."""

    def __init__(self, extractor: FactExtractor, metrics: Metrics, clock: Callable[[], float]) -> None:
        """*clock* gives seconds that never run backwards."""
        self._extractor = extractor
        self._metrics = metrics
        self._clock = clock

    @property
    def name(self) -> str:
        return self._extractor.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        began = self._clock()
        try:
            facts = await self._extractor.extract(turns, earlier=earlier)
        except TransientError:
            self._count("unavailable", began)
            raise
        except OverBudgetError:
            self._count("over_budget", began)
            raise
        except PermanentError:
            self._count("failed", began)
            raise
        self._count("done", began)
        return facts

    def _count(self, outcome: str, began: float) -> None:
        self._metrics.extraction_seconds.labels(self.name).observe(self._clock() - began)
        self._metrics.extractions.labels(self.name, outcome).inc()


class Fallback:
    """Uses *second* for batches that *first* cannot do: a malformed answer, or a spent budget. If *waits*, an
    unreachable *first* raises TransientError, since it may do the batch later."""

    def __init__(self, first: FactExtractor, second: FactExtractor, *, waits: bool = True) -> None:
        self._first = first
        self._second = second
        self._passed_on = PermanentError if waits else MemoryExtprocError

    @property
    def name(self) -> str:
        return self._first.name

    async def extract(self, turns: Sequence[Turn], *, earlier: Sequence[Turn] = ()) -> list[Fact]:
        try:
            return await self._first.extract(turns, earlier=earlier)
        except self._passed_on as error:
            if not isinstance(error, ModelStoppedError):  # said once, when it was stopped
                log.warning(
                    "extract.fallback", extractor=self._first.name, kind=type(error).__name__, turns=len(turns)
                )
            return await self._second.extract(turns, earlier=earlier)


# --- finding -----------------------------------------------------------------------------------------
# Finding the facts of turns: by the extractor, with the turns before them, or by a stand-in while it is away.


class FactFinder:
    """While *extractor* is unreachable, *fallback* gives facts at once and the turns wait for it: for
    `learn.model_patience` after they were said, and at most *stood_in_for* turns. Then the fallback's facts are
    final."""

    def __init__(
        self,
        extractor: FactExtractor,
        fallback: FactExtractor | None,
        current: CurrentSettings,
        *,
        now: Now,
        stood_in_for: int = 20_000,
    ) -> None:
        self._extractor, self._fallback, self._current = extractor, fallback, current
        self._now, self._stood_in_for = now, stood_in_for
        self._served: set[str] = set()  # turns that the stand-in gave facts of, and that wait for the extractor
        self._earlier = Earlier()

    async def find(self, owner: Owner, turns: Sequence[Turn], epoch: int) -> tuple[Sequence[Fact], bool]:
        """The facts of *turns* of one session, oldest first, and whether they are final. TransientError if there is
        nothing new yet."""
        earlier = self._earlier.of(owner, turns[0].session, epoch)
        try:
            facts = await self._extractor.extract(turns, earlier=earlier)
            return [fact for fact in facts if is_well_formed(fact)], True
        except TransientError:
            if self._fallback is None:
                raise
            waited = abs(self._now() - turns[-1].at) > self._current.settings.learn.model_patience
            if not waited and self._served.issuperset(turn.id for turn in turns):
                raise
            final = waited or len(self._served) >= self._stood_in_for
            log.warning("extract.stand_in", extractor=self._fallback.name, turns=len(turns), final=final)
        return await self._fallback.extract(turns, earlier=earlier), final

    def wait_for_extractor(self, turns: Sequence[Turn]) -> None:
        """The stand-in's facts of *turns* are stored; the extractor is to be asked again."""
        self._served.update(turn.id for turn in turns)

    def forget(self, owner: Owner) -> None:
        """Drop the earlier turns of *owner* that are shown as context."""
        self._earlier.forget(owner)

    def mark_learned(
        self, owner: Owner, turns: Sequence[Turn], epoch: int, *, unshown: AbstractSet[str] = frozenset()
    ) -> None:
        """Mark *turns* as learned. Turns with an id in *unshown* are not shown as context later."""
        self.stop_waiting([turn.id for turn in turns])
        self._earlier.note(owner, turns[-1].session, epoch, [turn for turn in turns if turn.id not in unshown])

    def stop_waiting(self, turn_ids: Iterable[str]) -> None:
        """Stop waiting for these turns."""
        self._served.difference_update(turn_ids)


# --- earlier -----------------------------------------------------------------------------------------
# The last learned turns of a session, shown as context for its next turns.

_TURNS = 3
_CHARACTERS = 800  # of each side of a turn


@dataclass(frozen=True, slots=True)
class _Kept:
    epoch: int
    turns: tuple[Turn, ...]


class Earlier:
    """Held in process, for the sessions last learned from; nothing of an owner outlives their epoch."""

    def __init__(self, sessions: int = 1_000) -> None:
        self._kept: LRUCache[tuple[Owner, str], _Kept] = LRUCache(sessions)

    def of(self, owner: Owner, session: str, epoch: int) -> Sequence[Turn]:
        """At most three turns, oldest first."""
        kept = self._kept.get((owner, session))
        return kept.turns if kept is not None and kept.epoch == epoch else ()

    def forget(self, owner: Owner) -> None:
        for key in [key for key in self._kept if key[0] == owner]:
            del self._kept[key]

    def note(self, owner: Owner, session: str, epoch: int, turns: Sequence[Turn]) -> None:
        """*turns* of *session*, oldest first, have been learned from."""
        short = [
            replace(turn, asked=turn.asked[:_CHARACTERS], answered=turn.answered[:_CHARACTERS])
            for turn in turns[-_TURNS:]
        ]
        together = (*self.of(owner, session, epoch), *short)
        self._kept[owner, session] = _Kept(epoch, together[-_TURNS:])


# --- event date --------------------------------------------------------------------------------------
# The day, month or year that a fact is about, counted from the day it was said. Pure.

_FORM = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_HAS_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_PAST = re.compile(
    rf"\b(?:was|were|did|met|saw|born|ago|last|yesterday|past|since|{'|'.join(LISTS['past_forms'].split())}|[a-z]{{3,}}ed)\b",
    re.IGNORECASE,
)
# "is getting married", "will be moved": participles about the future
_AHEAD = re.compile(
    r"(?:'m|'re|'s|\bam|\bis|\bare)\s+(?:\w+ly\s+)?(?!(?:being|having)\b)[a-z]+ing\b|\b(?:will|'ll|going\s+to|due|scheduled|booked|planned|is|are)\b",
    re.IGNORECASE,
)
_SLACK = 1  # days by which a model may miscount; time zones differ by as much
_FAR = 2 * 366  # days; further away a date must stand in the words


def resolve_event_time(text: str, said: date, proposed: str = "") -> str:
    """The time that *text*, said on the day *said*, is about: YYYY-MM-DD, YYYY-MM, YYYY, or empty if ambiguous. A
    model's *proposed* time is taken unless the words contradict it."""
    spans = [_ahead(span, text, said) for span in days_named(text, said)]
    wanted = span_of(proposed)
    if wanted is not None:
        if any(wanted[0] <= last + _SLACK and first - _SLACK <= wanted[1] for first, last in spans):
            return proposed
        if not spans and abs(wanted[0] - said.toordinal()) <= _FAR:
            return proposed
    return _form(spans[0]) if len(spans) == 1 else ""


def span_of(form: str) -> Span | None:
    """First and last day of YYYY-MM-DD, YYYY-MM or YYYY; None for anything else."""
    matched = _FORM.fullmatch(form)
    if matched is None:
        return None
    year, month, day = (int(part) if part else 0 for part in matched.groups())
    try:
        first = date(year, month or 1, day or 1)
        last = first if day else date(year, month or 12, monthrange(year, month or 12)[1])
    except ValueError:
        return None
    return first.toordinal(), last.toordinal()


def _ahead(span: Span, text: str, said: date) -> Span:
    """A date without a year is in the past if the text is, else the next occurrence."""
    if span[1] >= said.toordinal() or _HAS_YEAR.search(text) or (_PAST.search(text) and not _AHEAD.search(text)):
        return span
    try:
        first, last = (day.replace(year=day.year + 1) for day in map(date.fromordinal, span))
    except ValueError:  # the 29th of February
        return span
    return first.toordinal(), last.toordinal()


def _form(span: Span) -> str:
    first, last = map(date.fromordinal, span)
    if first == last:
        return first.isoformat()
    for form in (f"{first:%Y-%m}", f"{first:%Y}"):
        if span_of(form) == span:
            return form
    return ""
