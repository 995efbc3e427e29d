"""Introductions taken apart: "I'm Noor, 41, radiographer at Leeds General" says three things of its writer. Pure.

An introduction is a list without verbs, or one noun phrase of age, work and home. It becomes clauses with a subject
and a verb each, and the rules read each by itself. Every pattern is bounded: the time is linear in the sentence.
"""

from __future__ import annotations

from itertools import takewhile

from memory_extproc.learn.extract.clauses import LISTS, NAMES, RELATIVE, fill_in, strip_openers
from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import fold

_WORDS = LISTS["words"]
# "a" or "an" before a noun: "a UX designer", "a union", "an HR manager"
AN = r"(?-i:[AEFHILMNORSX](?=[A-Z])|(?!(?:UN|UK|US|USB|UI)\b)[AEIO]|[aeio](?!ne\b|u)|u(?=n[^i]|[pmr]|gl|sh))"
_CAPITAL = r"(?-i:[A-Z\u00c0-\u00de])[\w'.-]*"
_PLACE = rf"{_CAPITAL}(?: (?:(?:de|la|upon|on|am|im) )?{_CAPITAL}){{0,3}}"
_AGE = r"(?P<age>1[4-9]|[2-9]\d)"
_OLD = rf"{_AGE}(?:[ -]?years?[ -]old|[ -]?(?:yo|y/o|yrs?))"

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
            (rf"{_AGE}(?: years old| yo| yrs)?", "I'm {age}"),
            (rf"(?:originally )?from {_PLACE}", "I'm {of}"),
            (rf"(?:born and raised|born|raised) (?:in|near) {_PLACE}", "I was {of}"),
            (r"(?:living|working|based|studying) [\w '-]{2,40}", "I'm {of}"),
            (rf"{_PARENT}{_AT_WORK}|{_ROLE}{_AT_WORK}", "I'm {a}{of}"),
            *((fill_in(pattern, _WORDS), f"{subject} {{of}}") for subject, pattern in LISTS["profile"].items()),
        ),
        "de": (
            (rf"{_AGE}(?: Jahre(?: alt)?)?", "ich bin {age} Jahre alt"),
            (rf"aus {_PLACE}", "ich komme {of}"),
            (rf"(?P<role>(?-i:{_NOUN})) (?P<home>aus {_PLACE})", "ich bin {role}, ich komme {home}"),
            (rf"(?-i:{_NOUN}(?:er|in|ist|mann|frau|or|eur))", "ich bin {of}"),
        ),
        "fr": (
            (rf"{_AGE} ans", "j'ai {age} ans"),
            (rf"(?P<aged>j'ai {_AGE} ans)(?: et (?P<more>(?:je|j') ?.{{3,60}}))?", "{aged}, {more}"),
            (r"(?:je suis|j'habite|je vis|je travaille) .{3,60}", "{of}"),
            (_WORDS["metiers"], "je suis {of}"),
        ),
        "es": (
            (rf"{_AGE} a\u00f1os", "yo tengo {age} a\u00f1os"),
            (rf"(?P<aged>tengo {_AGE} a\u00f1os)(?: y (?P<more>(?:soy|vivo) .{{3,60}}))?", "yo {aged}, yo {more}"),
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
