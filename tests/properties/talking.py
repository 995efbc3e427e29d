"""Words of people in conversations of every kind."""

from __future__ import annotations

from pathlib import Path

from memory_extproc.api.gen import memory_pb2 as api
from tests.properties.front import Chat, Person
from tests.properties.known import WORD, BrokenError, Copy, Fate, Holder, Project
from tests.properties.stage import PROJECT, SESSION, Stage

SLOTS = ("dog", "cat", "sister", "boat", "street", "school", "team", "horse", "bakery", "band")
OPENINGS = ("Hello there.", "Let us go on.")


class Talking(Stage):
    def __init__(self, seed: int, scratch: Path, models: Path, *, replicas: int = 1) -> None:
        super().__init__(seed, scratch, models, replicas=replicas)
        self.incognito: list[Chat] = []
        self.chains: dict[Person, str] = {}

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
        if self.setting.shares and chat.project and chat.project in memberships:
            return Project(chat.person.tenant, chat.project)
        return chat.person

    def _chat(self) -> tuple[Chat, list[str]]:
        dice = self.dice
        project = dice.choice(("", "", "", "pzalpha", PROJECT))
        memberships = [project] if project and dice.random() < 0.6 else []
        chat = Chat(self._someone(), dice.choice(("", "sz1", "sz2", SESSION)), project)
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
        before = await self.journalled()
        began = self.board.now()
        self._resent(chat, holder)
        said = await self.front.chat(chat, words, answer, memberships=memberships, **headers)
        self.check_block(chat.person, memberships, said.added)
        chat.history += [{"role": "user", "content": words}, {"role": "assistant", "content": answer}]
        kept = await self.journalled() > before
        consent = self.consents[chat.person]
        if unseen or (isinstance(holder, Person) and consent != "on"):
            if kept:
                raise BrokenError(f"{word} was kept though {'incognito' if unseen else consent}")
            return
        self.tell(word, "kept" if kept else f"not kept ({said.outcome})")
        fate = Fate.KEPT if kept else Fate.MAYBE
        where = {chat.session} if chat.session else {f"?{id(chat)}"}
        self.known.note(holder, word, Copy(fate, began, slot, where, {chat.project} - {""} or {"-"}, 1))

    def _resent(self, chat: Chat, holder: Holder) -> None:
        """What a client sends again in a project's name is, as a conversation's words, the project's too."""
        words = WORD.findall(str(chat.history))
        self.known.resent |= {word for word in words if word not in self.known.of(holder)}

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
        self._resent(again, self._holder(chat, memberships))
        said = await self.front.chat(again, asked["content"], answer["content"], memberships=memberships)
        self.check_block(chat.person, memberships, said.added)

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
        before, began = await self.journalled(), self.board.now()
        said = await self.front.chat(chat, words, "Noted.", response=response, previous=previous)
        self.check_block(person, [], said.added)
        kept = await self.journalled() > before
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
