"""Real servers for the store's contract suite: Milvus 2.3.5 from PyPI, and `milvus-lite server`.

Both listen on free ports, keep what they write under a directory of the test's and are killed at the end.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from tests.support.installing import TOOLS, install_once
from tests.support.ports import free_port

MILVUS = "milvus==2.3.5"  # the newest that PyPI has
LAUNCHER = Path(__file__).with_name("milvus_launch.py")
_STARTS = 3
_VERSION = "/milvus.proto.milvus.MilvusService/GetVersion"  # of an empty request
_PORTS = (
    "proxy_port", "proxy_internal_port", "etcd_port", "root_coord_port", "query_coord_port", "query_node_port",
    "index_coord_port", "index_node_port", "data_coord_port", "data_node_port",
)  # fmt: skip


class Process:
    """A server in a process group of its own, so that whatever it starts ends with it."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str], address: str) -> None:
        self._command = list(command)
        self._log = log
        self._environment = environment
        self.address = address
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=10)
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def wait_until(self, ready: str, limit: float) -> None:
        """Until the health address or, if it is empty, the server itself answers: its port is there before."""
        deadline = time.monotonic() + limit
        last = "nothing"
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                break
            try:
                if ready:
                    with urllib.request.urlopen(ready, timeout=2) as answer:  # noqa: S310 - our own address
                        if b"OK" in answer.read():
                            return
                else:
                    with grpc.insecure_channel(self.address.removeprefix("http://")) as channel:
                        channel.unary_unary(_VERSION, bytes, bytes)(b"", timeout=2)
                    return
            except (OSError, grpc.RpcError) as error:
                last = repr(error)
            time.sleep(0.05)
        log = self._log.read_bytes()
        # A Go program that aborts says why first, and then where each of its goroutines was.
        why = [line for line in log.splitlines() if line.startswith((b"panic", b"fatal", b"SIG", b"terminate"))][:5]
        said = b"\n".join([*why, log[-2000:]]).decode(errors="replace")
        raise AssertionError(f"{self._command} did not come up, last: {last}\n{said}")


def install_milvus() -> Path:
    """The directory of the package; installed when it is not there. Skips where it cannot run."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip(f"{MILVUS} has no server for {sys.platform} {platform.machine()}")
    target = TOOLS / "milvus"
    if fault := install_once(target, MILVUS, holds="milvus/__init__.py"):
        pytest.skip(f"{MILVUS} cannot be installed here: {fault}")
    return target


@contextlib.contextmanager
def milvus_server(directory: Path) -> Iterator[Process]:
    process = _milvus_started(directory)
    try:
        yield process
    finally:
        process.kill()


def _milvus_started(directory: Path) -> Process:
    """A running server. Milvus 2.3.5 sometimes aborts while it starts: then another one is started."""
    for attempt in range(1, _STARTS + 1):
        process, health = _milvus(directory / f"start-{attempt}")
        try:
            process.start()
            process.wait_until(health, 60)
        except AssertionError:
            process.kill()
            if attempt == _STARTS:
                raise
        else:
            return process
    raise AssertionError("unreachable")


def _milvus(directory: Path) -> tuple[Process, str]:
    """A server that is not started yet, and the address of its health."""
    package = install_milvus()
    directory.mkdir()
    proxy, metrics, peers, *others = (free_port() for _ in range(len(_PORTS) + 2))
    ports = [f"{name}={port}" for name, port in zip(_PORTS, [proxy, *others], strict=True)]
    process = Process(
        [sys.executable, str(LAUNCHER), str(directory / "milvus"), str(metrics), str(peers), *ports],
        directory / "milvus.log",
        {**os.environ, "PYTHONPATH": str(package)},
        f"http://127.0.0.1:{proxy}",
    )
    return process, f"http://127.0.0.1:{metrics}/healthz"


@contextlib.contextmanager
def lite_server(directory: Path) -> Iterator[Process]:
    port = free_port()
    # One thing after the other: of several writers at once Lite loses rows, and a read beside one may miss some.
    command = [str(Path(sys.executable).with_name("milvus-lite")), "server", "--max-workers", "1"]
    process = Process(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(directory / "lite-server")],
        directory / "lite.log",
        dict(os.environ),
        f"http://127.0.0.1:{port}",
    )
    try:
        process.start()
        process.wait_until("", 60)
        yield process
    finally:
        process.kill()
