"""Admission from a request's headers: chat request or not, caller, client controls and router signals. Under load,
the limit of requests at a time and the queue before it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from memory_extproc.concurrency import LARGE, Clock, RateLimits, TokenBuckets
from memory_extproc.dialect.base import Dialect
from memory_extproc.dialect.registry import dialect_for
from memory_extproc.model import Caller, Outcome, Owner, Signals, Switch, digest
from memory_extproc.model.headers import Headers, RequestHeaders
from memory_extproc.request.identity import Identity
from memory_extproc.settings import Settings
from memory_extproc.settings.identity import Scopes
from memory_extproc.settings.traffic import SignalsSection

OURS = "x-memory-"  # every header that begins so is for us and never reaches the upstream
DISABLE = "x-disable-router-memory"
EXPLAIN = "x-memory-explain"  # of a request: asks for the memories injected; of its response: names them
# Marks our own calls to language models, so that a call that returns through the gateway is recognised.
INTERNAL = "x-memory-extproc-internal"
# Envoy sets this header when it follows an upstream redirect. By then our control headers are removed and the body
# contains the injected block.
REDIRECTED = "x-envoy-original-url"
# In Envoy's dynamic metadata: the namespace and field with which a memory filter marks a request as processed for a
# second memory filter on the same route. Clients cannot write it.
METADATA, PASSED = "memory", "passed"
# Envoy's attributes of a request: when its first byte arrived, its route and its cluster.
ARRIVED, ROUTE, CLUSTER = "request.time", "xds.route_name", "xds.cluster_name"
NO_DIALECT = "none"  # metric label of an exchange that is not a chat request

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})
# Values of the vLLM semantic router's fact classifier.
_SAID = {"needs_fact_check": True, "no_fact_check_needed": False}


@dataclass(frozen=True, slots=True)
class HeaderControls:
    """The client's control headers for this request."""

    retrieve: Switch = Switch.DEFAULT
    store: Switch = Switch.DEFAULT
    compress: Switch = Switch.DEFAULT
    ends_session: bool = False
    internal: bool = False  # our own call to a language model
    redirected: bool = False  # it passed us, or another memory filter, before
    unkept: bool = False  # nothing of this exchange is stored
    incognito: bool = False  # nor of its continuations
    as_of: str = ""  # recall as of this time; unparsed
    explain: bool = False  # say which memories were injected


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A chat request whose body is needed."""

    dialect: Dialect
    headers: Headers
    path: str
    encoding: str  # the body's content-encoding, "" for none
    caller: Caller | None
    controls: HeaderControls
    signals: Signals
    route: str
    upstream: str  # the name of Envoy's cluster, if its filter is configured to send it
    late: bool = False  # there is no time for a recall
    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Declined:
    """A request that passes untouched from its headers on."""

    outcome: Outcome
    dialect: str = NO_DIALECT


class Admission:
    """Decides admission from the headers, from the load, and from how long a request waited for us.

    Beyond the limit of the load, and behind a queue, some requests get no memory but are learned from, and the
    others pass at once. Else all requests would wait.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        load: LoadLimit | None = None,
        queue: ArrivalQueue | None = None,
    ) -> None:
        self._request_bytes, self._signals = settings.limits.request_body, settings.signals
        self._identity = identity
        self.load = load or LoadLimit()
        # Behind a queue: from when on a request gets no memory, and from when on it passes unread.
        self._late_after, self._pass_after = settings.deadline / 3, settings.message_timeout / 2
        self._queue = queue or ArrivalQueue(self._late_after)
        signals = settings.signals
        named = (*signals.fact_headers, *signals.tool_headers, *signals.greeting_headers)
        of_callers = settings.identity.headers if settings.identity.strip_headers else ()
        self._taken_out = frozenset((DISABLE, *named, *of_callers))

    def removals(self, headers: Headers) -> tuple[str, ...]:
        """The distinct names in *headers* that must be removed before the upstream."""
        names = {name for name, _ in headers if name.startswith(OURS) or name in self._taken_out}
        return tuple(sorted(names))

    def admit(self, event: RequestHeaders, *, recalls: bool = True) -> Admitted | Declined:
        """Not *recalls*: the caller only learns from the request, and takes no room for a recall."""
        headers = event.headers
        path = headers.get(":path")
        dialect = dialect_for(path)
        if dialect is None or event.last or not _is_json_post(headers):
            return Declined(Outcome.NOT_CHAT)
        length = headers.get("content-length")
        # Decline before Envoy buffers the body: a body above Envoy's own limit must still pass.
        if length.isdecimal() and int(length) > self._request_bytes:
            return Declined(Outcome.TOO_LARGE, dialect.name)
        queued = self._queue.delay(event.attributes.get(ARRIVED))
        if queued > self._pass_after:
            return Declined(Outcome.OVERLOADED, dialect.name)
        controls = replace(controls_of(headers), redirected=REDIRECTED in headers or _is_seen_to(event.metadata))
        room = Room.RECALL
        if recalls:
            size = int(length) if length.isdecimal() else 0
            room = self.load.room_for(size, self._queue.waited, late=queued > self._late_after)
        if room is Room.NONE or (room is Room.LEARN and controls.store is Switch.SKIP):
            return Declined(Outcome.OVERLOADED, dialect.name)
        return Admitted(
            dialect=dialect,
            headers=headers,
            path=path,
            encoding=",".join(headers.all("content-encoding")),
            caller=self._identity.caller(headers, event.metadata),
            controls=controls,
            signals=signals_of(headers, event.metadata, self._signals),
            route=str(event.attributes.get(ROUTE, "")),
            upstream=str(event.attributes.get(CLUSTER, "")),
            late=room is Room.LEARN,
            metadata=event.metadata,
        )


