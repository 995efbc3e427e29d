"""Sentences taken apart into clauses that have a subject of their own, and asides into clauses of theirs. Pure.

"As a nurse I hardly sleep, and my daughter Mia starts school in May" becomes "I'm a nurse", "there is my daughter
Mia" and "my daughter Mia starts school in May". A rule then reads each clause by itself. Every pattern is bounded:
the time is linear in the sentence.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import Flag, auto
from importlib.resources import files
from typing import Any

from memory_extproc.text import lazy_re as re
from memory_extproc.text.words import fold


def _read() -> Mapping[str, Any]:
    lists = tomllib.loads((files(__package__) / "rules.toml").read_text(encoding="utf-8"))
    for name, by_kind in (("tools", "kinds"), ("providers", "providers")):
        lists["words"][name] = "|".join(lists[by_kind].values())
    lists["provided"] = {word: kind for kind, words in lists["providers"].items() for word in words.split("|")}
    return lists


def fill_in(pattern: str, words: Mapping[str, str]) -> str:
    """*pattern* with the lists of *words* named in it between braces."""
    return re.sub(r"\{([a-z_]+)\}", lambda found: f"(?:{words[found[1]]})", pattern)


LISTS = _read()
_GRAMMAR: Mapping[str, str] = LISTS["grammar"]
REASONS = _GRAMMAR["reasons"]
ONE_NAME = r"(?-i:[A-Z\u00c0-\u00de][a-z\u00df-\u00ff]+(?:[-'][A-Z][a-z]+)?)"
_TITLES = frozenset({"dr", "mr", "mrs", "ms", "prof", "professor"})
NAMES = rf"(?:(?-i:Dr|Mr|Mrs|Ms|Prof|Professor)\.? )?{ONE_NAME}(?: {ONE_NAME})?"
_WHICH = rf"(?:(?:{LISTS['which']}) )?"
RELATIVE = rf"{_WHICH}(?:{LISTS['relations']})"
_NO_NAMES = frozenset([*_GRAMMAR["no_names"].split(), *LISTS["words"]["nationalities"].split("|")])
BY_NAME = "\u2063"  # marks a name after "my", in place of a relation

SUBJECTS = rf"(?:{_GRAMMAR['subjects']})\b"
_PRONOUNS = r"(?:he(?!\s(?:\w{2,12}[ai]do|vuelto|roto|hecho)\b)|she|they|his|her|their|il|elle|ella)(?='|\s)"
# "Kuba is nine and Ola has ...": a name with a verb begins a clause
_BY_NAME = (
    rf"{ONE_NAME}(?=(?:'s)?\s(?:is|was|has|lives|works|plays|loves|hates|likes|can't|goes|turns|turned|doesn't|wants|speaks"
    r"|only)\s|'s\s(?:an?|\d|allergic|scared|the)\b)"
)
_CONNECTORS = rf"(?:{_GRAMMAR['connectors']})"
_ADVERB = rf"(?:(?:{_GRAMMAR['adverbs']})[\s,]+)"
_FRONT = r"(?:(?:in|at|on|during|after|before|this|next|these)\s+(?:[\w-]+\s+){1,3}(?=(?:i|we)\b))"
_CLAUSE = re.compile(
    rf"(?:\s*,|\s+(?:and|but|while))\s+(?={_BY_NAME})|\s*[,;:\uff0c\uff1b]\s*(?:{_CONNECTORS}\s+)?{_ADVERB}?(?={_FRONT}?(?:{SUBJECTS}|{_PRONOUNS})|\u6211)"
    rf"|\s+{_CONNECTORS}\s+{_ADVERB}?(?={_FRONT}?(?:{SUBJECTS}|{_PRONOUNS}))|\s+[-\u2013\u2014]+\s+|\s*\u2014\s*|\s*;\s*"
    rf"|[\uff0c\uff1b]|\s*,\s+(?=(?:{_GRAMMAR['requests']})\b)"
    r"|(?<!'m)(?<!\sam)(?<!\sis)(?<!\sare)(?<!'re)(?<!\snot)(?<!n't)(?<!\sjust)\s+so\s+(?!(?:much|many|far|long|that|am|do|is)\b)"
    r"|\s+\(\s*|\s*\)(?:\s*,)?\s*|\s*\.\.\.+\s*"
    rf"|\s*,\s+(?=(?:it's|it\s+(?:is|[a-z]+s)|{_GRAMMAR['doubts']})\b)|\s*,\s+(?:{_GRAMMAR['foreign_connectors']})\s+"
    rf"|\s+(?:und|et|y)\s+(?=(?:{_GRAMMAR['foreign_predicates']}|(?:(?:er|sie|il|elle|él|ella)\s+)?(?:{_GRAMMAR['kin_verbs']}))\b)"
    r"|,\s+(?=the\s+[a-z]{3,20}\s+(?:want|need|have|has|are|is|will|would|can|might|love|hate|think|say)s?\b)"
    r"|,\s+(?=(?:the\s+)?(?:rent|mortgage|salary|pension|deposit)\s+(?:is|was|went|rose|dropped|has)\b"
    rf"|(?:the\s+)?(?:{LISTS['words']['occasions']})(?:'s|\s+(?:is|was|has|got))\s+(?:been\s+)?"
    r"(?:moved|pushed|brought|postponed|rescheduled|delayed|shifted)\b|(?:er|sie|wir|elle|ella|nous|él)\s+[a-z])",
    re.IGNORECASE,
)
# "Meine Frau heißt Julia und sie arbeitet bei Siemens": the subject goes on
_KIN = re.compile(
    rf"(?P<who>(?:{_GRAMMAR['kin']})\s[\w-]+(?:\s(?-i:[A-Z\u00c0-\u00de])\w+)?)\s(?=(?:{_GRAMMAR['kin_verbs']})\b)",
    re.IGNORECASE,
)
_I_DO = re.compile(rf"(?:{_GRAMMAR['german_deeds']})\b", re.IGNORECASE)
_OF_KIN = re.compile(rf"(?:(?:er|sie|il|elle|él|ella)\s+)?(?=(?:{_GRAMMAR['kin_verbs']})\b)", re.IGNORECASE)
_SHARED = re.compile(
    rf"\s*(?:,?\s+(?:and|but)|,)\s+(?=(?:{_GRAMMAR['adverbs']}\s+)?(?:{_GRAMMAR['predicates']}|{LISTS['words']['traits']})\b"
    rf"|(?:about|around|roughly|nearly|almost)\s+(?:\d|{_GRAMMAR['numbers']})|(?:called|named)\s+{ONE_NAME}"
    rf"|an?\s+(?:[\w-]+\s+)?(?:{LISTS['relations']})\s+(?:called|named)\s)",
    re.IGNORECASE,
)
_HEAD = re.compile(
    rf"^(my\s+{BY_NAME}{NAMES}|(?:i'm|i\s+am|i've|we're|we've)\b|i\b|we\b|my\s+{RELATIVE}(?:\s+{NAMES})?(?=\s)"
    r"|(?:my|our)\s+[\w'-]+(?:\s+[\w'-]+){0,5}?(?=\s+(?:is|has|lives|works|loves|likes|hates|plays|speaks)\b))",
    re.IGNORECASE,
)
_OPENERS = re.compile(rf"^(?:(?:{_GRAMMAR['openers']})\b[\s,:.!-]*)+", re.IGNORECASE)
_SUBORDINATE = re.compile(rf"^(?:{REASONS}|while|although|though|even\s+though)\s+(?={SUBJECTS})", re.IGNORECASE)
# "In May we fly to Japan" is "we fly to Japan in May".
_FRONTED = re.compile(
    rf"^(?P<when>(?:{_GRAMMAR['fronted']})(?:\s+[\w'-]+){{1,4}}?|{_GRAMMAR['times']})\s*,?\s+"
    r"(?P<rest>(?:i|i'm|i've|we|we're|we've|my|our)\s.+)$",
    re.IGNORECASE,
)
_WEEKDAY = re.compile(r"(?:mon|tues|wednes|thurs|fri|satur|sun)day", re.IGNORECASE)
_HEDGED = re.compile(
    rf"^(?P<who>(?:i|we)(?:'m|'ve|'re|\s+am|\s+are|\s+have)?|my\s+{RELATIVE}(?:\s+is|\s+has)?)\s+{_ADVERB}+",
    re.IGNORECASE,
)
# "since I moved to Cork I haven't ...": two clauses without a comma
_SINCE = re.compile(
    r"^(?:since|now\s+that|because)\s+(?:i|we)\s+[^,;]{3,50}?(?=\s(?:i|we)(?:'\w+)?\s)", re.IGNORECASE
)
# "I'd love to learn the banjo" is a plan, "I'd like to know" is none
_WOULD_LIKE = re.compile(
    rf"^(?:i|we)(?:'d|\s+would)\s+(?:really\s+)?(?:like|love)\s+(?=to\s+(?:{LISTS['words']['aims']}))",
    re.IGNORECASE,
)
_THE_ONE = re.compile(r"^i(?:'m|\s+am)\s+the\s+one\s+(?:who|that)(?:'s)?\s+", re.IGNORECASE)
_TRAILING = re.compile(rf"(?:[\s,]+(?:{_GRAMMAR['afterthoughts']}))+$", re.IGNORECASE)
# How people write in haste.
_HASTY = re.compile(  # "im Orchester" is German
    rf"\b(?:{'|'.join(LISTS['hasty'])})\b(?!(?<=\w im)\s+(?-i:[A-Z\u00c0-\u00de]))", re.IGNORECASE
)
# "I'm Alice, a data scientist at Google" says two things of a person.
_APPOSED = re.compile(
    r"((?:^|,\s+)(?:i'm|i\s+am|my\s+name(?:'s|\s+is))\s+(?-i:[A-Z])[\w'-]+(?:\s(?-i:[A-Z])[\w'-]+)?),\s+(?=an?\s)",
    re.IGNORECASE,
)
_SUBJECT_OF = re.compile(
    rf"\b(?P<who>(?:my|our)\s+{RELATIVE})(?:\s+(?P<name>{NAMES}))?(?=[\s,.;:!?)]|'s|$)", re.IGNORECASE
)
_PRONOUN = re.compile(rf"^{_PRONOUNS}", re.IGNORECASE)
_BLANKS = re.compile(r"\s+")
_FILLER = re.compile(r"(?<=\w),? (?:btw|tbh|ngl|fyi|imo|lol)(?=[, ])", re.IGNORECASE)


# "$900, no wait, $750"
_THOUGHT_BETTER = re.compile(
    rf"(?<![\w.,])(?:[$\u20ac\u00a3]?\d[\w.,]{{0,12}}\b|{ONE_NAME})[\s,\u2013\u2014-]{{1,4}}"
    r"(?:no,? wait|wait,? no|wait|sorry|i mean|scratch that|make that|or rather)"
    rf"[\s,:\u2013\u2014-]{{1,4}}(?=[$\u20ac\u00a3]?\d|{ONE_NAME})",
    re.IGNORECASE,
)


_EMOTICON = re.compile(r"(?<=\w)\s[:;=8][-'^]?[()/\\|DPpOo3*]{1,5}(?=\s|$)")


def write_out(text: str) -> str:
    """*text* with the short forms of haste in full ("dont" as "don't"), without emoticons and values put right at
    once."""
    text = _EMOTICON.sub("", _THOUGHT_BETTER.sub("", text))
    return _HASTY.sub(lambda found: LISTS["hasty"].get(found[0].lower(), found[0]), _FILLER.sub("", text))


def strip_openers(text: str) -> str:
    """*text* without "well", "by the way" and the like in front."""
    return _OPENERS.sub("", text)


def split_clauses(sentence: str, people: People | None = None) -> list[str]:
    """The clauses of *sentence* in order, each with its subject, without openers and punctuation. A pronoun is
    replaced by a person of *people*; *people* gains the persons named here."""
    found: list[str] = []
    people = people if people is not None else People()
    sentence = _SINCE.sub(r"\g<0>,", _WHO_IS.sub(r"\g<one>, he ", _APPOSED.sub(r"\1, I'm ", sentence)))
    for clause in _carry_subject(_CLAUSE.split(sentence)):
        bare = _unfold(strip_openers(clause.strip()).strip(" ,;:.!\u3002\uff01\uff0c"))
        if _PRONOUN.match(bare):
            bare = people.put_for_pronoun(bare)
            if BY_NAME in bare and not _ABOUT_A_PERSON.match(bare.partition(BY_NAME)[2]):
                continue  # of people whom the caller only names, lasting things alone
        elif _IT.match(bare):
            bare = people.put_for_it(bare)
        elif people.knows(bare.partition(" ")[0].removesuffix("'s")):
            bare = f"my {BY_NAME}{bare}"
        elif people.by_name and (alone := _of_a_name(bare)) is not None and is_name(alone["name"]):
            bare = f"my {BY_NAME}{alone['name']}{bare[alone.end() :]}"
        if not bare:
            continue
        people.note(bare)
        head = _HEAD.match(bare)
        first, *others = _SHARED.split(bare) if head is not None else [bare]
        found.extend(_one_by_one(first))
        for other in others:
            person = people.put_for_pronoun(f"he {other}") if _OF_SOMEBODY.match(f"{bare[:3]} {other}") else ""
            found.extend(_one_by_one(person or _with_subject(head[1] if head is not None else "", other)))
    return found


def _of_a_name(clause: str) -> re.Match[str] | None:
    return _ABOUT_A_PERSON.match(clause) or _ABOUT_A_KNOWN_PERSON.match(clause)


def is_of_somebody_known(clause: str) -> bool:
    """Whether *clause* names somebody, and may mean something else unless that is a person of the caller's."""
    return BY_NAME in clause and _ABOUT_A_PERSON.match(clause.partition(BY_NAME)[2]) is None


