"""A story: people chat, look, correct, forget, carry memories out and in, and say no, while time passes and processes
end and die. Told by its seed; after every step all that anybody can see is held against what they may."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import grpc.aio
import yaml

from memory_extproc.api.gen import memory_pb2 as api
from tests.promises.front import NAMESPACE, PATIENCE, ROLES, Chat, EndedError, Front, Person
from tests.promises.known import WORD, BrokenError, Copy, Fate, Holder, Known, Project
from tests.promises.life import Switchboard

ROOT = Path(__file__).resolve().parents[2]
SLOTS = ("dog", "cat", "sister", "boat", "street", "school", "team", "horse", "bakery", "band")
OPENINGS = ("Hello there.", "Let us go on.")
# Alike in case, form or a separator, and full of what filters and globs are made of.
PEOPLE = (
    Person("acme", "uzann"),
    Person("globex", "uzann"),
    Person("acme", "uzAnn"),
    Person("", "uzann"),
    Person("uza|b", "uzc"),
    Person("uza", "b|uzc"),
    Person("acme", 'uz" or user_id != "'),
    Person("acme", "uz\\"),
    Person("acme", "uz%"),
    Person("acme", "uz_nn"),
    Person("acme", "uzänn"),
    Person("acme", "uza\u0308nn"),
    Person("acme", "uz' || 1==1 || '"),
    Person("acme", "uz{0}"),
)
FAILURES = (grpc.aio.AioRpcError, EndedError, OSError)


class Story:
    def __init__(self, seed: int, scratch: Path, models: Path, **changes: Any) -> None:
        self.seed, self.scratch = seed, scratch
        self.dice = Random(seed)
        self.known = Known()
        self.people = self.dice.sample(PEOPLE, 3)
        self.consents = dict.fromkeys(self.people, "on")
        self.chats: list[Chat] = []
        self.incognito: list[Chat] = []
        self.exports: list[tuple[Person, list[Any]]] = []
        self.chains: dict[Person, str] = {}
        self.expiring: list[tuple[float, Person, str]] = []
        self.receipts: list[tuple[Person, str]] = []
        self.told: list[str] = []
        self.board = Switchboard(scratch / "board")
        self.front: Front
        self._lives: asyncio.subprocess.Process
        self._config = scratch / "config.yaml"
        self._configure(models, changes)
        self.steps: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (24, self.say), (14, self.go_on), (6, self.responses), (6, self.store), (5, self.correct),
            (5, self.forget_one), (4, self.forget_query), (4, self.forget_session), (2, self.forget_before),
            (2, self.forget_all), (2, self.forget_project), (4, self.forget_in_chat), (4, self.choose),
            (3, self.carry_out), (3, self.bring_back), (2, self.give_to_another), (3, self.pass_time),
            (2, self.restart), (3, self.die_idle), (6, self.burst), (3, self.say_unseen), (3, self.end_session),
            (3, self.send_again),
        ]  # fmt: skip

    def _configure(self, models: Path, changes: Mapping[str, Any]) -> None:
        dice = self.dice
        self.sealed = dice.random() < 0.3
        self.hashed = dice.random() < 0.3
        self.shares = dice.random() < 0.4
        privacy: dict[str, Any] = {"encrypt_content": self.sealed, "hash_user_ids": self.hashed}
        if self.hashed:
            privacy["hash_key"] = "a key of thirty-two bytes, or so."
        if self.sealed:
            privacy["master_key_file"] = str(self.scratch / "master.key")
        configured: dict[str, Any] = {
            "data_dir": str(self.scratch / "data"),
            "memory": {"embedding": {"models_dir": str(models), "threads": 1}, "milvus": {"shards": 2}},
            "listen": dict.fromkeys(("ext_proc", "api", "http"), "127.0.0.1:0"),
            "recall": {"deadline": "4s", "settle": "3s"},
            "envoy": {"message_timeout": "9s", "health_interval": "1ms"},
            "shutdown": {"announce": "10ms", "grace": "2s", "flush": "5s"},
            "learn": {"session_idle": dice.choice(["50ms", "500ms"]), "journal": {"wait": "4s"}},
            "topics": {"idle": dice.choice(["1s", "10m"])},
            "retention": {"every": dice.choice(["1s", "1d"]), "max_memories": None},
            "inject": {"profile": dice.choice(["off", "always"])},
            "telemetry": {"canary": "off", "log_level": "debug"},
            "identity": {"metadata_projects": f"{NAMESPACE}:projects"},
            "scopes": {"project": {"recall": self.shares, "learn": self.shares}},
            "api": {"trusted_proxy": {"roles_header": ROLES}, "rate": {"per_second": 100000.0, "burst": 100000}},
            "privacy": privacy,
        }
        for name, value in changes.items():
            configured[name] = {**configured.get(name, {}), **value} if isinstance(value, dict) else value
        self._config.write_text(yaml.safe_dump(configured))

    # --- the telling -----------------------------------------------------------------------------------
    async def told_out(self, steps: int) -> None:
        """BrokenError, with the steps that led there, once a promise is broken."""
        await self._begin()
        try:
            for _ in range(steps):
                weights, acts = zip(*self.steps, strict=True)
                act = self.dice.choices(acts, weights)[0]
                self.told.append(act.__name__)
                await act()
                await self.look()
            self.told.append("end")
            await self._end()
        except Exception as error:
            raise BrokenError(f"seed {self.seed}: {error!r}\n" + "\n".join(self.told)) from error
        finally:
            await self._kill()
            self._lives.kill()
            await self._lives.wait()

    def tell(self, *what: object) -> None:
        self.told[-1] += " " + " ".join(map(str, what))

    async def _begin(self) -> None:
        if self.sealed:
            key = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "memory_extproc", "keys", "new", stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            made, _ = await key.communicate()
            (self.scratch / "master.key").write_bytes(made)
            (self.scratch / "master.key").chmod(0o600)
        self._lives = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.promises.life", str(self.scratch / "board"), str(self.scratch / "log"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        await self._open()

    async def _open(self) -> None:
        assert self._lives.stdin is not None
        assert self._lives.stdout is not None
        self.board.turns = 0
        self._lives.stdin.write(f"{self._config}\n".encode())
        await self._lives.stdin.drain()
        line = await asyncio.wait_for(self._lives.stdout.readline(), 60)
        said = json.loads(line)
        if "failed" in said:
            raise BrokenError(f"the sidecar did not open: {said['failed']}")
        self.front = Front(said)

    async def _ended(self) -> None:
        """Waits until the process is no more."""
        async with asyncio.timeout(PATIENCE * 2):
            while True:
                try:
                    os.kill(self.front.process, 0)
                except ProcessLookupError:
                    break
                await asyncio.sleep(0.005)
        await self.front.__aexit__()

    async def _kill(self) -> None:
        if not hasattr(self, "front"):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.front.process, signal.SIGKILL)
        await self._ended()

    # --- what people do ----------------------------------------------------------------------------------
    def _someone(self) -> Person:
        return self.dice.choice(self.people)

    def _sentence(self) -> tuple[str, str, str]:
        """Words, the one that is theirs alone, and what they are about."""
        word, slot = self.known.word(), self.dice.choice(SLOTS)
        form = self.dice.choice((
            f"My {slot} is called {word}.",
            f"Remember that my {slot} is called {word}.",
            f"I met {word} at the harbour and we talked about sailing for an hour.",
            f"How long does one cook {word}?",
            f"I moved to {word} last week. What should I see there?",
            f"We fly to {word} in June, and the budget is $12,000.",
        ))  # fmt: skip
        return form, word, slot if slot in form else ""

    def _holder(self, chat: Chat, memberships: list[str]) -> Holder:
        if self.shares and chat.project and chat.project in memberships:
            return Project(chat.person.tenant, chat.project)
        return chat.person

    def _chat(self) -> tuple[Chat, list[str]]:
        dice = self.dice
        project = dice.choice(("", "", "", "pzalpha", "pzbeta"))
        memberships = [project] if project and dice.random() < 0.6 else []
        chat = Chat(self._someone(), dice.choice(("", "sz1", "sz2", "sz1|sz2")), project)
        if dice.random() < 0.5:
            opening = dice.choice(OPENINGS)  # the same at several people
            chat.history = [{"role": "user", "content": opening}, {"role": "assistant", "content": "Go on."}]
        return chat, memberships

    async def _said(
        self, chat: Chat, memberships: list[str], sentence: tuple[str, str, str], **headers: str
    ) -> None:
        """Says it, and notes where it must be from now on."""
        words, word, slot = sentence
        holder = self._holder(chat, memberships)
        unseen = chat in self.incognito or "x_memory_incognito" in headers
        answer = self._answer()
        before = await self._journalled()
        began = self.board.now()
        said = await self.front.chat(chat, words, answer, memberships=memberships, **headers)
        self._check_block(chat.person, memberships, said.added)
        chat.history += [{"role": "user", "content": words}, {"role": "assistant", "content": answer}]
        kept = await self._journalled() > before
        consent = self.consents[chat.person]
        if unseen or (isinstance(holder, Person) and consent != "on"):
            if kept:
                raise BrokenError(f"{word} was kept though {'incognito' if unseen else consent}")
            return
        self.tell(word, "kept" if kept else f"not kept ({said.outcome})")
        fate = Fate.KEPT if kept else Fate.MAYBE
        where = {chat.session} if chat.session else {f"?{id(chat)}"}
        self.known.note(
            holder, word, Copy(fate, began, slot, where, {chat.project} - {""} or {"-"}, 1)
        )

    def _answer(self) -> str:
        return self.dice.choice(("Noted.", "I see, tell me more about that.", "That is good to know."))

    async def say(self) -> None:
        chat, memberships = self._chat()
        sentence = self._sentence()
        self.tell(chat.person, repr(chat.session), chat.project, memberships, repr(sentence[0]))
        await self._said(chat, memberships, sentence)
        self.chats = [*self.chats[-12:], chat]

    async def go_on(self) -> None:
        """In a conversation of before, with all that was said in it, forgotten or not."""
        if not self.chats:
            return
        chat = self.dice.choice(self.chats)
        sentence = self._sentence()
        memberships = [chat.project] if chat.project and self.dice.random() < 0.6 else []
        self.tell(chat.person, repr(chat.session), memberships, repr(sentence[0]))
        await self._said(chat, memberships, sentence)

    async def send_again(self) -> None:
        """A client sends the end of a conversation once more. What was forgotten of it is no news."""
        chats = [one for one in self.chats if len(one.history) > 2 and one not in self.incognito]
        if not chats:
            return
        chat = self.dice.choice(chats)
        *history, asked, answer = chat.history
        memberships = [chat.project] if chat.project and self.dice.random() < 0.6 else []
        found = WORD.findall(asked["content"])
        copy = self.known.of(self._holder(chat, memberships)).get(found[0]) if found else None
        if copy is None:  # it was of somebody else, or nobody's: now it would be said to them
            return
        self.tell(chat.person, repr(chat.session), found)
        again = Chat(chat.person, chat.session, chat.project, history)
        said = await self.front.chat(again, asked["content"], answer["content"], memberships=memberships)
        self._check_block(chat.person, memberships, said.added)

    async def say_unseen(self) -> None:
        chat, memberships = self._chat()
        chat.session, chat.history = "", [{"role": "user", "content": f"Unseen {len(self.told)}"}]
        chat.history.append({"role": "assistant", "content": "Go on."})
        sentence = self._sentence()
        self.tell(chat.person, repr(sentence[0]))
        await self._said(chat, memberships, sentence, x_memory_incognito="true")
        self.incognito.append(chat)
        self.chats.append(chat)

    async def responses(self) -> None:
        """A conversation that the provider keeps. Ids of responses are the same at several people."""
        person = self._someone()
        words, word, slot = self._sentence()
        response = f"resp_{self.dice.randrange(6)}"
        previous = self.chains.get(person, "") if self.dice.random() < 0.7 else ""
        self.tell(person, response, previous, repr(words))
        chat = Chat(person)
        before, began = await self._journalled(), self.board.now()
        said = await self.front.chat(chat, words, "Noted.", response=response, previous=previous)
        self._check_block(person, [], said.added)
        kept = await self._journalled() > before
        self.chains[person] = response
        if self.consents[person] != "on":
            if kept:
                raise BrokenError(f"{word} was kept without consent")
            return
        fate = Fate.KEPT if kept else Fate.MAYBE
        self.known.note(person, word, Copy(fate, began, slot, {f"?{response}", f"?{previous}"}, {"-"}, 1))

    async def end_session(self) -> None:
        person, session = self._someone(), self.dice.choice(("sz1", "sz2"))
        self.tell(person, session)
        await self.front.call("EndSession", api.EndSessionRequest(session_id=session), person)

    async def store(self) -> None:
        person = self._someone()
        word, slot = self.known.word(), self.dice.choice(SLOTS)
        request = api.StoreMemoryRequest(content=f"The {slot} of the user is called {word}", on_duplicate="keep_both")
        expires = self.dice.random() < 0.3
        if expires:
            request.expires_at.FromDatetime(self.board.now() + timedelta(hours=1))
        self.tell(person, word, "expires" if expires else "")
        now = self.board.now()
        await self.front.call("StoreMemory", request, person)
        self.known.note(person, word, Copy(Fate.KEPT, now, slot, {""}, {"-"}, 0))
        if expires:
            self.expiring.append(((now + timedelta(hours=1)).timestamp(), person, word))

    async def _a_memory(self, person: Person) -> Any:
        rows = [row for row in await self._everything(person) if row.state != "deleted" and WORD.search(row.content)]
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
        for one in there:
            one.weaken()
        copy.fate = Fate.MAYBE  # a correction of the correction, or of the same slot, may take its place
        self.known.note(person, word, copy)
        await self._allowed(self.front.call("UpdateMemory", request, person), "NOT_FOUND", "FAILED_PRECONDITION")

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
        await self._quiet(person)
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
        await self._quiet(person)
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
        person, session = self._someone(), self.dice.choice(("sz1", "sz2", "sz1|sz2"))
        self.tell(person, session)
        await self._forget(person, session_id=session)
        self.known.forget(person, session=session)

    async def forget_project(self) -> None:
        person, project = self._someone(), self.dice.choice(("pzalpha", "pzbeta"))
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
        await self._quiet(person)
        said = await self.front.chat(Chat(person, "sz1"), f"Please forget what I told you about {word}.", "Done.")
        self._check_block(person, [], said.added)
        await self._quiet(person)
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
        found = await self._exported(person)
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
        self.board.ahead += by
        for at, person, word in self.expiring:
            copy = self.known.of(person)[word]
            if at < self.board.now().timestamp() and copy.fate in {Fate.KEPT, Fate.MAYBE}:
                copy.fate = Fate.SOFT

    async def restart(self) -> None:
        os.kill(self.front.process, signal.SIGTERM)
        await self._ended()
        await self._open()

    async def die_idle(self) -> None:
        """At some turn of its loop, while it works behind what was asked."""
        self.board.turns = self.dice.choice((2, 5, 20, 60, 200))
        await asyncio.sleep(0.05)
        await self._kill()
        await self._open()

    async def burst(self) -> None:
        """Much at once: several people talk, one has everything or a session forgotten, and perhaps all ends."""
        dice = self.dice
        dies = dice.random() < 0.5
        forgetter = self._someone() if dice.random() < 0.6 else None
        scope = dice.choice(({}, {"session_id": "sz1"}))
        sayings = [(self._chat(), self._sentence()) for _ in range(dice.randint(2, 6))]
        self.tell("dies" if dies else "", forgetter or "", scope, [sentence[1] for _, sentence in sayings])
        before, began = await self._journalled(), self.board.now()
        acts: list[Any] = [
            self.front.chat(chat, words, self._answer(), memberships=memberships)
            for (chat, memberships), (words, _, _) in sayings
        ]
        if forgetter is not None:
            acts.append(self.front.call("ForgetMemories", api.ForgetMemoriesRequest(**scope), forgetter))
        if dies:
            self.board.turns = dice.randint(5, 250)
        done = await asyncio.gather(*acts, return_exceptions=True)
        failed = [one for one in done if isinstance(one, BaseException)]
        if any(not isinstance(one, FAILURES) for one in failed) or (failed and not dies):
            raise BrokenError(f"failed: {failed!r}")
        if dies:
            await self._kill()
        sure = not dies and await self._journalled() - before == len(sayings)
        forgot = forgetter is not None and not isinstance(done[-1], BaseException)
        if forgetter is not None:
            if forgot:
                self._promised(forgetter, done[-1].receipt)
            self.known.forget(forgetter, session=str(scope.get("session_id", "")), sure=forgot)
        for ((chat, memberships), (_, word, slot)), said in zip(sayings, done, strict=False):
            holder = self._holder(chat, memberships)
            if isinstance(holder, Person) and self.consents[chat.person] != "on":
                continue
            fate = Fate.KEPT if sure and holder != forgetter else Fate.MAYBE
            where = {chat.session or f"?{id(chat)}"}
            self.known.note(holder, word, Copy(fate, began, slot, where, {chat.project or "-"}, 1))
            if not isinstance(said, BaseException) and chat.person != forgetter:
                self._check_block(chat.person, memberships, said.added)
        if dies:
            await self._open()

    # --- what is seen --------------------------------------------------------------------------------------
    async def _journalled(self) -> int:
        page = await self.front.page("/metrics")
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in page.splitlines()
            if line.startswith('memory_extproc_turns_total{outcome="journalled"}')
        )

    async def _insist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """While a forget is under way nothing is shown."""
        async with asyncio.timeout(PATIENCE * 2):
            while True:
                try:
                    return await work()
                except grpc.aio.AioRpcError as error:
                    if error.code().name != "UNAVAILABLE":
                        raise
                await asyncio.sleep(0.02)

    async def _everything(self, person: Person) -> list[Any]:
        found: list[Any] = await self._insist(lambda: self.front.everything(person, self.dice.choice((3, 50, 100))))
        return found

    async def _exported(self, person: Person) -> list[Any]:
        found: list[Any] = await self._insist(lambda: self.front.export(person))
        return found

    async def _quiet(self, person: Person) -> None:
        """Until all that the person said is stored and learned from."""
        async with asyncio.timeout(PATIENCE * 2):
            while True:
                stats = await self._insist(lambda: self.front.call("GetStats", api.GetStatsRequest(), person))
                if not stats.backlog:
                    return
                await asyncio.sleep(0.02)

    def _reach(self, person: Person, memberships: list[str]) -> list[Holder]:
        return [person, *(Project(person.tenant, name) for name in memberships)]

    def _check_block(self, person: Person, memberships: list[str], added: str) -> None:
        if self.consents[person] == "off" and WORD.search(added):
            raise BrokenError(f"{person} said no and was given {WORD.findall(added)}")
        reach = self._reach(person, memberships)
        self.known.check_shown(added, reach, f"{person}'s upstream", recalled=True)

    async def look(self) -> None:
        for person in self.people:
            await self._look_at(person)
        if self.dice.random() < 0.2:
            self._look_at_numbers(await self.front.page("/metrics"), "the metrics")
            self._look_at_numbers((self.scratch / "log").read_text(errors="replace"), "the log")

    async def _look_at(self, person: Person) -> None:
        known, dice = self.known, self.dice
        shown = str(await self._everything(person))
        known.check_shown(shown, [person], f"{person}'s list", recalled=False)
        if known.missing(person, shown):
            exported = str(await self._exported(person))
            known.check_shown(exported, [person], f"{person}'s export", recalled=False)
            lost = [word for word in known.missing(person, exported) if word not in shown]
            if lost:
                await self._quiet(person)
                lost = known.missing(person, str(await self._everything(person)))
            if lost:
                raise BrokenError(f"{person} lost {lost}")
        words = known.words()
        if not words:
            return
        word = dice.choice(words)
        asked = dice.choice((f"What do you know about {word}?", "What is my dog called?", "Tell me all about me."))
        found = await self._insist(
            lambda: self.front.call("SearchMemories", api.SearchMemoriesRequest(query=asked, threshold=0.0, limit=50), person)
        )
        known.check_shown(str(found), [person], f"{person}'s search", recalled=True)
        explain = api.ExplainRecallRequest(text=asked, force=True)
        explained = await self._insist(lambda: self.front.call("ExplainRecall", explain, person))
        known.check_shown(explained.block, [person], f"{person}'s explanation", recalled=True)
        memberships = dice.choice(([], [], ["pzalpha"], ["pzbeta"], ["pzalpha", "pzbeta"]))
        again = dice.choice([None, *(one for one in self.chats if one.person == person)])
        chat = Chat(person, project=dice.choice(("", "", "pzalpha")))
        if again is not None:
            chat = Chat(person, again.session, again.project, again.history)
        said = await self.front.chat(
            chat, asked, "Hm.", memberships=memberships, x_memory_store="skip", x_memory_retrieve="force"
        )
        self._check_block(person, memberships, said.added)

    def _look_at_numbers(self, text: str, where: str) -> None:
        for sign in ("qz", "uz", "sz1", "sz2", "pzalpha"):
            at = text.find(sign)
            if at >= 0:
                raise BrokenError(f"{where} says {text[max(0, at - 300) : at + 50]!r}")

    async def _end(self) -> None:
        for person in self.people:
            await self._quiet(person)
        for person, receipt in self.receipts:
            request = api.GetForgetReceiptRequest(receipt_id=receipt)

            async def state(person: Person = person, request: Any = request) -> str:
                return str((await self.front.call("GetForgetReceipt", request, person)).state)

            async with asyncio.timeout(PATIENCE * 2):
                while await self._insist(state) != "complete":
                    await asyncio.sleep(0.05)
        await self.look()
        self.board.ahead += timedelta(hours=2)
        await self.restart()
        await self.look()
        os.kill(self.front.process, signal.SIGTERM)
        await self._ended()
        self._look_into_files()

    def _look_into_files(self) -> None:
        """Nothing that was forgotten stands in any byte; of sealed texts nothing at all."""
        wanted = self.known.words() if self.sealed else list(self.known.gone())
        for path in sorted((self.scratch / "data").rglob("*")):
            if not path.is_file():
                continue
            raw = path.read_bytes()
            found = [word for word in wanted if word.encode() in raw]
            if found:
                raise BrokenError(f"{path.relative_to(self.scratch)} holds {found[:5]}")
