"""Reads LoCoMo's format (Maharana et al., ACL 2024), the one of its `locomo10.json`.

The two speakers stand in for the caller (`speaker_a`) and the assistant (`speaker_b`). A message is learned as
"Name: words", with the caption of a picture it shows behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from memory_extproc.evaluation.cases import Category, Conversation, DatasetError, Question, Said
from memory_extproc.model import Role

CATEGORIES: Mapping[int, Category] = {
    1: Category.MULTI_HOP,
    2: Category.TEMPORAL,
    3: Category.OPEN_DOMAIN,
    4: Category.SINGLE_HOP,
    5: Category.ADVERSARIAL,
}
BETWEEN = timedelta(seconds=30)  # the data has a time for each session only: messages follow one another
_SESSION = re.compile(r"session_(\d+)")
_TURN_ID = re.compile(r"D:?(\d+):(\d+)")
_TIMES = ("%I:%M %p on %d %B, %Y", "%d %B, %Y", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M")


def conversations(parsed: object, where: str) -> Iterator[Conversation]:
    """One for each sample. DatasetError with the place of what is not as it should be."""
    for at, sample in enumerate(_list(parsed, where)):
        place = f"{where}[{at}]"
        fields = _mapping(sample, place)
        yield _conversation(fields, place)


def _conversation(sample: Mapping[str, Any], where: str) -> Conversation:
    talk = _mapping(sample.get("conversation"), f"{where}.conversation")
    place = f"{where}.conversation"
    speakers = (_text(talk, "speaker_a", place), _text(talk, "speaker_b", place))
    if speakers[0] == speakers[1]:
        raise DatasetError(f"{place}: speaker_a and speaker_b have one name")
    said: list[Said] = []
    for number in sorted(int(found[1]) for key in talk if (found := _SESSION.fullmatch(key))):
        key = f"session_{number}"
        begins = _time(talk.get(f"{key}_date_time"), f"{place}.{key}_date_time")
        turns = _list(talk[key], f"{place}.{key}")
        said += [
            _said(
                _mapping(turn, f"{place}.{key}[{at}]"), f"{place}.{key}[{at}]", speakers, key, begins + at * BETWEEN
            )
            for at, turn in enumerate(turns)
        ]
    if not said:
        raise DatasetError(f"{place}: has no session_1, session_2, … with messages")
    known = frozenset(one.id for one in said)
    questions: list[Question] = []
    skipped = 0
    for at, qa in enumerate(_list(sample.get("qa"), f"{where}.qa")):
        question, missing = _question(_mapping(qa, f"{where}.qa[{at}]"), f"{where}.qa[{at}]", str(at), known)
        questions.append(question)
        skipped += missing
    name = _text(sample, "sample_id", where)
    return Conversation(name, tuple(said), tuple(questions), speakers=speakers, skipped=skipped)


def _said(turn: Mapping[str, Any], where: str, speakers: tuple[str, str], session: str, at: datetime) -> Said:
    speaker, text = _text(turn, "speaker", where), turn.get("text")
    if speaker not in speakers:
        raise DatasetError(f"{where}.speaker: is neither speaker_a nor speaker_b")
    if not isinstance(text, str):
        raise DatasetError(f"{where}.text: expected a text, found {_kind(text)}")
    caption = turn.get("blip_caption", "")
    if not isinstance(caption, str):
        raise DatasetError(f"{where}.blip_caption: expected a text, found {_kind(caption)}")
    shown = f"{text} [picture: {caption}]" if caption else text
    role = Role.USER if speaker == speakers[0] else Role.ASSISTANT
    return Said(_text(turn, "dia_id", where), role, f"{speaker}: {shown.strip()}", session, at)


def _question(qa: Mapping[str, Any], where: str, id_: str, known: frozenset[str]) -> tuple[Question, int]:
    """The question, and how many pieces of its evidence name no message."""
    number = qa.get("category")
    if not isinstance(number, int) or isinstance(number, bool) or number not in CATEGORIES:
        raise DatasetError(
            f"{where}.category: expected 1 to 5, found {number if isinstance(number, int) else _kind(number)}"
        )
    evidence: list[str] = []
    for at, one in enumerate(_list(qa.get("evidence", []), f"{where}.evidence")):
        if not isinstance(one, str):
            raise DatasetError(f"{where}.evidence[{at}]: expected a text, found {_kind(one)}")
        # Published as people wrote it down: "D8:6; D9:17", "D1:18 D1:20", "D:11:26", "D30:05", a lone "D".
        evidence += [f"D{int(session)}:{int(turn)}" for session, turn in _TURN_ID.findall(one)] or [one]
    relevant = frozenset(evidence) & known
    missing = len(frozenset(evidence) - known)
    return Question(id_, _text(qa, "question", where), relevant, CATEGORIES[number].value), missing


def _time(value: object, where: str) -> datetime:
    if isinstance(value, str):
        for form in _TIMES:
            try:
                parsed = datetime.strptime(" ".join(value.split()), form)  # noqa: DTZ007 - the data names no zone
            except ValueError:
                continue
            return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        raise DatasetError(f'{where}: expected a time such as "1:56 pm on 8 May, 2023"')
    raise DatasetError(f"{where}: expected a time, found {_kind(value)}")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DatasetError(f"{where}: expected an object, found {_kind(value)}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DatasetError(f"{where}: expected a list, found {_kind(value)}")
    return value


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DatasetError(
            f"{where}.{key}: expected a text, found {'an empty one' if value == '' else _kind(value)}"
        )
    return value.strip()


def _kind(value: object) -> str:
    """The kind of *value* in JSON's words; never the value, which may be a person's words."""
    names: Mapping[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "a truth value"}
    if value is None:
        return "nothing"
    return names.get(type(value), "a number")
