"""The stage of a story: lives of the sidecar, their surroundings, and all that anybody can see of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Self

import grpc.aio
import yaml

from memory_extproc.api.gen import memory_pb2 as api
from tests.properties.front import NAMESPACE, PATIENCE, Chat, Front, Person
from tests.properties.front import ROLES as ROLES_HEADER
from tests.properties.gossip import ROLES, Gossip
from tests.properties.known import WORD, BrokenError, Holder, Known, Project
from tests.properties.life import Switchboard
from tests.support.endpoint import StandIn, serving
from tests.support.milvus_server import lite_server
from tests.support.redis import start_redis, stop_redis

ROOT = Path(__file__).resolve().parents[2]
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
    Person("acme", "uz\u00e4nn"),
    Person("acme", "uza\u0308nn"),
    Person("acme", "uz' || 1==1 || '"),
    Person("acme", "uz{0}"),
)
SESSION, PROJECT = 'sz1" or session_id != "', "pz' || project_id like '%"
# None of a person's names, of their sessions' and projects', and of what they said.
UNTOLD = ("qz", "uz", "sz1", "sz2", "pzalpha", "pz'")


class Setting:
    """How the sidecar of a story is configured; the dice decide."""

    def __init__(self, dice: Random, scratch: Path) -> None:
        self.sealed = dice.random() < 0.3
        self.hashed = dice.random() < 0.3
        self.shares = dice.random() < 0.4
        self.gossips = dice.random() < 0.5
        self._idle = dice.choice(["50ms", "500ms"])
        self._topic_idle = dice.choice(["1s", "10m"])
        self._every = dice.choice(["1s", "1d"])
        self._profile = dice.choice(["off", "always"])
        self._compresses = dice.random() < 0.3
        self._scratch = scratch

    def written(self, name: str, models: Path, model: str, replicas: dict[str, Any]) -> Path:
        """A file. *model*: where one is served, if any; *replicas*: what several of them stand on."""
        scratch = self._scratch
        privacy: dict[str, Any] = {
            "encrypt_content": self.sealed,
            "hash_user_ids": self.hashed,
            "consent_fresh": "1ms",
        }
        if self.hashed:
            privacy["hash_key"] = "a key of thirty-two bytes, or so."
        if self.sealed:
            privacy["master_key_file"] = str(scratch / "master.key")
        configured: dict[str, Any] = {
            "data_dir": str(scratch / name),
            "memory": {
                "embedding": {"models_dir": str(models), "threads": 1},
                "milvus": {"shards": 2, "address": replicas.get("store", "")},
            },
            "listen": dict.fromkeys(("ext_proc", "api", "http"), "127.0.0.1:0"),
            "recall": {"deadline": "4s", "settle": "3s"},
            "envoy": {"message_timeout": "9s", "health_interval": "1ms"},
            "shutdown": {"announce": "10ms", "grace": "2s", "flush": "5s"},
            "learn": {"session_idle": self._idle, "journal": {"wait": "4s"}, "notepad": self.gossips},
            "topics": {"idle": self._topic_idle},
            "retention": {
                "every": self._every,
                "max_memories": None,
                "reflect": {"enabled": self.gossips, "above": 2},
            },
            "inject": {"profile": self._profile},
            "compress": {"enabled": self.gossips and self._compresses, "above_tokens": 256, "keep_turns": 2},
            "telemetry": {"canary": "off", "log_level": "debug"},
            "identity": {"metadata_projects": f"{NAMESPACE}:projects"},
            "scopes": {"project": {"recall": self.shares, "learn": self.shares}},
            "api": {
                "trusted_proxy": {"roles_header": ROLES_HEADER},
                "rate": {"per_second": 100000.0, "burst": 100000},
                "secret": "the same for all replicas",
            },
            "coordination": {"url": replicas.get("coordination", ""), "lease": "2s"},
            "privacy": privacy,
        }
        if self.gossips:
            host, port = model.removeprefix("http://").removesuffix("/v1").split(":")
            endpoint = {"address": host, "port": int(port)}
            configured["external_models"] = [
                {"model_role": role, "llm_endpoint": endpoint, "llm_model_name": "m", "llm_timeout_seconds": 5}
                for role in ROLES
            ]
        path = scratch / f"{name}.yaml"
        path.write_text(yaml.safe_dump(configured))
        return path


async def _gone(process: int, seconds: float = PATIENCE * 2) -> None:
    async with asyncio.timeout(seconds):
        while _lives(process):  # noqa: ASYNC110 - another process ends, which sets no event here
            await asyncio.sleep(0.005)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class Stage:
    def __init__(self, seed: int, scratch: Path, models: Path, *, replicas: int = 1) -> None:
        """More than one of *replicas* share a Redis and a server of Milvus Lite's, and stand in for one another."""
        self.seed, self.scratch = seed, scratch
        self.dice = Random(seed)
        self.known = Known()
        self.setting = Setting(self.dice, scratch)
        self.people = self.dice.sample(PEOPLE, 3)
        self.consents = dict.fromkeys(self.people, "on")
        self.chats: list[Chat] = []
        self.receipts: list[tuple[Person, str]] = []
        self.told: list[str] = []
        self.gossip = Gossip()
        self._models, self.replicas = models, replicas
        self._fronts: list[Front] = []
        self._boards = [Switchboard(scratch / f"board{number}") for number in range(replicas)]
        self._configs: list[Path] = []
        self._at = 0  # which replica people reach
        self._lives: asyncio.subprocess.Process
        self._stack = contextlib.AsyncExitStack()

    # --- lives -----------------------------------------------------------------------------------------
    @property
    def front(self) -> Front:
        return self._fronts[self._at]

    @property
    def board(self) -> Switchboard:
        return self._boards[self._at]

    def pass_by(self, by: timedelta) -> None:
        for board in self._boards:
            board.ahead += by

    def anywhere(self) -> None:
        """From here on people may reach another replica."""
        self._at = self.dice.randrange(self.replicas)

    async def __aenter__(self) -> Self:
        model: StandIn | None = None
        if self.setting.gossips:
            model = await self._stack.enter_async_context(serving(self.gossip))
        shared: dict[str, Any] = {}
        if self.replicas > 1:
            redis = start_redis(self.scratch, lasting=True)
            self._stack.callback(stop_redis, redis)
            store = self._stack.enter_context(lite_server(self.scratch))
            shared = {"coordination": redis.url, "store": store.address}
        for number in range(self.replicas):
            address = "" if model is None else model.base_url
            self._configs.append(self.setting.written(f"data{number}", self._models, address, shared))
        if self.setting.sealed:
            key = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "memory_extproc", "keys", "new", stdout=asyncio.subprocess.PIPE, cwd=ROOT
            )
            made, _ = await key.communicate()
            (self.scratch / "master.key").write_bytes(made)
            (self.scratch / "master.key").chmod(0o600)
        self._lives = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.properties.life", str(self.scratch / "log"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        for number in range(self.replicas):
            self._fronts.append(await self._opened(number))
        return self

    async def __aexit__(self, *_: object) -> None:
        for front in self._fronts:
            await self._ended(front, signal.SIGKILL)
        self._lives.kill()
        await self._lives.wait()
        await self._stack.aclose()

    async def reopen(self) -> None:
        self._fronts[self._at] = await self._opened(self._at)

    async def _opened(self, number: int) -> Front:
        assert self._lives.stdin is not None
        assert self._lives.stdout is not None
        self._boards[number].turns = 0
        order = json.dumps([str(self._configs[number]), str(self.scratch / f"board{number}")])
        self._lives.stdin.write(f"{order}\n".encode())
        await self._lives.stdin.drain()
        line = await asyncio.wait_for(self._lives.stdout.readline(), 60)
        said = json.loads(line)
        if "failed" in said:
            raise BrokenError(f"the sidecar did not open: {said['failed']}")
        return Front(said)

    async def end(self, how: signal.Signals) -> None:
        await self._ended(self.front, how)

    async def end_all(self) -> None:
        for front in self._fronts:
            await self._ended(front, signal.SIGTERM)

    async def _ended(self, front: Front, how: signal.Signals) -> None:
        """Waits until the process is no more. One that does not end in time tells where it stands and is killed, as
        Kubernetes does: the promises have to hold of that death, too."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(front.process, how)
        try:
            await _gone(front.process)
        except TimeoutError:
            self.tell("slow to end")
            await self._tells_where(front)
            with contextlib.suppress(ProcessLookupError):
                os.kill(front.process, signal.SIGKILL)
            await _gone(front.process)
        await front.__aexit__()

    async def _tells_where(self, front: Front) -> None:
        """Into the log: its threads, and where its loop still turns its tasks."""
        log = self.scratch / "log"
        for question, told in ((signal.SIGUSR2, b"Current thread"), (signal.SIGUSR1, b"Stack for")):
            before = log.read_bytes().count(told)
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                os.kill(front.process, question)
                async with asyncio.timeout(2):
                    while log.read_bytes().count(told) == before:  # noqa: ASYNC110 - another process writes it
                        await asyncio.sleep(0.05)

    async def dies(self, within: float) -> None:
        """Waits until the process that people reach is no more, *within* seconds."""
        with contextlib.suppress(TimeoutError):
            await _gone(self.front.process, within)

    def tell(self, *what: object) -> None:
        self.told[-1] += " " + " ".join(map(str, what))

    # --- what is seen --------------------------------------------------------------------------------------
    async def journalled(self) -> int:
        page = await self.front.page("/metrics")
        return sum(
            int(float(line.rpartition(" ")[2]))
            for line in page.splitlines()
            if line.startswith('memory_extproc_turns_total{outcome="journalled"}')
        )

    async def insist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """While a forget is under way nothing is shown."""
        async with asyncio.timeout(PATIENCE * 2):
            while True:
                try:
                    return await work()
                except grpc.aio.AioRpcError as error:
                    if error.code().name != "UNAVAILABLE":
                        raise
                await asyncio.sleep(0.02)

    async def everything(self, person: Person) -> list[Any]:
        found: list[Any] = await self.insist(lambda: self.front.everything(person, self.dice.choice((3, 50, 100))))
        return found

    async def exported(self, person: Person) -> list[Any]:
        found: list[Any] = await self.insist(lambda: self.front.export(person))
        return found

    async def quiet(self, person: Person) -> None:
        """Until all that the person said is stored and learned from."""
        async with asyncio.timeout(PATIENCE * 2):
            while True:
                stats = await self.insist(lambda: self.front.call("GetStats", api.GetStatsRequest(), person))
                if not stats.backlog:
                    return
                await asyncio.sleep(0.02)

    def _reach(self, person: Person, memberships: list[str]) -> list[Holder]:
        return [person, *(Project(person.tenant, name) for name in memberships)]

    def check_block(self, person: Person, memberships: list[str], added: str) -> None:
        if self.consents[person] == "off" and WORD.search(added):
            raise BrokenError(f"{person} said no and was given {WORD.findall(added)}")
        reach = self._reach(person, memberships)
        self.known.check_shown(added, reach, f"{person}'s upstream", recalled=True)

    async def look(self) -> None:
        for person in self.people:
            await self._look_at(person)
        self._look_at_prompts()
        if self.dice.random() < 0.2:
            self._look_at_numbers(await self.front.page("/metrics"), "the metrics")
            self._look_at_numbers((self.scratch / "log").read_text(errors="replace"), "the log")

    def _look_at_prompts(self) -> None:
        """A model is shown one holder's words at a time."""
        shown, self.gossip.shown = self.gossip.shown, []
        for beginning, words in shown:
            if not any(words <= copies.keys() for copies in self.known.copies.values()):
                raise BrokenError(f"a model was shown what nobody has together: {beginning}: {sorted(words)}")

    async def _look_at(self, person: Person) -> None:
        self.anywhere()
        known, dice = self.known, self.dice
        shown = str(await self.everything(person))
        known.check_shown(shown, [person], f"{person}'s list", recalled=False)
        if known.missing(person, shown):
            exported = str(await self.exported(person))
            known.check_shown(exported, [person], f"{person}'s export", recalled=False)
            lost = [word for word in known.missing(person, exported) if word not in shown]
            if lost:
                await self.quiet(person)
                lost = known.missing(person, str(await self.everything(person)))
            if lost:
                raise BrokenError(f"{person} lost {lost}")
        words = known.words()
        if not words:
            return
        word = dice.choice(words)
        asked = dice.choice((f"What do you know about {word}?", "What is my dog called?", "Tell me all about me."))
        found = await self.insist(
            lambda: self.front.call(
                "SearchMemories", api.SearchMemoriesRequest(query=asked, threshold=0.0, limit=50), person
            )
        )
        known.check_shown(str(found), [person], f"{person}'s search", recalled=True)
        explain = api.ExplainRecallRequest(text=asked, force=True)
        explained = await self.insist(lambda: self.front.call("ExplainRecall", explain, person))
        known.check_shown(explained.block, [person], f"{person}'s explanation", recalled=True)
        memberships = dice.choice(([], [], ["pzalpha"], [PROJECT], ["pzalpha", PROJECT]))
        again = dice.choice([None, *(one for one in self.chats if one.person == person)])
        chat = Chat(person, project=dice.choice(("", "", "pzalpha")))
        if again is not None:
            chat = Chat(person, again.session, again.project, again.history)
        said = await self.front.chat(
            chat, asked, "Hm.", memberships=memberships, x_memory_store="skip", x_memory_retrieve="force"
        )
        self.check_block(person, memberships, said.added)

    def _look_at_numbers(self, text: str, where: str) -> None:
        for sign in UNTOLD:
            at = text.find(sign)
            if at >= 0:
                raise BrokenError(f"{where} says {text[max(0, at - 300) : at + 50]!r}")

    def look_into_files(self) -> None:
        """Nothing that was forgotten stands in any byte; of sealed texts nothing at all."""
        if self.replicas > 1:
            return  # neither Redis nor a server of Milvus Lite's drops the bytes at once
        wanted = self.known.words() if self.setting.sealed else set(self.known.gone()) - self.known.resent
        for path in sorted(self.scratch.glob("data*/**/*")):
            if not path.is_file():
                continue
            raw = path.read_bytes()
            found = [word for word in wanted if word.encode() in raw]
            if found:
                raise BrokenError(f"{path.relative_to(self.scratch)} holds {found[:5]}")
