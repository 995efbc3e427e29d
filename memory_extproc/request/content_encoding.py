"""Streaming decompression of content encodings with a bound on the output.

A few kilobytes can decompress to gigabytes, so every decoder is limited to the bytes still allowed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli
import zstandard

from memory_extproc.errors import BadBodyError

PIECE = 64 * 1024  # bytes requested per step from decoders that accept a limit
IDENTITY = frozenset({"", "identity"})
# The window size that every zstd decoder must accept (RFC 9659); a larger window is rejected.
ZSTD_WINDOW = 8 * 1024 * 1024
MOST_CODINGS = 3  # codings stacked in a content-encoding; legitimate clients use fewer
MOST_MEMBERS = 1_000  # gzip members or zstd frames of a body; each costs a new decoder


class OversizeError(BadBodyError):
    """The decoder's input or output exceeds the limit."""


class Decoder(Protocol):
    def feed(self, chunk: bytes, allowed: int) -> bytes:
        """Decompress *chunk*.

        OversizeError if the output exceeds *allowed* bytes; BadBodyError if the data is invalid for this encoding.
        """

    def finish(self) -> None:
        """BadBodyError if the stream is incomplete."""


class _Plain:
    def feed(self, chunk: bytes, allowed: int) -> bytes:
        if len(chunk) > allowed:
            raise OversizeError("the body is larger than allowed")
        return chunk

    def finish(self) -> None:
        return


class _Zlib:
    """gzip, multi-member included, and deflate: zlib format or, as many servers send it, raw."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._started = False
        self._inner = zlib.decompressobj(31 if gzip else 15)
        self._members = 1

    def feed(self, chunk: bytes, allowed: int) -> bytes:
        if not chunk:
            return b""
        if not self._gzip and not self._started and chunk[0] & 0x0F != zlib.DEFLATED:
            # RFC 1950, 2.2: a zlib stream begins with its method, 8, in the low half of the first byte.
            self._inner = zlib.decompressobj(-15)
        self._started = True
        unpacked = bytearray()
        for bite in _bites(chunk, BITE):
            self._feed(bite, unpacked, allowed)
        return bytes(unpacked)

    def _feed(self, rest: bytes, unpacked: bytearray, allowed: int) -> None:
        while rest:
            if self._inner.eof:
                if not self._gzip:
                    raise BadBodyError("bytes after the end of the deflate stream")
                self._members = _next_member(self._members)
                self._inner = zlib.decompressobj(31)  # RFC 1952, 2.2: a member may follow another
            try:
                unpacked += self._inner.decompress(rest, allowed - len(unpacked) + 1)
            except zlib.error as error:
                raise BadBodyError("not a gzip or deflate stream") from error
            if len(unpacked) > allowed:
                raise OversizeError("the unpacked body is larger than allowed")
            rest = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail

    def finish(self) -> None:
        if self._started and not self._inner.eof:
            raise BadBodyError("the packed body is cut off")


# Bytes given to a decoder at once. It returns all input behind a member's end, so a body that is given as a whole
# would be copied once for each of its members.
BITE = 4_096


def _bites(chunk: bytes, size: int) -> Iterator[bytes]:
    whole = memoryview(chunk)
    return (bytes(whole[start : start + size]) for start in range(0, len(whole), size))


def _next_member(members: int) -> int:
    if members >= MOST_MEMBERS:
        raise BadBodyError("more members or frames than anyone needs")
    return members + 1


class _Brotli:
    def __init__(self) -> None:
        self._inner = brotli.Decompressor()
        self._started = False

    def feed(self, chunk: bytes, allowed: int) -> bytes:
        unpacked = bytearray()
        self._started = self._started or bool(chunk)
        rest = chunk
        try:
            while rest or not self._inner.can_accept_more_data():
                unpacked += self._inner.process(rest, output_buffer_limit=PIECE)
                rest = b""
                if len(unpacked) > allowed:
                    raise OversizeError("the unpacked body is larger than allowed")
                if self._inner.is_finished():
                    break
        except brotli.error as error:
            raise BadBodyError("not a brotli stream") from error
        return bytes(unpacked)

    def finish(self) -> None:
        if self._started and not self._inner.is_finished():
            raise BadBodyError("the packed body is cut off")


class _Zstd:
    """zstd, fed in small slices.

    The decoder accepts no output limit, but the output of a slice is bounded by its size."""

    BITE = 128  # a block of 128 KiB takes 4 bytes at least (RFC 8878, 3.1.1.2): 4 MiB a bite at the very most

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
        self._started = False
        self._frames = 1

    def feed(self, chunk: bytes, allowed: int) -> bytes:
        unpacked = bytearray()
        self._started = self._started or bool(chunk)
        for bite in _bites(chunk, self.BITE):
            self._feed(bite, unpacked, allowed)
        return bytes(unpacked)

    def _feed(self, rest: bytes, unpacked: bytearray, allowed: int) -> None:
        while rest:
            if self._inner.eof:  # RFC 8878, 3: a frame may follow another
                self._frames = _next_member(self._frames)
                self._inner = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).decompressobj()
            try:
                unpacked += self._inner.decompress(rest)
            except zstandard.ZstdError as error:
                raise BadBodyError("not a zstd stream") from error
            if len(unpacked) > allowed:
                raise OversizeError("the unpacked body is larger than allowed")
            rest = self._inner.unused_data if self._inner.eof else b""

    def finish(self) -> None:
        if self._started and not self._inner.eof:
            raise BadBodyError("the packed body is cut off")


def decoder(coding: str) -> Decoder | None:
    """A new decoder for the named coding; None if it is not supported."""
    match coding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Zlib(gzip=True)
        case "deflate":
            return _Zlib(gzip=False)
        case "br":
            return _Brotli()
        case "zstd":
            return _Zstd()
        case _:
            return None


class Unpacker:
    """Decodes a body that arrives in chunks; the content-encoding may list several codings."""

    def __init__(self, encoding: str, limit: int) -> None:
        """*limit*: total output bytes. BadBodyError for an unsupported coding."""
        # RFC 9110, 8.4: codings are listed in the order they were applied, so they are undone from the last.
        names = [name.strip().lower() for name in encoding.split(",") if name.strip().lower() not in IDENTITY]
        if len(names) > MOST_CODINGS:
            raise BadBodyError("more content codings than anyone needs")
        self._chain: list[Decoder] = []
        for name in reversed(names or ["identity"]):
            made = decoder(name)
            if made is None:
                raise BadBodyError("a content coding that is not known here")
            self._chain.append(made)
        self._limit = limit
        self._given = 0

    def feed(self, chunk: bytes) -> bytes:
        allowed = self._limit - self._given
        for one in self._chain:
            chunk = one.feed(chunk, allowed)
        self._given += len(chunk)
        return chunk

    def finish(self) -> None:
        for one in self._chain:
            one.finish()


def is_encoded(encoding: str) -> bool:
    """Whether a body with this content-encoding must be decompressed before parsing."""
    return any(name.strip().lower() not in IDENTITY for name in encoding.split(","))


def unpack(encoding: str, body: bytes, limit: int) -> bytes:
    """Decompress *body*. OversizeError above *limit* bytes, other errors as `Unpacker`."""
    unpacker = Unpacker(encoding, limit)
    unpacked = unpacker.feed(body)
    unpacker.finish()
    return unpacked
