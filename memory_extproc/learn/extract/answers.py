"""Statements of short answers, which need the assistant's question to be understood: "Ghent, since March" after
"Where do you live?" is "I live in Ghent", and so is a plain yes to "So you live in Ghent?". Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from memory_extproc.learn.extract.clauses import LISTS, fill_in
from memory_extproc.learn.extract.statements import first_person_statements
from memory_extproc.text.intents import asks
from memory_extproc.text.sentences import sentences
from memory_extproc.text.words import fold

_LAST_WORDS = 800  # characters of the assistant's words in which its question is looked for
_LONGEST_FRAGMENT = 120  # characters; a longer answer needs no question to be understood


_ANSWERED = "answered "  # begins a clause that only rules for answers read


def stated_in_answer(question: str, text: str) -> list[str]:
    """The clauses that *text* states as the answer to *question*, the assistant's words before it."""
    return read_confirmation(question) if confirms(text) else complete_fragment(question, text)


_CONFIRMS = re.compile(
    r"^(?:oh\s+)?(?:yes|yeah|yep|yup|exactly|correct|right|precisely|indeed|that(?:'s|\s+is)\s+(?:right|correct|it|true)|true"
    r"|ja|genau|stimmt|richtig|oui|exact(?:ement)?|c'est\s+(?:ça|exact)|sí|exacto|correcto|así\s+es|是的?|对的?|沒錯|没错)"
    r"(?=[\s,.!:;\uff0c\u3002\uff01-]|$)"
)
_DENIES = re.compile(r"\b(?:but|not|no|isn't|wasn't|except|actually|aber|nicht|mais|pas|pero)\b")


def confirms(text: str) -> bool:
    """Whether *text* plainly says yes to the question before it, and takes nothing back."""
    folded = fold(text).strip()
    return _CONFIRMS.match(folded) is not None and _DENIES.search(folded) is None


_ASKED_BACK = re.compile(
    r"(?:so|just\s+to\s+(?:confirm|be\s+sure|check)|to\s+confirm|and|ok(?:ay)?|got\s+it|do\s+i\s+understand\s+(?:correctly|right)"
    r"|did\s+i\s+get\s+(?:this|that)\s+right|am\s+i\s+right|is\s+it\s+(?:right|correct|true)|you\s+mean|you're\s+saying|you\s+said)"
    r"(?:\s+that)?[\s,:-]+",
    re.IGNORECASE,
)
_TAG = re.compile(
    r",?\s*(?:right|correct|is\s+that\s+(?:right|correct)|isn't\s+it|yes|aren't\s+you|don't\s+you)?\s*\?+$",
    re.IGNORECASE,
)
_SECOND_PERSON = (
    (re.compile(r"\byou\s+are\b|\byou're\b", re.IGNORECASE), "I'm"),
    (re.compile(r"\byou've\b", re.IGNORECASE), "I've"),
    (re.compile(r"\byour\b", re.IGNORECASE), "my"),
    (re.compile(r"\byou\b", re.IGNORECASE), "I"),
)


def read_confirmation(answer: str) -> list[str]:
    """The clauses that a plain yes to the last question of *answer* makes the caller's own: "So you live in Paris?"
    is then "I live in Paris". None where it asks in any other way."""
    *_, last = ["", *sentences(answer[-_LAST_WORDS:])]
    if not last.endswith("?") or asks(last.rstrip("?")):
        return []
    stated = _TAG.sub("", last.replace("\u2019", "'"))
    while (opened := _ASKED_BACK.match(stated)) is not None:
        stated = stated[opened.end() :]
    if not stated.lower().startswith(("you", "your")):
        return []
    for pattern, own in _SECOND_PERSON:
        stated = pattern.sub(own, stated)
    return first_person_statements(f"{stated}.")


# --- fragments ---------------------------------------------------------------------------------------
_PARTS = {**LISTS["words"], "numbers": LISTS["grammar"]["numbers"], **LISTS["answered"]}
_QUESTIONS = [
    (
        re.compile(fill_in(one["question"], _PARTS)),
        re.compile(rf"\A(?:{fill_in(one.get('needs', '.+'), _PARTS)})\Z"),
        one,
    )
    for one in LISTS["answer"]
]
_NO_FRAGMENT = re.compile(rf"(?:{LISTS['answered']['no_fragment']})")
_LEADS = re.compile(rf"\A(?:(?:{LISTS['answered']['leads']})[\s,:]+)+", re.IGNORECASE)
_DETAIL = re.compile(r"[;(\u2013\u2014]|,(?!\d)| -+ | (?:since|but|because|depuis|desde|seit) ", re.IGNORECASE)
_NONE = re.compile(r"(?:no|none|nope|nah|nein|keine?|non|aucune?|ninguna?)", re.IGNORECASE)
_ITEMS = re.compile(r",(?!\d)(?: (?:and|und|et|y) )?| (?:and|und|et|y) ", re.IGNORECASE)
_ONE_NAME = re.compile(r"[A-Z\u00c0-\u00de][\w'-]*(?: [A-Z\u00c0-\u00de][\w'-]*)?")
_LEADING_NO = re.compile(r"\A(?:no|kein\w*|pas de|sin)\s+", re.IGNORECASE)
_MOST_ITEMS = 8


def complete_fragment(question: str, text: str) -> list[str]:
    """Complete *text*, a fragment, with the words of the only question in *question*."""
    first, *_ = [*sentences(text.strip()), ""]
    asked = [one for one in sentences(question[-_LAST_WORDS:]) if one.endswith("?")]
    if len(asked) != 1 or not first or len(first) > _LONGEST_FRAGMENT or asks(first):
        return []
    fragment = _LEADS.sub("", " ".join(first.replace("\u2019", "'").split()), count=1).strip(" .!,")
    if not fragment or _NO_FRAGMENT.match(fold(fragment)):
        return []
    folded = fold(asked[0].replace("\u2019", "'"))
    for pattern, needs, entry in _QUESTIONS:
        if (one := pattern.search(folded)) is not None and (
            found := list(_clauses(one.groupdict(""), needs, entry, fragment))
        ):
            return found
    return []


def _clauses(
    groups: Mapping[str, str], needs: re.Pattern[str], entry: Mapping[str, str], fragment: str
) -> Iterator[str]:
    """The clauses of *entry*, or of its denial where *fragment* says that there is none."""
    whose = groups.get("whose", "")
    words = {**groups, "who": f"my {whose}" if whose else "I", "be": f"my {whose} is" if whose else "I'm"}
    head = _DETAIL.split(fragment, maxsplit=1)[0].strip()
    if _NONE.fullmatch(head):
        if "none" in entry:
            yield from first_person_statements(entry["none"].format_map(words))
    elif "each" in entry:
        for item in _ITEMS.split(fragment)[:_MOST_ITEMS]:
            said = _LEADING_NO.sub("", item.strip(), count=1)
            if needs.match(fold(said)):
                yield from first_person_statements(entry["clause"].format_map({**words, "value": said}))
    elif needs.match(fold(head)):
        several = "names" in entry and all(_ONE_NAME.fullmatch(item.strip()) for item in _ITEMS.split(fragment))
        words["value"] = fragment if several else head
        yield from first_person_statements(entry["clause"].format_map(words))
        if "plainly" in entry:
            yield f"{_ANSWERED}{entry['plainly'].format_map(words)}"
