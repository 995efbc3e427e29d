"""Questions, requests, vague messages, politeness and echoes, and the terms to search for."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import (
    MOST_REMEMBERED,
    PHRASES,
    content_words,
    fold,
    memoize_by_hash,
    negates,
    sentences,
    stem,
    stems,
)

_LONGEST_READ = 2000  # characters; the subject of a message stands at its beginning
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
      | (?:what|who|where|when|how)s\s+\w
      | how\s+(?:big|small|tall|high|wide|deep|large|heavy|fast|late|early|soon|likely|bad|serious|strict)\s+\w
      | who\s+(?:\w{{1,20}}(?:s|ed)|made|gave|told|sold|bought|wrote|taught|sent|built|went|came|took|won|said)\s+\w
      | (?:did|does)\s+\w
      | (?:what|which|whose|how\s+(?:many|much))(?:\s+[\w'-]{{1,20}}){{1,3}}?
            \s+(?:do|does|did|have|has|had|am|are|is|was|were|can|should|will)\s+{_SUBJECT}\b
      | (?:can|could|would|will|shall|may|might|do|does|did|is|are|am|was|were|have|has|had|should|isn't|aren't
            |don't|doesn't|didn't|wasn't|can't|couldn't|won't|wouldn't|shouldn't|haven't|hasn't)\s+{_SUBJECT}\b
      | (?:was|wer|wie|wo|wann|warum|wieso|welche[rsmn]?|wem|wen|woher|wohin)\s+\w+
      | (?:qu'est-ce|est-ce|quel(?:le)?s?|combien|comment|pourquoi|quand)\b
      | (?:qu\u00e9|cu\u00e1l(?:es)?|cu\u00e1nt[oa]s?|d\u00f3nde|cu\u00e1ndo|c\u00f3mo|qui\u00e9n)\b
    )""",
    re.VERBOSE,
)
# exclamations: "how lovely"
_EXCLAIMS = re.compile(r"^(?:what\s+an?|how\s+(?:lovely|nice|great|sad|awful|wonderful))\b(?!.*[?])")
_REQUESTS = re.compile(
    r"""^(?:(?:please|pls|kindly|just|now|then|ok(?:ay)?|hey|hi|hello|so|and|bitte|por\ favor)[\s,]+)*
    (?:tell|show|give|help|write|explain|summari[sz]e|translate|find|list|create|draft
      |make(?!\ it\ (?:(?:the|on|at|for)\ )?(?:\d|noon|midnight|today|tomorrow|\w{3,6}day\b))
      |generate|suggest|recommend
      |describe|compare|calculate|compute|convert|define|fix|improve|rewrite|rephrase|continue|repeat|check|review
      |analy[sz]e|outline|search|look\ (?:up|for)|walk\ me|teach|design|plan|propose|name|solve|implement
      |refactor|debug|proofread|edit|shorten|expand|elaborate|guess|compose|print|provide|answer|go\ on
      # "let's go for the green one" decides
      |let's\ (?:(?:now|also|just|first|please|all)\ )?(?:talk|discuss|plan|start|begin|see|look|try|continue
        |review|work|focus|brainstorm|explore|move\ on|pick\ (?:up|apart)|figure|find|write|think|check|play|say
        |practi[cs]e|imagine|assume|pretend|suppose|dive|jump|create|draft|design|recap|compare|list|learn|study
        |read|turn\ to|hear|chat
        |(?:do|make|have)\ (?:an?|some|it|this|that|another|one\ more|more|the\ (?:next|same))
        |get\ (?:to|back|into|on|started|going|cracking|stuck|this|that|it)
        |go\ (?:back|through|over|on|deeper|again))
      |go\ (?:through|over)\ (?:what|all|everything)
      |remind\ (?:me|us)\ (?:again\ )?(?:what|who\w*|where|when|which|why|how)
      |(?:all|anything|everything|what(?:ever)?)\ (?:that\ )?you\ (?:know|remember|recall|learned|have)
      |recall\ (?:what|who|where|when|how)
      |(?:introduce|present|portray|sum)\ (?:me|us)|paint\ (?:me|a\ (?:portrait|picture))
      |(?:pretend|imagine|suppose)\ (?:that\ )?you|stell\w*\ (?:mich|dir\ vor)|beschreib\w*|pr\u00e9sente-moi
      |d\u00e9cri\w*|imagine\ que\ tu|pres\u00e9ntame|descr\u00edbeme|imagina\ que
      |erkl\u00e4r\w*
      |schreib\w*|zeig\w*|sag\w*|hilf|nenn\w*|gib|\u00fcbersetz\w*|explique\w*|\u00e9cri\w*|montre\w*|donne\w*
      |aide\w*|dis-moi|dites-moi|raconte\w*|r\u00e9sum\w*|cu\u00e9nta\w*|res\u00fam\w*|dime|dame|expl\u00edca\w*|escribe\w*|mu\u00e9stra\w*|ay\u00fada\w*)\b
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
_TELLS = re.compile(
    r"\b(?:(?<!\bwhat you )(?<!thing you )(?<!\ball you )(?<!much you )(?<!\bwhat do you )remember"
    r"|note|keep in mind|don't forget|for the record|fyi|merk dir|retiens|recuerda|from now on"
    r"|going forward|(?:keep|make|write|give)\s+(?:me\s+)?(?:all\s+|your\s+|the\s+)?(?:answers?|replies|responses)"
    r"|(?:always|never)\s+(?:use|answer|reply|respond|write|call|include|add)|no\s+(?:emojis?|buzzwords|jargon))\b"
)
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
_FEWEST_STATED = 3  # words
# A task for the assistant, and details of the writer's life in it: "help me write to my landlord Mr Ferris".
_TASK = re.compile(
    r"^(?:(?:please|pls|kindly|hey|hi|hello|so|and|also|now|ok(?:ay)?|(?:can|could|would|will)\s+you|i\s+(?:need|want)(?:\s+you)?\s+to"
    r"|i\s+need(?:\s+some)?)[\s,]++){0,6}+(?:help|write|draft|plan|suggest|recommend|compose|design|prepare|create|make|generate|rewrite|edit"
    r"|improve|proofread|shorten|book|organi[sz]e|schedule|brainstorm|think\s+of|come\s+up)\b",
    re.IGNORECASE,
)
_DETAIL = re.compile(
    r"\b(?i:my|our)\s+(?:[\w'\u2019-]+\s+){0,4}?(?:[A-Z\u00c0-\u00de][\w'\u2019-]+|\d[\w.,:-]*|who\b|whose\b)"
)
# Conditions, greetings and open ends before a question state nothing.
_NO_STATEMENT = re.compile(
    r"^(?:if|when|whenever|while|suppos\w*|assum\w*|say|let's|imagin\w*|hypothetical\w*|hey|hi|hello|hallo|wenn|falls"
    r"|angenommen|si|cuando|quand|supposons)\b"
    rf"|^(?:\w+\s+)?{_ASKING_WORD}\b"
)
_VERBS = frozenset(PHRASES["stating"].split())
_CLAUSES = re.compile(r"[,;:\u00bf\uff0c\uff1b\u3001]\s*|(?<!\s)\s++[-\u2013\u2014]++\s++")
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
    In doubt no: a supposed statement is merely kept as a message."""
    found = sentences(text)
    return bool(found) and not all(map(polite, found)) and all(polite(one) or _asks(one) for one in found)


@memoize_by_hash(MOST_REMEMBERED)
def asks(sentence: str) -> bool:
    """Whether *sentence* is a question or a request, also with a statement in it."""
    folded = fold(sentence)
    if _EXCLAIMS.match(folded):
        return False
    return (
        sentence.rstrip("\"')\u201d\u300d ").endswith(tuple(_MARKS))
        or any(pattern.match(folded) is not None for pattern in (_ASKS, _WONDERS))
        or (_REQUESTS.match(folded) is not None and _TELLS.search(folded) is None)
        or (_HAN_ASKS.search(sentence) is not None and _HAN_STATES.match(sentence) is not None)
    )


def statements_in(text: str) -> str:
    """The sentences of *text* that ask for nothing: questions and requests may be about anything."""
    return " ".join(one for one in sentences(text) if not asks(one))


def _asks(sentence: str) -> bool:
    folded = fold(sentence)
    if not asks(sentence) or _REASONS.search(folded) or _TELLS.search(folded):
        return False
    if _TASK.match(sentence) and _DETAIL.search(sentence):
        return False
    *before, last = [clause for clause in _CLAUSES.split(folded) if clause] or [""]
    said = before if sentence.rstrip("\"')\u201d ").endswith("?") else [*before, last]
    return not (_is_statement(last) or any(map(_is_statement, before)) or any(map(_says_of_others, said)))


def _is_statement(clause: str) -> bool:
    if _HAN_STATES.match(clause):
        return _HAN_ASKS.search(clause.rstrip(_MARKS)) is None
    return _STATES.match(clause) is not None and not _WONDERS.match(clause) and not _ENDS_ASKING.search(clause)


def _says_of_others(clause: str) -> bool:
    """Whether the *clause* before a question states something: "Finn won't sleep alone, is that normal?"."""
    words = clause.split()
    return (
        len(words) >= _FEWEST_STATED
        and _NO_STATEMENT.match(clause) is None
        and _ASKS.match(clause) is None
        and _REQUESTS.match(clause) is None
        and not _VERBS.isdisjoint(words[1:])
    )


def vague(text: str) -> bool:
    """Whether *text* depends on earlier messages ("how much?", "and Maui?"), has 20 characters or fewer, or no
    content word."""
    stripped = text.strip()
    beginning = stripped[:_LONGEST_READ]
    return len(stripped) <= SHORT or _VAGUE.match(fold(beginning)) is not None or not content_words(beginning)


def key_terms(texts: Sequence[str], limit: int) -> list[str]:
    """At most *limit* content words, numbers and names of *texts* (oldest text first), each once, as
    written: the terms of the most recent text first, and within a text in its order."""
    chosen: dict[str, str] = {}
    for text in reversed(texts):
        for word in content_words(text[:_LONGEST_READ]):
            if len(chosen) == limit:
                return list(chosen.values())
            chosen.setdefault(stem(word), word)
    return list(chosen.values())


# --- greetings ---------------------------------------------------------------------------------------
# Messages that are nothing but politeness.

LONGEST = 20  # characters; a longer message is never taken for a mere greeting


def _any_of(phrases: list[str]) -> str:
    # the longest first, so that "good morning" is not cut after "good"
    longest_first = sorted({_plain(phrase) for phrase in phrases}, key=len, reverse=True)
    return "|".join(re.escape(phrase) for phrase in longest_first)


def _plain(text: str) -> str:
    """Folded, with punctuation and symbols turned into single spaces; apostrophes within words stay."""
    kept = (
        character if character == "'" or unicodedata.category(character)[0] in "LMN" else " "
        for character in fold(text)
    )
    return " ".join("".join(kept).split())


# Atomic: "good morning" could also be read as two phrases, and a text of many would try all the ways.
_FILLER = rf"(?>(?:{_any_of(PHRASES['fillers'])})(?= |$))"
_PHRASE = rf"(?>(?:{_any_of(PHRASES['polite'])})(?= |$))"
_SOME = re.compile(rf"(?<!\S){_PHRASE}")
_EVERY = re.compile(rf"(?:{_PHRASE}|{_FILLER})(?: (?:{_PHRASE}|{_FILLER}))*+")
_ONLY = re.compile(rf"(?:{_FILLER} )*{_PHRASE}(?: (?:{_PHRASE}|{_FILLER}))*+")
_LONGEST_WEIGHED = 1_000  # characters
_EMOJI = frozenset(PHRASES["emoji"])
# variation selectors, the joiner and skin tones change the looks of an emoji, not its meaning
_SHAPERS = frozenset("\ufe0e\ufe0f\u200d\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")


@memoize_by_hash(MOST_REMEMBERED)
def polite(text: str) -> bool:
    """Whether *text*, of any length, is made of greetings, thanks, goodbyes and acknowledgements alone."""
    plain = _plain(text)
    if len(plain) > _LONGEST_WEIGHED:  # the search would try every split into fillers and phrases
        return _EVERY.fullmatch(plain) is not None and _SOME.search(plain) is not None
    if not plain:
        symbols = {character for character in text if not character.isspace()} - _SHAPERS
        return any(character in _EMOJI for character in symbols) and all(
            character in _EMOJI or unicodedata.category(character)[0] == "P" for character in symbols
        )
    return _ONLY.fullmatch(plain) is not None


def only_greeting(text: str) -> bool:
    """Whether *text* is nothing but a greeting, thanks, goodbye or acknowledgement of at most 20
    characters. "Hi, tell me my budget" is more."""
    stripped = text.strip()
    return 0 < len(stripped) <= LONGEST and polite(stripped)


# --- answers -----------------------------------------------------------------------------------------
# Answers of an assistant that hold nothing to remember.

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
# Phrases around an assistant's answer: offers, invitations, good wishes.
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
_LONGEST_FILLER = 400  # characters of a sentence; a longer sentence is content with any beginning


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
    """Whether *text* says nothing beyond the texts *injected* (and *asked*): every content word and number of it is
    in them, and it does not deny their statements.

    Words of a mere question are no answer to it, so where *asked* merely asks at least half of the words must come
    from *injected*. False when there is no content word at all ("Yes.").
    """
    words = content_stems(text)
    if not words:
        return False
    known = frozenset().union(*(stems(one) for one in injected))
    from_question = stems(asked)
    if not words <= known | from_question or negates(text) != any(map(negates, _sources(injected, asked))):
        return False
    return (not only_asks(asked) and words <= from_question) or 2 * len(words & known) >= len(words)


def content_stems(text: str) -> frozenset[str]:
    """The stems of *text* without words of reporting ("I remember that the user mentioned ...")."""
    found = stems(text)
    return found if found.isdisjoint(_REPORTING) else found - _REPORTING


def _sources(injected: Sequence[str], asked: str) -> Iterable[str]:
    yield from injected
    if not only_asks(asked):
        yield asked


# --- parts -------------------------------------------------------------------------------------------
# Decomposes a question for several things into questions for a single thing each.

MOST_PARTS = 3
_AT_ONCE = 2  # questions that are searched one after the other: up to 1.8 times the CPU of one
_LONGEST_PARTED = 600  # characters; a longer text tells a story around its question
_FEWEST_WORDS = 2  # of a part that can be searched by itself

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


def decompose_question(question: str) -> tuple[str, ...]:
    """The two or three parts of *question*; none where it asks for a single thing, or for too many.

    "Where do I live and when do I fly?" gives "Where do I live", "when do I fly?"; "Which stamps do Ann and Bob
    collect?" gives the question once for each person. Only explicit conjunctions are decomposed.

    Off by default: a twentieth of LoCoMo's questions is decomposed, and for these evidence recall gains 0.01 among
    the first five and loses 0.03 among the first twenty, because most ask for common traits of two people.
    """
    if len(question) > _LONGEST_PARTED:
        return ()
    found = [each for clause in _asking_clauses(question) for each in _find_names(clause)]
    found = list(dict.fromkeys(found))
    return tuple(found) if 1 < len(found) <= MOST_PARTS else ()


def split_questions(text: str) -> tuple[str, ...]:
    """The two questions that *text* asks at once ("Where do I live and when do I fly?"); none if it asks one, or
    more than a recall has time for, or if it tells more than it asks: the questions alone would not say what about.
    Unlike `decompose_question`, a question about two people stays whole."""
    if len(text) > _LONGEST_PARTED:
        return ()
    found = tuple(dict.fromkeys(_asking_clauses(text)))
    return found if len(found) == _AT_ONCE and 2 * len(" ".join(found).split()) >= len(text.split()) else ()


def _asking_clauses(text: str) -> list[str]:
    asked = [sentence for sentence in sentences(" ".join(text.split())) if asks(sentence)]
    return [clause for sentence in asked for clause in _clauses(sentence)]


def _clauses(sentence: str) -> list[str]:
    pieces = [piece.strip() for piece in _BETWEEN.split(sentence)]
    whole = all(len(piece.split()) >= _FEWEST_WORDS for piece in pieces) and asks(pieces[0])
    return pieces if whole else [sentence]


def _find_names(clause: str) -> list[str]:
    pair = _NAMES.search(clause)
    if pair is None or pair.start() == 0 or pair[1] == pair[2]:
        return [clause]
    return [f"{clause[: pair.start()]}{name}{clause[pair.end() :]}" for name in pair.groups()]
