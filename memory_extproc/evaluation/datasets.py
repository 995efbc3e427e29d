"""A data set in any format: conversations, notes, and questions with the ids of their answers."""

from __future__ import annotations

import lzma
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from memory_extproc.errors import PermanentError
from memory_extproc.model import Role


class DatasetError(PermanentError):
    """A malformed data set; the message names the place, never its words."""


class QuestionCategory(StrEnum):
    """Kinds of question: LoCoMo's five, and further kinds of our own sets."""

    MULTI_HOP = "multi-hop"
    TEMPORAL = "temporal"
    OPEN_DOMAIN = "open-domain"
    SINGLE_HOP = "single-hop"
    ADVERSARIAL = "adversarial"
    UNNAMED = ""


# The questions of the headline figures; an adversarial question has no answer.
ANSWERABLE = frozenset({"multi-hop", "temporal", "open-domain", "single-hop"})


@dataclass(frozen=True, slots=True)
class SaidMessage:
    """A message: *id* as the data set names it (LoCoMo: the dia_id), *text* as it is to be learned."""

    id: str
    role: Role  # user or assistant
    text: str = field(repr=False)
    session: str
    at: datetime


@dataclass(frozen=True, slots=True)
class NotedMemory:
    """A memory outside any conversation, stored unchanged. *replaces*: id of the memory that it supersedes."""

    id: str
    text: str = field(repr=False)
    at: datetime
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """*relevant*: ids of the answers; empty if there is none. *unwanted*: ids that must not be injected.
    *earlier*: the user's previous messages."""

    id: str
    text: str = field(repr=False)
    relevant: frozenset[str]
    category: str = ""
    earlier: tuple[str, ...] = field(default=(), repr=False)
    unwanted: frozenset[str] = frozenset()

    @property
    def counts(self) -> bool:
        """Whether recall is measured by it: it has evidence, and is not of a kind that has no answer."""
        return bool(self.relevant) and self.category != QuestionCategory.ADVERSARIAL


@dataclass(frozen=True, slots=True)
class EvaluationCase:
    """An owner's memories and the questions about them. *said* is in the order of time."""

    name: str
    said: tuple[SaidMessage, ...]
    questions: tuple[Question, ...]
    noted: tuple[NotedMemory, ...] = ()
    speakers: tuple[str, ...] = ()  # names that stand before the messages, if any do
    skipped: int = 0  # pieces of evidence that name nothing there is
    asked_at: datetime | None = None  # when its questions are put; None: a day after the last word

    @property
    def ids(self) -> list[str]:
        """Ids of all messages and notes."""
        return [*(one.id for one in self.said), *(one.id for one in self.noted)]

    @property
    def ends(self) -> datetime:
        """When the last of it was said."""
        return max([*(one.at for one in self.said), *(one.at for one in self.noted)])


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    conversations: tuple[EvaluationCase, ...]

    @property
    def questions(self) -> int:
        return sum(len(one.questions) for one in self.conversations)


def check(conversations: Sequence[EvaluationCase], where: str) -> None:
    """DatasetError if there is nothing to measure, or a name is used twice."""
    if not conversations:
        raise DatasetError(f"{where}: holds no conversation")
    names: set[str] = set()
    for one in conversations:
        if one.name in names:
            raise DatasetError(f"{where}: there are two conversations named {one.name!r}")
        names.add(one.name)
        ids = one.ids
        if twice := [id_ for id_, count in Counter(ids).items() if count > 1]:
            raise DatasetError(f"{where}: {one.name}: the id {twice[0]!r} stands for two memories")
        if not ids:
            raise DatasetError(f"{where}: {one.name}: holds nothing to remember")
    if not any(one.questions for one in conversations):
        raise DatasetError(f"{where}: asks no question")


# Read a file as a data set: LoCoMo's or LongMemEval's JSON, our JSON lines, or a directory of cases; the content
# decides the format.

LARGEST = 1 << 30  # bytes; LoCoMo whole has 3 MB


def read_datasets(paths: Sequence[Path]) -> Dataset:
    """Join several sets; a conversation name in several files is prefixed with its file's name."""
    read = [read_dataset(path) for path in paths]
    taken = Counter(one.name for dataset in read for one in dataset.conversations)
    found = tuple(
        replace(one, name=f"{dataset.name}:{one.name}") if taken[one.name] > 1 else one
        for dataset in read
        for one in dataset.conversations
    )
    name = ", ".join(dataset.name for dataset in read)
    check(found, name)
    return Dataset(name, found)


