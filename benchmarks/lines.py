"""Processes of ours that are asked in lines of JSON and answer in lines of JSON.

A child ends when its standard input does, so none outlives the run that started it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

ENDS_WITHIN = 20.0  # seconds
LINE_LIMIT = 64 * 1024 * 1024


class ChildFailedError(Exception):
    """A process of the benchmark ended, or did not answer in time; holds the end of what it wrote."""


class Child:
    """One such process. What it writes to standard error goes to a file, which is told when it fails."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, question: object, answer: type[T], *, within: float) -> T:
        """The answer to *question*; ChildFailedError when none came in *within* seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(question) + b"\n")
        await self._process.stdin.drain()
        return await self.hear(answer, within=within)

    async def hear(self, answer: type[T], *, within: float) -> T:
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            how = "ended" if self._process.stdout.at_eof() else f"gave no answer within {within:.0f} s"
            raise ChildFailedError(f"{self.name} {how}\n{tail(self._log)}")
        return msgspec.json.decode(line, type=answer)

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await end(self._process)


@contextlib.asynccontextmanager
async def child(module: str, *arguments: str, scratch: Path) -> AsyncIterator[Child]:
    """`python -m benchmarks.MODULE` while entered."""
    name = f"benchmarks.{module}"
    log = scratch / f"{module}-{'-'.join(arguments) or 'log'}.txt".replace("/", "_")
    with log.open("ab") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", name, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=err,
            limit=LINE_LIMIT,
        )
    started = Child(name, process, log)
    try:
        yield started
    finally:
        await started.stop()


async def end(process: asyncio.subprocess.Process, *, ask: signal.Signals | None = None) -> None:
    """Waits until *process* has ended, after asking it with a signal; kills it when it takes too long."""
    if process.returncode is None and ask is not None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(ask)
    try:
        async with asyncio.timeout(ENDS_WITHIN):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def tail(log: Path, size: int = 3000) -> str:
    return log.read_bytes()[-size:].decode(errors="replace") if log.exists() else ""


# --- the child's side ------------------------------------------------------------------------------
def say(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def until_input_ends() -> None:
    await asyncio.to_thread(sys.stdin.buffer.read)


async def answer_lines(question: type[T], respond: Callable[[T], Awaitable[object]]) -> None:
    """Answers each line with what *respond* makes of it, until the input ends."""
    decoder = msgspec.json.Decoder(question)
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        say(await respond(decoder.decode(line)))
