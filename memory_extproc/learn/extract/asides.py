"""Reads what a sentence says in passing of its writer and their people: asides and introductions, as clauses. Pure.

"Helga, my boss, hates mail" is "my boss Helga hates mail", "as a nurse I hardly sleep" also says "I'm a nurse", and
"I'm Noor, 41, radiographer at Leeds General" says three things of its writer. An introduction is a list without
verbs, or one noun phrase of age, work and home. Every pattern is bounded: the time is linear in the sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile

from memory_extproc.learn.extract.clauses import (
    BY_NAME,
    LISTS,
    NAMES,
    ONE_NAME,
    PLURAL,
    RELATIVE,
    SUBJECTS,
    fill_in,
    is_name,
    strip_openers,
)
from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import fold

_GRAMMAR, _BLANKS = LISTS["grammar"], re.compile(r"\s+")
# "my sister, a nurse in Oslo, ...": the words between the commas are about her.
_INSERTED = re.compile(
    rf"\b(?P<who>my\s+{RELATIVE}(?:\s+{NAMES})?)\s*(?:,?\s+who(?:'s|\s+is)?|,\s*(?=(?:an?|\d{{1,3}})\b))\s*"
    r"(?P<said>[^,;()]{2,80}(?:,\s(?:in|near|at|outside)\s[^,;()]{2,40})?)(?:,|$)",
    re.IGNORECASE,
)
# "my sister Ana, a nurse in Oslo, works nights" is "my sister Ana works nights" once the words between are read.
_ENCLOSED = re.compile(
    rf"\b(?P<who>(?:my|our)\s+{RELATIVE}(?:\s+{NAMES})?)\s*(?:,\s*(?:(?:who|which|an?|the|now|also)\b|\d)[^,;()]{{1,80}},"
    r"|\s\([^()]{1,40}\)|,\s*\d{1,3},)\s+(?=[a-z])",
    re.IGNORECASE,
)
# "Lisa and I broke up", "me and lisa split up" is "I broke up with Lisa"
_PARTNER = rf"(?:my|our)\s+{RELATIVE}(?:\s+{NAMES})?|{ONE_NAME}|\A[a-z]{{3,15}}|(?<=me and )[a-z]{{3,15}}"
_PARTED = re.compile(
    rf"(?:\b(?P<who>{_PARTNER})\s+(?:and|&)\s+(?:i|me)|\b(?:i|me)\s+and\s+(?P<whom>{_PARTNER}))"
    r"(?:'ve|\s+have|\s+had|\s+just|\s+recently|\s+finally)*"
    r"\s+(?P<how>broke\s+up|broken\s+up|split\s+up|split(?!\s+(?:the|an?|our|it|this|that|on|\d))|separated|got\s+divorced"
    r"|ended\s+things|parted\s+ways|(?:got|are|'re|have\s+got)\s+back\s+together)\b",
    re.IGNORECASE,
)
# "my wife and I are ..." says what "we are ..." says
_TOGETHER = re.compile(rf"\b(?:my|our)\s+{RELATIVE}(?:\s+{NAMES})?\s+and\s+(?:i|me)\s+(?=[a-z])", re.IGNORECASE)
# the children of a family that is spoken of
_OF_MINE = re.compile(
    r"(?:^|(?<=[,;] )|(?<=\band ))(?:the\s+(?P<who>kids|children|twins|youngest|oldest|eldest|in-laws|grandkids"
    r"|grandchildren|(?:old |young |little )?(?:dog|cat|puppy|kitten|wife|husband|missus)|boyfriend|girlfriend)"
    r"|(?P<elder>mum|mom|dad|grandma|grandpa|granny|nana|papa|mama))"
    r"(?=,\s+(?-i:[A-Z])[a-z]+,|\s+(?:is|are|was|has|have|had|lives?|works?|just|starts?|go|goes|turns?|turned|loves?|hates?|likes?|can't|don't|doesn't|won't|refuses?)\b|'s\s)",
    re.IGNORECASE,
)
# "my wife she is ..."
_RESUMED = re.compile(
    rf"\b(?P<who>(?:my|our)\s+{RELATIVE}(?:\s+{NAMES})?)\s+(?:he|she|they)(?='s\s|\s(?:is|are|has|have|works?|lives?|can|likes?)\s)",
    re.IGNORECASE,
)
# "the house we rent has ..." is "my house has ..."
_WE_HAVE = re.compile(
    r"\bthe\s+(?P<what>[\w-]+(?:\s[\w-]+)?)\s+(?:(?:that|which)\s+)?(?:we|i)(?:'ve)?\s+"
    r"(?:rent|own|have|live in|drive|bought|ride|got|rented)\s+(?=(?:has|is|was|needs|runs)\b)",
    re.IGNORECASE,
)
# "my boss, Helga, hates ...", "Helga, my boss, hates ..." and "Helga is my boss"
_NAMED_BETWEEN = re.compile(rf"\b(?P<who>(?:my|our)\s+{RELATIVE}),\s+(?P<name>{NAMES}),\s+(?=[a-z])", re.IGNORECASE)
_NAME_FIRST = re.compile(rf"^(?P<name>{NAMES}),\s+(?P<who>(?:my|our)\s+{RELATIVE}),\s+(?=[a-z])", re.IGNORECASE)
_IS_MINE = re.compile(
    rf"^(?P<name>{NAMES})(?:\s+is|'s)\s+(?P<who>(?:my|our)\s+{RELATIVE})(?=\s*[.,!;]|\s+and\b|$)", re.IGNORECASE
)
_OWNED = re.compile(
    r"\b(?:my|our|the\s+(?:kids|children|twins|youngest|oldest|eldest|in-laws|grand\w+)|mum|mom|dad|grandma|grandpa|granny|nana"
    r"|papa|mama|dog|cat|puppy|kitten|wife|husband|boyfriend|girlfriend)\b",
    re.IGNORECASE,
)


_WITH_ME = re.compile(r"(?:and|&) (?:i|me)\b|\b(?:me|i) and ", re.IGNORECASE)


def _write_parting(parted: re.Match[str]) -> str:
    who = parted["who"] or parted["whom"]
    return f"I {parted['how']} with {who if ' ' in who else who.title()}"


def join_enclosed(sentence: str) -> str:
    """*sentence* with its people named and without what is said of them in between, so that subject and verb stand
    together: "Helga, my boss, hates mail" is "my boss Helga hates mail"."""
    if _WITH_ME.search(sentence):
        sentence = _PARTED.sub(_write_parting, sentence)
    if "the " in sentence or "The " in sentence:
        sentence = _WE_HAVE.sub(r"my \g<what> ", sentence)
    if _OWNED.search(sentence) is None:
        return sentence
    if (named := _IS_MINE.match(sentence)) is not None and not is_name(named["name"]):
        return sentence  # "She is my wife"
    for pattern, joined in (
        (_RESUMED, r"\g<who>"),
        (_TOGETHER, "we "),
        (_OF_MINE, r"my \g<who>\g<elder>"),
        (_ENCLOSED, r"\g<who> "),
        (_NAMED_BETWEEN, r"\g<who> \g<name> "),
        (_NAME_FIRST, r"\g<who> \g<name> "),
        (_IS_MINE, r"\g<who> is \g<name>"),
    ):
        sentence = pattern.sub(joined, sentence)
    return sentence


# --- asides ------------------------------------------------------------------------------------------
# Facts that a sentence takes for granted, even in a question: "Which books suit my 7-year-old son?"

_OWN = r"\b(?:my|our)\s+"
_PERSON = rf"(?P<rel>{RELATIVE})"
_NAMED_PERSON = re.compile(rf"{_OWN}{_PERSON}(?:,\s+|\s+|\s*\(\s*)(?P<name>{NAMES})(?![\w-])", re.IGNORECASE)
# "with our two sons, Max and Leo", "the kids are Max, 10, and Leo"
_AGE = r"(?:,?\s\(?\d{1,2}\)?)?"
_NAMED_PEOPLE = re.compile(
    rf"(?:{_OWN}|\b(?:the|have|had|'ve|have\s+got|'ve\s+got)\s+)(?:\w{{1,20}}\s+)?(?P<rel>{LISTS['plural']}|boys|girls)"
    rf"(?:\s+called|\s+named|\s+are|:|,|\s+[-\u2013\u2014])?\s+(?P<names>{ONE_NAME}{_AGE}(?:,\s+{ONE_NAME}{_AGE}){{0,5}},?\s+and\s+{ONE_NAME})(?![\w-])",
    re.IGNORECASE,
)
_OF_OTHERS = re.compile(
    rf"(?:\b(?:he|she|they|who|you)|(?!We\b){ONE_NAME})(?:'ve)?\s+(?:(?:just|also|already)\s+)?\Z", re.IGNORECASE
)
_AGED_NAME = re.compile(
    rf"\b(?P<name>{ONE_NAME})(?: \((?P<within>\d{{1,2}})\)|, (?P<age>\d{{1,2}})(?=,| and |[.!]|$))"
)
_SEVERAL = re.compile(rf"\b(?:{LISTS['plural']}|boys|girls)\b", re.IGNORECASE)
# "our designer Mireille": a person by their occupation
_NAMED_ROLE = re.compile(
    rf"{_OWN}(?P<role>(?:[a-z]+\s)?(?:{LISTS['words']['occupations']}|{LISTS['words']['agents']}|deputy|[a-z]{{3,}}(?:tor|yer|ner|ger|ist|ian))),?\s+"
    rf"(?P<name>{NAMES})(?![\w-])",
    re.IGNORECASE,
)
_A_NAME = re.compile(ONE_NAME)
_AGED_PERSON = re.compile(
    rf"{_OWN}(?P<age>\d{{1,3}}|{_GRAMMAR['numbers']})[\s-](?P<unit>year|month|week)s?[\s-]old\s+"
    rf"(?:(?:{_GRAMMAR['twin']})\s+)?{_PERSON}(?:,?\s+(?P<name>{NAMES}))?",
    re.IGNORECASE,
)
_PERSON_YEARS = re.compile(
    rf"{_OWN}{_PERSON}(?:,?\s+(?P<name>{NAMES}))?(?:\s*,\s*|\s*\(\s*)(?P<age>\d{{1,3}})\s*[,)]", re.IGNORECASE
)
_AS_A = re.compile(
    r"(?:^|[,;:(]\s*|\b(?:me|i|and|but|so)\s+)(?:as|being|speaking\s+as)\s+"
    rf"(?P<what>an?\s+[\w'-]+(?:\s+[\w'-]+){{0,3}}?)(?=[,;.!?]|\s+(?:{SUBJECTS})|$|\s+(?:and|who|with|at)\b)",
    re.IGNORECASE,
)
_TRAIT = re.compile(LISTS["words"]["traits"], re.IGNORECASE)
_ADJECTIVE = r"(?!(?:has|have|had|is|are|was|and|or|with|from|of|the|to|about)\b)[\w-]+"
_CONDITION = re.compile(
    rf"{_OWN}(?P<whose>{RELATIVE}'s\s+)?(?P<what>(?:{_ADJECTIVE}\s+){{0,2}}?(?:{LISTS['words']['conditions']}))"
    r"\b(?!\s+(?:test|app|meds|research|story|is|are|isn't|was))",
    re.IGNORECASE,
)
_ALLERGY = re.compile(r"(?P<what>[\w-]+(?:\s+[\w-]+)?)\s+(?:allerg(?:y|ies)|intolerance)$", re.IGNORECASE)
# Presuppositions of other constructions, each as a clause of its own.
_PARTS = {
    **LISTS["words"],
    "relative": RELATIVE,
    "names": NAMES,
    "subjects": SUBJECTS,
    "events": LISTS["events"],
    "things": LISTS["things"],
}
_ASIDES = [
    (
        re.compile(fill_in(entry["pattern"], _PARTS), re.IGNORECASE),
        re.compile(entry["unless"], re.IGNORECASE) if "unless" in entry else None,
        entry["clause"],
    )
    for entry in LISTS["aside"]
]
_MAY_STAND_ASIDE = re.compile(
    r"\b(?:my|our|have|had|'ve|the\s(?:kids|children|twins|boys|girls)|as|being|with|on\s+an?|here\s+in|for\s+an?|why\s+i|no|without|skip|avoid|mine|sign|tell|let|say|that\s+the|i'm|i've|shifts?|at\s+the|on\s+call|meine?[rmn]?|unsere?[rmn]?|mon|ma|mi)\b",
    re.IGNORECASE,
)
_FIRST = re.compile(r"\b(?:i|i'm|i've|my|me|we|our)\b", re.IGNORECASE)


def split_ages(sentence: str) -> tuple[str, list[str]]:
    """Split the ages in a list of people ("the girls, Ines (9) and Pilar (6)") from *sentence*, as clauses. Words
    in brackets about a stranger are left out: "the winner was Bea (got a scholarship)"."""
    sentence = _IN_BRACKETS.sub(r"\g<before>", sentence)
    if _LISTS_NAMES.match(sentence):
        sentence = _ROLE_BEHIND.sub("", sentence)
    found = list(_AGED_NAME.finditer(sentence)) if _SEVERAL.search(sentence) else []
    found = [one for one in found if is_name(one["name"])]
    if len(found) < _FEWEST_OF_LIST:
        return sentence, []
    ages = [f"my {BY_NAME}{one['name']} is {one['within'] or one['age']}" for one in found]
    bare = _AGED_NAME.sub(lambda one: one["name"], sentence)
    return re.sub(r", and (?=[A-Z])", " and ", bare), ages


_FEWEST_OF_LIST = 2  # names
# "my team: Lotte (planner), Bram (driver) and Joost"
_LISTS_NAMES = re.compile(rf"(?:my|our)\s[\w -]{{2,30}}(?::|\sis|\sare)\s{ONE_NAME}", re.IGNORECASE)
_ROLE_BEHIND = re.compile(r"(?<=\w) \([a-z][^()\d]{1,40}\)(?=,| and )")
_IN_BRACKETS = re.compile(_GRAMMAR["in_brackets"], re.IGNORECASE)


def asides(sentence: str) -> list[str]:
    """Facts that *sentence* takes for granted of its writer and their people, each as a clause of its own."""
    if _MAY_STAND_ASIDE.search(sentence) is None:
        return []
    found = [*_people(sentence), *_read_introductions(sentence), *_own_life(sentence)]
    return list(dict.fromkeys(_BLANKS.sub(" ", one) for one in found))


def _people(sentence: str) -> Iterator[str]:
    for one in _NAMED_PERSON.finditer(sentence):
        if is_name(one["name"]) and fold(one["rel"]).rsplit(" ", 1)[-1] not in PLURAL:
            yield f"there is my {one['rel']} {one['name']}"
    for one in _NAMED_PEOPLE.finditer(sentence):
        if _OF_OTHERS.search(sentence[: one.start()]):  # "he and Marta have twins, Rui and Sofia"
            continue
        *names, last = _A_NAME.findall(one["names"])
        if all(map(is_name, [*names, last])):
            yield f"my {one['rel']} are called {', '.join(names)} and {last}"
    for one in _INSERTED.finditer(sentence):
        said = one["said"].strip()
        yield f"{one['who']} {said}" if said.split(maxsplit=1)[0].endswith("s") else f"{one['who']} is {said}"
    for one in _AGED_PERSON.finditer(sentence):
        name = f" {one['name']}" if one["name"] and is_name(one["name"]) else ""
        if name:
            yield f"there is my {one['rel']}{name}"
        yield f"my {one['rel']}{name} is {one['age']} {one['unit']}s old"
    for one in _PERSON_YEARS.finditer(sentence):
        name = f" {one['name']}" if one["name"] and is_name(one["name"]) else ""
        yield f"my {one['rel']}{name} is {one['age']}"


# "to Ms Adler, my son's piano teacher"
_WITH_ROLE = re.compile(
    rf"\b(?:to|with|from|for|by|and|is|ask|call|meet|email|mail|thank|invite|tell) "
    rf"(?P<name>{NAMES}),?\s+(?:who(?:'s|\s+is)\s+)?"
    rf"(?:my|our)\s+(?P<role>(?:[a-z][\w'-]*\s+){{0,2}}?(?:{LISTS['relations']}|{LISTS['words']['occupations']}|counsel|[a-z]{{3,}}(?:er|or|ist|ian)))"
    r"(?=[,.;!?)]|$)"
)


def _read_introductions(sentence: str) -> Iterator[str]:
    """People by role, things by kind, and appointments that a request names."""
    for one in chain(_WITH_ROLE.finditer(sentence), _NAMED_ROLE.finditer(sentence)):
        if is_name(one["name"]):
            yield f"there is in the role of {one['role']}: {one['name']}"


def _own_life(sentence: str) -> Iterator[str]:
    for one in _AS_A.finditer(sentence):
        # "As a doctor, would you say ...?" asks a doctor; a diet is the asker's own.
        own = _FIRST.search(sentence, one.end()) is not None
        said = one["what"] if own else one["what"].partition(" ")[2]
        if own or _TRAIT.fullmatch(said):
            yield f"I'm {said}"
    for one in _CONDITION.finditer(sentence):
        who = f"my {one['whose'].strip().removesuffix(chr(39) + 's')} has" if one["whose"] else "I have"
        allergy = _ALLERGY.search(one["what"])
        article = "an " if one["what"][:1].lower() in "aeiou" else "a "
        yield f"{who} {article if allergy and not one['what'].endswith('ies') else ''}{one['what']}"
    for pattern, unless, clause in _ASIDES:
        if unless is None or not unless.search(sentence):
            yield from (clause.format_map(one.groupdict("")) for one in pattern.finditer(sentence))


# --- introductions -----------------------------------------------------------------------------------
_WORDS = LISTS["words"]
# "a" or "an" before a noun: "a UX designer", "a union", "an HR manager"
AN = r"(?-i:[AEFHILMNORSX](?=[A-Z])|(?!(?:UN|UK|US|USB|UI)\b)[AEIO]|[aeio](?!ne\b|u)|u(?=n[^i]|[pmr]|gl|sh))"
_CAPITAL = r"(?-i:[A-Z\u00c0-\u00de])[\w'.-]*"
_PLACE = rf"{_CAPITAL}(?: (?:(?:de|la|upon|on|am|im) )?{_CAPITAL}){{0,3}}"
_YEARS = r"(?P<age>1[4-9]|[2-9]\d)"
_OLD = rf"{_YEARS}(?:[ -]?years?[ -]old|[ -]?(?:yo|y/o|yrs?))"

# "Hi, I'm Noor, ...", "Marcus here, ...", "im jess, 23, ..."; pronouns may follow the name. "This is Noor" can
# introduce another person: it counts with "speaking" or "here", and after a greeting if "I" follows.
_GREETING = (
    r"(?:hi|hey|hello|hola|bonjour|hallo|salut|good (?:morning|afternoon|evening))(?: (?:there|all|everyone))?"
)
_SAYS = "i'?m|i am|(?:my )?name(?:'s| is)|ich (?:bin|hei\u00dfe)|je (?:suis|m'appelle)|soy|me llamo"
_INTRODUCTION = re.compile(
    rf"\A(?:{_GREETING}[,!.]? )?"
    rf"(?:(?P<says>{_SAYS}) (?:(?P<name>{NAMES})|(?P<low>[a-z]{{3,15}})(?=, (?:1[4-9]|[2-9]\d)\b))"
    rf"|(?P<called>{NAMES}) here)(?: \((?:\w+/)+\w+\))?,\s+(?P<items>.+)\Z",
    re.IGNORECASE | re.DOTALL,
)
_IS_WRITER = re.compile(
    rf"\A(?:(?:{_GREETING}[,!.]? )?(?:this is|it'?s) (?P<speaks>{NAMES}) (?:here|speaking|writing)"
    rf"(?= ?(?:[,.!\u2013-]|\Z))|{_GREETING}[,!.]? this is (?P<greets>{NAMES})(?=,? (?:and )?i(?:'m|'ve)? )"
    r"(?!.*\b(?:he|him|his|she|her|they|them)\b))",
    re.IGNORECASE | re.DOTALL,
)
# "Hi, this is Noor, 41, ..." names the writer, unless the text goes on about somebody
_AT_ONCE = re.compile(
    rf"\A\s*{_GREETING}[,!.]?\s+(?:this is|it'?s) (?P<name>{NAMES})(?=, (?:1[4-9]|[2-9]\d)\b)", re.IGNORECASE
)
_OF_SOMEBODY = re.compile(
    rf"\b(?:he|him|his|she|her|they|them|their|{LISTS['grammar']['strangers']})\b"
    rf"|, (?:(?:an?|my|our) )?{RELATIVE}(?: of (?:mine|ours))?(?= ?[,.!]|\Z)",
    re.IGNORECASE,
)
_OWN_HEAD = re.compile(LISTS["grammar"]["own_head"], re.IGNORECASE)
_OF_RELATIVE = re.compile(
    rf"\A(?P<who>(?:my|our) {RELATIVE})(?:'s (?:first )?name)?(?:'s| is)(?: called| named)? (?P<name>{NAMES}),\s+"
    r"(?P<items>(?:1[0-9]|[1-9]\d?)\b.+)\Z",
    re.IGNORECASE | re.DOTALL,
)
_LANGUAGE = {
    **dict.fromkeys(("ich bin", fold("ich heiße")), "de"),
    **dict.fromkeys(("je suis", "je m'appelle"), "fr"),
    **dict.fromkeys(("soy", "me llamo"), "es"),
}
_NAMING = {"en": "My name is", "de": "Ich heiße", "fr": "Je m'appelle", "es": "Me llamo"}

_STATUS = "(?:an?|retired|former|freelance|self-employed|full-time|part-time|trainee|junior|senior)"
_ENDING = "(?!(?:number|other|another|later|over|under|never|ever|after)$)[a-z-]{3,20}(?:er|or|ist|ian|man|woman)"
_ROLE = rf"(?:{_STATUS} ){{0,2}}(?:[\w-]{{1,20}} ){{0,3}}?(?:{_WORDS['occupations']}|{_ENDING})"
_PARENT = r"(?:an? )?(?:(?:proud|single) )?(?:mum|mom|mother|dad|father|parent) (?:of|to) \w+(?: \w+)?"
_AT_WORK = r"(?: (?:at|for|with|in|from|by|on) [\w '&.-]{2,50})?"
_NOUN = r"[A-Z\u00c4\u00d6\u00dc][\w-]{1,30}"
# Items of an introduction by language, with the clause that each stands for: {of} is the item, {a} its article.
_ITEMS = {
    language: tuple((re.compile(rf"\A(?:{pattern})\Z", re.IGNORECASE), clause) for pattern, clause in items)
    for language, items in {
        "en": (
            (rf"{_YEARS}(?: years old| yo| yrs)?", "I'm {age}"),
            (rf"(?:originally )?from {_PLACE}", "I'm {of}"),
            (rf"(?:born and raised|born|raised) (?:in|near) {_PLACE}", "I was {of}"),
            (r"(?:living|working|based|studying) [\w '-]{2,40}", "I'm {of}"),
            (rf"{_PARENT}{_AT_WORK}|{_ROLE}{_AT_WORK}", "I'm {a}{of}"),
            *((fill_in(pattern, _WORDS), f"{subject} {{of}}") for subject, pattern in LISTS["profile"].items()),
        ),
        "de": (
            (rf"{_YEARS}(?: Jahre(?: alt)?)?", "ich bin {age} Jahre alt"),
            (
                rf"{_YEARS}(?: Jahre(?: alt)?)? und (?P<more>(?:arbeite|wohne|lebe|studiere) .{{3,60}})",
                "ich bin {age} Jahre alt, ich {more}",
            ),
            (
                rf"(?P<role>(?-i:{_NOUN})) (?:bei|beim)(?: der)?(?: Firma)? (?P<firm>(?-i:[A-Z]).{{1,40}}?)",
                "ich arbeite als {role}, ich arbeite bei {firm}",
            ),
            (r"(?:wohne|lebe|arbeite) .{3,60}", "ich {of}"),
            (rf"aus {_PLACE}", "ich komme {of}"),
            (rf"(?P<role>(?-i:{_NOUN})) (?P<home>aus {_PLACE})", "ich bin {role}, ich komme {home}"),
            (rf"(?-i:{_NOUN}(?:er|in|ist|mann|frau|or|eur))", "ich bin {of}"),
        ),
        "fr": (
            (rf"{_YEARS} ans", "j'ai {age} ans"),
            (rf"(?P<aged>j'ai {_YEARS} ans)(?: et (?P<more>(?:je|j') ?.{{3,60}}))?", "{aged}, {more}"),
            (r"(?:je suis|j'habite|je vis|je travaille) .{3,60}", "{of}"),
            (_WORDS["metiers"] + r"(?: (?:\u00e0|chez|au|en|dans) .{2,40})?", "je suis {of}"),
        ),
        "es": (
            (rf"{_YEARS} a\u00f1os", "yo tengo {age} a\u00f1os"),
            (
                rf"(?P<aged>tengo {_YEARS} a\u00f1os)(?: y (?P<more>(?:soy|vivo) .{{3,60}}))?",
                "yo {aged}, yo {more}",
            ),
            (r"(?:soy|vivo|trabajo) .{3,60}", "yo {of}"),
            (_WORDS["oficios"] + r"(?: en .{2,40})?", "yo soy {of}"),
        ),
    }.items()
}
_MOST = 8  # items
_FEW = 3  # items without a name, which may stand beside each other by chance
_COMMA = re.compile(r",\s+(?:and )?")

# "I'm a 34-year-old teacher living in Bristol": age, home and origin in one noun phrase
_BE = r"(?P<be>\b(?:i'?m|i am))"
_AGED = re.compile(
    rf"{_BE} an? {_OLD}(?: (?P<rest>(?!(?:who|and|but|now)\b)[a-z][^,;.!?]{{2,120}}))?", re.IGNORECASE
)
_SETTLED = re.compile(
    rf"{_BE} (?P<role>an? (?:[\w'&/-]+ ){{0,8}}?[\w'&/-]+),? "
    rf"(?P<home>(?:currently )?(?:living|based) (?:in|near|outside) (?=(?:the )?{_CAPITAL})"
    rf"|(?:originally )?from {_PLACE})",
    re.IGNORECASE,
)

# "Having lived in Chile, I ...": the participle's subject is that of the clause after it
_PARTICIPLE = re.compile(
    r"\A(?P<how>having|coming|being|born|raised|living|working|studying)\s+(?P<rest>[^,;?]{3,80}),\s+(?=(?:i|we)\b)",
    re.IGNORECASE,
)
_PARTICIPLES = {
    "having": "I've", "coming": "I come", "born": "I was born", "raised": "I was raised",
    "living": "I live", "working": "I work", "studying": "I study",
}  # fmt: skip


def introduce_writer(text: str) -> str:
    """*text* with "my name is Noor" for the "Hi, this is Noor" that begins a list about its writer."""
    found = _AT_ONCE.match(text)
    if found is None or _OF_SOMEBODY.search(text):
        return text
    return f"My name is {found['name']}{text[found.end() :]}"


def read_introduction(sentence: str, *, nameless: bool = True) -> str:
    """*sentence* with a clause for each thing by which its writer introduces themselves; any other unchanged.
    *nameless*: read a list without a name as its writer's."""
    sentence = _IS_WRITER.sub(lambda one: f"My name is {one['speaks'] or one['greets']}", sentence)
    read = _SETTLED.sub(_part_home, _AGED.sub(_part_age, _split_items(sentence, nameless=nameless)))
    return _PARTICIPLE.sub(lambda one: f"{_PARTICIPLES.get(one['how'].lower(), 'I am')} {one['rest']}, ", read)