def thin_out(dataset: Dataset, most: int) -> Dataset:
    """Keep about *most* of the questions, spread evenly over each conversation. Deterministic."""
    every = -(-dataset.questions // most)
    some = [
        replace(one, questions=one.questions[at % every :: every]) for at, one in enumerate(dataset.conversations)
    ]
    return replace(dataset, conversations=tuple(some))


def packaged_sets() -> tuple[Path, ...]:
    """The packaged data sets, about invented people."""
    return tuple(sorted((Path(__file__).parent / "sets").glob("*.jsonl.xz")))


def _unpack(packed: bytes) -> bytes:
    found = lzma.LZMADecompressor().decompress(packed, LARGEST + 1)
    if len(found) > LARGEST:
        raise lzma.LZMAError
    return found


def read_dataset(path: Path) -> Dataset:
    """DatasetError for an unreadable file or unknown format; it names the place within the file."""
    if path.is_dir():
        found = conversations_of_cases(path)
        check(found, path.name)
        return Dataset(path.name, tuple(found))
    try:
        if path.stat().st_size > LARGEST:
            raise DatasetError(f"{path}: is larger than {LARGEST >> 30} GiB")
        packed = path.read_bytes()
        raw = (_unpack(packed) if path.suffix == ".xz" else packed).removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    except lzma.LZMAError as error:
        raise DatasetError(f"{path}: is damaged, or no file of xz") from error
    beginning = raw.lstrip()[:1]
    if not beginning:
        raise DatasetError(f"{path}: is empty")
    if beginning == b"[":
        try:
            parsed = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DatasetError(f"{path}: is not JSON: {error}") from error
        found = conversations_of_list(parsed, path.name)
    elif beginning == b"{":
        found = conversations_of_lines(raw.splitlines(), path.name)
    else:
        raise DatasetError(
            f"{path}: is neither a JSON list (LoCoMo, LongMemEval) nor JSON lines (an object a line)"
        )
    check(found, path.name)
    return Dataset(path.name, tuple(found))


# Our own format: one JSON object a line, for small sets written by hand or by a script.
#
#     {"memory": "m1", "owner": "ann", "text": "User's budget for Hawaii is $10,000", "at": "2026-03-02T09:00:00Z"}
#     {"memory": "m2", "owner": "ann", "text": "My dog is called Rex.", "at": …, "session": "s1", "role": "user"}
#     {"memory": "m3", "owner": "ann", "text": "User's budget for Hawaii is $12,000", "at": …, "replaces": "m1"}
#     {"query": "What's my budget?", "owner": "ann", "relevant": ["m3"], "category": "update"}
#
# A memory with a *session* and a *role* is a message of a conversation, learned as one; without, it is a note,
# put in as it is. For a query with an empty *relevant* nothing must be injected. Owners may come in
# any order; messages of one session follow one another as the lines do.

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Words = Annotated[str, msgspec.Meta(min_length=1)]
_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT}


class _Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory: _Name
    owner: _Name
    text: _Words
    at: datetime
    session: str = ""
    role: str = ""
    replaces: str = ""


class _Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    owner: _Name
    relevant: tuple[_Name, ...]
    category: str = ""
    earlier: tuple[str, ...] = ()
    unwanted: tuple[_Name, ...] = ()


@dataclass(slots=True)
class _Gathered:
    said: list[SaidMessage] = field(default_factory=list)
    noted: list[NotedMemory] = field(default_factory=list)
    questions: list[tuple[str, Question]] = field(default_factory=list)  # each with its place


def conversations_of_lines(lines: Iterable[bytes], where: str) -> list[EvaluationCase]:
    """One for each owner, in the order of their first lines. DatasetError names the line."""
    owners: dict[str, _Gathered] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            _take(line, f"{where}, line {number}", number, owners)
    return [_conversation_of_lines(name, gathered) for name, gathered in owners.items()]


