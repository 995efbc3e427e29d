"""The fact check of a vLLM semantic router in front, asked over its classification API."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import StrEnum
from typing import Self

import aiohttp
import msgspec
from cachetools import LRUCache

from memory_extproc.concurrency import Breaker, BreakerLimits, Clock
from memory_extproc.errors import TransientError
from memory_extproc.model import digest
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings.traffic import ClassifierSection

log = logger(__name__)

# Since the router's version 0.4.0, and before. A router that does not have the path answers as in _ELSEWHERE.
_PATHS = ("/api/v1/diagnostics/classify/fact-check", "/api/v1/classify/fact-check")
_ELSEWHERE = frozenset({403, 404, 405})
_OPEN = "the router kept failing and is left alone for a while"
_LONGEST_TEXT = 4_000  # characters: the router's own classifiers read no more than some hundred tokens
_LONGEST_ANSWER = 64 << 10  # bytes
_OK = 200


class Classified(StrEnum):
    """How asking for a text ended. Also the metric label, so a value is never renamed."""

    ANSWERED = "answered"
    CACHED = "cached"
    LATE = "late"
    FAILED = "failed"  # no connection, or another status than 200
    UNREADABLE = "unreadable"  # an answer that is none: HTML, other JSON, too long
    OPEN = "open"  # not asked: the breaker is open


class _FactCheck(msgspec.Struct):
    needs_fact_check: bool


_BREAKER = BreakerLimits()


class FactClassifier:
    """Implements ports.SignalClassifier. Never raises for a fault of the router: then it says nothing."""

    def __init__(
        self,
        section: ClassifierSection,
        metrics: Metrics,
        clock: Clock,
        breaker: BreakerLimits = _BREAKER,
    ) -> None:
        self._section, self._metrics, self._clock, self._limits = section, metrics, clock, breaker
        self._breaker = Breaker(breaker, clock, _OPEN)
        self._known: LRUCache[str, bool] = LRUCache(section.cache)
        self._paths = list(_PATHS)  # the one that answered last comes first
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def reconfigure(self, section: ClassifierSection) -> None:
        if section != self._section:
            self._known = LRUCache(section.cache)
            self._breaker = Breaker(self._limits, self._clock, _OPEN)
        self._section = section

    async def is_fact(self, text: str, within: timedelta) -> tuple[bool | None, str]:
        """Whether *text* asks for a fact of general knowledge; None where that was not found out *within* the
        time. And how asking ended; "" if the classifier is not asked."""
        if not self._section.url or self._session is None:
            return None, ""
        found, outcome = await self._ask(text[:_LONGEST_TEXT], min(within, self._section.timeout))
        self._metrics.classifications.labels(outcome.value).inc()
        return found, outcome.value

    async def _ask(self, text: str, within: timedelta) -> tuple[bool | None, Classified]:
        key = digest("classified", text)
        if (known := self._known.get(key)) is not None:
            return known, Classified.CACHED
        try:
            self._breaker.admit()
        except TransientError:
            return None, Classified.OPEN
        try:
            async with asyncio.timeout(max(0.0, within.total_seconds())):
                raw = await self._post(text)
            found = msgspec.json.decode(raw, type=_FactCheck).needs_fact_check
        except TimeoutError:
            return self._count_failure(Classified.LATE)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            unreadable = isinstance(error, msgspec.MsgspecError | UnicodeDecodeError)
            return self._count_failure(Classified.UNREADABLE if unreadable else Classified.FAILED)
        except BaseException:
            self._breaker.count_undecided()
            raise
        self._breaker.count_success()
        if self._section.cache:
            self._known[key] = found
        return found, Classified.ANSWERED

    async def _post(self, text: str) -> bytes:
        if self._session is None:
            raise aiohttp.ClientConnectionError
        key = self._section.access_key.get_secret_value()
        headers = {"authorization": f"Bearer {key}"} if key else {}
        for path in tuple(self._paths):
            url = self._section.url + path
            async with self._session.post(
                url, json={"text": text}, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status in _ELSEWHERE:
                    continue
                if answer.status != _OK:
                    break
                self._paths.sort(key=path.__ne__)
                raw = bytearray()
                async for piece in answer.content.iter_any():
                    raw += piece
                    if len(raw) > _LONGEST_ANSWER:
                        raise msgspec.DecodeError
                return bytes(raw)
        raise aiohttp.ClientConnectionError

    def _count_failure(self, outcome: Classified) -> tuple[None, Classified]:
        self._breaker.count_failure()
        log.info("signals.classifier_failed", outcome=outcome.value)
        return None, outcome
