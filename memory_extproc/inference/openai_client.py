"""A client of an OpenAI-compatible endpoint: classified faults, bounded retries, a breaker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar

import msgspec
import openai
import tenacity
from pydantic import SecretStr

from memory_extproc.concurrency import Breaker, BreakerLimits, Clock
from memory_extproc.errors import MemoryExtprocError, PermanentError, TransientError, TruncatedAnswerError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Chance

# --- bounded client ----------------------------------------------------------------------------------
# HTTP to a model's endpoint that cannot be led elsewhere, cannot fill the process, and leaves nothing behind.


class UnreadError(Exception):
    """Inside this package only: the answer has too many bytes, or is compressed."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Reads at most *longest_answer* bytes of an answer or an error.

    It follows no redirect: requests hold words of people, which go to the operator's address only. It asks for
    uncompressed answers and accepts no others: a thousand compressed bytes can be a million. It keeps no cookies,
    which would link the calls of different people and accumulate.
    """

    def __init__(self, longest_answer: int) -> None:
        nobodys = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
        super().__init__(follow_redirects=False, cookies=nobodys)
        self._longest_answer = longest_answer

    async def send(self, request: Any, **options: Any) -> Any:
        """The whole answer, or UnreadError, which passes through openai's client."""
        request.headers["accept-encoding"] = "identity"
        answer = await super().send(request, **{**options, "stream": True})
        try:
            if answer.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
                raise UnreadError("the answer is compressed, which was not asked for")
            body = bytearray()
            async for part in answer.aiter_raw():
                body += part
                if len(body) > self._longest_answer:
                    raise UnreadError(f"an answer of more than {self._longest_answer} bytes")
        finally:
            await answer.aclose()
        whole = type(answer)
        return whole(answer.status_code, headers=answer.headers, content=bytes(body), request=request)


# --- openai endpoint ---------------------------------------------------------------------------------

MARKER_HEADER = "x-memory-extproc-internal"
Sleep = Callable[[float], Awaitable[None]]  # seconds
T = TypeVar("T")

log = logger(__name__)
_SERVER_ERROR = 500
_REQUEST_TIMEOUT = 408
# Statuses that blame the body of a request (RFC 9110, 15.5). Other faults (an expired key, a bill, a permission, a
# missing model, a redirect) pass or need an operator, and then the same call works: turns wait for that.
_OF_ONE_REQUEST = frozenset({400, 413, 414, 415, 422})
_MOST_TOKENS = 10_000_000  # of a call; a larger number is no credible count


class CallOutcome(StrEnum):
    """How a call ended. Also the metric label, so a value is never renamed."""

    OK = "ok"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    UNTRUSTED = "untrusted"  # its certificate: expired, without a trusted issuer, or for another name
    BUSY = "busy"  # 429
    FAILED = "failed"  # 5xx
    MALFORMED = "malformed"  # not as the protocol has it
    EMPTY = "empty"  # no choice, or nothing but reasoning
    REJECTED = "rejected"  # 4xx: every further call fails too, until a change of the configuration
    REFUSED = "refused"  # the model or its filter would not answer
    CUT_OFF = "cut_off"  # max_tokens reached before the answer's end
    OPEN = "open"  # not called: the breaker is open
    STOPPED = "stopped"  # not called: the answers were unusable several times in a row


RETRIED = frozenset({CallOutcome.TIMEOUT, CallOutcome.UNREACHABLE, CallOutcome.BUSY, CallOutcome.FAILED,
                     CallOutcome.MALFORMED, CallOutcome.EMPTY})  # fmt: skip
# Outcomes of an endpoint in trouble; a busy endpoint is up.
_DOWN = frozenset({CallOutcome.TIMEOUT, CallOutcome.UNREACHABLE, CallOutcome.UNTRUSTED, CallOutcome.FAILED,
                   CallOutcome.MALFORMED})  # fmt: skip

