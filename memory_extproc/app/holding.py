"""Who has a data directory to themselves, by a lock on a file in it."""

from __future__ import annotations

import fcntl
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Self

from memory_extproc.app.options import milvus_options
from memory_extproc.errors import ConfigurationError, TryLaterError
from memory_extproc.learn.journal_spare import Check
from memory_extproc.observe.log import logger
from memory_extproc.settings import Settings
from memory_extproc.sqlite_file import Tells, nobody
from memory_extproc.sqlite_place import Harm

log = logger(__name__)

LOCK = "lock"  # the file in the data directory; held as long as its holder lives, so a crash leaves no lock


class DataDirectory:
    """Made readable by its owner alone, and held by this process alone while entered."""

    def __init__(self, settings: Settings, *, tells: Tells = nobody) -> None:
        self.path = Path(settings.data_dir).absolute()
        self._tells = tells
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        """ConfigurationError where it cannot be made or another process holds it."""
        try:
            self._lock = self._locked()
        except BlockingIOError as error:
            raise ConfigurationError(
                [f"data_dir: another sidecar is using {self.path}; give each one its own"]
            ) from error
        except OSError as error:
            raise ConfigurationError([f"data_dir: {self.path} cannot be used: {error.strerror}"]) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def check(self) -> None:
        """Takes the lock anew where its file was taken away, which would let a second sidecar in. TryLaterError
        where one is in already."""
        if self._stands():
            return
        try:
            lock = self._locked()
        except BlockingIOError as error:
            raise TryLaterError("the data directory was exchanged, and another sidecar is using it") from error
        except OSError as error:
            raise TryLaterError(f"the data directory is gone, and cannot be made: {error.strerror}") from error
        if self._lock is not None:
            self._lock.close()
        self._lock = lock
        log.error("file.put_back", file=LOCK, why=Harm.GONE.value, aside="")
        self._tells(Harm.GONE.value)

    def checked_with(self, check: Check) -> Check:
        async def both() -> None:
            self.check()
            await check()

        return both

    def _stands(self) -> bool:
        try:
            stands = (self.path / LOCK).stat()
        except OSError:
            return False
        return self._lock is not None and os.path.samestat(stands, os.fstat(self._lock.fileno()))

    def _locked(self) -> IO[str]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        return lock


def hold_data_directory(settings: Settings, stack: AsyncExitStack) -> Path:
    """Until *stack* ends."""
    return stack.enter_context(DataDirectory(settings)).path


def hold_lite(settings: Settings, data: Path, stack: AsyncExitStack) -> None:
    """For a command that opens the store. ConfigurationError where nothing was remembered yet, or while a sidecar
    holds the Lite file, which lets one process in. With a Milvus server nothing is held."""
    if settings.memory.milvus.address:
        return
    path = milvus_options(settings, data, "").path
    if not path.exists():
        raise ConfigurationError([f"data_dir: nothing has been remembered below {path.parent}"])
    try:
        hold_data_directory(settings, stack)
    except ConfigurationError as error:
        advice = "stop it first: a Milvus Lite file lets one process in"
        raise ConfigurationError([f"{fault}; {advice}" for fault in error.faults]) from error
