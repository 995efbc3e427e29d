"""The memory API as configured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from memory_extproc.api.audit import AuditLog
from memory_extproc.api.authentication import (
    ApiKey,
    ApiKeys,
    Authenticator,
    CallAdmission,
    CredentialVerifier,
    JwtCredentials,
    Mtls,
    NamesUser,
    NoProof,
    TrustedProxy,
)
from memory_extproc.api.call import Operation, Repeats
from memory_extproc.api.forget import ConsentMethods, ForgetCalls, VerifyingForgetter
from memory_extproc.api.memories import (
    MemoryCalls,
    PageTokens,
    RecallExplainer,
    SearchCalls,
    SessionMethods,
)
from memory_extproc.api.operator import FINDINGS, Configuration, OperatorCalls, RecentOutcomes, ServerFacts
from memory_extproc.api.principal import derive_key, secret_in
from memory_extproc.api.rest import RestApi
from memory_extproc.api.review import DecisionCalls, ReviewCalls
from memory_extproc.api.service import SERVICE, MemoryService
from memory_extproc.app.context import Live, api_options
from memory_extproc.app.read_path import open_tokens
from memory_extproc.app.write_path import quarantine_facts
from memory_extproc.concurrency import HelperThread, RateLimits, TokenBuckets
from memory_extproc.console.pages import Pages
from memory_extproc.console.server import (
    ConsoleServer,
    Register,
    SessionVerifier,
    TextSigner,
    make_signer,
    present_credentials,
    register_documents,
)
from memory_extproc.console.views import OperatorPage, TimelinePage, TryOut, WhyPage
from memory_extproc.curation.editor import Meaning, MemoryCatalog, MemoryEditor, Standing
from memory_extproc.extproc.server import GrpcServer
from memory_extproc.learn.conflicts import FactRelation, likeness
from memory_extproc.learn.extract.extractor import Fact, FactExtractor
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.learn.extract.verbs import tell_of_oneself
from memory_extproc.learn.reconcile import Reconciler
from memory_extproc.learn.screening import Quarantine
from memory_extproc.model import Hit, Memory, MemoryType, Owner, Source, Turn, digest
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import (
    ConsentRegistry,
    Coordination,
    EmbeddingModel,
    Journal,
    MemoryStore,
    Now,
    OwnerRegistry,
    TurnLearner,
)
from memory_extproc.recall.canary import Canary
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.request.identity import hashed_user
from memory_extproc.retention.usage import ChangeNotifier
from memory_extproc.safety.policy import StorageRules
from memory_extproc.settings import Settings
from memory_extproc.settings.api import jwt_of, ways_of
from memory_extproc.settings.docs import dump_effective
from memory_extproc.store.partition import Partitions
from memory_extproc.text.words import sentences

if TYPE_CHECKING:
    from memory_extproc.request.jwt import Tokens


_VECTOR_BYTES = 4  # of each of its numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """The parts of the memory API."""

    store: MemoryStore  # as visible to users
    partitions: Partitions
    noticing: ChangeNotifier  # the partitions with change notification
    embedder: EmbeddingModel
    coordination: Coordination
    journal: Journal
    learns: TurnLearner
    explains: RecallExplainer
    decisions: DecisionLog
    consent: ConsentRegistry | None
    forgets: VerifyingForgetter
    owners: OwnerRegistry
    store_failing_for: Callable[[], timedelta]
    canary: Canary | None  # None: it is switched off
    operations: Mapping[str, Operation]  # beside those that are made here
    live: Live
    metrics: Metrics
    now: Now
    helper: HelperThread


@asynccontextmanager
async def memory_api(settings: Settings, data: Path, parts: ApiParts) -> AsyncIterator[ApiServers]:
    """Open the memory API's service and yield its servers, which the caller enters in shutdown order.

    Changes in progress are completed on exit."""
    async with AsyncExitStack() as stack:
        rates = TokenBuckets(_rates(settings), time.monotonic)
        parts.live.subscribe(lambda now: rates.reconfigure(_rates(now)))
        given = settings.api.secret.get_secret_value()
        secret = given.encode() if given else secret_in(data)
        signer = make_signer(secret, parts.now)
        page = settings.console.page
        audit = _audit(settings, data, secret, parts.now, stack)
        outcomes = await stack.enter_async_context(RecentOutcomes(parts.metrics, parts.now))
        facts = _facts(parts, outcomes, audit, data)
        service = MemoryService(
            CallAdmission(
                await _authenticator(parts.live, stack, signer if page else None),
                rates,
                _names_user(settings),
            ),
            {**_operations(settings, secret, parts), **parts.operations, **OperatorCalls(facts).operations},
            timeout=settings.api.timeout,
            concurrency=settings.api.concurrency,
            audit=audit,
            metrics=parts.metrics,
        )
        await stack.enter_async_context(service)
        rest = RestApi(
            service,
            present_credentials,
            body_bytes=settings.limits.request_body,
            error_body=settings.api.error_body,
            now=parts.now,
        )
        yield ApiServers(
            GrpcServer(api_options(settings), [SERVICE], service.register),
            ConsoleServer(
                settings.listen.console,
                [
                    rest.register,
                    register_documents,
                    *(_page_of(settings, service, signer, parts.coordination) if page else ()),
                ],
                tls=api_options(settings).tls,
                hosts=settings.console.hosts,
            ),
        )


def _facts(parts: ApiParts, outcomes: RecentOutcomes, audit: AuditLog | None, data: Path) -> ServerFacts:
    canary = parts.canary
    return ServerFacts(
        journal=parts.journal,
        owners=parts.owners,
        outcomes=outcomes,
        store_failing_for=parts.store_failing_for,
        canary=lambda: None if canary is None else canary.share,
        consent=parts.consent,
        findings=data / FINDINGS,
        audited=(lambda _: ()) if audit is None else audit.newest,
    )


def _page_of(
    settings: Settings, service: MemoryService, signer: TextSigner, coordination: Coordination
) -> Sequence[Register]:
    section, identity = settings.console, settings.identity
    pages = Pages(service, signer, coordination, tries=bool(section.chats))
    registers = [pages.register, *(page(pages, service).register for page in (WhyPage, TimelinePage, OperatorPage))]
    if not section.chats:
        return registers
    return [*registers, TryOut(pages, service, section, identity).register]


@dataclass(frozen=True, slots=True)
class ApiServers:
    """The gRPC and HTTP servers of the memory API, over the same service."""

    grpc: GrpcServer
    console: ConsoleServer


def _rates(settings: Settings) -> RateLimits:
    return RateLimits(settings.api.rate.per_second, settings.api.rate.burst)


def audit_directory(settings: Settings, data: Path) -> Path:
    given = settings.api.audit.directory
    return Path(given).absolute() if given else data / "audit"


def operator_audit(settings: Settings, now: Now) -> AuditLog:
    """The audit log of administrative commands, separate from the sidecar's."""
    data = Path(settings.data_dir).absolute()
    given = settings.api.secret.get_secret_value()
    key = derive_key(given.encode() if given else secret_in(data), "audit")
    return AuditLog(settings.api.audit, audit_directory(settings, data) / "operator", key, now)