def _take(line: bytes, place: str, number: int, owners: dict[str, _Gathered]) -> None:
    parsed = _decode_line(line, place)
    gathered = owners.setdefault(parsed.owner, _Gathered())
    if isinstance(parsed, _Query):
        relevant, unwanted = frozenset(parsed.relevant), frozenset(parsed.unwanted)
        question = Question(str(number), parsed.query, relevant, parsed.category, parsed.earlier, unwanted)
        gathered.questions.append((place, question))
        return
    at = parsed.at.astimezone(UTC) if parsed.at.tzinfo else parsed.at.replace(tzinfo=UTC)
    if bool(parsed.session) != bool(parsed.role):
        raise DatasetError(f"{place}: a message has both a session and a role, a note has neither")
    if not parsed.role:
        gathered.noted.append(NotedMemory(parsed.memory, parsed.text, at, parsed.replaces))
        return
    if parsed.role not in _ROLES:
        raise DatasetError(f"{place}: role: expected user or assistant")
    if parsed.replaces:
        raise DatasetError(f"{place}: replaces: a message replaces nothing, only a note does")
    gathered.said.append(SaidMessage(parsed.memory, _ROLES[parsed.role], parsed.text, parsed.session, at))


def _decode_line(line: bytes, place: str) -> _Memory | _Query:
    try:
        keys = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys()
        if ("memory" in keys) == ("query" in keys):
            raise DatasetError(f'{place}: expected either "memory" or "query"')
        if "query" in keys:
            return msgspec.json.decode(line, type=_Query)
        return msgspec.json.decode(line, type=_Memory)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        # msgspec names path and kind, never the value.
        raise DatasetError(f"{place}: {error}") from error


def _conversation_of_lines(name: str, gathered: _Gathered) -> EvaluationCase:
    notes = {one.id for one in gathered.noted}
    known = notes | {one.id for one in gathered.said}
    for note in gathered.noted:
        if note.replaces and (note.replaces not in notes or note.replaces == note.id):
            raise DatasetError(
                f"{name}: {note.id!r} replaces {note.replaces!r}, which is no other note of this owner"
            )
    for place, question in gathered.questions:
        for key, ids in (("relevant", question.relevant), ("unwanted", question.unwanted)):
            if unknown := sorted(ids - known):
                raise DatasetError(f"{place}: {key}: there is no memory {unknown[0]!r} of {name!r}")
    ordered = sorted(gathered.said, key=lambda one: one.at)  # stable: lines with equal times keep their order
    return EvaluationCase(
        name, tuple(ordered), tuple(question for _, question in gathered.questions), noted=tuple(gathered.noted)
    )


# Data sets as others publish them.

BETWEEN = timedelta(seconds=30)  # the data has times for sessions only; messages get this distance


def conversations_of_list(parsed: object, where: str) -> list[EvaluationCase]:
    """Conversations of a JSON list; the keys of its first sample tell LongMemEval from LoCoMo."""
    samples = [_mapping(sample, f"{where}[{at}]") for at, sample in enumerate(_list(parsed, where))]
    if samples and "haystack_sessions" in samples[0]:
        return [_conversation_of_haystack(sample, f"{where}[{at}]") for at, sample in enumerate(samples)]
    return [_conversation_of_locomo(sample, f"{where}[{at}]") for at, sample in enumerate(samples)]


# Wu et al., ICLR 2025: each question has its own history, sessions of a user and an assistant. Evidence is the
# turns marked `has_answer`, or else the user's messages in the named sessions. A question whose id ends with "_abs"
# has no answer.

_ABSTAINS = "_abs"
_A_DATE = "2023/05/20 (Sat) 02:21"
_DATES = ("%Y/%m/%d (%a) %H:%M", "%Y/%m/%d %H:%M", "%Y/%m/%d")


def _conversation_of_haystack(sample: Mapping[str, Any], where: str) -> EvaluationCase:
    sessions = _list(sample.get("haystack_sessions"), f"{where}.haystack_sessions")
    names = _list(sample.get("haystack_session_ids", list(range(len(sessions)))), f"{where}.haystack_session_ids")
    dates = _list(sample.get("haystack_dates"), f"{where}.haystack_dates")
    for key, values in (("haystack_session_ids", names), ("haystack_dates", dates)):
        if len(values) != len(sessions):
            raise DatasetError(f"{where}.{key}: expected {len(sessions)}, one a session, found {len(values)}")
    answers = {str(one) for one in _list(sample.get("answer_session_ids", []), f"{where}.answer_session_ids")}
    said: list[SaidMessage] = []
    marked, spoken = set[str](), set[str]()
    for at, (name, date, turns) in enumerate(zip(names, dates, sessions, strict=True)):
        place = f"{where}.haystack_sessions[{at}]"
        begins = _time_of(date, f"{where}.haystack_dates[{at}]", _DATES, _A_DATE)
        for number, turn in enumerate(_list(turns, place)):
            one = _turn(_mapping(turn, f"{place}[{number}]"), f"{place}[{number}]", f"{at}:{name}", number, begins)
            if one is None:
                continue
            said.append(one)
            if turn.get("has_answer"):
                marked.add(one.id)
            if str(name) in answers and one.role is Role.USER:
                spoken.add(one.id)
    id_ = _text(sample, "question_id", where)
    relevant = frozenset() if id_.endswith(_ABSTAINS) else frozenset(marked or spoken)
    kind = sample.get("question_type")
    question = Question(id_, _text(sample, "question", where), relevant, kind if isinstance(kind, str) else "")
    asked = sample.get("question_date")
    return EvaluationCase(
        id_,
        tuple(sorted(said, key=lambda one: one.at)),
        (question,),
        skipped=len(answers - {str(name) for name in names}),
        asked_at=None if asked is None else _time_of(asked, f"{where}.question_date", _DATES, _A_DATE),
    )