def _carry_subject(clauses: Iterable[str]) -> Iterator[str]:
    """Give a verb behind "und", "et" or "y" its subject: the writer's kin, or "ich"."""
    kin, of_writer = "", False
    for clause in clauses:
        if of_writer and _I_DO.match(clause):
            yield f"ich {clause}"
            continue
        if clause[:4].lower() == "ich ":
            kin, of_writer = "", True
        if (named := _KIN.match(clause)) is not None:
            kin, of_writer = named["who"], False
        carried = _OF_KIN.match(clause) if kin else None
        yield clause if carried is None else f"{kin} {clause[carried.end() :]}"


# The third person in "I have a dog called Rex and loves water": the dog loves it.
_OF_SOMEBODY = re.compile(
    r"(?:i|we)\b\W*(?:'?\w{1,2}\s)?\s*(?:love|like|hate|prefer|work|live|speak"
    r"|play|run|collect|teache)s\b",
    re.IGNORECASE,
)
_ALLERGIES = re.compile(
    r"(?P<head>.{1,60}?\ballerg(?:ic to|ies are|ies:|ies include)) "
    r"(?P<items>[^,;]{2,30}(?:, [^,;]{2,30}){0,9},? and [^,;]{2,30})",
    re.IGNORECASE,
)
_LISTED = re.compile(r", and |, | and ", re.IGNORECASE)


