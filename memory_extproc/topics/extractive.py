"""Names and summaries without a model: key phrases, and sentences that the caller said, in their order. Pure.

A sentence is ranked by its additions to the summary: words that come back in the conversation, names, numbers,
dates and decisions. The weights of words are counted in the conversation alone. The assistant's sentences fill up
where the caller said too little, marked as an answer, if the question was about the caller: general knowledge is
nothing that was decided. General questions are told where nothing else was said. Other questions,
pleasantries, offers and masked text are in no summary."""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files

from memory_extproc.text.intents import acknowledgement, asks, only_asks, polite, refusal
from memory_extproc.text.persons import about_caller, kinds
from memory_extproc.text.words import (
    LEXICONS,
    UNSPACED,
    clauses,
    fold,
    lexicon_of,
    rarity,
    sentences,
    stem,
    terms_in,
    tokens,
)
from memory_extproc.topics.state import TurnWords, announces_other_subject

ANSWER = "Answer: "  # before the assistant's sentences
ASKED = "Asked: "  # before the caller's questions, where nothing else was said
_BEGINNING, _END = 3_000, 1_000  # characters of a message that are read: people write around pasted text
_SENTENCES = 120  # of a side of the conversation, spread evenly, that are weighed
_LONGEST = 300  # characters of a sentence in a summary
_SHORTEST = 3  # words of a sentence
_LETTERS = 0.7  # share of letters and blanks in a sentence
_SHORTEST_UNSPACED = 6  # characters of a sentence, in scripts without spaces
_SHORTEST_ANSWERS = 4  # terms
_REQUEST, _ANSWERED = 0.5, 0.25  # weights of such sentences beside the caller's statements
_CHARACTERS = 150  # of a sentence that a model writes: shorter sentences fill a summary up to this length
_MOST_PARTS = 5  # subjects of a summary that get a sentence, where fewer sentences were asked for
_DECIDED = 1.6
_LEANING = 0.35  # weight of a sentence that points back at another, which is not in the summary
_KIND = 1.5  # for each of name, number and date
_LEAST = 0.2  # of the gain of the best sentence, that all but the first of a part must have
_REPEATS = 0.75  # share of known terms from which on a sentence adds nothing
_FENCED = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_MARKUP = re.compile(r"[*_]{2,}|`+|^[ \t]*(?:#{1,6}|>+)[ \t]+|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)", re.MULTILINE)
_HEADING = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t].*|\|.*|\*\*[^*\n]{1,120}\*\*:?|[-=_*]{3,}|.{0,160}[:\uff1a])[ \t]*$", re.MULTILINE
)
_MARKS = ("?", "\uff1f", "\u061f")
_ENDED = tuple(".!?\u2026:;\"')\u201d\u2019\u3002\uff01\uff1f")
_MASKED = re.compile(r"\[masked:|[\[<][A-Z][A-Z_]*_\d+[\]>]")
_OPENING = re.compile(r"^([^,.!:;\uff0c\u3002\uff01]{1,40})[,.!:;\uff0c\u3002\uff01]+\s*(?=\S)")
_UNSPACED = re.compile(UNSPACED)
_ASKS_BARE = re.compile(
    r"(?:(?:and|also|so|but|oh) )?(?:how|what(?:'s)?|why|when|where|which|who|whom|whose"
    r"|does|do|is|are|did|should) [^?,;.]*+$",
    re.IGNORECASE,
)
_DRAFT = re.compile(
    r"(?:[\w ]{1,30}: ?)?[\"'\u201c\u2018\u201e\u00ab]"
)  # of a text that the assistant wrote for the caller


@dataclass(frozen=True, slots=True)
class _Wording:
    """The small words of one language."""

    determiners: frozenset[str]
    subjects: frozenset[str]
    leans: frozenset[str]
    unnamed: frozenset[str]
    decides: re.Pattern[str]


@lru_cache(maxsize=len(LEXICONS))
def _wording(language: str) -> _Wording:
    entry = tomllib.loads((files(__package__) / "wording.toml").read_text(encoding="utf-8"))[language]
    words = {key: frozenset(fold(entry[key]).split()) for key in ("determiners", "subjects", "leans", "unnamed")}
    # From the beginning of a word on, where there are words.
    decisions = (("" if _UNSPACED.match(one) else r"\b") + re.escape(fold(one)) for one in entry["decisions"])
    return _Wording(**words, decides=re.compile("|".join(decisions)))


