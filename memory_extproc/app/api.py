"""The memory API as configured."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
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
    SearchCalls,
    SessionMethods,
)
from memory_extproc.api.operator import (
    FINDINGS,
    Configuration,
    OperatorCalls,
    RecentOutcomes,
    RetentionCalls,
    ServerFacts,
)
from memory_extproc.api.principal import derive_key, secret_in
from memory_extproc.api.rest import RestApi
from memory_extproc.api.review import DecisionCalls, ReviewCalls
from memory_extproc.api.service import SERVICE, MemoryService
from memory_extproc.api.transfer import TransferCalls
from memory_extproc.app.context import AppContext, Live, api_options
from memory_extproc.app.read_path import ReadPath, open_tokens
from memory_extproc.app.storage import Storage
from memory_extproc.app.write_path import WritePath, quarantine_facts
from memory_extproc.concurrency import RateLimits, TokenBuckets
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
from memory_extproc.portability.importer import Exporter, Importer
from memory_extproc.ports import Coordination, Now
from memory_extproc.recall.recaller import Recaller
from memory_extproc.request.decisions import DecisionLog
from memory_extproc.request.identity import hashed_user
from memory_extproc.safety.policy import StorageRules
from memory_extproc.settings import Settings
from memory_extproc.settings.api import ways_of
from memory_extproc.settings.docs import dump_effective
from memory_extproc.text.words import sentences

if TYPE_CHECKING:
    from memory_extproc.request.jwt import Tokens


_VECTOR_BYTES = 4  # of each of its numbers


@asynccontextmanager
async def memory_api(
    context: AppContext,
    kept: Storage,
    writing: WritePath,
    reading: ReadPath,
    decisions: DecisionLog,
    forgetter: VerifyingForgetter,
) -> AsyncIterator[ApiServers]:
    """Open the memory API's service and yield its servers, which the caller enters in shutdown order.

    Changes in progress are completed on exit."""
    settings, metrics, now = context.settings, context.metrics, context.now
    async with AsyncExitStack() as stack:
        rates = TokenBuckets(lambda: _rates(context.settings), time.monotonic)
        secret = secret_of(settings)
        signer = make_signer(secret, now)
        page = settings.console.page
        audit = _open_audit(context, secret, stack)
        outcomes = await stack.enter_async_context(RecentOutcomes(metrics, now))
        facts = _server_facts(context, kept, writing, reading, outcomes, audit)
        service = MemoryService(
            CallAdmission(
                await _authenticator(context.live, stack, signer if page else None),
                rates,
                _names_user(settings),
            ),
            {
                **_operations(context, kept, writing, reading.recaller, decisions, forgetter, secret),
                **OperatorCalls(facts).operations,
            },
            timeout=settings.api.timeout,
            concurrency=settings.api.concurrency,
            audit=audit,
            metrics=metrics,
        )
        await stack.enter_async_context(service)
        rest = RestApi(
            service,
            present_credentials,
            body_bytes=settings.limits.request_body,
            error_body=settings.api.error_body,
            now=now,
        )
        yield ApiServers(
            GrpcServer(api_options(settings), [SERVICE], service.register),
            ConsoleServer(
                settings.listen.console,
                [
                    rest.register,
                    register_documents,
                    *(_page_of(settings, service, signer, kept.coordination) if page else ()),
                ],
                tls=api_options(settings).tls,
                hosts=settings.console.hosts,
            ),
        )


def _open_audit(context: AppContext, secret: bytes, stack: AsyncExitStack) -> AuditLog | None:
    section = context.settings.api.audit
    if not section.enabled:
        return None
    directory = audit_directory(context.settings, context.data)
    return stack.enter_context(AuditLog(section, directory, derive_key(secret, "audit"), context.now))


def _server_facts(
    context: AppContext,
    kept: Storage,
    writing: WritePath,
    reading: ReadPath,
    outcomes: RecentOutcomes,
    audit: AuditLog | None,
) -> ServerFacts:
    canary = reading.canary
    return ServerFacts(
        journal=kept.journal,
        owners=kept.owners,
        outcomes=outcomes,
        store_failing_for=lambda: kept.store.failing_for,
        canary=lambda: None if canary is None else canary.share,
        consent=writing.door.consent,
        findings=context.data / FINDINGS,
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


def secret_of(settings: Settings) -> bytes:
    """The secret of the API, as configured or else made in the data directory."""
    given = settings.api.secret.get_secret_value()
    return given.encode() if given else secret_in(Path(settings.data_dir).absolute())


def operator_audit(settings: Settings, now: Now) -> AuditLog:
    """The audit log of administrative commands, separate from the sidecar's."""
    directory = audit_directory(settings, Path(settings.data_dir).absolute()) / "operator"
    return AuditLog(settings.api.audit, directory, derive_key(secret_of(settings), "audit"), now)