def _one_by_one(clause: str) -> list[str]:
    """*clause* for each thing of a list of allergies: each of them is a fact, and ends by itself."""
    listed = _ALLERGIES.fullmatch(clause)
    if listed is None:
        return [clause]
    return [f"{listed['head']} {item.strip()}" for item in _LISTED.split(listed["items"])]


class People:
    """The people of a conversation, as *relations* of the caller by name, and the latest for each pronoun."""

    def __init__(self, relations: Mapping[str, str] | None = None, names: Iterable[str] = ()) -> None:
        """*names* are people of the caller's whose relation is not known."""
        self._relations = dict(relations or {})
        self._names = frozenset(names)
        self.by_name = True  # a name without a relation counts as a person: in short texts
        self._latest: dict[str, str] = {}
        self._thing = ""  # of the caller's, that "it" means

    def note(self, clause: str) -> None:
        """Note the person that *clause* names: a later pronoun means this person."""
        found = [*_SUBJECT_OF.finditer(clause)] or [*filter(None, [_HAS_ONE.search(clause)])]
        if (thing := _OWN_THING.search(clause)) is not None:
            self._thing = thing["thing"]
        if not found:
            self._latest.pop("they", None)
            if _SOMEBODY.search(clause):
                self._latest.clear()  # a pronoun may mean this person
            named = {one["first"] or one["name"] for one in _NAMED_ALONE.finditer(clause)} if self.by_name else ()
            if len(named) == 1 and is_name(*named):
                self._latest.update(dict.fromkeys(("he", "she"), f"my {BY_NAME}{next(iter(named))}"))
            return
        meant: dict[str, str] = {}
        for one in found:
            for pronoun, who in self._note_relation(one).items():
                meant.setdefault(pronoun, who)  # "my sister called our aunt, she ...": the sister
        self._latest.update(meant)

    def note_each(self, clauses: Iterable[str]) -> None:
        for clause in clauses:
            self.note(clause)

    def _note_relation(self, found: re.Match[str]) -> dict[str, str]:
        """The person in *found*, by the pronouns that may mean them."""
        relation = fold(found["who"]).rsplit(" ", 1)[-1]
        who = found["who"] if found["who"].lower().startswith(("my ", "our ")) else f"my {found['who']}"
        if relation in PLURAL:
            return {"they": who}
        name = found["name"] if found["name"] and is_name(found["name"]) else ""
        if name:
            self._relations[name] = who.partition(" ")[2]
        else:  # of the only one with a name
            known = [one for one, related in self._relations.items() if related == relation]
            name = known[0] if len(known) == 1 else ""
        named = f"{who} {name}".rstrip()
        return {pronoun: named for pronoun, others in (("he", _FEMALE), ("she", _MALE)) if relation not in others}

    def put_for_pronoun(self, clause: str) -> str:
        """*clause* with the person that its pronoun means; empty where it means no known person."""
        pronoun = _PRONOUN.match(clause)
        said = pronoun[0].lower() if pronoun is not None else ""
        if said in _MEANT.values() and (mine := _IS_RELATED.match(clause)) is not None:
            _, found, name = self._latest.get(said, "").partition(BY_NAME)
            return f"{mine['who']} is {name}" if found else ""
        person = self._latest.get(_MEANT.get(said, said), "")
        if said == "they":
            return (
                _THEY_DO.sub(f"{person} are " if "'re" in clause[:7].lower() else f"{person} ", clause, count=1)
                if person
                else clause
            )
        if not person or said in {"his", "her", "their"}:
            if re.match(r"\w+ names?\b", clause):  # the new name replaces the old
                person = re.sub(rf" {ONE_NAME}$", "", person)
            owner = f"{person}'" if person.endswith("s") else f"{person}'s"
            return _PRONOUN.sub(owner, clause, count=1) if person else ""
        return _PRONOUN_IS.sub(
            lambda found: f"{person}{(found['has'] and ' has') or (found['is'] and ' is') or ''}", clause
        )

    def knows(self, name: str) -> bool:
        return name in self._names

    def put_for_it(self, clause: str) -> str:
        """*clause* with the thing that its "it" means, where it says how large, when or where that is."""
        return _IT.sub(f"my {self._thing} is ", clause) if self._thing else clause

    def name_relations(self, sentence: str) -> str:
        """*sentence* with "my sister Beth" for a "Beth" that begins it or a clause of it."""
        for name, relation in self._relations.items():
            if name in sentence:
                sentence = re.sub(
                    rf"(^|[.;,]\s+|\band\s+|\bbut\s+){re.escape(name)}(?='s|\s+[a-z])",
                    rf"\1my {relation} {name}",
                    sentence,
                )
        return sentence