def _language_of(said: Iterable[str]) -> str:
    language = lexicon_of("\n".join(text[:300] for text in said)).language
    return language if language in LEXICONS else "en"


@dataclass(frozen=True, slots=True)
class SummarySentence:
    """A sentence that may stand in a summary. *turn* and *at* tell where it was said."""

    text: str = field(repr=False)
    own: bool  # the caller's
    turn: int
    at: int
    weight: float
    leans: bool
    terms: frozenset[str] = field(repr=False)

    def follows(self, other: SummarySentence) -> bool:
        """Whether *other* was said by the same, shortly before."""
        before = (self.turn - 1, 0) <= (other.turn, other.at) < (self.turn, self.at)
        return self.own is other.own and before


def summarize(parts: Sequence[Sequence[TurnWords] | str], count: int, *, named: bool = True) -> str:
    """Sum up *parts*, each the turns of a subject or a summary, in about *count* sentences.

    Each part gets a sentence at least, as far as they go. With *named*, the subject's name stands before its
    sentences. The text is empty if there were only questions and pleasantries."""
    language = _language_of(text for part in parts for text in _texts(part))
    lines = [
        list(_lines_of_text(part, language)) if isinstance(part, str) else _lines(part, language) for part in parts
    ]
    worth = _worth([line for of in lines for line in of])
    chosen = _choose(lines, worth, count)
    told = []
    for part, of in zip(parts, chosen, strict=True):
        name = name_topic(part) if named and of and not isinstance(part, str) else ""
        told += [f"{name}: {_join_lines(of)}" if name else _join_lines(of)] if of else []
    return " ".join(told)


def _texts(part: Sequence[TurnWords] | str) -> Iterator[str]:
    if isinstance(part, str):
        yield part
        return
    yield from (one.asked for one in part)
    if not any(one.asked for one in part):
        yield from (one.answered for one in part)


def _join_lines(lines: Sequence[SummarySentence]) -> str:
    """The lines in the order of saying, the assistant's marked as answers."""
    ordered = sorted(lines, key=lambda line: (line.turn, not line.own, line.at))
    told = [line.text if line.own or ANSWER in line.text else ANSWER + line.text for line in ordered]
    gap = "" if all(_UNSPACED.search(one) for one in told) else " "
    return gap.join(told)


# Sentences that may stand in a summary, and the value of each.


def _lines(said: Sequence[TurnWords], language: str) -> list[SummarySentence]:
    own = [line for turn, one in enumerate(said) for line in _side(one.asked, turn, language, own=True)]
    asked = [frozenset(terms_in(one.asked[:_BEGINNING], language)) for one in said]
    answers = [
        line
        for turn, one in enumerate(said)
        if not one.asked or _is_personal(one.asked[:_BEGINNING])  # else it is knowledge that anybody would get
        for line in _side(one.answered, turn, language, own=False)
        if line.terms & asked[turn] or not asked[turn]  # else it is advice that would do for anything
    ]
    if not own and not answers:
        answered = [
            (turn, one) for turn, one in enumerate(said) if one.answered and not refusal(one.answered[:_LONGEST])
        ]
        own = [line for turn, one in answered for line in _questions(one, turn, language)]
    return [*_spread(own), *_spread(answers)]


# "Can you explain bread to me?" and "what should I know about bread?" ask nothing about the caller
_FOR_ANYBODY = re.compile(
    r"\b(?:to|for|tell|give|show|teach|help|let|remind) (?:me|us)\b|\b(?:can|could|should|do|may|would) (?:i|we)\b"
    r"|\b(?:i|we) (?:want|need|would like|'d like) to (?:know|understand|learn)\b"
    r"|\bi(?:'m| am) (?:curious|wondering)\b",
    re.IGNORECASE,
)


def _is_personal(asked: str) -> bool:
    return about_caller(_FOR_ANYBODY.sub("", asked))


def _questions(said: TurnWords, turn: int, language: str) -> Iterator[SummarySentence]:
    """The answered questions of a turn, as lines of the caller's."""
    if not said.answered or refusal(said.answered[:_LONGEST]):
        return
    for at, sentence in enumerate(_clean_sentences(said.asked)):
        if _tells(sentence) and (_is_question(sentence) or asks(sentence)):
            yield _line(f"{ASKED}{sentence}", language, own=True, turn=turn, at=at, weight=_REQUEST)


