"""Takes up a changed configuration without a restart: what may change does, the rest is said in the log."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from memory_extproc.app.live import Live
from memory_extproc.errors import ConfigurationError
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings, load
from memory_extproc.settings.reloading import secret_files

log = logger(__name__)

Changes = Callable[[Sequence[Path]], AsyncGenerator[object]]  # something each time a file there may have changed


@dataclass(frozen=True, slots=True)
class Source:
    """Where the configuration comes from."""

    path: Path
    environ: Mapping[str, str]  # as it was at the start: no process is told of changes in it

    def load(self) -> Settings:
        """ConfigurationError with every fault; an empty file is one too. It would give every default, and is what
        a file looks like while an editor writes it."""
        if not _contents(self.path).strip():
            raise ConfigurationError([f"{self.path}: is empty"])
        return load(self.path, self.environ)


async def changes_in(directories: Sequence[Path]) -> AsyncGenerator[object]:
    """Directories, because a file is often replaced by another of its name, in Kubernetes by way of a link."""
    from watchfiles import awatch  # noqa: PLC0415 - only where a configuration is watched

    async for _ in awatch(*directories, recursive=False, watch_filter=None):
        yield None


class Reloading:
    """Reads again when a file changes or somebody asks; while what it reads has a fault, all stays as it was.

    Entering it watches the file's directory and those of files that hold secrets. Where that cannot be done (a
    file system without notices, none left to give), `ask` still works.
    """

    def __init__(self, live: Live, source: Source, metrics: Metrics, *, changes: Changes = changes_in) -> None:
        self._live, self._source, self._metrics = live, source, metrics
        self._changes = changes
        self._asked = asyncio.Event()
        self._watched: Settings = live.settings  # as last read, whether or not it was taken up
        self._seen = ""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._seen = self._digest()
        self._tasks = [
            asyncio.create_task(self._follow(), name="configuration"),
            asyncio.create_task(self._watch(), name="configuration files"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def ask(self) -> None:
        """Reads again soon, whether or not a file seems to have changed. To be called on the event loop."""
        self._asked.set()

    async def _follow(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._reload()

    async def _watch(self) -> None:
        while True:
            directories = self._directories()
            try:
                async with aclosing(self._changes(directories)) as changes:
                    async for _ in changes:
                        if await asyncio.to_thread(self._digest) != self._seen:
                            self._asked.set()
                        if self._directories() != directories:
                            break
                    else:
                        return
            except OSError as error:
                log.warning("configuration.unwatched", kind=type(error).__name__)
                return

    async def _reload(self) -> None:
        before = await asyncio.to_thread(self._digest)
        try:
            wanted = await asyncio.to_thread(self._source.load)
            change = self._live.merged(wanted)
        except ConfigurationError as error:
            self._refused(error.faults)
        else:
            self._watched = wanted
            self._metrics.reload_failed.set(0)
            self._metrics.restart_needed.set(len(change.waiting))
            if change.waiting and change.waiting != self._live.waiting:
                log.warning("configuration.needs_restart", keys=list(change.waiting))
            if change:
                known = self._live.settings.notices()
                self._live.use(change)
                for notice in change.settings.notices():
                    if notice not in known:
                        log.warning("configuration.notice", notice=notice)
                log.info("configuration.reloaded", keys=list(change.changed))
            else:
                self._live.waiting = change.waiting
                log.info("configuration.unchanged")
            self._metrics.reloads.labels("applied" if change else "unchanged").inc()
        self._seen = before
        # Written while it was read: what was read may be half of it.
        if await asyncio.to_thread(self._digest) != before:
            self._asked.set()

    def _refused(self, faults: Iterable[str]) -> None:
        self._metrics.reload_failed.set(1)
        self._metrics.reloads.labels("refused").inc()
        for fault in faults:
            log.error("configuration.refused", fault=fault)

    def _files(self) -> list[Path]:
        return [self._source.path, *secret_files(self._live.settings), *secret_files(self._watched)]

    def _directories(self) -> list[Path]:
        """Of files and links alike: what a link points to may be replaced as well as the link."""
        parents = {parent for file in self._files() for parent in (file.parent, file.resolve().parent)}
        return sorted(parent for parent in parents if parent.is_dir())

    def _digest(self) -> str:
        """Of all that the configuration is read from: other files of these directories change for nothing."""
        digest = hashlib.sha256()
        for file in dict.fromkeys(self._files()):
            contents = _contents(file)
            digest.update(f"{file}\0{len(contents)}\0".encode() + contents)
        return digest.hexdigest()


def _contents(path: Path) -> bytes:
    """Nothing where it cannot be read: reading it as a configuration says why."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