def told_of_writer(sentence: str) -> str:
    """The text behind a colon whose head names the writer: "write a short bio: born in Recife". Otherwise empty."""
    head, _, told = sentence.rpartition(":")
    own = any(map(_OWN_HEAD.search, (head.strip(), strip_openers(head.strip()))))
    return told.strip() if own else ""


def _split_items(sentence: str, *, nameless: bool) -> str:
    """A clause for each item of "I'm Noor, 41, radiographer", and, if there are three or more, of "34, married, two
    kids, live in Utrecht"."""
    if (relative := _OF_RELATIVE.match(sentence)) is not None:
        return _split_relative(relative)
    named = _INTRODUCTION.match(sentence) or _INTRODUCTION.match(strip_openers(sentence))
    language, told, least = "en", told_of_writer(sentence), _FEW
    if not told and nameless and ":" not in sentence:
        told = sentence
    if named is not None:
        language, told, least = _LANGUAGE.get(fold(named["says"] or ""), "en"), named["items"], 1
    items = _COMMA.sub("\n", strip_openers(told.strip()).rstrip(" .!")).split("\n", _MOST)
    read = list(takewhile(bool, (_read_item(item.strip(), language) for item in items)))
    if len(read) < least:
        return sentence
    rest = items[len(read) :]
    if named is not None:
        read.insert(0, f"{_NAMING[language]} {named['name'] or named['called'] or named['low'].title()}")
    return ", ".join([*read, *rest])


