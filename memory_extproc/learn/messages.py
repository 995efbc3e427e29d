"""The messages of a turn: which become memories, their chunks and ids, and their rows for the store."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import NamedTuple

from memory_extproc.concurrency import HELPER_THREAD, HelperThread
from memory_extproc.model import (
    Embedded,
    Memory,
    MemoryState,
    MemoryType,
    Owner,
    Provenance,
    Role,
    Source,
    Trust,
    Turn,
    cut,
    format_origin,
    message_id_of,
    message_ids,
)
from memory_extproc.ports import EmbeddingModel, JournalEntry, MemoryWriter, Now
from memory_extproc.safety.policy import says_more_than_masks
from memory_extproc.text import lazy_re as re
from memory_extproc.text.intents import acknowledgement, echoes, only_asks, polite, refusal
from memory_extproc.text.words import sentence_ends, words_hash

# Chunks: a long message split along its structure, so that each fits an embedding model's window. Pure.
#
# A model reads some 256 tokens, and the rest of a longer text cannot be found. Preferred places to split are
# headings, then code blocks, paragraphs, list items, lines and sentences; between words otherwise, inside a word
# only if the word alone exceeds a chunk, and never inside a grapheme cluster.

CONTENT_BYTES = 8192  # of UTF-8: the length of the store's content field
PIECE_TOKENS = 200  # below the 256 of the smallest usual window, and enough for a thought


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    tokens: int = PIECE_TOKENS  # per chunk, as `weigh` estimates them
    bytes: int = CONTENT_BYTES  # per chunk, in UTF-8
    pieces: int = 32  # per turn: embedding them takes some 1.2 s of a core; the rest is dropped


@dataclass(frozen=True, slots=True)
class Chunker:
    """*texts* in the order of the message; *whole*: nothing but blanks was left out."""

    texts: tuple[str, ...]
    whole: bool


class _Break(IntEnum):
    """The kinds of boundary, best last."""

    WRAP = 1  # between two lines of one sentence
    SENTENCE = 2
    LINE = 3
    ITEM = 4
    PARAGRAPH = 5
    BLOCK = 6  # between code and text
    HEADING = 7


class _Place(NamedTuple):
    kind: _Break
    at: int


# How full a piece must be to end at such a place.
_FILLED = {
    _Break.HEADING: 0.2,
    _Break.BLOCK: 0.25,
    _Break.PARAGRAPH: 0.4,
    _Break.ITEM: 0.5,
    _Break.LINE: 0.5,
    _Break.SENTENCE: 0.5,
    _Break.WRAP: 0.5,
}
_TAIL = 0.25  # of a piece: so small a rest is not left alone, the last two pieces share
_SHARED = 0.6  # of the two goes into the first
_CHARACTERS_PER_TOKEN = 12  # looked at for each; where there are fewer tokens than that there are mostly blanks
_BYTES_PER_CHARACTER = 4  # at most
# Shares of the chunks of an overlong text that are taken from its end and from its middle.
_AT_END, _BETWEEN = 0.25, 0.125
_READ_BETWEEN = 1 << 18  # characters
_LONGEST_LINE = 2_000  # characters
_LEFT_OUT = "\n\n"
_BEYOND = 8_192  # characters; the longest secret of a known shape has as many
_OF_ONESELF = re.compile(
    r"\b(?:I|I'm|I've|I'd|I'll|[Mm]y|[Mm]yself|[Ii]ch|[Mm]ein|[Mm]eine[mnrs]?|[Jj]e|[Mm]on|[Mm]es|[Mm]i|[Mm]is|[Yy]o)\s+\w{2}"
    r"|\b[Jj]'[a-z]|\u6211|\u79c1|\u50d5"
)
_AHEAD = 200  # characters of a line read to classify it
_LONGEST_CLUSTER = 32  # characters in one grapheme cluster

_LATIN = "A-Za-z\u00c0-\u024f\u1e00-\u1eff"
# Ideographs, kana and pictures: scripts in which every character may be a word. Hangul has spaces.
_UNSPACED = "\u2e80-\ua4cf\uf900-\ufaff\ufe30-\uffef\U0001f000-\U0003ffff"
_TOKEN = re.compile(
    rf"(\s+)|([{_LATIN}]{{1,40}})|([0-9]{{1,40}})|([\uac00-\ud7a3]{{1,40}})"
    rf"|[{_UNSPACED}]|[^\W_]{{1,40}}|.",
    re.DOTALL,
)
_BLANK, _WORD, _NUMBER, _HANGUL = 1, 2, 3, 4  # groups of it
_NO_WORD = 24  # letters; no vocabulary has words so long
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_NOT_FIRST = "\u3001\u3002\uff0c\uff0e\uff01\uff1f\uff09\u300d\u300f\u3011\u300b\u2026\u30fc"  # of a line
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BLANKS = re.compile(r"\s*")
_FENCE = re.compile(r"^[ \t]*(?:```[^`\n]*|~~~[^\n]*)$", re.MULTILINE)
_HEADING = re.compile(r"[ ]{0,3}#{1,6}\s|[^\W\d_].{0,80}\n[ ]{0,3}(?:={3,}|-{3,})[ \t]*(?:\n|\Z)")
_ITEM = re.compile(r"[ \t]*(?:[-*+\u2022\u2013]|\(?\w{1,3}[.)])[ \t]")


def weigh(text: str) -> int:
    """Estimated tokens of *text* in an embedding model's vocabulary. Errs upwards, because such a vocabulary is
    small: digits count by pairs, signs and non-Latin letters singly."""
    return sum(map(_weight, _TOKEN.finditer(text)))


def pieces(text: str, limits: ChunkLimits) -> Chunker:
    """The chunks of *text*, which hold every word once and in order. An overlong text keeps its first and
    last chunks, because people put their own words around pasted text, and a few of the middle with first-person
    sentences. The characters read are bounded for any length."""
    found = _cut(text, 0, limits, limits.pieces)
    if not found or _content(text, found[-1].end) == len(text):
        return Chunker(_texts(text, found), whole=True)
    at_end, between = int(limits.pieces * _AT_END), int(limits.pieces * _BETWEEN)
    first = found[: max(1, limits.pieces - at_end - between)]
    last = _last(text, first[-1].end, limits, at_end)
    behind = last[0].start if last else len(text)
    own = _own_words(text, first[-1].end, behind, limits, between)
    room, next_kept = limits.pieces - len(own) - len(last), own[0].start if own else behind
    first += [span for span in found[len(first) : room] if span.end <= next_kept]
    return Chunker(_texts(text, [*first, *own, *last]), whole=False)


def both_ends(text: str, most: int, mask: Callable[[str], str] | None = None) -> str:
    """*text*, or the beginning and end of a text above *most* characters, because people put their own words around
    pasted text. Cuts fall between lines unless lines are very long. *mask* is applied to both ends with some of the
    text between them, so no secret is cut before it is masked."""
    if len(text) <= most:
        return text if mask is None else mask(text)
    end = most * 3 // 4
    start = len(text) - (most - end - len(_LEFT_OUT))
    line = text.rfind("\n", max(0, end - _LONGEST_LINE), end)
    end = end if line < 0 else line
    line = text.find("\n", start, start + _LONGEST_LINE)
    start = start if line < 0 else line + 1
    if mask is None:
        return text[:end] + _LEFT_OUT + text[start:]
    beyond = min(_BEYOND, (start - end) // 2)
    ahead, behind = mask(text[: end + beyond]), mask(text[start - beyond :])
    return ahead[: len(ahead) - beyond] + _LEFT_OUT + behind[beyond:]


class _Span(NamedTuple):
    start: int
    end: int


def _texts(text: str, spans: Sequence[_Span]) -> tuple[str, ...]:
    return tuple(text[span.start : span.end].rstrip() for span in spans)


def _cut(text: str, at: int, limits: ChunkLimits, most: int) -> list[_Span]:
    """The first *most* pieces from *at* on."""
    found: list[_Span] = []
    code = False
    at = _content(text, at)
    while at < len(text) and len(found) < most:
        cut = _end_of_piece(text, at, limits, code=code)
        code ^= sum(1 for _ in _FENCE.finditer(text, at, cut)) % 2 == 1
        if not text[at:cut].isspace():
            found.append(_Span(at, cut))
        at = _content(text, cut)
    return found


def _last(text: str, after: int, limits: ChunkLimits, most: int) -> list[_Span]:
    """The last *most* chunks behind *after*, starting at the beginning of a line."""
    if most == 0:
        return []
    back = len(text) - most * limits.tokens * _CHARACTERS_PER_TOKEN // 2
    line = text.find("\n", max(after, back), max(after, back) + _LONGEST_LINE)
    start = line + 1 if line >= 0 else _whole_characters(text, after, max(after + 1, back))
    tail = text[max(after, start) :]
    found: list[_Span] = []
    at = 0
    # A first-person sentence among lines of a log gets a chunk of its own, or no search would find it.
    for own in (*_own_words(tail, 0, len(tail), limits, most), _Span(len(tail), len(tail))):
        found += [*_cut(tail[: own.start], at, limits, len(tail)), own]
        at = own.end
    moved = len(text) - len(tail)
    return [_Span(moved + span.start, moved + span.end) for span in found[:-1]][-most:]


def _own_words(text: str, start: int, end: int, limits: ChunkLimits, most: int) -> list[_Span]:
    """The first *most* chunks between *start* and *end* that consist of consecutive first-person lines."""
    found: list[_Span] = []
    at, furthest = start, min(end, start + _READ_BETWEEN)
    while len(found) < most and (matched := _OF_ONESELF.search(text, at, furthest)) is not None:
        line = max(at, text.rfind("\n", at, matched.start()) + 1)
        if matched.start() - line > _LONGEST_LINE:  # nobody writes a line of this length by hand
            at = matched.end()
            continue
        fits = min(end, _end_of_piece(text, line, limits, code=False))
        at = _line_end(text, matched.end(), fits)
        while at < fits and _OF_ONESELF.search(text, at, following := _line_end(text, at, fits)):
            at = following
        found.append(_Span(line, at))
    return found


def _line_end(text: str, at: int, most: int) -> int:
    """Behind the line that *at* stands in, at most at *most* where that is farther on."""
    end = text.find("\n", at, most)
    return max(at, most) if end < 0 else end + 1


def _content(text: str, at: int) -> int:
    """Position of the next content: after blank lines, before the indentation of its first line."""
    found = _BLANKS.match(text, at)
    begins = found.end() if found else at
    if begins == len(text) or (at and text[at - 1] != "\n" and "\n" not in text[at:begins]):
        return begins
    return max(at, text.rfind("\n", at, begins) + 1)


def _weight(token: re.Match[str]) -> int:
    length = token.end() - token.start()
    if token.lastindex == _BLANK:
        return 0
    if token.lastindex == _NUMBER or length >= _NO_WORD:
        return (length + 1) // 2
    if token.lastindex == _HANGUL:
        return 2 * length  # vocabularies hold its letters, not its syllables
    return (length + 6) // 7 if token.lastindex == _WORD else length


def _end_of_piece(text: str, at: int, limits: ChunkLimits, *, code: bool) -> int:
    """Where the piece that begins at *at* ends, beyond *at* in any case."""
    ends = _fitting(text, at, limits)
    fit = ends[-1]
    if fit == len(text):
        return fit
    best = max(
        (place for place in _places(text, at, fit, code=code) if place.at - at >= _FILLED[place.kind] * (fit - at)),
        default=None,
    )
    return best.at if best else _between_words(text, at, ends)


def _fitting(text: str, at: int, limits: ChunkLimits) -> Sequence[int]:
    """The ends of the tokens that fit into a chunk from *at*; at least one, which may be a cut token."""
    furthest = at + max(1, limits.bytes // _BYTES_PER_CHARACTER)
    window = min(len(text), at + limits.tokens * _CHARACTERS_PER_TOKEN)
    most = limits.tokens
    ends: list[int] = []
    weights: list[int] = []
    weight = 0
    for token in _TOKEN.finditer(text, at, window):
        weight += _weight(token)
        if token.end() > furthest or weight > most * (1 + _TAIL):
            break
        ends.append(token.end())
        weights.append(weight)
    if ends and ends[-1] == len(text) and weight > most:
        most = int(weight * _SHARED)
    fitting = ends[: sum(weight <= most for weight in weights)]
    if fitting:
        return fitting
    longest = min(furthest, window, at + most)  # part of a token that does not fit
    return (_whole_characters(text, at, max(at + 1, longest)),)


def _places(text: str, at: int, fit: int, *, code: bool) -> Iterator[_Place]:
    """The line starts and sentence ends from *at* to *fit*. A heading stays with the text under it."""
    after_blank = after_heading = after_code = False
    for line in _LINE.finditer(text, at, fit + _AHEAD):
        start = line.start()
        if start > fit:
            break
        begins = start == 0 or text[start - 1] == "\n"
        fence = begins and _FENCE.match(text, start, line.end()) is not None
        heading = begins and not code and _HEADING.match(text, start, fit + _AHEAD) is not None
        blank = line[0].isspace()
        if start > at and not after_heading:
            block = after_code or (fence and not code)
            yield _Place(_kind(line[0], blank=blank or after_blank, heading=heading, block=block, code=code), start)
        after_code = fence and code
        code ^= fence
        after_heading = heading or (after_heading and blank)
        after_blank = blank
    for end in sentence_ends(text[at : fit + _AHEAD]):
        if at + end > fit:
            break
        if text[at + end - 1] != "\n":
            yield _Place(_Break.SENTENCE, at + end)


def _kind(line: str, *, blank: bool, heading: bool, block: bool, code: bool) -> _Break:
    """The kind of the boundary before *line*; *blank*: that line or the previous is blank."""
    if heading:
        return _Break.HEADING
    if block:
        return _Break.BLOCK
    if blank:
        return _Break.PARAGRAPH
    if code:
        return _Break.LINE
    if _ITEM.match(line):
        return _Break.ITEM
    return _Break.WRAP if line.lstrip()[0].islower() else _Break.LINE


def _between_words(text: str, at: int, ends: Sequence[int]) -> int:
    """The last of *ends* between two words, or the last of all if one word exceeds a chunk."""
    for end in reversed(ends):
        spaced = text[end - 1].isspace() or text[end].isspace()
        unspaced = _IS_UNSPACED.match(text, end) or _IS_UNSPACED.match(text, end - 1)
        if spaced or (unspaced and text[end] not in _NOT_FIRST and not _are_joined(text, end)):
            return end
    return _whole_characters(text, at, ends[-1])


def _whole_characters(text: str, at: int, cut: int) -> int:
    """*cut*, moved back towards *at* out of a grapheme cluster."""
    for moved in range(cut, max(at, cut - _LONGEST_CLUSTER), -1):
        if not _are_joined(text, moved):
            return moved
    return cut


def _are_joined(text: str, at: int) -> bool:
    """Whether the characters before and after *at* form one grapheme cluster; approximates Unicode Standard Annex
    29."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if after in _JOINERS or before == "\u200d" or (before, after) == ("\r", "\n"):
        return True
    if _FLAG.match(after):  # two regional indicators form a flag
        start = at
        while start and at - start < _LONGEST_CLUSTER and _FLAG.match(text, start - 1):
            start -= 1
        return (at - start) % 2 == 1
    return unicodedata.category(after)[0] == "M" or _JAMO.match(after) is not None


