"""The operator's rules: what holds for which requests. The first rule that matches decides."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from types import MappingProxyType

from memory_extproc.model import MemoryType, Signals, Switch
from memory_extproc.wire.events import Headers

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
        self._upstream = glob(when.upstream)
        self._headers = [(name.lower(), glob(pattern or "*")) for name, pattern in when.header.items()]
        self._keywords = keywords(when.keyword)

    def holds(self, facts: RuleFacts) -> bool:
        return (
            _match(self._path, facts.path.partition("?")[0])
            and _match(self._model, facts.model.casefold())
            and _match(self._route, facts.route)
            and _match(self._tenant, facts.tenant)
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