def _split_relative(found: re.Match[str]) -> str:
    """As `_split_items`, of "my wife's name is Ana, 41, baker". Items that cannot be read are left out."""
    who = found["who"]
    items = _COMMA.sub("\n", found["items"].rstrip(" .!")).split("\n", _MOST)
    read = [f"{who} is {found['name']}"]
    for item in items:
        subject, told = _read_item(item.strip(), "en").partition(" ")[::2]
        if _YOUNG.fullmatch(item.strip()) or subject == "I'm":
            read.append(f"{who} is {told or item.strip()}")
    return ", ".join(read)


_YOUNG = re.compile(r"[1-9]\d?(?: (?:years|months) old)?")


def _read_item(item: str, language: str) -> str:
    """The clause that *item* stands for; empty if it is no item of an introduction."""
    for pattern, clause in _ITEMS[language]:
        if (found := pattern.fullmatch(item)) is not None:
            bare = item.removeprefix("a ").removeprefix("an ")
            parts = {**found.groupdict(""), "of": bare if "{a}" in clause else item, "a": article_of(bare)}
            return clause.format_map(parts).removesuffix(", ").removesuffix(", yo ")
    return ""


def article_of(noun: str) -> str:
    return "an " if _AN.match(noun) else "a "


_AN = re.compile(AN)


def _part_age(found: re.Match[str]) -> str:
    aged, rest = f"{found['be']} {found['age']}", found["rest"]
    if not rest:
        return aged
    article = "" if rest.startswith(("from ", "living ", "based ", "in ")) else article_of(rest)
    return f"{aged}, {found['be']} {article}{rest}"


def _part_home(found: re.Match[str]) -> str:
    return f"{found['be']} {found['role']}, {found['be']} {found['home']}"