_JOINERS = frozenset("\u200d\ufe0e\ufe0f\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff")
_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]")
_JAMO = re.compile("[\u1160-\u11ff\ud7b0-\ud7ff\U000e0020-\U000e007f]")  # and the tags that end some flags


# Which messages of a turn become memories, at once and without a model. Pure.

_LONGEST_JUDGED = 4000  # characters; a longer message holds something, and reading it would hold up others
_USUAL = ChunkLimits()
_MESSAGES = (Role.USER, Role.ASSISTANT)  # of a turn; the place is the message's ordinal


class MessageDecision(StrEnum):
    """The decision on a message or chunk: also the label of remembered_total, so never renamed."""

    KEPT = "kept"
    QUESTION = "question"  # kept as the context of its answer, never recalled itself
    EMPTY = "empty"  # or nothing but masks
    POLITE = "polite"  # a greeting, thanks, goodbye or acknowledgement
    REFUSAL = "refusal"
    ECHO = "echo"  # repeats an injected memory or the caller's last message
    SURPLUS = "surplus"  # the rest of a message longer than all the pieces it may have


_STORED = frozenset({MessageDecision.KEPT, MessageDecision.QUESTION})
_NOTHING = Chunker((), whole=True)
_OF_ANSWER = 0.375  # of a turn's pieces, where both messages are long


