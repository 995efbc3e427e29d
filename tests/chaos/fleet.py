"""Replicas in processes of their own behind one Envoy, with one Redis and one store, and the faults they meet."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import grpc.aio
from aiohttp import web

from memory_extproc.api.gen import memory_pb2 as api
from memory_extproc.cli.api_client import open_stub
from tests.chaos.counts import RunLog
from tests.chaos.schedule import ALL, Fault
from tests.properties.front import STATES, Person
from tests.support.envoy import ROOT, Answer, Wiring
from tests.support.faults import FaultStand, Link
from tests.support.faults_process import Child
from tests.support.milvus_server import Process
from tests.support.ports import free_port
from tests.support.redis import RedisServer, start_redis, stop_redis
from tests.support.upstream import Got, a_stream, sse_events

# An Envoy that waits longer than a replica is ever stopped: a turn is unknown to every replica only after a kill.
MESSAGE_TIMEOUT = 10.0
# Seconds that a call of the memory API takes at most (a forget answers when it is done), and all attempts together.
ATTEMPT, PATIENCE = 30.0, 120.0
# Statuses with which the memory API asks its callers to try again.
AGAIN = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "CANCELLED"})
PIECES = sse_events("Noted", ", thank", " you.")
NUMBER = "x-chaos-request"


class Replica:
    """A process, its ways to Redis and to the store, and a client of its memory API."""

    def __init__(self, child: Child, redis: Link, store: Link, api_port: int) -> None:
        self.child, self.redis, self.store = child, redis, store
        self.changing = asyncio.Lock()  # held while a fault has the process
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{api_port}", options=[("grpc.max_reconnect_backoff_ms", 500)]
        )
        self.stub: Any = open_stub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)
        await self.child.close()


class Fleet:
    """As many replicas as *count*.

    With a *release*, the source tree of an earlier version, they start as that version; each rolling restart then
    changes them to this version or back.
    """

    def __init__(
        self, stand: FaultStand, store: Process, log: RunLog, count: int, *, release: Path | None = None
    ) -> None:
        self.stand, self.log, self.count = stand, log, count
        self._trees = (release, ROOT) if release else (ROOT,)
        self.replicas: list[Replica] = []
        self.kills: list[float] = []  # moments of the run's clock
        self.wipes: list[float] = []
        self.on_wipe: Callable[[], None] = lambda: None
        self.upstream_got: dict[str, Got] = {}
        self._store = store
        self._redis: RedisServer
        self._redis_changing = asyncio.Lock()
        self._stack = contextlib.AsyncExitStack()
        self._turn = 0

    # --- starting and ending ------------------------------------------------------------------------------
    async def __aenter__(self) -> Self:
        directory = self.stand.scratch / "redis"
        directory.mkdir()
        self._redis = start_redis(directory, lasting=True)
        self._stack.callback(lambda: stop_redis(self._redis))
        name = f"chaos_{uuid4().hex}"
        for number in range(self.count):
            self.replicas.append(await self._configured(number, name))
        for one in self.replicas:
            one.child.tree = self._trees[0]
        await asyncio.gather(*(one.child.serving() for one in self.replicas))
        self.stand.upstream.answers = self._answer
        wiring = Wiring(health_check=True, failure_mode_allow=True, message_timeout=f"{MESSAGE_TIMEOUT:g}s")
        await self.stand.start_around(*(one.child.ext_proc for one in self.replicas), wiring=wiring)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _configured(self, number: int, name: str) -> Replica:
        redis = await self._stack.enter_async_context(Link(self._redis.port))
        store = await self._stack.enter_async_context(Link(int(self._store.address.rpartition(":")[2])))
        ports = {port: free_port() for port in ("ext_proc", "api", "http")}
        config, data = self.stand.scratch / f"replica{number}.yaml", self.stand.scratch / f"replica{number}"
        self.stand.configured(
            config,
            data,
            listen={port: f"127.0.0.1:{value}" for port, value in ports.items()},
            memory={
                "milvus": {"address": f"127.0.0.1:{store.port}", "collection": name, "timeout": "1s"},
                "embedding": {"threads": 1},
            },
            coordination={
                "url": f"redis://127.0.0.1:{redis.port}/0", "prefix": name, "timeout": "200ms", "lease": "3s",
            },
            api={"rate": {"per_second": 100000.0, "burst": 100000}, "secret": "the same for all replicas"},
            privacy={"consent_fresh": "1ms", "consent_grace": "0s"},
            telemetry={"canary": "off"},
            envoy={"message_timeout": f"{MESSAGE_TIMEOUT:g}s"},
            shutdown={"announce": "1s"},
        )  # fmt: skip
        replica = Replica(Child(config, data, ports["ext_proc"], ports["http"]), redis, store, ports["api"])
        self._stack.push_async_callback(replica.close)
        return replica

    # --- traffic --------------------------------------------------------------------------------------------
    async def _answer(self, request: web.Request) -> web.StreamResponse:
        got = self.stand.upstream.got.pop()
        self.upstream_got[got.headers.get(NUMBER, "")] = got
        return await a_stream(PIECES, lambda _: asyncio.sleep(0.02))(request)

    async def chat(self, person: Person, body: Mapping[str, Any], number: str, **headers: str) -> Answer:
        """One exchange through Envoy."""
        headers |= {"x_authz_tenant_id": person.tenant, NUMBER.replace("-", "_"): number}
        return await self.stand.chat(body, user=person.user, **headers)

    async def call(self, method: str, request: Any, person: Person, replica: int | None = None) -> Any:
        """Calls the memory API of *replica*, or of one after the other, until it answers or refuses."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + PATIENCE
        while True:
            self._turn += 1
            try:
                chosen = self._turn % self.count if replica is None else replica
                return await self._attempt(chosen, method, request, person)
            except grpc.aio.AioRpcError as error:
                if error.code().name not in AGAIN or loop.time() > ends:
                    raise
            await asyncio.sleep(0.1)

    async def _attempt(self, replica: int, method: str, request: Any, person: Person) -> Any:
        metadata = [("x-authz-user-id", person.user), ("x-authz-tenant-id", person.tenant)]
        call = getattr(self.replicas[replica].stub, method)
        return await call(request, metadata=metadata, timeout=ATTEMPT)

    async def everything(self, person: Person, replica: int | None = None) -> list[Any]:
        """All memories of *person* in whatever state."""
        found: list[Any] = []
        token = ""
        while True:
            request = api.ListMemoriesRequest(state=STATES, limit=100, page_token=token)
            page = await self.call("ListMemories", request, person, replica)
            found += page.memories
            token = page.next_page_token
            if not token:
                return found

    # --- faults ---------------------------------------------------------------------------------------------
    async def befall(self, fault: Fault) -> None:
        """Does it and undoes it."""
        self.log.note("fault", kind=fault.kind, replica=fault.replica, seconds=fault.seconds)
        struck = self.replicas if fault.replica == ALL else [self.replicas[fault.replica]]
        async with self._happening(fault.kind, struck):
            await asyncio.sleep(fault.seconds)
        self.log.note("healed", kind=fault.kind, replica=fault.replica)

    def _happening(self, kind: str, struck: Sequence[Replica]) -> contextlib.AbstractAsyncContextManager[None]:
        if kind.startswith(("redis", "store")) and kind.endswith(("cut", "stall", "slow")):
            part, _, how = kind.partition("_")
            return _broken([getattr(one, part) for one in struck], how)
        happening: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[None]]] = {
            "kill": lambda: self._killed(struck[0]),
            "stop": lambda: self._stopped(struck[0]),
            "rolling_restart": self._rolled,
            "redis_kill": self._redis_killed,
            "redis_flush": self._redis_flushed,
            "store_stop": self._store_stopped,
            "disk_full": lambda: self._disk_full(struck[0]),
        }
        return happening[kind]()

    @contextlib.asynccontextmanager
    async def _killed(self, replica: Replica) -> AsyncIterator[None]:
        async with replica.changing:
            self.kills.append(self.log.now)
            await replica.child.kill()
            yield
            await replica.child.serving()

    @contextlib.asynccontextmanager
    async def _stopped(self, replica: Replica) -> AsyncIterator[None]:
        async with replica.changing:
            replica.child.signal(signal.SIGSTOP)
            yield
            replica.child.signal(signal.SIGCONT)

    @contextlib.asynccontextmanager
    async def _rolled(self) -> AsyncIterator[None]:
        yield
        self._trees = self._trees[::-1]
        self.log.note("restarts", tree=str(self._trees[0]))
        for replica in self.replicas:
            async with replica.changing:
                replica.child.tree = self._trees[0]
                replica.child.signal(signal.SIGTERM)
                code = await replica.child.ended()
                assert code == 0, f"a replica that was told to end ended with {code}"
                await replica.child.serving()

    @contextlib.asynccontextmanager
    async def _redis_killed(self) -> AsyncIterator[None]:
        async with self._redis_changing:
            stop_redis(self._redis)
            yield
            self._redis = start_redis(self._redis.directory, lasting=True, port=self._redis.port)

    @contextlib.asynccontextmanager
    async def _redis_flushed(self) -> AsyncIterator[None]:
        async with self._redis_changing:  # a Redis that was killed has to be up
            reader, writer = await asyncio.open_connection("127.0.0.1", self._redis.port)
            writer.write(b"FLUSHALL\r\n")
            assert (await reader.readline()).startswith(b"+OK")
            writer.close()
            self.wipes.append(self.log.now)
            self.on_wipe()
        yield

    @contextlib.asynccontextmanager
    async def _store_stopped(self) -> AsyncIterator[None]:
        self._store.freeze()
        yield
        self._store.thaw()

    @contextlib.asynccontextmanager
    async def _disk_full(self, replica: Replica) -> AsyncIterator[None]:
        async with replica.changing:
            replica.child.limit_files(1024)
            yield
            replica.child.limit_files(1 << 40)

    # --- what is seen of the processes -----------------------------------------------------------------------
    def keep_logs(self, path: Path) -> None:
        """Keeps what the replicas logged beside the run's log."""
        for number, replica in enumerate(self.replicas):
            path.with_suffix(f".replica{number}.log").write_text(replica.child.errors)


@contextlib.asynccontextmanager
async def _broken(links: Sequence[Link], how: str) -> AsyncIterator[None]:
    for link in links:
        if how == "cut":
            await link.cut()
        elif how == "stall":
            link.stall()
        else:
            link.delay = 0.15
    yield
    for link in links:
        await link.mend()
