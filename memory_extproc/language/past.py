"""Questions about how things were: "what was my budget in March?", "where did I live before?". Pure."""

from __future__ import annotations

import re
from datetime import date

from memory_extproc.language.dates import days_named
from memory_extproc.language.days_told import Span
from memory_extproc.language.words import fold

_LONGEST = 400  # characters; what is longer tells rather than asks
_WAS = re.compile(
    r"\b(?:was|were|did|had|used\s+to|wasn't|weren't|didn't|hadn't|war|waren|hatte|hatten|wohnte|arbeitete"
    r"|\u00e9tait|avais|avait|habitais|travaillais|era|ten\u00eda|viv\u00eda|trabajaba|estaba)\b"
)
# No date, and yet about a time that is over.
_BEFORE = re.compile(
    r"""(?x)\b(?:used\s+to|previous(?:ly)?|former(?:ly)?|originally|at\s+first|back\s+then|back\s+in
      |in\s+the\s+past|earlier\s+on
      |(?:was|were|did|had)\b.{0,60}\b(?:before|earlier|until|back)|(?:my|our)\s+(?:old|last|first|prior)\s+\w+
      |history\s+of\s+(?:my|our)|how\s+(?:has|have|did)\b.{0,60}\bchanged?|over\s+(?:time|the\s+years)
      |fr\u00fcher|vorher|damals|urspr\u00fcnglich|avant|autrefois|auparavant|antes|anteriormente|originalmente)\b
      |\u4ee5\u524d|\u4e4b\u524d|\u8fc7\u53bb|\u539f\u6765"""
)
_MINE = re.compile(
    r"\b(?:i|i'm|my|mine|we|our|me|us|ich|mein\w*|wir|je|j'\w+|mon|ma|mes|nous|yo|mi|mis|nuestr\w*)\b|\u6211"
)
_EVER = date(1900, 1, 1).toordinal()


def asked_of(text: str, today: date) -> Span | None:
    """First and last day of the time in the past that *text* asks about, when it asks how things of the
    caller's were; None when it asks about now, or tells something."""
    if len(text) > _LONGEST:
        return None
    folded = fold(text)
    if _MINE.search(folded) is None:
        return None
    over = [span for span in days_named(text, today) if span[0] < today.toordinal()] if _WAS.search(folded) else []
    if over:
        return min(first for first, _ in over), min(max(last for _, last in over), today.toordinal())
    return (_EVER, today.toordinal()) if _BEFORE.search(folded) else None
