"""Envoy and the sidecar as processes of their own, as they stand in production, on ports of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

ENVOY = Path(os.environ.get("MEMORY_EXTPROC_ENVOY", ".tools/envoy/envoy/_bin/envoy"))
MODELS = Path(os.environ.get("MEMORY_EXTPROC_TEST_MODELS", "models"))
MOST_PATH = len("unix:") + 107  # bytes
STARTS_WITHIN = 60.0  # seconds; a first start also creates the store


def in_use(port: int) -> bool:
    """Whether somebody listens there. Envoy would not mind: it shares its port with another Envoy."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return True
        return False


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Ports:
    envoy: int
    ext_proc: int
    http: int
    admin: int

    @classmethod
    def free(cls) -> Ports:
        return cls(free_port(), free_port(), free_port(), free_port())


class Started:
    """A process whose output goes to a file that is shown when it fails."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    @classmethod
    async def start(cls, name: str, command: list[str], log: Path, env: dict[str, str] | None = None) -> Started:
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out, env=env)
        return cls(name, process, log)

    async def ready(self, url: str) -> None:
        """Waits until *url* answers 200; the last reason and the log are told when it does not."""
        reason = "not tried"
        try:
            async with asyncio.timeout(STARTS_WITHIN), aiohttp.ClientSession() as session:
                while True:
                    if self.process.returncode is not None:
                        raise SystemExit(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")
                    try:
                        async with session.get(url) as answer:
                            if answer.status == 200:
                                return
                            reason = f"{answer.status} {await answer.text()}"
                    except aiohttp.ClientError as error:
                        reason = str(error)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise SystemExit(
                f"{self.name} was not ready within {STARTS_WITHIN:.0f} s ({reason}):\n{self.tail()}"
            ) from None

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(30):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        return self.process.returncode or 0

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Stack:
    """The sidecar with *config*, and Envoy in front of *upstream*."""

    def __init__(self, config: Path, ports: Ports, upstream: str, logs: Path) -> None:
        self.config, self.ports, self.upstream, self.logs = config, ports, upstream, logs
        self.environ: dict[str, str] = {}  # what the sidecar is configured with besides
        self.sidecar: Started | None = None
        self.envoy: Started | None = None
        self.admin = f"http://127.0.0.1:{ports.admin}"
        socket_ = f"unix:{logs.absolute() / 'ext_proc.sock'}"
        # Envoy and the sidecar meet at a Unix socket, unless its path is longer than the system takes.
        self.env = {"MEMORY_EXTPROC__LISTEN__EXT_PROC_UNIX": socket_} if len(socket_) <= MOST_PATH else {}

    async def start(self, say: Callable[[str], None] = lambda _: None) -> None:
        bootstrap = self.logs / "envoy.yaml"
        await self._write_bootstrap(bootstrap)
        await self.start_sidecar()
        say("sidecar is ready")
        self.envoy = await Started.start(
            "Envoy",
            [str(ENVOY), "-c", str(bootstrap), "--disable-hot-restart", "--log-level", "warning"],
            self.logs / "envoy.log",
        )
        await self.envoy.ready(f"{self.admin}/ready")
        await self._noticed()
        say(f"Envoy listens on {self.ports.envoy}")

    async def start_sidecar(self) -> None:
        self.sidecar = await Started.start(
            "the sidecar",
            [sys.executable, "-m", "memory_extproc", "serve", "--config", str(self.config)],
            self.logs / "sidecar.log",
            env={**os.environ, **self.env, **self.environ},
        )
        await self.sidecar.ready(f"http://127.0.0.1:{self.ports.http}/readyz")

    async def restart_sidecar(self) -> None:
        await self.start_sidecar()
        await self._noticed()

    async def _noticed(self) -> None:
        """Until Envoy's health check has found the sidecar: until then it lets requests pass without it."""
        async with asyncio.timeout(STARTS_WITHIN), aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"{self.admin}/clusters") as answer:
                    hosts = [line for line in (await answer.text()).splitlines() if "::health_flags::" in line]
                if hosts and all(line.endswith("::healthy") for line in hosts):
                    return
                await asyncio.sleep(0.05)

    async def stop_sidecar(self) -> int:
        return await self.sidecar.stop() if self.sidecar else 0

    async def stop(self) -> None:
        if self.envoy:
            await self.envoy.stop()
        await self.stop_sidecar()

    async def _write_bootstrap(self, path: Path) -> None:
        command = [
            *(sys.executable, "-m", "memory_extproc", "envoy-config", "--config", str(self.config)),
            *("--upstream", self.upstream, "--listen", f"127.0.0.1:{self.ports.envoy}"),
            *("--admin-port", str(self.ports.admin), "--identity", "trust"),
            *(["--socket"] if self.env else []),
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **self.env}
        )
        out, err = await process.communicate()
        if process.returncode:
            raise SystemExit(f"no configuration for Envoy can be written:\n{err.decode().rstrip()}")
        await asyncio.to_thread(path.write_bytes, out)


def write_config(path: Path, ports: Ports, directory: Path) -> None:
    """The few settings in which the demo differs from config.yaml."""
    path.write_text(
        yaml.safe_dump(
            {
                "listen": {
                    "ext_proc": f"127.0.0.1:{ports.ext_proc}",
                    "api": f"127.0.0.1:{free_port()}",
                    "console": f"127.0.0.1:{free_port()}",
                    "http": f"127.0.0.1:{ports.http}",
                },
                "memory": {"embedding": {"models_dir": str(MODELS.absolute())}},
                "data_dir": str(directory),
                # The story is about what is known, on a machine that may be busy with something else.
                "recall": {"deadline": "1s"},
                "telemetry": {"log_level": "info", "log_format": "json"},
            }
        )
    )
