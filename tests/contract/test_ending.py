"""A process that was told to end and does not says what keeps it, before its supervisor kills it."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import structlog

from memory_extproc.cli.serve import usual_shutdown, warn_of_slow_shutdown
from memory_extproc.settings import Settings
from tests.support.waiting import until


async def test_a_slow_shutdown_names_the_tasks_and_threads_that_keep_it() -> None:
    hangs = asyncio.create_task(asyncio.Event().wait(), name="lease of this replica")
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="journal_0")
    thread.start()
    try:
        with structlog.testing.capture_logs() as logs:
            warn_of_slow_shutdown(asyncio.get_running_loop(), timedelta())
            await until(lambda: bool(logs), "it is said")
    finally:
        leave.set()
        thread.join()
        hangs.cancel()
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("sidecar.slow_to_end", "warning")
    assert "lease of this replica: Event.wait" in line["tasks"]
    assert "journal_0" in line["threads"]


async def test_it_is_said_though_the_event_loop_is_what_hangs() -> None:
    with structlog.testing.capture_logs() as logs:
        warn_of_slow_shutdown(asyncio.get_running_loop(), timedelta())
        for timer in [one for one in threading.enumerate() if isinstance(one, threading.Timer)]:
            timer.join()  # the loop does nothing meanwhile
    assert [line["event"] for line in logs] == ["sidecar.slow_to_end"]


def test_a_usual_shutdown_has_time_to_announce_drain_and_flush() -> None:
    shutdown = Settings().shutdown
    assert usual_shutdown(Settings()) > shutdown.announce + shutdown.grace + shutdown.flush
