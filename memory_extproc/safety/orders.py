"""Orders to an assistant, found by their structure: each word of a sentence becomes the roles that it may have in
an order (the addressee, a deontic verb, a condition, a standing time, a third party), and sequences of roles are
looked for. The words of a new attack change; the roles hardly do. Pure; linear in the text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

_PARSED = tomllib.loads((files(__package__) / "roles.toml").read_text(encoding="utf-8"))
_WORD = re.compile(
    r"""(?x)(?P<address>https?://\S{1,300}|[\w.+-]{1,64}@[\w.-]{1,64}|\b[\w-]{1,40}\.(?:[\w-]{1,20}\.){0,3}
      (?:com|net|org|io|example|me|xyz|shop|app|dev|co|info)\b(?:/\S{0,200})?)
    |(?P<quoted>["\u201c\u00ab][^"\u201d\u00bb\n]{1,80}["\u201d\u00bb]|\#\#\w{1,20})
    |(?P<word>[^\W\d_][\w'-]{0,30})
    |(?P<joint>[=+])
    |(?P<mark>[,;:.!?()\u2013\u2014])"""
)
_SUBJECTS = frozenset("SUuA")
_OBJECTS = frozenset(_PARSED["words"]["objects"].split())
_NO_VERB = re.compile(r"(?:s|ing|ed|ly|tion|ness|ity)\Z")
_NO_VERBS = frozenset(_PARSED["words"]["no_verbs"].split())
_LEADS = frozenset(_PARSED["words"]["leads"].split())
_LONGEST = 400  # words of a sentence that are read
_MOST_OF_PHRASE = 3


@dataclass(frozen=True, slots=True)
class _Order:
    kind: str
    foreign: bool  # only in words that came from a tool or a document
    own: bool  # also where the person who speaks is in it: a wish of their own is no order about others
    named: bool  # only with a name or an address in it
    shapes: tuple[_Shape, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A sequence of roles. *all* and one of each of *some* must be in a sentence that has it."""

    all: frozenset[str]
    some: tuple[frozenset[str], ...]
    sequence: re.Pattern[str]

    def is_in(self, line: str, roles: frozenset[str]) -> bool:
        return (
            self.all <= roles
            and not any(map(roles.isdisjoint, self.some))
            and self.sequence.search(line) is not None
        )


class OrderGrammar:
    """The roles of words, and the sequences of roles that make an order."""

    def __init__(self, parsed: Mapping[str, Any]) -> None:
        self._roles: dict[str, str] = {}
        self._endings: dict[str, str] = {}
        for role, words in parsed["roles"].items():
            for word in words.split():
                known = self._endings if word.endswith("*") else self._roles
                plain = word.rstrip("*").replace("_", " ")
                known[plain] = known.get(plain, "") + role
        self._beginnings = tuple(self._endings)
        self._starts = frozenset(phrase.partition(" ")[0] for phrase in self._roles if " " in phrase)
        self._orders = [
            _Order(
                order["kind"],
                order.get("of", "anybody") == "foreign",
                order.get("own", False),
                order.get("named", False),
                tuple(map(_shape, order["shapes"])),
            )
            for order in parsed["order"]
        ]

    def kind_of(self, sentence: str, *, foreign: bool) -> str | None:
        """The kind of order that *sentence* gives; None: none."""
        if not foreign and sentence.rstrip().endswith("?"):
            return None
        roles = self._read(sentence)
        line = "".join(f"{one} " for one in roles)
        there = frozenset(line)
        own, named = "S" in there, not there.isdisjoint("WL")
        for order in self._orders:
            if (order.foreign and not foreign) or (own and not order.own and not foreign):
                continue
            if (named or not order.named) and any(shape.is_in(line, there) for shape in order.shapes):
                return order.kind
        return None

    def _read(self, sentence: str) -> list[str]:
        """The roles of each word, in order; "o" for a word that has none."""
        found = [(match.lastgroup or "", match[0]) for match in _words(sentence)]
        roles: list[str] = []
        starts = True  # an order may begin here
        at = 0
        while at < len(found):
            kind, text = found[at]
            size = 1
            if kind == "address":
                roles.append("L")
            elif kind == "quoted":
                roles.append("Q")
            elif kind == "joint":
                roles.append("J")
            elif kind == "mark":
                roles.append(",")
                starts = True
            else:
                word = text.lower()
                size, has = self._roles_of(word, found, at)
                if text[0].isupper() and at and found[at - 1][1] not in ".!?" and not has:
                    has = "W"
                verb = not _SUBJECTS & set(has) and set(has) & set("PXEVKZp")
                following = found[at + size][1].lower() if at + size < len(found) else ""
                unknown = starts and not has and following in _OBJECTS and _is_base(word)
                roles.append(has + ("I" if starts and verb else "") + ("v" if unknown else "") or "o")
                # The subject of the deontic verb is the addressee, or it is no order to them.
                to_them = len(roles) > 1 and bool(set(roles[-2]) & set("YA"))
                starts = word in _LEADS or "T" in has or ("M" in has and to_them)
            at += size
        return roles

    def _roles_of(self, word: str, found: list[tuple[str, str]], at: int) -> tuple[int, str]:
        """How many words it takes, and their roles."""
        has = self._roles.get(word, "")
        if not has and word.startswith(self._beginnings):
            has = next(roles for start, roles in self._endings.items() if word.startswith(start))
        if word in self._starts:
            for size in range(_MOST_OF_PHRASE, 1, -1):
                phrase = " ".join(text.lower() for _, text in found[at : at + size])
                if phrase in self._roles:
                    return size, self._roles[phrase]
        return 1, has


def _is_base(word: str) -> bool:
    return word not in _NO_VERBS and (_NO_VERB.search(word) is None or word.endswith("ss"))


def _words(sentence: str) -> Iterator[re.Match[str]]:
    for number, match in enumerate(_WORD.finditer(sentence)):
        if number >= _LONGEST:
            return
        yield match


_PART = re.compile(r"\{(?P<all>\w+)\}|\[(?P<any>[\w,]+)\]|~(?P<gap>\d+)|(?P<start>\^)|(?P<one>[A-Za-z,])")


def _shape(shape: str) -> _Shape:
    made, every, some = [], set[str](), list[frozenset[str]]()
    for part in _PART.finditer(shape):
        if part["all"]:
            every.update(part["all"])
            made.append("".join(rf"(?=\S{{0,16}}{role})" for role in part["all"]) + r"\S{1,16} ")
        elif part["any"]:
            some.append(frozenset(part["any"]))
            made.append(rf"\S{{0,16}}[{part['any']}]\S{{0,16}} ")
        elif part["gap"]:
            made.append(rf"(?:\S{{1,16}} ){{0,{part['gap']}}}")
        elif part["start"]:
            made.append("^")
        else:
            every.add(part["one"])
            made.append(rf"\S{{0,16}}{part['one']}\S{{0,16}} ")
    return _Shape(frozenset(every), tuple(some), re.compile(r"(?<!\S)" + "".join(made)))


ORDERS = OrderGrammar(_PARSED)