# "Moira had her hip done. She's my wife."
_IS_RELATED = re.compile(rf"(?:he|she)(?:'s|\s+is)\s+(?P<who>(?:my|our)\s+{RELATIVE})$", re.IGNORECASE)
_MEANT = {"his": "he", "il": "he", "her": "she", "elle": "she", "ella": "she", "their": "they"}
PLURAL = frozenset(LISTS["plural"].split("|"))
_PRONOUN_IS = re.compile(
    r"^(?:he|she|il|elle|ella)\b(?:(?P<has>'s(?=\s(?!(?:\w+ly\s)?(?:obsessed|scared|terrified|married|engaged|divorced|retired|widowed|separated|interested|addicted|excited|worried|bored|tired|based|called|named|employed|related|gifted|talented)\b)(?:got|been|had|[a-z]+ed)\b))|(?P<is>'s))?",
    re.IGNORECASE,
)
_IT = re.compile(
    rf"^it(?:'s|\s+is)\s+(?=(?:now\s+)?(?:{LISTS['words']['months']})\s\d|(?:about\s+|only\s+|around\s+)?\d|(?:on|in|at|from|for|near)\s|an?\s+(?:[a-z]+\s+)?(?-i:[A-Z\d]))",
    re.IGNORECASE,
)
_OWN_THING = re.compile(
    rf"\b(?:(?:my|our)\s+(?:[\w-]+\s+){{0,3}}?|(?:i|we)(?:'ve)?\s+(?:have|got|bought|rent|own|drive|booked)\s+(?:an?\s+)(?:[\w-]+\s+){{0,2}}?)"
    rf"(?P<thing>{LISTS['words']['ownables']}|{LISTS['words']['occasions']}|{LISTS['words']['owned']}|{LISTS['things']})\b",
    re.IGNORECASE,
)
_THEY_DO = re.compile(r"^they(?:'re\b|\s)", re.IGNORECASE)
_HAS_ONE = re.compile(
    rf"\b(?:have|'ve|got|adopted|bought|and)\s+(?:got\s+)?(?:an?|one)\s+(?:[\w-]+\s+){{0,2}}?(?P<who>{LISTS['relations']})\b(?:\s+(?:named|called)\s+(?P<name>{NAMES}))?",
    re.IGNORECASE,
)
_SOMEBODY = re.compile(
    rf"\b(?:(?i:an?|one|two|his|her|their)\s+(?i:{LISTS['relations']})|(?:and|with|met|from|by|for)\s+{ONE_NAME})\b"
)
# A name that a pronoun may mean.
_NAMED_ALONE = re.compile(
    rf"(?:(?:^|[,;] )(?P<first>{NAMES})(?= (?:from|is|was|has|had|got|can|and (?:i|me)\b|[a-z]{{2,}}s\b))"
    rf"|\b(?:me and|and|with|met|know|colleague|client|this is|is) (?P<name>{NAMES})(?=[,.]? |$))"
)
_ABOUT_A_PERSON, _ABOUT_A_KNOWN_PERSON = (
    re.compile(
        rf"(?P<name>{NAMES})(?:,? from [a-z]\w+)?(?='s |\s)(?=\s?(?:{fill_in(_GRAMMAR[told], LISTS['words'])}))",
        re.IGNORECASE,
    )
    for told in ("of_people", "of_known_people")
)
_WHO_IS = re.compile(rf"(?P<one>{_HAS_ONE.pattern}),? (?:who|that)(?= (?:is|has|was|can|[a-z]+s) )", re.IGNORECASE)
_MALE = frozenset(_GRAMMAR["male"].split())
_FEMALE = frozenset(_GRAMMAR["female"].split())


