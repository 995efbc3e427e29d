"""A conversation as keys: hashes by which it is known again when the client sends it once more. Pure.

Text is compared with its whitespace collapsed and in one Unicode form, because clients trim and re-wrap what
they send back. A key holds owner and project, so no two owners' conversations share one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memory_extproc.language.comparing import normal
from memory_extproc.model import Exchanged, Message, Role, digest

_BACK = 8  # how many of the user's messages before the last are looked back over
_SUFFIXES = (4, 2)  # messages at the end by which a conversation is known whose beginning was cut off


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place in the history just before one of the user's messages, or just before what is asked."""

    key: str  # of all that stands before it; at the start, of the opening: the user's first message included
    then: tuple[str, ...]  # hashes of the user's messages from here on, what is asked left out
    is_start: bool = False  # the user said nothing before it


@dataclass(frozen=True, slots=True)
class Conversation:
    """What an exchange tells about where it belongs."""

    asked: str  # hash of what is asked
    opening: str  # key of the history and what is asked
    whole: str  # key of history, what is asked and the answer
    starts: bool  # the user said nothing before
    before: str  # key of the history
    boundaries: tuple[Boundary, ...]  # where a known turn may have stood, latest first
    tail: str  # key of the history's last messages; empty without history
    tails_after: tuple[str, ...]  # keys of the last messages once the answer is counted in


def read(exchanged: Exchanged) -> Conversation:
    """The keys of *exchanged*; some microseconds for each message of its history."""
    history = exchanged.history
    caller = exchanged.caller
    of_whom = (caller.owner.key, caller.project, exchanged.continues)
    running = hashlib.sha256(digest(*of_whom, *([caller.speaker] if caller.speaker else [])).encode())
    users = [at for at, message in enumerate(history) if message.role is Role.USER]
    hashes = {at: _said(history[at]) for at in users[-_BACK:]}
    keys: dict[int, str] = {}
    for at, message in enumerate(history):
        if at in hashes and at != users[0]:
            keys[at] = running.hexdigest()
        _add(running, message.role, message.text)
        if at in hashes and at == users[0]:
            keys[at] = running.hexdigest()
    before = running.hexdigest()
    _add(running, Role.USER, exchanged.asked)
    opening = running.hexdigest()
    _add(running, Role.ASSISTANT, exchanged.answered)
    after = (
        *history,
        Message(Role.USER, exchanged.asked),
        Message(Role.ASSISTANT, exchanged.answered),
    )
    return Conversation(
        asked=digest("said", normal(exchanged.asked)),
        opening=opening,
        whole=running.hexdigest(),
        starts=not users,
        before=before,
        boundaries=_boundaries(before, keys, hashes, first=users[0]) if users else (),
        tail=_tail(exchanged, history),
        tails_after=tuple(_tail_of(exchanged, after, n) for n in _SUFFIXES if len(history) > 1 and len(after) > n),
    )


def _boundaries(before: str, keys: dict[int, str], hashes: dict[int, str], first: int) -> tuple[Boundary, ...]:
    found = [Boundary(before, ())]
    then: tuple[str, ...] = ()
    for at in reversed(hashes):
        then = (hashes[at], *then)
        found.append(Boundary(keys[at], then, is_start=at == first))
    return tuple(found)


def _tail(exchanged: Exchanged, history: Sequence[Message]) -> str:
    for length in _SUFFIXES:
        if len(history) >= length:
            return _tail_of(exchanged, history, length)
    return ""


def _tail_of(exchanged: Exchanged, messages: Sequence[Message], length: int) -> str:
    caller = exchanged.caller
    return digest("tail", caller.owner.key, caller.project, *_parts(messages[-length:]))


def _parts(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        yield message.role.value
        yield normal(message.text)


def _said(message: Message) -> str:
    return digest("said", normal(message.text))


def _add(running: Any, role: Role, text: str) -> None:
    encoded = normal(text).encode("utf-8", "surrogatepass")
    running.update(f"{role.value}:{len(encoded)}:".encode())
    running.update(encoded)
