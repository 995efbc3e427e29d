"""The operator's rules: what holds for which requests. The first rule that matches decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from types import MappingProxyType

from memory_extproc.dialect.base import ChatRequest
from memory_extproc.model import Caller, MemoryType, Outcome, Owner, Signals, Switch, digest
from memory_extproc.model.headers import Headers
from memory_extproc.request.admission import Admitted, RequestOptions

NO_SIGNALS = Signals()
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """What must hold, all of it; what is empty holds always.

    Globs know `*`, `?` and `[...]`; `*` also spans slashes. *path* is compared without its query. Models are
    compared without regard to case, everything else with it. A header that did not come matches no glob.
    """

    path: str = ""
    model: str = ""
    route: str = ""
    tenant: str = ""
    project: str = ""
    upstream: str = ""  # the name of Envoy's cluster
    header: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)  # name: glob over any of its values
    keyword: tuple[str, ...] = ()  # any of these whole words or phrases in the caller's last words


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """What a rule sets; None leaves the configured value."""

    retrieve: Switch = Switch.DEFAULT  # SKIP is the operator's no: outcome `disabled`, nothing overrides it
    store: Switch = Switch.DEFAULT
    compress: Switch = Switch.DEFAULT  # SKIP is the operator's no here too
    threshold: float | None = None  # relevance, 0 to 1
    limit: int | None = None
    token_budget: int | None = None  # estimated tokens of the block, an overview's too
    project: str = ""  # instead of the one that the request names; empty: that one
    types: frozenset[MemoryType] | None = None
    signals: Signals = NO_SIGNALS
    inject: str | None = None  # auto, system_message or user_suffix
    origins: tuple[str, ...] = ()  # only memories of these, as in Scope; empty: any
    shared: bool = True  # False: the caller's own memories alone


NO_RULE = Then()


@dataclass(frozen=True, slots=True)
class Rule:
    when: When
    then: Then


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """What a rule may ask about one request."""

    path: str
    model: str = ""
    route: str = ""
    tenant: str = ""
    project: str = ""
    upstream: str = ""
    headers: Headers = field(default_factory=Headers)
    asked: str = field(default="", repr=False)  # the caller's last words


class Rules:
    """Compiled once; *first* costs a few pattern matches per rule."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple((_Matcher(rule.when), rule.then) for rule in rules)

    def first(self, facts: RuleFacts) -> Then:
        """What the first matching rule sets; `NO_RULE` when none does."""
        return next((then for matcher, then in self._rules if matcher.holds(facts)), NO_RULE)


class _Matcher:
    def __init__(self, when: When) -> None:
        self._path = glob(when.path)
        self._model = glob(when.model.casefold())
        self._route = glob(when.route)
        self._tenant = glob(when.tenant)
        self._project = glob(when.project)
        self._upstream = glob(when.upstream)
        self._headers = [(name.lower(), glob(pattern or "*")) for name, pattern in when.header.items()]
        self._keywords = keywords(when.keyword)

    def holds(self, facts: RuleFacts) -> bool:
        return (
            _match(self._path, facts.path.partition("?")[0])
            and _match(self._model, facts.model.casefold())
            and _match(self._route, facts.route)
            and _match(self._tenant, facts.tenant)
            and _match(self._project, facts.project)
            and _match(self._upstream, facts.upstream)
            and all(
                any(_match(pattern, value) for value in facts.headers.all(name)) for name, pattern in self._headers
            )
            and (self._keywords is None or self._keywords.search(facts.asked.casefold()) is not None)
        )


def glob(pattern: str) -> re.Pattern[str] | None:
    """A compiled glob over whole texts; None for the empty one, which asks nothing."""
    return re.compile(translate(pattern)) if pattern else None


def _match(pattern: re.Pattern[str] | None, text: str) -> bool:
    return pattern is None or pattern.match(text) is not None


# Scripts that write words without spaces between them (Thai to Khmer; kana and Han): a keyword there is a word
# wherever it stands, because its neighbours say nothing about where a word ends.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def keywords(words: Sequence[str]) -> re.Pattern[str] | None:
    """Finds any of *words* as a whole in case-folded text; None if there are none. The words of a phrase may
    be apart by any white space."""
    wanted = [_whole(word.casefold().split()) for word in words if word.strip()]
    return re.compile("|".join(wanted)) if wanted else None


