"""JSON as clients may write it: bodies as text with free whitespace, escapes, odd numbers, duplicate keys.

A body is drawn as its source text, never by a serialiser, so that what a serialiser would smooth out is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

OURS = ("memory_config", "memory_context", "auto_store")
BLOCK = 'Memories:\n- "User\'s budget" is \\$10,000 🌺\t\x01'

spaces = st.sampled_from(["", "", "", " ", "\n", "\t", "\r\n  "])
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['say "hi" \\ }], {[', "é漢🌺", "\\u0041", "\x00\x1f\x7f"]
)
NUMBERS = ["0", "-0", "1.0", "1e5", "-12.50E+3", "123456789012345678901234567890", "9007199254740993", "1E-7"]


@st.composite
def literals(draw: st.DrawFn, text: str) -> str:
    r"""*text* as a JSON string: plain, with \u escapes, or with every UTF-16 unit escaped."""
    match draw(st.integers(0, 2)):
        case 0:
            return json.dumps(text, ensure_ascii=False)
        case 1:
            return json.dumps(text)
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)) + '"'


@st.composite
def objects(draw: st.DrawFn, members: list[tuple[str, str]]) -> str:
    """An object of these members, each a name and the text of its value; names may be escaped."""
    gap = draw(spaces)
    inner = ",".join(f"{gap}{draw(literals(name))}{gap}:{gap}{value}{gap}" for name, value in members)
    return "{" + (inner or gap) + "}"


@st.composite
def arrays(draw: st.DrawFn, elements: list[str]) -> str:
    gap = draw(spaces)
    return "[" + (",".join(f"{gap}{element}{gap}" for element in elements) or gap) + "]"


scalars = st.sampled_from([*NUMBERS, "true", "false", "null", r'"\ud83d alone"']) | words.flatmap(literals)
values: st.SearchStrategy[str] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).flatmap(arrays) | st.lists(st.tuples(words, inner), max_size=3).flatmap(objects)
    ),
    max_leaves=4,
)
unknown = st.lists(st.tuples(st.sampled_from(["temperature", "x", "metadata", "", "stop"]), values), max_size=2)


@dataclass(frozen=True)
class Body:
    """A chat body: its bytes, the caller's last words, and where they stand among the messages."""

    text: bytes
    asked: str
    at: int
    parts: bool  # the content is a list
    has_ours: bool


@st.composite
def contents(draw: st.DrawFn, text: str, kind: str, *, parts: bool) -> str:
    if not parts:
        return draw(literals(text))
    part = [("type", f'"{kind}"'), ("text", draw(literals(text))), *draw(unknown)]
    picture = draw(objects([("type", '"picture"'), *draw(unknown)]))
    return draw(arrays([draw(objects(part)), *([picture] if draw(st.booleans()) else [])]))


@st.composite
def messages(draw: st.DrawFn, role: str, text: str, kind: str, *, parts: bool) -> str:
    own = [("role", draw(literals(role))), ("content", draw(contents(text, kind, parts=parts)))]
    if draw(st.booleans()):  # an earlier duplicate that does not count
        own.insert(0, ("content", draw(values)))
    return draw(objects([*draw(unknown), *own, *draw(unknown)]))


@st.composite
def bodies(draw: st.DrawFn, field: str, kind: str) -> Body:
    """A body whose conversation stands at *field*, with our own fields here and there."""
    asked = draw(words)
    parts = draw(st.booleans())
    before = draw(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), words), max_size=2))
    talk = [draw(messages(role, text, kind, parts=draw(st.booleans()))) for role, text in before]
    talk.append(draw(messages("user", asked, kind, parts=parts)))
    talk += [draw(messages("assistant", "prefill", kind, parts=False))] if draw(st.booleans()) else []
    members = [("model", '"m"'), *draw(unknown), *((field, draw(values)) for _ in range(draw(st.integers(0, 1))))]
    members += [(field, draw(arrays(talk))), *draw(unknown)]
    ours = draw(st.lists(st.sampled_from(OURS), max_size=4))
    for name in ours:
        value = "false" if name == "auto_store" else draw(st.sampled_from(["{}", "null", '{"enabled": true}']))
        value = value if name != "memory_context" else draw(st.sampled_from(["{}", '{ "project_id":"p" }']))
        members.insert(draw(st.integers(0, len(members))), (name, value))
    mark = draw(st.sampled_from(["", "\ufeff"]))
    text = mark + draw(spaces) + draw(objects(members)) + draw(spaces)
    return Body(text.encode(), asked, len(before), parts, bool(ours))


Tree = Any


def tree(body: bytes) -> Tree:
    """The body as nested lists of pairs: duplicates, order and the text of every number are kept."""
    return json.loads(
        body.decode("utf-8-sig"), object_pairs_hook=lambda pairs: ("object", pairs), parse_int=str, parse_float=str
    )
