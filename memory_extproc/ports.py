"""What one part asks of another: small protocols in the words of the part that calls.

Every adapter of a port passes that port's contract suite under tests/contract, the fakes too.
All methods may raise TryLaterError or GiveUpError (errors.py) and nothing else of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from memory_extproc.model import (
    Caller,
    Candidates,
    ChatState,
    Consent,
    ConsentChange,
    DataKey,
    DeadLetter,
    Embedded,
    Exchanged,
    ForgetPlan,
    ForgetReceipt,
    ForgetScope,
    ImportReport,
    JournalState,
    LedgerJob,
    LedgerMarks,
    Matrix,
    Memory,
    Message,
    Owner,
    Profile,
    Recalled,
    Scope,
    Searched,
    Sought,
    Stored,
    Turn,
    Vector,
    Wish,
    Words,
)

Now = Callable[[], datetime]  # the time in UTC
Chance = Callable[[], float]  # uniform in [0, 1), for jitter


# --- inference -------------------------------------------------------------------------------------
class Embeds(Protocol):
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
class ReadsWords(Protocol):
    """An embedder that also knows, of texts it embedded lately, the vectors of their single words."""

    @property
    def reads_words(self) -> bool:
        """Whether it ever does."""

    def words(self, text: str) -> Words | None:
        """Of *text*, if it was embedded lately; costs a look-up. Embedding it makes them known, for a while."""

    async def embed(self, texts: Sequence[str]) -> Matrix:
        """As Embeds has it."""


class Reranks(Protocol):
    """Reads a query and texts together and says which of them serve it best."""

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """One number in [0, 1] per text, in order, the higher the better; they compare the texts of one call
        and nothing else. Any text is accepted; none gives none. Takes what it takes: the caller has the clock."""


class Completes(Protocol):
    """A language model at an OpenAI-compatible endpoint."""

    async def complete(self, system: str, user: str, *, schema: Mapping[str, Any] | None = None) -> str:
        """The answer's text without reasoning blocks. *schema*: a JSON Schema the answer should follow,
        enforced where the endpoint can; the caller parses strictly all the same."""


# --- store -----------------------------------------------------------------------------------------
class MemoryStore(Protocol):
    """Where memories rest (Milvus). Every call is bounded by the adapter's own timeout."""

    @property
    def lags(self) -> bool:
        """Whether a read that is not fresh may miss, for some seconds, what was acknowledged. Known once open."""

    @property
    def finds_words(self) -> bool:
        """Whether *worded* finds anything: the other side has an index of words. Known once open."""

    async def open(self) -> None:
        """Creates or checks the collection. GiveUpError names both sides of a mismatch; may be retried."""

    async def close(self) -> None: ...

    async def put(self, owner: Owner, rows: Sequence[Embedded]) -> None:
        """Upserts by id, all of them *owner*'s. Returned means durable in the store's own sense."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        """Those of *ids* that exist and are *owner*'s, in any state, in no particular order."""

    async def fetch(self, owner: Owner, ids: Sequence[str]) -> Sequence[Embedded]:
        """As get, with their vectors."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        """At most *limit* recallable memories of *owner* within *scope*, best first. May lag behind put."""

    async def worded(self, owner: Owner, text: str, limit: int, scope: Scope) -> Sequence[Embedded]:
        """At most *limit* recallable memories of *owner* within *scope* that share words with *text*, best first.
        None of them where nothing is known of words. May lag behind put."""

    def pages(self, owner: Owner, size: int, *, fresh: bool) -> AsyncIterator[Sequence[Embedded]]:
        """Every row of *owner* in any state, in pages of about *size*, each row once. *fresh*: with all
        that any replica has written so far (dearer); else it may lag by some seconds."""

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None:
        """Makes them unfindable; ids that do not exist or are another's are left alone."""

    async def delete_owner(self, owner: Owner) -> None: ...

    async def count(self, owner: Owner) -> int:
        """How many rows *owner* has, in any state, with all that was acknowledged before."""