def _unfold(clause: str) -> str:
    """*clause* with its subject first: conjunctions go, and a date in front moves to the end."""
    bare = _TRAILING.sub("", _SUBORDINATE.sub("", clause))
    fronted = _FRONTED.match(bare)
    if fronted is not None:
        when = fronted["when"]
        when = f"on {when.capitalize()}" if _WEEKDAY.match(when) else f"{when[0].lower()}{when[1:]}"
        bare = f"{fronted['rest']}{',' if ',' in fronted['rest'] else ''} {when}"
    bare = _HEDGED.sub(r"\g<who> ", _THE_ONE.sub("I ", _WOULD_LIKE.sub("I want ", bare)))
    return _with_dropped_subject(bare)


_DROPPED = tuple(
    (re.compile(rf"\A{fill_in(pattern, LISTS['words'])}", re.IGNORECASE), subject)
    for subject, pattern in LISTS["dropped"].items()
)


_ADVERBS = re.compile(rf"^{_ADVERB}+", re.IGNORECASE)
_HERE_WITH_YOU = re.compile(r"\shere\b(?=,|$)")


def _with_dropped_subject(clause: str) -> str:
    """Give "allergic to nuts" the subject of "I'm allergic to nuts": chats leave it out."""
    bare = _ADVERBS.sub("", clause)
    for pattern, subject in _DROPPED:
        if pattern.match(clause) or (pattern.match(bare) and (clause := bare)):
            return f"{subject} {_HERE_WITH_YOU.sub('', _lower_first(clause))}"
    return f"my {_lower_first(clause)}" if _BARE_NOUN.match(clause) else clause


