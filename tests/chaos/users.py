"""People who talk, look, correct, forget and choose through the gateway, one act after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import aiohttp
import grpc.aio

from memory_extproc.api.gen import memory_pb2 as api
from tests.chaos.counts import Model
from tests.chaos.fleet import MESSAGE_TIMEOUT, PIECES, Fleet
from tests.properties.front import Chat, Person, Said
from tests.properties.known import WORD, Copy, Fate
from tests.properties.talking import SLOTS

# Two people of one name in two tenants, and names that are alike.
PEOPLE = (
    Person("acme", "uzann"), Person("globex", "uzann"), Person("acme", "uzAnn"), Person("acme", "uz_nn"),
    Person("uza", "b|uzc"), Person("uza|b", "uzc"), Person("globex", "uz%"), Person("", "uzann"),
)  # fmt: skip
FORMS = (
    "My {slot} is called {word}.",
    "Remember that my {slot} is called {word}.",
    "I met {word} at the harbour and we talked about sailing for an hour.",
    "We fly to {word} in June, and the budget is $12,000.",
)
WHOLE = b"".join(PIECES)
ANSWERED = "Noted, thank you."


class User:
    def __init__(self, seed: int, number: int, fleet: Fleet, model: Model) -> None:
        self.person = PEOPLE[number]
        self._fleet, self._model, self._log = fleet, model, fleet.log
        self._seed, self._number = seed, number
        self._acts = 0
        self._consent = "on"
        self._dice = Random(0)
        self._sessions = [f"sz{number}-0"]
        self._chat = Chat(self.person, self._sessions[0])

    # --- one act after the other ---------------------------------------------------------------------------
    async def keep_acting(self, over: asyncio.Event) -> None:
        acts: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (40, self.say), (20, self.ask), (6, self.say_incognito), (6, self.look), (5, self.correct),
            (4, self.forget_session), (2, self.forget_all), (3, self.choose),
        ]  # fmt: skip
        weights, steps = zip(*acts, strict=True)
        while not over.is_set():
            self._acts += 1
            # Dice for each act, so that one that takes other ways leaves those behind it as they are.
            self._dice = Random(f"{self._seed}/{self._number}/{self._acts}")
            act = self._dice.choices(steps, weights)[0]
            self._model.counts.seen[act.__name__] += 1
            try:
                await act()
            except grpc.aio.AioRpcError as error:
                self._failed(f"{act.__name__}: {error.code().name} {error.details()}")
            except (aiohttp.ClientError, TimeoutError) as error:
                self._failed(f"{act.__name__}: {error!r}")
            await asyncio.sleep(self._dice.uniform(0.02, 0.3))

    def _failed(self, what: str) -> None:
        self._model.counts.violation("failed", self.person, f"act {self._acts}", what)

    def _note(self, what: str, **more: Any) -> None:
        self._log.note(what, user=self._number, act=self._acts, **more)

    # --- chats -----------------------------------------------------------------------------------------------
    async def say(self) -> None:
        word, slot = self._model.known.word(), self._dice.choice(SLOTS)
        form = self._dice.choice(FORMS)
        self._maybe_begin_anew()
        copy = Copy(Fate.MAYBE, datetime.now(UTC), slot if "{slot}" in form else "", {self._chat.session}, {"-"}, 1)
        allowed = self._consent == "on"
        # Before it is said: it may be shown from then on.
        if allowed:
            self._model.note(self.person, word, copy)
        else:
            self._model.unwanted[word] = self.person
        sure = await self._exchange(form.format(slot=slot, word=word))
        # A fault or a forget meanwhile is not of this user: theirs come one after the other.
        if sure and allowed and copy.fate is Fate.MAYBE:
            copy.fate = Fate.KEPT
        self._note("said", word=word, session=self._chat.session, sure=sure, consent=self._consent)

    async def ask(self) -> None:
        mine = list(self._model.known.of(self.person))
        word = self._dice.choice(mine) if mine else "Rex"
        asked = self._dice.choice((f"What do you know about {word}?", "What is my dog called?", "Who am I?"))
        chat = Chat(self.person)
        await self._exchange(asked, chat, x_memory_store="skip", x_memory_retrieve="force")

    async def say_incognito(self) -> None:
        word = self._model.known.word()
        self._model.unwanted[word] = self.person
        chat = Chat(self.person, history=[{"role": "user", "content": f"Unseen {self._number} {self._acts}."}])
        chat.history.append({"role": "assistant", "content": "Go on."})
        await self._exchange(f"My secret friend is called {word}.", chat, x_memory_incognito="true")
        self._note("said incognito", word=word)

    def _maybe_begin_anew(self) -> None:
        if len(self._chat.history) >= 8 or self._dice.random() < 0.2:
            self._sessions.append(f"sz{self._number}-{self._acts}")
            self._chat = Chat(self.person, self._sessions[-1])

    async def _exchange(self, words: str, chat: Chat | None = None, **headers: str) -> bool:
        """Whether a replica has surely seen the answer's end."""
        chat = chat or self._chat
        body = {"model": "demo", "stream": True, "messages": [*chat.history, {"role": "user", "content": words}]}
        if chat.session:
            headers["x_session_id"] = chat.session
        number, began, consent = f"{self._number}-{self._acts}", self._log.now, self._consent
        answer = await self._fleet.chat(self.person, body, number, **headers)
        ended = self._log.now
        got = self._fleet.upstream_got.pop(number, None)
        if answer.status != 200 or answer.body != WHOLE or got is None:
            self._failed(f"status {answer.status}, {len(answer.body)} bytes, at {began:.3f}: {answer.body[:80]!r}")
            return False
        added = Said(body, json.loads(got.body), "").added
        where = f"recall of act {self._acts}, {began:.3f} to {ended:.3f}"
        if consent == "off":
            for word in WORD.findall(added):
                self._model.counts.violation("returned", self.person, word, f"{where}, though consent is off")
        self._model.check(added, self.person, where, recalled=True)
        chat.history += [{"role": "user", "content": words}, {"role": "assistant", "content": ANSWERED}]
        self._model.counts.seen[f"memory: {answer.memory.partition(';')[0].partition(' ')[0] or 'bypassed'}"] += 1
        struck = any(began <= at <= ended for at in (*self._fleet.kills, *self._fleet.wipes))
        return bool(answer.memory) and not struck and ended - began < MESSAGE_TIMEOUT - 1

    # --- the memory API ----------------------------------------------------------------------------------------
    async def look(self) -> None:
        # Before the list: it also shows turns that are in the journal alone.
        stats = await self._fleet.call("GetStats", api.GetStatsRequest(), self.person)
        rows = await self._fleet.everything(self.person)
        shown = " ".join(row.content for row in rows)
        self._model.check(shown, self.person, f"list of act {self._acts}", stored=not stats.backlog)

    async def correct(self) -> None:
        rows = [row for row in await self._fleet.everything(self.person) if row.state == "active"]
        rows = [row for row in rows if WORD.search(row.content)]
        if not rows or self._consent != "on":
            return
        row = rows[int(self._dice.random() * len(rows))]
        known, word = self._model.known.of(self.person), self._model.known.word()
        there = [known[one] for one in WORD.findall(row.content) if one in known]
        for one in there:
            one.weaken()
        sessions = set().union(*(one.sessions for one in there))
        slot = next((one.slot for one in there), "")
        self._model.note(self.person, word, Copy(Fate.MAYBE, datetime.now(UTC), slot, sessions, {"-"}, 1))
        memory = api.Memory(content=WORD.sub(word, row.content, count=1))
        request = api.UpdateMemoryRequest(id=row.id, memory=memory)
        request.update_mask.paths.append("content")
        self._note("corrects", row=row.id, word=word, old=WORD.findall(row.content))
        try:
            await self._fleet.call("UpdateMemory", request, self.person)
        except grpc.aio.AioRpcError as error:
            if error.code().name not in {"NOT_FOUND", "FAILED_PRECONDITION"}:
                raise

    async def forget_session(self) -> None:
        session = self._dice.choice(self._sessions)
        await self._fleet.call("ForgetMemories", api.ForgetMemoriesRequest(session_id=session), self.person)
        self._model.known.forget(self.person, session=session)
        self._note("forgot", session=session)
        self._leave(session)

    async def forget_all(self) -> None:
        await self._fleet.call("ForgetMemories", api.ForgetMemoriesRequest(), self.person)
        self._model.known.forget(self.person)
        self._note("forgot all")
        self._leave(self._chat.session)

    def _leave(self, session: str) -> None:
        """What was forgotten is not sent again as history: a word said once more would be news."""
        self._sessions.remove(session)
        self._sessions.append(f"sz{self._number}-{self._acts}")
        self._chat = Chat(self.person, self._sessions[-1])

    async def choose(self) -> None:
        state = self._dice.choice(("on", "on", "off", "recall_only"))
        if state != "on":  # a turn is learned if its caller allows it until then
            self._model.weaken_unstored(self.person)
        await self._fleet.call("SetConsent", api.SetConsentRequest(state=state), self.person)
        self._consent = state
        self._note("consent", state=state)
        # A message from before would be sent along: another conversation.
        self._leave(self._chat.session)
