"""One examination of one gateway: who asks, what it may do there, and the words it plants and looks for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from memory_extproc.doctor.gateway import Answer, Gateway, Person

_CONSONANTS, _VOWELS = "bdfklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitOptions:
    """*proven*: the gateway knows *ann* and *bob* by credentials, not by a header that names them."""

    ann: Person
    bob: Person
    proven: bool
    everybody: Mapping[str, str] = field(default_factory=dict, repr=False)  # headers of every request
    trusted_edge: bool = False  # only an edge of the operator's own reaches this URL, so names may be believed
    user_header: str = "x-authz-user-id"
    tenant_header: str = "x-authz-tenant-id"
    session_header: str = "x-session-id"
    roles_header: str = ""  # api.trusted_proxy.roles_header; empty: callers have no roles
    body_bytes: int = 4 * 1024 * 1024  # limits.request_body of the sidecar
    learned_within: float = 15.0  # seconds for what was told to be found


class Visit:
    """*chance* makes the words, so that no two visits look for the same."""

    def __init__(self, gateway: Gateway, options: VisitOptions, chance: random.Random) -> None:
        self.gateway, self.options = gateway, options
        self.name = f"doctor-{chance.getrandbits(32):08x}"
        self._chance = chance
        self._sessions = self._asked = 0
        self.canary = self.word()  # what ann tells, and nobody else knows
        self.kept: list[tuple[Person, str]] = []  # sessions from which something may be remembered, and whose
        self.cold = Answer(0)  # what nobody in particular got, without asking for memory
        self.knows = False  # ann is remembered: what checks of recall stand on

    @property
    def nobody(self) -> Person:
        return Person(dict(self.options.everybody))

    @property
    def question(self) -> str:
        """For the canary; never twice in the same words, so that a cache of answers does not answer."""
        return self._varied("What is my boat called?")

    def word(self) -> str:
        """A word that means nothing and stands nowhere else."""
        letters = (self._chance.choice(_CONSONANTS) + self._chance.choice(_VOWELS) for _ in range(4))
        return "".join(letters).capitalize()

    def forged(self, **headers: str) -> Person:
        """Nobody, with headers that a client has no right to; names are written with _ for -."""
        return self.nobody.also({name.replace("_", "-"): value for name, value in headers.items()})

    async def tell(self, person: Person, words: str, *, stream: bool = False) -> Answer:
        """In a conversation of its own, which is noted as one to be forgotten."""
        session = self._session()
        self.kept.append((person, session))
        more = {"stream": True} if stream else {}
        headers = {self.options.session_header: session}
        return await self.gateway.ask(person, self.gateway.said(words, **more), headers)

    async def ask(self, person: Person, words: str, headers: Mapping[str, str] | None = None) -> Answer:
        """In a conversation of its own, of which nothing is to be kept."""
        return await self.send(person, self.gateway.said(words), headers)

    async def send(self, person: Person, body: bytes, headers: Mapping[str, str] | None = None) -> Answer:
        sent = {self.options.session_header: self._session(), "x-memory-store": "skip", **(headers or {})}
        return await self.gateway.ask(person, body, sent)

    async def asked_until_used(self, person: Person, words: str) -> Answer:
        """Asks until memory is used or *learned_within* is over: what was told is learned behind the answer."""
        until = time.monotonic() + self.options.learned_within
        while True:
            answer = await self.ask(person, self._varied(words))
            if answer.outcome not in {"empty", "nothing_relevant", "unavailable"} or time.monotonic() > until:
                return answer
            await asyncio.sleep(0.25)

    def _varied(self, words: str) -> str:
        self._asked += 1
        return f"{words} ({self._asked})"

    def _session(self) -> str:
        self._sessions += 1
        return f"{self.name}-{self._sessions}"
