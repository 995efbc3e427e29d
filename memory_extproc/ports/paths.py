"""The two paths, as the wire sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memory_extproc.model import (
    Caller,
    ChatState,
    Exchanged,
    Message,
    Owner,
    Profile,
    Recalled,
    Stored,
    Wish,
)


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
    """What is known of a conversation that a provider keeps."""

    session: str
    earlier: tuple[str, ...] = field(default=(), repr=False)  # the user's texts before, oldest first


class Condenses(Protocol):
    """Makes the state that stands for the older part of a conversation."""

    async def condense(self, owner: Owner, before: ChatState, messages: Sequence[Message]) -> ChatState:
        """*before*, with what *messages*, which follow it, change of it. Bounded whatever they are; what holds no
        longer goes. Holds no secrets."""


class KnowsChains(Protocol):
    """Our own record of response ids and of providers' conversations, for clients that send only what is new."""

    async def chain(self, owner: Owner, continues: str) -> Chain | None:
        """None when it is unknown, expired, or another owner's."""
