"""The memory API's service: admits, bounds and accounts for every call of every face, gRPC and HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Any, NoReturn, Self

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from memory_extproc.api.audit import AuditLog, AuditRecord
from memory_extproc.api.authentication import SHARED_HEADER, CallAdmission, Credentials
from memory_extproc.api.call import Call, ErrorReason, Operation, RefusedError, bad_request
from memory_extproc.api.gen import memory_pb2
from memory_extproc.api.principal import METHODS, Access, Principal
from memory_extproc.errors import PermanentError, TransientError
from memory_extproc.model.headers import Headers
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics

log = logger(__name__)

_SERVICE = memory_pb2.DESCRIPTOR.services_by_name["MemoryService"]
SERVICE: str = _SERVICE.full_name
Context = grpc.aio.ServicerContext[Any, Any]
Work = Callable[[Call], Awaitable[Message]]


class MemoryService:
    """Leaving waits for running changes: a change is completed even if its caller disconnects."""

    def __init__(
        self,
        admits: CallAdmission,
        operations: Mapping[str, Operation],
        *,
        timeout: timedelta,
        concurrency: int,
        audit: AuditLog | None,
        metrics: Metrics,
    ) -> None:
        """*operations*: by method name; other methods answer UNIMPLEMENTED. *timeout*: of a call without an
        earlier deadline of its own; not of streams. *concurrency*: calls worked on at the same time; more wait."""
        unknown = operations.keys() - METHODS.keys()
        if unknown:
            raise ValueError(f"no such methods: {', '.join(sorted(unknown))}")
        self._admits, self._operations, self._timeout = admits, operations, timeout
        self._audit, self._metrics = audit, metrics
        self._slots = asyncio.Semaphore(concurrency)
        self._changing: set[asyncio.Task[Message]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._changing, return_exceptions=True)

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {method.name: self._handler(method) for method in _SERVICE.methods if method.name in METHODS}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        reads = GetMessageClass(method.input_type).FromString
        writes = GetMessageClass(method.output_type).SerializeToString
        name = method.name

        async def unary(request: Any, context: Context) -> Message:
            return await _or_abort(context, self.call(name, request, _read_credentials(context)))

        async def answers(request: Any, context: Context) -> AsyncIterator[Message]:
            try:
                async with aclosing(self.stream(name, request, _read_credentials(context))) as answered:
                    async for answer in answered:
                        yield answer
            except RefusedError as refused:
                refusal = refused
            else:
                return
            await _abort(context, refusal)

        async def takes(requests: AsyncIterator[Any], context: Context) -> Message:
            return await _or_abort(context, self.take_in(name, requests, _read_credentials(context)))

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(answers, reads, writes)
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(takes, reads, writes)
        return grpc.unary_unary_rpc_method_handler(unary, reads, writes)

    def identify(self, presented: Credentials) -> Principal:
        """The caller, for a page that shows the user. Counts no call. RefusedError for unknown callers."""
        return self._count_denials(self._admits.identify, presented)

    def admit(self, presented: Credentials) -> Principal:
        """Sign a caller in. Attempts count against the caller's rate."""
        return self._count_denials(self._admits.principal, presented)

    def _count_denials(self, find: Callable[[Credentials], Principal], presented: Credentials) -> Principal:
        try:
            return find(presented)
        except RefusedError as refused:
            self._metrics.api_denied.labels(refused.reason).inc()
            log.info("api.denied", method="page", reason=refused.reason, code=refused.code.name)
            raise

    # gRPC (here) and HTTP (rest.py) use these three methods, which raise only RefusedError.
    async def call(self, method: str, request: Any, presented: Credentials) -> Message:
        """Call a unary method."""
        user = getattr(request, "user_id", "")
        return await self._unary(method, user, presented, lambda call, do: do(call, request))

    async def take_in(self, method: str, requests: AsyncIterator[Any], presented: Credentials) -> Message:
        """Call a client-streaming method, whose first message is its start."""
        first = await anext(aiter(requests), None)
        start = first.start if first is not None and first.HasField("start") else None
        user = "" if start is None else start.user_id

        async def work(call: Call, do: Any) -> Message:
            if start is None:
                raise bad_request(("start", "the first message says how, each further one holds a memory"))
            answer: Message = await do(call, start, requests)
            return answer

        return await self._unary(method, user, presented, work, bounded=False)

    async def stream(self, method: str, request: Any, presented: Credentials) -> AsyncGenerator[Message]:
        """Call a server-streaming method."""
        started = time.monotonic()
        call = self._admit(method, request.user_id, presented)
        async with self._account(call, started):
            do: Any = self._operation(method)
            async with aclosing(do(call, request)) as answers:
                async for answer in answers:
                    yield answer

    async def _unary(
        self,
        method: str,
        user: str,
        presented: Credentials,
        work: Callable[[Call, Any], Awaitable[Message]],
        *,
        bounded: bool = True,
    ) -> Message:
        started = time.monotonic()
        call = self._admit(method, user, presented)

        async def carried_out() -> Message:
            async with self._account(call, started), self._slots:
                return await work(call, self._operation(method))

        return await self._run_bounded(METHODS[method], carried_out(), bounded=bounded)

    async def _run_bounded(self, access: Access, work: Any, *, bounded: bool) -> Message:
        """Run *work* with a timeout. A change that has begun is completed even if its caller disconnects."""
        limit = self._timeout.total_seconds() if bounded else None
        try:
            async with asyncio.timeout(limit):
                if access is not Access.WRITE:
                    answer: Message = await work
                    return answer
                task = asyncio.create_task(work, name="memory api change")
                self._changing.add(task)
                task.add_done_callback(self._end_change)
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise RefusedError(
                grpc.StatusCode.DEADLINE_EXCEEDED, ErrorReason.OUT_OF_TIME, "it takes too long just now"
            ) from error

    def _end_change(self, task: asyncio.Task[Message]) -> None:
        self._changing.discard(task)
        if not task.cancelled():
            task.exception()  # already accounted for; marks the exception as retrieved

    def _operation(self, method: str) -> Operation:
        operation = self._operations.get(method)
        if operation is None:
            raise RefusedError(
                grpc.StatusCode.UNIMPLEMENTED, ErrorReason.NOT_OFFERED, f"this server does not offer {method}"
            )
        return operation

    def _admit(self, method: str, user: str, presented: Credentials) -> Call:
        principal: Principal | None = None
        try:
            principal = self._admits.principal(presented)
            call = self._admits.call(method, principal, user, presented.headers.all(SHARED_HEADER))
            self._accountable()
        except RefusedError as refused:
            self._metrics.api_denied.labels(refused.reason).inc()
            log.info("api.denied", method=method, reason=refused.reason, code=refused.code.name)
            if principal is not None and refused.code is grpc.StatusCode.PERMISSION_DENIED:
                code, reason = refused.code.name, refused.reason
                self._write_audit(
                    AuditRecord(principal=principal, method=method, owner=None, outcome=code, reason=reason)
                )
            raise
        return call

    def _account(self, call: Call, started: float) -> _Accounted:
        def account_end(code: str, reason: str) -> None:
            self._metrics.api_seconds.labels(call.method, code).observe(time.monotonic() - started)
            self._write_audit(AuditRecord(
                principal=call.principal, method=call.method, owner=call.owner, outcome=code, reason=reason,
                scope=call.scope, count=call.count, request_id=call.request_id,
            ))  # fmt: skip

        return _Accounted(call.method, account_end)

    def _accountable(self) -> None:
        if self._audit is None:
            return
        try:
            self._audit.check()
        except TransientError as error:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, ErrorReason.AUDIT_UNAVAILABLE, str(error)) from error

    def _write_audit(self, audited: AuditRecord) -> None:
        if self._audit is not None:
            self._audit.write(audited)


