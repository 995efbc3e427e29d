"""An answer as it passes: kept up to a bound, read after its last chunk. Its bytes are never changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from memory_extproc.dialect.base import Answer, AnswerReader, Dialect
from memory_extproc.errors import BadBodyError
from memory_extproc.model import Arm, TurnOutcome
from memory_extproc.model.headers import Headers
from memory_extproc.observe.metrics import Metrics
from memory_extproc.request.body import Enriched, OversizeError, Unpacker

SLICE = 64 * 1024  # bytes read between two turns of the event loop: other streams wait well under 1 ms


class Capture:
    """Keeps chunks, reads them when asked. Adding a chunk costs no more than keeping it."""

    def __init__(self, reader: AnswerReader, encoding: str, limit: int, held: BodyMemoryBudget) -> None:
        """*encoding*: the answer's content-encoding; *limit*: bytes, packed and unpacked."""
        self._reader, self._encoding, self._limit, self._held = reader, encoding, limit, held
        self._chunks: list[bytes] = []
        self._size = 0
        self.dropped: TurnOutcome | None = None  # why nothing is kept any more

    def add(self, chunk: bytes) -> None:
        if self.dropped is not None:
            return
        if self._size + len(chunk) > self._limit:
            self._drop(TurnOutcome.CAPTURE_LIMIT)
        elif not self._held.reserve_learn(len(chunk)):
            self._drop(TurnOutcome.PROCESS_LIMIT)
        else:
            self._size += len(chunk)
            self._chunks.append(chunk)

    async def read(self) -> Answer | TurnOutcome:
        """The answer, or why there is none to learn from. Its text counts in place of chunks, until `forget`."""
        if self.dropped is not None:
            return self.dropped
        try:
            answer = await self._read()
        except OversizeError:
            return self._drop(TurnOutcome.CAPTURE_LIMIT)
        except BadBodyError:
            return self._drop(TurnOutcome.UNREADABLE)
        self.forget()
        if not self._held.reserve_learn(len(answer.text)):
            return self._drop(TurnOutcome.PROCESS_LIMIT)
        self._size = len(answer.text)
        return answer

    async def _read(self) -> Answer:
        unpacker = Unpacker(self._encoding, self._limit)
        for chunk in self._chunks:
            for start in range(0, len(chunk), SLICE):
                self._reader.feed(unpacker.feed(chunk[start : start + SLICE]))
                if len(chunk) > SLICE:
                    await asyncio.sleep(0)
        return self._reader.answer()

    def forget(self) -> None:
        self._held.release_learn(self._size)
        self._size = 0
        self._chunks.clear()

    def _drop(self, why: TurnOutcome) -> TurnOutcome:
        self.forget()
        self.dropped = why
        return why


# Response headers of the vLLM semantic router about its answers. The first name answers without a model, or
# refusals: nothing is learned. The second mark answers to other requests, and the third doubtful answers: only the
# caller's words are learned. Versions before 0.4 have no path.
_PATH, _WARNINGS = "x-vsr-response-path", "x-vsr-response-warnings"
_IMMEDIATE = ("x-vsr-cache-hit", "x-vsr-fast-response")
_NO_ANSWER = frozenset({"blocked", "rate_limited", "error"})
_NOT_OF_THE_MODEL = frozenset({"cache", "fast_response"})


def is_router_flagged(headers: Headers) -> bool:
    """Whether the router answered itself or from a cache, or warns of the answer."""
    warned = _find_flag(headers, _WARNINGS) not in {"", "none", "[]"}
    immediate = any(_find_flag(headers, name) == "true" for name in _IMMEDIATE)
    return warned or immediate or _find_flag(headers, _PATH) in _NOT_OF_THE_MODEL


def _find_flag(headers: Headers, name: str) -> str:
    return headers.get(name).strip().lower()


def capture(dialect: Dialect, headers: Headers, limit: int, held: BodyMemoryBudget) -> Capture | TurnOutcome:
    """A capture for an answer of status 200 with these headers, or why it teaches nothing."""
    if _find_flag(headers, _PATH) in _NO_ANSWER:
        return TurnOutcome.ROUTER_REFUSED
    reader = dialect.reader(headers.get("content-type"))
    if reader is None:
        return TurnOutcome.UNREADABLE
    encoding = ",".join(headers.all("content-encoding"))
    try:
        Unpacker(encoding, limit)
    except BadBodyError:
        return TurnOutcome.UNREADABLE
    return Capture(reader, encoding, limit, held)


# A budget in bytes for the bodies that open exchanges hold in this process.

# Share of the whole for captures: the rest is reserved for reads, because a waiting request is more urgent than an
# answer to learn from.
LEARNING_SHARE = 0.75


class BodyMemoryBudget:
    """Counts reserved and released bytes. Never waits: above the limit a reservation is refused, and the
    exchange continues without it."""

    def __init__(self, limit: Callable[[], int], metrics: Metrics) -> None:
        """*limit*: bytes, above 0, read at each reservation."""
        self._limit = limit
        self._reading = self._learning = 0
        metrics.process_bytes.set_function(
            lambda: self.bytes_in_use
        )  # asked for when it is scraped, not at every chunk

    @property
    def bytes_in_use(self) -> int:
        return self._reading + self._learning

    def reserve_read(self, count: int) -> bool:
        if self.bytes_in_use + count > self._limit():
            return False
        self._reading += count
        return True

    def reserve_learn(self, count: int) -> bool:
        limit = self._limit()
        if self._learning + count > limit * LEARNING_SHARE or self.bytes_in_use + count > limit:
            return False
        self._learning += count
        return True

    def release_read(self, count: int) -> None:
        self._reading -= count

    def release_learn(self, count: int) -> None:
        self._learning -= count


# Tokens added by memory and tokens read from the provider's cache, by tenant and side of the comparison.

OTHERS = "other"  # the label of every tenant that is not named


class ExchangeAccounts:
    """Tenants are named in labels only where an operator lists them, so their number is the operator's choice and
    no client can raise it."""

    def __init__(self, metrics: Metrics, tenants: Collection[str] = ()) -> None:
        self._metrics, self._tenants = metrics, frozenset(tenants)

    def count_request(self, enriched: Enriched) -> None:
        """A request with a caller left us."""
        if enriched.arm is Arm.NONE:
            return
        labels = self._labels(enriched)
        self._metrics.arm_exchanges.labels(*labels).inc()
        self._metrics.arm_added_tokens.labels(*labels).inc(enriched.tokens)

    def count_answer(self, enriched: Enriched, answer: Answer) -> None:
        """Count the usage of an answer, only if the provider reports its cache: the two figures form a ratio."""
        if enriched.arm is Arm.NONE or answer.prompt_tokens is None or answer.cached_tokens is None:
            return
        labels = self._labels(enriched)
        self._metrics.arm_prompt_tokens.labels(*labels).inc(answer.prompt_tokens)
        self._metrics.arm_cached_tokens.labels(*labels).inc(answer.cached_tokens)

    def _labels(self, enriched: Enriched) -> tuple[str, str]:
        named = enriched.tenant is not None and enriched.tenant in self._tenants
        return (enriched.tenant or OTHERS) if named else OTHERS, enriched.arm.value