@dataclass(frozen=True, slots=True)
class JudgedMessage:
    """A message of a turn, or a chunk; *memory* is set for KEPT and QUESTION alone."""

    role: Role
    decision: MessageDecision
    memory: Memory | None


def judge(turn: Turn, now: datetime, limits: ChunkLimits = _USUAL) -> tuple[JudgedMessage, ...]:
    """The caller's message and the answer, in this order, split into chunks if long. The same turn gives the same
    ids, so a repetition changes nothing. *now* is the time of writing; times are in whole seconds."""
    messages = ((turn.asked, _of_caller(turn)), (turn.answered, _of_answer(turn)))
    found = [pieces(text, limits) if decision in _STORED else _NOTHING for text, decision in messages]
    needed = [len(one.texts) for one in found]
    answer = min(needed[1], max(limits.pieces - needed[0], int(limits.pieces * _OF_ANSWER)))
    judged: list[JudgedMessage] = []
    for ordinal, most in enumerate((limits.pieces - answer, answer)):
        text, decision = messages[ordinal]
        fits = needed[ordinal] <= most
        chunks = found[ordinal] if fits else pieces(text, replace(limits, pieces=most))
        judged += _judge_chunks(turn, ordinal, decision, chunks, now, limits)
    return tuple(judged)


def _of_caller(turn: Turn) -> MessageDecision:
    if (at_once := _at_a_glance(turn.asked)) is not None:
        return at_once
    if polite(turn.asked):
        return MessageDecision.POLITE
    if only_asks(turn.asked):
        return MessageDecision.QUESTION
    # Compare with single memories: words of several could be combined into a new statement.
    if any(echoes(turn.asked, (one,), "") for one in turn.injected):
        return MessageDecision.ECHO
    return MessageDecision.KEPT


