"""A stub of an LLM that costs next to nothing: one prepared answer, or an event stream with the time in each event.

Raw asyncio, because a web framework would be most of what the plain route is measured to take.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from benchmarks.figures import CHUNKS
from benchmarks.lines import say, until_input_ends

INTERVAL = 0.005  # seconds between two events
PAUSE = 0.02  # seconds before the first, so that the head is not measured
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"transfer-encoding: *chunked", re.IGNORECASE)
ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "It is as you told me the last time. " * 4},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 40, "total_tokens": 140},
    }
).encode()
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def event(number: int, *, last: bool) -> bytes:
    delta: dict[str, Any] = {} if last else {"content": f"word{number} "}
    choice = {"index": 0, "delta": delta, "finish_reason": "stop" if last else None}
    made = {"id": "c", "object": "chat.completion.chunk", "at": time.monotonic_ns(), "choices": [choice]}
    return b"data: " + json.dumps(made).encode() + b"\n\n"


def frame_chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def read_chunk(got: bytearray, at: int) -> tuple[bytes, int]:
    """The chunked body that begins at *at*, and where it ends; 0 while it is not whole."""
    body = b""
    while (line := got.find(b"\r\n", at)) >= 0:
        size = int(got[at:line], 16)
        at = line + 2 + size + 2
        if len(got) < at:
            break
        if not size:
            return body, at
        body += got[line + 2 : at - 2]
    return body, 0


class Conversation(asyncio.Protocol):
    """One connection: HTTP/1.1 requests, one after the other; with a length, or in chunks where Envoy could not
    know how long they would become."""

    def __init__(self) -> None:
        self._got = bytearray()
        self._transport: asyncio.Transport
        self._streams: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        for task in self._streams:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (head := self._got.find(b"\r\n\r\n")) >= 0:
            if CHUNKED.search(self._got, 0, head):
                body, end = read_chunk(self._got, head + 4)
            else:
                length = LENGTH.search(self._got, 0, head)
                end = head + 4 + (int(length[1]) if length else 0)
                body = bytes(self._got[head + 4 : end])
            if not end or len(self._got) < end:
                return
            del self._got[:end]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        if b'"stream": true' in body or b'"stream":true' in body:
            task = asyncio.create_task(self._stream())
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
            return
        head = (
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-body-bytes: {len(body)}\r\n"
            f"content-length: {len(ANSWER)}\r\n\r\n"
        )
        self._transport.write(head.encode() + ANSWER)

    async def _stream(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport.write(STREAM_HEAD)
        start = loop.time() + PAUSE
        for number in range(CHUNKS):
            await asyncio.sleep(max(start + number * INTERVAL - loop.time(), 0))
            self._transport.write(frame_chunk(event(number, last=number == CHUNKS - 1)))
        self._transport.write(frame_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Conversation, "127.0.0.1", 0)
    async with server:
        say({"port": server.sockets[0].getsockname()[1]})
        await until_input_ends()


if __name__ == "__main__":
    asyncio.run(main())