class FindsMemories(Protocol):
    """What the read path asks of the owner's partition."""

    async def candidates(self, owner: Owner, sought: Sought, limit: int, scope: Scope) -> Candidates:
        """About *limit* recallable memories, those that most speaks for, with all of our own writes seen.
        Never another owner's, never a superseded, deleted, quarantined or expired one. Without a vector only
        words decide; TryLaterError where nothing can be found by words alone."""


class ListsOwners(Protocol):
    """What works through everybody's memories asks of a store."""

    def owners(self) -> AsyncIterator[Sequence[Owner]]:
        """Everybody of whom there is a row when it begins, each once; of who comes meanwhile it says nothing."""


class ReadsMemories(Protocol):
    """What fetches memories by name."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]:
        """Those of *ids* that exist and are *owner*'s, in any state, in no particular order."""


Change = Callable[[Embedded], Sequence[Embedded]]  # a row as it is, to the rows to write; none: nothing


class ListsMemories(Protocol):
    """What the memory API asks of the owner's partition beside finding and keeping."""

    def rows(self, owner: Owner) -> AsyncIterator[Sequence[Memory]]:
        """Every row of *owner* in any state, each once, in no particular order, with all of our own writes seen
        and with what other replicas wrote, as far as their versions tell."""

    async def change(self, owner: Owner, id: str, change: Change) -> bool:  # noqa: A002
        """Reads the row, has it changed and writes what comes of it, no other write of ours in between. False:
        there is no such row. *change* may raise, and nothing is written then."""


class KeepsInOrder(Protocol):
    """What retention asks of the owner's partition: many rows at a time, each as it is by then."""

    async def change_all(self, owner: Owner, ids: Sequence[str], change: Change) -> int:
        """As ListsMemories.change for all of *ids* that are there, in one write; says how many rows it wrote.
        *change* gives none for a row that is to stay as it is."""

    async def delete_where(self, owner: Owner, ids: Sequence[str], still: Callable[[Memory], bool]) -> int:
        """Deletes those of *ids* of which *still* holds, no other write of ours in between; says how many."""


class KeepsMemories(Protocol):
    """What the write path asks of the owner's partition."""

    async def put(
        self, owner: Owner, rows: Sequence[Embedded], *, shown: Callable[[], None] = lambda: None
    ) -> None:
        """Visible to the very next nearest, at once, and *shown* is called then; returns when the store has
        it. On TryLaterError the rows stay visible in this process and the caller tries again."""

    async def nearest(self, owner: Owner, to: Vector, limit: int, scope: Scope) -> Searched:
        """At most *limit* recallable memories, best first by cosine, with all of our own writes seen. Never
        another owner's, never a superseded, deleted, quarantined or expired one."""

    async def get(self, owner: Owner, ids: Sequence[str]) -> Sequence[Memory]: ...

    async def supersede(self, owner: Owner, old: str, by: str, at: datetime) -> None:
        """Marks *old* superseded by *by* with valid_to *at*; both rows are kept, *old* is not recalled."""

    async def confirm(
        self,
        owner: Owner,
        id: str,  # noqa: A002
        at: datetime,
        *,
        turn: str = "",
        beside: Sequence[str] = (),
    ) -> None:
        """The same was said again: refreshes updated_at and counts the confirmation in metadata. *turn* said it,
        together with the facts *beside*: noted in metadata, of the last turns, so that their messages are known."""

    async def delete(self, owner: Owner, ids: Sequence[str]) -> None: ...


