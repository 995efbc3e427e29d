"""Remembered words as data: on a single line, visible, without the markup of chat templates and of our own block.

Control tokens are known by their shapes, not by their names: every model family brings new names, in a few old
shapes (`<|...|>`, `<name>`, `[NAME]`, a heading with a colon). Pure; linear in the text.
"""

from __future__ import annotations

import re
import unicodedata

from memory_extproc.text.words import normalize

# --- invisible ---------------------------------------------------------------------------------------
# Unicode's default-ignorable code points (DerivedCoreProperties.txt): shown as nothing, read by models.
_IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Scripts whose letters join, or whose conjuncts a joiner breaks up: Arabic to N'Ko, the scripts of India, Burmese,
# Khmer, Mongolian, Balinese, Javanese, and the letters of old India.
_JOINING = (
    "\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u17ff\u1820-\u18af\u1b00-\u1b7f\ua980-\ua9df\ufb50-\ufdff"
    "\ufe70-\ufefc\U00011000-\U00011fff"
)
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_NATIONS = "|".join(  # England, Scotland, Wales: the only flags that tag characters spell (Unicode RGI set)
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(sign)) for sign in nation) + "\U000e007f"
    for nation in ("gbeng", "gbsct", "gbwls")
)
_INVISIBLE = re.compile(
    rf"(?P<kept>{_NATIONS}"
    rf"|(?<=[{_JOINING}])[\u200c\u200d](?=[{_JOINING}])"
    rf"|(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])"
    rf"|(?<=[{_EMOJI}])[\ufe0e\ufe0f](?![\ufe00-\ufe0f])|(?<=[0-9#*])\ufe0f(?=\u20e3))"
    rf"|[{_IGNORABLE}]"
)


def drop_invisible(text: str) -> str:
    """*text* without invisible characters. Some shape visible text and stay: joiners between letters that join and
    between emoji, and the selectors of an emoji's form."""
    return text if text.isascii() else _INVISIBLE.sub(lambda found: found["kept"] or "", text)


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    category = unicodedata.category(char)
    if category in {"Cc", "Zl", "Zp"}:
        return "\n" if char in "\n\r\u0085\u2028\u2029" else " "
    if category == "Zs":
        return " "
    # Characters that drop_invisible left, and emoji that are newer than this Python's Unicode.
    return char if char in "\u200c\u200d" or "\U000e0020" <= char <= "\U000e007f" or _is_new(char) else ""


def _is_new(char: str) -> bool:
    return "\U0001f000" <= char <= "\U0001faff"


# --- markup ------------------------------------------------------------------------------------------
_BARS = "|\u00a6\u01c0\u2223\u2502\u2503\u2758\uff5c\uffe8"
_ANGLE = "<\uff1c\ufe64"
_MARKUP = re.compile(
    rf"""(?x)
      [{_ANGLE}](?=[{_BARS}/!\uff0f{_ANGLE}]|\s?/?\s?(?:
          (?i:memory|(?:system|assistant|user|human|developer|tool|instructions?|think)\b)  # whole or not
        | [^\W\d][\w.:\u2581-]{{0,60}}\s?/?>  # <name>, </name>, <name/>
        | 0x[0-9A-Fa-f]{{2}}>  # a token for one byte
        | [^\W\d][\w.:-]{{0,60}}\s{{1,3}}[\w.:-]{{1,40}}\s?=  # <name key=
      ))
    | (?<=[{_BARS}])[>\uff1e]
    | \[(?=\s?/?\s?(?:[A-Za-z]{{0,9}}[A-Z]{{2}}[A-Z0-9_ ]{{0,40}}\]|(?:INST|SYS)\b
        |(?i:system|user|assistant|human|tool)\s?\]))
    | \[(?=[a-z]{{1,30}}_[0-9]{{1,4}}\])|(?<!\w)\[(?=/?[A-Za-z0-9]{{1,30}}_\w{{1,30}}\])
    | [\[\]](?=[a-z]?~)
    """,
)
_BROKEN = {"<": "\u2039", "\uff1c": "\u2039", "\ufe64": "\u2039", ">": "\u203a", "\uff1e": "\u203a"}
_BROKEN |= {"[": "\u27e6", "]": "\u27e7"}
# A speaker's label, or a heading with a colon, where a line or a sentence may begin; in capitals anywhere.
_LABEL = re.compile(
    r"(?P<before>(?:^|[\n\r.!?:;>\"'])\s?(?:\#{1,6}\s?)?(?:\*\*)?"
    r"(?:system|assistant|developer|human|user|tool|model)"
    r"|(?:^|[\n\r.!?:;>\"'])\s?\#{1,6}\s?(?:\*\*)?[A-Za-z][\w ]{0,40}"
    r"|\b(?-i:SYSTEM|ASSISTANT|DEVELOPER|HUMAN|USER|TOOL))(?P<bold>\*\*)?\s?:",
    re.IGNORECASE,
)
_UNEVEN_SPACES = re.compile(r"\s{2,}|[^\S ]")


def harmless(text: str) -> str:
    """*text* on a single line, without invisible characters, its markup and role labels broken. Angle and square
    brackets of ordinary text stay."""
    plain = text.isascii() and text.isprintable()  # then every character is visible, and has a single form
    visible = text if plain else "".join(map(_visible, normalize("NFC", drop_invisible(text))))
    # Runs of white space first: a label is looked for from each place in them.
    visible = _UNEVEN_SPACES.sub(lambda run: "\n" if "\n" in run[0] else " ", visible)
    if ":" in visible:
        visible = _LABEL.sub(lambda found: f"{found['before']}{found['bold'] or ''} -", visible)
    if not _BROKEN.keys().isdisjoint(visible):
        visible = _MARKUP.sub(lambda found: _BROKEN[found[0]], visible)
    return _UNEVEN_SPACES.sub(" ", visible).strip().replace('"', "'")