def _audit(settings: Settings, data: Path, secret: bytes, now: Now, stack: AsyncExitStack) -> AuditLog | None:
    if not settings.api.audit.enabled:
        return None
    key = derive_key(secret, "audit")
    return stack.enter_context(AuditLog(settings.api.audit, audit_directory(settings, data), key, now))


def _operations(settings: Settings, secret: bytes, parts: ApiParts) -> dict[str, Operation]:
    memory = settings.memory

    def rules() -> StorageRules:
        return parts.live.settings.privacy.storage_rules

    catalogue = MemoryCatalog(
        parts.partitions,
        parts.partitions,
        parts.journal,
        vector_bytes=_VECTOR_BYTES * memory.embedding.dimension,
        now=parts.now,
    )
    understanding = Understanding(RulesExtractor(), parts.now)
    repeats = Repeats(parts.coordination, derive_key(secret, "repeats"))
    forgetting = ForgetCalls(parts.forgets, catalogue, repeats)
    memories = MemoryCalls(
        catalogue,
        MemoryEditor(
            parts.noticing,
            parts.noticing,
            parts.embedder,
            understanding,
            now=parts.now,
            masks=lambda text: rules().apply(text),
        ),
        repeats,
        PageTokens(derive_key(secret, "page tokens"), parts.now),
        content_bytes=settings.limits.content_bytes,
        reads=StoredTextReader(
            quarantine_facts(parts.live, RulesExtractor(), parts.helper),
            Reconciler(parts.noticing, parts.embedder, parts.metrics),
            parts.now,
        ),
        consent=parts.consent,
        now=parts.now,
        rules=rules,
    )
    searching = SearchCalls(
        parts.explains, parts.learns, lambda: parts.live.settings, consent=parts.consent, now=parts.now
    )
    reviews = ReviewCalls(
        Quarantine(parts.store, parts.noticing),
        parts.journal,
        parts.partitions,
        catalogue,
        now=parts.now,
        decisions=parts.decisions,
    )
    return {
        **memories.operations,
        **searching.operations,
        **forgetting.operations,
        **reviews.operations,
        **DecisionCalls(parts.decisions, parts.partitions).operations,
        **SessionMethods(parts.learns).operations,
        **Configuration(lambda: (dump_effective(parts.live.settings), parts.live.waiting)).operations,
        **(ConsentMethods(parts.consent, forgetting.forget).operations if parts.consent is not None else {}),
    }