def _lower_first(clause: str) -> str:
    return clause[:1].lower() + clause[1:] if clause[1:2].islower() else clause


# "wife is vegan", "laptop's a ThinkPad"
_BARE_NOUN = re.compile(
    fill_in(_GRAMMAR["bare"], {**LISTS["words"], "relations": LISTS["relations"]}), re.IGNORECASE
)


def lacks_subject(sentence: str) -> bool:
    """Whether *sentence* begins with a verb and leaves out of whom it is said."""
    return any(pattern.match(sentence) for pattern, _ in _DROPPED)


_OTHERS = re.compile(
    rf"(?:(?:my|our)\s+{RELATIVE}\b|(?:he|she|they)\b|{ONE_NAME}\s+[a-z]+(?:s|ed)\b)", re.IGNORECASE
)


def is_of_others(sentence: str) -> bool:
    """Whether *sentence* speaks of somebody other than its writer."""
    return _OTHERS.match(sentence) is not None and _SPEAKS.search(sentence) is None


_SOMEBODY_ELSE = re.compile(
    rf"\b(?:{LISTS['relations']}|he|him|his|she|her|they|them|{_GRAMMAR['strangers']})\b", re.IGNORECASE
)


def names_somebody(sentence: str) -> bool:
    """Whether *sentence* names a person other than its writer; the next sentence may be about that person."""
    return _SOMEBODY_ELSE.search(sentence) is not None


