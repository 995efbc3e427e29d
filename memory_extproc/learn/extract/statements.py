"""The writer's statements about themselves in a message, and corrections of a value alone.

Quoted, pasted, asked, supposed and played text is left out, and so is any text in doubt: the message itself is
remembered all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memory_extproc.learn.extract.asides import (
    asides,
    introduce_writer,
    join_enclosed,
    read_introduction,
    split_ages,
    told_of_writer,
)
from memory_extproc.learn.extract.clauses import (
    LISTS,
    REASONS,
    People,
    concerns_writer,
    fill_in,
    is_of_others,
    lacks_subject,
    names_somebody,
    split_clauses,
    strip_openers,
    write_out,
)
from memory_extproc.learn.extract.verbs import base_of
from memory_extproc.text import lazy_re as re
from memory_extproc.text.intents import asks
from memory_extproc.text.words import MONTHS, collapse_whitespace, fold, sentences, tokens

LONGEST_MESSAGE = 4000  # characters; a longer text was pasted
_LONGEST_SENTENCE = 400

_FENCED = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL)
# quoted lines, table rows and lines of a transcript
_QUOTED_LINE = re.compile(
    r"(?im)^[ \t]*(?:>|\||(?:q|a|user|human|assistant|ai|bot|customer|agent|system|interviewer|me|you)\s*:\s).*$"
)
# A request that hands a text over: everything behind it is that text.
_HANDS_OVER = re.compile(
    r"""(?ix)\b(?:translate|rewrite|re-write|proofread|correct|summari[sz]e|paraphrase|rephrase|edit|improve
          |polish|shorten
        |analy[sz]e|review|explain|debug|classify|grade|parse|convert|complete|continue|fix
        |(?:write|tell|compose|create|draft)\s+(?:me\s+)?(?:an?|the|another)\s+(?!(?:\w+\s+){0,2}(?:bio|profile|intro)\b)\w+
        |here(?:'s|\s+is|\s+are)|below\s+is|the\s+following|(?:this|my)\s+(?:email|text|letter|essay|article
        |document))
        \b[^\n.!?]{0,80}(?::|\n\s*\n)"""
)
_MAIL = re.compile(
    r"(?im)^\s*(?:subject|from|to|cc|date|sent)\s*:\s|^\s*dear\s+[\w .]{2,40},\s*$|^\s*-{3,}|^\s*#{1,6}\s"
)
# Role play or a joke: the message states no facts.
_PLAYS = re.compile(
    r"""(?x)\b(?:pretend|role-?\s?play\w*|act\s+(?:as|like)|imagine|suppose|supposing|hypothetical\w*
          |let'?s\s+(?:say|pretend|imagine|assume)
        |assume\s+(?:that\s+)?(?:i(?!\s+(?:know|understand))|my|you)|in\s+this\s+(?:scenario|story|game)|in\s+(?:my|the)\s+(?:novel|story
        |game|book|screenplay|script)
        |you\s+are\s+(?:an?|the|my)\b|you're\s+(?:an?|my)\b|your\s+name\s+is|my\s+character
        |(?:just\s+)?(?:kidding|joking)|jk|april\s+fool\w*|stell\s+dir\s+vor|angenommen
        |imaginons|imagina)\b|/s\s*$"""
)
_QUOTED = re.compile(
    r"\"[^\"\n]{2,}\"|\u201c[^\u201d\n]{2,}\u201d|\u201e[^\u201c\u201d\n]{2,}[\u201c\u201d]"
    r"|\u00ab[^\u00bb\n]{2,}\u00bb|(?<!\w)['\u2018][^'\u2018\u2019\n]{3,}['\u2019](?!\w)"
)
_SHORT_QUOTE = 3  # words; "my cat is called 'Rex'" quotes a name, not a person
_QUOTE_MARK = "\ufffc"

# Supposed: it reaches over the clauses before it, and from the beginning of a sentence over all of it.
_SUPPOSED = re.compile(
    r"""(?x)\b(?:(?<!even\ )if|unless|as\s+(?:if|though)|were\s+to|for\s+example|e\.g|such\s+as\s+when|wenn|falls
      |si\s+(?:je|yo))\b|^when(?:ever)?\b(?!\s(?:i|we)\s(?:was|were)\b)|\u5982\u679c|\u5047\u5982|\u8981\u662f|^as\s+an?\s+(?:user|customer|admin)\b
      |\blol\b|\blmao\b|\brofl\b|\bhaha\w*"""
)
_UNSURE = re.compile(
    r"""(?x)\b(?:would(?!\s+(?:\w+\s+)?rather)|wouldn't|(?:i|we)'d(?!\s+(?:\w+\s+)?rather|\s+(?:like|prefer)\s+(?:(?:all|my|short|long|the|your)\s+)?(?:answers?|replies|responses|explanations))|could|might|may\s+(?:be|have|want)|maybe|perhaps|possibly
          |probably|wish\w*|(?:hope|hoping)(?!\s+to)
        |i\s+(?:think|guess|suppose|believe|assume|wonder|doubt|bet)|not\s+sure|unsure|uncertain|don't\s+(?:know
        |think|remember|believe)
        |thinking\s+(?:of|about)|considering|almost|(?:am|is|are|'m|'s|'re|get|got)\s+used\s+to
        |once\s+(?:lived|worked)
        |supposed\s+to|vielleicht|w\u00fcrde|k\u00f6nnte
        |peut-\u00eatre|quiz\u00e1s?|tal\s+vez)\b
      |\u53ef\u80fd|\u4e5f\u8bb8|\u5927\u6982"""
)
_REPORTED = re.compile(
    r"\b(?:said(?!\s+yes\b)|says|saying|(?<!don't\s)tells?\s+me|told|asked|asks|wrote|writes|claim(?:s|ed)|according\s+to|quote|quoted"
    r"|article|thinks|insists?"
    r"|mentioned\s+that|sagt|sagte|dit\s+que|dice|dijo)\b|\b(?:reads|states)\s*:"
)
# "..., she said" quotes the whole sentence.
_REPORTED_WHOLE = re.compile(
    r"^(?:according\s+to|\w+(?:\s+\w+){0,2}\s+(?:said(?!\s+yes\b)|says|told|asked|claims|thinks|insists|wrote)\b)"
    r"|,\s+(?!i\s+should\b)(?:\w+\s+){1,3}(?:said|says|wrote|claims|asked)\W*$|\b(?:quote|quoted|article)\b|\bsaid\s*:"
)
_BLANKS = re.compile(r"\s+")
_CODE_LINE = re.compile(
    r"[{};]\s*$|[=!]=|\w+\(.*\)\s*[;{]|^\s*(?:select|insert|update|delete|def|class|import|from|var|let"
    r"|const)\s.*[=({]|^\s*select\b.*\bfrom\b|</?\w+>"
)

_ASKING_TAIL = re.compile(
    r"(?:\s*[,;\u2013\u2014-]\s*|\s+)(?:(?:so|and|but)\s+)?(?=(?:what|what's|how|how's|which|where|when|who|why"
    r"|can|could|would|will|should|do|does|did|is|are|any(?:thing)?|something|some|ideas|suggestions|tips|thoughts|advice"
    r"|recommendations|got|reicht|was|wie)\b[^,;]*\?)",
    re.IGNORECASE,
)
# Between a question and the reason given for it.
_REASON = re.compile(
    rf"\s*,?\s+(?:{REASONS})\s+(?=(?:i|i'm|i've|my|we|we're|we've|our)\b)"
    r"|\s*[,;\u2013\u2014]\s+(?:(?:and|but|so)\s+)?(?=(?:i'm|i\s+am|i\s+have|i've|my|we're|we\s+are|we\s+have|our)\s[^,;?]{3,120}[^?]$)",
    re.IGNORECASE,
)
# Requests for a text: its words are not the writer's own.
_FICTION = re.compile(
    r"\b(?:story|tale|novel|scene|script|dialogue|lyrics|rap|limerick|haiku|fan\s?fic\w*|monologue|translate|rephrase|rewrite|proofread"
    r"|saying|character|repeat|as\s+though|sentence|paraphrase|pretend|in\s+which|where\s+i)\b"
)


def without_quotes(text: str) -> str:
    """*text*, of any length, without code, quoted lines and attached documents."""
    bare = _QUOTED_LINE.sub("", _FENCED.sub("\n", collapse_whitespace(text)))
    handed = _HANDS_OVER.match(bare.lstrip())
    return "" if handed is not None else bare


def keep_meant_text(text: str) -> str:
    """*text* without code, quoted lines and pasted or attached text; empty for jokes and role play."""
    text = collapse_whitespace(text)
    if len(text) > LONGEST_MESSAGE or _PLAYS.search(fold(text)):
        return ""
    bare = _QUOTED_LINE.sub("", _FENCED.sub("\n", text))
    for boundary in (_HANDS_OVER, _MAIL):
        found = boundary.search(bare)
        if found is not None:
            bare = bare[: found.start()]
    return bare


def first_person_statements(text: str, people: People | None = None) -> list[str]:
    """The clauses of *text* in which the writer states something, in order, without end marks, openers
    ("By the way, ...") and typographic apostrophes; each can be understood by itself, with the *people* spoken
    of before."""
    people = people if people is not None else People()
    bare = _QUOTED.sub(_unquote, keep_meant_text(text))
    people.by_name = len(bare) <= _LONGEST_SENTENCE
    bare = introduce_writer(bare)
    found: list[str] = []
    of_others, before = False, ""
    for at, stated in enumerate(sentences(write_out(bare.replace("\u2019", "'")))):
        if at and (amended := read_correction(stated)):
            found.extend(amended)
            continue
        plain = _CHANGE_WITH_REMARK.sub(r"\g<told>", _REMARK.sub("", stated))
        sentence = _TAKES_BACK.sub(lambda one: f"{one['stated']} {_NOW.get(fold(one['is'] or ''), 'now')} ", plain)
        if len(sentence) > _LONGEST_SENTENCE or _QUOTE_MARK in sentence or _CODE_LINE.search(fold(sentence)):
            continue
        if _OF_A_SPEAKER.match(sentence) or _OF_ANOTHER.match(sentence):
            continue
        sentence, ages = split_ages(sentence)
        joined = join_enclosed(sentence)
        found.extend(ages)
        found.extend(asides(joined if sentence[:4] in {"the ", "The "} else sentence))
        read = read_introduction(sentence, nameless=not names_somebody(before))
        written = joined if read == sentence else join_enclosed(read)
        if not (of_others and lacks_subject(strip_openers(sentence))):  # "My sister called. Moved to Ghent."
            found.extend(_split_statements(people.name_relations(written), people))
        of_others, before = is_of_others(sentence), sentence
        people.note(joined)
    return list(dict.fromkeys(found))


# A remark is no part of a value: "my flight is at 7 now, ugh", "the trip is pushed to May, strike at the airport".
_REMARK = re.compile(fill_in(LISTS["grammar"]["remark"], LISTS["words"]), re.IGNORECASE)
_CHANGE_WITH_REMARK = re.compile(fill_in(LISTS["grammar"]["change_with_remark"], LISTS["words"]), re.IGNORECASE)
# "Oops, my flight is on May 8" replaces the earlier day of the flight
_TAKES_BACK = re.compile(fill_in(LISTS["grammar"]["takes_back"], LISTS["words"]), re.IGNORECASE)
_NOW = {"ist": "jetzt", "geht": "jetzt", "est": "maintenant", "es": "ahora"}
_WHOM = {"relations": LISTS["relations"], "strangers": LISTS["grammar"]["strangers"]}
# "customer 2: I'm 34", "my sister: I hate mail": the words of another
_OF_A_SPEAKER, _OF_ANOTHER = (
    re.compile(fill_in(LISTS["grammar"][name], _WHOM), re.IGNORECASE) for name in ("of_a_speaker", "of_another")
)


def _unquote(quote: re.Match[str]) -> str:
    inner = quote[0][1:-1]
    return (
        inner if len(inner.split()) <= _SHORT_QUOTE and not fold(inner).startswith(("i ", "my ")) else _QUOTE_MARK
    )


def _split_statements(sentence: str, people: People) -> list[str]:
    """The clauses of *sentence* that state something beyond doubt; of a question the clauses before it, and the
    reasons given for it."""
    sentence = _ADVISED.sub(_state_advice, told_of_writer(sentence) or sentence)
    stated, rest = sentence, ""
    if sentence.endswith("?"):
        tail = _ASKING_TAIL.search(sentence)
        stated, rest = (sentence[: tail.start()], sentence[tail.start() :]) if tail is not None else ("", sentence)
    told = strip_openers(fold(stated))
    if _REPORTED_WHOLE.search(strip_openers(fold(sentence))):
        return []
    if told and _asks(told):
        stated, rest = "", sentence
    found = _beyond_doubt(split_clauses(stated, people)) if told else []
    if rest and not _FICTION.search(fold(rest)):
        found += _beyond_doubt(_reasons(rest, people))
    return found


# "My physio says I have runner's knee": the words of an expert count
_ADVISED = re.compile(f"^{fill_in(LISTS['grammar']['advised'], LISTS['words'])}", re.IGNORECASE)


def _state_advice(said: re.Match[str]) -> str:
    return (
        "I've been diagnosed with"
        if said["has"] and fold(said["told"]) == "i"
        else said["told"] + (said["has"] or "")
    )


# "I want to learn Norwegian" is no request, "make it 6" corrects
_AMENDS = re.compile(
    r"(?:please\s+)?(?:always|never)\s+[a-z]|.{3,120}\s(?:always|everywhere|by\s+default|from\s+now\s+on|every\s+time)\b"
    r"|(?:change|move|push|set|switch|bump|update|raise|lower|increase|reduce)\s+(?:it|that|this)\s+(?:(?:back|forward|up|down)\s+)?to\s"
    rf"|(?:let's\s+)?make\s+(?:it|that)\s+(?:[^a-z]|(?:(?:on|next|this)\s+)*(?:{LISTS['words']['days']}|{LISTS['words']['months']}|noon)\b)"
    r"|(?:full\s+|first\s+)?name(?:'s|\s+is)\s"
    rf"|(?:i|we)(?:\s+(?:really\s+)?(?:want|hope|plan)|(?:'d|\s+would)\s+(?:like|love))\s+{LISTS['words']['aims']}"
)


def _asks(told: str) -> bool:
    return asks(told) and _AMENDS.match(told) is None


def _reasons(asked: str, people: People) -> list[str]:
    """Clauses of a question or request that tell its reason: "... since I'm vegan", "..., my wife is vegan"."""
    _, *pieces = _REASON.split(asked)
    return [clause for piece in pieces for clause in split_clauses(piece.rstrip("?"), people)]


def _beyond_doubt(clauses: Sequence[str]) -> list[str]:
    if not any(map(concerns_writer, clauses)):
        return []
    folded = [fold(clause) for clause in clauses]
    reported = next((at for at, clause in enumerate(folded) if _REPORTED.search(clause)), len(clauses))
    clauses, folded = clauses[:reported], folded[:reported]
    supposed = [at for at, clause in enumerate(folded) if _SUPPOSED.search(clause)]
    if supposed and (supposed[0] == 0 and _SUPPOSED.match(folded[0])):
        return []
    reaching = [at for at in supposed if not _CONDITION_BEHIND.match(folded[at])]
    start = reaching[-1] + 1 if reaching else 0
    return [
        clause
        for at, (clause, told) in enumerate(zip(clauses, folded, strict=True))
        if at >= start
        and at not in supposed
        and concerns_writer(clause)
        and not (_UNSURE.search(told) or _asks(told))
    ]


# A clause with its own condition leaves earlier clauses alone: "my wife is a physio, she hates it if I run".
_CONDITION_BEHIND = re.compile(r"^(?:[\w']+\s+){3,20}?(?:if|unless|wenn|falls)\b")


# --- procedures -------------------------------------------------------------------------------------
_PROCEDURE = re.compile(
    r"""(?imx)^[ \t]*(?:(?:remember|note|fyi|btw|by\ the\ way|here)[:,\s]+(?:that\s+)?)?(?:
        (?:how\ )?to\ (?P<verb>[a-z]+(?:\ up|\ down|\ back)?)\ (?P<object>(?!know\b)[^\n:,.!?]{2,80}?)\s*(?::|,
          |\ -|\ \u2013)\s*
          (?P<steps>(?:(?:we|i|you|first|just|always|simply|please|you\ (?:need|have)\ to|we\ (?:need
            |have)\ to)\s*,?\s+)*
            (?:run|use|execute|push|build|install|merge|open|click|start|stop|restart|type|call|go|log|ssh|set
              |create|copy|tag|unplug|press|hold|pull
            |check|wait|turn|fill|send|update|clone|edit|delete|select|mix|add|preheat|heat|put|take|bump|write
            |submit|export|apply|docker|kubectl|make|npm|git|`|1[.)])
            .*(?:\n[ \t]*(?:[-*\u2022]|\d+[.)]).*)*)
      | (?:the\ |our\ |my\ )?(?:steps?|procedure|process|way|recipe|instructions?)\ (?:to
      |for)\ (?P<goal>[^\n:]{2,80}?)\s*(?:is|are)?\s*(?::|\bis\b|\bare\b)\s*(?::\s*)?
          (?P<list>.{8,}(?:\n[ \t]*(?:[-*\u2022]|\d+[.)]).*)*)
    )"""
)
_IDLE_AIMS = frozenset(tokens(LISTS["grammar"]["no_deeds"]))
_LONGEST_STEPS = 300  # characters


def procedures(text: str) -> Iterator[tuple[str, str]]:
    """Yield aims with their steps, from "To deploy X: run ..." and "The steps to ... are: ..."."""
    for matched in _PROCEDURE.finditer(keep_meant_text(text)):
        aim = matched["goal"] or f"{matched['verb']} {matched['object']}"
        steps = _BLANKS.sub(" ", matched["list"] or matched["steps"]).strip(" .")
        verb = fold(matched["verb"] or "")
        if verb not in _IDLE_AIMS and not steps.endswith("?") and len(steps) <= _LONGEST_STEPS:
            yield aim.strip(), steps


# --- endings -----------------------------------------------------------------------------------------
# Endings: "I  no longer live in Paris" as the ending of "I live in Paris". Pure.

_WHO = r"(?P<who>i|we|(?:my|our)\s+[\w' -]{2,40}?)"
_NO_LONGER = re.compile(
    rf"{_WHO}(?P<be>'m|'re|'s|\s+am|\s+are|\s+is)?\s+(?:now\s+)?(?:no\s+longer|not\s+any\s*more)\s+(?P<rest>.+)",
    re.IGNORECASE,
)
_NOT_ANY_MORE = re.compile(
    rf"{_WHO}(?:(?P<be>'m|\s+am|\s+is|\s+are)\s+not|\s+(?P<isnt>isn't|aren't)|\s+(?:do\s+not|don't|does\s+not|doesn't"
    r"|can(?:'t|not|\s+not)))\s+(?P<rest>.+?),?\s+(?:any\s*more|any\s+longer)",
    re.IGNORECASE,
)
_STOPPED = re.compile(
    rf"{_WHO}(?:'ve|'s|\s+have|\s+has)?(?:\s+(?:just|recently|now|finally|completely))?\s+(?:stopped|quit|given\s+up|gave\s+up)"
    r"\s+(?P<doing>[a-z]+ing)\b\s*(?P<rest>.*)",
    re.IGNORECASE,
)
_MARKS = re.compile(r"\b(?:no\s+longer|any\s*more|any\s+longer|stopped|quit|gave\s+up|given\s+up)\b", re.IGNORECASE)
# of which every English rule of an ending or a loss needs one, and every rule of a change
_ENDING_WORDS = frozenset(
    tokens(
        """longer anymore more stopped quit give gave given sold sell rid traded scrapped donated rehomed lost
        stolen off totaled totalled destroyed repossessed knocked torn broke broken split separated divorce
        divorced ended dumped finished parted left walked together died passed put dropped resigned fired
        sacked redundant let laid retired moved cancel canceled cancelled called fell fallen through
        happening smoke-free come came ditched packed abandoned done pulled stepped ended again back
        replaced swapped exchanged switched changed migrated upgraded went rehome"""
    )
)
_CHANGING_WORDS = frozenset(
    tokens(
        f"""{LISTS["words"]["changes"]} {LISTS["words"]["changed"]} now make actually going more closer about move
        push set switch bump update relocated raise lower increase reduce delay postpone reschedule cancel leaves
        departs starts begins cancelled canceled call off scrapped happening fell fallen through"""
    )
) - {"from"}
_COPULA = re.compile(r"\b(is|are)\b")


def ends(clause: str) -> bool:
    """Whether *clause* may say that something stopped; then it states no present fact."""
    return _MARKS.search(clause) is not None


def may_tell(clause: str) -> tuple[bool, bool]:
    """Whether rules of endings can match *clause*, and rules of changes, by its words."""
    words = clause.lower().replace(",", " ").replace(".", " ").split()
    return not _ENDING_WORDS.isdisjoint(words), not _CHANGING_WORDS.isdisjoint(words)


def drop_any_more(clause: str) -> str:
    """Make "I can't have dairy" of "I can't have dairy any more"; empty for a *clause* that denies nothing."""
    return _ANY_MORE.sub("", clause) if _DENIES_ABILITY.search(clause) else ""


_DENIES_ABILITY = re.compile(r"\b(?:can't|cannot|can\s+not|not\s+allowed|don't|doesn't|won't)\b", re.IGNORECASE)
_ANY_MORE = re.compile(r",? any(?: ?more| longer)\b", re.IGNORECASE)


def find_endings(clause: str) -> Iterator[str]:
    """*clause* as it was said while it held, in the ways it may have been; none if it does not end anything."""
    for pattern in (_NO_LONGER, _NOT_ANY_MORE):
        if (found := pattern.fullmatch(clause)) is not None:
            groups = found.groupdict()
            be = groups["be"] or ({"isn't": " is", "aren't": " are"}.get((groups.get("isnt") or "").lower(), ""))
            yield f"{found['who']}{be} {found['rest']}"
            return
    if (found := _STOPPED.fullmatch(clause)) is not None:
        who, doing, rest = found["who"], found["doing"], found["rest"]
        be = "'m" if who.lower() == "i" else (" are" if who.lower() == "we" else " is")
        yield f"{who} {base_of(doing)} {rest}".strip()
        yield f"{who}{be} {doing} {rest}".strip()


_DAY = rf"(?:{LISTS['words']['days']}|{LISTS['words']['months']})"
_WHEN = re.compile(
    r",? (?P<when>(?:(?:about|almost|over|more than) )?"
    rf"(?:(?:an?|some|many|several|\d{{1,3}}|{LISTS['grammar']['numbers']}|a (?:few|couple of|long)) )?"
    r"(?:years?|months?|weeks?|days?|decades?|time|while|ages) (?:ago|back)|since .{2,40}|yesterday|recently"
    rf"|(?:earlier )?(?:last|this) (?:\w+ )?(?:year|month|week|weekend|spring|summer|autumn|fall|winter|{_DAY})"
    rf"|(?:(?:back )?in|on) (?:(?:19|20)\d\d|(?:(?:early|late|mid) )?{_DAY}\b.{{0,15}})"
    r"|for (?:\w+ ){1,3}(?:years|months|weeks)(?: now)?|(?:when|after) .{2,60}"
    r"|(?:because|due to|thanks to|for (?:health|medical|religious|ethical|money))\b.{2,80})"
    r"(?:(?:,| and| but) .{2,100})?$",
    re.IGNORECASE,
)


def split_time(clause: str) -> tuple[str, str]:
    """*clause* without the time or reason at its end, and these: "I quit coffee" and "two weeks ago"."""
    found = _WHEN.search(clause)
    return (clause[: found.start()], found["when"]) if found is not None else (clause, "")


# "I'm not allergic to nuts", "my sister doesn't live in Oslo": what may have been understood, and is not so
_DENIAL = re.compile(
    r"(?P<who>i|we|(?:my|our) [\w'-]+(?: [\w'-]+){0,4}?)"
    rf"(?:(?P<be>'m|'re|'s| am| are| is) not| (?P<isnt>isn't|aren't)| (?P<dont>don't|doesn't|do not|does not))"
    rf" (?:(?:actually|really|even) )?(?P<rest>(?:(?<=not )|(?<=n't )|(?<=ly )|(?<=even ))"
    rf"(?:allergic|intolerant|{LISTS['words']['traits']}|married|divorced|engaged"
    r"|from|live|work (?:at|for|as)|based)\b.*)",
    re.IGNORECASE,
)


def find_denial(clause: str) -> tuple[str, str]:
    """*clause* without its denial, and what it denies in the third person: "I'm vegan" and "is not vegan".
    Both empty where it denies nothing that rules learn."""
    one = _DENIAL.fullmatch(clause)
    if one is None:
        return "", ""
    be = one["be"] or {"isn't": " is", "aren't": " are"}.get((one["isnt"] or "").lower(), "")
    return f"{one['who']}{be} {one['rest']}", f"{'does not' if one['dont'] else 'is not'} {one['rest']}"


def no_longer(content: str, who: str) -> str:
    """The fact *content* about *who* after its ending: "User no longer lives in Paris"."""
    own = f"{who} "
    if content.startswith(f"{own}is "):
        return f"{own}is no longer {content.removeprefix(f'{own}is ')}"
    if content.startswith(own):
        return f"{own}no longer {content.removeprefix(own)}"
    return _COPULA.sub(r"\1 no longer", content, count=1)


# --- corrections -------------------------------------------------------------------------------------
AS_SAID = "answered "  # begins a clause that only rules for answers and endings read
LONGEST_FRAGMENT = 120  # characters; a longer answer needs no question to be understood
CALENDAR = re.compile(
    rf"\b(?:{LISTS['words']['days']}|{LISTS['words']['months']}|{MONTHS}|{LISTS['words']['weekdays_abroad']}|noon|midnight)\b",
    re.IGNORECASE,
)
# "actually no, the 5th", "not the 3rd, the 4th": a value alone that replaces the last value
_CORRECTION = re.compile(
    rf"(?:(?:{LISTS['grammar']['corrects']})\b[\s,.:!\u2013\u2014-]*){{1,5}}(?:not [^,]{{1,20}}, (?:but )?)?"
    r"(?:(?:it|that)(?:'s| is) (?:now )?)?(?:am |um |den |le |el |al |au )?"
    r"(?P<value>(?!.*\b(?:is|are|est|es|ist)\b)"
    r"(?:on |in |at |the )*[^\s,.!?](?:[^,.!?]|[,.](?=\d)|(?<=\d)\.(?= \w)){0,30})[.!]*"
    r"|not (?:on )?the [^,]{1,20}, (?:but |it's )?(?P<other>[^,.!?]{1,30})[.!]*",
    re.IGNORECASE,
)


def read_correction(text: str) -> list[str]:
    """*text* as "it's now" with the value alone that it puts in the place of another."""
    one = _CORRECTION.fullmatch(" ".join(text.replace("\u2019", "'").split())[: LONGEST_FRAGMENT + 1])
    value = (one["value"] or one["other"]) if one is not None else ""
    return [f"it's now {value}"] if any(map(str.isdigit, value)) or CALENDAR.search(value) else []
