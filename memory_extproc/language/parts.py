"""A question that asks for several things, taken apart into questions that each ask for one."""

from __future__ import annotations

import re

from memory_extproc.language.questions import asks
from memory_extproc.language.sentences import sentences

MOST_PARTS = 3
_LONGEST_READ = 600  # characters; who writes more tells a story around what is asked
_FEWEST_WORDS = 2  # of a part that can be searched for by itself

_ASKING = (
    r"(?:what|which|who|whom|whose|when|where|why|how"
    # a verb alone may go on with the sentence ("... and have a bad time"); before a person it asks
    r"|(?:do|does|did|is|are|was|were|have|has|had|can|could|should|would|will)"
    r"\s+(?:i|you|we|they|he|she|it|my|our|your|his|her|their)"
    r"|wer|wie|wo|wann|warum|welche[rsmn]?|quel(?:le)?s?|combien|comment|pourquoi|quand|o\u00f9"
    r"|qu\u00e9|cu\u00e1l(?:es)?|cu\u00e1nt[oa]s?|d\u00f3nde|cu\u00e1ndo|c\u00f3mo|qui\u00e9n)"
)
_BETWEEN = re.compile(
    rf"[,;]?\s+(?:and\s+also|as\s+well\s+as|and|or|und|oder|et|ou|y|o)\s+(?={_ASKING}\b)|[,;]\s+(?={_ASKING}\b)",
    re.IGNORECASE,
)
_NAME = r"[A-Z\u00c0-\u00de][\w'\u2019-]+"
# Two names joined, never the start of a longer row ("Ann, Bob and Eve").
_NAMES = re.compile(rf"(?<!, )(?:\b[Bb]oth\s+)?\b({_NAME})\s+(?:and|or|und|oder|et|ou|y|o)\s+({_NAME})")


def parts(question: str) -> tuple[str, ...]:
    """Two or three questions that *question* is made of; none where it asks for one thing, or for too many.

    "What is my budget and when do I fly?" gives "What is my budget", "when do I fly?"; "What do Ann and Bob
    collect?" gives the question once for each of them. Only what the words themselves show is taken apart.

    Off by default: among the questions of LoCoMo one in twenty is taken apart, and for these evidence recall
    gains 0.01 among the first five and loses 0.03 among the first twenty, because most ask for what two people
    have in common.
    """
    if len(question) > _LONGEST_READ:
        return ()
    text = " ".join(question.split())
    asked = [sentence for sentence in sentences(text) if asks(sentence)]
    clauses = [clause for sentence in asked for clause in _clauses(sentence)]
    found = [each for clause in clauses for each in _named(clause)]
    found = list(dict.fromkeys(found))
    return tuple(found) if 1 < len(found) <= MOST_PARTS else ()


def _clauses(sentence: str) -> list[str]:
    pieces = [piece.strip() for piece in _BETWEEN.split(sentence)]
    whole = all(len(piece.split()) >= _FEWEST_WORDS for piece in pieces) and asks(pieces[0])
    return pieces if whole else [sentence]


def _named(clause: str) -> list[str]:
    pair = _NAMES.search(clause)
    if pair is None or pair.start() == 0 or pair[1] == pair[2]:
        return [clause]
    return [f"{clause[: pair.start()]}{name}{clause[pair.end() :]}" for name in pair.groups()]
