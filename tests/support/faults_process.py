"""`memory-extproc serve` in a process of its own, to be killed, told to end, or starved of room on its disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.envoy import ROOT
from tests.support.faults import PRIVATE, FaultStand
from tests.support.ports import free_port
from tests.support.waiting import until


class Child:
    """One process at a time, always with the same configuration, ports and data."""

    def __init__(self, config: Path, data: Path, ext_proc: int, http: int) -> None:
        self.config, self.data, self.ext_proc, self.http = config, data, ext_proc, http
        self.tree = ROOT  # whose program the next start runs
        self.errors = ""  # all that it ever wrote to its standard error
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def logged(self) -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in self.errors.splitlines() if line.startswith("{")]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        command = [sys.executable, "-m", "memory_extproc", "serve", "--config", str(self.config)]
        env = dict(os.environ)
        if self.tree != ROOT:  # a version reads the model files that it made itself
            env["MEMORY_EXTPROC__MEMORY__EMBEDDING__MODELS_DIR"] = str(self.tree / "models")
        self._process = await asyncio.create_subprocess_exec(
            *command, cwd=self.tree, env=env, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        self._listening = asyncio.create_task(self._listen(self._process))

    async def serving(self) -> None:
        await self.start()
        await until(self.ready, "the process is ready", seconds=60)

    async def ended(self) -> int:
        """Its exit code, once it has one."""
        assert self._process is not None
        assert self._listening is not None
        code = await asyncio.wait_for(self._process.wait(), 60)
        await self._listening
        return code

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    def limit_files(self, size: int) -> None:
        """No file of the process grows beyond *size* bytes; its writes fail as on a disk that takes no more."""
        assert self._process is not None
        hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, hard))

    @contextlib.contextmanager
    def without_handles(self) -> Iterator[None]:
        """It can open no file and no connection beside those that it has."""
        assert self._process is not None
        pid = self._process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        opened = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened, hard))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))

    async def ready(self) -> bool:
        if self._process is not None and self._process.returncode is not None:
            raise AssertionError(f"the process ended with {self._process.returncode}\n{self.errors}")
        with contextlib.suppress(aiohttp.ClientError, OSError):
            return (await self.ask("/readyz"))[0] == 200
        return False

    async def ask(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.http}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def sample(self, line: str) -> float:
        """The metric that /metrics writes as *line*, labels included."""
        text = (await self.ask("/metrics"))[1]
        found = [row.rpartition(" ")[2] for row in text.splitlines() if row.startswith(f"memory_extproc_{line} ")]
        return float(found[0]) if found else 0.0

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            self.errors += line.decode(errors="replace")

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self.ended()
        told = [word for word in PRIVATE if word in self.errors]
        assert not told, f"a person's words were logged: {told}"


@contextlib.asynccontextmanager
async def a_child(faulty: FaultStand, name: str = "child", **changes: Any) -> AsyncIterator[Child]:
    """Not started yet. Its configuration is the stand's, with *changes*."""
    ext_proc, http = free_port(), free_port()
    listen = {"ext_proc": f"127.0.0.1:{ext_proc}", "http": f"127.0.0.1:{http}"}
    config, data = faulty.scratch / f"{name}.yaml", faulty.scratch / name
    faulty.configured(config, data, listen=listen, **changes)
    child = Child(config, data, ext_proc, http)
    try:
        yield child
    finally:
        sys.stderr.write(child.errors[-8000:])
        await child.close()