class _Accounted:
    """Wraps the work of a call: reports its end to *ended*, and turns every error into a RefusedError."""

    def __init__(self, method: str, ended: Callable[[str, str], None]) -> None:
        self._method, self._ended = method, ended

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self._ended(grpc.StatusCode.OK.name, "")
            return
        if not isinstance(error, Exception):  # cancelled, or the generator was closed: the caller left
            self._ended(grpc.StatusCode.CANCELLED.name, "")
            return
        # Like the stream pump and the learner's loop, this handles any exception: gRPC would send its text to the
        # caller, and it may contain texts of users.
        refused = self._refusal(error)
        self._ended(refused.code.name, refused.reason)
        if refused is not error:
            raise refused from error

    def _refusal(self, error: Exception) -> RefusedError:
        if isinstance(error, RefusedError):
            return error
        if isinstance(error, TransientError):
            log.warning("api.unavailable", method=self._method, kind=type(error).__name__, detail=str(error))
            return RefusedError(
                grpc.StatusCode.UNAVAILABLE,
                ErrorReason.UNAVAILABLE,
                "memory cannot be reached just now",
                retry_after=timedelta(seconds=1),
            )
        log.error(
            "api.failed", method=self._method, kind=type(error).__name__, ours=isinstance(error, PermanentError)
        )
        return RefusedError(
            grpc.StatusCode.INTERNAL, ErrorReason.INTERNAL, "a fault of the server; it is in its log"
        )


def _read_credentials(context: Context) -> Credentials:
    pairs = [(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]
    return Credentials(context.peer(), Headers(pairs), context.auth_context())


async def _or_abort(context: Context, answering: Awaitable[Message]) -> Message:
    try:
        return await answering
    except RefusedError as refused:
        refusal = refused
    return await _abort(context, refusal)


async def _abort(context: Context, refusal: RefusedError) -> NoReturn:
    await context.abort(refusal.code, refusal.message, refusal.trailer())
    raise AssertionError("abort raises")
