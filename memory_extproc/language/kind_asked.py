"""What kind of value answers a question, where its first words show it. Pure."""

from __future__ import annotations

import re

from memory_extproc.language.corrections import Kind
from memory_extproc.language.words import fold

_LEAD = r"^\W*(?:(?:and|so|but|hey|hi|also|und|et|y)[\s,]+)?"
# Not "who": the name of a place would pass for that of a person.
_KINDS = (
    (Kind.NAME, re.compile(_LEAD + r"(?:where|wo|woher|wohin|o\u00f9|d\u00f3nde)\b")),
    (Kind.DAY, re.compile(_LEAD + r"(?:when|what\s+(?:day|date|time|month|year)|wann|quand|cu\u00e1ndo)\b")),
    (Kind.NUMBER, re.compile(_LEAD + r"(?:how\s+(?:many|much|old)|wie\s?viele?|combien|cu\u00e1nt[oa]s?)\b")),
)
_READ = 200  # characters


def kind_asked(question: str) -> Kind | None:
    folded = fold(question[:_READ])
    return next((kind for kind, asks in _KINDS if asks.match(folded)), None)
