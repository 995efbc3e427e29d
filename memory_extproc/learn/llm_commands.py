"""A language model's word on messages of which rules cannot tell whether they are commands. Its answer is checked
against what was said: it names nothing that the message does not."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from memory_extproc.errors import GiveUpError
from memory_extproc.language.stemming import terms
from memory_extproc.learn.asking import Asks
from memory_extproc.learn.budget import Budget
from memory_extproc.learn.chat_commands import Act, Command
from memory_extproc.learn.strict_schema import strict_schema
from memory_extproc.model import Turn
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.ports import Completes

log = logger(__name__)
PROMPT: Final = "commands-1"
_MOST = 4
_SHOWN = 4_000  # characters of a message
_KNOWN = 1_000  # turns of which the answer is kept, should they come again: ids and acts in process


class Told(StrEnum):
    REMEMBER = "remember"
    FORGET = "forget"
    NO_LONGER_TRUE = "no_longer_true"


class OfMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    act: Told
    what: Annotated[str, Meta(max_length=300)]


class Answered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    commands: Annotated[tuple[OfMessage, ...], Meta(max_length=_MOST)]


_DECODER = msgspec.json.Decoder(Answered)
_ACTS = {Told.REMEMBER: Act.REMEMBER, Told.FORGET: Act.FORGET, Told.NO_LONGER_TRUE: Act.RETRACT}


class LlmCommands:
    """Implements commanded.Doubts."""

    def __init__(self, completes: Completes, budget: Budget, metrics: Metrics) -> None:
        self._asks = Asks(completes, PROMPT, strict_schema(Answered), budget)
        self._metrics = metrics
        self._nothing: OrderedDict[str, None] = OrderedDict()  # ids of turns known to tell us nothing

    async def commands(self, turn: Turn) -> Sequence[Command]:
        """What *turn* tells us; nothing where the model has no usable word on it, or no tokens are left for one.
        TryLaterError while it is away."""
        if turn.id in self._nothing:
            return ()
        shown = json.dumps({"user": turn.asked[:_SHOWN]}, ensure_ascii=False)
        try:
            found = await self._asks.answer(turn.owner, shown, _parser(turn.asked))
        except GiveUpError as error:
            log.warning("chat_command.undecided", error=type(error).__name__)
            self._metrics.command_doubts.labels("undecided").inc()
            return ()
        self._metrics.command_doubts.labels("command" if found else "none").inc()
        if not found:
            self._nothing[turn.id] = None
            if len(self._nothing) > _KNOWN:
                self._nothing.popitem(last=False)
        return [Command(_ACTS[one.act], one.what.strip()) for one in found]


def _parser(asked: str) -> Callable[[bytes], Sequence[OfMessage]]:
    said = set(terms(asked)[0])

    def parsed(answer: bytes) -> Sequence[OfMessage]:
        found = _DECODER.decode(answer).commands
        for one in found:
            named = set(terms(one.what)[0])
            if not named <= said or not (named or one.act is Told.NO_LONGER_TRUE):
                raise msgspec.ValidationError("in the words of the message - at `$.commands[...].what`")
        return found

    return parsed
