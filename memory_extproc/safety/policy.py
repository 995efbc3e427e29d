"""What may be kept of an exchange's words: the rules of this package as one policy. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from memory_extproc.model import Exchanged, Message, Role
from memory_extproc.safety.identifiers import Identifiers, without_identifiers
from memory_extproc.safety.secrets import find_secrets
from memory_extproc.safety.sensitive import Category, Trimmed, asks_to_keep, of_assistant, of_caller
from memory_extproc.safety.spans import Span, masked

_WRITTEN = 3  # of the user's messages before, at most, go into a record (learn/sessions.py)
_SHORTEST_REPEATED = 5  # characters; a shorter secret said again without its word is not told from any other text


@dataclass(frozen=True, slots=True)
class Found:
    """An exchange without what must not be written, and what that was."""

    exchanged: Exchanged
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is kept of an exchange that holds no secrets any more."""

    identifiers: Identifiers = Identifiers.KEEP
    sensitive: frozenset[Category] = frozenset({Category.DIET})  # categories that are kept unasked

    def kept(self, exchanged: Exchanged) -> Found:
        """*exchanged* with the words that may be written. Of its history only the last of the user's are, and the
        others are left out."""
        kinds: list[str] = []

        def said(text: str) -> str:
            trimmed = of_caller(text, self.sensitive)
            named = without_identifiers(trimmed.text, self.identifiers)
            kinds.extend((*trimmed.dropped, *named.kinds))
            return named.text

        asked = said(exchanged.asked)
        dropped = frozenset(kind for kind in Category if kind in kinds)
        # Who asked for something to be kept agrees to an answer that repeats it.
        answered = (
            Trimmed(exchanged.answered)
            if asks_to_keep(exchanged.asked)
            else of_assistant(exchanged.answered, self.sensitive, dropped)
        )
        named = without_identifiers(answered.text, self.identifiers)
        kinds.extend((*answered.dropped, *named.kinds))
        users = [message for message in exchanged.history if message.role is Role.USER][-_WRITTEN:]
        history = tuple(replace(message, text=said(message.text)) for message in users)
        return Found(replace(exchanged, history=history, asked=asked, answered=named.text), tuple(kinds))


def without_secrets(exchanged: Exchanged) -> Found:
    """*exchanged* with its secrets masked in every text, history included.

    What was said to be a secret once is masked wherever it comes again behind that, with or without the word that
    told it. A message's masks depend on itself and on those before it alone: when the conversation is sent again
    and longer, its beginning comes to the same text, by which it is known again.
    """
    said = _Said()
    history = tuple(said.message(message) for message in exchanged.history)
    asked, answered = said.text(exchanged.asked), said.text(exchanged.answered)
    injected = tuple(said.text(text) for text in exchanged.injected)
    if not said.kinds:
        return Found(exchanged)
    return Found(
        replace(exchanged, history=history, asked=asked, answered=answered, injected=injected), tuple(said.kinds)
    )


class _Said:
    """The secrets met so far."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self._secrets: dict[str, str] = {}

    def message(self, message: Message) -> Message:
        text = self.text(message.text)
        return message if text is message.text else replace(message, text=text)

    def text(self, text: str) -> str:
        done = masked(text, [*find_secrets(text), *self._again(text)])
        if not done.found:
            return text
        self.kinds += done.kinds
        self._secrets.update(
            (bare, kind) for what, kind in done.found if len(bare := _bare(what)) >= _SHORTEST_REPEATED
        )
        return done.text

    def _again(self, text: str) -> Iterable[Span]:
        for secret, kind in self._secrets.items():
            at = text.find(secret)
            while at >= 0:
                yield Span(at, at + len(secret), kind)
                at = text.find(secret, at + len(secret))


def _bare(secret: str) -> str:
    return secret.strip("\"'`\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019 \t")