def _is_seen_to(metadata: Mapping[str, Any]) -> bool:
    ours = metadata.get(METADATA)
    return isinstance(ours, Mapping) and ours.get(PASSED) is True


def _is_json_post(headers: Headers) -> bool:
    """Whether this is a POST with a JSON body. A WebSocket upgrade has a body that never ends."""
    if headers.get(":method") != "POST" or "upgrade" in headers or ":protocol" in headers:
        return False
    return is_json(headers.get("content-type"))


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def controls_of(headers: Headers) -> HeaderControls:
    """The control headers. With repeated headers SKIP wins; unknown forms of denial count as SKIP."""
    off = _any_true(headers, DISABLE)
    incognito = _any_true(headers, "x-memory-incognito")
    unkept = off or incognito
    return HeaderControls(
        retrieve=Switch.SKIP if off else _switch(headers, "x-memory-retrieve"),
        store=Switch.SKIP if unkept else _switch(headers, "x-memory-store"),
        compress=Switch.SKIP if off else _switch(headers, "x-memory-compress"),
        ends_session="end" in (value.lower() for value in _list_values(headers, "x-memory-session")),
        internal=INTERNAL in headers,
        redirected=REDIRECTED in headers,
        unkept=unkept,
        incognito=incognito,
        as_of=headers.get("x-memory-as-of").strip(),
        explain=_any_true(headers, EXPLAIN),
    )


def _list_values(headers: Headers, name: str) -> Iterator[str]:
    """Each value of *name*. Intermediaries may have joined several with commas (RFC 9110, 5.3)."""
    return (value.strip() for line in headers.all(name) for value in line.split(","))


def _any_true(headers: Headers, name: str) -> bool:
    return any(truth(value) for value in _list_values(headers, name))


def _switch(headers: Headers, name: str) -> Switch:
    said = {value.lower() for value in _list_values(headers, name)}
    if Switch.SKIP in said or not said.isdisjoint(_FALSE):
        return Switch.SKIP
    return Switch.FORCE if Switch.FORCE in said else Switch.DEFAULT


def truth(value: Any) -> bool | None:
    """Parse a router's boolean; None if it is neither true nor false."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    word = value.strip().lower()
    if word in _TRUE:
        return True
    return False if word in _FALSE else _SAID.get(word)


def signals_of(headers: Headers, metadata: Mapping[str, Any], sources: SignalsSection) -> Signals:
    """Router signals. Envoy's metadata takes precedence over headers, because clients cannot write it."""
    said = metadata.get(sources.metadata_namespace) if sources.metadata_namespace else None
    known = said if isinstance(said, Mapping) else {}

    def signal(key: str, names: tuple[str, ...]) -> bool | None:
        values = (known.get(key), *(value for name in names for value in _list_values(headers, name)))
        return next((found for found in map(truth, values) if found is not None), None)

    return Signals(
        fact=signal("fact", sources.fact_headers),
        tool=signal("tool", sources.tool_headers),
        greeting=signal("greeting", sources.greeting_headers),
    )


# Sharing: the shared owners that a request may read, and the owner of learned memories. Pure functions.


def shared_owners(scopes: Scopes, caller: Caller) -> tuple[Owner, ...]:
    """The shared owners to search besides *caller*'s own memories. Only `Caller.projects` defines membership.

    A request that names a project reaches only that project, and only if the caller is a member."""
    tenant = caller.owner.tenant
    named = (caller.project,) if caller.project else caller.projects
    mine = [project for project in named if project in caller.projects] if scopes.project.recall else []
    shared = [Owner.of_project(tenant, project) for project in mine[: scopes.project.most]]
    if scopes.global_.recall:
        shared.append(Owner.of_everyone(None if scopes.global_.reach == "all" else tenant))
    return tuple(shared)