_SPEAKS = re.compile(r"\b(?:i|i'm|i've|me|we|us)\b", re.IGNORECASE)


def _with_subject(head: str, predicate: str) -> str:
    """Makes "allergic to soy" after "I'm vegan" into "I'm allergic to soy", and "love tea" after "I'm Ann"
    into "I love tea"."""
    folded = fold(head)
    if predicate[:2] in {"a ", "an"}:
        return f"I have {predicate}" if folded in {"i", "we", "i've", "we've"} else ""
    if _OF_BE.match(predicate):
        return f"{head} {predicate}" if folded in {"i'm", "i am", "we're"} else f"{head} is {predicate}"
    subject = {"i am": "I", "i'm": "I", "i": "I", "i've": "I", "we're": "we", "we've": "we"}.get(folded, head)
    return f"{subject} {predicate}"


# goes on from "I'm": "I'm 16 and in year 11", "I'm vegan and allergic to soy"
_OF_BE = re.compile(
    rf"\A(?:(?!(?:s|br|r|sw|st)ing\b)[a-z]+ing|called|named|nearly|almost|allergic|intolerant|in|from|about|around|roughly|{LISTS['words']['traits']})\b",
    re.IGNORECASE,
)


class Begins(Flag):
    """How a clause begins, or a rule's pattern can begin."""

    I = auto()  # noqa: E741 - the word: "I", "we've"
    MY = auto()  # "my", "our"
    FOREIGN = auto()  # with a word by which another language speaks of oneself
    OTHER = auto()


_SPEAKER = re.compile(r"(?:i|we)(?=['\s]|$)", re.IGNORECASE)
_OWNER = re.compile(r"(?:my|our)\s", re.IGNORECASE)
_OWN_PERSON = re.compile(
    rf"(?:my|our)\s+(?:{BY_NAME}|(?:(?:{LISTS['relations']})'s\s+)?{RELATIVE}\b)", re.IGNORECASE
)
_FOREIGN = re.compile(rf"(?:{_GRAMMAR['foreign']})", re.IGNORECASE)
_CONCERNS = re.compile(
    rf"(?:{_GRAMMAR['otherwise']})\b|.*\b(?:me|my|our)\b|.*\d.*\b(?:a|per)\s(?:month|week|year)\b"
    rf"|{fill_in(_GRAMMAR['moved'], LISTS['words'])}",
    re.IGNORECASE,
)


def begins(clause: str) -> Begins:
    if _SPEAKER.match(clause):
        return Begins.I
    if _OWNER.match(clause):
        return Begins.MY
    return Begins.FOREIGN if _FOREIGN.match(clause) else Begins.OTHER


def begins_with_person(clause: str) -> bool:
    """Whether *clause*, which begins with "my" or "our", goes on with one of the caller's people or pets."""
    return _OWN_PERSON.match(clause) is not None


def concerns_writer(clause: str) -> bool:
    """Whether *clause* may tell something of its writer."""
    return begins(clause) is not Begins.OTHER or _CONCERNS.match(clause) is not None


def is_name(text: str) -> bool:
    words = fold(text).split()
    titled = len(words) > 1 and words[0].rstrip(".") in _TITLES
    return not _NO_NAMES.intersection(words[titled:]) and not words[-1].endswith("ly")
