"""The memory API over HTTP with its page, beside gRPC, over one service and a store in memory."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from memory_extproc.api.authentication import TrustedProxy
from memory_extproc.api.call import Repeats
from memory_extproc.api.forget import ConsentMethods, ForgetCalls
from memory_extproc.api.operator import (
    FINDINGS,
    Configuration,
    OperatorCalls,
    RecentOutcomes,
    RetentionCalls,
    ServerFacts,
)
from memory_extproc.api.rest import ErrorBody, RestApi
from memory_extproc.api.review import DecisionCalls, ReviewCalls
from memory_extproc.api.transfer import TransferCalls
from memory_extproc.concurrency import Background, Backoff
from memory_extproc.console.pages import Pages
from memory_extproc.console.server import (
    ConsoleServer,
    SessionVerifier,
    make_link,
    make_signer,
    present_credentials,
    register_documents,
)
from memory_extproc.console.views import OperatorPage, TimelinePage, TryOut, WhyPage
from memory_extproc.coordination.sqlite import SoleReplica, SqliteOwners
from memory_extproc.curation.editor import MemoryCatalog
from memory_extproc.erasure.forgetter import ForgetLimits, Forgetter
from memory_extproc.erasure.receipts import ReceiptSigner
from memory_extproc.erasure.steps import Erasable
from memory_extproc.erasure.tombstones import TombstoneFilteringStore, TombstoneIndex
from memory_extproc.learn.screening import Quarantine
from memory_extproc.model import ForgetScope, Memory, Owner
from memory_extproc.portability.importer import Exporter, Importer
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.retention.passes import PassReport
from memory_extproc.retention.rules import RetentionReason
from memory_extproc.retention.scheduler import Round
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.api import Console, PrincipalRole, TrustedProxySection
from memory_extproc.settings.identity import IdentitySection
from memory_extproc.settings.traffic import Trace
from memory_extproc.store.loader import PartitionLimits
from memory_extproc.store.partition import Partitions
from memory_extproc.testing.adapters import InMemoryLedger
from tests.support.memory_api import KEY, ROLES, ApiStand

BODY_BYTES = 64 * 1024


class ConsoleStand(ApiStand):
    """What a test changes it changes before `async with`."""

    console: ConsoleServer
    hosts: frozenset[str] = frozenset()
    error_body: ErrorBody = "status"
    kept = Trace(keep=timedelta(hours=1))  # zero: no decisions
    chats = ""  # where the chat box sends its messages; empty: there is none

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.signer = make_signer(KEY, self.now)
        self.ways = (
            TrustedProxy(IdentitySection(), TrustedProxySection(roles_header=ROLES)),
            SessionVerifier(self.signer),
        )
        ledger, sole = InMemoryLedger(), SoleReplica()
        forgotten = TombstoneIndex(ledger, sole)
        self.partitions = Partitions(
            TombstoneFilteringStore(self.store, forgotten),
            self.coordination,
            PartitionLimits(),
            self.metrics,
            now=self.now,
            forgotten=forgotten,
        )
        self._forgetter = Forgetter(
            ledger,
            forgotten,
            Erasable(
                replicas=sole,
                store=self.store,
                partitions=self.partitions,
                journal=self.journal,
                coordination=self.coordination,
                purges=_AtOnce(),
            ),
            ForgetLimits(backoff=Backoff(timedelta(milliseconds=1))),
            self.metrics,
            now=self.now,
            seeks=_ByWord(self),
            signer=ReceiptSigner(Ed25519PrivateKey.generate()),
        )

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._forgetter)
        noting = await self._stack.enter_async_context(Background(self.metrics, grace=timedelta(seconds=5)))
        self.decisions = DecisionLog(
            self.coordination, CurrentSettings(Settings(trace=self.kept)), background=noting, now=self.now
        )
        self.owners = await self._stack.enter_async_context(SqliteOwners(self.audit_directory.parent / "owners.db"))
        outcomes = await self._stack.enter_async_context(RecentOutcomes(self.metrics, self.now))
        facts = ServerFacts(
            journal=self.journal,
            owners=self.owners,
            outcomes=outcomes,
            store_failing_for=timedelta,
            canary=lambda: 1.0,
            consent=self.consent,
            findings=self.audit_directory.parent / FINDINGS,
            audited=lambda count: self.audit.newest(count),  # noqa: PLW0108 - it is opened later
        )
        catalogue = MemoryCatalog(self.partitions, self.partitions, self.journal, vector_bytes=1536, now=self.now)
        forgetting = ForgetCalls(self._forgetter, catalogue, Repeats(self.coordination, KEY))
        importer = Importer(
            self.partitions, self.embedder, self.coordination, 8192, now=self.now, consent=self.consent
        )
        exporter = Exporter(self.store, self.journal, consent=self.consent)
        reviews = ReviewCalls(
            Quarantine(self.store, self.partitions),
            self.journal,
            self.partitions,
            catalogue,
            now=self.now,
            decisions=self.decisions,
        )
        self.operations = {
            **reviews.operations,
            **DecisionCalls(self.decisions, self.partitions).operations,
            **OperatorCalls(facts).operations,
            **RetentionCalls(self._plan, self.owners).operations,
            **TransferCalls(exporter, importer, now=self.now).operations,
            **forgetting.operations,
            **ConsentMethods(self.consent, forgetting.forget).operations,
            **Configuration(lambda: ({"api": {"secret": "***"}, "log": "<b>x</b>"}, ["listen.api"])).operations,
            **self.operations,
        }
        await super().__aenter__()
        rest = RestApi(
            self.service, present_credentials, body_bytes=BODY_BYTES, error_body=self.error_body, now=self.now
        )
        pages = Pages(self.service, self.signer, self.coordination, tries=bool(self.chats))
        chats, identity = Console(chats=self.chats, chat_model="m"), IdentitySection(tenant_header="")
        tries = [TryOut(pages, self.service, chats, identity).register] if self.chats else []
        more = [page(pages, self.service).register for page in (WhyPage, TimelinePage, OperatorPage)]
        registers = [rest.register, register_documents, pages.register, *more, *tries]
        self.console = await self._stack.enter_async_context(
            ConsoleServer("127.0.0.1:0", registers, hosts=self.hosts)
        )
        session = aiohttp.ClientSession(base_url=self.console.url, cookie_jar=aiohttp.DummyCookieJar())
        self.http = await self._stack.enter_async_context(session)
        return self

    async def _plan(self, _: Owner) -> Round:
        return Round(
            owners=1, kept=PassReport(memories=9, retired=Counter({RetentionReason.TTL: 2}), merged=1, erased=3)
        )

    def link(self, user: str, *roles: PrincipalRole) -> str:
        """Signs in, once."""
        return make_link(self.signer, self.console.url, "", user, frozenset(roles or {PrincipalRole.USER}))

    async def rest(
        self, method: str, path: str, body: Any = None, *, user: str = "ann", roles: str = "", **headers: str
    ) -> Answered:
        """Header names are written with _ for -."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if user:
            sent["x-authz-user-id"] = user
        if roles:
            sent[ROLES] = roles
        more: dict[str, Any] = {}
        if isinstance(body, bytes):
            more = {"data": body}
        elif body is not None:
            more = {"json": body}
        async with self.http.request(method, path, headers=sent, allow_redirects=False, **more) as response:
            return Answered(response.status, dict(response.headers), await response.read())


class Answered:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.body = status, body
        self.headers = {name.lower(): value for name, value in headers.items()}

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def reason(self) -> str:
        return str(self.json["details"][0]["reason"])


class _AtOnce:
    async def purge(self, owner: Owner) -> bool:
        return bool(owner.user)


class _ByWord:
    """Finds the memories that hold the query's words."""

    def __init__(self, stand: ApiStand) -> None:
        self._stand = stand

    async def about(self, owner: Owner, query: str, scope: ForgetScope) -> list[Memory]:
        pages = self._stand.store.pages(owner, 100, fresh=True)
        return [row.memory async for page in pages for row in page if query in row.memory.content]