def _whole(parts: Sequence[str]) -> str:
    inner = r"\s+".join(re.escape(part) for part in parts)
    first, last = parts[0][0], parts[-1][-1]
    before = "" if _UNSPACED.match(first) else r"(?<!\w)"
    after = "" if _UNSPACED.match(last) else r"(?!\w)"
    return before + inner + after


# --- verdict -----------------------------------------------------------------------------------------
# Who may have memory for one request, and how much: the operator's no, then the client's, and the limits.
#
# What a client says only narrows: fewer memories, a higher bar, fewer types, none at all. Only `force` opens
# something, the gate, and only on the client's own memories.

SHARES = 10_000  # steps of *percent*: a hundredth of a percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """All that a verdict is made from."""

    options: RequestOptions
    admitted: Admitted
    request: ChatRequest
    then: Then
    caller: Caller | None
    auxiliary: bool  # a chat client's own call: nobody speaks


@dataclass(frozen=True, slots=True)
class Limits:
    """How one request is recalled for, when everybody who may say something has said it."""

    limit: int  # memories in the block at most
    threshold: float  # relevance, 0 to 1
    types: frozenset[MemoryType]
    signals: Signals
    force: bool
    limited: bool = False  # the request or a rule names the limit


def refusal(of: Circumstances) -> Outcome | None:
    """Why there is no recall, in order of whose word counts most; None where there may be one."""
    controls = of.admitted.controls
    body = of.request.controls
    if not of.options.enabled or of.then.retrieve is Switch.SKIP or _nobodys(of):
        return Outcome.DISABLED
    if of.caller is None:
        return Outcome.NO_CALLER
    if controls.retrieve is Switch.SKIP or body.enabled is False or body.limit == 0:
        return Outcome.OPTED_OUT
    return None


def stores(of: Circumstances) -> bool:
    """Whether the exchange may be learned, when its answer turns out well."""
    controls = of.admitted.controls
    body = of.request.controls
    refused_by_operator = not of.options.enabled or of.then.store is Switch.SKIP
    if refused_by_operator or _nobodys(of):
        return False
    if controls.store is Switch.SKIP or body.enabled is False or body.store is False:
        return False
    forced = Switch.FORCE in (controls.store, of.then.store)
    asked = body.store is True and of.options.client_may_enable
    return forced or asked or of.options.auto_store


def _nobodys(of: Circumstances) -> bool:
    """Whether nobody speaks here for the first time."""
    return of.auxiliary or of.admitted.controls.internal or of.admitted.controls.redirected


def compresses(of: Circumstances) -> Switch:
    """Whether a long conversation goes on shortened: the operator's no, then the client's, then who asks for it."""
    said = (of.then.compress, of.admitted.controls.compress)
    if Switch.SKIP in said:
        return Switch.SKIP
    return Switch.FORCE if Switch.FORCE in said else Switch.DEFAULT


def limits_of(of: Circumstances) -> Limits:
    then, body = of.then, of.request.controls
    limit = of.options.limit if then.limit is None else then.limit
    threshold = of.options.threshold if then.threshold is None else then.threshold
    types = frozenset(MemoryType) if then.types is None else then.types
    told, heard = then.signals, of.admitted.signals
    return Limits(
        limit=limit if body.limit is None else max(0, min(limit, body.limit)),
        threshold=threshold if body.threshold is None else max(threshold, body.threshold),
        types=types if body.types is None else types & body.types,
        signals=Signals(
            fact=heard.fact if told.fact is None else told.fact,
            tool=heard.tool if told.tool is None else told.tool,
            greeting=heard.greeting if told.greeting is None else told.greeting,
        ),
        force=Switch.FORCE in (of.admitted.controls.retrieve, then.retrieve),
        limited=body.limit is not None or then.limit is not None,
    )


def in_control_group(owner: Owner, percent: float) -> bool:
    """Whether *owner* is among those who get nothing at *percent*; the same answer for as long as percent
    stands, and nobody who had memories loses them when it rises."""
    place = int(digest("gradual", owner.key)[:8], 16) % SHARES
    return place >= percent / 100 * SHARES


# --- auxiliary ---------------------------------------------------------------------------------------
# Calls that a chat client makes for itself: titles, tags, summaries, follow-ups. Nobody says anything in them, so
# nothing is remembered from them and no memory belongs into them.
#
# They are known by how their prompts begin, word for word as the clients send them. A prompt that a person could
# have written is not in the list: a title too many costs a row, a person's words lost cost trust.

_LOOKED_AT = 600  # characters of a prompt's beginning; every pattern is anchored there
_LOOKED_AT_OF_SYSTEM = 2_000

