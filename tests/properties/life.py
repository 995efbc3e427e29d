"""Lives of the sidecar, each a process of its own that may be killed at any turn of its event loop:
life.py LOG

Reads the paths of a configuration and a switchboard from each line of its input, and starts a life with them:
forked, so that it takes as long to begin as a sidecar takes to open, and not as long as its imports. Answers with a
line of JSON that says the life's process and addresses, or why it did not begin.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import mmap
import os
import signal
import struct
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from memory_extproc import app
from memory_extproc.errors import ConfigurationError
from memory_extproc.observe.log import configure
from memory_extproc.settings import load

SIZE = struct.calcsize("<dq")


class Switchboard:
    """What a story tells its lives while they run: what time it is, and when to die."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(struct.pack("<dq", 0.0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    @property
    def ahead(self) -> timedelta:
        """Of the machine's clock."""
        return timedelta(seconds=struct.unpack_from("<d", self._map, 0)[0])

    @ahead.setter
    def ahead(self, by: timedelta) -> None:
        struct.pack_into("<d", self._map, 0, by.total_seconds())

    @property
    def turns(self) -> int:
        """Of the event loop, that are left; 0: all that it wants."""
        return int(struct.unpack_from("<q", self._map, 8)[0])

    @turns.setter
    def turns(self, left: int) -> None:
        struct.pack_into("<q", self._map, 8, left)

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class Mortal(asyncio.SelectorEventLoop):
    """Ends its process, as power loss would, once its turns are used up."""

    board: Switchboard

    def _run_once(self) -> None:
        left = self.board.turns
        if left == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if left > 1:
            self.board.turns = left - 1
        super()._run_once()  # type: ignore[misc]  # asyncio's own, without a stub


async def lived(config: Path, board: Switchboard, answer: int) -> None:
    leave, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, leave.set)
    loop.add_signal_handler(signal.SIGUSR1, _tell_where)
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # also while the loop stands still
    async with app.sidecar(load(config, {}), now=board.now) as whole:
        said = {"process": os.getpid(), "ext_proc": whole.ext_proc, "api": whole.api, "http": whole.http}
        os.write(answer, json.dumps(said).encode() + b"\n")
        await leave.wait()


def _tell_where() -> None:
    """Asked by a story that waits in vain: where every task stands, into the log."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()


def live(config: Path, board: Switchboard, log: Path) -> None:
    """Never comes back."""
    answer = os.dup(1)
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(lines, 1)
    os.dup2(lines, 2)
    os.close(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    configure("debug", "json")
    status = 0
    try:
        with asyncio.Runner(loop_factory=lambda: _mortal(board)) as runner:
            runner.run(lived(config, board, answer))
    except BaseException as error:  # noqa: BLE001 - told to the story, which fails with it
        faults: Any = error.faults if isinstance(error, ConfigurationError) else repr(error)
        os.write(answer, json.dumps({"failed": faults}).encode() + b"\n")
        status = 1
    os._exit(status)


def _mortal(board: Switchboard) -> Mortal:
    loop = Mortal()
    loop.board = board
    return loop


def main(log: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not waited for
    for line in sys.stdin:
        config, board = json.loads(line)
        if os.fork() == 0:
            live(Path(config), Switchboard(Path(board)), log)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
