"""Ports for the read path and the write path, model inference, forgetting and transfer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from memory_extproc.model import (
    Caller,
    ChatState,
    ConsentChange,
    Embedded,
    Exchanged,
    ForgetPlan,
    ForgetReceipt,
    ForgetScope,
    ImportReport,
    LedgerJob,
    LedgerMarks,
    Matrix,
    Memory,
    Message,
    Owner,
    RecallRequest,
    RecallResult,
    Turn,
    TurnOutcome,
    UserProfile,
    Vector,
    WaitingPlace,
    WordPieces,
)
from memory_extproc.ports.coordination import JournalEntry


class SignalClassifier(Protocol):
    async def is_fact(self, text: str, within: timedelta) -> tuple[bool | None, str]:
        """Whether *text* asks for a fact that anybody could look up; None where that was not found out *within* the
        time. And how asking ended, in one word; "" where nobody is asked. Never raises for a fault."""


class MemoryRecaller(Protocol):
    async def recall(self, request: RecallRequest) -> RecallResult:
        """Recall memories. Faults of store or model and timeouts are outcomes, not exceptions."""


class ProfileReader(Protocol):
    async def profile(self, caller: Caller) -> UserProfile:
        """The profile of *caller*, including all of our own writes. Equal memories give equal bytes."""


class TurnLearner(Protocol):
    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        """Accept an exchange; durable in the journal on JOURNALLED, learned in the background. Never raises."""

    async def wait_visible(self, caller: Caller) -> None:
        """Wait until this caller's accepted turns are searchable, within the read path's own deadline."""

    async def end_session(self, caller: Caller) -> None: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """A conversation stored by the provider, as far as we recorded it."""

    session: str
    earlier: tuple[str, ...] = field(default=(), repr=False)  # the user's earlier texts, oldest first


class ChatCondenser(Protocol):
    """Condenses the older part of a conversation into a state."""

    async def condense(self, owner: Owner, before: ChatState, messages: Sequence[Message]) -> ChatState:
        """Update *before* with the following *messages*.

        The state is bounded for any input, drops outdated content, and contains no secrets."""


class TurnReceipts(Protocol):
    """Keeps the outcome of a request's turn."""

    def note(self, caller: Caller, request_id: str, outcome: TurnOutcome, turn_id: str = "") -> None:
        """Never raises and never waits. An empty *request_id* is noted nowhere."""


class ChainReader(Protocol):
    """Our record of response ids and provider conversations, for clients that send only new messages."""

    async def chain(self, owner: Owner, continues: str) -> Chain | None:
        """The conversation; None if it is unknown, expired, or another owner's."""


# Ports for model inference.


class EmbeddingModel(Protocol):
    """Embeds texts. Any text is accepted; text beyond the model's window is truncated."""

    @property
    def fingerprint(self) -> str:
        """Identifies model and precision; equal fingerprints mean interchangeable vectors."""

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The model's window, special tokens included; further text is ignored."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """A unit-length row per text, in order; (0, dimension) for no texts. For background work."""

    async def embed_query(self, text: str) -> Vector:
        """Embed a query on the read path: batched with concurrent queries, cached by text."""


@runtime_checkable
class TokenEmbeddingModel(Protocol):
    """An embedding model that also keeps the word vectors of recently embedded texts."""

    @property
    def reads_words(self) -> bool:
        """Whether it provides word vectors at all."""

    def words(self, texts: Sequence[str]) -> list[WordPieces | None]:
        """The word vectors of each recently embedded text; a cheap look-up.

        Embedding a text caches them for a while."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """As in EmbeddingModel."""


@runtime_checkable
class QueryGate(Protocol):
    """An embedding model in this process, which shares the CPU with background work."""

    async def wait_begun(self) -> None:
        """Wait until no query is waiting to start.

        Background work that starts earlier delays the query; later work does not."""


class RerankModel(Protocol):
    """Rates texts by their relevance to a query (cross-encoder)."""

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """A score in [0, 1] per text, in order, higher is better; scores compare only within a call.

        Any text is accepted; no texts give no scores. No timeout: the caller sets the deadline."""


class CompletionModel(Protocol):
    """A language model at an OpenAI-compatible endpoint."""

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """The answer's text without reasoning blocks.

        *schema*: a JSON Schema for the answer, enforced if the endpoint supports it; the caller must validate
        anyway."""


# Ports for forgetting.


class MemoryForgetter(Protocol):
    """The forget operations of the memory API."""

    async def plan(self, owner: Owner, scope: ForgetScope) -> ForgetPlan:
        """A preview of forgetting *scope*, with derived memories and repetitions of its words."""

    async def forget(self, owner: Owner, scope: ForgetScope, *, token: str = "") -> ForgetReceipt:
        """Forget *scope*: on return recall cannot find it, pending turns included.

        The rest is done in the background, also after a crash. The receipt stays `accepted`, with the places, while
        earlier turns are unreachable. *token*: forget exactly the plan's list; a scope with a query needs a token
        or ids. NotConfirmedError for a token that has expired or belongs to another owner or scope."""

    async def receipt(self, owner: Owner, receipt_id: str) -> ForgetReceipt | None:
        """The current receipt, signed; None for an id that is not *owner*'s."""