def _of_answer(turn: Turn) -> MessageDecision:
    if (at_once := _at_a_glance(turn.answered)) is not None:
        return at_once
    if refusal(turn.answered):
        return MessageDecision.REFUSAL
    if acknowledgement(turn.answered):
        return MessageDecision.POLITE
    if only_asks(turn.answered):
        return MessageDecision.QUESTION
    return MessageDecision.ECHO if echoes(turn.answered, turn.injected, turn.asked) else MessageDecision.KEPT


def _at_a_glance(text: str) -> MessageDecision | None:
    """The decision for a text that needs no reading, else None."""
    if not text.strip() or not says_more_than_masks(text):
        return MessageDecision.EMPTY
    return MessageDecision.KEPT if len(text) > _LONGEST_JUDGED else None


def _judge_chunks(
    turn: Turn, ordinal: int, decision: MessageDecision, found: Chunker, now: datetime, limits: ChunkLimits
) -> Iterator[JudgedMessage]:
    role = _MESSAGES[ordinal]
    if decision not in _STORED:
        yield JudgedMessage(role, decision, None)
        return
    whole = words_hash(turn.asked if role is Role.USER else turn.answered) if len(found.texts) > 1 else ""
    for number, text in enumerate(found.texts):
        if not says_more_than_masks(text):
            continue
        memory = _memory(turn, ordinal, number, cut(text, limits.bytes), now, whole)
        if decision is MessageDecision.QUESTION:
            memory = replace(memory, source=Source.QUESTION)
        yield JudgedMessage(role, decision, memory)
    if not found.whole:
        yield JudgedMessage(role, MessageDecision.SURPLUS, None)