def learning_caller(scopes: Scopes, caller: Caller) -> Caller:
    """The caller to learn under: *caller*, or the named project if the caller is a member."""
    if not (scopes.project.learn and caller.project and caller.project in caller.projects):
        return caller
    # Separates members who begin with the same words or use the same session name.
    session = caller.session and digest("member", caller.owner.key, caller.session)
    owner = Owner.of_project(caller.owner.tenant, caller.project)
    speaker = digest("speaker", caller.owner.key)
    return replace(caller, owner=owner, session=session, speaker=speaker, spoken_by=caller)


def circle_of(shared: tuple[Owner, ...], origins: tuple[str, ...], epochs: tuple[int, ...]) -> str:
    """A key for the shared memories that a request may get; empty for a caller without any.

    Replay is limited to equal keys. Blocks injected before the caller left a project, used a narrower route, or a
    shared memory was forgotten are therefore not replayed."""
    if not (shared or origins):
        return ""
    owners = (f"{owner.key}:{epoch}" for owner, epoch in zip(shared, epochs, strict=True))
    return digest("circle", *owners, "origins", *origins)


# --- load --------------------------------------------------------------------------------------------


class Room(Enum):
    """The work for which there is room."""

    RECALL = "recall"
    LEARN = "learn"  # the request gets no memory, and is learned from
    NONE = "none"