def _spread(lines: Sequence[SummarySentence]) -> Sequence[SummarySentence]:
    return lines[:: max(1, -(-len(lines) // _SENTENCES))]


def _side(text: str, turn: int, language: str, *, own: bool) -> Iterator[SummarySentence]:
    """Lines of a message. The caller's requests count, the assistant's questions and requests do not."""
    for at, sentence in enumerate(_clean_sentences(text)):
        requests = asks(sentence)
        if not _tells(sentence) or (_is_question(sentence) if own else requests or _DRAFT.match(sentence)):
            continue
        weight = (_REQUEST if requests else 1.0) if own else _ANSWERED
        line = _line(sentence, language, own=own, turn=turn, at=at, weight=weight)
        if own or len(line.terms) >= _SHORTEST_ANSWERS:
            yield line


def _is_question(sentence: str) -> bool:
    """Whether it asks, with a question mark or as questions begin, and tells nothing beside."""
    if _ASKS_BARE.match(sentence) is not None:
        return not sentence.endswith(".")
    bare = sentence.rstrip("\"')\u201d\u300d ")
    if not bare.endswith(_MARKS):
        return False
    return only_asks(sentence) or all(map(asks, clauses(bare.rstrip("".join(_MARKS)))))


def _lines_of_text(text: str, language: str) -> Iterator[SummarySentence]:
    """Lines of an earlier summary, whose sentences were chosen before."""
    for at, sentence in enumerate(sentences(text)):
        own = ANSWER not in sentence
        yield _line(sentence, language, own=own, turn=at, at=at, weight=1.0 if own else _REQUEST)


def _clean_sentences(text: str) -> Iterator[str]:
    """Sentences without code, headings, tables, markup, masked text and the pleasantries at their beginning."""
    if len(text) > _BEGINNING + _END:
        text = f"{text[:_BEGINNING]}\n{text[-_END:]}"
    plain = _MARKUP.sub("", _HEADING.sub("\n", _FENCED.sub("\n", text)))
    return (_without_opening(sentence) for sentence in sentences(plain) if not _MASKED.search(sentence))


def _without_opening(sentence: str) -> str:
    """Without "Sure, ", "Okay. ", "Different thing: " and their like."""
    for _ in range(3):
        opening = _OPENING.match(sentence)
        if opening is None or not (polite(opening[1]) or announces_other_subject(opening[1])):
            break
        sentence = sentence[opening.end() :]
        sentence = sentence[:1].upper() + sentence[1:]
    return sentence


def _tells(sentence: str) -> bool:
    if sum(character.isalpha() or character == " " for character in sentence) < _LETTERS * len(sentence):
        return False  # a table, a record of data, code
    unspaced = _UNSPACED.search(sentence) is not None
    if len(sentence) < _SHORTEST_UNSPACED if unspaced else len(tokens(sentence)) < _SHORTEST:
        return False
    return not (polite(sentence) or refusal(sentence) or acknowledgement(sentence))


def _line(sentence: str, language: str, *, own: bool, turn: int, at: int, weight: float) -> SummarySentence:
    wording, folded = _wording(language), fold(sentence[:_LONGEST])
    first = tokens(folded)[:1]
    leans = bool(first) and (
        first[0] in wording.leans
        or (_UNSPACED.match(folded) is not None and folded.startswith(tuple(wording.leans)))
    )
    decided = _DECIDED if own and wording.decides.search(folded) else 1.0
    terms = frozenset(terms_in(sentence[:_LONGEST], language))
    return SummarySentence(_shorten(sentence), own, turn, at, weight * decided, leans, terms)


def _shorten(sentence: str) -> str:
    """*sentence* on one line, cut between words."""
    sentence = " ".join(sentence.split())
    if len(sentence) <= _LONGEST:
        return sentence if sentence.endswith(_ENDED) else f"{sentence}."
    return (sentence[:_LONGEST].rpartition(" ")[0] or sentence[:_LONGEST]).rstrip(",;:- ") + " \u2026"


def _worth(lines: Sequence[SummarySentence]) -> dict[str, float]:
    """The weight of each term: the number of turns that it comes back in, the caller's words above all."""
    own: defaultdict[str, set[int]] = defaultdict(set)
    answered: defaultdict[str, set[int]] = defaultdict(set)
    for line in lines:
        for term in line.terms:
            (own if line.own else answered)[term].add(line.turn)
    return {
        term: math.log2(1.0 + len(own.get(term, ())) + 0.3 * len(answered.get(term, ())))
        for term in {*own, *answered}
    }


def _choose(
    parts: Sequence[Sequence[SummarySentence]], worth: dict[str, float], count: int
) -> list[list[SummarySentence]]:
    """Choose the lines of each part: the best of each part first, then the lines that add most."""
    chosen: list[list[SummarySentence]] = [[] for _ in parts]
    told: set[str] = set()
    best = 0.0

    def take(candidates: Iterable[tuple[int, SummarySentence]]) -> bool:
        nonlocal best
        scored = [(_gain(line, worth, told, chosen[part]), part, line) for part, line in candidates]
        gain, part, line = max(scored, key=lambda one: one[0], default=(0.0, 0, None))
        if line is None or gain <= (_LEAST * best if chosen[part] else 0.0):
            return False
        best = max(best, gain)
        chosen[part].append(line)
        told.update(line.terms)
        return True

    order = sorted(range(len(parts)), key=lambda part: -len({line.turn for line in parts[part]}))
    for part in sorted(order[: max(count, _MOST_PARTS)]):
        take((part, line) for line in parts[part])
    count = max(count, sum(map(bool, chosen)))
    while _is_short([line for of in chosen for line in of], count):
        if not take((part, line) for part, of in enumerate(parts) for line in of if line not in chosen[part]):
            break
    return chosen


def _is_short(lines: Sequence[SummarySentence], count: int) -> bool:
    if len(lines) < count:
        return True
    return len(lines) < 3 * count and sum(len(line.text) for line in lines) < count * _CHARACTERS


def _gain(
    line: SummarySentence, worth: dict[str, float], known: set[str], chosen: Sequence[SummarySentence]
) -> float:
    """The value of the terms that *line* adds to the *known* terms; 0 for a repetition."""
    new = line.terms - known
    if not new or len(new) <= (1 - _REPEATS) * len(line.terms):
        return 0.0
    weight = line.weight
    if line.leans and not any(map(line.follows, chosen)):
        weight *= _LEANING
    said = sum(worth[term] for term in new) + _KIND * len(kinds(line.text))
    return weight * said / math.sqrt(8 + len(line.terms))


# Key phrases: runs of words between small words, names and repeated runs above all.

_PHRASES = 3
_LONGEST_NAME = 80  # characters
_LONGEST_PHRASE = 3  # words
_LONGEST_RUN = 12  # characters, of scripts without spaces
_ECHOED, _FIRST = 0.35, 1.3  # weights of a phrase in an answer and in the caller's first message
_KEPT = 0.45  # share of the best phrase's score that another must have
_HAN, _KATAKANA = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]{2,}"), re.compile(r"[\u30a1-\u30ff]{2,}")
_BREAKS = re.compile(r"[^\w\s'\u2019+#&/-]+|(?<=\w)[.](?=\s|$)|\n|\s[-\u2013\u2014]\s")


def name_topic(said: Sequence[TurnWords]) -> str:
    """Up to three key phrases, the weightiest first; empty where there is none."""
    language = _language_of(_texts(said))
    wording = _wording(language)
    scores: Counter[tuple[str, ...]] = Counter()
    shown: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    verbs: Counter[str] = Counter()
    for number, one in enumerate(said):
        for text, weight in ((one.answered, _ECHOED), (one.asked, 1.0 if number else _FIRST)):
            found: dict[tuple[str, ...], float] = {}
            for phrase, words, counts in _phrases("\n".join(_clean_sentences(text)), language, wording, verbs):
                found[phrase] = max(found.get(phrase, 0.0), weight * counts)
                shown[phrase][words] += 1
            scores.update(found)
    rated = _rate_phrases(scores, verbs, language, wording.decides)
    kept: list[tuple[str, ...]] = []
    for phrase in sorted(rated, key=lambda one: -rated[one]):
        if len(kept) == _PHRASES or rated[phrase] < _KEPT * rated[kept[0] if kept else phrase]:
            break
        if not any(_overlap(phrase, other) for other in kept):
            kept.append(phrase)
    name = ", ".join(_usual(shown[phrase]) for phrase in kept)
    return name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME].rpartition(" ")[0].rstrip(", ")


def _usual(forms: Counter[str]) -> str:
    """As it is written most; not with the capital letter of a sentence's beginning."""
    return max(forms, key=lambda form: forms[form] * (3 if form[0].islower() else 1))


def _overlap(phrase: tuple[str, ...], other: tuple[str, ...]) -> bool:
    if len(phrase) == len(other) == 1 and _UNSPACED.match(phrase[0]):
        return phrase[0] in other[0] or other[0] in phrase[0] or bool(set(phrase[0]) & set(other[0]))
    return not set(phrase).isdisjoint(other)


def _rate_phrases(
    scores: Counter[tuple[str, ...]], verbs: Counter[str], language: str, decides: re.Pattern[str]
) -> dict[tuple[str, ...], float]:
    """The C-value of each phrase (Frantzi, Ananiadou and Mima, 2000): its frequency, less that within longer
    phrases; everyday words count less."""
    within: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for phrase, score in scores.items():
        for part in {part for part in _grams(phrase) if part != phrase}:
            within[part].append(score)
    rated = {}
    for phrase, score in scores.items():
        if verbs[phrase[0]] or verbs[phrase[-1]] or decides.search(phrase[0]):
            continue
        nested = within.get(phrase)
        alone = score - (
            max(nested) if nested and len(nested) == 1 else sum(nested) / len(nested) if nested else 0.0
        )
        unspaced = _UNSPACED.match(phrase[0])
        length = math.log2(1 + (min(len(phrase[0]), 4) / 2 if unspaced else min(len(phrase), 2)))
        rare = 1.0 if language != "en" else 0.3 + max(map(rarity, phrase))
        rated[phrase] = max(alone, 0.2 * score) ** 1.5 * length * rare
    return rated


def _grams(phrase: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for length in range(1, min(len(phrase), _LONGEST_PHRASE) + 1):
        for at in range(len(phrase) - length + 1):
            yield phrase[at : at + length]


def _phrases(
    text: str, language: str, wording: _Wording, verbs: Counter[str]
) -> Iterator[tuple[tuple[str, ...], str, float]]:
    """The phrases of *text* by their stems, with spelling and weight; *verbs* counts words in a verb's place."""
    stop = LEXICONS[language].stop
    for piece in _BREAKS.split(text):
        words = tokens(piece)
        run: list[str] = []
        for at, word in enumerate([*words, ""]):
            folded = fold(word)
            if word and _UNSPACED.match(word):
                yield from _unspaced_phrases(word, stop)
                continue
            if word and folded not in stop and folded not in wording.subjects and _is_nameable(folded):
                run.append(word)
                continue
            before = fold(words[at - len(run) - 1]) if at > len(run) else ""
            if run and (before in wording.subjects or (folded in wording.determiners and len(run) == 1)):
                verbs[stem(run[0])] += 1
                run = run[1:]
            elif run and folded in wording.determiners:
                verbs[stem(run[-1])] += 1
            yield from _grams_of(run, wording.unnamed)
            run = []


def _is_nameable(folded: str) -> bool:
    return len(folded) > 1 and any(map(str.isalpha, folded)) and not folded[0].isdigit() and not kinds(folded)


def _grams_of(run: Sequence[str], unnamed: frozenset[str]) -> Iterator[tuple[tuple[str, ...], str, float]]:
    run = run[:_LONGEST_RUN]
    for length in range(1, min(len(run), _LONGEST_PHRASE) + 1):
        for at in range(len(run) - length + 1):
            words = run[at : at + length]
            ends = (fold(words[0]), fold(words[-1]))
            if not unnamed.isdisjoint(ends):
                continue
            named = 1.3 if words[0][0].isupper() and words[-1][0].isupper() else 1.0
            yield tuple(map(stem, words)), " ".join(words), named


def _unspaced_phrases(word: str, stop: frozenset[str]) -> Iterator[tuple[tuple[str, ...], str, float]]:
    """Runs between small words: of Katakana, and of Han with their parts."""
    small = "|".join(sorted(map(re.escape, stop), key=len, reverse=True))
    bare = re.sub(small or "$^", "\n", word)
    for name in _KATAKANA.findall(bare):
        yield (name,), name, 1.0
    for whole in _HAN.findall(bare):
        run = whole[:_LONGEST_RUN]
        for length in range(2, min(len(run), 6) + 1):
            for at in range(len(run) - length + 1):
                yield (run[at : at + length],), run[at : at + length], 1.0 if length == len(run) else 0.8
