"""The writer's statements about themselves in a message, also short answers to the assistant's questions.

Quoted, pasted, asked, supposed and played text is left out, and so is any text in doubt: the message itself is
remembered all the same."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Mapping, Sequence
from datetime import date

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
from memory_extproc.text.dates import Span, days_named
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
# "Oops, my flight is on May 8" takes the place of what was said of the flight before
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


# "My physio says I have runner's knee": what those say who know
_ADVISED = re.compile(f"^{fill_in(LISTS['grammar']['advised'], LISTS['words'])}", re.IGNORECASE)


def _state_advice(said: re.Match[str]) -> str:
    return "I've been diagnosed with" if said["has"] and fold(said["told"]) == "i" else said["told"] + (said["has"] or "")


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


# --- event date --------------------------------------------------------------------------------------
# The day, month or year that a fact is about, counted from the day it was said. Pure.

_FORM = re.compile(r"(\d{4})(?:-(\d\d)(?:-(\d\d))?)?")
_HAS_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_PAST = re.compile(
    rf"\b(?:was|were|did|met|saw|born|ago|last|yesterday|past|since|{'|'.join(LISTS['past_forms'].split())}|[a-z]{{3,}}ed)\b",
    re.IGNORECASE,
)
# "is getting married", "will be moved": participles about the future
_AHEAD = re.compile(
    r"(?:'m|'re|'s|\bam|\bis|\bare)\s+(?:\w+ly\s+)?(?!(?:being|having)\b)[a-z]+ing\b|\b(?:will|'ll|going\s+to|due|scheduled|booked|planned|is|are)\b",
    re.IGNORECASE,
)
_SLACK = 1  # days by which a model may miscount; time zones differ by as much
_FAR = 2 * 366  # days; further away a date must stand in the words


def resolve_event_time(text: str, said: date, proposed: str = "") -> str:
    """The time that *text*, said on the day *said*, is about: YYYY-MM-DD, YYYY-MM, YYYY, or empty if ambiguous. A
    model's *proposed* time is taken unless the words contradict it."""
    spans = [_ahead(span, text, said) for span in days_named(text, said)]
    wanted = span_of(proposed)
    if wanted is not None:
        if any(wanted[0] <= last + _SLACK and first - _SLACK <= wanted[1] for first, last in spans):
            return proposed
        if not spans and abs(wanted[0] - said.toordinal()) <= _FAR:
            return proposed
    return _form(spans[0]) if len(spans) == 1 else ""


def span_of(form: str) -> Span | None:
    """First and last day of YYYY-MM-DD, YYYY-MM or YYYY; None for anything else."""
    matched = _FORM.fullmatch(form)
    if matched is None:
        return None
    year, month, day = (int(part) if part else 0 for part in matched.groups())
    try:
        first = date(year, month or 1, day or 1)
        last = first if day else date(year, month or 12, monthrange(year, month or 12)[1])
    except ValueError:
        return None
    return first.toordinal(), last.toordinal()


def _ahead(span: Span, text: str, said: date) -> Span:
    """A date without a year is in the past if the text is, else the next occurrence."""
    if span[1] >= said.toordinal() or _HAS_YEAR.search(text) or (_PAST.search(text) and not _AHEAD.search(text)):
        return span
    try:
        first, last = (day.replace(year=day.year + 1) for day in map(date.fromordinal, span))
    except ValueError:  # the 29th of February
        return span
    return first.toordinal(), last.toordinal()


def _form(span: Span) -> str:
    first, last = map(date.fromordinal, span)
    if first == last:
        return first.isoformat()
    for form in (f"{first:%Y-%m}", f"{first:%Y}"):
        if span_of(form) == span:
            return form
    return ""


_LAST_WORDS = 800  # characters of the assistant's words in which its question is looked for
AS_SAID = "answered "  # begins a clause that only rules for answers and endings read
_LONGEST_FRAGMENT = 120  # characters; a longer answer needs no question to be understood