def _turn(turn: Mapping[str, Any], where: str, session: str, number: int, begins: datetime) -> SaidMessage | None:
    """The message of *turn*; None for a turn without words."""
    role, text = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise DatasetError(f"{where}.role: expected user or assistant")
    if not isinstance(text, str):
        raise DatasetError(f"{where}.content: expected a text, found {_kind(text)}")
    if not text.strip():
        return None
    return SaidMessage(f"{session}:{number}", _ROLES[role], text.strip(), session, begins + number * BETWEEN)


# A file per case: memories, a query, and the memories that must or must not be injected for it.


class _Case(msgspec.Struct, frozen=True):
    query: str
    memories: dict[str, str]  # id → text
    must: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()
    category: str = ""
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


def conversations_of_cases(directory: Path) -> list[EvaluationCase]:
    """A conversation per `*.json` below *directory*, by name. DatasetError names the file."""
    return [_conversation_of_case(path, directory) for path in sorted(directory.rglob("*.json"))]


def _conversation_of_case(path: Path, directory: Path) -> EvaluationCase:
    where = str(path.relative_to(directory))
    try:
        case = msgspec.json.decode(path.read_bytes(), type=_Case)
    except OSError as error:
        raise DatasetError(f"{where}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DatasetError(f"{where}: {error}") from error
    for key, ids in (("must", case.must), ("must_not", case.must_not)):
        if unknown := sorted(set(ids) - case.memories.keys()):
            raise DatasetError(f"{where}: {key}: there is no memory {unknown[0]!r}")
    question = Question("1", case.query, frozenset(case.must), case.category, unwanted=frozenset(case.must_not))
    at = case.at if case.at.tzinfo else case.at.replace(tzinfo=UTC)
    noted = tuple(NotedMemory(id_, text, at) for id_, text in case.memories.items() if text.strip())
    return EvaluationCase(where, (), (question,), noted=noted)


# LoCoMo's format (Maharana et al., ACL 2024), as in `locomo10.json`. The two speakers act as the caller
# (`speaker_a`) and the assistant (`speaker_b`). A message is learned as "Name: words", followed by the caption of
# its picture.

CATEGORIES: Mapping[int, QuestionCategory] = {
    1: QuestionCategory.MULTI_HOP,
    2: QuestionCategory.TEMPORAL,
    3: QuestionCategory.OPEN_DOMAIN,
    4: QuestionCategory.SINGLE_HOP,
    5: QuestionCategory.ADVERSARIAL,
}
_SESSION = re.compile(r"session_(\d+)")
_TURN_ID = re.compile(r"D:?(\d+):(\d+)")
_A_TIME = "1:56 pm on 8 May, 2023"
_TIMES = ("%I:%M %p on %d %B, %Y", "%d %B, %Y", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M")


def _conversation_of_locomo(sample: Mapping[str, Any], where: str) -> EvaluationCase:
    talk = _mapping(sample.get("conversation"), f"{where}.conversation")
    place = f"{where}.conversation"
    speakers = (_text(talk, "speaker_a", place), _text(talk, "speaker_b", place))
    if speakers[0] == speakers[1]:
        raise DatasetError(f"{place}: speaker_a and speaker_b have one name")
    said: list[SaidMessage] = []
    for number in sorted(int(found[1]) for key in talk if (found := _SESSION.fullmatch(key))):
        key = f"session_{number}"
        begins = _time_of(talk.get(f"{key}_date_time"), f"{place}.{key}_date_time", _TIMES, _A_TIME)
        turns = _list(talk[key], f"{place}.{key}")
        said += [
            _read_turn(
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
    return EvaluationCase(name, tuple(said), tuple(questions), speakers=speakers, skipped=skipped)


def _read_turn(
    turn: Mapping[str, Any], where: str, speakers: tuple[str, str], session: str, at: datetime
) -> SaidMessage:
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
    return SaidMessage(_text(turn, "dia_id", where), role, f"{speaker}: {shown.strip()}", session, at)


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


def _time_of(value: object, where: str, forms: Sequence[str], example: str) -> datetime:
    """In UTC where it names no zone."""
    if isinstance(value, str):
        for form in forms:
            try:
                parsed = datetime.strptime(" ".join(value.split()), form)  # noqa: DTZ007 - the data names no zone
            except ValueError:
                continue
            return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
        raise DatasetError(f'{where}: expected a time such as "{example}"')
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


# Unanswerable questions: a conversation's questions put to the memories of another person. The names of the
# speakers are taken out, so that a name alone does not tell whether a memory can help.


class Names(StrEnum):
    """The replacement for a speaker's name."""

    FIRST_PERSON = "first-person"  # "What is my budget?", "When did I go?"
    NEUTRAL = "neutral"  # names unknown to both conversations
    SWAPPED = "swapped"  # the names of the people asked: the hardest
    KEPT = "kept"  # as it stands: the easiest, a name gives it away


NEUTRAL = ("Alex", "Robin")
_FIRST_PERSON = {"is": "am", "has": "have", "does": "do"}
_SHORTEST_SHORT_FORM = 3


def reword(text: str, speakers: Sequence[str], names: Names, others: Sequence[str] = ()) -> str:
    """*text* with each of *speakers* (also by a short form, "Kat" for "Katrin") put differently."""
    if names is Names.KEPT:
        return text
    both = all(_mentions(text, speaker) for speaker in speakers)
    for at, speaker in enumerate(speakers):
        if names is Names.FIRST_PERSON:
            # With both speakers in a question, the first asks and the second is a friend.
            text = _replace_name(text, speaker, "my friend") if both and at else _first_person(text, speaker)
        else:
            instead = (NEUTRAL if names is Names.NEUTRAL else others)[at : at + 1]
            text = _replace_name(text, speaker, instead[0] if instead else NEUTRAL[at % len(NEUTRAL)])
    return text


def foreign(conversations: Sequence[EvaluationCase]) -> list[tuple[EvaluationCase, EvaluationCase, Question]]:
    """(whose question, whose memories, the question): each question once, of the other conversations in turn.
    Only between conversations of named people: notes of several owners may answer the same question."""
    named = [one for one in conversations if one.speakers]
    pairs = []
    others = len(named) - 1
    for at, home in enumerate(named):
        for number, question in enumerate(home.questions if others > 0 else ()):
            pairs.append((home, named[(at + 1 + number % others) % len(named)], question))
    return pairs


def _pattern(speaker: str) -> str:
    """The name, or its beginning as people shorten it: at least three letters, capital first."""
    whole = re.escape(speaker)
    short = [re.escape(speaker[:length]) for length in range(len(speaker) - 1, _SHORTEST_SHORT_FORM - 1, -1)]
    return rf"\b(?:{'|'.join([whole, *short])})\b"


def _mentions(text: str, speaker: str) -> bool:
    return re.search(_pattern(speaker), text) is not None


def _replace_name(text: str, speaker: str, instead: str) -> str:
    return re.sub(_pattern(speaker), lambda _: instead, text)


# After these a name stands as an object, where the first person is "me".
_BEFORE_OBJECT = (
    "to|for|with|from|by|of|about|at|on|like|than|make|makes|made|help|helps|helped|give|gives|gave|tell|told|"
    "inspire|inspires|inspired|remind|reminds|reminded"
)


def _first_person(text: str, speaker: str) -> str:
    name = _pattern(speaker)
    text = re.sub(rf"{name}['\u2019]s?(?=\W|$)", "my", text)
    text = re.sub(
        rf"\b(is|has|does)\s+{name}", lambda m: f"{_first_person_form(m[1])} I", text, flags=re.IGNORECASE
    )
    text = re.sub(rf"{name}\s+(is|has|does)\b", lambda m: f"I {_first_person_form(m[1])}", text)
    text = re.sub(rf"\b({_BEFORE_OBJECT})\s+{name}", r"\1 me", text)
    return re.sub(name, "I", text)


def _first_person_form(auxiliary: str) -> str:
    """The form of the first person, with the capital of the third."""
    first = _FIRST_PERSON[auxiliary.lower()]
    return first.capitalize() if auxiliary[0].isupper() else first
