"""Who has a data directory to themselves."""

from __future__ import annotations

import fcntl
from contextlib import AsyncExitStack
from pathlib import Path

from memory_extproc.app.options import milvus_options
from memory_extproc.errors import ConfigurationError
from memory_extproc.settings import Settings

LOCK = "lock"  # the file in the data directory; held as long as its holder lives, so a crash leaves no lock


def hold_data_directory(settings: Settings, stack: AsyncExitStack) -> Path:
    """The data directory, made readable by its owner alone and held by this process alone."""
    directory = Path(settings.data_dir).absolute()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = stack.enter_context((directory / LOCK).open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            [f"data_dir: another sidecar is using {directory}; give each one its own"]
        ) from error
    except OSError as error:
        raise ConfigurationError([f"data_dir: {directory} cannot be used: {error.strerror}"]) from error
    return directory


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
