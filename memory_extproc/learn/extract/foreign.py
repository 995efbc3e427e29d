"""Sentences in German, French and Spanish put into English clauses, which the rules for English read. Pure.

"Mittwochs spiele ich Skat, meine Tochter ist 14" becomes "I play Skat mittwochs" and "my daughter is 14": people,
verbs and kinds of things are translated, values stay as written. The frames stand in foreign.toml; a sentence
without a guard word of a language costs one look at its words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from memory_extproc.text import lazy_re as re

AS_SAID = "answered "  # begins a clause that is lasting by its verb: only rules for answers read it
_LONGEST_CLAUSE = 120  # characters
_BLANKS = re.compile(r"\s+")
_PART = re.compile(r"\{([a-z_]+)\}")
_NAMED = re.compile(r"\(\?P<(\w+)>")
_AND = re.compile(r" (?:und|et|y) ")
_AUXILIARIES = frozenset({"bin", "war", "habe", "haben"})  # their participle ends the clause
_PRONOUNS = {"sie": "she", "die": "she", "er": "he", "der": "he", "elle": "she", "il": "he"}


def read_foreign(sentence: str) -> list[str]:
    """The English clauses of what *sentence* states in another language; none for a question."""
    if sentence.endswith("?"):
        return []
    return [clause for language in _languages_of(sentence) for clause in language.read(sentence)]


def people_in(sentence: str) -> str:
    """The caller's people that *sentence* names in another language: "my boss, my wife"; empty for none."""
    return ", ".join(who for language in _languages_of(sentence) for who in language.people(sentence))


def _languages_of(sentence: str) -> Iterator[_Language]:
    words = frozenset(sentence.lower().replace("'", " ").replace(",", " ").split())
    return (one for one in _LANGUAGES if not one.guard.isdisjoint(words))


class _Language:
    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.guard = frozenset(entry["guard"].split())
        self._words = {
            group: [(re.compile(said, re.IGNORECASE), meant) for said, meant in table.items()]
            for group, table in entry["words"].items()
        }
        self._parts = dict(entry["parts"]) | {
            group: f"(?P<{group}>{'|'.join(table)})" for group, table in entry["words"].items()
        }
        self._openers = self._compile(rf"^(?:(?:{entry['openers']})(?![\w'-])[\s,!.:]*)+")
        self._closers = self._compile(rf"[\s,]+{entry['closers']}$")
        self._filler = self._compile(rf"(?<=\w)\s+{entry['filler']}(?=\s)")
        self._split = re.compile(_NAMED.sub("(?:", self._compile(entry["split"]).pattern), re.IGNORECASE)
        self._doubt, self._doubt_on = self._compile(entry["doubt"]), self._compile(entry["doubt_on"])
        self._inverted, self._last = (
            self._compile(entry[kind]) if kind in entry else None for kind in ("inverted", "last")
        )
        self._asides, self._clauses = (
            [(self._compile(pattern), clauses) for pattern, *clauses in entry["frames"][kind]]
            for kind in ("asides", "clauses")
        )
        self._first = entry.get("first", "")
        self._relation = self._compile(r"\b{my} {rel}\b")
        self._subject = self._compile(r"(?P<subject>{my} {rel}(?: {titled})?)(?= )")
        self._bare_verb = self._compile(r"(?:(?P<his>{third}|{be})|{first})(?![\w'])")

    def _compile(self, pattern: str) -> re.Pattern[str]:
        """*pattern* with its parts filled in; of a group that it then has twice only the first keeps its name."""
        while (filled := _PART.sub(lambda found: f"(?:{self._parts[found[1]]})", pattern)) != pattern:
            pattern = filled
        taken: set[str] = set()

        def name_once(found: re.Match[str]) -> str:
            again = found[1] in taken
            taken.add(found[1])
            return "(?:" if again else found[0]

        return re.compile(_NAMED.sub(name_once, pattern), re.IGNORECASE)

    def people(self, sentence: str) -> list[str]:
        return [next(self._fill(["my {rel}"], one)) for one in self._relation.finditer(sentence)]

    def read(self, sentence: str) -> Iterator[str]:
        bare = self._openers.sub("", self._closers.sub("", sentence.strip(" .!")))
        for pattern, meant in self._asides:
            for one in pattern.finditer(bare):
                if not self._doubt.search(one[0]):
                    yield from self._fill(meant, one)
            if not meant[0].startswith("there is"):
                bare = pattern.sub(",", bare)
        for clause in self._split_clauses(bare):
            if self._doubt_on.search(clause):
                return
            if len(clause) > _LONGEST_CLAUSE or self._doubt.search(clause):
                continue
            for pattern, meant in self._clauses:
                if (whole := pattern.fullmatch(clause)) is not None:
                    yield from self._fill(meant, whole)
                    break

    def _split_clauses(self, sentence: str) -> Iterator[str]:
        """The clauses of *sentence*, each with its subject first and its verb behind it."""
        subject = ""
        for piece in self._split.split(sentence):
            clause = self._put_in_order(self._filler.sub("", self._openers.sub("", piece.strip(" .!"))))
            if (begun := self._bare_verb.match(clause)) is not None:
                clause = f"{subject if begun['his'] and subject else self._first} {clause}".lstrip()
            if (named := self._subject.match(clause)) is not None:
                subject = named["subject"]
            if clause:
                yield clause

    def _put_in_order(self, clause: str) -> str:
        if self._inverted is not None and (one := self._inverted.fullmatch(clause)) is not None:
            front, does = one["front"][:1].lower() + one["front"][1:], one.groupdict().get("does")
            if does in _AUXILIARIES:
                return f"{one['who']} {does} {front} {one['rest']}"
            return f"{one['who']} {does} {one['rest']} {front}" if does else f"{one['rest']} {front}"
        if self._last is not None and (one := self._last.fullmatch(clause)) is not None:
            return f"{one['who']} {one['does']} {one['rest']}"
        return clause

    def _fill(self, meant: Sequence[str], one: re.Match[str]) -> Iterator[str]:
        words = {name: self._translate(name, said or "") for name, said in one.groupdict().items()}
        words |= {f"{name}_said": said or "" for name, said in one.groupdict().items()}
        for clause in meant:
            said = _BLANKS.sub(" ", clause.lstrip("=").format_map(words)).strip()
            yield f"{AS_SAID}{said}" if clause.startswith("=") else said

    def _translate(self, group: str, said: str) -> str:
        if group == "name":
            return said if said[:1].isupper() else said.title()
        if group == "all":
            return _AND.sub(" and ", said)
        if group == "pro":
            return _PRONOUNS[said.lower()]
        if group == "age":
            at = next((at for at, (one, _) in enumerate(self._words["num"]) if one.fullmatch(said)), None)
            return said if at is None else str(at + 1)  # the language's numbers stand in order
        return next((meant for one, meant in self._words.get(group, ()) if one.fullmatch(said)), said.strip())


_LANGUAGES = [
    _Language(entry)
    for entry in tomllib.loads((files(__package__) / "foreign.toml").read_text(encoding="utf-8")).values()
]
