"""Request policy: the operator's rules, access decisions and the detection of auxiliary calls.

The first match wins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate

from memory_extproc.dialect.base import ChatRequest
from memory_extproc.model import Caller, MemoryType, Outcome, Owner, Signals, Switch, digest
from memory_extproc.model.headers import Headers
from memory_extproc.request.admission import Admitted
from memory_extproc.settings import Settings
from memory_extproc.settings.traffic import RuleSection, RuleThen, RuleWhen

# Without effect; the configuration accepts no such rule.
NO_RULE = RuleThen.model_construct()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """The properties of a request that rules can test."""

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

    def __init__(self, rules: Sequence[RuleSection]) -> None:
        self._rules = tuple((_Matcher(rule.when), rule.then) for rule in rules)

    def first(self, facts: RuleFacts) -> RuleThen:
        """The settings of the first matching rule; `NO_RULE` if none matches."""
        return next((then for matcher, then in self._rules if matcher.holds(facts)), NO_RULE)


class _Matcher:
    """The conditions of a rule; all must hold, and an empty condition always holds.

    Globs know `*`, `?` and `[...]`; `*` also spans slashes. A path is compared without its query. Models are
    compared without regard to case, everything else with it. A missing header matches no glob."""

    def __init__(self, when: RuleWhen) -> None:
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
    """Compile a glob that matches whole texts; None for the empty glob, which matches everything."""
    return re.compile(translate(pattern)) if pattern else None


def _match(pattern: re.Pattern[str] | None, text: str) -> bool:
    return pattern is None or pattern.match(text) is not None


# Scripts without spaces between words (Thai to Khmer; kana and Han): a keyword matches anywhere in them, because
# its neighbours do not mark a word boundary.
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


# Access decisions: whether a request may recall and store, and within which limits.
#
# The operator's denial comes first, then the client's. Clients can only narrow: fewer memories, a higher threshold,
# fewer types, or none. Only `force` widens, by skipping the gate, and only for the client's own memories.

SHARES = 10_000  # steps of *percent*: a hundredth of a percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """The input of an access decision."""

    settings: Settings
    admitted: Admitted
    request: ChatRequest
    then: RuleThen
    caller: Caller | None
    auxiliary: bool  # a call that a chat client makes for itself


@dataclass(frozen=True, slots=True)
class EffectiveLimits:
    """The effective limits of a recall, from the settings, the rule and the client."""

    limit: int  # memories in the block at most
    threshold: float  # relevance, 0 to 1
    types: frozenset[MemoryType]
    signals: Signals
    force: bool
    limited: bool = False  # the request or a rule names the limit


def refusal(of: Circumstances) -> Outcome | None:
    """Why recall is refused, by precedence; None if it is allowed."""
    controls = of.admitted.controls
    body = of.request.controls
    if not of.settings.memory.enabled or of.then.retrieve is Switch.SKIP or _has_no_user_input(of):
        return Outcome.DISABLED
    if of.caller is None:
        return Outcome.NO_CALLER
    if controls.retrieve is Switch.SKIP or body.enabled is False or body.limit == 0:
        return Outcome.OPTED_OUT
    if of.admitted.late:
        return Outcome.OVERLOADED
    return None


def stores(of: Circumstances) -> bool:
    """Whether the exchange may be learned if it completes."""
    controls = of.admitted.controls
    body = of.request.controls
    refused_by_operator = not of.settings.memory.enabled or of.then.store is Switch.SKIP
    if refused_by_operator or _has_no_user_input(of):
        return False
    if controls.store is Switch.SKIP or body.enabled is False or body.store is False:
        return False
    forced = Switch.FORCE in (controls.store, of.then.store)
    asked = body.store is True and of.settings.memory.client_may_enable
    return forced or asked or of.settings.memory.auto_store


def _has_no_user_input(of: Circumstances) -> bool:
    """Whether the request carries no new user input: auxiliary, internal or redirected."""
    return of.auxiliary or of.admitted.controls.internal or of.admitted.controls.redirected


def wants_compression(of: Circumstances) -> Switch:
    """Whether to compress the conversation. A denial by the operator or the client precedes any request for it."""
    said = (of.then.compress, of.admitted.controls.compress)
    if Switch.SKIP in said:
        return Switch.SKIP
    return Switch.FORCE if Switch.FORCE in said else Switch.DEFAULT


def limits_of(of: Circumstances) -> EffectiveLimits:
    then, body, memory = of.then, of.request.controls, of.settings.memory
    limit = memory.default_retrieval_limit if then.limit is None else then.limit
    threshold = memory.default_similarity_threshold if then.threshold is None else then.threshold
    types = frozenset(MemoryType) if then.types is None else then.types
    told, heard = then.signals, of.admitted.signals
    return EffectiveLimits(
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


def is_control(settings: Settings, owner: Owner) -> bool:
    """Whether *owner* gets no memories, for comparison with those who do."""
    percent = 100.0 if settings.percent is None else settings.percent
    return settings.mode == "gradual" and in_control_group(owner, percent)


def in_control_group(owner: Owner, percent: float) -> bool:
    """Whether *owner* is in the control group at *percent*.

    The result is stable for a given percentage, and raising it removes no owner from the memory group."""
    place = int(digest("gradual", owner.key)[:8], 16) % SHARES
    return place >= percent / 100 * SHARES


# Auxiliary calls: chat clients generate titles, tags, summaries and follow-ups. They contain no new user input, so
# they are neither learned nor enriched.
#
# They are recognised by the beginnings of their prompts, as the clients send them. Prompts that a user could have
# written are not listed: a superfluous title memory is harmless, a lost user statement costs trust.

_LOOKED_AT = 600  # characters of a prompt's beginning; every pattern is anchored there
_LOOKED_AT_OF_SYSTEM = 2_000

# Beginnings of the last user message, by client. Case and white space are ignored.
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

# Beginnings of the system message, or of a line in it.
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


def _any_of(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_ASKED_BEGINS = _any_of(*_ASKED)
# Some clients put the instruction into the system message instead of a user message.
_SYSTEM_BEGINS = _any_of(*_ASKED, *_SYSTEM)
# Coding agents put their own name into an earlier block, so the instruction begins a new line.
_LINE_BEGINS = _any_of(*_SYSTEM)
# Only some translations use typographic quotes and full-width commas.
_PLAIN = str.maketrans({"\u2019": "'", "\u201c": '"', "\u201d": '"', "\uff0c": ","})


def auxiliary(asked: str, system: str = "") -> bool:
    """Whether a request is a client's auxiliary call.

    Reads only the beginnings of the last user message and of the system message."""
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