# --- coordination ----------------------------------------------------------------------------------
class Coordination(Protocol):
    """What several replicas must agree on: SQLite for one, Redis for more."""

    async def version(self, owner: Owner) -> int:
        """How often any replica has written for *owner*; 0 at first. Cheap: the read path asks it."""

    async def bump(self, owner: Owner) -> int:
        """Counts a write; returns the new version."""

    async def epoch(self, owner: Owner) -> int:
        """How often *owner* was forgotten; a write that began in an older epoch is dropped."""

    async def advance_epoch(self, owner: Owner) -> int: ...

    async def get_record(self, kind: str, owner: Owner, key: str) -> bytes | None:
        """A small record (session heads, response ids, blocks given) if it is there and has not expired."""

    async def put_record(self, kind: str, owner: Owner, key: str, value: bytes, ttl: timedelta) -> None: ...

    async def replace_record(
        self, kind: str, owner: Owner, key: str, old: bytes | None, new: bytes, ttl: timedelta
    ) -> bool:
        """Compare and swap: puts *new* only if the record is *old* (None: not there); says whether it did."""

    async def delete_records(self, owner: Owner, kinds: Sequence[str] | None = None) -> None:
        """All of *owner*'s, or those of *kinds*; no trace of them is left in files of ours."""

    async def acquire(self, name: str, holder: str, ttl: timedelta) -> bool:
        """Takes or renews the lease *name* for *holder*; False while another holds it."""

    async def release(self, name: str, holder: str) -> None: ...


class ConsentRecords(Protocol):
    """Where people's choices rest, beside everything else of theirs: forgetting an owner leaves them, or an `off`
    would not outlive it."""

    async def add(self, owner: Owner, change: ConsentChange) -> None:
        """Durable, and the latest for every replica, when it returns."""

    async def latest(self, owner: Owner) -> ConsentChange | None:
        """None for an owner who never chose. Cheap: the read path asks it."""

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        """Every choice of *owner*, oldest first."""


class KnowsConsent(Protocol):
    """What each caller allows, tenant defaults counted in."""

    async def allowed(self, owner: Owner) -> Consent | None:
        """What holds for *owner* now; None: it cannot be found out, which allows nothing. Never raises, and
        answers within its own bound of time."""

    async def get(self, owner: Owner) -> Consent:
        """As allowed, past any cache; raises where it cannot be found out."""

    async def set(self, owner: Owner, consent: Consent, *, by: str) -> ConsentChange:
        """Holds in this process when it returns, in others shortly after (the cache's time to live)."""

    async def history(self, owner: Owner) -> Sequence[ConsentChange]:
        """What *owner* chose and when, oldest first; empty: the tenant's default holds."""


class NotesIncognito(Protocol):
    """Remembers which conversations nothing is to be kept of."""

    async def mark(self, caller: Caller, history: Sequence[Message], asked: str, continues: str) -> None:
        """This turn and what follows in its conversation. *continues*: the response id that the request goes on
        from, empty without one. Never raises; waits shortly at most."""

    async def mark_response(self, owner: Owner, response_id: str) -> None:
        """What continues from that response. Never raises; waits shortly at most."""


