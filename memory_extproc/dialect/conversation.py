"""A list of messages as every dialect sees it: who said what, what was asked last, what came before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from memory_extproc.dialect import fields, tokens
from memory_extproc.language.tokens import estimate_tokens
from memory_extproc.model import Message, Role


class Author(Enum):
    USER = auto()
    ASSISTANT = auto()
    TOOL = auto()  # answers a tool call
    SYSTEM = auto()
    OTHER = auto()  # a role or kind of item we do not know; it passes


class Said(NamedTuple):
    """One message: its author and its text, "" where it has none."""

    author: Author
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    history: tuple[Message, ...] = field(repr=False)  # user and assistant texts before *asked*, oldest first
    asked: str = field(repr=False)
    user_at: tuple[int, ...]  # positions of the user messages of history, then of *asked*
    ends_in_tool_result: bool
    system: str = field(repr=False)  # beginning of what system messages say, one per line
    has_system: bool


LONGEST_SYSTEM = 2_000  # characters
_HISTORY = {Author.USER: Role.USER, Author.ASSISTANT: Role.ASSISTANT}


def survey(said: Sequence[Said]) -> Conversation:
    """Finds the last user-authored message and what stands before it, in one pass each way."""
    last = next((at for at in range(len(said) - 1, -1, -1) if said[at].author is Author.USER), -1)
    before = said[:last] if last >= 0 else ()
    earlier = [at for at, message in enumerate(before) if message.author is Author.USER and message.text]
    # Clients add reminders of role system behind a tool's result; the loop is still running.
    ending = next((m.author for m in reversed(said) if m.author is not Author.SYSTEM), None)
    return Conversation(
        history=tuple(Message(_HISTORY[m.author], m.text) for m in before if m.text and m.author in _HISTORY),
        asked=said[last].text if last >= 0 else "",
        user_at=(*earlier, last) if last >= 0 else (),
        ends_in_tool_result=ending is Author.TOOL,
        system=beginning_of(m.text for m in said if m.author is Author.SYSTEM),
        has_system=any(m.author is Author.SYSTEM for m in said),
    )


def beginning_of(instructions: Iterable[str]) -> str:
    """What is kept of the client's instructions to the model, given in parts: enough to tell what kind of call
    it is."""
    beginning = ""
    for text in instructions:
        if len(beginning) >= LONGEST_SYSTEM:
            break
        if text:
            beginning += f"\n{text[:LONGEST_SYSTEM]}" if beginning else text[:LONGEST_SYSTEM]
    return beginning[:LONGEST_SYSTEM]


def text_of(content: Any, path: str, kinds: Collection[str]) -> str:
    """The text of a message's content: the string itself, or its parts of *kinds* one per line; "" for null
    and for pictures and the like."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise fields.wrong(path, "string or list", content)
    return "\n".join(
        text
        for index, part in enumerate(content)
        if kind_of(part, f"{path}[{index}]") in kinds and (text := fields.string(part, "text", f"{path}[{index}]."))
    )


def kind_of(part: Any, path: str) -> str:
    """The type of a content part or item; "" where it names none."""
    if not isinstance(part, dict):
        raise fields.wrong(path, "object", part)
    return fields.string(part, "type", f"{path}.")


def tokens_of(messages: Sequence[Any]) -> int:
    """Estimated tokens of a list of messages or items, whatever they hold."""
    total = tokens.PER_MESSAGE * len(messages)
    for message in messages:
        content = message.get("content") if len(message) == 2 else None  # noqa: PLR2004  # role and content
        total += estimate_tokens(content) if isinstance(content, str) else tokens.weigh(message)
    return total
