"""Short answers to the assistant, which its words complete: confirmations, fragments, names put right, and choices.

"In May" answers "When is your retake?", and "Velha Mó, I love it!" is a decision for a suggestion. Every
pattern is bounded: the time is linear in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from memory_extproc.learn.extract.clauses import LISTS, People, fill_in
from memory_extproc.learn.extract.statements import (
    AS_SAID,
    CALENDAR,
    LONGEST_FRAGMENT,
    LONGEST_MESSAGE,
    first_person_statements,
    keep_meant_text,
    read_correction,
)
from memory_extproc.model import Turn
from memory_extproc.text import lazy_re as re
from memory_extproc.text.intents import asks, content_stems, polite
from memory_extproc.text.words import fold, sentences

_LAST_WORDS = 800  # characters of the assistant's words in which its question is looked for


def stated_in_answer(question: str, text: str, people: People | None = None) -> list[str]:
    """The clauses that *text* states as the answer to *question*, the assistant's words before it. "Their names"
    belong to the *people* spoken of."""
    if confirms(text) and (confirmed := read_confirmation(question)):
        return confirmed
    return complete_fragment(question, text, people) or (
        [] if "?" in question[-_LAST_WORDS:] else read_correction(text)
    )


_A_NAME = r"(?-i:[A-Z\u00c0-\u00de][\w'-]*\w)(?: (?-i:[A-Z\u00c0-\u00de][\w'-]*\w))?"
_FIRMLY = re.compile(
    r"\b(?:i mean|i meant|should be|sorry|correction|typo|oops|ich mein(?:t)?e|je voulais dire|quería decir"
    r"|perdón|pardon|entschuldigung)\b",
    re.IGNORECASE,
)
# "I meant Max, not Mark", "sorry, Max", "his name is Max, not Mark": a name that takes the place of another
_RENAMING = re.compile(
    r"(?:(?:oh|ah|oops|hm+|no|nope|wait|sorry|actually|correction|typo|well|i mean|i meant|ich mein(?:t)?e"
    r"|je voulais dire|quería decir|perdón|pardon|entschuldigung|i said|it's|it is|that's"
    r"|(?:that )?should be"
    r"|(?:his|her|their|the|its) name(?: is|'s)|(?:he|she|it)(?:'s| is) called)\b[\s,.:!\u2013\u2014-]*){1,5}"
    rf"(?P<name>{_A_NAME})(?P<not>,? (?:and )?(?:not|nicht|pas|no) (?P<former>{_A_NAME}))?[.!]*"
    rf"|not (?P<wrong>{_A_NAME})[,;.]? (?:but |it's |i meant |i mean )?(?P<right>{_A_NAME})[.!]*"
    rf"|(?P<instead>{_A_NAME}), (?:not|nicht|pas|no) (?P<before>{_A_NAME})[.!]*",
    re.IGNORECASE,
)


def read_renaming(text: str) -> tuple[str, str]:
    """The name that *text* puts in the place of another, and that other if it is said; else empty."""
    said = " ".join(text.replace("\u2019", "'").split())
    one = _RENAMING.fullmatch(said) if len(said) <= LONGEST_FRAGMENT else None
    if one is None:
        return "", ""
    name, former = (one["name"] or one["right"] or one["instead"]), (one["former"] or one["wrong"] or one["before"])
    firm = former or _FIRMLY.search(said)
    return ("", "") if CALENDAR.search(name) or not firm else (name, former or "")


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
_AND_YOU = re.compile(
    r",? (?:and|und|et|y) (?:you(?:rs)?|du|sie|dir|ihnen|toi|vous|tú|usted)\s?\?\Z", re.IGNORECASE
)
_LABEL = re.compile(LISTS["grammar"]["label"])
_DETAIL = re.compile(r"[;(\u2013\u2014]|,(?!\d)| -+ | (?:since|but|because|depuis|desde|seit) ", re.IGNORECASE)
_NONE = re.compile(r"(?:no|none|nope|nah|nein|keine?|non|aucune?|ninguna?)", re.IGNORECASE)
_ITEMS = re.compile(r",(?!\d)(?: (?:and|und|et|y) )?| (?:and|und|et|y) ", re.IGNORECASE)
_ONE_NAME = re.compile(r"[A-Z\u00c0-\u00de][\w'-]*(?: [A-Z\u00c0-\u00de][\w'-]*)?")
_LEADING_NO = re.compile(r"\A(?:no|kein\w*|pas de|sin)\s+", re.IGNORECASE)
_MOST_ITEMS = 8
# two questions in one, as in "how many words, and until when?"
_ALSO_ASKED = re.compile(r",? and (?=(?:what|which|how|where|when|who)\b)")
_TWO_THINGS = re.compile(
    r"((?:what|when|who|how much)(?:'s| is| are) )((?:your|the|my)\b.*) and ((?:your|the)\b.*)"
)
# "Pilar can't have sesame" answers in a sentence of its own
_OWN_SENTENCE = re.compile(LISTS["answered"]["own_sentence"], re.IGNORECASE)
_OF_MINE = re.compile(r"(?:my|our) ", re.IGNORECASE)
_YOUR = re.compile(r"\byour\b", re.IGNORECASE)


def complete_fragment(question: str, text: str, people: People | None = None) -> list[str]:
    """Complete *text*, a fragment, with the words of the only question in *question*."""
    first, *_ = [*sentences(_AND_YOU.sub("", text.strip())), ""]
    asked = [one for one in sentences(question[-_LAST_WORDS:]) if one.endswith("?")]
    if len(asked) != 1 or not first or len(first) > LONGEST_FRAGMENT or asks(first):
        return []
    fragment = _LEADS.sub("", " ".join(first.replace("\u2019", "'").split()), count=1).strip(" .!,")
    of_mine = _OF_MINE.match(fragment) is not None
    if not fragment or _LABEL.match(fragment) or (not of_mine and _NO_FRAGMENT.match(fold(fragment))):
        return []
    parts = _ALSO_ASKED.split(fold(asked[0].replace("\u2019", "'")))
    items = [one.strip() for one in _ITEMS.split(fragment)]
    if (two := _TWO_THINGS.search(parts[0])) is not None:
        parts = [f"{two[1]}{two[2]}", f"{two[1]}{two[3]}"]
        if len(items) != len(parts) or any(_NO_FRAGMENT.match(fold(one)) for one in items):
            return []  # "285,000": the price or the deposit?
    pairs = zip(parts, items, strict=True) if 1 < len(parts) == len(items) else [(", ".join(parts), fragment)]
    return [clause for part, item in pairs for clause in _answer(part, item, people, of_mine=of_mine)]


def _answer(asked: str, fragment: str, people: People | None, *, of_mine: bool) -> list[str]:
    for pattern, needs, entry in _QUESTIONS:
        if of_mine and "mine" not in entry:
            continue
        if (one := pattern.search(asked)) is not None and (
            found := list(_clauses(one.groupdict(""), needs, entry, fragment, people))
        ):
            return found
    return []


def _fits(fragment: str, needs: re.Pattern[str]) -> bool:
    return needs.match(fold(fragment)) is not None and _OWN_SENTENCE.search(fragment) is None


def _clauses(
    groups: Mapping[str, str],
    needs: re.Pattern[str],
    entry: Mapping[str, str],
    fragment: str,
    people: People | None,
) -> Iterator[str]:
    """The clauses of *entry*, or of its denial where *fragment* says that there is none."""
    whose = groups.get("whose", "")
    own = {name: _YOUR.sub("my", text) for name, text in groups.items()}
    words = {**own, "who": f"my {whose}" if whose else "I", "be": f"my {whose} is" if whose else "I'm"}
    head = _DETAIL.split(fragment, maxsplit=1)[0].strip()
    if _NONE.fullmatch(head):
        if "none" in entry:
            yield from first_person_statements(entry["none"].format_map(words))
    elif "each" in entry:
        for item in _ITEMS.split(fragment)[:_MOST_ITEMS]:
            said = _LEADING_NO.sub("", item.strip(), count=1)
            if _fits(said, needs):
                yield from first_person_statements(entry["clause"].format_map({**words, "value": said}))
    elif _fits(head, needs):
        several = "names" in entry and all(_ONE_NAME.fullmatch(item.strip()) for item in _ITEMS.split(fragment))
        words["value"] = fragment if several else head
        if "titled" in entry and not head[:1].isupper():
            return
        if "clause" in entry:
            yield from first_person_statements(entry["clause"].format_map(words), people)
        if "plainly" in entry:
            yield f"{AS_SAID}{entry['plainly'].format_map(words)}"


# --- choices -----------------------------------------------------------------------------------------
# "Any name for the loaf?", "Some ideas: Ribeira, Velha Mó", "Velha Mó, I love it!"
_LONGEST_ANSWER = 160  # characters
_LONGEST_CHOICE = 60
_LONGEST_REQUEST = 120
_OPTIONS = re.compile(r"\b(?:or|oder|ou)\b", re.IGNORECASE)
_CHOOSES = [re.compile(pattern, re.IGNORECASE) for pattern in LISTS["grammar"]["chooses"]]
_OFFERS = re.compile(rf"\b(?:{LISTS['grammar']['offers']})\b", re.IGNORECASE)
_WANTS = re.compile(rf"\b(?:{LISTS['grammar']['wants']})\b", re.IGNORECASE)
_NOTHING = content_stems(LISTS["grammar"]["no_choice"])
_TAKES = re.compile(
    r"\b(?:i|we)(?:'ve| have|'m|'re| am| are)?(?: (?:just|finally|now|actually))? (?:took|taken|taking|bought"
    r"|buying|booked|rented|renting|signed for|ordered|accepted|got)(?: the lease (?:for|on))? (?:the|that) "
    r"(?P<value>[\w'-]+(?: [\w'-]+)?)"
    r"(?=[.,;!]|$| (?:and|so|but|for|after all|in the end)\b)",
    re.IGNORECASE,
)
_FINDS = re.compile(
    r"\b(?:found|saw|seen|viewed|looked at|looking at|there(?:'s| is| are)|offer(?:ed|s)?|considering"
    r"|thinking (?:of|about)|options?|tempted|tried on|quoted)\b",
    re.IGNORECASE,
)
_INDEFINITE = re.compile(r"\b(?:an?|another|one|two|three)(?: [\w'-]+){1,4}", re.IGNORECASE)


class Choice(NamedTuple):
    chosen: str
    request: str  # the caller's words that it settles
    turn_id: str  # of the request


def read_choice(before: Sequence[Turn], text: str) -> Choice | None:
    """Read the decision in *text* for an option in the last turns *before*, named in an answer of the assistant or
    in the caller's own question. None without a decision."""
    said = keep_meant_text(text).replace("\u2019", "'")
    chosen = _find_chosen(said) if 0 < len(said) <= _LONGEST_ANSWER else ""
    words = content_stems(chosen)
    if not words - _NOTHING or len(chosen) > _LONGEST_CHOICE:
        return _read_taken(before, said)
    offered = frozenset[str]()
    for turn in reversed(before):
        asked, answered = keep_meant_text(turn.asked), turn.answered[:LONGEST_MESSAGE]
        request = _find_request(asked)
        offered |= content_stems(f"{answered} {request}" if _OPTIONS.search(request) else answered)
        invited = _OFFERS.search(answered) is not None or any(map(asks, sentences(asked)))
        if request and invited and words <= offered:
            return Choice(chosen, request, turn.id)
    return _read_taken(before, said)


