"""Turns sentences in the first person into questions, and into sentences about somebody with a name, in English."""

from __future__ import annotations

import random
import re

# The past form and the base of verbs that no rule turns back, and of some that are common.
_PAST = dict(
    pair.split(":")
    for pair in """
    went:go got:get had:have made:make took:take found:find saw:see came:come bought:buy thought:think told:tell
    said:say felt:feel began:begin did:do gave:give left:leave met:meet spent:spend ran:run wrote:write heard:hear
    kept:keep knew:know lost:lose paid:pay put:put set:set sent:send spoke:speak won:win ate:eat chose:choose
    built:build brought:bring caught:catch cut:cut drew:draw drove:drive fell:fall forgot:forget grew:grow hit:hit
    held:hold hurt:hurt let:let meant:mean quit:quit sat:sit slept:sleep stood:stand taught:teach woke:wake wore:wear
    tried:try decided:decide used:use liked:like loved:love moved:move noticed:notice realised:realise
    realized:realize received:receive shared:share agreed:agree managed:manage changed:change created:create
    completed:complete updated:update prepared:prepare arrived:arrive planned:plan dropped:drop stopped:stop
    sold:sell baked:bake hired:hire rode:ride sang:sing swam:swim threw:throw broke:break led:lead joined:join
    finished:finish talked:talk asked:ask looked:look worked:work wanted:want needed:need visited:visit
    watched:watch picked:pick followed:follow checked:check reviewed:review ended:end added:add tested:test
    missed:miss learned:learn signed:sign booked:book skipped:skip logged:log started:start turned:turn
    called:call played:play walked:walk cooked:cook painted:paint adopted:adopt
    """.split()
)
_PRESENT = frozenset(
    """
    have need want like love hate think feel know prefer work live plan hope use wish believe enjoy struggle worry
    expect find keep get see understand appreciate trust remember own play study drink eat run spend do make go take
    teach sing speak write read
    """.split()
)
_SAID = re.compile(
    r"(?:^|[,;.!?] |\band |\bbut |\bso )(?:I|[Ww]e) (?:(?:just|also|really|already|actually|finally|only|still|even|usually|often|always) )?(\w+)\b(.*)"
)
_IS = re.compile(r"\b(?:I'm|I am|[Ww]e're) (?:(?:just|also|really|already|still|currently|even|so|always) )?(\w.*)")
_OWN = re.compile(
    r"\b(?:[Mm]y|[Oo]ur) (\w+(?: \w+)?) (?:is|are|was|were|has|have|needs?|wants?|likes?|said|told|got)\b(.*)"
)
_HAVE = re.compile(
    r"\b(?:I've|I have|[Ww]e've) (?:(?:just|also|already|finally|always|never) )*(\w+(?:ed|en|ught|ne|t|d))\b(.*)"
)
_END = re.compile(
    r"\s*(?:[;:—–(]| - |, (?:but|and|so|which|because|if)\b|\b(?:because|but|so that|which|although)\b|[.!?](?:\s|$))"
)
_SMALL = frozenset(
    "the a an of to and in on for with at my is that this it just or i i'm i've we our was be so but".split()
)
_NAMED = tuple(
    (re.compile(pattern), words) for pattern, words in (
        (r"\bI'm\b|\bI am\b|\bi'm\b|\bim\b", "{} is"), (r"\bI've\b|\bI have\b|\bi've\b", "{} has"), (r"\bI'd\b", "{} would"), (r"\bI'll\b", "{} will"),
        (r"\b[Ii]\b", "{}"), (r"\b[Mm]yself\b", "themselves"), (r"\b[Mm]y\b", "{}'s"), (r"\b[Mm]ine\b", "{}'s"),
        (r"\bme\b", "{}"),
    )
)  # fmt: skip
_TURNED = tuple((re.compile(rf"\b{a} i\b", re.IGNORECASE), b + " {}") for a, b in (
    ("am", "is"), ("do", "does"), ("have", "has"), ("did", "did"), ("was", "was"), ("can", "can"),
    ("should", "should"), ("will", "will"), ("must", "must"),
))  # fmt: skip


def to_named(text: str, name: str) -> str:
    """*text* with *name* in place of the first person."""
    for pattern, words in _NAMED:
        text = pattern.sub(words.format(name), text)
    return text


def name_question(question: str, name: str) -> str:
    """A question of somebody about themselves, as another would put it."""
    for pattern, words in _TURNED:
        question = pattern.sub(words.format(name), question)
    return to_named(question, name)


def to_question(text: str, subject: str, rng: random.Random) -> str | None:
    """A question that a sentence of *text* answers, about *subject* (empty: asked in the first person); None
    where no rule fits."""
    told = rng.choice([one for one in re.split(r"(?<=[.!?])\s+", text) if len(one) > 15] or [""])
    who, own = subject or "I", f"{subject}'s" if subject else "my"
    is_, do, have = ("is", "does", "has") if subject else ("am", "do", "have")

    def clip(words: str, most: int = 12) -> str:
        return _clip(to_named(words, "they").replace("they's", "their") if subject else words, most, rng)

    made = []
    if (said := _SAID.search(told)) and (base := _base(said[1].lower())):
        asks = ("When did", "When did", "What did", "Where did", "Why did", "How did", "Did")
        made.append(f"{rng.choice(asks)} {who} {base} {clip(said[2])}")
    if said and said[1].lower() in _PRESENT:
        made.append(
            f"{rng.choice(('What', 'What', 'Why', 'Where', 'Who', 'How', 'Which'))} {do} {who} {said[1].lower()} {clip(said[2])}"
        )
    if found := _IS.search(told):
        made.append(f"{rng.choice(('What', 'Why', 'When', 'Where', 'How long'))} {is_} {who} {clip(found[1])}")
    if found := _HAVE.search(told):
        made.append(f"{rng.choice(('When', 'What', 'Where', 'How long'))} {have} {who} {found[1]} {clip(found[2])}")
    if found := _OWN.search(told):
        made += [f"What is {own} {found[1]}", f"What did {who} say about {own} {found[1]} {clip(found[2], 5)}"]
    if rng.random() < (0.15 if made else 0.5):
        words = drop_words(told, rng)
        made = [rng.choice((f"What did {who} say about {words}", f"{subject} {words}".strip()))]
    if not made:
        return None
    question = re.sub(r"\s+", " ", rng.choice(made)).strip(" ,.")
    return question + rng.choice(("?", "?", "")) if len(question.split()) > 3 else None


def drop_words(text: str, rng: random.Random, most: int = 7) -> str:
    """Some words of *text* in order, small ones left out."""
    words = [word for word in re.findall(r"[\w'’-]+", text) if word.lower() not in _SMALL]
    start = rng.randrange(max(1, len(words) - most))
    return " ".join(word for word in words[start : start + most] if rng.random() < 0.8)


def _base(verb: str) -> str | None:
    if verb in _PAST:
        return _PAST[verb]
    if not verb.endswith("ed") or len(verb) < 5:
        return None
    stem = verb[:-2]
    if stem.endswith("i"):
        return stem[:-1] + "y"
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "ls":
        return stem[:-1]
    return stem + "e" if stem[-1] in "vszcug" or stem.endswith(("at", "ir", "ar", "in", "ut", "ur")) else stem


def _clip(text: str, most: int, rng: random.Random) -> str:
    words = _END.split(text, maxsplit=1)[0].split()[:most]
    if len(words) > 5 and rng.random() < 0.4:
        del words[rng.randrange(1, len(words))]
    while words and words[-1].lower() in _SMALL:
        words.pop()
    return " ".join(words)
