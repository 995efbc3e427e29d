"""A process that was told to end does so, whatever in it hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import timedelta

import pytest
import structlog

from memory_extproc.cli.ending import CUT_OFF, Ending, EndingLimits, ending_limits
from memory_extproc.settings import Settings

_A_THREAD_HANGS = """
import asyncio, threading
from datetime import timedelta
from memory_extproc.cli.ending import Ending, EndingLimits

async def main():
    hangs = threading.Event()
    asyncio.get_running_loop().run_in_executor(None, hangs.wait)
    Ending(EndingLimits(timedelta(), timedelta(milliseconds=50))).begin(asyncio.get_running_loop())

asyncio.run(main())
"""
_THE_LOOP_HANGS = """
import asyncio, threading
from datetime import timedelta
from memory_extproc.cli.ending import Ending, EndingLimits

async def main():
    Ending(EndingLimits(timedelta(), timedelta(milliseconds=50))).begin(asyncio.get_running_loop())
    threading.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [_A_THREAD_HANGS, _THE_LOOP_HANGS], ids=["a thread", "the loop"])
def test_a_process_ends_though_something_in_it_hangs(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == CUT_OFF
    assert "sidecar.cut_off" in done.stdout + done.stderr


async def test_what_keeps_the_process_is_named() -> None:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    hangs = asyncio.create_task(asyncio.Event().wait(), name="lease of this replica")
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="journal_0")
    thread.start()
    ending = Ending(
        EndingLimits(timedelta(), timedelta()), lambda code: loop.call_soon_threadsafe(ended.set_result, code)
    )
    try:
        with structlog.testing.capture_logs() as logs:
            ending.begin(loop)
            ending.begin(loop)  # told once more: it ends once
            assert await ended == CUT_OFF
    finally:
        leave.set()
        thread.join()
        hangs.cancel()
    assert [line["event"] for line in logs] == ["sidecar.slow_to_end", "sidecar.cut_off"]
    for told in logs:
        assert "lease of this replica: Event.wait" in told["tasks"]
        assert "journal_0" in told["threads"]


def test_an_orderly_end_is_given_all_the_time_that_the_configuration_grants() -> None:
    shutdown, limits = Settings().shutdown, ending_limits(Settings())
    assert limits.longest >= 2 * (shutdown.announce + shutdown.grace) + 3 * shutdown.flush
    assert limits.longest > limits.usual > shutdown.announce + shutdown.grace + shutdown.flush
