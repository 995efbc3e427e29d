"""`python -m benchmarks.compression`: tokens saved and facts lost by compressing a long chat.

A chat of 200 turns in which twenty facts are told along the way, played as its client sends it and through
compression with the rules (no model). Tokens are estimated. A provider's prompt cache can serve what a request
shares with the one before, from its first byte on. A fact is in view where the last request holds its value: in the
state or in a turn that stayed. A fact that is not in view is still remembered: a question about it recalls it.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.markdown import Markdown

from memory_extproc.concurrency import Background
from memory_extproc.dialect.openai_chat import ChatCompletions
from memory_extproc.learn.extract.rules import RulesExtractor
from memory_extproc.model import Caller, Owner
from memory_extproc.observe.metrics import Metrics
from memory_extproc.request.compression import Compression, RulesCondenser
from memory_extproc.settings import CurrentSettings, Settings
from memory_extproc.settings.paths import Recall
from memory_extproc.settings.traffic import Compress
from memory_extproc.testing.adapters import InMemoryCoordination

TURNS = 200
ABOVE = (8_000, 16_000)  # estimated tokens
DOCS = Path("docs/benchmarks/compression.md")
PAGE = """# Savings by compressing a long chat

Measured by `python -m benchmarks.compression`: a chat of {turns} turns, five turns kept, the state made by rules.
Tokens are estimated. *Cacheable*: of the bytes of each request those the one before began with. *Dear*: tokens
that no prompt cache can have seen. *In view*: facts told along the way whose value stands in the last request; the
others are remembered all the same, and recalled by who asks for them.

| way | tokens sent | share | longest request | cacheable | dear | states made | facts in view |
|---|---|---|---|---|---|---|---|
{rows}
"""
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
CALLER = Caller(Owner("", "ann"))
ANSWER = (
    "That fits what we have so far; I have put it beside the rest and will come back to it when we need it. " * 3
)
FACTS = {
    5: ("My name is Alice Moreau.", "Alice Moreau"),
    9: ("I work at Google.", "Google"),
    14: ("I live in Rotterdam.", "Rotterdam"),
    20: ("My budget for the trip is $12,000.", "$12,000"),
    27: ("I'm allergic to peanuts.", "peanuts"),
    33: ("We decided to fly with Condor.", "Condor"),
    41: ("My sister is called Mia.", "Mia"),
    48: ("The deadline is March 14.", "March 14"),
    55: ("I prefer window seats.", "window seats"),
    63: ("Let's go with the Grand Wailea for the hotel.", "Grand Wailea"),
    70: ("My car is a Volvo XC40.", "Volvo XC40"),
    78: ("I speak Portuguese.", "Portuguese"),
    86: ("Our project is called Heron.", "Heron"),
    95: ("We chose PostgreSQL 16 for the data.", "PostgreSQL 16"),
    104: ("My dog is called Biscuit.", "Biscuit"),
    113: ("The invoice number is 48213.", "48213"),
    122: ("I was born in Lyon.", "Lyon"),
    131: ("The wedding is on June 6.", "June 6"),
    140: ("I play the cello.", "cello"),
    150: ("The server must stay on port 8443.", "8443"),
}


class Played(NamedTuple):
    bodies: list[bytes]
    tokens: list[int]
    states: int

    @property
    def cacheable(self) -> float:
        """Share of the bytes, but for the first request's, that a request shares with the one before."""
        pairs = zip(self.bodies, self.bodies[1:], strict=False)
        return sum(_shared_bytes(before, after) for before, after in pairs) / sum(map(len, self.bodies[1:]))

    @property
    def dear(self) -> float:
        """Tokens that no cache can have seen."""
        return sum(self.tokens) * (1 - self.cacheable)

    @property
    def in_view(self) -> int:
        return sum(value in self.bodies[-1].decode() for _, value in FACTS.values())


def _shared_bytes(one: bytes, other: bytes) -> int:
    most = min(len(one), len(other))
    return bisect_left(range(1, most + 1), x=True, key=lambda size: one[:size] != other[:size])


async def play(above: int | None) -> Played:
    """*above* None: as the client sends it."""
    metrics = Metrics(CollectorRegistry(), "benchmark")
    background = Background(metrics, grace=timedelta(seconds=30))
    section = Compress.model_construct(enabled=above is not None, above_tokens=above or 0)
    current = CurrentSettings(Settings(compress=section, recall=Recall(deadline=timedelta(seconds=15))))
    condenses = RulesCondenser(RulesExtractor(), now=lambda: NOON)
    records = InMemoryCoordination(now=lambda: NOON)
    compression = Compression(
        current,
        records,
        condenses,
        background=background,
        metrics=metrics,
        holder="here",
        now=lambda: NOON,
    )
    dialect, bodies, tokens = ChatCompletions(), list[bytes](), list[int]()
    items: list[dict[str, Any]] = [{"role": "system", "content": "You are a helpful assistant."}]
    for turn in range(TURNS):
        told = (
            FACTS[turn][0] if turn in FACTS else f"Tell me more about point {turn % 7}, and how it fits the plan."
        )
        items.append({"role": "user", "content": told})
        body = json.dumps({"model": "demo", "messages": items}).encode()
        request = dialect.read(body)
        if compression.is_wanted(request, forced=False):
            body = await compression.shorten(dialect, CALLER, request) or body
            await background.__aexit__()  # the state is made by the next request
        bodies.append(body)
        tokens.append(dialect.read(body).prompt_tokens)
        items.append({"role": "assistant", "content": ANSWER})
    made = metrics.registry.get_sample_value("memory_extproc_compressions_total", {"outcome": "condensed"}) or 0.0
    return Played(bodies, tokens, int(made))


async def measure() -> str:
    plain = await play(None)
    ways = {"as the client sends it": plain}
    ways |= {f"above {above:,} tokens": await play(above) for above in ABOVE}
    rows = [
        f"| {name} | {sum(one.tokens):,} | {sum(one.tokens) / sum(plain.tokens):.0%} | {max(one.tokens):,} "
        f"| {one.cacheable:.1%} | {one.dear:,.0f} | {one.states} | {one.in_view} of {len(FACTS)} |"
        for name, one in ways.items()
    ]
    return PAGE.format(turns=TURNS, rows="\n".join(rows))


def main() -> None:
    page = asyncio.run(measure())
    DOCS.write_text(page, encoding="utf-8")
    Console().print(Markdown(page))


if __name__ == "__main__":
    main()