# Every exception class of the client, looked up along the class's own line of descent.
OUTCOMES: Mapping[type[Exception], CallOutcome] = {
    openai.APITimeoutError: CallOutcome.TIMEOUT,
    openai.APIConnectionError: CallOutcome.UNREACHABLE,
    openai.RateLimitError: CallOutcome.BUSY,
    openai.InternalServerError: CallOutcome.FAILED,
    openai.ConflictError: CallOutcome.FAILED,
    openai.APIResponseValidationError: CallOutcome.MALFORMED,
    openai.APIStatusError: CallOutcome.REJECTED,
    openai.BadRequestError: CallOutcome.REJECTED,
    openai.AuthenticationError: CallOutcome.REJECTED,
    openai.PermissionDeniedError: CallOutcome.REJECTED,
    openai.NotFoundError: CallOutcome.REJECTED,
    openai.UnprocessableEntityError: CallOutcome.REJECTED,
    openai.LengthFinishReasonError: CallOutcome.CUT_OFF,
    openai.ContentFilterFinishReasonError: CallOutcome.REFUSED,
    openai.APIError: CallOutcome.UNREACHABLE,
    openai.OpenAIError: CallOutcome.REJECTED,  # the client's own complaint about how it is used
}


class CallError(Exception):
    """The end of an attempt, inside this package only, with the details for a decision about a retry."""

    def __init__(
        self,
        outcome: CallOutcome,
        status: int = 0,
        param: str = "",
        retry_after: float = 0.0,
        *,
        hollow: bool = False,
    ) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome
        self.hollow = hollow  # cut off before anything but reasoning: a shorter task would not help
        self.status = status  # HTTP; 0 if there was no answer
        self.param = param  # of the request, if the endpoint named the refused parameter
        self.retry_after = retry_after  # seconds the endpoint asked for

    def as_ours(self) -> MemoryExtprocError:
        text = f"the model's endpoint: {self.outcome.value}" + (f", status {self.status}" if self.status else "")
        if self.outcome is CallOutcome.CUT_OFF and not self.hollow:
            return TruncatedAnswerError(text)
        mended = self.outcome is CallOutcome.REJECTED and self.status and self.status not in _OF_ONE_REQUEST
        passes = self.outcome in RETRIED or self.outcome is CallOutcome.UNTRUSTED or mended
        kind = TransientError if passes else PermanentError
        return kind(text)


def sorted_error(error: openai.OpenAIError) -> CallError:
    """The client's *error* as ours. Its message may quote the request and is left behind."""
    outcome = next(OUTCOMES[kind] for kind in type(error).__mro__ if kind in OUTCOMES)
    if not isinstance(error, openai.APIStatusError):
        return CallError(CallOutcome.UNTRUSTED if _is_untrusted(error) else outcome)
    if error.status_code == _REQUEST_TIMEOUT:
        outcome = CallOutcome.TIMEOUT
    elif error.status_code >= _SERVER_ERROR:
        outcome = CallOutcome.FAILED
    return CallError(
        outcome, error.status_code, str(error.param or ""), _seconds(error.response.headers.get("retry-after"))
    )


def _is_untrusted(error: BaseException) -> bool:
    """Whether *error* began as a certificate that was not believed."""
    began: BaseException | None = error
    while began is not None and not isinstance(began, ssl.SSLCertVerificationError):
        began = began.__cause__ or began.__context__
    return began is not None


def _seconds(header: str | None) -> float:
    """Retry-After as seconds (RFC 9110, 10.2.3); its other form, a date, is not worth a clock here."""
    return float(header) if header and header.isdecimal() else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """Where a model is and how long we bother it."""

    base_url: str  # up to and with the version: http://qwen:8000/v1
    timeout: timedelta = timedelta(seconds=30)  # of an attempt, from connecting to the last byte
    attempts: int = 3  # of a call, the first included
    backoff: timedelta = timedelta(milliseconds=500)  # before the second attempt; doubles, and is spread by chance
    longest_backoff: timedelta = timedelta(seconds=8)  # a longer wish of the endpoint ends the attempts
    longest_answer: int = 1 << 20  # bytes; a longer answer is not read to its end
    breaker: BreakerLimits = field(default_factory=BreakerLimits)