def stated_in_answer(question: str, text: str, people: People | None = None) -> list[str]:
    """The clauses that *text* states as the answer to *question*, the assistant's words before it; "their names"
    are those of the *people* spoken of."""
    if confirms(text) and (confirmed := read_confirmation(question)):
        return confirmed
    return complete_fragment(question, text, people) or (
        [] if "?" in question[-_LAST_WORDS:] else read_correction(text)
    )


_A_NAME = r"(?-i:[A-Z\u00c0-\u00de][\w'-]*\w)(?: (?-i:[A-Z\u00c0-\u00de][\w'-]*\w))?"
_FIRMLY = re.compile(
    r"\b(?:i mean|i meant|should be|sorry|correction|typo|oops|ich mein(?:t)?e|je voulais dire|quería decir"
    r"|perdón|pardon|entschuldigung)\b",
    re.IGNORECASE,
)
_CALENDAR = re.compile(
    rf"\b(?:{LISTS['words']['days']}|{LISTS['words']['months']}|{MONTHS}|{LISTS['words']['weekdays_abroad']}|noon|midnight)\b",
    re.IGNORECASE,
)
# "actually no, the 5th", "not the 3rd, the 4th": a value alone that takes the place of the one spoken of
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
    one = _CORRECTION.fullmatch(" ".join(text.replace("\u2019", "'").split())[: _LONGEST_FRAGMENT + 1])
    value = (one["value"] or one["other"]) if one is not None else ""
    return [f"it's now {value}"] if any(map(str.isdigit, value)) or _CALENDAR.search(value) else []


# "I meant Max, not Mark", "sorry, Max", "his name is Max, not Mark": a name that takes the place of another
_RENAMING = re.compile(
    r"(?:(?:oh|ah|oops|hm+|no|nope|wait|sorry|actually|correction|typo|well|i mean|i meant|ich mein(?:t)?e"
    r"|je voulais dire|quería decir|perdón|pardon|entschuldigung|i said|it's|it is|that's"
    r"|(?:that )?should be"
    r"|(?:his|her|their|the|its) name(?: is|'s)|(?:he|she|it)(?:'s| is) called)\b[\s,.:!\u2013\u2014-]*){1,5}"
    rf"(?P<name>{_A_NAME})(?P<not>,? (?:and )?(?:not|nicht|pas|no) (?P<former>{_A_NAME}))?[.!]*"
    rf"|not (?P<wrong>{_A_NAME})[,;.]? (?:but |it's |i meant |i mean )?(?P<right>{_A_NAME})[.!]*"
    rf"|(?P<instead>{_A_NAME}), (?:not|nicht|pas|no) (?P<before>{_A_NAME})[.!]*",
    re.IGNORECASE,
)


def read_renaming(text: str) -> tuple[str, str]:
    """The name that *text* puts in the place of another, and that other if it is said; else empty."""
    said = " ".join(text.replace("\u2019", "'").split())
    one = _RENAMING.fullmatch(said) if len(said) <= _LONGEST_FRAGMENT else None
    if one is None:
        return "", ""
    name, former = (one["name"] or one["right"] or one["instead"]), (one["former"] or one["wrong"] or one["before"])
    firm = former or _FIRMLY.search(said)
    return ("", "") if _CALENDAR.search(name) or not firm else (name, former or "")


_CONFIRMS = re.compile(
    r"^(?:oh\s+)?(?:yes|yeah|yep|yup|exactly|correct|right|precisely|indeed|that(?:'s|\s+is)\s+(?:right|correct|it|true)|true"
    r"|ja|genau|stimmt|richtig|oui|exact(?:ement)?|c'est\s+(?:ça|exact)|sí|exacto|correcto|así\s+es|是的?|对的?|沒錯|没错)"
    r"(?=[\s,.!:;\uff0c\u3002\uff01-]|$)"
)
_DENIES = re.compile(r"\b(?:but|not|no|isn't|wasn't|except|actually|aber|nicht|mais|pas|pero)\b")


