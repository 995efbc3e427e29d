"""A story: people chat, look, correct, forget, carry memories out and in, and say no, while time passes and
processes end and die. Told by its seed; after every step all that anybody can see is held against what they may."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio

from memory_extproc.api.gen import memory_pb2 as api
from tests.properties.front import PATIENCE, Chat, EndedError, Person
from tests.properties.known import WORD, BrokenError, Copy, Fate
from tests.properties.stage import PROJECT, SESSION
from tests.properties.talking import SLOTS, Talking

Sayings = Sequence[tuple[tuple[Chat, list[str]], tuple[str, str, str]]]
FAILURES = (grpc.aio.AioRpcError, EndedError, OSError)


class Story(Talking):
    def __init__(self, seed: int, scratch: Path, models: Path, *, replicas: int = 1) -> None:
        super().__init__(seed, scratch, models, replicas=replicas)
        self.exports: list[tuple[Person, list[Any]]] = []
        self.expiring: list[tuple[float, Person, str]] = []
        self.steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (24, self.say), (14, self.go_on), (6, self.responses), (6, self.store), (5, self.correct),
            (5, self.forget_one), (4, self.forget_query), (4, self.forget_session), (2, self.forget_before),
            (2, self.forget_all), (2, self.forget_project), (4, self.forget_in_chat), (4, self.choose),
            (3, self.carry_out), (3, self.bring_back), (2, self.give_to_another), (3, self.pass_time),
            (2, self.restart), (3, self.die_idle), (6, self.burst), (3, self.say_unseen), (3, self.end_session),
            (3, self.send_again),
        ]  # fmt: skip

    # --- the telling -----------------------------------------------------------------------------------
    async def told_out(self, steps: int) -> None:
        """BrokenError, with the steps that led there, once a promise is broken."""
        try:
            async with self:
                for _ in range(steps):
                    weights, acts = zip(*self.steps, strict=True)
                    act = self.dice.choices(acts, weights)[0]
                    self.told.append(act.__name__)
                    self.anywhere()
                    await act()
                    await self.look()
                self.told.append("end")
                await self._end()
        except Exception as error:
            raise BrokenError(f"seed {self.seed}: {error!r}\n" + "\n".join(self.told)) from error

    # --- what people ask of their memories --------------------------------------------------------------
    async def store(self) -> None:
        person = self._someone()
        word, slot = self.known.word(), self.dice.choice(SLOTS)
        request = api.StoreMemoryRequest(
            content=f"The {slot} of the user is called {word}", on_duplicate="keep_both"
        )
        expires = self.dice.random() < 0.3
        if expires:
            request.expires_at.FromDatetime(self.board.now() + timedelta(hours=1))
        self.tell(person, word, "expires" if expires else "")
        now = self.board.now()
        if await self._unless_denied(self.front.call("StoreMemory", request, person), person) is None:
            return
        self.known.note(person, word, Copy(Fate.KEPT, now, slot, {""}, {"-"}, 0))
        if expires:
            self.expiring.append(((now + timedelta(hours=1)).timestamp(), person, word))

    async def _a_memory(self, person: Person) -> Any:
        rows = [row for row in await self.everything(person) if row.state != "deleted" and WORD.search(row.content)]
        return self.dice.choice(rows) if rows else None

    async def correct(self) -> None:
        person = self._someone()
        row = await self._a_memory(person)
        if row is None or row.state != "active":
            return
        word = self.known.word()
        content = WORD.sub(word, row.content, count=1)
        self.tell(person, row.source, WORD.findall(row.content), "->", word)
        request = api.UpdateMemoryRequest(id=row.id, memory=api.Memory(content=content))
        request.update_mask.paths.append("content")
        there = [self.known.of(person)[one] for one in WORD.findall(row.content)]
        copy = Copy(
            Fate.KEPT,
            self.board.now(),
            next((one.slot for one in there), ""),
            set().union(*(one.sessions for one in there)),
            set().union(*(one.projects for one in there)),
            max((one.turns for one in there), default=0),
        )
        # A replica that was killed may hold the person's lock for a while yet.
        call = self.insist(lambda: self.front.call("UpdateMemory", request, person))
        if await self._unless_denied(call, person, "NOT_FOUND") is None:
            return
        for one in there:
            one.weaken()
        copy.fate = Fate.MAYBE  # a correction of the correction, or of the same slot, may take its place
        self.known.note(person, word, copy)

    async def _unless_denied(self, call: Awaitable[Any], person: Person, *codes: str) -> Any:
        """None: *person* allows nothing to be kept."""
        denied = self.consents[person] != "on"
        return await self._allowed(call, *codes, *(("FAILED_PRECONDITION",) if denied else ()))

    async def _allowed(self, call: Awaitable[Any], *codes: str) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            if error.code().name not in codes:
                raise
            self.tell(error.code().name)
            return None

    # --- forgetting ----------------------------------------------------------------------------------------
    async def forget_one(self) -> None:
        person = self._someone()
        row = await self._a_memory(person)
        if row is None:
            return
        words = WORD.findall(row.content)
        self.tell(person, row.source, row.type, row.state, words)
        await self.quiet(person)
        done = await self._allowed(
            self.front.call("ForgetMemory", api.ForgetMemoryRequest(id=row.id), person), "NOT_FOUND"
        )
        if done is not None:
            self._promised(person, done.receipt)
            self.known.forget_words(person, words, whole=len(words) == 1 and row.source in {"verbatim", "question"})

    async def forget_query(self) -> None:
        person = self._someone()
        row = await self._a_memory(person)
        if row is None:
            return
        await self.quiet(person)
        query = api.ForgetMemoriesRequest(query=row.content[:200], dry_run=True)
        plan = await self.front.call("ForgetMemories", query, person)
        self.known.check_shown(str(plan), [person], "a dry run", recalled=False)
        sure = {
            word
            for one in plan.would_forget
            if one.source in {"verbatim", "question"} and len(WORD.findall(one.content)) == 1
            for word in WORD.findall(one.content)
        }
        words = set(WORD.findall(str(plan.would_forget)))
        self.tell(person, words)
        query.dry_run, query.confirmation_token = False, plan.confirmation_token
        done = await self.front.call("ForgetMemories", query, person)
        self._promised(person, done.receipt)
        self.known.forget_words(person, sure, whole=True)
        self.known.forget_words(person, words - sure, whole=False)

    async def _forget(self, person: Person, **scope: Any) -> None:
        done = await self.front.call("ForgetMemories", api.ForgetMemoriesRequest(**scope), person)
        self._promised(person, done.receipt)

    async def forget_session(self) -> None:
        person, session = self._someone(), self.dice.choice(("sz1", "sz2", SESSION))
        self.tell(person, session)
        await self._forget(person, session_id=session)
        self.known.forget(person, session=session)

    async def forget_project(self) -> None:
        person, project = self._someone(), self.dice.choice(("pzalpha", PROJECT))
        self.tell(person, project)
        await self._forget(person, project_id=project)
        self.known.forget(person, project=project)

    async def forget_before(self) -> None:
        person = self._someone()
        copies = sorted(self.known.of(person).values(), key=lambda copy: copy.said)
        if not copies:
            return
        limit = self.dice.choice(copies).said
        request = api.ForgetMemoriesRequest()
        request.before.FromDatetime(limit)
        self.tell(person, limit)
        done = await self.front.call("ForgetMemories", request, person)
        self._promised(person, done.receipt)
        for copy in copies:
            if copy.said < limit - timedelta(seconds=2) and copy.turns <= 1:
                copy.fate = Fate.GONE
            else:
                copy.weaken()

    async def forget_all(self) -> None:
        person = self._someone()
        self.tell(person)
        await self._forget(person)
        self.known.forget(person)

    def _promised(self, person: Person, receipt: Any) -> None:
        self.tell(receipt.state)
        self.receipts.append((person, receipt.id))

    async def forget_in_chat(self) -> None:
        person = self._someone()
        known = self.known.of(person)
        words = [word for word, copy in known.items() if copy.fate is Fate.KEPT]
        if not words or self.consents[person] != "on":
            return
        word = self.dice.choice(words)
        self.tell(person, word)
        await self.quiet(person)
        said = await self.front.chat(Chat(person, "sz1"), f"Please forget what I told you about {word}.", "Done.")
        self.check_block(person, [], said.added)
        await self.quiet(person)
        known[word].fate = Fate.SOFT

    async def choose(self) -> None:
        """Consent given, narrowed or withdrawn, perhaps with a forget."""
        person, state = self._someone(), self.dice.choice(("on", "on", "off", "recall_only"))
        forget = state == "off" and self.dice.random() < 0.3
        self.tell(person, state, "and forget" if forget else "")
        done = await self.front.call("SetConsent", api.SetConsentRequest(state=state, forget=forget), person)
        self.consents[person] = state
        if forget:
            self._promised(person, done.receipt)
            self.known.forget(person)

    # --- out and in --------------------------------------------------------------------------------------
    async def carry_out(self) -> None:
        person = self._someone()
        found = await self.exported(person)
        self.tell(person, len(found))
        self.exports.append((person, [one.memory for one in found if one.HasField("memory")]))

    async def bring_back(self) -> None:
        if not self.exports:
            return
        person, memories = self.dice.choice(self.exports)
        await self._bring(person, memories)

    async def give_to_another(self) -> None:
        if not self.exports:
            return
        _, memories = self.dice.choice(self.exports)
        person = self._someone()
        for word in set(WORD.findall(str(memories))):
            if word not in self.known.of(person):
                self.known.note(person, word, Copy(Fate.MAYBE, self.board.now(), "", {"?"}, {"?"}, 2))
        await self._bring(person, memories)

    async def _bring(self, person: Person, memories: list[Any]) -> None:
        replace = self.dice.choice(("", "replace"))
        for copy in self.known.of(person).values():
            copy.weaken()
            if copy.fate is Fate.SOFT:
                copy.fate = Fate.MAYBE  # brought back by who forgot it
        report = await self.front.bring(person, memories, replace)
        self.tell(person, f"+{report.added} ={report.same} ~{report.replaced} -{report.refused}")

    # --- time, and ends ------------------------------------------------------------------------------------
    async def pass_time(self) -> None:
        by = timedelta(minutes=self.dice.choice((3, 15, 90, 700)))
        self.tell(by)
        self.pass_by(by)
        for at, person, word in self.expiring:
            copy = self.known.of(person)[word]
            if at < self.board.now().timestamp() and copy.fate in {Fate.KEPT, Fate.MAYBE}:
                copy.fate = Fate.SOFT

    async def restart(self) -> None:
        await self.end(signal.SIGTERM)
        await self.reopen()

    async def die_idle(self) -> None:
        """At some turn of its loop, while it works behind what was asked."""
        self.board.turns = self.dice.choice((2, 5, 20, 60, 200))
        await self.dies(within=0.05)
        await self.end(signal.SIGKILL)
        await self.reopen()

    async def burst(self) -> None:
        """Much at once: several people talk, one has everything or a session forgotten, and perhaps all ends."""
        dice = self.dice
        dies = dice.random() < 0.5
        forgetter = self._someone() if dice.random() < 0.6 else None
        scope = dice.choice(("", "sz1"))
        sayings = [(self._chat(), self._sentence()) for _ in range(dice.randint(2, 6))]
        self.tell("dies" if dies else "", forgetter or "", repr(scope), [sentence[1] for _, sentence in sayings])
        before, began = await self.journalled(), self.board.now()
        acts: list[Any] = [
            self.front.chat(chat, words, self._answer(), memberships=memberships)
            for (chat, memberships), (words, _, _) in sayings
        ]
        if forgetter is not None:
            acts.append(self.front.call("ForgetMemories", api.ForgetMemoriesRequest(session_id=scope), forgetter))
        if dies:
            self.board.turns = dice.randint(5, 250)
        done: list[Any] = await asyncio.gather(*acts, return_exceptions=True)
        failed = [one for one in done if isinstance(one, BaseException)]
        if any(not isinstance(one, FAILURES) for one in failed) or (failed and not dies):
            raise BrokenError(f"failed: {failed!r}")
        if dies:
            await self.end(signal.SIGKILL)
            await self.reopen()
        sure = not dies and await self.journalled() - before == len(sayings)
        forgot = forgetter is not None and not isinstance(done[-1], BaseException)
        if forgetter is not None:
            if forgot:
                self._promised(forgetter, done[-1].receipt)
            self.known.forget(forgetter, session=scope, sure=forgot)
        self._note_all(sayings, began, sure=sure, but=forgetter)
        for ((chat, memberships), _), said in zip(sayings, done, strict=False):
            # What one asks while all of it is forgotten may be found before.
            if not isinstance(said, BaseException) and chat.person != forgetter:
                self.check_block(chat.person, memberships, said.added)

    def _note_all(self, sayings: Sayings, began: datetime, *, sure: bool, but: Person | None) -> None:
        for (chat, memberships), (_, word, slot) in sayings:
            holder = self._holder(chat, memberships)
            if isinstance(holder, Person) and self.consents[chat.person] != "on":
                continue
            fate = Fate.KEPT if sure and holder != but else Fate.MAYBE
            where = {chat.session or f"?{id(chat)}"}
            self.known.note(holder, word, Copy(fate, began, slot, where, {chat.project or "-"}, 1))

    async def _end(self) -> None:
        for person in self.people:
            await self.quiet(person)
        for person, receipt in self.receipts:
            request = api.GetForgetReceiptRequest(receipt_id=receipt)

            await self.insist(partial(self._finished, person, request))
        await self.look()
        self.pass_by(timedelta(hours=2))
        await self.restart()
        await self.look()
        await self.end_all()
        self.look_into_files()

    async def _finished(self, person: Person, request: api.GetForgetReceiptRequest) -> None:
        # A server of Milvus Lite's, on which several replicas stand, never drops the bytes.
        wanted = {"complete"} if self.replicas == 1 else {"clean", "complete"}
        async with asyncio.timeout(PATIENCE * 2):
            while (await self.front.call("GetForgetReceipt", request, person)).state not in wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