def _memory(turn: Turn, ordinal: int, number: int, content: str, now: datetime, whole: str) -> Memory:
    said = turn.at.replace(microsecond=0)
    return Memory(
        id=message_id(turn, ordinal, number),
        owner=turn.owner,
        type=MemoryType.EPISODIC,
        content=content,
        source=Source.VERBATIM,
        created_at=said,
        updated_at=max(said, now.replace(microsecond=0)),
        valid_from=said,
        project=turn.project,
        session=turn.session,
        seq=turn.seq + ordinal,
        role=_MESSAGES[ordinal],
        origin=format_origin(turn.origin),
        provenance=Provenance(
            turn=turn.id,
            said=turn.at.timestamp() if turn.at.microsecond else None,
            heard="" if ordinal else turn.heard,
            # A whole message needs no number; chunks do, because they share their place in the session.
            piece=number if whole else None,
            whole=whole,
            trust=Trust.TOOL if turn.tools and ordinal else None,
        ),
    )


def message_id(turn: Turn, ordinal: int, number: int = 0) -> str:
    """Memory id of *turn*'s first (0, the caller's) or second message (1, the answer), or of a chunk. The first
    chunk has the id of the unsplit message, so a new version replaces it."""
    return message_id_of(turn.owner, turn.id, ordinal, number)