@dataclass(frozen=True, slots=True)
class Proofs:
    """The credentials that outlive a configuration change: token keys and API keys."""

    tokens: Tokens | None = None
    keys: ApiKeys | None = None
    session: TextSigner | None = None  # of browsers' sessions, if the console is enabled

    def ways(self, settings: Settings) -> list[CredentialVerifier]:
        """The active credential verifiers in order: per call, per connection, anonymous."""
        api, identity = settings.api, settings.identity
        wanted, shares = ways_of(api, identity), settings.scopes.project.recall
        proxy = api.trusted_proxy if shares else api.trusted_proxy.model_copy(update={"projects_header": ""})
        ways: list[CredentialVerifier] = []
        if "trusted_proxy" in wanted:
            ways.append(TrustedProxy(identity, proxy))
        if self.tokens is not None:
            # Another issuer's tokens, of api.jwt, say nothing of the projects of chats.
            projects_claim = "" if api.jwt.is_set or not shares else identity.jwt.projects_claim
            ways.append(JwtCredentials(self.tokens, jwt_of(api, identity), projects_claim))
        if self.keys is not None:
            ways.append(ApiKey(self.keys))
        if self.session is not None:
            ways.append(SessionVerifier(self.session, shares=shares))
        if "mtls" in wanted:
            ways.append(Mtls(api.certificates))
        if "none" in wanted:
            ways.append(NoProof(identity))
        return ways


async def _authenticator(live: Live, stack: AsyncExitStack, session: TextSigner | None) -> Authenticator:
    settings = live.settings
    api, identity = settings.api, settings.identity
    wanted = ways_of(api, identity)
    tokens = await open_tokens(jwt_of(api, identity), stack) if "jwt" in wanted else None
    keys = await stack.enter_async_context(ApiKeys(Path(api.keys_file))) if "api_key" in wanted else None
    proofs = Proofs(tokens, keys, session)
    authenticator = Authenticator(proofs.ways(settings))

    def reconfigure(new: Settings) -> None:
        if tokens is not None:
            tokens.reconfigure(jwt_of(new.api, new.identity))
        authenticator.reconfigure(proofs.ways(new))

    live.subscribe(reconfigure)
    return authenticator


def _names_user(settings: Settings) -> NamesUser:
    key = settings.privacy.key

    def pseudonym_of(tenant: str, user: str) -> str:
        return user if key is None else hashed_user(key, tenant, user)

    return pseudonym_of


# Curation: texts written by users are interpreted as on the write path.

_STANDING = {
    FactRelation.OTHER: Standing.OTHER,
    FactRelation.SAME: Standing.SAME,
    FactRelation.CHANGED: Standing.CHANGED,
    FactRelation.WIDER: Standing.SAME,
    FactRelation.NARROWER: Standing.CHANGED,
}


class Understanding:
    """Implements curation's Understands with an extractor and the reconciliation rules."""

    def __init__(self, extractor: FactExtractor, now: Now) -> None:
        self._extractor = extractor
        self._now = now

    async def meaning(self, owner: Owner, content: str) -> Meaning:
        """The meaning of a text that is a single current fact; empty for an ending or a change, or for more."""
        facts = await self._extractor.extract([_as_said(owner, content, self._now())])
        if len(facts) != 1 or facts[0].ends or facts[0].moved or len(sentences(content.strip())) > 1:
            return Meaning()
        fact = facts[0]
        return Meaning(fact.subject, fact.attribute, fact.value, fact.exclusive)

    def standing(self, content: str, meaning: Meaning, found: Hit) -> Standing:
        return _STANDING[likeness(_fact(content, meaning), found)]


class StoredTextReader:
    """Implements curation.TextReader with an extractor and a reconciler."""

    def __init__(self, extractor: FactExtractor, reconciler: Reconciler, now: Now) -> None:
        self._extractor, self._reconciler, self._now = extractor, reconciler, now

    async def learn(self, memory: Memory) -> Sequence[str]:
        said = _as_said(memory.owner, memory.content, self._now())
        turn = replace(said, id=digest("told", memory.id), project=memory.project, session=memory.session)
        facts = await self._extractor.extract([turn])
        applied = await self._reconciler.apply_each(memory.owner, facts, [turn])
        return list(dict.fromkeys(memory_id for _, memory_id in applied))


def _as_said(owner: Owner, content: str, now: datetime) -> Turn:
    asked = tell_of_oneself(content)
    return Turn(
        id=digest("told", content), owner=owner, project="", session="", seq=0, asked=asked, answered="", at=now
    )


def _fact(content: str, meaning: Meaning) -> Fact:
    return Fact(
        content=content,
        type=MemoryType.SEMANTIC,
        subject=meaning.subject,
        attribute=meaning.attribute,
        value=meaning.value,
        turn_id="",
        source=Source.API,
        version="",
        exclusive=meaning.exclusive,
    )
