"""An answer as it passes: kept up to a bound, read after its last chunk. Its bytes are never changed."""

from __future__ import annotations

import asyncio

from memory_extproc.dialect.base import Answer, Dialect, ReadsAnswer
from memory_extproc.errors import BadBodyError
from memory_extproc.model import Stored
from memory_extproc.wire.coding import OversizeError, Unpacker
from memory_extproc.wire.events import Headers
from memory_extproc.wire.held import HeldBytes

SLICE = 64 * 1024  # bytes read between two turns of the event loop: other streams wait well under 1 ms


class Capture:
    """Keeps chunks, reads them when asked. Adding a chunk costs no more than keeping it."""

    def __init__(self, reader: ReadsAnswer, encoding: str, limit: int, held: HeldBytes) -> None:
        """*encoding*: the answer's content-encoding; *limit*: bytes, packed and unpacked."""
        self._reader, self._encoding, self._limit, self._held = reader, encoding, limit, held
        self._chunks: list[bytes] = []
        self._size = 0
        self.dropped: Stored | None = None  # why nothing is kept any more

    def add(self, chunk: bytes) -> None:
        if self.dropped is not None:
            return
        if self._size + len(chunk) > self._limit:
            self._drop(Stored.CAPTURE_LIMIT)
        elif not self._held.take_to_learn(len(chunk)):
            self._drop(Stored.PROCESS_LIMIT)
        else:
            self._size += len(chunk)
            self._chunks.append(chunk)

    async def read(self) -> Answer | Stored:
        """The answer, or why there is none to learn from. Gives back what was kept."""
        try:
            if self.dropped is not None:
                return self.dropped
            return await self._read()
        except OversizeError:
            return Stored.CAPTURE_LIMIT
        except BadBodyError:
            return Stored.UNREADABLE
        finally:
            self.forget()

    async def _read(self) -> Answer:
        unpacker = Unpacker(self._encoding, self._limit)
        for chunk in self._chunks:
            for start in range(0, len(chunk), SLICE):
                self._reader.feed(unpacker.feed(chunk[start : start + SLICE]))
                if len(chunk) > SLICE:
                    await asyncio.sleep(0)
        return self._reader.answer()

    def forget(self) -> None:
        self._held.give_learned(self._size)
        self._size = 0
        self._chunks.clear()

    def _drop(self, why: Stored) -> None:
        self.forget()
        self.dropped = why


def capture(dialect: Dialect, headers: Headers, limit: int, held: HeldBytes) -> Capture | Stored:
    """A capture for an answer of status 200 with these headers, or why it teaches nothing."""
    reader = dialect.reader(headers.get("content-type"))
    if reader is None:
        return Stored.UNREADABLE
    encoding = ",".join(headers.all("content-encoding"))
    try:
        Unpacker(encoding, limit)
    except BadBodyError:
        return Stored.UNREADABLE
    return Capture(reader, encoding, limit, held)
