"""Whether memory can help at all, from the router's signals and the words themselves."""

from __future__ import annotations

import re
from collections.abc import Callable

from memory_extproc.language.greetings import only_greeting
from memory_extproc.model import Outcome, Signals
from memory_extproc.recall.query import READ_EACH_END

AboutCaller = Callable[[str], bool]


def gate(asked: str, signals: Signals, about_caller: AboutCaller) -> Outcome | None:
    """Why this request needs no search; None: search.

    A signal the router did not give decides nothing, so an unknown request is searched. A question of fact
    about the caller ("what is my budget?") is one that only memory can answer, whatever the router says.
    Our own greeting pattern is asked only where the router was silent.
    """
    if signals.tool:
        return Outcome.SKIPPED_TOOL
    if signals.greeting or (signals.greeting is None and only_greeting(asked)):
        return Outcome.SKIPPED_GREETING
    if signals.fact and not about_caller(asked):
        return Outcome.SKIPPED_FACT
    if not (WORDLIKE.search(asked[:READ_EACH_END]) or WORDLIKE.search(asked[-READ_EACH_END:])):
        return Outcome.NOTHING_RELEVANT
    return None


WORDLIKE = re.compile(r"\w")  # an empty or purely pictorial message asks for nothing that could be looked up