_AT_ONCE = 4_000  # characters judged on the event loop (a few milliseconds)

Judges = Callable[[Turn, datetime], Sequence[JudgedMessage]]  # pure; can be pickled
Decisions = dict[str, Sequence[JudgedMessage]]  # by turn id


async def judge_turns(
    judges: Judges, turns: Sequence[Turn], now: datetime, helper: HelperThread = HELPER_THREAD
) -> list[Sequence[JudgedMessage]]:
    """The decisions on each of *turns*, apart from the event loop where they are long."""
    size = sum(len(turn.asked) + len(turn.answered) for turn in turns)
    if size > _AT_ONCE:
        return await helper.run(size, _judge_all, judges, turns, now)
    return _judge_all(judges, turns, now)


def _judge_all(judges: Judges, turns: Sequence[Turn], now: datetime) -> list[Sequence[JudgedMessage]]:
    return [judges(turn, now) for turn in turns]


class MessagePreparer:
    """Prepares the messages of turns for the store. Remembers the decisions on messages that were shown before."""

    def __init__(
        self, embedder: EmbeddingModel, judges: Judges, *, now: Now, helper: HelperThread = HELPER_THREAD
    ) -> None:
        self._embedder, self._judges, self._now, self._helper = embedder, judges, now, helper
        # Place in the journal and messages by turn id. A regenerated turn has the same id and another place.
        self._shown: dict[str, tuple[str, Sequence[JudgedMessage]]] = {}

    async def judge(self, entries: Sequence[JournalEntry]) -> Decisions:
        """The decisions on the messages of *entries*, by turn id."""
        turns = [entry.turn for entry in entries]
        judged = await judge_turns(self._judges, turns, self._now(), self._helper)
        return {turn.id: theirs for turn, theirs in zip(turns, judged, strict=True)}

    async def embed(self, decisions: Decisions, *, but: AbstractSet[str] = frozenset()) -> list[Embedded]:
        """Rows of the memories in *decisions*, without the ids *but*."""
        memories = [memory for memory in memories_of(decisions) if memory.id not in but]
        if not memories:
            return []
        vectors = await self._embedder.embed([memory.content for memory in memories])
        made_by = self._embedder.fingerprint
        return [
            Embedded(replace(memory, embed_model=made_by), vector)
            for memory, vector in zip(memories, vectors, strict=True)
        ]

    def note_shown(self, entries: Iterable[JournalEntry], decisions: Decisions) -> None:
        """The messages of *entries* are visible in this process, and not stored yet."""
        self._shown |= {entry.turn.id: (entry.place, decisions[entry.turn.id]) for entry in entries}

    def drop_shown(self, turn_ids: Iterable[str]) -> None:
        """The words of these turns are judged again when they are stored."""
        for turn_id in turn_ids:
            self._shown.pop(turn_id, None)

    def find_shown(self, entries: Sequence[JournalEntry]) -> Decisions:
        """The decisions on those of *entries* that were shown, as they are now."""
        known = {entry.turn.id: self._shown.get(entry.turn.id, ("", ())) for entry in entries}
        return {
            entry.turn.id: known[entry.turn.id][1] for entry in entries if known[entry.turn.id][0] == entry.place
        }


