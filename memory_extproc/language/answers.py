"""Answers of an assistant that hold nothing to remember."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from memory_extproc.language.greetings import polite
from memory_extproc.language.questions import only_asks
from memory_extproc.language.sentences import sentences
from memory_extproc.language.words import PHRASES, fold, negates, stem, stems

_REFUSES = re.compile(
    r"""(?:
        \bi(?:'m|\s+am)\s+(?:\w+\s+){0,2}(?:unable|not\s+able|not\s+allowed|not\s+permitted|not\s+comfortable)\b
      | \bi\s+(?:can't|cannot|can\s+not|won't|will\s+not|couldn't)\s+(?:\w+\s+)?(?:help|assist|provide
            |do\s+that|comply|answer|discuss|share|access|fulfil\w*|create|generate|see|recall|remember|tell|determine
            |support|continue|engage|write|give|find|retrieve|browse)\b
      | \bas\s+an?\s+(?:ai|artificial|large|language)\b
      | \bi\s+(?:don't|do\s+not)\s+(?:currently\s+|actually\s+)?
            (?:have|know|see|recall|remember|possess|retain|store)\b
      | \b(?:you\s+haven't|you\s+have\s+not|you\s+didn't)\s+
            (?:told|mentioned|shared|provided|said|specified|given)\b
      | \bi\s+(?:have|'ve\s+got)\s+no\s+(?:information|record|memory|access|knowledge|way|idea)\b
      | \b(?:goes|is)\s+against\s+(?:my|our)\b
      | \bich\s+(?:kann|darf|weiss|habe)\s+(?:\S+\s+){0,5}(?:nicht|kein\w*)\b | \bals\s+(?:ki|sprachmodell)\b
      | \bje\s+(?:ne\s+(?:peux|sais)|n'ai)\s+pas\b | \bno\s+(?:puedo|tengo|s\u00e9)\b | \blo\s+siento\b
      | \u62b1\u6b49 | \u65e0\u6cd5 | \u3067\u304d\u307e\u305b\u3093
    )""",
    re.VERBOSE,
)
_APOLOGISES = re.compile(
    r"^(?:(?:i(?:'m|\s+am)\s+)?(?:very\s+|so\s+|really\s+)?sorry|(?:my\s+)?apologies|i\s+apologi[sz]e"
    r"|unfortunately|es\s+tut\s+mir\s+leid|d\u00e9sol\u00e9e?|lo\s+siento|mi\s+dispiace|desculpe|het\s+spijt\s+me)\b"
)
# What an assistant says around an answer: offers, invitations, good wishes.
_OFFERS = re.compile(
    r"""^(?:(?:but|and|so|however|please|also|if\s+[^,]{1,80},)[\s,]+)*(?:
        (?:how|what)\s+(?:can|may|could|else|would)\b.*\b(?:help|assist|do\s+for|like|need)\b.*
      | is\s+there\s+(?:anything|something)\b.*
      | (?:let\s+me\s+know|feel\s+free|don't\s+hesitate|just\s+(?:ask|let))\b.*
      | i(?:'m|\s+am)\s+(?:\w+\s+){0,2}(?:here|happy|glad|ready)\b.*
      | i(?:'d|\s+would)\s+be\s+(?:happy|glad)\b.*
      | would\s+you\s+like\b.* | do\s+you\s+(?:want|need)\b.*
      | (?:have|enjoy)\s+(?:a|your)\b.{0,40} | (?:wie|womit)\s+kann\s+ich\b.*
      | comment\s+puis-je\b.* | (?:c\u00f3mo|en\s+qu\u00e9)\s+puedo\b.*
    )$""",
    re.VERBOSE,
)
# After a refusal, an invitation to say more is part of it; alone it is a question with an answer to come.
_INVITES = re.compile(
    r"^(?:(?:but|and|so|however|please|if\s+[^,]{1,80},)[\s,]+)*(?:(?:could|can|would)\s+you\s+(?:please\s+)?"
    r"(?:tell|provide|share|clarify|give|let|specify)\b|(?:tell|provide|share|give)\s+(?:me|us|more|the)\b|if\s+you\b)"
)
_ACKNOWLEDGES = re.compile(
    r"""^(?:(?:and|ok(?:ay)?|sure|great|got\s+it|alright|perfect|thanks|noted|yes|absolutely|of\s+course|certainly
        |understood|done|hi|hello|hey|\w+)[\s,!.:;-]+){0,3}(?:
        i(?:'ve|\s+have)?\s+(?:(?:now|just)\s+)?(?:noted|saved|stored|recorded|remembered|made\s+a\s+note|updated|got
            |understood)(?:\s+(?:it|that|this|your|the|of|down|to)\b.{0,30})?
      | i(?:'ll|\s+will)\s+(?:\w+\s+)?(?:remember|keep|note|make\s+a\s+note|bear|take|store|save|update)
            (?:\s+(?:it|that|this|of|in|mind|a|note|your|the|for|next|time|future|later|memory)){0,8}
      | (?:thanks|thank\s+you)\s+(?:\w+\s+){0,2}for\s+(?:letting\s+me\s+know|sharing|telling\s+me
            |the\s+(?:update|information|info|heads\s?up)|(?:your|the)\s+\w+)(?:\s+(?:that|this|it|with\s+me))*
      | (?:you're|you\s+are)\s+(?:very\s+|most\s+)?welcome
      | (?:my\s+pleasure|glad\s+(?:to\s+help|i\s+could\s+help|to\s+hear\s+(?:it|that)))
      | (?:it's\s+)?(?:nice|good|great|pleased)\s+to\s+(?:meet|see|hear\s+from)\s+you(?:,?\s+\w+)?
      | got\s+it | noted | understood | of\s+course | certainly | absolutely
      | (?:no\s+problem|sounds?\s+(?:good|great|like\s+a\s+plan))
      | (?:verstanden|notiert|gemerkt|gerne?) | (?:das\s+)?(?:habe?|hab)\s+ich\s+(?:mir\s+)?(?:notiert|gemerkt)
      | ich\s+(?:werde\s+)?merke\w*\s+(?:mir\s+)?(?:das|es) | c'est\s+not\u00e9 | (?:bien\s+)?not\u00e9
      | anotado | entendido | tomo\s+nota
    )[\s!.,]*$""",
    re.VERBOSE,
)
_REPORTING = frozenset(map(stem, PHRASES["reporting"].split()))
_LONGEST_APOLOGY = 60
_LONGEST_FILLER = 400  # characters of one sentence; a longer one is content whatever it begins with


def refusal(text: str) -> bool:
    """Whether *text* says that it cannot, may not or does not know, and nothing besides offers of help."""
    found = [fold(one) for one in sentences(text)]
    refusing = [_is_refusal(one) for one in found]
    return any(refusing) and all(
        refuses or _is_filler(one) or _INVITES.match(one) for one, refuses in zip(found, refusing, strict=True)
    )


def acknowledgement(text: str) -> bool:
    """Whether *text* only takes note ("Got it!", "Sure, I'll remember that.") or offers help."""
    found = [fold(one) for one in sentences(text)]
    return (bool(found) and all(map(_is_filler, found))) or (not found and polite(text))


def _is_refusal(folded: str) -> bool:
    return len(folded) <= _LONGEST_FILLER and _REFUSES.search(folded) is not None


def _is_filler(folded: str) -> bool:
    if len(folded) > _LONGEST_FILLER:
        return False
    bare = folded.rstrip("?!. ")
    return (
        polite(folded)
        or _ACKNOWLEDGES.match(folded) is not None
        or _OFFERS.match(bare) is not None
        or (_APOLOGISES.match(folded) is not None and len(folded) <= _LONGEST_APOLOGY)  # "Sorry about that!"
    )


def echoes(text: str, injected: Sequence[str], asked: str) -> bool:
    """Whether *text* says nothing beyond what was *injected* (and *asked*): every content word and number of
    it is among theirs, and it does not deny what they affirm.

    What only stands in a question is not an answer to it, so where *asked* merely asks at least half of the
    words must come from what was injected. False when there is no content word at all ("Yes.").
    """
    words = said(text)
    if not words:
        return False
    known = frozenset().union(*(stems(one) for one in injected))
    from_question = stems(asked)
    if not words <= known | from_question or negates(text) != any(map(negates, _sources(injected, asked))):
        return False
    return (not only_asks(asked) and words <= from_question) or 2 * len(words & known) >= len(words)


def said(text: str) -> frozenset[str]:
    """The stems of what *text* says, without words that only report ("I remember that the user mentioned ...")."""
    return stems(text) - _REPORTING


def _sources(injected: Sequence[str], asked: str) -> Iterable[str]:
    yield from injected
    if not only_asks(asked):
        yield asked