class LoadLimit:
    """An adaptive limit of requests with recall at a time, after Envoy's adaptive concurrency filter.

    It compares the times that requests take, queues included, with times of requests alone. It falls while they
    take `TOLERATED` times as long because the event loop is busy (`LAG`), and have done so for `BURST` without a
    pause: neither a burst nor a busy machine alone lowers it. Else it rises: by 1 while requests are refused,
    quicker while none is, up to `FIRST`. `WAITING` further requests wait for their turn, the others are refused:
    gRPC accepts a stream in two rounds of the event loop, so each recall that runs makes all streams wait. A large
    body counts as several requests, so under load it is refused before small ones. A few of the refused requests
    are still read, to be learned from (`LEARNED`)."""

    FIRST, LEAST = 64, 4  # with WAITING: eight requests at once are no overload, however slow they are
    WAITING = 4
    TOLERATED = 2.5
    RECOVERS = 1.25  # times the limit in each window, once no request is refused
    LEARNED = RateLimits(per_second=10, burst=60)
    WINDOW = 20  # requests between two changes of the limit
    BURST = 1.0  # seconds; requests that are slow for a shorter time are no overload
    ALONE = 50  # latest times of requests that ran alone
    AT_ONCE = 0.001  # seconds; a longer wait is for its turn
    LAG = 0.004  # seconds that a callback waits for the event loop on average
    COMES_WITHIN = 0.05  # seconds from a request's headers to its body; a slower client's request is not waited for

    def __init__(
        self,
        most: Callable[[], int] = lambda: 64,
        clock: Clock = time.perf_counter,
        soon: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """*most*: the limit's upper bound. *soon*: runs a callback in the next round of the event loop."""
        self._most, self._clock, self._soon = most, clock, soon
        self._limit = float(self.FIRST)
        self._running = 0  # requests, a large request counted as several; so are the next two
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._queued = 0
        self._coming: deque[float] = deque()  # times of admission of requests whose bodies are not here yet
        self._begun = 0
        self._slow_since: float | None = None  # requests have been slow since then, without a pause
        self._refused_at = -math.inf
        self._was_full = False
        self._times: list[float] = []
        self._alone: deque[float] = deque(maxlen=self.ALONE)
        self._lag = 0.0  # seconds, of this window together
        self._queued_before = 0.0  # seconds that streams waited before us lately, on average
        self._learned = TokenBuckets(lambda: self.LEARNED, clock, 1)

    @property
    def limit(self) -> float:
        return min(self._limit, self._most())

    def is_busy(self) -> bool:
        """Whether requests need the time that background work would take."""
        return self._running >= self.limit or self._clock() - self._refused_at < self.COMES_WITHIN

    def room_for(self, size: int, waited: float = 0.0, *, late: bool = False) -> Room:
        """The room for a request of *size* bytes whose headers are here after *waited* seconds in queues. *late*:
        too long for a recall."""
        self._queued_before += (waited - self._queued_before) / 32
        if late:
            return self._refuse()
        now = self._clock()
        while self._coming and now - self._coming[0] > self.COMES_WITHIN:
            self._coming.popleft()
        if not self._has_room(_cost(size), len(self._coming)):
            return self._refuse()
        self._coming.append(now)
        return Room.RECALL

    @asynccontextmanager
    async def work(self, size: int) -> AsyncIterator[Room]:
        """Wait for the turn of a request of *size* bytes that is whole, and note the time that it takes."""
        if self._coming:
            self._coming.popleft()
        cost = _cost(size)
        if not self._has_room(cost, 0):
            yield self._refuse()
            return
        came = self._clock()
        await self._take_turn(cost)
        alone, began = self._running == cost, self._clock()
        self._begun += 1
        number = self._begun
        (self._soon or asyncio.get_running_loop().call_soon)(lambda: self._note_lag(began))
        try:
            yield Room.RECALL
        finally:
            self._release(cost)
            took = self._clock() - came
            if alone and number == self._begun and began - came < self.AT_ONCE:
                self._alone.append(took)
            self._times.append(took)
            if len(self._times) >= self.WINDOW:
                self._adapt()

    def _has_room(self, cost: int, coming: int) -> bool:
        used = self._running + self._queued + coming
        return used + cost <= self.limit + self.WAITING or not used

    def _refuse(self) -> Room:
        self._was_full, self._refused_at = True, self._clock()
        return Room.LEARN if self._learned.take("") is None else Room.NONE

    async def _take_turn(self, cost: int) -> None:
        if not self._waiting and self._fits(cost):
            self._running += cost
            return
        place = cost, asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._queued += cost
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
                self._queued -= cost
            elif not place[1].cancelled():  # its turn had come
                self._release(cost)
            raise

    def _fits(self, cost: int) -> bool:
        return not self._running or self._running + cost <= self.limit

    def _release(self, cost: int) -> None:
        self._running -= cost
        if not (self._running or self._waiting):
            self._slow_since = None
        while self._waiting and self._fits(self._waiting[0][0]):
            cost, place = self._waiting.popleft()
            self._queued -= cost
            if not place.done():
                self._running += cost
                place.set_result(None)

    def _note_lag(self, since: float) -> None:
        self._lag += self._clock() - since

    def _adapt(self) -> None:
        slow, lag = _slow(self._times) + self._queued_before, self._lag / len(self._times) + self._queued_before
        now, full = self._clock(), self._was_full
        usual = _slow(self._alone or [min(self._times)])
        self._times, self._lag, self._was_full = [], 0.0, False
        share = self.TOLERATED * usual / slow
        since, self._slow_since = self._slow_since, None
        if share < 1 and lag > self.LAG:
            self._slow_since = now if since is None else since
            if now - self._slow_since < self.BURST:
                return
            self._limit = max(self.LEAST, self.limit * max(0.5, (1 + share) / 2))
        elif share >= 1 and full:
            self._limit = self.limit + 1
        elif share >= 1 and self.limit < self.FIRST:
            self._limit = min(self.FIRST, self.limit * self.RECOVERS)


def _cost(size: int) -> int:
    return 1 + size // LARGE


def _slow(times: Collection[float]) -> float:
    """The 90th percentile."""
    return sorted(times)[len(times) * 9 // 10]


class ArrivalQueue:
    """How long requests queue between Envoy and this process, by Envoy's time of their arrival.

    The two clocks may differ, so a delay is the time by which a request took longer than the quickest request.
    Every ten seconds that measure moves half the way to the quickest of them, in case a clock was set.
    """

    WINDOW = 10.0  # seconds
    # So many late requests within a second of one another make a queue; a single one is a busy machine.
    IN_A_ROW = 8

    def __init__(self, late_after: timedelta, now: Callable[[], float] = time.time) -> None:
        self._late_after, self._now = late_after.total_seconds(), now
        self._quickest = math.inf  # seconds, clock difference included
        self._of_window, self._window_ends = math.inf, 0.0
        self._late, self._last = 0, 0.0
        self.waited = 0.0  # seconds, of the latest request, in a queue or not

    def delay(self, arrived: object) -> timedelta:
        """The delay of a request that *arrived* then (RFC 3339) by a queue; zero without a queue, or if unknown."""
        now, self.waited = self._now(), 0.0
        try:
            took = now - datetime.fromisoformat(str(arrived)).timestamp()
        except ValueError:
            return timedelta()
        if now >= self._window_ends:
            if self._of_window < math.inf:
                self._quickest += (self._of_window - self._quickest) / 2
            self._of_window, self._window_ends = math.inf, now + self.WINDOW
        self._of_window = min(self._of_window, took)
        self._quickest = min(self._quickest, took)
        waited = self.waited = took - self._quickest
        in_a_row = waited > self._late_after and now - self._last < 1
        self._late, self._last = (self._late + 1 if in_a_row else 0), now
        return timedelta(seconds=waited) if self._late >= self.IN_A_ROW else timedelta()
