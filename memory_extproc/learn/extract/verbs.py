"""Verbs and pronouns in the third person, as facts have them. Pure."""

from __future__ import annotations

import re

from memory_extproc.learn.extract.clauses import LISTS

_IRREGULAR = {"have": "has", "go": "goes", "do": "does", "am": "is", "are": "is", "'m": "is", "teach": "teaches",
              "coach": "coaches", "watch": "watches", "can": "can", "can't": "can't", "don't": "doesn't",
              "cannot": "can't"}  # fmt: skip
_OFTEN = frozenset(["always", "often", "sometimes", "never", "seldom", "also", "just", "still", "only", "even"])
_LIKE_ADVERBS = frozenset(["fly", "apply", "reply", "supply", "rely", "comply", "multiply", "bully", "rally"])
_PAST_FORMS = frozenset(LISTS["past_forms"].split())


def third_person(phrase: str) -> str:
    """*phrase* with its first verb in the third person: "wake up at 5" is "wakes up at 5"."""
    verb, space, rest = phrase.partition(" ")
    lower = verb.lower()
    if lower in _OFTEN or (lower.endswith("ly") and lower not in _LIKE_ADVERBS):
        return verb + space + third_person(rest)
    if lower in _IRREGULAR:
        verb = _IRREGULAR[lower]
    elif (lower.endswith("ed") and lower != "need") or lower in _PAST_FORMS:
        pass
    elif lower and not lower.endswith("s"):
        verb = (
            f"{verb[:-1]}ies"
            if lower.endswith("y") and lower[-2:-1] not in "aeiou"
            else f"{verb}{'es' if lower.endswith(('ch', 'sh', 'ss', 'x', 'z', 'o')) else 's'}"
        )
    return verb + space + rest


def conjugate(aux: str, deed: str) -> str:
    """The verb in the third person: "'m" and "flying" are "is flying"; a past tense stays."""
    bare = aux.strip().lower().removeprefix("'")
    if bare in {"m", "am", "re", "are", "is", "s"}:
        return f"is {deed}"
    if bare.endswith(" been"):
        return f"has been {deed}"
    if bare in {"ve", "have", "has"}:
        return f"has {deed}"
    return (
        f"will {bare.partition(' ')[2]} {deed}".replace("  ", " ")
        if bare[:2] in {"wi", "ll"}
        else third_person(deed)
    )


def refuse(verb: str, deed: str) -> str:
    """Say that somebody does not do a *deed*: "don't" and "eat" are "doesn't eat". *verb* is in lower case."""
    if verb.startswith("avoid"):
        return f"avoids {deed}".strip()
    if verb == "never":
        return f"never {third_person(deed)}"
    return (
        f"{'won' if verb.startswith('won') else 'can'}'t {deed}"
        if verb[:3] in {"can", "won"}
        else f"doesn't {deed}"
    )


_DOUBLED = re.compile(r"([bdgmnprt])\1$")


def base_of(doing: str) -> str:
    """The verb of the participle *doing*: "eating", "running" and "smoking" are "eat", "run" and "smoke"."""
    bare = doing[: -len("ing")]
    undoubled = _DOUBLED.sub(r"\1", bare)
    return f"{bare}e" if undoubled == bare and _LOST_ITS_E.search(bare.lower()) else undoubled


# "mak", "danc", "giv", "argu", "cycl": without its "e" the verb ends as no verb does, or has one short syllable
_LOST_ITS_E = re.compile(
    r"(?:[cuvz]|[^aeiou]l(?<!ll)|dg|rg|[aei]g|ng(?<!sing)(?<!ring)(?<!long)|^[^aeiou]*[aeiou][bdgkmnpst])$"
)


_THEIRS = {"my": "their", "our": "their", "mine": "theirs", "me": "them", "us": "them", "myself": "themselves",
           "ourselves": "themselves", "i": "they", "we": "they", "i'm": "they're", "we're": "they're",
           "i've": "they've", "we've": "they've"}  # fmt: skip
_OWN_WORDS = re.compile(
    rf"(?<![\w.])(?:{'|'.join(sorted(_THEIRS, key=len, reverse=True))})(?![\w'.-])", re.IGNORECASE
)
_UPPER = frozenset({"US"})  # a country


_PLURALS = frozenset(LISTS["plural"].split("|"))
_PLURAL_VERBS = {"is": "are", "am": "are", "was": "were", "has": "have", "does": "do", "doesn't": "don't"}
_THEY = re.compile(r"\bthey (am|was)\b", re.IGNORECASE)
_SEVERAL = re.compile(r"^[a-z-]+(?<![su'i])(?<!ic)(?<!new)(?<!series)(?<!diabete)(?<!math)(?<!len)s$")  # "goals"
_SIBILANT = re.compile(r"(?<=ch|sh|ss)es$|(?<=[xzo])es$")


def tell_of_them(text: str) -> str:
    """*text* in the third person: "with my wife" is "with their wife"."""
    turned = _OWN_WORDS.sub(
        lambda found: found[0] if found[0] in _UPPER else _THEIRS.get(found[0].lower(), found[0]), text
    )
    return _THEY.sub(lambda found: f"they {_PLURAL_VERBS[found[1].lower()]}", turned)


def agree_in_number(content: str, who: str) -> str:
    """*content* with its verb in the plural where several people are its subject."""
    subject = f"User's {who} "
    *_, last = ["", *who.split()]
    if not content.startswith(subject):
        return content
    verb, space, rest = content[len(subject) :].partition(" ")
    if verb[:1].isupper():  # "my daughters Ines and Pilar"
        return content
    if last.lower() not in _PLURALS and not (verb.lower() in _PLURAL_VERBS and _SEVERAL.search(last)):
        return content
    return f"{subject}{_bare(verb)}{space}{rest}"


def _bare(verb: str) -> str:
    """The plural of a *verb* in the third person: "works" is "work"."""
    if verb.endswith("ies"):
        return f"{verb[:-3]}y"
    return _PLURAL_VERBS.get(verb.lower()) or _SIBILANT.sub("", verb, count=1).removesuffix(
        "s" if not _SIBILANT.search(verb) else ""
    )


# "The user lives in Oslo and works as a nurse", "- likes jazz", as programs write it
_VERBS = (
    "works|lives|likes|loves|hates|has|is|prefers|plays|speaks|drives|owns|takes|eats|drinks|studies|teaches|wants"
)
_OF_USER = re.compile(
    r"(?im)(?:^|(?<=[.;] ))(?:[-*\u2022] ?)?(?:(?:the )?user(?P<own>'s)?(?= [a-z])|"
    rf"(?=(?:{_VERBS}) ))(?: ?(?P<verb>[a-z']+))(?P<rest>[^.;?\n]*)(?=[.;\n]|$)"
)
_THEN = re.compile(rf"(?<=\band )(?:{_VERBS})\b")


def tell_of_oneself(text: str) -> str:
    """*text* in the first person, where its sentences are about "the user" or about nobody else."""

    def first_person(verb: str) -> str:
        return {"is": "am", "isn't": "am not", "was": "was", "wasn't": "wasn't"}.get(verb.lower()) or _bare(
            verb.lower()
        )

    def put(found: re.Match[str]) -> str:
        if found["own"]:
            return f"My {found['verb']}{found['rest']}"
        rest = _THEN.sub(lambda one: f"I {first_person(one[0])}", found["rest"])
        return f"I {first_person(found['verb'])}{rest}"

    return _OF_USER.sub(put, text)
