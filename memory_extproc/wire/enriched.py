"""What becomes of a request, and what it leaves behind for learning."""

from __future__ import annotations

from dataclasses import dataclass, field

from memory_extproc.model import Arm, Caller, Message, Origin, Outcome, Owner, Stored
from memory_extproc.wire.replays import InView


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a request leaves behind for learning, once its answer is known."""

    caller: Caller
    store: bool
    history: tuple[Message, ...] = field(repr=False)
    asked: str = field(repr=False)
    origin: Origin
    previous_response_id: str
    ends_session: bool
    conversation: str = ""  # as Exchanged.conversation
    unkept: Stored = Stored.NOT_ASKED  # why, where it is not stored
    notes_response: bool = False  # incognito: what continues from its answer is to be known by the answer's id
    injected: tuple[str, ...] = field(default=(), repr=False)  # contents of the memories the model has seen
    in_view: InView | None = None  # what the provider will keep with its answer, if it keeps conversations
    seen: tuple[str, ...] = ()  # ids of those memories
    reach: tuple[Owner, ...] = ()  # whose these may be

    @property
    def size(self) -> int:
        """About how many bytes it holds."""
        said = sum(len(message.text) for message in self.history) + len(self.asked)
        named = (self.origin.model, self.origin.app, self.previous_response_id, self.conversation)
        return said + sum(map(len, self.injected)) + sum(map(len, named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Enriched:
    """What became of a request body. *body* None: it goes on as it came."""

    outcome: Outcome
    body: bytes | None = field(default=None, repr=False)
    unpacked: bool = False  # *body* no longer has the content-encoding it came with
    count: int = 0  # memories in the block that went in, or in those put back if there was none
    path: str = ""
    replayed: int = 0  # blocks put back
    tokens: int = 0  # estimated, of all that went in
    arm: Arm = Arm.NONE
    tenant: str | None = None  # the caller's; None: there is no caller
    heard: Heard | None = None  # None: nothing can be learned from this exchange

    @property
    def personal(self) -> bool:
        """Whether the upstream sees memories, so that its answer is this caller's alone."""
        return bool(self.count or self.replayed)

    @property
    def status(self) -> str:
        """The value of x-memory-status."""
        if self.outcome is not Outcome.USED:
            return self.outcome.value
        return f"{self.outcome.value};n={self.count};path={self.path}"
