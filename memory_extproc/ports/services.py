"""The two paths, as the wire sees them."""

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
    Profile,
    RecallRequest,
    RecallResult,
    Turn,
    TurnOutcome,
    Vector,
    WaitingPlace,
    Words,
)
from memory_extproc.ports.coordination import JournalEntry


class SignalClassifier(Protocol):
    async def is_fact(self, text: str, within: timedelta) -> tuple[bool | None, str]:
        """Whether *text* asks for a fact that anybody could look up; None where that was not found out *within* the
        time. And how asking ended, in one word; "" where nobody is asked. Never raises for a fault."""


class MemoryRecaller(Protocol):
    async def recall(self, wish: RecallRequest) -> RecallResult:
        """Never raises for a fault of store, model or time: those are outcomes."""


class ProfileReader(Protocol):
    async def profile(self, caller: Caller) -> Profile:
        """Who *caller* is, as of now, with all of our own writes seen. The same memories give the same bytes."""


class TurnLearner(Protocol):
    async def accept(self, exchanged: Exchanged) -> TurnOutcome:
        """Durable in the journal when it returns JOURNALLED; learned in the background. Never raises."""

    async def wait_visible(self, caller: Caller) -> None:
        """Returns once what this caller's accepted turns said can be found; the read path waits for it
        within its own deadline."""

    async def end_session(self, caller: Caller) -> None: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """What is known of a conversation that a provider keeps."""

    session: str
    earlier: tuple[str, ...] = field(default=(), repr=False)  # the user's texts before, oldest first


class ChatCondenser(Protocol):
    """Makes the state that stands for the older part of a conversation."""

    async def condense(self, owner: Owner, before: ChatState, messages: Sequence[Message]) -> ChatState:
        """*before*, with what *messages*, which follow it, change of it. Bounded whatever they are; what holds no
        longer goes. Holds no secrets."""


class TurnReceipts(Protocol):
    """Keeps the outcome of a request's turn."""

    def note(self, caller: Caller, request_id: str, outcome: TurnOutcome, turn_id: str = "") -> None:
        """Never raises and never waits. An empty *request_id* is noted nowhere."""


class ChainReader(Protocol):
    """Our own record of response ids and of providers' conversations, for clients that send only what is new."""

    async def chain(self, owner: Owner, continues: str) -> Chain | None:
        """None when it is unknown, expired, or another owner's."""


# --- inference ---------------------------------------------------------------------------------------
# What is asked of models.


class EmbeddingModel(Protocol):
    """Turns text into vectors. Any text is accepted; what does not fit the model's window is cut."""

    @property
    def fingerprint(self) -> str:
        """Names model and precision; two embedders with one fingerprint give interchangeable vectors."""

    @property
    def dimension(self) -> int: ...

    @property
    def max_tokens(self) -> int:
        """The model's window, special tokens included: what a text has beyond it does not count."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """One unit-length row per text, in order; (0, dimension) for no texts. For background work."""

    async def embed_query(self, text: str) -> Vector:
        """As embed, for one query on the read path: batched with its neighbours, cached by text."""


@runtime_checkable
class TokenEmbeddingModel(Protocol):
    """An embedder that also knows, of texts it embedded lately, the vectors of their single words."""

    @property
    def reads_words(self) -> bool:
        """Whether it ever does."""

    def words(self, texts: Sequence[str]) -> list[Words | None]:
        """Of each of *texts*, if it was embedded lately; costs a look-up. Embedding it makes them known, for a
        while."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """As Embeds has it."""


@runtime_checkable
class QueryGate(Protocol):
    """An embedder in this process, which shares it with whoever asks."""

    async def begun(self) -> None:
        """Returns once no query that could be begun waits for that: whoever computes before it holds up the query,
        and whoever does so behind it does not."""


class RerankModel(Protocol):
    """Reads a query and texts together and says which of them serve it best."""

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """One number in [0, 1] per text, in order, the higher the better; they compare the texts of one call
        and nothing else. Any text is accepted; none gives none. Takes what it takes: the caller has the clock."""


class CompletionModel(Protocol):
    """A language model at an OpenAI-compatible endpoint."""

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """The answer's text without reasoning blocks. *schema*: a JSON Schema the answer should follow,
        enforced where the endpoint can; the caller parses strictly all the same."""


# --- forgetting --------------------------------------------------------------------------------------
# What forgetting asks, and what is asked of it.


class MemoryForgetter(Protocol):
    """What the memory API asks of a forget."""

    async def plan(self, owner: Owner, scope: ForgetScope) -> ForgetPlan:
        """What forgetting *scope* would take, all that comes from it or carries its words counted in."""

    async def forget(self, owner: Owner, scope: ForgetScope, *, token: str = "") -> ForgetReceipt:
        """Once it returns nothing of *scope* can be recalled, whatever was under way; what is left to be done is
        done in the background, after a crash too. While turns that were accepted before it wait out of reach the
        receipt stays `accepted`, and says where. *token*: of a plan, exactly what it listed goes; a scope with a
        query needs one, or the ids. NotConfirmedError for a token of another owner or scope, or one too old."""

    async def receipt(self, owner: Owner, receipt_id: str) -> ForgetReceipt | None:
        """As of now, signed; None for an id that is not *owner*'s."""