# What the caller's last message begins with, by client. Case and white space do not count.
_ASKED = (
    # Open WebUI, config.py DEFAULT_*_PROMPT_TEMPLATE. Its retrieval template also begins with "### Task:", but
    # goes on "Respond to the user query" and carries the caller's own words: it must not match.
    r"#+ task: (?:generate|create) (?:a concise, )?\d(?:-\d)?[ -]word",
    r"#+ task: generate (?:a concise|an? [\w-]+ title|(?:\d(?:-\d)? )?broad tags)",
    r"#+ task: generate a detailed prompt for am? image",
    r"#+ task: suggest \d(?:-\d)? (?:relevant )?follow-up",
    r"#+ task: analyze the chat history to determine the necessity",
    r"#+ task: based on the chat history, determine whether a search",
    r"#+ task: you are an? (?:autocompletion system|title generator)",
    r"your task is to reflect the speaker's likely facial expression through a fitting emoji",
    r"create a concise, 3-5 word (?:title|phrase) (?:with an emoji )?as (?:a )?(?:title|header) for the",
    # LibreChat, api/app/clients and @librechat/agents
    r"(?:please generate|provide) a concise, 5-word-or-less title for the conversation",
    r"detect user language and write in the same language an extremely concise title",
    r"analyze this conversation and provide: 1\. the detected language of the conversation",
    r"summarize the conversation by integrating new lines into the current summary",
    # NextChat and its forks, locales/en.ts Store.Prompt
    r"please generate a four to five word title summarizing our conversation",
    r"summarize (?:our|the) discussion briefly in 200 words or less to use as a prompt for future context",
    r"使用四到五个字直接返回这句话的简要主题",
    r"简要总结一下对话内容, ?用作后续的上下文提示 ?prompt",
    # IDEs and their wrappers
    r"generate a concise 3-7 word title for this conversation, omitting punctuation",  # Zed
    r"please (?:write|reply with) a (?:5-10 word title for the following|title for the chat that is 3-4 words)",
    r"given the following\.{3} please reply with a title for the chat that is 3-4 words",  # Continue
    r"please write a brief title for the following request:",  # Copilot Chat
    r"<task> ?generate a (?:short|concise) (?:conversation )?title",
    r"generate a title for this conversation:",  # opencode
)

# What the system message of such a call begins with, or a line of it.
_SYSTEM = (
    r"you are a summarization ai\. you'll never answer a user's question directly",  # HuggingFace chat-ui
    r"you are a title generator\. you output only a thread title",  # opencode
    r"you are an expert in crafting (?:pithy|ultra-compact) titles for chatbot conversations",  # Copilot
    r"you(?: a|')re a professional conversation summarizer\. generate a concise title",  # LobeChat
    r"你是一名擅长会话的助理, ?你需要将用户的会话总结为",  # LobeChat
    r"you are an assistant (?:who is )?skilled in conversation\. you need to summarize the user's conversation",
    r"analyze if this message indicates a new conversation topic",  # Claude Code
    r"summarize this coding conversation in under 50 characters",
    r"(?:- )?you will generate a short title based on the first message a user begins a conversation with",
)


def _beginnings(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_ASKED_BEGINS = _beginnings(*_ASKED)
# Some clients say in a system message what others have the caller ask.
_SYSTEM_BEGINS = _beginnings(*_ASKED, *_SYSTEM)
# A coding agent's own name stands in a block before: there, what it is about begins a line of its own.
_LINE_BEGINS = _beginnings(*_SYSTEM)
# Typographic quotes and full-width commas are put in by some clients' translations only.
_PLAIN = str.maketrans({"\u2019": "'", "\u201c": '"', "\u201d": '"', "\uff0c": ","})


def auxiliary(asked: str, system: str = "") -> bool:
    """Whether a request is a client's own call, by its last user message or its system message. Reads the
    beginning of each."""
    if _ASKED_BEGINS.match(_one_line(_fold_text(asked[:_LOOKED_AT]))):
        return True
    if not system:
        return False
    folded = _fold_text(system[:_LOOKED_AT_OF_SYSTEM])
    if _SYSTEM_BEGINS.match(_one_line(folded[:_LOOKED_AT])):
        return True
    return any(_LINE_BEGINS.match(_one_line(line)) for line in folded.splitlines())


def _fold_text(text: str) -> str:
    return (text if text.isascii() else text.translate(_PLAIN)).casefold()


def _one_line(text: str) -> str:
    return " ".join(text.split())