class Journal(Protocol):
    """Where accepted turns wait until they are learned. Durable when append returns."""

    async def append(self, turn: Turn) -> Stored:
        """JOURNALLED, DUPLICATE (same id and same answer, nothing changed) or JOURNAL_FULL. The same id
        with another answer replaces the entry and is to be learned again."""

    async def pending(self, limit: int, *, after: str = "") -> Sequence[JournalEntry]:
        """Entries not learned yet, oldest first; with *after*, the place of an entry, those behind it."""

    async def get(self, ids: Sequence[str]) -> Sequence[JournalEntry]:
        """Those of these turns that are there and not learned yet, oldest first, each as it is now."""

    async def mark_stored(self, entries: Sequence[JournalEntry]) -> None:
        """Their messages are in the store; extraction is still to come. An entry that was replaced since it
        was read is left as it is, here and below."""

    async def mark_learned(self, entries: Sequence[JournalEntry]) -> None:
        """Nothing is left to do; erased after the journal's retention."""

    async def mark_failed(self, entry: JournalEntry, reason: str, *, dead: bool) -> None:
        """Counts an attempt; *dead* moves it to the dead letters. *reason* holds no person's words."""

    async def erase_learned(self, before: datetime) -> int:
        """Erases what was learned before then; says how many."""

    async def erase_owner(self, owner: Owner) -> int: ...

    async def depth(self) -> JournalDepth: ...

    def of_owner(self, owner: Owner) -> AsyncIterator[JournalEntry]:
        """Everything of *owner* in any state, dead letters and what is learned but not erased yet too, oldest
        first. What is appended meanwhile comes as well; what cannot be read does not: erase_owner takes it."""

    async def erase(self, owner: Owner, turn_ids: Sequence[str]) -> int:
        """Erases those of these turns that are *owner*'s, in any state; says how many."""

    async def dead(self, limit: int, *, after: str = "") -> Sequence[DeadLetter]:
        """Dead letters, by place; with *after*, those behind it."""

    async def retry(self, turn_ids: Sequence[str]) -> int:
        """Dead letters among these turns wait again, at a new place at the end, with no attempts counted, even
        in a full journal; says how many."""

    async def arrivals(self, limit: int) -> Sequence[JournalEntry]:
        """Entries not learned yet that are for this process to see to and did not come by its own append: what
        an earlier process left, what another's end left to us, what was retried. Oldest first, each once for as
        long as the process holds its owner; none: that is all for now. Where several share a journal, asking
        also keeps up what this process holds, so it is asked every few seconds."""

    def holds(self, owner: Owner) -> bool:
        """Whether extracting from *owner*'s turns is up to this process; with one replica it always is. Who
        does not hold them may remember messages and mark them stored; its other marks change nothing."""

    async def end(self, owner: Owner, session: str) -> None:
        """What is not learned yet of this session, or of all of *owner*'s when it is empty, is `last`."""


class JournalEntry(Protocol):
    @property
    def turn(self) -> Turn: ...
    @property
    def place(self) -> str:
        """Where it stands in the journal; a turn that is replaced gets a new place at the end."""

    @property
    def state(self) -> JournalState: ...
    @property
    def stored(self) -> bool:
        """The messages are already in the store; only extraction is left."""

    @property
    def replaced(self) -> bool:
        """An earlier answer of this turn may have been stored: what it said and this one does not must go."""

    @property
    def attempts(self) -> int: ...


class JournalDepth(Protocol):
    @property
    def turns(self) -> int: ...
    @property
    def dead(self) -> int: ...
    @property
    def oldest(self) -> datetime | None: ...


# --- encryption at rest ----------------------------------------------------------------------------
class WrapsKeys(Protocol):
    """A master key: in a file, or with a key management service that never lets it out."""

    @property
    def name(self) -> str:
        """Which master key it is; kept beside what it wrapped, never secret."""

    async def wrap(self, key: bytes, context: bytes) -> bytes:
        """*key* sealed under the master key and bound to *context*."""

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """What `wrap` was given. TryLaterError where it was a master key that is not at hand, GiveUpError for
        another context."""


class Keys(Protocol):
    """The data keys of owners, one each, kept only as the master key wrapped them."""

    async def of(self, owner: Owner) -> DataKey:
        """The owner's key, made and durable if there was none."""

    async def find(self, owner: Owner) -> DataKey | None:
        """The owner's key; None if there is none, or none any more."""

    async def destroy(self, owner: Owner) -> bool:
        """Destroys the owner's key: whatever it sealed, in backups too, can never be read again. Durable, and
        forgotten in this process, when it returns; a later write makes another key. False if there was none."""


# --- the two paths, as the wire sees them ----------------------------------------------------------
class Recalls(Protocol):
    async def recall(self, wish: Wish) -> Recalled:
        """Never raises for a fault of store, model or time: those are outcomes."""


class KnowsProfile(Protocol):
    async def profile(self, caller: Caller) -> Profile:
        """Who *caller* is, as of now, with all of our own writes seen. The same memories give the same bytes."""


class Learns(Protocol):
    async def accept(self, exchanged: Exchanged) -> Stored:
        """Durable in the journal when it returns JOURNALLED; learned in the background. Never raises."""

    async def settled(self, caller: Caller) -> None:
        """Returns once what this caller's accepted turns said can be found; the read path waits for it
        within its own deadline."""

    async def end_session(self, caller: Caller) -> None: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """What is known of the conversation behind a previous_response_id."""

    session: str
    earlier: tuple[str, ...] = field(default=(), repr=False)  # the user's texts before, oldest first