def confirms(text: str) -> bool:
    """Whether *text* plainly says yes to the question before it, and takes nothing back."""
    folded = fold(text).strip()
    return _CONFIRMS.match(folded) is not None and _DENIES.search(folded) is None


_ASKED_BACK = re.compile(
    r"(?:so|just\s+to\s+(?:confirm|be\s+sure|check)|to\s+confirm|and|ok(?:ay)?|got\s+it|do\s+i\s+understand\s+(?:correctly|right)"
    r"|did\s+i\s+get\s+(?:this|that)\s+right|am\s+i\s+right|is\s+it\s+(?:right|correct|true)|you\s+mean|you're\s+saying|you\s+said)"
    r"(?:\s+that)?[\s,:-]+",
    re.IGNORECASE,
)
_TAG = re.compile(
    r",?\s*(?:right|correct|is\s+that\s+(?:right|correct)|isn't\s+it|yes|aren't\s+you|don't\s+you)?\s*\?+$",
    re.IGNORECASE,
)
_SECOND_PERSON = (
    (re.compile(r"\byou\s+are\b|\byou're\b", re.IGNORECASE), "I'm"),
    (re.compile(r"\byou've\b", re.IGNORECASE), "I've"),
    (re.compile(r"\byour\b", re.IGNORECASE), "my"),
    (re.compile(r"\byou\b", re.IGNORECASE), "I"),
)


def read_confirmation(answer: str) -> list[str]:
    """The clauses that a plain yes to the last question of *answer* makes the caller's own: "So you live in Paris?"
    is then "I live in Paris". None where it asks in any other way."""
    *_, last = ["", *sentences(answer[-_LAST_WORDS:])]
    if not last.endswith("?") or asks(last.rstrip("?")):
        return []
    stated = _TAG.sub("", last.replace("\u2019", "'"))
    while (opened := _ASKED_BACK.match(stated)) is not None:
        stated = stated[opened.end() :]
    if not stated.lower().startswith(("you", "your")):
        return []
    for pattern, own in _SECOND_PERSON:
        stated = pattern.sub(own, stated)
    return first_person_statements(f"{stated}.")


# --- fragments ---------------------------------------------------------------------------------------
_PARTS = {**LISTS["words"], "numbers": LISTS["grammar"]["numbers"], **LISTS["answered"]}
_QUESTIONS = [
    (
        re.compile(fill_in(one["question"], _PARTS)),
        re.compile(rf"\A(?:{fill_in(one.get('needs', '.+'), _PARTS)})\Z"),
        one,
    )
    for one in LISTS["answer"]
]
_NO_FRAGMENT = re.compile(rf"(?:{LISTS['answered']['no_fragment']})")
_LEADS = re.compile(rf"\A(?:(?:{LISTS['answered']['leads']})[\s,:]+)+", re.IGNORECASE)
_AND_YOU = re.compile(
    r",? (?:and|und|et|y) (?:you(?:rs)?|du|sie|dir|ihnen|toi|vous|tú|usted)\s?\?\Z", re.IGNORECASE
)
_LABEL = re.compile(LISTS["grammar"]["label"])
_DETAIL = re.compile(r"[;(\u2013\u2014]|,(?!\d)| -+ | (?:since|but|because|depuis|desde|seit) ", re.IGNORECASE)
_NONE = re.compile(r"(?:no|none|nope|nah|nein|keine?|non|aucune?|ninguna?)", re.IGNORECASE)
_ITEMS = re.compile(r",(?!\d)(?: (?:and|und|et|y) )?| (?:and|und|et|y) ", re.IGNORECASE)
_ONE_NAME = re.compile(r"[A-Z\u00c0-\u00de][\w'-]*(?: [A-Z\u00c0-\u00de][\w'-]*)?")
_LEADING_NO = re.compile(r"\A(?:no|kein\w*|pas de|sin)\s+", re.IGNORECASE)
_MOST_ITEMS = 8
# "how many words, and what year are you in?" asks two things, and "what is the price and your deposit?" does, too
_ALSO_ASKED = re.compile(r",? and (?=(?:what|which|how|where|when|who)\b)")
_TWO_THINGS = re.compile(
    r"((?:what|when|who|how much)(?:'s| is| are) )((?:your|the|my)\b.*) and ((?:your|the)\b.*)"
)
# "Pilar can't have sesame" answers in a sentence of its own
_OWN_SENTENCE = re.compile(LISTS["answered"]["own_sentence"], re.IGNORECASE)
_OF_MINE = re.compile(r"(?:my|our) ", re.IGNORECASE)
_YOUR = re.compile(r"\byour\b", re.IGNORECASE)


