"""Messages that only ask, messages that lean on what was said before, and what to search for then."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memory_extproc.language.greetings import polite
from memory_extproc.language.sentences import sentences
from memory_extproc.language.words import content_words, fold, stem

_LONGEST_READ = 2000  # characters; what a message is about stands at its beginning
SHORT = 20  # characters; a message no longer than this cannot name much

_MARKS = "?\uff1f\u061f"
_SUBJECT = (
    r"(?:i|you|we|they|he|she|it|there|this|that|these|those|the|my|our|your|his|her|their|its|a|an|any\w*|some\w*)"
)
_ASKING_WORD = r"(?:what|which|who|whom|whose|when|where|why|how)"
_ASKS = re.compile(
    rf"""^(?:
        {_ASKING_WORD}(?:'s|'re|'d|'ll|\s+(?:is|are|am|was|were|do|does|did|can|could|should|would|will|has|have|had
            |much|many|long|often|far|old|about|else|kind|type|time|year|day|one|to)\b)
      | (?:can|could|would|will|shall|may|might|do|does|did|is|are|am|was|were|have|has|had|should|isn't|aren't
            |don't|doesn't|didn't|wasn't|can't|couldn't|won't|wouldn't|shouldn't|haven't|hasn't)\s+{_SUBJECT}\b
      | (?:was|wer|wie|wo|wann|warum|wieso|welche[rsmn]?|wem|wen|woher|wohin)\s+\w+
      | (?:qu'est-ce|est-ce|quel(?:le)?s?|combien|comment|pourquoi|quand)\b
      | (?:qu\u00e9|cu\u00e1l(?:es)?|cu\u00e1nt[oa]s?|d\u00f3nde|cu\u00e1ndo|c\u00f3mo|qui\u00e9n)\b
    )""",
    re.VERBOSE,
)
# "what a day", "how lovely": exclamations
_EXCLAIMS = re.compile(r"^(?:what\s+an?|how\s+(?:lovely|nice|great|sad|awful|wonderful))\b(?!.*[?])")
_REQUESTS = re.compile(
    r"""^(?:(?:please|pls|kindly|just|now|then|ok(?:ay)?|hey|hi|hello|so|and|bitte|por\ favor)[\s,]+)*
    (?:tell|show|give|help|write|explain|summari[sz]e|translate|find|list|make|create|draft|generate|suggest|recommend
      |describe|compare|calculate|compute|convert|define|fix|improve|rewrite|rephrase|continue|repeat|check|review
      |analy[sz]e|outline|search|look\ (?:up|for)|walk\ me|teach|design|plan|propose|name|solve|implement
      |refactor|debug|proofread|edit|shorten|expand|elaborate|guess|compose|print|provide|answer|go\ on|let's
      |erkl\u00e4r\w*
      |schreib\w*|zeig\w*|sag\w*|hilf|nenn\w*|gib|\u00fcbersetz\w*|explique\w*|\u00e9cri\w*|montre\w*|donne\w*
      |aide\w*|dime|dame|expl\u00edca\w*|escribe\w*|mu\u00e9stra\w*|ay\u00fada\w*)\b
    """,
    re.VERBOSE,
)
_WONDERS = re.compile(
    r"^(?:(?:and|so|but|well|hey|hi|also|please|now)[\s,]+)*(?:i(?:'m|\s+am|\s+was)?\s+(?:just\s+)?(?:wonder\w*|curious)"
    r"|i(?:'d|\s+would)?\s+(?:like|love|want|need)\s+(?:to\s+(?:know|ask|hear|understand|learn)|you\s+to|your\s+help|help|some\s+help"
    r"|an?\s+(?:list|summary|explanation|overview|answer))"
    r"|i\s+(?:forgot|can't\s+remember|don't\s+(?:know|remember|recall))|i\s+have\s+a\s+question|quick\s+question|(?:one|a)\s+question)\b"
)
# "remember that …" looks like a request and is the plainest statement of all
_TELLS = re.compile(r"\b(?:remember|note|keep in mind|don't forget|for the record|fyi|merk dir|retiens|recuerda)\b")
_FIRST_PERSON = (
    r"(?:i|i'm|i've|i'd|i'll|im|my|we|we're|we've|our|ich|mein\w*|wir|unser\w*|je|j'\w+|mon|ma|mes|yo|mi|mis|io|il\s+mio|la\s+mia"
    r"|eu|meu|minha|ik|mijn)\b"
)
_STATES = re.compile(
    rf"^(?:(?:and|but|so|well|also|as|since|because|given\s+that|now\s+that|da|weil|puisque|como)\s+)?{_FIRST_PERSON}"
)
_REASONS = re.compile(
    r"(?:\b(?:because|since|given\s+that|now\s+that|as)\s+(?:i|i'm|i've|my|we|we're|we've|our)\b"
    r"|\b(?:and|but|so)\s+(?:i'm|i\s+am|i\s+(?:live|work|prefer|like|love|hate|own)|my\s+\w+\s+is)\b"
    r"|\b(?:my|our)\s+(?:[\w'-]+\s+){1,4}(?:of|=|named|called)\s+[^\s?]"
    r"|\bwith\s+(?:an?|my)\s+budget\s+of\b)"
)
_CLAUSES = re.compile(r"[,;:\u00bf\uff0c\uff1b\u3001]\s*|\s+[-\u2013\u2014]+\s+")
_ENDS_ASKING = re.compile(rf"\b{_ASKING_WORD}(?:\s+much|\s+many)?\W*$")
_HAN_STATES = re.compile("^(?:\u6211|\u79c1|\u50d5|\u4ffa)")
_HAN_ASKS = re.compile(
    "\u5417|\u5462|\u4ec0\u4e48|\u591a\u5c11|\u54ea|\u8c01|\u600e|\u51e0|\u4f55|\u3044\u304f\u3089|\u3069\u3053|\u8ab0|\u304b$"
)

_VAGUE = re.compile(
    r"""^(?:(?:and|but|so|ok(?:ay)?|well|then|also|hm+|oh|ah|yes|no|right)[\s,]+)*(?:
        how\s+(?:much|many|long|far|often|old|so|come)\b[\s?!.]*$
      | (?:what|how)\s+about\b
      | (?:and|or)\s+(?:that|this|the\s+(?:other|first|second|third|last|next))\b
      | (?:that|this|which|the\s+other|the\s+first|the\s+second|the\s+last)\s+ones?\b
      | (?:what|who|where|when|why)\s+(?:else|was\s+(?:it|that|this)|is\s+(?:it|that|this)|were\s+th\w+)\b
      | (?:und|aber)\s+(?:was|wie|das|der|die)\b | was\s+ist\s+mit\b | wie\s+viel\b
      | et\s+(?:pour|si|le|la|les|toi|moi)\b | qu'en\s+est-il\b | y\s+(?:qu\u00e9|el|la|los|las)\b
      | (?:tell\s+me\s+|say\s+)?(?:more|again|the\s+same)\b | go\s+on\b | continue\b
    )""",
    re.VERBOSE,
)


def only_asks(text: str) -> bool:
    """Whether *text* is made of questions, requests and politeness alone, with no statement worth recalling.
    In doubt no: what is taken for a statement is merely kept as it was said."""
    found = sentences(text)
    return bool(found) and not all(map(polite, found)) and all(polite(one) or _asks(one) for one in found)


def asks(sentence: str) -> bool:
    """Whether one *sentence* is a question or a request, whatever it may carry besides."""
    folded = fold(sentence)
    if _EXCLAIMS.match(folded):
        return False
    return (
        sentence.rstrip("\"')\u201d\u300d ").endswith(tuple(_MARKS))
        or any(pattern.match(folded) is not None for pattern in (_ASKS, _WONDERS))
        or (_REQUESTS.match(folded) is not None and _TELLS.search(folded) is None)
        or (_HAN_ASKS.search(sentence) is not None and _HAN_STATES.match(sentence) is not None)
    )


def _asks(sentence: str) -> bool:
    folded = fold(sentence)
    if not asks(sentence) or _REASONS.search(folded) or _TELLS.search(folded):
        return False
    return not any(_is_statement(clause) for clause in _CLAUSES.split(folded) if clause)


def _is_statement(clause: str) -> bool:
    if _HAN_STATES.match(clause):
        return _HAN_ASKS.search(clause.rstrip(_MARKS)) is None
    return _STATES.match(clause) is not None and not _WONDERS.match(clause) and not _ENDS_ASKING.search(clause)


def vague(text: str) -> bool:
    """Whether *text* leans on what was said before ("how much?", "what about Maui?", "and that one?"), has
    20 characters or fewer, or no word with a content of its own."""
    stripped = text.strip()
    beginning = stripped[:_LONGEST_READ]
    return len(stripped) <= SHORT or _VAGUE.match(fold(beginning)) is not None or not content_words(beginning)


def key_terms(texts: Sequence[str], limit: int) -> list[str]:
    """At most *limit* content words, numbers and names of *texts* (oldest text first), each once: those of
    the most recent text first, within a text in its order, as they were written."""
    chosen: dict[str, str] = {}
    for text in reversed(texts):
        for word in content_words(text[:_LONGEST_READ]):
            if len(chosen) == limit:
                return list(chosen.values())
            chosen.setdefault(stem(word), word)
    return list(chosen.values())
