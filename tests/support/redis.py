"""A real Redis server of the test session's own, on a free port."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from memory_extproc.coordination.redis import RedisCoordination
from memory_extproc.coordination.redis_client import RedisLink
from tests.support.ports import free_port

_START_LIMIT = 30.0  # seconds
_PATIENCE = timedelta(milliseconds=500)  # of a call


@dataclass(frozen=True, slots=True)
class RedisServer:
    process: subprocess.Popen[bytes]
    port: int
    directory: Path

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def stall(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def start_redis(
    directory: Path, *more: str, lasting: bool = False, port: int = 0, config: Path | None = None
) -> RedisServer:
    """On a free port unless *port* is given. *lasting*: it keeps what it is given, as the sidecar wants it; else it
    forgets all when it ends. *more* are further arguments; *config* is a file that it may rewrite."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    port = port or free_port()
    log = directory / "redis.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                binary,
                *([config] if config else []),
                "--port",
                str(port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "yes" if lasting else "no",
                "--dir",
                directory,
                *more,
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + _START_LIMIT
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"redis-server did not start:\n{log.read_text()}")
        time.sleep(0.005)
    return RedisServer(process, port, directory)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def stop_redis(server: RedisServer) -> None:
    server.process.kill()
    server.process.wait(timeout=10)


def restart_redis(server: RedisServer) -> RedisServer:
    """With the same files, as whatever the others make of it."""
    process = subprocess.Popen(server.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    wait_for(lambda: _answers(server.port), "the server")
    return RedisServer(process, server.port, server.directory)


@dataclass(frozen=True, slots=True)
class RedisFleet:
    """Servers behind one address: a cluster, or a master and a replica that Sentinels watch."""

    servers: list[RedisServer]
    url: str

    def close(self) -> None:
        for server in self.servers:
            stop_redis(server)


def start_cluster(directory: Path, *, replicas: int = 0) -> RedisFleet:
    """Three masters, each with as many *replicas*."""
    servers = []
    for number in range(3 * (1 + replicas)):
        (own := directory / str(number)).mkdir()
        options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--cluster-node-timeout", "1500")
        servers.append(start_redis(own, *options, lasting=True))
    nodes = [f"127.0.0.1:{server.port}" for server in servers]
    made = run_redis_cli("--cluster", "create", *nodes, "--cluster-replicas", str(replicas), "--cluster-yes")
    assert "All 16384 slots covered" in made, made
    wait_for(
        lambda: all("cluster_state:ok" in ask_redis(server, "CLUSTER", "INFO") for server in servers), "the cluster"
    )
    if replicas:
        wait_for(lambda: all(_is_linked(server) for server in servers), "the replicas")
    return RedisFleet(servers, f"redis+cluster://{','.join(nodes)}")


def start_sentinels(directory: Path) -> RedisFleet:
    """One master, the first of the servers, a replica of it, and three Sentinels."""
    for name in ("master", "replica", "a", "b", "c"):
        (directory / name).mkdir()
    master = start_redis(directory / "master", lasting=True)
    replica = start_redis(directory / "replica", "--replicaof", f"127.0.0.1 {master.port}", lasting=True)
    wait_for(lambda: _is_linked(replica), "the replica")
    sentinels = []
    for name in ("a", "b", "c"):
        config = directory / name / "sentinel.conf"
        config.write_text(
            f"sentinel monitor memory 127.0.0.1 {master.port} 2\n"
            "sentinel down-after-milliseconds memory 1000\nsentinel failover-timeout memory 5000\n"
        )
        sentinels.append(start_redis(directory / name, "--sentinel", config=config))
    wait_for(
        lambda: all(
            f"slaves=1,sentinels={len(sentinels)}" in ask_redis(one, "INFO", "sentinel") for one in sentinels
        ),
        "the Sentinels",
    )
    nodes = ",".join(f"127.0.0.1:{one.port}" for one in sentinels)
    return RedisFleet([master, replica, *sentinels], f"redis+sentinel://{nodes}/memory")


def run_redis_cli(*arguments: str) -> str:
    done = subprocess.run(["redis-cli", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def ask_redis(server: RedisServer, *command: str) -> str:
    return run_redis_cli("-p", str(server.port), *command)


def wait_for(there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _START_LIMIT
    while not there():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come up")
        time.sleep(0.05)


def _is_linked(server: RedisServer) -> bool:
    told = ask_redis(server, "INFO", "replication")
    return ("role:master" in told and "connected_slaves:0" not in told) or "master_link_status:up" in told


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisFleet]:
    cluster = start_cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = start_redis(tmp_path_factory.mktemp("redis"), lasting=True)
    yield server
    stop_redis(server)


@asynccontextmanager
async def redis_coordination(
    url: str,
    *,
    prefix: str = "memory-extproc",
    patience: timedelta = _PATIENCE,
    password: str = "",
) -> AsyncIterator[RedisCoordination]:
    """Over a link of its own."""
    async with RedisLink(url, patience, password=lambda: SecretStr(password)) as link:
        yield RedisCoordination(link, prefix=prefix)