class Ledger(Protocol):
    """Forgotten data and unfinished forgets. Kept out of all backups, because a restore would undo the forget.

    Contains keyed hashes, and owner and scope of forgets in progress."""

    async def key(self) -> bytes:
        """The 32-byte key of the hashes; created once, the same for every replica."""

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        """Replace the job with the same id, and add *cut* and *items* (forgotten *at*) to its subject.

        Atomic, and durable on return."""

    async def job(self, job_id: str) -> LedgerJob | None: ...

    async def list_unfinished(self) -> Sequence[LedgerJob]:
        """All open jobs, in the order of their first write."""

    async def marks(self, subject: str) -> LedgerMarks:
        """The subject's tombstones; *shut* while any of its jobs is shut."""


class Replicas(Protocol):
    """The other processes that serve the same users, as far as forgets concern them."""

    def holds(self) -> bool:
        """Whether our lease runs; cached data may be served only then."""

    async def tell(self, subject: str) -> None:
        """Wait until every replica has dropped its cached data of *subject* or has lost its lease."""

    async def waiting(self, owner: Owner | None = None) -> Sequence[WaitingPlace]:
        """Data directories, our own included, with accepted turns that are not in the shared journal yet.

        *owner* limits the list. Directories with unknown contents are included: their replica ended without a
        report. A live replica's report is from after all earlier notifications."""


class TombstoneReader(Protocol):
    """Tombstone checks before anything is shown or stored."""

    async def check(self, owner: Owner) -> None:
        """TransientError while a forget of *owner* is in progress, or if that is unknown."""

    async def filter_rows(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        """The *rows* that no forget covers. TransientError while a forget of *owner* is in progress."""

    async def learnable(self, exchanged: Exchanged, turn: Turn) -> tuple[Exchanged, Turn] | None:
        """The exchange and turn in storable form; None if the turn was forgotten or repeats a forgotten turn.

        Forgotten messages in the client's history are removed, and then the response too, which may repeat them."""

    async def filter_turns(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The *turns*, all of the same owner, that no forget covers."""

    async def note_turns(self, turns: Sequence[Turn]) -> None:
        """Forget *turns*, all of the same owner, durably: whoever has a copy of one does not learn it."""


class StorePurger(Protocol):
    """A store that keeps deleted data until it is purged."""

    async def purge(self, owner: Owner) -> bool:
        """Purge *owner*'s deleted rows from the store's files. False: the store purges them by itself later."""


# Ports for export and import.


@dataclass(frozen=True, slots=True)
class Exported:
    """An item of an export.

    *place* resumes the export at the next item; after the memories, at the first item that follows them."""

    what: Memory | JournalEntry | ConsentChange
    place: str


class MemoryExporter(Protocol):
    """Exports all data of an owner."""

    async def count(self, owner: Owner) -> int:
        """The approximate number of memories in an export, in any state and project."""

    def export(self, owner: Owner, *, project: str = "", after: str = "") -> AsyncIterator[Exported]:
        """Yield memories by created_at and id, then unlearned turns, then consent changes.

        Memories are in any state, oldest first; turns include dead letters; consent is included only without
        *project*. Memories written in the meantime may be missing. PermanentError for an invalid *after*."""


class RunningImport(Protocol):
    """An import in progress."""

    async def take(self, fields: Mapping[str, Any]) -> None:
        """Take a memory, in the memory API's field names, unchecked. May buffer a few.

        Faults of the memory become problems in the report."""

    async def finish(self) -> ImportReport:
        """Store or reject everything taken."""


class MemoryImporter(Protocol):
    """Imports memories."""

    def begin(self, owner: Owner, *, replace: bool = False, dry_run: bool = False) -> RunningImport:
        """Begin an import; all memories become *owner*'s.

        *replace*: an imported memory replaces an existing memory with the same id and other content, which is kept
        as a version; else it is rejected as a conflict."""


# Time and randomness, as arguments.

Now = Callable[[], datetime]  # the time in UTC
# Monotonic time, independent of clock changes; values are comparable only within a process.
Steady = Callable[[], datetime]
Chance = Callable[[], float]  # uniform in [0, 1), for jitter