class ModelEndpoint:
    """Calls of a model in a role: counted, logged, retried, and refused while the breaker is open.

    Used on a single event loop; closed by its owner.
    """

    def __init__(
        self,
        limits: EndpointLimits,
        *,
        role: str,
        marker: str,
        metrics: Metrics,
        rng: Chance,
        clock: Clock,
        access_key: Callable[[], SecretStr] = lambda: SecretStr(""),
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """*marker*: sent with every call, so that a call that returns through the gateway is recognised.
        *access_key*: read at each attempt; empty: no Authorization header is sent."""
        self.limits, self.clock = limits, clock
        self.role = role
        self._metrics = metrics
        self._rng = rng
        self._access_key, self._sleep = access_key, sleep
        self._breaker = Breaker(limits.breaker, clock, "the endpoint kept failing and is left alone for a while")
        self._marker = {MARKER_HEADER: marker} if marker else {}
        seconds = limits.timeout.total_seconds()
        self.client = openai.AsyncOpenAI(
            base_url=limits.base_url,
            api_key="none",
            timeout=openai.Timeout(seconds, connect=min(seconds, 5.0)),
            max_retries=0,  # tenacity's business, so that a retry is counted and its wait is ours
            http_client=BoundedClient(limits.longest_answer),
        )

    @property
    def headers(self) -> dict[str, str | openai.Omit]:
        """Sent with each request, not set once: only there does the client let us leave Authorization out."""
        key = self._access_key().get_secret_value()
        return {**self._marker, "Authorization": f"Bearer {key}" if key else openai.Omit()}

    async def close(self) -> None:
        await self.client.close()

    async def call(self, attempt: Callable[[], Awaitable[T]], *, counted: bool = True) -> T:
        """The answer of *attempt*, which raises openai's errors, CallError, or an error of reading: msgspec's
        errors and, for too deep a nesting, RecursionError.

        Raises TransientError or PermanentError, never with words of request or answer. *counted* is False for a
        probe, which is no traffic.
        """
        try:
            self._breaker.admit()
        except TransientError:
            self.count(CallOutcome.OPEN)
            raise
        try:
            answer = await self._call_with_retries(attempt)
        except CallError as error:
            if error.outcome in _DOWN:
                self._breaker.count_failure()
            else:
                self._breaker.count_success()
            if counted:
                self.count(error.outcome)
            log.warning("llm.failed", role=self.role, outcome=error.outcome.value, status=error.status)
            raise error.as_ours() from error
        except BaseException:  # cancelled, or a bug of ours: that says nothing of the endpoint
            self._breaker.count_undecided()
            raise
        self._breaker.count_success()
        if counted:
            self.count(CallOutcome.OK)
        return answer

    async def _call_with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self.limits.attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception(_worth_retrying(self.limits.longest_backoff)),
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(self._once, attempt)

    async def _once(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            # the client's own timeout counts from byte to byte: a slow trickle would never reach it
            async with asyncio.timeout(self.limits.timeout.total_seconds()):
                return await attempt()
        except TimeoutError as error:
            raise CallError(CallOutcome.TIMEOUT) from error
        except openai.OpenAIError as error:
            raise sorted_error(error) from error
        except (UnreadError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CallError(CallOutcome.MALFORMED) from error

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Seconds: doubling, half of it up to chance, never less than the endpoint asked for."""
        most = self.limits.longest_backoff.total_seconds()
        whole = min(self.limits.backoff.total_seconds() * 2.0 ** (state.attempt_number - 1), most)
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, CallError) else 0.0
        return max(whole * (0.5 + 0.5 * self._rng()), asked)

    def count_tokens(self, prompt: int, completion: int) -> None:
        """Count the tokens of an answer, as the endpoint reports them."""
        for direction, tokens in (("prompt", prompt), ("completion", completion)):
            if tokens <= _MOST_TOKENS:
                self._metrics.llm_tokens.labels(self.role, direction).inc(tokens)

    def count(self, outcome: CallOutcome) -> None:
        self._metrics.llm_requests.labels(self.role, outcome.value).inc()

    def set_usable(self, *, usable: bool) -> None:
        """Tell operators whether the model's answers can be used."""
        self._metrics.llm_usable.labels(self.role).set(usable)


def _worth_retrying(longest: timedelta) -> Callable[[BaseException], bool]:
    def worth(error: BaseException) -> bool:
        if not isinstance(error, CallError) or error.outcome not in RETRIED:
            return False
        return error.retry_after <= longest.total_seconds()

    return worth