def _read_taken(before: Sequence[Turn], said: str) -> Choice | None:
    """Read what the caller took of the things that they described in a turn *before*: "I found a studio in Luthagen
    for 6,900", then "I took the studio"."""
    if len(said) > _LONGEST_ANSWER or (taken := _TAKES.search(said)) is None:
        return None
    words = content_stems(taken["value"])
    if not words - _NOTHING:
        return None
    for turn in reversed(before):
        for sentence in sentences(keep_meant_text(turn.asked)):
            described = sentence.replace('"', "'").strip(" .")
            new = (one for one in _INDEFINITE.finditer(described) if words <= content_stems(one[0]))
            if len(described) <= _LONGEST_REQUEST and _FINDS.search(described) and any(new):
                return Choice(f"the {taken['value']}", described, turn.id)
    return None


def _find_chosen(said: str) -> str:
    """The option that the first decision in *said* names, or nothing."""
    for sentence in sentences(said):
        for one in _CHOOSES:
            if (found := one.fullmatch(sentence.strip(" .!"))) is not None:
                return found["value"].strip(" ,")
    return ""


def _find_request(asked: str) -> str:
    """The last question or request in *asked*, else its last wish or plan, without quotation marks; or nothing."""
    told = [one for one in sentences(asked) if not polite(one)]
    telling = [one for one in told if content_stems(one) - _NOTHING]
    wanting = [one for one in telling if asks(one)] or [one for one in telling if _WANTS.search(one)]
    request = (wanting or [""])[-1].replace('"', "'").strip(" .")
    return request if len(request) <= _LONGEST_REQUEST else request[:_LONGEST_REQUEST].rpartition(" ")[0]
