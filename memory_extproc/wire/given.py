"""What a conversation was given: blocks, each in its place, and the keys by which the conversation is known
again when the client sends it once more. Pure.

Clients resend what was said, without what we put in. The block goes back to where it stood, so that the request
begins with the very bytes of the one before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from memory_extproc.dialect.base import ChatRequest, Form, Placing
from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import Caller, Outcome, Profile, Recalled, Role, digest

_LONG = 16_384  # characters; of a longer message only the ends are trimmed for comparing: it is a hot path


PROFILE = "profile"  # the path of a request that was told who its caller is, and nothing else


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What recall came to for one caller's words. Holds memories: its print is its outcome."""

    outcome: Outcome
    block: str = ""
    path: str = ""
    ids: tuple[str, ...] = ()  # of the memories in the block
    contents: tuple[str, ...] = ()  # of the same
    profile: tuple[str, ...] = ()  # ids of those that say who the caller is

    @classmethod
    def of(cls, recalled: Recalled) -> Decision:
        return cls(
            outcome=recalled.outcome,
            block=recalled.block.encode("utf-8", "replace").decode(),
            path=recalled.path,
            ids=tuple(ranked.memory.id for ranked in recalled.memories),
            # Half a surrogate pair, which no record can hold, is not in what a store gave; other sources may err.
            contents=tuple(
                ranked.memory.content.encode("utf-8", "replace").decode() for ranked in recalled.memories
            ),
        )

    def with_profile(self, profile: Profile) -> Decision:
        """With *profile* in front, in a block of its own."""
        text = profile.text.encode("utf-8", "replace").decode()
        contents = tuple(content.encode("utf-8", "replace").decode() for content in profile.contents)
        return Decision(
            outcome=Outcome.USED,
            block=f"{text}\n{self.block}" if self.block else text,
            path=self.path or PROFILE,
            ids=(*profile.ids, *self.ids),
            contents=(*contents, *self.contents),
            profile=profile.ids,
        )

    def __repr__(self) -> str:
        return f"<decision: {self.outcome.value}>"


class Given(msgspec.Struct, frozen=True, array_like=True):
    """One block in its place. Holds memories: its print is its size."""

    at: int  # which of the conversation's user messages it stands at, from 0
    form: Form
    block: str
    ids: tuple[str, ...]
    contents: tuple[str, ...]
    profile: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Estimated."""
        return estimate_tokens(self.block)

    def __repr__(self) -> str:
        return f"<given: {len(self.block)} chars>"


Blocks = tuple[Given, ...]  # oldest first, at most one for each user message


def tokens_of(blocks: Iterable[Given]) -> int:
    return sum(one.tokens for one in blocks)


def contents_of(blocks: Iterable[Given]) -> tuple[str, ...]:
    return tuple(content for one in blocks for content in one.contents)


def ids_of(blocks: Iterable[Given]) -> tuple[str, ...]:
    return tuple(one for block in blocks for one in block.ids)


def fitting(blocks: Blocks, most: int) -> Blocks:
    """All of *blocks* when they have at most *most* tokens. Else the newest with at most half of that: each time
    the oldest goes the provider's cache is lost from there on, so it is to happen seldom."""
    left = tokens_of(blocks)
    if left <= most:
        return blocks
    for number, one in enumerate(blocks):
        if left <= most // 2:
            return blocks[number:]
        left -= one.tokens
    return ()


def placings(blocks: Blocks, request: ChatRequest, allowed: Form) -> list[Placing]:
    """Where *blocks* go in *request*. *allowed*: the form a new block would have; where that is USER_SUFFIX the
    model may refuse, drop or hoist late system messages, whatever it was that took the blocks before."""
    last = len(request.user_at) - 1
    return [
        Placing(one.block, Form.USER_SUFFIX if allowed is Form.USER_SUFFIX else one.form, last - one.at)
        for one in blocks
    ]


def keys_of(caller: Caller, request: ChatRequest, most: int, circle: str = "") -> list[str]:
    """Keys of the conversation up to each of its user messages, the last *most* of them, what is asked last:
    rolling hashes of all that was said by then. Of owner, project and session too, so none is shared by two, and
    of the *circle* of what may be given (sharing.circle_of)."""
    of_whom = (caller.owner.key, caller.project, caller.session, request.continues)
    running = hashlib.sha256(digest("given", *of_whom, *([circle] if circle else [])).encode())
    keys: list[str] = []
    for message in request.history:
        _add(running, message.role, message.text)
        if message.role is Role.USER:
            keys.append(running.hexdigest())
    if request.asked:
        _add(running, Role.USER, request.asked)
        keys.append(running.hexdigest())
    return keys[-most:]


def response_key(response_id: str) -> str:
    """Key of the conversation that a provider keeps behind *response_id*."""
    return digest("given", "response", response_id)


def _add(running: hashlib._Hash, role: Role, text: str) -> None:
    encoded = _normal(text).encode("utf-8", "surrogatepass")
    running.update(f"{role.value}:{len(encoded)}:".encode())
    running.update(encoded)


def _normal(text: str) -> str:
    """*text* as it is compared: clients trim and re-wrap what they send back."""
    return " ".join(text.split()) if len(text) <= _LONG else text.strip()
