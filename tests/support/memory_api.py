"""The memory API over real gRPC, with the real partition, recall and curation over a store in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from prometheus_client import CollectorRegistry

from memory_extproc.api.audit import AuditLog
from memory_extproc.api.authentication import Authenticator, CallAdmission, CredentialVerifier, TrustedProxy
from memory_extproc.api.call import DETAILS, Operation, Repeats
from memory_extproc.api.forget import ConsentMethods
from memory_extproc.api.gen import memory_pb2 as pb
from memory_extproc.api.memories import MemoryCalls, PageTokens, SearchCalls, SessionMethods
from memory_extproc.api.service import SERVICE, MemoryService
from memory_extproc.app.api import StoredTextReader, Understanding
from memory_extproc.cli.api_client import open_stub
from memory_extproc.concurrency import RateLimits, TokenBuckets
from memory_extproc.coordination.consent import Consents as KnownConsents
from memory_extproc.curation.editor import MemoryCatalog, MemoryEditor
from memory_extproc.extproc.server import GrpcServer, ServerOptions
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.model import Embedded, Memory, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import MemoryStore
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.api import Api, AuditSection, TrustedProxySection
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryCoordination, InMemoryJournal, InMemoryStore
from memory_extproc.testing.models import CannedEmbedder
from tests.support.builders import MONDAY
from tests.support.canned import RecordedTurns
from tests.support.in_memory import InMemoryConsent
from tests.support.recallers import a_recaller
from tests.support.sidecar import request_settings

KEY = b"a secret of thirty-two bytes ...."
ROLES = "x-authz-roles"


class ApiStand:
    """What a test changes (ways, rates, limits…) it changes before `async with`."""

    def __init__(self, scratch: Path) -> None:
        self.metrics = Metrics(CollectorRegistry(), "test")
        self.time = MONDAY
        self.monotonic = 0.0
        self.embedder = CannedEmbedder()
        self.store = InMemoryStore(self.embedder.dimension, now=self.now)
        self.coordination = InMemoryCoordination(self.now)
        self.journal = InMemoryJournal(now=self.now)
        self.learns = RecordedTurns()
        self.consent = KnownConsents(InMemoryConsent(), CurrentSettings(Settings()), now=self.now)
        self.partitions = Partitions(self.store, self.coordination, PartitionLimits(), self.metrics, now=self.now)
        self.ways: Sequence[CredentialVerifier] = (
            TrustedProxy(IdentitySection(), TrustedProxySection(roles_header=ROLES)),
        )
        self.rate = RateLimits(per_second=1_000_000, burst=1_000_000)
        self.limits = Api()
        self.server_options = ServerOptions(
            address="127.0.0.1:0", drain_wait=timedelta(0), grace=timedelta(seconds=5), light=False
        )
        self.operations: dict[str, Operation] = {}
        self.audit_directory = scratch / "audit"
        self.hashes_users = False
        self.server: GrpcServer
        self.service: MemoryService
        self.channel: grpc.aio.Channel
        self.stub: Any
        self._stack = AsyncExitStack()

    def reconfigure(self, store: MemoryStore) -> None:
        """Another store than the one in memory."""
        self.partitions = Partitions(store, self.coordination, PartitionLimits(), self.metrics, now=self.now)

    def now(self) -> datetime:
        return self.time

    async def __aenter__(self) -> Self:
        stack = self._stack
        await stack.enter_async_context(self.partitions)
        self.audit = audit = stack.enter_context(AuditLog(AuditSection(), self.audit_directory, KEY, self.now))
        names_user = (lambda tenant, user: f"{tenant}#{user}") if self.hashes_users else (lambda _, user: user)
        rates = TokenBuckets(lambda: self.rate, lambda: self.monotonic)
        service = await stack.enter_async_context(
            MemoryService(
                CallAdmission(Authenticator(self.ways), rates, names_user),
                {**self._made(), **self.operations},
                timeout=self.limits.timeout,
                concurrency=self.limits.concurrency,
                audit=audit,
                metrics=self.metrics,
            )
        )
        self.service = service
        self.server = GrpcServer(self.server_options, [SERVICE], service.register)
        await stack.enter_async_context(self.server)
        await self.server.set_ready(ready=True)
        if self.server_options.tls is None:
            self.channel = grpc.aio.insecure_channel(self.server.address)
            stack.push_async_callback(self.channel.close, None)
            self.stub = open_stub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _made(self) -> Mapping[str, Operation]:
        catalogue = MemoryCatalog(self.partitions, self.partitions, self.journal, vector_bytes=1536, now=self.now)
        understanding = Understanding(RulesExtractor(), self.now)
        curator = MemoryEditor(self.partitions, self.partitions, self.embedder, understanding, now=self.now)
        memories = MemoryCalls(
            catalogue,
            curator,
            Repeats(self.coordination, KEY),
            PageTokens(KEY, self.now),
            content_bytes=8192,
            reads=StoredTextReader(
                RulesExtractor(), Reconciler(self.partitions, self.embedder, self.metrics), self.now
            ),
            consent=self.consent,
            now=self.now,
        )
        limits = request_settings(deadline=timedelta(seconds=5))
        recaller = a_recaller(self.partitions, self.embedder, limits, self.metrics, self.now)
        searching = SearchCalls(recaller, self.learns, Settings, consent=self.consent, now=self.now)
        return {
            **memories.operations,
            **searching.operations,
            **SessionMethods(self.learns).operations,
            **ConsentMethods(self.consent).operations,
        }

    async def call(
        self,
        method: str,
        request: Any,
        *,
        as_: Owner,
        roles: str = "",
        metadata: Iterable[tuple[str, str]] = (),
        within: float = 10.0,
    ) -> Any:
        """One call as that user, through a trusted proxy."""
        headers = [("x-authz-user-id", as_.user), ("x-authz-tenant-id", as_.tenant), *metadata]
        if roles:
            headers.append((ROLES, roles))
        return await getattr(self.stub, method)(request, metadata=headers, timeout=within)

    async def remember(self, *memories: Memory) -> None:
        for memory in memories:
            vector = (await self.embedder.embed([memory.content]))[0]
            await self.partitions.put(memory.owner, [Embedded(memory, vector)])

    async def told(self, content: str, *, as_: Owner, **fields: Any) -> Any:
        """The memory that storing *content* gives."""
        request = pb.StoreMemoryRequest(content=content, **fields)
        return (await self.call("StoreMemory", request, as_=as_)).memory

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"memory_extproc_{name}", labels) or 0.0


def reason_of(error: grpc.aio.AioRpcError) -> str:
    return str(detail_of(error, error_details_pb2.ErrorInfo).reason)


def violations_of(error: grpc.aio.AioRpcError) -> list[str]:
    """The fields that are at fault."""
    return [one.field for one in detail_of(error, error_details_pb2.BadRequest).field_violations]


def detail_of(error: grpc.aio.AioRpcError, kind: Any) -> Any:
    trailers: dict[str, Any] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]  # pairs, whatever the stubs say
    status = status_pb2.Status.FromString(trailers[DETAILS])
    assert status.code == error.code().value[0]
    found = kind()
    for detail in status.details:
        if detail.Is(kind.DESCRIPTOR):
            detail.Unpack(found)
    return found