def complete_fragment(question: str, text: str, people: People | None = None) -> list[str]:
    """Complete *text*, a fragment, with the words of the only question in *question*."""
    first, *_ = [*sentences(_AND_YOU.sub("", text.strip())), ""]
    asked = [one for one in sentences(question[-_LAST_WORDS:]) if one.endswith("?")]
    if len(asked) != 1 or not first or len(first) > _LONGEST_FRAGMENT or asks(first):
        return []
    fragment = _LEADS.sub("", " ".join(first.replace("\u2019", "'").split()), count=1).strip(" .!,")
    of_mine = _OF_MINE.match(fragment) is not None
    if not fragment or _LABEL.match(fragment) or (not of_mine and _NO_FRAGMENT.match(fold(fragment))):
        return []
    parts = _ALSO_ASKED.split(fold(asked[0].replace("\u2019", "'")))
    items = [one.strip() for one in _ITEMS.split(fragment)]
    if (two := _TWO_THINGS.search(parts[0])) is not None:
        parts = [f"{two[1]}{two[2]}", f"{two[1]}{two[3]}"]
        if len(items) != len(parts) or any(_NO_FRAGMENT.match(fold(one)) for one in items):
            return []  # "285,000": the price or the deposit?
    pairs = zip(parts, items, strict=True) if 1 < len(parts) == len(items) else [(", ".join(parts), fragment)]
    return [clause for part, item in pairs for clause in _answer(part, item, people, of_mine=of_mine)]


def _answer(asked: str, fragment: str, people: People | None, *, of_mine: bool) -> list[str]:
    for pattern, needs, entry in _QUESTIONS:
        if of_mine and "mine" not in entry:
            continue
        if (one := pattern.search(asked)) is not None and (
            found := list(_clauses(one.groupdict(""), needs, entry, fragment, people))
        ):
            return found
    return []


def _fits(fragment: str, needs: re.Pattern[str]) -> bool:
    return needs.match(fold(fragment)) is not None and _OWN_SENTENCE.search(fragment) is None


def _clauses(
    groups: Mapping[str, str],
    needs: re.Pattern[str],
    entry: Mapping[str, str],
    fragment: str,
    people: People | None,
) -> Iterator[str]:
    """The clauses of *entry*, or of its denial where *fragment* says that there is none."""
    whose = groups.get("whose", "")
    own = {name: _YOUR.sub("my", text) for name, text in groups.items()}
    words = {**own, "who": f"my {whose}" if whose else "I", "be": f"my {whose} is" if whose else "I'm"}
    head = _DETAIL.split(fragment, maxsplit=1)[0].strip()
    if _NONE.fullmatch(head):
        if "none" in entry:
            yield from first_person_statements(entry["none"].format_map(words))
    elif "each" in entry:
        for item in _ITEMS.split(fragment)[:_MOST_ITEMS]:
            said = _LEADING_NO.sub("", item.strip(), count=1)
            if _fits(said, needs):
                yield from first_person_statements(entry["clause"].format_map({**words, "value": said}))
    elif _fits(head, needs):
        several = "names" in entry and all(_ONE_NAME.fullmatch(item.strip()) for item in _ITEMS.split(fragment))
        words["value"] = fragment if several else head
        if "titled" in entry and not head[:1].isupper():
            return
        if "clause" in entry:
            yield from first_person_statements(entry["clause"].format_map(words), people)
        if "plainly" in entry:
            yield f"{AS_SAID}{entry['plainly'].format_map(words)}"