def _operations(
    context: AppContext,
    kept: Storage,
    writing: WritePath,
    recaller: Recaller,
    decisions: DecisionLog,
    forgetter: VerifyingForgetter,
    secret: bytes,
) -> dict[str, Operation]:
    live, now, settings = context.live, context.now, context.settings
    consent, noticing, content_bytes = writing.door.consent, writing.noticing, settings.limits.content_bytes

    def rules() -> StorageRules:
        return live.settings.privacy.storage_rules

    vector_bytes = _VECTOR_BYTES * settings.memory.embedding.dimension
    catalogue = MemoryCatalog(kept.partitions, kept.partitions, kept.journal, vector_bytes=vector_bytes, now=now)
    understanding = Understanding(RulesExtractor(), now)
    editor = MemoryEditor(
        noticing, noticing, kept.embedder, understanding, now=now, masks=lambda text: rules().apply(text)
    )
    repeats = Repeats(kept.coordination, derive_key(secret, "repeats"))
    forgetting = ForgetCalls(forgetter, catalogue, repeats)
    memories = MemoryCalls(
        catalogue,
        editor,
        repeats,
        PageTokens(derive_key(secret, "page tokens"), now),
        content_bytes=content_bytes,
        reads=StoredTextReader(
            quarantine_facts(context, RulesExtractor()),
            Reconciler(noticing, kept.embedder, context.metrics),
            now,
        ),
        consent=consent,
        now=now,
        rules=rules,
    )
    importer = Importer(
        kept.partitions, kept.embedder, kept.coordination, content_bytes,
        now=now, consent=consent, forgotten=kept.erasing.forgotten, rules=rules,
    )  # fmt: skip
    quarantine = Quarantine(kept.shown, noticing)
    reviews = ReviewCalls(quarantine, kept.journal, kept.partitions, catalogue, now=now, decisions=decisions)
    calls = (
        memories,
        SearchCalls(recaller, writing.intake, lambda: live.settings, consent=consent, now=now),
        forgetting,
        reviews,
        DecisionCalls(decisions, kept.partitions),
        SessionMethods(writing.intake),
        Configuration(lambda: (dump_effective(live.settings), live.waiting)),
        ConsentMethods(consent, forgetting.forget),
        TransferCalls(Exporter(kept.shown, kept.journal, consent=consent), importer, now=now),
        RetentionCalls(partial(writing.retention.one, dry_run=True), kept.owners),
    )
    return {name: operation for each in calls for name, operation in each.operations.items()}


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
            ways.append(JwtCredentials(self.tokens, settings.api_jwt, projects_claim))
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
    api = live.settings.api
    wanted = ways_of(api, live.settings.identity)
    tokens = await open_tokens(lambda: live.settings.api_jwt, stack) if "jwt" in wanted else None
    keys = await stack.enter_async_context(ApiKeys(Path(api.keys_file))) if "api_key" in wanted else None
    proofs = Proofs(tokens, keys, session)
    authenticator = Authenticator(proofs.ways(live.settings))
    live.subscribe(lambda new: authenticator.reconfigure(proofs.ways(new)))
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