def memories_of(decisions: Decisions) -> list[Memory]:
    return [one.memory for theirs in decisions.values() for one in theirs if one.memory is not None]


def list_outdated(entries: Iterable[JournalEntry], decisions: Decisions) -> set[str]:
    """Ids of messages and chunks of earlier answers of *entries* that the new answers do not replace."""
    kept = {memory.id for memory in memories_of(decisions)}
    return {memory_id for entry in entries if entry.replaced for memory_id in message_ids(entry.turn)} - kept


async def find_corrected(
    memories: MemoryWriter, owner: Owner, entries: Sequence[JournalEntry], decisions: Decisions
) -> frozenset[str]:
    """The ids of messages and chunks that a person corrected: in *decisions*, which another process or an earlier
    try may have stored, and of earlier answers of *entries*. They belong to the person: neither a repeated turn
    with a new answer nor a turn that is learned again overwrites them. Nor does a turn that is learned again bring
    back what the person had forgotten in chat, or an answer that was given before the one that is stored."""
    replaced = {entry.turn.id for entry in entries if entry.replaced}
    again = {entry.turn.id: entry.turn.at.timestamp() for entry in entries if not entry.replaced}
    ids = [memory_id for entry in entries if entry.replaced for memory_id in message_ids(entry.turn)]
    ids += [memory.id for memory in memories_of(decisions)]
    if not ids:
        return frozenset()

    def stays(memory: Memory) -> bool:
        retired = memory.state is MemoryState.DELETED and memory.provenance.turn not in replaced
        return retired or bool(memory.provenance.revision)

    def is_later(memory: Memory) -> bool:
        said = memory.created_at.timestamp() if memory.provenance.said is None else memory.provenance.said
        return said > again.get(memory.provenance.turn, said)

    there = await memories.get(owner, ids)
    later = {memory.provenance.turn for memory in there if is_later(memory)}
    outdated = (memory.id for turn_id in later for memory in memories_of({turn_id: decisions.get(turn_id, ())}))
    return frozenset(memory.id for memory in there if stays(memory)).union(outdated)


BY_CHAT = "chat"  # in Provenance.retired: the owner asked in a conversation


async def find_forgotten(memories: MemoryWriter, owner: Owner, turns: Iterable[Turn]) -> set[str]:
    """The ids of those of *turns* that the person had forgotten in chat since their messages were stored."""
    ids = [memory_id for turn in turns for memory_id in message_ids(turn, any_answer=False)]
    return {
        memory.provenance.turn
        for memory in await memories.get(owner, ids)
        if memory.state is MemoryState.DELETED and memory.provenance.retired == BY_CHAT
    }