class Ledger(Protocol):
    """What was forgotten, and what of it is still to be done; kept apart from all that is backed up, or a restored
    backup would bring it back. Holds keyed hashes, and of a forget that is under way its owner and scope."""

    async def key(self) -> bytes:
        """The 32 bytes that hashes here are made with; made once, the same for every replica."""

    async def write(
        self, job: LedgerJob, *, cut: bytes | None = None, items: Sequence[bytes] = (), at: float = 0.0
    ) -> None:
        """Puts *job* in place of the one with its id, and adds *cut* and *items* (forgotten *at*) to what is known
        of its subject: all of it or nothing, durable when it returns."""

    async def job(self, job_id: str) -> LedgerJob | None: ...

    async def unfinished(self) -> Sequence[LedgerJob]:
        """Every open job, in the order in which they were first written."""

    async def marks(self, subject: str) -> LedgerMarks:
        """*shut* while any of the subject's jobs is."""


class Replicas(Protocol):
    """The other processes that serve the same people, as far as a forget concerns them."""

    def holds(self) -> bool:
        """Whether our lease runs: only then may be served what we hold of anybody."""

    async def tell(self, subject: str) -> None:
        """Returns once every replica has dropped what it held of *subject*, or its lease has run out."""

    async def waiting(self, owner: Owner | None = None) -> Sequence[WaitingPlace]:
        """Data directories, this one included, that hold accepted turns of *owner*, or of anybody, that are not in
        the shared journal yet. A directory is listed too where nobody can tell whose turns it holds, or whether it
        holds any, because its replica ended without saying. A live replica's word is from after it had heard all
        that was told before."""


class TombstoneReader(Protocol):
    """What the write path and the partitions ask before anything is shown or kept."""

    async def check(self, owner: Owner) -> None:
        """TransientError while a forget of *owner*'s is under way, or while it cannot be known whether one is."""

    async def admitted(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        """Those of *rows* that no forget covers. TransientError while one of *owner*'s is under way."""

    async def learnable(self, exchanged: Exchanged, turn: Turn) -> tuple[Exchanged, Turn] | None:
        """Both as they may be kept: None where the turn was asked before it was forgotten, or was forgotten and is
        sent again. Where the client's history still holds what was forgotten it is taken out of it, and the answer,
        which may repeat it, is left out."""

    async def left(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Those of *turns*, all of one owner, that no forget covers."""


class StorePurger(Protocol):
    """A store that keeps what was deleted until it is told to let go of it."""

    async def purge(self, owner: Owner) -> bool:
        """Has the bytes of *owner*'s deleted rows leave the store's files. True: they have; False: the store will
        see to it by itself in its own time."""


# --- transfer ----------------------------------------------------------------------------------------
# In and out.


@dataclass(frozen=True, slots=True)
class Exported:
    """A piece of an export. An export that is asked to go on after *place* begins with the next piece; after the
    memories, that is the first of what follows them."""

    what: Memory | JournalEntry | ConsentChange
    place: str


class MemoryExporter(Protocol):
    """Everything that is known of an owner, for the owner to take along."""

    async def count(self, owner: Owner) -> int:
        """About how many memories an export has, in any state and project."""

    def export(self, owner: Owner, *, project: str = "", after: str = "") -> AsyncIterator[Exported]:
        """Memories in any state by created_at and id, the oldest first; then the turns that are not learned yet,
        dead letters too; then, without a project, the choices of consent. What is remembered meanwhile may be in
        it or not. PermanentError for an *after* that is no place of an export."""


class RunningImport(Protocol):
    """One import under way."""

    async def take(self, fields: Mapping[str, Any]) -> None:
        """The next memory, by the memory API's names for its fields, as it was sent: it is checked here, and what
        is wrong with it becomes a problem of the report. May keep a few back until more have come."""

    async def finish(self) -> ImportReport:
        """Everything taken is in the store, or has been refused."""


class MemoryImporter(Protocol):
    """Brings memories in."""

    def begin(self, owner: Owner, *, replace: bool = False, dry_run: bool = False) -> RunningImport:
        """They become *owner*'s whatever they say. *replace*: the imported memory takes the place of one that is
        there with another content, and that one is kept as a version; else it is left out as a conflict."""


# --- circumstances -----------------------------------------------------------------------------------
# Time and chance, as arguments.

Now = Callable[[], datetime]  # the time in UTC
# To be compared with one another alone, within one process: passes as time does, whatever the clock is set to.
Steady = Callable[[], datetime]
Chance = Callable[[], float]  # uniform in [0, 1), for jitter
