"""`replica.json` in the data directory: its name in the register, the generation of Redis that was last seen."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from memory_extproc.observe.log import logger

log = logger(__name__)

FILE = "replica.json"
_VERSION = 1


class Remembered(msgspec.Struct, frozen=True):
    """What a data directory remembers of its fleet."""

    name: str
    version: int = _VERSION
    generation: str = ""  # empty: none was seen yet
    sequence: int = 0  # the highest number that was seen of this directory there
    copied: bool = False  # whether the mirror has what stood in Redis before this directory came
    register: dict[str, tuple[str, str]] = {}  # of data directories: holder → directory, entry


class DirectoryFile:
    """Replaced as a whole, so it is there whole or not at all. One that cannot be read is kept aside, and *unsure*
    says that something may have stood there."""

    def __init__(self, data: Path) -> None:
        self._path = data / FILE
        self.unsure = False
        self._writing = threading.Lock()
        self.now = self._read() or Remembered(f"{socket.gethostname()}-{secrets.token_hex(4)}")
        self.update()

    def update(self, **changes: object) -> None:
        """On any thread. A disk that refuses it keeps nobody from serving: the next change writes all of it."""
        with self._writing:
            self.now = msgspec.structs.replace(self.now, **changes)
            made = self._path.with_suffix(".new")
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                    file.write(msgspec.json.encode(self.now))
                    file.flush()
                    os.fsync(file.fileno())
                made.replace(self._path)
            except OSError as error:
                log.warning("file.not_written", file=FILE, why=error.strerror)

    def _read(self) -> Remembered | None:
        try:
            body = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError:
            body = b""
        why = "damaged"
        try:
            if json.loads(body)["version"] <= _VERSION:
                return msgspec.json.decode(body, type=Remembered)
            why = "newer"
        except (ValueError, LookupError, TypeError):
            pass
        self.unsure = True
        aside = self._path.with_name(f"{FILE}.{why}-{secrets.token_hex(4)}")
        with suppress(OSError):
            self._path.rename(aside)
        log.error("file.set_aside", file=FILE, why=why, aside=aside.name)
        return None