class Condenses(Protocol):
    """Makes the state that stands for the older part of a conversation."""

    async def condense(self, owner: Owner, before: ChatState, messages: Sequence[Message]) -> ChatState:
        """*before*, with what *messages*, which follow it, change of it. Bounded whatever they are; what holds no
        longer goes. Holds no secrets."""


class KnowsChains(Protocol):
    """Our own record of response ids, for clients that send only what is new."""

    async def chain(self, owner: Owner, previous_response_id: str) -> Chain | None:
        """None when it is unknown, expired, or another owner's."""


# --- forgetting ------------------------------------------------------------------------------------
class Forgets(Protocol):
    """What the memory API asks of a forget."""

    async def plan(self, owner: Owner, scope: ForgetScope) -> ForgetPlan:
        """What forgetting *scope* would take, all that comes from it or carries its words counted in."""

    async def forget(self, owner: Owner, scope: ForgetScope, *, token: str = "") -> ForgetReceipt:
        """Once it returns nothing of *scope* can be recalled, whatever was under way; what is left to be done is
        done in the background, after a crash too. *token*: of a plan, exactly what it listed goes; a scope with a
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


class KnowsForgotten(Protocol):
    """What the write path and the partitions ask before anything is shown or kept."""

    async def check(self, owner: Owner) -> None:
        """TryLaterError while a forget of *owner*'s is under way, or while it cannot be known whether one is."""

    async def admitted(self, owner: Owner, rows: Sequence[Embedded]) -> Sequence[Embedded]:
        """Those of *rows* that no forget covers. TryLaterError while one of *owner*'s is under way."""

    async def learnable(self, exchanged: Exchanged, turn: Turn) -> tuple[Exchanged, Turn] | None:
        """Both as they may be kept: None where the turn was asked before it was forgotten, or was forgotten and is
        sent again. Where the client's history still holds what was forgotten it is taken out of it, and the answer,
        which may repeat it, is left out."""

    async def left(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """Those of *turns*, all of one owner, that no forget covers."""


class Purges(Protocol):
    """A store that keeps what was deleted until it is told to let go of it."""

    async def purge(self, owner: Owner) -> bool:
        """Has the bytes of *owner*'s deleted rows leave the store's files. True: they have; False: the store will
        see to it by itself in its own time."""


# --- in and out ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Exported:
    """A piece of an export. An export that is asked to go on after *place* begins with the next piece; after the
    memories, that is the first of what follows them."""

    what: Memory | JournalEntry | ConsentChange
    place: str


class Exports(Protocol):
    """Everything that is known of an owner, for the owner to take along."""

    async def count(self, owner: Owner) -> int:
        """About how many memories an export has, in any state and project."""

    def export(self, owner: Owner, *, project: str = "", after: str = "") -> AsyncIterator[Exported]:
        """Memories in any state by created_at and id, the oldest first; then the turns that are not learned yet,
        dead letters too; then, without a project, the choices of consent. What is remembered meanwhile may be in
        it or not. GiveUpError for an *after* that is no place of an export."""


class Importing(Protocol):
    """One import under way."""

    async def take(self, fields: Mapping[str, Any]) -> None:
        """The next memory, by the memory API's names for its fields, as it was sent: it is checked here, and what
        is wrong with it becomes a problem of the report. May keep a few back until more have come."""

    async def finish(self) -> ImportReport:
        """Everything taken is in the store, or has been refused."""


class Imports(Protocol):
    """Brings memories in."""

    def begin(self, owner: Owner, *, replace: bool = False, dry_run: bool = False) -> Importing:
        """They become *owner*'s whatever they say. *replace*: the imported memory takes the place of one that is
        there with another content, and that one is kept as a version; else it is left out as a conflict."""
