"""The data directory: locked by a single process, and monitored while it runs."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import IO, Self

from memory_extproc.app.context import milvus_options
from memory_extproc.app.coordination import COORDINATION, JOURNAL, ledger_file
from memory_extproc.app.storage import keys_file
from memory_extproc.app.write_path import CONSENT
from memory_extproc.coordination.sqlite_file import INDEX, LOG, FileId, Harm, file_id
from memory_extproc.errors import ConfigurationError, TransientError
from memory_extproc.journal.failover import Check
from memory_extproc.observe.log import logger
from memory_extproc.observe.metrics import Metrics
from memory_extproc.settings import Settings
from memory_extproc.settings.loading import DATA_DIR_LOCK

log = logger(__name__)

LOCK = DATA_DIR_LOCK  # held as long as its holder lives, so a crash leaves no lock
LITE_LOCK = "LOCK"  # of Milvus Lite, in its own directory; open as long as that is


class DataDirectory:
    """Makes the directory private to its owner, and locks it while entered."""

    def __init__(self, settings: Settings) -> None:
        self.path = Path(settings.data_dir).absolute()
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        """Create and lock the directory. ConfigurationError if that fails or another process holds it."""
        try:
            self._lock = self._take_lock()
        except BlockingIOError as error:
            raise ConfigurationError(
                [f"data_dir: another sidecar is using {self.path}; give each one its own"]
            ) from error
        except OSError as error:
            remedy = "name a directory that this user may write (data_dir, or MEMORY_EXTPROC__DATA_DIR)"
            fault = f"data_dir: {self.path} cannot be used: {error.strerror}; {remedy}"
            raise ConfigurationError([fault]) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def _take_lock(self) -> IO[str]:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        return lock


class OpenFiles:
    """Detects open files that were deleted or replaced.

    Writes to them would be lost at the next start, and are rejected by the files themselves; nothing is repaired
    here. Some twenty stat calls per check."""

    def __init__(self, paths: Sequence[Path], metrics: Metrics) -> None:
        beside = [path.with_name(path.name + name) for path in paths for name in (LOG, INDEX)]
        self._harms = {**dict.fromkeys(paths, Harm.REPLACED), **dict.fromkeys(beside, Harm.LOG_GONE)}
        self._metrics = metrics
        self._known: dict[Path, FileId] = {}  # as opened
        self._taken: dict[Path, Harm] = {}

    def check(self) -> None:
        """TransientError with the names of the missing files."""
        ours = _open_files()
        taken = {path: harm for path in self._harms if (harm := self._harm(path, ours)) is not None}
        for path, harm in taken.items():
            if path not in self._taken:
                log.error("file.taken_away", file=path.name, why=harm.value)
        self._taken = taken
        counts = Counter(taken.values())
        for harm in (Harm.GONE, Harm.REPLACED, Harm.LOG_GONE):
            self._metrics.files_taken_away.labels(harm.value).set(counts[harm])
        if taken:
            names = ", ".join(f"{path.name} ({harm.value})" for path, harm in taken.items())
            raise TransientError(f"files were taken away while in use: {names}: put them back, or restart")

    def checked_with(self, check: Check) -> Check:
        async def both() -> None:
            self.check()
            await check()

        return both

    def _harm(self, path: Path, ours: set[FileId]) -> Harm | None:
        there = file_id(path)
        if there in ours:
            self._known[path] = there
            return None
        if self._known.get(path) not in ours:  # not opened yet, or closed since
            return None
        harm = self._harms[path]
        return Harm.GONE if there is None and harm is Harm.REPLACED else harm


def watched_files(settings: Settings, data: Path) -> list[Path]:
    """The files that only the sidecar replaces."""
    lite = milvus_options(settings, data, "").path / LITE_LOCK
    own = [data / name for name in (LOCK, JOURNAL, COORDINATION, CONSENT)]
    return [*own, ledger_file(settings, data), keys_file(settings, data), lite]


def _open_files() -> set[FileId]:
    found = (file_id(int(descriptor)) for descriptor in os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {one for one in found if one is not None}


def hold_data_directory(settings: Settings, stack: AsyncExitStack) -> Path:
    """Lock the data directory until *stack* closes."""
    return stack.enter_context(DataDirectory(settings)).path


def hold_lite(settings: Settings, data: Path, stack: AsyncExitStack) -> None:
    """Lock the Milvus Lite file for a command. ConfigurationError if it does not exist or a sidecar holds it.

    Milvus Lite admits a single process. With a Milvus server nothing is locked."""
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
